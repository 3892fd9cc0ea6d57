//! Nodes: their objects, their readiness, their heartbeats.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::{MANAGER, Sim, SimError, absent_is_fine, present_is_fine};

/// Names of a cluster's nodes: `<cluster>-1`, `<cluster>-2`, …
pub fn node_names(cluster: &str, count: usize) -> impl Iterator<Item = String> {
    (1..=count).map(move |n| format!("{cluster}-{n}"))
}

/// Address of a cluster's n-th node, from 1.
pub fn node_address(cluster_index: usize, n: usize) -> String {
    format!("10.{}.0.{n}", cluster_index + 1)
}

pub(super) async fn install(sim: &Sim, count: usize) -> Result<(), SimError> {
    let nodes: Api<Node> = Api::all(sim.client.clone());
    for (i, name) in node_names(&sim.cluster, count).enumerate() {
        let node: Node = from(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
                "node-role.kubernetes.io/worker": "", "topology.kubernetes.io/zone": sim.cluster,
            } },
            "spec": {},
        }))?;
        present_is_fine(nodes.create(&PostParams::default(), &node).await)?;
        let status = json!({ "status": {
            "addresses": [
                { "type": "InternalIP", "address": node_address(sim.index, i + 1) },
                { "type": "Hostname", "address": name },
            ],
            "capacity": { "cpu": "8", "memory": "32Gi", "pods": "250" },
            "allocatable": { "cpu": "8", "memory": "32Gi", "pods": "250" },
            "nodeInfo": {
                "kubeletVersion": "v1.34.0", "osImage": "Farshore lab", "kernelVersion": "6.1.0",
                "containerRuntimeVersion": "lab://1", "architecture": "amd64", "operatingSystem": "linux",
                "bootID": name, "machineID": name, "systemUUID": name, "kubeProxyVersion": "",
            },
        } });
        nodes
            .patch_status(&name, &PatchParams::apply(MANAGER), &Patch::Merge(status))
            .await?;
        report(sim, &name).await?;
    }
    Ok(())
}

/// Writes whether a node is ready, as the node controller does.
pub(super) async fn report(sim: &Sim, node: &str) -> Result<(), SimError> {
    let nodes: Api<Node> = Api::all(sim.client.clone());
    let Some(live) = absent_is_fine(nodes.get(node).await)? else {
        return Ok(());
    };
    let up = sim.is_up(node);
    let (status, reason, message) = if up {
        ("True", "KubeletReady", "kubelet is posting ready status")
    } else {
        (
            "Unknown",
            "NodeStatusUnknown",
            "Kubelet stopped posting node status.",
        )
    };
    let already = live
        .status
        .as_ref()
        .and_then(|s| s.conditions.as_ref())
        .is_some_and(|conditions| {
            conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == status)
        });
    if already {
        return Ok(());
    }
    let now = sim.clock.now().to_string();
    let patch = json!({ "status": { "conditions": [{
        "type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": now, "lastHeartbeatTime": now,
    }] } });
    nodes
        .patch_status(node, &PatchParams::apply(MANAGER), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Renews each live node's Lease, and reports its readiness again after the server was away.
pub(super) async fn heartbeats(sim: Arc<Sim>, count: usize) {
    let leases: Api<Lease> = Api::namespaced(sim.client.clone(), "kube-node-lease");
    loop {
        for name in node_names(&sim.cluster, count) {
            if let Err(error) = report(&sim, &name).await {
                tracing::debug!(cluster = sim.cluster, node = name, %error, "cannot report the node");
            }
            if !sim.is_up(&name) {
                continue;
            }
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name },
                "spec": { "holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": sim.clock.micro_time() },
            });
            let beat = leases
                .patch(
                    &name,
                    &PatchParams::apply(MANAGER).force(),
                    &Patch::Apply(lease),
                )
                .await;
            if let Err(error) = beat {
                tracing::debug!(cluster = sim.cluster, node = name, %error, "no heartbeat");
            }
        }
        tokio::select! {
            biased;
            () = sim.shutdown.cancelled() => return,
            () = tokio::time::sleep(sim.timings.node_heartbeat) => {}
        }
    }
}

/// Turns JSON that this module wrote into a typed object.
fn from<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Result<T, SimError> {
    serde_json::from_value(value).map_err(|error| SimError::Other(error.to_string()))
}

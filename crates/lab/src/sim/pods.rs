//! The scheduler and the kubelets: pods find a node, their volumes are attached, their containers
//! run. A container whose image is one of ours is that process, run inside the lab.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::Controller;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::placement::{Choice, Wish, bound_volume, choose};
use super::workloads::{JOB_DURATION, JOB_EXIT_CODE};
use super::{MANAGER, Sim, SimError, absent_is_fine, drive, watch};

const RETRY: Duration = Duration::from_millis(500);

pub(super) fn start(sim: &Arc<Sim>) {
    let pods: Api<Pod> = Api::all(sim.client.clone());
    drive(sim, "kubelet", Controller::new(pods, watch()), reconcile);
    tokio::spawn(collect(sim.clone()));
}

async fn reconcile(sim: Arc<Sim>, pod: Arc<Pod>) -> Result<Option<Duration>, SimError> {
    let namespace = pod.namespace().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(sim.client.clone(), &namespace);
    let spec = pod.spec.clone().unwrap_or_default();
    let phase = pod
        .status
        .as_ref()
        .and_then(|s| s.phase.clone())
        .unwrap_or_else(|| "Pending".into());
    if pod.metadata.deletion_timestamp.is_some() {
        stop(&sim, &pod);
        let at_once = DeleteParams::default().grace_period(0);
        absent_is_fine(pods.delete(&pod.name_any(), &at_once).await)?;
        return Ok(None);
    }
    let Some(node) = spec.node_name.clone() else {
        return schedule(&sim, &pod, &pods).await;
    };
    if !sim.is_up(&node) {
        return Ok(Some(RETRY));
    }
    match phase.as_str() {
        "Pending" => run(&sim, &pod, &pods, &node).await,
        "Running" => continue_running(&sim, &pod, &pods, &node).await,
        _ => Ok(None),
    }
}

async fn schedule(sim: &Sim, pod: &Pod, pods: &Api<Pod>) -> Result<Option<Duration>, SimError> {
    let spec = pod.spec.clone().unwrap_or_default();
    let namespace = pod.namespace().unwrap_or_default();
    let wish = Wish {
        namespace: &namespace,
        selector: spec
            .node_selector
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect(),
        tolerations: spec.tolerations.as_deref().unwrap_or_default(),
        claims: &claims(pod),
    };
    match choose(sim, &wish).await? {
        Choice::Node(node) => {
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod.name_any(), "namespace": namespace },
                "target": { "apiVersion": "v1", "kind": "Node", "name": node },
            });
            absent_is_fine(
                pods.create_subresource::<_, Value>(
                    "binding",
                    &pod.name_any(),
                    &PostParams::default(),
                    &binding,
                )
                .await,
            )?;
            Ok(None)
        }
        Choice::Wait(why) => {
            let told = pod
                .status
                .as_ref()
                .and_then(|s| s.conditions.as_ref())
                .is_some_and(|c| c.iter().any(|c| c.message.as_deref() == Some(&why)));
            if !told {
                let status = json!({ "status": { "phase": "Pending", "conditions": [{
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
                    "lastTransitionTime": sim.clock.now().to_string(),
                }] } });
                pods.patch_status(
                    &pod.name_any(),
                    &PatchParams::apply(MANAGER),
                    &Patch::Merge(status),
                )
                .await?;
            }
            Ok(Some(RETRY))
        }
    }
}

/// Attaches the volumes and starts the containers.
async fn run(
    sim: &Arc<Sim>,
    pod: &Pod,
    pods: &Api<Pod>,
    node: &str,
) -> Result<Option<Duration>, SimError> {
    if !attach(sim, pod, node).await? {
        return Ok(Some(RETRY));
    }
    tokio::time::sleep(sim.timings.pod_start).await;
    if !sim.is_up(node) {
        return Ok(Some(RETRY));
    }
    sim.processes.start(sim, pod, node).await?;
    let now = sim.clock.now().to_string();
    let status = json!({ "status": {
        "phase": "Running", "startTime": now, "hostIP": address(sim, node), "podIP": address(sim, node),
        "podIPs": [{ "ip": address(sim, node) }],
        "conditions": (["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(|kind| json!({
            "type": kind, "status": "True", "lastTransitionTime": now,
        }))),
        "containerStatuses": container_statuses(pod, json!({ "running": { "startedAt": now } }), true, 0),
    } });
    absent_is_fine(
        pods.patch_status(
            &pod.name_any(),
            &PatchParams::apply(MANAGER),
            &Patch::Merge(status),
        )
        .await,
    )?;
    Ok(None)
}

/// Attaches a pod's volumes to its node; false while one is not bound.
async fn attach(sim: &Sim, pod: &Pod, node: &str) -> Result<bool, SimError> {
    let uid = pod.uid().unwrap_or_default();
    for claim in claims(pod) {
        let Some(volume) = bound_volume(sim, &pod.namespace().unwrap_or_default(), &claim).await?
        else {
            return Ok(false);
        };
        sim.storage
            .attach(&sim.cluster, node, &uid, &volume.name_any());
    }
    Ok(true)
}

/// Ends a Job's pod when its time is over; starts a process again after its node was away.
async fn continue_running(
    sim: &Arc<Sim>,
    pod: &Pod,
    pods: &Api<Pod>,
    node: &str,
) -> Result<Option<Duration>, SimError> {
    let restarts = sim.processes.restarts(&pod.uid().unwrap_or_default());
    let told = pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref())
        .and_then(|c| c.first())
        .map_or(0, |c| c.restart_count);
    if restarts > told {
        let started = json!({ "running": { "startedAt": sim.clock.now().to_string() } });
        let status = json!({ "status": { "containerStatuses": container_statuses(pod, started, true, restarts) } });
        absent_is_fine(
            pods.patch_status(
                &pod.name_any(),
                &PatchParams::apply(MANAGER),
                &Patch::Merge(status),
            )
            .await,
        )?;
    }
    let is_job = pod.owner_references().iter().any(|o| o.kind == "Job");
    if !is_job {
        attach(sim, pod, node).await?;
        sim.processes.start(sim, pod, node).await?;
        return Ok(Some(Duration::from_secs(5)));
    }
    let seconds = pod
        .annotations()
        .get(JOB_DURATION)
        .and_then(|v| v.parse::<f64>().ok())
        .unwrap_or(0.2);
    let code = pod
        .annotations()
        .get(JOB_EXIT_CODE)
        .and_then(|v| v.parse::<i32>().ok())
        .unwrap_or(0);
    tokio::time::sleep(Duration::from_secs_f64(seconds.max(0.0))).await;
    let now = sim.clock.now().to_string();
    let (phase, reason) = if code == 0 {
        ("Succeeded", "Completed")
    } else {
        ("Failed", "Error")
    };
    let ended = json!({ "terminated": { "exitCode": code, "reason": reason, "finishedAt": now } });
    let status = json!({ "status": { "phase": phase,
        "conditions": [{ "type": "Ready", "status": "False", "reason": "PodCompleted", "lastTransitionTime": now }],
        "containerStatuses": container_statuses(pod, ended, false, 0) } });
    absent_is_fine(
        pods.patch_status(
            &pod.name_any(),
            &PatchParams::apply(MANAGER),
            &Patch::Merge(status),
        )
        .await,
    )?;
    Ok(None)
}

/// Stops what runs for pods that no longer exist.
async fn collect(sim: Arc<Sim>) {
    use futures::StreamExt;
    use kube::runtime::watcher::{Event, watcher};
    let pods: Api<Pod> = Api::all(sim.client.clone());
    let mut events = std::pin::pin!(watcher(pods, watch()));
    loop {
        let event = tokio::select! {
            biased;
            () = sim.shutdown.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            Some(Ok(Event::Delete(pod))) => stop(&sim, &pod),
            Some(Ok(_)) => {}
            Some(Err(_)) => tokio::time::sleep(RETRY).await,
            None => return,
        }
    }
}

fn stop(sim: &Sim, pod: &Pod) {
    let uid = pod.uid().unwrap_or_default();
    sim.processes.stop(&uid);
    if let Some(node) = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) {
        sim.storage.detach(&sim.cluster, node, &uid);
    }
}

/// Names of the claims that a pod uses.
fn claims(pod: &Pod) -> Vec<String> {
    pod.spec
        .iter()
        .flat_map(|s| s.volumes.iter().flatten())
        .filter_map(|v| Some(v.persistent_volume_claim.as_ref()?.claim_name.clone()))
        .collect()
}

fn address(sim: &Sim, node: &str) -> String {
    let n = node
        .rsplit('-')
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    super::node_address(sim.index, n)
}

fn container_statuses(pod: &Pod, state: Value, ready: bool, restarts: i32) -> Value {
    pod.spec
        .iter()
        .flat_map(|s| &s.containers)
        .map(|c| {
            json!({
                "name": c.name, "image": c.image, "imageID": "", "ready": ready, "started": ready,
                "restartCount": restarts, "state": state,
            })
        })
        .collect()
}

//! Reads what placement decides on.

use std::collections::BTreeMap;

use farshore_api::{DRBDResource, names};
use farshore_core::placement::{Anchor, Claim, Node, Observed, VolumeClaims};
use farshore_core::quantity;
use farshore_runtime::controller::{During, ReconcileError};
use k8s_openapi::api::core::v1::{self as core, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};

use crate::{Config, kubevirt};

/// Reads the world around a DRBDResource; none when it is gone.
pub async fn observe(
    client: &Client,
    config: &Config,
    object: &DRBDResource,
) -> Result<Option<Observed>, ReconcileError> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    // Read anew: the watch may lag behind what was just written.
    let api: Api<DRBDResource> = Api::namespaced(client.clone(), &namespace);
    let Some(resource) = api
        .get_opt(&name)
        .await
        .during(format!("reading DRBDResource {namespace}/{name}"))?
    else {
        return Ok(None);
    };

    let mut seen = Observed {
        resource,
        cluster: config.cluster.clone(),
        nodes: Vec::new(),
        vm_node: None,
        consumer_node: None,
        volumes: Vec::new(),
        anchor: None,
    };
    if seen.resource.spec.cluster != config.cluster {
        return Ok(Some(seen));
    }
    let spec = &seen.resource.spec;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    for volume in &spec.volumes {
        let backing = claim(&claims, &volume.pvc_name).await?;
        let metadata = claim(&claims, &names::metadata_pvc(&name, volume.index)).await?;
        seen.volumes.push(VolumeClaims { backing, metadata });
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let anchor_name = names::anchor_pod(&name);
    seen.anchor = pods
        .get_opt(&anchor_name)
        .await
        .during(format!("reading pod {namespace}/{anchor_name}"))?
        .map(|p| anchor(&p));
    if seen.resource.metadata.deletion_timestamp.is_some() {
        return Ok(Some(seen));
    }
    if spec.node_name.is_none() || seen.anchor.is_none() {
        seen.vm_node = vm_node(client, &namespace, &spec.vm_ref.name).await?;
    }
    match &spec.node_name {
        Some(bound) => {
            let node = Api::<core::Node>::all(client.clone())
                .get_opt(bound)
                .await
                .during(format!("reading node {bound}"))?;
            seen.nodes.extend(node.map(|n| node_of(&n, 0)));
        }
        None => {
            if seen.vm_node.is_none() {
                seen.consumer_node = consumer_node(&pods, &seen.resource, &anchor_name).await?;
            }
            seen.nodes = nodes(client).await?;
        }
    }
    Ok(Some(seen))
}

async fn claim(
    api: &Api<PersistentVolumeClaim>,
    name: &str,
) -> Result<Option<Claim>, ReconcileError> {
    Ok(api
        .get_opt(name)
        .await
        .during(format!("reading PVC {name}"))?
        .map(|pvc| {
            let spec = pvc.spec.clone().unwrap_or_default();
            let status = pvc.status.clone().unwrap_or_default();
            let bound = status.phase.as_deref() == Some("Bound");
            let requested = spec.resources.and_then(|r| r.requests);
            // What a bound PVC can hold is its capacity, whatever was asked for.
            let size = if bound {
                status.capacity.or(requested)
            } else {
                requested
            };
            let bytes = size
                .and_then(|s| quantity::bytes(&s.get("storage")?.0))
                .unwrap_or(0);
            Claim {
                uid: pvc.uid().unwrap_or_default(),
                bytes,
                block: spec.volume_mode.as_deref() == Some("Block"),
                bound,
                deleting: pvc.metadata.deletion_timestamp.is_some(),
                owner: owner(&pvc.metadata),
            }
        }))
}

/// UID of the DRBDResource that owns an object.
fn owner(metadata: &ObjectMeta) -> Option<String> {
    let kind = DRBDResource::kind(&());
    metadata
        .owner_references
        .iter()
        .flatten()
        .find(|o| o.kind == kind)
        .map(|o| o.uid.clone())
}

fn anchor(pod: &Pod) -> Anchor {
    let status = pod.status.clone().unwrap_or_default();
    let scheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "PodScheduled" && c.status == "False");
    let waiting = status
        .container_statuses
        .iter()
        .flatten()
        .find_map(|c| c.state.as_ref()?.waiting.clone());
    let message = scheduled
        .and_then(|c| c.message.clone())
        .or(waiting.and_then(|w| w.message.or(w.reason)))
        .or(status.message);
    Anchor {
        uid: pod.uid().unwrap_or_default(),
        owner: owner(&pod.metadata),
        node: pod
            .spec
            .as_ref()
            .and_then(|s| s.node_name.clone())
            .filter(|n| !n.is_empty()),
        phase: status.phase.unwrap_or_else(|| "Pending".into()),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        message,
    }
}

/// Node where the VM runs, if it does. Without KubeVirt there is no such kind, and no VM.
async fn vm_node(
    client: &Client,
    namespace: &str,
    vm: &str,
) -> Result<Option<String>, ReconcileError> {
    let instance = kubevirt::instances(client, namespace)
        .get_opt(vm)
        .await
        .during(format!("reading VirtualMachineInstance {namespace}/{vm}"))?;
    Ok(instance
        .and_then(|i| {
            i.data
                .pointer("/status/nodeName")?
                .as_str()
                .map(str::to_owned)
        })
        .filter(|n| !n.is_empty()))
}

/// Node of a pod that uses one of the VM's PVCs.
async fn consumer_node(
    pods: &Api<Pod>,
    resource: &DRBDResource,
    anchor: &str,
) -> Result<Option<String>, ReconcileError> {
    let list = pods
        .list(&ListParams::default())
        .await
        .during("listing pods")?;
    let uses = |pod: &&Pod| {
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let mut claims =
            volumes.filter_map(|v| Some(v.persistent_volume_claim.as_ref()?.claim_name.as_str()));
        claims.any(|c| resource.spec.volumes.iter().any(|v| v.pvc_name == c))
    };
    let lives = |pod: &&Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|s| s.phase.as_deref())
            .unwrap_or_default();
        pod.name_any() != anchor && !["Succeeded", "Failed"].contains(&phase)
    };
    let node = list
        .items
        .iter()
        .filter(lives)
        .filter(uses)
        .find_map(|p| p.spec.as_ref()?.node_name.clone());
    Ok(node.filter(|n| !n.is_empty()))
}

/// All nodes, with how many DRBDResources are bound to each.
async fn nodes(client: &Client) -> Result<Vec<Node>, ReconcileError> {
    let all = Api::<core::Node>::all(client.clone())
        .list(&ListParams::default())
        .await
        .during("listing nodes")?;
    let resources = Api::<DRBDResource>::all(client.clone())
        .list(&ListParams::default())
        .await
        .during("listing DRBDResources")?;
    let mut bound: BTreeMap<&str, usize> = BTreeMap::new();
    for node in resources
        .items
        .iter()
        .filter_map(|r| r.spec.node_name.as_deref())
    {
        *bound.entry(node).or_default() += 1;
    }
    Ok(all
        .items
        .iter()
        .map(|n| node_of(n, bound.get(n.name_any().as_str()).copied().unwrap_or(0)))
        .collect())
}

fn node_of(node: &core::Node, bound: usize) -> Node {
    let spec = node.spec.clone().unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let ready = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "Ready");
    let keeps_away = |effect: &str| effect == "NoSchedule" || effect == "NoExecute";
    Node {
        name: node.name_any(),
        address: status
            .addresses
            .iter()
            .flatten()
            .find(|a| a.type_ == "InternalIP")
            .map(|a| a.address.clone()),
        ready: ready.is_some_and(|c| c.status == "True"),
        since: ready
            .and_then(|c| c.last_transition_time.as_ref())
            .map(|t| t.0),
        cordoned: spec.unschedulable.unwrap_or(false),
        taints: spec
            .taints
            .iter()
            .flatten()
            .filter(|t| keeps_away(&t.effect))
            .map(|t| t.key.clone())
            .collect(),
        bound,
    }
}

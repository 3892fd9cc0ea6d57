//! The controllers of Deployment, StatefulSet, DaemonSet and Job: they make pods and count them.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod, PodTemplateSpec};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::Controller;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{MANAGER, Sim, SimError, absent_is_fine, drive, present_is_fine, watch};

/// Annotation on a Job or its pod template: seconds that its pod runs.
pub const JOB_DURATION: &str = "lab.farshore.io/duration-seconds";
/// Annotation on a Job or its pod template: exit code of its pod.
pub const JOB_EXIT_CODE: &str = "lab.farshore.io/exit-code";
/// Label with the hash of the template that a pod was made from.
const TEMPLATE_HASH: &str = "pod-template-hash";

pub(super) fn start(sim: &Arc<Sim>) {
    let client = || sim.client.clone();
    let pods = || Api::<Pod>::all(client());
    drive(
        sim,
        "deployments",
        Controller::new(Api::<Deployment>::all(client()), watch()).owns(pods(), watch()),
        deployment,
    );
    drive(
        sim,
        "statefulsets",
        Controller::new(Api::<StatefulSet>::all(client()), watch()).owns(pods(), watch()),
        stateful_set,
    );
    drive(
        sim,
        "jobs",
        Controller::new(Api::<Job>::all(client()), watch()).owns(pods(), watch()),
        job,
    );
    let daemon_sets = Controller::new(Api::<DaemonSet>::all(client()), watch());
    let every = daemon_sets.store();
    let daemon_sets =
        daemon_sets
            .owns(pods(), watch())
            .watches(Api::<Node>::all(client()), watch(), move |_| all_of(&every));
    drive(sim, "daemonsets", daemon_sets, daemon_set);
}

fn all_of(store: &Store<DaemonSet>) -> Vec<ObjectRef<DaemonSet>> {
    let mut refs: Vec<_> = store
        .state()
        .iter()
        .map(|d| ObjectRef::from_obj(d.as_ref()))
        .collect();
    refs.sort_by_key(|r| (r.namespace.clone(), r.name.clone()));
    refs
}

async fn deployment(sim: Arc<Sim>, object: Arc<Deployment>) -> Result<Option<Duration>, SimError> {
    let Some(spec) = object
        .spec
        .clone()
        .filter(|_| object.metadata.deletion_timestamp.is_none())
    else {
        return Ok(None);
    };
    let wanted = spec.replicas.unwrap_or(1);
    let slots: Vec<_> = (0..wanted)
        .map(|i| Slot {
            suffix: i.to_string(),
            node: None,
        })
        .collect();
    let count = keep(&sim, object.as_ref(), &spec.template, &slots).await?;
    let available = count.ready >= wanted;
    let now = sim.clock.now().to_string();
    let status = json!({
        "observedGeneration": object.metadata.generation, "replicas": count.all, "updatedReplicas": count.updated,
        "readyReplicas": count.ready, "availableReplicas": count.ready, "unavailableReplicas": wanted - count.ready,
        "conditions": [
            condition("Available", available, "MinimumReplicasAvailable", "MinimumReplicasUnavailable", &now),
            condition("Progressing", true, "NewReplicaSetAvailable", "", &now),
        ],
    });
    write_status(
        &sim,
        object.as_ref(),
        object.status.as_ref().map(|s| json!(s)),
        status,
    )
    .await
}

async fn stateful_set(
    sim: Arc<Sim>,
    object: Arc<StatefulSet>,
) -> Result<Option<Duration>, SimError> {
    let Some(spec) = object
        .spec
        .clone()
        .filter(|_| object.metadata.deletion_timestamp.is_none())
    else {
        return Ok(None);
    };
    let wanted = spec.replicas.unwrap_or(1);
    let slots: Vec<_> = (0..wanted)
        .map(|i| Slot {
            suffix: i.to_string(),
            node: None,
        })
        .collect();
    let count = keep(&sim, object.as_ref(), &spec.template, &slots).await?;
    let status = json!({
        "observedGeneration": object.metadata.generation, "replicas": count.all, "readyReplicas": count.ready,
        "currentReplicas": count.updated, "updatedReplicas": count.updated, "availableReplicas": count.ready,
    });
    write_status(
        &sim,
        object.as_ref(),
        object.status.as_ref().map(|s| json!(s)),
        status,
    )
    .await
}

async fn daemon_set(sim: Arc<Sim>, object: Arc<DaemonSet>) -> Result<Option<Duration>, SimError> {
    let Some(spec) = object
        .spec
        .clone()
        .filter(|_| object.metadata.deletion_timestamp.is_none())
    else {
        return Ok(None);
    };
    let selector = spec
        .template
        .spec
        .as_ref()
        .and_then(|s| s.node_selector.clone())
        .unwrap_or_default();
    let nodes: Api<Node> = Api::all(sim.client.clone());
    let slots: Vec<_> = nodes
        .list(&ListParams::default())
        .await?
        .items
        .iter()
        .filter(|node| node.spec.as_ref().and_then(|s| s.unschedulable) != Some(true))
        .filter(|node| {
            selector
                .iter()
                .all(|(k, v)| node.labels().get(k) == Some(v))
        })
        .map(|node| Slot {
            suffix: node.name_any(),
            node: Some(node.name_any()),
        })
        .collect();
    let count = keep(&sim, object.as_ref(), &spec.template, &slots).await?;
    let wanted = slots.len() as i32;
    let status = json!({
        "observedGeneration": object.metadata.generation, "desiredNumberScheduled": wanted,
        "currentNumberScheduled": count.all, "numberMisscheduled": 0, "numberReady": count.ready,
        "numberAvailable": count.ready, "numberUnavailable": wanted - count.ready, "updatedNumberScheduled": count.updated,
    });
    write_status(
        &sim,
        object.as_ref(),
        object.status.as_ref().map(|s| json!(s)),
        status,
    )
    .await
}

async fn job(sim: Arc<Sim>, object: Arc<Job>) -> Result<Option<Duration>, SimError> {
    let ended = object
        .status
        .as_ref()
        .and_then(|s| s.conditions.as_ref())
        .is_some_and(|c| {
            c.iter()
                .any(|c| (c.type_ == "Complete" || c.type_ == "Failed") && c.status == "True")
        });
    let Some(spec) = object
        .spec
        .clone()
        .filter(|_| !ended && object.metadata.deletion_timestamp.is_none())
    else {
        return Ok(None);
    };
    let mut template = spec.template;
    let meta = template.metadata.get_or_insert_default();
    for key in [JOB_DURATION, JOB_EXIT_CODE] {
        if let Some(value) = object.annotations().get(key) {
            meta.annotations
                .get_or_insert_default()
                .insert(key.into(), value.clone());
        }
    }
    meta.labels
        .get_or_insert_default()
        .insert("batch.kubernetes.io/job-name".into(), object.name_any());
    keep(
        &sim,
        object.as_ref(),
        &template,
        &[Slot {
            suffix: "0".into(),
            node: None,
        }],
    )
    .await?;
    let phase = owned(&sim, object.as_ref())
        .await?
        .first()
        .and_then(|pod| pod.status.as_ref()?.phase.clone())
        .unwrap_or_default();
    let now = sim.clock.now().to_string();
    let start = object
        .status
        .as_ref()
        .and_then(|s| s.start_time.clone())
        .map_or(json!(now), |t| json!(t));
    let status = match phase.as_str() {
        "Succeeded" => {
            json!({ "startTime": start, "completionTime": now, "active": 0, "ready": 0, "succeeded": 1,
            "conditions": [condition("SuccessCriteriaMet", true, "CompletionsReached", "", &now), condition("Complete", true, "CompletionsReached", "", &now)] })
        }
        "Failed" => json!({ "startTime": start, "active": 0, "ready": 0, "failed": 1,
            "conditions": [condition("FailureTarget", true, "BackoffLimitExceeded", "", &now), condition("Failed", true, "BackoffLimitExceeded", "", &now)] }),
        running => {
            json!({ "startTime": start, "active": 1, "ready": i32::from(running == "Running") })
        }
    };
    write_status(
        &sim,
        object.as_ref(),
        object.status.as_ref().map(|s| json!(s)),
        status,
    )
    .await
}

/// One pod that should exist.
struct Slot {
    suffix: String,
    node: Option<String>,
}

/// How many pods there are.
#[derive(Default)]
struct Count {
    all: i32,
    updated: i32,
    ready: i32,
}

/// Keeps one pod of the template in each slot. A pod of an older template is replaced.
async fn keep<K>(
    sim: &Sim,
    owner: &K,
    template: &PodTemplateSpec,
    slots: &[Slot],
) -> Result<Count, SimError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let hash: String = Sha256::digest(json!(template).to_string())
        .iter()
        .take(4)
        .map(|b| format!("{b:02x}"))
        .collect();
    let namespace = owner.meta().namespace.clone().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(sim.client.clone(), &namespace);
    let wanted: Vec<String> = slots
        .iter()
        .map(|s| {
            format!(
                "{}-{hash}-{}",
                owner.meta().name.as_deref().unwrap_or_default(),
                s.suffix
            )
        })
        .collect();
    let mut count = Count::default();
    let existing = owned(sim, owner).await?;
    for pod in &existing {
        count.all += 1;
        if wanted.contains(&pod.name_any()) {
            count.updated += 1;
            count.ready += i32::from(is_ready(pod));
        } else if pod.metadata.deletion_timestamp.is_none() {
            absent_is_fine(pods.delete(&pod.name_any(), &DeleteParams::default()).await)?;
        }
    }
    for (slot, name) in slots.iter().zip(&wanted) {
        if existing.iter().any(|p| &p.name_any() == name) {
            continue;
        }
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": template.metadata, "spec": template.spec });
        if pod["metadata"].is_null() {
            pod["metadata"] = json!({});
        }
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["ownerReferences"] = json!([owner.controller_owner_ref(&())]);
        pod["metadata"]["labels"][TEMPLATE_HASH] = json!(hash);
        if let Some(node) = &slot.node {
            pod["spec"]["nodeName"] = json!(node);
        }
        let pod = serde_json::from_value(pod).map_err(|e| SimError::Other(e.to_string()))?;
        present_is_fine(pods.create(&PostParams::default(), &pod).await)?;
    }
    Ok(count)
}

async fn owned<K: Resource<DynamicType = ()>>(sim: &Sim, owner: &K) -> Result<Vec<Pod>, SimError> {
    let namespace = owner.meta().namespace.clone().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(sim.client.clone(), &namespace);
    let uid = owner.meta().uid.clone().unwrap_or_default();
    let list = pods.list(&ListParams::default()).await?;
    Ok(list
        .items
        .into_iter()
        .filter(|p| p.owner_references().iter().any(|o| o.uid == uid))
        .collect())
}

/// Whether a pod says that it is ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|s| s.conditions.as_ref())
        .is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

fn condition(kind: &str, holds: bool, reason: &str, otherwise: &str, now: &str) -> Value {
    json!({
        "type": kind, "status": if holds { "True" } else { "False" },
        "reason": if holds { reason } else { otherwise }, "lastTransitionTime": now, "lastUpdateTime": now,
        "lastProbeTime": now, "message": "",
    })
}

/// Writes a status if it says something new.
async fn write_status<K>(
    sim: &Sim,
    object: &K,
    old: Option<Value>,
    new: Value,
) -> Result<Option<Duration>, SimError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let old = old.unwrap_or_default();
    let same = new.as_object().is_some_and(|fields| {
        fields.iter().all(|(key, value)| match key.as_str() {
            "conditions" => gist(&old["conditions"]) == gist(value),
            "completionTime" => !old[key].is_null(),
            _ => &old[key] == value || (old[key].is_null() && value == &json!(0)),
        })
    });
    if same {
        return Ok(None);
    }
    let namespace = object.meta().namespace.clone().unwrap_or_default();
    let name = object.meta().name.clone().unwrap_or_default();
    let api: Api<K> = Api::namespaced(sim.client.clone(), &namespace);
    let patch = Patch::Merge(json!({ "status": new }));
    absent_is_fine(
        api.patch_status(&name, &PatchParams::apply(MANAGER), &patch)
            .await,
    )?;
    Ok(None)
}

/// What a list of conditions says, without its times.
fn gist(conditions: &Value) -> Vec<(Value, Value, Value)> {
    conditions
        .as_array()
        .map(|list| {
            list.iter()
                .map(|c| (c["type"].clone(), c["status"].clone(), c["reason"].clone()))
                .collect()
        })
        .unwrap_or_default()
}

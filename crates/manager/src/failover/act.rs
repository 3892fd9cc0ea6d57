//! Runs the steps of a decision, in order. A step whose object changed since it was read ends the
//! round: the next one looks again.

use std::collections::BTreeMap;

use farshore_api::meta::{finalizers, labels, managers};
use farshore_api::{FailoverRequest, ProtectionGroup, ProtectionRequest};
use farshore_core::failover::{Observed, Step};
use farshore_runtime::apply;
use farshore_runtime::controller::in_words;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::{FailoverController, is_conflict};

/// Members flipped at the same time.
const FLIPS: usize = 16;

/// Why the steps were not run to the end.
pub(super) enum Stopped {
    /// Somebody else changed what the decision rests on.
    Changed,
    /// A write failed, as this sentence says.
    Refused(String),
}

/// Runs the steps. `request` is the request as last written.
pub(super) async fn run(
    controller: &FailoverController,
    seen: &Observed,
    request: &FailoverRequest,
    steps: &[Step],
) -> Result<(), Stopped> {
    // Flips do not depend on each other; everything else is one after the other.
    for chunk in steps.chunk_by(|a, b| matches!((a, b), (Step::Flip { .. }, Step::Flip { .. }))) {
        let mut writes = Vec::with_capacity(chunk.len());
        for step in chunk {
            writes.push(one(controller, seen, request, step));
        }
        stream::iter(writes)
            .buffered(FLIPS)
            .try_collect::<Vec<()>>()
            .await?;
    }
    Ok(())
}

async fn one(
    controller: &FailoverController,
    seen: &Observed,
    request: &FailoverRequest,
    step: &Step,
) -> Result<(), Stopped> {
    let (hub, namespace) = (controller.hub.clone(), controller.namespace.as_str());
    let manager = managers::FAILOVER;
    match step {
        Step::AddFinalizer => {
            let api: Api<FailoverRequest> = Api::namespaced(hub, namespace);
            let written =
                apply::add_finalizer(&api, manager, request, finalizers::FAILOVER_LOCK).await;
            done(written, || "adding the finalizer of this request".into())
        }
        Step::RemoveFinalizer => {
            let api: Api<FailoverRequest> = Api::namespaced(hub, namespace);
            let written =
                apply::remove_finalizer(&api, manager, request, finalizers::FAILOVER_LOCK).await;
            done(written, || "removing the finalizer of this request".into())
        }
        Step::WriteLock {
            resource_version,
            owners,
            spec,
            ..
        } => {
            let api: Api<Lease> = Api::namespaced(hub, namespace);
            let metadata = ObjectMeta {
                resource_version: resource_version.clone(),
                owner_references: (!owners.is_empty()).then(|| owners.clone()),
                ..ObjectMeta::default()
            };
            let written = write_lock(&api, controller, seen, metadata, spec).await;
            done(written, || {
                format!("writing Lease {namespace}/{}", seen.lease_name())
            })
        }
        Step::CreateHookJob {
            cluster,
            namespace,
            name,
            job,
        } => {
            let api: Api<Job> =
                Api::namespaced(workload(controller, seen, cluster).await?, namespace);
            let title = || format!("creating Job {namespace}/{name} on cluster {cluster}");
            let job: Job = match serde_json::from_value(job.clone()) {
                Ok(job) => job,
                Err(error) => {
                    return Err(Stopped::Refused(format!(
                        "{}: the jobTemplate is no Job: {error}",
                        title()
                    )));
                }
            };
            match api.create(&by(manager), &job).await {
                // It was created before this process was restarted.
                Err(error) if is_conflict(&error) => Ok(()),
                result => done(result, title),
            }
        }
        Step::SetDesiredState {
            cluster,
            desired,
            resource_version,
        } => {
            let api: Api<ProtectionGroup> =
                Api::namespaced(workload(controller, seen, cluster).await?, namespace);
            let name = seen.group_name();
            let patch = json!({"metadata": {"resourceVersion": resource_version}, "spec": {"desiredState": desired}});
            let written = apply::merge(&api, name, manager, &patch).await;
            done(written, || {
                format!(
                    "setting desiredState {desired} on ProtectionGroup {namespace}/{name} on cluster {cluster}"
                )
            })
        }
        Step::SetTaints {
            cluster,
            node,
            taints,
            resource_version,
            ..
        } => {
            let api: Api<Node> = Api::all(workload(controller, seen, cluster).await?);
            let patch = json!({"metadata": {"resourceVersion": resource_version}, "spec": {"taints": taints}});
            let written = apply::merge(&api, node, manager, &patch).await;
            done(written, || {
                format!("removing quorum taints from Node {node} on cluster {cluster}")
            })
        }
        Step::Flip {
            protection_request,
            to,
        } => {
            let api: Api<ProtectionRequest> = Api::namespaced(hub, namespace);
            let patch = json!({"spec": {"sourceCluster": to}});
            let written = apply::merge(&api, protection_request, manager, &patch).await;
            done(written, || {
                format!(
                    "setting sourceCluster {to} on ProtectionRequest {namespace}/{protection_request}"
                )
            })
        }
    }
}

/// Creates the Lease, or replaces the version that was read.
async fn write_lock(
    api: &Api<Lease>,
    controller: &FailoverController,
    seen: &Observed,
    metadata: ObjectMeta,
    spec: &LeaseSpec,
) -> kube::Result<Lease> {
    let name = seen.lease_name();
    let is_new = metadata.resource_version.is_none();
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(controller.namespace.clone()),
            labels: Some(BTreeMap::from([
                (labels::ZONE.into(), controller.zone.clone()),
                (labels::PROTECTION_GROUP.into(), seen.group_name().into()),
            ])),
            ..metadata
        },
        spec: Some(spec.clone()),
    };
    if is_new {
        api.create(&by(managers::FAILOVER), &lease).await
    } else {
        api.replace(&name, &by(managers::FAILOVER), &lease).await
    }
}

/// The client of a workload cluster.
async fn workload(
    controller: &FailoverController,
    seen: &Observed,
    cluster: &str,
) -> Result<Client, Stopped> {
    let mut all = seen.zone.spec.clusters.iter();
    let Some(cluster) = all.find(|c| c.name == cluster) else {
        return Err(Stopped::Refused(format!(
            "cluster {cluster} is not in the zone"
        )));
    };
    controller
        .clusters
        .client(cluster)
        .await
        .map_err(|error| Stopped::Refused(error.to_string()))
}

fn by(manager: &str) -> PostParams {
    PostParams {
        field_manager: Some(manager.into()),
        ..PostParams::default()
    }
}

fn done<T>(result: kube::Result<T>, doing: impl FnOnce() -> String) -> Result<(), Stopped> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if is_conflict(&error) => Err(Stopped::Changed),
        Err(error) => Err(Stopped::Refused(format!(
            "{}: {}",
            doing(),
            in_words(&error)
        ))),
    }
}

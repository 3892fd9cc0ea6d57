//! Carries out the steps of a group, in order; each may be repeated. One cluster that does not take
//! its step does not keep the other from taking its own.

use std::collections::BTreeMap;

use farshore_api::meta::{finalizers, labels, managers};
use farshore_api::{ProtectionGroup, ReplicationGroupStatus, names};
use farshore_core::Seen;
use farshore_core::group::hub::{Observed, Step};
use farshore_runtime::apply;
use farshore_runtime::controller::{During, ReconcileError};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};

use crate::hub::Hub;
use crate::protection::Remotes;

/// Runs the steps; the first error comes back.
pub async fn act(
    hub: &Hub,
    remotes: &Remotes,
    seen: &Observed,
    steps: &[Step],
) -> Result<(), ReconcileError> {
    let mut first = Ok(());
    for step in steps {
        let result = run(hub, remotes, seen, step).await;
        first = first.and(result);
    }
    first
}

fn created_by_us() -> PostParams {
    PostParams {
        field_manager: Some(managers::PG_SYNC.into()),
        ..PostParams::default()
    }
}

async fn run(
    hub: &Hub,
    remotes: &Remotes,
    seen: &Observed,
    step: &Step,
) -> Result<(), ReconcileError> {
    let groups = hub.api::<ProtectionGroup>();
    let name = seen.group.name_any();
    let client = |cluster: &str| -> Result<Client, ReconcileError> {
        let missing = || ReconcileError::new(format!("cluster {cluster} cannot be reached"));
        remotes.get(cluster).cloned().ok_or_else(missing)
    };
    let mirrors = |cluster: &str| -> Result<Api<ProtectionGroup>, ReconcileError> {
        Ok(Api::namespaced(
            client(cluster)?,
            &names::zone_namespace(&hub.zone),
        ))
    };
    let told = |doing: &str, cluster: &str| {
        format!("{doing} the mirror of ProtectionGroup {name} on cluster {cluster}")
    };
    match step {
        Step::AddFinalizer => {
            // The status was written just now: read again what the finalizer is added to.
            let live = groups.get(&name).await.during("reading the group")?;
            apply::add_finalizer(&groups, managers::PG_SYNC, &live, finalizers::GROUP_CLEANUP)
                .await
                .during("adding the finalizer")?;
        }
        Step::RemoveFinalizer => {
            let Some(live) = groups.get_opt(&name).await.during("reading the group")? else {
                return Ok(());
            };
            apply::remove_finalizer(&groups, managers::PG_SYNC, &live, finalizers::GROUP_CLEANUP)
                .await
                .during("removing the finalizer")?;
        }
        Step::CreateMirror { cluster, mirror } => {
            ensure_namespace(client(cluster)?, hub, cluster).await?;
            mirrors(cluster)?
                .create(&created_by_us(), mirror)
                .await
                .during(told("creating", cluster))?;
        }
        Step::PatchMirror { cluster, patch } => {
            apply::merge(&mirrors(cluster)?, &name, managers::PG_SYNC, patch)
                .await
                .during(told("writing", cluster))?;
        }
        Step::DeleteMirror { cluster } => {
            let live = seen.mirrors.get(cluster).and_then(Seen::present);
            let preconditions = live.map(|m| Preconditions {
                uid: m.uid(),
                resource_version: m.resource_version(),
            });
            let params = DeleteParams {
                preconditions,
                ..DeleteParams::background()
            };
            match mirrors(cluster)?.delete(&name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                result => {
                    result.during(told("deleting", cluster))?;
                }
            }
        }
        Step::CreateReplicationStatus { status } => {
            let api = hub.api::<ReplicationGroupStatus>();
            api.create(&created_by_us(), status).await.during(format!(
                "creating ReplicationGroupStatus {}",
                status.name_any()
            ))?;
        }
        Step::PatchReplicationStatus { patch } => {
            let health = names::replication_status(&name);
            let api = hub.api::<ReplicationGroupStatus>();
            apply::merge(&api, &health, managers::PG_SYNC, patch)
                .await
                .during(format!("writing ReplicationGroupStatus {health}"))?;
        }
    }
    Ok(())
}

/// Makes the zone's namespace on a workload cluster, if it is absent.
async fn ensure_namespace(client: Client, hub: &Hub, cluster: &str) -> Result<(), ReconcileError> {
    let api: Api<Namespace> = Api::all(client);
    let name = names::zone_namespace(&hub.zone);
    let doing = format!("creating Namespace {name} on cluster {cluster}");
    if api.get_opt(&name).await.during(&doing)?.is_some() {
        return Ok(());
    }
    let labels = BTreeMap::from([(labels::ZONE.to_string(), hub.zone.clone())]);
    let metadata = ObjectMeta {
        name: Some(name),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    match api
        .create(
            &created_by_us(),
            &Namespace {
                metadata,
                ..Namespace::default()
            },
        )
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(|_| ()).during(doing),
    }
}

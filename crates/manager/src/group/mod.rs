//! The hub's protectiongroup reconciler, known as pg-sync-controller [S2].

mod act;
mod observe;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farshore_api::meta::{labels, managers};
use farshore_api::protection_group::GroupMember;
use farshore_api::{
    FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone, ReplicationGroupStatus,
};
use farshore_core::group::hub as decision;
use farshore_runtime::controller::{self, During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::events::Recorder;
use farshore_runtime::{apply, remote, triggers};
use futures::StreamExt;
use futures::stream::select_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};

use crate::hub::{Hub, Troubles};

/// Groups at a time.
const CONCURRENCY: u16 = 4;
/// Shortest time from one look at a group to the next. A failover stops and starts groups by itself and does
/// not wait for this.
const PACE: Duration = Duration::from_millis(200);
/// What a lock's name begins with, before its group's name.
const LOCK: &str = "failover-lock-";

/// The groups that were seen, with their members.
#[derive(Clone, Default)]
struct Known(Arc<Mutex<BTreeMap<String, Vec<GroupMember>>>>);

impl Known {
    fn enter(&self, group: &ProtectionGroup) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(group.name_any(), group.spec.members.clone());
    }

    fn forget(&self, name: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name);
    }

    fn names(&self, with: impl Fn(&[GroupMember]) -> bool) -> Vec<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .iter()
            .filter(|(_, members)| with(members))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

/// Keeps groups and their mirrors in step.
pub struct Groups {
    hub: Hub,
    recorder: Recorder,
    known: Known,
    troubles: Troubles,
}

impl Groups {
    /// The reconciler of a process.
    pub fn new(hub: &Hub) -> Self {
        let recorder = hub.recorder(managers::PG_SYNC);
        Self {
            hub: hub.clone(),
            recorder,
            known: Known::default(),
            troubles: Troubles::default(),
        }
    }
}

impl Reconciler<ProtectionGroup> for Groups {
    fn name(&self) -> &'static str {
        managers::PG_SYNC
    }

    fn pace(&self, _group: &ProtectionGroup) -> Duration {
        PACE
    }

    async fn reconcile(&self, object: Arc<ProtectionGroup>) -> Result<Requeue, ReconcileError> {
        let name = object.name_any();
        let Some((seen, remotes)) =
            observe::observe(&self.hub, &name, self.troubles.of(&name)).await?
        else {
            self.known.forget(&name);
            return Ok(Requeue::Change);
        };
        self.known.enter(&seen.group);
        let decision = decision::decide(&seen, self.hub.process.clock.now());
        let doing = format!(
            "writing the status of ProtectionGroup {}/{name}",
            self.hub.namespace
        );
        let api = self.hub.api::<ProtectionGroup>();
        apply::status(
            &api,
            &name,
            managers::PG_SYNC,
            &seen.group.status,
            &decision.status,
        )
        .await
        .during(doing)?;
        for note in &decision.notes {
            self.recorder.publish(&seen.group, note).await;
        }
        let acted = act::act(&self.hub, &remotes, &seen, &decision.steps).await;
        self.troubles.note(&name, &acted);
        acted?;
        Ok(decision.requeue.into())
    }
}

/// Runs the reconciler until the process shuts down.
pub async fn run(hub: &Hub, zone: &ProtectionZone) {
    let reconciler = Groups::new(hub);
    let shutdown = || hub.process.shutdown.clone();
    let namespace = hub.namespace.clone();
    let to = move |names: Vec<String>| -> Vec<ObjectRef<ProtectionGroup>> {
        names
            .iter()
            .map(|name| ObjectRef::new(name).within(&namespace))
            .collect()
    };
    let any = watcher::Config::default;

    let (known, refs) = (reconciler.known.clone(), to.clone());
    let of_member = move |r: &ProtectionRequest| {
        let vm = r.vm();
        let name = r.name_any();
        let is = |m: &GroupMember| {
            m.protection_request_ref.as_ref() == Some(&name) || m.vm_ref.as_ref() == Some(&vm)
        };
        refs(known.names(|members| members.iter().any(is)))
    };
    let member_matters = |r: &ProtectionRequest| {
        let phase = r.status.as_ref().and_then(|s| s.phase);
        format!(
            "{phase:?} {} {}",
            r.spec.source_cluster,
            r.metadata.deletion_timestamp.is_some()
        )
    };
    let refs = to.clone();
    let of_failover =
        move |f: &FailoverRequest| refs(vec![f.spec.protection_group_ref.name.clone()]);
    let failover_matters =
        |f: &FailoverRequest| format!("{:?}", f.status.as_ref().and_then(|s| s.state));
    let refs = to.clone();
    let of_lock = move |l: &Lease| {
        refs(
            l.name_any()
                .strip_prefix(LOCK)
                .map(Into::into)
                .into_iter()
                .collect(),
        )
    };
    let lock_matters = |l: &Lease| {
        format!(
            "{:?}",
            l.spec.as_ref().and_then(|s| s.holder_identity.clone())
        )
    };
    let refs = to.clone();
    let of_health =
        move |r: &ReplicationGroupStatus| refs(vec![r.spec.protection_group_ref.name.clone()]);
    let health_matters = |r: &ReplicationGroupStatus| {
        format!(
            "{:?} {}",
            r.status.as_ref().and_then(|s| s.rpo_status),
            r.spec.rpo_objective_seconds
        )
    };
    let (known, refs) = (reconciler.known.clone(), to.clone());
    let of_zone = move |_: &ProtectionZone| refs(known.names(|_| true));
    let mut streams = vec![
        triggers::refs_on_change(
            hub.api::<ProtectionRequest>(),
            any(),
            member_matters,
            of_member,
            shutdown(),
        ),
        triggers::refs_on_change(
            hub.api::<FailoverRequest>(),
            any(),
            failover_matters,
            of_failover,
            shutdown(),
        ),
        triggers::refs_on_change(hub.api::<Lease>(), any(), lock_matters, of_lock, shutdown()),
        triggers::refs_on_change(
            hub.api::<ReplicationGroupStatus>(),
            any(),
            health_matters,
            of_health,
            shutdown(),
        ),
        triggers::refs_on_change(
            hub.api::<ProtectionZone>(),
            any(),
            |z| z.name_any(),
            of_zone,
            shutdown(),
        ),
    ];
    for cluster in &zone.spec.clusters {
        let mirrors = any().labels(&format!(
            "{}=true,{}={}",
            labels::MIRROR,
            labels::ZONE,
            hub.zone
        ));
        let refs = to.clone();
        let mirror_namespace = farshore_api::names::zone_namespace(&hub.zone);
        streams.push(remote::refs(
            hub.clusters.clone(),
            cluster.clone(),
            move |client| Api::<ProtectionGroup>::namespaced(client, &mirror_namespace),
            mirrors,
            move |mirror| refs(vec![mirror.name_any()]),
            shutdown(),
        ));
    }
    controller::run(
        &hub.process,
        hub.api::<ProtectionGroup>(),
        any(),
        reconciler,
        select_all(streams).boxed(),
        CONCURRENCY,
    )
    .await;
}

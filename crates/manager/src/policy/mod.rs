//! The drbdreplicationpolicy reconciler: says which policy governs and how many requests it serves.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farshore_api::meta::managers;
use farshore_api::{DRBDReplicationPolicy, ProtectionRequest, ProtectionZone};
use farshore_core::protection::policy;
use farshore_runtime::controller::{self, During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::{apply, triggers};
use futures::StreamExt;
use futures::stream::select_all;
use kube::ResourceExt;
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;

use crate::hub::Hub;

/// Pause between looks; changes trigger one before.
const SETTLED: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
struct Known(Arc<Mutex<BTreeSet<String>>>);

/// Tells policies apart.
pub struct Policies {
    hub: Hub,
    known: Known,
}

impl Policies {
    /// The reconciler of a process.
    pub fn new(hub: &Hub) -> Self {
        Self {
            hub: hub.clone(),
            known: Known::default(),
        }
    }
}

impl Reconciler<DRBDReplicationPolicy> for Policies {
    fn name(&self) -> &'static str {
        managers::POLICY
    }

    async fn reconcile(
        &self,
        object: Arc<DRBDReplicationPolicy>,
    ) -> Result<Requeue, ReconcileError> {
        let name = object.name_any();
        self.known
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.clone());
        let api = self.hub.api::<DRBDReplicationPolicy>();
        let policies = api
            .list(&ListParams::default())
            .await
            .during("listing DRBDReplicationPolicies")?
            .items;
        let requests = self
            .hub
            .api::<ProtectionRequest>()
            .list_metadata(&ListParams::default())
            .await;
        let requests = requests.during("listing ProtectionRequests")?.items.len();
        let mut statuses = policy::statuses(
            &policies,
            requests,
            &self.hub.zone,
            self.hub.process.clock.now(),
        );
        let live = policies.iter().find(|p| p.name_any() == name);
        let (Some(live), Some(status)) = (live, statuses.remove(&name)) else {
            self.known
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&name);
            return Ok(Requeue::Change);
        };
        let doing = format!(
            "writing the status of DRBDReplicationPolicy {}/{name}",
            self.hub.namespace
        );
        apply::status(&api, &name, managers::POLICY, &live.status, &status)
            .await
            .during(doing)?;
        Ok(Requeue::After(SETTLED))
    }
}

/// Runs the reconciler until the process shuts down.
pub async fn run(hub: &Hub, _zone: &ProtectionZone) {
    let reconciler = Policies::new(hub);
    let (known, namespace) = (reconciler.known.clone(), hub.namespace.clone());
    let all = move || -> Vec<ObjectRef<DRBDReplicationPolicy>> {
        let known = known.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .iter()
            .map(|name| ObjectRef::new(name).within(&namespace))
            .collect()
    };
    let any = watcher::Config::default;
    let shutdown = || hub.process.shutdown.clone();
    let everybody = all.clone();
    let existence = |_: &ProtectionRequest| String::new();
    let is_default = |p: &DRBDReplicationPolicy| p.spec.is_default.to_string();
    let streams = [
        triggers::refs_on_change(
            hub.api::<ProtectionRequest>(),
            any(),
            existence,
            move |_| everybody(),
            shutdown(),
        ),
        triggers::refs_on_change(
            hub.api::<DRBDReplicationPolicy>(),
            any(),
            is_default,
            move |_| all(),
            shutdown(),
        ),
    ];
    controller::run(
        &hub.process,
        hub.api::<DRBDReplicationPolicy>(),
        any(),
        reconciler,
        select_all(streams).boxed(),
        1,
    )
    .await;
}

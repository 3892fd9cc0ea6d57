//! The protectionrequest reconciler, known as protection-controller [S2].

mod act;
mod observe;

pub(crate) use observe::{Remotes, failovers};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farshore_api::meta::{labels, managers};
use farshore_api::protection_request::ProtectionRequestStatus;
use farshore_api::{
    DRBDReplicationPolicy, DRBDResource, DRBDVolume, ProtectionRequest, ProtectionZone, VmRef,
};
use farshore_core::protection;
use farshore_runtime::controller::{self, During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::events::Recorder;
use farshore_runtime::{apply, remote, triggers};
use futures::StreamExt;
use futures::stream::select_all;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};

use crate::hub::{Hub, Troubles};
use crate::kubevirt;

/// Requests at a time.
const CONCURRENCY: u16 = 8;
/// Shortest time from one look at a request to the next, unless its roles change. A VM that stops or starts
/// changes some twenty times within seconds; no one waits for what the request says of it meanwhile.
const PACE: Duration = Duration::from_millis(500);

/// The requests that were seen, with their VMs: whoever a change of the zone concerns.
#[derive(Clone, Default)]
struct Known(Arc<Mutex<BTreeMap<String, VmRef>>>);

impl Known {
    fn enter(&self, name: &str, vm: VmRef) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.into(), vm);
    }

    fn forget(&self, name: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(name);
    }

    fn all(&self, namespace: &str) -> Vec<ObjectRef<ProtectionRequest>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .keys()
            .map(|name| ObjectRef::new(name).within(namespace))
            .collect()
    }
}

/// Protects VMs.
pub struct Protection {
    hub: Hub,
    recorder: Recorder,
    known: Known,
    troubles: Troubles,
    /// Held from the look at the ports that others hold until one's own are written: no two
    /// requests get the same.
    ports: tokio::sync::Mutex<()>,
}

impl Protection {
    /// The reconciler of a process.
    pub fn new(hub: &Hub) -> Self {
        Self {
            hub: hub.clone(),
            recorder: hub.recorder(managers::PROTECTION),
            known: Known::default(),
            troubles: Troubles::default(),
            ports: tokio::sync::Mutex::default(),
        }
    }

    async fn write_status(
        &self,
        name: &str,
        old: &Option<ProtectionRequestStatus>,
        new: &ProtectionRequestStatus,
    ) -> Result<(), ReconcileError> {
        let doing = format!(
            "writing the status of ProtectionRequest {}/{name}",
            self.hub.namespace
        );
        apply::status(
            &self.hub.api::<ProtectionRequest>(),
            name,
            managers::PROTECTION,
            old,
            new,
        )
        .await
        .during(doing)?;
        Ok(())
    }
}

impl Reconciler<ProtectionRequest> for Protection {
    fn name(&self) -> &'static str {
        managers::PROTECTION
    }

    fn pace(&self, request: &ProtectionRequest) -> Duration {
        if protection::is_moving(request) {
            Duration::ZERO
        } else {
            PACE
        }
    }

    async fn reconcile(&self, object: Arc<ProtectionRequest>) -> Result<Requeue, ReconcileError> {
        let name = object.name_any();
        let trouble = self.troubles.of(&name);
        let Some((mut seen, remotes)) = observe::observe(&self.hub, &name, trouble).await? else {
            self.known.forget(&name);
            return Ok(Requeue::Change);
        };
        self.known.enter(&name, seen.request.vm());
        let mut decision = protection::decide(&seen, self.hub.process.clock.now());
        let has_ports = |status: Option<&ProtectionRequestStatus>| {
            status.is_some_and(|s| !s.volumes.is_empty())
        };
        if has_ports(Some(&decision.status)) && !has_ports(seen.request.status.as_ref()) {
            let _held = self.ports.lock().await;
            seen.others = observe::others(&self.hub, &name).await?;
            decision = protection::decide(&seen, self.hub.process.clock.now());
            self.write_status(&name, &seen.request.status, &decision.status)
                .await?;
        } else {
            self.write_status(&name, &seen.request.status, &decision.status)
                .await?;
        }
        for note in &decision.notes {
            self.recorder.publish(&seen.request, note).await;
        }
        let acted = act::act(&self.hub, &remotes, &seen, &decision.steps).await;
        self.troubles.note(&name, &acted);
        acted?;
        Ok(decision.requeue.into())
    }
}

/// Runs the reconciler until the process shuts down.
pub async fn run(hub: &Hub, zone: &ProtectionZone) {
    let reconciler = Protection::new(hub);
    let shutdown = || hub.process.shutdown.clone();
    let everybody = |known: &Known| {
        let (known, namespace) = (known.clone(), hub.namespace.clone());
        move || known.all(&namespace)
    };
    let by_label = |namespace: &str| {
        let namespace = namespace.to_string();
        move |labels: &BTreeMap<String, String>| -> Vec<ObjectRef<ProtectionRequest>> {
            let request = labels.get(labels::PROTECTION_REQUEST);
            request
                .map(|name| ObjectRef::new(name).within(&namespace))
                .into_iter()
                .collect()
        }
    };
    let of_zone = || watcher::Config::default().labels(&format!("{}={}", labels::ZONE, hub.zone));

    let (all, map) = (everybody(&reconciler.known), by_label(&hub.namespace));
    let mut streams = vec![
        triggers::refs_on_change(
            hub.api::<ProtectionZone>(),
            watcher::Config::default(),
            zone_matters,
            move |_| all(),
            shutdown(),
        ),
        triggers::refs(
            hub.api::<DRBDVolume>(),
            watcher::Config::default(),
            move |v| map(v.labels()),
            shutdown(),
        ),
    ];
    let all = everybody(&reconciler.known);
    let matters = |p: &DRBDReplicationPolicy| serde_json::to_string(&p.spec).unwrap_or_default();
    streams.push(triggers::refs_on_change(
        hub.api::<DRBDReplicationPolicy>(),
        watcher::Config::default(),
        matters,
        move |_| all(),
        shutdown(),
    ));
    for cluster in &zone.spec.clusters {
        let map = by_label(&hub.namespace);
        streams.push(remote::refs(
            hub.clusters.clone(),
            cluster.clone(),
            Api::<DRBDResource>::all,
            of_zone(),
            move |r| map(r.meta().labels.as_ref().unwrap_or(&BTreeMap::new())),
            shutdown(),
        ));
        let map = by_label(&hub.namespace);
        streams.push(remote::refs(
            hub.clusters.clone(),
            cluster.clone(),
            |client| kubevirt::all_vms(&client),
            of_zone(),
            move |vm| map(vm.metadata.labels.as_ref().unwrap_or(&BTreeMap::new())),
            shutdown(),
        ));
    }
    let api = hub.api::<ProtectionRequest>();
    controller::run(
        &hub.process,
        api,
        watcher::Config::default(),
        reconciler,
        select_all(streams).boxed(),
        CONCURRENCY,
    )
    .await;
}

/// What of a zone concerns its requests.
fn zone_matters(zone: &ProtectionZone) -> String {
    let spec = serde_json::to_string(&zone.spec).unwrap_or_default();
    format!("{:?} {spec}", protection::zone_refusal(zone))
}

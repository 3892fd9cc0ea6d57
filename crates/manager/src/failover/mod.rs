//! The failover-controller: carries out FailoverRequests as `farshore_core::failover` decides.
//!
//! Every round reads the world afresh (no cache), decides, stores the status, tells the
//! transitions, and then runs the steps. What a round may do was known to the API server before it
//! began, so a process that dies anywhere is continued by the next.

mod act;
mod observe;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farshore_api::{FailoverRequest, ProtectionZone, VmRef, meta::managers};
use farshore_core::failover::{LOOK_AGAIN, decide};
use farshore_runtime::controller::{self, During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::events::Recorder;
use farshore_runtime::remote::Clusters;
use farshore_runtime::{Clock, Process, apply};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};

/// Pause after somebody else wrote first.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);
/// Failovers carried out at the same time.
const CONCURRENCY: u16 = 8;

/// The failoverrequest reconciler of one zone.
pub struct FailoverController {
    hub: Client,
    namespace: String,
    zone: String,
    clusters: Clusters,
    recorder: Recorder,
    clock: Clock,
    active: Active,
    /// What stopped the last steps of a request, by its UID.
    trouble: Mutex<BTreeMap<String, String>>,
}

/// Requests that have not ended, with what they touch: whom a change elsewhere concerns.
#[derive(Clone, Default)]
struct Active(Arc<Mutex<BTreeMap<String, Touches>>>);

#[derive(Clone, Default)]
struct Touches {
    group: String,
    vms: BTreeSet<VmRef>,
}

impl FailoverController {
    /// The reconciler of the FailoverRequests in this zone's namespace.
    pub fn new(process: &Process, zone: &ProtectionZone, clusters: Clusters) -> Self {
        Self {
            hub: process.client.clone(),
            namespace: zone.namespace().unwrap_or_default(),
            zone: zone.name_any(),
            clusters,
            recorder: Recorder::new(
                process.client.clone(),
                managers::FAILOVER,
                &process.identity,
                process.clock.clone(),
            ),
            clock: process.clock.clone(),
            active: Active::default(),
            trouble: Mutex::default(),
        }
    }

    /// One round for the request of this name.
    pub async fn round(&self, name: &str) -> Result<Requeue, ReconcileError> {
        let api: Api<FailoverRequest> = Api::namespaced(self.hub.clone(), &self.namespace);
        let title = format!("FailoverRequest {}/{name}", self.namespace);
        let Some(request) = api.get_opt(name).await.during(format!("reading {title}"))? else {
            self.forget(name);
            return Ok(Requeue::Change);
        };
        let uid = request.uid().unwrap_or_default();
        let seen = observe::look(self, request.clone(), self.trouble_of(&uid)).await?;
        self.remember(name, &seen);
        let decision = decide(&seen, self.clock.now());

        let before = request.status.clone().unwrap_or_default();
        let written = apply::status_guarded(
            &api,
            managers::FAILOVER,
            &request,
            &before,
            &decision.status,
        )
        .await;
        let request = match written {
            Ok(written) => written.unwrap_or(request),
            Err(error) if is_conflict(&error) => return Ok(Requeue::After(AFTER_CONFLICT)),
            Err(error) => {
                return Err(
                    ReconcileError::from(error).during(format!("writing the status of {title}"))
                );
            }
        };
        for note in &decision.notes {
            self.recorder.publish(&request, note).await;
        }
        match act::run(self, &seen, &request, &decision.steps).await {
            Ok(()) => {
                self.no_trouble(&uid);
                Ok(decision.requeue.into())
            }
            Err(act::Stopped::Changed) => Ok(Requeue::After(AFTER_CONFLICT)),
            Err(act::Stopped::Refused(sentence)) => {
                tracing::warn!(
                    request = name,
                    controller = managers::FAILOVER,
                    "{sentence}"
                );
                self.trouble
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(uid, sentence);
                Ok(Requeue::After(LOOK_AGAIN))
            }
        }
    }

    fn trouble_of(&self, uid: &str) -> Option<String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.get(uid).cloned()
    }

    fn no_trouble(&self, uid: &str) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        trouble.remove(uid);
    }

    fn remember(&self, name: &str, seen: &farshore_core::failover::Observed) {
        let state = seen.request.status.as_ref().and_then(|s| s.state);
        if state.is_some_and(|s| s.is_terminal(seen.request.spec.queue)) {
            return self.forget(name);
        }
        let touches = Touches {
            group: seen.group_name().into(),
            vms: seen.members.iter().map(|m| m.vm()).collect(),
        };
        let mut active = self.active.0.lock().unwrap_or_else(PoisonError::into_inner);
        active.insert(name.into(), touches);
    }

    fn forget(&self, name: &str) {
        let mut active = self.active.0.lock().unwrap_or_else(PoisonError::into_inner);
        active.remove(name);
    }
}

impl Reconciler<FailoverRequest> for FailoverController {
    fn name(&self) -> &'static str {
        managers::FAILOVER
    }

    async fn reconcile(&self, request: Arc<FailoverRequest>) -> Result<Requeue, ReconcileError> {
        let running = request
            .status
            .as_ref()
            .is_some_and(|s| s.start_time.is_some() && s.completion_time.is_none());
        match self.round(&request.name_any()).await {
            // A failover that runs has a budget: it does not wait longer and longer.
            Err(error) if running => {
                tracing::warn!(request = request.name_any(), controller = managers::FAILOVER, %error, "round failed");
                Ok(Requeue::After(LOOK_AGAIN))
            }
            result => result,
        }
    }
}

/// Runs the failover-controller of a zone until the process shuts down.
pub async fn run(process: &Process, zone: &ProtectionZone, clusters: &Clusters) {
    let namespace = zone.namespace().unwrap_or_default();
    let controller = FailoverController::new(process, zone, clusters.clone());
    let triggers = watch::triggers(process, zone, clusters, controller.active.clone());
    let api: Api<FailoverRequest> = Api::namespaced(process.client.clone(), &namespace);
    controller::run(
        process,
        api,
        watcher::Config::default(),
        controller,
        triggers,
        CONCURRENCY,
    )
    .await;
}

/// Somebody else wrote first.
fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

//! The reconciler of one node's DRBDResources.

use std::sync::Arc;
use std::time::Duration;

use farshore_api::DRBDResource;
use farshore_api::meta::managers;
use farshore_core::drbd::node::{self, Decision, Observed, Step};
use farshore_runtime::controller::{During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::events::Recorder;
use farshore_runtime::{Clock, Process, apply};
use kube::{Api, Client};

use crate::act::{self, Stopped};
use crate::kernel::SharedKernel;
use crate::memory::{Memory, key};
use crate::observe;

/// Looks in a row while each has something to do; the next one follows after a pause.
const LOOKS: usize = 6;
const PAUSE: Duration = Duration::from_millis(500);

/// Carries out the DRBDResources of a node.
pub(crate) struct Agent {
    client: Client,
    clock: Clock,
    recorder: Recorder,
    node: String,
    kernel: SharedKernel,
    memory: Arc<Memory>,
}

impl Agent {
    pub(crate) fn new(
        process: &Process,
        node: &str,
        kernel: SharedKernel,
        memory: Arc<Memory>,
    ) -> Self {
        Self {
            client: process.client.clone(),
            clock: process.clock.clone(),
            recorder: Recorder::new(
                process.client.clone(),
                managers::NODE_AGENT,
                &process.identity,
                process.clock.clone(),
            ),
            node: node.into(),
            kernel,
            memory,
        }
    }

    /// The resource as it is now, if it is (still) this node's.
    async fn read(&self, object: &DRBDResource) -> Result<Option<DRBDResource>, ReconcileError> {
        let (namespace, name) = key(object);
        let api: Api<DRBDResource> = Api::namespaced(self.client.clone(), &namespace);
        let live = api
            .get_opt(&name)
            .await
            .during(format!("reading DRBDResource {namespace}/{name}"))?;
        Ok(live.filter(|r| r.spec.node_name.as_deref() == Some(self.node.as_str())))
    }

    async fn tell(&self, seen: &Observed, decision: &Decision) -> Result<(), ReconcileError> {
        let (namespace, name) = key(&seen.resource);
        let api: Api<DRBDResource> = Api::namespaced(self.client.clone(), &namespace);
        let status = serde_json::to_value(&decision.status)
            .map_err(|e| ReconcileError::new(e.to_string()))?;
        let wrote = apply::ensure_status(&api, managers::NODE_AGENT, &seen.resource, &status)
            .await
            .during(format!(
                "writing the status of DRBDResource {namespace}/{name}"
            ))?;
        if wrote {
            self.memory.wrote(&(namespace, name), self.clock.now());
            for note in &decision.notes {
                self.recorder.publish(&seen.resource, note).await;
            }
        }
        Ok(())
    }
}

impl Reconciler<DRBDResource> for Agent {
    fn name(&self) -> &'static str {
        managers::NODE_AGENT
    }

    async fn reconcile(&self, object: Arc<DRBDResource>) -> Result<Requeue, ReconcileError> {
        // The binding never changes: whoever is bound elsewhere is not read again.
        if object.spec.node_name.as_deref() != Some(self.node.as_str()) {
            return Ok(Requeue::Change);
        }
        for _ in 0..LOOKS {
            let Some(resource) = self.read(&object).await? else {
                self.memory.forgets(&key(&object));
                return Ok(Requeue::Change);
            };
            self.memory.knows(&resource);
            let mut seen = observe::observe(
                &self.client,
                &self.kernel,
                &self.memory,
                resource,
                &self.node,
            )
            .await?;
            let now = self.clock.now();
            let decision = node::decide(&seen, now);
            if decision.steps.is_empty() {
                self.tell(&seen, &decision).await?;
                return Ok(decision.requeue.into());
            }
            match act::act(
                &self.client,
                &self.kernel,
                &self.memory,
                &seen.resource,
                &decision.steps,
                now,
            )
            .await
            {
                Ok(()) if decision.steps.contains(&Step::RemoveFinalizer) => {
                    self.memory.forgets(&key(&object));
                    return Ok(Requeue::Change);
                }
                Ok(()) => {}
                Err(Stopped::Refused(failure)) => {
                    seen.failure = Some(failure);
                    let decision = node::decide(&seen, now);
                    self.tell(&seen, &decision).await?;
                    return Ok(decision.requeue.into());
                }
                Err(Stopped::Api(error)) => return Err(error),
            }
        }
        Ok(Requeue::After(PAUSE))
    }
}

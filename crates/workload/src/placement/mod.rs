//! The placement reconciler: DRBDResources of this cluster, in all namespaces.

mod act;
mod observe;

use std::sync::Arc;

use farshore_api::DRBDResource;
use farshore_api::meta::{annotations, labels, managers};
use farshore_core::{Note, placement};
use farshore_runtime::controller::{self, During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::events::Recorder;
use farshore_runtime::{Clock, Process, apply, triggers};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};

use crate::Config;

/// Reconciles at a time.
const CONCURRENCY: u16 = 4;

/// Places DRBDResources.
pub struct Placement {
    client: Client,
    config: Config,
    clock: Clock,
    recorder: Recorder,
}

impl Placement {
    /// The reconciler of a process.
    pub fn new(process: &Process, config: &Config) -> Self {
        let recorder = Recorder::new(
            process.client.clone(),
            managers::PLACEMENT,
            &process.identity,
            process.clock.clone(),
        );
        Self {
            client: process.client.clone(),
            config: config.clone(),
            clock: process.clock.clone(),
            recorder,
        }
    }
}

impl Reconciler<DRBDResource> for Placement {
    fn name(&self) -> &'static str {
        managers::PLACEMENT
    }

    async fn reconcile(&self, object: Arc<DRBDResource>) -> Result<Requeue, ReconcileError> {
        let Some(seen) = observe::observe(&self.client, &self.config, &object).await? else {
            return Ok(Requeue::Change);
        };
        let decision = placement::decide(&seen, self.clock.now());
        let acted = act::act(&self.client, &self.config, &seen.resource, &decision.steps).await;
        for note in &decision.notes {
            self.recorder.publish(&seen.resource, note).await;
        }
        // A conflict is tried again at once, and harms nothing.
        if let Err(error) = &acted
            && !error.is_conflict()
        {
            self.recorder
                .publish(
                    &seen.resource,
                    &Note::warning("PlacementFailed", error.to_string()),
                )
                .await;
        }
        if let Some(status) = &decision.status {
            let api: Api<DRBDResource> = Api::namespaced(
                self.client.clone(),
                &seen.resource.namespace().unwrap_or_default(),
            );
            let value =
                serde_json::to_value(status).map_err(|e| ReconcileError::new(e.to_string()))?;
            apply::ensure_status(&api, managers::PLACEMENT, &seen.resource, &value)
                .await
                .during("writing placement's part of the status")?;
        }
        acted?;
        Ok(decision.requeue.into())
    }
}

/// Runs the reconciler until the process shuts down.
pub async fn run(process: &Process, config: &Config) {
    let client = &process.client;
    let ours = watcher::Config::default().labels(labels::ZONE);
    let claims = triggers::refs(
        Api::<PersistentVolumeClaim>::all(client.clone()),
        ours.clone(),
        owner,
        process.shutdown.clone(),
    );
    let pods = triggers::refs(
        Api::<Pod>::all(client.clone()),
        ours,
        owner,
        process.shutdown.clone(),
    );
    let triggers = futures::stream::select(claims, pods).boxed();
    controller::run(
        process,
        Api::<DRBDResource>::all(client.clone()),
        watcher::Config::default(),
        Placement::new(process, config),
        triggers,
        CONCURRENCY,
    )
    .await;
}

/// The DRBDResource that a PVC or pod was made for.
fn owner<W: Resource>(object: &W) -> Vec<ObjectRef<DRBDResource>> {
    let kind = DRBDResource::kind(&());
    let owners = object
        .meta()
        .owner_references
        .iter()
        .flatten()
        .filter(|o| o.kind == kind)
        .map(|o| o.name.clone());
    let named = object
        .meta()
        .annotations
        .as_ref()
        .and_then(|a| a.get(annotations::CREATED_FOR))
        .cloned();
    let namespace = object.meta().namespace.clone().unwrap_or_default();
    owners
        .chain(named)
        .map(|name| ObjectRef::new(&name).within(&namespace))
        .collect()
}

//! The local group reconciler: mirrors of ProtectionGroups, and the VMs that they name. It writes
//! the run state of group members and the mirrors' status; nothing else does.

mod observe;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use farshore_api::meta::{labels, managers};
use farshore_api::{DRBDResource, ProtectionGroup, VmRef};
use farshore_core::Note;
use farshore_core::group::local::{self, Step};
use farshore_runtime::controller::{self, During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::events::Recorder;
use farshore_runtime::{Clock, Process, apply, triggers};
use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::{Config, kubevirt};

/// Groups at a time.
const CONCURRENCY: u16 = 4;
/// VMs of one decision at a time.
const WRITES: usize = 8;

/// Which mirrors name a VM. Each reconcile enters its mirror before it reads the VMs, so that no
/// change of a VM falls between.
#[derive(Clone, Default)]
struct Index(Arc<Mutex<BTreeMap<VmRef, BTreeSet<Mirror>>>>);

/// Namespace and name of a mirror.
type Mirror = (String, String);

impl Index {
    fn enter(&self, namespace: &str, name: &str, vms: impl Iterator<Item = VmRef>) {
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mirror = (namespace.to_string(), name.to_string());
        index.retain(|_, mirrors| {
            mirrors.remove(&mirror);
            !mirrors.is_empty()
        });
        for vm in vms {
            index.entry(vm).or_default().insert(mirror.clone());
        }
    }

    fn mirrors(&self, vm: &VmRef) -> Vec<ObjectRef<ProtectionGroup>> {
        let index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        index
            .get(vm)
            .into_iter()
            .flatten()
            .map(|(namespace, name)| ObjectRef::new(name).within(namespace))
            .collect()
    }
}

/// Carries mirrors out on this cluster's VMs.
pub struct LocalGroups {
    client: Client,
    config: Config,
    clock: Clock,
    recorder: Recorder,
    index: Index,
}

impl LocalGroups {
    /// The reconciler of a process.
    pub fn new(process: &Process, config: &Config) -> Self {
        let recorder = Recorder::new(
            process.client.clone(),
            managers::PROTECTION_GROUP,
            &process.identity,
            process.clock.clone(),
        );
        Self {
            client: process.client.clone(),
            config: config.clone(),
            clock: process.clock.clone(),
            recorder,
            index: Index::default(),
        }
    }

    /// Runs steps side by side; what fails is told, the others go on. The first error comes back.
    async fn act(&self, steps: &[Step]) -> Result<(), ReconcileError> {
        let writes = steps.iter().cloned().map(|step| {
            let client = self.client.clone();
            async move {
                let api = kubevirt::vms(&client, &step.vm.namespace);
                let written =
                    apply::merge(&api, &step.vm.name, managers::PROTECTION_GROUP, &step.patch)
                        .await;
                written
                    .map(|_| ())
                    .during(format!("making VirtualMachine {} {}", step.vm, step.to))
            }
        });
        let results: Vec<Result<(), ReconcileError>> = futures::stream::iter(writes)
            .buffered(WRITES)
            .collect()
            .await;
        results.into_iter().collect()
    }
}

impl Reconciler<ProtectionGroup> for LocalGroups {
    fn name(&self) -> &'static str {
        managers::PROTECTION_GROUP
    }

    async fn reconcile(&self, object: Arc<ProtectionGroup>) -> Result<Requeue, ReconcileError> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        let api: Api<ProtectionGroup> = Api::namespaced(self.client.clone(), &namespace);
        let group = api
            .get_opt(&name)
            .await
            .during(format!("reading ProtectionGroup {namespace}/{name}"))?;
        let is_mirror = |g: &ProtectionGroup| {
            g.labels().get(labels::MIRROR).is_some_and(|v| v == "true")
                && g.metadata.deletion_timestamp.is_none()
        };
        let Some(group) = group.filter(is_mirror) else {
            // Whoever deletes a mirror means the copy, not the VMs.
            self.index.enter(&namespace, &name, std::iter::empty());
            return Ok(Requeue::Change);
        };
        self.index.enter(
            &namespace,
            &name,
            group.spec.members.iter().filter_map(|m| m.vm_ref.clone()),
        );
        let seen = observe::observe(&self.client, &self.config, group).await?;
        let decision = local::decide(&seen, self.clock.now());
        let acted = self.act(&decision.steps).await;
        for note in &decision.notes {
            self.recorder.publish(&seen.group, note).await;
        }
        if let Err(error) = &acted
            && !error.is_conflict()
        {
            self.recorder
                .publish(
                    &seen.group,
                    &Note::warning("VMWriteFailed", error.to_string()),
                )
                .await;
        }
        apply::status(
            &api,
            &name,
            managers::PROTECTION_GROUP,
            &seen.group.status,
            &decision.status,
        )
        .await
        .during(format!(
            "writing the status of ProtectionGroup {namespace}/{name}"
        ))?;
        acted?;
        Ok(decision.requeue.into())
    }
}

/// Runs the reconciler until the process shuts down.
pub async fn run(process: &Process, config: &Config) {
    let groups = LocalGroups::new(process, config);
    let client = &process.client;
    let all = watcher::Config::default;
    let by_name = |index: Index| {
        move |o: &DynamicObject| {
            index.mirrors(&VmRef {
                namespace: o.namespace().unwrap_or_default(),
                name: o.name_any(),
            })
        }
    };
    let vms = triggers::refs_on_change(
        kubevirt::all_vms(client),
        all(),
        vm_matters,
        by_name(groups.index.clone()),
        process.shutdown.clone(),
    );
    let instances = triggers::refs_on_change(
        kubevirt::all_instances(client),
        all(),
        instance_matters,
        by_name(groups.index.clone()),
        process.shutdown.clone(),
    );
    let index = groups.index.clone();
    let by_vm = move |r: &DRBDResource| {
        index.mirrors(&VmRef {
            namespace: r.namespace().unwrap_or_default(),
            name: r.spec.vm_ref.name.clone(),
        })
    };
    let resources = triggers::refs_on_change(
        Api::all(client.clone()),
        all(),
        resource_matters,
        by_vm,
        process.shutdown.clone(),
    );
    let triggers =
        futures::stream::select(vms, futures::stream::select(instances, resources)).boxed();
    let mirrors = watcher::Config::default().labels(&format!("{}=true", labels::MIRROR));
    controller::run(
        process,
        Api::<ProtectionGroup>::all(client.clone()),
        mirrors,
        groups,
        triggers,
        CONCURRENCY,
    )
    .await;
}

fn vm_matters(vm: &DynamicObject) -> String {
    json!([
        vm.uid(),
        vm.data.pointer("/spec/running"),
        vm.data.pointer("/spec/runStrategy"),
        vm.metadata.deletion_timestamp
    ])
    .to_string()
}

fn instance_matters(instance: &DynamicObject) -> String {
    let ready = observe::ready(&instance.data)
        .cloned()
        .unwrap_or(Value::Null);
    let at = |path: &str| instance.data.pointer(path).cloned().unwrap_or(Value::Null);
    json!([
        instance.uid(),
        at("/status/phase"),
        at("/status/nodeName"),
        ready,
        instance.metadata.deletion_timestamp
    ])
    .to_string()
}

/// Not the bytes that differ: they change with every write of the VM.
fn resource_matters(resource: &DRBDResource) -> String {
    let status = resource.status.clone().unwrap_or_default();
    let spec = &resource.spec;
    json!([
        spec.role,
        spec.role_epoch,
        spec.node_name,
        status.role,
        status.role_epoch,
        status.connection_state,
        status.disk_state,
        status.split_brain,
        resource.metadata.deletion_timestamp,
    ])
    .to_string()
}

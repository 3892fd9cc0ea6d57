//! One DRBDResource on its node: what the node agent does with the kernel there [S1].
//!
//! The order is fixed: finalizer, metadata, configuration, connection, role, frontend. Data is never
//! put at risk to make progress: fresh metadata is written only where none is, a role of an older
//! epoch is never carried out, and force is used in two cases alone (see [`roles`]).

mod config;
mod report;
pub mod roles;
pub mod taint;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::drbd::{ConnectionState, ReplicationState};
use farshore_api::drbd_resource::{DRBDResourceStatus, DRBDVolumeSpec};
use farshore_api::meta::{annotations, finalizers};
use farshore_api::{DRBDResource, names};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::model::{ResourceConfig, ResourceState, Secret};
use crate::Note;

pub use config::{Claimed, config, problems};

/// How long until a wait is looked at again; most changes trigger it before.
const WAITING: Duration = Duration::from_secs(5);
/// How long until a resource that is as wanted is looked at again.
const SETTLED: Duration = Duration::from_secs(300);
/// How often a connection that the kernel has given up is tried again, and how often the bytes out
/// of sync are read while the peer is away.
const SLOW: Duration = Duration::from_secs(10);

/// What the agent looks at.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// The resource, as it is now.
    pub resource: DRBDResource,
    /// The pod that keeps the volumes attached to this node.
    #[serde(default)]
    pub anchor: Option<Anchor>,
    /// The shared secret of the peers.
    #[serde(default)]
    pub secret: Option<Secret>,
    /// What is known of each volume, in the order of `spec.volumes`.
    #[serde(default)]
    pub volumes: Vec<VolumeSeen>,
    /// The kernel's resources of this DRBDResource, by name.
    #[serde(default)]
    pub kernel: BTreeMap<String, ResourceState>,
    /// Why the kernel's state could not be read.
    #[serde(default)]
    pub kernel_error: Option<String>,
    /// What this process has configured before, by the kernel's name.
    #[serde(default)]
    pub applied: BTreeMap<String, Applied>,
    /// What the other DRBDResources of this node take.
    #[serde(default)]
    pub others: Vec<Claimed>,
    /// The step that failed just now.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// When this process last wrote the status.
    #[serde(default)]
    pub last_write: Option<Timestamp>,
}

/// The anchor pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Anchor {
    /// Its name.
    pub name: String,
    /// Whether it runs on this node.
    pub running: bool,
}

/// What is known of a volume's devices and of what the VM uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeSeen {
    /// Device of the data on this node.
    pub data: Option<String>,
    /// Device of the metadata on this node.
    pub meta: Option<String>,
    /// Whether the metadata device carries DRBD metadata; `None` while it cannot be read.
    pub has_metadata: Option<bool>,
    /// Whether the frontend PVC and PV are there and as they shall be.
    pub frontend: bool,
}

/// A configuration that was given to the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// The configuration.
    pub config: ResourceConfig,
    /// When it was given last.
    pub at: Timestamp,
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Why, as a clause.
    pub why: String,
    /// Whether somebody has the device open.
    #[serde(default)]
    pub held_open: bool,
}

/// One thing to do. Volumes are named by index.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Keep the object until the kernel has let go.
    AddFinalizer,
    /// Write fresh metadata.
    CreateMetadata(ResourceConfig),
    /// Write the configuration, attach, connect.
    Adjust(ResourceConfig),
    /// Drop the connection.
    Disconnect(String),
    /// Connect again after a split brain.
    Connect {
        /// The kernel's resource.
        resource: String,
        /// Give up this side's changes.
        discard_my_data: bool,
    },
    /// Become Primary.
    Primary {
        /// The kernel's resource.
        resource: String,
        /// Also without knowing that the data is UpToDate.
        force: bool,
    },
    /// Become Secondary.
    Secondary(String),
    /// Create the PV and PVC that the VM uses.
    EnsureFrontend(i32),
    /// Detach and forget.
    Down(String),
    /// Delete the PVC and PV that the VM used.
    DeleteFrontend(i32),
    /// Let the object go.
    RemoveFinalizer,
}

/// What to do and what to say.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// What to do, in order.
    pub steps: Vec<Step>,
    /// The agent's part of the status: its own fields and its own five conditions.
    pub status: DRBDResourceStatus,
    /// What a person should hear.
    pub notes: Vec<Note>,
    /// When to look again.
    pub requeue: Option<Duration>,
}

/// The kernel's name of a volume's resource.
pub fn kernel_name(resource: &DRBDResource, volume: &DRBDVolumeSpec) -> String {
    names::kernel_resource(
        resource.metadata.name.as_deref().unwrap_or_default(),
        volume.index,
    )
}

/// Decides what the agent does with one resource that is bound to its node.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    let mut plan = Plan::default();
    if seen.resource.metadata.deletion_timestamp.is_some() {
        tear_down(seen, &mut plan);
    } else if !has_finalizer(&seen.resource) {
        plan.steps.push(Step::AddFinalizer);
    } else {
        bring_up(seen, now, &mut plan);
    }
    report::conclude(seen, plan, now)
}

/// What is found out on the way.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    /// What it waits for or what is wrong: reason and sentence.
    hold: Option<Hold>,
    requeue: Option<Duration>,
}

struct Hold {
    reason: &'static str,
    message: String,
    /// Whether a person must do something.
    fatal: bool,
}

impl Plan {
    fn hold(&mut self, reason: &'static str, message: String) {
        self.hold.get_or_insert(Hold {
            reason,
            message,
            fatal: false,
        });
        self.again(WAITING);
    }

    fn fail(&mut self, reason: &'static str, message: String) {
        self.hold.get_or_insert(Hold {
            reason,
            message,
            fatal: true,
        });
        self.again(SLOW);
    }

    fn again(&mut self, after: Duration) {
        self.requeue = Some(self.requeue.map_or(after, |r| r.min(after)));
    }
}

fn has_finalizer(resource: &DRBDResource) -> bool {
    let all = resource.metadata.finalizers.iter().flatten();
    all.into_iter().any(|f| f == finalizers::DRBD_TEARDOWN)
}

/// `namespace/name` for messages.
fn label(resource: &DRBDResource) -> String {
    let meta = &resource.metadata;
    format!(
        "{}/{}",
        meta.namespace.as_deref().unwrap_or_default(),
        meta.name.as_deref().unwrap_or_default()
    )
}

fn bring_up(seen: &Observed, now: Timestamp, plan: &mut Plan) {
    let resource = &seen.resource;
    let spec = &resource.spec;
    if let Some(error) = &seen.kernel_error {
        return plan.fail(
            "KernelUnreadable",
            format!(
                "The DRBD state of this node cannot be read: {error}. It is tried again every 10 s"
            ),
        );
    }
    // Giving way never waits for anything else to be right.
    roles::give_way(seen, plan);
    let found = problems(resource, seen.secret.as_ref(), &seen.others);
    if !found.is_empty() {
        return plan.fail(
            "ConfigInvalid",
            format!("DRBD is not configured for DRBDResource {}: {}. It goes on as soon as the spec is right", label(resource), found.join("; ")),
        );
    }
    for volume in &spec.volumes {
        set_up(seen, volume, now, plan);
    }
    if plan.hold.is_none() {
        roles::take_over(seen, now, plan);
    }
    for (volume, known) in spec.volumes.iter().zip(&seen.volumes) {
        let up = seen.kernel.contains_key(&kernel_name(resource, volume));
        if up && !known.frontend {
            plan.steps.push(Step::EnsureFrontend(volume.index));
        }
    }
}

/// Metadata, configuration and connection of one volume.
fn set_up(seen: &Observed, volume: &DRBDVolumeSpec, now: Timestamp, plan: &mut Plan) {
    let resource = &seen.resource;
    let name = kernel_name(resource, volume);
    let state = seen.kernel.get(&name);
    let wanted = config(seen, volume);
    let Some(state) = state else {
        let Some(wanted) = wanted else {
            let waits = waits_for(seen, volume);
            return plan.hold(
                "Waiting",
                format!(
                    "DRBD volume {} of DRBDResource {} is not configured: {waits}",
                    volume.index,
                    label(resource)
                ),
            );
        };
        match has_metadata(seen, volume) {
            None => return plan.hold("Waiting", format!("The metadata device {} of volume {} cannot be read yet. It is tried again every 5 s", wanted.meta_disk, volume.index)),
            Some(false) if was_up_to_date(resource) && spec_is_primary(resource) => {
                return plan.fail(
                    "MetadataLost",
                    format!(
                        "Volume {} of DRBDResource {} has lost its DRBD metadata (PVC {}), so this side can no longer prove that it holds the newest data. Fail the group over to cluster {}, or restore the PVC",
                        volume.index, label(resource), names::metadata_pvc(resource.metadata.name.as_deref().unwrap_or_default(), volume.index), resource.spec.peer_cluster
                    ),
                );
            }
            Some(false) => plan.steps.push(Step::CreateMetadata(wanted.clone())),
            Some(true) => {}
        }
        plan.steps.push(Step::Adjust(wanted));
        return;
    };
    if state.size_bytes < volume.size_bytes {
        return plan.fail(
            "DeviceClipped",
            format!(
                "Device /dev/drbd{} of volume {} has {} bytes, the VM's disk needs {}: the metadata PVC or a data PVC of either side is too small. Enlarge it and delete the agent pod on this node",
                state.minor, volume.index, state.size_bytes, volume.size_bytes
            ),
        );
    }
    if resource.spec.paused {
        if state.connection_state != ConnectionState::StandAlone {
            plan.steps.push(Step::Disconnect(name));
        }
        return;
    }
    if state.split_brain {
        return split_brain(seen, volume, state, plan);
    }
    // What is up goes on as it was configured while its devices cannot be seen, for instance when
    // the anchor pod is made again.
    let Some(wanted) = wanted else { return };
    let applied = seen.applied.get(&name);
    let changed = applied.is_none_or(|a| a.config != wanted);
    let given_up = state.connection_state == ConnectionState::StandAlone;
    if changed {
        plan.steps.push(Step::Adjust(wanted));
    } else if given_up {
        // A wrong secret or unrelated data ends here too: trying at once again would never rest.
        let wait =
            SLOW.as_secs() as i64 - applied.map_or(0, |a| now.as_second() - a.at.as_second());
        if wait <= 0 {
            plan.steps.push(Step::Adjust(wanted));
        }
        plan.again(Duration::from_secs(
            u64::try_from(wait).unwrap_or(0).clamp(1, SLOW.as_secs()),
        ));
    }
}

fn split_brain(seen: &Observed, volume: &DRBDVolumeSpec, state: &ResourceState, plan: &mut Plan) {
    let resource = &seen.resource;
    let spec = &resource.spec;
    let all = resource.metadata.annotations.as_ref();
    match all.and_then(|a| a.get(annotations::RESOLVE_SPLIT_BRAIN)).map(String::as_str) {
        Some(keep) if keep == spec.cluster => plan.steps.push(Step::Connect {
            resource: state.name.clone(),
            discard_my_data: false,
        }),
        Some(keep) if keep == spec.peer_cluster => {
            plan.steps.push(Step::Secondary(state.name.clone()));
            plan.steps.push(Step::Connect {
                resource: state.name.clone(),
                discard_my_data: true,
            });
        }
        _ => plan.fail(
            "SplitBrain",
            format!(
                "Volume {} of DRBDResource {} is in split brain: both clusters wrote while apart, so replication stays off. Choose whose data is kept, {} or {}, and annotate the DRBDResource on both clusters: kubectl annotate drbdr -n {} {} {}=<cluster>",
                volume.index, label(resource), spec.cluster, spec.peer_cluster,
                resource.metadata.namespace.as_deref().unwrap_or_default(),
                resource.metadata.name.as_deref().unwrap_or_default(),
                annotations::RESOLVE_SPLIT_BRAIN
            ),
        ),
    }
}

/// What a volume's configuration waits for.
fn waits_for(seen: &Observed, volume: &DRBDVolumeSpec) -> String {
    let resource = &seen.resource;
    let namespace = resource.metadata.namespace.as_deref().unwrap_or_default();
    let name = resource.metadata.name.as_deref().unwrap_or_default();
    let spec = &resource.spec;
    match &seen.anchor {
        _ if spec.local.is_none() => "this node's replication address is not known yet. Placement fills spec.local; look at condition NodeBound".into(),
        _ if spec.peer.is_none() => format!("the node in cluster {} is not known yet. It goes on when that side is bound; look at DRBDResource {namespace}/{name} there", spec.peer_cluster),
        None => format!("pod {namespace}/{} does not exist yet. Placement creates it; look at condition BackingReady", names::anchor_pod(name)),
        Some(anchor) if !anchor.running => format!("pod {namespace}/{} does not run on this node yet. Look with: kubectl describe pod -n {namespace} {}", anchor.name, anchor.name),
        _ if seen.secret.is_none() => format!("Secret {namespace}/{} with key secret does not exist. The manager creates it on both clusters", names::shared_secret(name)),
        _ => format!("the devices of PVC {namespace}/{} and {namespace}/{} are not attached to this node yet", volume.pvc_name, names::metadata_pvc(name, volume.index)),
    }
}

fn has_metadata(seen: &Observed, volume: &DRBDVolumeSpec) -> Option<bool> {
    let at = seen
        .resource
        .spec
        .volumes
        .iter()
        .position(|v| v.index == volume.index)?;
    seen.volumes.get(at)?.has_metadata
}

fn spec_is_primary(resource: &DRBDResource) -> bool {
    resource.spec.role == farshore_api::drbd::Role::Primary
}

/// Whether every volume of this side has been UpToDate before: the agent keeps it in the condition.
fn was_up_to_date(resource: &DRBDResource) -> bool {
    report::was_up_to_date(resource.status.as_ref())
}

/// Whether a sync of any volume runs.
fn syncing(seen: &Observed) -> bool {
    use ReplicationState as R;
    let running = |r: R| !matches!(r, R::Off | R::Established | R::VerifyS | R::VerifyT);
    seen.kernel
        .values()
        .any(|state| running(state.replication_state))
}

/// Unprotect: the device goes, the disks stay.
fn tear_down(seen: &Observed, plan: &mut Plan) {
    let resource = &seen.resource;
    if !has_finalizer(resource) {
        return;
    }
    if let Some(error) = &seen.kernel_error {
        return plan.fail(
            "KernelUnreadable",
            format!(
                "The DRBD state of this node cannot be read: {error}. It is tried again every 10 s"
            ),
        );
    }
    for name in seen.kernel.keys() {
        plan.steps.push(Step::Secondary(name.clone()));
        plan.steps.push(Step::Down(name.clone()));
    }
    for volume in &resource.spec.volumes {
        plan.steps.push(Step::DeleteFrontend(volume.index));
    }
    plan.steps.push(Step::RemoveFinalizer);
}

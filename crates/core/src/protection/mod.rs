//! Protecting one VM: from a ProtectionRequest to a replicated VM with a standby copy, and back.
//!
//! Order of a protection [S1] [S2]: Pending → Validating → CreatingDRBD → Syncing → Protected. Each
//! phase is written before anything is done in it, and what must not be lost (ports, role epoch) is
//! decided in one reconcile and used in the next: the process may be killed between any two writes.
//!
//! The status of a decision speaks only of what was observed, so `act` writes it first and carries
//! out the steps after it.

mod bring_up;
pub mod disks;
pub mod health;
pub mod policy;
pub mod ports;
pub mod resource;
pub mod roles;
mod scene;
mod settled;
mod standby;
#[cfg(test)]
mod tests;
mod unprotect;
mod validate;

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::conditions::{request as condition, zone as zone_condition};
use farshore_api::drbd_volume::DRBDVolumeStatus;
use farshore_api::meta::finalizers;
use farshore_api::protection_request::{ProtectionPhase, ProtectionRequestStatus};
use farshore_api::{
    DRBDReplicationPolicy, DRBDResource, DRBDVolume, ProtectionRequest, ProtectionZone,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conditions::{self, Truth};
use crate::{Note, Seen};
use scene::Scene;

/// Pause while something moves; changes on either cluster are also watched.
pub const MOVING: Duration = Duration::from_secs(5);
/// Pause while something is wrong that only time or a person can change.
pub const WAITING: Duration = Duration::from_secs(15);
/// Pause when nothing is expected to change.
pub const SETTLED: Duration = Duration::from_secs(60);

/// Everything that the decision about one ProtectionRequest needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// The request.
    pub request: ProtectionRequest,
    /// The zone of its namespace.
    pub zone: Option<ProtectionZone>,
    /// UID of that namespace: part of every name.
    pub zone_namespace_uid: String,
    /// The policies of the namespace.
    pub policies: Vec<DRBDReplicationPolicy>,
    /// The other requests of the namespace; read only while ports are chosen.
    pub others: Vec<ProtectionRequest>,
    /// The DRBDVolumes of this request.
    pub drbd_volumes: Vec<DRBDVolume>,
    /// FailoverRequest that holds the lock of a group of this request.
    pub locked_by: Option<String>,
    /// Both workload clusters, by name.
    pub sides: BTreeMap<String, Side>,
    /// Why a step of the last attempt failed, if one did.
    pub trouble: Option<String>,
}

/// What one workload cluster shows of the VM.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Side {
    /// The VirtualMachine.
    pub vm: Seen<Value>,
    /// Its VirtualMachineInstance: there while the VM runs.
    pub vmi: Seen<Value>,
    /// Names of unfinished migrations of the VM; read only while validating.
    pub migrations: Seen<Vec<String>>,
    /// The DRBDResource.
    pub resource: Seen<DRBDResource>,
    /// The PVCs that back its disks, by name.
    pub pvcs: BTreeMap<String, Seen<PersistentVolumeClaim>>,
    /// Names of the storage classes; read only while validating.
    pub storage_classes: Seen<Vec<String>>,
    /// Ports of the zone's other DRBDResources, with `namespace/name` of who holds each; read only
    /// while ports are chosen.
    pub ports: Seen<Vec<(String, i32)>>,
    /// The VM's namespace.
    pub namespace: Seen<()>,
    /// The Secret of the peers. Its content is never observed.
    pub secret: Seen<()>,
    /// Whether a mirror of a group still lists the VM; read only while unprotecting.
    pub mirrored: Seen<bool>,
}

impl Side {
    /// A side of which nothing is there yet.
    pub fn empty() -> Self {
        Self {
            vm: Seen::Absent,
            vmi: Seen::Absent,
            migrations: Seen::Present(Vec::new()),
            resource: Seen::Absent,
            pvcs: BTreeMap::new(),
            storage_classes: Seen::Present(Vec::new()),
            ports: Seen::Present(Vec::new()),
            namespace: Seen::Absent,
            secret: Seen::Absent,
            mirrored: Seen::Present(false),
        }
    }

    /// A side that does not answer.
    pub fn unreachable(why: &str) -> Self {
        Self {
            vm: Seen::Unknown(why.into()),
            vmi: Seen::Unknown(why.into()),
            migrations: Seen::Unknown(why.into()),
            resource: Seen::Unknown(why.into()),
            pvcs: BTreeMap::new(),
            storage_classes: Seen::Unknown(why.into()),
            ports: Seen::Unknown(why.into()),
            namespace: Seen::Unknown(why.into()),
            secret: Seen::Unknown(why.into()),
            mirrored: Seen::Unknown(why.into()),
        }
    }

    /// Why a part of this side is not known, if one is not.
    pub fn unknown(&self) -> Option<&str> {
        let parts = [
            self.vm.unknown(),
            self.vmi.unknown(),
            self.migrations.unknown(),
            self.resource.unknown(),
            self.storage_classes.unknown(),
            self.ports.unknown(),
            self.namespace.unknown(),
            self.secret.unknown(),
            self.mirrored.unknown(),
        ];
        parts
            .into_iter()
            .flatten()
            .next()
            .or_else(|| self.pvcs.values().find_map(Seen::unknown))
    }
}

/// One write. VMs and DRBDResources are those of the request's VM.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Puts the finalizer on the request.
    AddFinalizer,
    /// Lets the request go.
    RemoveFinalizer,
    /// Makes the VM's namespace.
    CreateNamespace {
        /// Where.
        cluster: String,
    },
    /// Makes sure that both clusters hold the same shared secret; generates it when neither does.
    ShareSecret,
    /// Creates a DRBDVolume on the hub.
    CreateDrbdVolume {
        /// The object.
        volume: Box<DRBDVolume>,
    },
    /// Writes the status of a DRBDVolume.
    ReportDrbdVolume {
        /// Its name.
        name: String,
        /// The new status.
        status: DRBDVolumeStatus,
    },
    /// Creates the DRBDResource of one side.
    CreateResource {
        /// Where.
        cluster: String,
        /// The object.
        resource: Box<DRBDResource>,
    },
    /// Changes the DRBDResource of one side, provided that it is as it was read.
    PatchResource {
        /// Where.
        cluster: String,
        /// A merge patch with resourceVersion.
        patch: Value,
    },
    /// Deletes the DRBDResource of one side.
    DeleteResource {
        /// Where.
        cluster: String,
    },
    /// Creates the standby VM, halted.
    CreateVm {
        /// Where.
        cluster: String,
        /// The object.
        vm: Value,
    },
    /// Changes a VM, provided that it is as it was read.
    PatchVm {
        /// Where.
        cluster: String,
        /// What for, in words.
        purpose: &'static str,
        /// A merge patch with resourceVersion.
        patch: Value,
    },
    /// Deletes the standby VM.
    DeleteVm {
        /// Where.
        cluster: String,
    },
    /// Deletes a PVC that the product created on the standby side.
    DeletePvc {
        /// Where.
        cluster: String,
        /// Its name.
        name: String,
    },
    /// Deletes the Secret of the peers.
    DeleteSecret {
        /// Where.
        cluster: String,
    },
}

/// What to do about a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The status, written before the steps.
    pub status: ProtectionRequestStatus,
    /// The writes, in order.
    pub steps: Vec<Step>,
    /// What to tell.
    pub notes: Vec<Note>,
    /// When to look again.
    pub requeue: Option<Duration>,
}

/// Decides about one ProtectionRequest.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    let old = seen.request.status.clone().unwrap_or_default();
    let mut status = old.clone();
    status.observed_generation = seen.request.metadata.generation;
    let mut decision = Decision {
        status,
        steps: Vec::new(),
        notes: Vec::new(),
        requeue: Some(MOVING),
    };

    let deleting = seen.request.metadata.deletion_timestamp.is_some();
    if deleting && !has_finalizer(&seen.request) {
        decision.requeue = None;
        return decision;
    }
    if !deleting && !has_finalizer(&seen.request) {
        decision.steps.push(Step::AddFinalizer);
    }
    if deleting && old.volumes.is_empty() {
        // Nothing was created: ports come first.
        decision.status.phase = Some(ProtectionPhase::Unprotecting);
        conditions::set(
            &mut decision.status.conditions,
            condition::PROTECTED,
            Truth::False,
            "Unprotecting",
            "this request goes before anything was made for it",
            seen.request.metadata.generation,
            now,
        );
        decision.steps.push(Step::RemoveFinalizer);
    } else if let Some(phase) = old.phase {
        match Scene::new(seen, now) {
            Ok(scene) if deleting => {
                // A failover that runs is still carried out: left between the sides, the VM would be
                // down on both.
                let settled = matches!(
                    phase,
                    ProtectionPhase::Protected
                        | ProtectionPhase::Degraded
                        | ProtectionPhase::FailingOver
                );
                if settled && seen.locked_by.is_some() {
                    in_phase(&scene, phase, &mut decision);
                }
                unprotect::decide(&scene, &mut decision);
            }
            Ok(scene) => {
                policy::report(&seen.request, scene.policy, &mut decision.status, now);
                in_phase(&scene, phase, &mut decision);
            }
            Err(wait) => wait.report(&mut decision, phase, seen, now),
        }
    } else {
        decision.status.phase = Some(ProtectionPhase::Pending);
    }
    note_phase(&seen.request, &old, &mut decision);
    decision
}

fn in_phase(scene: &Scene, phase: ProtectionPhase, decision: &mut Decision) {
    match phase {
        ProtectionPhase::Pending => decision.status.phase = Some(ProtectionPhase::Validating),
        ProtectionPhase::Validating | ProtectionPhase::Failed => validate::decide(scene, decision),
        ProtectionPhase::CreatingDRBD | ProtectionPhase::Syncing => {
            bring_up::decide(scene, decision);
        }
        ProtectionPhase::Protected
        | ProtectionPhase::Degraded
        | ProtectionPhase::FailingOver
        | ProtectionPhase::Unprotecting => settled::decide(scene, decision),
    }
}

/// Whether the pair changes roles, or is to: a failover waits for each look at the request then.
pub fn is_moving(request: &ProtectionRequest) -> bool {
    request.status.as_ref().is_some_and(|status| {
        status.phase == Some(ProtectionPhase::FailingOver)
            || status.target_cluster.as_ref() == Some(&request.spec.source_cluster)
    })
}

/// Whether the request holds our finalizer.
pub fn has_finalizer(request: &ProtectionRequest) -> bool {
    request
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|f| f == finalizers::UNPROTECT)
}

/// Tells of a new phase, and of disks that nothing copies, once.
fn note_phase(request: &ProtectionRequest, old: &ProtectionRequestStatus, decision: &mut Decision) {
    let added = |s: &ProtectionRequestStatus| {
        conditions::get(&s.conditions, condition::PROTECTED)
            .is_some_and(|c| c.reason == condition::UNREPLICATED_VOLUME)
    };
    let came = added(&decision.status) && !added(old);
    let grown = |s: &ProtectionRequestStatus| {
        conditions::get(&s.conditions, condition::RESIZE_IGNORED).is_some()
    };
    if grown(&decision.status) && !grown(old) {
        let message = condition_message(decision, condition::RESIZE_IGNORED);
        let note = Note::warning(condition::RESIZE_IGNORED, message);
        decision.notes.push(note);
    }
    let Some(phase) = decision.status.phase.filter(|p| old.phase != Some(*p)) else {
        if came {
            let message = condition_message(decision, condition::PROTECTED);
            let note = Note::warning(condition::UNREPLICATED_VOLUME, message);
            decision.notes.push(note);
        }
        return;
    };
    let from = old.phase.map_or("new", ProtectionPhase::as_str);
    let why = match phase {
        ProtectionPhase::Failed => condition_message(decision, condition::VALIDATED),
        ProtectionPhase::Degraded => condition_message(decision, condition::PROTECTED),
        ProtectionPhase::FailingOver => {
            let status = &decision.status;
            format!(
                "the disks change sides; first DRBD on cluster {} becomes Secondary, then it becomes Primary on cluster {} (role epoch {}), and the group starts the VM there",
                status.target_cluster.as_deref().unwrap_or_default(),
                request.spec.source_cluster,
                status.role_epoch.unwrap_or_default()
            )
        }
        _ => String::new(),
    };
    let message = format!(
        "phase {from} → {phase}{}{why}",
        if why.is_empty() { "" } else { ": " }
    );
    let warning = matches!(phase, ProtectionPhase::Failed | ProtectionPhase::Degraded);
    let reason = if came {
        condition::UNREPLICATED_VOLUME
    } else {
        phase.as_str()
    };
    decision.notes.push(Note {
        warning,
        reason: reason.into(),
        message,
    });
}

fn condition_message(decision: &Decision, type_: &str) -> String {
    conditions::get(&decision.status.conditions, type_).map_or(String::new(), |c| c.message.clone())
}

/// Since when a condition has had this status; `now` when it has not.
pub(crate) fn since(all: &[Condition], type_: &str, truth: Truth, now: Timestamp) -> Timestamp {
    conditions::get(all, type_)
        .filter(|c| c.status == truth.as_str())
        .map_or(now, |c| c.last_transition_time.0)
}

/// Whether a zone's clusters are validated; else the sentence that says they are not.
pub fn zone_refusal(zone: &ProtectionZone) -> Option<String> {
    let name = zone.metadata.name.as_deref().unwrap_or_default();
    let conditions = zone.status.as_ref().map_or(&[][..], |s| &s.conditions);
    let validated = conditions::get(conditions, zone_condition::CLUSTERS_VALIDATED);
    match validated {
        Some(c) if c.status == "True" => None,
        Some(c) => Some(format!(
            "ProtectionZone {name} is not validated: ClustersValidated={} reason={}",
            c.status, c.reason
        )),
        None => Some(format!(
            "ProtectionZone {name} is not validated: ClustersValidated=Unknown reason=NotYetProbed"
        )),
    }
}

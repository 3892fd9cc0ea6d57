//! What a failover may do to the world, as data: printed, compared and tested before it is done.

use std::time::Duration;

use farshore_api::failover_request::FailoverRequestStatus;
use farshore_api::protection_group::DesiredState;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Serialize;

use crate::Note;

/// One write. Each is idempotent and carries what it needs; where it rests on something that was
/// read, it carries the resourceVersion of that, and is refused if the object changed since.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(
    tag = "step",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Step {
    /// Puts the finalizer on the request, so that it cannot vanish while it holds the lock.
    AddFinalizer,
    /// Takes the finalizer off the request.
    RemoveFinalizer,
    /// Writes the Lease: creates it, or replaces the version that was read.
    WriteLock {
        purpose: LockPurpose,
        resource_version: Option<String>,
        /// The group: the Lease goes with it.
        owners: Vec<OwnerReference>,
        spec: Box<LeaseSpec>,
    },
    /// Creates a hook's Job on the target.
    CreateHookJob {
        cluster: String,
        namespace: String,
        name: String,
        job: serde_json::Value,
    },
    /// Tells the mirror of the group on a cluster what its VMs shall do.
    SetDesiredState {
        cluster: String,
        desired: DesiredState,
        resource_version: Option<String>,
    },
    /// Leaves a node with these taints only.
    SetTaints {
        cluster: String,
        node: String,
        taints: Vec<Taint>,
        removed: Vec<String>,
        resource_version: Option<String>,
    },
    /// The role flip of one member: its `sourceCluster` becomes the target, or the source again when
    /// the target could not be promoted.
    Flip {
        protection_request: String,
        to: String,
    },
}

/// Why the Lease is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LockPurpose {
    Take,
    Renew,
    Release,
}

/// What a FailoverRequest does next. The status is stored first, then the steps are run in order;
/// a step that is refused because its object changed ends the round, and the next one looks again.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// The new status of the request.
    pub status: FailoverRequestStatus,
    /// The writes, in order.
    pub steps: Vec<Step>,
    /// Transitions to tell as Events.
    pub notes: Vec<Note>,
    /// When to look again if nothing changes before; None: not at all.
    pub requeue: Option<Duration>,
}

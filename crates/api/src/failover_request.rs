//! FailoverRequest: one operation that moves a group to a named cluster [S1] [S2].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::LocalRef;
use crate::protection_group::Hooks;
use crate::zone::SafetyCheckScope;

/// Moves a ProtectionGroup to the target cluster. No failover is automatic: each starts with one
/// of these. Its spec is immutable but for `abort`, which can be set once.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siterecovery.trilio.io",
    version = "v1alpha1",
    kind = "FailoverRequest",
    plural = "failoverrequests",
    shortname = "fr",
    shortname = "failover",
    shortname = "failovers",
    namespaced,
    status = "FailoverRequestStatus",
    derive = "PartialEq",
    printcolumn(
        name = "Group",
        type_ = "string",
        json_path = ".spec.protectionGroupRef.name"
    ),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.failoverType"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.targetCluster"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Started", type_ = "date", json_path = ".status.startTime"),
    printcolumn(
        name = "Duration(s)",
        type_ = "integer",
        json_path = ".status.durationSeconds",
        description = "seconds"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "self.protectionGroupRef == oldSelf.protectionGroupRef && self.targetCluster == oldSelf.targetCluster && self.failoverType == oldSelf.failoverType && self.force == oldSelf.force && self.queue == oldSelf.queue && has(self.timeoutSeconds) == has(oldSelf.timeoutSeconds) && (!has(self.timeoutSeconds) || self.timeoutSeconds == oldSelf.timeoutSeconds) && has(self.drainTimeoutSeconds) == has(oldSelf.drainTimeoutSeconds) && (!has(self.drainTimeoutSeconds) || self.drainTimeoutSeconds == oldSelf.drainTimeoutSeconds) && has(self.reason) == has(oldSelf.reason) && (!has(self.reason) || self.reason == oldSelf.reason) && has(self.hooks) == has(oldSelf.hooks) && (!has(self.hooks) || self.hooks == oldSelf.hooks)",
    "FailoverRequest spec is immutable"
))]
pub struct FailoverRequestSpec {
    /// The group, in the same namespace.
    pub protection_group_ref: LocalRef,
    /// The cluster to move to.
    #[schemars(length(min = 1, max = 63))]
    pub target_cluster: String,
    /// `planned` needs both sides; `unplanned` is for a lost source.
    pub failover_type: FailoverType,
    /// Overrides the safety check before taints are removed [S2].
    #[serde(default)]
    pub force: bool,
    /// Accepted and without effect [S1]. Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub drain_timeout_seconds: Option<i32>,
    /// Hooks of this run, in place of the group's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Hooks>,
    /// Wait instead of ending when another group blocks this one.
    #[serde(default)]
    pub queue: bool,
    /// Wall-clock budget in seconds; the zone's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 3600))]
    pub timeout_seconds: Option<i32>,
    /// Why, for the audit trail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
    /// Asks a running planned failover to roll back; only before the role flip.
    #[serde(default)]
    #[x_kube(validation = ("self || !oldSelf", "spec.abort cannot be taken back"))]
    pub abort: bool,
}

string_enum! {
    /// Kind of a failover.
    pub enum FailoverType { Planned = "planned", Unplanned = "unplanned" }
}

string_enum! {
    /// State of a FailoverRequest, in the order in which they are passed; the last four end it or lead to its end.
    pub enum FailoverState {
        Pending = "Pending", Validating = "Validating", RunningPreHooks = "RunningPreHooks",
        StoppingOnSource = "StoppingOnSource", RemovingTaints = "RemovingTaints",
        PromotingTarget = "PromotingTarget", StartingOnTarget = "StartingOnTarget",
        RunningPostHooks = "RunningPostHooks", Completed = "Completed",
        RollingBack = "RollingBack", Failed = "Failed", Blocked = "Blocked",
    }
}

impl FailoverState {
    /// Whether nothing more will happen. `Blocked` ends a request unless it queues.
    pub fn is_terminal(self, queue: bool) -> bool {
        match self {
            Self::Completed | Self::Failed => true,
            Self::Blocked => !queue,
            _ => false,
        }
    }

    /// Whether the role flip may have happened in this state.
    pub fn is_past_flip(self) -> bool {
        matches!(
            self,
            Self::PromotingTarget
                | Self::StartingOnTarget
                | Self::RunningPostHooks
                | Self::Completed
        )
    }
}

/// Progress of a failover.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailoverRequestStatus {
    /// State.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<FailoverState>,
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Cluster that had the group when the request was first seen; the target itself when it was
    /// there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_cluster: Option<String>,
    /// One sentence about where the failover stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Progress of each VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vm_statuses: Vec<FailoverVmStatus>,
    /// The lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<LockStatus>,
    /// When the lock was taken: the budget runs from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the request ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// When the budget ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Seconds from start to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<i64>,
    /// The states passed, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<FailoverStep>,
    /// Result of the safety check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safety_check: Option<SafetyCheckStatus>,
    /// After Failed: the VMs were started again on the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<bool>,
    /// After Failed: a new request with the same target continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumable: Option<bool>,
    /// Conditions: Locked, SafetyCheckPassed, SourceStopped, RolesFlipped, TargetRunning, HooksSucceeded,
    /// Complete; Failed and Blocked when it ended so; Aborted as the answer to spec.abort.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

string_enum! {
    /// Where one VM stands in a failover.
    pub enum VmFailoverPhase {
        Pending = "Pending", Stopping = "Stopping", Stopped = "Stopped", Promoting = "Promoting",
        Promoted = "Promoted", Starting = "Starting", Running = "Running", Failed = "Failed",
    }
}

/// Progress of one VM.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailoverVmStatus {
    /// Name of the VirtualMachine.
    pub vm_name: String,
    /// Its namespace.
    pub vm_namespace: String,
    /// Phase.
    pub phase: VmFailoverPhase,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was asked to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it was seen running on the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
}

/// The Lease that locks the group.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockStatus {
    /// Name of the Lease.
    pub lease_name: String,
    /// holderIdentity: the UID of this request.
    pub holder: String,
    /// When it was acquired.
    pub acquired_at: MicroTime,
    /// Seconds after the last renewal at which others may take it.
    pub lease_duration_seconds: i32,
}

string_enum! {
    /// State of a step.
    pub enum StepState { Running = "Running", Done = "Done", Failed = "Failed" }
}

/// One state that was passed.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailoverStep {
    /// Name of the state.
    pub name: FailoverState,
    /// How it went.
    pub state: StepState,
    /// When it began.
    pub start_time: Time,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// What it did or waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Result of the safety check.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SafetyCheckStatus {
    /// When it ran last.
    pub performed_at: Time,
    /// What it looked at.
    pub scope: SafetyCheckScope,
    /// Groups that run on the target, as namespace/name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<String>,
    /// Whether `force` passed over them.
    #[serde(default)]
    pub forced: bool,
    /// What came out, in words; says so when the check was skipped because no taint is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

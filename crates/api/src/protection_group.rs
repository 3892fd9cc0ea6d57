//! ProtectionGroup: the VMs that fail over together, and the contract `desiredState` [S2].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::VmRef;
use crate::replication_group_status::RpoStatus;

/// The set of VMs that fail over as one unit. The hub holds the group in the zone namespace; each
/// workload cluster holds a mirror of the same name, whose `desiredState` the local group
/// controller carries out.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siterecovery.trilio.io",
    version = "v1alpha1",
    kind = "ProtectionGroup",
    validation = ("self.metadata.name.size() <= 63", "the name of a ProtectionGroup has at most 63 characters: it is the value of the label siterecovery.trilio.io/protection-group on what belongs to it"),
    plural = "protectiongroups",
    shortname = "pg",
    namespaced,
    status = "ProtectionGroupStatus",
    derive = "PartialEq",
    printcolumn(name = "Desired", type_ = "string", json_path = ".spec.desiredState"),
    printcolumn(name = "Current", type_ = "string", json_path = ".status.currentState"),
    printcolumn(name = "Active", type_ = "string", json_path = ".status.activeCluster"),
    printcolumn(name = "Ready-VMs", type_ = "integer", json_path = ".status.readyVMs"),
    printcolumn(name = "VMs", type_ = "integer", json_path = ".status.totalVMs"),
    printcolumn(name = "RPO", type_ = "string", json_path = ".status.rpoStatus"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ProtectionGroupSpec {
    /// Whether the VMs should run on the active cluster.
    #[serde(default = "running")]
    pub desired_state: DesiredState,
    /// Service level of the group.
    #[serde(default)]
    pub sla: Sla,
    /// The VMs of the group.
    #[schemars(length(min = 1))]
    pub members: Vec<GroupMember>,
    /// Jobs around a failover, run on the target cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Hooks>,
    /// Limits of this group's failovers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover: Option<GroupFailover>,
}

string_enum! {
    /// What the VMs of a group should do.
    pub enum DesiredState { Running = "running", Stopped = "stopped" }
}

fn running() -> DesiredState {
    DesiredState::Running
}

string_enum! {
    /// What the VMs of a group do: all run, none runs, some of each or on the way, or not known [S2].
    pub enum CurrentState { Running = "running", Stopped = "stopped", Mixed = "mixed", Unknown = "unknown" }
}

/// Service level of a group.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sla {
    /// Recovery point objective in seconds.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub rpo_target_seconds: i64,
}

/// One VM of a group: by its ProtectionRequest or by the VM itself.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("has(self.protectionRequestRef) != has(self.vmRef)", "exactly one of protectionRequestRef and vmRef must be set"))]
pub struct GroupMember {
    /// Name of a ProtectionRequest in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection_request_ref: Option<String>,
    /// The VM; resolved to its ProtectionRequest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_ref: Option<VmRef>,
    /// Lower starts first; higher stops first.
    #[serde(default)]
    #[schemars(range(min = 0, max = 99))]
    pub start_order: i32,
    /// Seconds to wait after the wave before this one runs.
    #[serde(default)]
    #[schemars(range(min = 0, max = 120))]
    pub start_delay_seconds: i32,
}

/// Jobs around a failover.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hooks {
    /// Run before the VMs are stopped on the source; a failure aborts unless told otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pre_failover: Vec<Hook>,
    /// Run after the VMs run on the target; a failure is reported and passed over unless told otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post_failover: Vec<Hook>,
}

/// One hook: a Job on the target cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Name of the hook in status and events.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Namespace of the Job on the target cluster.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// A batch/v1 JobTemplateSpec.
    #[schemars(schema_with = "crate::crds::job_template")]
    pub job_template: serde_json::Value,
    /// Seconds until the hook counts as failed.
    #[serde(default = "sixty")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: i32,
    /// What a failure does; Abort before a failover and Continue after it when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
}

fn sixty() -> i32 {
    60
}

string_enum! {
    /// What the failure of a hook does to the failover.
    pub enum OnFailure { Abort = "Abort", Continue = "Continue" }
}

/// Limits of a group's failovers.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupFailover {
    /// Seconds for the VMs to stop on the source.
    #[serde(default = "two_minutes")]
    #[schemars(range(min = 1, max = 3600))]
    pub vm_stop_timeout_seconds: i32,
}

fn two_minutes() -> i32 {
    120
}

/// What was observed of the group. On a mirror only currentState, observedGeneration, vms,
/// readyVMs, totalVMs and conditions are filled, by the local group controller.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectionGroupStatus {
    /// State of the VMs: on a mirror of this cluster, on the hub of the active cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_state: Option<CurrentState>,
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// State of each VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<GroupVmStatus>,
    /// State on each cluster (hub only).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<GroupClusterStatus>,
    /// The cluster that runs the group (hub only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_cluster: Option<String>,
    /// VMs that run.
    #[serde(default, rename = "readyVMs", skip_serializing_if = "Option::is_none")]
    pub ready_vms: Option<i32>,
    /// VMs of the group.
    #[serde(default, rename = "totalVMs", skip_serializing_if = "Option::is_none")]
    pub total_vms: Option<i32>,
    /// Replication health (hub only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpo_status: Option<RpoStatus>,
    /// Name of the ReplicationGroupStatus (hub only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_status_ref: Option<String>,
    /// Name of the last FailoverRequest that ended after it had begun to move the group (hub only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failover: Option<String>,
    /// Conditions: Synced, MembersProtected, Ready, FailoverInProgress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// State of one VM of a group.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupVmStatus {
    /// Name of the VirtualMachine.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Whether it runs.
    pub state: CurrentState,
    /// Replication in words, e.g. `UpToDate` or `Connecting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication: Option<String>,
    /// Node that it runs on or is pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// What it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// State of a group on one cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupClusterStatus {
    /// The cluster.
    pub cluster: String,
    /// State of the mirror there.
    pub current_state: CurrentState,
    /// Desired state written there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_state: Option<DesiredState>,
    /// Generation of the mirror that its status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Since when the cluster does not answer; absent while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_since: Option<Time>,
}

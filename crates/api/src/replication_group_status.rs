//! ReplicationGroupStatus: aggregated replication health of one group [S1] [S2].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::LocalRef;
use crate::drbd::{ConnectionState, DiskState, ReplicationState};

/// Aggregated replication health of one group; created with the group.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siterecovery.trilio.io",
    version = "v1alpha1",
    kind = "ReplicationGroupStatus",
    plural = "replicationgroupstatuses",
    shortname = "rgs",
    namespaced,
    status = "ReplicationGroupStatusStatus",
    derive = "PartialEq",
    printcolumn(
        name = "Group",
        type_ = "string",
        json_path = ".spec.protectionGroupRef.name"
    ),
    printcolumn(name = "RPO-Status", type_ = "string", json_path = ".status.rpoStatus"),
    printcolumn(
        name = "Current-RPO",
        type_ = "integer",
        json_path = ".status.currentRPOSeconds",
        description = "seconds"
    ),
    printcolumn(
        name = "OutOfSync",
        type_ = "integer",
        json_path = ".status.outOfSyncBytes",
        description = "bytes"
    ),
    printcolumn(
        name = "Connected",
        type_ = "integer",
        json_path = ".status.connectedVMs"
    ),
    printcolumn(name = "VMs", type_ = "integer", json_path = ".status.totalVMs"),
    printcolumn(
        name = "Last-Change",
        type_ = "date",
        json_path = ".status.lastPollTime"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ReplicationGroupStatusSpec {
    /// The group, in the same namespace.
    #[x_kube(validation = ("self == oldSelf", "spec.protectionGroupRef is immutable"))]
    pub protection_group_ref: LocalRef,
    /// Seconds between polls of both workload clusters.
    #[serde(default = "fifteen")]
    #[schemars(range(min = 5, max = 3600))]
    pub polling_interval_seconds: i32,
    /// Recovery point objective in seconds, from the group's SLA.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub rpo_objective_seconds: i64,
    /// Percentage of a non-zero objective above which the group is at risk.
    #[serde(default = "eighty")]
    #[schemars(range(min = 1, max = 100))]
    pub at_risk_percent: i32,
}

fn fifteen() -> i32 {
    15
}
fn eighty() -> i32 {
    80
}

string_enum! {
    /// Replication health against the objective.
    pub enum RpoStatus { Compliant = "Compliant", AtRisk = "AtRisk", Violated = "Violated", Unknown = "Unknown" }
}

/// What the monitor observed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicationGroupStatusStatus {
    /// Health against the objective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpo_status: Option<RpoStatus>,
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Health of each VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<VmReplication>,
    /// Greatest current RPO of the VMs in seconds.
    #[serde(
        default,
        rename = "currentRPOSeconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub current_rpo_seconds: Option<i64>,
    /// Sum of the bytes that differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_sync_bytes: Option<i64>,
    /// VMs whose volumes are all connected.
    #[serde(
        default,
        rename = "connectedVMs",
        skip_serializing_if = "Option::is_none"
    )]
    pub connected_vms: Option<i32>,
    /// VMs of the group.
    #[serde(default, rename = "totalVMs", skip_serializing_if = "Option::is_none")]
    pub total_vms: Option<i32>,
    /// When a poll last saw something else than the poll before it: the moment of the last change,
    /// not of the last look. Polls go on every `pollingIntervalSeconds` and write nothing while they
    /// see the same, so an old moment beside `Reachable=True` means a quiet world.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_poll_time: Option<Time>,
    /// Polls in a row that neither cluster answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_polls: Option<i32>,
    /// Conditions: Reachable, Healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Replication health of one VM.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmReplication {
    /// Name of the VirtualMachine.
    pub vm_name: String,
    /// Its namespace.
    pub vm_namespace: String,
    /// Bytes that differ between the sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_sync_bytes: Option<i64>,
    /// Worst connection state of its volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_state: Option<ConnectionState>,
    /// Worst replication state of its volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_state: Option<ReplicationState>,
    /// Worst disk state of the standby side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_state: Option<DiskState>,
    /// Seconds of data that would be lost now; 0 while in sync.
    #[serde(
        default,
        rename = "currentRPOSeconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub current_rpo_seconds: Option<i64>,
    /// Last moment at which the sides were seen equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_in_sync_time: Option<Time>,
}

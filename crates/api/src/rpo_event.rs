//! RPOEvent: immutable record of a change of replication health [S1] [S2].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::replication_group_status::RpoStatus;

/// Immutable record of one transition of a ReplicationGroupStatus.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siterecovery.trilio.io",
    version = "v1alpha1",
    kind = "RPOEvent",
    plural = "rpoevents",
    shortname = "rpoe",
    namespaced,
    derive = "PartialEq",
    printcolumn(name = "Group", type_ = "string", json_path = ".spec.protectionGroup"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.eventType"),
    printcolumn(name = "From", type_ = "string", json_path = ".spec.previousStatus"),
    printcolumn(name = "To", type_ = "string", json_path = ".spec.newStatus"),
    printcolumn(
        name = "RPO",
        type_ = "integer",
        json_path = ".spec.currentRPOSeconds",
        description = "seconds"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".spec.timestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("self == oldSelf", "RPOEvent is immutable"))]
pub struct RPOEventSpec {
    /// Name of the group.
    pub protection_group: String,
    /// Name of the ReplicationGroupStatus.
    pub replication_group_status: String,
    /// Status before.
    pub previous_status: RpoStatus,
    /// Status after.
    pub new_status: RpoStatus,
    /// What the transition means.
    pub event_type: RpoEventType,
    /// When it was seen.
    pub timestamp: Time,
    /// RPO at that moment in seconds.
    #[serde(
        default,
        rename = "currentRPOSeconds",
        skip_serializing_if = "Option::is_none"
    )]
    pub current_rpo_seconds: Option<i64>,
    /// Objective at that moment in seconds.
    pub rpo_objective_seconds: i64,
    /// Bytes that differed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_sync_bytes: Option<i64>,
    /// VMs not in sync, as namespace/name.
    #[serde(default, rename = "affectedVMs", skip_serializing_if = "Vec::is_empty")]
    pub affected_vms: Vec<String>,
    /// One sentence.
    pub message: String,
}

string_enum! {
    /// Meaning of a transition.
    pub enum RpoEventType {
        RPOViolated = "RPOViolated", RPOAtRisk = "RPOAtRisk", RPORecovered = "RPORecovered",
        ReplicationLost = "ReplicationLost", ReplicationRestored = "ReplicationRestored",
    }
}

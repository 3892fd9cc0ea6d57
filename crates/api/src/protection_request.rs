//! ProtectionRequest: puts one KubeVirt VM under replication [S1] [S2].

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::drbd::{ConnectionState, DiskState, Protocol, protocol_c};
use crate::{LocalRef, VmRef};

/// Puts one KubeVirt VM under replication.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siterecovery.trilio.io",
    version = "v1alpha1",
    kind = "ProtectionRequest",
    validation = ("self.metadata.name.size() <= 63", "the name of a ProtectionRequest has at most 63 characters: it is the value of the label siterecovery.trilio.io/protection-request on what belongs to it"),
    plural = "protectionrequests",
    shortname = "pr",
    shortname = "protect",
    namespaced,
    status = "ProtectionRequestStatus",
    derive = "PartialEq",
    printcolumn(name = "VM", type_ = "string", json_path = ".spec.vmName"),
    printcolumn(
        name = "VM-Namespace",
        type_ = "string",
        json_path = ".spec.vmNamespace"
    ),
    printcolumn(name = "Source", type_ = "string", json_path = ".spec.sourceCluster"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Synced%", type_ = "integer", json_path = ".status.syncPercent"),
    printcolumn(
        name = "Node-Source",
        type_ = "string",
        json_path = ".status.sourceNode"
    ),
    printcolumn(
        name = "Node-Target",
        type_ = "string",
        json_path = ".status.targetNode"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ProtectionRequestSpec {
    /// Name of the VirtualMachine; it must exist on the source cluster.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = ("self == oldSelf", "spec.vmName and spec.vmNamespace are immutable"))]
    pub vm_name: String,
    /// Namespace of the VirtualMachine.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = ("self == oldSelf", "spec.vmName and spec.vmNamespace are immutable"))]
    pub vm_namespace: String,
    /// The cluster that runs the VM. This one field is the role flip: a failover changes it [S1].
    #[schemars(length(min = 1, max = 63))]
    pub source_cluster: String,
    /// Replication protocol; A is not supported yet.
    #[serde(default = "protocol_c")]
    #[x_kube(validation = ("self == oldSelf", "spec.replicationProtocol is immutable"))]
    pub replication_protocol: Protocol,
    /// Recovery point objective in seconds; 0 with protocol C.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub rpo: i64,
    /// Policy to use; today the default policy governs whatever stands here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_policy_ref: Option<LocalRef>,
    /// Offline stops the VM for the whole initial sync; Online only while its volumes are swapped.
    #[serde(default = "offline")]
    #[x_kube(validation = ("self == oldSelf", "spec.syncMode is immutable"))]
    pub sync_mode: SyncMode,
    /// Suspends replication and keeps its metadata.
    #[serde(default)]
    pub paused: bool,
    /// Hints for the first binding to nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementHint>,
}

string_enum! {
    /// How the VM comes under replication.
    pub enum SyncMode { Offline = "Offline", Online = "Online" }
}

fn offline() -> SyncMode {
    SyncMode::Offline
}

/// Hints for the first binding to nodes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementHint {
    /// Node on the cluster that runs the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_node: Option<String>,
    /// Node on the other cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_node: Option<String>,
}

string_enum! {
    /// Phase of a ProtectionRequest; the first five in this order [S1].
    pub enum ProtectionPhase {
        Pending = "Pending", Validating = "Validating", CreatingDRBD = "CreatingDRBD", Syncing = "Syncing",
        Protected = "Protected", Degraded = "Degraded", FailingOver = "FailingOver",
        Unprotecting = "Unprotecting", Failed = "Failed",
    }
}

/// What the protection reconciler observed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectionRequestStatus {
    /// Phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ProtectionPhase>,
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The zone cluster that is not the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_cluster: Option<String>,
    /// Name of the DRBDResource on both clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drbd_resource_name: Option<String>,
    /// The replicated disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<ProtectedVolume>,
    /// Least progress over the volumes, 0 to 100; 100 only when all are in sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_percent: Option<i32>,
    /// Since when, or until when, all volumes were in sync: the last such moment that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_in_sync_time: Option<Time>,
    /// Pinned node by cluster.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, String>,
    /// Pinned node on the source, for listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_node: Option<String>,
    /// Pinned node on the target, for listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_node: Option<String>,
    /// Raised at each role flip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_epoch: Option<i64>,
    /// Conditions: Validated, DRBDCreated, Synced, Protected, Connected, SplitBrain, StandbyInStep;
    /// only while they have something to say: PolicyIgnored, ResizeIgnored, Unprotected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// One replicated disk.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectedVolume {
    /// Name of the volume in the VM.
    pub name: String,
    /// The PVC that backs it on both sides.
    pub pvc: String,
    /// Size in bytes.
    pub size_bytes: i64,
    /// DRBD port, 7000 to 8000; allocated once and kept.
    pub port: i32,
    /// Progress, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_percent: Option<i32>,
    /// Bytes that differ between the sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_sync_bytes: Option<i64>,
    /// State of the connection as the source sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_state: Option<ConnectionState>,
    /// Disk state of each side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_state: Option<DiskStates>,
}

/// Disk state of each side.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskStates {
    /// On the source cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<DiskState>,
    /// On the target cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<DiskState>,
}

impl ProtectionRequest {
    /// The VM that this request protects.
    pub fn vm(&self) -> VmRef {
        VmRef {
            namespace: self.spec.vm_namespace.clone(),
            name: self.spec.vm_name.clone(),
        }
    }
}

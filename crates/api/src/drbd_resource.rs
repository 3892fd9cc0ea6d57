//! DRBDResource: replication of one VM's disks, one object on each workload cluster [S1].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::LocalRef;
use crate::drbd::{ConnectionState, DiskState, Protocol, ReplicationState, Role, protocol_c};
use crate::replication_policy::{NetOptions, ResyncRate};

/// Replication of one VM's disks on this cluster. Created by the manager on both workload
/// clusters, bound to a node by the workload control plane, carried out by that node's agent.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siterecovery.trilio.io",
    version = "v1alpha1",
    kind = "DRBDResource",
    plural = "drbdresources",
    shortname = "drbdr",
    namespaced,
    status = "DRBDResourceStatus",
    derive = "PartialEq",
    printcolumn(name = "VM", type_ = "string", json_path = ".spec.vmRef.name"),
    printcolumn(name = "Role", type_ = "string", json_path = ".status.role"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(
        name = "Connection",
        type_ = "string",
        json_path = ".status.connectionState"
    ),
    printcolumn(name = "Disk", type_ = "string", json_path = ".status.diskState"),
    printcolumn(
        name = "OOS",
        type_ = "integer",
        json_path = ".status.outOfSyncBytes",
        description = "bytes out of sync"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ("!has(oldSelf.nodeName) || has(self.nodeName)", "spec.nodeName is immutable once set"))]
pub struct DRBDResourceSpec {
    /// Node that holds the disks; empty until bound, then fixed for life [S1].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = ("self == oldSelf", "spec.nodeName is immutable once set"))]
    pub node_name: Option<String>,
    /// Preferred node for the first binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_hint: Option<String>,
    /// The VirtualMachine, in the same namespace.
    #[x_kube(validation = ("self == oldSelf", "spec.vmRef is immutable"))]
    pub vm_ref: LocalRef,
    /// Name of the zone.
    pub zone: String,
    /// Name of this cluster in the zone.
    pub cluster: String,
    /// Name of the other cluster in the zone.
    pub peer_cluster: String,
    /// Role that this side shall have.
    pub role: Role,
    /// Raised with each change of roles; the agent refuses a role older than the one it has seen.
    #[schemars(range(min = 1))]
    pub role_epoch: i64,
    /// Whether the data of this side is the source of the first full sync. Set once at protection
    /// on the cluster that ran the VM; irrelevant as soon as metadata exists.
    #[serde(default)]
    pub initial_source: bool,
    /// Replication protocol.
    #[serde(default = "protocol_c")]
    pub protocol: Protocol,
    /// The replicated disks.
    #[schemars(length(min = 1, max = 15))]
    pub volumes: Vec<DRBDVolumeSpec>,
    /// The other side, filled by the manager once that side is bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Endpoint>,
    /// This side, filled by placement: the node's name and replication address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<Endpoint>,
    /// Network parameters, from the policy.
    #[serde(default)]
    pub net: NetOptions,
    /// Resynchronisation speed, from the policy.
    #[serde(default)]
    pub resync_rate: ResyncRate,
    /// Suspends replication and keeps its metadata.
    #[serde(default)]
    pub paused: bool,
}

/// One side of the replication.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Node.
    pub node_name: String,
    /// IP address that it replicates over.
    pub address: String,
}

/// One replicated disk.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DRBDVolumeSpec {
    /// Index, 0 to 14.
    #[schemars(range(min = 0, max = 14))]
    pub index: i32,
    /// Name of the volume in the VM.
    pub name: String,
    /// The PVC that backs it, of this name on both sides.
    pub pvc_name: String,
    /// Storage class of the PVC on this side.
    pub storage_class: String,
    /// Size in bytes, the same on both sides.
    #[schemars(range(min = 1))]
    pub size_bytes: i64,
    /// Volume mode of the PVC: Block or Filesystem.
    #[serde(default = "block")]
    pub volume_mode: VolumeMode,
    /// TCP port of this volume's DRBD connection.
    #[schemars(range(min = 7000, max = 8000))]
    pub port: i32,
}

string_enum! {
    /// Volume mode of a PVC.
    pub enum VolumeMode { Block = "Block", Filesystem = "Filesystem" }
}

fn block() -> VolumeMode {
    VolumeMode::Block
}

string_enum! {
    /// Phase of a DRBDResource.
    pub enum DRBDResourcePhase {
        Pending = "Pending", Bound = "Bound", Provisioning = "Provisioning", Up = "Up", Syncing = "Syncing",
        Ready = "Ready", Degraded = "Degraded", Deleting = "Deleting", Failed = "Failed",
    }
}

/// What placement and the node agent observed. Placement owns `anchorPod`, `volumes[].backingReady`
/// is told by its conditions NodeBound, BackingReady and MetadataReady; the agent owns the rest.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DRBDResourceStatus {
    /// Phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DRBDResourcePhase>,
    /// Generation of the spec that this status speaks of (agent).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Role seen on the node: Primary only when every volume is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Epoch of the role that the agent last carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role_epoch: Option<i64>,
    /// Worst connection state of the volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_state: Option<ConnectionState>,
    /// Worst disk state of the volumes on this side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_state: Option<DiskState>,
    /// Sum of the bytes that differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_sync_bytes: Option<i64>,
    /// State of each volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<DRBDVolumeStatusEntry>,
    /// Name of the pod that keeps the volumes attached to the node (placement).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor_pod: Option<String>,
    /// When the agent last saw a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change_time: Option<Time>,
    /// Whether the kernel reported split brain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_brain: Option<bool>,
    /// What it waits for, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Conditions: NodeBound, BackingReady, MetadataReady (placement); ConfigWritten, Up, Connected,
    /// UpToDate, FrontendReady (agent).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// State of one volume.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DRBDVolumeStatusEntry {
    /// Index, as in spec.
    pub index: i32,
    /// DRBD minor number.
    pub minor: i32,
    /// Role of this volume.
    pub role: Role,
    /// State of its connection.
    pub connection_state: ConnectionState,
    /// Disk state on this side.
    pub disk_state: DiskState,
    /// Disk state of the peer as seen from here.
    pub peer_disk_state: DiskState,
    /// Replication state.
    pub replication_state: ReplicationState,
    /// Bytes that differ.
    pub out_of_sync_bytes: i64,
    /// Progress of a sync, 0 to 100.
    pub sync_percent: i32,
    /// The PVC that the VM uses.
    #[serde(
        default,
        rename = "frontendPVC",
        skip_serializing_if = "Option::is_none"
    )]
    pub frontend_pvc: Option<String>,
    /// The PVC of DRBD's metadata.
    #[serde(
        default,
        rename = "metadataPVC",
        skip_serializing_if = "Option::is_none"
    )]
    pub metadata_pvc: Option<String>,
    /// The PVC of the data.
    #[serde(
        default,
        rename = "backingPVC",
        skip_serializing_if = "Option::is_none"
    )]
    pub backing_pvc: Option<String>,
}

//! DRBDVolume: the older, per-PVC view of replication [S2]; a projection of the DRBDResource pair.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::LocalRef;
use crate::drbd::ConnectionState;

/// One replicated PVC. `status.phase: Synced` reports the first full sync and gates the swap of the
/// VM onto the replicated disk.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drbd.io",
    version = "v1alpha1",
    kind = "DRBDVolume",
    plural = "drbdvolumes",
    shortname = "dv",
    namespaced,
    status = "DRBDVolumeStatus",
    derive = "PartialEq",
    printcolumn(name = "PVC", type_ = "string", json_path = ".spec.pvcName"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Synced%", type_ = "integer", json_path = ".status.syncPercent"),
    printcolumn(
        name = "Connection",
        type_ = "string",
        json_path = ".status.connectionState"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct DRBDVolumeSpec {
    /// The per-VM object on the workload clusters.
    pub drbd_resource_ref: LocalRef,
    /// Index of the volume in it.
    #[schemars(range(min = 0, max = 14))]
    pub volume_index: i32,
    /// The PVC.
    pub pvc_name: String,
    /// Namespace of the PVC on the workload clusters.
    pub namespace: String,
    /// Size in bytes.
    pub size_bytes: i64,
}

string_enum! {
    /// Phase of a DRBDVolume; `Synced` is the report of full sync.
    pub enum DRBDVolumePhase {
        Pending = "Pending", Provisioning = "Provisioning", Syncing = "Syncing", Synced = "Synced",
        Degraded = "Degraded", Failed = "Failed",
    }
}

/// What was observed of the volume.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DRBDVolumeStatus {
    /// Phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DRBDVolumePhase>,
    /// Progress, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync_percent: Option<i32>,
    /// State of the connection as the source sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_state: Option<ConnectionState>,
    /// The PVC that the VM uses.
    #[serde(
        default,
        rename = "frontendPVC",
        skip_serializing_if = "Option::is_none"
    )]
    pub frontend_pvc: Option<String>,
    /// Conditions: `Synced`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

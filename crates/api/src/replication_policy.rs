//! DRBDReplicationPolicy: DRBD parameters and storage mapping of a zone [S1].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::LocalRef;
use crate::drbd::{Protocol, protocol_c};

/// The DRBD parameters and storage mapping used when a VM is protected. Only the policy with
/// `isDefault: true` of the request's namespace is consulted.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siterecovery.trilio.io",
    version = "v1alpha1",
    kind = "DRBDReplicationPolicy",
    plural = "drbdreplicationpolicies",
    shortname = "drp",
    shortname = "policy",
    namespaced,
    status = "DRBDReplicationPolicyStatus",
    derive = "PartialEq",
    printcolumn(name = "Default", type_ = "boolean", json_path = ".spec.isDefault"),
    printcolumn(name = "Protocol", type_ = "string", json_path = ".spec.protocol"),
    printcolumn(name = "InUse", type_ = "integer", json_path = ".status.inUseBy"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct DRBDReplicationPolicySpec {
    /// Whether this is the policy that governs its namespace.
    #[serde(default)]
    pub is_default: bool,
    /// Replication protocol; A is admitted here and refused at the ProtectionRequest.
    #[serde(default = "protocol_c")]
    pub protocol: Protocol,
    /// Storage class on the standby side for each class of the VM's volumes. Without any mapping a
    /// class maps to the class of the same name; with mappings every class must be covered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub storage_class_mappings: Vec<StorageClassMapping>,
    /// Speed of resynchronisation.
    #[serde(default)]
    pub resync_rate: ResyncRate,
    /// Network parameters of DRBD.
    #[serde(default)]
    pub net: NetOptions,
    /// Behaviour options of DRBD.
    #[serde(default)]
    pub options: ResourceOptions,
    /// What to do when both sides wrote while apart.
    #[serde(default)]
    pub split_brain: SplitBrainOptions,
    /// Where DRBD keeps its metadata.
    #[serde(default)]
    pub metadata: MetadataOptions,
}

impl Default for DRBDReplicationPolicySpec {
    fn default() -> Self {
        Self {
            is_default: false,
            protocol: Protocol::C,
            storage_class_mappings: Vec::new(),
            resync_rate: ResyncRate::default(),
            net: NetOptions::default(),
            options: ResourceOptions::default(),
            split_brain: SplitBrainOptions::default(),
            metadata: MetadataOptions::default(),
        }
    }
}

/// Maps a storage class to its counterpart on the other side.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StorageClassMapping {
    /// Class of the VM's volume.
    #[schemars(length(min = 1))]
    pub source: String,
    /// Class of the standby volume.
    #[schemars(length(min = 1))]
    pub target: String,
}

/// Speed of resynchronisation in KiB per second.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResyncRate {
    /// Least rate under load.
    #[serde(default = "min_rate", rename = "minKiBps")]
    #[schemars(range(min = 0))]
    pub min_kibps: i64,
    /// Greatest rate; 0 is unlimited.
    #[serde(default, rename = "maxKiBps")]
    #[schemars(range(min = 0))]
    pub max_kibps: i64,
}

fn min_rate() -> i64 {
    4096
}

impl Default for ResyncRate {
    fn default() -> Self {
        Self {
            min_kibps: min_rate(),
            max_kibps: 0,
        }
    }
}

/// Network parameters; defaults are DRBD's own.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetOptions {
    /// Seconds between keep-alive packets on an idle link.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 120))]
    pub ping_interval_seconds: i32,
    /// Tenths of a second to wait for an answer to one.
    #[serde(default = "five")]
    #[schemars(range(min = 1, max = 300))]
    pub ping_timeout_tenths: i32,
    /// Seconds between attempts to connect.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = 120))]
    pub connect_interval_seconds: i32,
    /// Tenths of a second without an answer after which the peer counts as dead.
    #[serde(default = "sixty")]
    #[schemars(range(min = 1, max = 600))]
    pub timeout_tenths: i32,
    /// Checksum of online verification.
    #[serde(default = "crc32c")]
    pub verify_algorithm: String,
    /// Checksum of checksum-based resynchronisation.
    #[serde(default = "crc32c")]
    pub csums_algorithm: String,
    /// Secret with the shared secret of the peers; generated for each DRBDResource when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_secret_ref: Option<LocalRef>,
}

fn ten() -> i32 {
    10
}
fn five() -> i32 {
    5
}
fn sixty() -> i32 {
    60
}
fn crc32c() -> String {
    "crc32c".into()
}

impl Default for NetOptions {
    fn default() -> Self {
        Self {
            ping_interval_seconds: ten(),
            ping_timeout_tenths: five(),
            connect_interval_seconds: ten(),
            timeout_tenths: sixty(),
            verify_algorithm: crc32c(),
            csums_algorithm: crc32c(),
            shared_secret_ref: None,
        }
    }
}

string_enum! {
    /// What DRBD does with I/O when it loses quorum.
    pub enum OnNoQuorum { SuspendIo = "suspend-io", IoError = "io-error" }
}

/// Behaviour options of DRBD.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOptions {
    /// I/O without quorum.
    #[serde(default = "suspend_io")]
    pub on_no_quorum: OnNoQuorum,
}

fn suspend_io() -> OnNoQuorum {
    OnNoQuorum::SuspendIo
}

impl Default for ResourceOptions {
    fn default() -> Self {
        Self {
            on_no_quorum: suspend_io(),
        }
    }
}

string_enum! {
    /// How split brain is resolved.
    pub enum SplitBrainPolicy { Manual = "Manual", DiscardOldPrimary = "DiscardOldPrimary" }
}

/// What to do when both sides wrote while apart.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitBrainOptions {
    /// Who decides.
    #[serde(default = "manual")]
    pub policy: SplitBrainPolicy,
}

fn manual() -> SplitBrainPolicy {
    SplitBrainPolicy::Manual
}

impl Default for SplitBrainOptions {
    fn default() -> Self {
        Self { policy: manual() }
    }
}

string_enum! {
    /// Where DRBD keeps its metadata: on a separate PVC.
    pub enum MetadataPlacement { External = "External" }
}

/// Where DRBD keeps its metadata.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetadataOptions {
    /// Placement.
    #[serde(default = "external")]
    pub placement: MetadataPlacement,
}

fn external() -> MetadataPlacement {
    MetadataPlacement::External
}

impl Default for MetadataOptions {
    fn default() -> Self {
        Self {
            placement: external(),
        }
    }
}

/// Use of the policy.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DRBDReplicationPolicyStatus {
    /// ProtectionRequests that it governs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use_by: Option<i32>,
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions: `Accepted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

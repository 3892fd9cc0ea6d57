//! TestFailover: isolated copies of a group's VMs on the standby side [S1]. The kind is served;
//! this version does not carry it out, and says so in its conditions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::LocalRef;
use crate::failover_request::FailoverVmStatus;
use crate::protection_group::Hook;

/// Starts isolated copies of a group's VMs from snapshots on the standby side without touching
/// production.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siterecovery.trilio.io",
    version = "v1alpha1",
    kind = "TestFailover",
    validation = ("self.metadata.name.size() <= 63", "the name of a TestFailover has at most 63 characters: it is the value of the label siterecovery.trilio.io/test-failover on what belongs to it"),
    plural = "testfailovers",
    shortname = "tf",
    namespaced,
    status = "TestFailoverStatus",
    derive = "PartialEq",
    printcolumn(
        name = "Group",
        type_ = "string",
        json_path = ".spec.protectionGroupRef.name"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Namespace",
        type_ = "string",
        json_path = ".status.testNamespace"
    ),
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expiryTime"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TestFailoverSpec {
    /// The group, in the same namespace.
    pub protection_group_ref: LocalRef,
    /// The cluster to test on; the standby when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_cluster: Option<String>,
    /// Names of the VMs to test; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vm_names: Vec<String>,
    /// Whether the copies must be cut off from the network.
    #[serde(default = "isolated")]
    pub network_isolation: NetworkIsolation,
    /// Seconds until the test is cleaned up by itself.
    #[serde(default = "one_hour")]
    #[schemars(range(min = 60, max = 604800))]
    pub ttl_seconds: i32,
    /// Ends the test.
    #[serde(default)]
    pub cleanup: bool,
    /// Whether the copies are started.
    #[serde(default = "yes", rename = "startVMs")]
    pub start_vms: bool,
    /// Jobs that verify the copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<TestHooks>,
}

fn isolated() -> NetworkIsolation {
    NetworkIsolation::Isolated
}
fn one_hour() -> i32 {
    3600
}
fn yes() -> bool {
    true
}

string_enum! {
    /// Isolation of test VMs.
    pub enum NetworkIsolation { Isolated = "Isolated", None = "None" }
}

/// Jobs that verify the copies.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TestHooks {
    /// Run inside the test namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verify: Vec<Hook>,
}

string_enum! {
    /// Phase of a test.
    pub enum TestPhase {
        Pending = "Pending", Snapshotting = "Snapshotting", Provisioning = "Provisioning", Starting = "Starting",
        Running = "Running", Verifying = "Verifying", CleaningUp = "CleaningUp", Completed = "Completed", Failed = "Failed",
    }
}

string_enum! {
    /// Whether isolation is enforced.
    pub enum Isolation { Enforced = "Enforced", NotEnforced = "NotEnforced" }
}

/// Progress of a test.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestFailoverStatus {
    /// Phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<TestPhase>,
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Generated namespace of the copies; never user-provided [S1].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_namespace: Option<String>,
    /// Progress of each VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vm_statuses: Vec<FailoverVmStatus>,
    /// Names of the snapshots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<String>,
    /// Whether isolation is enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// When the test began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it is cleaned up by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry_time: Option<Time>,
    /// Conditions: Complete, Failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

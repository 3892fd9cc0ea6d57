//! ProtectionZone: one disaster-recovery domain of two workload clusters under one manager [S1].

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::replication_policy::DRBDReplicationPolicySpec;

/// Declares one DR domain: exactly two workload clusters under this hub. Creating it provisions
/// the control planes on all three.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "siterecovery.trilio.io",
    version = "v1alpha1",
    kind = "ProtectionZone",
    validation = ("self.metadata.name.size() <= 60 && !self.metadata.name.contains('.')", "the name of a ProtectionZone has at most 60 characters and no dot: its namespace is named dr-<name>, which is a DNS label of at most 63"),
    plural = "protectionzones",
    shortname = "pz",
    shortname = "zone",
    namespaced,
    status = "ProtectionZoneStatus",
    derive = "PartialEq",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Validated",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"ClustersValidated\")].status"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Clusters",
        type_ = "string",
        json_path = ".status.clusterNames"
    ),
    printcolumn(name = "VMs", type_ = "integer", json_path = ".status.protectedVMs"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ProtectionZoneSpec {
    /// The two workload clusters. Exactly two, with no override.
    #[schemars(length(min = 2, max = 2))]
    #[x_kube(
        validation = ("self.all(x, self.exists_one(y, y.name == x.name))", "spec.clusters: cluster names must be unique"),
        validation = ("self.map(c, c.name) == oldSelf.map(c, c.name)", "spec.clusters: names and order of clusters are immutable"),
    )]
    pub clusters: Vec<ZoneCluster>,
    /// TCP ports for DRBD, one for each replicated volume, both ends included.
    #[serde(default)]
    pub ports: PortRange,
    /// Seeds the default DRBDReplicationPolicy when it is first created; ignored later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_policy: Option<DRBDReplicationPolicySpec>,
    /// Limits of a failover in this zone.
    #[serde(default)]
    pub failover: ZoneFailover,
    /// Features that are off by default, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    /// Stops reconciliation of this zone.
    #[serde(default)]
    pub paused: bool,
}

/// One workload cluster of a zone.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ZoneCluster {
    /// Name used by `sourceCluster` and `targetCluster`; a DNS-1123 label.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// The Secret of the zone namespace that holds this cluster's kubeconfig.
    pub kubeconfig_secret_ref: SecretKeyRef,
    /// Operating system family of the nodes; selects the image that loads the DRBD module.
    #[serde(default = "Distribution::default_value")]
    pub distribution_name: Distribution,
    /// Network that carries replication; the node's InternalIP when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_network: Option<ReplicationNetwork>,
}

/// A key of a Secret in the same namespace.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret's data.
    #[serde(default = "default_key")]
    #[schemars(length(min = 1))]
    pub key: String,
}

fn default_key() -> String {
    crate::meta::KUBECONFIG_KEY.into()
}

string_enum! {
    /// Operating system family of a cluster's nodes.
    pub enum Distribution { RhelCoreOs9 = "RHEL-CoreOS-9", RhelCoreOs10 = "RHEL-CoreOS-10" }
}

impl Distribution {
    fn default_value() -> Self {
        Self::RhelCoreOs9
    }
}

/// The network that node agents replicate over.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicationNetwork {
    /// CIDR; the agent takes the node's address inside it.
    pub cidr: String,
}

/// A range of TCP ports, both ends included.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[x_kube(validation = ("self.start < self.end", "spec.ports: start must be below end"))]
pub struct PortRange {
    /// First port.
    #[serde(default = "first_port")]
    #[schemars(range(min = 7000, max = 8000))]
    pub start: i32,
    /// Last port; 8000 is inside the documented range [S1].
    #[serde(default = "last_port")]
    #[schemars(range(min = 7000, max = 8000))]
    pub end: i32,
}

fn first_port() -> i32 {
    7000
}
fn last_port() -> i32 {
    8000
}

impl Default for PortRange {
    fn default() -> Self {
        Self {
            start: first_port(),
            end: last_port(),
        }
    }
}

/// Limits of a failover.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ZoneFailover {
    /// Wall-clock budget of a failover in seconds, hooks included [S1].
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 60, max = 3600))]
    pub budget_seconds: i32,
    /// Expiry of the failover Lease in seconds [S2].
    #[serde(default = "five_minutes")]
    #[schemars(range(min = 60, max = 3600))]
    pub lock_lease_seconds: i32,
    /// Which other groups the safety check looks at before taints are removed.
    #[serde(default = "SafetyCheckScope::default_value")]
    pub safety_check_scope: SafetyCheckScope,
}

fn five_minutes() -> i32 {
    300
}

impl Default for ZoneFailover {
    fn default() -> Self {
        Self {
            budget_seconds: 300,
            lock_lease_seconds: 300,
            safety_check_scope: SafetyCheckScope::Namespace,
        }
    }
}

string_enum! {
    /// Scope of the safety check: groups of the zone's namespace, of the whole target cluster, or
    /// only those pinned to the nodes that would lose a taint.
    pub enum SafetyCheckScope { Namespace = "Namespace", Cluster = "Cluster", Node = "Node" }
}

impl SafetyCheckScope {
    fn default_value() -> Self {
        Self::Namespace
    }
}

string_enum! {
    /// Summary of a zone.
    pub enum ZonePhase {
        Pending = "Pending", Validating = "Validating", Claiming = "Claiming", Deploying = "Deploying",
        Ready = "Ready", Degraded = "Degraded", Failed = "Failed", Deleting = "Deleting",
    }
}

/// What the zone controller observed.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectionZoneStatus {
    /// Summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ZonePhase>,
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Names of the clusters, joined by a comma, for listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_names: Option<String>,
    /// Result of the probes of each cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ZoneClusterStatus>,
    /// ProtectionRequests of this zone.
    #[serde(
        default,
        rename = "protectedVMs",
        skip_serializing_if = "Option::is_none"
    )]
    pub protected_vms: Option<i32>,
    /// DRBD ports taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports_in_use: Option<i32>,
    /// Credentials in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<CredentialStatus>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Result of the probes of one cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ZoneClusterStatus {
    /// Name of the cluster.
    pub name: String,
    /// Whether its API server answered the last probe.
    #[serde(default)]
    pub reachable: bool,
    /// Version of its API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_version: Option<String>,
    /// Whether KubeVirt serves its API there, as group/version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubevirt_version: Option<String>,
    /// UID of the cluster's kube-system namespace: its identity.
    #[serde(
        default,
        rename = "clusterUID",
        skip_serializing_if = "Option::is_none"
    )]
    pub cluster_uid: Option<String>,
    /// Whether the exclusivity annotations carry this zone.
    #[serde(default)]
    pub lease_held: bool,
    /// Ready nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_ready: Option<i32>,
    /// All nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_total: Option<i32>,
    /// When the answer of the probe last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// What is wrong, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// One kubeconfig Secret in use.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CredentialStatus {
    /// Cluster that it opens.
    pub cluster: String,
    /// resourceVersion of the Secret whose content is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_resource_version: Option<String>,
    /// When the credential expires, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Time>,
}

//! Provisioning of a ProtectionZone [S1]: probe both clusters, claim them, install what runs on
//! them, and only then call them validated.
//!
//! A zone's status tells what this very cycle did, so the decision comes in two halves: [`plan`]
//! says from what was seen which steps are to be taken, [`conclude`] says from what the steps gave
//! what stands in the status. [`removal`] is the way back.

pub mod conclude;
pub mod permissions;
pub mod plan;
pub mod probe;
pub mod removal;
pub mod rollout;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::ProtectionZone;
use farshore_api::conditions::zone as conditions;
use farshore_api::meta::{WORKLOAD_NAMESPACE, ZONE_NAMESPACE_PREFIX, annotations};
use farshore_api::zone::ZonePhase;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

pub use conclude::{Conclusion, conclude};
pub use plan::plan;
pub use probe::Facts;
pub use removal::remove;

/// How often a healthy zone is looked at: manual changes to what it owns last no longer.
pub const CYCLE: Duration = Duration::from_secs(60);
/// How often a roll-out that is waited for is looked at.
pub const ROLLOUT_LOOK: Duration = Duration::from_secs(5);
/// First and last pause of a zone that fails; the pause doubles in between.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Pause before the next try of something that has been failing for so long: as long again, which
/// doubles it from try to try, within 10 s and 5 min.
pub fn backoff(failing_for: Duration) -> Duration {
    failing_for.clamp(BACKOFF.0, BACKOFF.1)
}

/// Where something of the zone runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Site {
    /// The cluster of the zone controller.
    Hub,
    /// A workload cluster, by its name in the zone.
    Cluster(String),
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hub => f.write_str("the hub"),
            Self::Cluster(name) => write!(f, "cluster {name}"),
        }
    }
}

impl Site {
    /// `kubectl` for this site, in commands for the reader.
    pub fn kubectl(&self) -> String {
        match self {
            Self::Hub => "kubectl".into(),
            Self::Cluster(name) => format!("kubectl --context {name}"),
        }
    }
}

/// Whose the exclusivity claim on a workload cluster is: two annotations on the product's
/// namespace there [S1].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Claim {
    /// Nobody's.
    Free,
    /// Ours.
    Held,
    /// Somebody else's.
    Foreign {
        /// Zone that the annotation names.
        zone: String,
        /// UID of that zone's namespace; empty when the annotation is missing.
        namespace_uid: String,
    },
    /// The namespace is being deleted: nothing can be claimed until it is gone.
    Terminating,
}

/// Reads the claim off the annotations of the product's namespace. The namespace UID decides;
/// a zone name without one is somebody's all the same.
pub fn claim(
    namespace_annotations: &BTreeMap<String, String>,
    terminating: bool,
    namespace_uid: &str,
) -> Claim {
    let value = |key: &str| {
        namespace_annotations
            .get(key)
            .map(String::as_str)
            .unwrap_or_default()
    };
    let (zone, uid) = (
        value(annotations::OWNER_ZONE),
        value(annotations::OWNER_ZONE_NAMESPACE_UID),
    );
    match (uid, zone) {
        ("", "") if terminating => Claim::Terminating,
        ("", "") => Claim::Free,
        (uid, _) if uid == namespace_uid && terminating => Claim::Terminating,
        (uid, _) if uid == namespace_uid => Claim::Held,
        (uid, zone) => Claim::Foreign {
            zone: zone.into(),
            namespace_uid: uid.into(),
        },
    }
}

/// What is wrong with a cluster or with the zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Reason of the condition.
    pub reason: String,
    /// What is the matter, as a clause: by which object the zone is blocked.
    pub by: String,
    /// What the reader can do: a command.
    pub command: String,
}

impl Fault {
    /// Whether nothing is known of the cluster, as opposed to knowing that it is not usable.
    pub fn is_unknown(&self) -> bool {
        self.reason == conditions::CLUSTER_UNREACHABLE
    }
}

/// A workload cluster as it was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Name in the zone.
    pub name: String,
    /// resourceVersion of the Secret that was read.
    pub secret_resource_version: Option<String>,
    /// When its credential expires, where that can be told.
    pub not_after: Option<Time>,
    /// What the probes found, or why they did not pass.
    pub probe: Result<Facts, Fault>,
}

/// All that the decision needs.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The zone.
    pub zone: ProtectionZone,
    /// UID of its namespace.
    pub namespace_uid: String,
    /// UID of the hub's kube-system namespace.
    pub hub_uid: String,
    /// The zone that has this namespace already, if another has.
    pub rival: Option<String>,
    /// ProtectionRequests of the namespace.
    pub requests: usize,
    /// DRBD ports that they take.
    pub ports: usize,
    /// The clusters in the order of the spec.
    pub clusters: Vec<Cluster>,
}

impl Observed {
    pub(crate) fn name(&self) -> &str {
        self.zone.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> &str {
        self.zone.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Whether stacks of this zone may be running: from here on it is degraded, not failed, by
    /// trouble, and what works is kept working.
    pub fn deployed(&self) -> bool {
        self.validated()
            || self
                .zone
                .status
                .as_ref()
                .and_then(|s| s.phase)
                .is_some_and(|phase| {
                    matches!(
                        phase,
                        ZonePhase::Deploying | ZonePhase::Ready | ZonePhase::Degraded
                    )
                })
    }

    /// Whether the zone was called validated before.
    pub(crate) fn validated(&self) -> bool {
        self.zone.status.as_ref().is_some_and(|s| {
            crate::conditions::is_true(&s.conditions, conditions::CLUSTERS_VALIDATED)
        })
    }

    /// What stops the zone as a whole: its namespace, or clusters that are one and the same.
    pub(crate) fn zone_fault(&self) -> Option<Fault> {
        namespace_fault(self.namespace(), self.name(), self.rival.as_deref())
            .or_else(|| self.same_cluster())
    }

    /// The command that gives a cluster another kubeconfig, with what it does.
    fn new_kubeconfig_command(&self, cluster: &str) -> String {
        let mut all = self.zone.spec.clusters.iter();
        let secret = all
            .find(|c| c.name == cluster)
            .map(|c| &c.kubeconfig_secret_ref);
        let (name, key) = secret.map_or(("", "kubeconfig"), |s| (&s.name, &s.key));
        format!(
            "Put the kubeconfig of another cluster into its Secret with: kubectl -n {} create secret generic {name} --from-file={key}=<file> --dry-run=client -o yaml | kubectl apply -f -",
            self.namespace()
        )
    }

    fn same_cluster(&self) -> Option<Fault> {
        let mut seen = vec![("the hub".to_owned(), self.hub_uid.as_str())];
        for cluster in &self.clusters {
            let Ok(facts) = &cluster.probe else { continue };
            if let Some((other, _)) = seen.iter().find(|(_, uid)| *uid == facts.uid) {
                return Some(Fault {
                    reason: conditions::SAME_CLUSTER.into(),
                    by: format!(
                        "cluster {} and {other} are the same cluster (its Namespace kube-system has the UID {})",
                        cluster.name, facts.uid
                    ),
                    command: self.new_kubeconfig_command(&cluster.name),
                });
            }
            seen.push((format!("cluster {}", cluster.name), &facts.uid));
        }
        None
    }
}

/// A zone lives in a namespace named `dr-<name>` and shares it with no other zone.
pub fn namespace_fault(namespace: &str, zone: &str, rival: Option<&str>) -> Option<Fault> {
    let fault = |by: String, command: String| Fault {
        reason: conditions::NAMESPACE_NOT_USABLE.into(),
        by,
        command,
    };
    let named = namespace
        .strip_prefix(ZONE_NAMESPACE_PREFIX)
        .is_some_and(|rest| !rest.is_empty());
    if !named {
        return Some(fault(
            format!(
                "a ProtectionZone must be created in a namespace named dr-<name>, not in {namespace}"
            ),
            format!(
                "Create a namespace for it, and the zone there, with: kubectl create namespace {ZONE_NAMESPACE_PREFIX}{zone}"
            ),
        ));
    }
    rival.map(|rival| {
        fault(
            format!("namespace {namespace} already contains ProtectionZone {rival}"),
            format!("Delete this zone with: kubectl -n {namespace} delete protectionzone {zone}"),
        )
    })
}

/// Of several zones in a namespace, the one that has it: the oldest, then the first by name.
pub fn holder<'a>(
    zones: impl IntoIterator<Item = &'a ProtectionZone>,
) -> Option<&'a ProtectionZone> {
    zones.into_iter().min_by_key(|zone| {
        (
            zone.metadata
                .creation_timestamp
                .as_ref()
                .map(|t| t.0)
                .unwrap_or(Timestamp::MAX),
            zone.metadata.name.clone(),
        )
    })
}

/// The command that frees a cluster from a claim whose owner is gone for good.
pub(crate) fn free_command(cluster: &str) -> String {
    format!(
        "kubectl --context {cluster} annotate namespace {WORKLOAD_NAMESPACE} {}- {}-",
        annotations::OWNER_ZONE,
        annotations::OWNER_ZONE_NAMESPACE_UID
    )
}

/// A step towards a provisioned zone. Steps are taken in order; each may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Claim these clusters, one after the other; when one turns out to be taken, give back those
    /// claimed in this step.
    Claim(Vec<String>),
    /// Give back our claim on a cluster.
    GiveBack(String),
    /// Apply the CustomResourceDefinitions.
    ApplyCrds(Site),
    /// Install or update the site's stack and look how far it has come.
    Deploy(Site),
    /// Create the default policy, if there is none.
    CreatePolicy,
}

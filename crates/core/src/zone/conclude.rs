//! What stands in a zone's status, from what was seen and what the steps gave.

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::conditions::zone as types;
use farshore_api::meta::WORKLOAD_NAMESPACE;
use farshore_api::names;
use farshore_api::zone::{CredentialStatus, ProtectionZoneStatus, ZoneClusterStatus, ZonePhase};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::{CYCLE, Claim, Fault, Observed, ROLLOUT_LOOK, Site, free_command};
use crate::conditions::{self, Truth};
use crate::words::{self, Wait};
use crate::{Note, status_differs};

/// What applying the CustomResourceDefinitions to a site gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Crds {
    /// Applied; these differed from what they shall be and were put back.
    Applied(Vec<String>),
    /// Not applied, or not all.
    Failed(String),
}

/// How far the stack of a site has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stack {
    /// Installed and running.
    Running,
    /// Installed; what its roll-out waits for.
    Pending(Vec<String>),
    /// Not installed, or not wholly.
    Failed(String),
}

/// State of the default policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Policy {
    /// There, and the default.
    Ready,
    /// There, but `isDefault` is false.
    NotDefault,
    /// Not created.
    Failed(String),
}

/// What the steps gave; what was not tried is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outcomes {
    /// Claims as they were found when they were to be written, by cluster; an error is in words.
    pub claims: BTreeMap<String, Result<Claim, String>>,
    /// CustomResourceDefinitions by site.
    #[serde(with = "pairs")]
    pub crds: BTreeMap<Site, Crds>,
    /// Stacks by site.
    #[serde(with = "pairs")]
    pub stacks: BTreeMap<Site, Stack>,
    /// Default policy.
    pub policy: Option<Policy>,
}

/// A map by site as a list of pairs: a site is no string.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Site;

    pub fn serialize<T: Serialize, S: Serializer>(
        map: &BTreeMap<Site, T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(serializer)
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<Site, T>, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}

/// What follows from a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct Conclusion {
    /// The status.
    pub status: ProtectionZoneStatus,
    /// What a person should hear.
    pub notes: Vec<Note>,
    /// When to look again; `None` lets the caller's backoff decide, since the zone is failing for
    /// the reason in the status.
    pub again: Option<Duration>,
}

/// The status of a zone that is neither deleted nor paused.
pub fn conclude(observed: &Observed, outcomes: &Outcomes, now: Timestamp) -> Conclusion {
    Writer::new(observed, outcomes, now).conclude()
}

/// The status of a paused zone: nothing of it was looked at.
pub fn paused(observed: &Observed, now: Timestamp) -> Conclusion {
    let zone = observed.name();
    let namespace = observed.namespace();
    let mut status = observed.zone.status.clone().unwrap_or_default();
    status.observed_generation = observed.zone.metadata.generation;
    let message = format!(
        "ProtectionZone {namespace}/{zone} is not reconciled, not even when it is deleted, because spec.paused is true. It goes on when that is changed: kubectl -n {namespace} patch protectionzone {zone} --type=merge -p '{{\"spec\":{{\"paused\":false}}}}'"
    );
    let before = ready_reason(&status);
    conditions::set(
        &mut status.conditions,
        types::READY,
        Truth::False,
        types::PAUSED,
        message.as_str(),
        status.observed_generation,
        now,
    );
    let notes = if before.as_deref() == Some(types::PAUSED) {
        Vec::new()
    } else {
        vec![Note::normal(types::PAUSED, message)]
    };
    Conclusion {
        status,
        notes,
        again: Some(CYCLE),
    }
}

fn ready_reason(status: &ProtectionZoneStatus) -> Option<String> {
    conditions::get(&status.conditions, types::READY).map(|c| c.reason.clone())
}

/// The status before anything is claimed: it records which clusters are about to be touched, so
/// that a removal later knows them even if this process dies now.
pub fn claiming(observed: &Observed, now: Timestamp) -> ProtectionZoneStatus {
    let mut status = Writer::new(observed, &Outcomes::default(), now).facts();
    if !observed.deployed() {
        status.phase = Some(ZonePhase::Claiming);
    }
    status
}

/// The status of a zone that was never looked at.
pub fn beginning(observed_generation: Option<i64>, cluster_names: &[&str]) -> ProtectionZoneStatus {
    ProtectionZoneStatus {
        phase: Some(ZonePhase::Validating),
        observed_generation,
        cluster_names: Some(cluster_names.join(",")),
        ..ProtectionZoneStatus::default()
    }
}

struct Writer<'a> {
    observed: &'a Observed,
    outcomes: &'a Outcomes,
    now: Timestamp,
    old: ProtectionZoneStatus,
}

/// A condition to be set.
struct Says {
    truth: Truth,
    reason: String,
    message: String,
}

impl Says {
    fn new(truth: Truth, reason: &str, message: impl Into<String>) -> Self {
        Self {
            truth,
            reason: reason.into(),
            message: message.into(),
        }
    }
}

impl<'a> Writer<'a> {
    fn new(observed: &'a Observed, outcomes: &'a Outcomes, now: Timestamp) -> Self {
        Self {
            observed,
            outcomes,
            now,
            old: observed.zone.status.clone().unwrap_or_default(),
        }
    }

    fn conclude(self) -> Conclusion {
        let faults = self.faults();
        // Unknown is not absent: an unreachable cluster takes nothing back that was found before.
        let kept = self.observed.validated() && faults.iter().all(Fault::is_unknown);
        let fault = faults.iter().find(|f| !f.is_unknown()).or(faults.first());

        let workloads: Vec<Site> = self
            .observed
            .clusters
            .iter()
            .map(|c| Site::Cluster(c.name.clone()))
            .collect();
        // A zone in a namespace that it cannot use is not looked at any further.
        let parts = if workloads.is_empty() {
            Vec::new()
        } else {
            vec![
                (types::LEASES_HELD, self.leases()),
                (types::CRDS_APPLIED, self.crds()),
                (types::MANAGER_DEPLOYED, self.stack(&[Site::Hub])),
                (types::WORKLOADS_DEPLOYED, self.stack(&workloads)),
                (types::DEFAULT_POLICY_READY, self.policy()),
            ]
        };

        let unfinished = parts.iter().find(|(_, says)| says.truth != Truth::True);
        let complete = fault.is_none() && unfinished.is_none();
        let validated = complete || kept || (self.observed.validated() && fault.is_none());
        let says_validated = if validated {
            Says::new(Truth::True, types::VALIDATED, self.validated_message())
        } else {
            match (fault, unfinished) {
                (Some(fault), _) => Says::new(
                    Truth::False,
                    &fault.reason,
                    self.fault_message(&faults, fault),
                ),
                (None, Some((type_, says))) => Says::new(
                    Truth::False,
                    &says.reason,
                    format!("{type_} is not True yet: {}", says.message),
                ),
                (None, None) => Says::new(Truth::True, types::VALIDATED, self.validated_message()),
            }
        };
        let ready = match (fault, unfinished) {
            (Some(fault), _) => Says::new(
                Truth::False,
                &fault.reason,
                self.fault_message(&faults, fault),
            ),
            (None, Some((type_, says))) => Says::new(
                Truth::False,
                &says.reason,
                format!("{type_} is not True: {}", says.message),
            ),
            (None, None) => Says::new(
                Truth::True,
                types::READY,
                "both clusters are claimed, provisioned and running",
            ),
        };

        let mut status = self.facts();
        status.phase = Some(
            match (complete, self.observed.deployed(), fault.is_some()) {
                (true, _, _) => ZonePhase::Ready,
                (false, true, false) if !validated => ZonePhase::Deploying,
                (false, true, _) => ZonePhase::Degraded,
                (false, false, true) => ZonePhase::Failed,
                (false, false, false) if self.claims_held() => ZonePhase::Deploying,
                (false, false, false) => ZonePhase::Claiming,
            },
        );
        let mut notes = self.notes(&says_validated, &ready);
        let all = std::iter::once((types::CLUSTERS_VALIDATED, says_validated))
            .chain(parts)
            .chain([(types::READY, ready)]);
        for (type_, says) in all {
            conditions::set(
                &mut status.conditions,
                type_,
                says.truth,
                says.reason,
                says.message,
                status.observed_generation,
                self.now,
            );
        }
        notes.extend(self.reverted());
        let pending = self
            .outcomes
            .stacks
            .values()
            .any(|s| matches!(s, Stack::Pending(_)));
        let failed = fault.is_some()
            || self
                .outcomes
                .stacks
                .values()
                .any(|s| matches!(s, Stack::Failed(_)))
            || self
                .outcomes
                .crds
                .values()
                .any(|c| matches!(c, Crds::Failed(_)));
        let again = match (complete, failed, pending) {
            (true, _, _) => Some(CYCLE),
            (false, false, true) => Some(ROLLOUT_LOOK),
            _ => None,
        };
        Conclusion {
            status,
            notes,
            again,
        }
    }

    /// All that is wrong, the zone itself first, then the clusters in their order.
    fn faults(&self) -> Vec<Fault> {
        if let Some(fault) = self.observed.zone_fault() {
            return vec![fault];
        }
        let mut faults = Vec::new();
        for cluster in &self.observed.clusters {
            match (&cluster.probe, self.claim(&cluster.name)) {
                (Err(fault), _) => faults.push(fault.clone()),
                (
                    Ok(_),
                    Some(Claim::Foreign {
                        zone,
                        namespace_uid,
                    }),
                ) => {
                    faults.push(claimed(&cluster.name, &zone, &namespace_uid));
                }
                (Ok(_), _) => {}
            }
        }
        faults
    }

    /// The claim on a cluster as last seen in this cycle.
    fn claim(&self, cluster: &str) -> Option<Claim> {
        if let Some(Ok(claim)) = self.outcomes.claims.get(cluster) {
            return Some(claim.clone());
        }
        let seen = self.observed.clusters.iter().find(|c| c.name == cluster)?;
        seen.probe.as_ref().ok().map(|facts| facts.claim.clone())
    }

    fn claims_held(&self) -> bool {
        self.observed
            .clusters
            .iter()
            .all(|c| self.claim(&c.name) == Some(Claim::Held))
    }

    /// Status without phase and conditions of this cycle: what the clusters are.
    fn facts(&self) -> ProtectionZoneStatus {
        let count = |n: usize| Some(i32::try_from(n).unwrap_or(i32::MAX));
        let spec = &self.observed.zone.spec.clusters;
        let mut status = ProtectionZoneStatus {
            observed_generation: self.observed.zone.metadata.generation,
            cluster_names: Some(
                spec.iter()
                    .map(|c| c.name.as_str())
                    .collect::<Vec<_>>()
                    .join(","),
            ),
            protected_vms: count(self.observed.requests),
            ports_in_use: count(self.observed.ports),
            clusters: Vec::new(),
            credentials: Vec::new(),
            ..self.old.clone()
        };
        for cluster in &self.observed.clusters {
            let before = self.old.clusters.iter().find(|c| c.name == cluster.name);
            let lease_held = self.claim(&cluster.name).map(|c| c == Claim::Held);
            let mut entry = match &cluster.probe {
                Ok(facts) => ZoneClusterStatus {
                    name: cluster.name.clone(),
                    reachable: true,
                    server_version: Some(facts.server_version.clone()),
                    kubevirt_version: Some(facts.kubevirt.clone()),
                    cluster_uid: Some(facts.uid.clone()),
                    nodes_ready: Some(facts.nodes_ready),
                    nodes_total: Some(facts.nodes_total),
                    lease_held: lease_held.unwrap_or(false),
                    ..ZoneClusterStatus::default()
                },
                Err(fault) => ZoneClusterStatus {
                    name: cluster.name.clone(),
                    reachable: !fault.is_unknown() && !unread(fault),
                    message: Some(fault.by.clone()),
                    ..before.cloned().unwrap_or_default()
                },
            };
            let same = before.is_some_and(|before| !status_differs(before, &entry));
            entry.last_probe_time = before
                .filter(|_| same)
                .and_then(|b| b.last_probe_time.clone())
                .or_else(|| Some(Time(second(self.now))));
            status.clusters.push(entry);
            status.credentials.push(CredentialStatus {
                cluster: cluster.name.clone(),
                secret_resource_version: cluster.secret_resource_version.clone(),
                not_after: cluster.not_after.clone(),
            });
        }
        status
    }

    fn leases(&self) -> Says {
        for cluster in &self.observed.clusters {
            let name = &cluster.name;
            if let Some(Err(why)) = self.outcomes.claims.get(name) {
                return Says::new(
                    Truth::False,
                    "ClaimFailed",
                    format!(
                        "the claim on cluster {name} was not written: {why}. It is tried again"
                    ),
                );
            }
            match self.claim(name) {
                Some(Claim::Held) => {}
                Some(Claim::Free) => {
                    return Says::new(
                        Truth::False,
                        "NotClaimed",
                        format!("cluster {name} is not claimed yet"),
                    );
                }
                Some(Claim::Terminating) => {
                    return Says::new(
                        Truth::False,
                        "NamespaceTerminating",
                        format!(
                            "cluster {name} cannot be claimed while its Namespace {WORKLOAD_NAMESPACE} is being deleted. It is looked at again within 5 min. Look with: kubectl --context {name} get namespace {WORKLOAD_NAMESPACE} -o yaml"
                        ),
                    );
                }
                Some(Claim::Foreign { zone, .. }) => {
                    return Says::new(
                        Truth::False,
                        types::CLUSTER_ALREADY_CLAIMED,
                        format!("cluster {name} is claimed by ProtectionZone {zone}"),
                    );
                }
                None => return self.unseen(name),
            }
        }
        Says::new(
            Truth::True,
            "Held",
            format!("Namespace {WORKLOAD_NAMESPACE} of both clusters carries this zone's claim"),
        )
    }

    /// Nothing is known of a cluster in this cycle.
    fn unseen(&self, cluster: &str) -> Says {
        let fault = self
            .observed
            .clusters
            .iter()
            .find(|c| c.name == cluster)
            .and_then(|c| c.probe.as_ref().err());
        let reason = fault.map_or(types::CLUSTER_UNREACHABLE, |f| f.reason.as_str());
        Says::new(
            Truth::Unknown,
            reason,
            format!("cluster {cluster} could not be looked at; whatever runs there was left alone"),
        )
    }

    fn crds(&self) -> Says {
        let mut sites = vec![Site::Hub];
        sites.extend(
            self.observed
                .clusters
                .iter()
                .map(|c| Site::Cluster(c.name.clone())),
        );
        for site in &sites {
            match self.outcomes.crds.get(site) {
                Some(Crds::Applied(_)) => {}
                Some(Crds::Failed(why)) => {
                    return Says::new(
                        Truth::False,
                        "ApplyFailed",
                        format!(
                            "CustomResourceDefinitions of {site}: {why}. They are applied again"
                        ),
                    );
                }
                None => return self.untried(site),
            }
        }
        Says::new(
            Truth::True,
            "Applied",
            "the CustomResourceDefinitions of all three clusters are as this version ships them",
        )
    }

    fn untried(&self, site: &Site) -> Says {
        match site {
            Site::Cluster(name)
                if self
                    .observed
                    .clusters
                    .iter()
                    .any(|c| c.name == *name && c.probe.is_err()) =>
            {
                self.unseen(name)
            }
            Site::Cluster(_) => Says::new(
                Truth::False,
                "Waiting",
                format!(
                    "nothing was done on {site}: it must be usable and claimed by this zone first"
                ),
            ),
            Site::Hub => Says::new(
                Truth::False,
                "Waiting",
                "nothing was done on the hub: both clusters must be usable and claimed first",
            ),
        }
    }

    fn stack(&self, sites: &[Site]) -> Says {
        let mut waiting = Vec::new();
        for site in sites {
            match self.outcomes.stacks.get(site) {
                Some(Stack::Running) => {}
                Some(Stack::Pending(what)) => {
                    waiting.extend(what.iter().map(|w| format!("{w} ({site})")))
                }
                Some(Stack::Failed(why)) => {
                    return Says::new(
                        Truth::False,
                        types::HELM_INSTALL_FAILED,
                        format!("the stack of {site} is not installed: {why}. It is tried again"),
                    );
                }
                None => return self.untried(site),
            }
        }
        if waiting.is_empty() {
            return Says::new(Truth::True, "Deployed", "installed and running");
        }
        let first = sites
            .iter()
            .find(|site| matches!(self.outcomes.stacks.get(site), Some(Stack::Pending(_))));
        let command = first.map(|site| {
            let namespace = if *site == Site::Hub {
                self.observed.namespace()
            } else {
                WORKLOAD_NAMESPACE
            };
            format!(
                "{} -n {namespace} get deployments,daemonsets,pods",
                site.kubectl()
            )
        });
        Says::new(
            Truth::False,
            types::ROLLOUT_PENDING,
            format!(
                "the roll-out is waited for: {}. It is looked at again every {} s. Look with: {}",
                words::list(&waiting),
                ROLLOUT_LOOK.as_secs(),
                command.unwrap_or_default()
            ),
        )
    }

    fn policy(&self) -> Says {
        let name = names::default_policy(self.observed.name());
        let namespace = self.observed.namespace();
        match &self.outcomes.policy {
            Some(Policy::Ready) => Says::new(
                Truth::True,
                "Ready",
                format!("DRBDReplicationPolicy {name} is the default"),
            ),
            Some(Policy::NotDefault) => Says::new(
                Truth::False,
                "NotDefault",
                format!(
                    "DRBDReplicationPolicy {namespace}/{name} has isDefault false, so nothing governs new ProtectionRequests. It is looked at again within 5 min. Change it with: kubectl -n {namespace} patch drbdreplicationpolicy {name} --type=merge -p '{{\"spec\":{{\"isDefault\":true}}}}'"
                ),
            ),
            Some(Policy::Failed(why)) => Says::new(
                Truth::False,
                "CreateFailed",
                format!(
                    "DRBDReplicationPolicy {namespace}/{name} was not created: {why}. It is tried again"
                ),
            ),
            None => self.untried(&Site::Hub),
        }
    }

    fn validated_message(&self) -> String {
        "both clusters passed all probes and are claimed, the stacks are installed and the default policy is there".into()
    }

    fn fault_message(&self, faults: &[Fault], first: &Fault) -> String {
        let zone = self.observed.name();
        let known: Vec<&str> = std::iter::once(first)
            .chain(faults.iter().filter(|f| *f != first))
            .map(|f| f.by.as_str())
            .collect();
        let since =
            conditions::get(&self.old.conditions, types::READY).filter(|c| c.status == "False");
        let since = words::moment(since.map_or(self.now, |c| c.last_transition_time.0));
        Wait {
            // The moment stands here: behind a list of causes it would seem to belong to the last.
            what: format!("ProtectionZone {}/{zone} is not ready since {since}", self.observed.namespace()),
            by: known.join("; "),
            since: None,
            next: "It is tried again within 5 min, and at once when the zone, its kubeconfig Secrets or the claim change; nothing is taken down",
            command: first.command.clone(),
        }
        .to_string()
    }

    /// Tells of transitions only.
    fn notes(&self, validated: &Says, ready: &Says) -> Vec<Note> {
        let mut notes = Vec::new();
        for (type_, says) in [
            (types::CLUSTERS_VALIDATED, validated),
            (types::READY, ready),
        ] {
            let before = conditions::get(&self.old.conditions, type_);
            let changed =
                before.is_none_or(|c| c.status != says.truth.as_str() || c.reason != says.reason);
            let fresh = !notes.iter().any(|n: &Note| n.reason == says.reason);
            if changed && fresh {
                let waits = says.reason == types::ROLLOUT_PENDING;
                notes.push(Note {
                    warning: says.truth != Truth::True && !waits,
                    reason: says.reason.clone(),
                    message: says.message.clone(),
                });
            }
        }
        notes
    }

    fn reverted(&self) -> Vec<Note> {
        let told = self.outcomes.crds.iter().filter_map(|(site, crds)| match crds {
            Crds::Applied(names) if !names.is_empty() => Some(Note::warning(
                "CRDReverted",
                format!(
                    "{} of {site} differed from what this version ships and was put back: {}. Change the product's version, not its definitions",
                    words::count(names.len(), "CustomResourceDefinition"),
                    words::list(names)
                ),
            )),
            _ => None,
        });
        told.collect()
    }
}

/// Whether the cluster was not even asked.
fn unread(fault: &Fault) -> bool {
    [
        types::KUBECONFIG_SECRET_NOT_FOUND,
        types::KUBECONFIG_INVALID,
    ]
    .contains(&fault.reason.as_str())
}

fn claimed(cluster: &str, zone: &str, namespace_uid: &str) -> Fault {
    let owner = match (zone, namespace_uid) {
        ("", uid) => format!("a zone whose namespace has the UID {uid}"),
        (zone, "") => format!("ProtectionZone {zone}, which left no namespace UID"),
        (zone, uid) => format!("ProtectionZone {zone} (its namespace has the UID {uid})"),
    };
    Fault {
        reason: types::CLUSTER_ALREADY_CLAIMED.into(),
        by: format!(
            "cluster {cluster} is claimed by {owner}; a claim is never taken over. Delete that zone on its hub or, when it is gone for good, remove the claim: {}",
            free_command(cluster)
        ),
        command: format!("kubectl --context {cluster} get namespace {WORKLOAD_NAMESPACE} -o yaml"),
    }
}

fn second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

//! What every phase needs to know of the observed world, found once.

use farshore_api::conditions::request as condition;
use farshore_api::meta::{annotations, labels};
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::{DRBDReplicationPolicy, ProtectionZone, VmRef, names};
use jiff::Timestamp;

use super::{Decision, Observed, SETTLED, Side, WAITING, policy, since, zone_refusal};
use crate::conditions::{self, Truth};
use crate::words::{self, Wait};

/// The observed world, seen from its source cluster.
pub(crate) struct Scene<'a> {
    pub seen: &'a Observed,
    pub now: Timestamp,
    pub zone: &'a ProtectionZone,
    pub zone_name: &'a str,
    pub request: &'a str,
    pub vm: VmRef,
    /// Name of the DRBDResource.
    pub resource: String,
    /// Cluster that `spec.sourceCluster` names.
    pub source: &'a str,
    /// The other one.
    pub target: &'a str,
    pub s: &'a Side,
    pub t: &'a Side,
    pub policy: Option<&'a DRBDReplicationPolicy>,
}

/// Why nothing can be decided.
pub(crate) struct Unfit {
    reason: &'static str,
    message: String,
    /// The request itself is wrong, not the moment.
    refused: bool,
}

impl<'a> Scene<'a> {
    pub fn new(seen: &'a Observed, now: Timestamp) -> Result<Self, Unfit> {
        let past_validation = seen
            .request
            .status
            .as_ref()
            .is_some_and(|s| !s.volumes.is_empty());
        let request = seen.request.metadata.name.as_deref().unwrap_or_default();
        if !names::fits_label(request) {
            return Err(Unfit {
                reason: condition::NAME_TOO_LONG,
                message: format!(
                    "the name of this ProtectionRequest has {} characters and may have {}: it is the value of the label {} on everything that protection makes. Nothing was changed; delete this request and create it anew with a shorter name",
                    request.len(),
                    names::LABEL_LIMIT,
                    labels::PROTECTION_REQUEST
                ),
                refused: true,
            });
        }
        let Some(zone) = &seen.zone else {
            return Err(Unfit {
                reason: condition::ZONE_NOT_VALIDATED,
                message: "there is no ProtectionZone in this namespace; create one, or wait until it is back".into(),
                refused: false,
            });
        };
        if let Some(message) = zone_refusal(zone).filter(|_| !past_validation) {
            return Err(Unfit {
                reason: condition::ZONE_NOT_VALIDATED,
                message,
                refused: false,
            });
        }
        let zone_name = zone.metadata.name.as_deref().unwrap_or_default();
        let source = seen.request.spec.source_cluster.as_str();
        let clusters: Vec<&str> = zone.spec.clusters.iter().map(|c| c.name.as_str()).collect();
        let target = clusters.iter().find(|c| **c != source).copied();
        let (Some(target), true) = (target, clusters.contains(&source)) else {
            return Err(Unfit {
                reason: condition::UNKNOWN_CLUSTER,
                message: format!(
                    "spec.sourceCluster \"{source}\" is not a cluster of ProtectionZone {zone_name}; set it to {}",
                    clusters.join(" or ")
                ),
                refused: true,
            });
        };
        let (Some(s), Some(t)) = (seen.sides.get(source), seen.sides.get(target)) else {
            return Err(Unfit {
                reason: condition::CLUSTER_UNREACHABLE,
                message: format!("clusters {source} and {target} were not looked at"),
                refused: false,
            });
        };
        let vm = seen.request.vm();
        Ok(Self {
            seen,
            now,
            zone,
            zone_name,
            request,
            resource: names::drbd_resource(&seen.zone_namespace_uid, &vm),
            vm,
            source,
            target,
            s,
            t,
            policy: policy::governing(&seen.policies, zone, &seen.request),
        })
    }

    /// Value of the annotation `protected-by` on the VMs of this request.
    pub fn owner(&self) -> String {
        format!("{}/{}", self.zone_name, self.request)
    }

    /// Labels of everything that this request creates.
    pub fn labels(&self) -> std::collections::BTreeMap<String, String> {
        std::collections::BTreeMap::from([
            (labels::ZONE.to_string(), self.zone_name.to_string()),
            (
                labels::PROTECTION_REQUEST.to_string(),
                self.request.to_string(),
            ),
        ])
    }

    /// The first cluster of which something is not known, with why.
    pub fn unknown(&self) -> Option<(&'a str, &'a str)> {
        let source = self.s.unknown().map(|why| (self.source, why));
        source.or_else(|| self.t.unknown().map(|why| (self.target, why)))
    }

    /// Whether deletion keeps what was made on the standby side.
    pub fn keeps_standby(&self) -> bool {
        let all = self.seen.request.metadata.annotations.as_ref();
        all.and_then(|a| a.get(annotations::KEEP_STANDBY))
            .is_some_and(|v| v == "true")
    }

    /// Sets a condition of the status.
    pub fn set(
        &self,
        decision: &mut Decision,
        type_: &str,
        truth: Truth,
        reason: &str,
        message: impl Into<String>,
    ) {
        let generation = self.seen.request.metadata.generation;
        let all = &mut decision.status.conditions;
        conditions::set(all, type_, truth, reason, message, generation, self.now);
    }

    /// Sets a condition to a wait that is told in five parts.
    pub fn wait(
        &self,
        decision: &mut Decision,
        (type_, truth, reason): (&str, Truth, &str),
        mut told: Wait,
    ) {
        told.since = Some(since(&decision.status.conditions, type_, truth, self.now));
        let message = match &self.seen.trouble {
            Some(trouble) => format!("{told} The last attempt failed: {trouble}"),
            None => told.to_string(),
        };
        self.set(decision, type_, truth, reason, message);
    }

    /// Namespace of the request.
    pub fn namespace(&self) -> &'a str {
        let namespace = &self.seen.request.metadata.namespace;
        namespace.as_deref().unwrap_or_default()
    }

    /// Command that shows this request.
    pub fn look(&self) -> String {
        let namespace = self.namespace();
        format!(
            "kubectl -n {namespace} describe protectionrequest {}",
            self.request
        )
    }

    /// Command that shows the DRBDResource of a cluster.
    pub fn look_at_resource(&self, cluster: &str) -> String {
        format!(
            "kubectl --context {cluster} -n {} describe drbdresource {}",
            self.vm.namespace, self.resource
        )
    }

    /// Command that shows the VM of a cluster.
    pub fn look_at_vm(&self, cluster: &str) -> String {
        format!(
            "kubectl --context {cluster} -n {} get vm,vmi {}",
            self.vm.namespace, self.vm.name
        )
    }

    /// The wait for a cluster that does not answer.
    pub fn unreachable(&self, what: String, cluster: &str, why: &str) -> Wait<'static> {
        Wait {
            what,
            by: words::silent(cluster, why),
            since: None,
            next: "It goes on as soon as the cluster answers; nothing there is taken for gone meanwhile",
            command: words::look_at_silent(cluster, why),
        }
    }
}

impl Unfit {
    /// Puts it in the status. A request that is past validation keeps its phase.
    pub fn report(
        self,
        decision: &mut Decision,
        phase: ProtectionPhase,
        seen: &Observed,
        now: Timestamp,
    ) {
        let truth = if self.refused {
            Truth::False
        } else {
            Truth::Unknown
        };
        let generation = seen.request.metadata.generation;
        let all = &mut decision.status.conditions;
        if seen.request.metadata.deletion_timestamp.is_some() {
            let message = format!("the removal of this request stands still: {}", self.message);
            conditions::set(
                all,
                condition::UNPROTECTED,
                Truth::False,
                self.reason,
                message,
                generation,
                now,
            );
        }
        conditions::set(
            all,
            condition::VALIDATED,
            truth,
            self.reason,
            self.message,
            generation,
            now,
        );
        // Even a request that is refused at once is seen to pass through Validating; one that only
        // waits has not failed.
        decision.status.phase = Some(match phase {
            ProtectionPhase::Pending if self.refused => ProtectionPhase::Validating,
            ProtectionPhase::Validating if self.refused => ProtectionPhase::Failed,
            ProtectionPhase::Failed if !self.refused => ProtectionPhase::Validating,
            phase => phase,
        });
        not_protected(decision, generation, now);
        decision.requeue = Some(if self.refused { SETTLED } else { WAITING });
    }
}

/// Says that a request of which nothing is created yet protects nothing, in the words of its phase.
pub(crate) fn not_protected(decision: &mut Decision, generation: Option<i64>, now: Timestamp) {
    let (reason, message) = match decision.status.phase {
        Some(ProtectionPhase::Pending | ProtectionPhase::Validating) => (
            "Validating",
            "it has not been checked yet whether the VM can be protected; the condition Validated says why",
        ),
        Some(ProtectionPhase::Failed) => (
            "ValidationFailed",
            "the VM cannot be protected like this; the condition Validated says why",
        ),
        Some(ProtectionPhase::CreatingDRBD) => (
            "InProgress",
            "its disks are about to be replicated; the condition DRBDCreated says how far that is",
        ),
        _ => return,
    };
    conditions::set(
        &mut decision.status.conditions,
        condition::PROTECTED,
        Truth::False,
        reason,
        message,
        generation,
        now,
    );
}

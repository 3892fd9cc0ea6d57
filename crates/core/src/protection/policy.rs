//! Which DRBDReplicationPolicy governs: the default one of the namespace, whatever a request names
//! [S1]; and what each policy's status says.

use std::collections::BTreeMap;

use farshore_api::conditions::{policy as condition, request as told};
use farshore_api::protection_request::ProtectionRequestStatus;
use farshore_api::replication_policy::DRBDReplicationPolicyStatus;
use farshore_api::{DRBDReplicationPolicy, ProtectionRequest, ProtectionZone, names};
use jiff::Timestamp;

use crate::conditions::{self, Truth};

/// Feature gate: a request's own policy governs it.
const CUSTOM_POLICY: &str = "CustomReplicationPolicy";

/// The default policy of a namespace: `<zone>-default` if it is one, else the oldest default.
pub fn default_of<'a>(
    policies: &'a [DRBDReplicationPolicy],
    zone: &str,
) -> Option<&'a DRBDReplicationPolicy> {
    let name = |p: &DRBDReplicationPolicy| p.metadata.name.clone().unwrap_or_default();
    policies
        .iter()
        .filter(|p| p.spec.is_default)
        .min_by_key(|p| {
            let created = p.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (name(p) != names::default_policy(zone), created, name(p))
        })
}

/// The policy whose parameters a request gets.
pub(crate) fn governing<'a>(
    policies: &'a [DRBDReplicationPolicy],
    zone: &ProtectionZone,
    of: &ProtectionRequest,
) -> Option<&'a DRBDReplicationPolicy> {
    let zone_name = zone.metadata.name.as_deref().unwrap_or_default();
    let own = of
        .spec
        .replication_policy_ref
        .as_ref()
        .filter(|_| gate(zone, CUSTOM_POLICY));
    match own {
        Some(own) => policies
            .iter()
            .find(|p| p.metadata.name.as_deref() == Some(&own.name)),
        None => default_of(policies, zone_name),
    }
}

/// Whether a feature of the zone is switched on.
pub(crate) fn gate(zone: &ProtectionZone, name: &str) -> bool {
    zone.spec.feature_gates.get(name).copied().unwrap_or(false)
}

/// Tells a request that names a policy other than the governing one.
pub(crate) fn report(
    request: &ProtectionRequest,
    governing: Option<&DRBDReplicationPolicy>,
    status: &mut ProtectionRequestStatus,
    now: Timestamp,
) {
    let named = request
        .spec
        .replication_policy_ref
        .as_ref()
        .map(|r| r.name.as_str());
    let governing = governing.and_then(|p| p.metadata.name.as_deref());
    match (named, governing) {
        (Some(named), Some(governing)) if named != governing => conditions::set(
            &mut status.conditions,
            told::POLICY_IGNORED,
            Truth::True,
            "DefaultPolicyGoverns",
            format!(
                "spec.replicationPolicyRef names DRBDReplicationPolicy {named}, which is not the default: the parameters of {governing} are used"
            ),
            request.metadata.generation,
            now,
        ),
        _ => conditions::remove(&mut status.conditions, told::POLICY_IGNORED),
    }
}

/// The status of every policy of a namespace with this many requests, by name.
pub fn statuses(
    policies: &[DRBDReplicationPolicy],
    requests: usize,
    zone: &str,
    now: Timestamp,
) -> BTreeMap<String, DRBDReplicationPolicyStatus> {
    let default = default_of(policies, zone).and_then(|p| p.metadata.name.clone());
    let status = |policy: &DRBDReplicationPolicy| {
        let name = policy.metadata.name.clone().unwrap_or_default();
        let mut status = policy.status.clone().unwrap_or_default();
        let governs = default.as_deref() == Some(&name);
        status.in_use_by = Some(if governs {
            i32::try_from(requests).unwrap_or(i32::MAX)
        } else {
            0
        });
        status.observed_generation = policy.metadata.generation;
        let (truth, reason, message) = match &default {
            Some(default) if policy.spec.is_default && !governs => {
                let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
                let text = format!(
                    "namespace {namespace} already has a default DRBDReplicationPolicy {default}"
                );
                (Truth::False, "DefaultExists", text)
            }
            _ if governs => (
                Truth::True,
                "Governs",
                "it governs every ProtectionRequest of its namespace".into(),
            ),
            Some(default) => (
                Truth::True,
                "NotDefault",
                format!("it is kept and not used: DRBDReplicationPolicy {default} governs"),
            ),
            None => (
                Truth::True,
                "NotDefault",
                "it is kept and not used: it is not the default".into(),
            ),
        };
        let generation = policy.metadata.generation;
        conditions::set(
            &mut status.conditions,
            condition::ACCEPTED,
            truth,
            reason,
            message,
            generation,
            now,
        );
        (name, status)
    };
    policies.iter().map(status).collect()
}

//! DRBDReplicationPolicies.
//!
//! | what | from |
//! | --- | --- |
//! | protocol A is accepted; a ProtectionRequest is where it is refused | [S1] |
//! | a namespace has one default | proposed |
//! | the zone's own default stays, and stays the default, as long as the zone does | it is the zone controller's [S1], the rule proposed |
//! | `net.sharedSecretRef` stays | proposed |
//!
//! The zone controller may make its default beside another: it makes it once, and it is the one that
//! governs. Where metadata lies has one value, so the schema keeps it.

use farshore_api::drbd::Protocol;
use farshore_api::replication_policy::{OnNoQuorum, SplitBrainPolicy};
use farshore_api::{DRBDReplicationPolicy, ProtectionZone, names};

use super::{
    Asked, Change, Ours, Reviewed, Stop, Verdict, fixed, known, known_all, name, namespace,
};
use crate::Seen;
use crate::protection::policy::default_of;

/// What the answers depend on. A policy that becomes the default: policies. One that ceases to be it:
/// zone.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The product on the hub.
    pub ours: Ours,
    /// The zone of the namespace.
    pub zone: Seen<ProtectionZone>,
    /// The policies of the namespace.
    pub policies: Seen<Vec<DRBDReplicationPolicy>>,
}

/// Answers.
pub fn judge(asked: &Asked<DRBDReplicationPolicy>, facts: &Facts) -> Verdict {
    if asked.passes() {
        return Verdict::default();
    }
    let ours = facts.ours.has(&asked.by);
    match &asked.change {
        Change::Create { new } => {
            let rules = if ours {
                Ok(())
            } else {
                only_default(new, facts)
            };
            Verdict::of(rules, warnings(None, new))
        }
        Change::Update { old, new } => {
            let rules = update(old, new, ours, facts);
            Verdict::of(rules, warnings(Some(old), new))
        }
        Change::Delete { .. } if ours => Verdict::default(),
        Change::Delete { old } => Verdict::of(not_of_zone(old, "", facts), Vec::new()),
    }
}

fn update(
    old: &DRBDReplicationPolicy,
    new: &DRBDReplicationPolicy,
    ours: bool,
    facts: &Facts,
) -> Result<(), Stop> {
    fixed(
        &old.spec.net.shared_secret_ref,
        &new.spec.net.shared_secret_ref,
        "spec.net.sharedSecretRef",
        "spec.net.sharedSecretRef is immutable",
    )?;
    match (old.spec.is_default, new.spec.is_default) {
        (false, true) if !ours => only_default(new, facts),
        (true, false) if !ours => not_of_zone(old, "spec.isDefault", facts),
        _ => Ok(()),
    }
}

/// There is no other default.
fn only_default(new: &DRBDReplicationPolicy, facts: &Facts) -> Result<(), Stop> {
    if !new.spec.is_default {
        return Ok(());
    }
    let namespace = namespace(&new.metadata);
    let all = known_all(
        &facts.policies,
        &format!("the DRBDReplicationPolicies of namespace {namespace}"),
    )?;
    let zone = facts.zone.present().map_or("", |z| name(&z.metadata));
    // The zone's own is what the product looks for, so nothing else stands in its way.
    if !zone.is_empty() && name(&new.metadata) == names::default_policy(zone) {
        return Ok(());
    }
    let others: Vec<_> = all
        .iter()
        .filter(|p| p.metadata.name != new.metadata.name)
        .cloned()
        .collect();
    match default_of(&others, zone) {
        None => Ok(()),
        Some(other) => {
            let message = format!(
                "namespace {namespace} already has a default DRBDReplicationPolicy {}",
                name(&other.metadata)
            );
            Err(Stop::forbidden("spec.isDefault", message)
                .help("Change the parameters of that one, or set spec.isDefault to false here."))
        }
    }
}

/// It is not the default that a zone, which stays, keeps.
fn not_of_zone(old: &DRBDReplicationPolicy, field: &str, facts: &Facts) -> Result<(), Stop> {
    let what = format!(
        "the ProtectionZone of namespace {}",
        namespace(&old.metadata)
    );
    let policy = name(&old.metadata);
    match known(&facts.zone, &what)? {
        Some(zone)
            if !zone.is_leaving() && policy == names::default_policy(name(&zone.metadata)) =>
        {
            let message = format!(
                "policy {policy} is managed by ProtectionZone {}",
                name(&zone.metadata)
            );
            Err(Stop::forbidden(field, message)
                .help("Its parameters may be changed; it goes with the zone."))
        }
        _ => Ok(()),
    }
}

/// What is stored and has no effect, as far as this change brought it.
fn warnings(old: Option<&DRBDReplicationPolicy>, new: &DRBDReplicationPolicy) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut came = |wrong: fn(&DRBDReplicationPolicy) -> bool, text: &str| {
        if wrong(new) && !old.is_some_and(wrong) {
            warnings.push(text.to_string());
        }
    };
    came(
        |p| !p.spec.is_default,
        "this policy is kept and not used: only the default DRBDReplicationPolicy of a namespace governs",
    );
    came(
        |p| p.spec.protocol == Protocol::A,
        "spec.protocol has no effect: spec.replicationProtocol of each ProtectionRequest decides, and A is not supported yet there",
    );
    came(
        |p| p.spec.options.on_no_quorum != OnNoQuorum::SuspendIo,
        "spec.options.onNoQuorum has no effect: suspend-io is used",
    );
    came(
        |p| p.spec.split_brain.policy != SplitBrainPolicy::Manual,
        "spec.splitBrain.policy has no effect: a person decides whose data is kept",
    );
    warnings
}

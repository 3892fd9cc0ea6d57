//! PR-8: who may change `spec.sourceCluster` of a ProtectionRequest, the one field that is the role flip
//! [S1].
//!
//! **The manager** may while a FailoverRequest may move the request's group. When it is known that none
//! may, its write is that of a process that has lost the lock without knowing, and is refused. When the
//! lock could not be read here, the write passes: the manager looked at the Lease right before it, and a
//! failover must not stand still between its two sites for a webhook that cannot read.
//!
//! **Anybody else** may not while a failover is active, and not when that cannot be read. While none is,
//! the field of a request that does well is still no switch: to turn it moves a running VM past hooks,
//! safety check and budget. But the product's own messages name it as the way out of states that no
//! failover leaves, and those stay open:
//!
//! | state of the request | who says to set the field |
//! | --- | --- |
//! | it is being deleted | unprotecting: it names the side that keeps the data |
//! | nothing was made for it yet, or it was refused | nobody: it is the correction of a request without effect |
//! | its source was changed while the pair was made | bringing up: "set it back" |
//! | its source is no cluster of the zone | validation: "set it to …" |
//! | a DRBDResource of it is gone | health, and a failover that ends for good |
//! | a member of its group has lost a DRBDResource, or stands on that cluster | a failover that ends for good: "and in those of the other members" |
//!
//! Each of these passes with a warning. Proposed as a whole; the sources only say that a failover makes
//! the change.

use farshore_api::ProtectionRequest;
use farshore_api::conditions::request as condition;
use farshore_api::protection_request::ProtectionPhase;

use super::protection_request::{Facts, in_zone};
use super::{Requester, Reviewed, Stop, any_zone, clusters, known, known_all, name, namespace};
use crate::{conditions, group};

const REFUSAL: &str = "spec.sourceCluster can only be changed by a FailoverRequest";

/// Judges a change of the field.
pub(super) fn judge(
    old: &ProtectionRequest,
    new: &ProtectionRequest,
    by: &Requester,
    facts: &Facts,
) -> Result<(), Stop> {
    if facts.ours.manager.has(by) {
        // A failover takes its target from the zone; nothing else is to be checked while it writes.
        return if facts.failover.is_absent() {
            Err(refuse().help("No FailoverRequest holds the lock of a group of this request now."))
        } else {
            Ok(())
        };
    }
    let what = format!(
        "whether a failover moves ProtectionRequest {}",
        name(&old.metadata)
    );
    if let Some(failover) = known(&facts.failover, &what)? {
        return Err(refuse().help(format!(
            "FailoverRequest {failover} is active: wait until it has ended."
        )));
    }
    let zone = any_zone(&facts.zone, namespace(&old.metadata))?;
    in_zone(&new.spec.source_cluster, zone)?;
    let stray = !clusters(zone).contains(&old.spec.source_cluster.as_str());
    if stray || in_need(old) || group_in_need(old, new, facts)? {
        return Ok(());
    }
    Err(refuse().help(format!(
        "Create a FailoverRequest whose spec.targetCluster is {} for a ProtectionGroup that has this request as a member.",
        new.spec.source_cluster
    )))
}

fn refuse() -> Stop {
    Stop::forbidden("spec.sourceCluster", REFUSAL)
}

/// Whether the request itself is in a state that only a change of the field leaves, or that it does not
/// matter to.
fn in_need(old: &ProtectionRequest) -> bool {
    let Some(status) = old.status.as_ref().filter(|_| !old.is_leaving()) else {
        return true;
    };
    match status.phase {
        None
        | Some(ProtectionPhase::Pending | ProtectionPhase::Validating | ProtectionPhase::Failed) => {
            true
        }
        // While the pair is made the status keeps the target that it is made with.
        Some(ProtectionPhase::CreatingDRBD | ProtectionPhase::Syncing) => {
            status.target_cluster.as_ref() == Some(&old.spec.source_cluster)
        }
        Some(_) => is_broken(old),
    }
}

/// Whether a DRBDResource of it was seen gone.
fn is_broken(request: &ProtectionRequest) -> bool {
    let all = request.status.as_ref().map_or(&[][..], |s| &s.conditions);
    let created = conditions::get(all, condition::DRBD_CREATED);
    created.is_some_and(|c| c.status == "False" && c.reason == condition::RESOURCE_MISSING)
}

/// Whether another member of a group of this request is broken, or stands on the new cluster already.
fn group_in_need(
    old: &ProtectionRequest,
    new: &ProtectionRequest,
    facts: &Facts,
) -> Result<bool, Stop> {
    let of = |kind: &str| format!("the {kind} of namespace {}", namespace(&old.metadata));
    // A request without a group has no other members, whatever the requests are.
    let groups = known_all(&facts.groups, &of("ProtectionGroups"))?;
    let mine: Vec<_> = groups
        .iter()
        .filter(|g| group::hub::contains(g, old))
        .collect();
    if mine.is_empty() {
        return Ok(false);
    }
    let requests = known_all(&facts.requests, &of("ProtectionRequests"))?;
    let mut others = requests.iter().filter(|r| {
        r.metadata.name != old.metadata.name
            && !r.is_leaving()
            && mine.iter().any(|g| group::hub::contains(g, r))
    });
    let turned = |r: &ProtectionRequest| r.spec.source_cluster == new.spec.source_cluster;
    Ok(others.any(|r| turned(r) || is_broken(r)))
}

/// What a person is told who may change the field.
pub(super) fn warnings(
    old: &ProtectionRequest,
    new: &ProtectionRequest,
    by_hand: bool,
) -> Vec<String> {
    let (from, to) = (&old.spec.source_cluster, &new.spec.source_cluster);
    if from == to || !by_hand {
        return Vec::new();
    }
    vec![format!(
        "spec.sourceCluster becomes {to} without a FailoverRequest: no hook runs, nothing is checked, and the disks on cluster {to} are taken for the newest"
    )]
}

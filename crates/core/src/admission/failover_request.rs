//! FailoverRequests.
//!
//! | rule | what | from |
//! | --- | --- | --- |
//! | FR-1 | `drainTimeoutSeconds` has a range | [S1], its bounds proposed |
//! | FR-2 | the group exists | proposed |
//! | FR-3 | the target is a cluster of the zone, and the group is not there already | proposed |
//! | FR-4 | the spec stays, but for `abort` | proposed |
//! | FR-5 | a second request for a group is accepted and waits for its turn | the lock [S2], the choice proposed |
//!
//! A request comes in a disaster, so only what is surely wrong is refused. A zone that is not validated
//! does not count: its source may be what was lost. "There already" is said only of a group at rest there
//! that no failover moves: a request to the same target is how one that ended half way goes on, and one
//! that waits for its turn is judged when it has it. FR-1 and FR-4 are in the CRD too; [S1] names the
//! webhook for the first, and API servers before Kubernetes 1.25 do not know the second. Deletion needs no
//! rule: the finalizer brings the failover to an end.

use farshore_api::failover_request::FailoverType;
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::{FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone};

use super::{Asked, Change, Stop, Verdict, any_zone, clusters, known, known_all, name, namespace};
use crate::Seen;
use crate::failover::resolve_members;

/// What the answers depend on. Creation: zone and group; the failover and the requests where the group is
/// on the target. The rest needs none.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The zone of the namespace.
    pub zone: Seen<ProtectionZone>,
    /// The group that the request names.
    pub group: Seen<ProtectionGroup>,
    /// ProtectionRequests of the namespace.
    pub requests: Seen<Vec<ProtectionRequest>>,
    /// Another FailoverRequest that may move the group now, as `group::hub::locked_by` finds it.
    pub failover: Seen<String>,
}

/// Answers.
pub fn judge(asked: &Asked<FailoverRequest>, facts: &Facts) -> Verdict {
    if asked.passes() {
        return Verdict::default();
    }
    match &asked.change {
        Change::Create { new } => Verdict::of(create(new, facts), creation_warnings(new, facts)),
        Change::Update { old, new } => Verdict::of(update(old, new), abort_warnings(old, new)),
        Change::Delete { .. } => Verdict::default(),
    }
}

fn create(new: &FailoverRequest, facts: &Facts) -> Result<(), Stop> {
    let seconds = new.spec.drain_timeout_seconds;
    if seconds.is_some_and(|s| !(0..=3600).contains(&s)) {
        let message = "spec.drainTimeoutSeconds must be between 0 and 3600";
        return Err(Stop::invalid("spec.drainTimeoutSeconds", message));
    }
    let group = existing_group(
        &facts.group,
        &new.spec.protection_group_ref.name,
        namespace(&new.metadata),
    )?;
    let target = &new.spec.target_cluster;
    let zone = any_zone(&facts.zone, namespace(&new.metadata))?;
    let all = clusters(zone);
    if !all.contains(&target.as_str()) {
        let message = format!(
            "spec.targetCluster \"{target}\" is not a cluster of ProtectionZone {}",
            name(&zone.metadata)
        );
        return Err(Stop::invalid("spec.targetCluster", message)
            .help(format!("Set it to {}.", all.join(" or "))));
    }
    if at_rest_on(target, group, facts)? {
        return Err(already_active(target, group));
    }
    Ok(())
}

/// FR-2.
pub(super) fn existing_group<'a>(
    group: &'a Seen<ProtectionGroup>,
    named: &str,
    namespace: &str,
) -> Result<&'a ProtectionGroup, Stop> {
    known(group, &format!("ProtectionGroup {named}"))?.ok_or_else(|| {
        let message = format!("ProtectionGroup {named} not found in namespace {namespace}");
        Stop::invalid("spec.protectionGroupRef.name", message).help(format!(
            "Name one of: kubectl -n {namespace} get protectiongroups"
        ))
    })
}

/// FR-3.
pub(super) fn already_active(target: &str, group: &ProtectionGroup) -> Stop {
    let message = format!(
        "spec.targetCluster \"{target}\" is already the active cluster of ProtectionGroup {}",
        name(&group.metadata)
    );
    Stop::invalid("spec.targetCluster", message)
}

/// Whether the group is where the request wants it and nothing is left to do there.
fn at_rest_on(target: &str, group: &ProtectionGroup, facts: &Facts) -> Result<bool, Stop> {
    let Some(status) = &group.status else {
        return Ok(false);
    };
    if status.active_cluster.as_deref() != Some(target) || !facts.failover.is_absent() {
        return Ok(false);
    }
    let what = format!(
        "the ProtectionRequests of namespace {}",
        namespace(&group.metadata)
    );
    let (members, missing) = resolve_members(group, known_all(&facts.requests, &what)?);
    let there = |r: &ProtectionRequest| r.spec.source_cluster == target;
    let promoted = |r: &ProtectionRequest| {
        let phase = r.status.as_ref().and_then(|s| s.phase);
        phase == Some(ProtectionPhase::Protected)
    };
    let settled = match (group.spec.desired_state, status.current_state) {
        (DesiredState::Running, Some(CurrentState::Running)) => true,
        // A group that is stopped shows nothing: its disks may not have changed sides yet.
        (DesiredState::Stopped, Some(CurrentState::Stopped)) => members.iter().all(promoted),
        _ => false,
    };
    Ok(settled && missing.is_empty() && !members.is_empty() && members.iter().all(there))
}

fn creation_warnings(new: &FailoverRequest, facts: &Facts) -> Vec<String> {
    let mut warnings = Vec::new();
    if new.spec.drain_timeout_seconds.is_some() {
        // The source's words [S1].
        warnings.push("spec.drainTimeoutSeconds has no effect".into());
    }
    if new.spec.failover_type == FailoverType::Unplanned {
        warnings.push(
            "Unplanned failover is not supported: this request ends Failed with reason NotSupported and changes nothing".into(),
        );
    }
    if let Seen::Present(failover) = &facts.failover {
        warnings.push(format!(
            "FailoverRequest {failover} has ProtectionGroup {} now: this request waits for its turn",
            new.spec.protection_group_ref.name
        ));
    }
    warnings
}

/// FR-4.
fn update(old: &FailoverRequest, new: &FailoverRequest) -> Result<(), Stop> {
    let mut kept = new.spec.clone();
    kept.abort = old.spec.abort;
    if kept != old.spec {
        let message = "FailoverRequest spec is immutable";
        return Err(Stop::invalid("spec", message).help(
            "Create a new FailoverRequest; spec.abort can be set to true to stop this one.",
        ));
    }
    if old.spec.abort && !new.spec.abort {
        let message = "spec.abort cannot be taken back";
        return Err(Stop::invalid("spec.abort", message));
    }
    Ok(())
}

fn abort_warnings(old: &FailoverRequest, new: &FailoverRequest) -> Vec<String> {
    let state = new.status.as_ref().and_then(|s| s.state);
    let late = state.is_some_and(|s| s.is_past_flip() || s.is_terminal(new.spec.queue));
    if new.spec.abort && !old.spec.abort && late {
        let state = state.map_or("", |s| s.as_str());
        return vec![format!(
            "spec.abort comes too late and is ignored: the failover is in state {state}"
        )];
    }
    Vec::new()
}

//! `RollingBack`: the source is started again after a failover that gave up before the flip, or whose
//! target could not be promoted and gives the roles back.

use farshore_api::conditions::failover as reason;
use farshore_api::protection_group::DesiredState;
use jiff::SignedDuration;

use super::{Next, Stage, may_have_flipped, mirror_command, tell, wanted};
use crate::conditions::Truth;
use crate::failover::ROLLBACK_LIMIT;
use crate::failover::evidence::{all_primary, group_reports};
use crate::failover::journal::{Cause, Journal};
use crate::failover::preflight::Obstacle;
use crate::failover::step::Step;
use crate::words::moment;

/// Reason of `RolesFlipped` when the roles go back.
pub(super) const RETURNED: &str = "Returned";

/// Starts the source again, as the hub wants the group. Ends within its limit, with the truth.
pub(super) fn rolling_back(stage: &Stage, journal: &mut Journal) -> Next {
    let seen = stage.seen;
    let (cause, why) = (known_reason(&stage.cause.0), stage.cause.1.clone());
    let source = &seen.source;
    let flipped = may_have_flipped(seen, stage.state);
    if flipped && !(stage.has_flipped && stage.flipped_all) {
        // Never start a source whose role is gone.
        let message = format!(
            "{why} The rollback stopped: roles are on cluster {0} already; create a new FailoverRequest with targetCluster {0} to continue.",
            seen.target.cluster
        );
        return Next::Fail {
            cause: Cause::new(cause, message),
            rolled_back: Some(false),
            resumable: Some(true),
        };
    }
    if stage.has_flipped {
        let sentence = format!("sourceCluster goes back to {}.", source.cluster);
        journal.fact(reason::ROLES_FLIPPED, Truth::False, RETURNED, &sentence);
    }
    let (wanted, reached) = wanted(seen);
    // The source's roles come back before anything is started.
    let not_primary = match all_primary(seen, source) {
        Err(fact) if stage.has_flipped => Some(fact),
        _ if flipped => Some(format!("sourceCluster is not {} yet", source.cluster)),
        _ => None,
    };
    let arrived = group_reports(seen, source, wanted, reached);
    if not_primary.is_none() && arrived.is_ok() {
        started_again(stage, journal);
        let cause = Cause::new(
            cause,
            format!(
                "{why} Rolled back: the group is {reached} on cluster {}.",
                source.cluster
            ),
        );
        if cause.reason == reason::CONFLICTING_GROUPS {
            return Next::Block(cause, Some(true));
        }
        return Next::Fail {
            cause,
            rolled_back: Some(true),
            resumable: None,
        };
    }
    let steps = match &not_primary {
        Some(_) => return_roles(stage),
        None => tell(source, wanted),
    };
    let fact = not_primary.or(arrived.err()).unwrap_or_default();
    let limit = SignedDuration::from_secs(ROLLBACK_LIMIT.as_secs() as i64);
    let until = stage.since + limit;
    if stage.now >= until {
        let how = if stage.has_flipped {
            format!(
                ": DRBD becomes Primary there when the agents on cluster {} have confirmed Secondary",
                seen.target.cluster
            )
        } else {
            String::new()
        };
        let advice = format!(
            "The group shall be {wanted} on cluster {} and may still get there{how}; look with: {}",
            source.cluster,
            mirror_command(stage, source)
        );
        let message = format!(
            "{why} The rollback was not observed within {} s: {fact}. {advice}",
            ROLLBACK_LIMIT.as_secs()
        );
        return Next::Fail {
            cause: Cause::new(cause, message),
            rolled_back: Some(false),
            resumable: None,
        };
    }
    let obstacle = Obstacle {
        reason: cause,
        fact,
        command: mirror_command(stage, source),
    };
    let next = format!(
        "It ends when the group is seen {reached}, or at {} without",
        moment(until)
    );
    stage.wait(obstacle, &next, steps)
}

/// The source runs again: that it had stopped is no longer true. A group that shall be stopped stays so.
fn started_again(stage: &Stage, journal: &mut Journal) {
    let seen = stage.seen;
    let had_stopped = journal.reason_of(reason::SOURCE_STOPPED).is_some();
    if had_stopped && wanted(seen).0 == DesiredState::Running {
        let sentence = format!(
            "{} runs on cluster {} again.",
            seen.group_title(),
            seen.source.cluster
        );
        journal.fact(
            reason::SOURCE_STOPPED,
            Truth::False,
            "StartedAgain",
            &sentence,
        );
    }
}

/// Every role that this request has changed, back to the source.
fn return_roles(stage: &Stage) -> Vec<Step> {
    let seen = stage.seen;
    let requests = seen.cast.iter().filter_map(|m| m.request);
    requests
        .filter(|r| seen.flipped(r))
        .filter_map(|r| {
            Some(Step::Flip {
                protection_request: r.metadata.name.clone()?,
                to: seen.source.cluster.clone(),
            })
        })
        .collect()
}

/// The constant of a reason that was read back from the status.
fn known_reason(read: &str) -> &'static str {
    let all = [
        reason::BUDGET_EXCEEDED,
        reason::ABORTED,
        reason::DELETED,
        reason::VM_STOP_TIMEOUT,
        reason::CONFLICTING_GROUPS,
        reason::HOOK_FAILED,
        reason::MEMBERS_NOT_PROTECTED,
        reason::RESOURCE_MISSING,
    ];
    all.into_iter()
        .find(|r| *r == read)
        .unwrap_or(reason::IN_PROGRESS)
}

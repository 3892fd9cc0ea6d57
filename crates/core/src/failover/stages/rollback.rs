//! `RollingBack`: the source is started again after a failover that gave up before the flip.

use farshore_api::conditions::failover as reason;
use farshore_api::protection_group::{CurrentState, DesiredState};
use jiff::SignedDuration;

use super::{Next, Stage, may_have_flipped, mirror_command, tell};
use crate::Seen;
use crate::failover::ROLLBACK_LIMIT;
use crate::failover::evidence::{mirror_says, reports};
use crate::failover::journal::Cause;
use crate::failover::preflight::Obstacle;
use crate::words::moment;

/// Starts the source again, as the hub wants the group. Ends within its limit, with the truth.
pub(super) fn rolling_back(stage: &Stage) -> Next {
    let seen = stage.seen;
    let (cause, why) = (known_reason(&stage.cause.0), stage.cause.1.clone());
    if may_have_flipped(seen, stage.state) {
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
    let wanted = seen
        .group
        .as_ref()
        .map_or(DesiredState::Running, |g| g.spec.desired_state);
    let reached = match wanted {
        DesiredState::Running => CurrentState::Running,
        DesiredState::Stopped => CurrentState::Stopped,
    };
    let source = &seen.source;
    if let Seen::Present(mirror) = &source.mirror
        && reports(mirror, wanted, reached)
    {
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
    let fact = mirror_says(seen, source, reached.as_str());
    let limit = SignedDuration::from_secs(ROLLBACK_LIMIT.as_secs() as i64);
    let until = stage.since + limit;
    if stage.now >= until {
        let advice = format!(
            "The group was told to be {wanted} on cluster {} and may still get there; look with: {}",
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
    stage.wait(obstacle, &next, tell(source, wanted))
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
    ];
    all.into_iter()
        .find(|r| *r == read)
        .unwrap_or(reason::IN_PROGRESS)
}

//! The source is stopped and the way is cleared: `StoppingOnSource` and `RemovingTaints`. Until here
//! everything can be taken back.

use farshore_api::conditions::failover as reason;
use farshore_api::failover_request::FailoverState as State;
use farshore_api::protection_group::DesiredState;
use jiff::SignedDuration;

use super::{Next, Stage, mirror_command, target_silent, tell};
use crate::conditions::Truth;
use crate::failover::evidence::source_stopped;
use crate::failover::journal::Journal;
use crate::failover::preflight::{self, Obstacle};
use crate::failover::safety::{self, Verdict};
use crate::words::{self, moment};

/// Tells the source's mirror to stop, and waits until it says that it has.
pub(super) fn stopping_on_source(stage: &Stage, journal: &mut Journal) -> Next {
    let seen = stage.seen;
    let Err(fact) = source_stopped(seen) else {
        let sentence = format!(
            "{} on cluster {} reports stopped.",
            seen.group_title(),
            seen.source.cluster
        );
        journal.fact(reason::SOURCE_STOPPED, Truth::True, "Stopped", &sentence);
        return Next::Enter(
            State::RemovingTaints,
            format!("cluster {} reports the group stopped", seen.source.cluster),
        );
    };
    journal.fact(reason::SOURCE_STOPPED, Truth::Unknown, "Stopping", &fact);
    let limit = seen
        .group
        .as_ref()
        .and_then(|g| g.spec.failover.as_ref())
        .map_or(120, |f| f.vm_stop_timeout_seconds);
    let until = stage.since + SignedDuration::from_secs(i64::from(limit));
    if stage.now >= until {
        return stage.give_up(
            reason::VM_STOP_TIMEOUT,
            format!("The VMs did not stop within {limit} s: {fact}."),
        );
    }
    let obstacle = Obstacle {
        reason: reason::IN_PROGRESS,
        fact,
        command: mirror_command(stage, &seen.source),
    };
    let next = format!(
        "It goes on as soon as the group is seen stopped, and rolls back at {}",
        moment(until.min(stage.deadline))
    );
    stage.wait(obstacle, &next, tell(&seen.source, DesiredState::Stopped))
}

/// Checks, with the source stopped, that nothing can be lost and nobody is hurt; takes the taints off.
pub(super) fn removing_taints(stage: &Stage, journal: &mut Journal) -> Next {
    let seen = stage.seen;
    if let Err(fact) = source_stopped(seen) {
        let obstacle = Obstacle {
            reason: reason::IN_PROGRESS,
            fact,
            command: mirror_command(stage, &seen.source),
        };
        return stage.wait(
            obstacle,
            &stage.or_gives_up(),
            tell(&seen.source, DesiredState::Stopped),
        );
    }
    // To wait would keep the VMs down for what may never change back.
    if let Some(lost) = preflight::protection_lost(seen) {
        return stage.give_up(
            reason::MEMBERS_NOT_PROTECTED,
            format!("{lost}: what it has written would not be on the target."),
        );
    }
    // Only now, with no writer left, equal disks mean that every acknowledged write is there.
    if let Some(obstacle) = preflight::in_sync(seen) {
        return stage.wait(obstacle, &stage.or_gives_up(), vec![]);
    }
    let verdict = safety::check(seen);
    safety::record(seen, &verdict, journal, stage.now);
    match verdict {
        Verdict::NothingToRemove => Next::Enter(
            State::PromotingTarget,
            "no quorum taint is left on the target's nodes".into(),
        ),
        Verdict::Clear { tainted, .. } => {
            let obstacle = Obstacle {
                reason: reason::IN_PROGRESS,
                fact: format!(
                    "quorum taints are on Node {} (cluster {})",
                    words::list(&tainted),
                    seen.target.cluster
                ),
                command: stage.command(
                    &seen.target.cluster,
                    "get node -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints[*].key",
                ),
            };
            stage.wait(obstacle, &stage.or_gives_up(), safety::removals(seen))
        }
        Verdict::Conflicts(conflicts) => stage.give_up(
            reason::CONFLICTING_GROUPS,
            safety::blocked(seen, &conflicts).message,
        ),
        Verdict::CannotTell(fact) => {
            stage.wait(target_silent(stage, fact), &stage.or_gives_up(), vec![])
        }
    }
}

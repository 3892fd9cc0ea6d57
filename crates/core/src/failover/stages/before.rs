//! Before anything is stopped: `Validating`, `RunningPreHooks`, and `Blocked` for a request that queues.

use farshore_api::conditions::failover as reason;
use farshore_api::failover_request::FailoverState as State;
use jiff::SignedDuration;

use super::{Next, Stage, Wait, passed_hooks, target_silent};
use crate::conditions::Truth;
use crate::failover::hooks::{self, Progress, When};
use crate::failover::journal::Journal;
use crate::failover::preflight::{self, Obstacle};
use crate::failover::safety::{self, Verdict};
use crate::failover::{PREFLIGHT_LIMIT, QUEUE_AGAIN};
use crate::words::moment;

/// Looks before anything is touched. Does nothing itself.
pub(super) fn validating(stage: &Stage, journal: &mut Journal) -> Next {
    let seen = stage.seen;
    if let Some(cause) = preflight::already_active(seen) {
        return Next::Fail {
            cause,
            rolled_back: None,
            resumable: None,
        };
    }
    if let Some(obstacle) = preflight::obstacle(seen) {
        return wait_for_the_way(stage, obstacle);
    }
    let verdict = safety::check(seen);
    safety::record(seen, &verdict, journal, stage.now);
    match verdict {
        Verdict::Conflicts(conflicts) => {
            return Next::Block(safety::blocked(seen, &conflicts), None);
        }
        Verdict::CannotTell(fact) => return wait_for_the_way(stage, target_silent(stage, fact)),
        Verdict::NothingToRemove | Verdict::Clear { .. } => {}
    }
    if hooks::of(seen, When::Pre).is_empty() {
        return Next::Enter(State::StoppingOnSource, "pre-flight passed".into());
    }
    if seen.any_flipped() {
        // The failover that this one continues has run them, before it stopped the source.
        return Next::Enter(State::StoppingOnSource, "pre-flight passed; pre-failover hooks are skipped because this request continues an earlier failover".into());
    }
    Next::Enter(State::RunningPreHooks, "pre-flight passed".into())
}

/// Waits for what may go away by itself, but not for long: nothing was stopped yet, and the lock
/// keeps others waiting.
fn wait_for_the_way(stage: &Stage, obstacle: Obstacle) -> Next {
    let limit = SignedDuration::from_secs(PREFLIGHT_LIMIT.as_secs() as i64);
    let mut until = stage.deadline;
    if obstacle.reason != reason::NOT_IN_SYNC || !preflight::resync_runs(stage.seen) {
        until = until.min(stage.since + limit);
    }
    if stage.now >= until {
        let why = format!(
            "The pre-flight check, which began at {}, did not pass until {}: {}. Create a new FailoverRequest when this has changed; look with: {}.",
            moment(stage.since),
            moment(until),
            obstacle.fact,
            obstacle.command
        );
        return stage.give_up(obstacle.reason, why);
    }
    let next = format!(
        "It goes on as soon as this has changed, and fails without having stopped anything at {}",
        moment(until)
    );
    stage.wait(obstacle, &next, vec![])
}

/// Runs the group's Jobs on the target, while the source still runs.
pub(super) fn running_pre_hooks(stage: &Stage, journal: &mut Journal) -> Next {
    match hooks::follow(stage.seen, When::Pre, stage.since, stage.now) {
        Progress::Ended { passed_over } => {
            passed_hooks(&passed_over, journal);
            Next::Enter(
                State::StoppingOnSource,
                "the pre-failover hooks have ended".into(),
            )
        }
        Progress::Running {
            hook, fact, step, ..
        } => {
            let obstacle = Obstacle {
                reason: reason::IN_PROGRESS,
                fact: format!("pre-failover hook {hook}: {fact}"),
                command: stage.command(
                    &stage.seen.target.cluster,
                    "get job -A -l siterecovery.trilio.io/failover-request",
                ),
            };
            stage.wait(obstacle, &stage.or_gives_up(), step.into_iter().collect())
        }
        Progress::Aborted { failure } => {
            journal.fact(
                reason::HOOKS_SUCCEEDED,
                Truth::False,
                reason::HOOK_FAILED,
                &failure,
            );
            stage.give_up(
                reason::HOOK_FAILED,
                format!("A pre-failover hook failed: {failure}."),
            )
        }
    }
}

/// A request that queues checks again whether the others are gone, and then begins anew.
pub(super) fn blocked(stage: &Stage, journal: &mut Journal) -> Next {
    let seen = stage.seen;
    let verdict = safety::check(seen);
    safety::record(seen, &verdict, journal, stage.now);
    let sentence = match &verdict {
        Verdict::NothingToRemove | Verdict::Clear { .. } => {
            return Next::Enter(
                State::Validating,
                "no other group is in the way any more".into(),
            );
        }
        Verdict::Conflicts(conflicts) => safety::blocked(seen, conflicts).message,
        Verdict::CannotTell(fact) => fact.clone(),
    };
    let until_deadline = stage.deadline.duration_since(stage.now).unsigned_abs();
    let wait = Wait {
        reason: reason::CONFLICTING_GROUPS,
        fact: sentence.clone(),
        sentence,
        again: QUEUE_AGAIN.min(until_deadline),
    };
    Next::Wait(wait, vec![])
}

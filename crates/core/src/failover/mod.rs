//! How a failover works.
//!
//! A FailoverRequest moves the VMs of one ProtectionGroup from the cluster that runs them (the
//! *source*) to the other cluster of the zone (the *target*). It passes these states, and leaves
//! one only when what the state is about was **observed** in a fresh read:
//!
//! | state | what it does | it is left when |
//! | --- | --- | --- |
//! | `Pending` | takes the Lease `failover-lock-<group>` ([`lock`]) | the Lease names this request |
//! | `Validating` | nothing: it only looks ([`preflight`], [`safety`]) | both clusters answer, all disks are equal on both sides, nobody is in the way |
//! | `RunningPreHooks` | creates Jobs on the target ([`hooks`]); skipped without hooks | every Job has ended |
//! | `StoppingOnSource` | mirror on the source: `desiredState: stopped` | that mirror reports `stopped` |
//! | `RemovingTaints` | takes the quorum taints off the target's nodes | none is left, and the disks are still equal |
//! | `PromotingTarget` | **the flip**: every member's `sourceCluster` becomes the target | DRBD reports every member Primary on the target |
//! | `StartingOnTarget` | mirror on the target: `desiredState: running` | that mirror reports `running` |
//! | `RunningPostHooks` | creates Jobs on the target; skipped without hooks | every Job has ended |
//! | `Completed` | releases the Lease | never |
//!
//! What can go wrong, and where it leads ([`stages`]):
//!
//! - Before anything is stopped, the request just ends: `Failed`, or `Blocked` by another group.
//! - Once the source may have been stopped and until the flip, it goes through `RollingBack`: the
//!   source is started again, and that must end too, within [`ROLLBACK_LIMIT`].
//! - From `PromotingTarget` on it only goes forward: `Failed` with `resumable: true`, and a new
//!   request to the same target continues. One exception: when the budget ends in `PromotingTarget`,
//!   the disks of the target do not let it be promoted, and it was seen that nothing was promoted or
//!   started there ([`stages::may_return`]), the roles go back and `RollingBack` starts the source.
//! - A target whose DRBDResource was seen gone after the flip is not waited for: the roles go back at
//!   once where nothing was started and the source holds everything ([`stages::may_return_without`]),
//!   else it ends and names the way out.
//!
//! Four rules keep this true whatever dies on the way:
//!
//! 1. **A state acts only once it is known to the API server.** Steps belong to the state that the
//!    request's stored status names; a state that was just entered is stored first and acts in the
//!    next round. So a restarted process always knows the furthest that its predecessor can have
//!    gone.
//! 2. **No lock, no step.** If the Lease is not ours, or ours but expired, the only step is about
//!    the Lease itself.
//! 3. **Unknown is never good news.** A cluster that does not answer has not stopped its VMs, has
//!    not lost its taints and is not Primary.
//! 4. **It ends.** The budget runs from the moment the lock was taken; what still waits when it is
//!    over is given up.
//!
//! The sequence reconciles [S1] (the one field `sourceCluster` is the flip, hooks, 300 s) with
//! [S2] (Lease, `desiredState` contract, taints after a safety check). This process never writes a
//! VirtualMachine.

pub mod evidence;
pub mod hooks;
pub mod journal;
pub mod lock;
pub mod observed;
pub mod plan;
pub mod preflight;
pub mod safety;
pub mod scene;
pub mod stages;
pub mod step;
pub mod vms;

use std::time::Duration;

use farshore_api::conditions::failover as reason;
use farshore_api::failover_request::FailoverState;
use jiff::Timestamp;

use journal::{Cause, Journal};
use lock::Standing;
use scene::Scene;
use stages::{Next, Stage};

use crate::conditions::Truth;

pub use observed::{Neighbour, Observed, Side, first_ahead, resolve_members};
pub use step::{Decision, LockPurpose, Step};

/// Time for a rollback to be observed, after which the request fails and says so.
pub const ROLLBACK_LIMIT: Duration = Duration::from_secs(60);
/// Time for what is in the way before anything is stopped to go away: the lock keeps others waiting,
/// and the group cannot be changed. A resync that runs has the whole budget.
pub const PREFLIGHT_LIMIT: Duration = Duration::from_secs(60);
/// How often an active failover looks again when no change woke it.
pub const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// How often a request that waits for the lock looks again.
pub const LOCK_AGAIN: Duration = Duration::from_secs(5);
/// How long a request waits for its turn: the longest budget that the failover before it may have. A
/// move that begins later than that surprises everybody.
pub const PENDING_LIMIT: Duration = Duration::from_secs(3600);
/// How often a blocked request that queues checks again. Requests that queue are not ordered among
/// each other: whoever checks first after the way is clear goes on.
pub const QUEUE_AGAIN: Duration = Duration::from_secs(15);

/// Decides what a FailoverRequest does next.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    let seen = &Scene::new(seen);
    let journal = Journal::open(seen, now);
    let standing = lock::standing(seen.lease.as_ref(), seen.uid(), now);
    let stored = journal.state();
    if stored.is_terminal(seen.request.spec.queue) {
        return after_the_end(seen, &standing, journal, now);
    }
    let held = match stored {
        FailoverState::Pending => take_the_lock(seen, &standing, journal, now),
        _ => keep_the_lock(seen, &standing, journal, now),
    };
    let mut journal = match held {
        Ok(journal) => journal,
        Err(decision) => return *decision,
    };
    let mut steps: Vec<Step> = lock::renew_if_due(seen, &standing, now)
        .into_iter()
        .collect();
    // Somebody may have taken it off by hand; without it a deletion would leave the lock behind.
    if !seen.has_finalizer() && seen.request.metadata.deletion_timestamp.is_none() {
        steps.push(Step::AddFinalizer);
    }
    let (of_this_state, again) = walk(seen, &mut journal, stored, now);
    steps.extend(of_this_state);
    vms::refresh(seen, &mut journal, now);
    journal.close(steps, Some(again))
}

/// Walks through the states as far as their ends can be observed. The steps are those of the
/// stored state alone: rule 1.
fn walk(
    seen: &Scene,
    journal: &mut Journal,
    stored: FailoverState,
    now: Timestamp,
) -> (Vec<Step>, Duration) {
    let queue = seen.request.spec.queue;
    loop {
        let state = journal.state();
        match stages::look(&Stage::new(seen, journal, now), journal) {
            Next::Enter(next, because) => journal.enter(next, &because),
            Next::Wait(wait, steps) => {
                journal.wait(wait.reason, &wait.sentence);
                return if state == stored {
                    (steps, wait.again)
                } else {
                    (vec![], Duration::ZERO)
                };
            }
            Next::RollBack(cause) => journal.roll_back(cause),
            Next::Block(cause, rolled_back) if queue => {
                journal.queue(cause, rolled_back);
                return (vec![], QUEUE_AGAIN);
            }
            Next::Block(cause, rolled_back) => {
                journal.end(FailoverState::Blocked, cause, rolled_back, None);
            }
            Next::Fail {
                cause,
                rolled_back,
                resumable,
            } => journal.end(FailoverState::Failed, cause, rolled_back, resumable),
        }
        if journal.state().is_terminal(queue) {
            return (vec![], Duration::ZERO);
        }
    }
}

/// `Pending`: everything before the lock is ours. Ok when it is, and then validation begins.
fn take_the_lock(
    seen: &Scene,
    standing: &Standing,
    mut journal: Journal,
    now: Timestamp,
) -> Result<Journal, Box<Decision>> {
    if seen.request.metadata.deletion_timestamp.is_some() {
        // Nothing was begun: let go of everything.
        return Err(Box::new(after_the_end(seen, standing, journal, now)));
    }
    if let Some(cause) = preflight::input_error(seen) {
        journal.end(FailoverState::Failed, cause, None, None);
        return Err(Box::new(journal.close(vec![], Some(Duration::ZERO))));
    }
    match standing {
        Standing::Ours { acquired, .. } => {
            journal.locked(seen, *acquired);
            journal.enter(FailoverState::Validating, "the lock is taken");
            keep_the_lock(seen, standing, journal, now)
        }
        Standing::Held { holder, .. } if journal.began_at_target() => {
            let cause = preflight::overtaken(seen, Some(&seen.holder_name(holder)));
            journal.end(FailoverState::Failed, cause, None, None);
            Err(Box::new(journal.close(vec![], Some(Duration::ZERO))))
        }
        _ if journal.began_at_target() && !seen.all_flipped() => {
            let cause = preflight::overtaken(seen, None);
            journal.end(FailoverState::Failed, cause, None, None);
            Err(Box::new(after_the_end(seen, standing, journal, now)))
        }
        Standing::Held { .. } => Err(Box::new(wait_for_the_turn(seen, standing, journal, now))),
        Standing::Free | Standing::Expired { .. } if seen.ahead.is_some() => {
            Err(Box::new(wait_for_the_turn(seen, standing, journal, now)))
        }
        Standing::Free | Standing::Expired { .. } => {
            journal.wait(reason::IN_PROGRESS, "Takes the lock of the group.");
            let step = if seen.has_finalizer() {
                lock::take(seen, now)
            } else {
                Step::AddFinalizer
            };
            Err(Box::new(journal.close(vec![step], Some(Duration::ZERO))))
        }
    }
}

/// Stays pending behind the requests before it, but not for ever.
fn wait_for_the_turn(
    seen: &Scene,
    standing: &Standing,
    mut journal: Journal,
    now: Timestamp,
) -> Decision {
    let since = journal.since();
    let until = since + PENDING_LIMIT;
    if now >= until {
        let message = lock::too_long_sentence(seen, standing, since);
        let cause = Cause::new(reason::PENDING_TOO_LONG, message);
        journal.end(FailoverState::Failed, cause, None, None);
        return journal.close(vec![], Some(Duration::ZERO));
    }
    journal.not_locked(&lock::pending_sentence(seen, standing, until));
    let left = until.duration_since(now).unsigned_abs();
    journal.close(vec![], Some(LOCK_AGAIN.min(left)))
}

/// Rule 2 for a failover that runs: Ok while the lock is ours, else a decision about the lock alone.
fn keep_the_lock(
    seen: &Scene,
    standing: &Standing,
    mut journal: Journal,
    now: Timestamp,
) -> Result<Journal, Box<Decision>> {
    let step = match standing {
        Standing::Ours { expired: false, .. } => return Ok(journal),
        // The lock went with its group: it is not taken again for nothing.
        Standing::Free if seen.group.is_none() => {
            let cause = stages::group_is_gone(seen, journal.state());
            journal.end(FailoverState::Failed, cause, Some(false), None);
            vms::refresh(seen, &mut journal, now);
            return Err(Box::new(journal.close(vec![], Some(Duration::ZERO))));
        }
        Standing::Ours { expired: true, .. } => lock::renew(seen, now),
        Standing::Free => lock::take(seen, now),
        Standing::Held { holder, .. } | Standing::Expired { holder } => {
            let past = stages::may_have_flipped(seen, journal.state());
            let message = format!(
                "Lost the lock: {} took Lease {}/{} after it had expired while this request did not run. Nothing more is done here; that request carries on with the group.",
                seen.holder_name(holder),
                seen.namespace(),
                seen.lease_name(),
            );
            journal.fact(reason::LOCKED, Truth::False, reason::LOCK_LOST, &message);
            let cause = Cause::new(reason::LOCK_LOST, message);
            journal.end(FailoverState::Failed, cause, Some(false), Some(past));
            vms::refresh(seen, &mut journal, now);
            return Err(Box::new(journal.close(vec![], Some(Duration::ZERO))));
        }
    };
    Err(Box::new(journal.close(vec![step], Some(Duration::ZERO))))
}

/// A request that has ended lets go of the lock, then of its finalizer. One that holds neither has
/// nothing to do, ever.
fn after_the_end(
    seen: &Scene,
    standing: &Standing,
    mut journal: Journal,
    now: Timestamp,
) -> Decision {
    let mut steps = Vec::new();
    let ended = journal.state().is_terminal(seen.request.spec.queue);
    if ended && seen.request.spec.abort && journal.reason_of(reason::ABORTED).is_none() {
        journal.ignore_abort(&stages::abort_after_the_end(seen, journal.state()));
    }
    if let Standing::Ours { .. } = standing {
        steps.extend(lock::release(seen, now));
    } else {
        journal.released();
    }
    if seen.has_finalizer() {
        steps.push(Step::RemoveFinalizer);
    }
    journal.close(steps, None)
}

/// What a look must take in so that [`decide`] can go as far as the world allows. Nothing is looked
/// at in vain; what is left out counts as unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Anything on the workload clusters.
    pub clusters: bool,
    /// Nodes of the target and other groups there.
    pub way_clear: bool,
    /// The members' VirtualMachines on the target.
    pub standby: bool,
    /// Jobs of these hooks.
    pub hooks: Option<hooks::When>,
}

/// The needs of a request in this stored state.
pub fn needs(state: Option<FailoverState>, queue: bool) -> Needs {
    use FailoverState as S;
    let state = state.unwrap_or(S::Pending);
    let begins = matches!(state, S::Pending | S::Validating | S::Blocked);
    Needs {
        clusters: !state.is_terminal(queue),
        way_clear: begins
            || matches!(
                state,
                S::RunningPreHooks | S::StoppingOnSource | S::RemovingTaints
            ),
        standby: begins,
        hooks: match state {
            S::RunningPreHooks => Some(hooks::When::Pre),
            S::RunningPostHooks => Some(hooks::When::Post),
            _ => None,
        },
    }
}

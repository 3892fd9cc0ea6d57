//! The states one by one: what each looks at, what it does while it waits, and where it leads.

mod before;
mod flip;
mod rollback;
mod stop;

use std::time::Duration;

use farshore_api::ProtectionGroup;
use farshore_api::conditions::failover as reason;
use farshore_api::failover_request::FailoverState as State;
use farshore_api::protection_group::{CurrentState, DesiredState};
use jiff::Timestamp;

use super::LOOK_AGAIN;
use super::evidence::{is_up_to_date, may_have_been_primary, mirror_says, out_of_sync, reports};
use super::journal::{Cause, Journal};
use super::observed::Side;
use super::preflight::Obstacle;
use super::scene::{Member, Scene};
use super::step::Step;
use crate::conditions::Truth;
use crate::words::{self, moment};
use crate::{Note, Seen};

/// Where a state leads after one look.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// What the state is about was observed, as this clause says: go on.
    Enter(State, String),
    /// It was not; these steps bring it about.
    Wait(Wait, Vec<Step>),
    /// Give up and start the source again.
    RollBack(Cause),
    /// Another group is in the way.
    Block(Cause, Option<bool>),
    /// Give up here. `rolled_back` and `resumable` as in the status.
    Fail {
        cause: Cause,
        rolled_back: Option<bool>,
        resumable: Option<bool>,
    },
}

/// Why a state is not left yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// Reason of the condition `Complete`.
    pub reason: &'static str,
    /// What is in the way, as a clause.
    pub fact: String,
    /// Five parts for a person.
    pub sentence: String,
    /// When to look again if no change wakes us.
    pub again: Duration,
}

/// One look at one state.
pub struct Stage<'a> {
    seen: &'a Scene<'a>,
    state: State,
    /// When the state was entered.
    since: Timestamp,
    /// When the budget ends.
    deadline: Timestamp,
    now: Timestamp,
    /// Why it rolls back, in `RollingBack`.
    cause: (String, String),
    /// Whether this request has begun to change roles.
    has_flipped: bool,
    /// Whether it did so itself for every VM, from equal disks.
    flipped_all: bool,
}

impl<'a> Stage<'a> {
    /// The current state of the journal.
    pub fn new(seen: &'a Scene<'a>, journal: &Journal, now: Timestamp) -> Self {
        let (reason, message) = journal.cause();
        Self {
            seen,
            state: journal.state(),
            since: journal.since(),
            deadline: journal.deadline().unwrap_or(now),
            now,
            cause: (reason.into(), message.into()),
            has_flipped: journal.reason_of(reason::ROLES_FLIPPED).is_some(),
            flipped_all: matches!(
                journal.reason_of(reason::ROLES_FLIPPED),
                Some(flip::FLIPPING | flip::FLIPPED | rollback::RETURNED)
            ),
        }
    }

    /// Stays: blocked by this fact, and this happens next.
    fn wait(&self, obstacle: Obstacle, next: &str, steps: Vec<Step>) -> Next {
        let trouble = self.seen.trouble.as_ref();
        let trouble =
            trouble.map_or_else(String::new, |t| format!(" (the last attempt failed: {t})"));
        let fact = format!("{}{trouble}", obstacle.fact);
        let sentence = words::Wait {
            what: format!(
                "Failover of {} to cluster {} is in {} since {}",
                self.seen.group_title(),
                self.seen.target.cluster,
                self.state,
                moment(self.since)
            ),
            by: fact.clone(),
            since: None,
            next,
            command: obstacle.command,
        };
        let wait = Wait {
            reason: obstacle.reason,
            fact,
            sentence: sentence.to_string(),
            again: self.again(),
        };
        Next::Wait(wait, steps)
    }

    /// When to look again: soon, and not only after the deadline.
    fn again(&self) -> Duration {
        let left = Duration::try_from(self.deadline.duration_since(self.now));
        left.ok()
            .filter(|left| !left.is_zero())
            .map_or(LOOK_AGAIN, |left| left.min(LOOK_AGAIN))
    }

    /// The next thing that happens if a state before the flip is not left in time.
    fn or_gives_up(&self) -> String {
        let how = if source_may_be_stopped(self.state) {
            "rolls back"
        } else {
            "fails without having stopped anything"
        };
        format!(
            "It goes on as soon as this has changed, and {how} at {}",
            moment(self.deadline)
        )
    }

    fn or_fails_resumable(&self) -> String {
        format!(
            "It goes on as soon as this has changed; at {} it fails, and a new FailoverRequest to cluster {} continues",
            moment(self.deadline),
            self.seen.target.cluster
        )
    }

    fn command(&self, cluster: &str, what: &str) -> String {
        format!("kubectl --context {cluster} {what}")
    }

    /// Gives up in the way that the state allows.
    fn give_up(&self, reason: &'static str, why: String) -> Next {
        let seen = self.seen;
        let (target, source) = (&seen.target.cluster, &seen.source.cluster);
        let untouched = !source_may_be_stopped(self.state) && !self.state.is_past_flip();
        let fail = |how: String, rolled_back, resumable| Next::Fail {
            cause: Cause::new(reason, format!("{why} {how}")),
            rolled_back,
            resumable,
        };
        if untouched && !seen.any_flipped() {
            let how = format!("Nothing was stopped: the group stays on cluster {source}.");
            return fail(how, None, None);
        }
        if untouched {
            // Members may stand on the target although this request flipped none: by hand, or by
            // one before.
            let how = format!(
                "This request stopped nothing; roles were on cluster {target} before it. Create a new FailoverRequest with targetCluster {target} to bring the others there."
            );
            return fail(how, None, Some(true));
        }
        let kept_from_it =
            self.state == State::PromotingTarget && !self.has_flipped && !seen.any_flipped();
        if kept_from_it || !may_have_flipped(seen, self.state) {
            return Next::RollBack(Cause::new(reason, why));
        }
        let leaves = |g: &ProtectionGroup| g.metadata.deletion_timestamp.is_some();
        let how = match self.state {
            _ if seen.group.as_ref().is_some_and(leaves) => format!(
                "Roles are on cluster {target}, or on their way, and {} is being deleted: nobody starts the VMs when it is gone. Create it again, and it starts them on cluster {target} when the disks there are UpToDate; or start them there by hand. Look with: kubectl --context {target} get vm,drbdresource -A",
                seen.group_title()
            ),
            State::PromotingTarget => format!(
                "Roles are on cluster {target}, or on their way, and the VMs are down on both. When the disks there are connected and UpToDate, DRBD becomes Primary and the group goes on there without another request; a new FailoverRequest with targetCluster {target} follows it and runs the hooks that are left. Look with: kubectl --context {target} get drbdresource -A"
            ),
            _ => format!(
                "Roles may already be on cluster {target}, so nothing is rolled back; create a new FailoverRequest with targetCluster {target} to continue."
            ),
        };
        fail(how, Some(false), Some(true))
    }
}

/// Looks at the current state: first at what ends it from outside, then at what it is about.
pub fn look(stage: &Stage, journal: &mut Journal) -> Next {
    if let Some(end) = interruption(stage) {
        return end;
    }
    if stage.seen.request.spec.abort && stage.state.is_past_flip() {
        journal.ignore_abort(&abort_too_late(stage));
    }
    let next = match stage.state {
        State::Validating => before::validating(stage, journal),
        State::RunningPreHooks => before::running_pre_hooks(stage, journal),
        State::StoppingOnSource => stop::stopping_on_source(stage, journal),
        State::RemovingTaints => stop::removing_taints(stage, journal),
        State::PromotingTarget => flip::promoting_target(stage, journal),
        State::StartingOnTarget => flip::starting_on_target(stage, journal),
        State::RunningPostHooks => flip::running_post_hooks(stage, journal),
        State::Blocked => before::blocked(stage, journal),
        State::RollingBack => rollback::rolling_back(stage, journal),
        // These are not looked at: they are before the lock, or after the end.
        State::Pending | State::Completed | State::Failed => {
            Next::Enter(State::Validating, "the lock is taken".into())
        }
    };
    within_budget(stage, next)
}

/// What ends a failover from outside: its group is gone, it is deleted, or it is told to abort. After
/// the flip only the time counts, and a state whose end can be observed is rather left than failed.
fn interruption(stage: &Stage) -> Option<Next> {
    let seen = stage.seen;
    if seen.group.is_none() {
        return Some(Next::Fail {
            cause: group_is_gone(seen, stage.state),
            rolled_back: Some(false),
            resumable: None,
        });
    }
    if stage.state == State::RollingBack || stage.state.is_past_flip() {
        return None;
    }
    if seen.request.metadata.deletion_timestamp.is_some() {
        return Some(stage.give_up(
            reason::DELETED,
            "The FailoverRequest was deleted before the role flip.".into(),
        ));
    }
    if seen.request.spec.abort {
        return Some(stage.give_up(
            reason::ABORTED,
            "Aborted by spec.abort before the role flip.".into(),
        ));
    }
    None
}

/// Before the flip a state ends with the budget, whatever it waits for.
fn within_budget(stage: &Stage, next: Next) -> Next {
    let bound = stage.state != State::RollingBack && !stage.state.is_past_flip();
    if !bound || stage.now < stage.deadline {
        return next;
    }
    match next {
        Next::Wait(wait, _) => over_budget(stage, &wait.fact),
        Next::Enter(..) => over_budget(stage, "it had not come to the role flip"),
        ended => ended,
    }
}

fn over_budget(stage: &Stage, what: &str) -> Next {
    stage.give_up(reason::BUDGET_EXCEEDED, budget_sentence(stage, what))
}

fn budget_sentence(stage: &Stage, what: &str) -> String {
    format!(
        "The budget of this failover ended at {} while {what} (state {} since {}).",
        moment(stage.deadline),
        stage.state,
        moment(stage.since)
    )
}

/// What the hub wants the group to be, and what a mirror reports then.
fn wanted(seen: &Scene) -> (DesiredState, CurrentState) {
    let group = seen.group.as_ref();
    match group.map_or(DesiredState::Running, |g| g.spec.desired_state) {
        DesiredState::Running => (DesiredState::Running, CurrentState::Running),
        DesiredState::Stopped => (DesiredState::Stopped, CurrentState::Stopped),
    }
}

/// Why a failover ends whose group is gone.
pub fn group_is_gone(seen: &Scene, state: State) -> Cause {
    let message = format!(
        "{} was deleted while this failover ran in {state}. Nothing more is done; see whether its VMs run: kubectl get vm -A on clusters {} and {}.",
        seen.group_title(),
        seen.source.cluster,
        seen.target.cluster
    );
    Cause::new(reason::GROUP_NOT_FOUND, message)
}

/// The answer to an abort after the roles began to change.
fn abort_too_late(stage: &Stage) -> String {
    let (target, source) = (&stage.seen.target.cluster, &stage.seen.source.cluster);
    let next = match stage.state {
        State::PromotingTarget => format!(
            "It goes on to cluster {target}; if the disks there cannot be promoted by {}, it ends then, and goes back to cluster {source} where that is safe",
            moment(stage.deadline)
        ),
        _ => format!(
            "It goes on to its end, at {} at the latest",
            moment(stage.deadline)
        ),
    };
    words::Wait {
        what: format!(
            "The failover of {} is not aborted",
            stage.seen.group_title()
        ),
        by: format!(
            "the roles have begun to move to cluster {target} (state {} since {})",
            stage.state,
            moment(stage.since)
        ),
        since: None,
        next: &next,
        command: format!(
            "To go back afterwards, create a FailoverRequest with targetCluster {source}; look with: kubectl get failoverrequest -n {} {} -o yaml",
            stage.seen.namespace(),
            stage.seen.name()
        ),
    }
    .to_string()
}

/// The answer to an abort of a failover that has ended.
pub fn abort_after_the_end(seen: &Scene, state: State) -> String {
    format!(
        "The failover of {} is not aborted: it has ended as {state} before, and nothing of it is undone. To move the group, create a new FailoverRequest; look with: kubectl get protectiongroup -n {} {}",
        seen.group_title(),
        seen.namespace(),
        seen.group_name()
    )
}

/// Whether the roles may go back to the source although they have changed; Err says why not. All of
/// this must be seen, and unknown is not seen:
///
/// - this request changed them for every VM, when the disks were equal and nothing ran;
/// - the target was never Primary since, and its mirror was never told to run: nothing was written;
/// - the source holds everything;
/// - the disks of the target are the reason. One that is merely slow goes forward.
///
/// Two Primaries cannot come of it: the source becomes Primary, at a further epoch, only when the
/// agent of the target has reported Secondary at that epoch.
pub fn may_return(stage: &Stage) -> Result<(), String> {
    nothing_was_started(stage)?;
    let seen = stage.seen;
    let (source, target) = (&seen.source, &seen.target);
    for Member { vm, .. } in &seen.cast {
        if let Some(why) = may_have_been_primary(target, vm) {
            return Err(format!("VM {vm} {why} on cluster {}", target.cluster));
        }
        if !is_up_to_date(source, vm) {
            return Err(format!(
                "VM {vm} is not seen UpToDate on cluster {}",
                source.cluster
            ));
        }
    }
    let mut cast = seen.cast.iter();
    if cast.all(|m| out_of_sync(target, &m.vm).is_none()) {
        return Err(format!(
            "the disks on cluster {} can be promoted",
            target.cluster
        ));
    }
    Ok(())
}

/// Whether this request brought the roles to the target and no VM was started there since; Err says why not.
fn nothing_was_started(stage: &Stage) -> Result<(), String> {
    if !stage.flipped_all {
        return Err("roles were there before this request".into());
    }
    let target = &stage.seen.target;
    match &target.mirror {
        Seen::Present(m) if reports(m, DesiredState::Stopped, CurrentState::Stopped) => Ok(()),
        _ => Err(mirror_says(stage.seen, target, "stopped")),
    }
}

/// Whether the roles may go back because a DRBDResource of the target is gone; Err says why not. Nothing
/// ran on the target, and each disk of the source holds everything: its other side is gone or was
/// never Primary, or the two were seen equal and connected.
pub fn may_return_without(stage: &Stage) -> Result<(), String> {
    nothing_was_started(stage)?;
    let seen = stage.seen;
    let (source, target) = (&seen.source, &seen.target);
    for Member { vm, .. } in &seen.cast {
        let untouched =
            target.resource(vm).is_absent() || may_have_been_primary(target, vm).is_none();
        let whole = if untouched {
            is_up_to_date(source, vm)
        } else {
            out_of_sync(source, vm).is_none()
        };
        if !whole {
            return Err(format!(
                "VM {vm} is not seen to have everything on cluster {}",
                source.cluster
            ));
        }
    }
    Ok(())
}

/// Whether any member's role may be on the target: a point that no failover returns from.
pub fn may_have_flipped(seen: &Scene, state: State) -> bool {
    let cast = &seen.cast;
    let mut requests = cast.iter().filter_map(|m| m.request);
    state.is_past_flip() || requests.any(|r| seen.flipped(r))
}

/// Whether this state, or one before it, may have told the source to stop.
fn source_may_be_stopped(state: State) -> bool {
    matches!(
        state,
        State::StoppingOnSource | State::RemovingTaints | State::RollingBack
    )
}

/// Tells a mirror what to do, if it was not told already. One that was not seen cannot be told.
fn tell(side: &Side, desired: DesiredState) -> Vec<Step> {
    match &side.mirror {
        Seen::Present(mirror) if mirror.spec.desired_state != desired => {
            vec![Step::SetDesiredState {
                cluster: side.cluster.clone(),
                desired,
                resource_version: mirror.metadata.resource_version.clone(),
            }]
        }
        _ => vec![],
    }
}

fn mirror_command(stage: &Stage, side: &Side) -> String {
    let what = format!(
        "get protectiongroup -n {} {} -o yaml",
        stage.seen.namespace(),
        stage.seen.group_name()
    );
    stage.command(&side.cluster, &what)
}

fn target_silent(stage: &Stage, fact: String) -> Obstacle {
    Obstacle {
        reason: reason::CLUSTER_UNREACHABLE,
        fact,
        command: stage.command(&stage.seen.target.cluster, "get node"),
    }
}

/// Records hooks that have ended. A failure that was passed over is told once as an event.
fn passed_hooks(passed_over: &[String], journal: &mut Journal) {
    let earlier = crate::conditions::get(&journal.status().conditions, reason::HOOKS_SUCCEEDED);
    let mut failures: Vec<String> = earlier
        .filter(|c| c.status == "False")
        .map(|c| c.message.clone())
        .into_iter()
        .collect();
    failures.extend(passed_over.iter().cloned());
    if failures.is_empty() {
        journal.fact(
            reason::HOOKS_SUCCEEDED,
            Truth::True,
            "Succeeded",
            "Every hook succeeded.",
        );
        return;
    }
    journal.fact(
        reason::HOOKS_SUCCEEDED,
        Truth::False,
        reason::HOOK_FAILED,
        &words::list(&failures),
    );
    for failure in passed_over {
        journal.note(Note::warning(
            reason::HOOK_FAILED,
            format!("Passed over: {failure}."),
        ));
    }
}

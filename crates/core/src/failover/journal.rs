//! The record that a failover keeps of itself in the request's status: the state, the trail of
//! states, conditions, and one sentence about where it stands.

use std::time::Duration;

use farshore_api::conditions::failover as reason;
use farshore_api::failover_request::{
    FailoverRequestStatus, FailoverState, FailoverStep, SafetyCheckStatus, StepState,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::lock;
use super::observed::Observed;
use super::step::{Decision, Step};
use crate::Note;
use crate::conditions::{self, Truth};
use crate::words::moment;

/// Why a failover ends or turns back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Reason of the condition `Complete`.
    pub reason: &'static str,
    /// Sentences for a person.
    pub message: String,
}

impl Cause {
    /// A cause.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// The status that a decision is writing.
#[derive(Clone, Debug)]
pub struct Journal {
    status: FailoverRequestStatus,
    notes: Vec<Note>,
    now: Timestamp,
    generation: Option<i64>,
    target: String,
}

impl Journal {
    /// Continues the request's own record; begins it in `Pending`.
    pub fn open(seen: &Observed, now: Timestamp) -> Self {
        let mut journal = Self {
            status: seen.request.status.clone().unwrap_or_default(),
            notes: Vec::new(),
            now: whole_second(now),
            generation: seen.request.metadata.generation,
            target: seen.target.cluster.clone(),
        };
        journal.status.observed_generation = journal.generation;
        if journal.status.state.is_none() {
            journal.begin(FailoverState::Pending);
            journal.status.source_cluster = active_cluster(seen);
        }
        journal
    }

    /// The state reached in this decision so far.
    pub fn state(&self) -> FailoverState {
        self.status.state.unwrap_or(FailoverState::Pending)
    }

    /// The status so far.
    pub fn status(&self) -> &FailoverRequestStatus {
        &self.status
    }

    /// The status so far, to be filled.
    pub(super) fn status_mut(&mut self) -> &mut FailoverRequestStatus {
        &mut self.status
    }

    /// When the current state was entered.
    pub fn since(&self) -> Timestamp {
        self.status
            .steps
            .last()
            .map_or(self.now, |s| s.start_time.0)
    }

    /// Whether the group was on the target already when the request was first seen.
    pub fn began_at_target(&self) -> bool {
        self.status.source_cluster.as_deref() == Some(self.target.as_str())
    }

    /// The reason of a condition, if it is there.
    pub fn reason_of(&self, type_: &str) -> Option<&str> {
        conditions::get(&self.status.conditions, type_).map(|c| c.reason.as_str())
    }

    /// When the budget ends; None before the lock was taken.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.status.deadline.as_ref().map(|t| t.0)
    }

    /// The lock is ours: the budget runs from the moment it was taken.
    pub fn locked(&mut self, seen: &Observed, acquired: Timestamp) {
        let budget = seen
            .request
            .spec
            .timeout_seconds
            .unwrap_or(seen.zone.spec.failover.budget_seconds);
        let start = whole_second(acquired);
        let deadline = start + SignedDuration::from_secs(i64::from(budget));
        self.status.lock = Some(lock::audit(seen, acquired));
        self.status.start_time = Some(Time(start));
        self.status.deadline = Some(Time(deadline));
        let sentence = format!(
            "Holds Lease {}/{} since {}.",
            seen.namespace(),
            seen.lease_name(),
            moment(start)
        );
        self.fact(reason::LOCKED, Truth::True, "Acquired", &sentence);
    }

    /// The lock was let go.
    pub fn released(&mut self) {
        if conditions::is_true(&self.status.conditions, reason::LOCKED) {
            let sentence = "The lock was released at the end.";
            self.fact(reason::LOCKED, Truth::False, "Released", sentence);
        }
    }

    /// Another request holds the lock.
    pub fn not_locked(&mut self, sentence: &str) {
        self.fact(reason::LOCKED, Truth::False, reason::LOCK_HELD, sentence);
        self.wait(reason::LOCK_HELD, sentence);
    }

    /// Leaves the current state, which did what it is for, and enters the next.
    pub fn enter(&mut self, next: FailoverState, because: &str) {
        self.status.rolled_back = None;
        if self.state() == FailoverState::Blocked {
            self.fact(
                reason::BLOCKED,
                Truth::False,
                "WayIsClear",
                &format!("It goes on: {because}."),
            );
        }
        self.finish_step(StepState::Done, because);
        self.notes.push(Note::normal(
            next.as_str(),
            format!("{} → {next}: {because}.", self.state()),
        ));
        self.begin(next);
        if next == FailoverState::Completed {
            self.stamp_end();
            let sentence = if self.reason_of(reason::TARGET_RUNNING) == Some(reason::GROUP_STOPPED)
            {
                format!(
                    "The group is on cluster {} and stays stopped, as its spec.desiredState says.",
                    self.target
                )
            } else {
                format!("The group runs on cluster {}.", self.target)
            };
            self.status.message = Some(sentence.clone());
            self.fact(reason::COMPLETE, Truth::True, "Completed", &sentence);
            self.finish_step(StepState::Done, "");
        } else {
            self.fact(
                reason::COMPLETE,
                Truth::False,
                reason::IN_PROGRESS,
                &format!("In state {next}."),
            );
        }
    }

    /// Stays in the current state and says why.
    pub fn wait(&mut self, reason: &str, sentence: &str) {
        self.status.message = Some(sentence.into());
        if let Some(step) = self.status.steps.last_mut() {
            step.message = Some(sentence.into());
        }
        // While it rolls back, the condition keeps the cause: it must survive a restart.
        if self.state() != FailoverState::RollingBack {
            self.fact(reason::COMPLETE, Truth::False, reason, sentence);
        }
    }

    /// Turns back. The cause stays in the condition `Complete`.
    pub fn roll_back(&mut self, cause: Cause) {
        self.finish_step(StepState::Failed, &cause.message);
        self.notes
            .push(Note::warning("RollingBack", cause.message.clone()));
        self.begin(FailoverState::RollingBack);
        self.fact(reason::COMPLETE, Truth::False, cause.reason, &cause.message);
        self.follow_abort(&cause);
    }

    fn follow_abort(&mut self, cause: &Cause) {
        if cause.reason == reason::ABORTED {
            self.fact(
                reason::ABORTED,
                Truth::True,
                reason::ABORTED,
                &cause.message,
            );
        }
    }

    /// `spec.abort` comes too late: says so once, as an event, and for as long as it holds.
    pub fn ignore_abort(&mut self, sentence: &str) {
        if self.reason_of(reason::ABORTED).is_none() {
            self.notes
                .push(Note::warning(reason::ABORT_IGNORED, sentence));
        }
        self.fact(
            reason::ABORTED,
            Truth::False,
            reason::ABORT_IGNORED,
            sentence,
        );
    }

    /// The reason and message that the condition `Complete` holds: in `RollingBack` the cause.
    pub fn cause(&self) -> (&str, &str) {
        conditions::get(&self.status.conditions, reason::COMPLETE)
            .map_or(("", ""), |c| (c.reason.as_str(), c.message.as_str()))
    }

    /// Ends without success.
    pub fn end(
        &mut self,
        state: FailoverState,
        cause: Cause,
        rolled_back: Option<bool>,
        resumable: Option<bool>,
    ) {
        self.turn(state, &cause, rolled_back);
        self.finish_step(StepState::Failed, &cause.message);
        self.stamp_end();
        self.status.resumable = resumable;
    }

    /// Another group is in the way, and this request waits for it to go.
    pub fn queue(&mut self, cause: Cause, rolled_back: Option<bool>) {
        self.turn(FailoverState::Blocked, &cause, rolled_back);
    }

    fn turn(&mut self, state: FailoverState, cause: &Cause, rolled_back: Option<bool>) {
        // A rollback that was observed did its work; whatever else ends this way did not.
        let done = self.state() == FailoverState::RollingBack && rolled_back == Some(true);
        let how = if done {
            StepState::Done
        } else {
            StepState::Failed
        };
        self.finish_step(how, &cause.message);
        self.notes
            .push(Note::warning(state.as_str(), cause.message.clone()));
        self.begin(state);
        self.status.rolled_back = rolled_back;
        self.status.message = Some(cause.message.clone());
        self.fact(reason::COMPLETE, Truth::False, cause.reason, &cause.message);
        let how = match state {
            FailoverState::Blocked => reason::BLOCKED,
            _ => reason::FAILED,
        };
        self.fact(how, Truth::True, cause.reason, &cause.message);
        self.follow_abort(cause);
    }

    /// Sets a condition.
    pub fn fact(&mut self, type_: &str, status: Truth, reason: &str, message: &str) {
        conditions::set(
            &mut self.status.conditions,
            type_,
            status,
            reason,
            message,
            self.generation,
            self.now,
        );
    }

    /// An event that is not a change of state.
    pub fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    /// Whether a safety check of this request has passed already.
    pub fn has_passed_safety(&self) -> bool {
        crate::conditions::is_true(&self.status.conditions, reason::SAFETY_CHECK_PASSED)
    }

    /// Records the result of a safety check. The same result keeps the moment of the first.
    pub fn checked(&mut self, mut check: SafetyCheckStatus) {
        if let Some(before) = &self.status.safety_check {
            let performed_at = check.performed_at.clone();
            check.performed_at = before.performed_at.clone();
            if *before == check {
                return;
            }
            check.performed_at = performed_at;
        }
        self.status.safety_check = Some(check);
    }

    /// The decision.
    pub fn close(mut self, steps: Vec<Step>, requeue: Option<Duration>) -> Decision {
        let generation = self.status.observed_generation;
        conditions::observed(&mut self.status.conditions, generation);
        Decision {
            status: self.status,
            steps,
            notes: self.notes,
            requeue,
        }
    }

    fn begin(&mut self, state: FailoverState) {
        self.status.state = Some(state);
        self.status.steps.push(FailoverStep {
            name: state,
            state: StepState::Running,
            start_time: Time(self.now),
            end_time: None,
            message: None,
        });
    }

    fn finish_step(&mut self, how: StepState, message: &str) {
        let Some(step) = self.status.steps.last_mut() else {
            return;
        };
        if step.end_time.is_some() {
            return;
        }
        step.state = how;
        step.end_time = Some(Time(self.now));
        step.message = (!message.is_empty()).then(|| message.to_string());
    }

    fn stamp_end(&mut self) {
        self.status.completion_time = Some(Time(self.now));
        self.status.duration_seconds = self
            .status
            .start_time
            .as_ref()
            .map(|start| self.now.as_second() - start.0.as_second());
    }
}

/// The cluster that has the group: the one that all its members name as their source. While they
/// disagree it is the one that is left.
fn active_cluster(seen: &Observed) -> Option<String> {
    if seen.members.is_empty() || seen.source.cluster.is_empty() {
        return None;
    }
    let side = if seen.all_flipped() {
        &seen.target
    } else {
        &seen.source
    };
    Some(side.cluster.clone())
}

/// The API keeps whole seconds of a Time.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

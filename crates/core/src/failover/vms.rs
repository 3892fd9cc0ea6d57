//! Progress of each VM, as the mirrors and DRBD report it. Nothing here is a decision: it is what a
//! person sees in `status.vmStatuses`.

use std::collections::BTreeMap;

use farshore_api::VmRef;
use farshore_api::failover_request::{
    FailoverState as State, FailoverVmStatus, VmFailoverPhase as Phase,
};
use farshore_api::protection_group::{CurrentState, DesiredState};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::evidence;
use super::journal::Journal;
use super::observed::Side;
use super::scene::Scene;

/// A VM by namespace and name.
type Key<'a> = (&'a str, &'a str);
/// What a mirror tells of a VM: its state, and why it is not as wanted.
type Told<'a> = (CurrentState, Option<&'a str>);

/// Brings `vmStatuses` up to date.
pub fn refresh(seen: &Scene, journal: &mut Journal, now: Timestamp) {
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let state = journal.state();
    let rolled_back = journal.status().rolled_back == Some(true);
    let look = Look {
        seen,
        source: states(&seen.source),
        target: states(&seen.target),
    };
    let old = &journal.status().vm_statuses;
    let before: BTreeMap<Key, &FailoverVmStatus> = old
        .iter()
        .map(|vm| ((vm.vm_namespace.as_str(), vm.vm_name.as_str()), vm))
        .collect();
    let entry = |vm: &VmRef| {
        let before = before.get(&key(vm)).copied();
        let done = before.is_some_and(|b| b.end_time.is_some());
        let (phase, message) = match state {
            State::Failed if rolled_back => look.on_source(vm),
            State::Failed => look.after_failure(vm, before),
            _ => look.during(vm, state, done),
        };
        let stopping = phase == Phase::Stopping;
        let arrived = state.is_past_flip() && phase == look.end();
        FailoverVmStatus {
            vm_name: vm.name.clone(),
            vm_namespace: vm.namespace.clone(),
            phase,
            message,
            start_time: before
                .and_then(|b| b.start_time.clone())
                .or_else(|| stopping.then(|| now.clone())),
            end_time: before
                .and_then(|b| b.end_time.clone())
                .or_else(|| arrived.then(|| now.clone())),
        }
    };
    let vms = seen.cast.iter().map(|member| entry(&member.vm)).collect();
    journal.status_mut().vm_statuses = vms;
}

/// The states of all VMs on both sides.
struct Look<'a> {
    seen: &'a Scene<'a>,
    source: BTreeMap<Key<'a>, Told<'a>>,
    target: BTreeMap<Key<'a>, Told<'a>>,
}

impl Look<'_> {
    /// Whether the group shall be stopped: its VMs are promoted and not started.
    fn stays_stopped(&self) -> bool {
        let group = self.seen.group.as_ref();
        group.is_some_and(|g| g.spec.desired_state == DesiredState::Stopped)
    }

    /// The phase in which a VM has arrived on the target.
    fn end(&self) -> Phase {
        if self.stays_stopped() {
            Phase::Promoted
        } else {
            Phase::Running
        }
    }

    fn during(&self, vm: &VmRef, state: State, done: bool) -> (Phase, Option<String>) {
        let (source, target) = (&self.seen.source, &self.seen.target);
        match state {
            State::Pending | State::Validating | State::Blocked | State::RunningPreHooks => {
                (Phase::Pending, None)
            }
            State::StoppingOnSource => match state_of(&self.source, source, vm) {
                Some((CurrentState::Stopped, _)) => (Phase::Stopped, None),
                other => (Phase::Stopping, said(other, source)),
            },
            State::RemovingTaints => (Phase::Stopped, None),
            State::PromotingTarget => match evidence::is_primary(target, vm) {
                Ok(()) => (Phase::Promoted, None),
                Err(why) => {
                    let message = format!("{why} on cluster {}", target.cluster);
                    (Phase::Promoting, Some(message))
                }
            },
            // Once it was seen running on the target, the failover of this VM is done.
            _ if state.is_past_flip() && done => (self.end(), None),
            State::StartingOnTarget | State::RunningPostHooks | State::Completed
                if self.stays_stopped() =>
            {
                let message = "stays stopped, as desiredState of the group says";
                (Phase::Promoted, Some(message.into()))
            }
            State::StartingOnTarget | State::RunningPostHooks | State::Completed => {
                match state_of(&self.target, target, vm) {
                    Some((CurrentState::Running, _)) => (Phase::Running, None),
                    other => (Phase::Starting, said(other, target)),
                }
            }
            State::RollingBack | State::Failed => self.on_source(vm),
        }
    }

    /// After a rollback, or on the way.
    fn on_source(&self, vm: &VmRef) -> (Phase, Option<String>) {
        let source = &self.seen.source;
        let state = state_of(&self.source, source, vm);
        match state {
            Some((CurrentState::Running, _)) => (Phase::Running, said(state, source)),
            other => (Phase::Starting, said(other, source)),
        }
    }

    /// What has come to its end stays; what had begun and did not has failed.
    fn after_failure(
        &self,
        vm: &VmRef,
        before: Option<&FailoverVmStatus>,
    ) -> (Phase, Option<String>) {
        let target = &self.seen.target;
        let phase = before.map_or(Phase::Pending, |b| b.phase);
        let message = before.and_then(|b| b.message.clone());
        let state = state_of(&self.target, target, vm);
        match phase {
            Phase::Pending | Phase::Running => (phase, message),
            Phase::Promoted if self.stays_stopped() => (phase, message),
            _ if matches!(state, Some((CurrentState::Running, _))) => {
                (Phase::Running, said(state, target))
            }
            _ => (Phase::Failed, message),
        }
    }
}

/// Each VM as this side's mirror reports it.
fn states(side: &Side) -> BTreeMap<Key<'_>, Told<'_>> {
    let status = side.mirror.present().and_then(|m| m.status.as_ref());
    let vms = status.map(|s| s.vms.as_slice()).unwrap_or_default();
    vms.iter()
        .map(|vm| {
            let told = (vm.state, vm.message.as_deref());
            ((vm.namespace.as_str(), vm.name.as_str()), told)
        })
        .collect()
}

/// What is told of a VM; where its status does not name it, what holds for all members.
fn state_of<'a>(states: &BTreeMap<Key, Told<'a>>, side: &Side, vm: &VmRef) -> Option<Told<'a>> {
    if let Some(told) = states.get(&key(vm)) {
        return Some(*told);
    }
    let mirror = side.mirror.present()?;
    let mut members = mirror.spec.members.iter();
    if !members.any(|m| m.vm_ref.as_ref() == Some(vm)) {
        return None;
    }
    let told = [
        (DesiredState::Stopped, CurrentState::Stopped),
        (DesiredState::Running, CurrentState::Running),
    ];
    told.into_iter()
        .find(|(desired, state)| evidence::reports(mirror, *desired, *state))
        .map(|(_, state)| (state, None))
}

fn key(vm: &VmRef) -> Key<'_> {
    (&vm.namespace, &vm.name)
}

fn said(told: Option<Told>, side: &Side) -> Option<String> {
    let state = told.map_or("not known", |(state, _)| state.as_str());
    let why = told.and_then(|(_, why)| why);
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    Some(format!("is {state} on cluster {}{why}", side.cluster))
}

//! Progress of each VM, as the mirrors and DRBD report it. Nothing here is a decision: it is what a
//! person sees in `status.vmStatuses`.

use std::collections::BTreeMap;

use farshore_api::failover_request::{FailoverState, FailoverVmStatus, VmFailoverPhase};
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_api::{ProtectionRequest, VmRef};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::evidence;
use super::journal::Journal;
use super::observed::{Observed, Side};

/// One VM of a failover.
#[derive(Clone, Debug)]
pub struct Member<'a> {
    /// The VM.
    pub vm: VmRef,
    /// Its ProtectionRequest; None when it is gone.
    pub request: Option<&'a ProtectionRequest>,
}

/// The VMs of this failover. They are fixed when validation is over: a VM that joins the group
/// later was not looked at, and stays where it is; one whose request vanished is still waited for.
pub fn cast(seen: &Observed) -> Vec<Member<'_>> {
    let stored = seen.request.status.as_ref();
    let state = stored.and_then(|s| s.state);
    let validated = !matches!(
        state,
        None | Some(FailoverState::Pending | FailoverState::Validating | FailoverState::Blocked)
    );
    let of_group = seen.members.iter().map(|m| (m.vm(), m));
    match stored.filter(|_| validated) {
        None => of_group
            .map(|(vm, m)| Member {
                vm,
                request: Some(m),
            })
            .collect(),
        Some(stored) => {
            let requests: BTreeMap<VmRef, &ProtectionRequest> = of_group.collect();
            let listed = stored.vm_statuses.iter().map(vm_of);
            listed
                .map(|vm| Member {
                    request: requests.get(&vm).copied(),
                    vm,
                })
                .collect()
        }
    }
}

fn vm_of(status: &FailoverVmStatus) -> VmRef {
    VmRef {
        namespace: status.vm_namespace.clone(),
        name: status.vm_name.clone(),
    }
}

/// Brings `vmStatuses` up to date.
pub fn refresh(seen: &Observed, journal: &mut Journal, now: Timestamp) {
    let state = journal.state();
    let before: BTreeMap<VmRef, FailoverVmStatus> = journal
        .status()
        .vm_statuses
        .iter()
        .map(|vm| (vm_of(vm), vm.clone()))
        .collect();
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let source = states(&seen.source);
    let target = states(&seen.target);
    let vms = cast(seen).into_iter().map(|Member { vm, .. }| {
        let mut entry = before.get(&vm).cloned().unwrap_or(FailoverVmStatus {
            vm_name: vm.name.clone(),
            vm_namespace: vm.namespace.clone(),
            phase: VmFailoverPhase::Pending,
            message: None,
            start_time: None,
            end_time: None,
        });
        let there = |map: &BTreeMap<VmRef, CurrentState>, side: &Side| {
            map.get(&vm).copied().or_else(|| whole(side))
        };
        let (phase, message) = match state {
            FailoverState::Pending
            | FailoverState::Validating
            | FailoverState::Blocked
            | FailoverState::RunningPreHooks => (VmFailoverPhase::Pending, None),
            FailoverState::StoppingOnSource => match there(&source, &seen.source) {
                Some(CurrentState::Stopped) => (VmFailoverPhase::Stopped, None),
                seen_as => (VmFailoverPhase::Stopping, said(seen_as, &seen.source)),
            },
            FailoverState::RemovingTaints => (VmFailoverPhase::Stopped, None),
            FailoverState::PromotingTarget => match evidence::is_primary(&seen.target, &vm) {
                Ok(()) => (VmFailoverPhase::Promoted, None),
                Err(why) => (
                    VmFailoverPhase::Promoting,
                    Some(format!("{why} on cluster {}", seen.target.cluster)),
                ),
            },
            FailoverState::StartingOnTarget
            | FailoverState::RunningPostHooks
            | FailoverState::Completed => match there(&target, &seen.target) {
                Some(CurrentState::Running) => (VmFailoverPhase::Running, None),
                // Once it was seen running, the failover of this VM is done.
                _ if entry.end_time.is_some() => (VmFailoverPhase::Running, None),
                seen_as => (VmFailoverPhase::Starting, said(seen_as, &seen.target)),
            },
            FailoverState::RollingBack => match there(&source, &seen.source) {
                Some(CurrentState::Running) => (
                    VmFailoverPhase::Running,
                    Some(format!("runs on cluster {}", seen.source.cluster)),
                ),
                seen_as => (VmFailoverPhase::Starting, said(seen_as, &seen.source)),
            },
            // What was last seen stays; what had not come to its end has failed.
            FailoverState::Failed => match entry.phase {
                done @ (VmFailoverPhase::Running | VmFailoverPhase::Pending) => {
                    (done, entry.message.clone())
                }
                _ => (VmFailoverPhase::Failed, entry.message.clone()),
            },
        };
        entry.phase = phase;
        entry.message = message;
        if phase == VmFailoverPhase::Stopping && entry.start_time.is_none() {
            entry.start_time = Some(now.clone());
        }
        let on_target = phase == VmFailoverPhase::Running
            && !matches!(state, FailoverState::RollingBack | FailoverState::Failed);
        if on_target && entry.end_time.is_none() {
            entry.end_time = Some(now.clone());
        }
        entry
    });
    journal.status_mut().vm_statuses = vms.collect();
}

/// State of each VM as this side's mirror reports it.
fn states(side: &Side) -> BTreeMap<VmRef, CurrentState> {
    let status = side.mirror.present().and_then(|m| m.status.as_ref());
    let vms = status.map(|s| s.vms.as_slice()).unwrap_or_default();
    vms.iter()
        .map(|vm| {
            let key = VmRef {
                namespace: vm.namespace.clone(),
                name: vm.name.clone(),
            };
            (key, vm.state)
        })
        .collect()
}

/// State of all VMs where the mirror names none: only what holds for each of them.
fn whole(side: &Side) -> Option<CurrentState> {
    let mirror = side.mirror.present()?;
    let told = [
        (DesiredState::Stopped, CurrentState::Stopped),
        (DesiredState::Running, CurrentState::Running),
    ];
    told.into_iter()
        .find(|(desired, state)| evidence::reports(mirror, *desired, *state))
        .map(|(_, state)| state)
}

fn said(state: Option<CurrentState>, side: &Side) -> Option<String> {
    let state = state.map_or("not known".to_string(), |s| s.to_string());
    Some(format!("is {state} on cluster {}", side.cluster))
}

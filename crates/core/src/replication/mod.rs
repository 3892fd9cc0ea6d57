//! The replication monitor: how much data of a group would be lost if its active cluster vanished
//! now, and a record of each change of the answer [S1] [S2].
//!
//! - A VM is **in sync** while every volume is Connected and Established with both disks UpToDate,
//!   and both clusters say so, as far as they answer. Then nothing would be lost: its RPO is 0.
//! - Else its RPO is the time since both sides were last seen equal. It rises until they are again.
//! - The group is `Violated` when a VM's RPO is above the objective, or a VM was never in sync;
//!   `AtRisk` when a VM is not in sync and not yet above; `Compliant` when all are in sync;
//!   `Unknown` when neither cluster answered three times in a row, and while no member has come
//!   under replication yet: nothing was promised.
//! - Every change of that word makes one RPOEvent, made before the word is stored.

mod event;
mod vm;

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::conditions::replication as condition;
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::replication_group_status::{
    ReplicationGroupStatusStatus as Status, RpoStatus, VmReplication,
};
use farshore_api::{DRBDResource, ProtectionRequest, RPOEvent, ReplicationGroupStatus, VmRef};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub use event::{KEPT, is_event_of, surplus};

use crate::conditions::{self, Truth};
use crate::{Note, Seen, words};

/// Polls without any answer after which nothing is known any more.
pub const MISSED_LIMIT: i32 = 3;

/// One poll of both clusters for one group.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The object whose status is written.
    pub monitor: ReplicationGroupStatus,
    /// The group's members.
    pub members: Vec<ProtectionRequest>,
    /// Members of the group without a ProtectionRequest.
    pub unresolved: Vec<String>,
    /// The zone's DRBDResources by VM, on each cluster.
    pub clusters: BTreeMap<String, Seen<BTreeMap<VmRef, DRBDResource>>>,
    /// When this process polled before; None after a restart.
    pub last_poll: Option<Timestamp>,
}

/// What follows from a poll. The event is made first, then the status is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The new status.
    pub status: Status,
    /// The record of a change of `rpoStatus`.
    pub event: Option<RPOEvent>,
    /// The same as an Event for `kubectl describe`.
    pub notes: Vec<Note>,
    /// When to poll again.
    pub requeue: Duration,
}

/// Computes the health of a group from one poll.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    let before = seen.monitor.status.clone().unwrap_or_default();
    let mut status = before.clone();
    status.observed_generation = seen.monitor.metadata.generation;
    status.last_poll_time = Some(Time(whole_second(now)));
    let silent: Vec<String> = seen
        .clusters
        .iter()
        .filter_map(|(cluster, look)| Some(format!("cluster {cluster} ({})", look.unknown()?)))
        .collect();
    if silent.len() < seen.clusters.len() {
        status.missed_polls = None;
        look_at_vms(seen, &mut status, now);
        status.rpo_status = Some(if any_protected(seen) {
            judge(seen, &status.vms)
        } else {
            RpoStatus::Unknown
        });
    } else {
        // What was last seen stays, until it is too old to be said.
        let missed = before.missed_polls.unwrap_or(0).saturating_add(1);
        status.missed_polls = Some(missed.min(MISSED_LIMIT));
        if missed >= MISSED_LIMIT {
            status.rpo_status = Some(RpoStatus::Unknown);
        }
    }
    say_reachable(&mut status, seen, &silent, now);
    say_healthy(&mut status, seen, now);
    let event = event::of_change(&seen.monitor, &before, &status, now);
    let notes = event.iter().map(event::note).collect();
    let seconds = u64::try_from(seen.monitor.spec.polling_interval_seconds).unwrap_or(15);
    Decision {
        status,
        event,
        notes,
        requeue: Duration::from_secs(seconds.max(1)),
    }
}

fn look_at_vms(seen: &Observed, status: &mut Status, now: Timestamp) {
    let known: BTreeMap<VmRef, VmReplication> = status
        .vms
        .drain(..)
        .map(|vm| {
            let key = VmRef {
                namespace: vm.vm_namespace.clone(),
                name: vm.vm_name.clone(),
            };
            (key, vm)
        })
        .collect();
    status.vms = seen
        .members
        .iter()
        .map(|member| vm::look(seen, member, known.get(&member.vm()), now))
        .collect();
    let vms = &status.vms;
    // A VM that was never in sync has no number, and then neither has the group.
    let all: Option<Vec<i64>> = vms.iter().map(|vm| vm.current_rpo_seconds).collect();
    status.current_rpo_seconds = all.map(|all| all.into_iter().max().unwrap_or(0));
    status.out_of_sync_bytes = Some(vms.iter().filter_map(|vm| vm.out_of_sync_bytes).sum());
    status.connected_vms = Some(count(vms.iter().filter(|vm| vm::is_connected(vm))));
    status.total_vms = Some(count(vms.iter()) + i32::try_from(seen.unresolved.len()).unwrap_or(0));
}

/// Whether the objective speaks of any VM: one whose first copy was completed.
fn any_protected(seen: &Observed) -> bool {
    use ProtectionPhase::{Degraded, FailingOver, Protected};
    seen.members.iter().any(|member| {
        let phase = member.status.as_ref().and_then(|s| s.phase);
        matches!(phase, Some(Protected | Degraded | FailingOver))
    })
}

fn judge(seen: &Observed, vms: &[VmReplication]) -> RpoStatus {
    let objective = seen.monitor.spec.rpo_objective_seconds;
    let percent = i64::from(seen.monitor.spec.at_risk_percent);
    let never = !seen.unresolved.is_empty() || vms.iter().any(|v| v.current_rpo_seconds.is_none());
    let worst = vms
        .iter()
        .filter_map(|v| v.current_rpo_seconds)
        .max()
        .unwrap_or(0);
    let near = objective > 0 && worst.saturating_mul(100) > objective.saturating_mul(percent);
    if never || worst > objective {
        RpoStatus::Violated
    } else if near || vms.iter().any(|v| !vm::is_in_sync(v)) {
        RpoStatus::AtRisk
    } else {
        RpoStatus::Compliant
    }
}

fn say_reachable(status: &mut Status, seen: &Observed, silent: &[String], now: Timestamp) {
    let (truth, reason, message) = if silent.is_empty() {
        (Truth::True, "BothAnswer", "Both clusters answer.".into())
    } else {
        let rest = if silent.len() < seen.clusters.len() {
            "The values are those of the other side."
        } else {
            "The values are those last seen."
        };
        let commands = format!("kubectl get protectionzone -n {} -o yaml", namespace(seen));
        let message = format!(
            "No answer from {}. {rest} Look with: {commands}",
            words::list(silent)
        );
        (Truth::False, "ClusterUnreachable", message)
    };
    let generation = status.observed_generation;
    conditions::set(
        &mut status.conditions,
        condition::REACHABLE,
        truth,
        reason,
        message,
        generation,
        now,
    );
}

fn say_healthy(status: &mut Status, seen: &Observed, now: Timestamp) {
    let late: Vec<String> = status
        .vms
        .iter()
        .filter(|vm| !vm::is_in_sync(vm))
        .map(vm::title)
        .chain(
            seen.unresolved
                .iter()
                .map(|m| format!("{m} (not protected)")),
        )
        .collect();
    let (truth, reason, message) = match status.rpo_status {
        Some(RpoStatus::Unknown) if status.missed_polls.is_none() => {
            let message = format!(
                "No member of the group is protected yet, so there is no replication to judge. It is judged as soon as one is. Look with: kubectl get protectionrequest -n {}",
                namespace(seen)
            );
            (Truth::Unknown, condition::NO_PROTECTED_MEMBERS, message)
        }
        None | Some(RpoStatus::Unknown) => {
            let message =
                "Neither cluster answers; what was last seen may no longer hold.".to_string();
            (Truth::Unknown, "ClusterUnreachable", message)
        }
        Some(_) if late.is_empty() => (Truth::True, "InSync", "Every VM is in sync.".into()),
        Some(_) => {
            let message = format!(
                "Not in sync: VM {}. Look with: kubectl get protectionrequest -n {}",
                words::list(&late),
                namespace(seen)
            );
            (Truth::False, "NotInSync", message)
        }
    };
    let generation = status.observed_generation;
    conditions::set(
        &mut status.conditions,
        condition::HEALTHY,
        truth,
        reason,
        message,
        generation,
        now,
    );
}

fn namespace(seen: &Observed) -> &str {
    seen.monitor
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default()
}

fn count<T>(items: impl Iterator<Item = T>) -> i32 {
    i32::try_from(items.count()).unwrap_or(i32::MAX)
}

/// The API keeps whole seconds of a Time.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

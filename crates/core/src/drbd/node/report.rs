//! What is said about it: status, conditions, events.

use std::time::Duration;

use farshore_api::conditions::resource as condition;
use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState, Role};
use farshore_api::drbd_resource::{DRBDResourcePhase, DRBDResourceStatus, DRBDVolumeStatusEntry};
use farshore_api::names;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::model::{ResourceConfig, ResourceState};
use super::{
    Decision, Observed, Plan, SETTLED, SLOW, Step, WAITING, kernel_name, label, roles, syncing,
};
use crate::Note;
use crate::conditions::{self, Truth};
use crate::status_differs;

/// The conditions of which the agent is the writer.
const OWN: [&str; 5] = [
    condition::CONFIG_WRITTEN,
    condition::UP,
    condition::CONNECTED,
    condition::UP_TO_DATE,
    condition::FRONTEND_READY,
];
/// Reason of condition UpToDate until the first time that it holds.
const NEVER_YET: &str = "AwaitingFirstSync";
/// Numbers of a running sync are written at most this often.
const SYNC_WRITES: Duration = Duration::from_secs(1);

pub(super) fn was_up_to_date(status: Option<&DRBDResourceStatus>) -> bool {
    let conditions = status.map_or(&[][..], |s| &s.conditions);
    conditions::get(conditions, condition::UP_TO_DATE)
        .is_some_and(|c| c.status == "True" || c.reason != NEVER_YET)
}

pub(super) fn conclude(seen: &Observed, mut plan: Plan, now: Timestamp) -> Decision {
    let before = own_part(seen.resource.status.as_ref());
    let mut status = describe(seen, &plan, &before, now);
    pace(seen, &before, &mut status, &mut plan, now);
    status.last_change_time = if status_differs(&before, &status) {
        Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now)))
    } else {
        before.last_change_time.clone()
    };
    let notes = notes(seen, &before, &status);
    if seen
        .kernel
        .values()
        .any(|s| s.connection_state != ConnectionState::Connected && s.out_of_sync_bytes > 0)
    {
        // The kernel does not tell of each block that the peer misses.
        plan.again(SLOW);
    }
    let requeue = match plan.requeue {
        _ if seen.failure.is_some() => WAITING,
        Some(after) => after,
        None => SETTLED,
    };
    Decision {
        steps: plan.steps,
        status,
        notes,
        requeue: Some(requeue),
    }
}

/// What of the status the agent wrote.
fn own_part(status: Option<&DRBDResourceStatus>) -> DRBDResourceStatus {
    let mut own = status.cloned().unwrap_or_default();
    own.anchor_pod = None;
    own.conditions.retain(|c| OWN.contains(&c.type_.as_str()));
    own
}

fn describe(
    seen: &Observed,
    plan: &Plan,
    before: &DRBDResourceStatus,
    now: Timestamp,
) -> DRBDResourceStatus {
    let spec = &seen.resource.spec;
    if seen.kernel_error.is_some() {
        // Nothing is known; what was seen last would pass for what is.
        let mut status = DRBDResourceStatus {
            role: Some(Role::Unknown),
            role_epoch: before.role_epoch,
            conditions: before.conditions.clone(),
            ..DRBDResourceStatus::default()
        };
        finish(seen, plan, &mut status, now);
        return status;
    }
    let states: Vec<(i32, &ResourceState)> = spec
        .volumes
        .iter()
        .filter_map(|v| Some((v.index, seen.kernel.get(&kernel_name(&seen.resource, v))?)))
        .collect();
    let name = seen.resource.metadata.name.as_deref().unwrap_or_default();
    let volumes: Vec<DRBDVolumeStatusEntry> = states
        .iter()
        .map(|(index, state)| {
            let pvc = spec
                .volumes
                .iter()
                .find(|v| v.index == *index)
                .map(|v| v.pvc_name.clone());
            let at = spec.volumes.iter().position(|v| v.index == *index);
            let frontend = at
                .and_then(|i| seen.volumes.get(i))
                .is_some_and(|v| v.frontend);
            DRBDVolumeStatusEntry {
                index: *index,
                minor: state.minor,
                role: state.role,
                connection_state: state.connection_state,
                disk_state: state.disk_state,
                peer_disk_state: state.peer_disk_state,
                replication_state: state.replication_state,
                out_of_sync_bytes: state.out_of_sync_bytes,
                sync_percent: state.sync_percent,
                frontend_pvc: pvc.as_deref().filter(|_| frontend).map(names::frontend_pvc),
                metadata_pvc: Some(names::metadata_pvc(name, *index)),
                backing_pvc: pvc,
            }
        })
        .collect();
    let complete = states.len() == spec.volumes.len();
    let role = match states
        .iter()
        .filter(|(_, s)| s.role == Role::Primary)
        .count()
    {
        // What is not up is not Primary either.
        0 => Role::Secondary,
        n if n == states.len() && complete => Role::Primary,
        _ => Role::Unknown,
    };
    let carried_out = role == spec.role && !roles::is_stale(seen);
    let mut status = DRBDResourceStatus {
        role: Some(role),
        role_epoch: if carried_out {
            Some(spec.role_epoch)
        } else {
            before.role_epoch
        },
        connection_state: states.iter().map(|(_, s)| s.connection_state).min(),
        disk_state: states.iter().map(|(_, s)| s.disk_state).min(),
        out_of_sync_bytes: (!states.is_empty())
            .then(|| states.iter().map(|(_, s)| s.out_of_sync_bytes).sum()),
        split_brain: Some(states.iter().any(|(_, s)| s.split_brain)),
        volumes,
        conditions: before.conditions.clone(),
        ..DRBDResourceStatus::default()
    };
    finish(seen, plan, &mut status, now);
    status
}

/// Conditions, phase and message.
fn finish(seen: &Observed, plan: &Plan, status: &mut DRBDResourceStatus, now: Timestamp) {
    let spec = &seen.resource.spec;
    status.observed_generation = seen.resource.metadata.generation;
    let total = spec.volumes.len();
    let known = seen.kernel_error.is_none();
    let deleting = seen.resource.metadata.deletion_timestamp.is_some();
    let up = status.volumes.len();
    let hold = plan.hold.as_ref();
    let reason = hold.map_or("Configuring", |h| h.reason);
    let message = failure(seen).or_else(|| hold.map(|h| h.message.clone()));
    let told = message.clone().unwrap_or_else(|| {
        let is = if deleting {
            "are being taken down on"
        } else {
            "are being brought up on"
        };
        format!(
            "The DRBD devices of {} {is} node {}",
            label(&seen.resource),
            node(seen)
        )
    });
    let generation = seen.resource.metadata.generation;
    let mut conditions = std::mem::take(&mut status.conditions);
    let mut set = |type_: &str, truth: Truth, reason: &str, message: String| {
        conditions::set(
            &mut conditions,
            type_,
            truth,
            reason,
            message,
            generation,
            now,
        );
    };
    if !known {
        for type_ in OWN
            .iter()
            .filter(|t| **t != condition::FRONTEND_READY && **t != condition::UP_TO_DATE)
        {
            set(type_, Truth::Unknown, "KernelUnreadable", told.clone());
        }
        let never = !was_up_to_date(seen.resource.status.as_ref());
        set(
            condition::UP_TO_DATE,
            Truth::Unknown,
            if never { NEVER_YET } else { "KernelUnreadable" },
            told.clone(),
        );
    } else {
        let clipped = hold.is_some_and(|h| h.reason == "DeviceClipped");
        let all_up = up == total && !clipped;
        let unwritten =
            |c: &ResourceConfig| seen.applied.get(&c.name).is_none_or(|a| a.config != *c);
        let waiting = plan
            .steps
            .iter()
            .any(|s| matches!(s, Step::Adjust(config) if unwritten(config)));
        set(
            condition::CONFIG_WRITTEN,
            Truth::from(up == total && !waiting),
            if up == total && !waiting {
                "Written"
            } else {
                reason
            },
            if up == total && !waiting {
                format!(
                    "The DRBD configuration on node {} is what spec asks for",
                    node(seen)
                )
            } else {
                told.clone()
            },
        );
        set(
            condition::UP,
            Truth::from(all_up),
            if all_up { "Up" } else { reason },
            if all_up {
                format!("The DRBD devices are up on node {}", node(seen))
            } else {
                told.clone()
            },
        );
        let connected = all_up && status.connection_state == Some(ConnectionState::Connected);
        set(
            condition::CONNECTED,
            Truth::from(connected),
            connection_reason(seen, status, connected),
            connection_message(seen, status, connected),
        );
        let current = all_up && status.disk_state == Some(DiskState::UpToDate);
        let never = !current && !was_up_to_date(seen.resource.status.as_ref());
        let disk = status.disk_state.map_or("not attached", DiskState::as_str);
        set(
            condition::UP_TO_DATE,
            Truth::from(current),
            match (current, never) {
                (true, _) => "UpToDate",
                (false, true) => NEVER_YET,
                (false, false) => "NotUpToDate",
            },
            if current {
                format!("The data on node {} is UpToDate", node(seen))
            } else {
                format!("The data on node {} is {disk}", node(seen))
            },
        );
        let frontends = seen.volumes.iter().filter(|v| v.frontend).count();
        let ready = frontends == total && !deleting;
        set(
            condition::FRONTEND_READY,
            Truth::from(ready),
            if ready { "Provisioned" } else { "DeviceNotUp" },
            if ready {
                "The PVCs that the VM uses are there, backed by the DRBD devices".into()
            } else if deleting {
                "The PVCs that the VM uses go with the DRBD devices".into()
            } else {
                "The PVCs that the VM uses follow when the DRBD devices are up".into()
            },
        );
    }
    status.conditions = conditions;
    status.phase = Some(phase(seen, plan, status, up == total && known));
    status.message = message;
}

fn phase(
    seen: &Observed,
    plan: &Plan,
    status: &DRBDResourceStatus,
    complete: bool,
) -> DRBDResourcePhase {
    use DRBDResourcePhase as P;
    if seen.resource.metadata.deletion_timestamp.is_some() {
        return P::Deleting;
    }
    let fatal = plan.hold.as_ref().is_some_and(|h| {
        h.fatal && !["StaleRole", "SplitBrain", "KernelUnreadable"].contains(&h.reason)
    });
    if fatal {
        return P::Failed;
    }
    if !complete {
        return match &seen.anchor {
            _ if was_up_to_date(Some(status)) => P::Degraded,
            Some(anchor) if anchor.running => P::Provisioning,
            _ => P::Bound,
        };
    }
    let healthy = |v: &DRBDVolumeStatusEntry| {
        v.replication_state == ReplicationState::Established
            && v.disk_state == DiskState::UpToDate
            && v.peer_disk_state == DiskState::UpToDate
    };
    if status.volumes.iter().all(healthy) {
        P::Ready
    } else if syncing(seen) {
        P::Syncing
    } else if was_up_to_date(Some(status)) {
        P::Degraded
    } else {
        P::Up
    }
}

fn failure(seen: &Observed) -> Option<String> {
    let failure = seen.failure.as_ref()?;
    let spec = &seen.resource.spec;
    let namespace = seen
        .resource
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default();
    let vm = &spec.vm_ref.name;
    Some(if failure.held_open {
        format!(
            "The DRBD device of VM {namespace}/{vm} cannot be given up on node {}: {}. It follows when VM {namespace}/{vm} is stopped; look with: kubectl get vmi -n {namespace} {vm}",
            node(seen),
            failure.why
        )
    } else {
        format!(
            "DRBDResource {} does not go on, on node {}: {}. It is tried again every 5 s",
            label(&seen.resource),
            node(seen),
            failure.why
        )
    })
}

fn node(seen: &Observed) -> &str {
    seen.resource.spec.node_name.as_deref().unwrap_or("?")
}

fn connection_reason(
    seen: &Observed,
    status: &DRBDResourceStatus,
    connected: bool,
) -> &'static str {
    match status.connection_state {
        _ if connected => "Connected",
        _ if status.split_brain == Some(true) => "SplitBrain",
        _ if seen.resource.spec.paused => "Paused",
        None => "DeviceNotUp",
        Some(_) => "PeerNotConnected",
    }
}

fn connection_message(seen: &Observed, status: &DRBDResourceStatus, connected: bool) -> String {
    let spec = &seen.resource.spec;
    match (&spec.peer, status.connection_state) {
        (Some(peer), _) if connected => format!(
            "Connected to node {} ({}) in cluster {}",
            peer.node_name, peer.address, spec.peer_cluster
        ),
        _ if spec.paused => "Replication is paused by spec.paused".into(),
        (Some(peer), Some(state)) => format!(
            "The connection to node {} ({}) in cluster {} is {state}",
            peer.node_name, peer.address, spec.peer_cluster
        ),
        _ => "The DRBD devices are not up yet".into(),
    }
}

/// Numbers alone are not worth a write each: those of a running sync are written once a second and
/// only with another percentage, those of an absent peer every 10 s.
fn pace(
    seen: &Observed,
    before: &DRBDResourceStatus,
    status: &mut DRBDResourceStatus,
    plan: &mut Plan,
    now: Timestamp,
) {
    let mut as_before = status.clone();
    numbers(before, &mut as_before);
    if status_differs(before, &as_before) || !status_differs(before, status) {
        return;
    }
    let running = syncing(seen);
    let percents =
        |s: &DRBDResourceStatus| s.volumes.iter().map(|v| v.sync_percent).collect::<Vec<_>>();
    let pause = if running { SYNC_WRITES } else { SLOW };
    let passed = seen.last_write.map_or(pause, |at| {
        Duration::try_from(now.duration_since(at)).unwrap_or_default()
    });
    if running && percents(before) == percents(status) {
        *status = as_before;
    } else if passed < pause {
        *status = as_before;
        plan.again((pause - passed).max(Duration::from_millis(10)));
    }
}

/// Takes the numbers of `from`.
fn numbers(from: &DRBDResourceStatus, to: &mut DRBDResourceStatus) {
    to.out_of_sync_bytes = from.out_of_sync_bytes;
    for volume in &mut to.volumes {
        if let Some(old) = from.volumes.iter().find(|v| v.index == volume.index) {
            volume.out_of_sync_bytes = old.out_of_sync_bytes;
            volume.sync_percent = old.sync_percent;
        }
    }
}

/// Transitions that a person should hear of.
fn notes(seen: &Observed, before: &DRBDResourceStatus, status: &DRBDResourceStatus) -> Vec<Note> {
    let mut notes = Vec::new();
    let known = |role: Option<Role>| role.filter(|r| *r != Role::Unknown);
    if let (old, Some(new)) = (before.role, status.role)
        && old != Some(new)
        && (new == Role::Primary || known(old).is_some())
    {
        let epoch = status.role_epoch.unwrap_or_default();
        notes.push(match new {
            Role::Unknown => Note::warning(
                "RoleUnknown",
                format!(
                    "The role on node {} is not known or differs between volumes",
                    node(seen)
                ),
            ),
            _ => Note::normal(
                "RoleChanged",
                format!("{new} on node {} (epoch {epoch})", node(seen)),
            ),
        });
    }
    for volume in &status.volumes {
        let old = before
            .volumes
            .iter()
            .find(|v| v.index == volume.index)
            .map(|v| v.replication_state);
        let sync = |r: ReplicationState| {
            matches!(
                r,
                ReplicationState::SyncSource | ReplicationState::SyncTarget
            )
        };
        let (was, is) = (old.is_some_and(sync), sync(volume.replication_state));
        if is && !was {
            let bytes = crate::words::bytes(volume.out_of_sync_bytes);
            notes.push(Note::normal(
                "SyncStarted",
                format!(
                    "Volume {} is {}: {bytes} to go",
                    volume.index, volume.replication_state
                ),
            ));
        } else if was && volume.replication_state == ReplicationState::Established {
            notes.push(Note::normal(
                "SyncFinished",
                format!("Volume {} is in sync on both sides", volume.index),
            ));
        }
    }
    if status.split_brain == Some(true) && before.split_brain != Some(true) {
        notes.push(Note::warning(
            "SplitBrain",
            status.message.clone().unwrap_or_default(),
        ));
    }
    notes
}

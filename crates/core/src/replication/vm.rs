//! Replication of one VM, from what both clusters say.

use farshore_api::conditions::resource as condition;
use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState};
use farshore_api::drbd_resource::DRBDVolumeStatusEntry;
use farshore_api::replication_group_status::VmReplication;
use farshore_api::{DRBDResource, ProtectionRequest};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Observed, whole_second};
use crate::conditions;

/// Looks at a VM; `before` is what the status says of it.
pub(super) fn look(
    seen: &Observed,
    member: &ProtectionRequest,
    before: Option<&VmReplication>,
    now: Timestamp,
) -> VmReplication {
    let vm = member.vm();
    let on = |active: bool| {
        seen.clusters
            .iter()
            .filter(move |(cluster, _)| (**cluster == member.spec.source_cluster) == active)
            .filter_map(|(_, look)| look.present())
            .map(|resources| resources.get(&vm))
            .next()
    };
    // None: the cluster did not answer; Some(None): it has no resource of this VM.
    let (active, standby) = (on(true), on(false));
    let answers: Vec<Option<&DRBDResource>> = [active, standby].into_iter().flatten().collect();
    let volumes = |side: Option<Option<&DRBDResource>>| -> Vec<DRBDVolumeStatusEntry> {
        let status = side.flatten().and_then(|r| r.status.clone());
        status.map_or_else(Vec::new, |s| s.volumes)
    };
    // The active side counts what differs; without it the standby does.
    let (of_active, of_standby) = (volumes(active), volumes(standby));
    let told = if active.is_some() {
        &of_active
    } else {
        &of_standby
    };
    let standby_disk = match standby {
        Some(_) => of_standby.iter().map(|v| v.disk_state).min(),
        None => of_active.iter().map(|v| v.peer_disk_state).min(),
    };
    let in_sync = !answers.is_empty() && answers.iter().all(|side| side.is_some_and(is_whole));
    let last = before
        .and_then(|b| b.last_in_sync_time.clone())
        .map(|t| t.0);
    let last_in_sync = if in_sync {
        // The first moment of this stretch: the same as long as nothing happens.
        let going_on = before.filter(|b| is_in_sync(b)).and(last);
        Some(going_on.unwrap_or_else(|| whole_second(now)))
    } else if before.is_some_and(is_in_sync) {
        // It was in sync until now: the last moment that was seen, or that the agents tell.
        let until = seen.last_poll.or_else(|| loss(&answers)).map(whole_second);
        last.max(until.map(|u| u.min(now)))
    } else {
        last
    };
    let rpo = if in_sync {
        Some(0)
    } else {
        last_in_sync.map(|l| (now.as_second() - l.as_second()).max(0))
    };
    VmReplication {
        vm_name: vm.name.clone(),
        vm_namespace: vm.namespace.clone(),
        out_of_sync_bytes: (!told.is_empty())
            .then(|| told.iter().map(|v| v.out_of_sync_bytes).sum()),
        connection_state: told.iter().map(|v| v.connection_state).min(),
        replication_state: told.iter().map(|v| v.replication_state).max_by_key(|r| {
            (
                *r != ReplicationState::Established,
                *r == ReplicationState::Off,
                *r,
            )
        }),
        disk_state: standby_disk,
        current_rpo_seconds: rpo,
        last_in_sync_time: last_in_sync.map(Time),
    }
}

/// Whether one side says that all its volumes equal the other side's.
fn is_whole(resource: &DRBDResource) -> bool {
    let Some(status) = &resource.status else {
        return false;
    };
    !status.volumes.is_empty()
        && status.split_brain != Some(true)
        && status.volumes.len() >= resource.spec.volumes.len()
        && status.volumes.iter().all(|v| {
            v.connection_state == ConnectionState::Connected
                && v.replication_state == ReplicationState::Established
                && v.disk_state == DiskState::UpToDate
                && v.peer_disk_state == DiskState::UpToDate
        })
}

/// When the agents saw the connection or the disks go bad.
fn loss(answers: &[Option<&DRBDResource>]) -> Option<Timestamp> {
    let conditions = answers
        .iter()
        .flatten()
        .filter_map(|r| r.status.as_ref())
        .map(|s| &s.conditions);
    conditions
        .flat_map(|all| {
            [
                conditions::get(all, condition::CONNECTED),
                conditions::get(all, condition::UP_TO_DATE),
            ]
        })
        .flatten()
        .filter(|c| c.status != "True")
        .map(|c| c.last_transition_time.0)
        .min()
}

/// Whether a VM's entry says in sync.
pub(super) fn is_in_sync(vm: &VmReplication) -> bool {
    vm.current_rpo_seconds == Some(0)
        && vm.connection_state == Some(ConnectionState::Connected)
        && vm.replication_state == Some(ReplicationState::Established)
        && vm.disk_state == Some(DiskState::UpToDate)
}

/// Whether a VM's volumes are all connected.
pub(super) fn is_connected(vm: &VmReplication) -> bool {
    vm.connection_state == Some(ConnectionState::Connected)
}

/// The VM and what is wrong with it, for a person.
pub(super) fn title(vm: &VmReplication) -> String {
    let connection = vm
        .connection_state
        .map_or("not replicated yet", ConnectionState::as_str);
    let disk = vm
        .disk_state
        .map_or_else(String::new, |d| format!(", standby disk {d}"));
    format!("{}/{} ({connection}{disk})", vm.vm_namespace, vm.vm_name)
}

//! What counts as seen. Everything that lets a failover go on is asked here, of a fresh look, and
//! the answer is yes or a clause that says what was seen instead. Unknown is never a yes.

use std::collections::BTreeSet;

use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState, Role};
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_api::{ProtectionGroup, VmRef};

use super::observed::{Observed, Side};
use super::vms;
use crate::{Seen, words};

/// Whether the source's mirror was told to stop and reports that all its VMs have stopped. Err says
/// what was seen instead; unknown is not stopped.
pub fn source_stopped(seen: &Observed) -> Result<(), String> {
    if let Some(gap) = mirror_gap(seen, &seen.source) {
        return Err(gap);
    }
    match &seen.source.mirror {
        Seen::Present(mirror) if reports(mirror, DesiredState::Stopped, CurrentState::Stopped) => {
            Ok(())
        }
        _ => Err(mirror_says(seen, &seen.source, "stopped")),
    }
}

/// Whether DRBD is Primary on the target for every VM.
pub fn all_primary(seen: &Observed) -> Result<(), String> {
    let cast = vms::cast(seen);
    let not: Vec<String> = cast
        .iter()
        .filter_map(|m| is_primary(&seen.target, &m.vm).err())
        .collect();
    if not.is_empty() && !cast.is_empty() {
        return Ok(());
    }
    Err(format!(
        "DRBD is not Primary on cluster {} yet: {}",
        seen.target.cluster,
        words::list(&not)
    ))
}

/// Whether DRBD was seen Primary for this VM on this side; Err says what was seen instead.
pub fn is_primary(side: &Side, vm: &VmRef) -> Result<(), String> {
    let resource = match side.resource(vm) {
        Seen::Present(resource) => resource,
        Seen::Absent => return Err(format!("VM {vm} has no DRBDResource there")),
        Seen::Unknown(why) => return Err(format!("VM {vm} cannot be read ({why})")),
    };
    let Some(status) = &resource.status else {
        return Err(format!("VM {vm} has no role yet"));
    };
    // A role of an older epoch is the role before the flip, not the answer to it.
    let current = status
        .role_epoch
        .is_none_or(|epoch| epoch >= resource.spec.role_epoch);
    match status.role {
        Some(Role::Primary) if current => Ok(()),
        Some(Role::Primary) => Err(format!("VM {vm} is Primary of an older epoch")),
        Some(role) => Err(format!("VM {vm} is {role}")),
        None => Err(format!("VM {vm} has no role yet")),
    }
}

/// What makes the disks of a VM unequal, as this side reports it.
pub fn out_of_sync(side: &Side, vm: &VmRef) -> Option<String> {
    let resource = match side.resource(vm) {
        Seen::Present(resource) => resource,
        Seen::Absent => return Some("no DRBDResource".into()),
        Seen::Unknown(why) => return Some(format!("DRBDResource cannot be read ({why})")),
    };
    let Some(status) = &resource.status else {
        return Some("nothing reported".into());
    };
    if status.split_brain == Some(true) {
        return Some("split brain".into());
    }
    match status.connection_state {
        Some(ConnectionState::Connected) => {}
        Some(other) => return Some(format!("connection {other}")),
        None => return Some("connection not reported".into()),
    }
    match status.disk_state {
        Some(DiskState::UpToDate) => {}
        Some(other) => return Some(format!("disk {other}")),
        None => return Some("disk not reported".into()),
    }
    let late = status.volumes.iter().find(|v| {
        v.replication_state != ReplicationState::Established
            || v.peer_disk_state != DiskState::UpToDate
    });
    late.map(|v| {
        format!(
            "volume {} is {} with peer disk {}",
            v.index, v.replication_state, v.peer_disk_state
        )
    })
}

/// Whether a mirror was told this and reports that, for the very spec that tells it.
pub fn reports(mirror: &ProtectionGroup, told: DesiredState, state: CurrentState) -> bool {
    let status = mirror.status.as_ref();
    mirror.spec.desired_state == told
        && status.and_then(|s| s.current_state) == Some(state)
        && status.and_then(|s| s.observed_generation) >= mirror.metadata.generation
        && mirror.metadata.generation.is_some()
}

/// What a side's mirror lacks.
pub fn mirror_gap(seen: &Observed, side: &Side) -> Option<String> {
    let title = format!("{} (cluster {})", seen.group_title(), side.cluster);
    let mirror = match &side.mirror {
        Seen::Present(mirror) => mirror,
        Seen::Absent => return Some(format!("{title} does not exist")),
        Seen::Unknown(why) => return Some(format!("{title} cannot be read ({why})")),
    };
    let named: BTreeSet<&VmRef> = mirror
        .spec
        .members
        .iter()
        .filter_map(|m| m.vm_ref.as_ref())
        .collect();
    let lacking: Vec<String> = vms::cast(seen)
        .into_iter()
        .filter(|member| !named.contains(&member.vm))
        .map(|member| member.vm.to_string())
        .collect();
    (!lacking.is_empty()).then(|| format!("{title} does not name VM {}", words::list(&lacking)))
}

/// What a mirror says that is not what is waited for.
pub fn mirror_says(seen: &Observed, side: &Side, wanted: &str) -> String {
    let title = format!("{} (cluster {})", seen.group_title(), side.cluster);
    let mirror = match &side.mirror {
        Seen::Present(mirror) => mirror,
        Seen::Absent => return format!("{title} does not exist"),
        Seen::Unknown(why) => return format!("{title} cannot be read ({why})"),
    };
    let Some(status) = &mirror.status else {
        return format!("{title} has not reported yet");
    };
    if status.observed_generation < mirror.metadata.generation {
        return format!("{title} has not reported on its new desiredState yet");
    }
    let lagging: Vec<String> = status
        .vms
        .iter()
        .filter(|vm| vm.state.as_str() != wanted)
        .map(|vm| format!("{}/{}", vm.namespace, vm.name))
        .collect();
    let state = status.current_state.map_or("nothing", CurrentState::as_str);
    if lagging.is_empty() {
        return format!("{title} reports {state}, not {wanted}");
    }
    format!(
        "{title} reports {state}, not {wanted}; VM {}",
        words::list(&lagging)
    )
}

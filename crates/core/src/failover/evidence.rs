//! What counts as seen. Everything that lets a failover go on is asked here, of a fresh look, and
//! the answer is yes or a clause that says what was seen instead. Unknown is never a yes.

use std::collections::{BTreeMap, BTreeSet};

use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState, Role};
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_api::{DRBDResource, ProtectionGroup, VmRef};

use super::observed::Side;
use super::scene::{Member, Scene};
use crate::protection::health::volume_lost;
use crate::{Seen, words};

/// Whether the source's mirror was told to stop and reports that all its VMs have stopped. Err says
/// what was seen instead; unknown is not stopped.
pub fn source_stopped(seen: &Scene) -> Result<(), String> {
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

/// Whether DRBD is Primary on this side for every VM. Err tells how both sides are.
pub fn all_primary(seen: &Scene, side: &Side) -> Result<(), String> {
    // VMs of one group are mostly in the same state: it is told once.
    let mut lagging: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Member { vm, .. } in &seen.cast {
        if is_primary(side, vm).is_err() {
            lagging
                .entry(both_sides(seen, vm))
                .or_default()
                .push(vm.to_string());
        }
    }
    if lagging.is_empty() && !seen.cast.is_empty() {
        return Ok(());
    }
    let lagging: Vec<_> = lagging.into_iter().collect();
    let told = words::list_by(&lagging, |(how, vms)| {
        format!("VM {} ({how})", words::list(vms))
    });
    Err(format!(
        "DRBD is not Primary on cluster {} yet: {told}",
        side.cluster
    ))
}

/// What DRBD is instead of Primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPrimary<'a> {
    /// There is no resource.
    NoResource,
    /// The cluster did not answer, for this reason.
    Unreadable(&'a str),
    /// The agent has not reported a role.
    NoRole,
    /// The agent reported it before the roles changed: it is no answer to the flip.
    OldEpoch,
    /// Another role.
    Role(Role),
}

impl std::fmt::Display for NotPrimary<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoResource => f.write_str("has no DRBDResource"),
            Self::Unreadable(why) => write!(f, "cannot be read ({why})"),
            Self::NoRole => f.write_str("has no role yet"),
            Self::OldEpoch => f.write_str("is Primary of an older epoch"),
            Self::Role(role) => write!(f, "is {role}"),
        }
    }
}

/// Whether DRBD was seen Primary for this VM on this side; Err says what was seen instead.
pub fn is_primary<'a>(side: &'a Side, vm: &VmRef) -> Result<(), NotPrimary<'a>> {
    let resource = match &side.resources {
        Seen::Present(all) => all.get(vm).ok_or(NotPrimary::NoResource)?,
        Seen::Absent => return Err(NotPrimary::NoResource),
        Seen::Unknown(why) => return Err(NotPrimary::Unreadable(why)),
    };
    let status = resource.status.as_ref().ok_or(NotPrimary::NoRole)?;
    let epoch = status.role_epoch;
    match status.role.ok_or(NotPrimary::NoRole)? {
        Role::Primary if epoch.is_none_or(|e| e >= resource.spec.role_epoch) => Ok(()),
        Role::Primary => Err(NotPrimary::OldEpoch),
        role => Err(NotPrimary::Role(role)),
    }
}

/// Why DRBD on the target can have been Primary for a VM since the roles changed, or None when it was
/// seen that it was not: its agent reports Secondary and has not carried out what it is asked for.
pub fn may_have_been_primary(target: &Side, vm: &VmRef) -> Option<String> {
    let resource = match target.resource(vm) {
        Seen::Present(resource) => resource,
        Seen::Absent => return Some("has no DRBDResource".into()),
        Seen::Unknown(why) => return Some(format!("cannot be read ({why})")),
    };
    let status = resource.status.as_ref();
    let role = status.and_then(|s| s.role);
    let carried_out = status.and_then(|s| s.role_epoch);
    let asked = resource.spec.role == Role::Primary;
    match role {
        Some(Role::Secondary) if !asked || carried_out < Some(resource.spec.role_epoch) => None,
        Some(Role::Secondary) => Some("was Primary there".into()),
        Some(role) => Some(format!("is {role}")),
        None => Some("has no role yet".into()),
    }
}

/// Whether the disks of a VM on this side hold everything that was written.
pub fn is_up_to_date(side: &Side, vm: &VmRef) -> bool {
    let resource = side.resource(vm);
    let stays = |r: &&DRBDResource| r.metadata.deletion_timestamp.is_none();
    let status = resource
        .present()
        .copied()
        .filter(stays)
        .and_then(|r| r.status.as_ref());
    status.is_some_and(|s| s.disk_state == Some(DiskState::UpToDate) && s.split_brain != Some(true))
}

/// Role, disk and connection of a VM on both sides, for a person.
fn both_sides(seen: &Scene, vm: &VmRef) -> String {
    let side = |side: &Side| {
        let told = match side.resource(vm) {
            Seen::Absent => "no DRBDResource".into(),
            Seen::Unknown(why) => format!("not known ({why})"),
            Seen::Present(resource) => {
                let status = resource.status.clone().unwrap_or_default();
                let leaving = match &resource.metadata.deletion_timestamp {
                    Some(since) => format!(", being deleted since {}", words::moment(since.0)),
                    None => String::new(),
                };
                let or = |word: Option<&'static str>| word.unwrap_or("not reported");
                format!(
                    "{}, disk {}, connection {}{leaving}",
                    status.role.map_or("no role", Role::as_str),
                    or(status.disk_state.map(DiskState::as_str)),
                    or(status.connection_state.map(ConnectionState::as_str))
                )
            }
        };
        format!("cluster {}: {told}", side.cluster)
    };
    format!("{}; {}", side(&seen.source), side(&seen.target))
}

/// What makes the disks of a VM unequal, as this side reports it.
pub fn out_of_sync(side: &Side, vm: &VmRef) -> Option<String> {
    let resource = match side.resource(vm) {
        Seen::Present(resource) => resource,
        Seen::Absent => return Some("no DRBDResource".into()),
        Seen::Unknown(why) => return Some(format!("DRBDResource cannot be read ({why})")),
    };
    if let Some(since) = &resource.metadata.deletion_timestamp {
        return Some(format!(
            "DRBDResource {} is being deleted since {}",
            resource.metadata.name.as_deref().unwrap_or_default(),
            words::moment(since.0)
        ));
    }
    let Some(status) = &resource.status else {
        return Some("nothing reported".into());
    };
    if volume_lost(resource).is_some() {
        return Some("its volume is lost".into());
    }
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

/// Whether a side's mirror names every VM of this failover, was told this and reports that. Err says
/// what is missing.
pub fn group_reports(
    seen: &Scene,
    side: &Side,
    told: DesiredState,
    state: CurrentState,
) -> Result<(), String> {
    if let Some(gap) = mirror_gap(seen, side) {
        return Err(gap);
    }
    match &side.mirror {
        Seen::Present(mirror) if reports(mirror, told, state) => Ok(()),
        _ => Err(mirror_says(seen, side, state.as_str())),
    }
}

/// What a side's mirror lacks.
pub fn mirror_gap(seen: &Scene, side: &Side) -> Option<String> {
    let title = format!("{} (cluster {})", seen.group_title(), side.cluster);
    let mirror = match &side.mirror {
        Seen::Present(mirror) => mirror,
        Seen::Absent => return Some(format!("{title} does not exist")),
        Seen::Unknown(why) => return Some(format!("{title} cannot be read ({why})")),
    };
    let mut named = mirror.spec.members.iter().filter_map(|m| m.vm_ref.as_ref());
    // Mostly it names the same VMs in the same order, and then no set is needed.
    if seen.cast.iter().all(|m| named.any(|vm| *vm == m.vm)) {
        return None;
    }
    let members = mirror.spec.members.iter();
    let named: BTreeSet<&VmRef> = members.filter_map(|m| m.vm_ref.as_ref()).collect();
    let lacking: Vec<&VmRef> = seen
        .cast
        .iter()
        .map(|m| &m.vm)
        .filter(|vm| !named.contains(vm))
        .collect();
    if lacking.is_empty() {
        return None;
    }
    let names = words::list_by(&lacking, |vm| vm.to_string());
    let left = |vm: &&VmRef| seen.cast.iter().any(|m| m.vm == **vm && !m.in_group);
    let left: Vec<&VmRef> = lacking.iter().copied().filter(left).collect();
    let advice = if left.is_empty() {
        String::new()
    } else {
        format!(
            " (VM {} was taken out of the group meanwhile: put it back into spec.members of the group, or start it by hand where it shall run)",
            words::list_by(&left, |vm| vm.to_string())
        )
    };
    Some(format!("{title} does not name VM {names}{advice}"))
}

/// What a mirror says that is not what is waited for.
pub fn mirror_says(seen: &Scene, side: &Side, wanted: &str) -> String {
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

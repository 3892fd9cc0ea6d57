//! What must hold before anything is stopped. A planned failover needs both sides and equal disks.

use farshore_api::conditions::group as group_condition;
use farshore_api::conditions::{failover as reason, request as condition};
use farshore_api::drbd::{ConnectionState, ReplicationState};
use farshore_api::drbd_resource::DRBDVolumeStatusEntry;
use farshore_api::failover_request::FailoverType;
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_api::protection_request::ProtectionPhase;

use super::evidence::{is_primary, mirror_gap, out_of_sync, reports};
use super::journal::Cause;
use super::observed::Side;
use super::scene::{Member, Scene};
use crate::{Seen, conditions, words};

/// Something that may heal by itself or by a person: the failover waits for it within its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Reason of the condition `Complete`.
    pub reason: &'static str,
    /// The fact, as a clause that names its objects.
    pub fact: String,
    /// A command that shows it.
    pub command: String,
}

/// An error in the request itself, which waiting cannot heal. Needs no lock.
pub fn input_error(seen: &Scene) -> Option<Cause> {
    let spec = &seen.request.spec;
    let zone = seen.zone.metadata.name.as_deref().unwrap_or_default();
    let clusters: Vec<&str> = seen
        .zone
        .spec
        .clusters
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    if seen.group.is_none() {
        let message = format!(
            "ProtectionGroup {} not found in namespace {1}. Nothing was changed. Create a new FailoverRequest whose spec.protectionGroupRef names one of: kubectl get protectiongroup -n {1}",
            seen.group_name(),
            seen.namespace()
        );
        return Some(Cause::new(reason::GROUP_NOT_FOUND, message));
    }
    if !clusters.contains(&spec.target_cluster.as_str()) {
        let message = format!(
            "spec.targetCluster {:?} is not a cluster of ProtectionZone {zone}. Nothing was changed. Create a new FailoverRequest whose spec.targetCluster is one of: {}",
            spec.target_cluster,
            words::list(&clusters)
        );
        return Some(Cause::new(reason::UNKNOWN_CLUSTER, message));
    }
    if spec.failover_type == FailoverType::Unplanned {
        let message = "Unplanned failover is not supported. Nothing was changed. If both clusters answer, create a FailoverRequest with failoverType: planned.";
        return Some(Cause::new(reason::NOT_SUPPORTED, message));
    }
    if spec.abort {
        let message = "Aborted by spec.abort before anything was begun. Nothing was changed.";
        return Some(Cause::new(reason::ABORTED, message));
    }
    None
}

/// The group is already where the request wants it. A failover to the same target that ended half
/// way does not count: members split between the clusters, or flipped but not running, go on.
pub fn already_active(seen: &Scene) -> Option<Cause> {
    let group = seen.group.as_ref()?;
    let all_flipped = seen.unresolved.is_empty() && seen.all_flipped();
    let mirror = seen.target.mirror.present()?;
    let stopped_on_purpose = group.spec.desired_state == DesiredState::Stopped
        && mirror.spec.desired_state == DesiredState::Stopped
        && seen
            .members
            .iter()
            .all(|m| is_primary(&seen.target, &m.vm()).is_ok());
    let at_rest =
        reports(mirror, DesiredState::Running, CurrentState::Running) || stopped_on_purpose;
    let message = format!(
        "{}. Nothing was changed. To move the group away from there, create a FailoverRequest whose spec.targetCluster is {}; look with: kubectl get protectiongroup -n {} {}",
        active_sentence(seen),
        seen.source.cluster,
        seen.namespace(),
        seen.group_name()
    );
    (all_flipped && at_rest).then(|| Cause::new(reason::ALREADY_ACTIVE, message))
}

/// The group was on the target when this request was first seen, and another request moves it away,
/// or has. To wait for that one and then undo it is nothing that anybody asked for.
pub fn overtaken(seen: &Scene, by: Option<&str>) -> Cause {
    let (by, when) = match by {
        Some(by) => (format!("{by} has its lock now"), "when that one has ended"),
        None => ("another request has moved it since".into(), "now"),
    };
    let message = format!(
        "{} when this request was made, and {by}. This request ends and does nothing; if the group shall be on cluster {1} after that, create a new one {when}. Look with: kubectl get failoverrequest -n {2}",
        active_sentence(seen).replacen(" is already ", " was already ", 1),
        seen.target.cluster,
        seen.namespace()
    );
    Cause::new(reason::ALREADY_ACTIVE, message)
}

fn active_sentence(seen: &Scene) -> String {
    format!(
        "spec.targetCluster {:?} is already the active cluster of ProtectionGroup {}",
        seen.target.cluster,
        seen.group_name()
    )
}

/// The first thing in the way of a failover that has stopped nothing yet.
pub fn obstacle(seen: &Scene) -> Option<Obstacle> {
    reachable(seen)
        .or_else(|| protected(seen))
        .or_else(|| mirrored(seen))
        .or_else(|| standby_ready(seen))
        .or_else(|| in_sync(seen))
}

/// Whether disks are being made equal now: that ends by itself, and may take the whole budget.
pub fn resync_runs(seen: &Scene) -> bool {
    let sides = [&seen.source, &seen.target];
    let mut resources = seen
        .cast
        .iter()
        .flat_map(|m| sides.map(|side| side.resource(&m.vm)))
        .filter_map(|r| r.present().and_then(|r| r.status.as_ref()));
    let syncs = |s: &DRBDVolumeStatusEntry| {
        use ReplicationState::{Established, Off};
        s.connection_state == ConnectionState::Connected
            && !matches!(s.replication_state, Established | Off)
    };
    resources.any(|s| s.volumes.iter().any(syncs))
}

/// Both clusters answer.
fn reachable(seen: &Scene) -> Option<Obstacle> {
    let unknown = |side: &Side| {
        let why = side.mirror.unknown().or(side.resources.unknown())?;
        Some(format!("cluster {} does not answer ({why})", side.cluster))
    };
    let silent: Vec<String> = [&seen.source, &seen.target]
        .into_iter()
        .filter_map(unknown)
        .collect();
    (!silent.is_empty()).then(|| Obstacle {
        reason: reason::CLUSTER_UNREACHABLE,
        fact: silent.join(" and "),
        command: format!("kubectl get protectionzone -n {} -o yaml", seen.namespace()),
    })
}

/// Every member has a ProtectionRequest, and it is Protected. One that a failover to this target
/// has flipped before may still be on its way.
fn protected(seen: &Scene) -> Option<Obstacle> {
    let mut bad = seen
        .unresolved
        .iter()
        .map(|m| format!("{m} (not found)"))
        .collect::<Vec<_>>();
    for member in &seen.members {
        let phase = member.status.as_ref().and_then(|s| s.phase);
        let good = match phase {
            Some(ProtectionPhase::Protected) => true,
            Some(ProtectionPhase::FailingOver | ProtectionPhase::Degraded) => seen.flipped(member),
            _ => false,
        };
        let leaving = member.metadata.deletion_timestamp.is_some();
        if !good || leaving {
            let name = member.metadata.name.as_deref().unwrap_or_default();
            let phase = match phase {
                _ if leaving => "being deleted",
                Some(phase) => phase.as_str(),
                None => "without phase",
            };
            let conditions = member.status.as_ref().map_or(&[][..], |s| &s.conditions);
            let why = conditions::get(conditions, condition::PROTECTED)
                .filter(|c| c.status != "True" && c.reason != phase)
                .map_or(String::new(), |c| format!(", {}", c.reason));
            bad.push(format!("ProtectionRequest {name} ({phase}{why})"));
        }
    }
    if seen.members.is_empty() && bad.is_empty() {
        bad.push("the group has no members".into());
    }
    (!bad.is_empty()).then(|| Obstacle {
        reason: reason::MEMBERS_NOT_PROTECTED,
        fact: format!("not every member is Protected: {}", words::list(&bad)),
        command: format!("kubectl get protectionrequest -n {}", seen.namespace()),
    })
}

/// A VM of the failover that is not protected as it was when validation was over: its request is
/// gone or going, or it has got a disk that is not replicated. Unequal disks are not asked for here.
pub fn protection_lost(seen: &Scene) -> Option<String> {
    let lost = |member: &Member| {
        let Some(request) = member.request.filter(|_| member.in_group) else {
            return Some("has no ProtectionRequest in the group any more");
        };
        if request.metadata.deletion_timestamp.is_some() {
            return Some("is being unprotected");
        }
        let status = request.status.as_ref();
        let protected =
            status.and_then(|s| conditions::get(&s.conditions, condition::PROTECTED))?;
        (protected.status == "False" && protected.reason == condition::UNREPLICATED_VOLUME)
            .then_some("has a disk that is not replicated")
    };
    let bad: Vec<String> = seen
        .cast
        .iter()
        .filter_map(|m| Some(format!("VM {} {}", m.vm, lost(m)?)))
        .collect();
    (!bad.is_empty()).then(|| words::list(&bad))
}

/// Both clusters have the mirror of the group, and it names every member.
fn mirrored(seen: &Scene) -> Option<Obstacle> {
    let bad: Vec<String> = [&seen.source, &seen.target]
        .into_iter()
        .filter_map(|side| mirror_gap(seen, side))
        .collect();
    // A member that another group has is in no mirror: the group itself knows why.
    let group = seen.group.as_ref().and_then(|g| g.status.as_ref());
    let own = group
        .and_then(|s| conditions::get(&s.conditions, group_condition::MEMBERS_PROTECTED))
        .filter(|c| c.status == "False")
        .map_or_else(String::new, |c| {
            format!(" ({} says: {})", seen.group_title(), c.message)
        });
    (!bad.is_empty()).then(|| Obstacle {
        reason: reason::MIRROR_NOT_READY,
        fact: format!("{}{own}", bad.join(" and ")),
        command: format!(
            "kubectl get protectiongroup -n {} {} -o yaml",
            seen.namespace(),
            seen.group_name()
        ),
    })
}

/// On the target every member has a VirtualMachine that can be started, and disks on a node.
fn standby_ready(seen: &Scene) -> Option<Obstacle> {
    let mut bad = Vec::new();
    for Member { vm, .. } in &seen.cast {
        match &seen.standby {
            Seen::Present(there) if there.contains(vm) => {}
            Seen::Present(_) | Seen::Absent => {
                bad.push(format!("VirtualMachine {vm} does not exist"))
            }
            Seen::Unknown(why) => bad.push(format!("VirtualMachine {vm} cannot be read ({why})")),
        }
        let node = match seen.target.resource(vm) {
            Seen::Present(resource) => resource.spec.node_name.as_deref(),
            Seen::Absent => {
                bad.push(format!("DRBDResource of VM {vm} does not exist"));
                continue;
            }
            Seen::Unknown(_) => None,
        };
        let Some(node) = node else {
            bad.push(format!("DRBDResource of VM {vm} is not bound to a node"));
            continue;
        };
        match seen.nodes.get(node) {
            Some(Seen::Present(_)) => {}
            Some(Seen::Unknown(why)) => bad.push(format!("Node {node} cannot be read ({why})")),
            Some(Seen::Absent) | None => bad.push(format!("Node {node} of VM {vm} does not exist")),
        }
    }
    (!bad.is_empty()).then(|| Obstacle {
        reason: reason::STANDBY_NOT_READY,
        fact: format!(
            "cluster {} is not ready to run the group: {}",
            seen.target.cluster,
            words::list(&bad)
        ),
        command: format!(
            "kubectl --context {} get vm,drbdresource -A",
            seen.target.cluster
        ),
    })
}

/// The disks of every member whose role is still on the source are equal on both sides. Checked
/// before anything is stopped, and again when everything is: only then nothing can be lost.
pub fn in_sync(seen: &Scene) -> Option<Obstacle> {
    let mut bad = Vec::new();
    for Member { vm, request, .. } in &seen.cast {
        if request.is_some_and(|r| seen.flipped(r)) {
            continue;
        }
        for side in [&seen.source, &seen.target] {
            if let Some(what) = out_of_sync(side, vm) {
                bad.push(format!("VM {vm} on cluster {}: {what}", side.cluster));
            }
        }
        // Before the flip the target is Secondary; a Primary there would mean two writers.
        if is_primary(&seen.target, vm).is_ok() {
            bad.push(format!(
                "VM {vm} is Primary on cluster {} before the flip",
                seen.target.cluster
            ));
        }
    }
    (!bad.is_empty()).then(|| Obstacle {
        reason: reason::NOT_IN_SYNC,
        fact: format!(
            "the disks are not equal on both sides: {}",
            words::list(&bad)
        ),
        command: format!(
            "kubectl get replicationgroupstatus -n {} {}-replication -o yaml",
            seen.namespace(),
            seen.group_name()
        ),
    })
}

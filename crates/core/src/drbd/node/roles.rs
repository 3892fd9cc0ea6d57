//! The role of this side.
//!
//! Force is used in two cases alone. The first full sync: the side that ran the VM is declared the
//! source of two empty generations, once in the life of a pair. And an unplanned failover: the
//! manager names the very epoch for which it takes the responsibility.

use farshore_api::drbd::{ConnectionState, DiskState, Role};
use farshore_api::meta::annotations;
use jiff::Timestamp;

use super::super::model::ResourceState;
use super::{Observed, Plan, Step, WAITING, kernel_name, label, was_up_to_date};

/// Epoch of the first roles; in it no failover has happened yet.
const FIRST_EPOCH: i64 = 1;
/// After a boot a side gives its peer this long to show up before it becomes Primary alone: the
/// peer may have been promoted meanwhile.
const ALONE_GRACE_SECONDS: i64 = 10;

/// Whether the spec asks for a role of an older epoch than one that was carried out already.
pub fn is_stale(seen: &Observed) -> bool {
    let carried_out = seen.resource.status.as_ref().and_then(|s| s.role_epoch);
    carried_out.is_some_and(|epoch| seen.resource.spec.role_epoch < epoch)
}

/// Becomes Secondary, if that is asked for; refuses a role of an older epoch.
pub(super) fn give_way(seen: &Observed, plan: &mut Plan) {
    let spec = &seen.resource.spec;
    if is_stale(seen) {
        return plan.fail(
            "StaleRole",
            format!(
                "Role {} of epoch {} is not carried out: DRBDResource {} has been through epoch {} already. The manager asks anew with a newer epoch",
                spec.role,
                spec.role_epoch,
                label(&seen.resource),
                seen.resource.status.as_ref().and_then(|s| s.role_epoch).unwrap_or_default()
            ),
        );
    }
    if spec.role != Role::Primary {
        for state in seen.kernel.values().filter(|s| s.role == Role::Primary) {
            plan.steps.push(Step::Secondary(state.name.clone()));
        }
    }
}

/// Becomes Primary, if that is asked for.
pub(super) fn take_over(seen: &Observed, now: Timestamp, plan: &mut Plan) {
    let spec = &seen.resource.spec;
    if spec.role != Role::Primary {
        return;
    }
    let states: Vec<&ResourceState> = spec
        .volumes
        .iter()
        .filter_map(|v| seen.kernel.get(&kernel_name(&seen.resource, v)))
        .collect();
    // All or none: a VM starts only when every disk is Primary.
    if states.len() < spec.volumes.len() {
        return;
    }
    for state in states.iter().filter(|s| s.role != Role::Primary) {
        if state.connection_state == ConnectionState::Connected && state.peer_role == Role::Primary
        {
            plan.hold(
                "PeerIsPrimary",
                format!(
                    "{} does not become Primary: its peer in cluster {} still is. It follows as soon as that side is Secondary; look at DRBDResource {} there",
                    state.name, spec.peer_cluster, label(&seen.resource)
                ),
            );
            continue;
        }
        if may_force(seen, state) {
            plan.steps.push(Step::Primary {
                resource: state.name.clone(),
                force: true,
            });
            continue;
        }
        let readable =
            state.disk_state == DiskState::UpToDate || state.peer_disk_state == DiskState::UpToDate;
        if !readable {
            plan.hold(
                "NoUpToDateData",
                format!(
                    "{} does not become Primary: its data on cluster {} is {}, and the connection to its peer in cluster {}, whose data is {}, is {}. It follows as soon as the two are connected and one is UpToDate. Mend the link between the nodes; look at the other side with: kubectl --context {} get drbdr -n {} {} -o yaml",
                    state.name,
                    spec.cluster,
                    state.disk_state,
                    spec.peer_cluster,
                    state.peer_disk_state,
                    state.connection_state,
                    spec.peer_cluster,
                    seen.resource.metadata.namespace.as_deref().unwrap_or_default(),
                    seen.resource.metadata.name.as_deref().unwrap_or_default()
                ),
            );
            continue;
        }
        if state.connection_state == ConnectionState::Connecting
            && !grace_is_over(seen, &state.name, now)
        {
            plan.again(WAITING);
            continue;
        }
        plan.steps.push(Step::Primary {
            resource: state.name.clone(),
            force: false,
        });
    }
}

fn may_force(seen: &Observed, state: &ResourceState) -> bool {
    let spec = &seen.resource.spec;
    if state.peer_disk_state == DiskState::UpToDate {
        return false;
    }
    let first_sync = spec.initial_source
        && spec.role_epoch == FIRST_EPOCH
        && state.disk_state == DiskState::Inconsistent
        && !was_up_to_date(&seen.resource);
    let all = seen.resource.metadata.annotations.as_ref();
    let named = all
        .and_then(|a| a.get(annotations::FORCE_PRIMARY))
        .and_then(|e| e.parse::<i64>().ok());
    let unplanned = named == Some(spec.role_epoch)
        && state.connection_state != ConnectionState::Connected
        && matches!(
            state.disk_state,
            DiskState::Consistent | DiskState::Outdated | DiskState::Inconsistent
        );
    first_sync || unplanned
}

fn grace_is_over(seen: &Observed, name: &str, now: Timestamp) -> bool {
    let applied = seen.applied.get(name);
    applied.is_some_and(|a| now.as_second() - a.at.as_second() >= ALONE_GRACE_SECONDS)
}

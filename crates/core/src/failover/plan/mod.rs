//! What a failover would do, before it is asked for: the very decision of [`super::decide`], carried out in
//! a world that does as it is told ([`rehearsal`]). On a world that does not change otherwise, the steps
//! that are then taken are these.

pub mod rehearsal;

use std::collections::BTreeMap;

use farshore_api::VmRef;
use farshore_api::drbd::ConnectionState;
use farshore_api::failover_request::FailoverState;
use farshore_api::protection_group::DesiredState;
use jiff::Timestamp;
use serde::Serialize;

use super::{LockPurpose, Observed, Side, Step, decide};
use crate::words;

/// Rounds after which a plan that still moves is given up: more than any failover takes.
const ROUNDS: usize = 100;

/// What a failover would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The writes, in order. Renewals of the lock are left out: they depend on how long it takes.
    pub steps: Vec<Step>,
    /// The state that it comes to.
    pub ends: FailoverState,
    /// What keeps it from `Completed`, in the words of its status.
    pub obstacle: Option<String>,
    /// Bytes by VM that the target did not hold when this was planned, where that is known.
    pub missing: BTreeMap<VmRef, i64>,
    /// VMs of which nobody can say what the target holds.
    pub unknown: Vec<VmRef>,
}

/// Plans a failover from a fresh look at the world, as it would begin now.
pub fn plan(seen: &Observed, now: Timestamp) -> Plan {
    let mut world = seen.clone();
    let mut steps = Vec::new();
    for _ in 0..ROUNDS {
        rehearsal::settle(&mut world);
        let decision = decide(&world, now);
        let at_rest =
            decision.steps.is_empty() && world.request.status.as_ref() == Some(&decision.status);
        rehearsal::carry_out(&mut world, &decision);
        steps.extend(decision.steps.into_iter().filter(|step| !is_renewal(step)));
        if at_rest {
            break;
        }
    }
    let status = world.request.status.unwrap_or_default();
    let ends = status.state.unwrap_or(FailoverState::Pending);
    let (missing, unknown) = data_at_risk(seen);
    Plan {
        steps,
        ends,
        obstacle: (ends != FailoverState::Completed)
            .then(|| status.message.unwrap_or_else(|| ends.to_string())),
        missing,
        unknown,
    }
}

fn is_renewal(step: &Step) -> bool {
    matches!(
        step,
        Step::WriteLock {
            purpose: LockPurpose::Renew,
            ..
        }
    )
}

/// What the target lacks of each member. The source knows what it could not send; the target knows it only
/// while it is connected: alone, it was told of the last write by nobody.
fn data_at_risk(seen: &Observed) -> (BTreeMap<VmRef, i64>, Vec<VmRef>) {
    let (mut missing, mut unknown) = (BTreeMap::new(), Vec::new());
    let told = |side: &Side, vm: &VmRef, alone: bool| {
        let resource = side.resource(vm);
        let status = resource.present().and_then(|r| r.status.as_ref())?;
        let knows = alone || status.connection_state == Some(ConnectionState::Connected);
        let bytes = || status.volumes.iter().map(|v| v.out_of_sync_bytes).sum();
        (knows && !status.volumes.is_empty()).then(bytes)
    };
    for vm in seen.members.iter().map(|m| m.vm()) {
        let sides = [
            told(&seen.source, &vm, true),
            told(&seen.target, &vm, false),
        ];
        match sides.into_iter().flatten().max() {
            Some(0) => {}
            Some(bytes) => {
                missing.insert(vm, bytes);
            }
            None => unknown.push(vm),
        }
    }
    (missing, unknown)
}

impl Plan {
    /// The plan for a person, a sentence a line.
    pub fn lines(&self, seen: &Observed) -> Vec<String> {
        let mut lines: Vec<String> = self
            .steps
            .iter()
            .filter_map(|s| sentence(s, seen))
            .collect();
        let queues = seen.request.spec.queue;
        let how = if self.ends.is_terminal(queues) {
            "It ends"
        } else {
            "It waits in"
        };
        let obstacle = self.obstacle.as_ref();
        lines.extend(obstacle.map(|why| format!("{how} {}: {why}", self.ends)));
        lines.extend(self.missing.iter().map(|(vm, bytes)| {
            format!(
                "VM {vm}: {} were not on cluster {} when this was planned.",
                words::bytes(*bytes),
                seen.target.cluster
            )
        }));
        if !self.unknown.is_empty() {
            lines.push(format!(
                "Nobody can say what cluster {} holds of VM {}. Look with: kubectl --context {} get drbdresource -A",
                seen.target.cluster,
                words::list_by(&self.unknown, VmRef::to_string),
                seen.target.cluster
            ));
        }
        lines
    }
}

/// A step for a person; None for what only keeps the books.
fn sentence(step: &Step, seen: &Observed) -> Option<String> {
    let names = words::list_by(&seen.members, |m| m.vm().to_string());
    let (vms, they) = match seen.members.len() {
        1 => (format!("VM {names}"), "it is"),
        _ => (format!("VMs {names}"), "they are"),
    };
    Some(match step {
        Step::AddFinalizer | Step::RemoveFinalizer => return None,
        Step::WriteLock { purpose, .. } => {
            let lease = format!("Lease {}/{}", seen.namespace(), seen.lease_name());
            match purpose {
                LockPurpose::Take => format!("Lock the group with {lease}."),
                LockPurpose::Renew => return None,
                LockPurpose::Release => format!("Release {lease}."),
            }
        }
        Step::CreateHookJob {
            cluster,
            namespace,
            name,
            ..
        } => format!("Run Job {namespace}/{name} on cluster {cluster} and wait for its end."),
        Step::SetDesiredState {
            cluster, desired, ..
        } => match desired {
            DesiredState::Stopped => {
                format!("Stop {vms} on cluster {cluster} and wait until {they} seen stopped.")
            }
            DesiredState::Running => {
                format!("Start {vms} on cluster {cluster} and wait until {they} seen running.")
            }
        },
        Step::SetTaints {
            cluster,
            node,
            removed,
            ..
        } => format!(
            "Take taint {} off node {node} of cluster {cluster}.",
            words::list(removed)
        ),
        Step::Flip {
            protection_request,
            to,
        } => format!(
            "Give the role of ProtectionRequest {protection_request} to cluster {to} and wait until DRBD is Primary there."
        ),
    })
}

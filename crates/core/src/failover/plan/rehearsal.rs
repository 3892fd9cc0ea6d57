//! A world that does as it is told: writes take effect, VMs stop and start, DRBD follows its roles where
//! its disks allow it, and Jobs succeed.

use farshore_api::VmRef;
use farshore_api::drbd::{DiskState, Role};
use farshore_api::meta::finalizers;
use farshore_api::names;
use farshore_api::protection_group::{
    CurrentState, DesiredState, GroupVmStatus, ProtectionGroupStatus,
};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::super::{Decision, Observed, Side, Step};
use crate::Seen;

/// Stores a decision's status and takes its steps. What was never seen stays unseen.
pub fn carry_out(seen: &mut Observed, decision: &Decision) {
    seen.request.status = Some(decision.status.clone());
    for step in &decision.steps {
        take(seen, step);
    }
}

/// One write takes effect.
pub fn take(seen: &mut Observed, step: &Step) {
    match step {
        Step::AddFinalizer => {
            let all = seen.request.metadata.finalizers.get_or_insert_default();
            all.push(finalizers::FAILOVER_LOCK.into());
        }
        Step::RemoveFinalizer => seen.request.metadata.finalizers = None,
        Step::WriteLock { spec, owners, .. } => {
            let metadata = ObjectMeta {
                resource_version: Some("written".into()),
                owner_references: Some(owners.clone()),
                ..ObjectMeta::default()
            };
            seen.lease = Some(Lease {
                metadata,
                spec: Some((**spec).clone()),
            });
        }
        Step::CreateHookJob { name, job, .. } => {
            let job = serde_json::from_value(job.clone()).unwrap_or_default();
            seen.jobs.insert(name.clone(), Seen::Present(job));
        }
        Step::SetDesiredState {
            cluster, desired, ..
        } => {
            let side = if *cluster == seen.source.cluster {
                &mut seen.source
            } else {
                &mut seen.target
            };
            if let Seen::Present(mirror) = &mut side.mirror
                && mirror.spec.desired_state != *desired
            {
                mirror.spec.desired_state = *desired;
                mirror.metadata.generation = mirror.metadata.generation.map(|g| g + 1);
            }
        }
        Step::SetTaints { node, taints, .. } => {
            if let Some(Seen::Present(node)) = seen.nodes.get_mut(node) {
                node.spec.get_or_insert_default().taints = Some(taints.clone());
            }
        }
        Step::Flip {
            protection_request,
            to,
        } => {
            let name = Some(protection_request);
            let members = seen.members.iter_mut().chain(&mut seen.former);
            members
                .filter(|m| m.metadata.name.as_ref() == name)
                .for_each(|m| m.spec.source_cluster.clone_from(to));
        }
    }
}

/// The workload clusters follow: VMs, roles, Jobs.
pub fn settle(seen: &mut Observed) {
    obey(&mut seen.source);
    obey(&mut seen.target);
    let members = seen.members.iter().chain(&seen.former);
    let roles: Vec<(VmRef, String)> = members
        .map(|m| (m.vm(), m.spec.source_cluster.clone()))
        .collect();
    for (vm, primary) in &roles {
        follow(&mut seen.source, vm, primary);
        follow(&mut seen.target, vm, primary);
    }
    for job in seen.jobs.values_mut() {
        if let Seen::Present(job) = job {
            succeed(job);
        }
    }
    look_for_hooks(seen);
}

/// The mirror's VMs do what it says.
fn obey(side: &mut Side) {
    let Seen::Present(mirror) = &mut side.mirror else {
        return;
    };
    let current = match mirror.spec.desired_state {
        DesiredState::Running => CurrentState::Running,
        DesiredState::Stopped => CurrentState::Stopped,
    };
    let vm = |vm: &VmRef| GroupVmStatus {
        name: vm.name.clone(),
        namespace: vm.namespace.clone(),
        state: current,
        replication: None,
        node: None,
        message: None,
    };
    let members = mirror.spec.members.iter();
    mirror.status = Some(ProtectionGroupStatus {
        current_state: Some(current),
        observed_generation: mirror.metadata.generation,
        vms: members.filter_map(|m| m.vm_ref.as_ref()).map(vm).collect(),
        ..mirror.status.take().unwrap_or_default()
    });
}

/// DRBD of a VM on one side follows the role; without good data nothing is promoted.
fn follow(side: &mut Side, vm: &VmRef, primary: &str) {
    let role = if side.cluster == primary {
        Role::Primary
    } else {
        Role::Secondary
    };
    if let Seen::Present(all) = &mut side.resources
        && let Some(status) = all.get_mut(vm).and_then(|r| r.status.as_mut())
        && (role == Role::Secondary || status.disk_state == Some(DiskState::UpToDate))
    {
        status.role = Some(role);
    }
}

fn succeed(job: &mut Job) {
    job.status = Some(JobStatus {
        conditions: Some(vec![JobCondition {
            type_: "Complete".into(),
            status: "True".into(),
            ..JobCondition::default()
        }]),
        ..JobStatus::default()
    });
}

/// The Jobs of all hooks are looked for, as in the states that run them.
fn look_for_hooks(seen: &mut Observed) {
    let hooks = seen.group.as_ref().and_then(|g| g.spec.hooks.clone());
    let hooks = hooks.unwrap_or_default();
    for (when, count) in [
        ("pre", hooks.pre_failover.len()),
        ("post", hooks.post_failover.len()),
    ] {
        for index in 0..count {
            let name = names::hook_job(seen.name(), seen.uid(), when, index);
            seen.jobs.entry(name).or_insert(Seen::Absent);
        }
    }
}

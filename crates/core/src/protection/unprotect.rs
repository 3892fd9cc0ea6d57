//! Unprotecting: the VM goes back to its own disks, everything that protection made is removed.
//! Nothing is taken for gone on a cluster that does not answer: while a peer is unreachable the
//! deletion waits, since an orphaned standby could be started by hand.

use farshore_api::conditions::request as condition;
use farshore_api::drbd::{ConnectionState, DiskState, Role};
use farshore_api::meta::annotations;
use farshore_api::protection_request::ProtectionPhase;
use serde_json::Value;

use super::scene::Scene;
use super::{Decision, MOVING, Step, disks, health, resource, roles, settled};
use crate::conditions::Truth;
use crate::words::Wait;
use crate::{Seen, vm};

pub(crate) fn decide(scene: &Scene, decision: &mut Decision) {
    decision.requeue = Some(MOVING);
    if let Some(failover) = &scene.seen.locked_by {
        let told = Wait {
            what: format!("ProtectionRequest {} is not removed", scene.request),
            by: format!(
                "ProtectionRequest {} is part of active FailoverRequest {failover}",
                scene.request
            ),
            since: None,
            next: "The VM stays protected until then; it goes on as soon as that failover has ended",
            command: format!(
                "kubectl -n {} describe failoverrequest {failover}",
                scene.namespace()
            ),
        };
        let truth = (condition::UNPROTECTED, Truth::False, "FailoverActive");
        return scene.wait(decision, truth, told);
    }
    let begins = decision.status.phase != Some(ProtectionPhase::Unprotecting);
    // Written first: groups let go of the VM when they see it.
    decision.status.phase = Some(ProtectionPhase::Unprotecting);
    keep_current(scene, decision);
    let (reason, told) = if begins {
        let by = "its groups let go of it first".into();
        let next = "Then it is stopped, gets its own disks back and is started again";
        ("Unprotecting", not_yet(scene, by, next, scene.look()))
    } else if let Some((cluster, why)) = scene.unknown() {
        let what = format!(
            "ProtectionRequest {} is not removed, since what it made on both clusters must be removed with it",
            scene.request
        );
        let told = scene.unreachable(what, cluster, why);
        (condition::CLUSTER_UNREACHABLE, told)
    } else {
        match next(scene, decision) {
            Ok(steps) => {
                let told = steps.first().and_then(|step| doing(scene, step));
                decision.steps.extend(steps);
                // With the last step the request itself goes.
                let Some(told) = told else { return };
                ("Unprotecting", told)
            }
            Err(told) => ("Unprotecting", *told),
        }
    };
    for type_ in [condition::PROTECTED, condition::UNPROTECTED] {
        scene.wait(decision, (type_, Truth::False, reason), told.clone());
    }
}

/// What the other conditions say stays true while the pair is taken apart.
fn keep_current(scene: &Scene, decision: &mut Decision) {
    let epoch = decision.status.role_epoch.unwrap_or(roles::FIRST_EPOCH);
    let health = health::of(
        &decision.status.volumes,
        (scene.source, scene.s),
        (scene.target, scene.t),
        epoch,
    );
    settled::progress(scene, decision, &health);
    let text = "the standby VirtualMachine no longer follows its source, since this request is being deleted";
    let type_ = condition::STANDBY_IN_STEP;
    scene.set(decision, type_, Truth::False, "Unprotecting", text);
    settled::created(scene, decision);
    let sides = [(scene.source, scene.s), (scene.target, scene.t)];
    let gone = sides.into_iter().find(|(_, s)| s.resource.is_absent());
    if let Some((cluster, _)) = gone {
        let text = format!(
            "DRBDResource {}/{} is gone from cluster {cluster}, since this request is being deleted",
            scene.vm.namespace, scene.resource
        );
        let type_ = condition::DRBD_CREATED;
        scene.set(decision, type_, Truth::False, "Unprotecting", text);
    }
}

/// What is waited for while a step is carried out; none for the last.
fn doing(scene: &Scene, step: &Step) -> Option<Wait<'static>> {
    let (vm, namespace, resource) = (&scene.vm, &scene.vm.namespace, &scene.resource);
    let (by, command) = match step {
        Step::PatchVm {
            cluster, purpose, ..
        } => (
            format!("VirtualMachine {vm} (cluster {cluster}) is written to {purpose}"),
            scene.look_at_vm(cluster),
        ),
        Step::DeleteVm { cluster } => (
            format!("the standby VirtualMachine {vm} (cluster {cluster}) is deleted"),
            scene.look_at_vm(cluster),
        ),
        Step::DeleteResource { cluster } => (
            format!("DRBDResource {namespace}/{resource} (cluster {cluster}) is deleted"),
            scene.look_at_resource(cluster),
        ),
        Step::DeletePvc { cluster, .. } | Step::DeleteSecret { cluster } => (
            format!("the claims and Secrets that protection made on cluster {cluster} are deleted"),
            format!("kubectl --context {cluster} -n {namespace} get pvc,secret"),
        ),
        _ => return None,
    };
    let next = "It goes on as soon as that is done";
    Some(not_yet(scene, by, next, command))
}

fn not_yet(scene: &Scene, by: String, next: &'static str, command: String) -> Wait<'static> {
    Wait {
        what: format!("VirtualMachine {} is not unprotected yet", scene.vm),
        by,
        since: None,
        next,
        command,
    }
}

type Next = Result<Vec<Step>, Box<Wait<'static>>>;

fn wait(scene: &Scene, by: String, next: &'static str, command: String) -> Next {
    Err(Box::new(not_yet(scene, by, next, command)))
}

/// The next steps, from what is left.
fn next(scene: &Scene, decision: &Decision) -> Next {
    for (cluster, side) in [(scene.source, scene.s), (scene.target, scene.t)] {
        if side.mirrored.present() == Some(&true) {
            return wait(
                scene,
                format!("a ProtectionGroup on cluster {cluster} still runs the VM"),
                "It goes on as soon as the group has let go of it",
                format!(
                    "kubectl --context {cluster} -n dr-{} get protectiongroups",
                    scene.zone_name
                ),
            );
        }
    }
    // Nothing is given back or removed on either side while the VM runs on the side that is to lose
    // its data, or while the side that is to keep its data does not have the newest.
    if !scene.t.vmi.is_absent() {
        return wait(
            scene,
            format!("the VM runs on cluster {}", scene.target),
            "It goes on as soon as that VM has stopped; to keep what it writes, set spec.sourceCluster to that cluster first",
            scene.look_at_vm(scene.target),
        );
    }
    if let Some(state) = not_current(scene) {
        return wait(
            scene,
            format!(
                "the disks on cluster {} are {state}, so the VM would go back to old data",
                scene.source
            ),
            "It goes on as soon as they are UpToDate; spec.sourceCluster names the side that keeps the data",
            scene.look_at_resource(scene.source),
        );
    }
    if let Seen::Present(machine) = &scene.s.vm {
        let volumes = &decision.status.volumes;
        let swapped = disks::is_swapped_in_part(machine, volumes);
        if swapped {
            if !vm::is_halted(machine) {
                return Ok(stop(scene, machine));
            }
            if !scene.s.vmi.is_absent() {
                return wait(
                    scene,
                    format!("the VM still runs on cluster {}", scene.source),
                    "It goes on as soon as the VM has stopped; it is started again at the end",
                    scene.look_at_vm(scene.source),
                );
            }
        }
        let restored = restored(machine);
        if let Some(patch) = vm::patch(machine, &restored) {
            let purpose = "give it back its own disks";
            return Ok(vec![Step::PatchVm {
                cluster: scene.source.into(),
                purpose,
                patch,
            }]);
        }
    }
    if let Some(steps) = release_standby_vm(scene)? {
        return Ok(steps);
    }
    tear_down(scene, decision)
}

/// What the source's disks are when they do not hold the newest data, or may not.
fn not_current(scene: &Scene) -> Option<String> {
    let status = scene.s.resource.present()?.status.as_ref()?;
    let state = status.disk_state?;
    if state < DiskState::Consistent {
        return Some(state.to_string());
    }
    // A Primary serves its VM from wherever the newest data is.
    if status.role == Some(Role::Primary) {
        return None;
    }
    if state != DiskState::UpToDate {
        return Some(state.to_string());
    }
    let target = scene.t.resource.present().and_then(|r| r.status.as_ref());
    let written_there = target.is_some_and(|s| s.role == Some(Role::Primary));
    (written_there && status.connection_state != Some(ConnectionState::Connected))
        .then(|| format!("cut off from cluster {}, which is Primary", scene.target))
}

fn stop(scene: &Scene, machine: &Value) -> Vec<Step> {
    let mut new = machine.clone();
    vm::halt(&mut new);
    vm::annotate(&mut new, annotations::RESTART, Some("true"));
    let patch = vm::patch(machine, &new);
    let purpose = "stop it to give it back its own disks";
    patch
        .map(|patch| Step::PatchVm {
            cluster: scene.source.into(),
            purpose,
            patch,
        })
        .into_iter()
        .collect()
}

/// The VM without protection. One that is halted remembers how it ran: nothing else knows it.
fn restored(machine: &Value) -> Value {
    let mut new = machine.clone();
    disks::restore(&mut new);
    if !vm::is_halted(&new) {
        vm::annotate(&mut new, annotations::RUN_STRATEGY, None);
    }
    new
}

/// Deletes the standby VM if the product made it; else gives it back its own disks.
fn release_standby_vm(scene: &Scene) -> Result<Option<Vec<Step>>, Box<Wait<'static>>> {
    let Seen::Present(standby) = &scene.t.vm else {
        return Ok(None);
    };
    let ours = disks::creator(standby) == Some(&scene.owner());
    if ours && !scene.keeps_standby() {
        if !vm::is_halted(standby) {
            return wait(
                scene,
                format!("the standby VM runs on cluster {}", scene.target),
                "It goes on as soon as that VM has stopped",
                scene.look_at_vm(scene.target),
            )
            .map(Some);
        }
        if standby
            .pointer("/metadata/deletionTimestamp")
            .is_none_or(Value::is_null)
        {
            return Ok(Some(vec![Step::DeleteVm {
                cluster: scene.target.into(),
            }]));
        }
        return wait(
            scene,
            format!(
                "the standby VM on cluster {} is being deleted",
                scene.target
            ),
            "It goes on as soon as it is gone",
            scene.look_at_vm(scene.target),
        )
        .map(Some);
    }
    let protected = disks::owner(standby) == Some(&scene.owner());
    let patch = vm::patch(standby, &restored(standby)).filter(|_| protected);
    let purpose = "give it back its own disks";
    Ok(patch.map(|patch| {
        vec![Step::PatchVm {
            cluster: scene.target.into(),
            purpose,
            patch,
        }]
    }))
}

/// Removes the pair, then what stood behind it, then starts the VM and lets the request go.
fn tear_down(scene: &Scene, decision: &Decision) -> Next {
    let mut steps = Vec::new();
    let mut left = Vec::new();
    for (cluster, side) in [(scene.source, scene.s), (scene.target, scene.t)] {
        match side.resource.present() {
            Some(resource) if resource.metadata.deletion_timestamp.is_none() => {
                steps.push(Step::DeleteResource {
                    cluster: cluster.into(),
                });
                left.push(cluster);
            }
            Some(_) => left.push(cluster),
            None => {}
        }
    }
    // The VM can have its disks as soon as its own side let go of them.
    if !left.contains(&scene.source)
        && let Seen::Present(machine) = &scene.s.vm
        && vm::annotation(machine, annotations::RESTART).is_some()
    {
        let mut new = machine.clone();
        vm::resume(&mut new);
        vm::annotate(&mut new, annotations::RESTART, None);
        if let Some(patch) = vm::patch(machine, &new) {
            let purpose = "start it again from its own disks";
            steps.push(Step::PatchVm {
                cluster: scene.source.into(),
                purpose,
                patch,
            });
        }
    }
    if !steps.is_empty() {
        return Ok(steps);
    }
    if let Some(cluster) = left.first() {
        return wait(
            scene,
            format!(
                "DRBDResource {}/{} (cluster {cluster}) is being torn down by its node",
                scene.vm.namespace, scene.resource
            ),
            "It goes on as soon as the node agent has taken DRBD down",
            scene.look_at_resource(cluster),
        );
    }
    if !scene.keeps_standby() {
        for volume in &decision.status.volumes {
            let Some(Seen::Present(claim)) = scene.t.pvcs.get(&volume.pvc) else {
                continue;
            };
            if resource::made(scene, claim) && claim.metadata.deletion_timestamp.is_none() {
                steps.push(Step::DeletePvc {
                    cluster: scene.target.into(),
                    name: volume.pvc.clone(),
                });
            }
        }
    }
    for (cluster, side) in [(scene.source, scene.s), (scene.target, scene.t)] {
        if side.secret.present().is_some() {
            steps.push(Step::DeleteSecret {
                cluster: cluster.into(),
            });
        }
    }
    if steps.is_empty() {
        steps.push(Step::RemoveFinalizer);
    }
    Ok(steps)
}

//! Protected, Degraded and FailingOver: the pair follows its request, the standby VM follows its
//! source, and the status tells how replication is.

use farshore_api::conditions::request as condition;
use farshore_api::drbd::Role;
use farshore_api::protection_request::ProtectionPhase;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::health::{self, Health};
use super::resource::Which;
use super::scene::Scene;
use super::{Decision, MOVING, SETTLED, Step, WAITING, disks, resource, roles};
use crate::conditions::{self, Truth};
use crate::vm;
use crate::words::Wait;

pub(crate) fn decide(scene: &Scene, decision: &mut Decision) {
    decision.requeue = Some(MOVING);
    let epoch = decision.status.role_epoch.unwrap_or(roles::FIRST_EPOCH);
    if decision.status.target_cluster.as_deref() == Some(scene.source) {
        return flip(scene, decision, epoch + 1);
    }
    decision.status.target_cluster = Some(scene.target.into());
    let health = health::of(
        &decision.status.volumes,
        (scene.source, scene.s),
        (scene.target, scene.t),
        epoch,
    );
    replace_target(scene, decision, epoch);
    decision.steps.extend(resource::changes(scene, epoch));
    decision.steps.extend(resource::reports(scene, &health));
    keep_standby(scene, decision, epoch);
    progress(scene, decision, &health);
    phase(scene, decision, &health, epoch);
}

/// The source has changed: a new epoch begins. It is written before any role is touched.
fn flip(scene: &Scene, decision: &mut Decision, epoch: i64) {
    decision.status.role_epoch = Some(epoch);
    decision.status.target_cluster = Some(scene.target.into());
    decision.status.phase = Some(ProtectionPhase::FailingOver);
    let message = format!(
        "spec.sourceCluster names {} now: {} gives way at role epoch {epoch}, then {} becomes Primary",
        scene.source, scene.target, scene.source
    );
    scene.set(
        decision,
        condition::PROTECTED,
        Truth::False,
        "FailingOver",
        message,
    );
}

/// A standby side whose DRBDResource is gone is made anew; the source's never is: its data would be
/// taken for new.
fn replace_target(scene: &Scene, decision: &mut Decision, epoch: i64) {
    if !scene.t.resource.is_absent() || !roles::seen(&scene.s.resource, Role::Primary, epoch) {
        return;
    }
    if scene.t.namespace.is_absent() {
        decision.steps.push(Step::CreateNamespace {
            cluster: scene.target.into(),
        });
    }
    if scene.t.secret.is_absent() || scene.s.secret.is_absent() {
        decision.steps.push(Step::ShareSecret);
    }
    if let Some(new) = resource::new(scene, &decision.status.volumes, Which::Target, epoch) {
        let resource = Box::new(new);
        decision.steps.push(Step::CreateResource {
            cluster: scene.target.into(),
            resource,
        });
    }
}

/// Keeps the VM of the standby side in step with the source's. It is written only while it cannot
/// run: roles are settled and it is halted without an instance.
fn keep_standby(scene: &Scene, decision: &mut Decision, epoch: i64) {
    if scene.s.vm.is_absent() {
        let message = format!(
            "VirtualMachine {} is gone from cluster {}; its standby on {} is kept as it is. Create it again from its disks, or delete this request",
            scene.vm, scene.source, scene.target
        );
        return scene.set(
            decision,
            condition::STANDBY_IN_STEP,
            Truth::False,
            condition::VM_NOT_FOUND,
            message,
        );
    }
    let settled = roles::seen(&scene.s.resource, Role::Primary, epoch)
        && roles::seen(&scene.t.resource, Role::Secondary, epoch);
    let (Some(source), Some(here), Some(there)) = (
        scene.s.vm.present(),
        health::node(scene.s),
        health::node(scene.t),
    ) else {
        return;
    };
    if !settled || scene.t.vm.unknown().is_some() {
        return;
    }
    if !disks::is_swapped(source, &decision.status.volumes) {
        let message = format!(
            "VirtualMachine {} (cluster {}) no longer runs from its replicated disks: what it writes is not replicated. Stop it, then delete this request and create it anew",
            scene.vm, scene.source
        );
        return scene.set(
            decision,
            condition::STANDBY_IN_STEP,
            Truth::False,
            "SourceNotSwapped",
            message,
        );
    }
    let Some(standby) = scene.t.vm.present() else {
        let mut model = source.clone();
        disks::swap(&mut model, &decision.status.volumes, here);
        let vm = disks::standby(
            &model,
            &decision.status.volumes,
            there,
            &scene.owner(),
            &scene.labels(),
        );
        decision.steps.push(Step::CreateVm {
            cluster: scene.target.into(),
            vm,
        });
        let message = format!(
            "VirtualMachine {} (cluster {}) is being created",
            scene.vm, scene.target
        );
        return scene.set(
            decision,
            condition::STANDBY_IN_STEP,
            Truth::False,
            "Missing",
            message,
        );
    };
    if !vm::is_halted(standby) || !scene.t.vmi.is_absent() {
        let message = format!(
            "VirtualMachine {} (cluster {}) is not halted and so not written; stop it there: virtctl --context {} -n {} stop {}",
            scene.vm, scene.target, scene.target, scene.vm.namespace, scene.vm.name
        );
        return scene.set(
            decision,
            condition::STANDBY_IN_STEP,
            Truth::False,
            "StandbyNotHalted",
            message,
        );
    }
    match disks::in_step(standby, source, there) {
        Some(patch) => {
            let purpose = "bring the standby in step with its source";
            decision.steps.push(Step::PatchVm {
                cluster: scene.target.into(),
                purpose,
                patch,
            });
        }
        None => {
            let message = format!(
                "VirtualMachine {} (cluster {}) has the template of its source",
                scene.vm, scene.target
            );
            scene.set(
                decision,
                condition::STANDBY_IN_STEP,
                Truth::True,
                "InStep",
                message,
            );
        }
    }
}

/// Writes how replication goes into the status.
pub(crate) fn progress(scene: &Scene, decision: &mut Decision, health: &Health) {
    let was_in_sync = conditions::is_true(&decision.status.conditions, condition::SYNCED);
    let was_connected =
        conditions::get(&decision.status.conditions, condition::CONNECTED).is_some();
    let status = &mut decision.status;
    status.volumes.clone_from(&health.volumes);
    status.sync_percent = Some(health.percent);
    for (cluster, side) in [(scene.source, scene.s), (scene.target, scene.t)] {
        if let Some(node) = health::node(side) {
            status.nodes.insert(cluster.into(), node.into());
        }
    }
    status.source_node = status.nodes.get(scene.source).cloned();
    status.target_node = status.nodes.get(scene.target).cloned();
    if was_in_sync != health.in_sync {
        status.last_in_sync_time = Some(Time(whole_second(scene.now)));
    }

    let (reason, message) = match (health.in_sync, was_in_sync, &health.trouble) {
        (true, ..) => ("FullSync", "every block is on both sides".into()),
        (_, _, Some(trouble)) => {
            let first =
                status.last_in_sync_time.is_none() && trouble.reason == condition::RESYNCING;
            (
                if first {
                    condition::INITIAL_SYNC
                } else {
                    trouble.reason
                },
                trouble.by.clone(),
            )
        }
        _ => (
            condition::RESYNCING,
            "not every block is on both sides".into(),
        ),
    };
    scene.set(
        decision,
        condition::SYNCED,
        health.in_sync.into(),
        reason,
        message,
    );
    let exists = scene.s.resource.present().is_some() || scene.t.resource.present().is_some();
    if exists || was_connected {
        let (truth, reason) = match health.connected {
            Some(true) => (Truth::True, "Connected"),
            Some(false) => (Truth::False, condition::PEER_DISCONNECTED),
            None => (Truth::Unknown, "NotReported"),
        };
        let message = match health.connected {
            Some(true) => "every volume is connected to its peer",
            Some(false) => "at least one volume is not connected to its peer",
            None => "the state of at least one volume is not reported yet",
        };
        scene.set(decision, condition::CONNECTED, truth, reason, message);
        let (truth, reason) = if health.split_brain {
            (Truth::True, condition::SPLIT_BRAIN_DETECTED)
        } else {
            (Truth::False, "NoSplitBrain")
        };
        let message = if health.split_brain {
            format!(
                "both sides of VirtualMachine {} wrote while apart; decide whose data is kept before anything else",
                scene.vm
            )
        } else {
            "no kernel reports split brain".into()
        };
        scene.set(decision, condition::SPLIT_BRAIN, truth, reason, message);
    }
}

/// Says so; for the first time only after the first full copy was verified on both sides.
pub(crate) fn is_protected(scene: &Scene, decision: &mut Decision) {
    decision.status.phase = Some(ProtectionPhase::Protected);
    let text = format!(
        "every acknowledged write of VirtualMachine {} is on cluster {} too",
        scene.vm, scene.target
    );
    scene.set(decision, condition::PROTECTED, Truth::True, "InSync", text);
}

fn phase(scene: &Scene, decision: &mut Decision, health: &Health, epoch: i64) {
    let promoted = roles::seen(&scene.s.resource, Role::Primary, epoch);
    let failing_over = decision.status.phase == Some(ProtectionPhase::FailingOver) && !promoted;
    let Some(trouble) = &health.trouble else {
        if decision.steps.is_empty() {
            decision.requeue = Some(SETTLED);
        }
        return is_protected(scene, decision);
    };
    if failing_over {
        let gave_way = roles::may_promote(epoch, &scene.t.resource);
        let by = match (scene.t.resource.unknown(), scene.s.resource.unknown()) {
            (Some(why), _) => format!("cluster {} does not answer ({why})", scene.target),
            (_, Some(why)) => format!("cluster {} does not answer ({why})", scene.source),
            _ if gave_way => format!(
                "cluster {} is not Primary at role epoch {epoch} yet",
                scene.source
            ),
            _ => format!(
                "cluster {} is not Secondary at role epoch {epoch} yet",
                scene.target
            ),
        };
        let unreachable =
            scene.t.resource.unknown().is_some() || scene.s.resource.unknown().is_some();
        let reason = if unreachable {
            condition::CLUSTER_UNREACHABLE
        } else {
            "FailingOver"
        };
        let told = Wait {
            what: format!(
                "cluster {} does not run VirtualMachine {} yet",
                scene.source, scene.vm
            ),
            by,
            since: None,
            next: "Nobody is made Primary before the other side was seen Secondary; it goes on as soon as that is so",
            command: scene.look_at_resource(if gave_way { scene.source } else { scene.target }),
        };
        return scene.wait(decision, (condition::PROTECTED, Truth::False, reason), told);
    }
    decision.status.phase = Some(ProtectionPhase::Degraded);
    decision.requeue = Some(if trouble.reason == condition::RESYNCING {
        MOVING
    } else {
        WAITING
    });
    let (reason, next) = if scene.seen.request.spec.paused {
        (
            "Paused",
            "Replication goes on, and copies what differs, when spec.paused is false again",
        )
    } else {
        (
            trouble.reason,
            "Replication goes on by itself, and copies what differs, when that is over",
        )
    };
    let told = Wait {
        what: format!(
            "the copy of VirtualMachine {} on cluster {} may be behind",
            scene.vm, scene.target
        ),
        by: trouble.by.clone(),
        since: None,
        next,
        command: scene.look_at_resource(scene.source),
    };
    scene.wait(decision, (condition::PROTECTED, Truth::False, reason), told);
}

fn whole_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

//! The VM of the standby side follows its source, so that a failover starts the same machine.

use farshore_api::conditions::request as condition;
use farshore_api::drbd::Role;

use super::scene::Scene;
use super::{Decision, Step, disks, health, roles};
use crate::conditions::Truth;
use crate::vm;
use crate::words;

/// Keeps the VM of the standby side in step with the source's. It is written only while it cannot
/// run: roles are settled and it is halted without an instance.
pub(crate) fn keep(scene: &Scene, decision: &mut Decision, epoch: i64) {
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
    let added = disks::unreplicated(source, scene.s.vmi.present(), &decision.status.volumes);
    if !added.is_empty() {
        // Its claim is on one side only: a standby that named it could not start.
        let message = format!(
            "VirtualMachine {} (cluster {}) is kept as it was: {} of its source is not replicated",
            scene.vm,
            scene.target,
            words::list(&added)
        );
        return scene.set(
            decision,
            condition::STANDBY_IN_STEP,
            Truth::False,
            condition::UNREPLICATED_VOLUME,
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
    let Some(patch) = disks::in_step(standby, source, there) else {
        let message = "the standby VirtualMachine has the template of its source";
        return scene.set(
            decision,
            condition::STANDBY_IN_STEP,
            Truth::True,
            "InStep",
            message,
        );
    };
    let purpose = "bring the standby in step with its source";
    decision.steps.push(Step::PatchVm {
        cluster: scene.target.into(),
        purpose,
        patch,
    });
    match &scene.seen.trouble {
        // It is in step a moment from now.
        None => still_in_step(scene, decision),
        Some(trouble) => {
            let message = format!(
                "VirtualMachine {} (cluster {}) does not have the template of its source, since it could not be written. It is tried again until it can. The last attempt failed: {trouble}",
                scene.vm, scene.target
            );
            scene.set(
                decision,
                condition::STANDBY_IN_STEP,
                Truth::False,
                "NotWritten",
                message,
            );
        }
    }
}

/// What was said of the standby holds for this generation of the request too.
pub(crate) fn still_in_step(scene: &Scene, decision: &mut Decision) {
    let all = &mut decision.status.conditions;
    if let Some(said) = all
        .iter_mut()
        .find(|c| c.type_ == condition::STANDBY_IN_STEP)
    {
        said.observed_generation = scene.seen.request.metadata.generation;
    }
}

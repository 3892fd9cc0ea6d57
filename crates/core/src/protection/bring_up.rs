//! CreatingDRBD and Syncing: the pair is created, the VM is moved onto its replicated disks, the
//! standby is made.
//!
//! Offline [S2]: the VM is stopped, the pair syncs in full, and only when every DRBDVolume has
//! reported it does the VM move to its replicated disks and start again. Online: the VM is stopped
//! only between the moment when the standby side is bound and the moment when its own device is
//! Primary; it then runs on the replicated disks while they sync. In both the backing disks are never
//! written beside DRBD once DRBD holds them.

use farshore_api::conditions::request as condition;
use farshore_api::drbd::{ConnectionState, Role};
use farshore_api::meta::annotations;
use farshore_api::names;
use farshore_api::protection_request::{ProtectionPhase, SyncMode};
use serde_json::Value;

use super::health::{self, Health};
use super::resource::Which;
use super::scene::Scene;
use super::{Decision, MOVING, Step, disks, resource, roles};
use crate::conditions::{self, Truth};
use crate::words::Wait;
use crate::{Note, Seen, vm};

/// Reason of waits without a better one.
const WORKING: &str = "InProgress";

pub(crate) fn decide(scene: &Scene, decision: &mut Decision) {
    decision.requeue = Some(MOVING);
    let what = format!("protection of VirtualMachine {}", scene.vm);
    if decision.status.target_cluster.as_deref() == Some(scene.source) {
        let message = format!(
            "spec.sourceCluster was changed before the VM was Protected; set it back to {}",
            scene.target
        );
        return scene.set(
            decision,
            condition::PROTECTED,
            Truth::False,
            "SourceClusterChanged",
            message,
        );
    }
    if let Some((cluster, why)) = scene.unknown() {
        let both = conditions::get(&decision.status.conditions, condition::DRBD_CREATED)
            .is_some_and(|c| c.status != "False");
        if both {
            super::settled::created(scene, decision);
        }
        let told = scene.unreachable(format!("{what} stands still"), cluster, why);
        let truth = (
            condition::PROTECTED,
            Truth::False,
            condition::CLUSTER_UNREACHABLE,
        );
        return scene.wait(decision, truth, told);
    }
    let Seen::Present(machine) = &scene.s.vm else {
        let message = format!(
            "VirtualMachine {} is gone from cluster {}; delete this request, or create the VM again from its disks",
            scene.vm, scene.source
        );
        return scene.set(
            decision,
            condition::PROTECTED,
            Truth::False,
            condition::VM_NOT_FOUND,
            message,
        );
    };
    let epoch = decision.status.role_epoch.unwrap_or(roles::FIRST_EPOCH);
    let volumes = decision.status.volumes.clone();
    let health = health::of(
        &volumes,
        (scene.source, scene.s),
        (scene.target, scene.t),
        epoch,
    );
    let swapped = disks::is_swapped(machine, &volumes);
    let online = scene.seen.request.spec.sync_mode == SyncMode::Online;
    let at_rest = vm::is_halted(machine) && scene.s.vmi.is_absent();

    hold_vm(
        scene,
        decision,
        machine,
        swapped || (online && !health::bound(scene.t)),
    );
    create(
        scene,
        decision,
        online || swapped || at_rest,
        swapped || at_rest,
        epoch,
    );
    decision.steps.extend(resource::changes(scene, epoch));
    decision.steps.extend(resource::reports(scene, &health));
    super::settled::progress(scene, decision, &health);

    let primary = roles::seen(&scene.s.resource, Role::Primary, epoch);
    let ready = primary && health::frontend_ready(scene.s);
    let gate = online || resource::all_reported(scene, &volumes);
    if !swapped && at_rest && ready && gate {
        move_vm(scene, decision, machine);
    }
    let synced = health.trouble.is_none() && resource::all_reported(scene, &volumes);
    if synced && scene.t.vm.is_absent() {
        make_standby(scene, decision, machine);
    }
    let moved = swapped && vm::annotation(machine, annotations::RESTART).is_none();
    let standby = !scene.t.vm.is_absent() && health::frontend_ready(scene.t);
    phase(
        scene,
        decision,
        &health,
        synced && moved && standby,
        machine,
    );
}

/// Marks the VM as protected and, unless it may run, stops it.
fn hold_vm(scene: &Scene, decision: &mut Decision, machine: &Value, may_run: bool) {
    let mut new = machine.clone();
    disks::mark(&mut new, &scene.owner(), &scene.labels());
    let stop = !may_run && !vm::is_halted(machine);
    if stop {
        vm::halt(&mut new);
        vm::annotate(&mut new, annotations::RESTART, Some("true"));
        if scene.s.resource.present().is_some() {
            decision.notes.push(Note::warning(
                "VMStartedTooEarly",
                format!(
                    "VirtualMachine {} was started on cluster {} while DRBD copies its disks; it is stopped again. What it wrote beside DRBD may be missing on cluster {}: delete this request and create it anew",
                    scene.vm, scene.source, scene.target
                ),
            ));
        }
    }
    if let Some(patch) = vm::patch(machine, &new) {
        let purpose = if stop {
            "stop it for the first sync"
        } else {
            "mark it as protected"
        };
        decision.steps.push(Step::PatchVm {
            cluster: scene.source.into(),
            purpose,
            patch,
        });
    }
}

/// Creates what is missing of the pair.
fn create(scene: &Scene, decision: &mut Decision, target: bool, source: bool, epoch: i64) {
    let volumes = decision.status.volumes.clone();
    decision
        .steps
        .extend(resource::missing_views(scene, &volumes));
    if !target {
        return;
    }
    if scene.t.namespace.is_absent() {
        decision.steps.push(Step::CreateNamespace {
            cluster: scene.target.into(),
        });
    }
    if scene.s.secret.is_absent() || scene.t.secret.is_absent() {
        decision.steps.push(Step::ShareSecret);
    }
    for (which, cluster, side, due) in [
        (Which::Target, scene.target, scene.t, true),
        (Which::Source, scene.source, scene.s, source),
    ] {
        if due
            && side.resource.is_absent()
            && let Some(new) = resource::new(scene, &volumes, which, epoch)
        {
            let resource = Box::new(new);
            decision.steps.push(Step::CreateResource {
                cluster: cluster.into(),
                resource,
            });
        }
    }
}

/// Moves the VM onto its replicated disks and starts it again if it ran, in one write.
fn move_vm(scene: &Scene, decision: &mut Decision, machine: &Value) {
    let Some(node) = health::node(scene.s) else {
        return;
    };
    let mut new = machine.clone();
    disks::mark(&mut new, &scene.owner(), &scene.labels());
    disks::swap(&mut new, &decision.status.volumes, node);
    if vm::annotation(machine, annotations::RESTART).is_some() {
        vm::resume(&mut new);
        vm::annotate(&mut new, annotations::RESTART, None);
    }
    if let Some(patch) = vm::patch(machine, &new) {
        // One write for the VM: a patch that only marks it would make this one stale.
        decision
            .steps
            .retain(|s| !matches!(s, Step::PatchVm { .. }));
        let purpose = "move it to its replicated disks";
        decision.steps.push(Step::PatchVm {
            cluster: scene.source.into(),
            purpose,
            patch,
        });
    }
}

fn make_standby(scene: &Scene, decision: &mut Decision, machine: &Value) {
    let (Some(here), Some(there)) = (health::node(scene.s), health::node(scene.t)) else {
        return;
    };
    let volumes = &decision.status.volumes;
    let mut source = machine.clone();
    disks::swap(&mut source, volumes, here);
    let vm = disks::standby(&source, volumes, there, &scene.owner(), &scene.labels());
    decision.steps.push(Step::CreateVm {
        cluster: scene.target.into(),
        vm,
    });
}

/// Where the protection stands, and what it waits for.
fn phase(scene: &Scene, decision: &mut Decision, health: &Health, done: bool, machine: &Value) {
    let (s, t) = (scene.s.resource.present(), scene.t.resource.present());
    match (s, t) {
        (Some(_), Some(_)) => super::settled::created(scene, decision),
        _ => {
            let told = waiting_to_create(scene, machine);
            scene.wait(
                decision,
                (condition::DRBD_CREATED, Truth::False, WORKING),
                told,
            );
        }
    }
    let both_connected = [s, t].into_iter().all(|r| {
        r.and_then(|r| r.status.as_ref())
            .and_then(|s| s.connection_state)
            == Some(ConnectionState::Connected)
    });
    let creating = decision.status.phase == Some(ProtectionPhase::CreatingDRBD);
    if creating && both_connected {
        decision.status.phase = Some(ProtectionPhase::Syncing);
    }
    if done && !creating {
        return super::settled::in_sync(scene, decision);
    }
    let told = waiting_to_protect(scene, decision, health, machine);
    let reason = if s.is_none() || t.is_none() {
        WORKING
    } else {
        condition::INITIAL_SYNC
    };
    scene.wait(decision, (condition::PROTECTED, Truth::False, reason), told);
}

fn waiting_to_create(scene: &Scene, machine: &Value) -> Wait<'static> {
    let stopping = !vm::is_halted(machine) || !scene.s.vmi.is_absent();
    let by = if stopping {
        format!(
            "VirtualMachine {} still runs on cluster {}",
            scene.vm, scene.source
        )
    } else {
        "they are being created".into()
    };
    Wait {
        what: format!(
            "the DRBDResources of VirtualMachine {} do not exist",
            scene.vm
        ),
        by,
        since: None,
        next: "They are created as soon as the VM has stopped, so that nothing writes beside DRBD",
        command: scene.look_at_vm(scene.source),
    }
}

fn waiting_to_protect(
    scene: &Scene,
    decision: &Decision,
    health: &Health,
    machine: &Value,
) -> Wait<'static> {
    let what = format!("VirtualMachine {} is not protected yet", scene.vm);
    let tell = |by: String, next: &'static str, command: String| Wait {
        what: what.clone(),
        by,
        since: None,
        next,
        command,
    };
    for (cluster, side) in [(scene.target, scene.t), (scene.source, scene.s)] {
        let Some(resource) = side.resource.present() else {
            let told = waiting_to_create(scene, machine);
            return tell(told.by, told.next, told.command);
        };
        if !health::bound(side) {
            let message = resource.status.as_ref().and_then(|s| s.message.clone());
            return tell(
                format!(
                    "DRBDResource {}/{} (cluster {cluster}) is not bound to a node{}",
                    scene.vm.namespace,
                    scene.resource,
                    message.map_or(String::new(), |m| format!(": {m}"))
                ),
                "It goes on as soon as a node is bound and its disks are provisioned",
                scene.look_at_resource(cluster),
            );
        }
    }
    if let Some(trouble) = &health.trouble {
        return tell(
            trouble.by.clone(),
            "It goes on by itself as soon as both sides are connected and in sync",
            scene.look_at_resource(scene.source),
        );
    }
    for (cluster, side) in [(scene.source, scene.s), (scene.target, scene.t)] {
        if !health::frontend_ready(side) {
            let first = decision
                .status
                .volumes
                .first()
                .map(|v| names::frontend_pvc(&v.pvc));
            return tell(
                format!(
                    "PersistentVolumeClaim {}/{} (cluster {cluster}) is not ready",
                    scene.vm.namespace,
                    first.unwrap_or_default()
                ),
                "It goes on as soon as the node agent has provisioned it",
                scene.look_at_resource(cluster),
            );
        }
    }
    tell(
        "the VM is being moved to its replicated disks".into(),
        "The request is Protected as soon as the VM and its standby are in place",
        scene.look(),
    )
}

//! Protected, Degraded and FailingOver: the pair follows its request, the standby VM follows its
//! source, and the status tells how replication is.

use farshore_api::conditions::request as condition;
use farshore_api::drbd::Role;
use farshore_api::protection_request::ProtectionPhase;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::health::{self, Health, Trouble};
use super::resource::Which;
use super::scene::Scene;
use super::{Decision, MOVING, SETTLED, Step, WAITING, disks, resource, roles, standby, validate};
use crate::conditions::{self, Truth};
use crate::words::{self, Wait};
use crate::{Seen, quantity};

/// How long a flip may take before its wait is told step by step. A flip that goes on as it should
/// is over before, and costs two writes of the status: one before any role is touched, one after.
const BRISK: SignedDuration = SignedDuration::from_secs(10);

pub(crate) fn decide(scene: &Scene, decision: &mut Decision) {
    decision.requeue = Some(MOVING);
    let old = decision.status.role_epoch.unwrap_or(roles::FIRST_EPOCH);
    let flips = decision.status.target_cluster.as_deref() == Some(scene.source);
    let epoch = if flips { old + 1 } else { old };
    decision.status.target_cluster = Some(scene.target.into());
    validate::tell_valid(scene, decision);
    let health = health::of(
        &decision.status.volumes,
        (scene.source, scene.s),
        (scene.target, scene.t),
        epoch,
    );
    if flips {
        // A new epoch begins. It is written before any role is touched.
        decision.status.role_epoch = Some(epoch);
        decision.status.phase = Some(ProtectionPhase::FailingOver);
        standby::still_in_step(scene, decision);
    } else {
        if scene.t.secret.is_absent() || scene.s.secret.is_absent() {
            // Deleted by hand: nobody notices until a node must configure DRBD anew, and then it is too late.
            decision.steps.push(Step::ShareSecret);
        }
        replace_target(scene, decision, epoch);
        let views = resource::missing_views(scene, &decision.status.volumes);
        decision.steps.extend(views);
        decision.steps.extend(resource::changes(scene, epoch));
        decision.steps.extend(resource::reports(scene, &health));
        standby::keep(scene, decision, epoch);
        tell_resize(scene, decision);
    }
    progress(scene, decision, &health);
    created(scene, decision);
    phase(scene, decision, &health, epoch);
}

/// Says whether both DRBDResources are there. Of a cluster that does not answer, nothing is said but
/// what was seen last.
pub(crate) fn created(scene: &Scene, decision: &mut Decision) {
    let type_ = condition::DRBD_CREATED;
    let sides = [(scene.source, scene.s), (scene.target, scene.t)];
    let name = format!("DRBDResource {}/{}", scene.vm.namespace, scene.resource);
    let gone = sides.iter().filter(|(_, side)| side.resource.is_absent());
    let gone: Vec<&str> = gone.map(|(cluster, _)| *cluster).collect();
    let silent = sides.iter().find(|(_, s)| s.resource.unknown().is_some());
    let (truth, reason, text) = match (gone.as_slice(), silent) {
        ([_, ..], _) => (
            Truth::False,
            condition::RESOURCE_MISSING,
            format!("{name} is gone from {}", gone_from(&gone)),
        ),
        ([], Some((cluster, _))) => (
            Truth::Unknown,
            condition::CLUSTER_UNREACHABLE,
            format!(
                "cluster {cluster} does not answer, so it is not known whether {name} is still there; it was when it was last seen. This is said anew as soon as the cluster answers"
            ),
        ),
        ([], None) => (
            Truth::True,
            "Created",
            format!(
                "{name} exists on clusters {} and {}",
                scene.source, scene.target
            ),
        ),
    };
    scene.set(decision, type_, truth, reason, text);
}

fn gone_from(clusters: &[&str]) -> String {
    match clusters {
        [one] => format!("cluster {one}"),
        many => format!("clusters {}", words::list(many).replace(", ", " and ")),
    }
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
    if let Some(new) = resource::new(scene, &decision.status.volumes, Which::Target, epoch) {
        let resource = Box::new(new);
        decision.steps.push(Step::CreateResource {
            cluster: scene.target.into(),
            resource,
        });
    }
}

/// Tells of disks that were grown: DRBD and so the VM keep the size that was agreed on, and nothing
/// that is written is lost. What was not looked at leaves the word as it is.
fn tell_resize(scene: &Scene, decision: &mut Decision) {
    let mut grown = Vec::new();
    for volume in &decision.status.volumes {
        let Some(Seen::Present(claim)) = scene.s.pvcs.get(&volume.pvc) else {
            return;
        };
        let capacity = claim.status.as_ref().and_then(|s| s.capacity.as_ref());
        let bytes = capacity
            .and_then(|c| c.get("storage"))
            .and_then(|q| quantity::bytes(&q.0));
        if let Some(bytes) = bytes.filter(|b| *b > volume.size_bytes) {
            grown.push(format!(
                "PersistentVolumeClaim {}/{} (cluster {}) has {}, of which {} is replicated, as seen",
                scene.vm.namespace,
                volume.pvc,
                scene.source,
                words::bytes(bytes),
                words::bytes(volume.size_bytes)
            ));
        }
    }
    let type_ = condition::RESIZE_IGNORED;
    if grown.is_empty() {
        return conditions::remove(&mut decision.status.conditions, type_);
    }
    let told = Wait {
        what: format!(
            "VirtualMachine {} does not see the new size of its disk",
            scene.vm
        ),
        by: words::list(&grown),
        since: None,
        next: "It goes on with the old size, and nothing that it writes is lost; to use the new size, delete this request and create it anew, which copies every disk again",
        command: format!(
            "kubectl --context {} -n {} get pvc",
            scene.source, scene.vm.namespace
        ),
    };
    scene.wait(decision, (type_, Truth::True, "NotSupported"), told);
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

    // 100 % is a promise that both sides make; 99 % with nothing left to copy needs a word.
    let nothing_differs = !health.volumes.is_empty()
        && health
            .volumes
            .iter()
            .all(|v| v.out_of_sync_bytes == Some(0));
    let (reason, mut message) = match (health.in_sync, was_in_sync, &health.trouble) {
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
    if !health.in_sync && nothing_differs {
        message.push_str("; no block was seen to differ, and syncPercent says 100 only when both sides confirm that");
    }
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

/// Says that the pair is in sync: Protected, unless the VM has a disk that nothing copies. Said for
/// the first time only after the first full copy was verified on both sides.
pub(crate) fn in_sync(scene: &Scene, decision: &mut Decision) {
    if let Some(added) = unreplicated(scene, decision) {
        return tell_unreplicated(scene, decision, &added, None);
    }
    decision.status.phase = Some(ProtectionPhase::Protected);
    let text = format!(
        "every acknowledged write of VirtualMachine {} is on cluster {} too",
        scene.vm, scene.target
    );
    scene.set(decision, condition::PROTECTED, Truth::True, "InSync", text);
}

/// The disks of the source VM that nothing copies; none while it is not known.
fn unreplicated(scene: &Scene, decision: &Decision) -> Option<Vec<String>> {
    let vm = scene.s.vm.present()?;
    let added = disks::unreplicated(vm, scene.s.vmi.present(), &decision.status.volumes);
    Some(added).filter(|a| !a.is_empty())
}

fn tell_unreplicated(
    scene: &Scene,
    decision: &mut Decision,
    added: &[String],
    trouble: Option<&Trouble>,
) {
    decision.status.phase = Some(ProtectionPhase::Degraded);
    if decision.steps.is_empty() {
        decision.requeue = Some(WAITING);
    }
    let also = trouble.map_or(String::new(), |t| format!(", and also {}", t.by));
    let told = Wait {
        what: format!("VirtualMachine {} is replicated only in part", scene.vm),
        by: format!(
            "{} on cluster {} came after protection began{also}; nothing copies it, as seen",
            words::list(added),
            scene.source
        ),
        since: None,
        next: "Its other disks are replicated on, and its group does not fail over, until it is detached, or until this request is deleted and created anew, which copies every disk",
        command: format!(
            "kubectl --context {} -n {} get vm {} -o yaml",
            scene.source, scene.vm.namespace, scene.vm.name
        ),
    };
    let truth = (
        condition::PROTECTED,
        Truth::False,
        condition::UNREPLICATED_VOLUME,
    );
    scene.wait(decision, truth, told);
}

fn phase(scene: &Scene, decision: &mut Decision, health: &Health, epoch: i64) {
    let promoted = roles::seen(&scene.s.resource, Role::Primary, epoch);
    let failing_over = decision.status.phase == Some(ProtectionPhase::FailingOver) && !promoted;
    let Some(trouble) = &health.trouble else {
        if decision.steps.is_empty() {
            decision.requeue = Some(SETTLED);
        }
        return in_sync(scene, decision);
    };
    // A side that is gone does not become Primary, however long it is waited for.
    if failing_over && !scene.s.resource.is_absent() {
        return tell_flip(scene, decision, epoch);
    }
    if let Some(added) = unreplicated(scene, decision) {
        return tell_unreplicated(scene, decision, &added, Some(trouble));
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
            trouble.next.as_deref().unwrap_or(
                "Replication goes on by itself, and copies what differs, when that is over",
            ),
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
        command: if scene.s.resource.is_absent() && scene.t.resource.is_absent() {
            scene.look_at_vm(scene.source)
        } else {
            scene.look_at_resource(trouble.look_at.as_deref().unwrap_or(scene.source))
        },
    };
    scene.wait(decision, (condition::PROTECTED, Truth::False, reason), told);
}

/// What a flip waits for: both sides in one sentence at first, then the side that keeps it waiting.
fn tell_flip(scene: &Scene, decision: &mut Decision, epoch: i64) {
    let (source, target) = (scene.source, scene.target);
    let all = &decision.status.conditions;
    let began = super::since(all, condition::PROTECTED, Truth::False, scene.now);
    let brisk = scene.now.duration_since(began) < BRISK;
    let gave_way = roles::may_promote(epoch, scene.t);
    let silent = [(target, scene.t), (source, scene.s)]
        .into_iter()
        .find_map(|(cluster, side)| Some((cluster, side.resource.unknown()?)));
    let (reason, by) = match silent {
        Some((cluster, why)) => (condition::CLUSTER_UNREACHABLE, words::silent(cluster, why)),
        None if brisk => (
            "FailingOver",
            format!("{target} gives way at role epoch {epoch}, then {source} becomes Primary"),
        ),
        None if gave_way => (
            "FailingOver",
            format!("cluster {source} is not Primary at role epoch {epoch} yet"),
        ),
        None if scene.t.resource.is_absent() => (
            "FailingOver",
            format!(
                "the DRBDResource of cluster {target} is gone, and the VM is not seen stopped there"
            ),
        ),
        None => (
            "FailingOver",
            format!("cluster {target} is not Secondary at role epoch {epoch} yet"),
        ),
    };
    let told = Wait {
        what: format!(
            "cluster {source} does not run VirtualMachine {} yet",
            scene.vm
        ),
        by,
        since: None,
        next: "Nobody is made Primary before the other side was seen Secondary; it goes on as soon as that is so",
        command: scene.look_at_resource(if gave_way && !brisk { source } else { target }),
    };
    scene.wait(decision, (condition::PROTECTED, Truth::False, reason), told);
}

fn whole_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

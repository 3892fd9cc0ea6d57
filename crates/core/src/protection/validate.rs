//! Whether a request can be carried out. Until admission webhooks exist everything that is wrong
//! ends here, in the condition `Validated`. A request that failed is looked at again when the world
//! changes.

use std::collections::{BTreeMap, BTreeSet};

use farshore_api::conditions::request as condition;
use farshore_api::drbd::Protocol;
use farshore_api::names;
use farshore_api::protection_request::{ProtectedVolume, ProtectionPhase};
use serde_json::Value;

use super::scene::{Scene, not_protected};
use super::{Decision, MOVING, SETTLED, disks, ports, resource, roles};
use crate::conditions::Truth;
use crate::vm::{Source, Volume};
use crate::words::{self, Wait};
use crate::{Seen, quantity};

/// Most disks of a VM [S1].
const MOST_DISKS: usize = 15;

enum Verdict {
    /// Not now.
    Wait(&'static str, Box<Wait<'static>>),
    /// Not like this.
    Refuse(&'static str, String),
}

pub(crate) fn decide(scene: &Scene, decision: &mut Decision) {
    let failed_before = decision.status.phase == Some(ProtectionPhase::Failed);
    match check(scene) {
        Ok(_) if failed_before => {
            decision.status.phase = Some(ProtectionPhase::Validating);
            let text = format!("VirtualMachine {} is checked once more", scene.vm);
            scene.set(
                decision,
                condition::VALIDATED,
                Truth::Unknown,
                "Validating",
                text,
            );
        }
        Ok(volumes) => {
            decision.status.phase = Some(ProtectionPhase::CreatingDRBD);
            decision.status.role_epoch = Some(first_epoch(scene));
            decision.status.target_cluster = Some(scene.target.into());
            decision.status.drbd_resource_name = Some(scene.resource.clone());
            decision.status.volumes = volumes;
            tell_valid(scene, decision);
        }
        Err(Verdict::Wait(reason, told)) => {
            // What only waits has not failed.
            decision.status.phase = Some(ProtectionPhase::Validating);
            let truth = (condition::VALIDATED, Truth::Unknown, reason);
            scene.wait(decision, truth, *told);
            decision.requeue = Some(MOVING);
        }
        Err(Verdict::Refuse(reason, message)) => {
            decision.status.phase = Some(ProtectionPhase::Failed);
            scene.set(
                decision,
                condition::VALIDATED,
                Truth::False,
                reason,
                message,
            );
            decision.requeue = Some(SETTLED);
        }
    }
    not_protected(decision, scene.seen.request.metadata.generation, scene.now);
}

/// One above every epoch that a left-over DRBDResource carries, so that the agents listen.
fn first_epoch(scene: &Scene) -> i64 {
    let epochs = [scene.s, scene.t].into_iter().filter_map(|side| {
        let resource = side.resource.present()?;
        let seen = resource
            .status
            .as_ref()
            .and_then(|s| s.role_epoch)
            .unwrap_or(0);
        Some(resource.spec.role_epoch.max(seen))
    });
    epochs.max().map_or(roles::FIRST_EPOCH, |epoch| epoch + 1)
}

fn refuse<T>(reason: &'static str, message: impl Into<String>) -> Result<T, Verdict> {
    Err(Verdict::Refuse(reason, message.into()))
}

fn wait<T>(
    reason: &'static str,
    what: String,
    by: String,
    next: &'static str,
    command: String,
) -> Result<T, Verdict> {
    Err(Verdict::Wait(
        reason,
        Box::new(Wait {
            what,
            by,
            since: None,
            next,
            command,
        }),
    ))
}

fn check(scene: &Scene) -> Result<Vec<ProtectedVolume>, Verdict> {
    terms(scene)?;
    if let Some((cluster, why)) = scene.unknown() {
        let what = format!("protection of VirtualMachine {} is not checked", scene.vm);
        let told = scene.unreachable(what, cluster, why);
        return Err(Verdict::Wait(
            condition::CLUSTER_UNREACHABLE,
            Box::new(told),
        ));
    }
    let vm = machine(scene)?;
    let replicated = disks(scene, vm)?;
    at_rest(scene, vm)?;
    let sizes = sizes(scene, &replicated)?;
    standby_side(scene, &replicated)?;
    let ports = choose_ports(scene, replicated.len())?;
    let volumes = replicated.into_iter().zip(sizes).zip(ports);
    Ok(volumes
        .map(|(((name, pvc), size_bytes), port)| ProtectedVolume {
            name,
            pvc,
            size_bytes,
            port,
            sync_percent: None,
            out_of_sync_bytes: None,
            connection_state: None,
            disk_state: None,
        })
        .collect())
}

/// What the request itself asks for.
fn terms(scene: &Scene) -> Result<(), Verdict> {
    let spec = &scene.seen.request.spec;
    if spec.replication_protocol == Protocol::A && !resource::protocol_a(scene) {
        // The exact text of the source [S1].
        return refuse(
            condition::PROTOCOL_NOT_SUPPORTED,
            "ReplicationProtocolA is not supported yet",
        );
    }
    if spec.rpo > 0 && spec.replication_protocol == Protocol::C {
        return refuse(
            condition::PROTOCOL_NOT_SUPPORTED,
            "spec.rpo must be 0 when spec.replicationProtocol is C",
        );
    }
    if scene.policy.is_none() {
        let namespace = scene
            .seen
            .request
            .metadata
            .namespace
            .as_deref()
            .unwrap_or_default();
        return wait(
            "NoDefaultPolicy",
            format!("protection of VirtualMachine {} does not start", scene.vm),
            format!("namespace {namespace} has no default DRBDReplicationPolicy"),
            "It goes on as soon as there is one; the zone controller creates it",
            format!("kubectl -n {namespace} get drbdreplicationpolicies"),
        );
    }
    Ok(())
}

fn machine<'a>(scene: &Scene<'a>) -> Result<&'a Value, Verdict> {
    let Seen::Present(vm) = &scene.s.vm else {
        return refuse(
            condition::VM_NOT_FOUND,
            format!(
                "VirtualMachine {} does not exist on cluster {}; create it there, or correct spec.vmName, spec.vmNamespace or spec.sourceCluster in a new request",
                scene.vm, scene.source
            ),
        );
    };
    if let Some(other) = protected_by_another(scene, vm) {
        return refuse(
            condition::VM_ALREADY_PROTECTED,
            format!(
                "VirtualMachine {} is already protected by ProtectionRequest {other}",
                scene.vm
            ),
        );
    }
    Ok(vm)
}

/// The request that holds this VM: one that has ports for it, or is older.
fn protected_by_another(scene: &Scene, vm: &Value) -> Option<String> {
    let age = |r: &farshore_api::ProtectionRequest| {
        let created = r.metadata.creation_timestamp.as_ref().map(|t| t.0);
        (created, r.metadata.name.clone())
    };
    let other = scene.seen.others.iter().find(|other| {
        let holds = other.status.as_ref().is_some_and(|s| !s.volumes.is_empty());
        // A request that was refused holds nothing and must not keep out the one that corrects it.
        let refused = other
            .status
            .as_ref()
            .is_some_and(|s| s.phase == Some(ProtectionPhase::Failed));
        let earlier = !refused && age(other) < age(&scene.seen.request);
        other.vm() == scene.vm && (holds || earlier)
    });
    if let Some(other) = other {
        return other.metadata.name.clone();
    }
    disks::owner(vm)
        .filter(|o| *o != scene.owner())
        .map(Into::into)
}

/// The disks to replicate: volume name and PVC.
fn disks(scene: &Scene, vm: &Value) -> Result<Vec<(String, String)>, Verdict> {
    let mut replicated = Vec::new();
    for Volume { name, source } in disks::unprotected_volumes(vm) {
        match source {
            Source::Claim(pvc) => replicated.push((name, pvc)),
            Source::Hotplugged => {
                return refuse(
                    condition::UNSUPPORTED_VOLUME_TYPE,
                    format!(
                        "volume {name} of VirtualMachine {} is hotplugged, which cannot be replicated; unplug it or make it a permanent disk",
                        scene.vm
                    ),
                );
            }
            // Stays as it is on each side.
            Source::Other(_) => {}
        }
    }
    let mut used = BTreeMap::new();
    for (name, pvc) in &replicated {
        if let Some(first) = used.insert(pvc.as_str(), name.as_str()) {
            return refuse(
                condition::UNSUPPORTED_VOLUME_TYPE,
                format!(
                    "volumes {first} and {name} of VirtualMachine {} use the same PersistentVolumeClaim {pvc}; give each its own",
                    scene.vm
                ),
            );
        }
    }
    if let Some((name, pvc)) = replicated.iter().find(|(_, p)| !names::has_frontend(p)) {
        return refuse(
            condition::NAME_TOO_LONG,
            format!(
                "PersistentVolumeClaim {}/{pvc} of volume {name} has a name of {} characters; with {} behind it, as the replicated disk is named, it has more than an object may have: move the disk to a claim with a shorter name",
                scene.vm.namespace,
                pvc.len(),
                names::frontend_pvc("")
            ),
        );
    }
    match replicated.len() {
        0 => refuse(
            condition::NO_REPLICATED_DISKS,
            format!(
                "VirtualMachine {} has no disk to replicate: only persistentVolumeClaim and dataVolume volumes are; give it one",
                scene.vm
            ),
        ),
        n if n > MOST_DISKS => refuse(
            condition::TOO_MANY_DISKS,
            format!(
                "VirtualMachine {} has {n} disks; at most {MOST_DISKS} are supported. Nothing was changed. Detach {}, or put their data on fewer disks; it is checked again within 60 s. Look with: {}",
                scene.vm,
                n - MOST_DISKS,
                scene.look_at_vm(scene.source)
            ),
        ),
        _ => Ok(replicated),
    }
}

/// A VM in the middle of something is not touched.
fn at_rest(scene: &Scene, vm: &Value) -> Result<(), Verdict> {
    let busy = |by: String, next: &'static str| {
        wait(
            "VMNotReady",
            format!("protection of VirtualMachine {} does not start", scene.vm),
            by,
            next,
            scene.look_at_vm(scene.source),
        )
    };
    let vmi = scene.s.vmi.present();
    if vmi.is_some_and(|vmi| {
        let conditions = vmi.pointer("/status/conditions").and_then(Value::as_array);
        conditions
            .into_iter()
            .flatten()
            .any(|c| c["type"] == "Paused" && c["status"] == "True")
    }) {
        return busy(
            format!("the VM is paused on cluster {}", scene.source),
            "It goes on as soon as the VM is unpaused",
        );
    }
    let migrating = vmi
        .and_then(|vmi| vmi.pointer("/status/migrationState"))
        .is_some_and(|m| {
            m.get("endTimestamp").is_none_or(Value::is_null)
                && m["completed"] != true
                && m["failed"] != true
        });
    let migrations = scene.s.migrations.present().map_or(&[][..], Vec::as_slice);
    if migrating || !migrations.is_empty() {
        return busy(
            format!(
                "the VM is migrating on cluster {} ({})",
                scene.source,
                words::list(migrations)
            ),
            "It goes on as soon as the migration has ended",
        );
    }
    for (field, what) in [
        ("snapshotInProgress", "a snapshot"),
        ("restoreInProgress", "a restore"),
    ] {
        let name = vm
            .get("status")
            .and_then(|s| s.get(field))
            .and_then(Value::as_str);
        if let Some(name) = name.filter(|n| !n.is_empty()) {
            return busy(
                format!("{what} of the VM is in progress ({name})"),
                "It goes on as soon as that has ended",
            );
        }
    }
    Ok(())
}

/// Sizes of the PVCs on the source; their volume mode and class are checked too.
fn sizes(scene: &Scene, replicated: &[(String, String)]) -> Result<Vec<i64>, Verdict> {
    let mut sizes = Vec::new();
    for (name, pvc) in replicated {
        let full = format!(
            "PersistentVolumeClaim {}/{pvc} (cluster {})",
            scene.vm.namespace, scene.source
        );
        let Some(Seen::Present(claim)) = scene.s.pvcs.get(pvc) else {
            return wait(
                "VolumeNotReady",
                format!("protection of VirtualMachine {} does not start", scene.vm),
                format!("{full} of volume {name} does not exist"),
                "It goes on as soon as the claim exists",
                format!(
                    "kubectl --context {} -n {} get pvc {pvc}",
                    scene.source, scene.vm.namespace
                ),
            );
        };
        let spec = claim.spec.clone().unwrap_or_default();
        if spec.volume_mode.as_deref() != Some("Block") {
            return refuse(
                condition::UNSUPPORTED_VOLUME_TYPE,
                format!(
                    "{full} of volume {name} has volumeMode {}; only Block is replicated: move the disk to a Block claim",
                    spec.volume_mode.as_deref().unwrap_or("Filesystem")
                ),
            );
        }
        let class = spec.storage_class_name.clone().unwrap_or_default();
        let Some(target_class) = Some(&class)
            .filter(|c| !c.is_empty())
            .and_then(|c| resource::mapped_class(scene, c))
        else {
            let policy = scene
                .policy
                .and_then(|p| p.metadata.name.as_deref())
                .unwrap_or_default();
            return refuse(
                condition::STORAGE_CLASS_NOT_MAPPED,
                format!(
                    "StorageClass \"{class}\" of {full} is not mapped; add it to spec.storageClassMappings of DRBDReplicationPolicy {policy}"
                ),
            );
        };
        let known = scene
            .t
            .storage_classes
            .present()
            .map_or(&[][..], Vec::as_slice);
        if !known.contains(&target_class) {
            return refuse(
                condition::STORAGE_CLASS_NOT_MAPPED,
                format!(
                    "StorageClass \"{class}\" of {full} maps to \"{target_class}\", which does not exist on cluster {}; create it or map the class to another",
                    scene.target
                ),
            );
        }
        let capacity = claim
            .status
            .as_ref()
            .and_then(|s| s.capacity.as_ref()?.get("storage").cloned());
        let asked = spec
            .resources
            .and_then(|r| r.requests?.get("storage").cloned());
        match capacity
            .or(asked)
            .and_then(|q| quantity::bytes(&q.0))
            .filter(|b| *b > 0)
        {
            Some(bytes) => sizes.push(bytes),
            None => {
                return wait(
                    "VolumeNotReady",
                    format!("protection of VirtualMachine {} does not start", scene.vm),
                    format!("{full} of volume {name} has no size yet"),
                    "It goes on as soon as the claim is bound",
                    format!(
                        "kubectl --context {} -n {} get pvc {pvc}",
                        scene.source, scene.vm.namespace
                    ),
                );
            }
        }
    }
    Ok(sizes)
}

/// Says that the VM can be protected, from where its data is now.
pub(crate) fn tell_valid(scene: &Scene, decision: &mut Decision) {
    let text = format!(
        "VirtualMachine {} on cluster {} can be protected: {}",
        scene.vm,
        scene.source,
        words::count(decision.status.volumes.len(), "replicated disk")
    );
    scene.set(decision, condition::VALIDATED, Truth::True, "Valid", text);
}

/// Nothing of the user stands where the standby will be: it would be overwritten.
fn standby_side(scene: &Scene, replicated: &[(String, String)]) -> Result<(), Verdict> {
    let foreign = replicated.iter().filter(|(_, pvc)| {
        let claim = scene.t.pvcs.get(pvc).and_then(Seen::present);
        claim.is_some_and(|claim| !resource::made(scene, claim))
    });
    let foreign: Vec<String> = foreign
        .map(|(_, pvc)| format!("{}/{pvc}", scene.vm.namespace))
        .collect();
    let claims = words::list(&foreign);
    let (target, namespace, name) = (scene.target, &scene.vm.namespace, &scene.vm.name);
    if let Seen::Present(vm) = &scene.t.vm
        && disks::owner(vm) != Some(&scene.owner())
    {
        let disks = if foreign.is_empty() {
            String::new()
        } else {
            format!(
                " Its PersistentVolumeClaims {claims} would be overwritten, so they must go too; they may hold the newest data."
            )
        };
        return refuse(
            "StandbyNameTaken",
            format!(
                "VirtualMachine {} already exists on cluster {target} and is not a standby of this request, so that protection stands still and nothing there is touched. It is checked again within 60 s, and goes on when that VirtualMachine is gone.{disks} If nobody needs it, delete it; it may be what an earlier protection left behind, and may run. Look with: kubectl --context {target} -n {namespace} get vm,vmi,pvc",
                scene.vm
            ),
        );
    }
    if foreign.is_empty() {
        return Ok(());
    }
    refuse(
        "StandbyNameTaken",
        format!(
            "PersistentVolumeClaim {claims} already exists on cluster {target} and would be overwritten by the disks of VirtualMachine {namespace}/{name} on cluster {}, so that protection stands still and nothing there is touched. It is checked again within 60 s, and goes on when that claim is gone. It may hold the newest data, when the VM has run there. If nobody needs its data, delete it. Look with: kubectl --context {target} -n {namespace} get pvc",
            scene.source
        ),
    )
}

/// A port for each disk: those of a left-over pair of the same VM, else the lowest free ones.
fn choose_ports(scene: &Scene, wanted: usize) -> Result<Vec<i32>, Verdict> {
    let mut taken = BTreeSet::new();
    for other in &scene.seen.others {
        taken.extend(other.status.iter().flat_map(|s| &s.volumes).map(|v| v.port));
    }
    let own = format!("{}/{}", scene.vm.namespace, scene.resource);
    for side in [scene.s, scene.t] {
        let held = side.ports.present().into_iter().flatten();
        taken.extend(
            held.filter(|(holder, _)| *holder != own)
                .map(|(_, port)| *port),
        );
        let left_over = side.resource.present().map_or(&[][..], |r| &r.spec.volumes);
        if left_over.len() == wanted {
            return Ok(left_over.iter().map(|v| v.port).collect());
        }
    }
    let range = &scene.zone.spec.ports;
    ports::allocate(range, &taken, wanted).or_else(|short| {
        refuse(
            condition::PORTS_EXHAUSTED,
            format!(
                "{} of ports {} to {} are free in ProtectionZone {} and VirtualMachine {} needs {}; unprotect another VM or widen spec.ports",
                short.free, range.start, range.end, scene.zone_name, scene.vm, short.wanted
            ),
        )
    })
}

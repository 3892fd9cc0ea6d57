//! KubeVirt: a VirtualMachine that should run gets a VirtualMachineInstance, which finds a node,
//! opens its disks and boots a guest. There are no launcher pods and no live migration.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Toleration};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::Controller;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::placement::{Choice, Wish, bound_volume, choose};
use super::{MANAGER, Sim, SimError, absent_is_fine, drive_any, present_is_fine, watch};
use crate::guest::Disk;

const RETRY: Duration = Duration::from_millis(500);
/// KubeVirt's own finalizer on instances: its controller ends the guest before the object goes.
const FINALIZER: &str = "foregroundDeleteVirtualMachine";

/// The VirtualMachine kind.
pub fn vm_resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachine"),
        "virtualmachines",
    )
}

/// The VirtualMachineInstance kind.
pub fn vmi_resource() -> ApiResource {
    let gvk = GroupVersionKind::gvk("kubevirt.io", "v1", "VirtualMachineInstance");
    ApiResource::from_gvk_with_plural(&gvk, "virtualmachineinstances")
}

pub(super) fn start(sim: &Arc<Sim>) {
    let machines: Api<DynamicObject> = Api::all_with(sim.client.clone(), &vm_resource());
    let instances: Api<DynamicObject> = Api::all_with(sim.client.clone(), &vmi_resource());
    let controller = Controller::new_with(machines, watch(), vm_resource()).owns_with(
        instances.clone(),
        vmi_resource(),
        watch(),
    );
    drive_any(sim, "virt-controller", controller, machine);
    drive_any(
        sim,
        "virt-handler",
        Controller::new_with(instances, watch(), vmi_resource()),
        instance,
    );
}

async fn machine(sim: Arc<Sim>, vm: Arc<DynamicObject>) -> Result<Option<Duration>, SimError> {
    if vm.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let namespace = vm.namespace().unwrap_or_default();
    let name = vm.name_any();
    create_data_volumes(&sim, &vm, &namespace).await?;
    let instances: Api<DynamicObject> =
        Api::namespaced_with(sim.client.clone(), &namespace, &vmi_resource());
    let spec = &vm.data["spec"];
    let wanted = spec["running"].as_bool().unwrap_or(false)
        || matches!(
            spec["runStrategy"].as_str(),
            Some("Always" | "RerunOnFailure" | "Once")
        );
    let live = absent_is_fine(instances.get(&name).await)?;
    let phase = live
        .as_ref()
        .map_or("", |i| {
            i.data["status"]["phase"].as_str().unwrap_or("Pending")
        })
        .to_string();
    let ended = matches!(phase.as_str(), "Failed" | "Succeeded");
    match &live {
        None if wanted => {
            let mut template = spec["template"].clone();
            let mut metadata = template["metadata"].take();
            if metadata.is_null() {
                metadata = json!({});
            }
            metadata["name"] = json!(name);
            metadata["namespace"] = json!(namespace);
            metadata["finalizers"] = json!([FINALIZER]);
            metadata["ownerReferences"] = json!([vm.controller_owner_ref(&vm_resource())]);
            let instance = json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": metadata, "spec": template["spec"],
            });
            let instance =
                serde_json::from_value(instance).map_err(|e| SimError::Other(e.to_string()))?;
            present_is_fine(instances.create(&PostParams::default(), &instance).await)?;
        }
        Some(i) if i.metadata.deletion_timestamp.is_none() && (!wanted || ended) => {
            absent_is_fine(instances.delete(&name, &DeleteParams::default()).await)?;
        }
        _ => {}
    }
    let stopping = live
        .as_ref()
        .is_some_and(|i| i.metadata.deletion_timestamp.is_some())
        || (live.is_some() && !wanted);
    let printable = match (live.is_some(), phase.as_str()) {
        (false, _) if !wanted => "Stopped",
        (true, _) if stopping => "Stopping",
        (true, "Running") => "Running",
        _ => "Starting",
    };
    let ready = printable == "Running";
    let status = json!({
        "created": live.is_some(), "ready": ready, "printableStatus": printable,
        "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
    });
    if !says(&vm.data["status"], &status) {
        let machines: Api<DynamicObject> =
            Api::namespaced_with(sim.client.clone(), &namespace, &vm_resource());
        let patch = Patch::Merge(json!({ "status": status }));
        absent_is_fine(
            machines
                .patch_status(&name, &PatchParams::apply(MANAGER), &patch)
                .await,
        )?;
    }
    Ok(None)
}

/// Plays the importer: a data volume template becomes a claim.
async fn create_data_volumes(
    sim: &Sim,
    vm: &DynamicObject,
    namespace: &str,
) -> Result<(), SimError> {
    let Some(templates) = vm.data["spec"]["dataVolumeTemplates"].as_array() else {
        return Ok(());
    };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(sim.client.clone(), namespace);
    for template in templates {
        let spec = if template["spec"]["storage"].is_null() {
            &template["spec"]["pvc"]
        } else {
            &template["spec"]["storage"]
        };
        let Some(name) = template["metadata"]["name"].as_str() else {
            continue;
        };
        if absent_is_fine(claims.get(name).await)?.is_some() {
            continue;
        }
        let mut spec = spec.clone();
        if spec["accessModes"].is_null() {
            spec["accessModes"] = json!(["ReadWriteOnce"]);
        }
        if spec["volumeMode"].is_null() {
            spec["volumeMode"] = json!("Block");
        }
        let claim = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name }, "spec": spec });
        let claim = serde_json::from_value(claim).map_err(|e| SimError::Other(e.to_string()))?;
        present_is_fine(claims.create(&PostParams::default(), &claim).await)?;
    }
    Ok(())
}

async fn instance(sim: Arc<Sim>, vmi: Arc<DynamicObject>) -> Result<Option<Duration>, SimError> {
    let namespace = vmi.namespace().unwrap_or_default();
    let name = vmi.name_any();
    let vm = format!("{namespace}/{name}");
    let uid = vmi.uid().unwrap_or_default();
    let instances: Api<DynamicObject> =
        Api::namespaced_with(sim.client.clone(), &namespace, &vmi_resource());
    let status = &vmi.data["status"];
    let node = status["nodeName"].as_str();
    if vmi.metadata.deletion_timestamp.is_some() {
        if sim.guests.runs(&sim.cluster, &vm, &uid) {
            tokio::time::sleep(sim.timings.vm_stop).await;
            sim.guests.stop(&sim.cluster, &vm).await;
        }
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        absent_is_fine(
            instances
                .patch(&name, &PatchParams::apply(MANAGER), &patch)
                .await,
        )?;
        return Ok(None);
    }
    match (status["phase"].as_str().unwrap_or("Pending"), node) {
        ("Running", Some(node)) => {
            if !sim.is_up(node) {
                return Ok(Some(RETRY));
            }
            if sim.guests.runs(&sim.cluster, &vm, &uid) {
                return Ok(Some(Duration::from_secs(5)));
            }
            // The node was without power in between: this guest is gone for good.
            tell(
                &instances,
                &vmi,
                json!({ "phase": "Failed", "reason": "NodeLost" }),
            )
            .await?;
            Ok(None)
        }
        ("Failed" | "Succeeded", _) => Ok(None),
        (_, Some(node)) => boot(&sim, &vmi, &instances, &vm, node).await,
        (_, None) => {
            let spec = &vmi.data["spec"];
            let tolerations: Vec<Toleration> =
                serde_json::from_value(spec["tolerations"].clone()).unwrap_or_default();
            let claims: Vec<String> = disks(spec).map(|(_, claim)| claim).collect();
            let selector = spec["nodeSelector"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_string()))
                .collect();
            match choose(
                &sim,
                &Wish {
                    namespace: &namespace,
                    selector,
                    tolerations: &tolerations,
                    claims: &claims,
                },
            )
            .await?
            {
                Choice::Node(node) => {
                    tell(
                        &instances,
                        &vmi,
                        json!({ "phase": "Scheduled", "nodeName": node }),
                    )
                    .await?;
                    Ok(None)
                }
                Choice::Wait(why) => {
                    tell(&instances, &vmi, waiting("Scheduling", &why)).await?;
                    Ok(Some(RETRY))
                }
            }
        }
    }
}

/// Opens the disks and powers the guest on.
async fn boot(
    sim: &Arc<Sim>,
    vmi: &DynamicObject,
    instances: &Api<DynamicObject>,
    vm: &str,
    node: &str,
) -> Result<Option<Duration>, SimError> {
    if !sim.is_up(node) {
        return Ok(Some(RETRY));
    }
    let mut opened = Vec::new();
    for (disk, claim) in disks(&vmi.data["spec"]) {
        match open(sim, vm, &claim, node).await? {
            Ok(device) => opened.push((disk, device)),
            Err(why) => {
                tell(instances, vmi, waiting("Scheduled", &why)).await?;
                return Ok(Some(RETRY));
            }
        }
    }
    tokio::time::sleep(sim.timings.vm_boot).await;
    let Some(live) = absent_is_fine(instances.get(&vmi.name_any()).await)? else {
        return Ok(None);
    };
    if live.metadata.deletion_timestamp.is_some() || live.uid() != vmi.uid() || !sim.is_up(node) {
        return Ok(Some(RETRY));
    }
    let uid = vmi.uid().unwrap_or_default();
    sim.guests.start(
        &sim.cluster,
        node,
        vm,
        &uid,
        opened,
        sim.timings.guest_write,
    );
    let ready = json!({ "phase": "Running", "nodeName": node, "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": sim.clock.now().to_string() },
    ] });
    tell(instances, vmi, ready).await?;
    Ok(None)
}

/// Opens the device behind a claim, or says why it cannot be opened now.
async fn open(
    sim: &Sim,
    vm: &str,
    claim: &str,
    node: &str,
) -> Result<Result<Disk, String>, SimError> {
    let namespace = vm.split('/').next().unwrap_or_default();
    let Some(volume) = bound_volume(sim, namespace, claim).await? else {
        return Ok(Err(format!(
            "PersistentVolumeClaim {namespace}/{claim} is not bound"
        )));
    };
    let local = volume
        .spec
        .as_ref()
        .and_then(|s| s.local.as_ref())
        .map(|l| l.path.clone());
    let Some(path) = local else {
        let bytes = sim.storage.volume(&sim.cluster, &volume.name_any());
        return Ok(bytes
            .map(Disk::Direct)
            .ok_or_else(|| format!("PersistentVolume {} has no data", volume.name_any())));
    };
    let Some(minor) = path.strip_prefix("/dev/drbd").and_then(|n| n.parse().ok()) else {
        return Ok(Err(format!(
            "PersistentVolume {} names {path}, which is no DRBD device",
            volume.name_any()
        )));
    };
    Ok(sim
        .world
        .open(&sim.cluster, node, minor, &format!("qemu of {vm}"))
        .map(Disk::Replicated)
        .map_err(|e| e.to_string()))
}

/// Disk name and claim of each volume that is a claim or a data volume.
fn disks(spec: &Value) -> impl Iterator<Item = (String, String)> + '_ {
    spec["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|volume| {
            let claim = volume["persistentVolumeClaim"]["claimName"]
                .as_str()
                .or(volume["dataVolume"]["name"].as_str())?;
            Some((volume["name"].as_str()?.to_string(), claim.to_string()))
        })
}

fn waiting(phase: &str, why: &str) -> Value {
    json!({ "phase": phase, "conditions": [{ "type": "Ready", "status": "False", "reason": "GuestNotRunning", "message": why }] })
}

async fn tell(
    instances: &Api<DynamicObject>,
    vmi: &DynamicObject,
    status: Value,
) -> Result<(), SimError> {
    if says(&vmi.data["status"], &status) {
        return Ok(());
    }
    let patch = Patch::Merge(json!({ "status": status }));
    absent_is_fine(
        instances
            .patch_status(&vmi.name_any(), &PatchParams::apply(MANAGER), &patch)
            .await,
    )?;
    Ok(())
}

/// Whether a status says already what a new one would, times aside.
fn says(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => new.iter().all(|(key, value)| {
            key == "lastTransitionTime" || old.get(key).is_some_and(|o| says(o, value))
        }),
        (Value::Array(old), Value::Array(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(o, n)| says(o, n))
        }
        _ => old == new,
    }
}

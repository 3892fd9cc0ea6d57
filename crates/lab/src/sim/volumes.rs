//! The volume provisioner and binder: class `lab-block`, plus claims that name a volume made by
//! hand.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::Controller;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{MANAGER, Sim, SimError, absent_is_fine, drive, present_is_fine, watch};

/// The lab's storage class.
pub const CLASS: &str = "lab-block";
/// Its provisioner.
const PROVISIONER: &str = "lab.farshore.io";

pub(super) async fn install(sim: &Sim) -> Result<(), SimError> {
    let classes: Api<StorageClass> = Api::all(sim.client.clone());
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": { "name": CLASS, "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
        "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": true,
    });
    let class = serde_json::from_value(class).map_err(|e| SimError::Other(e.to_string()))?;
    present_is_fine(classes.create(&PostParams::default(), &class).await)
}

pub(super) fn start(sim: &Arc<Sim>) {
    let claims: Api<PersistentVolumeClaim> = Api::all(sim.client.clone());
    let volumes: Api<PersistentVolume> = Api::all(sim.client.clone());
    let controller = Controller::new(claims, watch()).watches(volumes.clone(), watch(), |volume| {
        let claim = volume.spec.and_then(|s| s.claim_ref)?;
        Some(ObjectRef::new(&claim.name?).within(&claim.namespace?))
    });
    drive(sim, "pvc-binder", controller, bind);
    drive(
        sim,
        "pv-reclaimer",
        Controller::new(volumes, watch()),
        reclaim,
    );
}

async fn bind(
    sim: Arc<Sim>,
    claim: Arc<PersistentVolumeClaim>,
) -> Result<Option<Duration>, SimError> {
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    if bound || claim.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let namespace = claim.namespace().unwrap_or_default();
    let spec = claim.spec.clone().unwrap_or_default();
    let volumes: Api<PersistentVolume> = Api::all(sim.client.clone());
    let class = spec
        .storage_class_name
        .clone()
        .unwrap_or_else(|| CLASS.into());
    let name = match (&spec.volume_name, class.as_str()) {
        (Some(name), _) => match absent_is_fine(volumes.get(name).await)? {
            Some(_) => name.clone(),
            None => return Ok(Some(Duration::from_secs(1))),
        },
        (None, CLASS) => provision(&sim, &claim, &namespace).await?,
        (None, _) => match volume_for(&sim, &namespace, &claim.name_any()).await? {
            Some(name) => name,
            None => return Ok(None), // a volume that appears for it triggers this again
        },
    };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(sim.client.clone(), &namespace);
    let params = PatchParams::apply(MANAGER);
    let claim_ref = json!({ "spec": { "claimRef": {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace,
        "name": claim.name_any(), "uid": claim.uid(),
    } } });
    volumes
        .patch(&name, &params, &Patch::Merge(claim_ref))
        .await?;
    volumes
        .patch_status(
            &name,
            &params,
            &Patch::Merge(json!({ "status": { "phase": "Bound" } })),
        )
        .await?;
    let mut patch = json!({ "metadata": { "annotations": { "pv.kubernetes.io/bind-completed": "yes" } }, "spec": { "volumeName": name } });
    if spec.storage_class_name.is_none() {
        patch["spec"]["storageClassName"] = json!(class);
    }
    claims
        .patch(&claim.name_any(), &params, &Patch::Merge(patch))
        .await?;
    let status = json!({ "status": {
        "phase": "Bound", "accessModes": spec.access_modes,
        "capacity": spec.resources.and_then(|r| r.requests),
    } });
    claims
        .patch_status(&claim.name_any(), &params, &Patch::Merge(status))
        .await?;
    Ok(None)
}

/// Makes a volume of the lab's class for a claim.
async fn provision(
    sim: &Sim,
    claim: &PersistentVolumeClaim,
    namespace: &str,
) -> Result<String, SimError> {
    let spec = claim.spec.clone().unwrap_or_default();
    let request = spec.resources.and_then(|r| r.requests).unwrap_or_default();
    let size = request
        .get("storage")
        .map(|q| q.0.clone())
        .unwrap_or_else(|| "1Gi".into());
    let bytes = farshore_core::quantity::bytes(&size).ok_or_else(|| {
        SimError::Other(format!(
            "PersistentVolumeClaim {namespace}/{} asks for {size:?}: not a quantity",
            claim.name_any()
        ))
    })?;
    let name = format!("pvc-{}", claim.uid().unwrap_or_default());
    sim.storage.create(&sim.cluster, &name, bytes as u64);
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": name, "annotations": { "pv.kubernetes.io/provisioned-by": PROVISIONER } },
        "spec": {
            "capacity": { "storage": size }, "accessModes": spec.access_modes,
            "volumeMode": spec.volume_mode.unwrap_or_else(|| "Filesystem".into()),
            "storageClassName": CLASS, "persistentVolumeReclaimPolicy": "Delete",
            "csi": { "driver": PROVISIONER, "volumeHandle": name },
            "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace,
                "name": claim.name_any(), "uid": claim.uid() },
        },
    });
    let volume = serde_json::from_value(volume).map_err(|e| SimError::Other(e.to_string()))?;
    let volumes: Api<PersistentVolume> = Api::all(sim.client.clone());
    present_is_fine(volumes.create(&PostParams::default(), &volume).await)?;
    Ok(name)
}

/// A volume that somebody made for this claim.
async fn volume_for(sim: &Sim, namespace: &str, claim: &str) -> Result<Option<String>, SimError> {
    let volumes: Api<PersistentVolume> = Api::all(sim.client.clone());
    let all = volumes.list(&Default::default()).await?;
    Ok(all
        .items
        .into_iter()
        .find(|v| {
            v.spec
                .as_ref()
                .and_then(|s| s.claim_ref.as_ref())
                .is_some_and(|c| {
                    c.name.as_deref() == Some(claim) && c.namespace.as_deref() == Some(namespace)
                })
        })
        .map(|v| v.name_any()))
}

/// Deletes a volume of the lab's class, and its bytes, once its claim is gone.
async fn reclaim(
    sim: Arc<Sim>,
    volume: Arc<PersistentVolume>,
) -> Result<Option<Duration>, SimError> {
    let spec = volume.spec.clone().unwrap_or_default();
    let (Some(csi), Some(claim)) = (spec.csi, spec.claim_ref) else {
        return Ok(None);
    };
    if csi.driver != PROVISIONER {
        return Ok(None);
    }
    let namespace = claim.namespace.unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(sim.client.clone(), &namespace);
    let live = absent_is_fine(claims.get(&claim.name.unwrap_or_default()).await)?;
    if live.is_some_and(|live| live.uid() == claim.uid) {
        return Ok(Some(Duration::from_secs(30)));
    }
    let volumes: Api<PersistentVolume> = Api::all(sim.client.clone());
    absent_is_fine(
        volumes
            .delete(&volume.name_any(), &DeleteParams::default())
            .await,
    )?;
    sim.storage.remove(&sim.cluster, &volume.name_any());
    Ok(None)
}

//! The PVC and PV through which the VM uses a DRBD device.

use std::collections::BTreeMap;

use farshore_api::drbd_resource::DRBDVolumeSpec;
use farshore_api::meta::managers;
use farshore_api::{DRBDResource, names};
use farshore_core::placement::inherited_labels;
use farshore_core::quantity;
use farshore_runtime::apply;
use farshore_runtime::controller::{During, ReconcileError};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

/// Storage class of frontend volumes; a name that keeps provisioners away, no object.
const CLASS: &str = "site-recovery-drbd";

struct Names {
    namespace: String,
    claim: String,
    volume: String,
}

fn names_of(resource: &DRBDResource, pvc: &str, index: i32) -> Names {
    Names {
        namespace: resource.namespace().unwrap_or_default(),
        claim: names::frontend_pvc(pvc),
        volume: names::frontend_pv(&resource.name_any(), index),
    }
}

/// Whether the frontend of a volume is as it shall be.
pub(crate) async fn is_there(
    client: &Client,
    resource: &DRBDResource,
    volume: &DRBDVolumeSpec,
) -> Result<bool, ReconcileError> {
    let names = names_of(resource, &volume.pvc_name, volume.index);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &names.namespace);
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let claim = claims
        .get_opt(&names.claim)
        .await
        .during(format!("reading PVC {}/{}", names.namespace, names.claim))?;
    let claim_fits = claim.is_some_and(|c| {
        c.metadata.deletion_timestamp.is_none()
            && owned(&c, resource)
            && c.spec.and_then(|s| s.volume_name).as_deref() == Some(names.volume.as_str())
    });
    if !claim_fits {
        return Ok(false);
    }
    let pv = volumes
        .get_opt(&names.volume)
        .await
        .during(format!("reading PV {}", names.volume))?;
    Ok(pv.is_some_and(|pv| {
        let path = pv
            .spec
            .as_ref()
            .and_then(|s| s.local.as_ref())
            .map(|l| l.path.as_str());
        pv.metadata.deletion_timestamp.is_none() && path == Some(device(volume).as_str())
    }))
}

fn owned(claim: &PersistentVolumeClaim, resource: &DRBDResource) -> bool {
    claim
        .metadata
        .owner_references
        .iter()
        .flatten()
        .any(|o| Some(&o.uid) == resource.metadata.uid.as_ref())
}

fn device(volume: &DRBDVolumeSpec) -> String {
    format!("/dev/drbd{}", names::minor(volume.port))
}

/// Creates what is missing of a volume's frontend.
///
/// # Errors
/// Also when a PVC of its name belongs to somebody else.
pub(crate) async fn ensure(
    client: &Client,
    resource: &DRBDResource,
    volume: &DRBDVolumeSpec,
) -> Result<(), ReconcileError> {
    let names = names_of(resource, &volume.pvc_name, volume.index);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &names.namespace);
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let labels = inherited_labels(resource);
    let existing = claims
        .get_opt(&names.claim)
        .await
        .during(format!("reading PVC {}/{}", names.namespace, names.claim))?;
    if existing.is_some_and(|c| !owned(&c, resource)) {
        return Err(ReconcileError::new(format!(
            "PVC {}/{} exists but was not made for DRBDResource {}/{}; delete or rename it, the VM's DRBD disk needs its name",
            names.namespace,
            names.claim,
            names.namespace,
            resource.name_any()
        )));
    }
    let pv = parse(pv(resource, volume, &names, &labels))?;
    apply::ensure(&volumes, managers::NODE_AGENT, &pv)
        .await
        .during(format!("creating PV {}", names.volume))?;
    let claim = parse(claim(resource, volume, &names, &labels))?;
    apply::ensure(&claims, managers::NODE_AGENT, &claim)
        .await
        .during(format!("creating PVC {}/{}", names.namespace, names.claim))?;
    Ok(())
}

fn parse<K: serde::de::DeserializeOwned>(value: Value) -> Result<K, ReconcileError> {
    serde_json::from_value(value).map_err(|e| ReconcileError::new(e.to_string()))
}

fn pv(
    resource: &DRBDResource,
    volume: &DRBDVolumeSpec,
    names: &Names,
    labels: &BTreeMap<String, String>,
) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": names.volume, "labels": labels},
        "spec": {
            "capacity": {"storage": quantity::text(volume.size_bytes)},
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Block",
            // The data is on the backing volume; the device goes with the DRBDResource.
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": names.namespace, "name": names.claim},
            "local": {"path": device(volume)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [resource.spec.node_name]},
            ]}]}},
        },
    })
}

fn claim(
    resource: &DRBDResource,
    volume: &DRBDVolumeSpec,
    names: &Names,
    labels: &BTreeMap<String, String>,
) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.claim,
            "namespace": names.namespace,
            "labels": labels,
            "ownerReferences": [{
                "apiVersion": DRBDResource::api_version(&()), "kind": DRBDResource::kind(&()),
                "name": resource.name_any(), "uid": resource.uid(), "controller": true,
            }],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Block",
            "storageClassName": CLASS,
            "volumeName": names.volume,
            "resources": {"requests": {"storage": quantity::text(volume.size_bytes)}},
        },
    })
}

/// Deletes a volume's frontend, if it is this resource's.
pub(crate) async fn delete(
    client: &Client,
    resource: &DRBDResource,
    volume: &DRBDVolumeSpec,
) -> Result<(), ReconcileError> {
    let names = names_of(resource, &volume.pvc_name, volume.index);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &names.namespace);
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let claim = claims
        .get_opt(&names.claim)
        .await
        .during(format!("reading PVC {}/{}", names.namespace, names.claim))?;
    if claim.is_some_and(|c| owned(&c, resource) && c.metadata.deletion_timestamp.is_none()) {
        apply::delete_if_present(&claims, &names.claim)
            .await
            .during(format!("deleting PVC {}/{}", names.namespace, names.claim))?;
    }
    if volumes
        .get_opt(&names.volume)
        .await
        .during(format!("reading PV {}", names.volume))?
        .is_some_and(|v| v.metadata.deletion_timestamp.is_none())
    {
        apply::delete_if_present(&volumes, &names.volume)
            .await
            .during(format!("deleting PV {}", names.volume))?;
    }
    Ok(())
}

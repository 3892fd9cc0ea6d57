//! Carries placement's steps out.

use farshore_api::DRBDResource;
use farshore_api::meta::{annotations, components, finalizers, labels, managers};
use farshore_core::placement::{NewAnchor, NewClaim, Step, inherited_labels};
use farshore_core::quantity;
use farshore_runtime::apply;
use farshore_runtime::controller::{During, ReconcileError};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Config;

/// Runs the steps in order; stops at the first that fails.
pub async fn act(
    client: &Client,
    config: &Config,
    resource: &DRBDResource,
    steps: &[Step],
) -> Result<(), ReconcileError> {
    let namespace = resource.namespace().unwrap_or_default();
    let name = resource.name_any();
    let resources: Api<DRBDResource> = Api::namespaced(client.clone(), &namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    for step in steps {
        match step {
            Step::AddFinalizer => {
                apply::add_finalizer(
                    &resources,
                    managers::PLACEMENT,
                    resource,
                    finalizers::PLACEMENT,
                )
                .await
                .during(format!(
                    "adding a finalizer to DRBDResource {namespace}/{name}"
                ))?;
            }
            Step::Bind { node, address } => {
                // The uid keeps it from another resource of the name; the API server refuses a second node.
                let patch = json!({
                    "metadata": {"uid": resource.uid()},
                    "spec": {"nodeName": node, "local": {"nodeName": node, "address": address}},
                });
                apply::merge(&resources, &name, managers::PLACEMENT, &patch)
                    .await
                    .during(format!(
                        "binding DRBDResource {namespace}/{name} to node {node}"
                    ))?;
            }
            Step::CreateClaim(new) => {
                create(&claims, claim(resource, new))
                    .await
                    .during(format!("creating PVC {namespace}/{}", new.name))?;
            }
            Step::CreateAnchor(new) => {
                create(&pods, anchor(resource, new, &config.anchor_image))
                    .await
                    .during(format!("creating pod {namespace}/{}", new.name))?;
            }
            Step::DeleteAnchor { name, uid } => delete(&pods, name, uid)
                .await
                .during(format!("deleting pod {namespace}/{name}"))?,
            Step::RemoveFinalizer => {
                apply::remove_finalizer(
                    &resources,
                    managers::PLACEMENT,
                    resource,
                    finalizers::PLACEMENT,
                )
                .await
                .during(format!(
                    "removing the finalizer of DRBDResource {namespace}/{name}"
                ))?;
            }
        }
    }
    Ok(())
}

/// Creates an object; one that exists already is looked at by the next reconcile.
async fn create<K>(api: &Api<K>, object: Value) -> Result<(), ReconcileError>
where
    K: Resource + serde::Serialize + DeserializeOwned + Clone + std::fmt::Debug,
{
    let object: K =
        serde_json::from_value(object).map_err(|e| ReconcileError::new(e.to_string()))?;
    let params = PostParams {
        field_manager: Some(managers::PLACEMENT.into()),
        ..PostParams::default()
    };
    match api.create(&params, &object).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        result => result.map(|_| ()).map_err(Into::into),
    }
}

/// Deletes this very object.
async fn delete<K>(api: &Api<K>, name: &str, uid: &str) -> Result<(), ReconcileError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.into()),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    match api.delete(name, &params).await {
        // Gone, or another object by now.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        result => result.map(|_| ()).map_err(Into::into),
    }
}

fn owner(resource: &DRBDResource) -> Value {
    json!({
        "apiVersion": DRBDResource::api_version(&()), "kind": DRBDResource::kind(&()),
        "name": resource.name_any(), "uid": resource.uid(), "controller": true,
    })
}

fn claim(resource: &DRBDResource, new: &NewClaim) -> Value {
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": new.name, "labels": inherited_labels(resource)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Block",
            "storageClassName": new.storage_class,
            "resources": {"requests": {"storage": quantity::text(new.bytes)}},
        },
    });
    if new.owned {
        claim["metadata"]["ownerReferences"] = json!([owner(resource)]);
    } else {
        claim["metadata"]["annotations"] = json!({annotations::CREATED_FOR: resource.name_any()});
    }
    claim
}

/// The pod that keeps the volumes attached to the node. It tolerates everything: where the disks
/// are, it must be. It asks for nothing else, so that the strictest pod security admits it.
fn anchor(resource: &DRBDResource, new: &NewAnchor, image: &str) -> Value {
    let mut labels = inherited_labels(resource);
    labels.insert(labels::COMPONENT.into(), components::DRBD_ANCHOR.into());
    let named = || {
        new.claims
            .iter()
            .enumerate()
            .map(|(n, claim)| (format!("volume-{n}"), claim))
    };
    let volumes: Vec<Value> = named().map(|(volume, claim)| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}})).collect();
    let devices: Vec<Value> = named().map(|(volume, claim)| json!({"name": volume, "devicePath": format!("/dev/drbd-volumes/{claim}")})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": new.name, "labels": labels, "ownerReferences": [owner(resource)]},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": new.node},
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "anchor",
                "image": image,
                "resources": {"requests": {"cpu": "1m", "memory": "4Mi"}, "limits": {"memory": "16Mi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                "volumeDevices": devices,
            }],
            "volumes": volumes,
        },
    })
}

//! Carries out the steps of a protection, in order; each may be repeated.

use std::collections::BTreeMap;

use farshore_api::meta::{finalizers, labels, managers};
use farshore_api::{DRBDResource, DRBDVolume, ProtectionRequest, names};
use farshore_core::Seen;
use farshore_core::protection::{Observed, Step};
use farshore_runtime::controller::{During, ReconcileError};
use farshore_runtime::{apply, secret};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::observe::Remotes;
use crate::hub::Hub;
use crate::kubevirt;

/// Key of the shared secret in its Secret.
const SECRET_KEY: &str = "secret";

/// Runs the steps until one fails.
pub async fn act(
    hub: &Hub,
    remotes: &Remotes,
    seen: &Observed,
    steps: &[Step],
) -> Result<(), ReconcileError> {
    let actor = Actor {
        hub,
        remotes,
        seen,
        resource: names::drbd_resource(&seen.zone_namespace_uid, &seen.request.vm()),
    };
    for step in steps {
        actor.run(step).await?;
    }
    Ok(())
}

struct Actor<'a> {
    hub: &'a Hub,
    remotes: &'a Remotes,
    seen: &'a Observed,
    resource: String,
}

fn created_by_us() -> PostParams {
    PostParams {
        field_manager: Some(managers::PROTECTION.into()),
        ..PostParams::default()
    }
}

async fn create<K: Clone + Serialize + DeserializeOwned + std::fmt::Debug>(
    api: &Api<K>,
    object: &K,
) -> kube::Result<()> {
    api.create(&created_by_us(), object).await.map(|_| ())
}

/// Creates what may have been created by a former life.
async fn create_once<K: Clone + Serialize + DeserializeOwned + std::fmt::Debug>(
    api: &Api<K>,
    object: &K,
) -> kube::Result<()> {
    match create(api, object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result,
    }
}

/// Deletes exactly the object that was seen.
async fn delete<K>(api: &Api<K>, name: &str, uid: Option<String>) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let preconditions = uid.map(|uid| Preconditions {
        uid: Some(uid),
        resource_version: None,
    });
    let params = DeleteParams {
        preconditions,
        ..DeleteParams::background()
    };
    match api.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

impl Actor<'_> {
    fn client(&self, cluster: &str) -> Result<&Client, ReconcileError> {
        let missing = || ReconcileError::new(format!("cluster {cluster} cannot be reached"));
        self.remotes.get(cluster).ok_or_else(missing)
    }

    fn namespace(&self) -> &str {
        &self.seen.request.spec.vm_namespace
    }

    fn resources(&self, cluster: &str) -> Result<Api<DRBDResource>, ReconcileError> {
        Ok(Api::namespaced(
            self.client(cluster)?.clone(),
            self.namespace(),
        ))
    }

    async fn run(&self, step: &Step) -> Result<(), ReconcileError> {
        let requests = self.hub.api::<ProtectionRequest>();
        let (request, vm) = (&self.seen.request, self.seen.request.vm());
        match step {
            Step::AddFinalizer => {
                // The status was written just now: read again what the finalizer is added to.
                let live = requests
                    .get(&request.name_any())
                    .await
                    .during("reading the request")?;
                apply::add_finalizer(
                    &requests,
                    managers::PROTECTION,
                    &live,
                    finalizers::UNPROTECT,
                )
                .await
                .during("adding the finalizer")?;
            }
            Step::RemoveFinalizer => {
                let Some(live) = requests
                    .get_opt(&request.name_any())
                    .await
                    .during("reading the request")?
                else {
                    return Ok(());
                };
                apply::remove_finalizer(
                    &requests,
                    managers::PROTECTION,
                    &live,
                    finalizers::UNPROTECT,
                )
                .await
                .during("removing the finalizer")?;
            }
            Step::CreateNamespace { cluster } => {
                let api: Api<Namespace> = Api::all(self.client(cluster)?.clone());
                let labels = BTreeMap::from([(labels::ZONE.to_string(), self.hub.zone.clone())]);
                let metadata = ObjectMeta {
                    name: Some(self.namespace().into()),
                    labels: Some(labels),
                    ..ObjectMeta::default()
                };
                let namespace = Namespace {
                    metadata,
                    ..Namespace::default()
                };
                create_once(&api, &namespace).await.during(format!(
                    "creating Namespace {} on cluster {cluster}",
                    self.namespace()
                ))?;
            }
            Step::ShareSecret => self.share_secret().await?,
            Step::CreateDrbdVolume { volume } => {
                create_once(&self.hub.api::<DRBDVolume>(), volume)
                    .await
                    .during(format!("creating DRBDVolume {}", volume.name_any()))?;
            }
            Step::ReportDrbdVolume { name, status } => {
                let old = self
                    .seen
                    .drbd_volumes
                    .iter()
                    .find(|v| v.name_any() == *name)
                    .and_then(|v| v.status.clone());
                let api = self.hub.api::<DRBDVolume>();
                apply::status(&api, name, managers::PROTECTION, &old, status)
                    .await
                    .during(format!("writing the status of DRBDVolume {name}"))?;
            }
            Step::CreateResource { cluster, resource } => {
                let doing = format!(
                    "creating DRBDResource {}/{} on cluster {cluster}",
                    self.namespace(),
                    self.resource
                );
                create(&self.resources(cluster)?, resource)
                    .await
                    .during(doing)?;
            }
            Step::PatchResource { cluster, patch } => {
                let doing = format!(
                    "writing DRBDResource {}/{} on cluster {cluster}",
                    self.namespace(),
                    self.resource
                );
                apply::merge(
                    &self.resources(cluster)?,
                    &self.resource,
                    managers::PROTECTION,
                    patch,
                )
                .await
                .during(doing)?;
            }
            Step::DeleteResource { cluster } => {
                let uid = self
                    .seen
                    .sides
                    .get(cluster)
                    .and_then(|s| s.resource.present()?.metadata.uid.clone());
                let doing = format!(
                    "deleting DRBDResource {}/{} on cluster {cluster}",
                    self.namespace(),
                    self.resource
                );
                delete(&self.resources(cluster)?, &self.resource, uid)
                    .await
                    .during(doing)?;
            }
            Step::CreateVm {
                cluster,
                vm: object,
            } => {
                let api = kubevirt::vms(self.client(cluster)?, self.namespace());
                let object = serde_json::from_value(object.clone())
                    .map_err(|e| ReconcileError::new(e.to_string()))?;
                create(&api, &object).await.during(format!(
                    "creating the standby VirtualMachine {vm} on cluster {cluster}"
                ))?;
            }
            Step::PatchVm {
                cluster,
                purpose,
                patch,
            } => {
                let api = kubevirt::vms(self.client(cluster)?, self.namespace());
                let doing =
                    format!("writing VirtualMachine {vm} on cluster {cluster} to {purpose}");
                apply::merge(&api, &vm.name, managers::PROTECTION, patch)
                    .await
                    .during(doing)?;
            }
            Step::DeleteVm { cluster } => {
                let live = self.seen.sides.get(cluster).and_then(|s| s.vm.present());
                let uid = live
                    .and_then(|v| v.pointer("/metadata/uid"))
                    .and_then(Value::as_str)
                    .map(Into::into);
                let api = kubevirt::vms(self.client(cluster)?, self.namespace());
                delete(&api, &vm.name, uid).await.during(format!(
                    "deleting the standby VirtualMachine {vm} on cluster {cluster}"
                ))?;
            }
            Step::DeletePvc { cluster, name } => {
                let live = self
                    .seen
                    .sides
                    .get(cluster)
                    .and_then(|s| s.pvcs.get(name))
                    .and_then(Seen::present);
                let api: Api<PersistentVolumeClaim> =
                    Api::namespaced(self.client(cluster)?.clone(), self.namespace());
                let doing = format!(
                    "deleting PersistentVolumeClaim {}/{name} on cluster {cluster}",
                    self.namespace()
                );
                delete(&api, name, live.and_then(|p| p.metadata.uid.clone()))
                    .await
                    .during(doing)?;
            }
            Step::DeleteSecret { cluster } => {
                let name = names::shared_secret(&self.resource);
                let api: Api<Secret> =
                    Api::namespaced(self.client(cluster)?.clone(), self.namespace());
                delete(&api, &name, None).await.during(format!(
                    "deleting Secret {}/{name} on cluster {cluster}",
                    self.namespace()
                ))?;
            }
        }
        Ok(())
    }

    /// Gives both clusters the same shared secret: the one that either has, else a new one. Its
    /// content goes nowhere else.
    async fn share_secret(&self) -> Result<(), ReconcileError> {
        let name = names::shared_secret(&self.resource);
        let mut lacking = Vec::new();
        let mut content = None;
        for cluster in self.seen.sides.keys() {
            let api: Api<Secret> = Api::namespaced(self.client(cluster)?.clone(), self.namespace());
            let doing = format!(
                "reading Secret {}/{name} on cluster {cluster}",
                self.namespace()
            );
            match api.get_opt(&name).await.during(doing)? {
                Some(found) => {
                    content = content.or(found.data.and_then(|mut d| d.remove(SECRET_KEY)))
                }
                None => lacking.push((cluster, api)),
            }
        }
        let content = match content {
            Some(content) => content,
            None => {
                let fresh = secret::generate(&self.hub.process.clock, &self.resource);
                let fresh = fresh.map_err(|e| {
                    ReconcileError::new(format!("reading randomness for Secret {name}: {e}"))
                })?;
                ByteString(fresh.into_bytes())
            }
        };
        for (cluster, api) in lacking {
            let labels = BTreeMap::from([
                (labels::ZONE.to_string(), self.hub.zone.clone()),
                (
                    labels::PROTECTION_REQUEST.to_string(),
                    self.seen.request.name_any(),
                ),
            ]);
            let shared = Secret {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    labels: Some(labels),
                    ..ObjectMeta::default()
                },
                data: Some(BTreeMap::from([(SECRET_KEY.to_string(), content.clone())])),
                ..Secret::default()
            };
            create(&api, &shared).await.during(format!(
                "creating Secret {}/{name} on cluster {cluster}",
                self.namespace()
            ))?;
        }
        Ok(())
    }
}

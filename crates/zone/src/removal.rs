//! Taking a zone away again.

use farshore_api::meta::finalizers;
use farshore_api::{
    FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone, TestFailover,
};
use farshore_core::zone::Site;
use farshore_core::zone::removal::{self, Cluster, Leaving, Step};
use farshore_runtime::apply;
use farshore_runtime::controller::{During, ReconcileError, Requeue};
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::claim::{self, Owner};
use crate::reconcile::Zones;
use crate::{MANAGER, probe, release, stack};

impl Zones {
    /// One look at a zone that is being deleted.
    pub(crate) async fn remove(&self, zone: &ProtectionZone) -> Result<Requeue, ReconcileError> {
        if !zone
            .finalizers()
            .iter()
            .any(|f| f == finalizers::ZONE_CLEANUP)
        {
            self.watches.forget(zone);
            return Ok(Requeue::Change);
        }
        let namespace = zone.namespace().unwrap_or_default();
        let namespace_uid = self.namespace_uid(&namespace).await?;
        let (leaving, clients) = self.leaving(zone, &namespace, &namespace_uid).await?;
        let removal = removal::remove(&leaving, self.process.clock.now());
        self.tell(zone, &removal.status, &removal.notes).await?;
        let name = zone.name_any();
        let owner = Owner {
            zone: &name,
            namespace_uid: &namespace_uid,
        };
        for step in &removal.steps {
            match step {
                Step::Uninstall(Site::Hub) => {
                    let wanted = stack::manager(&name, &namespace)
                        .map_err(|e| ReconcileError::new(e.to_string()))?;
                    stack::uninstall(&self.hub(), &wanted.manifests, &name)
                        .await
                        .during("removing the manager's stack")?;
                    release::forget(&self.hub(), &wanted)
                        .await
                        .map_err(|e| ReconcileError::new(e.to_string()))?;
                }
                Step::Uninstall(Site::Cluster(cluster)) => {
                    let wanted = stack::workload(&name, cluster, true)
                        .map_err(|e| ReconcileError::new(e.to_string()))?;
                    let client = client(&clients, cluster)?;
                    stack::uninstall(client, &wanted.manifests, &name)
                        .await
                        .during(format!("removing the stack of cluster {cluster}"))?;
                    release::forget(client, &wanted)
                        .await
                        .map_err(|e| ReconcileError::new(e.to_string()))?;
                }
                Step::Release(cluster) => {
                    claim::give_back(client(&clients, cluster)?, &owner)
                        .await
                        .during(format!("removing the claim on cluster {cluster}"))?;
                }
                Step::DropFinalizer => {
                    let api = self.api(zone);
                    if let Some(live) = api.get_opt(&name).await? {
                        apply::remove_finalizer(&api, MANAGER, &live, finalizers::ZONE_CLEANUP)
                            .await
                            .during("removing the zone's finalizer")?;
                    }
                    self.watches.forget(zone);
                }
            }
        }
        Ok(removal.again.into())
    }

    async fn leaving(
        &self,
        zone: &ProtectionZone,
        namespace: &str,
        namespace_uid: &str,
    ) -> Result<(Leaving, BTreeMap<String, Client>), ReconcileError> {
        let requests: Api<ProtectionRequest> = Api::namespaced(self.hub(), namespace);
        let requests = requests
            .list(&ListParams::default())
            .await
            .during("listing the zone's ProtectionRequests")?
            .items
            .len();
        let mut unfinished = Vec::new();
        unfinished.extend(self.unfinished::<FailoverRequest>(namespace).await?);
        unfinished.extend(self.unfinished::<TestFailover>(namespace).await?);
        unfinished.extend(self.unfinished::<ProtectionGroup>(namespace).await?);
        let touched = |name: &str| {
            let status = zone.status.as_ref();
            status.is_some_and(|s| {
                s.clusters
                    .iter()
                    .any(|c| c.name == name && c.cluster_uid.is_some())
            })
        };
        let remote = self.clusters(namespace);
        let mut clusters = Vec::new();
        let mut clients = BTreeMap::new();
        for spec in zone.spec.clusters.iter().filter(|c| touched(&c.name)) {
            let (claim, client) = probe::look_at_claim(&remote, spec, namespace, namespace_uid)
                .await
                .during("reading the zone's kubeconfig Secrets")?;
            clusters.push(Cluster {
                name: spec.name.clone(),
                claim,
            });
            clients.extend(client.map(|client| (spec.name.clone(), client)));
        }
        Ok((
            Leaving {
                zone: zone.clone(),
                requests,
                unfinished,
                clusters,
            },
            clients,
        ))
    }

    /// Objects of a kind that somebody's finalizer holds, by plural and number.
    async fn unfinished<K>(
        &self,
        namespace: &str,
    ) -> Result<Option<(String, usize)>, ReconcileError>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        let plural = K::plural(&()).into_owned();
        let api: Api<K> = Api::namespaced(self.hub(), namespace);
        let all = api
            .list_metadata(&ListParams::default())
            .await
            .during(format!("listing the zone's {plural}"))?;
        let n = all
            .items
            .iter()
            .filter(|object| !object.finalizers().is_empty())
            .count();
        Ok((n > 0).then_some((plural, n)))
    }
}

fn client<'a>(
    clients: &'a BTreeMap<String, Client>,
    cluster: &str,
) -> Result<&'a Client, ReconcileError> {
    clients
        .get(cluster)
        .ok_or_else(|| ReconcileError::new(format!("there is no client for cluster {cluster}")))
}

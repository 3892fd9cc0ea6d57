//! What makes a zone be looked at before its time: changes of its kubeconfig Secrets, of the
//! product's definitions on the hub and on its clusters, of the claim on its clusters, of its
//! ProtectionRequests, and of other zones in its namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farshore_api::meta::WORKLOAD_NAMESPACE;
use farshore_api::{ProtectionRequest, ProtectionZone};
use farshore_runtime::remote::{self, Clusters};
use farshore_runtime::{CancellationToken, Process, triggers};
use futures::StreamExt;
use futures::channel::mpsc;
use futures::stream::{BoxStream, select_all};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};

use crate::crds;

type ZoneRef = ObjectRef<ProtectionZone>;
/// Zones that were looked at, as namespace and name.
type Known = Arc<Mutex<BTreeSet<(String, String)>>>;

/// The watches of all zones; those of a zone's clusters come and go with it.
pub struct Watches {
    process: Process,
    known: Known,
    sender: mpsc::UnboundedSender<ZoneRef>,
    /// What is watched for each zone, with what it was made from.
    running: Mutex<BTreeMap<(String, String), Running>>,
}

struct Running {
    spec: String,
    stop: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn reference((namespace, name): &(String, String)) -> ZoneRef {
    ObjectRef::new(name).within(namespace)
}

impl Watches {
    /// Begins what is watched for all zones; returns also the stream of zones to look at.
    pub fn new(process: &Process) -> (Self, BoxStream<'static, ZoneRef>) {
        let known = Known::default();
        let (sender, receiver) = mpsc::unbounded();
        let all = known.clone();
        let definitions = triggers::refs_on_change(
            Api::<CustomResourceDefinition>::all(process.client.clone()),
            definitions(),
            life,
            move |_| lock(&all).iter().map(reference).collect(),
            process.shutdown.clone(),
        );
        let others = known.clone();
        let neighbours = triggers::refs_on_change(
            Api::<ProtectionZone>::all(process.client.clone()),
            watcher::Config::default(),
            life,
            move |zone: &ProtectionZone| {
                let (namespace, name) = (zone.namespace().unwrap_or_default(), zone.name_any());
                lock(&others)
                    .iter()
                    .filter(|(ns, n)| *ns == namespace && *n != name)
                    .map(reference)
                    .collect()
            },
            process.shutdown.clone(),
        );
        let watches = Self {
            process: process.clone(),
            known,
            sender,
            running: Mutex::default(),
        };
        (
            watches,
            select_all([receiver.boxed(), definitions, neighbours]).boxed(),
        )
    }

    /// Remembers a zone.
    pub fn know(&self, zone: &ProtectionZone) {
        lock(&self.known).insert(key(zone));
    }

    /// Watches what a zone depends on; again when its clusters were changed in its spec.
    pub fn keep(&self, zone: &ProtectionZone, clusters: &Clusters) {
        let key = key(zone);
        let spec = serde_json::to_string(&zone.spec.clusters).unwrap_or_default();
        let mut running = lock(&self.running);
        if running.get(&key).is_some_and(|r| r.spec == spec) {
            return;
        }
        let stop = self.process.shutdown.child_token();
        let streams = self.streams(zone, clusters, &stop);
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let mut streams = select_all(streams);
            while let Some(zone) = streams.next().await {
                if sender.unbounded_send(zone).is_err() {
                    return;
                }
            }
        });
        if let Some(old) = running.insert(key, Running { spec, stop }) {
            old.stop.cancel();
        }
    }

    /// Ends what is watched for a zone.
    pub fn forget(&self, zone: &ProtectionZone) {
        let key = key(zone);
        lock(&self.known).remove(&key);
        if let Some(old) = lock(&self.running).remove(&key) {
            old.stop.cancel();
        }
    }

    fn streams(
        &self,
        zone: &ProtectionZone,
        clusters: &Clusters,
        stop: &CancellationToken,
    ) -> Vec<BoxStream<'static, ZoneRef>> {
        let this = reference(&key(zone));
        let names: BTreeSet<String> = zone
            .spec
            .clusters
            .iter()
            .map(|c| c.kubeconfig_secret_ref.name.clone())
            .collect();
        let secrets: Api<Secret> = Api::namespaced(
            self.process.client.clone(),
            &zone.namespace().unwrap_or_default(),
        );
        let to = this.clone();
        let kubeconfigs = triggers::refs(
            secrets,
            watcher::Config::default(),
            move |secret: &Secret| {
                if names.contains(&secret.name_any()) {
                    vec![to.clone()]
                } else {
                    Vec::new()
                }
            },
            stop.clone(),
        );
        // Its status counts them and the ports that they hold.
        let to = this.clone();
        let requests = triggers::refs_on_change(
            Api::<ProtectionRequest>::namespaced(
                self.process.client.clone(),
                &zone.namespace().unwrap_or_default(),
            ),
            watcher::Config::default(),
            |request: &ProtectionRequest| {
                let volumes = request.status.as_ref().map_or(0, |s| s.volumes.len());
                format!("{volumes}")
            },
            move |_| vec![to.clone()],
            stop.clone(),
        );
        let mut streams = vec![kubeconfigs, requests];
        for cluster in &zone.spec.clusters {
            let to = this.clone();
            streams.push(remote::refs(
                clusters.clone(),
                cluster.clone(),
                |client: Client| Api::<CustomResourceDefinition>::all(client),
                definitions(),
                move |_| vec![to.clone()],
                stop.clone(),
            ));
            let to = this.clone();
            streams.push(remote::refs(
                clusters.clone(),
                cluster.clone(),
                |client: Client| Api::<Namespace>::all(client),
                watcher::Config::default().fields(&format!("metadata.name={WORKLOAD_NAMESPACE}")),
                move |_| vec![to.clone()],
                stop.clone(),
            ));
        }
        streams
    }
}

/// What of an object matters when its status does not.
fn life<K: Resource>(object: &K) -> String {
    let meta = object.meta();
    format!(
        "{:?} {:?} {:?}",
        meta.uid, meta.generation, meta.deletion_timestamp
    )
}

fn key(zone: &ProtectionZone) -> (String, String) {
    (zone.namespace().unwrap_or_default(), zone.name_any())
}

fn definitions() -> watcher::Config {
    watcher::Config::default().labels(&format!("{}={}", crds::LABEL.0, crds::LABEL.1))
}

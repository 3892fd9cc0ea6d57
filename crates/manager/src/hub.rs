//! What every reconciler of the process shares: its namespace on the hub and the way to the
//! workload clusters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farshore_api::ProtectionZone;
use farshore_api::zone::ZoneCluster;
use farshore_core::Seen;
use farshore_runtime::controller::{During, ReconcileError};
use farshore_runtime::events::Recorder;
use farshore_runtime::remote::Clusters;
use farshore_runtime::{Process, ProcessError};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Resource};
use tokio::sync::OnceCell;

/// Pause between looks for the zone at start.
const ZONE_PAUSE: Duration = Duration::from_secs(5);

/// The zone's namespace on the hub and the clusters of the zone. Clones share their state.
#[derive(Clone)]
pub struct Hub {
    /// The process.
    pub process: Process,
    /// Name of the zone.
    pub zone: String,
    /// Its namespace: that of the process.
    pub namespace: String,
    /// Clients of the workload clusters.
    pub clusters: Clusters,
    /// UID of the namespace, once it was read: it stays what it is as long as the process is in it.
    namespace_uid: Arc<OnceCell<String>>,
}

impl Hub {
    /// Reads the environment; an error says what to set.
    pub fn new(process: &Process) -> Result<Self, ProcessError> {
        let zone = process.required("ZONE_NAME")?.to_string();
        let namespace = process.namespace.clone();
        if namespace.is_empty() {
            let text = format!(
                "{} does not start: POD_NAMESPACE is unset; set it to the zone's namespace",
                process.name
            );
            return Err(ProcessError::new(text));
        }
        let clusters = Clusters::new(process, &namespace);
        Ok(Self {
            process: process.clone(),
            zone,
            namespace,
            clusters,
            namespace_uid: Arc::default(),
        })
    }

    /// Objects of the zone's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.process.client.clone(), &self.namespace)
    }

    /// Speaks as `controller` in events.
    pub fn recorder(&self, controller: &str) -> Recorder {
        Recorder::new(
            self.process.client.clone(),
            controller,
            &self.process.identity,
            self.process.clock.clone(),
        )
    }

    /// UID of the zone's namespace.
    pub async fn namespace_uid(&self) -> Result<&str, ReconcileError> {
        let read = async || {
            let all: Api<Namespace> = Api::all(self.process.client.clone());
            let doing = format!("reading Namespace {}", self.namespace);
            let found = all.get(&self.namespace).await.during(&doing)?;
            let none = || ReconcileError::new("it has no UID").during(&doing);
            found.metadata.uid.ok_or_else(none)
        };
        Ok(self.namespace_uid.get_or_try_init(read).await?)
    }

    /// The zone as it is now.
    pub async fn read_zone(&self) -> Result<Option<ProtectionZone>, ReconcileError> {
        let doing = format!("reading ProtectionZone {}/{}", self.namespace, self.zone);
        self.api::<ProtectionZone>()
            .get_opt(&self.zone)
            .await
            .during(doing)
    }

    /// The zone, as soon as it exists; `None` at shutdown.
    pub async fn first_zone(&self) -> Option<ProtectionZone> {
        let mut told = false;
        loop {
            match self.read_zone().await {
                Ok(Some(zone)) => return Some(zone),
                found if !told => {
                    told = true;
                    let why = found
                        .err()
                        .map_or("it does not exist".into(), |e| e.to_string());
                    tracing::warn!(zone = self.zone, why, "waiting for the ProtectionZone");
                }
                _ => {}
            }
            tokio::select! {
                biased;
                () = self.process.shutdown.cancelled() => return None,
                () = tokio::time::sleep(ZONE_PAUSE) => {}
            }
        }
    }

    /// The client of a cluster; Unknown with the reason when there is none.
    pub async fn reach(&self, cluster: &ZoneCluster) -> Seen<Client> {
        match self.clusters.client(cluster).await {
            Ok(client) => Seen::Present(client),
            Err(error) => Seen::Unknown(error.to_string()),
        }
    }
}

/// Why the last attempt for an object failed, until one succeeds: for its status.
#[derive(Clone, Default)]
pub struct Troubles(Arc<Mutex<BTreeMap<String, String>>>);

impl Troubles {
    /// What went wrong for this object, if the last attempt failed.
    pub fn of(&self, name: &str) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .cloned()
    }

    /// Remembers how an attempt ended. That somebody else wrote meanwhile is no trouble.
    pub fn note(&self, name: &str, result: &Result<(), ReconcileError>) {
        let mut troubles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(()) => {
                troubles.remove(name);
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => {
                troubles.insert(name.into(), error.to_string());
            }
        }
    }
}

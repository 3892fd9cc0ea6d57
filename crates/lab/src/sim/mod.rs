//! Simulators of what surrounds the API server in a real cluster: the controller manager, the
//! scheduler, the kubelets, the volume provisioner and KubeVirt. Each works through the API like the
//! thing it stands for.

mod kubevirt;
mod kubevirt_crds;
mod nodes;
mod placement;
mod pods;
mod volumes;
mod workloads;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Future, StreamExt};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::drbd::World;
use crate::guests::Guests;
use crate::processes::Processes;
use crate::storage::Storage;

pub use kubevirt::{vm_resource, vmi_resource};
pub use nodes::{node_address, node_names};

/// Field manager and user of the simulators.
pub const MANAGER: &str = "lab";

/// How long things take in the lab.
#[derive(Clone, Debug)]
pub struct Timings {
    /// From a pod bound to a node to its containers running.
    pub pod_start: Duration,
    /// From a VMI on its node to a booted guest.
    pub vm_boot: Duration,
    /// From the wish to stop to a guest that is off.
    pub vm_stop: Duration,
    /// Between two writes of a guest to each disk.
    pub guest_write: Duration,
    /// Between two heartbeats of a node.
    pub node_heartbeat: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            pod_start: Duration::from_millis(100),
            vm_boot: Duration::from_millis(1500),
            vm_stop: Duration::from_millis(700),
            guest_write: Duration::from_millis(50),
            node_heartbeat: Duration::from_secs(10),
        }
    }
}

/// Everything that the simulators of one cluster share.
pub struct Sim {
    /// Name of the cluster.
    pub cluster: String,
    /// Its place among the lab's clusters: part of its nodes' addresses.
    pub index: usize,
    /// Administrator's client.
    pub client: Client,
    /// Bytes of the lab's volumes.
    pub storage: Storage,
    /// DRBD on all nodes.
    pub world: World,
    /// Running guests of all clusters.
    pub guests: Guests,
    /// Running processes of ours.
    pub processes: Processes,
    /// How long things take.
    pub timings: Timings,
    /// Nodes without power.
    pub down: Mutex<BTreeSet<String>>,
    /// The time.
    pub clock: farshore_runtime::Clock,
    /// The end of the lab.
    pub shutdown: CancellationToken,
}

/// Why a simulator could not go on; it tries again a second later.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The API server said no.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}

impl Sim {
    /// Whether a node has power.
    pub fn is_up(&self, node: &str) -> bool {
        !self
            .down
            .lock()
            .expect("no panic while held")
            .contains(node)
    }

    /// Creates what a cluster has from the start: nodes, storage class, KubeVirt.
    pub async fn install(&self, nodes: usize, workload: bool) -> Result<(), SimError> {
        nodes::install(self, nodes).await?;
        volumes::install(self).await?;
        if workload {
            kubevirt_crds::install(self).await?;
        }
        Ok(())
    }

    /// Starts the simulators; they end with the lab.
    pub fn start(self: &Arc<Self>, nodes: usize, workload: bool) {
        tokio::spawn(nodes::heartbeats(self.clone(), nodes));
        workloads::start(self);
        pods::start(self);
        volumes::start(self);
        if workload {
            kubevirt::start(self);
        }
    }

    /// Cuts or restores the power of a node.
    pub async fn set_node(self: &Arc<Self>, node: &str, up: bool) -> Result<(), SimError> {
        {
            let mut down = self.down.lock().expect("no panic while held");
            if up {
                down.remove(node);
            } else {
                down.insert(node.to_string());
            }
        }
        self.world.set_node(&self.cluster, node, up);
        if !up {
            self.guests.kill_on(&self.cluster, node);
            self.processes.kill_on(&self.cluster, node);
        }
        nodes::report(self, node).await
    }
}

/// Runs one simulator: `reconcile` is called for each object that changed, and again after the
/// duration that it returns or a second after an error.
fn drive<K, F, Fut>(sim: &Arc<Sim>, name: &'static str, controller: Controller<K>, reconcile: F)
where
    K: Clone + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Clone + Debug + Default + Eq + std::hash::Hash + Unpin + Send + Sync,
    F: Fn(Arc<Sim>, Arc<K>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Duration>, SimError>> + Send + 'static,
{
    drive_any(sim, name, controller, reconcile);
}

fn drive_any<K, F, Fut>(sim: &Arc<Sim>, name: &'static str, controller: Controller<K>, reconcile: F)
where
    K: Clone + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Clone + Debug + Eq + std::hash::Hash + Unpin + Send + Sync,
    F: Fn(Arc<Sim>, Arc<K>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Option<Duration>, SimError>> + Send + 'static,
{
    let reconcile = Arc::new(reconcile);
    let shutdown = sim.shutdown.clone();
    let stream = controller
        .graceful_shutdown_on(shutdown.clone().cancelled_owned())
        .run(
            move |object, sim: Arc<Sim>| {
                let reconcile = reconcile.clone();
                async move {
                    let again = reconcile(sim, object).await?;
                    Ok(again.map_or_else(Action::await_change, Action::requeue))
                }
            },
            |_, _: &SimError, _| Action::requeue(Duration::from_secs(1)),
            sim.clone(),
        );
    let cluster = sim.cluster.clone();
    tokio::spawn(stream.for_each(move |result| {
        if let Err(error) = result {
            tracing::debug!(%cluster, simulator = name, %error, "simulator will retry");
        }
        futures::future::ready(())
    }));
}

/// How the simulators watch: with a short idle limit, so that they notice a returned server soon.
fn watch() -> watcher::Config {
    watcher::Config::default().timeout(60)
}

/// `not found` is no error.
fn absent_is_fine<T>(result: kube::Result<T>) -> Result<Option<T>, SimError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// `already exists` is no error.
fn present_is_fine<T>(result: kube::Result<T>) -> Result<(), SimError> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error.into()),
    }
}

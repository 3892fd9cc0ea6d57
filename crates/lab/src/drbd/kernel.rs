//! The agent's [`Kernel`] over the simulated state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farshore_agent::kernel::{Kernel, KernelError};
use farshore_core::drbd::model::{ResourceConfig, ResourceState};
use futures::future::BoxFuture;
use tokio::sync::watch;

use super::Shared;
use super::metadata::Metadata;
use super::state::{Key, Place, State};
use crate::storage::Volume;

/// Where the kubelet of the lab shows a volume's device.
const DEVICES: &str = "/dev/lab/";

/// DRBD of one node.
pub(crate) struct NodeKernel {
    shared: Arc<Shared>,
    place: Place,
    version: watch::Receiver<u64>,
    seen: AtomicU64,
}

impl NodeKernel {
    pub(crate) fn new(shared: Arc<Shared>, place: Place, version: watch::Receiver<u64>) -> Self {
        Self {
            shared,
            place,
            version,
            seen: AtomicU64::new(0),
        }
    }

    fn key(&self, resource: &str) -> Key {
        (self.place.clone(), resource.to_string())
    }

    fn up(&self) -> Result<(), KernelError> {
        if self.shared.lock().node_up(&self.place) {
            Ok(())
        } else {
            Err(KernelError::Other(format!(
                "node {} is down",
                self.place.node
            )))
        }
    }

    /// The volume behind a device path of this node.
    fn volume(&self, device: &str) -> Result<Volume, KernelError> {
        let pv = device.strip_prefix(DEVICES).unwrap_or(device);
        let (cluster, node) = (&self.place.cluster, &self.place.node);
        self.shared
            .storage
            .volume(cluster, pv)
            .filter(|_| self.shared.storage.on_node(cluster, node, pv))
            .ok_or_else(|| KernelError::Other(format!("{device}: no such block device on {node}")))
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, KernelError>,
    ) -> Result<T, KernelError> {
        self.up()?;
        self.shared.change(change)
    }

    /// Waits while `blocked` says so, which it does at most until the peer counts as gone.
    async fn settled(&self, blocked: impl Fn(&State) -> bool) {
        let mut pulse = self.shared.pulse.listen();
        while blocked(&self.shared.lock()) {
            pulse.next().await;
        }
    }
}

impl Kernel for NodeKernel {
    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let mut version = self.version.clone();
            let seen = self.seen.load(Ordering::Relaxed);
            let now = version.wait_for(|v| *v != seen).await.map(|v| *v);
            match now {
                Ok(now) => self.seen.store(now, Ordering::Relaxed),
                Err(_) => std::future::pending().await,
            }
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<Vec<ResourceState>, KernelError>> {
        Box::pin(async {
            self.up()?;
            Ok(self.shared.lock().status(&self.place))
        })
    }

    fn volume_device(
        &self,
        pod_uid: &str,
        pv_name: &str,
    ) -> BoxFuture<'_, Result<Option<String>, KernelError>> {
        let (cluster, node) = (&self.place.cluster, &self.place.node);
        let there = self
            .shared
            .storage
            .attached(cluster, node, pod_uid, pv_name)
            && self.shared.storage.volume(cluster, pv_name).is_some();
        let device = there.then(|| format!("{DEVICES}{pv_name}"));
        Box::pin(async move {
            self.up()?;
            Ok(device)
        })
    }

    fn has_metadata(&self, config: &ResourceConfig) -> BoxFuture<'_, Result<bool, KernelError>> {
        let device = config.meta_disk.clone();
        Box::pin(async move {
            self.up()?;
            Ok(self.volume(&device)?.metadata(|slot| slot.is_some()))
        })
    }

    fn create_metadata(&self, config: &ResourceConfig) -> BoxFuture<'_, Result<(), KernelError>> {
        let config = config.clone();
        Box::pin(async move {
            let data = self.volume(&config.disk)?;
            let meta = self.volume(&config.meta_disk)?;
            self.change(|state| {
                if state.resource(&self.key(&config.name)).is_ok() {
                    return Err(KernelError::Other(format!(
                        "Device '{}' is configured!",
                        config.minor
                    )));
                }
                meta.metadata(|slot| *slot = Some(Metadata::fresh(data.blocks())));
                Ok(())
            })
        })
    }

    fn adjust(&self, config: &ResourceConfig) -> BoxFuture<'_, Result<(), KernelError>> {
        let config = config.clone();
        Box::pin(async move {
            let data = self.volume(&config.disk)?;
            let meta = self.volume(&config.meta_disk)?;
            self.change(|state| state.adjust(&self.place, &config, data, meta))
        })
    }

    fn primary(&self, resource: &str, force: bool) -> BoxFuture<'_, Result<(), KernelError>> {
        let key = self.key(resource);
        Box::pin(async move {
            self.settled(|state| state.in_doubt(&key)).await;
            self.change(|state| state.promote(&key, force))
        })
    }

    fn secondary(&self, resource: &str) -> BoxFuture<'_, Result<(), KernelError>> {
        let key = self.key(resource);
        Box::pin(async move {
            self.up()?;
            self.shared.lock().held_open(&key)?;
            self.settled(|state| state.busy(&key)).await;
            self.change(|state| {
                state.held_open(&key)?;
                state.demote(&key)
            })
        })
    }

    fn disconnect(&self, resource: &str) -> BoxFuture<'_, Result<(), KernelError>> {
        let key = self.key(resource);
        Box::pin(async move { self.change(|state| state.disconnect(&key)) })
    }

    fn connect(
        &self,
        resource: &str,
        discard_my_data: bool,
    ) -> BoxFuture<'_, Result<(), KernelError>> {
        let key = self.key(resource);
        Box::pin(async move { self.change(|state| state.connect(&key, discard_my_data)) })
    }

    fn down(&self, resource: &str) -> BoxFuture<'_, Result<(), KernelError>> {
        let key = self.key(resource);
        Box::pin(async move {
            self.up()?;
            if self.shared.lock().resource(&key).is_err() {
                return Ok(());
            }
            self.shared.lock().held_open(&key)?;
            self.settled(|state| state.busy(&key)).await;
            self.change(|state| {
                if state.resource(&key).is_ok() {
                    state.held_open(&key)?;
                    state.down(&key);
                }
                Ok(())
            })
        })
    }
}

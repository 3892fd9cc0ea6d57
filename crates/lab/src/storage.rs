//! The bytes behind the storage class `lab-block`: volumes of 4 KiB blocks, sparse, that outlive
//! pods, processes and nodes of the lab.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::drbd::Metadata;

/// Bytes in a block.
pub const BLOCK_BYTES: usize = 4096;

/// Every volume of the lab, by cluster and PersistentVolume, and where it is attached.
#[derive(Clone, Default)]
pub struct Storage {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    volumes: BTreeMap<(String, String), Volume>,
    attachments: BTreeMap<Consumer, BTreeSet<String>>,
}

/// A pod on a node: cluster, node, pod UID.
type Consumer = (String, String, String);

impl Storage {
    /// An array without volumes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a volume of zeros; a volume that exists keeps its bytes. The size is rounded up to a
    /// whole block.
    pub fn create(&self, cluster: &str, pv: &str, size_bytes: u64) -> Volume {
        let key = (cluster.to_string(), pv.to_string());
        lock(&self.inner)
            .volumes
            .entry(key)
            .or_insert_with(|| Volume::new(size_bytes))
            .clone()
    }

    /// Destroys a volume and its attachments. Who still holds the [`Volume`] writes to bytes that
    /// nobody will find again.
    pub fn remove(&self, cluster: &str, pv: &str) {
        let mut inner = lock(&self.inner);
        inner.volumes.remove(&(cluster.to_string(), pv.to_string()));
        for ((on, _, _), pvs) in &mut inner.attachments {
            if on == cluster {
                pvs.remove(pv);
            }
        }
    }

    /// The volume of a PersistentVolume.
    pub fn volume(&self, cluster: &str, pv: &str) -> Option<Volume> {
        let key = (cluster.to_string(), pv.to_string());
        lock(&self.inner).volumes.get(&key).cloned()
    }

    /// Offers a volume to a pod on its node, as the kubelet does before it starts the pod.
    pub fn attach(&self, cluster: &str, node: &str, pod_uid: &str, pv: &str) {
        let pod = (cluster.to_string(), node.to_string(), pod_uid.to_string());
        lock(&self.inner)
            .attachments
            .entry(pod)
            .or_default()
            .insert(pv.to_string());
    }

    /// Takes every volume from a pod that has ended.
    pub fn detach(&self, cluster: &str, node: &str, pod_uid: &str) {
        let pod = (cluster.to_string(), node.to_string(), pod_uid.to_string());
        lock(&self.inner).attachments.remove(&pod);
    }

    /// Whether a volume is offered to a pod.
    pub fn attached(&self, cluster: &str, node: &str, pod_uid: &str, pv: &str) -> bool {
        let pod = (cluster.to_string(), node.to_string(), pod_uid.to_string());
        lock(&self.inner)
            .attachments
            .get(&pod)
            .is_some_and(|pvs| pvs.contains(pv))
    }

    /// Whether a volume is offered to any pod of a node, so that the node has a device for it.
    pub fn on_node(&self, cluster: &str, node: &str, pv: &str) -> bool {
        lock(&self.inner)
            .attachments
            .iter()
            .any(|((c, n, _), pvs)| c == cluster && n == node && pvs.contains(pv))
    }
}

/// One volume; clones share its bytes.
#[derive(Clone)]
pub struct Volume {
    inner: Arc<Mutex<VolumeInner>>,
}

struct VolumeInner {
    size_blocks: u64,
    blocks: BTreeMap<u64, Bytes>,
    /// What `drbdadm create-md` has written, on a volume that serves as metadata device.
    metadata: Option<Metadata>,
}

impl Volume {
    /// A volume of zeros that belongs to no cluster.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            inner: Arc::new(Mutex::new(VolumeInner {
                size_blocks: size_bytes.div_ceil(BLOCK_BYTES as u64),
                blocks: BTreeMap::new(),
                metadata: None,
            })),
        }
    }

    /// Size in blocks.
    pub fn blocks(&self) -> u64 {
        lock(&self.inner).size_blocks
    }

    /// A block, or `None` for one of zeros (also beyond the end).
    pub fn read(&self, block: u64) -> Option<Bytes> {
        lock(&self.inner).blocks.get(&block).cloned()
    }

    /// Writes a block; beyond the end it is dropped, as no device has a place for it.
    pub fn write(&self, block: u64, data: Bytes) {
        let mut inner = lock(&self.inner);
        if block < inner.size_blocks {
            inner.blocks.insert(block, data);
        }
    }

    /// Turns a block into zeros.
    pub fn clear(&self, block: u64) {
        lock(&self.inner).blocks.remove(&block);
    }

    /// Numbers of the blocks in `[from, to)` that are not zeros, in order.
    pub fn written(&self, from: u64, to: u64) -> Vec<u64> {
        lock(&self.inner)
            .blocks
            .range(from..to)
            .map(|(block, _)| *block)
            .collect()
    }

    /// A volume of the same size with the same bytes now: a snapshot, or a volume restored from one.
    pub fn copy(&self) -> Self {
        let inner = lock(&self.inner);
        Self {
            inner: Arc::new(Mutex::new(VolumeInner {
                size_blocks: inner.size_blocks,
                blocks: inner.blocks.clone(),
                metadata: inner.metadata.clone(),
            })),
        }
    }

    /// Puts a volume that was made elsewhere under a PersistentVolume's name; used to restore
    /// snapshots.
    pub fn place(self, storage: &Storage, cluster: &str, pv: &str) {
        lock(&storage.inner)
            .volumes
            .insert((cluster.to_string(), pv.to_string()), self);
    }

    pub(crate) fn metadata<T>(&self, look: impl FnOnce(&mut Option<Metadata>) -> T) -> T {
        look(&mut lock(&self.inner).metadata)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! What the process remembers between two looks at a resource. All of it can be lost: a new process
//! configures once more what is configured already, and goes on.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farshore_api::DRBDResource;
use farshore_core::drbd::node::{Applied, Claimed, kernel_name};
use jiff::Timestamp;
use kube::ResourceExt;
use tokio::sync::watch;

/// Namespace and name of a DRBDResource.
pub(crate) type Key = (String, String);

/// Shared by the parts of the agent.
pub(crate) struct Memory {
    inner: Mutex<Inner>,
    /// Bumped at each change of the kernel.
    pub(crate) kernel: watch::Sender<u64>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            kernel: watch::Sender::new(0),
        }
    }
}

#[derive(Default)]
struct Inner {
    applied: BTreeMap<String, Applied>,
    last_writes: BTreeMap<Key, Timestamp>,
    /// What each resource of this node takes, and since when.
    claims: BTreeMap<Key, (Option<Timestamp>, Claimed)>,
    /// Whose the kernel's resources are.
    owners: BTreeMap<String, Key>,
}

pub(crate) fn key(resource: &DRBDResource) -> Key {
    (
        resource.namespace().unwrap_or_default(),
        resource.name_any(),
    )
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A resource is bound to this node.
    pub(crate) fn knows(&self, resource: &DRBDResource) {
        let created = resource.metadata.creation_timestamp.as_ref().map(|t| t.0);
        let mut inner = self.lock();
        inner
            .claims
            .insert(key(resource), (created, Claimed::by(resource)));
        for volume in &resource.spec.volumes {
            inner
                .owners
                .insert(kernel_name(resource, volume), key(resource));
        }
    }

    /// A resource is gone.
    pub(crate) fn forgets(&self, key: &Key) {
        let mut inner = self.lock();
        inner.claims.remove(key);
        inner.last_writes.remove(key);
        inner.owners.retain(|_, owner| owner != key);
    }

    /// What resources take that came before this one: the first one keeps what two claim.
    pub(crate) fn claimed_before(&self, resource: &DRBDResource) -> Vec<Claimed> {
        let created = resource.metadata.creation_timestamp.as_ref().map(|t| t.0);
        let own = (created, key(resource));
        let inner = self.lock();
        inner
            .claims
            .iter()
            .filter(|(key, (created, _))| (*created, (*key).clone()) < own)
            .map(|(_, (_, claimed))| claimed.clone())
            .collect()
    }

    /// The DRBDResource of a kernel resource.
    pub(crate) fn owner(&self, kernel_resource: &str) -> Option<Key> {
        self.lock().owners.get(kernel_resource).cloned()
    }

    pub(crate) fn applied(&self, names: &[String]) -> BTreeMap<String, Applied> {
        let inner = self.lock();
        names
            .iter()
            .filter_map(|n| Some((n.clone(), inner.applied.get(n)?.clone())))
            .collect()
    }

    pub(crate) fn set_applied(&self, name: &str, applied: Option<Applied>) {
        let mut inner = self.lock();
        match applied {
            Some(applied) => inner.applied.insert(name.into(), applied),
            None => inner.applied.remove(name),
        };
    }

    pub(crate) fn last_write(&self, key: &Key) -> Option<Timestamp> {
        self.lock().last_writes.get(key).copied()
    }

    pub(crate) fn wrote(&self, key: &Key, at: Timestamp) {
        self.lock().last_writes.insert(key.clone(), at);
    }
}

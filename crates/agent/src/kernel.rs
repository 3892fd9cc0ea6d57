//! The one interface through which the agent drives DRBD on its node. The lab's simulated kernel
//! implements it; the real tools (`drbdadm`, `drbdmeta`, `drbdsetup`) fit the same operations.

use std::sync::Arc;

use farshore_core::drbd::model::{ResourceConfig, ResourceState};
use futures::future::BoxFuture;

/// The DRBD of the node that this process runs on.
pub type SharedKernel = Arc<dyn Kernel>;

/// Operations on one node's DRBD. All are idempotent: asking for what already is so succeeds.
pub trait Kernel: Send + Sync {
    /// Waits until something about any resource of this node may have changed since the last call
    /// (as `drbdsetup events2` tells); returns at once the first time.
    fn changed(&self) -> BoxFuture<'_, ()>;

    /// State of every resource of this node, by name (`drbdsetup status --json`).
    fn status(&self) -> BoxFuture<'_, Result<Vec<ResourceState>, KernelError>>;

    /// The device under which the kubelet offers a block volume to a pod of this node, or `None`
    /// while it is not attached here.
    fn volume_device(
        &self,
        pod_uid: &str,
        pv_name: &str,
    ) -> BoxFuture<'_, Result<Option<String>, KernelError>>;

    /// Whether the metadata device carries DRBD metadata already (`drbdmeta dump-md`).
    fn has_metadata(&self, config: &ResourceConfig) -> BoxFuture<'_, Result<bool, KernelError>>;

    /// Writes fresh metadata (`drbdadm create-md`): the disk becomes Inconsistent, everything
    /// counts as different from the peer.
    fn create_metadata(&self, config: &ResourceConfig) -> BoxFuture<'_, Result<(), KernelError>>;

    /// Writes the configuration and brings the running resource in line with it: attach, connect
    /// (`drbdadm adjust`; `up` would fail on a second call).
    fn adjust(&self, config: &ResourceConfig) -> BoxFuture<'_, Result<(), KernelError>>;

    /// Becomes Primary. `force` also from Inconsistent or Outdated data (`drbdadm primary --force`):
    /// only for the first full sync and for unplanned failovers.
    fn primary(&self, resource: &str, force: bool) -> BoxFuture<'_, Result<(), KernelError>>;

    /// Becomes Secondary; fails with [`KernelError::HeldOpen`] while the device is in use.
    fn secondary(&self, resource: &str) -> BoxFuture<'_, Result<(), KernelError>>;

    /// Drops the connection; `connect` restores it.
    fn disconnect(&self, resource: &str) -> BoxFuture<'_, Result<(), KernelError>>;

    /// Connects; with `discard_my_data` this side's changes since the split are given up.
    fn connect(
        &self,
        resource: &str,
        discard_my_data: bool,
    ) -> BoxFuture<'_, Result<(), KernelError>>;

    /// Detaches, disconnects and forgets the resource and its file; metadata stays on its device.
    fn down(&self, resource: &str) -> BoxFuture<'_, Result<(), KernelError>>;
}

/// Why DRBD refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Exit 11, (-12): somebody has the device open.
    #[error("DRBD device of {resource} is held open by {by}; stop what uses it")]
    HeldOpen {
        /// DRBD's name of the resource.
        resource: String,
        /// Process that holds it.
        by: String,
    },
    /// Exit 11, (-1): the peer is Primary.
    #[error("{resource} cannot become Primary: its peer is Primary")]
    PeerIsPrimary {
        /// DRBD's name of the resource.
        resource: String,
    },
    /// Exit 17, (-2): no UpToDate data here.
    #[error(
        "{resource} cannot become Primary: its data is {state} and no UpToDate peer is connected"
    )]
    NeedUpToDateData {
        /// DRBD's name of the resource.
        resource: String,
        /// Disk state here.
        state: String,
    },
    /// Exit 10: no such resource.
    #[error("DRBD knows no resource {resource} on this node")]
    NotFound {
        /// DRBD's name of the resource.
        resource: String,
    },
    /// Anything else that the tools print.
    #[error("{0}")]
    Other(String),
}

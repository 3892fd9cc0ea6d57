//! The startup taint: no VM is scheduled to a node whose DRBD has not converged since its agent
//! started [S1].

use farshore_api::DRBDResource;
use farshore_api::drbd::{ConnectionState, DiskState};

use super::super::model::ResourceState;
use super::kernel_name;

/// Whether a resource of this node has converged: every device is up, and its connection is
/// Connected, or Connecting with a readable local disk. A paused one does without a connection;
/// one that is being deleted does not count.
pub fn converged(resource: &DRBDResource, kernel: &[ResourceState]) -> bool {
    if resource.metadata.deletion_timestamp.is_some() {
        return true;
    }
    resource.spec.volumes.iter().all(|volume| {
        let name = kernel_name(resource, volume);
        let Some(state) = kernel.iter().find(|s| s.name == name) else {
            return false;
        };
        let readable = matches!(
            state.disk_state,
            DiskState::UpToDate | DiskState::Consistent | DiskState::Outdated
        );
        match state.connection_state {
            ConnectionState::Connected => true,
            ConnectionState::Connecting => readable,
            _ => resource.spec.paused && readable,
        }
    })
}

//! Every custom resource of Farshore as a Rust type, with the constants that name labels,
//! annotations, finalizers, taints, conditions and reasons.
//!
//! Types here carry the schema that the API server enforces; they know no client and no clock.
//! Sources are cited as `[S1]` (the newer Site Recovery architecture document) and `[S2]` (the
//! older one, whose contracts hold inside the newer process layout).

#![allow(
    clippy::duplicated_attributes,
    reason = "each printer column is an attribute of its own"
)]

#[macro_use]
mod string_enum;

pub mod conditions;
pub mod crds;
pub mod drbd;
pub mod drbd_resource;
pub mod drbd_volume;
pub mod failover_request;
pub mod meta;
pub mod names;
pub mod protection_group;
pub mod protection_request;
pub mod replication_group_status;
pub mod replication_policy;
pub mod rpo_event;
pub mod test_failover;
pub mod zone;

pub use drbd_resource::DRBDResource;
pub use drbd_volume::DRBDVolume;
pub use failover_request::FailoverRequest;
pub use protection_group::ProtectionGroup;
pub use protection_request::ProtectionRequest;
pub use replication_group_status::ReplicationGroupStatus;
pub use replication_policy::DRBDReplicationPolicy;
pub use rpo_event::RPOEvent;
pub use test_failover::TestFailover;
pub use zone::ProtectionZone;

use serde::{Deserialize, Serialize};

/// API group of every Site Recovery kind but DRBDVolume [S1].
pub const GROUP: &str = "siterecovery.trilio.io";
/// API group of the storage kind DRBDVolume [S2].
pub const STORAGE_GROUP: &str = "drbd.io";
/// The one served version.
pub const VERSION: &str = "v1alpha1";

/// A reference to an object of the same namespace by name.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
pub struct LocalRef {
    /// Name of the object.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// A virtual machine by namespace and name.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
pub struct VmRef {
    /// Namespace of the VirtualMachine.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// Name of the VirtualMachine.
    #[schemars(length(min = 1))]
    pub name: String,
}

impl std::fmt::Display for VmRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

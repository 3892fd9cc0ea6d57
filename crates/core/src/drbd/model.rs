//! One DRBD resource on one node: its configuration and its state as `drbdsetup status` tells it.
//! Each replicated volume is a resource of its own with one volume 0, since each has a port of its
//! own [S1].

use farshore_api::drbd::{ConnectionState, DiskState, Protocol, ReplicationState, Role};
use farshore_api::replication_policy::{NetOptions, ResyncRate};
use serde::{Deserialize, Serialize};

/// A secret: neither `Debug` nor serialisation shows it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The secret itself, for the kernel and its configuration file alone.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl<S: Into<String>> From<S> for Secret {
    fn from(secret: S) -> Self {
        Self(secret.into())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

/// Configuration of one DRBD resource: what a `resource` section of a `.res` file holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceConfig {
    /// DRBD's name of the resource.
    pub name: String,
    /// Minor number of the device, the same on both nodes.
    pub minor: i32,
    /// Replication protocol.
    pub protocol: Protocol,
    /// Shared secret of the peers; at most 63 characters.
    pub shared_secret: Secret,
    /// This node.
    pub local: Host,
    /// The other node.
    pub peer: Host,
    /// Device of the data on this node.
    pub disk: String,
    /// Device of the metadata on this node.
    pub meta_disk: String,
    /// Network parameters.
    pub net: NetOptions,
    /// Resynchronisation speed.
    pub resync_rate: ResyncRate,
}

/// One side of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    /// Cluster of the node; with it the node's name is unique in the zone. Not part of the file.
    pub cluster: String,
    /// Host name as `uname -n` prints it.
    pub node: String,
    /// DRBD node id: 0 or 1.
    pub node_id: i32,
    /// IP address.
    pub address: String,
    /// TCP port.
    pub port: i32,
}

/// State of one DRBD resource on one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceState {
    /// DRBD's name of the resource.
    pub name: String,
    /// Minor number.
    pub minor: i32,
    /// Role on this node.
    pub role: Role,
    /// Data on this node.
    pub disk_state: DiskState,
    /// Size of the device in bytes; DRBD clips it silently when the metadata is too small.
    pub size_bytes: i64,
    /// Whether the device is open (a VM uses it).
    pub open: bool,
    /// Connection to the peer.
    pub connection_state: ConnectionState,
    /// Role of the peer.
    pub peer_role: Role,
    /// Replication to the peer.
    pub replication_state: ReplicationState,
    /// Data of the peer as seen from here.
    pub peer_disk_state: DiskState,
    /// Bytes that differ; goes on counting while disconnected.
    pub out_of_sync_bytes: i64,
    /// Progress of a running sync, 0 to 100; 100 when none runs and nothing differs.
    pub sync_percent: i32,
    /// Whether the kernel called the `split-brain` helper: the only sure sign of split brain, since
    /// StandAlone alone also follows a disconnect.
    pub split_brain: bool,
}

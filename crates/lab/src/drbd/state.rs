//! The state of every resource and connection, and the commands on one side.

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_agent::kernel::KernelError;
use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState, Role};
use farshore_core::drbd::model::{ResourceConfig, ResourceState};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Options;
use super::metadata::{Generation, Metadata, served_blocks};
use super::sync::Resync;
use crate::storage::{BLOCK_BYTES, Volume};

/// A node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) cluster: String,
    pub(crate) node: String,
}

impl Place {
    pub(crate) fn new(cluster: &str, node: &str) -> Self {
        Self {
            cluster: cluster.into(),
            node: node.into(),
        }
    }
}

/// A resource on a node.
pub(crate) type Key = (Place, String);

/// A resource that is up on a node.
pub(crate) struct Resource {
    pub(crate) config: ResourceConfig,
    pub(crate) data: Volume,
    pub(crate) meta: Volume,
    pub(crate) blocks: u64,
    pub(crate) role: Role,
    /// Whether it looks for its peer; else it is StandAlone.
    pub(crate) wants_peer: bool,
    /// The connection that it believes in.
    pub(crate) connection: Option<u64>,
    pub(crate) discard_my_data: bool,
    pub(crate) split_brain: bool,
    /// Who has the device open, by handle.
    pub(crate) openers: BTreeMap<u64, String>,
    /// Told apart from an earlier life of the same resource.
    pub(crate) life: u64,
}

impl Resource {
    /// Looks at or changes the metadata on its device.
    pub(crate) fn md<T>(&self, look: impl FnOnce(&mut Metadata) -> T) -> T {
        self.meta.metadata(|slot| {
            look(
                slot.as_mut()
                    .expect("a resource is attached only to a device that carries metadata"),
            )
        })
    }

    pub(crate) fn disk(&self) -> DiskState {
        self.md(|m| m.disk)
    }
}

/// Two resources that talk to each other.
pub(crate) struct Connection {
    pub(crate) sides: [Key; 2],
    /// Role and disk of each side as the other last heard of them.
    pub(crate) heard: [(Role, DiskState); 2],
    /// Since when packets do not arrive.
    pub(crate) silent_since: Option<Instant>,
    pub(crate) sync: Option<Resync>,
}

impl Connection {
    pub(crate) fn other(&self, key: &Key) -> &Key {
        if self.sides[0] == *key {
            &self.sides[1]
        } else {
            &self.sides[0]
        }
    }

    fn heard_of_other(&self, key: &Key) -> (Role, DiskState) {
        if self.sides[0] == *key {
            self.heard[1]
        } else {
            self.heard[0]
        }
    }
}

struct Node {
    up: bool,
    version: watch::Sender<u64>,
}

/// Everything.
pub(crate) struct State {
    pub(crate) options: Options,
    pub(crate) link_up: bool,
    nodes: BTreeMap<Place, Node>,
    pub(crate) resources: BTreeMap<Key, Resource>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    last_number: u64,
}

impl State {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            link_up: true,
            nodes: BTreeMap::new(),
            resources: BTreeMap::new(),
            connections: BTreeMap::new(),
            // Above JUST_CREATED: numbers serve as generation identifiers too.
            last_number: 1000,
        }
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn node(&mut self, place: &Place) -> &mut Node {
        self.nodes.entry(place.clone()).or_insert_with(|| Node {
            up: true,
            version: watch::Sender::new(1),
        })
    }

    pub(crate) fn subscribe(&mut self, place: &Place) -> watch::Receiver<u64> {
        self.node(place).version.subscribe()
    }

    pub(crate) fn node_up(&self, place: &Place) -> bool {
        self.nodes.get(place).is_none_or(|node| node.up)
    }

    /// Tells who watches a node that something changed there.
    pub(crate) fn touch(&mut self, place: &Place) {
        self.node(place).version.send_modify(|v| *v += 1);
    }

    pub(crate) fn set_node(&mut self, place: &Place, up: bool) {
        self.node(place).up = up;
        if !up {
            self.resources.retain(|(on, _), _| on != place);
        }
        self.touch(place);
    }

    pub(crate) fn resource(&self, key: &Key) -> Result<&Resource, KernelError> {
        self.resources
            .get(key)
            .ok_or_else(|| KernelError::NotFound {
                resource: key.1.clone(),
            })
    }

    fn resource_mut(&mut self, key: &Key) -> Result<&mut Resource, KernelError> {
        self.resources
            .get_mut(key)
            .ok_or_else(|| KernelError::NotFound {
                resource: key.1.clone(),
            })
    }

    /// The other end of a connection that works in both directions right now.
    pub(crate) fn reachable_peer(&self, key: &Key) -> Option<&Resource> {
        let id = self.resources.get(key)?.connection?;
        let peer = self.resources.get(self.connections.get(&id)?.other(key))?;
        (self.link_up && peer.connection == Some(id)).then_some(peer)
    }

    /// Whether the connection that a side believes in does not answer: what it asks its peer now
    /// waits until the peer answers again or counts as gone.
    pub(crate) fn in_doubt(&self, key: &Key) -> bool {
        self.resources
            .get(key)
            .is_some_and(|r| r.connection.is_some())
            && self.reachable_peer(key).is_none()
    }

    /// Attaches and starts to connect, or takes over a changed configuration.
    pub(crate) fn adjust(
        &mut self,
        place: &Place,
        config: &ResourceConfig,
        data: Volume,
        meta: Volume,
    ) -> Result<(), KernelError> {
        let key = (place.clone(), config.name.clone());
        self.check(&key, config)?;
        if let Some(resource) = self.resources.get_mut(&key) {
            let reconnect = resource.config.local != config.local
                || resource.config.peer != config.peer
                || resource.config.shared_secret != config.shared_secret
                || resource.config.protocol != config.protocol;
            resource.config = config.clone();
            let was_alone = !std::mem::replace(&mut resource.wants_peer, true);
            if reconnect {
                self.part(&key, true);
            }
            if reconnect || was_alone {
                self.touch(place);
            }
            return Ok(());
        }
        let blocks = attach(&data, &meta)?;
        let life = self.number();
        self.resources.insert(
            key,
            Resource {
                config: config.clone(),
                data,
                meta,
                blocks,
                role: Role::Secondary,
                wants_peer: true,
                connection: None,
                discard_my_data: false,
                split_brain: false,
                openers: BTreeMap::new(),
                life,
            },
        );
        self.touch(place);
        Ok(())
    }

    fn check(&self, key: &Key, config: &ResourceConfig) -> Result<(), KernelError> {
        let (place, name) = key;
        if config.local.node != place.node || config.local.cluster != place.cluster {
            return Err(KernelError::Other(format!(
                "'{name}' not defined in your config (for this host): it speaks of {}, this is {}",
                config.local.node, place.node
            )));
        }
        for (_, other) in self
            .resources
            .iter()
            .filter(|((on, other), _)| on == place && other != name)
        {
            if other.config.minor == config.minor {
                return Err(KernelError::Other(format!(
                    "{name}: Failure: (161) Minor or volume exists already (delete it first)"
                )));
            }
            if other.config.disk == config.disk || other.config.meta_disk == config.meta_disk {
                return Err(KernelError::Other(format!(
                    "{name}: Failure: (104) Can not open backing device: in use by {}",
                    other.config.name
                )));
            }
        }
        Ok(())
    }

    /// Becomes Primary; the caller has waited until the connection is not in doubt.
    pub(crate) fn promote(&mut self, key: &Key, force: bool) -> Result<(), KernelError> {
        let own = self.resource(key)?;
        if own.role == Role::Primary {
            return Ok(());
        }
        let peer = self.reachable_peer(key);
        if peer.is_some_and(|p| p.role == Role::Primary) {
            return Err(KernelError::PeerIsPrimary {
                resource: key.1.clone(),
            });
        }
        let disk = own.disk();
        let readable =
            disk == DiskState::UpToDate || peer.is_some_and(|p| p.disk() == DiskState::UpToDate);
        if !readable && !force {
            return Err(KernelError::NeedUpToDateData {
                resource: key.1.clone(),
                state: disk.to_string(),
            });
        }
        let alone = peer.is_none();
        let peer_key = own
            .connection
            .and_then(|id| self.connections.get(&id))
            .map(|c| c.other(key).clone());
        let generation = self.number();
        let own = self.resource_mut(key)?;
        own.role = Role::Primary;
        own.md(|m| {
            m.primary = true;
            m.last_primary = true;
            if !readable {
                m.disk = DiskState::UpToDate;
            }
            if alone || !readable {
                m.branch(generation);
            }
        });
        if let Some(peer_key) = peer_key {
            if let Some(peer) = self.resources.get(&peer_key) {
                peer.md(|m| m.last_primary = false);
            }
            if !readable {
                self.sync_as_they_met(key);
            }
            self.touch(&peer_key.0);
        }
        self.touch(&key.0);
        Ok(())
    }

    /// Why the device cannot be given up now, if so: somebody has it open.
    pub(crate) fn held_open(&self, key: &Key) -> Result<(), KernelError> {
        match self.resource(key)?.openers.values().next() {
            None => Ok(()),
            Some(by) => Err(KernelError::HeldOpen {
                resource: key.1.clone(),
                by: by.clone(),
            }),
        }
    }

    /// Whether writes are under way; their device may be closed already.
    pub(crate) fn busy(&self, key: &Key) -> bool {
        self.resources
            .get(key)
            .is_some_and(|r| r.md(|m| !m.active.is_empty()))
    }

    /// Becomes Secondary; the caller has seen that nobody has it open and nothing is under way.
    pub(crate) fn demote(&mut self, key: &Key) -> Result<(), KernelError> {
        let own = self.resource_mut(key)?;
        if own.role == Role::Secondary {
            return Ok(());
        }
        own.role = Role::Secondary;
        own.md(|m| m.primary = false);
        let peer = own
            .connection
            .and_then(|id| self.connections.get(&id))
            .map(|c| c.other(key).clone());
        self.touch(&key.0);
        if let Some(peer) = peer {
            self.touch(&peer.0);
        }
        Ok(())
    }

    /// Leaves the peer and stays StandAlone.
    pub(crate) fn disconnect(&mut self, key: &Key) -> Result<(), KernelError> {
        let own = self.resource_mut(key)?;
        let connected = own.connection.is_some();
        if std::mem::replace(&mut own.wants_peer, false) || connected {
            own.discard_my_data = false;
            self.part(key, true);
            self.touch(&key.0);
        }
        Ok(())
    }

    /// Looks for the peer.
    pub(crate) fn connect(&mut self, key: &Key, discard_my_data: bool) -> Result<(), KernelError> {
        let own = self.resource_mut(key)?;
        if discard_my_data && own.role == Role::Primary {
            return Err(KernelError::Other(format!(
                "{}: Failure: (123) --discard-my-data not allowed when primary.",
                key.1
            )));
        }
        if own.connection.is_none() {
            own.wants_peer = true;
            own.discard_my_data = discard_my_data;
            own.split_brain = false;
            self.touch(&key.0);
        }
        Ok(())
    }

    /// Forgets the resource; the caller has seen that nobody has it open.
    pub(crate) fn down(&mut self, key: &Key) {
        if self.resources.contains_key(key) {
            self.part(key, true);
            if let Some(own) = self.resources.remove(key) {
                own.md(|m| m.primary = false);
            }
            self.touch(&key.0);
        }
    }

    /// State of the resources of a node, by name.
    pub(crate) fn status(&self, place: &Place) -> Vec<ResourceState> {
        self.resources
            .iter()
            .filter(|((on, _), _)| on == place)
            .map(|(key, own)| self.describe(key, own))
            .collect()
    }

    fn describe(&self, key: &Key, own: &Resource) -> ResourceState {
        let connection = own.connection.and_then(|id| self.connections.get(&id));
        // What was heard last is believed until the peer counts as gone.
        let (peer_role, peer_disk) = connection.map_or((Role::Unknown, DiskState::DUnknown), |c| {
            c.heard_of_other(key)
        });
        let sync = connection.and_then(|c| c.sync.as_ref());
        let dirty = own.md(|m| m.dirty.count());
        let (total, left) = match sync {
            Some(sync) => (sync.total, dirty),
            None => (own.blocks, dirty),
        };
        ResourceState {
            name: key.1.clone(),
            minor: own.config.minor,
            role: own.role,
            disk_state: own.disk(),
            size_bytes: (own.blocks * BLOCK_BYTES as u64) as i64,
            open: !own.openers.is_empty(),
            connection_state: match (connection, own.wants_peer) {
                (Some(_), _) => ConnectionState::Connected,
                (None, true) => ConnectionState::Connecting,
                (None, false) => ConnectionState::StandAlone,
            },
            peer_role,
            replication_state: match (connection, sync) {
                (None, _) => ReplicationState::Off,
                (Some(_), None) => ReplicationState::Established,
                (Some(_), Some(sync)) if sync.source == *key => ReplicationState::SyncSource,
                (Some(_), Some(_)) => ReplicationState::SyncTarget,
            },
            peer_disk_state: peer_disk,
            out_of_sync_bytes: (dirty * BLOCK_BYTES as u64) as i64,
            sync_percent: percent(total, left),
            split_brain: own.split_brain,
        }
    }

    /// When something happens next by itself.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let timeout: Duration = self.options.peer_timeout;
        self.connections
            .values()
            .flat_map(|c| {
                [
                    c.silent_since.map(|s| s + timeout),
                    c.sync.as_ref().map(|s| s.next),
                ]
            })
            .flatten()
            .min()
    }

    /// A new generation identifier.
    pub(crate) fn generation(&mut self) -> Generation {
        self.number()
    }
}

/// Share of `total` that is done, 0 to 100; 100 only when nothing is left.
pub(crate) fn percent(total: u64, left: u64) -> i32 {
    if left == 0 {
        return 100;
    }
    let done = total.saturating_sub(left);
    i32::try_from(done * 100 / total.max(1))
        .unwrap_or(99)
        .min(99)
}

/// Reads the metadata as after a boot: what a crash left behind is made good. Gives the size in
/// blocks.
fn attach(data: &Volume, meta: &Volume) -> Result<u64, KernelError> {
    let Some(served) = served_blocks(meta.blocks()) else {
        return Err(KernelError::Other(
            "Failure: (112) Meta device too small.".into(),
        ));
    };
    meta.metadata(|slot| {
        let Some(m) = slot else {
            return Err(KernelError::Other(
                "Failure: (119) No valid meta-data signature found.".into(),
            ));
        };
        if std::mem::take(&mut m.primary) {
            m.crashed_primary = true;
        }
        for block in std::mem::take(&mut m.active).into_values() {
            m.dirty.set(block, block + 1);
        }
        if m.disk == DiskState::UpToDate && !m.last_primary {
            m.disk = DiskState::Consistent;
        }
        Ok(data.blocks().min(served))
    })
}

//! Two nodes with one replicated volume between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use bytes::Bytes;
use farshore_agent::kernel::SharedKernel;
use farshore_api::drbd::{ConnectionState, Protocol, ReplicationState};
use farshore_core::drbd::model::{Host, ResourceConfig, ResourceState};
use farshore_lab::drbd::{Device, Options, World};
use farshore_lab::storage::{BLOCK_BYTES, Storage, Volume};
use tokio_util::sync::CancellationToken;

pub const RESOURCE: &str = "drbd-shop-db01-1a2b3c4d";
pub const MINOR: i32 = 1003;
pub const EAST: usize = 0;
pub const WEST: usize = 1;
const CLUSTERS: [&str; 2] = ["east", "west"];

pub struct Pair {
    pub world: World,
    pub storage: Storage,
    kernels: [SharedKernel; 2],
    _stop: tokio_util::sync::DropGuard,
}

pub fn block(text: &str) -> Bytes {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(BLOCK_BYTES, b'.');
    Bytes::from(bytes)
}

impl Pair {
    /// Both nodes up, volumes of so many blocks attached, fresh metadata, nothing configured.
    pub async fn new(blocks: u64) -> Self {
        let options = Options {
            sync_bytes_per_second: 10 * BLOCK_BYTES as u64 * 10,
            latency: Duration::from_millis(1),
            peer_timeout: Duration::from_secs(6),
        };
        let storage = Storage::new();
        for cluster in CLUSTERS {
            storage.create(cluster, "data", blocks * BLOCK_BYTES as u64);
            storage.create(cluster, "meta", 1 << 20);
            for pv in ["data", "meta"] {
                storage.attach(cluster, "n1", "anchor", pv);
            }
        }
        let stop = CancellationToken::new();
        let world = World::new(storage.clone(), options, stop.clone());
        let kernels = CLUSTERS.map(|cluster| world.kernel(cluster, "n1"));
        let pair = Self {
            world,
            storage,
            kernels,
            _stop: stop.drop_guard(),
        };
        for side in [EAST, WEST] {
            let config = pair.config(side).await;
            pair.kernel(side).create_metadata(&config).await.unwrap();
        }
        pair
    }

    /// Both sides Connected and UpToDate, east Primary.
    pub async fn synced(blocks: u64) -> Self {
        let pair = Self::new(blocks).await;
        pair.adjust(EAST).await;
        pair.adjust(WEST).await;
        pair.kernel(EAST).primary(RESOURCE, true).await.unwrap();
        pair.quiet().await;
        pair
    }

    pub fn kernel(&self, side: usize) -> &SharedKernel {
        &self.kernels[side]
    }

    pub fn volume(&self, side: usize) -> Volume {
        self.storage.volume(CLUSTERS[side], "data").unwrap()
    }

    pub async fn config(&self, side: usize) -> ResourceConfig {
        let host = |side: usize| Host {
            cluster: CLUSTERS[side].into(),
            node: "n1".into(),
            node_id: side as i32,
            address: format!("10.{side}.0.1"),
            port: 7003,
        };
        let device = |pv| async move {
            self.kernel(side)
                .volume_device("anchor", pv)
                .await
                .unwrap()
                .unwrap()
        };
        ResourceConfig {
            name: RESOURCE.into(),
            minor: MINOR,
            protocol: Protocol::C,
            shared_secret: "secret".into(),
            local: host(side),
            peer: host(1 - side),
            disk: device("data").await,
            meta_disk: device("meta").await,
            net: Default::default(),
            resync_rate: Default::default(),
        }
    }

    pub async fn config_if_up(&self, side: usize) -> Option<ResourceConfig> {
        self.kernel(side).status().await.ok()?;
        Some(self.config(side).await)
    }

    pub async fn adjust(&self, side: usize) {
        let config = self.config(side).await;
        self.kernel(side).adjust(&config).await.unwrap();
    }

    pub async fn state(&self, side: usize) -> ResourceState {
        self.kernel(side).status().await.unwrap().remove(0)
    }

    pub fn open(&self, side: usize) -> Device {
        self.world
            .open(CLUSTERS[side], "n1", MINOR, "qemu")
            .unwrap()
    }

    pub fn crash(&self, side: usize) {
        self.world.set_node(CLUSTERS[side], "n1", false);
    }

    pub fn boot(&self, side: usize) {
        self.world.set_node(CLUSTERS[side], "n1", true);
    }

    /// Waits until both sides are connected and no sync runs.
    pub async fn quiet(&self) {
        for _ in 0..100_000 {
            let states = [
                self.kernel(EAST).status().await.unwrap(),
                self.kernel(WEST).status().await.unwrap(),
            ];
            if states.iter().flatten().all(|s| {
                s.connection_state == ConnectionState::Connected
                    && s.replication_state == ReplicationState::Established
            }) && states.iter().all(|s| s.len() == 1)
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "never quiet: {:?} {:?}",
            self.state(EAST).await,
            self.state(WEST).await
        );
    }

    pub fn same_bytes(&self) -> bool {
        let (east, west) = (self.volume(EAST), self.volume(WEST));
        (0..east.blocks()).all(|b| east.read(b) == west.read(b))
    }
}

/// `role disk connection replication peer-disk`, and the split-brain flag if set.
pub fn words(state: &ResourceState) -> String {
    format!(
        "{} {} {} {} {}{}",
        state.role,
        state.disk_state,
        state.connection_state,
        state.replication_state,
        state.peer_disk_state,
        if state.split_brain {
            " split-brain"
        } else {
            ""
        }
    )
}

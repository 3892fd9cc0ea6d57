//! The DRBD kernel module of every node of the lab, simulated behind the agent's [`Kernel`]:
//! roles, disk and connection states, generation identifiers, dirty bitmaps, resync, split brain,
//! over real bytes.
//!
//! Followed is DRBD 9 with two nodes, protocol C and a fencing policy: a side that has lost its
//! peer calls its data UpToDate only if it was the last Primary; the other falls back to
//! Consistent (or Outdated, when the Primary said goodbye) and is promoted by force alone.
//!
//! [`Kernel`]: farshore_agent::kernel::Kernel

mod bitmap;
mod device;
mod kernel;
mod meeting;
mod metadata;
mod state;
mod sync;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farshore_agent::kernel::{KernelError, SharedKernel};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use device::Device;
pub use metadata::Metadata;

use crate::pulse::Pulse;
use crate::storage::Storage;
use state::{Place, State};

/// Speeds of the simulated hardware.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Speed of a sync, in bytes of device per second, per volume.
    pub sync_bytes_per_second: u64,
    /// One way over the replication link.
    pub latency: Duration,
    /// Silence after which a peer counts as gone.
    pub peer_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sync_bytes_per_second: 100 << 20,
            latency: Duration::from_micros(500),
            peer_timeout: Duration::from_secs(6),
        }
    }
}

/// Every node's DRBD and the link between the clusters.
#[derive(Clone)]
pub struct World {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    storage: Storage,
    options: Options,
    /// Told when the next deadline may have moved.
    moved: Notify,
    /// Rings when the link, a node or a connection changes; writes under way wait for it.
    pulse: Pulse,
}

impl World {
    /// A world without nodes, its link up. Must be called within a tokio runtime; time passes in it
    /// until `shutdown`.
    pub fn new(storage: Storage, options: Options, shutdown: CancellationToken) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(options)),
            storage,
            options,
            moved: Notify::new(),
            pulse: Pulse::default(),
        });
        tokio::spawn(run(Arc::clone(&shared), shutdown));
        Self { shared }
    }

    /// The DRBD of one node. Each call gives a handle of its own, which has not seen anything yet.
    pub fn kernel(&self, cluster: &str, node: &str) -> SharedKernel {
        let place = Place::new(cluster, node);
        let version = self.shared.lock().subscribe(&place);
        Arc::new(kernel::NodeKernel::new(
            Arc::clone(&self.shared),
            place,
            version,
        ))
    }

    /// Opens a device, as QEMU does for a VM's disk; `by` names who does.
    ///
    /// # Errors
    /// `NotFound` if the node has no such device, `Other` unless its role is Primary.
    pub fn open(
        &self,
        cluster: &str,
        node: &str,
        minor: i32,
        by: &str,
    ) -> Result<Device, KernelError> {
        Device::open(&self.shared, &Place::new(cluster, node), minor, by)
    }

    /// Cuts or heals the link between the clusters.
    pub fn link(&self, up: bool) {
        self.shared.change(|state| state.link_up = up);
    }

    /// Whether the link between the clusters is up.
    pub fn link_is_up(&self) -> bool {
        self.shared.lock().link_up
    }

    /// Crashes a node, which forgets everything but its disks, or boots it.
    pub fn set_node(&self, cluster: &str, node: &str, up: bool) {
        let place = Place::new(cluster, node);
        self.shared.change(|state| state.set_node(&place, up));
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the world and lets everything follow that follows at once.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = {
            let mut state = self.lock();
            let result = change(&mut state);
            state.settle(Instant::now());
            result
        };
        self.pulse.ring();
        self.moved.notify_one();
        result
    }
}

/// Lets time pass: timeouts and sync ticks.
async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    loop {
        let deadline = shared.lock().deadline();
        let due = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = shared.moved.notified() => continue,
            () = due => {}
        }
        let lost = shared.lock().settle(Instant::now());
        if lost {
            shared.pulse.ring();
        }
    }
}

//! An open DRBD device: what a VM's disk reads and writes.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use farshore_agent::kernel::KernelError;
use farshore_api::drbd::{DiskState, Role};

use super::Shared;
use super::state::{Key, Place, State};

/// An open device of a Primary; dropping it closes it. It fails for good when its node crashes.
pub struct Device {
    shared: Arc<Shared>,
    key: Key,
    life: u64,
    handle: u64,
    blocks: u64,
}

/// How far a write has come.
enum Progress {
    /// Acknowledged.
    Done,
    /// Under way to the peer, under this number of the activity log.
    Sent(u64),
    /// Neither delivered nor given up yet.
    Waiting,
}

impl Device {
    pub(crate) fn open(
        shared: &Arc<Shared>,
        place: &Place,
        minor: i32,
        by: &str,
    ) -> Result<Self, KernelError> {
        let mut state = shared.lock();
        let handle = state.number();
        let found = state
            .resources
            .iter_mut()
            .find(|((on, _), resource)| on == place && resource.config.minor == minor);
        let Some((key, resource)) = found else {
            return Err(KernelError::NotFound {
                resource: format!("with device /dev/drbd{minor}"),
            });
        };
        if resource.role != Role::Primary {
            return Err(KernelError::Other(format!(
                "/dev/drbd{minor}: Wrong medium type: {} is {} on {}; only a Primary can be opened",
                key.1, resource.role, place.node
            )));
        }
        resource.openers.insert(handle, by.to_string());
        let device = Self {
            shared: Arc::clone(shared),
            key: key.clone(),
            life: resource.life,
            handle,
            blocks: resource.blocks,
        };
        state.touch(place);
        Ok(device)
    }

    /// Size in 4 KiB blocks.
    pub fn size_blocks(&self) -> u64 {
        self.blocks
    }

    /// Reads a block; `None` is one of zeros. A Primary without good data of its own reads from
    /// its peer.
    ///
    /// # Errors
    /// The node is down, or neither side's data can be reached.
    pub async fn read(&self, block: u64) -> io::Result<Option<Bytes>> {
        let mut pulse = self.shared.pulse.listen();
        loop {
            {
                let state = self.shared.lock();
                let own = alive(&state, &self.key, self.life)?;
                let local = own.md(|m| m.disk == DiskState::UpToDate || !m.dirty.contains(block));
                if local {
                    return Ok(own.data.read(block));
                }
                if let Some(peer) = state.reachable_peer(&self.key) {
                    return Ok(peer.data.read(block));
                }
                if !state.in_doubt(&self.key) {
                    return Err(io::Error::other("no UpToDate data is reachable"));
                }
            }
            pulse.next().await;
        }
    }

    /// Writes a block. Resolves when the write is acknowledged: it is here and, while connected, on
    /// the peer (protocol C).
    ///
    /// # Errors
    /// The node is down, no good data can be reached, or the block lies beyond the end. The write
    /// may have happened all the same, as on any disk.
    pub async fn write(&self, block: u64, data: Bytes) -> io::Result<()> {
        if block >= self.blocks {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let begun = begin(&mut self.shared.lock(), &self.key, self.life, block, data)?;
        let Progress::Sent(number) = begun else {
            return Ok(());
        };
        // The write goes its way also when the writer is dropped.
        let (shared, key, life) = (Arc::clone(&self.shared), self.key.clone(), self.life);
        let way = tokio::spawn(async move { travel(&shared, &key, life, block, number).await });
        way.await.map_err(io::Error::other)?
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(resource) = state
            .resources
            .get_mut(&self.key)
            .filter(|r| r.life == self.life)
        {
            resource.openers.remove(&self.handle);
            state.touch(&self.key.0);
        }
    }
}

fn alive<'a>(state: &'a State, key: &Key, life: u64) -> io::Result<&'a super::state::Resource> {
    state
        .resources
        .get(key)
        .filter(|r| r.life == life)
        .ok_or_else(|| io::Error::other("the node has crashed"))
}

/// The local half of a write.
fn begin(state: &mut State, key: &Key, life: u64, block: u64, data: Bytes) -> io::Result<Progress> {
    let number = state.number();
    let own = alive(state, key, life)?;
    let good = own.disk() == DiskState::UpToDate;
    if own.connection.is_none() {
        if !good {
            return Err(io::Error::other("no UpToDate data is reachable"));
        }
        own.md(|m| {
            m.branch(number);
            m.dirty.set(block, block + 1);
        });
        own.data.write(block, data);
        return Ok(Progress::Done);
    }
    own.md(|m| {
        m.active.insert(number, block);
        if !good {
            // The sync must not put the old block over the new one.
            m.dirty.unset(block, block + 1);
        }
    });
    own.data.write(block, data);
    if !good && let Some(peer) = state.reachable_peer(key) {
        peer.md(|m| m.dirty.unset(block, block + 1));
    }
    Ok(Progress::Sent(number))
}

/// The way to the peer and back.
async fn travel(shared: &Shared, key: &Key, life: u64, block: u64, number: u64) -> io::Result<()> {
    for step in [deliver, acknowledge] {
        let mut pulse = shared.pulse.listen();
        tokio::time::sleep(shared.options.latency).await;
        loop {
            match step(&mut shared.lock(), key, life, block, number)? {
                Progress::Done => return finished(shared),
                Progress::Sent(_) => break,
                Progress::Waiting => {}
            }
            pulse.next().await;
        }
    }
    finished(shared)
}

/// Who waits for the last write to finish (a change of roles) looks again.
fn finished(shared: &Shared) -> io::Result<()> {
    shared.pulse.ring();
    Ok(())
}

/// Whether the connection was lost meanwhile; then the write was acknowledged on this side alone.
fn given_up(state: &State, key: &Key, life: u64, number: u64) -> io::Result<bool> {
    let own = alive(state, key, life)?;
    if own.md(|m| m.active.contains_key(&number)) {
        return Ok(false);
    }
    if own.disk() == DiskState::Inconsistent {
        return Err(io::Error::other("no UpToDate data is reachable"));
    }
    Ok(true)
}

fn deliver(
    state: &mut State,
    key: &Key,
    life: u64,
    block: u64,
    number: u64,
) -> io::Result<Progress> {
    if given_up(state, key, life, number)? {
        return Ok(Progress::Done);
    }
    let own = alive(state, key, life)?;
    let Some(peer) = state.reachable_peer(key) else {
        return Ok(Progress::Waiting);
    };
    // What the block holds now, so that two writes to one block end alike on both sides.
    if let Some(data) = own.data.read(block) {
        peer.data.write(block, data);
    }
    for side in [own, peer] {
        side.md(|m| m.dirty.unset(block, block + 1));
    }
    Ok(Progress::Sent(number))
}

fn acknowledge(
    state: &mut State,
    key: &Key,
    life: u64,
    _block: u64,
    number: u64,
) -> io::Result<Progress> {
    if given_up(state, key, life, number)? {
        return Ok(Progress::Done);
    }
    if state.reachable_peer(key).is_none() {
        return Ok(Progress::Waiting);
    }
    alive(state, key, life)?.md(|m| m.active.remove(&number));
    Ok(Progress::Sent(number))
}

//! What runs inside a VM of the lab: a writer of numbered, checksummed blocks, and the ledger in
//! which every acknowledged one is noted outside of the VM. So "no acknowledged write was lost" is
//! checked, not assumed.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::drbd::Device;
use crate::storage::{BLOCK_BYTES, Volume};

/// The writer uses at most this many blocks of a disk, as a ring: number n lies in block
/// n modulo the ring's size.
const RING_BLOCKS: u64 = 1024;
/// Pauses between acknowledgements below this are no downtime.
const LEAST_GAP: Duration = Duration::from_secs(1);

/// A disk of a VM.
pub enum Disk {
    /// The volume itself: a VM that is not protected.
    Direct(Volume),
    /// A DRBD device.
    Replicated(Device),
}

impl Disk {
    fn blocks(&self) -> u64 {
        match self {
            Self::Direct(volume) => volume.blocks(),
            Self::Replicated(device) => device.size_blocks(),
        }
    }

    async fn read(&self, block: u64) -> io::Result<Option<Bytes>> {
        match self {
            Self::Direct(volume) => Ok(volume.read(block)),
            Self::Replicated(device) => device.read(block).await,
        }
    }

    async fn write(&self, block: u64, data: Bytes) -> io::Result<()> {
        match self {
            Self::Direct(volume) => {
                volume.write(block, data);
                Ok(())
            }
            Self::Replicated(device) => device.write(block, data).await,
        }
    }
}

/// A time without any acknowledged write of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Last acknowledgement before.
    pub from: Instant,
    /// First acknowledgement after.
    pub to: Instant,
}

/// Whether what was acknowledged is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Highest number that was acknowledged.
    pub acknowledged: u64,
    /// How many of the acknowledged numbers that the ring still must hold are there.
    pub present: u64,
    /// Acknowledged numbers that are gone, the first ten; also those that a guest missed when it
    /// booted and has written over since.
    pub missing: Vec<u64>,
    /// Highest number found.
    pub highest: u64,
}

impl Verdict {
    /// Whether nothing that was acknowledged is missing.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }
}

#[derive(Default)]
struct Account {
    acknowledged: u64,
    /// Numbers that were gone when a guest booted.
    lost: Vec<u64>,
}

#[derive(Default)]
struct Inner {
    /// By VM and disk.
    accounts: BTreeMap<(String, String), Account>,
    times: BTreeMap<String, Times>,
}

struct Times {
    first: Instant,
    last: Instant,
    gaps: Vec<Gap>,
}

/// Every acknowledged write of every VM, kept outside of all clusters.
#[derive(Clone, Default)]
pub struct Ledger {
    inner: Arc<Mutex<Inner>>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Highest acknowledged number of a disk, 0 if none; `vm` is `namespace/name`.
    pub fn last_acknowledged(&self, vm: &str, disk: &str) -> u64 {
        self.lock()
            .accounts
            .get(&(vm.to_string(), disk.to_string()))
            .map_or(0, |a| a.acknowledged)
    }

    /// Disks of a VM that have an acknowledged write.
    pub fn disks(&self, vm: &str) -> Vec<String> {
        self.lock()
            .accounts
            .keys()
            .filter(|(of, _)| of == vm)
            .map(|(_, disk)| disk.clone())
            .collect()
    }

    /// Checks bytes against what was acknowledged. `blocks` is the size of the disk.
    pub fn verify(
        &self,
        vm: &str,
        disk: &str,
        read: impl Fn(u64) -> Option<Bytes>,
        blocks: u64,
    ) -> Verdict {
        let inner = self.lock();
        let account = inner.accounts.get(&(vm.to_string(), disk.to_string()));
        let acknowledged = account.map_or(0, |a| a.acknowledged);
        let found = |block| read(block).and_then(|data| parse(&data, vm, disk));
        let (present, gone, highest) = check(acknowledged, ring(blocks), found);
        let mut missing = account.map_or_else(Vec::new, |a| a.lost.clone());
        missing.extend(gone);
        missing.truncate(10);
        Verdict {
            acknowledged,
            present,
            missing,
            highest,
        }
    }

    /// When the first and the last write of a VM were acknowledged.
    pub fn first_and_last(&self, vm: &str) -> Option<(Instant, Instant)> {
        self.lock().times.get(vm).map(|t| (t.first, t.last))
    }

    /// Times of more than a second without an acknowledged write between the first and the last.
    pub fn gaps(&self, vm: &str) -> Vec<Gap> {
        self.lock()
            .times
            .get(vm)
            .map_or_else(Vec::new, |t| t.gaps.clone())
    }

    /// Acknowledged writes that were gone when a guest booted: VM, disk, numbers.
    pub fn lost(&self) -> Vec<(String, String, Vec<u64>)> {
        let inner = self.lock();
        let lost = inner.accounts.iter().filter(|(_, a)| !a.lost.is_empty());
        lost.map(|((vm, disk), a)| (vm.clone(), disk.clone(), a.lost.clone()))
            .collect()
    }

    fn acknowledge(&self, vm: &str, disk: &str, number: u64) {
        let now = Instant::now();
        let mut inner = self.lock();
        let account = inner
            .accounts
            .entry((vm.to_string(), disk.to_string()))
            .or_default();
        account.acknowledged = account.acknowledged.max(number);
        let times = inner.times.entry(vm.to_string()).or_insert_with(|| Times {
            first: now,
            last: now,
            gaps: Vec::new(),
        });
        if now - times.last > LEAST_GAP {
            times.gaps.push(Gap {
                from: times.last,
                to: now,
            });
        }
        times.last = now;
    }

    /// A guest has read its disk: what is gone now is noted before it writes over the traces.
    fn booted(&self, vm: &str, disk: &str, numbers: &BTreeMap<u64, u64>, ring: u64) {
        let mut inner = self.lock();
        let account = inner
            .accounts
            .entry((vm.to_string(), disk.to_string()))
            .or_default();
        let (_, gone, _) = check(account.acknowledged, ring, |block| {
            numbers.get(&block).copied()
        });
        account.lost.extend(gone);
    }
}

fn ring(blocks: u64) -> u64 {
    blocks.clamp(1, RING_BLOCKS)
}

/// Present, missing and highest numbers of a ring. A block may hold a later number than the last
/// acknowledged one: that write was under way.
fn check(acknowledged: u64, ring: u64, found: impl Fn(u64) -> Option<u64>) -> (u64, Vec<u64>, u64) {
    let oldest = acknowledged.saturating_sub(ring - 1).max(1);
    let mut present = 0;
    let mut missing = Vec::new();
    for number in oldest..=acknowledged {
        match found(number % ring) {
            Some(there) if there >= number => present += 1,
            _ => missing.push(number),
        }
    }
    let highest = (0..ring).filter_map(found).max().unwrap_or(0);
    (present, missing, highest)
}

/// Header: number, then SHA-256 over number, VM and disk; the rest repeats the number.
fn print(number: u64, vm: &str, disk: &str) -> Bytes {
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    block.extend_from_slice(&number.to_be_bytes());
    block.extend_from_slice(&checksum(number, vm, disk));
    while block.len() < BLOCK_BYTES {
        block.extend_from_slice(&number.to_be_bytes());
    }
    Bytes::from(block)
}

fn parse(block: &[u8], vm: &str, disk: &str) -> Option<u64> {
    let number = u64::from_be_bytes(block.get(..8)?.try_into().ok()?);
    (block.len() == BLOCK_BYTES && block.get(8..40)? == checksum(number, vm, disk))
        .then_some(number)
}

fn checksum(number: u64, vm: &str, disk: &str) -> [u8; 32] {
    Sha256::digest(format!("{number} {vm} {disk}")).into()
}

/// Runs a VM until `stop`: boots (looks for the highest number on each disk, as a guest replays its
/// journal), then writes the next number to one disk after the other, one each `every`. An I/O error
/// is tried again. Dropping the disks closes them.
pub async fn run(
    vm: &str,
    disks: Vec<(String, Disk)>,
    every: Duration,
    ledger: Ledger,
    stop: CancellationToken,
) {
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        () = work(vm, &disks, every, &ledger) => {}
    }
}

async fn work(vm: &str, disks: &[(String, Disk)], every: Duration, ledger: &Ledger) {
    let mut next = Vec::new();
    for (name, disk) in disks {
        let numbers = scan(vm, name, disk, every).await;
        ledger.booted(vm, name, &numbers, ring(disk.blocks()));
        next.push(numbers.values().max().copied().unwrap_or(0) + 1);
    }
    let mut turn = 0;
    loop {
        if let (Some((name, disk)), Some(number)) = (disks.get(turn), next.get_mut(turn)) {
            let block = *number % ring(disk.blocks());
            if disk.write(block, print(*number, vm, name)).await.is_ok() {
                ledger.acknowledge(vm, name, *number);
                *number += 1;
            }
            turn = (turn + 1) % disks.len();
        }
        tokio::time::sleep(every).await;
    }
}

/// The numbers on a disk, by block.
async fn scan(vm: &str, name: &str, disk: &Disk, every: Duration) -> BTreeMap<u64, u64> {
    let mut numbers = BTreeMap::new();
    for block in 0..ring(disk.blocks()) {
        let data = loop {
            match disk.read(block).await {
                Ok(data) => break data,
                Err(_) => tokio::time::sleep(every).await,
            }
        };
        if let Some(number) = data.and_then(|data| parse(&data, vm, name)) {
            numbers.insert(block, number);
        }
    }
    numbers
}

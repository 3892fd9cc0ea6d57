//! Synchronisation: ten times a second the first dirty blocks go from source to target.

use std::time::Duration;

use farshore_api::drbd::DiskState;
use tokio::time::Instant;

use super::bitmap::Bitmap;
use super::metadata::{Meeting, meet};
use super::state::{Key, State, percent};
use crate::storage::BLOCK_BYTES;

const TICK: Duration = Duration::from_millis(100);

/// A running sync.
pub(crate) struct Resync {
    pub(crate) source: Key,
    /// Dirty blocks at its start.
    pub(crate) total: u64,
    pub(crate) next: Instant,
}

impl State {
    pub(crate) fn begin_sync(
        &mut self,
        id: u64,
        source: &Key,
        target: &Key,
        full: bool,
        dirty: &Bitmap,
        now: Instant,
    ) {
        let generation = self.generation();
        let (Some(from), Some(to)) = (self.resources.get(source), self.resources.get(target))
        else {
            return;
        };
        let dirty = if full {
            Bitmap::all(from.blocks)
        } else {
            dirty.clone()
        };
        let total = dirty.count();
        from.md(|m| {
            m.begin_source(generation);
            m.disk = DiskState::UpToDate;
            m.dirty = dirty.clone();
        });
        to.md(|m| {
            m.begin_target(generation);
            m.dirty = dirty;
            m.last_primary = false;
        });
        // The target may be a Primary that was cut off without good data of its own.
        let target_is_primary = to.role == farshore_api::drbd::Role::Primary;
        from.md(|m| m.last_primary = !target_is_primary);
        to.md(|m| m.last_primary = target_is_primary);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.sync = Some(Resync {
                source: source.clone(),
                total,
                next: now + TICK,
            });
        }
        if total == 0 {
            self.finish_sync(id);
        }
    }

    /// The identifiers of two connected sides changed: starts the sync that they ask for.
    pub(crate) fn sync_as_they_met(&mut self, key: &Key) {
        let Some(id) = self.resources.get(key).and_then(|r| r.connection) else {
            return;
        };
        let Some(peer) = self.connections.get(&id).map(|c| c.other(key).clone()) else {
            return;
        };
        let (Some(a), Some(b)) = (self.resources.get(key), self.resources.get(&peer)) else {
            return;
        };
        let own = a.md(|m| m.clone());
        if let Meeting::Source { full } = b.md(|theirs| meet(&own, theirs)) {
            self.begin_sync(id, key, &peer, full, &own.dirty, Instant::now());
        }
    }

    /// Moves every sync on that is due.
    pub(crate) fn tick(&mut self, now: Instant) {
        let due: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, c)| c.sync.as_ref().is_some_and(|s| now >= s.next))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let reachable = self
                .connections
                .get(&id)
                .is_some_and(|c| c.silent_since.is_none());
            let budget = (self.options.sync_bytes_per_second / 10 / BLOCK_BYTES as u64).max(1);
            if let Some(sync) = self.connections.get_mut(&id).and_then(|c| c.sync.as_mut()) {
                sync.next = now + TICK;
            }
            if reachable {
                self.copy(id, budget);
            }
        }
    }

    fn copy(&mut self, id: u64, mut budget: u64) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let Some(sync) = &connection.sync else {
            return;
        };
        let total = sync.total;
        let (source, target) = (sync.source.clone(), connection.other(&sync.source).clone());
        let (Some(from), Some(to)) = (self.resources.get(&source), self.resources.get(&target))
        else {
            return;
        };
        let before = percent(total, from.md(|m| m.dirty.count()));
        while budget > 0 {
            let Some((start, end)) = from.md(|m| m.dirty.first()) else {
                break;
            };
            let end = end.min(start + budget);
            budget -= end - start;
            let mut blocks = from.data.written(start, end);
            blocks.extend(to.data.written(start, end));
            for block in blocks {
                match from.data.read(block) {
                    Some(data) => to.data.write(block, data),
                    None => to.data.clear(block),
                }
            }
            from.md(|m| m.dirty.unset(start, end));
            to.md(|m| m.dirty.unset(start, end));
        }
        let left = from.md(|m| m.dirty.count());
        if left == 0 {
            self.finish_sync(id);
        } else if percent(total, left) != before {
            self.touch(&source.0);
            self.touch(&target.0);
        }
    }

    pub(crate) fn finish_sync(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(sync) = connection.sync.take() else {
            return;
        };
        let target = connection.other(&sync.source).clone();
        let (Some(from), Some(to)) = (
            self.resources.get(&sync.source),
            self.resources.get(&target),
        ) else {
            return;
        };
        let current = from.md(|m| {
            m.finish_source();
            m.current
        });
        to.md(|m| m.finish_target(current));
        self.touch(&sync.source.0);
        self.touch(&target.0);
    }
}

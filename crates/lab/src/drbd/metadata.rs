//! What DRBD keeps on a metadata device, and how two sides compare it when they meet.
//!
//! A generation identifier names one history of the data. A side that writes alone starts a new
//! generation and keeps the one that it shared with its peer as its bitmap identifier: the bitmap
//! counts from there. When the sides meet again, the identifiers alone tell who was ahead (DRBD
//! user's guide, "Generation Identifiers").

use std::collections::BTreeMap;

use farshore_api::drbd::DiskState;

use super::bitmap::Bitmap;

/// A generation identifier.
pub(crate) type Generation = u64;

/// What fresh metadata carries: no generation of any data.
pub(crate) const JUST_CREATED: Generation = 4;

/// Sectors of superblock and activity log before the bitmap.
const FIXED_SECTORS: u64 = 72;
/// Sectors of data that one sector of bitmap serves, per peer.
const DATA_PER_BITMAP_SECTOR: u64 = 32_768;
/// No metadata device is smaller than 1 MiB.
const LEAST_SECTORS: u64 = 2048;
const SECTORS_PER_BLOCK: u64 = 8;

/// The metadata of one replicated volume on one side.
#[derive(Clone, Debug)]
pub struct Metadata {
    pub(crate) current: Generation,
    pub(crate) bitmap: Generation,
    pub(crate) history: [Generation; 2],
    /// Inconsistent, Outdated, Consistent or UpToDate.
    pub(crate) disk: DiskState,
    /// Blocks that may differ from the peer's.
    pub(crate) dirty: Bitmap,
    /// Activity log: writes under way, by number. Survives a crash.
    pub(crate) active: BTreeMap<u64, u64>,
    /// Set while Primary; found set at attach, the Primary crashed.
    pub(crate) primary: bool,
    /// This side was Primary when its node crashed and has not met its peer since.
    pub(crate) crashed_primary: bool,
    /// Of the two sides, the one that was Primary last. Only this one may call its data UpToDate
    /// while it does not see its peer; the other does not know what it has missed.
    pub(crate) last_primary: bool,
}

impl Metadata {
    /// Fresh metadata of a device of so many blocks.
    pub(crate) fn fresh(blocks: u64) -> Self {
        Self {
            current: JUST_CREATED,
            bitmap: 0,
            history: [0; 2],
            disk: DiskState::Inconsistent,
            dirty: Bitmap::all(blocks),
            active: BTreeMap::new(),
            primary: false,
            crashed_primary: false,
            last_primary: false,
        }
    }

    /// This side goes on without its peer: a new generation, unless it did so already.
    pub(crate) fn branch(&mut self, new: Generation) {
        if self.bitmap == 0 {
            self.bitmap = self.current;
            self.current = new;
        }
    }

    fn remember(&mut self, old: Generation) {
        if old != 0 && old != JUST_CREATED {
            self.history = [old, self.history[0]];
        }
    }

    /// A sync towards the peer begins: `sync` names what the peer has from now on.
    pub(crate) fn begin_source(&mut self, sync: Generation) {
        let old = std::mem::replace(&mut self.bitmap, sync);
        self.remember(old);
    }

    /// A sync from the peer begins.
    pub(crate) fn begin_target(&mut self, sync: Generation) {
        let (bitmap, current) = (self.bitmap, self.current);
        self.remember(bitmap);
        self.remember(current);
        self.bitmap = 0;
        self.current = sync;
        self.disk = DiskState::Inconsistent;
    }

    /// The sync towards the peer is complete.
    pub(crate) fn finish_source(&mut self) {
        let old = std::mem::replace(&mut self.bitmap, 0);
        self.remember(old);
    }

    /// The sync from the peer is complete: this side has the peer's generation.
    pub(crate) fn finish_target(&mut self, source: Generation) {
        self.current = source;
        self.disk = DiskState::UpToDate;
    }

    fn past(&self) -> impl Iterator<Item = Generation> {
        [self.bitmap, self.history[0], self.history[1]]
            .into_iter()
            .filter(|g| *g != 0)
    }
}

/// What two sides find out about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// Neither side has data yet, or both have the same.
    Same,
    /// This side's data goes to the peer: the dirty blocks, or all.
    Source { full: bool },
    /// The peer's data comes to this side: the dirty blocks, or all.
    Target { full: bool },
    /// Both sides went on alone.
    SplitBrain,
    /// The two never had data in common.
    Unrelated,
}

/// Compares the identifiers, as `self` sees it.
pub(crate) fn meet(own: &Metadata, peer: &Metadata) -> Meeting {
    match (own.current == JUST_CREATED, peer.current == JUST_CREATED) {
        (true, true) => return Meeting::Same,
        (true, false) => return Meeting::Target { full: true },
        (false, true) => return Meeting::Source { full: true },
        (false, false) => {}
    }
    if own.current == peer.current {
        // The same generation, but a Primary that crashed may have written blocks that never
        // reached the peer: nobody was told that these were written, so its version may win.
        return match (own.crashed_primary, peer.crashed_primary) {
            (true, _) if !own.dirty.is_empty() => Meeting::Source { full: false },
            (_, true) if !peer.dirty.is_empty() => Meeting::Target { full: false },
            _ => Meeting::Same,
        };
    }
    if own.bitmap == peer.current {
        return Meeting::Source { full: false };
    }
    if peer.bitmap == own.current {
        return Meeting::Target { full: false };
    }
    if own.history.contains(&peer.current) {
        return Meeting::Source { full: true };
    }
    if peer.history.contains(&own.current) {
        return Meeting::Target { full: true };
    }
    if own.past().any(|g| peer.past().any(|p| p == g)) {
        return Meeting::SplitBrain;
    }
    Meeting::Unrelated
}

/// Blocks of data that a metadata device can serve for one peer; `None` if it is too small for any.
/// The rule of the DRBD manual: 72 sectors + one for each 32,768 of data, at least 1 MiB. A device
/// beyond that is silently clipped.
pub(crate) fn served_blocks(metadata_blocks: u64) -> Option<u64> {
    let sectors = metadata_blocks * SECTORS_PER_BLOCK;
    (sectors >= LEAST_SECTORS)
        .then(|| (sectors - FIXED_SECTORS) * DATA_PER_BITMAP_SECTOR / SECTORS_PER_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(current: Generation, bitmap: Generation) -> Metadata {
        Metadata {
            current,
            bitmap,
            disk: DiskState::UpToDate,
            dirty: Bitmap::default(),
            ..Metadata::fresh(8)
        }
    }

    #[test]
    fn one_mebibyte_serves_30_87_gibibytes() {
        let blocks = served_blocks(256).unwrap();
        assert_eq!(blocks * 8, 64_749_568);
        assert_eq!(served_blocks(255), None);
    }

    #[test]
    fn who_went_on_alone_is_the_source() {
        let mut a = side(10, 0);
        let b = side(10, 0);
        assert_eq!(meet(&a, &b), Meeting::Same);
        a.branch(11);
        assert_eq!(meet(&a, &b), Meeting::Source { full: false });
        assert_eq!(meet(&b, &a), Meeting::Target { full: false });
    }

    #[test]
    fn both_going_on_alone_is_split_brain_even_from_a_fresh_start() {
        let (mut a, mut b) = (side(10, 0), side(10, 0));
        a.branch(11);
        b.branch(12);
        assert_eq!(meet(&a, &b), Meeting::SplitBrain);
        let (mut a, mut b) = (Metadata::fresh(8), Metadata::fresh(8));
        a.branch(11);
        b.branch(12);
        assert_eq!(meet(&a, &b), Meeting::SplitBrain);
    }

    #[test]
    fn an_interrupted_sync_goes_on_from_the_bitmap() {
        let (mut a, mut b) = (Metadata::fresh(8), Metadata::fresh(8));
        a.branch(11);
        assert_eq!(meet(&a, &b), Meeting::Source { full: true });
        a.begin_source(12);
        b.begin_target(12);
        assert_eq!(meet(&a, &b), Meeting::Source { full: false });
        b.branch(13);
        assert_eq!(
            meet(&a, &b),
            Meeting::SplitBrain,
            "the target went on alone"
        );
    }

    #[test]
    fn a_side_two_generations_behind_gets_everything() {
        let (mut a, b) = (side(10, 0), side(10, 0));
        a.branch(11);
        a.begin_source(12);
        a.finish_source();
        assert_eq!(meet(&a, &b), Meeting::Source { full: true });
        assert_eq!(meet(&b, &a), Meeting::Target { full: true });
    }

    #[test]
    fn strangers_are_unrelated() {
        assert_eq!(meet(&side(10, 0), &side(20, 0)), Meeting::Unrelated);
    }
}

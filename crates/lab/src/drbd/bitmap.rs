//! The dirty bitmap: which 4 KiB blocks may differ from the peer's. Kept as ranges, since a fresh
//! volume is one range and a running sync eats it from the front.

use std::collections::BTreeMap;

/// A set of block numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bitmap {
    /// Start → end (exclusive); disjoint and never touching.
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl Bitmap {
    pub(crate) fn all(blocks: u64) -> Self {
        let mut bitmap = Self::default();
        bitmap.set(0, blocks);
        bitmap
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.ranges
            .range(..=block)
            .next_back()
            .is_some_and(|(_, end)| block < *end)
    }

    /// The first range, if any block is dirty.
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.ranges.first_key_value().map(|(s, e)| (*s, *e))
    }

    pub(crate) fn set(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (mut start, mut end) = (from, to);
        // Every range that touches [from, to) melts into it.
        let touching: Vec<(u64, u64)> = self
            .ranges
            .range(..=to)
            .rev()
            .take_while(|(_, e)| **e >= from)
            .map(|(s, e)| (*s, *e))
            .collect();
        for (s, e) in touching {
            self.ranges.remove(&s);
            self.count -= e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        self.count += end - start;
    }

    pub(crate) fn unset(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let hit: Vec<(u64, u64)> = self
            .ranges
            .range(..to)
            .rev()
            .take_while(|(_, e)| **e > from)
            .map(|(s, e)| (*s, *e))
            .collect();
        for (s, e) in hit {
            self.ranges.remove(&s);
            self.count -= e - s;
            if s < from {
                self.ranges.insert(s, from);
                self.count += from - s;
            }
            if to < e {
                self.ranges.insert(to, e);
                self.count += e - to;
            }
        }
    }

    pub(crate) fn union(&mut self, other: &Self) {
        for (start, end) in &other.ranges {
            self.set(*start, *end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_the_set_of_their_blocks(ops in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..64), 0..60)) {
            let mut bitmap = Bitmap::default();
            let mut model = BTreeSet::new();
            for (set, from, to) in ops {
                if set {
                    bitmap.set(from, to);
                    model.extend(from..to);
                } else {
                    bitmap.unset(from, to);
                    model.retain(|b| !(from..to).contains(b));
                }
                prop_assert_eq!(bitmap.count(), model.len() as u64);
                for block in 0..64 {
                    prop_assert_eq!(bitmap.contains(block), model.contains(&block));
                }
                prop_assert_eq!(bitmap.first().map(|(s, _)| s), model.first().copied());
            }
        }
    }
}

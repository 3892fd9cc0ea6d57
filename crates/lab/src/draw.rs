//! Random draws from a seed. Streams with different labels do not influence each other.

use std::time::Duration;

/// One stream of draws (SplitMix64).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// The stream of this seed and label.
    pub fn new(seed: u64, label: &str) -> Self {
        let mixed = label.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut draw = Self(mixed);
        draw.number();
        draw
    }

    /// 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `[low, high]`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.number() % (high.saturating_sub(low) + 1)
    }

    /// True in `percent` of all cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.number() % 100 < percent
    }

    /// One of several; the slice must not be empty.
    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let at = self.number() % (all.len() as u64).max(1);
        &all[at as usize]
    }

    /// A time in `[low, high]`, short ones as likely as long ones on a logarithmic scale.
    pub fn duration(&mut self, low: Duration, high: Duration) -> Duration {
        let low = (low.as_millis() as u64).max(1);
        let high = (high.as_millis() as u64).max(low);
        let doublings = (high / low).ilog2() as u64;
        let base = low << self.between(0, doublings);
        Duration::from_millis(self.between(base, (base * 2).min(high).max(base)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_depends_on_seed_and_label_alone() {
        let take = |seed, label: &str| Draw::new(seed, label).number();
        assert_eq!(take(1, "a"), take(1, "a"));
        assert_ne!(take(1, "a"), take(1, "b"));
        assert_ne!(take(1, "a"), take(2, "a"));
    }

    #[test]
    fn draws_keep_to_their_bounds() {
        let mut draw = Draw::new(7, "bounds");
        let (low, high) = (Duration::from_millis(300), Duration::from_secs(90));
        for _ in 0..10_000 {
            assert!((3..=5).contains(&draw.between(3, 5)));
            let drawn = draw.duration(low, high);
            assert!(drawn >= low && drawn <= high, "{drawn:?}");
        }
    }
}

//! Identifiers: uids, name suffixes and tokens from a seed and counters, so that one seed gives one history.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Letters that cannot spell words or be misread, as the Kubernetes name generator uses.
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub(crate) struct Ident {
    seed: u64,
    uids: AtomicU64,
    suffixes: AtomicU64,
    tokens: AtomicU64,
}

impl Ident {
    /// `name` keeps servers with the same seed apart.
    pub fn new(name: &str, seed: u64) -> Self {
        let mixed = name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            seed: mixed,
            uids: 0.into(),
            suffixes: 0.into(),
            tokens: 0.into(),
        }
    }

    fn draw(&self, stream: u64, counter: &AtomicU64) -> (u64, u64) {
        let n = counter.fetch_add(1, Ordering::Relaxed);
        let base = splitmix(self.seed ^ splitmix(stream));
        (splitmix(base ^ (2 * n)), splitmix(base ^ (2 * n + 1)))
    }

    /// A random-looking (version 4) UUID.
    pub fn uid(&self) -> String {
        let (a, b) = self.draw(1, &self.uids);
        let b = (b & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            b >> 48,
            b & 0xffff_ffff_ffff
        )
    }

    /// Five characters for `generateName`.
    pub fn suffix(&self) -> String {
        let (mut a, _) = self.draw(2, &self.suffixes);
        let mut out = String::with_capacity(5);
        for _ in 0..5 {
            out.push(SUFFIX[(a % SUFFIX.len() as u64) as usize] as char);
            a /= SUFFIX.len() as u64;
        }
        out
    }

    /// A bearer token. It protects a lab, not a secret: it is a function of the seed.
    pub fn token(&self) -> String {
        let mut out = String::from("lab.");
        for _ in 0..2 {
            let (a, b) = self.draw(3, &self.tokens);
            let _ = write!(out, "{a:016x}{b:016x}");
        }
        out
    }
}

fn splitmix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_names_and_another_server_gives_others() {
        let (a, b, other) = (
            Ident::new("east", 7),
            Ident::new("east", 7),
            Ident::new("west", 7),
        );
        let draw = |i: &Ident| (i.uid(), i.suffix(), i.token());
        assert_eq!(draw(&a), draw(&b));
        assert_ne!(draw(&a), draw(&other));
        assert_eq!(a.uid().len(), 36);
    }
}

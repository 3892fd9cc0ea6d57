//! Shared secrets: the one place that asks for randomness.

use std::io::Read;

use crate::Clock;

/// Bytes of a secret; as hex digits it stays within the 63 characters that DRBD takes.
const BYTES: usize = 30;

/// A new secret of 60 hex digits from the operating system. In virtual time nothing is secret and
/// everything repeats: it is derived from `label` then. An error is that the system's source of
/// randomness cannot be read.
pub fn generate(clock: &Clock, label: &str) -> std::io::Result<String> {
    let mut bytes = [0_u8; BYTES];
    if clock.is_virtual() {
        let mut state = label.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
        });
        for byte in &mut bytes {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    } else {
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    }
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn secrets_differ_in_reality_and_repeat_in_virtual_time() {
        let real = Clock::system();
        let one = generate(&real, "a").unwrap();
        assert_eq!(one.len(), 60);
        assert_ne!(one, generate(&real, "a").unwrap());
        let virtual_time = Clock::virtual_from(jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(
            generate(&virtual_time, "a").unwrap(),
            generate(&virtual_time, "a").unwrap()
        );
        assert_ne!(
            generate(&virtual_time, "a").unwrap(),
            generate(&virtual_time, "b").unwrap()
        );
    }
}

//! Makes a schedule shorter while it still breaks the same promise.

use std::path::Path;

use crate::histories::Histories;
use crate::outcome::Outcome;
use crate::schedule::Schedule;

/// Drops one thing after the other, as long as what is left still breaks `invariant` and at most
/// `tries` histories were run. Returns what is left and how it ended.
///
/// # Errors
/// `program` does not start.
pub fn shrink(
    program: &Path,
    schedule: &Schedule,
    invariant: &str,
    tries: usize,
) -> anyhow::Result<(Schedule, Option<Outcome>)> {
    let mut histories = Histories::of(program, schedule.stem.clone())?;
    let (mut best, mut ended) = (schedule.clone(), None);
    let mut left = tries;
    loop {
        let before = best.len();
        // From the end: what came last is least likely to be what the rest hangs on.
        let mut at = best.len();
        while at > 0 && left > 0 {
            at -= 1;
            left -= 1;
            let shorter = best.without(at);
            if shorter.stem != *histories.stem() {
                histories = Histories::of(program, shorter.stem.clone())?;
            }
            let outcome = histories.run(&shorter);
            if outcome.violations.iter().any(|v| v.invariant == invariant) {
                (best, ended) = (shorter, Some(outcome));
            }
        }
        if best.len() == before || left == 0 {
            return Ok((best, ended));
        }
    }
}

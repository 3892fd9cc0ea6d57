//! An agent killed at any of its API writes.

use farshore_api::drbd::Role;
use farshore_lab::guest::Ledger;

use super::support::{EAST, Pair, WEST};

/// Protects, writes, flips and flips back; the agent of `side` dies with its `at`-th write and is
/// started again. Returns how many writes that agent made.
async fn story(side: usize, at: u64) -> u64 {
    let pair = Pair::new().await;
    let ledger = Ledger::new();
    pair.start_dying(side, at);
    pair.start(1 - side);
    pair.until_ready("the pair is protected").await;
    pair.run_vm(EAST, 1, &ledger).await;
    for (epoch, from, to) in [(2, EAST, WEST), (3, WEST, EAST)] {
        pair.flip(from, to, epoch).await;
        pair.run_vm(to, 1, &ledger).await;
    }
    pair.until_ready("the pair is protected after two flips")
        .await;
    assert_eq!(pair.status(EAST).await.role, Some(Role::Primary));
    assert_eq!(pair.status(WEST).await.role, Some(Role::Secondary));
    pair.assert_whole(&ledger);
    let writes = pair.writes(side);
    pair.delete(EAST).await;
    pair.delete(WEST).await;
    pair.until_gone().await;
    writes
}

async fn dies_at_every_write(side: usize) {
    // The story without a death tells how many writes there are to die at.
    let total = story(side, u64::MAX).await;
    assert!(total > 5, "only {total} writes");
    for at in 1..=total {
        story(side, at).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_sources_agent_killed_at_any_write_goes_on_after_a_restart() {
    dies_at_every_write(EAST).await;
}

#[tokio::test(start_paused = true)]
async fn the_standbys_agent_killed_at_any_write_goes_on_after_a_restart() {
    dies_at_every_write(WEST).await;
}

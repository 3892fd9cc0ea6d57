//! Tours through the states of the simulated DRBD, each held against what DRBD 9 shows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use farshore_agent::kernel::KernelError;
use farshore_lab::storage::BLOCK_BYTES;
use tokio::time::{Instant, sleep, timeout};

use crate::pair::{EAST, Pair, RESOURCE, WEST, block, words};

/// A step of a tour.
#[derive(Clone, Copy, Debug)]
enum Do {
    Adjust(usize),
    Primary(usize),
    Force(usize),
    Secondary(usize),
    Disconnect(usize),
    Connect(usize),
    Discard(usize),
    Down(usize),
    Cut,
    Heal,
    Crash(usize),
    Boot(usize),
    /// Opens, writes a block, closes.
    Write(usize, u64),
    Wait(u64),
}

async fn carry_out(pair: &Pair, step: Do) -> String {
    let told = |result: Result<(), KernelError>| match result {
        Ok(()) => String::new(),
        Err(error) => format!(" ({error})"),
    };
    match step {
        Do::Adjust(s) => {
            let config = pair.config(s).await;
            told(pair.kernel(s).adjust(&config).await)
        }
        Do::Primary(s) => told(pair.kernel(s).primary(RESOURCE, false).await),
        Do::Force(s) => told(pair.kernel(s).primary(RESOURCE, true).await),
        Do::Secondary(s) => told(pair.kernel(s).secondary(RESOURCE).await),
        Do::Disconnect(s) => told(pair.kernel(s).disconnect(RESOURCE).await),
        Do::Connect(s) => told(pair.kernel(s).connect(RESOURCE, false).await),
        Do::Discard(s) => told(pair.kernel(s).connect(RESOURCE, true).await),
        Do::Down(s) => told(pair.kernel(s).down(RESOURCE).await),
        Do::Cut => {
            pair.world.link(false);
            String::new()
        }
        Do::Heal => {
            pair.world.link(true);
            String::new()
        }
        Do::Crash(s) => {
            pair.crash(s);
            String::new()
        }
        Do::Boot(s) => {
            pair.boot(s);
            String::new()
        }
        Do::Write(s, at) => {
            pair.open(s)
                .write(at, block(&format!("{at}")))
                .await
                .unwrap();
            String::new()
        }
        Do::Wait(seconds) => {
            sleep(Duration::from_secs(seconds)).await;
            String::new()
        }
    }
}

async fn tour(pair: &Pair, steps: &[Do]) -> String {
    let mut lines = String::new();
    for step in steps {
        let told = carry_out(pair, *step).await;
        let mut line = format!("{step:?}{told}");
        for (name, side) in [("east", EAST), ("west", WEST)] {
            let state = match pair.kernel(side).status().await {
                Ok(states) => states.first().map_or_else(|| "-".to_string(), words),
                Err(_) => "node down".into(),
            };
            line.push_str(&format!("\n    {name}: {state}"));
        }
        lines.push_str(&line);
        lines.push('\n');
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn a_fresh_pair_waits_for_force_then_syncs_from_the_primary() {
    let pair = Pair::new(100).await;
    pair.volume(EAST).write(7, block("seven"));
    pair.volume(WEST).write(8, block("stale"));
    let log = tour(
        &pair,
        &[
            Do::Adjust(EAST),
            Do::Adjust(WEST),
            Do::Primary(EAST),
            Do::Force(EAST),
            Do::Primary(WEST),
            Do::Wait(2),
            Do::Secondary(EAST),
            Do::Primary(WEST),
        ],
    )
    .await;
    insta::assert_snapshot!(log);
    assert_eq!(pair.volume(WEST).read(7), Some(block("seven")));
    assert_eq!(
        pair.volume(WEST).read(8),
        None,
        "zeros of the source win too"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cut_link_is_noticed_after_the_timeout_and_healed_by_the_bitmap() {
    let pair = Pair::synced(100).await;
    let log = tour(
        &pair,
        &[
            Do::Cut,
            Do::Wait(5),
            Do::Wait(2),
            Do::Write(EAST, 3),
            Do::Primary(WEST),
            Do::Heal,
            Do::Wait(1),
        ],
    )
    .await;
    insta::assert_snapshot!(log);
    assert!(pair.same_bytes());
}

#[tokio::test(start_paused = true)]
async fn two_sides_that_wrote_alone_are_in_split_brain_until_one_discards() {
    let pair = Pair::synced(100).await;
    let log = tour(
        &pair,
        &[
            Do::Cut,
            Do::Wait(7),
            Do::Write(EAST, 3),
            Do::Force(WEST),
            Do::Write(WEST, 4),
            Do::Heal,
            Do::Discard(WEST),
            Do::Secondary(WEST),
            Do::Discard(WEST),
            Do::Connect(EAST),
            Do::Wait(1),
        ],
    )
    .await;
    insta::assert_snapshot!(log);
    assert!(pair.same_bytes());
    assert_eq!(pair.volume(WEST).read(3), Some(block("3")));
    assert_eq!(
        pair.volume(WEST).read(4),
        None,
        "what the victim wrote is rolled back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_crashed_primary_comes_back_as_target_of_the_side_promoted_meanwhile() {
    let pair = Pair::synced(100).await;
    let log = tour(
        &pair,
        &[
            Do::Write(EAST, 1),
            Do::Crash(EAST),
            Do::Wait(7),
            Do::Force(WEST),
            Do::Write(WEST, 2),
            Do::Boot(EAST),
            Do::Adjust(EAST),
            Do::Wait(1),
        ],
    )
    .await;
    insta::assert_snapshot!(log);
    assert!(pair.same_bytes());
}

#[tokio::test(start_paused = true)]
async fn who_leaves_a_primary_in_good_order_is_outdated_and_comes_back() {
    let pair = Pair::synced(100).await;
    let log = tour(
        &pair,
        &[
            Do::Disconnect(WEST),
            Do::Write(EAST, 5),
            Do::Primary(WEST),
            Do::Connect(WEST),
            Do::Wait(1),
            Do::Down(WEST),
            Do::Down(WEST),
            Do::Adjust(WEST),
            Do::Wait(1),
        ],
    )
    .await;
    insta::assert_snapshot!(log);
    assert!(pair.same_bytes());
}

#[tokio::test(start_paused = true)]
async fn a_crashed_secondary_does_not_know_what_it_missed() {
    let pair = Pair::synced(100).await;
    let log = tour(
        &pair,
        &[
            Do::Crash(WEST),
            Do::Cut,
            Do::Boot(WEST),
            Do::Adjust(WEST),
            Do::Primary(WEST),
            Do::Wait(7),
            Do::Heal,
        ],
    )
    .await;
    insta::assert_snapshot!(log);
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_wrote_nothing_makes_way_without_split_brain() {
    let pair = Pair::synced(100).await;
    let log = tour(
        &pair,
        &[
            Do::Cut,
            Do::Wait(7),
            Do::Force(WEST),
            Do::Write(WEST, 4),
            Do::Heal,
            Do::Secondary(EAST),
            Do::Wait(1),
        ],
    )
    .await;
    insta::assert_snapshot!(log);
    assert!(pair.same_bytes());
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_sync_goes_on_where_it_was() {
    let pair = Pair::new(200).await;
    let log = tour(
        &pair,
        &[
            Do::Adjust(EAST),
            Do::Adjust(WEST),
            Do::Force(EAST),
            Do::Wait(1),
            Do::Cut,
            Do::Wait(7),
            Do::Write(EAST, 0),
        ],
    )
    .await;
    insta::assert_snapshot!(log);
    let left = pair.state(WEST).await.out_of_sync_bytes as u64 / BLOCK_BYTES as u64;
    assert!(
        (90..=110).contains(&left),
        "ten blocks a tick, about one second: {left} left"
    );
    let began = Instant::now();
    pair.world.link(true);
    pair.quiet().await;
    assert!(
        began.elapsed() < Duration::from_millis(1400),
        "only the rest: {:?}",
        began.elapsed()
    );
    assert!(pair.same_bytes());
}

#[tokio::test(start_paused = true)]
async fn an_open_device_holds_its_primary() {
    let pair = Pair::synced(10).await;
    let device = pair.open(EAST);
    assert!(pair.state(EAST).await.open);
    for refused in [
        pair.kernel(EAST).secondary(RESOURCE).await,
        pair.kernel(EAST).down(RESOURCE).await,
    ] {
        assert_eq!(
            refused,
            Err(KernelError::HeldOpen {
                resource: RESOURCE.into(),
                by: "qemu".into()
            })
        );
    }
    drop(device);
    pair.kernel(EAST).secondary(RESOURCE).await.unwrap();
    assert!(
        pair.world
            .open("east", "n1", crate::pair::MINOR, "qemu")
            .is_err(),
        "a Secondary cannot be opened"
    );
}

#[tokio::test(start_paused = true)]
async fn a_write_is_acknowledged_only_when_the_peer_has_it_or_is_gone() {
    let pair = Pair::synced(10).await;
    let device = pair.open(EAST);
    device.write(1, block("one")).await.unwrap();
    assert_eq!(pair.volume(WEST).read(1), Some(block("one")));

    pair.world.link(false);
    let began = Instant::now();
    device.write(2, block("two")).await.unwrap();
    assert_eq!(
        began.elapsed().as_secs(),
        6,
        "it waited for the peer to count as gone"
    );
    assert_eq!(pair.volume(WEST).read(2), None);
    assert_eq!(pair.state(EAST).await.out_of_sync_bytes, BLOCK_BYTES as i64);

    pair.world.link(true);
    pair.quiet().await;
    assert_eq!(pair.volume(WEST).read(2), Some(block("two")));

    pair.crash(EAST);
    assert!(device.write(3, block("three")).await.is_err());
    assert!(device.read(1).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_writer_was_killed_is_not_half_done() {
    let pair = Pair::synced(10).await;
    let device = pair.open(EAST);
    let given_up = timeout(Duration::from_micros(10), device.write(4, block("four"))).await;
    assert!(given_up.is_err());
    drop(device);
    pair.kernel(EAST).secondary(RESOURCE).await.unwrap();
    assert!(pair.same_bytes());
    assert_eq!(pair.volume(WEST).read(4), Some(block("four")));
}

#[tokio::test(start_paused = true)]
async fn a_primary_without_good_data_reads_from_its_peer() {
    let pair = Pair::new(100).await;
    pair.volume(EAST).write(90, block("ninety"));
    pair.adjust(EAST).await;
    pair.adjust(WEST).await;
    pair.kernel(EAST).primary(RESOURCE, true).await.unwrap();
    pair.kernel(EAST).secondary(RESOURCE).await.unwrap();
    pair.kernel(WEST).primary(RESOURCE, false).await.unwrap();
    let device = pair.open(WEST);
    assert_eq!(device.read(90).await.unwrap(), Some(block("ninety")));
    device.write(95, block("new")).await.unwrap();
    pair.quiet().await;
    assert!(pair.same_bytes());
    assert_eq!(pair.volume(EAST).read(95), Some(block("new")));
}

#[tokio::test(start_paused = true)]
async fn changed_waits_for_a_change_and_sees_each_once() {
    let pair = Pair::new(10).await;
    pair.kernel(EAST).changed().await;
    assert!(
        timeout(Duration::from_secs(60), pair.kernel(EAST).changed())
            .await
            .is_err()
    );
    pair.adjust(EAST).await;
    pair.kernel(EAST).changed().await;
    pair.adjust(EAST).await;
    assert!(
        timeout(Duration::from_secs(60), pair.kernel(EAST).changed())
            .await
            .is_err(),
        "nothing changed"
    );
    pair.adjust(WEST).await;
    pair.kernel(EAST).changed().await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_secret_ends_in_stand_alone_without_split_brain() {
    let pair = Pair::new(10).await;
    pair.adjust(EAST).await;
    let mut config = pair.config(WEST).await;
    config.shared_secret = "other".into();
    pair.kernel(WEST).adjust(&config).await.unwrap();
    insta::assert_snapshot!(words(&pair.state(EAST).await), @"Secondary Inconsistent StandAlone Off DUnknown");
    pair.adjust(WEST).await;
    pair.adjust(EAST).await;
    insta::assert_snapshot!(words(&pair.state(EAST).await), @"Secondary Inconsistent Connected Established Inconsistent");
}

#[tokio::test(start_paused = true)]
async fn metadata_stays_on_its_volume_and_too_little_of_it_clips_the_device() {
    let pair = Pair::new(10).await;
    let config = pair.config(EAST).await;
    assert!(pair.kernel(EAST).has_metadata(&config).await.unwrap());
    pair.storage.remove("east", "meta");
    pair.storage.create("east", "meta", 1 << 20);
    pair.storage.attach("east", "n1", "anchor", "meta");
    assert!(!pair.kernel(EAST).has_metadata(&config).await.unwrap());
    let refused = pair.kernel(EAST).adjust(&config).await.unwrap_err();
    assert!(refused.to_string().contains("(119)"), "{refused}");

    pair.storage.remove("east", "data");
    pair.storage.create("east", "data", 40 << 30);
    pair.storage.attach("east", "n1", "anchor", "data");
    pair.kernel(EAST).create_metadata(&config).await.unwrap();
    pair.adjust(EAST).await;
    assert_eq!(
        pair.state(EAST).await.size_bytes,
        64_749_568 * 512,
        "1 MiB of metadata serves 30.87 GiB"
    );
}

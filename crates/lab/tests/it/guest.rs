//! The writer in a VM and the verdict about its writes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use farshore_lab::guest::{self, Disk, Ledger};
use farshore_lab::storage::{BLOCK_BYTES, Volume};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::pair::{EAST, Pair, RESOURCE, WEST};

const EVERY: Duration = Duration::from_millis(100);

/// Runs a VM for a while.
async fn run_for(seconds: u64, disks: Vec<(String, Disk)>, ledger: &Ledger) {
    let stop = CancellationToken::new();
    let vm = tokio::spawn({
        let (ledger, stop) = (ledger.clone(), stop.clone());
        async move { guest::run("shop/db01", disks, EVERY, ledger, stop).await }
    });
    sleep(Duration::from_secs(seconds)).await;
    stop.cancel();
    vm.await.unwrap();
}

fn direct(volume: &Volume) -> Vec<(String, Disk)> {
    vec![("root".into(), Disk::Direct(volume.clone()))]
}

fn verdict(ledger: &Ledger, volume: &Volume) -> guest::Verdict {
    ledger.verify("shop/db01", "root", |b| volume.read(b), volume.blocks())
}

#[tokio::test(start_paused = true)]
async fn a_guest_continues_its_numbers_and_wraps_around_its_ring() {
    let (ledger, volume) = (Ledger::new(), Volume::new(30 * BLOCK_BYTES as u64));
    run_for(2, direct(&volume), &ledger).await;
    sleep(Duration::from_secs(9)).await;
    run_for(2, direct(&volume), &ledger).await;
    let verdict = verdict(&ledger, &volume);
    assert_eq!(verdict.acknowledged, 40);
    assert_eq!((verdict.present, verdict.highest), (30, 40));
    assert!(verdict.is_whole());
    let gaps = ledger.gaps("shop/db01");
    assert_eq!(gaps.len(), 1);
    assert!((9..=10).contains(&(gaps[0].to - gaps[0].from).as_secs()));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_write_is_missing() {
    let (ledger, volume) = (Ledger::new(), Volume::new(100 * BLOCK_BYTES as u64));
    run_for(2, direct(&volume), &ledger).await;
    volume.clear(7);
    assert_eq!(verdict(&ledger, &volume).missing, [7]);
}

#[tokio::test(start_paused = true)]
async fn a_loss_that_the_guest_has_written_over_is_still_missing() {
    let (ledger, volume) = (Ledger::new(), Volume::new(100 * BLOCK_BYTES as u64));
    run_for(2, direct(&volume), &ledger).await;
    let acknowledged = ledger.last_acknowledged("shop/db01", "root");
    volume.clear(acknowledged);
    volume.clear(acknowledged - 1);
    run_for(2, direct(&volume), &ledger).await;
    let verdict = verdict(&ledger, &volume);
    assert_eq!(verdict.missing, [acknowledged - 1, acknowledged]);
    assert!(verdict.highest > acknowledged);
}

#[tokio::test(start_paused = true)]
async fn several_disks_take_turns() {
    let (ledger, a, b) = (Ledger::new(), Volume::new(1 << 20), Volume::new(1 << 20));
    let disks = vec![
        ("root".into(), Disk::Direct(a.clone())),
        ("data".into(), Disk::Direct(b.clone())),
    ];
    run_for(2, disks, &ledger).await;
    assert_eq!(ledger.disks("shop/db01"), ["data", "root"]);
    assert_eq!(ledger.last_acknowledged("shop/db01", "root"), 10);
    assert_eq!(ledger.last_acknowledged("shop/db01", "data"), 10);
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_moves_with_the_primary_loses_nothing() {
    let (ledger, pair) = (Ledger::new(), Pair::synced(200).await);
    for side in [EAST, WEST, EAST] {
        pair.kernel(1 - side).secondary(RESOURCE).await.unwrap();
        pair.kernel(side).primary(RESOURCE, false).await.unwrap();
        run_for(
            3,
            vec![("root".into(), Disk::Replicated(pair.open(side)))],
            &ledger,
        )
        .await;
    }
    for side in [EAST, WEST] {
        let verdict = verdict(&ledger, &pair.volume(side));
        assert!(
            verdict.is_whole() && verdict.acknowledged > 80,
            "{verdict:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_forced_move_to_a_side_that_was_cut_off_is_found_out() {
    let (ledger, pair) = (Ledger::new(), Pair::synced(200).await);
    run_for(
        3,
        vec![("root".into(), Disk::Replicated(pair.open(EAST)))],
        &ledger,
    )
    .await;
    pair.world.link(false);
    sleep(Duration::from_secs(7)).await;
    run_for(
        3,
        vec![("root".into(), Disk::Replicated(pair.open(EAST)))],
        &ledger,
    )
    .await;
    pair.kernel(WEST).primary(RESOURCE, true).await.unwrap();
    run_for(
        3,
        vec![("root".into(), Disk::Replicated(pair.open(WEST)))],
        &ledger,
    )
    .await;
    assert!(!verdict(&ledger, &pair.volume(WEST)).is_whole());
}

//! Random histories: writes, cuts, crashes, role changes and disconnects in any order.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use farshore_api::drbd::{ConnectionState, DiskState, Role};
use farshore_core::drbd::model::ResourceState;
use farshore_lab::drbd::Device;
use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::pair::{EAST, Pair, RESOURCE, WEST, block};

const BLOCKS: u64 = 24;

#[derive(Clone, Debug)]
enum Op {
    Write(u64),
    /// A write that is not awaited.
    Send(u64),
    Cut,
    Heal,
    Crash(usize),
    Boot(usize),
    Disconnect(usize),
    Connect(usize),
    Down(usize),
    Adjust(usize),
    /// Closes the device and hands the Primary role to a side, without force.
    Move(usize),
    Force(usize),
    Wait(u64),
}

fn ops(force: bool) -> impl Strategy<Value = Vec<Op>> {
    let side = 0usize..2;
    let calm = prop_oneof![
        6 => (0..BLOCKS).prop_map(Op::Write),
        6 => (0..BLOCKS).prop_map(Op::Send),
        2 => Just(Op::Cut),
        3 => Just(Op::Heal),
        1 => side.clone().prop_map(Op::Crash),
        2 => side.clone().prop_map(Op::Boot),
        1 => side.clone().prop_map(Op::Disconnect),
        2 => side.clone().prop_map(Op::Connect),
        1 => side.clone().prop_map(Op::Down),
        2 => side.clone().prop_map(Op::Adjust),
        3 => side.clone().prop_map(Op::Move),
        4 => (1u64..9000).prop_map(Op::Wait),
    ];
    let rough = side.prop_map(Op::Force);
    let op = if force {
        prop_oneof![15 => calm, 1 => rough].boxed()
    } else {
        calm.boxed()
    };
    prop::collection::vec(op, 1..60)
}

/// One VM that follows the Primary role.
struct Story {
    pair: Pair,
    device: Option<(usize, Device)>,
    next: u64,
    /// Highest acknowledged number of each block.
    acknowledged: BTreeMap<u64, u64>,
    sent: JoinSet<(u64, u64, bool)>,
}

impl Story {
    async fn new() -> Self {
        Self {
            pair: Pair::synced(BLOCKS).await,
            device: None,
            next: 1,
            acknowledged: BTreeMap::new(),
            sent: JoinSet::new(),
        }
    }

    fn open(&mut self) {
        if self.device.is_none() {
            for (side, cluster) in [(EAST, "east"), (WEST, "west")] {
                if let Ok(device) = self
                    .pair
                    .world
                    .open(cluster, "n1", crate::pair::MINOR, "vm")
                {
                    self.device = Some((side, device));
                    return;
                }
            }
        }
    }

    fn collect(&mut self) {
        while let Some(done) = self.sent.try_join_next() {
            if let Ok((at, number, true)) = done {
                let highest = self.acknowledged.entry(at).or_default();
                *highest = (*highest).max(number);
            }
        }
    }

    async fn step(&mut self, op: &Op) {
        let kernel = |side: usize| self.pair.kernel(side);
        match op {
            Op::Write(at) | Op::Send(at) => {
                self.open();
                let number = self.next;
                self.next += 1;
                if let Some((_, device)) = &self.device {
                    if matches!(op, Op::Write(_)) {
                        if device
                            .write(*at, block(&format!("{number:08}")))
                            .await
                            .is_ok()
                        {
                            let highest = self.acknowledged.entry(*at).or_default();
                            *highest = (*highest).max(number);
                        }
                    } else {
                        // A second handle, so that the write outlives this step.
                        let side = self.device.as_ref().map_or(EAST, |(side, _)| *side);
                        let cluster = ["east", "west"][side];
                        if let Ok(device) =
                            self.pair
                                .world
                                .open(cluster, "n1", crate::pair::MINOR, "vm")
                        {
                            let at = *at;
                            self.sent.spawn(async move {
                                let done = device.write(at, block(&format!("{number:08}"))).await;
                                (at, number, done.is_ok())
                            });
                            tokio::task::yield_now().await;
                        }
                    }
                }
            }
            Op::Cut => self.pair.world.link(false),
            Op::Heal => self.pair.world.link(true),
            Op::Crash(side) => {
                self.pair.crash(*side);
                if self.device.as_ref().is_some_and(|(on, _)| on == side) {
                    self.device = None;
                }
            }
            Op::Boot(side) => {
                self.pair.boot(*side);
                self.adjust(*side).await;
            }
            Op::Disconnect(side) => drop(kernel(*side).disconnect(RESOURCE).await),
            Op::Connect(side) => drop(kernel(*side).connect(RESOURCE, false).await),
            Op::Down(side) => drop(kernel(*side).down(RESOURCE).await),
            Op::Adjust(side) => self.adjust(*side).await,
            Op::Move(side) => {
                self.device = None;
                while self
                    .sent
                    .join_next()
                    .await
                    .map(|done| self.note(done))
                    .is_some()
                {}
                let _ = self.pair.kernel(1 - *side).secondary(RESOURCE).await;
                let _ = self.pair.kernel(*side).primary(RESOURCE, false).await;
            }
            Op::Force(side) => drop(kernel(*side).primary(RESOURCE, true).await),
            Op::Wait(ms) => sleep(Duration::from_millis(*ms)).await,
        }
        self.collect();
    }

    fn note(&mut self, done: Result<(u64, u64, bool), tokio::task::JoinError>) {
        if let Ok((at, number, true)) = done {
            let highest = self.acknowledged.entry(at).or_default();
            *highest = (*highest).max(number);
        }
    }

    async fn adjust(&self, side: usize) {
        let config = self.pair.config_if_up(side).await;
        if let Some(config) = config {
            let _ = self.pair.kernel(side).adjust(&config).await;
        }
    }

    /// Acknowledged blocks that a side's volume does not hold.
    fn missing(&self, side: usize) -> Vec<(u64, u64)> {
        let volume = self.pair.volume(side);
        self.acknowledged
            .iter()
            .filter(|(at, number)| {
                let there = volume.read(**at).map_or(0, |data| {
                    std::str::from_utf8(&data[..8])
                        .unwrap()
                        .parse::<u64>()
                        .unwrap()
                });
                there < **number
            })
            .map(|(at, number)| (*at, *number))
            .collect()
    }

    /// Until the timeout a side believes in a connection that was cut, or in a peer that died,
    /// while that peer may have left it on purpose and written alone before. Its disk state is
    /// then the last that was agreed on; DRBD knows no better.
    async fn believes_in_a_lost_peer(&self, side: usize, state: &ResourceState) -> bool {
        if state.connection_state != ConnectionState::Connected {
            return false;
        }
        let there = self.pair.kernel(1 - side).status().await;
        let answers = there.is_ok_and(|states| {
            states
                .iter()
                .any(|s| s.connection_state == ConnectionState::Connected)
        });
        !(answers && self.pair.world.link_is_up())
    }

    async fn never_two_connected_primaries(&self) -> Result<(), TestCaseError> {
        let mut primaries = 0;
        for side in [EAST, WEST] {
            if let Ok(states) = self.pair.kernel(side).status().await {
                for state in states {
                    if state.role == Role::Primary
                        && state.connection_state == ConnectionState::Connected
                    {
                        primaries += 1;
                        prop_assert_ne!(state.peer_role, Role::Primary);
                    }
                }
            }
        }
        prop_assert!(primaries <= 1);
        Ok(())
    }

    /// Everything repaired: links, nodes, roles; split brain resolved in favour of east.
    async fn repair(&mut self) {
        self.device = None;
        self.pair.world.link(true);
        for side in [EAST, WEST] {
            self.pair.boot(side);
        }
        while let Some(done) = self.sent.join_next().await {
            self.note(done);
        }
        for side in [EAST, WEST] {
            self.adjust(side).await;
            self.pair.kernel(side).secondary(RESOURCE).await.unwrap();
        }
        for side in [WEST, EAST] {
            let split = self.pair.state(side).await.split_brain;
            self.pair
                .kernel(side)
                .connect(RESOURCE, split && side == WEST)
                .await
                .unwrap();
        }
        self.pair.quiet().await;
    }
}

fn rehearse<F: Future<Output = Result<(), TestCaseError>>>(test: F) -> Result<(), TestCaseError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(test)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_force_no_acknowledged_write_is_lost_on_an_up_to_date_disk(ops in ops(false)) {
        rehearse(async {
            let mut story = Story::new().await;
            for op in &ops {
                story.step(op).await;
                story.never_two_connected_primaries().await?;
                for side in [EAST, WEST] {
                    let Ok(states) = story.pair.kernel(side).status().await else { continue };
                    for state in states.iter().filter(|s| s.disk_state == DiskState::UpToDate) {
                        if story.believes_in_a_lost_peer(side, state).await {
                            continue;
                        }
                        let missing = story.missing(side);
                        prop_assert!(missing.is_empty(), "side {side} lacks {missing:?} at {op:?}: {state:?}");
                        prop_assert!(!state.split_brain, "split brain without force at {op:?}");
                    }
                }
            }
            story.repair().await;
            prop_assert!(story.pair.same_bytes());
            for side in [EAST, WEST] {
                prop_assert_eq!(story.missing(side), vec![]);
                prop_assert_eq!(story.pair.state(side).await.disk_state, DiskState::UpToDate);
                prop_assert_eq!(story.pair.state(side).await.out_of_sync_bytes, 0);
            }
            Ok(())
        })?;
    }

    #[test]
    fn with_force_both_sides_still_end_alike(ops in ops(true)) {
        rehearse(async {
            let mut story = Story::new().await;
            for op in &ops {
                story.step(op).await;
                story.never_two_connected_primaries().await?;
            }
            story.repair().await;
            prop_assert!(story.pair.same_bytes());
            for side in [EAST, WEST] {
                prop_assert_eq!(story.pair.state(side).await.disk_state, DiskState::UpToDate);
            }
            Ok(())
        })?;
    }
}

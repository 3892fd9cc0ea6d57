//! What must never happen, over all orders in which managers, agents, VMs and links can move, with
//! the manager killed between any two writes and deciding from what it saw earlier.

use farshore_api::drbd::Role;
use farshore_api::protection_request::{ProtectionPhase, SyncMode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::world::{EAST, WEST, World, agrees, observed, stop_both};
use crate::protection::{Decision, Step, decide};
use crate::{Seen, vm};

#[derive(Clone, Debug)]
enum Move {
    /// Decide on what is seen now, with one cluster dark if so; act later.
    Decide(Option<bool>),
    /// Carry out at most this many writes of the last decision.
    Act(usize),
    Agent(bool),
    Kubevirt(bool),
    Link(bool),
    /// Somebody deletes the DRBDResource of a side; its agent takes DRBD down when the VM has stopped.
    Lose(bool),
    /// A failover or its rollback: only while both VMs are stopped.
    Flip,
    /// A group controller starts or stops the VM on a side: starts only on a Primary that is the
    /// source.
    Stop,
    Start,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => prop::option::weighted(0.15, any::<bool>()).prop_map(Move::Decide),
        4 => (0..6_usize).prop_map(Move::Act),
        4 => any::<bool>().prop_map(Move::Agent),
        2 => any::<bool>().prop_map(Move::Kubevirt),
        1 => any::<bool>().prop_map(Move::Link),
        1 => any::<bool>().prop_map(Move::Lose),
        1 => Just(Move::Flip),
        1 => Just(Move::Stop),
        1 => Just(Move::Start),
    ];
    prop::collection::vec(one, 0..160)
}

fn name(east: bool) -> &'static str {
    if east { EAST } else { WEST }
}

fn other(cluster: &str) -> &'static str {
    if cluster == EAST { WEST } else { EAST }
}

/// The rule of the role flip, checked on the decision and the world that it was made from.
fn asks_only_after_giving_way(world: &World, decision: &Decision) {
    for step in &decision.steps {
        let Step::PatchResource { cluster, patch } = step else {
            continue;
        };
        if patch.pointer("/spec/role").and_then(|r| r.as_str()) != Some("Primary") {
            continue;
        }
        let epoch = patch["spec"]["roleEpoch"]
            .as_i64()
            .expect("a new role has a new epoch");
        let Some(peer) = world.resource(other(cluster)) else {
            assert!(!world.runs(other(cluster)), "gone, and its VM runs");
            continue;
        };
        let status = peer.status.as_ref().expect("the peer has reported");
        assert_eq!(
            (peer.spec.role, peer.spec.role_epoch),
            (Role::Secondary, epoch)
        );
        assert_eq!(
            (status.role, status.role_epoch),
            (Some(Role::Secondary), Some(epoch))
        );
    }
}

fn check(world: &World) {
    if let Some(status) = &world.seen.request.status {
        agrees(status);
    }
    let primaries = [EAST, WEST]
        .into_iter()
        .filter(|c| world.role(c) == Some(Role::Primary))
        .count();
    assert!(primaries <= 1, "two Primaries");
    assert!(!(world.runs(EAST) && world.runs(WEST)), "the VM runs twice");
    for cluster in [EAST, WEST] {
        let side = &world.seen.sides[cluster];
        let beside = side
            .vm
            .present()
            .is_some_and(|vm| !vm.to_string().contains("-drbd\""));
        let held = world.resource(cluster).is_some_and(|r| r.status.is_some());
        assert!(
            !(world.runs(cluster) && beside && held),
            "the VM writes beside DRBD on {cluster}"
        );
    }
}

fn play(world: &mut World, moves: Vec<Move>) {
    let mut pending: Option<Decision> = None;
    for step in moves {
        match step {
            Move::Decide(dark) => {
                let dark: Vec<&str> = dark.into_iter().map(name).collect();
                let decision = decide(&world.look(&dark), world.now);
                asks_only_after_giving_way(world, &decision);
                pending = Some(decision);
            }
            Move::Act(writes) => {
                if let Some(decision) = pending.take() {
                    world.act(&decision, writes);
                }
            }
            Move::Agent(east) => world.agent(name(east)),
            Move::Kubevirt(east) => world.kubevirt(name(east)),
            Move::Link(up) => world.link = up,
            Move::Lose(east) => {
                let now = world.now;
                if let Seen::Present(live) = &mut world.side(name(east)).resource {
                    live.metadata.deletion_timestamp.get_or_insert(Time(now));
                }
            }
            Move::Flip => {
                let settled = [
                    ProtectionPhase::Protected,
                    ProtectionPhase::Degraded,
                    ProtectionPhase::FailingOver,
                ];
                if world.phase().is_some_and(|p| settled.contains(&p)) {
                    stop_both(world);
                    let now = world.seen.request.spec.source_cluster.clone();
                    world.seen.request.spec.source_cluster = other(&now).into();
                }
            }
            Move::Stop => {
                if world.phase() == Some(ProtectionPhase::Protected) {
                    stop_both(world);
                }
            }
            Move::Start => {
                let source = world.seen.request.spec.source_cluster.clone();
                let settled = world.phase() == Some(ProtectionPhase::Protected);
                if settled
                    && world.role(&source) == Some(Role::Primary)
                    && let Seen::Present(machine) = &mut world.side(&source).vm
                {
                    vm::resume(machine);
                }
            }
        }
        check(world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn never_two_primaries_and_never_a_write_beside_drbd(moves in moves(), online in any::<bool>(), head_start in any::<bool>()) {
        let mut seen = observed();
        seen.request.spec.sync_mode = if online { SyncMode::Online } else { SyncMode::Offline };
        let mut world = World::new(seen);
        if head_start {
            world.settle();
        }
        play(&mut world, moves);
        world.link = true;
        world.settle();
        // A source that was lost is never made anew by itself; it is told, and the copy can take over.
        let source = world.seen.request.spec.source_cluster.clone();
        let leaves = world.resource(&source).is_some_and(|r| r.metadata.deletion_timestamp.is_some());
        if leaves {
            prop_assert_eq!(world.says("Protected").map(|s| s.1), Some("ResourceBeingDeleted".to_string()));
            stop_both(&mut world);
            world.settle();
        }
        if world.resource(&source).is_none() {
            prop_assert_eq!(world.phase(), Some(ProtectionPhase::Degraded));
            prop_assert_eq!(world.says("Protected").map(|s| s.1), Some("ResourceMissing".to_string()));
            stop_both(&mut world);
            world.seen.request.spec.source_cluster = other(&source).into();
            world.settle();
        }
        if [EAST, WEST].iter().all(|c| world.resource(c).is_none()) {
            return Ok(());
        }
        prop_assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
        prop_assert!(!world.reconcile(), "a settled world is written");
    }

    #[test]
    fn unprotecting_ends_wherever_it_begins(moves in moves(), online in any::<bool>()) {
        let mut seen = observed();
        seen.request.spec.sync_mode = if online { SyncMode::Online } else { SyncMode::Offline };
        let mut world = World::new(seen);
        play(&mut world, moves);
        world.link = true;
        world.seen.request.metadata.deletion_timestamp =
            Some(Time(world.now));
        world.settle();
        prop_assert!(world.gone || !crate::protection::has_finalizer(&world.seen.request));
        for cluster in [EAST, WEST] {
            prop_assert!(world.resource(cluster).is_none());
            let vm = world.seen.sides[cluster].vm.present();
            prop_assert!(vm.is_none_or(crate::protection::disks::is_restored));
        }
        check(&world);
    }
}

#[test]
fn a_kill_after_every_write_of_a_protection_converges() {
    for online in [false, true] {
        for writes_per_life in 1..4 {
            let mut seen = observed();
            seen.request.spec.sync_mode = if online {
                SyncMode::Online
            } else {
                SyncMode::Offline
            };
            let mut world = World::new(seen);
            for _ in 0..120 {
                let decision = decide(&world.seen, world.now);
                world.act(&decision, writes_per_life);
                for cluster in [EAST, WEST] {
                    world.agent(cluster);
                    world.kubevirt(cluster);
                    check(&world);
                }
            }
            assert_eq!(
                world.phase(),
                Some(ProtectionPhase::Protected),
                "{writes_per_life} writes"
            );
            assert!(world.runs(EAST));
        }
    }
}

//! What must hold in every world, not only in those that somebody thought of.

use std::time::Duration;

use farshore_api::drbd::{ConnectionState, DiskState, Role};
use farshore_api::drbd_resource::DRBDResourceStatus;
use farshore_api::failover_request::FailoverState::{self, *};
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_core::Seen;
use farshore_core::failover::lock::{Standing, standing};
use farshore_core::failover::{Decision, ROLLBACK_LIMIT, Step, decide};
use proptest::prelude::*;
use serde_json::json;

use super::world::{UID, World, at};

/// What one side of a random world looks like.
#[derive(Clone, Debug)]
struct RandomSide {
    mirror: u8,
    desired: bool,
    current: u8,
    lag: bool,
    resources: u8,
    roles: [u8; 2],
    connected: bool,
    up_to_date: bool,
}

fn random_side() -> impl Strategy<Value = RandomSide> {
    (
        0..6u8,
        any::<bool>(),
        0..5u8,
        prop::bool::weighted(0.2),
        0..8u8,
        [0..3u8, 0..3u8],
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
    )
        .prop_map(
            |(mirror, desired, current, lag, resources, roles, connected, up_to_date)| RandomSide {
                mirror,
                desired,
                current,
                lag,
                resources,
                roles,
                connected,
                up_to_date,
            },
        )
}

fn apply_side(side: &mut farshore_core::failover::Side, random: &RandomSide) {
    let states = [
        Some(CurrentState::Running),
        Some(CurrentState::Stopped),
        Some(CurrentState::Mixed),
        Some(CurrentState::Unknown),
        None,
    ];
    let mirror = World::mirror(side);
    mirror.spec.desired_state = if random.desired {
        DesiredState::Running
    } else {
        DesiredState::Stopped
    };
    mirror.metadata.generation = Some(4);
    let status = mirror.status.as_mut().unwrap();
    status.current_state = states[usize::from(random.current)];
    status.observed_generation = Some(if random.lag { 3 } else { 4 });
    status.vms.clear();
    let roles = [Role::Primary, Role::Secondary, Role::Unknown];
    for (resource, role) in World::resources(side).values_mut().zip(random.roles) {
        let status = resource.status.as_mut().unwrap();
        status.role = Some(roles[usize::from(role)]);
        if !random.connected {
            status.connection_state = Some(ConnectionState::Connecting);
        }
        if !random.up_to_date {
            status.disk_state = Some(DiskState::Inconsistent);
        }
    }
    match random.mirror {
        0 => side.mirror = Seen::Unknown("silent".into()),
        1 => side.mirror = Seen::Absent,
        _ => {}
    }
    match random.resources {
        0 => side.resources = Seen::Unknown("silent".into()),
        1 => {
            World::resources(side).pop_first();
        }
        _ => {}
    }
}

fn random_world() -> impl Strategy<Value = World> {
    let states = prop::sample::select(vec![
        Pending,
        Validating,
        RunningPreHooks,
        StoppingOnSource,
        RemovingTaints,
        PromotingTarget,
        StartingOnTarget,
        RunningPostHooks,
        RollingBack,
        Blocked,
        Completed,
        Failed,
    ]);
    let flags = prop::array::uniform8(prop::bool::weighted(0.2));
    let roles = (any::<bool>(), any::<bool>(), any::<bool>());
    (states, random_side(), random_side(), roles, 0..12u8, flags, 0..5u8, prop_oneof![0..60i64, 0..700i64], 0..4u8, 0..5u8).prop_map(
        |(state, source, target, (first, second, began), lock, flags, neighbour, now, job, node)| {
            let flipped = [first, second];
            let mut world = World::in_state(state);
            apply_side(&mut world.seen.source, &source);
            apply_side(&mut world.seen.target, &target);
            for (member, flipped) in world.seen.members.iter_mut().zip(flipped) {
                if flipped {
                    member.spec.source_cluster = "west".into();
                }
            }
            let [force, queue, abort, deleted, stopped_group, no_group, no_standby, no_member] = flags;
            world.seen.request.spec.force = force;
            world.seen.request.spec.queue = queue;
            world.seen.request.spec.abort = abort;
            if deleted {
                world.seen.request.metadata.deletion_timestamp = Some(super::world::time(at(0)));
            }
            if stopped_group {
                world.seen.group.as_mut().unwrap().spec.desired_state = DesiredState::Stopped;
            }
            world.hooks(json!({
                "preFailover": [{"name": "a", "namespace": "ops", "jobTemplate": {}}],
                "postFailover": [{"name": "b", "namespace": "ops", "jobTemplate": {}}],
            }));
            for name in ["shop-1-decb7c42-pre-0", "shop-1-decb7c42-post-0"] {
                let job = match job {
                    0 => Seen::Unknown("silent".into()),
                    1 => Seen::Absent,
                    2 => Seen::Present(serde_json::from_value(json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}})).unwrap()),
                    _ => Seen::Present(serde_json::from_value(json!({})).unwrap()),
                };
                world.seen.jobs.insert(name.into(), job);
            }
            if began {
                world.flipping();
            }
            if no_group {
                world.seen.group = None;
            }
            if no_standby {
                world.seen.standby = Seen::Unknown("silent".into());
            }
            if no_member {
                world.seen.members.pop();
            }
            match node {
                0 => drop(world.seen.nodes.insert("west-1".into(), Seen::Unknown("silent".into()))),
                1 | 2 => world.taint(&["drbd.linbit.com/lost-quorum"]),
                _ => {}
            }
            match neighbour {
                0 => world.seen.neighbours = Seen::Unknown("silent".into()),
                1 => world.neighbour("billing", Some(CurrentState::Running)),
                2 => world.neighbour("billing", None),
                _ => {}
            }
            world.now = at(now);
            match lock {
                0 => world.seen.lease = None,
                1 => world.hold_lock("uid-of-shop-0", at(now - 5)),
                2 => world.hold_lock("uid-of-shop-0", at(now - 400)),
                3 => world.hold_lock(UID, at(now - 400)),
                _ => world.hold_lock(UID, at(now - 5)),
            }
            world
        },
    )
}

fn tells(decision: &Decision, to: &str, what: DesiredState) -> bool {
    decision.steps.iter().any(|s| matches!(s, Step::SetDesiredState { cluster, desired, .. } if cluster == to && *desired == what))
}

fn reports(world: &World, source: bool, desired: DesiredState, current: CurrentState) -> bool {
    let side = if source {
        &world.seen.source
    } else {
        &world.seen.target
    };
    side.mirror.present().is_some_and(|m| {
        let status = m.status.as_ref().unwrap();
        m.spec.desired_state == desired
            && status.current_state == Some(current)
            && status.observed_generation >= m.metadata.generation
    })
}

fn all_primary(world: &World) -> bool {
    let resources = world.seen.target.resources.present();
    resources.is_some_and(|all| {
        super::world::vms().iter().all(|vm| {
            all.get(vm)
                .is_some_and(|r| r.status.as_ref().unwrap().role == Some(Role::Primary))
        })
    })
}

/// Whether a DRBDResource of the target was seen gone.
fn lost_on_target(world: &World) -> bool {
    let resources = world.seen.target.resources.present();
    resources.is_some_and(|all| super::world::vms().iter().any(|vm| !all.contains_key(vm)))
}

/// As [`nothing_ran_on_target`], where a resource of the target is gone: nothing was started, and each
/// source disk holds everything.
fn returns_without(world: &World) -> bool {
    let Some(sources) = world.seen.source.resources.present() else {
        return false;
    };
    let whole = |vm: &farshore_api::VmRef| {
        let status = sources.get(vm).and_then(|r| r.status.as_ref());
        status.is_some_and(|s| s.disk_state == Some(DiskState::UpToDate))
    };
    reports(world, false, DesiredState::Stopped, CurrentState::Stopped)
        && super::world::vms().iter().all(whole)
}

fn nothing_ran_on_target(world: &World) -> bool {
    let all = |side: &farshore_core::failover::Side, good: fn(&DRBDResourceStatus) -> bool| {
        let resources = side.resources.present();
        resources.is_some_and(|all| {
            super::world::vms().iter().all(|vm| {
                all.get(vm)
                    .is_some_and(|r| good(r.status.as_ref().unwrap()))
            })
        })
    };
    reports(world, false, DesiredState::Stopped, CurrentState::Stopped)
        && all(&world.seen.target, |s| s.role == Some(Role::Secondary))
        && all(&world.seen.source, |s| {
            s.disk_state == Some(DiskState::UpToDate)
        })
}

fn entered(world: &World, decision: &Decision, state: FailoverState) -> bool {
    let before = world.status().steps.len();
    decision
        .status
        .steps
        .iter()
        .skip(before)
        .any(|s| s.name == state)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_world_makes_a_decision_unsafe(world in random_world()) {
        let decision = decide(&world.seen, world.now);
        let stored = world.state();
        let flips_to = |cluster: &str| decision.steps.iter().any(|s| matches!(s, Step::Flip { to, .. } if to == cluster));
        let (flips, returns) = (flips_to("west"), flips_to("east"));
        let stopped = reports(&world, true, DesiredState::Stopped, CurrentState::Stopped);
        let any_flipped = world.seen.any_flipped();
        let stopped_group = world.seen.group.as_ref().is_some_and(|g| g.spec.desired_state == DesiredState::Stopped);
        let ours = matches!(standing(world.seen.lease.as_ref(), UID, world.now), Standing::Ours { expired: false, .. });
        let writes_world = decision.steps.iter().any(|s| !matches!(s, Step::WriteLock { .. } | Step::AddFinalizer | Step::RemoveFinalizer));

        // (a) No flip before the source was observed stopped, in this very look, in the state for it.
        prop_assert!(!flips || (stopped && stored == PromotingTarget), "flip: {:?}", decision.steps);
        // Roles go back in a rollback alone.
        prop_assert!(!returns || stored == RollingBack, "{:?}", decision.steps);
        // (b) No start on the target before Primary was observed there and every role is there.
        if tells(&decision, "west", DesiredState::Running) {
            prop_assert!(all_primary(&world) && stored == StartingOnTarget && !stopped_group);
        }
        // (c) No write to the world without the lock.
        prop_assert!(!writes_world || ours, "{:?}", decision.steps);
        // Nothing is started on a source whose role is gone, and only a rollback starts a source.
        if tells(&decision, "east", DesiredState::Running) {
            prop_assert!(stored == RollingBack && !any_flipped);
        }
        // The target is never told to stop, unless the whole group shall be stopped.
        prop_assert!(!tells(&decision, "west", DesiredState::Stopped) || (stopped_group && stored == StartingOnTarget));
        // (d) Unknown does not open a door.
        let blind = world.seen.source.mirror.unknown().is_some() || world.seen.source.resources.unknown().is_some()
            || world.seen.target.mirror.unknown().is_some() || world.seen.target.resources.unknown().is_some();
        if stored == Validating && (entered(&world, &decision, RunningPreHooks) || entered(&world, &decision, StoppingOnSource)) {
            prop_assert!(!blind && world.seen.standby.unknown().is_none());
        }
        if entered(&world, &decision, RemovingTaints) || entered(&world, &decision, PromotingTarget) {
            prop_assert!(stopped, "left the stop without having seen it");
        }
        if entered(&world, &decision, PromotingTarget) {
            prop_assert!(!world.seen.nodes.values().any(|n| n.unknown().is_some()));
            prop_assert!(!decision.status.steps.is_empty() && world.now < at(300), "flip after the budget");
        }
        if entered(&world, &decision, StartingOnTarget) {
            prop_assert!(all_primary(&world));
        }
        if entered(&world, &decision, Completed) && stored != RunningPostHooks {
            let arrived = if stopped_group {
                reports(&world, false, DesiredState::Stopped, CurrentState::Stopped)
            } else {
                reports(&world, false, DesiredState::Running, CurrentState::Running)
            };
            prop_assert!(arrived);
        }
        if decision.steps.iter().any(|s| matches!(s, Step::SetTaints { .. })) {
            let free = world.seen.neighbours.present().is_some_and(|n| n.is_empty());
            prop_assert!(stored == RemovingTaints && stopped && (free || world.seen.request.spec.force));
            prop_assert!(world.seen.neighbours.unknown().is_none());
        }
        // From the flip on nothing turns back, unless the target was seen never promoted nor started.
        if (stored.is_past_flip() || any_flipped) && entered(&world, &decision, RollingBack) {
            let lost = lost_on_target(&world);
            prop_assert!(stored == PromotingTarget && (lost || world.now >= at(300)));
            prop_assert!(!any_flipped || nothing_ran_on_target(&world) || (lost && returns_without(&world)));
        }
        // What ends says how it ends.
        if decision.status.state == Some(Failed) && stored != Failed {
            prop_assert!(decision.status.message.as_ref().is_some_and(|m| !m.is_empty()) && decision.status.completion_time.is_some());
        }
    }

    #[test]
    fn a_decision_is_its_own_fixed_point(world in random_world()) {
        // A second look at the same world with the status stored asks for the same state again, or
        // goes on from it; a third, with nothing new to act on, writes nothing.
        let mut world = world;
        for _ in 0..12 {
            let decision = decide(&world.seen, world.now);
            world.carry_out(&decision, |s| matches!(s, Step::WriteLock { .. } | Step::AddFinalizer | Step::RemoveFinalizer));
        }
        let before = world.status();
        let decision = decide(&world.seen, world.now);
        prop_assert!(!farshore_core::status_differs(&before, &decision.status), "{before:?} {:?}", decision.status);
        prop_assert!(decision.notes.is_empty());
    }

    /// The budget ends it: the hub works, the workload side may be stuck in any way and may change
    /// in any way, steps may or may not have an effect.
    #[test]
    fn every_failover_ends_within_its_budget_and_the_time_of_a_rollback(
        world in random_world(),
        moods in prop::collection::vec((random_side(), random_side(), 0..12u8), 1..6),
    ) {
        let mut world = world;
        if world.ended() || world.state() == Pending {
            return Ok(());
        }
        world.now = at(0);
        world.hold_lock(UID, at(0));
        let limit = at(300) + jiff::SignedDuration::try_from(ROLLBACK_LIMIT).unwrap() + jiff::SignedDuration::from_secs(20);
        let mut round = 0_usize;
        while !world.ended() {
            let (source, target, settles) = &moods[round % moods.len()];
            if round.is_multiple_of(7) {
                let fresh = World::new();
                if world.seen.source.mirror.present().is_some() {
                    world.seen.source = fresh.seen.source;
                    world.seen.target = fresh.seen.target;
                    apply_side(&mut world.seen.source, source);
                    apply_side(&mut world.seen.target, target);
                }
            }
            if *settles < 2 {
                world.settle();
            }
            let decision = decide(&world.seen, world.now);
            world.carry_out(&decision, |_| true);
            prop_assert!(world.now <= limit, "still {} at {}", world.state(), world.now);
            let pause = decision.requeue.expect("an active failover looks again");
            let deadline = world.status().deadline.map(|t| t.0).filter(|d| *d > world.now);
            let next = world.now + jiff::SignedDuration::try_from(pause).unwrap();
            prop_assert!(deadline.is_none_or(|d| next <= d), "{} sleeps over its deadline", world.state());
            world.pass(pause.max(Duration::from_millis(100)));
            round += 1;
        }
        let status = world.status();
        let ended = status.state.unwrap();
        prop_assert!(matches!(ended, Completed | Failed | Blocked));
    }
}

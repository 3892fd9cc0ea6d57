//! Whole failovers in a world that does what it is told, and in worlds that do not.

use std::time::Duration;

use farshore_api::failover_request::FailoverState::{self, *};
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_core::failover::{LockPurpose, Step};
use farshore_core::{Seen, conditions};
use serde_json::json;

use super::world::{World, vms};

fn kinds(world: &World) -> Vec<String> {
    let name = |step: &Step| match step {
        Step::AddFinalizer => "AddFinalizer".to_string(),
        Step::RemoveFinalizer => "RemoveFinalizer".into(),
        Step::WriteLock { purpose, .. } => format!("{purpose:?}Lock"),
        Step::CreateHookJob { name, .. } => format!("Job {name}"),
        Step::SetDesiredState {
            cluster, desired, ..
        } => format!("{cluster} {desired}"),
        Step::SetTaints { node, removed, .. } => format!("untaint {node} {}", removed.join(",")),
        Step::Flip {
            protection_request,
            to,
        } => format!("flip {protection_request} to {to}"),
        Step::RunHubGroup => "RunHubGroup".into(),
    };
    world.trace.iter().map(name).collect()
}

#[test]
fn a_planned_failover_passes_its_states_in_order_and_writes_in_order() {
    let mut world = World::new();
    world.taint(&["drbd.linbit.com/lost-quorum"]);
    world.hooks(json!({
        "preFailover": [{"name": "quiesce", "namespace": "ops", "jobTemplate": {"spec": {}}}],
        "postFailover": [{"name": "dns", "namespace": "ops", "jobTemplate": {"spec": {}}}],
    }));
    assert_eq!(world.run(), Completed);
    assert_eq!(
        world.states,
        [
            Pending,
            Validating,
            RunningPreHooks,
            StoppingOnSource,
            RemovingTaints,
            PromotingTarget,
            StartingOnTarget,
            RunningPostHooks,
            Completed
        ]
    );
    assert_eq!(
        kinds(&world),
        [
            "AddFinalizer",
            "TakeLock",
            "Job shop-1-pre-0",
            "east stopped",
            "untaint west-1 drbd.linbit.com/lost-quorum",
            "flip db01 to west",
            "flip web01 to west",
            "west running",
            "Job shop-1-post-0",
            "ReleaseLock",
            "RemoveFinalizer",
        ]
    );
    let status = world.status();
    for fact in [
        "SafetyCheckPassed",
        "SourceStopped",
        "RolesFlipped",
        "TargetRunning",
        "HooksSucceeded",
        "Complete",
    ] {
        assert!(conditions::is_true(&status.conditions, fact), "{fact}");
    }
    assert!(
        status
            .vm_statuses
            .iter()
            .all(|vm| vm.phase.as_str() == "Running"
                && vm.start_time.is_some()
                && vm.end_time.is_some())
    );
    assert_eq!(
        status.duration_seconds,
        Some(
            status.completion_time.unwrap().0.as_second()
                - status.start_time.unwrap().0.as_second()
        )
    );
}

#[test]
fn a_finished_failover_does_nothing_more() {
    let mut world = World::new();
    world.run();
    let (before, steps) = (world.seen.request.clone(), world.trace.len());
    world.pass(Duration::from_secs(3600));
    let decision = world.round();
    assert_eq!(
        (decision.requeue, decision.notes.len(), world.trace.len()),
        (None, 0, steps)
    );
    assert_eq!(before, world.seen.request);
}

#[test]
fn a_failback_is_the_same_in_the_other_direction() {
    let mut world = World::new();
    world.run();
    let mut back = World::new();
    std::mem::swap(&mut back.seen.source, &mut back.seen.target);
    back.seen.request.spec.target_cluster = "east".into();
    back.seen.source = world.seen.target.clone();
    back.seen.target = world.seen.source.clone();
    back.seen.members = world.seen.members.clone();
    back.seen.nodes = [("east-1".to_string(), Seen::Present(super::world::node(&[])))].into();
    assert_eq!(back.run(), Completed);
    assert!(
        back.seen
            .members
            .iter()
            .all(|m| m.spec.source_cluster == "east")
    );
}

#[test]
fn a_group_that_was_stopped_runs_after_its_failover() {
    let mut world = World::new();
    world.seen.group.as_mut().unwrap().spec.desired_state = DesiredState::Stopped;
    world.source_has_stopped();
    assert_eq!(world.run(), Completed);
    assert_eq!(
        world.seen.group.as_ref().unwrap().spec.desired_state,
        DesiredState::Running
    );
    let at = |step: &str| kinds(&world).iter().position(|k| k == step).unwrap();
    assert!(at("RunHubGroup") < at("west running"));
    assert!(
        !kinds(&world).contains(&"east stopped".to_string()),
        "it was stopped already"
    );
}

#[test]
fn a_vm_that_does_not_stop_turns_the_failover_back() {
    let mut world = World::in_state(StoppingOnSource);
    world.round();
    World::report(&mut world.seen.source, CurrentState::Mixed);
    world.pass(Duration::from_secs(121));
    world.round();
    assert_eq!(world.state(), RollingBack);
    assert_eq!(world.run(), Failed);
    assert_eq!(world.status().rolled_back, Some(true));
    assert_eq!(
        kinds(&world),
        [
            "east stopped",
            "RenewLock",
            "east running",
            "ReleaseLock",
            "RemoveFinalizer"
        ]
    );
    assert!(
        world
            .seen
            .members
            .iter()
            .all(|m| m.spec.source_cluster == "east")
    );
}

#[test]
fn disks_that_part_after_the_source_stopped_turn_the_failover_back() {
    // Writes that were acknowledged between the link's loss and the stop exist on the source only.
    let mut world = World::in_state(StoppingOnSource);
    world.source_has_stopped();
    for resource in World::resources(&mut world.seen.target).values_mut() {
        resource.status.as_mut().unwrap().connection_state =
            Some(farshore_api::drbd::ConnectionState::Connecting);
    }
    world.round();
    assert_eq!(world.state(), RemovingTaints);
    world.pass(Duration::from_secs(300));
    assert_eq!(world.run(), Failed);
    assert_eq!(world.status().rolled_back, Some(true));
    assert!(!kinds(&world).iter().any(|k| k.starts_with("flip")));
}

#[test]
fn an_abort_before_the_flip_turns_back_and_after_it_is_too_late() {
    let mut early = World::in_state(StoppingOnSource);
    early.seen.request.spec.abort = true;
    assert_eq!(early.run(), Failed);
    assert_eq!(early.status().rolled_back, Some(true));

    let mut late = World::in_state(PromotingTarget);
    late.source_has_stopped();
    late.seen.request.spec.abort = true;
    assert_eq!(late.run(), Completed);
}

#[test]
fn a_deleted_request_rolls_back_before_the_flip_and_finishes_after_it() {
    let deleted = |state: FailoverState| {
        let mut world = World::in_state(state);
        if state == PromotingTarget {
            world.source_has_stopped();
        }
        world.seen.request.metadata.deletion_timestamp = Some(super::world::time(world.now));
        world.run();
        assert_eq!(world.seen.request.metadata.finalizers, None);
        assert_eq!(
            world
                .seen
                .lease
                .as_ref()
                .unwrap()
                .spec
                .as_ref()
                .unwrap()
                .holder_identity,
            None
        );
        (world.state(), world.status().rolled_back)
    };
    assert_eq!(deleted(Validating), (Failed, None));
    assert_eq!(deleted(RemovingTaints), (Failed, Some(true)));
    assert_eq!(deleted(PromotingTarget), (Completed, None));
}

#[test]
fn a_request_that_queues_goes_on_when_the_other_group_is_gone() {
    let mut world = World::new();
    world.seen.request.spec.queue = true;
    world.taint(&["siterecovery.trilio.io/quorum-lost"]);
    world.neighbour("billing", Some(CurrentState::Running));
    for _ in 0..4 {
        world.settle();
        world.round();
        world.pass(Duration::from_secs(15));
    }
    assert_eq!(world.state(), Blocked);
    assert_eq!(world.status().completion_time, None);
    world.seen.neighbours = Seen::Present(vec![]);
    assert_eq!(world.run(), Completed);
}

#[test]
fn a_failover_that_broke_off_after_the_flip_is_continued_by_a_new_request() {
    for broken in ["flipped, not started", "split", "not promoted"] {
        let mut world = World::new();
        world.source_has_stopped();
        match broken {
            "split" => world.seen.members[0].spec.source_cluster = "west".into(),
            _ => world
                .seen
                .members
                .iter_mut()
                .for_each(|m| m.spec.source_cluster = "west".into()),
        }
        if broken == "flipped, not started" {
            world.roles_have_flipped();
        }
        world.hooks(json!({"preFailover": [{"name": "quiesce", "namespace": "ops", "jobTemplate": {"spec": {}}}]}));
        assert_eq!(world.run(), Completed, "{broken}");
        assert!(!world.states.contains(&RunningPreHooks), "{broken}");
        assert!(
            world
                .status()
                .vm_statuses
                .iter()
                .all(|vm| vm.phase.as_str() == "Running")
        );
    }
}

#[test]
fn a_vm_that_joins_the_group_on_the_way_stays_where_it_is() {
    let mut world = World::in_state(PromotingTarget);
    world.source_has_stopped();
    let late = farshore_api::VmRef {
        namespace: "shop".into(),
        name: "late".into(),
    };
    world
        .seen
        .members
        .push(super::world::request(&late, "east"));
    assert_eq!(world.run(), Completed);
    assert_eq!(world.seen.members[2].spec.source_cluster, "east");
    assert_eq!(world.status().vm_statuses.len(), vms().len());
}

#[test]
fn the_lock_is_renewed_each_minute_and_only_then() {
    let mut world = World::in_state(StoppingOnSource);
    World::report(&mut world.seen.source, CurrentState::Mixed);
    for _ in 0..55 {
        world.round();
        world.pass(Duration::from_secs(2));
    }
    let renewals = world
        .trace
        .iter()
        .filter(|s| {
            matches!(
                s,
                Step::WriteLock {
                    purpose: LockPurpose::Renew,
                    ..
                }
            )
        })
        .count();
    assert_eq!(renewals, 1);
}

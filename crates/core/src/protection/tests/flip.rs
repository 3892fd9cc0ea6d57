//! The roles change sides, and what is told of it.

use crate::Seen;
use crate::protection::decide;
use farshore_api::drbd::Role;
use farshore_api::protection_request::ProtectionPhase;
use serde_json::json;

use super::bring_up::story;
use super::world::{EAST, WEST, World, observed, stop_both};

#[test]
fn a_brisk_flip_writes_the_status_twice_and_a_slow_one_says_who_is_slow() {
    let mut world = World::new(observed());
    world.settle();
    for source in [WEST, EAST] {
        stop_both(&mut world);
        world.seen.request.spec.source_cluster = source.into();
        let generation = world.seen.request.metadata.generation;
        world.seen.request.metadata.generation = generation.map(|g| g + 1);
        world.status_writes = 0;
        for _ in 0..20 {
            let now = world.now;
            world.reconcile();
            world.now = now + jiff::SignedDuration::from_millis(200);
            for cluster in [EAST, WEST] {
                world.agent(cluster);
                world.kubevirt(cluster);
            }
        }
        assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
        assert_eq!(world.status_writes, 2, "to {source}");
        let status = world.seen.request.status.clone().unwrap();
        assert_eq!(status.source_node, Some(format!("{source}-1")));
    }
    // From here on nobody carries anything out.
    stop_both(&mut world);
    world.seen.request.spec.source_cluster = WEST.into();
    for _ in 0..5 {
        world.reconcile();
    }
    let (_, reason, message) = world.says("Protected").unwrap();
    assert_eq!(reason, "FailingOver");
    assert!(
        message.contains("cluster east is not Secondary"),
        "{message}"
    );
    world.agent(EAST);
    for _ in 0..5 {
        world.reconcile();
    }
    let (_, _, message) = world.says("Protected").unwrap();
    assert!(message.contains("cluster west is not Primary"), "{message}");
}

/// `kubectl wait` takes a condition of an older generation for none.
#[test]
fn no_condition_grows_old_when_the_roles_have_moved() {
    let mut world = World::new(observed());
    world.settle();
    stop_both(&mut world);
    world.seen.request.spec.source_cluster = WEST.into();
    world.seen.request.metadata.generation = Some(2);
    world.settle();
    let status = world.seen.request.status.clone().unwrap();
    for condition in &status.conditions {
        assert_eq!(
            condition.observed_generation,
            Some(2),
            "{}",
            condition.type_
        );
    }
    let (_, _, message) = world.says("Validated").unwrap();
    assert!(
        message.contains("on cluster west can be protected"),
        "{message}"
    );
}

/// The side that gives way was deleted by hand while the roles moved: there is nothing left that could
/// be Primary, so the VM goes on where it shall run, and the copy is made anew.
#[test]
fn a_flip_whose_old_side_is_gone_goes_on_and_makes_it_anew() {
    let mut world = World::new(observed());
    world.settle();
    stop_both(&mut world);
    world.side(EAST).resource = Seen::Absent;
    world.seen.request.spec.source_cluster = WEST.into();
    // Not while the VM is not seen stopped there.
    for vmi in [Seen::Present(json!({})), Seen::Unknown("timeout".into())] {
        world.side(EAST).vmi = vmi;
        for _ in 0..6 {
            world.reconcile();
            world.agent(WEST);
        }
        assert_ne!(world.role(WEST), Some(Role::Primary));
        let (_, _, message) = world.says("Protected").unwrap();
        assert!(message.contains("cluster east"), "{message}");
    }
    world.side(EAST).vmi = Seen::Absent;
    world.settle();
    assert_eq!(world.role(WEST), Some(Role::Primary));
    assert_eq!(world.role(EAST), Some(Role::Secondary));
    assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
}

/// The side that shall run the VM was deleted by hand while the roles moved: it is not waited for, and
/// the words lead back to the copy.
#[test]
fn a_flip_whose_new_side_is_gone_says_how_to_go_on() {
    let mut world = World::new(observed());
    world.settle();
    stop_both(&mut world);
    world.seen.request.spec.source_cluster = WEST.into();
    world.reconcile();
    world.side(WEST).resource = Seen::Absent;
    for _ in 0..4 {
        world.reconcile();
        world.agent(EAST);
    }
    assert_eq!(world.phase(), Some(ProtectionPhase::Degraded));
    let (_, reason, message) = world.says("Protected").unwrap();
    assert_eq!(reason, "ResourceMissing");
    assert!(
        message.contains("Set spec.sourceCluster of this ProtectionRequest to east"),
        "{message}"
    );
    world.seen.request.spec.source_cluster = EAST.into();
    world.settle();
    assert_eq!(world.role(EAST), Some(Role::Primary));
    assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
}

#[test]
fn a_flip_is_told_epoch_by_epoch() {
    let mut world = World::new(observed());
    world.settle();
    stop_both(&mut world);
    world.seen.request.spec.source_cluster = WEST.into();
    let (world, told) = story(world);
    insta::assert_snapshot!(told);
    assert_eq!(world.role(WEST), Some(Role::Primary));
    assert_eq!(world.role(EAST), Some(Role::Secondary));
    assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
}

#[test]
fn the_event_of_a_flip_says_who_gives_way_to_whom() {
    let mut world = World::new(observed());
    world.settle();
    stop_both(&mut world);
    world.seen.request.spec.source_cluster = WEST.into();
    let notes = decide(&world.seen, world.now).notes;
    let told = notes.iter().find(|n| n.reason == "FailingOver").unwrap();
    for part in [
        "Protected → FailingOver",
        "first DRBD on cluster east becomes Secondary",
        "then it becomes Primary on cluster west",
        "role epoch 2",
    ] {
        assert!(told.message.contains(part), "{part}: {}", told.message);
    }
}

#[test]
fn a_flip_is_carried_out_although_the_request_is_being_deleted() {
    let mut world = World::new(observed());
    world.settle();
    stop_both(&mut world);
    world.seen.request.spec.source_cluster = WEST.into();
    world.seen.locked_by = Some("move-shop".into());
    world.seen.request.metadata.deletion_timestamp = Some(
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now),
    );
    world.settle();
    assert!(!world.gone);
    assert_eq!(
        (world.role(EAST), world.role(WEST)),
        (Some(Role::Secondary), Some(Role::Primary))
    );
    world.seen.locked_by = None;
    world.settle();
    assert!(world.gone, "it goes once the failover has ended");
}

//! The end of a protection gives the VM back, and loses nothing.

use crate::protection::{decide, disks};
use crate::{Seen, conditions, vm};
use farshore_api::protection_request::ProtectionPhase;
use serde_json::json;

use super::bring_up::story;
use super::world::{EAST, WEST, World, agrees, machine, observed, stop_both};

#[test]
fn the_conditions_of_a_request_that_goes_stay_current() {
    let mut world = World::new(observed());
    world.settle();
    world.delete();
    world.reconcile();
    agrees(world.seen.request.status.as_ref().unwrap());
    world.link = false;
    world.agent(EAST);
    world.agent(WEST);
    world.reconcile();
    assert_eq!(
        world.says("Connected").unwrap().0,
        "False",
        "the cut is seen"
    );
    let mut told = Vec::new();
    for _ in 0..60 {
        if world.gone {
            break;
        }
        world.reconcile();
        agrees(world.seen.request.status.as_ref().unwrap());
        let (status, _, message) = world.says("Unprotected").unwrap();
        assert_eq!(status, "False");
        for part in [
            "VirtualMachine shop/db01 is not unprotected yet: ",
            " since 2026-",
            ". ",
            "Look with: kubectl ",
        ] {
            assert!(message.contains(part), "{part} is not in {message}");
        }
        assert_eq!(world.says("Protected").unwrap().2, message);
        if told.last() != Some(&message) {
            told.push(message);
        }
        for cluster in [EAST, WEST] {
            world.agent(cluster);
            world.kubevirt(cluster);
        }
    }
    assert!(world.gone);
    assert_eq!(world.says("DRBDCreated").unwrap().0, "False");
    insta::assert_snapshot!("unprotecting_step_by_step", told.join("\n"));
}

#[test]
fn unprotecting_gives_the_vm_back_as_it_was() {
    let mut world = World::new(observed());
    world.settle();
    world.seen.request.metadata.deletion_timestamp = Some(
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now),
    );
    let (world, told) = story(world);
    insta::assert_snapshot!(told);
    assert!(world.gone);
    let mut vm = world.seen.sides[EAST].vm.present().unwrap().clone();
    vm["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(vm, machine());
    assert!(world.runs(EAST));
    assert!(world.seen.sides[WEST].vm.is_absent());
}

/// A group that is stopped has halted its VMs, and only the annotation knows how they ran.
#[test]
fn unprotecting_a_halted_vm_keeps_how_it_ran() {
    let mut world = World::new(observed());
    world.settle();
    let Seen::Present(machine) = &mut world.side(EAST).vm else {
        panic!("no VM")
    };
    let ran = vm::annotation(machine, "siterecovery.trilio.io/run-strategy").map(str::to_owned);
    assert_eq!(ran, None, "it runs and remembers nothing");
    vm::halt(machine);
    let ran = vm::annotation(machine, "siterecovery.trilio.io/run-strategy").map(str::to_owned);
    assert!(ran.is_some());
    world.settle();
    world.delete();
    world.settle();
    assert!(world.gone);
    let left = world.seen.sides[EAST].vm.present().unwrap();
    assert!(vm::is_halted(left) && disks::is_restored(left));
    let kept = vm::annotation(left, "siterecovery.trilio.io/run-strategy").map(str::to_owned);
    assert_eq!(kept, ran);
    let mut again = left.clone();
    vm::resume(&mut again);
    again["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(again, self::machine());
}

#[test]
fn after_a_failover_unprotecting_keeps_the_vm_that_the_user_made() {
    let mut world = World::new(observed());
    world.settle();
    stop_both(&mut world);
    world.seen.request.spec.source_cluster = WEST.into();
    world.settle();
    world.seen.request.metadata.deletion_timestamp = Some(
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now),
    );
    world.settle();
    assert!(world.gone);
    let old = world.seen.sides[EAST].vm.present().unwrap();
    assert!(vm::is_halted(old) && disks::is_restored(old));
    assert!(
        world.seen.sides[EAST].pvcs["db01-root"].present().is_some(),
        "the user's disk stays"
    );
    let new = world.seen.sides[WEST].vm.present().unwrap();
    assert!(disks::is_restored(new));
}

/// Deletes the request after its source was changed by hand while the VM runs on the other side.
fn unprotected_towards_the_wrong_side(cut: bool) -> World {
    let mut world = World::new(observed());
    world.settle();
    world.link = !cut;
    world.seen.request.spec.source_cluster = WEST.into();
    world.seen.request.metadata.deletion_timestamp = Some(
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now),
    );
    world.settle();
    world
}

#[test]
fn unprotecting_touches_nothing_while_the_vm_runs_on_the_side_that_is_to_lose_its_data() {
    for cut in [false, true] {
        let world = unprotected_towards_the_wrong_side(cut);
        assert!(!world.gone && world.runs(EAST) && !world.runs(WEST));
        for cluster in [EAST, WEST] {
            let machine = world.seen.sides[cluster].vm.present().unwrap();
            assert!(!disks::is_restored(machine), "{cluster}");
            assert!(world.resource(cluster).is_some());
        }
        let status = world.seen.request.status.clone().unwrap();
        let told = conditions::get(&status.conditions, "Protected").unwrap();
        assert!(
            told.message.contains("runs on cluster east"),
            "{}",
            told.message
        );
    }
}

#[test]
fn unprotecting_keeps_the_newest_data_until_the_named_side_has_it() {
    let mut world = unprotected_towards_the_wrong_side(true);
    stop_both(&mut world);
    world.settle();
    assert!(!world.gone);
    for cluster in [EAST, WEST] {
        assert!(world.resource(cluster).is_some(), "{cluster}");
    }
    assert!(world.seen.sides[EAST].pvcs["db01-root"].present().is_some());
}

#[test]
fn unprotecting_waits_for_a_failover_and_for_a_dark_peer() {
    let mut world = World::new(observed());
    world.settle();
    world.seen.request.metadata.deletion_timestamp = Some(
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now),
    );
    world.seen.locked_by = Some("move-shop".into());
    let decision = decide(&world.seen, world.now);
    assert_eq!(decision.steps, []);
    agrees(&decision.status);
    let waits = conditions::get(&decision.status.conditions, "Unprotected").unwrap();
    assert_eq!(waits.reason, "FailoverActive");
    insta::assert_snapshot!("unprotect_waits_for_a_failover", waits.message);
    assert_eq!(decision.status.phase, Some(ProtectionPhase::Protected));

    world.seen.locked_by = None;
    world.reconcile();
    let decision = decide(&world.look(&[WEST]), world.now);
    assert_eq!(decision.steps, []);
    let protected = conditions::get(&decision.status.conditions, "Protected").unwrap();
    assert_eq!(protected.reason, "ClusterUnreachable");
    insta::assert_snapshot!("unprotect_waits", protected.message);
}

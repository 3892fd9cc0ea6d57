//! What a protected VM is said to be while its world changes.

use crate::protection::{Step, decide};
use crate::{Seen, conditions, vm};
use farshore_api::protection_request::ProtectionPhase;
use serde_json::json;

use super::world::{EAST, WEST, World, agrees, claim, observed, stop_both};

#[test]
fn an_added_disk_is_said_loudly_until_it_is_detached() {
    for running_only in [false, true] {
        let mut world = World::new(observed());
        world.settle();
        if running_only {
            // As `virtctl addvolume` does without --persist.
            world.side(EAST).vmi = Seen::Present(json!({"metadata": {}, "spec": {"volumes": [
                {"name": "extra", "persistentVolumeClaim": {"claimName": "db01-extra", "hotpluggable": true}},
            ]}}));
        } else {
            world.add_disk(EAST);
        }
        let standby = world.seen.sides[WEST].vm.clone();
        let decision = decide(&world.seen, world.now);
        let told: Vec<_> = decision
            .notes
            .iter()
            .map(|n| (n.warning, n.reason.as_str()))
            .collect();
        assert_eq!(told, [(true, "UnreplicatedVolume")]);
        world.settle();
        agrees(world.seen.request.status.as_ref().unwrap());
        assert_eq!(world.phase(), Some(ProtectionPhase::Degraded));
        let (status, reason, message) = world.says("Protected").unwrap();
        assert_eq!(
            (status.as_str(), reason.as_str()),
            ("False", "UnreplicatedVolume")
        );
        if !running_only {
            insta::assert_snapshot!("unreplicated_volume", message);
        }
        assert!(message.contains("volume extra"), "{message}");
        assert_eq!(
            world.seen.sides[WEST].vm, standby,
            "the standby can still start"
        );
        assert_eq!(world.says("StandbyInStep").unwrap().1, "UnreplicatedVolume");
        assert!(decide(&world.seen, world.now).notes.is_empty());

        world.link = false;
        world.settle();
        let (_, reason, message) = world.says("Protected").unwrap();
        assert_eq!(reason, "UnreplicatedVolume");
        assert!(
            message.contains(", and also ") && message.contains("not connected"),
            "{message}"
        );
        world.link = true;
        if running_only {
            world.side(EAST).vmi = Seen::Present(json!({"metadata": {}}));
        } else {
            world.remove_disk(EAST);
        }
        world.settle();
        assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
        assert_eq!(world.says("Protected").unwrap().0, "True");
        assert_eq!(world.says("StandbyInStep").unwrap().0, "True");
    }
}

#[test]
fn a_grown_disk_is_told_and_changes_nothing() {
    let mut world = World::new(observed());
    world.settle();
    let resize = |world: &mut World, size: &str| {
        let mut grown = claim("db01-data", "Block");
        grown["status"]["capacity"]["storage"] = json!(size);
        let grown = serde_json::from_value(grown).unwrap();
        world
            .side(EAST)
            .pvcs
            .insert("db01-data".into(), Seen::Present(grown));
    };
    resize(&mut world, "3Gi");
    let decision = decide(&world.seen, world.now);
    assert_eq!(decision.steps, []);
    let told: Vec<_> = decision
        .notes
        .iter()
        .map(|n| (n.warning, n.reason.as_str()))
        .collect();
    assert_eq!(told, [(true, "ResizeIgnored")]);
    world.settle();
    assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
    let (status, _, message) = world.says("ResizeIgnored").unwrap();
    assert_eq!(status, "True");
    insta::assert_snapshot!("resize_ignored", message);
    let not_looked_at = {
        let mut seen = world.seen.clone();
        seen.sides.get_mut(EAST).unwrap().pvcs.clear();
        decide(&seen, world.now)
    };
    assert_eq!(Some(not_looked_at.status), world.seen.request.status);
    resize(&mut world, "1Gi");
    world.settle();
    assert_eq!(world.says("ResizeIgnored"), None);
}

#[test]
fn a_standby_that_cannot_be_written_is_not_called_in_step() {
    let mut world = World::new(observed());
    world.settle();
    let Seen::Present(machine) = &mut world.side(EAST).vm else {
        panic!()
    };
    machine["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] = json!(16);
    world.seen.trouble = Some("VirtualMachine shop/db01 was refused".into());
    let status = decide(&world.seen, world.now).status;
    let told = conditions::get(&status.conditions, "StandbyInStep").unwrap();
    assert_eq!(
        (told.status.as_str(), told.reason.as_str()),
        ("False", "NotWritten")
    );
    assert!(told.message.contains("was refused"), "{}", told.message);
}

#[test]
fn a_shared_secret_that_is_deleted_by_hand_is_made_again() {
    for cluster in [EAST, WEST] {
        let mut world = World::new(observed());
        world.settle();
        world.side(cluster).secret = Seen::Absent;
        let decision = decide(&world.seen, world.now);
        assert!(decision.steps.contains(&Step::ShareSecret), "{cluster}");
        world.side(cluster).secret = Seen::Unknown("timeout".into());
        let decision = decide(&world.seen, world.now);
        assert!(!decision.steps.contains(&Step::ShareSecret), "{cluster}");
    }
}

#[test]
fn a_pair_of_which_nothing_is_left_is_told_as_that() {
    let mut world = World::new(observed());
    world.settle();
    for cluster in [EAST, WEST] {
        world.side(cluster).resource = Seen::Absent;
    }
    world.reconcile();
    let (_, _, message) = world.says("Protected").unwrap();
    for part in [
        "east and west, are gone",
        "delete it",
        "then start the VM there",
        "get vm",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let (_, _, message) = world.says("DRBDCreated").unwrap();
    assert!(message.contains("clusters east and west"), "{message}");
}

#[test]
fn a_settled_world_wants_nothing() {
    let mut world = World::new(observed());
    world.settle();
    let decision = decide(&world.seen, world.now);
    assert_eq!(decision.steps, []);
    assert_eq!(decision.notes, []);
    assert_eq!(Some(decision.status), world.seen.request.status);
}

#[test]
fn the_template_follows_the_source_in_either_direction() {
    let mut world = World::new(observed());
    world.settle();
    for (source, standby) in [(EAST, WEST), (WEST, EAST)] {
        if source == WEST {
            stop_both(&mut world);
            world.seen.request.spec.source_cluster = WEST.into();
            world.settle();
        }
        let Seen::Present(machine) = &mut world.side(source).vm else {
            panic!()
        };
        machine["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] =
            json!(source.len() * 7 + usize::from(source == WEST));
        let want = machine["spec"]["template"]["spec"]["domain"].clone();
        world.settle();
        let copy = world.seen.sides[standby].vm.present().unwrap();
        assert_eq!(
            copy["spec"]["template"]["spec"]["domain"], want,
            "{source} → {standby}"
        );
        assert!(vm::is_halted(copy));
        assert_eq!(
            copy["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"],
            format!("{standby}-1")
        );
    }
}

#[test]
fn a_cut_link_degrades_and_heals() {
    let mut world = World::new(observed());
    world.settle();
    world.link = false;
    world.settle();
    assert_eq!(world.phase(), Some(ProtectionPhase::Degraded));
    let status = world.seen.request.status.clone().unwrap();
    let protected = conditions::get(&status.conditions, "Protected").unwrap();
    assert_eq!(protected.reason, "PeerDisconnected");
    insta::assert_snapshot!("degraded", protected.message);
    world.link = true;
    world.settle();
    assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
}

#[test]
fn a_side_that_is_going_is_degraded_although_it_still_replicates() {
    for cluster in [EAST, WEST] {
        for deleted in [true, false] {
            let mut world = World::new(observed());
            world.settle();
            let now = world.now;
            let Seen::Present(resource) = &mut world.side(cluster).resource else {
                panic!()
            };
            if deleted {
                resource.metadata.deletion_timestamp =
                    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
            } else {
                conditions::set(
                    &mut resource.status.as_mut().unwrap().conditions,
                    "BackingReady",
                    conditions::Truth::False,
                    "VolumeLost",
                    "PersistentVolume pv-1 is gone",
                    None,
                    now,
                );
            }
            let decision = decide(&world.seen, world.now);
            assert_eq!(decision.status.phase, Some(ProtectionPhase::Degraded));
            let protected = conditions::get(&decision.status.conditions, "Protected").unwrap();
            let (reason, fact) = if deleted {
                ("ResourceBeingDeleted", "is being deleted since")
            } else {
                ("VolumeLost", "PersistentVolume pv-1 is gone")
            };
            assert_eq!(protected.reason, reason);
            let look = format!("Look with: kubectl --context {cluster} ");
            for part in [fact, look.as_str()] {
                assert!(protected.message.contains(part), "{}", protected.message);
            }
        }
    }
}

#[test]
fn a_dark_cluster_degrades_and_nothing_is_taken_for_gone() {
    let mut world = World::new(observed());
    world.settle();
    for dark in [EAST, WEST] {
        let decision = decide(&world.look(&[dark]), world.now);
        assert_eq!(decision.status.phase, Some(ProtectionPhase::Degraded));
        let protected = conditions::get(&decision.status.conditions, "Protected").unwrap();
        assert_eq!(protected.reason, "ClusterUnreachable");
        let creates = |s: &Step| matches!(s, Step::CreateVm { .. } | Step::CreateResource { .. });
        assert!(!decision.steps.iter().any(creates), "{:?}", decision.steps);
    }
}

#[test]
fn what_cannot_be_seen_is_not_called_created() {
    for dark in [EAST, WEST] {
        let mut world = World::new(observed());
        world.settle();
        assert_eq!(world.says("DRBDCreated").unwrap().0, "True");
        let lit = world.seen.clone();
        for round in 0..3 {
            world.seen = world.look(&[dark]);
            let wrote = world.reconcile();
            assert_eq!(wrote, round == 0, "an unchanged darkness is told once");
        }
        let (status, reason, message) = world.says("DRBDCreated").unwrap();
        assert_eq!(
            (status.as_str(), reason.as_str()),
            ("Unknown", "ClusterUnreachable")
        );
        assert!(
            message.contains(&format!("cluster {dark} does not answer")),
            "{message}"
        );
        let status = world.seen.request.status.take();
        world.seen = lit;
        world.seen.request.status = status;
        world.settle();
        assert_eq!(world.says("DRBDCreated").unwrap().0, "True");
    }
}

#[test]
fn a_cut_link_with_nothing_to_copy_says_why_it_is_not_called_100_percent() {
    let mut world = World::new(observed());
    world.settle();
    let status = world.seen.request.status.clone().unwrap();
    assert_eq!(status.sync_percent, Some(100));
    world.link = false;
    world.settle();
    let status = world.seen.request.status.clone().unwrap();
    assert_eq!(status.sync_percent, Some(99));
    assert_eq!(status.volumes[0].out_of_sync_bytes, Some(0));
    let (truth, _, message) = world.says("Synced").unwrap();
    assert_eq!(truth, "False");
    assert!(message.contains("no block was seen to differ"), "{message}");
}

#[test]
fn a_gone_standby_resource_is_not_called_created() {
    let mut world = World::new(observed());
    world.settle();
    world.side(WEST).resource = Seen::Absent;
    world.reconcile();
    let (status, reason, _) = world.says("DRBDCreated").unwrap();
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "ResourceMissing")
    );
}

#[test]
fn a_gone_source_resource_is_told_with_the_way_out() {
    let mut world = World::new(observed());
    world.settle();
    world.side(EAST).resource = Seen::Absent;
    world.reconcile();
    let (status, reason, message) = world.says("Protected").unwrap();
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "ResourceMissing")
    );
    assert!(
        message.contains("delete this ProtectionRequest")
            && message.contains("--context west")
            && !message.contains("goes on by itself"),
        "{message}"
    );
}

#[test]
fn a_drbd_volume_that_is_deleted_by_hand_is_made_again() {
    for link in [true, false] {
        let mut world = World::new(observed());
        world.settle();
        world.link = link;
        world.settle();
        let before = world.seen.drbd_volumes.clone();
        let phase = world.phase();
        world.seen.drbd_volumes.remove(0);
        world.settle();
        let kept = |all: &[farshore_api::DRBDVolume]| {
            let mut all: Vec<_> = all
                .iter()
                .map(|v| {
                    let status = v.status.clone().unwrap();
                    (
                        v.metadata.name.clone(),
                        v.spec.clone(),
                        status.phase,
                        status.sync_percent,
                    )
                })
                .collect();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all
        };
        assert_eq!(kept(&world.seen.drbd_volumes), kept(&before));
        assert_eq!(world.phase(), phase);
        assert!(!world.reconcile(), "and then nothing more is written");
    }
    // One that goes with its request stays away.
    let mut world = World::new(observed());
    world.settle();
    world.delete();
    world.seen.locked_by = Some("move".into());
    world.seen.drbd_volumes.clear();
    world.settle();
    assert!(world.seen.drbd_volumes.is_empty());
}

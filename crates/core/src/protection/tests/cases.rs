//! Decisions case by case: what comes in, what comes out.

use farshore_api::drbd::Role;
use farshore_api::protection_request::{ProtectionPhase, SyncMode};
use serde_json::{Value, json};

use super::world::{EAST, WEST, World, claim, machine, observed, policy, request};
use crate::protection::{Observed, Side, Step, decide, disks};
use crate::{Seen, conditions, vm};

fn validating() -> Observed {
    let mut world = World::new(observed());
    world.reconcile();
    world.reconcile();
    assert_eq!(world.phase(), Some(ProtectionPhase::Validating));
    world.seen
}

/// Phase, status, reason and message of `Validated` after one look in phase Validating.
fn verdict(seen: &Observed) -> String {
    let decision = decide(seen, "2026-01-01T00:00:30Z".parse().unwrap());
    let phase = decision.status.phase.unwrap();
    match conditions::get(&decision.status.conditions, "Validated") {
        Some(c) => format!(
            "{phase}: Validated={} {}: {}",
            c.status, c.reason, c.message
        ),
        None => format!("{phase}"),
    }
}

fn volumes(seen: &mut Observed, volumes: Value) {
    let Seen::Present(vm) = &mut seen.sides.get_mut(EAST).unwrap().vm else {
        panic!()
    };
    vm["spec"]["template"]["spec"]["volumes"] = volumes;
}

type Change = fn(&mut Observed);

#[test]
fn bad_input_lands_in_a_condition_that_says_what_to_do() {
    let cases: [(&str, Change); 24] = [
        ("all is well", |_| {}),
        ("zone not validated", |s| {
            let zone = s.zone.as_mut().unwrap().status.as_mut().unwrap();
            zone.conditions[0].status = "False".into();
            zone.conditions[0].reason = "ClusterAlreadyClaimed".into();
        }),
        ("no zone", |s| s.zone = None),
        ("unknown cluster", |s| {
            s.request.spec.source_cluster = "north".into()
        }),
        ("protocol A", |s| {
            s.request.spec.replication_protocol = farshore_api::drbd::Protocol::A
        }),
        ("rpo with C", |s| s.request.spec.rpo = 5),
        ("no VM", |s| {
            s.sides.get_mut(EAST).unwrap().vm = Seen::Absent
        }),
        ("already protected by an older request", |s| {
            let mut other = request("first", "db01");
            other.metadata.creation_timestamp = Some(
                "2025-12-31T00:00:00Z"
                    .parse()
                    .map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time)
                    .unwrap(),
            );
            s.others.push(other);
        }),
        ("already protected in another zone", |s| {
            let Seen::Present(vm) = &mut s.sides.get_mut(EAST).unwrap().vm else {
                panic!()
            };
            vm::annotate(
                vm,
                "siterecovery.trilio.io/protected-by",
                Some("metro2/db01"),
            );
        }),
        ("16 disks", |s| {
            let many = (0..16).map(|i| json!({"name": format!("d{i}"), "persistentVolumeClaim": {"claimName": format!("d{i}")}}));
            volumes(s, many.collect());
        }),
        ("no disk to replicate", |s| {
            volumes(
                s,
                json!([{"name": "root", "containerDisk": {"image": "fedora"}}]),
            )
        }),
        ("hotplugged disk", |s| {
            volumes(
                s,
                json!([{"name": "hot", "persistentVolumeClaim": {"claimName": "db01-data", "hotpluggable": true}}]),
            );
        }),
        ("filesystem claim", |s| {
            let claim = serde_json::from_value(claim("db01-data", "Filesystem")).unwrap();
            s.sides
                .get_mut(EAST)
                .unwrap()
                .pvcs
                .insert("db01-data".into(), Seen::Present(claim));
        }),
        ("claim is missing", |s| {
            s.sides
                .get_mut(EAST)
                .unwrap()
                .pvcs
                .insert("db01-data".into(), Seen::Absent);
        }),
        ("class not mapped", |s| {
            s.policies[0].spec.storage_class_mappings = vec![
                serde_json::from_value(json!({"source": "gold", "target": "silver"})).unwrap(),
            ];
        }),
        ("class is not on the target", |s| {
            s.sides.get_mut(WEST).unwrap().storage_classes = Seen::Present(vec!["gold".into()])
        }),
        ("paused VM", |s| {
            s.sides.get_mut(EAST).unwrap().vmi = Seen::Present(
                json!({"status": {"conditions": [{"type": "Paused", "status": "True"}]}}),
            );
        }),
        ("migrating VM", |s| {
            s.sides.get_mut(EAST).unwrap().migrations = Seen::Present(vec!["move-1".into()])
        }),
        ("ports exhausted", |s| {
            s.zone.as_mut().unwrap().spec.ports = farshore_api::zone::PortRange {
                start: 7000,
                end: 7001,
            };
            s.sides.get_mut(WEST).unwrap().ports =
                Seen::Present(vec![("shop/drbd-other".into(), 7001)]);
        }),
        ("cluster does not answer", |s| {
            s.sides
                .insert(WEST.into(), Side::unreachable("timed out after 5 s"));
        }),
        ("a VM of that name on the standby side", |s| {
            s.sides.get_mut(WEST).unwrap().vm = Seen::Present(machine())
        }),
        ("no default policy", |s| s.policies.clear()),
        ("a name that no label can have", |s| {
            s.request.metadata.name = Some("n".repeat(64))
        }),
        ("a claim whose replicated disk cannot be named", |s| {
            let claim = "c".repeat(249);
            volumes(
                s,
                json!([{"name": "root", "persistentVolumeClaim": {"claimName": claim}}]),
            );
        }),
    ];
    let mut told = String::new();
    for (name, change) in cases {
        let mut seen = validating();
        change(&mut seen);
        agrees(&decide(&seen, "2026-01-01T00:00:30Z".parse().unwrap()).status);
        told.push_str(&format!("{name}\n    {}\n", verdict(&seen)));
    }
    insta::assert_snapshot!(told);
}

/// What a listing shows and what the conditions say is the same.
pub fn agrees(status: &farshore_api::protection_request::ProtectionRequestStatus) {
    use ProtectionPhase::{Failed, Pending, Protected, Unprotecting, Validating};
    let says = |type_: &str| {
        let found = conditions::get(&status.conditions, type_);
        found.map_or("absent", |c| c.status.as_str())
    };
    let told = serde_json::to_string_pretty(status).unwrap();
    let phase = status.phase;
    if let Some(protected) = conditions::get(&status.conditions, "Protected") {
        let is = phase == Some(Protected);
        assert_eq!(
            protected.status,
            if is { "True" } else { "False" },
            "{told}"
        );
    } else {
        assert!(matches!(phase, None | Some(Pending | Validating)), "{told}");
    }
    match phase {
        Some(Failed) => assert_eq!(says("Validated"), "False", "{told}"),
        None | Some(Pending | Validating | Unprotecting) => {}
        Some(_) => assert_eq!(says("Validated"), "True", "{told}"),
    }
}

#[test]
fn a_failed_request_that_cannot_be_checked_again_is_no_longer_called_failed() {
    let mut world = World::new(observed());
    world.side(EAST).vm = Seen::Absent;
    for _ in 0..4 {
        world.reconcile();
    }
    assert_eq!(world.phase(), Some(ProtectionPhase::Failed));
    assert_eq!(world.says("Protected").unwrap().1, "ValidationFailed");
    let zone_is_gone = |seen: &mut Observed| seen.zone = None;
    let cluster_is_dark = |seen: &mut Observed| {
        seen.sides.insert(WEST.into(), Side::unreachable("timeout"));
    };
    for change in [zone_is_gone as Change, cluster_is_dark] {
        let mut seen = world.seen.clone();
        change(&mut seen);
        let status = decide(&seen, world.now).status;
        agrees(&status);
        assert_eq!(status.phase, Some(ProtectionPhase::Validating));
        let validated = conditions::get(&status.conditions, "Validated").unwrap();
        assert_eq!(validated.status, "Unknown");
    }
}

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
fn a_disk_added_during_the_first_sync_keeps_the_request_from_being_called_protected() {
    let mut world = World::new(observed());
    while world.phase() != Some(ProtectionPhase::Syncing) {
        world.reconcile();
        for cluster in [EAST, WEST] {
            world.agent(cluster);
            world.kubevirt(cluster);
        }
    }
    world.add_disk(EAST);
    world.settle();
    assert!(!world.phases.contains(&ProtectionPhase::Protected));
    assert_eq!(world.says("Protected").unwrap().1, "UnreplicatedVolume");
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

/// What began as a standby disk became the VM's own when its protection ended there: no later request of
/// the same name writes over it, and none deletes it, unless it made it itself.
#[test]
fn a_disk_that_an_earlier_request_of_the_name_made_is_not_taken_for_a_standby_disk() {
    let mut world = World::new(observed());
    world.settle();
    stop_both(&mut world);
    world.seen.request.spec.source_cluster = WEST.into();
    world.settle();
    world.delete();
    world.settle();
    assert!(world.gone);
    let disks = ["db01-root", "db01-data"];
    let there = |seen: &Observed, cluster: &str| {
        let pvcs = &seen.sides[cluster].pvcs;
        disks
            .iter()
            .all(|d| pvcs.get(*d).is_some_and(|p| p.present().is_some()))
    };
    assert!(there(&world.seen, WEST) && there(&world.seen, EAST));

    // The same manifest again: source east, whose data is old.
    let again = |seen: &Observed, source: &str| {
        let mut next = observed();
        next.request.metadata.uid = Some("uid-of-the-second".into());
        next.request.spec.source_cluster = source.into();
        next.sides = seen.sides.clone();
        World::new(next)
    };
    let mut second = again(&world.seen, EAST);
    for vm_is_there in [true, false] {
        if !vm_is_there {
            second.side(WEST).vm = Seen::Absent;
        }
        for _ in 0..6 {
            second.reconcile();
        }
        assert_eq!(second.phase(), Some(ProtectionPhase::Failed));
        let (_, reason, message) = second.says("Validated").unwrap();
        assert_eq!(reason, "StandbyNameTaken");
        assert!(
            message.contains("shop/db01-root") && message.contains("newest data"),
            "{message}"
        );
        assert!(second.resource(WEST).is_none());
    }
    // From where the data is, with the old disks out of the way: they are this request's own then, and go
    // with it.
    let mut third = again(&world.seen, WEST);
    third.side(EAST).vm = Seen::Absent;
    for disk in disks {
        third.side(EAST).pvcs.remove(disk);
    }
    third.settle();
    assert_eq!(third.phase(), Some(ProtectionPhase::Protected));
    third.delete();
    third.settle();
    assert!(third.gone && there(&third.seen, WEST) && !there(&third.seen, EAST));
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
fn a_failed_request_is_validated_again_when_the_world_changes() {
    let mut world = World::new(observed());
    world.side(EAST).vm = Seen::Absent;
    for _ in 0..4 {
        world.reconcile();
    }
    assert_eq!(world.phase(), Some(ProtectionPhase::Failed));
    assert!(
        !world.reconcile(),
        "a request that stays failed writes nothing"
    );
    world.side(EAST).vm = Seen::Present(machine());
    world.settle();
    use ProtectionPhase::{CreatingDRBD, Failed, Pending, Protected, Syncing, Validating};
    assert_eq!(
        world.phases,
        [
            Pending,
            Validating,
            Failed,
            Validating,
            CreatingDRBD,
            Syncing,
            Protected
        ]
    );
}

/// Every decision of an undisturbed protection, in order.
fn story(mut world: World) -> (World, String) {
    let mut told = String::new();
    for _ in 0..60 {
        if world.gone {
            break;
        }
        let decision = decide(&world.seen, world.now);
        let wrote = world.reconcile();
        if wrote {
            let phase = decision.status.phase.map_or("-", ProtectionPhase::as_str);
            told.push_str(&format!(
                "{phase} {:?}%\n",
                decision.status.sync_percent.unwrap_or(0)
            ));
            for step in &decision.steps {
                told.push_str(&format!("    {}\n", short(step)));
            }
        }
        for cluster in [EAST, WEST] {
            world.agent(cluster);
            world.kubevirt(cluster);
        }
    }
    (world, told)
}

fn short(step: &Step) -> String {
    match step {
        Step::CreateResource { cluster, resource } => format!(
            "create DRBDResource on {cluster}: {} epoch {}, ports {:?}",
            resource.spec.role,
            resource.spec.role_epoch,
            resource
                .spec
                .volumes
                .iter()
                .map(|v| v.port)
                .collect::<Vec<_>>()
        ),
        Step::PatchResource { cluster, patch } => {
            format!("patch DRBDResource on {cluster}: {}", patch["spec"])
        }
        Step::PatchVm {
            cluster, purpose, ..
        } => format!("patch VM on {cluster}: {purpose}"),
        Step::CreateVm { cluster, .. } => format!("create standby VM on {cluster}"),
        Step::CreateDrbdVolume { volume } => {
            format!("create DRBDVolume of {}", volume.spec.pvc_name)
        }
        Step::ReportDrbdVolume { name, status } => {
            let end = name.rsplit('-').next().unwrap();
            format!("report {end}: {}", status.phase.unwrap())
        }
        other => serde_json::to_string(other).unwrap(),
    }
}

#[test]
fn offline_stops_the_vm_until_the_first_full_sync() {
    let (world, told) = story(World::new(observed()));
    insta::assert_snapshot!(told);
    assert!(world.runs(EAST) && !world.runs(WEST));
    let standby = world.seen.sides[WEST].vm.present().unwrap();
    assert!(vm::is_halted(standby));
    insta::assert_yaml_snapshot!("standby_vm", standby);
    insta::assert_yaml_snapshot!(
        "protected_status",
        world.seen.request.status.as_ref().unwrap()
    );
}

#[test]
fn online_stops_the_vm_only_for_the_swap() {
    let mut seen = observed();
    seen.request.spec.sync_mode = SyncMode::Online;
    let (world, told) = story(World::new(seen));
    insta::assert_snapshot!(told);
    assert!(world.runs(EAST) && !world.runs(WEST));
}

#[test]
fn a_vm_that_did_not_run_is_not_started() {
    let mut seen = observed();
    let east = seen.sides.get_mut(EAST).unwrap();
    east.vmi = Seen::Absent;
    let Seen::Present(vm) = &mut east.vm else {
        panic!()
    };
    vm["spec"]["runStrategy"] = json!("Halted");
    let mut world = World::new(seen);
    world.settle();
    assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
    assert!(!world.runs(EAST));
}

#[test]
fn naming_another_policy_is_told_and_has_no_effect() {
    let mut seen = validating();
    seen.policies.push(policy("gold", false));
    seen.request.spec.replication_policy_ref = Some(farshore_api::LocalRef {
        name: "gold".into(),
    });
    let decision = decide(&seen, "2026-01-01T00:00:30Z".parse().unwrap());
    let ignored = conditions::get(&decision.status.conditions, "PolicyIgnored").unwrap();
    assert_eq!(ignored.status, "True");
    assert!(
        ignored.message.contains("gold") && ignored.message.contains("metro1-default"),
        "{}",
        ignored.message
    );
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

/// As a group controller does before a flip.
pub fn stop_both(world: &mut World) {
    for cluster in [EAST, WEST] {
        let Seen::Present(machine) = &mut world.side(cluster).vm else {
            continue;
        };
        vm::halt(machine);
        world.kubevirt(cluster);
    }
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

#[test]
fn a_refused_request_does_not_keep_out_the_one_that_corrects_it() {
    let mut seen = validating();
    let mut refused = request("aaa", "db01");
    refused.metadata.creation_timestamp = Some(
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
    );
    refused.status = Some(farshore_api::protection_request::ProtectionRequestStatus {
        phase: Some(ProtectionPhase::Failed),
        ..Default::default()
    });
    seen.others.push(refused.clone());
    assert!(
        verdict(&seen).contains("Validated=True"),
        "{}",
        verdict(&seen)
    );
    refused.status = None;
    seen.others = vec![refused];
    assert!(
        verdict(&seen).contains("VMAlreadyProtected"),
        "{}",
        verdict(&seen)
    );
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

#[test]
fn ports_of_others_are_passed_over_and_kept_once_chosen() {
    let mut seen = validating();
    let mut other = request("app01", "app01");
    other.status = Some(
        serde_json::from_value(
            json!({"volumes": [{"name": "d", "pvc": "d", "sizeBytes": 1, "port": 7000}]}),
        )
        .unwrap(),
    );
    seen.others.push(other);
    seen.sides.get_mut(WEST).unwrap().ports = Seen::Present(vec![("shop/drbd-x".into(), 7002)]);
    let decision = decide(&seen, "2026-01-01T00:00:30Z".parse().unwrap());
    let ports: Vec<i32> = decision.status.volumes.iter().map(|v| v.port).collect();
    assert_eq!(ports, [7001, 7003]);
    assert_eq!(
        decision.steps,
        [],
        "ports are written before anything is created"
    );
}

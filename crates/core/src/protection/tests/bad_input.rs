//! Bad input ends in a condition that says what to do, and is looked at again when the world changes.

use crate::protection::{Observed, Side, decide};
use crate::{Seen, conditions, vm};
use farshore_api::protection_request::ProtectionPhase;
use serde_json::{Value, json};

use super::world::{
    EAST, WEST, World, agrees, claim, machine, observed, policy, request, stop_both,
};

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

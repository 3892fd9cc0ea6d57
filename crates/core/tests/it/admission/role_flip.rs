//! `spec.sourceCluster` of a ProtectionRequest.

use std::collections::BTreeMap;

use farshore_api::meta::finalizers;
use farshore_api::{DRBDResource, ProtectionRequest};
use farshore_core::admission::protection_request::judge;
use farshore_core::{Seen, protection};
use serde_json::json;

use super::requests::{facts, with};
use super::world::*;
use super::{Case, table};

#[test]
fn the_role_flip_is_a_failovers_and_every_way_out_that_is_named_stays_open() {
    const NO: Option<&str> = Some("spec.sourceCluster can only be changed by a FailoverRequest");
    let flip = |old: &ProtectionRequest| update(old, |r| r.spec.source_cluster = "west".into());
    let moved = Seen::Present("shop-1".to_string());
    let running = with(|f| f.failover = moved.clone());
    let silent = with(|f| f.failover = unknown());
    let well = in_phase("db01", "Protected");
    let on_west = |name: &str| {
        let mut r = in_phase(name, "Protected");
        r.spec.source_cluster = "west".into();
        r
    };
    let grouped = |other: ProtectionRequest| {
        with(|f| {
            f.groups = Seen::Present(vec![group("shop", &["db01", "db02"])]);
            f.requests = Seen::Present(vec![in_phase("db01", "Protected"), other]);
        })
    };
    let mut stray = well.clone();
    stray.spec.source_cluster = "north".into();
    let mut changed = in_phase("db01", "Syncing");
    changed.spec.source_cluster = "west".into();
    let back = update(&changed, |r| r.spec.source_cluster = "east".into());
    let lost = update(&well, |r| r.spec.source_cluster = "north".into());
    let cases = [
        Case(
            "the manager during a failover",
            judge(&by(MANAGER, flip(&well)), &running),
            None,
        ),
        Case(
            "the manager, lock not read",
            judge(&by(MANAGER, flip(&well)), &silent),
            None,
        ),
        Case(
            "the manager without a failover",
            judge(&by(MANAGER, flip(&well)), &facts()),
            NO,
        ),
        Case(
            "a person during a failover",
            judge(&flip(&well), &running),
            NO,
        ),
        Case(
            "a person during a failover, request broken",
            judge(&flip(&broken("db01")), &running),
            NO,
        ),
        Case(
            "a person during a failover, request going",
            judge(&flip(&leaving(&well)), &running),
            NO,
        ),
        Case(
            "the zone controller during a failover",
            judge(&by(ZONE_CONTROLLER, flip(&well)), &running),
            NO,
        ),
        Case(
            "another zone's manager",
            judge(
                &by(
                    "system:serviceaccount:dr-x:manager-control-plane",
                    flip(&well),
                ),
                &running,
            ),
            NO,
        ),
        Case("a person, all is well", judge(&flip(&well), &facts()), NO),
        Case(
            "a person, the copy is only behind",
            judge(&flip(&in_phase("db01", "Degraded")), &facts()),
            NO,
        ),
        Case(
            "a person, roles on their way",
            judge(&flip(&in_phase("db01", "FailingOver")), &facts()),
            NO,
        ),
        Case(
            "a person, the first copy runs",
            judge(&flip(&in_phase("db01", "Syncing")), &facts()),
            NO,
        ),
        Case(
            "way out: back, while the pair is made",
            judge(&back, &facts()),
            None,
        ),
        Case(
            "way out: being deleted",
            judge(&flip(&leaving(&well)), &facts()),
            None,
        ),
        Case(
            "way out: a DRBDResource is gone",
            judge(&flip(&broken("db01")), &facts()),
            None,
        ),
        Case(
            "way out: source is no cluster of the zone",
            judge(&flip(&stray), &facts()),
            None,
        ),
        Case(
            "way out: nothing made yet",
            judge(&flip(&request("db01")), &facts()),
            None,
        ),
        Case(
            "way out: refused by validation",
            judge(&flip(&in_phase("db01", "Failed")), &facts()),
            None,
        ),
        Case(
            "way out: a member of its group is broken",
            judge(&flip(&well), &grouped(broken("db02"))),
            None,
        ),
        Case(
            "way out: a member of its group is there",
            judge(&flip(&well), &grouped(on_west("db02"))),
            None,
        ),
        Case(
            "no way out: the other member goes",
            judge(&flip(&well), &grouped(leaving(&broken("db02")))),
            NO,
        ),
        Case(
            "no way out: the group is well",
            judge(&flip(&well), &grouped(in_phase("db02", "Protected"))),
            NO,
        ),
        Case(
            "PR-4 to nowhere",
            judge(&lost, &facts()),
            Some("spec.sourceCluster \"north\" is not a cluster of ProtectionZone metro1"),
        ),
    ];
    insta::assert_snapshot!(table(&cases));
}

/// What protection says about a request whose DRBDResources are these, by cluster.
fn told(
    request: ProtectionRequest,
    east: Seen<DRBDResource>,
    west: Seen<DRBDResource>,
) -> (ProtectionRequest, String) {
    let side = |resource| protection::Side {
        vm: Seen::Present(protected_machine()),
        namespace: Seen::Present(()),
        secret: Seen::Present(()),
        resource,
        ..protection::Side::empty()
    };
    let mut seen = protection::Observed {
        request,
        zone: Some(zone()),
        zone_namespace_uid: "uid".into(),
        policies: vec![policy("metro1-default", true)],
        others: vec![],
        drbd_volumes: vec![],
        locked_by: None,
        sides: [("east".into(), side(east)), ("west".into(), side(west))].into(),
        trouble: None,
    };
    seen.request.metadata.finalizers = Some(vec![finalizers::UNPROTECT.into()]);
    let decision = protection::decide(&seen, jiff::Timestamp::UNIX_EPOCH);
    let all: Vec<&str> = decision
        .status
        .conditions
        .iter()
        .map(|c| c.message.as_str())
        .collect();
    let text = all.join("\n");
    seen.request.status = Some(decision.status);
    (seen.request, text)
}

/// The states are those of the real decisions, so that neither side of the rule can change alone.
#[test]
fn who_does_what_a_condition_says_about_source_cluster_may_do_it() {
    let on = |role: &str| {
        let told = json!({"role": role, "roleEpoch": 3, "diskState": "UpToDate", "volumes": []});
        Seen::Present(with_status(&resource(role, &[7000, 7001]), told))
    };
    let well = || in_phase("db01", "Protected");
    let source = |mut request: ProtectionRequest, cluster: &str| {
        request.spec.source_cluster = cluster.into();
        request
    };
    let (here, there) = (
        "now east",
        "spec.sourceCluster of this ProtectionRequest to west, whose disks are UpToDate",
    );
    for (request, east, west, says, to) in [
        (well(), Seen::Absent, on("Secondary"), there, "west"),
        (well(), Seen::Absent, Seen::Absent, here, "west"),
        (
            source(well(), "north"),
            on("Primary"),
            on("Secondary"),
            "set it to east or west",
            "east",
        ),
        (
            source(in_phase("db01", "Syncing"), "west"),
            on("Primary"),
            on("Secondary"),
            "set it back to east",
            "east",
        ),
        (leaving(&well()), on("Primary"), on("Secondary"), "", "west"),
    ] {
        let (request, text) = told(request, east, west);
        assert!(text.contains(says), "{says}: {text}");
        let asked = update(&request, |r| r.spec.source_cluster = to.into());
        let verdict = judge(&asked, &facts());
        assert!(verdict.is_allowed(), "{text}\n{verdict:?}");
        let moved = with(|f| f.failover = Seen::Present("shop-1".into()));
        assert!(
            !judge(&asked, &moved).is_allowed(),
            "a failover has the request"
        );
    }
}

/// Every sentence of this crate that names the field has its place in the rule's table. One that comes must
/// be looked at: does the rule let its reader do what it says?
#[test]
fn no_sentence_about_source_cluster_came_unseen() {
    fn count(folder: &std::path::Path, found: &mut BTreeMap<String, usize>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "admission" && name != "tests" {
                count(&path, found);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let text = std::fs::read_to_string(&path).unwrap();
                let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
                let n: usize = code.map(|l| l.matches("spec.sourceCluster").count()).sum();
                if n > 0 {
                    *found.entry(name).or_default() += n;
                }
            }
        }
    }
    let mut found = BTreeMap::new();
    count(
        format!("{}/src", env!("CARGO_MANIFEST_DIR")).as_ref(),
        &mut found,
    );
    let known = [
        ("bring_up.rs", 1),
        ("flip.rs", 2),
        ("health.rs", 2),
        ("scene.rs", 1),
        ("unprotect.rs", 2),
        ("validate.rs", 1),
    ];
    let known: BTreeMap<String, usize> = known.map(|(f, n)| (f.to_string(), n)).into();
    assert_eq!(found, known);
}

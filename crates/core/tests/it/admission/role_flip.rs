//! `spec.sourceCluster` of a ProtectionRequest.

use farshore_api::ProtectionRequest;
use farshore_core::Seen;
use farshore_core::admission::protection_request::judge;

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

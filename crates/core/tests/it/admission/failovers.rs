//! FailoverRequests and TestFailovers.

use farshore_api::FailoverRequest;
use farshore_core::Seen;
use farshore_core::admission::{failover_request, test_failover};
use serde_json::{Value, json};

use super::groups::west;
use super::world::*;
use super::{Case, could_not_read, table};

/// The group on east with this status, and its members in this phase.
pub fn failover_facts(desired: &str, current: &str, phase: &str) -> failover_request::Facts {
    let mut group = group("shop", &["db01", "db02"]);
    group.spec.desired_state = parsed(json!(desired));
    let status = json!({"activeCluster": "east", "currentState": current});
    failover_request::Facts {
        zone: Seen::Present(zone()),
        group: Seen::Present(with_status(&group, status)),
        requests: Seen::Present(vec![in_phase("db01", phase), in_phase("db02", "Protected")]),
        failover: Seen::Absent,
    }
}

#[test]
fn a_failover_is_refused_only_for_what_is_surely_wrong() {
    use failover_request::{Facts, judge};
    let well = || failover_facts("running", "running", "Protected");
    let with = |change: fn(&mut Facts)| {
        let mut facts = well();
        change(&mut facts);
        facts
    };
    let there = || create(&failover("shop-1", "west"));
    let here = || create(&failover("shop-1", "east"));
    let edit = |change: fn(&mut FailoverRequest)| {
        let mut request = failover("shop-1", "west");
        change(&mut request);
        create(&request)
    };
    let drain = |n: i32| {
        let mut request = failover("shop-1", "west");
        request.spec.drain_timeout_seconds = Some(n);
        judge(&create(&request), &well())
    };
    let range = Some("spec.drainTimeoutSeconds must be between 0 and 3600");
    let active =
        Some("spec.targetCluster \"east\" is already the active cluster of ProtectionGroup shop");
    let cases = [
        Case("a plain failover", judge(&there(), &well()), None),
        Case("FR-1 too long", drain(3601), range),
        Case("FR-1 below 0", drain(-1), range),
        Case("FR-1 the longest", drain(3600), None),
        Case(
            "FR-2 no group",
            judge(&there(), &with(|f| f.group = Seen::Absent)),
            Some("ProtectionGroup shop not found in namespace dr-metro1"),
        ),
        Case(
            "FR-3 unknown cluster",
            judge(&create(&failover("shop-1", "north")), &well()),
            Some("spec.targetCluster \"north\" is not a cluster of ProtectionZone metro1"),
        ),
        Case("FR-3 there already", judge(&here(), &well()), active),
        Case(
            "FR-3 there already, stopped on purpose",
            judge(&here(), &failover_facts("stopped", "stopped", "Protected")),
            active,
        ),
        Case(
            "to go on: stopped, roles on their way",
            judge(
                &here(),
                &failover_facts("stopped", "stopped", "FailingOver"),
            ),
            None,
        ),
        Case(
            "to go on: VMs do not all run",
            judge(&here(), &failover_facts("running", "mixed", "Protected")),
            None,
        ),
        Case(
            "to go on: a member stands on the other side",
            judge(
                &here(),
                &with(|f| {
                    f.requests = Seen::Present(vec![
                        in_phase("db01", "Protected"),
                        west(in_phase("db02", "Protected")),
                    ])
                }),
            ),
            None,
        ),
        Case(
            "to go on: a member has no request",
            judge(
                &here(),
                &with(|f| f.requests = Seen::Present(vec![in_phase("db01", "Protected")])),
            ),
            None,
        ),
        Case(
            "FR-5 there, but another moves it away",
            judge(
                &here(),
                &with(|f| f.failover = Seen::Present("shop-0".into())),
            ),
            None,
        ),
        Case(
            "FR-5 a second one",
            judge(
                &there(),
                &with(|f| f.failover = Seen::Present("shop-0".into())),
            ),
            None,
        ),
        Case(
            "zone not validated",
            judge(&there(), &with(|f| f.zone = Seen::Present(bare_zone()))),
            None,
        ),
        Case(
            "no zone",
            judge(&there(), &with(|f| f.zone = Seen::Absent)),
            Some(
                "there is no ProtectionZone in namespace dr-metro1; create one first, or use the namespace of a zone",
            ),
        ),
        Case(
            "unplanned",
            judge(
                &edit(|r| r.spec.failover_type = parsed(json!("unplanned"))),
                &well(),
            ),
            None,
        ),
    ];
    insta::assert_snapshot!(table(&cases));

    assert!(could_not_read(
        &judge(&there(), &with(|f| f.group = unknown())),
        "ProtectionGroup shop"
    ));
    assert!(could_not_read(
        &judge(&there(), &with(|f| f.zone = unknown())),
        "ProtectionZone"
    ));
    assert!(could_not_read(
        &judge(&here(), &with(|f| f.requests = unknown())),
        "ProtectionRequests"
    ));
    // A failover to the other side depends on neither.
    let blind = with(|f| (f.requests, f.failover) = (unknown(), unknown()));
    assert!(judge(&there(), &blind).is_allowed());
}

#[test]
fn a_failover_keeps_its_spec_but_for_abort() {
    use failover_request::judge;
    let in_state = |state: &str| with_status(&failover("shop-1", "west"), json!({"state": state}));
    let old = in_state("StoppingOnSource");
    let facts = failover_facts("running", "running", "Protected");
    let edit = |change: fn(&mut FailoverRequest)| judge(&update(&old, change), &facts);
    let no = Some("FailoverRequest spec is immutable");
    let mut aborted = old.clone();
    aborted.spec.abort = true;
    let late = update(&in_state("PromotingTarget"), |r| r.spec.abort = true);
    let cases = [
        Case(
            "FR-4 target",
            edit(|r| r.spec.target_cluster = "east".into()),
            no,
        ),
        Case(
            "FR-4 force, with abort",
            edit(|r| (r.spec.force, r.spec.abort) = (true, true)),
            no,
        ),
        Case(
            "FR-4 drainTimeoutSeconds",
            edit(|r| r.spec.drain_timeout_seconds = Some(1)),
            no,
        ),
        Case("abort", edit(|r| r.spec.abort = true), None),
        Case("abort, too late", judge(&late, &facts), None),
        Case(
            "abort taken back",
            judge(&update(&aborted, |r| r.spec.abort = false), &facts),
            Some("spec.abort cannot be taken back"),
        ),
        Case("deletion", judge(&delete(&old), &facts), None),
    ];
    insta::assert_snapshot!(table(&cases));
}

pub fn test_facts() -> test_failover::Facts {
    test_failover::Facts {
        ours: on_hub(),
        group: Seen::Present(with_status(
            &group("shop", &["db01"]),
            json!({"activeCluster": "east"}),
        )),
        tests: Seen::Present(vec![]),
        failover: Seen::Absent,
    }
}

#[test]
fn a_group_has_one_test_and_its_namespace_is_the_managers() {
    use test_failover::{Facts, judge};
    let with = |change: fn(&mut Facts)| {
        let mut facts = test_facts();
        change(&mut facts);
        facts
    };
    let on = |cluster: &str| {
        let mut test = test("t1");
        test.spec.target_cluster = Some(cluster.into());
        judge(&create(&test), &test_facts())
    };
    let new = || create(&test("t1"));
    let in_phase = |phase: &str| -> Seen<Vec<_>> {
        Seen::Present(vec![with_status(&test("t0"), json!({"phase": phase}))])
    };
    let beside = |phase: &str| {
        let mut facts = test_facts();
        facts.tests = in_phase(phase);
        judge(&new(), &facts)
    };
    let named = |status: Value| update(&test("t1"), |t| t.status = parsed(status));
    let second = Some("ProtectionGroup shop already has an active TestFailover t0");
    let cases = [
        Case("a test", judge(&new(), &test_facts()), None),
        Case("on the standby side", on("west"), None),
        Case(
            "on the active side",
            on("east"),
            Some(
                "spec.targetCluster \"east\" is already the active cluster of ProtectionGroup shop",
            ),
        ),
        Case(
            "no group",
            judge(&new(), &with(|f| f.group = Seen::Absent)),
            Some("ProtectionGroup shop not found in namespace dr-metro1"),
        ),
        Case("another runs", beside("Running"), second),
        Case(
            "another is new",
            judge(&new(), &with(|f| f.tests = Seen::Present(vec![test("t0")]))),
            second,
        ),
        Case(
            "another goes",
            judge(
                &new(),
                &with(|f| f.tests = Seen::Present(vec![leaving(&test("t0"))])),
            ),
            second,
        ),
        Case("another has ended", beside("Failed"), None),
        Case(
            "a failover runs",
            judge(
                &new(),
                &with(|f| f.failover = Seen::Present("shop-1".into())),
            ),
            Some("ProtectionGroup shop is locked by FailoverRequest shop-1"),
        ),
        Case(
            "testNamespace by hand",
            judge(&named(json!({"testNamespace": "mine"})), &test_facts()),
            Some("status.testNamespace is written by Site Recovery alone; leave it as it is"),
        ),
        Case(
            "testNamespace by the manager",
            judge(
                &by(MANAGER, named(json!({"testNamespace": "x"}))),
                &test_facts(),
            ),
            None,
        ),
        Case(
            "another part of the status",
            judge(&named(json!({"phase": "Failed"})), &test_facts()),
            None,
        ),
        Case("deletion", judge(&delete(&test("t1")), &test_facts()), None),
    ];
    insta::assert_snapshot!(table(&cases));

    assert!(could_not_read(
        &judge(&new(), &with(|f| f.group = unknown())),
        "ProtectionGroup shop"
    ));
    assert!(could_not_read(
        &judge(&new(), &with(|f| f.failover = unknown())),
        "whether a failover moves ProtectionGroup shop"
    ));
    assert!(could_not_read(
        &judge(&new(), &with(|f| f.tests = unknown())),
        "TestFailovers"
    ));
}

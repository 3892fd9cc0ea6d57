//! ProtectionRequests.

use farshore_api::ProtectionRequest;
use farshore_api::drbd::Protocol;
use farshore_core::Seen;
use farshore_core::admission::protection_request::{Facts, judge};
use farshore_core::admission::{Asked, Verdict};
use serde_json::json;

use super::world::*;
use super::{Case, could_not_read, table};

/// A namespace in which everything was read and nothing is in the way.
pub fn facts() -> Facts {
    Facts {
        ours: on_hub(),
        zone: Seen::Present(zone()),
        policies: Seen::Present(vec![policy("metro1-default", true), policy("fast", false)]),
        requests: Seen::Present(vec![]),
        groups: Seen::Present(vec![]),
        failover: Seen::Absent,
        vm: Seen::Present(machine()),
    }
}

pub fn blind() -> Facts {
    Facts {
        ours: on_hub(),
        zone: unknown(),
        policies: unknown(),
        requests: unknown(),
        groups: unknown(),
        failover: unknown(),
        vm: unknown(),
    }
}

pub fn with(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = facts();
    change(&mut facts);
    facts
}

fn new(edit: impl FnOnce(&mut ProtectionRequest)) -> Asked<ProtectionRequest> {
    let mut request = request("db01");
    edit(&mut request);
    create(&request)
}

fn disks(n: usize) -> serde_json::Value {
    let mut vm = machine();
    let volume = |i| json!({"name": format!("d{i}"), "persistentVolumeClaim": {"claimName": format!("d{i}")}});
    vm["spec"]["template"]["spec"]["volumes"] = (0..n).map(volume).collect();
    vm
}

#[test]
fn a_request_is_accepted_when_it_can_be_carried_out() {
    let free = facts();
    let zone_in = |status: &str, reason: &str| {
        let told = condition("ClustersValidated", status, reason);
        let zone = with_status(&bare_zone(), json!({"conditions": [told]}));
        with(|f| f.zone = Seen::Present(zone))
    };
    let gate = with(|f| {
        let mut zone = zone();
        let gates = &mut zone.spec.feature_gates;
        gates.insert("ReplicationProtocolA".into(), true);
        f.zone = Seen::Present(zone);
    });
    let beside = |other: ProtectionRequest| with(|f| f.requests = Seen::Present(vec![other]));
    let same_vm = |name: &str, phase: &str| {
        let mut other = in_phase(name, phase);
        other.spec.vm_name = "db01".into();
        other
    };
    let plain = || new(|_| ());
    let protocol_a = || new(|r| r.spec.replication_protocol = Protocol::A);
    let north = "spec.sourceCluster \"north\" is not a cluster of ProtectionZone metro1";
    let cases = [
        Case("a plain request", judge(&plain(), &free), None),
        Case(
            "PR-1 protocol A",
            judge(&protocol_a(), &free),
            Some("ReplicationProtocolA is not supported yet"),
        ),
        Case(
            "PR-1 protocol A, and no zone",
            judge(&protocol_a(), &with(|f| f.zone = Seen::Absent)),
            Some("ReplicationProtocolA is not supported yet"),
        ),
        Case(
            "PR-1 protocol A with the gate, with an rpo",
            judge(
                &new(|r| (r.spec.replication_protocol, r.spec.rpo) = (Protocol::A, 30)),
                &gate,
            ),
            None,
        ),
        Case(
            "PR-2 rpo with protocol C",
            judge(&new(|r| r.spec.rpo = 30), &free),
            Some("spec.rpo must be 0 when spec.replicationProtocol is C"),
        ),
        Case(
            "PR-3 zone not validated",
            judge(&plain(), &zone_in("False", "ClusterAlreadyClaimed")),
            Some(
                "ProtectionZone metro1 is not validated: ClustersValidated=False reason=ClusterAlreadyClaimed",
            ),
        ),
        Case(
            "PR-3 zone not probed",
            judge(&plain(), &with(|f| f.zone = Seen::Present(bare_zone()))),
            Some(
                "ProtectionZone metro1 is not validated: ClustersValidated=Unknown reason=NotYetProbed",
            ),
        ),
        Case(
            "PR-3 no zone",
            judge(&plain(), &with(|f| f.zone = Seen::Absent)),
            Some(
                "there is no ProtectionZone in namespace dr-metro1; create one first, or use the namespace of a zone",
            ),
        ),
        Case(
            "PR-3 zone on its way out",
            judge(
                &plain(),
                &with(|f| f.zone = Seen::Present(leaving(&zone()))),
            ),
            Some(
                "ProtectionZone metro1 is being deleted; create nothing new in namespace dr-metro1 until it is made again",
            ),
        ),
        Case(
            "PR-4 unknown cluster",
            judge(&new(|r| r.spec.source_cluster = "north".into()), &free),
            Some(north),
        ),
        Case(
            "PR-4 the other cluster",
            judge(&new(|r| r.spec.source_cluster = "west".into()), &free),
            None,
        ),
        Case(
            "PR-5 VM protected",
            judge(&plain(), &beside(same_vm("first", "Protected"))),
            Some("VirtualMachine shop/db01 is already protected by ProtectionRequest first"),
        ),
        Case(
            "PR-5 VM still held by one that goes",
            judge(
                &plain(),
                &beside(leaving(&same_vm("first", "Unprotecting"))),
            ),
            Some("VirtualMachine shop/db01 is already protected by ProtectionRequest first"),
        ),
        Case(
            "PR-5 the other was refused and holds disks",
            judge(&plain(), &beside(same_vm("first", "Failed"))),
            Some("VirtualMachine shop/db01 is already protected by ProtectionRequest first"),
        ),
        Case(
            "PR-5 the other was refused",
            judge(
                &plain(),
                &beside({
                    let mut r = same_vm("first", "Failed");
                    r.status.as_mut().unwrap().volumes.clear();
                    r
                }),
            ),
            None,
        ),
        Case(
            "PR-5 another VM",
            judge(&plain(), &beside(in_phase("db02", "Protected"))),
            None,
        ),
        Case(
            "PR-6 too many disks",
            judge(&plain(), &with(|f| f.vm = Seen::Present(disks(17)))),
            Some("VirtualMachine shop/db01 has 17 disks; at most 15 are supported"),
        ),
        Case(
            "PR-6 as many as there may be",
            judge(&plain(), &with(|f| f.vm = Seen::Present(disks(15)))),
            None,
        ),
        Case(
            "VM not there",
            judge(&plain(), &with(|f| f.vm = Seen::Absent)),
            None,
        ),
        Case(
            "a policy that does not govern",
            judge(
                &new(|r| r.spec.replication_policy_ref = Some(parsed(json!({"name": "fast"})))),
                &free,
            ),
            None,
        ),
        Case(
            "the policy that governs",
            judge(
                &new(|r| {
                    r.spec.replication_policy_ref = Some(parsed(json!({"name": "metro1-default"})))
                }),
                &free,
            ),
            None,
        ),
    ];
    insta::assert_snapshot!(table(&cases));
}

#[test]
fn what_was_chosen_at_creation_stays() {
    let old = in_phase("db01", "Protected");
    let change = |edit: fn(&mut ProtectionRequest)| judge(&update(&old, edit), &blind());
    let vm = Some("spec.vmName and spec.vmNamespace are immutable");
    let cases = [
        Case(
            "PR-7 vmName",
            change(|r| r.spec.vm_name = "db02".into()),
            vm,
        ),
        Case(
            "PR-7 vmNamespace",
            change(|r| r.spec.vm_namespace = "x".into()),
            vm,
        ),
        Case(
            "PR-7 replicationProtocol",
            change(|r| r.spec.replication_protocol = Protocol::A),
            Some("spec.replicationProtocol is immutable"),
        ),
        Case(
            "PR-7 rpo",
            change(|r| r.spec.rpo = 9),
            Some("spec.rpo is immutable"),
        ),
        Case(
            "PR-7 replicationPolicyRef",
            change(|r| r.spec.replication_policy_ref = Some(parsed(json!({"name": "fast"})))),
            Some("spec.replicationPolicyRef is immutable"),
        ),
        Case(
            "PR-7 syncMode",
            change(|r| r.spec.sync_mode = parsed(json!("Online"))),
            Some("spec.syncMode is immutable"),
        ),
        Case(
            "PR-7 placement",
            change(|r| r.spec.placement = Some(Default::default())),
            Some("spec.placement is immutable"),
        ),
        Case("paused may change", change(|r| r.spec.paused = true), None),
    ];
    insta::assert_snapshot!(table(&cases));
}

#[test]
fn a_request_under_failover_is_not_deleted() {
    let old = in_phase("db01", "Protected");
    let moved = with(|f| f.failover = Seen::Present("shop-1".into()));
    let no = "ProtectionRequest db01 is part of active FailoverRequest shop-1";
    let cases = [
        Case(
            "PR-9 during a failover",
            judge(&delete(&old), &moved),
            Some(no),
        ),
        Case(
            "PR-9 by the manager",
            judge(&by(MANAGER, delete(&old)), &moved),
            Some(no),
        ),
        Case("without a failover", judge(&delete(&old), &facts()), None),
        Case(
            "its namespace goes",
            judge(&by(NAMESPACES, delete(&old)), &moved),
            None,
        ),
        Case(
            "its owner is gone",
            judge(&by(COLLECTOR, delete(&old)), &moved),
            None,
        ),
        Case(
            "being deleted already",
            judge(&delete(&leaving(&old)), &moved),
            None,
        ),
    ];
    insta::assert_snapshot!(table(&cases));
}

#[test]
fn what_could_not_be_read_is_never_taken_for_absent() {
    let plain = new(|_| ());
    let old = in_phase("db01", "Protected");
    let flip = update(&old, |r| r.spec.source_cluster = "west".into());
    let grouped = |f: &mut Facts| f.groups = Seen::Present(vec![group("shop", &["db01"])]);
    let rows: [(&str, Verdict); 9] = [
        (
            "ProtectionZone of namespace dr-metro1",
            judge(&plain, &with(|f| f.zone = unknown())),
        ),
        (
            "ProtectionRequests of namespace dr-metro1",
            judge(&plain, &with(|f| f.requests = unknown())),
        ),
        (
            "VirtualMachine shop/db01 (cluster east)",
            judge(&plain, &with(|f| f.vm = unknown())),
        ),
        (
            "ProtectionZone of namespace dr-metro1",
            judge(
                &new(|r| r.spec.replication_protocol = Protocol::A),
                &with(|f| f.zone = unknown()),
            ),
        ),
        (
            "whether a failover moves ProtectionRequest db01",
            judge(&flip, &with(|f| f.failover = unknown())),
        ),
        (
            "ProtectionZone of namespace dr-metro1",
            judge(&flip, &with(|f| f.zone = unknown())),
        ),
        (
            "ProtectionGroups of namespace dr-metro1",
            judge(&flip, &with(|f| f.groups = unknown())),
        ),
        (
            "ProtectionRequests of namespace dr-metro1",
            judge(
                &flip,
                &with(|f| {
                    grouped(f);
                    f.requests = unknown();
                }),
            ),
        ),
        (
            "whether a failover moves ProtectionRequest db01",
            judge(&delete(&old), &with(|f| f.failover = unknown())),
        ),
    ];
    for (what, verdict) in rows {
        assert!(could_not_read(&verdict, what), "{what}: {verdict:?}");
    }
    // What the answer does not depend on need not be known: a warning less, that is all.
    let told = judge(
        &plain,
        &with(|f| {
            f.policies = unknown();
            f.groups = unknown();
            f.failover = unknown();
        }),
    );
    assert_eq!(told, Verdict::default());
}

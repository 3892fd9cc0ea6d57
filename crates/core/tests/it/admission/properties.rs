//! What holds for every answer.

use farshore_api::drbd::Protocol;
use farshore_api::{DRBDResource, ProtectionGroup, ProtectionRequest};
use farshore_core::Seen;
use farshore_core::admission::{
    Asked, Change, Reason, Requester, Reviewed, Verdict, drbd_resource, failover_request,
    migration, policy, protection_group, protection_request, rpo_event, test_failover,
    virtual_machine, zone,
};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::failovers::{failover_facts, test_facts};
use super::groups::group_facts;
use super::machines::vm_facts;
use super::policies::{event, policy_facts};
use super::requests;
use super::resources::resource_facts;
use super::world::*;
use super::zones::zone_facts;

const PEOPLE: [&str; 7] = [
    "anna",
    MANAGER,
    ZONE_CONTROLLER,
    WORKLOAD,
    REMOTE,
    NAMESPACES,
    COLLECTOR,
];

fn who() -> impl Strategy<Value = Requester> {
    proptest::sample::select(&PEOPLE[..]).prop_map(user)
}

/// Anything that JSON can be.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z./-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof!["[a-z]{1,8}", Just("name".to_string())];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// A VM with something odd in one or two of the places that are looked at.
fn odd_machine() -> impl Strategy<Value = Value> {
    let place = proptest::sample::select(
        &[
            "",
            "/metadata",
            "/metadata/name",
            "/metadata/annotations",
            "/metadata/annotations/siterecovery.trilio.io~1protected-by",
            "/metadata/annotations/siterecovery.trilio.io~1original-volumes",
            "/metadata/deletionTimestamp",
            "/spec",
            "/spec/runStrategy",
            "/spec/template/spec",
            "/spec/template/spec/nodeSelector",
            "/spec/template/spec/volumes",
            "/spec/template/spec/volumes/0",
            "/spec/template/spec/volumes/0/persistentVolumeClaim",
        ][..],
    );
    let spot = (place, anything());
    let base = prop_oneof![Just(machine()), Just(protected_machine())];
    (base, proptest::collection::vec(spot, 0..3)).prop_map(|(mut vm, spots)| {
        vm["metadata"]["deletionTimestamp"] = Value::Null;
        for (place, value) in spots {
            if let Some(at) = vm.pointer_mut(place) {
                *at = value;
            }
        }
        vm
    })
}

fn fact<T: Clone + std::fmt::Debug + 'static>(of: T) -> impl Strategy<Value = Seen<T>> {
    prop_oneof![Just(Seen::Present(of)), Just(Seen::Absent), Just(unknown())]
}

fn resource_there() -> impl Strategy<Value = Seen<DRBDResource>> {
    prop_oneof![
        fact(resource("Primary", &[7000, 7001])),
        fact(resource("Secondary", &[7000, 7001])),
    ]
}

/// What every refusal owes to its reader.
fn is_in_order(verdict: &Verdict) {
    let Some(refusal) = &verdict.refusal else {
        return;
    };
    let names_field = refusal.field.as_ref().is_some_and(|f| !f.is_empty());
    // Without a field the sentence names the object: by its kind, with a name behind it.
    let kinds = [
        "ProtectionRequest ",
        "VirtualMachine ",
        "DRBDResource ",
        "zone ",
        "policy ",
    ];
    let names_object = kinds.iter().any(|k| refusal.message.contains(k));
    let unread = refusal.reason == Reason::Unavailable && refusal.message.contains("try again");
    assert!(names_field || names_object || unread, "{refusal:?}");
    assert!(refusal.reason.code() >= 400 && !refusal.reason.as_str().is_empty());
}

/// The object with other metadata and another status: all that a controller writes.
fn touched<T: Serialize + DeserializeOwned>(object: &T, going: bool, status: Option<Value>) -> T {
    let mut value = serde_json::to_value(object).unwrap();
    value["metadata"]["labels"] = json!({"a": "b"});
    value["metadata"]["annotations"] = json!({"c": "d"});
    value["metadata"]["finalizers"] = json!([]);
    if going {
        value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:10:00Z");
    }
    match status {
        Some(status) => value["status"] = status,
        None => drop(value.as_object_mut().unwrap().remove("status")),
    }
    parsed(value)
}

fn passes<T: Serialize + DeserializeOwned + Clone + Reviewed>(
    object: &T,
    by: &Requester,
    going: bool,
    judge: impl Fn(&Asked<T>) -> Verdict,
) {
    let status = json!({"conditions": []});
    for status in [None, Some(status)] {
        let change = Change::Update {
            old: touched(object, going, None),
            new: touched(object, going, status),
        };
        let mut asked = Asked {
            change,
            by: by.clone(),
            dry_run: false,
        };
        assert_eq!(judge(&asked), Verdict::default());
        // A finalizer goes.
        if let Change::Update { old, .. } = &mut asked.change {
            *old = leaving(object);
        }
        assert_eq!(judge(&asked), Verdict::default());
    }
    // The deletion goes on, whoever asks.
    let asked = Asked {
        change: Change::Delete {
            old: leaving(object),
        },
        by: by.clone(),
        dry_run: false,
    };
    assert_eq!(judge(&asked), Verdict::default());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_leaves_the_spec_alone_is_never_refused(by in who(), going: bool) {
        let blind = requests::blind();
        passes(&in_phase("a", "Protected"), &by, going, |a| protection_request::judge(a, &blind));
        let blind = protection_group::Facts { zone: unknown(), requests: unknown(), groups: unknown(), failover: unknown() };
        passes(&group("a", &["b"]), &by, going, |a| protection_group::judge(a, &blind));
        let blind = failover_request::Facts { zone: unknown(), group: unknown(), requests: unknown(), failover: unknown() };
        passes(&failover("a", "west"), &by, going, |a| failover_request::judge(a, &blind));
        let blind = zone::Facts { zones: unknown(), requests: unknown() };
        passes(&bare_zone(), &by, going, |a| zone::judge(a, &blind));
        let blind = policy::Facts { ours: on_hub(), zone: unknown(), policies: unknown() };
        passes(&policy("metro1-default", true), &by, going, |a| policy::judge(a, &blind));
        let blind = test_failover::Facts { ours: on_hub(), group: unknown(), tests: unknown(), failover: unknown() };
        passes(&test("a"), &by, going, |a| test_failover::judge(a, &blind));
        passes(&event(), &by, going, rpo_event::judge);
        let blind = drbd_resource::Facts { ours: on_workload(), others: unknown() };
        passes(&resource("Primary", &[7000]), &by, going, |a| drbd_resource::judge(a, &blind));
        let blind = vm_facts(unknown());
        passes(&protected_machine(), &by, going, |a| virtual_machine::judge(a, &blind));
        let blind = migration::Facts { vm: unknown(), resource: unknown() };
        passes(&json!({"metadata": {"name": "m", "namespace": "shop"}, "spec": {"vmiName": "db01"}}), &by, going, |a| migration::judge(a, &blind));
    }

    #[test]
    fn any_json_gets_an_answer_about_a_vm(
        old in odd_machine(), new in odd_machine(), odd in anything(), by in who(), there in resource_there(), vm in fact(protected_machine()),
    ) {
        let facts = vm_facts(there.clone());
        let asked = |change| Asked { change, by: by.clone(), dry_run: false };
        for (old, new) in [(&old, &new), (&new, &odd), (&odd, &old)] {
            let (old, new) = (old.clone(), new.clone());
            is_in_order(&virtual_machine::judge(&asked(Change::Create { new: new.clone() }), &facts));
            is_in_order(&virtual_machine::judge(&asked(Change::Delete { old: old.clone() }), &facts));
            let verdict = virtual_machine::judge(&asked(Change::Update { old: old.clone(), new: new.clone() }), &facts);
            is_in_order(&verdict);
            let free = old.is_leaving() || old.get("spec") == new.get("spec") || on_workload().has(&by);
            prop_assert!(!free || verdict.is_allowed());
            let facts = migration::Facts { vm: vm.clone(), resource: there.clone() };
            is_in_order(&migration::judge(&asked(Change::Create { new: odd.clone() }), &facts));
        }
    }

    /// Unknown is not absent: a creation that is let through without a fact would be let through
    /// whatever the fact is.
    #[test]
    fn a_request_that_passes_unread_passes_whatever_is_there(
        zone in fact(zone()), others in fact(vec![in_phase("db01-old", "Protected"), { let mut r = in_phase("x", "Protected"); r.spec.vm_name = "db01".into(); r }]),
        vm in fact(machine()), moved in fact("shop-1".to_string()), a: bool, rpo in 0..2_i64, cluster in "east|west|north", by in who(),
    ) {
        let mut new = request("db01");
        new.spec.replication_protocol = if a { Protocol::A } else { Protocol::C };
        (new.spec.rpo, new.spec.source_cluster) = (rpo, cluster);
        let facts = protection_request::Facts { zone, requests: others, vm, failover: moved, ..requests::facts() };
        let old = in_phase("db01", "Protected");
        let mut flipped = old.clone();
        flipped.spec.source_cluster.clone_from(&new.spec.source_cluster);
        let manager = by.username == MANAGER;
        let asked = |change| Asked { change, by: by.clone(), dry_run: false };
        let questions = [
            asked(Change::Create { new }),
            asked(Change::Update { old: old.clone(), new: flipped }),
            asked(Change::Delete { old }),
        ];
        for question in questions {
            let verdict = protection_request::judge(&question, &facts);
            is_in_order(&verdict);
            let create = matches!(question.change, Change::Create { .. });
            let conflict = verdict.refusal.as_ref().is_some_and(|r| r.reason == Reason::Conflict);
            prop_assert!(!(create && conflict), "clients take it for: it is there already");
            if !verdict.is_allowed() {
                continue;
            }
            // Whatever was not read may turn out either way, but for the lock that the manager holds itself.
            let mut worst = facts.clone();
            if worst.zone.unknown().is_some() { worst.zone = Seen::Absent; }
            if worst.requests.unknown().is_some() { worst.requests = Seen::Present(vec![{ let mut r = in_phase("y", "Protected"); r.spec.vm_name = "db01".into(); r }]); }
            if worst.vm.unknown().is_some() { worst.vm = Seen::Absent; }
            if worst.failover.unknown().is_some() && !manager { worst.failover = Seen::Present("shop-2".into()); }
            let then = protection_request::judge(&question, &worst);
            prop_assert!(then.is_allowed(), "{question:?} {then:?}");
        }
    }

    #[test]
    fn a_dry_run_gets_the_same_answer(by in who(), member in "db01|db02|web|late", target in "east|west|north") {
        let both = |dry_run: bool| {
            let by = by.clone();
            let group: ProtectionGroup = group("shop", &[&member, "db01"]);
            let request: ProtectionRequest = request(&member);
            let tested = test("t1");
            let asked_fr = Asked { change: Change::Create { new: failover("f", &target) }, by: by.clone(), dry_run };
            let asked_pg = Asked { change: Change::Create { new: group }, by: by.clone(), dry_run };
            let asked_pr = Asked { change: Change::Create { new: request }, by: by.clone(), dry_run };
            let asked_tf = Asked { change: Change::Create { new: tested }, by: by.clone(), dry_run };
            let asked_pz = Asked { change: Change::Delete { old: bare_zone() }, by: by.clone(), dry_run };
            let asked_drp = Asked { change: Change::Create { new: policy("p", true) }, by: by.clone(), dry_run };
            let asked_dr = Asked { change: Change::Delete { old: resource("Primary", &[7000]) }, by: by.clone(), dry_run };
            let asked_vm = Asked { change: Change::Delete { old: protected_machine() }, by, dry_run };
            [
                failover_request::judge(&asked_fr, &failover_facts("running", "running", "Protected")),
                protection_group::judge(&asked_pg, &group_facts()),
                protection_request::judge(&asked_pr, &requests::facts()),
                test_failover::judge(&asked_tf, &test_facts()),
                zone::judge(&asked_pz, &zone_facts(2)),
                policy::judge(&asked_drp, &policy_facts()),
                drbd_resource::judge(&asked_dr, &resource_facts()),
                virtual_machine::judge(&asked_vm, &vm_facts(Seen::Absent)),
            ]
        };
        let answers = both(false);
        for verdict in &answers {
            is_in_order(verdict);
        }
        prop_assert_eq!(answers, both(true));
    }
}

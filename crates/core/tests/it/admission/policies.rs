//! DRBDReplicationPolicies and RPOEvents.

use farshore_api::{DRBDReplicationPolicy, RPOEvent};
use farshore_core::Seen;
use farshore_core::admission::{policy as of_policy, rpo_event};
use serde_json::json;

use super::world::*;
use super::{Case, could_not_read, table};

pub fn policy_facts() -> of_policy::Facts {
    of_policy::Facts {
        ours: on_hub(),
        zone: Seen::Present(zone()),
        policies: Seen::Present(vec![policy("metro1-default", true), policy("fast", false)]),
    }
}

#[test]
fn a_namespace_has_one_default_policy_and_the_zones_own_stays() {
    use of_policy::{Facts, judge};
    let with = |change: fn(&mut Facts)| {
        let mut facts = policy_facts();
        change(&mut facts);
        facts
    };
    let edit = |name: &str, default: bool, change: fn(&mut DRBDReplicationPolicy)| {
        update(&policy(name, default), change)
    };
    let (free, own) = (policy_facts(), policy("metro1-default", true));
    let odd = |p: &mut DRBDReplicationPolicy| {
        p.spec.protocol = parsed(json!("A"));
        p.spec.options = parsed(json!({"onNoQuorum": "io-error"}));
        p.spec.split_brain = parsed(json!({"policy": "DiscardOldPrimary"}));
    };
    let secret = |p: &mut DRBDReplicationPolicy| {
        p.spec.net.shared_secret_ref = parsed(json!({"name": "s"}));
    };
    let second =
        Some("namespace dr-metro1 already has a default DRBDReplicationPolicy metro1-default");
    let managed = Some("policy metro1-default is managed by ProtectionZone metro1");
    let make = |facts: fn(&mut Facts)| judge(&create(&policy("mine", true)), &with(facts));
    let cases = [
        Case(
            "one that is not the default",
            judge(&create(&policy("mine", false)), &free),
            None,
        ),
        Case("a second default", make(|_| ()), second),
        Case(
            "the first default",
            make(|f| f.policies = Seen::Absent),
            None,
        ),
        Case(
            "fields without effect",
            judge(&edit("fast", false, odd), &free),
            None,
        ),
        Case(
            "another becomes the default",
            judge(&edit("fast", false, |p| p.spec.is_default = true), &free),
            second,
        ),
        Case(
            "the zone's becomes it again",
            judge(
                &edit("metro1-default", false, |p| p.spec.is_default = true),
                &with(|f| f.policies = Seen::Present(vec![policy("mine", true)])),
            ),
            None,
        ),
        Case(
            "the zone's ceases to be it",
            judge(
                &edit("metro1-default", true, |p| p.spec.is_default = false),
                &free,
            ),
            managed,
        ),
        Case(
            "another ceases to be it",
            judge(&edit("mine", true, |p| p.spec.is_default = false), &free),
            None,
        ),
        Case(
            "the zone's gets other parameters",
            judge(
                &edit("metro1-default", true, |p| p.spec.resync_rate.max_kibps = 9),
                &free,
            ),
            None,
        ),
        Case(
            "another shared secret",
            judge(&edit("fast", false, secret), &free),
            Some("spec.net.sharedSecretRef is immutable"),
        ),
        Case(
            "the zone's is deleted",
            judge(&delete(&own), &free),
            managed,
        ),
        Case(
            "the zone's is deleted with it",
            judge(
                &delete(&own),
                &with(|f| f.zone = Seen::Present(leaving(&zone()))),
            ),
            None,
        ),
        Case(
            "the zone's is deleted, no zone",
            judge(&delete(&own), &with(|f| f.zone = Seen::Absent)),
            None,
        ),
        Case(
            "the collector deletes it",
            judge(&by(COLLECTOR, delete(&own)), &free),
            None,
        ),
        Case(
            "another is deleted",
            judge(&delete(&policy("fast", false)), &free),
            None,
        ),
        Case(
            "the zone controller makes its own",
            judge(
                &by(ZONE_CONTROLLER, create(&own)),
                &with(|f| f.policies = unknown()),
            ),
            None,
        ),
    ];
    insta::assert_snapshot!(table(&cases));

    let blind = |f: &mut Facts| (f.zone, f.policies) = (unknown(), unknown());
    assert!(could_not_read(
        &make(blind),
        "DRBDReplicationPolicies of namespace"
    ));
    assert!(could_not_read(
        &judge(&delete(&own), &with(blind)),
        "ProtectionZone of namespace"
    ));
}

pub fn event() -> RPOEvent {
    parsed(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "RPOEvent",
        "metadata": {"name": "e", "namespace": NS},
        "spec": {
            "protectionGroup": "shop", "replicationGroupStatus": "shop-replication", "previousStatus": "Compliant",
            "newStatus": "Violated", "eventType": "RPOViolated", "timestamp": "2026-01-01T00:00:00Z",
            "rpoObjectiveSeconds": 0, "message": "",
        },
    }))
}

#[test]
fn an_event_is_never_rewritten() {
    let rewritten = || update(&event(), |e| e.spec.message = "all is well".into());
    let no = Some("RPOEvent is immutable");
    let cases = [
        Case("by a person", rpo_event::judge(&rewritten()), no),
        Case(
            "by the manager",
            rpo_event::judge(&by(MANAGER, rewritten())),
            no,
        ),
        Case(
            "its labels",
            rpo_event::judge(&update(&event(), |e| {
                e.metadata.labels = Some(Default::default())
            })),
            None,
        ),
        Case("made", rpo_event::judge(&create(&event())), None),
        Case("deleted", rpo_event::judge(&delete(&event())), None),
    ];
    insta::assert_snapshot!(table(&cases));
}

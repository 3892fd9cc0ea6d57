//! ProtectionGroups.

use farshore_api::ProtectionGroup;
use farshore_api::protection_group::DesiredState;
use farshore_core::Seen;
use farshore_core::admission::protection_group;
use serde_json::json;

use super::world::*;
use super::{Case, could_not_read, table};

pub fn group_facts() -> protection_group::Facts {
    protection_group::Facts {
        zone: Seen::Present(zone()),
        requests: Seen::Present(vec![
            in_phase("db01", "Protected"),
            in_phase("db02", "Protected"),
            west(in_phase("web", "Protected")),
        ]),
        groups: Seen::Present(vec![]),
        failover: Seen::Absent,
    }
}

pub fn west(mut request: farshore_api::ProtectionRequest) -> farshore_api::ProtectionRequest {
    request.spec.source_cluster = "west".into();
    request
}

#[test]
fn a_group_is_accepted_when_its_members_are_its_own_and_on_one_side() {
    use protection_group::{Facts, judge};
    let with = |change: fn(&mut Facts)| {
        let mut facts = group_facts();
        change(&mut facts);
        facts
    };
    let free = group_facts();
    let taken = with(|f| f.groups = Seen::Present(vec![group("other", &["db01", "late"])]));
    let named = |name: &str| judge(&create(&group(name, &["db01"])), &free);
    let by_vm = |name: &str| -> ProtectionGroup {
        let member = json!([{"vmRef": {"namespace": "shop", "name": name}}]);
        let mut group = group("shop", &[]);
        group.spec.members = parsed(member);
        group
    };
    let slow: ProtectionGroup = {
        let mut group = group("shop", &["db01"]);
        let hook =
            json!({"name": "h", "namespace": "shop", "jobTemplate": {}, "timeoutSeconds": 301});
        group.spec.hooks = parsed(json!({"preFailover": [hook]}));
        group.spec.failover = parsed(json!({"vmStopTimeoutSeconds": 400}));
        group
    };
    let label = Some("metadata.name must be a DNS-1123 label");
    let cases = [
        Case(
            "a plain group",
            judge(&create(&group("shop", &["db01", "db02"])), &free),
            None,
        ),
        Case(
            "PG-1 not validated",
            judge(
                &create(&group("shop", &["db01"])),
                &with(|f| f.zone = Seen::Present(bare_zone())),
            ),
            Some(
                "ProtectionZone metro1 is not validated: ClustersValidated=Unknown reason=NotYetProbed",
            ),
        ),
        Case(
            "PG-2 member of another",
            judge(&create(&group("shop", &["db02", "db01"])), &taken),
            Some("ProtectionRequest db01 already belongs to ProtectionGroup other"),
        ),
        Case(
            "PG-2 named by its VM",
            judge(&create(&by_vm("db01")), &taken),
            Some("ProtectionRequest db01 already belongs to ProtectionGroup other"),
        ),
        Case(
            "PG-2 no request yet",
            judge(&create(&group("shop", &["late"])), &taken),
            Some("ProtectionRequest late already belongs to ProtectionGroup other"),
        ),
        Case(
            "PG-2 the other group goes",
            judge(
                &create(&group("shop", &["db01"])),
                &with(|f| f.groups = Seen::Present(vec![leaving(&group("other", &["db01"]))])),
            ),
            None,
        ),
        Case("PG-3 a dot", named("shop.a"), label),
        Case("PG-3 64 characters", named(&"a".repeat(64)), label),
        Case("PG-3 63 characters", named(&"a".repeat(63)), None),
        Case("PG-3 a - at the end", named("shop-"), label),
        Case(
            "PG-5 two sides",
            judge(&create(&group("shop", &["db01", "web"])), &free),
            Some("members of ProtectionGroup shop have different source clusters"),
        ),
        Case(
            "PG-5 the other one goes",
            judge(
                &create(&group("shop", &["db01", "web"])),
                &with(|f| {
                    f.requests = Seen::Present(vec![
                        in_phase("db01", "Protected"),
                        leaving(&west(in_phase("web", "Protected"))),
                    ])
                }),
            ),
            None,
        ),
        Case(
            "members without a request",
            judge(&create(&group("shop", &["a", "b"])), &free),
            None,
        ),
        Case(
            "limits beyond the budget",
            judge(&create(&slow), &free),
            None,
        ),
    ];
    insta::assert_snapshot!(table(&cases));
}

#[test]
fn a_group_under_failover_keeps_members_and_sla() {
    use protection_group::{Facts, judge};
    let with = |change: fn(&mut Facts)| {
        let mut facts = group_facts();
        change(&mut facts);
        facts
    };
    let old = group("shop", &["db01", "web"]);
    let edit = |change: fn(&mut ProtectionGroup)| update(&old, change);
    let moved = with(|f| f.failover = Seen::Present("shop-1".into()));
    let free = group_facts();
    let no = Some("ProtectionGroup shop is locked by FailoverRequest shop-1");
    let less = edit(|g| drop(g.spec.members.pop()));
    let more = edit(|g| g.spec.members.push(g.spec.members[0].clone()));
    let joins = edit(|g| g.spec.members.extend(group("x", &["db02"]).spec.members));
    let sla = edit(|g| g.spec.sla.rpo_target_seconds = 60);
    let order = edit(|g| g.spec.members[0].start_order = 5);
    let stop = edit(|g| g.spec.desired_state = DesiredState::Stopped);
    let taken = with(|f| f.groups = Seen::Present(vec![group("other", &["db01", "web", "db02"])]));
    let cases = [
        Case("PG-4 members", judge(&less, &moved), no),
        Case("PG-4 order of members", judge(&order, &moved), no),
        Case("PG-4 SLA", judge(&sla, &moved), no),
        Case("desiredState during a failover", judge(&stop, &moved), None),
        Case("SLA without a failover", judge(&sla, &free), None),
        Case("order, though members disagree", judge(&order, &free), None),
        Case(
            "a member leaves, though another group has it",
            judge(&less, &taken),
            None,
        ),
        Case(
            "PG-2 one joins that another group has",
            judge(&joins, &taken),
            Some("ProtectionRequest db02 already belongs to ProtectionGroup other"),
        ),
        Case(
            "PG-5 one joins where members disagree",
            judge(&joins, &free),
            Some("members of ProtectionGroup shop have different source clusters"),
        ),
        Case(
            "a member twice brings nobody new",
            judge(&more, &free),
            None,
        ),
        Case(
            "deletion during a failover",
            judge(&delete(&old), &moved),
            None,
        ),
    ];
    insta::assert_snapshot!(table(&cases));

    let blind = with(|f| f.failover = unknown());
    assert!(could_not_read(
        &judge(&less, &blind),
        "whether a failover moves ProtectionGroup shop"
    ));
    assert!(could_not_read(
        &judge(&sla, &blind),
        "whether a failover moves ProtectionGroup shop"
    ));
    assert!(judge(&stop, &blind).is_allowed());
    let new = create(&group("a", &["db01"]));
    assert!(could_not_read(
        &judge(&new, &with(|f| f.zone = unknown())),
        "ProtectionZone"
    ));
    assert!(could_not_read(
        &judge(&new, &with(|f| f.requests = unknown())),
        "ProtectionRequests"
    ));
    assert!(could_not_read(
        &judge(&new, &with(|f| f.groups = unknown())),
        "ProtectionGroups"
    ));
}

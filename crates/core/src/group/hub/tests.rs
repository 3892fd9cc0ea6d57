use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_api::protection_request::ProtectionPhase;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;

fn from_json<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn request(name: &str, source: &str, phase: &str) -> ProtectionRequest {
    from_json(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionRequest",
        "metadata": {"name": name, "namespace": "dr-metro1"},
        "spec": {"vmName": name, "vmNamespace": "shop", "sourceCluster": source},
        "status": {"phase": phase},
    }))
}

fn group(members: Value) -> ProtectionGroup {
    from_json(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionGroup",
        "metadata": {"name": "shop", "namespace": "dr-metro1", "uid": "u1", "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [finalizers::GROUP_CLEANUP]},
        "spec": {"members": members, "sla": {"rpoTargetSeconds": 30}},
    }))
}

fn lease(holder: &str, renewed: &str) -> Lease {
    from_json(json!({
        "metadata": {"name": "failover-lock-shop"},
        "spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 300},
    }))
}

fn observed() -> Observed {
    let zone = json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone", "metadata": {"name": "metro1"},
        "spec": {"clusters": [
            {"name": "east", "kubeconfigSecretRef": {"name": "e"}},
            {"name": "west", "kubeconfigSecretRef": {"name": "w"}},
        ]},
    });
    Observed {
        group: group(json!([
            {"protectionRequestRef": "db01"},
            {"vmRef": {"namespace": "shop", "name": "app01"}, "startOrder": 1},
        ])),
        zone: Some(from_json(zone)),
        mirrors: BTreeMap::from([("east".into(), Seen::Absent), ("west".into(), Seen::Absent)]),
        lease: None,
        failovers: Vec::new(),
        requests: vec![
            request("db01", "east", "Protected"),
            request("app01", "east", "Protected"),
        ],
        others: Vec::new(),
        replication: None,
        trouble: None,
    }
}

/// The same world after the steps were carried out.
fn after(seen: &Observed, decision: &Decision) -> Observed {
    let mut seen = seen.clone();
    seen.group.status = Some(decision.status.clone());
    for step in &decision.steps {
        match step {
            Step::CreateMirror { cluster, mirror } => {
                let mut mirror = (**mirror).clone();
                mirror.metadata.resource_version = Some("1".into());
                seen.mirrors.insert(cluster.clone(), Seen::Present(mirror));
            }
            Step::PatchMirror { cluster, patch } => {
                let live = seen.mirrors[cluster].present().unwrap();
                let mut value = serde_json::to_value(live).unwrap();
                assert_eq!(
                    patch["metadata"]["resourceVersion"],
                    value["metadata"]["resourceVersion"]
                );
                for (key, new) in patch["spec"].as_object().unwrap() {
                    value["spec"][key] = new.clone();
                }
                seen.mirrors
                    .insert(cluster.clone(), Seen::Present(from_json(value)));
            }
            Step::DeleteMirror { cluster } => {
                seen.mirrors.insert(cluster.clone(), Seen::Absent);
            }
            Step::CreateReplicationStatus { status } => seen.replication = Some((**status).clone()),
            Step::PatchReplicationStatus { patch } => {
                let live = seen.replication.as_mut().unwrap();
                live.spec.rpo_objective_seconds =
                    patch["spec"]["rpoObjectiveSeconds"].as_i64().unwrap();
            }
            Step::AddFinalizer | Step::RemoveFinalizer => {}
        }
    }
    seen
}

fn settle(mut seen: Observed) -> Observed {
    for _ in 0..5 {
        let decision = decide(&seen, now());
        if decision.steps.is_empty() && Some(&decision.status) == seen.group.status.as_ref() {
            return seen;
        }
        seen = after(&seen, &decision);
    }
    panic!("does not settle");
}

fn states(seen: &Observed) -> Vec<(String, DesiredState)> {
    let state = |(c, m): (&String, &Seen<ProtectionGroup>)| {
        Some((c.clone(), m.present()?.spec.desired_state))
    };
    seen.mirrors.iter().filter_map(state).collect()
}

fn ready(decision: &Decision) -> String {
    let ready = conditions::get(&decision.status.conditions, "Ready").unwrap();
    format!("{} {}: {}", ready.status, ready.reason, ready.message)
}

#[test]
fn mirrors_run_the_group_where_its_members_are_and_stop_it_elsewhere() {
    let seen = observed();
    let decision = decide(&seen, now());
    insta::assert_yaml_snapshot!(decision.steps);
    let seen = settle(seen);
    assert_eq!(
        states(&seen),
        [
            ("east".into(), DesiredState::Running),
            ("west".into(), DesiredState::Stopped)
        ]
    );
    let decision = decide(&seen, now());
    assert_eq!(
        ready(&decision),
        "True Ready: ProtectionGroup shop can fail over"
    );
    assert_eq!(decision.status.active_cluster.as_deref(), Some("east"));
}

#[test]
fn changes_of_the_group_reach_both_mirrors() {
    let mut seen = settle(observed());
    seen.group.spec.sla.rpo_target_seconds = 60;
    seen.group.spec.members[0].start_order = 7;
    let seen = settle(seen);
    for mirror in seen.mirrors.values() {
        let spec = &mirror.present().unwrap().spec;
        assert_eq!(
            (spec.sla.rpo_target_seconds, spec.members[0].start_order),
            (60, 7)
        );
    }
    assert_eq!(seen.replication.unwrap().spec.rpo_objective_seconds, 60);
}

#[test]
fn what_the_user_wants_of_the_group_is_wanted_of_its_active_side() {
    let mut seen = settle(observed());
    for (wanted, active) in [
        (DesiredState::Stopped, "east"),
        (DesiredState::Running, "east"),
        (DesiredState::Stopped, "west"),
        (DesiredState::Running, "west"),
    ] {
        seen.group.spec.desired_state = wanted;
        for request in &mut seen.requests {
            request.spec.source_cluster = active.into();
        }
        seen = settle(seen);
        for (cluster, state) in states(&seen) {
            let due = if cluster == active {
                wanted
            } else {
                DesiredState::Stopped
            };
            assert_eq!(state, due, "{cluster} while {active} is active");
        }
    }
}

#[test]
fn a_name_that_no_label_can_have_is_told_and_holds_nobody() {
    let mut seen = observed();
    let long = "g".repeat(64);
    seen.group.metadata.name = Some(long.clone());
    let decision = decide(&seen, now());
    assert_eq!(decision.steps, []);
    assert!(
        ready(&decision).starts_with(
            "False NameTooLong: the name of this ProtectionGroup has 64 characters and may have 63"
        ),
        "{}",
        ready(&decision)
    );
    seen.group.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(decide(&seen, now()).steps, [Step::RemoveFinalizer]);

    let mut heir = observed();
    let mut refused = group(json!([{"protectionRequestRef": "db01"}]));
    refused.metadata.name = Some(long);
    refused.metadata.creation_timestamp = Some(Time("2025-01-01T00:00:00Z".parse().unwrap()));
    heir.others.push(refused);
    let heir = settle(heir);
    assert!(ready(&decide(&heir, now())).starts_with("True"));
}

#[test]
fn while_a_failover_holds_the_lock_only_it_says_what_runs() {
    let mut seen = settle(observed());
    seen.lease = Some(lease("uid-of-fr", "2026-01-01T00:58:00Z"));
    seen.group.spec.desired_state = DesiredState::Stopped;
    seen.group.spec.members[0].start_order = 7;
    for request in &mut seen.requests {
        request.spec.source_cluster = "west".into();
    }
    let before = states(&seen);
    let seen = settle(seen);
    assert_eq!(states(&seen), before);
    assert_eq!(
        seen.mirrors["west"].present().unwrap().spec.members[0].start_order,
        7,
        "the rest is kept in step"
    );
    let decision = decide(&seen, now());
    assert!(
        ready(&decision).starts_with("False FailoverInProgress"),
        "{}",
        ready(&decision)
    );

    let mut expired = seen.clone();
    expired.lease = Some(lease("uid-of-fr", "2026-01-01T00:50:00Z"));
    expired.group.spec.desired_state = DesiredState::Running;
    assert_eq!(
        states(&settle(expired)),
        [
            ("east".into(), DesiredState::Stopped),
            ("west".into(), DesiredState::Running)
        ]
    );
}

/// The VMs that a group's mirror names on each cluster.
fn named(seen: &Observed) -> Vec<usize> {
    let count = |m: &Seen<ProtectionGroup>| m.present().map_or(0, |m| m.spec.members.len());
    seen.mirrors.values().map(count).collect()
}

#[test]
fn while_a_failover_holds_the_lock_no_member_leaves_a_mirror() {
    let mut seen = settle(observed());
    let all = named(&seen);
    seen.lease = Some(lease("uid-of-fr", "2026-01-01T00:58:00Z"));
    let mut unprotected = seen.clone();
    unprotected.requests[0].metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(named(&settle(unprotected.clone())), all);
    let mut removed = seen.clone();
    removed.group.spec.members.remove(0);
    assert_eq!(named(&settle(removed)), all);

    unprotected.lease = None;
    let fewer: Vec<usize> = all.iter().map(|n| n - 1).collect();
    assert_eq!(named(&settle(unprotected)), fewer, "it leaves afterwards");
}

#[test]
fn a_mirror_lost_while_the_roles_move_is_made_again_stopped() {
    let mut seen = settle(observed());
    let active = seen.requests[0].spec.source_cluster.clone();
    seen.lease = Some(lease("uid-of-fr", "2026-01-01T00:58:00Z"));
    let failover = |state: &str| -> FailoverRequest {
        from_json(json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "FailoverRequest",
            "metadata": {"name": "move", "uid": "uid-of-fr"},
            "spec": {"protectionGroupRef": {"name": "shop"}, "targetCluster": active, "failoverType": "planned"},
            "status": {"state": state},
        }))
    };
    seen.mirrors.insert(active.clone(), Seen::Absent);
    for (state, made) in [("Validating", false), ("StartingOnTarget", true)] {
        seen.failovers = vec![failover(state)];
        let steps = decide(&seen, now()).steps;
        let stopped = steps.iter().any(|step| {
            matches!(step, Step::CreateMirror { cluster, mirror }
                if *cluster == active && mirror.spec.desired_state == DesiredState::Stopped)
        });
        assert_eq!(
            (stopped, steps.len()),
            (made, usize::from(made)),
            "{state}: {steps:?}"
        );
    }
}

#[test]
fn a_failover_under_way_counts_although_its_lock_expired() {
    let failover: FailoverRequest = from_json(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "FailoverRequest", "metadata": {"name": "move"},
        "spec": {"protectionGroupRef": {"name": "shop"}, "targetCluster": "west", "failoverType": "planned"},
        "status": {"state": "StoppingOnSource"},
    }));
    let expired = lease("uid", "2026-01-01T00:00:00Z");
    assert_eq!(
        locked_by(Some(&expired), std::slice::from_ref(&failover), now()).as_deref(),
        Some("move")
    );
    assert_eq!(locked_by(Some(&expired), &[], now()), None);
}

#[test]
fn a_mirror_that_is_missing_during_a_failover_is_made_only_to_stop() {
    let mut seen = observed();
    seen.lease = Some(lease("uid-of-fr", "2026-01-01T00:58:00Z"));
    let created: Vec<_> = decide(&seen, now())
        .steps
        .into_iter()
        .filter_map(|s| match s {
            Step::CreateMirror { cluster, mirror } => Some((cluster, mirror.spec.desired_state)),
            _ => None,
        })
        .collect();
    assert_eq!(created, [("west".into(), DesiredState::Stopped)]);
}

#[test]
fn members_that_disagree_are_named_and_nothing_is_started_or_stopped() {
    let mut seen = settle(observed());
    seen.requests[0].spec.source_cluster = "west".into();
    let before = states(&seen);
    let decision = decide(&seen, now());
    insta::assert_snapshot!(ready(&decision));
    assert_eq!(states(&after(&seen, &decision)), before);
}

#[test]
fn no_vm_joins_a_mirror_while_the_members_disagree() {
    let mut seen = observed();
    let late = seen.group.spec.members.pop().unwrap();
    let mut seen = settle(seen);
    seen.group.spec.members.push(late);
    seen.requests[1].spec.source_cluster = "west".into();
    let seen = settle(seen);
    for mirror in seen.mirrors.values() {
        assert_eq!(mirror.present().unwrap().spec.members.len(), 1);
    }
}

#[test]
fn members_enter_the_mirrors_after_the_swap_and_leave_them_before_it_is_undone() {
    let mut seen = observed();
    seen.requests[0].status.as_mut().unwrap().phase = Some(ProtectionPhase::Syncing);
    seen.requests[1].status.as_mut().unwrap().phase = Some(ProtectionPhase::Degraded);
    let mut seen = settle(seen);
    let names = |seen: &Observed| {
        let members = seen.mirrors["east"]
            .present()
            .map(|m| m.spec.members.clone())
            .unwrap_or_default();
        members
            .into_iter()
            .map(|m| m.vm_ref.unwrap().name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&seen), ["app01"]);
    seen.requests[1].metadata.deletion_timestamp = Some(Time(now()));
    let seen = settle(seen);
    assert!(
        seen.mirrors["east"].is_absent(),
        "an empty mirror is removed"
    );
}

#[test]
fn a_dark_cluster_is_unknown_and_the_other_goes_on() {
    let mut seen = settle(observed());
    seen.mirrors
        .insert("west".into(), Seen::Unknown("timed out".into()));
    seen.group.spec.members[0].start_order = 3;
    let decision = decide(&seen, now());
    assert!(
        matches!(&decision.steps[..], [Step::PatchMirror { cluster, .. }] if cluster == "east")
    );
    let synced = conditions::get(&decision.status.conditions, "Synced").unwrap();
    assert_eq!(
        (synced.status.as_str(), synced.reason.as_str()),
        ("Unknown", "ClusterUnreachable")
    );
    let west = &decision.status.clusters[1];
    assert_eq!(
        (west.current_state, west.unreachable_since.is_some()),
        (CurrentState::Unknown, true)
    );

    seen.mirrors
        .insert("east".into(), Seen::Unknown("timed out".into()));
    assert_eq!(
        decide(&seen, now()).status.current_state,
        Some(CurrentState::Unknown)
    );
}

#[test]
fn what_is_wrong_with_members_is_told() {
    let mut told = Vec::new();
    let mut seen = observed();
    seen.requests.pop();
    told.push(ready(&decide(&seen, now())));
    let mut seen = observed();
    seen.requests[0].status.as_mut().unwrap().phase = Some(ProtectionPhase::Failed);
    told.push(ready(&decide(&seen, now())));
    let mut seen = observed();
    let mut older = group(json!([{"protectionRequestRef": "db01"}]));
    older.metadata.name = Some("first".into());
    older.metadata.creation_timestamp = Some(Time("2025-01-01T00:00:00Z".parse().unwrap()));
    seen.others.push(older);
    told.push(ready(&decide(&seen, now())));
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn deletion_removes_mirrors_and_waits_for_locks_and_dark_clusters() {
    let mut seen = settle(observed());
    seen.group.metadata.deletion_timestamp = Some(Time(now()));
    let mut locked = seen.clone();
    locked.lease = Some(lease("uid-of-fr", "2026-01-01T00:58:00Z"));
    assert_eq!(decide(&locked, now()).steps, []);

    let mut dark = seen.clone();
    dark.mirrors
        .insert("west".into(), Seen::Unknown("timed out".into()));
    let decision = decide(&dark, now());
    assert_eq!(
        decision.steps,
        [Step::DeleteMirror {
            cluster: "east".into()
        }]
    );
    insta::assert_snapshot!("deletion_waits", ready(&decision));

    let seen = after(&seen, &decide(&seen, now()));
    assert_eq!(decide(&seen, now()).steps, [Step::RemoveFinalizer]);
}

#[test]
fn a_change_of_state_or_of_the_active_cluster_is_told_once() {
    let mut seen = observed();
    let heard = |seen: &mut Observed| {
        let decision = decide(seen, now());
        seen.group.status = Some(decision.status);
        let notes = decision.notes.into_iter();
        notes.map(|n| (n.reason, n.message)).collect::<Vec<_>>()
    };
    let first = heard(&mut seen);
    assert_eq!(first[0].0, "ActiveClusterChanged");
    assert!(first[0].1.contains("Cluster east is the active one"));
    assert_eq!(heard(&mut seen), [], "nothing changed");
    for name in ["db01", "app01"] {
        seen.requests
            .retain(|r| r.metadata.name.as_deref() != Some(name));
        seen.requests.push(request(name, "west", "Protected"));
    }
    let moved = heard(&mut seen);
    assert!(
        moved
            .iter()
            .any(|(reason, message)| reason == "ActiveClusterChanged"
                && message
                    .contains("Cluster west is the active one of this group instead of east")),
        "{moved:?}"
    );
    assert_eq!(heard(&mut seen), [], "nothing changed");
    let status = seen.group.status.as_mut().unwrap();
    let is = status.current_state.unwrap();
    let was = if is == CurrentState::Stopped {
        CurrentState::Running
    } else {
        CurrentState::Stopped
    };
    status.current_state = Some(was);
    let turned = heard(&mut seen);
    assert_eq!(turned.len(), 1, "{turned:?}");
    assert_eq!(turned[0].0, "CurrentStateChanged");
    assert!(turned[0].1.contains(&format!("{was} → {is}")), "{turned:?}");
    assert_eq!(heard(&mut seen), [], "nothing changed");
}

#[test]
fn the_last_failover_is_one_that_moved_something() {
    let ended = |name: &str, at: &str, passed: &[&str]| -> FailoverRequest {
        let steps: Vec<Value> = passed
            .iter()
            .map(|step| json!({"name": step, "state": "Done", "startTime": at}))
            .collect();
        from_json(json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "FailoverRequest",
            "metadata": {"name": name, "namespace": "dr-metro1", "uid": name},
            "spec": {"protectionGroupRef": {"name": "shop"}, "targetCluster": "west", "failoverType": "planned"},
            "status": {"state": "Failed", "completionTime": at, "steps": steps},
        }))
    };
    let mut seen = observed();
    seen.failovers = vec![
        ended(
            "moved",
            "2026-01-01T00:00:00Z",
            &[
                "Pending",
                "Validating",
                "StoppingOnSource",
                "RollingBack",
                "Failed",
            ],
        ),
        ended(
            "was-there",
            "2026-01-01T01:00:00Z",
            &["Pending", "Validating", "Failed"],
        ),
        ended("overtaken", "2026-01-01T02:00:00Z", &["Pending", "Failed"]),
    ];
    let decision = decide(&seen, now());
    assert_eq!(decision.status.last_failover.as_deref(), Some("moved"));
}

/// A member that is being unprotected is let go of although it stands on the other side: it would wait
/// for its group for ever.
#[test]
fn a_member_that_leaves_has_no_say_about_where_the_group_runs() {
    let mut seen = settle(observed());
    seen.requests[1].spec.source_cluster = "west".into();
    let stuck = decide(&seen, now());
    assert!(
        ready(&stuck).contains("MembersDisagree"),
        "{}",
        ready(&stuck)
    );
    seen.requests[1].metadata.deletion_timestamp = Some(Time(now()));
    let seen = settle(seen);
    assert!(
        named(&seen).iter().all(|members| *members == 1),
        "{:?}",
        named(&seen)
    );
    // When all leave, the group stays where they say until the last has gone.
    let mut last = seen.clone();
    last.requests[0].metadata.deletion_timestamp = Some(Time(now()));
    last.requests.truncate(1);
    assert_eq!(
        decide(&last, now()).status.active_cluster.as_deref(),
        Some("east")
    );
}

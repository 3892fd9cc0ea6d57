//! Cases as data, and what holds for all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState, Role};
use farshore_api::drbd_resource::DRBDResourceStatus;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;

use super::*;

#[derive(Deserialize)]
struct Cases {
    base: Value,
    cases: BTreeMap<String, Value>,
}

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Default::default());
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn cases() -> BTreeMap<String, Observed> {
    let cases: Cases = serde_saphyr::from_str(include_str!("cases/cases.yaml")).unwrap();
    let made = |(name, patch): (String, Value)| {
        let mut value = cases.base.clone();
        merge(&mut value, &patch);
        let seen = serde_json::from_value(value).unwrap_or_else(|e| panic!("{name}: {e}"));
        (name, seen)
    };
    cases.cases.clone().into_iter().map(made).collect()
}

fn base() -> Observed {
    static BASE: std::sync::OnceLock<Observed> = std::sync::OnceLock::new();
    BASE.get_or_init(|| cases().remove("all-well").unwrap())
        .clone()
}

fn state(seen: &mut Observed) -> &mut ResourceState {
    seen.kernel.values_mut().next().unwrap()
}

/// Carries the status over, as the agent does, and looks again.
fn settled(seen: &Observed, at: Timestamp) -> (Observed, DRBDResourceStatus) {
    let status = decide(seen, at).status;
    let mut seen = seen.clone();
    seen.resource.status = Some(status.clone());
    seen.last_write = Some(at);
    (seen, status)
}

#[test]
fn cases_are_decided_as_recorded() {
    for (name, seen) in cases() {
        insta::with_settings!({snapshot_path => "cases", prepend_module_to_snapshot => false, omit_expression => true}, {
            insta::assert_yaml_snapshot!(name, decide(&seen, now()));
        });
    }
}

#[test]
fn a_secret_is_never_shown() {
    for (name, seen) in cases() {
        let Some(secret) = seen.secret.clone() else {
            continue;
        };
        let decision = decide(&seen, now());
        for text in [
            format!("{seen:?} {decision:?}"),
            serde_json::to_string(&decision).unwrap(),
        ] {
            assert!(!text.contains(secret.reveal()), "{name}: {text}");
        }
    }
}

#[test]
fn looking_again_at_an_unchanged_world_changes_nothing() {
    for (name, seen) in cases() {
        let (seen, status) = settled(&seen, now());
        let later = now() + SignedDuration::from_secs(3600);
        let again = decide(&seen, later);
        assert_eq!(again.status, status, "{name}");
        assert!(again.notes.is_empty(), "{name}: {:?}", again.notes);
    }
}

#[test]
fn every_condition_says_something() {
    for (name, seen) in cases() {
        for condition in decide(&seen, now()).status.conditions {
            let (type_, message) = (condition.type_, condition.message);
            assert!(message.contains(' '), "{name}: {type_}: {message:?}");
        }
    }
}

/// Every write would wake everyone who watches.
#[test]
fn counters_are_not_part_of_the_sentences() {
    for (name, seen) in cases() {
        let said = |seen: &Observed| {
            let conditions = decide(seen, now()).status.conditions;
            conditions
                .into_iter()
                .map(|c| c.message)
                .collect::<Vec<_>>()
        };
        let mut counted = seen.clone();
        for state in counted.kernel.values_mut() {
            if state.out_of_sync_bytes > 0 {
                state.out_of_sync_bytes += 4096;
            }
            state.sync_percent = (state.sync_percent - 1).max(0);
        }
        assert_eq!(said(&seen), said(&counted), "{name}");
    }
}

#[test]
fn transitions_are_told_once() {
    let (mut seen, _) = settled(&base(), now());
    let heard = |seen: &Observed| {
        decide(seen, now())
            .notes
            .into_iter()
            .map(|n| n.reason)
            .collect::<Vec<_>>()
    };
    state(&mut seen).replication_state = ReplicationState::SyncSource;
    assert_eq!(heard(&seen), ["SyncStarted"]);
    let (mut seen, _) = settled(&seen, now());
    state(&mut seen).replication_state = ReplicationState::Established;
    assert_eq!(heard(&seen), ["SyncFinished"]);
    let (mut seen, _) = settled(&seen, now());
    state(&mut seen).role = Role::Secondary;
    assert_eq!(heard(&seen), ["RoleChanged"]);
    state(&mut seen).role = Role::Primary;
    state(&mut seen).split_brain = true;
    state(&mut seen).connection_state = ConnectionState::StandAlone;
    state(&mut seen).replication_state = ReplicationState::Off;
    assert_eq!(heard(&seen), ["SplitBrain"]);
}

#[test]
fn numbers_of_a_sync_are_told_once_a_second_and_with_another_percentage() {
    let mut seen = base();
    state(&mut seen).replication_state = ReplicationState::SyncSource;
    state(&mut seen).out_of_sync_bytes = 1000;
    state(&mut seen).sync_percent = 10;
    let (mut seen, before) = settled(&seen, now());
    let at = |ms: i64| now() + SignedDuration::from_millis(ms);

    state(&mut seen).out_of_sync_bytes = 990;
    assert_eq!(
        decide(&seen, at(5000)).status,
        before,
        "the same percentage"
    );
    state(&mut seen).sync_percent = 11;
    let soon = decide(&seen, at(300));
    assert_eq!(soon.status, before, "too soon");
    assert_eq!(soon.requeue, Some(Duration::from_millis(700)));
    let told = decide(&seen, at(1000)).status;
    assert_eq!(
        (told.volumes[0].sync_percent, told.out_of_sync_bytes),
        (11, Some(990))
    );
    state(&mut seen).peer_disk_state = DiskState::Outdated;
    assert_ne!(
        decide(&seen, at(10)).status,
        before,
        "a change of state is told at once"
    );
}

#[test]
fn a_vm_needs_every_disk_to_be_primary() {
    let mut seen = base();
    let mut second = seen.resource.spec.volumes[0].clone();
    (second.index, second.port, second.pvc_name) = (1, 7004, "db01-data".into());
    seen.resource.spec.volumes.push(second);
    seen.volumes.push(VolumeSeen {
        data: Some("/dev/x/data1".into()),
        meta: Some("/dev/x/meta1".into()),
        has_metadata: Some(true),
        frontend: true,
    });
    let alone = decide(&seen, now());
    assert_eq!(
        alone.status.role,
        Some(Role::Unknown),
        "the other device is not up"
    );

    let mut other = state(&mut seen).clone();
    (other.name, other.minor, other.role) =
        ("drbd-shop-db01-1a2b3c4d-v1".into(), 1004, Role::Secondary);
    seen.kernel.insert(other.name.clone(), other);
    assert_eq!(decide(&seen, now()).status.role, Some(Role::Unknown));
    for state in seen.kernel.values_mut() {
        state.role = Role::Primary;
    }
    assert_eq!(decide(&seen, now()).status.role, Some(Role::Primary));
    assert_eq!(decide(&seen, now()).status.role_epoch, Some(1));
}

#[test]
fn convergence_is_a_connection_or_readable_data() {
    let seen = base();
    let is = |change: &dyn Fn(&mut ResourceState)| {
        let mut seen = seen.clone();
        change(state(&mut seen));
        let states: Vec<ResourceState> = seen.kernel.values().cloned().collect();
        taint::converged(&seen.resource, &states)
    };
    assert!(is(&|_| {}));
    assert!(is(&|s| s.connection_state = ConnectionState::Connecting));
    assert!(!is(&|s| (s.connection_state, s.disk_state) =
        (ConnectionState::Connecting, DiskState::Inconsistent)));
    assert!(
        is(&|s| s.disk_state = DiskState::Inconsistent),
        "a sync target is connected"
    );
    assert!(!is(&|s| s.connection_state = ConnectionState::StandAlone));
    assert!(!taint::converged(&seen.resource, &[]));
}

fn states() -> impl Strategy<Value = ResourceState> {
    use ConnectionState as C;
    use DiskState as D;
    let role = || prop::sample::select(vec![Role::Primary, Role::Secondary, Role::Unknown]);
    let disk = || {
        prop::sample::select(vec![
            D::Diskless,
            D::Inconsistent,
            D::Outdated,
            D::DUnknown,
            D::Consistent,
            D::UpToDate,
        ])
    };
    let connection = prop::sample::select(vec![
        C::StandAlone,
        C::Connecting,
        C::Connected,
        C::NetworkFailure,
    ]);
    (role(), role(), disk(), disk(), connection, any::<bool>()).prop_map(
        |(role, peer_role, disk_state, peer_disk_state, connection_state, split_brain)| {
            ResourceState {
                role,
                peer_role,
                disk_state,
                peer_disk_state,
                connection_state,
                split_brain,
                ..base().kernel.into_values().next().unwrap()
            }
        },
    )
}

proptest! {
    #[test]
    fn force_and_fresh_metadata_never_put_known_data_at_risk(
        kernel in prop::option::of(states()),
        secondary in any::<bool>(),
        epoch in 1i64..4,
        seen_epoch in prop::option::of(1i64..4),
        initial in any::<bool>(),
        has_metadata in prop::option::of(any::<bool>()),
        was_in_sync in any::<bool>(),
        word in prop::option::of(1i64..4),
    ) {
        let mut seen = base();
        let name = "drbd-shop-db01-1a2b3c4d".to_string();
        seen.kernel = kernel.clone().map(|k| (name, k)).into_iter().collect();
        let spec = &mut seen.resource.spec;
        spec.role = if secondary { Role::Secondary } else { Role::Primary };
        spec.role_epoch = epoch;
        spec.initial_source = initial;
        seen.volumes[0].has_metadata = has_metadata;
        let mut status = DRBDResourceStatus { role_epoch: seen_epoch, ..Default::default() };
        crate::conditions::set(&mut status.conditions, "UpToDate", crate::conditions::Truth::False, if was_in_sync { "NotUpToDate" } else { "AwaitingFirstSync" }, "", None, now());
        seen.resource.status = Some(status);
        seen.resource.metadata.annotations = word.map(|w| [(farshore_api::meta::annotations::FORCE_PRIMARY.to_string(), w.to_string())].into());

        let stale = seen_epoch.is_some_and(|s| epoch < s);
        for step in decide(&seen, now()).steps {
            match step {
                Step::CreateMetadata(_) => prop_assert_eq!(has_metadata, Some(false)),
                Step::Primary { force, .. } => {
                    prop_assert!(!stale && !secondary);
                    let kernel = kernel.as_ref().unwrap();
                    prop_assert!(!(kernel.connection_state == ConnectionState::Connected && kernel.peer_role == Role::Primary));
                    if force {
                        prop_assert!(kernel.peer_disk_state != DiskState::UpToDate);
                        let first = initial && epoch == 1 && !was_in_sync && kernel.disk_state == DiskState::Inconsistent;
                        prop_assert!(first || word == Some(epoch));
                    }
                }
                Step::Secondary(_) => prop_assert!(!stale && secondary),
                Step::Down(_) | Step::DeleteFrontend(_) | Step::RemoveFinalizer => prop_assert!(false, "nobody deletes it"),
                _ => {}
            }
        }
    }
}

//! Cases as data: what was looked at and what the steps gave, in; steps, status and notes, out.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use farshore_api::ProtectionZone;
use farshore_api::zone::ProtectionZoneStatus;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::conclude::{Crds, Outcomes, Policy, Stack};
use super::probe::{Answer, Apis, Credential, Looked, Scc, judge};
use super::*;
use crate::conditions::Truth;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn zone(status: Option<ProtectionZoneStatus>) -> ProtectionZone {
    let cluster = |name: &str| json!({"name": name, "kubeconfigSecretRef": {"name": format!("{name}-kubeconfig")}});
    let mut zone: ProtectionZone = serde_json::from_value(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone",
        "metadata": {"name": "metro1", "namespace": "dr-metro1", "generation": 1},
        "spec": {"clusters": [cluster("east"), cluster("west")]},
    }))
    .unwrap();
    zone.status = status;
    zone
}

/// A cluster that passes every probe.
fn fine(uid: &str, claim: Claim) -> Looked {
    Looked {
        version: Some(Answer::Given("v1.34.0".into())),
        denied: Some(Answer::Given(Vec::new())),
        apis: Some(Answer::Given(Apis {
            kubevirt: Some("kubevirt.io/v1".into()),
            openshift: false,
        })),
        scc: None,
        uid: Some(Answer::Given(uid.into())),
        nodes: Some(Answer::Given((2, 3))),
        claim: Some(Answer::Given(claim)),
        ..Looked::new(Credential::Usable)
    }
}

/// A case: how the two clusters were seen, what the zone was before, what the steps gave.
#[derive(Deserialize)]
#[serde(default)]
struct Case {
    name: String,
    /// Fields of `Looked` laid over a cluster that passes everything.
    east: BTreeMap<String, Value>,
    west: BTreeMap<String, Value>,
    /// Whether the zone was validated and ready an hour ago.
    was_ready: bool,
    /// Sites whose steps succeeded; `null` for all planned.
    outcomes: Option<Outcomes>,
    hub_uid: String,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: String::new(),
            east: BTreeMap::new(),
            west: BTreeMap::new(),
            was_ready: false,
            outcomes: None,
            hub_uid: "uid-hub".into(),
        }
    }
}

fn looked(uid: &str, over: &BTreeMap<String, Value>) -> Looked {
    let mut value = serde_json::to_value(fine(uid, Claim::Free)).unwrap();
    for (key, field) in over {
        value[key] = field.clone();
    }
    serde_json::from_value(value).unwrap()
}

fn observed(case: &Case) -> Observed {
    let cluster = |name: &str, looked: Looked| Cluster {
        name: name.into(),
        secret_resource_version: Some("7".into()),
        not_after: None,
        probe: judge(name, "dr-metro1", &format!("{name}-kubeconfig"), &looked),
    };
    Observed {
        zone: zone(None),
        namespace_uid: "uid-dr-metro1".into(),
        hub_uid: case.hub_uid.clone(),
        rival: None,
        requests: 3,
        ports: 4,
        // West sorts before east by UID.
        clusters: vec![
            cluster("east", looked("uid-b", &case.east)),
            cluster("west", looked("uid-a", &case.west)),
        ],
    }
}

/// All planned steps succeeded.
fn success(observed: &Observed, steps: &[Step]) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for step in steps {
        match step {
            Step::Claim(names) => outcomes
                .claims
                .extend(names.iter().map(|n| (n.clone(), Ok(Claim::Held)))),
            Step::GiveBack(name) => {
                outcomes.claims.insert(name.clone(), Ok(Claim::Free));
            }
            Step::ApplyCrds(site) => {
                outcomes
                    .crds
                    .insert(site.clone(), Crds::Applied(Vec::new()));
            }
            Step::Deploy(site) => {
                outcomes.stacks.insert(site.clone(), Stack::Running);
            }
            Step::CreatePolicy => outcomes.policy = Some(Policy::Ready),
        }
    }
    assert_eq!(observed.clusters.len(), 2);
    outcomes
}

fn ready() -> ProtectionZoneStatus {
    let case = Case::default();
    let mut observed = observed(&case);
    for cluster in &mut observed.clusters {
        cluster.probe.as_mut().unwrap().claim = Claim::Held;
    }
    let outcomes = success(&observed, &plan(&observed));
    conclude(&observed, &outcomes, at(-3600)).status
}

fn tell(case: &Case) -> String {
    let mut observed = observed(case);
    observed.zone.status = case.was_ready.then(ready);
    let steps = plan(&observed);
    let outcomes = case
        .outcomes
        .clone()
        .unwrap_or_else(|| success(&observed, &steps));
    let told = conclude(&observed, &outcomes, at(0));
    let mut out = String::new();
    writeln!(out, "## {}", case.name).unwrap();
    for step in &steps {
        writeln!(out, "step      {}", serde_json::to_string(step).unwrap()).unwrap();
    }
    writeln!(out, "phase     {}", told.status.phase.unwrap()).unwrap();
    for c in &told.status.conditions {
        writeln!(
            out,
            "condition {}={} {}: {}",
            c.type_, c.status, c.reason, c.message
        )
        .unwrap();
    }
    for c in &told.status.clusters {
        writeln!(
            out,
            "cluster   {} reachable={} lease={} {}",
            c.name,
            c.reachable,
            c.lease_held,
            c.message.as_deref().unwrap_or_default()
        )
        .unwrap();
    }
    for note in &told.notes {
        writeln!(
            out,
            "note      {} {}: {}",
            if note.warning { "Warning" } else { "Normal" },
            note.reason,
            note.message
        )
        .unwrap();
    }
    writeln!(
        out,
        "again     {}",
        told.again
            .map_or("by backoff".into(), |d| format!("{} s", d.as_secs()))
    )
    .unwrap();

    // The same world again: nothing new to say and nothing new to write.
    observed.zone.status = Some(told.status.clone());
    let again = conclude(&observed, &outcomes, at(600));
    assert!(
        !crate::status_differs(&told.status, &again.status),
        "{}: {:#?} {:#?}",
        case.name,
        told.status,
        again.status
    );
    let repeated: Vec<_> = again
        .notes
        .iter()
        .filter(|n| n.reason != "CRDReverted")
        .collect();
    assert!(repeated.is_empty(), "{}: {repeated:?}", case.name);
    out
}

#[test]
fn zones_are_planned_and_told_as_recorded() {
    let cases: Vec<Case> = serde_saphyr::from_str(include_str!("cases.yaml")).unwrap();
    let told: Vec<String> = cases.iter().map(tell).collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn the_pause_doubles_from_ten_seconds_to_five_minutes() {
    let mut failing = Duration::ZERO;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let pause = backoff(failing);
        pauses.push(pause.as_secs());
        failing += pause;
    }
    assert_eq!(pauses, [10, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn the_namespace_uid_decides_whose_a_claim_is() {
    let read = |zone: Option<&str>, uid: Option<&str>, terminating| {
        let mut all = BTreeMap::new();
        all.extend(zone.map(|v| (annotations::OWNER_ZONE.to_owned(), v.to_owned())));
        all.extend(uid.map(|v| {
            (
                annotations::OWNER_ZONE_NAMESPACE_UID.to_owned(),
                v.to_owned(),
            )
        }));
        claim(&all, terminating, "ours")
    };
    let foreign = |zone: &str, uid: &str| Claim::Foreign {
        zone: zone.into(),
        namespace_uid: uid.into(),
    };
    assert_eq!(read(None, None, false), Claim::Free);
    assert_eq!(read(Some("renamed"), Some("ours"), false), Claim::Held);
    assert_eq!(read(None, Some("ours"), false), Claim::Held);
    assert_eq!(
        read(Some("metro1"), Some("theirs"), false),
        foreign("metro1", "theirs")
    );
    assert_eq!(read(Some("metro1"), None, false), foreign("metro1", ""));
    assert_eq!(read(None, None, true), Claim::Terminating);
    assert_eq!(
        read(Some("metro1"), Some("theirs"), true),
        foreign("metro1", "theirs")
    );
}

#[test]
fn a_namespace_must_begin_with_dr_and_belongs_to_the_oldest_zone() {
    assert_eq!(namespace_fault("dr-x", "z", None), None);
    for namespace in ["default", "dr-", "xdr-a"] {
        assert!(
            namespace_fault(namespace, "z", None).is_some(),
            "{namespace}"
        );
    }
    let made = |name: &str, second: i64| {
        let mut zone = zone(None);
        zone.metadata.name = Some(name.into());
        zone.metadata.creation_timestamp = Some(Time(at(second)));
        zone
    };
    let zones = [made("c", 5), made("b", 3), made("a", 3)];
    assert_eq!(holder(&zones).unwrap().metadata.name.as_deref(), Some("a"));
}

#[test]
fn a_paused_zone_keeps_all_but_its_readiness() {
    let mut observed = observed(&Case::default());
    observed.zone.status = Some(ready());
    let told = conclude::paused(&observed, at(0));
    assert_eq!(told.status.phase, Some(ZonePhase::Ready));
    let ready = crate::conditions::get(&told.status.conditions, conditions::READY).unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        (Truth::False.as_str(), conditions::PAUSED)
    );
    assert_eq!(told.notes.len(), 1);
    observed.zone.status = Some(told.status);
    assert_eq!(conclude::paused(&observed, at(60)).notes, []);
}

#[test]
fn openshift_must_have_an_scc_that_the_credential_may_use() {
    let judged = |scc: Option<Scc>| {
        let apis = Apis {
            kubevirt: Some("kubevirt.io/v1".into()),
            openshift: true,
        };
        let looked = Looked {
            apis: Some(Answer::Given(apis)),
            scc: scc.map(Answer::Given),
            ..fine("u", Claim::Free)
        };
        judge("east", "dr-metro1", "east-kubeconfig", &looked)
            .map(|_| ())
            .map_err(|fault| fault.reason)
    };
    assert_eq!(
        judged(Some(Scc {
            exists: true,
            usable: true
        })),
        Ok(())
    );
    assert_eq!(
        judged(Some(Scc {
            exists: false,
            usable: true
        })),
        Err("SCCPrerequisitesMissing".into())
    );
    assert_eq!(
        judged(Some(Scc {
            exists: true,
            usable: false
        })),
        Err("SCCPrerequisitesMissing".into())
    );
    assert_eq!(
        judged(None),
        Err("ClusterUnreachable".into()),
        "not asked is not known"
    );
}

#[test]
fn a_probe_that_was_not_made_never_counts_as_passed() {
    let full = serde_json::to_value(fine("u", Claim::Free)).unwrap();
    for field in ["version", "denied", "apis", "uid", "nodes", "claim"] {
        let mut value = full.clone();
        value[field] = Value::Null;
        let looked: Looked = serde_json::from_value(value).unwrap();
        assert!(judge("east", "dr-metro1", "s", &looked).is_err(), "{field}");
    }
}

mod leaving {
    use super::super::removal::{Cluster, Leaving, Step, remove};
    use super::*;

    fn leaving(requests: usize, east: Result<Claim, Fault>, west: Result<Claim, Fault>) -> Leaving {
        let mut zone = zone(Some(ready()));
        zone.metadata.deletion_timestamp = Some(Time(at(-60)));
        let cluster = |name: &str, claim| Cluster {
            name: name.into(),
            claim,
        };
        Leaving {
            zone,
            requests,
            unfinished: Vec::new(),
            clusters: vec![cluster("east", east), cluster("west", west)],
        }
    }

    fn unreachable() -> Fault {
        Fault {
            reason: conditions::CLUSTER_UNREACHABLE.into(),
            by: "cluster west is silent".into(),
            command: "kubectl".into(),
        }
    }

    #[test]
    fn a_free_zone_goes_workloads_first_then_the_manager_then_the_claims() {
        let removal = remove(&leaving(0, Ok(Claim::Held), Ok(Claim::Held)), at(0));
        let cluster = |name: &str| Site::Cluster(name.into());
        assert_eq!(
            removal.steps,
            [
                Step::Uninstall(cluster("east")),
                Step::Uninstall(cluster("west")),
                Step::Uninstall(Site::Hub),
                Step::Release("east".into()),
                Step::Release("west".into()),
                Step::DropFinalizer
            ]
        );
    }

    #[test]
    fn what_runs_under_a_foreign_claim_is_not_touched() {
        let foreign = Claim::Foreign {
            zone: "x".into(),
            namespace_uid: "y".into(),
        };
        let removal = remove(&leaving(0, Ok(foreign), Ok(Claim::Free)), at(0));
        assert_eq!(
            removal.steps,
            [
                Step::Uninstall(Site::Cluster("west".into())),
                Step::Uninstall(Site::Hub),
                Step::DropFinalizer
            ]
        );
    }

    #[test]
    fn it_waits_for_vms_then_for_the_managers_objects_then_for_clusters() {
        let mut world = leaving(2, Ok(Claim::Held), Err(unreachable()));
        let reason = |world: &Leaving| {
            let removal = remove(world, at(0));
            assert_eq!(
                (removal.steps.len(), removal.notes.len(), removal.again),
                (0, 1, Some(Duration::from_secs(10)))
            );
            let mut told = world.zone.clone();
            told.status = Some(removal.status.clone());
            let again = remove(
                &Leaving {
                    zone: told,
                    ..world.clone()
                },
                at(10),
            );
            assert_eq!(again.notes, [], "told once");
            assert!(!crate::status_differs(&again.status, &removal.status));
            removal.notes[0].clone()
        };
        let note = reason(&world);
        assert_eq!(note.reason, "ProtectionRequestsExist");
        assert_eq!(
            note.message,
            "ProtectionZone dr-metro1/metro1 waits to be deleted since 2025-12-31T23:59:00Z: zone metro1 still has 2 ProtectionRequests; unprotect them first. It is looked at again every 10 s; everything keeps running until then. Look with: kubectl -n dr-metro1 get protectionrequests"
        );
        world.requests = 0;
        world.unfinished = vec![("protectiongroups".into(), 1)];
        assert_eq!(reason(&world).reason, "ObjectsExist");
        world.unfinished.clear();
        let note = reason(&world);
        assert_eq!(note.reason, "ClusterUnreachable");
        assert!(
            note.message
                .contains("remove the finalizer siterecovery.trilio.io/zone-cleanup"),
            "{}",
            note.message
        );
    }
}

//! Replication health.

use std::collections::BTreeMap;

use farshore_api::drbd::{ConnectionState, ReplicationState, Role};
use farshore_api::replication_group_status::RpoStatus;
use farshore_api::rpo_event::RpoEventType;
use farshore_core::replication::{Decision, Observed, decide, is_event_of, surplus};
use farshore_core::{Seen, conditions, status_differs};
use jiff::Timestamp;
use serde_json::json;

use crate::failover::world::{at, request, resource, vms};

struct Monitor {
    seen: Observed,
    now: Timestamp,
    events: Vec<farshore_api::RPOEvent>,
    writes: usize,
}

impl Monitor {
    fn new(objective: i64) -> Self {
        let monitor = serde_json::from_value(json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ReplicationGroupStatus",
            "metadata": {"name": "shop-replication", "namespace": "dr-m", "uid": "u", "generation": 1, "labels": {"siterecovery.trilio.io/zone": "m"}},
            "spec": {"protectionGroupRef": {"name": "shop"}, "rpoObjectiveSeconds": objective},
        }))
        .unwrap();
        let resources = |cluster: &str, role| {
            Seen::Present(
                vms()
                    .into_iter()
                    .map(|vm| (vm.clone(), resource(&vm, cluster, role)))
                    .collect::<BTreeMap<_, _>>(),
            )
        };
        let seen = Observed {
            monitor,
            members: vms().iter().map(|vm| request(vm, "east")).collect(),
            unresolved: vec![],
            clusters: BTreeMap::from([
                ("east".into(), resources("east", Role::Primary)),
                ("west".into(), resources("west", Role::Secondary)),
            ]),
            last_poll: None,
        };
        Self {
            seen,
            now: at(0),
            events: vec![],
            writes: 0,
        }
    }

    fn poll(&mut self) -> Decision {
        let decision = decide(&self.seen, self.now);
        self.events.extend(decision.event.clone());
        if status_differs(&self.seen.monitor.status, &Some(&decision.status)) {
            self.seen.monitor.status = Some(decision.status.clone());
            self.writes += 1;
        }
        if self.seen.clusters.values().any(|c| c.present().is_some()) {
            self.seen.last_poll = Some(self.now);
        }
        self.now += jiff::SignedDuration::try_from(decision.requeue).unwrap();
        decision
    }

    fn link(&mut self, up: bool) {
        for side in self.seen.clusters.values_mut() {
            let Seen::Present(all) = side else { continue };
            for resource in all.values_mut() {
                let status = resource.status.as_mut().unwrap();
                for volume in &mut status.volumes {
                    volume.connection_state = if up {
                        ConnectionState::Connected
                    } else {
                        ConnectionState::Connecting
                    };
                    volume.replication_state = if up {
                        ReplicationState::Established
                    } else {
                        ReplicationState::Off
                    };
                    volume.out_of_sync_bytes = if up { 0 } else { 4096 };
                }
            }
        }
    }

    fn types(&self) -> Vec<RpoEventType> {
        self.events.iter().map(|e| e.spec.event_type).collect()
    }
}

#[test]
fn a_healthy_group_is_compliant_writes_once_and_tells_nothing() {
    let mut monitor = Monitor::new(0);
    for _ in 0..5 {
        let decision = monitor.poll();
        assert_eq!(
            (
                decision.status.rpo_status,
                decision.status.current_rpo_seconds
            ),
            (Some(RpoStatus::Compliant), Some(0))
        );
        assert_eq!(
            (decision.status.connected_vms, decision.status.total_vms),
            (Some(2), Some(2))
        );
    }
    assert_eq!((monitor.writes, monitor.events.len()), (1, 0));
}

#[test]
fn the_rpo_rises_while_the_link_is_down_and_each_change_is_told_once() {
    let mut monitor = Monitor::new(60);
    monitor.poll();
    monitor.link(false);
    let rpos: Vec<_> = (0..6)
        .map(|_| monitor.poll().status.current_rpo_seconds.unwrap())
        .collect();
    assert_eq!(
        rpos,
        [15, 30, 45, 60, 75, 90],
        "counted from the last poll that saw both sides equal"
    );
    monitor.link(true);
    assert_eq!(monitor.poll().status.current_rpo_seconds, Some(0));
    monitor.poll();
    assert_eq!(
        monitor.types(),
        [
            RpoEventType::RPOAtRisk,
            RpoEventType::RPOViolated,
            RpoEventType::RPORecovered
        ]
    );
    let chain: Vec<_> = monitor
        .events
        .iter()
        .map(|e| (e.spec.previous_status, e.spec.new_status))
        .collect();
    assert!(chain.windows(2).all(|w| w[0].1 == w[1].0), "{chain:?}");
    insta::assert_yaml_snapshot!("rpo_event", monitor.events[1]);
}

#[test]
fn after_a_restart_the_agents_tell_since_when() {
    let mut monitor = Monitor::new(60);
    monitor.poll();
    monitor.now = at(86_400);
    monitor.seen.last_poll = None;
    monitor.link(false);
    for side in monitor.seen.clusters.values_mut() {
        let Seen::Present(all) = side else { continue };
        for resource in all.values_mut() {
            let conditions = &mut resource.status.as_mut().unwrap().conditions;
            conditions::set(
                conditions,
                "Connected",
                conditions::Truth::False,
                "Connecting",
                "",
                None,
                at(86_390),
            );
        }
    }
    assert_eq!(monitor.poll().status.current_rpo_seconds, Some(10));
}

#[test]
fn one_silent_cluster_is_told_and_the_other_is_believed() {
    let mut monitor = Monitor::new(0);
    monitor.poll();
    monitor
        .seen
        .clusters
        .insert("east".into(), Seen::Unknown("no answer within 5 s".into()));
    let decision = monitor.poll();
    assert_eq!(
        decision.status.rpo_status,
        Some(RpoStatus::Compliant),
        "west still sees both disks equal"
    );
    assert_eq!(
        conditions::get(&decision.status.conditions, "Reachable")
            .unwrap()
            .status,
        "False"
    );
    monitor.link(false);
    assert_eq!(monitor.poll().status.rpo_status, Some(RpoStatus::Violated));
}

#[test]
fn silence_of_both_clusters_is_unknown_after_three_polls_and_then_says_no_more() {
    let mut monitor = Monitor::new(0);
    monitor.poll();
    let healthy = monitor.seen.clusters.clone();
    for side in monitor.seen.clusters.values_mut() {
        *side = Seen::Unknown("no answer within 5 s".into());
    }
    let said: Vec<_> = (0..3)
        .map(|_| monitor.poll().status.rpo_status.unwrap())
        .collect();
    assert_eq!(
        said,
        [
            RpoStatus::Compliant,
            RpoStatus::Compliant,
            RpoStatus::Unknown
        ]
    );
    let writes = monitor.writes;
    monitor.poll();
    monitor.poll();
    assert_eq!(monitor.writes, writes);
    monitor.seen.clusters = healthy;
    monitor.poll();
    assert_eq!(
        monitor.types(),
        [
            RpoEventType::ReplicationLost,
            RpoEventType::ReplicationRestored
        ]
    );
}

#[test]
fn a_vm_that_was_never_in_sync_violates_the_objective() {
    let mut monitor = Monitor::new(3600);
    for side in monitor.seen.clusters.values_mut() {
        *side = Seen::Present(BTreeMap::new());
    }
    let decision = monitor.poll();
    assert_eq!(
        (
            decision.status.rpo_status,
            decision.status.current_rpo_seconds
        ),
        (Some(RpoStatus::Violated), None)
    );
    assert_eq!(
        monitor.types(),
        [RpoEventType::RPOViolated],
        "the first word is told if it is bad"
    );
}

#[test]
fn a_group_without_protected_members_is_neither_good_nor_bad() {
    let mut monitor = Monitor::new(60);
    let phase = |monitor: &mut Monitor, phase: Option<&str>| {
        for member in &mut monitor.seen.members {
            member.status = phase.map(|p| serde_json::from_value(json!({"phase": p})).unwrap());
        }
    };
    let present = monitor.seen.clusters.clone();
    for early in [
        None,
        Some("Pending"),
        Some("Validating"),
        Some("Failed"),
        Some("CreatingDRBD"),
        Some("Syncing"),
    ] {
        phase(&mut monitor, early);
        for side in monitor.seen.clusters.values_mut() {
            *side = Seen::Present(BTreeMap::new());
        }
        let status = monitor.poll().status;
        assert_eq!(status.rpo_status, Some(RpoStatus::Unknown), "{early:?}");
        let healthy = conditions::get(&status.conditions, "Healthy").unwrap();
        assert_eq!(
            (healthy.status.as_str(), healthy.reason.as_str()),
            ("Unknown", "NoProtectedMembers")
        );
        assert!(
            healthy
                .message
                .contains("kubectl get protectionrequest -n dr-m")
        );
    }
    monitor.seen.unresolved = vec!["VirtualMachine shop/ghost".into()];
    let members = std::mem::take(&mut monitor.seen.members);
    assert_eq!(monitor.poll().status.rpo_status, Some(RpoStatus::Unknown));
    assert_eq!(
        monitor.events,
        [],
        "nothing was ever replicated that could be lost"
    );

    monitor.seen.members = members;
    monitor.seen.clusters = present;
    phase(&mut monitor, Some("Protected"));
    assert_eq!(
        monitor.poll().status.rpo_status,
        Some(RpoStatus::Violated),
        "a member that is not protected beside one that is"
    );
    monitor.seen.unresolved.clear();
    assert_eq!(monitor.poll().status.rpo_status, Some(RpoStatus::Compliant));
}

#[test]
fn a_process_that_died_before_the_status_was_written_finds_its_event_again() {
    let mut monitor = Monitor::new(0);
    monitor.poll();
    monitor.link(false);
    let first = decide(&monitor.seen, monitor.now).event.unwrap();
    let later = decide(
        &monitor.seen,
        monitor.now + jiff::SignedDuration::from_secs(40),
    )
    .event
    .unwrap();
    assert!(is_event_of(first.metadata.name.as_deref().unwrap(), &later));
    monitor.poll();
    monitor.link(true);
    monitor.poll();
    monitor.link(false);
    monitor.poll();
    let again = monitor.events.last().unwrap();
    assert!(
        !is_event_of(first.metadata.name.as_deref().unwrap(), again),
        "the next loss is another event"
    );
}

#[test]
fn five_hundred_events_are_kept() {
    let mut monitor = Monitor::new(0);
    monitor.poll();
    monitor.link(false);
    let event = decide(&monitor.seen, monitor.now).event.unwrap();
    let many: Vec<_> = (0..503)
        .map(|i| {
            let mut event = event.clone();
            event.metadata.name = Some(format!("shop-{i}"));
            event.spec.timestamp =
                k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1000 - i));
            event
        })
        .collect();
    assert_eq!(surplus(&many), ["shop-502", "shop-501", "shop-500"]);
    assert!(surplus(&many[..500]).is_empty());
}

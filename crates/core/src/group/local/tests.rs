//! Cases as data: `cases/*.yaml` in, the decision out as a snapshot; and properties.

use farshore_api::protection_group::GroupMember;
use proptest::prelude::*;

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:01:00Z".parse().unwrap()
}

#[test]
fn cases() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/group/local/cases");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let case: Case =
            serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        insta::with_settings!({snapshot_path => "cases", prepend_module_to_snapshot => false, description => text.lines().next().unwrap_or_default()}, {
            insta::assert_yaml_snapshot!(name, decide(&case.observed(), now()));
        });
    }
}

/// A group in short form.
#[derive(Debug, Deserialize)]
struct Case {
    desired: DesiredState,
    /// `status.currentState` before.
    #[serde(default)]
    before: Option<CurrentState>,
    vms: Vec<Short>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Short {
    name: String,
    order: i32,
    delay: i32,
    /// `running: false`, `runStrategy: Always`, …; absent: no VirtualMachine.
    spec: Option<Value>,
    /// What stopping kept.
    kept: Option<String>,
    instance: Option<Instance>,
    /// Role seen; absent: no DRBDResource.
    role: Option<String>,
    /// Role wanted, where it differs.
    wanted: Option<String>,
    /// Role epoch seen; 2 is wanted.
    epoch: Option<i64>,
}

impl Short {
    fn member(&self) -> Member {
        let object = self.spec.as_ref().map(|spec| {
            let mut object = json!({"metadata": {"name": self.name, "namespace": "shop", "resourceVersion": "7"}, "spec": spec});
            if let Some(kept) = &self.kept {
                object["metadata"]["annotations"] = json!({"siterecovery.trilio.io/run-strategy": kept});
            }
            object
        });
        let resource = self.role.as_ref().map(|role| {
            serde_json::from_value(json!({
                "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDResource",
                "metadata": {"name": format!("drbd-{}", self.name), "namespace": "shop"},
                "spec": {
                    "vmRef": {"name": self.name}, "zone": "metro1", "cluster": "east", "peerCluster": "west", "nodeName": "n1",
                    "role": self.wanted.as_ref().unwrap_or(role), "roleEpoch": 2, "volumes": [],
                },
                "status": {"role": role, "roleEpoch": self.epoch.unwrap_or(2), "connectionState": "Connected", "diskState": "UpToDate"},
            }))
            .unwrap()
        });
        Member {
            vm: VmRef {
                namespace: "shop".into(),
                name: self.name.clone(),
            },
            start_order: self.order,
            start_delay_seconds: self.delay,
            object,
            instance: self.instance.clone(),
            resource,
        }
    }
}

impl Case {
    fn observed(&self) -> Observed {
        let members: Vec<Member> = self.vms.iter().map(Short::member).collect();
        let mut group = ProtectionGroup::new(
            "shop",
            farshore_api::protection_group::ProtectionGroupSpec {
                desired_state: self.desired,
                sla: farshore_api::protection_group::Sla::default(),
                members: members
                    .iter()
                    .map(|m| GroupMember {
                        vm_ref: Some(m.vm.clone()),
                        start_order: m.start_order,
                        start_delay_seconds: m.start_delay_seconds,
                        ..GroupMember::default()
                    })
                    .collect(),
                hooks: None,
                failover: None,
            },
        );
        group.metadata.namespace = Some("dr-metro1".into());
        group.metadata.generation = Some(5);
        group.status = self.before.map(|state| ProtectionGroupStatus {
            current_state: Some(state),
            observed_generation: Some(4),
            ..ProtectionGroupStatus::default()
        });
        Observed {
            group,
            cluster: "east".into(),
            members,
        }
    }
}

#[test]
fn the_cause_that_kubevirt_names_is_found_before_its_consequence() {
    let object = |conditions: Value| json!({"status": {"conditions": conditions}});
    let not_ready = json!({"type": "Ready", "status": "False", "reason": "GuestNotRunning", "message": "Guest VM is not reported as running"});
    let cases = [
        (json!([]), None),
        (
            json!([not_ready.clone()]),
            Some("GuestNotRunning: Guest VM is not reported as running"),
        ),
        (
            json!([not_ready.clone(), {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}]),
            Some("Unschedulable: 0/3 nodes are available"),
        ),
        (
            json!([not_ready, {"type": "Synchronized", "status": "False", "reason": "FailedPvcNotFound", "message": "PVC shop/x does not exist"}]),
            Some("FailedPvcNotFound: PVC shop/x does not exist"),
        ),
        (
            json!([{"type": "Failure", "status": "True", "reason": "FailedCreate", "message": "denied"}]),
            Some("FailedCreate: denied"),
        ),
        (
            json!([{"type": "Ready", "status": "False", "reason": "VMINotExists", "message": "VMI does not exist"}]),
            None,
        ),
        (json!([{"type": "Ready", "status": "True"}]), None),
    ];
    for (conditions, expected) in cases {
        assert_eq!(complaint(&object(conditions)).as_deref(), expected);
    }
    assert_eq!(complaint(&json!({})), None);
}

fn any_short() -> impl Strategy<Value = Short> {
    let spec = prop::sample::select(vec![
        None,
        Some(json!({"running": true})),
        Some(json!({"running": false})),
        Some(json!({"runStrategy": "Always"})),
        Some(json!({"runStrategy": "Halted"})),
        Some(json!({"runStrategy": "Manual"})),
    ]);
    let instance = prop::option::of(
        (
            prop::sample::select(vec!["Scheduling", "Running", "Succeeded"]),
            any::<bool>(),
            prop::option::of(any::<bool>()),
            0..120_i64,
        )
            .prop_map(|(phase, deleting, ready, since)| Instance {
                phase: phase.into(),
                node: None,
                ready,
                since: Timestamp::from_second(1_767_225_600 + since).ok(),
                deleting,
                message: None,
            }),
    );
    let role = prop::option::of(prop::sample::select(vec![
        "Primary".to_string(),
        "Secondary".into(),
        "Unknown".into(),
    ]));
    let wanted = prop::option::of(prop::sample::select(vec![
        "Primary".to_string(),
        "Secondary".into(),
    ]));
    (
        0..3_i32,
        0..60_i32,
        spec,
        instance,
        role,
        wanted,
        prop::option::of(1..3_i64),
    )
        .prop_map(
            |(order, delay, spec, instance, role, wanted, epoch)| Short {
                name: String::new(),
                order,
                delay,
                spec,
                kept: None,
                instance,
                role,
                wanted,
                epoch,
            },
        )
}

fn any_case() -> impl Strategy<Value = Case> {
    (any::<bool>(), prop::collection::vec(any_short(), 0..6)).prop_map(|(run, mut vms)| {
        for (n, vm) in vms.iter_mut().enumerate() {
            vm.name = format!("vm{n}");
        }
        Case {
            desired: if run {
                DesiredState::Running
            } else {
                DesiredState::Stopped
            },
            before: None,
            vms,
        }
    })
}

proptest! {
    #[test]
    fn only_a_vm_without_instance_whose_disks_are_primary_is_started(case in any_case()) {
        let seen = case.observed();
        for step in decide(&seen, now()).steps {
            let short = case.vms.iter().find(|v| v.name == step.vm.name).unwrap();
            prop_assert_eq!(step.to, case.desired);
            if step.to == DesiredState::Running {
                prop_assert!(short.instance.is_none());
                prop_assert_eq!(short.role.as_deref(), Some("Primary"));
                prop_assert_ne!(short.wanted.as_deref(), Some("Secondary"));
                let lower_up = case.vms.iter().filter(|v| v.order < short.order).all(|v| v.instance.as_ref().is_some_and(|i| i.phase == "Running" && !i.deleting));
                prop_assert!(lower_up);
            } else if short.instance.is_some() {
                prop_assert!(case.vms.iter().filter(|v| v.order > short.order && v.spec.is_some()).all(|v| v.instance.is_none()));
            }
        }
    }

    #[test]
    fn stopped_is_said_only_when_nothing_runs_and_nothing_can_start_by_itself(case in any_case()) {
        let decision = decide(&case.observed(), now());
        let stopped = decision.status.current_state == Some(CurrentState::Stopped);
        let truly = !case.vms.is_empty() && case.vms.iter().all(|v| {
            v.instance.is_none() && v.spec.as_ref().is_some_and(|s| s["running"] == json!(false) || s["runStrategy"] == json!("Halted"))
        });
        prop_assert_eq!(stopped, truly);
        let running = decision.status.current_state == Some(CurrentState::Running);
        prop_assert!(!running || case.vms.iter().all(|v| v.instance.as_ref().is_some_and(|i| i.phase == "Running")));
        prop_assert_eq!(decision.status.observed_generation, Some(5));
    }

    #[test]
    fn an_unchanged_world_changes_neither_steps_nor_status(case in any_case()) {
        let mut seen = case.observed();
        let first = decide(&seen, now());
        seen.group.status = Some(first.status.clone());
        let second = decide(&seen, now());
        prop_assert_eq!(&first.status, &second.status);
        prop_assert_eq!(&first.steps, &second.steps);
    }

    #[test]
    fn every_vm_that_is_not_as_desired_is_acted_on_or_says_why(case in any_case()) {
        let decision = decide(&case.observed(), now());
        let goal = if case.desired == DesiredState::Running { CurrentState::Running } else { CurrentState::Stopped };
        for vm in decision.status.vms.iter().filter(|v| v.state != goal) {
            let acted = decision.steps.iter().any(|s| s.vm.name == vm.name);
            prop_assert!(acted || vm.message.is_some(), "{vm:?}");
        }
    }
}

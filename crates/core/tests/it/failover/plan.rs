//! What is printed before a failover is what then runs.

use farshore_api::drbd::{ConnectionState, DiskState};
use farshore_api::failover_request::FailoverState;
use farshore_api::protection_group::CurrentState;
use farshore_core::Seen;
use farshore_core::failover::plan::{Plan, plan};
use farshore_core::failover::{LockPurpose, Side, Step};
use serde_json::json;

use super::world::{World, vms};

/// Steps without renewals of the lock, and without what depends on the clock and on versions.
fn essence(steps: &[Step]) -> Vec<serde_json::Value> {
    let renewal = |s: &&Step| {
        !matches!(
            s,
            Step::WriteLock {
                purpose: LockPurpose::Renew,
                ..
            }
        )
    };
    let plain = |step: &Step| {
        let mut step = serde_json::to_value(step).unwrap();
        for field in ["spec", "resourceVersion"] {
            step.as_object_mut().unwrap().remove(field);
        }
        step
    };
    steps.iter().filter(renewal).map(plain).collect()
}

fn text(plan: &Plan, world: &World) -> String {
    plan.lines(&world.seen).join("\n")
}

#[test]
fn a_plan_says_step_by_step_what_is_done() {
    let mut world = World::new();
    world.hooks(json!({
        "preFailover": [{"name": "quiesce", "namespace": "ops", "jobTemplate": {"spec": {}}}],
        "postFailover": [{"name": "smoke", "namespace": "ops", "jobTemplate": {"spec": {}}}],
    }));
    world.taint(&["drbd.linbit.com/lost-quorum"]);
    let told = plan(&world.seen, world.now);
    assert_eq!(told.ends, FailoverState::Completed);
    insta::assert_snapshot!(text(&told, &world));
}

#[test]
fn what_is_planned_is_what_runs() {
    for hooks in [false, true] {
        for taint in [false, true] {
            let mut world = World::new();
            if hooks {
                world.hooks(
                    json!({"preFailover": [{"name": "quiesce", "namespace": "ops", "jobTemplate": {"spec": {}}}]}),
                );
            }
            if taint {
                world.taint(&["drbd.linbit.com/lost-quorum"]);
            }
            let told = plan(&world.seen, world.now);
            assert_eq!(world.run(), told.ends);
            assert_eq!(essence(&world.trace), essence(&told.steps));
        }
    }
}

#[test]
fn planning_changes_nothing() {
    let world = World::new();
    let before = format!("{:?}", world.seen);
    plan(&world.seen, world.now);
    assert_eq!(format!("{:?}", world.seen), before);
}

type Change = fn(&mut World);

#[test]
fn what_is_in_the_way_is_told_before_anything_is_done() {
    let cases: [(&str, Change); 6] = [
        ("another failover", |w| w.hold_lock("uid-of-shop-0", w.now)),
        ("another group runs there", |w| {
            w.taint(&["drbd.linbit.com/lost-quorum"]);
            w.neighbour("bank", Some(CurrentState::Running));
        }),
        ("the target is silent", |w| {
            w.seen.target = Side::unknown("west", "no answer within 5 s");
        }),
        ("the target has no good data", |w| {
            for resource in World::resources(&mut w.seen.target).values_mut() {
                let status = resource.status.as_mut().unwrap();
                status.disk_state = Some(DiskState::Inconsistent);
                status.volumes[0].disk_state = DiskState::Inconsistent;
                status.volumes[0].out_of_sync_bytes = 5 << 20;
            }
        }),
        ("no member has a request", |w| {
            w.seen.unresolved = vec!["ProtectionRequest db02".into()];
        }),
        ("it is there already", |w| {
            w.flip_all();
            w.seen.request.spec.target_cluster = "west".into();
            std::mem::swap(&mut w.seen.source.mirror, &mut w.seen.target.mirror);
        }),
    ];
    let mut told = String::new();
    for (name, change) in cases {
        let mut world = World::new();
        change(&mut world);
        let plan = plan(&world.seen, world.now);
        assert_ne!(plan.ends, FailoverState::Completed, "{name}");
        let touches = |s: &Step| matches!(s, Step::SetDesiredState { .. } | Step::Flip { .. });
        assert!(!plan.steps.iter().any(touches), "{name}: {plan:?}");
        told.push_str(&format!("== {name}\n{}\n", text(&plan, &world)));
    }
    insta::assert_snapshot!(told);
}

#[test]
fn data_that_is_missing_or_unknown_is_told_by_vm() {
    let mut world = World::new();
    let [db, web] = [vms()[0].clone(), vms()[1].clone()];
    let resources = World::resources(&mut world.seen.source);
    let status = resources.get_mut(&db).unwrap().status.as_mut().unwrap();
    status.volumes[0].out_of_sync_bytes = 3 << 20;
    resources.remove(&web);
    world.seen.target.resources = Seen::Unknown("no answer".into());
    let told = plan(&world.seen, world.now);
    assert_eq!(
        told.missing.into_iter().collect::<Vec<_>>(),
        [(db, 3 << 20)]
    );
    assert_eq!(told.unknown, [web]);
}

#[test]
fn a_target_that_stands_alone_does_not_know_what_it_lacks() {
    let mut world = World::new();
    world.seen.source.resources = Seen::Unknown("no answer".into());
    let connected = plan(&world.seen, world.now);
    assert!(connected.unknown.is_empty() && connected.missing.is_empty());
    for resource in World::resources(&mut world.seen.target).values_mut() {
        let status = resource.status.as_mut().unwrap();
        status.connection_state = Some(ConnectionState::Connecting);
    }
    let alone = plan(&world.seen, world.now);
    assert_eq!(alone.unknown, vms());
    assert!(text(&alone, &world).contains("Look with: kubectl --context west"));
}

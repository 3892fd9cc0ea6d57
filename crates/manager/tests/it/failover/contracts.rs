//! What an outside observer sees of a failover [S1] [S2].

use std::sync::atomic::Ordering;

use farshore_api::failover_request::FailoverState::*;
use farshore_api::failover_request::{FailoverRequestStatus, VmFailoverPhase};
use farshore_api::protection_group::DesiredState;
use farshore_api::{ProtectionGroup, ProtectionRequest};
use farshore_core::conditions;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::world::{NS, World};

fn hook(timeout: i32) -> Value {
    json!({"name": "hook", "namespace": "ops", "timeoutSeconds": timeout, "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}})
}

async fn lease(world: &World) -> Option<Lease> {
    Api::namespaced(world.client("hub"), NS)
        .get_opt("failover-lock-shop")
        .await
        .unwrap()
}

/// Holder of the lock.
async fn holder(world: &World) -> Option<String> {
    lease(world).await.unwrap().spec.unwrap().holder_identity
}

fn reason<'a>(status: &'a FailoverRequestStatus, type_: &str) -> &'a str {
    let condition = conditions::get(&status.conditions, type_);
    condition.map_or("", |c| c.reason.as_str())
}

fn trail(status: &FailoverRequestStatus) -> Vec<&'static str> {
    status.steps.iter().map(|s| s.name.as_str()).collect()
}

/// C24: `Completed`, with the progress of each VM.
#[tokio::test(start_paused = true)]
async fn a_planned_failover_completes_with_the_progress_of_each_vm() {
    let world = World::new().await;
    world.start();
    world.request("shop-1", "west", json!({})).await;
    let request = world.until("shop-1", Completed).await;
    let status = request.status.unwrap();
    assert_eq!(
        trail(&status),
        [
            "Pending",
            "Validating",
            "StoppingOnSource",
            "RemovingTaints",
            "PromotingTarget",
            "StartingOnTarget",
            "Completed"
        ]
    );
    assert_eq!(status.vm_statuses.len(), 2);
    assert!(
        status
            .vm_statuses
            .iter()
            .all(|vm| vm.phase == VmFailoverPhase::Running
                && vm.start_time.is_some()
                && vm.end_time.is_some())
    );
    assert_eq!(world.sources().await, ["west", "west"]);
    assert!(
        status.duration_seconds.unwrap() < 30,
        "{:?}",
        status.duration_seconds
    );
    world.pass(5).await;
    let after = world.requests().get("shop-1").await.unwrap();
    assert_eq!(after.metadata.finalizers, None);
    assert_eq!(holder(&world).await, None);

    let events: Api<Event> = Api::namespaced(world.client("hub"), NS);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let told: Vec<String> = events
        .iter()
        .filter(|e| {
            e.reporting_controller
                .as_deref()
                .unwrap()
                .ends_with("failover-controller")
        })
        .filter_map(|e| e.reason.clone())
        .collect();
    for state in [
        "Validating",
        "StoppingOnSource",
        "RemovingTaints",
        "PromotingTarget",
        "StartingOnTarget",
        "Completed",
    ] {
        assert_eq!(
            told.iter().filter(|t| *t == state).count(),
            1,
            "{state} in {told:?}"
        );
    }
}

/// Failback: the same, back.
#[tokio::test(start_paused = true)]
async fn a_failback_brings_the_group_home() {
    let world = World::new().await;
    world.start();
    world.request("there", "west", json!({})).await;
    world.until("there", Completed).await;
    world.request("back", "east", json!({})).await;
    world.until("back", Completed).await;
    assert_eq!(world.sources().await, ["east", "east"]);
    assert_eq!(
        world.mirror_of("east").await.spec.desired_state,
        DesiredState::Running
    );
    assert_eq!(
        world.mirror_of("west").await.spec.desired_state,
        DesiredState::Stopped
    );
    assert_eq!(
        lease(&world).await.unwrap().spec.unwrap().lease_transitions,
        Some(1)
    );
    let owners = lease(&world).await.unwrap().metadata.owner_references;
    let hub: Api<ProtectionGroup> = Api::namespaced(world.client("hub"), NS);
    let group = hub.get("shop").await.unwrap();
    assert_eq!(
        owners.unwrap()[0].uid,
        group.uid().unwrap(),
        "the lock goes with its group"
    );
}

/// C18: Lease of 300 s; a second request waits; then it is evaluated.
#[tokio::test(start_paused = true)]
async fn a_second_request_waits_for_the_lock_and_is_evaluated_after_it() {
    let world = World::new().await;
    world.habits.never_stops.store(true, Ordering::Relaxed);
    world.start();
    world.request("first", "west", json!({})).await;
    let first = world.until("first", StoppingOnSource).await;
    let held = lease(&world).await.unwrap().spec.unwrap();
    assert_eq!(
        (held.holder_identity, held.lease_duration_seconds),
        (first.uid(), Some(300))
    );
    world.request("second", "west", json!({})).await;
    let second = world
        .wait("second", "LockHeld", |r| {
            r.status.as_ref().is_some_and(|s| s.message.is_some())
        })
        .await
        .status
        .unwrap();
    assert_eq!(second.state, Some(Pending));
    assert_eq!(reason(&second, "Locked"), "LockHeld");
    let message = second.message.unwrap();
    assert!(
        message.contains("FailoverRequest dr-m/first") && message.contains("2026-01-01T00:0"),
        "{message}"
    );
    world.pass(30).await;
    assert_eq!(world.state("second").await, Some(Pending));

    world.habits.never_stops.store(false, Ordering::Relaxed);
    world.until("first", Completed).await;
    let second = world.until("second", Failed).await.status.unwrap();
    assert_eq!(reason(&second, "Complete"), "AlreadyActive");
    let message = second.message.unwrap();
    for part in [
        "spec.targetCluster \"west\" is already the active cluster of ProtectionGroup shop. Nothing was changed.",
        "whose spec.targetCluster is east",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_take_turns_by_age() {
    let world = World::new().await;
    world.habits.never_stops.store(true, Ordering::Relaxed);
    world.start();
    world.request("first", "west", json!({})).await;
    world.until("first", StoppingOnSource).await;
    world.request("z-older", "west", json!({})).await;
    world.pass(2).await;
    world.request("a-newer", "west", json!({})).await;
    world
        .wait("a-newer", "z-older named", |r| {
            let message = r.status.as_ref().and_then(|s| s.message.as_deref());
            message.is_some_and(|m| m.contains("FailoverRequest dr-m/z-older was made earlier"))
        })
        .await;
    world.abort("first").await;
    world.until("first", Failed).await;
    world.until("z-older", StoppingOnSource).await;
    assert_eq!(world.state("a-newer").await, Some(Pending));
}

/// C18: an expired Lease is taken over.
#[tokio::test(start_paused = true)]
async fn an_expired_lock_is_taken_over() {
    let world = World::new().await;
    let leases: Api<Lease> = Api::namespaced(world.client("hub"), NS);
    let old = json!({"metadata": {"name": "failover-lock-shop"}, "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 300, "leaseTransitions": 4,
        "acquireTime": "2025-12-31T23:58:00.000000Z", "renewTime": "2025-12-31T23:58:00.000000Z"}});
    leases
        .create(
            &PostParams::default(),
            &serde_json::from_value(old).unwrap(),
        )
        .await
        .unwrap();
    world.start();
    world.request("shop-1", "west", json!({})).await;
    world.pass(100).await;
    assert_eq!(world.state("shop-1").await, Some(Pending));
    assert_eq!(
        world.mirror_of("east").await.spec.desired_state,
        DesiredState::Running
    );
    world.until("shop-1", Completed).await;
    assert_eq!(
        lease(&world).await.unwrap().spec.unwrap().lease_transitions,
        Some(5)
    );
}

/// C19, C21, C22: the order of what is written, against what was reported at that moment.
#[tokio::test(start_paused = true)]
async fn nothing_flips_before_the_stop_and_nothing_starts_before_primary() {
    let world = World::new().await;
    world.habits.never_stops.store(true, Ordering::Relaxed);
    world.habits.never_promotes.store(true, Ordering::Relaxed);
    world.start();
    world.request("shop-1", "west", json!({})).await;
    world.until("shop-1", StoppingOnSource).await;
    world.pass(60).await;
    assert_eq!(world.state("shop-1").await, Some(StoppingOnSource));
    assert_eq!(
        world.mirror_of("east").await.spec.desired_state,
        DesiredState::Stopped
    );
    assert_eq!(world.sources().await, ["east", "east"]);
    world.habits.never_stops.store(false, Ordering::Relaxed);
    world.until("shop-1", PromotingTarget).await;
    world.pass(60).await;
    assert_eq!(world.sources().await, ["west", "west"]);
    assert_eq!(
        world.mirror_of("west").await.spec.desired_state,
        DesiredState::Stopped
    );
    world.habits.never_promotes.store(false, Ordering::Relaxed);
    world.until("shop-1", Completed).await;
    assert_eq!(
        world.mirror_of("west").await.spec.desired_state,
        DesiredState::Running
    );
}

/// C20: no VM is ever written; the failover-controller writes what is its own.
#[tokio::test(start_paused = true)]
async fn no_vm_is_ever_written_by_the_failover_controller() {
    let world =
        World::with(json!({"hooks": {"preFailover": [hook(60)], "postFailover": [hook(60)]}}))
            .await;
    world
        .taint("west-1", &["drbd.linbit.com/lost-quorum"])
        .await;
    world.start();
    world.request("shop-1", "west", json!({})).await;
    world.until("shop-1", Completed).await;
    world.pass(5).await;
    let writes = world.writes();
    assert!(
        !writes.iter().any(|w| w.contains("virtualmachine")),
        "{writes:#?}"
    );
    let mut kinds: Vec<&str> = writes
        .iter()
        .filter(|w| !w.contains(" events/"))
        .map(|w| w.split(['/']).next().unwrap())
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    let own = [
        "east patch protectiongroups",
        "hub create leases",
        "hub patch failoverrequests",
        "hub patch protectionrequests",
        "hub update leases",
        "west create jobs",
        "west patch nodes",
        "west patch protectiongroups",
    ];
    assert_eq!(kinds, own, "{writes:#?}");
    assert!(
        writes
            .iter()
            .filter(|w| !w.contains(" events/"))
            .all(|w| w.ends_with("by failover-controller")),
        "{writes:#?}"
    );
}

/// C23: a conflict with a running group blocks; `force` passes. Without a taint nothing is checked.
#[tokio::test(start_paused = true)]
async fn a_running_group_on_the_target_blocks_and_force_passes() {
    let world = World::new().await;
    world.mirror("west", "billing", "running").await;
    world
        .taint("west-1", &["siterecovery.trilio.io/quorum-lost", "team"])
        .await;
    world.start();
    world.request("shop-1", "west", json!({})).await;
    let blocked = world.until("shop-1", Blocked).await.status.unwrap();
    assert_eq!(blocked.safety_check.unwrap().conflicts, ["dr-m/billing"]);
    assert_eq!(
        world.mirror_of("east").await.spec.desired_state,
        DesiredState::Running,
        "nothing was stopped"
    );
    world.pass(10).await;
    assert_eq!(holder(&world).await, None);

    world
        .request("shop-2", "west", json!({"force": true}))
        .await;
    let forced = world.until("shop-2", Completed).await.status.unwrap();
    let check = forced.safety_check.unwrap();
    assert!(conditions::is_true(&forced.conditions, "SafetyCheckPassed"));
    assert!(
        check.forced && check.conflicts == ["dr-m/billing"],
        "what was forced stays on record"
    );
    assert_eq!(world.taints("west-1").await, ["team"]);
}

/// C25: hooks are Jobs on the target.
#[tokio::test(start_paused = true)]
async fn hooks_are_jobs_on_the_target() {
    let world = World::with(
        json!({"hooks": {"preFailover": [hook(60), hook(60)], "postFailover": [hook(60)]}}),
    )
    .await;
    world.start();
    world.request("shop-1", "west", json!({})).await;
    let status = world.until("shop-1", Completed).await.status.unwrap();
    assert_eq!(
        trail(&status),
        [
            "Pending",
            "Validating",
            "RunningPreHooks",
            "StoppingOnSource",
            "RemovingTaints",
            "PromotingTarget",
            "StartingOnTarget",
            "RunningPostHooks",
            "Completed"
        ]
    );
    let names = |cluster: &str| {
        let api: Api<Job> = Api::namespaced(world.client(cluster), "ops");
        async move {
            api.list(&ListParams::default())
                .await
                .unwrap()
                .items
                .iter()
                .map(ResourceExt::name_any)
                .collect::<Vec<_>>()
        }
    };
    let uid = world.requests().get("shop-1").await.unwrap().uid().unwrap();
    let job = |stage: &str, index| farshore_api::names::hook_job("shop-1", &uid, stage, index);
    assert_eq!(
        names("west").await,
        [job("post", 0), job("pre", 0), job("pre", 1)]
    );
    assert!(names("east").await.is_empty());
    let job: Job = Api::namespaced(world.client("west"), "ops")
        .get(&job("pre", 0))
        .await
        .unwrap();
    assert_eq!(
        job.labels()
            .get("siterecovery.trilio.io/failover-request")
            .map(String::as_str),
        Some("shop-1")
    );
    assert_eq!(job.spec.unwrap().active_deadline_seconds, Some(60));
}

#[tokio::test(start_paused = true)]
async fn a_failed_pre_hook_ends_it_before_anything_is_stopped() {
    let world = World::with(json!({"hooks": {"preFailover": [hook(60)]}})).await;
    world.habits.jobs_fail.store(true, Ordering::Relaxed);
    world.start();
    world.request("shop-1", "west", json!({})).await;
    let status = world.until("shop-1", Failed).await.status.unwrap();
    assert_eq!(reason(&status, "Complete"), "HookFailed");
    assert_eq!(
        world.mirror_of("east").await.spec.desired_state,
        DesiredState::Running
    );
}

#[tokio::test(start_paused = true)]
async fn a_hook_in_a_namespace_that_does_not_exist_ends_it_and_says_why() {
    let mut lost = hook(20);
    lost["namespace"] = "nowhere".into();
    let world = World::with(json!({"hooks": {"preFailover": [lost]}})).await;
    world.start();
    world.request("shop-1", "west", json!({})).await;
    let status = world.until("shop-1", Failed).await.status.unwrap();
    let message = status.message.unwrap();
    assert!(
        message.contains("could not be created") && message.contains("nowhere"),
        "{message}"
    );
}

/// C27: the budget ends it, before the flip with a rollback, after it resumable.
#[tokio::test(start_paused = true)]
async fn the_budget_ends_a_failover() {
    let world = World::with(json!({"failover": {"vmStopTimeoutSeconds": 3600}})).await;
    world.habits.never_stops.store(true, Ordering::Relaxed);
    world.start();
    world.request("shop-1", "west", json!({})).await;
    let status = world.until("shop-1", Failed).await.status.unwrap();
    assert_eq!(reason(&status, "Complete"), "BudgetExceeded");
    assert_eq!(status.rolled_back, Some(true));
    let took = status.duration_seconds.unwrap();
    assert!((300..=305).contains(&took), "{took}");
    assert_eq!(
        world.mirror_of("east").await.spec.desired_state,
        DesiredState::Running
    );
    assert_eq!(world.sources().await, ["east", "east"]);

    world.habits.never_stops.store(false, Ordering::Relaxed);
    world.habits.never_promotes.store(true, Ordering::Relaxed);
    world
        .request("shop-2", "west", json!({"timeoutSeconds": 60}))
        .await;
    let status = world.until("shop-2", Failed).await.status.unwrap();
    assert_eq!(
        (status.rolled_back, status.resumable),
        (Some(false), Some(true))
    );
    assert!((60..=65).contains(&status.duration_seconds.unwrap()));

    world.habits.never_promotes.store(false, Ordering::Relaxed);
    world.request("shop-3", "west", json!({})).await;
    world.until("shop-3", Completed).await;
    assert_eq!(
        world.mirror_of("west").await.spec.desired_state,
        DesiredState::Running
    );
}

#[tokio::test(start_paused = true)]
async fn vms_that_do_not_stop_in_time_turn_it_back() {
    let world = World::with(json!({"failover": {"vmStopTimeoutSeconds": 30}})).await;
    world.habits.never_stops.store(true, Ordering::Relaxed);
    world.start();
    world.request("shop-1", "west", json!({})).await;
    let status = world.until("shop-1", Failed).await.status.unwrap();
    assert_eq!(reason(&status, "Complete"), "VMStopTimeout");
    assert_eq!(status.rolled_back, Some(true));
}

#[tokio::test(start_paused = true)]
async fn an_abort_turns_it_back() {
    let world = World::new().await;
    world.habits.never_stops.store(true, Ordering::Relaxed);
    world.start();
    world.request("shop-1", "west", json!({})).await;
    world.until("shop-1", StoppingOnSource).await;
    world.abort("shop-1").await;
    let status = world.until("shop-1", Failed).await.status.unwrap();
    assert_eq!(reason(&status, "Complete"), "Aborted");
    assert_eq!(status.rolled_back, Some(true));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_request_rolls_back_and_lets_go_before_it_vanishes() {
    let world = World::new().await;
    world.habits.never_stops.store(true, Ordering::Relaxed);
    world.start();
    world.request("shop-1", "west", json!({})).await;
    world.until("shop-1", StoppingOnSource).await;
    world.pass(5).await;
    world
        .requests()
        .delete("shop-1", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    for _ in 0..600 {
        if world.requests().get_opt("shop-1").await.unwrap().is_none() {
            break;
        }
        world.pass(1).await;
    }
    assert!(world.requests().get_opt("shop-1").await.unwrap().is_none());
    assert_eq!(holder(&world).await, None);
    assert_eq!(
        world.mirror_of("east").await.spec.desired_state,
        DesiredState::Running
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_cluster_is_waited_for_a_minute_and_nothing_is_stopped() {
    let world = World::new().await;
    world.workload["east"].set_down(true);
    world.start();
    world.request("shop-0", "west", json!({})).await;
    let status = world.until("shop-0", Failed).await.status.unwrap();
    assert_eq!(reason(&status, "Failed"), "ClusterUnreachable");
    assert!((60..=70).contains(&status.duration_seconds.unwrap()));
    world.pass(5).await;
    assert_eq!(holder(&world).await, None, "the lock is free for others");

    world.request("shop-1", "west", json!({})).await;
    let waiting = world.wait("shop-1", "ClusterUnreachable", |r| {
        let conditions = r
            .status
            .as_ref()
            .map(|s| s.conditions.clone())
            .unwrap_or_default();
        conditions::get(&conditions, "Complete").is_some_and(|c| c.reason == "ClusterUnreachable")
    });
    assert!(
        waiting
            .await
            .status
            .unwrap()
            .message
            .unwrap()
            .contains("cluster east does not answer")
    );
    world.pass(30).await;
    world.workload["east"].set_down(false);
    world.until("shop-1", Completed).await;
}

/// A stopped group moves, and stays stopped.
#[tokio::test(start_paused = true)]
async fn a_stopped_group_stays_stopped() {
    let world = World::with(json!({"desiredState": "stopped"})).await;
    world.tell_mirror("east", "stopped").await;
    world.start();
    world.request("shop-1", "west", json!({})).await;
    let status = world.until("shop-1", Completed).await.status.unwrap();
    assert_eq!(reason(&status, "TargetRunning"), "GroupStopped");
    assert_eq!(world.sources().await, ["west", "west"]);
    for cluster in ["east", "west"] {
        assert_eq!(
            world.mirror_of(cluster).await.spec.desired_state,
            DesiredState::Stopped
        );
    }
    let hub: Api<ProtectionGroup> = Api::namespaced(world.client("hub"), NS);
    let group = hub.get("shop").await.unwrap();
    assert_eq!(group.spec.desired_state, DesiredState::Stopped);
}

/// The link is cut between the two role changes: an abort is answered, and at the end of the budget
/// the source runs again.
#[tokio::test(start_paused = true)]
async fn a_target_that_cannot_be_promoted_gives_the_group_back() {
    let world = World::new().await;
    world.habits.never_promotes.store(true, Ordering::Relaxed);
    world.start();
    world.request("shop-1", "west", json!({})).await;
    world.until("shop-1", PromotingTarget).await;
    world.cut_link().await;
    world.abort("shop-1").await;
    let waiting = world
        .wait("shop-1", "AbortIgnored", |r| {
            r.status.as_ref().is_some_and(|s| {
                reason(s, "Aborted") == "AbortIgnored" && reason(s, "RolesFlipped") == "Flipped"
            })
        })
        .await
        .status
        .unwrap();
    world.pass(10).await;
    let message = world
        .requests()
        .get("shop-1")
        .await
        .unwrap()
        .status
        .unwrap()
        .message
        .unwrap();
    for part in [
        "in PromotingTarget since",
        "cluster east: Secondary, disk UpToDate, connection Connecting",
        "cluster west: Secondary, disk Consistent, connection Connecting",
        "the roles go back and the group is started on cluster east",
        "Look with: kubectl --context west",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(waiting.state, Some(PromotingTarget));
    let status = world.until("shop-1", Failed).await.status.unwrap();
    assert_eq!(status.rolled_back, Some(true), "{:?}", status.message);
    assert!(status.duration_seconds.unwrap() <= 360);
    assert_eq!(world.sources().await, ["east", "east"]);
    assert_eq!(
        world.mirror_of("east").await.spec.desired_state,
        DesiredState::Running
    );
    assert_eq!(
        world.mirror_of("west").await.spec.desired_state,
        DesiredState::Stopped
    );
    let events: Api<Event> = Api::namespaced(world.client("hub"), NS);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let answers = events
        .iter()
        .filter(|e| e.reason.as_deref() == Some("AbortIgnored"));
    assert_eq!(answers.count(), 1);
}

/// A request to where the group was, made while a failover runs, does not undo it afterwards.
#[tokio::test(start_paused = true)]
async fn a_request_to_the_active_cluster_during_a_failover_ends_at_once() {
    let world = World::new().await;
    world.habits.never_stops.store(true, Ordering::Relaxed);
    world.start();
    world.request("first", "west", json!({})).await;
    world.until("first", StoppingOnSource).await;
    world.request("second", "east", json!({})).await;
    let second = world.until("second", Failed).await.status.unwrap();
    assert_eq!(reason(&second, "Failed"), "AlreadyActive");
    assert_eq!(second.source_cluster.as_deref(), Some("east"));
    assert!(
        second
            .message
            .unwrap()
            .contains("FailoverRequest dr-m/first")
    );
    world.habits.never_stops.store(false, Ordering::Relaxed);
    let first = world.until("first", Completed).await.status.unwrap();
    assert_eq!(first.source_cluster.as_deref(), Some("east"));
    world.pass(60).await;
    assert_eq!(world.sources().await, ["west", "west"]);
}

#[tokio::test(start_paused = true)]
async fn an_abort_while_validating_ends_it_without_touching_anything() {
    let world = World::new().await;
    world.workload["west"].set_down(true);
    world.start();
    world.request("shop-1", "west", json!({})).await;
    world.until("shop-1", Validating).await;
    let before = world.mark();
    world.abort("shop-1").await;
    let status = world.until("shop-1", Failed).await.status.unwrap();
    assert_eq!(reason(&status, "Aborted"), "Aborted");
    world.pass(5).await;
    let writes = world.writes_since(&before);
    let own = ["failoverrequests/", "leases/", "events/"];
    assert!(
        writes.iter().all(|w| own.iter().any(|o| w.contains(o))),
        "{writes:#?}"
    );
    assert_eq!(holder(&world).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_being_deleted_is_not_moved() {
    let world = World::new().await;
    let requests: Api<ProtectionRequest> = Api::namespaced(world.client("hub"), NS);
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    requests
        .patch("web01", &PatchParams::default(), &Patch::Merge(hold))
        .await
        .unwrap();
    requests
        .delete("web01", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    world.start();
    world.request("shop-1", "west", json!({})).await;
    let status = world.until("shop-1", Failed).await.status.unwrap();
    assert_eq!(reason(&status, "Failed"), "MembersNotProtected");
    assert!(status.message.unwrap().contains("web01 (being deleted)"));
    assert_eq!(
        world.mirror_of("east").await.spec.desired_state,
        DesiredState::Running
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_right_fails_at_once() {
    let world = World::new().await;
    world.start();
    for (name, spec, expected) in [
        (
            "no-group",
            json!({"protectionGroupRef": {"name": "nope"}}),
            "GroupNotFound",
        ),
        (
            "no-cluster",
            json!({"targetCluster": "north"}),
            "UnknownCluster",
        ),
        (
            "unplanned",
            json!({"failoverType": "unplanned"}),
            "NotSupported",
        ),
        ("here", json!({"targetCluster": "east"}), "AlreadyActive"),
    ] {
        world.request(name, "west", spec).await;
        let status = world.until(name, Failed).await.status.unwrap();
        assert_eq!(reason(&status, "Complete"), expected);
        assert_eq!(reason(&status, "Failed"), expected);
        world.pass(5).await;
        assert_eq!(
            world
                .requests()
                .get(name)
                .await
                .unwrap()
                .metadata
                .finalizers,
            None,
            "{name}"
        );
    }
    assert_eq!(
        world
            .requests()
            .get("no-group")
            .await
            .unwrap()
            .status
            .unwrap()
            .message
            .as_deref(),
        Some(
            "ProtectionGroup nope not found in namespace dr-m. Nothing was changed. Create a new FailoverRequest whose spec.protectionGroupRef names one of: kubectl get protectiongroup -n dr-m"
        )
    );
}

/// Nothing happens, nothing is written.
#[tokio::test(start_paused = true)]
async fn an_idle_world_has_zero_writes() {
    let world = World::new().await;
    let process = world.start();
    world.request("shop-1", "west", json!({})).await;
    world.until("shop-1", Completed).await;
    world.pass(120).await;
    let before = world.mark();
    world.pass(900).await;
    assert_eq!(world.writes_since(&before), [] as [String; 0]);
    process.shutdown.cancel();

    // Nor does a restarted process write.
    world.start();
    world.pass(300).await;
    assert_eq!(world.writes_since(&before), [] as [String; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_leaves_the_group_after_the_flip_is_carried_through() {
    let world = World::new().await;
    world.start();
    world.request("shop-1", "west", json!({})).await;
    world.until("shop-1", PromotingTarget).await;
    let groups: Api<ProtectionGroup> = Api::namespaced(world.client("hub"), NS);
    let alone = json!({"spec": {"members": [{"protectionRequestRef": "db01"}]}});
    groups
        .patch("shop", &PatchParams::default(), &Patch::Merge(alone))
        .await
        .unwrap();
    let status = world.until("shop-1", Completed).await.status.unwrap();
    assert!(status.duration_seconds.unwrap() < 60, "{status:#?}");
    assert_eq!(world.sources().await, ["west", "west"]);
}

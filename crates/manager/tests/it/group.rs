//! The hub's protectiongroup reconciler.

use farshore_api::ProtectionGroup;
use farshore_api::ReplicationGroupStatus;
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_api::protection_request::ProtectionPhase::Protected;
use farshore_core::conditions;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::world::{World, from};

async fn grouped() -> World {
    let mut world = World::new().await;
    world.start();
    for name in ["db01", "app01"] {
        world.machine(name, 1).await;
        world.protect(name).await;
    }
    for name in ["db01", "app01"] {
        world.until_phase(name, Protected).await;
    }
    let members = json!([{"protectionRequestRef": "db01"}, {"vmRef": {"namespace": "shop", "name": "app01"}, "startOrder": 1}]);
    world
        .group(
            "shop",
            json!({"members": members, "sla": {"rpoTargetSeconds": 30}}),
        )
        .await;
    world.until("the group is ready", || ready(&world)).await;
    world
}

async fn status(world: &World) -> farshore_api::protection_group::ProtectionGroupStatus {
    world
        .on_hub::<ProtectionGroup>()
        .get("shop")
        .await
        .unwrap()
        .status
        .unwrap_or_default()
}

async fn ready(world: &World) -> bool {
    conditions::is_true(&status(world).await.conditions, "Ready")
}

async fn patch(world: &World, patch: Value) {
    world
        .on_hub::<ProtectionGroup>()
        .patch("shop", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

async fn desired(world: &World, cluster: &str) -> Option<DesiredState> {
    world
        .mirrors(cluster)
        .get_opt("shop")
        .await
        .unwrap()
        .map(|m| m.spec.desired_state)
}

#[tokio::test(start_paused = true)]
async fn c39_the_group_is_kept_in_step_on_both_clusters() {
    let world = grouped().await;
    assert_eq!(desired(&world, "east").await, Some(DesiredState::Running));
    assert_eq!(desired(&world, "west").await, Some(DesiredState::Stopped));
    patch(&world, json!({"spec": {"sla": {"rpoTargetSeconds": 90}, "members": [{"protectionRequestRef": "app01", "startOrder": 9}]}})).await;
    for cluster in ["east", "west"] {
        world
            .until(&format!("{cluster} follows"), || async {
                let spec = world.mirrors(cluster).get("shop").await.unwrap().spec;
                let members: Vec<_> = spec
                    .members
                    .iter()
                    .map(|m| (m.vm_ref.clone().unwrap().name, m.start_order))
                    .collect();
                spec.sla.rpo_target_seconds == 90 && members == [("app01".to_string(), 9)]
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_replication_status_is_made_with_the_group() {
    let world = grouped().await;
    let health = world
        .on_hub::<ReplicationGroupStatus>()
        .get("shop-replication")
        .await
        .unwrap();
    assert_eq!(
        (
            health.spec.polling_interval_seconds,
            health.spec.rpo_objective_seconds
        ),
        (15, 30)
    );
    patch(&world, json!({"spec": {"sla": {"rpoTargetSeconds": 90}}})).await;
    world
        .until("the objective follows", || async {
            world
                .on_hub::<ReplicationGroupStatus>()
                .get("shop-replication")
                .await
                .unwrap()
                .spec
                .rpo_objective_seconds
                == 90
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_hub_shows_what_the_active_mirror_reports() {
    let world = grouped().await;
    let report =
        json!({"status": {"currentState": "running", "readyVMs": 2, "observedGeneration": 1}});
    world
        .mirrors("east")
        .patch_status("shop", &PatchParams::default(), &Patch::Merge(&report))
        .await
        .unwrap();
    world
        .until("the hub shows it", || async {
            status(&world).await.current_state == Some(CurrentState::Running)
        })
        .await;
    world.east.set_down(true);
    world
        .until("unknown", || async {
            status(&world).await.current_state == Some(CurrentState::Unknown)
        })
        .await;
    assert!(status(&world).await.clusters[0].unreachable_since.is_some());
    world.east.set_down(false);
    world
        .until("the hub shows it again", || async {
            status(&world).await.current_state == Some(CurrentState::Running)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_held_lock_keeps_the_hub_from_starting_a_stopped_source() {
    let world = grouped().await;
    let lease: Lease = from(json!({
        "metadata": {"name": "failover-lock-shop"},
        "spec": {"holderIdentity": "uid", "leaseDurationSeconds": 300,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T01:00:00.000000Z"},
    }));
    world
        .on_hub::<Lease>()
        .create(&PostParams::default(), &lease)
        .await
        .unwrap();
    let stop = json!({"spec": {"desiredState": "stopped"}});
    world
        .mirrors("east")
        .patch("shop", &PatchParams::default(), &Patch::Merge(&stop))
        .await
        .unwrap();
    world.sleep(300).await;
    assert_eq!(desired(&world, "east").await, Some(DesiredState::Stopped));
    assert!(conditions::is_true(
        &status(&world).await.conditions,
        "FailoverInProgress"
    ));
    world
        .on_hub::<Lease>()
        .delete("failover-lock-shop", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the group runs again", || async {
            desired(&world, "east").await == Some(DesiredState::Running)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_user_stops_and_starts_the_group_on_its_active_side() {
    let world = grouped().await;
    for wanted in [DesiredState::Stopped, DesiredState::Running] {
        patch(&world, json!({"spec": {"desiredState": wanted}})).await;
        world
            .until(&format!("east is told {wanted}"), || async {
                desired(&world, "east").await == Some(wanted)
            })
            .await;
        world.sleep(120).await;
        assert_eq!(desired(&world, "east").await, Some(wanted));
        assert_eq!(desired(&world, "west").await, Some(DesiredState::Stopped));
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_group_takes_its_mirrors_and_no_vm_with_it() {
    let world = grouped().await;
    world
        .on_hub::<ProtectionGroup>()
        .delete("shop", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the group is gone", || async {
            world
                .on_hub::<ProtectionGroup>()
                .get_opt("shop")
                .await
                .unwrap()
                .is_none()
        })
        .await;
    for cluster in ["east", "west"] {
        assert_eq!(desired(&world, cluster).await, None);
        assert!(world.vm(cluster, "db01").await.is_some());
    }
    assert!(world.runs("east", "db01").await);
    world
        .until("its health record is gone", || async {
            world
                .on_hub::<ReplicationGroupStatus>()
                .get_opt("shop-replication")
                .await
                .unwrap()
                .is_none()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn unprotecting_a_member_takes_it_out_of_the_mirrors_first() {
    let world = grouped().await;
    world
        .on_hub::<farshore_api::ProtectionRequest>()
        .delete("db01", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the request is gone", || async {
            let gone = world
                .on_hub::<farshore_api::ProtectionRequest>()
                .get_opt("db01")
                .await
                .unwrap()
                .is_none();
            let listed = world
                .mirrors("east")
                .get("shop")
                .await
                .unwrap()
                .spec
                .members
                .iter()
                .any(|m| m.vm_ref.as_ref().unwrap().name == "db01");
            let stopped = !world.runs("east", "db01").await;
            assert!(
                !(stopped && listed),
                "a group still runs the VM that is being stopped"
            );
            gone
        })
        .await;
    assert!(!ready(&world).await);
}

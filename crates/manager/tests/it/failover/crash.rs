//! The process dies right after every one of its writes, and before the first; the next one
//! finishes. (To die before a write is to die after the one before it: nothing happens in between.)

use farshore_api::failover_request::FailoverState::{self, *};
use farshore_api::protection_group::DesiredState;
use farshore_manager::failover::FailoverController;
use farshore_runtime::controller::Requeue;
use farshore_runtime::remote::Clusters;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::world::{Fuse, NS, World};

/// Rounds of one process, until the request ended and nothing is left, or the fuse blows.
async fn live(world: &World, fuse: &Fuse) -> bool {
    let process = world.process(fuse);
    let controller = FailoverController::new(&process, &world.zone, Clusters::new(&process, NS));
    let rounds = async {
        loop {
            let pause = match controller.round("shop-1").await.unwrap() {
                Requeue::Change => break,
                Requeue::After(pause) => pause,
            };
            world.live().await;
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        biased;
        () = rounds => true,
        () = fuse.blown() => false,
    }
}

async fn make(stuck: bool) -> World {
    let hook = json!({"name": "hook", "namespace": "ops", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}});
    let world = World::with(json!({"hooks": {"preFailover": [hook], "postFailover": [hook]}, "failover": {"vmStopTimeoutSeconds": 20}})).await;
    world
        .taint("west-1", &["drbd.linbit.com/lost-quorum"])
        .await;
    world.habits.never_stops.store(stuck, Ordering::Relaxed);
    world.request("shop-1", "west", json!({})).await;
    world
}

async fn dies_at_every_write(stuck: bool, expected: FailoverState) {
    let world = make(stuck).await;
    let whole = Fuse::default();
    assert!(live(&world, &whole).await);
    let writes = i64::try_from(whole.writes()).unwrap();
    assert!(writes > 15, "only {writes} writes");
    let deaths = std::iter::once((1, false)).chain((1..=writes).map(|n| (n, true)));
    for (n, done) in deaths {
        {
            let world = make(stuck).await;
            let fuse = Fuse::at(n, done);
            let alive = live(&world, &fuse).await;
            assert!(!alive, "write {n} is reached");
            // A restart takes a while.
            tokio::time::sleep(Duration::from_secs(3)).await;
            let context = format!("after write {n} ({}), done: {done}", fuse.last());
            assert!(live(&world, &Fuse::default()).await);
            let request = world.requests().get("shop-1").await.unwrap();
            let status = request.status.unwrap();
            assert_eq!(
                status.state,
                Some(expected),
                "{context}: {:?}",
                status.message
            );
            assert_eq!(request.metadata.finalizers, None, "{context}");
            let lease: k8s_openapi::api::coordination::v1::Lease =
                kube::Api::namespaced(world.client("hub"), NS)
                    .get("failover-lock-shop")
                    .await
                    .unwrap();
            assert_eq!(lease.spec.unwrap().holder_identity, None, "{context}");
            let (east, west) = (
                world.mirror_of("east").await.spec.desired_state,
                world.mirror_of("west").await.spec.desired_state,
            );
            if stuck {
                assert_eq!(
                    (east, west),
                    (DesiredState::Running, DesiredState::Stopped),
                    "{context}"
                );
                assert_eq!(status.rolled_back, Some(true), "{context}");
                assert_eq!(world.sources().await, ["east", "east"], "{context}");
            } else {
                assert_eq!(
                    (east, west),
                    (DesiredState::Stopped, DesiredState::Running),
                    "{context}"
                );
                assert_eq!(world.sources().await, ["west", "west"], "{context}");
                assert!(world.taints("west-1").await.is_empty(), "{context}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failover_survives_death_at_every_write() {
    dies_at_every_write(false, Completed).await;
}

#[tokio::test(start_paused = true)]
async fn a_rollback_survives_death_at_every_write() {
    dies_at_every_write(true, Failed).await;
}

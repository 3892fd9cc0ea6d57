//! The drbdreplicationpolicy reconciler.

use farshore_api::DRBDReplicationPolicy;
use farshore_core::conditions;
use serde_json::json;

use crate::world::World;

async fn told(world: &World, name: &str) -> (Option<i32>, String) {
    let policy = world
        .on_hub::<DRBDReplicationPolicy>()
        .get(name)
        .await
        .unwrap();
    let status = policy.status.unwrap_or_default();
    let accepted = conditions::get(&status.conditions, "Accepted")
        .map(|c| format!("{} {}", c.status, c.message));
    (status.in_use_by, accepted.unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn the_default_counts_its_requests_and_a_second_default_is_refused() {
    let mut world = World::new().await;
    world.start();
    world.policy("second", true).await;
    world.machine("db01", 1).await;
    world
        .protect_as("db01", json!({"replicationPolicyRef": {"name": "second"}}))
        .await;
    world
        .until("it is counted", || async {
            told(&world, "metro1-default").await.0 == Some(1)
        })
        .await;
    world.until("the second is told", || async {
        told(&world, "second").await
            == (Some(0), "False namespace dr-metro1 already has a default DRBDReplicationPolicy metro1-default".into())
    })
    .await;
    world
        .until("the request is told", || async {
            let status = world.request("db01").await.status.unwrap_or_default();
            conditions::is_true(&status.conditions, "PolicyIgnored")
        })
        .await;
}

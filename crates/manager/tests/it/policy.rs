//! The drbdreplicationpolicy reconciler.

use farshore_api::{DRBDReplicationPolicy, TestFailover};
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

#[tokio::test(start_paused = true)]
async fn a_test_failover_is_told_once_that_it_is_not_available() {
    let mut world = World::new().await;
    world.start();
    let api = world.on_hub::<TestFailover>();
    let new = crate::world::from(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "TestFailover", "metadata": {"name": "drill"},
        "spec": {"protectionGroupRef": {"name": "shop"}},
    }));
    api.create(&Default::default(), &new).await.unwrap();
    world.sleep(30).await;
    let status = api.get("drill").await.unwrap().status.unwrap();
    for (type_, truth) in [("Complete", "False"), ("Failed", "True")] {
        let said = conditions::get(&status.conditions, type_).unwrap();
        assert_eq!(
            (said.status.as_str(), said.reason.as_str()),
            (truth, "NotSupported")
        );
        for part in [
            "TestFailover dr-",
            "not available in this version",
            "Nothing was started",
            "kubectl -n ",
        ] {
            assert!(said.message.contains(part), "{part}: {}", said.message);
        }
    }
    let marks = world.marks();
    world.sleep(600).await;
    let writes = world.writes_since(marks);
    let again = writes
        .iter()
        .filter(|w| w.to_string().contains("testfailover"));
    assert_eq!(again.count(), 0);
}

//! The exclusivity claim under contention.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{World, status};

async fn two_zones() -> World {
    let world = World::running().await;
    world.namespace("dr-metro2").await;
    for cluster in ["east", "west"] {
        world
            .kubeconfig(
                "dr-metro2",
                cluster,
                cluster,
                &world.servers[cluster].admin_token(),
            )
            .await;
    }
    world
}

async fn annotate(world: &World, cluster: &str, owner: Value, uid: Value) {
    let api: Api<Namespace> = Api::all(world.client(cluster));
    let patch = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"annotations": {
        "siterecovery.trilio.io/owner-zone": owner,
        "siterecovery.trilio.io/owner-zone-namespace-uid": uid,
    }}});
    if api
        .get_opt("trilio-site-recovery-system")
        .await
        .unwrap()
        .is_none()
    {
        world.make(cluster, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trilio-site-recovery-system"}})).await;
    }
    api.patch(
        "trilio-site-recovery-system",
        &PatchParams::default(),
        &Patch::Merge(&patch),
    )
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_two_zones_that_want_the_same_clusters_one_gets_both() {
    let world = two_zones().await;
    // In opposite orders, at the same time.
    tokio::join!(
        world.zone("dr-metro1", "metro1", &["east", "west"]),
        world.zone("dr-metro2", "metro2", &["west", "east"])
    );
    let winner = world
        .until("a winner", || async {
            for name in ["metro1", "metro2"] {
                if status(&world.get_zone(&format!("dr-{name}"), name).await, "Ready") == "True" {
                    return Some(name);
                }
            }
            None
        })
        .await;
    let loser = if winner == "metro1" {
        "metro2"
    } else {
        "metro1"
    };
    world
        .refused(&format!("dr-{loser}"), loser, "ClusterAlreadyClaimed")
        .await;
    for cluster in ["east", "west"] {
        assert_eq!(world.claim(cluster).await.unwrap().0, winner, "{cluster}");
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_zone_is_not_kept() {
    let world = two_zones().await;
    // West belongs to a zone of another hub.
    annotate(&world, "west", json!("faraway"), json!("0000-ffff")).await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    let refusal = world
        .refused("dr-metro1", "metro1", "ClusterAlreadyClaimed")
        .await;
    assert!(
        refusal
            .message
            .contains("ProtectionZone faraway (its namespace has the UID 0000-ffff)"),
        "{}",
        refusal.message
    );
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(world.claim("east").await, None);
    assert_eq!(
        world.claim("west").await,
        Some(("faraway".into(), "0000-ffff".into()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_left_by_a_cycle_that_was_cut_short_is_given_back_when_the_other_cluster_is_taken()
{
    let world = two_zones().await;
    annotate(
        &world,
        "east",
        json!("metro1"),
        json!(world.uid("dr-metro1").await),
    )
    .await;
    annotate(&world, "west", json!("faraway"), json!("0000-ffff")).await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world
        .refused("dr-metro1", "metro1", "ClusterAlreadyClaimed")
        .await;
    world
        .until("given back", || async {
            world.claim("east").await.is_none().then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_a_uid_is_somebodys_all_the_same() {
    let world = two_zones().await;
    annotate(&world, "west", json!("metro1"), Value::Null).await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    let refusal = world
        .refused("dr-metro1", "metro1", "ClusterAlreadyClaimed")
        .await;
    assert!(
        refusal.message.contains("left no namespace UID"),
        "{}",
        refusal.message
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_its_operator_removes_is_taken_at_once() {
    let world = two_zones().await;
    annotate(&world, "west", json!("faraway"), json!("0000-ffff")).await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world
        .refused("dr-metro1", "metro1", "ClusterAlreadyClaimed")
        .await;
    world.pass(Duration::from_secs(3600)).await;
    annotate(&world, "west", Value::Null, Value::Null).await;
    let started = tokio::time::Instant::now();
    world.ready().await;
    assert!(
        started.elapsed() < Duration::from_secs(15),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_somebody_overwrites_by_hand_is_not_taken_back() {
    let world = two_zones().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    annotate(&world, "west", json!("faraway"), json!("0000-ffff")).await;
    world
        .refused("dr-metro1", "metro1", "ClusterAlreadyClaimed")
        .await;
    world.pass(Duration::from_secs(120)).await;
    assert_eq!(
        world.claim("west").await,
        Some(("faraway".into(), "0000-ffff".into()))
    );
    // The other half keeps what it has: VMs may run there.
    assert_eq!(world.claim("east").await.unwrap().0, "metro1");
    annotate(&world, "west", Value::Null, Value::Null).await;
    world.ready().await;
}

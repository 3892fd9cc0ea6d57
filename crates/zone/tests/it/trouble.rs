//! A cluster that is lost after it was provisioned.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;

use crate::support::{World, condition, phase, status};

#[tokio::test(start_paused = true)]
async fn an_unreachable_cluster_degrades_the_zone_and_takes_nothing_back() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    world.servers["west"].set_down(true);
    let zone = world
        .zone_until("dr-metro1", "metro1", "Degraded", |zone| {
            phase(zone) == "Degraded"
        })
        .await;
    assert_eq!(status(&zone, "ClustersValidated"), "True");
    let ready = condition(&zone, "Ready").unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "ClusterUnreachable")
    );
    assert_eq!(status(&zone, "LeasesHeld"), "Unknown");
    let clusters = zone.status.unwrap().clusters;
    assert_eq!(
        clusters
            .iter()
            .map(|c| (c.name.as_str(), c.reachable))
            .collect::<Vec<_>>(),
        [("east", true), ("west", false)]
    );
    assert!(
        clusters[1].cluster_uid.is_some(),
        "what was known of it stays"
    );

    // The other cluster is served meanwhile.
    let east = world.api::<Deployment>("east", "trilio-site-recovery-system");
    east.delete("workload-control-plane", &Default::default())
        .await
        .unwrap();
    world
        .until("it is back", || async {
            east.get_opt("workload-control-plane").await.unwrap()
        })
        .await;

    world.pass(Duration::from_secs(3600)).await;
    let zone = world.get_zone("dr-metro1", "metro1").await;
    assert_eq!(
        (phase(&zone), status(&zone, "ClustersValidated").as_str()),
        ("Degraded", "True")
    );

    world.servers["west"].set_down(false);
    let started = tokio::time::Instant::now();
    world.ready().await;
    assert!(
        started.elapsed() < Duration::from_secs(60),
        "it is noticed when the cluster comes back: {:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_writes_the_status_once_not_at_every_try() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    world.servers["west"].set_down(true);
    world
        .zone_until("dr-metro1", "metro1", "Degraded", |zone| {
            phase(zone) == "Degraded"
        })
        .await;
    world.pass(Duration::from_secs(60)).await;
    let log = world.servers["hub"].request_log();
    let mark = log.mark();
    world.pass(Duration::from_secs(3600)).await;
    let changed: Vec<String> = log
        .since(mark)
        .iter()
        .filter(|e| e.changed && e.resource != "leases")
        .map(ToString::to_string)
        .collect();
    assert_eq!(changed, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_revoked_credential_closes_the_zone_for_new_protection_and_keeps_the_rest() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    world
        .kubeconfig("dr-metro1", "west", "west", "revoked")
        .await;
    world
        .refused("dr-metro1", "metro1", "AuthenticationFailed")
        .await;
    assert_eq!(
        phase(&world.get_zone("dr-metro1", "metro1").await),
        "Degraded"
    );
    assert_eq!(world.claim("west").await.unwrap().0, "metro1");
}

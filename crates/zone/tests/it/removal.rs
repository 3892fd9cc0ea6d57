//! Deleting a zone.

use std::time::Duration;

use farshore_api::{ProtectionRequest, ProtectionZone};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::ListParams;

use crate::support::{World, condition, phase, request, status};

async fn gone(world: &World, namespace: &str, name: &str) {
    let zones: Api<ProtectionZone> = world.api("hub", namespace);
    world
        .until("the zone is gone", || async {
            zones.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_zone_with_protected_vms_stays_until_they_are_unprotected() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    world.make("hub", request("db01")).await;
    let zones: Api<ProtectionZone> = world.api("hub", "dr-metro1");
    zones.delete("metro1", &Default::default()).await.unwrap();
    let zone = world
        .zone_until("dr-metro1", "metro1", "Deleting", |zone| {
            phase(zone) == "Deleting"
        })
        .await;
    let ready = condition(&zone, "Ready").unwrap();
    assert_eq!(ready.reason, "ProtectionRequestsExist");
    assert!(
        ready
            .message
            .contains("zone metro1 still has 1 ProtectionRequest; unprotect them first"),
        "{}",
        ready.message
    );
    world.event("dr-metro1", "ProtectionRequestsExist").await;
    world.pass(Duration::from_secs(120)).await;
    assert_eq!(
        status(
            &world.get_zone("dr-metro1", "metro1").await,
            "ClustersValidated"
        ),
        "True"
    );
    assert!(world.claim("east").await.is_some());

    world
        .api::<ProtectionRequest>("hub", "dr-metro1")
        .delete("db01", &Default::default())
        .await
        .unwrap();
    gone(&world, "dr-metro1", "metro1").await;
    for cluster in ["east", "west"] {
        assert_eq!(world.claim(cluster).await, None, "{cluster}");
        let all = ListParams::default();
        assert_eq!(
            Api::<Deployment>::all(world.client(cluster))
                .list(&all)
                .await
                .unwrap()
                .items
                .len(),
            0
        );
        assert_eq!(
            Api::<DaemonSet>::all(world.client(cluster))
                .list(&all)
                .await
                .unwrap()
                .items
                .len(),
            0
        );
        let ours = ListParams::default().labels("app.kubernetes.io/part-of=site-recovery");
        assert_eq!(
            Api::<ClusterRole>::all(world.client(cluster))
                .list(&ours)
                .await
                .unwrap()
                .items
                .len(),
            0
        );
        let crds = Api::<CustomResourceDefinition>::all(world.client(cluster));
        assert!(
            crds.get_opt("drbdresources.siterecovery.trilio.io")
                .await
                .unwrap()
                .is_some(),
            "definitions stay"
        );
    }
    assert_eq!(
        world
            .api::<Deployment>("hub", "dr-metro1")
            .get_opt("manager-control-plane")
            .await
            .unwrap()
            .map(|_| ()),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_claimed_nothing_goes_at_once_and_touches_nothing_of_others() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
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
    world.zone("dr-metro2", "metro2", &["east", "west"]).await;
    world
        .refused("dr-metro2", "metro2", "ClusterAlreadyClaimed")
        .await;
    let before = world.servers["east"].request_log().mark();
    world
        .api::<ProtectionZone>("hub", "dr-metro2")
        .delete("metro2", &Default::default())
        .await
        .unwrap();
    gone(&world, "dr-metro2", "metro2").await;
    let changed: Vec<String> = world.servers["east"]
        .request_log()
        .since(before)
        .iter()
        .filter(|e| e.changed)
        .map(ToString::to_string)
        .collect();
    assert_eq!(changed, Vec::<String>::new());
    assert_eq!(world.claim("east").await.unwrap().0, "metro1");
    assert_eq!(
        status(&world.get_zone("dr-metro1", "metro1").await, "Ready"),
        "True"
    );
}

#[tokio::test(start_paused = true)]
async fn a_zone_whose_kubeconfigs_never_worked_can_be_deleted() {
    let world = World::running().await;
    world.namespace("dr-metro2").await;
    world.zone("dr-metro2", "metro2", &["north", "south"]).await;
    world
        .refused("dr-metro2", "metro2", "KubeconfigSecretNotFound")
        .await;
    world
        .api::<ProtectionZone>("hub", "dr-metro2")
        .delete("metro2", &Default::default())
        .await
        .unwrap();
    gone(&world, "dr-metro2", "metro2").await;
}

#[tokio::test(start_paused = true)]
async fn a_removal_waits_for_a_cluster_that_does_not_answer() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    world.servers["west"].set_down(true);
    world
        .api::<ProtectionZone>("hub", "dr-metro1")
        .delete("metro1", &Default::default())
        .await
        .unwrap();
    let is = |zone: &ProtectionZone| {
        phase(zone) == "Deleting"
            && condition(zone, "Ready").is_some_and(|c| c.reason == "ClusterUnreachable")
    };
    let zone = world.zone_until("dr-metro1", "metro1", "waiting", is).await;
    let message = condition(&zone, "Ready").unwrap().message;
    assert!(
        message.contains("cluster west") && message.contains("siterecovery.trilio.io/zone-cleanup"),
        "{message}"
    );
    world.pass(Duration::from_secs(300)).await;
    assert_eq!(world.claim("east").await.unwrap().0, "metro1");
    world.servers["west"].set_down(false);
    gone(&world, "dr-metro1", "metro1").await;
    assert_eq!(world.claim("west").await, None);
}

//! A zone in an unchanged world.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::support::{World, condition, phase, status};

#[tokio::test(start_paused = true)]
async fn a_ready_zone_sends_no_write_in_ten_minutes_but_for_its_lease() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    world.pass(Duration::from_secs(120)).await;
    let marks: Vec<_> = world
        .servers
        .iter()
        .map(|(name, server)| (name, server.request_log(), server.request_log().mark()))
        .collect();
    world.pass(Duration::from_secs(600)).await;
    for (name, log, mark) in marks {
        let entries = log.since(mark);
        assert!(
            entries
                .iter()
                .filter(|e| e.resource == "customresourcedefinitions" && e.verb == "list")
                .count()
                >= 9,
            "{name} is looked at"
        );
        let writes: Vec<String> = entries
            .iter()
            .filter(|e| {
                e.is_write()
                    && !["leases", "selfsubjectaccessreviews"].contains(&e.resource.as_str())
            })
            .map(ToString::to_string)
            .collect();
        assert_eq!(writes, Vec::<String>::new(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn both_stacks_are_installed_with_the_documented_names() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    let zone = world.ready().await;
    let manager = world
        .api::<Deployment>("hub", "dr-metro1")
        .get("manager-control-plane")
        .await
        .unwrap();
    assert_eq!(
        manager.spec.unwrap().template.spec.unwrap().containers[0].name,
        "manager"
    );
    for cluster in ["east", "west"] {
        let namespace = "trilio-site-recovery-system";
        world
            .api::<Deployment>(cluster, namespace)
            .get("workload-control-plane")
            .await
            .unwrap();
        let agents = world
            .api::<DaemonSet>(cluster, namespace)
            .get("site-recovery-site-recovery-workload-control-plane-agent")
            .await
            .unwrap();
        let env =
            serde_json::to_value(&agents.spec.unwrap().template.spec.unwrap().containers[0].env)
                .unwrap();
        assert!(
            env.as_array()
                .unwrap()
                .contains(&json!({"name": "CLUSTER_NAME", "value": cluster})),
            "{env}"
        );
    }
    let status = zone.status.unwrap();
    assert_eq!(status.cluster_names.as_deref(), Some("east,west"));
    assert!(status.clusters.iter().all(|c| c.reachable
        && c.lease_held
        && c.kubevirt_version.as_deref() == Some("kubevirt.io/v1")));
    let types: Vec<&str> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(
        types,
        [
            "ClustersValidated",
            "LeasesHeld",
            "CRDsApplied",
            "ManagerDeployed",
            "WorkloadsDeployed",
            "DefaultPolicyReady",
            "Ready"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_zone_is_validated_only_when_everything_runs() {
    let world = World::running().await;
    world
        .kubelets
        .store(false, std::sync::atomic::Ordering::Relaxed);
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    let zone = world
        .zone_until("dr-metro1", "metro1", "RolloutPending", |z| {
            condition(z, "WorkloadsDeployed").is_some_and(|c| c.reason == "RolloutPending")
        })
        .await;
    assert_eq!(
        (
            phase(&zone),
            status(&zone, "ClustersValidated").as_str(),
            status(&zone, "LeasesHeld").as_str()
        ),
        ("Deploying", "False", "True")
    );
    let waiting = condition(&zone, "WorkloadsDeployed").unwrap().message;
    assert!(
        waiting.contains("Deployment trilio-site-recovery-system/workload-control-plane")
            && waiting.contains("cluster east"),
        "{waiting}"
    );
    world
        .kubelets
        .store(true, std::sync::atomic::Ordering::Relaxed);
    world.ready().await;
}

#[tokio::test(start_paused = true)]
async fn a_stack_that_was_changed_or_deleted_is_put_back() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    let east: Api<Deployment> = world.api("east", "trilio-site-recovery-system");
    let change = json!({"spec": {"template": {"spec": {"serviceAccountName": "default"}}}});
    east.patch(
        "workload-control-plane",
        &PatchParams::default(),
        &Patch::Merge(&change),
    )
    .await
    .unwrap();
    world
        .api::<Deployment>("west", "trilio-site-recovery-system")
        .delete("workload-control-plane", &Default::default())
        .await
        .unwrap();
    world
        .until("both are back", || async {
            let changed = east.get("workload-control-plane").await.ok()?;
            let account = changed.spec?.template.spec?.service_account_name?;
            let deleted = world
                .api::<Deployment>("west", "trilio-site-recovery-system")
                .get_opt("workload-control-plane")
                .await
                .unwrap();
            (account == "workload-control-plane" && deleted.is_some()).then_some(())
        })
        .await;
    world.ready().await;
}

#[tokio::test(start_paused = true)]
async fn two_zones_of_different_clusters_are_independent() {
    // The second zone's clusters do not exist; the first is none the worse for it.
    let world = World::running().await;
    world.namespace("dr-metro2").await;
    world.zone("dr-metro2", "metro2", &["north", "south"]).await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world
        .refused("dr-metro2", "metro2", "KubeconfigSecretNotFound")
        .await;
    world.ready().await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_zone_is_left_alone_until_it_is_resumed() {
    let world = World::running().await;
    let api: Api<farshore_api::ProtectionZone> = world.api("hub", "dr-metro1");
    let zone = serde_json::from_value(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone", "metadata": {"name": "metro1", "namespace": "dr-metro1"},
        "spec": {"paused": true, "clusters": [
            {"name": "east", "kubeconfigSecretRef": {"name": "east-kubeconfig"}},
            {"name": "west", "kubeconfigSecretRef": {"name": "west-kubeconfig"}},
        ]},
    }));
    api.create(&Default::default(), &zone.unwrap())
        .await
        .unwrap();
    let zone = world
        .zone_until("dr-metro1", "metro1", "Paused", |z| {
            condition(z, "Ready").is_some_and(|c| c.reason == "Paused")
        })
        .await;
    assert!(
        condition(&zone, "Ready")
            .unwrap()
            .message
            .contains("kubectl -n dr-metro1 patch protectionzone metro1")
    );
    world.pass(Duration::from_secs(120)).await;
    assert_eq!(world.claim("east").await, None);
    api.patch(
        "metro1",
        &PatchParams::default(),
        &Patch::Merge(json!({"spec": {"paused": false}})),
    )
    .await
    .unwrap();
    world.ready().await;
}

//! Every bad input, and that a correction takes effect at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;

use crate::support::{World, kubeconfig, phase, status};

/// A refusal of `metro1` writes nothing on the workload clusters.
async fn refused(world: &World, reason: &str) -> String {
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    let condition = world.refused("dr-metro1", "metro1", reason).await;
    let zone = world.get_zone("dr-metro1", "metro1").await;
    assert_eq!(
        (phase(&zone), status(&zone, "Ready").as_str()),
        ("Failed", "False")
    );
    assert_eq!(
        (world.claim("east").await, world.claim("west").await),
        (None, None)
    );
    let told = world.event("dr-metro1", reason).await;
    assert!(told.contains(" with: kubectl "), "{told}");
    condition.message
}

#[tokio::test(start_paused = true)]
async fn a_missing_secret_is_named() {
    let world = World::running().await;
    world
        .api::<Secret>("hub", "dr-metro1")
        .delete("west-kubeconfig", &Default::default())
        .await
        .unwrap();
    let message = refused(&world, "KubeconfigSecretNotFound").await;
    assert!(
        message.contains("Secret dr-metro1/west-kubeconfig") && message.contains("cluster west"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_secret_without_the_key_is_named() {
    let world = World::running().await;
    let secrets: Api<Secret> = world.api("hub", "dr-metro1");
    secrets
        .delete("west-kubeconfig", &Default::default())
        .await
        .unwrap();
    world.make("hub", json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "west-kubeconfig", "namespace": "dr-metro1"}, "stringData": {"other": "x"}})).await;
    let message = refused(&world, "KubeconfigSecretNotFound").await;
    assert!(message.contains("no key kubeconfig"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn an_unusable_kubeconfig_is_refused_and_nothing_of_it_is_repeated() {
    let world = World::running().await;
    for bad in [
        "token: [TOPSECRET",
        "TOPSECRET: {",
        "current-context: x\nusers: [{name: u, user: {token: TOPSECRET}}]\n",
        "- TOPSECRET\n- b: c",
        "users: TOPSECRET\n",
    ] {
        world.secret("dr-metro1", "west", bad).await;
        if world
            .api::<farshore_api::ProtectionZone>("hub", "dr-metro1")
            .get_opt("metro1")
            .await
            .unwrap()
            .is_none()
        {
            world.zone("dr-metro1", "metro1", &["east", "west"]).await;
        }
        world
            .refused("dr-metro1", "metro1", "KubeconfigInvalid")
            .await;
        world.pass(Duration::from_secs(20)).await;
        let zone = serde_json::to_string(&world.get_zone("dr-metro1", "metro1").await).unwrap();
        let events = serde_json::to_string(&world.events("dr-metro1").await).unwrap();
        assert!(
            !zone.contains("TOPSECRET") && !events.contains("TOPSECRET"),
            "{bad}: {zone} {events}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_down_is_unreachable() {
    let world = World::running().await;
    world.servers["west"].set_down(true);
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    let message = world
        .refused("dr-metro1", "metro1", "ClusterUnreachable")
        .await
        .message;
    assert!(
        message.contains("API server of cluster west does not answer"),
        "{message}"
    );
    assert_eq!(world.claim("east").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_does_not_answer_within_five_seconds_is_unreachable() {
    let world = World::running().await;
    world.servers["west"].set_latency(Duration::from_secs(3600));
    let started = tokio::time::Instant::now();
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    let message = world
        .refused("dr-metro1", "metro1", "ClusterUnreachable")
        .await
        .message;
    assert!(message.contains("no answer within 5 s"), "{message}");
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_credential_that_is_not_accepted_is_told_from_a_missing_permission() {
    let world = World::running().await;
    world
        .kubeconfig("dr-metro1", "west", "west", "no-such-token")
        .await;
    let message = refused(&world, "AuthenticationFailed").await;
    assert!(
        message.contains("(401)") && !message.contains("no-such-token"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn missing_permissions_are_named_up_to_three_with_a_count() {
    let world = World::new(true).await;
    let token = world.servers["west"].issue_token("limited", &[]);
    world.kubeconfig("dr-metro1", "west", "west", &token).await;
    world.start(&world.servers["hub"].admin_token());
    world.served().await;
    let message = refused(&world, "InsufficientPermissions").await;
    assert!(
        message.contains("permissions on cluster west: ") && message.contains(" more"),
        "{message}"
    );
    assert!(
        message.contains("kubectl --context west auth can-i "),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_kubevirt_is_refused() {
    let world = World::running().await;
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "x"}});
    world
        .dynamic("west", &crd)
        .delete("virtualmachines.kubevirt.io", &Default::default())
        .await
        .unwrap();
    let message = refused(&world, "KubeVirtNotInstalled").await;
    assert!(message.contains("cluster west"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn openshift_needs_the_privileged_scc() {
    let world = World::running().await;
    world
        .serve(
            "west",
            "security.openshift.io",
            "SecurityContextConstraints",
            "securitycontextconstraints",
            "Cluster",
        )
        .await;
    let message = refused(&world, "SCCPrerequisitesMissing").await;
    assert!(
        message.contains("no SecurityContextConstraints privileged"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn two_names_for_one_cluster_are_found_out() {
    let world = World::running().await;
    world
        .kubeconfig(
            "dr-metro1",
            "west",
            "east",
            &world.servers["east"].admin_token(),
        )
        .await;
    let message = refused(&world, "SameCluster").await;
    assert!(
        message.contains("cluster west and cluster east are the same cluster"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_hub_is_no_workload_cluster() {
    let world = World::new(false).await;
    for (kind, plural) in [
        ("VirtualMachine", "virtualmachines"),
        ("VirtualMachineInstance", "virtualmachineinstances"),
    ] {
        world
            .serve("hub", "kubevirt.io", kind, plural, "Namespaced")
            .await;
    }
    world.start(&world.servers["hub"].admin_token());
    world.served().await;
    world
        .kubeconfig(
            "dr-metro1",
            "west",
            "hub",
            &world.servers["hub"].admin_token(),
        )
        .await;
    let message = refused(&world, "SameCluster").await;
    assert!(
        message.contains("cluster west and the hub are the same cluster"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_zone_outside_a_dr_namespace_is_not_usable() {
    let world = World::running().await;
    world.zone("default", "metro1", &["east", "west"]).await;
    let message = world
        .refused("default", "metro1", "NamespaceNotUsable")
        .await
        .message;
    assert!(
        message.contains("a ProtectionZone must be created in a namespace named dr-<name>"),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_namespace_holds_one_zone_and_the_next_takes_over_when_it_goes() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    world.zone("dr-metro1", "a-second", &["east", "west"]).await;
    let message = world
        .refused("dr-metro1", "a-second", "NamespaceNotUsable")
        .await
        .message;
    assert!(
        message.contains("namespace dr-metro1 already contains ProtectionZone metro1"),
        "{message}"
    );
    assert_eq!(
        status(&world.get_zone("dr-metro1", "metro1").await, "Ready"),
        "True"
    );
    world
        .api::<farshore_api::ProtectionZone>("hub", "dr-metro1")
        .delete("metro1", &Default::default())
        .await
        .unwrap();
    world
        .zone_until("dr-metro1", "a-second", "Ready", |zone| {
            status(zone, "Ready") == "True"
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_corrected_secret_takes_effect_at_once_even_after_an_hour_of_failures() {
    let world = World::running().await;
    world
        .secret("dr-metro1", "west", &kubeconfig("nowhere", "x"))
        .await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world
        .refused("dr-metro1", "metro1", "KubeconfigInvalid")
        .await;
    world.pass(Duration::from_secs(3600)).await;
    world
        .kubeconfig(
            "dr-metro1",
            "west",
            "west",
            &world.servers["west"].admin_token(),
        )
        .await;
    let started = tokio::time::Instant::now();
    world.ready().await;
    assert!(
        started.elapsed() < Duration::from_secs(15),
        "{:?}",
        started.elapsed()
    );
}

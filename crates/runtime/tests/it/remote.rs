use std::sync::Arc;
use std::time::Duration;

use farshore_api::ProtectionZone;
use farshore_api::zone::{Distribution, SecretKeyRef, ZoneCluster};
use farshore_apiserver::ApiServer;
use farshore_core::Seen;
use farshore_runtime::remote::{self, Clusters, LOOK_LIMIT, RemoteError};
use farshore_runtime::{Connector, Process};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{ListParams, PostParams};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support;

fn east() -> ZoneCluster {
    ZoneCluster {
        name: "east".into(),
        kubeconfig_secret_ref: SecretKeyRef {
            name: "east-kubeconfig".into(),
            key: "kubeconfig".into(),
        },
        distribution_name: Distribution::RhelCoreOs9,
        replication_network: None,
    }
}

fn kubeconfig(token: &str) -> String {
    format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'https://east'}}}}]\nusers: [{{name: u, user: {{token: '{token}'}}}}]\n"
    )
}

/// A process of the hub that reaches `east` through kubeconfigs for https://east.
fn hub_process(hub: &ApiServer, east: &ApiServer) -> Process {
    let east = east.clone();
    let connector = Connector::in_process(Arc::new(move |server, token| {
        (server == "https://east").then(|| kube::Client::new(east.service(token), "default"))
    }));
    Process {
        connector,
        ..support::process(hub, "pod")
    }
}

async fn store(process: &Process, kubeconfig: &str) {
    let api: Api<Secret> = Api::default_namespaced(process.client.clone());
    let secret = serde_json::from_value(
        json!({"metadata": {"name": "east-kubeconfig"}, "stringData": {"kubeconfig": kubeconfig}}),
    )
    .unwrap();
    match api.get_opt("east-kubeconfig").await.unwrap() {
        None => api.create(&PostParams::default(), &secret).await.unwrap(),
        Some(_) => api
            .patch(
                "east-kubeconfig",
                &kube::api::PatchParams::default(),
                &kube::api::Patch::Merge(&secret),
            )
            .await
            .unwrap(),
    };
}

#[tokio::test(start_paused = true)]
async fn a_client_comes_from_the_secret_of_the_day() {
    let (hub, server) = (support::server(), support::server());
    let process = hub_process(&hub, &server);
    let clusters = Clusters::new(&process, "default");
    assert!(matches!(
        clusters.client(&east()).await,
        Err(RemoteError::SecretNotFound { .. })
    ));
    store(&process, "{}").await;
    assert!(matches!(
        clusters.client(&east()).await,
        Err(RemoteError::Invalid { .. })
    ));
    for user in ["first", "second"] {
        store(&process, &kubeconfig(&server.issue_token(user, &[]))).await;
        let mark = server.request_log().mark();
        let reads = hub.request_log().mark();
        // A burst of reconciles reads it once.
        for _ in 0..3 {
            let client = clusters.client(&east()).await.unwrap();
            Api::<ConfigMap>::default_namespaced(client)
                .list(&ListParams::default())
                .await
                .unwrap();
        }
        assert_eq!(server.request_log().since(mark)[0].user, user);
        assert_eq!(hub.request_log().since(reads).len(), 1);
        // One that is stored anew is used ten seconds later at the latest.
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
}

/// A zone that knows `east` by the UID of its namespace kube-system.
fn zone_that_knows(uid: &str) -> ProtectionZone {
    serde_json::from_value(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone",
        "metadata": {"name": "metro", "namespace": "default", "uid": "zone"},
        "spec": {"clusters": [east()]},
        "status": {"clusters": [{"name": "east", "clusterUID": uid}]},
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_client_is_handed_out_only_after_its_cluster_has_confirmed_who_it_is() {
    let (hub, server) = (support::server(), support::server());
    let process = hub_process(&hub, &server);
    let system: Api<Namespace> = Api::all(support::client(&server));
    let system = system.get("kube-system").await.unwrap();
    let clusters = Clusters::new(&process, "default");
    clusters.know(&zone_that_knows(&system.uid().unwrap()));
    store(&process, &kubeconfig(&server.admin_token())).await;

    // Silent, it may be any cluster: it can be asked, and nothing else.
    server.set_down(true);
    let refused = clusters.client(&east()).await.err().unwrap();
    assert!(matches!(refused, RemoteError::Unconfirmed { .. }));
    assert!(
        refused
            .to_string()
            .contains("Secret default/east-kubeconfig")
    );
    assert!(clusters.client_to_ask(&east()).await.is_ok());
    assert!(matches!(
        clusters.client(&east()).await,
        Err(RemoteError::Unconfirmed { .. })
    ));

    server.set_down(false);
    clusters.client(&east()).await.unwrap();
    // A cluster that confirmed before and is silent now is the same one.
    server.set_down(true);
    clusters.client(&east()).await.unwrap();
    server.set_down(false);

    let others = Clusters::new(&process, "default");
    others.know(&zone_that_knows("another"));
    assert!(matches!(
        others.client(&east()).await,
        Err(RemoteError::Invalid { .. })
    ));
    assert!(others.client_to_ask(&east()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn absent_and_unknown_are_different() {
    let server = support::server();
    let api: Api<ConfigMap> = Api::default_namespaced(support::client(&server));
    assert_eq!(
        remote::look(api.get_opt("map"), LOOK_LIMIT).await,
        Seen::Absent
    );
    server.set_latency(Duration::from_secs(60));
    assert_eq!(
        remote::look(api.get_opt("map"), LOOK_LIMIT).await,
        Seen::Unknown("no answer within 5 s".into())
    );
    server.set_latency(Duration::ZERO);
    server.set_down(true);
    assert!(
        remote::look(api.get_opt("map"), LOOK_LIMIT)
            .await
            .unknown()
            .is_some()
    );
    assert!(
        remote::look_list(api.list(&ListParams::default()), LOOK_LIMIT)
            .await
            .unknown()
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn a_remote_watch_comes_back_with_the_cluster() {
    let (hub, server) = (support::server(), support::server());
    let process = hub_process(&hub, &server);
    store(&process, &kubeconfig(&server.admin_token())).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(support::client(&server));
    let named = |name: &str| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
    };
    maps.create(&PostParams::default(), &named("one"))
        .await
        .unwrap();
    let map = |m: &ConfigMap| vec![ObjectRef::<Secret>::new(&m.name_any())];
    let mut refs = remote::refs(
        Clusters::new(&process, "default"),
        east(),
        Api::<ConfigMap>::default_namespaced,
        watcher::Config::default(),
        map,
        process.shutdown.clone(),
    );
    assert_eq!(refs.next().await.unwrap().name, "one");
    maps.create(&PostParams::default(), &named("two"))
        .await
        .unwrap();
    assert_eq!(refs.next().await.unwrap().name, "two");
    server.set_down(true);
    let nothing = tokio::time::timeout(Duration::from_secs(120), refs.next()).await;
    assert!(nothing.is_err());
    server.set_down(false);
    let back = [
        refs.next().await.unwrap().name,
        refs.next().await.unwrap().name,
    ];
    assert_eq!(back, ["one", "two"]);
    process.shutdown.cancel();
    assert!(refs.next().await.is_none());
}

use std::time::Duration;

use farshore_api::DRBDResource;
use farshore_api::protection_group::CurrentState;
use farshore_core::conditions;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use crate::support::{self, Cluster, RESOURCE};

#[tokio::test(start_paused = true)]
async fn it_refuses_to_start_without_watch_namespace() {
    for (value, expect) in [
        (None, "WATCH_NAMESPACE is unset or empty"),
        (Some(" "), "WATCH_NAMESPACE is unset or empty"),
        (Some("Not_A_Name"), "\"Not_A_Name\""),
    ] {
        let mut cluster = Cluster::new().await;
        cluster.process.env.remove("WATCH_NAMESPACE");
        cluster
            .process
            .env
            .extend(value.map(|v| ("WATCH_NAMESPACE".to_string(), v.to_string())));
        let error = farshore_workload::run(cluster.process)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(expect), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_follows_changes_everywhere_and_writes_nothing_when_all_is_well() {
    let cluster = Cluster::new().await;
    let run = tokio::spawn(farshore_workload::run(cluster.process.clone()));
    let resources: Api<DRBDResource> = cluster.api();
    cluster
        .create(&resources, support::resource(RESOURCE, "db01", "Secondary"))
        .await;
    cluster.vm("db", true, "Primary").await;
    cluster
        .mirror(
            "running",
            json!([{"vmRef": {"namespace": "shop", "name": "db"}}]),
        )
        .await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(
        resources
            .get(RESOURCE)
            .await
            .unwrap()
            .spec
            .node_name
            .as_deref(),
        Some("n1")
    );
    // The PVC of the other resource belongs to its VM and does not exist here: `vm` made none.
    let orphan = resources.get("drbd-db").await.unwrap();
    assert_eq!(
        conditions::get(&orphan.status.unwrap().conditions, "BackingReady")
            .unwrap()
            .reason,
        "PVCNotFound"
    );
    cluster.provide().await;
    sleep(Duration::from_secs(2)).await;
    assert!(conditions::is_true(
        &resources
            .get(RESOURCE)
            .await
            .unwrap()
            .status
            .unwrap()
            .conditions,
        "BackingReady"
    ));

    let state = || async {
        cluster
            .mirrors()
            .get("shop")
            .await
            .unwrap()
            .status
            .unwrap()
            .current_state
    };
    assert_eq!(state().await, Some(CurrentState::Running));
    cluster
        .mirrors()
        .patch(
            "shop",
            &PatchParams::default(),
            &Patch::Merge(&json!({"spec": {"desiredState": "stopped"}})),
        )
        .await
        .unwrap();
    sleep(Duration::from_secs(2)).await;
    cluster.instance_gone("db").await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(state().await, Some(CurrentState::Stopped));

    // Only the Lease is renewed from here on, over many watches that end and begin again.
    let mark = cluster.server.request_log().mark();
    sleep(Duration::from_secs(1000)).await;
    let other: Vec<_> = cluster
        .server
        .request_log()
        .writes_since(mark)
        .into_iter()
        .filter(|w| w.resource != "leases")
        .collect();
    assert_eq!(other, []);
    cluster.process.shutdown.cancel();
    run.await.unwrap().unwrap();
}

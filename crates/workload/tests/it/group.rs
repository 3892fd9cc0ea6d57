use std::sync::Arc;
use std::time::Duration;

use farshore_api::ProtectionGroup;
use farshore_api::protection_group::{CurrentState, ProtectionGroupStatus};
use farshore_runtime::controller::{Reconciler, Requeue};
use farshore_workload::group::LocalGroups;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::Cluster;

async fn reconcile(cluster: &Cluster) -> Requeue {
    let object = cluster.mirrors().get("shop").await.unwrap();
    LocalGroups::new(&cluster.process, &cluster.config())
        .reconcile(Arc::new(object))
        .await
        .unwrap()
}

async fn status(cluster: &Cluster) -> ProtectionGroupStatus {
    cluster.mirrors().get("shop").await.unwrap().status.unwrap()
}

async fn running(cluster: &Cluster, vm: &str) -> Value {
    cluster.vms().get(vm).await.unwrap().data["spec"]["running"].clone()
}

async fn desire(cluster: &Cluster, state: &str) -> ProtectionGroup {
    cluster
        .mirrors()
        .patch(
            "shop",
            &PatchParams::default(),
            &Patch::Merge(&json!({"spec": {"desiredState": state}})),
        )
        .await
        .unwrap()
}

fn members() -> Value {
    json!([
        {"vmRef": {"namespace": "shop", "name": "db"}, "startOrder": 0},
        {"vmRef": {"namespace": "shop", "name": "web"}, "startOrder": 1, "startDelaySeconds": 20},
    ])
}

#[tokio::test(start_paused = true)]
async fn a_group_stops_backwards_and_starts_forwards_on_the_primary_only() {
    let cluster = Cluster::new().await;
    cluster.vm("db", true, "Primary").await;
    cluster.vm("web", true, "Primary").await;
    cluster.mirror("running", members()).await;
    reconcile(&cluster).await;
    let now = status(&cluster).await;
    assert_eq!(
        (now.current_state, now.observed_generation, now.ready_vms),
        (Some(CurrentState::Running), Some(1), Some(2))
    );
    let mark = cluster.server.request_log().mark();
    assert_eq!(
        reconcile(&cluster).await,
        Requeue::After(Duration::from_secs(300))
    );
    assert_eq!(cluster.server.request_log().writes_since(mark), []);

    // Stop: web first, then db.
    desire(&cluster, "stopped").await;
    reconcile(&cluster).await;
    assert_eq!(
        (
            running(&cluster, "web").await,
            running(&cluster, "db").await
        ),
        (json!(false), json!(true))
    );
    let mark = cluster.server.request_log().mark();
    reconcile(&cluster).await;
    let again = cluster.server.request_log().writes_since(mark);
    assert!(
        again.iter().all(|w| w.resource != "virtualmachines"),
        "{again:?}"
    );
    assert_ne!(
        status(&cluster).await.current_state,
        Some(CurrentState::Stopped)
    );
    cluster.instance_gone("web").await;
    reconcile(&cluster).await;
    assert_eq!(running(&cluster, "db").await, json!(false));
    assert_eq!(
        status(&cluster).await.current_state,
        Some(CurrentState::Mixed)
    );
    cluster.instance_gone("db").await;
    reconcile(&cluster).await;
    let now = status(&cluster).await;
    assert_eq!(
        (now.current_state, now.observed_generation),
        (Some(CurrentState::Stopped), Some(2))
    );
    let mark = cluster.server.request_log().mark();
    reconcile(&cluster).await;
    assert_eq!(cluster.server.request_log().writes_since(mark), []);

    // Start: not while Secondary; db before web, web 20 s later.
    cluster.role("drbd-db", "Secondary").await;
    desire(&cluster, "running").await;
    reconcile(&cluster).await;
    assert_eq!(running(&cluster, "db").await, json!(false));
    let why = status(&cluster).await.vms[0].message.clone().unwrap();
    assert!(
        why.contains("DRBDResource shop/drbd-db is Secondary"),
        "{why}"
    );
    cluster.role("drbd-db", "Primary").await;
    reconcile(&cluster).await;
    assert_eq!(
        (
            running(&cluster, "db").await,
            running(&cluster, "web").await
        ),
        (json!(true), json!(false))
    );
    cluster.instance_runs("db").await;
    assert_eq!(
        reconcile(&cluster).await,
        Requeue::After(Duration::from_secs(15))
    );
    assert_eq!(running(&cluster, "web").await, json!(false));
    tokio::time::sleep(Duration::from_secs(21)).await;
    reconcile(&cluster).await;
    assert_eq!(running(&cluster, "web").await, json!(true));
    cluster.instance_runs("web").await;
    reconcile(&cluster).await;
    let now = status(&cluster).await;
    assert_eq!(
        (now.current_state, now.observed_generation),
        (Some(CurrentState::Running), Some(3))
    );
    let manager = cluster
        .vms()
        .get("web")
        .await
        .unwrap()
        .metadata
        .managed_fields
        .unwrap();
    assert!(
        manager
            .iter()
            .any(|m| m.manager.as_deref() == Some("protection-group-controller"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_mirror_and_a_group_that_is_no_mirror_leave_the_vms_alone() {
    let cluster = Cluster::new().await;
    cluster.vm("db", true, "Primary").await;
    let mirror = cluster
        .mirror(
            "stopped",
            json!([{"vmRef": {"namespace": "shop", "name": "db"}}]),
        )
        .await;
    let groups = LocalGroups::new(&cluster.process, &cluster.config());
    let unlabel = json!({"metadata": {"labels": {"siterecovery.trilio.io/mirror": null}}});
    cluster
        .mirrors()
        .patch("shop", &PatchParams::default(), &Patch::Merge(&unlabel))
        .await
        .unwrap();
    let mark = cluster.server.request_log().mark();
    assert_eq!(
        groups.reconcile(Arc::new(mirror.clone())).await.unwrap(),
        Requeue::Change
    );
    assert_eq!(cluster.server.request_log().writes_since(mark), []);
    cluster
        .mirrors()
        .delete("shop", &DeleteParams::default())
        .await
        .unwrap();
    let mark = cluster.server.request_log().mark();
    assert_eq!(
        groups.reconcile(Arc::new(mirror)).await.unwrap(),
        Requeue::Change
    );
    assert_eq!(cluster.server.request_log().writes_since(mark), []);
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_missing_does_not_hold_up_the_stop_of_the_others() {
    let cluster = Cluster::new().await;
    cluster.vm("db", true, "Primary").await;
    cluster.vm("web", true, "Primary").await;
    let mirror = cluster.mirror("stopped", json!([{"vmRef": {"namespace": "shop", "name": "db"}}, {"vmRef": {"namespace": "shop", "name": "web"}}])).await;
    let groups = LocalGroups::new(&cluster.process, &cluster.config());
    cluster
        .vms()
        .delete("db", &DeleteParams::default())
        .await
        .unwrap();
    groups.reconcile(Arc::new(mirror)).await.unwrap();
    assert_eq!(running(&cluster, "web").await, json!(false));
    let now = status(&cluster).await;
    assert_eq!(now.current_state, Some(CurrentState::Unknown));
    assert!(
        now.vms[0]
            .message
            .as_ref()
            .unwrap()
            .contains("there is no such VirtualMachine, though an instance of it is there")
    );
}

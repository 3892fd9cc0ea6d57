use std::sync::Arc;
use std::time::Duration;

use farshore_api::DRBDResource;
use farshore_core::conditions;
use farshore_runtime::controller::{Reconciler, Requeue};
use farshore_workload::placement::Placement;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::{self, Cluster, RESOURCE};

async fn reconcile(cluster: &Cluster) -> Requeue {
    let api: Api<DRBDResource> = cluster.api();
    let object = api.get(RESOURCE).await.unwrap();
    Placement::new(&cluster.process, &cluster.config())
        .reconcile(Arc::new(object))
        .await
        .unwrap()
}

async fn get(cluster: &Cluster) -> DRBDResource {
    cluster.api::<DRBDResource>().get(RESOURCE).await.unwrap()
}

async fn source_pvc(cluster: &Cluster, size: &str) {
    let claims: Api<PersistentVolumeClaim> = cluster.api();
    cluster
        .create(&claims, json!({
            "metadata": {"name": "db01-root"},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "lab-block", "resources": {"requests": {"storage": size}}},
        }))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_is_placed_and_then_left_alone() {
    let cluster = Cluster::new().await;
    let resources: Api<DRBDResource> = cluster.api();
    cluster
        .create(&resources, support::resource(RESOURCE, "db01", "Secondary"))
        .await;
    assert_eq!(
        reconcile(&cluster).await,
        Requeue::After(Duration::from_secs(10))
    );

    let bound = get(&cluster).await;
    assert_eq!(bound.spec.node_name.as_deref(), Some("n1"));
    assert_eq!(
        bound.spec.local.as_ref().map(|l| l.address.as_str()),
        Some("10.0.0.1")
    );
    let claims: Api<PersistentVolumeClaim> = cluster.api();
    let backing = claims.get("db01-root").await.unwrap();
    let metadata = claims.get("drbdmd-0011aabb-0").await.unwrap();
    let size = |c: &PersistentVolumeClaim| {
        c.spec.clone().unwrap().resources.unwrap().requests.unwrap()["storage"]
            .0
            .clone()
    };
    assert_eq!(
        (size(&backing), size(&metadata)),
        ("10Gi".to_string(), "1Mi".to_string())
    );
    assert!(
        backing.owner_references().is_empty(),
        "the data outlives its replication"
    );
    assert_eq!(metadata.owner_references()[0].uid, bound.uid().unwrap());
    assert_eq!(
        support::labels(&backing)["siterecovery.trilio.io/protection-request"],
        "db01"
    );
    let pods: Api<Pod> = cluster.api();
    let anchor = pods.get("drbd-anchor-0011aabb").await.unwrap();
    let devices = anchor.spec.unwrap().containers[0]
        .volume_devices
        .clone()
        .unwrap();
    assert_eq!(devices.len(), 2);

    cluster.provide().await;
    reconcile(&cluster).await;
    let status = get(&cluster).await.status.unwrap();
    for type_ in ["NodeBound", "BackingReady", "MetadataReady"] {
        assert!(
            conditions::is_true(&status.conditions, type_),
            "{:?}",
            status.conditions
        );
    }
    assert_eq!(status.anchor_pod.as_deref(), Some("drbd-anchor-0011aabb"));

    let mark = cluster.server.request_log().mark();
    assert_eq!(
        reconcile(&cluster).await,
        Requeue::After(Duration::from_secs(300))
    );
    assert_eq!(cluster.server.request_log().writes_since(mark), []);
}

#[tokio::test(start_paused = true)]
async fn a_source_follows_its_vm_and_keeps_the_vms_own_volume() {
    let cluster = Cluster::new().await;
    source_pvc(&cluster, "10Gi").await;
    let instances = cluster.instances();
    cluster
        .create(&instances, json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "db01"}, "status": {"phase": "Running", "nodeName": "n2"}}))
        .await;
    let resources: Api<DRBDResource> = cluster.api();
    cluster
        .create(&resources, support::resource(RESOURCE, "db01", "Primary"))
        .await;
    reconcile(&cluster).await;
    assert_eq!(get(&cluster).await.spec.node_name.as_deref(), Some("n2"));
    cluster.provide().await;
    reconcile(&cluster).await;
    assert!(conditions::is_true(
        &get(&cluster).await.status.unwrap().conditions,
        "BackingReady"
    ));
    let mark = cluster.server.request_log().mark();
    reconcile(&cluster).await;
    assert_eq!(cluster.server.request_log().writes_since(mark), []);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_too_small_is_told_and_nothing_is_attached() {
    let cluster = Cluster::new().await;
    source_pvc(&cluster, "5Gi").await;
    let resources: Api<DRBDResource> = cluster.api();
    cluster
        .create(&resources, support::resource(RESOURCE, "db01", "Secondary"))
        .await;
    reconcile(&cluster).await;
    let status = get(&cluster).await.status.unwrap();
    let backing = conditions::get(&status.conditions, "BackingReady").unwrap();
    assert_eq!(
        (backing.status.as_str(), backing.reason.as_str()),
        ("False", "VolumeTooSmall")
    );
    assert!(
        backing.message.contains("has 5 GiB, 10 GiB are needed"),
        "{}",
        backing.message
    );
    assert!(
        cluster
            .api::<Pod>()
            .get_opt("drbd-anchor-0011aabb")
            .await
            .unwrap()
            .is_none()
    );
    // The binding raised the generation that the conditions speak of.
    reconcile(&cluster).await;
    let mark = cluster.server.request_log().mark();
    reconcile(&cluster).await;
    assert_eq!(cluster.server.request_log().writes_since(mark), []);
}

#[tokio::test(start_paused = true)]
async fn an_anchor_that_is_gone_comes_back() {
    let cluster = Cluster::new().await;
    let resources: Api<DRBDResource> = cluster.api();
    cluster
        .create(&resources, support::resource(RESOURCE, "db01", "Secondary"))
        .await;
    reconcile(&cluster).await;
    cluster.provide().await;
    reconcile(&cluster).await;
    let pods: Api<Pod> = cluster.api();
    let first = pods.get("drbd-anchor-0011aabb").await.unwrap().uid();
    pods.delete(
        "drbd-anchor-0011aabb",
        &DeleteParams::default().grace_period(0),
    )
    .await
    .unwrap();
    reconcile(&cluster).await;
    let second = pods.get("drbd-anchor-0011aabb").await.unwrap().uid();
    assert_ne!(first, second);
    let status = get(&cluster).await.status.unwrap();
    assert_eq!(
        conditions::get(&status.conditions, "BackingReady")
            .unwrap()
            .reason,
        "AnchorNotRunning"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_resource_loses_its_anchor_and_metadata_and_its_data_stays() {
    let cluster = Cluster::new().await;
    let background = cluster.server.spawn(cluster.process.shutdown.clone());
    let resources: Api<DRBDResource> = cluster.api();
    cluster
        .create(&resources, support::resource(RESOURCE, "db01", "Secondary"))
        .await;
    reconcile(&cluster).await;
    cluster.provide().await;
    reconcile(&cluster).await;
    let agent = json!({"metadata": {"finalizers": ["siterecovery.trilio.io/placement-cleanup", "siterecovery.trilio.io/drbd-teardown"]}});
    resources
        .patch(RESOURCE, &PatchParams::default(), &Patch::Merge(&agent))
        .await
        .unwrap();
    resources
        .delete(RESOURCE, &DeleteParams::default())
        .await
        .unwrap();
    let mark = cluster.server.request_log().mark();
    reconcile(&cluster).await;
    assert_eq!(
        cluster.server.request_log().writes_since(mark),
        [],
        "the agent has not let go"
    );

    let done = json!({"metadata": {"finalizers": ["siterecovery.trilio.io/placement-cleanup"]}});
    resources
        .patch(RESOURCE, &PatchParams::default(), &Patch::Merge(&done))
        .await
        .unwrap();
    reconcile(&cluster).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(resources.get_opt(RESOURCE).await.unwrap().is_none());
    let claims: Api<PersistentVolumeClaim> = cluster.api();
    assert!(
        claims.get_opt("db01-root").await.unwrap().is_some(),
        "the hub says whether it goes"
    );
    assert!(
        claims.get_opt("drbdmd-0011aabb-0").await.unwrap().is_none(),
        "garbage collection takes metadata with its owner"
    );
    cluster.process.shutdown.cancel();
    background.await.unwrap();
}

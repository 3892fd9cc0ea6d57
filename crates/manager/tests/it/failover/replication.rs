//! The replication-monitor.

use farshore_api::replication_group_status::{ReplicationGroupStatusStatus, RpoStatus};
use farshore_api::rpo_event::RpoEventType;
use farshore_api::{DRBDResource, RPOEvent, ReplicationGroupStatus};
use farshore_manager::monitor::ReplicationMonitor;
use farshore_runtime::remote::Clusters;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::world::{Fuse, NS, World, make, status};

async fn with_monitor() -> World {
    let world = World::new().await;
    make(&world.client("hub"), json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ReplicationGroupStatus", "metadata": {"name": "shop-replication", "namespace": NS},
        "spec": {"protectionGroupRef": {"name": "shop"}, "rpoObjectiveSeconds": 60},
    }))
    .await;
    world
}

async fn link(world: &World, up: bool) {
    let (connection, replication) = if up {
        ("Connected", "Established")
    } else {
        ("Connecting", "Off")
    };
    for cluster in ["east", "west"] {
        for vm in ["db01", "web01"] {
            let volume = json!({"index": 0, "minor": 1000, "role": "Primary", "connectionState": connection, "diskState": "UpToDate", "peerDiskState": "UpToDate",
                "replicationState": replication, "outOfSyncBytes": if up { 0 } else { 4096 }, "syncPercent": 100});
            status::<DRBDResource>(
                &world.client(cluster),
                "shop",
                &format!("drbd-shop-{vm}-01234567"),
                json!({"connectionState": connection, "volumes": [volume]}),
            )
            .await;
        }
    }
}

async fn seen(world: &World) -> ReplicationGroupStatusStatus {
    let api: Api<ReplicationGroupStatus> = Api::namespaced(world.client("hub"), NS);
    api.get("shop-replication")
        .await
        .unwrap()
        .status
        .unwrap_or_default()
}

async fn events(world: &World) -> Vec<RPOEvent> {
    let api: Api<RPOEvent> = Api::namespaced(world.client("hub"), NS);
    let mut all = api.list(&ListParams::default()).await.unwrap().items;
    all.sort_by_key(|e| e.spec.timestamp.0);
    all
}

/// C16: 15 s is the default; the values are aggregated and written once.
#[tokio::test(start_paused = true)]
async fn a_healthy_group_is_polled_every_15_seconds_and_written_once() {
    let world = with_monitor().await;
    world.start();
    world.pass(300).await;
    let status = seen(&world).await;
    assert_eq!(
        (
            status.rpo_status,
            status.current_rpo_seconds,
            status.connected_vms,
            status.total_vms
        ),
        (Some(RpoStatus::Compliant), Some(0), Some(2), Some(2))
    );
    let writes: Vec<String> = world
        .writes()
        .into_iter()
        .filter(|w| w.ends_with("by replication-monitor"))
        .collect();
    assert_eq!(
        writes,
        ["hub patch replicationgroupstatuses/shop-replication by replication-monitor"]
    );
    let lists = world.workload["west"]
        .request_log()
        .entries()
        .iter()
        .filter(|e| {
            e.verb == "list" && e.resource == "drbdresources" && e.user.ends_with("tsr-manager")
        })
        .count();
    assert!(
        (20..=24).contains(&lists),
        "{lists} lists in 300 s, the watch's among them"
    );
}

/// C17: each transition emits one RPOEvent, which cannot be edited.
#[tokio::test(start_paused = true)]
async fn each_transition_makes_one_event_that_cannot_be_edited() {
    let world = with_monitor().await;
    world.start();
    world.pass(40).await;
    link(&world, false).await;
    world.pass(20).await;
    let first = seen(&world).await.current_rpo_seconds.unwrap();
    world.pass(30).await;
    let second = seen(&world).await.current_rpo_seconds.unwrap();
    assert!(second > first, "{second} after {first}");
    world.pass(120).await;
    link(&world, true).await;
    world.pass(60).await;
    let all = events(&world).await;
    let types: Vec<RpoEventType> = all.iter().map(|e| e.spec.event_type).collect();
    assert_eq!(
        types,
        [
            RpoEventType::RPOAtRisk,
            RpoEventType::RPOViolated,
            RpoEventType::RPORecovered
        ]
    );
    let api: Api<RPOEvent> = Api::namespaced(world.client("hub"), NS);
    let edit = Patch::Merge(json!({"spec": {"message": "all is well"}}));
    let refused = api
        .patch(
            all[0].metadata.name.as_ref().unwrap(),
            &PatchParams::default(),
            &edit,
        )
        .await;
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("RPOEvent is immutable")
    );
}

#[tokio::test(start_paused = true)]
async fn silence_of_both_clusters_becomes_unknown() {
    let world = with_monitor().await;
    world.start();
    world.pass(20).await;
    for server in world.workload.values() {
        server.set_down(true);
    }
    world.pass(75).await;
    assert_eq!(seen(&world).await.rpo_status, Some(RpoStatus::Unknown));
    let writes = world.writes().len();
    world.pass(600).await;
    assert_eq!(world.writes().len(), writes, "said once");
    for server in world.workload.values() {
        server.set_down(false);
    }
    world.pass(40).await;
    let types: Vec<RpoEventType> = events(&world)
        .await
        .iter()
        .map(|e| e.spec.event_type)
        .collect();
    assert_eq!(
        types,
        [
            RpoEventType::ReplicationLost,
            RpoEventType::ReplicationRestored
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_death_at_any_write_neither_loses_nor_doubles_an_event() {
    for done in [true, false] {
        for n in 1..=3 {
            let world = with_monitor().await;
            let poll = async |fuse: &Fuse| {
                let process = world.process(fuse);
                let monitor =
                    ReplicationMonitor::new(&process, &world.zone, Clusters::new(&process, NS));
                tokio::select! {
                    biased;
                    result = monitor.poll("shop-replication") => drop(result.unwrap()),
                    () = fuse.blown() => {}
                }
            };
            poll(&Fuse::default()).await;
            world.pass(15).await;
            link(&world, false).await;
            poll(&Fuse::at(n, done)).await;
            world.pass(40).await;
            poll(&Fuse::default()).await;
            let all = events(&world).await;
            assert_eq!(all.len(), 1, "write {n}, done: {done}");
            assert_eq!(seen(&world).await.rpo_status, Some(all[0].spec.new_status));
        }
    }
}

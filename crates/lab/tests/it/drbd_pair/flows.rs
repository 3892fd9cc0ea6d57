//! What a pair of agents does from protection to teardown.

use std::time::Duration;

use farshore_api::drbd::{ConnectionState, DiskState, Role};
use farshore_api::drbd_resource::DRBDResourcePhase;
use farshore_api::names;
use farshore_lab::guest::Ledger;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::sleep;

use super::support::{CLUSTERS, EAST, NAMESPACE, NODES, Pair, WEST};

async fn ready() -> Pair {
    let pair = Pair::new().await;
    pair.start(EAST);
    pair.start(WEST);
    pair.until_ready("the pair is protected").await;
    pair
}

#[tokio::test(start_paused = true)]
async fn a_pair_syncs_offers_its_frontends_and_then_rests() {
    let pair = Pair::new().await;
    pair.start(EAST);
    pair.until("east waits for its peer as Primary", || async {
        pair.status(EAST).await.connection_state == Some(ConnectionState::Connecting)
            && pair.status(EAST).await.role == Some(Role::Primary)
    })
    .await;
    pair.start(WEST);
    pair.until("a sync is told", || async {
        pair.status(WEST).await.phase == Some(DRBDResourcePhase::Syncing)
    })
    .await;
    pair.until_ready("the pair is protected").await;
    pair.assert_alike();
    for side in [EAST, WEST] {
        let claim: PersistentVolumeClaim = Api::namespaced(pair.client(side), NAMESPACE)
            .get("db01-root-drbd")
            .await
            .unwrap();
        let pv: PersistentVolume = Api::all(pair.client(side))
            .get(&names::frontend_pv(&pair.name, 0))
            .await
            .unwrap();
        assert_eq!(claim.spec.unwrap().volume_name, pv.metadata.name);
        assert_eq!(pv.spec.unwrap().local.unwrap().path, "/dev/drbd1003");
    }
    assert_eq!(
        pair.reasons(EAST, NAMESPACE).await,
        ["RoleChanged", "SyncStarted", "SyncFinished"]
    );
    pair.until("no node is tainted", || async {
        !pair.tainted(EAST).await && !pair.tainted(WEST).await
    })
    .await;

    let marks = [EAST, WEST].map(|side| pair.servers[side].request_log().mark());
    sleep(Duration::from_secs(3600)).await;
    for side in [EAST, WEST] {
        assert_eq!(
            pair.servers[side].request_log().writes_since(marks[side]),
            [],
            "an unchanged world writes nothing"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_sync_is_told_at_most_once_a_second() {
    let pair = Pair::new().await;
    pair.start(EAST);
    pair.until("east is Primary", || async {
        pair.status(EAST).await.role == Some(Role::Primary)
    })
    .await;
    let mark = pair.servers[EAST].request_log().mark();
    pair.start(WEST);
    pair.until_ready("the pair is protected").await;
    let log = pair.servers[EAST].request_log().writes_since(mark);
    let told = log.iter().filter(|e| e.subresource == "status").count();
    // 8 MiB at 1 MiB/s, and what else happened on the way.
    assert!((5..=13).contains(&told), "{told} writes: {log:#?}");
}

#[tokio::test(start_paused = true)]
async fn roles_follow_their_epoch_and_an_open_device_is_waited_for() {
    let pair = ready().await;
    let device = pair
        .world
        .open("east", NODES[EAST], pair.minor(), "qemu")
        .unwrap();
    pair.patch(EAST, json!({"role": "Secondary", "roleEpoch": 2}))
        .await;
    pair.until("the open device is told", || async {
        pair.status(EAST)
            .await
            .message
            .is_some_and(|m| m.contains("VM shop/db01"))
    })
    .await;
    assert_eq!(pair.status(EAST).await.role, Some(Role::Primary));
    assert_eq!(pair.status(EAST).await.role_epoch, Some(1));
    drop(device);
    pair.flip(EAST, WEST, 2).await;
    pair.until_ready("the flip is over").await;

    pair.patch(EAST, json!({"role": "Primary", "roleEpoch": 1}))
        .await;
    pair.until("the stale role is refused", || async {
        pair.status(EAST)
            .await
            .message
            .is_some_and(|m| m.contains("epoch 1 is not carried out"))
    })
    .await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(pair.status(EAST).await.role, Some(Role::Secondary));
    assert_eq!(pair.status(EAST).await.role_epoch, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_cut_link_degrades_and_heals_without_loss() {
    let pair = ready().await;
    let ledger = Ledger::new();
    pair.run_vm(EAST, 2, &ledger).await;
    pair.world.link(false);
    pair.run_vm(EAST, 60, &ledger).await;
    let (east, west) = (pair.status(EAST).await, pair.status(WEST).await);
    assert_eq!(
        (east.phase, west.phase),
        (
            Some(DRBDResourcePhase::Degraded),
            Some(DRBDResourcePhase::Degraded)
        )
    );
    assert_eq!(
        (east.disk_state, west.disk_state),
        (Some(DiskState::UpToDate), Some(DiskState::Consistent))
    );
    assert!(
        east.out_of_sync_bytes.unwrap() > 0,
        "what the peer misses is told"
    );
    assert_eq!(
        east.conditions
            .iter()
            .find(|c| c.type_ == "Connected")
            .unwrap()
            .status,
        "False"
    );
    pair.world.link(true);
    pair.until_ready("the link has healed").await;
    pair.assert_alike();
    pair.assert_whole(&ledger);
}

#[tokio::test(start_paused = true)]
async fn without_its_peer_a_side_is_promoted_only_by_the_managers_word() {
    let pair = ready().await;
    let ledger = Ledger::new();
    pair.run_vm(EAST, 2, &ledger).await;
    pair.world.set_node("east", NODES[EAST], false);
    sleep(Duration::from_secs(10)).await;
    pair.patch(WEST, json!({"role": "Primary", "roleEpoch": 2}))
        .await;
    pair.until("the refusal is told", || async {
        pair.status(WEST)
            .await
            .message
            .is_some_and(|m| m.contains("the connection to its peer in cluster east"))
    })
    .await;
    assert_eq!(pair.status(WEST).await.role, Some(Role::Secondary));
    let word =
        json!({"metadata": {"annotations": {farshore_api::meta::annotations::FORCE_PRIMARY: "2"}}});
    pair.resources(WEST)
        .patch(&pair.name, &PatchParams::default(), &Patch::Merge(word))
        .await
        .unwrap();
    pair.until("west is Primary", || async {
        pair.status(WEST).await.role == Some(Role::Primary)
    })
    .await;
    pair.run_vm(WEST, 2, &ledger).await;

    // The old site comes back, still asked to be Primary at the old epoch: it follows its peer.
    pair.world.set_node("east", NODES[EAST], true);
    pair.until("east is the target", || async {
        pair.status(EAST).await.disk_state == Some(DiskState::UpToDate)
            && pair.status(EAST).await.role == Some(Role::Secondary)
    })
    .await;
    pair.patch(EAST, json!({"role": "Secondary", "roleEpoch": 2}))
        .await;
    pair.until_ready("the old site is back").await;
    pair.assert_alike();
    pair.assert_whole(&ledger);
}

#[tokio::test(start_paused = true)]
async fn a_split_brain_is_told_and_resolved_by_annotation() {
    let pair = ready().await;
    let ledger = Ledger::new();
    pair.world.link(false);
    sleep(Duration::from_secs(10)).await;
    pair.run_vm(EAST, 2, &ledger).await;
    let kernel = pair.world.kernel("west", NODES[WEST]);
    kernel.primary(&pair.name, true).await.unwrap();
    pair.patch(EAST, json!({"paused": false})).await;
    pair.world.link(true);
    pair.until("both sides tell the split brain", || async {
        pair.status(EAST).await.split_brain == Some(true)
            && pair.status(WEST).await.split_brain == Some(true)
    })
    .await;
    assert!(
        pair.reasons(EAST, NAMESPACE)
            .await
            .contains(&"SplitBrain".to_string())
    );
    for side in [EAST, WEST] {
        let keep = json!({"metadata": {"annotations": {farshore_api::meta::annotations::RESOLVE_SPLIT_BRAIN: "east"}}});
        pair.resources(side)
            .patch(&pair.name, &PatchParams::default(), &Patch::Merge(keep))
            .await
            .unwrap();
    }
    pair.until_ready("the split brain is resolved").await;
    pair.assert_alike();
    pair.assert_whole(&ledger);
}

#[tokio::test(start_paused = true)]
async fn a_crashed_node_comes_back_as_it_was() {
    let pair = Pair::new().await;
    let kill = pair.start(EAST);
    pair.start(WEST);
    pair.until_ready("the pair is protected").await;
    let ledger = Ledger::new();
    pair.run_vm(EAST, 2, &ledger).await;
    kill.cancel();
    pair.world.set_node("east", NODES[EAST], false);
    sleep(Duration::from_secs(30)).await;
    pair.world.set_node("east", NODES[EAST], true);
    pair.start(EAST);
    pair.until("the node is tainted until DRBD has converged", || {
        pair.tainted(EAST)
    })
    .await;
    pair.until("the taint goes", || async { !pair.tainted(EAST).await })
        .await;
    pair.until_ready("the node is back").await;
    assert_eq!(pair.status(EAST).await.role, Some(Role::Primary));
    pair.run_vm(EAST, 2, &ledger).await;
    pair.assert_whole(&ledger);
}

#[tokio::test(start_paused = true)]
async fn a_paused_pair_rests_and_catches_up() {
    let pair = ready().await;
    let ledger = Ledger::new();
    for side in [EAST, WEST] {
        pair.patch(side, json!({"paused": true})).await;
    }
    pair.until("both stand alone", || async {
        pair.status(EAST).await.connection_state == Some(ConnectionState::StandAlone)
            && pair.status(WEST).await.connection_state == Some(ConnectionState::StandAlone)
    })
    .await;
    pair.run_vm(EAST, 2, &ledger).await;
    for side in [EAST, WEST] {
        pair.patch(side, json!({"paused": false})).await;
    }
    pair.until_ready("the pause is over").await;
    pair.assert_alike();
    pair.assert_whole(&ledger);
}

#[tokio::test(start_paused = true)]
async fn deletion_waits_for_the_device_to_be_closed() {
    let pair = ready().await;
    let device = pair
        .world
        .open("east", NODES[EAST], pair.minor(), "qemu")
        .unwrap();
    pair.delete(EAST).await;
    pair.delete(WEST).await;
    pair.until("the wait is told", || async {
        pair.status(EAST).await.phase == Some(DRBDResourcePhase::Deleting)
            && pair
                .status(EAST)
                .await
                .message
                .is_some_and(|m| m.contains("VM shop/db01"))
    })
    .await;
    drop(device);
    pair.until_gone().await;
    assert!(
        pair.storage
            .volume(CLUSTERS[EAST], "pv-db01-root")
            .is_some(),
        "the disk stays"
    );
}

#[tokio::test(start_paused = true)]
async fn the_startup_taint_goes_at_its_deadline_and_says_so() {
    let pair = Pair::new().await;
    // West's agent never runs and east has no secret: east cannot converge.
    let secrets: Api<k8s_openapi::api::core::v1::Secret> =
        Api::namespaced(pair.client(EAST), NAMESPACE);
    secrets
        .delete(&names::shared_secret(&pair.name), &Default::default())
        .await
        .unwrap();
    pair.start(EAST);
    pair.until("the node is tainted", || pair.tainted(EAST))
        .await;
    sleep(Duration::from_secs(280)).await;
    assert!(pair.tainted(EAST).await);
    assert!(
        pair.status(EAST)
            .await
            .message
            .unwrap()
            .contains("Secret shop/")
    );
    sleep(Duration::from_secs(30)).await;
    assert!(!pair.tainted(EAST).await);
    assert_eq!(pair.reasons(EAST, "default").await, ["StartupDeadline"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_resources_is_never_tainted() {
    let pair = Pair::empty().await;
    let mark = pair.servers[EAST].request_log().mark();
    pair.start(EAST);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(pair.servers[EAST].request_log().writes_since(mark), []);
}

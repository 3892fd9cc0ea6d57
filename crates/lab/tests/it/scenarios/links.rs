//! The replication link and the sites come and go.

use farshore_api::protection_request::ProtectionPhase;
use farshore_api::replication_group_status::RpoStatus;
use farshore_api::{ProtectionRequest, RPOEvent, ReplicationGroupStatus, names};
use farshore_lab::story::{eventually, has_condition};
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;

use super::{assert_rule, assert_whole, lab_with_group, pass, user};

#[tokio::test(start_paused = true)]
async fn rpo_rises_while_the_link_is_down_and_returns_to_zero() {
    // C16, C17
    let (lab, vms) = lab_with_group().await;
    let states: Api<ReplicationGroupStatus> = user(&lab).api();
    let name = names::replication_status("shop");
    let state = states.get(&name).await.unwrap();
    assert_eq!(
        (
            state.spec.polling_interval_seconds,
            state.spec.rpo_objective_seconds
        ),
        (15, 0)
    );

    lab.inject(&"link cut".parse().unwrap()).await.unwrap();
    let violated = eventually("replication violated", || async {
        let status = states.get(&name).await?.status.unwrap_or_default();
        Ok((status.rpo_status == Some(RpoStatus::Violated)).then_some(status))
    })
    .await
    .unwrap();
    pass(60).await;
    let later = states.get(&name).await.unwrap().status.unwrap();
    assert!(
        later.current_rpo_seconds > violated.current_rpo_seconds,
        "{later:?}"
    );
    assert!(later.out_of_sync_bytes > Some(0));
    let requests: Api<ProtectionRequest> = user(&lab).api();
    let request = requests.get("db01").await.unwrap().status.unwrap();
    assert_eq!(request.phase, Some(ProtectionPhase::Degraded));
    assert!(has_condition(&request.conditions, "Connected", "False"));
    for vm in &vms {
        user(&lab).vm_runs("east", vm).await.unwrap();
    }

    lab.inject(&"link heal".parse().unwrap()).await.unwrap();
    user(&lab).group_ready("shop").await.unwrap();
    for vm in &vms {
        user(&lab).protected(vm).await.unwrap();
    }
    let status = states.get(&name).await.unwrap().status.unwrap();
    assert_eq!(
        (status.current_rpo_seconds, status.out_of_sync_bytes),
        (Some(0), Some(0))
    );

    let events: Api<RPOEvent> = user(&lab).api();
    let all = events.list(&ListParams::default()).await.unwrap().items;
    assert!(all.len() >= 2, "{all:?}");
    let edit = Patch::Merge(json!({ "spec": { "message": "nothing happened" } }));
    let edited = events
        .patch(
            all[0].metadata.name.as_deref().unwrap(),
            &PatchParams::default(),
            &edit,
        )
        .await;
    assert_rule(edited, "RPOEvent is immutable");
    assert_whole(&lab, "east", &vms).await;
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_site_does_not_stop_the_other() {
    // C35: west is lost; the VMs on east go on, and east's own groups can still be stopped and started.
    let (lab, vms) = lab_with_group().await;
    lab.set_site("west", false).await.unwrap();
    pass(120).await;
    for vm in &vms {
        user(&lab).vm_runs("east", vm).await.unwrap();
    }
    let groups = || async {
        let api: Api<farshore_api::ProtectionGroup> = user(&lab).api();
        api.get("shop").await
    };
    let patch = |state: &str| Patch::Merge(json!({ "spec": { "desiredState": state } }));
    let api: Api<farshore_api::ProtectionGroup> = user(&lab).api();
    for (wish, places) in [("stopped", vec![]), ("running", vec!["east".to_string()])] {
        api.patch("shop", &PatchParams::default(), &patch(wish))
            .await
            .unwrap();
        eventually(wish, || async {
            Ok(vms
                .iter()
                .all(|vm| lab.guests.places(&vm.key()) == places)
                .then_some(()))
        })
        .await
        .unwrap();
    }
    let status = groups().await.unwrap().status.unwrap();
    assert_eq!(status.active_cluster.as_deref(), Some("east"));
    lab.set_site("west", true).await.unwrap();
    user(&lab).group_ready("shop").await.unwrap();
    assert_whole(&lab, "west", &vms).await;
}

#[tokio::test(start_paused = true)]
async fn a_settled_zone_writes_nothing() {
    let (lab, _) = lab_with_group().await;
    pass(180).await;
    let marks = farshore_lab::measure::Marks::now(&lab);
    pass(600).await;
    assert_eq!(marks.writes(&lab), Default::default());
}

#[tokio::test(start_paused = true)]
async fn a_returned_standby_site_catches_up_without_a_full_sync() {
    let (lab, vms) = lab_with_group().await;
    lab.set_site("west", false).await.unwrap();
    pass(60).await;
    lab.set_site("west", true).await.unwrap();
    user(&lab).group_ready("shop").await.unwrap();
    for vm in &vms {
        user(&lab).protected(vm).await.unwrap();
    }
    user(&lab)
        .fail_over("to-west", "shop", "west")
        .await
        .unwrap();
    assert_whole(&lab, "west", &vms).await;
}

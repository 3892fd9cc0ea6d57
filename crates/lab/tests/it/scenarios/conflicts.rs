//! The safety check before quorum taints are removed.

use farshore_api::failover_request::FailoverState;
use farshore_lab::lab::Lab;
use farshore_lab::story::Vm;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;

use super::{assert_whole, lab_with_zone, user};

const QUORUM: &str = "siterecovery.trilio.io/quorum-lost";

/// Group `shop` on east, group `bank` on west, and quorum taints on both nodes of west.
async fn two_groups() -> (Lab, Vec<Vm>, Vec<Vm>) {
    let lab = lab_with_zone().await;
    let shop = vec![Vm::new("shop", "db01", 1, 16)];
    let bank = vec![Vm::new("bank", "ledger", 1, 16)];
    user(&lab).protect("east", &shop, "Online").await.unwrap();
    user(&lab).protect("west", &bank, "Online").await.unwrap();
    user(&lab).create_group("shop", &shop).await.unwrap();
    user(&lab).create_group("bank", &bank).await.unwrap();
    // A tainted node takes no VM that starts: all must run before.
    user(&lab).vm_runs("east", &shop[0]).await.unwrap();
    user(&lab).vm_runs("west", &bank[0]).await.unwrap();
    let nodes: Api<Node> = Api::all(lab.cluster("west").admin.clone());
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        let taint = Patch::Merge(
            json!({ "spec": { "taints": [{ "key": QUORUM, "effect": "NoSchedule" }] } }),
        );
        nodes
            .patch(
                node.metadata.name.as_deref().unwrap(),
                &PatchParams::default(),
                &taint,
            )
            .await
            .unwrap();
    }
    (lab, shop, bank)
}

async fn tainted(lab: &Lab) -> usize {
    let nodes: Api<Node> = Api::all(lab.cluster("west").admin.clone());
    let all = nodes.list(&ListParams::default()).await.unwrap().items;
    all.iter()
        .filter(|n| {
            n.spec
                .iter()
                .flat_map(|s| s.taints.iter().flatten())
                .any(|t| t.key == QUORUM)
        })
        .count()
}

#[tokio::test(start_paused = true)]
async fn a_running_group_on_the_target_blocks_and_nothing_is_stopped() {
    // C23
    let (lab, shop, bank) = two_groups().await;
    user(&lab)
        .apply(
            "hub",
            &user(&lab).failover_manifest("to-west", "shop", "west"),
        )
        .await
        .unwrap();
    let status = user(&lab)
        .failover_ended("to-west")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(status.state, Some(FailoverState::Blocked));
    let check = status.safety_check.unwrap();
    assert!(
        check.conflicts.iter().any(|c| c.contains("bank")),
        "{check:?}"
    );
    assert!(status.message.unwrap().contains("bank"));
    assert_eq!(tainted(&lab).await, 2);
    assert_eq!(lab.guests.places(&shop[0].key()), ["east"]);
    assert_eq!(lab.guests.places(&bank[0].key()), ["west"]);
}

#[tokio::test(start_paused = true)]
async fn force_passes_over_the_conflict_and_removes_the_taints() {
    // C23
    let (lab, shop, bank) = two_groups().await;
    let mut manifest = user(&lab).failover_manifest("to-west", "shop", "west");
    manifest["spec"]["force"] = json!(true);
    user(&lab).apply("hub", &manifest).await.unwrap();
    let status = user(&lab)
        .failover_ended("to-west")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(
        status.state,
        Some(FailoverState::Completed),
        "{:?}",
        status.message
    );
    assert!(status.safety_check.unwrap().forced);
    assert!(tainted(&lab).await < 2, "the member's node is free");
    assert_whole(&lab, "west", &shop).await;
    assert_eq!(lab.guests.places(&bank[0].key()), ["west"]);
}

//! Bad input ends in a condition or a state with its reason and what to do; nothing else suffers.

use farshore_api::failover_request::FailoverState;
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::{FailoverRequest, ProtectionRequest, ProtectionZone};
use farshore_lab::lab::Lab;
use farshore_lab::story::{Vm, eventually};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{ZONE, assert_whole, lab, lab_with_group, lab_with_zone, pass, user};

/// Waits until a zone is not validated for a reason.
async fn zone_refused(lab: &Lab, reason: &str) -> Condition {
    let zones: Api<ProtectionZone> = user(lab).api();
    eventually(reason, || async {
        let conditions = zones.get(ZONE).await?.status.unwrap_or_default().conditions;
        Ok(conditions
            .into_iter()
            .find(|c| c.type_ == "ClustersValidated" && c.status == "False" && c.reason == reason))
    })
    .await
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_missing_or_broken_kubeconfig_is_named_and_its_correction_is_taken_up() {
    let lab = lab().await;
    user(&lab).create_credentials().await.unwrap();
    let secrets: Api<Secret> = user(&lab).api();
    let good = secrets.get("west-kubeconfig").await.unwrap().data.unwrap()["kubeconfig"].clone();
    secrets
        .delete("west-kubeconfig", &Default::default())
        .await
        .unwrap();
    user(&lab)
        .apply("hub", &user(&lab).zone_manifest())
        .await
        .unwrap();
    let missing = zone_refused(&lab, "KubeconfigSecretNotFound").await;
    assert!(
        missing.message.contains("west-kubeconfig"),
        "{}",
        missing.message
    );

    let secret = |text: &str| {
        json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "west-kubeconfig", "namespace": "dr-metro" }, "stringData": { "kubeconfig": text } })
    };
    user(&lab)
        .apply("hub", &secret("not: [a kubeconfig"))
        .await
        .unwrap();
    let broken = zone_refused(&lab, "KubeconfigInvalid").await;
    assert!(broken.message.contains("west"), "{}", broken.message);

    let text = String::from_utf8(good.0).unwrap();
    let token = &lab.cluster("west").token;
    user(&lab)
        .apply("hub", &secret(&text.replace(token.as_str(), "nobody")))
        .await
        .unwrap();
    zone_refused(&lab, "AuthenticationFailed").await;

    user(&lab).apply("hub", &secret(&text)).await.unwrap();
    user(&lab).zone_condition("Ready", "True").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_cluster_is_named_and_taken_up_when_it_answers() {
    let lab = lab().await;
    user(&lab).create_credentials().await.unwrap();
    lab.set_site("west", false).await.unwrap();
    user(&lab)
        .apply("hub", &user(&lab).zone_manifest())
        .await
        .unwrap();
    let refused = zone_refused(&lab, "ClusterUnreachable").await;
    assert!(refused.message.contains("west"), "{}", refused.message);
    lab.set_site("west", true).await.unwrap();
    user(&lab).zone_condition("Ready", "True").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_same_cluster_twice_is_refused() {
    let lab = lab().await;
    user(&lab).create_credentials().await.unwrap();
    let east = lab.kubeconfig("east").unwrap();
    user(&lab).apply("hub", &json!({ "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": "west-kubeconfig", "namespace": "dr-metro" }, "stringData": { "kubeconfig": east } })).await.unwrap();
    user(&lab)
        .apply("hub", &user(&lab).zone_manifest())
        .await
        .unwrap();
    zone_refused(&lab, "SameCluster").await;
}

/// Applies a request that cannot work and returns the condition that says why.
async fn request_refused(lab: &Lab, manifest: &Value, reason: &str) -> Condition {
    user(lab).apply("hub", manifest).await.unwrap();
    let requests: Api<ProtectionRequest> = user(lab).api();
    let name = manifest["metadata"]["name"].as_str().unwrap();
    eventually(reason, || async {
        let status = requests.get(name).await?.status.unwrap_or_default();
        assert_ne!(status.phase, Some(ProtectionPhase::Protected));
        Ok(status
            .conditions
            .into_iter()
            .find(|c| c.type_ == "Validated" && c.status == "False" && c.reason == reason))
    })
    .await
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_vm_that_does_not_exist_waits_for_it() {
    let lab = lab_with_zone().await;
    let vm = Vm::new("shop", "ghost", 1, 16);
    let manifest = user(&lab).protection_manifest(&vm, "east", "Online");
    let refused = request_refused(&lab, &manifest, "VMNotFound").await;
    assert!(
        refused.message.contains("shop/ghost") && refused.message.contains("east"),
        "{}",
        refused.message
    );
    user(&lab).create_vm("east", &vm).await.unwrap();
    user(&lab).protected(&vm).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_storage_class_without_counterpart_is_named() {
    let lab = lab_with_zone().await;
    let policies: Api<farshore_api::DRBDReplicationPolicy> = user(&lab).api();
    let map = Patch::Merge(
        json!({ "spec": { "storageClassMappings": [{ "source": "other", "target": "lab-block" }] } }),
    );
    policies
        .patch("metro-default", &PatchParams::default(), &map)
        .await
        .unwrap();
    let vm = Vm::new("shop", "db01", 1, 16);
    user(&lab).create_vm("east", &vm).await.unwrap();
    let refused = request_refused(
        &lab,
        &user(&lab).protection_manifest(&vm, "east", "Online"),
        "StorageClassNotMapped",
    )
    .await;
    assert!(refused.message.contains("lab-block"), "{}", refused.message);
    assert_eq!(
        lab.guests.places("shop/db01"),
        ["east"],
        "the VM is not disturbed"
    );
    let map = Patch::Merge(
        json!({ "spec": { "storageClassMappings": [{ "source": "lab-block", "target": "lab-block" }] } }),
    );
    policies
        .patch("metro-default", &PatchParams::default(), &map)
        .await
        .unwrap();
    user(&lab).protected(&vm).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn sixteen_disks_are_too_many_and_fifteen_are_not() {
    let lab = lab_with_zone().await;
    let many = Vm::new("shop", "many", 16, 8);
    user(&lab).create_vm("east", &many).await.unwrap();
    let refused = request_refused(
        &lab,
        &user(&lab).protection_manifest(&many, "east", "Online"),
        "TooManyDisks",
    )
    .await;
    for part in [
        "VirtualMachine shop/many has 16 disks; at most 15 are supported",
        "Detach 1",
        "kubectl --context east",
    ] {
        assert!(refused.message.contains(part), "{}", refused.message);
    }
    assert_eq!(lab.guests.places("shop/many"), ["east"]);
    let most = Vm::new("shop", "most", 15, 8);
    user(&lab)
        .protect("east", std::slice::from_ref(&most), "Online")
        .await
        .unwrap();
    pass(2).await;
    assert_whole(&lab, "west", std::slice::from_ref(&most)).await;
}

#[tokio::test(start_paused = true)]
async fn protocol_a_and_an_unknown_source_are_refused_in_words() {
    let lab = lab_with_zone().await;
    let vm = Vm::new("shop", "db01", 1, 16);
    user(&lab).create_vm("east", &vm).await.unwrap();
    let mut manifest = user(&lab).protection_manifest(&vm, "east", "Online");
    manifest["metadata"]["name"] = json!("asynchronous");
    manifest["spec"]["replicationProtocol"] = json!("A");
    user(&lab).apply("hub", &manifest).await.unwrap();
    let requests: Api<ProtectionRequest> = user(&lab).api();
    eventually("protocol A refused", || async {
        let conditions = requests
            .get("asynchronous")
            .await?
            .status
            .unwrap_or_default()
            .conditions;
        Ok(conditions
            .into_iter()
            .find(|c| c.message == "ReplicationProtocolA is not supported yet"))
    })
    .await
    .unwrap();
    let mut manifest = user(&lab).protection_manifest(&vm, "north", "Online");
    manifest["metadata"]["name"] = json!("nowhere");
    let refused = request_refused(&lab, &manifest, "UnknownCluster").await;
    assert!(
        refused
            .message
            .starts_with("spec.sourceCluster \"north\" is not a cluster of ProtectionZone metro"),
        "{}",
        refused.message
    );
}

#[tokio::test(start_paused = true)]
async fn a_second_request_for_one_vm_is_refused_and_the_first_goes_on() {
    let lab = lab_with_zone().await;
    let vm = Vm::new("shop", "db01", 1, 16);
    user(&lab)
        .protect("east", std::slice::from_ref(&vm), "Online")
        .await
        .unwrap();
    let mut manifest = user(&lab).protection_manifest(&vm, "east", "Online");
    manifest["metadata"]["name"] = json!("twin");
    let refused = request_refused(&lab, &manifest, "VMAlreadyProtected").await;
    assert!(refused.message.contains("db01"), "{}", refused.message);
    user(&lab).protected(&vm).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_name_that_does_not_fit_where_it_is_put_is_refused_with_the_limit_and_the_reason() {
    let lab = lab_with_zone().await;
    let vm = Vm::new("shop", "db01", 1, 16);
    let request = user(&lab).protection_manifest(&vm, "east", "Online");
    let group = user(&lab).group_manifest("shop", std::slice::from_ref(&vm));
    for (mut manifest, length, limit) in [
        (request, 64, "63"),
        (group, 64, "63"),
        (user(&lab).zone_manifest(), 61, "60"),
    ] {
        manifest["metadata"]["name"] = json!("n".repeat(length));
        let kind = manifest["kind"].as_str().unwrap();
        let expect = format!("the name of a {kind} has at most {limit} characters");
        super::assert_rule(user(&lab).apply("hub", &manifest).await, &expect);
    }
}

/// Applies a failover that cannot work and returns its last word.
async fn failover_refused(lab: &Lab, manifest: &Value) -> (FailoverState, String) {
    user(lab).apply("hub", manifest).await.unwrap();
    let name = manifest["metadata"]["name"].as_str().unwrap();
    let status = user(lab)
        .failover_ended(name)
        .await
        .unwrap()
        .status
        .unwrap();
    (status.state.unwrap(), status.message.unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn failovers_that_make_no_sense_end_with_the_reason() {
    let (lab, vms) = lab_with_group().await;
    let cases = [
        (
            "to-active",
            "shop",
            "east",
            "spec.targetCluster \"east\" is already the active cluster of ProtectionGroup shop",
        ),
        ("to-nowhere", "shop", "north", "north"),
        (
            "of-nothing",
            "ghosts",
            "west",
            "ProtectionGroup ghosts not found in namespace dr-metro",
        ),
    ];
    for (name, group, target, expect) in cases {
        let (state, message) =
            failover_refused(&lab, &user(&lab).failover_manifest(name, group, target)).await;
        assert_eq!(state, FailoverState::Failed, "{name}");
        assert!(message.contains(expect), "{name}: {message}");
    }
    let mut unplanned = user(&lab).failover_manifest("unplanned", "shop", "west");
    unplanned["spec"]["failoverType"] = json!("unplanned");
    assert_eq!(
        failover_refused(&lab, &unplanned).await.0,
        FailoverState::Failed
    );
    for vm in &vms {
        assert_eq!(lab.guests.places(&vm.key()), ["east"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_failover_of_the_group_waits_for_the_lock() {
    // C18
    let (lab, vms) = lab_with_group().await;
    user(&lab)
        .apply(
            "hub",
            &user(&lab).failover_manifest("first", "shop", "west"),
        )
        .await
        .unwrap();
    let requests: Api<FailoverRequest> = user(&lab).api();
    eventually("the first running", || async {
        let state = requests.get("first").await?.status.and_then(|s| s.state);
        Ok((state == Some(FailoverState::StoppingOnSource)).then_some(()))
    })
    .await
    .unwrap();
    user(&lab)
        .apply(
            "hub",
            &user(&lab).failover_manifest("second", "shop", "west"),
        )
        .await
        .unwrap();
    let held = eventually("the second told that the lock is held", || async {
        let status = requests.get("second").await?.status.unwrap_or_default();
        assert!(
            matches!(status.state, None | Some(FailoverState::Pending)),
            "{status:?}"
        );
        Ok(status
            .conditions
            .into_iter()
            .find(|c| c.type_ == "Locked" && c.reason == "LockHeld"))
    })
    .await
    .unwrap();
    assert!(held.message.contains("first"), "{}", held.message);
    assert_eq!(
        user(&lab)
            .failover_ended("first")
            .await
            .unwrap()
            .status
            .unwrap()
            .state,
        Some(FailoverState::Completed)
    );
    assert_eq!(
        user(&lab)
            .failover_ended("second")
            .await
            .unwrap()
            .status
            .unwrap()
            .state,
        Some(FailoverState::Failed)
    );
    assert_whole(&lab, "west", &vms).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_failover_request_can_be_changed_but_abort_once() {
    let (lab, _) = lab_with_group().await;
    let requests: Api<FailoverRequest> = user(&lab).api();
    let hook = |command: &str| {
        json!({"preFailover": [{"name": "quiesce", "namespace": "shop", "jobTemplate": {"spec": {
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i", "command": [command]}]}},
        }}}]})
    };
    let made = json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "FailoverRequest",
        "metadata": {"name": "to-west"},
        "spec": {"protectionGroupRef": {"name": "shop"}, "targetCluster": "west", "failoverType": "planned",
            "reason": "drill", "timeoutSeconds": 600, "drainTimeoutSeconds": 5, "hooks": hook("sync")},
    });
    let made: FailoverRequest = serde_json::from_value(made).unwrap();
    requests
        .create(&PostParams::default(), &made)
        .await
        .unwrap();
    let edits = [
        json!({"protectionGroupRef": {"name": "other"}}),
        json!({"targetCluster": "east"}),
        json!({"failoverType": "unplanned"}),
        json!({"force": true}),
        json!({"queue": true}),
        json!({"timeoutSeconds": 700}),
        json!({"timeoutSeconds": null}),
        json!({"drainTimeoutSeconds": 6}),
        json!({"reason": "it was not me"}),
        json!({"reason": null}),
        json!({"hooks": null}),
        json!({"hooks": hook("rm")}),
        json!({"hooks": {"postFailover": hook("sync")["preFailover"]}}),
    ];
    let edit = async |spec: serde_json::Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let params = PatchParams::default();
        requests.patch("to-west", &params, &patch).await
    };
    for spec in edits {
        let edited = edit(spec).await;
        super::assert_rule(edited, "FailoverRequest spec is immutable");
    }
    edit(json!({"abort": true})).await.unwrap();
    let edited = edit(json!({"abort": false})).await;
    super::assert_rule(edited, "cannot be taken back");
}

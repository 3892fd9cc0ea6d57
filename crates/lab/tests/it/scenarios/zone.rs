//! Provisioning of a zone.

use farshore_api::{DRBDReplicationPolicy, ProtectionZone, meta};
use farshore_lab::story::{User, eventually, has_condition};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;

use super::{ZONE, assert_whole, lab, lab_with_group, lab_with_zone, pass, refusal, user};

#[tokio::test(start_paused = true)]
async fn a_zone_of_one_or_three_clusters_is_refused() {
    // C1
    let lab = lab().await;
    user(&lab).create_credentials().await.unwrap();
    let mut manifest = user(&lab).zone_manifest();
    let cluster = manifest["spec"]["clusters"][0].clone();
    manifest["spec"]["clusters"] = json!([cluster]);
    assert!(refusal(user(&lab).apply("hub", &manifest).await).contains("spec.clusters"));
    let named = |n: &str| json!({ "name": n, "kubeconfigSecretRef": { "name": "x" } });
    manifest["spec"]["clusters"] = json!([named("a"), named("b"), named("c")]);
    let message = refusal(user(&lab).apply("hub", &manifest).await);
    assert!(
        message.contains("spec.clusters") && message.contains('2'),
        "{message}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_validated_zone_holds_both_clusters_and_has_a_default_policy() {
    // C3, C4, C6
    let lab = lab_with_zone().await;
    let hub_namespaces: Api<Namespace> = Api::all(lab.cluster("hub").admin.clone());
    let uid = hub_namespaces
        .get("dr-metro")
        .await
        .unwrap()
        .metadata
        .uid
        .unwrap();
    for cluster in ["east", "west"] {
        let namespaces: Api<Namespace> = Api::all(lab.cluster(cluster).admin.clone());
        let annotations = namespaces
            .get(meta::WORKLOAD_NAMESPACE)
            .await
            .unwrap()
            .metadata
            .annotations
            .unwrap();
        assert_eq!(
            annotations.get(meta::annotations::OWNER_ZONE_NAMESPACE_UID),
            Some(&uid)
        );
        assert_eq!(
            annotations
                .get(meta::annotations::OWNER_ZONE)
                .map(String::as_str),
            Some(ZONE)
        );
        let asked = lab.cluster(cluster).server.requests();
        assert!(
            asked
                .iter()
                .any(|e| e.resource == "selfsubjectaccessreviews"),
            "{cluster}"
        );
    }
    let policies: Api<DRBDReplicationPolicy> = user(&lab).api();
    assert!(policies.get("metro-default").await.unwrap().spec.is_default);
    let zones: Api<ProtectionZone> = user(&lab).api();
    let status = zones.get(ZONE).await.unwrap().status.unwrap();
    let validated = status
        .conditions
        .iter()
        .find(|c| c.type_ == "ClustersValidated")
        .unwrap();
    assert_eq!(
        (validated.status.as_str(), validated.reason.as_str()),
        ("True", "Validated")
    );
}

#[tokio::test(start_paused = true)]
async fn a_claimed_cluster_is_never_stolen() {
    // C5
    let lab = lab_with_zone().await;
    let second = User::new(&lab, "other");
    second.create_credentials().await.unwrap();
    let before: Vec<_> = annotations(&lab).await;
    second.apply("hub", &second.zone_manifest()).await.unwrap();
    let zones: Api<ProtectionZone> = second.api();
    let refused = eventually("the second zone refused", || async {
        let conditions = zones
            .get("other")
            .await?
            .status
            .unwrap_or_default()
            .conditions;
        Ok(conditions
            .into_iter()
            .find(|c| c.type_ == "ClustersValidated" && c.reason == "ClusterAlreadyClaimed"))
    })
    .await
    .unwrap();
    assert_eq!(refused.status, "False");
    assert!(refused.message.contains(ZONE), "{}", refused.message);
    pass(600).await;
    assert_eq!(before, annotations(&lab).await);
    user(&lab).zone_condition("Ready", "True").await.unwrap();
}

async fn annotations(
    lab: &farshore_lab::lab::Lab,
) -> Vec<Option<std::collections::BTreeMap<String, String>>> {
    let mut all = Vec::new();
    for cluster in ["east", "west"] {
        let namespaces: Api<Namespace> = Api::all(lab.cluster(cluster).admin.clone());
        all.push(
            namespaces
                .get(meta::WORKLOAD_NAMESPACE)
                .await
                .unwrap()
                .metadata
                .annotations,
        );
    }
    all
}

#[tokio::test(start_paused = true)]
async fn a_manual_edit_of_a_kind_is_reverted() {
    // C7
    let lab = lab_with_zone().await;
    for cluster in ["hub", "east", "west"] {
        let crds: Api<CustomResourceDefinition> = Api::all(lab.cluster(cluster).admin.clone());
        let name = "protectiongroups.siterecovery.trilio.io";
        let edit = Patch::Merge(json!({ "spec": { "names": { "shortNames": ["mine"] } } }));
        crds.patch(name, &PatchParams::default(), &edit)
            .await
            .unwrap();
        eventually(&format!("the edit reverted on {cluster}"), || async {
            let crd = crds.get(name).await?;
            let reverted = crd.spec.names.short_names == Some(vec!["pg".to_string()]);
            let managers = crd.metadata.managed_fields.unwrap_or_default();
            Ok((reverted
                && managers
                    .iter()
                    .any(|m| m.manager.as_deref() == Some(meta::managers::ZONE)))
            .then_some(()))
        })
        .await
        .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn credentials_stay_in_their_secrets() {
    let lab = lab_with_zone().await;
    let token = lab.cluster("east").token.clone();
    let zones: Api<ProtectionZone> = user(&lab).api();
    let zone = serde_json::to_string(&zones.get(ZONE).await.unwrap()).unwrap();
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::all(lab.cluster("hub").admin.clone());
    let events =
        serde_json::to_string(&events.list(&ListParams::default()).await.unwrap().items).unwrap();
    assert!(!zone.contains(&token) && !events.contains(&token));
}

#[tokio::test(start_paused = true)]
async fn a_zone_without_protected_vms_can_be_deleted_and_made_again() {
    let lab = lab_with_zone().await;
    let zones: Api<ProtectionZone> = user(&lab).api();
    zones.delete(ZONE, &Default::default()).await.unwrap();
    eventually("the zone gone", || async {
        Ok(zones.get_opt(ZONE).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    for annotations in annotations(&lab).await {
        assert!(
            !annotations
                .unwrap_or_default()
                .contains_key(meta::annotations::OWNER_ZONE)
        );
    }
    user(&lab).create_zone().await.unwrap();
    let zone = zones.get(ZONE).await.unwrap();
    assert!(has_condition(
        &zone.status.unwrap().conditions,
        "ClustersValidated",
        "True"
    ));
}

#[tokio::test(start_paused = true)]
async fn swapped_kubeconfigs_are_refused_and_nothing_moves() {
    let (lab, vms) = lab_with_group().await;
    let store = async |east: &str, west: &str| {
        for (name, cluster) in [("east", east), ("west", west)] {
            let secret = json!({ "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": format!("{name}-kubeconfig"), "namespace": "dr-metro" },
                "stringData": { "kubeconfig": lab.kubeconfig(cluster).unwrap() } });
            user(&lab).apply("hub", &secret).await.unwrap();
        }
    };
    for (east, west, process) in [
        ("west", "east", "none"),
        ("east", "east", "none"),
        ("west", "east", "tsr-manager"),
    ] {
        store(east, west).await;
        if process != "none" {
            lab.inject(&format!("restart {process}").parse().unwrap())
                .await
                .unwrap();
        }
        user(&lab)
            .zone_condition("ClustersValidated", "False")
            .await
            .unwrap();
        let zones: Api<ProtectionZone> = user(&lab).api();
        let conditions = zones.get(ZONE).await.unwrap().status.unwrap().conditions;
        let told = conditions
            .iter()
            .find(|c| c.type_ == "ClustersValidated")
            .unwrap();
        assert!(
            told.message.contains("opens another cluster"),
            "{}",
            told.message
        );
        pass(120).await;
        for vm in &vms {
            assert_eq!(lab.guests.places(&vm.key()), ["east"], "{east} {west}");
        }
        store("east", "west").await;
        user(&lab).zone_condition("Ready", "True").await.unwrap();
    }
    user(&lab).group_ready("shop").await.unwrap();
    user(&lab)
        .fail_over("to-west", "shop", "west")
        .await
        .unwrap();
    assert_whole(&lab, "west", &vms).await;
}

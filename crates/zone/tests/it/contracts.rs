//! What the source documents promise about a zone.

use farshore_api::replication_policy::DRBDReplicationPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::support::{World, condition, phase, status};

#[tokio::test(start_paused = true)]
async fn c1_a_zone_with_one_or_three_clusters_is_refused() {
    let world = World::running().await;
    for clusters in [&["east"][..], &["east", "west", "north"][..]] {
        let error = world
            .try_zone("dr-metro1", "metro1", clusters)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("spec.clusters")
                && (error.contains("at least 2") || error.contains("at most 2")),
            "{error}"
        );
    }
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
}

#[tokio::test(start_paused = true)]
async fn c3_probes_ask_by_self_subject_access_reviews() {
    let world = World::new(true).await;
    for cluster in ["east", "west"] {
        let token = world.servers[cluster].issue_token("limited", &[]);
        world
            .kubeconfig("dr-metro1", cluster, cluster, &token)
            .await;
    }
    world.start(&world.servers["hub"].admin_token());
    world.served().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world
        .refused("dr-metro1", "metro1", "InsufficientPermissions")
        .await;
    for cluster in ["east", "west"] {
        let asked = world.servers[cluster].request_log().entries();
        let reviews = asked
            .iter()
            .filter(|e| e.resource == "selfsubjectaccessreviews" && e.user == "limited")
            .count();
        assert!(reviews > 50, "{reviews} on {cluster}");
    }
}

#[tokio::test(start_paused = true)]
async fn c4_both_workload_namespaces_carry_both_owner_annotations() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    let zone = world.ready().await;
    let uid = world.uid("dr-metro1").await;
    for cluster in ["east", "west"] {
        assert_eq!(
            world.claim(cluster).await,
            Some(("metro1".into(), uid.clone())),
            "{cluster}"
        );
    }
    let validated = condition(&zone, "ClustersValidated").unwrap();
    assert_eq!(
        (
            validated.status.as_str(),
            validated.reason.as_str(),
            phase(&zone)
        ),
        ("True", "Validated", "Ready")
    );
}

#[tokio::test(start_paused = true)]
async fn c5_a_second_zone_is_told_who_has_the_cluster_and_the_claim_does_not_change() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    let before = (world.claim("east").await, world.claim("west").await);
    world.namespace("dr-metro2").await;
    for cluster in ["east", "west"] {
        world
            .kubeconfig(
                "dr-metro2",
                cluster,
                cluster,
                &world.servers[cluster].admin_token(),
            )
            .await;
    }
    world.zone("dr-metro2", "metro2", &["east", "west"]).await;
    let refusal = world
        .refused("dr-metro2", "metro2", "ClusterAlreadyClaimed")
        .await;
    assert!(
        refusal.message.contains("ProtectionZone metro1"),
        "{}",
        refusal.message
    );
    assert!(
        refusal
            .message
            .contains("kubectl --context east annotate namespace trilio-site-recovery-system"),
        "{}",
        refusal.message
    );
    assert_eq!(
        (world.claim("east").await, world.claim("west").await),
        before
    );
    assert_eq!(
        status(&world.get_zone("dr-metro1", "metro1").await, "Ready"),
        "True"
    );
}

#[tokio::test(start_paused = true)]
async fn c6_the_default_policy_exists_and_what_users_change_in_it_stays() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    let policies: Api<DRBDReplicationPolicy> = world.api("hub", "dr-metro1");
    assert!(
        policies
            .get("metro1-default")
            .await
            .unwrap()
            .spec
            .is_default
    );
    let change = json!({"spec": {"resyncRate": {"minKiBps": 1234}}});
    policies
        .patch(
            "metro1-default",
            &PatchParams::default(),
            &Patch::Merge(&change),
        )
        .await
        .unwrap();
    world.pass(std::time::Duration::from_secs(150)).await;
    assert_eq!(
        policies
            .get("metro1-default")
            .await
            .unwrap()
            .spec
            .resync_rate
            .min_kibps,
        1234
    );
}

#[tokio::test(start_paused = true)]
async fn c7_a_manual_edit_of_a_definition_is_reverted_on_every_cluster() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    for cluster in ["hub", "east", "west"] {
        let crds: Api<CustomResourceDefinition> = Api::all(world.client(cluster));
        let name = "protectiongroups.siterecovery.trilio.io";
        let good = crds.get(name).await.unwrap().spec;
        let edit = json!({"spec": {"names": {"shortNames": ["mine"]}}});
        crds.patch(
            name,
            &PatchParams {
                field_manager: Some("somebody".into()),
                ..PatchParams::default()
            },
            &Patch::Merge(&edit),
        )
        .await
        .unwrap();
        let started = tokio::time::Instant::now();
        let back = world
            .until("the revert", || async {
                crds.get(name).await.ok().filter(|crd| crd.spec == good)
            })
            .await;
        assert!(
            started.elapsed().as_secs() < 60,
            "{cluster}: {:?}",
            started.elapsed()
        );
        let managers = back.metadata.managed_fields.unwrap();
        assert!(managers.iter().any(|m| m.manager.as_deref()
            == Some("site-recovery-pz-controller")
            && m.operation.as_deref() == Some("Apply")));
        let site = if cluster == "hub" {
            "the hub".to_owned()
        } else {
            format!("cluster {cluster}")
        };
        world
            .until("the event", || async {
                let events = world.events("dr-metro1").await;
                events.into_iter().find(|e| {
                    e.reason.as_deref() == Some("CRDReverted")
                        && e.note
                            .as_ref()
                            .is_some_and(|n| n.contains(&site) && n.contains(name))
                })
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_is_deleted_comes_back_everywhere() {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    for cluster in ["hub", "east"] {
        let crds: Api<CustomResourceDefinition> = Api::all(world.client(cluster));
        crds.delete("rpoevents.siterecovery.trilio.io", &Default::default())
            .await
            .unwrap();
        world
            .until("the definition", || async {
                let live = crds
                    .get_opt("rpoevents.siterecovery.trilio.io")
                    .await
                    .unwrap();
                live.filter(|crd| crd.metadata.deletion_timestamp.is_none())
            })
            .await;
    }
}

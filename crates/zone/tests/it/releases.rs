//! What Helm sees of the stacks that the controller installed.

use farshore_api::ProtectionZone;
use farshore_api::meta::WORKLOAD_NAMESPACE;
use farshore_chart::record::Record;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::World;

const MANAGER: (&str, &str, &str) = ("hub", "dr-metro1", "site-recovery-manager");
const EAST: (&str, &str, &str) = ("east", WORKLOAD_NAMESPACE, "site-recovery");
const WEST: (&str, &str, &str) = ("west", WORKLOAD_NAMESPACE, "site-recovery");

/// The records of a release as `helm history` finds them: by their labels, the first first.
async fn history(world: &World, (cluster, namespace, release): (&str, &str, &str)) -> Vec<Record> {
    let secrets: Api<Secret> = world.api(cluster, namespace);
    let labels = format!("owner=helm,name={release}");
    let found = secrets
        .list(&ListParams::default().labels(&labels))
        .await
        .unwrap();
    let mut all: Vec<Record> = found
        .into_iter()
        .map(|secret| Record::read(&serde_json::to_value(secret).unwrap()).unwrap())
        .collect();
    all.sort_by_key(Record::revision);
    all
}

fn told(history: &[Record]) -> Vec<(u64, bool)> {
    history
        .iter()
        .map(|r| (r.revision(), r.is_deployed()))
        .collect()
}

fn config_map(name: &str, zone: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": WORKLOAD_NAMESPACE,
            "labels": { "siterecovery.trilio.io/zone": zone },
        },
    })
}

async fn ready() -> World {
    let world = World::running().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    world
}

#[tokio::test(start_paused = true)]
async fn helm_finds_one_deployed_revision_of_each_stack_with_all_its_objects() {
    let world = ready().await;
    for release in [MANAGER, EAST, WEST] {
        let history = history(&world, release).await;
        assert_eq!(told(&history), [(1, true)], "{release:?}");
        let manifests = history[0].manifests().unwrap();
        assert!(manifests.len() > 3, "{manifests:?}");
        for manifest in &manifests {
            let live = world.dynamic(release.0, manifest);
            let name = manifest["metadata"]["name"].as_str().unwrap();
            assert!(live.get_opt(name).await.unwrap().is_some(), "{manifest}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_is_a_new_revision_and_takes_away_what_the_chart_has_no_more() {
    let world = ready().await;
    // As if an earlier version of the chart had installed two more objects, one of which somebody has
    // since made his own.
    let maps: Api<ConfigMap> = world.api(EAST.0, EAST.1);
    for (name, zone) in [("old", "metro1"), ("taken", "another")] {
        world.make(EAST.0, config_map(name, zone)).await;
    }
    let secrets: Api<Secret> = world.api(EAST.0, EAST.1);
    let record = history(&world, EAST).await.remove(0);
    let mut secret = record.secret();
    rewrite(&mut secret, |manifest| {
        for name in ["old", "taken"] {
            manifest.push_str(&format!("---\n{}\n", config_map(name, "metro1")));
        }
    });
    secrets
        .patch(
            &record.secret_name(),
            &PatchParams::default(),
            &Patch::Merge(json!({ "data": secret["data"] })),
        )
        .await
        .unwrap();
    world
        .until("the second revision", || async {
            (told(&history(&world, EAST).await) == [(1, false), (2, true)]).then_some(())
        })
        .await;
    assert!(maps.get_opt("old").await.unwrap().is_none());
    assert!(maps.get_opt("taken").await.unwrap().is_some());
    assert_eq!(told(&history(&world, WEST).await), [(1, true)]);

    // A controller that died between the two writes left both deployed.
    secrets
        .patch(
            &record.secret_name(),
            &PatchParams::default(),
            &Patch::Merge(json!({ "data": record.secret()["data"] })),
        )
        .await
        .unwrap();
    world
        .until("one deployed revision", || async {
            (told(&history(&world, EAST).await) == [(1, false), (2, true)]).then_some(())
        })
        .await;
}

/// Changes the manifest inside a record's Secret.
fn rewrite(secret: &mut Value, change: impl Fn(&mut String)) {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use std::io::{Read, Write};
    let packed = BASE64_STANDARD
        .decode(secret["data"]["release"].as_str().unwrap())
        .unwrap();
    let packed = BASE64_STANDARD.decode(packed).unwrap();
    let mut json = String::new();
    flate2::read::GzDecoder::new(packed.as_slice())
        .read_to_string(&mut json)
        .unwrap();
    let mut release: Value = serde_json::from_str(&json).unwrap();
    let mut manifest = release["manifest"].as_str().unwrap().to_owned();
    change(&mut manifest);
    release["manifest"] = manifest.into();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(release.to_string().as_bytes()).unwrap();
    let inner = BASE64_STANDARD.encode(packed.finish().unwrap());
    secret["data"]["release"] = BASE64_STANDARD.encode(inner).into();
}

#[tokio::test(start_paused = true)]
async fn a_stack_that_helm_uninstalled_is_installed_again() {
    let world = ready().await;
    let record = history(&world, EAST).await.remove(0);
    for manifest in record.manifests().unwrap().iter().rev() {
        let name = manifest["metadata"]["name"].as_str().unwrap();
        let live = world.dynamic(EAST.0, manifest);
        live.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let secrets: Api<Secret> = world.api(EAST.0, EAST.1);
    secrets
        .delete(&record.secret_name(), &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("a first revision", || async {
            (told(&history(&world, EAST).await) == [(1, true)]).then_some(())
        })
        .await;
    for manifest in record.manifests().unwrap() {
        let live = world.dynamic(EAST.0, &manifest);
        let name = manifest["metadata"]["name"].as_str().unwrap();
        assert!(live.get_opt(name).await.unwrap().is_some(), "{manifest}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_zone_leaves_no_release_behind() {
    let world = ready().await;
    let zones: Api<ProtectionZone> = world.api("hub", "dr-metro1");
    zones.delete("metro1", &Default::default()).await.unwrap();
    world
        .until("the zone is gone", || async {
            zones
                .get_opt("metro1")
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
    for release in [MANAGER, EAST, WEST] {
        assert!(history(&world, release).await.is_empty(), "{release:?}");
    }
    let left: Api<Secret> = world.api("hub", "dr-metro1");
    let left = left.list(&ListParams::default()).await.unwrap();
    let mut names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
    names.retain(|name| !name.contains("token"));
    assert_eq!(names, ["east-kubeconfig", "west-kubeconfig"]);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_nobody_can_read_is_named_with_the_way_out() {
    let world = ready().await;
    let secrets: Api<Secret> = world.api(EAST.0, EAST.1);
    let name = "sh.helm.release.v1.site-recovery.v1";
    let broken = json!({ "data": { "release": "AAAA" } });
    secrets
        .patch(name, &PatchParams::default(), &Patch::Merge(broken))
        .await
        .unwrap();
    let zone = world
        .zone_until("dr-metro1", "metro1", "the failure is told", |zone| {
            crate::support::condition(zone, "WorkloadsDeployed")
                .is_some_and(|c| c.status == "False")
        })
        .await;
    let told = crate::support::condition(&zone, "WorkloadsDeployed").unwrap();
    assert!(
        told.message.contains(name) && told.message.contains("delete it"),
        "{}",
        told.message
    );
    secrets
        .delete(name, &DeleteParams::default())
        .await
        .unwrap();
    world.ready().await;
    assert_eq!(told_of(&world).await, [(1, true)]);
}

async fn told_of(world: &World) -> Vec<(u64, bool)> {
    told(&history(world, EAST).await)
}

use std::sync::{Arc, Mutex};
use std::time::Duration;

use farshore_runtime::controller::{self, During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::triggers;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::support;

type Times = Arc<Mutex<Vec<(String, u64)>>>;

/// Notes when it is called; fails for the object `bad`.
struct Probe(Times, Instant);

impl Reconciler<ConfigMap> for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    async fn reconcile(&self, object: Arc<ConfigMap>) -> Result<Requeue, ReconcileError> {
        self.0
            .lock()
            .unwrap()
            .push((object.name_any(), self.1.elapsed().as_secs()));
        match object.name_any().as_str() {
            "bad" => Err(ReconcileError::new("it is bad")).during("looking"),
            "again" => Ok(Requeue::After(Duration::from_secs(100))),
            _ => Ok(Requeue::Change),
        }
    }
}

fn named(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn of(times: &Times, name: &str) -> Vec<u64> {
    times
        .lock()
        .unwrap()
        .iter()
        .filter(|(n, _)| n == name)
        .map(|(_, at)| *at)
        .collect()
}

#[tokio::test(start_paused = true)]
async fn errors_are_retried_with_growing_pauses_and_one_object_does_not_hold_up_another() {
    let server = support::server();
    let process = support::process(&server, "pod");
    let api: Api<ConfigMap> = Api::default_namespaced(process.client.clone());
    for name in ["bad", "good", "again"] {
        api.create(&PostParams::default(), &named(name))
            .await
            .unwrap();
    }
    let times = Times::default();
    let probe = Probe(times.clone(), Instant::now());
    let run = {
        let (process, api) = (process.clone(), api.clone());
        tokio::spawn(async move {
            controller::run(
                &process,
                api,
                watcher::Config::default(),
                probe,
                futures::stream::pending().boxed(),
                2,
            )
            .await
        })
    };
    sleep(Duration::from_secs(250)).await;
    assert_eq!(of(&times, "bad"), [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
    assert_eq!(of(&times, "good"), [0]);
    assert_eq!(of(&times, "again"), [0, 100, 200]);
    process.shutdown.cancel();
    run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_object_triggers_also_after_an_outage_in_which_it_vanished() {
    let server = support::server();
    let process = support::process(&server, "pod");
    let maps: Api<ConfigMap> = Api::default_namespaced(process.client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(process.client.clone());
    maps.create(&PostParams::default(), &named("good"))
        .await
        .unwrap();
    secrets
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "s"}})).unwrap(),
        )
        .await
        .unwrap();
    let times = Times::default();
    let probe = Probe(times.clone(), Instant::now());
    let triggers = triggers::refs(
        secrets.clone(),
        watcher::Config::default(),
        |_: &Secret| vec![ObjectRef::new("good").within("default")],
        process.shutdown.clone(),
    );
    let run = {
        let (process, maps) = (process.clone(), maps.clone());
        tokio::spawn(async move {
            controller::run(
                &process,
                maps,
                watcher::Config::default(),
                probe,
                triggers,
                1,
            )
            .await
        })
    };
    sleep(Duration::from_secs(5)).await;
    let before = of(&times, "good").len();
    server.set_down(true);
    sleep(Duration::from_secs(60)).await;
    server.compact();
    server.set_down(false);
    // Only now: a server that is down takes no deletes; the watches have not come back yet.
    secrets
        .delete("s", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(of(&times, "good").len() > before);
    process.shutdown.cancel();
    run.await.unwrap();
}

/// Looks at most every two seconds, and notes in milliseconds when it did.
struct Paced(Times, Instant);

impl Reconciler<ConfigMap> for Paced {
    fn name(&self) -> &'static str {
        "paced"
    }

    fn pace(&self, object: &ConfigMap) -> Duration {
        Duration::from_secs(if object.name_any() == "urgent" { 0 } else { 2 })
    }

    async fn reconcile(&self, object: Arc<ConfigMap>) -> Result<Requeue, ReconcileError> {
        let at = self.1.elapsed().as_millis().try_into().unwrap();
        self.0.lock().unwrap().push((object.name_any(), at));
        Ok(Requeue::Change)
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changes_without_pause_is_looked_at_in_its_pace_and_once_more_at_the_end() {
    let server = support::server();
    let process = support::process(&server, "pod");
    let api: Api<ConfigMap> = Api::default_namespaced(process.client.clone());
    for name in ["busy", "urgent", "calm"] {
        let post = PostParams::default();
        api.create(&post, &named(name)).await.unwrap();
    }
    let times = Times::default();
    let paced = Paced(times.clone(), Instant::now());
    let changes = async {
        for n in 0..50 {
            sleep(Duration::from_millis(100)).await;
            let change = json!({"data": {"n": n.to_string()}});
            let patch = kube::api::Patch::Merge(&change);
            let params = kube::api::PatchParams::default();
            api.patch("busy", &params, &patch).await.unwrap();
            api.patch("urgent", &params, &patch).await.unwrap();
        }
        sleep(Duration::from_secs(60)).await;
        process.shutdown.cancel();
    };
    let none = futures::stream::pending().boxed();
    let run = controller::run(
        &process,
        api.clone(),
        watcher::Config::default(),
        paced,
        none,
        4,
    );
    futures::join!(changes, run);
    // The last change comes after 5 s; the look that is due after it sees it.
    let looks = of(&times, "busy");
    assert_eq!(looks.len(), 4, "{looks:?}");
    let apart: Vec<u64> = looks.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(
        apart.iter().all(|ms| (2000..2010).contains(ms)),
        "{looks:?}"
    );
    assert_eq!(of(&times, "calm").len(), 1);
    assert_eq!(of(&times, "urgent").len(), 51);
}

//! Watches: order, bookmarks, selectors, expiry, streaming lists, broken connections.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::support::{client, server};

fn config_map(name: &str, tier: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"tier": tier}}})).unwrap()
}

fn show(event: &WatchEvent<ConfigMap>) -> String {
    match event {
        WatchEvent::Added(o) => format!("+{}", o.name_any()),
        WatchEvent::Modified(o) => format!("~{}", o.name_any()),
        WatchEvent::Deleted(o) => format!("-{}", o.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".into(),
        WatchEvent::Error(e) => format!("error {}", e.code),
    }
}

async fn watch(api: &Api<ConfigMap>, params: &WatchParams, version: &str) -> Vec<String> {
    let stream = api.watch(params, version).await.unwrap();
    stream.map_ok(|e| show(&e)).try_collect().await.unwrap()
}

async fn relabel(api: &Api<ConfigMap>, name: &str, tier: &str) -> ConfigMap {
    api.patch(
        name,
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"labels": {"tier": tier}}})),
    )
    .await
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn objects_enter_and_leave_a_selection() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let first = api
        .create(&PostParams::default(), &config_map("a", "gold"))
        .await
        .unwrap();
    relabel(&api, "a", "iron").await;
    relabel(&api, "a", "gold").await;
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let version = first.resource_version().unwrap();
    let gold = WatchParams::default()
        .labels("tier=gold")
        .timeout(5)
        .disable_bookmarks();
    assert_eq!(watch(&api, &gold, &version).await, ["-a", "+a", "-a"]);
    let iron = WatchParams::default()
        .labels("tier=iron")
        .timeout(5)
        .disable_bookmarks();
    assert_eq!(watch(&api, &iron, &version).await, ["+a", "-a"]);
    let named = WatchParams::default()
        .fields("metadata.name=b")
        .timeout(5)
        .disable_bookmarks();
    assert!(watch(&api, &named, &version).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deletion_carries_its_own_revision() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let made = api
        .create(&PostParams::default(), &config_map("a", "x"))
        .await
        .unwrap();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let mut events = api
        .watch(&WatchParams::default(), &made.resource_version().unwrap())
        .await
        .unwrap()
        .boxed();
    match events.try_next().await.unwrap().unwrap() {
        WatchEvent::Deleted(o) => {
            assert_eq!(o.resource_version().unwrap(), server.revision().to_string())
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_at_the_end() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let start = tokio::time::Instant::now();
    let seen = watch(
        &api,
        &WatchParams::default().timeout(150),
        &server.revision().to_string(),
    )
    .await;
    assert_eq!(seen, ["bookmark", "bookmark", "bookmark"]);
    assert_eq!(start.elapsed().as_secs(), 150);
}

#[tokio::test(start_paused = true)]
async fn a_version_older_than_the_history_is_expired_inside_the_stream() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let made = api
        .create(&PostParams::default(), &config_map("a", "x"))
        .await
        .unwrap();
    relabel(&api, "a", "y").await;
    server.compact();
    assert_eq!(
        watch(
            &api,
            &WatchParams::default(),
            &made.resource_version().unwrap()
        )
        .await,
        ["error 410"]
    );
}

/// Follows a watcher into a list of readable events.
fn follow(client: Client, config: watcher::Config) -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (tx, rx) = tokio::sync::mpsc::unbounded_channel();
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    tokio::spawn(async move {
        let mut events = watcher(api, config).default_backoff().boxed();
        while let Some(event) = events.next().await {
            let text = match event {
                Ok(watcher::Event::Init) => "init".into(),
                Ok(watcher::Event::InitApply(o)) => format!("={}", o.name_any()),
                Ok(watcher::Event::InitDone) => "done".into(),
                Ok(watcher::Event::Apply(o)) => format!("+{}", o.name_any()),
                Ok(watcher::Event::Delete(o)) => format!("-{}", o.name_any()),
                Err(_) => "error".to_owned(),
            };
            if tx.send(text).is_err() {
                break;
            }
        }
    });
    rx
}

async fn expect(rx: &mut tokio::sync::mpsc::UnboundedReceiver<String>, wanted: &[&str]) {
    for want in wanted {
        assert_eq!(rx.recv().await.as_deref(), Some(*want));
    }
}

#[tokio::test(start_paused = true)]
async fn a_watcher_recovers_from_an_expired_version() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    api.create(&PostParams::default(), &config_map("a", "x"))
        .await
        .unwrap();
    let mut rx = follow(client(&server), watcher::Config::default());
    expect(&mut rx, &["init", "=a", "done"]).await;
    server.set_down(true);
    expect(&mut rx, &["error"]).await;
    server.set_down(false);
    // What happened meanwhile is out of the history before the watcher comes back.
    api.create(&PostParams::default(), &config_map("b", "x"))
        .await
        .unwrap();
    server.compact();
    let mut seen = Vec::new();
    while seen.last().map(String::as_str) != Some("done") {
        seen.push(rx.recv().await.unwrap());
    }
    assert_eq!(
        seen[seen.len() - 4..],
        ["init", "=a", "=b", "done"],
        "{seen:?}"
    );
    api.delete("a", &DeleteParams::default()).await.unwrap();
    expect(&mut rx, &["-a"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_gives_what_is_there_and_goes_on() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    api.create(&PostParams::default(), &config_map("a", "x"))
        .await
        .unwrap();
    let mut rx = follow(
        client(&server),
        watcher::Config::default().streaming_lists(),
    );
    expect(&mut rx, &["init", "=a", "done"]).await;
    api.create(&PostParams::default(), &config_map("b", "x"))
        .await
        .unwrap();
    expect(&mut rx, &["+b"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_refuses_requests_and_a_slow_one_answers_late() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    server.set_down(true);
    assert!(
        !matches!(
            api.list(&Default::default()).await,
            Err(kube::Error::Api(_)) | Ok(_)
        ),
        "no answer at all"
    );
    server.set_down(false);
    server.set_latency(Duration::from_secs(2));
    let start = tokio::time::Instant::now();
    api.list(&Default::default()).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 2);
}

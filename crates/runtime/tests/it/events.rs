use std::time::Duration;

use farshore_core::Note;
use farshore_runtime::events::Recorder;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::Api;
use kube::api::{ListParams, PostParams};

use crate::support;

#[tokio::test(start_paused = true)]
async fn the_same_note_again_counts_up_one_event() {
    let server = support::server();
    let process = support::process(&server, "pod-1");
    let maps: Api<ConfigMap> = Api::default_namespaced(process.client.clone());
    let about = maps
        .create(
            &PostParams::default(),
            &serde_json::from_value(serde_json::json!({"metadata": {"name": "map"}})).unwrap(),
        )
        .await
        .unwrap();
    let recorder = Recorder::new(
        process.client.clone(),
        "controller",
        &process.identity,
        process.clock.clone(),
    );
    let events = || async {
        let api: Api<Event> = Api::default_namespaced(process.client.clone());
        api.list(&ListParams::default()).await.unwrap().items
    };
    let note = Note::warning("Broken", "it is broken");
    recorder.publish(&about, &note).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    recorder.publish(&about, &note).await;
    let all = events().await;
    assert_eq!(all.len(), 1);
    let event = &all[0];
    assert_eq!(event.count, Some(2));
    let (first, last) = (&event.first_timestamp, &event.last_timestamp);
    let apart = first.as_ref().zip(last.as_ref()).map(|(a, b)| b.0 - a.0);
    assert_eq!(apart.map(|a| a.get_seconds()), Some(60));
    assert_eq!(
        (
            event.type_.as_deref(),
            event.reason.as_deref(),
            event.message.as_deref()
        ),
        (Some("Warning"), Some("Broken"), Some("it is broken"))
    );
    assert_eq!(event.involved_object.name.as_deref(), Some("map"));
    assert_eq!(event.reporting_instance.as_deref(), Some("pod-1"));
    recorder
        .publish(&about, &Note::normal("Mended", "it works"))
        .await;
    assert_eq!(events().await.len(), 2);
    tokio::time::sleep(Duration::from_secs(700)).await;
    recorder.publish(&about, &note).await;
    assert_eq!(
        events().await.len(),
        3,
        "after 10 quiet minutes it is said anew"
    );
}

#[tokio::test(start_paused = true)]
async fn events_of_one_second_are_told_in_order() {
    let server = support::server();
    let process = support::process(&server, "pod-1");
    let recorder = Recorder::new(
        process.client.clone(),
        "controller",
        &process.identity,
        process.clock.clone(),
    );
    let about = ConfigMap {
        metadata: serde_json::from_value(
            serde_json::json!({"name": "map", "namespace": "default"}),
        )
        .unwrap(),
        ..ConfigMap::default()
    };
    let told = ["Zero", "Yes", "Alpha", "Middle"];
    for reason in told {
        recorder
            .publish(&about, &Note::normal(reason, "it is so"))
            .await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let api: Api<Event> = Api::default_namespaced(process.client.clone());
    let all = api.list(&ListParams::default()).await.unwrap().items;
    let reasons: Vec<_> = all.iter().filter_map(|e| e.reason.as_deref()).collect();
    assert_eq!(reasons, told);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_not_fatal() {
    let server = support::server();
    let process = support::process(&server, "pod-1");
    let recorder = Recorder::new(
        process.client.clone(),
        "controller",
        &process.identity,
        process.clock.clone(),
    );
    server.set_down(true);
    recorder
        .publish(&ConfigMap::default(), &Note::normal("A", "b"))
        .await;
}

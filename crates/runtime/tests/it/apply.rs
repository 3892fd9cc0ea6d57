use farshore_runtime::apply::{self, Outcome};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::support;

fn map(data: &[(&str, &str)]) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some("map".into()),
            ..ObjectMeta::default()
        },
        data: Some(
            data.iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect(),
        ),
        ..ConfigMap::default()
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_as_wanted_is_not_sent_again() {
    let server = support::server();
    let api: Api<ConfigMap> = Api::default_namespaced(support::client(&server));
    assert_eq!(
        apply::ensure(&api, "me", &map(&[("a", "1"), ("b", "2")]))
            .await
            .unwrap(),
        Outcome::Created
    );
    let mark = server.request_log().mark();
    assert_eq!(
        apply::ensure(&api, "me", &map(&[("a", "1"), ("b", "2")]))
            .await
            .unwrap(),
        Outcome::Unchanged
    );
    assert_eq!(server.request_log().writes_since(mark), []);
    assert_eq!(
        apply::ensure(&api, "me", &map(&[("a", "3"), ("b", "2")]))
            .await
            .unwrap(),
        Outcome::Changed
    );
    assert_eq!(
        api.get("map").await.unwrap().data,
        map(&[("a", "3"), ("b", "2")]).data
    );
}

#[tokio::test(start_paused = true)]
async fn a_field_that_is_no_longer_wanted_goes_and_those_of_others_stay() {
    let server = support::server();
    let api: Api<ConfigMap> = Api::default_namespaced(support::client(&server));
    apply::ensure(&api, "me", &map(&[("a", "1"), ("b", "2")]))
        .await
        .unwrap();
    apply::merge(&api, "map", "other", &json!({"data": {"c": "3"}}))
        .await
        .unwrap();
    assert_eq!(
        apply::ensure(&api, "me", &map(&[("a", "1")]))
            .await
            .unwrap(),
        Outcome::Changed
    );
    assert_eq!(
        api.get("map").await.unwrap().data,
        map(&[("a", "1"), ("c", "3")]).data
    );
    let mark = server.request_log().mark();
    assert_eq!(
        apply::ensure(&api, "me", &map(&[("a", "1")]))
            .await
            .unwrap(),
        Outcome::Unchanged
    );
    assert_eq!(server.request_log().writes_since(mark), []);
}

#[tokio::test(start_paused = true)]
async fn defaults_that_the_server_adds_are_no_difference() {
    let server = support::server();
    let api: Api<Pod> = Api::default_namespaced(support::client(&server));
    let pod: Pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "env": [{"name": "E", "value": "1"}]}], "tolerations": [{"operator": "Exists"}]},
    }))
    .unwrap();
    assert_eq!(
        apply::ensure(&api, "me", &pod).await.unwrap(),
        Outcome::Created
    );
    let mark = server.request_log().mark();
    assert_eq!(
        apply::ensure(&api, "me", &pod).await.unwrap(),
        Outcome::Unchanged
    );
    assert_eq!(server.request_log().writes_since(mark), []);
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_only_when_it_says_something_new() {
    let server = support::server();
    let api: Api<Pod> = Api::default_namespaced(support::client(&server));
    let pod: Pod = serde_json::from_value(
        json!({"metadata": {"name": "pod"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
    )
    .unwrap();
    api.create(&PostParams::default(), &pod).await.unwrap();
    let first = json!({"phase": "Running", "message": "m", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    assert!(
        apply::status(&api, "pod", "me", &json!({}), &first)
            .await
            .unwrap()
    );
    let later = json!({"phase": "Running", "message": "m", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}]});
    let mark = server.request_log().mark();
    assert!(
        !apply::status(&api, "pod", "me", &first, &later)
            .await
            .unwrap()
    );
    assert_eq!(server.request_log().writes_since(mark), []);
    assert!(
        apply::status(&api, "pod", "me", &first, &json!({"phase": "Failed"}))
            .await
            .unwrap()
    );
    let status = api.get("pod").await.unwrap().status.unwrap();
    assert_eq!(
        (status.phase.as_deref(), status.message, status.conditions),
        (Some("Failed"), None, None)
    );
}

#[tokio::test(start_paused = true)]
async fn two_writers_of_one_status_do_not_disturb_each_other() {
    let server = support::server();
    let client = support::client(&server);
    support::install_kinds(&client).await;
    let api: Api<farshore_api::DRBDResource> = Api::default_namespaced(client);
    let resource = serde_json::from_value(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDResource", "metadata": {"name": "r"},
        "spec": {"vmRef": {"name": "vm"}, "zone": "z", "cluster": "a", "peerCluster": "b", "role": "Primary", "roleEpoch": 1,
                 "volumes": [{"index": 0, "name": "v", "pvcName": "p", "storageClass": "s", "sizeBytes": 1, "port": 7000}]},
    }))
    .unwrap();
    api.create(&PostParams::default(), &resource).await.unwrap();
    let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let one = json!({"anchorPod": "pod", "conditions": [condition("NodeBound", "True")]});
    let two = json!({"role": "Primary", "conditions": [condition("Up", "True"), condition("Connected", "False")]});
    let stale = api.get("r").await.unwrap();
    assert!(
        apply::ensure_status(&api, "placement", &stale, &one)
            .await
            .unwrap()
    );
    assert!(
        apply::ensure_status(&api, "agent", &stale, &two)
            .await
            .unwrap()
    );
    let live = api.get("r").await.unwrap();
    let status = live.status.clone().unwrap();
    let types: Vec<&str> = status.conditions.iter().map(|c| c.type_.as_str()).collect();
    assert_eq!(types.len(), 3, "{types:?}");
    assert_eq!(status.anchor_pod.as_deref(), Some("pod"));
    let mark = server.request_log().mark();
    assert!(
        !apply::ensure_status(&api, "placement", &live, &one)
            .await
            .unwrap()
    );
    assert!(
        !apply::ensure_status(&api, "agent", &live, &two)
            .await
            .unwrap()
    );
    assert_eq!(server.request_log().writes_since(mark), []);
    // What one no longer says goes; what the other says stays.
    assert!(
        apply::ensure_status(
            &api,
            "agent",
            &live,
            &json!({"conditions": [condition("Up", "True")]})
        )
        .await
        .unwrap()
    );
    let status = api.get("r").await.unwrap().status.unwrap();
    assert_eq!(
        (
            status.conditions.len(),
            status.role,
            status.anchor_pod.as_deref()
        ),
        (2, None, Some("pod"))
    );
}

#[tokio::test(start_paused = true)]
async fn finalizers_are_added_and_removed_once() {
    let server = support::server();
    let api: Api<ConfigMap> = Api::default_namespaced(support::client(&server));
    let object = api.create(&PostParams::default(), &map(&[])).await.unwrap();
    assert!(
        apply::add_finalizer(&api, "me", &object, "example.com/a")
            .await
            .unwrap()
    );
    let stale = apply::add_finalizer(&api, "me", &object, "example.com/b").await;
    assert!(matches!(stale, Err(kube::Error::Api(s)) if s.code == 409));
    let object = api.get("map").await.unwrap();
    assert!(
        !apply::add_finalizer(&api, "me", &object, "example.com/a")
            .await
            .unwrap()
    );
    assert!(apply::delete_if_present(&api, "map").await.unwrap());
    let object = api.get("map").await.unwrap();
    assert!(
        apply::remove_finalizer(&api, "me", &object, "example.com/a")
            .await
            .unwrap()
    );
    assert!(api.get_opt("map").await.unwrap().is_none());
    assert!(!apply::delete_if_present(&api, "map").await.unwrap());
}

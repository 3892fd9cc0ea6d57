//! Admission webhooks: which of them a request is for, and what the configurations may say.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use serde_json::Value;
use serde_json::json;

use crate::admission::{MERGE, MUTATING, VALIDATING, map, message, patch, webhook, world};
use crate::support::{client, install_widgets};
use crate::wire::{JSON, MAPS, WIDGETS};

#[tokio::test(start_paused = true)]
async fn selectors_conditions_scope_and_subresources_decide_who_is_asked() {
    let world = world();
    install_widgets(&client(&world.server)).await;
    for name in ["ns", "obj", "cond", "cluster", "status", "every"] {
        world.hook(&format!("{name}.hooks.svc"), |_| json!({"allowed": true}));
    }
    let rules = |resources: Value, scope: &str| json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": resources, "scope": scope}]);
    world.configure(VALIDATING, "all", json!([
        webhook("ns", "", "configmaps", json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-public"}}})),
        webhook("obj", "", "configmaps", json!({"objectSelector": {"matchLabels": {"pick": "me"}}})),
        webhook("cond", "", "configmaps", json!({"matchConditions": [
            {"name": "user", "expression": "request.userInfo.username == 'kubernetes-admin'"},
            {"name": "big", "expression": "has(object.data) && object.data.size() > 1"},
        ]})),
        webhook("cluster", "", "x", json!({"rules": rules(json!(["*"]), "Cluster")})),
        webhook("status", "example.com", "widgets/status", json!({})),
        webhook("every", "", "x", json!({"rules": rules(json!(["*/*"]), "Namespaced")})),
    ])).await;
    let asked = || {
        let taken = std::mem::take(&mut *world.seen.0.lock().unwrap());
        let mut hosts: Vec<String> = taken
            .iter()
            .map(|(uri, _)| {
                uri.trim_start_matches("https://")
                    .split('.')
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        hosts.sort();
        hosts.join(" ")
    };
    world
        .send(Method::POST, MAPS, JSON, map("plain", json!({})))
        .await;
    assert_eq!(asked(), "every");
    world
        .send(
            Method::POST,
            "/api/v1/namespaces/kube-public/configmaps",
            JSON,
            map("a", json!({"a": "1", "b": "2"})),
        )
        .await;
    assert_eq!(asked(), "cond every ns");
    let mut picked = map("picked", json!({}));
    picked["metadata"]["labels"] = json!({"pick": "me"});
    world.send(Method::POST, MAPS, JSON, picked).await;
    assert_eq!(asked(), "every obj");
    // The old object counts too.
    world
        .send(
            Method::PATCH,
            &format!("{MAPS}/picked"),
            MERGE,
            json!({"metadata": {"labels": null}}),
        )
        .await;
    assert_eq!(asked(), "every obj");
    world
        .send(
            Method::POST,
            "/api/v1/namespaces",
            JSON,
            json!({"metadata": {"name": "fresh"}}),
        )
        .await;
    let hosts = asked();
    assert!(hosts.starts_with("cluster"), "{hosts}");
    tokio::time::sleep(Duration::from_secs(1)).await; // its default ServiceAccount
    asked();
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    world.send(Method::POST, WIDGETS, JSON, widget).await;
    assert_eq!(asked(), "every");
    world
        .send(
            Method::PATCH,
            &format!("{WIDGETS}/w/status"),
            MERGE,
            json!({"status": {"phase": "Ready"}}),
        )
        .await;
    assert_eq!(asked(), "every status");
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_fails_follows_the_failure_policy() {
    let world = world();
    world.hook("v.hooks.svc", |_| json!({"allowed": true}));
    let condition = json!([{"name": "c", "expression": "object.data.nope == 'x'"}]);
    world
        .configure(
            VALIDATING,
            "v",
            json!([webhook(
                "v",
                "",
                "configmaps",
                json!({"matchConditions": condition})
            )]),
        )
        .await;
    let (code, body, _) = world
        .send(Method::POST, MAPS, JSON, map("a", json!({"k": "v"})))
        .await;
    assert_eq!(
        (code, message(&body)),
        (
            403,
            "configmaps \"a\" is forbidden: expression 'object.data.nope == 'x'' resulted in error: no such key: nope"
        )
    );
    world
        .send(
            Method::PATCH,
            &format!("{VALIDATING}/v"),
            "application/json-patch+json",
            json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]),
        )
        .await;
    assert_eq!(
        world
            .send(Method::POST, MAPS, JSON, map("a", json!({"k": "v"})))
            .await
            .0,
        201
    );
    assert!(
        world.seen.take().is_empty(),
        "a webhook whose conditions fail is not called"
    );
}

#[tokio::test(start_paused = true)]
async fn another_version_of_the_resource_is_equivalent_unless_the_match_must_be_exact() {
    let world = world();
    let mut crd = crate::support::widget_crd();
    let mut beta = crd["spec"]["versions"][0].clone();
    beta["name"] = json!("v1beta1");
    beta["storage"] = json!(false);
    crd["spec"]["versions"].as_array_mut().unwrap().push(beta);
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(world.send(Method::POST, crds, JSON, crd).await.0, 201);
    world.hook("like.hooks.svc", |_| {
        patch(json!([{"op": "add", "path": "/spec/colour", "value": "blue"}]))
    });
    world.hook("exact.hooks.svc", |_| json!({"allowed": false}));
    world
        .configure(
            MUTATING,
            "m",
            json!([
                webhook("like", "example.com", "widgets", json!({})),
                webhook(
                    "exact",
                    "example.com",
                    "widgets",
                    json!({"matchPolicy": "Exact"})
                )
            ]),
        )
        .await;
    let widget = json!({"apiVersion": "example.com/v1beta1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    let (code, body, _) = world
        .send(
            Method::POST,
            "/apis/example.com/v1beta1/namespaces/default/widgets",
            JSON,
            widget,
        )
        .await;
    assert_eq!(
        (code, &body["spec"]["colour"], &body["apiVersion"]),
        (201, &json!("blue"), &json!("example.com/v1beta1")),
        "{body}"
    );
    let request = world.seen.take().remove(0);
    assert_eq!(
        (
            &request["kind"]["version"],
            &request["requestKind"]["version"]
        ),
        (&json!("v1"), &json!("v1beta1"))
    );
    assert_eq!(request["object"]["apiVersion"], "example.com/v1");
}

#[tokio::test(start_paused = true)]
async fn subresources_are_admitted_with_their_own_kinds() {
    let world = world();
    install_widgets(&client(&world.server)).await;
    world.hook(
        "v.hooks.svc",
        |r| json!({"allowed": r["operation"] != "CONNECT"}),
    );
    let rules = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["widgets/scale", "serviceaccounts/token", "pods/*"]}]);
    world
        .configure(
            VALIDATING,
            "v",
            json!([webhook("v", "", "x", json!({"rules": rules}))]),
        )
        .await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}});
    world.send(Method::POST, WIDGETS, JSON, widget).await;
    let (code, body, _) = world
        .send(
            Method::PATCH,
            &format!("{WIDGETS}/w/scale"),
            MERGE,
            json!({"spec": {"replicas": 5}}),
        )
        .await;
    assert_eq!(
        (code, &body["spec"]["replicas"]),
        (200, &json!(5)),
        "{body}"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    world
        .send(
            Method::POST,
            "/api/v1/namespaces/default/serviceaccounts/default/token",
            JSON,
            json!({"spec": {}}),
        )
        .await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(world.send(Method::POST, pods, JSON, pod).await.0, 201);
    let (code, body, _) = world
        .send(
            Method::POST,
            &format!("{pods}/p/exec?container=c&command=ls"),
            JSON,
            json!({}),
        )
        .await;
    assert_eq!(
        (code, message(&body)),
        (
            400,
            "admission webhook \"v.example.com\" denied the request without explanation"
        )
    );
    world
        .send(
            Method::POST,
            &format!("{pods}/p/eviction"),
            JSON,
            json!({"metadata": {"name": "p"}}),
        )
        .await;
    let seen: Vec<String> = world
        .seen
        .take()
        .iter()
        .map(|r| {
            format!(
                "{} {} {}",
                r["operation"], r["kind"]["kind"], r["subResource"]
            )
            .replace('"', "")
        })
        .collect();
    assert_eq!(
        seen,
        [
            "UPDATE Scale scale",
            "CREATE TokenRequest token",
            "CREATE Pod null",
            "CONNECT PodExecOptions exec",
            "CREATE Eviction eviction"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn configurations_are_not_intercepted_and_are_filled_in_and_checked() {
    let world = world();
    world.hook("v.hooks.svc", |_| json!({"allowed": false}));
    let rules = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    world
        .configure(
            VALIDATING,
            "v",
            json!([webhook("v", "", "x", json!({"rules": rules}))]),
        )
        .await;
    assert_eq!(
        world
            .send(Method::POST, MAPS, JSON, map("a", json!({})))
            .await
            .0,
        400
    );
    let (_, body, _) = world
        .send(Method::GET, &format!("{VALIDATING}/v"), JSON, json!({}))
        .await;
    let hook = &body["webhooks"][0];
    assert_eq!(
        (
            &hook["failurePolicy"],
            &hook["timeoutSeconds"],
            &hook["clientConfig"]["service"]["port"]
        ),
        (&json!("Fail"), &json!(10), &json!(443))
    );
    let bad = json!({"metadata": {"name": "bad"}, "webhooks": [webhook("bad", "", "pods", json!({"name": "bad", "sideEffects": null}))]});
    let (code, body, _) = world.send(Method::POST, MUTATING, JSON, bad).await;
    assert_eq!(
        (code, message(&body)),
        (
            422,
            "MutatingWebhookConfiguration.admissionregistration.k8s.io \"bad\" is invalid: [webhooks[0].name: Invalid value: \"bad\": should be a domain with at least three segments separated by dots, webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun]"
        )
    );
    assert_eq!(
        world
            .send(Method::DELETE, &format!("{VALIDATING}/v"), JSON, json!({}))
            .await
            .0,
        200
    );
    assert_eq!(
        world
            .send(Method::POST, MAPS, JSON, map("a", json!({})))
            .await
            .0,
        201
    );
}

#[tokio::test(start_paused = true)]
async fn the_servers_own_controllers_are_admitted_and_try_again() {
    let world = world();
    world
        .send(
            Method::POST,
            "/api/v1/namespaces",
            JSON,
            json!({"metadata": {"name": "going"}}),
        )
        .await;
    world
        .send(
            Method::POST,
            "/api/v1/namespaces/going/configmaps",
            JSON,
            map("a", json!({})),
        )
        .await;
    let open = Arc::new(Mutex::new(false));
    let allowed = open.clone();
    world.hook(
        "v.hooks.svc",
        move |_| json!({"allowed": *allowed.lock().unwrap()}),
    );
    world
        .configure(
            VALIDATING,
            "v",
            json!([webhook("v", "", "configmaps", json!({}))]),
        )
        .await;
    world
        .send(Method::DELETE, "/api/v1/namespaces/going", JSON, json!({}))
        .await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(
        world
            .send(Method::GET, "/api/v1/namespaces/going", JSON, json!({}))
            .await
            .1["status"]["phase"],
        "Terminating"
    );
    let (_, going, _) = world
        .send(Method::GET, "/api/v1/namespaces/going", JSON, json!({}))
        .await;
    let conditions = going["status"]["conditions"].as_array().unwrap();
    let failure = conditions
        .iter()
        .find(|c| c["type"] == "NamespaceDeletionContentFailure")
        .unwrap();
    assert_eq!(
        (&failure["status"], &failure["message"]),
        (
            &json!("True"),
            &json!(
                "Failed to delete all resource types, 1 remaining: admission webhook \"v.example.com\" denied the request without explanation"
            )
        )
    );
    let seen = world.seen.take();
    assert!(seen.len() > 2, "it was tried again: {}", seen.len());
    assert_eq!(
        seen[0]["userInfo"]["username"],
        "system:serviceaccount:kube-system:namespace-controller"
    );
    *open.lock().unwrap() = true;
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(
        world
            .send(Method::GET, "/api/v1/namespaces/going", JSON, json!({}))
            .await
            .0,
        404
    );
}

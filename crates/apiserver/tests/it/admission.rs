//! Admission webhooks through the service: who is asked, in which order, and what the answers do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use farshore_apiserver::{ApiServer, Hooks, Options};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::support::{client, install_widgets};
use crate::wire::{JSON, MAPS, WIDGETS, ask};

pub const MERGE: &str = "application/merge-patch+json";
pub const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
pub const VALIDATING: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A server, the webhooks it can call, and what they were asked.
pub struct World {
    pub server: ApiServer,
    pub hooks: Hooks,
    pub seen: Seen,
}

/// The requests that webhooks got: URI and AdmissionReview.
#[derive(Clone, Default)]
pub struct Seen(pub Arc<Mutex<Vec<(String, Value)>>>);

impl Seen {
    pub fn take(&self) -> Vec<Value> {
        let taken = std::mem::take(&mut *self.0.lock().unwrap());
        taken
            .into_iter()
            .map(|(_, review)| review["request"].clone())
            .collect()
    }

    /// operation and name of each request.
    fn short(&self) -> Vec<String> {
        let short = |r: &Value| {
            format!(
                "{} {}",
                r["operation"].as_str().unwrap(),
                r["name"].as_str().unwrap_or("-")
            )
        };
        self.take().iter().map(short).collect()
    }
}

pub fn world() -> World {
    let hooks = Hooks::default();
    let server = ApiServer::new(Options {
        hooks: hooks.clone(),
        ..Options::default()
    });
    drop(server.spawn(CancellationToken::new()));
    World {
        server,
        hooks,
        seen: Seen::default(),
    }
}

impl World {
    /// A webhook that answers with what `answer` makes of the request; the uid is filled in.
    pub fn hook(
        &self,
        host: &str,
        answer: impl Fn(&Value) -> Value + Clone + Send + Sync + 'static,
    ) {
        let seen = self.seen.clone();
        self.hooks.serve(host, tower::service_fn(move |request: Request<Full<Bytes>>| {
            let (seen, answer) = (seen.clone(), answer.clone());
            async move {
                let uri = request.uri().to_string();
                let body = request.into_body().collect().await?.to_bytes();
                let review: Value = serde_json::from_slice(&body)?;
                let mut response = answer(&review["request"]);
                if response.get("uid").is_none() {
                    response["uid"] = review["request"]["uid"].clone();
                }
                seen.0.lock().unwrap().push((uri, review));
                let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
                Ok::<_, BoxError>(Response::new(Full::new(Bytes::from(answer.to_string()))))
            }
        }));
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Value,
    ) -> (u16, Value, Vec<String>) {
        let answer = ask(method, path)
            .body(content, body.to_string())
            .send(&self.server)
            .await;
        (answer.code, answer.body, answer.warnings)
    }

    pub async fn configure(&self, path: &str, name: &str, webhooks: Value) {
        let kind = if path == MUTATING {
            "MutatingWebhookConfiguration"
        } else {
            "ValidatingWebhookConfiguration"
        };
        let config = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": webhooks});
        let (code, body, _) = self.send(Method::POST, path, JSON, config).await;
        assert_eq!(code, 201, "{body}");
    }
}

/// One webhook at `<name>.hooks.svc` for all operations on a resource, changed by a merge.
pub fn webhook(name: &str, group: &str, resource: &str, change: Value) -> Value {
    let mut hook = json!({
        "name": format!("{name}.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": "hooks", "name": name, "path": "/admit"}},
        "rules": [{"operations": ["CREATE", "UPDATE", "DELETE", "CONNECT"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource]}],
    });
    json_patch::merge(&mut hook, &change);
    hook
}

pub fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub fn patch(ops: Value) -> Value {
    json!({"allowed": true, "patchType": "JSONPatch", "patch": BASE64_STANDARD.encode(ops.to_string())})
}

/// Appends a letter to `data.trail`.
fn trail(letter: &'static str) -> impl Fn(&Value) -> Value + Clone + Send + Sync {
    move |request: &Value| {
        let so_far = request["object"]["data"]["trail"].as_str().unwrap_or("");
        patch(json!([{"op": "add", "path": "/data/trail", "value": format!("{so_far}{letter}")}]))
    }
}

pub fn message(body: &Value) -> &str {
    body["message"].as_str().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_webhook_is_asked_with_a_whole_review() {
    let world = world();
    world.hook(
        "v.hooks.svc",
        |_| json!({"allowed": true, "warnings": ["mind the gap"]}),
    );
    world
        .configure(
            VALIDATING,
            "v",
            json!([webhook("v", "", "configmaps", json!({"timeoutSeconds": 7}))]),
        )
        .await;
    let path = format!("{MAPS}?fieldManager=me");
    let (code, body, warnings) = world
        .send(Method::POST, &path, JSON, map("a", json!({"k": "1"})))
        .await;
    assert_eq!(code, 201, "{body}");
    assert_eq!(warnings, ["299 - \"mind the gap\""]);
    let uri = world.seen.0.lock().unwrap()[0].0.clone();
    assert_eq!(uri, "https://v.hooks.svc:443/admit?timeout=7s");
    let mut request = world.seen.take().remove(0);
    assert_eq!(request["uid"].as_str().unwrap().len(), 36);
    assert_eq!(
        request["object"]["metadata"]["uid"], body["metadata"]["uid"],
        "validating webhooks see what will be stored"
    );
    for field in ["uid", "object"] {
        request.as_object_mut().unwrap().remove(field);
    }
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
    assert_eq!(
        request,
        json!({
            "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "name": "a", "namespace": "default", "operation": "CREATE", "dryRun": false, "oldObject": null,
            "userInfo": {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]},
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"},
        })
    );
    world
        .send(
            Method::PATCH,
            &format!("{MAPS}/a"),
            MERGE,
            json!({"data": {"k": "2"}}),
        )
        .await;
    world
        .send(
            Method::DELETE,
            &format!("{MAPS}/a"),
            JSON,
            json!({"propagationPolicy": "Background"}),
        )
        .await;
    let seen = world.seen.take();
    assert_eq!(seen[0]["options"]["kind"], "UpdateOptions");
    assert_eq!(
        (
            &seen[0]["oldObject"]["data"]["k"],
            &seen[0]["object"]["data"]["k"]
        ),
        (&json!("1"), &json!("2"))
    );
    assert_eq!(
        (&seen[1]["object"], &seen[1]["oldObject"]["data"]["k"]),
        (&Value::Null, &json!("2"))
    );
    assert_eq!(
        seen[1]["options"],
        json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "propagationPolicy": "Background"})
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_which_webhook_it_was_and_changes_nothing() {
    let world = world();
    world.hook("v.hooks.svc", |r| json!({"allowed": r["operation"] == "CREATE", "warnings": ["careful"], "status": {"code": 403, "message": "not now", "reason": "Forbidden"}}));
    world
        .configure(
            VALIDATING,
            "v",
            json!([webhook("v", "", "configmaps", json!({}))]),
        )
        .await;
    assert_eq!(
        world
            .send(Method::POST, MAPS, JSON, map("a", json!({})))
            .await
            .0,
        201
    );
    let revision = world.server.revision();
    let one = format!("{MAPS}/a");
    let all = format!("{MAPS}?labelSelector=!nothing");
    let attempts = [
        (Method::PUT, &one, JSON, map("a", json!({"x": "1"}))),
        (Method::PATCH, &one, MERGE, json!({"data": {"x": "1"}})),
        (Method::DELETE, &one, JSON, json!({})),
        (Method::DELETE, &all, JSON, json!({})),
    ];
    for (method, path, content, body) in attempts {
        let (code, answer, warnings) = world.send(method.clone(), path, content, body).await;
        assert_eq!(
            (code, message(&answer), answer["reason"].as_str()),
            (
                403,
                "admission webhook \"v.example.com\" denied the request: not now",
                Some("Forbidden")
            ),
            "{method} {path}"
        );
        assert_eq!(
            warnings,
            ["299 - \"careful\""],
            "a refusal keeps its warnings"
        );
    }
    assert_eq!(world.server.revision(), revision);
}

#[tokio::test(start_paused = true)]
async fn mutating_webhooks_run_by_name_and_list_order_and_once_more_where_they_ask_for_it() {
    let world = world();
    for letter in ["a", "b", "c"] {
        world.hook(&format!("{letter}.hooks.svc"), trail(letter));
    }
    // Configurations by name: "one" before "two", although it comes later.
    world
        .configure(
            MUTATING,
            "two",
            json!([webhook("c", "", "configmaps", json!({}))]),
        )
        .await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    world
        .configure(
            MUTATING,
            "one",
            json!([
                webhook("b", "", "configmaps", again),
                webhook("a", "", "configmaps", json!({}))
            ]),
        )
        .await;
    let (code, body, _) = world
        .send(Method::POST, MAPS, JSON, map("m", json!({"k": "v"})))
        .await;
    assert_eq!(
        (code, &body["data"]["trail"]),
        (201, &json!("bacb")),
        "{body}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_webhooks_make_of_an_object_is_pruned_defaulted_and_validated() {
    let world = world();
    install_widgets(&client(&world.server)).await;
    world.hook("m.hooks.svc", |r| {
        let size = r["object"]["metadata"]["annotations"]["size"]
            .as_str()
            .and_then(|s| s.parse::<i64>().ok())
            .unwrap_or(3);
        patch(json!([
            {"op": "add", "path": "/spec/size", "value": size},
            {"op": "add", "path": "/spec/unknown", "value": 1},
            {"op": "remove", "path": "/spec/colour"},
        ]))
    });
    world
        .configure(
            MUTATING,
            "m",
            json!([webhook("m", "example.com", "widgets", json!({}))]),
        )
        .await;
    let widget = |name: &str, size: &str| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name, "annotations": {"size": size}}, "spec": {"size": 1}});
    let (code, body, warnings) = world
        .send(
            Method::POST,
            &format!("{WIDGETS}?fieldManager=me"),
            JSON,
            widget("a", "4"),
        )
        .await;
    assert_eq!(
        (code, &body["spec"]),
        (201, &json!({"size": 4, "colour": "red"})),
        "{body}"
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(body["metadata"]["generation"], 1);
    let (code, body, _) = world
        .send(Method::POST, WIDGETS, JSON, widget("b", "-1"))
        .await;
    assert_eq!(code, 422, "{body}");
    // What the manager sent is its own; what a webhook added belongs to nobody, as on a real server.
    let (_, stored, _) = world
        .send(Method::GET, &format!("{WIDGETS}/a"), JSON, json!(null))
        .await;
    let fields = &stored["metadata"]["managedFields"][0];
    assert_eq!(
        (&fields["manager"], &fields["fieldsV1"]["f:spec"]["f:size"]),
        (&json!("me"), &json!({}))
    );
}

#[tokio::test(start_paused = true)]
async fn a_mutation_must_leave_managed_fields_readable() {
    let world = world();
    world.hook("m.hooks.svc", |_| patch(json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{"operation": "Nonsense"}]}])));
    world
        .configure(
            MUTATING,
            "m",
            json!([webhook("m", "", "configmaps", json!({}))]),
        )
        .await;
    let (code, body, warnings) = world
        .send(
            Method::POST,
            &format!("{MAPS}?fieldManager=me"),
            JSON,
            map("a", json!({"k": "v"})),
        )
        .await;
    assert_eq!(
        (code, &body["metadata"]["managedFields"][0]["manager"]),
        (201, &json!("me")),
        "{body}"
    );
    assert!(
        warnings[0].contains(".metadata.managedFields was in an invalid state after admission"),
        "{warnings:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_does_not_answer_fails_the_request_or_is_passed_over() {
    let world = world();
    world.hooks.serve(
        "slow.hooks.svc",
        tower::service_fn(|_: Request<Full<Bytes>>| async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok::<_, BoxError>(Response::new(Full::new(Bytes::new())))
        }),
    );
    world.hooks.serve(
        "broken.hooks.svc",
        tower::service_fn(|_: Request<Full<Bytes>>| async {
            let response = Response::builder()
                .status(500)
                .header("content-type", "text/plain")
                .body(Full::new(Bytes::from("boom\n")));
            Ok::<_, BoxError>(response.unwrap())
        }),
    );
    world.hook("liar.hooks.svc", |_| json!({"allowed": true, "uid": "1"}));
    world.hook("patcher.hooks.svc", |_| patch(json!([])));
    let cases = [
        (
            "slow",
            "failed to call webhook: Post \"https://slow.hooks.svc:443/admit?timeout=3s\": context deadline exceeded",
        ),
        (
            "broken",
            "failed to call webhook: an error on the server (\"boom\") has prevented the request from succeeding",
        ),
        (
            "liar",
            "received invalid webhook response: expected response.uid=\"",
        ),
        (
            "patcher",
            "received invalid webhook response: validating webhook may not return response.patch",
        ),
        (
            "absent",
            "failed to call webhook: Post \"https://absent.hooks.svc:443/admit?timeout=3s\": service \"absent\" not found",
        ),
    ];
    for (name, expected) in cases {
        let fails = json!({"timeoutSeconds": 3});
        world
            .configure(
                VALIDATING,
                name,
                json!([webhook(name, "", "configmaps", fails)]),
            )
            .await;
        let (code, body, _) = world
            .send(Method::POST, MAPS, JSON, map(name, json!({})))
            .await;
        let start = format!(
            "Internal error occurred: failed calling webhook \"{name}.example.com\": {expected}"
        );
        assert_eq!(
            (code, body["reason"].as_str()),
            (500, Some("InternalError")),
            "{name}: {body}"
        );
        assert!(
            message(&body).starts_with(&start),
            "{name}: {}",
            message(&body)
        );
        let ignored =
            json!([{"op": "add", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
        world
            .send(
                Method::PATCH,
                &format!("{VALIDATING}/{name}"),
                "application/json-patch+json",
                ignored,
            )
            .await;
        let (code, body, _) = world
            .send(Method::POST, MAPS, JSON, map(name, json!({})))
            .await;
        assert_eq!(code, 201, "{name}: {body}");
        world
            .send(
                Method::DELETE,
                &format!("{VALIDATING}/{name}"),
                JSON,
                json!({}),
            )
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_waits_no_longer_than_34_seconds_for_all_its_webhooks() {
    let world = world();
    for name in ["one", "two"] {
        world.hooks.serve(
            &format!("{name}.hooks.svc"),
            tower::service_fn(|_: Request<Full<Bytes>>| async {
                std::future::pending::<()>().await;
                Ok::<_, BoxError>(Response::new(Full::new(Bytes::new())))
            }),
        );
    }
    let slow = json!({"timeoutSeconds": 30, "failurePolicy": "Ignore"});
    world
        .configure(
            MUTATING,
            "m",
            json!([
                webhook("one", "", "configmaps", slow.clone()),
                webhook("two", "", "configmaps", slow)
            ]),
        )
        .await;
    let start = tokio::time::Instant::now();
    let (code, body, _) = world
        .send(Method::POST, MAPS, JSON, map("a", json!({})))
        .await;
    assert_eq!(
        (code, body["reason"].as_str()),
        (504, Some("Timeout")),
        "{body}"
    );
    assert!(
        message(&body).starts_with("Timeout: request did not complete within requested timeout")
    );
    assert_eq!(start.elapsed().as_secs(), 34);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_asks_webhooks_as_one_and_stores_nothing() {
    let world = world();
    world.hook("v.hooks.svc", |_| json!({"allowed": true}));
    world
        .configure(
            VALIDATING,
            "v",
            json!([webhook("v", "", "configmaps", json!({}))]),
        )
        .await;
    let dry = format!("{MAPS}?dryRun=All");
    assert_eq!(
        world
            .send(Method::POST, &dry, JSON, map("a", json!({})))
            .await
            .0,
        201
    );
    let seen = world.seen.take();
    assert_eq!(
        (&seen[0]["dryRun"], &seen[0]["options"]["dryRun"]),
        (&json!(true), &json!(["All"]))
    );
    assert_eq!(
        world
            .send(Method::GET, &format!("{MAPS}/a"), JSON, json!({}))
            .await
            .0,
        404
    );
}

#[tokio::test(start_paused = true)]
async fn a_patch_is_made_again_when_the_object_changed_while_a_webhook_was_asked() {
    let world = world();
    world
        .send(Method::POST, MAPS, JSON, map("a", json!({"n": "0"})))
        .await;
    let (server, calls) = (world.server.clone(), Arc::new(Mutex::new(0)));
    let (counter, seen) = (calls.clone(), world.seen.clone());
    world.hooks.serve("m.hooks.svc", tower::service_fn(move |request: Request<Full<Bytes>>| {
        let (server, counter, seen) = (server.clone(), counter.clone(), seen.clone());
        async move {
            let body = request.into_body().collect().await?.to_bytes();
            let review: Value = serde_json::from_slice(&body)?;
            let uid = review["request"]["uid"].clone();
            let first = { let mut n = counter.lock().unwrap(); *n += 1; *n == 1 };
            seen.0.lock().unwrap().push((String::new(), review));
            if first {
                // Somebody else writes while the webhook thinks. The label keeps that write away from the webhook.
                let other = json!({"metadata": {"labels": {"quiet": "yes"}}, "data": {"other": "1"}});
                let answer = ask(Method::PATCH, &format!("{MAPS}/a?fieldManager=quiet")).body(MERGE, other.to_string()).send(&server).await;
                assert_eq!(answer.code, 200, "{}", answer.body);
            }
            let response = json!({"allowed": true, "uid": uid});
            let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
            Ok::<_, BoxError>(Response::new(Full::new(Bytes::from(answer.to_string()))))
        }
    }));
    let loud = json!([{"name": "loud", "expression": "request.options.fieldManager != 'quiet'"}]);
    world
        .configure(
            MUTATING,
            "m",
            json!([webhook(
                "m",
                "",
                "configmaps",
                json!({"matchConditions": loud})
            )]),
        )
        .await;
    let path = format!("{MAPS}/a?fieldManager=me");
    let (code, body, _) = world
        .send(Method::PATCH, &path, MERGE, json!({"data": {"n": "1"}}))
        .await;
    assert_eq!(
        (code, &body["data"]),
        (200, &json!({"n": "1", "other": "1"})),
        "{body}"
    );
    assert_eq!(
        *calls.lock().unwrap(),
        2,
        "the webhook is asked again about the new state"
    );
    assert_eq!(
        world.seen.take()[1]["object"]["data"],
        json!({"n": "1", "other": "1"})
    );
    let stale = json!({"metadata": {"resourceVersion": "1"}, "data": {"n": "2"}});
    assert_eq!(world.send(Method::PATCH, &path, MERGE, stale).await.0, 409);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_is_admitted_all_the_same() {
    let world = world();
    world
        .send(Method::POST, MAPS, JSON, map("a", json!({"n": "0"})))
        .await;
    world.hook("v.hooks.svc", |_| json!({"allowed": true}));
    world
        .configure(
            VALIDATING,
            "v",
            json!([webhook("v", "", "configmaps", json!({}))]),
        )
        .await;
    let revision = world.server.revision();
    assert_eq!(
        world
            .send(
                Method::PATCH,
                &format!("{MAPS}/a"),
                MERGE,
                json!({"data": {"n": "0"}})
            )
            .await
            .0,
        200
    );
    assert_eq!(world.seen.short(), ["UPDATE a"]);
    assert_eq!(world.server.revision(), revision);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_cannot_be_mutated() {
    let world = world();
    world
        .send(Method::POST, MAPS, JSON, map("a", json!({})))
        .await;
    world.hook("m.hooks.svc", |_| {
        patch(json!([{"op": "add", "path": "/data", "value": {}}]))
    });
    world
        .configure(
            MUTATING,
            "m",
            json!([webhook("m", "", "configmaps", json!({}))]),
        )
        .await;
    let (code, body, _) = world
        .send(Method::DELETE, &format!("{MAPS}/a"), JSON, json!({}))
        .await;
    assert_eq!(
        (code, message(&body)),
        (
            500,
            "Internal error occurred: admission webhook \"m.example.com\" attempted to modify the object, which is not supported for this operation"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_patch_of_a_webhook_that_does_not_fit_is_an_internal_error() {
    let world = world();
    world.hook("m.hooks.svc", |_| {
        patch(json!([{"op": "add", "path": "/metadata/annotations/x", "value": "y"}]))
    });
    let hook = webhook("m", "", "configmaps", json!({"failurePolicy": "Ignore"}));
    world.configure(MUTATING, "m", json!([hook])).await;
    let (code, body, _) = world
        .send(Method::POST, MAPS, JSON, map("a", json!({})))
        .await;
    assert_eq!(
        (code, message(&body)),
        (
            500,
            "Internal error occurred: add operation does not apply: doc is missing path: \"/metadata/annotations/x\": missing value"
        )
    );
}

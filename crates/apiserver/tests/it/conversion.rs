//! Versions of a custom resource that only a webhook can convert.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::BoxError;

use crate::admission::{MERGE, VALIDATING, World, map, message, webhook, world};
use crate::wire::{JSON, MAPS, ask};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const V1: &str = "/apis/example.com/v1/namespaces/default/rods";
const V2: &str = "/apis/example.com/v2/namespaces/default/rods";

/// Rods: v1 (stored) says `size`, v2 says `length` in tenths and has a default.
fn rods(conversion: Value) -> Value {
    let version = |name: &str, storage: bool, fields: Value| {
        json!({
            "name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "rods.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "rods", "kind": "Rod"}, "conversion": conversion,
            "versions": [
                version("v1", true, json!({"size": {"type": "integer"}})),
                version("v2", false, json!({"length": {"type": "integer"}, "unit": {"type": "string", "default": "mm"}})),
            ],
        },
    })
}

fn by_webhook() -> Value {
    json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"service": {"namespace": "hooks", "name": "convert"}}}})
}

fn converted(object: &Value, wanted: &str) -> Value {
    let mut new = object.clone();
    new["apiVersion"] = json!(wanted);
    let spec = &object["spec"];
    new["spec"] = match wanted {
        "example.com/v2" => json!({"length": spec["size"].as_i64().unwrap_or(0) * 10, "odd": true}),
        _ => json!({"size": spec["length"].as_i64().unwrap_or(0) / 10}),
    };
    new
}

/// Serves the conversion webhook, with a last word on its response, and installs the definition.
async fn install(world: &World, last: impl Fn(&mut Value) + Clone + Send + Sync + 'static) {
    world.hooks.serve("convert.hooks.svc", tower::service_fn(move |request: Request<Full<Bytes>>| {
        let last = last.clone();
        async move {
            let body = request.into_body().collect().await?.to_bytes();
            let review: Value = serde_json::from_slice(&body)?;
            let request = &review["request"];
            let wanted = request["desiredAPIVersion"].as_str().unwrap();
            let objects: Vec<Value> = request["objects"].as_array().unwrap().iter().map(|o| converted(o, wanted)).collect();
            let mut response = json!({"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects});
            last(&mut response);
            let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response});
            Ok::<_, BoxError>(Response::new(Full::new(Bytes::from(review.to_string()))))
        }
    }));
    let (code, body, _) = world
        .send(Method::POST, CRDS, JSON, rods(by_webhook()))
        .await;
    assert_eq!(code, 201, "{body}");
}

fn rod(name: &str, length: i64) -> Value {
    json!({"apiVersion": "example.com/v2", "kind": "Rod", "metadata": {"name": name, "labels": {"a": "b"}}, "spec": {"length": length}})
}

#[tokio::test(start_paused = true)]
async fn an_object_is_what_its_webhook_makes_of_it_in_every_version() {
    let world = world();
    install(&world, |_| {}).await;
    let (code, made, _) = world.send(Method::POST, V2, JSON, rod("a", 50)).await;
    assert_eq!(
        (code, &made["spec"]),
        (201, &json!({"length": 50})),
        "what is stored knows no unit, and defaults are those of the stored version: {made}"
    );
    let one = |root: &str| format!("{root}/a");
    let get = async |path: String| world.send(Method::GET, &path, JSON, json!(null)).await.1;
    let old = get(one(V1)).await;
    assert_eq!(
        (&old["apiVersion"], &old["spec"]),
        (&json!("example.com/v1"), &json!({"size": 5}))
    );
    assert_eq!(get(one(V2)).await["spec"], json!({"length": 50}));
    for field in ["uid", "resourceVersion", "labels", "creationTimestamp"] {
        assert_eq!(old["metadata"][field], made["metadata"][field], "{field}");
    }
    let (code, patched, _) = world
        .send(
            Method::PATCH,
            &one(V2),
            MERGE,
            json!({"spec": {"length": 70}}),
        )
        .await;
    assert_eq!(
        (code, &patched["spec"]["length"]),
        (200, &json!(70)),
        "{patched}"
    );
    assert_eq!(get(one(V1)).await["spec"], json!({"size": 7}));

    let list = get(V2.to_owned()).await;
    assert_eq!(
        (
            &list["items"][0]["apiVersion"],
            &list["items"][0]["spec"]["length"]
        ),
        (&json!("example.com/v2"), &json!(70))
    );
    let watch = ask(Method::GET, &format!("{V2}?watch=true&timeoutSeconds=1"))
        .send(&world.server)
        .await;
    assert_eq!(
        (&watch.body["type"], &watch.body["object"]["spec"]["length"]),
        (&json!("ADDED"), &json!(70))
    );

    let (code, _, _) = world.send(Method::DELETE, &one(V2), JSON, json!({})).await;
    assert_eq!(code, 200);
}

#[tokio::test(start_paused = true)]
async fn a_webhook_converts_what_has_the_defaults_of_the_stored_version_and_its_answer_is_pruned() {
    let world = world();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sent = seen.clone();
    install(&world, move |response| {
        let objects = response["convertedObjects"].as_array_mut().unwrap();
        for object in objects {
            object["spec"]["stray"] = json!(1);
            sent.lock().unwrap().push(object.clone());
        }
    })
    .await;
    world.send(Method::POST, V2, JSON, rod("a", 50)).await;
    // Nothing that the stored version does not know is stored.
    let one = |root: &str| format!("{root}/a");
    let get = async |path: String| world.send(Method::GET, &path, JSON, json!(null)).await.1;
    assert_eq!(get(one(V1)).await["spec"], json!({"size": 5}));
    assert_eq!(get(one(V2)).await["spec"], json!({"length": 50}));
    // The size of a rod without one is a default of the stored version from now on.
    let mut bare = rod("bare", 0);
    bare["apiVersion"] = json!("example.com/v1");
    bare["spec"] = json!({});
    let (code, body, _) = world.send(Method::POST, V1, JSON, bare).await;
    assert_eq!((code, &body["spec"]), (201, &json!({})));
    let default = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/default", "value": 9}]);
    let patch = "application/json-patch+json";
    let path = format!("{CRDS}/rods.example.com");
    let (code, body, _) = world.send(Method::PATCH, &path, patch, default).await;
    assert_eq!(code, 200, "{body}");
    assert_eq!(get(format!("{V1}/bare")).await["spec"], json!({"size": 9}));
    assert_eq!(
        get(format!("{V2}/bare")).await["spec"],
        json!({"length": 90})
    );
    let seen = seen.lock().unwrap();
    assert_eq!(seen.last().unwrap()["spec"]["stray"], 1);
}

#[tokio::test(start_paused = true)]
async fn an_admission_webhook_gets_the_version_it_asks_for() {
    let world = world();
    install(&world, |_| {}).await;
    world.hook(
        "v.hooks.svc",
        |r| json!({"allowed": r["object"]["spec"]["size"] != 13, "status": {"message": "unlucky"}}),
    );
    world
        .configure(
            VALIDATING,
            "v",
            json!([webhook("v", "example.com", "rods", json!({}))]),
        )
        .await;
    assert_eq!(
        world.send(Method::POST, V2, JSON, rod("a", 120)).await.0,
        201
    );
    let (code, body, _) = world.send(Method::POST, V2, JSON, rod("b", 130)).await;
    assert_eq!(
        (code, message(&body)),
        (
            400,
            "admission webhook \"v.example.com\" denied the request: unlucky"
        )
    );
    assert_eq!(
        world.seen.take()[0]["object"]["apiVersion"],
        "example.com/v1"
    );
}

#[tokio::test(start_paused = true)]
async fn a_conversion_that_breaks_the_rules_fails_the_request_and_says_why() {
    type Break = fn(&mut Value);
    let failures: [(Break, &str); 5] = [
        (
            |r| r["result"] = json!({"status": "Failure", "message": "cannot"}),
            "failed: cannot",
        ),
        (
            |r| r["uid"] = json!("1"),
            "failed: expected response.uid=\"",
        ),
        (
            |r| r["convertedObjects"] = json!([]),
            "returned 0 objects, expected 1",
        ),
        (
            |r| r["convertedObjects"][0]["metadata"]["name"] = json!("x"),
            "returned invalid converted object at index 0: must have the same name: a != x",
        ),
        (
            |r| r["convertedObjects"][0]["apiVersion"] = json!("example.com/v3"),
            "returned invalid converted object at index 0: invalid groupVersion (expected example.com/v1, received example.com/v3)",
        ),
    ];
    for (break_it, expected) in failures {
        let world = world();
        install(&world, break_it).await;
        let (code, body, _) = world.send(Method::POST, V2, JSON, rod("a", 50)).await;
        let expected = format!("conversion webhook for example.com/v2, Kind=Rod {expected}");
        assert_eq!(code, 500, "{body}");
        assert!(message(&body).starts_with(&expected), "{}", message(&body));
    }
}

#[tokio::test(start_paused = true)]
async fn the_conversion_of_a_definition_is_checked() {
    let world = world();
    let cases = [
        (
            json!({"strategy": "Webhook"}),
            "[spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook, spec.conversion.conversionReviewVersions: Required value]",
        ),
        (
            json!({"strategy": "Magic"}),
            "spec.conversion.strategy: Unsupported value: \"Magic\": supported values: \"None\", \"Webhook\"",
        ),
        (
            json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v9"], "clientConfig": {"url": "https://x/y"}}}),
            "spec.conversion.conversionReviewVersions: Invalid value: [\"v9\"]: must include at least one of v1, v1beta1",
        ),
    ];
    for (conversion, expected) in cases {
        let (code, body, _) = world.send(Method::POST, CRDS, JSON, rods(conversion)).await;
        let expected = format!(
            "CustomResourceDefinition.apiextensions.k8s.io \"rods.example.com\" is invalid: {expected}"
        );
        assert_eq!((code, message(&body)), (422, expected.as_str()));
    }
    // The server itself goes on without one.
    assert_eq!(
        world
            .send(Method::POST, MAPS, JSON, map("a", json!({})))
            .await
            .0,
        201
    );
}

//! Requests as they look on the wire: media types, limits, forms, warnings, statuses.

use bytes::Bytes;
use farshore_apiserver::{ApiServer, Tls};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use kube::api::{Api, PostParams};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::support::{client, install_widgets, server, widget, widget_api, widget_crd};

pub struct Answer {
    pub code: u16,
    pub warnings: Vec<String>,
    content_type: String,
    pub body: Value,
}

pub struct Ask<'a> {
    method: Method,
    path: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: Vec<u8>,
}

pub fn ask<'a>(method: Method, path: &'a str) -> Ask<'a> {
    Ask {
        method,
        path,
        headers: Vec::new(),
        body: Vec::new(),
    }
}

impl<'a> Ask<'a> {
    pub fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    pub fn body(mut self, content_type: &'a str, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("content-type", content_type)
    }

    pub async fn send(self, server: &ApiServer) -> Answer {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let service = server.service(Some(&server.admin_token()));
        let response = service
            .oneshot(request.body(Full::new(Bytes::from(self.body))).unwrap())
            .await
            .unwrap();
        let (parts, body) = response.into_parts();
        let header = |name: &str| {
            let values = parts.headers.get_all(name).iter();
            values
                .map(|v| v.to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let (code, warnings, content_type) = (
            parts.status.as_u16(),
            header("warning"),
            header("content-type").concat(),
        );
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
        Answer {
            code,
            warnings,
            content_type,
            body,
        }
    }
}

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
pub const JSON: &str = "application/json";

#[tokio::test(start_paused = true)]
async fn bodies_that_are_too_large_or_of_an_unknown_type_are_refused() {
    let server = server();
    let big = vec![b' '; 3 * 1024 * 1024 + 1];
    assert_eq!(
        ask(Method::POST, MAPS)
            .body(JSON, big)
            .send(&server)
            .await
            .code,
        413
    );
    let odd = ask(Method::POST, MAPS)
        .body("text/plain", "x")
        .send(&server)
        .await;
    assert_eq!(
        (odd.code, &odd.body["reason"]),
        (415, &json!("UnsupportedMediaType"))
    );
    assert_eq!(
        ask(Method::GET, MAPS)
            .header("accept", "text/html")
            .send(&server)
            .await
            .code,
        406
    );
    assert_eq!(
        ask(Method::POST, MAPS)
            .body(JSON, "{")
            .send(&server)
            .await
            .code,
        400
    );
    let other =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}).to_string();
    assert_eq!(
        ask(Method::POST, MAPS)
            .body(JSON, other)
            .send(&server)
            .await
            .code,
        400
    );
    assert_eq!(
        ask(Method::POST, "/api/v1/configmaps")
            .body(JSON, "{}")
            .send(&server)
            .await
            .code,
        405
    );
    assert_eq!(
        ask(Method::GET, "/api/v1/nothings")
            .send(&server)
            .await
            .code,
        404
    );
}

#[tokio::test(start_paused = true)]
async fn an_unknown_token_is_unauthorized() {
    let server = server();
    let answer = ask(Method::GET, MAPS)
        .header("authorization", "Bearer nope")
        .send(&server)
        .await;
    assert_eq!(
        (answer.code, &answer.body["reason"]),
        (401, &json!("Unauthorized"))
    );
}

#[tokio::test(start_paused = true)]
async fn objects_come_as_yaml_and_protobuf_too() {
    let server = server();
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: from-yaml\ndata:\n  a: b\n";
    let made = ask(Method::POST, MAPS)
        .body("application/yaml", yaml)
        .send(&server)
        .await;
    assert_eq!(made.code, 201, "{}", made.body);
    // runtime.Unknown{typeMeta{v1, ConfigMap}, raw = ConfigMap{metadata{name: "p"}, data{"a": "b"}}}
    let raw = b"\x0a\x03\x0a\x01p\x12\x06\x0a\x01a\x12\x01b";
    let mut body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12".to_vec();
    body.push(raw.len() as u8);
    body.extend_from_slice(raw);
    let made = ask(Method::POST, MAPS)
        .body("application/vnd.kubernetes.protobuf", body)
        .send(&server)
        .await;
    assert_eq!(
        (made.code, &made.body["data"]),
        (201, &json!({"a": "b"})),
        "{}",
        made.body
    );
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_dropped_with_a_warning_or_refused() {
    let server = server();
    install_widgets(&client(&server)).await;
    let odd = |name: &str| {
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1, "sice": 2}}).to_string()
    };
    let warned = ask(Method::POST, WIDGETS)
        .body(JSON, odd("a"))
        .send(&server)
        .await;
    assert_eq!(
        (warned.code, warned.warnings),
        (
            201,
            vec!["299 - \"unknown field \\\"spec.sice\\\"\"".to_owned()]
        )
    );
    assert_eq!(warned.body["spec"], json!({"size": 1, "colour": "red"}));
    let strict = format!("{WIDGETS}?fieldValidation=Strict");
    let refused = ask(Method::POST, &strict)
        .body(JSON, odd("b"))
        .send(&server)
        .await;
    assert_eq!(
        refused.body["message"],
        "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: unknown field \"spec.sice\""
    );
    let quiet = ask(Method::POST, &format!("{WIDGETS}?fieldValidation=Ignore"))
        .body(JSON, odd("c"))
        .send(&server)
        .await;
    assert!(quiet.warnings.is_empty());
    let map = json!({"metadata": {"name": "m"}, "dada": {}}).to_string();
    let warned = ask(Method::POST, MAPS).body(JSON, map).send(&server).await;
    assert_eq!(warned.warnings, ["299 - \"unknown field \\\"dada\\\"\""]);
    assert_eq!(
        warned.body.get("dada"),
        None,
        "built-in kinds drop what they do not know, too"
    );
}

#[tokio::test(start_paused = true)]
async fn a_put_of_a_custom_resource_needs_its_version() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    widget_api(&client)
        .create(&PostParams::default(), &widget("a", 1))
        .await
        .unwrap();
    let body = serde_json::to_string(&widget("a", 2)).unwrap();
    let refused = ask(Method::PUT, &format!("{WIDGETS}/a"))
        .body(JSON, body)
        .send(&server)
        .await;
    assert_eq!(refused.code, 422);
    assert_eq!(
        refused.body["message"],
        "widgets.example.com \"a\" is invalid: metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
    );
}

#[tokio::test(start_paused = true)]
async fn patches_of_four_kinds() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    widget_api(&client)
        .create(&PostParams::default(), &widget("a", 1))
        .await
        .unwrap();
    let path = format!("{WIDGETS}/a");
    let json_patch = |value: i64| {
        json!([{"op": "test", "path": "/spec/size", "value": value}, {"op": "replace", "path": "/spec/size", "value": 9}]).to_string()
    };
    let patch =
        |kind: &'static str, body: String| ask(Method::PATCH, &path).body(kind, body).send(&server);
    assert_eq!(
        patch("application/json-patch+json", json_patch(5))
            .await
            .code,
        422
    );
    assert_eq!(
        patch("application/json-patch+json", json_patch(1))
            .await
            .body["spec"]["size"],
        9
    );
    assert_eq!(
        patch(
            "application/merge-patch+json",
            json!({"spec": {"size": 8}}).to_string()
        )
        .await
        .body["spec"]["size"],
        8
    );
    assert_eq!(
        patch("application/strategic-merge-patch+json", "{}".into())
            .await
            .code,
        415
    );
    let stale = json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 8}}).to_string();
    assert_eq!(patch("application/merge-patch+json", stale).await.code, 409);
    let applied = "apiVersion: example.com/v1\nkind: Widget\nspec: {size: 8}\n";
    assert_eq!(
        patch("application/apply-patch+yaml", applied.into())
            .await
            .code,
        422,
        "without a field manager"
    );
    let named = format!("{path}?fieldManager=me");
    let answer = ask(Method::PATCH, &named)
        .body("application/apply-patch+yaml", applied)
        .send(&server)
        .await;
    assert_eq!(
        (answer.code, &answer.body["spec"]["size"]),
        (200, &json!(8))
    );

    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "one", "image": "i:1"}]}}}});
    assert_eq!(
        ask(Method::POST, deployments)
            .body(JSON, web.to_string())
            .send(&server)
            .await
            .code,
        201
    );
    let more =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "two", "image": "i:2"}]}}}})
            .to_string();
    let merged = ask(Method::PATCH, &format!("{deployments}/web"))
        .body("application/strategic-merge-patch+json", more)
        .send(&server)
        .await;
    let containers = merged.body["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(
        (merged.code, containers),
        (200, 2),
        "containers merge by name: {}",
        merged.body
    );
}

#[tokio::test(start_paused = true)]
async fn tables_are_given_for_lists_objects_and_watches() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    widget_api(&client)
        .create(&PostParams::default(), &widget("a", 1))
        .await
        .unwrap();
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let list = ask(Method::GET, WIDGETS)
        .header("accept", accept)
        .send(&server)
        .await;
    assert_eq!(list.body["kind"], "Table");
    assert_eq!(list.body["rows"][0]["cells"][1], 1);
    assert_eq!(
        list.body["rows"][0]["object"]["kind"],
        "PartialObjectMetadata"
    );
    assert_eq!(
        list.body["metadata"]["resourceVersion"],
        server.revision().to_string()
    );
    let watch = ask(
        Method::GET,
        &format!("{WIDGETS}?watch=true&timeoutSeconds=1"),
    )
    .header("accept", accept)
    .send(&server)
    .await;
    assert_eq!(
        (&watch.body["type"], &watch.body["object"]["kind"]),
        (&json!("ADDED"), &json!("Table"))
    );
    assert_eq!(watch.content_type, "application/json");
}

#[tokio::test(start_paused = true)]
async fn scale_reads_and_writes_replicas() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    widget_api(&client)
        .create(&PostParams::default(), &widget("a", 1))
        .await
        .unwrap();
    let path = format!("{WIDGETS}/a/scale");
    let scale = ask(Method::PATCH, &path)
        .body(
            "application/merge-patch+json",
            json!({"spec": {"replicas": 4}}).to_string(),
        )
        .send(&server)
        .await;
    assert_eq!(
        (&scale.body["kind"], &scale.body["spec"]["replicas"]),
        (&json!("Scale"), &json!(4))
    );
    assert_eq!(
        ask(Method::GET, &format!("{WIDGETS}/a"))
            .send(&server)
            .await
            .body["spec"]["size"],
        4
    );
}

#[tokio::test(start_paused = true)]
async fn an_applied_scale_owns_the_replicas_of_what_is_behind_it() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    widget_api(&client)
        .create(&PostParams::default(), &widget("a", 1))
        .await
        .unwrap();
    let apply = async |who: &str, version: &str, replicas: i64| {
        let path = format!("{WIDGETS}/a/scale?fieldManager={who}");
        let scale = json!({"apiVersion": version, "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": replicas}});
        ask(Method::PATCH, &path)
            .body("application/apply-patch+yaml", scale.to_string())
            .send(&server)
            .await
    };
    let wrong = apply("autoscaler", "example.com/v1", 3).await;
    assert_eq!(wrong.code, 400, "{}", wrong.body);
    let refused = apply("autoscaler", "autoscaling/v1", 3).await;
    assert_eq!(refused.code, 409);
    let why = refused.body["message"].as_str().unwrap();
    assert!(
        why.ends_with("using autoscaling/v1: .spec.replicas"),
        "{why}"
    );
    let forced = apply("autoscaler&force=true", "autoscaling/v1", 3).await;
    assert_eq!(
        (forced.code, &forced.body["spec"]),
        (200, &json!({"replicas": 3}))
    );
    let widget = ask(Method::GET, &format!("{WIDGETS}/a"))
        .send(&server)
        .await
        .body;
    assert_eq!(widget["spec"]["size"], 3);
    let entries = widget["metadata"]["managedFields"].as_array().unwrap();
    let owners: Vec<(&str, &str)> = entries
        .iter()
        .filter(|e| e.pointer("/fieldsV1/f:spec/f:size").is_some())
        .map(|e| {
            let text = |field: &str| e[field].as_str().unwrap_or_default();
            (text("manager"), text("subresource"))
        })
        .collect();
    assert_eq!(owners, [("autoscaler", "scale")]);
    let again = apply("autoscaler", "autoscaling/v1", 3).await;
    assert_eq!(again.code, 200, "applied twice");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_serves_no_version_is_not_seen_and_its_objects_lose_their_owners_all_the_same()
{
    let server = server();
    install_widgets(&client(&server)).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let send = async |method: Method, path: &str, body: Value| {
        let content = match method {
            Method::PATCH => "application/json-patch+json",
            _ => JSON,
        };
        let ask = ask(method, path).body(content, body.to_string());
        ask.send(&server).await
    };
    let owners = async |names: &[&str]| {
        let mut owners = Vec::new();
        for name in names {
            let found = ask(Method::GET, &format!("{maps}/{name}"))
                .send(&server)
                .await;
            owners.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": found.body["metadata"]["uid"]}));
        }
        json!(owners)
    };
    for name in ["one", "two"] {
        send(Method::POST, maps, json!({"metadata": {"name": name}})).await;
    }
    let child = json!({"metadata": {"name": "child", "ownerReferences": owners(&["one"]).await}});
    assert_eq!(send(Method::POST, maps, child).await.code, 201);
    let mut owned = serde_json::to_value(widget("a", 1)).unwrap();
    owned["metadata"]["ownerReferences"] = owners(&["one", "two"]).await;
    assert_eq!(send(Method::POST, WIDGETS, owned).await.code, 201);
    let serve = async |on: bool| {
        let crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
        let patch = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": on}]);
        assert_eq!(send(Method::PATCH, crd, patch).await.code, 200);
    };
    serve(false).await;
    let groups = ask(Method::GET, "/apis").send(&server).await;
    assert_eq!(groups.code, 200);
    assert!(
        !groups.body.to_string().contains("example.com"),
        "{}",
        groups.body
    );
    for path in ["/apis/example.com", WIDGETS] {
        assert_eq!(
            ask(Method::GET, path).send(&server).await.code,
            404,
            "{path}"
        );
    }

    send(Method::DELETE, &format!("{maps}/one"), json!({})).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    let gone = ask(Method::GET, &format!("{maps}/child"))
        .send(&server)
        .await;
    assert_eq!(gone.code, 404, "the collector lives");
    serve(true).await;
    let widget = ask(Method::GET, &format!("{WIDGETS}/a"))
        .send(&server)
        .await;
    assert_eq!(
        widget.body["metadata"]["ownerReferences"],
        owners(&["two"]).await
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_scoped_object_that_names_a_namespaced_owner_is_left_alone() {
    let server = server();
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "1"});
    let role = json!({"metadata": {"name": "leaked", "ownerReferences": [owner]}, "rules": []});
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = json!({"metadata": {"name": "collected", "ownerReferences": [owner]}});
    for (path, body) in [(roles, role), (maps, map)] {
        let made = ask(Method::POST, path)
            .body(JSON, body.to_string())
            .send(&server)
            .await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    let code = async |path: String| ask(Method::GET, &path).send(&server).await.code;
    assert_eq!(code(format!("{maps}/collected")).await, 404);
    assert_eq!(code(format!("{roles}/leaked")).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_deleted_on_the_revision_that_was_asked_for() {
    let server = server();
    let pods = "/api/v1/namespaces/default/pods";
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = ask(Method::POST, pods)
        .body(JSON, pod.to_string())
        .send(&server)
        .await;
    assert_eq!(made.code, 201, "{}", made.body);
    let revision = made.body["metadata"]["resourceVersion"].as_str().unwrap();
    let delete = async |revision: &str| {
        let options = json!({"preconditions": {"resourceVersion": revision}});
        ask(Method::DELETE, &format!("{pods}/p"))
            .body(JSON, options.to_string())
            .send(&server)
            .await
    };
    assert_eq!(delete("1").await.code, 409);
    assert_eq!(delete(revision).await.code, 200);
    let gone = ask(Method::GET, &format!("{pods}/p")).send(&server).await;
    assert_eq!(gone.code, 404);
}

#[tokio::test(start_paused = true)]
async fn versions_of_a_kind_are_faces_of_one_object_and_schemas_can_change() {
    let server = server();
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let mut crd = widget_crd();
    let mut old = crd["spec"]["versions"][0].clone();
    old["name"] = json!("v1beta1");
    old["storage"] = json!(false);
    old["deprecated"] = json!(true);
    crd["spec"]["versions"].as_array_mut().unwrap().push(old);
    assert_eq!(
        ask(Method::POST, crds)
            .body(JSON, crd.to_string())
            .send(&server)
            .await
            .code,
        201
    );
    let beta = "/apis/example.com/v1beta1/namespaces/default/widgets";
    let object = json!({"apiVersion": "example.com/v1beta1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"size": 1}}).to_string();
    let made = ask(Method::POST, beta)
        .body(JSON, object)
        .send(&server)
        .await;
    assert_eq!(
        (made.code, made.warnings),
        (
            201,
            vec![
                "299 - \"example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget\""
                    .to_owned()
            ]
        )
    );
    assert_eq!(made.body["apiVersion"], "example.com/v1beta1");
    assert_eq!(
        ask(Method::GET, &format!("{WIDGETS}/a"))
            .send(&server)
            .await
            .body["apiVersion"],
        "example.com/v1"
    );

    let weight = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/weight", "value": {"type": "integer", "default": 7}}]);
    let changed = ask(Method::PATCH, &format!("{crds}/widgets.example.com"))
        .body("application/json-patch+json", weight.to_string())
        .send(&server)
        .await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    assert_eq!(
        ask(Method::GET, &format!("{WIDGETS}/a"))
            .send(&server)
            .await
            .body["spec"]["weight"],
        7,
        "defaults reach what was stored before"
    );

    let mut wrong = widget_crd();
    wrong["metadata"]["name"] = json!("gadgets.example.com");
    let refused = ask(Method::POST, crds)
        .body(JSON, wrong.to_string())
        .send(&server)
        .await;
    assert_eq!(refused.code, 422, "{}", refused.body);
}

#[tokio::test]
async fn a_listening_server_that_goes_down_breaks_its_connections() {
    let server = server();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (tls, ca) = Tls::self_signed(&["127.0.0.1"]).unwrap();
    let shutdown = CancellationToken::new();
    let (serving, stop) = (server.clone(), shutdown.clone());
    let listening = tokio::spawn(async move { serving.serve_tls(listener, tls, stop).await });
    let kubeconfig = json!({
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority-data": base64::Engine::encode(&base64::prelude::BASE64_STANDARD, ca)}}],
        "users": [{"name": "u", "user": {"token": server.admin_token()}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
    });
    let kubeconfig = serde_json::from_value(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .unwrap();
    let api: Api<k8s_openapi::api::core::v1::ConfigMap> =
        Api::default_namespaced(Client::try_from(config).unwrap());
    api.list(&Default::default()).await.unwrap();
    let watch = api.watch(&Default::default(), "0").await.unwrap();
    server.set_down(true);
    let events: Vec<_> = futures::StreamExt::collect(watch).await;
    assert!(
        events.iter().all(Result::is_err),
        "the stream broke: {events:?}"
    );
    assert!(!matches!(
        api.list(&Default::default()).await,
        Ok(_) | Err(kube::Error::Api(_))
    ));
    server.set_down(false);
    api.list(&Default::default()).await.unwrap();
    shutdown.cancel();
    listening.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_field_of_the_wrong_type_is_refused() {
    let server = server();
    let map = json!({"metadata": {"name": "m"}, "data": {"a": 1}}).to_string();
    let refused = ask(Method::POST, MAPS).body(JSON, map).send(&server).await;
    assert_eq!(
        (refused.code, &refused.body["message"]),
        (
            400,
            &json!(
                "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string"
            ),
        )
    );
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": "x"}}).to_string();
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    assert_eq!(
        ask(Method::POST, jobs)
            .body(JSON, job)
            .send(&server)
            .await
            .code,
        400
    );
}

#[tokio::test(start_paused = true)]
async fn no_body_breaks_the_server() {
    let server = server();
    let odd = [
        json!(null),
        json!(1),
        json!("x"),
        json!([]),
        json!({}),
        json!([1]),
        json!({"a": {"b": [null]}}),
    ];
    let found = kube::discovery::Discovery::new(client(&server))
        .run_aggregated()
        .await
        .unwrap();
    for (resource, capabilities) in found.groups().flat_map(|g| g.recommended_resources()) {
        let cluster = capabilities.scope == kube::discovery::Scope::Cluster;
        let scope = if cluster { "" } else { "namespaces/default/" };
        let root = if resource.group.is_empty() {
            "api"
        } else {
            "apis"
        };
        let path = format!(
            "/{root}/{}/{scope}{}",
            resource.api_version, resource.plural
        );
        for field in [
            "metadata",
            "spec",
            "status",
            "data",
            "stringData",
            "rules",
            "webhooks",
            "subsets",
        ] {
            for value in &odd {
                let mut body = json!({"metadata": {"name": "odd"}});
                body[field] = value.clone();
                let made = ask(Method::POST, &path)
                    .body(JSON, body.to_string())
                    .send(&server)
                    .await;
                assert!(made.code < 500, "{path} {body}: {}", made.body);
                let patch = json!({ field: value }).to_string();
                let odd = format!("{path}/odd");
                let patched = ask(Method::PATCH, &odd)
                    .body("application/merge-patch+json", patch)
                    .send(&server)
                    .await;
                assert!(
                    patched.code < 500,
                    "{path} {field} {value}: {}",
                    patched.body
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn fields_that_stand_twice_are_reported_and_the_last_one_counts() {
    let server = server();
    install_widgets(&client(&server)).await;
    let twice = |name: &str| {
        format!(
            r#"{{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {{"name": "{name}"}}, "spec": {{"size": 1, "size": 2, "x": 1, "x": 2}}}}"#
        )
    };
    let problems = [
        "duplicate field \"spec.size\"",
        "duplicate field \"spec.x\"",
        "unknown field \"spec.x\"",
    ];
    let warned = ask(Method::POST, WIDGETS)
        .body(JSON, twice("a"))
        .send(&server)
        .await;
    let headers = problems.map(|p| format!("299 - \"{}\"", p.replace('"', "\\\"")));
    assert_eq!(
        (warned.code, &warned.body["spec"]["size"]),
        (201, &json!(2))
    );
    assert_eq!(warned.warnings, headers);
    let strict = format!("{WIDGETS}?fieldValidation=Strict");
    let refused = ask(Method::POST, &strict)
        .body(JSON, twice("b"))
        .send(&server)
        .await;
    let message = format!(
        "Widget in version \"v1\" cannot be handled as a Widget: strict decoding error: {}",
        problems.join(", ")
    );
    assert_eq!(
        (refused.code, &refused.body["message"]),
        (400, &json!(message))
    );
    let ignored = ask(Method::POST, &format!("{WIDGETS}?fieldValidation=Ignore"))
        .body(JSON, twice("c"))
        .send(&server)
        .await;
    assert_eq!((ignored.code, ignored.warnings.len()), (201, 0));

    // A built-in kind's decoder goes through the fields in order, and not into unknown ones.
    let pod = r#"{"metadata": {"name": "p"}, "spec": {"nope": {"a": 1, "a": 2}, "containers": [{"name": "c", "name": "d", "image": "i"}], "odd": 1}}"#;
    let pods = "/api/v1/namespaces/default/pods?fieldValidation=Strict";
    let refused = ask(Method::POST, pods).body(JSON, pod).send(&server).await;
    assert_eq!(
        refused.body["message"],
        "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.nope\", duplicate field \"spec.containers[0].name\", unknown field \"spec.odd\""
    );

    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: twice\ndata:\n  a: b\n  a: c\n";
    let refused = ask(Method::POST, &format!("{MAPS}?fieldValidation=Strict"))
        .body("application/yaml", yaml)
        .send(&server)
        .await;
    assert_eq!(
        refused.body["message"],
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: yaml: unmarshal errors:\n  line 7: key \"a\" already set in map"
    );
    let warned = ask(Method::POST, MAPS)
        .body("application/yaml", yaml)
        .send(&server)
        .await;
    assert_eq!((warned.code, &warned.body["data"]["a"]), (201, &json!("c")));
    assert_eq!(
        warned.warnings,
        ["299 - \"line 7: key \\\"a\\\" already set in map\""]
    );
    let path = format!("{MAPS}/twice?fieldManager=me&force=true&fieldValidation=Strict");
    let refused = ask(Method::PATCH, &path)
        .body("application/apply-patch+yaml", yaml)
        .send(&server)
        .await;
    assert_eq!(
        (refused.code, &refused.body["message"]),
        (
            400,
            &json!(
                "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 7: key \"a\" already set in map"
            )
        )
    );

    let path = format!("{MAPS}/twice?fieldValidation=Strict");
    let merge = r#"{"data": {"a": "1", "a": "2"}}"#;
    let refused = ask(Method::PATCH, &path)
        .body("application/merge-patch+json", merge)
        .send(&server)
        .await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    let message = refused.body["message"].as_str().unwrap();
    assert!(
        message.starts_with(" \"\" is invalid: patch: Invalid value: \"{"),
        "{message}"
    );
    assert!(
        message.ends_with("strict decoding error: duplicate field \"data.a\""),
        "{message}"
    );
    let refused = ask(Method::PATCH, &path)
        .body("application/strategic-merge-patch+json", merge)
        .send(&server)
        .await;
    assert_eq!(
        refused.body["message"],
        " \"\" is invalid: patch: Invalid value: \"map[data:map[a:2]]\": strict decoding error: duplicate field \"data.a\""
    );
}

#[tokio::test]
async fn a_client_certificate_is_a_user_and_its_organizations_are_groups() {
    use rcgen::{
        CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };
    let authority = || {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (trusted, other) = (authority(), authority());
    let server = ApiServer::new(farshore_apiserver::Options {
        rbac: true,
        ..Default::default()
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (tls, ca) = Tls::self_signed(&["127.0.0.1"]).unwrap();
    let tls = tls.with_client_ca(&trusted.pem()).unwrap();
    let (serving, stop) = (server.clone(), CancellationToken::new());
    tokio::spawn(async move { serving.serve_tls(listener, tls, stop).await });

    let encode = |text: String| base64::Engine::encode(&base64::prelude::BASE64_STANDARD, text);
    let user = |issuer: &CertifiedIssuer<'static, KeyPair>, group: &str| {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
        params.distinguished_name.push(DnType::CommonName, "jane");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, issuer).unwrap();
        json!({"client-certificate-data": encode(cert.pem()), "client-key-data": encode(key.serialize_pem())})
    };
    let api = |user: Value| {
        let kubeconfig = json!({
            "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority-data": encode(ca.clone())}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
        });
        async move {
            let kubeconfig = serde_json::from_value(kubeconfig).unwrap();
            let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default())
                .await
                .unwrap();
            Api::<k8s_openapi::api::core::v1::ConfigMap>::default_namespaced(
                Client::try_from(config).unwrap(),
            )
        }
    };
    let list = Default::default();
    api(user(&trusted, "system:masters"))
        .await
        .list(&list)
        .await
        .unwrap();
    let refused = api(user(&trusted, "interns")).await.list(&list).await;
    assert_eq!(
        crate::support::message(refused),
        "configmaps is forbidden: User \"jane\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    assert_eq!(
        crate::support::code(api(user(&other, "system:masters")).await.list(&list).await),
        401
    );
    api(json!({"token": server.admin_token()}))
        .await
        .list(&list)
        .await
        .unwrap();
    assert_eq!(
        crate::support::code(api(json!({})).await.list(&list).await),
        403
    );
}

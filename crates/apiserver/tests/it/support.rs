//! What the tests share.

use farshore_apiserver::{ApiServer, Options};
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// A server with its background controllers running until the runtime ends.
pub fn server() -> ApiServer {
    let server = ApiServer::new(Options::default());
    drop(server.spawn(CancellationToken::new()));
    server
}

pub fn client(server: &ApiServer) -> Client {
    Client::new(server.service(Some(&server.admin_token())), "default")
}

pub fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

/// The API of a resource by group, version, kind and plural.
pub fn resource(gvk: (&str, &str, &str), plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(gvk.0, gvk.1, gvk.2), plural)
}

pub fn widgets() -> ApiResource {
    resource(("example.com", "v1", "Widget"), "widgets")
}

/// A CRD `widgets.example.com` with status, scale, defaults, rules and columns.
pub fn widget_crd() -> Value {
    serde_saphyr::from_str(include_str!("widget-crd.yaml")).unwrap()
}

pub async fn install_widgets(client: &Client) {
    let crds: Api<DynamicObject> = Api::all_with(
        client.clone(),
        &resource(
            ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            "customresourcedefinitions",
        ),
    );
    crds.create(&PostParams::default(), &object(widget_crd()))
        .await
        .unwrap();
}

pub fn widget(name: &str, size: i64) -> DynamicObject {
    object(
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}}),
    )
}

pub fn widget_api(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &widgets())
}

/// The status code of a refused request.
pub fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> u16 {
    match result {
        Err(Error::Api(status)) => status.code,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// The message of a refused request.
pub fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Api(status)) => status.message.clone(),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

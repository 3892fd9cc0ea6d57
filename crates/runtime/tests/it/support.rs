//! A server and processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use farshore_apiserver::{ApiServer, Options};
use farshore_runtime::{CancellationToken, Clock, Connector, Process};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client};

pub fn server() -> ApiServer {
    ApiServer::new(Options::default())
}

pub fn client(server: &ApiServer) -> Client {
    Client::new(server.service(Some(&server.admin_token())), "default")
}

/// A process `test` whose pod has this name, in the namespace `default`.
pub fn process(server: &ApiServer, identity: &str) -> Process {
    Process {
        name: "test".into(),
        identity: identity.into(),
        namespace: "default".into(),
        node: None,
        env: BTreeMap::new(),
        args: Vec::new(),
        client: client(server),
        connector: Connector::in_process(Arc::new(|_, _| None)),
        clock: Clock::virtual_from("2026-01-01T00:00:00Z".parse().unwrap()),
        shutdown: CancellationToken::new(),
    }
}

/// Installs the product's kinds.
pub async fn install_kinds(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in farshore_api::crds::all() {
        api.create(&PostParams::default(), &crd).await.unwrap();
    }
}

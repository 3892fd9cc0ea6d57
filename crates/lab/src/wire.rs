//! How clients reach the lab's API servers: over TLS on loopback ports, or within the process so
//! that virtual time is not misled by sockets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use farshore_apiserver::ApiServer;
use farshore_runtime::{Connector, PatienceLayer};
use kube::Client;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tower::Layer;

use crate::engine::without_news;
use crate::faults::{FaultLayer, Faults, Route};
use crate::fence::Fence;

/// One cluster's API server as clients see it.
#[derive(Clone)]
pub struct Endpoint {
    /// The server, if it is one inside this process.
    pub inside: Option<ApiServer>,
    /// Its URL in kubeconfigs.
    pub url: String,
    /// Whether the server is an old one, for which definitions are simplified.
    pub dated: bool,
    /// PEM of the authority that signed its certificate; `None` within the process.
    pub authority: Option<String>,
}

/// All API servers of the lab, and the faults on the way to them.
#[derive(Clone, Default)]
pub struct Wire(Arc<Mutex<BTreeMap<String, Endpoint>>>, Faults);

impl Wire {
    /// The faults that the lab's processes suffer; they happen to clients within the process alone.
    pub fn faults(&self) -> &Faults {
        &self.1
    }

    /// Adds a cluster.
    pub fn add(&self, cluster: &str, endpoint: Endpoint) {
        self.0
            .lock()
            .expect("no panic while held")
            .insert(cluster.into(), endpoint);
    }

    /// A cluster's endpoint.
    pub fn endpoint(&self, cluster: &str) -> Option<Endpoint> {
        self.0
            .lock()
            .expect("no panic while held")
            .get(cluster)
            .cloned()
    }

    /// A client of a cluster that authenticates with `token` and is cut off by `fence`.
    pub async fn client(
        &self,
        cluster: &str,
        token: &str,
        fence: &Fence,
    ) -> anyhow::Result<Client> {
        let endpoint = self
            .endpoint(cluster)
            .ok_or_else(|| anyhow::anyhow!("the lab has no cluster {cluster:?}"))?;
        if let (None, Some(server)) = (&endpoint.authority, &endpoint.inside) {
            return Ok(in_process(cluster, server, Some(token), fence, &self.1));
        }
        let kubeconfig = self.kubeconfig(&[(cluster, token)])?;
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig)?;
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = ClientBuilder::try_from(config)?.with_layer(fence).build();
        Ok(if endpoint.dated {
            without_news(client)
        } else {
            client
        })
    }

    /// A client for the lab's own parts: within the process where the server is inside it.
    pub async fn own_client(&self, cluster: &str, token: &str) -> anyhow::Result<Client> {
        match self.endpoint(cluster).and_then(|e| e.inside) {
            Some(server) => Ok(in_process(
                cluster,
                &server,
                Some(token),
                &Fence::default(),
                &Faults::default(),
            )),
            None => self.client(cluster, token, &Fence::default()).await,
        }
    }

    /// The connector of a process: the network where there is one.
    pub fn connector(&self, fence: &Fence) -> Connector {
        let endpoints = self.0.lock().expect("no panic while held").clone();
        if endpoints.values().any(|e| e.authority.is_some()) {
            // All servers of a lab are of one engine.
            let (fence, dated) = (fence.clone(), endpoints.values().any(|e| e.dated));
            return Connector::network_through(Arc::new(move |client| {
                let client = fence.around(client);
                if dated { without_news(client) } else { client }
            }));
        }
        let (wire, fence) = (self.clone(), fence.clone());
        Connector::in_process(Arc::new(move |url, token| {
            let endpoints = wire.0.lock().expect("no panic while held");
            endpoints
                .iter()
                .find(|(_, e)| e.url == url)
                .and_then(|(cluster, e)| Some((cluster, e.inside.as_ref()?)))
                .map(|(cluster, server)| in_process(cluster, server, token, &fence, &wire.1))
        }))
    }

    /// A kubeconfig with one context for each `(cluster, token)`; the first is the current one.
    pub fn kubeconfig(&self, access: &[(&str, &str)]) -> anyhow::Result<String> {
        let mut clusters = Vec::new();
        let mut users = Vec::new();
        let mut contexts = Vec::new();
        for (name, token) in access {
            let endpoint = self
                .endpoint(name)
                .ok_or_else(|| anyhow::anyhow!("the lab has no cluster {name:?}"))?;
            let mut cluster = json!({ "server": endpoint.url });
            if let Some(pem) = &endpoint.authority {
                cluster["certificate-authority-data"] = json!(BASE64_STANDARD.encode(pem));
            }
            clusters.push(json!({ "name": name, "cluster": cluster }));
            users.push(json!({ "name": format!("{name}-admin"), "user": { "token": token } }));
            contexts.push(json!({ "name": name, "context": { "cluster": name, "user": format!("{name}-admin") } }));
        }
        let current = access.first().map(|(name, _)| *name).unwrap_or_default();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": current,
            "clusters": clusters, "users": users, "contexts": contexts,
        });
        Ok(serde_saphyr::to_string(&config)?)
    }
}

fn in_process(
    cluster: &str,
    server: &ApiServer,
    token: Option<&str>,
    fence: &Fence,
    faults: &Faults,
) -> Client {
    let (process, on) = fence.who();
    let route = Route {
        process: process.into(),
        on: on.into(),
        to: cluster.into(),
    };
    let faulty = FaultLayer {
        faults: faults.clone(),
        route,
    };
    let inner = server.service(token);
    let wire = fence.layer(faulty.layer(inner));
    Client::new(PatienceLayer.layer(wire), "default")
}

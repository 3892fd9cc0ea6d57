//! A hub, two workload clusters, and what answers for their kubelets.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farshore_api::ProtectionZone;
use farshore_api::meta::WORKLOAD_NAMESPACE;
use farshore_apiserver::{ApiServer, Options};
use farshore_core::conditions;
use farshore_runtime::{Clock, Connector, Process};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Longest that anything here may take, in virtual time.
const LIMIT: Duration = Duration::from_secs(900);

/// Three clusters, `hub`, `east` and `west`.
pub struct World {
    pub servers: BTreeMap<String, ApiServer>,
    pub shutdown: CancellationToken,
    /// Whether pods come up.
    pub kubelets: Arc<AtomicBool>,
}

impl World {
    /// Clusters that could become a zone; nothing runs yet.
    pub async fn new(rbac: bool) -> Self {
        let mut servers = BTreeMap::new();
        let shutdown = CancellationToken::new();
        for (seed, name) in (1..).zip(["east", "hub", "west"]) {
            let server = ApiServer::new(Options {
                name: name.into(),
                seed,
                rbac,
                ..Options::default()
            });
            drop(server.spawn(shutdown.clone()));
            servers.insert(name.to_owned(), server);
        }
        let world = Self {
            servers,
            shutdown,
            kubelets: Arc::new(AtomicBool::new(true)),
        };
        for name in ["east", "west"] {
            for (kind, plural) in [
                ("VirtualMachine", "virtualmachines"),
                ("VirtualMachineInstance", "virtualmachineinstances"),
            ] {
                world
                    .serve(name, "kubevirt.io", kind, plural, "Namespaced")
                    .await;
            }
            world.make(name, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("{name}-1")}})).await;
        }
        for namespace in ["site-recovery-system", "dr-metro1"] {
            world.namespace(namespace).await;
        }
        for name in ["east", "west"] {
            world
                .kubeconfig("dr-metro1", name, name, &world.servers[name].admin_token())
                .await;
        }
        world.run_kubelets();
        world
    }

    /// A world whose zone controller runs as the administrator of the hub.
    pub async fn running() -> Self {
        let world = Self::new(false).await;
        world.start(&world.servers["hub"].admin_token());
        world.served().await;
        world
    }

    /// Waits until the hub serves ProtectionZones.
    pub async fn served(&self) {
        let zones: Api<ProtectionZone> = self.api("hub", "dr-metro1");
        self.until("ProtectionZones are served", || async {
            zones.list(&Default::default()).await.ok().map(|_| ())
        })
        .await;
    }

    pub fn client(&self, cluster: &str) -> Client {
        let server = &self.servers[cluster];
        Client::new(server.service(Some(&server.admin_token())), "default")
    }

    pub fn api<K>(&self, cluster: &str, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client(cluster), namespace)
    }

    /// Starts the zone controller with this token on the hub.
    pub fn start(&self, token: &str) {
        let start = "2026-01-01T00:00:00Z".parse().unwrap();
        let servers = self.servers.clone();
        let factory = move |url: &str, token: Option<&str>| {
            let server = servers.get(url.strip_prefix("https://")?)?;
            Some(Client::new(server.service(token), "default"))
        };
        let process = Process {
            name: "protectionzone".into(),
            identity: "protectionzone-controller-0".into(),
            namespace: "site-recovery-system".into(),
            node: None,
            env: BTreeMap::new(),
            args: Vec::new(),
            client: Client::new(
                self.servers["hub"].service(Some(token)),
                "site-recovery-system",
            ),
            connector: Connector::in_process(Arc::new(factory)),
            clock: Clock::virtual_from(start),
            shutdown: self.shutdown.clone(),
        };
        tokio::spawn(async move { farshore_zone::run(process).await.unwrap() });
    }

    /// Creates an object from its manifest.
    pub async fn make(&self, cluster: &str, manifest: Value) -> DynamicObject {
        let api = self.dynamic(cluster, &manifest);
        api.create(
            &PostParams::default(),
            &serde_json::from_value(manifest).unwrap(),
        )
        .await
        .unwrap()
    }

    pub fn dynamic(&self, cluster: &str, manifest: &Value) -> Api<DynamicObject> {
        let (group, version) = manifest["apiVersion"]
            .as_str()
            .unwrap()
            .rsplit_once('/')
            .unwrap_or(("", "v1"));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            group,
            version,
            manifest["kind"].as_str().unwrap(),
        ));
        match manifest["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client(cluster), namespace, &resource),
            None => Api::all_with(self.client(cluster), &resource),
        }
    }

    pub async fn namespace(&self, name: &str) {
        self.make(
            "hub",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        )
        .await;
    }

    /// Makes a cluster serve a kind without a schema.
    pub async fn serve(&self, cluster: &str, group: &str, kind: &str, plural: &str, scope: &str) {
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {
                "group": group,
                "scope": scope,
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                }],
            },
        });
        self.make(cluster, crd).await;
    }

    /// Writes the Secret `<name>-kubeconfig` for the server of `cluster`.
    pub async fn kubeconfig(&self, namespace: &str, name: &str, cluster: &str, token: &str) {
        self.secret(namespace, name, &kubeconfig(cluster, token))
            .await;
    }

    pub async fn secret(&self, namespace: &str, name: &str, kubeconfig: &str) {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": format!("{name}-kubeconfig"), "namespace": namespace},
            "stringData": {"kubeconfig": kubeconfig},
        });
        let api: Api<Secret> = self.api("hub", namespace);
        api.patch(
            &format!("{name}-kubeconfig"),
            &PatchParams::apply("tester").force(),
            &Patch::Apply(&secret),
        )
        .await
        .unwrap();
    }

    /// Creates a zone of these clusters, whose Secrets are named after them.
    pub async fn zone(&self, namespace: &str, name: &str, clusters: &[&str]) -> ProtectionZone {
        self.try_zone(namespace, name, clusters).await.unwrap()
    }

    pub async fn try_zone(
        &self,
        namespace: &str,
        name: &str,
        clusters: &[&str],
    ) -> kube::Result<ProtectionZone> {
        let clusters: Vec<Value> = clusters
            .iter()
            .map(|c| json!({"name": c, "kubeconfigSecretRef": {"name": format!("{c}-kubeconfig")}}))
            .collect();
        let zone = json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusters": clusters},
        });
        let api: Api<DynamicObject> = self.dynamic("hub", &zone);
        let made = api
            .create(
                &PostParams::default(),
                &serde_json::from_value(zone).unwrap(),
            )
            .await?;
        Ok(serde_json::from_value(serde_json::to_value(made).unwrap()).unwrap())
    }

    pub async fn get_zone(&self, namespace: &str, name: &str) -> ProtectionZone {
        self.api::<ProtectionZone>("hub", namespace)
            .get(name)
            .await
            .unwrap()
    }

    /// Waits until a zone is as `is` says.
    pub async fn zone_until(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        is: impl Fn(&ProtectionZone) -> bool,
    ) -> ProtectionZone {
        let result = tokio::time::timeout(LIMIT, async {
            loop {
                let zone = self.get_zone(namespace, name).await;
                if is(&zone) {
                    return zone;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        match result.await {
            Ok(zone) => zone,
            Err(_) => panic!(
                "{what} did not come; status {:#?}",
                self.get_zone(namespace, name).await.status
            ),
        }
    }

    /// Waits until a zone of `dr-metro1` named `metro1` is ready.
    pub async fn ready(&self) -> ProtectionZone {
        self.zone_until("dr-metro1", "metro1", "Ready", |zone| {
            status(zone, "Ready") == "True"
        })
        .await
    }

    /// Waits until a zone has ClustersValidated=False with this reason.
    pub async fn refused(&self, namespace: &str, name: &str, reason: &str) -> Condition {
        let is = |zone: &ProtectionZone| {
            condition(zone, "ClustersValidated")
                .is_some_and(|c| c.status == "False" && c.reason == reason)
        };
        let zone = self.zone_until(namespace, name, reason, is).await;
        condition(&zone, "ClustersValidated").unwrap()
    }

    /// Polls until there is an answer.
    pub async fn until<T, F: Future<Output = Option<T>>>(
        &self,
        what: &str,
        look: impl Fn() -> F,
    ) -> T {
        let result = tokio::time::timeout(LIMIT, async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        result
            .await
            .unwrap_or_else(|_| panic!("{what}: did not happen"))
    }

    /// Lets a long time pass in which nothing is rolled out.
    pub async fn pass(&self, time: Duration) {
        let ran = self.kubelets.swap(false, Ordering::Relaxed);
        tokio::time::sleep(time).await;
        self.kubelets.store(ran, Ordering::Relaxed);
    }

    /// Annotations of the product's namespace on a workload cluster.
    pub async fn claim(&self, cluster: &str) -> Option<(String, String)> {
        let api: Api<Namespace> = Api::all(self.client(cluster));
        let namespace = api.get_opt(WORKLOAD_NAMESPACE).await.unwrap()?;
        let value = |key: &str| namespace.annotations().get(key).cloned();
        Some((
            value("siterecovery.trilio.io/owner-zone")?,
            value("siterecovery.trilio.io/owner-zone-namespace-uid")?,
        ))
    }

    pub async fn uid(&self, namespace: &str) -> String {
        Api::<Namespace>::all(self.client("hub"))
            .get(namespace)
            .await
            .unwrap()
            .uid()
            .unwrap()
    }

    pub async fn events(&self, namespace: &str) -> Vec<Event> {
        self.api::<Event>("hub", namespace)
            .list(&Default::default())
            .await
            .unwrap()
            .items
    }

    /// Waits until an event with this reason exists; returns its text.
    pub async fn event(&self, namespace: &str, reason: &str) -> String {
        self.until(reason, || async {
            let all = self.events(namespace).await;
            all.into_iter()
                .find(|e| e.reason.as_deref() == Some(reason))
                .and_then(|e| e.note)
        })
        .await
    }

    /// Marks every Deployment and DaemonSet as rolled out, while the kubelets run.
    fn run_kubelets(&self) {
        let on = self.kubelets.clone();
        let clients: Vec<Client> = self.servers.keys().map(|name| self.client(name)).collect();
        let shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            while !shutdown.is_cancelled() {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if !on.load(Ordering::Relaxed) {
                    continue;
                }
                for client in &clients {
                    roll_out::<Deployment>(client, &|_| json!({"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1})).await;
                    let nodes = |_: &DaemonSet| json!({"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "updatedNumberScheduled": 1, "numberReady": 1, "numberMisscheduled": 0});
                    roll_out::<DaemonSet>(client, &nodes).await;
                }
            }
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn roll_out<K>(client: &Client, status: &impl Fn(&K) -> Value)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + Debug
        + serde::de::DeserializeOwned
        + serde::Serialize,
{
    // A server that is down has nothing to roll out.
    let Ok(list) = Api::<K>::all(client.clone())
        .list(&Default::default())
        .await
    else {
        return;
    };
    for object in list.items {
        let generation = object.meta().generation.unwrap();
        let live = serde_json::to_value(&object).unwrap();
        if live["status"]["observedGeneration"] == generation {
            continue;
        }
        let mut status = status(&object);
        status["observedGeneration"] = generation.into();
        let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap());
        let _gone = api
            .patch_status(
                &object.name_any(),
                &PatchParams::default(),
                &Patch::Merge(json!({ "status": status })),
            )
            .await;
    }
}

pub fn kubeconfig(cluster: &str, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: [{{name: k, cluster: {{server: 'https://{cluster}'}}}}]\nusers: [{{name: u, user: {{token: '{token}'}}}}]\n"
    )
}

pub fn condition(zone: &ProtectionZone, type_: &str) -> Option<Condition> {
    conditions::get(&zone.status.as_ref()?.conditions, type_).cloned()
}

/// Status of a condition, or "".
pub fn status(zone: &ProtectionZone, type_: &str) -> String {
    condition(zone, type_).map(|c| c.status).unwrap_or_default()
}

pub fn phase(zone: &ProtectionZone) -> &'static str {
    zone.status
        .as_ref()
        .and_then(|s| s.phase)
        .map_or("", |p| p.as_str())
}

/// A ProtectionRequest of the zone's namespace.
pub fn request(name: &str) -> Value {
    json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionRequest",
        "metadata": {"name": name, "namespace": "dr-metro1"},
        "spec": {"vmName": name, "vmNamespace": "shop", "sourceCluster": "east"},
    })
}

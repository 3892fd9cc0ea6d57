//! Hub, east and west with a zone, a VM to protect, and hands for what the test asks of them.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use farshore_api::conditions::zone as zone_condition;
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::{
    DRBDReplicationPolicy, DRBDResource, DRBDVolume, ProtectionGroup, ProtectionRequest,
    ProtectionZone,
};
use farshore_apiserver::{ApiServer, ApiService, LogEntry, Options};
use farshore_core::conditions;
use farshore_runtime::{CancellationToken, Clock, Connector, Process};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::workload::Workload;

pub const ZONE: &str = "metro1";
pub const ZONE_NAMESPACE: &str = "dr-metro1";
pub const SHOP: &str = "shop";

pub fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Counts the manager's writes on all three servers and ends its life at one of them: the write is
/// carried out, its answer never arrives.
#[derive(Clone, Default)]
pub struct Fate {
    writes: Arc<AtomicU64>,
    last: Option<u64>,
    pub dead: CancellationToken,
}

impl Fate {
    pub fn after(writes: u64) -> Self {
        Self {
            last: Some(writes),
            ..Self::default()
        }
    }
}

#[derive(Clone)]
struct Watched {
    inner: ApiService,
    fate: Fate,
}

impl tower::Service<http::Request<kube::client::Body>> for Watched {
    type Response = http::Response<farshore_apiserver::ApiBody>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<kube::client::Body>) -> Self::Future {
        // Its own Lease is renewed at any time and is no step of anything.
        let lease = request.uri().path().contains("/leases/tsr-manager");
        let write = request.method() != http::Method::GET && !lease;
        let number = if write {
            self.fate.writes.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            0
        };
        let (fate, answer) = (self.fate.clone(), self.inner.call(request));
        Box::pin(async move {
            if fate.dead.is_cancelled() {
                std::future::pending::<()>().await;
            }
            let answer = answer.await;
            if write && fate.last == Some(number) {
                fate.dead.cancel();
                std::future::pending::<()>().await;
            }
            answer
        })
    }
}

pub struct World {
    pub hub: ApiServer,
    pub east: ApiServer,
    pub west: ApiServer,
    pub workload: Workload,
    clock: Clock,
    /// Phases of every request, as they were seen.
    pub phases: Arc<Mutex<BTreeMap<String, Vec<ProtectionPhase>>>>,
    shutdown: CancellationToken,
    manager: Option<(JoinHandle<()>, CancellationToken)>,
}

pub fn admin(server: &ApiServer) -> Client {
    Client::new(server.service(Some(&server.admin_token())), "default")
}

async fn create<K>(api: &Api<K>, object: Value)
where
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), &from(object))
        .await
        .unwrap();
}

fn kubevirt_crd(kind: &str, plural: &str) -> Value {
    json!({
        "metadata": {"name": format!("{plural}.kubevirt.io")},
        "spec": {
            "group": "kubevirt.io", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    })
}

impl World {
    /// Three clusters and a validated zone; no manager yet.
    pub async fn new() -> Self {
        let server = |name: &str| {
            ApiServer::new(Options {
                name: name.into(),
                ..Options::default()
            })
        };
        let shutdown = CancellationToken::new();
        let (hub, east, west) = (server("hub"), server("east"), server("west"));
        for server in [&hub, &east, &west] {
            server.spawn(shutdown.clone());
            let crds: Api<CustomResourceDefinition> = Api::all(admin(server));
            for crd in farshore_api::crds::all() {
                crds.create(&PostParams::default(), &crd).await.unwrap();
            }
        }
        for server in [&east, &west] {
            let crds: Api<CustomResourceDefinition> = Api::all(admin(server));
            for (kind, plural) in [
                ("VirtualMachine", "virtualmachines"),
                ("VirtualMachineInstance", "virtualmachineinstances"),
                (
                    "VirtualMachineInstanceMigration",
                    "virtualmachineinstancemigrations",
                ),
            ] {
                create(&crds, kubevirt_crd(kind, plural)).await;
            }
            let class =
                json!({"metadata": {"name": "lab-block"}, "provisioner": "lab", "parameters": {}});
            create(&Api::<StorageClass>::all(admin(server)), class).await;
        }
        let namespace = |name: &str| json!({"metadata": {"name": name}});
        create(
            &Api::<Namespace>::all(admin(&hub)),
            namespace(ZONE_NAMESPACE),
        )
        .await;
        create(&Api::<Namespace>::all(admin(&east)), namespace(SHOP)).await;
        let workload = Workload::new(&east, &west);
        let clock = Clock::virtual_from("2026-01-01T00:00:00Z".parse().unwrap());
        let phases = Arc::default();
        let world = Self {
            hub,
            east,
            west,
            workload,
            clock,
            phases,
            shutdown,
            manager: None,
        };
        world.zone().await;
        world.watch_phases();
        let (workload, ended) = (world.workload.clone(), world.shutdown.clone());
        tokio::spawn(ended.run_until_cancelled_owned(async move { workload.run().await }));
        world
    }

    async fn zone(&self) {
        for (cluster, server) in [("east", &self.east), ("west", &self.west)] {
            let kubeconfig = format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nclusters: [{{name: c, cluster: {{server: 'https://{cluster}'}}}}]\nusers: [{{name: u, user: {{token: '{}'}}}}]\n",
                server.admin_token()
            );
            create(
                &self.on_hub::<Secret>(),
                json!({"metadata": {"name": cluster}, "stringData": {"kubeconfig": kubeconfig}}),
            )
            .await;
        }
        let cluster = |name: &str| json!({"name": name, "kubeconfigSecretRef": {"name": name, "key": "kubeconfig"}});
        create(&self.on_hub::<ProtectionZone>(), json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone", "metadata": {"name": ZONE},
            "spec": {"clusters": [cluster("east"), cluster("west")]},
        }))
        .await;
        self.validated("True").await;
        self.policy("metro1-default", true).await;
    }

    /// Makes the hub a server that does not know the rules of a kind.
    pub async fn forget_rules(&self, plural: &str) {
        let crds: Api<CustomResourceDefinition> = Api::all(admin(&self.hub));
        let name = format!("{plural}.siterecovery.trilio.io");
        let mut crd = crds.get(&name).await.unwrap();
        let schema = crd.spec.versions[0].schema.as_mut().unwrap();
        let root = schema.open_api_v3_schema.as_mut().unwrap();
        assert!(root.x_kubernetes_validations.take().is_some());
        crds.replace(&name, &PostParams::default(), &crd)
            .await
            .unwrap();
    }

    /// Sets the zone's condition ClustersValidated.
    pub async fn validated(&self, status: &str) {
        let condition = json!({
            "type": zone_condition::CLUSTERS_VALIDATED, "status": status, "reason": "Test", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let patch = json!({"status": {"conditions": [condition]}});
        let api = self.on_hub::<ProtectionZone>();
        api.patch_status(ZONE, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    pub async fn policy(&self, name: &str, default: bool) {
        create(
            &self.on_hub::<DRBDReplicationPolicy>(),
            json!({
                "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDReplicationPolicy",
                "metadata": {"name": name}, "spec": {"isDefault": default},
            }),
        )
        .await;
    }

    pub fn on_hub<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(admin(&self.hub), ZONE_NAMESPACE)
    }

    pub fn server(&self, cluster: &str) -> &ApiServer {
        if cluster == "east" {
            &self.east
        } else {
            &self.west
        }
    }

    pub fn on<K>(&self, cluster: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(admin(self.server(cluster)), SHOP)
    }

    pub fn vms(&self, cluster: &str) -> Api<DynamicObject> {
        vms(&admin(self.server(cluster)))
    }

    pub fn vmis(&self, cluster: &str) -> Api<DynamicObject> {
        vmis(&admin(self.server(cluster)))
    }

    pub async fn vm(&self, cluster: &str, name: &str) -> Option<Value> {
        let vm = self.vms(cluster).get_opt(name).await.unwrap()?;
        Some(serde_json::to_value(vm).unwrap())
    }

    pub async fn runs(&self, cluster: &str, name: &str) -> bool {
        self.vmis(cluster).get_opt(name).await.unwrap().is_some()
    }

    pub async fn request(&self, name: &str) -> ProtectionRequest {
        self.on_hub::<ProtectionRequest>().get(name).await.unwrap()
    }

    pub async fn phase(&self, name: &str) -> Option<ProtectionPhase> {
        self.on_hub::<ProtectionRequest>()
            .get_opt(name)
            .await
            .unwrap()?
            .status?
            .phase
    }

    pub async fn resource(&self, cluster: &str, name: &str) -> Option<DRBDResource> {
        let all = self
            .on::<DRBDResource>(cluster)
            .list(&ListParams::default())
            .await
            .unwrap();
        all.items.into_iter().find(|r| r.spec.vm_ref.name == name)
    }

    pub async fn drbd_volumes(&self) -> Vec<DRBDVolume> {
        self.on_hub::<DRBDVolume>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    /// A running VM on east with this many disks, and a cloud-init volume.
    pub async fn machine(&self, name: &str, disks: usize) {
        let claims = self.on::<PersistentVolumeClaim>("east");
        let mut volumes =
            vec![json!({"name": "init", "cloudInitNoCloud": {"userData": "#cloud-config"}})];
        for disk in 0..disks {
            let claim = format!("{name}-{disk}");
            create(&claims, json!({
                "metadata": {"name": claim},
                "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "lab-block",
                    "resources": {"requests": {"storage": "1Gi"}}},
            }))
            .await;
            volumes.push(json!({"name": format!("disk{disk}"), "persistentVolumeClaim": {"claimName": claim}}));
        }
        create(&self.vms("east"), json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"runStrategy": "Always", "template": {"spec": {"domain": {"cpu": {"cores": 2}}, "volumes": volumes}}},
        }))
        .await;
    }

    pub async fn protect(&self, name: &str) {
        self.protect_as(name, json!({})).await;
    }

    /// Protects a VM of this name, with further fields of the spec.
    pub async fn protect_as(&self, name: &str, more: Value) {
        let mut request = json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionRequest", "metadata": {"name": name},
            "spec": {"vmName": name, "vmNamespace": SHOP, "sourceCluster": "east"},
        });
        for (key, value) in more.as_object().unwrap() {
            request["spec"][key] = value.clone();
        }
        create(&self.on_hub::<ProtectionRequest>(), request).await;
    }

    pub async fn group(&self, name: &str, spec: Value) {
        create(&self.on_hub::<ProtectionGroup>(), json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionGroup", "metadata": {"name": name}, "spec": spec,
        }))
        .await;
    }

    pub fn mirrors(&self, cluster: &str) -> Api<ProtectionGroup> {
        Api::namespaced(admin(self.server(cluster)), ZONE_NAMESPACE)
    }

    pub async fn patch_request(&self, name: &str, patch: Value) {
        let api = self.on_hub::<ProtectionRequest>();
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    fn process(&self, fate: &Fate) -> Process {
        let client = |server: &ApiServer| {
            let inner = server.service(Some(&server.admin_token()));
            Client::new(
                Watched {
                    inner,
                    fate: fate.clone(),
                },
                "default",
            )
        };
        let (east, west) = (client(&self.east), client(&self.west));
        let connector = Connector::in_process(Arc::new(move |server, _| match server {
            "https://east" => Some(east.clone()),
            "https://west" => Some(west.clone()),
            _ => None,
        }));
        Process {
            name: "tsr-manager".into(),
            identity: "tsr-manager-0".into(),
            namespace: ZONE_NAMESPACE.into(),
            node: None,
            env: BTreeMap::from([("ZONE_NAME".into(), ZONE.into())]),
            args: Vec::new(),
            client: client(&self.hub),
            connector,
            clock: self.clock.clone(),
            shutdown: CancellationToken::new(),
        }
    }

    /// Starts the manager.
    pub fn start(&mut self) {
        self.start_with(&Fate::default());
    }

    pub fn start_with(&mut self, fate: &Fate) {
        let process = self.process(fate);
        let shutdown = process.shutdown.clone();
        let run = async move { farshore_manager::run(process).await.unwrap() };
        self.manager = Some((tokio::spawn(run), shutdown));
    }

    /// Ends the manager as a crash does.
    pub fn kill(&mut self) {
        if let Some((task, _)) = self.manager.take() {
            task.abort();
        }
    }

    fn watch_phases(&self) {
        let (api, phases) = (self.on_hub::<ProtectionRequest>(), self.phases.clone());
        let watch = async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let Ok(watcher::Event::Apply(request) | watcher::Event::InitApply(request)) = event
                else {
                    continue;
                };
                let Some(phase) = request.status.as_ref().and_then(|s| s.phase) else {
                    continue;
                };
                let mut phases = phases.lock().unwrap();
                let seen = phases.entry(request.name_any()).or_insert_with(Vec::new);
                if seen.last() != Some(&phase) {
                    seen.push(phase);
                }
            }
        };
        tokio::spawn(self.shutdown.clone().run_until_cancelled_owned(watch));
    }

    pub fn phases_of(&self, name: &str) -> Vec<ProtectionPhase> {
        self.phases
            .lock()
            .unwrap()
            .get(name)
            .cloned()
            .unwrap_or_default()
    }

    /// Waits until something holds; up to 20 minutes of virtual time.
    pub async fn until<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        for _ in 0..1200 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let requests = self
            .on_hub::<ProtectionRequest>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let told: Vec<_> = requests
            .items
            .iter()
            .map(|r| serde_json::to_string_pretty(&r.status).unwrap())
            .collect();
        panic!("never: {what}\n{}\n{:?}", told.join("\n"), self.workload);
    }

    pub async fn until_phase(&self, name: &str, phase: ProtectionPhase) {
        self.until(&format!("{name} is {phase}"), || async {
            self.phase(name).await == Some(phase)
        })
        .await;
    }

    /// Waits until the standby of this request is in step, too, which is told last.
    pub async fn settled(&self, name: &str) {
        self.until(&format!("the standby of {name} is in step"), || async {
            let status = self.request(name).await.status.unwrap_or_default();
            conditions::get(&status.conditions, "StandbyInStep").is_some_and(|c| c.status == "True")
        })
        .await;
    }

    /// Writes that the manager made on any server since the marks, its Lease left out.
    pub fn writes_since(&self, marks: [u64; 3]) -> Vec<LogEntry> {
        let servers = [&self.hub, &self.east, &self.west];
        let all = servers
            .into_iter()
            .zip(marks)
            .flat_map(|(s, mark)| s.request_log().since(mark));
        all.filter(|e| e.is_write() && e.resource != "leases" && e.manager != "fake")
            .collect()
    }

    pub fn marks(&self) -> [u64; 3] {
        [&self.hub, &self.east, &self.west].map(|s| s.request_log().mark())
    }

    pub async fn sleep(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill();
        self.shutdown.cancel();
    }
}

fn kubevirt(client: &Client, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("kubevirt.io", "v1", kind),
        plural,
    );
    Api::namespaced_with(client.clone(), SHOP, &resource)
}

pub fn vms(client: &Client) -> Api<DynamicObject> {
    kubevirt(client, "VirtualMachine", "virtualmachines")
}

pub fn vmis(client: &Client) -> Api<DynamicObject> {
    kubevirt(client, "VirtualMachineInstance", "virtualmachineinstances")
}

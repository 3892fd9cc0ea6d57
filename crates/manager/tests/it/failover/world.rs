//! Three API servers and a small workload side: mirrors report what they are told, roles follow
//! `sourceCluster`, Jobs end. Virtual time.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use farshore_api::failover_request::FailoverState;
use farshore_api::{
    DRBDResource, FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone,
};
use farshore_apiserver::{ApiBody, ApiServer, ApiService, LogEntry, Options};
use farshore_manager::{failover, monitor};
use farshore_runtime::remote::Clusters;
use farshore_runtime::{CancellationToken, Clock, Connector, Process};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

pub const NS: &str = "dr-m";
/// The servers' clocks start here.
const EPOCH: i64 = 1_767_225_600;
const CLUSTERS: [&str; 2] = ["east", "west"];

/// Handles on the world; clones share it.
#[derive(Clone)]
pub struct World {
    pub hub: ApiServer,
    pub workload: BTreeMap<&'static str, ApiServer>,
    pub habits: Arc<Habits>,
    pub clock: Clock,
    pub zone: ProtectionZone,
}

/// How the workload side behaves.
#[derive(Default)]
pub struct Habits {
    /// The source's VMs do not stop.
    pub never_stops: AtomicBool,
    /// DRBD is not promoted.
    pub never_promotes: AtomicBool,
    /// Jobs never end.
    pub jobs_hang: AtomicBool,
    /// Jobs fail.
    pub jobs_fail: AtomicBool,
}

impl World {
    /// The healthy world: group `shop` with db01 and web01 protected, running on east.
    pub async fn new() -> Self {
        Self::with(json!({})).await
    }

    /// The healthy world with more in the group's spec.
    pub async fn with(group: Value) -> Self {
        let hub = ApiServer::new(Options {
            name: "hub".into(),
            ..Options::default()
        });
        let workload: BTreeMap<_, _> = CLUSTERS
            .into_iter()
            .map(|c| {
                (
                    c,
                    ApiServer::new(Options {
                        name: c.into(),
                        seed: 7,
                        ..Options::default()
                    }),
                )
            })
            .collect();
        let clock = Clock::virtual_from(Timestamp::from_second(EPOCH).unwrap());
        let client = admin(&hub);
        for server in std::iter::once(&hub).chain(workload.values()) {
            let crds = Api::all(admin(server));
            for crd in farshore_api::crds::all() {
                crds.create(&PostParams::default(), &crd).await.unwrap();
            }
        }
        make(
            &client,
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NS}}),
        )
        .await;
        for cluster in CLUSTERS {
            let kubeconfig = json!({
                "current-context": cluster,
                "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster}}],
                "clusters": [{"name": cluster, "cluster": {"server": format!("https://{cluster}")}}],
                "users": [{"name": cluster, "user": {"token": "t"}}],
            });
            make(&client, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": cluster, "namespace": NS}, "stringData": {"kubeconfig": kubeconfig.to_string()}})).await;
        }
        make(&client, json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone", "metadata": {"name": "m", "namespace": NS},
            "spec": {"clusters": CLUSTERS.map(|c| json!({"name": c, "kubeconfigSecretRef": {"name": c}}))},
        }))
        .await;
        let zone: ProtectionZone = Api::namespaced(client.clone(), NS).get("m").await.unwrap();
        let mut spec = json!({"members": [{"protectionRequestRef": "db01"}, {"vmRef": {"namespace": "shop", "name": "web01"}}], "sla": {"rpoTargetSeconds": 60}});
        spec.as_object_mut()
            .unwrap()
            .extend(group.as_object().unwrap().clone());
        make(&client, json!({"apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionGroup", "metadata": {"name": "shop", "namespace": NS}, "spec": spec})).await;
        let world = Self {
            hub,
            workload,
            habits: Arc::default(),
            clock,
            zone,
        };
        for vm in ["db01", "web01"] {
            make(&client, json!({
                "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionRequest", "metadata": {"name": vm, "namespace": NS},
                "spec": {"vmName": vm, "vmNamespace": "shop", "sourceCluster": "east"},
            }))
            .await;
            status::<ProtectionRequest>(&client, NS, vm, json!({"phase": "Protected"})).await;
        }
        for cluster in CLUSTERS {
            world.furnish(cluster).await;
        }
        world
    }

    async fn furnish(&self, cluster: &'static str) {
        let client = self.client(cluster);
        let vm_crd = serde_json::from_value::<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>(json!({
            "metadata": {"name": "virtualmachines.kubevirt.io"},
            "spec": {"group": "kubevirt.io", "scope": "Namespaced", "names": {"plural": "virtualmachines", "singular": "virtualmachine", "kind": "VirtualMachine", "listKind": "VirtualMachineList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
        }))
        .unwrap();
        Api::all(client.clone())
            .create(&PostParams::default(), &vm_crd)
            .await
            .unwrap();
        for namespace in [NS, "shop", "ops"] {
            make(
                &client,
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            )
            .await;
        }
        make(&client, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("{cluster}-1")}, "spec": {}})).await;
        let active = cluster == "east";
        self.mirror(cluster, "shop", if active { "running" } else { "stopped" })
            .await;
        for vm in ["db01", "web01"] {
            make(&client, json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": vm, "namespace": "shop"}, "spec": {"running": active}})).await;
            let name = format!("drbd-shop-{vm}-01234567");
            let peer = if active { "west" } else { "east" };
            let role = if active { "Primary" } else { "Secondary" };
            make(&client, json!({
                "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDResource",
                "metadata": {"name": name, "namespace": "shop", "labels": {"siterecovery.trilio.io/zone": "m"}},
                "spec": {"nodeName": format!("{cluster}-1"), "vmRef": {"name": vm}, "zone": "m", "cluster": cluster, "peerCluster": peer, "role": role, "roleEpoch": 1,
                    "volumes": [{"index": 0, "name": "root", "pvcName": "root", "storageClass": "s", "sizeBytes": 1, "port": if vm == "db01" { 7000 } else { 7001 }}]},
            }))
            .await;
            status::<DRBDResource>(&client, "shop", &name, json!({
                "role": role, "roleEpoch": 1, "connectionState": "Connected", "diskState": "UpToDate",
                "volumes": [{"index": 0, "minor": 1000, "role": role, "connectionState": "Connected", "diskState": "UpToDate", "peerDiskState": "UpToDate",
                    "replicationState": "Established", "outOfSyncBytes": 0, "syncPercent": 100}],
            }))
            .await;
        }
    }

    /// A mirror that reports what it is told.
    pub async fn mirror(&self, cluster: &'static str, name: &str, state: &str) {
        let client = self.client(cluster);
        let vms = ["db01", "web01"];
        make(&client, json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionGroup",
            "metadata": {"name": name, "namespace": NS, "labels": {"siterecovery.trilio.io/mirror": "true", "siterecovery.trilio.io/zone": "m"}},
            "spec": {"desiredState": state, "members": vms.map(|vm| json!({"vmRef": {"namespace": "shop", "name": vm}}))},
        }))
        .await;
        status::<ProtectionGroup>(&client, NS, name, report(state, 1)).await;
    }

    pub fn client(&self, cluster: &str) -> Client {
        admin(self.workload.get(cluster).unwrap_or(&self.hub))
    }

    /// The process of the manager, whose requests pass the fuse.
    pub fn process(&self, fuse: &Fuse) -> Process {
        let token = self
            .hub
            .issue_token("system:serviceaccount:dr-m:tsr-manager", &[]);
        let (workload, far) = (self.workload.clone(), fuse.clone());
        Process {
            name: "tsr-manager".into(),
            identity: "tsr-manager-0".into(),
            namespace: NS.into(),
            node: None,
            env: BTreeMap::new(),
            args: vec![],
            client: fuse.client(self.hub.service(Some(&token))),
            connector: Connector::in_process(Arc::new(move |url, _| {
                let server = workload.get(url.strip_prefix("https://")?)?;
                let token = server.issue_token("system:serviceaccount:dr-m:tsr-manager", &[]);
                Some(far.client(server.service(Some(&token))))
            })),
            clock: self.clock.clone(),
            shutdown: CancellationToken::new(),
        }
    }

    /// Starts the failover-controller, the monitor and the workload side.
    pub fn start(&self) -> Process {
        let process = self.process(&Fuse::default());
        let (p, zone) = (process.clone(), self.zone.clone());
        tokio::spawn(async move {
            let clusters = Clusters::new(&p, NS);
            tokio::join!(
                failover::run(&p, &zone, &clusters),
                monitor::run(&p, &zone, &clusters)
            )
        });
        self.animate();
        process
    }

    /// The workload side, for as long as the runtime lives.
    pub fn animate(&self) {
        let world = self.clone();
        tokio::spawn(async move {
            loop {
                world.live().await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
    }

    /// One beat of the workload side.
    pub async fn live(&self) {
        let requests: Api<ProtectionRequest> = Api::namespaced(self.client("hub"), NS);
        let Ok(requests) = requests.list(&ListParams::default()).await else {
            return;
        };
        for cluster in CLUSTERS {
            let client = self.client(cluster);
            let mirrors: Api<ProtectionGroup> = Api::namespaced(client.clone(), NS);
            let Ok(mirrors) = mirrors.list(&ListParams::default()).await else {
                continue;
            };
            for mirror in mirrors {
                self.beat_of_mirror(&client, cluster, &mirror).await;
            }
            for request in &requests.items {
                self.beat_of_role(&client, cluster, request).await;
            }
            self.beat_of_jobs(&client).await;
        }
    }

    async fn beat_of_mirror(&self, client: &Client, cluster: &str, mirror: &ProtectionGroup) {
        let state = mirror.status.clone().unwrap_or_default();
        let wanted = mirror.spec.desired_state.as_str();
        let generation = mirror.metadata.generation.unwrap();
        if state.observed_generation == Some(generation)
            && state.current_state.map(|s| s.as_str()) == Some(wanted)
        {
            return;
        }
        let stuck = cluster == "east"
            && wanted == "stopped"
            && self.habits.never_stops.load(Ordering::Relaxed);
        let now = if state.observed_generation != Some(generation) || stuck {
            "mixed"
        } else {
            wanted
        };
        status::<ProtectionGroup>(client, NS, &mirror.name_any(), report(now, generation)).await;
    }

    async fn beat_of_role(&self, client: &Client, cluster: &str, request: &ProtectionRequest) {
        let name = format!("drbd-shop-{}-01234567", request.spec.vm_name);
        let api: Api<DRBDResource> = Api::namespaced(client.clone(), "shop");
        let Ok(resource) = api.get(&name).await else {
            return;
        };
        let role = resource
            .status
            .as_ref()
            .and_then(|s| s.role)
            .unwrap()
            .as_str();
        let wanted = if request.spec.source_cluster == cluster {
            "Primary"
        } else {
            "Secondary"
        };
        if role == wanted
            || (wanted == "Primary"
                && cluster == "west"
                && self.habits.never_promotes.load(Ordering::Relaxed))
        {
            return;
        }
        let peer = CLUSTERS.into_iter().find(|c| *c != cluster).unwrap();
        let other: Api<DRBDResource> = Api::namespaced(self.client(peer), "shop");
        if wanted == "Primary"
            && other
                .get(&name)
                .await
                .unwrap()
                .status
                .unwrap()
                .role
                .unwrap()
                .as_str()
                == "Primary"
        {
            return;
        }
        status::<DRBDResource>(client, "shop", &name, json!({"role": wanted})).await;
    }

    async fn beat_of_jobs(&self, client: &Client) {
        let jobs: Api<Job> = Api::namespaced(client.clone(), "ops");
        let hang = self.habits.jobs_hang.load(Ordering::Relaxed);
        let type_ = if self.habits.jobs_fail.load(Ordering::Relaxed) {
            "Failed"
        } else {
            "Complete"
        };
        for job in jobs
            .list(&ListParams::default())
            .await
            .into_iter()
            .flatten()
        {
            let ended = job.status.as_ref().is_some_and(|s| s.conditions.is_some());
            if !hang && !ended {
                status::<Job>(
                    client,
                    "ops",
                    &job.name_any(),
                    json!({"conditions": [{"type": type_, "status": "True", "reason": "Test"}]}),
                )
                .await;
            }
        }
    }

    /// Creates a request to move `shop`.
    pub async fn request(&self, name: &str, target: &str, more: Value) {
        let mut spec = json!({"protectionGroupRef": {"name": "shop"}, "targetCluster": target, "failoverType": "planned"});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        make(&self.client("hub"), json!({"apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "FailoverRequest", "metadata": {"name": name, "namespace": NS}, "spec": spec})).await;
    }

    pub fn requests(&self) -> Api<FailoverRequest> {
        Api::namespaced(self.client("hub"), NS)
    }

    /// Its state now.
    pub async fn state(&self, name: &str) -> Option<FailoverState> {
        let request = self.requests().get(name).await.unwrap();
        request.status.and_then(|s| s.state)
    }

    /// Sets `spec.abort`.
    pub async fn abort(&self, name: &str) {
        let abort = Patch::Merge(json!({"spec": {"abort": true}}));
        self.requests()
            .patch(name, &PatchParams::default(), &abort)
            .await
            .unwrap();
    }

    /// Tells a mirror, as the hub's group controller would; it reports at the next beat.
    pub async fn tell_mirror(&self, cluster: &str, state: &str) {
        let api: Api<ProtectionGroup> = Api::namespaced(self.client(cluster), NS);
        let told = Patch::Merge(json!({"spec": {"desiredState": state}}));
        api.patch("shop", &PatchParams::default(), &told)
            .await
            .unwrap();
    }

    /// The replication link is cut: the source, Primary last, calls its data UpToDate.
    pub async fn cut_link(&self) {
        for (cluster, disk) in [("east", "UpToDate"), ("west", "Consistent")] {
            for vm in ["db01", "web01"] {
                let name = format!("drbd-shop-{vm}-01234567");
                let told = json!({"connectionState": "Connecting", "diskState": disk});
                status::<DRBDResource>(&self.client(cluster), "shop", &name, told).await;
            }
        }
    }

    /// Waits until the request is in this state.
    pub async fn until(&self, name: &str, state: FailoverState) -> FailoverRequest {
        self.wait(name, &format!("state {state}"), |r| {
            r.status.as_ref().and_then(|s| s.state) == Some(state)
        })
        .await
    }

    /// Waits until the request is as `good` wants it; at most 20 virtual minutes.
    pub async fn wait(
        &self,
        name: &str,
        what: &str,
        good: impl Fn(&FailoverRequest) -> bool,
    ) -> FailoverRequest {
        let mut last = None;
        for _ in 0..12_000 {
            let request = self.requests().get(name).await.unwrap();
            if good(&request) {
                return request;
            }
            last = request.status;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{name} never reached {what}: {last:#?}");
    }

    /// Lets virtual time pass.
    pub async fn pass(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    pub async fn sources(&self) -> Vec<String> {
        let api: Api<ProtectionRequest> = Api::namespaced(self.client("hub"), NS);
        api.list(&ListParams::default())
            .await
            .unwrap()
            .into_iter()
            .map(|r| r.spec.source_cluster)
            .collect()
    }

    pub async fn mirror_of(&self, cluster: &str) -> ProtectionGroup {
        Api::namespaced(self.client(cluster), NS)
            .get("shop")
            .await
            .unwrap()
    }

    pub async fn taint(&self, node: &str, keys: &[&str]) {
        let api: Api<Node> = Api::all(self.client("west"));
        let taints: Vec<Value> = keys
            .iter()
            .map(|k| json!({"key": k, "effect": "NoSchedule"}))
            .collect();
        api.patch(
            node,
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"taints": taints}})),
        )
        .await
        .unwrap();
    }

    pub async fn taints(&self, node: &str) -> Vec<String> {
        let node: Node = Api::all(self.client("west")).get(node).await.unwrap();
        node.spec
            .and_then(|s| s.taints)
            .into_iter()
            .flatten()
            .map(|t| t.key)
            .collect()
    }

    /// Where the request logs of all clusters are now.
    pub fn mark(&self) -> BTreeMap<&'static str, u64> {
        self.servers()
            .map(|(name, server)| (name, server.request_log().mark()))
            .collect()
    }

    /// Writes of the manager's reconcilers on all clusters: `cluster verb resource/name by manager`.
    pub fn writes(&self) -> Vec<String> {
        self.writes_since(&BTreeMap::new())
    }

    /// The same since a mark.
    pub fn writes_since(&self, marks: &BTreeMap<&'static str, u64>) -> Vec<String> {
        let mut all = Vec::new();
        for (name, server) in self.servers() {
            let since = marks.get(name).copied().unwrap_or(0);
            let own = |e: &LogEntry| e.user.ends_with(":tsr-manager") && e.is_write();
            let told = |e: &LogEntry| {
                format!(
                    "{name} {} {}/{} by {}",
                    e.verb, e.resource, e.name, e.manager
                )
            };
            all.extend(
                server
                    .request_log()
                    .since(since)
                    .iter()
                    .filter(|e| own(e))
                    .map(told),
            );
        }
        all
    }

    fn servers(&self) -> impl Iterator<Item = (&'static str, &ApiServer)> {
        std::iter::once(("hub", &self.hub))
            .chain(self.workload.iter().map(|(name, server)| (*name, server)))
    }
}

fn report(state: &str, generation: i64) -> Value {
    let vms = ["db01", "web01"].map(|vm| json!({"name": vm, "namespace": "shop", "state": state}));
    json!({"currentState": state, "observedGeneration": generation, "vms": vms})
}

fn admin(server: &ApiServer) -> Client {
    Client::new(server.service(Some(&server.admin_token())), "default")
}

/// Creates any object.
pub async fn make(client: &Client, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let types = object.types.clone().unwrap();
    let gvk = GroupVersionKind::try_from(&types).unwrap();
    let plural = match types.kind.as_str() {
        "ReplicationGroupStatus" => "replicationgroupstatuses".to_string(),
        kind => format!("{}s", kind.to_lowercase()),
    };
    let resource = ApiResource::from_gvk_with_plural(&gvk, &plural);
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// Merges into a status, as the workload side.
pub async fn status<K>(client: &Client, namespace: &str, name: &str, status: Value)
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    // The object may be gone, or the cluster down: then it does not report.
    drop(
        api.patch_status(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({"status": status})),
        )
        .await,
    );
}

/// Ends a process at its n-th write: from then on none of its requests is answered. The write
/// itself is done or not, as asked.
#[derive(Clone, Default)]
pub struct Fuse(Arc<FuseState>);

struct FuseState {
    left: AtomicI64,
    done: bool,
    writes: AtomicU64,
    blown: CancellationToken,
    last: Mutex<String>,
}

impl Default for FuseState {
    fn default() -> Self {
        Self {
            left: AtomicI64::new(i64::MAX),
            done: true,
            writes: AtomicU64::new(0),
            blown: CancellationToken::new(),
            last: Mutex::default(),
        }
    }
}

impl Fuse {
    /// Blows at write number `n`, from 1; the write is still done if `done`.
    pub fn at(n: i64, done: bool) -> Self {
        Self(Arc::new(FuseState {
            left: AtomicI64::new(n),
            done,
            ..FuseState::default()
        }))
    }

    pub async fn blown(&self) {
        self.0.blown.cancelled().await;
    }

    /// The write that blew it.
    pub fn last(&self) -> String {
        self.0.last.lock().unwrap().clone()
    }

    /// Writes that passed.
    pub fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Relaxed)
    }

    fn client(&self, service: ApiService) -> Client {
        Client::new(
            Fused {
                service,
                fuse: self.clone(),
            },
            "default",
        )
    }
}

#[derive(Clone)]
struct Fused {
    service: ApiService,
    fuse: Fuse,
}

type Answer = Result<http::Response<ApiBody>, tower::BoxError>;

impl tower::Service<http::Request<kube::client::Body>> for Fused {
    type Response = http::Response<ApiBody>;
    type Error = tower::BoxError;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<kube::client::Body>) -> Self::Future {
        let fuse = self.fuse.0.clone();
        let write = request.method() != http::Method::GET;
        let what = format!("{} {}", request.method(), request.uri().path());
        let mut service = self.service.clone();
        Box::pin(async move {
            if fuse.blown.is_cancelled() {
                return std::future::pending().await;
            }
            let last = write && fuse.left.fetch_sub(1, Ordering::Relaxed) == 1;
            if last {
                *fuse.last.lock().unwrap() = what;
                if fuse.done {
                    drop(service.call(request).await);
                }
                fuse.blown.cancel();
                return std::future::pending().await;
            }
            if write {
                fuse.writes.fetch_add(1, Ordering::Relaxed);
            }
            service.call(request).await
        })
    }
}

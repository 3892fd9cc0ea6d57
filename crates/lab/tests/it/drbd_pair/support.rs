//! Two workload clusters with one node each. The test does what placement, the manager and the
//! kubelet would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use farshore_api::drbd::{DiskState, Role};
use farshore_api::drbd_resource::{DRBDResourcePhase, DRBDResourceStatus};
use farshore_api::{DRBDResource, VmRef, names};
use farshore_apiserver::{ApiServer, ApiService, Options as ServerOptions};
use farshore_lab::drbd::{Options, World};
use farshore_lab::guest::{self, Disk, Ledger};
use farshore_lab::storage::{BLOCK_BYTES, Storage};
use farshore_runtime::{Clock, Connector, Process};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub const EAST: usize = 0;
pub const WEST: usize = 1;
pub const CLUSTERS: [&str; 2] = ["east", "west"];
pub const NODES: [&str; 2] = ["east-1", "west-1"];
pub const NAMESPACE: &str = "shop";
pub const PORT: i32 = 7003;
const BLOCKS: i64 = 2048;

pub struct Pair {
    pub world: World,
    pub storage: Storage,
    pub servers: [ApiServer; 2],
    pub name: String,
    clock: Clock,
    shutdown: CancellationToken,
    counters: [Arc<AtomicU64>; 2],
    _stop: tokio_util::sync::DropGuard,
}

fn parse<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

impl Pair {
    /// Everything that precedes the agents: bound node, volumes, anchor pod, secret, DRBDResource.
    pub async fn new() -> Self {
        let pair = Self::empty().await;
        for side in [EAST, WEST] {
            pair.place(side).await;
        }
        pair
    }

    /// Two clusters with a node each, and nothing protected.
    pub async fn empty() -> Self {
        let shutdown = CancellationToken::new();
        let storage = Storage::new();
        // 8 MiB take 8 s.
        let options = Options {
            sync_bytes_per_second: 1 << 20,
            latency: Duration::from_millis(1),
            peer_timeout: Duration::from_secs(6),
        };
        let world = World::new(storage.clone(), options, shutdown.clone());
        let mut seed = 0;
        let servers = CLUSTERS.map(|name| {
            seed += 1;
            let server = ApiServer::new(ServerOptions {
                name: name.into(),
                seed,
                ..ServerOptions::default()
            });
            drop(server.spawn(shutdown.clone()));
            server
        });
        let vm = VmRef {
            namespace: NAMESPACE.into(),
            name: "db01".into(),
        };
        let pair = Self {
            world,
            storage,
            servers,
            name: names::drbd_resource("uid", &vm),
            clock: Clock::virtual_from("2026-01-01T00:00:00Z".parse().unwrap()),
            _stop: shutdown.clone().drop_guard(),
            shutdown,
            counters: Default::default(),
        };
        for side in [EAST, WEST] {
            let client = pair.client(side);
            Api::<CustomResourceDefinition>::all(client.clone())
                .create(&PostParams::default(), &DRBDResource::crd())
                .await
                .unwrap();
            for namespace in [NAMESPACE, "trilio-site-recovery-system"] {
                pair.create(
                    side,
                    Api::<Namespace>::all(client.clone()),
                    json!({"metadata": {"name": namespace}}),
                )
                .await;
            }
            pair.create(
                side,
                Api::<Node>::all(client),
                json!({"metadata": {"name": NODES[side]}}),
            )
            .await;
        }
        pair
    }

    async fn create<K>(&self, _side: usize, api: Api<K>, value: Value) -> K
    where
        K: kube::Resource + Clone + serde::Serialize + DeserializeOwned + std::fmt::Debug,
    {
        api.create(&PostParams::default(), &parse(value))
            .await
            .unwrap()
    }

    pub fn client(&self, side: usize) -> Client {
        let server = &self.servers[side];
        Client::new(server.service(Some(&server.admin_token())), "default")
    }

    fn namespaced<K>(&self, side: usize) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client(side), NAMESPACE)
    }

    pub fn resources(&self, side: usize) -> Api<DRBDResource> {
        self.namespaced(side)
    }

    async fn place(&self, side: usize) {
        let cluster = CLUSTERS[side];
        let meta = names::metadata_pvc(&self.name, 0);
        for (pvc, size) in [
            ("db01-root", BLOCKS * BLOCK_BYTES as i64),
            (meta.as_str(), 1 << 20),
        ] {
            let pv = format!("pv-{pvc}");
            self.storage.create(cluster, &pv, size as u64);
            self.create(
                side,
                self.namespaced::<PersistentVolumeClaim>(side),
                json!({"metadata": {"name": pvc}, "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "volumeName": pv, "resources": {"requests": {"storage": size.to_string()}}}}),
            )
            .await;
        }
        let secret = json!({"metadata": {"name": names::shared_secret(&self.name)}, "stringData": {"secret": "s3cret"}});
        self.create(side, self.namespaced::<Secret>(side), secret)
            .await;
        let endpoint =
            |side: usize| json!({"nodeName": NODES[side], "address": format!("10.{side}.0.1")});
        let resource = self
            .create(
                side,
                self.resources(side),
                json!({
                    "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDResource",
                    "metadata": {"name": self.name},
                    "spec": {
                        "nodeName": NODES[side], "vmRef": {"name": "db01"}, "zone": "metro1",
                        "cluster": cluster, "peerCluster": CLUSTERS[1 - side],
                        "role": if side == EAST { "Primary" } else { "Secondary" }, "roleEpoch": 1,
                        "initialSource": side == EAST,
                        "volumes": [{"index": 0, "name": "root", "pvcName": "db01-root", "storageClass": "lab-block", "sizeBytes": BLOCKS * BLOCK_BYTES as i64, "port": PORT}],
                        "local": endpoint(side), "peer": endpoint(1 - side),
                    },
                }),
            )
            .await;
        self.anchor(side, &resource, &meta).await;
    }

    async fn anchor(&self, side: usize, resource: &DRBDResource, meta: &str) {
        let name = names::anchor_pod(&self.name);
        let pod = self
            .create(
                side,
                self.namespaced::<Pod>(side),
                json!({
                    "metadata": {"name": name, "labels": {"app.kubernetes.io/component": "drbd-anchor"}, "ownerReferences": [{
                        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDResource", "name": self.name, "uid": resource.uid(),
                    }]},
                    "spec": {"nodeName": NODES[side], "containers": [{"name": "anchor", "image": "farshore/anchor"}]},
                }),
            )
            .await;
        for pvc in ["db01-root", meta] {
            self.storage.attach(
                CLUSTERS[side],
                NODES[side],
                &pod.uid().unwrap(),
                &format!("pv-{pvc}"),
            );
        }
        let running = json!({"status": {"phase": "Running"}});
        self.namespaced::<Pod>(side)
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(running))
            .await
            .unwrap();
    }

    fn process(&self, side: usize, client: Client) -> Process {
        Process {
            name: "drbd-node-agent".into(),
            identity: format!("agent-{}", NODES[side]),
            namespace: "trilio-site-recovery-system".into(),
            node: Some(NODES[side].into()),
            env: Default::default(),
            args: Vec::new(),
            client,
            connector: Connector::in_process(Arc::new(|_, _| None)),
            clock: self.clock.clone(),
            shutdown: self.shutdown.child_token(),
        }
    }

    /// Starts an agent; dropping the token's guard is not needed, cancelling the token kills it.
    pub fn start(&self, side: usize) -> CancellationToken {
        let kill = CancellationToken::new();
        let client = self.counting(side, u64::MAX, CancellationToken::new());
        self.spawn(side, client, kill.clone(), false);
        kill
    }

    /// Starts an agent that dies when its write number `at` has been done but before it hears so,
    /// and starts another in its place two seconds later.
    pub fn start_dying(&self, side: usize, at: u64) {
        let kill = CancellationToken::new();
        let client = self.counting(side, at, kill.clone());
        self.spawn(side, client, kill, true);
    }

    fn spawn(&self, side: usize, client: Client, kill: CancellationToken, again: bool) {
        let process = self.process(side, client);
        let kernel = self.world.kernel(CLUSTERS[side], NODES[side]);
        let next = again.then(|| {
            let client = self.counting(side, u64::MAX, CancellationToken::new());
            (
                self.process(side, client),
                self.world.kernel(CLUSTERS[side], NODES[side]),
            )
        });
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = kill.cancelled() => {}
                ended = farshore_agent::run(process, kernel) => return ended.unwrap(),
            }
            if let Some((process, kernel)) = next {
                sleep(Duration::from_secs(2)).await;
                farshore_agent::run(process, kernel).await.unwrap();
            }
        });
    }

    fn counting(&self, side: usize, die_at: u64, kill: CancellationToken) -> Client {
        let server = &self.servers[side];
        let inner = server.service(Some(&server.admin_token()));
        let service = Counting {
            inner,
            writes: Arc::clone(&self.counters[side]),
            die_at,
            kill,
        };
        Client::new(service, "default")
    }

    /// Writes that the agents of a side have made.
    pub fn writes(&self, side: usize) -> u64 {
        self.counters[side].load(Ordering::Relaxed)
    }

    pub async fn status(&self, side: usize) -> DRBDResourceStatus {
        self.resources(side)
            .get(&self.name)
            .await
            .unwrap()
            .status
            .unwrap_or_default()
    }

    /// Waits, at most ten minutes, until something holds.
    pub async fn until<F: Future<Output = bool>>(&self, what: &str, holds: impl Fn() -> F) {
        for _ in 0..1500 {
            if holds().await {
                return;
            }
            sleep(Duration::from_millis(400)).await;
        }
        let mut last = String::new();
        for side in [EAST, WEST] {
            let object = self.resources(side).get_opt(&self.name).await.unwrap();
            last.push_str(&format!(
                "\n{}: {:#?}",
                CLUSTERS[side],
                object.map(|o| o.status)
            ));
        }
        panic!("never: {what}{last}");
    }

    pub async fn until_ready(&self, what: &str) {
        self.until(what, || async {
            let states = [self.status(EAST).await, self.status(WEST).await];
            states.iter().all(|s| {
                s.phase == Some(DRBDResourcePhase::Ready)
                    && s.disk_state == Some(DiskState::UpToDate)
                    && s.message.is_none()
            })
        })
        .await;
    }

    pub async fn patch(&self, side: usize, spec: Value) {
        let patch = json!({"spec": spec});
        self.resources(side)
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// As the manager does: first the old source gives way, then the new one takes over.
    pub async fn flip(&self, from: usize, to: usize, epoch: i64) {
        for (side, role) in [(from, Role::Secondary), (to, Role::Primary)] {
            self.patch(side, json!({"role": role, "roleEpoch": epoch}))
                .await;
            self.until(
                &format!("{} is {role} at epoch {epoch}", CLUSTERS[side]),
                || async {
                    let status = self.status(side).await;
                    status.role == Some(role) && status.role_epoch == Some(epoch)
                },
            )
            .await;
        }
    }

    pub fn minor(&self) -> i32 {
        names::minor(PORT)
    }

    /// Runs the VM on a side for so many seconds, then stops it.
    pub async fn run_vm(&self, side: usize, seconds: u64, ledger: &Ledger) {
        let device = self
            .world
            .open(CLUSTERS[side], NODES[side], self.minor(), "qemu")
            .unwrap();
        let stop = CancellationToken::new();
        let vm = tokio::spawn({
            let (ledger, stop) = (ledger.clone(), stop.clone());
            let disks = vec![("root".to_string(), Disk::Replicated(device))];
            async move { guest::run("shop/db01", disks, Duration::from_millis(50), ledger, stop).await }
        });
        sleep(Duration::from_secs(seconds)).await;
        stop.cancel();
        vm.await.unwrap();
    }

    pub fn assert_whole(&self, ledger: &Ledger) {
        for cluster in CLUSTERS {
            let volume = self.storage.volume(cluster, "pv-db01-root").unwrap();
            let verdict = ledger.verify("shop/db01", "root", |b| volume.read(b), volume.blocks());
            assert!(
                verdict.is_whole() && verdict.acknowledged > 0,
                "{cluster}: {verdict:?}"
            );
        }
    }

    pub fn assert_alike(&self) {
        let [east, west] = CLUSTERS.map(|c| self.storage.volume(c, "pv-db01-root").unwrap());
        assert!((0..east.blocks()).all(|b| east.read(b) == west.read(b)));
    }

    pub async fn delete(&self, side: usize) {
        self.resources(side)
            .delete(&self.name, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub async fn until_gone(&self) {
        self.until("both resources are gone", || async {
            let mut gone = true;
            for side in [EAST, WEST] {
                gone &= self
                    .resources(side)
                    .get_opt(&self.name)
                    .await
                    .unwrap()
                    .is_none();
                gone &= self
                    .world
                    .kernel(CLUSTERS[side], NODES[side])
                    .status()
                    .await
                    .is_ok_and(|s| s.is_empty());
                let frontends = self
                    .namespaced::<PersistentVolumeClaim>(side)
                    .list(&ListParams::default())
                    .await
                    .unwrap();
                gone &= frontends
                    .items
                    .iter()
                    .all(|p| !p.name_any().ends_with("-drbd"));
            }
            gone
        })
        .await;
    }

    /// Reasons of the events about the resource, in order, each once.
    pub async fn reasons(&self, side: usize, namespace: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client(side), namespace);
        let mut all = events.list(&ListParams::default()).await.unwrap().items;
        all.sort_by_key(|e| (e.event_time.clone().map(|t| t.0), e.name_any()));
        let mut reasons: Vec<String> = all.into_iter().filter_map(|e| e.reason).collect();
        reasons.dedup();
        reasons
    }

    pub async fn tainted(&self, side: usize) -> bool {
        let node = Api::<Node>::all(self.client(side))
            .get(NODES[side])
            .await
            .unwrap();
        node.spec
            .and_then(|s| s.taints)
            .unwrap_or_default()
            .iter()
            .any(|t| t.key == farshore_api::meta::taints::NOT_READY)
    }
}

/// Counts writes; kills its owner at one of them, after the server has done it.
#[derive(Clone)]
struct Counting {
    inner: ApiService,
    writes: Arc<AtomicU64>,
    die_at: u64,
    kill: CancellationToken,
}

impl<B> tower::Service<http::Request<B>> for Counting
where
    ApiService: tower::Service<http::Request<B>>,
    <ApiService as tower::Service<http::Request<B>>>::Future: Send + 'static,
    <ApiService as tower::Service<http::Request<B>>>::Response: Send,
    <ApiService as tower::Service<http::Request<B>>>::Error: Send,
{
    type Response = <ApiService as tower::Service<http::Request<B>>>::Response;
    type Error = <ApiService as tower::Service<http::Request<B>>>::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        tower::Service::<http::Request<B>>::poll_ready(&mut self.inner, context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let write = request.method() != http::Method::GET;
        let answer = self.inner.call(request);
        let (writes, die_at, kill) = (Arc::clone(&self.writes), self.die_at, self.kill.clone());
        Box::pin(async move {
            let answer = answer.await;
            if write && writes.fetch_add(1, Ordering::Relaxed) + 1 == die_at {
                kill.cancel();
                std::future::pending::<()>().await;
            }
            answer
        })
    }
}

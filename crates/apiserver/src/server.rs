//! The server as its owner sees it.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::auth::{Grant, MASTERS, Tokens, User};
use crate::decisions::Decisions;
use crate::fault::Fault;
use crate::handlers::write::{Managed, Unknown, Writer, at_once};
use crate::hooks::Hooks;
use crate::ident::Ident;
use crate::log::RequestLog;
use crate::meta;
use crate::registry::{Registry, ResourceInfo};
use crate::service::ApiService;
use crate::store::{EventKind, Store};
use crate::tls::Tls;
use crate::{gc, kinds, rbac, tls};

/// Namespaces that always exist.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// First address of the range that Services get their cluster IPs from: 10.96.0.0/16.
const SERVICE_RANGE: u32 = 0x0a60_0000;
/// 2026-01-01T00:00:00Z in Unix seconds.
const EPOCH: i64 = 1_767_225_600;

/// How a server is set up.
pub struct Options {
    /// Name of the cluster, for messages and to keep identifiers of several servers apart.
    pub name: String,
    /// The wall clock. The server asks nothing else for the time.
    pub now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Seed of uids, tokens and generated names.
    pub seed: u64,
    /// Whether requests are authorized by the stored RBAC objects; without it everybody may do everything.
    pub rbac: bool,
    /// Where webhooks answer that are not found by the Service or address in their configuration.
    pub hooks: Hooks,
}

impl Default for Options {
    /// A clock that starts at 2026-01-01 and follows tokio's, so that paused time pauses it.
    fn default() -> Self {
        let start = tokio::time::Instant::now();
        let now = move || {
            let epoch = Timestamp::from_second(EPOCH).expect("a constant within range");
            let elapsed = i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX);
            epoch
                .checked_add(jiff::SignedDuration::from_millis(elapsed))
                .unwrap_or(epoch)
        };
        Self {
            name: "lab".into(),
            now: Arc::new(now),
            seed: 0,
            rbac: false,
            hooks: Hooks::default(),
        }
    }
}

/// Everything behind one server.
pub(crate) struct Server {
    pub name: String,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub rbac: bool,
    pub store: Store,
    pub decisions: Decisions,
    registry: RwLock<Arc<Registry>>,
    /// Held while the registry is brought in line with a CRD, so that two writers cannot swap.
    pub crd_order: Mutex<()>,
    pub ident: Ident,
    pub tokens: Tokens,
    pub log: RequestLog,
    pub fault: Fault,
    pub hooks: Hooks,
    admin: String,
    addresses: AtomicU32,
}

impl Server {
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The server's clock for the validity of certificates.
    pub fn tls_time(&self) -> Arc<dyn rustls::time_provider::TimeProvider> {
        Arc::new(tls::Clock(self.clock.clone()))
    }

    pub fn registry(&self) -> Arc<Registry> {
        self.registry
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces the registry by a changed copy.
    pub fn change_registry(&self, change: impl FnOnce(&mut Registry)) {
        let mut slot = self
            .registry
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let mut registry = Registry::clone(&slot);
        change(&mut registry);
        *slot = Arc::new(registry);
    }

    pub fn namespaces(&self) -> Arc<ResourceInfo> {
        self.builtin("", "namespaces")
    }

    /// A resource that is compiled in.
    pub fn builtin(&self, group: &str, plural: &str) -> Arc<ResourceInfo> {
        self.registry()
            .get(group, plural)
            .expect("built-in kinds are never removed")
            .clone()
    }

    /// A writer for the server's own controllers.
    pub fn writer<'a>(&'a self, resource: &'a ResourceInfo) -> Writer<'a> {
        let version = resource
            .version(&resource.storage_version)
            .or_else(|| {
                let mut unserved = resource.unserved.iter();
                unserved.find(|v| v.name == resource.storage_version)
            })
            .expect("every kind is stored in one of its versions");
        Writer {
            server: self,
            resource,
            version,
            manager: "kube-controller-manager",
            dry_run: false,
            unknown: Unknown::Ignore,
            patch: false,
            strict: Default::default(),
            patch_text: None,
            warnings: Vec::new(),
            admission: None,
        }
    }

    /// Gives a new Service its cluster IP.
    pub fn allocate(&self, resource: &ResourceInfo, object: &mut Value) {
        if resource.table == "pods" {
            self.mount_token(object);
            return;
        }
        if !(resource.group.is_empty() && resource.kind == "Service")
            || meta::field_text(object, "spec.type") == "ExternalName"
        {
            return;
        }
        if meta::field_text(object, "spec.clusterIP").is_empty() {
            let n = self.addresses.fetch_add(1, Ordering::Relaxed) % 0xfff0;
            let address = Ipv4Addr::from(SERVICE_RANGE + 10 + n).to_string();
            meta::set_field(object, "spec.clusterIP", json!(address));
        }
        let address = meta::field_text(object, "spec.clusterIP");
        meta::set_field(object, "spec.clusterIPs", json!([address]));
    }
}

impl Server {
    /// Gives a pod the token of its account, as a volume that every container mounts.
    fn mount_token(&self, pod: &mut Value) {
        const AT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
        let account = meta::field_text(pod, "spec.serviceAccountName");
        let key = crate::store::Key::new(meta::namespace(pod), &account);
        let Some(account) = self.store.get("serviceaccounts", &key) else {
            return;
        };
        let wanted = pod
            .pointer("/spec/automountServiceAccountToken")
            .or_else(|| account.value.get("automountServiceAccountToken"));
        if wanted == Some(&Value::Bool(false)) {
            return;
        }
        let name = format!("kube-api-access-{}", self.ident.suffix());
        let mut mounted = false;
        for list in ["initContainers", "containers"] {
            let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                let Some(container) = container.as_object_mut() else {
                    continue;
                };
                let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
                let Some(mounts) = mounts.as_array_mut() else {
                    continue;
                };
                if !mounts.iter().any(|m| m["mountPath"] == AT) {
                    mounts.push(json!({"name": name, "readOnly": true, "mountPath": AT}));
                    mounted = true;
                }
            }
        }
        if !mounted {
            return;
        }
        let volume = json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]}});
        if let Some(spec) = pod["spec"].as_object_mut() {
            let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
            if let Some(volumes) = volumes.as_array_mut() {
                volumes.push(volume);
            }
        }
    }
}

/// The Service that stands for the API server in its own cluster.
fn own_service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "targetPort": 6443}]},
    })
}

/// An embedded Kubernetes API server. Clones are handles on the same server.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) server: Arc<Server>,
}

impl ApiServer {
    /// A server with the built-in kinds and the four standard namespaces. It spawns nothing: run
    /// [`Self::run_background`] for namespace deletion, garbage collection and default ServiceAccounts.
    pub fn new(options: Options) -> Self {
        let ident = Ident::new(&options.name, options.seed);
        let tokens = Tokens::default();
        let admin = ident.token();
        tokens.insert(
            admin.clone(),
            Grant {
                user: User::new("kubernetes-admin", &[MASTERS]),
                expires: None,
                account: None,
                audiences: Vec::new(),
            },
        );
        let server = Arc::new(Server {
            name: options.name,
            clock: options.now,
            rbac: options.rbac,
            store: Store::default(),
            decisions: Decisions::default(),
            registry: RwLock::new(Arc::new(kinds::builtin())),
            crd_order: Mutex::new(()),
            ident,
            tokens,
            log: RequestLog::default(),
            fault: Fault::default(),
            hooks: options.hooks,
            admin,
            addresses: AtomicU32::new(0),
        });
        let namespaces = server.namespaces();
        for name in NAMESPACES {
            let object =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let mut writer = server.writer(&namespaces);
            let made = at_once(writer.create(object, "", Managed::Done));
            debug_assert!(made.is_ok(), "an empty store takes the standard namespaces");
        }
        for object in rbac::default_objects() {
            let plural = format!(
                "{}s",
                object["kind"].as_str().unwrap_or_default().to_lowercase()
            );
            let resource = server.builtin("rbac.authorization.k8s.io", &plural);
            let mut writer = server.writer(&resource);
            let made = at_once(writer.create(object.clone(), "", Managed::Done));
            debug_assert!(made.is_ok(), "an empty store takes the default roles");
        }
        let services = server.builtin("", "services");
        let mut writer = server.writer(&services);
        let made = at_once(writer.create(own_service(), "default", Managed::Done));
        debug_assert!(
            made.is_ok(),
            "an empty store takes the server's own Service"
        );
        Self { server }
    }

    /// A `tower::Service` that answers requests in-process, as `token` where a request brings no Authorization header.
    pub fn service(&self, token: Option<&str>) -> ApiService {
        ApiService::new(self.server.clone(), token.map(str::to_owned))
    }

    /// The token of the user `kubernetes-admin` in `system:masters`.
    pub fn admin_token(&self) -> String {
        self.server.admin.clone()
    }

    /// A new token for a user in these groups (and in `system:authenticated`). It does not expire.
    pub fn issue_token(&self, user: &str, groups: &[&str]) -> String {
        let token = self.server.ident.token();
        self.server.tokens.insert(
            token.clone(),
            Grant {
                user: User::new(user, groups),
                expires: None,
                account: None,
                audiences: Vec::new(),
            },
        );
        token
    }

    /// The server's own controllers, until dropped: namespace deletion, owner garbage collection, CRD cleanup, default
    /// ServiceAccounts. Driven by the store's events.
    pub async fn run_background(&self) {
        gc::run(self.server.clone()).await;
    }

    /// Spawns [`Self::run_background`] until `shutdown`.
    pub fn spawn(&self, shutdown: CancellationToken) -> tokio::task::JoinHandle<()> {
        let server = self.server.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = gc::run(server) => {}
            }
        })
    }

    /// Serves TLS (HTTP/1.1 and HTTP/2) on a listener until `shutdown`, then closes the connections.
    pub async fn serve_tls(
        &self,
        listener: tokio::net::TcpListener,
        tls: Tls,
        shutdown: CancellationToken,
    ) {
        tls::serve(self.server.clone(), listener, tls, shutdown).await;
    }

    /// The log of all requests answered.
    pub fn request_log(&self) -> RequestLog {
        self.server.log.clone()
    }

    /// Takes the server down (requests fail as connection errors, open watches and connections break) or up again.
    /// What is stored stays.
    pub fn set_down(&self, down: bool) {
        self.server.fault.set_down(down);
    }

    /// Delays every answer by this much.
    pub fn set_latency(&self, latency: Duration) {
        self.server.fault.set_latency(latency);
    }

    /// Forgets the watch history: every older resourceVersion is expired from here on (410).
    pub fn compact(&self) {
        self.server.store.compact();
    }

    /// Calls `observer` at every change, at the moment of its commit. It must not call this server.
    pub fn observe(&self, observer: impl Fn(&Commit<'_>) + Send + Sync + 'static) {
        self.server.store.observe(Box::new(move |event| {
            observer(&Commit {
                revision: event.revision,
                object: &event.object.value,
                previous: event.previous.as_ref().map(|p| &p.value),
                deleted: event.kind == EventKind::Deleted,
            });
        }));
    }

    /// The newest revision of the store.
    pub fn revision(&self) -> u64 {
        self.server.store.revision()
    }

    /// Name of the server.
    pub fn name(&self) -> &str {
        &self.server.name
    }
}

/// One committed change, as an observer sees it.
pub struct Commit<'a> {
    /// Revision of the change.
    pub revision: u64,
    /// The object after it; of a deletion, its last state.
    pub object: &'a Value,
    /// The object before it.
    pub previous: Option<&'a Value>,
    /// Whether the object is gone now.
    pub deleted: bool,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("name", &self.server.name)
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

//! The lab: three clusters, their simulators and every process of ours, on one machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use farshore_apiserver::{ApiServer, Tls};
use farshore_chart::{Chart, Release};
use farshore_runtime::Clock;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::drbd::{self, World};
use crate::engine::{Engine, RealServer, Server};
use crate::faults::Faults;
use crate::guests::Guests;
use crate::processes::Processes;
use crate::sim::{self, Sim, Timings, node_names};
use crate::storage::Storage;
use crate::wire::{Endpoint, Wire};

/// The lab's clusters: the hub first.
pub const CLUSTERS: [&str; 3] = ["hub", "east", "west"];
/// Namespace of the zone controller on the hub.
pub const SYSTEM_NAMESPACE: &str = "site-recovery-system";

/// What a lab is made of.
pub struct LabOptions {
    /// The API servers.
    pub engine: Engine,
    /// Worker nodes of each workload cluster.
    pub nodes: usize,
    /// Folder for kubeconfigs; with it the embedded servers listen on loopback ports, without it
    /// everything stays inside the process. Real servers always listen.
    pub dir: Option<PathBuf>,
    /// How long things take.
    pub timings: Timings,
    /// Speed and latency of DRBD.
    pub drbd: drbd::Options,
    /// The time.
    pub clock: Clock,
    /// Draws uids, tokens and generated names of the embedded servers.
    pub seed: u64,
}

/// A running lab.
pub struct Lab {
    /// Its clusters by name.
    pub clusters: BTreeMap<String, Cluster>,
    /// DRBD on all nodes.
    pub world: World,
    /// Bytes of all volumes.
    pub storage: Storage,
    /// Guests of all VMs.
    pub guests: Guests,
    /// Processes of ours.
    pub processes: Processes,
    /// The time.
    pub clock: Clock,
    wire: Wire,
    shutdown: CancellationToken,
    nodes: usize,
}

/// One cluster.
pub struct Cluster {
    /// Its API server.
    pub server: Server,
    /// Administrator's client.
    pub admin: Client,
    /// Administrator's token.
    pub token: String,
    /// What plays its controllers and nodes.
    pub sim: Arc<Sim>,
}

impl Lab {
    /// Starts everything and returns when the zone controller is available.
    pub async fn start(options: LabOptions, shutdown: CancellationToken) -> anyhow::Result<Self> {
        let lab = Self::bare(options, shutdown).await?;
        lab.install_zone_controller().await?;
        Ok(lab)
    }

    /// Starts the clusters and their simulators, with nothing of ours in them.
    pub async fn bare(options: LabOptions, shutdown: CancellationToken) -> anyhow::Result<Self> {
        let wire = Wire::default();
        let storage = Storage::new();
        let world = World::new(storage.clone(), options.drbd, shutdown.clone());
        let guests = Guests::default();
        let processes = Processes::new(
            wire.clone(),
            world.clone(),
            options.clock.clone(),
            shutdown.clone(),
        );
        let mut real = match options.engine {
            Engine::Embedded => Vec::new(),
            Engine::Kube => {
                let (dir, clock) = (options.dir.as_deref(), &options.clock);
                RealServer::start_all(&CLUSTERS, dir, clock, &shutdown).await?
            }
        }
        .into_iter();
        let mut clusters = BTreeMap::new();
        for (index, name) in CLUSTERS.into_iter().enumerate() {
            let access = match real.next() {
                Some(server) => Access::real(server),
                None => Access::embedded(name, index as u64, &options, &shutdown).await?,
            };
            let (server, token) = (access.server, access.admin);
            wire.add(name, access.endpoint);
            let client = wire.own_client(name, &access.simulators).await?;
            let sim = Arc::new(Sim {
                cluster: name.into(),
                index,
                client,
                storage: storage.clone(),
                world: world.clone(),
                guests: guests.clone(),
                processes: processes.clone(),
                timings: options.timings.clone(),
                down: Default::default(),
                clock: options.clock.clone(),
                shutdown: shutdown.clone(),
            });
            let nodes = nodes_of(name, options.nodes);
            sim.install(nodes, name != "hub")
                .await
                .with_context(|| format!("preparing cluster {name}"))?;
            sim.start(nodes, name != "hub");
            let admin = wire.own_client(name, &token).await?;
            clusters.insert(
                name.to_string(),
                Cluster {
                    server,
                    admin,
                    token,
                    sim,
                },
            );
        }
        let lab = Self {
            clusters,
            world,
            storage,
            guests,
            processes,
            clock: options.clock,
            wire,
            shutdown,
            nodes: options.nodes,
        };
        if let Some(dir) = &options.dir {
            lab.write_kubeconfigs(dir)?;
        }
        Ok(lab)
    }

    /// A cluster by name.
    pub fn cluster(&self, name: &str) -> &Cluster {
        &self.clusters[name]
    }

    /// Faults on the wire between the lab's processes and its API servers.
    pub fn faults(&self) -> &Faults {
        self.wire.faults()
    }

    /// Administrator's kubeconfig of one cluster, as a zone's Secret holds it.
    pub fn kubeconfig(&self, cluster: &str) -> anyhow::Result<String> {
        self.wire
            .kubeconfig(&[(cluster, &self.cluster(cluster).token)])
    }

    fn write_kubeconfigs(&self, dir: &std::path::Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let access: Vec<(&str, &str)> = CLUSTERS
            .into_iter()
            .map(|c| (c, self.cluster(c).token.as_str()))
            .collect();
        write_private(&dir.join("kubeconfig"), &self.wire.kubeconfig(&access)?)?;
        for name in CLUSTERS {
            write_private(
                &dir.join(format!("{name}.kubeconfig")),
                &self.kubeconfig(name)?,
            )?;
        }
        Ok(())
    }

    /// Installs the one thing that a user installs: the zone controller's chart.
    async fn install_zone_controller(&self) -> anyhow::Result<()> {
        let hub = self.cluster("hub").admin.clone();
        apply(&hub, &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": SYSTEM_NAMESPACE } })).await?;
        let chart = Chart::embedded("site-recovery-protectionzone-controller")?;
        let release = Release {
            name: "site-recovery".into(),
            namespace: SYSTEM_NAMESPACE.into(),
        };
        for manifest in chart.render(&release, &json!({}))? {
            apply(&hub, &manifest).await?;
        }
        let deployments: Api<Deployment> = Api::namespaced(hub, SYSTEM_NAMESPACE);
        let available = |object: Option<&Deployment>| {
            object
                .and_then(|d| d.status.as_ref())
                .and_then(|s| s.available_replicas)
                .unwrap_or(0)
                > 0
        };
        let name = deployments
            .list(&Default::default())
            .await?
            .items
            .first()
            .and_then(|d| d.metadata.name.clone())
            .context("the zone controller's chart has no Deployment")?;
        let wait = kube::runtime::wait::await_condition(deployments, &name, available);
        tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .context("the zone controller did not become available within 60 s")??;
        let crds: Api<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> =
            Api::all(self.cluster("hub").admin.clone());
        let established = kube::runtime::wait::conditions::is_crd_established();
        let wait = kube::runtime::wait::await_condition(
            crds,
            "protectionzones.siterecovery.trilio.io",
            established,
        );
        tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .context("the kinds were not served within 60 s")??;
        Ok(())
    }

    /// A whole site is lost (API server and nodes) or returns.
    pub async fn set_site(&self, cluster: &str, up: bool) -> anyhow::Result<()> {
        let site = self.cluster(cluster);
        if up {
            site.server.set_down(false);
        }
        for node in node_names(cluster, nodes_of(cluster, self.nodes)) {
            // The node's object cannot be written while its API server is away: the heartbeat does it.
            let _ = site.sim.set_node(&node, up).await;
        }
        if !up {
            site.server.set_down(true);
        }
        Ok(())
    }

    /// Cuts or restores the power of one node.
    pub async fn set_node(&self, cluster: &str, node: &str, up: bool) -> anyhow::Result<()> {
        let known = node_names(cluster, nodes_of(cluster, self.nodes)).any(|n| n == node);
        anyhow::ensure!(known, "cluster {cluster} has no node {node}");
        Ok(self.cluster(cluster).sim.set_node(node, up).await?)
    }

    /// Ends the lab and everything in it.
    pub fn stop(&self) {
        self.shutdown.cancel();
        for cluster in self.clusters.values() {
            cluster.server.stop();
        }
    }
}

fn nodes_of(cluster: &str, workers: usize) -> usize {
    if cluster == "hub" { 1 } else { workers }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A server that was started, and how it is reached.
struct Access {
    server: Server,
    endpoint: Endpoint,
    admin: String,
    simulators: String,
}

impl Access {
    fn real(server: RealServer) -> Self {
        Self {
            endpoint: Endpoint {
                inside: None,
                dated: true,
                url: server.url(),
                authority: Some(server.authority().into()),
            },
            admin: server.admin_token().into(),
            simulators: server.simulators_token().into(),
            server: Server::Kube(Arc::new(server)),
        }
    }

    async fn embedded(
        name: &str,
        index: u64,
        options: &LabOptions,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let seed = options.seed.wrapping_add(index);
        let server = crate::engine::embedded(name, seed, options.clock.clone(), shutdown);
        Ok(Self {
            endpoint: expose(name, &server, options.dir.is_some(), shutdown).await?,
            admin: server.admin_token(),
            simulators: server.issue_token("system:lab", &["system:masters"]),
            server: Server::Embedded(server),
        })
    }
}

/// Puts a server on a loopback port, or names it for clients within the process.
async fn expose(
    name: &str,
    server: &ApiServer,
    listen: bool,
    shutdown: &CancellationToken,
) -> anyhow::Result<Endpoint> {
    if !listen {
        return Ok(Endpoint {
            inside: Some(server.clone()),
            dated: false,
            url: format!("https://{name}.lab"),
            authority: None,
        });
    }
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .context("opening a loopback port")?;
    let port = listener.local_addr()?.port();
    let (tls, authority) = Tls::self_signed(&["127.0.0.1", "localhost", "kubernetes.default.svc"])?;
    let (serving, shutdown) = (server.clone(), shutdown.clone());
    tokio::spawn(async move { serving.serve_tls(listener, tls, shutdown).await });
    Ok(Endpoint {
        inside: Some(server.clone()),
        dated: false,
        url: format!("https://127.0.0.1:{port}"),
        authority: Some(authority),
    })
}

/// Server-side applies any manifest.
pub async fn apply(client: &Client, manifest: &Value) -> anyhow::Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(manifest.clone())?;
    let types = object
        .types
        .clone()
        .context("the manifest has no apiVersion and kind")?;
    let name = object
        .metadata
        .name
        .clone()
        .context("the manifest has no name")?;
    let gvk = kube::core::GroupVersionKind::try_from(&types)?;
    let (resource, capabilities): (ApiResource, _) =
        kube::discovery::pinned_kind(client, &gvk).await?;
    let api: Api<DynamicObject> = match (&object.metadata.namespace, capabilities.scope) {
        (Some(namespace), kube::discovery::Scope::Namespaced) => {
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
        (None, kube::discovery::Scope::Namespaced) => {
            Api::default_namespaced_with(client.clone(), &resource)
        }
        (_, kube::discovery::Scope::Cluster) => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams::apply(sim::MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(manifest))
        .await
        .with_context(|| format!("applying {} {name}", types.kind))
}

/// Writes a file that only its owner may read: it holds a token.
fn write_private(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(file.write_all(text.as_bytes())?)
}

//! The workload clusters of a zone: clients from kubeconfig Secrets, looks that never hang.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farshore_api::ProtectionZone;
use farshore_api::zone::ZoneCluster;
use farshore_core::Seen;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::ObjectList;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::controller::in_words;
use crate::triggers::{self, Watched, Woken};
use crate::{ConnectError, Connector, Process};

/// How long a look at another cluster may take before it counts as not answered.
pub const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// How long a client is used before its Secret is read again. A kubeconfig that was stored anew is
/// used after so long at the latest; until then the old one is, whose cluster has been confirmed.
const TRUSTED_FOR: Duration = Duration::from_secs(10);
/// How long a watch on another cluster lasts before it is begun again: so long does a cluster that
/// went silent go unnoticed.
const WATCH_SECONDS: u32 = 30;

/// Clients of the clusters whose kubeconfigs lie in one namespace of the hub. Clones share the cache.
#[derive(Clone)]
pub struct Clusters {
    secrets: Api<Secret>,
    namespace: String,
    connector: Connector,
    user_agent: String,
    cache: Arc<Mutex<BTreeMap<(String, String), Cached>>>,
    identities: Arc<Mutex<Identities>>,
}

/// UID of each cluster's kube-system namespace, as the zone has first seen them.
#[derive(Default)]
struct Identities {
    zone: Option<String>,
    of: BTreeMap<String, String>,
}

/// A client and the version of the Secret that it was made from.
struct Cached {
    uid: String,
    resource_version: String,
    client: Client,
    /// When the Secret was last seen to be of that version.
    read: Instant,
}

/// Why there is no client for a cluster.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// No such Secret.
    #[error(
        "Secret {namespace}/{name} with the kubeconfig of cluster {cluster} does not exist; create it with `kubectl -n {namespace} create secret generic {name} --from-file={key}=<file> --dry-run=client -o yaml | kubectl apply -f -`"
    )]
    SecretNotFound {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// Key that shall hold the kubeconfig.
        key: String,
        /// The cluster.
        cluster: String,
    },
    /// The Secret has no such key.
    #[error(
        "Secret {namespace}/{name} has no key {key} for the kubeconfig of cluster {cluster}; add it, or name the right key in kubeconfigSecretRef.key"
    )]
    KeyMissing {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// The missing key.
        key: String,
        /// The cluster.
        cluster: String,
    },
    /// The kubeconfig cannot be used.
    #[error("Secret {namespace}/{name}: {why}")]
    Invalid {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// Nobody can tell yet whether the kubeconfig opens the cluster that the zone knows.
    #[error(
        "cluster {cluster} has not confirmed that it is the one that the zone knows, so nothing is sent to it with the kubeconfig in Secret {namespace}/{name}: {why}"
    )]
    Unconfirmed {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// The cluster.
        cluster: String,
        /// What it answered to the question for its identity.
        why: String,
    },
    /// The hub did not answer.
    #[error("reading Secret {namespace}/{name} on the hub: {source}")]
    Hub {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// What the hub said.
        source: Box<kube::Error>,
    },
}

impl Clusters {
    /// The clusters whose kubeconfig Secrets lie in `namespace` of the process's own cluster.
    pub fn new(process: &Process, namespace: &str) -> Self {
        Self {
            secrets: Api::namespaced(process.client.clone(), namespace),
            namespace: namespace.into(),
            connector: process.connector.clone(),
            user_agent: process.name.clone(),
            cache: Arc::default(),
            identities: Arc::default(),
        }
    }

    /// Remembers who the zone's clusters are. A kubeconfig that opens another cluster is refused
    /// from then on: with two Secrets swapped, every act would hit the wrong side.
    pub fn know(&self, zone: &ProtectionZone) {
        let mut known = self
            .identities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if known.zone != zone.metadata.uid {
            *known = Identities {
                zone: zone.metadata.uid.clone(),
                of: BTreeMap::new(),
            };
            // Clients that another zone confirmed are not this one's.
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.clear();
        }
        for cluster in zone.status.iter().flat_map(|s| &s.clusters) {
            if let Some(uid) = &cluster.cluster_uid {
                known
                    .of
                    .entry(cluster.name.clone())
                    .or_insert_with(|| uid.clone());
            }
        }
    }

    /// Whether a new client opens the cluster that the zone knows by this name.
    async fn identify(&self, cluster: &ZoneCluster, client: &Client) -> Identity {
        let expected = {
            let known = self
                .identities
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match known.of.get(&cluster.name) {
                Some(uid) => uid.clone(),
                None => return Identity::Right,
            }
        };
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let found = match look(namespaces.get_opt("kube-system"), LOOK_LIMIT).await {
            Seen::Present(system) => system.metadata.uid.unwrap_or_default(),
            Seen::Absent => return Identity::Untold("it has no namespace kube-system".into()),
            Seen::Unknown(why) => return Identity::Untold(why),
        };
        if found == expected {
            return Identity::Right;
        }
        Identity::Wrong(format!(
            "the kubeconfig opens another cluster (its namespace kube-system has UID {found}) than the zone knows as {} (UID {expected}); nothing is sent to it. Store the kubeconfig of {} in this Secret again; to put another cluster in its place, delete the zone and create it anew",
            cluster.name, cluster.name
        ))
    }

    /// The client of a cluster that has shown to be the one that the zone knows; a new one
    /// [`TRUSTED_FOR`] after its Secret changed, at the latest.
    pub async fn client(&self, cluster: &ZoneCluster) -> Result<Client, RemoteError> {
        if let Some(client) = self.trusted(cluster) {
            return Ok(client);
        }
        let (client, untold) = self.open(cluster).await?;
        match untold {
            None => Ok(client),
            Some(why) => Err(RemoteError::Unconfirmed {
                namespace: self.namespace.clone(),
                name: cluster.kubeconfig_secret_ref.name.clone(),
                cluster: cluster.name.clone(),
                why,
            }),
        }
    }

    /// As [`Self::client`], also where the cluster does not tell who it is: for questions alone, whose
    /// answers say why.
    pub async fn client_to_ask(&self, cluster: &ZoneCluster) -> Result<Client, RemoteError> {
        Ok(self.open(cluster).await?.0)
    }

    /// The client whose Secret was read a moment ago: a burst of reconciles reads it once.
    fn trusted(&self, cluster: &ZoneCluster) -> Option<Client> {
        let of = &cluster.kubeconfig_secret_ref;
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = cache.get(&(of.name.clone(), of.key.clone()))?;
        (cached.read.elapsed() < TRUSTED_FOR).then(|| cached.client.clone())
    }

    /// The client of a cluster, and why it is not known who that is.
    async fn open(&self, cluster: &ZoneCluster) -> Result<(Client, Option<String>), RemoteError> {
        let (namespace, name, key) = (
            self.namespace.clone(),
            cluster.kubeconfig_secret_ref.name.clone(),
            cluster.kubeconfig_secret_ref.key.clone(),
        );
        let secret = match self.secrets.get_opt(&name).await {
            Ok(Some(secret)) => secret,
            Ok(None) => {
                return Err(RemoteError::SecretNotFound {
                    namespace,
                    name,
                    key,
                    cluster: cluster.name.clone(),
                });
            }
            Err(source) => {
                return Err(RemoteError::Hub {
                    namespace,
                    name,
                    source: Box::new(source),
                });
            }
        };
        let uid = secret.metadata.uid.clone().unwrap_or_default();
        let resource_version = secret.metadata.resource_version.clone().unwrap_or_default();
        let slot = (name.clone(), key.clone());
        if let Some(cached) = self
            .cache
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_mut(&slot)
            && cached.uid == uid
            && cached.resource_version == resource_version
        {
            cached.read = Instant::now();
            return Ok((cached.client.clone(), None));
        }
        let Some(kubeconfig) = secret.data.as_ref().and_then(|d| d.get(&key)) else {
            return Err(RemoteError::KeyMissing {
                namespace,
                name,
                key,
                cluster: cluster.name.clone(),
            });
        };
        let client = self
            .connector
            .connect(&kubeconfig.0, &self.user_agent)
            .await
            .map_err(|ConnectError::Invalid(why)| RemoteError::Invalid {
                namespace: namespace.clone(),
                name: name.clone(),
                why,
            })?;
        match self.identify(cluster, &client).await {
            Identity::Right => {}
            Identity::Wrong(why) => {
                return Err(RemoteError::Invalid {
                    namespace,
                    name,
                    why,
                });
            }
            // Asked again next time.
            Identity::Untold(why) => return Ok((client, Some(why))),
        }
        let cached = Cached {
            uid,
            resource_version,
            client: client.clone(),
            read: Instant::now(),
        };
        self.cache
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(slot, cached);
        Ok((client, None))
    }
}

/// Who answers behind a kubeconfig.
enum Identity {
    /// The cluster that the zone knows, or one that it does not know yet.
    Right,
    /// Another one, as this says.
    Wrong(String),
    /// It did not tell, for this reason: it may be any cluster.
    Untold(String),
}

/// A look at one object (`api.get_opt(name)`): an error, or no answer within `limit`, is Unknown,
/// never Absent.
pub async fn look<T>(
    what: impl Future<Output = kube::Result<Option<T>>>,
    limit: Duration,
) -> Seen<T> {
    match tokio::time::timeout(limit, what).await {
        Ok(Ok(Some(found))) => Seen::Present(found),
        Ok(Ok(None)) => Seen::Absent,
        Ok(Err(error)) => Seen::Unknown(in_words(&error)),
        Err(_) => Seen::Unknown(silent(limit)),
    }
}

/// A look at a list (`api.list(…)`): Present, perhaps with no items, or Unknown.
pub async fn look_list<T: Clone>(
    what: impl Future<Output = kube::Result<ObjectList<T>>>,
    limit: Duration,
) -> Seen<Vec<T>> {
    match tokio::time::timeout(limit, what).await {
        Ok(Ok(list)) => Seen::Present(list.items),
        Ok(Err(error)) => Seen::Unknown(in_words(&error)),
        Err(_) => Seen::Unknown(silent(limit)),
    }
}

fn silent(limit: Duration) -> String {
    format!("no answer within {} s", limit.as_secs())
}

/// Objects of `K` to reconcile whenever an object of a remote cluster changes, also when the
/// cluster comes back. Reconnects for ever, with the credential of the day. Ends at `shutdown`.
pub fn refs<K: Woken, W: Watched>(
    clusters: Clusters,
    cluster: ZoneCluster,
    api: impl Fn(Client) -> Api<W> + Clone + Send + Sync + 'static,
    watch: watcher::Config,
    map: impl Fn(&W) -> Vec<ObjectRef<K>> + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> BoxStream<'static, ObjectRef<K>> {
    let connect = move || {
        let (clusters, cluster, api) = (clusters.clone(), cluster.clone(), api.clone());
        async move { clusters.client(&cluster).await.map(api) }
    };
    triggers::from_sessions(connect, watch.timeout(WATCH_SECONDS), map, shutdown)
}

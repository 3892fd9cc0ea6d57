//! The replication-monitor: polls both workload clusters for each ReplicationGroupStatus and writes
//! what `farshore_core::replication` computes [S1] [S2].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use std::time::Duration;

use farshore_api::meta::{labels, managers};
use farshore_api::zone::ZoneCluster;
use farshore_api::{
    DRBDResource, ProtectionGroup, ProtectionRequest, ProtectionZone, RPOEvent,
    ReplicationGroupStatus, VmRef,
};
use farshore_core::Seen;
use farshore_core::failover::resolve_members;
use farshore_core::replication::{Observed, decide, is_event_of, surplus};
use farshore_runtime::controller::{self, During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::events::Recorder;
use farshore_runtime::remote::{Clusters, LOOK_LIMIT, look_list};
use farshore_runtime::{Clock, Process, apply};
use futures::StreamExt;
use futures::future::join_all;
use jiff::Timestamp;
use kube::api::{ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long one look at a cluster serves all groups.
const FRESH: Duration = Duration::from_secs(2);
const CONCURRENCY: u16 = 4;

/// The monitor of one zone.
pub struct ReplicationMonitor {
    hub: Client,
    namespace: String,
    zone: String,
    clusters: Vec<ZoneCluster>,
    remote: Clusters,
    recorder: Recorder,
    clock: Clock,
    polls: SyncMutex<BTreeMap<String, Poll>>,
    looks: Mutex<Option<(Instant, Arc<Look>)>>,
}

/// When a group was polled, and for which spec.
#[derive(Clone, Copy)]
struct Poll {
    at: Instant,
    generation: Option<i64>,
    /// When a cluster last answered.
    answered: Option<Timestamp>,
}

/// One look at both clusters and at the hub's requests, for all groups.
struct Look {
    requests: Vec<ProtectionRequest>,
    clusters: BTreeMap<String, Seen<BTreeMap<VmRef, DRBDResource>>>,
}

impl ReplicationMonitor {
    /// The monitor of this zone's groups.
    pub fn new(process: &Process, zone: &ProtectionZone, remote: Clusters) -> Self {
        Self {
            hub: process.client.clone(),
            namespace: zone.namespace().unwrap_or_default(),
            zone: zone.name_any(),
            clusters: zone.spec.clusters.clone(),
            remote,
            recorder: Recorder::new(
                process.client.clone(),
                managers::REPLICATION_MONITOR,
                &process.identity,
                process.clock.clone(),
            ),
            clock: process.clock.clone(),
            polls: SyncMutex::default(),
            looks: Mutex::default(),
        }
    }

    /// Polls for the ReplicationGroupStatus of this name, unless it is not time yet.
    pub async fn poll(&self, name: &str) -> Result<Requeue, ReconcileError> {
        let api: Api<ReplicationGroupStatus> = Api::namespaced(self.hub.clone(), &self.namespace);
        let title = format!("ReplicationGroupStatus {}/{name}", self.namespace);
        let Some(monitor) = api.get_opt(name).await.during(format!("reading {title}"))? else {
            self.polls
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(name);
            return Ok(Requeue::Change);
        };
        let interval = u64::try_from(monitor.spec.polling_interval_seconds).unwrap_or(15);
        let last = self
            .polls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .copied();
        if let Some(last) = last.filter(|l| l.generation == monitor.metadata.generation) {
            let rest = Duration::from_secs(interval).saturating_sub(last.at.elapsed());
            if !rest.is_zero() {
                return Ok(Requeue::After(rest));
            }
        }
        let groups: Api<ProtectionGroup> = Api::namespaced(self.hub.clone(), &self.namespace);
        let group = &monitor.spec.protection_group_ref.name;
        let group = groups.get_opt(group).await.during(format!(
            "reading ProtectionGroup {}/{group}",
            self.namespace
        ))?;
        let Some(group) = group else {
            // It goes with its group.
            return Ok(Requeue::Change);
        };
        let at = Instant::now();
        let seen = self
            .observe(monitor, &group, last.and_then(|l| l.answered))
            .await?;
        let now = self.clock.now();
        let decision = decide(&seen, now);
        if let Some(event) = &decision.event {
            self.record(event).await?;
        }
        let before = seen.monitor.status.clone().unwrap_or_default();
        let written = apply::status_guarded(
            &api,
            managers::REPLICATION_MONITOR,
            &seen.monitor,
            &before,
            &decision.status,
        )
        .await;
        written.during(format!("writing the status of {title}"))?;
        for note in &decision.notes {
            self.recorder.publish(&seen.monitor, note).await;
        }
        let answered = seen
            .clusters
            .values()
            .any(|c| c.present().is_some())
            .then_some(now);
        let poll = Poll {
            at,
            generation: seen.monitor.metadata.generation,
            answered: answered.or(last.and_then(|l| l.answered)),
        };
        self.polls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name.into(), poll);
        Ok(Requeue::After(decision.requeue))
    }

    async fn observe(
        &self,
        monitor: ReplicationGroupStatus,
        group: &ProtectionGroup,
        last_poll: Option<Timestamp>,
    ) -> Result<Observed, ReconcileError> {
        let look = self.look().await?;
        let (members, unresolved) = resolve_members(group, &look.requests);
        let of_members = |all: &BTreeMap<VmRef, DRBDResource>| {
            let hit = |m: &ProtectionRequest| Some((m.vm(), all.get(&m.vm())?.clone()));
            members.iter().filter_map(hit).collect()
        };
        let clusters = look
            .clusters
            .iter()
            .map(|(name, seen)| (name.clone(), seen.map(of_members)))
            .collect();
        Ok(Observed {
            monitor,
            members,
            unresolved,
            clusters,
            last_poll,
        })
    }

    /// One list of each cluster and of the hub's requests; a recent one serves again.
    async fn look(&self) -> Result<Arc<Look>, ReconcileError> {
        let mut kept = self.looks.lock().await;
        if let Some((at, look)) = &*kept
            && at.elapsed() < FRESH
        {
            return Ok(look.clone());
        }
        let requests: Api<ProtectionRequest> = Api::namespaced(self.hub.clone(), &self.namespace);
        let requests = requests
            .list(&ListParams::default())
            .await
            .during(format!("listing ProtectionRequests in {}", self.namespace))?;
        let looks = join_all(self.clusters.iter().map(|cluster| self.resources(cluster))).await;
        let names = self.clusters.iter().map(|c| c.name.clone());
        let look = Arc::new(Look {
            requests: requests.items,
            clusters: names.zip(looks).collect(),
        });
        *kept = Some((Instant::now(), look.clone()));
        Ok(look)
    }

    async fn resources(&self, cluster: &ZoneCluster) -> Seen<BTreeMap<VmRef, DRBDResource>> {
        let client = match self.remote.client(cluster).await {
            Ok(client) => client,
            Err(why) => return Seen::Unknown(why.to_string()),
        };
        let api: Api<DRBDResource> = Api::all(client);
        let of_zone = ListParams::default().labels(&format!("{}={}", labels::ZONE, self.zone));
        let all = look_list(api.list(&of_zone), LOOK_LIMIT).await;
        let key = |r: &DRBDResource| VmRef {
            namespace: r.namespace().unwrap_or_default(),
            name: r.spec.vm_ref.name.clone(),
        };
        all.map(|all| all.iter().map(|r| (key(r), r.clone())).collect())
    }

    /// Creates the record, unless a process that died after it did; then drops what is too old.
    async fn record(&self, event: &RPOEvent) -> Result<(), ReconcileError> {
        let api: Api<RPOEvent> = Api::namespaced(self.hub.clone(), &self.namespace);
        let of_group = ListParams::default().labels(&format!(
            "{}={}",
            labels::PROTECTION_GROUP,
            event.spec.protection_group
        ));
        let mut all = api.list(&of_group).await.during("listing RPOEvents")?.items;
        if !all.iter().any(|e| is_event_of(&e.name_any(), event)) {
            let params = PostParams {
                field_manager: Some(managers::REPLICATION_MONITOR.into()),
                ..PostParams::default()
            };
            match api.create(&params, event).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => {
                    return Err(ReconcileError::from(error).during("creating an RPOEvent"));
                }
            }
            all.push(event.clone());
        }
        for name in surplus(&all) {
            apply::delete_if_present(&api, &name)
                .await
                .during(format!("deleting RPOEvent {name}"))?;
        }
        Ok(())
    }
}

impl Reconciler<ReplicationGroupStatus> for ReplicationMonitor {
    fn name(&self) -> &'static str {
        managers::REPLICATION_MONITOR
    }

    async fn reconcile(
        &self,
        object: Arc<ReplicationGroupStatus>,
    ) -> Result<Requeue, ReconcileError> {
        self.poll(&object.name_any()).await
    }
}

/// Runs the replication-monitor of a zone until the process shuts down.
pub async fn run(process: &Process, zone: &ProtectionZone, clusters: &Clusters) {
    let namespace = zone.namespace().unwrap_or_default();
    let monitor = ReplicationMonitor::new(process, zone, clusters.clone());
    let api: Api<ReplicationGroupStatus> = Api::namespaced(process.client.clone(), &namespace);
    let none = futures::stream::pending().boxed();
    controller::run(
        process,
        api,
        watcher::Config::default(),
        monitor,
        none,
        CONCURRENCY,
    )
    .await;
}

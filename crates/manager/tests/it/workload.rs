//! What the workload clusters would do: placement, node agents, KubeVirt. Once a second each object
//! makes one move.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farshore_api::DRBDResource;
use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState, Role};
use farshore_api::drbd_resource::{DRBDResourceStatus, DRBDVolumeStatusEntry};
use farshore_api::meta::finalizers;
use farshore_apiserver::ApiServer;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::world::{SHOP, admin, from, vmis, vms};

#[derive(Debug)]
struct State {
    link: bool,
    /// Percent copied, by DRBDResource.
    copied: BTreeMap<String, i32>,
    /// Sides whose agent does nothing.
    stopped: Vec<String>,
}

#[derive(Clone)]
pub struct Workload {
    clusters: [(String, Client); 2],
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.lock().unwrap().fmt(f)
    }
}

fn fake() -> PatchParams {
    PatchParams {
        field_manager: Some("fake".into()),
        ..PatchParams::default()
    }
}

fn faked() -> PostParams {
    PostParams {
        field_manager: Some("fake".into()),
        ..PostParams::default()
    }
}

impl Workload {
    pub fn new(east: &ApiServer, west: &ApiServer) -> Self {
        let state = State {
            link: true,
            copied: BTreeMap::new(),
            stopped: Vec::new(),
        };
        let clusters = [
            ("east".to_string(), admin(east)),
            ("west".to_string(), admin(west)),
        ];
        Self {
            clusters,
            state: Arc::new(Mutex::new(state)),
        }
    }

    pub fn link(&self, up: bool) {
        self.state.lock().unwrap().link = up;
    }

    /// Stops or continues the agents of a cluster.
    pub fn agents(&self, cluster: &str, work: bool) {
        let mut state = self.state.lock().unwrap();
        state.stopped.retain(|c| c != cluster);
        if !work {
            state.stopped.push(cluster.into());
        }
    }

    pub async fn run(&self) {
        loop {
            for (cluster, client) in &self.clusters {
                // A server that is down makes no move.
                let _ = self.tick(cluster, client).await;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn tick(&self, cluster: &str, client: &Client) -> kube::Result<()> {
        let resources: Api<DRBDResource> = Api::namespaced(client.clone(), SHOP);
        if !self
            .state
            .lock()
            .unwrap()
            .stopped
            .contains(&cluster.to_string())
        {
            for resource in resources.list(&ListParams::default()).await?.items {
                self.agent(cluster, client, &resource).await?;
            }
        }
        for vm in vms(client).list(&ListParams::default()).await?.items {
            let name = vm.name_any();
            let resource = resources
                .list(&ListParams::default())
                .await?
                .items
                .into_iter()
                .find(|r| r.spec.vm_ref.name == name);
            kubevirt(client, &serde_json::to_value(&vm).unwrap(), resource).await?;
        }
        for vmi in vmis(client).list(&ListParams::default()).await?.items {
            if vms(client).get_opt(&vmi.name_any()).await?.is_none() {
                vmis(client)
                    .delete(&vmi.name_any(), &DeleteParams::default())
                    .await?;
            }
        }
        Ok(())
    }

    async fn peer(&self, cluster: &str, name: &str) -> Option<DRBDResource> {
        let (_, client) = self.clusters.iter().find(|(c, _)| c != cluster)?;
        let api: Api<DRBDResource> = Api::namespaced(client.clone(), SHOP);
        api.get_opt(name).await.ok()?
    }

    async fn agent(&self, cluster: &str, client: &Client, live: &DRBDResource) -> kube::Result<()> {
        let api: Api<DRBDResource> = Api::namespaced(client.clone(), SHOP);
        let name = live.name_any();
        let open = vmis(client)
            .get_opt(&live.spec.vm_ref.name)
            .await?
            .is_some();
        if live.metadata.deletion_timestamp.is_some() {
            if !open || live.status.is_none() {
                self.state.lock().unwrap().copied.remove(&name);
                let patch = json!({"metadata": {"finalizers": null}});
                api.patch(&name, &fake(), &Patch::Merge(&patch)).await?;
            }
            return Ok(());
        }
        if live.spec.node_name.is_none() {
            return bind(cluster, client, live).await;
        }
        if live.spec.peer.is_none() {
            return Ok(());
        }
        let peer = self.peer(cluster, &name).await;
        let peer_up =
            peer.is_some_and(|p| p.spec.peer.is_some() && p.metadata.deletion_timestamp.is_none());
        let (connected, copied) = {
            let mut state = self.state.lock().unwrap();
            let connected = state.link && peer_up && !live.spec.paused;
            let copied = state.copied.entry(name.clone()).or_insert(0);
            if connected && cluster == "west" {
                *copied = (*copied + 20).min(100);
            }
            (connected, *copied)
        };
        let status = status_of(live, connected, copied, open);
        if live.status.as_ref() != Some(&status) {
            let patch = json!({"status": status});
            api.patch_status(&name, &fake(), &Patch::Merge(&patch))
                .await?;
        }
        Ok(())
    }
}

async fn bind(cluster: &str, client: &Client, live: &DRBDResource) -> kube::Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), SHOP);
    for volume in &live.spec.volumes {
        if claims.get_opt(&volume.pvc_name).await?.is_none() {
            let marks = farshore_core::placement::inherited_labels(live);
            let claim: PersistentVolumeClaim = from(json!({
                "metadata": {"name": volume.pvc_name, "labels": marks},
                "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": volume.storage_class,
                    "resources": {"requests": {"storage": volume.size_bytes.to_string()}}},
            }));
            claims.create(&faked(), &claim).await?;
        }
    }
    let node = format!("{cluster}-1");
    let patch = json!({
        "metadata": {"finalizers": [finalizers::DRBD_TEARDOWN]},
        "spec": {"nodeName": node, "local": {"nodeName": node, "address": format!("10.0.0.{}", cluster.len())}},
    });
    let api: Api<DRBDResource> = Api::namespaced(client.clone(), SHOP);
    api.patch(&live.name_any(), &fake(), &Patch::Merge(&patch))
        .await
        .map(|_| ())
}

fn status_of(live: &DRBDResource, connected: bool, copied: i32, open: bool) -> DRBDResourceStatus {
    let mut status = live.status.clone().unwrap_or_default();
    let newer = status
        .role_epoch
        .is_none_or(|done| live.spec.role_epoch >= done);
    let giving_way = status.role == Some(Role::Primary) && live.spec.role == Role::Secondary;
    if newer && !(giving_way && open) {
        status.role = Some(live.spec.role);
        status.role_epoch = Some(live.spec.role_epoch);
    }
    let (done, source) = (copied >= 100, live.spec.initial_source);
    let disk = |has: bool| {
        if has || done {
            DiskState::UpToDate
        } else {
            DiskState::Inconsistent
        }
    };
    let connection = if connected {
        ConnectionState::Connected
    } else {
        ConnectionState::Connecting
    };
    status.connection_state = Some(connection);
    status.disk_state = Some(disk(source));
    status.volumes = live
        .spec
        .volumes
        .iter()
        .map(|v| DRBDVolumeStatusEntry {
            index: v.index,
            minor: v.port - 6000,
            role: status.role.unwrap_or(Role::Secondary),
            connection_state: connection,
            disk_state: disk(source),
            peer_disk_state: if connected {
                disk(!source)
            } else {
                DiskState::DUnknown
            },
            replication_state: match (connected, done, source) {
                (false, ..) => ReplicationState::Off,
                (_, true, _) => ReplicationState::Established,
                (_, _, true) => ReplicationState::SyncSource,
                _ => ReplicationState::SyncTarget,
            },
            out_of_sync_bytes: v.size_bytes / 100 * i64::from(100 - copied),
            sync_percent: copied,
            frontend_pvc: None,
            metadata_pvc: None,
            backing_pvc: None,
        })
        .collect();
    if status.conditions.is_empty() {
        status.conditions.push(Condition {
            type_: farshore_api::conditions::resource::FRONTEND_READY.into(),
            status: "True".into(),
            reason: "Ready".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time("2026-01-01T00:00:00Z".parse().unwrap()),
        });
    }
    status
}

/// Starts and stops instances; a VM on replicated disks starts only where they are Primary.
async fn kubevirt(client: &Client, vm: &Value, resource: Option<DRBDResource>) -> kube::Result<()> {
    let name = vm["metadata"]["name"].as_str().unwrap();
    let wanted = vm["spec"]["runStrategy"] == "Always" || vm["spec"]["running"] == true;
    let runs = vmis(client).get_opt(name).await?.is_some();
    let frontend = vm["spec"].to_string().contains("-drbd\"");
    let primary = resource.is_some_and(|r| r.status.is_some_and(|s| s.role == Some(Role::Primary)));
    if wanted && !runs && (primary || !frontend) {
        let vmi = from(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name}, "status": {"phase": "Running"},
        }));
        vmis(client).create(&faked(), &vmi).await?;
    } else if !wanted && runs {
        vmis(client).delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

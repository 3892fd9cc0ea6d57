//! The world: an `Observed` whose objects move.

use std::collections::BTreeMap;

use farshore_api::conditions::{resource as resource_condition, zone as zone_condition};
use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState, Role};
use farshore_api::drbd_resource::{DRBDResourceStatus, DRBDVolumeStatusEntry, Endpoint};
use farshore_api::protection_request::{ProtectionPhase, ProtectionRequestStatus};
use farshore_api::{DRBDReplicationPolicy, DRBDResource, ProtectionRequest, ProtectionZone};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::conditions::{self, Truth};
use crate::protection::{Decision, Observed, Side, Step, decide};
use crate::{Seen, vm};

pub const EAST: &str = "east";
pub const WEST: &str = "west";

fn from_json<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub fn zone() -> ProtectionZone {
    from_json(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone",
        "metadata": {"name": "metro1", "namespace": "dr-metro1"},
        "spec": {"clusters": [
            {"name": EAST, "kubeconfigSecretRef": {"name": "east"}},
            {"name": WEST, "kubeconfigSecretRef": {"name": "west"}},
        ]},
        "status": {"conditions": [{
            "type": zone_condition::CLUSTERS_VALIDATED, "status": "True", "reason": "Validated", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    }))
}

pub fn policy(name: &str, default: bool) -> DRBDReplicationPolicy {
    from_json(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDReplicationPolicy",
        "metadata": {"name": name, "namespace": "dr-metro1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"isDefault": default},
    }))
}

pub fn request(name: &str, vm: &str) -> ProtectionRequest {
    from_json(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionRequest",
        "metadata": {"name": name, "namespace": "dr-metro1", "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"vmName": vm, "vmNamespace": "shop", "sourceCluster": EAST},
    }))
}

pub fn machine() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "db01", "namespace": "shop", "resourceVersion": "1", "labels": {"app": "db"}},
        "spec": {"runStrategy": "Always", "template": {"spec": {
            "domain": {"cpu": {"cores": 2}},
            "volumes": [
                {"name": "root", "dataVolume": {"name": "db01-root"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "db01-data"}},
                {"name": "init", "cloudInitNoCloud": {"userData": "#cloud-config"}},
            ],
        }}},
    })
}

pub fn claim(name: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"volumeMode": mode, "storageClassName": "lab-block", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
    })
}

pub fn side() -> Side {
    Side {
        storage_classes: Seen::Present(vec!["lab-block".into()]),
        ..Side::empty()
    }
}

/// A request for a running VM on east.
pub fn observed() -> Observed {
    let mut east = side();
    east.namespace = Seen::Present(());
    east.vm = Seen::Present(machine());
    east.vmi = Seen::Present(json!({"metadata": {"name": "db01", "namespace": "shop"}}));
    for name in ["db01-root", "db01-data"] {
        east.pvcs
            .insert(name.into(), Seen::Present(from_json(claim(name, "Block"))));
    }
    Observed {
        request: request("db01", "db01"),
        zone: Some(zone()),
        zone_namespace_uid: "zone-uid".into(),
        policies: vec![policy("metro1-default", true)],
        others: Vec::new(),
        drbd_volumes: Vec::new(),
        locked_by: None,
        sides: BTreeMap::from([(EAST.into(), east), (WEST.into(), side())]),
        trouble: None,
    }
}

pub struct World {
    pub seen: Observed,
    pub now: Timestamp,
    pub link: bool,
    /// Whether the full content has reached the other side: (cluster with the data, percent there).
    pub copied: i32,
    /// The request is gone.
    pub gone: bool,
    /// Phases as written.
    pub phases: Vec<ProtectionPhase>,
    /// How often the status was written.
    pub status_writes: usize,
    version: u64,
}

impl World {
    pub fn new(seen: Observed) -> Self {
        Self {
            seen,
            now: "2026-01-01T00:00:10Z".parse().unwrap(),
            link: true,
            copied: 0,
            gone: false,
            phases: Vec::new(),
            status_writes: 0,
            version: 10,
        }
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    pub fn side(&mut self, cluster: &str) -> &mut Side {
        self.seen.sides.get_mut(cluster).unwrap()
    }

    pub fn resource(&self, cluster: &str) -> Option<&DRBDResource> {
        self.seen.sides[cluster].resource.present()
    }

    pub fn role(&self, cluster: &str) -> Option<Role> {
        self.resource(cluster)?.status.as_ref()?.role
    }

    pub fn runs(&self, cluster: &str) -> bool {
        self.seen.sides[cluster].vmi.present().is_some()
    }

    pub fn phase(&self) -> Option<ProtectionPhase> {
        self.seen.request.status.as_ref()?.phase
    }

    /// What a reconciler reads while some clusters do not answer.
    pub fn look(&self, dark: &[&str]) -> Observed {
        let mut seen = self.seen.clone();
        for cluster in dark {
            seen.sides
                .insert((*cluster).into(), Side::unreachable("timeout"));
        }
        seen
    }

    /// Carries out at most `writes` writes of a decision; stops at the first that fails, as a
    /// reconcile does.
    pub fn act(&mut self, decision: &Decision, mut writes: usize) {
        let old = self.seen.request.status.clone().unwrap_or_default();
        if crate::status_differs(&old, &decision.status) {
            if writes == 0 {
                return;
            }
            writes -= 1;
            self.write_status(decision.status.clone());
        }
        for step in &decision.steps {
            if writes == 0 || self.apply(step).is_err() {
                return;
            }
            writes -= 1;
        }
    }

    fn write_status(&mut self, status: ProtectionRequestStatus) {
        if let Some(phase) = status.phase.filter(|p| self.phases.last() != Some(p)) {
            self.phases.push(phase);
        }
        self.status_writes += 1;
        self.seen.request.status = Some(status);
    }

    /// What a condition of the request says: status, reason, message.
    pub fn says(&self, type_: &str) -> Option<(String, String, String)> {
        let status = self.seen.request.status.as_ref()?;
        let found = conditions::get(&status.conditions, type_)?;
        Some((
            found.status.clone(),
            found.reason.clone(),
            found.message.clone(),
        ))
    }

    /// Asks for the end of the protection.
    pub fn delete(&mut self) {
        self.seen.request.metadata.deletion_timestamp = Some(Time(self.now));
    }

    /// Puts a further disk into the VM of a cluster.
    pub fn add_disk(&mut self, cluster: &str) {
        let Seen::Present(machine) = &mut self.side(cluster).vm else {
            panic!("no VM")
        };
        let volumes = machine.pointer_mut("/spec/template/spec/volumes").unwrap();
        let new = json!({"name": "extra", "persistentVolumeClaim": {"claimName": "db01-extra"}});
        volumes.as_array_mut().unwrap().push(new);
    }

    /// Takes the last disk out of the VM of a cluster.
    pub fn remove_disk(&mut self, cluster: &str) {
        let Seen::Present(machine) = &mut self.side(cluster).vm else {
            panic!("no VM")
        };
        let volumes = machine.pointer_mut("/spec/template/spec/volumes").unwrap();
        volumes.as_array_mut().unwrap().pop();
    }

    fn apply(&mut self, step: &Step) -> Result<(), &'static str> {
        let version = self.next_version();
        match step {
            Step::AddFinalizer => {
                let list = self
                    .seen
                    .request
                    .metadata
                    .finalizers
                    .get_or_insert_default();
                list.push(farshore_api::meta::finalizers::UNPROTECT.into());
            }
            Step::RemoveFinalizer => self.gone = true,
            Step::CreateNamespace { cluster } => self.side(cluster).namespace = Seen::Present(()),
            Step::ShareSecret => {
                for cluster in [EAST, WEST] {
                    self.side(cluster).secret = Seen::Present(());
                }
            }
            Step::CreateDrbdVolume { volume } => self.seen.drbd_volumes.push((**volume).clone()),
            Step::ReportDrbdVolume { name, status } => {
                let volume = self
                    .seen
                    .drbd_volumes
                    .iter_mut()
                    .find(|v| v.metadata.name.as_ref() == Some(name));
                volume.ok_or("no such DRBDVolume")?.status = Some(status.clone());
            }
            Step::CreateResource { cluster, resource } => {
                let side = self.side(cluster);
                if side.resource.present().is_some() {
                    return Err("exists");
                }
                let mut resource = (**resource).clone();
                resource.metadata.resource_version = Some(version);
                side.resource = Seen::Present(resource);
            }
            Step::PatchResource { cluster, patch } => {
                let side = self.side(cluster);
                let Seen::Present(live) = &side.resource else {
                    return Err("gone");
                };
                let new = merged(&serde_json::to_value(live).unwrap(), patch, &version)?;
                side.resource = Seen::Present(from_json(new));
            }
            Step::DeleteResource { cluster } => {
                let now = self.now;
                let Seen::Present(live) = &mut self.side(cluster).resource else {
                    return Err("gone");
                };
                live.metadata.deletion_timestamp = Some(Time(now));
            }
            Step::CreateVm { cluster, vm } => {
                let mut vm = vm.clone();
                vm["metadata"]["resourceVersion"] = json!(version);
                self.side(cluster).vm = Seen::Present(vm);
            }
            Step::PatchVm { cluster, patch, .. } => {
                let side = self.side(cluster);
                let Seen::Present(live) = &side.vm else {
                    return Err("gone");
                };
                side.vm = Seen::Present(merged(live, patch, &version)?);
            }
            Step::DeleteVm { cluster } => self.side(cluster).vm = Seen::Absent,
            Step::DeletePvc { cluster, name } => {
                self.side(cluster).pvcs.insert(name.clone(), Seen::Absent);
            }
            Step::DeleteSecret { cluster } => self.side(cluster).secret = Seen::Absent,
        }
        Ok(())
    }

    /// One reconcile, undisturbed. Returns whether it wrote.
    pub fn reconcile(&mut self) -> bool {
        let decision = decide(&self.seen, self.now);
        let old = self.seen.request.status.clone().unwrap_or_default();
        let writes = crate::status_differs(&old, &decision.status) || !decision.steps.is_empty();
        self.act(&decision, usize::MAX);
        self.now += SignedDuration::from_secs(5);
        writes
    }

    /// KubeVirt on one cluster: starts and stops instances. A swapped VM starts only on a Primary.
    pub fn kubevirt(&mut self, cluster: &str) {
        let primary = self.role(cluster) == Some(Role::Primary);
        let side = self.side(cluster);
        let Seen::Present(machine) = &side.vm else {
            side.vmi = Seen::Absent;
            return;
        };
        let frontend = machine.to_string().contains("-drbd\"");
        match (vm::is_halted(machine), side.vmi.is_absent()) {
            (true, false) => side.vmi = Seen::Absent,
            (false, true) if primary || !frontend => {
                side.vmi = Seen::Present(json!({"metadata": {}}))
            }
            _ => {}
        }
    }

    /// Placement and the node agent of one cluster: one move. The agent carries out what its spec says
    /// and does not ask whether the peer is Primary: the decision alone must keep that from happening.
    pub fn agent(&mut self, cluster: &str) {
        let version = self.next_version();
        let (link, copied) = (self.link, self.copied);
        let peer = if cluster == EAST { WEST } else { EAST };
        let peer_up = self
            .resource(peer)
            .is_some_and(|r| r.status.is_some() && r.spec.peer.is_some());
        let device_open = self.runs(cluster);
        let now = self.now;
        let side = self.side(cluster);
        let Seen::Present(live) = &mut side.resource else {
            return;
        };
        if live.metadata.deletion_timestamp.is_some() {
            if !device_open || live.status.is_none() {
                side.resource = Seen::Absent;
            }
            return;
        }
        if live.spec.node_name.is_none() {
            live.metadata.resource_version = Some(version);
            let node = format!("{cluster}-1");
            live.spec.node_name = Some(node.clone());
            live.spec.local = Some(Endpoint {
                node_name: node,
                address: format!("10.0.0.{}", cluster.len()),
            });
            let marks = crate::placement::inherited_labels(live);
            for volume in live.spec.volumes.clone() {
                side.pvcs.entry(volume.pvc_name.clone()).or_insert_with(|| {
                    let mut made = claim(&volume.pvc_name, "Block");
                    made["metadata"]["labels"] = json!(marks);
                    Seen::Present(from_json(made))
                });
            }
            return;
        }
        if live.spec.peer.is_none() {
            return;
        }
        let mut status = live.status.clone().unwrap_or_default();
        let newer = status
            .role_epoch
            .is_none_or(|done| live.spec.role_epoch >= done);
        let giving_way = status.role == Some(Role::Primary) && live.spec.role == Role::Secondary;
        if newer && !(giving_way && device_open) {
            status.role = Some(live.spec.role);
            status.role_epoch = Some(live.spec.role_epoch);
        }
        let connected = link && peer_up && !live.spec.paused;
        let done = copied >= 100;
        let primary_data = live.spec.initial_source;
        let disk = |has: bool| {
            if has || done {
                DiskState::UpToDate
            } else {
                DiskState::Inconsistent
            }
        };
        status.connection_state = Some(if connected {
            ConnectionState::Connected
        } else {
            ConnectionState::Connecting
        });
        status.volumes = live
            .spec
            .volumes
            .iter()
            .map(|v| DRBDVolumeStatusEntry {
                index: v.index,
                minor: v.port - 6000,
                role: status.role.unwrap_or(Role::Secondary),
                connection_state: status.connection_state.unwrap(),
                disk_state: disk(primary_data),
                peer_disk_state: if connected {
                    disk(!primary_data)
                } else {
                    DiskState::DUnknown
                },
                replication_state: match (connected, done, primary_data) {
                    (false, ..) => ReplicationState::Off,
                    (_, true, _) => ReplicationState::Established,
                    (_, _, true) => ReplicationState::SyncSource,
                    _ => ReplicationState::SyncTarget,
                },
                out_of_sync_bytes: if done {
                    0
                } else {
                    v.size_bytes / 100 * i64::from(100 - copied)
                },
                sync_percent: copied,
                frontend_pvc: None,
                metadata_pvc: None,
                backing_pvc: None,
            })
            .collect();
        status.disk_state = Some(disk(primary_data));
        set_frontend(&mut status, now);
        if live.status.as_ref() != Some(&status) {
            live.metadata.resource_version = Some(version);
        }
        live.status = Some(status);
        if connected && cluster == WEST {
            self.copied = (self.copied + 50).min(100);
        }
    }

    /// Lets everybody move until nothing more happens; returns how many rounds it took.
    pub fn settle(&mut self) -> usize {
        for round in 0..200 {
            if self.gone {
                return round;
            }
            let wrote = self.reconcile();
            let before = (self.seen.sides.clone(), self.copied);
            for cluster in [EAST, WEST] {
                self.agent(cluster);
                self.kubevirt(cluster);
            }
            let still =
                timeless(&before.0) == timeless(&self.seen.sides) && before.1 == self.copied;
            if !wrote && still {
                return round;
            }
        }
        panic!("did not settle: {:#?}", self.seen.request.status);
    }
}

/// The sides without resourceVersions, which move with every look of an agent.
fn timeless(sides: &BTreeMap<String, Side>) -> Value {
    let mut value = serde_json::to_value(sides).unwrap();
    for cluster in [EAST, WEST] {
        let meta = value.pointer_mut(&format!("/{cluster}/resource/present/metadata"));
        if let Some(meta) = meta.and_then(Value::as_object_mut) {
            meta.remove("resourceVersion");
        }
    }
    value
}

fn set_frontend(status: &mut DRBDResourceStatus, now: Timestamp) {
    let type_ = resource_condition::FRONTEND_READY;
    conditions::set(
        &mut status.conditions,
        type_,
        Truth::True,
        "Ready",
        "",
        None,
        now,
    );
}

/// Applies a merge patch that must carry the live resourceVersion.
fn merged(live: &Value, patch: &Value, version: &str) -> Result<Value, &'static str> {
    if live["metadata"]["resourceVersion"] != patch["metadata"]["resourceVersion"] {
        return Err("conflict");
    }
    let mut new = live.clone();
    merge(&mut new, patch);
    new["metadata"]["resourceVersion"] = json!(version);
    Ok(new)
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// What a listing shows and what the conditions say is the same.
pub fn agrees(status: &farshore_api::protection_request::ProtectionRequestStatus) {
    use farshore_api::protection_request::ProtectionPhase::{
        Failed, Pending, Protected, Unprotecting, Validating,
    };
    let says = |type_: &str| {
        let found = conditions::get(&status.conditions, type_);
        found.map_or("absent", |c| c.status.as_str())
    };
    let told = serde_json::to_string_pretty(status).unwrap();
    let phase = status.phase;
    if let Some(protected) = conditions::get(&status.conditions, "Protected") {
        let is = phase == Some(Protected);
        assert_eq!(
            protected.status,
            if is { "True" } else { "False" },
            "{told}"
        );
    } else {
        assert!(matches!(phase, None | Some(Pending | Validating)), "{told}");
    }
    match phase {
        Some(Failed) => assert_eq!(says("Validated"), "False", "{told}"),
        None | Some(Pending | Validating | Unprotecting) => {}
        Some(_) => assert_eq!(says("Validated"), "True", "{told}"),
    }
}

/// As a group controller does before a flip.
pub fn stop_both(world: &mut World) {
    for cluster in [EAST, WEST] {
        let Seen::Present(machine) = &mut world.side(cluster).vm else {
            continue;
        };
        vm::halt(machine);
        world.kubevirt(cluster);
    }
}

//! The DRBDResources of a pair: how they are created and what of them follows the request.

use std::collections::BTreeMap;

use farshore_api::drbd::Role;
use farshore_api::drbd_resource::{DRBDResourceSpec, DRBDVolumeSpec, VolumeMode};
use farshore_api::drbd_volume::{DRBDVolumePhase, DRBDVolumeSpec as VolumeView};
use farshore_api::meta::labels;
use farshore_api::protection_request::{ProtectedVolume, ProtectionPhase};
use farshore_api::{DRBDResource, DRBDVolume, LocalRef, ProtectionRequest, names};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

use super::health::{self, Health};
use super::roles;
use super::scene::Scene;
use super::{Side, Step, policy};
use crate::conditions::{self, Truth};

/// The storage class of a PVC.
pub(crate) fn class_of(side: &Side, pvc: &str) -> Option<String> {
    let pvc = side.pvcs.get(pvc)?.present()?;
    pvc.spec
        .as_ref()?
        .storage_class_name
        .clone()
        .filter(|c| !c.is_empty())
}

/// The class on the other side: as the policy maps it; without any mapping, the class of that name.
pub(crate) fn mapped_class(scene: &Scene, class: &str) -> Option<String> {
    let mappings = &scene.policy?.spec.storage_class_mappings;
    if mappings.is_empty() {
        return Some(class.into());
    }
    mappings
        .iter()
        .find(|m| m.source == class)
        .map(|m| m.target.clone())
}

/// A new DRBDResource for one side of a pair. `None` while the storage class is not known.
pub(crate) fn new(
    scene: &Scene,
    volumes: &[ProtectedVolume],
    side: Which,
    epoch: i64,
) -> Option<DRBDResource> {
    let is_source = side == Which::Source;
    let (cluster, peer_cluster, peer) = match side {
        Which::Source => (scene.source, scene.target, scene.t),
        Which::Target => (scene.target, scene.source, scene.s),
    };
    let mut disks = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        let class = class_of(scene.s, &volume.pvc)?;
        let class = if is_source {
            class
        } else {
            mapped_class(scene, &class)?
        };
        disks.push(DRBDVolumeSpec {
            index: i32::try_from(index).ok()?,
            name: volume.name.clone(),
            pvc_name: volume.pvc.clone(),
            storage_class: class,
            size_bytes: volume.size_bytes,
            volume_mode: VolumeMode::Block,
            port: volume.port,
        });
    }
    let policy = scene.policy?;
    let primary = is_source && roles::may_promote(epoch, scene.t);
    let placement = scene
        .seen
        .request
        .spec
        .placement
        .clone()
        .unwrap_or_default();
    let mut resource = DRBDResource::new(
        &scene.resource,
        DRBDResourceSpec {
            node_name: None,
            node_hint: if is_source {
                placement.source_node
            } else {
                placement.target_node
            },
            vm_ref: LocalRef {
                name: scene.vm.name.clone(),
            },
            zone: scene.zone_name.into(),
            cluster: cluster.into(),
            peer_cluster: peer_cluster.into(),
            role: if primary {
                Role::Primary
            } else {
                Role::Secondary
            },
            role_epoch: epoch,
            initial_source: is_source,
            protocol: scene.seen.request.spec.replication_protocol,
            volumes: disks,
            peer: peer.resource.present().and_then(|r| r.spec.local.clone()),
            local: None,
            net: policy.spec.net.clone(),
            resync_rate: policy.spec.resync_rate.clone(),
            paused: scene.seen.request.spec.paused,
        },
    );
    resource.metadata = ObjectMeta {
        name: Some(scene.resource.clone()),
        namespace: Some(scene.vm.namespace.clone()),
        labels: Some(labels_of(scene)),
        ..ObjectMeta::default()
    };
    Some(resource)
}

/// Labels of a DRBDResource, which the PVCs that are made for it inherit.
fn labels_of(scene: &Scene) -> BTreeMap<String, String> {
    let mut all = scene.labels();
    let uid = scene.seen.request.metadata.uid.clone();
    all.extend(uid.map(|uid| (labels::PROTECTION_REQUEST_UID.to_string(), uid)));
    all
}

/// Whether this very request had the PVC made. Its name alone says nothing: what an earlier request of
/// the name made as a standby disk may have become the disk of the VM since.
pub(crate) fn made(scene: &Scene, claim: &PersistentVolumeClaim) -> bool {
    let labels = claim.metadata.labels.as_ref();
    let uid = labels.and_then(|l| l.get(labels::PROTECTION_REQUEST_UID));
    uid.is_some() && uid == scene.seen.request.metadata.uid.as_ref()
}

/// A side of a pair, named from the request's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Source,
    Target,
}

/// The changes of both DRBDResources that are due: roles, the peer's address, what the policy and the
/// request say. A side that is not known or not there is left alone.
pub(crate) fn changes(scene: &Scene, epoch: i64) -> Vec<Step> {
    let roles = roles::wanted(epoch, scene.t);
    let mut steps = Vec::new();
    // The side that gives way comes first.
    for (cluster, side, peer, role) in [
        (scene.target, scene.t, scene.s, roles.target),
        (scene.source, scene.s, scene.t, roles.source),
    ] {
        let Some(live) = side.resource.present() else {
            continue;
        };
        if live.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let mut spec = live.spec.clone();
        if let Some(role) = role.filter(|_| live.spec.role_epoch <= epoch) {
            (spec.role, spec.role_epoch) = (role, epoch);
        }
        if let Some(local) = peer.resource.present().and_then(|p| p.spec.local.clone()) {
            spec.peer = Some(local);
        }
        spec.paused = scene.seen.request.spec.paused;
        if let Some(policy) = scene.policy {
            spec.net = policy.spec.net.clone();
            spec.resync_rate = policy.spec.resync_rate.clone();
        }
        if let Some(patch) = patch(live, &spec) {
            steps.push(Step::PatchResource {
                cluster: cluster.into(),
                patch,
            });
        }
    }
    steps
}

fn patch(live: &DRBDResource, spec: &DRBDResourceSpec) -> Option<Value> {
    let old =
        json!({"spec": live.spec, "metadata": {"resourceVersion": live.metadata.resource_version}});
    let mut new = old.clone();
    new["spec"] = serde_json::to_value(spec).ok()?;
    crate::vm::patch(&old, &new)
}

/// Creates the DRBDVolumes that are not there. One that is deleted by hand is made again as long as
/// its request is to stay.
pub(crate) fn missing_views(scene: &Scene, volumes: &[ProtectedVolume]) -> Vec<Step> {
    if scene.seen.request.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let there = |view: &DRBDVolume| {
        let mut all = scene.seen.drbd_volumes.iter();
        all.any(|v| v.metadata.name == view.metadata.name)
    };
    volumes
        .iter()
        .enumerate()
        .map(|(index, volume)| drbd_volume(scene, index, volume))
        .filter(|view| !there(view))
        .map(|view| Step::CreateDrbdVolume {
            volume: Box::new(view),
        })
        .collect()
}

/// The DRBDVolume of a volume, owned by the request.
fn drbd_volume(scene: &Scene, index: usize, volume: &ProtectedVolume) -> DRBDVolume {
    let index = i32::try_from(index).unwrap_or(i32::MAX);
    let name = names::drbd_volume(&scene.resource, index);
    let mut view = DRBDVolume::new(
        &name,
        VolumeView {
            drbd_resource_ref: LocalRef {
                name: scene.resource.clone(),
            },
            volume_index: index,
            pvc_name: volume.pvc.clone(),
            namespace: scene.vm.namespace.clone(),
            size_bytes: volume.size_bytes,
        },
    );
    view.metadata
        .namespace
        .clone_from(&scene.seen.request.metadata.namespace);
    view.metadata.labels = Some(scene.labels());
    view.metadata.owner_references = Some(vec![owner_of(&scene.seen.request)]);
    view
}

fn owner_of(request: &ProtectionRequest) -> OwnerReference {
    OwnerReference {
        api_version: format!("{}/{}", farshore_api::GROUP, farshore_api::VERSION),
        kind: "ProtectionRequest".into(),
        name: request.metadata.name.clone().unwrap_or_default(),
        uid: request.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The reports of the DRBDVolumes that have something new to say. `Synced` is said for the first
/// time only when both sides were seen in sync with nothing left to copy. One that was made again
/// knows from its request whether that time has been.
pub(crate) fn reports(scene: &Scene, health: &Health) -> Vec<Step> {
    use ProtectionPhase::{Degraded, FailingOver, Protected};
    let mut steps = Vec::new();
    let phase = scene.seen.request.status.as_ref().and_then(|s| s.phase);
    let settled = matches!(phase, Some(Protected | Degraded | FailingOver));
    for (index, volume) in health.volumes.iter().enumerate() {
        let name = names::drbd_volume(&scene.resource, i32::try_from(index).unwrap_or(i32::MAX));
        let live = scene
            .seen
            .drbd_volumes
            .iter()
            .find(|v| v.metadata.name.as_deref() == Some(&name));
        let Some(live) = live else { continue };
        let old = live.status.clone().unwrap_or_default();
        let mut new = old.clone();
        let was_synced = settled
            || old.phase == Some(DRBDVolumePhase::Synced)
            || old.phase == Some(DRBDVolumePhase::Degraded);
        let in_sync = volume.sync_percent == Some(100);
        let up = volume.connection_state.is_some();
        new.phase = Some(
            match (in_sync, was_synced, up, scene.s.resource.present()) {
                (true, ..) => DRBDVolumePhase::Synced,
                (_, true, ..) => DRBDVolumePhase::Degraded,
                (_, _, true, _) => DRBDVolumePhase::Syncing,
                (_, _, _, Some(_)) => DRBDVolumePhase::Provisioning,
                _ => DRBDVolumePhase::Pending,
            },
        );
        new.sync_percent = volume.sync_percent;
        new.connection_state = volume.connection_state;
        if health::frontend_ready(scene.s) {
            new.frontend_pvc = Some(names::frontend_pvc(&volume.pvc));
        }
        let (truth, reason, message) = if in_sync {
            (Truth::True, "FullSync", "every block is on both sides")
        } else if was_synced {
            (
                Truth::False,
                "Resyncing",
                "blocks written since the last full sync are not on both sides",
            )
        } else {
            (
                Truth::False,
                "InitialSync",
                "the first full sync has not ended",
            )
        };
        conditions::set(
            &mut new.conditions,
            "Synced",
            truth,
            reason,
            message,
            live.metadata.generation,
            scene.now,
        );
        if crate::status_differs(&old, &new) {
            steps.push(Step::ReportDrbdVolume { name, status: new });
        }
    }
    steps
}

/// Whether every volume's DRBDVolume has reported its full sync: the gate of the swap.
pub(crate) fn all_reported(scene: &Scene, volumes: &[ProtectedVolume]) -> bool {
    !volumes.is_empty()
        && (0..volumes.len()).all(|index| {
            let name =
                names::drbd_volume(&scene.resource, i32::try_from(index).unwrap_or(i32::MAX));
            scene.seen.drbd_volumes.iter().any(|v| {
                v.metadata.name.as_deref() == Some(&name)
                    && v.status.as_ref().and_then(|s| s.phase) == Some(DRBDVolumePhase::Synced)
            })
        })
}

/// Whether Protocol A may be used in this zone.
pub(crate) fn protocol_a(scene: &Scene) -> bool {
    policy::gate(scene.zone, "ReplicationProtocolA")
}

//! How well a pair replicates, read from the DRBDResources of both sides.

use farshore_api::DRBDResource;
use farshore_api::conditions::request as condition;
use farshore_api::conditions::resource as resource_condition;
use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState, Role};
use farshore_api::drbd_resource::DRBDVolumeStatusEntry;
use farshore_api::protection_request::{DiskStates, ProtectedVolume};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::Side;
use super::roles;
use crate::placement::reasons;
use crate::words;

/// Health of a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// The volumes with their progress.
    pub volumes: Vec<ProtectedVolume>,
    /// Least progress, 0 to 100; 100 only when all volumes are in sync on both sides.
    pub percent: i32,
    /// Whether every volume is connected, as far as known.
    pub connected: Option<bool>,
    /// Whether both sides answer and say that every volume is in sync.
    pub in_sync: bool,
    /// Whether a kernel reported split brain.
    pub split_brain: bool,
    /// What is wrong; `None` when in sync with the source Primary.
    pub trouble: Option<Trouble>,
}

/// What is wrong with a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// Reason of a condition.
    pub reason: &'static str,
    /// A clause that names the object and its state.
    pub by: String,
    /// What happens next, where it is not that replication goes on by itself.
    pub next: Option<String>,
    /// The cluster whose DRBDResource is to be looked at; the source's when absent.
    pub look_at: Option<String>,
}

/// What becomes of a pair whose source is gone: nobody may make it anew, since the data of a new one
/// would be taken for the newest. A copy that holds everything can take its place.
fn source_gone(target: &str, t: &Side) -> String {
    let status = t.resource.present().and_then(|r| r.status.as_ref());
    let whole = status
        .is_some_and(|s| s.disk_state == Some(DiskState::UpToDate) && s.split_brain != Some(true));
    let there = if whole {
        format!(
            "Set spec.sourceCluster of this ProtectionRequest to {target}, whose disks are UpToDate, and the VM goes on there and is copied anew; or delete"
        )
    } else {
        "Delete".into()
    };
    format!(
        "The group does not fail over, and the source is never made anew, because its data would be taken for new. {there} this ProtectionRequest, which gives the VM its disks back, and create it again"
    )
}
/// What becomes of a pair whose standby is gone.
const STANDBY_GONE: &str =
    "The group does not fail over until it is made anew and every block is copied again";

impl Trouble {
    fn new(reason: &'static str, by: String) -> Self {
        Self {
            reason,
            by,
            next: None,
            look_at: None,
        }
    }
}

fn entry(resource: Option<&DRBDResource>, index: usize) -> Option<&DRBDVolumeStatusEntry> {
    let index = i32::try_from(index).ok()?;
    resource?
        .status
        .as_ref()?
        .volumes
        .iter()
        .find(|v| v.index == index)
}

fn established(entry: &DRBDVolumeStatusEntry) -> bool {
    entry.connection_state == ConnectionState::Connected
        && entry.replication_state == ReplicationState::Established
        && entry.disk_state == DiskState::UpToDate
        && entry.peer_disk_state == DiskState::UpToDate
        && entry.out_of_sync_bytes == 0
}

/// Looks at a pair: `source` is Primary at `epoch` when all is well.
pub fn of(
    volumes: &[ProtectedVolume],
    (source, s): (&str, &Side),
    (target, t): (&str, &Side),
    epoch: i64,
) -> Health {
    let (primary, standby) = (s.resource.present(), t.resource.present());
    let mut in_sync = !volumes.is_empty();
    let mut connected = Some(true);
    let mut percent = 100;
    let mut seen = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        let (here, there) = (entry(primary, index), entry(standby, index));
        let volume_in_sync = here.is_some_and(established) && there.is_some_and(established);
        in_sync &= volume_in_sync;
        let either = here.or(there);
        let up = either.map(|e| e.connection_state == ConnectionState::Connected);
        connected = match (connected, up) {
            (Some(all), Some(up)) => Some(all && up),
            (Some(false), None) => Some(false),
            _ => None,
        };
        let mut progress = either.map(|e| e.sync_percent.clamp(0, 100));
        if !volume_in_sync {
            progress = progress.map(|p| p.min(99));
        }
        percent = percent.min(progress.unwrap_or(0));
        seen.push(ProtectedVolume {
            sync_percent: progress,
            out_of_sync_bytes: either.map(|e| e.out_of_sync_bytes),
            connection_state: either.map(|e| e.connection_state),
            disk_state: either.map(|_| DiskStates {
                source: here
                    .map(|e| e.disk_state)
                    .or(there.map(|e| e.peer_disk_state)),
                target: there
                    .map(|e| e.disk_state)
                    .or(here.map(|e| e.peer_disk_state)),
            }),
            ..volume.clone()
        });
    }
    let split_brain = [primary, standby]
        .into_iter()
        .flatten()
        .any(|r| r.status.as_ref().and_then(|s| s.split_brain) == Some(true));
    let mut health = Health {
        volumes: seen,
        percent,
        connected,
        in_sync,
        split_brain,
        trouble: None,
    };
    health.trouble = trouble(&health, (source, s), (target, t), epoch);
    health
}

fn trouble(
    health: &Health,
    (source, s): (&str, &Side),
    (target, t): (&str, &Side),
    epoch: i64,
) -> Option<Trouble> {
    for (cluster, side) in [(source, s), (target, t)] {
        if let Some(why) = side.resource.unknown() {
            let by = words::silent(cluster, why);
            return Some(Trouble::new(condition::CLUSTER_UNREACHABLE, by));
        }
    }
    if s.resource.is_absent() && t.resource.is_absent() {
        return Some(Trouble {
            reason: condition::RESOURCE_MISSING,
            by: format!("the DRBDResources of both clusters, {source} and {target}, are gone"),
            next: Some(format!(
                "The group does not fail over, and nothing is made anew, because its data would be taken for new. Set spec.sourceCluster of this ProtectionRequest to the cluster whose disks shall be kept (now {source}) and delete it, which gives the VM those disks back; then start the VM there and protect it again"
            )),
            look_at: None,
        });
    }
    // What is gone cannot be looked at; the other side can.
    for (cluster, side, other, next) in [
        (source, s, target, source_gone(target, t)),
        (target, t, source, STANDBY_GONE.into()),
    ] {
        if side.resource.is_absent() {
            return Some(Trouble {
                reason: condition::RESOURCE_MISSING,
                by: format!("the DRBDResource of cluster {cluster} is gone"),
                next: Some(next),
                look_at: Some(other.into()),
            });
        }
    }
    let name = |side: &Side| {
        let resource = side.resource.present();
        resource.map_or(String::new(), |r| {
            let (namespace, name) = (&r.metadata.namespace, &r.metadata.name);
            format!(
                "{}/{}",
                namespace.as_deref().unwrap_or_default(),
                name.as_deref().unwrap_or_default()
            )
        })
    };
    if health.split_brain {
        let by = format!("DRBD reports split brain on DRBDResource {}", name(s));
        return Some(Trouble::new(condition::SPLIT_BRAIN_DETECTED, by));
    }
    if let Some(trouble) = leaving((source, s), (target, t)) {
        return Some(trouble);
    }
    if !roles::seen(&s.resource, Role::Primary, epoch) {
        let role = s
            .resource
            .present()
            .and_then(|r| r.status.as_ref()?.role)
            .unwrap_or(Role::Unknown);
        let by = format!(
            "DRBDResource {} (cluster {source}) is {role} instead of Primary",
            name(s)
        );
        return Some(Trouble::new("NotPrimary", by));
    }
    if health.connected != Some(true) {
        let by = format!(
            "DRBDResource {} (cluster {source}) is not connected to its peer on {target}",
            name(s)
        );
        return Some(Trouble::new(condition::PEER_DISCONNECTED, by));
    }
    if !health.in_sync {
        let volume = health.volumes.iter().find(|v| v.sync_percent != Some(100));
        let which = volume.map_or(String::new(), |v| {
            let states = v.disk_state.clone().unwrap_or_default();
            let state = |s: Option<DiskState>| s.map_or("not reported", DiskState::as_str);
            format!(
                "volume {} is {} on {source} and {} on {target}",
                v.name,
                state(states.source),
                state(states.target)
            )
        });
        return Some(Trouble::new(condition::RESYNCING, which));
    }
    None
}

/// A side that replicates now and will not for long: its object is being deleted, or the volume under
/// it is gone.
fn leaving((source, s): (&str, &Side), (target, t): (&str, &Side)) -> Option<Trouble> {
    for (cluster, side, is_source) in [(source, s, true), (target, t, false)] {
        let Some(resource) = side.resource.present() else {
            continue;
        };
        let title = format!(
            "DRBDResource {}/{} (cluster {cluster})",
            resource.metadata.namespace.as_deref().unwrap_or_default(),
            resource.metadata.name.as_deref().unwrap_or_default()
        );
        let told = |reason, by, next: &str| Trouble {
            reason,
            by,
            next: Some(next.into()),
            look_at: Some(cluster.into()),
        };
        if resource.metadata.deletion_timestamp.is_some() {
            let by = format!("{title} is being deleted");
            let next = if is_source {
                "The group does not fail over; the deletion ends when the VM has stopped, and the source is never made anew, because its data would be taken for new. Delete this ProtectionRequest, which gives the VM its disks back, and create it again"
            } else {
                "The group does not fail over; when the object is gone it is made anew, and every block is copied again"
            };
            return Some(told("ResourceBeingDeleted", by, next));
        }
        if let Some(lost) = volume_lost(resource) {
            let by = format!("{title} has lost its volume: {}", lost.message);
            let next = "The group does not fail over until a volume is there again and every block is on it";
            return Some(told(reasons::VOLUME_LOST, by, next));
        }
    }
    None
}

/// What placement says of a DRBDResource of which a volume is gone.
pub(crate) fn volume_lost(resource: &DRBDResource) -> Option<&Condition> {
    let status = resource.status.as_ref()?;
    let mut volumes = [
        resource_condition::BACKING_READY,
        resource_condition::METADATA_READY,
    ]
    .into_iter()
    .filter_map(|type_| crate::conditions::get(&status.conditions, type_));
    volumes.find(|c| c.status == "False" && c.reason == reasons::VOLUME_LOST)
}

/// Whether the frontend PVCs of a side are ready for a VM.
pub fn frontend_ready(side: &Side) -> bool {
    side.resource
        .present()
        .and_then(|r| r.status.as_ref())
        .is_some_and(|s| {
            crate::conditions::is_true(
                &s.conditions,
                farshore_api::conditions::resource::FRONTEND_READY,
            )
        })
}

/// Whether a side is bound to a node and knows its address.
pub fn bound(side: &Side) -> bool {
    side.resource
        .present()
        .is_some_and(|r| r.spec.node_name.is_some() && r.spec.local.is_some())
}

/// Node that a side is bound to.
pub fn node(side: &Side) -> Option<&str> {
    side.resource.present()?.spec.node_name.as_deref()
}

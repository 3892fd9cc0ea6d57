//! Placement of a DRBDResource on one workload cluster: bind a node once, provide the volumes that
//! DRBD needs there, keep them attached to the node with an anchor pod [S1].

mod claims;
mod node;

use std::time::Duration;

use farshore_api::conditions::resource as condition;
use farshore_api::meta::{finalizers, labels};
use farshore_api::{DRBDResource, names};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::{Deserialize, Serialize};

use crate::Note;
use crate::conditions::{self, Truth};
use crate::words::{Wait, list};

pub use claims::metadata_bytes;

/// How long until an unfinished placement is looked at again; most changes trigger it before.
const WAITING: Duration = Duration::from_secs(10);
/// How long until a finished placement is looked at again.
const SETTLED: Duration = Duration::from_secs(300);

/// Reasons of the three conditions.
pub mod reasons {
    /// A node is bound.
    pub const BOUND: &str = "Bound";
    /// No node can be bound now.
    pub const NODE_NOT_READY: &str = "NodeNotReady";
    /// The resource is of another cluster.
    pub const UNKNOWN_CLUSTER: &str = "UnknownCluster";
    /// The volumes are attached to the node.
    pub const ATTACHED: &str = "Attached";
    /// All is there.
    pub const READY: &str = "Ready";
    /// It is being made.
    pub const PROVISIONING: &str = "Provisioning";
    /// No node yet, so nothing to make.
    pub const NODE_NOT_BOUND: &str = "NodeNotBound";
    /// The PVC of the VM's disk does not exist.
    pub const PVC_NOT_FOUND: &str = "PVCNotFound";
    /// A PVC that was in use is gone.
    pub const VOLUME_LOST: &str = "VolumeLost";
    /// A PVC is smaller than what it shall hold.
    pub const VOLUME_TOO_SMALL: &str = "VolumeTooSmall";
    /// A PVC is not a block device.
    pub const UNSUPPORTED_VOLUME_TYPE: &str = "UnsupportedVolumeType";
    /// A PVC is being deleted.
    pub const VOLUME_TERMINATING: &str = "VolumeTerminating";
    /// A PVC of the wanted name belongs to somebody else.
    pub const VOLUME_NOT_OURS: &str = "VolumeNotOurs";
    /// The VM uses its disks on another node.
    pub const IN_USE_ELSEWHERE: &str = "InUseElsewhere";
    /// The anchor pod does not run.
    pub const ANCHOR_NOT_RUNNING: &str = "AnchorNotRunning";
}

/// What placement looks at.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// The resource, as it is now.
    pub resource: DRBDResource,
    /// Name of this cluster in its zone.
    pub cluster: String,
    /// All nodes while none is bound; else the bound one, if it exists.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// Node where the VM runs.
    #[serde(default)]
    pub vm_node: Option<String>,
    /// Node of a pod other than the anchor that uses one of the PVCs.
    #[serde(default)]
    pub consumer_node: Option<String>,
    /// The PVCs of each volume, in the order of `spec.volumes`.
    #[serde(default)]
    pub volumes: Vec<VolumeClaims>,
    /// The anchor pod.
    #[serde(default)]
    pub anchor: Option<Anchor>,
}

/// A node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Node {
    /// Name.
    pub name: String,
    /// Its InternalIP.
    pub address: Option<String>,
    /// Whether its condition Ready is True.
    pub ready: bool,
    /// Since when Ready is what it is.
    pub since: Option<Timestamp>,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// Keys of its taints NoSchedule and NoExecute.
    pub taints: Vec<String>,
    /// DRBDResources bound to it.
    pub bound: usize,
}

/// The PVCs of one volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeClaims {
    /// The PVC with the data.
    pub backing: Option<Claim>,
    /// The PVC with DRBD's metadata.
    pub metadata: Option<Claim>,
}

/// A PVC.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// UID.
    pub uid: String,
    /// Capacity in bytes once bound, the request before.
    pub bytes: i64,
    /// Whether its volumeMode is Block.
    pub block: bool,
    /// Whether it is bound to a volume.
    pub bound: bool,
    /// Whether it is being deleted.
    #[serde(default)]
    pub deleting: bool,
    /// UID of the DRBDResource that owns it.
    #[serde(default)]
    pub owner: Option<String>,
}

/// The anchor pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Anchor {
    /// UID.
    pub uid: String,
    /// UID of the DRBDResource that owns it.
    #[serde(default)]
    pub owner: Option<String>,
    /// Node that it was scheduled to.
    #[serde(default)]
    pub node: Option<String>,
    /// `status.phase`.
    pub phase: String,
    /// Whether it is being deleted.
    #[serde(default)]
    pub deleting: bool,
    /// Why it is not scheduled or does not run, in the cluster's words.
    #[serde(default)]
    pub message: Option<String>,
}

/// What placement does. Executed in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Adds placement's finalizer.
    AddFinalizer,
    /// Writes `spec.nodeName` (once for life) and `spec.local`.
    Bind { node: String, address: String },
    /// Creates a PVC.
    CreateClaim(NewClaim),
    /// Creates the anchor pod.
    CreateAnchor(NewAnchor),
    /// Deletes the anchor pod.
    DeleteAnchor { name: String, uid: String },
    /// Removes placement's finalizer.
    RemoveFinalizer,
}

/// A PVC to create: Block, ReadWriteOnce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewClaim {
    /// Name.
    pub name: String,
    /// Storage class.
    pub storage_class: String,
    /// Size in bytes.
    pub bytes: i64,
    /// Whether the DRBDResource owns it, so that it goes with it.
    pub owned: bool,
}

/// The anchor pod to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewAnchor {
    /// Name.
    pub name: String,
    /// Node that it is pinned to.
    pub node: String,
    /// PVCs that it attaches.
    pub claims: Vec<String>,
}

/// Placement's part of the status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementStatus {
    /// Name of the anchor pod, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchor_pod: Option<String>,
    /// NodeBound, BackingReady, MetadataReady.
    pub conditions: Vec<Condition>,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Placement's part of the status; none while the resource is being deleted.
    pub status: Option<PlacementStatus>,
    /// Events about the resource.
    pub notes: Vec<Note>,
    /// When to look again.
    pub requeue: Option<Duration>,
}

/// Whether and why something holds: a condition in the making.
struct Verdict {
    truth: Truth,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn new(truth: Truth, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            truth,
            reason,
            message: message.into(),
        }
    }
}

/// Decides the placement of one DRBDResource.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    if seen.resource.metadata.deletion_timestamp.is_some() {
        return clean_up(seen);
    }
    let mut decision = Decision {
        steps: Vec::new(),
        status: None,
        notes: Vec::new(),
        requeue: Some(WAITING),
    };
    let mut status = PlacementStatus {
        anchor_pod: None,
        conditions: own_conditions(&seen.resource),
    };
    if seen.resource.spec.cluster != seen.cluster {
        let message = format!(
            "spec.cluster is \"{}\", this cluster is \"{}\": nothing is done for it here; delete it if it was restored from a backup of the other cluster",
            seen.resource.spec.cluster, seen.cluster
        );
        conclude(
            &mut status,
            &mut decision,
            condition::NODE_BOUND,
            Verdict::new(Truth::False, reasons::UNKNOWN_CLUSTER, message),
            now,
        );
        decision.status = Some(status);
        decision.requeue = None;
        return decision;
    }
    if !has_finalizer(&seen.resource, finalizers::PLACEMENT) {
        decision.steps.push(Step::AddFinalizer);
    }
    let (node, bound) = node::bind(seen, &mut decision);
    conclude(
        &mut status,
        &mut decision,
        condition::NODE_BOUND,
        bound,
        now,
    );

    let (backing, metadata) = match &node {
        Some(node) => volumes(seen, node, &mut status, &mut decision),
        None => {
            let wait = || {
                Verdict::new(
                    Truth::False,
                    reasons::NODE_NOT_BOUND,
                    "no volume is made before a node is bound",
                )
            };
            (wait(), wait())
        }
    };
    if backing.truth == Truth::True && metadata.truth == Truth::True && decision.steps.is_empty() {
        decision.requeue = Some(SETTLED);
    }
    conclude(
        &mut status,
        &mut decision,
        condition::BACKING_READY,
        backing,
        now,
    );
    conclude(
        &mut status,
        &mut decision,
        condition::METADATA_READY,
        metadata,
        now,
    );
    decision.status = Some(status);
    decision
}

/// Provides PVCs and the anchor pod on the bound node; the verdicts on backing and metadata.
fn volumes(
    seen: &Observed,
    node: &str,
    status: &mut PlacementStatus,
    decision: &mut Decision,
) -> (Verdict, Verdict) {
    let (mut backing, metadata, complete) = claims::provide(seen, decision);
    let name = names::anchor_pod(&resource_name(seen));
    if let Some(anchor) = &seen.anchor {
        status.anchor_pod = Some(name.clone());
        let stale = anchor.owner.as_deref() != seen.resource.metadata.uid.as_deref();
        let elsewhere = anchor.node.as_deref().is_some_and(|n| n != node);
        if !anchor.deleting
            && (stale || elsewhere || ["Failed", "Succeeded"].contains(&anchor.phase.as_str()))
        {
            let why = if elsewhere {
                "it is on the wrong node".into()
            } else {
                format!("it is {}", anchor.phase)
            };
            decision.notes.push(Note::warning(
                "AnchorReplaced",
                format!("anchor pod {name} is deleted and made anew: {why}"),
            ));
            decision.steps.push(Step::DeleteAnchor {
                name: name.clone(),
                uid: anchor.uid.clone(),
            });
        }
    } else if complete {
        if let Some(other) = seen.vm_node.as_deref().filter(|n| *n != node) {
            let wait = Wait {
                what: format!("anchor pod {} is not made", path(seen, &name)),
                by: format!(
                    "VM {} uses its disks on node {other}, the resource is bound to {node}",
                    vm(seen)
                ),
                since: None,
                next: "It is made as soon as the VM stops or runs on the bound node",
                command: format!(
                    "kubectl -n {} get vmi {}",
                    namespace(seen),
                    seen.resource.spec.vm_ref.name
                ),
            };
            return (
                Verdict::new(Truth::False, reasons::IN_USE_ELSEWHERE, wait.to_string()),
                metadata,
            );
        }
        status.anchor_pod = Some(name.clone());
        decision.steps.push(Step::CreateAnchor(NewAnchor {
            name: name.clone(),
            node: node.into(),
            claims: claims::names(seen),
        }));
    }
    if backing.truth == Truth::True {
        backing = anchored(seen, node, &name);
    }
    (backing, metadata)
}

/// The verdict on the anchor pod when all PVCs are well.
fn anchored(seen: &Observed, node: &str, name: &str) -> Verdict {
    let by = match &seen.anchor {
        Some(a) if a.phase == "Running" && !a.deleting && a.node.as_deref() == Some(node) => {
            let claims: Vec<&str> = seen
                .resource
                .spec
                .volumes
                .iter()
                .map(|v| v.pvc_name.as_str())
                .collect();
            return Verdict::new(
                Truth::True,
                reasons::ATTACHED,
                format!(
                    "{} attached to node {node} by anchor pod {name}",
                    list(&claims)
                ),
            );
        }
        None => "it does not exist yet".to_string(),
        Some(a) if a.deleting => "the former one is still being deleted".into(),
        Some(a) => a
            .message
            .clone()
            .unwrap_or_else(|| format!("it is {}", a.phase)),
    };
    let wait = Wait {
        what: format!(
            "disks of VM {} are not attached to node {node}: anchor pod {} does not run",
            vm(seen),
            path(seen, name)
        ),
        by,
        since: None,
        next: "DRBD can use them as soon as it runs",
        command: format!("kubectl -n {} describe pod {name}", namespace(seen)),
    };
    Verdict::new(Truth::False, reasons::ANCHOR_NOT_RUNNING, wait.to_string())
}

/// Takes everything back once the agent has let go. Metadata PVCs go with their owner. PVCs with
/// data stay: whether a standby's copy is kept is said on the hub, so the hub deletes it.
fn clean_up(seen: &Observed) -> Decision {
    let mut decision = Decision {
        steps: Vec::new(),
        status: None,
        notes: Vec::new(),
        requeue: None,
    };
    let resource = &seen.resource;
    if has_finalizer(resource, finalizers::DRBD_TEARDOWN)
        || !has_finalizer(resource, finalizers::PLACEMENT)
    {
        return decision;
    }
    if let Some(anchor) = seen.anchor.as_ref().filter(|a| !a.deleting) {
        decision.steps.push(Step::DeleteAnchor {
            name: names::anchor_pod(&resource_name(seen)),
            uid: anchor.uid.clone(),
        });
    }
    decision.steps.push(Step::RemoveFinalizer);
    decision
}

/// Sets a condition and notes when something became wrong.
fn conclude(
    status: &mut PlacementStatus,
    decision: &mut Decision,
    type_: &str,
    verdict: Verdict,
    now: Timestamp,
) {
    const ORDINARY: [&str; 3] = [
        reasons::PROVISIONING,
        reasons::NODE_NOT_BOUND,
        reasons::ANCHOR_NOT_RUNNING,
    ];
    let before = conditions::get(&status.conditions, type_).map(|c| c.reason.clone());
    let wrong = verdict.truth != Truth::True && !ORDINARY.contains(&verdict.reason);
    if wrong && before.as_deref() != Some(verdict.reason) {
        decision
            .notes
            .push(Note::warning(verdict.reason, verdict.message.clone()));
    }
    // No observedGeneration: placement looks at nothing that a flip of the role changes, and would
    // otherwise write its status again with every flip.
    conditions::set(
        &mut status.conditions,
        type_,
        verdict.truth,
        verdict.reason,
        verdict.message,
        None,
        now,
    );
}

fn own_conditions(resource: &DRBDResource) -> Vec<Condition> {
    const OWN: [&str; 3] = [
        condition::NODE_BOUND,
        condition::BACKING_READY,
        condition::METADATA_READY,
    ];
    let all = resource.status.iter().flat_map(|s| &s.conditions);
    all.filter(|c| OWN.contains(&c.type_.as_str()))
        .cloned()
        .collect()
}

fn has_finalizer(resource: &DRBDResource, finalizer: &str) -> bool {
    resource
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|f| f == finalizer)
}

fn resource_name(seen: &Observed) -> String {
    seen.resource.metadata.name.clone().unwrap_or_default()
}

fn namespace(seen: &Observed) -> &str {
    seen.resource
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default()
}

/// `namespace/name (cluster c)` of something beside the resource.
fn path(seen: &Observed, name: &str) -> String {
    format!("{}/{name} (cluster {})", namespace(seen), seen.cluster)
}

fn vm(seen: &Observed) -> String {
    format!("{}/{}", namespace(seen), seen.resource.spec.vm_ref.name)
}

/// Labels of what placement creates: those of the resource that say whose it is.
pub fn inherited_labels(resource: &DRBDResource) -> std::collections::BTreeMap<String, String> {
    const INHERITED: [&str; 3] = [
        labels::ZONE,
        labels::PROTECTION_REQUEST,
        labels::PROTECTION_REQUEST_UID,
    ];
    let own = resource.metadata.labels.iter().flatten();
    let mut all: std::collections::BTreeMap<String, String> = own
        .filter(|(k, _)| INHERITED.contains(&k.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    all.insert(labels::ZONE.into(), resource.spec.zone.clone());
    all
}

#[cfg(test)]
mod tests;

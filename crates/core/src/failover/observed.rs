//! All that a failover looks at, in one owned value.

use std::collections::{BTreeMap, BTreeSet};

use farshore_api::failover_request::{FailoverRequest, FailoverState};
use farshore_api::meta::finalizers;
use farshore_api::protection_group::CurrentState;
use farshore_api::{
    DRBDResource, ProtectionGroup, ProtectionRequest, ProtectionZone, VmRef, names,
};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;

use crate::Seen;

/// The world as one fresh look showed it. What stands on the hub was read or the look failed as a
/// whole; what stands on a workload cluster may be unknown.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The request.
    pub request: FailoverRequest,
    /// Its zone.
    pub zone: ProtectionZone,
    /// Its group on the hub.
    pub group: Option<ProtectionGroup>,
    /// The group's members, in the group's order.
    pub members: Vec<ProtectionRequest>,
    /// ProtectionRequests of VMs that this failover began with and the group no longer names.
    pub former: Vec<ProtectionRequest>,
    /// Members of the group without a ProtectionRequest, as they are written in the group.
    pub unresolved: Vec<String>,
    /// The Lease that locks the group.
    pub lease: Option<Lease>,
    /// Names of the other FailoverRequests of the namespace by UID.
    pub others: BTreeMap<String, String>,
    /// The request for the same group whose turn is before this one, while this one is pending: by
    /// creationTimestamp, then by name.
    pub ahead: Option<String>,
    /// The cluster that the group leaves. Its mirror is read before its resources: resources seen
    /// equal after the mirror was seen stopped stay equal.
    pub source: Side,
    /// The cluster that the group moves to.
    pub target: Side,
    /// Nodes of the target that members are pinned to.
    pub nodes: BTreeMap<String, Seen<Node>>,
    /// Other groups on the target, inside the scope of the safety check.
    pub neighbours: Seen<Vec<Neighbour>>,
    /// VirtualMachines of the members that exist on the target. Looked at before anything is
    /// stopped; later it is Unknown.
    pub standby: Seen<BTreeSet<VmRef>>,
    /// Jobs of the hooks on the target by name, while hooks run.
    pub jobs: BTreeMap<String, Seen<Job>>,
    /// What stopped the last round of steps, in words.
    pub trouble: Option<String>,
}

/// Another group on the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What its mirror reports; None when it has not reported.
    pub current: Option<CurrentState>,
    /// Nodes that its members are pinned to there; None when that is not known for all.
    pub nodes: Option<BTreeSet<String>>,
}

/// One workload cluster.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its name in the zone.
    pub cluster: String,
    /// The mirror of the group there.
    pub mirror: Seen<ProtectionGroup>,
    /// The zone's DRBDResources there by VM.
    pub resources: Seen<BTreeMap<VmRef, DRBDResource>>,
}

impl Side {
    /// A cluster of which nothing is known.
    pub fn unknown(cluster: &str, why: &str) -> Self {
        Self {
            cluster: cluster.into(),
            mirror: Seen::Unknown(why.into()),
            resources: Seen::Unknown(why.into()),
        }
    }

    /// The resource of a VM.
    pub fn resource(&self, vm: &VmRef) -> Seen<&DRBDResource> {
        match &self.resources {
            Seen::Present(all) => all.get(vm).map_or(Seen::Absent, Seen::Present),
            Seen::Absent => Seen::Absent,
            Seen::Unknown(why) => Seen::Unknown(why.clone()),
        }
    }
}

impl Observed {
    /// UID of the request: its identity as holder of the lock.
    pub fn uid(&self) -> &str {
        self.request.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Name of the request.
    pub fn name(&self) -> &str {
        self.request.metadata.name.as_deref().unwrap_or_default()
    }

    /// The zone namespace: that of the request, the group, the Lease and both mirrors.
    pub fn namespace(&self) -> &str {
        self.request
            .metadata
            .namespace
            .as_deref()
            .unwrap_or_default()
    }

    /// Name of the group.
    pub fn group_name(&self) -> &str {
        &self.request.spec.protection_group_ref.name
    }

    /// Name of the Lease.
    pub fn lease_name(&self) -> String {
        names::failover_lock(self.group_name())
    }

    /// The group for a person: `ProtectionGroup dr-m/shop`.
    pub fn group_title(&self) -> String {
        format!("ProtectionGroup {}/{}", self.namespace(), self.group_name())
    }

    /// Whether the request carries the finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.request
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|f| f == finalizers::FAILOVER_LOCK)
    }

    /// The holder of a lock for a person: its name, or that it no longer exists.
    pub fn holder_name(&self, uid: &str) -> String {
        match self.others.get(uid) {
            Some(name) => format!("FailoverRequest {}/{name}", self.namespace()),
            None => format!("a FailoverRequest that no longer exists (UID {uid})"),
        }
    }

    /// Whether this member's role is on the target.
    pub fn flipped(&self, member: &ProtectionRequest) -> bool {
        member.spec.source_cluster == self.target.cluster
    }

    /// Whether every member's role is on the target.
    pub fn all_flipped(&self) -> bool {
        !self.members.is_empty() && self.members.iter().all(|m| self.flipped(m))
    }

    /// Whether any member's role is on the target.
    pub fn any_flipped(&self) -> bool {
        self.members.iter().any(|m| self.flipped(m))
    }
}

/// Which pending request of the same group has its turn before this one: requests take their turns by
/// creationTimestamp, then by name. One that is being deleted has given up its turn.
pub fn first_ahead<'a>(
    request: &FailoverRequest,
    all: impl IntoIterator<Item = &'a FailoverRequest>,
) -> Option<String> {
    let turn = |r: &FailoverRequest| {
        let created = r.metadata.creation_timestamp.as_ref().map(|t| t.0);
        (created, r.metadata.name.clone().unwrap_or_default())
    };
    let own = turn(request);
    let waits = |r: &FailoverRequest| {
        let state = r.status.as_ref().and_then(|s| s.state);
        matches!(state, None | Some(FailoverState::Pending))
            && r.metadata.deletion_timestamp.is_none()
            && r.spec.protection_group_ref == request.spec.protection_group_ref
    };
    let turns = all.into_iter().filter(|r| waits(r)).map(turn);
    turns.filter(|t| *t < own).min().map(|(_, name)| name)
}

/// Finds the ProtectionRequest of each member of a group, in the group's order; a member is named
/// by its request or by its VM. The second value tells the members that have none.
pub fn resolve_members(
    group: &ProtectionGroup,
    requests: &[ProtectionRequest],
) -> (Vec<ProtectionRequest>, Vec<String>) {
    let by_name: BTreeMap<&str, &ProtectionRequest> = requests
        .iter()
        .filter_map(|r| Some((r.metadata.name.as_deref()?, r)))
        .collect();
    let by_vm: BTreeMap<VmRef, &ProtectionRequest> = requests.iter().map(|r| (r.vm(), r)).collect();
    let (mut found, mut unresolved) = (Vec::new(), Vec::new());
    for member in &group.spec.members {
        let hit = match (&member.protection_request_ref, &member.vm_ref) {
            (Some(name), _) => by_name.get(name.as_str()),
            (None, Some(vm)) => by_vm.get(vm),
            (None, None) => None,
        };
        match (hit, &member.protection_request_ref, &member.vm_ref) {
            (Some(request), ..) => found.push((*request).clone()),
            (None, Some(name), _) => unresolved.push(format!("ProtectionRequest {name}")),
            (None, None, Some(vm)) => unresolved.push(format!("VM {vm}")),
            (None, None, None) => unresolved.push("a member without a name".into()),
        }
    }
    (found, unresolved)
}

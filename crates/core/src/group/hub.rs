//! The group on the hub: resolves its members, keeps its mirrors on both workload clusters in step
//! and reports what they report [S2].
//!
//! A mirror's `desiredState` belongs to whoever holds the failover lock of the group. This decision
//! touches it only while nobody does; since mirrors are read before the lock, and written only as they
//! were read, a failover that began in between makes the write fail.

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::conditions::group as condition;
use farshore_api::failover_request::FailoverState;
use farshore_api::meta::{finalizers, labels};
use farshore_api::protection_group::{
    CurrentState, DesiredState, GroupClusterStatus, GroupMember, ProtectionGroupSpec,
    ProtectionGroupStatus,
};
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::replication_group_status::ReplicationGroupStatusSpec;
use farshore_api::{
    FailoverRequest, LocalRef, ProtectionGroup, ProtectionRequest, ProtectionZone,
    ReplicationGroupStatus, names,
};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::conditions::{self, Truth};
use crate::failover::lock;
use crate::words::{self, Wait};
use crate::{Note, Seen, vm};

const MOVING: Duration = Duration::from_secs(5);
const WAITING: Duration = Duration::from_secs(15);
const SETTLED: Duration = Duration::from_secs(60);
/// Seconds between polls of a group's replication [S1].
const POLLING_SECONDS: i32 = 15;

/// Everything that the decision about one group needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// The group.
    pub group: ProtectionGroup,
    /// The zone of its namespace.
    pub zone: Option<ProtectionZone>,
    /// Its mirror on each workload cluster; read before the lock.
    pub mirrors: BTreeMap<String, Seen<ProtectionGroup>>,
    /// The Lease that locks it; read before the requests.
    pub lease: Option<Lease>,
    /// Its FailoverRequests.
    pub failovers: Vec<FailoverRequest>,
    /// The requests that its members name, and those of the VMs that they name.
    pub requests: Vec<ProtectionRequest>,
    /// The other groups of the namespace.
    pub others: Vec<ProtectionGroup>,
    /// Its ReplicationGroupStatus.
    pub replication: Option<ReplicationGroupStatus>,
    /// Why a step of the last attempt failed, if one did.
    pub trouble: Option<String>,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Puts the finalizer on the group.
    AddFinalizer,
    /// Lets the group go.
    RemoveFinalizer,
    /// Creates the mirror of a cluster, and its namespace if that is absent.
    CreateMirror {
        /// Where.
        cluster: String,
        /// The object.
        mirror: Box<ProtectionGroup>,
    },
    /// Changes a mirror, provided that it is as it was read.
    PatchMirror {
        /// Where.
        cluster: String,
        /// A merge patch with resourceVersion.
        patch: Value,
    },
    /// Deletes a mirror.
    DeleteMirror {
        /// Where.
        cluster: String,
    },
    /// Creates the ReplicationGroupStatus.
    CreateReplicationStatus {
        /// The object.
        status: Box<ReplicationGroupStatus>,
    },
    /// Changes the ReplicationGroupStatus.
    PatchReplicationStatus {
        /// A merge patch.
        patch: Value,
    },
}

/// What to do about a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The status, written before the steps.
    pub status: ProtectionGroupStatus,
    /// The writes, in order.
    pub steps: Vec<Step>,
    /// What to tell.
    pub notes: Vec<Note>,
    /// When to look again.
    pub requeue: Option<Duration>,
}

/// A member of the spec with what was found of it.
struct Member<'a> {
    /// As it stands in the spec, for messages.
    named: String,
    spec: &'a GroupMember,
    request: Option<&'a ProtectionRequest>,
    /// Group that has it already.
    taken_by: Option<String>,
}

impl Member<'_> {
    /// Whether the VM is past the swap, so that a group may run it.
    fn ready(&self) -> bool {
        use ProtectionPhase::{Degraded, FailingOver, Protected};
        let phase = self.request.and_then(|r| r.status.as_ref()?.phase);
        let deleting = self.request.is_some_and(|r| r.metadata.deletion_timestamp.is_some());
        let past_swap = matches!(phase, Some(Protected | Degraded | FailingOver));
        self.taken_by.is_none() && past_swap && !deleting
    }
}

/// The request that a member names.
fn resolve<'a>(member: &GroupMember, requests: &'a [ProtectionRequest]) -> Option<&'a ProtectionRequest> {
    requests.iter().find(|r| match (&member.protection_request_ref, &member.vm_ref) {
        (Some(name), _) => r.metadata.name.as_ref() == Some(name),
        (_, Some(vm)) => r.vm() == *vm,
        _ => false,
    })
}

/// Whether a group has this request as a member.
pub fn contains(group: &ProtectionGroup, request: &ProtectionRequest) -> bool {
    let requests = std::slice::from_ref(request);
    group.spec.members.iter().any(|m| resolve(m, requests).is_some())
}

/// Name of the FailoverRequest that may move a group now: the holder of its lock, or one that is
/// under way although its lock expired. A name is found by the holder's UID.
pub fn locked_by(
    lease: Option<&Lease>,
    failovers: &[FailoverRequest],
    now: Timestamp,
) -> Option<String> {
    if lock::is_held(lease, now) {
        let holder = lease.and_then(|l| l.spec.as_ref()?.holder_identity.clone()).unwrap_or_default();
        let named = failovers.iter().find(|f| f.metadata.uid.as_deref() == Some(&holder));
        return Some(named.and_then(|f| f.metadata.name.clone()).unwrap_or(holder));
    }
    let under_way = failovers.iter().find(|f| {
        let state = f.status.as_ref().and_then(|s| s.state);
        state.is_some_and(|s| {
            !s.is_terminal(f.spec.queue) && !matches!(s, FailoverState::Pending | FailoverState::Blocked)
        })
    })?;
    under_way.metadata.name.clone()
}

/// Decides about one group.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    let old = seen.group.status.clone().unwrap_or_default();
    let status = ProtectionGroupStatus {
        observed_generation: seen.group.metadata.generation,
        ..old.clone()
    };
    let mut hub = Hub {
        seen,
        now,
        name: seen.group.metadata.name.as_deref().unwrap_or_default(),
        locked_by: locked_by(seen.lease.as_ref(), &seen.failovers, now),
        decision: Decision { status, steps: Vec::new(), notes: Vec::new(), requeue: Some(SETTLED) },
    };
    let finalizers = seen.group.metadata.finalizers.iter().flatten();
    let held = finalizers.into_iter().any(|f| f == finalizers::GROUP_CLEANUP);
    match (seen.group.metadata.deletion_timestamp.is_some(), held) {
        (true, false) => hub.decision.requeue = None,
        (true, true) => hub.clean_up(),
        (false, _) => {
            if !held {
                hub.decision.steps.push(Step::AddFinalizer);
            }
            hub.keep();
        }
    }
    hub.decision
}

struct Hub<'a> {
    seen: &'a Observed,
    now: Timestamp,
    name: &'a str,
    locked_by: Option<String>,
    decision: Decision,
}

impl<'a> Hub<'a> {
    fn set(&mut self, type_: &str, truth: Truth, reason: &str, message: impl Into<String>) {
        let generation = self.seen.group.metadata.generation;
        let all = &mut self.decision.status.conditions;
        conditions::set(all, type_, truth, reason, message, generation, self.now);
    }

    fn wait(&mut self, (type_, truth, reason): (&str, Truth, &str), mut told: Wait) {
        let all = &self.decision.status.conditions;
        told.since = Some(crate::protection::since(all, type_, truth, self.now));
        let message = match &self.seen.trouble {
            Some(trouble) => format!("{told} The last attempt failed: {trouble}"),
            None => told.to_string(),
        };
        self.set(type_, truth, reason, message);
    }

    fn clusters(&self) -> Vec<&'a str> {
        self.seen.mirrors.keys().map(String::as_str).collect()
    }

    fn look(&self) -> String {
        let namespace = self.seen.group.metadata.namespace.as_deref().unwrap_or_default();
        format!("kubectl -n {namespace} describe protectiongroup {}", self.name)
    }

    /// Removes the mirrors, never a VM.
    fn clean_up(&mut self) {
        self.decision.requeue = Some(WAITING);
        if let Some(failover) = self.locked_by.clone() {
            let message = format!("ProtectionGroup {} is locked by FailoverRequest {failover}", self.name);
            return self.set(condition::READY, Truth::False, "FailoverActive", message);
        }
        let mut left = Vec::new();
        for (cluster, mirror) in &self.seen.mirrors {
            match mirror {
                Seen::Present(mirror) => {
                    if mirror.metadata.deletion_timestamp.is_none() {
                        self.decision.steps.push(Step::DeleteMirror { cluster: cluster.clone() });
                    }
                    left.push(format!("ProtectionGroup {} on cluster {cluster} still exists", self.name));
                }
                Seen::Unknown(why) => left.push(format!("cluster {cluster} does not answer ({why})")),
                Seen::Absent => {}
            }
        }
        if left.is_empty() {
            self.decision.steps.push(Step::RemoveFinalizer);
            return;
        }
        self.decision.requeue = Some(MOVING);
        let told = Wait {
            what: format!("ProtectionGroup {} is not removed, since its mirrors must go first", self.name),
            by: left.join("; "),
            since: None,
            next: "It goes on as soon as no mirror is left; its VMs stay as they are",
            command: self.look(),
        };
        self.wait((condition::READY, Truth::False, "Deleting"), told);
    }

    fn keep(&mut self) {
        let seen = self.seen;
        let members = self.members();
        let active = self.active(&members);
        let wanted: Vec<GroupMember> = members.iter().filter(|m| m.ready()).filter_map(mirror_member).collect();
        let mut order = self.clusters();
        // The side that stops is written first.
        order.sort_by_key(|c| Some(*c) == active.as_deref().ok());
        if seen.zone.is_some() {
            for cluster in order {
                self.mirror(cluster, &wanted, active.as_deref().ok());
            }
        }
        self.replication_status();
        self.report(active.as_deref().ok());
        self.tell(&members, &active);
        if !self.decision.steps.is_empty() {
            self.decision.requeue = Some(MOVING);
        }
    }

    fn members(&self) -> Vec<Member<'a>> {
        let age = |g: &ProtectionGroup| {
            let created = g.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (created, g.metadata.name.clone())
        };
        let seen = self.seen;
        let member = |spec: &'a GroupMember| {
            let request = resolve(spec, &seen.requests);
            let older = seen.others.iter().find(|other| {
                other.metadata.deletion_timestamp.is_none()
                    && age(other) < age(&seen.group)
                    && request.is_some_and(|r| contains(other, r))
            });
            let named = match (&spec.protection_request_ref, &spec.vm_ref) {
                (Some(name), _) => format!("ProtectionRequest {name}"),
                (_, Some(vm)) => format!("VirtualMachine {vm}"),
                _ => "a member without a name".into(),
            };
            Member { named, spec, request, taken_by: older.and_then(|o| o.metadata.name.clone()) }
        };
        seen.group.spec.members.iter().map(member).collect()
    }

    /// The cluster that all members name as their source; else who names which.
    fn active(&self, members: &[Member]) -> Result<String, BTreeMap<String, Vec<String>>> {
        let mut by_cluster: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for member in members.iter().filter(|m| m.taken_by.is_none()) {
            let Some(request) = member.request else { continue };
            let vm = request.vm().to_string();
            by_cluster.entry(request.spec.source_cluster.clone()).or_default().push(vm);
        }
        match by_cluster.len() {
            1 => by_cluster.into_keys().next().ok_or_else(BTreeMap::new),
            _ => Err(by_cluster),
        }
    }

    /// Brings one mirror in step.
    fn mirror(&mut self, cluster: &str, members: &[GroupMember], active: Option<&str>) {
        let free = self.locked_by.is_none();
        let due = match active {
            Some(active) if active == cluster => Some(self.seen.group.spec.desired_state),
            Some(_) => Some(DesiredState::Stopped),
            None => None,
        };
        match self.seen.mirrors.get(cluster) {
            // An empty group cannot be written; without members there is nothing to run either.
            Some(Seen::Present(_)) if members.is_empty() && free => {
                self.decision.steps.push(Step::DeleteMirror { cluster: cluster.into() });
            }
            Some(Seen::Absent) if !members.is_empty() => {
                // While the lock is held only a mirror that says `stopped` is made.
                if let Some(state) = due.filter(|d| free || *d == DesiredState::Stopped) {
                    let mirror = Box::new(self.new_mirror(members, state));
                    self.decision.steps.push(Step::CreateMirror { cluster: cluster.into(), mirror });
                }
            }
            Some(Seen::Present(live)) if !members.is_empty() => {
                if let Some(patch) = self.mirror_patch(live, members, due.filter(|_| free)) {
                    self.decision.steps.push(Step::PatchMirror { cluster: cluster.into(), patch });
                }
            }
            _ => {}
        }
    }

    fn mirror_spec(&self, members: &[GroupMember], state: DesiredState) -> ProtectionGroupSpec {
        let spec = &self.seen.group.spec;
        ProtectionGroupSpec {
            desired_state: state,
            sla: spec.sla.clone(),
            members: members.to_vec(),
            // The hub alone runs hooks.
            hooks: None,
            failover: spec.failover.clone(),
        }
    }

    fn zone_name(&self) -> &'a str {
        self.seen.zone.as_ref().and_then(|z| z.metadata.name.as_deref()).unwrap_or_default()
    }

    fn new_mirror(&self, members: &[GroupMember], state: DesiredState) -> ProtectionGroup {
        let mut mirror = ProtectionGroup::new(self.name, self.mirror_spec(members, state));
        mirror.metadata.namespace = Some(names::zone_namespace(self.zone_name()));
        mirror.metadata.labels = Some(BTreeMap::from([
            (labels::MIRROR.into(), "true".into()),
            (labels::ZONE.into(), self.zone_name().into()),
            (labels::PROTECTION_GROUP.into(), self.name.into()),
        ]));
        mirror
    }

    /// What differs between a mirror and what it shall be; `state` only where it may be touched.
    fn mirror_patch(
        &self,
        live: &ProtectionGroup,
        members: &[GroupMember],
        state: Option<DesiredState>,
    ) -> Option<Value> {
        let state = state.unwrap_or(live.spec.desired_state);
        let wanted = self.new_mirror(members, state);
        let part = |g: &ProtectionGroup, labels: &Option<BTreeMap<String, String>>| {
            json!({
                "metadata": {"labels": labels, "resourceVersion": live.metadata.resource_version},
                "spec": g.spec,
            })
        };
        let mut all = live.metadata.labels.clone().unwrap_or_default();
        all.extend(wanted.metadata.labels.clone().unwrap_or_default());
        let live_labels = Some(live.metadata.labels.clone().unwrap_or_default());
        vm::patch(&part(live, &live_labels), &part(&wanted, &Some(all)))
    }

    fn replication_status(&mut self) {
        let objective = self.seen.group.spec.sla.rpo_target_seconds;
        match &self.seen.replication {
            None => {
                let mut status = ReplicationGroupStatus::new(
                    &names::replication_status(self.name),
                    ReplicationGroupStatusSpec {
                        protection_group_ref: LocalRef { name: self.name.into() },
                        polling_interval_seconds: POLLING_SECONDS,
                        rpo_objective_seconds: objective,
                        at_risk_percent: 80,
                    },
                );
                status.metadata = ObjectMeta {
                    namespace: self.seen.group.metadata.namespace.clone(),
                    labels: Some(BTreeMap::from([
                        (labels::ZONE.into(), self.zone_name().into()),
                        (labels::PROTECTION_GROUP.into(), self.name.into()),
                    ])),
                    owner_references: Some(vec![OwnerReference {
                        api_version: format!("{}/{}", farshore_api::GROUP, farshore_api::VERSION),
                        kind: "ProtectionGroup".into(),
                        name: self.name.into(),
                        uid: self.seen.group.metadata.uid.clone().unwrap_or_default(),
                        controller: Some(true),
                        block_owner_deletion: Some(true),
                    }]),
                    ..status.metadata
                };
                let status = Box::new(status);
                self.decision.steps.push(Step::CreateReplicationStatus { status });
            }
            Some(live) if live.spec.rpo_objective_seconds != objective => {
                let patch = json!({"spec": {"rpoObjectiveSeconds": objective}});
                self.decision.steps.push(Step::PatchReplicationStatus { patch });
            }
            Some(_) => {}
        }
    }

    /// What the mirrors and the others report.
    fn report(&mut self, active: Option<&str>) {
        let before = std::mem::take(&mut self.decision.status.clusters);
        let status = &mut self.decision.status;
        for (cluster, mirror) in &self.seen.mirrors {
            let reported = mirror.present().and_then(|m| m.status.clone()).unwrap_or_default();
            let since = before.iter().find(|c| c.cluster == *cluster).and_then(|c| c.unreachable_since.clone());
            let now = Timestamp::from_second(self.now.as_second()).unwrap_or(self.now);
            status.clusters.push(GroupClusterStatus {
                cluster: cluster.clone(),
                current_state: reported.current_state.unwrap_or(CurrentState::Unknown),
                desired_state: mirror.present().map(|m| m.spec.desired_state),
                observed_generation: reported.observed_generation,
                unreachable_since: mirror.unknown().map(|_| since.unwrap_or(Time(now))),
            });
        }
        let of_active = active.and_then(|a| self.seen.mirrors.get(a)).and_then(Seen::present);
        let reported = of_active.and_then(|m| m.status.clone()).unwrap_or_default();
        status.current_state = Some(reported.current_state.unwrap_or(CurrentState::Unknown));
        status.active_cluster = active.map(Into::into).or(status.active_cluster.take());
        status.vms = reported.vms;
        status.ready_vms = Some(reported.ready_vms.unwrap_or(0));
        status.total_vms = i32::try_from(self.seen.group.spec.members.len()).ok();
        status.replication_status_ref = Some(names::replication_status(self.name));
        status.rpo_status =
            self.seen.replication.as_ref().and_then(|r| r.status.as_ref()?.rpo_status);
        let ended = self.seen.failovers.iter().filter_map(|f| {
            let at = f.status.as_ref()?.completion_time.as_ref()?.0;
            Some((at, f.metadata.name.clone()?))
        });
        if let Some((_, last)) = ended.max() {
            status.last_failover = Some(last);
        }
    }

    fn tell(&mut self, members: &[Member], active: &Result<String, BTreeMap<String, Vec<String>>>) {
        let group = self.name;
        match self.locked_by.clone() {
            Some(failover) => {
                let message = format!("ProtectionGroup {group} is locked by FailoverRequest {failover}");
                self.set(condition::FAILOVER_IN_PROGRESS, Truth::True, "Locked", message);
            }
            None => self.set(condition::FAILOVER_IN_PROGRESS, Truth::False, "NotLocked", "no failover runs"),
        }
        self.tell_mirrors();
        let protected = self.tell_members(members);
        let mirrored = conditions::is_true(&self.decision.status.conditions, condition::SYNCED);
        let ready = |hub: &mut Self, truth, reason: &str, message: String| {
            hub.decision.requeue = Some(if truth == Truth::True { SETTLED } else { WAITING });
            hub.set(condition::READY, truth, reason, message);
        };
        if let Some(failover) = self.locked_by.clone() {
            return ready(self, Truth::False, "FailoverInProgress", format!("FailoverRequest {failover} moves the group"));
        }
        match active {
            Err(sides) if sides.len() > 1 => {
                let told: Vec<String> =
                    sides.iter().map(|(cluster, vms)| format!("{cluster} ({})", words::list(vms))).collect();
                let message = format!(
                    "members of ProtectionGroup {group} have different source clusters: {}. No mirror is started or stopped until they agree; a FailoverRequest to one of the clusters brings them together",
                    told.join(", ")
                );
                ready(self, Truth::False, "MembersDisagree", message);
            }
            _ if !protected => {
                let all = &self.decision.status.conditions;
                let message = conditions::get(all, condition::MEMBERS_PROTECTED).map_or(String::new(), |c| c.message.clone());
                ready(self, Truth::False, "MembersNotProtected", message);
            }
            _ if !mirrored => {
                let all = &self.decision.status.conditions;
                let message = conditions::get(all, condition::SYNCED).map_or(String::new(), |c| c.message.clone());
                ready(self, Truth::False, "MirrorsNotInStep", message);
            }
            _ => ready(self, Truth::True, "Ready", format!("ProtectionGroup {group} can fail over")),
        }
    }

    fn tell_mirrors(&mut self) {
        if self.seen.zone.is_none() {
            let message = "there is no ProtectionZone in this namespace; create one, or wait until it is back";
            return self.set(condition::SYNCED, Truth::Unknown, "ZoneNotFound", message);
        }
        for (cluster, mirror) in &self.seen.mirrors {
            let Some(why) = mirror.unknown() else { continue };
            let told = Wait {
                what: format!("the mirror of ProtectionGroup {} is not known to be in step", self.name),
                by: format!("cluster {cluster} does not answer ({why})"),
                since: None,
                next: "It is brought in step as soon as the cluster answers; the other cluster goes on",
                command: format!("kubectl --context {cluster} get --raw /readyz"),
            };
            return self.wait((condition::SYNCED, Truth::Unknown, "ClusterUnreachable"), told);
        }
        let behind: Vec<String> = self
            .decision
            .steps
            .iter()
            .filter_map(|s| match s {
                Step::CreateMirror { cluster, .. } | Step::PatchMirror { cluster, .. } | Step::DeleteMirror { cluster } => {
                    Some(cluster.clone())
                }
                _ => None,
            })
            .collect();
        let missing = self.seen.mirrors.values().all(Seen::is_absent);
        if !behind.is_empty() {
            let trouble = self.seen.trouble.as_ref().map_or(String::new(), |t| format!(" The last attempt failed: {t}"));
            let message = format!("the mirror on {} is being written.{trouble}", words::list(&behind));
            self.set(condition::SYNCED, Truth::False, "Writing", message);
        } else if missing {
            self.set(condition::SYNCED, Truth::False, "NoMirror", "no member is protected yet, so there is nothing to mirror");
        } else {
            let message = format!("the mirrors on {} are as the group says", words::list(&self.clusters()));
            self.set(condition::SYNCED, Truth::True, "InStep", message);
        }
    }

    /// Whether every member is there and protected.
    fn tell_members(&mut self, members: &[Member]) -> bool {
        let namespace = self.seen.group.metadata.namespace.as_deref().unwrap_or_default().to_string();
        if let Some(member) = members.iter().find(|m| m.taken_by.is_some()) {
            let message = format!(
                "{} already belongs to ProtectionGroup {}",
                member.named,
                member.taken_by.as_deref().unwrap_or_default()
            );
            self.set(condition::MEMBERS_PROTECTED, Truth::False, "MemberInAnotherGroup", message);
            return false;
        }
        let missing: Vec<&str> = members.iter().filter(|m| m.request.is_none()).map(|m| m.named.as_str()).collect();
        if !missing.is_empty() {
            let message = format!(
                "no ProtectionRequest in namespace {namespace} for {}; create it or take the member out of the group",
                words::list(&missing)
            );
            self.set(condition::MEMBERS_PROTECTED, Truth::False, "MemberNotFound", message);
            return false;
        }
        let phase = |m: &Member| m.request.and_then(|r| r.status.as_ref()?.phase);
        let behind: Vec<String> = members
            .iter()
            .filter(|m| phase(m) != Some(ProtectionPhase::Protected))
            .map(|m| {
                let name = m.request.and_then(|r| r.metadata.name.clone()).unwrap_or_default();
                format!("ProtectionRequest {name} is {}", phase(m).map_or("new", ProtectionPhase::as_str))
            })
            .collect();
        if behind.is_empty() {
            let message = format!("{} protected", words::count(members.len(), "member"));
            self.set(condition::MEMBERS_PROTECTED, Truth::True, "Protected", message);
            return true;
        }
        let message = format!(
            "{}. Look with: kubectl -n {namespace} get protectionrequests",
            words::list(&behind)
        );
        self.set(condition::MEMBERS_PROTECTED, Truth::False, "NotProtected", message);
        false
    }
}

fn mirror_member(member: &Member) -> Option<GroupMember> {
    Some(GroupMember {
        protection_request_ref: None,
        vm_ref: Some(member.request?.vm()),
        start_order: member.spec.start_order,
        start_delay_seconds: member.spec.start_delay_seconds,
    })
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;

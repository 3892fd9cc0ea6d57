//! The group on the hub: resolves its members, keeps its mirrors on both workload clusters in step
//! and reports what they report [S2].
//!
//! A mirror's `desiredState` belongs to whoever holds the failover lock of the group. This decision
//! touches it only while nobody does; since mirrors are read before the lock, and written only as they
//! were read, a failover that began in between makes the write fail.

mod members;
mod mirrors;
mod report;

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::conditions::group as condition;
use farshore_api::meta::{finalizers, labels};
use farshore_api::protection_group::{GroupMember, ProtectionGroupStatus};
use farshore_api::{
    FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone, ReplicationGroupStatus,
    names,
};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conditions::{self, Truth};
use crate::words::Wait;
use crate::{Note, Seen};
pub use members::{contains, locked_by};

const MOVING: Duration = Duration::from_secs(5);
const WAITING: Duration = Duration::from_secs(15);
const SETTLED: Duration = Duration::from_secs(60);

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
        decision: Decision {
            status,
            steps: Vec::new(),
            notes: Vec::new(),
            requeue: Some(SETTLED),
        },
    };
    let finalizers = seen.group.metadata.finalizers.iter().flatten();
    let held = finalizers
        .into_iter()
        .any(|f| f == finalizers::GROUP_CLEANUP);
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
    note_changes(&old, &mut hub.decision);
    hub.decision
}

/// Tells where the group runs and whether, once for each change.
fn note_changes(old: &ProtectionGroupStatus, decision: &mut Decision) {
    let new = &decision.status;
    let mut notes = Vec::new();
    if let Some(active) = &new.active_cluster
        && old.active_cluster.as_ref() != Some(active)
    {
        let before = match &old.active_cluster {
            Some(before) => format!(" instead of {before}"),
            None => String::new(),
        };
        let message = format!("Cluster {active} is the active one of this group{before}");
        notes.push(Note::normal("ActiveClusterChanged", message));
    }
    if let Some(state) = new.current_state
        && old.current_state != Some(state)
    {
        let before = match old.current_state {
            Some(before) => format!("{before} → "),
            None => String::new(),
        };
        let on = match &new.active_cluster {
            Some(active) => format!(" on cluster {active}"),
            None => String::new(),
        };
        let message = format!("The VMs of this group: {before}{state}{on}");
        notes.push(Note::normal("CurrentStateChanged", message));
    }
    decision.notes.append(&mut notes);
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
        let namespace = self
            .seen
            .group
            .metadata
            .namespace
            .as_deref()
            .unwrap_or_default();
        format!(
            "kubectl -n {namespace} describe protectiongroup {}",
            self.name
        )
    }

    /// Removes the mirrors, never a VM.
    fn clean_up(&mut self) {
        self.decision.requeue = Some(WAITING);
        if let Some(failover) = self.locked_by.clone() {
            let told = Wait {
                what: format!("ProtectionGroup {} is not removed", self.name),
                by: format!(
                    "ProtectionGroup {} is locked by FailoverRequest {failover}",
                    self.name
                ),
                since: None,
                next: "It is removed as soon as that failover has ended; its VMs stay as they are then, and nobody starts those that are down",
                command: self.look(),
            };
            return self.wait((condition::READY, Truth::False, "FailoverActive"), told);
        }
        let mut left = Vec::new();
        for (cluster, mirror) in &self.seen.mirrors {
            match mirror {
                Seen::Present(mirror) => {
                    if mirror.metadata.deletion_timestamp.is_none() {
                        self.decision.steps.push(Step::DeleteMirror {
                            cluster: cluster.clone(),
                        });
                    }
                    left.push(format!(
                        "ProtectionGroup {} on cluster {cluster} still exists",
                        self.name
                    ));
                }
                Seen::Unknown(why) => {
                    left.push(format!("cluster {cluster} does not answer ({why})"))
                }
                Seen::Absent => {}
            }
        }
        if left.is_empty() {
            self.decision.steps.push(Step::RemoveFinalizer);
            return;
        }
        self.decision.requeue = Some(MOVING);
        let told = Wait {
            what: format!(
                "ProtectionGroup {} is not removed, since its mirrors must go first",
                self.name
            ),
            by: left.join("; "),
            since: None,
            next: "It goes on as soon as no mirror is left; its VMs stay as they are",
            command: self.look(),
        };
        self.wait((condition::READY, Truth::False, "Deleting"), told);
    }

    /// A server that knows no rules on names has let one in that does not fit.
    fn refuse_name(&mut self) {
        let message = format!(
            "the name of this ProtectionGroup has {} characters and may have {}: it is the value of the label {} on its mirrors. Nothing was changed; delete this group and create it anew with a shorter name",
            self.name.len(),
            names::LABEL_LIMIT,
            labels::PROTECTION_GROUP
        );
        for type_ in [condition::SYNCED, condition::READY] {
            let reason = condition::NAME_TOO_LONG;
            self.set(type_, Truth::False, reason, message.clone());
        }
    }

    fn keep(&mut self) {
        if !names::fits_label(self.name) {
            return self.refuse_name();
        }
        let seen = self.seen;
        let members = self.members();
        let active = self.active(&members);
        let wanted: Vec<GroupMember> = members
            .iter()
            .filter(|m| m.ready())
            .filter_map(mirrors::member)
            .collect();
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
}

#[cfg(test)]
mod tests;

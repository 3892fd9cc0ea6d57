//! Who belongs to a group, and who may move it now.

use std::collections::BTreeMap;

use farshore_api::failover_request::FailoverState;
use farshore_api::protection_group::GroupMember;
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::{FailoverRequest, ProtectionGroup, ProtectionRequest, names};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::Hub;
use crate::failover::lock;

/// A member of the spec with what was found of it.
pub(super) struct Member<'a> {
    /// As it stands in the spec, for messages.
    pub named: String,
    pub spec: &'a GroupMember,
    pub request: Option<&'a ProtectionRequest>,
    /// Group that has it already.
    pub taken_by: Option<String>,
}

impl Member<'_> {
    /// Whether the VM is past the swap, so that a group may run it.
    pub fn ready(&self) -> bool {
        use ProtectionPhase::{Degraded, FailingOver, Protected};
        let phase = self.request.and_then(|r| r.status.as_ref()?.phase);
        let deleting = self
            .request
            .is_some_and(|r| r.metadata.deletion_timestamp.is_some());
        let past_swap = matches!(phase, Some(Protected | Degraded | FailingOver));
        self.taken_by.is_none() && past_swap && !deleting
    }
}

/// The request that a member names.
fn resolve<'a>(
    member: &GroupMember,
    requests: &'a [ProtectionRequest],
) -> Option<&'a ProtectionRequest> {
    requests
        .iter()
        .find(|r| match (&member.protection_request_ref, &member.vm_ref) {
            (Some(name), _) => r.metadata.name.as_ref() == Some(name),
            (_, Some(vm)) => r.vm() == *vm,
            _ => false,
        })
}

/// Whether a group has this request as a member.
pub fn contains(group: &ProtectionGroup, request: &ProtectionRequest) -> bool {
    let requests = std::slice::from_ref(request);
    group
        .spec
        .members
        .iter()
        .any(|m| resolve(m, requests).is_some())
}

/// Name of the FailoverRequest that may move a group now: the holder of its lock, or one that is
/// under way although its lock expired. A name is found by the holder's UID.
pub fn locked_by(
    lease: Option<&Lease>,
    failovers: &[FailoverRequest],
    now: Timestamp,
) -> Option<String> {
    if lock::is_held(lease, now) {
        let holder = lease
            .and_then(|l| l.spec.as_ref()?.holder_identity.clone())
            .unwrap_or_default();
        let named = failovers
            .iter()
            .find(|f| f.metadata.uid.as_deref() == Some(&holder));
        return Some(
            named
                .and_then(|f| f.metadata.name.clone())
                .unwrap_or(holder),
        );
    }
    let under_way = failovers.iter().find(|f| {
        let state = f.status.as_ref().and_then(|s| s.state);
        state.is_some_and(|s| {
            !s.is_terminal(f.spec.queue)
                && !matches!(s, FailoverState::Pending | FailoverState::Blocked)
        })
    })?;
    under_way.metadata.name.clone()
}

impl<'a> Hub<'a> {
    pub(super) fn members(&self) -> Vec<Member<'a>> {
        let age = |g: &ProtectionGroup| {
            let created = g.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (created, g.metadata.name.clone())
        };
        let seen = self.seen;
        let member = |spec: &'a GroupMember| {
            let request = resolve(spec, &seen.requests);
            let older = seen.others.iter().find(|other| {
                // A group that was refused for its name holds nobody.
                let refused = other
                    .metadata
                    .name
                    .as_deref()
                    .is_some_and(|n| !names::fits_label(n));
                !refused
                    && other.metadata.deletion_timestamp.is_none()
                    && age(other) < age(&seen.group)
                    && request.is_some_and(|r| contains(other, r))
            });
            let named = match (&spec.protection_request_ref, &spec.vm_ref) {
                (Some(name), _) => format!("ProtectionRequest {name}"),
                (_, Some(vm)) => format!("VirtualMachine {vm}"),
                _ => "a member without a name".into(),
            };
            Member {
                named,
                spec,
                request,
                taken_by: older.and_then(|o| o.metadata.name.clone()),
            }
        };
        seen.group.spec.members.iter().map(member).collect()
    }

    /// The cluster that all members name as their source; else who names which. One whose request is
    /// being deleted has no say while others stay: it must be let go of.
    pub(super) fn active(
        &self,
        members: &[Member],
    ) -> Result<String, BTreeMap<String, Vec<String>>> {
        let mut by_cluster: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let leaves = |r: &&ProtectionRequest| r.metadata.deletion_timestamp.is_some();
        let free = members.iter().filter(|m| m.taken_by.is_none());
        let named: Vec<&ProtectionRequest> = free.filter_map(|m| m.request).collect();
        let all_leave = named.iter().all(leaves);
        for request in named.into_iter().filter(|r| all_leave || !leaves(r)) {
            let vm = request.vm().to_string();
            by_cluster
                .entry(request.spec.source_cluster.clone())
                .or_default()
                .push(vm);
        }
        match by_cluster.len() {
            1 => by_cluster.into_keys().next().ok_or_else(BTreeMap::new),
            _ => Err(by_cluster),
        }
    }
}

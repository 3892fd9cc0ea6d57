//! The mirrors of a group and the record of its replication health.

use std::collections::BTreeMap;

use farshore_api::meta::labels;
use farshore_api::protection_group::{DesiredState, GroupMember, ProtectionGroupSpec};
use farshore_api::replication_group_status::ReplicationGroupStatusSpec;
use farshore_api::{LocalRef, ProtectionGroup, ReplicationGroupStatus, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};

use super::members::Member;
use super::{Hub, Step};
use crate::{Seen, vm};

/// Seconds between polls of a group's replication [S1].
const POLLING_SECONDS: i32 = 15;

/// A member as a mirror lists it.
pub(super) fn member(member: &Member) -> Option<GroupMember> {
    Some(GroupMember {
        protection_request_ref: None,
        vm_ref: Some(member.request?.vm()),
        start_order: member.spec.start_order,
        start_delay_seconds: member.spec.start_delay_seconds,
    })
}

impl<'a> Hub<'a> {
    /// Brings one mirror in step.
    pub(super) fn mirror(&mut self, cluster: &str, members: &[GroupMember], active: Option<&str>) {
        let free = self.locked_by.is_none();
        let due = match active {
            Some(active) if active == cluster => Some(self.seen.group.spec.desired_state),
            Some(_) => Some(DesiredState::Stopped),
            None => None,
        };
        match self.seen.mirrors.get(cluster) {
            // An empty group cannot be written; without members there is nothing to run either.
            Some(Seen::Present(_)) if members.is_empty() && free => {
                self.decision.steps.push(Step::DeleteMirror {
                    cluster: cluster.into(),
                });
            }
            Some(Seen::Absent) if !members.is_empty() => {
                // While the lock is held only a mirror that says `stopped` is made: on the active side
                // too once the roles move, where the failover then starts it.
                let made = match due {
                    Some(DesiredState::Running) if !free => {
                        self.roles_move().then_some(DesiredState::Stopped)
                    }
                    due => due,
                };
                if let Some(state) = made {
                    let mirror = Box::new(self.new_mirror(members, state));
                    self.decision.steps.push(Step::CreateMirror {
                        cluster: cluster.into(),
                        mirror,
                    });
                }
            }
            Some(Seen::Present(live)) if !members.is_empty() => {
                if let Some(patch) = self.mirror_patch(live, members, due.filter(|_| free)) {
                    self.decision.steps.push(Step::PatchMirror {
                        cluster: cluster.into(),
                        patch,
                    });
                }
            }
            _ => {}
        }
    }

    /// Whether the failover that holds the lock is past the role flip.
    fn roles_move(&self) -> bool {
        let holder = self.locked_by.as_deref();
        let mut failovers = self.seen.failovers.iter();
        failovers
            .find(|f| f.metadata.name.as_deref() == holder)
            .and_then(|f| f.status.as_ref()?.state)
            .is_some_and(|s| s.is_past_flip())
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
        self.seen
            .zone
            .as_ref()
            .and_then(|z| z.metadata.name.as_deref())
            .unwrap_or_default()
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

    /// What differs between a mirror and what it shall be; `state` only where it may be touched. Where
    /// it may not, no member joins, for it would be started or stopped by the state that stands there,
    /// and none leaves, for it would be left down on both sides.
    fn mirror_patch(
        &self,
        live: &ProtectionGroup,
        members: &[GroupMember],
        state: Option<DesiredState>,
    ) -> Option<Value> {
        let wanted = match state {
            Some(state) => self.new_mirror(members, state),
            None => {
                let now = |old: &GroupMember| {
                    let same = members.iter().find(|m| m.vm_ref == old.vm_ref);
                    same.unwrap_or(old).clone()
                };
                let stay: Vec<GroupMember> = live.spec.members.iter().map(now).collect();
                self.new_mirror(&stay, live.spec.desired_state)
            }
        };
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

    pub(super) fn replication_status(&mut self) {
        let objective = self.seen.group.spec.sla.rpo_target_seconds;
        match &self.seen.replication {
            None => {
                let mut status = ReplicationGroupStatus::new(
                    &names::replication_status(self.name),
                    ReplicationGroupStatusSpec {
                        protection_group_ref: LocalRef {
                            name: self.name.into(),
                        },
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
                self.decision
                    .steps
                    .push(Step::CreateReplicationStatus { status });
            }
            Some(live) if live.spec.rpo_objective_seconds != objective => {
                let patch = json!({"spec": {"rpoObjectiveSeconds": objective}});
                self.decision
                    .steps
                    .push(Step::PatchReplicationStatus { patch });
            }
            Some(_) => {}
        }
    }
}

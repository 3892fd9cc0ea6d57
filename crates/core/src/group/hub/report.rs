//! What the group's status says.

use std::collections::BTreeMap;

use farshore_api::conditions::{group as condition, request};
use farshore_api::failover_request::{FailoverRequestStatus, FailoverState};
use farshore_api::names;
use farshore_api::protection_group::{CurrentState, GroupClusterStatus};
use farshore_api::protection_request::ProtectionPhase;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::members::Member;
use super::{Hub, SETTLED, Step, WAITING};
use crate::Seen;
use crate::conditions::{self, Truth};
use crate::words::{self, Wait};

impl Hub<'_> {
    pub(super) fn report(&mut self, active: Option<&str>) {
        let before = std::mem::take(&mut self.decision.status.clusters);
        let status = &mut self.decision.status;
        for (cluster, mirror) in &self.seen.mirrors {
            let reported = mirror
                .present()
                .and_then(|m| m.status.clone())
                .unwrap_or_default();
            let since = before
                .iter()
                .find(|c| c.cluster == *cluster)
                .and_then(|c| c.unreachable_since.clone());
            let now = Timestamp::from_second(self.now.as_second()).unwrap_or(self.now);
            status.clusters.push(GroupClusterStatus {
                cluster: cluster.clone(),
                current_state: reported.current_state.unwrap_or(CurrentState::Unknown),
                desired_state: mirror.present().map(|m| m.spec.desired_state),
                observed_generation: reported.observed_generation,
                unreachable_since: mirror.unknown().map(|_| since.unwrap_or(Time(now))),
            });
        }
        let of_active = active
            .and_then(|a| self.seen.mirrors.get(a))
            .and_then(Seen::present);
        let reported = of_active.and_then(|m| m.status.clone()).unwrap_or_default();
        status.current_state = Some(reported.current_state.unwrap_or(CurrentState::Unknown));
        status.active_cluster = active.map(Into::into).or(status.active_cluster.take());
        status.vms = reported.vms;
        status.ready_vms = Some(reported.ready_vms.unwrap_or(0));
        status.total_vms = i32::try_from(self.seen.group.spec.members.len()).ok();
        status.replication_status_ref = Some(names::replication_status(self.name));
        status.rpo_status = self
            .seen
            .replication
            .as_ref()
            .and_then(|r| r.status.as_ref()?.rpo_status);
        // One that found the group where it should be, or was not let in, moved nothing.
        let began = |s: &FailoverRequestStatus| {
            let mut steps = s.steps.iter();
            steps.any(|step| {
                !matches!(
                    step.name,
                    FailoverState::Pending
                        | FailoverState::Validating
                        | FailoverState::Blocked
                        | FailoverState::Failed
                )
            })
        };
        let ended = self.seen.failovers.iter().filter_map(|f| {
            let status = f.status.as_ref().filter(|s| began(s))?;
            let at = status.completion_time.as_ref()?.0;
            Some((at, f.metadata.name.clone()?))
        });
        if let Some((_, last)) = ended.max() {
            status.last_failover = Some(last);
        }
    }

    pub(super) fn tell(
        &mut self,
        members: &[Member],
        active: &Result<String, BTreeMap<String, Vec<String>>>,
    ) {
        let group = self.name;
        match self.locked_by.clone() {
            Some(failover) => {
                let message =
                    format!("ProtectionGroup {group} is locked by FailoverRequest {failover}");
                self.set(
                    condition::FAILOVER_IN_PROGRESS,
                    Truth::True,
                    "Locked",
                    message,
                );
            }
            None => self.set(
                condition::FAILOVER_IN_PROGRESS,
                Truth::False,
                "NotLocked",
                "no failover runs",
            ),
        }
        self.tell_mirrors();
        let protected = self.tell_members(members);
        let mirrored = conditions::is_true(&self.decision.status.conditions, condition::SYNCED);
        let ready = |hub: &mut Self, truth, reason: &str, message: String| {
            hub.decision.requeue = Some(if truth == Truth::True {
                SETTLED
            } else {
                WAITING
            });
            hub.set(condition::READY, truth, reason, message);
        };
        if let Some(failover) = self.locked_by.clone() {
            return ready(
                self,
                Truth::False,
                "FailoverInProgress",
                format!("FailoverRequest {failover} moves the group"),
            );
        }
        match active {
            Err(sides) if sides.len() > 1 => {
                let told: Vec<String> = sides
                    .iter()
                    .map(|(cluster, vms)| format!("{cluster} ({})", words::list(vms)))
                    .collect();
                let message = format!(
                    "members of ProtectionGroup {group} have different source clusters: {}. No mirror is started or stopped until they agree; a FailoverRequest to one of the clusters brings them together",
                    told.join(", ")
                );
                ready(self, Truth::False, "MembersDisagree", message);
            }
            _ if !protected => {
                let all = &self.decision.status.conditions;
                let message = conditions::get(all, condition::MEMBERS_PROTECTED)
                    .map_or(String::new(), |c| c.message.clone());
                ready(self, Truth::False, "MembersNotProtected", message);
            }
            _ if !mirrored => {
                let all = &self.decision.status.conditions;
                let message = conditions::get(all, condition::SYNCED)
                    .map_or(String::new(), |c| c.message.clone());
                ready(self, Truth::False, "MirrorsNotInStep", message);
            }
            _ => ready(
                self,
                Truth::True,
                "Ready",
                format!("ProtectionGroup {group} can fail over"),
            ),
        }
    }

    fn tell_mirrors(&mut self) {
        if self.seen.zone.is_none() {
            let message = "there is no ProtectionZone in this namespace; create one, or wait until it is back";
            return self.set(condition::SYNCED, Truth::Unknown, "ZoneNotFound", message);
        }
        for (cluster, mirror) in &self.seen.mirrors {
            let Some(why) = mirror.unknown() else {
                continue;
            };
            let told = Wait {
                what: format!(
                    "the mirror of ProtectionGroup {} is not known to be in step",
                    self.name
                ),
                by: words::silent(cluster, why),
                since: None,
                next: "It is brought in step as soon as the cluster answers; the other cluster goes on",
                command: words::look_at_silent(cluster, why),
            };
            return self.wait(
                (condition::SYNCED, Truth::Unknown, "ClusterUnreachable"),
                told,
            );
        }
        let behind: Vec<String> = self
            .decision
            .steps
            .iter()
            .filter_map(|s| match s {
                Step::CreateMirror { cluster, .. }
                | Step::PatchMirror { cluster, .. }
                | Step::DeleteMirror { cluster } => Some(cluster.clone()),
                _ => None,
            })
            .collect();
        let missing = self.seen.mirrors.values().all(Seen::is_absent);
        if !behind.is_empty() {
            let trouble = self
                .seen
                .trouble
                .as_ref()
                .map_or(String::new(), |t| format!(" The last attempt failed: {t}"));
            let message = format!(
                "the mirror on {} is being written.{trouble}",
                words::list(&behind)
            );
            self.set(condition::SYNCED, Truth::False, "Writing", message);
        } else if missing {
            self.set(
                condition::SYNCED,
                Truth::False,
                "NoMirror",
                "no member can be mirrored yet; the condition MembersProtected says why",
            );
        } else {
            let message = format!(
                "the mirrors on {} are as the group says",
                words::list(&self.clusters())
            );
            self.set(condition::SYNCED, Truth::True, "InStep", message);
        }
    }

    /// Whether every member is there and protected.
    fn tell_members(&mut self, members: &[Member]) -> bool {
        let namespace = self
            .seen
            .group
            .metadata
            .namespace
            .as_deref()
            .unwrap_or_default()
            .to_string();
        if let Some(member) = members.iter().find(|m| m.taken_by.is_some()) {
            let message = format!(
                "{0} already belongs to ProtectionGroup {1}, which keeps it. Take it out of one of the two, with: kubectl -n {namespace} edit protectiongroup {2}, or {1}",
                member.named,
                member.taken_by.as_deref().unwrap_or_default(),
                self.name
            );
            self.set(
                condition::MEMBERS_PROTECTED,
                Truth::False,
                "MemberInAnotherGroup",
                message,
            );
            return false;
        }
        let missing: Vec<&str> = members
            .iter()
            .filter(|m| m.request.is_none())
            .map(|m| m.named.as_str())
            .collect();
        if !missing.is_empty() {
            let message = format!(
                "no ProtectionRequest in namespace {namespace} for {}; create it or take the member out of the group",
                words::list(&missing)
            );
            self.set(
                condition::MEMBERS_PROTECTED,
                Truth::False,
                "MemberNotFound",
                message,
            );
            return false;
        }
        let phase = |m: &Member| m.request.and_then(|r| r.status.as_ref()?.phase);
        let behind: Vec<String> = members
            .iter()
            .filter(|m| phase(m) != Some(ProtectionPhase::Protected))
            .map(|m| {
                let name = m
                    .request
                    .and_then(|r| r.metadata.name.clone())
                    .unwrap_or_default();
                let phase = phase(m).map_or("new", ProtectionPhase::as_str);
                let told = m.request.and_then(|r| r.status.as_ref());
                let why = told
                    .and_then(|s| conditions::get(&s.conditions, request::PROTECTED))
                    .filter(|c| c.status != "True" && c.reason != phase)
                    .map_or(String::new(), |c| format!(" ({})", c.reason));
                format!("ProtectionRequest {name} is {phase}{why}")
            })
            .collect();
        if behind.is_empty() {
            let message = format!("{} protected", words::count(members.len(), "member"));
            self.set(
                condition::MEMBERS_PROTECTED,
                Truth::True,
                "Protected",
                message,
            );
            return true;
        }
        let message = format!(
            "{}. Look with: kubectl -n {namespace} get protectionrequests",
            words::list(&behind)
        );
        self.set(
            condition::MEMBERS_PROTECTED,
            Truth::False,
            "NotProtected",
            message,
        );
        false
    }
}

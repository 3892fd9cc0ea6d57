//! ProtectionGroups of the hub. A group's copy on a workload cluster is the manager's own writing and is
//! not asked about.
//!
//! | rule | what | from |
//! | --- | --- | --- |
//! | PG-1 | a group needs a zone whose clusters are validated | [S1] |
//! | PG-2 | a request is in one group at most | proposed |
//! | PG-3 | the name is a DNS-1123 label: it is a label's value and part of names | proposed |
//! | PG-4 | members and SLA stay while a failover runs | proposed |
//! | PG-5 | all members have one source cluster | proposed |
//!
//! PG-2 and PG-5 look at the members that a change adds: to take one out is how a person mends what these
//! rules are about. Deletion needs no rule, since the finalizer waits for a failover. Ranges and that a
//! member is named in one of two ways are the schema's.

use farshore_api::protection_group::GroupMember;
use farshore_api::{ProtectionGroup, ProtectionRequest, ProtectionZone};

use super::{Asked, Change, Reviewed, Stop, Verdict, known, known_all, name, namespace, open_zone};
use crate::failover::resolve_members;
use crate::{Seen, group};

/// What the answers depend on. Creation: zone, requests, groups. Changed members: failover, requests,
/// groups. Changed SLA: failover.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The zone of the namespace.
    pub zone: Seen<ProtectionZone>,
    /// Its ProtectionRequests.
    pub requests: Seen<Vec<ProtectionRequest>>,
    /// Its ProtectionGroups.
    pub groups: Seen<Vec<ProtectionGroup>>,
    /// The FailoverRequest that may move this group now, as `group::hub::locked_by` finds it.
    pub failover: Seen<String>,
}

/// Answers.
pub fn judge(asked: &Asked<ProtectionGroup>, facts: &Facts) -> Verdict {
    if asked.passes() {
        return Verdict::default();
    }
    match &asked.change {
        Change::Create { new } => Verdict::of(create(new, facts), budget_warnings(new, facts)),
        Change::Update { old, new } => {
            let mut warnings = budget_warnings(new, facts);
            if let Seen::Present(failover) = &facts.failover
                && old.spec.desired_state != new.spec.desired_state
            {
                warnings.push(format!(
                    "spec.desiredState takes effect when FailoverRequest {failover} has ended"
                ));
            }
            Verdict::of(update(old, new, facts), warnings)
        }
        Change::Delete { .. } => Verdict::default(),
    }
}

fn create(new: &ProtectionGroup, facts: &Facts) -> Result<(), Stop> {
    if !is_label(name(&new.metadata)) {
        let message = "metadata.name must be a DNS-1123 label";
        return Err(Stop::invalid("metadata.name", message).help(
            "Use at most 63 lower-case letters, digits and -, with a letter or digit at both ends.",
        ));
    }
    open_zone(&facts.zone, namespace(&new.metadata))?;
    let all = new.spec.members.iter().enumerate();
    joining(new, all, facts)
}

fn update(old: &ProtectionGroup, new: &ProtectionGroup, facts: &Facts) -> Result<(), Stop> {
    let members = old.spec.members != new.spec.members;
    if members || old.spec.sla != new.spec.sla {
        let field = if members { "spec.members" } else { "spec.sla" };
        unlocked(old, field, facts)?;
    }
    if !members {
        return Ok(());
    }
    let was_there = |m: &GroupMember| old.spec.members.iter().any(|o| same(o, m));
    let all = new.spec.members.iter().enumerate();
    joining(new, all.filter(|(_, m)| !was_there(m)), facts)
}

/// Whether two entries name one member in the same way.
fn same(a: &GroupMember, b: &GroupMember) -> bool {
    a.protection_request_ref == b.protection_request_ref && a.vm_ref == b.vm_ref
}

/// PG-4.
fn unlocked(group: &ProtectionGroup, field: &str, facts: &Facts) -> Result<(), Stop> {
    let named = name(&group.metadata);
    let what = format!("whether a failover moves ProtectionGroup {named}");
    match known(&facts.failover, &what)? {
        None => Ok(()),
        Some(failover) => Err(Stop::conflict(field, locked(named, failover)).help(format!(
            "Change it when that has ended: kubectl -n {} get failoverrequest {failover}",
            namespace(&group.metadata)
        ))),
    }
}

/// The words for a group that a failover has.
pub(super) fn locked(group: &str, failover: &str) -> String {
    format!("ProtectionGroup {group} is locked by FailoverRequest {failover}")
}

/// PG-2 and PG-5 about the members that join, each with its place in the list.
fn joining<'a>(
    new: &ProtectionGroup,
    members: impl Iterator<Item = (usize, &'a GroupMember)>,
    facts: &Facts,
) -> Result<(), Stop> {
    let mut members = members.peekable();
    if members.peek().is_none() {
        return Ok(());
    }
    let of = |kind: &str| format!("the {kind} of namespace {}", namespace(&new.metadata));
    let requests = known_all(&facts.requests, &of("ProtectionRequests"))?;
    let groups = known_all(&facts.groups, &of("ProtectionGroups"))?;
    let others = || {
        let rivals = groups.iter();
        rivals.filter(|g| g.metadata.name != new.metadata.name && !g.is_leaving())
    };
    for (index, member) in members {
        let request = requests.iter().find(|r| is_named_by(r, member));
        let has = |g: &&ProtectionGroup| match request {
            Some(request) => group::hub::contains(g, request),
            None => g.spec.members.iter().any(|m| same(m, member)),
        };
        if let Some(other) = others().find(has) {
            let message = format!(
                "{} already belongs to ProtectionGroup {}",
                title(request, member),
                name(&other.metadata)
            );
            return Err(
                Stop::forbidden(&format!("spec.members[{index}]"), message).help(format!(
                    "Take it out of that group first: kubectl -n {} edit protectiongroup {}",
                    namespace(&new.metadata),
                    name(&other.metadata)
                )),
            );
        }
    }
    one_source(new, requests)
}

fn is_named_by(request: &ProtectionRequest, member: &GroupMember) -> bool {
    match (&member.protection_request_ref, &member.vm_ref) {
        (Some(named), _) => request.metadata.name.as_ref() == Some(named),
        (None, Some(vm)) => request.vm() == *vm,
        (None, None) => false,
    }
}

fn title(request: Option<&ProtectionRequest>, member: &GroupMember) -> String {
    match (request, &member.protection_request_ref, &member.vm_ref) {
        (Some(request), ..) => format!("ProtectionRequest {}", name(&request.metadata)),
        (None, Some(named), _) => format!("ProtectionRequest {named}"),
        (None, None, Some(vm)) => format!("VirtualMachine {vm}"),
        (None, None, None) => "a member without a name".into(),
    }
}

/// PG-5, about the members that have a request and stay.
fn one_source(new: &ProtectionGroup, requests: &[ProtectionRequest]) -> Result<(), Stop> {
    let (found, _) = resolve_members(new, requests);
    let mut staying = found.iter().filter(|r| !r.is_leaving());
    let Some(first) = staying.next() else {
        return Ok(());
    };
    match staying.find(|r| r.spec.source_cluster != first.spec.source_cluster) {
        None => Ok(()),
        Some(other) => {
            let message = format!(
                "members of ProtectionGroup {} have different source clusters",
                name(&new.metadata)
            );
            let say = |r: &ProtectionRequest| {
                format!("{} is on {}", name(&r.metadata), r.spec.source_cluster)
            };
            Err(Stop::invalid("spec.members", message).help(format!(
                "{}, {}: move one with a group of its own first.",
                say(first),
                say(other)
            )))
        }
    }
}

/// Limits that the zone's budget cuts short; a FailoverRequest may bring a longer one.
fn budget_warnings(new: &ProtectionGroup, facts: &Facts) -> Vec<String> {
    let Some(zone) = facts.zone.present() else {
        return Vec::new();
    };
    let budget = zone.spec.failover.budget_seconds;
    let mut limits = Vec::new();
    for (stage, hooks) in new.spec.hooks.iter().flat_map(|h| {
        [
            ("preFailover", &h.pre_failover),
            ("postFailover", &h.post_failover),
        ]
    }) {
        for (i, hook) in hooks.iter().enumerate() {
            limits.push((
                format!("spec.hooks.{stage}[{i}].timeoutSeconds"),
                hook.timeout_seconds,
            ));
        }
    }
    if let Some(failover) = &new.spec.failover {
        limits.push((
            "spec.failover.vmStopTimeoutSeconds".into(),
            failover.vm_stop_timeout_seconds,
        ));
    }
    let long = limits.into_iter().filter(|(_, seconds)| *seconds > budget);
    long.map(|(field, seconds)| {
        format!("{field} is {seconds}, more than the {budget} seconds that a failover of this zone has by default")
    })
    .collect()
}

/// Whether this is a DNS-1123 label: what Kubernetes takes for the name of a namespace.
fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

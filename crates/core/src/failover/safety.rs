//! The safety check before quorum taints are removed [S2]. Taints belong to nodes, not to groups:
//! taking one off a node touches every group with VMs there. So another group that runs on the
//! target, or may run, is a conflict, unless the request says `force`. Without a taint there is
//! nothing to remove and nothing to check.

use std::collections::{BTreeMap, BTreeSet};

use farshore_api::conditions::failover as reason;
use farshore_api::failover_request::SafetyCheckStatus;
use farshore_api::meta::taints;
use farshore_api::protection_group::CurrentState;
use farshore_api::zone::SafetyCheckScope;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::journal::{Cause, Journal};
use super::observed::Neighbour;
use super::scene::{Member, Scene};
use super::step::Step;
use crate::conditions::Truth;
use crate::{Seen, words};

/// Result of the check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No node carries a quorum taint.
    NothingToRemove,
    /// Nobody is in the way, or `force` passes over them.
    Clear {
        tainted: Vec<String>,
        conflicts: Vec<String>,
    },
    /// Other groups are in the way, as namespace/name; one whose state is not known says so.
    Conflicts(Vec<String>),
    /// The target did not answer what the check needs.
    CannotTell(String),
}

/// Looks at the nodes that the members are pinned to and at the other groups on the target.
pub fn check(seen: &Scene) -> Verdict {
    let tainted = match tainted_nodes(seen) {
        Ok(tainted) if tainted.is_empty() => return Verdict::NothingToRemove,
        Ok(tainted) => tainted,
        Err(fact) => return Verdict::CannotTell(fact),
    };
    let neighbours = match &seen.neighbours {
        Seen::Present(neighbours) => neighbours.as_slice(),
        Seen::Absent => &[],
        Seen::Unknown(why) => {
            return Verdict::CannotTell(format!(
                "ProtectionGroups on cluster {} cannot be read ({why})",
                seen.target.cluster
            ));
        }
    };
    let names: BTreeSet<&str> = tainted.into_keys().collect();
    let conflicts: Vec<String> = neighbours
        .iter()
        .filter(|n| concerns(n, seen.zone.spec.failover.safety_check_scope, &names))
        .filter_map(conflict)
        .collect();
    if conflicts.is_empty() || seen.request.spec.force {
        let tainted = names.iter().map(ToString::to_string).collect();
        Verdict::Clear { tainted, conflicts }
    } else {
        Verdict::Conflicts(conflicts)
    }
}

/// Whether the scope covers this group. `Node` covers a group whose nodes are not known.
fn concerns(neighbour: &Neighbour, scope: SafetyCheckScope, tainted: &BTreeSet<&str>) -> bool {
    match (scope, &neighbour.nodes) {
        (SafetyCheckScope::Namespace | SafetyCheckScope::Cluster, _) | (_, None) => true,
        (SafetyCheckScope::Node, Some(nodes)) => nodes.iter().any(|n| tainted.contains(n.as_str())),
    }
}

/// A group that runs, or partly runs, or does not say.
fn conflict(neighbour: &Neighbour) -> Option<String> {
    let name = format!("{}/{}", neighbour.namespace, neighbour.name);
    match neighbour.current {
        Some(CurrentState::Stopped) => None,
        Some(CurrentState::Running | CurrentState::Mixed) => Some(name),
        Some(CurrentState::Unknown) | None => Some(format!("{name} (state unknown)")),
    }
}

/// Writes a verdict that lets the failover pass, or stops it, into the journal.
pub fn record(seen: &Scene, verdict: &Verdict, journal: &mut Journal, now: Timestamp) {
    let (truth, why, message, conflicts, forced) = match verdict {
        // The taints are gone because an earlier look of this request let them be removed: that look,
        // and whether it was forced, is what the record must keep.
        Verdict::NothingToRemove if journal.has_passed_safety() => return,
        Verdict::NothingToRemove => {
            let message = format!(
                "Skipped: no node of the group on cluster {} carries a quorum taint, so none is removed.",
                seen.target.cluster
            );
            (Truth::True, "NoTaints", message, vec![], false)
        }
        Verdict::Clear { tainted, conflicts } if conflicts.is_empty() => {
            let message = format!(
                "No other group runs on cluster {}; quorum taints of {} may be removed.",
                seen.target.cluster,
                nodes(tainted)
            );
            (Truth::True, "NoConflicts", message, vec![], false)
        }
        Verdict::Clear { tainted, conflicts } => {
            let message = format!(
                "Forced: quorum taints of {} are removed although {} may run on cluster {}.",
                nodes(tainted),
                groups(conflicts),
                seen.target.cluster
            );
            (Truth::True, "Forced", message, conflicts.clone(), true)
        }
        Verdict::Conflicts(conflicts) => (
            Truth::False,
            reason::CONFLICTING_GROUPS,
            blocked(seen, conflicts).message,
            conflicts.clone(),
            false,
        ),
        Verdict::CannotTell(why) => {
            journal.fact(
                reason::SAFETY_CHECK_PASSED,
                Truth::Unknown,
                reason::CLUSTER_UNREACHABLE,
                why,
            );
            return;
        }
    };
    journal.fact(reason::SAFETY_CHECK_PASSED, truth, why, &message);
    journal.checked(SafetyCheckStatus {
        performed_at: Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
        scope: seen.zone.spec.failover.safety_check_scope,
        conflicts,
        forced,
        message: Some(message),
    });
}

/// Why a failover is blocked, and what can be done.
pub fn blocked(seen: &Scene, conflicts: &[String]) -> Cause {
    let next = if seen.request.spec.queue {
        "It is checked again every 15 s until the budget is over."
    } else {
        "This request ends here; create a new one when they have stopped or moved, or one with force: true if their VMs may be disturbed."
    };
    Cause::new(
        reason::CONFLICTING_GROUPS,
        format!(
            "{} cannot move to cluster {}: removing quorum taints from its nodes would touch {}, which run there or may run. {next} Look with: kubectl --context {} get protectiongroup -A",
            seen.group_title(),
            seen.target.cluster,
            groups(conflicts),
            seen.target.cluster,
        ),
    )
}

/// The steps that take the quorum taints off, one for each node.
pub fn removals(seen: &Scene) -> Vec<Step> {
    let tainted = tainted_nodes(seen).unwrap_or_default();
    let step = |(name, node): (&str, &Node)| Step::SetTaints {
        cluster: seen.target.cluster.clone(),
        node: name.into(),
        taints: taints_of(node).filter(|t| !is_quorum(t)).cloned().collect(),
        removed: quorum_keys(node),
        resource_version: node.metadata.resource_version.clone(),
    };
    tainted.into_iter().map(step).collect()
}

/// Nodes with a quorum taint among those that the members are pinned to on the target. Err if one
/// of them was not seen: a taint may be there.
fn tainted_nodes<'a>(seen: &'a Scene) -> Result<BTreeMap<&'a str, &'a Node>, String> {
    let cluster = &seen.target.cluster;
    let mut tainted = BTreeMap::new();
    for Member { vm, .. } in &seen.cast {
        let name = match seen.target.resource(vm) {
            Seen::Present(resource) => resource.spec.node_name.as_deref(),
            Seen::Absent => None,
            Seen::Unknown(why) => {
                return Err(format!(
                    "DRBDResources on cluster {cluster} cannot be read ({why})"
                ));
            }
        };
        let Some(name) = name else {
            return Err(format!(
                "VM {vm} is not bound to a node on cluster {cluster}"
            ));
        };
        match seen.nodes.get(name) {
            Some(Seen::Present(node)) if !quorum_keys(node).is_empty() => {
                tainted.insert(name, node);
            }
            Some(Seen::Present(_) | Seen::Absent) => {}
            Some(Seen::Unknown(why)) => {
                return Err(format!(
                    "Node {name} (cluster {cluster}) cannot be read ({why})"
                ));
            }
            None => return Err(format!("Node {name} (cluster {cluster}) was not looked at")),
        }
    }
    Ok(tainted)
}

fn is_quorum(taint: &Taint) -> bool {
    taints::QUORUM.contains(&taint.key.as_str())
}

fn taints_of(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    taints.into_iter().flatten()
}

fn quorum_keys(node: &Node) -> Vec<String> {
    taints_of(node)
        .filter(|t| is_quorum(t))
        .map(|t| t.key.clone())
        .collect()
}

fn nodes(names: &[String]) -> String {
    format!("Node {}", words::list(names))
}

fn groups(names: &[String]) -> String {
    format!("ProtectionGroup {}", words::list(names))
}

//! Which node holds the disks. Bound once, for life [S1].

use farshore_api::meta::taints;

use super::{Decision, Node, Observed, Step, Verdict, reasons, vm};
use crate::Note;
use crate::conditions::Truth;
use crate::words::{Wait, list, moment};

/// The node, bound before or now, and the verdict on it.
pub(super) fn bind(seen: &Observed, decision: &mut Decision) -> (Option<String>, Verdict) {
    if let Some(node) = &seen.resource.spec.node_name {
        return (Some(node.clone()), keep(seen, node, decision));
    }
    match choose(seen) {
        Ok(chosen) => {
            let Some(address) = chosen.address.clone() else {
                let message = format!(
                    "node {} has no InternalIP to replicate over; it is bound as soon as it has one. Look with: kubectl get node {} -o wide",
                    chosen.name, chosen.name
                );
                return (
                    None,
                    Verdict::new(Truth::False, reasons::NODE_NOT_READY, message),
                );
            };
            let message = said(&chosen.name, &address);
            decision.notes.push(Note::normal(
                "NodeBound",
                format!("disks of VM {} are bound to {message}", vm(seen)),
            ));
            decision.steps.push(Step::Bind {
                node: chosen.name.clone(),
                address,
            });
            (
                Some(chosen.name.clone()),
                Verdict::new(Truth::True, reasons::BOUND, message),
            )
        }
        Err(why) => (
            None,
            Verdict::new(Truth::False, reasons::NODE_NOT_READY, why),
        ),
    }
}

/// A binding stays whatever happens to its node; its address follows the node's.
fn keep(seen: &Observed, bound: &str, decision: &mut Decision) -> Verdict {
    let local = seen.resource.spec.local.as_ref();
    let Some(node) = seen.nodes.iter().find(|n| n.name == bound) else {
        let message = format!(
            "node {bound} holds the disks and does not exist any more; bring it back under this name, or remove and renew the VM's protection. Look with: kubectl get nodes"
        );
        return Verdict::new(Truth::True, reasons::BOUND, message);
    };
    let address = node
        .address
        .as_deref()
        .or(local.map(|l| l.address.as_str()));
    if let Some(address) =
        address.filter(|a| local.is_none_or(|l| l.address != *a || l.node_name != bound))
    {
        decision.steps.push(Step::Bind {
            node: bound.into(),
            address: address.into(),
        });
    }
    let mut message = said(bound, address.unwrap_or("no address yet"));
    if !node.ready {
        message.push_str("; the node is NotReady");
        if let Some(since) = node.since {
            message.push_str(&format!(" since {}", moment(since)));
        }
    }
    Verdict::new(Truth::True, reasons::BOUND, message)
}

fn said(node: &str, address: &str) -> String {
    format!("node {node}, replicating over {address}")
}

/// The hinted node, if it can be used; else the node where the disks are in use; else the usable node
/// with the fewest resources bound, the first by name among equals.
fn choose(seen: &Observed) -> Result<&Node, String> {
    let find = |name: &str| seen.nodes.iter().find(|n| n.name == name);
    if let Some(hinted) = seen
        .resource
        .spec
        .node_hint
        .as_deref()
        .and_then(find)
        .filter(|n| unusable(n).is_none())
    {
        return Ok(hinted);
    }
    // The disks are there: no other node will do, so a node that cannot be used is waited for.
    let fixed = seen
        .vm_node
        .as_deref()
        .map(|n| (n, "the VM runs there"))
        .or(seen
            .consumer_node
            .as_deref()
            .map(|n| (n, "a pod uses the VM's disks there")));
    if let Some((name, because)) = fixed {
        let Some(node) = find(name) else {
            return Err(wait(
                seen,
                format!("node {name} ({because}) does not exist"),
                None,
                name,
            ));
        };
        return match unusable(node) {
            None => Ok(node),
            Some(why) => Err(wait(
                seen,
                format!("node {name} ({because}) {why}"),
                node.since.filter(|_| !node.ready),
                name,
            )),
        };
    }
    let usable = seen.nodes.iter().filter(|n| unusable(n).is_none());
    usable.min_by_key(|n| (n.bound, &n.name)).ok_or_else(|| {
        let mut whys: Vec<String> = seen
            .nodes
            .iter()
            .filter_map(|n| Some(format!("{} {}", n.name, unusable(n)?)))
            .collect();
        whys.sort();
        let by = if whys.is_empty() {
            "the cluster has no nodes".to_string()
        } else {
            format!("no node can be used: {}", list(&whys))
        };
        wait(seen, by, None, "")
    })
}

/// Why no disks may be bound to a node.
fn unusable(node: &Node) -> Option<String> {
    if !node.ready {
        return Some("is NotReady".into());
    }
    if node.cordoned {
        return Some("is cordoned".into());
    }
    // The startup taint is the product's own: it goes when the node's agent has converged.
    let foreign = node.taints.iter().find(|t| *t != taints::NOT_READY)?;
    Some(format!("is tainted {foreign}"))
}

fn wait(seen: &Observed, by: String, since: Option<jiff::Timestamp>, node: &str) -> String {
    Wait {
        what: format!(
            "disks of VM {} (cluster {}) are not bound to a node",
            vm(seen),
            seen.cluster
        ),
        by,
        since,
        next: "They are bound as soon as the node can be used; looked at every 10 s",
        command: if node.is_empty() {
            "kubectl get nodes".into()
        } else {
            format!("kubectl describe node {node}")
        },
    }
    .to_string()
}

//! Where a pod or a VM may run: node selector, taints, volumes' node affinity.

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, PersistentVolume, PersistentVolumeClaim, Toleration,
};
use kube::Api;
use kube::api::ListParams;

use super::{Sim, SimError, absent_is_fine};

/// What restricts the choice of a node.
pub struct Wish<'a> {
    /// Namespace of the claims.
    pub namespace: &'a str,
    /// Labels that the node must have.
    pub selector: Vec<(String, String)>,
    /// Taints that may stand on it.
    pub tolerations: &'a [Toleration],
    /// Claims whose volumes must be reachable from it.
    pub claims: &'a [String],
}

/// The answer of the scheduler.
pub enum Choice {
    /// This node.
    Node(String),
    /// None for now, and why.
    Wait(String),
}

/// Chooses the first node in name order that fits.
pub async fn choose(sim: &Sim, wish: &Wish<'_>) -> Result<Choice, SimError> {
    let mut affinities = Vec::new();
    for claim in wish.claims {
        match bound_volume(sim, wish.namespace, claim).await? {
            None => {
                return Ok(Choice::Wait(format!(
                    "PersistentVolumeClaim {}/{claim} is not bound",
                    wish.namespace
                )));
            }
            Some(volume) => affinities.extend(
                volume
                    .spec
                    .and_then(|s| s.node_affinity)
                    .and_then(|a| a.required),
            ),
        }
    }
    let nodes: Api<Node> = Api::all(sim.client.clone());
    let mut why = String::from("the cluster has no node");
    for node in nodes.list(&ListParams::default()).await?.items {
        let name = node.metadata.name.clone().unwrap_or_default();
        match refusal(sim, &node, &name, wish, &affinities) {
            None => return Ok(Choice::Node(name)),
            Some(reason) => why = format!("node {name} {reason}"),
        }
    }
    Ok(Choice::Wait(why))
}

fn refusal(
    sim: &Sim,
    node: &Node,
    name: &str,
    wish: &Wish<'_>,
    affinities: &[NodeSelector],
) -> Option<String> {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let spec = node.spec.clone().unwrap_or_default();
    if !sim.is_up(name) {
        return Some("is down".into());
    }
    if spec.unschedulable == Some(true) {
        return Some("is cordoned".into());
    }
    if let Some((key, value)) = wish.selector.iter().find(|(k, v)| labels.get(k) != Some(v)) {
        return Some(format!("does not have the label {key}={value}"));
    }
    let untolerated = spec.taints.unwrap_or_default().into_iter().find(|taint| {
        taint.effect != "PreferNoSchedule"
            && !wish.tolerations.iter().any(|t| {
                let any_key = t.key.as_deref().unwrap_or("").is_empty()
                    && t.operator.as_deref() == Some("Exists");
                any_key || t.key.as_deref() == Some(&taint.key)
            })
    });
    if let Some(taint) = untolerated {
        return Some(format!("has the taint {}:{}", taint.key, taint.effect));
    }
    let reachable = affinities.iter().all(|required| {
        required.node_selector_terms.iter().any(|term| {
            term.match_expressions.iter().flatten().all(|e| {
                e.operator == "In"
                    && labels
                        .get(&e.key)
                        .is_some_and(|v| e.values.iter().flatten().any(|x| x == v))
            })
        })
    });
    (!reachable).then(|| "cannot reach a volume of the pod".into())
}

/// The volume that a claim is bound to, or `None` while it is not.
pub async fn bound_volume(
    sim: &Sim,
    namespace: &str,
    claim: &str,
) -> Result<Option<PersistentVolume>, SimError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(sim.client.clone(), namespace);
    let Some(claim) = absent_is_fine(claims.get(claim).await)? else {
        return Ok(None);
    };
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let Some(name) = claim.spec.and_then(|s| s.volume_name).filter(|_| bound) else {
        return Ok(None);
    };
    let volumes: Api<PersistentVolume> = Api::all(sim.client.clone());
    absent_is_fine(volumes.get(&name).await)
}

//! DRBDResources, on a workload cluster.
//!
//! | rule | what | from |
//! | --- | --- | --- |
//! | DR-1 | `nodeName` stays once it is set | [S1] |
//! | DR-2 | only the manager makes and deletes them, or whoever sets [`BREAK_GLASS`] | proposed |
//! | DR-4 | every volume has a port of its own | one port for each volume [S1], the rule proposed |
//! | – | `vmRef`, `zone`, `cluster`, `peerCluster` stay; `roleEpoch` does not go back | proposed |
//!
//! At most 15 volumes (DR-3) and ports between 7000 and 8000 (DR-4) are the schema's alone, in words of
//! its own. DR-1 and `vmRef` are in the CRD too, and are said here again for API servers that do not know
//! such rules (before Kubernetes 1.25).
//!
//! A resource is the only record of which side holds the newest data, and is never made anew by a failover:
//! that is why a person has to break a glass first. With the annotation on it, it may be deleted; the
//! finalizers still take DRBD down in order.

use std::collections::BTreeMap;

use farshore_api::DRBDResource;

use super::{Asked, Change, Ours, Stop, Verdict, fixed, known_all, name, namespace};
use crate::Seen;

/// Annotation with the value `true`: a person makes or deletes this DRBDResource by hand. Proposed.
pub const BREAK_GLASS: &str = "siterecovery.trilio.io/break-glass";

/// What the answers depend on. Creation and changed volumes: others. The rest: none.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The product on this cluster.
    pub ours: Ours,
    /// The DRBDResources of this cluster.
    pub others: Seen<Vec<DRBDResource>>,
}

/// Answers.
pub fn judge(asked: &Asked<DRBDResource>, facts: &Facts) -> Verdict {
    if asked.passes() {
        return Verdict::default();
    }
    let ours = facts.ours.manager.has(&asked.by);
    match &asked.change {
        Change::Create { new } => {
            let rules = made_by(new, ours).and_then(|()| ports(new, facts));
            Verdict::of(rules, Vec::new())
        }
        Change::Update { old, new } => {
            let mut warnings = Vec::new();
            if !facts.ours.has(&asked.by) {
                warnings.push("the spec of a DRBDResource is written by Site Recovery, from its ProtectionRequest: what was changed by hand is changed back".into());
            }
            Verdict::of(update(old, new, facts), warnings)
        }
        Change::Delete { old } => {
            let mut warnings = Vec::new();
            if !ours {
                warnings.push(format!(
                    "the disks of VirtualMachine {}/{} are replicated no more; a DRBDResource of the source is never made anew",
                    namespace(&old.metadata),
                    old.spec.vm_ref.name
                ));
            }
            Verdict::of(made_by(old, ours), warnings)
        }
    }
}

/// DR-2.
fn made_by(resource: &DRBDResource, ours: bool) -> Result<(), Stop> {
    let annotations = resource.metadata.annotations.as_ref();
    let broken = annotations
        .and_then(|a| a.get(BREAK_GLASS))
        .is_some_and(|v| v == "true");
    if ours || broken {
        return Ok(());
    }
    let message = "DRBDResource is managed by Site Recovery";
    Err(Stop::forbidden("", message).help(format!(
        "Create or delete a ProtectionRequest instead. If none is left that could do it, set the annotation {BREAK_GLASS} to true on DRBDResource {}/{} first.",
        namespace(&resource.metadata),
        name(&resource.metadata)
    )))
}

fn update(old: &DRBDResource, new: &DRBDResource, facts: &Facts) -> Result<(), Stop> {
    let (was, is) = (&old.spec, &new.spec);
    if was.node_name.is_some() {
        let message = "spec.nodeName is immutable once set";
        fixed(&was.node_name, &is.node_name, "spec.nodeName", message)?;
    }
    let message = "spec.vmRef is immutable";
    fixed(&was.vm_ref, &is.vm_ref, "spec.vmRef", message)?;
    let message = "spec.zone, spec.cluster and spec.peerCluster are immutable";
    fixed(&was.zone, &is.zone, "spec.zone", message)?;
    fixed(&was.cluster, &is.cluster, "spec.cluster", message)?;
    fixed(
        &was.peer_cluster,
        &is.peer_cluster,
        "spec.peerCluster",
        message,
    )?;
    if is.role_epoch < was.role_epoch {
        let message = format!(
            "spec.roleEpoch cannot go back from {} to {}: the agent has carried out the later one",
            was.role_epoch, is.role_epoch
        );
        return Err(Stop::invalid("spec.roleEpoch", message));
    }
    if was.volumes == is.volumes {
        return Ok(());
    }
    ports(new, facts)
}

/// DR-4: within the resource, and beside all others of the cluster.
fn ports(new: &DRBDResource, facts: &Facts) -> Result<(), Stop> {
    let others = known_all(&facts.others, "the DRBDResources of this cluster")?;
    let mut taken = BTreeMap::new();
    for other in others {
        let same = other.metadata.name == new.metadata.name
            && other.metadata.namespace == new.metadata.namespace;
        if !same {
            let title = format!(
                "DRBDResource {}/{}",
                namespace(&other.metadata),
                name(&other.metadata)
            );
            let ports = other.spec.volumes.iter();
            taken.extend(ports.map(|v| (v.port, title.clone())));
        }
    }
    for (i, volume) in new.spec.volumes.iter().enumerate() {
        let field = format!("spec.volumes[{i}].port");
        if let Some(holder) = taken.get(&volume.port) {
            let message = format!(
                "{field}: port {} is taken by {holder}; choose one that no other volume of this cluster has",
                volume.port
            );
            return Err(Stop::invalid(&field, message));
        }
        taken.insert(volume.port, format!("spec.volumes[{i}] itself"));
    }
    Ok(())
}

//! ProtectionZones. Asked of whoever serves webhooks before a zone has a manager of its own.
//!
//! | what | from |
//! | --- | --- |
//! | names and order of the clusters stay, and are unique | proposed; in the CRD too, for servers that know such rules |
//! | the distribution of a cluster stays; its replication network while VMs are protected | proposed |
//! | `ports` only grows | proposed |
//! | only feature gates that exist are set | proposed |
//! | one zone in a namespace, which is named `dr-<name>` | the name [S1], the rest proposed |
//! | no deletion while VMs are protected | proposed |
//!
//! Exactly two clusters [S1] is the schema's alone. The finalizer waits for the same as the last rule does.

use farshore_api::ProtectionZone;
use farshore_api::zone::{Distribution, ZoneCluster};

use super::{Asked, Change, Stop, Verdict, fixed, known, known_all, name, namespace};
use crate::{Seen, words};

/// Gates that the product asks for.
const GATES: [&str; 2] = ["CustomReplicationPolicy", "ReplicationProtocolA"];

/// What the answers depend on. Creation: zones. Deletion and a changed replication network: requests.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The zones of the namespace.
    pub zones: Seen<Vec<ProtectionZone>>,
    /// Number of ProtectionRequests in the namespace.
    pub requests: Seen<usize>,
}

/// Answers.
pub fn judge(asked: &Asked<ProtectionZone>, facts: &Facts) -> Verdict {
    if asked.passes() {
        return Verdict::default();
    }
    match &asked.change {
        Change::Create { new } => Verdict::of(create(new, facts), warnings(&[], new)),
        Change::Update { old, new } => {
            let mut warnings = warnings(&old.spec.clusters, new);
            if old.spec.default_policy != new.spec.default_policy {
                warnings.push(
                    "spec.defaultPolicy has no effect once the default DRBDReplicationPolicy exists: change that one".into(),
                );
            }
            Verdict::of(update(old, new, facts), warnings)
        }
        Change::Delete { old } => Verdict::of(delete(old, facts), Vec::new()),
    }
}

fn create(new: &ProtectionZone, facts: &Facts) -> Result<(), Stop> {
    let (namespace, zone) = (namespace(&new.metadata), name(&new.metadata));
    if let Some(fault) = crate::zone::namespace_fault(namespace, zone, None) {
        let message = "a ProtectionZone must be created in a namespace named dr-<name>";
        return Err(Stop::forbidden("metadata.namespace", message).help(fault.command));
    }
    let zones = known_all(
        &facts.zones,
        &format!("the ProtectionZones of namespace {namespace}"),
    )?;
    let others = zones.iter().filter(|z| name(&z.metadata) != zone);
    if let Some(holder) = crate::zone::holder(others)
        && let Some(fault) =
            crate::zone::namespace_fault(namespace, zone, Some(name(&holder.metadata)))
    {
        return Err(
            Stop::forbidden("metadata.namespace", fault.by).help(format!(
                "Create a namespace for it, and the zone there: kubectl create namespace dr-{zone}"
            )),
        );
    }
    unique(&new.spec.clusters)?;
    gates(None, new)
}

fn unique(clusters: &[ZoneCluster]) -> Result<(), Stop> {
    for (index, cluster) in clusters.iter().enumerate() {
        if clusters[..index].iter().any(|c| c.name == cluster.name) {
            let field = format!("spec.clusters[{index}].name");
            return Err(Stop::invalid(
                &field,
                "spec.clusters: cluster names must be unique",
            ));
        }
    }
    Ok(())
}

/// Gates that are set anew; one that stands there from another version stays.
fn gates(old: Option<&ProtectionZone>, new: &ProtectionZone) -> Result<(), Stop> {
    let stood = |gate: &str| old.is_some_and(|o| o.spec.feature_gates.contains_key(gate));
    let mut all = new.spec.feature_gates.keys();
    match all.find(|g| !GATES.contains(&g.as_str()) && !stood(g)) {
        None => Ok(()),
        Some(gate) => Err(Stop::invalid(
            &format!("spec.featureGates.{gate}"),
            format!(
                "spec.featureGates: there is no feature gate \"{gate}\"; there are {}",
                GATES.join(" and ")
            ),
        )),
    }
}

/// What is stored and not relied on, as far as this change brought it.
fn warnings(old: &[ZoneCluster], new: &ProtectionZone) -> Vec<String> {
    let mut warnings = Vec::new();
    for (i, cluster) in new.spec.clusters.iter().enumerate() {
        let before = old.get(i);
        let ten = cluster.distribution_name == Distribution::RhelCoreOs10;
        if ten && before.is_none_or(|b| b.distribution_name != cluster.distribution_name) {
            warnings.push(format!(
                "spec.clusters[{i}].distributionName: nodes with RHEL-CoreOS-10 are not validated; do not rely on them"
            ));
        }
        let network = cluster.replication_network.is_some();
        if network && before.is_none_or(|b| b.replication_network != cluster.replication_network) {
            warnings.push(format!(
                "spec.clusters[{i}].replicationNetwork has no effect: nodes replicate over their InternalIP"
            ));
        }
    }
    warnings
}

fn update(old: &ProtectionZone, new: &ProtectionZone, facts: &Facts) -> Result<(), Stop> {
    let names = |z: &ProtectionZone| -> Vec<String> {
        z.spec.clusters.iter().map(|c| c.name.clone()).collect()
    };
    fixed(
        &names(old),
        &names(new),
        "spec.clusters",
        "spec.clusters: names and order of clusters are immutable",
    )?;
    for (i, (was, is)) in old.spec.clusters.iter().zip(&new.spec.clusters).enumerate() {
        let field = format!("spec.clusters[{i}].distributionName");
        let message = format!("{field} is immutable");
        fixed(
            &was.distribution_name,
            &is.distribution_name,
            &field,
            &message,
        )?;
        if was.replication_network != is.replication_network {
            let field = format!("spec.clusters[{i}].replicationNetwork");
            let protected = requests(old, facts)?;
            if protected > 0 {
                let message = format!(
                    "{field} cannot be changed while zone {} has {}; unprotect them first",
                    name(&old.metadata),
                    words::count(protected, "ProtectionRequest")
                );
                return Err(Stop::invalid(&field, message));
            }
        }
    }
    let (was, is) = (&old.spec.ports, &new.spec.ports);
    if is.start > was.start || is.end < was.end {
        let message = format!(
            "spec.ports can only be widened: it must hold {} to {}",
            was.start, was.end
        );
        return Err(Stop::invalid("spec.ports", message));
    }
    gates(Some(old), new)
}

fn requests(zone: &ProtectionZone, facts: &Facts) -> Result<usize, Stop> {
    let what = format!(
        "the ProtectionRequests of namespace {}",
        namespace(&zone.metadata)
    );
    Ok(known(&facts.requests, &what)?.copied().unwrap_or(0))
}

fn delete(old: &ProtectionZone, facts: &Facts) -> Result<(), Stop> {
    match requests(old, facts)? {
        0 => Ok(()),
        n => {
            let message = format!(
                "zone {} still has {}; unprotect them first",
                name(&old.metadata),
                words::count(n, "ProtectionRequest")
            );
            Err(Stop::conflict("", message).help(format!(
                "Look with: kubectl -n {} get protectionrequests",
                namespace(&old.metadata)
            )))
        }
    }
}

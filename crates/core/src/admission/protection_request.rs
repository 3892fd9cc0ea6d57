//! ProtectionRequests.
//!
//! | rule | what | from |
//! | --- | --- | --- |
//! | PR-1 | protocol A is refused, unless the zone's gate `ReplicationProtocolA` is on | [S1], the gate proposed |
//! | PR-2 | protocol C has `rpo` 0 | [S1] |
//! | PR-3 | a request needs a zone whose clusters are validated | [S1] |
//! | PR-4 | `sourceCluster` is a cluster of the zone | proposed |
//! | PR-5 | a VM has one request | proposed |
//! | PR-6 | a VM has at most 15 replicated disks | the limit [S1], the place proposed |
//! | PR-7 | what was chosen at creation stays | proposed |
//! | PR-8 | only a failover changes `sourceCluster`: see `source_cluster` | proposed on [S1] |
//! | PR-9 | no deletion during a failover | proposed |
//!
//! PR-7 is also in the CRD for the name of the VM, the protocol and `syncMode`, and is said here again for
//! API servers that do not know such rules (before Kubernetes 1.25). The length of names, the enumerations
//! and `rpo` below 0 are the schema's alone. Whether the VM exists is told in phase Validating [S1] [S2];
//! here it is a warning.

use farshore_api::drbd::Protocol;
use farshore_api::{
    DRBDReplicationPolicy, ProtectionGroup, ProtectionRequest, ProtectionZone, VmRef,
    protection_request::{ProtectionPhase, ProtectionRequestStatus},
};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    Asked, Change, Ours, Stop, Verdict, clusters, fixed, known, known_all, name, namespace,
    open_zone, source_cluster,
};
use crate::Seen;
use crate::protection::{disks, policy};
use crate::vm::Source;

/// Most replicated disks of a VM [S1].
const MOST_DISKS: usize = 15;

/// What the answers depend on. Creation: zone, requests, VM, and policies for a warning. A changed
/// `sourceCluster`: zone, failover, and for the members of a group in need also requests and groups.
/// Deletion: failover.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The product on the hub.
    pub ours: Ours,
    /// The zone of the namespace.
    pub zone: Seen<ProtectionZone>,
    /// Its policies.
    pub policies: Seen<Vec<DRBDReplicationPolicy>>,
    /// Its ProtectionRequests.
    pub requests: Seen<Vec<ProtectionRequest>>,
    /// Its ProtectionGroups.
    pub groups: Seen<Vec<ProtectionGroup>>,
    /// The FailoverRequest that may move a group of this request now, as `group::hub::locked_by` finds it
    /// in what was read live: a lock that was taken a moment ago counts.
    pub failover: Seen<String>,
    /// The VirtualMachine on the source cluster.
    pub vm: Seen<Value>,
}

/// Answers.
pub fn judge(asked: &Asked<ProtectionRequest>, facts: &Facts) -> Verdict {
    if asked.passes() {
        return Verdict::default();
    }
    match &asked.change {
        Change::Create { new } => Verdict::of(create(new, facts), creation_warnings(new, facts)),
        Change::Update { old, new } => {
            let rules = chosen(old, new).and_then(|()| {
                let changed = old.spec.source_cluster != new.spec.source_cluster;
                if changed {
                    source_cluster::judge(old, new, &asked.by, facts)
                } else {
                    Ok(())
                }
            });
            let by_hand = !facts.ours.manager.has(&asked.by);
            Verdict::of(rules, source_cluster::warnings(old, new, by_hand))
        }
        Change::Delete { old } => Verdict::of(delete(old, facts), Vec::new()),
    }
}

fn create(new: &ProtectionRequest, facts: &Facts) -> Result<(), Stop> {
    terms(new, facts)?;
    let zone = open_zone(&facts.zone, namespace(&new.metadata))?;
    in_zone(&new.spec.source_cluster, zone)?;
    alone(new, facts)?;
    few_disks(new, facts)
}

/// PR-1 and PR-2: what no state of the world makes possible comes first.
fn terms(new: &ProtectionRequest, facts: &Facts) -> Result<(), Stop> {
    let spec = &new.spec;
    if spec.replication_protocol == Protocol::A {
        let what = format!(
            "the ProtectionZone of namespace {}",
            namespace(&new.metadata)
        );
        let zone = known(&facts.zone, &what)?;
        if !zone.is_some_and(|z| policy::gate(z, "ReplicationProtocolA")) {
            let message = "ReplicationProtocolA is not supported yet";
            return Err(Stop::invalid("spec.replicationProtocol", message)
                .help("Leave spec.replicationProtocol out, or set it to C."));
        }
    }
    if spec.rpo != 0 && spec.replication_protocol == Protocol::C {
        let message = "spec.rpo must be 0 when spec.replicationProtocol is C";
        return Err(Stop::invalid("spec.rpo", message));
    }
    Ok(())
}

/// PR-4.
pub(super) fn in_zone(cluster: &str, zone: &ProtectionZone) -> Result<(), Stop> {
    let all = clusters(zone);
    if all.contains(&cluster) {
        return Ok(());
    }
    let message = format!(
        "spec.sourceCluster \"{cluster}\" is not a cluster of ProtectionZone {}",
        name(&zone.metadata)
    );
    Err(Stop::invalid("spec.sourceCluster", message)
        .help(format!("Set it to {}.", all.join(" or "))))
}

/// PR-5. A request that was refused holds nothing and does not keep out the one that corrects it.
fn alone(new: &ProtectionRequest, facts: &Facts) -> Result<(), Stop> {
    let what = format!(
        "the ProtectionRequests of namespace {}",
        namespace(&new.metadata)
    );
    let holds = |other: &&ProtectionRequest| {
        let status = other.status.as_ref();
        let refused = status
            .is_some_and(|s| s.phase == Some(ProtectionPhase::Failed) && s.volumes.is_empty());
        other.vm() == new.vm() && !refused && other.metadata.name != new.metadata.name
    };
    match known_all(&facts.requests, &what)?.iter().find(holds) {
        None => Ok(()),
        Some(other) => {
            let message = format!(
                "VirtualMachine {} is already protected by ProtectionRequest {}",
                new.vm(),
                name(&other.metadata)
            );
            Err(Stop::forbidden("spec.vmName", message))
        }
    }
}

/// PR-6. The VM is looked at again before anything is done to it.
fn few_disks(new: &ProtectionRequest, facts: &Facts) -> Result<(), Stop> {
    let vm = new.vm();
    let what = format!("VirtualMachine {vm} (cluster {})", new.spec.source_cluster);
    let Some(machine) = known(&facts.vm, &what)? else {
        return Ok(());
    };
    let all = disks::unprotected_volumes(machine);
    let disks = all.iter().filter(|v| matches!(v.source, Source::Claim(_)));
    let n = disks.count();
    if n <= MOST_DISKS {
        return Ok(());
    }
    let message = format!("VirtualMachine {vm} has {n} disks; at most {MOST_DISKS} are supported");
    Err(Stop::invalid("spec.vmName", message).help(format!(
        "Detach {} of them, or put their data on fewer disks.",
        n - MOST_DISKS
    )))
}

fn creation_warnings(new: &ProtectionRequest, facts: &Facts) -> Vec<String> {
    let mut warnings: Vec<String> = ignored_policy(new, facts).into_iter().collect();
    if facts.vm.is_absent() {
        let VmRef { namespace, name } = new.vm();
        warnings.push(format!(
            "VirtualMachine {namespace}/{name} does not exist on cluster {}: this request fails its validation until it does",
            new.spec.source_cluster
        ));
    }
    warnings
}

/// A policy that is named and does not govern [S1], in the words of the condition `PolicyIgnored`.
fn ignored_policy(new: &ProtectionRequest, facts: &Facts) -> Option<String> {
    let (zone, policies) = (facts.zone.present()?, facts.policies.present()?);
    let mut status = ProtectionRequestStatus::default();
    let governing = policy::governing(policies, zone, new);
    policy::report(new, governing, &mut status, Timestamp::UNIX_EPOCH);
    status.conditions.pop().map(|c| c.message)
}

/// PR-7.
fn chosen(old: &ProtectionRequest, new: &ProtectionRequest) -> Result<(), Stop> {
    let (was, is) = (&old.spec, &new.spec);
    const VM: &str = "spec.vmName and spec.vmNamespace are immutable";
    fixed(&was.vm_name, &is.vm_name, "spec.vmName", VM)?;
    fixed(&was.vm_namespace, &is.vm_namespace, "spec.vmNamespace", VM)?;
    fixed(
        &was.replication_protocol,
        &is.replication_protocol,
        "spec.replicationProtocol",
        "spec.replicationProtocol is immutable",
    )?;
    fixed(&was.rpo, &is.rpo, "spec.rpo", "spec.rpo is immutable")?;
    fixed(
        &was.replication_policy_ref,
        &is.replication_policy_ref,
        "spec.replicationPolicyRef",
        "spec.replicationPolicyRef is immutable",
    )?;
    fixed(
        &was.sync_mode,
        &is.sync_mode,
        "spec.syncMode",
        "spec.syncMode is immutable",
    )?;
    fixed(
        &was.placement,
        &is.placement,
        "spec.placement",
        "spec.placement is immutable",
    )
}

/// PR-9. The finalizer waits for the same; this says so before the deletion has begun for good.
fn delete(old: &ProtectionRequest, facts: &Facts) -> Result<(), Stop> {
    let request = name(&old.metadata);
    let what = format!("whether a failover moves ProtectionRequest {request}");
    match known(&facts.failover, &what)? {
        None => Ok(()),
        Some(failover) => {
            let message =
                format!("ProtectionRequest {request} is part of active FailoverRequest {failover}");
            Err(Stop::conflict("", message).help(format!(
                "Delete it when that has ended: kubectl -n {} get failoverrequest {failover}",
                namespace(&old.metadata)
            )))
        }
    }
}

//! KubeVirt VirtualMachineInstanceMigrations, on a workload cluster: VM-1, the live migration of a
//! protected VM is denied, since its disks are on one node [S1]. That is denied to everybody, the product
//! included, and to KubeVirt's own evacuation: a drain of that node does not complete [S1].
//!
//! Unlike a change of a VM, a migration whose VM could not be looked at is refused: it is asked for again
//! by whoever needs it, and one that has begun breaks the replication.

use farshore_api::DRBDResource;
use serde_json::Value;

use super::virtual_machine::{Protection, title};
use super::{Asked, Change, Stop, Verdict, known};
use crate::Seen;

/// What a creation depends on; nothing else is asked about.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The VirtualMachine of the instance that shall move: of its namespace, with its name.
    pub vm: Seen<Value>,
    /// The DRBDResource of that VM.
    pub resource: Seen<DRBDResource>,
}

/// Answers.
pub fn judge(asked: &Asked<Value>, facts: &Facts) -> Verdict {
    let Change::Create { new } = &asked.change else {
        return Verdict::default();
    };
    Verdict::of(create(new, facts), Vec::new())
}

fn create(new: &Value, facts: &Facts) -> Result<(), Stop> {
    let instance = new.pointer("/spec/vmiName").and_then(Value::as_str);
    let Some(instance) = instance.filter(|i| !i.is_empty()) else {
        // KubeVirt refuses it in its own words.
        return Ok(());
    };
    let title = title(new);
    let namespace = title.split('/').next().unwrap_or_default();
    let vm = format!("VirtualMachine {namespace}/{instance}");
    match Protection::of(facts.vm.present(), &facts.resource) {
        Protection::No => {}
        Protection::Unknown(_) => {
            known(&facts.resource, &format!("the DRBDResource of {vm}"))?;
        }
        Protection::Yes => {
            let message = format!(
                "live migration of {vm} is not allowed: it is protected by Site Recovery and pinned to node {}",
                node(facts).unwrap_or("(not known)")
            );
            return Err(Stop::forbidden("spec.vmiName", message).help(
                "To empty the node, move the VM's group to the other site with a FailoverRequest, or stop the VM.",
            ));
        }
    }
    known(&facts.vm, &vm)?;
    Ok(())
}

/// The node that the VM is pinned to.
fn node(facts: &Facts) -> Option<&str> {
    let bound = facts
        .resource
        .present()
        .and_then(|r| r.spec.node_name.as_deref());
    let selected = || {
        let selector = facts
            .vm
            .present()?
            .pointer("/spec/template/spec/nodeSelector")?;
        selector.get("kubernetes.io/hostname")?.as_str()
    };
    bound.or_else(selected)
}

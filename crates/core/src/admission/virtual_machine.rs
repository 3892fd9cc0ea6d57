//! KubeVirt VirtualMachines that are protected, on a workload cluster.
//!
//! | rule | what | from |
//! | --- | --- | --- |
//! | VM-2 | where it runs stays | cold migration is denied [S1], the rule proposed |
//! | VM-3 | its replicated volumes stay | proposed |
//! | VM-4 | the standby copy is started by a failover alone | proposed |
//! | VM-5 | it is not deleted | proposed |
//!
//! A VM is protected when it says so itself, by the annotation `protected-by`, which is written before
//! anything else is done to it; or when a DRBDResource that stays is there for it. So it is known without
//! the resource in all but one case, and of an unmarked VM whose resource could not be read nothing is
//! refused: an outage of the product never blocks VMs that have nothing to do with it (proposed). It gets a
//! warning. The run state needs the resource itself, which alone says whose turn it is.
//!
//! The product's own processes pass: they swap volumes, pin, start and delete. A VM that is being deleted
//! passes too. The namespace controller and the garbage collector may delete a VM: a namespace that is
//! going takes its disks along whatever is refused here. Annotations are no `spec`, so the mark can be taken
//! off by hand; that is the way out when the ProtectionRequest is lost, and the refusal of a deletion says
//! so.

use farshore_api::drbd::Role;
use farshore_api::meta::annotations;
use farshore_api::{DRBDResource, names};
use serde_json::Value;

use super::{Asked, Change, Ours, Reviewed, Stop, Verdict, known};
use crate::Seen;
use crate::protection::disks;
use crate::vm::{self, Source};

/// What the answers depend on: changes of run state, placement and volumes, and deletions, look at the
/// resource; the rest does not.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The product on this cluster.
    pub ours: Ours,
    /// The DRBDResource of the VM: the one of its namespace whose `vmRef` names it.
    pub resource: Seen<DRBDResource>,
}

/// Whether a VM is under protection, as far as can be seen.
pub(super) enum Protection {
    Yes,
    No,
    Unknown(String),
}

impl Protection {
    /// From the VM, where it was seen, and its DRBDResource. One that is on its way out protects nothing:
    /// the VM has got its own disks back before.
    pub(super) fn of(vm: Option<&Value>, resource: &Seen<DRBDResource>) -> Self {
        if vm.is_some_and(|vm| disks::owner(vm).is_some()) {
            return Self::Yes;
        }
        match resource {
            Seen::Present(resource) if resource.is_leaving() && vm.is_some() => Self::No,
            Seen::Present(_) => Self::Yes,
            Seen::Absent => Self::No,
            Seen::Unknown(why) => Self::Unknown(why.clone()),
        }
    }
}

/// Answers.
pub fn judge(asked: &Asked<Value>, facts: &Facts) -> Verdict {
    if asked.passes() || facts.ours.has(&asked.by) {
        return Verdict::default();
    }
    match &asked.change {
        // A VM that is made again over the disks of a standby.
        Change::Create { new } if !vm::is_halted(new) => guarded(new, facts, || start(new, facts)),
        Change::Create { .. } => Verdict::default(),
        Change::Update { old, .. } if old.is_leaving() => Verdict::default(),
        Change::Update { old, new } => update(old, new, facts),
        Change::Delete { old } => guarded(old, facts, || Err(no_deletion(old))),
    }
}

/// The rules for a VM if it is protected.
fn guarded(vm: &Value, facts: &Facts, rules: impl FnOnce() -> Result<(), Stop>) -> Verdict {
    match Protection::of(Some(vm), &facts.resource) {
        Protection::Yes => Verdict::of(rules(), Vec::new()),
        Protection::No => Verdict::default(),
        Protection::Unknown(why) => Verdict::of(
            Ok(()),
            vec![format!(
                "whether VirtualMachine {} is protected by Site Recovery could not be read ({why}): nothing was checked",
                title(vm)
            )],
        ),
    }
}

fn update(old: &Value, new: &Value, facts: &Facts) -> Verdict {
    let moved = PLACEMENT
        .into_iter()
        .find(|f| placed(old, f) != placed(new, f));
    let volumes = vm::volumes(old) != vm::volumes(new);
    let started = vm::is_halted(old) && !vm::is_halted(new);
    if moved.is_none() && !volumes && !started {
        return Verdict::default();
    }
    let mut verdict = guarded(old, facts, || {
        if let Some(field) = moved {
            let message = format!(
                "VirtualMachine {} is protected by Site Recovery: node placement cannot be changed",
                title(old)
            );
            return Err(Stop::forbidden(
                &format!("spec.template.spec.{field}"),
                message,
            ));
        }
        replicated_volumes(old, new, facts)?;
        if started { start(old, facts) } else { Ok(()) }
    });
    let protected = matches!(Protection::of(Some(old), &facts.resource), Protection::Yes);
    if verdict.is_allowed() && protected {
        verdict.warnings.extend(added(old, new));
    }
    verdict
}

/// What decides where a VM runs, in its template's spec.
const PLACEMENT: [&str; 3] = ["nodeSelector", "affinity", "nodeName"];

/// A field of [`PLACEMENT`]; one that is empty is as good as none.
fn placed<'a>(vm: &'a Value, field: &str) -> Option<&'a Value> {
    vm.pointer("/spec/template/spec")?
        .get(field)
        .filter(|value| match value {
            Value::Null => false,
            Value::String(text) => !text.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        })
}

/// VM-3. Replicated is what runs from its replicated disk already, and what the resource names.
fn replicated_volumes(old: &Value, new: &Value, facts: &Facts) -> Result<(), Stop> {
    let originals = disks::unprotected_volumes(old);
    let named = |name: &str| {
        let resource = facts.resource.present();
        resource.is_some_and(|r| r.spec.volumes.iter().any(|v| v.name == name))
    };
    let (before, after) = (vm::volumes(old), vm::volumes(new));
    for (volume, original) in before.iter().zip(&originals) {
        let replicated = volume.source != original.source || named(&volume.name);
        if replicated && !after.contains(volume) {
            let message = format!(
                "VirtualMachine {} is protected by Site Recovery: replicated volumes cannot be changed; unprotect it first",
                title(old)
            );
            return Err(Stop::forbidden("spec.template.spec.volumes", message));
        }
    }
    Ok(())
}

/// Disks that come to a protected VM: nothing copies them.
fn added(old: &Value, new: &Value) -> Vec<String> {
    let before = vm::volumes(old);
    let came = vm::volumes(new).into_iter().filter(|v| {
        matches!(v.source, Source::Claim(_) | Source::Hotplugged) && !before.contains(v)
    });
    came.map(|v| {
        format!(
            "volume {} is not replicated: the ProtectionRequest turns Degraded and its group does not fail over until it is detached",
            v.name
        )
    })
    .collect()
}

/// VM-4. `vm` is what stands there, or shall.
fn start(vm: &Value, facts: &Facts) -> Result<(), Stop> {
    let what = format!("the DRBDResource of VirtualMachine {}", title(vm));
    match known(&facts.resource, &what)? {
        Some(resource) if resource.spec.role == Role::Secondary => {
            let message = format!(
                "VirtualMachine {} is the standby copy; it can only be started by a failover",
                title(vm)
            );
            Err(Stop::forbidden("spec", message).help(format!(
                "Create a FailoverRequest whose spec.targetCluster is {} in namespace {} of the hub.",
                resource.spec.cluster,
                names::zone_namespace(&resource.spec.zone)
            )))
        }
        _ => Ok(()),
    }
}

/// VM-5.
fn no_deletion(vm: &Value) -> Stop {
    let message = format!(
        "VirtualMachine {} is protected by Site Recovery; delete its ProtectionRequest first",
        title(vm)
    );
    let owner = disks::owner(vm).unwrap_or("of this VM");
    Stop::forbidden("", message).help(format!(
        "ProtectionRequest {owner} is on the hub. If it is gone for good: remove the DRBDResource of this VM and the annotation {}.",
        annotations::PROTECTED_BY
    ))
}

/// `namespace/name` of an object.
pub(super) fn title(object: &Value) -> String {
    let part = |field: &str| {
        let value = object.get("metadata").and_then(|m| m.get(field));
        value.and_then(Value::as_str).unwrap_or_default()
    };
    format!("{}/{}", part("namespace"), part("name"))
}

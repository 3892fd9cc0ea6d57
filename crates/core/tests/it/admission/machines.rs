//! VirtualMachines and their migrations.

use farshore_api::DRBDResource;
use farshore_core::Seen;
use farshore_core::admission::{Asked, migration, virtual_machine};
use farshore_core::vm::set;
use serde_json::{Value, json};

use super::world::*;
use super::{Case, could_not_read, table};

pub fn vm_facts(resource: Seen<DRBDResource>) -> virtual_machine::Facts {
    virtual_machine::Facts {
        ours: on_workload(),
        resource,
    }
}

fn edited(vm: &Value, path: &[&str], value: Value) -> Asked<Value> {
    update(vm, |vm| set(vm, path, value))
}

const POD: [&str; 3] = ["spec", "template", "spec"];

fn in_pod(field: &str) -> Vec<&str> {
    POD.into_iter().chain([field]).collect()
}

#[test]
fn a_protected_vm_stays_where_it_is_and_keeps_its_disks() {
    use virtual_machine::judge;
    let primary = || vm_facts(Seen::Present(resource("Primary", &[7000, 7001])));
    let standby = || vm_facts(Seen::Present(resource("Secondary", &[7000, 7001])));
    let (silent, none) = (vm_facts(unknown()), vm_facts(Seen::Absent));
    let (plain, vm) = (machine(), protected_machine());
    let moved = |vm: &Value, field: &str| edited(vm, &in_pod(field), json!({"a": "b"}));
    let volumes = |vm: &Value, change: fn(&mut Vec<Value>)| {
        update(vm, |vm| {
            let all = vm.pointer_mut("/spec/template/spec/volumes");
            change(all.and_then(Value::as_array_mut).unwrap());
        })
    };
    let swap = |all: &mut Vec<Value>| {
        all[0] = json!({"name": "root", "persistentVolumeClaim": {"claimName": "other"}})
    };
    let add = |all: &mut Vec<Value>| {
        all.push(json!({"name": "more", "persistentVolumeClaim": {"claimName": "more"}}))
    };
    let start = |vm: &Value| {
        edited(
            &halted(vm.clone()),
            &["spec", "runStrategy"],
            json!("Always"),
        )
    };
    let new_standby = create(&vm);
    let half: DRBDResource = leaving(&resource("Primary", &[7000, 7001]));
    let place = Some(
        "VirtualMachine shop/db01 is protected by Site Recovery: node placement cannot be changed",
    );
    let disks = Some(
        "VirtualMachine shop/db01 is protected by Site Recovery: replicated volumes cannot be changed; unprotect it first",
    );
    let copy =
        Some("VirtualMachine shop/db01 is the standby copy; it can only be started by a failover");
    let gone = Some(
        "VirtualMachine shop/db01 is protected by Site Recovery; delete its ProtectionRequest first",
    );
    let cases = [
        Case(
            "VM-2 nodeSelector",
            judge(&moved(&vm, "nodeSelector"), &primary()),
            place,
        ),
        Case(
            "VM-2 affinity",
            judge(&moved(&vm, "affinity"), &silent),
            place,
        ),
        Case(
            "VM-2 nodeName, not marked yet",
            judge(
                &edited(&plain, &in_pod("nodeName"), json!("n2")),
                &primary(),
            ),
            place,
        ),
        Case(
            "VM-2 an empty affinity is none",
            judge(&edited(&vm, &in_pod("affinity"), json!({})), &primary()),
            None,
        ),
        Case(
            "VM-2 an unprotected VM",
            judge(&moved(&plain, "nodeSelector"), &none),
            None,
        ),
        Case(
            "VM-2 unmarked, not read",
            judge(&moved(&plain, "nodeSelector"), &silent),
            None,
        ),
        Case(
            "VM-2 by the manager",
            judge(&by(REMOTE, moved(&vm, "nodeSelector")), &silent),
            None,
        ),
        Case(
            "VM-3 a disk replaced",
            judge(&volumes(&vm, swap), &silent),
            disks,
        ),
        Case(
            "VM-3 a disk removed",
            judge(&volumes(&vm, |all| drop(all.remove(1))), &none),
            disks,
        ),
        Case(
            "VM-3 a disk replaced before the swap",
            judge(&volumes(&plain, swap), &primary()),
            disks,
        ),
        Case(
            "VM-3 a disk that stays on its side",
            judge(&volumes(&vm, |all| drop(all.pop())), &primary()),
            None,
        ),
        Case(
            "VM-3 order of disks",
            judge(&volumes(&vm, |all| all.swap(0, 1)), &primary()),
            None,
        ),
        Case("a disk added", judge(&volumes(&vm, add), &primary()), None),
        Case(
            "a disk added to an unprotected VM",
            judge(&volumes(&plain, add), &none),
            None,
        ),
        Case(
            "VM-3 by the manager",
            judge(&by(REMOTE, volumes(&vm, swap)), &silent),
            None,
        ),
        Case(
            "more CPUs",
            judge(&edited(&vm, &in_pod("domain"), json!({"cpu": 4})), &silent),
            None,
        ),
        Case("VM-4 standby started", judge(&start(&vm), &standby()), copy),
        Case(
            "VM-4 standby made manual",
            judge(
                &edited(
                    &halted(vm.clone()),
                    &["spec", "runStrategy"],
                    json!("Manual"),
                ),
                &standby(),
            ),
            copy,
        ),
        Case(
            "VM-4 standby made anew, running",
            judge(&new_standby, &standby()),
            copy,
        ),
        Case(
            "VM-4 standby made anew, halted",
            judge(&create(&halted(vm.clone())), &standby()),
            None,
        ),
        Case(
            "VM-4 the mark is off, the resource is there",
            judge(&start(&plain), &standby()),
            copy,
        ),
        Case(
            "VM-4 active side started",
            judge(&start(&vm), &primary()),
            None,
        ),
        Case(
            "VM-4 standby stopped",
            judge(
                &edited(&vm, &["spec", "runStrategy"], json!("Halted")),
                &standby(),
            ),
            None,
        ),
        Case(
            "VM-4 by the group controller",
            judge(&by(WORKLOAD, start(&vm)), &standby()),
            None,
        ),
        Case("VM-4 unprotected VM", judge(&start(&plain), &none), None),
        Case("VM-5 deleted", judge(&delete(&vm), &none), gone),
        Case(
            "VM-5 deleted, not marked",
            judge(&delete(&plain), &primary()),
            gone,
        ),
        Case(
            "VM-5 deleted when it has its disks back",
            judge(&delete(&plain), &vm_facts(Seen::Present(half))),
            None,
        ),
        Case("VM-5 unprotected VM", judge(&delete(&plain), &none), None),
        Case(
            "VM-5 unmarked, not read",
            judge(&delete(&plain), &silent),
            None,
        ),
        Case(
            "VM-5 by the manager",
            judge(&by(REMOTE, delete(&vm)), &standby()),
            None,
        ),
        Case(
            "VM-5 its namespace goes",
            judge(&by(NAMESPACES, delete(&vm)), &standby()),
            None,
        ),
        Case(
            "VM-5 being deleted already",
            judge(&delete(&leaving(&vm)), &standby()),
            None,
        ),
        Case(
            "a VM on its way out",
            judge(&moved(&leaving(&vm), "nodeSelector"), &standby()),
            None,
        ),
        Case(
            "the mark taken off",
            judge(
                &update(&vm, |vm| {
                    farshore_core::vm::remove(vm, &["metadata", "annotations"])
                }),
                &standby(),
            ),
            None,
        ),
    ];
    insta::assert_snapshot!(table(&cases));
    assert!(could_not_read(
        &judge(&start(&vm), &silent),
        "DRBDResource of VirtualMachine shop/db01"
    ));
}

#[test]
fn a_protected_vm_is_not_migrated() {
    let asked = |instance: Value| {
        create(&json!({
            "kind": "VirtualMachineInstanceMigration", "metadata": {"name": "m", "namespace": "shop"},
            "spec": {"vmiName": instance},
        }))
    };
    let here = || Seen::Present(resource("Primary", &[7000, 7001]));
    let seen = |vm: Seen<Value>, resource: Seen<DRBDResource>| {
        migration::judge(&asked(json!("db01")), &migration::Facts { vm, resource })
    };
    let no = Some(
        "live migration of VirtualMachine shop/db01 is not allowed: it is protected by Site Recovery and pinned to node n1",
    );
    let (plain, marked) = (
        || Seen::Present(machine()),
        || Seen::Present(protected_machine()),
    );
    let all = migration::Facts {
        vm: marked(),
        resource: here(),
    };
    let cases = [
        Case("VM-1 protected", seen(marked(), here()), no),
        Case(
            "VM-1 marked, resource not read",
            seen(marked(), unknown()),
            no,
        ),
        Case(
            "VM-1 resource there, VM not read",
            seen(unknown(), here()),
            no,
        ),
        Case(
            "VM-1 by the product",
            migration::judge(&by(REMOTE, asked(json!("db01"))), &all),
            no,
        ),
        Case("VM-1 unprotected", seen(plain(), Seen::Absent), None),
        Case(
            "VM-1 has its disks back",
            seen(
                plain(),
                Seen::Present(leaving(&resource("Primary", &[7000]))),
            ),
            None,
        ),
        Case(
            "an instance without a VM",
            seen(Seen::Absent, Seen::Absent),
            None,
        ),
        Case(
            "no instance named",
            migration::judge(&asked(Value::Null), &all),
            None,
        ),
        Case("deleted", migration::judge(&delete(&json!({})), &all), None),
    ];
    insta::assert_snapshot!(table(&cases));
    let resource_unread = seen(plain(), unknown());
    assert!(could_not_read(
        &resource_unread,
        "the DRBDResource of VirtualMachine shop/db01"
    ));
    assert!(could_not_read(
        &seen(unknown(), Seen::Absent),
        "VirtualMachine shop/db01"
    ));
}

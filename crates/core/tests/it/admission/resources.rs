//! DRBDResources.

use farshore_api::DRBDResource;
use farshore_core::Seen;
use farshore_core::admission::drbd_resource;
use serde_json::json;

use super::world::*;
use super::{Case, could_not_read, table};

pub fn resource_facts() -> drbd_resource::Facts {
    let mut other = resource("Primary", &[7005, 7006]);
    other.metadata.name = Some("drbd-shop-web-00000000".into());
    drbd_resource::Facts {
        ours: on_workload(),
        others: Seen::Present(vec![other, resource("Primary", &[7000, 7001])]),
    }
}

#[test]
fn a_drbd_resource_is_the_products() {
    use drbd_resource::{BREAK_GLASS, judge};
    let facts = resource_facts();
    let old = resource("Secondary", &[7000, 7001]);
    let mut broken = old.clone();
    let glass = |text: &str| Some([(BREAK_GLASS.to_string(), text.to_string())].into());
    broken.metadata.annotations = glass("true");
    let mut half = old.clone();
    half.metadata.annotations = glass("no");
    let made = |ports: &[i32]| judge(&by(REMOTE, create(&resource("Primary", ports))), &facts);
    let edit = |change: fn(&mut DRBDResource)| judge(&by(REMOTE, update(&old, change)), &facts);
    let mut unbound = old.clone();
    unbound.spec.node_name = None;
    let bind = update(&unbound, |r| r.spec.node_name = Some("n2".into()));
    let managed = Some("DRBDResource is managed by Site Recovery");
    let node = Some("spec.nodeName is immutable once set");
    let named = Some("spec.zone, spec.cluster and spec.peerCluster are immutable");
    let cases = [
        Case(
            "DR-1 node changed",
            edit(|r| r.spec.node_name = Some("n2".into())),
            node,
        ),
        Case(
            "DR-1 node taken away",
            edit(|r| r.spec.node_name = None),
            node,
        ),
        Case("DR-1 bound", judge(&by(WORKLOAD, bind), &facts), None),
        Case(
            "vmRef",
            edit(|r| r.spec.vm_ref.name = "x".into()),
            Some("spec.vmRef is immutable"),
        ),
        Case("zone", edit(|r| r.spec.zone = "x".into()), named),
        Case("cluster", edit(|r| r.spec.cluster = "x".into()), named),
        Case(
            "peerCluster",
            edit(|r| r.spec.peer_cluster = "x".into()),
            named,
        ),
        Case(
            "roleEpoch back",
            edit(|r| r.spec.role_epoch = 2),
            Some(
                "spec.roleEpoch cannot go back from 3 to 2: the agent has carried out the later one",
            ),
        ),
        Case(
            "the flip",
            edit(|r| (r.spec.role, r.spec.role_epoch) = (parsed(json!("Primary")), 4)),
            None,
        ),
        Case(
            "paused by a person",
            judge(&update(&old, |r| r.spec.paused = true), &facts),
            None,
        ),
        Case(
            "DR-2 made by a person",
            judge(&create(&old), &facts),
            managed,
        ),
        Case("DR-2 made by the manager", made(&[7000, 7001]), None),
        Case(
            "DR-2 deleted by the local control plane",
            judge(&by(WORKLOAD, delete(&old)), &facts),
            managed,
        ),
        Case(
            "DR-2 deleted by a person",
            judge(&delete(&old), &facts),
            managed,
        ),
        Case(
            "DR-2 the glass is not broken",
            judge(&delete(&half), &facts),
            managed,
        ),
        Case(
            "DR-2 the glass is broken",
            judge(&delete(&broken), &facts),
            None,
        ),
        Case(
            "DR-2 deleted by the manager",
            judge(&by(REMOTE, delete(&old)), &facts),
            None,
        ),
        Case(
            "its namespace goes",
            judge(&by(NAMESPACES, delete(&old)), &facts),
            None,
        ),
        Case(
            "being deleted already",
            judge(&delete(&leaving(&old)), &facts),
            None,
        ),
        Case(
            "DR-4 a port of another",
            made(&[7000, 7005]),
            Some(
                "spec.volumes[1].port: port 7005 is taken by DRBDResource shop/drbd-shop-web-00000000; choose one that no other volume of this cluster has",
            ),
        ),
        Case(
            "DR-4 a port twice",
            made(&[7002, 7002]),
            Some(
                "spec.volumes[1].port: port 7002 is taken by spec.volumes[0] itself; choose one that no other volume of this cluster has",
            ),
        ),
        Case(
            "DR-4 a port of another, later",
            edit(|r| r.spec.volumes[0].port = 7006),
            Some(
                "spec.volumes[0].port: port 7006 is taken by DRBDResource shop/drbd-shop-web-00000000; choose one that no other volume of this cluster has",
            ),
        ),
    ];
    insta::assert_snapshot!(table(&cases));

    let blind = drbd_resource::Facts {
        ours: on_workload(),
        others: unknown(),
    };
    let new = by(REMOTE, create(&old));
    assert!(could_not_read(
        &judge(&new, &blind),
        "DRBDResources of this cluster"
    ));
    let role = by(REMOTE, update(&old, |r| r.spec.role_epoch = 4));
    assert!(
        judge(&role, &blind).is_allowed(),
        "a failover asks nobody about ports"
    );
}

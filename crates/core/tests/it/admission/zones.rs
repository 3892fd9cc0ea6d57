//! ProtectionZones; and who is who.

use farshore_api::ProtectionZone;
use farshore_core::Seen;
use farshore_core::admission::{Asked, Ours, Requester, Verdict, zone as of_zone};
use serde_json::json;

use super::world::*;
use super::{Case, could_not_read, table};

pub fn zone_facts(requests: usize) -> of_zone::Facts {
    of_zone::Facts {
        zones: Seen::Present(vec![]),
        requests: Seen::Present(requests),
    }
}

#[test]
fn a_zone_has_a_namespace_and_keeps_its_clusters() {
    use of_zone::judge;
    let new = |edit: fn(&mut ProtectionZone)| {
        let mut zone = bare_zone();
        edit(&mut zone);
        create(&zone)
    };
    let edit = |change: fn(&mut ProtectionZone)| update(&zone(), change);
    let free = zone_facts(0);
    let busy = zone_facts(3);
    let rival = of_zone::Facts {
        zones: Seen::Present(vec![{
            let mut other = zone();
            other.metadata.name = Some("first".into());
            other
        }]),
        ..zone_facts(0)
    };
    let network = |z: &mut ProtectionZone| {
        z.spec.clusters[1].replication_network = parsed(json!({"cidr": "10.0.0.0/24"}));
    };
    let gate = |z: &mut ProtectionZone| z.spec.feature_gates = [("Teleport".into(), true)].into();
    let mut gated = zone();
    gate(&mut gated);
    let ten = |z: &mut ProtectionZone| {
        z.spec.clusters[0].distribution_name = parsed(json!("RHEL-CoreOS-10"));
    };
    let mut old_fashioned = zone();
    network(&mut old_fashioned);
    ten(&mut old_fashioned);
    let widened = Some("spec.ports can only be widened: it must hold 7000 to 8000");
    let fixed = Some("spec.clusters: names and order of clusters are immutable");
    let teleport = Some(
        "spec.featureGates: there is no feature gate \"Teleport\"; there are CustomReplicationPolicy and ReplicationProtocolA",
    );
    let cases = [
        Case("a zone", judge(&new(|_| ()), &free), None),
        Case(
            "outside of dr-",
            judge(
                &new(|z| z.metadata.namespace = Some("default".into())),
                &free,
            ),
            Some("a ProtectionZone must be created in a namespace named dr-<name>"),
        ),
        Case(
            "in a namespace named dr-",
            judge(&new(|z| z.metadata.namespace = Some("dr-".into())), &free),
            Some("a ProtectionZone must be created in a namespace named dr-<name>"),
        ),
        Case(
            "beside another",
            judge(&new(|_| ()), &rival),
            Some("namespace dr-metro1 already contains ProtectionZone first"),
        ),
        Case(
            "two clusters of one name",
            judge(&new(|z| z.spec.clusters[1].name = "east".into()), &free),
            Some("spec.clusters: cluster names must be unique"),
        ),
        Case("an unknown gate", judge(&new(gate), &free), teleport),
        Case(
            "a known gate",
            judge(
                &new(|z| z.spec.feature_gates = [("ReplicationProtocolA".into(), true)].into()),
                &free,
            ),
            None,
        ),
        Case("RHEL CoreOS 10", judge(&new(ten), &free), None),
        Case("a replication network", judge(&new(network), &free), None),
        Case(
            "a cluster renamed",
            judge(&edit(|z| z.spec.clusters[1].name = "north".into()), &free),
            fixed,
        ),
        Case(
            "clusters swapped",
            judge(&edit(|z| z.spec.clusters.swap(0, 1)), &free),
            fixed,
        ),
        Case(
            "a Secret changed",
            judge(
                &edit(|z| z.spec.clusters[0].kubeconfig_secret_ref.name = "new".into()),
                &busy,
            ),
            None,
        ),
        Case(
            "another distribution",
            judge(&edit(ten), &free),
            Some("spec.clusters[0].distributionName is immutable"),
        ),
        Case(
            "another network, VMs protected",
            judge(&edit(network), &busy),
            Some(
                "spec.clusters[1].replicationNetwork cannot be changed while zone metro1 has 3 ProtectionRequests; unprotect them first",
            ),
        ),
        Case("another network", judge(&edit(network), &free), None),
        Case(
            "fewer ports",
            judge(&edit(|z| z.spec.ports.end = 7999), &busy),
            widened,
        ),
        Case(
            "ports from further up",
            judge(&edit(|z| z.spec.ports.start = 7001), &busy),
            widened,
        ),
        Case("an unknown gate comes", judge(&edit(gate), &free), teleport),
        Case(
            "a network and RHEL CoreOS 10 stood there",
            judge(&update(&old_fashioned, |z| z.spec.paused = true), &busy),
            None,
        ),
        Case(
            "an unknown gate stood there",
            judge(&update(&gated, |z| z.spec.paused = true), &free),
            None,
        ),
        Case(
            "defaultPolicy changed",
            judge(
                &edit(|z| z.spec.default_policy = Some(Default::default())),
                &free,
            ),
            None,
        ),
        Case(
            "deleted with VMs",
            judge(&delete(&zone()), &busy),
            Some("zone metro1 still has 3 ProtectionRequests; unprotect them first"),
        ),
        Case("deleted without", judge(&delete(&zone()), &free), None),
        Case(
            "its namespace goes",
            judge(&by(NAMESPACES, delete(&zone())), &busy),
            None,
        ),
        Case(
            "being deleted already",
            judge(&delete(&leaving(&zone())), &busy),
            None,
        ),
    ];
    insta::assert_snapshot!(table(&cases));

    let blind = of_zone::Facts {
        zones: unknown(),
        requests: unknown(),
    };
    assert!(could_not_read(
        &judge(&new(|_| ()), &blind),
        "ProtectionZones of namespace"
    ));
    assert!(could_not_read(
        &judge(&delete(&zone()), &blind),
        "ProtectionRequests of namespace"
    ));
    assert!(could_not_read(
        &judge(&edit(network), &blind),
        "ProtectionRequests of namespace"
    ));
    assert!(judge(&edit(|z| z.spec.paused = true), &blind).is_allowed());
}

#[test]
fn ports_may_be_widened() {
    let mut narrow = zone();
    (narrow.spec.ports.start, narrow.spec.ports.end) = (7100, 7200);
    let edit = |start, end| {
        let asked = update(&narrow, |z| {
            (z.spec.ports.start, z.spec.ports.end) = (start, end)
        });
        of_zone::judge(&asked, &zone_facts(3)).is_allowed()
    };
    assert!(edit(7000, 8000) && edit(7100, 7201) && edit(7099, 7200));
    assert!(!edit(7101, 8000) && !edit(7000, 7199));
}

#[test]
fn the_product_is_known_by_the_service_accounts_of_its_charts() {
    let charts = format!("{}/../../charts", env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(format!("{charts}/{path}")).unwrap();
    for (chart, account) in [
        (
            "site-recovery-manager-control-plane/templates/deployment.yaml",
            "manager-control-plane",
        ),
        (
            "site-recovery-protectionzone-controller/templates/deployment.yaml",
            "protectionzone-controller",
        ),
        (
            "site-recovery-workload-control-plane/templates/deployment.yaml",
            "workload-control-plane",
        ),
        (
            "site-recovery-workload-control-plane/templates/agent-daemonset.yaml",
            "drbd-node-agent",
        ),
    ] {
        let line = format!("serviceAccountName: {account}\n");
        assert!(read(chart).contains(&line), "{chart}");
        let is = |ours: &Ours, namespace: &str| {
            ours.has(&user(&format!(
                "system:serviceaccount:{namespace}:{account}"
            )))
        };
        let known = [
            is(&on_hub(), NS),
            is(&on_hub(), "site-recovery-system"),
            is(&on_workload(), "trilio-site-recovery-system"),
        ];
        assert_eq!(
            known.iter().filter(|k| **k).count(),
            1,
            "{account}: {known:?}"
        );
    }
    let grouped = Requester {
        username: "x".into(),
        groups: vec!["dr-managers".into()],
    };
    assert!(on_workload().manager.has(&grouped) && !on_hub().has(&grouped));
}

#[test]
fn a_server_knows_before_it_reads_anything_what_passes() {
    let said: Verdict = of_zone::judge(
        &update(&zone(), |z| z.status = None),
        &of_zone::Facts {
            zones: unknown(),
            requests: unknown(),
        },
    );
    assert_eq!(said, Verdict::default());
    let asked: Asked<ProtectionZone> = update(&zone(), |z| z.metadata.finalizers = None);
    assert!(asked.passes());
    assert!(!create(&zone()).passes() && !delete(&zone()).passes());
    assert!(by(COLLECTOR, delete(&zone())).passes() && delete(&leaving(&zone())).passes());
    assert!(!by(COLLECTOR, update(&zone(), |z| z.spec.paused = true)).passes());
}

//! Cases as data: `cases/*.yaml` in, the decision out as a snapshot.

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A case is one YAML file: what is observed.
#[test]
fn cases() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/placement/cases");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let seen: Observed =
            serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        insta::with_settings!({snapshot_path => "cases", prepend_module_to_snapshot => false, description => text.lines().next().unwrap_or_default()}, {
            insta::assert_yaml_snapshot!(name, decide(&seen, now()));
        });
    }
}

#[test]
fn metadata_is_one_mib_for_little_and_grows_with_the_data() {
    for (data, expect) in [
        (1_i64, 1_i64),
        (1 << 30, 1),
        (10 << 30, 1),
        (31 << 30, 2),
        (100 << 30, 4),
        (1 << 40, 33),
    ] {
        assert_eq!(metadata_bytes(data), expect << 20, "{data}");
    }
}

fn seen(nodes: Vec<Node>, vm_node: Option<String>, hint: Option<String>) -> Observed {
    let resource = serde_json::from_value(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDResource",
        "metadata": {"name": "drbd-shop-db01-0011aabb", "namespace": "shop", "uid": "u1", "generation": 1},
        "spec": {
            "vmRef": {"name": "db01"}, "zone": "metro1", "cluster": "west", "peerCluster": "east", "role": "Secondary",
            "roleEpoch": 1, "nodeHint": hint,
            "volumes": [{"index": 0, "name": "root", "pvcName": "db01-root", "storageClass": "lab-block", "sizeBytes": 1_048_576, "port": 7000}],
        },
    }))
    .unwrap();
    Observed {
        resource,
        cluster: "west".into(),
        nodes,
        vm_node,
        consumer_node: None,
        volumes: vec![VolumeClaims::default()],
        anchor: None,
    }
}

prop_compose! {
    fn any_node()(n in 0..5_usize, ready: bool, cordoned: bool, tainted: bool, startup: bool, bound in 0..3_usize, address: bool) -> Node {
        let mut taints = Vec::new();
        if tainted { taints.push("example.com/special".to_string()); }
        if startup { taints.push(farshore_api::meta::taints::NOT_READY.to_string()); }
        Node { name: format!("n{n}"), address: address.then(|| "10.0.0.1".to_string()), ready, since: None, cordoned, taints, bound }
    }
}

/// What the API server holds after the steps were carried out.
fn carry_out(seen: &Observed, decision: &Decision) -> Observed {
    let mut after = seen.clone();
    let claim = |new: &NewClaim| Claim {
        uid: format!("uid-{}", new.name),
        bytes: new.bytes,
        block: true,
        bound: true,
        deleting: false,
        owner: new.owned.then(|| "u1".to_string()),
    };
    for step in &decision.steps {
        match step {
            Step::AddFinalizer => {
                after.resource.metadata.finalizers = Some(vec![finalizers::PLACEMENT.into()])
            }
            Step::RemoveFinalizer => after.resource.metadata.finalizers = None,
            Step::Bind { node, address } => {
                after.resource.spec.node_name = Some(node.clone());
                after.resource.spec.local = Some(farshore_api::drbd_resource::Endpoint {
                    node_name: node.clone(),
                    address: address.clone(),
                });
            }
            Step::CreateClaim(new) if new.owned => after.volumes[0].metadata = Some(claim(new)),
            Step::CreateClaim(new) => after.volumes[0].backing = Some(claim(new)),
            Step::CreateAnchor(new) => {
                after.anchor = Some(Anchor {
                    uid: "a1".into(),
                    owner: Some("u1".into()),
                    node: Some(new.node.clone()),
                    phase: "Running".into(),
                    deleting: false,
                    message: None,
                });
            }
            Step::DeleteAnchor { .. } => after.anchor = None,
        }
    }
    if let Some(status) = &decision.status {
        let old = after.resource.status.get_or_insert_default();
        old.anchor_pod.clone_from(&status.anchor_pod);
        old.conditions.clone_from(&status.conditions);
    }
    after
}

proptest! {
    #[test]
    fn only_a_usable_node_is_ever_bound(nodes in prop::collection::vec(any_node(), 0..5), vm in prop::option::of(0..5_usize), hint in prop::option::of(0..5_usize)) {
        let seen = seen(nodes.clone(), vm.map(|n| format!("n{n}")), hint.map(|n| format!("n{n}")));
        for step in decide(&seen, now()).steps {
            if let Step::Bind { node, .. } = step {
                let good = nodes.iter().any(|n| n.name == node && n.ready && !n.cordoned && n.address.is_some() && !n.taints.iter().any(|t| t.starts_with("example.com")));
                prop_assert!(good, "{node} of {nodes:?}");
            }
        }
    }

    #[test]
    fn placement_settles_and_then_does_nothing(nodes in prop::collection::vec(any_node(), 1..5)) {
        let mut world = seen(nodes, None, None);
        for _ in 0..4 {
            let decision = decide(&world, now());
            world = carry_out(&world, &decision);
        }
        let last = decide(&world, now());
        prop_assert_eq!(&last.steps, &vec![]);
        prop_assert_eq!(&last.notes, &vec![]);
        let old = world.resource.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default();
        prop_assert_eq!(last.status.unwrap().conditions, old);
    }

    #[test]
    fn nothing_is_taken_back_while_the_agent_holds_the_resource(role in prop::sample::select(vec![farshore_api::drbd::Role::Primary, farshore_api::drbd::Role::Secondary])) {
        let node = Node { name: "n1".into(), address: Some("10.0.0.1".into()), ready: true, ..Node::default() };
        let mut world = seen(vec![node], None, None);
        let placed = decide(&world, now());
        world = carry_out(&world, &placed);
        world.resource.spec.role = role;
        world.resource.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now()));
        world.resource.metadata.finalizers = Some(vec![finalizers::DRBD_TEARDOWN.into(), finalizers::PLACEMENT.into()]);
        prop_assert_eq!(decide(&world, now()).steps, vec![]);
        world.resource.metadata.finalizers = Some(vec![finalizers::PLACEMENT.into()]);
        let anchor = Step::DeleteAnchor { name: "drbd-anchor-0011aabb".into(), uid: "a1".into() };
        prop_assert_eq!(decide(&world, now()).steps, vec![anchor, Step::RemoveFinalizer]);
    }
}

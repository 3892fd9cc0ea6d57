//! The manifests of each chart.

use farshore_chart::{
    Chart, MANAGER_CONTROL_PLANE, PROTECTIONZONE_CONTROLLER, Release, WORKLOAD_CONTROL_PLANE,
    merged,
};
use serde_json::{Value, json};

fn render(chart: &str, release: &str, namespace: &str, values: Value) -> Vec<Value> {
    let release = Release {
        name: release.into(),
        namespace: namespace.into(),
    };
    Chart::embedded(chart)
        .unwrap()
        .render(&release, &values)
        .unwrap()
}

fn zone() -> Vec<Value> {
    render(
        PROTECTIONZONE_CONTROLLER,
        "site-recovery",
        "site-recovery-system",
        json!({}),
    )
}

fn manager() -> Vec<Value> {
    render(
        MANAGER_CONTROL_PLANE,
        "site-recovery-manager",
        "dr-metro1",
        json!({ "zone": { "name": "metro1" } }),
    )
}

fn workload(openshift: bool) -> Vec<Value> {
    let values = json!({ "zone": { "name": "metro1" }, "cluster": { "name": "east" }, "openshift": openshift });
    render(
        WORKLOAD_CONTROL_PLANE,
        "site-recovery",
        "trilio-site-recovery-system",
        values,
    )
}

fn one<'a>(manifests: &'a [Value], kind: &str) -> &'a Value {
    let found: Vec<&Value> = manifests.iter().filter(|m| m["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found[0]
}

#[test]
fn the_protectionzone_controller_chart_renders_as_recorded() {
    insta::assert_yaml_snapshot!(zone());
}

#[test]
fn the_manager_chart_renders_as_recorded() {
    insta::assert_yaml_snapshot!(manager());
}

#[test]
fn the_workload_chart_renders_as_recorded() {
    insta::assert_yaml_snapshot!(workload(false));
}

#[test]
fn manifests_come_in_helms_install_order_and_carry_its_marks() {
    for manifests in [zone(), manager(), workload(false)] {
        let kinds: Vec<&str> = manifests
            .iter()
            .map(|m| m["kind"].as_str().unwrap())
            .collect();
        let workload = kinds
            .iter()
            .position(|k| *k == "Deployment" || *k == "DaemonSet")
            .unwrap();
        assert_eq!(kinds[0], "ServiceAccount", "{kinds:?}");
        assert!(
            kinds[workload..]
                .iter()
                .all(|k| *k == "Deployment" || *k == "DaemonSet"),
            "{kinds:?}"
        );
        for manifest in &manifests {
            assert_eq!(
                manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"],
                "Helm"
            );
            assert!(manifest["metadata"]["annotations"]["meta.helm.sh/release-name"].is_string());
            assert!(
                manifest["metadata"]["annotations"]["meta.helm.sh/release-namespace"].is_string()
            );
        }
    }
}

#[test]
fn the_manager_is_one_container_named_manager() {
    let deployment = one(&manager(), "Deployment").clone();
    let containers = deployment["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0]["name"], "manager");
    assert_eq!(
        containers[0]["image"],
        format!("farshore/tsr-manager:{}", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(
        deployment["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"],
        "manager-control-plane"
    );
}

#[test]
fn the_node_agent_is_a_privileged_daemonset_of_the_documented_name() {
    let manifests = workload(false);
    let agent = one(&manifests, "DaemonSet");
    assert_eq!(
        agent["metadata"]["name"],
        "site-recovery-site-recovery-workload-control-plane-agent"
    );
    let pod = &agent["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["containers"][0]["securityContext"]["privileged"], true);
    assert!(
        pod["tolerations"]
            .as_array()
            .unwrap()
            .iter()
            .any(|t| t["key"] == "siterecovery.trilio.io/not-ready")
    );
    assert_eq!(pod.get("nodeSelector"), None);
}

#[test]
fn values_reach_the_pods() {
    let values = json!({
        "zone": { "name": "metro1" },
        "cluster": { "name": "east" },
        "image": { "repository": "registry.example/wm", "tag": "9" },
        "imagePullSecrets": [{ "name": "pull" }],
        "nodeSelector": { "role": "infra" },
        "tolerations": [{ "key": "infra", "operator": "Exists" }],
        "agent": { "tolerations": [{ "key": "gpu", "operator": "Exists" }], "nodeSelector": { "drbd": "yes" } },
    });
    let manifests = render(WORKLOAD_CONTROL_PLANE, "sr", "ns", values);
    let pod = &one(&manifests, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], "registry.example/wm:9");
    assert_eq!(pod["imagePullSecrets"], json!([{ "name": "pull" }]));
    assert_eq!(pod["nodeSelector"], json!({ "role": "infra" }));
    assert_eq!(
        pod["tolerations"],
        json!([{ "key": "infra", "operator": "Exists" }])
    );
    let agent = &one(&manifests, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(agent["tolerations"].as_array().unwrap().len(), 5);
    assert_eq!(agent["nodeSelector"], json!({ "drbd": "yes" }));
}

#[test]
fn on_openshift_and_only_there_the_agents_may_use_the_privileged_scc() {
    let uses = |manifests: &[Value]| {
        manifests
            .iter()
            .filter_map(|m| m["rules"].as_array())
            .flatten()
            .filter(|rule| rule["resources"] == json!(["securitycontextconstraints"]))
            .count()
    };
    assert_eq!((uses(&workload(false)), uses(&workload(true))), (0, 1));
}

#[test]
fn a_missing_required_value_is_named() {
    let release = Release {
        name: "m".into(),
        namespace: "dr-x".into(),
    };
    let error = Chart::embedded(MANAGER_CONTROL_PLANE)
        .unwrap()
        .render(&release, &json!({}))
        .unwrap_err()
        .to_string();
    assert!(error.contains("zone.name"), "{error}");
}

#[test]
fn given_values_go_over_defaults_and_null_removes() {
    let base = json!({ "a": { "b": 1, "c": 2 }, "d": [1, 2], "e": 5 });
    let over = json!({ "a": { "b": 3, "c": null }, "d": [7], "f": true });
    assert_eq!(
        merged(&base, &over),
        json!({ "a": { "b": 3 }, "d": [7], "e": 5, "f": true })
    );
}

#[test]
fn every_binding_refers_to_a_role_and_an_account_of_its_chart() {
    for manifests in [zone(), manager(), workload(true)] {
        let has = |kind: &str, name: &Value| {
            manifests
                .iter()
                .any(|m| m["kind"] == kind && m["metadata"]["name"] == *name)
        };
        for binding in manifests
            .iter()
            .filter(|m| m["kind"].as_str().unwrap().ends_with("RoleBinding"))
        {
            let role = &binding["roleRef"];
            assert!(has(role["kind"].as_str().unwrap(), &role["name"]), "{role}");
            for subject in binding["subjects"].as_array().unwrap() {
                assert!(has("ServiceAccount", &subject["name"]), "{subject}");
            }
        }
        for pod in manifests
            .iter()
            .filter_map(|m| m.pointer("/spec/template/spec"))
        {
            assert!(has("ServiceAccount", &pod["serviceAccountName"]));
        }
    }
}

#[test]
fn selectors_choose_the_pods_of_their_own_workload_only() {
    let manifests = workload(false);
    let part = |kind: &str, path: &str| one(&manifests, kind).pointer(path).unwrap().clone();
    for kind in ["Deployment", "DaemonSet"] {
        let selector = part(kind, "/spec/selector/matchLabels");
        for other in ["Deployment", "DaemonSet"] {
            let labels = part(other, "/spec/template/metadata/labels");
            let chosen = selector
                .as_object()
                .unwrap()
                .iter()
                .all(|(k, v)| labels[k] == *v);
            assert_eq!(chosen, kind == other);
        }
    }
}

#[test]
fn roles_grant_no_wildcard() {
    for manifests in [zone(), manager(), workload(true)] {
        for rule in manifests
            .iter()
            .filter_map(|m| m["rules"].as_array())
            .flatten()
        {
            assert!(!rule.to_string().contains('*'), "{rule}");
        }
    }
}

/// Kubernetes lets nobody grant what they do not hold themselves.
#[test]
fn the_zone_controller_holds_all_that_the_manager_is_granted() {
    let held: Vec<Value> = zone()
        .iter()
        .filter(|m| m["kind"] == "ClusterRole")
        .flat_map(|m| m["rules"].as_array().unwrap().clone())
        .collect();
    let names = |rule: &Value, field: &str| -> Vec<String> {
        rule[field]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_str().unwrap().to_owned())
            .collect()
    };
    for rule in manager()
        .iter()
        .filter_map(|m| m["rules"].as_array())
        .flatten()
    {
        for group in names(rule, "apiGroups") {
            for resource in names(rule, "resources") {
                for verb in names(rule, "verbs") {
                    let covered = held.iter().any(|h| {
                        names(h, "apiGroups").contains(&group)
                            && names(h, "resources").contains(&resource)
                            && names(h, "verbs").contains(&verb)
                    });
                    assert!(covered, "{verb} {resource}.{group}");
                }
            }
        }
    }
}

fn same<T: serde::de::DeserializeOwned + serde::Serialize>(manifest: &Value) {
    let typed: T = serde_json::from_value(manifest.clone()).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), *manifest);
}

#[test]
fn every_manifest_has_only_fields_that_its_kind_knows() {
    use k8s_openapi::api::{apps::v1 as apps, core::v1 as core, rbac::v1 as rbac};
    for manifest in [zone(), manager(), workload(true)].iter().flatten() {
        match manifest["kind"].as_str().unwrap() {
            "ServiceAccount" => same::<core::ServiceAccount>(manifest),
            "ClusterRole" => same::<rbac::ClusterRole>(manifest),
            "ClusterRoleBinding" => same::<rbac::ClusterRoleBinding>(manifest),
            "Role" => same::<rbac::Role>(manifest),
            "RoleBinding" => same::<rbac::RoleBinding>(manifest),
            "Deployment" => same::<apps::Deployment>(manifest),
            "DaemonSet" => same::<apps::DaemonSet>(manifest),
            other => panic!("{other}"),
        }
    }
}

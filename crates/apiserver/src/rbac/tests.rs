use serde_json::{Value, json};

use super::defaults::default_roles;
use super::*;

fn request(verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> Attributes {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    Attributes {
        verb: verb.into(),
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
        path: String::new(),
    }
}

fn path(verb: &str, path: &str) -> Attributes {
    Attributes {
        verb: verb.into(),
        path: path.into(),
        ..Attributes::default()
    }
}

#[test]
fn rules_match_by_verb_group_resource_and_name() {
    let rule = json!({"verbs": ["get", "list"], "apiGroups": ["", "apps"], "resources": ["pods", "*/scale", "pods/log"]});
    for (attrs, expected) in [
        (request("get", "", "pods", "n", "x"), true),
        (request("watch", "", "pods", "n", ""), false),
        (request("get", "batch", "pods", "n", "x"), false),
        (request("get", "", "pods/log", "n", "x"), true),
        (request("get", "", "pods/exec", "n", "x"), false),
        (request("get", "apps", "deployments/scale", "n", "x"), true),
        (request("get", "apps", "deployments", "n", "x"), false),
        (path("get", "/pods"), false),
    ] {
        assert_eq!(rule_allows(&rule, &attrs), expected, "{attrs:?}");
    }
    let all = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
    assert!(rule_allows(
        &all,
        &request("deletecollection", "x.y", "things/status", "n", "")
    ));
    assert!(!rule_allows(&all, &path("get", "/metrics")));
    let named = json!({"verbs": ["*"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]});
    assert!(rule_allows(
        &named,
        &request("get", "", "secrets", "n", "a")
    ));
    assert!(!rule_allows(
        &named,
        &request("get", "", "secrets", "n", "b")
    ));
    assert!(!rule_allows(
        &named,
        &request("list", "", "secrets", "n", "")
    ));
    let paths = json!({"verbs": ["get"], "nonResourceURLs": ["/metrics", "/logs/*"]});
    assert!(
        rule_allows(&paths, &path("get", "/logs/a/b"))
            && rule_allows(&paths, &path("get", "/metrics"))
    );
    assert!(
        !rule_allows(&paths, &path("get", "/metrics/x"))
            && !rule_allows(&paths, &path("post", "/metrics"))
    );
}

fn role(name: &str, namespace: &str, rules: Value) -> Value {
    json!({"kind": "Role", "metadata": {"name": name, "namespace": namespace}, "rules": rules})
}

fn binding(name: &str, namespace: &str, role: (&str, &str), subject: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "roleRef": {"kind": role.0, "name": role.1}, "subjects": [subject]})
}

fn pods() -> Value {
    json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}])
}

fn decide(name: &str, groups: &[&str], attrs: &Attributes, policy: &Policy<'_>) -> Decision {
    let groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
    allowed(
        User {
            name,
            groups: &groups,
        },
        attrs,
        policy,
    )
}

#[test]
fn a_role_binding_holds_in_its_namespace_only() {
    let (role, bind) = (
        role("reader", "a", pods()),
        binding(
            "b",
            "a",
            ("Role", "reader"),
            json!({"kind": "ServiceAccount", "name": "sa"}),
        ),
    );
    let policy = Policy {
        roles: &[&role],
        role_bindings: &[&bind],
        ..Policy::default()
    };
    let who = "system:serviceaccount:a:sa";
    let yes = decide(who, &[], &request("list", "", "pods", "a", ""), &policy);
    assert_eq!(
        yes.reason,
        r#"RBAC: allowed by RoleBinding "b/a" of Role "reader" to ServiceAccount "sa/a""#
    );
    assert!(yes.allowed);
    for attrs in [
        request("list", "", "pods", "b", ""),
        request("list", "", "pods", "", ""),
        request("get", "", "pods", "a", "x"),
    ] {
        assert!(!decide(who, &[], &attrs, &policy).allowed, "{attrs:?}");
    }
    assert!(
        !decide(
            "system:serviceaccount:b:sa",
            &[],
            &request("list", "", "pods", "a", ""),
            &policy
        )
        .allowed
    );
}

#[test]
fn a_cluster_role_binding_holds_everywhere_and_a_role_binding_can_name_a_cluster_role() {
    let cluster = json!({"metadata": {"name": "cr"}, "rules": pods()});
    let everywhere = binding(
        "x",
        "",
        ("ClusterRole", "cr"),
        json!({"kind": "User", "name": "u"}),
    );
    let here = binding(
        "y",
        "a",
        ("ClusterRole", "cr"),
        json!({"kind": "Group", "name": "g"}),
    );
    let policy = Policy {
        cluster_roles: &[&cluster],
        cluster_role_bindings: &[&everywhere],
        role_bindings: &[&here],
        ..Policy::default()
    };
    for namespace in ["", "a", "b"] {
        let attrs = request("list", "", "pods", namespace, "");
        assert!(decide("u", &[], &attrs, &policy).allowed);
        assert_eq!(
            decide("v", &["g"], &attrs, &policy).allowed,
            namespace == "a"
        );
    }
}

#[test]
fn a_binding_without_its_role_says_so() {
    let bind = binding(
        "x",
        "",
        ("ClusterRole", "gone"),
        json!({"kind": "User", "name": "u"}),
    );
    let policy = Policy {
        cluster_role_bindings: &[&bind],
        ..Policy::default()
    };
    let no = decide("u", &[], &request("list", "", "pods", "", ""), &policy);
    assert_eq!(
        no,
        Decision {
            allowed: false,
            reason: "RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found".into()
        }
    );
}

#[test]
fn an_aggregated_role_has_the_rules_of_what_it_selects_and_survives_cycles() {
    let selecting = |name: &str, own: Value, select: &str| {
        json!({"metadata": {"name": name, "labels": own},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": select}}]}, "rules": []})
    };
    let top = selecting("top", json!({"to": "middle"}), "top");
    let middle = selecting("middle", json!({"to": "top"}), "middle");
    let leaf = json!({"metadata": {"name": "leaf", "labels": {"to": "middle"}}, "rules": pods()});
    let bind = binding(
        "x",
        "",
        ("ClusterRole", "top"),
        json!({"kind": "User", "name": "u"}),
    );
    let policy = Policy {
        cluster_roles: &[&top, &middle, &leaf],
        cluster_role_bindings: &[&bind],
        ..Policy::default()
    };
    assert!(decide("u", &[], &request("list", "", "pods", "n", ""), &policy).allowed);
    assert!(!decide("u", &[], &request("get", "", "pods", "n", ""), &policy).allowed);
}

#[test]
fn everybody_may_look_around_and_masters_may_do_anything() {
    let none = Policy::default();
    let authenticated = ["system:authenticated"];
    let unauthenticated = ["system:unauthenticated"];
    for url in ["/healthz", "/livez", "/readyz", "/version"] {
        assert!(
            decide(
                "system:anonymous",
                &unauthenticated,
                &path("get", url),
                &none
            )
            .allowed,
            "{url}"
        );
    }
    for url in ["/api", "/apis/apps/v1", "/openapi/v3"] {
        assert!(
            decide("u", &authenticated, &path("get", url), &none).allowed,
            "{url}"
        );
        assert!(
            !decide(
                "system:anonymous",
                &unauthenticated,
                &path("get", url),
                &none
            )
            .allowed,
            "{url}"
        );
    }
    let review = request(
        "create",
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "",
        "",
    );
    assert!(decide("u", &authenticated, &review, &none).allowed);
    assert!(
        !decide(
            "u",
            &authenticated,
            &request("list", "", "pods", "a", ""),
            &none
        )
        .allowed
    );
    assert!(
        decide(
            "root",
            &["system:masters"],
            &request("delete", "", "nodes", "", "x"),
            &none
        )
        .allowed
    );
}

#[test]
fn the_default_roles_can_be_bound() {
    let roles = default_roles();
    let bind = |role: &str| {
        binding(
            "x",
            "a",
            ("ClusterRole", role),
            json!({"kind": "User", "name": "u"}),
        )
    };
    for (role, verb, group, resource, expected) in [
        ("view", "list", "", "pods", true),
        ("view", "get", "", "secrets", false),
        ("view", "create", "", "pods", false),
        ("edit", "get", "", "secrets", true),
        ("edit", "patch", "apps", "deployments", true),
        (
            "edit",
            "create",
            "rbac.authorization.k8s.io",
            "roles",
            false,
        ),
        (
            "admin",
            "create",
            "rbac.authorization.k8s.io",
            "roles",
            true,
        ),
        ("admin", "get", "", "pods/log", true),
        ("cluster-admin", "delete", "x.y", "z", true),
    ] {
        let bind = bind(role);
        let policy = Policy {
            cluster_roles: roles,
            role_bindings: &[&bind],
            ..Policy::default()
        };
        assert_eq!(
            decide("u", &[], &request(verb, group, resource, "a", "n"), &policy).allowed,
            expected,
            "{role} {verb} {resource}"
        );
    }
}

#[test]
fn the_refusal_is_worded_like_the_real_one() {
    assert_eq!(
        forbidden_message("x", &request("list", "", "pods", "default", ""), ""),
        r#"pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "default""#
    );
    assert_eq!(
        forbidden_message(
            "x",
            &request("get", "apps", "deployments/scale", "", "d"),
            "because"
        ),
        r#"deployments.apps "d" is forbidden: User "x" cannot get resource "deployments/scale" in API group "apps" at the cluster scope: because"#
    );
    assert_eq!(
        forbidden_message("system:anonymous", &path("get", "/metrics"), ""),
        r#"forbidden: User "system:anonymous" cannot get path "/metrics""#
    );
}

//! The roles and bindings that every cluster has.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::aggregate::rules_to_write;

/// The ClusterRoles among the default objects.
pub(super) fn default_roles() -> &'static [&'static Value] {
    static ROLES: OnceLock<Vec<&'static Value>> = OnceLock::new();
    ROLES.get_or_init(|| {
        default_objects()
            .iter()
            .filter(|o| o["kind"] == "ClusterRole")
            .collect()
    })
}

/// The ClusterRoles and ClusterRoleBindings that every cluster has: what everybody may do, and
/// `cluster-admin`, `admin`, `edit` and `view` for others to bind. They may be stored, but the
/// decisions above hold without that, too.
pub fn default_objects() -> &'static [Value] {
    static OBJECTS: OnceLock<Vec<Value>> = OnceLock::new();
    OBJECTS.get_or_init(|| aggregate(build_default_objects()))
}

/// Writes the rules of aggregated roles, so that the controller finds them as they should be.
fn aggregate(mut objects: Vec<Value>) -> Vec<Value> {
    let roles: Vec<Value> = objects
        .iter()
        .filter(|o| o["kind"] == "ClusterRole")
        .cloned()
        .collect();
    let mut all: Vec<&Value> = roles.iter().collect();
    all.sort_by_key(|r| r["metadata"]["name"].as_str());
    for object in &mut objects {
        if let Some(rules) = rules_to_write(object, &all) {
            object["rules"] = json!(rules);
        }
    }
    objects
}

fn build_default_objects() -> Vec<Value> {
    const AUTHENTICATED: &str = "system:authenticated";
    const UNAUTHENTICATED: &str = "system:unauthenticated";
    let health = ["/livez", "/readyz", "/healthz", "/version", "/version/"];
    let discovery = [
        "/openapi",
        "/openapi/*",
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
    ];
    let urls = |urls: &[&str]| json!([{"verbs": ["get"], "nonResourceURLs": urls}]);
    let everything = json!([
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ]);
    let all_discovery: Vec<&str> = health.iter().chain(&discovery).copied().collect();
    vec![
        cluster_role("cluster-admin", everything, &[]),
        cluster_role("system:discovery", urls(&all_discovery), &[]),
        cluster_role("system:public-info-viewer", urls(&health), &[]),
        cluster_role(
            "system:basic-user",
            json!([
                {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]},
                {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
            ]),
            &[],
        ),
        aggregated("admin"),
        aggregated("edit"),
        aggregated("view"),
        cluster_role("system:aggregate-to-admin", admin_rules(), &["admin"]),
        cluster_role(
            "system:aggregate-to-edit",
            workload_rules(&WRITE),
            &["admin", "edit"],
        ),
        cluster_role(
            "system:aggregate-to-view",
            workload_rules(&READ),
            &["admin", "edit", "view"],
        ),
        cluster_role_binding("cluster-admin", &["system:masters"]),
        cluster_role_binding("system:discovery", &[AUTHENTICATED]),
        cluster_role_binding("system:basic-user", &[AUTHENTICATED]),
        cluster_role_binding(
            "system:public-info-viewer",
            &[AUTHENTICATED, UNAUTHENTICATED],
        ),
    ]
}

const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "delete",
    "deletecollection",
    "patch",
    "update",
];

/// What `edit` may write and `view` may read; `view` sees no Secrets.
fn workload_rules(verbs: &[&str]) -> Value {
    let writes = verbs.contains(&"create");
    let mut core = vec![
        "configmaps",
        "endpoints",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "replicationcontrollers/scale",
        "serviceaccounts",
        "services",
    ];
    let mut rules = Vec::new();
    if writes {
        core.extend([
            "events",
            "pods/attach",
            "pods/exec",
            "pods/portforward",
            "pods/proxy",
            "secrets",
            "services/proxy",
        ]);
        rules.push(
            json!({"verbs": ["impersonate"], "apiGroups": [""], "resources": ["serviceaccounts"]}),
        );
        rules.push(json!({"verbs": ["create"], "apiGroups": [""], "resources": ["pods/eviction", "serviceaccounts/token"]}));
    } else {
        core.extend([
            "bindings",
            "events",
            "limitranges",
            "namespaces",
            "namespaces/status",
            "persistentvolumeclaims/status",
            "pods/log",
            "pods/status",
            "replicationcontrollers/status",
            "resourcequotas",
            "resourcequotas/status",
            "services/status",
        ]);
    }
    for (group, resources) in [
        ("", core),
        (
            "apps",
            vec![
                "daemonsets",
                "deployments",
                "deployments/scale",
                "replicasets",
                "replicasets/scale",
                "statefulsets",
                "statefulsets/scale",
            ],
        ),
        ("autoscaling", vec!["horizontalpodautoscalers"]),
        ("batch", vec!["cronjobs", "jobs"]),
        ("coordination.k8s.io", vec!["leases"]),
        ("discovery.k8s.io", vec!["endpointslices"]),
        ("networking.k8s.io", vec!["ingresses", "networkpolicies"]),
        ("policy", vec!["poddisruptionbudgets"]),
    ] {
        // Only `edit` writes leases; `view` does not see them.
        if writes || group != "coordination.k8s.io" {
            rules.push(json!({"verbs": verbs, "apiGroups": [group], "resources": resources}));
        }
    }
    Value::Array(rules)
}

fn admin_rules() -> Value {
    json!([
        {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["localsubjectaccessreviews"]},
        {"verbs": WRITE, "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["rolebindings", "roles"]},
    ])
}

fn cluster_role(name: &str, rules: Value, aggregate_to: &[&str]) -> Value {
    let mut labels: BTreeMap<String, &str> = aggregate_to
        .iter()
        .map(|to| {
            (
                format!("rbac.authorization.k8s.io/aggregate-to-{to}"),
                "true",
            )
        })
        .collect();
    labels.insert("kubernetes.io/bootstrapping".into(), "rbac-defaults");
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": labels}, "rules": rules,
    })
}

fn aggregated(name: &str) -> Value {
    let selector =
        json!({"matchLabels": {format!("rbac.authorization.k8s.io/aggregate-to-{name}"): "true"}});
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
        "aggregationRule": {"clusterRoleSelectors": [selector]},
        "rules": [],
    })
}

fn cluster_role_binding(name: &str, groups: &[&str]) -> Value {
    let subjects: Vec<Value> = groups
        .iter()
        .map(|g| json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": g}))
        .collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": subjects,
    })
}

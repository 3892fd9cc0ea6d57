//! Role-based access control: who may do what.
//!
//! Rules: the Kubernetes documentation "Using RBAC Authorization". Pure: the caller brings the
//! roles and bindings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::selector::Labels;

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct User<'a> {
    /// The user name, such as `system:serviceaccount:ns:name`.
    pub name: &'a str,
    /// All groups, `system:authenticated` included.
    pub groups: &'a [String],
}

/// What is asked for. `path` is set for requests that name no resource, `resource` for all others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// get, list, watch, create, update, patch, delete, deletecollection, or an HTTP method in
    /// lower case for a path.
    pub verb: String,
    /// The API group, "" for the core group.
    pub group: String,
    /// The plural name of the resource, "" for a path.
    pub resource: String,
    /// The subresource, or "".
    pub subresource: String,
    /// The namespace, "" at cluster scope.
    pub namespace: String,
    /// The object's name, "" where the request names none.
    pub name: String,
    /// The URL path of a request that names no resource.
    pub path: String,
}

impl Attributes {
    fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// The roles and bindings to decide by. Bindings and roles of all namespaces may be given.
#[derive(Debug, Clone, Copy, Default)]
pub struct Policy<'a> {
    /// All Roles.
    pub roles: &'a [&'a Value],
    /// All ClusterRoles.
    pub cluster_roles: &'a [&'a Value],
    /// All RoleBindings.
    pub role_bindings: &'a [&'a Value],
    /// All ClusterRoleBindings.
    pub cluster_role_bindings: &'a [&'a Value],
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may go on.
    pub allowed: bool,
    /// Which binding allowed it, or which roles could not be found; may be "".
    pub reason: String,
}

/// The rules that hold for a user in a namespace (and at cluster scope).
#[derive(Debug, Default)]
pub struct Granted<'a> {
    /// Each rule with the binding that grants it.
    pub rules: Vec<(&'a Value, String)>,
    /// Bindings that lead nowhere, as sentences.
    pub errors: Vec<String>,
}

/// Decides one request.
pub fn allowed(user: User<'_>, attrs: &Attributes, policy: &Policy<'_>) -> Decision {
    if user.groups.iter().any(|g| g == "system:masters") {
        return Decision {
            allowed: true,
            reason: String::new(),
        };
    }
    let granted = granted(user, &attrs.namespace, policy);
    match granted
        .rules
        .iter()
        .find(|(rule, _)| rule_allows(rule, attrs))
    {
        Some((_, source)) => Decision {
            allowed: true,
            reason: format!("RBAC: allowed by {source}"),
        },
        None => Decision {
            allowed: false,
            reason: denial_reason(&granted.errors),
        },
    }
}

fn denial_reason(errors: &[String]) -> String {
    match errors {
        [] => String::new(),
        [only] => format!("RBAC: {only}"),
        many => format!("RBAC: [{}]", many.join(", ")),
    }
}

/// All rules that hold for a user in a namespace; with "" only those at cluster scope.
pub fn granted<'a>(user: User<'_>, namespace: &str, policy: &Policy<'a>) -> Granted<'a> {
    let mut result = Granted::default();
    let defaults = default_objects();
    for binding in defaults
        .iter()
        .filter(|o| text(o, "kind") == "ClusterRoleBinding")
    {
        // These come first and need no stored object, so that discovery works on an empty server.
        let own = Policy {
            cluster_roles: default_roles(),
            ..Policy::default()
        };
        add_binding(user, "ClusterRoleBinding", binding, &own, &mut result);
    }
    for binding in policy.cluster_role_bindings {
        add_binding(user, "ClusterRoleBinding", binding, policy, &mut result);
    }
    if !namespace.is_empty() {
        for binding in policy
            .role_bindings
            .iter()
            .filter(|b| metadata(b, "namespace") == namespace)
        {
            add_binding(user, "RoleBinding", binding, policy, &mut result);
        }
    }
    result
}

fn add_binding<'a>(
    user: User<'_>,
    kind: &str,
    binding: &Value,
    policy: &Policy<'a>,
    result: &mut Granted<'a>,
) {
    let namespace = metadata(binding, "namespace");
    let subjects = binding.get("subjects").and_then(Value::as_array);
    let Some(subject) = subjects
        .into_iter()
        .flatten()
        .find(|s| subject_is(s, user, namespace))
    else {
        return;
    };
    let reference = binding.get("roleRef").unwrap_or(&Value::Null);
    let (role_kind, role_name) = (text(reference, "kind"), text(reference, "name"));
    let role = match role_kind {
        "ClusterRole" => policy
            .cluster_roles
            .iter()
            .find(|r| metadata(r, "name") == role_name),
        _ => policy
            .roles
            .iter()
            .find(|r| metadata(r, "name") == role_name && metadata(r, "namespace") == namespace),
    };
    let Some(role) = role else {
        let resource = role_kind.to_lowercase();
        result.errors.push(format!(
            "{resource}.rbac.authorization.k8s.io {role_name:?} not found"
        ));
        return;
    };
    let of = if kind == "RoleBinding" {
        format!("{:?}", format!("{}/{namespace}", metadata(binding, "name")))
    } else {
        format!("{:?}", metadata(binding, "name"))
    };
    let source = format!(
        "{kind} {of} of {role_kind} {role_name:?} to {}",
        describe_subject(subject, namespace)
    );
    let mut seen = BTreeSet::new();
    collect_rules(role, policy, &mut seen, &mut |rule| {
        result.rules.push((rule, source.clone()))
    });
}

/// The rules of a role. An aggregated role has those of all ClusterRoles that it selects.
fn collect_rules<'a>(
    role: &'a Value,
    policy: &Policy<'a>,
    seen: &mut BTreeSet<String>,
    add: &mut dyn FnMut(&'a Value),
) {
    if !seen.insert(metadata(role, "name").to_owned()) {
        return;
    }
    let selectors = role
        .pointer("/aggregationRule/clusterRoleSelectors")
        .and_then(Value::as_array);
    let Some(selectors) = selectors else {
        role.get("rules")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .for_each(add);
        return;
    };
    // A selector that cannot be read selects nothing.
    let selectors: Vec<Labels> = selectors
        .iter()
        .filter_map(|s| Labels::from_label_selector(s).ok())
        .collect();
    for other in policy.cluster_roles {
        let labels = other.pointer("/metadata/labels");
        if selectors.iter().any(|s| s.matches(labels)) {
            collect_rules(other, policy, seen, add);
        }
    }
}

fn subject_is(subject: &Value, user: User<'_>, binding_namespace: &str) -> bool {
    let name = text(subject, "name");
    match text(subject, "kind") {
        "User" => name == user.name,
        "Group" => user.groups.iter().any(|g| g == name),
        "ServiceAccount" => {
            let namespace = subject_namespace(subject, binding_namespace);
            !namespace.is_empty()
                && user.name == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}

fn subject_namespace<'a>(subject: &'a Value, binding_namespace: &'a str) -> &'a str {
    match text(subject, "namespace") {
        "" => binding_namespace,
        namespace => namespace,
    }
}

fn describe_subject(subject: &Value, binding_namespace: &str) -> String {
    let (kind, name) = (text(subject, "kind"), text(subject, "name"));
    match kind {
        "ServiceAccount" => {
            format!(
                "{kind} {:?}",
                format!("{name}/{}", subject_namespace(subject, binding_namespace))
            )
        }
        _ => format!("{kind} {name:?}"),
    }
}

/// Whether a PolicyRule allows a request.
pub fn rule_allows(rule: &Value, attrs: &Attributes) -> bool {
    let verb = list(rule, "verbs").any(|v| v == "*" || v == attrs.verb);
    if attrs.resource.is_empty() {
        return verb && list(rule, "nonResourceURLs").any(|url| path_matches(url, &attrs.path));
    }
    let group = list(rule, "apiGroups").any(|g| g == "*" || g == attrs.group);
    let full = attrs.full_resource();
    let resource = list(rule, "resources").any(|r| {
        r == "*"
            || r == full
            || (!attrs.subresource.is_empty()
                && r.strip_prefix("*/") == Some(attrs.subresource.as_str()))
    });
    let mut names = list(rule, "resourceNames").peekable();
    let name = names.peek().is_none() || names.any(|n| n == attrs.name);
    verb && group && resource && name
}

fn path_matches(url: &str, path: &str) -> bool {
    url == "*"
        || url == path
        || url
            .strip_suffix('*')
            .is_some_and(|prefix| path.starts_with(prefix))
}

fn list<'a>(rule: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    rule.get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn metadata<'a>(object: &'a Value, key: &str) -> &'a str {
    object
        .get("metadata")
        .map(|m| text(m, key))
        .unwrap_or_default()
}

/// The message of the 403 that answers a request, in the words of kube-apiserver.
pub fn forbidden_message(user: &str, attrs: &Attributes, reason: &str) -> String {
    let mut what = if attrs.resource.is_empty() {
        format!("User {user:?} cannot {} path {:?}", attrs.verb, attrs.path)
    } else {
        let place = match attrs.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        format!(
            "User {user:?} cannot {} resource {:?} in API group {:?} {place}",
            attrs.verb,
            attrs.full_resource(),
            attrs.group
        )
    };
    // kube-apiserver escapes what a browser could take for markup.
    what = what
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    if !reason.is_empty() {
        what = format!("{what}: {reason}");
    }
    let resource = match attrs.group.as_str() {
        "" => attrs.resource.clone(),
        group => format!("{}.{group}", attrs.resource),
    };
    match (attrs.resource.as_str(), attrs.name.as_str()) {
        ("", _) => format!("forbidden: {what}"),
        (_, "") => format!("{resource} is forbidden: {what}"),
        (_, name) => format!("{resource} {name:?} is forbidden: {what}"),
    }
}

fn default_roles() -> &'static [&'static Value] {
    static ROLES: OnceLock<Vec<&'static Value>> = OnceLock::new();
    ROLES.get_or_init(|| {
        default_objects()
            .iter()
            .filter(|o| text(o, "kind") == "ClusterRole")
            .collect()
    })
}

/// The ClusterRoles and ClusterRoleBindings that every cluster has: what everybody may do, and
/// `cluster-admin`, `admin`, `edit` and `view` for others to bind. They may be stored, but the
/// decisions above hold without that, too.
pub fn default_objects() -> &'static [Value] {
    static OBJECTS: OnceLock<Vec<Value>> = OnceLock::new();
    OBJECTS.get_or_init(build_default_objects)
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

#[cfg(test)]
mod tests {
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
        let leaf =
            json!({"metadata": {"name": "leaf", "labels": {"to": "middle"}}, "rules": pods()});
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
}

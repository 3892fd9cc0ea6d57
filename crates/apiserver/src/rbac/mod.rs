//! Role-based access control: who may do what.
//!
//! Rules: the Kubernetes documentation "Using RBAC Authorization". Pure: the caller brings the
//! roles and bindings.

mod aggregate;
mod defaults;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use serde_json::Value;

use crate::selector::Labels;
pub use aggregate::rules_to_write;
pub use defaults::default_objects;
use defaults::default_roles;

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
    let mut errors = Vec::new();
    let mut reason = None;
    let mut look = |rule: &Value, source: &dyn Fn() -> String| {
        if !rule_allows(rule, attrs) {
            return ControlFlow::Continue(());
        }
        reason = Some(format!("RBAC: allowed by {}", source()));
        ControlFlow::Break(())
    };
    let _ = each_rule(user, &attrs.namespace, policy, &mut errors, &mut look);
    Decision {
        allowed: reason.is_some(),
        reason: reason.unwrap_or_else(|| denial_reason(&errors)),
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
    let rules = &mut result.rules;
    let mut keep = |rule: &'a Value, source: &dyn Fn() -> String| {
        rules.push((rule, source()));
        ControlFlow::Continue(())
    };
    let _ = each_rule(user, namespace, policy, &mut result.errors, &mut keep);
    result
}

/// Is shown a rule and, when asked for, the words that say which binding grants it.
type Visit<'v, 'a> = &'v mut dyn FnMut(&'a Value, &dyn Fn() -> String) -> ControlFlow<()>;

/// Shows the rules that hold for a user until one is enough: every request is decided here, and mostly by
/// one of the first.
fn each_rule<'a>(
    user: User<'_>,
    namespace: &str,
    policy: &Policy<'a>,
    errors: &mut Vec<String>,
    visit: Visit<'_, 'a>,
) -> ControlFlow<()> {
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
        of_binding(user, "ClusterRoleBinding", binding, &own, errors, visit)?;
    }
    for binding in policy.cluster_role_bindings {
        of_binding(user, "ClusterRoleBinding", binding, policy, errors, visit)?;
    }
    if !namespace.is_empty() {
        for binding in policy
            .role_bindings
            .iter()
            .filter(|b| metadata(b, "namespace") == namespace)
        {
            of_binding(user, "RoleBinding", binding, policy, errors, visit)?;
        }
    }
    ControlFlow::Continue(())
}

fn of_binding<'a>(
    user: User<'_>,
    kind: &str,
    binding: &Value,
    policy: &Policy<'a>,
    errors: &mut Vec<String>,
    visit: Visit<'_, 'a>,
) -> ControlFlow<()> {
    let namespace = metadata(binding, "namespace");
    let subjects = binding.get("subjects").and_then(Value::as_array);
    let Some(subject) = subjects
        .into_iter()
        .flatten()
        .find(|s| subject_is(s, user, namespace))
    else {
        return ControlFlow::Continue(());
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
        errors.push(format!(
            "{resource}.rbac.authorization.k8s.io {role_name:?} not found"
        ));
        return ControlFlow::Continue(());
    };
    let source = || {
        let name = metadata(binding, "name");
        let of = if kind == "RoleBinding" {
            format!("{:?}", format!("{name}/{namespace}"))
        } else {
            format!("{name:?}")
        };
        format!(
            "{kind} {of} of {role_kind} {role_name:?} to {}",
            describe_subject(subject, namespace)
        )
    };
    let mut seen = BTreeSet::new();
    rules_of(role, policy, &mut seen, &mut |rule| visit(rule, &source))
}

/// The rules of a role. An aggregated role has those of all ClusterRoles that it selects.
fn rules_of<'a>(
    role: &'a Value,
    policy: &Policy<'a>,
    seen: &mut BTreeSet<String>,
    show: &mut dyn FnMut(&'a Value) -> ControlFlow<()>,
) -> ControlFlow<()> {
    if !seen.insert(metadata(role, "name").to_owned()) {
        return ControlFlow::Continue(());
    }
    let selectors = role
        .get("aggregationRule")
        .and_then(|rule| rule.get("clusterRoleSelectors"))
        .and_then(Value::as_array);
    let Some(selectors) = selectors else {
        let rules = role.get("rules").and_then(Value::as_array);
        return rules.into_iter().flatten().try_for_each(show);
    };
    // A selector that cannot be read selects nothing.
    let selectors: Vec<Labels> = selectors
        .iter()
        .filter_map(|s| Labels::from_label_selector(s).ok())
        .collect();
    for other in policy.cluster_roles {
        let labels = other.pointer("/metadata/labels");
        if selectors.iter().any(|s| s.matches(labels)) {
            rules_of(other, policy, seen, show)?;
        }
    }
    ControlFlow::Continue(())
}

fn subject_is(subject: &Value, user: User<'_>, binding_namespace: &str) -> bool {
    let name = text(subject, "name");
    match text(subject, "kind") {
        "User" => name == user.name,
        "Group" => user.groups.iter().any(|g| g == name),
        "ServiceAccount" => {
            let namespace = subject_namespace(subject, binding_namespace);
            let account = user.name.strip_prefix("system:serviceaccount:");
            !namespace.is_empty()
                && account.and_then(|a| a.split_once(':')) == Some((namespace, name))
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
    if !list(rule, "verbs").any(|v| v == "*" || v == attrs.verb) {
        return false;
    }
    if attrs.resource.is_empty() {
        return list(rule, "nonResourceURLs").any(|url| path_matches(url, &attrs.path));
    }
    let sub = (!attrs.subresource.is_empty()).then_some(attrs.subresource.as_str());
    let resource = |r: &str| match (r.split_once('/'), sub) {
        (None, None) => r == "*" || r == attrs.resource,
        (None, Some(_)) => r == "*",
        (Some((of, its)), Some(sub)) => its == sub && (of == "*" || of == attrs.resource),
        (Some(_), None) => false,
    };
    let mut names = list(rule, "resourceNames").peekable();
    list(rule, "apiGroups").any(|g| g == "*" || g == attrs.group)
        && list(rule, "resources").any(resource)
        && (names.peek().is_none() || names.any(|n| n == attrs.name))
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

//! What the credential of a workload cluster must be allowed to do there.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// One verb on one resource, in all namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Permission {
    /// API group; empty for the core group.
    #[serde(default)]
    pub group: String,
    /// Plural resource.
    pub resource: String,
    /// Subresource, or empty.
    #[serde(default)]
    pub subresource: String,
    /// Verb.
    pub verb: String,
}

impl Permission {
    /// From a resource as roles name it: `drbdresources/status`.
    pub fn new(group: &str, resource: &str, verb: &str) -> Self {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Self {
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            verb: verb.into(),
        }
    }

    /// The resource as `kubectl auth can-i` takes it.
    pub fn target(&self) -> String {
        let group = if self.group.is_empty() {
            String::new()
        } else {
            format!(".{}", self.group)
        };
        let sub = if self.subresource.is_empty() {
            String::new()
        } else {
            format!(" --subresource={}", self.subresource)
        };
        format!("{}{group}{sub}", self.resource)
    }
}

impl std::fmt::Display for Permission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let group = if self.group.is_empty() {
            String::new()
        } else {
            format!(".{}", self.group)
        };
        let sub = if self.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", self.subresource)
        };
        write!(f, "{} {}{group}{sub}", self.verb, self.resource)
    }
}

const READ: &[&str] = &["get", "list", "watch"];
const OWN: &[&str] = &["get", "create", "patch", "delete"];
const ALL: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

/// What the hub's processes do on a workload cluster: group, resource, verbs.
const TABLE: &[(&str, &str, &[&str])] = &[
    // The zone controller: claim, CRDs, the stack (and Helm's record of it, in Secrets).
    (
        "",
        "namespaces",
        &["get", "list", "watch", "create", "patch"],
    ),
    (
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        &["get", "list", "watch", "create", "patch"],
    ),
    ("", "serviceaccounts", OWN),
    ("apps", "deployments", OWN),
    ("apps", "daemonsets", OWN),
    ("rbac.authorization.k8s.io", "clusterroles", OWN),
    ("rbac.authorization.k8s.io", "clusterrolebindings", OWN),
    ("rbac.authorization.k8s.io", "roles", OWN),
    ("rbac.authorization.k8s.io", "rolebindings", OWN),
    // The manager: protection, mirrors of groups, failover, monitoring.
    ("siterecovery.trilio.io", "drbdresources", ALL),
    ("siterecovery.trilio.io", "protectiongroups", ALL),
    ("kubevirt.io", "virtualmachines", ALL),
    ("kubevirt.io", "virtualmachineinstances", READ),
    ("kubevirt.io", "virtualmachineinstancemigrations", &["list"]),
    ("", "persistentvolumeclaims", &["get", "delete"]),
    ("", "secrets", OWN),
    ("storage.k8s.io", "storageclasses", &["list"]),
    ("", "nodes", &["get", "list", "patch"]),
    ("batch", "jobs", &["get", "create"]),
];

/// What the hub's processes do on a workload cluster, together with `granted`: what the stack there
/// is granted, since Kubernetes lets nobody grant what they do not hold.
pub fn needed(granted: impl IntoIterator<Item = Permission>) -> BTreeSet<Permission> {
    let own = TABLE.iter().flat_map(|(group, resource, verbs)| {
        verbs
            .iter()
            .map(|verb| Permission::new(group, resource, verb))
    });
    own.chain(granted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permission_is_written_as_kubectl_takes_it() {
        let permission = Permission::new("siterecovery.trilio.io", "drbdresources/status", "patch");
        assert_eq!(
            permission.to_string(),
            "patch drbdresources.siterecovery.trilio.io/status"
        );
        assert_eq!(
            permission.target(),
            "drbdresources.siterecovery.trilio.io --subresource=status"
        );
        assert_eq!(Permission::new("", "pods", "get").to_string(), "get pods");
    }

    #[test]
    fn what_both_need_is_asked_once() {
        let before = needed([]).len();
        assert_eq!(
            needed([
                Permission::new("", "nodes", "list"),
                Permission::new("", "pods", "list")
            ])
            .len(),
            before + 1
        );
    }
}

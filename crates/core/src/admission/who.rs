//! Who asks: the product, Kubernetes, or anybody else.

use std::collections::BTreeSet;

use farshore_api::meta::{WORKLOAD_NAMESPACE, components};
use serde::{Deserialize, Serialize};

/// Who asks, as authentication found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requester {
    /// `userInfo.username`.
    pub username: String,
    /// `userInfo.groups`.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// Users and groups that stand for one part of the product.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Subjects {
    /// Names of users.
    pub users: BTreeSet<String>,
    /// Names of groups.
    pub groups: BTreeSet<String>,
}

/// The product's own identities on the cluster whose webhook is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ours {
    /// The zone's manager. On the hub it is a ServiceAccount; on a workload cluster it is whoever the
    /// kubeconfig of the zone authenticates as, which only the zone can tell. A kubeconfig that people
    /// share makes the manager of them all.
    pub manager: Subjects,
    /// The processes of this very cluster: the zone controller on the hub; on a workload cluster its
    /// control plane and the agents.
    pub local: Subjects,
}

impl Requester {
    /// Whether this is a part of Kubernetes that finishes what was begun elsewhere.
    pub fn is_kubernetes(&self) -> bool {
        KUBERNETES.contains(&self.username.as_str())
    }
}

impl Ours {
    /// On the hub: a zone's manager, and the zone controller with the namespace that it runs in.
    pub fn on_hub(zone_namespace: &str, controller_namespace: &str) -> Self {
        Self {
            manager: Subjects::account(zone_namespace, &[components::MANAGER_CONTROL_PLANE]),
            local: Subjects::account(
                controller_namespace,
                &[components::PROTECTIONZONE_CONTROLLER],
            ),
        }
    }

    /// On a workload cluster: whoever the zone's kubeconfig authenticates as, and the stack there.
    pub fn on_workload(manager: Subjects) -> Self {
        let stack = [
            components::WORKLOAD_CONTROL_PLANE,
            components::DRBD_NODE_AGENT,
        ];
        Self {
            manager,
            local: Subjects::account(WORKLOAD_NAMESPACE, &stack),
        }
    }

    /// Whether this is any part of the product.
    pub fn has(&self, who: &Requester) -> bool {
        self.manager.has(who) || self.local.has(who)
    }
}

impl Subjects {
    /// ServiceAccounts of a namespace. The charts name each as its component.
    fn account(namespace: &str, names: &[&str]) -> Self {
        let user = |name: &&str| format!("system:serviceaccount:{namespace}:{name}");
        Self {
            users: names.iter().map(user).collect(),
            groups: BTreeSet::new(),
        }
    }

    /// Whether this requester is one of them.
    pub fn has(&self, who: &Requester) -> bool {
        self.users.contains(&who.username) || who.groups.iter().any(|g| self.groups.contains(g))
    }
}

/// Parts of Kubernetes that delete what is to go with something else. The last is the name of all of
/// them where they have no ServiceAccounts of their own.
const KUBERNETES: [&str; 3] = [
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:kube-controller-manager",
];

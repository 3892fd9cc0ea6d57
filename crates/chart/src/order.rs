//! The order in which Helm installs kinds (helm.sh: `InstallOrder`); a removal goes backwards.

use serde_json::Value;

const KINDS: [&str; 36] = [
    "PriorityClass",
    "Namespace",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PodSecurityPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Secret",
    "SecretList",
    "ConfigMap",
    "StorageClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleList",
    "ClusterRoleBinding",
    "ClusterRoleBindingList",
    "Role",
    "RoleList",
    "RoleBinding",
    "RoleBindingList",
    "Service",
    "DaemonSet",
    "Pod",
    "ReplicationController",
    "ReplicaSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "StatefulSet",
    "Job",
    "CronJob",
    "IngressClass",
    "Ingress",
    "APIService",
];

/// Sorts manifests for installation; within a kind they keep their order, unknown kinds come last.
pub fn sort(manifests: &mut [Value]) {
    manifests.sort_by_key(|manifest| {
        let kind = manifest["kind"].as_str().unwrap_or_default();
        KINDS
            .iter()
            .position(|known| *known == kind)
            .unwrap_or(KINDS.len())
    });
}

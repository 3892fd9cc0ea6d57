//! What the built-in kinds' fields are, as far as merging needs to know: which lists are keyed and
//! by what, which structs are one leaf, which are always present.
//!
//! Two columns, because strategic merge patch and server-side apply differ: a container's ports are
//! keyed by `containerPort` in the former and by `containerPort` and `protocol` in the latter.
//! Source: the `patchStrategy`, `patchMergeKey`, `listType`, `listMapKey`, `mapType` and
//! `structType` markers of the published Kubernetes API types.

use serde_json::Value;

/// How a field of a built-in type merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// A struct that is always present, even if empty.
    Struct,
    /// A struct that may be absent.
    Pointer,
    /// A struct of which a strategic merge patch keeps only the fields it lists (`retainKeys`).
    RetainKeys,
    /// A list of objects, keyed.
    Keyed {
        /// The merge key of strategic merge patch.
        smp: &'static str,
        /// The keys of server-side apply; none means that the list is atomic there.
        ssa: &'static [&'static str],
        /// Whether items replace what their patch does not list (`retainKeys`).
        retain_keys: bool,
    },
    /// A list of scalars that merges item by item.
    Set,
}

/// One field of a built-in type.
#[derive(Debug)]
pub struct Field {
    /// The type that has the field.
    owner: &'static str,
    /// The field's name in JSON.
    name: &'static str,
    /// The type of the field's value, or of the list's items; "" if nothing in it is special and
    /// "=" if server-side apply takes it as one leaf.
    pub of: &'static str,
    /// How it merges.
    pub how: How,
}

const fn field(owner: &'static str, name: &'static str, of: &'static str, how: How) -> Field {
    Field {
        owner,
        name,
        of,
        how,
    }
}

const fn keyed(
    owner: &'static str,
    name: &'static str,
    of: &'static str,
    smp: &'static str,
    ssa: &'static [&'static str],
) -> Field {
    field(
        owner,
        name,
        of,
        How::Keyed {
            smp,
            ssa,
            retain_keys: false,
        },
    )
}

const fn by(
    owner: &'static str,
    name: &'static str,
    of: &'static str,
    ssa: &'static [&'static str; 1],
) -> Field {
    keyed(owner, name, of, ssa[0], ssa)
}

use How::{Pointer, RetainKeys, Struct};

static FIELDS: &[Field] = &[
    by("ObjectMeta", "ownerReferences", "=", &["uid"]),
    field("ObjectMeta", "finalizers", "", How::Set),
    // Workloads.
    field("Deployment", "spec", "DeploymentSpec", Struct),
    field("DeploymentSpec", "strategy", "", RetainKeys),
    field("DeploymentSpec", "template", "PodTemplateSpec", Struct),
    field("StatefulSet", "spec", "StatefulSetSpec", Struct),
    field("StatefulSetSpec", "template", "PodTemplateSpec", Struct),
    field("StatefulSetSpec", "updateStrategy", "", Struct),
    field("DaemonSet", "spec", "DaemonSetSpec", Struct),
    field("DaemonSetSpec", "template", "PodTemplateSpec", Struct),
    field("DaemonSetSpec", "updateStrategy", "", Struct),
    field("ReplicaSet", "spec", "ReplicaSetSpec", Struct),
    field("ReplicaSetSpec", "template", "PodTemplateSpec", Struct),
    field(
        "ReplicationController",
        "spec",
        "ReplicationControllerSpec",
        Struct,
    ),
    field(
        "ReplicationControllerSpec",
        "template",
        "PodTemplateSpec",
        Pointer,
    ),
    field("Job", "spec", "JobSpec", Struct),
    field("Job", "status", "JobStatus", Struct),
    field("JobSpec", "template", "PodTemplateSpec", Struct),
    keyed("JobStatus", "conditions", "", "type", &[]),
    field("CronJob", "spec", "CronJobSpec", Struct),
    field("CronJobSpec", "jobTemplate", "JobTemplateSpec", Struct),
    field("JobTemplateSpec", "metadata", "ObjectMeta", Struct),
    field("JobTemplateSpec", "spec", "JobSpec", Struct),
    field("PodTemplate", "template", "PodTemplateSpec", Struct),
    field("PodTemplateSpec", "metadata", "ObjectMeta", Struct),
    field("PodTemplateSpec", "spec", "PodSpec", Struct),
    // Pods.
    field("Pod", "spec", "PodSpec", Struct),
    field("Pod", "status", "PodStatus", Struct),
    by("PodSpec", "containers", "Container", &["name"]),
    by("PodSpec", "initContainers", "Container", &["name"]),
    by("PodSpec", "ephemeralContainers", "Container", &["name"]),
    field(
        "PodSpec",
        "volumes",
        "",
        How::Keyed {
            smp: "name",
            ssa: &["name"],
            retain_keys: true,
        },
    ),
    by("PodSpec", "imagePullSecrets", "=", &["name"]),
    by("PodSpec", "hostAliases", "", &["ip"]),
    keyed(
        "PodSpec",
        "topologySpreadConstraints",
        "",
        "topologyKey",
        &["topologyKey", "whenUnsatisfiable"],
    ),
    field(
        "PodSpec",
        "resourceClaims",
        "",
        How::Keyed {
            smp: "name",
            ssa: &["name"],
            retain_keys: true,
        },
    ),
    by("PodSpec", "schedulingGates", "", &["name"]),
    by("Container", "env", "", &["name"]),
    keyed(
        "Container",
        "ports",
        "",
        "containerPort",
        &["containerPort", "protocol"],
    ),
    by("Container", "volumeMounts", "", &["mountPath"]),
    by("Container", "volumeDevices", "", &["devicePath"]),
    field("Container", "resources", "ResourceRequirements", Struct),
    keyed("ResourceRequirements", "claims", "", "", &["name"]),
    by("PodStatus", "podIPs", "", &["ip"]),
    keyed("PodStatus", "hostIPs", "", "ip", &[]),
    // The rest of the core group.
    field("Service", "spec", "ServiceSpec", Struct),
    keyed("ServiceSpec", "ports", "", "port", &["port", "protocol"]),
    by("ServiceAccount", "secrets", "=", &["name"]),
    field("Node", "spec", "NodeSpec", Struct),
    field("Node", "status", "NodeStatus", Struct),
    field("NodeSpec", "podCIDRs", "", How::Set),
    by("NodeStatus", "addresses", "", &["type"]),
    field(
        "PersistentVolumeClaim",
        "spec",
        "PersistentVolumeClaimSpec",
        Struct,
    ),
    field(
        "PersistentVolumeClaimSpec",
        "resources",
        "ResourceRequirements",
        Struct,
    ),
    // Admission and the like.
    by(
        "MutatingWebhookConfiguration",
        "webhooks",
        "Webhook",
        &["name"],
    ),
    by(
        "ValidatingWebhookConfiguration",
        "webhooks",
        "Webhook",
        &["name"],
    ),
    field(
        "ValidatingAdmissionPolicy",
        "spec",
        "ValidatingAdmissionPolicySpec",
        Struct,
    ),
    by("ValidatingAdmissionPolicySpec", "variables", "", &["name"]),
    field("CustomResourceDefinition", "spec", "DefinitionSpec", Struct),
    field("DefinitionSpec", "names", "", Struct),
    field("Event", "source", "", Struct),
    field("Event", "deprecatedSource", "", Struct),
    field("CSINode", "spec", "CSINodeSpec", Struct),
    by("CSINodeSpec", "drivers", "", &["name"]),
];

/// Fields that mean the same wherever they occur in a built-in kind.
static EVERYWHERE: &[Field] = &[
    by("", "conditions", "", &["type"]),
    by("", "matchConditions", "", &["name"]),
    field("", "spec", "", Struct),
    field("", "status", "", Struct),
];

/// Structs and maps that server-side apply takes as one leaf, by the names of their fields.
static LEAVES: &[&str] = &[
    "configMapKeyRef",
    "controllerExpandSecretRef",
    "controllerPublishSecretRef",
    "dataSource",
    "fieldRef",
    "involvedObject",
    "labelSelector",
    "managedFields",
    "namespaceSelector",
    "nodeExpandSecretRef",
    "nodePublishSecretRef",
    "nodeSelector",
    "nodeStageSecretRef",
    "objectSelector",
    "podSelector",
    "regarding",
    "related",
    "required",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "resourceFieldRef",
    "roleRef",
    "scaleTargetRef",
    "scopeSelector",
    "secretKeyRef",
    "secretRef",
    "selector",
    "targetRef",
];

/// Fields that are maps with free keys, by name. All other objects in built-in kinds are structs.
static MAPS: &[&str] = &[
    "allocatable",
    "allocatedResources",
    "allocatedResourceStatuses",
    "allocationResult",
    "annotations",
    "attributes",
    "binaryData",
    "capacity",
    "data",
    "default",
    "defaultRequest",
    "extra",
    "hard",
    "labels",
    "limits",
    "matchLabels",
    "max",
    "maxLimitRequestRatio",
    "min",
    "options",
    "overhead",
    "parameters",
    "requests",
    "stringData",
    "used",
    "volumeAttributes",
];

/// What is known about a field of a built-in type; "" is a type of which nothing is known.
pub fn lookup(owner: &str, name: &str) -> Option<&'static Field> {
    let special = FIELDS.iter().find(|f| f.owner == owner && f.name == name);
    special.or_else(|| EVERYWHERE.iter().find(|f| f.name == name))
}

/// What a plain field of a built-in type holds where nobody wrote it, if it is always written.
pub fn always(owner: &str, name: &str) -> Option<Value> {
    match (owner, name) {
        ("Event", "reportingComponent") => Some(Value::from("")),
        (
            "Event",
            "eventTime"
            | "firstTimestamp"
            | "lastTimestamp"
            | "deprecatedFirstTimestamp"
            | "deprecatedLastTimestamp",
        ) => Some(Value::Null),
        ("Event", "reportingInstance") => Some(Value::from("")),
        _ => None,
    }
}

/// Whether a keyed list is written even where it is empty.
pub fn is_required(field: &Field) -> bool {
    (field.owner, field.name) == ("PodSpec", "containers")
}

/// Whether an object in a field of this name is one leaf to server-side apply.
pub fn is_leaf(name: &str) -> bool {
    LEAVES.contains(&name)
}

/// Whether a field of this name is a map with free keys.
pub fn is_map(name: &str) -> bool {
    MAPS.contains(&name)
}

/// Whether an API version belongs to Kubernetes itself and not to a custom resource.
pub fn is_builtin(api_version: &str) -> bool {
    match api_version.split_once('/') {
        None => true,
        Some((group, _)) => {
            matches!(
                group,
                "apps" | "batch" | "autoscaling" | "policy" | "extensions"
            ) || (group.ends_with(".k8s.io") && BUILTIN_GROUPS.contains(&group))
        }
    }
}

/// `*.k8s.io` also names custom resources (snapshots, Gateway API), so the list is explicit.
static BUILTIN_GROUPS: &[&str] = &[
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// The value that the API fills in for an absent list key of a built-in kind.
pub fn key_default(key: &str) -> Option<Value> {
    match key {
        "protocol" => Some(Value::from("TCP")),
        "containerPort" | "port" => Some(Value::from(0)),
        // The zero of a field that is always written.
        "name" | "mountPath" | "devicePath" | "type" | "uid" | "topologyKey"
        | "whenUnsatisfiable" => Some(Value::from("")),
        _ => None,
    }
}

//! The table of built-in kinds. What a kind does differently is a word in its row, or a hook in `strategy`.

use std::sync::Arc;

use serde_json::Value;

use crate::registry::{
    NameRule, Origin, Registry, ResourceInfo, ScalePaths, Subresource, Traits, VersionInfo,
};
use crate::table;

const ALL: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const CREATE: [&str; 1] = ["create"];
const SUB: [&str; 3] = ["get", "patch", "update"];

/// One row: group, version, kind, plural, short names, and words:
/// `ns` namespaced, `all` in category all, `status`/`scale` subresources, `gen` generation is maintained, `cou` a PUT
/// creates, `cas` a PUT needs a resourceVersion, `keep-status` status may be given at creation, `label`/`label1035`/
/// `path` name rules, `review` can only be created, `field=…` selectable field.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

#[rustfmt::skip] // One row, one line.
const ROWS: &[Row] = &[
    ("", "v1", "Namespace", "namespaces", "ns", "status finalize label field=status.phase"),
    ("", "v1", "Node", "nodes", "no", "status keep-status field=spec.unschedulable"),
    ("", "v1", "Pod", "pods", "po", "ns all status gen pod field=spec.nodeName field=status.phase field=spec.restartPolicy \
        field=spec.schedulerName field=spec.serviceAccountName field=status.podIP field=status.nominatedNodeName"),
    ("", "v1", "PodTemplate", "podtemplates", "", "ns gen"),
    ("", "v1", "Service", "services", "svc", "ns all status label1035 field=spec.clusterIP field=spec.type"),
    ("", "v1", "Endpoints", "endpoints", "ep", "ns cou"),
    ("", "v1", "ConfigMap", "configmaps", "cm", "ns"),
    ("", "v1", "Secret", "secrets", "", "ns field=type"),
    ("", "v1", "ServiceAccount", "serviceaccounts", "sa", "ns token"),
    ("", "v1", "PersistentVolume", "persistentvolumes", "pv", "status"),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", "ns status"),
    ("", "v1", "ReplicationController", "replicationcontrollers", "rc", "ns all status scale gen field=status.replicas"),
    ("", "v1", "Event", "events", "ev", "ns cou event"),
    ("events.k8s.io", "v1", "Event", "events", "ev", "ns cou event"),
    ("", "v1", "ResourceQuota", "resourcequotas", "quota", "ns status"),
    ("", "v1", "LimitRange", "limitranges", "limits", "ns cou"),
    ("apps", "v1", "Deployment", "deployments", "deploy", "ns all status scale gen"),
    ("apps", "v1", "ReplicaSet", "replicasets", "rs", "ns all status scale gen field=status.replicas"),
    ("apps", "v1", "DaemonSet", "daemonsets", "ds", "ns all status gen"),
    ("apps", "v1", "StatefulSet", "statefulsets", "sts", "ns all status scale gen"),
    ("apps", "v1", "ControllerRevision", "controllerrevisions", "", "ns"),
    ("batch", "v1", "Job", "jobs", "", "ns all status gen field=status.successful"),
    ("batch", "v1", "CronJob", "cronjobs", "cj", "ns all status gen"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", "ns all status"),
    ("coordination.k8s.io", "v1", "Lease", "leases", "", "ns cou cas"),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", "", "ns cou path"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "", "ns cou path"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "", "cou path"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "", "cou path"),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", "sc", ""),
    ("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", "", "status cas"),
    ("storage.k8s.io", "v1", "CSIDriver", "csidrivers", "", ""),
    ("storage.k8s.io", "v1", "CSINode", "csinodes", "", ""),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "netpol", "ns gen"),
    ("networking.k8s.io", "v1", "Ingress", "ingresses", "ing", "ns status gen"),
    ("networking.k8s.io", "v1", "IngressClass", "ingressclasses", "", "gen"),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", "ns status gen cas"),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "pc", "gen"),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", "crd crds", "status gen cas api-extensions"),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "", "gen api-extensions"),
    ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "", "gen api-extensions"),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "", "ns gen"),
    ("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", "", "review"),
    ("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", "", "review"),
    ("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", "", "review"),
    ("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", "", "ns review"),
    ("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", "", "review"),
    ("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", "", "review"),
];

/// Fields of events usable in selectors, on either face.
const EVENT_FIELDS: [&str; 13] = [
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
    "regarding.name",
    "regarding.uid",
];

/// The registry with every built-in kind.
pub(crate) fn builtin() -> Registry {
    let mut registry = Registry::default();
    for row in ROWS {
        registry.insert(resource(row));
    }
    registry
}

fn sub(
    name: &str,
    verbs: &[&'static str],
    body: Option<(&'static str, &'static str, &'static str)>,
) -> Subresource {
    Subresource {
        name: name.into(),
        body,
        verbs: verbs.to_vec(),
        scale: None,
    }
}

/// The scale subresource with its paths.
pub(crate) fn scale(paths: ScalePaths) -> Subresource {
    Subresource {
        name: "scale".into(),
        body: Some(("autoscaling", "v1", "Scale")),
        verbs: SUB.to_vec(),
        scale: Some(paths),
    }
}

/// The status subresource.
pub(crate) fn status() -> Subresource {
    sub("status", &SUB, None)
}

/// Verbs of an ordinary resource.
pub(crate) fn all_verbs() -> Vec<&'static str> {
    ALL.to_vec()
}

/// Namespaces go one by one.
fn verbs_of(plural: &str) -> Vec<&'static str> {
    let mut verbs = all_verbs();
    verbs.retain(|v| plural != "namespaces" || *v != "deletecollection");
    verbs
}

fn resource(&(group, version, kind, plural, short_names, words): &Row) -> ResourceInfo {
    let words: Vec<&str> = words.split_whitespace().collect();
    let has = |word: &str| words.contains(&word);
    let mut subresources = Vec::new();
    if has("status") {
        subresources.push(status());
    }
    if has("scale") {
        subresources.push(scale(ScalePaths {
            spec_replicas: ".spec.replicas".into(),
            status_replicas: ".status.replicas".into(),
            selector: Some(".spec.selector".into()),
        }));
    }
    if has("finalize") {
        subresources.push(sub("finalize", &["update"], None));
    }
    if has("token") {
        subresources.push(sub(
            "token",
            &CREATE,
            Some(("authentication.k8s.io", "v1", "TokenRequest")),
        ));
    }
    if has("pod") {
        subresources.push(sub("binding", &CREATE, Some(("", "v1", "Binding"))));
        subresources.push(sub("eviction", &CREATE, Some(("policy", "v1", "Eviction"))));
        subresources.push(sub("log", &["get"], None));
    }
    let mut fields: Vec<String> = words
        .iter()
        .filter_map(|w| w.strip_prefix("field="))
        .map(str::to_owned)
        .collect();
    if has("event") {
        fields.extend(EVENT_FIELDS.map(str::to_owned));
    }
    let names = match () {
        () if has("label") => NameRule::Label,
        () if has("label1035") => NameRule::Label1035,
        () if has("path") => NameRule::PathSegment,
        () => NameRule::Subdomain,
    };
    let categories = [("all", "all"), ("api-extensions", "api-extensions")];
    // Events have two faces over one table; every other table is the resource's own.
    let table = if group.is_empty() || has("event") {
        plural.to_owned()
    } else {
        format!("{plural}.{group}")
    };
    ResourceInfo {
        group: group.into(),
        kind: kind.into(),
        list_kind: format!("{kind}List"),
        plural: plural.into(),
        singular: kind.to_lowercase(),
        short_names: short_names.split_whitespace().map(str::to_owned).collect(),
        categories: categories
            .iter()
            .filter(|(word, _)| has(word))
            .map(|(_, c)| (*c).to_owned())
            .collect(),
        namespaced: has("ns"),
        verbs: if has("review") {
            CREATE.to_vec()
        } else {
            verbs_of(plural)
        },
        versions: vec![VersionInfo {
            name: version.into(),
            deprecated: None,
            schema: None,
            structural: None,
            columns: Arc::new(
                table::builtin_columns(group, kind)
                    .unwrap_or_else(|| table::custom_columns(&Value::Null)),
            ),
            subresources,
            selectable_fields: fields,
        }],
        storage_version: version.into(),
        unserved: Vec::new(),
        table,
        conversion: None,
        origin: Origin::Builtin,
        traits: Traits {
            generation: has("gen"),
            unconditional_update: !has("cas"),
            create_on_update: has("cou"),
            keep_status_on_create: has("keep-status"),
            names,
        },
    }
}

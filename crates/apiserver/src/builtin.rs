//! Built-in kinds: the defaults and rules that clients and controllers rely on.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::meta;
use crate::registry::ResourceInfo;
use crate::schema::{FieldError, FieldErrorKind};

/// Label every namespace carries with its own name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// `stringData` is written into `data` and never stored.
fn secret_data(object: &mut Value) {
    let Some(map) = object.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(plain)) = map.remove("stringData") {
        let data = map.entry("data").or_insert_with(|| json!({}));
        if !data.is_object() {
            *data = json!({});
        }
        for (key, value) in plain {
            data[key] = json!(STANDARD.encode(value.as_str().unwrap_or_default()));
        }
    }
}

/// Sets `field` of a map where it is absent or null.
fn fallback(map: &mut Map<String, Value>, field: &str, value: impl FnOnce() -> Value) {
    let slot = map.entry(field).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value();
    }
}

fn spec(object: &mut Value) -> &mut Map<String, Value> {
    let map = object
        .as_object_mut()
        .expect("objects are maps: decoding checked it");
    let spec = map.entry("spec").or_insert_with(|| json!({}));
    if !spec.is_object() {
        *spec = json!({});
    }
    spec.as_object_mut().expect("made an object above")
}

/// The defaults of built-in kinds that clients and controllers rely on.
pub(crate) fn defaults(resource: &ResourceInfo, object: &mut Value) {
    crate::shown::fill_in(resource, object);
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Namespace") => {
            let name = meta::name(object).to_owned();
            let labels = meta::metadata_mut(object)
                .entry("labels")
                .or_insert_with(|| json!({}));
            labels[NAMESPACE_NAME] = json!(name);
        }
        ("", "ConfigMap") => drop_empty(object, &["data", "binaryData"]),
        ("", "Secret") => {
            drop_empty(object, &["data", "stringData"]);
            secret_data(object);
            let map = object
                .as_object_mut()
                .expect("objects are maps: decoding checked it");
            fallback(map, "type", || json!("Opaque"));
        }
        ("", "Service") => service(spec(object)),
        ("", "Pod") => {
            fallback(spec(object), "enableServiceLinks", || json!(true));
            pod(spec(object));
        }
        ("", "Endpoints") => {
            let subsets = object.get_mut("subsets").and_then(Value::as_array_mut);
            for subset in subsets.into_iter().flatten() {
                protocols(subset.get_mut("ports"));
            }
        }
        ("discovery.k8s.io", "EndpointSlice") => protocols(object.get_mut("ports")),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => binding(object),
        ("", "PersistentVolumeClaim") => {
            fallback(spec(object), "volumeMode", || json!("Filesystem"))
        }
        ("", "PersistentVolume") => {
            fallback(spec(object), "volumeMode", || json!("Filesystem"));
            fallback(spec(object), "persistentVolumeReclaimPolicy", || {
                json!("Retain")
            });
            host_path(spec(object));
        }
        ("storage.k8s.io", "StorageClass") => {
            let map = object
                .as_object_mut()
                .expect("objects are maps: decoding checked it");
            fallback(map, "reclaimPolicy", || json!("Delete"));
            fallback(map, "volumeBindingMode", || json!("Immediate"));
        }
        ("apps", "Deployment") => {
            let spec = spec(object);
            fallback(spec, "replicas", || json!(1));
            fallback(spec, "progressDeadlineSeconds", || json!(600));
            fallback(spec, "revisionHistoryLimit", || json!(10));
            rolling(
                spec,
                "strategy",
                json!({"maxSurge": "25%", "maxUnavailable": "25%"}),
            );
            template(spec, "Always");
        }
        ("", "PodTemplate") => {
            let map = object.as_object_mut();
            let template = map.and_then(|o| o.get_mut("template")?.as_object_mut());
            if let Some(spec) = template.and_then(|t| t.get_mut("spec")?.as_object_mut()) {
                pod(spec);
            }
        }
        ("apps", "ReplicaSet") | ("", "ReplicationController") => {
            if resource.group.is_empty() {
                labels_of_template(object);
            }
            fallback(spec(object), "replicas", || json!(1));
            template(spec(object), "Always");
        }
        ("apps", "StatefulSet") => {
            let spec = spec(object);
            fallback(spec, "replicas", || json!(1));
            fallback(spec, "podManagementPolicy", || json!("OrderedReady"));
            fallback(spec, "revisionHistoryLimit", || json!(10));
            rolling(spec, "updateStrategy", json!({"partition": 0}));
            template(spec, "Always");
        }
        ("apps", "DaemonSet") => {
            let spec = spec(object);
            fallback(spec, "revisionHistoryLimit", || json!(10));
            rolling(
                spec,
                "updateStrategy",
                json!({"maxSurge": 0, "maxUnavailable": 1}),
            );
            template(spec, "Always");
        }
        ("autoscaling", "HorizontalPodAutoscaler") => {
            let spec = spec(object);
            fallback(spec, "minReplicas", || json!(1));
            let cpu = json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}}]);
            fallback(spec, "metrics", || cpu);
        }
        ("batch", "Job") => {
            let spec = spec(object);
            // Either of them alone says that the other is not wanted.
            let absent = |field: &str| spec.get(field).is_none_or(Value::is_null);
            if absent("parallelism") && absent("completions") {
                spec.insert("completions".into(), json!(1));
            }
            fallback(spec, "parallelism", || json!(1));
            fallback(spec, "backoffLimit", || json!(6));
            fallback(spec, "completionMode", || json!("NonIndexed"));
            fallback(spec, "suspend", || json!(false));
            template(spec, "Never");
        }
        ("batch", "CronJob") => {
            let spec = spec(object);
            fallback(spec, "concurrencyPolicy", || json!("Allow"));
            fallback(spec, "suspend", || json!(false));
            fallback(spec, "successfulJobsHistoryLimit", || json!(3));
            fallback(spec, "failedJobsHistoryLimit", || json!(1));
        }
        ("", "LimitRange") => limits(spec(object)),
        ("networking.k8s.io", "NetworkPolicy") => network_policy(spec(object)),
        ("storage.k8s.io", "CSIDriver") => {
            let spec = spec(object);
            for (field, value) in [
                ("attachRequired", json!(true)),
                ("podInfoOnMount", json!(false)),
                ("storageCapacity", json!(false)),
                ("volumeLifecycleModes", json!(["Persistent"])),
                ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
                ("requiresRepublish", json!(false)),
                ("seLinuxMount", json!(false)),
            ] {
                fallback(spec, field, || value);
            }
        }
        ("apiextensions.k8s.io", _) => crate::crd::defaults(object),
        ("admissionregistration.k8s.io", kind) => crate::admission::defaults(kind, object),
        _ => {}
    }
}

/// What of the metadata a write to `/status` may change: of a custom resource and of a definition nothing, of other
/// kinds what their strategies do not reset.
pub(crate) fn written_with_status(resource: &ResourceInfo) -> &'static [&'static str] {
    match (resource.group.as_str(), resource.kind.as_str()) {
        _ if resource.is_custom() => &[],
        ("apiextensions.k8s.io" | "certificates.k8s.io", _) => &[],
        ("apps", "Deployment") => &["annotations", "finalizers", "ownerReferences"],
        ("", "Pod") => &["annotations", "finalizers", "labels"],
        _ => &["annotations", "finalizers", "labels", "ownerReferences"],
    }
}

/// How pods are replaced: bit by bit, with these numbers, unless something else is said.
fn rolling(spec: &mut Map<String, Value>, field: &str, numbers: Value) {
    fallback(spec, field, || json!({}));
    let Some(strategy) = spec.get_mut(field).and_then(Value::as_object_mut) else {
        return;
    };
    if strategy.get("type").is_some_and(|t| t == "") {
        strategy.remove("type");
    }
    fallback(strategy, "type", || json!("RollingUpdate"));
    if strategy.get("type").is_none_or(|t| t != "RollingUpdate") {
        return;
    }
    fallback(strategy, "rollingUpdate", || json!({}));
    let rolling = strategy
        .get_mut("rollingUpdate")
        .and_then(Value::as_object_mut);
    if let (Some(rolling), Value::Object(numbers)) = (rolling, numbers) {
        for (name, number) in numbers {
            fallback(rolling, &name, || number);
        }
    }
}

fn service(spec: &mut Map<String, Value>) {
    fallback(spec, "type", || json!("ClusterIP"));
    fallback(spec, "sessionAffinity", || json!("None"));
    if let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports.iter_mut().filter_map(Value::as_object_mut) {
            fallback(port, "protocol", || json!("TCP"));
            let number = port.get("port").cloned().unwrap_or_default();
            fallback(port, "targetPort", || number);
        }
    }
}

/// A container's limit is by default its greatest, and its request by default that, else its least.
fn limits(spec: &mut Map<String, Value>) {
    let items = spec.get_mut("limits").and_then(Value::as_array_mut);
    for item in items.into_iter().flatten().filter_map(Value::as_object_mut) {
        if item.get("type").is_none_or(|t| t != "Container") {
            continue;
        }
        for (field, source) in [
            ("default", "max"),
            ("defaultRequest", "default"),
            ("defaultRequest", "min"),
        ] {
            let from = item.get(source).cloned().unwrap_or_default();
            fallback(item, field, || json!({}));
            let known = item.get_mut(field).and_then(Value::as_object_mut);
            if let (Some(known), Value::Object(from)) = (known, from) {
                for (resource, amount) in from {
                    known.entry(resource).or_insert(amount);
                }
            }
        }
        item.retain(|field, value| {
            !field.starts_with("default") || value.as_object().is_none_or(|v| !v.is_empty())
        });
    }
}

fn network_policy(spec: &mut Map<String, Value>) {
    for list in ["ingress", "egress"] {
        let rules = spec.get_mut(list).and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten() {
            protocols(rule.get_mut("ports"));
        }
    }
    let egress = spec.get("egress").and_then(Value::as_array);
    let types = match egress.is_some_and(|e| !e.is_empty()) {
        true => json!(["Ingress", "Egress"]),
        false => json!(["Ingress"]),
    };
    fallback(spec, "policyTypes", || types);
}

fn protocols(ports: Option<&mut Value>) {
    let ports = ports.and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        fallback(port, "protocol", || json!("TCP"));
    }
}

/// The API group of the roles and of the subjects that are no ServiceAccounts.
const RBAC: &str = "rbac.authorization.k8s.io";

fn binding(object: &mut Value) {
    if let Some(role) = object.get_mut("roleRef").and_then(Value::as_object_mut) {
        fallback(role, "apiGroup", || json!(RBAC));
    }
    let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        if matches!(
            subject.get("kind").and_then(Value::as_str),
            Some("User" | "Group")
        ) {
            fallback(subject, "apiGroup", || json!(RBAC));
        }
    }
}

fn host_path(source: &mut Map<String, Value>) {
    if let Some(path) = source.get_mut("hostPath").and_then(Value::as_object_mut) {
        fallback(path, "type", || json!(""));
    }
}

fn volume(volume: &mut Map<String, Value>) {
    for source in ["configMap", "downwardAPI", "projected", "secret"] {
        if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
            fallback(source, "defaultMode", || json!(0o644));
        }
    }
    host_path(volume);
    if volume.len() == 1 && volume.contains_key("name") {
        volume.insert("emptyDir".into(), json!({}));
    }
}

fn probe(probe: &mut Map<String, Value>) {
    for (field, seconds) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        let slot = probe.entry(field).or_insert(Value::Null);
        if slot.is_null() || *slot == 0 {
            *slot = json!(seconds);
        }
    }
    if let Some(get) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
        fallback(get, "path", || json!("/"));
        fallback(get, "scheme", || json!("HTTP"));
    }
}

/// What has no labels gets those of its pods.
fn labels_of_template(object: &mut Value) {
    let given = meta::get(object, "labels").and_then(Value::as_object);
    let template = meta::field(object, "spec.template.metadata.labels").cloned();
    if given.is_none_or(Map::is_empty)
        && let Some(labels @ Value::Object(_)) = template
    {
        meta::metadata_mut(object).insert("labels".into(), labels);
    }
}

fn template(workload: &mut Map<String, Value>, restart: &str) {
    if let Some(template) = workload.get_mut("template").and_then(Value::as_object_mut)
        && let Some(spec) = template.get_mut("spec").and_then(Value::as_object_mut)
    {
        if restart == "Always" {
            fallback(spec, "restartPolicy", || json!(restart));
        }
        pod(spec);
    }
}

fn pod(spec: &mut Map<String, Value>) {
    fallback(spec, "restartPolicy", || json!("Always"));
    fallback(spec, "dnsPolicy", || json!("ClusterFirst"));
    fallback(spec, "schedulerName", || json!("default-scheduler"));
    fallback(spec, "terminationGracePeriodSeconds", || json!(30));
    fallback(spec, "securityContext", || json!({}));
    let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
    for entry in volumes
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        volume(entry);
    }
    for list in ["initContainers", "containers"] {
        let Some(containers) = spec.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            let image = container
                .get("image")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let latest = image.ends_with(":latest")
                || !image
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .contains([':', '@']);
            fallback(container, "imagePullPolicy", || {
                json!(if latest { "Always" } else { "IfNotPresent" })
            });
            fallback(container, "terminationMessagePath", || {
                json!("/dev/termination-log")
            });
            fallback(container, "terminationMessagePolicy", || json!("File"));
            fallback(container, "resources", || json!({}));
            protocols(container.get_mut("ports"));
            for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
                if let Some(found) = container.get_mut(name).and_then(Value::as_object_mut) {
                    probe(found);
                }
            }
            let env = container.get_mut("env").and_then(Value::as_array_mut);
            for entry in env.into_iter().flatten() {
                let from = entry.pointer_mut("/valueFrom/fieldRef");
                if let Some(from) = from.and_then(Value::as_object_mut) {
                    fallback(from, "apiVersion", || json!("v1"));
                }
            }
        }
    }
}

/// What the admission of a new pod adds for the scheduler: its priority, and how long it bears a node that is gone.
fn scheduling(spec: &mut Map<String, Value>) {
    if spec
        .get("priorityClassName")
        .is_none_or(|n| n.is_null() || n == "")
    {
        fallback(spec, "priority", || json!(0));
    }
    fallback(spec, "preemptionPolicy", || json!("PreemptLowerPriority"));
    fallback(spec, "tolerations", || json!([]));
    let Some(list) = spec.get_mut("tolerations").and_then(Value::as_array_mut) else {
        return;
    };
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let borne = |t: &Value| {
            let all = t.get("key").is_none_or(|k| k == "") && t["operator"] == "Exists";
            (all || t["key"] == key) && t.get("effect").is_none_or(|e| e == "NoExecute" || e == "")
        };
        if !list.iter().any(borne) {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
}

/// The count of template changes that a DaemonSet carries as an annotation.
pub(crate) fn template_generation(
    resource: &ResourceInfo,
    object: &mut Value,
    old: Option<&Value>,
) {
    const ANNOTATION: &str = "deprecated.daemonset.template.generation";
    if resource.group != "apps" || resource.kind != "DaemonSet" {
        return;
    }
    let template = |o: &Value| meta::field(o, "spec.template").cloned();
    let count = match old {
        None => 1,
        Some(old) => {
            let before = meta::get(old, "annotations")
                .and_then(|a| a.get(ANNOTATION)?.as_str()?.parse::<i64>().ok())
                .unwrap_or(1);
            before + i64::from(template(old) != template(object))
        }
    };
    let annotations = meta::metadata_mut(object)
        .entry("annotations")
        .or_insert_with(|| json!({}));
    annotations[ANNOTATION] = json!(count.to_string());
}

/// What exists only from the moment of creation on.
pub(crate) fn at_creation(resource: &ResourceInfo, object: &mut Value, uid: &str) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "Namespace") => {
            let mut held: Vec<Value> = meta::field(object, "spec.finalizers")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            if !held.contains(&json!("kubernetes")) {
                held.push(json!("kubernetes"));
            }
            meta::set_field(object, "spec.finalizers", Value::Array(held));
            meta::set_field(object, "status.phase", json!("Active"));
        }
        ("", "Pod") => {
            let account = meta::field(object, "spec.serviceAccountName")
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_owned();
            let account = if account.is_empty() {
                "default".to_owned()
            } else {
                account
            };
            meta::set_field(object, "spec.serviceAccountName", json!(account));
            meta::set_field(object, "spec.serviceAccount", json!(account));
            scheduling(spec(object));
            meta::set_field(
                object,
                "status",
                json!({"phase": "Pending", "qosClass": "BestEffort"}),
            );
        }
        ("", "PersistentVolumeClaim") => {
            meta::set_field(object, "status", json!({"phase": "Pending"}))
        }
        ("", "PersistentVolume") => meta::set_field(object, "status", json!({"phase": "Pending"})),
        ("", "Service") => meta::set_field(object, "status", json!({"loadBalancer": {}})),
        ("batch", "Job")
            if meta::field(object, "spec.manualSelector") != Some(&Value::Bool(true)) =>
        {
            let name = meta::name(object).to_owned();
            let labels = json!({
                "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name, "controller-uid": uid, "job-name": name,
            });
            meta::set_field(
                object,
                "spec.selector",
                json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}),
            );
            for (key, value) in labels.as_object().into_iter().flatten() {
                if !object["spec"]["template"]["metadata"]["labels"].is_object() {
                    meta::set_field(object, "spec.template.metadata.labels", json!({}));
                }
                object["spec"]["template"]["metadata"]["labels"][key] = value.clone();
            }
            labels_of_template(object);
        }
        _ => {}
    }
}

/// Maps without entries are as good as none, and not stored.
fn drop_empty(object: &mut Value, fields: &[&str]) {
    if let Some(map) = object.as_object_mut() {
        let empty = |v: &Value| v.as_object().is_some_and(Map::is_empty);
        map.retain(|name, value| !(fields.contains(&name.as_str()) && empty(value)));
    }
}

/// The rules of built-in kinds that a controller can trip over.
pub(crate) fn validate(
    resource: &ResourceInfo,
    new: &Value,
    old: Option<&Value>,
    errors: &mut Vec<FieldError>,
) {
    match (resource.group.as_str(), resource.kind.as_str()) {
        ("", "ConfigMap" | "Secret") => {
            if let Some(old) = old.filter(|o| o.get("immutable") == Some(&Value::Bool(true))) {
                for field in ["data", "binaryData"] {
                    if old.get(field) != new.get(field) {
                        errors.push(FieldError::forbidden(
                            field,
                            "field is immutable when `immutable` is set",
                        ));
                    }
                }
                if new.get("immutable") != Some(&Value::Bool(true)) {
                    errors.push(FieldError::forbidden(
                        "immutable",
                        "field is immutable when `immutable` is set",
                    ));
                }
            }
            if resource.kind == "Secret"
                && let Some(old) = old
                && old.get("type") != new.get("type")
            {
                errors.push(immutable("type", new.get("type")));
            }
            secret_or_config_size(new, errors);
            in_both(new, errors);
            if resource.kind == "Secret" {
                secret_keys(new, errors);
            }
        }
        ("", "Namespace") => {
            let own = meta::field(new, "spec.finalizers").and_then(Value::as_array);
            for (n, finalizer) in own.into_iter().flatten().enumerate() {
                if !finalizer.as_str().is_some_and(crate::names::is_finalizer) {
                    // A new one is looked at as a whole.
                    let path = match old {
                        Some(_) => format!("spec.finalizers[{n}]"),
                        None => "spec.finalizers".into(),
                    };
                    let name = finalizer.as_str().unwrap_or_default();
                    for why in crate::names::qualified_problems(name) {
                        errors.push(FieldError::invalid(path.clone(), finalizer.clone(), why));
                    }
                    errors.push(FieldError::invalid(path, finalizer.clone(), NO_FINALIZER));
                }
            }
            let phase = meta::field_text(new, "status.phase");
            let (wanted, empty) = match meta::is_deleting(new) {
                true => ("Terminating", "not empty"),
                false => ("Active", "empty"),
            };
            if !phase.is_empty() && phase != wanted && old.is_some() {
                let why = format!("may only be '{wanted}' if `deletionTimestamp` is {empty}");
                errors.push(FieldError::invalid("status.Phase", json!(phase), why));
            }
        }
        ("coordination.k8s.io", "Lease") => {
            let number = |field: &str| meta::field(new, field).and_then(Value::as_i64);
            if let Some(seconds) = number("spec.leaseDurationSeconds").filter(|n| *n <= 0) {
                let field = "spec.leaseDurationSeconds";
                errors.push(FieldError::invalid(
                    field,
                    json!(seconds),
                    "must be greater than 0",
                ));
            }
            if let Some(times) = number("spec.leaseTransitions").filter(|n| *n < 0) {
                let why = "must to greater or equal than 0";
                errors.push(FieldError::invalid(
                    "spec.leaseTransitions",
                    json!(times),
                    why,
                ));
            }
        }
        ("", "Service") => {
            if let Some(old) = old {
                crate::rules::cluster_ip(new, old, errors);
            }
            service_ports(new, errors);
        }
        ("", "Event") => crate::rules::event(new, false, errors),
        ("events.k8s.io", "Event") => crate::rules::event(new, old.is_none(), errors),
        ("", "Endpoints") => crate::rules::endpoints(new, errors),
        ("", "PersistentVolume") => {
            let spec = new.get("spec").and_then(Value::as_object);
            if old.is_none() && !spec.is_some_and(crate::rules::has_volume) {
                errors.push(FieldError::required("spec", "must specify a volume type"));
            }
        }
        ("batch", "Job") => {
            let policy = meta::field_text(new, "spec.template.spec.restartPolicy");
            if !matches!(policy.as_str(), "Never" | "OnFailure") {
                errors.push(FieldError::required(
                    "spec.template.spec.restartPolicy",
                    "valid values: \"OnFailure\", \"Never\"",
                ));
            }
            if let Some(old) = old {
                crate::rules::job_update(new, old, errors);
            }
        }
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => {
            role(new, resource.kind == "Role", errors)
        }
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet") => {
            not_negative(new, "spec.replicas", errors);
            selector(new, old, errors);
            if resource.kind == "Deployment" {
                crate::rules::strategy(new, errors);
            }
            crate::rules::pod_template(new, "spec.template.spec", errors);
            if let Some(old) = old.filter(|_| resource.kind == "StatefulSet") {
                crate::rules::stateful_set(new, old, errors);
            }
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            crate::rules::binding(new, resource.kind == "RoleBinding", errors);
            if let Some(old) = old
                && old.get("roleRef") != new.get("roleRef")
            {
                errors.push(FieldError::invalid(
                    "roleRef",
                    new.get("roleRef").cloned().unwrap_or_default(),
                    "cannot change roleRef",
                ));
            }
        }
        ("storage.k8s.io", "StorageClass") => {
            if new
                .get("provisioner")
                .and_then(Value::as_str)
                .unwrap_or("")
                .is_empty()
            {
                errors.push(FieldError::required("provisioner", ""));
            }
            if let Some(old) = old {
                for field in [
                    "parameters",
                    "provisioner",
                    "reclaimPolicy",
                    "volumeBindingMode",
                ] {
                    if old.get(field) != new.get(field) {
                        errors.push(FieldError::forbidden(
                            field,
                            format!("updates to {field} are forbidden."),
                        ));
                    }
                }
            }
        }
        ("", "PersistentVolumeClaim") => claim(new, old, errors),
        ("", "Pod") => {
            crate::rules::pod_template(new, "spec", errors);
            if let Some(old) = old {
                crate::rules::pod_update(new, old, errors);
            }
        }
        ("apiextensions.k8s.io", _) => errors.extend(crate::crd::validate(new, old)),
        ("admissionregistration.k8s.io", _) => errors.extend(crate::admission::validate(new, old)),
        _ => {}
    }
}

/// About a finalizer without a domain that is none of Kubernetes' own.
pub(crate) const NO_FINALIZER: &str =
    "name is neither a standard finalizer name nor is it fully qualified";

fn in_both(object: &Value, errors: &mut Vec<FieldError>) {
    let keys = |field: &str| object.get(field).and_then(Value::as_object);
    let Some(binary) = keys("binaryData") else {
        return;
    };
    for key in keys("data").into_iter().flatten().map(|(k, _)| k) {
        if binary.contains_key(key) {
            let why = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(format!("data[{key}]"), json!(key), why));
        }
    }
}

/// The keys that the type of a Secret asks for.
fn secret_keys(object: &Value, errors: &mut Vec<FieldError>) {
    let has = |key: &str| object.pointer(&format!("/data/{key}")).is_some();
    let kind = object
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let wanted: &[&str] = match kind {
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            &["username", "password"]
        }
        _ => &[],
    };
    if let Some(config) = object
        .pointer("/data/.dockerconfigjson")
        .filter(|_| kind == "kubernetes.io/dockerconfigjson")
    {
        let decoded = STANDARD
            .decode(config.as_str().unwrap_or_default())
            .unwrap_or_default();
        if serde_json::from_slice::<Value>(&decoded).is_err() {
            let first = String::from_utf8_lossy(&decoded).chars().next();
            let why = match first {
                Some(first) => {
                    format!("invalid character '{first}' looking for beginning of value")
                }
                None => "unexpected end of JSON input".into(),
            };
            let hidden = json!("<secret contents redacted>");
            errors.push(FieldError::invalid("data[.dockerconfigjson]", hidden, why));
        }
    }
    for key in wanted.iter().filter(|key| !has(key)) {
        errors.push(FieldError::required(format!("data[{key}]"), ""));
    }
}

fn service_ports(object: &Value, errors: &mut Vec<FieldError>) {
    let none = Vec::new();
    let ports = meta::field(object, "spec.ports").and_then(Value::as_array);
    let ports = ports.unwrap_or(&none);
    let text = |field: &str| meta::field_text(object, field);
    if ports.is_empty() && text("spec.clusterIP") != "None" && text("spec.type") != "ExternalName" {
        errors.push(FieldError::required("spec.ports", ""));
    }
    for (i, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{i}]");
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        if ports.len() > 1 && name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        for field in ["port", "targetPort"] {
            let number = port.get(field).and_then(Value::as_i64);
            if let Some(number) = number.filter(|n| !(1..=65535).contains(n)) {
                let why = "must be between 1 and 65535, inclusive";
                errors.push(FieldError::invalid(
                    format!("{path}.{field}"),
                    json!(number),
                    why,
                ));
            }
        }
    }
}

fn role(object: &Value, namespaced: bool, errors: &mut Vec<FieldError>) {
    let rules = object.get("rules").and_then(Value::as_array);
    for (i, rule) in rules.into_iter().flatten().enumerate() {
        let path = format!("rules[{i}]");
        let empty = |field: &str| {
            let list = rule.get(field).and_then(Value::as_array);
            list.is_none_or(Vec::is_empty)
        };
        let mut missing = |field: &str, why: &str| {
            errors.push(FieldError::required(format!("{path}.{field}"), why));
        };
        if empty("verbs") {
            missing("verbs", "verbs must contain at least one value");
        }
        if !empty("nonResourceURLs") {
            if namespaced {
                errors.push(FieldError::invalid(
                    format!("{path}.nonResourceURLs"),
                    rule["nonResourceURLs"].clone(),
                    "namespaced rules cannot apply to non-resource URLs",
                ));
            }
            continue;
        }
        if empty("apiGroups") {
            missing(
                "apiGroups",
                "resource rules must supply at least one api group",
            );
        }
        if empty("resources") {
            missing(
                "resources",
                "resource rules must supply at least one resource",
            );
        }
    }
}

fn immutable(path: &str, value: Option<&Value>) -> FieldError {
    FieldError::invalid(
        path,
        value.cloned().unwrap_or_default(),
        "field is immutable",
    )
}

fn secret_or_config_size(object: &Value, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for field in ["data", "binaryData"] {
        for (key, value) in object
            .get(field)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            if key.is_empty()
                || !key
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            {
                let detail = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
                errors.push(FieldError::invalid(
                    format!("{field}[{key}]"),
                    json!(key),
                    detail,
                ));
            }
            let dots = match key.as_str() {
                "." => Some("must not be '.'"),
                ".." => Some("must not be '..'"),
                key if key.starts_with("..") => Some("must not start with '..'"),
                _ => None,
            };
            if let Some(why) = dots {
                errors.push(FieldError::invalid(
                    format!("{field}[{key}]"),
                    json!(key),
                    why,
                ));
            }
            size += value.as_str().map_or(0, str::len);
        }
    }
    if size > 1024 * 1024 * 4 / 3 {
        errors.push(FieldError::new(
            "data",
            FieldErrorKind::TooLong,
            None,
            "must have at most 1048576 bytes",
        ));
    }
}

fn not_negative(object: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let number = meta::field(object, field).and_then(Value::as_i64);
    if let Some(number) = number.filter(|n| *n < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(field, json!(number), why));
    }
}

fn selector(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let Some(selector) = meta::field(new, "spec.selector").filter(|s| !s.is_null()) else {
        errors.push(FieldError::required("spec.selector", ""));
        if old.is_some_and(|old| meta::field(old, "spec.selector").is_some()) {
            let why = "field is immutable";
            errors.push(FieldError::invalid("spec.selector", Value::Null, why));
        }
        // It selects nothing, not even its own pods.
        errors.push(FieldError::invalid(
            "spec.template.metadata.labels",
            meta::field(new, "spec.template.metadata.labels")
                .cloned()
                .unwrap_or_default(),
            "`selector` does not match template `labels`",
        ));
        return;
    };
    match crate::selector::Labels::from_label_selector(selector) {
        Ok(labels) => {
            let template = meta::field(new, "spec.template.metadata.labels");
            if !labels.matches(template) {
                let detail = "`selector` does not match template `labels`";
                errors.push(FieldError::invalid(
                    "spec.template.metadata.labels",
                    template.cloned().unwrap_or_default(),
                    detail,
                ));
            }
        }
        Err(problem) => errors.push(FieldError::invalid(
            "spec.selector",
            selector.clone(),
            problem,
        )),
    }
    if let Some(old) = old
        && meta::field(old, "spec.selector") != Some(selector)
    {
        errors.push(immutable("spec.selector", Some(selector)));
    }
}

fn claim(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if meta::field(new, "spec.accessModes")
        .and_then(Value::as_array)
        .is_none_or(Vec::is_empty)
    {
        errors.push(FieldError::required(
            "spec.accessModes",
            "at least 1 access mode is required",
        ));
    }
    if new.pointer("/spec/resources/requests/storage").is_none() {
        errors.push(FieldError::required("spec.resources[storage]", ""));
    }
    let Some(old) = old else { return };
    // Bound claims are immutable but for their size; a claim may be bound by a controller, and only once.
    for field in [
        "spec.accessModes",
        "spec.selector",
        "spec.storageClassName",
        "spec.volumeMode",
        "spec.dataSource",
        "spec.volumeName",
    ] {
        let before = meta::field(old, field).filter(|v| !v.is_null());
        let after = meta::field(new, field).filter(|v| !v.is_null());
        let first =
            before.is_none() && matches!(field, "spec.volumeName" | "spec.storageClassName");
        if before != after && !first {
            let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
            errors.push(FieldError::forbidden("spec", detail));
            return;
        }
    }
}

//! Rules of built-in kinds that need more than a line.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::meta;
use crate::names;
use crate::schema::FieldError;

const RBAC: &str = "rbac.authorization.k8s.io";

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn list<'v>(value: &'v Value, path: &str) -> &'v [Value] {
    meta::field(value, path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// A binding names a role and subjects that there can be.
pub(crate) fn binding(object: &Value, namespaced: bool, errors: &mut Vec<FieldError>) {
    let none = Value::Null;
    let role = object.get("roleRef").unwrap_or(&none);
    let mut one_of = |path: String, value: &str, supported: &[&str]| {
        if !supported.contains(&value) {
            let supported: Vec<String> = supported.iter().map(|s| (*s).to_owned()).collect();
            errors.push(FieldError::not_supported(path, json!(value), &supported));
        }
    };
    one_of("roleRef.apiGroup".into(), text(role, "apiGroup"), &[RBAC]);
    let kinds: &[&str] = match namespaced {
        true => &["Role", "ClusterRole"],
        false => &["ClusterRole"],
    };
    one_of("roleRef.kind".into(), text(role, "kind"), kinds);
    if text(role, "name").is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    } else if let Some(why) =
        names::name_problem(crate::registry::NameRule::PathSegment, text(role, "name"))
    {
        let name = json!(text(role, "name"));
        errors.push(FieldError::invalid("roleRef.name", name, why));
    }
    for (i, subject) in list(object, "subjects").iter().enumerate() {
        self::subject(subject, namespaced, &format!("subjects[{i}]"), errors);
    }
}

fn subject(subject: &Value, namespaced: bool, path: &str, errors: &mut Vec<FieldError>) {
    let name = text(subject, "name");
    let group = text(subject, "apiGroup");
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let wanted = match text(subject, "kind") {
        "ServiceAccount" => {
            let rule = crate::registry::NameRule::Subdomain;
            if let Some(why) = names::name_problem(rule, name).filter(|_| !name.is_empty()) {
                errors.push(FieldError::invalid(
                    format!("{path}.name"),
                    json!(name),
                    why,
                ));
            }
            if !namespaced && text(subject, "namespace").is_empty() {
                errors.push(FieldError::required(format!("{path}.namespace"), ""));
            }
            ""
        }
        "User" | "Group" => RBAC,
        kind => {
            let supported = ["ServiceAccount", "User", "Group"].map(str::to_owned);
            let path = format!("{path}.kind");
            errors.push(FieldError::not_supported(path, json!(kind), &supported));
            return;
        }
    };
    if group != wanted {
        let path = format!("{path}.apiGroup");
        errors.push(FieldError::not_supported(
            path,
            json!(group),
            &[wanted.to_owned()],
        ));
    }
}

/// Of a StatefulSet's spec little may change.
pub(crate) fn stateful_set(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    const MAY_CHANGE: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let fixed = |object: &Value| {
        let mut spec = object.get("spec").cloned().unwrap_or_default();
        if let Some(map) = spec.as_object_mut() {
            map.retain(|field, value| !MAY_CHANGE.contains(&field.as_str()) && !value.is_null());
        }
        spec
    };
    if fixed(new) != fixed(old) {
        let why = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
        errors.push(FieldError::forbidden("spec", why));
    }
}

/// The address of a Service stays while it has one.
pub(crate) fn cluster_ip(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let address = |o: &Value| meta::field_text(o, "spec.clusterIP");
    let external = |o: &Value| meta::field_text(o, "spec.type") == "ExternalName";
    let (was, is) = (address(old), address(new));
    if !external(old) && !external(new) && !was.is_empty() && was != is {
        errors.push(FieldError::invalid(
            "spec.clusterIPs[0]",
            json!([is]),
            "may not change once set",
        ));
    }
}

/// A pod's containers have images.
fn containers(object: &Value, spec: &str, errors: &mut Vec<FieldError>) {
    for field in ["initContainers", "containers"] {
        for (i, container) in list(object, &format!("{spec}.{field}")).iter().enumerate() {
            for required in ["name", "image"] {
                if text(container, required).is_empty() {
                    let path = format!("{spec}.{field}[{i}].{required}");
                    errors.push(FieldError::required(path, ""));
                }
            }
            let at = format!("{spec}.{field}[{i}]");
            for (n, port) in list(container, "ports").iter().enumerate() {
                if port
                    .get("containerPort")
                    .is_none_or(|p| p.is_null() || *p == 0)
                {
                    let path = format!("{at}.ports[{n}].containerPort");
                    errors.push(FieldError::required(path, ""));
                }
            }
            for (n, variable) in list(container, "env").iter().enumerate() {
                if text(variable, "name").is_empty() {
                    errors.push(FieldError::required(format!("{at}.env[{n}].name"), ""));
                }
            }
        }
    }
}

/// How a Deployment replaces its pods.
pub(crate) fn strategy(object: &Value, errors: &mut Vec<FieldError>) {
    const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
    let path = "spec.strategy.rollingUpdate";
    let Some(rolling) = meta::field(object, path).filter(|r| !r.is_null()) else {
        return;
    };
    if meta::field_text(object, "spec.strategy.type") == "Recreate" {
        let why = "may not be specified when strategy `type` is 'Recreate'";
        errors.push(FieldError::forbidden(path, why));
        return;
    }
    for field in ["maxUnavailable", "maxSurge"] {
        let at = format!("{path}.{field}");
        match rolling.get(field) {
            Some(Value::String(text)) => {
                let number = text.strip_suffix('%').unwrap_or_default();
                if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
                    errors.push(FieldError::invalid(at, json!(text), PERCENT));
                }
            }
            Some(number) if number.as_i64().is_some_and(|n| n < 0) => {
                let why = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(at, number.clone(), why));
            }
            _ => {}
        }
    }
}

/// What a pod or the template of pods must have: containers, and one source for each volume.
pub(crate) fn pod_template(object: &Value, spec: &str, errors: &mut Vec<FieldError>) {
    /// In the order in which they are looked at: the second and later ones are refused.
    const SOURCES: [&str; 29] = [
        "emptyDir",
        "hostPath",
        "gitRepo",
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "secret",
        "nfs",
        "iscsi",
        "glusterfs",
        "persistentVolumeClaim",
        "rbd",
        "cinder",
        "cephfs",
        "flocker",
        "downwardAPI",
        "fc",
        "azureFile",
        "configMap",
        "vsphereVolume",
        "quobyte",
        "azureDisk",
        "storageos",
        "photonPersistentDisk",
        "portworxVolume",
        "scaleIO",
        "projected",
        "csi",
        "ephemeral",
        "image",
    ];
    for (i, volume) in list(object, &format!("{spec}.volumes")).iter().enumerate() {
        let given = SOURCES
            .iter()
            .filter(|s| volume.get(**s).is_some_and(|v| !v.is_null()));
        for source in given.skip(1) {
            let path = format!("{spec}.volumes[{i}].{source}");
            let why = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(path, why));
        }
    }
    if list(object, &format!("{spec}.containers")).is_empty() {
        errors.push(FieldError::required(format!("{spec}.containers"), ""));
    }
    containers(object, spec, errors);
}

/// Whether the spec of a PersistentVolume says where the volume is.
pub(crate) fn has_volume(spec: &Map<String, Value>) -> bool {
    const OTHER: [&str; 4] = ["capacity", "claimRef", "nodeAffinity", "resources"];
    spec.iter()
        .any(|(field, value)| value.is_object() && !OTHER.contains(&field.as_str()))
}

/// Endpoints are addresses.
pub(crate) fn endpoints(object: &Value, errors: &mut Vec<FieldError>) {
    for (i, subset) in list(object, "subsets").iter().enumerate() {
        for field in ["addresses", "notReadyAddresses"] {
            for (j, address) in list(subset, field).iter().enumerate() {
                let ip = text(address, "ip");
                if ip.parse::<IpAddr>().is_err() {
                    let path = format!("subsets[{i}].{field}[{j}].ip");
                    for why in [
                        "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                        "must be a valid IP address",
                    ] {
                        errors.push(FieldError::invalid(path.clone(), json!(ip), why));
                    }
                }
            }
        }
    }
}

/// An event is about something in its namespace; one with a time of its own says who did what. `new_face`: what is
/// created as `events.k8s.io/v1` leaves the older fields alone.
pub(crate) fn event(object: &Value, new_face: bool, errors: &mut Vec<FieldError>) {
    let either = |a: &str, b: &str| {
        let value = object.get(a).or_else(|| object.get(b));
        value.filter(|v| !v.is_null()).cloned().unwrap_or_default()
    };
    let about = either("involvedObject", "regarding");
    let (inside, namespace) = (text(&about, "namespace"), meta::namespace(object));
    let fits = match inside {
        "" => namespace == "default",
        inside => inside == namespace,
    };
    if !fits {
        errors.push(FieldError::invalid(
            "involvedObject.namespace",
            json!(inside),
            "does not match event.namespace",
        ));
    }
    if object.get("eventTime").is_none_or(Value::is_null) {
        if new_face {
            errors.push(FieldError::required("eventTime", ""));
        }
        return;
    }
    let controller = match object.get("apiVersion") == Some(&json!("v1")) {
        true => "reportingComponent",
        false => "reportingController",
    };
    let by = either("reportingController", "reportingComponent");
    let by = by.as_str().unwrap_or_default();
    if by.is_empty() {
        errors.push(FieldError::required(controller, ""));
    }
    if let Some(why) = names::qualified_problem(by) {
        errors.push(FieldError::invalid(controller, json!(by), why));
    }
    if by.is_empty() {
        let why = names::qualified_problem("-").unwrap_or_default();
        errors.push(FieldError::invalid(controller, json!(by), why));
    }
    for field in ["reportingInstance", "action", "reason"] {
        if text(object, field).is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
    let kind = text(object, "type");
    if new_face && !matches!(kind, "Normal" | "Warning") {
        let why = format!("has invalid value: {kind}");
        errors.push(FieldError::invalid("type", json!(""), why));
    }
}

/// A value as it is compared: nothing, an empty list and an empty map are the same.
fn compared(value: Option<&Value>) -> Value {
    match value {
        Some(Value::Object(map)) => {
            let parts = map.iter().map(|(k, v)| (k.clone(), compared(Some(v))));
            let map: Map<String, Value> = parts.filter(|(_, v)| !v.is_null()).collect();
            match map.is_empty() {
                true => Value::Null,
                false => Value::Object(map),
            }
        }
        Some(Value::Array(items)) if !items.is_empty() => {
            items.iter().map(|v| compared(Some(v))).collect()
        }
        Some(Value::Array(_)) | None => Value::Null,
        Some(other) => other.clone(),
    }
}

/// What of a Job may not change (pkg/apis/batch/validation).
pub(crate) fn job_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let immutable = |path: &str, old: &Value| {
        let is = meta::field(new, path);
        let changed = compared(is) != compared(meta::field(old, path));
        let why = "field is immutable";
        changed.then(|| FieldError::invalid(path, is.cloned().unwrap_or_default(), why))
    };
    let (completions, parallelism) = ("spec.completions", "spec.parallelism");
    if meta::field_text(new, "spec.completionMode") == "Indexed" {
        let is = meta::field(new, completions).filter(|v| !v.is_null());
        let changed = is.filter(|is| meta::field(old, completions) != Some(is));
        if let Some(is) = changed.filter(|is| meta::field(new, parallelism) != Some(is)) {
            let why = format!("can only be modified in tandem with {parallelism}");
            errors.push(FieldError::invalid(completions, is.clone(), why));
        }
    } else {
        errors.extend(immutable(completions, old));
    }
    errors.extend(immutable("spec.selector", old));
    // Where the pods of a suspended Job go may be said until it starts for the first time.
    let mut then = old.clone();
    let suspended = meta::field(old, "spec.suspend") == Some(&Value::Bool(true));
    if suspended && meta::field(old, "status.startTime").is_none_or(Value::is_null) {
        for field in [
            "metadata.annotations",
            "metadata.labels",
            "spec.affinity.nodeAffinity",
            "spec.nodeSelector",
            "spec.tolerations",
            "spec.schedulingGates",
        ] {
            let path = format!("spec.template.{field}");
            let is = meta::field(new, &path).cloned().unwrap_or_default();
            meta::set_field(&mut then, &path, is);
        }
    }
    errors.extend(immutable("spec.template", &then));
    errors.extend(immutable("spec.completionMode", old));
}

/// What of a pod's spec may change (pkg/apis/core/validation).
pub(crate) fn pod_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let (Some(is), Some(was)) = (new.get("spec"), old.get("spec")) else {
        return;
    };
    for kind in ["containers", "initContainers"] {
        if list(is, kind).len() != list(was, kind).len() {
            let why = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(format!("spec.{kind}"), why));
            return;
        }
    }
    let deadline = |spec: &Value| spec.get("activeDeadlineSeconds").and_then(Value::as_i64);
    let path = "spec.activeDeadlineSeconds";
    match (deadline(is), deadline(was)) {
        (Some(is), _) if !(0..=i64::from(i32::MAX)).contains(&is) => {
            let why = "must be between 0 and 2147483647, inclusive";
            errors.push(FieldError::invalid(path, json!(is), why));
            return;
        }
        (Some(is), Some(was)) if was < is => {
            let why = "must be less than or equal to previous value";
            errors.push(FieldError::invalid(path, json!(is), why));
            return;
        }
        (None, Some(_)) => {
            let why = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(path, Value::Null, why));
        }
        _ => {}
    }
    let timeless = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Some(map) = toleration.as_object_mut() {
            map.remove("tolerationSeconds");
        }
        compared(Some(&toleration))
    };
    let tolerations: Vec<Value> = list(is, "tolerations").iter().map(timeless).collect();
    let kept = |toleration: &Value| tolerations.contains(&timeless(toleration));
    if !list(was, "tolerations").iter().all(kept) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden("spec.tolerations", why));
    }
    let mut rest = is.clone();
    for kind in ["containers", "initContainers"] {
        let containers = rest.get_mut(kind).and_then(Value::as_array_mut);
        for (container, was) in containers.into_iter().flatten().zip(list(was, kind)) {
            container["image"] = was["image"].clone();
        }
    }
    // Gates of a pod that is not scheduled go one by one.
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        rest[field] = was.get(field).cloned().unwrap_or_default();
    }
    let grace = "terminationGracePeriodSeconds";
    if was[grace].as_i64().is_some_and(|was| was < 0) && rest[grace] == 1 {
        rest[grace] = was[grace].clone();
    }
    if compared(Some(&rest)) != compared(Some(was)) {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        errors.push(FieldError::forbidden("spec", detail));
    }
}

//! What built-in kinds always show: structs and times that are there even where nobody wrote them, and no empty lists.

use serde_json::{Map, Value, json};

use crate::registry::ResourceInfo;

/// Times of a condition, per kind.
fn times(group: &str, kind: &str) -> &'static [&'static str] {
    match (group, kind) {
        ("", "Pod" | "PersistentVolumeClaim") | ("batch", "Job") => {
            &["lastProbeTime", "lastTransitionTime"]
        }
        ("", "Node") => &["lastHeartbeatTime", "lastTransitionTime"],
        ("", "Namespace" | "ReplicationController")
        | ("apps", "ReplicaSet" | "StatefulSet" | "DaemonSet") => &["lastTransitionTime"],
        ("apps", "Deployment") => &["lastTransitionTime", "lastUpdateTime"],
        _ => &[],
    }
}

fn fallback(map: &mut Map<String, Value>, field: &str, value: Value) {
    let slot = map.entry(field).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value;
    }
}

/// Makes an object what its type makes of it.
pub(crate) fn fill_in(resource: &ResourceInfo, object: &mut Value) {
    let (group, kind) = (resource.group.as_str(), resource.kind.as_str());
    if !matches!(group, "apiextensions.k8s.io" | "discovery.k8s.io") {
        drop_empty_lists(object);
    }
    let conditions = object.pointer_mut("/status/conditions");
    let conditions = conditions.and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if let Some(condition) = condition.as_object_mut() {
            for time in times(group, kind) {
                fallback(condition, time, Value::Null);
            }
        }
    }
    let Some(map) = object.as_object_mut() else {
        return;
    };
    match (group, kind) {
        ("apps", "Deployment") | ("batch", "Job" | "CronJob") => fallback(map, "status", json!({})),
        ("", "Node") => fallback(map, "spec", json!({})),
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => {
            map.entry("rules").or_insert(Value::Null);
        }
        ("", "Event") => core_event(map),
        ("events.k8s.io", "Event") => new_event(map),
        ("", "Pod") => {
            if let Some(status) = map.get_mut("status").and_then(Value::as_object_mut)
                && !status.contains_key("podIPs")
                && let Some(ip) = status.get("podIP").filter(|ip| ip.is_string()).cloned()
            {
                status.insert("podIPs".into(), json!([{"ip": ip}]));
            }
        }
        _ => {}
    }
}

/// An event as `v1` shows it.
pub(crate) fn core_event(map: &mut Map<String, Value>) {
    for time in ["eventTime", "firstTimestamp", "lastTimestamp"] {
        map.entry(time).or_insert(Value::Null);
    }
    for field in ["involvedObject", "source"] {
        fallback(map, field, json!({}));
    }
    for field in ["reportingComponent", "reportingInstance"] {
        fallback(map, field, json!(""));
    }
}

/// An event as `events.k8s.io/v1` shows it.
pub(crate) fn new_event(map: &mut Map<String, Value>) {
    for time in [
        "eventTime",
        "deprecatedFirstTimestamp",
        "deprecatedLastTimestamp",
    ] {
        map.entry(time).or_insert(Value::Null);
    }
    for field in ["regarding", "deprecatedSource"] {
        fallback(map, field, json!({}));
    }
    for field in ["reportingController", "reportingInstance"] {
        if map.get(field).is_some_and(|v| v.is_null() || v == "") {
            map.remove(field);
        }
    }
}

/// Built-in kinds are stored in a form that does not tell an empty list from none.
fn drop_empty_lists(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, value| {
                name == "managedFields" || !value.as_array().is_some_and(Vec::is_empty)
            });
            map.values_mut().for_each(drop_empty_lists);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty_lists),
        _ => {}
    }
}

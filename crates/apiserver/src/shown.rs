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

/// Fields of the status that are there even where they are nothing, per kind.
fn counts(group: &str, kind: &str) -> &'static [&'static str] {
    match (group, kind) {
        ("", "ReplicationController") | ("apps", "ReplicaSet") => &["replicas"],
        ("apps", "StatefulSet") => &["availableReplicas", "replicas"],
        ("apps", "DaemonSet") => &[
            "currentNumberScheduled",
            "desiredNumberScheduled",
            "numberMisscheduled",
            "numberReady",
        ],
        ("policy", "PodDisruptionBudget") => &[
            "currentHealthy",
            "desiredHealthy",
            "disruptionsAllowed",
            "expectedPods",
        ],
        _ => &[],
    }
}

/// What a node tells of itself.
const NODE_INFO: [&str; 10] = [
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
];

/// A map in a field of a map.
fn inner<'a>(map: &'a mut Map<String, Value>, field: &str) -> Option<&'a mut Map<String, Value>> {
    fallback(map, field, json!({}));
    map.get_mut(field)?.as_object_mut()
}

fn node(map: &mut Map<String, Value>) {
    fallback(map, "spec", json!({}));
    let Some(status) = inner(map, "status") else {
        return;
    };
    let endpoints = inner(status, "daemonEndpoints");
    if let Some(kubelet) = endpoints.and_then(|e| inner(e, "kubeletEndpoint")) {
        fallback(kubelet, "Port", json!(0));
    }
    if let Some(info) = inner(status, "nodeInfo") {
        for field in NODE_INFO {
            fallback(info, field, json!(""));
        }
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
    let counts = counts(group, kind);
    if !counts.is_empty()
        && let Some(status) = inner(map, "status")
    {
        for count in counts {
            fallback(status, count, json!(0));
        }
    }
    match (group, kind) {
        ("apps", "Deployment") | ("batch", "Job" | "CronJob") => fallback(map, "status", json!({})),
        ("", "Node") => node(map),
        ("storage.k8s.io", "VolumeAttachment") => {
            if let Some(status) = inner(map, "status") {
                fallback(status, "attached", json!(false));
            }
        }
        ("storage.k8s.io", "CSINode") => {
            let drivers = map.get_mut("spec").and_then(|s| s.get_mut("drivers"));
            let drivers = drivers.and_then(Value::as_array_mut).into_iter().flatten();
            for driver in drivers.filter_map(Value::as_object_mut) {
                driver.entry("topologyKeys").or_insert(Value::Null);
            }
        }
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

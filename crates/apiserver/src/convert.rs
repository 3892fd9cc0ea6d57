//! Between the stored form of an object and the version a client asked for.
//!
//! Custom resources convert by rewriting `apiVersion` (conversion strategy `None`); where a webhook converts them,
//! `conversion` has done it before. Events are one set of objects with
//! two faces: stored as core/v1, shown as `events.k8s.io/v1` too.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::registry::{ResourceInfo, VersionInfo};
use crate::shown;
use crate::store::Stored;

/// Group of the second face of events.
const EVENTS: &str = "events.k8s.io";

/// Pairs of (core/v1 name, events.k8s.io/v1 name) of fields that only change their name.
const RENAMED: [(&str, &str); 5] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
];

/// A stored object as the client's version shows it.
pub(crate) fn view<'a>(
    resource: &ResourceInfo,
    version: &VersionInfo,
    stored: &'a Stored,
) -> Cow<'a, Value> {
    let wanted = resource.api_version(&version.name);
    if !resource.is_custom() {
        if resource.group != EVENTS && version.name == resource.storage_version {
            return Cow::Borrowed(&stored.value);
        }
        let mut value = stored.value.clone();
        value["apiVersion"] = json!(wanted);
        if resource.group == EVENTS {
            to_events_face(&mut value);
        }
        return Cow::Owned(value);
    }
    // Where there is one version only, what was written under its schema needs no second look.
    let several = resource.versions.len() + resource.unserved.len() > 1;
    let converted = stored.value["apiVersion"] == wanted.as_str();
    let known = !several || resource.conversion.is_some();
    if converted && known && stored.schema == resource.schema_generation() {
        return Cow::Borrowed(&stored.value);
    }
    let mut value = stored.value.clone();
    read(resource, &mut value);
    if !converted {
        if let Some(schema) = &version.structural {
            schema.prune(&mut value);
        }
        value["apiVersion"] = json!(wanted);
    }
    Cow::Owned(value)
}

/// Reads a custom resource as the version it is stored in: the current schema of that version may hide fields, and has
/// defaults that nobody wrote down.
pub(crate) fn read(resource: &ResourceInfo, value: &mut Value) {
    if let Some(schema) = resource.schema_of(&value["apiVersion"]) {
        schema.prune(value);
        schema.default(value);
    }
}

/// An object in one version of its resource, in the form it is stored in. A webhook has converted it before.
pub(crate) fn to_storage(
    resource: &ResourceInfo,
    version: &VersionInfo,
    mut value: Value,
) -> Value {
    if resource.group == EVENTS {
        to_core_face(&mut value);
        value["apiVersion"] = json!("v1");
        return value;
    }
    value["apiVersion"] = json!(resource.api_version(&resource.storage_version));
    if version.name != resource.storage_version
        && let Some(schema) = resource.schema_of(&value["apiVersion"])
    {
        schema.prune(&mut value);
    }
    value
}

/// An object of a request, in another group or version of the same resource.
pub(crate) fn rewrite(group: Option<&str>, version: &str, object: &mut Value) {
    let from = object["apiVersion"].as_str().unwrap_or_default();
    let from = from
        .split_once('/')
        .map_or("", |(group, _)| group)
        .to_owned();
    let group = group.unwrap_or(&from);
    match (from == EVENTS, group == EVENTS) {
        (true, false) => to_core_face(object),
        (false, true) => to_events_face(object),
        _ => {}
    }
    object["apiVersion"] = match group {
        "" => json!(version),
        group => json!(format!("{group}/{version}")),
    };
}

fn rename(map: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = map.remove(from) {
        map.insert(to.to_owned(), value);
    }
}

fn to_events_face(event: &mut Value) {
    let Some(map) = event.as_object_mut() else {
        return;
    };
    for (core, face) in RENAMED {
        rename(map, core, face);
    }
    rename(map, "count", "deprecatedCount");
    rename(map, "source", "deprecatedSource");
    shown::new_event(map);
}

fn to_core_face(event: &mut Value) {
    let Some(map) = event.as_object_mut() else {
        return;
    };
    for (core, face) in RENAMED {
        rename(map, face, core);
    }
    rename(map, "deprecatedCount", "count");
    rename(map, "deprecatedSource", "source");
    shown::core_event(map);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_keeps_its_content_through_both_faces() {
        let face = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"}, "note": "hello", "reason": "R",
            "regarding": {"kind": "Pod", "name": "p"}, "reportingController": "c", "eventTime": "t", "series": {"count": 2},
        });
        let mut stored = face.clone();
        to_core_face(&mut stored);
        assert_eq!(stored["message"], "hello");
        assert_eq!(stored["involvedObject"]["name"], "p");
        assert_eq!(stored["firstTimestamp"], Value::Null);
        to_events_face(&mut stored);
        for (field, value) in face.as_object().unwrap() {
            assert_eq!(&stored[field], value, "{field}");
        }
    }
}

//! Between the stored form of an object and the version a client asked for.
//!
//! Custom resources convert by rewriting `apiVersion` (conversion strategy `None`); where a webhook converts them,
//! `conversion` has done it before. Events are one set of objects with
//! two faces: stored as core/v1, shown as `events.k8s.io/v1` too.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::registry::{Origin, ResourceInfo, VersionInfo};
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
    let same_schema = match resource.origin {
        Origin::Builtin => true,
        Origin::Crd { generation, .. } => stored.schema == generation,
    };
    let several =
        resource.is_custom() && resource.versions.len() > 1 && resource.conversion.is_none();
    if same_schema
        && !several
        && resource.group != EVENTS
        && version.name == resource.storage_version
    {
        return Cow::Borrowed(&stored.value);
    }
    let mut value = stored.value.clone();
    if several
        && let Some(storage) = resource.version(&resource.storage_version)
        && let Some(schema) = &storage.structural
    {
        // It is read as what it is stored as, and then shown as what was asked for.
        schema.prune(&mut value);
        schema.default(&mut value);
        if let Some(schema) = version
            .structural
            .as_ref()
            .filter(|_| version.name != storage.name)
        {
            schema.prune(&mut value);
        }
    }
    value["apiVersion"] = json!(resource.api_version(&version.name));
    if resource.group == EVENTS {
        to_events_face(&mut value);
    }
    if !same_schema && let Some(schema) = &version.structural {
        // Stored under an older schema: what the schema no longer knows is hidden, what it adds is defaulted.
        schema.prune(&mut value);
        schema.default(&mut value);
    }
    Cow::Owned(value)
}

/// An object as the client sent it, in the form it is stored in.
pub(crate) fn to_storage(resource: &ResourceInfo, mut value: Value) -> Value {
    if resource.group == EVENTS {
        to_core_face(&mut value);
        value["apiVersion"] = json!("v1");
    } else {
        value["apiVersion"] = json!(resource.api_version(&resource.storage_version));
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

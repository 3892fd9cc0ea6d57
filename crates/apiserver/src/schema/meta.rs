//! The metadata of a resource: always an ObjectMeta, whatever a CRD's schema says.

use serde_json::{Map, Value};

use super::error::{FieldError, child, index};
use super::node::{Additional, Node};

/// The JSON shape of a field.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Number,
    Flag,
    Time,
    TextMap,
    TextList,
    Objects(&'static [(&'static str, Shape)]),
    Any,
}

use Shape::{Any, Flag, Number, Objects, Text, TextList, TextMap, Time};

/// `meta/v1` ObjectMeta.
const OBJECT_META: &[(&str, Shape)] = &[
    ("name", Text),
    ("generateName", Text),
    ("namespace", Text),
    ("selfLink", Text),
    ("uid", Text),
    ("resourceVersion", Text),
    ("generation", Number),
    ("creationTimestamp", Time),
    ("deletionTimestamp", Time),
    ("deletionGracePeriodSeconds", Number),
    ("labels", TextMap),
    ("annotations", TextMap),
    ("ownerReferences", Objects(OWNER_REFERENCE)),
    ("finalizers", TextList),
    ("managedFields", Objects(MANAGED_FIELDS)),
];

const OWNER_REFERENCE: &[(&str, Shape)] = &[
    ("apiVersion", Text),
    ("kind", Text),
    ("name", Text),
    ("uid", Text),
    ("controller", Flag),
    ("blockOwnerDeletion", Flag),
];

const MANAGED_FIELDS: &[(&str, Shape)] = &[
    ("manager", Text),
    ("operation", Text),
    ("apiVersion", Text),
    ("time", Time),
    ("fieldsType", Text),
    ("fieldsV1", Any),
    ("subresource", Text),
];

/// Drops what an ObjectMeta does not have, and nulls, which mean "not set" there.
pub(crate) fn prune(metadata: &mut Value, path: &str, dropped: &mut Vec<String>) {
    if let Value::Object(map) = metadata {
        prune_fields(OBJECT_META, map, path, dropped);
    }
}

fn prune_fields(
    fields: &[(&str, Shape)],
    map: &mut Map<String, Value>,
    path: &str,
    dropped: &mut Vec<String>,
) {
    map.retain(|name, value| {
        let Some((_, shape)) = fields.iter().find(|(field, _)| field == name) else {
            dropped.push(child(path, name));
            return false;
        };
        if value.is_null() {
            return false;
        }
        match (shape, value) {
            (Objects(fields), Value::Array(items)) => {
                for (n, item) in items.iter_mut().enumerate() {
                    if let Value::Object(map) = item {
                        prune_fields(fields, map, &index(&child(path, name), n), dropped);
                    }
                }
            }
            // A null in a map of strings is read as the empty string.
            (TextMap, Value::Object(map)) => {
                for text in map.values_mut().filter(|v| v.is_null()) {
                    *text = Value::String(String::new());
                }
            }
            _ => {}
        }
        true
    });
}

/// Tells which fields of a resource's metadata have the wrong type, in the words of the JSON
/// decoder that the API server uses.
pub(crate) fn check(metadata: &Value, path: &str) -> Option<FieldError> {
    let problem = match metadata {
        Value::Object(map) => mismatch(OBJECT_META, map, "ObjectMeta")?,
        Value::Null => return None,
        other => cannot(other, "ObjectMeta", "v1.ObjectMeta"),
    };
    Some(FieldError::invalid(path, metadata.clone(), problem))
}

fn mismatch(fields: &[(&str, Shape)], map: &Map<String, Value>, owner: &str) -> Option<String> {
    map.iter().find_map(|(name, value)| {
        let (_, shape) = fields.iter().find(|(field, _)| field == name)?;
        let field = format!("struct field {owner}.{name}");
        match (shape, value) {
            (_, Value::Null) | (Text, Value::String(_)) | (Flag, Value::Bool(_)) | (Any, _) => None,
            (Text, other) => Some(cannot(other, &field, "string")),
            (Flag, other) => Some(cannot(other, &field, "bool")),
            (Number, Value::Number(n)) if n.is_i64() => None,
            (Number, other) => Some(cannot(other, &field, "int64")),
            (Time, Value::String(text)) if super::formats::is_date_time(text) => None,
            (Time, Value::String(text)) => Some(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \
                 \"2006\""
            )),
            (Time, other) => Some(cannot(other, &field, "time.Time")),
            (TextMap, Value::Object(map)) => map
                .values()
                .find(|v| !v.is_string() && !v.is_null())
                .map(|other| cannot(other, &field, "string")),
            (TextMap, other) => Some(cannot(other, &field, "map[string]string")),
            (TextList, Value::Array(items)) => items
                .iter()
                .find(|v| !v.is_string())
                .map(|other| cannot(other, &field, "string")),
            (TextList, other) => Some(cannot(other, &field, "[]string")),
            (Objects(fields), Value::Array(items)) => items.iter().find_map(|item| match item {
                Value::Object(map) => mismatch(fields, map, name),
                other => Some(cannot(other, &field, "object")),
            }),
            (Objects(_), other) => Some(cannot(other, &field, "[]object")),
        }
    })
}

fn cannot(value: &Value, field: &str, kind: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("json: cannot unmarshal {found} into Go {field} of type {kind}")
}

/// The rules for apiVersion, kind and metadata of the resources embedded in an object.
pub(crate) fn embedded(node: &Node, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            if node.embedded {
                for name in ["apiVersion", "kind"] {
                    let set = map.get(name).and_then(Value::as_str).unwrap_or_default();
                    if set.is_empty() {
                        errors.push(FieldError::required(child(path, name), "must not be empty"));
                    }
                }
                if let Some(metadata) = map.get("metadata") {
                    let here = child(path, "metadata");
                    let wrong = check(metadata, &here);
                    if wrong.is_none() {
                        errors.extend(crate::names::embedded_problems(map, &here));
                    }
                    errors.extend(wrong);
                }
            }
            for (name, sub) in map {
                let here = child(path, name);
                if let Some(known) = node.properties.get(name) {
                    embedded(known, sub, &here, errors);
                } else if let Additional::Schema(known) = &node.additional {
                    embedded(known, sub, &super::error::key(path, name), errors);
                }
            }
        }
        Value::Array(items) => {
            if let Some(known) = node.items.as_deref() {
                for (n, item) in items.iter().enumerate() {
                    embedded(known, item, &index(path, n), errors);
                }
            }
        }
        _ => {}
    }
}

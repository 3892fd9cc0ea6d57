//! Reading and writing object metadata on plain JSON.

use serde_json::{Map, Value, json};

/// A string at a pointer inside the object, or "".
fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|m| m.get(field))
        .and_then(Value::as_str)
        .unwrap_or("")
}

pub(crate) fn name(object: &Value) -> &str {
    text(object, "name")
}

pub(crate) fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

pub(crate) fn uid(object: &Value) -> &str {
    text(object, "uid")
}

pub(crate) fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

pub(crate) fn set_resource_version(object: &mut Value, revision: u64) {
    set(object, "resourceVersion", json!(revision.to_string()));
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    get(object, "deletionTimestamp").is_some_and(|v| !v.is_null())
}

pub(crate) fn generation(object: &Value) -> i64 {
    get(object, "generation")
        .and_then(Value::as_i64)
        .unwrap_or(0)
}

pub(crate) fn labels(object: &Value) -> Option<&Value> {
    get(object, "labels")
}

/// A metadata field.
pub(crate) fn get<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(field)
}

/// Sets a metadata field, creating `metadata` where it is missing.
pub(crate) fn set(object: &mut Value, field: &str, value: Value) {
    metadata_mut(object).insert(field.to_owned(), value);
}

pub(crate) fn unset(object: &mut Value, field: &str) {
    metadata_mut(object).remove(field);
}

/// Copies a metadata field from one object to another; absent there means removed here.
pub(crate) fn carry(from: &Value, to: &mut Value, field: &str) {
    match get(from, field) {
        Some(value) if !value.is_null() => set(to, field, value.clone()),
        _ => unset(to, field),
    }
}

pub(crate) fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let map = object.as_object_mut().expect("made an object above");
    let metadata = map.entry("metadata").or_insert_with(|| json!({}));
    if !metadata.is_object() {
        *metadata = json!({});
    }
    metadata.as_object_mut().expect("made an object above")
}

/// The finalizers, in order.
pub(crate) fn finalizers(object: &Value) -> Vec<String> {
    let list = get(object, "finalizers").and_then(Value::as_array);
    list.map(|l| {
        l.iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    })
    .unwrap_or_default()
}

pub(crate) fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    if finalizers.is_empty() {
        unset(object, "finalizers")
    } else {
        set(object, "finalizers", json!(finalizers))
    }
}

/// The owner references, as they stand.
pub(crate) fn owners(object: &Value) -> &[Value] {
    get(object, "ownerReferences")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// A timestamp the way `metav1.Time` is written: RFC 3339, whole seconds, UTC.
pub(crate) fn rfc3339(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Removes nulls and empty maps and lists that carry no meaning in metadata, so that equal objects compare equal.
pub(crate) fn tidy(object: &mut Value) {
    let metadata = metadata_mut(object);
    metadata.remove("selfLink");
    metadata.retain(|field, value| match value {
        Value::Null => false,
        Value::Object(map) if matches!(field.as_str(), "labels" | "annotations") => !map.is_empty(),
        Value::Array(list)
            if matches!(
                field.as_str(),
                "finalizers" | "ownerReferences" | "managedFields"
            ) =>
        {
            !list.is_empty()
        }
        _ => true,
    });
}

/// A string at a dotted path (`spec.nodeName`); numbers and booleans as text; absent as "".
pub(crate) fn field_text(object: &Value, path: &str) -> String {
    let mut at = object;
    for step in path.trim_start_matches('.').split('.') {
        match at.get(step) {
            Some(next) => at = next,
            None => return String::new(),
        }
    }
    match at {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The value at a dotted path.
pub(crate) fn field<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.')
        .split('.')
        .try_fold(object, |at, step| at.get(step))
}

/// Sets the value at a dotted path, creating the maps on the way.
pub(crate) fn set_field(object: &mut Value, path: &str, value: Value) {
    let mut at = object;
    for step in path.trim_start_matches('.').split('.') {
        if !at.is_object() {
            *at = json!({});
        }
        at = at
            .as_object_mut()
            .expect("made an object above")
            .entry(step)
            .or_insert(Value::Null);
    }
    *at = value;
}

/// Sets a condition in `status.conditions`; its time moves only with its status.
pub(crate) fn set_condition(
    object: &mut Value,
    kind: &str,
    is: bool,
    reason: &str,
    message: &str,
    now: &str,
) {
    let status = if is { "True" } else { "False" };
    let conditions = field(object, "status.conditions").and_then(Value::as_array);
    let mut conditions = conditions.cloned().unwrap_or_default();
    let since = conditions
        .iter()
        .find(|c| c["type"] == kind && c["status"] == status)
        .map_or(json!(now), |c| c["lastTransitionTime"].clone());
    let new = json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since});
    match conditions.iter_mut().find(|c| c["type"] == kind) {
        Some(slot) => *slot = new,
        None => conditions.push(new),
    }
    set_field(object, "status.conditions", Value::Array(conditions));
}

//! What the server itself sets, keeps or refuses on a write: metadata, status isolation, generation.

use serde_json::{Value, json};

use crate::builtin;
use crate::meta;
use crate::names;
use crate::registry::{ResourceInfo, VersionInfo};
use crate::schema::FieldError;

/// Which endpoint an update came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Main,
    Status,
    /// A namespace's spec.finalizers.
    Finalize,
}

/// A Service that is written without its address keeps it; one that has none any more loses it.
fn keep_address(new: &mut Value, old: &Value) {
    let external = |o: &Value| meta::field_text(o, "spec.type") == "ExternalName";
    if external(old) {
        return;
    }
    let gives_up = external(new);
    let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    for field in ["clusterIP", "clusterIPs"] {
        let Some(was) = old.get("spec").and_then(|s| s.get(field)) else {
            continue;
        };
        let is = spec.get(field).filter(|v| !v.is_null() && *v != "");
        match (gives_up, is) {
            (true, Some(is)) if is == was => drop(spec.remove(field)),
            (false, None) => drop(spec.insert(field.into(), was.clone())),
            _ => {}
        }
    }
}

/// Shapes a new object: server-owned metadata, no status, defaults.
pub(crate) fn prepare_create(
    resource: &ResourceInfo,
    version: &VersionInfo,
    object: &mut Value,
    uid: &str,
    now: &str,
) {
    for field in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "resourceVersion",
        "selfLink",
    ] {
        meta::unset(object, field);
    }
    meta::set(object, "uid", json!(uid));
    meta::set(object, "creationTimestamp", json!(now));
    if resource.is_custom() || resource.traits.generation {
        meta::set(object, "generation", json!(1));
    }
    if version.has_status()
        && !resource.traits.keep_status_on_create
        && let Some(map) = object.as_object_mut()
    {
        map.remove("status");
    }
    if !resource.is_custom() {
        builtin::defaults(resource, object);
    }
    meta::tidy(object);
}

/// Adds what the server itself says of a new object; nobody owns it.
pub(crate) fn at_creation(resource: &ResourceInfo, object: &mut Value) {
    if !resource.is_custom() {
        let uid = meta::uid(object).to_owned();
        builtin::at_creation(resource, object, &uid);
        builtin::template_generation(resource, object, None);
    }
}

/// Shapes an updated object: what this endpoint may not change is taken from `old`.
pub(crate) fn prepare_update(
    resource: &ResourceInfo,
    version: &VersionInfo,
    endpoint: Endpoint,
    new: &mut Value,
    old: &Value,
) {
    match endpoint {
        Endpoint::Main => {
            if version.has_status() {
                restore(new, old, "status");
            }
            if resource.table == "services" {
                keep_address(new, old);
            }
            if resource.table == crate::store::NAMESPACES {
                let finalizers = meta::field(old, "spec.finalizers")
                    .cloned()
                    .unwrap_or_else(|| json!([]));
                meta::set_field(new, "spec.finalizers", finalizers);
            }
        }
        Endpoint::Status => {
            let mut kept = old.clone();
            restore(&mut kept, new, "status");
            meta::carry(new, &mut kept, "managedFields");
            for field in builtin::written_with_status(resource) {
                meta::carry(new, &mut kept, field);
            }
            *new = kept;
        }
        Endpoint::Finalize => {
            let mut kept = old.clone();
            meta::set_field(
                &mut kept,
                "spec.finalizers",
                meta::field(new, "spec.finalizers")
                    .cloned()
                    .unwrap_or_else(|| json!([])),
            );
            meta::carry(new, &mut kept, "managedFields");
            *new = kept;
        }
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
        "generateName",
    ] {
        meta::carry(old, new, field);
    }
    if !resource.is_custom() {
        builtin::defaults(resource, new);
        builtin::template_generation(resource, new, Some(old));
    }
    meta::tidy(new);
}

/// Takes out of a new object what only the server sets.
pub(crate) fn wipe_system_fields(object: &mut Value) {
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
    ] {
        meta::unset(object, field);
    }
}

/// Fills in what an object leaves out, as decoding it does.
pub(crate) fn defaults(resource: &ResourceInfo, version: &VersionInfo, object: &mut Value) {
    if !resource.is_custom() {
        builtin::defaults(resource, object);
    }
    if let Some(schema) = &version.structural {
        schema.default(object);
    }
}

/// Raises the generation when anything but metadata (and status, where it is a subresource) changed.
pub(crate) fn bump_generation(
    resource: &ResourceInfo,
    version: &VersionInfo,
    new: &mut Value,
    old: &Value,
) {
    if !(resource.is_custom() || resource.traits.generation) {
        return;
    }
    if desired(new, version) != desired(old, version) {
        meta::set(new, "generation", json!(meta::generation(old) + 1));
    }
}

fn desired<'a>(object: &'a Value, version: &VersionInfo) -> Vec<(&'a String, &'a Value)> {
    let skip = |key: &str| {
        matches!(key, "metadata" | "apiVersion" | "kind")
            || (key == "status" && version.has_status())
    };
    object
        .as_object()
        .map(|m| m.iter().filter(|(k, _)| !skip(k)).collect())
        .unwrap_or_default()
}

fn restore(to: &mut Value, from: &Value, field: &str) {
    if let Some(map) = to.as_object_mut() {
        match from.get(field) {
            Some(value) => map.insert(field.to_owned(), value.clone()),
            None => map.remove(field),
        };
    }
}

/// What is wrong with the replicas of a custom resource that can be scaled.
fn replicas_problem(object: &Value, path: &str) -> Option<FieldError> {
    let value = meta::field(object, path).filter(|v| !v.is_null())?;
    let accessor = |kind: &str, shown: String| {
        let why = format!("{path} accessor error: {shown} is of the type {kind}, expected int64");
        FieldError::invalid(path, json!(0), why)
    };
    match value {
        Value::String(text) => Some(accessor("string", text.clone())),
        Value::Bool(is) => Some(accessor("bool", is.to_string())),
        Value::Number(n) if n.is_f64() => Some(accessor("float64", n.to_string())),
        Value::Number(n) if n.as_i64().is_some_and(|n| n < 0) => {
            let why = "should be a non-negative integer";
            Some(FieldError::invalid(path, value.clone(), why))
        }
        Value::Number(n) if n.as_i64().is_none_or(|n| n > i64::from(i32::MAX)) => {
            let why = format!("should be less than or equal to {}", i32::MAX);
            Some(FieldError::invalid(path, value.clone(), why))
        }
        _ => None,
    }
}

/// Checks an object that is about to be stored. `old` is what it replaces.
pub(crate) fn validate(
    resource: &ResourceInfo,
    version: &VersionInfo,
    new: &Value,
    old: Option<&Value>,
) -> Vec<FieldError> {
    let mut errors = names::metadata_problems(resource.traits.names, resource.namespaced, new);
    if let Some(old) = old
        && meta::is_deleting(old)
    {
        let before = meta::finalizers(old);
        let added: Vec<String> = meta::finalizers(new)
            .into_iter()
            .filter(|f| !before.contains(f))
            .map(|f| format!("{f:?}"))
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            // Every update is checked in general and by its kind, and both say this.
            let error = FieldError::forbidden("metadata.finalizers", detail);
            errors.extend([error.clone(), error]);
        }
    }
    if let Some(schema) = &version.structural {
        let scale = version.subresources.iter().find_map(|s| s.scale.as_ref());
        for path in scale
            .into_iter()
            .flat_map(|s| [&s.spec_replicas, &s.status_replicas])
        {
            errors.extend(replicas_problem(new, path));
        }
        errors.extend(schema.validate(new, old));
    } else if !resource.is_custom() {
        for (i, finalizer) in meta::finalizers(new).iter().enumerate() {
            if !names::is_finalizer(finalizer) {
                errors.push(FieldError::invalid(
                    format!("metadata.finalizers[{i}]"),
                    json!(finalizer),
                    builtin::NO_FINALIZER,
                ));
            }
        }
        builtin::validate(resource, new, old, &mut errors);
    }
    errors
}

//! Writes that are not sent when nothing would change.

use std::fmt::Debug;

use farshore_core::status_differs;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was as wanted; nothing was sent.
    Unchanged,
    /// The object was created.
    Created,
    /// The object was changed.
    Changed,
}

/// Makes an object be as `desired` says, and nothing more: fields that `desired` does not name stay
/// with whoever owns them; fields that `manager` applied before and that `desired` no longer names
/// go. Nothing is sent when it already is so. Quantities must be written as the server keeps them
/// (`1Gi`, not `1024Mi`). The status is never applied.
pub async fn ensure<K>(api: &Api<K>, manager: &str, desired: &K) -> kube::Result<Outcome>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    let desired = serde_json::to_value(desired).map_err(kube::Error::SerdeError)?;
    apply(api, manager, &desired).await
}

/// As [`ensure`], for an object without a Rust type.
pub async fn ensure_value(
    api: &Api<DynamicObject>,
    manager: &str,
    desired: &Value,
) -> kube::Result<Outcome> {
    apply(api, manager, desired).await
}

async fn apply<K>(api: &Api<K>, manager: &str, desired: &Value) -> kube::Result<Outcome>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    let wanted = wanted(desired);
    let name = wanted["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_string();
    let live = api.get_opt(&name).await?;
    let outcome = match &live {
        None => Outcome::Created,
        Some(live) => {
            let value = serde_json::to_value(live).map_err(kube::Error::SerdeError)?;
            if contains(&value, &wanted) && !owns_more(live, manager, "", &wanted) {
                return Ok(Outcome::Unchanged);
            }
            Outcome::Changed
        }
    };
    api.patch(
        &name,
        &PatchParams::apply(manager).force(),
        &Patch::Apply(&wanted),
    )
    .await?;
    Ok(outcome)
}

/// Makes a part of an object's status be as `desired` says (server-side apply on `/status`): for
/// objects whose status has more than one writer, each with fields and conditions of its own.
/// `live` is the object as last read. Returns whether anything was sent.
pub async fn ensure_status<K>(
    api: &Api<K>,
    manager: &str,
    live: &K,
    desired: &Value,
) -> kube::Result<bool>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + Debug,
{
    let mut wanted = json!({"status": desired});
    prune_nulls(&mut wanted);
    let status = serde_json::to_value(live).map_err(kube::Error::SerdeError)?["status"].clone();
    if contains_timeless(&status, &wanted["status"]) && !owns_more(live, manager, "status", &wanted)
    {
        return Ok(false);
    }
    let name = live.name_any();
    wanted["apiVersion"] = json!(K::api_version(&()));
    wanted["kind"] = json!(K::kind(&()));
    // The uid keeps a late write from recreating, or speaking of, another object of the same name.
    wanted["metadata"] = json!({"name": name, "uid": live.uid()});
    api.patch_status(
        &name,
        &PatchParams::apply(manager).force(),
        &Patch::Apply(&wanted),
    )
    .await?;
    Ok(true)
}

/// Sends a JSON merge patch. With `metadata.resourceVersion` in it, the write fails with 409 when
/// somebody else wrote since that was read.
pub async fn merge<K>(api: &Api<K>, name: &str, manager: &str, patch: &Value) -> kube::Result<K>
where
    K: Clone + DeserializeOwned + Debug,
{
    api.patch(name, &manager_of(manager), &Patch::Merge(patch))
        .await
}

/// Writes what differs between two statuses, if anything but moments does. Returns whether it wrote.
pub async fn status<K>(
    api: &Api<K>,
    name: &str,
    manager: &str,
    old: &impl Serialize,
    new: &impl Serialize,
) -> kube::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    if !status_differs(old, new) {
        return Ok(false);
    }
    let old = serde_json::to_value(old).map_err(kube::Error::SerdeError)?;
    let new = serde_json::to_value(new).map_err(kube::Error::SerdeError)?;
    let patch = json!({"status": difference(&old, &new)});
    api.patch_status(name, &manager_of(manager), &Patch::Merge(&patch))
        .await?;
    Ok(true)
}

/// As [`status`], but refused with 409 when somebody else wrote since `object` was read. Returns the
/// object as written, or None if there was nothing to write.
pub async fn status_guarded<K>(
    api: &Api<K>,
    manager: &str,
    object: &K,
    old: &impl Serialize,
    new: &impl Serialize,
) -> kube::Result<Option<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    if !status_differs(old, new) {
        return Ok(None);
    }
    let old = serde_json::to_value(old).map_err(kube::Error::SerdeError)?;
    let new = serde_json::to_value(new).map_err(kube::Error::SerdeError)?;
    let metadata = json!({"resourceVersion": object.resource_version(), "uid": object.uid()});
    let patch = json!({"metadata": metadata, "status": difference(&old, &new)});
    api.patch_status(
        &object.name_any(),
        &manager_of(manager),
        &Patch::Merge(&patch),
    )
    .await
    .map(Some)
}

/// Adds a finalizer, if it is not there. Fails with 409 when somebody else wrote since `object` was read.
pub async fn add_finalizer<K>(
    api: &Api<K>,
    manager: &str,
    object: &K,
    finalizer: &str,
) -> kube::Result<bool>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    if object.finalizers().iter().any(|f| f == finalizer) {
        return Ok(false);
    }
    let mut all = object.finalizers().to_vec();
    all.push(finalizer.into());
    finalizers(api, manager, object, &all).await.map(|()| true)
}

/// Removes a finalizer, if it is there. Fails with 409 when somebody else wrote since `object` was read.
pub async fn remove_finalizer<K>(
    api: &Api<K>,
    manager: &str,
    object: &K,
    finalizer: &str,
) -> kube::Result<bool>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    if !object.finalizers().iter().any(|f| f == finalizer) {
        return Ok(false);
    }
    let rest: Vec<String> = object
        .finalizers()
        .iter()
        .filter(|f| *f != finalizer)
        .cloned()
        .collect();
    match finalizers(api, manager, object, &rest).await {
        // Gone meanwhile: nothing left to remove.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        result => result.map(|()| true),
    }
}

async fn finalizers<K>(api: &Api<K>, manager: &str, object: &K, all: &[String]) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let patch = json!({"metadata": {"finalizers": all, "resourceVersion": object.resource_version(), "uid": object.uid()}});
    api.patch(
        &object.name_any(),
        &manager_of(manager),
        &Patch::Merge(&patch),
    )
    .await
    .map(|_| ())
}

/// Deletes an object, if it is there. Returns whether it was.
pub async fn delete_if_present<K>(api: &Api<K>, name: &str) -> kube::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    match api.delete(name, &DeleteParams::background()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

fn manager_of(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    }
}

/// What of `desired` is applied.
fn wanted(desired: &Value) -> Value {
    let mut wanted = desired.clone();
    prune_nulls(&mut wanted);
    if let Some(object) = wanted.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in [
            "managedFields",
            "resourceVersion",
            "creationTimestamp",
            "generation",
            "uid",
        ] {
            metadata.remove(field);
        }
    }
    wanted
}

fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, v| !v.is_null());
            fields.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

/// Fields by which elements of a list are told apart, where a list is a map in disguise.
const KEYS: [&str; 8] = [
    "name",
    "type",
    "containerPort",
    "port",
    "mountPath",
    "devicePath",
    "key",
    "uid",
];

/// Whether everything in `wanted` is in `live`. Lists of objects with a key are compared by key and
/// may have further elements; other lists must be equal in length and order.
fn contains(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(name, w)| match live.get(name) {
                Some(l) => contains(l, w),
                None => is_empty(w),
            })
        }
        (Value::Array(live), Value::Array(wanted)) => match key_of(wanted) {
            Some(key) => wanted
                .iter()
                .all(|w| live.iter().any(|l| l[key] == w[key] && contains(l, w))),
            None => {
                live.len() == wanted.len() && live.iter().zip(wanted).all(|(l, w)| contains(l, w))
            }
        },
        _ => live == wanted,
    }
}

/// As [`contains`], but moments may differ.
fn contains_timeless(live: &Value, wanted: &Value) -> bool {
    let mut wanted = wanted.clone();
    forget_moments(&mut wanted);
    contains(live, &wanted)
}

fn forget_moments(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| name != "lastTransitionTime");
            fields.values_mut().for_each(forget_moments);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_moments),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        Value::Null => true,
        _ => false,
    }
}

/// The key field of a list of objects, if all elements have one and no two the same.
fn key_of(list: &[Value]) -> Option<&'static str> {
    KEYS.into_iter().find(|key| {
        let mut values: Vec<&Value> = list.iter().filter_map(|e| e.get(key)).collect();
        let all = !list.is_empty() && values.len() == list.len();
        values.sort_by_key(|v| v.to_string());
        values.dedup();
        all && values.len() == list.len()
    })
}

/// Whether `manager` applied fields before (to this subresource) that `wanted` does not name.
fn owns_more<K: Resource>(live: &K, manager: &str, subresource: &str, wanted: &Value) -> bool {
    live.meta().managed_fields.iter().flatten().any(|entry| {
        entry.manager.as_deref() == Some(manager)
            && entry.operation.as_deref() == Some("Apply")
            && entry.subresource.as_deref().unwrap_or_default() == subresource
            && entry
                .fields_v1
                .as_ref()
                .is_some_and(|fields| !covers(wanted, &fields.0))
    })
}

/// Whether every field of a `fieldsV1` set is in `wanted`.
fn covers(wanted: &Value, fields: &Value) -> bool {
    let Some(fields) = fields.as_object() else {
        return true;
    };
    fields.iter().all(|(path, below)| {
        if path == "." {
            return true;
        }
        if let Some(name) = path.strip_prefix("f:") {
            return wanted.get(name).is_some_and(|w| covers(w, below));
        }
        let items = wanted.as_array().map_or(&[][..], Vec::as_slice);
        if let Some(key) = path.strip_prefix("k:") {
            let Ok(Value::Object(key)) = serde_json::from_str::<Value>(key) else {
                return true;
            };
            // A key that `wanted` leaves to its default (protocol: TCP) still is that key.
            let same = |item: &&Value| {
                key.iter()
                    .all(|(k, v)| item.get(k).is_none_or(|have| have == v))
            };
            return items
                .iter()
                .find(same)
                .is_some_and(|item| covers(item, below));
        }
        if let Some(value) = path.strip_prefix("v:") {
            return serde_json::from_str::<Value>(value)
                .map_or(true, |value| items.contains(&value));
        }
        true
    })
}

/// The merge patch that turns `old` into `new`.
fn difference(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return new.clone();
    };
    let mut patch = Map::new();
    for (name, value) in new {
        match old.get(name) {
            Some(before) if before == value => {}
            Some(before) => {
                patch.insert(name.clone(), difference(before, value));
            }
            None => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    for name in old.keys().filter(|n| !new.contains_key(*n)) {
        patch.insert(name.clone(), Value::Null);
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_added_does_not_matter() {
        let live = json!({"spec": {"containers": [{"name": "sidecar"}, {"name": "a", "image": "x", "pullPolicy": "Always"}], "node": "n"}});
        assert!(contains(
            &live,
            &json!({"spec": {"containers": [{"name": "a", "image": "x"}]}})
        ));
        assert!(!contains(
            &live,
            &json!({"spec": {"containers": [{"name": "a", "image": "y"}]}})
        ));
        assert!(!contains(
            &live,
            &json!({"spec": {"containers": [{"name": "b"}]}})
        ));
    }

    #[test]
    fn lists_without_keys_are_compared_whole() {
        let live = json!({"modes": ["a", "b"]});
        assert!(contains(&live, &json!({"modes": ["a", "b"]})));
        assert!(!contains(&live, &json!({"modes": ["a"]})));
        assert!(contains(&json!({}), &json!({"labels": {}, "items": []})));
    }

    #[test]
    fn a_field_applied_before_and_no_longer_wanted_is_noticed() {
        let fields = json!({"f:spec": {"f:a": {}, "f:list": {"k:{\"name\":\"x\"}": {".": {}, "f:name": {}}}}});
        assert!(covers(
            &json!({"spec": {"a": 1, "list": [{"name": "x"}]}}),
            &fields
        ));
        assert!(!covers(
            &json!({"spec": {"list": [{"name": "x"}]}}),
            &fields
        ));
        assert!(!covers(
            &json!({"spec": {"a": 1, "list": [{"name": "y"}]}}),
            &fields
        ));
    }

    #[test]
    fn a_patch_holds_only_what_differs_and_nulls_what_is_gone() {
        let old = json!({"phase": "A", "message": "m", "same": {"x": 1}, "list": [1]});
        let new = json!({"phase": "B", "same": {"x": 1}, "list": [1, 2]});
        assert_eq!(
            difference(&old, &new),
            json!({"phase": "B", "message": null, "list": [1, 2]})
        );
    }
}

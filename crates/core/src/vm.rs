//! KubeVirt VirtualMachines as JSON: what they run from, whether they shall run, and what protection
//! changes in them. Every change is returned as a JSON merge patch that carries the resourceVersion
//! it was computed from, so that it fails rather than overwrites.

use farshore_api::meta::annotations;
use serde_json::{Map, Value, json};

/// One volume of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name in the VM.
    pub name: String,
    /// What is behind it.
    pub source: Source,
}

/// What is behind a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A PVC of this name: a `persistentVolumeClaim`, or a `dataVolume` (whose PVC has its name).
    Claim(String),
    /// A PVC that was plugged into the running VM.
    Hotplugged,
    /// Anything else: it stays on its side (containerDisk, cloudInitNoCloud, configMap, …).
    Other(String),
}

/// The volumes of a VM, in its order.
pub fn volumes(vm: &Value) -> Vec<Volume> {
    let list = vm.pointer("/spec/template/spec/volumes");
    volumes_of(list.and_then(Value::as_array).map_or(&[], Vec::as_slice))
}

/// The volumes of a list as it stands in a VM.
pub fn volumes_of(list: &[Value]) -> Vec<Volume> {
    list.iter()
        .filter_map(|v| {
            Some(Volume {
                name: v.get("name")?.as_str()?.into(),
                source: source(v),
            })
        })
        .collect()
}

fn source(volume: &Value) -> Source {
    for (kind, key) in [
        ("persistentVolumeClaim", "claimName"),
        ("dataVolume", "name"),
    ] {
        let Some(source) = volume.get(kind) else {
            continue;
        };
        if source.get("hotpluggable").and_then(Value::as_bool) == Some(true) {
            return Source::Hotplugged;
        }
        let claim = source.get(key).and_then(Value::as_str).unwrap_or_default();
        return Source::Claim(claim.into());
    }
    let kind = volume
        .as_object()
        .and_then(|v| v.keys().find(|k| *k != "name"));
    Source::Other(kind.cloned().unwrap_or_default())
}

/// An annotation of an object.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object
        .get("metadata")?
        .get("annotations")?
        .get(key)?
        .as_str()
}

/// Whether the VM shall not run: `running: false`, `runStrategy: Halted`, or neither is set.
pub fn is_halted(vm: &Value) -> bool {
    match run_state(vm) {
        Some((_, Value::Bool(running))) => !running,
        Some((_, Value::String(strategy))) => strategy == "Halted",
        _ => true,
    }
}

/// The field that says whether the VM shall run, with its value.
fn run_state(vm: &Value) -> Option<(&'static str, &Value)> {
    let spec = vm.get("spec")?;
    ["running", "runStrategy"].into_iter().find_map(|field| {
        let value = spec.get(field).filter(|v| !v.is_null())?;
        Some((field, value))
    })
}

/// The run state as the annotation `run-strategy` keeps it: `running:true`, `runStrategy:Always`.
pub fn remembered_run_state(vm: &Value) -> Option<String> {
    if is_halted(vm) {
        return annotation(vm, annotations::RUN_STRATEGY).map(Into::into);
    }
    let (field, value) = run_state(vm)?;
    Some(format!(
        "{field}:{}",
        value.as_str().map_or_else(|| value.to_string(), Into::into)
    ))
}

/// Makes the VM stop; remembers what it did in the annotation `run-strategy`.
pub fn halt(vm: &mut Value) {
    if is_halted(vm) {
        return;
    }
    if let Some(before) = remembered_run_state(vm) {
        annotate(vm, annotations::RUN_STRATEGY, Some(&before));
    }
    let running = run_state(vm).is_some_and(|(field, _)| field == "running");
    let (field, value) = if running {
        ("running", json!(false))
    } else {
        ("runStrategy", json!("Halted"))
    };
    set(vm, &["spec", field], value);
}

/// Makes the VM do again what the annotation `run-strategy` remembers; `running: true` or
/// `runStrategy: Always` when it remembers nothing.
pub fn resume(vm: &mut Value) {
    let uses_running = run_state(vm).is_some_and(|(field, _)| field == "running");
    let remembered = annotation(vm, annotations::RUN_STRATEGY).map(str::to_owned);
    let strategy = remembered
        .as_deref()
        .and_then(|r| r.strip_prefix("runStrategy:"));
    if uses_running && strategy.is_none() {
        set(vm, &["spec", "running"], json!(true));
    } else {
        set(
            vm,
            &["spec", "runStrategy"],
            json!(strategy.unwrap_or("Always")),
        );
        remove(vm, &["spec", "running"]);
    }
    annotate(vm, annotations::RUN_STRATEGY, None);
}

/// Sets or removes an annotation.
pub fn annotate(object: &mut Value, key: &str, value: Option<&str>) {
    match value {
        Some(value) => set(object, &["metadata", "annotations", key], json!(value)),
        None => remove(object, &["metadata", "annotations", key]),
    }
}

/// Sets or removes a label.
pub fn label(object: &mut Value, key: &str, value: Option<&str>) {
    match value {
        Some(value) => set(object, &["metadata", "labels", key], json!(value)),
        None => remove(object, &["metadata", "labels", key]),
    }
}

/// Sets a field, making the objects on the way.
pub fn set(object: &mut Value, path: &[&str], value: Value) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let mut at = object;
    for key in parents {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[*key];
    }
    if !at.is_object() {
        *at = Value::Object(Map::new());
    }
    at[*last] = value;
}

/// Removes a field and then its parents that are empty.
pub fn remove(object: &mut Value, path: &[&str]) {
    match path {
        [] => {}
        [last] => {
            if let Some(fields) = object.as_object_mut() {
                fields.remove(*last);
            }
        }
        [first, rest @ ..] => {
            let Some(child) = object.get_mut(*first) else {
                return;
            };
            remove(child, rest);
            if child.as_object().is_some_and(Map::is_empty) {
                remove(object, &[first]);
            }
        }
    }
}

/// The merge patch that turns `old` into `new` and holds only while the object is as it was read:
/// it carries the resourceVersion. `None` when nothing differs.
pub fn patch(old: &Value, new: &Value) -> Option<Value> {
    let mut patch = difference(old, new)?;
    if let Some(version) = old.pointer("/metadata/resourceVersion") {
        set(
            &mut patch,
            &["metadata", "resourceVersion"],
            version.clone(),
        );
    }
    Some(patch)
}

/// The JSON merge patch (RFC 7386) from `old` to `new`.
pub fn difference(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for key in old.keys().filter(|k| !new.contains_key(*k)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            None => {
                patch.insert(key.clone(), value.clone());
            }
            Some(before) => {
                if let Some(inner) = difference(before, value) {
                    patch.insert(key.clone(), inner);
                }
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_and_start_restore_either_kind_of_run_state() {
        for (field, value, halted) in [
            ("running", json!(true), json!(false)),
            ("runStrategy", json!("Always"), json!("Halted")),
            ("runStrategy", json!("RerunOnFailure"), json!("Halted")),
        ] {
            let mut vm = json!({"metadata": {"name": "a"}, "spec": {}});
            vm["spec"][field] = value;
            let before = vm.clone();
            halt(&mut vm);
            assert_eq!(vm["spec"][field], halted);
            assert!(is_halted(&vm));
            resume(&mut vm);
            assert_eq!(vm, before);
        }
    }

    #[test]
    fn a_stopped_vm_without_memory_starts_as_always() {
        let mut vm = json!({"spec": {"runStrategy": "Halted"}});
        resume(&mut vm);
        assert_eq!(vm["spec"]["runStrategy"], "Always");
        let mut vm = json!({"spec": {"running": false}});
        resume(&mut vm);
        assert_eq!(vm["spec"], json!({"running": true}));
    }

    #[test]
    fn a_patch_removes_adds_changes_and_names_the_version() {
        let old = json!({"metadata": {"resourceVersion": "7", "labels": {"a": "1", "b": "2"}}, "spec": {"list": [1]}});
        let mut new = old.clone();
        label(&mut new, "a", None);
        label(&mut new, "c", Some("3"));
        new["spec"]["list"] = json!([1, 2]);
        assert_eq!(
            patch(&old, &new),
            Some(
                json!({"metadata": {"resourceVersion": "7", "labels": {"a": null, "c": "3"}}, "spec": {"list": [1, 2]}})
            )
        );
        assert_eq!(patch(&old, &old), None);
    }
}

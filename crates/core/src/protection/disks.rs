//! What protection changes in a VirtualMachine: its replicated volumes move to the PVCs that DRBD
//! backs, it is pinned to the node that holds them, and it is marked. The state before is kept in
//! the annotation `original-volumes`.

use std::collections::BTreeMap;

use farshore_api::meta::{annotations, labels};
use farshore_api::names;
use farshore_api::protection_request::ProtectedVolume;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::vm::{self, Source};

const HOSTNAME: &str = "kubernetes.io/hostname";
/// Annotations that belong to one cluster's tools, or to us, and are not copied to the standby.
const LOCAL_ANNOTATIONS: [&str; 3] = [
    "kubectl.kubernetes.io/",
    "kubevirt.io/",
    "siterecovery.trilio.io/",
];
const LOCAL_LABELS: &str = "siterecovery.trilio.io/";

/// Content of the annotation `original-volumes`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Originals {
    /// The volumes that were swapped, as they stood in the VM.
    volumes: Vec<Value>,
    /// The `dataVolumeTemplates` that were removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    data_volume_templates: Vec<Value>,
    /// The node selector of the VM for a host name, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
}

fn originals(vm: &Value) -> Option<Originals> {
    serde_json::from_str(vm::annotation(vm, annotations::ORIGINAL_VOLUMES)?).ok()
}

fn keep_originals(vm: &mut Value, originals: &Originals) {
    let text = serde_json::to_string(originals).unwrap_or_default();
    vm::annotate(vm, annotations::ORIGINAL_VOLUMES, Some(&text));
}

/// The volumes of a VM as they are without protection.
pub fn unprotected_volumes(vm: &Value) -> Vec<vm::Volume> {
    let originals = originals(vm)
        .map(|o| vm::volumes_of(&o.volumes))
        .unwrap_or_default();
    vm::volumes(vm)
        .into_iter()
        .map(|v| {
            originals
                .iter()
                .find(|o| o.name == v.name)
                .cloned()
                .unwrap_or(v)
        })
        .collect()
}

/// Marks a VM as protected by `owner` (`<zone>/<request>`).
pub fn mark(vm: &mut Value, owner: &str, marks: &BTreeMap<String, String>) {
    vm::annotate(vm, annotations::PROTECTED_BY, Some(owner));
    for (key, value) in marks {
        vm::label(vm, key, Some(value));
    }
}

/// Removes every mark.
fn unmark(vm: &mut Value) {
    for key in [
        annotations::PROTECTED_BY,
        annotations::SOURCE_HASH,
        annotations::CREATED_BY,
    ] {
        vm::annotate(vm, key, None);
    }
    for key in [labels::ZONE, labels::PROTECTION_REQUEST] {
        vm::label(vm, key, None);
    }
}

/// Who protects the VM, as `<zone>/<request>`.
pub fn owner(vm: &Value) -> Option<&str> {
    vm::annotation(vm, annotations::PROTECTED_BY)
}

/// Who created the VM as a standby, as `<zone>/<request>`.
pub fn creator(vm: &Value) -> Option<&str> {
    vm::annotation(vm, annotations::CREATED_BY)
}

/// Whether every replicated volume of the VM runs from its replicated disk.
pub fn is_swapped(vm: &Value, replicated: &[ProtectedVolume]) -> bool {
    let volumes = vm::volumes(vm);
    replicated.iter().all(|r| {
        let frontend = Source::Claim(names::frontend_pvc(&r.pvc));
        volumes
            .iter()
            .any(|v| v.name == r.name && v.source == frontend)
    })
}

/// Whether any replicated volume of the VM runs from its replicated disk.
pub fn is_swapped_in_part(vm: &Value, replicated: &[ProtectedVolume]) -> bool {
    let volumes = vm::volumes(vm);
    replicated.iter().any(|r| {
        let frontend = Source::Claim(names::frontend_pvc(&r.pvc));
        volumes
            .iter()
            .any(|v| v.name == r.name && v.source == frontend)
    })
}

/// The disks of a VM that nothing copies, each as a clause: volumes on a claim that is not the
/// replicated disk of that name. `instance` is the running VM: a disk may be plugged into it alone.
pub fn unreplicated(
    vm: &Value,
    instance: Option<&Value>,
    replicated: &[ProtectedVolume],
) -> Vec<String> {
    let plugged = instance
        .and_then(|i| i.pointer("/spec/volumes"))
        .and_then(Value::as_array);
    let mut told = BTreeMap::new();
    let running = vm::volumes_of(plugged.map_or(&[], Vec::as_slice));
    for volume in vm::volumes(vm).into_iter().chain(running) {
        let clause = match &volume.source {
            Source::Other(_) => continue,
            Source::Hotplugged => format!("volume {} (hotplugged)", volume.name),
            Source::Claim(claim) => {
                let copied = replicated
                    .iter()
                    .any(|r| r.name == volume.name && names::frontend_pvc(&r.pvc) == *claim);
                if copied {
                    continue;
                }
                format!("volume {} (PersistentVolumeClaim {claim})", volume.name)
            }
        };
        told.entry(volume.name).or_insert(clause);
    }
    told.into_values().collect()
}

/// Moves the VM onto its replicated disks and pins it to their node.
pub fn swap(vm: &mut Value, replicated: &[ProtectedVolume], node: &str) {
    let mut kept = originals(vm).unwrap_or_default();
    let mut claims = Vec::new();
    if let Some(Value::Array(volumes)) = vm.pointer_mut("/spec/template/spec/volumes") {
        for volume in volumes {
            let Some(r) = replicated.iter().find(|r| volume["name"] == json!(r.name)) else {
                continue;
            };
            let frontend = json!({"name": r.name, "persistentVolumeClaim": {"claimName": names::frontend_pvc(&r.pvc)}});
            claims.push(r.pvc.clone());
            if *volume != frontend {
                kept.volumes.retain(|k| k["name"] != volume["name"]);
                kept.volumes.push(std::mem::replace(volume, frontend));
            }
        }
    }
    take_templates(vm, &claims, &mut kept);
    let selector = vm
        .pointer("/spec/template/spec/nodeSelector")
        .and_then(|s| s.get(HOSTNAME));
    if let Some(before) = selector.and_then(Value::as_str).filter(|s| *s != node) {
        kept.hostname = Some(before.into());
    }
    pin(vm, node);
    keep_originals(vm, &kept);
}

/// Removes the templates of swapped volumes: they would make the disk anew.
fn take_templates(vm: &mut Value, claims: &[String], kept: &mut Originals) {
    let Some(Value::Array(templates)) = vm.pointer_mut("/spec/dataVolumeTemplates") else {
        return;
    };
    let swapped = |t: &Value| {
        let name = t
            .pointer("/metadata/name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        claims.iter().any(|c| c == name)
    };
    let (taken, left): (Vec<_>, Vec<_>) = templates.drain(..).partition(swapped);
    kept.data_volume_templates.extend(taken);
    if left.is_empty() {
        vm::remove(vm, &["spec", "dataVolumeTemplates"]);
    } else {
        vm::set(vm, &["spec", "dataVolumeTemplates"], Value::Array(left));
    }
}

fn pin(vm: &mut Value, node: &str) {
    vm::set(
        vm,
        &["spec", "template", "spec", "nodeSelector", HOSTNAME],
        json!(node),
    );
}

/// Brings a VM back to what it was before protection, as far as protection changed it.
pub fn restore(vm: &mut Value) {
    if let Some(kept) = originals(vm) {
        if let Some(Value::Array(volumes)) = vm.pointer_mut("/spec/template/spec/volumes") {
            for volume in volumes {
                if let Some(before) = kept.volumes.iter().find(|k| k["name"] == volume["name"]) {
                    *volume = before.clone();
                }
            }
        }
        if !kept.data_volume_templates.is_empty() {
            let mut templates = kept.data_volume_templates.clone();
            if let Some(Value::Array(own)) = vm.pointer("/spec/dataVolumeTemplates") {
                templates.extend(own.iter().cloned());
            }
            vm::set(
                vm,
                &["spec", "dataVolumeTemplates"],
                Value::Array(templates),
            );
        }
        match &kept.hostname {
            Some(node) => pin(vm, node),
            None => vm::remove(vm, &["spec", "template", "spec", "nodeSelector", HOSTNAME]),
        }
    }
    vm::annotate(vm, annotations::ORIGINAL_VOLUMES, None);
    unmark(vm);
}

/// Whether nothing of protection is left in a VM but the memory of how it ran.
pub fn is_restored(vm: &Value) -> bool {
    let mut restored = vm.clone();
    restore(&mut restored);
    restored == *vm
}

/// What both copies of a VM share: everything but where and whether it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Blueprint {
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    spec: Map<String, Value>,
}

/// The blueprint of a VM that runs from its replicated disks.
pub fn blueprint(vm: &Value) -> Blueprint {
    let part = |path: &str| {
        vm.pointer(path)
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default()
    };
    let mut spec = Value::Object(part("/spec"));
    for path in [
        &["running"][..],
        &["runStrategy"],
        &["dataVolumeTemplates"],
        &["template", "spec", "nodeSelector", HOSTNAME],
        // Revisions are objects of one cluster.
        &["instancetype", "revisionName"],
        &["preference", "revisionName"],
    ] {
        vm::remove(&mut spec, path);
    }
    let mut labels = part("/metadata/labels");
    labels.retain(|key, _| !key.starts_with(LOCAL_LABELS));
    let mut annotations = part("/metadata/annotations");
    annotations.retain(|key, _| !LOCAL_ANNOTATIONS.iter().any(|p| key.starts_with(p)));
    let spec = match spec {
        Value::Object(spec) => spec,
        _ => Map::new(),
    };
    Blueprint {
        labels,
        annotations,
        spec,
    }
}

impl Blueprint {
    /// First 16 hex digits of SHA-256 over the blueprint, independent of the order of fields.
    pub fn hash(&self) -> String {
        let mut text = String::new();
        for part in [&self.labels, &self.annotations, &self.spec] {
            canonical(&Value::Object(part.clone()), &mut text);
        }
        Sha256::digest(text)
            .iter()
            .take(8)
            .map(|b| format!("{b:02x}"))
            .collect()
    }

    /// Writes the blueprint into a VM; its run state, its other annotations and our labels stay.
    fn write_to(&self, vm: &mut Value, node: &str) {
        let own = |path: &str| {
            vm.pointer(path)
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default()
        };
        let mut labels = self.labels.clone();
        labels.extend(
            own("/metadata/labels")
                .into_iter()
                .filter(|(k, _)| k.starts_with(LOCAL_LABELS)),
        );
        let mut annotations = own("/metadata/annotations");
        annotations.extend(self.annotations.clone());
        let run_state = own("/spec");
        let run_state = ["running", "runStrategy"]
            .into_iter()
            .find_map(|f| Some((f, run_state.get(f)?.clone())));
        let mut spec = self.spec.clone();
        if let Some((field, value)) = run_state {
            spec.insert(field.into(), value);
        }
        vm["spec"] = Value::Object(spec);
        vm["metadata"]["labels"] = Value::Object(labels);
        vm["metadata"]["annotations"] = Value::Object(annotations);
        pin(vm, node);
        vm::annotate(vm, annotations::SOURCE_HASH, Some(&self.hash()));
    }
}

fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            text.push('{');
            for (key, value) in fields.iter().collect::<BTreeMap<_, _>>() {
                text.push_str(&Value::String(key.clone()).to_string());
                text.push(':');
                canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

/// The standby of a VM: a halted copy on the node that holds the standby disks. It remembers how its
/// source runs, so that it runs the same way after a failover.
pub fn standby(
    source: &Value,
    replicated: &[ProtectedVolume],
    node: &str,
    owner: &str,
    marks: &BTreeMap<String, String>,
) -> Value {
    let uses_running = source
        .pointer("/spec/running")
        .is_some_and(|v| !v.is_null());
    let halted = if uses_running {
        json!({"running": false})
    } else {
        json!({"runStrategy": "Halted"})
    };
    let mut vm = json!({
        "apiVersion": source["apiVersion"],
        "kind": source["kind"],
        "metadata": {"name": source["metadata"]["name"], "namespace": source["metadata"]["namespace"]},
        "spec": halted,
    });
    blueprint(source).write_to(&mut vm, node);
    mark(&mut vm, owner, marks);
    vm::annotate(&mut vm, annotations::CREATED_BY, Some(owner));
    vm::annotate(
        &mut vm,
        annotations::RUN_STRATEGY,
        vm::remembered_run_state(source).as_deref(),
    );
    let claim = |r: &ProtectedVolume| json!({"name": r.name, "persistentVolumeClaim": {"claimName": r.pvc}});
    let kept = Originals {
        volumes: replicated.iter().map(claim).collect(),
        ..Originals::default()
    };
    keep_originals(&mut vm, &kept);
    vm
}

/// The patch that brings a standby in step with its source. `None` when it was made from the same
/// blueprint and stands on the right node.
pub fn in_step(standby: &Value, source: &Value, node: &str) -> Option<Value> {
    let blueprint = blueprint(source);
    let pinned = standby
        .pointer("/spec/template/spec/nodeSelector")
        .and_then(|s| s.get(HOSTNAME));
    let same = vm::annotation(standby, annotations::SOURCE_HASH) == Some(&blueprint.hash());
    if same && pinned.and_then(Value::as_str) == Some(node) {
        return None;
    }
    let mut new = standby.clone();
    blueprint.write_to(&mut new, node);
    vm::patch(standby, &new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replicated() -> Vec<ProtectedVolume> {
        ["root", "data"]
            .into_iter()
            .map(|name| ProtectedVolume {
                name: name.into(),
                pvc: format!("db01-{name}"),
                size_bytes: 1,
                port: 7000,
                sync_percent: None,
                out_of_sync_bytes: None,
                connection_state: None,
                disk_state: None,
            })
            .collect()
    }

    fn machine() -> Value {
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "db01", "namespace": "shop", "resourceVersion": "5", "labels": {"app": "db"},
                "annotations": {"kubevirt.io/latest-observed-api-version": "v1", "note": "keep"}},
            "spec": {
                "runStrategy": "Always",
                "dataVolumeTemplates": [{"metadata": {"name": "db01-root"}}, {"metadata": {"name": "other"}}],
                "template": {"spec": {"nodeSelector": {"zone": "a"}, "volumes": [
                    {"name": "root", "dataVolume": {"name": "db01-root"}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "db01-data"}},
                    {"name": "init", "cloudInitNoCloud": {}},
                ]}},
            },
        })
    }

    fn marks() -> BTreeMap<String, String> {
        BTreeMap::from([
            (labels::ZONE.into(), "m".into()),
            (labels::PROTECTION_REQUEST.into(), "db01".into()),
        ])
    }

    #[test]
    fn swap_and_restore_are_each_others_reverse() {
        let before = machine();
        let mut vm = before.clone();
        mark(&mut vm, "m/db01", &marks());
        swap(&mut vm, &replicated(), "n1");
        assert!(is_swapped(&vm, &replicated()));
        assert_eq!(
            vm["spec"]["template"]["spec"]["nodeSelector"],
            json!({"zone": "a", HOSTNAME: "n1"})
        );
        assert_eq!(
            vm["spec"]["dataVolumeTemplates"],
            json!([{"metadata": {"name": "other"}}])
        );
        assert_eq!(unprotected_volumes(&vm), vm::volumes(&before));
        let once = vm.clone();
        swap(&mut vm, &replicated(), "n1");
        assert_eq!(vm, once, "a second swap changes nothing");
        restore(&mut vm);
        assert_eq!(vm, before);
    }

    #[test]
    fn every_kind_of_disk_that_nothing_copies_is_named_once() {
        let mut vm = machine();
        swap(&mut vm, &replicated(), "n1");
        assert_eq!(unreplicated(&vm, None, &replicated()), [""; 0]);
        let volumes = vm
            .pointer_mut("/spec/template/spec/volumes")
            .and_then(Value::as_array_mut)
            .unwrap();
        volumes.push(json!({"name": "new", "dataVolume": {"name": "fresh"}}));
        volumes.push(json!({"name": "scratch", "emptyDisk": {"capacity": "1Gi"}}));
        volumes.push(
            json!({"name": "other", "persistentVolumeClaim": {"claimName": "db01-root-drbd"}}),
        );
        let mut running = volumes.clone();
        running.push(json!({"name": "hot", "persistentVolumeClaim": {"claimName": "h", "hotpluggable": true}}));
        let instance = json!({"spec": {"volumes": running}});
        assert_eq!(
            unreplicated(&vm, Some(&instance), &replicated()),
            [
                "volume hot (hotplugged)",
                "volume new (PersistentVolumeClaim fresh)",
                "volume other (PersistentVolumeClaim db01-root-drbd)",
            ]
        );
        restore(&mut vm);
        assert_eq!(
            unreplicated(&vm, None, &replicated()).len(),
            4,
            "its own disks are not the replicated ones"
        );
    }

    #[test]
    fn a_host_name_that_the_user_pinned_comes_back() {
        let mut vm = machine();
        vm["spec"]["template"]["spec"]["nodeSelector"] = json!({HOSTNAME: "n7"});
        let before = vm.clone();
        swap(&mut vm, &replicated(), "n1");
        restore(&mut vm);
        assert_eq!(vm, before);
    }

    #[test]
    fn a_standby_is_halted_pinned_and_runs_from_the_replicated_disks() {
        let mut source = machine();
        swap(&mut source, &replicated(), "n1");
        let standby = standby(&source, &replicated(), "m2", "m/db01", &marks());
        assert!(vm::is_halted(&standby));
        assert!(is_swapped(&standby, &replicated()));
        assert_eq!(
            vm::remembered_run_state(&standby).as_deref(),
            Some("runStrategy:Always")
        );
        assert_eq!(
            standby["spec"]["template"]["spec"]["nodeSelector"],
            json!({"zone": "a", HOSTNAME: "m2"})
        );
        assert_eq!(in_step(&standby, &source, "m2"), None);

        source["spec"]["template"]["spec"]["domain"] = json!({"cpu": {"cores": 4}});
        vm::label(&mut source, "app", None);
        let patch = in_step(&standby, &source, "m2").unwrap();
        assert_eq!(
            patch["spec"],
            json!({"template": {"spec": {"domain": {"cpu": {"cores": 4}}}}})
        );
        assert_eq!(patch["metadata"]["labels"], json!({"app": null}));

        let mut restored = standby.clone();
        restore(&mut restored);
        assert_eq!(
            vm::volumes(&restored)[0].source,
            Source::Claim("db01-root".into()),
            "the standby's own disk"
        );
    }

    #[test]
    fn the_order_of_fields_does_not_change_the_hash() {
        let a: Value =
            serde_json::from_str(r#"{"spec": {"a": 1, "b": {"c": 2, "d": 3}}}"#).unwrap();
        let b: Value =
            serde_json::from_str(r#"{"spec": {"b": {"d": 3, "c": 2}, "a": 1}}"#).unwrap();
        assert_eq!(blueprint(&a).hash(), blueprint(&b).hash());
    }
}

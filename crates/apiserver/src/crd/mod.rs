//! CustomResourceDefinitions: validation, conditions, and the registry entries made from them.

mod internal;
mod names;
mod rules;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use serde_json::{Value, json};

use crate::conversion::{self, Webhook};
use crate::handlers::write::{Managed, Writer, at_once};
use crate::kinds;
use crate::meta;
use crate::registry::{NameRule, Origin, ResourceInfo, ScalePaths, Traits, VersionInfo};
use crate::schema::{FieldError, Structural};
use crate::server::Server;
use crate::store::{Key, Stored};
use crate::strategy::Endpoint;
use crate::table;

pub(crate) use internal::rule as printed_rule;
pub(crate) use rules::validate;

/// Table of CRDs in the store.
pub(crate) const TABLE: &str = "customresourcedefinitions.apiextensions.k8s.io";
const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";
/// Finalizer that holds a CRD until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    meta::field(object, path)
        .and_then(Value::as_str)
        .unwrap_or("")
}

fn flag_of(object: &Value, field: &str) -> bool {
    object.get(field) == Some(&Value::Bool(true))
}

fn strings(object: &Value, path: &str) -> Vec<String> {
    let list = meta::field(object, path).and_then(Value::as_array);
    list.map(|l| {
        l.iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    })
    .unwrap_or_default()
}

fn versions(crd: &Value) -> &[Value] {
    meta::field(crd, "spec.versions")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn storage_version(crd: &Value) -> &str {
    versions(crd)
        .iter()
        .find(|v| v["storage"] == true)
        .and_then(|v| v["name"].as_str())
        .unwrap_or("")
}

/// Fills in names and conversion, and records the storage version in the status.
pub(crate) fn defaults(crd: &mut Value) {
    if crd.get("kind").and_then(Value::as_str) != Some("CustomResourceDefinition") {
        return;
    }
    let kind = text(crd, "spec.names.kind").to_owned();
    if text(crd, "spec.names.singular").is_empty() && !kind.is_empty() {
        meta::set_field(crd, "spec.names.singular", json!(kind.to_lowercase()));
    }
    if text(crd, "spec.names.listKind").is_empty() && !kind.is_empty() {
        meta::set_field(crd, "spec.names.listKind", json!(format!("{kind}List")));
    }
    if meta::field(crd, "spec.conversion").is_none_or(Value::is_null) {
        meta::set_field(crd, "spec.conversion", json!({"strategy": "None"}));
    }
    conversion::defaults(crd);
    if meta::field(crd, "status.acceptedNames").is_none_or(Value::is_null) {
        meta::set_field(
            crd,
            "status.acceptedNames",
            json!({"plural": "", "kind": ""}),
        );
    }
    if meta::field(crd, "status.conditions").is_none() {
        meta::set_field(crd, "status.conditions", Value::Null);
    }
    let mut stored = strings(crd, "status.storedVersions");
    let storing = versions(crd).iter().find(|v| flag_of(v, "storage"));
    if let Some(version) = storing
        && !stored.iter().any(|s| version["name"] == s.as_str())
    {
        stored.push(version["name"].as_str().unwrap_or_default().to_owned());
        meta::set_field(crd, "status.storedVersions", json!(stored));
    }
    let versions = crd.pointer_mut("/spec/versions");
    for version in versions.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
            drop_null_defaults(schema);
        }
    }
}

/// A default of null is no default, and an example of null no example.
fn drop_null_defaults(schema: &mut Value) {
    let Some(words) = schema.as_object_mut() else {
        return;
    };
    words
        .retain(|word, value| !(value.is_null() && matches!(word.as_str(), "default" | "example")));
    for (word, value) in words {
        match (word.as_str(), value) {
            ("not" | "items" | "additionalProperties", sub) => drop_null_defaults(sub),
            ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                list.iter_mut().for_each(drop_null_defaults);
            }
            ("properties", Value::Object(map)) => map.values_mut().for_each(drop_null_defaults),
            _ => {}
        }
    }
}

/// Whether the CRD of that name is being deleted.
pub(crate) fn is_terminating(server: &Server, name: &str) -> bool {
    server
        .store
        .get(TABLE, &Key::new("", name))
        .is_some_and(|crd| meta::is_deleting(&crd.value))
}

/// Marks a CRD that is being deleted: it waits until its objects are gone.
pub(crate) fn mark_deleting(crd: &mut Value, now: &str) {
    let mut finalizers = meta::finalizers(crd);
    if !finalizers.iter().any(|f| f == CLEANUP) {
        finalizers.push(CLEANUP.into());
        meta::set_finalizers(crd, &finalizers);
    }
    meta::set_condition(
        crd,
        "Terminating",
        true,
        "InstanceDeletionPending",
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        now,
    );
}

fn is_true(crd: &Value, kind: &str) -> bool {
    let conditions = meta::field(crd, "status.conditions").and_then(Value::as_array);
    conditions.is_some_and(|l| l.iter().any(|c| c["type"] == kind && c["status"] == "True"))
}

/// Whether a CRD is served.
pub(crate) fn is_established(crd: &Value) -> bool {
    is_true(crd, "Established")
}

/// apiVersion and kind of the objects that a CRD serves.
pub(crate) fn served_kinds(crd: &Value) -> Vec<(Value, Value)> {
    let group = text(crd, "spec.group");
    let kind = text(crd, "status.acceptedNames.kind");
    let served = versions(crd).iter().filter(|v| flag_of(v, "served"));
    let names = served.filter_map(|v| v["name"].as_str());
    names
        .map(|version| (json!(format!("{group}/{version}")), json!(kind)))
        .collect()
}

/// Brings status and registry in line with the stored CRD of that name, or with its absence, and those of the others of
/// its group where that frees or takes a name.
pub(crate) fn changed(server: &Server, name: &str) {
    let _order = server
        .crd_order
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let mut waiting = VecDeque::from([name.to_owned()]);
    while let Some(name) = waiting.pop_front() {
        if !examine(server, &name) {
            continue;
        }
        let group = name.split_once('.').map_or("", |(_, group)| group);
        for other in of_group(server, group) {
            let other = meta::name(&other.value);
            if other != name && !waiting.iter().any(|w| w == other) {
                waiting.push_back(other.to_owned());
            }
        }
    }
}

/// Brings status and registry in line with one CRD. Whether the names it has are others than before.
///
/// The conditions come as two status updates after the write that caused them, so that clients have to wait for them as
/// they must elsewhere; the resource is served before `Established` can be seen.
fn examine(server: &Server, name: &str) -> bool {
    let key = Key::new("", name);
    let Some(stored) = server.store.get(TABLE, &key) else {
        if let Some((plural, group)) = name.split_once('.') {
            server.change_registry(|r| r.remove(group, plural));
        }
        server.store.close_watches(name);
        return true;
    };
    if meta::is_deleting(&stored.value) {
        return false;
    }
    let now = meta::rfc3339(server.now());
    let (names, conflict) = names::accepted(server, &stored.value);
    let established = is_established(&stored.value);
    status(server, name, &mut |crd| {
        let (accepted, reason, message) = match &conflict {
            None => (true, "NoConflicts", "no conflicts found"),
            Some((reason, message)) => (false, *reason, message.as_str()),
        };
        meta::set_condition(crd, "NamesAccepted", accepted, reason, message, &now);
        meta::set_field(crd, "status.acceptedNames", names.clone());
        if !accepted && !established {
            let why = "not all names are accepted";
            meta::set_condition(crd, "Established", false, "NotAccepted", why, &now);
        }
        if meta::field(crd, "status.storedVersions").is_none() {
            let storage = storage_version(crd).to_owned();
            meta::set_field(crd, "status.storedVersions", json!([storage]));
        }
    });
    let Some(named) = server.store.get(TABLE, &key) else {
        return false;
    };
    let has = |crd: &Value| {
        let names = meta::field(crd, "status.acceptedNames").cloned();
        (names, is_true(crd, "NamesAccepted"))
    };
    let others = has(&stored.value) != has(&named.value);
    if conflict.is_some() && !established {
        return others;
    }
    let (group, plural) = (
        text(&named.value, "spec.group"),
        text(&named.value, "spec.names.plural"),
    );
    let before = server.registry().get(group, plural).cloned();
    match resource(&named.value) {
        Ok(info) => {
            if before.as_ref().is_none_or(|b| !same(b, &info)) {
                server.change_registry(|r| r.insert(info));
                if before.is_some() {
                    // Open watches speak the old schema; they end, and clients go on from where they were.
                    server.store.close_watches(name);
                }
            }
        }
        Err(problems) => tracing::error!(
            crd = name,
            ?problems,
            "a stored CustomResourceDefinition does not parse"
        ),
    }
    status(server, name, &mut |crd| {
        meta::set_condition(
            crd,
            "Established",
            true,
            "InitialNamesAccepted",
            "the initial names have been accepted",
            &now,
        );
    });
    others
}

/// Whether two registry entries are made from the same spec and have the same names.
fn same(a: &ResourceInfo, b: &ResourceInfo) -> bool {
    let names = |r: &ResourceInfo| {
        (
            r.kind.clone(),
            r.list_kind.clone(),
            r.singular.clone(),
            r.short_names.clone(),
            r.categories.clone(),
        )
    };
    a.origin == b.origin && names(a) == names(b)
}

/// The CRDs of a group.
fn of_group(server: &Server, group: &str) -> Vec<Arc<Stored>> {
    let mut crds = server.store.list(TABLE, None).objects;
    crds.retain(|c| text(&c.value, "spec.group") == group);
    crds
}

/// A status update of a CRD by the server itself.
fn status(server: &Server, name: &str, change: &mut (dyn FnMut(&mut Value) + Send)) {
    let crds = server.builtin(GROUP, PLURAL);
    let mut writer: Writer = server.writer(&crds);
    writer.manager = "kube-apiserver";
    let key = Key::new("", name);
    let mut next = |old: &Value| {
        let mut new = old.clone();
        change(&mut new);
        Ok(new)
    };
    let done = at_once(writer.update(&key, Endpoint::Status, Managed::Track, &mut next));
    if let Err(error) = done {
        tracing::debug!(crd = name, status = %error.status(), "status of a CustomResourceDefinition not written");
    }
}

/// The registry entry of a CRD, by the names it was given.
fn resource(crd: &Value) -> Result<ResourceInfo, Vec<FieldError>> {
    let (mut served, mut unserved) = (Vec::new(), Vec::new());
    for version in versions(crd) {
        let info = self::version(crd, version)?;
        match flag_of(version, "served") {
            true => served.push(info),
            false => unserved.push(info),
        }
    }
    served.sort_by_key(|v| std::cmp::Reverse(version_order(&v.name)));
    Ok(ResourceInfo {
        group: text(crd, "spec.group").into(),
        kind: text(crd, "status.acceptedNames.kind").into(),
        list_kind: text(crd, "status.acceptedNames.listKind").into(),
        plural: text(crd, "spec.names.plural").into(),
        singular: text(crd, "status.acceptedNames.singular").into(),
        short_names: strings(crd, "status.acceptedNames.shortNames"),
        categories: strings(crd, "status.acceptedNames.categories"),
        namespaced: text(crd, "spec.scope") == "Namespaced",
        verbs: kinds::all_verbs(),
        versions: served,
        storage_version: storage_version(crd).into(),
        unserved,
        table: meta::name(crd).into(),
        conversion: Webhook::of(crd),
        origin: Origin::Crd {
            uid: meta::uid(crd).into(),
            generation: meta::generation(crd),
        },
        traits: Traits {
            generation: true,
            names: NameRule::Subdomain,
            ..Traits::default()
        },
    })
}

fn version(crd: &Value, version: &Value) -> Result<VersionInfo, Vec<FieldError>> {
    let name = version["name"].as_str().unwrap_or("");
    let schema = meta::field(version, "schema.openAPIV3Schema")
        .cloned()
        .unwrap_or_else(|| json!({"type": "object"}));
    let structural = Structural::parse(&schema)?;
    let mut subresources = Vec::new();
    if meta::field(version, "subresources.status").is_some() {
        subresources.push(kinds::status());
    }
    if let Some(scale) = meta::field(version, "subresources.scale") {
        let path = |field: &str| {
            scale
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_owned()
        };
        subresources.push(kinds::scale(ScalePaths {
            spec_replicas: path("specReplicasPath"),
            status_replicas: path("statusReplicasPath"),
            selector: Some(path("labelSelectorPath")).filter(|p| !p.is_empty()),
        }));
    }
    let fields = version
        .get("selectableFields")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let fields = fields
        .filter_map(|f| f["jsonPath"].as_str())
        .map(|p| p.trim_start_matches('.').to_owned());
    let deprecated = (version["deprecated"] == true).then(|| {
        version["deprecationWarning"]
            .as_str()
            .map_or_else(|| deprecation(crd, name), str::to_owned)
    });
    Ok(VersionInfo {
        name: name.into(),
        deprecated,
        schema: Some(Arc::new(schema)),
        structural: Some(Arc::new(structural)),
        columns: Arc::new(table::custom_columns(&version["additionalPrinterColumns"])),
        subresources,
        selectable_fields: fields.collect(),
    })
}

/// What is said of a deprecated version that says nothing itself: that it is one, and which to use instead.
fn deprecation(crd: &Value, name: &str) -> String {
    let (group, kind) = (text(crd, "spec.group"), text(crd, "spec.names.kind"));
    let later = versions(crd)
        .iter()
        .filter(|v| flag_of(v, "served") && !flag_of(v, "deprecated"))
        .filter_map(|v| v["name"].as_str())
        .filter(|other| version_order(other) > version_order(name));
    let instead = match later.max_by_key(|other| version_order(other)) {
        Some(best) => format!("; use {group}/{best} {kind}"),
        None => String::new(),
    };
    format!("{group}/{name} {kind} is deprecated{instead}")
}

/// Sorts versions as Kubernetes does: v2 before v1 before v1beta2 before v1alpha1 before anything else.
fn version_order(name: &str) -> (u8, u64, u64) {
    let parse = || -> Option<(u8, u64, u64)> {
        let rest = name.strip_prefix('v')?;
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let major = rest[..digits].parse().ok()?;
        let (stage, minor) = match &rest[digits..] {
            "" => (3, 0),
            suffix => match (suffix.strip_prefix("beta"), suffix.strip_prefix("alpha")) {
                (Some(n), _) => (2, n.parse().ok()?),
                (_, Some(n)) => (1, n.parse().ok()?),
                _ => return None,
            },
        };
        Some((stage, major, minor))
    };
    parse().unwrap_or((0, 0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_stability_then_number() {
        let mut names = vec!["v1alpha1", "v10", "v1beta2", "foo", "v2", "v1beta10"];
        names.sort_by_key(|n| std::cmp::Reverse(version_order(n)));
        assert_eq!(
            names,
            ["v10", "v2", "v1beta10", "v1beta2", "v1alpha1", "foo"]
        );
    }
}

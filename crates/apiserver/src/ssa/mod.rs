//! Server-side apply and the ownership of fields.
//!
//! Rules: the Kubernetes documentation "Server-Side Apply" and the behaviour of its reference
//! implementation, structured-merge-diff. All of it is pure: the time is a parameter.
//!
//! One version is served per ownership set: entries written in another version of the same kind
//! are compared as they are, which is right where versions differ in nothing but their name.

mod builtin;
mod fieldset;
mod managers;
mod shape;
mod walk;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::patch;
use serde_json::{Map, Value, json};

pub(crate) use builtin::{How, lookup as builtin_field};
use fieldset::{PathElement, Set, path_text};
use managers::{Entry, ManagerId, Managers};
use shape::Shape;
pub(crate) use shape::builtin_kind;
use walk::Comparison;

/// The manager that owns what an object held before it was applied for the first time.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Where client-side apply keeps the configuration that it sent last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The only manager whose client-side history is taken into account.
const KUBECTL: &str = "kubectl";

/// One field that the applier wants to change and somebody else owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The owner, such as `"kube-controller-manager" using apps/v1`.
    pub manager: String,
    /// The field, such as `.spec.replicas`.
    pub field: String,
}

impl Conflict {
    /// The message of this conflict's cause in the answer.
    pub fn message(&self) -> String {
        format!("conflict with {}", self.manager)
    }
}

/// Why an apply was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApplyError {
    /// Others own fields with other values: 409. Never empty; ordered by manager, then by field.
    Conflicts(Vec<Conflict>),
    /// The applied object cannot be understood: 400.
    Invalid(String),
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ApplyError::Invalid(message) => f.write_str(message),
            ApplyError::Conflicts(conflicts) => f.write_str(&conflict_message(conflicts)),
        }
    }
}

/// The message of the whole answer to conflicts, as clients print it.
pub fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!(
            "Apply failed with 1 conflict: {}: {}",
            only.message(),
            only.field
        );
    }
    let mut text = format!("Apply failed with {} conflicts: ", conflicts.len());
    let mut last = None;
    for conflict in conflicts {
        if last != Some(&conflict.manager) {
            let gap = if last.is_some() { "\n" } else { "" };
            text += &format!("{gap}conflicts with {}:", conflict.manager);
            last = Some(&conflict.manager);
        }
        text += &format!("\n- {}", conflict.field);
    }
    text
}

impl std::error::Error for ApplyError {}

/// Applies a configuration and returns the whole new object with `metadata.managedFields`.
///
/// `live` is the stored object, `None` to create it. `schema` is the `openAPIV3Schema` of a custom
/// resource's version; built-in kinds need none. `now` is an RFC 3339 time in whole seconds.
///
/// Through a subresource only the field of that name is applied (`status` through `/status`). On
/// the main resource the caller takes `status` out of `applied` where the kind has that
/// subresource. System-owned metadata in `applied` (uid, resourceVersion, generation,
/// creationTimestamp and the like) is not applied; preconditions are the caller's business.
///
/// An apply that changes nothing returns the live object as it is.
#[allow(clippy::too_many_arguments)] // The facts of one request; a struct would only rename them.
pub fn apply(
    live: Option<&Value>,
    applied: &Value,
    schema: Option<&Value>,
    manager: &str,
    subresource: Option<&str>,
    api_version: &str,
    force: bool,
    now: &str,
) -> Result<Value, ApplyError> {
    let stated = applied
        .get("apiVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if stated != api_version {
        return Err(ApplyError::Invalid(format!(
            "incorrect version specified in apply patch. Specified patch version: {stated}, expected: {api_version}"
        )));
    }
    let has_entries = |v: &Value| v.as_array().is_some_and(|list| !list.is_empty());
    if applied
        .pointer("/metadata/managedFields")
        .is_some_and(has_entries)
    {
        return Err(ApplyError::Invalid(
            "metadata.managedFields must be nil".into(),
        ));
    }
    let kind = applied
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let shape = Shape::of_object(api_version, kind, schema);
    let config = configuration(applied, subresource);
    let (base, mut managers) = match live {
        None => (skeleton(applied), Managers::default()),
        Some(live) => (without_managed_fields(live), decode_live(live)),
    };
    for entry in managers.entries.values_mut() {
        entry.set = walk::reconcile(&entry.set, &base, shape);
    }
    let before = managers.clone();
    if live.is_some() && managers.entries.is_empty() {
        let id = ManagerId::updater(BEFORE_FIRST_APPLY, None, api_version);
        let created =
            walk::compare(&skeleton(applied), &base, shape).map_err(ApplyError::Invalid)?;
        record_update(&mut managers, id, created, api_version, now);
    }

    let request = Request {
        base: &base,
        config: &config,
        shape,
        api_version,
        now,
        ignored: &ignored(subresource, api_version, kind),
    };
    let id = ManagerId::applier(manager, subresource);
    let (mut object, managers) = match request.apply(managers.clone(), &id, force) {
        Err(Refused::Conflicts(mut conflicts)) => {
            if manager != KUBECTL {
                return Err(ApplyError::Conflicts(report(&conflicts)));
            }
            // What client-side apply wrote last is kubectl's own, whatever the entry is called.
            let own = client_side_fields(&base, shape, kind, api_version);
            for (_, set) in &mut conflicts {
                *set = set.difference(&own);
            }
            conflicts.retain(|(_, set)| !set.is_empty());
            if !conflicts.is_empty() {
                return Err(ApplyError::Conflicts(report(&conflicts)));
            }
            request
                .apply(managers, &id, true)
                .map_err(Refused::into_error)?
        }
        other => other.map_err(Refused::into_error)?,
    };
    if manager == KUBECTL
        && object
            .pointer("/metadata/annotations")
            .is_some_and(|a| a.get(LAST_APPLIED).is_some())
    {
        object["metadata"]["annotations"][LAST_APPLIED] = Value::from(last_applied_text(applied));
    }
    // An applier that owns nothing is no reason to begin with the books either.
    let nothing_to_say = before.entries.is_empty() && !managers.entries.contains_key(&id);
    if let Some(live) = live
        && walk::same(&object, &base)
        && (managers == before || nothing_to_say)
    {
        return Ok(live.clone());
    }
    set_managed_fields(&mut object, &managers);
    Ok(object)
}

/// Records the ownership that a POST, PUT or PATCH of another type brings: fields that are new or
/// changed become the manager's, fields that are gone become nobody's. Sets
/// `new.metadata.managedFields`.
///
/// `old` is the stored object, `None` for a creation. A request may rewrite the entries: what
/// `new.metadata.managedFields` says is taken where it can be read, and `[{}]` clears it, after
/// which ownership is not recorded until the next apply. An object that the schema cannot make
/// sense of keeps its entries as they are.
#[allow(clippy::too_many_arguments)] // As for `apply`.
pub fn track_update(
    old: Option<&Value>,
    new: &mut Value,
    schema: Option<&Value>,
    manager: &str,
    subresource: Option<&str>,
    api_version: &str,
    now: &str,
) {
    let kind = new
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let shape = Shape::of_object(api_version, &kind, schema);
    let base = old.map_or_else(|| skeleton(new), without_managed_fields);
    let mut managers = match new.pointer("/metadata/managedFields") {
        Some(fields) if subresource.is_none() && is_reset(fields) => Managers::default(),
        Some(fields) if subresource.is_none() => match Managers::decode(Some(fields)) {
            Ok(managers) if !managers.entries.is_empty() => managers,
            _ => old.map(decode_live).unwrap_or_default(),
        },
        _ => old.map(decode_live).unwrap_or_default(),
    };
    remove_managed_fields(new);
    if old.is_none() || !managers.entries.is_empty() {
        for entry in managers.entries.values_mut() {
            entry.set = walk::reconcile(&entry.set, &base, shape);
        }
        if let Ok(change) = walk::compare(&base, new, shape) {
            let id = ManagerId::updater(manager, subresource, api_version);
            record_update(
                &mut managers,
                id,
                change.without(&ignored(subresource, api_version, &kind)),
                api_version,
                now,
            );
            managers.cap_updates();
        }
    }
    set_managed_fields(new, &managers);
}

/// Everything about an apply that does not change between its first try and a forced one.
struct Request<'a> {
    base: &'a Value,
    config: &'a Value,
    shape: Shape<'a>,
    api_version: &'a str,
    now: &'a str,
    ignored: &'a Set,
}

enum Refused {
    Conflicts(Vec<(ManagerId, Set)>),
    Invalid(String),
}

impl Refused {
    fn into_error(self) -> ApplyError {
        match self {
            Refused::Conflicts(conflicts) => ApplyError::Conflicts(report(&conflicts)),
            Refused::Invalid(message) => ApplyError::Invalid(message),
        }
    }
}

impl Request<'_> {
    fn apply(
        &self,
        mut managers: Managers,
        id: &ManagerId,
        force: bool,
    ) -> Result<(Value, Managers), Refused> {
        let invalid = Refused::Invalid;
        let merged = walk::merge(self.base, self.config, self.shape).map_err(invalid)?;
        let set = walk::field_set(self.config, self.shape, true).map_err(invalid)?;
        let set = set.recursive_difference(self.ignored);
        let last = managers.entries.get(id).cloned();
        let time = last.as_ref().and_then(|e| e.time.clone());
        let owned = set.difference(&never_owned());
        let unchanged = last
            .as_ref()
            .is_some_and(|e| e.set == owned && e.api_version == self.api_version);
        // Until the end the applier also holds what it sends of the object's identity, so that
        // pruning does not take `metadata` for abandoned.
        let entry = Entry {
            set,
            api_version: self.api_version.to_owned(),
            time,
        };
        managers.entries.insert(id.clone(), entry);
        let object = match &last {
            Some(last) => self.prune(&merged, &managers, &last.set).map_err(invalid)?,
            None => merged,
        };
        let change = walk::compare(self.base, &object, self.shape)
            .map_err(invalid)?
            .without(self.ignored);
        let changed = !change.is_same();
        let conflicts = take_over(&mut managers, id, &change);
        if !force && !conflicts.is_empty() {
            return Err(Refused::Conflicts(conflicts));
        }
        if let Some(entry) = managers.entries.get_mut(id) {
            entry.set = owned;
            if changed || !unchanged {
                entry.time = Some(self.now.to_owned());
            }
        }
        managers.drop_empty();
        Ok((object, managers))
    }

    /// Takes out what the applier owned, no longer sends and nobody else owns.
    fn prune(&self, merged: &Value, managers: &Managers, last: &Set) -> Result<Value, String> {
        let shape = self.shape;
        let named = |set: &Set| walk::with_named_parents(set, shape);
        let set_of = |value: &Value| walk::field_set(value, shape, false).map(|s| named(&s));
        let everything = set_of(merged)?;
        let last = named(last);
        let mut owned = Set::default();
        managers.entries.values().for_each(|e| owned.extend(&e.set));
        // First all that was applied goes, with all that is inside; then what has an owner comes
        // back; then what the applier never owned.
        let pruned = walk::remove(merged, &last, shape)?;
        let keep = set_of(&pruned)?.union(&named(&owned));
        let pruned = walk::remove(merged, &everything.difference(&keep), shape)?;
        let gone = everything.difference(&set_of(&pruned)?).intersection(&last);
        walk::remove(merged, &gone, shape)
    }
}

/// Takes changed and removed fields from every other manager; returns what was taken because it
/// changed.
fn take_over(
    managers: &mut Managers,
    id: &ManagerId,
    change: &Comparison,
) -> Vec<(ManagerId, Set)> {
    let touched = change.modified.union(&change.added);
    let mut taken = Vec::new();
    for (other, entry) in &mut managers.entries {
        if other == id {
            continue;
        }
        let conflict = entry.set.intersection(&touched);
        if !conflict.is_empty() {
            entry.set = entry.set.difference(&conflict);
            taken.push((other.clone(), conflict));
        }
        entry.set = entry.set.difference(&change.removed);
    }
    taken
}

/// Gives an updater what it changed.
fn record_update(
    managers: &mut Managers,
    id: ManagerId,
    change: Comparison,
    api_version: &str,
    now: &str,
) {
    let own = change
        .modified
        .union(&change.added)
        .difference(&change.removed)
        .difference(&never_owned());
    // The updater's own older fields stay its own when it changes them again.
    take_over(managers, &id, &change);
    if let Some(entry) = managers.entries.get_mut(&id) {
        entry.set = entry.set.difference(&change.removed);
    }
    if !own.is_empty() {
        let entry = managers.entries.entry(id).or_insert_with(|| Entry {
            set: Set::default(),
            api_version: api_version.to_owned(),
            time: None,
        });
        entry.set.extend(&own);
        entry.time = Some(now.to_owned());
    }
    managers.drop_empty();
}

fn report(conflicts: &[(ManagerId, Set)]) -> Vec<Conflict> {
    let mut list: Vec<Conflict> = Vec::new();
    for (id, set) in conflicts {
        let manager = id.describe();
        list.extend(set.paths().iter().map(|p| Conflict {
            manager: manager.clone(),
            field: path_text(p),
        }));
    }
    list
}

fn field(name: &str) -> PathElement {
    PathElement::Field(name.to_owned())
}

/// Fields that the API server fills in and that therefore have no owner.
fn never_owned() -> Set {
    let metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let top = ["apiVersion", "kind", "metadata"].map(|name| vec![field(name)]);
    Set::of(
        top.into_iter()
            .chain(metadata.map(|name| vec![field("metadata"), field(name)])),
    )
}

/// Fields that a request to this endpoint can neither change nor own.
fn ignored(subresource: Option<&str>, api_version: &str, kind: &str) -> Set {
    let metadata = |name| vec![field("metadata"), field(name)];
    match (subresource, kind) {
        (None, "CustomResourceDefinition") => Set::of([vec![field("status")]]),
        (Some("status"), "CustomResourceDefinition") => {
            Set::of([vec![field("spec")], vec![field("metadata")]])
        }
        (Some("status"), "Deployment") if builtin::is_builtin(api_version) => {
            Set::of([vec![field("spec")], metadata("labels")])
        }
        (Some("status"), "Pod") if builtin::is_builtin(api_version) => {
            Set::of([vec![field("spec")], metadata("ownerReferences")])
        }
        (Some("status"), _) if builtin::is_builtin(api_version) => Set::of([vec![field("spec")]]),
        (Some("status"), _) => Set::of([vec![field("spec")], vec![field("metadata")]]),
        _ => Set::default(),
    }
}

/// What of the applied object takes effect.
fn configuration(applied: &Value, subresource: Option<&str>) -> Value {
    let mut config = Map::new();
    for (name, value) in applied.as_object().into_iter().flatten() {
        let identity = matches!(name.as_str(), "apiVersion" | "kind");
        match subresource {
            Some("status") if !identity && name != "status" => continue,
            _ => config.insert(name.clone(), value.clone()),
        };
    }
    if let Some(metadata) = config.get_mut("metadata").and_then(Value::as_object_mut) {
        for name in [
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "generation",
            "managedFields",
            "resourceVersion",
            "selfLink",
            "uid",
        ] {
            metadata.remove(name);
        }
    }
    Value::Object(config)
}

/// An object with an identity and nothing else.
fn skeleton(of: &Value) -> Value {
    let mut metadata = Map::new();
    for name in ["name", "namespace"] {
        if let Some(value) = of.pointer("/metadata").and_then(|m| m.get(name)) {
            metadata.insert(name.into(), value.clone());
        }
    }
    let mut object = Map::new();
    for name in ["apiVersion", "kind"] {
        if let Some(value) = of.get(name) {
            object.insert(name.into(), value.clone());
        }
    }
    object.insert("metadata".into(), Value::Object(metadata));
    Value::Object(object)
}

/// What makes the managedFields of an object unreadable, if anything.
pub fn managed_fields_problem(object: &Value) -> Option<String> {
    Managers::decode(object.pointer("/metadata/managedFields")).err()
}

fn decode_live(live: &Value) -> Managers {
    // Stored entries were checked when they were written; unreadable ones are as good as none.
    Managers::decode(live.pointer("/metadata/managedFields")).unwrap_or_default()
}

fn is_reset(fields: &Value) -> bool {
    fields
        .as_array()
        .is_some_and(|list| list.len() == 1 && list[0].as_object().is_some_and(Map::is_empty))
}

fn without_managed_fields(object: &Value) -> Value {
    let mut copy = object.clone();
    remove_managed_fields(&mut copy);
    copy
}

fn remove_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

fn set_managed_fields(object: &mut Value, managers: &Managers) {
    if managers.entries.is_empty() {
        return;
    }
    if let Some(object) = object.as_object_mut() {
        let metadata = object.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("managedFields".into(), managers.encode());
        }
    }
}

/// The fields that client-side apply wrote last and that still have the value it wrote.
fn client_side_fields(base: &Value, shape: Shape<'_>, kind: &str, api_version: &str) -> Set {
    let text = base
        .pointer("/metadata/annotations")
        .and_then(|a| a.get(LAST_APPLIED))
        .and_then(Value::as_str);
    let Some(config) = text.and_then(|t| serde_json::from_str::<Value>(t).ok()) else {
        return Set::default();
    };
    let stated = |name: &str| config.get(name).and_then(Value::as_str).unwrap_or_default();
    if stated("apiVersion") != api_version || stated("kind") != kind {
        return Set::default();
    }
    let Ok(set) = walk::field_set(&config, shape, false) else {
        return Set::default();
    };
    let Ok(change) = walk::compare(base, &config, shape) else {
        return Set::default();
    };
    set.difference(&change.modified)
        .difference(&change.added)
        .difference(&change.removed)
}

/// The first place of a custom resource whose value has another type than its schema says.
pub fn type_problem(schema: &Value, object: &Value) -> Option<String> {
    let properties = schema.get("properties")?.as_object()?;
    properties
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind" | "metadata"))
        .find_map(|(name, schema)| wrong_type(schema, object.get(name)?, &format!(".{name}")))
}

fn wrong_type(schema: &Value, value: &Value, path: &str) -> Option<String> {
    let kind = schema.get("type").and_then(Value::as_str)?;
    if value.is_null() {
        return None;
    }
    match (kind, value) {
        ("array", Value::Array(items)) => {
            let schema = schema.get("items")?;
            let mut each = items.iter().enumerate();
            each.find_map(|(i, item)| wrong_type(schema, item, &format!("{path}[{i}]")))
        }
        ("object", Value::Object(map)) => map.iter().find_map(|(name, value)| {
            let known = schema.get("properties").and_then(|p| p.get(name));
            let schema = known.or_else(|| schema.get("additionalProperties"))?;
            wrong_type(schema, value, &format!("{path}.{name}"))
        }),
        _ => expected(kind, value).map(|why| format!("{path}: {why}")),
    }
}

/// Why a value cannot be of a type of OpenAPI; values are printed as Go prints them.
pub(crate) fn expected(kind: &str, value: &Value) -> Option<String> {
    let shown = || patch::go_text(value);
    Some(match kind {
        "integer" | "number" if !value.is_number() => {
            "expected numeric (int or float), got *value.valueUnstructured".into()
        }
        "string" if !value.is_string() => {
            format!(
                "expected string, got &value.valueUnstructured{{Value:{}}}",
                go_code(value)
            )
        }
        "boolean" if !value.is_boolean() => format!("expected boolean, got &{{{}}}", shown()),
        "array" if !value.is_array() => format!("expected list, got &{{{}}}", shown()),
        "object" if !value.is_object() => format!("expected map, got &{{{}}}", shown()),
        _ => return None,
    })
}

/// A value as Go code.
fn go_code(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".into(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_code).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let entries = map.iter().map(|(k, v)| format!("{k:?}:{}", go_code(v)));
            let entries: Vec<String> = entries.collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
        other => other.to_string(),
    }
}

/// The text that client-side apply would keep for this configuration.
fn last_applied_text(applied: &Value) -> String {
    let mut config = without_managed_fields(applied);
    if let Some(annotations) = config
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    format!("{config}\n")
}

//! What a schema of a CustomResourceDefinition may say at all, level by level.
//!
//! Source of the rules and texts: Kubernetes, apiextensions-apiserver, `pkg/apis/apiextensions/validation`
//! (`ValidateCustomResourceDefinitionOpenAPISchema`); what makes a schema structural is in `structural`.

use serde_json::Value;

use super::error::{FieldError, FieldErrorKind, child, index, key};
use super::node::{list, object};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
/// Constructs of JSON Schema that a definition may not use.
const UNSUPPORTED: [&str; 6] = [
    "id",
    "additionalItems",
    "patternProperties",
    "definitions",
    "dependencies",
    "$ref",
];

/// What holds below a level.
#[derive(Clone, Default)]
struct Within {
    /// Why there may be no defaults.
    no_defaults: Option<String>,
    /// Inside apiVersion, kind or metadata of a resource.
    meta: bool,
}

/// All faults of a schema and of what is in it.
pub(crate) fn check(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    if flag(schema, "nullable") {
        let why = "nullable cannot be true at the root";
        errors.push(FieldError::forbidden(child(path, "nullable"), why));
    }
    level(path, schema, true, &Within::default(), errors);
}

/// Whether a schema has the form of a structural one, its values aside.
pub(crate) fn can_be_structural(schema: &Value) -> bool {
    let set = |word: &str| is_set(schema.get(word));
    if UNSUPPORTED.iter().any(|w| set(w))
        || set("$schema")
        || schema.get("items").is_some_and(Value::is_array)
        || schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false))
    {
        return false;
    }
    let lists = ["allOf", "anyOf", "oneOf"];
    let below = lists.iter().flat_map(|word| list(schema.get(*word)));
    let single = ["not", "items", "additionalProperties"];
    let single = single.iter().filter_map(|word| schema.get(*word));
    let named = object(schema.get("properties")).map(|(_, sub)| sub);
    below
        .chain(single.filter(|s| s.is_object()))
        .chain(named)
        .all(can_be_structural)
}

fn is_set(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(_) => true,
    }
}

fn level(path: &str, schema: &Value, root: bool, within: &Within, errors: &mut Vec<FieldError>) {
    standard(path, schema, within, errors);
    if flag(schema, "uniqueItems") {
        errors.push(FieldError::forbidden(
            child(path, "uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    let properties = object(schema.get("properties"));
    if let Some(more) = schema.get("additionalProperties").filter(|a| !a.is_null()) {
        let here = child(path, "additionalProperties");
        if properties.count() > 0 && more != &Value::Bool(true) {
            errors.push(FieldError::forbidden(
                here.as_str(),
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        if more.is_object() {
            let mut within = within.clone();
            if within.meta {
                let why = "inside additionalProperties applying to object metadata";
                within.no_defaults = Some(why.into());
            }
            level(&here, more, false, &within, errors);
        }
    }
    for (name, sub) in object(schema.get("properties")) {
        let mut within = within.clone();
        let embedded = flag(schema, "x-kubernetes-embedded-resource");
        if (root || embedded) && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            within.meta = true;
            if root {
                within.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        let here = key(&child(path, "properties"), name);
        level(&here, sub, false, &within, errors);
    }
    if let Some(sub) = schema.get("not").filter(|n| n.is_object()) {
        level(&child(path, "not"), sub, false, within, errors);
    }
    for word in ["allOf", "oneOf", "anyOf"] {
        for (n, sub) in list(schema.get(word)).enumerate() {
            level(&index(&child(path, word), n), sub, false, within, errors);
        }
    }
    match schema.get("items") {
        Some(sub @ Value::Object(_)) => level(&child(path, "items"), sub, false, within, errors),
        Some(Value::Array(items)) => {
            for (n, sub) in items.iter().enumerate() {
                level(&index(&child(path, "items"), n), sub, false, within, errors);
            }
        }
        _ => {}
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        errors.push(FieldError::invalid(
            child(path, "x-kubernetes-preserve-unknown-fields"),
            false.into(),
            "must be true or undefined",
        ));
    }
    map_type(path, schema, errors);
    list_type(path, schema, errors);
    keys(path, schema, errors);
    super::cel::check_words(path, schema, errors);
}

fn standard(path: &str, schema: &Value, within: &Within, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    let mut forbid = |field: &str, why: &str| {
        errors.push(FieldError::forbidden(child(path, field), why));
    };
    if let Some(why) = within.no_defaults.as_ref().filter(|_| has_default(schema)) {
        forbid("default", &format!("must not be set {why}"));
    }
    for word in UNSUPPORTED {
        if is_set(schema.get(word)) {
            forbid(word, &format!("{word} is not supported"));
        }
    }
    if kind == "null" {
        let why = "type cannot be set to null, use nullable as an alternative";
        forbid("type", why);
    }
    if list(schema.get("items")).next().is_some() {
        forbid("items", "items must be a schema object and not an array");
    }
    if within.meta && flag(schema, "x-kubernetes-embedded-resource") {
        let why = "must not be used inside of resource meta";
        forbid("x-kubernetes-embedded-resource", why);
    }
    if !kind.is_empty() && !TYPES.contains(&kind) {
        let supported = TYPES.map(str::to_owned);
        let path = child(path, "type");
        errors.push(FieldError::not_supported(path, kind.into(), &supported));
    }
}

fn must_be(path: &str, schema: &Value, wanted: &str, word: &str, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    let path = child(path, "type");
    let why = format!("must be {wanted} if {word} is specified");
    errors.push(match kind {
        "" => FieldError::required(path, why),
        kind => FieldError::invalid(path, kind.into(), why),
    });
}

fn map_type(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    let word = "x-kubernetes-map-type";
    let Some(given) = schema.get(word).and_then(Value::as_str) else {
        return;
    };
    if text(schema, "type") != "object" {
        must_be(path, schema, "object", word, errors);
    }
    if !["atomic", "granular"].contains(&given) {
        errors.push(FieldError::not_supported(
            child(path, word),
            given.into(),
            &["atomic", "granular"].map(str::to_owned),
        ));
    }
}

fn list_type(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    let word = "x-kubernetes-list-type";
    let keys_word = "x-kubernetes-list-map-keys";
    let given = schema.get(word).and_then(Value::as_str);
    let keys: Vec<&Value> = list(schema.get(keys_word)).collect();
    let must_be_map = "must be map if x-kubernetes-list-map-keys is non-empty";
    let items = schema.get("items").filter(|i| i.is_object());
    match given {
        None if !keys.is_empty() => {
            errors.push(FieldError::required(child(path, word), must_be_map));
        }
        Some(other) if !keys.is_empty() && other != "map" => {
            let path = child(path, word);
            errors.push(FieldError::invalid(path, other.into(), must_be_map));
        }
        _ => {}
    }
    let Some(given) = given else { return };
    if text(schema, "type") != "array" {
        must_be(path, schema, "array", word, errors);
    } else if given == "set"
        && let Some(items) = items
    {
        set_items(&child(path, "items"), items, errors);
    }
    if !["atomic", "set", "map"].contains(&given) {
        errors.push(FieldError::not_supported(
            child(path, word),
            given.into(),
            &["atomic", "set", "map"].map(str::to_owned),
        ));
    }
    if given != "map" {
        return;
    }
    let if_map = "if x-kubernetes-list-type is map";
    if keys.is_empty() {
        let why = format!("must not be empty {if_map}");
        errors.push(FieldError::required(child(path, keys_word), why));
    }
    let here = child(path, "items");
    match schema.get("items") {
        None | Some(Value::Null) => {
            let why = format!("must have a schema {if_map}");
            errors.push(FieldError::required(here, why));
        }
        Some(several @ Value::Array(_)) => {
            let why = format!("must only have a single schema {if_map}");
            errors.push(FieldError::invalid(here, several.clone(), why));
        }
        Some(items) if text(items, "type") != "object" => errors.push(FieldError::invalid(
            child(&here, "type"),
            text(items, "type").into(),
            "must be object if parent array's x-kubernetes-list-type is map",
        )),
        Some(items) => key_names(path, items, schema.get(keys_word), errors),
    }
}

fn set_items(path: &str, items: &Value, errors: &mut Vec<FieldError>) {
    let (list_word, map_word) = ("x-kubernetes-list-type", "x-kubernetes-map-type");
    let list_type = items.get(list_word).cloned().unwrap_or_default();
    let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
    match text(items, "type") {
        "array" if !list_type.is_null() && list_type != "atomic" => {
            errors.push(FieldError::invalid(child(path, list_word), list_type, why));
        }
        // The value told is that of the other word.
        "object" if text(items, map_word) != "atomic" => {
            errors.push(FieldError::invalid(child(path, map_word), list_type, why));
        }
        _ => {}
    }
}

/// The keys of a list of type map are scalar fields of its items, each once.
fn key_names(path: &str, items: &Value, keys: Option<&Value>, errors: &mut Vec<FieldError>) {
    let all = keys.cloned().unwrap_or_default();
    let names: Vec<&str> = list(keys).filter_map(Value::as_str).collect();
    let keys_path = child(path, "x-kubernetes-list-map-keys");
    for (n, name) in names.iter().enumerate() {
        match items.get("properties").and_then(|p| p.get(*name)) {
            None => errors.push(FieldError::invalid(
                keys_path.as_str(),
                all.clone(),
                "entries must all be names of item properties",
            )),
            Some(field) if ["array", "object"].contains(&text(field, "type")) => {
                let here = key(&child(&child(path, "items"), "properties"), name);
                // The type told is that of the items.
                errors.push(FieldError::invalid(
                    child(&here, "type"),
                    text(items, "type").into(),
                    "must be a scalar type if parent array's x-kubernetes-list-type is map",
                ));
            }
            Some(_) => {}
        }
        if names[..n].contains(name) {
            let why = "must not contain duplicate entries";
            errors.push(FieldError::invalid(keys_path.as_str(), all.clone(), why));
        }
    }
}

/// Items of sets and maps are there, and so are the keys of maps: two items that differ only in a key left out would be
/// one and the same.
fn keys(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "x-kubernetes-list-type");
    let Some(items) = schema.get("items").filter(|i| i.is_object()) else {
        return;
    };
    if !["set", "map"].contains(&kind) {
        return;
    }
    let here = child(path, "items");
    if flag(items, "nullable") {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.push(FieldError::forbidden(child(&here, "nullable"), why));
    }
    if kind == "set" {
        return;
    }
    let required: Vec<&Value> = list(items.get("required")).collect();
    for name in list(schema.get("x-kubernetes-list-map-keys")) {
        let text = name.as_str().unwrap_or_default();
        let Some(field) = items.get("properties").and_then(|p| p.get(text)) else {
            continue;
        };
        let here = key(&child(&here, "properties"), text);
        let because = "this property is in x-kubernetes-list-map-keys, so it";
        if !required.contains(&name) && !has_default(field) {
            let why = format!("{because} must have a default or be a required property");
            errors.push(FieldError::required(child(&here, "default"), why));
        }
        if flag(field, "nullable") {
            let why = format!("{because} cannot be nullable");
            errors.push(FieldError::new(
                child(&here, "nullable"),
                FieldErrorKind::Forbidden,
                None,
                why,
            ));
        }
    }
}

fn has_default(schema: &Value) -> bool {
    schema.get("default").is_some_and(|d| !d.is_null())
}

fn text<'a>(schema: &'a Value, name: &str) -> &'a str {
    schema.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool) == Some(true)
}

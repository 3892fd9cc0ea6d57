//! The rules that make an OpenAPI v3 schema a *structural* one, as `apiextensions.k8s.io/v1`
//! demands of every version of a CustomResourceDefinition.

use regex::Regex;
use serde_json::{Value, json};

use super::error::{FieldError, child, index, key};
use super::node::{list, object};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Items,
    Field,
}

/// What a value validation (`allOf`, `anyOf`, `oneOf`, `not`) may not say, and in which words that
/// is refused.
const NOT_NESTED: [(&str, &str); 11] = [
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    (
        "x-kubernetes-preserve-unknown-fields",
        "must be false to be structural",
    ),
    (
        "x-kubernetes-embedded-resource",
        "must be false to be structural",
    ),
    (
        "x-kubernetes-int-or-string",
        "must be false to be structural",
    ),
    (
        "x-kubernetes-list-map-keys",
        "must be empty to be structural",
    ),
    (
        "x-kubernetes-list-type",
        "must be undefined to be structural",
    ),
    (
        "x-kubernetes-map-type",
        "must be undefined to be structural",
    ),
];

/// All violations of the structural rules, sorted by message.
pub(crate) fn check(path: &str, schema: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !schema.is_object() {
        errors.push(FieldError::required(path, "schemas are required"));
        return errors;
    }
    level(path, schema, Level::Root, &mut errors);
    complete(path, schema, &mut errors);
    errors.sort_by_key(FieldError::message);
    errors.dedup();
    errors
}

fn level(path: &str, schema: &Value, at: Level, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let preserve = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let int_or_string = flag(schema, "x-kubernetes-int-or-string");

    general(path, schema, errors);
    match schema.get("items") {
        Some(items @ Value::Object(_)) => level(&child(path, "items"), items, Level::Items, errors),
        _ if kind == "array" => errors.push(FieldError::required(
            child(path, "items"),
            "must be specified",
        )),
        _ => {}
    }
    for (name, sub) in object(schema.get("properties")) {
        let at = key(&child(path, "properties"), name);
        level(&at, sub, Level::Field, errors);
    }
    additional(path, schema, at, embedded, errors);

    if int_or_string && preserve {
        errors.push(FieldError::invalid(
            child(path, "x-kubernetes-preserve-unknown-fields"),
            true.into(),
            "must be false if x-kubernetes-int-or-string is true",
        ));
    }
    if int_or_string && embedded {
        errors.push(FieldError::invalid(
            child(path, "x-kubernetes-embedded-resource"),
            true.into(),
            "must be false if x-kubernetes-int-or-string is true",
        ));
    }
    let first_all_of = list(schema.get("allOf")).next();
    junctors(
        path,
        schema,
        is_int_or_string(schema),
        first_all_of.is_some_and(is_int_or_string),
        errors,
    );

    let type_path = child(path, "type");
    if embedded && kind != "object" {
        let must = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            FieldError::required(type_path, must)
        } else {
            FieldError::invalid(type_path, kind.into(), must)
        });
    } else if kind.is_empty() && !int_or_string && !preserve {
        errors.push(FieldError::required(
            type_path,
            match at {
                Level::Root => "must not be empty at the root",
                Level::Items => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        ));
    }
    if at == Level::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(
            child(path, "type"),
            kind.into(),
            "must be object at the root",
        ));
    }
    if embedded && !preserve && object(schema.get("properties")).next().is_none() {
        errors.push(FieldError::required(
            child(path, "properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without \
             x-kubernetes-preserve-unknown-fields",
        ));
    }
    metadata(path, schema, at, embedded, errors);
}

/// What Go says of a broken regular expression, where it is one of the common faults.
fn go_regex_error(pattern: &str, error: &str) -> String {
    let from = |start: char| pattern.rfind(start).map_or(pattern, |at| &pattern[at..]);
    let problem = if error.contains("unclosed character class") {
        format!("missing closing ]: `{}`", from('['))
    } else if error.contains("unclosed group") {
        format!("missing closing ): `{pattern}`")
    } else if error.contains("unopened group") {
        format!("unexpected ): `{pattern}`")
    } else if error.contains("repetition operator missing expression") {
        let operator = pattern.chars().find(|c| "*+?{".contains(*c));
        format!(
            "missing argument to repetition operator: `{}`",
            operator.map(String::from).unwrap_or_default()
        )
    } else {
        return error.to_owned();
    };
    format!("error parsing regexp: {problem}")
}

/// Rules that hold at any level.
fn general(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Err(error) = Regex::new(pattern)
    {
        let error = go_regex_error(pattern, &error.to_string());
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(
            child(path, "pattern"),
            pattern.into(),
            detail,
        ));
    }
}

fn additional(path: &str, schema: &Value, at: Level, embedded: bool, errors: &mut Vec<FieldError>) {
    let Some(more) = schema.get("additionalProperties") else {
        return;
    };
    let path = child(path, "additionalProperties");
    let mut forbid = |detail: &str| errors.push(FieldError::forbidden(path.as_str(), detail));
    if at == Level::Root {
        forbid("must not be used at the root");
    }
    if embedded {
        forbid("must not be used if x-kubernetes-embedded-resource is set");
    }
    if more.is_object() {
        level(&path, more, Level::Field, errors);
    }
}

/// apiVersion, kind and metadata of a resource: their types are fixed, and of the metadata at the
/// root only name and generateName may be restricted.
fn metadata(path: &str, schema: &Value, at: Level, embedded: bool, errors: &mut Vec<FieldError>) {
    if at != Level::Root && !embedded {
        return;
    }
    let properties = child(path, "properties");
    for (name, kind) in [
        ("kind", "string"),
        ("apiVersion", "string"),
        ("metadata", "object"),
    ] {
        let Some(sub) = schema.get("properties").and_then(|p| p.get(name)) else {
            continue;
        };
        let here = key(&properties, name);
        if text(sub, "type") != kind {
            errors.push(FieldError::invalid(
                child(&here, "type"),
                text(sub, "type").into(),
                format!("must be {kind}"),
            ));
        }
        if name == "metadata" && at == Level::Root {
            let only_names = object(sub.get("properties"))
                .all(|(field, _)| field == "name" || field == "generateName");
            let nothing_else = object(Some(sub))
                .all(|(word, _)| ["type", "properties", "default"].contains(&word.as_str()));
            if !only_names || !nothing_else {
                errors.push(FieldError::forbidden(
                    here,
                    "must not specify anything other than name and generateName, but metadata is \
                     implicitly specified",
                ));
            }
        }
    }
}

/// The value validations below one level.
fn junctors(
    path: &str,
    schema: &Value,
    skip_any_of: bool,
    skip_first_all_of: bool,
    errors: &mut Vec<FieldError>,
) {
    for word in ["allOf", "anyOf", "oneOf"] {
        for (n, sub) in list(schema.get(word)).enumerate() {
            if word == "anyOf" && skip_any_of {
                continue;
            }
            let skip_its_any_of = word == "allOf" && n == 0 && skip_first_all_of;
            nested(&index(&child(path, word), n), sub, skip_its_any_of, errors);
        }
    }
    if let Some(sub) = schema.get("not") {
        nested(&child(path, "not"), sub, false, errors);
    }
}

fn nested(path: &str, schema: &Value, skip_any_of: bool, errors: &mut Vec<FieldError>) {
    general(path, schema, errors);
    junctors(path, schema, skip_any_of, false, errors);
    if let Some(items) = schema.get("items") {
        nested(&child(path, "items"), items, false, errors);
    }
    for (name, sub) in object(schema.get("properties")) {
        let at = key(&child(path, "properties"), name);
        if name == "metadata" {
            errors.push(FieldError::forbidden(
                at.as_str(),
                "must not be specified in a nested context",
            ));
        }
        nested(&at, sub, false, errors);
    }
    if !text(schema, "type").is_empty() {
        errors.push(FieldError::forbidden(
            child(path, "type"),
            "must be empty to be structural",
        ));
    }
    for (word, detail) in NOT_NESTED {
        let set = match schema.get(word) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(items)) => !items.is_empty(),
            Some(_) => true,
        };
        if set {
            errors.push(FieldError::forbidden(child(path, word), detail));
        }
    }
    if list(schema.get("x-kubernetes-validations"))
        .next()
        .is_some()
    {
        errors.push(FieldError::forbidden(
            child(path, "x-kubernetes-validations"),
            "must be empty to be structural",
        ));
    }
}

/// Every field that a value validation of the root speaks of must be specified in the structure itself. Those further down
/// are not looked at.
fn complete(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    for (nested_path, sub) in branches(path, schema) {
        specified(path, Some(schema), &nested_path, sub, errors);
    }
}

fn branches<'a>(path: &str, schema: &'a Value) -> Vec<(String, &'a Value)> {
    let mut all = Vec::new();
    for word in ["allOf", "anyOf", "oneOf"] {
        for (n, sub) in list(schema.get(word)).enumerate() {
            all.push((index(&child(path, word), n), sub));
        }
    }
    if let Some(sub) = schema.get("not") {
        all.push((child(path, "not"), sub));
    }
    all
}

fn specified(
    path: &str,
    structure: Option<&Value>,
    nested_path: &str,
    nested: &Value,
    errors: &mut Vec<FieldError>,
) {
    let Some(structure) = structure else {
        let detail = format!("because it is defined in {nested_path}");
        errors.push(FieldError::required(path, detail));
        return;
    };
    for (sub_path, sub) in branches(nested_path, nested) {
        specified(path, Some(structure), &sub_path, sub, errors);
    }
    if let Some(items) = nested.get("items") {
        specified(
            &child(path, "items"),
            structure.get("items"),
            &child(nested_path, "items"),
            items,
            errors,
        );
    }
    for (name, sub) in object(nested.get("properties")) {
        specified(
            &key(&child(path, "properties"), name),
            structure.get("properties").and_then(|p| p.get(name)),
            &key(&child(nested_path, "properties"), name),
            sub,
            errors,
        );
    }
}

/// The pattern `anyOf: [{type: integer}, {type: string}]`, which int-or-string fields may carry
/// although nested types are otherwise refused.
fn is_int_or_string(schema: &Value) -> bool {
    schema.get("anyOf") == Some(&json!([{"type": "integer"}, {"type": "string"}]))
}

fn text<'a>(schema: &'a Value, name: &str) -> &'a str {
    schema.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name).and_then(Value::as_bool) == Some(true)
}

//! The value rules of a schema: types, formats, bounds, enumerations and the logical junctors.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::error::{FieldError, FieldErrorKind, child, index};
use super::lists::key_of;
use super::node::{Additional, ListType, Node, Values};

/// The path of errors that belong to no single field, as the API server prints it.
pub(crate) const NO_PATH: &str = "<nil>";

/// Validates a value. With `old`, parts that did not change may stay invalid (ratcheting).
pub(crate) fn check(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if old == Some(value) {
        return;
    }
    if !has_type(node, value) {
        errors.push(wrong_type(node, value, path));
    }
    if value.is_null() {
        allowed(&node.values, value, path, errors);
        return;
    }
    junctors(&node.values, value, path, errors);
    match value {
        Value::String(text) => string(&node.values, text, path, errors),
        Value::Number(n) => number(&node.values, n, path, errors),
        Value::Array(items) => {
            array(node, items, old, path, errors);
        }
        _ => {}
    }
    allowed(&node.values, value, path, errors);
    if let Value::Object(_) = value {
        object(node, value, old, path, errors);
    }
}

fn has_type(node: &Node, value: &Value) -> bool {
    if node.int_or_string {
        return match value {
            Value::Null => node.nullable,
            Value::String(_) => true,
            Value::Number(n) => is_integer(n),
            _ => false,
        };
    }
    match (node.kind.as_str(), value) {
        ("", _) => true,
        (_, Value::Null) => node.nullable,
        ("object", Value::Object(_))
        | ("array", Value::Array(_))
        | ("string", Value::String(_))
        | ("boolean", Value::Bool(_))
        | ("number", Value::Number(_)) => true,
        ("integer", Value::Number(n)) => is_integer(n),
        _ => false,
    }
}

fn is_integer(n: &Number) -> bool {
    n.is_i64() || n.is_u64() || n.as_f64().is_some_and(|f| f.fract() == 0.0)
}

fn wrong_type(node: &Node, value: &Value, path: &str) -> FieldError {
    let wanted = if node.int_or_string {
        "integer,string"
    } else {
        &node.kind
    };
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if is_integer(n) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    type_error(path, wanted, found)
}

fn type_error(path: &str, wanted: &str, found: &str) -> FieldError {
    let shown = if path.is_empty() { NO_PATH } else { path };
    FieldError::new(
        shown,
        FieldErrorKind::TypeInvalid,
        Some(found.into()),
        format!("{path} in body must be of type {wanted}: {found:?}"),
    )
}

fn string(values: &Values, text: &str, path: &str, errors: &mut Vec<FieldError>) {
    let length = text.chars().count() as u64;
    if let Some(max) = values.max_length
        && length > max
    {
        errors.push(FieldError::too_long(path, max));
    }
    let mut invalid = |detail: String| {
        errors.push(FieldError::invalid(path, text.into(), detail));
    };
    if let Some(min) = values.min_length
        && length < min
    {
        invalid(format!(
            "{path} in body should be at least {min} chars long"
        ));
    }
    if let Some(pattern) = &values.pattern
        && !pattern.regex.is_match(text)
    {
        invalid(format!("{path} in body should match '{}'", pattern.source));
    }
    if !super::formats::is_valid(&values.format, text) {
        errors.push(type_error(path, &values.format, text));
    }
}

fn number(values: &Values, n: &Number, path: &str, errors: &mut Vec<FieldError>) {
    let fits = match values.format.as_str() {
        "int32" => n
            .as_f64()
            .is_some_and(|f| (-2147483648.0..=2147483647.0).contains(&f)),
        "int64" => n.is_i64() || n.as_f64().is_some_and(|f| f.abs() < 9.2e18),
        _ => true,
    };
    if !fits {
        let detail = format!(
            "Checked value must be of type integer with format {} in {path}",
            values.format
        );
        errors.push(FieldError::invalid(NO_PATH, "".into(), detail));
    }
    let mut invalid = |detail: String| {
        let value = Value::Number(n.clone());
        errors.push(FieldError::invalid(path, value, detail));
    };
    if let Some(factor) = &values.multiple_of
        && !is_multiple(n, factor)
    {
        invalid(format!("{path} in body should be a multiple of {factor}"));
    }
    if let Some(max) = &values.maximum {
        match compare(n, max) {
            Ordering::Greater if !values.exclusive_maximum => invalid(format!(
                "{path} in body should be less than or equal to {max}"
            )),
            Ordering::Greater | Ordering::Equal if values.exclusive_maximum => {
                invalid(format!("{path} in body should be less than {max}"));
            }
            _ => {}
        }
    }
    if let Some(min) = &values.minimum {
        match compare(n, min) {
            Ordering::Less if !values.exclusive_minimum => invalid(format!(
                "{path} in body should be greater than or equal to {min}"
            )),
            Ordering::Less | Ordering::Equal if values.exclusive_minimum => {
                invalid(format!("{path} in body should be greater than {min}"));
            }
            _ => {}
        }
    }
}

/// Integers are compared as integers, so that large ones keep their precision.
fn compare(a: &Number, b: &Number) -> Ordering {
    if let (Some(a), Some(b)) = (a.as_i64(), b.as_i64()) {
        return a.cmp(&b);
    }
    let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(0.0));
    a.total_cmp(&b)
}

fn is_multiple(n: &Number, factor: &Number) -> bool {
    if let (Some(n), Some(factor)) = (n.as_i64(), factor.as_i64()) {
        return factor == 0 || n % factor == 0;
    }
    let (n, factor) = (n.as_f64().unwrap_or(0.0), factor.as_f64().unwrap_or(1.0));
    let quotient = n / factor;
    (quotient - quotient.round()).abs() < 1e-9
}

fn array(
    node: &Node,
    items: &[Value],
    old: Option<&Value>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let count = items.len() as u64;
    if let Some(known) = node.items.as_deref() {
        for (n, item) in items.iter().enumerate() {
            let before = old_item(node, old, item);
            check(known, item, before, &index(path, n), errors);
        }
    }
    if let Some(min) = node.values.min_items
        && count < min
    {
        errors.push(FieldError::invalid(
            path,
            count.into(),
            format!("{path} in body should have at least {min} items"),
        ));
    }
    if let Some(max) = node.values.max_items
        && count > max
    {
        errors.push(FieldError::too_many(path, count, max));
    }
    if node.values.unique_items && (1..items.len()).any(|n| items[..n].contains(&items[n])) {
        errors.push(FieldError::invalid(
            path,
            "".into(),
            format!("{path} in body shouldn't contain duplicates"),
        ));
    }
}

/// The item that an item of a list was before. Only lists of type `map` tell which one that is.
pub(crate) fn old_item<'a>(node: &Node, old: Option<&'a Value>, item: &Value) -> Option<&'a Value> {
    if node.list_type != ListType::Map {
        return None;
    }
    let wanted = key_of(node, item);
    old?.as_array()?
        .iter()
        .find(|candidate| key_of(node, candidate) == wanted)
}

fn object(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let Value::Object(map) = value else { return };
    let count = map.len() as u64;
    if let Some(min) = node.values.min_properties
        && count < min
    {
        errors.push(FieldError::invalid(
            path,
            count.into(),
            format!("{path} in body should have at least {min} properties"),
        ));
    }
    if let Some(max) = node.values.max_properties
        && count > max
    {
        errors.push(FieldError::too_many(path, count, max));
    }
    for name in &node.values.required {
        if !map.contains_key(name) {
            errors.push(FieldError::required(child(path, name), ""));
        }
    }
    for (name, sub) in map {
        let before = old.and_then(|o| o.get(name));
        if let Some(known) = node.properties.get(name) {
            check(known, sub, before, &child(path, name), errors);
        } else if let Additional::Schema(known) = &node.additional {
            check(known, sub, before, &child(path, name), errors);
        }
    }
}

fn allowed(values: &Values, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if values.allowed.is_empty() || values.allowed.iter().any(|a| same(a, value)) {
        return;
    }
    let supported: Vec<String> = values
        .allowed
        .iter()
        .map(|a| match a {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
        .collect();
    errors.push(FieldError::not_supported(path, value.clone(), &supported));
}

/// Equality in which 1 and 1.0 are the same number.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare(a, b) == Ordering::Equal,
        _ => a == b,
    }
}

fn junctors(values: &Values, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let failures = |nodes: &[Node]| -> Vec<Vec<FieldError>> {
        nodes
            .iter()
            .map(|node| {
                let mut found = Vec::new();
                check(node, value, None, path, &mut found);
                found
            })
            .collect()
    };
    let general = |text: String| FieldError::invalid(NO_PATH, "".into(), text);

    if !values.any_of.is_empty() {
        let mut each = failures(&values.any_of);
        if each.iter().all(|f| !f.is_empty()) {
            errors.push(general(format!(
                "{path:?} must validate at least one schema (anyOf)"
            )));
            errors.append(closest(&mut each));
        }
    }
    if !values.one_of.is_empty() {
        let mut each = failures(&values.one_of);
        let valid = each.iter().filter(|f| f.is_empty()).count();
        if valid != 1 {
            let found = match valid {
                0 => "Found none valid".to_string(),
                n => format!("Found {n} valid alternatives"),
            };
            errors.push(general(format!(
                "{path:?} must validate one and only one schema (oneOf). {found}"
            )));
            if valid == 0 {
                errors.append(closest(&mut each));
            }
        }
    }
    if !values.all_of.is_empty() {
        let each = failures(&values.all_of);
        let failed = each.iter().filter(|f| !f.is_empty()).count();
        let all = each.len();
        errors.extend(each.into_iter().flatten());
        if failed > 0 {
            let none = if failed == all {
                ". None validated"
            } else {
                ""
            };
            errors.push(general(format!(
                "{path:?} must validate all the schemas (allOf){none}"
            )));
        }
    }
    if let Some(not) = &values.not {
        let mut found = Vec::new();
        check(not, value, None, path, &mut found);
        if found.is_empty() {
            errors.push(general(format!(
                "{path:?} must not validate the schema (not)"
            )));
        }
    }
}

/// The failures of the branch that came closest.
fn closest(each: &mut [Vec<FieldError>]) -> &mut Vec<FieldError> {
    let best = (0..each.len())
        .min_by_key(|n| each[*n].len())
        .unwrap_or_default();
    &mut each[best]
}

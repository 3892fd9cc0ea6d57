//! Uniqueness in lists of type `set` (whole items) and `map` (the keys of items).

use serde_json::{Map, Value};

use super::error::{FieldError, child, index, key};
use super::node::{Additional, ListType, Node};

/// All repeated items below a value.
pub(crate) fn check(node: &Node, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (name, sub) in map {
                if let Some(known) = node.properties.get(name) {
                    check(known, sub, &child(path, name), errors);
                } else if let Additional::Schema(known) = &node.additional {
                    check(known, sub, &key(path, name), errors);
                }
            }
        }
        Value::Array(items) => {
            match node.list_type {
                ListType::Atomic => {}
                ListType::Set => repeated(items.to_vec(), path, errors),
                ListType::Map => map_keys(node, items, path, errors),
            }
            if let Some(known) = node.items.as_deref() {
                for (n, item) in items.iter().enumerate() {
                    check(known, item, &index(path, n), errors);
                }
            }
        }
        _ => {}
    }
}

fn map_keys(node: &Node, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    if let Some((n, item)) = items
        .iter()
        .enumerate()
        .find(|(_, item)| !item.is_object() && !item.is_null())
    {
        errors.push(FieldError::invalid(
            index(path, n),
            item.clone(),
            "must be an object for an array of list-type map",
        ));
        return;
    }
    let keys = items
        .iter()
        .map(|item| Value::Object(key_of(node, item)))
        .collect();
    repeated(keys, path, errors);
}

/// The keys of an item of a list of type `map`.
pub(crate) fn key_of(node: &Node, item: &Value) -> Map<String, Value> {
    node.list_map_keys
        .iter()
        .filter_map(|name| Some((name.clone(), item.get(name)?.clone())))
        .collect()
}

/// Reports the second occurrence of each repeated value; further ones add nothing.
fn repeated(values: Vec<Value>, path: &str, errors: &mut Vec<FieldError>) {
    for (n, value) in values.iter().enumerate() {
        if values[..n].iter().filter(|v| *v == value).count() == 1 {
            errors.push(FieldError::duplicate(index(path, n), value.clone()));
        }
    }
}

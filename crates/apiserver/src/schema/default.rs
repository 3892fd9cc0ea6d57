//! Filling in the defaults of a schema.

use serde_json::Value;

use super::node::{Additional, Node};

/// Removes nulls that may not be null and have no default, then sets defaults, nested ones too.
pub(crate) fn object(node: &Node, value: &mut Value) {
    prune_nulls(node, value);
    fill(node, value);
}

fn prune_nulls(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|name, sub| {
            let Some(known) = node.property(name) else {
                return true;
            };
            if sub.is_null() && !known.nullable && known.default.is_none() {
                return false;
            }
            prune_nulls(known, sub);
            true
        }),
        Value::Array(items) => {
            if let Some(known) = node.items.as_deref() {
                items.iter_mut().for_each(|item| prune_nulls(known, item));
            }
        }
        _ => {}
    }
}

fn fill(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, known) in &node.properties {
                let Some(default) = &known.default else {
                    continue;
                };
                let missing = match map.get(name) {
                    None => true,
                    Some(present) => present.is_null() && !known.nullable,
                };
                if missing {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, sub) in map.iter_mut() {
                if let Some(known) = node.properties.get(name) {
                    fill(known, sub);
                } else if let Additional::Schema(known) = &node.additional {
                    fill_null(known, sub);
                    fill(known, sub);
                }
            }
        }
        Value::Array(items) => {
            if let Some(known) = node.items.as_deref() {
                for item in items {
                    fill_null(known, item);
                    fill(known, item);
                }
            }
        }
        _ => {}
    }
}

fn fill_null(node: &Node, value: &mut Value) {
    if value.is_null()
        && !node.nullable
        && let Some(default) = &node.default
    {
        *value = default.clone();
    }
}

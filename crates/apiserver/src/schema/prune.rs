//! Dropping the fields that a schema does not know.

use serde_json::Value;

use super::error::{child, index};
use super::meta;
use super::node::{Additional, Node};

/// Drops unknown fields from a whole object and tells their paths. apiVersion, kind and metadata
/// stay; the metadata keep only the fields of an ObjectMeta.
pub(crate) fn object(node: &Node, value: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    prune(Some(node), true, value, "", &mut dropped);
    dropped
}

/// Drops unknown fields from a value somewhere below the root, such as a default.
pub(crate) fn value(node: &Node, value: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    prune(Some(node), node.embedded, value, "", &mut dropped);
    dropped
}

fn prune(
    node: Option<&Node>,
    resource: bool,
    value: &mut Value,
    path: &str,
    dropped: &mut Vec<String>,
) {
    let preserve = node.is_some_and(|n| n.preserve_unknown);
    match value {
        Value::Object(map) => {
            if resource && let Some(metadata) = map.get_mut("metadata") {
                meta::prune(metadata, &child(path, "metadata"), dropped);
            }
            map.retain(|name, sub| {
                if resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    return true;
                }
                let here = child(path, name);
                let Some(node) = node else {
                    dropped.push(here);
                    return false;
                };
                match (node.properties.get(name), &node.additional) {
                    (Some(known), _) => prune(Some(known), known.embedded, sub, &here, dropped),
                    (None, Additional::Schema(known)) => {
                        prune(Some(known), known.embedded, sub, &here, dropped);
                    }
                    // `additionalProperties: true` keeps the key but knows nothing below it.
                    (None, Additional::Any) if !preserve => {
                        prune(None, false, sub, &here, dropped);
                    }
                    (None, Additional::None) if !preserve => {
                        dropped.push(here);
                        return false;
                    }
                    _ => {}
                }
                true
            });
        }
        Value::Array(items) => {
            let known = node.and_then(|n| n.items.as_deref());
            if preserve && known.is_none() {
                return;
            }
            for (n, item) in items.iter_mut().enumerate() {
                let embedded = known.is_some_and(|k| k.embedded);
                prune(known, embedded, item, &index(path, n), dropped);
            }
        }
        _ => {}
    }
}

//! Defaults must be what the schema says, without unknown fields.
//!
//! Source of the rules: Kubernetes, apiextensions-apiserver, `pkg/apiserver/schema/defaulting` (`ValidateDefaults`).

use serde_json::{Map, Value, json};

use super::error::{FieldError, child, key};
use super::node::Node;
use super::{aggregate, cel, meta, prune, validate};

/// Where a schema is in the resource around it.
#[derive(Clone)]
struct Place<'n> {
    /// The resource.
    root: &'n Node,
    /// The fields that lead here; `None` for an item of a list.
    steps: Vec<Option<&'n str>>,
    /// In apiVersion, kind or metadata.
    meta: bool,
}

/// All faults of the defaults in a schema.
pub(super) fn check(path: &str, root: &Node, errors: &mut Vec<FieldError>) {
    let place = Place {
        root,
        steps: Vec::new(),
        meta: false,
    };
    walk(path, root, place, true, errors);
}

/// There are no defaults below additionalProperties that this could not judge, so it does not look there.
fn walk<'n>(
    path: &str,
    node: &'n Node,
    mut place: Place<'n>,
    resource: bool,
    errors: &mut Vec<FieldError>,
) {
    if node.embedded {
        place = Place {
            root: node,
            steps: Vec::new(),
            meta: false,
        };
    }
    if let Some(default) = &node.default {
        one(&child(path, "default"), node, default, &place, errors);
    }
    if let Some(items) = node.items.as_deref() {
        let mut inside = place.clone();
        inside.steps.push(None);
        walk(&child(path, "items"), items, inside, false, errors);
    }
    for (name, sub) in &node.properties {
        let mut inside = place.clone();
        inside.steps.push(Some(name));
        inside.meta |= (resource || node.embedded)
            && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
        let here = key(&child(path, "properties"), name);
        walk(&here, sub, inside, false, errors);
    }
}

fn one(path: &str, node: &Node, default: &Value, place: &Place<'_>, errors: &mut Vec<FieldError>) {
    if place.meta {
        if let Some(problem) = resource_problem(place, default) {
            let why = format!("must result in valid metadata: {problem}");
            errors.push(FieldError::invalid(path, default.clone(), why));
            return;
        }
    } else {
        let mut pruned = default.clone();
        if !prune::value(node, &mut pruned).is_empty() {
            let why = "must not have unknown fields";
            errors.push(FieldError::invalid(path, default.clone(), why));
        }
    }
    let mut problems = Vec::new();
    if !place.meta {
        meta::embedded(node, default, "", &mut problems);
    }
    if problems.is_empty() {
        validate::check(node, default, None, "", &mut problems);
    }
    if problems.is_empty() && cel::has_rules(node) {
        cel::check(node, default, None, &mut problems);
    }
    for problem in problems {
        errors.push(match problem.path.as_str() {
            validate::NO_PATH => FieldError {
                path: path.to_owned(),
                ..problem
            },
            _ => problem.under(path),
        });
    }
}

/// What is wrong with the resource that has only this default.
fn resource_problem(place: &Place<'_>, default: &Value) -> Option<String> {
    let mut value = default.clone();
    for step in place.steps.iter().rev() {
        value = match step {
            Some(name) => Value::Object(Map::from_iter([((*name).to_owned(), value)])),
            None => json!([value]),
        };
    }
    for (field, text) in [("apiVersion", "validation/v1"), ("kind", "Validation")] {
        if value.get(field).is_none() {
            value[field] = json!(text);
        }
    }
    let metadata = value.get("metadata").cloned().unwrap_or_default();
    if let Some(wrong) = meta::check(&metadata, "metadata") {
        return Some(wrong.message());
    }
    let mut problems = Vec::new();
    if let Some(map) = value.as_object() {
        problems.extend(crate::names::embedded_problems(map, "metadata"));
    }
    meta::embedded(place.root, &value, "", &mut problems);
    (!problems.is_empty()).then(|| aggregate(&problems))
}

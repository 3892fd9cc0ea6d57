//! Rules in CEL (`x-kubernetes-validations`), evaluated by kube-cel one level at a time.
//!
//! The levels are walked here and not by kube-cel, because `oldSelf` has to be correlated as the
//! API server does it: by key in lists of type `map`, and not at all in other lists.

use std::sync::OnceLock;

use kube_cel::{CompiledSchema, ErrorKind, ValidationError, compile_schema};
use regex::Regex;
use serde_json::{Map, Value, json};

use super::error::{FieldError, FieldErrorKind, child, index, key};
use super::expression;
use super::node::{Additional, Node, list, object};
use super::validate::old_item;

/// The rules of one level with what their evaluation needs to know about the levels below.
#[derive(Debug)]
pub(crate) struct Rules {
    compiled: CompiledSchema,
    /// The type of the level, which error messages show in place of the value.
    kind: String,
}

impl Rules {
    /// The rules of this level of a schema, if there are any.
    pub fn read(schema: &Value) -> Option<Self> {
        list(schema.get("x-kubernetes-validations")).next()?;
        let kind = schema.get("type").and_then(Value::as_str);
        Some(Self {
            compiled: compile_schema(&level(schema)),
            kind: kind.unwrap_or_default().to_string(),
        })
    }

    fn is_transition(&self, rule: &str) -> bool {
        self.compiled
            .validations
            .iter()
            .flatten()
            .any(|r| r.rule.rule == rule && r.is_transition_rule)
    }

    /// What errors call a rule: its message, or its text if it has none.
    fn name<'a>(&'a self, rule: &'a str) -> &'a str {
        let rules = self.compiled.validations.iter().flatten();
        rules
            .filter(|r| r.rule.rule == rule)
            .find_map(|r| r.rule.message.as_deref())
            .unwrap_or(rule)
    }
}

/// The part of a schema that decides how values look to CEL, with the rules of the top level only
/// and without defaults, which the object has already.
fn level(schema: &Value) -> Value {
    let mut kept = types(schema);
    let rules = list(schema.get("x-kubernetes-validations"));
    // A rule that is too large is refused, but others read it before.
    let rules = rules.filter(|rule| too_large(rule).is_none()).map(|rule| {
        let mut rule = rule.clone();
        if rule.get("optionalOldSelf") == Some(&Value::Bool(true)) {
            for part in ["rule", "messageExpression"] {
                if let Some(Value::String(text)) = rule.get_mut(part) {
                    *text = optional_old_self(text);
                }
            }
        }
        rule
    });
    kept["x-kubernetes-validations"] = rules.collect();
    kept
}

fn types(schema: &Value) -> Value {
    let mut kept = Map::new();
    for word in [
        "type",
        "format",
        "x-kubernetes-int-or-string",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-preserve-unknown-fields",
    ] {
        if let Some(value) = schema.get(word) {
            kept.insert(word.to_string(), value.clone());
        }
    }
    for word in ["items", "additionalProperties"] {
        match schema.get(word) {
            Some(sub @ Value::Object(_)) => kept.insert(word.to_string(), types(sub)),
            Some(sub @ Value::Bool(_)) => kept.insert(word.to_string(), sub.clone()),
            _ => None,
        };
    }
    let properties: Map<String, Value> = object(schema.get("properties"))
        .map(|(name, sub)| (name.clone(), types(sub)))
        .collect();
    if !properties.is_empty() {
        kept.insert("properties".to_string(), Value::Object(properties));
    }
    Value::Object(kept)
}

/// Makes `oldSelf` the optional that the API server binds: kube-cel binds the bare value, or null.
fn optional_old_self(expression: &str) -> String {
    static WORD_OR_TEXT: OnceLock<Regex> = OnceLock::new();
    let words = WORD_OR_TEXT.get_or_init(|| {
        Regex::new(r#""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\boldSelf\b"#)
            .expect("the expression is constant and valid")
    });
    words
        .replace_all(expression, |found: &regex::Captures<'_>| match &found[0] {
            "oldSelf" => "(oldSelf == null ? optional.none() : optional.of(oldSelf))".to_string(),
            text => text.to_string(),
        })
        .into_owned()
}

/// Evaluates all rules on a whole object. Rules on parts that did not change are not enforced,
/// except those about the change itself.
pub(crate) fn check(node: &Node, value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let unchanged = old == Some(value);
    walk(node, value, old, unchanged, true, "", errors);
}

/// Whether any level has rules.
pub(crate) fn has_rules(node: &Node) -> bool {
    node.rules.is_some()
        || node.properties.values().any(has_rules)
        || node.items.as_deref().is_some_and(has_rules)
        || matches!(&node.additional, Additional::Schema(sub) if has_rules(sub))
}

fn walk(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    unchanged: bool,
    root: bool,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if value.is_null() {
        return;
    }
    let old = old.filter(|o| !o.is_null());
    if let Some(rules) = &node.rules {
        evaluate(
            rules,
            value,
            old,
            unchanged,
            root || node.embedded,
            path,
            errors,
        );
    }
    match value {
        Value::Object(map) => {
            for (name, sub) in map {
                let (known, here) = match (node.properties.get(name), &node.additional) {
                    (Some(known), _) => (known, child(path, name)),
                    (None, Additional::Schema(known)) => (&**known, key(path, name)),
                    _ => continue,
                };
                let before = old.and_then(|o| o.get(name));
                let same = before.map_or(unchanged, |b| b == sub);
                walk(known, sub, before, same, false, &here, errors);
            }
        }
        Value::Array(items) => {
            let Some(known) = node.items.as_deref() else {
                return;
            };
            for (n, item) in items.iter().enumerate() {
                let before = old_item(node, old, item);
                let same = before.map_or(unchanged, |b| b == item);
                walk(known, item, before, same, false, &index(path, n), errors);
            }
        }
        _ => {}
    }
}

fn evaluate(
    rules: &Rules,
    value: &Value,
    old: Option<&Value>,
    unchanged: bool,
    resource: bool,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let result = if resource {
        let (value, old) = (visible(value), old.map(visible));
        kube_cel::validate_compiled(&rules.compiled, &value, old.as_ref())
    } else {
        kube_cel::validate_compiled(&rules.compiled, value, old)
    };
    let Err(failures) = result else { return };
    for failure in failures {
        if unchanged && !rules.is_transition(&failure.rule) {
            continue;
        }
        errors.push(field_error(rules, &failure, path));
    }
}

/// What a rule may see of a resource: of the metadata only the names.
fn visible(value: &Value) -> Value {
    let Value::Object(map) = value else {
        return value.clone();
    };
    let entries = map.iter().map(|(name, sub)| {
        let seen = if name == "metadata" {
            object(Some(sub))
                .filter(|(field, _)| *field == "name" || *field == "generateName")
                .map(|(field, text)| (field.clone(), text.clone()))
                .collect()
        } else {
            sub.clone()
        };
        (name.clone(), seen)
    });
    Value::Object(entries.collect())
}

fn field_error(rules: &Rules, failure: &ValidationError, path: &str) -> FieldError {
    let detail = match failure.kind {
        ErrorKind::ValidationFailure => failure.message.trim().to_string(),
        _ => {
            let problem = failure
                .message
                .trim_start_matches("rule evaluation error: ");
            format!("{problem} evaluating rule: {}", rules.name(&failure.rule))
        }
    };
    let kind_of_error = match failure.reason.as_deref() {
        Some("FieldValueForbidden") => FieldErrorKind::Forbidden,
        Some("FieldValueRequired") => FieldErrorKind::Required,
        Some("FieldValueDuplicate") => FieldErrorKind::Duplicate,
        _ => FieldErrorKind::Invalid,
    };
    let below = failure.field_path.trim_start_matches('.');
    let error = FieldError::new(
        below,
        kind_of_error,
        Some(rules.kind.as_str().into()),
        detail,
    )
    .under(path);
    if error.path.is_empty() {
        return FieldError {
            path: super::validate::NO_PATH.to_string(),
            ..error
        };
    }
    error
}

/// What is wrong with the words of a level's rules, whatever they say in CEL.
pub(crate) fn check_words(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    const REASONS: [&str; 4] = [
        "FieldValueDuplicate",
        "FieldValueForbidden",
        "FieldValueInvalid",
        "FieldValueRequired",
    ];
    let rules_path = child(path, "x-kubernetes-validations");
    for (n, rule) in list(schema.get("x-kubernetes-validations")).enumerate() {
        let at = |field: &str| child(&index(&rules_path, n), field);
        let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
        let blank = |name: &str| !text(name).is_empty() && text(name).trim().is_empty();
        let broken = |text: &str| text.contains(['\n', '\r']);
        let invalid =
            |field: &str, why: &str| FieldError::invalid(at(field), text(field).into(), why);
        let message = text("message").trim();
        if text("rule").trim().is_empty() {
            errors.push(FieldError::required(at("rule"), "rule is not specified"));
        } else if blank("message") {
            errors.push(invalid("message", "must be non-empty if specified"));
        } else if broken(message) {
            errors.push(invalid("message", "must not contain line breaks"));
        } else if broken(text("rule").trim()) && message.is_empty() {
            let why = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(at("message"), why));
        }
        if blank("messageExpression") {
            let why = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(at("messageExpression"), why));
        }
        let reason = rule.get("reason").and_then(Value::as_str);
        if let Some(reason) = reason.filter(|r| !REASONS.contains(r)) {
            let reasons = REASONS.map(str::to_string);
            errors.push(FieldError::not_supported(
                at("reason"),
                reason.into(),
                &reasons,
            ));
        }
        let field = text("fieldPath");
        if blank("fieldPath") {
            errors.push(invalid("fieldPath", "must be non-empty if specified"));
        }
        if broken(field) {
            errors.push(invalid("fieldPath", "must not contain line breaks"));
        }
        if !field.is_empty() && super::path::field_path(field, schema, true).is_err() {
            errors.push(invalid("fieldPath", "must be a valid path"));
        }
    }
}

/// What is wrong with the rules as expressions. `uncorrelatable` names the list or atomic map, if any, below which a
/// value cannot be told from the one before.
pub(crate) fn check_rules(
    path: &str,
    schema: &Value,
    uncorrelatable: Option<&str>,
    errors: &mut Vec<FieldError>,
) {
    let rules_path = child(path, "x-kubernetes-validations");
    for (n, rule) in list(schema.get("x-kubernetes-validations")).enumerate() {
        check_rule(&index(&rules_path, n), rule, uncorrelatable, errors);
    }
    if let Some(items) = schema.get("items").filter(|i| i.is_object()) {
        let items_path = child(path, "items");
        let is_map = schema.get("x-kubernetes-list-type") == Some(&json!("map"));
        let below = match uncorrelatable {
            None if !is_map => Some(path),
            other => other,
        };
        check_rules(&items_path, items, below, errors);
    }
    let atomic = schema.get("x-kubernetes-map-type") == Some(&json!("atomic"));
    for (name, sub) in object(schema.get("properties")) {
        let here = key(&child(path, "properties"), name);
        let below = match uncorrelatable {
            None if atomic => Some(path),
            other => other,
        };
        check_rules(&here, sub, below, errors);
    }
    if let Some(sub) = schema.get("additionalProperties").filter(|a| a.is_object()) {
        let here = child(path, "additionalProperties");
        check_rules(&here, sub, uncorrelatable, errors);
    }
}

/// The part of a rule that is too large to be parsed, and why.
fn too_large(rule: &Value) -> Option<(&'static str, String)> {
    ["rule", "messageExpression"].into_iter().find_map(|part| {
        let why = expression::problem(rule.get(part)?.as_str()?)?;
        Some((part, why))
    })
}

fn check_rule(
    path: &str,
    rule: &Value,
    uncorrelatable: Option<&str>,
    errors: &mut Vec<FieldError>,
) {
    let source = rule["rule"].as_str().unwrap_or_default();
    let rule_path = child(path, "rule");
    if let Some((part, why)) = too_large(rule) {
        let detail = format!("compilation failed: {why}");
        errors.push(FieldError::invalid(
            child(path, part),
            rule[part].clone(),
            detail,
        ));
        return;
    }
    let compiled = compile_schema(&json!({"x-kubernetes-validations": [rule]}));
    match compiled.validations.first() {
        Some(Ok(result)) => {
            if result.is_transition_rule
                && let Some(within) = uncorrelatable
            {
                errors.push(FieldError::invalid(
                    rule_path,
                    source.into(),
                    format!(
                        "oldSelf cannot be used on the uncorrelatable portion of the schema \
                         within {within}"
                    ),
                ));
            } else if !result.is_transition_rule && rule.get("optionalOldSelf").is_some() {
                errors.push(FieldError::invalid(
                    child(path, "optionalOldSelf"),
                    rule["optionalOldSelf"].clone(),
                    "may not be set if oldSelf is not used in rule",
                ));
            }
        }
        Some(Err(error)) => {
            let printed = crate::crd::printed_rule(rule);
            let detail = format!("{printed}: compilation failed: {error}");
            errors.push(FieldError::new(
                rule_path,
                FieldErrorKind::Invalid,
                None,
                detail,
            ));
        }
        None => {}
    }
}

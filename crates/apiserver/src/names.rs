//! Validation of names, labels and the rest of metadata, with the wording of Kubernetes' apimachinery.

use serde_json::{Value, json};

use crate::meta;
use crate::registry::NameRule;
use crate::schema::FieldError;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|b| inner(*b))
        && bytes.last().is_some_and(|b| inner(*b))
        && bytes.iter().all(|b| inner(*b) || *b == b'-')
}

pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_qualified_part(text: &str) -> bool {
    let bytes = text.as_bytes();
    text.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

const QUALIFIED_NAME: &str = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";

/// Whether a finalizer of a built-in kind is one of Kubernetes' own, or has a domain.
pub(crate) fn is_finalizer(name: &str) -> bool {
    matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") || name.contains('/')
}

/// What is wrong with a name, if anything.
pub(crate) fn name_problem(rule: NameRule, name: &str) -> Option<String> {
    match rule {
        NameRule::Subdomain if name.len() > 253 => Some("must be no more than 253 bytes".into()),
        NameRule::Subdomain => (!is_subdomain(name)).then(|| SUBDOMAIN.into()),
        NameRule::Label | NameRule::Label1035 if name.len() > 63 => {
            Some("must be no more than 63 bytes".into())
        }
        NameRule::Label => (!is_label(name)).then(|| LABEL.into()),
        NameRule::Label1035 => (!is_label(name)
            || !name.starts_with(|c: char| c.is_ascii_lowercase()))
        .then(|| LABEL_1035.into()),
        NameRule::PathSegment => match name {
            "." | ".." => Some(format!("may not be '{name}'")),
            _ => ["/", "%"]
                .iter()
                .find(|c| name.contains(*c))
                .map(|c| format!("may not contain '{c}'")),
        },
    }
}

/// All that is wrong with a DNS-1035 label.
pub(crate) fn label_1035_problems(name: &str) -> Option<String> {
    let shape = is_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase());
    joined(name, 63, shape, LABEL_1035)
}

/// All that is wrong with a subdomain.
pub(crate) fn subdomain_problems(name: &str) -> Option<String> {
    joined(name, 253, name.split('.').all(is_label), SUBDOMAIN)
}

fn joined(name: &str, most: usize, shape: bool, why: &str) -> Option<String> {
    let mut problems = Vec::new();
    if name.len() > most {
        problems.push(format!("must be no more than {most} bytes"));
    }
    if !shape {
        problems.push(why.to_owned());
    }
    (!problems.is_empty()).then(|| problems.join(","))
}

/// Whether Go would print a character as it is: letters, marks, numbers, punctuation, symbols, and the plain space.
pub(crate) fn is_print(c: char) -> bool {
    c == ' ' || !(c.is_control() || c.is_whitespace())
}

/// What is wrong with a qualified name (`example.com/name`), if anything.
pub(crate) fn qualified_problem(key: &str) -> Option<String> {
    qualified_problems(key).into_iter().next()
}

/// All that is wrong with a qualified name.
pub(crate) fn qualified_problems(key: &str) -> Vec<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((_, name)) if name.contains('/') => return vec![QUALIFIED_NAME.into()],
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let mut problems = Vec::new();
    match prefix {
        Some("") => problems.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            problems.extend(subdomain_problems(prefix).map(|why| format!("prefix part {why}")));
        }
        None => {}
    }
    if name.is_empty() {
        problems.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 bytes".into());
    }
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    if !(name.starts_with(edge) && name.ends_with(edge) && name.chars().all(inner)) {
        problems.push(QUALIFIED.into());
    }
    problems
}

/// What is wrong with the value of a label, if anything.
pub(crate) fn label_value_problem(value: &str) -> Option<String> {
    let mut problems = Vec::new();
    if value.len() > 63 {
        problems.push("must be no more than 63 bytes");
    }
    let shape = value.is_empty()
        || (value.starts_with(|c: char| c.is_ascii_alphanumeric())
            && value.ends_with(|c: char| c.is_ascii_alphanumeric())
            && value
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')));
    if !shape {
        problems.push(LABEL_VALUE);
    }
    (!problems.is_empty()).then(|| problems.join("; "))
}

/// Checks `metadata` of an object that is about to be stored.
pub(crate) fn metadata_problems(
    rule: NameRule,
    namespaced: bool,
    object: &Value,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = meta::name(object);
    if name.is_empty() {
        errors.push(FieldError::required(
            "metadata.name",
            "name or generateName is required",
        ));
    } else if let Some(problem) = name_problem(rule, name) {
        errors.push(FieldError::invalid("metadata.name", json!(name), problem));
    }
    let prefix = meta::get(object, "generateName").and_then(Value::as_str);
    if let Some(prefix) = prefix.filter(|p| !p.is_empty()) {
        // The suffix makes a trailing dash good.
        let whole = format!("{}a", prefix.trim_end_matches('-'));
        if let Some(problem) = name_problem(rule, &whole) {
            errors.insert(
                0,
                FieldError::invalid("metadata.generateName", json!(prefix), problem),
            );
        }
    }
    if namespaced && meta::namespace(object).is_empty() {
        errors.push(FieldError::required("metadata.namespace", ""));
    }
    labels(object, &mut errors);
    if let Some(annotations) = meta::get(object, "annotations").and_then(Value::as_object) {
        let mut size = 0;
        for (key, value) in annotations {
            for problem in qualified_problems(&key.to_lowercase()) {
                errors.push(FieldError::invalid(
                    "metadata.annotations",
                    json!(key),
                    problem,
                ));
            }
            size += key.len() + value.as_str().map_or(0, str::len);
        }
        if size > 256 * 1024 {
            let error = FieldError {
                path: "metadata.annotations".into(),
                kind: crate::schema::FieldErrorKind::Invalid,
                bad_value: None,
                detail: "may not be more than 262144 bytes".into(),
            };
            errors.push(error);
        }
    }
    for finalizer in meta::finalizers(object) {
        for problem in qualified_problems(&finalizer) {
            errors.push(FieldError::invalid(
                "metadata.finalizers",
                json!(finalizer),
                problem,
            ));
        }
    }
    owners(object, &mut errors);
    errors
}

/// Checks the metadata of a resource inside another one, which needs no name.
pub(crate) fn embedded_problems(
    object: &serde_json::Map<String, Value>,
    path: &str,
) -> Vec<FieldError> {
    let object = Value::Object(object.clone());
    let mut errors = metadata_problems(NameRule::PathSegment, false, &object);
    errors.retain(|error| error.path != "metadata.name");
    for error in &mut errors {
        error.path = error.path.replacen("metadata", path, 1);
    }
    errors
}

fn labels(object: &Value, errors: &mut Vec<FieldError>) {
    let Some(labels) = meta::labels(object).and_then(Value::as_object) else {
        return;
    };
    for (key, value) in labels {
        for problem in qualified_problems(key) {
            errors.push(FieldError::invalid("metadata.labels", json!(key), problem));
        }
        match value.as_str() {
            Some(text) if text.len() > 63 => {
                errors.push(FieldError::invalid(
                    "metadata.labels",
                    value.clone(),
                    "must be no more than 63 bytes",
                ));
            }
            Some(text) if !text.is_empty() && !is_qualified_part(text) => {
                errors.push(FieldError::invalid(
                    "metadata.labels",
                    value.clone(),
                    LABEL_VALUE,
                ));
            }
            _ => {}
        }
    }
}

fn owners(object: &Value, errors: &mut Vec<FieldError>) {
    let mut controllers = 0;
    for owner in meta::owners(object) {
        for field in ["apiVersion", "kind", "name", "uid"] {
            let text = owner.get(field).and_then(Value::as_str).unwrap_or("");
            // A version with more than a group before it is none.
            let bad_version =
                field == "apiVersion" && (text.matches('/').count() > 1 || text.ends_with('/'));
            if text.is_empty() || bad_version {
                let what = if field == "apiVersion" {
                    "version"
                } else {
                    field
                };
                errors.push(FieldError::invalid(
                    format!("metadata.ownerReferences.{field}"),
                    json!(text),
                    format!("{what} must not be empty"),
                ));
            }
        }
        if owner.get("kind") == Some(&json!("Event"))
            && owner.get("apiVersion") == Some(&json!("v1"))
        {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(
                "metadata.ownerReferences",
                owner.clone(),
                why,
            ));
        }
        controllers += usize::from(owner.get("controller") == Some(&Value::Bool(true)));
    }
    if controllers > 1 {
        let detail = "Only one reference can have Controller set to true";
        errors.push(FieldError::invalid(
            "metadata.ownerReferences",
            meta::get(object, "ownerReferences")
                .cloned()
                .unwrap_or_default(),
            detail,
        ));
    }
}

/// Types of the fields every object has; the rest of the server relies on them.
pub(crate) fn metadata_type_problem(object: &Value) -> Option<String> {
    let metadata = object.get("metadata")?;
    if metadata.is_null() {
        return None;
    }
    let Some(metadata) = metadata.as_object() else {
        return Some("metadata: expected a map".into());
    };
    let strings = |value: &Value| {
        value
            .as_object()
            .is_some_and(|m| m.values().all(|v| v.is_string() || v.is_null()))
    };
    for (field, value) in metadata {
        let ok = value.is_null()
            || match field.as_str() {
                "name" | "generateName" | "namespace" | "uid" | "resourceVersion"
                | "creationTimestamp" | "deletionTimestamp" => value.is_string(),
                "labels" | "annotations" => strings(value),
                "finalizers" => value
                    .as_array()
                    .is_some_and(|l| l.iter().all(|v| v.is_string() || v.is_null())),
                "ownerReferences" | "managedFields" => value
                    .as_array()
                    .is_some_and(|l| l.iter().all(Value::is_object)),
                "generation" | "deletionGracePeriodSeconds" => value.is_i64() || value.is_u64(),
                _ => true,
            };
        if !ok {
            return Some(format!("metadata.{field}: unexpected type in {value}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_their_rule() {
        let ok = |rule, name| name_problem(rule, name).is_none();
        assert!(
            ok(NameRule::Subdomain, "a.b-c.d1")
                && !ok(NameRule::Subdomain, "A")
                && !ok(NameRule::Subdomain, "a..b")
        );
        assert!(ok(NameRule::Label, "1a") && !ok(NameRule::Label, "a.b"));
        assert!(ok(NameRule::Label1035, "a1") && !ok(NameRule::Label1035, "1a"));
        assert!(ok(NameRule::PathSegment, "system:Node") && !ok(NameRule::PathSegment, "a/b"));
    }

    #[test]
    fn bad_labels_are_named() {
        let object =
            json!({"metadata": {"name": "a", "labels": {"ok": "", "b@d": "x", "v": "-x"}}});
        let errors = metadata_problems(NameRule::Subdomain, false, &object);
        assert_eq!(errors.len(), 2, "{errors:?}");
    }
}

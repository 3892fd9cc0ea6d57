//! Checks of query parameters and delete options, worded as the kinds `ListOptions`, `CreateOptions`, `UpdateOptions`,
//! `PatchOptions` and `DeleteOptions` of `meta.k8s.io` are validated.

use serde_json::{Value, json};

use crate::error::{ApiError, ApiResult};
use crate::request::Query;
use crate::schema::{FieldError, FieldErrorKind};

/// Longest name of a field manager.
const MANAGER: usize = 128;

/// A value that is printed as Go code.
fn not_supported(field: &str, shown: &str, supported: &[&str]) -> FieldError {
    let quoted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
    let detail = format!("{shown}: supported values: {}", quoted.join(", "));
    FieldError::new(field, FieldErrorKind::NotSupported, None, detail)
}

fn refused(kind: &str, errors: &[FieldError]) -> ApiResult<()> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid_options(kind, errors))
}

fn dry_run(values: &[String]) -> Option<FieldError> {
    let bad = values.iter().any(|v| v != "All");
    let shown = serde_json::json!(values).to_string();
    bad.then(|| not_supported("dryRun", &shown, &["All"]))
}

fn manager(name: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if name.len() > MANAGER {
        errors.push(FieldError::too_long("fieldManager", MANAGER as u64));
    }
    for (at, c) in name.char_indices().filter(|(_, c)| c.is_control()) {
        let why = format!(
            "invalid character U+{:04X} (at position {at})",
            u32::from(c)
        );
        errors.push(FieldError::invalid("fieldManager", json!(name), why));
    }
    errors
}

/// Of a create, update or patch request. `apply` is whether a patch is a server-side apply.
pub(crate) fn check_write(verb: &str, query: &Query, apply: bool) -> ApiResult<()> {
    let mut errors = Vec::new();
    let kind = match verb {
        "create" => "CreateOptions",
        "update" => "UpdateOptions",
        "patch" => "PatchOptions",
        _ => return Ok(()),
    };
    let given = query.get("fieldManager").unwrap_or_default();
    if verb == "patch" && !apply && query.get("force").is_some() {
        errors.push(FieldError::forbidden(
            "force",
            "may not be specified for non-apply patch",
        ));
    }
    if apply && given.is_empty() {
        errors.push(FieldError::required(
            "fieldManager",
            "is required for apply patch",
        ));
    }
    errors.extend(manager(given));
    errors.extend(dry_run(&query.given("dryRun")));
    if let Some(how) = query.get("fieldValidation")
        && !matches!(how, "Ignore" | "Warn" | "Strict")
    {
        let supported = ["Ignore", "Strict", "Warn"];
        errors.push(not_supported(
            "fieldValidation",
            &format!("{how:?}"),
            &supported,
        ));
    }
    refused(kind, &errors)
}

const MATCH: &str = "resourceVersionMatch";

/// Of a list or watch request.
pub(crate) fn check_list(query: &Query, watch: bool) -> ApiResult<()> {
    let errors = match watch {
        true => watch_problems(query),
        false => list_problems(query),
    };
    refused("ListOptions", &errors)
}

fn list_problems(query: &Query) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let version = query.get("resourceVersion");
    if let Some(how) = query.get(MATCH) {
        if version.is_none() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            errors.push(FieldError::forbidden(MATCH, why));
        }
        if query.get("continue").is_some() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            errors.push(FieldError::forbidden(MATCH, why));
        }
        if !matches!(how, "Exact" | "NotOlderThan") {
            let supported = ["Exact", "NotOlderThan", ""];
            errors.push(not_supported(MATCH, &format!("{how:?}"), &supported));
        }
        if how == "Exact" && version == Some("0") {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            errors.push(FieldError::forbidden(MATCH, why));
        }
    }
    if query.get("sendInitialEvents").is_some() {
        let why = "sendInitialEvents is forbidden for list";
        errors.push(FieldError::forbidden("sendInitialEvents", why));
    }
    errors
}

fn watch_problems(query: &Query) -> Vec<FieldError> {
    const ONLY: &str = "NotOlderThan";
    let mut errors = Vec::new();
    let initial = query.get("sendInitialEvents").is_some();
    let how = query.get(MATCH);
    if initial && how != Some(ONLY) {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    let Some(how) = how else { return errors };
    if !initial {
        let why =
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    if how != ONLY {
        errors.push(not_supported(MATCH, &format!("{how:?}"), &[ONLY]));
    }
    if query.get("continue").is_some() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        errors.push(FieldError::forbidden(MATCH, why));
    }
    errors
}

/// Of a deletion: the body counts, and the query only where there is none.
pub(crate) fn check_delete(body: Option<&Value>, query: &Query) -> ApiResult<()> {
    let text = |name: &str| match body {
        Some(body) => body.get(name).and_then(Value::as_str).map(str::to_owned),
        None => query.get(name).map(str::to_owned),
    };
    let orphan = match body {
        Some(body) => body.get("orphanDependents").is_some_and(Value::is_boolean),
        None => query.get("orphanDependents").is_some(),
    };
    let mut errors = Vec::new();
    if let Some(policy) = text("propagationPolicy") {
        if orphan {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid("propagationPolicy", json!(policy), why));
        }
        if !matches!(policy.as_str(), "Foreground" | "Background" | "Orphan") {
            let supported = ["Foreground", "Background", "Orphan", "nil"];
            errors.push(not_supported(
                "propagationPolicy",
                &format!("{policy:?}"),
                &supported,
            ));
        }
    }
    let words = match body {
        Some(body) => {
            let list = body.get("dryRun").and_then(Value::as_array);
            let words = list.into_iter().flatten().filter_map(Value::as_str);
            words.map(str::to_owned).collect()
        }
        None => query.given("dryRun"),
    };
    errors.extend(dry_run(&words));
    refused("DeleteOptions", &errors)
}

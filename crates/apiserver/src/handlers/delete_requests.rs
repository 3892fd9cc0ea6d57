//! delete and deletecollection requests.

use serde_json::{Value, json};

use super::delete::{self, DeleteOptions, Deleted};
use super::{Call, Reply, options, read};
use crate::admission::Admission;
use crate::conversion;
use crate::error::{ApiError, ApiResult};
use crate::store::{Key, Stored};
use crate::{body, negotiate};

fn parsed(call: &Call) -> ApiResult<DeleteOptions> {
    let body: Option<Value> = if call.body.is_empty() {
        None
    } else {
        let content = negotiate::content_type(&call.headers);
        if content == "application/vnd.kubernetes.protobuf" && !call.body.starts_with(b"k8s\0") {
            return Err(ApiError::new(500, "", body::NO_PROTOBUF));
        }
        if content == "application/json" {
            let read = serde_json::from_slice::<serde::de::IgnoredAny>(&call.body);
            if read.is_err_and(|e| e.is_eof()) {
                let why =
                    "couldn't get version/kind; json parse error: unexpected end of JSON input";
                return Err(ApiError::new(500, "", why));
            }
        }
        Some(body::decode(&content, &call.body)?)
    };
    if let Some(problem) = body.as_ref().and_then(problem) {
        return Err(ApiError::new(500, "", problem));
    }
    options::check_delete(body.as_ref(), &call.query)?;
    DeleteOptions::parse(body.as_ref(), &call.query)
}

/// What keeps a body from being DeleteOptions.
fn problem(body: &Value) -> Option<String> {
    let text = |field: &str| body.get(field).and_then(Value::as_str);
    if let Some(kind) = text("kind").filter(|k| *k != "DeleteOptions") {
        let version = text("apiVersion").unwrap_or_default();
        return Some(format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\""
        ));
    }
    let wrong = |field: &str, fits: fn(&Value) -> bool, kind: &str| {
        let value = body.get(field).filter(|v| !v.is_null() && !fits(v))?;
        Some(format!(
            "json: cannot unmarshal {value} into Go struct field DeleteOptions.{field} of type {kind}"
        ))
    };
    wrong("gracePeriodSeconds", Value::is_i64, "int64")
        .or_else(|| {
            wrong(
                "propagationPolicy",
                Value::is_string,
                "v1.DeletionPropagation",
            )
        })
        .or_else(|| wrong("orphanDependents", Value::is_boolean, "bool"))
        .or_else(|| wrong("preconditions", Value::is_object, "v1.Preconditions"))
}

async fn delete_admitted(
    call: &mut Call,
    key: &Key,
    options: &DeleteOptions,
) -> ApiResult<Deleted> {
    let admission = Admission {
        options: options.to_value(),
        ..call.admission()
    };
    let mut warnings = Vec::new();
    let admitted = Some((call.version(), &admission));
    let (server, resource) = (&call.server, &call.resource);
    let deleted = delete::delete(server, resource, key, options, admitted, &mut warnings).await;
    call.warnings.extend(warnings);
    deleted
}

pub(crate) async fn one(call: &mut Call) -> ApiResult<Reply> {
    let options = parsed(call)?;
    let key = Key::new(&call.target.namespace, &call.target.name);
    let before = call.server.store.get(&call.resource.table, &key);
    let deleted = delete_admitted(call, &key, &options).await?;
    Ok(match deleted {
        Deleted::Gone(object) => {
            call.changed = !options.dry_run;
            if delete::returns_object(&call.resource) {
                let revision = before.map_or(object.revision, |b| b.revision);
                let object = Stored::at_revision(&object, revision);
                Reply::bytes(200, read::shown(call, &object).await?)
            } else {
                Reply::json(200, &delete::success(&call.resource, &object.value))
            }
        }
        Deleted::Waiting(object, changed) => {
            call.changed = changed;
            Reply::bytes(200, read::shown(call, &object).await?)
        }
    })
}

pub(crate) async fn collection(call: &mut Call) -> ApiResult<Reply> {
    if call.resource.namespaced && call.target.namespace.is_empty() {
        return Err(ApiError::method_not_allowed());
    }
    let mut options = parsed(call)?;
    let limit = call.query.get("limit").filter(|l| !l.is_empty());
    if let Some(limit) = limit.filter(|l| l.parse::<i64>().is_err()) {
        return Err(ApiError::no_number(limit));
    }
    // Preconditions name one object.
    options.uid = None;
    options.resource_version = None;
    let selector = read::Selector::of(call)?;
    let namespace = Some(call.target.namespace.as_str()).filter(|n| !n.is_empty());
    let snapshot = call.server.store.list(&call.resource.table, namespace);
    let mut gone = Vec::new();
    for object in snapshot
        .objects
        .iter()
        .filter(|o| selector.matches(&o.value))
    {
        match delete_admitted(call, &Key::of(&object.value), &options).await {
            Ok(Deleted::Gone(_)) => {
                call.changed |= !options.dry_run;
                gone.push(object.clone());
            }
            Ok(Deleted::Waiting(_, changed)) => {
                call.changed |= changed;
                gone.push(object.clone());
            }
            // Somebody else was faster.
            Err(error) if error.is_not_found_of(&call.resource) => {}
            Err(error) => return Err(error),
        }
    }
    let gone = conversion::fetch_all(&call.server, &call.resource, call.version(), gone).await?;
    let metadata = json!({"resourceVersion": call.server.store.revision().to_string()});
    Ok(Reply::bytes(200, read::shape(call, &metadata, &gone)))
}

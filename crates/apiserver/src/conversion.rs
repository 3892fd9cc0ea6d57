//! Conversion webhooks of CustomResourceDefinitions: objects in the version that somebody asks for.
//!
//! Rules and texts: apiextensions-apiserver, `pkg/apiserver/conversion`. Only what is not in the wanted version already
//! is sent, a list in one review. Labels and annotations may change in a conversion; the rest of the metadata is kept.
//! What comes back is pruned by the schema of its version, and gets no defaults: those of the stored version are there.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::admission;
use crate::convert;
use crate::error::{ApiError, ApiResult};
use crate::hooks;
use crate::meta;
use crate::names;
use crate::registry::{ResourceInfo, VersionInfo};
use crate::schema::FieldError;
use crate::server::Server;
use crate::store::Stored;

/// How long a conversion may take.
const LIMIT: Duration = Duration::from_secs(30);
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The webhook of a CRD's `spec.conversion`.
#[derive(Clone, Debug, PartialEq)]
pub struct Webhook {
    client: Value,
    /// The first version of ConversionReview that both sides know.
    review: &'static str,
}

impl Webhook {
    /// Of a stored CRD; `None` where objects convert by their name alone.
    pub(crate) fn of(crd: &Value) -> Option<Self> {
        let conversion = meta::field(crd, "spec.conversion")?;
        if conversion["strategy"] != "Webhook" {
            return None;
        }
        let versions = conversion["webhook"]["conversionReviewVersions"].as_array()?;
        let known = |v: &Value| REVIEW_VERSIONS.into_iter().find(|k| v == k);
        Some(Self {
            client: conversion["webhook"]["clientConfig"].clone(),
            review: versions.iter().find_map(known)?,
        })
    }
}

/// Fills in what `spec.conversion` leaves out.
pub(crate) fn defaults(crd: &mut Value) {
    let service = crd.pointer_mut("/spec/conversion/webhook/clientConfig/service");
    if let Some(service) = service.and_then(Value::as_object_mut) {
        let port = service.entry("port").or_insert(Value::Null);
        if port.is_null() {
            *port = json!(443);
        }
    }
}

/// The rules of `spec.conversion`. `certified`: the certificates must be good too.
pub(crate) fn validate(crd: &Value, certified: bool, errors: &mut Vec<FieldError>) {
    let path = "spec.conversion";
    let conversion = meta::field(crd, path).cloned().unwrap_or_default();
    let webhook = conversion.get("webhook").filter(|w| !w.is_null());
    let client = webhook
        .and_then(|w| w.get("clientConfig"))
        .filter(|c| !c.is_null());
    let versions = webhook.and_then(|w| w["conversionReviewVersions"].as_array());
    let versions = versions.filter(|v| !v.is_empty());
    let client_path = format!("{path}.webhookClientConfig");
    let versions_path = format!("{path}.conversionReviewVersions");
    let strategy = conversion["strategy"].as_str().unwrap_or_default();
    match strategy {
        "None" | "Webhook" => {}
        "" => errors.push(FieldError::required(format!("{path}.strategy"), "")),
        other => errors.push(FieldError::not_supported(
            format!("{path}.strategy"),
            json!(other),
            &["None".to_owned(), "Webhook".to_owned()],
        )),
    }
    if strategy == "Webhook" {
        match client {
            None => errors.push(FieldError::required(
                client_path,
                "required when strategy is set to Webhook",
            )),
            Some(client) => {
                admission::client(&client_path, client, errors);
                if certified {
                    admission::certificates(&client_path, client, errors);
                }
            }
        }
        match versions {
            None => errors.push(FieldError::required(versions_path, "")),
            Some(versions) => review_versions(&versions_path, versions, errors),
        }
        return;
    }
    let why = "should not be set when strategy is not set to Webhook";
    if client.is_some() {
        errors.push(FieldError::forbidden(client_path, why));
    }
    if versions.is_some() {
        errors.push(FieldError::forbidden(versions_path, why));
    }
}

fn review_versions(path: &str, versions: &[Value], errors: &mut Vec<FieldError>) {
    for (i, version) in versions.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let text = version.as_str().unwrap_or_default();
        if versions[..i].contains(version) {
            errors.push(FieldError::invalid(path, json!(text), "duplicate version"));
        } else if let Some(why) = names::label_1035_problems(text) {
            errors.push(FieldError::invalid(path, json!(text), why));
        }
    }
    let known = |v: &Value| REVIEW_VERSIONS.iter().any(|k| v == k);
    if !versions.iter().any(known) {
        let detail = format!(
            "must include at least one of {}",
            REVIEW_VERSIONS.join(", ")
        );
        errors.push(FieldError::invalid(path, json!(versions), detail));
    }
}

/// Whether the webhook's certificates, if it has any, can be read.
pub(crate) fn has_good_certificates(crd: &Value) -> bool {
    let client = meta::field(crd, "spec.conversion.webhook.clientConfig");
    let mut errors = Vec::new();
    admission::certificates("", client.unwrap_or(&Value::Null), &mut errors);
    errors.is_empty()
}

/// Stored objects in the version of a request, where only a webhook can tell what they are in it.
pub(crate) async fn fetch_all(
    server: &Server,
    resource: &ResourceInfo,
    version: &VersionInfo,
    objects: Vec<Arc<Stored>>,
) -> ApiResult<Vec<Arc<Stored>>> {
    if resource.conversion.is_none() {
        return Ok(objects);
    }
    let wanted = resource.api_version(&version.name);
    // Each is read as what it is stored as. Defaults are those of that version alone.
    let read = |stored: &Arc<Stored>| {
        let mut value = stored.value.clone();
        convert::read(resource, &mut value);
        value
    };
    let values = objects.iter().map(read).collect();
    let converted = convert(server, resource, &wanted, values).await?;
    let shown = objects
        .into_iter()
        .zip(converted)
        .map(|(stored, mut value)| {
            if stored.value["apiVersion"] != value["apiVersion"]
                && let Some(schema) = &version.structural
            {
                schema.prune(&mut value);
            }
            match value == stored.value {
                true => stored,
                false => Stored::new(value, stored.revision, resource.schema_generation()),
            }
        });
    Ok(shown.collect())
}

/// One stored object in the version of a request.
pub(crate) async fn fetch(
    server: &Server,
    resource: &ResourceInfo,
    version: &VersionInfo,
    object: &Arc<Stored>,
) -> ApiResult<Arc<Stored>> {
    if resource.conversion.is_none() {
        return Ok(object.clone());
    }
    let mut one = fetch_all(server, resource, version, vec![object.clone()]).await?;
    Ok(one.pop().unwrap_or_else(|| object.clone()))
}

/// One object in another version of its resource. Without a webhook it stays as it is.
pub(crate) async fn object(
    server: &Server,
    resource: &ResourceInfo,
    version: &str,
    object: Value,
) -> ApiResult<Value> {
    let wanted = resource.api_version(version);
    let mut one = convert(server, resource, &wanted, vec![object]).await?;
    Ok(one.pop().unwrap_or_default())
}

async fn convert(
    server: &Server,
    resource: &ResourceInfo,
    wanted: &str,
    mut objects: Vec<Value>,
) -> ApiResult<Vec<Value>> {
    let Some(webhook) = &resource.conversion else {
        return Ok(objects);
    };
    let pending: Vec<usize> = (0..objects.len())
        .filter(|i| objects[*i]["apiVersion"] != wanted)
        .collect();
    let Some(first) = pending.first() else {
        return Ok(objects);
    };
    let from = printed(&objects[*first]);
    let failed = |why: String| {
        // Not an internal error to the reference implementation, and so without its prefix.
        ApiError::new(500, "", format!("conversion webhook for {from} {why}"))
    };
    let uid = server.ident.uid();
    let sent: Vec<&Value> = pending.iter().map(|i| &objects[*i]).collect();
    let review = json!({
        "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{}", webhook.review),
        "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": sent},
    });
    let answer = hooks::post(server, &webhook.client, &review, LIMIT).await;
    let answer = answer.and_then(|a| converted(a, &uid, webhook.review));
    let answer = answer.map_err(|why| failed(format!("failed: {why}")))?;
    if answer.len() != pending.len() {
        let why = format!(
            "returned {} objects, expected {}",
            answer.len(),
            pending.len()
        );
        return Err(failed(why));
    }
    for (n, (at, new)) in pending.iter().zip(answer).enumerate() {
        objects[*at] = accept(&objects[*at], new, wanted, n).map_err(&failed)?;
    }
    Ok(objects)
}

/// `example.com/v1, Kind=Widget`
fn printed(object: &Value) -> String {
    let text = |field: &str| object[field].as_str().unwrap_or("");
    format!("{}, Kind={}", text("apiVersion"), text("kind"))
}

/// The objects in an answer.
fn converted(review: Value, uid: &str, version: &str) -> Result<Vec<Value>, String> {
    if version == "v1" {
        let expected = "apiextensions.k8s.io/v1, Kind=ConversionReview";
        if printed(&review) != expected {
            return Err(format!(
                "expected webhook response of {expected}, got {}",
                printed(&review)
            ));
        }
    }
    let response = review.get("response").filter(|r| r.is_object());
    let response = response.ok_or("no response provided")?;
    let got = response["uid"].as_str().unwrap_or("");
    if version == "v1" && got != uid {
        return Err(format!("expected response.uid={uid:?}, got {got:?}"));
    }
    let result = &response["result"];
    let status = result["status"].as_str().unwrap_or("");
    if status != "Success" {
        return Err(match result["message"].as_str().filter(|m| !m.is_empty()) {
            Some(message) => message.to_owned(),
            None => format!("response.result.status was '{status}', not 'Success'"),
        });
    }
    Ok(response["convertedObjects"]
        .as_array()
        .cloned()
        .unwrap_or_default())
}

/// A converted object with the metadata of the original, but for labels and annotations.
fn accept(original: &Value, mut new: Value, wanted: &str, n: usize) -> Result<Value, String> {
    let invalid = |why: String| format!("returned invalid converted object at index {n}: {why}");
    if new["apiVersion"] != wanted {
        let got = new["apiVersion"].as_str().unwrap_or("");
        return Err(invalid(format!(
            "invalid groupVersion (expected {wanted}, received {got})"
        )));
    }
    if new["kind"] != original["kind"] {
        let text = |o: &Value| o["kind"].as_str().unwrap_or("").to_owned();
        return Err(invalid(format!(
            "invalid kind (expected {}, received {})",
            text(original),
            text(&new)
        )));
    }
    let same = [
        ("name", meta::name(original), meta::name(&new)),
        (
            "namespace",
            meta::namespace(original),
            meta::namespace(&new),
        ),
        ("UID", meta::uid(original), meta::uid(&new)),
    ];
    for (what, expected, got) in same {
        if expected != got {
            return Err(invalid(format!(
                "must have the same {what}: {expected} != {got}"
            )));
        }
    }
    let invalid = |why: String| format!("returned invalid metadata in object at index {n}: {why}");
    if !new["metadata"].is_object() {
        return Err(invalid("missing metadata in converted object".into()));
    }
    let mut metadata = original["metadata"].clone();
    for field in ["labels", "annotations"] {
        match new["metadata"].get(field).filter(|v| !v.is_null()) {
            None => {
                if let Some(map) = metadata.as_object_mut() {
                    map.remove(field);
                }
            }
            Some(Value::Object(map)) if map.values().all(Value::is_string) => {
                metadata[field] = Value::Object(map.clone());
            }
            Some(_) => {
                return Err(invalid(format!(
                    "metadata.{field} must be a map of strings in converted object"
                )));
            }
        }
    }
    new["metadata"] = metadata;
    Ok(new)
}

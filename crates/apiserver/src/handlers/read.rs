//! get and list, and the forms objects are shown in.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use super::{Call, Reply};
use crate::conversion;
use crate::convert;
use crate::error::{ApiError, ApiResult};
use crate::go_json;
use crate::meta;
use crate::negotiate::Form;
use crate::registry::{ResourceInfo, VersionInfo};
use crate::selector::{FieldReq, Fields, Labels};
use crate::store::{Key, Snapshot, Stored};
use crate::table::{self, IncludeObject};

/// Label and field selectors of a request.
pub(crate) struct Selector {
    labels: Option<Labels>,
    fields: Vec<FieldReq>,
}

impl Selector {
    pub fn of(call: &Call) -> ApiResult<Self> {
        let labels = call
            .query
            .get("labelSelector")
            .map(|text| Labels::parse(text).map_err(ApiError::bad_request))
            .transpose()?;
        let fields = match call.query.get("fieldSelector") {
            Some(text) => Fields::parse(text).map_err(ApiError::bad_request)?,
            None => Vec::new(),
        };
        for requirement in &fields {
            let field = requirement.field.as_str();
            let known = matches!(field, "metadata.name" | "metadata.namespace")
                || call.version().selectable_fields.iter().any(|f| f == field);
            if !known {
                // Kinds without fields of their own answer with the common sentence.
                let plain = call.version().selectable_fields.is_empty();
                let message = if plain && !call.resource.is_custom() {
                    format!(
                        "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    )
                } else {
                    format!("field label not supported: {field}")
                };
                return Err(ApiError::bad_request(message));
            }
        }
        Ok(Self { labels, fields })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.as_ref().is_none_or(Labels::is_everything) && self.fields.is_empty()
    }

    /// Whether the stored form of an object is selected.
    pub fn matches(&self, object: &Value) -> bool {
        self.labels
            .as_ref()
            .is_none_or(|l| l.matches(meta::labels(object)))
            && self
                .fields
                .iter()
                .all(|f| f.matches(&field(object, &f.field)))
    }
}

/// Value of a selectable field in the stored form.
fn field(object: &Value, path: &str) -> String {
    match path {
        // Events are stored in their core form.
        "source" => {
            let component = meta::field_text(object, "source.component");
            if component.is_empty() {
                meta::field_text(object, "reportingComponent")
            } else {
                component
            }
        }
        "regarding.name" => meta::field_text(object, "involvedObject.name"),
        "regarding.uid" => meta::field_text(object, "involvedObject.uid"),
        "spec.unschedulable" if meta::field(object, path).is_none() => "false".into(),
        _ => meta::field_text(object, path),
    }
}

fn meta_version(v1beta1: bool) -> &'static str {
    if v1beta1 {
        "meta.k8s.io/v1beta1"
    } else {
        "meta.k8s.io/v1"
    }
}

pub(crate) fn partial(object: &Value, v1beta1: bool) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": meta_version(v1beta1), "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({}))})
}

fn table(call: &Call, v1beta1: bool, objects: &[Value], metadata: Value) -> Value {
    // A parameter that is none of the three words was refused when the call was made.
    let include = IncludeObject::parse(call.query.get("includeObject")).unwrap_or_default();
    let mut table = table::render(
        &call.version().columns,
        objects,
        include,
        meta_version(v1beta1),
        call.server.now(),
        metadata,
    );
    if call.headless {
        table["columnDefinitions"] = Value::Null;
    }
    table
}

/// One object in the form asked for.
pub(crate) fn show(call: &Call, stored: &Stored) -> Bytes {
    let view = convert::view(&call.resource, call.version(), stored);
    match (call.form, view) {
        (Form::Object, Cow::Borrowed(_)) => stored.json(),
        (Form::Object, Cow::Owned(value)) => value.to_string().into(),
        (Form::Metadata { v1beta1, .. }, view) => partial(&view, v1beta1).to_string().into(),
        (Form::Table { v1beta1 }, view) => {
            let metadata = json!({"resourceVersion": stored.revision.to_string()});
            table(call, v1beta1, &[view.into_owned()], metadata)
                .to_string()
                .into()
        }
    }
}

/// One object of a list.
fn item(call: &Call, stored: &Stored) -> Bytes {
    if call.form != Form::Object || call.resource.is_custom() {
        return show(call, stored);
    }
    match convert::view(&call.resource, call.version(), stored) {
        Cow::Borrowed(_) => stored.item(),
        Cow::Owned(mut value) => {
            if let Some(map) = value.as_object_mut() {
                map.remove("kind");
                map.remove("apiVersion");
            }
            value.to_string().into()
        }
    }
}

/// One stored object in the version and form asked for.
pub(crate) async fn shown(call: &Call, stored: &Arc<Stored>) -> ApiResult<Bytes> {
    let (server, resource) = (&call.server, &call.resource);
    let stored = conversion::fetch(server, resource, call.version(), stored).await?;
    Ok(show(call, &stored))
}

pub(crate) async fn get(call: &Call) -> ApiResult<Reply> {
    let current = call.server.store.revision();
    if let Some(asked) = revision(call)?.filter(|asked| *asked > current) {
        return Err(too_large(asked, current));
    }
    let found = find(call)?;
    is_one(call)?;
    Ok(Reply::bytes(200, shown(call, &found).await?))
}

/// The object a call names.
pub(crate) fn find(call: &Call) -> ApiResult<Arc<Stored>> {
    let key = Key::new(&call.target.namespace, &call.target.name);
    call.server
        .store
        .get(&call.resource.table, &key)
        .ok_or_else(|| ApiError::not_found(&call.resource, &key.name))
}

/// A position in a paginated list.
struct Continue {
    /// Revision the list is read at; `None` goes on at the newest.
    revision: Option<u64>,
    after: Key,
}

impl Continue {
    fn encode(&self) -> String {
        let revision = self.revision.map_or(-1, |r| i64::try_from(r).unwrap_or(-1));
        let text = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": format!("{}/{}", self.after.namespace, self.after.name)}).to_string();
        URL_SAFE_NO_PAD.encode(text)
    }

    fn decode(token: &str) -> ApiResult<Self> {
        let broken = |why: &str| {
            ApiError::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(token.trim_end_matches('='))
            .map_err(|_| broken("illegal base64 data"))?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|e| broken(&go_json::problem(&bytes).unwrap_or_else(|| e.to_string())))?;
        let revision = value
            .get("rv")
            .and_then(Value::as_i64)
            .ok_or_else(|| broken("it lacks a part"))?;
        let (namespace, name) = value
            .get("start")
            .and_then(Value::as_str)
            .and_then(|s| s.split_once('/'))
            .ok_or_else(|| broken("it lacks a part"))?;
        Ok(Self {
            revision: u64::try_from(revision).ok(),
            after: Key::new(namespace, name),
        })
    }
}

/// The resourceVersion parameter as a number.
pub(crate) fn revision(call: &Call) -> ApiResult<Option<u64>> {
    let parse = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let why = if digits {
            "value out of range"
        } else {
            "invalid syntax"
        };
        text.parse().ok().filter(|_| digits).ok_or_else(|| {
            ApiError::new(500, "", format!("resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": {why}"))
        })
    };
    call.query.get("resourceVersion").map(parse).transpose()
}

/// The answer to a resourceVersion from the future.
pub(crate) fn too_large(asked: u64, current: u64) -> ApiError {
    let message = format!("Too large resource version: {asked}, current: {current}");
    let cause =
        json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
    ApiError::new(504, "Timeout", format!("Timeout: {message}"))
        .causes(vec![cause])
        .retry_after(1)
}

fn snapshot(call: &Call) -> ApiResult<(Snapshot, Option<Key>)> {
    let store = &call.server.store;
    let table = &call.resource.table;
    let namespace = Some(call.target.namespace.as_str()).filter(|n| !n.is_empty());
    let asked = revision(call)?;
    let how = call.query.get("resourceVersionMatch");
    if let Some(token) = call.query.get("continue") {
        if asked.is_some_and(|r| r != 0) {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let at = Continue::decode(token)?;
        let snapshot = match at.revision {
            None => store.list(table, namespace),
            Some(revision) => store.list_at(table, namespace, revision).map_err(|_| {
                let message = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
                ApiError::expired(message).with_continue(Continue { revision: None, after: at.after.clone() }.encode())
            })?,
        };
        return Ok((snapshot, Some(at.after)));
    }
    let current = store.revision();
    if let Some(asked) = asked
        && asked > current
    {
        return Err(too_large(asked, current));
    }
    // A page of a version that says no more is one of that very version.
    let paged = call
        .query
        .get("limit")
        .is_some_and(|l| !matches!(l, "" | "0"));
    match (how, asked) {
        (Some("Exact"), Some(revision)) | (None, Some(revision))
            if revision > 0 && (how.is_some() || paged) =>
        {
            let expired = |e: crate::store::Expired| {
                ApiError::expired(format!(
                    "The resourceVersion for the provided list is too old: {} ({})",
                    e.requested, e.oldest
                ))
            };
            Ok((
                store.list_at(table, namespace, revision).map_err(expired)?,
                None,
            ))
        }
        _ => Ok((store.list(table, namespace), None)),
    }
}

/// What a kind is called inside of the real server.
fn go_type(call: &Call, kind: &str) -> String {
    if call.resource.is_custom() {
        let list = if kind == call.resource.list_kind {
            "List"
        } else {
            ""
        };
        return format!("unstructured.Unstructured{list}");
    }
    let package = call.resource.group.split('.').next().unwrap_or_default();
    let package = if package.is_empty() { "core" } else { package };
    format!("{package}.{kind}")
}

/// Refuses to show one object as a list of metadata.
pub(crate) fn is_one(call: &Call) -> ApiResult<()> {
    if !matches!(call.form, Form::Metadata { list: true, .. }) {
        return Ok(());
    }
    let what = go_type(call, &call.resource.kind);
    let message = format!(
        "you requested PartialObjectMetadataList, but the requested object is not a list (*{what})"
    );
    Err(ApiError::new(406, "NotAcceptable", message))
}

pub(crate) async fn list(call: &Call) -> ApiResult<Reply> {
    let selector = Selector::of(call)?;
    if let Form::Metadata { list: false, .. } = call.form {
        let what = go_type(call, &call.resource.list_kind);
        let message = format!(
            "you requested PartialObjectMetadata, but the requested object is a list (*{what})"
        );
        return Err(ApiError::new(406, "NotAcceptable", message));
    }
    if let Some(text) = call.query.get("timeoutSeconds")
        && text.parse::<i64>().is_err()
    {
        return Err(ApiError::no_number(text));
    }
    let limit = match call.query.get("limit") {
        Some(text) => {
            let limit = text.parse::<i64>().map_err(|_| ApiError::no_number(text))?;
            usize::try_from(limit).unwrap_or(0)
        }
        None => 0,
    };
    let (snapshot, after) = snapshot(call)?;
    let start = after.map_or(0, |key| {
        snapshot
            .objects
            .partition_point(|o| Key::of(&o.value) <= key)
    });
    let mut page = Vec::new();
    let mut rest = 0;
    for object in snapshot.objects[start..]
        .iter()
        .filter(|o| selector.matches(&o.value))
    {
        if limit > 0 && page.len() == limit {
            rest += 1;
        } else {
            page.push(object.clone());
        }
    }
    let mut metadata = json!({"resourceVersion": snapshot.revision.to_string()});
    if call.resource.is_custom() && matches!(call.form, Form::Object) {
        // Lists without a type of their own always tell it.
        metadata["continue"] = json!("");
    }
    if rest > 0
        && let Some(last) = page.last()
    {
        let token = Continue {
            revision: Some(snapshot.revision),
            after: Key::of(&last.value),
        };
        metadata["continue"] = json!(token.encode());
        if selector.is_everything() {
            metadata["remainingItemCount"] = json!(rest);
        }
    }
    let page = conversion::fetch_all(&call.server, &call.resource, call.version(), page).await?;
    Ok(Reply::bytes(200, shape(call, &metadata, &page)))
}

/// A list in the form asked for.
pub(crate) fn shape(call: &Call, metadata: &Value, page: &[Arc<Stored>]) -> Bytes {
    let (resource, version): (&ResourceInfo, &VersionInfo) = (&call.resource, call.version());
    let (kind, api_version) = match call.form {
        Form::Table { v1beta1 } => {
            let objects: Vec<Value> = page
                .iter()
                .map(|o| convert::view(resource, version, o).into_owned())
                .collect();
            return table(call, v1beta1, &objects, metadata.clone())
                .to_string()
                .into();
        }
        Form::Metadata { v1beta1, .. } => (
            "PartialObjectMetadataList".to_owned(),
            meta_version(v1beta1).to_owned(),
        ),
        Form::Object => (
            resource.list_kind.clone(),
            resource.api_version(&version.name),
        ),
    };
    if page.is_empty() && matches!(call.form, Form::Metadata { .. }) {
        // Go's empty list of no capacity.
        let list =
            json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": null});
        return list.to_string().into();
    }
    let mut out = BytesMut::new();
    out.put_slice(
        format!(
            "{{\"kind\":{},\"apiVersion\":{},\"metadata\":{metadata},\"items\":[",
            json!(kind),
            json!(api_version)
        )
        .as_bytes(),
    );
    for (i, object) in page.iter().enumerate() {
        if i > 0 {
            out.put_u8(b',');
        }
        out.put_slice(&item(call, object));
    }
    out.put_slice(b"]}");
    out.freeze()
}

//! create, update and patch requests.

use serde_json::{Value, json};

use super::write::{Managed, Next, Unknown, Writer, Written};
use super::{Call, Reply, read};
use crate::admission::Admission;
use crate::body::Strict;
use crate::error::{ApiError, ApiResult};
use crate::registry::ResourceInfo;
use crate::request::Target;
use crate::schema::{FieldError, FieldErrorKind};
use crate::server::Server;
use crate::store::Key;
use crate::strategy::Endpoint;
use crate::{access, body, crd, duplicates, meta, negotiate, openapi, patch, ssa};

/// Decodes the body as one object of the call's kind, filling in kind and apiVersion where they are left out.
pub(crate) fn decode(call: &Call) -> ApiResult<Value> {
    let content = negotiate::content_type(&call.headers);
    let mut object = body::decode_as(&call.resource.kind, &content, &call.body)?;
    check_kind(call, &mut object)?;
    Ok(object)
}

/// Why an object of another kind than the call's cannot be read.
fn not_this_kind(server: &Server, resource: &ResourceInfo, version: &str, kind: &str) -> String {
    let short = version.rsplit('/').next().unwrap_or_default();
    let (group, _) = version.rsplit_once('/').unwrap_or_default();
    let package = |group: &str| match group.split('.').next() {
        None | Some("") => "core".to_owned(),
        Some(first) => first.to_owned(),
    };
    let registry = server.registry();
    // Lists and answers are kinds too, though no resources.
    let listed = kind.strip_suffix("List").filter(|of| !of.is_empty());
    let list = listed.is_some_and(|of| registry.by_kind(group, short, of).is_some());
    let other = list || version == "v1" && matches!(kind, "List" | "Status");
    match other || registry.by_kind(group, short, kind).is_some() {
        true => format!(
            "converting ({short}.{kind}) to ({}.{}): unknown conversion",
            package(&resource.group),
            resource.kind
        ),
        false => format!("no kind {kind:?} is registered for version {version:?}"),
    }
}

fn check_kind(call: &Call, object: &mut Value) -> ApiResult<()> {
    if object.is_null() {
        *object = json!({});
    }
    if !object.is_object() {
        return Err(ApiError::bad_request("the request body is not an object"));
    }
    let wanted = call.resource.api_version(&call.version().name);
    let kind = object
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or(&call.resource.kind)
        .to_owned();
    let version = object
        .get("apiVersion")
        .and_then(Value::as_str)
        .unwrap_or(&wanted)
        .to_owned();
    if kind != call.resource.kind && call.resource.is_custom() {
        let why = format!("must be {}", call.resource.kind);
        let error = FieldError::invalid("kind", json!(kind), why);
        return Err(ApiError::invalid_kind(
            &call.resource,
            &kind,
            meta::name(object),
            &[error],
        ));
    }
    if kind != call.resource.kind {
        let why = not_this_kind(&call.server, &call.resource, &version, &kind);
        let short = version.rsplit('/').next().unwrap_or_default();
        let message = format!(
            "{kind} in version {short:?} cannot be handled as a {}: {why}",
            call.resource.kind
        );
        return Err(ApiError::bad_request(message));
    }
    if version.matches('/').count() > 1 {
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): unexpected GroupVersion string: {version} ({})",
            call.resource.kind,
            body::summary(&call.body)
        )));
    }
    let (group, short) = version.rsplit_once('/').unwrap_or(("", &version));
    let known = || {
        call.server
            .registry()
            .by_kind(group, short, &kind)
            .is_some()
    };
    if version != wanted && !call.resource.is_custom() && !known() {
        let why = not_this_kind(&call.server, &call.resource, &version, &kind);
        return Err(ApiError::bad_request(format!(
            "{kind} in version {short:?} cannot be handled as a {kind}: {why}"
        )));
    }
    if version != wanted {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({wanted})"
        )));
    }
    object["kind"] = json!(kind);
    object["apiVersion"] = json!(version);
    Ok(())
}

fn unknown(call: &Call, patch: bool) -> Unknown {
    match call.query.get("fieldValidation") {
        Some("Strict") => Unknown::Refuse { patch },
        Some("Ignore") => Unknown::Ignore,
        _ => Unknown::Warn,
    }
}

/// What field validation finds in the body of an object.
fn strict(call: &Call) -> ApiResult<Strict> {
    if unknown(call, false) == Unknown::Ignore {
        return Ok(Strict::default());
    }
    let content = negotiate::content_type(&call.headers);
    Ok(Strict::of(&content, &call.body))
}

/// What to write.
pub(crate) enum Write<'w> {
    Create {
        object: Value,
        namespace: &'w str,
        managed: Managed,
    },
    Update {
        key: &'w Key,
        endpoint: Endpoint,
        managed: Managed,
        next: Next<'w>,
    },
}

/// Runs a write with the call's parameters, and what follows from a change.
pub(crate) async fn run(call: &mut Call, patch: bool, write: Write<'_>) -> ApiResult<Written> {
    let admission = call.admission();
    run_admitted(call, patch, Some(admission), write).await
}

/// The same for a write that is admitted like this, or was admitted already.
pub(crate) async fn run_admitted(
    call: &mut Call,
    patch: bool,
    admission: Option<Admission>,
    write: Write<'_>,
) -> ApiResult<Written> {
    let manager = call.manager();
    let (server, resource) = (call.server.clone(), call.resource.clone());
    call.warnings.extend(call.version().deprecated.clone());
    let strict = std::mem::take(&mut call.strict);
    let mut writer = Writer {
        server: &server,
        resource: &resource,
        version: call.version(),
        manager: &manager,
        dry_run: call.query.get("dryRun") == Some("All"),
        unknown: unknown(call, patch),
        patch,
        strict,
        patch_text: call.patch_text.clone(),
        warnings: Vec::new(),
        admission,
    };
    let written = match write {
        Write::Create {
            object,
            namespace,
            managed,
        } => writer.create(object, namespace, managed).await,
        Write::Update {
            key,
            endpoint,
            managed,
            next,
        } => writer.update(key, endpoint, managed, next).await,
    };
    let warnings = std::mem::take(&mut writer.warnings);
    call.warnings.extend(warnings);
    let written = written?;
    call.changed |= written.changed;
    if written.changed && resource.table == crd::TABLE {
        crd::changed(&server, meta::name(&written.object.value));
    }
    Ok(written)
}

async fn reply(call: &Call, code: u16, written: &Written) -> ApiResult<Reply> {
    read::is_one(call)?;
    Ok(Reply::bytes(
        code,
        read::shown(call, &written.object).await?,
    ))
}

pub(crate) async fn create(call: &mut Call) -> ApiResult<Reply> {
    let namespace = call.target.namespace.clone();
    if !call.target.name.is_empty() || (call.resource.namespaced && namespace.is_empty()) {
        return Err(ApiError::method_not_allowed());
    }
    let object = decode(call)?;
    call.strict = strict(call)?;
    let write = Write::Create {
        object,
        namespace: &namespace,
        managed: Managed::Track,
    };
    let written = run(call, false, write).await?;
    reply(call, 201, &written).await
}

/// Whether the user may create what an update or apply did not find. Kubernetes gives no reason here.
fn may_create(call: &Call) -> ApiResult<()> {
    access::authorize(&call.server, &call.user, "create", &call.target)
        .map(drop)
        .map_err(|_| ApiError::forbidden(&call.resource, &call.target.name, ""))
}

pub(crate) async fn replace(call: &mut Call, endpoint: Endpoint) -> ApiResult<Reply> {
    let object = decode(call)?;
    call.strict = strict(call)?;
    let key = Key::new(&call.target.namespace, &call.target.name);
    if meta::name(&object).is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            key.name
        )));
    }
    if meta::name(&object) != key.name {
        let message = format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            meta::name(&object),
            key.name
        );
        return Err(ApiError::bad_request(message));
    }
    let sent = meta::namespace(&object);
    if call.resource.namespaced && !sent.is_empty() && sent != key.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let unconditional = call.resource.traits.unconditional_update && !call.resource.is_custom();
    let exists = call.server.store.get(&call.resource.table, &key).is_some();
    if !exists && call.resource.traits.create_on_update && endpoint == Endpoint::Main {
        may_create(call)?;
        let mut object = object;
        meta::set(&mut object, "name", json!(key.name));
        meta::unset(&mut object, "resourceVersion");
        let write = Write::Create {
            object,
            namespace: &key.namespace,
            managed: Managed::Track,
        };
        let written = run(call, false, write).await?;
        return reply(call, 201, &written).await;
    }
    if !exists && !meta::uid(&object).is_empty() {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: ",
            meta::uid(&object)
        );
        return Err(ApiError::conflict(&call.resource, &key.name, &why));
    }
    if exists && !unconditional && meta::resource_version(&object).is_empty() {
        // Kubernetes prints the missing version as a Go number.
        let why = "0x0: must be specified for an update";
        let error = FieldError::new(
            "metadata.resourceVersion",
            FieldErrorKind::Invalid,
            None,
            why,
        );
        // The kind of this error is the resource.
        let plural = &call.resource.plural;
        let name = &key.name;
        return Err(ApiError::invalid_kind(
            &call.resource,
            plural,
            name,
            &[error],
        ));
    }
    let resource = call.resource.clone();
    let write = Write::Update {
        key: &key,
        endpoint,
        managed: Managed::Track,
        next: &mut |old| {
            let (sent, is) = (meta::uid(&object), meta::uid(old));
            if !sent.is_empty() && sent != is {
                let why = format!(
                    "Precondition failed: UID in precondition: {sent}, UID in object meta: {is}"
                );
                return Err(ApiError::conflict(&resource, &key.name, &why));
            }
            Ok(object.clone())
        },
    };
    let written = run(call, false, write).await?;
    reply(call, 200, &written).await
}

pub(crate) async fn patch(call: &mut Call, endpoint: Endpoint) -> ApiResult<Reply> {
    let kind = negotiate::content_type(&call.headers);
    if kind == "application/apply-patch+yaml" {
        return apply(call, endpoint).await;
    }
    let unsupported = |types: &str| {
        ApiError::unsupported_media_type(format!(
            "the body of the request was in an unknown format - accepted media types include: {types}"
        ))
    };
    // Who patches nothing hears of that first.
    read::find(call)?;
    let checked = unknown(call, true) != Unknown::Ignore;
    let body = match kind.as_str() {
        "application/json-patch+json" if checked => {
            patch::decode_operations(&call.body).map_err(|why| undecodable(&why))?
        }
        "application/json-patch+json" => body::json(&call.body)?,
        "application/merge-patch+json" if checked => {
            patch::decode_object(&call.body).map_err(|why| undecodable(&why))?
        }
        "application/merge-patch+json" => {
            body::json(&call.body).map_err(|_| ApiError::bad_request("Invalid JSON Patch"))?
        }
        "application/strategic-merge-patch+json" if !call.resource.is_custom() => {
            patch::decode_object(&call.body).map_err(ApiError::bad_request)?
        }
        "application/strategic-merge-patch+json" => {
            return Err(unsupported(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            ));
        }
        _ => {
            return Err(ApiError::unsupported_media_type("415: Unsupported Media Type").generic());
        }
    };
    if unknown(call, true) != Unknown::Ignore {
        call.strict.json = duplicates::in_json(&call.body);
    }
    if kind == "application/strategic-merge-patch+json" {
        call.patch_text = Some(patch::go_text(&body));
    }
    let key = Key::new(&call.target.namespace, &call.target.name);
    let object_kind = call.resource.kind.clone();
    let (server, resource) = (call.server.clone(), call.resource.clone());
    let mut next = move |old: &Value| -> ApiResult<Value> {
        let mut new = old.clone();
        let done = match kind.as_str() {
            "application/json-patch+json" => patch::json_patch(&mut new, &body),
            "application/merge-patch+json" => {
                patch::merge(&mut new, &body);
                Ok(())
            }
            _ => {
                let done = patch::strategic(&mut new, &body, &object_kind);
                for field in ["kind", "apiVersion"] {
                    let found = match &body[field] {
                        Value::Number(_) => "int64",
                        Value::Bool(_) => "bool",
                        Value::Array(_) => "slice",
                        Value::Object(_) => "map",
                        _ => continue,
                    };
                    let why = format!("cannot convert {found} to string");
                    return Err(ApiError::invalid_patch_text(&patch::go_text(&body), &why));
                }
                // The server knows the type of the object and does not read it from the patch.
                for field in ["kind", "apiVersion"] {
                    if let Some(own) = old.get(field) {
                        new[field] = own.clone();
                    }
                }
                done
            }
        };
        done.map_err(patch_error)?;
        if !new.is_object() {
            let why = body::no_object(&new);
            let why = format!("couldn't get version/kind; json parse error: {why}");
            return Err(ApiError::invalid_patch(&new, &why));
        }
        if new
            .get("metadata")
            .is_some_and(|m| !m.is_object() && !m.is_null())
        {
            // Its type is refused first.
            return Ok(new);
        }
        for field in ["apiVersion", "kind"] {
            let value = new.get(field).filter(|v| !v.is_null() && !v.is_string());
            if let Some(value) = value {
                let whose = format!("struct field .{field}");
                let why = patch::wrong_type(value, &whose, "string");
                let why = format!("couldn't get version/kind; json parse error: {why}");
                return Err(ApiError::invalid_patch(&new, &why));
            }
        }
        let version = new
            .get("apiVersion")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if version.matches('/').count() > 1 {
            let why = format!("unexpected GroupVersion string: {version}");
            return Err(ApiError::invalid_patch(&new, &why));
        }
        let blank =
            |new: &Value, field: &str| new.get(field).is_none_or(|v| v.is_null() || v == "");
        if blank(&new, "kind") && !resource.is_custom() {
            new["kind"] = json!(resource.kind);
        }
        let (namespace, is) = (meta::namespace(&new), meta::namespace(old));
        if !namespace.is_empty() && namespace != is {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        meta::carry(old, &mut new, "namespace");
        let nameless = meta::name(&new).is_empty() || blank(&new, "apiVersion");
        if nameless && !resource.is_custom() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({} based on URL) was undeterminable: name must be provided",
                meta::name(old)
            )));
        }
        if ["kind", "apiVersion"]
            .iter()
            .any(|f| new.get(f) != old.get(f))
        {
            let text = |field: &str| new.get(field).and_then(Value::as_str).unwrap_or_default();
            let why = not_this_kind(&server, &resource, text("apiVersion"), text("kind"));
            return Err(ApiError::invalid_patch(&new, &why));
        }
        if meta::name(&new) != meta::name(old) {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                meta::name(&new),
                meta::name(old)
            )));
        }
        Ok(new)
    };
    let write = Write::Update {
        key: &key,
        endpoint,
        managed: Managed::Track,
        next: &mut next,
    };
    let written = run(call, true, write).await?;
    reply(call, 200, &written).await
}

fn undecodable(why: &str) -> ApiError {
    ApiError::bad_request(format!("error decoding patch: {why}"))
}

fn patch_error(error: patch::PatchError) -> ApiError {
    match error.code() {
        400 => ApiError::bad_request(error.message),
        500 => ApiError::new(500, "", error.message),
        413 => ApiError::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: {}", error.message),
        ),
        code => ApiError::new(
            code,
            "Invalid",
            "the server rejected our request due to an error in our request",
        )
        .generic(),
    }
}

/// Server-side apply.
async fn apply(call: &mut Call, endpoint: Endpoint) -> ApiResult<Reply> {
    let manager = call
        .query
        .get("fieldManager")
        .unwrap_or_default()
        .to_owned();
    let mut applied = body::yaml(&call.body)?;
    if !applied.is_object() && !applied.is_null() {
        let why = patch::wrong_type(&applied, "value", "map[string]interface {}");
        return Err(ApiError::bad_request(format!(
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: {why}"
        )));
    }
    let validation = unknown(call, true);
    let strict = match validation {
        Unknown::Ignore => Strict::default(),
        _ => Strict::of_yaml(&call.body),
    };
    match (validation, strict.yaml_error()) {
        (Unknown::Refuse { .. }, Some(error)) => {
            return Err(ApiError::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: {error}"
            )));
        }
        _ => call.warnings.extend(strict.yaml),
    }
    let wanted = call.resource.api_version(&call.version().name);
    let version = applied.get("apiVersion").and_then(Value::as_str);
    let version = version.filter(|v| v.matches('/').count() < 2);
    let version = version.unwrap_or_default();
    if version != wanted {
        return Err(ApiError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {wanted}"
        )));
    }
    let kind = applied
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if kind != call.resource.kind && !call.resource.is_custom() {
        let (group, short) = version.rsplit_once('/').unwrap_or(("", version));
        return Err(match call.server.registry().by_kind(group, short, kind) {
            Some(_) => ApiError::new(
                500,
                "",
                "failed to merge config: expected objects of the same type",
            ),
            None => {
                let group = if group.is_empty() { "/" } else { "" };
                let why = format!("no corresponding type for {group}{version}, Kind={kind}");
                untyped(&call.target, &applied, &why)
            }
        });
    }
    if kind.is_empty() {
        return Err(ApiError::bad_request("kind must be set in an apply patch"));
    }
    check_kind(call, &mut applied)?;
    if meta::get(&applied, "managedFields").is_some_and(|m| !m.is_null()) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let metadata = applied.get("metadata").filter(|m| !m.is_null());
    if let Some(why) = metadata.and_then(|m| ssa::expected("object", m)) {
        return Err(untyped(
            &call.target,
            &applied,
            &format!(".metadata: {why}"),
        ));
    }
    let key = Key::new(&call.target.namespace, &call.target.name);
    let sent = meta::name(&applied).to_owned();
    if !sent.is_empty() && sent != key.name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({sent}) does not match the name on the URL ({})",
            key.name
        )));
    }
    meta::set(&mut applied, "name", json!(key.name));
    if call.resource.namespaced {
        let sent = meta::namespace(&applied);
        if !sent.is_empty() && sent != key.namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    // Who applies need not say where: the object has it from the request, and what was applied stays as it was sent.
    let place = call.target.clone();
    if let Some(problem) = type_problem(call, &applied) {
        return Err(untyped(&place, &applied, &problem));
    }
    if !call.resource.is_custom()
        && let Some(why) = openapi::type_problem(
            &call.resource.group,
            &call.version().name,
            &call.resource.kind,
            &applied,
        )
    {
        let kind = &call.resource.kind;
        return Err(ApiError::new(
            500,
            "",
            format!(
                "failed to convert new object to proper version: unable to convert unstructured object to {wanted}, Kind={kind}: {why}"
            ),
        ));
    }
    keep_owned(call, endpoint, &mut applied);

    let force = call.query.flag("force");
    let subresource = (endpoint == Endpoint::Status).then_some("status");
    let api_version = call.resource.api_version(&call.version().name);
    let schema = call.version().schema.clone();
    let (custom, group) = (call.resource.is_custom(), call.resource.group.clone());
    let (short, own_kind) = (call.version().name.clone(), call.resource.kind.clone());
    let now = meta::rfc3339(call.server.now());
    let version = meta::resource_version(&applied).to_owned();
    let uid = meta::uid(&applied).to_owned();
    meta::unset(&mut applied, "resourceVersion");
    let next = |live: Option<&Value>| -> ApiResult<Value> {
        let made = ssa::apply(
            live,
            &applied,
            schema.as_deref(),
            &manager,
            subresource,
            &api_version,
            force,
            &now,
        );
        let mut new = made.map_err(|refused| match &refused {
            ssa::ApplyError::Invalid(message) => untyped(&place, &applied, message),
            ssa::ApplyError::Conflicts(_) => apply_error(&refused),
        })?;
        if !custom {
            openapi::fill_required(&group, &short, &own_kind, &mut new);
        }
        if live.is_none() && !place.namespace.is_empty() {
            meta::set(&mut new, "namespace", json!(place.namespace));
        }
        if live.is_some() && !version.is_empty() {
            meta::set(&mut new, "resourceVersion", json!(version));
        }
        if live.is_some() && !uid.is_empty() {
            meta::set(&mut new, "uid", json!(uid));
        }
        Ok(new)
    };
    // Between looking and writing the object may come or go: then it is the other case.
    loop {
        if call.server.store.get(&call.resource.table, &key).is_some() {
            let write = Write::Update {
                key: &key,
                endpoint,
                managed: Managed::Done,
                next: &mut |live| next(Some(live)),
            };
            match run(call, true, write).await {
                Err(error) if error.is_not_found_of(&call.resource) => continue,
                written => return reply(call, 200, &written?).await,
            }
        }
        if endpoint != Endpoint::Main {
            return Err(ApiError::not_found(&call.resource, &key.name));
        }
        if !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(ApiError::conflict(&call.resource, &key.name, &why));
        }
        if !matches!(version.as_str(), "" | "0") {
            return Err(ApiError::modified(&call.resource, &key.name));
        }
        may_create(call)?;
        let object = next(None)?;
        let write = Write::Create {
            object,
            namespace: &key.namespace,
            managed: Managed::Done,
        };
        match run(call, true, write).await {
            Err(error) if error.is_already_exists() => {}
            written => return reply(call, 201, &written?).await,
        }
    }
}

/// What of an applied configuration the schema cannot make sense of. Unlike other writes, an apply must be understood
/// in full: who does not know a field cannot own it.
fn type_problem(call: &Call, applied: &Value) -> Option<String> {
    let (resource, version) = (&call.resource, call.version());
    let undeclared = |path: &String| format!(".{path}: field not declared in schema");
    match &version.structural {
        Some(schema) => {
            let mut copy = applied.clone();
            let unknown = schema.prune(&mut copy);
            let own = version.schema.as_deref().unwrap_or(&Value::Null);
            ssa::type_problem(own, &copy).or_else(|| unknown.first().map(undeclared))
        }
        None => {
            let (group, kind) = (&resource.group, &resource.kind);
            openapi::applied_problem(group, &version.name, kind, applied)
        }
    }
}

fn untyped(place: &Target, applied: &Value, why: &str) -> ApiError {
    let text = |field: &str| {
        applied
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let version = match text("apiVersion") {
        core if !core.contains('/') => format!("/{core}"),
        version => version.to_owned(),
    };
    let (namespace, name) = (&place.namespace, &place.name);
    let message = format!(
        "failed to create typed patch object ({namespace}/{name}; {version}, Kind={}): {why}",
        text("kind")
    );
    ApiError::new(500, "", message)
}

/// Drops what this endpoint resets anyway, so that the manager does not come to own it.
fn keep_owned(call: &Call, endpoint: Endpoint, applied: &mut Value) {
    let Some(map) = applied.as_object_mut() else {
        return;
    };
    match endpoint {
        Endpoint::Main if call.version().has_status() => {
            map.remove("status");
        }
        Endpoint::Main | Endpoint::Finalize => {}
        Endpoint::Status => {
            map.retain(|field, _| {
                matches!(
                    field.as_str(),
                    "apiVersion" | "kind" | "metadata" | "status"
                )
            });
            if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.retain(|field, _| {
                    matches!(
                        field.as_str(),
                        "name" | "namespace" | "uid" | "resourceVersion"
                    )
                });
            }
        }
    }
}

pub(crate) fn apply_error(refused: &ssa::ApplyError) -> ApiError {
    match refused {
        ssa::ApplyError::Invalid(message) => ApiError::bad_request(message.clone()),
        ssa::ApplyError::Conflicts(conflicts) => {
            let causes = conflicts.iter().map(|c| json!({"reason": "FieldManagerConflict", "message": c.message(), "field": c.field}));
            ApiError::new(409, "Conflict", refused.to_string()).causes(causes.collect())
        }
    }
}

//! Subresources other than status: scale, finalize, token, binding, eviction; and reviews.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::delete::{self, DeleteOptions, Deleted};
use super::modify::{self, Write};
use super::write::Managed;
use super::{Call, Reply, read};
use crate::admission::{Kind, Operation};
use crate::auth::{Grant, User};
use crate::conversion;
use crate::convert;
use crate::error::{ApiError, ApiResult};
use crate::meta;
use crate::openapi;
use crate::registry::ScalePaths;
use crate::schema::FieldError;
use crate::selector::{Labels, Test};
use crate::store::{Key, Stored};
use crate::strategy::Endpoint;
use crate::{access, body, negotiate, patch, reviews, ssa};

/// Media type of server-side apply.
const APPLY: &str = "application/apply-patch+yaml";
/// Seconds a ServiceAccount token lives when the request names no time.
const TOKEN_SECONDS: i64 = 3600;

pub(crate) async fn answer(call: &mut Call, verb: &str) -> ApiResult<Reply> {
    let name = call.target.subresource.clone();
    if call.resource.table == "pods"
        && let Some((kind, fields)) = connection(&name)
    {
        let mut options = json!({"kind": kind, "apiVersion": "v1"});
        for field in fields {
            match call.query.get(field) {
                Some("true") => options[*field] = json!(true),
                Some("false") | None => {}
                Some(text) => options[*field] = json!(text),
            }
        }
        admit(
            call,
            Kind::of("", "v1", kind),
            Operation::Connect,
            &mut options,
        )
        .await?;
        return Err(ApiError::not_implemented(&name));
    }
    let Some(subresource) = call.version().subresource(&name).cloned() else {
        return Err(match call.resource.is_custom() {
            true => ApiError::not_found(&call.resource, &call.target.name),
            false => ApiError::no_such_resource(),
        });
    };
    if !subresource.verbs.contains(&verb) {
        return Err(ApiError::method_not_allowed());
    }
    match (name.as_str(), verb) {
        ("status", "get") => read::get(call).await,
        ("status", "update") => modify::replace(call, Endpoint::Status).await,
        ("status", "patch") => modify::patch(call, Endpoint::Status).await,
        ("finalize", _) => modify::replace(call, Endpoint::Finalize).await,
        ("scale", _) => match &subresource.scale {
            Some(paths) => scale(call, verb, paths).await,
            None => Err(ApiError::no_such_resource()),
        },
        ("token", _) => token(call).await,
        ("binding", _) => binding(call).await,
        ("eviction", _) => eviction(call).await,
        _ => {
            read::find(call)?;
            Err(ApiError::not_implemented(&name))
        }
    }
}

/// The kind of the options of a connection to a pod, and its fields.
fn connection(subresource: &str) -> Option<(&'static str, &'static [&'static str])> {
    const STREAMS: &[&str] = &["stdin", "stdout", "stderr", "tty", "container", "command"];
    match subresource {
        "exec" => Some(("PodExecOptions", STREAMS)),
        "attach" => Some(("PodAttachOptions", STREAMS)),
        "portforward" => Some(("PodPortForwardOptions", &[])),
        "proxy" => Some(("PodProxyOptions", &["path"])),
        _ => None,
    }
}

/// Has the object of a subresource admitted.
async fn admit(
    call: &mut Call,
    kind: Kind,
    operation: Operation,
    object: &mut Value,
) -> ApiResult<()> {
    let admission = call.admission();
    let mut warnings = Vec::new();
    let admitted = call
        .attributes(&admission, kind, operation)
        .admit(object, None, &mut warnings)
        .await;
    call.warnings.extend(warnings);
    admitted
}

/// Notes who wrote an object that is answered and not stored.
fn owned(call: &Call, object: &mut Value, manager: &str, subresource: Option<&str>) {
    let version = meta::field_text(object, "apiVersion");
    let now = meta::rfc3339(call.server.now());
    ssa::track_update(None, object, None, manager, subresource, &version, &now);
}

/// Creates a review: nothing is stored, the answer is the review with its status.
pub(crate) async fn review(call: &mut Call) -> ApiResult<Reply> {
    let mut object = modify::decode(call)?;
    let (group, version) = (call.resource.group.clone(), call.version().name.clone());
    let kind = Kind::of(&group, &version, &call.resource.kind);
    let manager = call.manager();
    owned(call, &mut object, &manager, None);
    admit(call, kind, Operation::Create, &mut object).await?;
    let user = &call.user;
    let answer = match call.resource.kind.as_str() {
        "TokenReview" => reviews::token_review(object, |token, audiences| {
            access::review_token(&call.server, token, audiences)
        }),
        "SelfSubjectReview" => Ok(reviews::self_review(object, &access::identity(user))),
        "SelfSubjectRulesReview" => {
            let namespace = meta::field_text(&object, "spec.namespace");
            access::with_rules(&call.server, user, &namespace, |granted| {
                let granted = std::cell::Cell::new(granted);
                reviews::rules_review(object, |_| granted.take())
            })
        }
        _ => reviews::access_review(
            object,
            access::subject(user),
            &call.target.namespace,
            |user, attributes| access::decide(&call.server, user, attributes),
        ),
    };
    let answer = answer?;
    Ok(Reply::json(201, &answer))
}

async fn scale(call: &mut Call, verb: &str, paths: &ScalePaths) -> ApiResult<Reply> {
    if verb == "get" {
        let stored = found_to_scale(call)?;
        return Ok(Reply::json(200, &scale_of(call, &stored, paths).await?));
    }
    let content = negotiate::content_type(&call.headers);
    let applies = content == APPLY;
    let key = Key::new(&call.target.namespace, &call.target.name);
    let path = paths.spec_replicas.clone();
    let admission = call.admission();
    loop {
        let stored = found_to_scale(call)?;
        let old = scale_of(call, &stored, paths).await?;
        let mut wanted = next_scale(call, verb, &content, &old)?;
        if meta::name(&wanted) != key.name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                meta::name(&wanted),
                key.name
            )));
        }
        if let Some(why) = openapi::type_problem("autoscaling", "v1", "Scale", &wanted) {
            return Err(match verb {
                "update" => ApiError::bad_request(format!(
                    "Scale in version \"v1\" cannot be handled as a Scale: {why}"
                )),
                _ => ApiError::invalid_patch_text(&wanted.to_string(), &why),
            });
        }
        let given = verb == "update" && !meta::resource_version(&wanted).is_empty()
            || meta::resource_version(&wanted) != meta::resource_version(&old);
        let kind = Kind::of("autoscaling", "v1", "Scale");
        let mut warnings = Vec::new();
        let admitted = call
            .attributes(&admission, kind, Operation::Update)
            .admit(&mut wanted, Some(&old), &mut warnings)
            .await;
        call.warnings.extend(warnings);
        admitted?;
        let replicas = meta::field(&wanted, "spec.replicas")
            .and_then(Value::as_i64)
            .unwrap_or(0);
        // A custom resource is refused by its own rules.
        if replicas < 0 && !call.resource.is_custom() {
            let why = "must be greater than or equal to 0";
            let error = FieldError::invalid("spec.replicas", json!(replicas), why);
            let mut refusal = ApiError::invalid_review("autoscaling", "Scale", error);
            refusal.rename(&key.name);
            return Err(refusal);
        }
        // What was admitted is a change of this state and no other.
        let version = match given {
            true => meta::resource_version(&wanted).to_owned(),
            false => meta::resource_version(&stored.value).to_owned(),
        };
        let applied = applies.then(|| Applied::of(call, &path, replicas));
        let mut next = |old: &Value| {
            let mut new = match &applied {
                Some(applied) => applied.to(old)?,
                None => old.clone(),
            };
            meta::set_field(&mut new, &path, json!(replicas));
            if given || !applies {
                meta::set(&mut new, "resourceVersion", json!(version));
            }
            Ok(new)
        };
        let managed = match applies {
            true => Managed::Done,
            false => Managed::Track,
        };
        let write = Write::Update {
            key: &key,
            endpoint: Endpoint::Main,
            managed,
            next: &mut next,
        };
        match modify::run_admitted(call, true, None, write).await {
            // Somebody else wrote meanwhile. An apply is refused for what others own, which stays so.
            Err(error) if error.code == 409 && !given && !applies => {}
            written => {
                let written = written?;
                return Ok(Reply::json(
                    200,
                    &scale_of(call, &written.object, paths).await?,
                ));
            }
        }
    }
}

/// What an apply to a scale applies to the object behind it.
struct Applied {
    object: Value,
    schema: Option<Arc<Value>>,
    manager: String,
    api_version: String,
    force: bool,
    now: String,
}

impl Applied {
    fn of(call: &Call, path: &str, replicas: i64) -> Self {
        let api_version = call.resource.api_version(&call.version().name);
        let mut object = json!({
            "apiVersion": api_version,
            "kind": call.resource.kind,
            "metadata": {"name": call.target.name},
        });
        meta::set_field(&mut object, path, json!(replicas));
        Self {
            object,
            schema: call.version().schema.clone(),
            manager: call.query.get("fieldManager").unwrap_or_default().into(),
            api_version,
            force: call.query.flag("force"),
            now: meta::rfc3339(call.server.now()),
        }
    }

    fn to(&self, live: &Value) -> ApiResult<Value> {
        let made = ssa::apply(
            Some(live),
            &self.object,
            self.schema.as_deref(),
            &self.manager,
            Some("scale"),
            &self.api_version,
            self.force,
            &self.now,
        );
        made.map_err(|mut refused| {
            if let ssa::ApplyError::Conflicts(conflicts) = &mut refused {
                // Told in terms of what was applied.
                let behind = format!(" using {}", self.api_version);
                for conflict in conflicts {
                    conflict.manager = conflict.manager.replace(&behind, " using autoscaling/v1");
                    conflict.field = ".spec.replicas".into();
                }
            }
            modify::apply_error(&refused)
        })
    }
}

/// The object to scale; what is missing of a built-in kind is its scale.
fn found_to_scale(call: &Call) -> ApiResult<Arc<Stored>> {
    read::find(call).map_err(|missing| match call.resource.is_custom() {
        true => missing,
        false => {
            let mut scale = (*call.resource).clone();
            scale.plural = format!("{}/scale", scale.plural);
            ApiError::not_found(&scale, &call.target.name)
        }
    })
}

/// The Scale that a request makes of the current one.
fn next_scale(call: &Call, verb: &str, content: &str, old: &Value) -> ApiResult<Value> {
    let mut wanted = old.clone();
    match content {
        "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
            patch::merge(&mut wanted, &body::json(&call.body)?)
        }
        "application/json-patch+json" => {
            patch::json_patch(&mut wanted, &body::json(&call.body)?)
                .map_err(|e| ApiError::new(e.code(), "Invalid", e.message))?;
        }
        APPLY => {
            let applied = body::yaml(&call.body)?;
            let version = applied.get("apiVersion").and_then(Value::as_str);
            if version != Some("autoscaling/v1") {
                let version = version.unwrap_or_default();
                return Err(ApiError::bad_request(format!(
                    "Incorrect version specified in apply patch. Specified patch version: {version}, expected: autoscaling/v1"
                )));
            }
            patch::merge(&mut wanted, &applied)
        }
        _ if verb == "update" => wanted = body::decode(content, &call.body)?,
        other => {
            return Err(ApiError::unsupported_media_type(format!(
                "scale cannot be patched with {other}"
            )));
        }
    }
    Ok(wanted)
}

async fn scale_of(call: &Call, stored: &Arc<Stored>, paths: &ScalePaths) -> ApiResult<Value> {
    let shown = conversion::fetch(&call.server, &call.resource, call.version(), stored).await?;
    let object = convert::view(&call.resource, call.version(), &shown);
    let number = |path: &str| {
        meta::field(&object, path)
            .and_then(Value::as_i64)
            .unwrap_or(0)
    };
    let mut status = json!({"replicas": number(&paths.status_replicas)});
    if let Some(selector) = paths
        .selector
        .as_ref()
        .and_then(|p| meta::field(&object, p))
    {
        let text = match selector {
            Value::String(text) => text.clone(),
            other => Labels::from_label_selector(other)
                .map(|l| selector_text(&l))
                .unwrap_or_default(),
        };
        status["selector"] = json!(text);
    }
    let mut metadata = json!({"name": meta::name(&object)});
    for field in ["namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = meta::get(&object, field) {
            metadata[field] = value.clone();
        }
    }
    let mut spec = json!({});
    let replicas = number(&paths.spec_replicas);
    if replicas != 0 {
        // None is told by saying nothing.
        spec["replicas"] = json!(replicas);
    }
    Ok(
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status}),
    )
}

/// A label selector in the syntax of query parameters.
fn selector_text(labels: &Labels) -> String {
    let join = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(",");
    let terms = labels.requirements().iter().map(|r| match &r.test {
        Test::In(set) if set.len() == 1 => format!("{}={}", r.key, join(set)),
        Test::In(set) => format!("{} in ({})", r.key, join(set)),
        Test::NotIn(set) if set.len() == 1 => format!("{}!={}", r.key, join(set)),
        Test::NotIn(set) => format!("{} notin ({})", r.key, join(set)),
        Test::Exists => r.key.clone(),
        Test::DoesNotExist => format!("!{}", r.key),
        Test::GreaterThan(n) => format!("{}>{n}", r.key),
        Test::LessThan(n) => format!("{}<{n}", r.key),
    });
    terms.collect::<Vec<_>>().join(",")
}

/// Issues a real token for a ServiceAccount.
async fn token(call: &mut Call) -> ApiResult<Reply> {
    let stored = read::find(call)?;
    let mut request = body::decode(&negotiate::content_type(&call.headers), &call.body)?;
    if !request.is_object() {
        request = json!({});
    }
    let kind = Kind::of("authentication.k8s.io", "v1", "TokenRequest");
    let (namespace, name) = (call.target.namespace.clone(), call.target.name.clone());
    for (field, given, is) in [
        ("name", meta::name(&request), name.as_str()),
        ("namespace", meta::namespace(&request), namespace.as_str()),
    ] {
        if !given.is_empty() && given != is {
            let why = format!("must match the service account {field} if specified");
            let error = FieldError::invalid(format!("metadata.{field}"), json!(given), why);
            let mut refused =
                ApiError::invalid_review("authentication.k8s.io", "TokenRequest", error);
            refused.rename(&name);
            return Err(refused);
        }
    }
    let asked = meta::field(&request, "spec.audiences").cloned();
    request["kind"] = json!("TokenRequest");
    request["apiVersion"] = json!("authentication.k8s.io/v1");
    request["metadata"] =
        json!({"name": name, "namespace": namespace, "uid": meta::uid(&stored.value)});
    meta::set_field(&mut request, "spec.audiences", json!(asked));
    let manager = call.manager();
    owned(call, &mut request, &manager, Some("token"));
    admit(call, kind, Operation::Create, &mut request).await?;
    let seconds = meta::field(&request, "spec.expirationSeconds")
        .and_then(Value::as_i64)
        .unwrap_or(TOKEN_SECONDS);
    let why = match seconds {
        ..600 => Some("may not specify a duration less than 10 minutes"),
        0x1_0000_0001.. => Some("may not specify a duration larger than 2^32 seconds"),
        _ => None,
    };
    if let Some(why) = why {
        let error = FieldError::invalid("spec.expirationSeconds", json!(seconds), why);
        return Err(ApiError::invalid_review(
            "authentication.k8s.io",
            "TokenRequest",
            error,
        ));
    }
    let now = call.server.now().as_second();
    call.server.tokens.drop_expired(now);
    let expires = now + seconds;
    let audiences: Vec<String> = meta::field(&request, "spec.audiences")
        .and_then(Value::as_array)
        .map(|l| {
            l.iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default();
    let token = call.server.ident.token();
    let user = User::service_account(&namespace, &name, meta::uid(&stored.value));
    call.server.tokens.insert(
        token.clone(),
        Grant {
            user,
            expires: Some(expires),
            account: Some((namespace.clone(), name.clone())),
            audiences,
        },
    );
    let now = meta::rfc3339(call.server.now());
    meta::set(&mut request, "creationTimestamp", json!(now));
    meta::set_field(&mut request, "spec.expirationSeconds", json!(seconds));
    if meta::field(&request, "spec.boundObjectRef").is_none() {
        meta::set_field(&mut request, "spec.boundObjectRef", Value::Null);
    }
    let asked = meta::field(&request, "spec.audiences").and_then(Value::as_array);
    if asked.is_none_or(Vec::is_empty) {
        meta::set_field(&mut request, "spec.audiences", json!([access::AUDIENCE]));
    }
    let at = jiff::Timestamp::from_second(expires).unwrap_or_else(|_| call.server.now());
    request["status"] = json!({"token": token, "expirationTimestamp": meta::rfc3339(at)});
    Ok(Reply::json(201, &request))
}

fn accepted(code: u16) -> Reply {
    Reply::json(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}),
    )
}

/// Puts a pod on a node; only once.
async fn binding(call: &mut Call) -> ApiResult<Reply> {
    let mut binding = body::decode(&negotiate::content_type(&call.headers), &call.body)?;
    admit(
        call,
        Kind::of("", "v1", "Binding"),
        Operation::Create,
        &mut binding,
    )
    .await?;
    let node = meta::field_text(&binding, "target.name");
    if node.is_empty() {
        return Err(ApiError::bad_request(
            "target.name: Required value: the node to bind to",
        ));
    }
    let key = Key::new(&call.target.namespace, &call.target.name);
    let resource = call.resource.clone();
    // Refusals name the subresource.
    let bindings = crate::registry::ResourceInfo {
        plural: "pods/binding".into(),
        ..(*resource).clone()
    };
    let now = meta::rfc3339(call.server.now());
    loop {
        let stored = read::find(call)?;
        let assigned = meta::field_text(&stored.value, "spec.nodeName");
        if !assigned.is_empty() {
            return Err(ApiError::conflict(
                &bindings,
                &key.name,
                &format!("pod {} is already assigned to node {assigned:?}", key.name),
            ));
        }
        if meta::is_deleting(&stored.value) {
            return Err(ApiError::conflict(
                &bindings,
                &key.name,
                &format!(
                    "pod {} is being deleted, cannot be assigned to a host",
                    key.name
                ),
            ));
        }
        let mut pod = stored.value.clone();
        meta::set_field(&mut pod, "spec.nodeName", json!(node));
        let mut conditions = meta::field(&pod, "status.conditions")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        conditions.retain(|c| c["type"] != "PodScheduled");
        conditions.push(json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now}));
        meta::set_field(&mut pod, "status.conditions", Value::Array(conditions));
        let change = crate::store::Change::Update {
            expected: stored.revision,
            value: pod,
        };
        let store = &call.server.store;
        let dry_run = call.query.get("dryRun") == Some("All");
        let bound = match dry_run {
            true => store.rehearse(&resource.table, &key, change),
            false => store.commit(&resource.table, &key, 0, change),
        };
        if bound.is_ok() {
            call.changed |= !dry_run;
            return Ok(accepted(201));
        }
    }
}

/// Evicts a pod: a deletion. Disruption budgets are not consulted.
async fn eviction(call: &mut Call) -> ApiResult<Reply> {
    let mut eviction = body::decode(&negotiate::content_type(&call.headers), &call.body)?;
    admit(
        call,
        Kind::of("policy", "v1", "Eviction"),
        Operation::Create,
        &mut eviction,
    )
    .await?;
    if meta::name(&eviction) != call.target.name {
        return Err(ApiError::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let options = DeleteOptions::parse(eviction.get("deleteOptions"), &call.query)?;
    let key = Key::new(&call.target.namespace, &call.target.name);
    let mut warnings = Vec::new();
    match delete::delete(
        &call.server,
        &call.resource,
        &key,
        &options,
        None,
        &mut warnings,
    )
    .await?
    {
        Deleted::Gone(_) => call.changed = !options.dry_run,
        Deleted::Waiting(_, changed) => call.changed = changed,
    }
    Ok(accepted(201))
}

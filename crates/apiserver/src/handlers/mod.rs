//! From a request to a reply: authentication, routing, authorization, dispatch, request log.

mod admitted;
pub(crate) mod delete;
mod delete_requests;
mod modify;
mod nonresource;
mod options;
mod read;
mod subresource;
mod watch;
pub(crate) mod write;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use http::request::Parts;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::BoxError;

use crate::admission::{Admission, Attributes, Kind, Operation, UPPER_BOUND};
use crate::auth::User;
use crate::body::Strict;
use crate::error::{ApiError, ApiResult};
use crate::log::LogEntry;
use crate::negotiate::{self, Form};
use crate::peer::Peer;
use crate::registry::{Registry, ResourceInfo, VersionInfo};
use crate::request::{Query, Target};
use crate::server::Server;
use crate::table::IncludeObject;
use crate::{access, meta};

/// An answer before it becomes HTTP.
pub(crate) struct Reply {
    pub code: u16,
    pub content_type: String,
    pub body: ReplyBody,
    pub warnings: Vec<String>,
    /// Further headers.
    pub headers: Vec<(&'static str, String)>,
}

pub(crate) enum ReplyBody {
    Whole(Bytes),
    Stream(BoxStream<'static, Result<Bytes, BoxError>>),
}

impl Reply {
    pub fn json(code: u16, value: &Value) -> Self {
        Self::bytes(code, Bytes::from(value.to_string()))
    }

    pub fn bytes(code: u16, bytes: Bytes) -> Self {
        Self {
            code,
            content_type: "application/json".into(),
            body: ReplyBody::Whole(bytes),
            warnings: Vec::new(),
            headers: Vec::new(),
        }
    }

    pub fn text(code: u16, text: &str) -> Self {
        Self {
            content_type: "text/plain; charset=utf-8".into(),
            ..Self::bytes(code, Bytes::from(text.to_owned()))
        }
    }
}

impl Reply {
    /// What is beyond all that is served is no Status.
    pub fn no_page() -> Self {
        Self::text(404, "404 page not found\n")
    }
}

/// A request for a resource, ready for its handler.
pub(crate) struct Call {
    pub server: Arc<Server>,
    pub user: User,
    pub resource: Arc<ResourceInfo>,
    version: usize,
    pub target: Target,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub form: Form,
    /// Whether the columns of a table were told before, as in a watch after its first event.
    pub headless: bool,
    /// Whether the request changed the store; for the log.
    pub changed: bool,
    /// Texts for Warning headers.
    pub warnings: Vec<String>,
    /// What stands twice in the body.
    pub strict: Strict,
    /// How a refused patch is shown, where that is not the patched object.
    pub patch_text: Option<String>,
    /// When a write has taken too long.
    deadline: Instant,
}

impl Call {
    pub fn version(&self) -> &VersionInfo {
        &self.resource.versions[self.version]
    }

    /// A copy that a stream can hold on to.
    pub fn detached(&self) -> Self {
        Self {
            server: self.server.clone(),
            user: self.user.clone(),
            resource: self.resource.clone(),
            version: self.version,
            target: self.target.clone(),
            query: self.query.clone(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            form: self.form,
            headless: self.headless,
            changed: false,
            warnings: Vec::new(),
            strict: Strict::default(),
            patch_text: None,
            deadline: self.deadline,
        }
    }

    /// Who asks for a write and how, for its webhooks.
    pub fn admission(&self) -> Admission {
        let mut options = json!({});
        for field in ["fieldManager", "fieldValidation"] {
            if let Some(value) = self.query.get(field) {
                options[field] = json!(value);
            }
        }
        if let Some(value) = self.query.get("dryRun") {
            options["dryRun"] = json!([value]);
        }
        Admission {
            user: self.user.clone(),
            subresource: self.target.subresource.clone(),
            options,
            deadline: self.deadline,
        }
    }

    /// What the webhooks of a request through a subresource are asked with: its object has a kind of its own.
    pub fn attributes<'a>(
        &'a self,
        admission: &'a Admission,
        kind: Kind,
        operation: Operation,
    ) -> Attributes<'a> {
        Attributes {
            server: &self.server,
            admission,
            resource: &self.resource,
            version: self.version(),
            kind: Some(kind),
            namespace: &self.target.namespace,
            name: &self.target.name,
            operation,
            dry_run: self.query.get("dryRun") == Some("All"),
        }
    }

    /// The field manager: as given, or the user agent up to its version.
    pub fn manager(&self) -> String {
        manager(&self.query, &self.headers)
    }
}

fn manager(query: &Query, headers: &HeaderMap) -> String {
    if let Some(manager) = query.get("fieldManager") {
        return manager.to_owned();
    }
    let agent = user_agent(headers);
    let name: String = agent
        .split('/')
        .next()
        .unwrap_or_default()
        .chars()
        .take(128)
        .collect();
    if name.is_empty() {
        "unknown".into()
    } else {
        name
    }
}

fn user_agent(headers: &HeaderMap) -> &str {
    headers
        .get(http::header::USER_AGENT)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default()
}

/// Answers one request and logs it.
pub(crate) async fn handle(
    server: &Arc<Server>,
    parts: &Parts,
    body: Result<Bytes, ApiError>,
    token: Option<&str>,
    peer: &Peer,
) -> Reply {
    let mut entry = LogEntry {
        index: 0,
        user: String::new(),
        verb: parts.method.as_str().to_ascii_lowercase(),
        group: String::new(),
        resource: String::new(),
        namespace: String::new(),
        name: parts.uri.path().to_owned(),
        subresource: String::new(),
        code: 0,
        changed: false,
        revision: 0,
        manager: String::new(),
        user_agent: user_agent(&parts.headers).to_owned(),
    };
    let mut warnings = Vec::new();
    let answer = answer(server, parts, body, token, peer, &mut entry, &mut warnings).await;
    let mut reply = answer.unwrap_or_else(|error| {
        let uri = parts.uri.path_and_query().map_or("/", |p| p.as_str());
        match error.plain_text(uri) {
            Some(text) => Reply::text(error.code, &text),
            None => {
                let status = error.status();
                let mut reply = Reply::json(error.code, &status);
                if let Some(seconds) = status.pointer("/details/retryAfterSeconds") {
                    reply.headers.push(("retry-after", seconds.to_string()));
                }
                reply
            }
        }
    });
    // A refusal has its warnings, too.
    let mut seen = BTreeSet::new();
    warnings.retain(|w| seen.insert(w.clone()));
    reply.warnings = warnings;
    if parts.method == Method::HEAD {
        reply.body = ReplyBody::Whole(Bytes::new());
    }
    entry.code = reply.code;
    entry.revision = server.store.revision();
    server.log.push(entry);
    reply
}

/// Whether a group has built-in resources: those answer for all of their group, and definitions each for their own.
fn built_in(registry: &Registry, group: &str) -> bool {
    let mut resources = registry.iter();
    resources.any(|r| r.group == group && !r.is_custom())
}

async fn answer(
    server: &Arc<Server>,
    parts: &Parts,
    body: Result<Bytes, ApiError>,
    token: Option<&str>,
    peer: &Peer,
    entry: &mut LogEntry,
    warnings: &mut Vec<String>,
) -> ApiResult<Reply> {
    let user = access::authenticate(server, &parts.headers, token, peer)?;
    entry.user = user.name.clone();
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let Some(mut target) = Target::parse(parts.uri.path()) else {
        access::authorize_path(server, &user, parts)?;
        return nonresource::answer(server, parts);
    };
    let watch = query.flag("watch");
    let Some(verb) = verb(&parts.method, &target, watch) else {
        // What is not there takes no method at all.
        let registry = server.registry();
        return match registry.get(&target.group, &target.resource) {
            Some(_) => Err(ApiError::method_not_allowed()),
            None if built_in(&registry, &target.group) => Err(ApiError::no_such_resource()),
            None => Ok(Reply::no_page()),
        };
    };
    entry.verb = verb.into();
    entry.group = target.group.clone();
    entry.resource = target.resource.clone();
    entry.namespace = target.namespace.clone();
    entry.name = target.name.clone();
    entry.subresource = target.subresource.clone();
    access::authorize(server, &user, verb, &judged(&target, verb, &query))?;

    let registry = server.registry();
    let Some(resource) = registry.get(&target.group, &target.resource).cloned() else {
        return match built_in(&registry, &target.group) {
            true => Err(ApiError::no_such_resource()),
            false => Ok(Reply::no_page()),
        };
    };
    let version = resource
        .versions
        .iter()
        .position(|v| v.name == target.version);
    let Some(version) = version else {
        return match resource.is_custom() {
            true => Ok(Reply::no_page()),
            false => Err(ApiError::no_such_resource()),
        };
    };
    if !resource.namespaced && !target.namespace.is_empty() {
        return match resource.is_custom() {
            true => Ok(Reply::no_page()),
            false => Err(ApiError::no_such_resource()),
        };
    }
    if resource.namespaced && target.namespace.is_empty() && !target.name.is_empty() {
        return Err(ApiError::no_such_resource());
    }
    let form = negotiate::form(&parts.headers, resource.verbs != ["create"])?;
    if target.resource == "namespaces" && target.group.is_empty() {
        target.namespace = String::new();
    }
    let write = !matches!(verb, "get" | "list" | "watch");
    if let Err(too_large) = &body
        && matches!(verb, "create" | "update" | "delete")
    {
        let content = negotiate::content_type(&parts.headers);
        return Err(crate::body::decode(&content, b"{}")
            .err()
            .filter(|e| e.code == 415)
            .unwrap_or_else(|| too_large.clone()));
    }
    if matches!(verb, "list" | "watch") {
        options::check_list(&query, verb == "watch")?;
    }
    let mut call = Call {
        server: server.clone(),
        user,
        resource,
        version,
        target,
        query,
        headers: parts.headers.clone(),
        body: body?,
        form,
        headless: false,
        changed: false,
        warnings: Vec::new(),
        strict: Strict::default(),
        patch_text: None,
        deadline: Instant::now() + UPPER_BOUND,
    };
    if write {
        entry.manager = call.manager();
        let apply = verb == "patch"
            && negotiate::content_type(&call.headers) == "application/apply-patch+yaml";
        options::check_write(verb, &call.query, apply)?;
    }
    let table = matches!(form, Form::Table { .. });
    let odd = table && IncludeObject::parse(call.query.get("includeObject")).is_none();
    let given = call.query.get("includeObject").unwrap_or_default();
    let shown = match odd {
        true => Err(ApiError::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {given:?}: must be 'Metadata', 'Object', 'None', or empty"
        ))),
        false => Ok(()),
    };
    // What was written stays written, though nobody can be told of it.
    let reply = match (write, shown) {
        (true, Err(error)) => within(&mut call, verb).await.and(Err(error)),
        (_, shown) => match shown {
            Ok(()) => within(&mut call, verb).await,
            Err(error) => Err(error),
        },
    };
    let reply = reply.and_then(|reply| in_form(&call, reply));
    entry.changed = call.changed;
    *warnings = call.warnings;
    if entry.name.is_empty()
        && verb == "create"
        && let Ok(Reply {
            body: ReplyBody::Whole(bytes),
            ..
        }) = &reply
        && let Ok(made) = serde_json::from_slice::<Value>(bytes)
    {
        entry.name = meta::name(&made).to_owned();
    }
    reply
}

/// Shows what is no object of its own, as scales, tokens and reviews are, as its metadata where that is asked for.
fn in_form(call: &Call, reply: Reply) -> ApiResult<Reply> {
    let own = call.target.subresource.is_empty() && call.resource.verbs != ["create"];
    let (Form::Metadata { v1beta1, list }, false, ReplyBody::Whole(bytes)) =
        (call.form, own, &reply.body)
    else {
        return Ok(reply);
    };
    let Ok(object) = serde_json::from_slice::<Value>(bytes) else {
        return Ok(reply);
    };
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let kind = text("kind");
    if reply.code >= 400 || kind == "Status" || kind.starts_with("PartialObjectMetadata") {
        return Ok(reply);
    }
    if list {
        let package = text("apiVersion")
            .split(['/', '.'])
            .next()
            .unwrap_or_default();
        return Err(ApiError::new(
            406,
            "NotAcceptable",
            format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list (*{package}.{kind})"
            ),
        ));
    }
    Ok(Reply {
        warnings: reply.warnings,
        headers: reply.headers,
        ..Reply::json(reply.code, &read::partial(&object, v1beta1))
    })
}

/// Answers a call in time: webhooks can make a write wait.
async fn within(call: &mut Call, verb: &str) -> ApiResult<Reply> {
    let deadline = call.deadline;
    let answer = async {
        if call.target.subresource.is_empty() {
            main_endpoint(call, verb).await
        } else {
            subresource::answer(call, verb).await
        }
    };
    tokio::time::timeout_at(deadline, answer)
        .await
        .unwrap_or_else(|_| {
            Err(ApiError::timeout(
                "request did not complete within requested timeout - context deadline exceeded",
            ))
        })
}

fn verb(method: &Method, target: &Target, watch: bool) -> Option<&'static str> {
    let named = !target.name.is_empty();
    Some(match (method.as_str(), named) {
        ("GET", false) if watch && target.subresource.is_empty() => "watch",
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => return None,
    })
}

async fn main_endpoint(call: &mut Call, verb: &str) -> ApiResult<Reply> {
    if !call.resource.allows(verb) {
        return Err(ApiError::method_not_allowed());
    }
    if call.resource.verbs == ["create"] {
        return subresource::review(call).await;
    }
    match verb {
        "get" => read::get(call).await,
        "list" => read::list(call).await,
        "watch" => watch::watch(call).await,
        "create" => modify::create(call).await,
        "update" => modify::replace(call, crate::strategy::Endpoint::Main).await,
        "patch" => modify::patch(call, crate::strategy::Endpoint::Main).await,
        "delete" => delete_requests::one(call).await,
        "deletecollection" => delete_requests::collection(call).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// What access is judged by: who selects one object by its name needs a right to that one alone.
fn judged(target: &Target, verb: &str, query: &Query) -> Target {
    let mut judged = target.clone();
    if matches!(verb, "list" | "watch") && judged.name.is_empty() {
        let terms = query.get("fieldSelector").unwrap_or_default().split(',');
        let named = terms.filter_map(|term| term.strip_prefix("metadata.name="));
        let named = named.map(|name| name.trim_start_matches('=')).next();
        judged.name = named.unwrap_or_default().into();
    }
    judged
}

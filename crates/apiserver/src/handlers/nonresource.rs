//! Paths that are not resources: health, version, discovery, OpenAPI.

use std::sync::Arc;

use http::request::Parts;
use serde_json::{Value, json};

use super::Reply;
use crate::auth::User;
use crate::error::{ApiError, ApiResult};
use crate::negotiate;
use crate::registry::ResourceInfo;
use crate::request::Query;
use crate::server::Server;

/// The Kubernetes version this server presents itself as.
const VERSION: (&str, &str, &str) = ("1", "34", "v1.34.0");

pub(crate) fn answer(server: &Arc<Server>, _user: &User, parts: &Parts, query: &Query) -> ApiResult<Reply> {
    if parts.method != http::Method::GET && parts.method != http::Method::HEAD {
        return Err(ApiError::method_not_allowed());
    }
    let path = parts.uri.path().trim_end_matches('/');
    match path {
        "/healthz" | "/livez" | "/readyz" => return Ok(Reply::text(200, "ok")),
        "/version" => return Ok(Reply::json(200, &version())),
        "" => return Ok(Reply::json(200, &json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}))),
        _ => {}
    }
    let resources: Vec<Arc<ResourceInfo>> = server.registry().iter().cloned().collect();
    let _ = (&resources, query, negotiate::accepted(&parts.headers));
    Err(ApiError::no_such_resource())
}

fn version() -> Value {
    let (major, minor, git) = VERSION;
    json!({
        "major": major, "minor": minor, "gitVersion": git, "gitCommit": "embedded", "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "linux/amd64",
    })
}

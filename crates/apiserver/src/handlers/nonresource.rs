//! Paths that are not resources: health, version, discovery, OpenAPI.

use std::sync::Arc;

use http::HeaderMap;
use http::header::IF_NONE_MATCH;
use http::request::Parts;
use serde_json::{Value, json};

use super::Reply;
use crate::discovery::{self, Scope};
use crate::error::{ApiError, ApiResult};
use crate::registry::ResourceInfo;
use crate::request::Query;
use crate::server::Server;
use crate::{negotiate, openapi};

/// The Kubernetes version this server presents itself as.
const VERSION: (&str, &str, &str) = ("1", "34", "v1.34.0");

pub(crate) fn answer(server: &Server, parts: &Parts) -> ApiResult<Reply> {
    // These do not look at the method.
    if let Some(reply) = health(parts) {
        return Ok(reply);
    }
    let path = parts.uri.path().trim_end_matches('/');
    let steps: Vec<&str> = path.split('/').skip(1).collect();
    match steps.as_slice() {
        [] => return Ok(Reply::json(200, &paths())),
        ["apis"] | ["apis", _] => {}
        ["version" | "api"] | ["api", _] | ["apis", _, _] | ["openapi", "v2" | "v3", ..] => {
            let known = match steps.as_slice() {
                ["api", version] => *version == "v1",
                _ => true,
            };
            if parts.method != http::Method::GET && known {
                return Err(ApiError::method_not_allowed());
            }
        }
        _ => return Ok(Reply::json(404, &paths())),
    }
    if path == "/version" {
        return Ok(Reply::json(200, &version()));
    }
    if path.starts_with("/api") {
        negotiate::acceptable(&parts.headers)?;
        // Discovery is no object that a table could be made of.
        let plain = negotiate::accepted(&parts.headers)
            .into_iter()
            .any(|media| {
                let json = matches!(
                    media.name.as_str(),
                    "application/json" | "*/*" | "application/*"
                );
                let form = media.param("as");
                json && (form.is_none() || form == Some("APIGroupDiscoveryList"))
                    || media.name == "application/yaml"
            });
        if !plain {
            return Err(ApiError::not_acceptable());
        }
    }
    let resources: Vec<Arc<ResourceInfo>> = server.registry().iter().cloned().collect();
    match steps.as_slice() {
        ["api"] => Ok(discovery_root(&resources, &parts.headers, Scope::Core)),
        ["apis"] => Ok(discovery_root(&resources, &parts.headers, Scope::Groups)),
        ["api", version] => found(discovery::api_resource_list(&resources, "", version)),
        ["apis", group] => Ok(page(discovery::api_group(&resources, group))),
        ["apis", group, version] => {
            let list = discovery::api_resource_list(&resources, group, version);
            match resources
                .iter()
                .any(|r| r.group == *group && !r.is_custom())
            {
                true => found(list),
                false => Ok(page(list)),
            }
        }
        ["openapi", "v2"] => Ok(openapi_v2(&parts.headers)),
        ["openapi", "v3"] => Ok(Reply::json(200, &openapi::index(&resources))),
        ["openapi", "v3", "api", version] => found(openapi::document(&resources, "", version)),
        ["openapi", "v3", "apis", group, version] => {
            found(openapi::document(&resources, group, version))
        }
        _ => Err(ApiError::no_such_resource()),
    }
}

/// Where something is, apart from objects.
fn paths() -> Value {
    json!({"paths": [
        "/api", "/api/v1", "/apis", "/healthz", "/healthz/etcd", "/healthz/log", "/healthz/ping", "/livez",
        "/livez/etcd", "/livez/log", "/livez/ping", "/openapi/v2", "/openapi/v3", "/readyz", "/readyz/etcd",
        "/readyz/informer-sync", "/readyz/log", "/readyz/ping", "/readyz/shutdown", "/version",
    ]})
}

/// The health checks: this server answers as long as it is there at all.
fn health(parts: &Parts) -> Option<Reply> {
    const CHECKS: [&str; 3] = ["ping", "log", "etcd"];
    const READY: [&str; 5] = ["ping", "log", "etcd", "informer-sync", "shutdown"];
    let steps: Vec<&str> = parts.uri.path().split('/').skip(1).collect();
    let checks = |name: &str| -> &'static [&'static str] {
        match name {
            "readyz" => &READY,
            _ => &CHECKS,
        }
    };
    match steps.as_slice() {
        [name @ ("healthz" | "livez" | "readyz")] => {
            let query = Query::parse(parts.uri.query().unwrap_or_default());
            if query.given("verbose").is_empty() {
                return Some(Reply::text(200, "ok"));
            }
            let excluded = query.given("exclude");
            let lines =
                checks(name)
                    .iter()
                    .map(|check| match excluded.iter().any(|e| e == check) {
                        true => format!("[+]{check} excluded: ok\n"),
                        false => format!("[+]{check} ok\n"),
                    });
            let lines: String = lines.collect();
            Some(Reply::text(200, &format!("{lines}{name} check passed\n")))
        }
        [name @ ("healthz" | "livez" | "readyz"), check] if checks(name).contains(check) => {
            Some(Reply::text(200, "ok"))
        }
        _ => None,
    }
}

/// A document that describes nothing. Clients ask for it when OpenAPI v3 does not know a kind, and take no answer for a
/// failure; of kinds that it does not describe either they go on without a check.
fn openapi_v2(headers: &HeaderMap) -> Reply {
    const ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    // The other is no media type: it has an @.
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let accept = headers.get(http::header::ACCEPT);
    if accept.is_some_and(|a| {
        a.to_str()
            .is_ok_and(|a| [ASKED, PROTOBUF].iter().any(|p| a.contains(p)))
    }) {
        // The fields swagger (1) and info (2) with title (1) and version (2) of gnostic's Document.
        let version = VERSION.2.as_bytes();
        let mut info = b"\x0a\x0aKubernetes\x12".to_vec();
        info.push(version.len() as u8);
        info.extend(version);
        let mut document = b"\x0a\x032.0\x12".to_vec();
        document.push(info.len() as u8);
        document.extend(info);
        return Reply {
            content_type: PROTOBUF.into(),
            ..Reply::bytes(200, document.into())
        };
    }
    let info = json!({"title": "Kubernetes", "version": VERSION.2});
    Reply::json(
        200,
        &json!({"swagger": "2.0", "info": info, "paths": {}, "definitions": {}}),
    )
}

fn found(document: Option<Value>) -> ApiResult<Reply> {
    document
        .map(|d| Reply::json(200, &d))
        .ok_or_else(ApiError::no_such_resource)
}

/// The same where nothing answers for the whole group.
fn page(document: Option<Value>) -> Reply {
    document.map_or_else(Reply::no_page, |d| Reply::json(200, &d))
}

/// `/api` or `/apis`: aggregated for clients that accept that, else the plain document.
fn discovery_root(resources: &[Arc<ResourceInfo>], headers: &HeaderMap, scope: Scope) -> Reply {
    let aggregated = negotiate::accepted(headers).into_iter().find_map(|media| {
        let wanted = media.param("g") == Some("apidiscovery.k8s.io")
            && media.param("as") == Some("APIGroupDiscoveryList");
        let version = media
            .param("v")
            .filter(|v| matches!(*v, "v2" | "v2beta1"))?;
        (wanted && media.name == "application/json").then(|| version.to_owned())
    });
    let (document, content_type) = match (aggregated, scope) {
        (Some(version), _) => (
            discovery::aggregated(resources, scope, &version),
            discovery::aggregated_content_type(&version),
        ),
        (None, Scope::Core) => (discovery::api_versions(), "application/json".into()),
        (None, Scope::Groups) => (
            discovery::api_group_list(resources),
            "application/json".into(),
        ),
    };
    let etag = discovery::etag(&document);
    let mut reply = if headers
        .get(IF_NONE_MATCH)
        .is_some_and(|h| h.as_bytes() == etag.as_bytes())
    {
        Reply::text(304, "")
    } else {
        Reply::json(200, &document)
    };
    reply.content_type = content_type;
    reply.headers = vec![("etag", etag), ("vary", "Accept".into())];
    reply
}

fn version() -> Value {
    let (major, minor, git) = VERSION;
    json!({
        "major": major, "minor": minor, "gitVersion": git, "gitCommit": "embedded", "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "linux/amd64",
    })
}

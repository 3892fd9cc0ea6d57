//! Authentication and authorization of requests.

use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;

use crate::auth::{self, User};
use crate::error::{ApiError, ApiResult};
use crate::meta;
use crate::request::Target;
use crate::server::Server;
use crate::store::Key;

/// Paths everybody may read.
const PUBLIC: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

/// The user behind a request: by bearer token, or anonymous; impersonation headers change it.
pub(crate) fn authenticate(server: &Arc<Server>, headers: &HeaderMap, fallback: Option<&str>) -> ApiResult<User> {
    let user = match auth::bearer(headers, fallback)? {
        None => User::anonymous(),
        Some(token) => user_of(server, &token).ok_or_else(ApiError::unauthorized)?,
    };
    impersonate(server, user, headers)
}

/// The user a token stands for, while it is valid.
pub(crate) fn user_of(server: &Server, token: &str) -> Option<User> {
    let grant = server.tokens.get(token)?;
    if grant.expires.is_some_and(|at| at <= server.now().as_second()) {
        return None;
    }
    if let Some((namespace, name)) = &grant.account {
        let account = server.store.get("serviceaccounts", &Key::new(namespace, name))?;
        if meta::uid(&account.value) != grant.user.uid {
            return None;
        }
    }
    Some(grant.user)
}

fn impersonate(server: &Arc<Server>, user: User, headers: &HeaderMap) -> ApiResult<User> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let Some(name) = text("impersonate-user") else { return Ok(user) };
    let groups: Vec<String> = headers.get_all("impersonate-group").iter().filter_map(|v| v.to_str().ok()).map(str::to_owned).collect();
    let wanted = std::iter::once(("users", &name)).chain(groups.iter().map(|g| ("groups", g)));
    for (resource, name) in wanted {
        let target = Target { version: "v1".into(), resource: resource.into(), name: name.clone(), ..Target::default() };
        authorize(server, &user, "impersonate", &target)?;
    }
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    Ok(User::new(&name, &groups))
}

/// Checks a request for a resource.
pub(crate) fn authorize(server: &Arc<Server>, user: &User, verb: &str, target: &Target) -> ApiResult<()> {
    let _ = (verb, target);
    if !server.rbac || user.is_master() {
        return Ok(());
    }
    Ok(())
}

/// Checks a request for a path that is not a resource.
pub(crate) fn authorize_path(server: &Arc<Server>, user: &User, parts: &Parts) -> ApiResult<()> {
    let path = parts.uri.path();
    if !server.rbac || user.is_master() || PUBLIC.iter().any(|p| path == *p || path.strip_prefix(p).is_some_and(|r| r.starts_with('/'))) {
        return Ok(());
    }
    Ok(())
}

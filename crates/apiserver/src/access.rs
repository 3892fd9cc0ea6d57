//! Authentication and authorization of requests.

use std::sync::Arc;

use http::HeaderMap;
use http::request::Parts;
use serde_json::Value;

use crate::auth::{self, User};
use crate::error::{ApiError, ApiResult};
use crate::meta;
use crate::peer::Peer;
use crate::rbac::{self, Attributes, Decision, Granted, Policy};
use crate::request::Target;
use crate::reviews::Identity;
use crate::server::Server;
use crate::store::{Key, Stored};

/// Tables of the four kinds that policy is made of.
const POLICY: [&str; 4] = [
    "roles.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
];
/// The audience of tokens that name none.
pub(crate) const AUDIENCE: &str = "https://kubernetes.default.svc";

/// The user behind a request: by client certificate, by bearer token, or anonymous; impersonation headers change it.
pub(crate) fn authenticate(
    server: &Arc<Server>,
    headers: &HeaderMap,
    fallback: Option<&str>,
    peer: &Peer,
) -> ApiResult<User> {
    if let Peer::Known(user) = peer {
        return impersonate(server, user.clone(), headers);
    }
    let user = match auth::bearer(headers, fallback) {
        None if *peer == Peer::Refused => return Err(ApiError::unauthorized()),
        None => User::anonymous(),
        Some(token) => {
            let meant = server.tokens.get(&token).map(|g| g.audiences);
            if meant.is_some_and(|m| !m.is_empty() && !m.iter().any(|a| a == AUDIENCE)) {
                return Err(ApiError::unauthorized());
            }
            user_of(server, &token).ok_or_else(ApiError::unauthorized)?
        }
    };
    impersonate(server, user, headers)
}

/// The user a token stands for, while it is valid.
pub(crate) fn user_of(server: &Server, token: &str) -> Option<User> {
    let grant = server.tokens.get(token)?;
    if grant
        .expires
        .is_some_and(|at| at <= server.now().as_second())
    {
        return None;
    }
    if let Some((namespace, name)) = &grant.account {
        let account = server
            .store
            .get("serviceaccounts", &Key::new(namespace, name))?;
        if meta::uid(&account.value) != grant.user.uid {
            return None;
        }
    }
    Some(grant.user)
}

/// What a TokenReview learns about a token: its user, and which of the audiences it is meant for.
pub(crate) fn review_token(
    server: &Server,
    token: &str,
    audiences: &[String],
) -> Result<(Identity, Vec<String>), String> {
    let invalid = || "invalid bearer token".to_owned();
    let user = user_of(server, token).ok_or_else(invalid)?;
    let mut meant = server
        .tokens
        .get(token)
        .map(|g| g.audiences)
        .unwrap_or_default();
    if meant.is_empty() {
        meant.push(AUDIENCE.into());
    }
    let own = [AUDIENCE.to_owned()];
    let audiences = if audiences.is_empty() {
        &own
    } else {
        audiences
    };
    {
        meant.retain(|a| audiences.contains(a));
        if meant.is_empty() {
            return Err(format!(
                "invalid bearer token, token audiences do not match {audiences:?}"
            ));
        }
    }
    Ok((identity(&user), meant))
}

/// A user as reviews show it.
pub(crate) fn identity(user: &User) -> Identity {
    Identity {
        username: user.name.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        ..Identity::default()
    }
}

fn impersonate(server: &Arc<Server>, user: User, headers: &HeaderMap) -> ApiResult<User> {
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .map(str::to_owned)
    };
    let Some(name) = text("impersonate-user") else {
        let all = |name: &str| {
            let values = headers.get_all(name).iter();
            let values = values.filter_map(|v| v.to_str().ok());
            values.map(str::to_owned).collect::<Vec<_>>()
        };
        const EXTRA: &str = "impersonate-extra-";
        let extra = headers
            .keys()
            .filter_map(|h| h.as_str().strip_prefix(EXTRA));
        let extra = extra.flat_map(|key| {
            let values = all(&format!("{EXTRA}{key}")).into_iter();
            values.map(move |v| format!("{{UserExtra  {v}  authentication.k8s.io/v1  {key}}}"))
        });
        let groups = all("impersonate-group").into_iter();
        let groups = groups.map(|group| format!("{{Group  {group}    }}"));
        let asked: Vec<String> = groups.chain(extra).collect();
        if !asked.is_empty() {
            let what = asked.join(" ");
            return Err(ApiError::plain(
                500,
                &format!("requested [{what}] without impersonating a user"),
            ));
        }
        return Ok(user);
    };
    let groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|v| v.to_str().ok())
        .map(str::to_owned)
        .collect();
    let account = name
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split_once(':'));
    let target = |group: &str, resource: &str, name: &str| Target {
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        name: name.into(),
        ..Target::default()
    };
    let mut wanted = vec![match account {
        Some((namespace, account)) => Target {
            namespace: namespace.into(),
            ..target("", "serviceaccounts", account)
        },
        None => target("", "users", &name),
    }];
    wanted.extend(groups.iter().map(|g| target("", "groups", g)));
    const AUTHENTICATION: &str = "authentication.k8s.io";
    for (header, value) in headers {
        let value = value.to_str().unwrap_or_default();
        if header == "impersonate-uid" {
            wanted.push(target(AUTHENTICATION, "uids", value));
        } else if let Some(key) = header.as_str().strip_prefix("impersonate-extra-") {
            wanted.push(Target {
                subresource: key.into(),
                ..target(AUTHENTICATION, "userextras", value)
            });
        }
    }
    for target in &wanted {
        authorize(server, &user, "impersonate", target)?;
    }
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let mut acting = match account {
        // Its groups follow from its name.
        Some((namespace, account)) if groups.is_empty() => {
            User::service_account(namespace, account, "")
        }
        None if name == User::anonymous().name => User::unknown(&groups),
        _ => User::new(&name, &groups),
    };
    acting.uid = text("impersonate-uid").unwrap_or_default();
    Ok(acting)
}

/// The user as the rules see it.
pub(crate) fn subject(user: &User) -> rbac::User<'_> {
    rbac::User {
        name: &user.name,
        groups: &user.groups,
    }
}

/// Decides by the stored roles and bindings; without RBAC everything is allowed.
pub(crate) fn decide(server: &Server, user: rbac::User<'_>, attributes: &Attributes) -> Decision {
    if !server.rbac {
        return Decision {
            allowed: true,
            reason: "this server does not check access".into(),
        };
    }
    let policies = server.store.newest(POLICY);
    server.decisions.get(policies, user, attributes, || {
        with_policy(server, |policy| rbac::allowed(user, attributes, policy))
    })
}

/// Gives the rules of a user in a namespace to `use_rules`.
pub(crate) fn with_rules<T>(
    server: &Server,
    user: &User,
    namespace: &str,
    use_rules: impl FnOnce(Granted<'_>) -> T,
) -> T {
    with_policy(server, |policy| {
        use_rules(rbac::granted(subject(user), namespace, policy))
    })
}

fn with_policy<T>(server: &Server, use_policy: impl FnOnce(&Policy<'_>) -> T) -> T {
    let stored: [Vec<Arc<Stored>>; 4] = POLICY.map(|table| server.store.list(table, None).objects);
    let [roles, cluster_roles, role_bindings, cluster_role_bindings] = stored
        .each_ref()
        .map(|l| l.iter().map(|o| &o.value).collect::<Vec<&Value>>());
    let policy = Policy {
        roles: &roles,
        cluster_roles: &cluster_roles,
        role_bindings: &role_bindings,
        cluster_role_bindings: &cluster_role_bindings,
    };
    use_policy(&policy)
}

/// Checks a request for a resource.
pub(crate) fn authorize(
    server: &Server,
    user: &User,
    verb: &str,
    target: &Target,
) -> ApiResult<()> {
    // A Namespace object counts as lying in itself, so that a Role in it can allow it.
    let itself = target.group.is_empty() && target.resource == "namespaces";
    let namespace = if itself {
        &target.name
    } else {
        &target.namespace
    };
    check(
        server,
        user,
        &Attributes {
            verb: verb.into(),
            group: target.group.clone(),
            resource: target.resource.clone(),
            subresource: target.subresource.clone(),
            namespace: namespace.clone(),
            name: target.name.clone(),
            path: String::new(),
        },
    )
}

/// Checks a request for a path that is not a resource.
pub(crate) fn authorize_path(server: &Server, user: &User, parts: &Parts) -> ApiResult<()> {
    let verb = parts.method.as_str().to_ascii_lowercase();
    check(
        server,
        user,
        &Attributes {
            verb,
            path: parts.uri.path().into(),
            ..Attributes::default()
        },
    )
}

fn check(server: &Server, user: &User, attributes: &Attributes) -> ApiResult<()> {
    if !server.rbac || user.is_master() {
        return Ok(());
    }
    let decision = decide(server, subject(user), attributes);
    if decision.allowed {
        return Ok(());
    }
    let message = rbac::forbidden_message(&user.name, attributes, &decision.reason);
    Err(ApiError::denied(
        message,
        &attributes.group,
        &attributes.resource,
        &attributes.name,
    ))
}

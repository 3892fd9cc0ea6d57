//! Who is asking: bearer tokens to users.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// Members may do anything.
pub(crate) const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub name: String,
    pub groups: Vec<String>,
    /// uid of the ServiceAccount behind a ServiceAccount token.
    pub uid: String,
}

impl User {
    pub fn anonymous() -> Self {
        Self {
            name: "system:anonymous".into(),
            groups: vec!["system:unauthenticated".into()],
            uid: String::new(),
        }
    }

    /// Nobody in particular, with these groups and, unless one of them says whether somebody was
    /// authenticated, `system:unauthenticated`.
    pub fn unknown(groups: &[&str]) -> Self {
        let mut user = Self::anonymous();
        let says = |g: &&str| *g == AUTHENTICATED || user.groups.iter().any(|own| own == g);
        if groups.iter().any(says) {
            user.groups.clear();
        }
        let given = groups.iter().map(|g| (*g).to_owned());
        user.groups.splice(0..0, given);
        user
    }

    /// A user with these groups and `system:authenticated`.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(|g| (*g).to_owned()).collect();
        if !groups.iter().any(|g| g == AUTHENTICATED) {
            groups.push(AUTHENTICATED.into());
        }
        Self {
            name: name.into(),
            groups,
            uid: String::new(),
        }
    }

    /// The user behind a ServiceAccount.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let group = format!("system:serviceaccounts:{namespace}");
        let mut user = Self::new(
            &format!("system:serviceaccount:{namespace}:{name}"),
            &["system:serviceaccounts", &group],
        );
        user.uid = uid.into();
        user
    }

    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|g| g == MASTERS)
    }
}

/// What stands behind a token.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub user: User,
    /// Unix seconds.
    pub expires: Option<i64>,
    /// For ServiceAccount tokens: namespace and name of an account that must still exist with the user's uid.
    pub account: Option<(String, String)>,
    /// Audiences the token was asked for.
    pub audiences: Vec<String>,
}

/// All issued tokens.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<BTreeMap<String, Grant>>);

impl Tokens {
    fn grants(&self) -> MutexGuard<'_, BTreeMap<String, Grant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, token: String, grant: Grant) {
        self.grants().insert(token, grant);
    }

    /// Forgets the tokens that nobody can use any more. `now`: seconds since 1970.
    pub fn drop_expired(&self, now: i64) {
        let lasts = |grant: &Grant| grant.expires.is_none_or(|end| end > now);
        self.grants().retain(|_, grant| lasts(grant));
    }

    pub fn get(&self, token: &str) -> Option<Grant> {
        self.grants().get(token).cloned()
    }
}

/// The bearer token of a request; `fallback` when it has no Authorization header. 401 for other schemes.
pub(crate) fn bearer(headers: &HeaderMap, fallback: Option<&str>) -> Option<String> {
    let Some(value) = headers.get(AUTHORIZATION) else {
        return fallback.map(str::to_owned);
    };
    // Other schemes are nobody's credentials here.
    let (scheme, token) = value.to_str().unwrap_or_default().split_once(' ')?;
    let token = scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim().to_owned());
    token.filter(|t| !t.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_are_over_are_forgotten_and_others_are_not() {
        let tokens = Tokens::default();
        for (token, expires) in [
            ("over", Some(9)),
            ("ends", Some(10)),
            ("lasts", Some(11)),
            ("stays", None),
        ] {
            let grant = Grant {
                user: User::service_account("n", "a", "u"),
                expires,
                account: None,
                audiences: Vec::new(),
            };
            tokens.insert(token.to_owned(), grant);
        }
        tokens.drop_expired(10);
        let left: Vec<String> = tokens.grants().keys().cloned().collect();
        assert_eq!(left, ["lasts", "stays"]);
    }
}

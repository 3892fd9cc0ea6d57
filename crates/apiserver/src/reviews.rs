//! The review APIs: questions about access and identity that are asked by creating an object and
//! answered in its status. Nothing is stored.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::error::{ApiError, ApiResult};
use crate::rbac::{Attributes, Decision, Granted, User};
use crate::schema::FieldError;

/// An authenticated user as the review APIs show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user name.
    pub username: String,
    /// The uid, or "".
    pub uid: String,
    /// All groups.
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("username".into(), self.username.clone().into());
        if !self.uid.is_empty() {
            object.insert("uid".into(), self.uid.clone().into());
        }
        if !self.groups.is_empty() {
            object.insert("groups".into(), json!(self.groups));
        }
        if !self.extra.is_empty() {
            object.insert("extra".into(), json!(self.extra));
        }
        Value::Object(object)
    }
}

/// Answers a SelfSubjectAccessReview, SubjectAccessReview or LocalSubjectAccessReview: the kind is
/// taken from the object. `namespace` is the one of the URL, "" for the other two kinds. The error
/// says what is wrong with the request (422).
pub fn access_review(
    mut object: Value,
    asker: User<'_>,
    namespace: &str,
    decide: impl Fn(User<'_>, &Attributes) -> Decision,
) -> ApiResult<Value> {
    let kind = text(&object, "kind").to_owned();
    let local = kind == "LocalSubjectAccessReview";
    let mut metadata = object.get("metadata").cloned().unwrap_or_default();
    if let Some(map) = metadata.as_object_mut() {
        map.retain(|name, _| !(name == "managedFields" || (local && name == "namespace")));
        if !map.is_empty() {
            return Err(invalid(
                "metadata",
                object["metadata"].clone(),
                "must be empty",
            ));
        }
    }
    let spec = object.get("spec").cloned().unwrap_or_default();
    let name = text(&spec, "user");
    let groups: Vec<String> = strings(&spec, "groups");
    let nobody = kind != "SelfSubjectAccessReview" && name.is_empty() && groups.is_empty();
    let whom = || {
        let why = "at least one of user or group must be specified";
        FieldError::invalid("spec.user", json!(""), why)
    };
    let attrs = match attributes(&spec) {
        Ok(attrs) => attrs,
        Err(error) => {
            let mut errors = vec![error];
            errors.extend(nobody.then(whom));
            return Err(ApiError::invalid_reviews(
                "authorization.k8s.io",
                "",
                &errors,
            ));
        }
    };
    if kind == "LocalSubjectAccessReview" {
        if attrs.resource.is_empty() {
            let why = "disallowed on this kind of request";
            return Err(invalid("spec.nonResourceAttributes", Value::Null, why));
        }
        if attrs.namespace != namespace {
            let why = "must match metadata.namespace";
            let value = json!(attrs.namespace);
            return Err(invalid("spec.resourceAttributes.namespace", value, why));
        }
    }
    let decision = if kind == "SelfSubjectAccessReview" {
        decide(asker, &attrs)
    } else {
        if nobody {
            return Err(ApiError::invalid_review("authorization.k8s.io", "", whom()));
        }
        decide(
            User {
                name,
                groups: &groups,
            },
            &attrs,
        )
    };
    let mut status = Map::new();
    status.insert("allowed".into(), decision.allowed.into());
    if !decision.reason.is_empty() {
        status.insert("reason".into(), decision.reason.into());
    }
    set_status(&mut object, Value::Object(status));
    Ok(object)
}

fn invalid(field: &str, value: Value, why: &str) -> ApiError {
    ApiError::invalid_review(
        "authorization.k8s.io",
        "",
        FieldError::invalid(field, value, why),
    )
}

fn attributes(spec: &Value) -> Result<Attributes, FieldError> {
    let given = |key: &str| spec.get(key).filter(|v| v.is_object());
    match (given("resourceAttributes"), given("nonResourceAttributes")) {
        (Some(_), Some(_)) => {
            let why = "cannot be specified in combination with resourceAttributes";
            let value = spec["nonResourceAttributes"].clone();
            Err(FieldError::invalid(
                "spec.nonResourceAttributes",
                value,
                why,
            ))
        }
        (None, None) => {
            let why =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            Err(FieldError::invalid(
                "spec.resourceAttributes",
                Value::Null,
                why,
            ))
        }
        (Some(r), None) => Ok(Attributes {
            verb: text(r, "verb").into(),
            group: text(r, "group").into(),
            resource: text(r, "resource").into(),
            subresource: text(r, "subresource").into(),
            namespace: text(r, "namespace").into(),
            name: text(r, "name").into(),
            path: String::new(),
        }),
        (None, Some(n)) => Ok(Attributes {
            verb: text(n, "verb").into(),
            path: text(n, "path").into(),
            ..Attributes::default()
        }),
    }
}

/// Answers a SelfSubjectRulesReview. `granted` gives the asker's rules in a namespace.
pub fn rules_review<'a>(
    mut object: Value,
    granted: impl Fn(&str) -> Granted<'a>,
) -> ApiResult<Value> {
    let namespace = object
        .pointer("/spec/namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let granted = granted(namespace);
    let (mut resources, mut urls) = (Vec::new(), Vec::new());
    for (rule, _) in &granted.rules {
        let pick = |keys: &[&str]| -> Value {
            let fields = keys.iter().filter_map(|k| {
                let list = rule.get(*k)?.as_array().filter(|l| !l.is_empty())?;
                Some(((*k).to_owned(), Value::Array(list.clone())))
            });
            Value::Object(fields.collect())
        };
        if !strings(rule, "resources").is_empty() {
            resources.push(pick(&["verbs", "apiGroups", "resources", "resourceNames"]));
        }
        if !strings(rule, "nonResourceURLs").is_empty() {
            urls.push(pick(&["verbs", "nonResourceURLs"]));
        }
    }
    let mut status =
        json!({"resourceRules": resources, "nonResourceRules": urls, "incomplete": false});
    if !granted.errors.is_empty() {
        status["evaluationError"] = granted.errors.join(", ").into();
    }
    set_status(&mut object, status);
    object["spec"] = json!({});
    Ok(object)
}

/// Answers a SelfSubjectReview: who the asker is.
pub fn self_review(mut object: Value, asker: &Identity) -> Value {
    set_status(&mut object, json!({"userInfo": asker.to_json()}));
    object
}

/// Answers a TokenReview. `lookup` takes the token and the audiences that the reviewer accepts
/// (none means the API server's own) and gives the token's user and the audiences that match, or
/// why the token is not valid.
pub fn token_review(
    mut object: Value,
    lookup: impl Fn(&str, &[String]) -> Result<(Identity, Vec<String>), String>,
) -> ApiResult<Value> {
    let spec = object.get("spec").cloned().unwrap_or_default();
    let token = text(&spec, "token");
    if token.is_empty() {
        return Err(ApiError::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let status = match lookup(token, &strings(&spec, "audiences")) {
        Ok((identity, audiences)) => {
            let mut status = json!({"authenticated": true, "user": identity.to_json()});
            if !audiences.is_empty() {
                status["audiences"] = json!(audiences);
            }
            status
        }
        Err(error) => json!({"user": {}, "error": error}),
    };
    set_status(&mut object, status);
    Ok(object)
}

fn set_status(object: &mut Value, status: Value) {
    if let Some(map) = object.as_object_mut() {
        let metadata = map.entry("metadata").or_insert_with(|| json!({}));
        if let Some(metadata) = metadata.as_object_mut() {
            // Clients that encode a zero time send null.
            metadata.retain(|_, v| !v.is_null());
        }
        map.insert("status".into(), status);
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn strings(value: &Value, key: &str) -> Vec<String> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::rbac::{self, Policy};

    use super::*;

    fn no_one() -> User<'static> {
        User {
            name: "me",
            groups: &[],
        }
    }

    /// Allows exactly what `expected` lists: user, verb and resource.
    fn only(
        user: &'static str,
        verb: &'static str,
        resource: &'static str,
    ) -> impl Fn(User<'_>, &Attributes) -> Decision {
        move |u, a| {
            let allowed =
                u.name == user && a.verb == verb && (a.resource == resource || a.path == resource);
            Decision {
                allowed,
                reason: if allowed {
                    "rule".into()
                } else {
                    String::new()
                },
            }
        }
    }

    #[test]
    fn a_self_review_asks_for_the_asker() {
        let ask = |verb: &str| json!({"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"verb": verb, "resource": "pods", "namespace": "n"}}});
        let yes = access_review(ask("list"), no_one(), "", only("me", "list", "pods")).unwrap();
        assert_eq!(yes["status"], json!({"allowed": true, "reason": "rule"}));
        let no = access_review(ask("get"), no_one(), "", only("me", "list", "pods")).unwrap();
        assert_eq!(no["status"], json!({"allowed": false}));
    }

    #[test]
    fn a_subject_review_asks_for_the_named_user() {
        let ask = json!({"kind": "SubjectAccessReview", "spec": {"user": "you", "nonResourceAttributes": {"verb": "get", "path": "/x"}}});
        let yes = access_review(ask, no_one(), "", only("you", "get", "/x")).unwrap();
        assert_eq!(yes["status"]["allowed"], true);
        let nobody = json!({"kind": "SubjectAccessReview", "spec": {"nonResourceAttributes": {"verb": "get", "path": "/x"}}});
        assert!(
            access_review(nobody, no_one(), "", only("you", "get", "/x"))
                .unwrap_err()
                .message()
                .contains("user or group")
        );
    }

    #[test]
    fn a_local_review_stays_in_its_namespace() {
        let ask = json!({"kind": "LocalSubjectAccessReview", "spec": {"user": "you", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "a"}}});
        assert!(access_review(ask.clone(), no_one(), "a", only("you", "get", "pods")).is_ok());
        assert!(access_review(ask, no_one(), "b", only("you", "get", "pods")).is_err());
        let path = json!({"kind": "LocalSubjectAccessReview", "spec": {"user": "you", "nonResourceAttributes": {"verb": "get", "path": "/"}}});
        assert!(access_review(path, no_one(), "a", only("you", "get", "/")).is_err());
    }

    #[test]
    fn exactly_one_question_is_asked() {
        for spec in [
            json!({}),
            json!({"resourceAttributes": {}, "nonResourceAttributes": {}}),
        ] {
            let ask = json!({"kind": "SelfSubjectAccessReview", "spec": spec});
            assert!(access_review(ask, no_one(), "", only("me", "get", "")).is_err());
        }
    }

    #[test]
    fn a_rules_review_lists_both_kinds_of_rules() {
        let groups = ["system:authenticated".to_owned()];
        let role = json!({"metadata": {"name": "r"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]}]});
        let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "User", "name": "me"}]});
        let (roles, bindings) = ([&role], [&binding]);
        let policy = Policy {
            cluster_roles: &roles,
            cluster_role_bindings: &bindings,
            ..Policy::default()
        };
        let ask = json!({"kind": "SelfSubjectRulesReview", "spec": {"namespace": "n"}});
        let answer = rules_review(ask, |ns| {
            rbac::granted(
                User {
                    name: "me",
                    groups: &groups,
                },
                ns,
                &policy,
            )
        })
        .unwrap();
        let status = &answer["status"];
        let resources = status["resourceRules"].as_array().unwrap();
        assert!(resources.contains(&json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x"]})));
        assert!(status["nonResourceRules"].to_string().contains("/healthz"));
        assert_eq!(status["incomplete"], false);
        assert!(rules_review(json!({"spec": {}}), |_| Granted::default()).is_err());
    }

    #[test]
    fn identities_are_shown() {
        let me = Identity {
            username: "me".into(),
            groups: vec!["g".into()],
            ..Identity::default()
        };
        let answer = self_review(
            json!({"kind": "SelfSubjectReview", "metadata": {"creationTimestamp": null}}),
            &me,
        );
        assert_eq!(
            answer,
            json!({"kind": "SelfSubjectReview", "metadata": {}, "status": {"userInfo": {"username": "me", "groups": ["g"]}}})
        );
        let lookup = |token: &str, audiences: &[String]| match token {
            "good" => Ok((me.clone(), audiences.to_vec())),
            _ => Err("invalid bearer token".to_owned()),
        };
        let good = token_review(
            json!({"spec": {"token": "good", "audiences": ["a"]}}),
            lookup,
        )
        .unwrap();
        assert_eq!(
            good["status"],
            json!({"authenticated": true, "user": {"username": "me", "groups": ["g"]}, "audiences": ["a"]})
        );
        let bad = token_review(json!({"spec": {"token": "bad"}}), lookup).unwrap();
        assert_eq!(
            bad["status"],
            json!({"user": {}, "error": "invalid bearer token"})
        );
        assert!(token_review(json!({"spec": {}}), lookup).is_err());
    }
}

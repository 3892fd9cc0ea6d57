//! The configurations themselves: what the API server fills in, and what it refuses.
//!
//! Rules and texts: kubernetes/kubernetes, `pkg/apis/admissionregistration`.

use std::collections::BTreeSet;

use http::Uri;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Map, Value, json};

use super::conditions;
use crate::names::{name_problem, qualified_problem};
use crate::registry::NameRule;
use crate::schema::{FieldError, FieldErrorKind};

const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const ANY_SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
/// Most match conditions of one webhook.
const MAX_CONDITIONS: usize = 64;

fn webhooks(configuration: &Value) -> &[Value] {
    list(configuration, "webhooks")
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    let list = value.get(field).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or("")
}

fn present<'a>(value: &'a Value, field: &str) -> Option<&'a Value> {
    value.get(field).filter(|v| !v.is_null())
}

/// Fills in what a configuration leaves out.
pub(crate) fn defaults(kind: &str, configuration: &mut Value) {
    let hooks = configuration
        .get_mut("webhooks")
        .and_then(Value::as_array_mut);
    for hook in hooks.into_iter().flatten().filter_map(Value::as_object_mut) {
        fallback(hook, "failurePolicy", json!("Fail"));
        fallback(hook, "matchPolicy", json!("Equivalent"));
        fallback(hook, "namespaceSelector", json!({}));
        fallback(hook, "objectSelector", json!({}));
        fallback(hook, "timeoutSeconds", json!(10));
        if kind == "MutatingWebhookConfiguration" {
            fallback(hook, "reinvocationPolicy", json!("Never"));
        }
        let rules = hook.get_mut("rules").and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten().filter_map(Value::as_object_mut) {
            fallback(rule, "scope", json!("*"));
        }
        let client = hook.get_mut("clientConfig").and_then(Value::as_object_mut);
        if let Some(service) = client
            .and_then(|c| c.get_mut("service"))
            .and_then(Value::as_object_mut)
        {
            fallback(service, "port", json!(443));
        }
    }
}

fn fallback(map: &mut Map<String, Value>, field: &str, value: Value) {
    let slot = map.entry(field).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value;
    }
}

/// Checks a configuration. What the old one broke already may stay broken.
pub(crate) fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let all_old =
        |keeps: &dyn Fn(&Value) -> bool| old.is_none_or(|o| webhooks(o).iter().all(keeps));
    let known = |h: &Value| {
        let versions = list(h, "admissionReviewVersions");
        versions.is_empty() || versions.iter().any(known_version)
    };
    let strict = Strict {
        side_effects: all_old(&|h| NO_SIDE_EFFECTS.contains(&text(h, "sideEffects"))),
        known_version: all_old(&known),
        unique_names: old.is_none_or(|o| unique(webhooks(o))),
        conditions: old.is_none_or(|o| {
            let conditions = |c| {
                webhooks(c)
                    .iter()
                    .map(|h| list(h, "matchConditions").to_vec())
                    .collect::<Vec<_>>()
            };
            conditions(o) != conditions(new)
        }),
    };
    let mut names = BTreeSet::new();
    for (i, hook) in webhooks(new).iter().enumerate() {
        let path = format!("webhooks[{i}]");
        webhook(&path, hook, &strict, &mut errors);
        review_versions(&path, hook, strict.known_version, &mut errors);
        let name = text(hook, "name");
        if strict.unique_names && !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), json!(name)));
        }
    }
    errors
}

/// Rules that hold unless the configuration broke them before.
struct Strict {
    side_effects: bool,
    known_version: bool,
    unique_names: bool,
    conditions: bool,
}

fn unique(hooks: &[Value]) -> bool {
    let mut names = BTreeSet::new();
    hooks.iter().all(|h| names.insert(text(h, "name")))
}

fn known_version(version: &Value) -> bool {
    version
        .as_str()
        .is_some_and(|v| REVIEW_VERSIONS.contains(&v))
}

fn webhook(path: &str, hook: &Value, strict: &Strict, errors: &mut Vec<FieldError>) {
    fully_qualified(&format!("{path}.name"), text(hook, "name"), errors);
    for (i, rule) in list(hook, "rules").iter().enumerate() {
        self::rule(&format!("{path}.rules[{i}]"), rule, errors);
    }
    one_of(path, hook, "failurePolicy", &["Fail", "Ignore"], errors);
    one_of(path, hook, "matchPolicy", &["Equivalent", "Exact"], errors);
    let effects: &[&str] = if strict.side_effects {
        &NO_SIDE_EFFECTS
    } else {
        &ANY_SIDE_EFFECTS
    };
    if present(hook, "sideEffects").is_none() {
        let detail = format!("must specify one of {}", effects.join(", "));
        errors.push(FieldError::required(format!("{path}.sideEffects"), detail));
    }
    one_of(path, hook, "sideEffects", effects, errors);
    if let Some(seconds) = hook.get("timeoutSeconds").and_then(Value::as_i64)
        && !(1..=30).contains(&seconds)
    {
        errors.push(FieldError::invalid(
            format!("{path}.timeoutSeconds"),
            json!(seconds),
            "the timeout value must be between 1 and 30 seconds",
        ));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        if let Some(selector) = present(hook, field) {
            label_selector(&format!("{path}.{field}"), selector, errors);
        }
    }
    one_of(
        path,
        hook,
        "reinvocationPolicy",
        &["IfNeeded", "Never"],
        errors,
    );
    client(
        &format!("{path}.clientConfig"),
        &hook["clientConfig"],
        errors,
    );
    if strict.conditions {
        match_conditions(
            &format!("{path}.matchConditions"),
            list(hook, "matchConditions"),
            errors,
        );
    }
}

fn fully_qualified(path: &str, name: &str, errors: &mut Vec<FieldError>) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if let Some(problem) = name_problem(NameRule::Subdomain, name) {
        errors.push(FieldError::invalid(path, json!(name), problem));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        errors.push(FieldError::invalid(path, json!(name), detail));
    }
}

fn one_of(
    path: &str,
    value: &Value,
    field: &str,
    supported: &[&str],
    errors: &mut Vec<FieldError>,
) {
    if let Some(given) = present(value, field)
        && !given.as_str().is_some_and(|g| supported.contains(&g))
    {
        let supported: Vec<String> = supported.iter().map(|s| (*s).to_owned()).collect();
        errors.push(FieldError::not_supported(
            format!("{path}.{field}"),
            given.clone(),
            &supported,
        ));
    }
}

fn rule(path: &str, rule: &Value, errors: &mut Vec<FieldError>) {
    let wild = |field: &str| list(rule, field).iter().any(|v| v == "*");
    let several = |field: &str, what: &str, errors: &mut Vec<FieldError>| {
        if list(rule, field).is_empty() {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
        if list(rule, field).len() > 1 && wild(field) {
            let detail = format!("if '*' is present, must not specify other {what}");
            errors.push(FieldError::invalid(
                format!("{path}.{field}"),
                rule[field].clone(),
                detail,
            ));
        }
    };
    several("operations", "operations", errors);
    let operations = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for (i, operation) in list(rule, "operations").iter().enumerate() {
        if !operation.as_str().is_some_and(|o| operations.contains(&o)) {
            let path = format!("{path}.operations[{i}]");
            errors.push(FieldError::not_supported(
                path,
                operation.clone(),
                &operations.map(str::to_owned),
            ));
        }
    }
    several("apiGroups", "API groups", errors);
    several("apiVersions", "API versions", errors);
    for (i, version) in list(rule, "apiVersions").iter().enumerate() {
        if version == "" {
            errors.push(FieldError::required(format!("{path}.apiVersions[{i}]"), ""));
        }
    }
    resources(
        &format!("{path}.resources"),
        list(rule, "resources"),
        errors,
    );
    one_of(path, rule, "scope", &["*", "Cluster", "Namespaced"], errors);
}

fn resources(path: &str, resources: &[Value], errors: &mut Vec<FieldError>) {
    if resources.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut any_sub, mut any_resource) = (BTreeSet::new(), BTreeSet::new());
    let (mut all, mut star, mut plain) = (false, false, false);
    for (i, word) in resources.iter().enumerate() {
        let word = word.as_str().unwrap_or("");
        let here = format!("{path}[{i}]");
        if word.is_empty() {
            errors.push(FieldError::required(here, ""));
            continue;
        }
        all |= word == "*/*";
        star |= word == "*";
        let Some((resource, sub)) = word.split_once('/') else {
            plain = word != "*";
            continue;
        };
        if any_sub.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {word}");
            errors.push(FieldError::invalid(&here, json!(word), detail));
        }
        if any_resource.contains(sub) {
            let detail = format!("if '*/{sub}' is present, must not specify {word}");
            errors.push(FieldError::invalid(&here, json!(word), detail));
        }
        if sub == "*" {
            any_sub.insert(resource);
        }
        if resource == "*" {
            any_resource.insert(sub);
        }
    }
    if all && resources.len() > 1 {
        let detail = "if '*/*' is present, must not specify other resources";
        errors.push(FieldError::invalid(path, json!(resources), detail));
    }
    if star && plain {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, json!(resources), detail));
    }
}

fn review_versions(path: &str, hook: &Value, strict: bool, errors: &mut Vec<FieldError>) {
    let path = format!("{path}.admissionReviewVersions");
    let versions = list(hook, "admissionReviewVersions");
    let known = REVIEW_VERSIONS.join(", ");
    if versions.is_empty() {
        errors.push(FieldError::required(
            path,
            format!("must specify one of {known}"),
        ));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, version) in versions.iter().enumerate() {
        let name = version.as_str().unwrap_or("");
        let here = format!("{path}[{i}]");
        if !seen.insert(name) {
            errors.push(FieldError::invalid(
                here,
                version.clone(),
                "duplicate version",
            ));
        } else if let Some(problem) = name_problem(NameRule::Label1035, name) {
            errors.push(FieldError::invalid(here, version.clone(), problem));
        }
    }
    if strict && !versions.iter().any(known_version) {
        let detail = format!("must include at least one of {known}");
        errors.push(FieldError::invalid(path, json!(versions), detail));
    }
}

/// The rules of a `clientConfig`, of an admission webhook or of a conversion webhook.
pub(crate) fn client(path: &str, client: &Value, errors: &mut Vec<FieldError>) {
    match (present(client, "url"), present(client, "service")) {
        (Some(given), None) => url(&format!("{path}.url"), given.as_str().unwrap_or(""), errors),
        (None, Some(given)) => service(&format!("{path}.service"), given, errors),
        _ => errors.push(FieldError::required(
            path,
            "exactly one of url or service is required",
        )),
    }
}

/// The `caBundle` of a client, if it has one, holds certificates.
pub(crate) fn certificates(path: &str, client: &Value, errors: &mut Vec<FieldError>) {
    let bundle = text(client, "caBundle");
    if bundle.is_empty() {
        return;
    }
    let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, bundle);
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(&bytes.unwrap_or_default()).collect();
    let why = match found {
        Ok(found) if !found.is_empty() => return,
        Ok(_) => "data does not contain any valid RSA or ECDSA certificates".to_owned(),
        Err(error) => error.to_string(),
    };
    errors.push(FieldError::invalid(
        format!("{path}.caBundle"),
        json!(bundle),
        format!("unable to load root certificates: {why}"),
    ));
}

fn url(path: &str, given: &str, errors: &mut Vec<FieldError>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (rest, fragment) = given.split_once('#').unwrap_or((given, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (scheme, rest) = rest.split_once("://").unwrap_or(("", rest));
    let authority = if scheme.is_empty() {
        ""
    } else {
        rest.split('/').next().unwrap_or("")
    };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(FieldError::invalid(path, json!(scheme), detail));
    }
    if host.is_empty() {
        errors.push(FieldError::invalid(
            path,
            json!(host),
            format!("host must be provided{FORM}"),
        ));
    } else if given.parse::<Uri>().is_err() {
        errors.push(FieldError::required(
            path,
            format!("url must be a valid URL: {given}{FORM}"),
        ));
    }
    let refused = [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ];
    for (part, detail) in refused {
        if !part.is_empty() {
            errors.push(FieldError::invalid(path, json!(part), detail));
        }
    }
}

fn service(path: &str, service: &Value, errors: &mut Vec<FieldError>) {
    for field in ["name", "namespace"] {
        if text(service, field).is_empty() {
            let detail = format!("service {field} is required");
            errors.push(FieldError::required(format!("{path}.{field}"), detail));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
    if !(1..=65535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(
            format!("{path}.port"),
            json!(port),
            detail,
        ));
    }
    let given = text(service, "path");
    let path = format!("{path}.path");
    if matches!(given, "" | "/") {
        return;
    }
    if given == "//" {
        errors.push(FieldError::invalid(
            path,
            json!(given),
            "segment[0] may not be empty",
        ));
        return;
    }
    if !given.starts_with('/') {
        errors.push(FieldError::invalid(
            &path,
            json!(given),
            "must start with a '/'",
        ));
    }
    // The first letter is passed over, whatever it is.
    let inner = given.get(1..).unwrap_or_default();
    for (i, segment) in inner
        .strip_suffix('/')
        .unwrap_or(inner)
        .split('/')
        .enumerate()
    {
        let problem = if segment.is_empty() {
            Some(format!("segment[{i}] may not be empty"))
        } else {
            name_problem(NameRule::Subdomain, segment).map(|p| format!("segment[{i}]: {p}"))
        };
        if let Some(detail) = problem {
            errors.push(FieldError::invalid(&path, json!(given), detail));
        }
    }
}

fn label_selector(path: &str, selector: &Value, errors: &mut Vec<FieldError>) {
    for key in selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::keys)
    {
        if let Some(problem) = qualified_problem(key) {
            errors.push(FieldError::invalid(
                format!("{path}.matchLabels"),
                json!(key),
                problem,
            ));
        }
    }
    for (i, expression) in list(selector, "matchExpressions").iter().enumerate() {
        let here = format!("{path}.matchExpressions[{i}]");
        let values = list(expression, "values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
                format!("{here}.values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(FieldError::forbidden(
                format!("{here}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.push(FieldError::invalid(
                format!("{here}.operator"),
                json!(other),
                "not a valid selector operator",
            )),
        }
        let key = text(expression, "key");
        if let Some(problem) = qualified_problem(key) {
            errors.push(FieldError::invalid(
                format!("{here}.key"),
                json!(key),
                problem,
            ));
        }
    }
}

fn match_conditions(path: &str, given: &[Value], errors: &mut Vec<FieldError>) {
    if given.len() > MAX_CONDITIONS {
        errors.push(FieldError::too_many(
            path,
            given.len() as u64,
            MAX_CONDITIONS as u64,
        ));
    }
    let mut names = BTreeSet::new();
    for (i, condition) in given.iter().enumerate() {
        let here = format!("{path}[{i}]");
        let (name, expression) = (text(condition, "name"), text(condition, "expression"));
        if expression.trim().is_empty() {
            errors.push(FieldError::required(format!("{here}.expression"), ""));
        } else if let Some(problem) = conditions::problem(expression) {
            errors.push(FieldError::new(
                format!("{here}.expression"),
                FieldErrorKind::Invalid,
                Some(json!(expression)),
                problem,
            ));
        }
        if name.is_empty() {
            errors.push(FieldError::required(format!("{here}.name"), ""));
        } else {
            if let Some(problem) = qualified_problem(name) {
                errors.push(FieldError::invalid(
                    format!("{here}.name"),
                    json!(name),
                    problem,
                ));
            }
            if !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{here}.name"), json!(name)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Value {
        json!({
            "name": "a.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": "ns", "name": "svc"}},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        })
    }

    fn problems(change: Value) -> String {
        let mut hook = good();
        crate::patch::merge(&mut hook, &change);
        let errors = validate(&json!({"webhooks": [hook]}), None);
        let messages: Vec<String> = errors.iter().map(FieldError::message).collect();
        messages.join("; ")
    }

    #[test]
    fn a_configuration_is_filled_in() {
        let mut config = json!({"webhooks": [good()]});
        defaults("MutatingWebhookConfiguration", &mut config);
        let hook = &config["webhooks"][0];
        let expected = json!({
            "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
            "timeoutSeconds": 10, "reinvocationPolicy": "Never",
        });
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&hook[field], value, "{field}");
        }
        assert_eq!(hook["rules"][0]["scope"], "*");
        assert_eq!(hook["clientConfig"]["service"]["port"], 443);
        assert!(validate(&config, None).is_empty());
    }

    #[test]
    fn a_wrong_configuration_is_refused_in_the_words_of_kubernetes() {
        let cases = [
            (
                json!({"name": "short"}),
                "webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
            ),
            (
                json!({"sideEffects": null}),
                "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
            ),
            (
                json!({"sideEffects": "Some"}),
                "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
            ),
            (
                json!({"admissionReviewVersions": null}),
                "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1",
            ),
            (
                json!({"admissionReviewVersions": ["v7"]}),
                "webhooks[0].admissionReviewVersions: Invalid value: [\"v7\"]: must include at least one of v1, v1beta1",
            ),
            (
                json!({"timeoutSeconds": 31}),
                "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
            ),
            (
                json!({"clientConfig": {"url": "https://a"}}),
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
            ),
            (
                json!({"clientConfig": {"service": null, "url": "http://a"}}),
                "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
            ),
            (
                json!({"clientConfig": {"service": {"path": "x"}}}),
                "webhooks[0].clientConfig.service.path: Invalid value: \"x\": must start with a '/'",
            ),
            (
                json!({"failurePolicy": "Maybe"}),
                "webhooks[0].failurePolicy: Unsupported value: \"Maybe\": supported values: \"Fail\", \"Ignore\"",
            ),
            (
                json!({"matchConditions": [{"name": "c", "expression": "object.x =="}]}),
                "webhooks[0].matchConditions[0].expression: Invalid value: \"object.x ==\": compilation failed: ",
            ),
        ];
        for (change, expected) in cases {
            let found = problems(change.clone());
            assert!(found.starts_with(expected), "{change}: {found}");
        }
        let mut hook = good();
        hook["rules"][0]["operations"] = json!(["GET"]);
        hook["rules"][0]["resources"] = json!(["*/*", "pods"]);
        let errors = validate(&json!({"webhooks": [hook, good()]}), None);
        let messages: Vec<String> = errors.iter().map(FieldError::message).collect();
        assert_eq!(
            messages,
            [
                "webhooks[0].rules[0].operations[0]: Unsupported value: \"GET\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"DELETE\", \"UPDATE\"",
                "webhooks[0].rules[0].resources: Invalid value: [\"*/*\",\"pods\"]: if '*/*' is present, must not specify other resources",
                "webhooks[1].name: Duplicate value: \"a.example.com\"",
            ]
        );
    }

    #[test]
    fn what_was_wrong_before_may_stay_wrong() {
        let mut hook = good();
        hook["sideEffects"] = json!("Unknown");
        let config = json!({"webhooks": [hook]});
        assert!(!validate(&config, None).is_empty());
        assert!(validate(&config, Some(&config)).is_empty());
    }
}

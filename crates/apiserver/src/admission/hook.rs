//! Webhooks as the stored configurations describe them, and whether one is meant by a request.

use std::time::Duration;

use serde_json::Value;

use super::{Attributes, Operation, conditions};
use crate::error::{ApiError, ApiResult};
use crate::meta;
use crate::selector::Labels;
use crate::server::Server;
use crate::store::{Key, NAMESPACES};

const MUTATING: &str = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
const VALIDATING: &str = "validatingwebhookconfigurations.admissionregistration.k8s.io";

/// One entry of `webhooks`.
pub(super) struct Hook {
    pub name: String,
    /// `clientConfig`
    pub client: Value,
    pub timeout: Duration,
    /// `failurePolicy: Ignore`
    pub ignore: bool,
    /// `reinvocationPolicy: IfNeeded`
    pub reinvoke: bool,
    /// Whether it may be called for a dry run.
    pub dry_run: bool,
    equivalent: bool,
    review_versions: Vec<String>,
    rules: Vec<Value>,
    namespaces: Result<Labels, String>,
    objects: Result<Labels, String>,
    conditions: Vec<Value>,
}

/// The face of the resource a webhook is called with; `None` where it is the one of the request.
#[derive(Debug, Default)]
pub(super) struct Invocation {
    pub group: Option<String>,
    pub version: Option<String>,
}

/// Whether there is any configuration at all.
pub(super) fn any(server: &Server) -> bool {
    [MUTATING, VALIDATING]
        .iter()
        .any(|table| !server.store.is_empty(table))
}

/// The mutating webhooks in the order they are called: by configuration name, then as listed.
pub(super) fn mutating(server: &Server) -> Vec<Hook> {
    hooks(server, MUTATING)
}

/// The validating webhooks, in the same order.
pub(super) fn validating(server: &Server) -> Vec<Hook> {
    hooks(server, VALIDATING)
}

fn hooks(server: &Server, table: &str) -> Vec<Hook> {
    let mut hooks = Vec::new();
    for stored in server.store.list(table, None).objects {
        let webhooks = stored.value.get("webhooks").and_then(Value::as_array);
        hooks.extend(webhooks.into_iter().flatten().map(Hook::read));
    }
    hooks
}

fn list(value: &Value, field: &str) -> Vec<Value> {
    let list = value.get(field).and_then(Value::as_array);
    list.cloned().unwrap_or_default()
}

/// A selector; an absent one selects everything.
fn selector(hook: &Value, field: &str) -> Result<Labels, String> {
    match hook.get(field).filter(|s| !s.is_null()) {
        Some(selector) => Labels::from_label_selector(selector),
        None => Labels::from_label_selector(&Value::Object(serde_json::Map::new())),
    }
}

impl Hook {
    fn read(hook: &Value) -> Self {
        let text = |field: &str| hook.get(field).and_then(Value::as_str).unwrap_or("");
        let versions = list(hook, "admissionReviewVersions");
        Self {
            name: text("name").to_owned(),
            client: hook.get("clientConfig").cloned().unwrap_or_default(),
            timeout: Duration::from_secs(hook["timeoutSeconds"].as_u64().unwrap_or(10)),
            ignore: text("failurePolicy") == "Ignore",
            reinvoke: text("reinvocationPolicy") == "IfNeeded",
            dry_run: matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            equivalent: text("matchPolicy") != "Exact",
            review_versions: versions
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            rules: list(hook, "rules"),
            namespaces: selector(hook, "namespaceSelector"),
            objects: selector(hook, "objectSelector"),
            conditions: list(hook, "matchConditions"),
        }
    }

    /// The first version of AdmissionReview that both sides know.
    pub fn review_version(&self) -> Option<&'static str> {
        self.review_versions.iter().find_map(|v| match v.as_str() {
            "v1" => Some("v1"),
            "v1beta1" => Some("v1beta1"),
            _ => None,
        })
    }
}

impl Attributes<'_> {
    /// How a webhook is called for this request; `None` where it is not.
    pub(super) async fn invocation(
        &self,
        hook: &Hook,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> ApiResult<Option<Invocation>> {
        let namespace = self.namespace_selected(hook, object);
        if matches!(namespace, Ok(false)) || !object_selected(hook, object, old)? {
            return Ok(None);
        }
        let Some(invocation) = self.rule_for(hook) else {
            return Ok(None);
        };
        // A namespace that cannot be looked up matters only to webhooks that the request is for.
        namespace?;
        if hook.conditions.is_empty() {
            return Ok(Some(invocation));
        }
        let object = self.converted_or_none(&invocation, object).await?;
        let old = self.converted_or_none(&invocation, old).await?;
        // The request as it was sent: match conditions see no uid, and no converted kind.
        let request = self.request(&Invocation::default(), "", None, None);
        match conditions::hold(&hook.conditions, object.as_ref(), old.as_ref(), &request) {
            Ok(true) => Ok(Some(invocation)),
            Ok(false) => Ok(None),
            Err(_) if hook.ignore => Ok(None),
            Err(why) => Err(ApiError::forbidden(self.resource, self.name, &why)),
        }
    }

    fn namespace_selected(&self, hook: &Hook, object: Option<&Value>) -> ApiResult<bool> {
        let namespace = self.namespace();
        if namespace.is_empty() && !self.is_namespace() {
            return Ok(true);
        }
        let selector = hook.namespaces.as_ref().map_err(ApiError::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let own = self.is_namespace()
            && self.admission.subresource.is_empty()
            && matches!(self.operation, Operation::Create | Operation::Update);
        if own {
            return Ok(selector.matches(object.and_then(meta::labels)));
        }
        let key = Key::new("", namespace);
        let stored = self.server.store.get(NAMESPACES, &key);
        let stored =
            stored.ok_or_else(|| ApiError::not_found(&self.server.namespaces(), namespace))?;
        Ok(selector.matches(meta::labels(&stored.value)))
    }

    /// The first rule that means the request: as it came, else (`matchPolicy: Equivalent`) through another version or
    /// face of the same objects.
    fn rule_for(&self, hook: &Hook) -> Option<Invocation> {
        let matches = |rule: &Value, group: &str, version: &str| self.matches(rule, group, version);
        let (group, version) = (&self.resource.group, &self.version.name);
        if hook.rules.iter().any(|r| matches(r, group, version)) {
            return Some(Invocation::default());
        }
        if !hook.equivalent {
            return None;
        }
        let faces = self.server.registry().faces(self.resource);
        for rule in &hook.rules {
            for (other, name) in &faces {
                if (other, name) != (group, version) && matches(rule, other, name) {
                    return Some(Invocation {
                        group: Some(other.clone()),
                        version: Some(name.clone()),
                    });
                }
            }
        }
        None
    }

    fn matches(&self, rule: &Value, group: &str, version: &str) -> bool {
        let words = |field: &str| {
            rule.get(field)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        let lists = |field: &str, wanted: &str| words(field).any(|w| w == "*" || w == wanted);
        let cluster = self.is_namespace() || self.namespace().is_empty();
        let scope = match rule.get("scope").and_then(Value::as_str) {
            None | Some("*" | "") => true,
            Some("Namespaced") => !cluster,
            Some("Cluster") => cluster,
            Some(_) => false,
        };
        let resource = words("resources").filter_map(Value::as_str).any(|word| {
            let (resource, sub) = word.split_once('/').unwrap_or((word, ""));
            (resource == "*" || resource == self.resource.plural)
                && (sub == "*" || sub == self.admission.subresource)
        });
        scope
            && resource
            && lists("operations", self.operation.name())
            && lists("apiGroups", group)
            && lists("apiVersions", version)
    }
}

/// Whether the object or the one it replaces is selected. What has no metadata is not.
fn object_selected(hook: &Hook, object: Option<&Value>, old: Option<&Value>) -> ApiResult<bool> {
    let selector = hook.objects.as_ref().map_err(ApiError::internal)?;
    if selector.is_everything() {
        return Ok(true);
    }
    let selected = |o: Option<&Value>| {
        o.filter(|o| o.get("metadata").is_some())
            .is_some_and(|o| selector.matches(meta::labels(o)))
    };
    Ok(selected(object) || selected(old))
}

//! Admission webhooks: which are called for a request, in which order, and what their answers do to it.
//!
//! Rules: the Kubernetes documentation "Dynamic Admission Control" and the webhook plugins of kubernetes/apiserver.
//! Mutating webhooks run one after the other and once more where a later one changed the object; validating ones run
//! together. Without a configuration in the store nothing here waits, or costs more than two look-ups.

mod conditions;
mod config;
mod hook;
mod review;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

pub(crate) use config::{certificates, client, defaults, validate};
use hook::{Hook, Invocation};
use review::Answer;

use crate::auth::User;
use crate::conversion;
use crate::convert;
use crate::error::{ApiError, ApiResult};
use crate::hooks;
use crate::patch;
use crate::registry::{ResourceInfo, VersionInfo};
use crate::server::Server;
use crate::strategy;

/// Group of the webhook configurations, which are never intercepted themselves.
const GROUP: &str = "admissionregistration.k8s.io";
/// Longest time a write may take, webhooks included, as in Kubernetes.
pub(crate) const UPPER_BOUND: Duration = Duration::from_secs(34);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// Group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl Kind {
    pub fn of(group: &str, version: &str, kind: &str) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
        }
    }
}

/// Who asks and how: what all admission of one request has in common.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    pub user: User,
    /// Subresource of the request, or "".
    pub subresource: String,
    /// `CreateOptions`, `UpdateOptions`, `DeleteOptions`, without `kind`.
    pub options: Value,
    /// When the request as a whole runs out of time.
    pub deadline: Instant,
}

/// One write that is to be admitted.
pub(crate) struct Attributes<'a> {
    pub server: &'a Server,
    pub admission: &'a Admission,
    pub resource: &'a ResourceInfo,
    pub version: &'a VersionInfo,
    /// Kind of the object, where a subresource has its own.
    pub kind: Option<Kind>,
    pub namespace: &'a str,
    pub name: &'a str,
    pub operation: Operation,
    pub dry_run: bool,
}

/// Why a webhook stops a request.
enum Failure {
    /// It could not be asked: its failure policy decides.
    Calling(String),
    /// The request ends with this error whatever the policy says.
    Ends(ApiError),
}

impl Attributes<'_> {
    fn kind(&self) -> Kind {
        self.kind.clone().unwrap_or_else(|| Kind {
            group: self.resource.group.clone(),
            version: self.version.name.clone(),
            kind: self.resource.kind.clone(),
        })
    }

    fn is_namespace(&self) -> bool {
        self.resource.group.is_empty() && self.resource.plural == "namespaces"
    }

    /// The namespace of the request; a Namespace lies in itself.
    fn namespace(&self) -> &str {
        if self.is_namespace() {
            self.name
        } else {
            self.namespace
        }
    }

    fn exempt(&self) -> bool {
        self.resource.group == GROUP
    }

    /// Whether any webhook may have a say. Cheap, for the usual case that there is none.
    pub fn any(&self) -> bool {
        !self.exempt() && hook::any(self.server)
    }

    /// Both phases, for an object with nothing between them.
    pub async fn admit(
        &self,
        object: &mut Value,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        if let Some(changed) = self.mutate(Some(object), old, warnings).await? {
            *object = changed;
        }
        self.validate(Some(object), old, warnings).await
    }

    /// Asks the mutating webhooks; `Some` is the object they changed. `object` is `None` for deletions.
    pub async fn mutate(
        &self,
        object: Option<&Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<Option<Value>> {
        if self.exempt() {
            return Ok(None);
        }
        let hooks = hook::mutating(self.server);
        let mut current = object.cloned();
        let mut changed = false;
        // Those that asked to be called again and have run since the last change, and those that have to.
        let mut invoked = BTreeSet::new();
        let mut again = BTreeSet::new();
        for round in 0..2 {
            for (index, hook) in hooks.iter().enumerate() {
                let invocation = self.invocation(hook, current.as_ref(), old).await?;
                let Some(invocation) = invocation else {
                    continue;
                };
                if round == 1 && !again.contains(&index) {
                    continue;
                }
                let outcome = self
                    .ask_mutating(hook, &invocation, current.as_ref(), old, warnings)
                    .await;
                if let Ok(Some(new)) = &outcome {
                    current = Some(new.clone());
                    changed = true;
                    again.append(&mut invoked);
                }
                if hook.reinvoke {
                    invoked.insert(index);
                }
                if let Err(failure) = outcome {
                    self.fail(hook, failure)?;
                }
            }
            if !changed {
                break;
            }
        }
        Ok(current.filter(|_| changed))
    }

    /// Asks the validating webhooks, all at once.
    pub async fn validate(
        &self,
        object: Option<&Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> ApiResult<()> {
        if self.exempt() {
            return Ok(());
        }
        let hooks = hook::validating(self.server);
        let mut calls = Vec::new();
        for hook in &hooks {
            if let Some(invocation) = self.invocation(hook, object, old).await? {
                calls.push(async move {
                    let answer = self.ask(hook, &invocation, false, object, old).await;
                    (hook, answer)
                });
            }
        }
        let mut first = Ok(());
        for (hook, answer) in join_all(calls).await {
            let failure = match answer {
                Ok(answer) => {
                    warnings.extend(answer.warnings.iter().cloned());
                    answer.verdict(&hook.name).err().map(Failure::Ends)
                }
                Err(failure) => Some(failure),
            };
            if let Some(failure) = failure {
                first = first.and(self.fail(hook, failure));
            }
        }
        first
    }

    /// What a failure does to the request.
    fn fail(&self, hook: &Hook, failure: Failure) -> ApiResult<()> {
        match failure {
            Failure::Ends(error) => Err(error),
            Failure::Calling(why) if hook.ignore => {
                tracing::warn!(
                    webhook = hook.name,
                    error = why,
                    "failed calling a webhook, going on without it"
                );
                if Instant::now() >= self.admission.deadline {
                    return Err(ApiError::timeout(
                        "request did not complete within requested timeout",
                    ));
                }
                Ok(())
            }
            Failure::Calling(why) => Err(ApiError::internal(format!(
                "failed calling webhook {:?}: {why}",
                hook.name
            ))),
        }
    }

    /// Asks one mutating webhook; `Some` is the object it changed.
    async fn ask_mutating(
        &self,
        hook: &Hook,
        invocation: &Invocation,
        object: Option<&Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Value>, Failure> {
        let answer = self.ask(hook, invocation, true, object, old).await?;
        warnings.extend(answer.warnings.iter().cloned());
        answer.verdict(&hook.name).map_err(Failure::Ends)?;
        let Some(ops) = &answer.patch else {
            return Ok(None);
        };
        let undecodable = |why: String| {
            Failure::Calling(format!(
                "received undecodable patch in webhook response: {why}"
            ))
        };
        let ops: Value = serde_json::from_slice(ops).map_err(|e| undecodable(e.to_string()))?;
        match ops.as_array() {
            None => {
                return Err(undecodable(
                    "a JSON patch must be a list of operations".into(),
                ));
            }
            Some(list) if list.is_empty() => return Ok(None),
            Some(_) => {}
        }
        let Some(object) = object else {
            return Err(Failure::Ends(ApiError::internal(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                hook.name
            ))));
        };
        if answer.patch_type != "JSONPatch" {
            return Err(Failure::Calling(format!(
                "unsupported patch type {:?}",
                answer.patch_type
            )));
        }
        let seen = self
            .converted(invocation, object)
            .await
            .map_err(Failure::Ends)?;
        let mut patched = seen.clone();
        patch::json_patch(&mut patched, &ops).map_err(|e| match e.kind {
            patch::PatchErrorKind::Malformed => undecodable(e.message),
            _ => Failure::Ends(ApiError::internal(e.message)),
        })?;
        if patched == seen {
            return Ok(None);
        }
        if !patched.is_object() {
            return Err(Failure::Ends(ApiError::internal(
                "the patched object is not an object",
            )));
        }
        if invocation.version.is_some() {
            let back = Invocation {
                group: Some(self.resource.group.clone()),
                version: Some(self.version.name.clone()),
            };
            patched = self
                .converted(&back, &patched)
                .await
                .map_err(Failure::Ends)?;
        }
        if self.kind.is_none() {
            strategy::defaults(self.resource, self.version, &mut patched);
        }
        Ok(Some(patched))
    }

    /// Asks one webhook, whatever it then says.
    async fn ask(
        &self,
        hook: &Hook,
        invocation: &Invocation,
        mutating: bool,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<Answer, Failure> {
        if self.dry_run && !hook.dry_run {
            return Err(Failure::Ends(ApiError::bad_request(format!(
                "admission webhook {:?} does not support dry run",
                hook.name
            ))));
        }
        let version = hook.review_version().ok_or_else(|| {
            Failure::Calling("could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)".into())
        })?;
        let uid = self.server.ident.uid();
        let object = self.converted_or_none(invocation, object).await;
        let old = self.converted_or_none(invocation, old).await;
        let (object, old) = (object.map_err(Failure::Ends)?, old.map_err(Failure::Ends)?);
        let request = self.request(invocation, &uid, object, old);
        let api_version = format!("admission.k8s.io/{version}");
        let review =
            json!({"kind": "AdmissionReview", "apiVersion": api_version, "request": request});
        let left = self
            .admission
            .deadline
            .saturating_duration_since(Instant::now());
        let limit = hook.timeout.min(left);
        let answer = hooks::post(self.server, &hook.client, &review, limit)
            .await
            .map_err(|why| Failure::Calling(format!("failed to call webhook: {why}")))?;
        Answer::read(&answer, &uid, version, mutating)
            .map_err(|why| Failure::Calling(format!("received invalid webhook response: {why}")))
    }

    /// The object in the version that a webhook asked for.
    async fn converted(&self, invocation: &Invocation, object: &Value) -> ApiResult<Value> {
        let mut object = object.clone();
        let Some(version) = &invocation.version else {
            return Ok(object);
        };
        if self.kind.is_some() {
            return Ok(object);
        }
        if self.resource.conversion.is_some() {
            return conversion::object(self.server, self.resource, version, object).await;
        }
        convert::rewrite(invocation.group.as_deref(), version, &mut object);
        Ok(object)
    }

    async fn converted_or_none(
        &self,
        invocation: &Invocation,
        object: Option<&Value>,
    ) -> ApiResult<Option<Value>> {
        match object {
            Some(object) => self.converted(invocation, object).await.map(Some),
            None => Ok(None),
        }
    }

    fn request(
        &self,
        invocation: &Invocation,
        uid: &str,
        object: Option<Value>,
        old: Option<Value>,
    ) -> Value {
        let asked = self.kind();
        let group = |kind: &str| invocation.group.clone().unwrap_or_else(|| kind.to_owned());
        let version = |kind: &str| {
            invocation
                .version
                .clone()
                .unwrap_or_else(|| kind.to_owned())
        };
        let plural = &self.resource.plural;
        let mut request = json!({
            "uid": uid,
            "kind": {"group": group(&asked.group), "version": version(&asked.version), "kind": asked.kind},
            "resource": {"group": group(&self.resource.group), "version": version(&self.version.name), "resource": plural},
            "requestKind": {"group": asked.group, "version": asked.version, "kind": asked.kind},
            "requestResource": {"group": self.resource.group, "version": self.version.name, "resource": plural},
            "operation": self.operation.name(),
            "userInfo": user_info(&self.admission.user),
            "object": object,
            "oldObject": old,
            "dryRun": self.dry_run,
            "options": self.options(),
        });
        let optional = [
            ("subResource", self.admission.subresource.as_str()),
            ("requestSubResource", &self.admission.subresource),
            ("name", self.name),
            ("namespace", self.namespace()),
        ];
        for (field, value) in optional {
            if !value.is_empty() {
                request[field] = json!(value);
            }
        }
        request
    }

    /// The options of the request, as the operation calls them.
    fn options(&self) -> Value {
        let kind = match self.operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
            Operation::Connect => return Value::Null,
        };
        let mut options = self.admission.options.clone();
        options["kind"] = json!(kind);
        options["apiVersion"] = json!("meta.k8s.io/v1");
        options
    }
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    info
}

//! Failures as `metav1.Status`, with the wording and reasons clients match on.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::registry::ResourceInfo;
use crate::schema::FieldError;

/// A refused request.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    pub code: u16,
    reason: Cow<'static, str>,
    message: String,
    details: Map<String, Value>,
    /// A list `continue` token offered with an expired one.
    continue_token: Option<String>,
    /// Written by the HTTP layer, with empty details.
    generic: bool,
}

/// The reason of failures that are answered in plain text.
const PLAIN: &str = "plain text";

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: Cow::Borrowed(reason),
            message: message.into(),
            details: Map::new(),
            continue_token: None,
            generic: false,
        }
    }

    /// A `Status` that somebody else made up.
    pub fn from_status(status: &Value) -> Self {
        let text = |field: &str| status.get(field).and_then(Value::as_str).unwrap_or("");
        let code = status["code"].as_u64().and_then(|c| u16::try_from(c).ok());
        let details = status.get("details").and_then(Value::as_object);
        Self {
            code: code.unwrap_or(500),
            reason: Cow::Owned(text("reason").to_owned()),
            message: text("message").to_owned(),
            details: details.cloned().unwrap_or_default(),
            continue_token: None,
            generic: false,
        }
    }

    /// A failure before there is any API: its answer is text and names the request.
    pub fn plain(code: u16, message: &str) -> Self {
        Self::new(code, PLAIN, message)
    }

    /// The text of a plain failure of a request for `uri`.
    pub fn plain_text(&self, uri: &str) -> Option<String> {
        let plain = self.reason == PLAIN;
        plain.then(|| format!("Internal Server Error: {uri:?}: {}\n", self.message))
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The request took too long.
    pub fn timeout(message: &str) -> Self {
        Self::new(504, "Timeout", format!("Timeout: {message}"))
    }

    /// With empty details, as errors are that concern no object.
    pub fn generic(mut self) -> Self {
        self.generic = true;
        self
    }

    fn of(mut self, info: &ResourceInfo, kind: &str, name: &str) -> Self {
        if !name.is_empty() {
            self.details.insert("name".into(), json!(name));
        }
        if !info.group.is_empty() {
            self.details.insert("group".into(), json!(info.group));
        }
        self.details.insert("kind".into(), json!(kind));
        self
    }

    /// Names the resource in `details`.
    pub fn about(self, info: &ResourceInfo) -> Self {
        self.of(info, &info.plural, "")
    }

    /// Adds causes to `details`.
    pub fn causes(mut self, causes: Vec<Value>) -> Self {
        if !causes.is_empty() {
            self.details.insert("causes".into(), Value::Array(causes));
        }
        self
    }

    /// Asks the client to try again in so many seconds.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.details
            .insert("retryAfterSeconds".into(), json!(seconds));
        self
    }

    pub fn not_found(info: &ResourceInfo, name: &str) -> Self {
        Self::new(
            404,
            "NotFound",
            format!("{} \"{name}\" not found", info.group_resource()),
        )
        .of(info, &info.plural, name)
    }

    /// The path names nothing this server serves.
    pub fn no_such_resource() -> Self {
        Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
        .generic()
    }

    /// Whether it says that an object of this resource does not exist. A webhook's refusal may have any code.
    pub fn is_not_found_of(&self, info: &ResourceInfo) -> bool {
        self.reason == "NotFound"
            && self.details.get("kind") == Some(&json!(info.plural))
            && !self.message.starts_with("admission webhook")
    }

    /// Whether it says that the namespace takes no new content.
    pub fn is_terminating(&self) -> bool {
        let causes = self.details.get("causes").and_then(Value::as_array);
        causes.is_some_and(|l| l.iter().any(|c| c["reason"] == "NamespaceTerminating"))
    }

    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    pub fn already_exists(info: &ResourceInfo, name: &str) -> Self {
        Self::new(
            409,
            "AlreadyExists",
            format!("{} \"{name}\" already exists", info.group_resource()),
        )
        .of(info, &info.plural, name)
    }

    /// Of an object that is on its way out.
    pub fn while_deleting(mut self) -> Self {
        self.message = format!("object is being deleted: {}", self.message);
        self
    }

    /// `Operation cannot be fulfilled on …: {why}`
    pub fn conflict(info: &ResourceInfo, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            info.group_resource()
        );
        Self::new(409, "Conflict", message).of(info, &info.plural, name)
    }

    /// The same, told of the kind instead of the resource.
    pub fn conflict_of_kind(info: &ResourceInfo, name: &str, why: &str) -> Self {
        let kind = if info.group.is_empty() {
            info.kind.clone()
        } else {
            format!("{}.{}", info.kind, info.group)
        };
        let message = format!("Operation cannot be fulfilled on {kind} \"{name}\": {why}");
        Self::new(409, "Conflict", message).of(info, &info.kind, name)
    }

    /// The resourceVersion sent is not the newest.
    pub fn modified(info: &ResourceInfo, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(info, name, why)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn forbidden(info: &ResourceInfo, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() {
            info.group_resource()
        } else {
            format!("{} \"{name}\"", info.group_resource())
        };
        Self::new(403, "Forbidden", format!("{subject} is forbidden: {why}")).of(
            info,
            &info.plural,
            name,
        )
    }

    /// The user may not do this; the message is complete.
    pub fn denied(message: String, group: &str, resource: &str, name: &str) -> Self {
        let mut error = Self::new(403, "Forbidden", message).generic();
        for (field, value) in [("name", name), ("group", group), ("kind", resource)] {
            if !value.is_empty() {
                error.details.insert(field.into(), json!(value));
            }
        }
        error
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
        .generic()
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn not_acceptable() -> Self {
        let message =
            "only the following media types are accepted: application/json, application/yaml";
        Self::new(406, "NotAcceptable", message)
    }

    pub fn too_large() -> Self {
        Self::new(
            413,
            "RequestEntityTooLarge",
            "Request entity too large: limit is 3145728",
        )
    }

    pub fn internal(message: impl std::fmt::Display) -> Self {
        let message = message.to_string();
        Self::new(
            500,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
        .causes(vec![json!({"message": message})])
    }

    pub fn not_implemented(what: &str) -> Self {
        Self::new(
            501,
            "NotImplemented",
            format!("{what} needs a kubelet, which this server does not have"),
        )
    }

    /// The object breaks rules of its kind.
    pub fn invalid(info: &ResourceInfo, name: &str, errors: &[FieldError]) -> Self {
        Self::invalid_kind(info, &info.kind, name, errors)
    }

    /// The same with the kind that the client is told.
    pub fn invalid_kind(
        info: &ResourceInfo,
        kind: &str,
        name: &str,
        errors: &[FieldError],
    ) -> Self {
        let what = crate::schema::aggregate(errors);
        let full = if info.group.is_empty() {
            kind.to_owned()
        } else {
            format!("{kind}.{}", info.group)
        };
        let message = format!("{full} \"{name}\" is invalid: {what}");
        Self::new(422, "Invalid", message)
            .of(info, kind, name)
            .causes(causes(errors))
    }

    /// What a patch makes cannot be decoded.
    pub fn invalid_patch(patched: &Value, why: &str) -> Self {
        Self::invalid_patch_text(&patched.to_string(), why)
    }

    /// The same of the text by which the patch is shown.
    pub fn invalid_patch_text(patched: &str, why: &str) -> Self {
        let error = FieldError::invalid("patch", json!(patched), why);
        let message = format!(" \"\" is invalid: {error}");
        Self::new(422, "Invalid", message).causes(causes(&[error]))
    }

    /// Tells of which object an invalid review is.
    pub fn rename(&mut self, name: &str) {
        self.message = self
            .message
            .replacen("\"\" is invalid", &format!("{name:?} is invalid"), 1);
        self.details.insert("name".into(), json!(name));
    }

    /// A question to the review APIs breaks their rules; they name no kind.
    pub fn invalid_review(group: &str, kind: &str, error: FieldError) -> Self {
        Self::invalid_reviews(group, kind, &[error])
    }

    /// The same for several rules.
    pub fn invalid_reviews(group: &str, kind: &str, errors: &[FieldError]) -> Self {
        let what = crate::schema::aggregate(errors);
        let message = format!("{kind}.{group} \"\" is invalid: {what}");
        let mut refusal = Self::new(422, "Invalid", message).causes(causes(errors));
        refusal.details.insert("group".into(), json!(group));
        if !kind.is_empty() {
            refusal.details.insert("kind".into(), json!(kind));
        }
        refusal
    }

    /// The parameters of a request break the rules of their kind in `meta.k8s.io`.
    pub fn invalid_options(kind: &str, errors: &[FieldError]) -> Self {
        let what = crate::schema::aggregate(errors);
        let message = format!("{kind}.meta.k8s.io \"\" is invalid: {what}");
        let mut error = Self::new(422, "Invalid", message).causes(causes(errors));
        error.details.insert("group".into(), json!("meta.k8s.io"));
        error.details.insert("kind".into(), json!(kind));
        error
    }

    /// A parameter is not the number it should be.
    pub fn no_number(text: &str) -> Self {
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        let digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let why = if digits {
            "value out of range"
        } else {
            "invalid syntax"
        };
        Self::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
    }

    /// The resourceVersion is older than the history.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Offers a token with which a list can go on at the newest revision.
    pub fn with_continue(mut self, token: String) -> Self {
        self.continue_token = Some(token);
        self
    }

    /// The `Status` document.
    pub fn status(&self) -> Value {
        let mut metadata = json!({});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = json!(token);
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.details.is_empty() {
            status["details"] = Value::Object(self.details.clone());
        } else if self.generic {
            status["details"] = json!({});
        }
        status
    }
}

fn causes(errors: &[FieldError]) -> Vec<Value> {
    let causes = errors
        .iter()
        .map(|e| json!({"reason": e.reason(), "message": e.body(), "field": e.path}));
    causes.collect()
}

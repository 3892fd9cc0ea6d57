//! One problem with one field of an object, worded as Kubernetes words it.

use std::fmt;

use serde_json::Value;

/// What is wrong with a field. The variants are the `CauseType`s of a Kubernetes `Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The field must be present.
    Required,
    /// The value has the right type but breaks a rule.
    Invalid,
    /// The value has the wrong JSON type or format.
    TypeInvalid,
    /// The value is not one of an enumeration.
    NotSupported,
    /// A string is longer than allowed.
    TooLong,
    /// A list or map has more entries than allowed.
    TooMany,
    /// The value must be unique and is not.
    Duplicate,
    /// The field must not be set here.
    Forbidden,
}

impl FieldErrorKind {
    /// The `reason` of the `StatusCause`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
        }
    }
}

/// A validation error of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The field, as `spec.clusters[0].name`. `<nil>` for errors that concern no single field, as
    /// the API server prints it.
    pub path: String,
    /// What is wrong.
    pub kind: FieldErrorKind,
    /// The offending value; `None` leaves it out of the message.
    pub bad_value: Option<Value>,
    /// The rest of the sentence; may be empty.
    pub detail: String,
}

impl FieldError {
    /// An error with all its parts.
    pub fn new(
        path: impl Into<String>,
        kind: FieldErrorKind,
        bad_value: Option<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            path: path.into(),
            kind,
            bad_value,
            detail: detail.into(),
        }
    }

    /// A field that must be present.
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(path, FieldErrorKind::Required, None, detail)
    }

    /// A value that breaks a rule.
    pub fn invalid(path: impl Into<String>, value: Value, detail: impl Into<String>) -> Self {
        Self::new(path, FieldErrorKind::Invalid, Some(value), detail)
    }

    /// A field that must not be set.
    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(path, FieldErrorKind::Forbidden, None, detail)
    }

    /// A value that occurs twice where it must be unique.
    pub fn duplicate(path: impl Into<String>, value: Value) -> Self {
        Self::new(path, FieldErrorKind::Duplicate, Some(value), "")
    }

    /// A value that is not one of `supported`.
    pub fn not_supported(path: impl Into<String>, value: Value, supported: &[String]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(path, FieldErrorKind::NotSupported, Some(value), detail)
    }

    /// A string of more than `max` bytes (the unit that the API server names, though it counts
    /// characters).
    pub fn too_long(path: impl Into<String>, max: u64) -> Self {
        let detail = format!("may not be more than {max} bytes");
        Self::new(path, FieldErrorKind::TooLong, None, detail)
    }

    /// A collection of `actual` entries where at most `max` are allowed.
    pub fn too_many(path: impl Into<String>, actual: u64, max: u64) -> Self {
        let detail = format!("must have at most {max} items");
        Self::new(path, FieldErrorKind::TooMany, Some(actual.into()), detail)
    }

    /// The message without the field: the `message` of a `StatusCause`.
    pub fn body(&self) -> String {
        use FieldErrorKind::{Forbidden, Required, TooLong};
        let mut body = self.kind.label().to_string();
        if let Some(value) = &self.bad_value
            && !matches!(self.kind, Required | Forbidden | TooLong)
        {
            body.push_str(": ");
            body.push_str(&printed(value));
        }
        if !self.detail.is_empty() {
            body.push_str(": ");
            body.push_str(&self.detail);
        }
        body
    }

    /// The whole message: `path: Kind: value: detail`.
    pub fn message(&self) -> String {
        format!("{}: {}", self.path, self.body())
    }

    /// The `reason` of the `StatusCause`.
    pub fn reason(&self) -> &'static str {
        self.kind.reason()
    }

    /// The same error under a parent path.
    #[must_use]
    pub fn under(mut self, parent: &str) -> Self {
        self.path = match (parent.is_empty(), self.path.is_empty()) {
            (true, _) => self.path,
            (_, true) => parent.to_string(),
            _ if self.path.starts_with('[') => format!("{parent}{}", self.path),
            _ => format!("{parent}.{}", self.path),
        };
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

/// Several errors as one sentence: alone as it is, several as `[a, b]`, repeated ones once.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut messages: Vec<String> = Vec::new();
    for error in errors {
        let message = error.message();
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    match messages.len() {
        1 => messages.remove(0),
        _ => format!("[{}]", messages.join(", ")),
    }
}

fn printed(value: &Value) -> String {
    match value {
        // The API server prints a missing value as the quoted word.
        Value::Null => "\"null\"".to_string(),
        Value::String(text) => crate::go_json::quoted(text),
        other => other.to_string(),
    }
}

/// `parent.child`, or `child` at the root.
pub(crate) fn child(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_string()
    } else {
        format!("{parent}.{name}")
    }
}

/// `parent[key]`.
pub(crate) fn key(parent: &str, name: &str) -> String {
    format!("{parent}[{name}]")
}

/// `parent[n]`.
pub(crate) fn index(parent: &str, n: usize) -> String {
    format!("{parent}[{n}]")
}

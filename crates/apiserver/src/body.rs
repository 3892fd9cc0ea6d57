//! Request bodies: size limit and decoding to JSON.

use bytes::{Buf, Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use crate::duplicates::{self, Duplicates};
use crate::error::{ApiError, ApiResult};
use crate::{go_json, protobuf};

/// Largest body accepted, as in Kubernetes.
pub(crate) const LIMIT: usize = 3 * 1024 * 1024;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// What is said of a body that is no protobuf though it was announced as that.
pub(crate) const NO_PROTOBUF: &str =
    "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";

/// Why a body could not be read.
pub(crate) enum ReadError {
    TooLarge,
    Broken(tower::BoxError),
}

/// Reads a whole body of at most [`LIMIT`] bytes.
pub(crate) async fn read<B>(body: B) -> Result<Bytes, ReadError>
where
    B: Body,
    B::Error: Into<tower::BoxError>,
{
    let mut body = std::pin::pin!(body);
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ReadError::Broken(e.into()))?;
        if let Ok(mut data) = frame.into_data() {
            if all.len() + data.remaining() > LIMIT {
                return Err(ReadError::TooLarge);
            }
            while data.has_remaining() {
                let chunk = data.chunk();
                all.extend_from_slice(chunk);
                let read = chunk.len();
                data.advance(read);
            }
        }
    }
    Ok(all.freeze())
}

/// Decodes an object by its media type.
pub(crate) fn decode(content_type: &str, body: &[u8]) -> ApiResult<Value> {
    match content_type {
        "application/json" => json(body),
        "application/yaml" => yaml(body),
        PROTOBUF => protobuf::to_json(body).map_err(ApiError::bad_request),
        _ => Err(ApiError::unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// Decodes an object of a kind by its media type.
pub(crate) fn decode_as(kind: &str, content_type: &str, body: &[u8]) -> ApiResult<Value> {
    let json = content_type == "application/json";
    let why = match serde_json::from_slice::<Value>(body) {
        _ if !json => None,
        Ok(Value::Null) => None,
        Ok(Value::Object(object)) => ["apiVersion", "kind"].iter().find_map(|field| {
            let value = object
                .get(*field)
                .filter(|v| !v.is_null() && !v.is_string())?;
            let found = type_name(value);
            Some(format!(
                "json: cannot unmarshal {found} into Go struct field .{field} of type string"
            ))
        }),
        Ok(other) => Some(no_object(&other)),
        Err(error) => Some(go_json::problem(body).unwrap_or_else(|| error.to_string())),
    };
    if content_type == PROTOBUF && !body.starts_with(b"k8s\0") {
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {NO_PROTOBUF} ({})",
            summary(body)
        )));
    }
    match why {
        Some(why) => Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: {why} ({})",
            summary(body)
        ))),
        None if content_type == "application/yaml" => read_yaml(body).map_err(|why| {
            ApiError::bad_request(format!(
                "the object provided is unrecognized (must be of type {kind}): yaml: {why} ({})",
                summary(body)
            ))
        }),
        None => decode(content_type, body),
    }
}

/// Why JSON that is no object has no apiVersion and no kind.
pub(crate) fn no_object(value: &Value) -> String {
    const HEAD: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let found = type_name(value);
    format!("json: cannot unmarshal {found} into Go value of type {HEAD}")
}

/// What Go's decoder calls a value.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Object(_) => "object",
    }
}

/// The first bytes of a body, for people.
pub(crate) fn summary(body: &[u8]) -> String {
    const MOST: usize = 30;
    let head = &body[..body.len().min(MOST)];
    let head = match body.first() {
        None => return "<empty>".into(),
        Some(b'{') => String::from_utf8_lossy(head).into_owned(),
        Some(_) => head.iter().map(|b| format!("{b:02x}")).collect(),
    };
    if body.len() > MOST {
        format!("{head} ...")
    } else {
        head
    }
}

/// Decodes JSON.
pub(crate) fn json(body: &[u8]) -> ApiResult<Value> {
    serde_json::from_slice(body).map_err(|e| {
        let why = go_json::problem(body).unwrap_or_else(|| e.to_string());
        ApiError::bad_request(format!("error decoding request body: {why}"))
    })
}

/// Decodes YAML, of which JSON is a subset.
pub(crate) fn yaml(body: &[u8]) -> ApiResult<Value> {
    read_yaml(body).map_err(|why| {
        ApiError::bad_request(format!(
            "error decoding YAML: error converting YAML to JSON: yaml: {why}"
        ))
    })
}

fn read_yaml(body: &[u8]) -> Result<Value, String> {
    if body.first() == Some(&b'{')
        && let Some(Ok(value)) = serde_json::Deserializer::from_slice(body)
            .into_iter()
            .next()
    {
        return Ok(value);
    }
    let text = std::str::from_utf8(body).map_err(|e| e.to_string())?;
    let text = first_document(text);
    // A key that stands twice is no error here: the last one counts, and field validation reports it.
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|e| yaml_problem(&e.to_string(), text))
}

/// Of several documents the first is read, as the real server does.
fn first_document(text: &str) -> &str {
    let begins = text.find("---").filter(|at| text[..*at].trim().is_empty());
    let start = begins.map_or(0, |at| at + 3);
    let next = text[start..].find("\n---");
    next.map_or(text, |at| &text[..start + at + 1])
}

/// What is wrong with a text that is no YAML: the line, and in the common cases the words that clients know.
fn yaml_problem(error: &str, text: &str) -> String {
    if text
        .chars()
        .any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
    {
        return "control characters are not allowed".into();
    }
    let first = error.lines().next().unwrap_or_default();
    let first = first.trim_start_matches("error: ");
    let line = first
        .strip_prefix("line ")
        .and_then(|rest| rest.split_once(' '))
        .map(|(line, _)| line);
    let problem = first.split_once(": ").map_or(first, |(_, problem)| problem);
    let known = match problem {
        open if open.contains("unclosed bracket") && text.trim_end().ends_with(':') => {
            "did not find expected node content"
        }
        tab if tab.contains("found a tab") => "found a tab character that violates indentation",
        open if open.contains("unclosed bracket '['") => "did not find expected ',' or ']'",
        open if open.contains("unclosed bracket '{'") => "did not find expected ',' or '}'",
        other => other,
    };
    match line {
        Some(line) => format!("line {line}: {known}"),
        None => known.to_owned(),
    }
}

/// What field validation has to say about a body before anybody knows its schema.
#[derive(Debug, Default)]
pub(crate) struct Strict {
    /// Fields that stand twice in a JSON body.
    pub json: Duplicates,
    /// Keys that stand twice in a YAML body, as sentences.
    pub yaml: Vec<String>,
}

impl Strict {
    /// Looks at a body of an object.
    pub fn of(content_type: &str, body: &[u8]) -> Self {
        match content_type {
            "application/yaml" => Self::of_yaml(body),
            "application/vnd.kubernetes.protobuf" => Self::default(),
            _ => Self {
                json: duplicates::in_json(body),
                yaml: Vec::new(),
            },
        }
    }

    /// Looks at a body that is read as YAML whatever it looks like.
    pub fn of_yaml(body: &[u8]) -> Self {
        // JSON without repeated fields is YAML without repeated keys, and is looked through faster.
        let json =
            body.first() == Some(&b'{') && serde_json::from_slice::<IgnoredAny>(body).is_ok();
        if json && duplicates::in_json(body).paths.is_empty() {
            return Self::default();
        }
        Self {
            json: Duplicates::default(),
            yaml: duplicates::in_yaml(&String::from_utf8_lossy(body)),
        }
    }

    /// All YAML problems as the one error of the decoder.
    pub fn yaml_error(&self) -> Option<String> {
        let lines: Vec<String> = self.yaml.iter().map(|l| format!("  {l}")).collect();
        (!lines.is_empty()).then(|| format!("yaml: unmarshal errors:\n{}", lines.join("\n")))
    }
}

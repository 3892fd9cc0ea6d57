//! Cells of printer columns, converted as the API server converts them.

use jiff::Timestamp;
use serde_json::Value;

use super::age::{read, since};
use super::{Column, JsonPath};

/// The first value at the path, in the type of the column; null if there is none or it has
/// another type.
pub(super) fn from_path(column: &Column, path: &JsonPath, object: &Value, now: Timestamp) -> Value {
    let Some(value) = path.find(object).first().copied() else {
        return Value::Null;
    };
    match (column.kind.as_str(), value) {
        (_, Value::Null) => Value::Null,
        ("string", Value::String(text)) => text.as_str().into(),
        // Numbers and flags as they are written, lists and objects as JSON.
        ("string", other) => other.to_string().into(),
        ("integer", Value::Number(n)) => match n.as_i64() {
            Some(n) => n.into(),
            None => n.as_f64().map_or(Value::Null, |f| (f as i64).into()),
        },
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) if text.is_empty() => "<unknown>".into(),
        ("date", Value::String(_)) if read(value).is_some() => since(value, now).into(),
        ("date", Value::String(_)) => "<invalid>".into(),
        _ => Value::Null,
    }
}

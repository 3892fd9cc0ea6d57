//! Protobuf request bodies of the built-in kinds, decoded to JSON.
//!
//! Clients built on client-go send protobuf for built-in kinds and do not fall back to JSON. The
//! body is the four bytes `k8s\0` and a `runtime.Unknown` that says the kind and holds the object.
//! Answers are always JSON, which every such client accepts.

mod table;
mod wire;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use table::{Field, Kind, Shape};
use wire::{Reader, Wire};

/// Decodes a request body to the JSON object that it stands for, with `apiVersion` and `kind`. The
/// error says what is malformed or which kind is not known in protobuf (400).
pub fn to_json(body: &[u8]) -> Result<Value, String> {
    let envelope = body
        .strip_prefix(b"k8s\0")
        .ok_or("the protobuf body does not start with the Kubernetes prefix")?;
    let (mut type_meta, mut raw, mut content_type): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
    let mut reader = Reader::new(envelope);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => type_meta = bytes,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (4, Wire::Bytes(bytes)) => content_type = bytes,
            _ => {}
        }
    }
    let (mut api_version, mut kind) = (String::new(), String::new());
    let mut reader = Reader::new(type_meta);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => api_version = utf8(bytes)?,
            (2, Wire::Bytes(bytes)) => kind = utf8(bytes)?,
            _ => {}
        }
    }
    if content_type == b"application/json" {
        return serde_json::from_slice(raw)
            .map_err(|e| format!("the object inside the protobuf body: {e}"));
    }
    let shape = table::root(&api_version, &kind).ok_or_else(|| {
        format!("{kind:?} of {api_version:?} cannot be read from protobuf: send JSON")
    })?;
    let mut object = Map::new();
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    message(raw, shape, &mut object)?;
    Ok(Value::Object(object))
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| "a protobuf string is not UTF-8".into())
}

/// Reads a message's fields into `object`. No message of the table contains itself, so the depth
/// of the recursion is bounded.
fn message(
    bytes: &[u8],
    shape: &'static Shape,
    object: &mut Map<String, Value>,
) -> Result<(), String> {
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        // Fields of newer versions are not an error, as for any reader of protobuf.
        let Some(field) = shape.fields.iter().find(|f| f.number == number) else {
            continue;
        };
        if field.inline {
            if let (Kind::Message(name), Wire::Bytes(inner)) = (&field.kind, wire)
                && let Some(inner_shape) = table::shape(name)
            {
                message(inner, inner_shape, object)?;
            }
        } else if field.map {
            let (key, value) = map_entry(wire, field)?;
            if let Value::Object(map) = object
                .entry(field.name)
                .or_insert_with(|| Value::Object(Map::new()))
            {
                map.insert(key, value);
            }
        } else if field.list {
            let mut items = Vec::new();
            match (&field.kind, wire) {
                (Kind::Int | Kind::Bool, Wire::Bytes(packed)) => {
                    let mut packed = Reader::new(packed);
                    while !packed.is_empty() {
                        items.push(scalar(&field.kind, Wire::Varint(packed.varint()?))?);
                    }
                }
                _ => items.push(scalar(&field.kind, wire)?),
            }
            if let Value::Array(list) = object
                .entry(field.name)
                .or_insert_with(|| Value::Array(Vec::new()))
            {
                list.extend(items);
            }
        } else {
            let value = scalar(&field.kind, wire)?;
            let shown = match &value {
                // An absent time is an empty message, whatever the field is.
                Value::Null => false,
                _ => field.keep_zero || !is_zero(&value),
            };
            if shown {
                object.insert(field.name.into(), value);
            } else {
                object.remove(field.name);
            }
        }
    }
    Ok(())
}

fn map_entry(wire: Wire<'_>, field: &Field) -> Result<(String, Value), String> {
    let Wire::Bytes(entry) = wire else {
        return Err(format!(
            "protobuf field {:?}: a map entry is expected",
            field.name
        ));
    };
    let (mut key, mut value) = (String::new(), None);
    let mut reader = Reader::new(entry);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(bytes)) => key = utf8(bytes)?,
            (2, wire) => value = Some(scalar(&field.kind, wire)?),
            _ => {}
        }
    }
    let value = match value {
        Some(value) => value,
        None => scalar(&field.kind, Wire::Bytes(&[]))?,
    };
    Ok((key, value))
}

/// Reads one value.
fn scalar(kind: &Kind, wire: Wire<'_>) -> Result<Value, String> {
    match (kind, wire) {
        (Kind::String, Wire::Bytes(bytes)) => utf8(bytes).map(Value::from),
        (Kind::Bytes, Wire::Bytes(bytes)) => Ok(Value::from(STANDARD.encode(bytes))),
        // Two's complement: negative numbers are sent as large unsigned ones.
        (Kind::Int, Wire::Varint(n)) => Ok(Value::from(n.cast_signed())),
        (Kind::Bool, Wire::Varint(n)) => Ok(Value::from(n != 0)),
        (Kind::Message(name), Wire::Bytes(bytes)) => {
            let shape = table::shape(name)
                .ok_or_else(|| format!("protobuf message {name:?} is not known"))?;
            let mut object = Map::new();
            message(bytes, shape, &mut object)?;
            Ok(Value::Object(object))
        }
        (special, Wire::Bytes(bytes)) => special_value(special, bytes),
        _ => Err("a protobuf field has another wire type than its kind".into()),
    }
}

fn special_value(kind: &Kind, bytes: &[u8]) -> Result<Value, String> {
    let mut strings: Vec<Value> = Vec::new();
    let (mut first, mut second) = (0i64, 0i64);
    let mut blob: &[u8] = &[];
    let mut reader = Reader::new(bytes);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Varint(n)) => first = n.cast_signed(),
            (2, Wire::Varint(n)) => second = n.cast_signed(),
            (_, Wire::Bytes(b)) => {
                blob = b;
                if !matches!(kind, Kind::Raw) {
                    strings.push(utf8(b)?.into());
                }
            }
            _ => {}
        }
    }
    let text = |strings: Vec<Value>| {
        strings
            .into_iter()
            .next_back()
            .unwrap_or_else(|| Value::from(""))
    };
    match kind {
        Kind::Time | Kind::MicroTime if bytes.is_empty() => Ok(Value::Null),
        Kind::Time => time(first, 0).map(|t| t.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()),
        Kind::MicroTime => {
            time(first, second).map(|t| t.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string().into())
        }
        Kind::Quantity => Ok(text(strings)),
        Kind::IntOrString if first == 1 => Ok(text(strings)),
        Kind::IntOrString => Ok(Value::from(second)),
        Kind::Raw if blob.is_empty() => Ok(Value::Null),
        Kind::Raw => serde_json::from_slice(blob)
            .map_err(|e| format!("a raw object inside the protobuf body: {e}")),
        Kind::Strings => Ok(Value::Array(strings)),
        _ => Err("a protobuf field has another wire type than its kind".into()),
    }
}

fn time(seconds: i64, nanoseconds: i64) -> Result<jiff::Timestamp, String> {
    let nanoseconds =
        i32::try_from(nanoseconds).map_err(|e| format!("a time in the protobuf body: {e}"))?;
    jiff::Timestamp::new(seconds, nanoseconds)
        .map_err(|e| format!("a time in the protobuf body: {e}"))
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_i64() == Some(0),
        Value::String(s) => s.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

#[cfg(test)]
mod tests;

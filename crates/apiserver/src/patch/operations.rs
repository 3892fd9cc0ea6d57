//! The operations of JSON patches, as kube-apiserver carries them out. Other than in RFC 6902, indices count from the end
//! when they are below zero and may have a sign or zeros in front, `replace` and `copy` take an absent member for null,
//! a missing value is null, and only `replace` and `test` can be about the whole document.

use serde_json::Value;

use super::{PatchError, PatchErrorKind};
use crate::go_json::{MAX_DEPTH, depth};

/// How many bytes of JSON all copies of one patch may add (the limit of kube-apiserver).
const MAX_COPIED: usize = 3 * 1024 * 1024;

fn unapplicable(why: impl Into<String>) -> PatchError {
    PatchError::new(PatchErrorKind::Unapplicable, why)
}

/// Carries out one operation. `copied` counts the bytes that the copies of the patch have added so far.
pub(super) fn apply(
    document: &mut Value,
    operation: &Value,
    copied: &mut usize,
) -> Result<(), PatchError> {
    let text = |field: &str| operation.get(field).and_then(Value::as_str);
    let path_of = |field: &str| {
        text(field).ok_or_else(|| unapplicable(format!("operation, missing {field} field")))
    };
    let value = operation.get("value").cloned().unwrap_or_default();
    let op = text("op").unwrap_or("unknown");
    match op {
        "add" => {
            let path = path_of("path")?;
            check_depth(path, &value)?;
            add(document, path, value)
        }
        "remove" => remove(document, path_of("path")?).map(drop),
        "replace" => {
            let path = path_of("path")?;
            check_depth(path, &value)?;
            replace(document, path, value)
        }
        "move" => {
            let moved = remove(document, path_of("from")?)?;
            let path = path_of("path")?;
            check_depth(path, &moved)?;
            add(document, path, moved)
        }
        "copy" => {
            let found = get(document, "copy", path_of("from")?)?;
            let path = path_of("path")?;
            check_depth(path, found)?;
            *copied += size(found);
            if *copied > MAX_COPIED {
                return Err(unapplicable(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
                )));
            }
            let found = found.clone();
            add(document, path, found)
        }
        "test" => {
            let path = path_of("path")?;
            let found = match path {
                "" => &*document,
                path => get(document, "test", path)?,
            };
            match *found == value {
                true => Ok(()),
                false => Err(PatchError::new(
                    PatchErrorKind::TestFailed,
                    format!("testing value {path} failed"),
                )),
            }
        }
        other => Err(unapplicable(format!("Unexpected kind: {other}"))),
    }
}

/// Refuses a value that would make the document deeper than a body can be.
fn check_depth(path: &str, value: &Value) -> Result<(), PatchError> {
    if path.matches('/').count() + depth(value) > MAX_DEPTH {
        let why = format!("the result has more than {MAX_DEPTH} levels");
        return Err(unapplicable(why));
    }
    Ok(())
}

/// Bytes of a value as JSON, without what has to be escaped.
fn size(value: &Value) -> usize {
    match value {
        Value::Object(map) => {
            2 + map
                .iter()
                .map(|(k, v)| k.len() + 4 + size(v))
                .sum::<usize>()
        }
        Value::Array(list) => 2 + list.iter().map(|v| 1 + size(v)).sum::<usize>(),
        Value::String(text) => text.len() + 2,
        Value::Number(number) => number.to_string().len(),
        Value::Null | Value::Bool(_) => 4,
    }
}

/// The steps of a path below its first slash, and the last of them.
fn steps(path: &str) -> Option<(Vec<String>, String)> {
    let parts = path.split('/').skip(1).map(|part| {
        let mut out = String::new();
        let mut rest = part;
        while let Some(at) = rest.find('~') {
            out.push_str(&rest[..at]);
            let (c, length) = match rest.as_bytes().get(at + 1) {
                Some(b'1') => ('/', 2),
                Some(b'0') => ('~', 2),
                _ => ('~', 1),
            };
            out.push(c);
            rest = &rest[at + length..];
        }
        out + rest
    });
    let mut parts: Vec<String> = parts.collect();
    let last = parts.pop()?;
    Some((parts, last))
}

/// What holds the place that a path leads to, and its key there.
fn holder<'d>(
    document: &'d mut Value,
    op: &str,
    path: &str,
) -> Result<(&'d mut Value, String), PatchError> {
    let missing = || {
        unapplicable(match op {
            "add" | "remove" => {
                format!(
                    "{op} operation does not apply: doc is missing path: {path:?}: missing value"
                )
            }
            _ => {
                format!("{op} operation does not apply: doc is missing path: {path}: missing value")
            }
        })
    };
    let (parts, key) = steps(path).ok_or_else(missing)?;
    let mut at = document;
    for part in parts {
        at = match at {
            Value::Object(map) => map.get_mut(&part).ok_or_else(missing)?,
            Value::Array(items) => {
                let n = index(&part, items.len(), items.len())?;
                items.get_mut(n).ok_or_else(missing)?
            }
            _ => return Err(missing()),
        };
    }
    match at {
        Value::Object(_) | Value::Array(_) => Ok((at, key)),
        _ => Err(missing()),
    }
}

/// An index into a list, counted from `end` if it is below zero, and below `most`.
fn index(key: &str, end: usize, most: usize) -> Result<usize, PatchError> {
    let bad = || unapplicable(format!("Unable to access invalid index: {key}"));
    let given: i64 = key.parse().map_err(|_| bad())?;
    let end = i64::try_from(end).unwrap_or(i64::MAX);
    let counted = if given < 0 { given + end } else { given };
    let index = usize::try_from(counted).map_err(|_| bad())?;
    if index < most { Ok(index) } else { Err(bad()) }
}

static NULL: Value = Value::Null;

/// What a path leads to; null where an object has no such member.
fn get<'d>(document: &'d mut Value, op: &str, path: &str) -> Result<&'d Value, PatchError> {
    let (holder, key) = holder(document, op, path)?;
    Ok(match holder {
        Value::Array(items) => &items[index(&key, items.len(), items.len())?],
        other => other.get(&key).unwrap_or(&NULL),
    })
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    let (holder, key) = holder(document, "add", path)?;
    match holder {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            let places = items.len() + 1;
            items.insert(index(&key, places, places)?, value);
        }
        other => other[key] = value,
    }
    Ok(())
}

fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            let why = "replace operation value must be object or array";
            return Err(unapplicable(why));
        }
        *document = value;
        return Ok(());
    }
    let (holder, key) = holder(document, "replace", path)?;
    match holder {
        Value::Array(items) => {
            let n = index(&key, items.len(), items.len())?;
            items[n] = value;
        }
        other => other[key] = value,
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str) -> Result<Value, PatchError> {
    let (holder, key) = holder(document, "remove", path)?;
    match holder {
        Value::Array(items) => {
            let n = index(&key, items.len(), items.len())?;
            Ok(items.remove(n))
        }
        other => {
            let map = other.as_object_mut();
            map.and_then(|m| m.remove(&key))
                .ok_or_else(|| unapplicable(format!(
                    "error in remove for path: '{path}': Unable to remove nonexistent key: {key}: missing value"
                )))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_read_as_the_reference_implementation_reads_them() {
        let document = json!({"a": [1, 2, 3], "b/c": {"~": 1}, "n": null, "t": "x"});
        let cases = [
            (
                json!({"op": "remove", "path": "/a/-1"}),
                Some(json!([1, 2])),
            ),
            (
                json!({"op": "add", "path": "/a/-1", "value": 4}),
                Some(json!([1, 2, 3, 4])),
            ),
            (
                json!({"op": "add", "path": "/a/-4", "value": 4}),
                Some(json!([4, 1, 2, 3])),
            ),
            (
                json!({"op": "replace", "path": "/a/-3", "value": 4}),
                Some(json!([4, 2, 3])),
            ),
            (json!({"op": "replace", "path": "/a/-4", "value": 4}), None),
            (
                json!({"op": "add", "path": "/a/+01", "value": 4}),
                Some(json!([1, 4, 2, 3])),
            ),
            (json!({"op": "add", "path": "/a/4", "value": 4}), None),
            (
                json!({"op": "test", "path": "/a/-1", "value": 3}),
                Some(json!([1, 2, 3])),
            ),
            (
                json!({"op": "test", "path": "/b~1c/~0", "value": 1}),
                Some(json!([1, 2, 3])),
            ),
            (
                json!({"op": "test", "path": "/absent", "value": null}),
                Some(json!([1, 2, 3])),
            ),
            (json!({"op": "test", "path": "/a/9", "value": null}), None),
            (json!({"op": "add", "path": "/n/x", "value": 1}), None),
            (json!({"op": "add", "path": "/t/x", "value": 1}), None),
            (json!({"op": "add", "path": "", "value": {}}), None),
            (json!({"op": "move", "from": "/a", "path": "/a/0"}), None),
            (
                json!({"op": "copy", "from": "/absent", "path": "/a/-"}),
                Some(json!([1, 2, 3, null])),
            ),
            (
                json!({"op": "replace", "path": "", "value": {"a": 1}}),
                Some(json!(1)),
            ),
            (json!({"op": "replace", "path": "", "value": 1}), None),
        ];
        for (operation, expected) in cases {
            let mut result = document.clone();
            let done = apply(&mut result, &operation, &mut 0);
            assert_eq!(
                done.is_ok().then(|| result["a"].clone()),
                expected,
                "{operation}"
            );
        }
    }
}

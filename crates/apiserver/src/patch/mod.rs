//! The patch types other than server-side apply: JSON merge patch (RFC 7396), JSON patch
//! (RFC 6902) and the strategic merge patch of the built-in kinds.

mod operations;
mod strategic;

use serde_json::Value;

pub use strategic::strategic;

/// The largest number of operations that one JSON patch may hold (the limit of kube-apiserver).
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;

/// Why a patch was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PatchError {
    /// What is wrong; decides the HTTP status.
    pub kind: PatchErrorKind,
    /// What is wrong, for the client.
    pub message: String,
}

/// The classes of patch errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchErrorKind {
    /// The patch is not a patch at all: 400.
    Malformed,
    /// A `test` operation of a JSON patch did not hold: 422.
    TestFailed,
    /// The patch is well formed but does not fit this object: 422.
    Unapplicable,
    /// More than [`MAX_JSON_PATCH_OPERATIONS`] operations: 413.
    TooMany,
    /// Nobody made a rule for this: 500, as kube-apiserver answers.
    Unforeseen,
}

impl PatchError {
    fn new(kind: PatchErrorKind, message: impl Into<String>) -> PatchError {
        PatchError {
            kind,
            message: message.into(),
        }
    }

    /// The HTTP status code of the answer.
    pub fn code(&self) -> u16 {
        match self.kind {
            PatchErrorKind::Malformed => 400,
            PatchErrorKind::TestFailed | PatchErrorKind::Unapplicable => 422,
            PatchErrorKind::TooMany => 413,
            PatchErrorKind::Unforeseen => 500,
        }
    }
}

/// Applies a JSON merge patch (RFC 7396): objects merge, null deletes, everything else replaces.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(object) = target else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Reads a JSON object, as merge patches are; null is an empty one.
///
/// # Errors
/// Why it is none, in the words of Go's decoder.
pub fn decode_object(body: &[u8]) -> Result<Value, String> {
    match decode(body)? {
        Value::Null => Ok(Value::Object(serde_json::Map::new())),
        object @ Value::Object(_) => Ok(object),
        other => Err(wrong_type(&other, "value", "map[string]interface {}")),
    }
}

/// Reads the operations of a JSON patch, whatever they ask for.
///
/// # Errors
/// As for [`decode_object`].
pub fn decode_operations(body: &[u8]) -> Result<Value, String> {
    let operations = match decode(body)? {
        Value::Null => Vec::new(),
        Value::Array(operations) => operations,
        other => return Err(wrong_type(&other, "value", "[]handlers.jsonPatchOp")),
    };
    for operation in operations.iter().filter(|o| !o.is_null()) {
        if !operation.is_object() {
            return Err(wrong_type(operation, "value", "handlers.jsonPatchOp"));
        }
        for field in ["op", "path", "from"] {
            let given = operation.get(field).filter(|v| !v.is_null());
            if let Some(other) = given.filter(|v| !v.is_string()) {
                let whose = format!("struct field jsonPatchOp.{field}");
                return Err(wrong_type(other, &whose, "string"));
            }
        }
    }
    Ok(Value::Array(operations))
}

fn decode(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body)
        .map_err(|error| crate::go_json::problem(body).unwrap_or_else(|| error.to_string()))
}

pub(crate) fn wrong_type(value: &Value, whose: &str, wanted: &str) -> String {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    format!("json: cannot unmarshal {found} into Go {whose} of type {wanted}")
}

/// Applies a JSON patch (RFC 6902). On an error the target is left as it was.
///
/// As in kube-apiserver, a `test` for null holds for a member that does not exist: clients use it
/// to say "only if nobody set this yet". The rest of what differs from the RFC is in [`operations`].
pub fn json_patch(target: &mut Value, ops: &Value) -> Result<(), PatchError> {
    let malformed = |m: String| PatchError::new(PatchErrorKind::Malformed, m);
    let list = ops.as_array().ok_or_else(|| {
        malformed("json: cannot unmarshal object into Go value of type jsonpatch.Patch".into())
    })?;
    if list.len() > MAX_JSON_PATCH_OPERATIONS {
        return Err(PatchError::new(
            PatchErrorKind::TooMany,
            format!(
                "The allowed maximum operations in a JSON patch is {MAX_JSON_PATCH_OPERATIONS}, got {}",
                list.len()
            ),
        ));
    }
    let mut result = target.clone();
    let mut copied = 0;
    for operation in list {
        operations::apply(&mut result, operation, &mut copied)?;
    }
    *target = result;
    Ok(())
}

/// A value the way Go prints it (`%+v`).
pub(crate) fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(go_text).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let mut entries: Vec<String> = map
                .iter()
                .map(|(k, v)| format!("{k}:{}", go_text(v)))
                .collect();
            entries.sort();
            format!("map[{}]", entries.join(" "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// The table of RFC 7396, appendix A.
    #[test]
    fn merge_patch_does_what_the_rfc_lists() {
        for (target, patch, expected) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (
                json!({"a":"b","b":"c"}),
                json!({"a":null}),
                json!({"b":"c"}),
            ),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (
                json!({"a":{"b":"c"}}),
                json!({"a":{"b":"d","c":null}}),
                json!({"a":{"b":"d"}}),
            ),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), json!(null), json!(null)),
            (json!({"a":"foo"}), json!("bar"), json!("bar")),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (
                json!({}),
                json!({"a":{"bb":{"ccc":null}}}),
                json!({"a":{"bb":{}}}),
            ),
        ] {
            let mut result = target.clone();
            merge(&mut result, &patch);
            assert_eq!(result, expected, "{target} patched with {patch}");
        }
    }

    #[test]
    fn json_patch_operations_apply_in_order() {
        let mut object = json!({"metadata": {"finalizers": ["a", "b"]}, "spec": {"x": 1}});
        let ops = json!([
            {"op": "test", "path": "/metadata/finalizers/0", "value": "a"},
            {"op": "remove", "path": "/metadata/finalizers/0"},
            {"op": "add", "path": "/metadata/finalizers/-", "value": "c"},
            {"op": "replace", "path": "/spec/x", "value": 2},
            {"op": "copy", "from": "/spec/x", "path": "/spec/y"},
            {"op": "move", "from": "/spec/x", "path": "/spec/z"},
        ]);
        json_patch(&mut object, &ops).unwrap();
        assert_eq!(
            object,
            json!({"metadata": {"finalizers": ["b", "c"]}, "spec": {"y": 2, "z": 2}})
        );
    }

    #[test]
    fn a_failed_json_patch_changes_nothing_and_says_why() {
        let before = json!({"a": 1, "b": {"c": 2}});
        for (ops, kind, code) in [
            (
                json!([{"op":"remove","path":"/a"},{"op":"test","path":"/b/c","value":3}]),
                PatchErrorKind::TestFailed,
                422,
            ),
            (
                json!([{"op":"remove","path":"/a"},{"op":"remove","path":"/nope"}]),
                PatchErrorKind::Unapplicable,
                422,
            ),
            (
                json!([{"op":"test","path":"/no/parent","value":null}]),
                PatchErrorKind::Unapplicable,
                422,
            ),
            (json!({"a": 1}), PatchErrorKind::Malformed, 400),
            (
                json!([{"op":"dance","path":"/a"}]),
                PatchErrorKind::Unapplicable,
                422,
            ),
        ] {
            let mut object = before.clone();
            let error = json_patch(&mut object, &ops).unwrap_err();
            assert_eq!((error.kind, error.code()), (kind, code), "{ops}: {error}");
            assert_eq!(object, before, "{ops}");
        }
    }

    #[test]
    fn testing_for_null_holds_for_an_absent_member() {
        let mut object = json!({"metadata": {}});
        let ops = json!([
            {"op": "test", "path": "/metadata/finalizers", "value": null},
            {"op": "add", "path": "/metadata/finalizers", "value": ["x"]},
        ]);
        json_patch(&mut object, &ops).unwrap();
        assert_eq!(object, json!({"metadata": {"finalizers": ["x"]}}));
        assert_eq!(
            json_patch(&mut object, &ops).unwrap_err().kind,
            PatchErrorKind::TestFailed
        );
    }

    #[test]
    fn a_json_patch_with_too_many_operations_is_refused() {
        let op = json!({"op": "add", "path": "/a", "value": 1});
        let mut object = json!({});
        assert!(
            json_patch(
                &mut object,
                &Value::Array(vec![op.clone(); MAX_JSON_PATCH_OPERATIONS])
            )
            .is_ok()
        );
        let error = json_patch(
            &mut object,
            &Value::Array(vec![op; MAX_JSON_PATCH_OPERATIONS + 1]),
        )
        .unwrap_err();
        assert_eq!((error.kind, error.code()), (PatchErrorKind::TooMany, 413));
    }

    fn tree() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3i64).prop_map(Value::from),
            "[xy]".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn merge_patch_agrees_with_the_reference_implementation(target in tree(), patch in tree()) {
            let (mut ours, mut theirs) = (target.clone(), target);
            merge(&mut ours, &patch);
            json_patch::merge(&mut theirs, &patch);
            prop_assert_eq!(ours, theirs);
        }

        #[test]
        fn merging_twice_is_merging_once(target in tree(), patch in tree()) {
            let mut once = target;
            merge(&mut once, &patch);
            let mut twice = once.clone();
            merge(&mut twice, &patch);
            prop_assert_eq!(once, twice);
        }
    }
}

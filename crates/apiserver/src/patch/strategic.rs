//! Strategic merge patch: a merge patch that knows which lists of the built-in kinds are keyed.
//!
//! Rules: the Kubernetes document "Strategic Merge Patch" (sig-api-machinery) with its directives
//! `$patch`, `$retainKeys`, `$deleteFromPrimitiveList/FIELD` and `$setElementOrder/FIELD`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{PatchError, PatchErrorKind, go_text};
use crate::ssa::{How, builtin_field, builtin_kind};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

type Object = Map<String, Value>;

/// Applies a strategic merge patch to an object of a built-in kind. On an error the target is left
/// as it was.
pub fn strategic(target: &mut Value, patch: &Value, kind: &str) -> Result<(), PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (&*target, patch) else {
        return Err(malformed("a strategic merge patch must be an object"));
    };
    *target = Value::Object(merge_objects(original, patch, builtin_kind(kind), true)?);
    Ok(())
}

fn unforeseen(message: impl Into<String>) -> PatchError {
    PatchError::new(PatchErrorKind::Unforeseen, message)
}

/// A directive that there is not, or not here.
fn unknown_directive(directive: &Value, object: &Object) -> PatchError {
    let shown = match directive {
        Value::String(text) => text.clone(),
        Value::Number(n) if n.is_f64() => format!("%!s(float64={n})"),
        Value::Number(n) => format!("%!s(int64={n})"),
        Value::Bool(flag) => format!("%!s(bool={flag})"),
        other => go_text(other),
    };
    let object = go_text(&Value::Object(object.clone()));
    unforeseen(format!("unknown patch type: {shown} in map: {object}"))
}

fn malformed(message: impl Into<String>) -> PatchError {
    PatchError::new(PatchErrorKind::Malformed, message)
}

/// How the lists of one field merge.
#[derive(Clone, Copy)]
enum ListRule {
    /// The patch's list replaces the other.
    Replace,
    /// Scalars, each at most once.
    Scalars,
    /// Objects with this key.
    Keyed(&'static str),
}

/// The rule and the type of a field's value or items.
fn field_rule(owner: &'static str, name: &str, root: bool) -> (ListRule, &'static str) {
    if root && name == "metadata" {
        return (ListRule::Replace, "ObjectMeta");
    }
    match builtin_field(owner, name) {
        None => (ListRule::Replace, ""),
        Some(field) => {
            let of = if field.of == "=" { "" } else { field.of };
            let rule = match field.how {
                How::Keyed { smp, .. } if !smp.is_empty() => ListRule::Keyed(smp),
                How::Set => ListRule::Scalars,
                _ => ListRule::Replace,
            };
            (rule, of)
        }
    }
}

fn merge_objects(
    original: &Object,
    patch: &Object,
    owner: &'static str,
    root: bool,
) -> Result<Object, PatchError> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        match directive.as_str() {
            Some("replace") => return Ok(without_directives(patch)),
            Some("delete") => return Ok(Object::new()),
            _ => return Err(unknown_directive(directive, patch)),
        }
    }
    let mut result = original.clone();
    for (name, value) in patch {
        let Some(field) = name.strip_prefix(DELETE_FROM) else {
            continue;
        };
        match (value, result.get_mut(field)) {
            (Value::Array(gone), Some(Value::Array(list))) => {
                list.retain(|item| !gone.contains(item));
            }
            (Value::Array(_), _) => {}
            // What is no list stands there itself, which its type then refuses.
            (other, _) => {
                result.insert(field.to_owned(), other.clone());
            }
        }
    }
    let original = result.clone();
    if let Some(keys) = patch.get(RETAIN_KEYS) {
        retain_keys(&mut result, patch, keys)?;
    }
    for (name, value) in patch {
        if name.starts_with('$') {
            continue;
        }
        let (rule, of) = field_rule(owner, name, root);
        let merged = match (result.get(name), value) {
            (_, Value::Null) => {
                result.remove(name);
                continue;
            }
            (Some(Value::Object(old)), Value::Object(new)) => {
                Value::Object(merge_objects(old, new, of, false)?)
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                let merged = merge_lists(old, new, rule, of)?;
                // Without an order of its own the patch is the order.
                let ordered = patch.contains_key(&format!("{SET_ORDER}{name}"));
                Value::Array(match rule {
                    ListRule::Scalars | ListRule::Keyed(_) if !ordered && !has_replace(new) => {
                        reorder(merged, old, new, rule)
                    }
                    _ => merged,
                })
            }
            (_, new) => match clean(new) {
                Some(new) => new,
                None => {
                    result.remove(name);
                    continue;
                }
            },
        };
        result.insert(name.clone(), merged);
    }
    for (name, value) in patch {
        if let Some(field) = name.strip_prefix(SET_ORDER) {
            let order = value.as_array().ok_or_else(|| {
                let found = match value {
                    Value::Object(_) => "map",
                    Value::Bool(_) => "bool",
                    Value::Number(_) => "int64",
                    _ => "string",
                };
                unforeseen(format!(
                    "expected a []interface {{}}, but received a {found}"
                ))
            })?;
            let (rule, _) = field_rule(owner, field, root);
            in_this_order(name, patch.get(field), order, rule)?;
            let before = original.get(field).and_then(Value::as_array);
            if let Some(Value::Array(list)) = result.get_mut(field) {
                *list = reorder(
                    std::mem::take(list),
                    before.map_or(&[], Vec::as_slice),
                    order,
                    rule,
                );
            }
        }
    }
    Ok(result)
}

/// Whether the items of a patch stand in the order that it asks for itself.
fn in_this_order(
    name: &str,
    patch: Option<&Value>,
    order: &[Value],
    rule: ListRule,
) -> Result<(), PatchError> {
    if let ListRule::Keyed(key) = rule {
        for item in order.iter().filter_map(Value::as_object) {
            key_of(item, key)?;
        }
    }
    let Some(Value::Array(items)) = patch else {
        return Ok(());
    };
    let mut rest = order.iter();
    let stands = items
        .iter()
        .filter(|item| item.get(DIRECTIVE).is_none())
        .all(|item| rest.any(|wanted| same_item(wanted, item, rule)));
    if stands {
        return Ok(());
    }
    let text = |items: &[Value]| go_text(&Value::Array(items.to_vec()));
    let field = name.trim_end_matches(|c| c != '/').trim_end_matches('/');
    Err(unforeseen(format!(
        "The order in patch list:\n{}\n doesn't match {field} list:\n{}\n",
        text(items),
        text(order)
    )))
}

/// Drops what the patch's `$retainKeys` does not list; the patch may set only what is listed.
fn retain_keys(result: &mut Object, patch: &Object, keys: &Value) -> Result<(), PatchError> {
    let keys = keys
        .as_array()
        .ok_or_else(|| malformed("invalid patch format of retainKeys"))?;
    let keys: BTreeSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    for (name, value) in patch {
        if !name.starts_with('$') && !value.is_null() && !keys.contains(name.as_str()) {
            return Err(malformed("invalid patch format of retainKeys"));
        }
    }
    result.retain(|name, _| keys.contains(name.as_str()));
    Ok(())
}

/// Whether the list's items say that they replace what is there.
fn has_replace(items: &[Value]) -> bool {
    items
        .iter()
        .any(|item| item.get(DIRECTIVE).is_some_and(|d| d == "replace"))
}

fn merge_lists(
    old: &[Value],
    new: &[Value],
    rule: ListRule,
    of: &'static str,
) -> Result<Vec<Value>, PatchError> {
    let key = match rule {
        ListRule::Replace => return Ok(new.iter().filter_map(clean).collect()),
        ListRule::Scalars => {
            let mut result = old.to_vec();
            for item in new {
                if !result.contains(item) {
                    result.push(item.clone());
                }
            }
            return Ok(result);
        }
        ListRule::Keyed(key) => key,
    };
    let mut result = old.to_vec();
    let mut plain = Vec::new();
    let mut replace = false;
    for item in new {
        let object = item.as_object().ok_or_else(|| {
            let both = [old, new].map(|list| Value::Array(list.to_vec()));
            unforeseen(format!(
                "list element types are not identical: {}",
                go_text(&Value::Array(both.into()))
            ))
        })?;
        let Some(directive) = object.get(DIRECTIVE) else {
            plain.push(object);
            continue;
        };
        match directive.as_str() {
            // The item only marks the list, whatever else it says.
            Some("replace") => replace = true,
            Some("delete") => {
                let wanted = key_of(object, key)?;
                result.retain(|old| !old.get(key).is_some_and(|k| same_key(k, wanted)));
            }
            Some("merge") => {
                return Err(unforeseen(
                    "merging lists cannot yet be specified in the patch",
                ));
            }
            _ => return Err(unknown_directive(directive, object)),
        }
    }
    if replace {
        return Ok(plain
            .into_iter()
            .map(|o| Value::Object(without_directives(o)))
            .collect());
    }
    for object in plain {
        let wanted = key_of(object, key)?;
        match result
            .iter_mut()
            .find(|old| old.get(key).is_some_and(|k| same_key(k, wanted)))
        {
            Some(Value::Object(old)) => *old = merge_objects(old, object, of, false)?,
            _ => result.push(Value::Object(merge_objects(
                &Object::new(),
                object,
                of,
                false,
            )?)),
        }
    }
    Ok(result)
}

fn key_of<'a>(item: &'a Object, key: &str) -> Result<&'a Value, PatchError> {
    item.get(key).ok_or_else(|| {
        unforeseen(format!(
            "map: {} does not contain declared merge key: {key}",
            go_text(&Value::Object(item.clone()))
        ))
    })
}

/// Merge keys are compared as text: `80` and `"80"` name the same item.
fn same_key(a: &Value, b: &Value) -> bool {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    a == b || text(a) == text(b)
}

fn same_item(a: &Value, b: &Value, rule: ListRule) -> bool {
    match rule {
        ListRule::Keyed(key) => {
            matches!((a.get(key), b.get(key)), (Some(a), Some(b)) if same_key(a, b))
        }
        _ => a == b,
    }
}

/// Puts the items that `order` lists into its order. An item that is not listed stays before the
/// first listed one that it stood before.
fn reorder(merged: Vec<Value>, before: &[Value], order: &[Value], rule: ListRule) -> Vec<Value> {
    let place =
        |list: &[Value], item: &Value| list.iter().position(|other| same_item(other, item, rule));
    let (mut listed, others): (Vec<Value>, Vec<Value>) = merged
        .into_iter()
        .partition(|item| place(order, item).is_some());
    listed.sort_by_key(|item| place(order, item));
    let mut result = Vec::with_capacity(listed.len() + others.len());
    let (mut listed, mut others) = (listed.into_iter().peekable(), others.into_iter().peekable());
    while let (Some(right), Some(left)) = (listed.peek(), others.peek()) {
        let in_front =
            matches!((place(before, left), place(before, right)), (Some(l), Some(r)) if l < r);
        result.extend(if in_front {
            others.next()
        } else {
            listed.next()
        });
    }
    result.extend(listed);
    result.extend(others);
    result
}

/// A value as it is stored where nothing was before: no nulls in objects, no directives. What is itself a `$patch` has
/// nothing to act on and is nothing.
fn clean(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Object(object) if object.contains_key(DIRECTIVE) => return None,
        Value::Object(object) => Value::Object(without_directives(object)),
        Value::Array(items) => Value::Array(items.iter().filter_map(clean).collect()),
        other => other.clone(),
    })
}

fn without_directives(object: &Object) -> Object {
    let kept = object.iter().filter(|(name, value)| {
        !value.is_null()
            && *name != DIRECTIVE
            && *name != RETAIN_KEYS
            && !name.starts_with(DELETE_FROM)
            && !name.starts_with(SET_ORDER)
    });
    kept.filter_map(|(name, value)| Some((name.clone(), clean(value)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn patched(kind: &str, target: &Value, patch: &Value) -> Value {
        let mut result = target.clone();
        strategic(&mut result, patch, kind).unwrap_or_else(|e| panic!("{patch}: {e}"));
        result
    }

    fn pod(spec: Value) -> Value {
        json!({"spec": spec})
    }

    /// Target spec, patch spec, expected spec of a pod.
    fn check(cases: &[(Value, Value, Value)]) {
        for (target, patch, expected) in cases {
            assert_eq!(
                patched("Pod", &pod(target.clone()), &pod(patch.clone())),
                pod(expected.clone()),
                "{target} patched with {patch}"
            );
        }
    }

    #[test]
    fn keyed_lists_merge_item_by_item() {
        check(&[
            (
                json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}),
                json!({"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "3"}]}),
                json!({"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}]}),
            ),
            (
                json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}], "args": ["p"], "ports": [{"containerPort": 80, "name": "web"}]}]}),
                json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}], "args": ["q"], "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}),
                json!({"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}], "args": ["q"], "ports": [{"containerPort": 80, "name": "web", "protocol": "TCP"}]}]}),
            ),
            (
                json!({"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/x", "name": "v"}]}]}),
                json!({"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/x", "readOnly": true}]}]}),
                json!({"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/x", "name": "v", "readOnly": true}]}]}),
            ),
            // Null deletes a field; a list without a key is replaced.
            (
                json!({"hostname": "h", "tolerations": [{"key": "a"}]}),
                json!({"hostname": null, "tolerations": [{"key": "b"}]}),
                json!({"tolerations": [{"key": "b"}]}),
            ),
        ]);
    }

    #[test]
    fn the_patch_directive_deletes_and_replaces() {
        check(&[
            (
                json!({"containers": [{"name": "a"}, {"name": "b"}]}),
                json!({"containers": [{"name": "a", "$patch": "delete"}, {"name": "c"}]}),
                json!({"containers": [{"name": "c"}, {"name": "b"}]}),
            ),
            (
                json!({"containers": [{"name": "a"}, {"name": "b"}]}),
                json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
                json!({"containers": [{"name": "c"}]}),
            ),
            (
                json!({"nodeSelector": {"a": "1", "b": "2"}}),
                json!({"nodeSelector": {"$patch": "replace", "c": "3"}}),
                json!({"nodeSelector": {"c": "3"}}),
            ),
            (
                json!({"securityContext": {"runAsUser": 1}}),
                json!({"securityContext": {"$patch": "delete"}}),
                json!({"securityContext": {}}),
            ),
            // Directives never reach the object, not even where nothing was before.
            (
                json!({}),
                json!({"nodeSelector": {"$patch": "replace", "c": "3", "d": null}, "containers": [{"name": "a", "$retainKeys": ["name"]}]}),
                json!({"containers": [{"name": "a"}]}),
            ),
        ]);
    }

    #[test]
    fn finalizers_merge_as_scalars() {
        let object = json!({"metadata": {"finalizers": ["a", "b"]}});
        let merged = patched(
            "Pod",
            &object,
            &json!({"metadata": {"finalizers": ["b", "c"]}}),
        );
        assert_eq!(merged, json!({"metadata": {"finalizers": ["a", "b", "c"]}}));
        let removed = patched(
            "Pod",
            &object,
            &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
        );
        assert_eq!(removed, json!({"metadata": {"finalizers": ["b"]}}));
        let both = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"]}});
        assert_eq!(
            patched("Pod", &object, &both),
            json!({"metadata": {"finalizers": ["c", "b"]}})
        );
    }

    #[test]
    fn owner_references_and_conditions_have_keys_in_every_kind() {
        let object = json!({
            "metadata": {"ownerReferences": [{"uid": "1", "name": "x"}]},
            "status": {"conditions": [{"type": "Ready", "status": "False"}]},
        });
        let patch = json!({
            "metadata": {"ownerReferences": [{"uid": "2", "name": "y"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}]},
        });
        for kind in ["Pod", "Namespace", "PersistentVolumeClaim", "Job"] {
            assert_eq!(
                patched(kind, &object, &patch),
                json!({
                    "metadata": {"ownerReferences": [{"uid": "2", "name": "y"}, {"uid": "1", "name": "x"}]},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}]},
                }),
                "{kind}"
            );
        }
    }

    #[test]
    fn the_same_field_name_has_another_key_in_another_type() {
        let service = json!({"spec": {"ports": [{"port": 80, "targetPort": 1}]}});
        let patch = json!({"spec": {"ports": [{"port": 80, "targetPort": 2}, {"port": 81}]}});
        assert_eq!(
            patched("Service", &service, &patch),
            json!({"spec": {"ports": [{"port": 80, "targetPort": 2}, {"port": 81}]}})
        );
        // In a NetworkPolicy `ports` has no key at all.
        let policy = json!({"spec": {"ports": [{"port": 80}]}});
        let patch = json!({"spec": {"ports": [{"port": 81}]}});
        assert_eq!(patched("NetworkPolicy", &policy, &patch), patch);
    }

    #[test]
    fn the_element_order_of_the_patch_holds_and_others_keep_their_place() {
        check(&[
            (
                json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
                json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}]}),
                json!({"containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}]}),
            ),
            (
                json!({"containers": [{"name": "a"}, {"name": "server"}]}),
                json!({"$setElementOrder/containers": [{"name": "new"}, {"name": "a"}], "containers": [{"name": "new"}]}),
                json!({"containers": [{"name": "new"}, {"name": "a"}, {"name": "server"}]}),
            ),
            (
                json!({}),
                json!({"$setElementOrder/containers": [{"name": "a"}]}),
                json!({}),
            ),
        ]);
    }

    #[test]
    fn retain_keys_drops_what_is_not_listed() {
        let deployment = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
        let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
        assert_eq!(
            patched("Deployment", &deployment, &patch),
            json!({"spec": {"strategy": {"type": "Recreate"}}})
        );
        check(&[(
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "emptyDir": null, "hostPath": {"path": "/x"}}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
        )]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_changes_nothing() {
        for (code, patch) in [
            (400, json!([])),
            (500, json!({"spec": {"containers": [{"image": "x"}]}})),
            (500, json!({"spec": {"containers": ["x"]}})),
            (500, json!({"spec": {"containers": [{"$patch": "delete"}]}})),
            (
                500,
                json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
            ),
            (500, json!({"spec": {"$patch": "explode"}})),
            (400, json!({"spec": {"$retainKeys": ["a"], "b": 1}})),
            (400, json!({"spec": {"$retainKeys": "a"}})),
            (500, json!({"spec": {"$setElementOrder/containers": "x"}})),
            (
                500,
                json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}}),
            ),
        ] {
            let before =
                json!({"metadata": {"finalizers": ["f"]}, "spec": {"containers": [{"name": "a"}]}});
            let mut object = before.clone();
            let error = strategic(&mut object, &patch, "Pod").unwrap_err();
            assert_eq!((error.code(), &object), (code, &before), "{patch}");
        }
    }

    fn containers() -> impl Strategy<Value = Value> {
        let container = (
            "[a-d]",
            prop::option::of("[xy]"),
            prop::collection::btree_map("[A-C]", "[12]", 0..3),
        );
        prop::collection::vec(container, 0..4).prop_map(|list| {
            let mut names = BTreeSet::new();
            let unique = list
                .into_iter()
                .filter(|(name, ..)| names.insert(name.clone()));
            let items = unique.map(|(name, image, env)| {
                let env: Vec<Value> = env
                    .into_iter()
                    .map(|(name, value)| json!({"name": name, "value": value}))
                    .collect();
                match image {
                    Some(image) => json!({"name": name, "image": image, "env": env}),
                    None => json!({"name": name, "env": env}),
                }
            });
            json!({"spec": {"containers": items.collect::<Vec<_>>()}})
        })
    }

    proptest! {
        #[test]
        fn patching_twice_is_patching_once(target in containers(), patch in containers()) {
            let once = patched("Pod", &target, &patch);
            prop_assert_eq!(&patched("Pod", &once, &patch), &once);
            prop_assert_eq!(patched("Pod", &target, &json!({})), target);
        }

        #[test]
        fn without_lists_it_is_a_merge_patch(target in prop::collection::btree_map("[a-c]", 0..3i64, 0..4), patch in prop::collection::btree_map("[a-c]", prop::option::of(0..3i64), 0..4)) {
            let (target, patch) = (json!({"data": target}), json!({"data": patch}));
            let mut merged = target.clone();
            super::super::merge(&mut merged, &patch);
            prop_assert_eq!(patched("ConfigMap", &target, &patch), merged);
        }
    }
}

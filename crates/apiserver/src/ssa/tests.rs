//! The cases of `cases.yaml` and the properties that hold for every sequence of writes.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fieldset::PathElement;
use super::managers::Managers;
use super::*;

const NOW: &str = "2024-05-01T00:00:00Z";

/// The kind of a case: API version, kind, schema.
struct Kind<'a> {
    api_version: &'a str,
    kind: &'a str,
    schema: Option<&'a Value>,
}

impl Kind<'_> {
    fn complete(&self, object: &Value) -> Value {
        let mut whole = object.clone();
        let map = whole.as_object_mut().unwrap();
        map.entry("apiVersion")
            .or_insert_with(|| self.api_version.into());
        map.insert("kind".into(), self.kind.into());
        let metadata = map.entry("metadata").or_insert_with(|| json!({}));
        metadata["name"] = "w".into();
        whole
    }
}

fn object_text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

#[test]
fn the_cases_hold() {
    // Without it, `y` and `n` are booleans.
    let options = serde_saphyr::options! { strict_booleans: true };
    let file: Value =
        serde_saphyr::from_str_with_options(include_str!("cases.yaml"), options).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 40);
    for case in cases {
        run(case, &file["schemas"]);
    }
}

fn run(case: &Value, schemas: &Value) {
    let name = object_text(case, "name").unwrap();
    let kind = match object_text(case, "kind") {
        Some("Deployment") => Kind {
            api_version: "apps/v1",
            kind: "Deployment",
            schema: None,
        },
        Some(kind) => Kind {
            api_version: "v1",
            kind,
            schema: None,
        },
        None => Kind {
            api_version: "example.com/v1",
            kind: "Widget",
            schema: Some(&schemas["widget"]),
        },
    };
    let mut live: Option<Value> = None;
    for (i, op) in case["ops"].as_array().unwrap().iter().enumerate() {
        let place = format!("{name}, operation {i}");
        let now = format!("2024-05-01T00:00:{i:02}Z");
        let sub = object_text(op, "subresource");
        if let Some(object) = op.get("store") {
            live = Some(kind.complete(object));
        } else if let Some(manager) = object_text(op, "update") {
            let mut new = kind.complete(&op["object"]);
            track_update(
                live.as_ref(),
                &mut new,
                kind.schema,
                manager,
                sub,
                kind.api_version,
                &now,
            );
            live = Some(new);
        } else {
            let manager = object_text(op, "apply").unwrap();
            let applied = kind.complete(&op["object"]);
            let force = op.get("force") == Some(&Value::Bool(true));
            let go = |live: Option<&Value>, now: &str| {
                apply(
                    live,
                    &applied,
                    kind.schema,
                    manager,
                    sub,
                    kind.api_version,
                    force,
                    now,
                )
            };
            match (
                go(live.as_ref(), &now),
                object_text(op, "conflicts"),
                object_text(op, "invalid"),
            ) {
                (Ok(object), None, None) => {
                    let again = go(Some(&object), "2030-01-01T00:00:00Z").unwrap();
                    assert_eq!(again, object, "{place}: applying again must change nothing");
                    live = Some(object);
                }
                (Err(e @ ApplyError::Conflicts(_)), Some(expected), None) => {
                    assert_eq!(e.to_string(), expected, "{place}")
                }
                (Err(ApplyError::Invalid(message)), None, Some(expected)) => {
                    assert!(message.contains(expected), "{place}: {message}");
                }
                (result, ..) => panic!("{place}: {result:?}"),
            }
        }
    }
    let live = live.unwrap_or_else(|| json!({}));
    let mut body = live.clone();
    ["apiVersion", "kind", "metadata"]
        .into_iter()
        .for_each(|k| drop(body.as_object_mut().unwrap().remove(k)));
    assert_eq!(body, case["object"], "{name}: object");
    let Some(expected) = case.get("managed").and_then(Value::as_object) else {
        return;
    };
    let managers = Managers::decode(live.pointer("/metadata/managedFields")).unwrap();
    let mut owned = serde_json::Map::new();
    for (id, entry) in &managers.entries {
        let sub = if id.subresource.is_empty() {
            String::new()
        } else {
            format!("/{}", id.subresource)
        };
        owned.insert(format!("{}{sub}", id.name), entry.set.to_fields_v1());
    }
    let mut expected = expected.clone();
    for skipped in case
        .get("skip-managed")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        expected.remove(skipped.as_str().unwrap());
        owned.remove(skipped.as_str().unwrap());
    }
    assert_eq!(
        Value::Object(owned),
        Value::Object(expected),
        "{name}: owners"
    );
}

#[test]
fn finalizers_of_a_dropped_applier_go_and_others_stay() {
    let widget = |finalizers: Value| json!({"apiVersion": "e.com/v1", "kind": "W", "metadata": {"name": "w", "finalizers": finalizers}});
    let go = |live: Option<&Value>, object: &Value, manager: &str| {
        apply(live, object, None, manager, None, "e.com/v1", false, NOW).unwrap()
    };
    let one = go(None, &widget(json!(["one"])), "a");
    let both = go(Some(&one), &widget(json!(["two"])), "b");
    assert_eq!(both["metadata"]["finalizers"], json!(["one", "two"]));
    let left = go(Some(&both), &widget(json!([])), "a");
    assert_eq!(left["metadata"]["finalizers"], json!(["two"]));
    assert_eq!(left["metadata"]["name"], "w");
}

#[test]
fn system_metadata_in_the_applied_object_has_no_effect() {
    let live = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "w", "uid": "u", "resourceVersion": "5",
        "creationTimestamp": "2024-01-01T00:00:00Z", "generation": 3}});
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "w", "uid": "x", "resourceVersion": "5",
        "creationTimestamp": null, "generation": 9, "labels": {"l": "v"}}});
    let result = apply(Some(&live), &applied, None, "a", None, "v1", false, NOW).unwrap();
    let mut metadata = result["metadata"].clone();
    metadata.as_object_mut().unwrap().remove("managedFields");
    assert_eq!(
        metadata,
        json!({"name": "w", "uid": "u", "resourceVersion": "5",
        "creationTimestamp": "2024-01-01T00:00:00Z", "generation": 3, "labels": {"l": "v"}})
    );
}

#[test]
fn the_time_moves_only_when_the_set_or_a_value_changes() {
    let object = |size: i64| json!({"apiVersion": "e.com/v1", "kind": "W", "metadata": {"name": "w"}, "spec": {"size": size}});
    let time = |object: &Value| {
        object
            .pointer("/metadata/managedFields/0/time")
            .cloned()
            .unwrap()
    };
    let first = apply(
        None,
        &object(1),
        None,
        "a",
        None,
        "e.com/v1",
        false,
        "2024-01-01T00:00:01Z",
    )
    .unwrap();
    let same = apply(
        Some(&first),
        &object(1),
        None,
        "a",
        None,
        "e.com/v1",
        false,
        "2024-01-01T00:00:02Z",
    )
    .unwrap();
    assert_eq!(time(&same), "2024-01-01T00:00:01Z");
    let other = apply(
        Some(&same),
        &object(2),
        None,
        "a",
        None,
        "e.com/v1",
        false,
        "2024-01-01T00:00:03Z",
    )
    .unwrap();
    assert_eq!(time(&other), "2024-01-01T00:00:03Z");
}

#[test]
fn kubectl_keeps_its_last_applied_annotation_in_step() {
    let key = "kubectl.kubernetes.io/last-applied-configuration";
    let config = |size: i64| json!({"apiVersion": "e.com/v1", "kind": "W", "metadata": {"name": "w"}, "spec": {"size": size}});
    let mut live = config(1);
    live["metadata"]["annotations"] = json!({key: config(1).to_string()});
    track_update(
        None,
        &mut live,
        None,
        "kubectl-client-side-apply",
        None,
        "e.com/v1",
        NOW,
    );
    let result = apply(
        Some(&live),
        &config(2),
        None,
        "kubectl",
        None,
        "e.com/v1",
        false,
        NOW,
    )
    .unwrap();
    let text = result["metadata"]["annotations"][key].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), config(2));
    let by_other = apply(
        Some(&live),
        &config(1),
        None,
        "helm",
        None,
        "e.com/v1",
        false,
        NOW,
    )
    .unwrap();
    assert_eq!(
        by_other["metadata"]["annotations"],
        live["metadata"]["annotations"]
    );
}

#[test]
fn a_schema_change_to_atomic_turns_owned_parts_into_the_whole() {
    let schema = |map_type: &str| {
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "m": {"type": "object", "x-kubernetes-map-type": map_type, "properties": {"a": {"type": "string"}}}}}}})
    };
    let object = |a: &str| json!({"apiVersion": "e.com/v1", "kind": "W", "metadata": {"name": "w"}, "spec": {"m": {"a": a}}});
    let (granular, atomic) = (schema("granular"), schema("atomic"));
    let live = apply(
        None,
        &object("1"),
        Some(&granular),
        "a",
        None,
        "e.com/v1",
        false,
        NOW,
    )
    .unwrap();
    let refused = apply(
        Some(&live),
        &object("2"),
        Some(&atomic),
        "b",
        None,
        "e.com/v1",
        false,
        NOW,
    )
    .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 1 conflict: conflict with \"a\": .spec.m"
    );
}

#[test]
fn update_entries_are_capped() {
    let mut live = None;
    for n in 0..30 {
        let mut new =
            json!({"apiVersion": "e.com/v1", "kind": "W", "metadata": {"name": "w"}, "spec": {}});
        for k in 0..=n {
            new["spec"][format!("f{k}")] = k.into();
        }
        let now = format!("2024-01-01T00:00:{n:02}Z");
        track_update(
            live.as_ref(),
            &mut new,
            None,
            &format!("m{n}"),
            None,
            "e.com/v1",
            &now,
        );
        live = Some(new);
    }
    let managers = Managers::decode(live.unwrap().pointer("/metadata/managedFields")).unwrap();
    assert_eq!(managers.entries.len(), 10);
    assert!(
        managers
            .entries
            .keys()
            .any(|id| id.name == "ancient-changes")
    );
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "integer"}, "b": {"type": "integer"},
        "set": {"type": "array", "items": {"type": "integer"}, "x-kubernetes-list-type": "set"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "integer"}},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "integer"}, "v": {"type": "integer"},
                "deep": {"type": "object", "properties": {"x": {"type": "integer"}}}}}},
    }}}})
}

/// Objects of the schema above, keyed lists and sets without duplicates.
fn arbitrary_object() -> impl Strategy<Value = Value> {
    use prop::collection::{btree_map, btree_set, vec};
    use prop::option::weighted;
    let small = || 0..3i64;
    let key = || "[p-r]";
    let item = (
        weighted(0.5, small()),
        weighted(0.3, weighted(0.7, small())),
    )
        .prop_map(|(v, deep)| {
            let mut item = json!({});
            if let Some(v) = v {
                item["v"] = v.into();
            }
            if let Some(deep) = deep {
                item["deep"] = deep.map_or_else(|| json!({}), |x| json!({"x": x}));
            }
            item
        });
    let items = btree_map(small(), item, 0..3).prop_map(|m| {
        let with_key = m.into_iter().map(|(k, mut item)| {
            item["k"] = k.into();
            item
        });
        Value::from(with_key.collect::<Vec<_>>())
    });
    let free = prop_oneof![
        small().prop_map(|n| json!({"x": n})),
        small().prop_map(|n| json!({"x": {"y": n}})),
        Just(json!({"l": [1]}))
    ];
    let fields: Vec<(&'static str, BoxedStrategy<Value>)> = vec![
        ("a", small().prop_map(Value::from).boxed()),
        ("b", small().prop_map(Value::from).boxed()),
        (
            "set",
            btree_set(small(), 0..3).prop_map(|s| json!(s)).boxed(),
        ),
        ("list", vec(small(), 0..3).prop_map(|l| json!(l)).boxed()),
        (
            "whole",
            btree_map(key(), small(), 0..2)
                .prop_map(|m| json!(m))
                .boxed(),
        ),
        (
            "map",
            btree_map(key(), small(), 0..3)
                .prop_map(|m| json!(m))
                .boxed(),
        ),
        ("free", free.boxed()),
        ("items", items.boxed()),
    ];
    let optional: Vec<_> = fields
        .into_iter()
        .map(|(name, s)| weighted(0.5, s).prop_map(move |v| (name, v)))
        .collect();
    (optional, weighted(0.3, btree_map(key(), "[st]", 0..2))).prop_map(|(fields, labels)| {
        let mut object = json!({"apiVersion": "e.com/v1", "kind": "W", "metadata": {"name": "w"}});
        if let Some(labels) = labels {
            object["metadata"]["labels"] = json!(labels);
        }
        let spec: serde_json::Map<String, Value> = fields
            .into_iter()
            .filter_map(|(name, v)| Some((name.to_owned(), v?)))
            .collect();
        if !spec.is_empty() {
            object["spec"] = Value::Object(spec);
        }
        object
    })
}

#[derive(Debug, Clone)]
enum Write {
    Apply {
        manager: &'static str,
        object: Value,
        force: bool,
    },
    Update {
        manager: &'static str,
        object: Value,
    },
}

fn write() -> impl Strategy<Value = Write> {
    let manager = prop::sample::select(vec!["a", "b", "c"]);
    prop_oneof![
        3 => (manager.clone(), arbitrary_object(), any::<bool>()).prop_map(|(manager, object, force)| Write::Apply { manager, object, force }),
        1 => (manager, arbitrary_object()).prop_map(|(manager, object)| Write::Update { manager, object }),
    ]
}

/// Whether the path leads to something in the object.
fn exists(object: &Value, path: &[PathElement]) -> bool {
    let Some((first, rest)) = path.split_first() else {
        return true;
    };
    let next = match first {
        PathElement::Field(name) => object.get(name),
        PathElement::Key(json) => {
            let key: Value = serde_json::from_str(json).unwrap();
            object.as_array().and_then(|l| {
                l.iter().find(|i| {
                    key.as_object()
                        .unwrap()
                        .iter()
                        .all(|(k, v)| i.get(k) == Some(v))
                })
            })
        }
        PathElement::Value(json) => object
            .as_array()
            .and_then(|l| l.iter().find(|i| i.to_string() == *json)),
        PathElement::Index(_) => None,
    };
    next.is_some_and(|v| exists(v, rest))
}

fn check(object: &Value, context: &str) -> Result<(), TestCaseError> {
    let managers = Managers::decode(object.pointer("/metadata/managedFields")).unwrap();
    for (id, entry) in &managers.entries {
        prop_assert!(!entry.set.is_empty(), "{context}: {id:?} owns nothing");
        for path in entry.set.paths() {
            prop_assert!(
                exists(object, &path),
                "{context}: {id:?} owns {} of {object}",
                path_text(&path)
            );
        }
    }
    if !managers.entries.is_empty() {
        prop_assert_eq!(
            managers.encode(),
            object["metadata"]["managedFields"].clone()
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_sequence_of_writes_keeps_the_books(writes in prop::collection::vec(write(), 1..7)) {
        let schema = schema();
        let mut live: Option<Value> = None;
        for (i, write) in writes.iter().enumerate() {
            let now = format!("2024-01-01T00:00:{i:02}Z");
            match write {
                Write::Update { manager, object } => {
                    let mut new = object.clone();
                    track_update(live.as_ref(), &mut new, Some(&schema), manager, None, "e.com/v1", &now);
                    check(&new, "update")?;
                    let mut again = new.clone();
                    track_update(Some(&new), &mut again, Some(&schema), manager, None, "e.com/v1", "2030-01-01T00:00:00Z");
                    prop_assert_eq!(&again, &new, "the same update again");
                    live = Some(new);
                }
                Write::Apply { manager, object, force } => {
                    let go = |live: Option<&Value>, force: bool, now: &str| apply(live, object, Some(&schema), manager, None, "e.com/v1", force, now);
                    let result = go(live.as_ref(), *force, &now);
                    if *force {
                        prop_assert!(result.is_ok(), "force cannot fail: {result:?}");
                    }
                    let Ok(new) = result else { continue };
                    check(&new, "apply")?;
                    let shape = Shape::of_object("e.com/v1", "W", Some(&schema));
                    let lost = walk::compare(object, &new, shape).unwrap();
                    prop_assert!(lost.modified.is_empty(), "every applied value holds: {lost:?}");
                    prop_assert_eq!(&go(Some(&new), false, "2030-01-01T00:00:00Z").unwrap(), &new, "the same apply again");
                    live = Some(new);
                }
            }
        }
    }

    #[test]
    fn the_difference_of_a_value_with_itself_is_empty(object in arbitrary_object()) {
        let schema = schema();
        let shape = Shape::of_object("e.com/v1", "W", Some(&schema));
        prop_assert!(walk::compare(&object, &object, shape).unwrap().is_same());
        prop_assert_eq!(walk::merge(&object, &object, shape).unwrap(), object.clone());
        prop_assert_eq!(walk::remove(&object, &Set::default(), shape).unwrap(), object);
    }
}

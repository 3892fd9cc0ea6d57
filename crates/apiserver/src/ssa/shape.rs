//! How a value merges: the schema, seen only as far as field ownership needs it.

use serde_json::{Map, Value};

use super::builtin::{self, How};

/// The shape of one value, from a structural schema, from the table of built-in kinds, or deduced
/// from the value itself.
#[derive(Debug, Clone, Copy)]
pub enum Shape<'s> {
    /// A custom resource: a schema whose `metadata` is the standard one.
    Resource(&'s Value),
    /// A value with a structural OpenAPI schema.
    Schema(&'s Value),
    /// A struct of a built-in kind; "" for one without special fields.
    Builtin(&'static str),
    /// A list of a built-in kind that merges item by item.
    BuiltinList(&'static builtin::Field),
    /// Nothing is known: objects are granular maps, lists are atomic.
    Deduced,
    /// One leaf, whatever is inside.
    Leaf,
}

/// How a present value takes part in a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As a whole.
    Leaf,
    /// Field by field.
    Map,
    /// Item by item, items told apart by key fields.
    KeyedList,
    /// Item by item, items told apart by their value.
    SetList,
}

/// A field of a shape.
#[derive(Debug, Clone)]
pub struct Child<'s> {
    /// The shape of the field's value.
    pub shape: Shape<'s>,
    /// Whether the schema names the field (a struct's field, not a map's key).
    pub named: bool,
    /// What the field holds where it is not written, if it is always there: an empty struct, or null in place of a list.
    pub always: Option<Value>,
}

impl<'s> Shape<'s> {
    /// The shape of a whole object. Built-in kinds use the built-in table, whatever schema is
    /// given, because published schemas of those lack list types.
    pub fn of_object(api_version: &str, kind: &str, schema: Option<&'s Value>) -> Shape<'s> {
        if builtin::is_builtin(api_version) {
            return Shape::Builtin(builtin_kind(kind));
        }
        match schema {
            Some(schema) => Shape::Resource(schema),
            None => Shape::Resource(&NOTHING),
        }
    }

    /// The form of a value of this shape.
    pub fn form(self, value: &Value) -> Form {
        match value {
            Value::Object(_) => match self {
                Shape::Leaf => Form::Leaf,
                Shape::Schema(s) if text(s, "x-kubernetes-map-type") == "atomic" => Form::Leaf,
                _ => Form::Map,
            },
            Value::Array(_) => match self {
                Shape::Schema(s) => match text(s, "x-kubernetes-list-type") {
                    "map" => Form::KeyedList,
                    "set" => Form::SetList,
                    _ => Form::Leaf,
                },
                Shape::BuiltinList(field) => match field.how {
                    How::Keyed { ssa: [], .. } => Form::Leaf,
                    How::Keyed { .. } => Form::KeyedList,
                    How::Set => Form::SetList,
                    How::Struct | How::Pointer | How::RetainKeys => Form::Leaf,
                },
                _ => Form::Leaf,
            },
            _ => Form::Leaf,
        }
    }

    /// The field of this name.
    pub fn field(self, name: &str) -> Child<'s> {
        let child = |shape, named, always_present: bool| Child {
            shape,
            named,
            always: always_present.then(|| Value::Object(Map::new())),
        };
        match self {
            Shape::Resource(_) if name == "metadata" => {
                child(Shape::Builtin("ObjectMeta"), true, true)
            }
            Shape::Resource(schema) => match name {
                "apiVersion" | "kind" => child(Shape::Leaf, true, false),
                _ => Shape::Schema(schema).field(name),
            },
            Shape::Schema(schema) => {
                let embedded =
                    schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true));
                if embedded && name == "metadata" {
                    return child(Shape::Builtin("ObjectMeta"), true, false);
                }
                if let Some(property) = schema.get("properties").and_then(|p| p.get(name)) {
                    return child(Shape::Schema(property), true, false);
                }
                match schema.get("additionalProperties") {
                    Some(element @ Value::Object(_)) => child(Shape::Schema(element), false, false),
                    _ => child(Shape::Deduced, false, false),
                }
            }
            Shape::Builtin(owner) => {
                if name == "metadata" && BUILTIN_ROOTS.contains(&owner) {
                    return child(Shape::Builtin("ObjectMeta"), true, true);
                }
                if builtin::is_leaf(name) {
                    return child(Shape::Leaf, true, false);
                }
                match builtin::lookup(owner, name) {
                    Some(field) => match field.how {
                        How::Struct | How::RetainKeys => {
                            child(Shape::Builtin(field.of), true, true)
                        }
                        How::Pointer => child(Shape::Builtin(field.of), true, false),
                        How::Keyed { .. } | How::Set => Child {
                            shape: Shape::BuiltinList(field),
                            named: true,
                            always: builtin::is_required(field).then_some(Value::Null),
                        },
                    },
                    None if builtin::is_map(name) => child(Shape::Deduced, true, false),
                    None => Child {
                        always: builtin::always(owner, name),
                        ..child(Shape::Builtin(""), true, false)
                    },
                }
            }
            Shape::BuiltinList(_) | Shape::Deduced => child(Shape::Deduced, false, false),
            Shape::Leaf => child(Shape::Leaf, false, false),
        }
    }

    /// The shape of a list's items.
    pub fn item(self) -> Shape<'s> {
        match self {
            Shape::Schema(schema) => schema.get("items").map_or(Shape::Deduced, Shape::Schema),
            Shape::BuiltinList(field) => match field.of {
                "=" => Shape::Leaf,
                of => Shape::Builtin(of),
            },
            Shape::Leaf => Shape::Leaf,
            _ => Shape::Deduced,
        }
    }

    /// The key fields of a keyed list, with the value that stands for an absent key.
    pub fn keys(self) -> Vec<(&'s str, Option<Value>)> {
        match self {
            Shape::Schema(schema) => {
                let keys = schema
                    .get("x-kubernetes-list-map-keys")
                    .and_then(Value::as_array);
                let default = |key: &str| {
                    schema
                        .pointer("/items/properties")?
                        .get(key)?
                        .get("default")
                        .cloned()
                };
                keys.into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(|k| (k, default(k)))
                    .collect()
            }
            Shape::BuiltinList(field) => match field.how {
                How::Keyed { ssa, .. } => {
                    ssa.iter().map(|k| (*k, builtin::key_default(k))).collect()
                }
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}

fn text<'v>(schema: &'v Value, key: &str) -> &'v str {
    schema.get(key).and_then(Value::as_str).unwrap_or_default()
}

static NOTHING: Value = Value::Null;

/// Kinds whose own fields are in the built-in table; every other kind shares the last entry.
static BUILTIN_ROOTS: &[&str] = &[
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "ReplicationController",
    "Job",
    "CronJob",
    "PodTemplate",
    "Pod",
    "Service",
    "ServiceAccount",
    "Node",
    "PersistentVolumeClaim",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "CSINode",
    "CustomResourceDefinition",
    "Event",
    "Object",
];

/// The name of a built-in kind as a static string.
pub fn builtin_kind(kind: &str) -> &'static str {
    BUILTIN_ROOTS
        .iter()
        .copied()
        .find(|k| *k == kind)
        .unwrap_or("Object")
}

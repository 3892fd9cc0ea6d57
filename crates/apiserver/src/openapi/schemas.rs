//! The schemas of one document: those of its kinds and lists, and all that they refer to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::builtin::{REFERENCE, definitions};
use crate::discovery::group_version;
use crate::registry::{ResourceInfo, VersionInfo};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an \
                           object. Servers should convert recognized schemas to the latest \
                           internal value, and may reject unrecognized values.";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. \
                    Cannot be updated. In CamelCase.";

/// The schemas collected so far.
#[derive(Default)]
pub(super) struct Schemas {
    schemas: BTreeMap<String, Value>,
}

/// The names of the schemas of a resource.
pub(super) struct Names {
    pub object: String,
    pub list: String,
}

impl Schemas {
    /// Adds the schemas of a resource.
    pub fn add(&mut self, resource: &ResourceInfo, info: &VersionInfo) -> Names {
        let known = definitions().name(&resource.group, &info.name, &resource.kind);
        let object = match (&info.schema, known) {
            (None, Some(name)) => {
                self.refer(name);
                name.to_string()
            }
            (schema, _) => {
                let name = name_of(&resource.group, &info.name, &resource.kind);
                let schema = custom(schema.as_deref(), resource, info);
                self.insert(name.clone(), schema);
                name
            }
        };
        let list = match object.strip_suffix(&resource.kind) {
            Some(prefix) => format!("{prefix}{}", resource.list_kind),
            None => format!("{object}List"),
        };
        let is_listed = resource.allows("list");
        if is_listed {
            self.insert(list.clone(), list_of(resource, info, &object));
        }
        Names { object, list }
    }

    /// Adds a built-in schema with all that it refers to.
    pub fn refer(&mut self, name: &str) {
        if self.schemas.contains_key(name) {
            return;
        }
        if let Some(schema) = definitions().schemas.get(name) {
            self.insert(name.to_string(), schema.clone());
        }
    }

    /// Adds the built-in schema of a kind, if it has one, and tells its name.
    pub fn kind(&mut self, group: &str, version: &str, kind: &str) -> Option<String> {
        let name = definitions().name(group, version, kind)?;
        self.refer(name);
        Some(name.to_string())
    }

    /// Adds a schema of `meta/v1` and returns a reference to it.
    pub fn meta(&mut self, kind: &str) -> Value {
        let name = format!("{META}.{kind}");
        self.refer(&name);
        reference(&name)
    }

    fn insert(&mut self, name: String, schema: Value) {
        let mut names = Vec::new();
        references(&schema, &mut names);
        self.schemas.insert(name, schema);
        for name in names {
            self.refer(&name);
        }
    }

    /// All schemas by name.
    pub fn finish(self) -> Map<String, Value> {
        self.schemas.into_iter().collect()
    }
}

/// A reference to a schema.
pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("{REFERENCE}{name}")})
}

fn described(name: &str, description: &str) -> Value {
    json!({"allOf": [reference(name)], "default": {}, "description": description})
}

fn references(schema: &Value, names: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            for (word, sub) in map {
                match sub {
                    Value::String(text) if word == "$ref" => {
                        names.extend(text.strip_prefix(REFERENCE).map(str::to_string));
                    }
                    _ => references(sub, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, names)),
        _ => {}
    }
}

/// The name of a custom kind's schema: the group backwards, version, kind.
fn name_of(group: &str, version: &str, kind: &str) -> String {
    let mut parts: Vec<&str> = group.split('.').rev().collect();
    parts.extend([version, kind]);
    parts.join(".")
}

/// The schema of a custom resource, completed by what every object has.
fn custom(schema: Option<&Value>, resource: &ResourceInfo, info: &VersionInfo) -> Value {
    let mut whole = match schema {
        Some(Value::Object(map)) => map.clone(),
        _ => Map::new(),
    };
    whole.insert("type".to_string(), "object".into());
    whole.insert(
        "x-kubernetes-group-version-kind".to_string(),
        json!([{"group": resource.group, "version": info.name, "kind": resource.kind}]),
    );
    let properties = whole.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        for (name, description) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            let entry = json!({"type": "string", "description": description});
            properties.insert(name.to_string(), entry);
        }
        let name = format!("{META}.ObjectMeta");
        let description = "Standard object's metadata.";
        properties.insert("metadata".to_string(), described(&name, description));
    }
    Value::Object(whole)
}

fn list_of(resource: &ResourceInfo, info: &VersionInfo, object: &str) -> Value {
    let of = group_version(&resource.group, &info.name);
    json!({
        "description": format!("{} is a list of {} of {of}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "metadata": described(&format!("{META}.ListMeta"), "Standard list metadata."),
            "items": {
                "description": format!("List of {}.", resource.plural),
                "type": "array",
                "items": {"allOf": [reference(object)], "default": {}},
            },
        },
        "x-kubernetes-group-version-kind": [
            {"group": resource.group, "version": info.name, "kind": resource.list_kind},
        ],
    })
}

//! The schemas of built-in kinds, from the types of `k8s-openapi`, in the form in which the API
//! server publishes them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use k8s_openapi::Resource;
use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, authentication::v1 as authentication,
    authorization::v1 as authorization, autoscaling::v1 as autoscaling_v1,
    autoscaling::v2 as autoscaling, batch::v1 as batch, certificates::v1 as certificates,
    coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery,
    events::v1 as events, networking::v1 as networking, node::v1 as node, policy::v1 as policy,
    rbac::v1 as rbac, scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::ssa::{How, builtin_field};

/// Where references point to.
pub(super) const REFERENCE: &str = "#/components/schemas/";

/// All schemas of built-in types, by their full name.
pub(super) struct Definitions {
    pub schemas: BTreeMap<String, Value>,
    /// The name of the schema of each kind, by `group/version/kind`.
    kinds: BTreeMap<String, String>,
}

impl Definitions {
    /// The name of the schema of a kind.
    pub fn name(&self, group: &str, version: &str, kind: &str) -> Option<&str> {
        self.kinds
            .get(&format!("{group}/{version}/{kind}"))
            .map(String::as_str)
    }

    /// The schema that a node of another schema is or refers to.
    pub fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        reference(schema)
            .and_then(|r| r.strip_prefix(REFERENCE))
            .and_then(|name| self.schemas.get(name))
            .unwrap_or(schema)
    }
}

/// Drops the fields of an object that its kind does not have, and returns their paths, such as
/// `spec.template.spec.containers[0].imagee`; `None` for kinds without a known schema.
pub fn prune(group: &str, version: &str, kind: &str, object: &mut Value) -> Option<Vec<String>> {
    let definitions = definitions();
    let schema = definitions
        .schemas
        .get(definitions.name(group, version, kind)?)?;
    let mut dropped = Vec::new();
    prune_value(definitions, schema, object, &mut dropped);
    Some(dropped)
}

/// Adds the paths of what it drops, as seen from `value`.
fn prune_value(all: &Definitions, schema: &Value, value: &mut Value, dropped: &mut Vec<String>) {
    let schema = all.resolve(schema);
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties");
            let additional = schema.get("additionalProperties");
            if properties.is_none() && additional.is_none() {
                return;
            }
            map.retain(|name, sub| {
                let known = properties.and_then(|p| p.get(name)).or(additional);
                match known {
                    Some(known) => prune_below(all, known, sub, dropped, || name.clone()),
                    None => dropped.push(name.clone()),
                }
                known.is_some()
            });
        }
        Value::Array(items) => {
            if let Some(known) = schema.get("items") {
                for (n, item) in items.iter_mut().enumerate() {
                    prune_below(all, known, item, dropped, || format!("[{n}]"));
                }
            }
        }
        _ => {}
    }
}

/// As [`prune_value`], with paths that begin at the value around this one. Nearly always nothing is dropped,
/// so that they are put together on the way back.
fn prune_below(
    all: &Definitions,
    schema: &Value,
    value: &mut Value,
    dropped: &mut Vec<String>,
    step: impl Fn() -> String,
) {
    let before = dropped.len();
    prune_value(all, schema, value, dropped);
    let parting = if value.is_array() { "" } else { "." };
    for path in &mut dropped[before..] {
        *path = format!("{}{parting}{path}", step());
    }
}

/// Puts the zero value of their type in the place of nulls among the items of lists and the values of maps, as decoding
/// into Go's types does.
pub fn fill_nulls(group: &str, version: &str, kind: &str, object: &mut Value) {
    let definitions = definitions();
    let name = definitions.name(group, version, kind);
    if let Some(schema) = name.and_then(|n| definitions.schemas.get(n)) {
        fill(definitions, schema, object);
    }
}

fn fill(all: &Definitions, schema: &Value, value: &mut Value) {
    let schema = all.resolve(schema);
    let each = |known: &Value, sub: &mut Value| {
        if sub.is_null() {
            let whole = all.resolve(known);
            let kind = whole.get("type").and_then(Value::as_str);
            let bytes = whole.get("format").is_some_and(|f| f == "byte");
            *sub = match kind {
                Some("string") if !bytes => json!(""),
                Some("integer" | "number") => json!(0),
                Some("boolean") => json!(false),
                Some("object") if whole.get("properties").is_some() => json!({}),
                _ => Value::Null,
            };
        }
        fill(all, known, sub);
    };
    match value {
        Value::Object(map) => {
            for (name, sub) in map {
                let property = schema.get("properties").and_then(|p| p.get(name));
                match (property, schema.get("additionalProperties")) {
                    (Some(known), _) => fill(all, known, sub),
                    (None, Some(known)) => each(known, sub),
                    (None, None) => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(known) = schema.get("items") {
                items.iter_mut().for_each(|item| each(known, item));
            }
        }
        _ => {}
    }
}

/// Puts the zero value of their type where texts, numbers and truths are missing that an object of the kind always has, as
/// Go's types print them.
pub fn fill_required(group: &str, version: &str, kind: &str, object: &mut Value) {
    let definitions = definitions();
    let name = definitions.name(group, version, kind);
    if let Some(schema) = name.and_then(|n| definitions.schemas.get(n)) {
        require(definitions, schema, object);
    }
}

fn require(all: &Definitions, schema: &Value, value: &mut Value) {
    let schema = all.resolve(schema);
    let property = |name: &str| schema.get("properties").and_then(|p| p.get(name));
    match value {
        Value::Object(map) => {
            let required = schema.get("required").and_then(Value::as_array);
            for name in required.into_iter().flatten().filter_map(Value::as_str) {
                let known = property(name).map(|known| all.resolve(known));
                let kind = known.and_then(|k| k.get("type")).and_then(Value::as_str);
                let zero = match kind {
                    // A text of another form is no Go string.
                    Some("string") if known.is_none_or(|k| k.get("format").is_none()) => json!(""),
                    Some("integer") => json!(0),
                    Some("boolean") => json!(false),
                    _ => continue,
                };
                map.entry(name).or_insert(zero);
            }
            for (name, sub) in map {
                if let Some(known) = property(name).or(schema.get("additionalProperties")) {
                    require(all, known, sub);
                }
            }
        }
        Value::Array(items) => {
            if let Some(known) = schema.get("items") {
                items.iter_mut().for_each(|item| require(all, known, item));
            }
        }
        _ => {}
    }
}

/// The first field of an object that has another JSON type than its kind says, as a sentence.
pub fn type_problem(group: &str, version: &str, kind: &str, object: &Value) -> Option<String> {
    let definitions = definitions();
    let name = definitions.name(group, version, kind)?;
    let schema = definitions.schemas.get(name)?;
    check_type(definitions, schema, object, short(name), "")
}

/// The last part of the name of a definition or of a reference: the name of the type in Go.
fn short(name: &str) -> &str {
    name.rsplit(['.', '/']).next().unwrap_or_default()
}

/// What a schema refers to.
pub(super) fn reference(schema: &Value) -> Option<&str> {
    let found = schema.get("$ref");
    found
        .or_else(|| schema.get("allOf")?.get(0)?.get("$ref"))
        .and_then(Value::as_str)
}

/// The type of a schema in Go.
fn go_type(all: &Definitions, schema: &Value) -> String {
    let whole = all.resolve(schema);
    let below = |field: &str| whole.get(field).map(|sub| go_type(all, sub));
    let format = whole.get("format").and_then(Value::as_str);
    match (whole.get("type").and_then(Value::as_str), format) {
        (Some("string"), Some("byte")) => "[]uint8".into(),
        (Some("boolean"), _) => "bool".into(),
        (Some("integer"), format) => format.unwrap_or("int64").into(),
        (Some("number"), _) => "float64".into(),
        (Some("array"), _) => format!("[]{}", below("items").unwrap_or_default()),
        (Some("object"), _) if whole.get("additionalProperties").is_some() => {
            let values = below("additionalProperties").unwrap_or_default();
            format!("map[string]{values}")
        }
        (Some("object"), _) => {
            // The package is the part before the name.
            let name = reference(schema).unwrap_or_default();
            let parts: Vec<&str> = name.rsplitn(3, ['.', '/']).collect();
            match parts[..] {
                [name, package, _] => format!("{package}.{name}"),
                _ => name.into(),
            }
        }
        _ => "string".into(),
    }
}

/// What is wrong with a text that stands for a value of another type.
fn text_problem(schema: &Value, format: &str, text: &str) -> Option<String> {
    let named = reference(schema).map(short).unwrap_or_default();
    match (named, format) {
        ("Quantity", _) if !is_quantity(text) => Some(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                .into(),
        ),
        ("MicroTime", _) if !is_micro_time(text) => {
            let seconds = text
                .get(..19)
                .filter(|s| format!("{s}Z").parse::<jiff::Timestamp>().is_ok());
            let (rest, wanted) = match seconds {
                Some(_) => (&text[19..], ".000000"),
                None => (text, "2006"),
            };
            Some(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse {rest:?} as {wanted:?}"
            ))
        }
        ("MicroTime", _) => None,
        (_, "date-time") if text.parse::<jiff::Timestamp>().is_err() => Some(format!(
            "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
        )),
        (_, "byte") if STANDARD.decode(text.replace(['\r', '\n'], "")).is_err() => {
            Some("illegal base64 data".into())
        }
        _ => None,
    }
}

/// A number with an optional suffix.
fn is_quantity(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let exponent = |s: &str| s.parse::<i32>().is_ok();
    number.parse::<f64>().is_ok()
        && match suffix {
            "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E" | "Ki" | "Mi" | "Gi"
            | "Ti" | "Pi" | "Ei" => true,
            _ => suffix.strip_prefix(['e', 'E']).is_some_and(exponent),
        }
}

/// A time with exactly six digits of a second.
fn is_micro_time(text: &str) -> bool {
    let digits = text.split_once('.').map(|(_, rest)| {
        rest.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len())
    });
    digits == Some(6) && text.parse::<jiff::Timestamp>().is_ok()
}

/// `owner`: the Go type of the struct that has the field, `path`: the fields that lead to it, without keys and numbers.
fn check_type(
    all: &Definitions,
    schema: &Value,
    value: &Value,
    owner: &str,
    path: &str,
) -> Option<String> {
    let referred = schema;
    if reference(referred).map(short) == Some("IntOrString") {
        let found = match value {
            Value::Bool(_) => "bool",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            _ => return None,
        };
        return Some(format!(
            "json: cannot unmarshal {found} into Go value of type int32"
        ));
    }
    let schema = all.resolve(schema);
    let expected = schema.get("type").and_then(Value::as_str).unwrap_or("");
    let (fits, found) = match value {
        // Null stands for absence.
        Value::Null => return None,
        Value::Bool(_) => (expected == "boolean", "bool".to_owned()),
        Value::Number(n) if expected == "integer" => {
            let short = schema.get("format").is_some_and(|f| f == "int32");
            let within = n
                .as_i64()
                .is_some_and(|n| !short || i32::try_from(n).is_ok());
            (within, format!("number {n}"))
        }
        Value::Number(_) => (expected == "number", "number".to_owned()),
        Value::String(_) => (expected == "string", "string".to_owned()),
        Value::Array(_) => (expected == "array", "array".to_owned()),
        Value::Object(_) => (expected == "object", "object".to_owned()),
    };
    if !fits && !expected.is_empty() {
        let kind = go_type(all, referred);
        // These read their own texts.
        let named = reference(referred).map(short).unwrap_or_default();
        return Some(match named {
            "Time" | "MicroTime" => {
                format!("json: cannot unmarshal {found} into Go value of type string")
            }
            _ => format!(
                "json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {kind}"
            ),
        });
    }
    match value {
        Value::String(text) => {
            let format = schema.get("format").and_then(Value::as_str);
            text_problem(referred, format.unwrap_or_default(), text)
        }
        Value::Object(map) => map.iter().find_map(|(name, sub)| {
            let field = schema.get("properties").and_then(|p| p.get(name));
            if let Some(known) = field {
                let owner = reference(referred).map_or(owner, short);
                let here = match path {
                    "" => name.clone(),
                    path => format!("{path}.{name}"),
                };
                return check_type(all, known, sub, owner, &here);
            }
            let known = schema.get("additionalProperties")?;
            check_type(all, known, sub, owner, path)
        }),
        Value::Array(items) => {
            let known = schema.get("items")?;
            items
                .iter()
                .find_map(|item| check_type(all, known, item, owner, path))
        }
        _ => None,
    }
}

/// All definitions; they are the same for every server, so they are made once.
pub(super) fn definitions() -> &'static Definitions {
    static DEFINITIONS: OnceLock<Definitions> = OnceLock::new();
    DEFINITIONS.get_or_init(generate)
}

macro_rules! kinds {
    ($generator:ident, $kinds:ident: $($kind:ty),+ $(,)?) => {
        $(add::<$kind>(&mut $generator, &mut $kinds);)+
    };
}

fn generate() -> Definitions {
    let mut generator = SchemaSettings::openapi3()
        .with(|settings| {
            // References keep the description beside them until `published` wraps them.
            settings.transforms.clear();
            settings.meta_schema = None;
        })
        .into_generator();
    let mut kinds = Vec::new();
    kinds!(generator, kinds:
        core::Binding, core::ConfigMap, core::Endpoints, core::Event, core::LimitRange,
        core::Namespace, core::Node, core::PersistentVolume, core::PersistentVolumeClaim,
        core::Pod, core::PodTemplate, core::ReplicationController, core::ResourceQuota,
        core::Secret, core::Service, core::ServiceAccount,
        apps::ControllerRevision, apps::DaemonSet, apps::Deployment, apps::ReplicaSet,
        apps::StatefulSet,
        admission::MutatingWebhookConfiguration, admission::ValidatingAdmissionPolicy,
        admission::ValidatingAdmissionPolicyBinding, admission::ValidatingWebhookConfiguration,
        apiextensions::CustomResourceDefinition,
        authentication::SelfSubjectReview, authentication::TokenRequest,
        authentication::TokenReview,
        authorization::LocalSubjectAccessReview, authorization::SelfSubjectAccessReview,
        authorization::SelfSubjectRulesReview, authorization::SubjectAccessReview,
        autoscaling::HorizontalPodAutoscaler, autoscaling_v1::Scale,
        batch::CronJob, batch::Job,
        certificates::CertificateSigningRequest,
        coordination::Lease,
        discovery::EndpointSlice,
        events::Event,
        networking::Ingress, networking::IngressClass, networking::NetworkPolicy,
        node::RuntimeClass,
        policy::Eviction, policy::PodDisruptionBudget,
        rbac::ClusterRole, rbac::ClusterRoleBinding, rbac::Role, rbac::RoleBinding,
        scheduling::PriorityClass,
        storage::CSIDriver, storage::CSINode, storage::CSIStorageCapacity, storage::StorageClass,
        storage::VolumeAttachment, storage::VolumeAttributesClass,
        meta::Status,
    );
    generator.subschema_for::<meta::DeleteOptions>();
    generator.subschema_for::<meta::ListMeta>();
    let mut schemas: BTreeMap<String, Value> = generator
        .take_definitions(false)
        .into_iter()
        .map(|(name, schema)| (name, published(schema)))
        .collect();
    for (group, version, kind, name) in &kinds {
        if let Some(Value::Object(schema)) = schemas.get_mut(name) {
            finish_kind(schema, group, version, kind);
        }
    }
    for (name, schema) in &mut schemas {
        mark_lists(name, schema);
    }
    for (name, schema) in special() {
        schemas.insert(name.to_string(), schema);
    }
    let kinds = kinds
        .into_iter()
        .map(|(group, version, kind, name)| (format!("{group}/{version}/{kind}"), name))
        .collect();
    Definitions { schemas, kinds }
}

/// Group, version and kind of a type, and the name of its schema.
type Kind = (&'static str, &'static str, &'static str, String);

fn add<T: JsonSchema + Resource>(generator: &mut SchemaGenerator, kinds: &mut Vec<Kind>) {
    generator.subschema_for::<T>();
    kinds.push((T::GROUP, T::VERSION, T::KIND, T::schema_name().into_owned()));
}

/// Wraps references with siblings, which OpenAPI 3.0 would ignore.
fn published(schema: Value) -> Value {
    match schema {
        Value::Object(map) => {
            let mut map: Map<String, Value> = map
                .into_iter()
                .map(|(name, sub)| (name, published(sub)))
                .collect();
            // A property may be called `$ref` too; its value is a schema then.
            let is_reference = map.get("$ref").is_some_and(Value::is_string);
            if is_reference && map.len() > 1 {
                let reference = map.remove("$ref").unwrap_or_default();
                map.insert("allOf".to_string(), json!([{ "$ref": reference }]));
                map.insert("default".to_string(), json!({}));
            }
            Value::Object(map)
        }
        Value::Array(items) => items.into_iter().map(published).collect(),
        other => other,
    }
}

/// Says of the fields of a type how patches merge them: clients compute strategic merge patches from it.
fn mark_lists(name: &str, schema: &mut Value) {
    let owner = name.rsplit('.').next().unwrap_or_default();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (property, schema) in properties.into_iter().flatten() {
        let (Some(field), Some(schema)) = (builtin_field(owner, property), schema.as_object_mut())
        else {
            continue;
        };
        let mut mark = |name: &str, value: Value| {
            schema.insert(format!("x-kubernetes-{name}"), value);
        };
        match field.how {
            How::Keyed {
                smp,
                ssa,
                retain_keys,
            } => {
                if !smp.is_empty() {
                    let strategy = if retain_keys {
                        "merge,retainKeys"
                    } else {
                        "merge"
                    };
                    mark("patch-strategy", json!(strategy));
                    mark("patch-merge-key", json!(smp));
                }
                if ssa.is_empty() {
                    mark("list-type", json!("atomic"));
                } else {
                    mark("list-type", json!("map"));
                    mark("list-map-keys", json!(ssa));
                }
            }
            How::Set => {
                mark("patch-strategy", json!("merge"));
                mark("list-type", json!("set"));
            }
            How::RetainKeys => mark("patch-strategy", json!("retainKeys")),
            How::Struct | How::Pointer => {}
        }
    }
}

/// Marks the schema of a kind as such. Its metadata is no required field for clients.
fn finish_kind(schema: &mut Map<String, Value>, group: &str, version: &str, kind: &str) {
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| name != "metadata");
        if required.is_empty() {
            schema.remove("required");
        }
    }
    schema.insert(
        "x-kubernetes-group-version-kind".to_string(),
        json!([{"group": group, "version": version, "kind": kind}]),
    );
}

/// Schemas that the API server publishes in another form than the types suggest, and the one that
/// has no type.
fn special() -> Vec<(&'static str, Value)> {
    let any = |description: &str| json!({ "description": description });
    let prefix = "JSONSchemaProps or another value, see the JSON Schema specification.";
    vec![
        (
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
            json!({
                "description": "IntOrString holds an int32 or a string, such as the number or the \
                                name of a port.",
                "format": "int-or-string",
                "oneOf": [{"type": "integer"}, {"type": "string"}],
            }),
        ),
        (
            "io.k8s.apimachinery.pkg.api.resource.Quantity",
            json!({
                "description": "Quantity is a number with a suffix, such as 1Gi or 500m.",
                "oneOf": [{"type": "string"}, {"type": "number"}],
            }),
        ),
        (
            "io.k8s.apimachinery.pkg.apis.meta.v1.Patch",
            json!({
                "description": "Patch is the body of a PATCH request.",
                "type": "object",
            }),
        ),
        (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
            any("JSON is any JSON value."),
        ),
        (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
            any(prefix),
        ),
        (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
            any(prefix),
        ),
        (
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
            any(prefix),
        ),
    ]
}

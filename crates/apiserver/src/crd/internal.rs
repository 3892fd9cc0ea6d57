//! Definitions as Kubernetes prints them in errors: its internal types, whose fields have Go's names, all of them.
//!
//! Source: apiextensions-apiserver, `pkg/apis/apiextensions/types.go` and `types_jsonschema.go`.

use serde_json::Value;

use crate::schema::{FieldError, FieldErrorKind};

/// How a field of a Go struct is printed when it is not set.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Flag,
    /// A pointer, a list or a map of plain values.
    Plain,
    One(&'static [Field]),
    Many(&'static [Field]),
    /// A schema, a list of schemas, schemas by name.
    Schema,
    Schemas,
    Named,
    /// A schema or `true`/`false`.
    OrFlag,
    /// A schema or a list of them.
    OrMany,
}

type Field = (&'static str, &'static str, Kind);

use Kind::{Flag, Many, Named, One, OrFlag, OrMany, Plain, Schema, Schemas, Text};

const VERSION: &[Field] = &[
    ("Name", "name", Text),
    ("Served", "served", Flag),
    ("Storage", "storage", Flag),
    ("Deprecated", "deprecated", Flag),
    ("DeprecationWarning", "deprecationWarning", Plain),
    ("Schema", "schema", One(VALIDATION)),
    ("Subresources", "subresources", One(SUBRESOURCES)),
    (
        "AdditionalPrinterColumns",
        "additionalPrinterColumns",
        Many(COLUMN),
    ),
    ("SelectableFields", "selectableFields", Many(SELECTABLE)),
];
const VALIDATION: &[Field] = &[("OpenAPIV3Schema", "openAPIV3Schema", Schema)];
const SUBRESOURCES: &[Field] = &[
    ("Status", "status", One(&[])),
    ("Scale", "scale", One(SCALE)),
];
const SCALE: &[Field] = &[
    ("SpecReplicasPath", "specReplicasPath", Text),
    ("StatusReplicasPath", "statusReplicasPath", Text),
    ("LabelSelectorPath", "labelSelectorPath", Plain),
];
const COLUMN: &[Field] = &[
    ("Name", "name", Text),
    ("Type", "type", Text),
    ("Format", "format", Text),
    ("Description", "description", Text),
    ("Priority", "priority", Plain),
    ("JSONPath", "jsonPath", Text),
];
const SELECTABLE: &[Field] = &[("JSONPath", "jsonPath", Text)];
const DOCS: &[Field] = &[("Description", "description", Text), ("URL", "url", Text)];
const RULE: &[Field] = &[
    ("Rule", "rule", Text),
    ("Message", "message", Text),
    ("MessageExpression", "messageExpression", Text),
    ("Reason", "reason", Plain),
    ("FieldPath", "fieldPath", Text),
    ("OptionalOldSelf", "optionalOldSelf", Plain),
];
const SCHEMA: &[Field] = &[
    ("ID", "id", Text),
    ("Schema", "$schema", Text),
    ("Ref", "$ref", Plain),
    ("Description", "description", Text),
    ("Type", "type", Text),
    ("Nullable", "nullable", Flag),
    ("Format", "format", Text),
    ("Title", "title", Text),
    ("Default", "default", Plain),
    ("Maximum", "maximum", Plain),
    ("ExclusiveMaximum", "exclusiveMaximum", Flag),
    ("Minimum", "minimum", Plain),
    ("ExclusiveMinimum", "exclusiveMinimum", Flag),
    ("MaxLength", "maxLength", Plain),
    ("MinLength", "minLength", Plain),
    ("Pattern", "pattern", Text),
    ("MaxItems", "maxItems", Plain),
    ("MinItems", "minItems", Plain),
    ("UniqueItems", "uniqueItems", Flag),
    ("MultipleOf", "multipleOf", Plain),
    ("Enum", "enum", Plain),
    ("MaxProperties", "maxProperties", Plain),
    ("MinProperties", "minProperties", Plain),
    ("Required", "required", Plain),
    ("Items", "items", OrMany),
    ("AllOf", "allOf", Schemas),
    ("OneOf", "oneOf", Schemas),
    ("AnyOf", "anyOf", Schemas),
    ("Not", "not", Schema),
    ("Properties", "properties", Named),
    ("AdditionalProperties", "additionalProperties", OrFlag),
    ("PatternProperties", "patternProperties", Named),
    ("Dependencies", "dependencies", Plain),
    ("AdditionalItems", "additionalItems", OrFlag),
    ("Definitions", "definitions", Named),
    ("ExternalDocs", "externalDocs", One(DOCS)),
    ("Example", "example", Plain),
    (
        "XPreserveUnknownFields",
        "x-kubernetes-preserve-unknown-fields",
        Plain,
    ),
    ("XEmbeddedResource", "x-kubernetes-embedded-resource", Flag),
    ("XIntOrString", "x-kubernetes-int-or-string", Flag),
    ("XListMapKeys", "x-kubernetes-list-map-keys", Plain),
    ("XListType", "x-kubernetes-list-type", Plain),
    ("XMapType", "x-kubernetes-map-type", Plain),
    ("XValidations", "x-kubernetes-validations", Many(RULE)),
];

/// Adds an error about `spec.versions`.
pub(super) fn versions_error(versions: &[Value], why: &str, errors: &mut Vec<FieldError>) {
    let versions = many(VERSION, versions);
    let why = format!("{versions}: {why}");
    let kind = FieldErrorKind::Invalid;
    errors.push(FieldError::new("spec.versions", kind, None, why));
}

/// A schema.
pub(super) fn schema(schema: &Value) -> String {
    one(SCHEMA, schema)
}

/// A rule of a schema.
pub(crate) fn rule(rule: &Value) -> String {
    one(RULE, rule)
}

fn one(fields: &[Field], value: &Value) -> String {
    let fields = fields.iter().map(|(name, from, kind)| {
        let value = value.get(from).filter(|v| !v.is_null());
        format!("{name:?}:{}", field(*kind, value))
    });
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

fn many(fields: &[Field], values: &[Value]) -> String {
    let items = values.iter().map(|v| one(fields, v));
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

fn field(kind: Kind, value: Option<&Value>) -> String {
    let Some(value) = value else {
        return match kind {
            Text => "\"\"".into(),
            Flag => "false".into(),
            _ => "null".into(),
        };
    };
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    match kind {
        Text | Flag | Plain => value.to_string(),
        One(fields) => one(fields, value),
        Many(fields) => many(fields, list),
        Schema => schema(value),
        Schemas => many(SCHEMA, list),
        Named => {
            let entries = value.as_object().into_iter().flatten();
            let entries = entries.map(|(name, sub)| format!("{name:?}:{}", schema(sub)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
        }
        OrFlag => match value {
            Value::Bool(allows) => format!("{{\"Allows\":{allows},\"Schema\":null}}"),
            sub => format!("{{\"Allows\":true,\"Schema\":{}}}", schema(sub)),
        },
        OrMany => match value {
            Value::Array(items) => {
                format!(
                    "{{\"Schema\":null,\"JSONSchemas\":{}}}",
                    many(SCHEMA, items)
                )
            }
            sub => format!("{{\"Schema\":{},\"JSONSchemas\":null}}", schema(sub)),
        },
    }
}

//! What a CustomResourceDefinition must be: names, group, versions, subresources, columns, selectable fields, approval.
//!
//! Source of the rules and texts: Kubernetes, apiextensions-apiserver, `pkg/apis/apiextensions/validation`. There a
//! definition is checked in its internal form, in which what all versions share stands once at the top (`Spec::shared`);
//! paths in errors are those of that form. Real servers also let old definitions keep faults that were no faults when
//! they were written; here every stored definition has passed these rules.

use std::collections::BTreeSet;

use http::Uri;
use serde_json::{Value, json};

use super::{flag_of, internal, strings, text, versions};
use crate::conversion;
use crate::meta;
use crate::names;
use crate::schema::{self, FieldError, FieldErrorKind};

const APPROVED: &str = "api-approved.kubernetes.io";
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = [
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];
const SELECTABLE_FIELDS: u64 = 8;
/// Fields of a schema's root beside which the schema of the status can be taken out of it.
const BESIDE_STATUS: [(&str, &str); 22] = [
    ("Description", "description"),
    ("Type", "type"),
    ("Format", "format"),
    ("Title", "title"),
    ("Maximum", "maximum"),
    ("ExclusiveMaximum", "exclusiveMaximum"),
    ("Minimum", "minimum"),
    ("ExclusiveMinimum", "exclusiveMinimum"),
    ("MaxLength", "maxLength"),
    ("MinLength", "minLength"),
    ("Pattern", "pattern"),
    ("MaxItems", "maxItems"),
    ("MinItems", "minItems"),
    ("UniqueItems", "uniqueItems"),
    ("MultipleOf", "multipleOf"),
    ("Required", "required"),
    ("Items", "items"),
    ("Properties", "properties"),
    ("ExternalDocs", "externalDocs"),
    ("Example", "example"),
    (
        "XPreserveUnknownFields",
        "x-kubernetes-preserve-unknown-fields",
    ),
    ("XValidations", "x-kubernetes-validations"),
];

/// The faults of a definition that is about to be stored in the place of `old`.
pub(crate) fn validate(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if crd.get("kind").and_then(Value::as_str) != Some("CustomResourceDefinition") {
        return errors;
    }
    accepted_names(crd, &mut errors);
    // The status endpoint changes the status alone, and only that is looked at.
    let part = |o: &Value, of: &str| o.get(of).cloned();
    if old.is_some_and(|old| {
        part(old, "spec") == part(crd, "spec") && part(old, "status") != part(crd, "status")
    }) {
        return errors;
    }
    if old.is_none() {
        let wanted = format!(
            "{}.{}",
            text(crd, "spec.names.plural"),
            text(crd, "spec.group")
        );
        if meta::name(crd) != wanted {
            errors.push(FieldError::invalid(
                "metadata.name",
                json!(meta::name(crd)),
                "must be spec.names.plural+\".\"+spec.group",
            ));
        }
    }
    spec(crd, old, &mut errors);
    if let Some(old) = old {
        fixed(crd, old, &mut errors);
    }
    stored_versions(crd, &mut errors);
    approval(crd, old, &mut errors);
    if meta::field(crd, "spec.preserveUnknownFields") == Some(&Value::Bool(true)) {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            true.into(),
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ));
    }
    errors
}

/// What may not change, the kind and the scope only once the definition is established.
fn fixed(crd: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let mut fields = vec!["spec.group", "spec.names.plural"];
    if super::is_true(old, "Established") {
        fields.extend(["spec.scope", "spec.names.kind"]);
    }
    for field in fields {
        if text(old, field) != text(crd, field) {
            let value = json!(text(crd, field));
            errors.push(FieldError::invalid(field, value, "field is immutable"));
        }
    }
}

fn spec(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let group = text(crd, "spec.group");
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if let Some(why) = names::subdomain_problems(group) {
        errors.push(FieldError::invalid("spec.group", json!(group), why));
    } else if !group.contains('.') {
        let why = "should be a domain with at least one dot";
        errors.push(FieldError::invalid("spec.group", json!(group), why));
    }
    match text(crd, "spec.scope") {
        "Cluster" | "Namespaced" => {}
        "" => errors.push(FieldError::required("spec.scope", "")),
        other => errors.push(FieldError::not_supported(
            "spec.scope",
            json!(other),
            &["Cluster", "Namespaced"].map(str::to_owned),
        )),
    }
    each_version(crd, errors);
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(crd, &format!("spec.names.{field}")).is_empty() {
            errors.push(FieldError::required(format!("spec.names.{field}"), ""));
        }
    }
    names_of("spec.names", crd, errors);
    // What could not be used from the start may stay as it is.
    let certified = old.is_some_and(|old| {
        super::is_true(old, "Established") && conversion::has_good_certificates(old)
    });
    conversion::validate(crd, certified, errors);
}

/// A part of a version, and where it is said to stand: at the top if all versions have it alike.
struct Part<'c> {
    value: &'c Value,
    path: String,
}

struct Spec<'c> {
    versions: &'c [Value],
}

impl<'c> Spec<'c> {
    fn part(version: &'c Value, field: &str) -> Option<&'c Value> {
        let empty = |v: &Value| v.is_null() || v.as_array().is_some_and(Vec::is_empty);
        version.get(field).filter(|v| !empty(v))
    }

    fn shared(&self, field: &str) -> bool {
        let first = self.versions.first().map(|v| Self::part(v, field));
        self.versions
            .iter()
            .all(|v| Some(Self::part(v, field)) == first)
    }

    /// A field of every version that has it, once if they share it; `top` is its name in the internal form's spec.
    fn parts(&self, field: &str, top: &str) -> Vec<(usize, Part<'c>)> {
        let shared = self.shared(field);
        let parts = self.versions.iter().enumerate().filter_map(|(i, version)| {
            let value = Self::part(version, field)?;
            let path = match shared {
                true => format!("spec.{top}"),
                false => format!("spec.versions[{i}].{field}"),
            };
            Some((i, Part { value, path }))
        });
        parts.take(if shared { 1 } else { usize::MAX }).collect()
    }
}

fn each_version(crd: &Value, errors: &mut Vec<FieldError>) {
    let all = Spec {
        versions: versions(crd),
    };
    let mut seen = BTreeSet::new();
    let mut unique = true;
    for (i, version) in all.versions.iter().enumerate() {
        let path = format!("spec.versions[{i}]");
        let name = version["name"].as_str().unwrap_or_default();
        unique &= seen.insert(name);
        if let Some(why) = names::label_1035_problems(name) {
            errors.push(FieldError::invalid(
                format!("{path}.name"),
                json!(name),
                why.clone(),
            ));
            // The name of the first version stands in an older field too, where only the empty one is passed over.
            if i == 0 && !name.is_empty() {
                errors.push(FieldError::invalid("spec.version", json!(name), why));
            }
        }
        let schema = meta::field(version, "schema.openAPIV3Schema");
        if schema.is_none_or(|s| !s.is_object()) {
            errors.push(FieldError::required(
                format!("{path}.schema.openAPIV3Schema"),
                "schemas are required",
            ));
        }
        deprecation(&path, version, errors);
    }
    if !unique {
        internal::versions_error(
            &all_versions(&all),
            "must contain unique version names",
            errors,
        );
    }
    if all.versions.iter().filter(|v| v["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        internal::versions_error(&all_versions(&all), why, errors);
    }
    let status = |version: &Value| meta::field(version, "subresources.status").is_some();
    for (i, part) in all.parts("schema", "validation") {
        let Some(schema) = part.value.get("openAPIV3Schema").filter(|s| s.is_object()) else {
            continue;
        };
        let path = format!("{}.openAPIV3Schema", part.path);
        let with_status = match all.shared("schema") {
            true => all.versions.iter().any(status),
            false => status(&all.versions[i]),
        };
        let before = errors.len();
        if with_status {
            beside_status(&path, schema, errors);
        }
        errors.extend(
            schema::Structural::parse_at(&path, schema)
                .err()
                .into_iter()
                .flatten(),
        );
        if errors.len() == before {
            selectable(&all, i, schema, errors);
        }
    }
    for (_, part) in all.parts("subresources", "subresources") {
        if let Some(scale) = part.value.get("scale").filter(|s| s.is_object()) {
            scale_paths(&format!("{}.scale", part.path), scale, errors);
        }
    }
    for (_, part) in all.parts("additionalPrinterColumns", "additionalPrinterColumns") {
        for (n, column) in part.value.as_array().into_iter().flatten().enumerate() {
            self::column(&format!("{}[{n}]", part.path), column, errors);
        }
    }
}

/// The versions with what they share taken out.
fn all_versions(all: &Spec<'_>) -> Vec<Value> {
    let fields = [
        "schema",
        "subresources",
        "additionalPrinterColumns",
        "selectableFields",
    ];
    let shared = fields.map(|f| all.shared(f));
    let mut versions = all.versions.to_vec();
    for version in versions.iter_mut().filter_map(Value::as_object_mut) {
        for (field, shared) in fields.iter().zip(shared) {
            if shared {
                version.remove(*field);
            }
        }
    }
    versions
}

fn deprecation(path: &str, version: &Value, errors: &mut Vec<FieldError>) {
    let Some(warning) = version["deprecationWarning"].as_str() else {
        return;
    };
    let mut complain = |why: String| {
        let path = format!("{path}.deprecationWarning");
        errors.push(FieldError::invalid(path, json!(warning), why));
    };
    if !flag_of(version, "deprecated") {
        complain("can only be set for deprecated versions".into());
        return;
    }
    if warning.len() > 256 {
        complain("must be <= 256 characters long".into());
    }
    if warning.is_empty() {
        complain("must not be an empty string".into());
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, c)| !names::is_print(*c)) {
        complain(format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        ));
    }
}

/// With a status endpoint the root says nothing that holds for spec and status together.
fn beside_status(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    if !kind.is_empty() && kind != "object" {
        let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(FieldError::invalid(
            format!("{path}.type"),
            json!(kind),
            why,
        ));
        return;
    }
    let set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        _ => true,
    };
    let fields = schema.as_object().into_iter().flatten();
    let other = |name: &str| BESIDE_STATUS.iter().all(|(_, known)| *known != name);
    if fields
        .into_iter()
        .any(|(name, value)| other(name) && set(value))
    {
        let names = BESIDE_STATUS.map(|(name, _)| name).join(" ");
        let why = format!(
            "{}: only [{names}] fields are allowed at the root of the schema if the status subresource is enabled",
            internal::schema(schema)
        );
        errors.push(FieldError::new(path, FieldErrorKind::Invalid, None, why));
    }
}

fn scale_paths(path: &str, scale: &Value, errors: &mut Vec<FieldError>) {
    let cases: [(&str, &[&str], &str); 3] = [
        (
            "specReplicasPath",
            &[".spec."],
            "should be a json path under .spec",
        ),
        (
            "statusReplicasPath",
            &[".status."],
            "should be a json path under .status",
        ),
        (
            "labelSelectorPath",
            &[".spec.", ".status."],
            "should be a json path under either .spec or .status",
        ),
    ];
    for (field, below, why) in cases {
        let here = format!("{path}.{field}");
        let given = text(scale, field);
        if given.is_empty() {
            if field != "labelSelectorPath" {
                errors.push(FieldError::required(here, ""));
            }
        } else if !given.starts_with('.') {
            errors.push(FieldError::invalid(here, json!(given), NO_PATH));
        } else if !below.iter().any(|b| given.starts_with(b)) {
            errors.push(FieldError::invalid(here, json!(given), why));
        }
    }
}

const NO_PATH: &str = "must be a simple json path starting with .";

fn column(path: &str, column: &Value, errors: &mut Vec<FieldError>) {
    if text(column, "name").is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let kind = text(column, "type");
    let one_of = |these: &[&str]| format!("must be one of {}", these.join(","));
    if kind.is_empty() {
        let why = one_of(&COLUMN_TYPES);
        errors.push(FieldError::required(format!("{path}.type"), why));
    } else if !COLUMN_TYPES.contains(&kind) {
        let why = one_of(&COLUMN_TYPES);
        errors.push(FieldError::invalid(
            format!("{path}.type"),
            json!(kind),
            why,
        ));
    }
    let format = text(column, "format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let path = format!("{path}.format");
        errors.push(FieldError::invalid(
            path,
            json!(format),
            one_of(&COLUMN_FORMATS),
        ));
    }
    let given = text(column, "jsonPath");
    let path = format!("{path}.JSONPath");
    if given.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !given.starts_with('.') {
        errors.push(FieldError::invalid(path, json!(given), NO_PATH));
    }
}

/// Fields that objects can be selected by: each once, plain, and not in the metadata. `at` is a version with `schema`.
fn selectable(all: &Spec<'_>, at: usize, schema: &Value, errors: &mut Vec<FieldError>) {
    let shared = all.shared("selectableFields");
    // A schema of one's own is no schema for what all versions share, and the other way round.
    let mut seen = BTreeSet::new();
    let mine = all.parts("selectableFields", "selectableFields");
    let Some((_, part)) = mine.into_iter().find(|(i, _)| shared || *i == at) else {
        return;
    };
    for (n, field) in part.value.as_array().into_iter().flatten().enumerate() {
        let path = format!("{}[{n}].jsonPath", part.path);
        let given = text(field, "jsonPath");
        if given.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        let mut complain = |why: String| {
            errors.push(FieldError::invalid(path.clone(), json!(given), why));
        };
        let (steps, found) = match schema::field_path(given, schema, false) {
            Ok(found) => found,
            Err(why) => {
                complain(format!("is an invalid path: {why}"));
                continue;
            }
        };
        if steps.first().is_some_and(|s| s == "metadata") {
            complain("must not point to fields in metadata".into());
        }
        if !matches!(text(found, "type"), "string" | "boolean" | "integer") {
            complain("must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.".into());
        }
        if !seen.insert(steps) {
            errors.push(FieldError::duplicate(path, json!(given)));
        }
    }
    let count = seen.len() as u64;
    if count > SELECTABLE_FIELDS {
        errors.push(FieldError::too_many(part.path, count, SELECTABLE_FIELDS));
    }
}

fn accepted_names(crd: &Value, errors: &mut Vec<FieldError>) {
    names_of("status.acceptedNames", crd, errors);
}

/// The form of the names, as far as they are there.
fn names_of(path: &str, crd: &Value, errors: &mut Vec<FieldError>) {
    let mut one = |field: String, value: &str, mixed: bool| {
        let (checked, prefix) = match mixed {
            true => (
                value.to_lowercase(),
                "may have mixed case, but should otherwise match: ",
            ),
            false => (value.to_owned(), ""),
        };
        if let Some(why) = names::label_1035_problems(&checked) {
            errors.push(FieldError::invalid(
                format!("{path}.{field}"),
                json!(value),
                format!("{prefix}{why}"),
            ));
        }
    };
    for (field, mixed) in [
        ("plural", false),
        ("singular", false),
        ("kind", true),
        ("listKind", true),
    ] {
        let value = text(crd, &format!("{path}.{field}"));
        if !value.is_empty() {
            one(field.into(), value, mixed);
        }
    }
    for field in ["shortNames", "categories"] {
        for (i, name) in strings(crd, &format!("{path}.{field}")).iter().enumerate() {
            one(format!("{field}[{i}]"), name, false);
        }
    }
    let (kind, list) = (
        text(crd, &format!("{path}.kind")),
        text(crd, &format!("{path}.listKind")),
    );
    if !kind.is_empty() && kind == list {
        errors.push(FieldError::invalid(
            format!("{path}.listKind"),
            json!(list),
            "kind and listKind may not be the same",
        ));
    }
}

fn stored_versions(crd: &Value, errors: &mut Vec<FieldError>) {
    let path = "status.storedVersions";
    let stored = strings(crd, path);
    if stored.is_empty() {
        // An empty list, printed as Go prints it in JSON.
        let why = "null: must have at least one stored version";
        errors.push(FieldError::new(path, FieldErrorKind::Invalid, None, why));
        return;
    }
    for version in versions(crd) {
        let name = version["name"].as_str().unwrap_or_default();
        if flag_of(version, "storage") && !stored.iter().any(|s| s == name) {
            let why = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(path, json!(stored), why));
        }
    }
    for (i, name) in stored.iter().enumerate() {
        if !versions(crd).iter().any(|v| v["name"] == name.as_str()) {
            let why = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.push(FieldError::invalid(
                format!("{path}[{i}]"),
                json!(name),
                why,
            ));
        }
    }
}

/// Whether somebody has approved a kind in a group of Kubernetes' own.
#[derive(PartialEq)]
enum Approval {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

impl Approval {
    fn of(crd: &Value) -> (Self, String) {
        let annotation = meta::get(crd, "annotations").and_then(|a| a.get(APPROVED));
        let given = annotation
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let state = if given.is_empty() {
            Self::Missing
        } else if given.starts_with("unapproved") {
            Self::Bypassed
        } else if given
            .parse::<Uri>()
            .is_ok_and(|u| u.scheme().is_some() && u.host().is_some_and(|h| !h.is_empty()))
        {
            Self::Approved
        } else {
            Self::Invalid
        };
        (state, given)
    }
}

fn approval(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let group = text(crd, "spec.group");
    let protected = ["k8s.io", "kubernetes.io"].iter().any(|p| {
        group
            .strip_suffix(p)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    });
    if !protected {
        return;
    }
    let (state, given) = Approval::of(crd);
    if old.is_some_and(|old| Approval::of(old).0 == state) {
        return;
    }
    let path = format!("metadata.annotations[{APPROVED}]");
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    match state {
        Approval::Approved | Approval::Bypassed => {}
        Approval::Missing => {
            let why = format!("protected groups must have approval annotation {APPROVED:?}, {SEE}");
            errors.push(FieldError::required(path, why));
        }
        Approval::Invalid => {
            let why = format!(
                "protected groups must have approval annotation {APPROVED:?} with either a URL or a reason starting with \"unapproved\", {SEE}"
            );
            errors.push(FieldError::invalid(path, json!(given), why));
        }
    }
}

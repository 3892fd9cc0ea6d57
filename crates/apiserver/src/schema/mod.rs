//! Structural schemas of custom resources: pruning, defaulting and validation, with the wording
//! of the API server. Everything here is pure.

mod cel;
mod default;
mod defaults;
mod error;
pub(crate) mod expression;
mod formats;
mod lists;
mod meta;
mod node;
mod openapi;
mod path;
mod prune;
mod structural;
mod validate;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use error::{FieldError, FieldErrorKind, aggregate};

pub(crate) use path::field_path;

use node::Node;

/// Where the API server reports problems of the schema of a CRD whose versions share one schema.
const SCHEMA_PATH: &str = "spec.validation.openAPIV3Schema";

/// A schema that has been checked to be structural, ready for use.
#[derive(Debug)]
pub struct Structural {
    root: Node,
}

impl Structural {
    /// Reads the `openAPIV3Schema` of a CRD version.
    ///
    /// # Errors
    /// All violations of the rules for structural schemas, defaults that do not fit the schema,
    /// and CEL rules that do not compile.
    pub fn parse(open_api_v3_schema: &Value) -> Result<Self, Vec<FieldError>> {
        Self::parse_at(SCHEMA_PATH, open_api_v3_schema)
    }

    /// [`Structural::parse`] with errors reported under another path, such as
    /// `spec.versions[1].schema.openAPIV3Schema`.
    ///
    /// # Errors
    /// As [`Structural::parse`].
    pub fn parse_at(path: &str, open_api_v3_schema: &Value) -> Result<Self, Vec<FieldError>> {
        let schema = open_api_v3_schema;
        if !schema.is_object() {
            return Err(vec![FieldError::required(path, "schemas are required")]);
        }
        let mut errors = Vec::new();
        let root = Node::read(schema);
        if openapi::can_be_structural(schema) {
            errors = structural::check(path, schema);
            if errors.is_empty() {
                defaults::check(path, &root, &mut errors);
            }
        }
        let structural = errors.is_empty();
        openapi::check(path, schema, &mut errors);
        if structural && errors.is_empty() {
            cel::check_rules(path, schema, &mut errors);
        }
        if errors.is_empty() {
            Ok(Self { root })
        } else {
            Err(errors)
        }
    }

    /// Drops the fields that the schema does not know and returns their paths. apiVersion, kind
    /// and metadata always stay; of the metadata only the fields of an ObjectMeta do.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::object(&self.root, object)
    }

    /// Sets defaults, nested ones too; before that drops nulls where null is not allowed and no
    /// default takes their place.
    pub fn default(&self, object: &mut Value) {
        default::object(&self.root, object);
    }

    /// Validates an object that has been pruned and defaulted. `old` is the stored object in the
    /// same version; with it, what was invalid before and did not change is tolerated, and rules
    /// about changes are evaluated.
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if let Some(metadata) = new.get("metadata") {
            errors.extend(meta::check(metadata, "metadata"));
        }
        validate::check(&self.root, new, old, "", &mut errors);
        meta::embedded(&self.root, new, "", &mut errors);
        let were_unique = old.is_none_or(|old| {
            let mut before = Vec::new();
            lists::check(&self.root, old, "", &mut before);
            before.is_empty()
        });
        if were_unique {
            lists::check(&self.root, new, "", &mut errors);
        }
        if cel::has_rules(&self.root) {
            if errors.iter().any(blocks_rules) {
                errors.push(FieldError::invalid(
                    validate::NO_PATH,
                    Value::Null,
                    "some validation rules were not checked because the object was invalid; \
                     correct the existing errors to complete validation",
                ));
            } else {
                cel::check(&self.root, new, old, &mut errors);
            }
        }
        errors
    }
}

/// Whether an error leaves CEL rules without the types they rely on.
fn blocks_rules(error: &FieldError) -> bool {
    use FieldErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
    matches!(
        error.kind,
        NotSupported | Required | TooLong | TooMany | TypeInvalid
    )
}

//! OpenAPI v3: an index and one document for each group version, for `kubectl explain`, for
//! clients that ask whether an operation knows `dryRun` and `fieldValidation`, and for finding
//! fields that a built-in kind does not have.

mod applied;
mod builtin;
mod paths;
mod schemas;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::discovery;
use crate::registry::{Origin, ResourceInfo};

pub use applied::applied_problem;
pub use builtin::{fill_nulls, fill_required, prune, type_problem};

/// `GET /openapi/v3`: where the document of each group version is.
pub fn index(resources: &[Arc<ResourceInfo>]) -> Value {
    let mut paths = Map::new();
    for group in discovery::groups(resources) {
        for version in discovery::versions(resources, &group) {
            let path = document_path(&group, &version);
            let hash = hash(resources, &group, &version);
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({ "paths": paths })
}

/// `GET /openapi/v3/api/v1` and `GET /openapi/v3/apis/<group>/<version>`; `None` if that version
/// is not served.
pub fn document(resources: &[Arc<ResourceInfo>], group: &str, version: &str) -> Option<Value> {
    let served = discovery::served(resources, group, version);
    if served.is_empty() {
        return None;
    }
    let mut schemas = schemas::Schemas::default();
    let mut all_paths = Map::new();
    for (resource, info) in served {
        let names = schemas.add(resource, info);
        paths::add(&mut all_paths, resource, info, &names, &mut schemas);
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.0"},
        "paths": all_paths,
        "components": {"schemas": schemas.finish()},
    }))
}

/// A hash that changes whenever the document of a group version does. It is taken from what the
/// document is made of, so that the index needs no documents.
pub fn hash(resources: &[Arc<ResourceInfo>], group: &str, version: &str) -> String {
    let mut content = String::new();
    for (resource, info) in discovery::served(resources, group, version) {
        content.push_str(&format!(
            "{:?}",
            (
                &resource.plural,
                &resource.kind,
                &resource.list_kind,
                resource.namespaced,
                &resource.verbs,
                resource.origin == Origin::Builtin,
                &info.subresources,
            )
        ));
        if let Some(schema) = &info.schema {
            content.push_str(&schema.to_string());
        }
    }
    discovery::hash(content.as_bytes())
}

/// `api/v1` or `apis/<group>/<version>`.
fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

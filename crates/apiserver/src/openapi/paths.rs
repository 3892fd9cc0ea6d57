//! The paths of a resource with their operations.

use serde_json::{Map, Value, json};

use super::schemas::{Names, Schemas, reference};
use crate::registry::{Origin, ResourceInfo, Subresource, VersionInfo};

/// A query parameter: name, type, description.
type Parameter = (&'static str, &'static str, &'static str);

const DRY_RUN: Parameter = (
    "dryRun",
    "string",
    "When present, indicates that modifications should not be persisted. The only value is All.",
);
const FIELD_MANAGER: Parameter = (
    "fieldManager",
    "string",
    "The name of the actor that makes these changes; required for apply requests.",
);
const FIELD_VALIDATION: Parameter = (
    "fieldValidation",
    "string",
    "What to do about unknown and duplicate fields: Ignore, Warn or Strict.",
);
const FORCE: Parameter = (
    "force",
    "boolean",
    "Take over fields that are owned by others; for apply requests only.",
);
const DELETION: [Parameter; 4] = [
    DRY_RUN,
    (
        "gracePeriodSeconds",
        "integer",
        "Seconds before the object is deleted.",
    ),
    (
        "orphanDependents",
        "boolean",
        "Deprecated: whether dependents stay.",
    ),
    (
        "propagationPolicy",
        "string",
        "What happens to dependents: Orphan, Background or Foreground.",
    ),
];
const LISTING: [Parameter; 10] = [
    (
        "allowWatchBookmarks",
        "boolean",
        "Whether a watch may send bookmarks.",
    ),
    ("continue", "string", "Where to go on with a list."),
    (
        "fieldSelector",
        "string",
        "Restricts the objects by their fields.",
    ),
    (
        "labelSelector",
        "string",
        "Restricts the objects by their labels.",
    ),
    ("limit", "integer", "At most that many objects."),
    ("resourceVersion", "string", "How old the answer may be."),
    (
        "resourceVersionMatch",
        "string",
        "How resourceVersion is meant.",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "Whether a watch begins with all objects.",
    ),
    ("timeoutSeconds", "integer", "How long a watch lasts."),
    ("watch", "boolean", "Watch for changes."),
];

/// One operation.
struct Operation<'a> {
    verb: &'a str,
    method: &'a str,
    action: &'a str,
    /// What the name of the operation begins with.
    id: &'a str,
}

const COLLECTION: [Operation<'static>; 3] = [
    Operation {
        verb: "list",
        method: "get",
        action: "list",
        id: "list",
    },
    Operation {
        verb: "create",
        method: "post",
        action: "post",
        id: "create",
    },
    Operation {
        verb: "deletecollection",
        method: "delete",
        action: "deletecollection",
        id: "deleteCollection",
    },
];
const OBJECT: [Operation<'static>; 4] = [
    Operation {
        verb: "get",
        method: "get",
        action: "get",
        id: "read",
    },
    Operation {
        verb: "update",
        method: "put",
        action: "put",
        id: "replace",
    },
    Operation {
        verb: "patch",
        method: "patch",
        action: "patch",
        id: "patch",
    },
    Operation {
        verb: "delete",
        method: "delete",
        action: "delete",
        id: "delete",
    },
];

/// What the operations of a path have in common.
struct Target<'a> {
    builtin: bool,
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    /// The schemas of an object and of a list.
    object: &'a str,
    list: &'a str,
    /// What the names of operations end with.
    suffix: String,
}

/// Adds all paths of a resource.
pub(super) fn add(
    paths: &mut Map<String, Value>,
    resource: &ResourceInfo,
    info: &VersionInfo,
    names: &Names,
    schemas: &mut Schemas,
) {
    let base = if resource.group.is_empty() {
        format!("/api/{}", info.name)
    } else {
        format!("/apis/{}/{}", resource.group, info.name)
    };
    let place = if resource.namespaced {
        format!("{base}/namespaces/{{namespace}}")
    } else {
        base.clone()
    };
    let collection = format!("{place}/{}", resource.plural);
    let object = format!("{collection}/{{name}}");
    let spaced = if resource.namespaced {
        "Namespaced"
    } else {
        ""
    };
    let of = pascal(&resource.group, &info.name);
    let target = |suffix: String| Target {
        builtin: resource.origin == Origin::Builtin,
        group: &resource.group,
        version: &info.name,
        kind: &resource.kind,
        object: &names.object,
        list: &names.list,
        suffix,
    };

    let own = target(format!("{of}{spaced}{}", resource.kind));
    let path = item(&COLLECTION, &resource.verbs, &own, &collection, schemas);
    insert(paths, collection, path);
    let path = item(&OBJECT, &resource.verbs, &own, &object, schemas);
    insert(paths, object.clone(), path);
    if resource.namespaced && resource.allows("list") {
        let everywhere = format!("{base}/{}", resource.plural);
        let all = target(format!("{of}{}ForAllNamespaces", resource.kind));
        let path = item(&COLLECTION, &["list"], &all, &everywhere, schemas);
        insert(paths, everywhere, path);
    }
    for sub in &info.subresources {
        let path = format!("{object}/{}", sub.name);
        let suffix = format!("{of}{spaced}{}{}", resource.kind, capital(&sub.name));
        let item = subresource(sub, target(suffix), &path, schemas);
        insert(paths, path, item);
    }
}

fn subresource(sub: &Subresource, of: Target<'_>, path: &str, schemas: &mut Schemas) -> Value {
    let (group, version, kind) = sub.body.unwrap_or((of.group, of.version, of.kind));
    let body = sub
        .body
        .and_then(|(group, version, kind)| schemas.kind(group, version, kind));
    let own = Target {
        group,
        version,
        kind,
        object: body.as_deref().unwrap_or(of.object),
        ..of
    };
    let mut whole = item(&OBJECT, &sub.verbs, &own, path, schemas);
    let created = item(&COLLECTION[1..2], &sub.verbs, &own, path, schemas);
    if let (Value::Object(whole), Value::Object(created)) = (&mut whole, created) {
        whole.extend(created);
    }
    whole
}

fn insert(paths: &mut Map<String, Value>, path: String, item: Value) {
    let has_operations = item
        .as_object()
        .is_some_and(|i| i.keys().any(|k| k != "parameters"));
    if has_operations {
        paths.insert(path, item);
    }
}

/// A path item with those operations that the verbs allow.
fn item(
    operations: &[Operation<'_>],
    verbs: &[&str],
    target: &Target<'_>,
    path: &str,
    schemas: &mut Schemas,
) -> Value {
    let mut item = Map::new();
    for operation in operations.iter().filter(|o| verbs.contains(&o.verb)) {
        let body = operation_body(operation, target, schemas);
        item.insert(operation.method.to_string(), body);
    }
    let mut parameters: Vec<Value> = ["name", "namespace"]
        .into_iter()
        .filter(|name| path.contains(&format!("{{{name}}}")))
        .map(|name| {
            json!({
                "name": name,
                "in": "path",
                "required": true,
                "schema": {"type": "string", "uniqueItems": true},
            })
        })
        .collect();
    parameters.push(parameter(&(
        "pretty",
        "string",
        "If true, then the output is indented.",
    )));
    item.insert("parameters".to_string(), parameters.into());
    Value::Object(item)
}

fn operation_body(operation: &Operation<'_>, target: &Target<'_>, schemas: &mut Schemas) -> Value {
    let write = [DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
    let apply = [DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];
    let (parameters, body, answer): (&[Parameter], Option<Value>, Value) = match operation.verb {
        "list" => (&LISTING, None, reference(target.list)),
        "create" | "update" => {
            let object = reference(target.object);
            (&write, Some(content(&["*/*"], &object)), object)
        }
        "patch" => {
            let mut types = vec![
                "application/apply-patch+yaml",
                "application/json-patch+json",
                "application/merge-patch+json",
            ];
            if target.builtin {
                types.push("application/strategic-merge-patch+json");
            }
            let patch = schemas.meta("Patch");
            let body = content(&types, &patch);
            (&apply, Some(body), reference(target.object))
        }
        "delete" | "deletecollection" => {
            let options = schemas.meta("DeleteOptions");
            let body = content(&["*/*"], &options);
            (&DELETION, Some(body), schemas.meta("Status"))
        }
        _ => (&[], None, reference(target.object)),
    };
    let ok = json!({"description": "OK", "content": content(&["application/json"], &answer)});
    let mut responses = json!({"200": ok, "401": {"description": "Unauthorized"}});
    if matches!(operation.verb, "create" | "update" | "patch") {
        responses["201"] = ok;
        responses["201"]["description"] = "Created".into();
    }
    let mut whole = json!({
        "operationId": format!("{}{}", operation.id, target.suffix),
        "parameters": parameters.iter().map(parameter).collect::<Vec<_>>(),
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": {
            "group": target.group,
            "version": target.version,
            "kind": target.kind,
        },
    });
    if let Some(body) = body {
        let required = !matches!(operation.verb, "delete" | "deletecollection");
        whole["requestBody"] = json!({"content": body, "required": required});
    }
    whole
}

fn content(types: &[&str], schema: &Value) -> Value {
    let entries = types
        .iter()
        .map(|media| ((*media).to_string(), json!({ "schema": schema })));
    Value::Object(entries.collect())
}

fn parameter((name, kind, description): &Parameter) -> Value {
    json!({
        "name": name,
        "in": "query",
        "description": description,
        "schema": {"type": kind, "uniqueItems": true},
    })
}

/// `AppsV1`, `CoreV1`, `ExampleIoV1alpha1`.
fn pascal(group: &str, version: &str) -> String {
    let parts = match group {
        "" => "core",
        named => named.strip_suffix(".k8s.io").unwrap_or(named),
    };
    parts
        .split(['.', '-'])
        .chain([version])
        .map(capital)
        .collect()
}

fn capital(word: &str) -> String {
    let mut chars = word.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

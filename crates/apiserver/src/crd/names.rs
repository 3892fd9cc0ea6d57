//! Which names a CustomResourceDefinition may use: those that no other of its group has.
//!
//! Rules and texts: apiextensions-apiserver, `pkg/controller/status/naming_controller.go`. A name that was given stays
//! with its CRD until the CRD asks for another one and gets it, or is gone.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{strings, text};
use crate::meta;
use crate::server::Server;

/// The names of `status.acceptedNames`, and what is in the way of the others that the CRD asks for: reason and message.
pub(super) fn accepted(server: &Server, crd: &Value) -> (Value, Option<(&'static str, String)>) {
    let group = text(crd, "spec.group");
    let (mut resources, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for other in super::of_group(server, group) {
        let name =
            |field: &str| text(&other.value, &format!("status.acceptedNames.{field}")).to_owned();
        resources.extend(["plural", "singular"].map(name));
        resources.extend(strings(&other.value, "status.acceptedNames.shortNames"));
        kinds.extend(["kind", "listKind"].map(name));
    }
    // Built-in resources have theirs since ever.
    let registry = server.registry();
    for other in registry
        .iter()
        .filter(|r| r.group == group && !r.is_custom())
    {
        resources.extend([other.plural.clone(), other.singular.clone()]);
        resources.extend(other.short_names.iter().cloned());
        kinds.extend([other.kind.clone(), other.list_kind.clone()]);
    }
    let mut names = meta::field(crd, "status.acceptedNames")
        .filter(|n| n.is_object())
        .cloned()
        .unwrap_or_else(|| json!({}));
    let found = [
        claim(crd, &mut names, "plural", &resources, "PluralConflict"),
        claim(crd, &mut names, "singular", &resources, "SingularConflict"),
        claim_short(crd, &mut names, &resources),
        claim(crd, &mut names, "kind", &kinds, "KindConflict"),
        claim(crd, &mut names, "listKind", &kinds, "ListKindConflict"),
    ];
    list(
        &mut names,
        "categories",
        strings(crd, "spec.names.categories"),
    );
    // What is found last is told.
    (names, found.into_iter().flatten().last())
}

fn in_use(name: &str) -> String {
    format!("{name:?} is already in use")
}

/// Gives the CRD the name it asks for, if it has it already or nobody does.
fn claim(
    crd: &Value,
    names: &mut Value,
    field: &str,
    taken: &BTreeSet<String>,
    reason: &'static str,
) -> Option<(&'static str, String)> {
    let wanted = text(crd, &format!("spec.names.{field}"));
    if names[field] != wanted && taken.contains(wanted) {
        return Some((reason, in_use(wanted)));
    }
    names[field] = json!(wanted);
    None
}

/// Gives the CRD all its short names, or none that it has not already.
fn claim_short(
    crd: &Value,
    names: &mut Value,
    taken: &BTreeSet<String>,
) -> Option<(&'static str, String)> {
    let wanted = strings(crd, "spec.names.shortNames");
    let own = strings(crd, "status.acceptedNames.shortNames");
    let problems: Vec<String> = wanted
        .iter()
        .filter(|s| !own.contains(s) && taken.contains(*s))
        .map(|s| in_use(s))
        .collect();
    let why = match &problems[..] {
        [] => {
            list(names, "shortNames", wanted);
            return None;
        }
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    Some(("ShortNamesConflict", why))
}

fn list(names: &mut Value, field: &str, list: Vec<String>) {
    let Some(map) = names.as_object_mut() else {
        return;
    };
    match list.is_empty() {
        true => map.remove(field),
        false => map.insert(field.to_owned(), json!(list)),
    };
}

//! What of an applied configuration of a built-in kind its schema cannot make sense of, in the words of the library that
//! merges configurations (structured-merge-diff).

use serde_json::Value;

use super::builtin::{Definitions, definitions, reference};
use crate::ssa::{How, builtin_field, builtin_kind, expected};

/// All problems as one sentence; `None` if there are none, or if nothing is known of the kind.
pub fn applied_problem(group: &str, version: &str, kind: &str, object: &Value) -> Option<String> {
    let all = definitions();
    let schema = all.schemas.get(all.name(group, version, kind)?)?;
    let mut problems = Vec::new();
    let whole = Walk {
        all,
        problems: &mut problems,
    };
    whole.value(schema, object, "", builtin_kind(kind), true);
    match problems.len() {
        0 => None,
        1 => problems.pop(),
        _ => Some(format!("errors:\n  {}", problems.join("\n  "))),
    }
}

struct Walk<'a> {
    all: &'a Definitions,
    problems: &'a mut Vec<String>,
}

impl Walk<'_> {
    fn below(&mut self) -> Walk<'_> {
        Walk {
            all: self.all,
            problems: self.problems,
        }
    }

    /// `owner`: the type of the value in the table of built-in kinds.
    fn value(mut self, schema: &Value, value: &Value, path: &str, owner: &'static str, root: bool) {
        // A quantity may be a number, too.
        if value.is_null() || reference(schema).is_some_and(|r| r.ends_with(".Quantity")) {
            return;
        }
        let schema = self.all.resolve(schema);
        let kind = schema
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let properties = schema.get("properties");
        match (kind, value) {
            ("object", Value::Object(map)) => {
                let mut names: Vec<&String> = map.keys().collect();
                names.sort();
                for name in names {
                    let at = format!("{path}.{name}");
                    let known = properties.and_then(|p| p.get(name));
                    let known = known.or_else(|| schema.get("additionalProperties"));
                    match known {
                        Some(known) => {
                            let field = builtin_field(owner, name);
                            let of = match (root, name.as_str(), field) {
                                (true, "metadata", _) => "ObjectMeta",
                                (_, _, Some(field)) => field.of,
                                _ => "",
                            };
                            let how = field.map(|f| f.how);
                            match (how, &map[name]) {
                                (
                                    Some(how @ (How::Keyed { .. } | How::Set)),
                                    Value::Array(items),
                                ) => {
                                    self.below().items(known, items, &at, of, how);
                                }
                                (_, below) => self.below().value(known, below, &at, of, false),
                            }
                        }
                        None if properties.is_none() => return,
                        None => {
                            let why = format!("{at}: field not declared in schema");
                            self.problems.push(why);
                            return;
                        }
                    }
                }
            }
            ("array", Value::Array(items)) => {
                let items_schema = schema.get("items").unwrap_or(&Value::Null);
                for (n, item) in items.iter().enumerate() {
                    let at = format!("{path}[{n}]");
                    self.below().value(items_schema, item, &at, owner, false);
                }
            }
            _ => {
                if let Some(why) = expected(kind, value) {
                    self.problems.push(format!("{path}: {why}"));
                }
            }
        }
    }

    fn items(mut self, schema: &Value, items: &[Value], path: &str, of: &'static str, how: How) {
        let known = self
            .all
            .resolve(schema)
            .get("items")
            .unwrap_or(&Value::Null);
        for (n, item) in items.iter().enumerate() {
            let at = match how {
                How::Keyed { ssa: [], .. } => format!("{path}[{n}]"),
                How::Keyed { ssa, .. } => {
                    let Value::Object(map) = item else {
                        let what = if item.is_null() {
                            "a null element"
                        } else {
                            "non-map elements"
                        };
                        self.problems.push(format!(
                            "{path}: element {n}: associative list with keys may not have {what}"
                        ));
                        continue;
                    };
                    let keys = ssa.iter().filter_map(|key| {
                        let default = (*key == "protocol").then(|| Value::from("TCP"));
                        let value = map.get(*key).cloned().or(default)?;
                        Some(format!("{key}={value}"))
                    });
                    let keys: Vec<String> = keys.collect();
                    format!("{path}[{}]", keys.join(","))
                }
                _ => format!("{path}[={item}]"),
            };
            self.below().value(known, item, &at, of, false);
        }
    }
}

//! Where two answers differ.

use std::fmt;

use serde_json::{Value, json};

use super::record::Recorded;
use super::run::Answer;
use super::script::Script;

/// One place in one answer.
#[derive(Clone, Debug)]
pub struct Difference {
    pub script: String,
    pub step: String,
    /// JSON pointer: `/code`, `/type`, `/warnings`, or below `/body`.
    pub field: String,
    real: Option<Value>,
    ours: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show =
            |value: &Option<Value>| value.as_ref().map_or("(nothing)".into(), Value::to_string);
        write!(
            f,
            "{} | {} | {}\n    real: {}\n    here: {}",
            self.script,
            self.step,
            self.field,
            show(&self.real),
            show(&self.ours)
        )
    }
}

/// What differs between the record and these answers of a script.
pub fn between(
    script: &Script,
    recorded: &Recorded,
    answers: &[(String, Answer)],
) -> Vec<Difference> {
    let mut all = Vec::new();
    for (step, answer) in answers {
        let real = recorded.get(&(script.name.clone(), step.clone()));
        let mut found = Vec::new();
        compare("", real, Some(&answer.to_json()), &mut found);
        // What follows from another difference is not told again: a refusal has another body than a success, and the
        // message of an invalid object repeats its causes.
        if found.iter().any(|(field, _, _)| field == "/code") {
            found.retain(|(field, _, _)| field == "/code");
            let message = |v: Option<&Value>| v?.pointer("/body/message").cloned();
            for (_, code, ours) in &mut found {
                let real = message(real);
                *code = Some(json!([code.clone(), real]));
                *ours = Some(json!([ours.clone(), answer.body.get("message")]));
            }
        }
        let causes = |v: Option<&Value>| {
            let causes = v?.pointer("/body/details/causes")?.as_array()?;
            Some(causes.len())
        };
        if causes(real).is_some_and(|n| n > 1)
            || found.iter().any(|(f, _, _)| f.contains("/causes"))
        {
            found.retain(|(field, _, _)| field != "/body/message");
        }
        all.extend(found.into_iter().map(|(field, real, ours)| Difference {
            script: script.name.clone(),
            step: step.clone(),
            field,
            real,
            ours,
        }));
    }
    all
}

type Found = (String, Option<Value>, Option<Value>);

fn compare(at: &str, real: Option<&Value>, ours: Option<&Value>, found: &mut Vec<Found>) {
    match (real, ours) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let escaped = key.replace('~', "~0").replace('/', "~1");
                compare(&format!("{at}/{escaped}"), a.get(key), b.get(key), found);
            }
        }
        (Some(a @ Value::Array(_)), Some(b @ Value::Array(_))) if at.ends_with("managedFields") => {
            compare(at, Some(&by_manager(a)), Some(&by_manager(b)), found);
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for n in 0..a.len().max(b.len()) {
                compare(&format!("{at}/{n}"), a.get(n), b.get(n), found);
            }
        }
        (a, b) if a != b => found.push((at.to_owned(), a.cloned(), b.cloned())),
        _ => {}
    }
}

/// The entries of managedFields by what tells them apart, so that one entry more does not shift the others.
fn by_manager(entries: &Value) -> Value {
    let entries = entries.as_array().into_iter().flatten();
    let named = entries.map(|entry| {
        let parts = ["operation", "manager", "apiVersion", "subresource"];
        let parts = parts.map(|part| entry[part].as_str().unwrap_or_default());
        (parts.join(" ").trim_end().to_owned(), entry.clone())
    });
    Value::Object(named.collect())
}

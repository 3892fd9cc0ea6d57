//! `matchConditions`: CEL expressions over the object, the one it replaces, and the request.

use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::objects::{Key, Map, Value as Cel};
use kube_cel::cel::{Context, ExecutionError, Program};
use serde_json::Value;

use crate::schema::expression;

/// Whether every condition holds. One that is false decides at once, whatever fails before it; else the failures.
pub(super) fn hold(
    conditions: &[Value],
    object: Option<&Value>,
    old: Option<&Value>,
    request: &Value,
) -> Result<bool, String> {
    let mut context = Context::default().with_all();
    let variables = [
        ("object", object.map_or(Cel::Null, to_cel)),
        ("oldObject", old.map_or(Cel::Null, to_cel)),
        ("request", to_cel(request)),
    ];
    for (name, value) in variables {
        context.add_variable_from_value(name, value);
    }
    let mut failures = Vec::new();
    for condition in conditions {
        let expression = condition["expression"].as_str().unwrap_or("");
        let why = match Program::compile(expression).map(|p| p.execute(&context)) {
            Ok(Ok(Cel::Bool(true))) => continue,
            Ok(Ok(Cel::Bool(false))) => return Ok(false),
            Ok(Ok(_)) => "cel expression must evaluate to a bool".to_owned(),
            Ok(Err(error)) => reason(&error),
            Err(error) => error.to_string(),
        };
        failures.push(format!(
            "expression '{expression}' resulted in error: {why}"
        ));
    }
    match failures.as_slice() {
        [] => Ok(true),
        [only] => Err(only.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

/// What is wrong with an expression, if it cannot be compiled.
pub(super) fn problem(expression: &str) -> Option<String> {
    expression::problem(expression)
        .or_else(|| Program::compile(expression).err().map(|e| e.to_string()))
        .map(|why| format!("compilation failed: {why}"))
}

/// An evaluation error in the words of the reference implementation, for the one that everybody meets.
fn reason(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        other => other.to_string(),
    }
}

fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => match (n.as_i64(), n.as_f64()) {
            (Some(n), _) => Cel::Int(n),
            (None, Some(n)) => Cel::Float(n),
            (None, None) => Cel::Null,
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(list) => Cel::List(Arc::new(list.iter().map(to_cel).collect())),
        Value::Object(map) => {
            let entries = map
                .iter()
                .map(|(k, v)| (Key::String(Arc::new(k.clone())), to_cel(v)));
            Cel::Map(Map {
                map: Arc::new(entries.collect()),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conditions(expressions: &[&str]) -> Vec<Value> {
        expressions
            .iter()
            .map(|e| json!({"name": "c", "expression": e}))
            .collect()
    }

    #[test]
    fn one_false_condition_outweighs_failures_and_failures_are_told() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"n": 3}});
        let request = json!({"operation": "CREATE", "userInfo": {"groups": ["system:nodes"]}});
        let hold = |e: &[&str]| hold(&conditions(e), Some(&object), None, &request);
        assert_eq!(hold(&["object.spec.n > 2", "oldObject == null"]), Ok(true));
        assert_eq!(
            hold(&["!('system:nodes' in request.userInfo.groups)"]),
            Ok(false)
        );
        assert_eq!(
            hold(&["object.spec.nope == 1", "request.operation == 'DELETE'"]),
            Ok(false)
        );
        assert_eq!(
            hold(&["object.spec.nope == 1", "true"]),
            Err("expression 'object.spec.nope == 1' resulted in error: no such key: nope".into())
        );
        assert!(
            hold(&["object.spec.nope == 1", "object.nope == 1"])
                .unwrap_err()
                .starts_with("[expression")
        );
        assert!(problem("object.spec.n >").is_some());
        assert_eq!(problem("object.spec.n > 1"), None);
    }
}

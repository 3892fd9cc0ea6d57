//! The template functions beyond Go's own that the charts use, as Sprig and Helm define them.

use std::sync::Arc;

use gotmpl::{FuncMap, TemplateError, Value};

/// Their names, and those of Go's own functions that the charts use.
pub const OFFERED: [&str; 7] = [
    "default", "include", "nindent", "printf", "quote", "required", "toYaml",
];

/// All but `include`, which needs the templates themselves.
pub(crate) fn functions() -> FuncMap {
    let mut map = FuncMap::new();
    map.insert("default".into(), Arc::new(default));
    map.insert("nindent".into(), Arc::new(nindent));
    map.insert("quote".into(), Arc::new(quote));
    map.insert("required".into(), Arc::new(required));
    map.insert("toYaml".into(), Arc::new(to_yaml));
    map
}

fn args<'a, const N: usize>(name: &str, args: &'a [Value]) -> gotmpl::Result<&'a [Value; N]> {
    args.try_into()
        .map_err(|_| TemplateError::Exec(format!("{name} takes {N} arguments, not {}", args.len())))
}

/// `default FALLBACK VALUE`: the value unless it is empty.
fn default(values: &[Value]) -> gotmpl::Result<Value> {
    let [fallback, value] = args("default", values)?;
    Ok(if value.is_truthy() {
        value.clone()
    } else {
        fallback.clone()
    })
}

/// `nindent N TEXT`: a line break, then every line behind N spaces.
fn nindent(values: &[Value]) -> gotmpl::Result<Value> {
    let [width, text] = args("nindent", values)?;
    let width = width
        .as_int()
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or_default();
    let pad = " ".repeat(width);
    let text = text.to_string();
    Ok(Value::String(
        format!("\n{pad}{}", text.replace('\n', &format!("\n{pad}"))).into(),
    ))
}

/// `quote VALUE`: a double-quoted string that YAML reads back as it is.
fn quote(values: &[Value]) -> gotmpl::Result<Value> {
    let [value] = args("quote", values)?;
    Ok(Value::String(
        serde_json::Value::String(value.to_string())
            .to_string()
            .into(),
    ))
}

/// `required MESSAGE VALUE`: the value, or an error with the message if it is missing or "".
fn required(values: &[Value]) -> gotmpl::Result<Value> {
    let [message, value] = args("required", values)?;
    match value {
        Value::Nil => Err(TemplateError::Exec(message.to_string())),
        Value::String(text) if text.is_empty() => Err(TemplateError::Exec(message.to_string())),
        present => Ok(present.clone()),
    }
}

/// `toYaml VALUE`: YAML without the last line break.
fn to_yaml(values: &[Value]) -> gotmpl::Result<Value> {
    let [value] = args("toYaml", values)?;
    let text = serde_saphyr::to_string(&to_json(value)?)
        .map_err(|e| TemplateError::Exec(format!("toYaml: {e}")))?;
    Ok(Value::String(text.trim_end_matches('\n').into()))
}

fn to_json(value: &Value) -> gotmpl::Result<serde_json::Value> {
    Ok(match value {
        Value::Nil => serde_json::Value::Null,
        Value::Bool(b) => (*b).into(),
        Value::Int(n) => (*n).into(),
        Value::Uint(n) => (*n).into(),
        Value::Float(f) => (*f).into(),
        Value::String(s) => s.as_ref().into(),
        Value::List(list) => list
            .iter()
            .map(to_json)
            .collect::<gotmpl::Result<Vec<_>>>()?
            .into(),
        Value::Map(map) => serde_json::Value::Object(
            map.iter()
                .map(|(k, v)| Ok((k.to_string(), to_json(v)?)))
                .collect::<gotmpl::Result<_>>()?,
        ),
        other => {
            return Err(TemplateError::Exec(format!(
                "toYaml cannot write a {}",
                other.type_name()
            )));
        }
    })
}

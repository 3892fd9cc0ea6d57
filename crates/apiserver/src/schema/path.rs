//! Paths to the fields of a schema, as rules and selectable fields name them: `.spec.parts['a.b']`.

use serde_json::Value;

/// The steps of a path and the schema it leads to; `brackets`: whether `['name']` may be a step.
///
/// # Errors
/// What is wrong with the path.
pub(crate) fn field_path<'s>(
    path: &str,
    schema: &'s Value,
    brackets: bool,
) -> Result<(Vec<String>, &'s Value), String> {
    const END: &str = "unexpected end of JSON path";
    let (mut steps, mut at) = (Vec::new(), schema);
    let mut tokens = tokens(path).into_iter();
    while let Some(token) = tokens.next() {
        let name = match token {
            "." => tokens.next().ok_or(END)?.to_owned(),
            "[" if !brackets => return Err("array notation is not allowed".into()),
            "[" => {
                let quoted = tokens.next().ok_or(END)?;
                let inner = quoted
                    .strip_prefix('\'')
                    .and_then(|q| q.strip_suffix('\''))
                    .ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                let inner = unescape(inner).map_err(|e| format!("invalid string literal: {e}"))?;
                at = step(at, &inner)?;
                steps.push(inner);
                match tokens.next().ok_or(END)? {
                    "]" => continue,
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            other => return Err(format!("expected [ or . but got: {other}")),
        };
        at = step(at, &name)?;
        steps.push(name);
    }
    Ok((steps, at))
}

fn step<'s>(schema: &'s Value, name: &str) -> Result<&'s Value, String> {
    let properties = schema.get("properties").and_then(Value::as_object);
    let found = match properties.filter(|p| !p.is_empty()) {
        Some(properties) => properties.get(name),
        None => schema.get("additionalProperties").filter(|a| a.is_object()),
    };
    found.ok_or_else(|| "does not refer to a valid field".into())
}

/// The delimiters, and what is between them.
fn tokens(path: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), path);
    while !rest.is_empty() {
        let end = if rest.starts_with(['.', '[', ']']) {
            1
        } else if rest.starts_with('\'') {
            let bytes = rest.as_bytes();
            let close = (1..bytes.len()).find(|i| bytes[*i] == b'\'' && bytes[i - 1] != b'\\');
            close.map_or(rest.len(), |i| i + 1)
        } else {
            rest.find(['.', '[', ']']).unwrap_or(rest.len())
        };
        let (token, after) = rest.split_at(end);
        tokens.push(token);
        rest = after;
    }
    tokens
}

fn unescape(text: &str) -> Result<String, String> {
    let (mut out, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(same @ ('\'' | '\\')) => same,
            Some(other) => return Err(format!("invalid escape char \\{other}")),
            None => '\\',
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_to_fields_or_say_why_not() {
        let schema = json!({"properties": {"a": {"additionalProperties": {"properties": {"x.y": {"type": "string"}}}}}});
        let path = |text: &str, brackets| {
            field_path(text, &schema, brackets).map(|(steps, _)| steps.join("/"))
        };
        assert_eq!(path(".a.any['x.y']", true), Ok("a/any/x.y".into()));
        let wrong = |text: &str, brackets| path(text, brackets).unwrap_err();
        assert_eq!(wrong(".b", true), "does not refer to a valid field");
        assert_eq!(wrong(".a['b']", false), "array notation is not allowed");
        assert_eq!(wrong("a", true), "expected [ or . but got: a");
        assert_eq!(wrong(".", true), "unexpected end of JSON path");
        assert_eq!(
            wrong(".a[0]", true),
            "expected single quoted string but got 0"
        );
    }
}

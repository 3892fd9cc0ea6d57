//! The reference of all kinds, from the types.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;

/// Root of the repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(PathBuf::from)
        .unwrap_or_default()
}

/// Where the reference stands.
pub fn path() -> PathBuf {
    root().join("docs/reference/crds.md")
}

/// The reference as Markdown.
pub fn render() -> anyhow::Result<String> {
    let mut out = String::from(
        "# Kinds\n\nGenerated from the types in `crates/api` by `cargo xtask docs`; a test keeps it in step.\n",
    );
    for crd in farshore_api::crds::all() {
        let crd = serde_json::to_value(crd)?;
        let names = &crd["spec"]["names"];
        let version = &crd["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let short: Vec<String> = names["shortNames"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|s| format!("`{}`", text(s)))
            .collect();
        writeln!(out, "\n## {}\n", text(&names["kind"]))?;
        writeln!(
            out,
            "`{}/{}`, plural `{}`, short {}.\n",
            text(&crd["spec"]["group"]),
            text(&version["name"]),
            text(&names["plural"]),
            short.join(", ")
        )?;
        let about = &schema["properties"]["spec"]["description"];
        if about.is_string() {
            writeln!(out, "{}\n", one_line(about))?;
        }
        writeln!(
            out,
            "| field | type | default | rules | meaning |\n| --- | --- | --- | --- | --- |"
        )?;
        for part in ["spec", "status"] {
            fields(&mut out, part, &schema["properties"][part])
                .with_context(|| text(&names["kind"]))?;
        }
    }
    Ok(out)
}

fn fields(out: &mut String, path: &str, schema: &Value) -> anyhow::Result<()> {
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let inner = if field["type"] == "array" {
            &field["items"]
        } else {
            field
        };
        let own = format!(
            "{path}.{name}{}",
            if field["type"] == "array" { "[]" } else { "" }
        );
        let mut kind = inner["type"].as_str().unwrap_or("any").to_string();
        if field["type"] == "array" {
            kind = format!("list of {kind}");
        }
        if field["additionalProperties"].is_object() {
            kind = format!(
                "map of {}",
                field["additionalProperties"]["type"]
                    .as_str()
                    .unwrap_or("any")
            );
        }
        let default = if field["default"].is_null() {
            String::new()
        } else {
            format!("`{}`", field["default"])
        };
        let default = if default.len() > 40 {
            "(see its fields)".to_string()
        } else {
            default
        };
        let mut rules = Vec::new();
        if required.contains(&name.as_str()) {
            rules.push("required".to_string());
        }
        if let Some(values) = inner["enum"].as_array() {
            let values: Vec<String> = values
                .iter()
                .filter(|v| !v.is_null())
                .map(|v| format!("`{}`", v.as_str().unwrap_or_default()))
                .collect();
            rules.push(values.join(" "));
        }
        for (key, word) in [
            ("minimum", "at least"),
            ("maximum", "at most"),
            ("minItems", "at least"),
            ("maxItems", "at most"),
            ("maxLength", "at most"),
        ] {
            if let Some(number) = field[key].as_f64() {
                let unit = if key.ends_with("Items") {
                    " entries"
                } else if key.ends_with("Length") {
                    " characters"
                } else {
                    ""
                };
                rules.push(format!("{word} {number}{unit}"));
            }
        }
        for rule in field["x-kubernetes-validations"]
            .as_array()
            .into_iter()
            .flatten()
        {
            rules.push(rule["message"].as_str().unwrap_or_default().to_string());
        }
        let meaning = one_line(&field["description"]).replace('|', "\\|");
        writeln!(
            out,
            "| `{own}` | {kind} | {default} | {} | {meaning} |",
            rules.join("; ").replace('|', "\\|")
        )?;
        if name != "conditions" {
            fields(out, &own, inner)?;
        }
    }
    Ok(())
}

fn one_line(text: &Value) -> String {
    text.as_str()
        .unwrap_or_default()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

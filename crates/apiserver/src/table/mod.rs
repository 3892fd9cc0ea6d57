//! `meta.k8s.io` Tables: what `kubectl get` shows, with the same columns and cells as the API
//! server's own printers.

mod age;
mod builtin;
mod cells;
mod fields;
mod jsonpath;
mod pod;

#[cfg(test)]
mod tests;

use jiff::Timestamp;
use serde_json::{Value, json};

pub use builtin::builtin_columns;
pub use jsonpath::JsonPath;

/// One column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// OpenAPI type of the cells, or `date` for ages of custom resources.
    pub kind: String,
    /// OpenAPI format; `name` marks the column that holds the name.
    pub format: String,
    /// What the column shows.
    pub description: String,
    /// 0 is always shown, anything above only with `-o wide`.
    pub priority: i64,
    /// Where the cells come from.
    pub source: Source,
}

/// Where the cells of a column come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A JSONPath as in a CRD's printer columns, with a leading dot. One that does not parse
    /// leaves the column empty.
    Path(String),
    /// A function of the object and the current time.
    Builtin(fn(&Value, Timestamp) -> Value),
}

/// How much of each object a row carries (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// Its metadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

impl IncludeObject {
    /// Reads the query parameter; an absent or empty one means metadata.
    pub fn parse(parameter: Option<&str>) -> Option<Self> {
        match parameter.unwrap_or_default() {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// A Table over `objects`. `api_version` is `meta.k8s.io/v1` or `meta.k8s.io/v1beta1`;
/// `list_metadata` the metadata of the list (or `{resourceVersion}` of the single object).
pub fn render(
    columns: &[Column],
    objects: &[Value],
    include: IncludeObject,
    api_version: &str,
    now: Timestamp,
    list_metadata: Value,
) -> Value {
    let paths: Vec<Option<JsonPath>> = columns
        .iter()
        .map(|column| match &column.source {
            Source::Path(path) => JsonPath::parse(path).ok(),
            Source::Builtin(_) => None,
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let cells: Vec<Value> = columns
                .iter()
                .zip(&paths)
                .map(|(column, path)| match (&column.source, path) {
                    (Source::Builtin(cell), _) => cell(object, now),
                    (Source::Path(_), Some(path)) => cells::from_path(column, path, object, now),
                    (Source::Path(_), None) => Value::Null,
                })
                .collect();
            let mut row = json!({ "cells": cells });
            row["object"] = included(object, include, api_version).unwrap_or_default();
            row
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": api_version,
        "metadata": list_metadata,
        "columnDefinitions": columns.iter().map(definition).collect::<Vec<_>>(),
        "rows": rows,
    })
}

/// The columns of a custom resource: the name, then the CRD version's `additionalPrinterColumns`,
/// or the age if there are none. Built-in kinds without columns of their own show the same.
pub fn custom_columns(additional_printer_columns: &Value) -> Vec<Column> {
    let mut columns = vec![name_column()];
    let given = additional_printer_columns.as_array().map_or(&[][..], |c| c);
    if given.is_empty() {
        columns.push(Column {
            name: "Age".to_string(),
            kind: "date".to_string(),
            format: String::new(),
            description: AGE.to_string(),
            priority: 0,
            source: Source::Path(".metadata.creationTimestamp".to_string()),
        });
    }
    for column in given {
        let text = |name: &str| column[name].as_str().unwrap_or_default().to_string();
        let path = text("jsonPath");
        let description = match text("description") {
            none if none.is_empty() => {
                format!("Custom resource definition column (in JSONPath format): {path}")
            }
            some => some,
        };
        columns.push(Column {
            name: text("name"),
            kind: text("type"),
            format: text("format"),
            description,
            priority: column["priority"].as_i64().unwrap_or_default(),
            source: Source::Path(path),
        });
    }
    columns
}

const NAME: &str = "Name must be unique within a namespace.";
const AGE: &str = "CreationTimestamp is the time when the server created the object.";

fn name_column() -> Column {
    Column {
        name: "Name".to_string(),
        kind: "string".to_string(),
        format: "name".to_string(),
        description: NAME.to_string(),
        priority: 0,
        source: Source::Builtin(|object, _| object["metadata"]["name"].clone()),
    }
}

fn definition(column: &Column) -> Value {
    json!({
        "name": column.name,
        "type": column.kind,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

fn included(object: &Value, include: IncludeObject, api_version: &str) -> Option<Value> {
    match include {
        IncludeObject::None => None,
        IncludeObject::Object => Some(object.clone()),
        IncludeObject::Metadata => Some(json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": api_version,
            "metadata": object["metadata"],
        })),
    }
}

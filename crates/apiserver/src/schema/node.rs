//! A schema node: one level of an OpenAPI v3 structural schema, read once from its JSON.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Number, Value};

/// A level of a structural schema, or of a value validation nested in `allOf` and its kin.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// The JSON type name; empty if the schema gives none.
    pub kind: String,
    pub nullable: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Node>,
    pub additional: Additional,
    pub items: Option<Box<Node>>,
    pub preserve_unknown: bool,
    pub embedded: bool,
    pub int_or_string: bool,
    pub list_type: ListType,
    pub list_map_keys: Vec<String>,
    pub values: Values,
    pub rules: Option<super::cel::Rules>,
}

/// `additionalProperties`.
#[derive(Debug, Default)]
pub(crate) enum Additional {
    /// Not given (or `false`).
    #[default]
    None,
    /// `true`: any property without a schema.
    Any,
    /// A schema for all further properties.
    Schema(Box<Node>),
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map,
}

/// The value rules of a level.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub format: String,
    pub minimum: Option<Number>,
    pub exclusive_minimum: bool,
    pub maximum: Option<Number>,
    pub exclusive_maximum: bool,
    pub multiple_of: Option<Number>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    pub pattern: Option<Pattern>,
    pub min_items: Option<u64>,
    pub max_items: Option<u64>,
    pub unique_items: bool,
    pub min_properties: Option<u64>,
    pub max_properties: Option<u64>,
    pub required: Vec<String>,
    pub allowed: Vec<Value>,
    pub all_of: Vec<Node>,
    pub any_of: Vec<Node>,
    pub one_of: Vec<Node>,
    pub not: Option<Box<Node>>,
}

/// A regular expression with its source, which messages quote.
#[derive(Debug)]
pub(crate) struct Pattern {
    pub source: String,
    pub regex: Regex,
}

impl Node {
    /// Reads a schema that [`super::structural::check`] has accepted; what that check would have
    /// refused is ignored here.
    pub fn read(schema: &Value) -> Self {
        Self::level(schema, true)
    }

    fn below(schema: &Value) -> Self {
        let embedded = schema.get("x-kubernetes-embedded-resource");
        Self::level(schema, embedded == Some(&Value::Bool(true)))
    }

    /// `resource`: whether these are objects of their own.
    fn level(schema: &Value, resource: bool) -> Self {
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool) == Some(true);
        let text = |name: &str| schema.get(name).and_then(Value::as_str);
        let additional = match schema.get("additionalProperties") {
            Some(Value::Bool(true)) => Additional::Any,
            Some(sub @ Value::Object(_)) => Additional::Schema(Box::new(Node::below(sub))),
            _ => Additional::None,
        };
        let list_type = match text("x-kubernetes-list-type") {
            Some("set") => ListType::Set,
            Some("map") => ListType::Map,
            _ => ListType::Atomic,
        };
        Self {
            kind: text("type").unwrap_or_default().to_string(),
            nullable: flag("nullable"),
            default: schema.get("default").filter(|d| !d.is_null()).cloned(),
            properties: object(schema.get("properties"))
                .map(|(name, sub)| (name.clone(), Node::below(sub)))
                .collect(),
            additional,
            items: schema
                .get("items")
                .filter(|i| i.is_object())
                .map(|i| Box::new(Node::below(i))),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            list_type,
            list_map_keys: strings(schema.get("x-kubernetes-list-map-keys")),
            values: Values::read(schema),
            rules: super::cel::Rules::read(schema, resource),
        }
    }

    /// The schema of a property, be it named or additional.
    pub fn property(&self, name: &str) -> Option<&Node> {
        match (self.properties.get(name), &self.additional) {
            (Some(node), _) => Some(node),
            (None, Additional::Schema(node)) => Some(node),
            _ => None,
        }
    }
}

impl Values {
    fn read(schema: &Value) -> Self {
        let text = |name: &str| schema.get(name).and_then(Value::as_str);
        let count = |name: &str| schema.get(name).and_then(Value::as_u64);
        let number = |name: &str| schema.get(name).and_then(Value::as_number).cloned();
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool) == Some(true);
        let nested = |name: &str| list(schema.get(name)).map(Node::below).collect::<Vec<_>>();
        Self {
            format: text("format").unwrap_or_default().to_string(),
            minimum: number("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            maximum: number("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            multiple_of: number("multipleOf"),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            pattern: text("pattern").and_then(|source| {
                let regex = Regex::new(&as_in_go(source)).ok()?;
                let source = source.to_string();
                Some(Pattern { source, regex })
            }),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: flag("uniqueItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            required: strings(schema.get("required")),
            allowed: list(schema.get("enum")).cloned().collect(),
            all_of: nested("allOf"),
            any_of: nested("anyOf"),
            one_of: nested("oneOf"),
            not: schema
                .get("not")
                .filter(|n| n.is_object())
                .map(|n| Box::new(Node::below(n))),
        }
    }
}

/// The entries of a JSON object; none if it is absent or something else.
pub(crate) fn object(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

/// The items of a JSON array; none if it is absent or something else.
pub(crate) fn list(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

fn strings(value: Option<&Value>) -> Vec<String> {
    list(value)
        .filter_map(|v| v.as_str().map(str::to_string))
        .collect()
}

/// A pattern whose Perl classes are those of Go's regular expressions: ASCII only.
fn as_in_go(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    let mut inside = 0usize;
    while let Some(c) = chars.next() {
        let escaped = if c == '\\' { chars.next() } else { None };
        let class = match (c, escaped) {
            (_, Some('d' | 'D')) => "0-9",
            (_, Some('w' | 'W')) => "0-9A-Za-z_",
            (_, Some('s' | 'S')) => "\\t\\n\\f\\r ",
            (_, Some('b')) if inside == 0 => {
                out.push_str("(?-u:\\b)");
                continue;
            }
            _ => {
                match (c, escaped) {
                    ('[', _) => inside += 1,
                    (']', _) => inside = inside.saturating_sub(1),
                    _ => {}
                }
                out.push(c);
                out.extend(escaped);
                continue;
            }
        };
        match escaped {
            Some(negated) if negated.is_ascii_uppercase() => out.push_str(&format!("[^{class}]")),
            _ if inside > 0 => out.push_str(class),
            _ => out.push_str(&format!("[{class}]")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perl_classes_of_patterns_are_ascii_only() {
        let matches =
            |pattern: &str, text: &str| Regex::new(&as_in_go(pattern)).unwrap().is_match(text);
        for (pattern, yes, no) in [
            ("^\\d$", "7", "٧"),
            ("^[x\\d]$", "7", "٧"),
            ("^\\w+$", "a_1", "é"),
            ("^[\\w.-]+$", "a.b-1", "é"),
            ("^a\\sb$", "a\tb", "a\u{a0}b"),
            ("^\\D$", "٧", "7"),
            ("^[^\\d]$", "٧", "7"),
            ("^[\\S]$", "\u{a0}", " "),
            ("^\\\\d$", "\\d", "7"),
            ("^\\[\\d]$", "[7]", "7"),
            ("x\\b", "x", "xy"),
        ] {
            assert!(matches(pattern, yes), "{pattern} and {yes}");
            assert!(!matches(pattern, no), "{pattern} and {no}");
        }
    }
}

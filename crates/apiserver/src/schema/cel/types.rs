//! The types of expressions, and what a schema says of the values that it allows.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::schema::node::object;

/// Size of the largest request in bytes: what bounds a value whose schema does not.
const REQUEST: u64 = 3 * 1024 * 1024;

/// What an expression is. Numbers are the most characters, bytes, items or entries that it can have.
#[derive(Clone, Debug)]
pub(super) enum Type {
    /// Known only when it is evaluated.
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text(u64),
    Bytes(u64),
    Duration,
    Timestamp,
    List(Box<Type>, u64),
    Map(Box<Type>, Box<Type>, u64),
    Optional(Box<Type>),
    Object(Arc<Object>),
    /// A type of a library, by its name.
    Library(String),
    /// A type itself, as `int` in `type(self) == int`.
    Kind,
    /// In signatures: any type, the same wherever the letter stands.
    Any(char),
}

/// An object with declared fields; the names are those that expressions use.
#[derive(Debug)]
pub(super) struct Object {
    name: String,
    pub fields: BTreeMap<String, Type>,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::Text(_) => f.write_str("string"),
            Self::Bytes(_) => f.write_str("bytes"),
            Self::Duration => f.write_str("google.protobuf.Duration"),
            Self::Timestamp => f.write_str("google.protobuf.Timestamp"),
            Self::List(item, _) => write!(f, "list({item})"),
            Self::Map(key, value, _) => write!(f, "map({key}, {value})"),
            Self::Optional(inner) => write!(f, "optional_type({inner})"),
            Self::Object(object) => f.write_str(&object.name),
            Self::Library(name) => f.write_str(name),
            Self::Kind => f.write_str("type"),
            Self::Any(letter) => write!(f, "{letter}"),
        }
    }
}

impl Type {
    /// Whether a value of this type can stand where that one is wanted, and the other way round.
    pub fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn | Self::Any(_), _) | (_, Self::Dyn | Self::Any(_)) => true,
            (Self::List(a, _), Self::List(b, _)) | (Self::Optional(a), Self::Optional(b)) => {
                a.fits(b)
            }
            (Self::Map(a, b, _), Self::Map(c, d, _)) => a.fits(c) && b.fits(d),
            (Self::Object(a), Self::Object(b)) => a.name == b.name,
            // Nothing can be told of maps that are written down and stand for objects.
            (Self::Object(_), Self::Map(..)) | (Self::Map(..), Self::Object(_)) => false,
            (Self::Library(a), Self::Library(b)) => a == b,
            // Null stands for what has a value or none, which simple types do not.
            (Self::Null, other) | (other, Self::Null) => !matches!(
                other,
                Self::Bool
                    | Self::Int
                    | Self::Uint
                    | Self::Double
                    | Self::Text(_)
                    | Self::Bytes(_)
                    | Self::List(..)
                    | Self::Map(..)
                    | Self::Kind
            ),
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }

    /// The more telling of two types that fit, with the larger size.
    pub fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Dyn | Self::Any(_), other) | (other, Self::Dyn | Self::Any(_)) => other,
            (Self::Null, other) | (other, Self::Null) => other,
            (Self::Text(a), Self::Text(b)) => Self::Text(a.max(b)),
            (Self::Bytes(a), Self::Bytes(b)) => Self::Bytes(a.max(b)),
            (Self::List(a, n), Self::List(b, m)) => Self::List(Box::new(a.join(*b)), n.max(m)),
            (Self::Map(a, b, n), Self::Map(c, d, m)) => {
                Self::Map(Box::new(a.join(*c)), Box::new(b.join(*d)), n.max(m))
            }
            (Self::Optional(a), Self::Optional(b)) => Self::Optional(Box::new(a.join(*b))),
            (Self::Object(a), Self::Object(b)) if !Arc::ptr_eq(&a, &b) && a.name == b.name => {
                let mut fields = a.fields.clone();
                for (name, other) in &b.fields {
                    if let Some(field) = fields.remove(name) {
                        fields.insert(name.clone(), field.join(other.clone()));
                    }
                }
                let name = a.name.clone();
                Self::Object(Arc::new(Object { name, fields }))
            }
            (one, _) => one,
        }
    }

    /// The most characters, bytes, items or entries; 1 for what has none.
    pub fn size(&self) -> u64 {
        match self {
            Self::Text(n) | Self::Bytes(n) | Self::List(_, n) | Self::Map(_, _, n) => *n,
            Self::Optional(inner) => inner.size(),
            // Something of a request, at most.
            Self::Dyn | Self::Any(_) => REQUEST - 2,
            _ => 1,
        }
    }

    /// The same with another size, where it has one.
    pub fn sized(self, size: u64) -> Self {
        match self {
            Self::Text(_) => Self::Text(size),
            Self::Bytes(_) => Self::Bytes(size),
            Self::List(item, _) => Self::List(item, size),
            Self::Map(key, value, _) => Self::Map(key, value, size),
            other => other,
        }
    }
}

/// The type of the values of a schema; `None` for those that rules cannot see. `root`: whether it is that of a
/// resource, of which rules see kind, apiVersion and the names as well.
pub(super) fn of_schema(schema: &Value, root: bool, name: &str) -> Option<Type> {
    let flag = |word: &str| schema.get(word) == Some(&Value::Bool(true));
    let most = |word: &str| schema.get(word).and_then(Value::as_u64);
    if flag("x-kubernetes-int-or-string") {
        return Some(Type::Dyn);
    }
    let kind = schema.get("type").and_then(Value::as_str);
    match if root { Some("object") } else { kind }? {
        "boolean" => Some(Type::Bool),
        "integer" => Some(Type::Int),
        "number" => Some(Type::Double),
        "string" => Some(
            match schema
                .get("format")
                .and_then(Value::as_str)
                .unwrap_or_default()
            {
                "byte" => Type::Bytes(most("maxLength").unwrap_or(REQUEST - 2)),
                "duration" => Type::Duration,
                "date" | "date-time" => Type::Timestamp,
                _ => Type::Text(longest(schema)),
            },
        ),
        "array" => {
            let items = schema.get("items").filter(|i| i.is_object())?;
            let item = of_schema(items, flag_of_embedding(items), &format!("{name}.@idx"))?;
            Some(Type::List(Box::new(item), most_values(schema)))
        }
        "object" => {
            if let Some(values) = schema
                .get("additionalProperties")
                .filter(|a| a.is_object() && !root)
            {
                let value = of_schema(
                    values,
                    flag_of_embedding(values),
                    &format!("{name}.@values"),
                )?;
                let (key, value) = (Box::new(Type::Text(REQUEST - 2)), Box::new(value));
                return Some(Type::Map(key, value, most_values(schema)));
            }
            let mut fields = BTreeMap::new();
            for (field, sub) in object(schema.get("properties")) {
                let below = of_schema(sub, flag_of_embedding(sub), &format!("{name}.{field}"));
                if let Some(below) = below {
                    fields.insert(escaped(field), below);
                }
            }
            if root {
                // A name of an object has at most 253 characters; without a pattern nothing is known of its length.
                let text = || Type::Text(REQUEST - 2);
                fields.insert("apiVersion".into(), text());
                fields.insert("kind".into(), text());
                let names = ["name", "generateName"].map(|n| (n.to_owned(), text()));
                let metadata = Object {
                    name: format!("{name}.metadata"),
                    fields: names.into(),
                };
                fields.insert("metadata".into(), Type::Object(Arc::new(metadata)));
            }
            let name = name.to_owned();
            Some(Type::Object(Arc::new(Object { name, fields })))
        }
        _ => None,
    }
}

/// How many items or values a list or a map of this schema can have.
pub(super) fn most_values(schema: &Value) -> u64 {
    let most = |word: &str| schema.get(word).and_then(Value::as_u64);
    match schema.get("items").filter(|i| i.is_object()) {
        Some(items) => most("maxItems").unwrap_or((REQUEST - 2) / (smallest(items) + 1)),
        None => {
            let values = schema.get("additionalProperties").unwrap_or(&Value::Null);
            most("maxProperties").unwrap_or((REQUEST - 2) / (smallest(values) + 6))
        }
    }
}

fn flag_of_embedding(schema: &Value) -> bool {
    schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true))
}

fn longest(schema: &Value) -> u64 {
    if let Some(most) = schema.get("maxLength").and_then(Value::as_u64) {
        return most;
    }
    let choices = schema.get("enum").and_then(Value::as_array);
    let lengths = choices.map(|all| {
        all.iter()
            .map(|v| v.as_str().map_or(0, |s| s.len() as u64))
            .max()
    });
    lengths.flatten().unwrap_or(REQUEST - 2)
}

/// The least bytes that a value takes in JSON: with it, a request has room for so many.
fn smallest(schema: &Value) -> u64 {
    match schema
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
    {
        "boolean" => 4,
        "array" | "string" => match schema.get("format").and_then(Value::as_str) {
            Some("date") => 12,
            Some("date-time") => 21,
            _ => 2,
        },
        "object" => {
            let required = schema.get("required").and_then(Value::as_array);
            let names = required
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>();
            let fields = object(schema.get("properties"));
            let needed = fields
                .filter(|(n, sub)| names.contains(&n.as_str()) && sub.get("default").is_none());
            2 + needed
                .map(|(n, sub)| n.len() as u64 + 4 + smallest(sub))
                .sum::<u64>()
        }
        _ => 1,
    }
}

/// A field's name as expressions write it: reserved words and characters that no identifier has are put in other words.
pub(super) fn escaped(name: &str) -> String {
    const RESERVED: [&str; 21] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    let mut out = String::new();
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let (word, length) = match c {
            '_' if rest.starts_with("__") => ("__underscores__", 2),
            '.' => ("__dot__", 1),
            '-' => ("__dash__", 1),
            '/' => ("__slash__", 1),
            _ => ("", c.len_utf8()),
        };
        match word {
            "" => out.push(c),
            word => out.push_str(word),
        }
        rest = &rest[length..];
    }
    out
}

/// The same type with the sizes of this value.
pub(super) fn of_value(known: &Type, value: &Value) -> Type {
    match (known, value) {
        (Type::Text(_), Value::String(text)) => Type::Text(text.chars().count() as u64),
        (Type::Bytes(_), Value::String(text)) => Type::Bytes(text.len() as u64),
        (Type::List(item, _), Value::Array(items)) => {
            let all = items.iter().map(|i| of_value(item, i)).reduce(Type::join);
            let item = all.unwrap_or_else(|| (**item).clone());
            Type::List(Box::new(item), items.len() as u64)
        }
        (Type::Map(_, value, _), Value::Object(entries)) => {
            let all = entries.values().map(|v| of_value(value, v));
            let value = all.reduce(Type::join).unwrap_or_else(|| (**value).clone());
            let longest = entries.keys().map(String::len).max().unwrap_or_default();
            let key = Type::Text(longest as u64);
            Type::Map(Box::new(key), Box::new(value), entries.len() as u64)
        }
        (Type::Object(known), Value::Object(map)) => {
            let mut fields = known.fields.clone();
            for (name, value) in map {
                if let Some(field) = fields.get_mut(&escaped(name)) {
                    *field = of_value(field, value);
                }
            }
            let name = known.name.clone();
            Type::Object(Arc::new(Object { name, fields }))
        }
        // Numbers or texts; of other values of no type nothing can be reached.
        (Type::Dyn, Value::String(text)) => Type::Text(text.chars().count() as u64),
        (other, _) => other.clone(),
    }
}

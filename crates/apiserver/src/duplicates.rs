//! Fields that stand twice in a body: the last one counts, and field validation reports them.
//!
//! JSON tells the path of each (`duplicate field "spec.size"`), YAML the line of the repeated value and the key, as
//! the decoders of kube-apiserver do.

use std::collections::BTreeSet;
use std::fmt;

use granit_parser::{Event, Parser};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// Most problems reported for one body.
const LIMIT: usize = 100;

/// What stands twice in a JSON text, and the paths of all its fields in the order they stand in.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Duplicates {
    /// Paths of fields that stand twice.
    pub paths: Vec<String>,
    /// Paths of all fields, where anything stands twice.
    pub order: Vec<String>,
}

impl Duplicates {
    /// `duplicate field "…"` for each.
    pub fn problems(&self) -> Vec<String> {
        self.paths
            .iter()
            .map(|p| format!("duplicate field {p:?}"))
            .collect()
    }
}

enum Step {
    Field(String),
    Index(usize),
}

fn path(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Field(name) if text.is_empty() => text.push_str(name),
            Step::Field(name) => {
                text.push('.');
                text.push_str(name);
            }
            Step::Index(n) => text.push_str(&format!("[{n}]")),
        }
    }
    text
}

/// Looks for fields that stand twice. A text that is no JSON has none: decoding it tells what is wrong.
pub(crate) fn in_json(text: &[u8]) -> Duplicates {
    let mut found = Duplicates::default();
    scan(text, &mut found, false);
    if !found.paths.is_empty() {
        found.paths.clear();
        scan(text, &mut found, true);
    }
    found
}

fn scan(text: &[u8], found: &mut Duplicates, order: bool) {
    let mut walk = Walk {
        steps: Vec::new(),
        found,
        order,
    };
    let mut json = serde_json::Deserializer::from_slice(text);
    let _ = walk.deserialize(&mut json);
}

struct Walk<'a> {
    steps: Vec<Step>,
    found: &'a mut Duplicates,
    order: bool,
}

impl<'de> DeserializeSeed<'de> for &mut Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut n = 0;
        loop {
            self.steps.push(Step::Index(n));
            let more = list.next_element_seed(&mut *self)?;
            self.steps.pop();
            if more.is_none() {
                return Ok(());
            }
            n += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            let first = seen.insert(name.clone());
            self.steps.push(Step::Field(name));
            if self.order {
                self.found.order.push(path(&self.steps));
            }
            if !first {
                let path = path(&self.steps);
                if self.found.paths.len() < LIMIT && !self.found.paths.contains(&path) {
                    self.found.paths.push(path);
                }
            }
            map.next_value_seed(&mut *self)?;
            self.steps.pop();
        }
        Ok(())
    }
}

/// A mapping or list that is open while a YAML text is read.
struct Open {
    /// Keys so far; `None` for a list.
    keys: Option<BTreeSet<String>>,
    /// The key whose value comes next, and whether it stood there before.
    key: Option<(String, bool)>,
    /// Line of the first line of this value.
    line: usize,
}

/// Looks for keys that stand twice in a YAML text, as sentences with the line of the repeated value. A text that is no
/// YAML has none.
pub(crate) fn in_yaml(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let Ok((event, span)) = event else {
            return Vec::new();
        };
        let line = span.start.line();
        match event {
            Event::Scalar(value, ..) => match open.last_mut() {
                Some(Open {
                    keys: Some(keys),
                    key: key @ None,
                    ..
                }) => {
                    let again = !keys.insert(value.clone().into_owned());
                    *key = Some((value.into_owned(), again));
                }
                _ => close(&mut open, line, &mut problems),
            },
            Event::Alias(..) => close(&mut open, line, &mut problems),
            Event::SequenceStart(..) => open.push(Open {
                keys: None,
                key: None,
                line,
            }),
            Event::MappingStart(..) => open.push(Open {
                keys: Some(BTreeSet::new()),
                key: None,
                line,
            }),
            Event::SequenceEnd | Event::MappingEnd => {
                let line = open.pop().map_or(line, |o| o.line);
                close(&mut open, line, &mut problems);
            }
            _ => {}
        }
    }
    problems.truncate(LIMIT);
    problems
}

/// The value of the pending key is read.
fn close(open: &mut [Open], line: usize, problems: &mut Vec<String>) {
    if let Some(Open {
        keys: Some(_), key, ..
    }) = open.last_mut()
        && let Some((key, true)) = key.take()
    {
        problems.push(format!("line {line}: key {key:?} already set in map"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_fields_that_stand_twice_are_told_by_path() {
        let text = r#"{"a": 1, "b": {"c": [{"d": 1, "d": 2}, 3], "e": null, "e": true}, "a": "x", "a": 2.5}"#;
        let found = in_json(text.as_bytes());
        assert_eq!(found.paths, ["b.c[0].d", "b.e", "a"]);
        assert_eq!(found.problems()[0], "duplicate field \"b.c[0].d\"");
        assert_eq!(found.order.first().map(String::as_str), Some("a"));
        assert_eq!(
            in_json(br#"{"a": 1, "b": {"a": 1}}"#),
            Duplicates::default()
        );
        assert_eq!(in_json(b"{").paths, Vec::<String>::new());
    }

    #[test]
    fn yaml_keys_that_stand_twice_are_told_by_line() {
        let text = "a: 1\nb:\n  c: 1\n  c: 2\n  l:\n  - d: 1\n    d: 2\na: 2\nb:\n  x: 1\n";
        assert_eq!(
            in_yaml(text),
            [
                "line 4: key \"c\" already set in map",
                "line 7: key \"d\" already set in map",
                "line 8: key \"a\" already set in map",
                "line 10: key \"b\" already set in map",
            ]
        );
        assert_eq!(
            in_yaml("{a: 1, b: [1, 2], c: {a: 1}}"),
            Vec::<String>::new()
        );
        assert_eq!(
            in_yaml("{a: 1, a: 2}"),
            ["line 1: key \"a\" already set in map"]
        );
    }
}

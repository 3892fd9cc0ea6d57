//! The differences that are known: those that are meant to be, and those that are still to be mended.

use std::path::Path;

use serde::Deserialize;

use super::difference::Difference;

/// One row of the table; `*` in `script` and `step` stands for any text, in `field` for one part of the path, `**` for
/// any number of parts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    script: String,
    step: String,
    field: String,
    /// Why both are right, or what is wrong here.
    #[allow(dead_code)] // For readers.
    reason: String,
    #[serde(skip)]
    used: bool,
}

pub struct Explained(Vec<Row>);

impl Explained {
    pub fn read(folder: &Path, file: &str) -> Self {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        Self(serde_saphyr::from_str(&text).unwrap())
    }

    /// Drops the differences that have an explanation.
    pub fn without(&mut self, differences: Vec<Difference>) -> Vec<Difference> {
        let mut open = Vec::new();
        for difference in differences {
            let mut explained = false;
            for row in &mut self.0 {
                if row.covers(&difference) {
                    row.used = true;
                    explained = true;
                }
            }
            if !explained {
                open.push(difference);
            }
        }
        open
    }

    /// Rows that explain nothing.
    pub fn unused(&self) -> Vec<Row> {
        self.0.iter().filter(|row| !row.used).cloned().collect()
    }
}

impl Row {
    fn covers(&self, difference: &Difference) -> bool {
        let text = |pattern: &str, text: &str| {
            let (pattern, text): (Vec<char>, Vec<char>) =
                (pattern.chars().collect(), text.chars().collect());
            matches(&pattern, &text, |p| *p == '*', |p, t| p == t)
        };
        let pattern: Vec<&str> = self.field.split('/').collect();
        let field: Vec<&str> = difference.field.split('/').collect();
        text(&self.script, &difference.script)
            && text(&self.step, &difference.step)
            && matches(&pattern, &field, |p| *p == "**", |p, t| *p == "*" || p == t)
    }
}

fn matches<T>(
    pattern: &[T],
    text: &[T],
    any: impl Fn(&T) -> bool + Copy,
    one: impl Fn(&T, &T) -> bool + Copy,
) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((first, rest)) if any(first) => {
            (0..=text.len()).any(|n| matches(rest, &text[n..], any, one))
        }
        Some((first, rest)) => match text.split_first() {
            Some((head, tail)) => one(first, head) && matches(rest, tail, any, one),
            None => false,
        },
    }
}

//! Where this server's answers print other lines than the record, and the table that says why.

use std::path::Path;

use serde::Deserialize;

use super::transcript::{Session, Step};

/// One row: `*` stands for any text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    session: String,
    command: String,
    /// The lines of the record.
    #[serde(default)]
    real: String,
    /// The lines that stand here instead.
    #[serde(default)]
    here: String,
    /// Why both are right.
    #[allow(dead_code)] // For readers.
    reason: String,
    #[serde(skip)]
    used: bool,
}

pub struct Table(Vec<Row>);

impl Table {
    pub fn read(folder: &Path) -> Self {
        let text = std::fs::read_to_string(folder.join("differences.yaml")).unwrap();
        Self(serde_saphyr::from_str(&text).unwrap())
    }

    pub fn unexplained(&mut self, session: &Session, step: &Step, output: &str) -> Vec<String> {
        let mut open = Vec::new();
        for (real, here) in changes(&step.output, output) {
            let mut explained = false;
            let covers = |row: &Row| {
                like(&row.session, &session.name)
                    && like(&row.command, &step.command)
                    && like(row.real.trim_end(), &real)
                    && like(row.here.trim_end(), &here)
            };
            for row in self.0.iter_mut().filter(|row| covers(row)) {
                row.used = true;
                explained = true;
            }
            if !explained {
                let mark = |text: &str, sign: &str| -> String {
                    text.lines().map(|l| format!("{sign} {l}\n")).collect()
                };
                open.push(format!(
                    "{} $ {}\n{}{}",
                    session.name,
                    step.command,
                    mark(&real, "-"),
                    mark(&here, "+")
                ));
            }
        }
        open
    }

    /// Whether a row is about this step.
    pub fn speaks_of(&self, session: &Session, step: &Step) -> bool {
        let own = |row: &Row| row.session == session.name && like(&row.command, &step.command);
        self.0.iter().any(own)
    }

    /// Rows that explain nothing.
    pub fn unused(&self) -> Vec<Row> {
        self.0.iter().filter(|row| !row.used).cloned().collect()
    }
}

fn like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut last = None;
    for part in parts {
        if let Some(part) = last.replace(part) {
            let Some((_, after)) = rest.split_once(part) else {
                return false;
            };
            rest = after;
        }
    }
    last.map_or(rest.is_empty(), |part| rest.ends_with(part))
}

/// The runs of lines in which the texts differ.
fn changes(real: &str, here: &str) -> Vec<(String, String)> {
    let (a, b): (Vec<&str>, Vec<&str>) = (real.lines().collect(), here.lines().collect());
    // The lengths of the longest common subsequences of the ends.
    let mut common = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = if a[i] == b[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut found = Vec::new();
    let mut open = (Vec::new(), Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            found.push(std::mem::take(&mut open));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            open.0.push(a[i]);
            i += 1;
        } else {
            open.1.push(b[j]);
            j += 1;
        }
    }
    found.push(open);
    found
        .into_iter()
        .filter(|(a, b)| !a.is_empty() || !b.is_empty())
        .map(|(a, b)| (a.join("\n"), b.join("\n")))
        .collect()
}

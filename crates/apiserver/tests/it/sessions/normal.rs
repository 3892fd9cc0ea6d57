//! Gives names to what two runs do not share.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

pub struct Normal {
    own: [(String, &'static str); 3],
}

static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (
            r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "<uid>",
        ),
        (
            r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?Z| ?[+-]\d\d:?\d\d)?",
            "<time>",
        ),
        (
            r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}",
            "<time>",
        ),
        (
            r#"(?i)(resource ?version\\*"?[:=] *\\*"?)\d+"#,
            "${1}<revision>",
        ),
        // The first address is that of the Service kubernetes.
        (
            r"10\.96\.(\d{2,}\.\d+|[1-9]\.\d+|0\.\d{2,}|0\.[2-9])",
            "<ip>",
        ),
        (r"kube-api-access-[a-z0-9]{5}", "kube-api-access-<random>"),
        (r"\b(eyJ|lab\.)[A-Za-z0-9_.-]{16,}", "<token>"),
        (r"(LIVE|MERGED)-\d+", "$1-<random>"),
        (r"kubectl-edit-\d+", "kubectl-edit-<random>"),
        (r"0xc[0-9a-f]{6,}", "<pointer>"),
    ]
    .map(|(pattern, name)| (Regex::new(pattern).unwrap(), name))
    .into()
});
/// Words of the client's library about its connections: they come or not.
static LOG: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^2> [EWI]\d{4} \S+ +\d+ ").unwrap());
static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(\d+[ydhms]{1,2})+$").unwrap());
/// Columns stand three blanks apart; how wide they are depends on ages. Fields of descriptions are aligned.
static GAP: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\S) {2,}").unwrap());

impl Normal {
    pub fn new(url: &str, home: &Path) -> Self {
        let host = url.strip_prefix("https://").unwrap_or(url);
        Self {
            own: [
                (url.into(), "<server>"),
                (host.into(), "<server>"),
                (home.to_str().unwrap().into(), "<home>"),
            ],
        }
    }

    pub fn text(&self, text: &str) -> String {
        let told = text.trim_end().lines().filter(|l| !LOG.is_match(l));
        let mut lines: Vec<String> = told.map(|l| self.line(l)).collect();
        // The real server finds what is wrong with an object in any order.
        for causes in lines.split_mut(|l| !l.starts_with("2> * ")) {
            causes.sort();
        }
        lines.join("\n")
    }

    fn line(&self, line: &str) -> String {
        let mut line = line.trim_end().to_owned();
        for (value, name) in &self.own {
            line = line.replace(value, name);
        }
        let (mark, mut line) = match line.strip_prefix("2> ") {
            Some(rest) => ("2> ", rest.to_owned()),
            None => ("", line),
        };
        for (pattern, name) in RULES.iter() {
            line = pattern.replace_all(&line, *name).into_owned();
        }
        let line = GAP.replace_all(&line, "$1   ");
        let cells: Vec<&str> = line
            .split("   ")
            .map(|cell| if AGE.is_match(cell) { "<age>" } else { cell })
            .collect();
        format!("{mark}{}", cells.join("   "))
    }
}

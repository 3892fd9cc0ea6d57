//! Takes out of answers what two runs of one server do not share: uids, times, revisions, random names, tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::{Value, json};

use super::run::Answer;

/// What a script's answers have told so far.
#[derive(Default)]
struct Seen {
    /// In the order of first appearance.
    uids: Vec<String>,
    /// Per uid, in the order of the store.
    revisions: BTreeMap<String, BTreeSet<u64>>,
    /// Generated names and the prefix of each.
    generated: BTreeMap<String, String>,
}

/// Replaces, over all answers of a script together, so that equal stays equal and earlier stays earlier.
pub fn normalise(answers: &mut [(String, Answer)]) {
    let mut seen = Seen::default();
    for (_, answer) in answers.iter() {
        seen.collect(&answer.body);
    }
    for (_, answer) in answers {
        answer.body = seen.value("", &answer.body);
        for warning in &mut answer.warnings {
            *warning = seen.text("warning", warning);
        }
    }
}

static TIME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)").unwrap()
});
static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(\d+[ydhms])+$").unwrap());
/// What Go prints of a pointer and of a time, the name of a pod's token volume, and a ClusterIP.
static RANDOM: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"0xc[0-9a-f]{6,}|time\.Date\([^)]*\)|kube-api-access-[a-z0-9]{5}|10\.96\.\d+\.\d+")
        .unwrap()
});
static REVISION: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)(resource ?version[^0-9]{0,40})(\d+)").unwrap());

/// Of messages that say the same what one of both versions adds: the object that cannot be typed, and the file that a
/// registry of kinds was made in.
static ADDED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#" \([^)]*, Kind=[^)]*\)|(?: in scheme \\?"k8s\.io/[^"]*scheme\.go:\d+\\?")"#)
        .unwrap()
});

/// An object inside a message, `Invalid value: "{…}"`, with its keys in order: Go prints them in the order of its types.
fn sorted(text: &str) -> String {
    static OBJECT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"Invalid value: ("\{(?:[^"\\]|\\.)*\}")"#).unwrap());
    let sort = |found: &Captures| {
        let inner = serde_json::from_str::<String>(&found[1]).ok();
        let value = inner.and_then(|text| serde_json::from_str::<Value>(&text).ok());
        value.map_or(found[0].to_owned(), |value| {
            format!("Invalid value: {}", json!(value.to_string()))
        })
    };
    OBJECT.replace_all(text, sort).into_owned()
}

impl Seen {
    fn collect(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|v| self.collect(v)),
            Value::Object(map) => {
                let uid = map.get("uid").and_then(Value::as_str);
                if let Some(uid) = uid.filter(|u| u.len() == 36) {
                    if !self.uids.iter().any(|u| u == uid) {
                        self.uids.push(uid.into());
                    }
                    let revision = map.get("resourceVersion").and_then(Value::as_str);
                    if let Some(revision) = revision.and_then(|r| r.parse().ok()) {
                        let known = self.revisions.entry(uid.into()).or_default();
                        known.insert(revision);
                    }
                }
                let prefix = map.get("generateName").and_then(Value::as_str);
                let name = map.get("name").and_then(Value::as_str);
                if let (Some(prefix), Some(name)) = (prefix, name)
                    && name.len() == prefix.len() + 5
                    && name.starts_with(prefix)
                {
                    self.generated.insert(name.into(), prefix.into());
                }
                map.values().for_each(|v| self.collect(v));
            }
            _ => {}
        }
    }

    fn value(&self, key: &str, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(key, text)),
            Value::Array(items) => {
                let mut items: Vec<Value> = items.iter().map(|v| self.value(key, v)).collect();
                if key == "managedFields" {
                    // Their order depends on the second in which they were written.
                    items.sort_by_key(|v| {
                        ["operation", "manager", "subresource", "apiVersion"]
                            .map(|f| v[f].as_str().unwrap_or_default().to_owned())
                    });
                }
                if key == "causes" {
                    // The real server goes through maps in any order.
                    items.sort_by_key(|v| {
                        ["field", "message"].map(|f| v[f].as_str().unwrap_or_default().to_owned())
                    });
                }
                Value::Array(items)
            }
            Value::Object(map) => {
                let uid = map.get("uid").and_then(Value::as_str).unwrap_or_default();
                let managed = map.contains_key("manager") && map.contains_key("operation");
                let mut out = serde_json::Map::new();
                for (name, value) in map {
                    let value = match (name.as_str(), value) {
                        ("resourceVersion", Value::String(revision)) => {
                            json!(self.revision(uid, revision))
                        }
                        ("time", _) if managed => continue,
                        _ => self.value(name, value),
                    };
                    out.insert(self.text("", name), value);
                }
                self.ages(&mut out);
                Value::Object(out)
            }
            other => other.clone(),
        }
    }

    /// The n-th revision of an object that the script saw; lists have only some revision.
    fn revision(&self, uid: &str, revision: &str) -> String {
        let place = revision.parse().ok().and_then(|n: u64| {
            let known = self.revisions.get(uid)?;
            known.iter().position(|r| *r == n)
        });
        match place {
            Some(place) => format!("<revision {}>", place + 1),
            None if revision.parse::<u64>().is_ok_and(|n| n > 0) => "<revision>".into(),
            None => revision.into(),
        }
    }

    fn text(&self, key: &str, text: &str) -> String {
        if key == "token" && text.len() > 20 {
            return "<token>".into();
        }
        if key == "continue" && !text.is_empty() {
            return "<continue>".into();
        }
        let mut text = sorted(text);
        for (n, uid) in self.uids.iter().enumerate() {
            if text.contains(uid.as_str()) {
                text = text.replace(uid, &format!("<uid {}>", n + 1));
            }
        }
        for (name, prefix) in &self.generated {
            if text.contains(name.as_str()) {
                text = text.replace(name, &format!("{prefix}<random>"));
            }
        }
        let text = ADDED.replace_all(&text, "");
        let text = TIME.replace_all(&text, "<time>");
        let text = RANDOM.replace_all(&text, "<random>");
        if key == "resourceVersion" {
            return text.into_owned();
        }
        let text = REVISION.replace_all(&text, |c: &Captures| format!("{}<revision>", &c[1]));
        text.into_owned()
    }

    /// The cells of a Table's columns that say how long ago something was.
    fn ages(&self, map: &mut serde_json::Map<String, Value>) {
        let none = Vec::new();
        let columns = map.get("columnDefinitions").and_then(Value::as_array);
        let columns = columns.unwrap_or(&none);
        let ages: Vec<usize> = columns
            .iter()
            .enumerate()
            .filter(|(_, c)| c["name"] == "Age" || c["type"] == "date" || c["name"] == "Last Seen")
            .map(|(n, _)| n)
            .collect();
        for row in map
            .get_mut("rows")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            for n in &ages {
                if let Some(cell) = row.pointer_mut(&format!("/cells/{n}"))
                    && *cell != json!("<unknown>")
                {
                    *cell = json!("<age>");
                }
            }
            // Later events of a watch have no columns.
            let cells = row.get_mut("cells").and_then(Value::as_array_mut);
            for cell in cells.into_iter().flatten() {
                if cell.as_str().is_some_and(|c| AGE.is_match(c)) {
                    *cell = json!("<age>");
                }
            }
        }
    }
}

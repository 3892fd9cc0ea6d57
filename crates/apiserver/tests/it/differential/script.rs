//! Scripts as they are written down.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// One file.
pub struct Area {
    pub name: String,
    pub scripts: Vec<Script>,
}

/// Steps that build on each other, in a namespace of the script's own that is there before the first one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Also the namespace's name, and `$ns` in the steps.
    #[serde(rename = "script")]
    pub name: String,
    pub steps: Vec<Step>,
}

/// One request, or one look at an open watch.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What the step is about; without it, the request itself.
    pub is: Option<String>,
    /// `METHOD path?query`. `$name` stands for what an earlier step saved.
    #[serde(rename = "do")]
    pub request: Option<String>,
    /// Media type of the body: `json` (default), `yaml`, `merge`, `json-patch`, `strategic`, `apply`, or in full.
    #[serde(rename = "type")]
    pub media: Option<String>,
    /// What is accepted: `table`, `partial`, `partials`, or in full.
    pub accept: Option<String>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub body: Option<Value>,
    /// A body that is no valid JSON.
    pub text: Option<String>,
    /// How often the text, or the items of the list that is the body, are sent.
    #[serde(default = "once")]
    pub repeat: usize,
    /// User to impersonate.
    #[serde(rename = "as")]
    pub user: Option<String>,
    /// Variables, each with the JSON pointer to its value in the answer.
    #[serde(default)]
    pub save: BTreeMap<String, String>,
    /// The parts of the answer that count (JSON pointers; `[key=value]` finds an item); all without it.
    #[serde(default)]
    pub only: Vec<String>,
    /// Repeats the request until it is answered with this code and these values (JSON pointers).
    pub until: Option<Until>,
    /// Keeps the answer open as the watch of this name.
    pub watch: Option<String>,
    /// Takes events from this watch.
    pub events: Option<String>,
    /// How many events to wait for; without it all until the watch ends.
    pub count: Option<usize>,
}

fn once() -> usize {
    1
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Until {
    pub code: u16,
    #[serde(default)]
    pub values: BTreeMap<String, Value>,
}

impl Step {
    fn title(&self) -> String {
        match (&self.is, &self.request, &self.events) {
            (Some(is), _, _) => is.clone(),
            (_, Some(request), _) => request.clone(),
            (_, _, Some(watch)) => format!("events of {watch}"),
            _ => panic!("a step needs `do` or `events`"),
        }
    }
}

impl Script {
    /// The steps with names that are unique in the script.
    pub fn named(&self) -> Vec<(String, &Step)> {
        let mut count: BTreeMap<String, usize> = BTreeMap::new();
        let steps = self.steps.iter().map(|step| {
            let title = step.title();
            let n = count.entry(title.clone()).or_default();
            *n += 1;
            let name = if *n == 1 {
                title
            } else {
                format!("{title} #{n}")
            };
            (name, step)
        });
        steps.collect()
    }
}

impl Area {
    /// All files of the folder in the order of their names.
    pub fn read_all(folder: &Path) -> Vec<Self> {
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|e| e == "yaml"))
            .filter(|p| {
                p.file_stem()
                    .is_some_and(|s| s != "explained" && s != "open")
            })
            .collect();
        files.sort();
        let mut names = BTreeSet::new();
        let areas = files.iter().map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            let scripts: Vec<Script> =
                serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            for script in &scripts {
                assert!(
                    names.insert(script.name.clone()),
                    "two scripts are named {}",
                    script.name
                );
            }
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            Self { name, scripts }
        });
        areas.collect()
    }
}

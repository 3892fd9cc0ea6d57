//! What the real server answered, one line per step.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::run::Answer;
use super::script::{Area, Script};

/// Answers by script and step.
pub type Recorded = BTreeMap<(String, String), Value>;

/// Between a script and a step in the files.
const SEPARATOR: &str = " | ";

pub fn read_all(folder: &Path, areas: &[Area]) -> Recorded {
    let mut all = Recorded::new();
    for area in areas {
        let Ok(text) = std::fs::read_to_string(file(folder, area)) else {
            continue;
        };
        let lines: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
        for (key, value) in lines {
            let (script, step) = key.split_once(SEPARATOR).unwrap();
            all.insert((script.into(), step.into()), value);
        }
    }
    all
}

pub fn put(recorded: &mut Recorded, script: &Script, answers: Vec<(String, Answer)>) {
    recorded.retain(|(name, _), _| *name != script.name);
    for (step, answer) in answers {
        recorded.insert((script.name.clone(), step), answer.to_json());
    }
}

/// Writes the answers of an area in the order of its steps.
pub fn write(folder: &Path, area: &Area, recorded: &Recorded) {
    let mut lines = Vec::new();
    for script in &area.scripts {
        for (step, _) in script.named() {
            if let Some(answer) = recorded.get(&(script.name.clone(), step.clone())) {
                let key = Value::String(format!("{}{SEPARATOR}{step}", script.name));
                lines.push(format!("{key}: {answer}"));
            }
        }
    }
    std::fs::write(
        file(folder, area),
        format!("{{\n{}\n}}\n", lines.join(",\n")),
    )
    .unwrap();
}

fn file(folder: &Path, area: &Area) -> std::path::PathBuf {
    folder.join(format!("{}.answers.json", area.name))
}

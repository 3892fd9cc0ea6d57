//! What a history ends with.

use serde::{Deserialize, Serialize};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Which one.
    pub invariant: String,
    /// What was seen, with its time.
    pub text: String,
}

/// What became of one history.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Broken promises, in order.
    pub violations: Vec<Violation>,
    /// The log.
    pub lines: Vec<String>,
    /// Virtual time that passed, in seconds, with that of the stem.
    pub seconds: f64,
    /// Virtual time that passed in the stem, in seconds.
    pub stem_seconds: f64,
}

impl Outcome {
    /// A history that did not come to its end.
    pub fn broken(invariant: &str, text: String) -> Self {
        let invariant = invariant.into();
        Self {
            violations: vec![Violation { invariant, text }],
            ..Self::default()
        }
    }
}

/// The first line in which two logs differ: number, one, other.
pub fn difference(one: &[String], other: &[String]) -> Option<(usize, String, String)> {
    let end = || "(the log ends)".to_string();
    let at = (0..one.len().max(other.len())).find(|n| one.get(*n) != other.get(*n))?;
    let line = |log: &[String]| log.get(at).cloned().unwrap_or_else(end);
    Some((at, line(one), line(other)))
}

//! What a history ends with.

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub invariant: &'static str,
    /// What was seen, with its time.
    pub text: String,
}

/// What became of one history.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Broken promises, in order.
    pub violations: Vec<Violation>,
    /// The log.
    pub lines: Vec<String>,
    /// Virtual time that passed, in seconds.
    pub seconds: f64,
}

/// The first line in which two logs differ: number, one, other.
pub fn difference(one: &[String], other: &[String]) -> Option<(usize, String, String)> {
    let end = || "(the log ends)".to_string();
    let at = (0..one.len().max(other.len())).find(|n| one.get(*n) != other.get(*n))?;
    let line = |log: &[String]| log.get(at).cloned().unwrap_or_else(end);
    Some((at, line(one), line(other)))
}

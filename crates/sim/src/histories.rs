//! Runs histories that share a stem, in a process of theirs.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;

use crate::outcome::Outcome;
use crate::schedule::{Schedule, Stem};

/// The argument with which `farshore-sim` is such a process.
pub const SERVE: &str = "--serve-stem";

/// Histories of one stem. The stem grows with the first of them.
pub struct Histories {
    stem: Stem,
    process: Child,
    schedules: ChildStdin,
    outcomes: BufReader<ChildStdout>,
}

impl Histories {
    /// Starts `program`, which is `farshore-sim`, for histories of `stem`.
    ///
    /// # Errors
    /// The program does not start.
    pub fn of(program: &Path, stem: Stem) -> anyhow::Result<Self> {
        Self::logging(program, stem, "off")
    }

    /// The same, with the log of the processes on stderr, as in RUST_LOG.
    ///
    /// # Errors
    /// The program does not start.
    pub fn logging(program: &Path, stem: Stem, log: &str) -> anyhow::Result<Self> {
        let mut process = Command::new(program)
            .args([SERVE, "--log", log])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let schedules = process.stdin.take().context("no way to it")?;
        let outcomes = BufReader::new(process.stdout.take().context("no way from it")?);
        Ok(Self {
            stem,
            process,
            schedules,
            outcomes,
        })
    }

    /// The stem.
    pub fn stem(&self) -> &Stem {
        &self.stem
    }

    /// Runs one from the end of the stem to its own end.
    pub fn run(&mut self, schedule: &Schedule) -> Outcome {
        assert_eq!(schedule.stem, self.stem, "a history has one stem");
        let asked = serde_json::to_string(schedule)
            .map_err(std::io::Error::from)
            .and_then(|line| writeln!(self.schedules, "{line}"))
            .and_then(|()| self.schedules.flush());
        let mut line = String::new();
        let heard = asked.and_then(|()| self.outcomes.read_line(&mut line));
        match (heard, serde_json::from_str(&line)) {
            (Ok(_), Ok(outcome)) => outcome,
            (Err(error), _) => Outcome::broken("dies", error.to_string()),
            (_, Err(_)) => {
                // It may still wait for more.
                let _ = self.process.kill();
                let ended = self.process.wait();
                let ended = ended.map_or_else(|e| e.to_string(), |status| status.to_string());
                let text = format!("the process of the stem said nothing more: {ended}");
                Outcome::broken("dies", text)
            }
        }
    }
}

impl Drop for Histories {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

//! The fuzz targets of the API server: built with coverage by the stable compiler, run one after another.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Seconds for each target unless told.
const SECONDS: u64 = 600;

/// The target triple. Naming it keeps the flags away from build scripts.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// What libFuzzer needs to see which code an input reaches, and what it compares.
const FLAGS: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Wish {
    /// All of them when empty.
    targets: Vec<String>,
    seconds: u64,
}

/// How a run of one target went.
#[derive(Debug, Default, PartialEq, Eq)]
struct Figures {
    executions: u64,
    per_second: u64,
    /// Edges reached.
    coverage: u64,
    /// Edges and how often they are passed, which inputs are kept for.
    features: u64,
    /// Inputs kept.
    inputs: u64,
}

/// Builds the targets and runs those asked for. Fails when one finds a fault.
pub fn run(arguments: &[String]) -> anyhow::Result<()> {
    let wish = wish(arguments)?;
    let folder = crate::crd_docs::root().join("fuzz");
    let known = targets(&folder)?;
    for target in &wish.targets {
        if !known.contains(target) {
            bail!(
                "there is no target {target:?}; there are {}",
                known.join(", ")
            );
        }
    }
    let asked = if wish.targets.is_empty() {
        known
    } else {
        wish.targets
    };
    let built = build(&folder, &asked)?;
    let mut found = Vec::new();
    for target in &asked {
        if let Some(path) = one(&folder, &built, target, wish.seconds)? {
            found.push(path.display().to_string());
        }
    }
    if !found.is_empty() {
        bail!(
            "a fault was found with {}; once it is mended, keep the file below fuzz/found",
            found.join(", ")
        );
    }
    Ok(())
}

fn wish(arguments: &[String]) -> anyhow::Result<Wish> {
    let mut wish = Wish {
        targets: Vec::new(),
        seconds: SECONDS,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => {
                let text = arguments.next().context("--seconds needs a number")?;
                wish.seconds = text.parse().with_context(|| format!("--seconds {text}"))?;
            }
            option if option.starts_with('-') => bail!("there is no option {option}"),
            target => wish.targets.push(target.to_owned()),
        }
    }
    if wish.seconds == 0 {
        bail!("--seconds 0 would never end");
    }
    Ok(wish)
}

/// The targets, by their files.
fn targets(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder.join("fuzz_targets")).context("reading fuzz/fuzz_targets")? {
        if let Some(name) = entry?.path().file_stem() {
            all.push(name.to_string_lossy().into_owned());
        }
    }
    all.sort();
    Ok(all)
}

/// Builds the targets; the folder of the binaries.
fn build(folder: &Path, targets: &[String]) -> anyhow::Result<PathBuf> {
    let target = crate::mutants::target()?;
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", FLAGS.join(" "))
        .args(["build", "--release", "--locked", "--target", TRIPLE]);
    for target in targets {
        command.args(["--bin", target]);
    }
    if !command.status().context("running cargo")?.success() {
        bail!("the fuzz targets do not build; libFuzzer needs a C++ compiler");
    }
    Ok(target.join(TRIPLE).join("release"))
}

/// Runs one target; the input with which it found a fault.
fn one(folder: &Path, built: &Path, target: &str, seconds: u64) -> anyhow::Result<Option<PathBuf>> {
    // What a run learns stays for the next one, outside of the repository.
    let work = built.join("work").join(target);
    let (corpus, artifacts) = (work.join("corpus"), work.join("artifacts"));
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(built.join(target));
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args([
            "-max_len=4096",
            "-timeout=10",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ]);
    if let Some(words) = dictionary(target) {
        command.arg(format!(
            "-dict={}",
            folder.join("dictionaries").join(words).display()
        ));
    }
    command.arg(&corpus);
    // The first folder is written to, the others are only read.
    for kept in ["seeds", "found"].map(|kept| folder.join(kept).join(target)) {
        if kept.is_dir() {
            command.arg(kept);
        }
    }
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = child.stderr.take().context("libFuzzer writes to stderr")?;
    let (mut figures, mut lines) = (Figures::default(), Vec::new());
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        figures.read(&line);
        lines.push(line);
    }
    let ended = child.wait()?;
    let Figures {
        executions,
        per_second,
        coverage,
        features,
        inputs,
    } = figures;
    println!(
        "{target}: {executions} executions, {per_second} per second, {coverage} edges, {features} features, {inputs} inputs"
    );
    if ended.success() {
        return Ok(None);
    }
    for line in lines.iter().filter(|l| !l.starts_with('#')) {
        println!("  {line}");
    }
    let written = lines
        .iter()
        .find_map(|l| l.split_once("Test unit written to "));
    match written {
        Some((_, path)) => Ok(Some(path.trim().into())),
        None => bail!("{target} ended with {ended} and named no input"),
    }
}

/// Words that the parser of a target knows.
fn dictionary(target: &str) -> Option<&'static str> {
    match target {
        "apply" | "body" | "definition" => Some("yaml"),
        "json_patch" | "merge_patch" | "strategic_patch" => Some("json"),
        "selectors" => Some("selectors"),
        _ => None,
    }
}

impl Figures {
    /// Takes what a line of libFuzzer tells: `#9 NEW cov: 5 ft: 7 corp: 2/9b …`, or a statistic of the end.
    fn read(&mut self, line: &str) {
        if let Some(value) = line.strip_prefix("stat::number_of_executed_units:") {
            self.executions = value.trim().parse().unwrap_or_default();
        }
        if let Some(value) = line.strip_prefix("stat::average_exec_per_sec:") {
            self.per_second = value.trim().parse().unwrap_or_default();
        }
        if !line.starts_with('#') {
            return;
        }
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            let figure = match word {
                "cov:" => &mut self.coverage,
                "ft:" => &mut self.features,
                "corp:" => &mut self.inputs,
                _ => continue,
            };
            let value = words.next().and_then(|w| w.split('/').next());
            *figure = value.and_then(|v| v.parse().ok()).unwrap_or(*figure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_wish_names_targets_and_seconds() {
        let all = wish(&[]).unwrap();
        assert_eq!(
            all,
            Wish {
                targets: Vec::new(),
                seconds: 600
            }
        );
        let one = wish(&words("apply --seconds 5 body")).unwrap();
        assert_eq!(
            one,
            Wish {
                targets: words("apply body"),
                seconds: 5
            }
        );
        for wrong in ["--seconds", "--seconds x", "--seconds 0", "--other"] {
            assert!(wish(&words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_figures_are_those_of_the_last_line() {
        let mut figures = Figures::default();
        figures.read("#2\tINITED cov: 10 ft: 11 corp: 1/1b exec/s: 0 rss: 40Mb");
        figures.read("#950\tNEW    cov: 120 ft: 340 corp: 12/90b lim: 4 exec/s: 5 rss: 41Mb L: 3/9 MS: 1 Cov-");
        figures.read("stat::number_of_executed_units: 1000");
        figures.read("stat::average_exec_per_sec:     50");
        let expected = Figures {
            executions: 1000,
            per_second: 50,
            coverage: 120,
            features: 340,
            inputs: 12,
        };
        assert_eq!(figures, expected);
    }

    #[test]
    fn every_target_is_a_binary_and_has_its_words() {
        let folder = crate::crd_docs::root().join("fuzz");
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let all = targets(&folder).unwrap();
        assert_eq!(all.len(), manifest.matches("[[bin]]").count());
        for target in all {
            assert!(manifest.contains(&format!("name = {target:?}")), "{target}");
            if let Some(words) = dictionary(&target) {
                assert!(folder.join("dictionaries").join(words).is_file(), "{words}");
            }
        }
    }
}

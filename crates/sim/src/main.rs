//! `farshore-sim`: rehearses disasters, one for each seed.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use farshore_sim::histories;
use farshore_sim::outcome::{self, Outcome, Violation};
use farshore_sim::schedule::Schedule;
use farshore_sim::{draw, shrink, trace};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Histories that are run to make a schedule shorter.
const TRIES: usize = 60;

#[derive(Parser)]
#[command(
    name = "farshore-sim",
    version,
    about = "Rehearses disasters in virtual time: one seed, one history, every promise checked"
)]
struct Cli {
    /// Seeds to run, `A..B` without B.
    #[arg(long, default_value = "0..100", value_parser = seeds)]
    seeds: Range<u64>,
    /// Histories at a time; 0 for one on each core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print the log of each history.
    #[arg(long)]
    trace: bool,
    /// Replay a schedule, as a violation prints it, in place of seeds.
    #[arg(long)]
    schedule: Option<PathBuf>,
    /// Run each history once, without comparing it to its repetition.
    #[arg(long)]
    once: bool,
    /// Stop at the first violation.
    #[arg(long)]
    first: bool,
    /// Begin no more seeds after so many seconds, and say which were left out.
    #[arg(long, value_name = "SECONDS")]
    within: Option<u64>,
    /// Print violations as they were found, without looking for a shorter schedule.
    #[arg(long)]
    no_shrink: bool,
    /// What the processes log to stderr, as in RUST_LOG.
    #[arg(long, env = "FARSHORE_LOG", default_value = "off")]
    log: String,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text
        .split_once("..")
        .ok_or("seeds are given as A..B, for example 0..100")?;
    let number = |t: &str| t.parse::<u64>().map_err(|_| format!("{t:?} is no number"));
    Ok(number(from)?..number(to)?)
}

/// What all threads add up.
#[derive(Default)]
struct Sum {
    histories: AtomicU64,
    millis: AtomicU64,
    failed: Mutex<Vec<Schedule>>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::new(&cli.log);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .init();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is outside of all histories"
)]
fn run(cli: &Cli) -> anyhow::Result<bool> {
    if let Some(file) = &cli.schedule {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let schedule: Schedule =
            serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?;
        let outcome = check(cli, &schedule);
        print(cli, &schedule, &outcome);
        return Ok(outcome.violations.is_empty());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if cli.threads == 0 { cores } else { cli.threads };
    let (begun, sum) = (Instant::now(), Sum::default());
    let next = AtomicU64::new(cli.seeds.start);
    let limit = cli.within.map(Duration::from_secs);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while limit.is_none_or(|limit| begun.elapsed() < limit) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= cli.seeds.end {
                        return;
                    }
                    let schedule = draw::schedule(seed);
                    let outcome = check(cli, &schedule);
                    let times = if cli.once { 1.0 } else { 2.0 };
                    sum.histories.fetch_add(1, Ordering::Relaxed);
                    let millis = (outcome.seconds * 1000.0 * times) as u64;
                    sum.millis.fetch_add(millis, Ordering::Relaxed);
                    print(cli, &schedule, &outcome);
                    if outcome.violations.is_empty() {
                        continue;
                    }
                    if let Ok(mut failed) = sum.failed.lock() {
                        failed.push(schedule);
                    }
                    if cli.first {
                        next.store(cli.seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let wall = begun.elapsed().as_secs_f64();
    let count = sum.histories.load(Ordering::Relaxed);
    let simulated = sum.millis.load(Ordering::Relaxed) as f64 / 1000.0;
    let mut failed = sum.failed.into_inner().unwrap_or_default();
    failed.sort_by_key(|s| s.seed);
    println!(
        "{count} seeds in {wall:.0} s on {threads} threads: {:.0} seeds per minute, {:.0} simulated seconds per second and thread",
        count as f64 * 60.0 / wall,
        simulated / wall / threads as f64
    );
    let left = next.load(Ordering::Relaxed)..cli.seeds.end;
    if !left.is_empty() && failed.is_empty() {
        println!(
            "NOT JUDGED: seeds {}..{}, for which no time was left",
            left.start, left.end
        );
    }
    if failed.is_empty() {
        println!("every promise was kept");
        return Ok(true);
    }
    let names: Vec<String> = failed.iter().map(|s| s.seed.to_string()).collect();
    println!("promises were broken with seeds {}", names.join(", "));
    if let Some(schedule) = failed.first().filter(|_| !cli.no_shrink) {
        explain(schedule)?;
    }
    Ok(false)
}

/// Runs a history, and unless told otherwise once more: the second must be the first again.
fn check(cli: &Cli, schedule: &Schedule) -> Outcome {
    let mut outcome = histories::run(schedule);
    if cli.once {
        return outcome;
    }
    let again = histories::run(schedule);
    if let Some((line, one, other)) = outcome::difference(&outcome.lines, &again.lines) {
        outcome.violations.push(Violation {
            invariant: "one-history",
            text: format!("line {line}\n    first:  {one}\n    second: {other}"),
        });
    }
    outcome
}

fn print(cli: &Cli, schedule: &Schedule, outcome: &Outcome) {
    if cli.trace {
        println!("{}", outcome.lines.join("\n"));
    }
    if cli.trace || cli.schedule.is_some() {
        println!(
            "seed {}: {:.1} s, log {:016x}",
            schedule.seed,
            outcome.seconds,
            trace::hash(&outcome.lines)
        );
    }
    for violation in &outcome.violations {
        println!(
            "seed {}: {}: {}",
            schedule.seed, violation.invariant, violation.text
        );
    }
}

/// Prints the shortest schedule that breaks the same promise, and its story.
fn explain(schedule: &Schedule) -> anyhow::Result<()> {
    let outcome = histories::run(schedule);
    let Some(first) = outcome.violations.first() else {
        return Ok(());
    };
    let (short, ended) = shrink::shrink(schedule, first.invariant, TRIES);
    println!(
        "seed {}: {} is broken by {} of {} things that happen:\n{}",
        schedule.seed,
        first.invariant,
        short.len(),
        schedule.len(),
        serde_json::to_string_pretty(&short)?
    );
    let ended = ended.unwrap_or(outcome);
    for line in trace::story(&ended.lines) {
        println!("{line}");
    }
    Ok(())
}

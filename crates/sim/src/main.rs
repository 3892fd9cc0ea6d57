//! `farshore-sim`: rehearses disasters, one for each seed.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use farshore_sim::branches;
use farshore_sim::histories::{Histories, SERVE};
use farshore_sim::outcome::{self, Outcome, Violation};
use farshore_sim::schedule::Schedule;
use farshore_sim::{draw, shrink, trace};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Histories that are run to make a schedule shorter.
const TRIES: usize = 60;
/// Longest run of histories of one stem: so that no thread is left with all of them.
const RUN: usize = 32;

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
    /// Be a process in which the histories of one stem run.
    #[arg(long = SERVE.trim_start_matches('-'), hide = true)]
    serve_stem: bool,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text
        .split_once("..")
        .ok_or("seeds are given as A..B, for example 0..100")?;
    let number = |t: &str| t.parse::<u64>().map_err(|_| format!("{t:?} is no number"));
    Ok(number(from)?..number(to)?)
}

/// Histories that share a stem and are run one after the other.
type Run = Vec<Schedule>;

/// The runs of `seeds`. Runs of one stem begin with the smallest of their seeds.
fn runs(seeds: Range<u64>) -> VecDeque<Run> {
    let mut runs: VecDeque<Run> = VecDeque::new();
    for schedule in seeds.map(draw::schedule) {
        let same = |run: &&mut Run| {
            run.len() < RUN && run.first().is_some_and(|s| s.stem == schedule.stem)
        };
        match runs.iter_mut().rev().find(same) {
            Some(run) => run.push(schedule),
            None => runs.push_back(vec![schedule]),
        }
    }
    runs
}

/// What all threads share.
struct Shared {
    left: VecDeque<Run>,
    histories: usize,
    simulated: f64,
    failed: Vec<Schedule>,
    /// Seeds for which no time was left.
    late: Vec<u64>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::new(&cli.log);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .init();
    if cli.serve_stem {
        return branches::serve();
    }
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
    let program = std::env::current_exe().context("finding this program")?;
    if let Some(file) = &cli.schedule {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        let schedule: Schedule =
            serde_json::from_str(&text).with_context(|| format!("{}", file.display()))?;
        let outcome = Pair::of(cli, &program, &schedule)?.run(&schedule);
        print(cli, &schedule, &outcome);
        return Ok(outcome.violations.is_empty());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if cli.threads == 0 { cores } else { cli.threads };
    let begun = Instant::now();
    let limit = cli.within.map(Duration::from_secs);
    let over = || limit.is_some_and(|limit| begun.elapsed() >= limit);
    let shared = Mutex::new(Shared {
        left: runs(cli.seeds.clone()),
        histories: 0,
        simulated: 0.0,
        failed: Vec::new(),
        late: Vec::new(),
    });
    let work = || -> anyhow::Result<()> {
        loop {
            let Some(run) = lock(&shared).left.pop_front() else {
                return Ok(());
            };
            follow(cli, &program, &run, &over, &shared)?;
        }
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("panicked")))
    })?;
    let shared = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    sum_up(cli, &program, shared, begun.elapsed(), threads)
}

/// Runs a run, or as much of it as there is time for.
fn follow(
    cli: &Cli,
    program: &Path,
    run: &Run,
    over: &dyn Fn() -> bool,
    shared: &Mutex<Shared>,
) -> anyhow::Result<()> {
    let mut pair = None;
    for schedule in run {
        let stop = cli.first && !lock(shared).failed.is_empty();
        if stop || over() {
            lock(shared).late.push(schedule.seed);
            continue;
        }
        let pair = match &mut pair {
            Some(pair) => pair,
            none => none.insert(Pair::of(cli, program, schedule)?),
        };
        let first = pair.count == 0;
        let outcome = pair.run(schedule);
        let stem = if first { outcome.stem_seconds } else { 0.0 };
        let seconds = outcome.seconds - outcome.stem_seconds + stem;
        print(cli, schedule, &outcome);
        let mut shared = lock(shared);
        shared.histories += 1;
        shared.simulated += seconds * if cli.once { 1.0 } else { 2.0 };
        if !outcome.violations.is_empty() {
            shared.failed.push(schedule.clone());
        }
    }
    Ok(())
}

/// The same histories, and unless told otherwise once more: the second must be the first again.
struct Pair {
    one: Histories,
    other: Option<Histories>,
    count: usize,
}

impl Pair {
    fn of(cli: &Cli, program: &Path, schedule: &Schedule) -> anyhow::Result<Self> {
        let histories = || Histories::logging(program, schedule.stem.clone(), &cli.log);
        Ok(Self {
            one: histories()?,
            other: (!cli.once).then(histories).transpose()?,
            count: 0,
        })
    }

    fn run(&mut self, schedule: &Schedule) -> Outcome {
        self.count += 1;
        let mut outcome = self.one.run(schedule);
        let again = self.other.as_mut().map(|other| other.run(schedule));
        let again = again.unwrap_or_else(|| outcome.clone());
        if let Some((line, one, other)) = outcome::difference(&outcome.lines, &again.lines) {
            outcome.violations.push(Violation {
                invariant: "one-history".into(),
                text: format!("line {line}\n    first:  {one}\n    second: {other}"),
            });
        }
        for violation in again.violations {
            if !outcome.violations.contains(&violation) {
                outcome.violations.push(violation);
            }
        }
        outcome
    }
}

fn sum_up(
    cli: &Cli,
    program: &Path,
    shared: Shared,
    wall: Duration,
    threads: usize,
) -> anyhow::Result<bool> {
    let wall = wall.as_secs_f64();
    println!(
        "{} seeds in {wall:.0} s on {threads} threads: {:.0} seeds and {:.1} simulated hours per minute, {:.0} simulated seconds per second and thread",
        shared.histories,
        shared.histories as f64 * 60.0 / wall,
        shared.simulated / wall / 60.0,
        shared.simulated / wall / threads as f64
    );
    let (mut failed, mut late) = (shared.failed, shared.late);
    if !late.is_empty() && (failed.is_empty() || !cli.first) {
        late.sort_unstable();
        println!(
            "NOT JUDGED: {} of the seeds, {} to {} among them, for which no time was left",
            late.len(),
            late[0],
            late[late.len() - 1]
        );
    }
    if failed.is_empty() {
        println!("every promise was kept");
        return Ok(true);
    }
    failed.sort_by_key(|s| s.seed);
    let names: Vec<String> = failed.iter().map(|s| s.seed.to_string()).collect();
    println!("promises were broken with seeds {}", names.join(", "));
    if let Some(schedule) = failed.first().filter(|_| !cli.no_shrink) {
        explain(program, schedule)?;
    }
    Ok(false)
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
fn explain(program: &Path, schedule: &Schedule) -> anyhow::Result<()> {
    let outcome = Histories::of(program, schedule.stem.clone())?.run(schedule);
    let Some(first) = outcome.violations.first() else {
        return Ok(());
    };
    let (short, ended) = shrink::shrink(program, schedule, &first.invariant, TRIES)?;
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

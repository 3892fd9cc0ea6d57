//! The process in which the histories of one stem run: it lets the world come about once, and then is
//! forked for each schedule that it is given, so that each goes on from the same moment.

use std::any::Any;
use std::hash::RandomState;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use farshore_detshim::fork::{self, Ended};

use crate::outcome::Outcome;
use crate::schedule::{Schedule, Stem};
use crate::world;

/// How long a stem or a branch may take on the clock on the wall, in seconds, before it counts as hung.
const WALL_LIMIT: u32 = 600;

/// Reads schedules, one a line, all of the same stem; writes an outcome for each, one a line.
#[expect(
    clippy::disallowed_methods,
    reason = "within the history there is no thread; this is the way into it"
)]
pub fn serve() -> ExitCode {
    farshore_apiserver::warm_up();
    let Some(first) = read() else {
        return ExitCode::SUCCESS;
    };
    // `std` draws the keys of its maps once for each thread: a history needs a thread without a past.
    let _ = std::thread::spawn(move || live(first)).join();
    ExitCode::FAILURE
}

/// The history of a stem and, in children of this process, of its branches.
fn live(first: Schedule) {
    let Stem { seed, .. } = first.stem;
    fork::end_within(WALL_LIMIT);
    reseed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without sockets needs nothing from the machine");
    let stem = first.stem.clone();
    let mut branches = Branches { first: Some(first) };
    let history = AssertUnwindSafe(|| runtime.block_on(world::history(&stem, &mut branches)));
    let ended = catch_unwind(history);
    // What is told is told whole.
    fork::end_within(0);
    match ended {
        Ok(None) => fork::leave(0),
        Ok(Some(outcome)) => answer(&outcome),
        Err(panic) => answer(&Outcome::broken("panics", said(&*panic))),
    }
    // Dropping the world would take time and show nothing.
    fork::leave(0)
}

/// From now on all that is random in this thread is a function of `seed`.
fn reseed(seed: u64) {
    farshore_detshim::seed_thread(Some(seed));
    fastrand::seed(seed);
}

/// Moves the keys of the maps that are made from now on. `std` draws them once in the life of a thread and
/// counts up from there, so that otherwise all branches of a stem would see one order of things.
fn shuffle(seed: u64) {
    for _ in 0..seed % 4096 {
        std::hint::black_box(RandomState::new());
    }
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
    text.unwrap_or_else(|| "without a word".into())
}

/// How a world goes on once it has come about.
pub struct Branches {
    first: Option<Schedule>,
}

impl Branches {
    /// Waits for schedules and returns once for each, each time in a child of this process; in this
    /// process itself, returns nothing when there are no more.
    pub fn branch(&mut self) -> Option<Schedule> {
        // While nobody asks for anything, nothing hangs.
        fork::end_within(0);
        loop {
            let schedule = self.first.take().or_else(read)?;
            let broken =
                match fork::fork().and_then(|child| child.map(fork::Child::wait).transpose()) {
                    Ok(None) => {
                        fork::end_within(WALL_LIMIT);
                        reseed(schedule.seed);
                        shuffle(schedule.seed);
                        return Some(schedule);
                    }
                    Ok(Some(Ended::Code(0))) => continue,
                    Ok(Some(Ended::TimedOut)) => {
                        Outcome::broken("hangs", format!("no end within {WALL_LIMIT} s"))
                    }
                    Ok(Some(ended)) => Outcome::broken("dies", format!("{ended:?}")),
                    Err(error) => Outcome::broken("starts", format!("forking the world: {error}")),
                };
            answer(&broken);
        }
    }
}

/// The next schedule; none when nobody will ask for any more.
fn read() -> Option<Schedule> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

fn answer(outcome: &Outcome) {
    let mut out = std::io::stdout().lock();
    let written = serde_json::to_writer(&mut out, outcome)
        .map_err(std::io::Error::from)
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
    if written.is_err() {
        // Who asked is gone.
        fork::leave(1);
    }
}

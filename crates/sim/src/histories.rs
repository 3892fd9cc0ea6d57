//! Runs histories: each on a thread of its own, so that all that is random in it comes from its seed.

use std::sync::Once;
use std::sync::mpsc;
use std::time::Duration;

use crate::outcome::{Outcome, Violation};
use crate::schedule::Schedule;
use crate::world;

/// How long a history may take on the clock on the wall before it counts as hung.
const WALL_LIMIT: Duration = Duration::from_secs(600);

/// Runs one history from the beginning to the end.
pub fn run(schedule: &Schedule) -> Outcome {
    static WARM: Once = Once::new();
    WARM.call_once(|| {
        farshore_apiserver::warm_up();
        // Tables that are made once in the life of the process are made here: in a history they
        // would shift the keys of all maps that are made after them.
        let quiet = Schedule {
            seed: 0,
            nodes: 1,
            groups: crate::draw::schedule(0).groups,
            setup: Default::default(),
            drill: Default::default(),
            proof: true,
        };
        let _ = on_fresh_thread(quiet);
    });
    on_fresh_thread(schedule.clone())
}

/// `std` draws the keys of its maps once for each thread: a history needs a thread without a past.
#[expect(
    clippy::disallowed_methods,
    reason = "within the history there is no thread; this is the way into it"
)]
fn on_fresh_thread(schedule: Schedule) -> Outcome {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        farshore_detshim::seed_thread(Some(schedule.seed));
        fastrand::seed(schedule.seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without sockets needs nothing from the machine");
        let outcome = runtime.block_on(world::history(&schedule));
        drop(runtime);
        let _ = tell.send(outcome);
    });
    let broken = |invariant, text: String| Outcome {
        violations: vec![Violation { invariant, text }],
        ..Outcome::default()
    };
    match told.recv_timeout(WALL_LIMIT) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            broken("hangs", format!("no end within {} s", WALL_LIMIT.as_secs()))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panic = thread.join().err();
            let said = panic.as_ref().and_then(|p| {
                let text = p.downcast_ref::<String>().cloned();
                text.or_else(|| p.downcast_ref::<&str>().map(|s| (*s).to_owned()))
            });
            broken("panics", said.unwrap_or_else(|| "without a word".into()))
        }
    }
}

//! One seed, one history: in one process, and in another.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use farshore_sim::draw;
use farshore_sim::histories::Histories;
use farshore_sim::outcome::{self, Outcome};
use farshore_sim::schedule::Schedule;

fn histories(schedule: &Schedule) -> Histories {
    let program = Path::new(env!("CARGO_BIN_EXE_farshore-sim"));
    Histories::of(program, schedule.stem.clone()).unwrap()
}

fn assert_same(one: &Outcome, two: &Outcome) {
    assert!(one.lines.len() > 1000, "a history is more than this");
    if let Some((line, one, two)) = outcome::difference(&one.lines, &two.lines) {
        panic!("line {line}\n  first:  {one}\n  second: {two}");
    }
}

// One seed here, as an unoptimized history takes its time; the binary compares each seed with itself.
#[test]
fn a_seed_gives_one_log_whatever_branched_off_its_stem_before() {
    let schedule = draw::schedule(1);
    let mut before = schedule.clone();
    before.seed = 2;
    before.drill.events.truncate(1);
    let mut one = histories(&schedule);
    let earlier = one.run(&before);
    let one = one.run(&schedule);
    assert_same(&one, &histories(&schedule).run(&schedule));
    assert_ne!(earlier.lines, one.lines, "another drill, another log");
    let stem = |o: &Outcome| {
        let line = o
            .lines
            .iter()
            .position(|l| l.ends_with("*** everything is protected"));
        o.lines[..=line.unwrap()].to_vec()
    };
    assert_eq!(stem(&earlier), stem(&one), "one stem");
}

#[test]
fn a_panic_in_a_stem_is_told_and_so_is_that_nothing_grows_on_it() {
    let mut schedule = draw::schedule(1);
    schedule.stem.groups[0].home = "nowhere".into();
    let mut histories = histories(&schedule);
    let invariants =
        |o: Outcome| -> Vec<String> { o.violations.into_iter().map(|v| v.invariant).collect() };
    assert_eq!(invariants(histories.run(&schedule)), ["panics"]);
    assert_eq!(invariants(histories.run(&schedule)), ["dies"]);
}

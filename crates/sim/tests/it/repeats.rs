//! One seed, one history: in one process, and in another.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use farshore_sim::{draw, histories, outcome, trace};

/// Runs a schedule in a process of its own and returns the hash that it prints.
fn in_a_child(seed: u64) -> String {
    let file = format!("{}/seed-{seed}.json", env!("CARGO_TARGET_TMPDIR"));
    let schedule = serde_json::to_string(&draw::schedule(seed)).unwrap();
    std::fs::write(&file, schedule).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_farshore-sim"))
        .args(["--once", "--schedule", &file])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let hash = text
        .lines()
        .find_map(|l| l.split_once("log ").map(|(_, h)| h.to_owned()));
    hash.unwrap_or_else(|| panic!("no hash in {text}"))
}

// One seed here, as an unoptimized history takes its time; the binary compares each seed with itself.
#[test]
fn a_seed_gives_one_log_twice_in_a_process_and_once_more_in_another() {
    let schedule = draw::schedule(1);
    let one = histories::run(&schedule);
    let two = histories::run(&schedule);
    if let Some((line, one, two)) = outcome::difference(&one.lines, &two.lines) {
        panic!("line {line}\n  first:  {one}\n  second: {two}");
    }
    assert!(one.lines.len() > 1000, "a history is more than this");
    let hash = format!("{:016x}", trace::hash(&one.lines));
    assert_eq!(hash, in_a_child(1), "in another process");
}

#[test]
fn another_seed_gives_another_log() {
    let log = |seed| trace::hash(&histories::run(&draw::schedule(seed)).lines);
    assert_ne!(log(4), log(5));
}

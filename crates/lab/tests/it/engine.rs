//! `farshore up` from outside, above all with the engine `kube`: real API servers as child processes.
//!
//! Where KUBEBUILDER_ASSETS is not set there are no real ones to start.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running `farshore up`; killed if the test fails.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Up {
    /// Starts a lab and stops listening to it once it is ready.
    fn start(engine: &str, dir: &Path) -> Self {
        let mut up = Self(
            Command::new(env!("CARGO_BIN_EXE_farshore"))
                .args(["up", "--engine", engine, "--dir"])
                .arg(dir)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut lines = BufReader::new(up.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("lab is ready")));
        up
    }

    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(sent.success());
    }
}

fn assets() -> bool {
    let there = std::env::var_os("KUBEBUILDER_ASSETS").is_some();
    if !there {
        println!("skipped: KUBEBUILDER_ASSETS is not set");
    }
    there
}

/// Processes that work in a folder.
fn processes_in(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        // A process may end while it is looked at; one that ended has no folder any more.
        if std::fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir)) {
            found.push(std::fs::read_to_string(path.join("comm")).unwrap_or_default());
        }
    }
    found
}

#[expect(
    clippy::disallowed_methods,
    reason = "no event tells of the end of another's children"
)]
/// Waits until nothing runs in a folder. The programs are no children of this process, so that only
/// looking again tells of their end.
fn await_silence(dir: &Path) {
    let mut left = processes_in(dir);
    for _ in 0..600 {
        if left.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
        left = processes_in(dir);
    }
    panic!("still running: {left:?}");
}

fn fault(dir: &Path, words: &[&str]) -> String {
    let ran = Command::new(env!("CARGO_BIN_EXE_farshore"))
        .args(["fault", "--dir"])
        .arg(dir)
        .args(words)
        .output()
        .unwrap();
    String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr)
}

#[test]
fn without_the_programs_the_lab_says_where_to_get_them() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("lab");
    let mut up = Command::new(env!("CARGO_BIN_EXE_farshore"))
        .args(["up", "--engine", "kube", "--dir"])
        .arg(&dir)
        .env_remove("KUBEBUILDER_ASSETS")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    up.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!up.wait().unwrap().success());
    assert!(
        said.contains("KUBEBUILDER_ASSETS") && said.contains("hack/kube-assets"),
        "{said}"
    );
    assert!(!dir.exists());
}

#[test]
fn a_lab_that_nobody_listens_to_any_more_ends_well() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("lab");
    let mut up = Up::start("embedded", &dir);
    up.signal("-TERM");
    assert!(up.0.wait().unwrap().success());
    assert!(!dir.exists());
}

#[test]
fn a_stopped_lab_leaves_no_process_and_no_folder() {
    if !assets() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().canonicalize().unwrap().join("lab");
    let mut up = Up::start("kube", &dir);
    assert_eq!(
        processes_in(&dir).len(),
        9,
        "three programs for each cluster"
    );
    assert_eq!(
        fault(&dir, &["slow", "east", "20"]).trim(),
        "the API server of east answers 20 ms late"
    );
    assert_eq!(fault(&dir, &["east", "down"]).trim(), "site east is lost");
    assert_eq!(fault(&dir, &["east", "up"]).trim(), "site east is back");
    up.signal("-TERM");
    assert!(up.0.wait().unwrap().success());
    assert_eq!(processes_in(&dir), Vec::<String>::new());
    assert!(!dir.exists());
}

#[test]
fn the_servers_of_a_killed_lab_die_and_the_next_lab_cleans_up() {
    if !assets() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().canonicalize().unwrap().join("lab");
    let mut up = Up::start("kube", &dir);
    up.signal("-KILL");
    up.0.wait().unwrap();
    await_silence(&dir);
    let mut up = Up::start("kube", &dir);
    up.signal("-INT");
    assert!(up.0.wait().unwrap().success());
    assert!(!dir.exists());
}

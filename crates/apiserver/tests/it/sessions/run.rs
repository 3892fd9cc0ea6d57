//! Runs a session's commands in a shell.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::client::{Client, Server};
use super::normal::Normal;
use super::transcript::{Session, Step};

/// Longest wait for a command, or for a line of one.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the commands printed, one text per step; empty for the steps that are left out.
pub async fn session(
    client: &Client,
    server: &Server,
    session: &Session,
    wanted: impl Fn(&Step) -> bool,
) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    std::fs::create_dir(home.join("bin")).unwrap();
    std::os::unix::fs::symlink(&client.program, home.join("bin/kubectl")).unwrap();
    std::fs::write(home.join("config"), server.kubeconfig(&session.name)).unwrap();
    let made = format!(
        "kubectl create namespace {0} && kubectl wait --for=create serviceaccount/default --timeout=60s",
        session.name
    );
    let (_, code) = finish(shell(home, &made).spawn().unwrap()).await;
    assert_eq!(code, 0, "{made}");

    let normal = Normal::new(&server.url, home);
    let mut beside: Option<Beside> = None;
    let mut outputs = Vec::new();
    for step in &session.steps {
        if !wanted(step) {
            outputs.push(String::new());
            continue;
        }
        let command = step.command.as_str();
        let output = if let Some(command) = command.strip_suffix(" &") {
            beside = Some(Beside::start(home, command).await);
            String::new()
        } else if let Some(lines) = command.strip_prefix("stop ") {
            let lines = lines.parse().unwrap();
            beside.take().expect("something to stop").stop(lines).await
        } else if command == "join" {
            beside.take().expect("something to join").join().await
        } else {
            let child = shell(home, command).spawn().unwrap();
            let (text, code) = timeout(PATIENCE, finish(child))
                .await
                .unwrap_or_else(|_| panic!("{}: `{command}` does not end", session.name));
            with_code(text, code)
        };
        outputs.push(normal.text(&output));
    }
    outputs
}

fn shell(home: &Path, command: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .current_dir(home)
        .env("PATH", format!("{}:{path}", home.join("bin").display()))
        .env("KUBECONFIG", home.join("config"))
        .env("HOME", home)
        .env("TMPDIR", home)
        .env("TZ", "UTC")
        .env("LC_ALL", "C")
        .env("KUBECTL_COMMAND_HEADERS", "false")
        .env_remove("KUBE_EDITOR")
        .env_remove("EDITOR")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    shell
}

/// All of stdout, then all of stderr with a mark.
async fn finish(child: Child) -> (String, i32) {
    let output = child.wait_with_output().await.unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    mark_errors(&mut text, &output.stderr);
    (text, output.status.code().unwrap_or(-1))
}

fn mark_errors(text: &mut String, errors: &[u8]) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    for line in String::from_utf8_lossy(errors).lines() {
        *text += &format!("2> {line}\n");
    }
}

fn with_code(text: String, code: i32) -> String {
    match code {
        0 => text,
        code => format!("{text}[exit {code}]\n"),
    }
}

/// A command that runs while others do.
struct Beside {
    child: Child,
    lines: tokio::io::Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
}

impl Beside {
    /// Returns when it printed its first line.
    async fn start(home: &Path, command: &str) -> Self {
        let mut child = shell(home, &format!("exec {command}")).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut beside = Self {
            child,
            lines,
            seen: Vec::new(),
        };
        beside.line().await;
        beside
    }

    /// False at the end.
    async fn line(&mut self) -> bool {
        match timeout(PATIENCE, self.lines.next_line()).await {
            Ok(line) => {
                let line = line.unwrap();
                let more = line.is_some();
                self.seen.extend(line);
                more
            }
            Err(_) => {
                self.seen.push("(nothing more came)".into());
                false
            }
        }
    }

    async fn stop(mut self, lines: usize) -> String {
        while self.seen.len() < lines && self.line().await {}
        self.child.kill().await.unwrap();
        self.seen.join("\n")
    }

    async fn join(mut self) -> String {
        while self.line().await {}
        let mut errors = Vec::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_end(&mut errors).await.unwrap();
        let code = self.child.wait().await.unwrap().code().unwrap_or(-1);
        let mut text = self.seen.join("\n");
        mark_errors(&mut text, &errors);
        with_code(text, code)
    }
}

//! The README's second terminal: every command that it prints is run, with the real kubectl against
//! the real binary.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running `farshore up`; killed if the test fails.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The kubectl commands of the section "Drive it yourself".
fn commands(readme: &str) -> Vec<String> {
    let section = readme.split("## Drive it yourself").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    section
        .lines()
        .filter(|line| line.starts_with("kubectl "))
        .map(str::to_owned)
        .collect()
}

fn kubectl() -> String {
    std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into())
}

#[test]
fn the_commands_of_the_readme_work_as_they_stand() {
    if Command::new(kubectl())
        .arg("version")
        .arg("--client")
        .output()
        .is_err()
    {
        println!("skipped: there is no kubectl on this machine");
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    let place = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root.join("examples"), place.path().join("examples")).unwrap();

    let mut up = Up(Command::new(env!("CARGO_BIN_EXE_farshore"))
        .arg("up")
        .current_dir(place.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap());
    let mut lines = BufReader::new(up.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("lab is ready")));

    let commands = commands(&std::fs::read_to_string(root.join("README.md")).unwrap());
    assert!(commands.len() >= 12, "{commands:?}");
    for command in &commands {
        let ran = Command::new("sh")
            .arg("-c")
            .arg(command.replacen("kubectl", &kubectl(), 1))
            .env("KUBECONFIG", ".farshore/kubeconfig")
            .current_dir(place.path())
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr),
        );
        assert!(ran.status.success(), "{command}\n{out}{err}");
        if command.contains("get pz,pr,pg,fr,rgs") {
            for word in ["Ready", "Protected", "running", "Compliant"] {
                assert!(out.contains(word), "{word} is missing:\n{out}");
            }
        }
    }

    let pid = up.0.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert!(up.0.wait().unwrap().success());
    assert!(
        !place.path().join(".farshore").exists(),
        "the lab leaves nothing behind"
    );
}

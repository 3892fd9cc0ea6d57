//! Deliberate faults: each patch of `tests/mutations` breaks one decision, and the simulation must
//! notice. A simulation that lets them pass would let a real one pass, too.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// Seeds within which each fault must show.
const SEEDS: &str = "0..600";

/// The profile of the root manifest in which the faulty simulations are built: they are built often and
/// run shortly.
const PROFILE: &str = "mutants";

/// The patches, in order.
pub fn patches() -> anyhow::Result<Vec<PathBuf>> {
    let folder = crate::crd_docs::root().join("tests/mutations");
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut all: Vec<PathBuf> = entries
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "patch"))
        .collect();
    all.sort();
    Ok(all)
}

/// Runs the simulation with each of the named faults, or with all; the names of those that it did not notice.
pub fn survivors(named: &[String]) -> anyhow::Result<Vec<String>> {
    // One place for all copies, so that what a patch does not touch is built once, and built apart:
    // cargo would take what was made from a copy for what is made from this tree.
    let place = target()?.join("mutants");
    let (tree, target) = (place.join("tree"), place.join("target"));
    let mut survivors = Vec::new();
    let name_of = |patch: &Path| {
        let stem = patch.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    };
    let mut all = patches()?;
    if let Some(unknown) = named
        .iter()
        .find(|n| !all.iter().any(|p| name_of(p) == **n))
    {
        let known: Vec<String> = all.iter().map(|p| name_of(p)).collect();
        bail!(
            "there is no fault {unknown:?}; there are {}",
            known.join(", ")
        );
    }
    all.retain(|patch| named.is_empty() || named.contains(&name_of(patch)));
    for patch in all {
        let name = name_of(&patch);
        copy(&tree)?;
        git(&tree, &["apply", "--unsafe-paths", "-p1"], Some(&patch))
            .with_context(|| format!("{name} does not apply any more; make it anew"))?;
        let built = cargo(&tree, &target)
            .args([
                "build",
                "--profile",
                PROFILE,
                "--locked",
                "-p",
                "farshore-sim",
            ])
            .status()?;
        if !built.success() {
            bail!("with {name} the tree does not build; make the patch anew");
        }
        let output = Command::new(target.join(PROFILE).join("farshore-sim"))
            .args(["--seeds", SEEDS, "--once", "--first", "--no-shrink"])
            .output()
            .context("running farshore-sim")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match said.lines().find(|l| l.starts_with("seed ")) {
            Some(line) if !output.status.success() => println!("{name}: noticed by {line}"),
            _ => survivors.push(name),
        }
    }
    Ok(survivors)
}

/// Cargo's target folder.
pub(crate) fn target() -> anyhow::Result<PathBuf> {
    let root = crate::crd_docs::root();
    let output = cargo(&root, &root.join("target"))
        .env_remove("CARGO_TARGET_DIR")
        .envs(std::env::var_os("CARGO_TARGET_DIR").map(|dir| ("CARGO_TARGET_DIR", dir)))
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
        ])
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let folder = metadata["target_directory"]
        .as_str()
        .context("cargo names no target folder")?;
    Ok(folder.into())
}

fn cargo(tree: &Path, target: &Path) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command.current_dir(tree).env("CARGO_TARGET_DIR", target);
    command
}

/// Brings the copy in step with the tree: every file that git knows. A file that is as it was keeps
/// its time, so that cargo does not build it again.
fn copy(tree: &Path) -> anyhow::Result<()> {
    let root = crate::crd_docs::root();
    let listed = git(&root, &["ls-files", "-z"], None)?;
    for name in listed.split('\0').filter(|n| !n.is_empty()) {
        let (from, to) = (root.join(name), tree.join(name));
        let Ok(new) = std::fs::read(&from) else {
            // Deleted, and not committed yet.
            let _ = std::fs::remove_file(&to);
            continue;
        };
        if std::fs::read(&to).is_ok_and(|old| old == new) {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&to, new).with_context(|| format!("writing {}", to.display()))?;
    }
    Ok(())
}

fn git(folder: &Path, args: &[&str], input: Option<&Path>) -> anyhow::Result<String> {
    let mut command = Command::new("git");
    command.current_dir(folder).args(args);
    if let Some(input) = input {
        command.arg(input);
        // The copy lies below a repository that must not be taken for its own.
        command.env("GIT_CEILING_DIRECTORIES", folder.parent().unwrap_or(folder));
    }
    let output = command.output().context("running git")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

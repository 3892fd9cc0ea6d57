//! The dependency rules of ARCHITECTURE.md, checked against what cargo resolves.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::Value;

/// Every crate of the workspace, from the bottom up. A crate may use only crates of lower layers.
const LAYERS: [&[&str]; 7] = [
    &[
        "farshore-api",
        "farshore-apiserver",
        "farshore-chart",
        "farshore-detshim",
    ],
    &["farshore-core"],
    &["farshore-runtime"],
    &[
        "farshore-zone",
        "farshore-manager",
        "farshore-workload",
        "farshore-agent",
    ],
    &["farshore-lab"],
    &["farshore-sim"],
    &["xtask"],
];

/// Crates that may depend on nothing of ours.
const ALONE: [&str; 1] = ["farshore-apiserver"];

/// Crates that one other alone may use: the lab is no library, and the determinism shim must never
/// reach a shipped binary.
const RESERVED: [(&str, &str); 3] = [
    ("farshore-lab", "farshore-sim"),
    ("farshore-detshim", "farshore-sim"),
    ("farshore-sim", "nobody"),
];

/// Crates without an async runtime, a client or a server.
const PURE: [&str; 2] = ["farshore-api", "farshore-core"];

/// What a pure crate may not link, not even through others.
const IMPURE: [&str; 6] = [
    "tokio",
    "hyper",
    "kube-client",
    "kube-runtime",
    "tower",
    "async-trait",
];

/// The crates that are in the way of the rules, as sentences.
pub fn breaches() -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    let level: BTreeMap<&str, usize> = LAYERS
        .iter()
        .enumerate()
        .flat_map(|(i, layer)| layer.iter().map(move |name| (*name, i)))
        .collect();
    for package in packages()? {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(own) = level.get(name) else {
            found.push(format!("{name} stands in no layer; give it its place in xtask/src/layers.rs and ARCHITECTURE.md"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            // Tests may stand on the API server; it is the world that reconcilers are tested in.
            let for_tests = dependency["kind"] == "dev" && used == "farshore-apiserver";
            let Some(theirs) = level.get(used).filter(|_| !for_tests) else {
                continue;
            };
            if theirs >= own {
                found.push(format!("{name} uses {used}, which does not stand below it"));
            }
            if let Some((_, only)) = RESERVED
                .iter()
                .find(|(reserved, only)| *reserved == used && *only != name)
            {
                found.push(format!("{name} uses {used}; only {only} may"));
            }
            if ALONE.contains(&name) {
                found.push(format!("{name} uses {used}; it may use nothing of ours"));
            }
        }
    }
    for name in PURE {
        let linked = linked(name)?;
        for impure in IMPURE.iter().filter(|i| linked.iter().any(|l| l == *i)) {
            found.push(format!(
                "{name} links {impure}: decisions and types know no runtime and no client"
            ));
        }
    }
    Ok(found)
}

fn cargo(args: &[&str]) -> anyhow::Result<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(args)
        .current_dir(crate::crd_docs::root())
        .output()
        .context("running cargo")?;
    if !output.status.success() {
        bail!(
            "cargo {} failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn packages() -> anyhow::Result<Vec<Value>> {
    let metadata: Value = serde_json::from_str(&cargo(&[
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
        "--offline",
    ])?)?;
    Ok(metadata["packages"].as_array().cloned().unwrap_or_default())
}

/// Names of all crates that end up in a crate, without its tests.
fn linked(name: &str) -> anyhow::Result<Vec<String>> {
    let tree = cargo(&[
        "tree",
        "--offline",
        "-p",
        name,
        "-e",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ])?;
    Ok(tree
        .lines()
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect())
}

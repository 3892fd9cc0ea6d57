//! `cargo xtask <task>`: what would otherwise be shell.

use std::process::Command;

use anyhow::{Context, bail};

const USAGE: &str = "\
usage: cargo xtask <task>
  docs    write docs/reference/crds.md from the API types
  layers  check that dependencies between the crates only point down
  bench   print the figures of the lab; `bench apiserver` compares its API server with the real one,
          which it takes from KUBEBUILDER_ASSETS (release build)
  mutants check that the simulation notices deliberate faults: `mutants [name …]`, all of tests/mutations unless told
  fuzz    fuzz the API server: `fuzz [target …] [--seconds N]`, each target for 600 seconds unless told";

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("docs") => {
            let path = xtask::crd_docs::path();
            std::fs::write(&path, xtask::crd_docs::render()?)
                .with_context(|| format!("writing {}", path.display()))?;
            println!("wrote docs/reference/crds.md");
        }
        Some("layers") => {
            let breaches = xtask::layers::breaches()?;
            if !breaches.is_empty() {
                bail!("{}", breaches.join("\n"));
            }
            println!("every dependency points down");
        }
        Some("mutants") => {
            let named: Vec<String> = std::env::args().skip(2).collect();
            let survivors = xtask::mutants::survivors(&named)?;
            if !survivors.is_empty() {
                bail!("the simulation did not notice {}", survivors.join(", "));
            }
            println!("the simulation noticed every deliberate fault it was asked about");
        }
        Some("fuzz") => {
            let arguments: Vec<String> = std::env::args().skip(2).collect();
            xtask::fuzz::run(&arguments)?;
        }
        Some("bench") => {
            let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
            let status = Command::new(cargo)
                .args([
                    "run",
                    "--release",
                    "--quiet",
                    "-p",
                    "farshore-lab",
                    "--",
                    "bench",
                ])
                .args(std::env::args().skip(2))
                .status()?;
            if !status.success() {
                bail!("the bench ended with {status}");
            }
        }
        _ => bail!("{USAGE}"),
    }
    Ok(())
}

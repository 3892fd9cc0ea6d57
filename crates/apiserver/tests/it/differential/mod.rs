//! The same requests to this server and to a real kube-apiserver, and what both answer.
//!
//! `tests/differential/*.yaml` are scripts of requests, one file per area; `*.answers.json` beside them is what
//! kube-apiserver v1.20.2 answered; `explained.yaml` says where this server differs on purpose and why, `open.yaml`
//! where it is wrong and still to be mended.
//!
//! `KUBEBUILDER_ASSETS` (a folder with `etcd`, `kube-apiserver` and `kube-controller-manager`) lets the record be
//! checked against the real server, and `UPDATE_RECORD=1` rewrites it. `DIFFERENTIAL=<text>` restricts both tests to
//! the scripts whose name contains the text.

mod difference;
mod explained;
mod normal;
pub mod real;
mod record;
mod run;
mod script;

use std::path::PathBuf;

use farshore_apiserver::{ApiServer, Options};
use kube::Client;
use tokio_util::sync::CancellationToken;

use difference::Difference;
use explained::Explained;
use run::Target;
use script::Area;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/differential")
}

fn filter() -> Option<String> {
    std::env::var("DIFFERENTIAL").ok().filter(|f| !f.is_empty())
}

fn report(differences: &[Difference]) -> String {
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[tokio::test(start_paused = true)]
async fn every_step_is_answered_as_by_a_real_kube_apiserver() {
    let areas = Area::read_all(&folder());
    let recorded = record::read_all(&folder(), &areas);
    let filter = filter();
    let mut differences = Vec::new();
    for script in areas.iter().flat_map(|a| &a.scripts) {
        if filter.as_ref().is_some_and(|f| !script.name.contains(f)) {
            continue;
        }
        let server = ApiServer::new(Options {
            rbac: true,
            ..Options::default()
        });
        let stop = CancellationToken::new();
        drop(server.spawn(stop.clone()));
        let client = Client::new(server.service(None), "default");
        let target = Target::new(client, server.admin_token());
        let answers = run::script(&target, script).await;
        stop.cancel();
        differences.extend(difference::between(script, &recorded, &answers));
    }
    let mut explained = Explained::read(&folder(), "explained.yaml");
    let mut known = Explained::read(&folder(), "open.yaml");
    let open = known.without(explained.without(differences));
    assert!(
        open.is_empty(),
        "{} unexplained differences:\n{}",
        open.len(),
        report(&open)
    );
    if filter.is_none() {
        let stale = [explained.unused(), known.unused()].concat();
        assert!(
            stale.is_empty(),
            "explained.yaml or open.yaml tells of what does not differ: {stale:#?}"
        );
    }
}

#[test]
fn the_readme_says_how_much_is_compared() {
    let readme = include_str!("../../../README.md");
    let areas = Area::read_all(&folder());
    let scripts: Vec<_> = areas.iter().flat_map(|a| &a.scripts).collect();
    let steps: usize = scripts.iter().map(|s| s.steps.len()).sum();
    let explained = std::fs::read_to_string(folder().join("explained.yaml")).unwrap();
    let rows = explained.lines().filter(|l| l.starts_with("- ")).count();
    for said in [
        format!("({} scripts, {steps} steps)", scripts.len()),
        format!("({rows} rows,"),
    ] {
        assert!(readme.contains(&said), "the README does not say {said}");
    }
}

#[tokio::test]
async fn the_record_is_what_a_real_kube_apiserver_answers() {
    let Some(assets) = real::assets() else {
        eprintln!(
            "KUBEBUILDER_ASSETS names no folder with {}: the record of the real server is not checked",
            real::PROGRAMS.join(", ")
        );
        return;
    };
    let update = std::env::var("UPDATE_RECORD").is_ok_and(|v| v == "1");
    let filter = filter();
    let areas = Area::read_all(&folder());
    let server = real::RealServer::start(&assets).await;
    let mut differences = Vec::new();
    let mut recorded = record::read_all(&folder(), &areas);
    for area in &areas {
        for script in &area.scripts {
            if filter.as_ref().is_some_and(|f| !script.name.contains(f)) {
                continue;
            }
            let answers = run::script(server.target(), script).await;
            if update {
                record::put(&mut recorded, script, answers);
            } else {
                differences.extend(difference::between(script, &recorded, &answers));
            }
        }
        if update {
            record::write(&folder(), area, &recorded);
        }
    }
    assert!(
        differences.is_empty(),
        "the record is not what the real server answers; UPDATE_RECORD=1 rewrites it:\n{}",
        report(&differences)
    );
}

//! Sessions of a real `kubectl`, the same on this server and on a real kube-apiserver.
//!
//! `tests/sessions/*.session` are transcripts that a person can read and paste: commands for a shell, and what kubectl
//! 1.32 with kube-apiserver v1.20.2 printed. What no two runs share (ages, uids, times, revisions, addresses, tokens) has
//! a name in `<>` there. `differences.yaml` says where this server's answers print otherwise, and why that is right.
//!
//! The client comes from `KUBECTL` (default `kubectl`). `KUBEBUILDER_ASSETS` lets the transcripts be checked against the
//! real server, and `UPDATE_RECORD=1` rewrites them from it. `SESSION=<text>` restricts both tests to the files whose
//! name contains the text.

mod client;
mod differences;
mod normal;
mod run;
mod transcript;

use std::path::PathBuf;

use farshore_apiserver::{ApiServer, Options, Tls};
use futures::{StreamExt, stream};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::differential::real;
use client::{Client, Server};
use differences::Table;
use transcript::Session;

/// Sessions under way at once: each is one process after the other.
const AT_ONCE: usize = 4;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sessions")
}

fn filter() -> Option<String> {
    std::env::var("SESSION").ok().filter(|f| !f.is_empty())
}

fn sessions() -> Vec<Session> {
    let filter = filter();
    let mut all = Session::read_all(&folder());
    all.retain(|s| filter.as_ref().is_none_or(|f| s.name.contains(f)));
    all
}

/// The exit code at the end of an output; none is success.
fn ended(output: &str) -> Option<&str> {
    output
        .lines()
        .last()
        .filter(|line| line.starts_with("[exit "))
}

/// A session with a server of its own, which listens and enforces RBAC.
async fn here(client: &Client, session: Session) -> (Session, Vec<String>) {
    let server = ApiServer::new(Options {
        rbac: true,
        ..Options::default()
    });
    let stop = CancellationToken::new();
    drop(server.spawn(stop.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (tls, authority) = Tls::self_signed(&["127.0.0.1", "localhost"]).unwrap();
    let (serving, until) = (server.clone(), stop.clone());
    tokio::spawn(async move { serving.serve_tls(listener, tls, until).await });
    let server = Server {
        url,
        authority,
        token: server.admin_token(),
    };
    let outputs = run::session(client, &server, &session, |_| true).await;
    stop.cancel();
    (session, outputs)
}

#[tokio::test]
async fn kubectl_prints_what_it_prints_of_a_real_kube_apiserver() {
    let Some(client) = Client::find().await else {
        return;
    };
    let ran: Vec<_> = stream::iter(sessions())
        .map(|session| here(&client, session))
        .buffered(AT_ONCE)
        .collect()
        .await;
    let mut table = Table::read(&folder());
    let mut open = Vec::new();
    for (session, outputs) in &ran {
        for (step, output) in session.steps.iter().zip(outputs) {
            if client.exact {
                open.extend(table.unexplained(session, step, output));
            } else if ended(&step.output) != ended(output) && !table.speaks_of(session, step) {
                open.push(format!("{} $ {}\n{output}\n", session.name, step.command));
            }
        }
    }
    assert!(
        open.is_empty(),
        "{} unexplained differences:\n{}",
        open.len(),
        open.concat()
    );
    let unused = table.unused();
    assert!(
        filter().is_some() || !client.exact || unused.is_empty(),
        "differences.yaml tells of what does not differ: {unused:#?}"
    );
}

#[tokio::test]
async fn the_transcripts_are_what_a_real_kube_apiserver_lets_kubectl_print() {
    let Some(assets) = real::assets() else {
        println!(
            "skipped: KUBEBUILDER_ASSETS names no folder with {}",
            real::PROGRAMS.join(", ")
        );
        return;
    };
    let Some(client) = Client::find().await else {
        return;
    };
    if !client.exact {
        return;
    }
    let update = std::env::var("UPDATE_RECORD").is_ok_and(|v| v == "1");
    let started = real::RealServer::start(&assets).await;
    let server = Server {
        url: started.url(),
        authority: started.authority(),
        token: real::ADMIN.into(),
    };
    let mut wrong = String::new();
    // One after the other: they share the objects that are in no namespace.
    for mut session in sessions() {
        let mut outputs = run::session(&client, &server, &session, |s| s.since.is_none()).await;
        if update {
            let (_, ours) = here(&client, session.clone()).await;
            for (step, (output, own)) in session.steps.iter_mut().zip(outputs.drain(..).zip(ours)) {
                step.output = if step.since.is_some() { own } else { output };
            }
            session.write(&folder());
            continue;
        }
        for (step, output) in session.steps.iter().zip(&outputs) {
            if step.since.is_none() && step.output != *output {
                wrong += &format!(
                    "{} $ {}\nrecorded:\n{}\nnow:\n{output}\n",
                    session.name, step.command, step.output
                );
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "the transcripts are not what the real server makes kubectl print; UPDATE_RECORD=1 rewrites them:\n{wrong}"
    );
}

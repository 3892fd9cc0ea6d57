//! The two engines' API servers side by side: throughput, fan-out, memory and start, over TLS, as ratios.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use farshore_apiserver::{ApiServer, Options, Tls};
use farshore_runtime::Clock;
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::RealServer;

/// Where the objects of the bench lie.
const NAMESPACE: &str = "bench";
/// Objects that one client writes in each round, and that sixteen write together.
const ROUNDS: [(usize, usize); 2] = [(1, 300), (16, 1600)];
/// Watches of the fan-out, and the changes that each must see.
const WATCHERS: usize = 100;
const CHANGES: usize = 100;
/// Objects that are in memory when it is looked at.
const HELD: usize = 10_000;
/// How long anything may take before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(300);

/// What one engine did. Rates are per second.
struct Figures {
    start: Duration,
    /// Creates, updates and applies, for each of the rounds.
    writes: Vec<[f64; 3]>,
    /// Events that all watchers received together.
    fan_out: f64,
    /// Resident bytes with the objects held, of the engine's processes, beyond what they took when they
    /// were ready.
    grown: u64,
    /// Resident bytes of the engine's processes with the objects held.
    resident: u64,
}

/// Measures both engines one after the other, and prints them with their ratios.
pub async fn run() -> anyhow::Result<()> {
    let ours = embedded().await.context("the embedded server")?;
    let real = kube().await.context("the real server")?;
    println!(
        "{:<34} {:>12} {:>12} {:>8}",
        "", "embedded", "kube", "ratio"
    );
    let row = |what: &str, ours: f64, real: f64, ratio: f64| {
        println!("{what:<34} {ours:>12.1} {real:>12.1} {ratio:>7.1}×");
    };
    for (n, (clients, _)) in ROUNDS.iter().enumerate() {
        for (k, verb) in ["creates", "updates", "applies"].iter().enumerate() {
            let (ours, real) = (ours.writes[n][k], real.writes[n][k]);
            row(
                &format!("{verb} per second, {clients} clients"),
                ours,
                real,
                ours / real,
            );
        }
    }
    row(
        &format!("events per second to {WATCHERS} watchers"),
        ours.fan_out,
        real.fan_out,
        ours.fan_out / real.fan_out,
    );
    let millis = |f: &Figures| f.start.as_secs_f64() * 1000.0;
    row(
        "start, ms",
        millis(&ours),
        millis(&real),
        millis(&real) / millis(&ours),
    );
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    row(
        &format!("MiB with {HELD} objects"),
        mib(ours.resident),
        mib(real.resident),
        mib(real.resident) / mib(ours.resident),
    );
    println!(
        "The embedded server shares its process with the clients of this bench; its objects alone took {:.1} MiB.",
        mib(ours.grown)
    );
    Ok(())
}

async fn embedded() -> anyhow::Result<Figures> {
    let shutdown = CancellationToken::new();
    let begun = Instant::now();
    let server = ApiServer::new(Options {
        name: "bench".into(),
        rbac: true,
        ..Options::default()
    });
    server.spawn(shutdown.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://127.0.0.1:{}", listener.local_addr()?.port());
    let (tls, authority) = Tls::self_signed(&["127.0.0.1"])?;
    let serving = (server.clone(), shutdown.clone());
    tokio::spawn(async move { serving.0.serve_tls(listener, tls, serving.1).await });
    let client = client(&url, &authority, &server.admin_token())?;
    client.apiserver_version().await?;
    let start = begun.elapsed();
    let figures = measure(&client, start, || resident(std::process::id())).await;
    shutdown.cancel();
    figures
}

async fn kube() -> anyhow::Result<Figures> {
    let shutdown = CancellationToken::new();
    let begun = Instant::now();
    let mut servers = RealServer::start_all(&["bench"], None, &Clock::system(), &shutdown).await?;
    let Some(server) = servers.pop() else {
        bail!("no server was started");
    };
    let start = begun.elapsed();
    let client = client(&server.url(), server.authority(), server.admin_token())?;
    let figures = measure(&client, start, || {
        server.processes().into_iter().map(resident).sum()
    })
    .await;
    shutdown.cancel();
    server.stop();
    figures
}

fn client(url: &str, authority: &str, token: &str) -> anyhow::Result<Client> {
    let mut config = Config::new(url.parse()?);
    config.root_cert = Some(vec![
        CertificateDer::from_pem_slice(authority.as_bytes())?.to_vec(),
    ]);
    config.auth_info.token = Some(token.to_owned().into());
    Ok(Client::try_from(config)?)
}

/// Bytes of a process that are in memory; 0 where the system does not tell.
fn resident(process: u32) -> u64 {
    let path = PathBuf::from(format!("/proc/{process}/status"));
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

async fn measure(
    client: &Client,
    start: Duration,
    memory: impl Fn() -> u64,
) -> anyhow::Result<Figures> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
    namespaces
        .create(&PostParams::default(), &namespace)
        .await?;
    let empty = memory();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let mut writes = Vec::new();
    for (clients, objects) in ROUNDS {
        let name = |n: usize| format!("round-{clients}-{n}");
        let creates = rate(clients, objects, async |n| {
            maps.create(&PostParams::default(), &map(&name(n), "created"))
                .await
        })
        .await?;
        let updates = rate(clients, objects, async |n| {
            maps.replace(&name(n), &PostParams::default(), &map(&name(n), "updated"))
                .await
        })
        .await?;
        let params = PatchParams::apply("bench").force();
        let applies = rate(clients, objects, async |n| {
            let applied = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name(n) },
                "data": { "applied": "x".repeat(1024) },
            });
            maps.patch(&name(n), &params, &Patch::Apply(applied)).await
        })
        .await?;
        writes.push([creates, updates, applies]);
    }
    let fan_out = tokio::time::timeout(PATIENCE, fan_out(&maps))
        .await
        .context("not every watcher saw every change")??;
    let held: usize = ROUNDS.iter().map(|(_, objects)| objects).sum();
    rate(16, HELD - held, async |n| {
        maps.create(&PostParams::default(), &map(&format!("held-{n}"), "held"))
            .await
    })
    .await?;
    let resident = memory();
    Ok(Figures {
        start,
        writes,
        fan_out,
        grown: resident.saturating_sub(empty),
        resident,
    })
}

/// A ConfigMap of a little more than a KiB.
fn map(name: &str, state: &str) -> ConfigMap {
    ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some(name.into()),
            ..Default::default()
        },
        data: Some(
            [
                ("state".into(), state.into()),
                ("text".into(), "x".repeat(1024)),
            ]
            .into(),
        ),
        ..ConfigMap::default()
    }
}

/// Writes `objects` with so many at a time; how many a second.
async fn rate<F, Fut, T>(clients: usize, objects: usize, write: F) -> anyhow::Result<f64>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = kube::Result<T>>,
{
    let begun = Instant::now();
    let all = stream::iter(0..objects)
        .map(write)
        .buffer_unordered(clients);
    all.try_for_each(|_| async { Ok(()) }).await?;
    Ok(objects as f64 / begun.elapsed().as_secs_f64())
}

/// Changes one object again and again while many watch it; how many events a second all receive
/// together.
async fn fan_out(maps: &Api<ConfigMap>) -> anyhow::Result<f64> {
    let params = WatchParams::default().fields("metadata.name=watched");
    let made = maps
        .create(&PostParams::default(), &map("watched", "0"))
        .await?;
    let from = made
        .metadata
        .resource_version
        .context("it has no resourceVersion")?;
    let from = Arc::new(from);
    let opened = stream::iter(0..WATCHERS).map(|_| maps.watch(&params, &from));
    let watches: Vec<_> = opened.buffer_unordered(16).try_collect().await?;
    let begun = Instant::now();
    let watching = watches.into_iter().map(|watch| {
        tokio::spawn(async move {
            let changes =
                watch.filter(|e| futures::future::ready(matches!(e, Ok(WatchEvent::Modified(_)))));
            changes.take(CHANGES).count().await
        })
    });
    let watching: Vec<_> = watching.collect();
    for n in 1..=CHANGES {
        let change = Patch::Merge(json!({ "data": { "state": n.to_string() } }));
        maps.patch("watched", &PatchParams::default(), &change)
            .await?;
    }
    let mut seen = 0;
    for watch in watching {
        seen += watch.await?;
    }
    Ok(seen as f64 / begun.elapsed().as_secs_f64())
}

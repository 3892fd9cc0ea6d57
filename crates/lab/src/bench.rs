//! Figures, printed: counts and ratios in virtual time, start-up in real time.

use std::path::PathBuf;
use std::time::Duration;

use farshore_runtime::Clock;
use tokio_util::sync::CancellationToken;

use crate::drbd;
use crate::engine::Engine;
use crate::lab::{Lab, LabOptions};
use crate::measure::{Marks, fail_over};
use crate::sim::Timings;
use crate::story::{User, Vm};

/// A lab of two nodes for each site, inside the process: for virtual time.
pub fn quiet_options(seed: u64) -> LabOptions {
    LabOptions {
        engine: Engine::Embedded,
        nodes: 2,
        dir: None,
        timings: Timings::default(),
        drbd: drbd::Options::default(),
        clock: Clock::virtual_from(jiff::Timestamp::constant(1_767_225_600, 0)), // 2026-01-01
        seed,
    }
}

/// Runs everything and prints it.
pub async fn run() -> anyhow::Result<()> {
    println!("start to `lab is ready` (real time, TLS, five starts):");
    for _ in 0..5 {
        let dir: PathBuf =
            std::env::temp_dir().join(format!("farshore-bench-{}", std::process::id()));
        let shutdown = CancellationToken::new();
        let begun = tokio::time::Instant::now();
        let options = LabOptions {
            engine: Engine::Embedded,
            nodes: 2,
            dir: Some(dir.clone()),
            timings: Timings::default(),
            drbd: drbd::Options::default(),
            clock: Clock::system(),
            seed: 1,
        };
        let _lab = Lab::start(options, shutdown.clone()).await?;
        println!("  {:.2} s", begun.elapsed().as_secs_f64());
        shutdown.cancel();
        std::fs::remove_dir_all(&dir)?;
    }
    // Virtual time needs a runtime of its own, on this thread alone.
    tokio::task::block_in_place(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        runtime.block_on(counts())
    })
}

async fn counts() -> anyhow::Result<()> {
    let lab = Lab::start(quiet_options(1), CancellationToken::new()).await?;
    let user = User::new(&lab, "metro");
    user.create_zone().await?;
    let vms: Vec<Vm> = (0..10)
        .map(|i| Vm::new("shop", &format!("vm{i:02}"), 1, 64))
        .collect();
    user.protect("east", &vms, "Online").await?;
    user.create_group("shop", &vms).await?;
    tokio::time::sleep(Duration::from_secs(120)).await;

    let marks = Marks::now(&lab);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let idle = marks.writes(&lab);
    println!(
        "writes in one idle minute with ten protected VMs, leases and heartbeats aside: {}",
        idle.values().sum::<usize>()
    );
    for (writer, count) in &idle {
        println!("  {count:>5}  {writer}");
    }

    let moved = fail_over(&user, "to-west", "shop", "west", &vms).await?;
    let each = moved.writes as f64 / vms.len() as f64;
    println!(
        "API writes of a failover of ten VMs with one disk each: {} ({each:.1} per VM)",
        moved.writes
    );
    for (writer, count) in &moved.by_writer {
        println!("  {count:>5}  {writer}");
    }
    Ok(())
}

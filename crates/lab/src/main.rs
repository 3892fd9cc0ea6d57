//! `farshore`: the lab. Three clusters, their simulators and every operator on one machine.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Parser, Subcommand};
use farshore_lab::engine::Engine;
use farshore_lab::lab::{Lab, LabOptions};
use farshore_lab::{bench, bench_api, control, demo, drbd, sim};
use farshore_runtime::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
#[command(
    name = "farshore",
    version,
    about = "Disaster recovery for Kubernetes, on three clusters inside one process"
)]
struct Cli {
    /// What the processes log to stderr, as in RUST_LOG.
    #[arg(
        long,
        env = "FARSHORE_LOG",
        default_value = "error,kube_client=off",
        global = true
    )]
    log: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start the lab and keep it running until Ctrl-C; drive it with kubectl from another terminal.
    Up(Place),
    /// Tell the story: protect virtual machines, move them to the other site, move them back.
    Demo(Place),
    /// Inject a fault into a running lab.
    Fault {
        /// Folder of the lab.
        #[arg(long, default_value = ".farshore")]
        dir: PathBuf,
        /// `<cluster> down|up`, `link cut|heal`, `node <cluster>/<node> down|up`, `restart <process>`, `slow <cluster> <ms>`.
        ///
        /// A process is named by its image: `tsr-manager`, `protectionzone`, `workload-manager`, `drbd-node-agent`. It
        /// starts again by itself. `slow <cluster> 0` takes the delay away.
        #[arg(required = true, num_args = 1..)]
        what: Vec<String>,
    },
    /// Print figures: start time, API writes of a failover, writes of an idle lab.
    Bench {
        /// `apiserver`: the API servers of both engines side by side; wants KUBEBUILDER_ASSETS.
        #[arg(value_enum)]
        what: Option<Bench>,
    },
}

/// What can be measured beside the lab as a whole.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Bench {
    Apiserver,
}

#[derive(clap::Args)]
struct Place {
    /// Folder for kubeconfigs and the control socket.
    #[arg(long, default_value = ".farshore")]
    dir: PathBuf,
    /// The API servers.
    #[arg(long, value_enum, default_value_t = Engine::Embedded)]
    engine: Engine,
    /// Worker nodes of each workload cluster.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    nodes: u8,
}

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: starting the threads of this program: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(begin());
    // What still runs ends with the process; taking its tasks apart one by one makes those panic
    // that await others.
    std::mem::forget(runtime);
    code
}

async fn begin() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::new(&cli.log);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match run(cli.command).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(place) => up(place).await,
        Command::Demo(place) => {
            let begun = tokio::time::Instant::now();
            let mut interrupts = Interrupts::listen()?;
            let lab = start(&place, &mut interrupts).await?;
            let told = tokio::select! {
                biased;
                () = interrupts.any() => Err(anyhow::anyhow!("interrupted")),
                told = demo::run(&lab, &place.dir, begun) => told,
            };
            end(&place, &lab);
            Ok(if told? {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Command::Fault { dir, what } => {
            println!("{}", control::send(&dir, &what.join(" ")).await?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Bench { what } => {
            match what {
                None => bench::run().await?,
                Some(Bench::Apiserver) => bench_api::run().await?,
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn up(place: Place) -> anyhow::Result<ExitCode> {
    let begun = tokio::time::Instant::now();
    let mut interrupts = Interrupts::listen()?;
    let lab = start(&place, &mut interrupts).await?;
    say(&format!(
        "lab is ready ({:.2} s)\n  export KUBECONFIG={}\n  kubectl --context hub get pz,pr,pg,fr,rgs -A",
        begun.elapsed().as_secs_f64(),
        place.dir.join("kubeconfig").display()
    ));
    interrupts.any().await;
    say("stopping");
    end(&place, &lab);
    say("stopped; nothing of this lab is left");
    Ok(ExitCode::SUCCESS)
}

/// Tells whoever listens; one who has gone is no reason to fail.
fn say(words: &str) {
    let _ = writeln!(std::io::stdout(), "{words}");
}

async fn start(place: &Place, interrupts: &mut Interrupts) -> anyhow::Result<Arc<Lab>> {
    if control::answers(&place.dir).await {
        anyhow::bail!(
            "a lab runs in {} already; stop it, or choose another folder with --dir",
            place.dir.display()
        );
    }
    let shutdown = CancellationToken::new();
    let clock = Clock::system();
    let drawn = farshore_runtime::secret::generate(&clock, "lab")
        .context("reading the system's source of randomness")?;
    let options = LabOptions {
        engine: place.engine,
        nodes: place.nodes.into(),
        dir: Some(place.dir.clone()),
        timings: sim::Timings::default(),
        drbd: drbd::Options::default(),
        clock,
        seed: u64::from_str_radix(&drawn[..16], 16)?,
    };
    let started = tokio::select! {
        biased;
        () = interrupts.any() => Err(anyhow::anyhow!("interrupted")),
        started = Lab::start(options, shutdown.clone()) => started.context("the lab could not start"),
    };
    let lab = match started {
        Ok(lab) => Arc::new(lab),
        Err(error) => {
            shutdown.cancel();
            clean(place);
            return Err(error);
        }
    };
    tokio::spawn(control::serve(
        lab.clone(),
        control::socket(&place.dir),
        shutdown,
    ));
    Ok(lab)
}

/// Ends the lab and removes what it wrote.
fn end(place: &Place, lab: &Lab) {
    lab.stop();
    clean(place);
}

fn clean(place: &Place) {
    for name in [
        "kubeconfig",
        "hub.kubeconfig",
        "east.kubeconfig",
        "west.kubeconfig",
        "control.sock",
    ] {
        let _ = std::fs::remove_file(place.dir.join(name));
    }
    // Only if it is empty: it may hold files of the user.
    let _ = std::fs::remove_dir(&place.dir);
}

/// SIGINT and SIGTERM, listened to from the beginning: one that comes between two waits is not lost.
struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listening to signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Resolves when one of them has come.
    async fn any(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

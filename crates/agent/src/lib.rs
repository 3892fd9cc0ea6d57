//! drbd-node-agent: the only code that runs privileged commands on a node. It carries out the
//! DRBDResources that are bound to its node, and keeps VMs off the node until DRBD has converged
//! there [S1].

mod act;
mod frontend;
pub mod kernel;
mod memory;
mod observe;
mod reconcile;
mod startup;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use farshore_api::DRBDResource;
use farshore_api::meta::{components, labels};
use farshore_runtime::{Process, ProcessError, controller, triggers};
use futures::StreamExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};

use kernel::SharedKernel;
use memory::Memory;
use reconcile::Agent;

/// Resources worked on at a time.
const CONCURRENCY: u16 = 4;
/// How long the startup taint stays at most.
const STARTUP_DEADLINE_SECONDS: u64 = 300;

/// What the process is told by its environment.
#[derive(Clone, Debug)]
struct Config {
    /// Node that it runs on (`NODE_NAME`).
    node: String,
    /// How long the startup taint stays at most (`STARTUP_DEADLINE_SECONDS`).
    startup_deadline: Duration,
}

impl Config {
    fn read(process: &Process) -> Result<Self, ProcessError> {
        let node = match &process.node {
            Some(node) => node.clone(),
            None => process.required("NODE_NAME")?.to_string(),
        };
        let seconds = match process.env.get("STARTUP_DEADLINE_SECONDS").map(|v| v.trim()) {
            None | Some("") => STARTUP_DEADLINE_SECONDS,
            Some(text) => text.parse().map_err(|_| {
                ProcessError::new(format!(
                    "{} does not start: STARTUP_DEADLINE_SECONDS is {text:?}; set it to a number of seconds or leave it out",
                    process.name
                ))
            })?,
        };
        Ok(Self {
            node,
            startup_deadline: Duration::from_secs(seconds),
        })
    }
}

/// Runs the agent of one node until the process shuts down.
///
/// # Errors
/// A sentence, when the environment is not complete.
///
/// The future is boxed so that the process is compiled here, once, and not in whatever starts it.
pub fn run(process: Process, kernel: SharedKernel) -> BoxFuture<'static, Result<(), ProcessError>> {
    Box::pin(body(process, kernel))
}

async fn body(process: Process, kernel: SharedKernel) -> Result<(), ProcessError> {
    let config = Config::read(&process)?;
    let memory = Arc::new(Memory::default());
    let resources = Api::<DRBDResource>::all(process.client.clone());
    let startup = startup::run(&process, &config, &kernel, &memory);

    let of_node = watcher::Config::default()
        .labels(&format!(
            "{}={}",
            labels::COMPONENT,
            components::DRBD_ANCHOR
        ))
        .fields(&format!("spec.nodeName={}", config.node));
    let anchors = triggers::refs(
        Api::<Pod>::all(process.client.clone()),
        of_node,
        owner,
        process.shutdown.clone(),
    );
    let kernel_changes = watch::changes(
        Arc::clone(&kernel),
        Arc::clone(&memory),
        process.shutdown.clone(),
    );
    let triggers = futures::stream::select(kernel_changes, anchors).boxed();

    let agent = Agent::new(
        &process,
        &config.node,
        Arc::clone(&kernel),
        Arc::clone(&memory),
    );
    let work = controller::run(
        &process,
        resources,
        watcher::Config::default(),
        agent,
        triggers,
        CONCURRENCY,
    );
    tokio::join!(work, startup);
    Ok(())
}

/// The DRBDResource that an anchor pod was made for.
fn owner(pod: &Pod) -> Vec<ObjectRef<DRBDResource>> {
    let kind = DRBDResource::kind(&());
    let namespace = pod.namespace().unwrap_or_default();
    let owners = pod
        .metadata
        .owner_references
        .iter()
        .flatten()
        .filter(|o| o.kind == kind);
    owners
        .map(|o| ObjectRef::new(&o.name).within(&namespace))
        .collect()
}

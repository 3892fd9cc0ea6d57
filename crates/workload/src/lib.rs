//! The workload control plane, process `workload-manager`: places DRBDResources on the nodes of its
//! cluster and carries the desired state of mirrored groups out on its VMs [S1][S2].

pub mod group;
mod kubevirt;
pub mod placement;

use farshore_runtime::{Process, ProcessError, leader};
use futures::future::BoxFuture;

/// Lease of the process in its own namespace.
const LEASE: &str = "workload-manager";

/// What the process is told by its environment.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this cluster in its zone (`CLUSTER_NAME`).
    pub cluster: String,
    /// Image of the anchor pod (`ANCHOR_IMAGE`, for registries of one's own).
    pub anchor_image: String,
}

impl Config {
    /// Reads the environment; an error says what to set.
    pub fn read(process: &Process) -> Result<Self, ProcessError> {
        // Must be set, yet narrows nothing: protected VMs live in any namespace [S1].
        let watched = process.required("WATCH_NAMESPACE")?;
        if let Some(bad) = watched.split(',').map(str::trim).find(|n| !is_label(n)) {
            return Err(ProcessError::new(format!(
                "{} does not start: WATCH_NAMESPACE names \"{bad}\", which is no name of a namespace; set it to {}",
                process.name, process.namespace
            )));
        }
        let cluster = process.required("CLUSTER_NAME")?.to_string();
        let default = format!(
            "{}:{}",
            farshore_api::meta::images::ANCHOR,
            env!("CARGO_PKG_VERSION")
        );
        let anchor_image = process
            .env
            .get("ANCHOR_IMAGE")
            .filter(|i| !i.trim().is_empty())
            .cloned()
            .unwrap_or(default);
        Ok(Self {
            cluster,
            anchor_image,
        })
    }
}

/// Whether a text is a DNS-1123 label.
fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Runs the process until it is shut down or loses its Lease.
///
/// The future is boxed so that the process is compiled here, once, and not in whatever starts it.
pub fn run(process: Process) -> BoxFuture<'static, Result<(), ProcessError>> {
    Box::pin(body(process))
}

async fn body(process: Process) -> Result<(), ProcessError> {
    let config = Config::read(&process)?;
    leader::lead(&process, LEASE, async {
        tokio::join!(
            placement::run(&process, &config),
            group::run(&process, &config)
        );
        Ok(())
    })
    .await
}

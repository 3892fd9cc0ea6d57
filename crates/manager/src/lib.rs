//! tsr-manager: the control plane of one zone, on the hub [S1]. It is scoped to its zone's namespace
//! and reaches the workload clusters only through the kubeconfig Secrets there.
//!
//! Each reconciler keeps the name of the controller that it was in the older generation [S2] as field
//! manager and in events. One Lease elects the process: all of its reconcilers run in one place.

pub mod failover;
pub mod group;
pub mod hub;
mod kubevirt;
pub mod monitor;
pub mod policy;
pub mod protection;
mod test_failover;

use farshore_runtime::{Process, ProcessError, leader};
use futures::future::BoxFuture;

use hub::Hub;

/// Lease of the process in its zone's namespace; one for all reconcilers.
const LEASE: &str = "tsr-manager";

/// Runs the process until it is shut down or loses its Lease. It needs ZONE_NAME, and runs in the
/// namespace of that zone.
///
/// The future is boxed so that the process is compiled here, once, and not in whatever starts it.
pub fn run(process: Process) -> BoxFuture<'static, Result<(), ProcessError>> {
    Box::pin(body(process))
}

async fn body(process: Process) -> Result<(), ProcessError> {
    let hub = Hub::new(&process)?;
    leader::lead(&process, LEASE, async {
        // The clusters of a zone never change, so that the first sight of it is enough.
        let Some(zone) = hub.first_zone().await else {
            return Ok(());
        };
        hub.clusters.know(&zone);
        tokio::join!(
            protection::run(&hub, &zone),
            group::run(&hub, &zone),
            policy::run(&hub, &zone),
            failover::run(&process, &zone, &hub.clusters),
            test_failover::run(&hub, &zone),
            monitor::run(&process, &zone, &hub.clusters),
        );
        Ok(())
    })
    .await
}

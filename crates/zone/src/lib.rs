//! The process `protectionzone`: provisions ProtectionZones on the hub and on their two workload
//! clusters [S1]. What is to be done is decided in `farshore_core::zone`; here it is looked at and
//! carried out.

mod claim;
mod crds;
mod credential;
mod policy;
mod probe;
mod reconcile;
mod release;
mod removal;
mod stack;
mod watches;

use std::collections::BTreeSet;

use farshore_api::meta::managers;
use farshore_chart::ChartError;
use farshore_core::zone::permissions::{self, Permission};
use farshore_runtime::{Process, ProcessError, controller, leader};
use futures::future::BoxFuture;
use kube::Api;
use kube::runtime::watcher;

/// Reporting component of this process's events, and its Lease.
const CONTROLLER: &str = "protectionzone-controller";
/// Field manager of all that this process writes [S1].
const MANAGER: &str = managers::ZONE;
/// Zones that are reconciled at the same time: one with a dead cluster must not hold up the others.
const CONCURRENCY: u16 = 8;

/// Runs the process until its shutdown.
///
/// The future is boxed so that the process is compiled here, once, and not in whatever starts it.
pub fn run(process: Process) -> BoxFuture<'static, Result<(), ProcessError>> {
    Box::pin(body(process))
}

async fn body(process: Process) -> Result<(), ProcessError> {
    leader::lead(&process, CONTROLLER, lead(&process)).await
}

async fn lead(process: &Process) -> Result<(), ProcessError> {
    let definitions = crds::Definitions::default();
    if !crds::bootstrap(process, &definitions).await {
        return Ok(());
    }
    let (watches, triggers) = watches::Watches::new(process);
    let zones = Api::all(process.client.clone());
    let reconciler = reconcile::Zones::new(process, watches, definitions)?;
    controller::run(
        process,
        zones,
        watcher::Config::default(),
        reconciler,
        triggers,
        CONCURRENCY,
    )
    .await;
    Ok(())
}

/// What the credential of a workload cluster must be allowed to do there: asked of every cluster by
/// SelfSubjectAccessReview, and what a command that issues such credentials has to grant.
pub fn required_permissions() -> Result<BTreeSet<Permission>, ChartError> {
    Ok(permissions::needed(stack::granted()?))
}

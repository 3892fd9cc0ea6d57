//! Carries the agent's steps out.

use farshore_api::DRBDResource;
use farshore_api::meta::{finalizers, managers};
use farshore_core::drbd::node::{Applied, Failure, Step};
use farshore_runtime::apply;
use farshore_runtime::controller::{During, ReconcileError};
use jiff::Timestamp;
use kube::{Api, Client};

use crate::frontend;
use crate::kernel::{KernelError, SharedKernel};
use crate::memory::{Memory, key};

/// Why it stopped.
pub(crate) enum Stopped {
    /// The kernel or the state of the cluster stands in the way: told in the status.
    Refused(Failure),
    /// The API server did not do it.
    Api(ReconcileError),
}

impl From<KernelError> for Stopped {
    fn from(error: KernelError) -> Self {
        Self::Refused(Failure {
            held_open: matches!(error, KernelError::HeldOpen { .. }),
            why: error.to_string(),
        })
    }
}

impl From<ReconcileError> for Stopped {
    fn from(error: ReconcileError) -> Self {
        Self::Api(error)
    }
}

/// Runs the steps in order; stops at the first that fails. Each can be repeated.
pub(crate) async fn act(
    client: &Client,
    kernel: &SharedKernel,
    memory: &Memory,
    resource: &DRBDResource,
    steps: &[Step],
    now: Timestamp,
) -> Result<(), Stopped> {
    let (namespace, name) = key(resource);
    let api: Api<DRBDResource> = Api::namespaced(client.clone(), &namespace);
    let volume = |index: i32| resource.spec.volumes.iter().find(|v| v.index == index);
    for step in steps {
        match step {
            Step::AddFinalizer => {
                apply::add_finalizer(
                    &api,
                    managers::NODE_AGENT,
                    resource,
                    finalizers::DRBD_TEARDOWN,
                )
                .await
                .during(format!(
                    "adding a finalizer to DRBDResource {namespace}/{name}"
                ))?;
            }
            Step::CreateMetadata(config) => {
                // Looked at again at the last moment: fresh metadata over old would lose what the
                // peer misses.
                if !kernel.has_metadata(config).await? {
                    kernel.create_metadata(config).await?;
                }
            }
            Step::Adjust(config) => {
                kernel.adjust(config).await?;
                memory.set_applied(
                    &config.name,
                    Some(Applied {
                        config: config.clone(),
                        at: now,
                    }),
                );
            }
            Step::Disconnect(resource) => kernel.disconnect(resource).await?,
            Step::Connect {
                resource,
                discard_my_data,
            } => kernel.connect(resource, *discard_my_data).await?,
            Step::Primary { resource, force } => kernel.primary(resource, *force).await?,
            Step::Secondary(resource) => kernel.secondary(resource).await?,
            Step::EnsureFrontend(index) => {
                if let Some(volume) = volume(*index) {
                    frontend::ensure(client, resource, volume).await?;
                }
            }
            Step::Down(resource) => {
                kernel.down(resource).await?;
                memory.set_applied(resource, None);
            }
            Step::DeleteFrontend(index) => {
                if let Some(volume) = volume(*index) {
                    frontend::delete(client, resource, volume).await?;
                }
            }
            Step::RemoveFinalizer => {
                apply::remove_finalizer(
                    &api,
                    managers::NODE_AGENT,
                    resource,
                    finalizers::DRBD_TEARDOWN,
                )
                .await
                .during(format!(
                    "removing the finalizer of DRBDResource {namespace}/{name}"
                ))?;
            }
        }
    }
    Ok(())
}

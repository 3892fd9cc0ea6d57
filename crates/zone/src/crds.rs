//! The product's CustomResourceDefinitions, applied to a cluster.

use std::time::Duration;

use farshore_api::crds;
use farshore_core::zone::conclude::Crds;
use farshore_runtime::Process;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};

use crate::MANAGER;

/// Label of the product's definitions, by which they are watched.
pub const LABEL: (&str, &str) = ("app.kubernetes.io/part-of", "site-recovery");
/// How often the hub is asked again at start.
const ASK: Duration = Duration::from_secs(1);

fn wanted() -> Vec<CustomResourceDefinition> {
    let mut all = crds::all();
    for crd in &mut all {
        crd.labels_mut().insert(LABEL.0.into(), LABEL.1.into());
    }
    all
}

/// Applies all definitions, in every cycle and with force, so that a manual edit lasts no longer
/// than one [S1]. An apply of what is already so changes nothing on the server. Names those that
/// were there and differed.
pub async fn apply(client: &Client) -> kube::Result<Vec<String>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut reverted = Vec::new();
    for crd in wanted() {
        let name = crd.name_any();
        let before = api.get_metadata_opt(&name).await?.and_then(|live| live.metadata.resource_version);
        let after = api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&crd)).await?;
        if before.is_some() && before != after.metadata.resource_version {
            reverted.push(name);
        }
    }
    Ok(reverted)
}

/// As [`apply`], its result as the decision takes it.
pub async fn outcome(client: &Client) -> Crds {
    match apply(client).await {
        Ok(reverted) => Crds::Applied(reverted),
        Err(error) => Crds::Failed(error.to_string()),
    }
}

/// Applies the definitions to the hub and waits until it serves them: without them not even
/// ProtectionZones can be watched. Tries for ever; returns false when the process shuts down first.
pub async fn bootstrap(process: &Process) -> bool {
    let mut failures = 0_u32;
    loop {
        let attempt = async {
            apply(&process.client).await?;
            waiting(&process.client).await
        };
        let pause = tokio::select! {
            biased;
            () = process.shutdown.cancelled() => return false,
            result = attempt => match result {
                Ok(waiting) if waiting.is_empty() => return true,
                Ok(waiting) => {
                    tracing::info!(?waiting, "waiting until the hub serves the CustomResourceDefinitions");
                    ASK
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    let pause = ASK.saturating_mul(failures.min(30));
                    tracing::warn!(%error, "cannot apply the CustomResourceDefinitions to the hub; tried again in {} s", pause.as_secs());
                    pause
                }
            },
        };
        tokio::select! {
            biased;
            () = process.shutdown.cancelled() => return false,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Definitions that are not established yet.
async fn waiting(client: &Client) -> kube::Result<Vec<String>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut waiting = Vec::new();
    for crd in crds::all() {
        let name = crd.name_any();
        let live = api.get_opt(&name).await?;
        let conditions = live.and_then(|crd| crd.status).and_then(|status| status.conditions).unwrap_or_default();
        if !conditions.iter().any(|c| c.type_ == "Established" && c.status == "True") {
            waiting.push(name);
        }
    }
    Ok(waiting)
}

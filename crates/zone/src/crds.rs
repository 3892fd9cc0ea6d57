//! The product's CustomResourceDefinitions, applied to a cluster.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use farshore_api::crds;
use farshore_core::zone::conclude::Crds;
use farshore_runtime::Process;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};

use crate::MANAGER;

/// Label of the product's definitions, by which they are watched.
pub const LABEL: (&str, &str) = ("app.kubernetes.io/part-of", "site-recovery");
/// How often the hub is asked again at start.
const ASK: Duration = Duration::from_secs(1);

/// The definitions with our label. Made once: deriving schemas from types is by far the most expensive
/// thing that a look at a zone would do.
static WANTED: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(|| {
    let mut all = crds::all();
    for crd in &mut all {
        crd.labels_mut().insert(LABEL.0.into(), LABEL.1.into());
    }
    all
});

/// What the last applies of this process left behind: resourceVersion by UID of a definition.
#[derive(Default)]
pub struct Definitions(Mutex<BTreeMap<String, String>>);

impl Definitions {
    /// Applies all definitions with force, so that a manual edit lasts no longer than one cycle [S1].
    /// Those whose live version still is the one that the last apply left are not sent: an apply of
    /// what is already so changes nothing. Names those that were there and differed.
    pub async fn apply(&self, client: &Client) -> kube::Result<Vec<String>> {
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let ours = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
        let live = api.list_metadata(&ours).await?.items;
        let mut reverted = Vec::new();
        for crd in WANTED.iter() {
            let name = crd.name_any();
            let before = match live.iter().find(|live| live.name_any() == name) {
                Some(live) if self.untouched(&live.metadata) => continue,
                Some(live) => Some(live.metadata.clone()),
                // Without our label, or not there at all.
                None => api.get_metadata_opt(&name).await?.map(|live| live.metadata),
            };
            let after = api
                .patch(
                    &name,
                    &PatchParams::apply(MANAGER).force(),
                    &Patch::Apply(crd),
                )
                .await?
                .metadata;
            if before.is_some_and(|before| before.resource_version != after.resource_version) {
                reverted.push(name);
            }
            if let (Some(uid), Some(version)) = (after.uid, after.resource_version) {
                self.0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(uid, version);
            }
        }
        Ok(reverted)
    }

    fn untouched(&self, live: &ObjectMeta) -> bool {
        let Some(uid) = &live.uid else { return false };
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(uid)
            .is_some_and(|version| Some(version) == live.resource_version.as_ref())
    }

    /// As [`Self::apply`], its result as the decision takes it.
    pub async fn outcome(&self, client: &Client) -> Crds {
        match self.apply(client).await {
            Ok(reverted) => Crds::Applied(reverted),
            Err(error) => Crds::Failed(error.to_string()),
        }
    }
}

/// Applies the definitions to the hub and waits until it serves them: without them not even
/// ProtectionZones can be watched. Tries for ever; returns false when the process shuts down first.
pub async fn bootstrap(process: &Process, definitions: &Definitions) -> bool {
    let mut failures = 0_u32;
    loop {
        let attempt = async {
            definitions.apply(&process.client).await?;
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
    for crd in WANTED.iter() {
        let name = crd.name_any();
        let live = api.get_opt(&name).await?;
        let conditions = live
            .and_then(|crd| crd.status)
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        if !conditions
            .iter()
            .any(|c| c.type_ == "Established" && c.status == "True")
        {
            waiting.push(name);
        }
    }
    Ok(waiting)
}

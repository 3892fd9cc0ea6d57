//! Helm's record of what a stack consists of: `helm list`, `helm get manifest` and `helm uninstall` work on
//! what the controller installed, and an upgrade takes away what the new chart has no more.

use farshore_chart::record::{Record, RecordError, Status};
use farshore_runtime::apply;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use serde_json::Value;

use crate::MANAGER;
use crate::stack::{self, Wanted};

/// Why a release's record could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The cluster did not do what was asked.
    #[error("the record of Helm release {release}: {source}")]
    Api {
        /// Name of the release.
        release: String,
        /// What the cluster said.
        source: Box<kube::Error>,
    },
    /// A record is there that nobody can read.
    #[error("{0}; delete it, and the release is recorded anew")]
    Unreadable(#[from] RecordError),
}

/// Keeps the record of a release whose objects have been applied: a new revision where it differs from
/// the last one, after the objects that only the last one has were deleted.
pub async fn keep(
    client: &Client,
    wanted: &Wanted,
    zone: &str,
    now: Timestamp,
) -> Result<(), ReleaseError> {
    let mut revisions = revisions(client, wanted).await?;
    let new = Record::first(
        &wanted.chart,
        &wanted.release,
        &wanted.values,
        &wanted.manifests,
        &now.to_string(),
    );
    let failed = |source| ReleaseError::Api {
        release: wanted.release.name.clone(),
        source: Box::new(source),
    };
    let last = revisions.last().map(|kept| &kept.record);
    if !last.is_some_and(|last| last.is_deployed() && last.installs_the_same_as(&new)) {
        let new = match last {
            Some(last) => {
                let gone = gone(&last.manifests()?, &wanted.manifests);
                stack::uninstall(client, &gone, zone)
                    .await
                    .map_err(failed)?;
                new.after(last)
            }
            None => new,
        };
        let (record, found) = (new, false);
        revisions.push(Kept { record, found });
    }
    // The newest first: whoever dies in between leaves two that are deployed, of which Helm takes the
    // later one, as the next look does.
    for (age, kept) in revisions.into_iter().rev().enumerate() {
        let wanted = match age {
            0 if kept.found => continue,
            0 => kept.record,
            _ if kept.record.is_deployed() => kept.record.with(Status::Superseded),
            _ => continue,
        };
        let secret = wanted.secret();
        apply::ensure_value(&stack::api(client, &secret), MANAGER, &secret)
            .await
            .map_err(failed)?;
    }
    Ok(())
}

/// A revision, and whether Helm finds it as it is: its Secret is there, and labelled.
struct Kept {
    record: Record,
    found: bool,
}

/// Removes the record of a release, the last revision first: what is left is found by the next look.
pub async fn forget(client: &Client, wanted: &Wanted) -> Result<(), ReleaseError> {
    let secrets = secrets(client, wanted);
    for kept in revisions(client, wanted).await?.iter().rev() {
        apply::delete_if_present(&secrets, &kept.record.secret_name())
            .await
            .map_err(|source| ReleaseError::Api {
                release: wanted.release.name.clone(),
                source: Box::new(source),
            })?;
    }
    Ok(())
}

fn secrets(client: &Client, wanted: &Wanted) -> Api<Secret> {
    Api::namespaced(client.clone(), &wanted.release.namespace)
}

/// All revisions, the first first. Asked for by name, one after the other: to list the Secrets of a
/// namespace is a right that nothing else here needs.
async fn revisions(client: &Client, wanted: &Wanted) -> Result<Vec<Kept>, ReleaseError> {
    let secrets = secrets(client, wanted);
    let mut all = Vec::new();
    loop {
        let name = Record::secret_name_of(&wanted.release.name, all.len() as u64 + 1);
        let found = secrets
            .get_opt(&name)
            .await
            .map_err(|source| ReleaseError::Api {
                release: wanted.release.name.clone(),
                source: Box::new(source),
            })?;
        let Some(secret) = found else {
            return Ok(all);
        };
        let secret = serde_json::to_value(secret).unwrap_or_default();
        let record = Record::read(&secret)?;
        let labels = &secret["metadata"]["labels"];
        let wanted = record.labels();
        let found = wanted
            .as_object()
            .is_some_and(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value));
        all.push(Kept { record, found });
    }
}

/// The objects of an earlier revision that the new one does not have.
fn gone(earlier: &[Value], new: &[Value]) -> Vec<Value> {
    let identity = |manifest: &Value| {
        let group = manifest["apiVersion"].as_str().unwrap_or_default();
        let group = group.split_once('/').map_or("", |(group, _)| group);
        let metadata = &manifest["metadata"];
        (
            group.to_owned(),
            manifest["kind"].clone(),
            metadata["namespace"].clone(),
            metadata["name"].clone(),
        )
    };
    let stays = |manifest: &&Value| new.iter().any(|n| identity(n) == identity(manifest));
    earlier.iter().filter(|m| !stays(m)).cloned().collect()
}

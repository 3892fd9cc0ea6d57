//! The exclusivity claim: two annotations on the product's namespace of a workload cluster, written
//! with optimistic concurrency and never taken from anybody [S1].

use std::collections::BTreeMap;

use farshore_api::meta::{WORKLOAD_NAMESPACE, annotations};
use farshore_core::zone::{self, Claim};
use farshore_runtime::apply;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::MANAGER;

/// Tries against others who write the namespace at the same time.
const TRIES: usize = 5;

/// Who claims.
pub struct Owner<'a> {
    /// Name of the zone.
    pub zone: &'a str,
    /// UID of its namespace.
    pub namespace_uid: &'a str,
}

/// Claims a cluster if it is free; creates the namespace if there is none. Returns whose the claim
/// is then, and whether this call wrote it.
pub async fn take(client: &Client, owner: &Owner<'_>) -> kube::Result<(Claim, bool)> {
    let api: Api<Namespace> = Api::all(client.clone());
    let mut conflict = None;
    for _ in 0..TRIES {
        let found = api.get_opt(WORKLOAD_NAMESPACE).await?;
        let written = match found {
            None => {
                let params = PostParams {
                    field_manager: Some(MANAGER.into()),
                    ..PostParams::default()
                };
                api.create(&params, &namespace(owner)).await
            }
            Some(live) => match zone::claim(
                live.annotations(),
                live.metadata.deletion_timestamp.is_some(),
                owner.namespace_uid,
            ) {
                Claim::Free => {
                    apply::merge(&api, WORKLOAD_NAMESPACE, MANAGER, &patch(owner, &live)).await
                }
                other => return Ok((other, false)),
            },
        };
        match written {
            Ok(_) => return Ok((Claim::Held, true)),
            Err(error @ kube::Error::Api(_)) if code(&error) == 409 => conflict = Some(error),
            Err(error) => return Err(error),
        }
    }
    // Somebody wrote each time between the read and the write: the next cycle looks again.
    match conflict {
        Some(error) => Err(error),
        None => Ok((Claim::Free, false)),
    }
}

/// Removes the claim, if it is ours.
pub async fn give_back(client: &Client, owner: &Owner<'_>) -> kube::Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    for _ in 0..TRIES {
        let Some(live) = api.get_opt(WORKLOAD_NAMESPACE).await? else {
            return Ok(());
        };
        if live
            .annotations()
            .get(annotations::OWNER_ZONE_NAMESPACE_UID)
            .map(String::as_str)
            != Some(owner.namespace_uid)
        {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "resourceVersion": live.resource_version(),
            "annotations": { annotations::OWNER_ZONE_NAMESPACE_UID: null, annotations::OWNER_ZONE: null },
        }});
        match apply::merge(&api, WORKLOAD_NAMESPACE, MANAGER, &patch).await {
            Err(error @ kube::Error::Api(_)) if code(&error) == 409 => {}
            result => return result.map(|_| ()),
        }
    }
    Err(kube::Error::Service(format!("Namespace {WORKLOAD_NAMESPACE} was changed by others {TRIES} times while its claim was to be removed").into()))
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// Labels of the namespace: its pods are privileged, which Pod Security must be told.
fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([
        (crate::crds::LABEL.0.into(), crate::crds::LABEL.1.into()),
        (
            "pod-security.kubernetes.io/enforce".into(),
            "privileged".into(),
        ),
    ])
}

fn claims(owner: &Owner<'_>) -> BTreeMap<String, String> {
    BTreeMap::from([
        (
            annotations::OWNER_ZONE_NAMESPACE_UID.into(),
            owner.namespace_uid.into(),
        ),
        (annotations::OWNER_ZONE.into(), owner.zone.into()),
    ])
}

fn namespace(owner: &Owner<'_>) -> Namespace {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(WORKLOAD_NAMESPACE.into());
    namespace.metadata.labels = Some(labels());
    namespace.metadata.annotations = Some(claims(owner));
    namespace
}

fn patch(owner: &Owner<'_>, live: &Namespace) -> Value {
    json!({ "metadata": { "resourceVersion": live.resource_version(), "labels": labels(), "annotations": claims(owner) } })
}

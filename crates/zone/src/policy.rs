//! The default replication policy of a zone: created once; afterwards its users own it [S1].

use std::collections::BTreeMap;

use farshore_api::meta::labels;
use farshore_api::replication_policy::{DRBDReplicationPolicy, DRBDReplicationPolicySpec};
use farshore_api::{ProtectionZone, names};
use farshore_core::zone::conclude::Policy;
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt};

use crate::MANAGER;

/// Creates the policy, if there is none.
pub async fn ensure(client: &Client, zone: &ProtectionZone) -> Policy {
    match try_ensure(client, zone).await {
        Ok(true) => Policy::Ready,
        Ok(false) => Policy::NotDefault,
        Err(error) => Policy::Failed(error.to_string()),
    }
}

async fn try_ensure(client: &Client, zone: &ProtectionZone) -> kube::Result<bool> {
    let api: Api<DRBDReplicationPolicy> =
        Api::namespaced(client.clone(), &zone.namespace().unwrap_or_default());
    let name = names::default_policy(&zone.name_any());
    if let Some(live) = api.get_opt(&name).await? {
        return Ok(live.spec.is_default);
    }
    let seed = zone.spec.default_policy.clone().unwrap_or_default();
    let mut policy = DRBDReplicationPolicy::new(
        &name,
        DRBDReplicationPolicySpec {
            is_default: true,
            ..seed
        },
    );
    policy.metadata.labels = Some(BTreeMap::from([(labels::ZONE.into(), zone.name_any())]));
    policy.metadata.owner_references = zone.controller_owner_ref(&()).map(|owner| vec![owner]);
    let params = PostParams {
        field_manager: Some(MANAGER.into()),
        ..PostParams::default()
    };
    api.create(&params, &policy)
        .await
        .map(|created| created.spec.is_default)
}

//! Reads what a group needs, in the order that keeps a stale decision from being written: mirrors,
//! then the lock, then the requests.

use std::collections::BTreeMap;

use farshore_api::zone::ZoneCluster;
use farshore_api::{ProtectionGroup, ProtectionRequest, ReplicationGroupStatus, names};
use farshore_core::Seen;
use farshore_core::group::hub::Observed;
use farshore_runtime::controller::{During, ReconcileError};
use farshore_runtime::remote::{LOOK_LIMIT, look};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::hub::Hub;
use crate::protection::{Remotes, failovers};

/// Reads everything about the group of this name; `None` when it is gone.
pub async fn observe(
    hub: &Hub,
    name: &str,
    trouble: Option<String>,
) -> Result<Option<(Observed, Remotes)>, ReconcileError> {
    let groups = hub.api::<ProtectionGroup>();
    let doing = format!("reading ProtectionGroup {}/{name}", hub.namespace);
    let Some(group) = groups.get_opt(name).await.during(doing)? else {
        return Ok(None);
    };
    let zone = hub.read_zone().await?;
    let clusters = zone.as_ref().map_or(&[][..], |z| &z.spec.clusters);
    let looks = clusters.iter().map(|cluster| mirror(hub, cluster, name));
    let mut mirrors = BTreeMap::new();
    let mut remotes = Remotes::new();
    for (cluster, (mirror, client)) in clusters.iter().zip(futures::future::join_all(looks).await) {
        mirrors.insert(cluster.name.clone(), mirror);
        remotes.extend(client.map(|c| (cluster.name.clone(), c)));
    }

    let lock = names::failover_lock(name);
    let lease = hub
        .api::<Lease>()
        .get_opt(&lock)
        .await
        .during(format!("reading Lease {}/{lock}", hub.namespace))?;
    let failovers = failovers(hub, name).await?;
    let requests = requests(hub, &group).await?;
    let mut others = groups
        .list(&ListParams::default())
        .await
        .during("listing ProtectionGroups")?
        .items;
    others.retain(|g| g.name_any() != name);
    let health = names::replication_status(name);
    let replication = hub.api::<ReplicationGroupStatus>().get_opt(&health).await;
    let replication = replication.during(format!(
        "reading ReplicationGroupStatus {}/{health}",
        hub.namespace
    ))?;
    let seen = Observed {
        group,
        zone,
        mirrors,
        lease,
        failovers,
        requests,
        others,
        replication,
        trouble,
    };
    Ok(Some((seen, remotes)))
}

async fn mirror(
    hub: &Hub,
    cluster: &ZoneCluster,
    name: &str,
) -> (Seen<ProtectionGroup>, Option<Client>) {
    match hub.reach(cluster).await {
        Seen::Present(client) => {
            let api: Api<ProtectionGroup> =
                Api::namespaced(client.clone(), &names::zone_namespace(&hub.zone));
            (look(api.get_opt(name), LOOK_LIMIT).await, Some(client))
        }
        Seen::Absent => (Seen::Unknown("no client".into()), None),
        Seen::Unknown(why) => (Seen::Unknown(why), None),
    }
}

/// The requests that the members name. Only a member that names its VM needs all of them.
async fn requests(
    hub: &Hub,
    group: &ProtectionGroup,
) -> Result<Vec<ProtectionRequest>, ReconcileError> {
    let api = hub.api::<ProtectionRequest>();
    let members = &group.spec.members;
    if members.iter().any(|m| m.vm_ref.is_some()) {
        let all = api
            .list(&ListParams::default())
            .await
            .during("listing ProtectionRequests")?
            .items;
        let named = |r: &ProtectionRequest| {
            let (name, vm) = (r.name_any(), r.vm());
            members.iter().any(|m| {
                m.protection_request_ref.as_ref() == Some(&name) || m.vm_ref.as_ref() == Some(&vm)
            })
        };
        return Ok(all.into_iter().filter(named).collect());
    }
    let mut found = Vec::new();
    for name in members
        .iter()
        .filter_map(|m| m.protection_request_ref.as_ref())
    {
        let doing = format!("reading ProtectionRequest {}/{name}", hub.namespace);
        found.extend(api.get_opt(name).await.during(doing)?);
    }
    Ok(found)
}

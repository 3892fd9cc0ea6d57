//! Reads what a protection needs. The VM is read before its instance: "halted, and no instance"
//! cannot be the moment before an instance appears then.

use std::collections::{BTreeMap, BTreeSet};

use farshore_api::meta::labels;
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::zone::ZoneCluster;
use farshore_api::{
    DRBDReplicationPolicy, DRBDResource, DRBDVolume, FailoverRequest, ProtectionGroup,
    ProtectionRequest, VmRef, names,
};
use farshore_core::protection::{Observed, Side, disks};
use farshore_core::vm::Source;
use farshore_core::{Seen, group};
use farshore_runtime::controller::{During, ReconcileError};
use farshore_runtime::remote::{LOOK_LIMIT, look, look_list};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::hub::Hub;
use crate::kubevirt;

/// Clients of the clusters that could be reached.
pub type Remotes = BTreeMap<String, Client>;

/// What has to be looked at in the request's phase.
struct Needs {
    /// The disks are being checked and ports chosen.
    validating: bool,
    /// Something is being created or removed.
    building: bool,
    deleting: bool,
    /// The pair is settled: whether the source's disks were grown is looked at.
    settled: bool,
}

impl Needs {
    fn of(request: &ProtectionRequest) -> Self {
        use ProtectionPhase::{CreatingDRBD, Degraded, Failed, Protected, Validating};
        let phase = request.status.as_ref().and_then(|s| s.phase);
        let deleting = request.metadata.deletion_timestamp.is_some();
        Self {
            validating: !deleting && matches!(phase, Some(Validating | Failed)),
            building: deleting || phase == Some(CreatingDRBD),
            deleting,
            settled: matches!(phase, Some(Protected | Degraded)),
        }
    }
}

/// The other requests of the namespace.
pub async fn others(hub: &Hub, name: &str) -> Result<Vec<ProtectionRequest>, ReconcileError> {
    let doing = format!("listing ProtectionRequests of {}", hub.namespace);
    let mut all = hub
        .api::<ProtectionRequest>()
        .list(&ListParams::default())
        .await
        .during(doing)?
        .items;
    all.retain(|r| r.name_any() != name);
    Ok(all)
}

/// Reads everything about the request of this name; `None` when it is gone.
pub async fn observe(
    hub: &Hub,
    name: &str,
    trouble: Option<String>,
) -> Result<Option<(Observed, Remotes)>, ReconcileError> {
    let doing = format!("reading ProtectionRequest {}/{name}", hub.namespace);
    let Some(request) = hub
        .api::<ProtectionRequest>()
        .get_opt(name)
        .await
        .during(doing)?
    else {
        return Ok(None);
    };
    let zone = hub.read_zone().await?;
    let needs = Needs::of(&request);
    let policies = hub
        .api::<DRBDReplicationPolicy>()
        .list(&ListParams::default())
        .await;
    let policies = policies
        .during(format!(
            "listing DRBDReplicationPolicies of {}",
            hub.namespace
        ))?
        .items;
    let drbd_volumes = drbd_volumes(hub, name).await?;
    let others = if needs.validating {
        others(hub, name).await?
    } else {
        Vec::new()
    };
    let locked_by = if needs.deleting {
        locked_by(hub, &request).await?
    } else {
        None
    };

    let mut seen = Observed {
        zone_namespace_uid: hub.namespace_uid().await?.to_owned(),
        request,
        zone,
        policies,
        others,
        drbd_volumes,
        locked_by,
        sides: BTreeMap::new(),
        trouble,
    };
    let mut remotes = Remotes::new();
    if let Some(zone) = &seen.zone {
        if !worth_looking(&seen) {
            let dark = |c: &ZoneCluster| (c.name.clone(), Side::unreachable("not looked at yet"));
            seen.sides = zone.spec.clusters.iter().map(dark).collect();
            return Ok(Some((seen, remotes)));
        }
        let looks = zone
            .spec
            .clusters
            .iter()
            .map(|cluster| side(hub, &seen, &needs, cluster));
        let found = futures::future::join_all(looks).await;
        for (cluster, (side, client)) in zone.spec.clusters.iter().zip(found) {
            seen.sides.insert(cluster.name.clone(), side);
            remotes.extend(client.map(|c| (cluster.name.clone(), c)));
        }
        if needs.validating || needs.building || seen.sides.values().any(|s| s.resource.is_absent())
        {
            claims(&mut seen, &remotes, |_| true).await;
        } else if needs.settled {
            let source = seen.request.spec.source_cluster.clone();
            claims(&mut seen, &remotes, |cluster| cluster == source).await;
        }
    }
    Ok(Some((seen, remotes)))
}

/// The DRBDVolumes of the request. A name that no label can have is asked for nowhere.
async fn drbd_volumes(hub: &Hub, name: &str) -> Result<Vec<DRBDVolume>, ReconcileError> {
    if !names::fits_label(name) {
        return Ok(Vec::new());
    }
    let of_request =
        ListParams::default().labels(&format!("{}={name}", labels::PROTECTION_REQUEST));
    let found = hub.api::<DRBDVolume>().list(&of_request).await;
    Ok(found.during("listing DRBDVolumes")?.items)
}

/// Whether the workload clusters matter: not before the zone is validated, and not for a request
/// that has only just been made.
fn worth_looking(seen: &Observed) -> bool {
    let phase = seen.request.status.as_ref().and_then(|s| s.phase);
    phase.is_some_and(|p| p != ProtectionPhase::Pending)
        || seen.request.metadata.deletion_timestamp.is_some()
}

/// The FailoverRequest that holds a group of this request.
async fn locked_by(
    hub: &Hub,
    request: &ProtectionRequest,
) -> Result<Option<String>, ReconcileError> {
    let groups = hub
        .api::<ProtectionGroup>()
        .list(&ListParams::default())
        .await
        .during("listing ProtectionGroups")?;
    for found in groups
        .items
        .iter()
        .filter(|g| group::hub::contains(g, request))
    {
        let name = found.name_any();
        let lock = names::failover_lock(&name);
        let lease = hub
            .api::<Lease>()
            .get_opt(&lock)
            .await
            .during(format!("reading Lease {}/{lock}", hub.namespace))?;
        let failovers = failovers(hub, &name).await?;
        let held = group::hub::locked_by(lease.as_ref(), &failovers, hub.process.clock.now());
        if held.is_some() {
            return Ok(held);
        }
    }
    Ok(None)
}

/// The FailoverRequests of a group.
pub async fn failovers(hub: &Hub, group: &str) -> Result<Vec<FailoverRequest>, ReconcileError> {
    let mut all = hub
        .api::<FailoverRequest>()
        .list(&ListParams::default())
        .await
        .during("listing FailoverRequests")?
        .items;
    all.retain(|f| f.spec.protection_group_ref.name == group);
    Ok(all)
}

fn json(object: DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// Looks at one cluster. When the first look is not answered, no further one is taken.
async fn side(
    hub: &Hub,
    seen: &Observed,
    needs: &Needs,
    cluster: &ZoneCluster,
) -> (Side, Option<Client>) {
    let client = match hub.reach(cluster).await {
        Seen::Present(client) => client,
        Seen::Absent => return (Side::unreachable("no client"), None),
        Seen::Unknown(why) => return (Side::unreachable(&why), None),
    };
    let vm = seen.request.vm();
    let machine = look(
        kubevirt::vms(&client, &vm.namespace).get_opt(&vm.name),
        LOOK_LIMIT,
    )
    .await
    .map(|o| json(o.clone()));
    if let Some(why) = machine.unknown() {
        return (Side::unreachable(why), None);
    }
    let vmi = look(
        kubevirt::instances(&client, &vm.namespace).get_opt(&vm.name),
        LOOK_LIMIT,
    )
    .await
    .map(|o| json(o.clone()));
    let name = names::drbd_resource(&seen.zone_namespace_uid, &vm);
    let resources: Api<DRBDResource> = Api::namespaced(client.clone(), &vm.namespace);
    let resource = look(resources.get_opt(&name), LOOK_LIMIT).await;
    // What is not looked at counts as there and in order: nothing is done about it.
    let building = needs.building || resource.is_absent();
    let mut side = Side {
        pvcs: BTreeMap::new(),
        migrations: Seen::Present(Vec::new()),
        storage_classes: Seen::Present(Vec::new()),
        ports: Seen::Present(Vec::new()),
        namespace: Seen::Present(()),
        secret: Seen::Present(()),
        mirrored: Seen::Present(false),
        vm: machine,
        vmi,
        resource,
    };
    if needs.validating {
        side.migrations = migrations(&client, &vm).await;
        let classes: Api<StorageClass> = Api::all(client.clone());
        let classes = look_list(classes.list(&ListParams::default()), LOOK_LIMIT).await;
        side.storage_classes = classes.map(|all| all.iter().map(ResourceExt::name_any).collect());
        side.ports = ports(&client, &hub.zone).await;
    }
    if needs.deleting {
        side.mirrored = mirrored(&client, &hub.zone, &vm).await;
    }
    if building && !needs.validating {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        side.namespace = look(namespaces.get_opt(&vm.namespace), LOOK_LIMIT)
            .await
            .map(|_| ());
    }
    if !needs.validating {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &vm.namespace);
        side.secret = look(
            secrets.get_metadata_opt(&names::shared_secret(&name)),
            LOOK_LIMIT,
        )
        .await
        .map(|_| ());
    }
    (side, Some(client))
}

/// Looks at the PVCs of the disks on these sides: those that were chosen, else those that the VM names.
async fn claims(seen: &mut Observed, remotes: &Remotes, on: impl Fn(&str) -> bool) {
    let chosen = seen
        .request
        .status
        .iter()
        .flat_map(|s| &s.volumes)
        .map(|v| v.pvc.clone());
    let mut names: BTreeSet<String> = chosen.collect();
    if names.is_empty() {
        let machines = seen.sides.values().filter_map(|s| s.vm.present());
        let claim = |v: farshore_core::vm::Volume| match v.source {
            Source::Claim(claim) => Some(claim),
            Source::Hotplugged | Source::Other(_) => None,
        };
        names = machines
            .flat_map(disks::unprotected_volumes)
            .filter_map(claim)
            .collect();
    }
    let namespace = seen.request.spec.vm_namespace.clone();
    for (cluster, side) in &mut seen.sides {
        let Some(client) = remotes.get(cluster).filter(|_| on(cluster)) else {
            continue;
        };
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
        let looks = names
            .iter()
            .map(|name| look(claims.get_opt(name), LOOK_LIMIT));
        let found = futures::future::join_all(looks).await;
        side.pvcs.extend(names.iter().cloned().zip(found));
    }
}

/// Names of the VM's migrations that have not ended. A cluster that does not serve the kind has none.
async fn migrations(client: &Client, vm: &VmRef) -> Seen<Vec<String>> {
    let api = kubevirt::migrations(client, &vm.namespace);
    let listed = async {
        match api.list(&ListParams::default()).await {
            Ok(list) => Ok(Some(list.items)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Some(Vec::new())),
            Err(error) => Err(error),
        }
    };
    let all = look(listed, LOOK_LIMIT).await;
    all.map(|all| {
        let open = all.iter().filter(|m| {
            let ended = matches!(
                m.data["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            );
            m.data["spec"]["vmiName"] == vm.name.as_str() && !ended
        });
        open.map(ResourceExt::name_any).collect()
    })
}

/// Ports of the zone's DRBDResources, with who holds each.
async fn ports(client: &Client, zone: &str) -> Seen<Vec<(String, i32)>> {
    let all: Api<DRBDResource> = Api::all(client.clone());
    let of_zone = ListParams::default().labels(&format!("{}={zone}", labels::ZONE));
    let found = look_list(all.list(&of_zone), LOOK_LIMIT).await;
    found.map(|all| {
        let held = |r: &DRBDResource| {
            let holder = format!("{}/{}", r.namespace().unwrap_or_default(), r.name_any());
            r.spec
                .volumes
                .iter()
                .map(|v| (holder.clone(), v.port))
                .collect::<Vec<_>>()
        };
        all.iter().flat_map(held).collect()
    })
}

/// Whether a mirror on this cluster lists the VM.
async fn mirrored(client: &Client, zone: &str, vm: &VmRef) -> Seen<bool> {
    let mirrors: Api<ProtectionGroup> =
        Api::namespaced(client.clone(), &names::zone_namespace(zone));
    let ours = ListParams::default().labels(&format!("{}=true", labels::MIRROR));
    let found = look_list(mirrors.list(&ours), LOOK_LIMIT).await;
    found.map(|all| {
        all.iter()
            .any(|g| g.spec.members.iter().any(|m| m.vm_ref.as_ref() == Some(vm)))
    })
}

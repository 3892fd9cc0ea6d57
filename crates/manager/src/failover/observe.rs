//! Reads the world for one failover: fresh, and on each cluster in an order that makes what is
//! seen later still hold for what was seen before.

use std::collections::{BTreeMap, BTreeSet};

use farshore_api::failover_request::FailoverState;
use farshore_api::meta::labels;
use farshore_api::zone::{SafetyCheckScope, ZoneCluster};
use farshore_api::{
    DRBDResource, FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone, VmRef, names,
};
use farshore_core::Seen;
use farshore_core::failover::{
    Needs, Neighbour, Observed, Side, first_ahead, hooks, lock, needs, resolve_members,
};
use farshore_runtime::controller::{During, ReconcileError};
use farshore_runtime::remote::{self, LOOK_LIMIT, look_list};
use futures::future::join_all;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PartialObjectMeta};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};

use super::FailoverController;
use crate::kubevirt;

/// Everything that the decision needs. An error means that the hub did not answer; a workload
/// cluster that does not answer is Unknown.
pub(super) async fn look(
    controller: &FailoverController,
    request: FailoverRequest,
    trouble: Option<String>,
) -> Result<Observed, ReconcileError> {
    let (hub, namespace) = (&controller.hub, controller.namespace.as_str());
    let needs = needs(
        request.status.as_ref().and_then(|s| s.state),
        request.spec.queue,
    );
    let group_name = request.spec.protection_group_ref.name.clone();

    let zones: Api<ProtectionZone> = Api::namespaced(hub.clone(), namespace);
    let zone = zones.get(&controller.zone).await.during(format!(
        "reading ProtectionZone {namespace}/{}",
        controller.zone
    ))?;
    let leases: Api<Lease> = Api::namespaced(hub.clone(), namespace);
    let lease_name = names::failover_lock(&group_name);
    let lease = leases
        .get_opt(&lease_name)
        .await
        .during(format!("reading Lease {namespace}/{lease_name}"))?;

    let target_name = request.spec.target_cluster.clone();
    let mut seen = Observed {
        group: None,
        members: vec![],
        former: vec![],
        unresolved: vec![],
        others: BTreeMap::new(),
        ahead: None,
        source: Side::unknown("", "it was not looked at"),
        target: Side::unknown(&target_name, "it was not looked at"),
        nodes: BTreeMap::new(),
        neighbours: Seen::Unknown("they were not looked at".into()),
        standby: Seen::Unknown("it was not looked at".into()),
        jobs: BTreeMap::new(),
        request,
        zone,
        lease,
        trouble,
    };
    if !needs.clusters {
        return Ok(seen);
    }
    let groups: Api<ProtectionGroup> = Api::namespaced(hub.clone(), namespace);
    seen.group = groups
        .get_opt(&group_name)
        .await
        .during(format!("reading ProtectionGroup {namespace}/{group_name}"))?;
    let holder = lock::standing(seen.lease.as_ref(), seen.uid(), controller.clock.now());
    let stored = seen.request.status.as_ref().and_then(|s| s.state);
    let pending = matches!(stored, None | Some(FailoverState::Pending));
    let of_another = matches!(
        holder,
        lock::Standing::Held { .. } | lock::Standing::Expired { .. }
    );
    if pending || of_another {
        let all = others(hub, namespace).await?;
        seen.ahead = first_ahead(&seen.request, &all);
        seen.others = all
            .into_iter()
            .filter_map(|r| Some((r.uid()?, r.name_any())))
            .collect();
    }
    if let Some(group) = &seen.group {
        let requests: Api<ProtectionRequest> = Api::namespaced(hub.clone(), namespace);
        let all = requests
            .list(&ListParams::default())
            .await
            .during(format!("listing ProtectionRequests in {namespace}"))?;
        (seen.members, seen.unresolved) = resolve_members(group, &all.items);
        seen.former = former_members(&seen, all.items);
    }
    let clusters = seen.zone.spec.clusters.clone();
    let target = clusters.iter().find(|c| c.name == target_name);
    let source = clusters.iter().find(|c| c.name != target_name);
    if let (Some(source), Some(target)) = (source, target) {
        seen.source.cluster = source.name.clone();
        // A request that waits for somebody else's lock has no business on the clusters yet.
        if !matches!(holder, lock::Standing::Held { .. }) {
            let of_target = look_at_target(controller, &seen, needs, target);
            let (of_source, of_target) =
                futures::join!(side(controller, source, &group_name), of_target);
            seen.source = of_source;
            of_target.put_into(&mut seen);
        }
    }
    Ok(seen)
}

/// Requests of VMs that the failover began with and the group no longer names.
fn former_members(seen: &Observed, all: Vec<ProtectionRequest>) -> Vec<ProtectionRequest> {
    let stored = seen.request.status.as_ref();
    let began_with: BTreeSet<VmRef> = stored
        .into_iter()
        .flat_map(|s| &s.vm_statuses)
        .map(|vm| VmRef {
            namespace: vm.vm_namespace.clone(),
            name: vm.vm_name.clone(),
        })
        .collect();
    let named: BTreeSet<VmRef> = seen.members.iter().map(|m| m.vm()).collect();
    all.into_iter()
        .filter(|r| began_with.contains(&r.vm()) && !named.contains(&r.vm()))
        .collect()
}

/// All FailoverRequests of the namespace.
async fn others(hub: &Client, namespace: &str) -> Result<Vec<FailoverRequest>, ReconcileError> {
    let api: Api<FailoverRequest> = Api::namespaced(hub.clone(), namespace);
    let all = api
        .list(&ListParams::default())
        .await
        .during(format!("listing FailoverRequests in {namespace}"))?;
    Ok(all.items)
}

/// The mirror, then the resources: resources that are seen equal after a mirror was seen stopped
/// hold every write.
async fn side(controller: &FailoverController, cluster: &ZoneCluster, group: &str) -> Side {
    let client = match controller.clusters.client(cluster).await {
        Ok(client) => client,
        Err(why) => return Side::unknown(&cluster.name, &why.to_string()),
    };
    let mirrors: Api<ProtectionGroup> = Api::namespaced(client.clone(), &controller.namespace);
    let mirror = look_one(&mirrors, group).await;
    if let Some(why) = mirror.unknown() {
        // Asking a silent cluster twice only costs time.
        return Side::unknown(&cluster.name, why);
    }
    let resources: Api<DRBDResource> = Api::all(client);
    let of_zone = ListParams::default().labels(&format!("{}={}", labels::ZONE, controller.zone));
    let all = look_list(resources.list(&of_zone), LOOK_LIMIT).await;
    let by_vm = |all: &Vec<DRBDResource>| all.iter().map(|r| (vm_of(r), r.clone())).collect();
    Side {
        cluster: cluster.name.clone(),
        mirror,
        resources: all.map(by_vm),
    }
}

/// What is looked at on the target beside the group itself.
struct Target {
    side: Side,
    nodes: BTreeMap<String, Seen<Node>>,
    neighbours: Option<Seen<Vec<Neighbour>>>,
    standby: Option<Seen<BTreeSet<VmRef>>>,
    jobs: BTreeMap<String, Seen<Job>>,
}

impl Target {
    fn put_into(self, seen: &mut Observed) {
        seen.target = self.side;
        seen.nodes = self.nodes;
        seen.jobs = self.jobs;
        if let Some(neighbours) = self.neighbours {
            seen.neighbours = neighbours;
        }
        if let Some(standby) = self.standby {
            seen.standby = standby;
        }
    }
}

async fn look_at_target(
    controller: &FailoverController,
    seen: &Observed,
    needs: Needs,
    cluster: &ZoneCluster,
) -> Target {
    let mut target = Target {
        side: side(controller, cluster, seen.group_name()).await,
        nodes: BTreeMap::new(),
        neighbours: None,
        standby: None,
        jobs: BTreeMap::new(),
    };
    if target.side.mirror.unknown().is_some() {
        return target;
    }
    let Ok(client) = controller.clusters.client(cluster).await else {
        return target;
    };
    if needs.way_clear {
        let pinned: BTreeSet<String> = seen
            .members
            .iter()
            .filter_map(|m| {
                target
                    .side
                    .resource(&m.vm())
                    .present()?
                    .spec
                    .node_name
                    .clone()
            })
            .collect();
        let api: Api<Node> = Api::all(client.clone());
        let looks = pinned.iter().map(|name| look_one(&api, name));
        target.nodes = pinned.iter().cloned().zip(join_all(looks).await).collect();
        target.neighbours = Some(neighbours(controller, seen, client.clone()).await);
    }
    if needs.standby {
        target.standby = Some(standby(seen, client.clone()).await);
    }
    if let Some(when) = needs.hooks {
        for (index, hook) in hooks::of(seen, when).iter().enumerate() {
            let name = names::hook_job(seen.name(), seen.uid(), when.as_str(), index);
            let api: Api<Job> = Api::namespaced(client.clone(), &hook.namespace);
            let job = look_one(&api, &name).await;
            target.jobs.insert(name, job);
        }
    }
    target
}

/// Other groups on the target, in the scope of the safety check, by their mirrors.
async fn neighbours(
    controller: &FailoverController,
    seen: &Observed,
    client: Client,
) -> Seen<Vec<Neighbour>> {
    let scope = seen.zone.spec.failover.safety_check_scope;
    let api: Api<ProtectionGroup> = match scope {
        SafetyCheckScope::Namespace => Api::namespaced(client.clone(), &controller.namespace),
        SafetyCheckScope::Cluster | SafetyCheckScope::Node => Api::all(client.clone()),
    };
    let mirrors = ListParams::default().labels(&format!("{}=true", labels::MIRROR));
    let groups = match look_list(api.list(&mirrors), LOOK_LIMIT).await {
        Seen::Present(groups) => groups,
        Seen::Absent => vec![],
        Seen::Unknown(why) => return Seen::Unknown(why),
    };
    let mut pinned = BTreeMap::new();
    if scope == SafetyCheckScope::Node {
        let api: Api<DRBDResource> = Api::all(client);
        match look_list(api.list(&ListParams::default()), LOOK_LIMIT).await {
            Seen::Present(all) => {
                pinned.extend(all.into_iter().map(|r| (vm_of(&r), r.spec.node_name)))
            }
            Seen::Absent => {}
            Seen::Unknown(why) => return Seen::Unknown(why),
        }
    }
    let others = groups.into_iter().filter(|g| {
        g.name_any() != seen.group_name() || g.namespace().as_deref() != Some(seen.namespace())
    });
    let neighbour = |group: ProtectionGroup| {
        let node_of = |vm: Option<&VmRef>| pinned.get(vm?).cloned().flatten();
        Neighbour {
            namespace: group.namespace().unwrap_or_default(),
            name: group.name_any(),
            current: group.status.as_ref().and_then(|s| s.current_state),
            nodes: group
                .spec
                .members
                .iter()
                .map(|m| node_of(m.vm_ref.as_ref()))
                .collect(),
        }
    };
    Seen::Present(others.map(neighbour).collect())
}

/// Which of the members' VirtualMachines exist on the target. Only their metadata is read.
async fn standby(seen: &Observed, client: Client) -> Seen<BTreeSet<VmRef>> {
    let wanted: BTreeSet<VmRef> = seen.members.iter().map(|m| m.vm()).collect();
    let namespaces: BTreeSet<&str> = wanted.iter().map(|vm| vm.namespace.as_str()).collect();
    let mut there = BTreeSet::new();
    for namespace in namespaces {
        let api = kubevirt::vms(&client, namespace);
        let list = async { api.list_metadata(&ListParams::default()).await };
        match look_list(list, LOOK_LIMIT).await {
            Seen::Present(all) => there.extend(all.iter().map(
                |vm: &PartialObjectMeta<DynamicObject>| VmRef {
                    namespace: namespace.into(),
                    name: vm.name_any(),
                },
            )),
            Seen::Absent => {}
            Seen::Unknown(why) => return Seen::Unknown(why),
        }
    }
    Seen::Present(there)
}

async fn look_one<K>(api: &Api<K>, name: &str) -> Seen<K>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    remote::look(api.get_opt(name), LOOK_LIMIT).await
}

/// The VM of a resource.
pub(crate) fn vm_of(resource: &DRBDResource) -> VmRef {
    VmRef {
        namespace: resource.namespace().unwrap_or_default(),
        name: resource.spec.vm_ref.name.clone(),
    }
}

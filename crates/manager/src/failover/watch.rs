//! Changes elsewhere that wake a failover. They only save waiting: every round reads afresh, and an
//! active failover looks again by itself.

use std::sync::PoisonError;

use farshore_api::meta::labels;
use farshore_api::{
    DRBDResource, FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone, VmRef,
};
use farshore_runtime::remote::{self, Clusters};
use farshore_runtime::{Process, triggers};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};

use super::{Active, Touches, observe};

type Refs = Vec<ObjectRef<FailoverRequest>>;

impl Active {
    fn which(&self, namespace: &str, concerned: impl Fn(&str, &Touches) -> bool) -> Refs {
        let active = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hits = active
            .iter()
            .filter(|(name, touches)| concerned(name, touches));
        hits.map(|(name, _)| ObjectRef::new(name).within(namespace))
            .collect()
    }

    fn of_group(&self, namespace: &str, group: &str) -> Refs {
        self.which(namespace, |_, touches| touches.group == group)
    }

    fn of_vm(&self, namespace: &str, vm: &VmRef) -> Refs {
        self.which(namespace, |_, touches| touches.vms.contains(vm))
    }
}

/// Requests to look at again, whenever something that they touch changes.
pub(super) fn triggers(
    process: &Process,
    zone: &ProtectionZone,
    clusters: &Clusters,
    active: Active,
) -> BoxStream<'static, ObjectRef<FailoverRequest>> {
    let namespace = zone.namespace().unwrap_or_default();
    let hub = process.client.clone();
    let any = watcher::Config::default;
    let mut all: Vec<BoxStream<'static, ObjectRef<FailoverRequest>>> = Vec::new();

    // The end of one request is the beginning of the next on the same group.
    let (a, ns) = (active.clone(), namespace.clone());
    let map = move |request: &FailoverRequest| {
        let (own, group) = (request.name_any(), &request.spec.protection_group_ref.name);
        a.which(&ns, |name, touches| name != own && touches.group == *group)
    };
    let requests: Api<FailoverRequest> = Api::namespaced(hub.clone(), &namespace);
    all.push(triggers::refs(
        requests,
        any(),
        map,
        process.shutdown.clone(),
    ));

    let (a, ns) = (active.clone(), namespace.clone());
    let map = move |group: &ProtectionGroup| a.of_group(&ns, &group.name_any());
    let groups: Api<ProtectionGroup> = Api::namespaced(hub.clone(), &namespace);
    all.push(triggers::refs(groups, any(), map, process.shutdown.clone()));

    let (a, ns) = (active.clone(), namespace.clone());
    let map = move |request: &ProtectionRequest| a.of_vm(&ns, &request.vm());
    let members: Api<ProtectionRequest> = Api::namespaced(hub, &namespace);
    all.push(triggers::refs(
        members,
        any(),
        map,
        process.shutdown.clone(),
    ));

    let of_zone = format!("{}={}", labels::ZONE, zone.name_any());
    for cluster in &zone.spec.clusters {
        let (a, ns) = (active.clone(), namespace.clone());
        let map = move |mirror: &ProtectionGroup| a.of_group(&ns, &mirror.name_any());
        let ns = namespace.clone();
        let mirrors = move |client| Api::namespaced(client, &ns);
        all.push(remote::refs(
            clusters.clone(),
            cluster.clone(),
            mirrors,
            any(),
            map,
            process.shutdown.clone(),
        ));

        let (a, ns) = (active.clone(), namespace.clone());
        let map = move |resource: &DRBDResource| a.of_vm(&ns, &observe::vm_of(resource));
        all.push(remote::refs(
            clusters.clone(),
            cluster.clone(),
            Api::all,
            any().labels(&of_zone),
            map,
            process.shutdown.clone(),
        ));
    }
    stream::select_all(all).boxed()
}

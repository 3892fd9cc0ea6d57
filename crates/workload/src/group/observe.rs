//! Reads what the local group decision needs.

use std::collections::{BTreeMap, BTreeSet};

use farshore_api::meta::labels;
use farshore_api::{DRBDResource, ProtectionGroup, VmRef};
use farshore_core::group::local::{self, Instance, Observed};
use farshore_runtime::controller::{During, ReconcileError};
use jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::{Config, kubevirt};

/// Reads the VMs of a mirror. A namespace at a time: three lists however many members it has.
pub async fn observe(
    client: &Client,
    config: &Config,
    group: ProtectionGroup,
) -> Result<Observed, ReconcileError> {
    let mut members = local::members(&group);
    let zone = group.labels().get(labels::ZONE).cloned();
    let namespaces: BTreeSet<String> = members.iter().map(|m| m.vm.namespace.clone()).collect();
    for namespace in namespaces {
        // VMs before instances: see Member::object.
        let vms = by_name(
            list(
                kubevirt::vms(client, &namespace),
                "VirtualMachines",
                &namespace,
            )
            .await?,
        );
        let instances = by_name(
            list(
                kubevirt::instances(client, &namespace),
                "VirtualMachineInstances",
                &namespace,
            )
            .await?,
        );
        let resources = resources(client, &namespace, zone.as_deref()).await?;
        for member in members.iter_mut().filter(|m| m.vm.namespace == namespace) {
            member.object = match vms.get(&member.vm.name) {
                Some(vm) => {
                    Some(serde_json::to_value(vm).map_err(|e| ReconcileError::new(e.to_string()))?)
                }
                None => None,
            };
            member.instance = instances.get(&member.vm.name).map(instance);
            member.resource = resources.get(&member.vm).cloned();
        }
    }
    Ok(Observed {
        group,
        cluster: config.cluster.clone(),
        members,
    })
}

/// Objects of a namespace; none while the cluster does not know the kind.
async fn list(
    api: Api<DynamicObject>,
    what: &str,
    namespace: &str,
) -> Result<Vec<DynamicObject>, ReconcileError> {
    match api.list(&ListParams::default()).await {
        Ok(list) => Ok(list.items),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(error).during(format!("listing {what} of namespace {namespace}")),
    }
}

fn by_name(objects: Vec<DynamicObject>) -> BTreeMap<String, DynamicObject> {
    objects.into_iter().map(|o| (o.name_any(), o)).collect()
}

async fn resources(
    client: &Client,
    namespace: &str,
    zone: Option<&str>,
) -> Result<BTreeMap<VmRef, DRBDResource>, ReconcileError> {
    let api: Api<DRBDResource> = Api::namespaced(client.clone(), namespace);
    let list = api
        .list(&ListParams::default())
        .await
        .during(format!("listing DRBDResources of namespace {namespace}"))?;
    let ours = list
        .items
        .into_iter()
        .filter(|r| zone.is_none_or(|z| r.spec.zone == z));
    Ok(ours
        .map(|r| {
            (
                VmRef {
                    namespace: namespace.into(),
                    name: r.spec.vm_ref.name.clone(),
                },
                r,
            )
        })
        .collect())
}

fn instance(object: &DynamicObject) -> Instance {
    let text = |path: &str| {
        object
            .data
            .pointer(path)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let phase = text("/status/phase").unwrap_or_else(|| "Pending".into());
    let ready = ready(&object.data);
    let is_ready = ready.map(|r| r["status"] == "True");
    let turned = ready
        .filter(|_| is_ready == Some(true))
        .and_then(|r| moment(&r["lastTransitionTime"]));
    let phases = object
        .data
        .pointer("/status/phaseTransitionTimestamps")
        .and_then(Value::as_array);
    let running = phases
        .into_iter()
        .flatten()
        .find(|p| p["phase"] == "Running")
        .and_then(|p| moment(&p["phaseTransitionTimestamp"]));
    Instance {
        phase,
        node: text("/status/nodeName").filter(|n| !n.is_empty()),
        ready: is_ready,
        since: turned
            .or(running)
            .or(object.metadata.creation_timestamp.as_ref().map(|t| t.0)),
        deleting: object.metadata.deletion_timestamp.is_some(),
        message: local::complaint(&object.data),
    }
}

/// The condition Ready of an instance.
pub(super) fn ready(instance: &Value) -> Option<&Value> {
    instance
        .pointer("/status/conditions")?
        .as_array()?
        .iter()
        .find(|c| c["type"] == "Ready")
}

fn moment(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

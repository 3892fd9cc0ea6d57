//! Objects and people.

use farshore_api::{
    DRBDReplicationPolicy, DRBDResource, FailoverRequest, ProtectionGroup, ProtectionRequest,
    ProtectionZone, TestFailover,
};
use farshore_core::Seen;
use farshore_core::admission::{Asked, Change, Ours, Requester, Subjects};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub const NS: &str = "dr-metro1";
pub const MANAGER: &str = "system:serviceaccount:dr-metro1:manager-control-plane";
pub const ZONE_CONTROLLER: &str =
    "system:serviceaccount:site-recovery-system:protectionzone-controller";
pub const WORKLOAD: &str =
    "system:serviceaccount:trilio-site-recovery-system:workload-control-plane";
pub const NAMESPACES: &str = "system:serviceaccount:kube-system:namespace-controller";
pub const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// Who the zone's kubeconfig authenticates as on a workload cluster.
pub const REMOTE: &str = "system:serviceaccount:trilio-site-recovery-system:site-recovery";

pub fn parsed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub fn unknown<T>() -> Seen<T> {
    Seen::Unknown("the wire is cut".into())
}

pub fn person() -> Requester {
    user("anna")
}

pub fn user(name: &str) -> Requester {
    Requester {
        username: name.into(),
        groups: vec!["system:authenticated".into()],
    }
}

pub fn on_hub() -> Ours {
    Ours::on_hub(NS, "site-recovery-system")
}

pub fn on_workload() -> Ours {
    Ours::on_workload(Subjects {
        users: [REMOTE.to_string()].into(),
        groups: ["dr-managers".to_string()].into(),
    })
}

fn asked<T>(change: Change<T>, by: Requester) -> Asked<T> {
    Asked {
        change,
        by,
        dry_run: false,
    }
}

pub fn create<T: Clone>(new: &T) -> Asked<T> {
    asked(Change::Create { new: new.clone() }, person())
}

pub fn update<T: Clone>(old: &T, edit: impl FnOnce(&mut T)) -> Asked<T> {
    let mut new = old.clone();
    edit(&mut new);
    let old = old.clone();
    asked(Change::Update { old, new }, person())
}

pub fn delete<T: Clone>(old: &T) -> Asked<T> {
    asked(Change::Delete { old: old.clone() }, person())
}

/// The same question from somebody else.
pub fn by<T>(who: &str, mut asked: Asked<T>) -> Asked<T> {
    asked.by = user(who);
    asked
}

/// An object of the API group with this spec.
fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": NS, "uid": format!("uid-{name}")},
        "spec": spec,
    })
}

/// The object on its way out.
pub fn leaving<T: Clone + serde::Serialize + DeserializeOwned>(of: &T) -> T {
    let mut value = serde_json::to_value(of).unwrap();
    value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:10:00Z");
    value["metadata"]["finalizers"] = json!(["siterecovery.trilio.io/some"]);
    parsed(value)
}

/// The object with this status.
pub fn with_status<T: Clone + serde::Serialize + DeserializeOwned>(of: &T, status: Value) -> T {
    let mut value = serde_json::to_value(of).unwrap();
    value["status"] = status;
    parsed(value)
}

pub fn condition(type_: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

pub fn bare_zone() -> ProtectionZone {
    parsed(object(
        "ProtectionZone",
        "metro1",
        json!({"clusters": [
            {"name": "east", "kubeconfigSecretRef": {"name": "east"}},
            {"name": "west", "kubeconfigSecretRef": {"name": "west"}},
        ]}),
    ))
}

pub fn zone() -> ProtectionZone {
    let told = condition("ClustersValidated", "True", "Validated");
    with_status(&bare_zone(), json!({"conditions": [told]}))
}

pub fn policy(name: &str, default: bool) -> DRBDReplicationPolicy {
    parsed(object(
        "DRBDReplicationPolicy",
        name,
        json!({"isDefault": default}),
    ))
}

/// A new request for the VM of its name.
pub fn request(name: &str) -> ProtectionRequest {
    parsed(object(
        "ProtectionRequest",
        name,
        json!({"vmName": name, "vmNamespace": "shop", "sourceCluster": "east"}),
    ))
}

pub fn in_phase(name: &str, phase: &str) -> ProtectionRequest {
    let volume = |n: &str, port| json!({"name": n, "pvc": n, "sizeBytes": 1, "port": port});
    let volumes = [volume("root", 7000), volume("data", 7001)];
    let status = json!({"phase": phase, "targetCluster": "west", "volumes": volumes});
    with_status(&request(name), status)
}

/// A Degraded request, one of whose DRBDResources was seen gone.
pub fn broken(name: &str) -> ProtectionRequest {
    let told = condition("DRBDCreated", "False", "ResourceMissing");
    let status = json!({"phase": "Degraded", "targetCluster": "west", "conditions": [told]});
    with_status(&request(name), status)
}

pub fn group(name: &str, members: &[&str]) -> ProtectionGroup {
    let members: Vec<Value> = members
        .iter()
        .map(|m| json!({"protectionRequestRef": m}))
        .collect();
    parsed(object("ProtectionGroup", name, json!({"members": members})))
}

pub fn failover(name: &str, target: &str) -> FailoverRequest {
    parsed(object(
        "FailoverRequest",
        name,
        json!({"protectionGroupRef": {"name": "shop"}, "targetCluster": target, "failoverType": "planned"}),
    ))
}

pub fn test(name: &str) -> TestFailover {
    parsed(object(
        "TestFailover",
        name,
        json!({"protectionGroupRef": {"name": "shop"}}),
    ))
}

/// A VM that runs from two disks of its own.
pub fn machine() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "db01", "namespace": "shop", "annotations": {}},
        "spec": {"runStrategy": "Always", "template": {"spec": {"volumes": [
            {"name": "root", "dataVolume": {"name": "root"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "init", "cloudInitNoCloud": {"userData": ""}},
        ]}}},
    })
}

/// The VM under protection: marked, swapped and pinned, as protection does it.
pub fn protected_machine() -> Value {
    let mut vm = machine();
    let volumes: Vec<_> = ["root", "data"]
        .into_iter()
        .map(|n| parsed(json!({"name": n, "pvc": n, "sizeBytes": 1, "port": 7000})))
        .collect();
    farshore_core::protection::disks::mark(&mut vm, "metro1/db01", &Default::default());
    farshore_core::protection::disks::swap(&mut vm, &volumes, "n1");
    vm
}

pub fn halted(mut vm: Value) -> Value {
    farshore_core::vm::halt(&mut vm);
    vm
}

/// The VM's DRBDResource on this side.
pub fn resource(role: &str, ports: &[i32]) -> DRBDResource {
    let volumes: Vec<Value> = ports
        .iter()
        .zip(["root", "data"])
        .enumerate()
        .map(|(i, (port, n))| {
            json!({"index": i, "name": n, "pvcName": n, "storageClass": "block", "sizeBytes": 1, "port": port})
        })
        .collect();
    parsed(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDResource",
        "metadata": {"name": "drbd-shop-db01-00000000", "namespace": "shop"},
        "spec": {
            "nodeName": "n1", "vmRef": {"name": "db01"}, "zone": "metro1", "cluster": "west",
            "peerCluster": "east", "role": role, "roleEpoch": 3, "volumes": volumes,
        },
    }))
}

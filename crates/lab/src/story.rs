//! What a user does, as functions: the demo, the measurements and the scenarios tell their stories
//! with them. Every step goes through the API.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use farshore_api::failover_request::FailoverState;
use farshore_api::meta::KUBECONFIG_KEY;
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::{
    FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone, ReplicationGroupStatus,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Api;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::lab::{Lab, apply};
use crate::sim::vm_resource;

/// How long a story waits for anything before it gives up.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// One VM of a story.
#[derive(Clone, Debug)]
pub struct Vm {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Claims of its disks with their size in MiB.
    pub disks: Vec<(String, u32)>,
}

impl Vm {
    /// A VM with disks `<name>-0`, `<name>-1`, … of `mib` MiB each.
    pub fn new(namespace: &str, name: &str, disks: usize, mib: u32) -> Self {
        let disks = (0..disks).map(|i| (format!("{name}-{i}"), mib)).collect();
        Self {
            namespace: namespace.into(),
            name: name.into(),
            disks,
        }
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Its claims and the VM itself, as a user would write them.
    pub fn manifests(&self) -> Vec<Value> {
        let mut all = vec![
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": self.namespace } }),
        ];
        for (claim, mib) in &self.disks {
            all.push(json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": { "name": claim, "namespace": self.namespace },
                "spec": { "storageClassName": "lab-block", "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
                    "resources": { "requests": { "storage": format!("{mib}Mi") } } },
            }));
        }
        let volumes: Vec<Value> = self.disks.iter()
            .map(|(claim, _)| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } })).collect();
        all.push(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": { "runStrategy": "Always", "template": {
                "metadata": { "labels": { "vm": self.name } },
                "spec": { "domain": { "devices": {} }, "volumes": volumes },
            } },
        }));
        all
    }
}

/// Waits until `look` finds something; what is waited for is named when patience ends.
pub async fn eventually<T, F, Fut>(what: &str, mut look: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<Option<T>>>,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut last = None;
    loop {
        match look().await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(error) => last = Some(error),
        }
        if tokio::time::Instant::now() >= deadline {
            let said = last
                .map(|e| format!(" (last error: {e:#})"))
                .unwrap_or_default();
            anyhow::bail!(
                "{what} did not happen within {} s{said}",
                PATIENCE.as_secs()
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether a condition is there with this status.
pub fn has_condition(conditions: &[Condition], kind: &str, status: &str) -> bool {
    conditions
        .iter()
        .any(|c| c.type_ == kind && c.status == status)
}

/// A user with the lab in front of them, working in one zone.
pub struct User<'a> {
    /// The lab.
    pub lab: &'a Lab,
    /// Name of the zone.
    pub zone: String,
}

impl<'a> User<'a> {
    /// A user of the zone `zone`.
    pub fn new(lab: &'a Lab, zone: &str) -> Self {
        Self {
            lab,
            zone: zone.into(),
        }
    }

    /// The zone's namespace.
    pub fn namespace(&self) -> String {
        farshore_api::names::zone_namespace(&self.zone)
    }

    fn hub(&self) -> kube::Client {
        self.lab.cluster("hub").admin.clone()
    }

    /// Objects of a kind in the zone's namespace on the hub.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.hub(), &self.namespace())
    }

    /// VirtualMachines of a namespace on a cluster.
    pub fn machines(&self, cluster: &str, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.lab.cluster(cluster).admin.clone(),
            namespace,
            &vm_resource(),
        )
    }

    /// Applies a manifest on a cluster.
    pub async fn apply(&self, cluster: &str, manifest: &Value) -> anyhow::Result<DynamicObject> {
        apply(&self.lab.cluster(cluster).admin, manifest).await
    }

    /// Creates the zone's namespace and the kubeconfig Secrets of both workload clusters.
    pub async fn create_credentials(&self) -> anyhow::Result<()> {
        let namespace = self.namespace();
        self.apply(
            "hub",
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }),
        )
        .await?;
        for cluster in ["east", "west"] {
            let secret = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": { "name": format!("{cluster}-kubeconfig"), "namespace": namespace },
                "stringData": { KUBECONFIG_KEY: self.lab.kubeconfig(cluster)? },
            });
            self.apply("hub", &secret).await?;
        }
        Ok(())
    }

    /// The zone of both workload clusters.
    pub fn zone_manifest(&self) -> Value {
        let cluster = |name: &str| json!({ "name": name, "kubeconfigSecretRef": { "name": format!("{name}-kubeconfig") } });
        json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone",
            "metadata": { "name": self.zone, "namespace": self.namespace() },
            "spec": { "clusters": [cluster("east"), cluster("west")] },
        })
    }

    /// Creates the zone and waits until it is ready.
    pub async fn create_zone(&self) -> anyhow::Result<()> {
        self.create_credentials().await?;
        self.apply("hub", &self.zone_manifest()).await?;
        self.zone_condition("Ready", "True").await
    }

    /// Waits for a condition of the zone.
    pub async fn zone_condition(&self, kind: &str, status: &str) -> anyhow::Result<()> {
        let zones: Api<ProtectionZone> = self.api();
        eventually(
            &format!("condition {kind}={status} of the zone {}", self.zone),
            || async {
                let conditions = zones
                    .get(&self.zone)
                    .await?
                    .status
                    .unwrap_or_default()
                    .conditions;
                Ok(has_condition(&conditions, kind, status).then_some(()))
            },
        )
        .await
    }

    /// Creates a VM on a cluster and waits until it runs.
    pub async fn create_vm(&self, cluster: &str, vm: &Vm) -> anyhow::Result<()> {
        for manifest in vm.manifests() {
            self.apply(cluster, &manifest).await?;
        }
        self.vm_runs(cluster, vm).await
    }

    /// Waits until a VM runs on a cluster.
    pub async fn vm_runs(&self, cluster: &str, vm: &Vm) -> anyhow::Result<()> {
        let guests = &self.lab.guests;
        eventually(&format!("VM {} running on {cluster}", vm.key()), || async {
            Ok((guests.places(&vm.key()) == [cluster]).then_some(()))
        })
        .await
    }

    /// A request to protect a VM.
    pub fn protection_manifest(&self, vm: &Vm, source: &str, mode: &str) -> Value {
        json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionRequest",
            "metadata": { "name": vm.name, "namespace": self.namespace() },
            "spec": { "vmName": vm.name, "vmNamespace": vm.namespace, "sourceCluster": source, "syncMode": mode },
        })
    }

    /// Waits until a VM is protected.
    pub async fn protected(&self, vm: &Vm) -> anyhow::Result<()> {
        let requests: Api<ProtectionRequest> = self.api();
        eventually(&format!("protection of {}", vm.key()), || async {
            let status = requests.get(&vm.name).await?.status.unwrap_or_default();
            Ok((status.phase == Some(ProtectionPhase::Protected)).then_some(()))
        })
        .await
    }

    /// Creates VMs on a cluster and protects them.
    pub async fn protect(&self, cluster: &str, vms: &[Vm], mode: &str) -> anyhow::Result<()> {
        for vm in vms {
            self.create_vm(cluster, vm).await?;
            self.apply("hub", &self.protection_manifest(vm, cluster, mode))
                .await?;
        }
        for vm in vms {
            self.protected(vm).await?;
        }
        Ok(())
    }

    /// A group of VMs.
    pub fn group_manifest(&self, name: &str, vms: &[Vm]) -> Value {
        let members: Vec<Value> = vms
            .iter()
            .map(|vm| json!({ "protectionRequestRef": vm.name }))
            .collect();
        json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionGroup",
            "metadata": { "name": name, "namespace": self.namespace() },
            "spec": { "members": members },
        })
    }

    /// Creates a group and waits until it is ready and its replication is known.
    pub async fn create_group(&self, name: &str, vms: &[Vm]) -> anyhow::Result<()> {
        self.apply("hub", &self.group_manifest(name, vms)).await?;
        self.group_ready(name).await
    }

    /// Waits until a group is ready and its replication is compliant.
    pub async fn group_ready(&self, name: &str) -> anyhow::Result<()> {
        let groups: Api<ProtectionGroup> = self.api();
        eventually(&format!("group {name} ready"), || async {
            let status = groups.get(name).await?.status.unwrap_or_default();
            Ok(has_condition(&status.conditions, "Ready", "True").then_some(()))
        })
        .await?;
        let states: Api<ReplicationGroupStatus> = self.api();
        eventually(
            &format!("replication of group {name} compliant"),
            || async {
                let status = states
                    .get(&farshore_api::names::replication_status(name))
                    .await?
                    .status
                    .unwrap_or_default();
                Ok((status.rpo_status.map(|s| s.as_str()) == Some("Compliant")).then_some(()))
            },
        )
        .await
    }

    /// A request to move a group.
    pub fn failover_manifest(&self, name: &str, group: &str, target: &str) -> Value {
        json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "FailoverRequest",
            "metadata": { "name": name, "namespace": self.namespace() },
            "spec": { "protectionGroupRef": { "name": group }, "targetCluster": target, "failoverType": "planned" },
        })
    }

    /// Waits until a failover ends and returns it.
    pub async fn failover_ended(&self, name: &str) -> anyhow::Result<FailoverRequest> {
        let requests: Api<FailoverRequest> = self.api();
        eventually(&format!("the end of failover {name}"), || async {
            let request = requests.get(name).await?;
            let state = request.status.as_ref().and_then(|s| s.state);
            let ended = state.is_some_and(|s| s.is_terminal(request.spec.queue));
            Ok(ended.then_some(request))
        })
        .await
    }

    /// Moves a group and fails unless it completed.
    pub async fn fail_over(
        &self,
        name: &str,
        group: &str,
        target: &str,
    ) -> anyhow::Result<FailoverRequest> {
        self.apply("hub", &self.failover_manifest(name, group, target))
            .await?;
        let request = self.failover_ended(name).await?;
        let status = request.status.clone().unwrap_or_default();
        let state = status.state.map_or("none", FailoverState::as_str);
        anyhow::ensure!(
            state == "Completed",
            "failover {name} ended {state}: {}",
            status.message.unwrap_or_default()
        );
        Ok(request)
    }

    /// What each disk of a VM holds on a cluster, against what its guest was told is safe.
    pub async fn verify(
        &self,
        cluster: &str,
        vm: &Vm,
    ) -> anyhow::Result<BTreeMap<String, crate::guest::Verdict>> {
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.lab.cluster(cluster).admin.clone(), &vm.namespace);
        let ledger = self.lab.guests.ledger();
        let mut verdicts = BTreeMap::new();
        for (claim, _) in &vm.disks {
            let bound = claims
                .get(claim)
                .await?
                .spec
                .and_then(|s| s.volume_name)
                .with_context(|| {
                    format!(
                        "PersistentVolumeClaim {}/{claim} on {cluster} is not bound",
                        vm.namespace
                    )
                })?;
            let volume =
                self.lab.storage.volume(cluster, &bound).with_context(|| {
                    format!("PersistentVolume {bound} on {cluster} has no data")
                })?;
            let disk = disk_name(self.lab, cluster, vm, claim).await?;
            let verdict = ledger.verify(
                &vm.key(),
                &disk,
                |block| volume.read(block),
                volume.blocks(),
            );
            verdicts.insert(disk, verdict);
        }
        Ok(verdicts)
    }
}

/// Name under which a VM knows the disk of a claim, replicated or not.
async fn disk_name(lab: &Lab, cluster: &str, vm: &Vm, claim: &str) -> anyhow::Result<String> {
    let machines: Api<DynamicObject> = Api::namespaced_with(
        lab.cluster(cluster).admin.clone(),
        &vm.namespace,
        &vm_resource(),
    );
    let machine = machines.get(&vm.name).await?;
    let frontend = farshore_api::names::frontend_pvc(claim);
    let volumes = machine.data["spec"]["template"]["spec"]["volumes"].clone();
    volumes
        .as_array()
        .into_iter()
        .flatten()
        .find(|v| {
            let used = v["persistentVolumeClaim"]["claimName"]
                .as_str()
                .or(v["dataVolume"]["name"].as_str());
            used == Some(claim) || used == Some(&frontend)
        })
        .and_then(|v| v["name"].as_str().map(str::to_owned))
        .with_context(|| format!("VM {} on {cluster} has no disk for claim {claim}", vm.key()))
}

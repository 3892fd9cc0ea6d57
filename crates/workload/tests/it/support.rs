//! A workload cluster: an API server with the product's and KubeVirt's kinds, two nodes, and hands
//! that do what storage, kubelets and KubeVirt would.

use std::collections::BTreeMap;
use std::sync::Arc;

use farshore_api::{DRBDResource, ProtectionGroup};
use farshore_apiserver::{ApiServer, Options};
use farshore_runtime::{CancellationToken, Clock, Connector, Process};
use farshore_workload::Config;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub const NAMESPACE: &str = "shop";
pub const ZONE_NAMESPACE: &str = "dr-metro1";
pub const RESOURCE: &str = "drbd-shop-db01-0011aabb";

pub struct Cluster {
    pub server: ApiServer,
    pub client: Client,
    pub process: Process,
}

impl Cluster {
    pub async fn new() -> Self {
        let server = ApiServer::new(Options {
            name: "east".into(),
            ..Options::default()
        });
        let client = Client::new(server.service(Some(&server.admin_token())), "default");
        let process = Process {
            name: "workload-manager".into(),
            identity: "workload-manager-0".into(),
            namespace: "trilio-site-recovery-system".into(),
            node: None,
            env: [
                ("CLUSTER_NAME", "east"),
                ("ZONE_NAME", "metro1"),
                ("WATCH_NAMESPACE", "trilio-site-recovery-system"),
            ]
            .map(|(k, v)| (k.to_string(), v.to_string()))
            .into(),
            args: Vec::new(),
            client: client.clone(),
            connector: Connector::in_process(Arc::new(|_, _| None)),
            clock: Clock::virtual_from("2026-01-01T00:00:00Z".parse().unwrap()),
            shutdown: CancellationToken::new(),
        };
        let cluster = Self {
            server,
            client,
            process,
        };
        let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        for crd in farshore_api::crds::all() {
            crds.create(&PostParams::default(), &crd).await.unwrap();
        }
        for (kind, plural) in [
            ("VirtualMachine", "virtualmachines"),
            ("VirtualMachineInstance", "virtualmachineinstances"),
        ] {
            crds.create(&PostParams::default(), &kubevirt_crd(kind, plural))
                .await
                .unwrap();
        }
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        for name in [NAMESPACE, ZONE_NAMESPACE, "trilio-site-recovery-system"] {
            namespaces
                .create(
                    &PostParams::default(),
                    &from(json!({"metadata": {"name": name}})),
                )
                .await
                .unwrap();
        }
        for (name, address) in [("n1", "10.0.0.1"), ("n2", "10.0.0.2")] {
            cluster.node(name, address).await;
        }
        cluster
    }

    pub fn config(&self) -> Config {
        Config::read(&self.process).unwrap()
    }

    async fn node(&self, name: &str, address: &str) {
        let api: Api<Node> = Api::all(self.client.clone());
        let node: Node =
            from(json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}));
        api.create(&PostParams::default(), &node).await.unwrap();
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub fn vms(&self) -> Api<DynamicObject> {
        self.kubevirt("VirtualMachine", "virtualmachines")
    }

    pub fn instances(&self) -> Api<DynamicObject> {
        self.kubevirt("VirtualMachineInstance", "virtualmachineinstances")
    }

    fn kubevirt(&self, kind: &str, plural: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("kubevirt.io", "v1", kind),
            plural,
        );
        Api::namespaced_with(self.client.clone(), NAMESPACE, &resource)
    }

    pub fn mirrors(&self) -> Api<ProtectionGroup> {
        Api::namespaced(self.client.clone(), ZONE_NAMESPACE)
    }

    pub async fn create<K>(&self, api: &Api<K>, object: Value) -> K
    where
        K: Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        api.create(&PostParams::default(), &from(object))
            .await
            .unwrap()
    }

    /// What storage and kubelets do: binds every PVC, runs every pod on the node that it selects.
    pub async fn provide(&self) {
        let claims: Api<PersistentVolumeClaim> = self.api();
        for claim in claims.list(&ListParams::default()).await.unwrap() {
            let size = claim.spec.unwrap().resources.unwrap().requests.unwrap()["storage"]
                .0
                .clone();
            let status = json!({"status": {"phase": "Bound", "capacity": {"storage": size}}});
            claims
                .patch_status(
                    &claim.metadata.name.unwrap(),
                    &PatchParams::default(),
                    &Patch::Merge(&status),
                )
                .await
                .unwrap();
        }
        let pods: Api<Pod> = self.api();
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            let spec = pod.spec.clone().unwrap();
            if spec.node_name.is_none() {
                let node = spec.node_selector.unwrap()["kubernetes.io/hostname"].clone();
                let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name_any()}, "target": {"kind": "Node", "name": node}});
                let _: Value = pods
                    .create_subresource(
                        "binding",
                        &pod.name_any(),
                        &PostParams::default(),
                        &binding,
                    )
                    .await
                    .unwrap();
            }
            pods.patch_status(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&json!({"status": {"phase": "Running"}})),
            )
            .await
            .unwrap();
        }
    }

    /// A VM with its resource on this cluster.
    pub async fn vm(&self, name: &str, running: bool, role: &str) {
        self.create(&self.vms(), json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name}, "spec": {"running": running}})).await;
        if running {
            self.instance_runs(name).await;
        }
        let resources: Api<DRBDResource> = self.api();
        self.create(&resources, resource(&format!("drbd-{name}"), name, role))
            .await;
        self.role(&format!("drbd-{name}"), role).await;
    }

    /// What the agent and the manager do at a change of roles.
    pub async fn role(&self, resource: &str, role: &str) {
        let resources: Api<DRBDResource> = self.api();
        let spec = json!({"spec": {"role": role}});
        resources
            .patch(resource, &PatchParams::default(), &Patch::Merge(&spec))
            .await
            .unwrap();
        let status = json!({"status": {"role": role, "roleEpoch": 1, "connectionState": "Connected", "diskState": "UpToDate"}});
        resources
            .patch_status(resource, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .unwrap();
    }

    /// What KubeVirt does: the instance comes up …
    pub async fn instance_runs(&self, name: &str) {
        let api = self.instances();
        self.create(&api, json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name}, "spec": {},
            "status": {"phase": "Running", "nodeName": "n1", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": self.now()}]},
        }))
        .await;
    }

    /// … and goes.
    pub async fn instance_gone(&self, name: &str) {
        self.instances()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub fn now(&self) -> Value {
        serde_json::to_value(self.process.clock.time()).unwrap()
    }

    pub async fn mirror(&self, desired: &str, members: Value) -> ProtectionGroup {
        self.create(&self.mirrors(), json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionGroup",
            "metadata": {"name": "shop", "labels": {"siterecovery.trilio.io/mirror": "true", "siterecovery.trilio.io/zone": "metro1"}},
            "spec": {"desiredState": desired, "members": members},
        }))
        .await
    }
}

pub fn from<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

/// A DRBDResource as the manager makes it.
pub fn resource(name: &str, vm: &str, role: &str) -> Value {
    json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDResource",
        "metadata": {"name": name, "labels": {"siterecovery.trilio.io/protection-request": "db01"}},
        "spec": {
            "vmRef": {"name": vm}, "zone": "metro1", "cluster": "east", "peerCluster": "west", "role": role, "roleEpoch": 1,
            "initialSource": role == "Primary",
            "volumes": [{"index": 0, "name": "root", "pvcName": format!("{vm}-root"), "storageClass": "lab-block", "sizeBytes": 10_737_418_240_i64, "port": 7000}],
        },
    })
}

fn kubevirt_crd(kind: &str, plural: &str) -> CustomResourceDefinition {
    from(json!({
        "metadata": {"name": format!("{plural}.kubevirt.io")},
        "spec": {
            "group": "kubevirt.io", "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    }))
}

/// A set of labels.
pub fn labels(object: &impl kube::Resource) -> BTreeMap<String, String> {
    object.meta().labels.clone().unwrap_or_default()
}

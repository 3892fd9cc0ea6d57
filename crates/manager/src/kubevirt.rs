//! KubeVirt's kinds, handled as JSON.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kubevirt.io", "v1", kind), plural)
}

/// VirtualMachines of a namespace.
pub fn vms(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(
        client.clone(),
        namespace,
        &resource("VirtualMachine", "virtualmachines"),
    )
}

/// VirtualMachines of the cluster.
pub fn all_vms(client: &Client) -> Api<DynamicObject> {
    Api::all_with(
        client.clone(),
        &resource("VirtualMachine", "virtualmachines"),
    )
}

/// VirtualMachineInstances of a namespace.
pub fn instances(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(
        client.clone(),
        namespace,
        &resource("VirtualMachineInstance", "virtualmachineinstances"),
    )
}

/// VirtualMachineInstanceMigrations of a namespace.
pub fn migrations(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = resource(
        "VirtualMachineInstanceMigration",
        "virtualmachineinstancemigrations",
    );
    Api::namespaced_with(client.clone(), namespace, &kind)
}

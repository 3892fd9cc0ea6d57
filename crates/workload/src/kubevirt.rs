//! KubeVirt's kinds, handled as JSON.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kubevirt.io", "v1", kind), plural)
}

fn vm_resource() -> ApiResource {
    resource("VirtualMachine", "virtualmachines")
}

fn instance_resource() -> ApiResource {
    resource("VirtualMachineInstance", "virtualmachineinstances")
}

/// VirtualMachines of a namespace.
pub fn vms(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &vm_resource())
}

/// VirtualMachines of the cluster.
pub fn all_vms(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &vm_resource())
}

/// VirtualMachineInstances of a namespace.
pub fn instances(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &instance_resource())
}

/// VirtualMachineInstances of the cluster.
pub fn all_instances(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &instance_resource())
}

//! KubeVirt's kinds, as far as the lab plays KubeVirt.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::{Sim, SimError, present_is_fine};

/// Creates the definitions.
pub(super) async fn install(sim: &Sim) -> Result<(), SimError> {
    let crds: Api<CustomResourceDefinition> = Api::all(sim.client.clone());
    let kinds = [
        crd(
            "VirtualMachine",
            "virtualmachines",
            &["vm", "vms"],
            &json!([
                column("Age", "date", ".metadata.creationTimestamp"),
                column("Status", "string", ".status.printableStatus"),
                column(
                    "Ready",
                    "string",
                    ".status.conditions[?(@.type=='Ready')].status"
                ),
            ]),
        ),
        crd(
            "VirtualMachineInstance",
            "virtualmachineinstances",
            &["vmi", "vmis"],
            &json!([
                column("Age", "date", ".metadata.creationTimestamp"),
                column("Phase", "string", ".status.phase"),
                column("NodeName", "string", ".status.nodeName"),
                column(
                    "Ready",
                    "string",
                    ".status.conditions[?(@.type=='Ready')].status"
                ),
            ]),
        ),
        crd(
            "VirtualMachineInstanceMigration",
            "virtualmachineinstancemigrations",
            &["vmim", "vmims"],
            &json!([
                column("Phase", "string", ".status.phase"),
                column("VMI", "string", ".spec.vmiName"),
            ]),
        ),
    ];
    for kind in kinds {
        let kind = serde_json::from_value(kind).map_err(|e| SimError::Other(e.to_string()))?;
        present_is_fine(crds.create(&PostParams::default(), &kind).await)?;
    }
    Ok(())
}

fn column(name: &str, kind: &str, path: &str) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path })
}

fn crd(kind: &str, plural: &str, short: &[&str], columns: &Value) -> Value {
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.kubevirt.io") },
        "spec": {
            "group": "kubevirt.io", "scope": "Namespaced",
            "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List"),
                "shortNames": short, "categories": ["all"] },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": open, "status": open } } },
            }],
        },
    })
}

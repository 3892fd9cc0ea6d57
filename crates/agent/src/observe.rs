//! Reads what the agent decides on.

use std::sync::Arc;

use farshore_api::drbd_resource::DRBDVolumeSpec;
use farshore_api::{DRBDResource, names};
use farshore_core::drbd::node::{Anchor, Observed, VolumeSeen, config, kernel_name};
use farshore_runtime::controller::{During, ReconcileError};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::{Api, Client, ResourceExt};

use crate::frontend;
use crate::kernel::SharedKernel;
use crate::memory::{Memory, key};

/// Key of the shared secret in its Secret.
const SECRET_KEY: &str = "secret";

/// Reads the world around a DRBDResource of this node.
pub(crate) async fn observe(
    client: &Client,
    kernel: &SharedKernel,
    memory: &Arc<Memory>,
    resource: DRBDResource,
    node: &str,
) -> Result<Observed, ReconcileError> {
    let (namespace, name) = key(&resource);
    let kernel_names: Vec<String> = resource
        .spec
        .volumes
        .iter()
        .map(|v| kernel_name(&resource, v))
        .collect();
    let (states, kernel_error) = match kernel.status().await {
        Ok(states) => (states, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let mut seen = Observed {
        anchor: None,
        secret: None,
        volumes: Vec::new(),
        kernel: states
            .into_iter()
            .filter(|s| kernel_names.contains(&s.name))
            .map(|s| (s.name.clone(), s))
            .collect(),
        kernel_error,
        applied: memory.applied(&kernel_names),
        others: memory.claimed_before(&resource),
        failure: None,
        last_write: memory.last_write(&(namespace.clone(), name.clone())),
        resource,
    };
    if seen.resource.metadata.deletion_timestamp.is_some() {
        return Ok(seen);
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let anchor = names::anchor_pod(&name);
    let pod = pods
        .get_opt(&anchor)
        .await
        .during(format!("reading pod {namespace}/{anchor}"))?;
    let pod_uid = pod.as_ref().and_then(|p| p.uid()).unwrap_or_default();
    seen.anchor = pod.map(|p| anchor_of(&p, node));
    let running = seen.anchor.as_ref().is_some_and(|a| a.running);

    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let secret_name = match &seen.resource.spec.net.shared_secret_ref {
        Some(named) => named.name.clone(),
        None => names::shared_secret(&name),
    };
    let secret = secrets
        .get_opt(&secret_name)
        .await
        .during(format!("reading Secret {namespace}/{secret_name}"))?;
    seen.secret = secret.and_then(|s| {
        let bytes = s.data?.remove(SECRET_KEY)?.0;
        Some(String::from_utf8(bytes).ok()?.into())
    });

    for volume in &seen.resource.spec.volumes {
        let mut known = VolumeSeen {
            frontend: frontend::is_there(client, &seen.resource, volume).await?,
            ..VolumeSeen::default()
        };
        if running {
            known.data = device(client, kernel, &namespace, &pod_uid, &volume.pvc_name).await?;
            known.meta = device(
                client,
                kernel,
                &namespace,
                &pod_uid,
                &names::metadata_pvc(&name, volume.index),
            )
            .await?;
        }
        seen.volumes.push(known);
    }
    for at in 0..seen.volumes.len() {
        let volume: &DRBDVolumeSpec = &seen.resource.spec.volumes[at];
        let Some(config) = config(&seen, volume) else {
            continue;
        };
        // The metadata of an attached device cannot be read, and need not be.
        if !seen.kernel.contains_key(&config.name) {
            seen.volumes[at].has_metadata = kernel.has_metadata(&config).await.ok();
        }
    }
    Ok(seen)
}

fn anchor_of(pod: &Pod, node: &str) -> Anchor {
    let here = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(node);
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    Anchor {
        name: pod.name_any(),
        running: here && phase == Some("Running") && pod.metadata.deletion_timestamp.is_none(),
    }
}

/// The device of a PVC's volume in the anchor pod.
async fn device(
    client: &Client,
    kernel: &SharedKernel,
    namespace: &str,
    pod_uid: &str,
    pvc: &str,
) -> Result<Option<String>, ReconcileError> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = claims
        .get_opt(pvc)
        .await
        .during(format!("reading PVC {namespace}/{pvc}"))?;
    let Some(pv) = claim
        .and_then(|c| c.spec?.volume_name)
        .filter(|v| !v.is_empty())
    else {
        return Ok(None);
    };
    Ok(kernel.volume_device(pod_uid, &pv).await.unwrap_or_default())
}

//! The startup taint of the node: set when the agent starts, unless everything is in order already;
//! removed when it is, or at a deadline, so that one broken pair does not idle a node for ever.

use std::time::Duration;

use farshore_api::DRBDResource;
use farshore_api::meta::{managers, taints};
use farshore_core::Note;
use farshore_core::drbd::node::taint::converged;
use farshore_core::words;
use farshore_runtime::events::Recorder;
use farshore_runtime::{Process, apply};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use crate::Config;
use crate::kernel::SharedKernel;
use crate::memory::Memory;

const EFFECT: &str = "NoSchedule";
/// Pause after the API server did not answer, and between two looks without news.
const PAUSE: Duration = Duration::from_secs(5);

/// Guards the node until DRBD has converged on it.
pub(crate) async fn run(
    process: &Process,
    config: &Config,
    kernel: &SharedKernel,
    memory: &Memory,
) {
    tokio::select! {
        biased;
        () = process.shutdown.cancelled() => {}
        () = guard(process, config, kernel, memory) => {}
    }
}

async fn guard(process: &Process, config: &Config, kernel: &SharedKernel, memory: &Memory) {
    let deadline = Instant::now() + config.startup_deadline;
    let mut news = memory.kernel.subscribe();
    loop {
        let late = Instant::now() >= deadline;
        match look(process, config, kernel, memory).await {
            Ok(waiting) if waiting.is_empty() || late => {
                match set_taint(process, config, false).await {
                    Ok(node) => {
                        if !waiting.is_empty() {
                            tell(process, config, &node, &waiting).await;
                        }
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot remove the startup taint; it is tried again in {} s", PAUSE.as_secs())
                    }
                }
            }
            Ok(_) => {
                if let Err(error) = set_taint(process, config, true).await {
                    tracing::warn!(%error, "cannot set the startup taint; it is tried again in {} s", PAUSE.as_secs());
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot tell whether DRBD has converged; it is looked at again in {} s", PAUSE.as_secs())
            }
        }
        tokio::select! {
            biased;
            () = tokio::time::sleep(PAUSE) => {}
            changed = news.changed() => {
                if changed.is_err() {
                    return;
                }
                // At once, but not at every step of a sync.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Resources of this node that have not converged.
async fn look(
    process: &Process,
    config: &Config,
    kernel: &SharedKernel,
    memory: &Memory,
) -> kube::Result<Vec<String>> {
    let all = Api::<DRBDResource>::all(process.client.clone())
        .list(&ListParams::default())
        .await?;
    let bound: Vec<&DRBDResource> = all
        .items
        .iter()
        .filter(|r| r.spec.node_name.as_deref() == Some(config.node.as_str()))
        .collect();
    // What the kernel does not tell has not converged.
    let states = kernel.status().await.unwrap_or_default();
    let mut waiting = Vec::new();
    for resource in bound {
        memory.knows(resource);
        if !converged(resource, &states) {
            waiting.push(format!(
                "{}/{}",
                resource.namespace().unwrap_or_default(),
                resource.name_any()
            ));
        }
    }
    Ok(waiting)
}

/// Sets or removes the taint, if it is not so already; a node that does not exist has none.
async fn set_taint(process: &Process, config: &Config, wanted: bool) -> kube::Result<Option<Node>> {
    let api = Api::<Node>::all(process.client.clone());
    let Some(node) = api.get_opt(&config.node).await? else {
        return Ok(None);
    };
    let mut all = node
        .spec
        .as_ref()
        .and_then(|s| s.taints.clone())
        .unwrap_or_default();
    let ours = |t: &Taint| t.key == taints::NOT_READY && t.effect == EFFECT;
    if all.iter().any(ours) == wanted {
        return Ok(Some(node));
    }
    if wanted {
        all.push(Taint {
            key: taints::NOT_READY.into(),
            effect: EFFECT.into(),
            ..Taint::default()
        });
    } else {
        all.retain(|t| !ours(t));
    }
    // The list is replaced as a whole: whoever changed it meanwhile must not be undone.
    let patch =
        json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": all}});
    apply::merge(&api, &config.node, managers::NODE_AGENT, &patch)
        .await
        .map(Some)
}

async fn tell(process: &Process, config: &Config, node: &Option<Node>, waiting: &[String]) {
    let Some(node) = node else { return };
    let recorder = Recorder::new(
        process.client.clone(),
        managers::NODE_AGENT,
        &process.identity,
        process.clock.clone(),
    );
    let note = Note::warning(
        "StartupDeadline",
        format!(
            "Node {} takes VMs although DRBD has not converged on it within {} s: DRBDResource {}. Look with: kubectl describe drbdr -A",
            config.node,
            config.startup_deadline.as_secs(),
            words::list(waiting)
        ),
    );
    recorder.publish(node, &note).await;
}

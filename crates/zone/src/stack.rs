//! The stacks: the manager on the hub and the workload control plane on each cluster, rendered from
//! the charts inside this program and applied object by object.

use std::collections::BTreeSet;
use std::sync::Arc;

use farshore_api::meta::{WORKLOAD_NAMESPACE, labels};
use farshore_chart::{Chart, ChartError, MANAGER_CONTROL_PLANE, Release, WORKLOAD_CONTROL_PLANE};
use farshore_core::zone::conclude::Stack;
use farshore_core::zone::permissions::Permission;
use farshore_core::zone::rollout;
use farshore_runtime::apply;
use jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::{MANAGER, release};

/// Release of the manager's chart.
const MANAGER_RELEASE: &str = "site-recovery-manager";
/// Release of the workload chart.
const WORKLOAD_RELEASE: &str = "site-recovery";

/// What is to be installed.
pub struct Wanted {
    /// The chart.
    pub chart: Chart,
    /// Its release.
    pub release: Release,
    /// Values over the chart's own.
    pub values: Value,
    /// What comes of it.
    pub manifests: Vec<Value>,
}

impl Wanted {
    fn of(chart: &str, release: Release, values: Value) -> Result<Self, ChartError> {
        let chart = Chart::embedded(chart)?;
        Ok(Self {
            manifests: chart.render(&release, &values)?,
            chart,
            release,
            values,
        })
    }
}

/// The manager of a zone.
pub fn manager(zone: &str, namespace: &str) -> Result<Wanted, ChartError> {
    let release = Release {
        name: MANAGER_RELEASE.into(),
        namespace: namespace.into(),
    };
    let values = json!({ "zone": { "name": zone } });
    Wanted::of(MANAGER_CONTROL_PLANE, release, values)
}

/// The stack of a workload cluster.
pub fn workload(zone: &str, cluster: &str, openshift: bool) -> Result<Wanted, ChartError> {
    let release = Release {
        name: WORKLOAD_RELEASE.into(),
        namespace: WORKLOAD_NAMESPACE.into(),
    };
    let values =
        json!({ "zone": { "name": zone }, "cluster": { "name": cluster }, "openshift": openshift });
    Wanted::of(WORKLOAD_CONTROL_PLANE, release, values)
}

/// What the workload stack is granted in its cluster.
pub fn granted() -> Result<BTreeSet<Permission>, ChartError> {
    let manifests = workload("zone", "cluster", false)?.manifests;
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        rule[field]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let mut granted = BTreeSet::new();
    for rule in manifests
        .iter()
        .filter_map(|m| m["rules"].as_array())
        .flatten()
    {
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                granted.extend(
                    texts(rule, "verbs")
                        .iter()
                        .map(|verb| Permission::new(&group, &resource, verb)),
                );
            }
        }
    }
    Ok(granted)
}

/// Applies the manifests whose live object is not as wanted, keeps Helm's record of them, and looks how
/// far the roll-out has come.
pub async fn install(
    client: &Client,
    wanted: Result<Arc<Wanted>, ChartError>,
    zone: &str,
    now: Timestamp,
) -> Stack {
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(error) => return Stack::Failed(error.to_string()),
    };
    let pending = match try_install(client, &wanted.manifests).await {
        Ok(pending) => pending,
        Err((object, error)) => return Stack::Failed(format!("{object}: {error}")),
    };
    if let Err(error) = release::keep(client, &wanted, zone, now).await {
        return Stack::Failed(error.to_string());
    }
    if pending.is_empty() {
        Stack::Running
    } else {
        Stack::Pending(pending)
    }
}

async fn try_install(
    client: &Client,
    manifests: &[Value],
) -> Result<Vec<String>, (String, kube::Error)> {
    for manifest in manifests {
        apply::ensure_value(&api(client, manifest), MANAGER, manifest)
            .await
            .map_err(|error| (title(manifest), error))?;
    }
    let mut pending = Vec::new();
    for manifest in manifests
        .iter()
        .filter(|m| m.pointer("/spec/template").is_some())
    {
        let failed = |error| (title(manifest), error);
        match api(client, manifest)
            .get_opt(name(manifest))
            .await
            .map_err(failed)?
        {
            Some(live) => {
                let live =
                    serde_json::to_value(live).map_err(|e| failed(kube::Error::SerdeError(e)))?;
                pending.extend(rollout::pending(&live));
            }
            None => pending.push(format!("{} was deleted", title(manifest))),
        }
    }
    Ok(pending)
}

/// Deletes the objects of the manifests, last first, as far as they are this zone's.
pub async fn uninstall(client: &Client, manifests: &[Value], zone: &str) -> kube::Result<()> {
    for manifest in manifests.iter().rev() {
        let api = api(client, manifest);
        let Some(live) = api.get_opt(name(manifest)).await? else {
            continue;
        };
        if live.labels().get(labels::ZONE).map(String::as_str) == Some(zone)
            && live.metadata.deletion_timestamp.is_none()
        {
            apply::delete_if_present(&api, name(manifest)).await?;
        }
    }
    Ok(())
}

fn name(manifest: &Value) -> &str {
    manifest["metadata"]["name"].as_str().unwrap_or_default()
}

fn title(manifest: &Value) -> String {
    let kind = manifest["kind"].as_str().unwrap_or_default();
    match manifest["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{kind} {namespace}/{}", name(manifest)),
        None => format!("{kind} {}", name(manifest)),
    }
}

/// The API of a manifest's kind, in its namespace.
pub(crate) fn api(client: &Client, manifest: &Value) -> Api<DynamicObject> {
    let (group, version) = match manifest["apiVersion"].as_str().unwrap_or_default() {
        core if !core.contains('/') => ("", core),
        other => other.split_once('/').unwrap_or_default(),
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
        group,
        version,
        manifest["kind"].as_str().unwrap_or_default(),
    ));
    match manifest["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

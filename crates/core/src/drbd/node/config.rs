//! The configuration of a volume, and the checks that DRBD's tools do not make.

use std::collections::BTreeMap;

use farshore_api::drbd_resource::{DRBDVolumeSpec, VolumeMode};
use farshore_api::{DRBDResource, names};
use serde::{Deserialize, Serialize};

use super::super::model::{Host, ResourceConfig, Secret};
use super::{Observed, kernel_name};

/// Greatest minor number that the kernel takes.
const LAST_MINOR: i32 = 1_048_575;
/// Longest shared secret that the kernel takes.
const LONGEST_SECRET: usize = 63;
/// Longest name that we give a resource; drbdadm's own limit lies higher.
const LONGEST_NAME: usize = 127;
/// Digests that every kernel with DRBD has. The kernel refuses an unknown one only when it connects.
const DIGESTS: [&str; 5] = ["crc32c", "md5", "sha1", "sha256", "sha512"];

/// What another DRBDResource of this node takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claimed {
    /// Its `namespace/name`.
    pub owner: String,
    /// Its ports; minor numbers follow from them.
    pub ports: Vec<i32>,
    /// Its PVCs as `namespace/name`.
    pub claims: Vec<String>,
}

impl Claimed {
    /// What a resource takes.
    pub fn by(resource: &DRBDResource) -> Self {
        let namespace = resource.metadata.namespace.as_deref().unwrap_or_default();
        Self {
            owner: super::label(resource),
            ports: resource.spec.volumes.iter().map(|v| v.port).collect(),
            claims: resource
                .spec
                .volumes
                .iter()
                .map(|v| format!("{namespace}/{}", v.pvc_name))
                .collect(),
        }
    }
}

/// The configuration of a volume; `None` until everything that it needs is known.
pub fn config(seen: &Observed, volume: &DRBDVolumeSpec) -> Option<ResourceConfig> {
    let spec = &seen.resource.spec;
    let (local, peer) = (spec.local.as_ref()?, spec.peer.as_ref()?);
    let at = spec.volumes.iter().position(|v| v.index == volume.index)?;
    let known = seen.volumes.get(at)?;
    // The same on both sides without a word between them: the clusters' names decide.
    let own_id = i32::from(spec.cluster > spec.peer_cluster);
    seen.anchor.as_ref().filter(|a| a.running)?;
    Some(ResourceConfig {
        name: kernel_name(&seen.resource, volume),
        minor: names::minor(volume.port),
        protocol: spec.protocol,
        shared_secret: seen.secret.clone()?,
        local: Host {
            cluster: spec.cluster.clone(),
            node: local.node_name.clone(),
            node_id: own_id,
            address: local.address.clone(),
            port: volume.port,
        },
        peer: Host {
            cluster: spec.peer_cluster.clone(),
            node: peer.node_name.clone(),
            node_id: 1 - own_id,
            address: peer.address.clone(),
            port: volume.port,
        },
        disk: known.data.clone()?,
        meta_disk: known.meta.clone()?,
        net: spec.net.clone(),
        resync_rate: spec.resync_rate.clone(),
    })
}

/// What is wrong with a resource, as clauses. drbdadm accepts every one of these; the kernel would
/// refuse, clamp or mix up data.
pub fn problems(
    resource: &DRBDResource,
    secret: Option<&Secret>,
    others: &[Claimed],
) -> Vec<String> {
    let spec = &resource.spec;
    let mut found = Vec::new();
    if spec.cluster == spec.peer_cluster {
        found.push(format!(
            "spec.cluster and spec.peerCluster are both {}",
            spec.cluster
        ));
    }
    if let Some(length) = secret
        .map(|s| s.reveal().len())
        .filter(|l| *l == 0 || *l > LONGEST_SECRET)
    {
        found.push(format!(
            "the shared secret has {length} characters, DRBD takes 1 to {LONGEST_SECRET}"
        ));
    }
    if secret.is_some_and(|s| s.reveal().chars().any(char::is_control)) {
        found.push("the shared secret has a line break or another control character".into());
    }
    if let (Some(local), Some(peer)) = (&spec.local, &spec.peer) {
        for (field, address) in [("local", &local.address), ("peer", &peer.address)] {
            if address.parse::<std::net::IpAddr>().is_err() {
                found.push(format!("spec.{field}.address {address:?} is no IP address"));
            }
        }
        if local.address == peer.address {
            found.push(format!("both sides have the address {}", local.address));
        }
        if local.node_name == peer.node_name {
            found.push(format!(
                "the nodes of both clusters are named {}; DRBD tells hosts apart by their names",
                local.node_name
            ));
        }
        if spec
            .node_name
            .as_ref()
            .is_some_and(|n| *n != local.node_name)
        {
            found.push(format!(
                "spec.local.nodeName is {}, but spec.nodeName binds another node",
                local.node_name
            ));
        }
    }
    for digest in [&spec.net.verify_algorithm, &spec.net.csums_algorithm] {
        if !DIGESTS.contains(&digest.as_str()) {
            found.push(format!(
                "the digest {digest:?} is none of {}",
                DIGESTS.join(", ")
            ));
        }
    }
    volumes(resource, &mut found);
    taken(resource, others, &mut found);
    // Two volumes that share a port both find it taken.
    let mut told = std::collections::BTreeSet::new();
    found.retain(|problem| told.insert(problem.clone()));
    found
}

fn volumes(resource: &DRBDResource, found: &mut Vec<String>) {
    let mut seen: BTreeMap<(&str, String), i32> = BTreeMap::new();
    for volume in &resource.spec.volumes {
        let name = kernel_name(resource, volume);
        let legal = |c: char| c.is_ascii_alphanumeric() || "+._-".contains(c);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(legal) {
            found.push(format!("DRBD does not take the name {name:?}"));
        }
        if !(0..=LAST_MINOR).contains(&names::minor(volume.port)) {
            found.push(format!(
                "port {} of volume {} gives no legal minor number",
                volume.port, volume.index
            ));
        }
        if volume.volume_mode != VolumeMode::Block {
            found.push(format!(
                "PVC {} of volume {} is not of volumeMode Block",
                volume.pvc_name, volume.index
            ));
        }
        for (what, value) in [
            ("index", volume.index.to_string()),
            ("port", volume.port.to_string()),
            ("PVC", volume.pvc_name.clone()),
        ] {
            if let Some(other) = seen.insert((what, value.clone()), volume.index) {
                found.push(format!(
                    "volumes {other} and {} share {what} {value}",
                    volume.index
                ));
            }
        }
    }
}

fn taken(resource: &DRBDResource, others: &[Claimed], found: &mut Vec<String>) {
    let own = Claimed::by(resource);
    for other in others.iter().filter(|o| o.owner != own.owner) {
        for port in own.ports.iter().filter(|p| other.ports.contains(p)) {
            found.push(format!(
                "port {port} is taken by DRBDResource {} on this node",
                other.owner
            ));
        }
        for claim in own.claims.iter().filter(|c| other.claims.contains(c)) {
            found.push(format!(
                "PVC {claim} belongs to DRBDResource {} too",
                other.owner
            ));
        }
    }
}

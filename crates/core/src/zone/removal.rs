//! A zone that is being deleted: what it installed goes, in reverse.

use std::time::Duration;

use farshore_api::ProtectionZone;
use farshore_api::conditions::zone as types;
use farshore_api::meta::finalizers;
use farshore_api::zone::{ProtectionZoneStatus, ZonePhase};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Claim, Fault, Site};
use crate::Note;
use crate::conditions::{self, Truth};
use crate::words::{self, Wait};

/// How often what a removal waits for is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// A cluster that the zone may have touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Name in the zone.
    pub name: String,
    /// Whose the claim on it is, or why that cannot be told.
    pub claim: Result<Claim, Fault>,
}

/// All that the decision needs.
#[derive(Clone, Debug)]
pub struct Leaving {
    /// The zone, being deleted.
    pub zone: ProtectionZone,
    /// ProtectionRequests of its namespace.
    pub requests: usize,
    /// Objects of the namespace that the manager must finish first, by plural kind, with how many.
    pub unfinished: Vec<(String, usize)>,
    /// Clusters that the zone may have touched: those whose UID its status knows.
    pub clusters: Vec<Cluster>,
}

/// A step of a removal, in order; each may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Remove the stack of a site, as far as it is this zone's.
    Uninstall(Site),
    /// Remove our claim on a cluster.
    Release(String),
    /// Let the zone go.
    DropFinalizer,
}

/// What is to be done, or what is waited for.
#[derive(Clone, Debug, PartialEq)]
pub struct Removal {
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Status while it waits.
    pub status: ProtectionZoneStatus,
    /// What a person should hear.
    pub notes: Vec<Note>,
    /// When to look again.
    pub again: Option<Duration>,
}

/// Decides the next part of a removal. It waits while VMs are protected, and for clusters that do
/// not answer: their claim would stay behind unnoticed.
pub fn remove(leaving: &Leaving, now: Timestamp) -> Removal {
    let zone = leaving.zone.metadata.name.as_deref().unwrap_or_default();
    let namespace = leaving
        .zone
        .metadata
        .namespace
        .as_deref()
        .unwrap_or_default();
    let old = leaving.zone.status.clone().unwrap_or_default();
    let blocked = if leaving.requests > 0 {
        Some(Fault {
            reason: "ProtectionRequestsExist".into(),
            by: format!(
                "zone {zone} still has {}; unprotect them first",
                words::count(leaving.requests, "ProtectionRequest")
            ),
            command: format!("kubectl -n {namespace} get protectionrequests"),
        })
    } else if let Some((plural, n)) = leaving.unfinished.first() {
        Some(Fault {
            reason: "ObjectsExist".into(),
            by: format!(
                "zone {zone} still has {n} {plural} that its manager must finish; delete them first"
            ),
            command: format!("kubectl -n {namespace} get {plural}"),
        })
    } else {
        leaving.clusters.iter().find_map(|cluster| {
            let fault = cluster.claim.as_ref().err()?;
            Some(Fault {
                reason: fault.reason.clone(),
                by: format!(
                    "{}. Its stack and claim would stay behind; if it is gone for good, remove the finalizer {} from the ProtectionZone by hand",
                    fault.by,
                    finalizers::ZONE_CLEANUP
                ),
                command: fault.command.clone(),
            })
        })
    };
    match blocked {
        Some(fault) => wait(leaving, old, &fault, now),
        None => Removal {
            steps: steps(leaving),
            status: deleting(leaving, old),
            notes: Vec::new(),
            again: None,
        },
    }
}

fn steps(leaving: &Leaving) -> Vec<Step> {
    // A claim of somebody else means that what runs there is theirs.
    let ours = |claim: &Claim| matches!(claim, Claim::Held | Claim::Free | Claim::Terminating);
    let mut steps: Vec<Step> = leaving
        .clusters
        .iter()
        .filter(|c| c.claim.as_ref().is_ok_and(ours))
        .map(|c| Step::Uninstall(Site::Cluster(c.name.clone())))
        .collect();
    steps.push(Step::Uninstall(Site::Hub));
    steps.extend(
        leaving
            .clusters
            .iter()
            .filter(|c| c.claim == Ok(Claim::Held))
            .map(|c| Step::Release(c.name.clone())),
    );
    steps.push(Step::DropFinalizer);
    steps
}

fn deleting(leaving: &Leaving, old: ProtectionZoneStatus) -> ProtectionZoneStatus {
    ProtectionZoneStatus {
        phase: Some(ZonePhase::Deleting),
        observed_generation: leaving.zone.metadata.generation,
        ..old
    }
}

fn wait(leaving: &Leaving, old: ProtectionZoneStatus, fault: &Fault, now: Timestamp) -> Removal {
    let since = leaving
        .zone
        .metadata
        .deletion_timestamp
        .as_ref()
        .map_or(now, |t| t.0);
    let message = Wait {
        what: format!(
            "ProtectionZone {}/{} waits to be deleted since {}",
            leaving
                .zone
                .metadata
                .namespace
                .as_deref()
                .unwrap_or_default(),
            leaving.zone.metadata.name.as_deref().unwrap_or_default(),
            words::moment(since)
        ),
        by: fault.by.clone(),
        since: None,
        next: "It is looked at again every 10 s; everything keeps running until then",
        command: fault.command.clone(),
    }
    .to_string();
    let told =
        conditions::get(&old.conditions, types::READY).is_some_and(|c| c.reason == fault.reason);
    let mut status = deleting(leaving, old);
    conditions::set(
        &mut status.conditions,
        types::READY,
        Truth::False,
        &fault.reason,
        &message,
        status.observed_generation,
        now,
    );
    let notes = if told {
        Vec::new()
    } else {
        vec![Note::warning(&fault.reason, message)]
    };
    Removal {
        steps: Vec::new(),
        status,
        notes,
        again: Some(LOOK),
    }
}

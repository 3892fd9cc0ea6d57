//! RPOEvents: one immutable record for each change of a group's `rpoStatus` [S1].
//!
//! The record is created before the status is stored. Its name ends with a hash over the stored
//! status that it leaves, so a process that died between the two finds the record again and neither
//! loses nor doubles it.

use std::collections::BTreeMap;

use farshore_api::meta::labels;
use farshore_api::replication_group_status::{ReplicationGroupStatusStatus as Status, RpoStatus};
use farshore_api::rpo_event::{RPOEventSpec, RpoEventType};
use farshore_api::{RPOEvent, ReplicationGroupStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use sha2::{Digest, Sha256};

use super::{vm, whole_second};
use crate::{Note, words};

/// Records kept for each group.
pub const KEPT: usize = 500;
const HASH: usize = 5;

/// The record of the change between two statuses, if `rpoStatus` changed. A group that begins
/// Compliant has nothing to tell.
pub(super) fn of_change(
    monitor: &ReplicationGroupStatus,
    before: &Status,
    after: &Status,
    now: Timestamp,
) -> Option<RPOEvent> {
    let new = after.rpo_status?;
    if before.rpo_status == Some(new)
        || (before.rpo_status.is_none() && new == RpoStatus::Compliant)
    {
        return None;
    }
    let previous = before.rpo_status.unwrap_or(RpoStatus::Unknown);
    if previous == new {
        return None;
    }
    let group = &monitor.spec.protection_group_ref.name;
    let own_name = monitor.metadata.name.clone().unwrap_or_default();
    let moment = whole_second(now);
    let affected: Vec<String> = after
        .vms
        .iter()
        .filter(|v| !vm::is_in_sync(v))
        .map(|v| format!("{}/{}", v.vm_namespace, v.vm_name))
        .collect();
    let spec = RPOEventSpec {
        protection_group: group.clone(),
        replication_group_status: own_name.clone(),
        previous_status: previous,
        new_status: new,
        event_type: type_of(previous, new),
        timestamp: Time(moment),
        current_rpo_seconds: after.current_rpo_seconds,
        rpo_objective_seconds: monitor.spec.rpo_objective_seconds,
        out_of_sync_bytes: after.out_of_sync_bytes,
        message: sentence(monitor, previous, new, after, &affected),
        affected_vms: affected,
    };
    let stamp: String = moment
        .to_string()
        .chars()
        .filter(char::is_ascii_digit)
        .take(14)
        .collect();
    let name = format!(
        "{}-{stamp}-{}",
        group.chars().take(200).collect::<String>(),
        key(monitor, before, new)
    );
    let mut event = RPOEvent::new(&name, spec);
    let mut of = BTreeMap::new();
    let own = monitor.metadata.labels.as_ref();
    let zone = own.and_then(|l| l.get(labels::ZONE));
    of.extend(zone.map(|z| (labels::ZONE.to_string(), z.clone())));
    of.insert(labels::PROTECTION_GROUP.into(), group.clone());
    event.metadata = ObjectMeta {
        name: Some(name),
        namespace: monitor.metadata.namespace.clone(),
        labels: Some(of),
        owner_references: monitor.metadata.uid.as_ref().map(|uid| {
            vec![OwnerReference {
                api_version: format!("{}/{}", farshore_api::GROUP, farshore_api::VERSION),
                kind: "ReplicationGroupStatus".into(),
                name: own_name,
                uid: uid.clone(),
                ..OwnerReference::default()
            }]
        }),
        ..ObjectMeta::default()
    };
    Some(event)
}

/// The note of a record.
pub(super) fn note(event: &RPOEvent) -> Note {
    let reason = event.spec.event_type.as_str();
    match event.spec.event_type {
        RpoEventType::RPORecovered | RpoEventType::ReplicationRestored => {
            Note::normal(reason, &event.spec.message)
        }
        _ => Note::warning(reason, &event.spec.message),
    }
}

/// Whether an existing record is that of the same change: it was made before the process died.
pub fn is_event_of(existing: &str, event: &RPOEvent) -> bool {
    let suffix = |name: &str| name.rsplit('-').next().map(ToString::to_string);
    let name = event.metadata.name.as_deref().unwrap_or_default();
    suffix(existing) == suffix(name)
}

/// Names of the oldest records above the number that is kept.
pub fn surplus(events: &[RPOEvent]) -> Vec<String> {
    let mut all: Vec<(Timestamp, &str)> = events
        .iter()
        .map(|e| {
            (
                e.spec.timestamp.0,
                e.metadata.name.as_deref().unwrap_or_default(),
            )
        })
        .collect();
    all.sort();
    let over = all.len().saturating_sub(KEPT);
    all.into_iter()
        .take(over)
        .map(|(_, name)| name.to_string())
        .collect()
}

fn type_of(previous: RpoStatus, new: RpoStatus) -> RpoEventType {
    match (previous, new) {
        (_, RpoStatus::Violated) => RpoEventType::RPOViolated,
        (_, RpoStatus::AtRisk) => RpoEventType::RPOAtRisk,
        (_, RpoStatus::Unknown) => RpoEventType::ReplicationLost,
        (RpoStatus::Unknown, RpoStatus::Compliant) => RpoEventType::ReplicationRestored,
        (_, RpoStatus::Compliant) => RpoEventType::RPORecovered,
    }
}

fn sentence(
    monitor: &ReplicationGroupStatus,
    previous: RpoStatus,
    new: RpoStatus,
    after: &Status,
    affected: &[String],
) -> String {
    let group = &monitor.spec.protection_group_ref.name;
    let rpo = match after.current_rpo_seconds {
        _ if after.vms.is_empty() => "no VM of it is protected".into(),
        Some(seconds) => format!("RPO {seconds} s"),
        None => "RPO not known because a VM was never in sync".into(),
    };
    let bytes = words::bytes(after.out_of_sync_bytes.unwrap_or(0));
    let who = if affected.is_empty() {
        "every VM in sync".into()
    } else {
        format!("not in sync: VM {}", words::list(affected))
    };
    format!(
        "ProtectionGroup {group} went from {previous} to {new}: {rpo}, objective {} s, {bytes} out of sync, {who}.",
        monitor.spec.rpo_objective_seconds
    )
}

/// Five characters over the stored status that the change leaves, and the new word.
fn key(monitor: &ReplicationGroupStatus, before: &Status, new: RpoStatus) -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let stored = before.last_poll_time.as_ref().map(|t| t.0.as_second());
    let uid = monitor.metadata.uid.as_deref().unwrap_or_default();
    let digest = Sha256::digest(format!("{uid}/{stored:?}/{:?}/{new}", before.rpo_status));
    digest
        .iter()
        .take(HASH)
        .map(|b| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()]))
        .collect()
}

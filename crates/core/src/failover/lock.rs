//! The lock of a group: a Lease in the zone namespace, held by the UID of one FailoverRequest [S2].
//!
//! The Lease outlives its holder: released, it has no `holderIdentity`; expired, `renewTime` plus
//! `leaseDurationSeconds` is past, and another request may take it with a write that names the
//! resourceVersion it read. It belongs to the group and is collected with it; until then it keeps the
//! record of who held it. All times are the manager's.

use farshore_api::failover_request::LockStatus;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};

use super::observed::Observed;
use super::step::{LockPurpose, Step};
use crate::words::{self, moment};

/// Seconds between renewals while a failover is active.
pub const RENEW_SECONDS: i64 = 60;

/// How the lock stands towards one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody holds it.
    Free,
    /// Another request holds it until then, or longer if it renews.
    Held { holder: String, until: Timestamp },
    /// Another request held it and let it expire.
    Expired { holder: String },
    /// This request holds it.
    Ours {
        acquired: Timestamp,
        renewed: Timestamp,
        expired: bool,
    },
}

/// How the lock stands towards the request with this UID.
pub fn standing(lease: Option<&Lease>, uid: &str, now: Timestamp) -> Standing {
    let Some((lease, spec)) = lease.and_then(|l| Some((l, l.spec.as_ref()?))) else {
        return Standing::Free;
    };
    let holder = match spec.holder_identity.as_deref() {
        None | Some("") => return Standing::Free,
        Some(holder) => holder,
    };
    let created = lease.metadata.creation_timestamp.as_ref().map(|t| t.0);
    let acquired = spec.acquire_time.as_ref().map(|t| t.0);
    let renewed = spec.renew_time.as_ref().map(|t| t.0);
    let renewed = renewed.or(acquired).or(created).unwrap_or(now);
    let seconds = spec.lease_duration_seconds.unwrap_or(300);
    let until = renewed + SignedDuration::from_secs(i64::from(seconds));
    let expired = until <= now;
    if holder == uid {
        return Standing::Ours {
            acquired: acquired.unwrap_or(renewed),
            renewed,
            expired,
        };
    }
    let holder = holder.to_string();
    if expired {
        Standing::Expired { holder }
    } else {
        Standing::Held { holder, until }
    }
}

/// Whether any request holds this lock now. While it does, nobody else writes the `desiredState`
/// of the group's mirrors.
pub fn is_held(lease: Option<&Lease>, now: Timestamp) -> bool {
    matches!(standing(lease, "", now), Standing::Held { .. })
}

/// Takes a lock that is free or expired.
pub fn take(seen: &Observed, now: Timestamp) -> Step {
    let before = seen.lease.as_ref().and_then(|l| l.spec.as_ref());
    let transitions = before.map(|s| s.lease_transitions.unwrap_or(0) + 1);
    write(
        seen,
        LockPurpose::Take,
        LeaseSpec {
            holder_identity: Some(seen.uid().into()),
            lease_duration_seconds: Some(seen.zone.spec.failover.lock_lease_seconds),
            acquire_time: Some(MicroTime(now)),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(transitions.unwrap_or(0)),
            ..LeaseSpec::default()
        },
    )
}

/// Renews our lock.
pub fn renew(seen: &Observed, now: Timestamp) -> Step {
    let before = seen.lease.as_ref().and_then(|l| l.spec.clone());
    write(
        seen,
        LockPurpose::Renew,
        LeaseSpec {
            renew_time: Some(MicroTime(now)),
            ..before.unwrap_or_default()
        },
    )
}

/// How often our lock is renewed: at least three times before it would expire.
pub fn renew_every(seen: &Observed) -> SignedDuration {
    let lease = i64::from(seen.zone.spec.failover.lock_lease_seconds);
    SignedDuration::from_secs(RENEW_SECONDS.min(lease / 3))
}

/// Renews our lock if its last renewal is long enough ago.
pub fn renew_if_due(seen: &Observed, standing: &Standing, now: Timestamp) -> Option<Step> {
    match standing {
        Standing::Ours { renewed, .. } if *renewed + renew_every(seen) <= now => {
            Some(renew(seen, now))
        }
        _ => None,
    }
}

/// Lets go of our lock. The Lease stays, so that its transitions go on counting.
pub fn release(seen: &Observed, now: Timestamp) -> Option<Step> {
    let before = seen.lease.as_ref()?.spec.clone()?;
    Some(write(
        seen,
        LockPurpose::Release,
        LeaseSpec {
            holder_identity: None,
            renew_time: Some(MicroTime(now)),
            ..before
        },
    ))
}

fn write(seen: &Observed, purpose: LockPurpose, spec: LeaseSpec) -> Step {
    Step::WriteLock {
        purpose,
        resource_version: seen
            .lease
            .as_ref()
            .and_then(|l| l.metadata.resource_version.clone()),
        owners: owners(seen),
        spec: Box::new(spec),
    }
}

/// The group that the Lease goes with. After the end the group is not looked at, and the owner stays.
fn owners(seen: &Observed) -> Vec<OwnerReference> {
    let group = seen.group.as_ref();
    let owned = group.and_then(|group| {
        Some(OwnerReference {
            api_version: format!("{}/{}", farshore_api::GROUP, farshore_api::VERSION),
            kind: "ProtectionGroup".into(),
            name: group.metadata.name.clone()?,
            uid: group.metadata.uid.clone()?,
            ..OwnerReference::default()
        })
    });
    match owned {
        Some(owner) => vec![owner],
        None => {
            let before = seen.lease.as_ref();
            before
                .and_then(|l| l.metadata.owner_references.clone())
                .unwrap_or_default()
        }
    }
}

/// The audit of the lock for the request's status.
pub fn audit(seen: &Observed, acquired: Timestamp) -> LockStatus {
    let spec = seen.lease.as_ref().and_then(|l| l.spec.as_ref());
    LockStatus {
        lease_name: seen.lease_name(),
        holder: seen.uid().into(),
        acquired_at: MicroTime(acquired),
        lease_duration_seconds: spec
            .and_then(|s| s.lease_duration_seconds)
            .unwrap_or(seen.zone.spec.failover.lock_lease_seconds),
    }
}

/// What a request says while it waits for its turn, and until when it does.
pub fn pending_sentence(seen: &Observed, standing: &Standing, give_up: Timestamp) -> String {
    let ahead = seen.ahead.as_ref().map(|name| {
        format!(
            "FailoverRequest {}/{name} was made earlier and goes first",
            seen.namespace()
        )
    });
    let held = match standing {
        Standing::Held { holder, until } => Some(format!(
            "{} holds Lease {}/{} until {} unless it renews",
            seen.holder_name(holder),
            seen.namespace(),
            seen.lease_name(),
            moment(*until)
        )),
        Standing::Free | Standing::Expired { .. } | Standing::Ours { .. } => None,
    };
    let by: Vec<String> = held.into_iter().chain(ahead).collect();
    let next = format!(
        "This request is evaluated when its turn comes, and fails without having done anything if that is not before {}",
        moment(give_up)
    );
    words::Wait {
        what: format!("Failover of {} has not begun", seen.group_title()),
        by: by.join(", and "),
        since: None,
        next: &next,
        command: format!("kubectl get failoverrequest -n {}", seen.namespace()),
    }
    .to_string()
}

/// Why a request ends whose turn did not come.
pub fn too_long_sentence(seen: &Observed, standing: &Standing, since: Timestamp) -> String {
    let by = match (standing, &seen.ahead) {
        (Standing::Held { holder, .. }, _) => {
            format!("{} still holds the lock", seen.holder_name(holder))
        }
        (_, Some(name)) => format!(
            "FailoverRequest {}/{name} was made earlier and has not begun either",
            seen.namespace()
        ),
        _ => "its turn did not come".into(),
    };
    format!(
        "The failover of {} did not begin: it waited for its turn since {}, and {by}. Nothing was changed. If the group shall still move, create a new FailoverRequest when that one has ended; look with: kubectl get failoverrequest -n {}",
        seen.group_title(),
        moment(since),
        seen.namespace()
    )
}

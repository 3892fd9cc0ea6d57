//! What the validating webhooks answer, as pure decisions: those of the manager about the hub's kinds, and
//! those of the workload control plane about DRBDResources, VirtualMachines and their migrations [S1].
//! A server in front of them reads the facts and carries the answer; nothing here asks anybody.
//!
//! Admission is an early voice. What it refuses, a reconciler would say in a condition later; what it
//! lets through, a reconciler still checks. So it may be strict about what a person asks, and must never
//! stand in the way of what the product or Kubernetes has to finish. The rules that hold for every kind:
//!
//! - An update that leaves `spec` as it is passes unseen: finalizers, owners, labels and status are
//!   written by controllers, and an object that cannot lose its finalizer can never be deleted.
//! - A deletion that Kubernetes itself asks for passes: its namespace controller and its garbage
//!   collector finish what was begun elsewhere and cannot be undone. To refuse them saves nothing, since
//!   nothing can be made in that namespace and no owner comes back; it only leaves the namespace
//!   Terminating for ever. Where removal has an order, finalizers keep it.
//! - A second deletion of what is already being deleted passes.
//! - Unknown is never taken for absent: what depends on a fact that could not be read is refused with
//!   [`Reason::Unavailable`] and a sentence that says what could not be read. A fact that an answer does
//!   not depend on may be `Unknown`: a server need not read what the operation does not need.
//! - A dry run gets the answer of the real thing: the verdict has no effects, so there is nothing to
//!   leave out.
//! - A creation is never refused with 409: clients, ours among them, take that for "it is there already".
//!
//! Messages that are agreed on stand alone. What the reader can do about it goes with the answer as a
//! warning, which `kubectl` prints for refused requests too.

pub mod drbd_resource;
pub mod failover_request;
pub mod migration;
pub mod policy;
pub mod protection_group;
pub mod protection_request;
pub mod rpo_event;
mod source_cluster;
pub mod test_failover;
pub mod virtual_machine;
mod who;
pub mod zone;

use farshore_api::{
    DRBDReplicationPolicy, DRBDResource, FailoverRequest, ProtectionGroup, ProtectionRequest,
    ProtectionZone, RPOEvent, TestFailover,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

pub use who::{Ours, Requester, Subjects};

use crate::Seen;

/// One request to an API server, as its webhooks are asked about it.
#[derive(Clone, Debug)]
pub struct Asked<T> {
    /// What is to happen, with the objects.
    pub change: Change<T>,
    /// Who asks.
    pub by: Requester,
    /// Whether nothing will be stored. No verdict looks at it.
    pub dry_run: bool,
}

/// An operation with the objects that it has: it cannot lack one.
#[derive(Clone, Debug)]
pub enum Change<T> {
    /// A new object, defaults filled in.
    Create { new: T },
    /// A stored object and what it shall become.
    Update { old: T, new: T },
    /// A stored object.
    Delete { old: T },
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Why not; `None` when it is allowed.
    pub refusal: Option<Refusal>,
    /// Sentences for the person who asks, allowed or not. Kubernetes cuts each after 256 characters.
    pub warnings: Vec<String>,
}

/// Why something is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Kind of refusal: `status.reason` and `status.code`.
    pub reason: Reason,
    /// The sentence: `status.message`.
    pub message: String,
    /// Path of the field that it is about: the one cause in `status.details`. `None` when it is about the
    /// object as a whole, which the message then names.
    pub field: Option<String>,
}

/// Kind of a refusal, named as Kubernetes names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Reason {
    /// The object itself is wrong: 422.
    Invalid,
    /// Not by this requester, or not in this state: 403.
    Forbidden,
    /// Something else goes on with the object, and ends: 409. Only for updates and deletions.
    Conflict,
    /// A fact could not be read: 503.
    Unavailable,
}

impl Reason {
    /// HTTP status code.
    pub fn code(self) -> u16 {
        match self {
            Self::Invalid => 422,
            Self::Forbidden => 403,
            Self::Conflict => 409,
            Self::Unavailable => 503,
        }
    }

    /// The reason as it stands in a Status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid",
            Self::Forbidden => "Forbidden",
            Self::Conflict => "Conflict",
            Self::Unavailable => "ServiceUnavailable",
        }
    }
}

impl Verdict {
    /// Whether the request may go on.
    pub fn is_allowed(&self) -> bool {
        self.refusal.is_none()
    }

    /// The verdict of rules that ran until one of them said no.
    fn of(rules: Result<(), Stop>, mut warnings: Vec<String>) -> Self {
        let Err(stop) = rules else {
            return Self {
                refusal: None,
                warnings,
            };
        };
        warnings.clear();
        warnings.extend(stop.help);
        Self {
            refusal: Some(stop.refusal),
            warnings,
        }
    }
}

/// A rule's no, with what the reader can do about it.
#[derive(Debug)]
struct Stop {
    refusal: Refusal,
    help: Option<String>,
}

impl Stop {
    fn new(reason: Reason, field: &str, message: impl Into<String>) -> Self {
        Self {
            refusal: Refusal {
                reason,
                message: message.into(),
                field: (!field.is_empty()).then(|| field.into()),
            },
            help: None,
        }
    }

    fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new(Reason::Invalid, field, message)
    }

    fn forbidden(field: &str, message: impl Into<String>) -> Self {
        Self::new(Reason::Forbidden, field, message)
    }

    fn conflict(field: &str, message: impl Into<String>) -> Self {
        Self::new(Reason::Conflict, field, message)
    }

    /// What to do next, for a message that is agreed on and does not say so.
    fn help(mut self, what: impl Into<String>) -> Self {
        self.help = Some(what.into());
        self
    }
}

/// A fact that the answer depends on: there, or known not to be there.
fn known<'a, T>(fact: &'a Seen<T>, what: &str) -> Result<Option<&'a T>, Stop> {
    match fact {
        Seen::Present(value) => Ok(Some(value)),
        Seen::Absent => Ok(None),
        Seen::Unknown(why) => Err(Stop::new(
            Reason::Unavailable,
            "",
            format!(
                "{what} could not be read ({why}), and the answer depends on it. Nothing was changed; try again in a moment"
            ),
        )),
    }
}

/// A list of which none is as good as empty.
fn known_all<'a, T>(fact: &'a Seen<Vec<T>>, what: &str) -> Result<&'a [T], Stop> {
    Ok(known(fact, what)?.map_or(&[], Vec::as_slice))
}

/// A field that keeps the value it was created with.
fn fixed<T: PartialEq>(old: &T, new: &T, field: &str, message: &str) -> Result<(), Stop> {
    if old == new {
        return Ok(());
    }
    Err(Stop::invalid(field, message))
}

/// What every kind under review can say of itself.
pub trait Reviewed {
    /// Whether its deletion has begun.
    fn is_leaving(&self) -> bool;
    /// Whether both have the same `spec`.
    fn same_spec(&self, other: &Self) -> bool;
}

impl<T: Reviewed> Asked<T> {
    /// Whether the answer is the same whatever the facts are, by the rules that hold for every kind: then
    /// a server need not read any before it calls `judge`.
    pub fn passes(&self) -> bool {
        match &self.change {
            Change::Create { .. } => false,
            Change::Update { old, new } => old.same_spec(new),
            Change::Delete { old } => old.is_leaving() || self.by.is_kubernetes(),
        }
    }
}

macro_rules! reviewed {
    ($($kind:ty),+) => { $(
        impl Reviewed for $kind {
            fn is_leaving(&self) -> bool {
                self.metadata.deletion_timestamp.is_some()
            }
            fn same_spec(&self, other: &Self) -> bool {
                self.spec == other.spec
            }
        }
    )+ };
}
reviewed!(
    DRBDReplicationPolicy,
    DRBDResource,
    FailoverRequest,
    ProtectionGroup,
    ProtectionRequest,
    ProtectionZone,
    RPOEvent,
    TestFailover
);

/// Objects of KubeVirt, which have no type here.
impl Reviewed for Value {
    fn is_leaving(&self) -> bool {
        self.pointer("/metadata/deletionTimestamp")
            .is_some_and(|t| !t.is_null())
    }

    fn same_spec(&self, other: &Self) -> bool {
        self.get("spec") == other.get("spec")
    }
}

fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

fn namespace(metadata: &ObjectMeta) -> &str {
    metadata.namespace.as_deref().unwrap_or_default()
}

/// The zone that a new object of its namespace needs [S1]: there, staying, its clusters validated.
fn open_zone<'a>(
    zone: &'a Seen<ProtectionZone>,
    namespace: &str,
) -> Result<&'a ProtectionZone, Stop> {
    let zone = any_zone(zone, namespace)?;
    let named = name(&zone.metadata);
    if zone.is_leaving() {
        let message = format!(
            "ProtectionZone {named} is being deleted; create nothing new in namespace {namespace} until it is made again"
        );
        return Err(Stop::forbidden("metadata.namespace", message));
    }
    match crate::protection::zone_refusal(zone) {
        None => Ok(zone),
        Some(message) => Err(Stop::forbidden("metadata.namespace", message).help(format!(
            "Try again when its condition ClustersValidated is True: kubectl -n {namespace} describe protectionzone {named}"
        ))),
    }
}

/// The zone of a namespace, in whatever state.
fn any_zone<'a>(
    zone: &'a Seen<ProtectionZone>,
    namespace: &str,
) -> Result<&'a ProtectionZone, Stop> {
    let what = format!("the ProtectionZone of namespace {namespace}");
    known(zone, &what)?.ok_or_else(|| {
        let message = format!(
            "there is no ProtectionZone in namespace {namespace}; create one first, or use the namespace of a zone"
        );
        Stop::forbidden("metadata.namespace", message)
    })
}

/// Names of a zone's clusters.
fn clusters(zone: &ProtectionZone) -> Vec<&str> {
    zone.spec.clusters.iter().map(|c| c.name.as_str()).collect()
}

//! The safety invariants, checked at every change of every cluster.
//!
//! The last line of defence (a disk that is not Primary cannot be opened) hides what the lines before
//! it let through. So the order of the steps is checked too, not only their outcome.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farshore_api::meta::{WORKLOAD_NAMESPACE, annotations, taints};
use farshore_apiserver::Commit;
use farshore_lab::guests::Guests;
use farshore_runtime::Clock;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::model::{Model, key, number, text};
use crate::outcome::Violation;
use crate::schedule::{Stem, other};
use crate::trace::Trace;

/// Time for a rollback, after the budget.
const ROLLBACK_SECONDS: i64 = 60;
/// Longest pause of the manager between two tries, and some.
const GRACE_SECONDS: i64 = 90;
/// Deletions of these on a site are what the invariant about the unknown is about: nobody asked.
const PRECIOUS: [&str; 5] = [
    "DRBDResource",
    "DRBDVolume",
    "PersistentVolumeClaim",
    "ProtectionGroup",
    "VirtualMachine",
];

/// Watches a lab; clones share what was seen.
#[derive(Clone)]
pub struct Checker(Arc<Mutex<Inner>>);

struct Inner {
    clock: Clock,
    guests: Guests,
    trace: Trace,
    model: Model,
    /// Group of each VM, both as `namespace/name` and name.
    groups: BTreeMap<String, String>,
    /// Epochs at which a side has reported a role: cluster, resource, role, epoch.
    reported: BTreeSet<(String, String, String, i64)>,
    /// Whether a person takes quorum taints off right now: what they do is their decision.
    by_hand: bool,
    /// Violations of the guests that were told already.
    told: usize,
    violations: Vec<Violation>,
}

impl Checker {
    /// A checker of a history.
    pub fn new(stem: &Stem, clock: Clock, guests: Guests, trace: Trace) -> Self {
        let vm = |group: &str, n: usize| format!("{group}/{}", vm_name(group, n));
        let groups = stem
            .groups
            .iter()
            .flat_map(|g| (0..g.vms.len()).map(move |n| (vm(&g.name, n), g.name.clone())))
            .collect();
        Self(Arc::new(Mutex::new(Inner {
            clock,
            guests,
            trace,
            model: Model::default(),
            groups,
            reported: BTreeSet::new(),
            by_hand: false,
            told: 0,
            violations: Vec::new(),
        })))
    }

    /// Says whether a person takes quorum taints off from now on.
    pub fn by_hand(&self, on: bool) {
        self.lock().by_hand = on;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change on a cluster.
    pub fn changed(&self, cluster: &str, commit: &Commit<'_>) {
        let mut inner = self.lock();
        inner.look(cluster, commit);
        inner.model.take(cluster, commit.object, commit.deleted);
        inner.guests_on_one_side();
    }

    /// Something that was found otherwise.
    pub fn broken(&self, invariant: &'static str, what: &str) {
        self.lock().broken(invariant, what);
    }

    /// All that was broken so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Failovers that should have ended by now. `healed` is when the last thing was mended that keeps
    /// the manager from its work on the hub.
    pub fn overdue(&self, healed: Timestamp) {
        let mut inner = self.lock();
        let now = inner.clock.now();
        let mut late = Vec::new();
        for failover in inner.model.all("hub", "FailoverRequest") {
            let Ok(deadline) = text(failover, "/status/deadline").parse::<Timestamp>() else {
                continue;
            };
            let limit = deadline + SignedDuration::from_secs(ROLLBACK_SECONDS);
            let limit = limit.max(healed) + SignedDuration::from_secs(GRACE_SECONDS);
            if !ended(failover) && now > limit {
                late.push(format!(
                    "FailoverRequest {} is {} although its budget ended at {deadline}: {}",
                    key(failover),
                    text(failover, "/status/state"),
                    text(failover, "/status/message"),
                ));
            }
        }
        for text in late {
            inner.broken("ends", &text);
        }
    }

    /// Failovers that have not ended, in words.
    pub fn open(&self) -> Vec<String> {
        let inner = self.lock();
        let open = inner.model.all("hub", "FailoverRequest");
        open.filter(|f| !ended(f))
            .map(|f| {
                format!(
                    "{} ({}): {}",
                    key(f),
                    text(f, "/status/state"),
                    text(f, "/status/message")
                )
            })
            .collect()
    }

    /// An object, as last committed.
    pub fn object(&self, cluster: &str, kind: &str, key: &str) -> Option<Value> {
        self.lock().model.get(cluster, kind, key).cloned()
    }

    /// All objects of a kind.
    pub fn objects(&self, cluster: &str, kind: &str) -> Vec<Value> {
        self.lock().model.all(cluster, kind).cloned().collect()
    }
}

/// Name of a group's `n`-th VM.
pub fn vm_name(group: &str, n: usize) -> String {
    format!("{group}{n}")
}

fn ended(failover: &Value) -> bool {
    let queues = failover["spec"]["queue"] == Value::Bool(true);
    match text(failover, "/status/state") {
        "Completed" | "Failed" => true,
        "Blocked" => !queues,
        _ => false,
    }
}

impl Inner {
    fn broken(&mut self, invariant: &'static str, what: &str) {
        // One telling of each is enough: what follows from it is mostly noise.
        if self.violations.iter().any(|v| v.invariant == invariant) {
            return;
        }
        let text = format!("{:.4} {what}", self.trace.seconds());
        self.trace.did(&format!("VIOLATION of {invariant}: {what}"));
        let invariant = invariant.into();
        self.violations.push(Violation { invariant, text });
    }

    fn guests_on_one_side(&mut self) {
        let all = self.guests.violations();
        for text in all.iter().skip(self.told) {
            self.broken("one-place", text);
        }
        self.told = all.len();
    }

    fn look(&mut self, cluster: &str, commit: &Commit<'_>) {
        let object = commit.object;
        if cluster != "hub" {
            self.nothing_precious_goes(cluster, commit);
        }
        match (cluster, text(object, "/kind"), commit.previous) {
            ("hub", "ProtectionRequest", Some(before)) => self.flips_when_stopped(before, object),
            ("hub", "FailoverRequest", Some(before)) => self.completes_on_target(before, object),
            ("hub", "Lease", Some(before)) => self.one_holder(before, object, commit.deleted),
            ("hub", ..) => {}
            (_, "DRBDResource", before) => self.roles_in_order(cluster, before, object),
            (_, "ProtectionGroup", Some(before)) => {
                self.starts_when_primary(cluster, before, object)
            }
            (_, "Namespace", Some(before)) => self.claim_stays(cluster, before, object),
            (_, "Node", Some(before)) => self.taints_go_with_care(cluster, before, object),
            _ => {}
        }
    }

    /// Unknown is not absent: no object of a protected VM is deleted, for nobody asked for it.
    fn nothing_precious_goes(&mut self, cluster: &str, commit: &Commit<'_>) {
        let kind = text(commit.object, "/kind");
        let leaving = !text(commit.object, "/metadata/deletionTimestamp").is_empty();
        if PRECIOUS.contains(&kind) && (commit.deleted || leaving) {
            let what = format!("{kind} {} on {cluster} is deleted", key(commit.object));
            self.broken("unknown-is-not-absent", &what);
        }
    }

    /// `sourceCluster` changes only when the VM is off where it was.
    fn flips_when_stopped(&mut self, before: &Value, after: &Value) {
        let (from, to) = (
            text(before, "/spec/sourceCluster"),
            text(after, "/spec/sourceCluster"),
        );
        if from == to || from.is_empty() {
            return;
        }
        let vm = format!(
            "{}/{}",
            text(after, "/spec/vmNamespace"),
            text(after, "/spec/vmName")
        );
        let running = self.guests.places(&vm).iter().any(|c| c == from);
        let group = self.groups.get(&vm).cloned().unwrap_or_default();
        let mirror = format!("{}/{group}", text(after, "/metadata/namespace"));
        let told = self.model.get(from, "ProtectionGroup", &mirror);
        let stopped = told.is_some_and(|m| text(m, "/spec/desiredState") == "stopped");
        if running || !stopped {
            let what = format!(
                "sourceCluster of {} changes from {from} to {to} while its VM {} and its group there is told to be {}",
                key(after),
                if running { "runs" } else { "is off" },
                told.map_or("(no mirror)", |m| text(m, "/spec/desiredState")),
            );
            self.broken("flip-after-stop", &what);
        }
    }

    /// Epochs rise; both sides are never told to be Primary; the new side is told only after the old
    /// one has reported Secondary.
    fn roles_in_order(&mut self, cluster: &str, before: Option<&Value>, after: &Value) {
        let name = key(after);
        let reported = (
            text(after, "/status/role"),
            number(after, "/status/roleEpoch"),
        );
        self.reported
            .insert((cluster.into(), name.clone(), reported.0.into(), reported.1));
        let epoch = number(after, "/spec/roleEpoch");
        let primary = text(after, "/spec/role") == "Primary";
        let Some(before) = before else { return };
        if epoch < number(before, "/spec/roleEpoch") {
            self.broken("roles", &format!("the epoch of {name} on {cluster} falls"));
        }
        if !primary || text(before, "/spec/role") == "Primary" {
            return;
        }
        let peer = other(cluster);
        let there = self.model.get(peer, "DRBDResource", &name);
        if there.is_some_and(|p| text(p, "/spec/role") == "Primary") {
            let what = format!("{name} is told to be Primary on {cluster} and on {peer}");
            self.broken("roles", &what);
        }
        let secondary = self
            .reported
            .iter()
            .any(|(c, n, role, e)| c == peer && *n == name && role == "Secondary" && *e >= epoch);
        if !secondary {
            let what = format!(
                "{name} is told to be Primary on {cluster} at epoch {epoch} before {peer} has reported Secondary"
            );
            self.broken("roles", &what);
        }
    }

    /// A group is started by a failover only where all its disks were seen Primary, and never told to
    /// run on both sides.
    fn starts_when_primary(&mut self, cluster: &str, before: &Value, after: &Value) {
        let told = |o| text(o, "/spec/desiredState");
        if told(after) != "running" || told(before) == "running" {
            return;
        }
        let (namespace, group) = (
            text(after, "/metadata/namespace"),
            text(after, "/metadata/name"),
        );
        let peer = other(cluster);
        let there = self.model.get(peer, "ProtectionGroup", &key(after));
        if there.is_some_and(|m| told(m) == "running") {
            let what = format!("group {group} is told to run on {cluster} and on {peer}");
            self.broken("start-on-one-side", &what);
        }
        let by_failover = self
            .model
            .holder(namespace, group)
            .is_some_and(|f| text(f, "/spec/targetCluster") == cluster);
        if !by_failover {
            return;
        }
        let vms: Vec<String> = self
            .groups
            .iter()
            .filter(|(_, g)| *g == group)
            .map(|(vm, _)| vm.clone())
            .collect();
        for vm in vms {
            let (of, name) = vm.split_once('/').unwrap_or_default();
            let resource = self.model.resource(cluster, of, name);
            let ready = resource.is_some_and(|r| {
                let seen = (
                    cluster.to_owned(),
                    key(r),
                    "Primary".to_owned(),
                    number(r, "/spec/roleEpoch"),
                );
                text(r, "/spec/role") == "Primary" && self.reported.contains(&seen)
            });
            if !ready {
                let what = format!(
                    "group {group} is started on {cluster} before the disks of {vm} were seen Primary there"
                );
                self.broken("start-after-primary", &what);
            }
        }
    }

    /// The lock of a group goes from one request to another only when it is released or has expired,
    /// and is released only by a request that has ended.
    fn one_holder(&mut self, before: &Value, after: &Value, deleted: bool) {
        if !text(after, "/metadata/name").starts_with("failover-lock-") {
            return;
        }
        let (was, is) = (
            text(before, "/spec/holderIdentity"),
            text(after, "/spec/holderIdentity"),
        );
        if was.is_empty() || (was == is && !deleted) {
            return;
        }
        if is.is_empty() || deleted {
            let holder = self.model.failover(was);
            let early = holder.filter(|f| {
                let begun = !matches!(text(f, "/status/state"), "" | "Pending" | "Blocked");
                begun && !ended(f)
            });
            if let Some(early) = early {
                let what = format!(
                    "FailoverRequest {} lets go of its lock in {}",
                    key(early),
                    text(early, "/status/state")
                );
                self.broken("lock-until-the-end", &what);
            }
            return;
        }
        let renewed = text(before, "/spec/renewTime").parse::<Timestamp>();
        let seconds = number(before, "/spec/leaseDurationSeconds");
        let expired =
            renewed.is_ok_and(|at| at + SignedDuration::from_secs(seconds) <= self.clock.now());
        if !expired {
            let what = format!("the lock {} is taken from {was} by {is}", key(after));
            self.broken("one-holder", &what);
        }
    }

    /// A zone's claim of a cluster is never taken over.
    fn claim_stays(&mut self, cluster: &str, before: &Value, after: &Value) {
        if text(after, "/metadata/name") != WORKLOAD_NAMESPACE {
            return;
        }
        let owner = |o: &Value| {
            o["metadata"]["annotations"][annotations::OWNER_ZONE_NAMESPACE_UID]
                .as_str()
                .unwrap_or("")
                .to_owned()
        };
        let (was, is) = (owner(before), owner(after));
        if !was.is_empty() && was != is {
            let what = format!("the claim on {cluster} goes from {was} to {is:?}");
            self.broken("zone-claim", &what);
        }
    }

    /// A quorum taint goes only when no other group runs on that node, unless it was forced.
    fn taints_go_with_care(&mut self, cluster: &str, before: &Value, after: &Value) {
        let tainted = |o: &Value| {
            let all = o["spec"]["taints"].as_array().into_iter().flatten();
            all.filter(|t| taints::QUORUM.contains(&text(t, "/key")))
                .count()
        };
        if self.by_hand || tainted(after) >= tainted(before) {
            return;
        }
        let node = text(after, "/metadata/name");
        let movers: Vec<(String, bool)> = self
            .model
            .all("hub", "FailoverRequest")
            .filter(|f| !ended(f) && text(f, "/spec/targetCluster") == cluster)
            .map(|f| {
                let forced = f["spec"]["force"] == Value::Bool(true);
                (text(f, "/spec/protectionGroupRef/name").to_owned(), forced)
            })
            .collect();
        if movers.is_empty() || movers.iter().any(|(_, forced)| *forced) {
            return;
        }
        let hurt = self.groups.iter().find(|(vm, group)| {
            let (of, name) = vm.split_once('/').unwrap_or_default();
            let here = self.model.resource(cluster, of, name);
            !movers.iter().any(|(moved, _)| moved == *group)
                && self.guests.places(vm).iter().any(|c| c == cluster)
                && here.is_some_and(|r| text(r, "/spec/nodeName") == node)
        });
        if let Some((vm, _)) = hurt {
            let what = format!("quorum taints of {node} are removed while {vm} runs there");
            self.broken("taints-with-care", &what);
        }
    }

    /// `Completed` is said only when the group was moved, and runs nowhere else.
    fn completes_on_target(&mut self, before: &Value, after: &Value) {
        let state = |o| text(o, "/status/state");
        if state(after) != "Completed" || state(before) == "Completed" {
            return;
        }
        let target = text(after, "/spec/targetCluster");
        let group = text(after, "/spec/protectionGroupRef/name");
        let vms: Vec<String> = self
            .groups
            .iter()
            .filter(|(_, g)| *g == group)
            .map(|(vm, _)| vm.clone())
            .collect();
        for vm in vms {
            let places = self.guests.places(&vm);
            if places.iter().any(|c| c != target) {
                let what = format!(
                    "FailoverRequest {} to {target} is Completed while {vm} runs on {}",
                    key(after),
                    places.join(", ")
                );
                self.broken("completed-is-true", &what);
            }
        }
    }
}

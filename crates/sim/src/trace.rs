//! The log of a history: every request of our processes, every change on every cluster, everything
//! that users did and that broke, in the order in which it happened.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farshore_apiserver::Commit;
use farshore_lab::faults::Traffic;
use serde_json::Value;
use tokio::time::Instant;

/// A log; clones share it.
#[derive(Clone)]
pub struct Trace {
    begun: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Trace {
    /// An empty log whose times count from now.
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            lines: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Virtual time since the beginning, in seconds.
    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    fn push(&self, text: &str) {
        let line = format!("{:>11.4} {text}", self.seconds());
        self.lock().push(line);
    }

    /// Something that the simulation itself did.
    pub fn did(&self, what: &str) {
        self.push(&format!("*** {what}"));
    }

    /// A request on the wire.
    pub fn passed(&self, traffic: &Traffic<'_>) {
        let Traffic {
            route,
            method,
            target,
            outcome,
        } = traffic;
        self.push(&format!("    {route} {method} {target} {outcome}"));
    }

    /// A change on a cluster.
    pub fn changed(&self, cluster: &str, commit: &Commit<'_>) {
        let object = commit.object;
        let mut hasher = DefaultHasher::new();
        object.to_string().hash(&mut hasher);
        let how = match (commit.deleted, commit.previous) {
            (true, _) => "deleted",
            (_, None) => "created",
            _ => "changed",
        };
        let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or("");
        self.push(&format!(
            "  + {cluster} {how} {} {}/{} at {} #{:016x}{}",
            text("/kind"),
            text("/metadata/namespace"),
            text("/metadata/name"),
            commit.revision,
            hasher.finish(),
            digest(object),
        ));
    }

    /// All lines.
    pub fn lines(&self) -> Vec<String> {
        self.lock().clone()
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self::new()
    }
}

/// The hash of a log.
pub fn hash(lines: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    lines.hash(&mut hasher);
    hasher.finish()
}

/// What a reader wants to know of an object at a glance.
fn digest(object: &Value) -> String {
    let fields: &[&str] = match object["kind"].as_str().unwrap_or_default() {
        "FailoverRequest" => &["/spec/targetCluster", "/status/state", "/status/message"],
        "ProtectionGroup" => &[
            "/spec/desiredState",
            "/status/currentState",
            "/status/activeCluster",
        ],
        "ProtectionRequest" => &["/spec/sourceCluster", "/status/phase"],
        "DRBDResource" => &[
            "/spec/role",
            "/spec/roleEpoch",
            "/status/role",
            "/status/roleEpoch",
            "/status/connectionState",
            "/status/diskState",
            "/status/message",
        ],
        "Lease" => &["/spec/holderIdentity"],
        "VirtualMachine" => &["/spec/runStrategy", "/status/printableStatus"],
        "VirtualMachineInstance" => &["/status/phase", "/metadata/deletionTimestamp"],
        "Event" => &["/reason", "/note"],
        _ => &[],
    };
    let told: Vec<String> = fields
        .iter()
        .filter_map(|at| match object.pointer(at)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        })
        .collect();
    if told.is_empty() {
        String::new()
    } else {
        format!(" [{}]", told.join(", "))
    }
}

/// The lines worth reading: what was done, and changes of what matters.
pub fn story(lines: &[String]) -> Vec<&String> {
    const KINDS: [&str; 7] = [
        "FailoverRequest",
        "ProtectionGroup",
        "ProtectionRequest",
        "DRBDResource",
        "VirtualMachine",
        "Node ",
        "Lease dr-metro/failover",
    ];
    let worth = |line: &&String| {
        line.contains(" *** ")
            || (line.contains("   + ") && KINDS.iter().any(|kind| line.contains(kind)))
    };
    lines.iter().filter(worth).collect()
}

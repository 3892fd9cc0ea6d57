//! A schedule: a small world, what its users do, and what goes wrong, as data. It can be written
//! down, replayed and made shorter.

use farshore_lab::faults::Fault;
use farshore_lab::fence::Moment;
use serde::{Deserialize, Serialize};

/// Everything that a history is a function of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// How the world comes about.
    pub stem: Stem,
    /// Seed of the order of things and of the draws of wire faults, from the drill on.
    pub seed: u64,
    /// Once everything is protected; times count from then.
    pub drill: Part,
    /// Whether each group is moved once more, without any fault, when everything has healed.
    pub proof: bool,
}

/// The beginning of a history, until everything is protected. Histories with the same stem share it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stem {
    /// Seed of names, of the order of things and of the draws of wire faults.
    pub seed: u64,
    /// Worker nodes of each workload cluster.
    pub nodes: usize,
    /// The groups.
    pub groups: Vec<Group>,
    /// While the zone and the protection are set up; times count from the start of the lab.
    pub setup: Part,
}

/// One group of VMs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// Name, also of the namespace of its VMs.
    pub name: String,
    /// Where it runs at first.
    pub home: String,
    /// Disks of each of its VMs.
    pub vms: Vec<usize>,
}

/// What happens in one part of a history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What users do and what breaks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// What goes wrong on the wire.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// When, in milliseconds.
    pub at_ms: u64,
    /// What.
    pub what: What,
}

/// What can happen. `for_ms` is how long it lasts before it is mended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum What {
    /// A user asks for a failover.
    #[serde(rename_all = "camelCase")]
    FailOver {
        /// Name of the request.
        name: String,
        /// Group.
        group: String,
        /// Where to.
        target: String,
        /// Budget in seconds, if not the zone's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout: Option<u32>,
        /// Waits for groups in the way.
        #[serde(default)]
        queue: bool,
        /// Passes over groups in the way.
        #[serde(default)]
        force: bool,
    },
    /// A user wants a failover stopped.
    Abort {
        /// Name of the request.
        name: String,
    },
    /// A user deletes a request.
    Delete {
        /// Name of the request.
        name: String,
    },
    /// A user stops a group, and starts it again later.
    #[serde(rename_all = "camelCase")]
    Pause {
        /// Group.
        group: String,
        /// How long.
        for_ms: u64,
    },
    /// A user makes a second zone of the same clusters.
    RivalZone,
    /// A quorum taint appears on every node of a cluster; a person takes it off at the end.
    Taint {
        /// Cluster.
        cluster: String,
    },
    /// The replication link is cut.
    #[serde(rename_all = "camelCase")]
    Link {
        /// How long.
        for_ms: u64,
    },
    /// A node loses power.
    #[serde(rename_all = "camelCase")]
    Node {
        /// Cluster.
        cluster: String,
        /// Node.
        node: String,
        /// How long.
        for_ms: u64,
    },
    /// An API server is down; the nodes go on.
    #[serde(rename_all = "camelCase")]
    Api {
        /// Cluster.
        cluster: String,
        /// How long.
        for_ms: u64,
    },
    /// A whole site is lost.
    #[serde(rename_all = "camelCase")]
    Site {
        /// Cluster.
        cluster: String,
        /// How long.
        for_ms: u64,
    },
    /// An API server answers late, to everybody.
    #[serde(rename_all = "camelCase")]
    Slow {
        /// Cluster.
        cluster: String,
        /// By how much.
        ms: u64,
        /// How long.
        for_ms: u64,
    },
    /// A process is killed; it starts again by itself.
    Kill {
        /// Name, e.g. `tsr-manager`.
        process: String,
        /// On this cluster alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
    },
    /// A process dies at one of its next writes.
    KillAtWrite {
        /// Name, e.g. `tsr-manager`.
        process: String,
        /// On this cluster alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        /// Which write, from 1.
        write: u32,
        /// When at it.
        moment: Moment,
    },
}

impl What {
    /// How long it lasts.
    pub fn lasts_ms(&self) -> u64 {
        match self {
            Self::Pause { for_ms, .. }
            | Self::Link { for_ms }
            | Self::Node { for_ms, .. }
            | Self::Api { for_ms, .. }
            | Self::Site { for_ms, .. }
            | Self::Slow { for_ms, .. } => *for_ms,
            _ => 0,
        }
    }
}

impl Part {
    /// When the last of it is over, in milliseconds.
    pub fn ends_ms(&self) -> u64 {
        let events = self.events.iter().map(|e| e.at_ms + e.what.lasts_ms());
        let faults = self.faults.iter().map(|f| f.to_ms);
        events.chain(faults).max().unwrap_or(0)
    }

    fn len(&self) -> usize {
        self.events.len() + self.faults.len()
    }

    /// Whether nothing happens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn remove(&mut self, at: usize) {
        if at < self.events.len() {
            self.events.remove(at);
        } else {
            self.faults.remove(at - self.events.len());
        }
    }
}

impl Schedule {
    /// How many things happen.
    pub fn len(&self) -> usize {
        self.stem.setup.len() + self.drill.len()
    }

    /// Whether nothing happens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same without the `at`-th thing that happens.
    pub fn without(&self, at: usize) -> Self {
        let mut shorter = self.clone();
        if at < self.stem.setup.len() {
            shorter.stem.setup.remove(at);
        } else {
            shorter.drill.remove(at - self.stem.setup.len());
        }
        shorter
    }
}

/// The other workload cluster.
pub fn other(cluster: &str) -> &'static str {
    if cluster == "east" { "west" } else { "east" }
}

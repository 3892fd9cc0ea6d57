//! Faults on the way between a process and an API server, as data: what, whom, from when to when.
//!
//! A request that is on the wire lands even if its client dies: the server's work runs on a task of
//! its own. Every draw comes from a stream of its own for each client, server and kind of fault, so
//! that one fault less leaves all others as they were.

mod layer;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::draw::Draw;
use crate::pulse::Pulse;
pub use layer::FaultLayer;

/// One fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// When it begins, in milliseconds since the plan began.
    pub from_ms: u64,
    /// When it has healed.
    pub to_ms: u64,
    /// Whom it hits.
    #[serde(flatten)]
    pub whom: Whom,
    /// What happens.
    pub what: What,
}

/// Which requests a fault hits. What is not named hits all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Whom {
    /// Those of this process, e.g. `tsr-manager`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Those of processes on this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Those to the API server of this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// What a fault does. Percentages are of the requests that could be hit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum What {
    /// Each way takes a drawn time, in milliseconds.
    #[serde(rename_all = "camelCase")]
    Latency {
        /// At least.
        min_ms: u64,
        /// At most.
        max_ms: u64,
    },
    /// The server answers 500 or 503 and does nothing.
    ServerError {
        /// Share of requests.
        percent: u64,
    },
    /// The server answers 429 with Retry-After and does nothing.
    #[serde(rename_all = "camelCase")]
    TooManyRequests {
        /// Share of requests.
        percent: u64,
        /// What Retry-After says.
        retry_after_seconds: u64,
    },
    /// The connection breaks before the request has reached the server.
    Dropped {
        /// Share of requests.
        percent: u64,
    },
    /// The connection breaks after the server has done its work: the answer is lost.
    AnswerLost {
        /// Share of requests.
        percent: u64,
    },
    /// Nothing passes in either direction until it is healed. Open watches fall silent and break then.
    Partition,
    /// Watches hold back what happens until it is healed.
    StaleWatch,
    /// Watches fall silent for good without an error, as on a half-open connection.
    SilentWatch,
    /// Open watches, and this share of new ones, end with 410 Expired in the stream.
    ExpiredWatch {
        /// Share of new watches.
        percent: u64,
    },
    /// Updates and patches are answered 409, as if somebody else had been faster.
    Conflict {
        /// Share of updates and patches.
        percent: u64,
    },
}

/// From whom to whom a request goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Image of the process.
    pub process: String,
    /// Cluster that it runs on.
    pub on: String,
    /// Cluster whose API server it calls.
    pub to: String,
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{} -> {}", short(&self.process), self.on, self.to)
    }
}

/// The name of a process without its registry.
fn short(image: &str) -> &str {
    image.rsplit('/').next().unwrap_or(image)
}

impl Whom {
    /// Whether a route is meant.
    pub fn covers(&self, route: &Route) -> bool {
        let fits = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|w| w == is);
        fits(&self.process, short(&route.process))
            && fits(&self.on, &route.on)
            && fits(&self.to, &route.to)
    }
}

/// One answered request, for whoever listens on the wire.
pub struct Traffic<'a> {
    /// From whom to whom.
    pub route: &'a Route,
    /// Method.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// Status code, or what went wrong.
    pub outcome: &'a str,
}

type Listener = Arc<dyn Fn(&Traffic<'_>) + Send + Sync>;

/// The faults of a lab; none until they are set. Clones share them.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Inner>>, Arc<Pulse>);

#[derive(Default)]
struct Inner {
    listener: Option<Listener>,
    seed: u64,
    faults: Vec<(Instant, Instant, Fault)>,
    streams: BTreeMap<(Route, &'static str), Draw>,
}

/// What happens to one request.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    /// Time on the way there.
    pub there: Duration,
    /// Time on the way back.
    pub back: Duration,
    /// The connection breaks before.
    pub dropped: bool,
    /// The connection breaks after.
    pub lost: bool,
    /// What is answered in place of the server.
    pub answer: Option<Instead>,
}

/// An answer that does not come from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instead {
    ServerError(u16),
    TooMany(u64),
    Conflict,
    Expired,
}

/// A time in which a watch misbehaves.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub from: Instant,
    pub to: Instant,
    pub how: Misery,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misery {
    Partition,
    Stale,
    Silent,
    Expired,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these faults happen, and none of before; their times count from now.
    pub fn set(&self, seed: u64, faults: &[Fault]) {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut inner = self.lock();
        inner.seed = seed;
        inner.streams.clear();
        inner.faults = faults
            .iter()
            .map(|f| (at(f.from_ms), at(f.to_ms), f.clone()))
            .collect();
        drop(inner);
        self.1.ring();
    }

    /// Number of the plan that is in force.
    pub(crate) fn plan(&self) -> u64 {
        self.1.count()
    }

    /// Waits for a plan after this one.
    pub(crate) async fn planned_after(&self, plan: u64) {
        self.1.beyond(plan).await;
    }

    /// Tells `listener` of every request of a process from now on. From then on, too, the server's
    /// work outlives its client.
    pub fn listen(&self, listener: impl Fn(&Traffic<'_>) + Send + Sync + 'static) {
        self.lock().listener = Some(Arc::new(listener));
    }

    /// Whether anybody cares about what happens on the wire.
    pub(crate) fn matter(&self) -> bool {
        let inner = self.lock();
        inner.listener.is_some() || !inner.faults.is_empty()
    }

    pub(crate) fn tell(&self, traffic: &Traffic<'_>) {
        let listener = self.lock().listener.clone();
        if let Some(listener) = listener {
            listener(traffic);
        }
    }

    /// When the partition that a request meets now has healed.
    pub(crate) fn partitioned_until(&self, route: &Route) -> Option<Instant> {
        let now = Instant::now();
        let inner = self.lock();
        let ends = inner
            .faults
            .iter()
            .filter(|(from, to, f)| {
                *from <= now && now < *to && f.what == What::Partition && f.whom.covers(route)
            })
            .map(|(_, to, _)| *to);
        ends.max()
    }

    /// Draws what happens to a request.
    pub(crate) fn fate(&self, route: &Route, kind: Kind) -> Fate {
        let now = Instant::now();
        let mut inner = self.lock();
        let active: Vec<What> = inner
            .faults
            .iter()
            .filter(|(from, to, f)| *from <= now && now < *to && f.whom.covers(route))
            .map(|(_, _, f)| f.what.clone())
            .collect();
        let mut fate = Fate::default();
        for what in active {
            let mut draw = |purpose| inner.stream(route, purpose).number() % 100;
            match what {
                What::Latency { min_ms, max_ms } => {
                    let mut way = || inner.stream(route, "latency").between(min_ms, max_ms);
                    fate.there += Duration::from_millis(way());
                    fate.back += Duration::from_millis(way());
                }
                What::ServerError { percent } => {
                    if draw("error") < percent {
                        let code = if draw("error") < 50 { 500 } else { 503 };
                        fate.answer = Some(Instead::ServerError(code));
                    }
                }
                What::TooManyRequests {
                    percent,
                    retry_after_seconds,
                } => {
                    if draw("busy") < percent {
                        fate.answer = Some(Instead::TooMany(retry_after_seconds));
                    }
                }
                What::Dropped { percent } => fate.dropped |= draw("dropped") < percent,
                What::AnswerLost { percent } => fate.lost |= draw("lost") < percent,
                What::ExpiredWatch { percent } => {
                    if kind == Kind::Watch && draw("expired") < percent {
                        fate.answer = Some(Instead::Expired);
                    }
                }
                What::Conflict { percent } => {
                    if kind == Kind::Change && draw("conflict") < percent {
                        fate.answer = Some(Instead::Conflict);
                    }
                }
                What::Partition | What::StaleWatch | What::SilentWatch => {}
            }
        }
        fate
    }

    /// What an open watch will meet that was opened at this moment, under this plan.
    pub(crate) fn windows(&self, route: &Route, born: (Instant, u64)) -> Vec<Window> {
        let now = Instant::now();
        let older = born.1 < self.plan();
        let inner = self.lock();
        let mut windows: Vec<Window> = inner
            .faults
            .iter()
            .filter(|(_, to, f)| now < *to && f.whom.covers(route))
            .filter_map(|(from, to, f)| {
                let how = match f.what {
                    What::Partition => Misery::Partition,
                    What::StaleWatch => Misery::Stale,
                    What::SilentWatch => Misery::Silent,
                    // One that was opened in the middle of a storm had its draw already.
                    What::ExpiredWatch { .. } if older || *from > born.0 => Misery::Expired,
                    _ => return None,
                };
                Some(Window {
                    from: *from,
                    to: *to,
                    how,
                })
            })
            .collect();
        windows.sort_by_key(|w| w.from);
        windows
    }
}

/// What a request is about, as far as faults tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Watch,
    /// An update or patch.
    Change,
    Other,
}

impl Inner {
    fn stream(&mut self, route: &Route, purpose: &'static str) -> &mut Draw {
        let seed = self.seed;
        self.streams
            .entry((route.clone(), purpose))
            .or_insert_with(|| Draw::new(seed, &format!("{route} {purpose}")))
    }
}

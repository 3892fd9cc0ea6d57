//! The API servers of a lab: this project's own inside the process, or real ones as child processes.
//! Everything else in the lab uses them through [`Server`] and does not know which they are.

mod audit;
mod dated;
mod gate;
mod keeper;
mod plane;
mod real;
mod reserve;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use farshore_apiserver::{ApiServer, LogEntry, Options};
use farshore_runtime::Clock;
use tokio_util::sync::CancellationToken;

pub use dated::without_news;
pub use real::RealServer;

/// Which API servers a lab has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// The API server of this project, inside this process.
    #[default]
    Embedded,
    /// The real kube-apiserver with etcd and kube-controller-manager, from the folder in KUBEBUILDER_ASSETS.
    Kube,
}

impl Engine {
    /// Whether the servers can run in virtual time; real ones live in the machine's.
    pub fn is_virtual(self) -> bool {
        self == Self::Embedded
    }
}

/// A server of this project with its controllers running.
pub(crate) fn embedded(
    name: &str,
    seed: u64,
    clock: Clock,
    shutdown: &CancellationToken,
) -> ApiServer {
    let server = ApiServer::new(Options {
        name: name.into(),
        now: Arc::new(move || clock.now()),
        seed,
        rbac: true,
        ..Options::default()
    });
    server.spawn(shutdown.clone());
    server
}

/// One cluster's API server.
#[derive(Clone)]
pub enum Server {
    /// Inside this process.
    Embedded(ApiServer),
    /// Child processes.
    Kube(Arc<RealServer>),
}

impl Server {
    /// The server inside this process, if it is one.
    pub fn embedded(&self) -> Option<&ApiServer> {
        match self {
            Self::Embedded(server) => Some(server),
            Self::Kube(_) => None,
        }
    }

    /// Ends its processes, if it has any; an embedded server ends with the lab's shutdown.
    pub fn stop(&self) {
        if let Self::Kube(server) = self {
            server.stop();
        }
    }

    /// Takes the server away from all its clients (connections are refused and open ones break) or
    /// gives it back. What is stored stays.
    pub fn set_down(&self, down: bool) {
        match self {
            Self::Embedded(server) => server.set_down(down),
            Self::Kube(server) => server.gate().set_down(down),
        }
    }

    /// Delays every answer by this much.
    pub fn set_latency(&self, latency: Duration) {
        match self {
            Self::Embedded(server) => server.set_latency(latency),
            Self::Kube(server) => server.gate().set_latency(latency),
        }
    }

    /// A position in the log of requests: what is answered from now on is "since" it.
    pub fn mark(&self) -> u64 {
        match self {
            Self::Embedded(server) => server.request_log().mark(),
            Self::Kube(server) => server.audit_mark(),
        }
    }

    /// Requests answered since a mark, oldest first.
    pub fn requests_since(&self, mark: u64) -> Vec<LogEntry> {
        match self {
            Self::Embedded(server) => server.request_log().since(mark),
            Self::Kube(server) => server.audit_since(mark),
        }
    }

    /// All requests that the log still holds.
    pub fn requests(&self) -> Vec<LogEntry> {
        self.requests_since(0)
    }

    /// Write requests since a mark, whether or not they changed anything.
    pub fn writes_since(&self, mark: u64) -> Vec<LogEntry> {
        let mut all = self.requests_since(mark);
        all.retain(LogEntry::is_write);
        all
    }
}

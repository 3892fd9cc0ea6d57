//! What a process is given when it starts.

use std::collections::BTreeMap;

use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::{Clock, Connector};

/// A running process: who it is, where it runs, what it may use. The same code runs as a binary in
/// a cluster and inside the lab.
#[derive(Clone)]
pub struct Process {
    /// Name of the process, e.g. `workload-manager`; User-Agent of its clients.
    pub name: String,
    /// Name of its pod: holder of its Leases and instance of its Events.
    pub identity: String,
    /// Namespace of its pod.
    pub namespace: String,
    /// Node of its pod, where it matters.
    pub node: Option<String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Arguments, without the program's name.
    pub args: Vec<String>,
    /// Client of the cluster that it runs in.
    pub client: Client,
    /// Makes clients of other clusters.
    pub connector: Connector,
    /// The time.
    pub clock: Clock,
    /// Cancelled when the process shall end.
    pub shutdown: CancellationToken,
}

impl Process {
    /// A variable that must be set and not blank.
    pub fn required(&self, variable: &str) -> Result<&str, ProcessError> {
        match self.env.get(variable).map(|v| v.trim()) {
            Some(value) if !value.is_empty() => Ok(value),
            _ => Err(ProcessError::new(format!(
                "{} does not start: the environment variable {variable} is unset or empty; set it in the container's env",
                self.name
            ))),
        }
    }
}

/// Why a process ended or could not start: a sentence for an operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProcessError(String);

impl ProcessError {
    /// An error of this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

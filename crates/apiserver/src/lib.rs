//! An embeddable Kubernetes API server: one in-memory store, one `tower` service, an optional TLS listener.

pub(crate) mod access;
pub(crate) mod admission;
pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod builtin;
pub(crate) mod conversion;
pub(crate) mod convert;
pub(crate) mod crd;
pub(crate) mod decisions;
pub(crate) mod discovery;
pub(crate) mod duplicates;
pub(crate) mod error;
pub(crate) mod fault;
pub(crate) mod gc;
pub(crate) mod go_json;
pub(crate) mod handlers;
pub(crate) mod hooks;
pub(crate) mod ident;
pub(crate) mod kinds;
pub(crate) mod log;
pub(crate) mod meta;
pub(crate) mod names;
pub(crate) mod negotiate;
pub(crate) mod openapi;
pub(crate) mod patch;
pub(crate) mod peer;
pub(crate) mod protobuf;
pub(crate) mod rbac;
pub(crate) mod registry;
pub(crate) mod request;
pub(crate) mod reviews;
pub(crate) mod rules;
pub(crate) mod schema;
pub(crate) mod selector;
pub(crate) mod server;
pub(crate) mod service;
pub(crate) mod shown;
pub(crate) mod ssa;
pub(crate) mod store;
pub(crate) mod strategy;
pub(crate) mod table;
pub(crate) mod tls;

pub use hooks::Hooks;
pub use log::{LogEntry, RequestLog};
pub use server::{ApiServer, Commit, Options};
pub use service::{ApiBody, ApiService};
pub use tls::{Tls, TlsError};

/// Makes the process-wide tables that are otherwise made on first use. A simulation that counts the random draws of its
/// thread calls this once, before its first run, on another thread; nobody else needs it.
pub fn warm_up() {
    let _ = openapi::prune("", "v1", "ConfigMap", &mut serde_json::json!({}));
    let _ = rbac::default_objects();
}

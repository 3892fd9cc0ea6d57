//! The zone controller against three API servers: the hub and two workload clusters.

#![allow(clippy::unwrap_used)]

mod claims;
mod contracts;
mod probes;
mod rbac;
mod releases;
mod removal;
mod steady;
mod support;
mod trouble;

//! Decisions, as cases and as properties.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod admission;
mod failover;
mod replication;

//! Decisions, as cases and as properties.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod failover;
mod replication;

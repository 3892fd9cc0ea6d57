//! Decisions, as cases and as properties.

mod failover;
mod replication;

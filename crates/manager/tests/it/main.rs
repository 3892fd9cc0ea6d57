//! The hub process against three API servers in-process, in virtual time.

#![allow(clippy::unwrap_used)] // A test that cannot go on should stop.

mod failover;
mod group;
mod kill;
mod policy;
mod protection;
mod workload;
mod world;

//! The failover-controller and the replication-monitor against three API servers.

mod contracts;
mod crash;
mod replication;
mod world;

//! Failover decisions.

mod cases;
mod plan;
mod properties;
mod story;
pub mod world;

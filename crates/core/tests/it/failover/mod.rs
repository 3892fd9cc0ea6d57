//! Failover decisions.

mod cases;
mod properties;
mod story;
pub mod world;

//! DRBD: what a node's kernel is told and what it says.

pub mod model;

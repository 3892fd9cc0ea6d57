//! DRBD: what a node's kernel is told and what it says.

pub mod model;
pub mod node;
pub mod res_file;

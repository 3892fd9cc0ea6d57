//! drbd-node-agent: the only code that runs privileged commands on a node.

pub mod kernel;

//! Groups of VMs that fail over as one.

pub mod hub;
pub mod local;

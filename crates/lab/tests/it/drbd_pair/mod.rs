//! Two node agents, two API servers, the simulated DRBD between them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crash;
mod flows;
mod support;

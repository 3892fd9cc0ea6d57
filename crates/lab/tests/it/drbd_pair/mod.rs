//! Two node agents, two API servers, the simulated DRBD between them.

mod crash;
mod flows;
mod support;

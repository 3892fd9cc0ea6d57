//! The reconcilers against an API server in-process, in virtual time.

#![allow(clippy::unwrap_used)] // A test that cannot go on should stop.

mod group;
mod placement;
mod process;
mod support;

//! The shared shell against an API server in-process, in virtual time.

#![allow(clippy::unwrap_used)] // A test that cannot go on should stop.

mod apply;
mod controller;
mod events;
mod leader;
mod remote;
mod support;

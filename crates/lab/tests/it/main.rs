//! Integration tests of the lab, one binary.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod drbd_kernel;
mod drbd_pair;
mod drbd_properties;
mod engine;
mod guest;
mod pair;
mod readme;
mod scenarios;
mod simulators;

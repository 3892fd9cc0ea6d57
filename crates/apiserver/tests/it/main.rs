//! The server through real clients: kube-rs in-process, kubectl over TLS.

#![allow(clippy::unwrap_used)] // A test that cannot go on should stop.

mod admission;
mod churn;
mod conformance;
mod controllers;
mod conversion;
mod crud;
mod custom;
mod differential;
mod fuzzed;
mod hooks;
mod listing;
mod matching;
mod repeat;
mod sessions;
mod support;
mod watching;
mod wire;

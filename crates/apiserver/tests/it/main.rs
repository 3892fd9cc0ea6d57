//! The server through real clients: kube-rs in-process, kubectl over TLS.

mod controllers;
mod crud;
mod custom;
mod kubectl;
mod listing;
mod support;
mod watching;
mod wire;

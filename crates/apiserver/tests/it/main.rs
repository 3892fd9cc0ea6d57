//! The server through real clients: kube-rs in-process, kubectl over TLS.

mod crud;
mod custom;
mod kubectl;
mod support;

//! The whole system on one machine: clusters, simulators and every operator.

pub mod bench;
pub mod bench_api;
pub mod control;
pub mod demo;
pub mod draw;
pub mod drbd;
pub mod engine;
pub mod faults;
pub mod fence;
pub mod guest;
pub mod guests;
pub mod lab;
pub mod measure;
pub mod processes;
mod pulse;
pub mod sim;
pub mod storage;
pub mod story;
mod timeline;
mod wire;

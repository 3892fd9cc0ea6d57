//! The charts as they render, and what holds them together.

#![allow(clippy::unwrap_used)]

mod lint;
mod records;
mod renders;

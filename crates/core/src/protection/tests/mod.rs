//! Decisions against a small world of two clusters that is a value: steps are applied to it, agents
//! and VMs move in it, and what must never happen is checked after every move.

mod cases;
mod safety;
mod world;

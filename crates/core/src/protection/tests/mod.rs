//! Decisions against a small world of two clusters that is a value: steps are applied to it, agents
//! and VMs move in it, and what must never happen is checked after every move.

mod bad_input;
mod bring_up;
mod flip;
mod health;
mod safety;
mod unprotect;
mod world;

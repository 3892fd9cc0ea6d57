//! Disasters, rehearsed: the whole lab in virtual time, faults drawn from a seed, the safety
//! invariants checked at every write. One seed, one history.

pub mod branches;
pub mod checker;
pub mod draw;
pub mod histories;
pub mod model;
pub mod outcome;
pub mod schedule;
pub mod shrink;
pub mod trace;
pub mod world;

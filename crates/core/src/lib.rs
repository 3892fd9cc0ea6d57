//! Every decision of Farshore, pure: no I/O, no async, no clock, no client.
//!
//! A reconciler elsewhere reads the world into one of the `Observed` structs of this crate, calls
//! `decide(&Observed, now)` and carries out the steps that come back, in order. A reader learns how
//! protection and failover work from this folder alone.

pub mod admission;
pub mod conditions;
pub mod drbd;
pub mod failover;
pub mod group;
pub mod note;
pub mod placement;
pub mod protection;
pub mod quantity;
pub mod replication;
pub mod seen;
pub mod status;
pub mod vm;
pub mod words;
pub mod zone;

pub use note::Note;
pub use seen::Seen;
pub use status::status_differs;

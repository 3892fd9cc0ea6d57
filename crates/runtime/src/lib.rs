//! What every process shares: clients, the clock, apply and status helpers, events, controllers,
//! leader election. The only crate that builds clients or reads the clock.

pub mod apply;
mod clock;
mod connect;
pub mod controller;
pub mod events;
pub mod leader;
mod patience;
mod process;
pub mod remote;
pub mod secret;
pub mod triggers;

pub use clock::Clock;
pub use connect::{ConnectError, Connector, Factory, Wrap};
pub use patience::{Patience, PatienceLayer};
pub use process::{Process, ProcessError};
pub use tokio_util::sync::CancellationToken;

//! The fault switch: a server that is down refuses requests and breaks what is open; a slow one answers late.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

struct State {
    down: bool,
    latency: Duration,
    /// Cancelled when the server goes down; replaced when it comes up.
    up: CancellationToken,
}

pub(crate) struct Fault(Mutex<State>);

/// The connection broke or was refused.
#[derive(Debug, thiserror::Error)]
#[error("connection refused: API server {0} is down")]
pub(crate) struct Down(pub String);

impl Default for Fault {
    fn default() -> Self {
        Self(Mutex::new(State {
            down: false,
            latency: Duration::ZERO,
            up: CancellationToken::new(),
        }))
    }
}

impl Fault {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_down(&self, down: bool) {
        let mut state = self.state();
        if down && !state.down {
            state.up.cancel();
        } else if !down && state.down {
            state.up = CancellationToken::new();
        }
        state.down = down;
    }

    pub fn set_latency(&self, latency: Duration) {
        self.state().latency = latency;
    }

    /// A token that is cancelled when the server goes down; cancelled already when it is.
    pub fn up(&self) -> CancellationToken {
        self.state().up.clone()
    }

    /// Waits for the latency. False when the server is, or goes, down.
    pub async fn enter(&self) -> bool {
        let (latency, up) = {
            let state = self.state();
            (state.latency, state.up.clone())
        };
        if !latency.is_zero() {
            tokio::select! {
                biased;
                () = up.cancelled() => {}
                () = tokio::time::sleep(latency) => {}
            }
        }
        !up.is_cancelled()
    }
}

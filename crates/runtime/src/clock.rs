//! The wall clock: the only place that asks for the time.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use tokio::time::Instant;

/// A source of the time of day. In a simulation it follows tokio's clock, which can be paused.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Virtual { start: Timestamp, base: Instant },
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that shows `start` now and advances with tokio's clock. Must be called in a runtime.
    pub fn virtual_from(start: Timestamp) -> Self {
        Self(Source::Virtual {
            start,
            base: Instant::now(),
        })
    }

    /// The time.
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::now(),
            Source::Virtual { start, base } => {
                let elapsed = i64::try_from(base.elapsed().as_nanos()).unwrap_or(i64::MAX);
                start
                    .checked_add(SignedDuration::from_nanos(elapsed))
                    .unwrap_or(*start)
            }
        }
    }

    /// Whether this is a simulation.
    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self.0, Source::Virtual { .. })
    }

    /// The time as API objects carry it.
    pub fn time(&self) -> Time {
        Time(self.now())
    }

    /// The time as Leases and Events carry it.
    pub fn micro_time(&self) -> MicroTime {
        MicroTime(self.now())
    }
}

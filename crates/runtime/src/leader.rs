//! Leader election as client-go does it: a Lease is free only after its duration has passed since
//! this process saw it change, by this process's own monotonic clock; every write carries the
//! resourceVersion that was read; the holder renews well before others may take over, or stops.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use tokio::time::Instant;

use crate::{Process, ProcessError};

/// How long others wait after the holder's last sign of life.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long the holder tries to renew before it gives up, from when it asked for the last renewal that was
/// granted: others count from when that was written, which is later, so it always stops first.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between tries.
const RETRY: Duration = Duration::from_secs(2);
/// From asking for one renewal to asking for the next: room for two tries before the deadline, and less than
/// half the writes of a renewal at every try.
const RENEW: Duration = Duration::from_secs(5);
/// Time for one renewal: one that hangs on a connection that is gone leaves time for another.
const TRY: Duration = Duration::from_secs(3);

/// What this process has seen of the Lease.
#[derive(Clone, Debug, Default)]
struct Observed {
    /// The record, compared whole: any change is a sign of life.
    record: Option<LeaseSpec>,
    /// When the record was first seen as it is.
    at: Option<Instant>,
}

/// What to do about the Lease.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// There is none: create it.
    Create,
    /// It is mine, released, or expired: write it.
    Take,
    /// Somebody else holds it.
    Wait,
}

/// Notes what was read and decides. Pure.
fn step(observed: &mut Observed, now: Instant, identity: &str, lease: Option<&LeaseSpec>) -> Step {
    let Some(spec) = lease else {
        return Step::Create;
    };
    if observed.record.as_ref() != Some(spec) {
        *observed = Observed {
            record: Some(spec.clone()),
            at: Some(now),
        };
    }
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() || holder == identity {
        return Step::Take;
    }
    let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
    let since = observed
        .at
        .map_or(Duration::ZERO, |at| now.duration_since(at));
    if since >= Duration::from_secs(seconds) {
        Step::Take
    } else {
        Step::Wait
    }
}

struct Election<'a> {
    process: &'a Process,
    api: Api<Lease>,
    name: &'a str,
    observed: Observed,
    /// The Lease as this process wrote it last: while nobody else writes it, it is renewed without being
    /// read again.
    written: Option<Lease>,
}

impl Election<'_> {
    /// One try to take or renew; whether this process holds the Lease now.
    async fn attempt(&mut self) -> kube::Result<bool> {
        if let Some(mut lease) = self.written.take() {
            lease.spec = Some(self.record(lease.spec.unwrap_or_default()));
            let renewed = self
                .api
                .replace(self.name, &PostParams::default(), &lease)
                .await;
            match renewed {
                Ok(lease) => return Ok(self.wrote(lease)),
                // Somebody else wrote it, or it is gone.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error),
            }
        }
        let found = self.api.get_opt(self.name).await?;
        let identity = &self.process.identity;
        let spec = |l: &Lease| l.spec.clone().unwrap_or_default();
        let old = found.as_ref().map(spec);
        let written = match (
            step(&mut self.observed, Instant::now(), identity, old.as_ref()),
            found,
        ) {
            (Step::Wait, _) => return Ok(false),
            (Step::Take, Some(mut lease)) => {
                lease.spec = Some(self.record(old.unwrap_or_default()));
                self.api
                    .replace(self.name, &PostParams::default(), &lease)
                    .await
            }
            (_, _) => {
                let metadata = ObjectMeta {
                    name: Some(self.name.into()),
                    ..ObjectMeta::default()
                };
                let lease = Lease {
                    metadata,
                    spec: Some(self.record(LeaseSpec::default())),
                };
                self.api.create(&PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(lease) => Ok(self.wrote(lease)),
            // Somebody else was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Notes what was written.
    fn wrote(&mut self, lease: Lease) -> bool {
        self.observed = Observed {
            record: lease.spec.clone(),
            at: Some(Instant::now()),
        };
        self.written = Some(lease);
        true
    }

    fn record(&self, old: LeaseSpec) -> LeaseSpec {
        let identity = self.process.identity.clone();
        let mine = old.holder_identity.as_deref() == Some(&identity);
        let now = self.process.clock.micro_time();
        LeaseSpec {
            holder_identity: Some(identity),
            lease_duration_seconds: Some(i32::try_from(LEASE_DURATION.as_secs()).unwrap_or(15)),
            acquire_time: if mine {
                old.acquire_time
            } else {
                Some(now.clone())
            },
            renew_time: Some(now),
            lease_transitions: Some(
                old.lease_transitions.unwrap_or(0)
                    + i32::from(!mine && old.holder_identity.is_some()),
            ),
            ..old
        }
    }

    /// Takes the Lease; returns when it asked for it, or nothing when the process shuts down first.
    async fn acquire(&mut self) -> Option<Instant> {
        let shutdown = self.process.shutdown.clone();
        loop {
            let asked = Instant::now();
            let attempt = tokio::time::timeout(RENEW_DEADLINE, self.attempt());
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return None,
                result = attempt => match result {
                    Ok(Ok(true)) => return Some(asked),
                    Ok(Ok(false)) => {}
                    Ok(Err(error)) => tracing::warn!(lease = self.name, %error, "cannot read or write the Lease"),
                    Err(_) => tracing::warn!(lease = self.name, "the API server does not answer"),
                }
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return None,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Renews for ever what was asked for at `asked`; returns when the Lease is lost.
    async fn keep(&mut self, asked: Instant) {
        let mut deadline = asked + RENEW_DEADLINE;
        let mut next = asked + RENEW;
        loop {
            tokio::time::sleep_until(next.min(deadline)).await;
            let asked = Instant::now();
            let limit = deadline.min(asked + TRY);
            let result = tokio::time::timeout_at(limit, self.attempt()).await;
            let now = Instant::now();
            next = now + RETRY;
            match result {
                Ok(Ok(true)) => {
                    deadline = asked + RENEW_DEADLINE;
                    next = asked + RENEW;
                }
                // Lost only when somebody else holds it now; a lost race is tried again.
                Ok(Ok(false)) if self.taken() => return,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(lease = self.name, %error, "cannot renew the Lease")
                }
                Err(_) => {
                    tracing::warn!(lease = self.name, "the API server does not answer");
                    next = now;
                }
            }
            if now >= deadline {
                return;
            }
        }
    }

    fn taken(&self) -> bool {
        let holder = self
            .observed
            .record
            .as_ref()
            .and_then(|r| r.holder_identity.as_deref());
        holder.is_some_and(|h| !h.is_empty() && h != self.process.identity)
    }

    /// Gives the Lease up, so that the next one need not wait.
    async fn release(&mut self) -> kube::Result<()> {
        let Some(mut lease) = self.api.get_opt(self.name).await? else {
            return Ok(());
        };
        let old = lease.spec.clone().unwrap_or_default();
        if old.holder_identity.as_deref() != Some(&self.process.identity) {
            return Ok(());
        }
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(self.process.clock.micro_time()),
            ..old
        });
        self.api
            .replace(self.name, &PostParams::default(), &lease)
            .await
            .map(|_| ())
    }
}

/// Runs `work` while this process holds the Lease `lease_name` of its namespace. Returns what
/// `work` returns, Ok when the process shuts down before it led, or an error when the Lease was
/// lost: `work` is dropped then and the process must end. `work` is expected to end at shutdown; the
/// Lease is released after it. A process that restarts under the same identity continues at once.
pub async fn lead(
    process: &Process,
    lease_name: &str,
    work: impl Future<Output = Result<(), ProcessError>>,
) -> Result<(), ProcessError> {
    let api = Api::namespaced(process.client.clone(), &process.namespace);
    let mut election = Election {
        process,
        api,
        name: lease_name,
        observed: Observed::default(),
        written: None,
    };
    let Some(asked) = election.acquire().await else {
        return Ok(());
    };
    tracing::info!(lease = lease_name, identity = process.identity, "leading");
    let result = tokio::select! {
        biased;
        result = work => result,
        () = election.keep(asked) => {
            return Err(ProcessError::new(format!(
                "{} lost the Lease {}/{lease_name} and must stop at once; another replica takes over, or this one after its restart",
                process.name, process.namespace
            )));
        }
    };
    match tokio::time::timeout(RETRY, election.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(lease = lease_name, %error, "cannot release the Lease; it expires in {} s", LEASE_DURATION.as_secs())
        }
        Err(_) => tracing::warn!(
            lease = lease_name,
            "cannot release the Lease in time; it expires in {} s",
            LEASE_DURATION.as_secs()
        ),
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(by: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(by.into()),
            lease_duration_seconds: Some(15),
            renew_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(
                jiff::Timestamp::from_second(renewed).unwrap(),
            )),
            ..LeaseSpec::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_expires_by_what_was_seen_here_not_by_its_own_time() {
        let mut observed = Observed::default();
        let start = Instant::now();
        let after = |s| start + Duration::from_secs(s);
        // renewTime lies far in the past: the other's clock may be wrong.
        assert_eq!(
            step(&mut observed, start, "b", Some(&held("a", 0))),
            Step::Wait
        );
        assert_eq!(
            step(&mut observed, after(14), "b", Some(&held("a", 0))),
            Step::Wait
        );
        assert_eq!(
            step(&mut observed, after(14), "b", Some(&held("a", 1))),
            Step::Wait
        );
        assert_eq!(
            step(&mut observed, after(28), "b", Some(&held("a", 1))),
            Step::Wait
        );
        assert_eq!(
            step(&mut observed, after(29), "b", Some(&held("a", 1))),
            Step::Take
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_holder_and_everybody_after_a_release_may_write_at_once() {
        let mut observed = Observed::default();
        let now = Instant::now();
        assert_eq!(
            step(&mut observed, now, "a", Some(&held("a", 0))),
            Step::Take
        );
        assert_eq!(
            step(&mut observed, now, "b", Some(&held("", 0))),
            Step::Take
        );
        assert_eq!(step(&mut observed, now, "b", None), Step::Create);
    }
}

//! Reconcilers: one object at a time, again after errors with a growing pause.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::runtime::controller::{Action, Config, Controller, Error as ControllerError};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::Process;

/// First pause after an error; it doubles with each further one of the same object.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The same after a conflict: nothing is wrong, a fresh look is all that is needed.
const FIRST_RETRY_OF_CONFLICT: Duration = Duration::from_millis(200);
/// Longest pause after an error.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// Time for one reconcile: nothing may occupy a slot for ever.
const RECONCILE_LIMIT: Duration = Duration::from_secs(120);
/// Time for running reconciles to finish at shutdown.
const GRACE: Duration = Duration::from_secs(10);

/// Brings one kind of object in line with its spec.
pub trait Reconciler<K>: Send + Sync + 'static {
    /// Name for logs.
    fn name(&self) -> &'static str;
    /// Shortest time from one look at this object to the next: what changes meanwhile is seen by that one.
    /// Zero looks at once, while somebody waits for what the look brings about.
    fn pace(&self, _object: &K) -> Duration {
        Duration::ZERO
    }
    /// Looks at the world, decides and acts; says when to look again.
    fn reconcile(
        &self,
        object: Arc<K>,
    ) -> impl Future<Output = Result<Requeue, ReconcileError>> + Send;
}

/// When to look at an object again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// When something changes.
    Change,
    /// After this time, or when something changes.
    After(Duration),
}

impl From<Option<Duration>> for Requeue {
    fn from(after: Option<Duration>) -> Self {
        after.map_or(Self::Change, Self::After)
    }
}

/// Why a reconcile failed: what it was doing and what went wrong.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
pub struct ReconcileError {
    sentence: String,
    /// Whether somebody else changed the object meanwhile: ordinary, tried again.
    conflict: bool,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ReconcileError {
    /// An error of this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self {
            sentence: sentence.into(),
            conflict: false,
            source: None,
        }
    }

    /// Says what was being done: `reading ProtectionGroup dr-m/shop`.
    #[must_use]
    pub fn during(mut self, doing: impl std::fmt::Display) -> Self {
        self.sentence = format!("{doing}: {}", self.sentence);
        self
    }

    /// Whether somebody else changed an object meanwhile.
    pub fn is_conflict(&self) -> bool {
        self.conflict
    }
}

impl From<kube::Error> for ReconcileError {
    fn from(error: kube::Error) -> Self {
        let conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
        Self {
            sentence: in_words(&error),
            conflict,
            source: Some(Box::new(error)),
        }
    }
}

/// What a request failed with, for a person: the API server's own sentence, where it gave one.
pub fn in_words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => {
            format!("{} ({} {})", status.message, status.code, status.reason)
        }
        error => error.to_string(),
    }
}

/// Adds what was being done to an error: `api.get(name).await.during("reading …")?`.
pub trait During<T> {
    /// Says what was being done.
    fn during(self, doing: impl std::fmt::Display) -> Result<T, ReconcileError>;
}

impl<T, E: Into<ReconcileError>> During<T> for Result<T, E> {
    fn during(self, doing: impl std::fmt::Display) -> Result<T, ReconcileError> {
        self.map_err(|e| e.into().during(doing))
    }
}

/// Pause before try number `failures` + 1, beginning with `first`.
fn retry_after(first: Duration, failures: u32) -> Duration {
    first
        .saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)))
        .min(LAST_RETRY)
}

/// Pause after a failed watch, without the jitter of kube's own: one seed, one history.
struct WatchBackoff(u32);

impl Iterator for WatchBackoff {
    type Item = Duration;
    fn next(&mut self) -> Option<Duration> {
        self.0 = self.0.saturating_add(1);
        Some(retry_after(FIRST_RETRY, self.0).min(Duration::from_secs(15)))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0 = 0;
    }
}

struct Context<R> {
    reconciler: R,
    failures: Mutex<BTreeMap<String, u32>>,
    /// When each object was last looked at, if that is not longer ago than the pace.
    looks: Mutex<BTreeMap<String, Instant>>,
}

impl<R> Context<R> {
    /// Time until this object may be looked at; none when it may now, which then counts as a look.
    fn not_before(&self, key: &str, pace: Duration) -> Option<Duration> {
        if pace.is_zero() {
            return None;
        }
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        // One reconciler has one pace for all objects that it does not look at at once.
        looks.retain(|_, at| at.elapsed() < pace);
        if let Some(at) = looks.get(key) {
            return Some(pace.saturating_sub(at.elapsed()));
        }
        looks.insert(key.to_owned(), Instant::now());
        None
    }

    /// Counts a failure of this object; returns how many came in a row.
    fn failed(&self, key: String) -> u32 {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let n = failures.entry(key).or_insert(0);
        *n = n.saturating_add(1);
        *n
    }

    fn succeeded(&self, key: &str) {
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}

fn key<K: Resource>(object: &K) -> String {
    format!(
        "{}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

/// Runs a reconciler for every object of `api` that matches `watch`, on changes of the object and
/// on `triggers`, at most `concurrency` at a time (never two for one object), until the process
/// shuts down. A trigger for an object that is not in the watch is ignored.
pub async fn run<K, R>(
    process: &Process,
    api: Api<K>,
    watch: watcher::Config,
    reconciler: R,
    triggers: BoxStream<'static, ObjectRef<K>>,
    concurrency: u16,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Default + Debug + Clone + Eq + Hash + Unpin + Send + Sync,
    R: Reconciler<K>,
{
    let name = reconciler.name();
    let context = Arc::new(Context {
        reconciler,
        failures: Mutex::default(),
        looks: Mutex::default(),
    });
    let results = Controller::new(api, watch)
        .with_config(Config::default().concurrency(concurrency))
        .trigger_backoff(WatchBackoff(0))
        .reconcile_on(triggers)
        .graceful_shutdown_on(process.shutdown.clone().cancelled_owned())
        .run(reconcile::<K, R>, error_policy::<K, R>, context);
    let drain = results.for_each(|result| {
        match result {
            Ok(_) | Err(ControllerError::ObjectNotFound(_)) => {}
            // Told by the error policy.
            Err(ControllerError::ReconcilerFailed(..)) => {}
            Err(error) => {
                tracing::warn!(reconciler = name, %error, "watch failed, it is tried again")
            }
        }
        std::future::ready(())
    });
    let overtime = async {
        process.shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        biased;
        () = drain => {}
        () = overtime => tracing::warn!(reconciler = name, "reconciles did not finish within {} s of shutdown", GRACE.as_secs()),
    }
}

async fn reconcile<K, R>(object: Arc<K>, context: Arc<Context<R>>) -> Result<Action, ReconcileError>
where
    K: Resource + Send + Sync + 'static,
    R: Reconciler<K>,
{
    let key = key(&*object);
    let pace = context.reconciler.pace(&object);
    if let Some(rest) = context.not_before(&key, pace) {
        return Ok(Action::requeue(rest));
    }
    let requeue = tokio::time::timeout(RECONCILE_LIMIT, context.reconciler.reconcile(object))
        .await
        .map_err(|_| {
            ReconcileError::new(format!(
                "did not finish within {} s",
                RECONCILE_LIMIT.as_secs()
            ))
        })??;
    context.succeeded(&key);
    Ok(match requeue {
        Requeue::Change => Action::await_change(),
        Requeue::After(pause) => Action::requeue(pause),
    })
}

fn error_policy<K, R>(object: Arc<K>, error: &ReconcileError, context: Arc<Context<R>>) -> Action
where
    K: Resource + Send + Sync + 'static,
    R: Reconciler<K>,
{
    let key = key(&*object);
    let failures = context.failed(key.clone());
    let reconciler = context.reconciler.name();
    let first = if error.is_conflict() {
        FIRST_RETRY_OF_CONFLICT
    } else {
        FIRST_RETRY
    };
    let pause = retry_after(first, failures);
    if error.is_conflict() {
        tracing::debug!(reconciler, object = key, %error, "somebody else wrote; again in {} ms", pause.as_millis());
    } else {
        tracing::warn!(reconciler, object = key, %error, failures, "reconcile failed; again in {} s", pause.as_secs());
    }
    Action::requeue(pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_api_server_refused_is_told_in_its_own_words() {
        let status: Box<kube::core::Status> = serde_json::from_value(serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 409,
            "reason": "AlreadyExists", "message": "persistentvolumeclaims \"db01-drbd\" already exists",
        }))
        .unwrap();
        let error = ReconcileError::from(kube::Error::Api(status));
        assert!(error.is_conflict());
        assert_eq!(
            error.to_string(),
            "persistentvolumeclaims \"db01-drbd\" already exists (409 AlreadyExists)"
        );
    }

    #[test]
    fn pauses_double_up_to_a_minute() {
        let after = |failures| retry_after(FIRST_RETRY, failures).as_secs();
        let pauses: Vec<u64> = (1..=8).map(after).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(retry_after(FIRST_RETRY, u32::MAX), LAST_RETRY);
        assert_eq!(retry_after(FIRST_RETRY_OF_CONFLICT, u32::MAX), LAST_RETRY);
    }
}

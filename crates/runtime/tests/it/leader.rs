use std::sync::{Arc, Mutex};
use std::time::Duration;

use farshore_runtime::{Process, ProcessError, leader};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::time::{Instant, sleep};

use crate::support;

/// When each contender led: (name, seconds since start, true at the beginning, false at the end).
#[derive(Clone)]
struct Record(Arc<Mutex<Vec<(String, u64, bool)>>>, Instant);

impl Record {
    fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    fn note(&self, who: &str, begins: bool) {
        self.0
            .lock()
            .unwrap()
            .push((who.into(), self.1.elapsed().as_secs(), begins));
    }

    fn of(&self, who: &str) -> Vec<(u64, bool)> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(w, ..)| w == who)
            .map(|(_, at, begins)| (*at, *begins))
            .collect()
    }

    fn leaders(&self) -> i32 {
        self.0
            .lock()
            .unwrap()
            .iter()
            .map(|(_, _, begins)| if *begins { 1 } else { -1 })
            .sum()
    }
}

/// Notes the end of leading also when the work is dropped.
struct Leading(Record, String);

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.note(&self.1, false);
    }
}

fn contend(process: Process, record: Record) -> tokio::task::JoinHandle<Result<(), ProcessError>> {
    tokio::spawn(async move {
        leader::lead(&process, "lock", async {
            record.note(&process.identity, true);
            let _leading = Leading(record.clone(), process.identity.clone());
            process.shutdown.cancelled().await;
            Ok(())
        })
        .await
    })
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once() {
    let server = support::server();
    let record = Record::new();
    let a = support::process(&server, "a");
    let b = support::process(&server, "b");
    let first = contend(a.clone(), record.clone());
    sleep(Duration::from_secs(1)).await;
    let second = contend(b.clone(), record.clone());
    sleep(Duration::from_secs(60)).await;
    assert!(record.of("b").is_empty(), "a renews, so b waits");
    a.shutdown.cancel();
    first.await.unwrap().unwrap();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(record.of("b").len(), 1);
    b.shutdown.cancel();
    second.await.unwrap().unwrap();
    let lease = Api::<Lease>::namespaced(support::client(&server), "default")
        .get("lock")
        .await
        .unwrap();
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_dead_holder_is_followed_only_after_the_lease_has_expired() {
    let server = support::server();
    let record = Record::new();
    let first = contend(support::process(&server, "a"), record.clone());
    sleep(Duration::from_secs(1)).await;
    let _second = contend(support::process(&server, "b"), record.clone());
    sleep(Duration::from_secs(29)).await;
    first.abort();
    let died = record.1.elapsed().as_secs();
    sleep(Duration::from_secs(60)).await;
    let began = record.of("b")[0].0;
    // The last renewal was up to 5 s before the death; the next look is up to 2 s after the expiry.
    assert!(
        (died + 10..=died + 17).contains(&began),
        "died at {died}, followed at {began}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_restart_under_the_same_name_continues_at_once() {
    let server = support::server();
    let record = Record::new();
    let first = contend(support::process(&server, "a"), record.clone());
    sleep(Duration::from_secs(5)).await;
    first.abort();
    let _second = contend(support::process(&server, "a"), record.clone());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        record.of("a").iter().filter(|(_, begins)| *begins).count(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_cannot_renew_stops_before_anybody_else_may_lead() {
    let server = support::server();
    let record = Record::new();
    let first = contend(support::process(&server, "a"), record.clone());
    sleep(Duration::from_secs(5)).await;
    let _second = contend(support::process(&server, "b"), record.clone());
    server.set_down(true);
    let cut = record.1.elapsed().as_secs();
    let error = first.await.unwrap().unwrap_err();
    let stopped = record.of("a")[1].0;
    assert!(stopped <= cut + 10, "cut at {cut}, stopped at {stopped}");
    assert!(
        error.to_string().contains("lost the Lease default/lock"),
        "{error}"
    );
    server.set_down(false);
    sleep(Duration::from_secs(30)).await;
    assert!(record.of("b")[0].0 >= stopped);
    assert_eq!(record.leaders(), 1);
}

use std::sync::{Arc, Mutex};
use std::time::Duration;

use farshore_apiserver::ApiServer;
use farshore_runtime::{Process, ProcessError, leader};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

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

/// When a contender asked for each write.
type Asked = Arc<Mutex<Vec<Instant>>>;

/// A client whose answers to writes come `late`, and which is not answered at all from `cut` on.
fn slow(server: &ApiServer, late: Duration, cut: Instant, asked: &Asked) -> Client {
    let (asked, token) = (asked.clone(), server.admin_token());
    let server = server.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (asked, service) = (asked.clone(), server.service(Some(&token)));
        async move {
            if Instant::now() >= cut {
                std::future::pending::<()>().await;
            }
            let writes = request.method() != http::Method::GET;
            if writes {
                asked.lock().unwrap().push(Instant::now());
            }
            let answer = service.oneshot(request).await;
            if writes {
                sleep(late).await;
            }
            answer
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_answers_come_late_counts_from_when_it_asked() {
    let server = support::server();
    let record = Record::new();
    let cut = Instant::now() + Duration::from_secs(60);
    let asked = Asked::default();
    let mut a = support::process(&server, "a");
    a.client = slow(&server, Duration::from_millis(2900), cut, &asked);
    let first = contend(a, record.clone());
    sleep(Duration::from_secs(5)).await;
    let _second = contend(support::process(&server, "b"), record.clone());
    first.await.unwrap().unwrap_err();
    let (last, stopped) = (*asked.lock().unwrap().last().unwrap(), Instant::now());
    // The answer to the last renewal came 2.9 s after it was written, which is when others began to count.
    assert_eq!(stopped - last, Duration::from_secs(10));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(record.leaders(), 1);
    assert!(record.of("b")[0].0 >= record.of("a")[1].0 + 5);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_leaves_time_for_another() {
    let server = support::server();
    let record = Record::new();
    let (asked, renewals) = (Asked::default(), Arc::new(Mutex::new(0)));
    let mut a = support::process(&server, "a");
    let inner = slow(
        &server,
        Duration::ZERO,
        Instant::now() + Duration::from_secs(3600),
        &asked,
    );
    let count = renewals.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (inner, count) = (inner.clone(), count.clone());
        async move {
            // The connection of every second renewal is gone without a word.
            if request.method() == http::Method::PUT && {
                let mut renewals = count.lock().unwrap();
                *renewals += 1;
                *renewals % 2 == 1
            } {
                std::future::pending::<()>().await;
            }
            inner.send(request).await
        }
    });
    a.client = Client::new(service, "default");
    let first = contend(a.clone(), record.clone());
    sleep(Duration::from_secs(600)).await;
    assert!(*renewals.lock().unwrap() > 50);
    assert_eq!(record.of("a"), [(0, true)], "it led all the time");
    a.shutdown.cancel();
    first.await.unwrap().unwrap();
}

//! Each fault does what it says, to whom it says, for as long as it says.

use std::time::Duration;

use farshore_apiserver::{ApiServer, Options};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;
use tower::Layer;

use super::*;
use crate::fence::{Fence, Moment};

struct Bench {
    server: ApiServer,
    faults: Faults,
}

impl Bench {
    /// These faults happen from now on.
    fn with(faults: &[Fault]) -> Self {
        let bench = Self {
            server: ApiServer::new(Options::default()),
            faults: Faults::default(),
        };
        bench.faults.set(1, faults);
        bench
    }

    fn client(&self, process: &str, fence: &Fence) -> Client {
        let route = Route {
            process: format!("farshore/{process}"),
            on: "hub".into(),
            to: "east".into(),
        };
        let layer = FaultLayer {
            faults: self.faults.clone(),
            route,
        };
        let server = self.server.service(Some(&self.server.admin_token()));
        Client::new(fence.layer(layer.layer(server)), "default")
    }

    /// ConfigMaps as the process `p` on the hub sees them on east.
    fn maps(&self) -> Api<ConfigMap> {
        Api::default_namespaced(self.client("p", &Fence::default()))
    }

    /// ConfigMaps as the server has them.
    async fn names(&self) -> Vec<String> {
        let server = self.server.service(Some(&self.server.admin_token()));
        let api: Api<ConfigMap> = Api::default_namespaced(Client::new(server, "default"));
        let all = api.list(&Default::default()).await.unwrap();
        all.items
            .into_iter()
            .filter_map(|m| m.metadata.name)
            .collect()
    }
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({ "metadata": { "name": name }, "data": { "n": "0" } })).unwrap()
}

async fn create(maps: &Api<ConfigMap>, name: &str) -> kube::Result<ConfigMap> {
    maps.create(&PostParams::default(), &map(name)).await
}

fn fault(from: u64, to: u64, what: What) -> Fault {
    Fault {
        from_ms: from * 1000,
        to_ms: to * 1000,
        whom: Whom::default(),
        what,
    }
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// Names of the objects in the next events of a watch.
async fn watch(maps: &Api<ConfigMap>) -> futures::stream::BoxStream<'static, String> {
    let events = maps.watch(&WatchParams::default(), "0").await.unwrap();
    events
        .map(|event| match event {
            Ok(WatchEvent::Added(map) | WatchEvent::Modified(map)) => {
                map.metadata.name.unwrap_or_default()
            }
            Ok(WatchEvent::Error(status)) => format!("error {}", status.code),
            Ok(_) => "other".into(),
            Err(_) => "broken".into(),
        })
        .boxed()
}

async fn second(n: u64) {
    tokio::time::sleep(Duration::from_secs(n)).await;
}

#[tokio::test(start_paused = true)]
async fn latency_is_suffered_in_both_directions() {
    let latency = What::Latency {
        min_ms: 2000,
        max_ms: 3000,
    };
    let bench = Bench::with(&[fault(0, 100, latency)]);
    let begun = Instant::now();
    create(&bench.maps(), "a").await.unwrap();
    let took = begun.elapsed().as_millis();
    assert!((4000..=6010).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_server_error_does_nothing() {
    let bench = Bench::with(&[fault(0, 10, What::ServerError { percent: 100 })]);
    let error = create(&bench.maps(), "a").await.unwrap_err();
    assert!(matches!(code(&error), 500 | 503), "{error}");
    assert!(bench.names().await.is_empty());
    second(10).await;
    create(&bench.maps(), "a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn too_many_requests_say_when_to_come_again() {
    let what = What::TooManyRequests {
        percent: 100,
        retry_after_seconds: 7,
    };
    let bench = Bench::with(&[fault(0, 10, what)]);
    let client = bench.client("p", &Fence::default());
    let request = http::Request::get("/api/v1/namespaces/default/configmaps")
        .body(kube::client::Body::empty())
        .unwrap();
    let answer = client.send(request).await.unwrap();
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.headers()["retry-after"], "7");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_never_arrives() {
    let bench = Bench::with(&[fault(0, 10, What::Dropped { percent: 100 })]);
    let error = create(&bench.maps(), "a").await.unwrap_err();
    assert_eq!(code(&error), 0, "{error}");
    assert!(bench.names().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_leaves_the_work_done() {
    let bench = Bench::with(&[fault(0, 10, What::AnswerLost { percent: 100 })]);
    let error = create(&bench.maps(), "a").await.unwrap_err();
    assert_eq!(code(&error), 0, "{error}");
    assert_eq!(bench.names().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_partition_swallows_requests_until_it_is_healed() {
    let bench = Bench::with(&[
        fault(0, 10, What::Partition),
        fault(20, 100, What::Partition),
    ]);
    let begun = Instant::now();
    create(&bench.maps(), "a").await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
    second(10).await;
    create(&bench.maps(), "b").await.unwrap_err();
    assert_eq!(
        begun.elapsed(),
        Duration::from_secs(50),
        "given up after 30 s"
    );
    second(60).await;
    assert_eq!(bench.names().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_falls_silent_in_a_partition_and_breaks_when_it_is_healed() {
    let bench = Bench::with(&[fault(5, 20, What::Partition)]);
    let mut events = watch(&bench.maps()).await;
    create(&bench.maps(), "a").await.unwrap();
    assert_eq!(events.next().await.unwrap(), "a");
    let begun = Instant::now();
    second(6).await;
    assert_eq!(events.next().await.unwrap(), "broken");
    assert_eq!(begun.elapsed(), Duration::from_secs(20));
    assert_eq!(events.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_stale_watch_tells_later_what_it_held_back() {
    let bench = Bench::with(&[fault(5, 20, What::StaleWatch)]);
    let mut events = watch(&bench.maps()).await;
    let begun = Instant::now();
    second(6).await;
    create(&bench.maps(), "a").await.unwrap();
    assert_eq!(events.next().await.unwrap(), "a");
    assert_eq!(begun.elapsed(), Duration::from_secs(20));
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_tells_nothing_any_more() {
    let bench = Bench::with(&[fault(5, 6, What::SilentWatch)]);
    let mut events = watch(&bench.maps()).await;
    second(10).await;
    create(&bench.maps(), "a").await.unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(3600), events.next()).await;
    assert!(heard.is_err(), "{heard:?}");
    assert_eq!(watch(&bench.maps()).await.next().await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn faults_that_are_set_while_a_watch_is_open_reach_it_and_those_that_are_taken_back_do_not() {
    let bench = Bench::with(&[]);
    let mut events = watch(&bench.maps()).await;
    let begun = Instant::now();
    bench.faults.set(1, &[fault(5, 20, What::StaleWatch)]);
    second(6).await;
    create(&bench.maps(), "a").await.unwrap();
    assert_eq!(events.next().await.unwrap(), "a");
    assert_eq!(begun.elapsed(), Duration::from_secs(20));
    bench.faults.set(2, &[fault(5, 20, What::SilentWatch)]);
    second(1).await;
    bench.faults.set(3, &[]);
    second(10).await;
    create(&bench.maps(), "b").await.unwrap();
    assert_eq!(events.next().await.unwrap(), "b");
    assert_eq!(begun.elapsed(), Duration::from_secs(31));
}

#[tokio::test(start_paused = true)]
async fn bad_times_that_begin_with_their_plan_reach_open_watches_and_end_with_the_next() {
    let bench = Bench::with(&[]);
    let mut stale = watch(&bench.maps()).await;
    let begun = Instant::now();
    bench.faults.set(1, &[fault(0, 60, What::StaleWatch)]);
    create(&bench.maps(), "a").await.unwrap();
    let held = tokio::time::timeout(Duration::from_secs(5), stale.next()).await;
    assert!(held.is_err(), "{held:?}");
    bench.faults.set(2, &[]);
    assert_eq!(stale.next().await.unwrap(), "a");
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    let storm = fault(0, 20, What::ExpiredWatch { percent: 100 });
    bench.faults.set(3, &[storm]);
    assert_eq!(stale.next().await.unwrap(), "error 410");
}

#[tokio::test(start_paused = true)]
async fn a_410_storm_ends_open_watches_and_new_ones_in_the_stream() {
    let bench = Bench::with(&[fault(5, 20, What::ExpiredWatch { percent: 100 })]);
    let mut open = watch(&bench.maps()).await;
    second(5).await;
    assert_eq!(open.next().await.unwrap(), "error 410");
    assert_eq!(open.next().await, None);
    assert_eq!(
        watch(&bench.maps()).await.next().await.unwrap(),
        "error 410"
    );
    create(&bench.maps(), "a").await.unwrap();
    second(15).await;
    assert_eq!(watch(&bench.maps()).await.next().await.unwrap(), "a");
}

#[tokio::test(start_paused = true)]
async fn a_conflict_hits_changes_alone_and_changes_nothing() {
    let bench = Bench::with(&[fault(0, 10, What::Conflict { percent: 100 })]);
    let maps = bench.maps();
    create(&maps, "a").await.unwrap();
    let patch = Patch::Merge(json!({ "data": { "n": "1" } }));
    let error = maps.patch("a", &PatchParams::default(), &patch).await;
    assert_eq!(code(&error.unwrap_err()), 409);
    let live = maps.get("a").await.unwrap();
    assert_eq!(live.data.unwrap()["n"], "0");
    maps.delete("a", &DeleteParams::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_on_the_wire_lands_although_its_client_gave_up() {
    let latency = What::Latency {
        min_ms: 2000,
        max_ms: 2000,
    };
    let bench = Bench::with(&[fault(0, 100, latency)]);
    let maps = bench.maps();
    let given_up = tokio::time::timeout(Duration::from_secs(1), create(&maps, "a")).await;
    assert!(given_up.is_err());
    assert!(bench.names().await.is_empty());
    second(2).await;
    assert_eq!(bench.names().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn only_those_who_are_meant_are_hit() {
    let cases = [
        (Whom::default(), true),
        (whom(Some("p"), None, None), true),
        (whom(Some("q"), None, None), false),
        (whom(None, Some("hub"), Some("east")), true),
        (whom(None, Some("hub"), Some("west")), false),
        (whom(None, Some("east"), None), false),
    ];
    for (whom, hit) in cases {
        let bench = Bench::with(&[Fault {
            whom: whom.clone(),
            ..fault(0, 10, What::Dropped { percent: 100 })
        }]);
        let answer = create(&bench.maps(), "a").await;
        assert_eq!(answer.is_err(), hit, "{whom:?}");
    }
}

fn whom(process: Option<&str>, on: Option<&str>, to: Option<&str>) -> Whom {
    Whom {
        process: process.map(Into::into),
        on: on.map(Into::into),
        to: to.map(Into::into),
    }
}

#[tokio::test(start_paused = true)]
async fn one_fault_less_leaves_all_others_as_they_were() {
    let half = [
        fault(0, 10, What::Dropped { percent: 50 }),
        fault(0, 10, What::AnswerLost { percent: 50 }),
        fault(0, 10, What::ServerError { percent: 50 }),
    ];
    let route = Route {
        process: "farshore/p".into(),
        on: "hub".into(),
        to: "east".into(),
    };
    let lost = |faults: &[Fault]| -> Vec<bool> {
        let all = Faults::default();
        all.set(9, faults);
        (0..200)
            .map(|_| all.fate(&route, Kind::Change).lost)
            .collect()
    };
    let (with, without) = (lost(&half), lost(&half[1..2]));
    assert_eq!(with, without);
    assert!(with.contains(&true) && with.contains(&false));
}

#[tokio::test(start_paused = true)]
async fn a_plan_can_be_written_down_and_read_again() {
    let all = [
        What::Latency {
            min_ms: 1,
            max_ms: 2,
        },
        What::ServerError { percent: 3 },
        What::TooManyRequests {
            percent: 4,
            retry_after_seconds: 5,
        },
        What::Dropped { percent: 6 },
        What::AnswerLost { percent: 7 },
        What::Partition,
        What::StaleWatch,
        What::SilentWatch,
        What::ExpiredWatch { percent: 8 },
        What::Conflict { percent: 9 },
    ];
    for what in all {
        let fault = Fault {
            whom: whom(Some("p"), None, Some("east")),
            ..fault(1, 2, what)
        };
        let text = serde_json::to_string(&fault).unwrap();
        assert_eq!(
            serde_json::from_str::<Fault>(&text).unwrap(),
            fault,
            "{text}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_dies_before_or_after_its_chosen_write() {
    for (moment, there) in [
        (Moment::BeforeSent, vec!["a"]),
        (Moment::AfterApplied, vec!["a", "b"]),
    ] {
        let bench = Bench::with(&[]);
        let fence = Fence::of("farshore/p", "hub");
        let maps: Api<ConfigMap> = Api::default_namespaced(bench.client("p", &fence));
        fence.kill_at_write(2, moment);
        create(&maps, "a").await.unwrap();
        maps.get("a").await.unwrap();
        create(&maps, "b").await.unwrap_err();
        fence.dead().await;
        create(&maps, "c").await.unwrap_err();
        maps.get("a").await.unwrap_err();
        assert_eq!(bench.names().await, there, "{moment:?}");
    }
}

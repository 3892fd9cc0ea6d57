//! Watchers of kube under churn: what they rebuild is, after every event, what the server had at that event's revision.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farshore_apiserver::ApiServer;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, VersionMatch};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, reflector};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::support::{client, server};

/// What is known of an object: its revision (which tells its content), its labels and, where the form has it, its data.
type Row = (
    String,
    BTreeMap<String, String>,
    Option<BTreeMap<String, String>>,
);
type State = BTreeMap<String, Row>;

/// Every state that the server had, by revision.
#[derive(Clone, Default)]
struct History(Arc<Mutex<BTreeMap<u64, State>>>);

fn row(object: &ConfigMap) -> Row {
    (
        object.resource_version().unwrap(),
        object.labels().clone(),
        Some(object.data.clone().unwrap_or_default()),
    )
}

impl History {
    fn of(server: &ApiServer) -> Self {
        let history = Self::default();
        let states = history.0.clone();
        states
            .lock()
            .unwrap()
            .insert(server.revision(), State::new());
        server.observe(move |commit| {
            if commit.object["kind"] != "ConfigMap" {
                return;
            }
            let mut states = states.lock().unwrap();
            let mut state = states.last_key_value().unwrap().1.clone();
            let object: ConfigMap = serde_json::from_value(commit.object.clone()).unwrap();
            if commit.deleted {
                state.remove(&object.name_any());
            } else {
                state.insert(object.name_any(), row(&object));
            }
            states.insert(commit.revision, state);
        });
        history
    }

    /// The state at a revision, as a selection and a form show it.
    fn at(&self, revision: u64, view: &View) -> State {
        let states = self.0.lock().unwrap();
        let (_, state) = states.range(..=revision).next_back().unwrap();
        let mut state = state.clone();
        state.retain(|name, (_, labels, _)| view.selects(name, labels));
        if view.metadata {
            state.values_mut().for_each(|(_, _, data)| *data = None);
        }
        state
    }
}

/// One way to watch.
#[derive(Clone, Copy, Debug)]
struct View {
    selector: Selector,
    metadata: bool,
    streaming: bool,
    page: u32,
}

#[derive(Clone, Copy, Debug)]
enum Selector {
    All,
    Gold,
    NotGold,
    Named,
}

impl View {
    fn selects(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let gold = labels.get("tier").is_some_and(|t| t == "gold");
        match self.selector {
            Selector::All => true,
            Selector::Gold => gold,
            Selector::NotGold => !gold,
            Selector::Named => name == "m1",
        }
    }

    fn labels(&self) -> &'static str {
        match self.selector {
            Selector::Gold => "tier=gold",
            Selector::NotGold => "tier!=gold",
            Selector::All | Selector::Named => "",
        }
    }

    fn fields(&self) -> &'static str {
        match self.selector {
            Selector::Named => "metadata.name=m1",
            _ => "",
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::default().page_size(self.page);
        if self.streaming {
            config = config.streaming_lists();
        }
        if !self.labels().is_empty() {
            config = config.labels(self.labels());
        }
        if !self.fields().is_empty() {
            config = config.fields(self.fields());
        }
        config
    }
}

/// Without chance.
#[derive(Clone)]
struct EverySecond;

impl Iterator for EverySecond {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }
}

impl Backoff for EverySecond {
    fn reset(&mut self) {}
}

/// How often each kind of check was made, so that a test that checks nothing fails.
#[derive(Clone, Copy, Debug, Default)]
struct Checked {
    lists: usize,
    events: usize,
    errors: usize,
}

type Store<K> = reflector::Store<K>;

fn rebuilt<K>(store: &Store<K>, row: fn(&K) -> Row) -> State
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let objects = store.state();
    objects.iter().map(|o| (o.name_any(), row(o))).collect()
}

/// Follows a stream and compares after each event.
async fn follow<K>(
    server: ApiServer,
    history: History,
    view: View,
    (store, writer): (Store<K>, reflector::store::Writer<K>),
    row: fn(&K) -> Row,
    checked: Arc<Mutex<Checked>>,
) where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let watched: Api<K> = Api::default_namespaced(client(&server));
    let events = watcher(watched, view.config()).backoff(EverySecond);
    let mut events = reflector(writer, events).boxed();
    let lists: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let mut listed_from = 0;
    let mut last = 0;
    while let Some(event) = events.next().await {
        let state = || rebuilt(&store, row);
        let revision = |o: &K| -> u64 { o.resource_version().unwrap().parse().unwrap() };
        match event {
            Err(_) => checked.lock().unwrap().errors += 1,
            Ok(Event::Init) => listed_from = server.revision(),
            Ok(Event::InitApply(_)) => {}
            Ok(Event::InitDone) => {
                // Which one the list was is not told: one from its beginning on.
                let until = server.revision();
                let state = state();
                let fits = (listed_from..=until)
                    .rev()
                    .find(|r| history.at(*r, &view) == state);
                last = fits.unwrap_or_else(|| {
                    panic!("{view:?}: no state of {listed_from} to {until} is {state:?}")
                });
                checked.lock().unwrap().lists += 1;
            }
            Ok(Event::Apply(object) | Event::Delete(object)) => {
                let revision = revision(&object);
                assert!(revision > last, "{view:?}: {revision} after {last}");
                last = revision;
                assert_eq!(
                    state(),
                    history.at(revision, &view),
                    "{view:?} at {revision}"
                );
                checked.lock().unwrap().events += 1;
                check_list(&lists, &history, &view, revision).await;
            }
        }
    }
}

/// A list of exactly this revision, where the server still has it, is that state as well.
async fn check_list(lists: &Api<ConfigMap>, history: &History, view: &View, revision: u64) {
    let exactly = ListParams::default()
        .labels(view.labels())
        .fields(view.fields())
        .at(&revision.to_string())
        .matching(VersionMatch::Exact);
    match lists.list(&exactly).await {
        Ok(list) => {
            let listed: State = list.iter().map(|o| (o.name_any(), row(o))).collect();
            let whole = View {
                metadata: false,
                ..*view
            };
            assert_eq!(
                listed,
                history.at(revision, &whole),
                "{view:?} at {revision}"
            );
        }
        // Compacted, or the server is down.
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 410, "{status:?}"),
        Err(_) => {}
    }
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// One change of the world. What the server refuses (a name that is taken, one that is not there) changes nothing.
async fn churn(server: &ApiServer, api: &Api<ConfigMap>, dice: &mut Dice, step: usize) {
    let name = format!("m{}", dice.below(6));
    let tier = ["gold", "silver"][dice.below(2) as usize];
    let merge = async |patch: Value| {
        let _ = api
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
    };
    match dice.below(20) {
        0..=5 => {
            let mut object: Value = json!({"metadata": {"name": name, "labels": {"tier": tier}}, "data": {"n": step.to_string()}});
            if dice.below(4) == 0 {
                object["metadata"]["finalizers"] = json!(["example.com/hold"]);
            }
            let object = serde_json::from_value(object).unwrap();
            let _ = api.create(&PostParams::default(), &object).await;
        }
        6..=8 => merge(json!({"data": {"n": step.to_string()}})).await,
        9..=11 => merge(json!({"metadata": {"labels": {"tier": tier}}})).await,
        12 => merge(json!({"metadata": {"labels": null, "finalizers": null}})).await,
        13..=15 => {
            let _ = api.delete(&name, &DeleteParams::default()).await;
        }
        16 => server.compact(),
        17 => {
            server.set_down(true);
            tokio::time::sleep(Duration::from_millis(dice.below(3000))).await;
            server.set_down(false);
            // Writes while the watchers are still away; a compaction here makes their revision expire.
            if dice.below(2) == 0 {
                merge(json!({"data": {"down": step.to_string()}})).await;
                server.compact();
            }
        }
        18 => server.set_latency(Duration::from_millis(dice.below(3) * 40)),
        _ => tokio::time::sleep(Duration::from_secs(dice.below(400))).await,
    }
    if dice.below(3) == 0 {
        tokio::time::sleep(Duration::from_millis(dice.below(2000))).await;
    }
}

async fn run(seed: u64) -> Checked {
    let server = server();
    // The background makes its own objects first.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let history = History::of(&server);
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let checked = Arc::new(Mutex::new(Checked::default()));
    let mut stores: Vec<(View, Box<dyn Fn() -> State>)> = Vec::new();
    let mut watchers = tokio::task::JoinSet::new();
    for selector in [
        Selector::All,
        Selector::Gold,
        Selector::NotGold,
        Selector::Named,
    ] {
        for (metadata, streaming, page) in [
            (false, false, 500),
            (false, false, 2),
            (false, true, 500),
            (true, false, 2),
            (true, true, 500),
        ] {
            let view = View {
                selector,
                metadata,
                streaming,
                page,
            };
            let (server, history, checked) = (server.clone(), history.clone(), checked.clone());
            if metadata {
                let (store, writer) = reflector::store();
                let row = |o: &PartialObjectMeta<ConfigMap>| {
                    (o.resource_version().unwrap(), o.labels().clone(), None)
                };
                let own = store.clone();
                stores.push((view, Box::new(move || rebuilt(&own, row))));
                watchers.spawn(follow(server, history, view, (store, writer), row, checked));
            } else {
                let (store, writer) = reflector::store();
                let own = store.clone();
                stores.push((view, Box::new(move || rebuilt(&own, row))));
                watchers.spawn(follow(server, history, view, (store, writer), row, checked));
            }
        }
    }
    let mut dice = Dice(seed);
    for step in 0..150 {
        churn(&server, &api, &mut dice, step).await;
        if let Some(ended) = watchers.try_join_next() {
            panic!("seed {seed}: a watcher ended after step {step}: {ended:?}");
        }
    }
    // In the end all know all.
    server.set_latency(Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(600)).await;
    if let Some(ended) = watchers.try_join_next() {
        panic!("seed {seed}: a watcher ended: {ended:?}");
    }
    for (view, state) in stores {
        let newest = history.at(server.revision(), &view);
        assert_eq!(state(), newest, "seed {seed}: {view:?}");
    }
    *checked.lock().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_watchers_rebuild_is_the_list_at_every_revision() {
    let mut all = Checked::default();
    for seed in 0..8 {
        let one = run(seed).await;
        all.lists += one.lists;
        all.events += one.events;
        all.errors += one.errors;
    }
    println!("{all:?}");
    assert!(
        all.lists > 500 && all.events > 3000 && all.errors > 500,
        "{all:?}"
    );
}

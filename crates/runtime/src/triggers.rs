//! Streams that say which objects to reconcile because something else changed, on this cluster or
//! on another, for ever: a watch that ends begins again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

/// Pause before a watch that failed begins again.
const PAUSE: Duration = Duration::from_secs(5);

/// Objects of `K` to reconcile whenever an object of `api` changes. A watch that fails begins again
/// after 5 s. Ends at `shutdown`.
pub fn refs<K, W>(
    api: Api<W>,
    watch: watcher::Config,
    map: impl Fn(&W) -> Vec<ObjectRef<K>> + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> BoxStream<'static, ObjectRef<K>>
where
    K: Resource + 'static,
    K::DynamicType: Clone + PartialEq + Send + Sync,
    W: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    from_sessions(
        move || {
            let api = api.clone();
            async move { Ok::<_, std::convert::Infallible>(api) }
        },
        watch,
        map,
        shutdown,
    )
}

/// As [`refs`], asking `connect` for the API before each watch.
pub(crate) fn from_sessions<K, W, C, F, E>(
    connect: C,
    watch: watcher::Config,
    map: impl Fn(&W) -> Vec<ObjectRef<K>> + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> BoxStream<'static, ObjectRef<K>>
where
    K: Resource + 'static,
    K::DynamicType: Clone + PartialEq + Send + Sync,
    W: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    C: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = Result<Api<W>, E>> + Send + 'static,
    E: std::fmt::Display + Send,
{
    let state = Sessions { connect, watch, map, known: Known::default(), queue: VecDeque::new(), events: None, first: true };
    stream::unfold(state, |mut state| async move { state.next().await.map(|r| (r, state)) }).take_until(shutdown.cancelled_owned()).boxed()
}

type Key = (String, String);
type Events<W> = BoxStream<'static, watcher::Result<Event<W>>>;

struct Sessions<K: Resource, W, C, M> {
    connect: C,
    watch: watcher::Config,
    map: M,
    known: Known<K>,
    queue: VecDeque<ObjectRef<K>>,
    events: Option<Events<W>>,
    first: bool,
}

impl<K, W, C, M, F, E> Sessions<K, W, C, M>
where
    K: Resource + 'static,
    K::DynamicType: Clone + PartialEq,
    W: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    C: Fn() -> F,
    M: Fn(&W) -> Vec<ObjectRef<K>>,
    F: Future<Output = Result<Api<W>, E>>,
    E: std::fmt::Display,
{
    async fn next(&mut self) -> Option<ObjectRef<K>> {
        loop {
            if let Some(next) = self.queue.pop_front() {
                return Some(next);
            }
            let Some(events) = &mut self.events else {
                self.begin().await;
                continue;
            };
            match events.next().await {
                Some(Ok(event)) => self.take(event),
                Some(Err(error)) => {
                    tracing::debug!(%error, "watch failed; it begins again in {} s", PAUSE.as_secs());
                    self.events = None;
                }
                None => self.events = None,
            }
        }
    }

    async fn begin(&mut self) {
        if !std::mem::take(&mut self.first) {
            tokio::time::sleep(PAUSE).await;
        }
        match (self.connect)().await {
            Ok(api) => self.events = Some(watcher::watcher(api, self.watch.clone()).boxed()),
            Err(error) => tracing::debug!(%error, "no connection; tried again in {} s", PAUSE.as_secs()),
        }
    }

    fn take(&mut self, event: Event<W>) {
        let key = |object: &W| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            Event::Init => self.known.relist(),
            Event::InitApply(object) | Event::Apply(object) => {
                let refs = (self.map)(&object);
                self.queue.extend(self.known.seen(key(&object), refs));
            }
            Event::InitDone => self.queue.extend(self.known.relisted()),
            Event::Delete(object) => {
                let refs = (self.map)(&object);
                self.known.seen(key(&object), refs);
                self.queue.extend(self.known.gone(&key(&object)));
            }
        }
    }
}

/// Which objects the watch has shown, with what they map to: whoever an object mapped to must also
/// hear of it when it maps to somebody else, or vanished while nobody watched.
struct Known<K: Resource> {
    refs: BTreeMap<Key, Vec<ObjectRef<K>>>,
    /// Objects shown by the running list.
    listed: BTreeSet<Key>,
}

impl<K: Resource> Default for Known<K> {
    fn default() -> Self {
        Self { refs: BTreeMap::new(), listed: BTreeSet::new() }
    }
}

impl<K: Resource> Known<K>
where
    K::DynamicType: Clone + PartialEq,
{
    fn relist(&mut self) {
        self.listed.clear();
    }

    fn seen(&mut self, key: Key, refs: Vec<ObjectRef<K>>) -> Vec<ObjectRef<K>> {
        self.listed.insert(key.clone());
        let mut all = refs.clone();
        let before = if refs.is_empty() { self.refs.remove(&key) } else { self.refs.insert(key, refs) };
        for old in before.unwrap_or_default() {
            if !all.contains(&old) {
                all.push(old);
            }
        }
        all
    }

    fn gone(&mut self, key: &Key) -> Vec<ObjectRef<K>> {
        self.listed.remove(key);
        self.refs.remove(key).unwrap_or_default()
    }

    fn relisted(&mut self) -> Vec<ObjectRef<K>> {
        let vanished: Vec<Key> = self.refs.keys().filter(|k| !self.listed.contains(*k)).cloned().collect();
        vanished.iter().flat_map(|k| self.gone(k)).collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn key(name: &str) -> Key {
        ("ns".into(), name.into())
    }

    fn to(names: &[&str]) -> Vec<ObjectRef<ConfigMap>> {
        names.iter().map(|n| ObjectRef::new(n).within("ns")).collect()
    }

    #[test]
    fn who_an_object_mapped_to_before_hears_of_the_change() {
        let mut known = Known::<ConfigMap>::default();
        assert_eq!(known.seen(key("pod"), to(&["a"])), to(&["a"]));
        assert_eq!(known.seen(key("pod"), to(&["b"])), to(&["b", "a"]));
        assert_eq!(known.seen(key("pod"), to(&["b"])), to(&["b"]));
        assert_eq!(known.gone(&key("pod")), to(&["b"]));
    }

    #[test]
    fn what_vanished_while_nobody_watched_is_told_after_the_next_list() {
        let mut known = Known::<ConfigMap>::default();
        known.seen(key("one"), to(&["a"]));
        known.seen(key("two"), to(&["b"]));
        known.relist();
        known.seen(key("two"), to(&["b"]));
        assert_eq!(known.relisted(), to(&["a"]));
    }
}

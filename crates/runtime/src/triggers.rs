//! Streams that say which objects to reconcile because something else changed, on this cluster or
//! on another, for ever: a watch that ends begins again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
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

/// A kind whose objects can be watched.
pub trait Watched: Resource + Clone + DeserializeOwned + Debug + Send + 'static {}

impl<W: Resource + Clone + DeserializeOwned + Debug + Send + 'static> Watched for W {}

/// A kind whose objects can be named as what to reconcile.
pub trait Woken: Resource<DynamicType: Clone + PartialEq + Send + Sync> + 'static {}

impl<K: Resource<DynamicType: Clone + PartialEq + Send + Sync> + 'static> Woken for K {}

/// Objects of `K` to reconcile whenever an object of `api` changes. A watch that fails begins again
/// after 5 s. Ends at `shutdown`.
pub fn refs<K: Woken, W: Watched>(
    api: Api<W>,
    watch: watcher::Config,
    map: impl Fn(&W) -> Vec<ObjectRef<K>> + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> BoxStream<'static, ObjectRef<K>> {
    from_sessions(always(api), watch, map, shutdown)
}

/// As [`refs`], passing over changes of an object that leave `what` (the part that matters) as it was.
pub fn refs_on_change<K: Woken, W: Watched>(
    api: Api<W>,
    watch: watcher::Config,
    what: impl Fn(&W) -> String + Send + Sync + 'static,
    map: impl Fn(&W) -> Vec<ObjectRef<K>> + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> BoxStream<'static, ObjectRef<K>> {
    let map = move |object: &W| (map(object), Some(what(object)));
    stream_of(always(api), watch, map, shutdown)
}

/// The API of this cluster needs no new connection for each watch.
fn always<W: Clone>(api: Api<W>) -> impl Fn() -> std::future::Ready<Result<Api<W>, Infallible>> {
    move || std::future::ready(Ok(api.clone()))
}

/// As [`refs`], asking `connect` for the API before each watch.
pub(crate) fn from_sessions<K: Woken, W: Watched, C, F, E>(
    connect: C,
    watch: watcher::Config,
    map: impl Fn(&W) -> Vec<ObjectRef<K>> + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> BoxStream<'static, ObjectRef<K>>
where
    C: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = Result<Api<W>, E>> + Send + 'static,
    E: std::fmt::Display + Send,
{
    let map = move |object: &W| (map(object), None);
    stream_of(connect, watch, map, shutdown)
}

fn stream_of<K: Woken, W: Watched, C, F, E>(
    connect: C,
    watch: watcher::Config,
    map: impl Fn(&W) -> Mapped<K> + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> BoxStream<'static, ObjectRef<K>>
where
    C: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = Result<Api<W>, E>> + Send + 'static,
    E: std::fmt::Display + Send,
{
    let state = Sessions {
        connect,
        watch,
        map,
        known: Known::default(),
        queue: VecDeque::new(),
        events: None,
        first: true,
    };
    stream::unfold(state, |mut state| async move {
        state.next().await.map(|r| (r, state))
    })
    .take_until(shutdown.cancelled_owned())
    .boxed()
}

type Key = (String, String);
/// Whom an object concerns, and the part of it that matters to them; `None`: all of it.
type Mapped<K> = (Vec<ObjectRef<K>>, Option<String>);
type Events<W> = BoxStream<'static, watcher::Result<Event<W>>>;

struct Sessions<K: Woken, W, C, M> {
    connect: C,
    watch: watcher::Config,
    map: M,
    known: Known<K>,
    queue: VecDeque<ObjectRef<K>>,
    events: Option<Events<W>>,
    first: bool,
}

impl<K: Woken, W: Watched, C, M, F, E> Sessions<K, W, C, M>
where
    C: Fn() -> F,
    M: Fn(&W) -> Mapped<K>,
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
            Err(error) => {
                tracing::debug!(%error, "no connection; tried again in {} s", PAUSE.as_secs())
            }
        }
    }

    fn take(&mut self, event: Event<W>) {
        let key = |object: &W| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            Event::Init => self.known.relist(),
            Event::InitApply(object) | Event::Apply(object) => {
                let mapped = (self.map)(&object);
                self.queue.extend(self.known.seen(key(&object), mapped));
            }
            Event::InitDone => self.queue.extend(self.known.relisted()),
            Event::Delete(object) => {
                let mapped = (self.map)(&object);
                self.queue.extend(self.known.last(&key(&object), mapped));
            }
        }
    }
}

/// Which objects the watch has shown, with what they map to: whoever an object mapped to must also
/// hear of it when it maps to somebody else, or vanished while nobody watched.
struct Known<K: Woken> {
    objects: BTreeMap<Key, Mapped<K>>,
    /// Objects shown by the running list.
    listed: BTreeSet<Key>,
}

impl<K: Woken> Default for Known<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            listed: BTreeSet::new(),
        }
    }
}

impl<K: Woken> Known<K> {
    fn relist(&mut self) {
        self.listed.clear();
    }

    fn seen(&mut self, key: Key, mapped: Mapped<K>) -> Vec<ObjectRef<K>> {
        self.listed.insert(key.clone());
        let before = self.objects.get(&key);
        if mapped.1.is_some() && before == Some(&mapped) {
            return Vec::new();
        }
        let all = union(
            &mapped.0,
            before.map(|b| b.0.as_slice()).unwrap_or_default(),
        );
        if mapped.0.is_empty() {
            self.objects.remove(&key);
        } else {
            self.objects.insert(key, mapped);
        }
        all
    }

    /// The object is gone; `mapped` is whom it concerned at last.
    fn last(&mut self, key: &Key, mapped: Mapped<K>) -> Vec<ObjectRef<K>> {
        let before = self.gone(key);
        union(&mapped.0, &before)
    }

    fn gone(&mut self, key: &Key) -> Vec<ObjectRef<K>> {
        self.listed.remove(key);
        self.objects.remove(key).map(|m| m.0).unwrap_or_default()
    }

    fn relisted(&mut self) -> Vec<ObjectRef<K>> {
        let vanished: Vec<Key> = self
            .objects
            .keys()
            .filter(|k| !self.listed.contains(*k))
            .cloned()
            .collect();
        vanished.iter().flat_map(|k| self.gone(k)).collect()
    }
}

fn union<K: Woken>(new: &[ObjectRef<K>], old: &[ObjectRef<K>]) -> Vec<ObjectRef<K>> {
    let mut all = new.to_vec();
    all.extend(old.iter().filter(|o| !new.contains(o)).cloned());
    all
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn key(name: &str) -> Key {
        ("ns".into(), name.into())
    }

    fn refs(names: &[&str]) -> Vec<ObjectRef<ConfigMap>> {
        names
            .iter()
            .map(|n| ObjectRef::new(n).within("ns"))
            .collect()
    }

    fn to(names: &[&str]) -> Mapped<ConfigMap> {
        (refs(names), None)
    }

    #[test]
    fn who_an_object_mapped_to_before_hears_of_the_change() {
        let mut known = Known::<ConfigMap>::default();
        assert_eq!(known.seen(key("pod"), to(&["a"])), refs(&["a"]));
        assert_eq!(known.seen(key("pod"), to(&["b"])), refs(&["b", "a"]));
        assert_eq!(known.seen(key("pod"), to(&["b"])), refs(&["b"]));
        assert_eq!(known.last(&key("pod"), to(&["c"])), refs(&["c", "b"]));
    }

    #[test]
    fn a_change_that_does_not_matter_is_passed_over() {
        let mut known = Known::<ConfigMap>::default();
        let with = |names: &[&str], what: &str| (refs(names), Some(what.to_string()));
        assert_eq!(known.seen(key("pod"), with(&["a"], "x")), refs(&["a"]));
        assert_eq!(known.seen(key("pod"), with(&["a"], "x")), refs(&[]));
        assert_eq!(known.seen(key("pod"), with(&["a"], "y")), refs(&["a"]));
        assert_eq!(known.seen(key("pod"), with(&["b"], "y")), refs(&["b", "a"]));
    }

    #[test]
    fn what_vanished_while_nobody_watched_is_told_after_the_next_list() {
        let mut known = Known::<ConfigMap>::default();
        known.seen(key("one"), to(&["a"]));
        known.seen(key("two"), to(&["b"]));
        known.relist();
        known.seen(key("two"), to(&["b"]));
        assert_eq!(known.relisted(), refs(&["a"]));
    }
}

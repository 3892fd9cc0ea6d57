//! The object store: ordered tables, one revision counter, a bounded history per table, and watchers.
//!
//! Everything that must be atomic happens under one short lock: a commit checks its precondition, takes the next
//! revision, changes the table, appends to the history and hands the event to every watcher, so all watchers see the
//! same order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::meta;

/// Events kept per table before the oldest expire.
const HISTORY: usize = 2048;
/// Events a watcher may lag behind before it is cut off.
const WATCH_BUFFER: usize = 16 * 1024;
/// Table of Namespace objects; creations in namespaces check it.
pub(crate) const NAMESPACES: &str = "namespaces";

/// Name of an object in its table. The namespace is empty for cluster-scoped objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub fn of(object: &Value) -> Self {
        Self::new(meta::namespace(object), meta::name(object))
    }
}

/// An object at one revision, with its JSON text cached once somebody asks for it.
#[derive(Debug)]
pub(crate) struct Stored {
    pub revision: u64,
    pub value: Value,
    /// Generation of the CRD schema the object was written under (0 for built-ins).
    pub schema: i64,
    json: OnceLock<Bytes>,
    item: OnceLock<Bytes>,
}

impl Stored {
    pub fn new(mut value: Value, revision: u64, schema: i64) -> Arc<Self> {
        meta::set_resource_version(&mut value, revision);
        Arc::new(Self {
            revision,
            value,
            schema,
            json: OnceLock::new(),
            item: OnceLock::new(),
        })
    }

    /// The same object as if it stood at another revision.
    pub fn at_revision(other: &Self, revision: u64) -> Arc<Self> {
        Self::new(other.value.clone(), revision, other.schema)
    }

    /// The same object without a resourceVersion: it was not stored.
    pub fn unversioned(other: &Self) -> Arc<Self> {
        let mut value = other.value.clone();
        meta::unset(&mut value, "resourceVersion");
        Arc::new(Self {
            revision: other.revision,
            value,
            schema: other.schema,
            json: OnceLock::new(),
            item: OnceLock::new(),
        })
    }

    /// As an item of a list of a built-in kind: the list names kind and version.
    pub fn item(&self) -> Bytes {
        self.item
            .get_or_init(|| {
                let rest = self.value.as_object().into_iter().flatten();
                let rest: serde_json::Map<String, Value> = rest
                    .filter(|(k, _)| !matches!(k.as_str(), "kind" | "apiVersion"))
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect();
                Bytes::from(Value::Object(rest).to_string())
            })
            .clone()
    }

    pub fn json(&self) -> Bytes {
        self.json
            .get_or_init(|| Bytes::from(self.value.to_string()))
            .clone()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Created,
    Modified,
    Deleted,
}

/// One committed change.
#[derive(Debug)]
pub(crate) struct Event {
    pub revision: u64,
    pub kind: EventKind,
    pub table: Arc<str>,
    /// The object after the change; for a deletion its last state, carrying the revision of the deletion.
    pub object: Arc<Stored>,
    pub previous: Option<Arc<Stored>>,
}

/// A change to commit. `expected` is the revision the change was computed from.
pub(crate) enum Change {
    Create { value: Value },
    Update { expected: u64, value: Value },
    Delete { expected: u64, value: Value },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommitError {
    Exists,
    /// The object changed or went away since it was read: compute again.
    Stale,
    NamespaceMissing,
    NamespaceTerminating,
}

/// The history no longer reaches back to the revision asked for.
#[derive(Debug)]
pub(crate) struct Expired {
    pub requested: u64,
    pub oldest: u64,
}

#[derive(Default)]
struct Table {
    objects: BTreeMap<Key, Arc<Stored>>,
    history: VecDeque<Arc<Event>>,
    /// Revision of the newest event dropped from the history.
    expired: u64,
    watchers: Vec<mpsc::Sender<Arc<Event>>>,
}

#[derive(Default)]
struct Inner {
    revision: u64,
    tables: BTreeMap<Arc<str>, Table>,
    taps: Vec<mpsc::UnboundedSender<Arc<Event>>>,
    observers: Vec<Observer>,
}

/// Told of each commit before anybody else can act on it. It must not call the store.
pub(crate) type Observer = Box<dyn Fn(&Event) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Store {
    inner: Mutex<Inner>,
}

/// The events of one table, as they are committed.
pub(crate) type Events = mpsc::Receiver<Arc<Event>>;

/// All objects of one table at one revision.
pub(crate) struct Snapshot {
    pub revision: u64,
    pub objects: Vec<Arc<Stored>>,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while holding the lock cannot leave a half-done commit worth refusing service for.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// The revision of the last change of each of these tables; 0 for one that never held anything.
    pub fn newest<const N: usize>(&self, tables: [&str; N]) -> [u64; N] {
        let inner = self.lock();
        tables.map(|table| {
            let table = inner.tables.get(table);
            table.map_or(0, |t| t.history.back().map_or(t.expired, |e| e.revision))
        })
    }

    pub fn get(&self, table: &str, key: &Key) -> Option<Arc<Stored>> {
        self.lock().tables.get(table)?.objects.get(key).cloned()
    }

    /// Commits one change and tells every watcher.
    pub fn commit(
        &self,
        table: &str,
        key: &Key,
        schema: i64,
        change: Change,
    ) -> Result<Arc<Stored>, CommitError> {
        self.change(table, key, schema, change, true)
    }

    /// Answers as [`Self::commit`] would, and changes nothing.
    pub fn rehearse(
        &self,
        table: &str,
        key: &Key,
        change: Change,
    ) -> Result<Arc<Stored>, CommitError> {
        self.change(table, key, 0, change, false)
    }

    fn change(
        &self,
        table: &str,
        key: &Key,
        schema: i64,
        change: Change,
        really: bool,
    ) -> Result<Arc<Stored>, CommitError> {
        let mut inner = self.lock();
        if matches!(change, Change::Create { .. }) && !key.namespace.is_empty() {
            match inner
                .tables
                .get(NAMESPACES)
                .and_then(|t| t.objects.get(&Key::new("", &key.namespace)))
            {
                None => return Err(CommitError::NamespaceMissing),
                Some(ns) if meta::is_deleting(&ns.value) => {
                    return Err(CommitError::NamespaceTerminating);
                }
                Some(_) => {}
            }
        }
        let revision = inner.revision + 1;
        let name: Arc<str> = match inner.tables.get_key_value(table) {
            Some((name, _)) => name.clone(),
            None => Arc::from(table),
        };
        let entry = inner.tables.entry(name.clone()).or_default();
        let previous = entry.objects.get(key).cloned();
        let (kind, object) = match change {
            Change::Create { value } => {
                if previous.is_some() {
                    return Err(CommitError::Exists);
                }
                (EventKind::Created, Stored::new(value, revision, schema))
            }
            Change::Update { expected, value } => {
                if previous.as_ref().is_none_or(|p| p.revision != expected) {
                    return Err(CommitError::Stale);
                }
                (EventKind::Modified, Stored::new(value, revision, schema))
            }
            Change::Delete { expected, value } => {
                if previous.as_ref().is_none_or(|p| p.revision != expected) {
                    return Err(CommitError::Stale);
                }
                (EventKind::Deleted, Stored::new(value, revision, schema))
            }
        };
        if !really {
            return Ok(object);
        }
        if kind == EventKind::Deleted {
            entry.objects.remove(key);
        } else {
            entry.objects.insert(key.clone(), object.clone());
        }
        let event = Arc::new(Event {
            revision,
            kind,
            table: name,
            object: object.clone(),
            previous,
        });
        entry.history.push_back(event.clone());
        if entry.history.len() > HISTORY
            && let Some(dropped) = entry.history.pop_front()
        {
            entry.expired = dropped.revision;
        }
        // A watcher that lags too far behind is cut off: its stream ends and the client lists again.
        entry.watchers.retain(|w| w.try_send(event.clone()).is_ok());
        inner.revision = revision;
        inner.taps.retain(|t| t.send(event.clone()).is_ok());
        for observer in &inner.observers {
            observer(&event);
        }
        Ok(object)
    }

    /// Whether a table has no objects.
    pub fn is_empty(&self, table: &str) -> bool {
        let inner = self.lock();
        inner.tables.get(table).is_none_or(|t| t.objects.is_empty())
    }

    /// The newest state of a table, optionally of one namespace.
    pub fn list(&self, table: &str, namespace: Option<&str>) -> Snapshot {
        let inner = self.lock();
        Snapshot {
            revision: inner.revision,
            objects: objects(inner.tables.get(table), namespace),
        }
    }

    /// The state of a table as it was at `revision`, rebuilt by undoing the events since.
    pub fn list_at(
        &self,
        table: &str,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Snapshot, Expired> {
        let inner = self.lock();
        let Some(entry) = inner.tables.get(table) else {
            return Ok(Snapshot {
                revision,
                objects: Vec::new(),
            });
        };
        if revision < entry.expired {
            return Err(Expired {
                requested: revision,
                oldest: entry.expired,
            });
        }
        let mut past: BTreeMap<Key, Option<Arc<Stored>>> = BTreeMap::new();
        for event in entry
            .history
            .iter()
            .rev()
            .take_while(|e| e.revision > revision)
        {
            past.insert(Key::of(&event.object.value), event.previous.clone());
        }
        if past.is_empty() {
            return Ok(Snapshot {
                revision,
                objects: objects(Some(entry), namespace),
            });
        }
        let mut then: BTreeMap<&Key, Arc<Stored>> =
            entry.objects.iter().map(|(k, o)| (k, o.clone())).collect();
        for (key, object) in &past {
            match object {
                Some(object) => then.insert(key, object.clone()),
                None => then.remove(key),
            };
        }
        let objects = then
            .into_iter()
            .filter(|(k, _)| namespace.is_none_or(|n| k.namespace == n))
            .map(|(_, o)| o);
        Ok(Snapshot {
            revision,
            objects: objects.collect(),
        })
    }

    /// Events of a table after `revision`, then everything that follows.
    pub fn watch_from(
        &self,
        table: &str,
        revision: u64,
    ) -> Result<(Vec<Arc<Event>>, Events), Expired> {
        let mut inner = self.lock();
        let entry = inner.tables.entry(Arc::from(table)).or_default();
        if revision < entry.expired {
            return Err(Expired {
                requested: revision,
                oldest: entry.expired,
            });
        }
        let from = entry.history.partition_point(|e| e.revision <= revision);
        let backlog = entry.history.range(from..).cloned().collect();
        Ok((backlog, subscribe(entry)))
    }

    /// The newest state of a table, then everything that follows.
    pub fn list_and_watch(&self, table: &str, namespace: Option<&str>) -> (Snapshot, Events) {
        let mut inner = self.lock();
        let revision = inner.revision;
        let entry = inner.tables.entry(Arc::from(table)).or_default();
        let snapshot = Snapshot {
            revision,
            objects: objects(Some(entry), namespace),
        };
        (snapshot, subscribe(entry))
    }

    /// Every event of every table from now on, and the names of all tables.
    pub fn tap(&self) -> (Vec<Arc<str>>, mpsc::UnboundedReceiver<Arc<Event>>) {
        let mut inner = self.lock();
        let (tx, rx) = mpsc::unbounded_channel();
        inner.taps.push(tx);
        (inner.tables.keys().cloned().collect(), rx)
    }

    /// Adds an observer.
    pub fn observe(&self, observer: Observer) {
        self.lock().observers.push(observer);
    }

    /// All tables that hold an object of that namespace, with those objects.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(Arc<str>, Arc<Stored>)> {
        let inner = self.lock();
        let mut found = Vec::new();
        for (name, table) in &inner.tables {
            found.extend(
                objects(Some(table), Some(namespace))
                    .into_iter()
                    .map(|o| (name.clone(), o)),
            );
        }
        found
    }

    /// Ends all watches of a table.
    pub fn close_watches(&self, table: &str) {
        if let Some(table) = self.lock().tables.get_mut(table) {
            table.watchers.clear();
        }
    }

    /// Forgets the history: every older resourceVersion is expired from here on.
    pub fn compact(&self) {
        let mut inner = self.lock();
        let revision = inner.revision;
        for table in inner.tables.values_mut() {
            table.history.clear();
            table.expired = revision;
        }
    }
}

fn subscribe(table: &mut Table) -> Events {
    let (tx, rx) = mpsc::channel(WATCH_BUFFER);
    table.watchers.retain(|w| !w.is_closed());
    table.watchers.push(tx);
    rx
}

fn objects(table: Option<&Table>, namespace: Option<&str>) -> Vec<Arc<Stored>> {
    let Some(table) = table else {
        return Vec::new();
    };
    match namespace {
        None => table.objects.values().cloned().collect(),
        Some(ns) => {
            let from = Key::new(ns, "");
            table
                .objects
                .range(from..)
                .take_while(|(k, _)| k.namespace == ns)
                .map(|(_, o)| o.clone())
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cm(name: &str, n: i64) -> Value {
        json!({"metadata": {"name": name}, "data": {"n": n}})
    }

    fn put(store: &Store, name: &str, change: Change) -> Result<Arc<Stored>, CommitError> {
        store.commit("t", &Key::new("", name), 0, change)
    }

    #[test]
    fn a_past_state_is_rebuilt_exactly() {
        let store = Store::default();
        let a = put(&store, "a", Change::Create { value: cm("a", 1) }).unwrap();
        put(&store, "b", Change::Create { value: cm("b", 1) }).unwrap();
        let then = store.revision();
        put(
            &store,
            "a",
            Change::Update {
                expected: a.revision,
                value: cm("a", 2),
            },
        )
        .unwrap();
        let b = store.get("t", &Key::new("", "b")).unwrap();
        put(
            &store,
            "b",
            Change::Delete {
                expected: b.revision,
                value: cm("b", 1),
            },
        )
        .unwrap();
        put(&store, "c", Change::Create { value: cm("c", 1) }).unwrap();

        let past = store.list_at("t", None, then).unwrap();
        let names: Vec<_> = past
            .objects
            .iter()
            .map(|o| {
                (
                    meta::name(&o.value).to_owned(),
                    o.value["data"]["n"].clone(),
                )
            })
            .collect();
        assert_eq!(
            names,
            vec![("a".to_owned(), json!(1)), ("b".to_owned(), json!(1))]
        );
    }

    #[test]
    fn a_change_computed_from_an_old_state_is_refused() {
        let store = Store::default();
        let a = put(&store, "a", Change::Create { value: cm("a", 1) }).unwrap();
        put(
            &store,
            "a",
            Change::Update {
                expected: a.revision,
                value: cm("a", 2),
            },
        )
        .unwrap();
        let late = put(
            &store,
            "a",
            Change::Update {
                expected: a.revision,
                value: cm("a", 3),
            },
        );
        assert_eq!(late.unwrap_err(), CommitError::Stale);
        assert_eq!(store.revision(), 2, "a refused change takes no revision");
    }

    #[test]
    fn history_before_a_compaction_is_expired() {
        let store = Store::default();
        put(&store, "a", Change::Create { value: cm("a", 1) }).unwrap();
        put(&store, "b", Change::Create { value: cm("b", 1) }).unwrap();
        store.compact();
        assert!(store.watch_from("t", 1).is_err());
        assert!(store.watch_from("t", 2).is_ok());
    }
}

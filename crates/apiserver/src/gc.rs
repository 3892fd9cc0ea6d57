//! The server's own controllers: owner garbage collection, namespace and CRD deletion, default ServiceAccounts, and the
//! end of old events.
//!
//! One loop over the store's events. Whatever it deletes comes back as an event, so every step is small and the loop
//! ends where the world is in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::crd;
use crate::error::ApiResult;
use crate::handlers::delete::{self, DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use crate::handlers::write::{Managed, Written};
use crate::meta;
use crate::registry::ResourceInfo;
use crate::server::Server;
use crate::store::{Event, EventKind, Key, NAMESPACES, Stored};
use crate::strategy::Endpoint;

const SERVICE_ACCOUNTS: &str = "serviceaccounts";
const EVENTS: &str = "events";
/// How long an event is kept after its last write, as in Kubernetes.
const EVENT_LIFETIME: Duration = Duration::from_secs(3600);

/// An object's place in the store.
type Place = (Arc<str>, Key);

struct Collector {
    server: Arc<Server>,
    /// owner uid → its dependents
    dependents: BTreeMap<String, BTreeSet<Place>>,
    /// object → uids of its owners, as indexed
    owners: BTreeMap<Place, BTreeSet<String>>,
    /// When an event that is still at this revision has outlived its use.
    fading: BTreeSet<(Instant, Key, u64)>,
}

/// Runs until dropped.
pub(crate) async fn run(server: Arc<Server>) {
    let (tables, mut events) = server.store.tap();
    let mut collector = Collector {
        server: server.clone(),
        dependents: BTreeMap::new(),
        owners: BTreeMap::new(),
        fading: BTreeSet::new(),
    };
    // The index first: whether an object is somebody's dependent must be known before anything is judged.
    let mut present = Vec::new();
    for table in tables {
        for object in server.store.list(&table, None).objects {
            let place = (table.clone(), Key::of(&object.value));
            collector.index(&place, Some(&object.value));
            present.push((place, object));
        }
    }
    for (place, object) in present {
        collector.present(&place, &object, true);
    }
    loop {
        let next = collector.fading.first().map(|(at, ..)| *at);
        tokio::select! {
            biased;
            event = events.recv() => match event {
                Some(event) => collector.take(&event),
                None => return,
            },
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => collector.fade(),
        }
    }
}

impl Collector {
    fn take(&mut self, event: &Event) {
        let place = (event.table.clone(), Key::of(&event.object.value));
        match event.kind {
            EventKind::Deleted => {
                self.index(&place, None);
                self.gone(&place, &event.object);
            }
            EventKind::Created | EventKind::Modified => {
                self.index(&place, Some(&event.object.value));
                let owners = |o: &Stored| meta::get(&o.value, "ownerReferences").cloned();
                let changed = event
                    .previous
                    .as_ref()
                    .is_none_or(|p| owners(p) != owners(&event.object));
                self.present(&place, &event.object, changed);
            }
        }
    }

    fn index(&mut self, place: &Place, object: Option<&Value>) {
        for uid in self.owners.remove(place).unwrap_or_default() {
            if let Some(set) = self.dependents.get_mut(&uid) {
                set.remove(place);
                if set.is_empty() {
                    self.dependents.remove(&uid);
                }
            }
        }
        let owners: BTreeSet<String> = object
            .map(meta::owners)
            .unwrap_or_default()
            .iter()
            .filter_map(|o| o["uid"].as_str())
            .map(str::to_owned)
            .collect();
        if !owners.is_empty() {
            for uid in &owners {
                self.dependents
                    .entry(uid.clone())
                    .or_default()
                    .insert(place.clone());
            }
            self.owners.insert(place.clone(), owners);
        }
    }

    fn present(&mut self, place: &Place, object: &Stored, owners_changed: bool) {
        let value = &object.value;
        let deleting = meta::is_deleting(value);
        if &*place.0 == NAMESPACES {
            if deleting {
                self.clean_namespace(&place.1.name)
            } else {
                self.default_account(&place.1.name)
            }
        }
        if &*place.0 == EVENTS {
            let end = Instant::now() + EVENT_LIFETIME;
            self.fading.insert((end, place.1.clone(), object.revision));
        }
        if &*place.0 == crd::TABLE && deleting {
            self.clean_crd(&place.1.name);
        }
        if deleting {
            let finalizers = meta::finalizers(value);
            if finalizers.iter().any(|f| f == ORPHAN) {
                self.orphan(place, value);
            } else if finalizers.iter().any(|f| f == FOREGROUND) {
                self.foreground(place, value);
            }
        }
        if owners_changed && !meta::owners(value).is_empty() {
            self.judge(place);
        }
    }

    fn gone(&mut self, place: &Place, object: &Stored) {
        let uid = meta::uid(&object.value).to_owned();
        for dependent in self.dependents.get(&uid).cloned().unwrap_or_default() {
            self.judge(&dependent);
        }
        for owner in meta::owners(&object.value) {
            if let Owner::Foreground(place) = self.owner(owner, &place.1.namespace)
                && let Some(stored) = self.server.store.get(&place.0, &place.1)
            {
                self.foreground(&place, &stored.value);
            }
        }
        let namespace = &place.1.namespace;
        if !namespace.is_empty()
            && let Some(ns) = self.server.store.get(NAMESPACES, &Key::new("", namespace))
        {
            if meta::is_deleting(&ns.value) {
                self.finish_namespace(namespace);
            } else if &*place.0 == SERVICE_ACCOUNTS && place.1.name == "default" {
                self.default_account(namespace);
            }
        }
        if self
            .server
            .store
            .get(crd::TABLE, &Key::new("", &place.0))
            .is_some_and(|c| meta::is_deleting(&c.value))
        {
            self.clean_crd(&place.0);
        }
    }

    /// Deletes the events whose time has come.
    fn fade(&mut self) {
        while self
            .fading
            .first()
            .is_some_and(|(at, ..)| *at <= Instant::now())
        {
            let Some((_, key, revision)) = self.fading.pop_first() else {
                return;
            };
            let stored = self.server.store.get(EVENTS, &key);
            if let Some(stored) = stored.filter(|s| s.revision == revision) {
                self.delete(&(Arc::from(EVENTS), key), meta::uid(&stored.value), None);
            }
        }
    }

    fn resource(&self, table: &str) -> Option<Arc<ResourceInfo>> {
        self.server
            .registry()
            .iter()
            .find(|r| r.table == table)
            .cloned()
    }

    fn delete(&self, place: &Place, uid: &str, propagation: Option<Propagation>) {
        let Some(resource) = self.resource(&place.0) else {
            return;
        };
        let options = DeleteOptions {
            uid: Some(uid.to_owned()),
            propagation,
            ..DeleteOptions::default()
        };
        // A failure means the object changed or went away: its event brings us back here.
        let _ = delete::delete(&self.server, &resource, &place.1, &options);
    }

    fn update(
        &self,
        place: &Place,
        endpoint: Endpoint,
        change: &dyn Fn(&mut Value),
    ) -> Option<ApiResult<Written>> {
        let resource = self.resource(&place.0)?;
        let mut writer = self.server.writer(&resource);
        let done = writer.update(&place.1, endpoint, Managed::Track, &mut |old| {
            let mut new = old.clone();
            change(&mut new);
            Ok(new)
        });
        if done.is_ok() && &*place.0 == crd::TABLE {
            crd::changed(&self.server, &place.1.name);
        }
        Some(done)
    }

    /// Looks at one owner reference of an object in `namespace`.
    fn owner(&self, reference: &Value, namespace: &str) -> Owner {
        let (api_version, kind) = (
            reference["apiVersion"].as_str().unwrap_or(""),
            reference["kind"].as_str().unwrap_or(""),
        );
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let registry = self.server.registry();
        let Some(resource) = registry.by_kind(group, version, kind) else {
            return Owner::Unknown;
        };
        // An owner in another namespace does not exist, and a cluster-scoped object has no namespaced owner.
        let key = Key::new(
            if resource.namespaced { namespace } else { "" },
            reference["name"].as_str().unwrap_or(""),
        );
        match self.server.store.get(&resource.table, &key) {
            Some(owner) if meta::uid(&owner.value) == reference["uid"].as_str().unwrap_or("") => {
                let waits = in_foreground(&owner.value);
                if waits {
                    Owner::Foreground((Arc::from(resource.table.as_str()), key))
                } else {
                    Owner::Solid
                }
            }
            _ => Owner::Absent,
        }
    }

    /// Deletes an object whose owners are gone or going; drops references to owners that are gone while others stay.
    fn judge(&mut self, place: &Place) {
        let Some(stored) = self.server.store.get(&place.0, &place.1) else {
            return;
        };
        let references = meta::owners(&stored.value).to_vec();
        if references.is_empty() || meta::is_deleting(&stored.value) {
            return;
        }
        let found: Vec<Owner> = references
            .iter()
            .map(|r| self.owner(r, &place.1.namespace))
            .collect();
        let solid = found
            .iter()
            .any(|o| matches!(o, Owner::Solid | Owner::Unknown));
        let waiting = found.iter().any(|o| matches!(o, Owner::Foreground(_)));
        let uid = meta::uid(&stored.value);
        if solid {
            let dead: BTreeSet<String> = references
                .iter()
                .zip(&found)
                .filter(|(_, o)| !matches!(o, Owner::Solid | Owner::Unknown))
                .filter_map(|(r, _)| r["uid"].as_str().map(str::to_owned))
                .collect();
            if !dead.is_empty() {
                let _ = self.update(place, Endpoint::Main, &|object| drop_owners(object, &dead));
            }
        } else if waiting {
            let dependents = self.dependents.get(uid).cloned().unwrap_or_default();
            if dependents.iter().any(|d| self.waits_for_dependents(d)) {
                // Owners in a circle would block each other for ever.
                let _ = self.update(place, Endpoint::Main, &unblock_owners);
            }
            let policy = if dependents.is_empty() {
                Propagation::Background
            } else {
                Propagation::Foreground
            };
            self.delete(place, uid, Some(policy));
        } else {
            self.delete(place, uid, None);
        }
    }

    fn waits_for_dependents(&self, place: &Place) -> bool {
        let stored = self.server.store.get(&place.0, &place.1);
        stored.is_some_and(|s| in_foreground(&s.value))
    }

    /// A deletion in the foreground: dependents first; the owner goes when none is left that blocks it.
    fn foreground(&mut self, place: &Place, owner: &Value) {
        let uid = meta::uid(owner).to_owned();
        let dependents = self.dependents.get(&uid).cloned().unwrap_or_default();
        for dependent in &dependents {
            self.judge(dependent);
        }
        let blocks = |place: &Place| {
            let stored = self.server.store.get(&place.0, &place.1);
            stored.is_some_and(|s| {
                meta::owners(&s.value)
                    .iter()
                    .any(|r| r["uid"] == uid.as_str() && r["blockOwnerDeletion"] == true)
            })
        };
        if !dependents.iter().any(blocks) {
            let _ = self.update(place, Endpoint::Main, &|object| {
                drop_finalizer(object, FOREGROUND)
            });
        }
    }

    /// A deletion that leaves its dependents behind, without a reference to it.
    fn orphan(&mut self, place: &Place, owner: &Value) {
        let uid = meta::uid(owner).to_owned();
        let dead = BTreeSet::from([uid.clone()]);
        for dependent in self.dependents.get(&uid).cloned().unwrap_or_default() {
            let _ = self.update(&dependent, Endpoint::Main, &|object| {
                drop_owners(object, &dead)
            });
        }
        let _ = self.update(place, Endpoint::Main, &|object| {
            drop_finalizer(object, ORPHAN)
        });
    }

    fn default_account(&self, namespace: &str) {
        let key = Key::new(namespace, "default");
        if self.server.store.get(SERVICE_ACCOUNTS, &key).is_some() {
            return;
        }
        let accounts = self.server.builtin("", SERVICE_ACCOUNTS);
        let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}});
        // It fails only if somebody else made it, or the namespace is going.
        let _ = self
            .server
            .writer(&accounts)
            .create(object, namespace, Managed::Track);
    }

    fn clean_namespace(&self, namespace: &str) {
        for (table, object) in self.server.store.in_namespace(namespace) {
            if !meta::is_deleting(&object.value) {
                self.delete(
                    &(table, Key::of(&object.value)),
                    meta::uid(&object.value),
                    None,
                );
            }
        }
        self.finish_namespace(namespace);
    }

    /// Lets a namespace go when it is empty; else its conditions say what holds it.
    fn finish_namespace(&self, namespace: &str) {
        let place = (Arc::from(NAMESPACES), Key::new("", namespace));
        let left = self.server.store.in_namespace(namespace);
        if !left.is_empty() {
            let now = meta::rfc3339(self.server.now());
            let conditions = namespace_conditions(&left);
            let _ = self.update(&place, Endpoint::Status, &|object| {
                for (kind, holds, message) in &conditions {
                    let reason = match (*kind, *holds) {
                        (_, false) => "ContentRemoved",
                        ("NamespaceFinalizersRemaining", true) => "SomeFinalizersRemain",
                        (_, true) => "SomeResourcesRemain",
                    };
                    meta::set_condition(object, kind, *holds, reason, message, &now);
                }
            });
            return;
        }
        let _ = self.update(&place, Endpoint::Finalize, &|object| {
            meta::set_field(object, "spec.finalizers", json!([]))
        });
    }

    fn clean_crd(&self, name: &str) {
        let objects = self.server.store.list(name, None).objects;
        for object in objects.iter().filter(|o| !meta::is_deleting(&o.value)) {
            self.delete(
                &(Arc::from(name), Key::of(&object.value)),
                meta::uid(&object.value),
                None,
            );
        }
        if self.server.store.list(name, None).objects.is_empty() {
            let place = (Arc::from(crd::TABLE), Key::new("", name));
            let _ = self.update(&place, Endpoint::Main, &|object| {
                drop_finalizer(object, crd::CLEANUP)
            });
        }
    }
}

/// What is left in a namespace, and which finalizers hold it, in the words of Kubernetes.
fn namespace_conditions(left: &[(Arc<str>, Arc<Stored>)]) -> [(&'static str, bool, String); 2] {
    let mut tables: BTreeMap<&str, usize> = BTreeMap::new();
    let mut finalizers: BTreeMap<String, usize> = BTreeMap::new();
    for (table, object) in left {
        *tables.entry(table).or_default() += 1;
        for finalizer in meta::finalizers(&object.value) {
            *finalizers.entry(finalizer).or_default() += 1;
        }
    }
    let tables: Vec<String> = tables
        .iter()
        .map(|(t, n)| format!("{t} has {n} resource instances"))
        .collect();
    let held: Vec<String> = finalizers
        .iter()
        .map(|(f, n)| format!("{f} in {n} resource instances"))
        .collect();
    let finalizers = if held.is_empty() {
        "All content-preserving finalizers finished".to_owned()
    } else {
        format!(
            "Some content in the namespace has finalizers remaining: {}",
            held.join(", ")
        )
    };
    [
        (
            "NamespaceContentRemaining",
            true,
            format!("Some resources are remaining: {}", tables.join(", ")),
        ),
        ("NamespaceFinalizersRemaining", !held.is_empty(), finalizers),
    ]
}

enum Owner {
    Solid,
    /// Being deleted in the foreground: waits for its dependents.
    Foreground(Place),
    Absent,
    /// Of a kind this server does not serve (yet): nothing can be said about it.
    Unknown,
}

/// Whether a deletion waits for the object's dependents.
fn in_foreground(object: &Value) -> bool {
    meta::is_deleting(object) && meta::finalizers(object).iter().any(|f| f == FOREGROUND)
}

fn unblock_owners(object: &mut Value) {
    let mut owners = meta::owners(object).to_vec();
    for owner in &mut owners {
        owner["blockOwnerDeletion"] = json!(false);
    }
    meta::set(object, "ownerReferences", Value::Array(owners));
}

fn drop_owners(object: &mut Value, dead: &BTreeSet<String>) {
    let kept: Vec<Value> = meta::owners(object)
        .iter()
        .filter(|o| !o["uid"].as_str().is_some_and(|u| dead.contains(u)))
        .cloned()
        .collect();
    if kept.is_empty() {
        meta::unset(object, "ownerReferences")
    } else {
        meta::set(object, "ownerReferences", Value::Array(kept))
    }
}

fn drop_finalizer(object: &mut Value, finalizer: &str) {
    let kept: Vec<String> = meta::finalizers(object)
        .into_iter()
        .filter(|f| f != finalizer)
        .collect();
    meta::set_finalizers(object, &kept);
}

//! The server's own controllers: owner garbage collection, namespace and CRD deletion, default ServiceAccounts,
//! aggregated ClusterRoles, and the end of old events.
//!
//! One loop over the store's events. Whatever it deletes comes back as an event, so every step is small and the loop
//! ends where the world is in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::admission::{Admission, UPPER_BOUND};
use crate::auth::User;
use crate::crd;
use crate::error::ApiResult;
use crate::handlers::delete::{self, DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use crate::handlers::write::Managed;
use crate::meta;
use crate::rbac;
use crate::registry::ResourceInfo;
use crate::server::Server;
use crate::store::{Event, EventKind, Key, NAMESPACES, Stored};
use crate::strategy::Endpoint;

const SERVICE_ACCOUNTS: &str = "serviceaccounts";
const EVENTS: &str = "events";
const DISCOVERY_FAILURE: &str = "NamespaceDeletionDiscoveryFailure";
const PARSING_FAILURE: &str = "NamespaceDeletionGroupVersionParsingFailure";
/// Condition of a namespace whose content is held back.
const CONTENT_FAILURE: &str = "NamespaceDeletionContentFailure";
const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
/// How long an event is kept after its last write, as in Kubernetes.
const EVENT_LIFETIME: Duration = Duration::from_secs(3600);
/// What a webhook holds back is tried again after 1 s, 2 s, 4 s, … up to 2^6 s.
const MAX_WAIT_SHIFT: u32 = 6;

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
    /// What webhooks refused to have changed: when to try again, and how often it was refused.
    due: BTreeSet<(Instant, Place)>,
    refused: BTreeMap<Place, u32>,
    /// namespace → why some of its content could not be deleted
    stuck: BTreeMap<String, BTreeSet<String>>,
}

/// A controller of the server, as webhooks know it.
#[derive(Clone, Copy)]
enum Who {
    Collector,
    Namespaces,
    Accounts,
    Roles,
    /// Deletes what nobody is asked about.
    Nobody,
}

impl Who {
    fn admission(self, options: Value) -> Option<Admission> {
        let name = match self {
            Self::Collector => "generic-garbage-collector",
            Self::Namespaces => "namespace-controller",
            Self::Accounts => "service-account-controller",
            Self::Roles => "clusterrole-aggregation-controller",
            Self::Nobody => return None,
        };
        Some(Admission {
            user: User::service_account("kube-system", name, ""),
            subresource: String::new(),
            options,
            deadline: Instant::now() + UPPER_BOUND,
        })
    }
}

/// Runs until dropped.
pub(crate) async fn run(server: Arc<Server>) {
    let (tables, mut events) = server.store.tap();
    let mut collector = Collector {
        server: server.clone(),
        dependents: BTreeMap::new(),
        owners: BTreeMap::new(),
        fading: BTreeSet::new(),
        due: BTreeSet::new(),
        refused: BTreeMap::new(),
        stuck: BTreeMap::new(),
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
        collector.present(&place, &object, true).await;
    }
    collector.aggregate().await;
    loop {
        let fading = collector.fading.first().map(|(at, ..)| *at);
        let due = collector.due.first().map(|(at, _)| *at);
        let next = fading.into_iter().chain(due).min();
        tokio::select! {
            biased;
            event = events.recv() => match event {
                Some(event) => collector.take(&event).await,
                None => return,
            },
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                collector.fade().await;
                collector.retry().await;
            }
        }
    }
}

impl Collector {
    async fn take(&mut self, event: &Event) {
        let place = (event.table.clone(), Key::of(&event.object.value));
        if &*place.0 == CLUSTER_ROLES {
            self.aggregate().await;
        }
        match event.kind {
            EventKind::Deleted => {
                self.index(&place, None);
                self.gone(&place, &event.object).await;
            }
            EventKind::Created | EventKind::Modified => {
                self.index(&place, Some(&event.object.value));
                let owners = |o: &Stored| meta::get(&o.value, "ownerReferences").cloned();
                let changed = event
                    .previous
                    .as_ref()
                    .is_none_or(|p| owners(p) != owners(&event.object));
                self.present(&place, &event.object, changed).await;
                if let Some(previous) = &event.previous {
                    let unblocked = unblocked(&previous.value, &event.object.value);
                    self.owners_wait(&unblocked, &place.1.namespace).await;
                }
                if &*place.0 == crd::TABLE {
                    self.owners_appear(&event.object.value).await;
                }
            }
        }
    }

    /// Looks again at those of the owners whose deletion waits for their dependents.
    async fn owners_wait(&mut self, owners: &[Value], namespace: &str) {
        for owner in owners {
            if let Owner::Foreground(place) = self.owner(owner, namespace)
                && let Some(stored) = self.server.store.get(&place.0, &place.1)
            {
                self.foreground(&place, &stored.value).await;
            }
        }
    }

    /// Of owners of a kind that nobody serves nothing is known: their dependents are judged when it is served.
    async fn owners_appear(&mut self, definition: &Value) {
        if !crd::is_established(definition) {
            return;
        }
        let kind = |o: &Value| (o["apiVersion"].clone(), o["kind"].clone());
        let served = crd::served_kinds(definition);
        let places: Vec<Place> = self.owners.keys().cloned().collect();
        for place in places {
            let stored = self.server.store.get(&place.0, &place.1);
            let owned = stored.is_some_and(|s| {
                meta::owners(&s.value)
                    .iter()
                    .any(|o| served.contains(&kind(o)))
            });
            if owned {
                self.judge(&place).await;
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

    async fn present(&mut self, place: &Place, object: &Stored, owners_changed: bool) {
        let value = &object.value;
        let deleting = meta::is_deleting(value);
        if &*place.0 == NAMESPACES {
            if deleting {
                self.clean_namespace(&place.1.name).await
            } else {
                self.default_account(&place.1.name).await
            }
        }
        if &*place.0 == EVENTS {
            let end = Instant::now() + EVENT_LIFETIME;
            self.fading.insert((end, place.1.clone(), object.revision));
        }
        if &*place.0 == crd::TABLE && deleting {
            self.clean_crd(&place.1.name).await;
        }
        if deleting {
            let finalizers = meta::finalizers(value);
            if finalizers.iter().any(|f| f == ORPHAN) {
                self.orphan(place, value).await;
            } else if finalizers.iter().any(|f| f == FOREGROUND) {
                self.foreground(place, value).await;
            }
        }
        if owners_changed && !meta::owners(value).is_empty() {
            self.judge(place).await;
        }
    }

    async fn gone(&mut self, place: &Place, object: &Stored) {
        let uid = meta::uid(&object.value).to_owned();
        for dependent in self.dependents.get(&uid).cloned().unwrap_or_default() {
            self.judge(&dependent).await;
        }
        self.owners_wait(meta::owners(&object.value), &place.1.namespace)
            .await;
        let namespace = &place.1.namespace;
        if !namespace.is_empty()
            && let Some(ns) = self.server.store.get(NAMESPACES, &Key::new("", namespace))
        {
            if meta::is_deleting(&ns.value) {
                self.finish_namespace(namespace).await;
            } else if &*place.0 == SERVICE_ACCOUNTS && place.1.name == "default" {
                self.default_account(namespace).await;
            }
        }
        if self
            .server
            .store
            .get(crd::TABLE, &Key::new("", &place.0))
            .is_some_and(|c| meta::is_deleting(&c.value))
        {
            self.clean_crd(&place.0).await;
        }
    }

    /// Writes the rules of aggregated ClusterRoles.
    async fn aggregate(&mut self) {
        let roles = self.server.store.list(CLUSTER_ROLES, None).objects;
        let all: Vec<&Value> = roles.iter().map(|r| &r.value).collect();
        for role in &all {
            if rbac::rules_to_write(role, &all).is_none() {
                continue;
            }
            let place = (Arc::from(CLUSTER_ROLES), Key::of(role));
            // The other roles may be read as they are now: any change to them comes back as an event.
            let write = |object: &mut Value| {
                if let Some(rules) = rbac::rules_to_write(object, &all) {
                    object["rules"] = Value::Array(rules);
                }
            };
            self.update(Who::Roles, &place, Endpoint::Main, &write)
                .await;
        }
    }

    /// Deletes the events whose time has come.
    async fn fade(&mut self) {
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
                let place = (Arc::from(EVENTS), key);
                self.delete(Who::Nobody, &place, meta::uid(&stored.value), None)
                    .await;
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

    async fn delete(
        &mut self,
        who: Who,
        place: &Place,
        uid: &str,
        propagation: Option<Propagation>,
    ) {
        let Some(resource) = self.resource(&place.0) else {
            return;
        };
        let options = DeleteOptions {
            uid: Some(uid.to_owned()),
            propagation,
            ..DeleteOptions::default()
        };
        let admission = who.admission(options.to_value());
        let version = resource
            .version(&resource.storage_version)
            .or(resource.versions.first());
        let admitted = version.zip(admission.as_ref());
        let mut warnings = Vec::new();
        let done = delete::delete(
            &self.server,
            &resource,
            &place.1,
            &options,
            admitted,
            &mut warnings,
        );
        let done = done.await.map(|_| ());
        self.note(place, done);
    }

    async fn update(
        &mut self,
        who: Who,
        place: &Place,
        endpoint: Endpoint,
        change: &(dyn Fn(&mut Value) + Sync),
    ) {
        let Some(resource) = self.resource(&place.0) else {
            return;
        };
        let server = self.server.clone();
        let mut writer = server.writer(&resource);
        if let Who::Roles = who {
            writer.manager = "clusterrole-aggregation-controller";
        }
        writer.admission = who.admission(json!({})).map(|admission| Admission {
            subresource: match endpoint {
                Endpoint::Main => String::new(),
                Endpoint::Status => "status".into(),
                Endpoint::Finalize => "finalize".into(),
            },
            ..admission
        });
        let mut next = |old: &Value| {
            let mut new = old.clone();
            change(&mut new);
            Ok(new)
        };
        let done = writer
            .update(&place.1, endpoint, Managed::Track, &mut next)
            .await
            .map(|_| ());
        if done.is_ok() && &*place.0 == crd::TABLE {
            crd::changed(&self.server, &place.1.name);
        }
        self.note(place, done);
    }

    /// Remembers what has to be tried again. An object that changed or went away comes back as an event; one that a
    /// webhook holds back does not.
    fn note(&mut self, place: &Place, done: ApiResult<()>) {
        match done {
            Err(error) if !matches!(error.code, 404 | 409) => {
                if let Some(why) = self.stuck.get_mut(&place.1.namespace) {
                    why.insert(error.message().to_owned());
                }
                tracing::debug!(
                    table = &*place.0,
                    name = place.1.name,
                    error = error.message(),
                    "will be tried again"
                );
                let tries = self.refused.entry(place.clone()).or_default();
                *tries += 1;
                let wait = Duration::from_secs(1 << (*tries - 1).min(MAX_WAIT_SHIFT));
                self.due.retain(|(_, other)| other != place);
                self.due.insert((Instant::now() + wait, place.clone()));
            }
            _ => {
                self.refused.remove(place);
                self.due.retain(|(_, other)| other != place);
            }
        }
    }

    /// Looks again at what webhooks held back.
    async fn retry(&mut self) {
        while self
            .due
            .first()
            .is_some_and(|(at, _)| *at <= Instant::now())
        {
            let Some((_, place)) = self.due.pop_first() else {
                return;
            };
            let Some(stored) = self.server.store.get(&place.0, &place.1) else {
                self.refused.remove(&place);
                continue;
            };
            self.present(&place, &stored, true).await;
            if &*place.0 == CLUSTER_ROLES {
                self.aggregate().await;
            }
            let namespace = &place.1.namespace;
            let home = self.server.store.get(NAMESPACES, &Key::new("", namespace));
            if home.is_some_and(|n| meta::is_deleting(&n.value)) {
                self.clean_namespace(namespace).await;
            }
        }
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
        if resource.namespaced && namespace.is_empty() {
            // A cluster-scoped object cannot name a namespaced owner; it is left alone.
            return Owner::Unknown;
        }
        // An owner in another namespace does not exist.
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
    async fn judge(&mut self, place: &Place) {
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
                let drop = |object: &mut Value| drop_owners(object, &dead);
                self.update(Who::Collector, place, Endpoint::Main, &drop)
                    .await;
            }
        } else if waiting {
            let dependents = self.dependents.get(uid).cloned().unwrap_or_default();
            if dependents.iter().any(|d| self.waits_for_dependents(d)) {
                // Owners in a circle would block each other for ever.
                self.update(Who::Collector, place, Endpoint::Main, &unblock_owners)
                    .await;
            }
            let policy = if dependents.is_empty() {
                Propagation::Background
            } else {
                Propagation::Foreground
            };
            self.delete(Who::Collector, place, uid, Some(policy)).await;
        } else {
            // What a client has said of the dependents stands; else they go too.
            let finalizers = meta::finalizers(&stored.value);
            let policy = if finalizers.iter().any(|f| f == ORPHAN) {
                Propagation::Orphan
            } else if finalizers.iter().any(|f| f == FOREGROUND) {
                Propagation::Foreground
            } else {
                Propagation::Background
            };
            self.delete(Who::Collector, place, uid, Some(policy)).await;
        }
    }

    fn waits_for_dependents(&self, place: &Place) -> bool {
        let stored = self.server.store.get(&place.0, &place.1);
        stored.is_some_and(|s| in_foreground(&s.value))
    }

    /// A deletion in the foreground: dependents first; the owner goes when none is left that blocks it.
    async fn foreground(&mut self, place: &Place, owner: &Value) {
        let uid = meta::uid(owner).to_owned();
        let dependents = self.dependents.get(&uid).cloned().unwrap_or_default();
        for dependent in &dependents {
            self.judge(dependent).await;
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
            let release = |object: &mut Value| drop_finalizer(object, FOREGROUND);
            self.update(Who::Collector, place, Endpoint::Main, &release)
                .await;
        }
    }

    /// A deletion that leaves its dependents behind, without a reference to it.
    async fn orphan(&mut self, place: &Place, owner: &Value) {
        let uid = meta::uid(owner).to_owned();
        let dead = BTreeSet::from([uid.clone()]);
        for dependent in self.dependents.get(&uid).cloned().unwrap_or_default() {
            let drop = |object: &mut Value| drop_owners(object, &dead);
            self.update(Who::Collector, &dependent, Endpoint::Main, &drop)
                .await;
        }
        let release = |object: &mut Value| drop_finalizer(object, ORPHAN);
        self.update(Who::Collector, place, Endpoint::Main, &release)
            .await;
    }

    async fn default_account(&mut self, namespace: &str) {
        let key = Key::new(namespace, "default");
        if self.server.store.get(SERVICE_ACCOUNTS, &key).is_some() {
            return;
        }
        let server = self.server.clone();
        let accounts = server.builtin("", SERVICE_ACCOUNTS);
        let object = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}});
        let mut writer = server.writer(&accounts);
        writer.admission = Who::Accounts.admission(json!({}));
        let made = writer.create(object, namespace, Managed::Track).await;
        // It fails if somebody else made it, if the namespace is going, or if a webhook refuses it.
        let place = (Arc::from(NAMESPACES), Key::new("", namespace));
        self.note(
            &place,
            made.map(|_| ()).or_else(|e| {
                if e.code == 403 && e.is_terminating() {
                    Ok(())
                } else {
                    Err(e)
                }
            }),
        );
    }

    async fn clean_namespace(&mut self, namespace: &str) {
        self.stuck.insert(namespace.to_owned(), BTreeSet::new());
        for (table, object) in self.server.store.in_namespace(namespace) {
            if !meta::is_deleting(&object.value) {
                let place = (table, Key::of(&object.value));
                let (uid, policy) = (meta::uid(&object.value), Some(Propagation::Background));
                self.delete(Who::Namespaces, &place, uid, policy).await;
            }
        }
        self.finish_namespace(namespace).await;
    }

    /// Lets a namespace go when it is empty; else its conditions say what holds it.
    async fn finish_namespace(&mut self, namespace: &str) {
        let place = (Arc::from(NAMESPACES), Key::new("", namespace));
        let left = self.server.store.in_namespace(namespace);
        if !left.is_empty() {
            let now = meta::rfc3339(self.server.now());
            let stuck = self.stuck.get(namespace).cloned().unwrap_or_default();
            let conditions = namespace_conditions(&left, &stuck);
            let tell = |object: &mut Value| {
                for (kind, holds, message) in &conditions {
                    let reason = match (*kind, *holds) {
                        (DISCOVERY_FAILURE, _) => "ResourcesDiscovered",
                        (PARSING_FAILURE, _) => "ParsedGroupVersions",
                        (CONTENT_FAILURE, false) => "ContentDeleted",
                        (CONTENT_FAILURE, true) => "ContentDeletionFailed",
                        (_, false) => "ContentRemoved",
                        ("NamespaceFinalizersRemaining", true) => "SomeFinalizersRemain",
                        (_, true) => "SomeResourcesRemain",
                    };
                    meta::set_condition(object, kind, *holds, reason, message, &now);
                }
            };
            self.update(Who::Namespaces, &place, Endpoint::Status, &tell)
                .await;
            return;
        }
        self.stuck.remove(namespace);
        // Who else holds the namespace lets it go in its own time.
        let release = |object: &mut Value| {
            let held = meta::field(object, "spec.finalizers").and_then(Value::as_array);
            let others = held.into_iter().flatten().filter(|f| **f != "kubernetes");
            let others: Value = others.cloned().collect();
            meta::set_field(object, "spec.finalizers", others);
        };
        self.update(Who::Namespaces, &place, Endpoint::Finalize, &release)
            .await;
    }

    async fn clean_crd(&mut self, name: &str) {
        let objects = self.server.store.list(name, None).objects;
        for object in objects.iter().filter(|o| !meta::is_deleting(&o.value)) {
            let place = (Arc::from(name), Key::of(&object.value));
            self.delete(Who::Nobody, &place, meta::uid(&object.value), None)
                .await;
        }
        if self.server.store.list(name, None).objects.is_empty() {
            let place = (Arc::from(crd::TABLE), Key::new("", name));
            let release = |object: &mut Value| drop_finalizer(object, crd::CLEANUP);
            self.update(Who::Nobody, &place, Endpoint::Main, &release)
                .await;
        }
    }
}

/// What is left in a namespace, and which finalizers hold it, in the words of Kubernetes.
fn namespace_conditions(
    left: &[(Arc<str>, Arc<Stored>)],
    stuck: &BTreeSet<String>,
) -> [(&'static str, bool, String); 5] {
    let failure = if stuck.is_empty() {
        "All content successfully deleted, may be waiting on finalization".to_owned()
    } else {
        let why: Vec<&str> = stuck.iter().map(String::as_str).collect();
        format!(
            "Failed to delete all resource types, {} remaining: {}",
            stuck.len(),
            why.join(", ")
        )
    };
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
        .map(|(t, n)| {
            // Named with its group, which is empty for the core kinds.
            let dot = if t.contains('.') { "" } else { "." };
            format!("{t}{dot} has {n} resource instances")
        })
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
    // This server knows all its resources; clients know these conditions.
    [
        (
            DISCOVERY_FAILURE,
            false,
            "All resources successfully discovered".into(),
        ),
        (
            PARSING_FAILURE,
            false,
            "All legacy kube types successfully parsed".into(),
        ),
        (CONTENT_FAILURE, !stuck.is_empty(), failure),
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

/// The owners whose deletion an object held up before and does not now.
fn unblocked(before: &Value, now: &Value) -> Vec<Value> {
    let blocks = |o: &Value| o["blockOwnerDeletion"] == true;
    let still = |owner: &Value| {
        let mut owners = meta::owners(now).iter();
        owners.any(|o| blocks(o) && o["uid"] == owner["uid"])
    };
    let before = meta::owners(before).iter();
    before.filter(|o| blocks(o) && !still(o)).cloned().collect()
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

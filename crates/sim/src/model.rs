//! What the checker knows of the world: the newest state of the objects that matter, as committed.

use std::collections::BTreeMap;

use serde_json::Value;

/// Kinds that are kept.
const KINDS: [&str; 5] = [
    "ProtectionGroup",
    "ProtectionRequest",
    "DRBDResource",
    "FailoverRequest",
    "Lease",
];

/// Newest states, by cluster, kind and `namespace/name`.
#[derive(Default)]
pub struct Model(BTreeMap<(String, String, String), Value>);

/// A text field, empty if absent.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or("")
}

/// A number field, 0 if absent.
pub fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// `namespace/name`.
pub fn key(object: &Value) -> String {
    format!(
        "{}/{}",
        text(object, "/metadata/namespace"),
        text(object, "/metadata/name")
    )
}

impl Model {
    /// Takes a change in.
    pub fn take(&mut self, cluster: &str, object: &Value, deleted: bool) {
        let kind = text(object, "/kind");
        if !KINDS.contains(&kind) {
            return;
        }
        let place = (cluster.to_owned(), kind.to_owned(), key(object));
        if deleted {
            self.0.remove(&place);
        } else {
            self.0.insert(place, object.clone());
        }
    }

    /// An object.
    pub fn get(&self, cluster: &str, kind: &str, key: &str) -> Option<&Value> {
        self.0.get(&(cluster.into(), kind.into(), key.into()))
    }

    /// All objects of a kind on a cluster.
    pub fn all(&self, cluster: &str, kind: &str) -> impl Iterator<Item = &Value> {
        let (cluster, kind) = (cluster.to_owned(), kind.to_owned());
        let from = (cluster.clone(), kind.clone(), String::new());
        self.0
            .range(from..)
            .take_while(move |((c, k, _), _)| *c == cluster && *k == kind)
            .map(|(_, object)| object)
    }

    /// The DRBDResource of a VM on a cluster.
    pub fn resource(&self, cluster: &str, namespace: &str, vm: &str) -> Option<&Value> {
        self.all(cluster, "DRBDResource").find(|r| {
            text(r, "/metadata/namespace") == namespace && text(r, "/spec/vmRef/name") == vm
        })
    }

    /// The FailoverRequest that holds a group's lock.
    pub fn holder(&self, namespace: &str, group: &str) -> Option<&Value> {
        let lease = format!("{namespace}/{}", farshore_api::names::failover_lock(group));
        let holder = text(self.get("hub", "Lease", &lease)?, "/spec/holderIdentity");
        self.failover(holder)
    }

    /// A FailoverRequest by its UID.
    pub fn failover(&self, uid: &str) -> Option<&Value> {
        let mut all = self.all("hub", "FailoverRequest");
        all.find(|f| !uid.is_empty() && text(f, "/metadata/uid") == uid)
    }
}

//! Deletion: preconditions, finalizers, propagation, grace.

use std::sync::Arc;

use serde_json::{Value, json};

use super::write;
use crate::admission::{Admission, Attributes, Operation};
use crate::conversion;
use crate::convert;
use crate::crd;
use crate::error::{ApiError, ApiResult};
use crate::meta;
use crate::registry::{ResourceInfo, VersionInfo};
use crate::request::Query;
use crate::server::Server;
use crate::store::{Change, CommitError, Key, Stored};

/// Finalizer of a deletion that waits for its dependents.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of a deletion that leaves its dependents behind.
pub(crate) const ORPHAN: &str = "orphan";
/// Namespaces that cannot be deleted.
const PROTECTED: [&str; 3] = ["default", "kube-system", "kube-public"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// `metav1.DeleteOptions`, as far as the server uses it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub grace: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// As webhooks see them, without kind.
    pub fn to_value(&self) -> Value {
        let mut value = json!({});
        let propagation = self.propagation.map(|p| match p {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        });
        let mut preconditions = json!({});
        for (field, wanted) in [
            ("uid", &self.uid),
            ("resourceVersion", &self.resource_version),
        ] {
            if let Some(wanted) = wanted {
                preconditions[field] = json!(wanted);
            }
        }
        let fields = [
            ("gracePeriodSeconds", self.grace.map(|g| json!(g))),
            ("propagationPolicy", propagation.map(|p| json!(p))),
            (
                "preconditions",
                Some(preconditions).filter(|p| p != &json!({})),
            ),
            ("dryRun", self.dry_run.then(|| json!(["All"]))),
        ];
        for (field, given) in fields {
            if let Some(given) = given {
                value[field] = given;
            }
        }
        value
    }
}

impl DeleteOptions {
    /// Reads the request body (`DeleteOptions`) and the query.
    pub fn parse(body: Option<&Value>, query: &Query) -> ApiResult<Self> {
        let field = |name: &str| body.and_then(|b| b.get(name)).filter(|v| !v.is_null());
        let number = |text: &str| text.parse().map_err(|_| ApiError::no_number(text));
        let grace = match (
            field("gracePeriodSeconds").and_then(Value::as_i64),
            query.get("gracePeriodSeconds"),
        ) {
            (Some(n), _) => Some(n),
            (None, Some(text)) => Some(number(text)?),
            (None, None) => None,
        };
        let policy = field("propagationPolicy")
            .and_then(Value::as_str)
            .or(query.get("propagationPolicy"));
        let orphan = field("orphanDependents")
            .and_then(Value::as_bool)
            .or(query.get("orphanDependents").map(|v| v == "true"));
        let propagation = match (policy, orphan) {
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (None, None) => None,
            // Another word was refused.
            (Some(_), _) => None,
        };
        let condition = |name: &str| {
            field("preconditions")
                .and_then(|p| p.get(name))
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let body_dry = field("dryRun")
            .and_then(Value::as_array)
            .is_some_and(|l| l.iter().any(|v| v == "All"));
        Ok(Self {
            grace,
            propagation,
            uid: condition("uid"),
            resource_version: condition("resourceVersion"),
            dry_run: body_dry || query.get("dryRun") == Some("All"),
        })
    }
}

/// What a deletion came to.
pub(crate) enum Deleted {
    /// Gone; its last state.
    Gone(Arc<Stored>),
    /// Marked, and waiting for finalizers or its grace period.
    Waiting(Arc<Stored>, bool),
}

/// Deletes one object, or marks it. `admitted` says in which version webhooks see it, and who asks.
pub(crate) async fn delete(
    server: &Server,
    resource: &ResourceInfo,
    key: &Key,
    options: &DeleteOptions,
    admitted: Option<(&VersionInfo, &Admission)>,
    warnings: &mut Vec<String>,
) -> ApiResult<Deleted> {
    let attributes = admitted.map(|(version, admission)| Attributes {
        server,
        admission,
        resource,
        version,
        kind: None,
        namespace: &key.namespace,
        name: &key.name,
        operation: Operation::Delete,
        dry_run: options.dry_run,
    });
    let mut attributes = attributes.filter(Attributes::any);
    if resource.table == crate::store::NAMESPACES && PROTECTED.contains(&key.name.as_str()) {
        return Err(ApiError::forbidden(
            resource,
            &key.name,
            "this namespace may not be deleted",
        ));
    }
    let mut announcement: Option<Arc<Stored>> = None;
    loop {
        let same = |found: &Arc<Stored>| {
            let announced = announcement.as_ref();
            announced.is_none_or(|a| meta::uid(&a.value) == meta::uid(&found.value))
        };
        let Some(stored) = server.store.get(&resource.table, key).filter(same) else {
            // Somebody else ended what was announced here.
            let announced = announcement.map(Deleted::Gone);
            return announced.ok_or_else(|| ApiError::not_found(resource, &key.name));
        };
        if announcement.is_none() {
            preconditions(resource, key, &stored.value, options)?;
        }
        let mut marked = stored.value.clone();
        let finalizers = finalizers(resource, &marked, options.propagation);
        meta::set_finalizers(&mut marked, &finalizers);
        if resource.table == crd::TABLE && !meta::is_deleting(&stored.value) {
            crd::mark_deleting(&mut marked, &meta::rfc3339(server.now()));
        }
        let grace = grace(resource, &stored.value, options.grace);
        mark(server, resource, &mut marked, grace);
        let released = write::releases(&marked);
        // What can have a grace period is told of as leaving before it is told of as gone.
        let announced = !is_pod(resource) || options.dry_run || marked == stored.value;
        let gone = released && announced;
        let change = if gone {
            Change::Delete {
                expected: stored.revision,
                value: last_state(&stored.value, &marked),
            }
        } else if marked == stored.value {
            return Ok(Deleted::Waiting(stored, false));
        } else {
            Change::Update {
                expected: stored.revision,
                value: marked,
            }
        };
        if let Some(attributes) = &attributes {
            let shown = conversion::fetch(server, resource, attributes.version, &stored).await?;
            let old = convert::view(resource, attributes.version, &shown);
            attributes.mutate(None, Some(&old), warnings).await?;
            attributes.validate(None, Some(&old), warnings).await?;
        }
        let committed = if options.dry_run {
            server.store.rehearse(&resource.table, key, change)
        } else {
            server
                .store
                .commit(&resource.table, key, stored.schema, change)
        };
        match committed {
            Ok(object) if gone => {
                if resource.table == crd::TABLE && !options.dry_run {
                    crd::changed(server, &key.name);
                }
                return Ok(Deleted::Gone(object));
            }
            // It was admitted as a whole.
            Ok(object) if released => {
                attributes = None;
                announcement = Some(object);
            }
            Ok(object) => return Ok(Deleted::Waiting(object, !options.dry_run)),
            Err(CommitError::Stale) => {}
            Err(_) => {
                return Err(ApiError::internal(
                    "a deletion cannot collide with a creation",
                ));
            }
        }
    }
}

/// An object that goes at once never carries a deletionTimestamp; one that was waiting keeps it.
fn last_state(stored: &Value, marked: &Value) -> Value {
    if meta::is_deleting(stored) {
        marked.clone()
    } else {
        stored.clone()
    }
}

fn preconditions(
    resource: &ResourceInfo,
    key: &Key,
    object: &Value,
    options: &DeleteOptions,
) -> ApiResult<()> {
    let checks = [
        ("UID", &options.uid, meta::uid(object)),
        (
            "ResourceVersion",
            &options.resource_version,
            meta::resource_version(object),
        ),
    ];
    for (what, wanted, is) in checks {
        if let Some(wanted) = wanted
            && wanted != is
        {
            let then = match what {
                "UID" => "The object might have been deleted and then recreated",
                _ => "The object might have been modified",
            };
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({is}). {then}"
            );
            // Namespaces have a deletion of their own, which tells of the resource.
            return Err(match resource.table == crate::store::NAMESPACES {
                true if what == "UID" => {
                    let why = format!(
                        "Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}"
                    );
                    ApiError::conflict(resource, &key.name, &why)
                }
                true => ApiError::conflict(resource, &key.name, &why),
                false => ApiError::conflict_of_kind(resource, &key.name, &why),
            });
        }
    }
    Ok(())
}

/// The finalizers a deletion leaves. An explicit policy beats what is there already, and that beats the kind's default
/// (apiserver, registry/generic/registry/store.go).
fn finalizers(resource: &ResourceInfo, object: &Value, policy: Option<Propagation>) -> Vec<String> {
    let before = meta::finalizers(object);
    let wanted = match policy {
        Some(Propagation::Background) => None,
        Some(Propagation::Foreground) => Some(FOREGROUND),
        Some(Propagation::Orphan) => Some(ORPHAN),
        None => {
            let known = [FOREGROUND, ORPHAN];
            let there = before
                .iter()
                .find_map(|f| known.into_iter().find(|k| f == k));
            there.or(orphans(resource).then_some(ORPHAN))
        }
    };
    let mut after: Vec<String> = before
        .iter()
        .filter(|f| !matches!(f.as_str(), FOREGROUND | ORPHAN) || wanted == Some(f.as_str()))
        .cloned()
        .collect();
    if let Some(wanted) = wanted
        && !after.iter().any(|f| f == wanted)
    {
        after.push(wanted.to_owned());
    }
    after
}

/// Kinds whose dependents stay behind unless a deletion says otherwise: they are older than the garbage collector.
fn orphans(resource: &ResourceInfo) -> bool {
    matches!(
        (resource.group.as_str(), resource.kind.as_str()),
        ("batch", "Job") | ("", "ReplicationController")
    )
}

/// Seconds a pod on a node gets to stop; its kubelet deletes it with 0 when it has. Nothing else has a grace period.
fn grace(resource: &ResourceInfo, object: &Value, asked: Option<i64>) -> i64 {
    if !is_pod(resource) {
        return 0;
    }
    // Less than nothing is a second, as in the real server.
    let asked = asked.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if let Some(running) = running_grace(object) {
        // A second deletion can only shorten the wait.
        return asked.unwrap_or(running).min(running);
    }
    let on_node = !meta::field_text(object, "spec.nodeName").is_empty();
    let ended = matches!(
        meta::field_text(object, "status.phase").as_str(),
        "Succeeded" | "Failed"
    );
    if !on_node || ended {
        return 0;
    }
    let default = meta::field(object, "spec.terminationGracePeriodSeconds")
        .and_then(Value::as_i64)
        .unwrap_or(30);
    match asked.unwrap_or(default) {
        ..0 => 1,
        seconds => seconds,
    }
}

/// Seconds that an object that is being deleted was given to stop.
fn running_grace(object: &Value) -> Option<i64> {
    let seconds = meta::get(object, "deletionGracePeriodSeconds")?.as_i64();
    seconds.filter(|_| meta::is_deleting(object))
}

fn is_pod(resource: &ResourceInfo) -> bool {
    resource.group.is_empty() && resource.kind == "Pod"
}

fn mark(server: &Server, resource: &ResourceInfo, object: &mut Value, grace: i64) {
    let first = !meta::is_deleting(object);
    let running = running_grace(object);
    if first || running.is_some_and(|r| grace < r) {
        // A wait that is made shorter counts from the first deletion.
        let end = meta::get(object, "deletionTimestamp").and_then(Value::as_str);
        let end = end.and_then(|end| end.parse::<jiff::Timestamp>().ok());
        let seconds = jiff::SignedDuration::from_secs;
        let start = end.zip(running).and_then(|(end, running)| {
            let start = end.checked_sub(seconds(running));
            start.ok()
        });
        let start = start.unwrap_or_else(|| server.now());
        let at = start.checked_add(seconds(grace)).unwrap_or(start);
        meta::set(object, "deletionTimestamp", json!(meta::rfc3339(at)));
        meta::set(object, "deletionGracePeriodSeconds", json!(grace));
    }
    if first && meta::generation(object) > 0 {
        let next = meta::generation(object) + 1;
        meta::set(object, "generation", json!(next));
    }
    if resource.table == crate::store::NAMESPACES {
        meta::set_field(object, "status.phase", json!("Terminating"));
    }
}

/// The answer to a deletion that is done, for kinds that do not return the object.
pub(crate) fn success(resource: &ResourceInfo, object: &Value) -> Value {
    let mut details =
        json!({"name": meta::name(object), "kind": resource.plural, "uid": meta::uid(object)});
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

/// Kinds whose deletion answers with the deleted object.
pub(crate) fn returns_object(resource: &ResourceInfo) -> bool {
    resource.group.is_empty()
        && matches!(
            resource.kind.as_str(),
            "Pod"
                | "PodTemplate"
                | "PersistentVolume"
                | "PersistentVolumeClaim"
                | "ResourceQuota"
                | "ServiceAccount"
                | "Service"
        )
}

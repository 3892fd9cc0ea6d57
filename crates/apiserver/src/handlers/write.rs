//! The write pipeline: everything between a decoded object and a committed one.
//!
//! Each write reads the stored object, computes the next one purely, and commits it on the condition that the stored
//! one is still the same; if it is not, it computes again.

use std::sync::Arc;

use futures::FutureExt;
use serde_json::{Map, Value, json};

use crate::admission::{Admission, Operation};
use crate::body::Strict;
use crate::conversion;
use crate::convert;
use crate::crd;
use crate::duplicates::Duplicates;
use crate::error::{ApiError, ApiResult};
use crate::meta;
use crate::names;
use crate::openapi;
use crate::registry::{ResourceInfo, VersionInfo};
use crate::schema::FieldError;
use crate::server::Server;
use crate::ssa;
use crate::store::{Change, CommitError, Key, NAMESPACES, Stored};
use crate::strategy::{self, Endpoint};

/// What to do about fields that the schema does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    Ignore,
    Warn,
    /// 400 for whole objects, 422 for patches.
    Refuse {
        patch: bool,
    },
}

/// Computes the next state of an object from the current one.
pub(crate) type Next<'n> = &'n mut (dyn FnMut(&Value) -> ApiResult<Value> + Send);

/// The result of a write of the server itself, which waits for nothing.
pub(crate) fn at_once<T>(write: impl Future<Output = T>) -> T {
    write
        .now_or_never()
        .expect("a write waits only for webhooks, and this one is not admitted")
}

/// One write request, apart from its object.
pub(crate) struct Writer<'a> {
    pub server: &'a Server,
    pub resource: &'a ResourceInfo,
    pub version: &'a VersionInfo,
    pub manager: &'a str,
    pub dry_run: bool,
    pub unknown: Unknown,
    /// Whether the next state comes from a patch.
    pub patch: bool,
    /// What stands twice in the body; reported with the first object that is decoded.
    pub strict: Strict,
    /// How a refused patch is shown, where that is not the patched object.
    pub patch_text: Option<String>,
    /// Texts for Warning headers.
    pub warnings: Vec<String>,
    /// Who has the write admitted; `None` for what the server does by itself.
    pub admission: Option<Admission>,
}

/// What a write came to.
pub(crate) struct Written {
    pub object: Arc<Stored>,
    /// False when nothing was stored: a no-op or a dry run.
    pub changed: bool,
}

/// Who keeps `managedFields`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Managed {
    /// This write is an Update of the writer's manager.
    Track,
    /// The object comes from server-side apply, with managedFields done.
    Done,
}

impl Writer<'_> {
    fn api_version(&self) -> String {
        self.resource.api_version(&self.version.name)
    }

    /// Creates an object in `namespace` (empty for cluster-scoped kinds).
    pub async fn create(
        &mut self,
        mut object: Value,
        namespace: &str,
        managed: Managed,
    ) -> ApiResult<Written> {
        self.fit_type(&mut object)?;
        if !matches!(meta::resource_version(&object), "" | "0") {
            return Err(ApiError::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        if self.resource.is_custom() && crd::is_terminating(self.server, &self.resource.table) {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(ApiError::new(405, "MethodNotAllowed", why).about(self.resource));
        }
        let sent = meta::namespace(&object).to_owned();
        if self.resource.namespaced {
            if !sent.is_empty() && sent != namespace {
                return Err(ApiError::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            meta::set(&mut object, "namespace", json!(namespace));
        } else {
            meta::unset(&mut object, "namespace");
        }
        let generated = meta::name(&object).is_empty()
            && meta::get(&object, "generateName")
                .and_then(Value::as_str)
                .is_some_and(|g| !g.is_empty());
        if self.resource.table == "pods" && self.admission.is_some() {
            self.account_exists(&object, namespace)?;
        }
        let now = meta::rfc3339(self.server.now());
        let mut attempt = 0;
        loop {
            let mut new = object.clone();
            if generated {
                let prefix: String = meta::get(&object, "generateName")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .chars()
                    .take(58)
                    .collect();
                meta::set(
                    &mut new,
                    "name",
                    json!(format!("{prefix}{}", self.server.ident.suffix())),
                );
            }
            strategy::prepare_create(
                self.resource,
                self.version,
                &mut new,
                &self.server.ident.uid(),
                &now,
            );
            self.fill_in(&mut new);
            if managed == Managed::Track {
                // Who sends a time of deletion is noted as its owner, though it does not come to pass.
                const DELETION: [&str; 2] = ["deletionTimestamp", "deletionGracePeriodSeconds"];
                DELETION
                    .iter()
                    .for_each(|field| meta::carry(&object, &mut new, field));
                ssa::track_update(
                    None,
                    &mut new,
                    self.version.schema.as_deref(),
                    self.manager,
                    None,
                    &self.api_version(),
                    &now,
                );
                DELETION
                    .iter()
                    .for_each(|field| meta::unset(&mut new, field));
            }
            strategy::at_creation(self.resource, &mut new);
            self.server.allocate(self.resource, &mut new);
            let admission = self.admission.clone();
            let name = meta::name(&object).to_owned();
            let attributes =
                self.attributes(admission.as_ref(), namespace, &name, Operation::Create);
            if let Some(attributes) = &attributes {
                self.namespace_takes(namespace, &new)?;
                new = self.mutate_new(attributes, &object, new, &now).await?;
            }
            self.check(&new, None)?;
            if let Some(attributes) = &attributes {
                attributes
                    .validate(Some(&new), None, &mut self.warnings)
                    .await?;
            }
            let new = self.to_storage(new).await?;
            let key = Key::of(&new);
            match self.commit(&key, Change::Create { value: new }) {
                Err(CommitError::Exists) if generated && attempt < 8 => attempt += 1,
                // A name that was only made up is not told.
                Err(CommitError::NamespaceTerminating) if generated => {
                    let prefix = meta::get(&object, "generateName").and_then(Value::as_str);
                    let key = Key::new(namespace, prefix.unwrap_or_default());
                    return Err(self.refusal(CommitError::NamespaceTerminating, &key, namespace));
                }
                Err(error) => return Err(self.refusal(error, &key, namespace)),
                Ok(object) => {
                    let object = if self.dry_run {
                        Stored::unversioned(&object)
                    } else {
                        object
                    };
                    return Ok(Written {
                        object,
                        changed: !self.dry_run,
                    });
                }
            }
        }
    }

    /// A pod's account must exist; the one that every namespace has is not waited for.
    fn account_exists(&self, pod: &Value, namespace: &str) -> ApiResult<()> {
        let account = meta::field_text(pod, "spec.serviceAccountName");
        let key = Key::new(namespace, &account);
        let there = || self.server.store.get("serviceaccounts", &key).is_some();
        if matches!(account.as_str(), "" | "default") || there() {
            return Ok(());
        }
        let home = Key::new("", namespace);
        if self.server.store.get(NAMESPACES, &home).is_none() {
            return Err(ApiError::not_found(&self.server.namespaces(), namespace));
        }
        let why = format!(
            "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
        );
        Err(ApiError::forbidden(self.resource, meta::name(pod), &why))
    }

    /// Computes the next state with `next` from the current one (in the writer's version) and stores it.
    pub async fn update(
        &mut self,
        key: &Key,
        endpoint: Endpoint,
        managed: Managed,
        next: Next<'_>,
    ) -> ApiResult<Written> {
        loop {
            let stored = self
                .server
                .store
                .get(&self.resource.table, key)
                .ok_or_else(|| ApiError::not_found(self.resource, &key.name))?;
            match self
                .update_once(key, endpoint, managed, &stored, next)
                .await
            {
                Ok(Some(written)) => return Ok(written),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// One attempt; `None` when the object changed meanwhile.
    async fn update_once(
        &mut self,
        key: &Key,
        endpoint: Endpoint,
        managed: Managed,
        stored: &Arc<Stored>,
        next: Next<'_>,
    ) -> ApiResult<Option<Written>> {
        let shown = conversion::fetch(self.server, self.resource, self.version, stored).await?;
        let old = convert::view(self.resource, self.version, &shown);
        let mut new = next(&old)?;
        self.fit_type(&mut new)?;
        self.preconditions(&new, &old, key)?;
        let now = meta::rfc3339(self.server.now());
        let admission = self.admission.clone();
        let attributes = self.attributes(
            admission.as_ref(),
            &key.namespace,
            &key.name,
            Operation::Update,
        );
        let sent = attributes.as_ref().map(|_| new.clone());
        strategy::prepare_update(self.resource, self.version, endpoint, &mut new, &old);
        self.fill_in(&mut new);
        strategy::bump_generation(self.resource, self.version, &mut new, &old);
        if managed == Managed::Track {
            let subresource = match endpoint {
                Endpoint::Main => None,
                Endpoint::Status => Some("status"),
                Endpoint::Finalize => Some("finalize"),
            };
            ssa::track_update(
                Some(&old),
                &mut new,
                self.version.schema.as_deref(),
                self.manager,
                subresource,
                &self.api_version(),
                &now,
            );
        }
        if let Some((attributes, mut seen)) = attributes.as_ref().zip(sent) {
            // Webhooks see what was sent, with what decoding fills in; the endpoint's rules come after them.
            strategy::defaults(self.resource, self.version, &mut seen);
            meta::carry(&new, &mut seen, "managedFields");
            let changed = attributes
                .mutate(Some(&seen), Some(&old), &mut self.warnings)
                .await?;
            if let Some(changed) = changed {
                new = self.refit(changed, &seen)?;
                strategy::prepare_update(self.resource, self.version, endpoint, &mut new, &old);
                self.fill_in(&mut new);
                strategy::bump_generation(self.resource, self.version, &mut new, &old);
            }
        }
        let unchanged = same(&new, &old);
        if !unchanged {
            self.check(&new, Some(&old))?;
        }
        if let Some(attributes) = &attributes {
            attributes
                .validate(Some(&new), Some(&old), &mut self.warnings)
                .await?;
        }
        let released = meta::is_deleting(&new) && releases(&new);
        // A custom resource that is stored in another version, or without a default, is written anew by any write.
        let value = match unchanged {
            true if self.resource.is_custom() => self.to_storage(old.into_owned()).await?,
            true => stored.value.clone(),
            false => self.to_storage(new).await?,
        };
        if value == stored.value {
            return Ok(Some(Written {
                object: stored.clone(),
                changed: false,
            }));
        }
        let last = released.then(|| Stored::new(value.clone(), stored.revision, stored.schema));
        let change = if released {
            // Watchers see what was stored; who let it go sees what it would have become.
            Change::Delete {
                expected: stored.revision,
                value: stored.value.clone(),
            }
        } else {
            Change::Update {
                expected: stored.revision,
                value,
            }
        };
        match self.commit(key, change) {
            Ok(object) => Ok(Some(Written {
                // What is gone, or was not stored, is told as it stands.
                object: if released || self.dry_run {
                    Stored::at_revision(last.as_ref().unwrap_or(&object), stored.revision)
                } else {
                    object
                },
                changed: !self.dry_run,
            })),
            Err(CommitError::Stale) => Ok(None),
            Err(error) => Err(self.refusal(error, key, &key.namespace)),
        }
    }

    async fn to_storage(&self, object: Value) -> ApiResult<Value> {
        let (server, resource) = (self.server, self.resource);
        let object =
            conversion::object(server, resource, &resource.storage_version, object).await?;
        Ok(convert::to_storage(resource, self.version, object))
    }

    /// resourceVersion and uid in the new object are conditions on the old one.
    fn preconditions(&self, new: &Value, old: &Value, key: &Key) -> ApiResult<()> {
        let version = meta::resource_version(new);
        if !version.is_empty() && version.parse::<u64>().is_err() {
            let why = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            return Err(ApiError::new(500, "", why));
        }
        if !version.is_empty() && version != "0" && version != meta::resource_version(old) {
            return Err(ApiError::modified(self.resource, &key.name));
        }
        let mut errors = Vec::new();
        for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            let sent = meta::get(new, field).filter(|v| !v.is_null() && **v != "");
            if let Some(sent) = sent
                && Some(sent) != meta::get(old, field)
                && (field == "uid" || !meta::is_deleting(old))
            {
                let path = format!("metadata.{field}");
                // Every update is checked in general and by its kind, and both say this.
                let error = FieldError::invalid(path, sent.clone(), "field is immutable");
                errors.extend([error.clone(), error]);
            }
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid(self.resource, &key.name, &errors));
        }
        Ok(())
    }

    /// Owners that are named twice count once, which is worth a warning.
    fn one_of_each_owner(&mut self, object: &mut Value) {
        let owners = object.pointer_mut("/metadata/ownerReferences");
        let Some(owners) = owners.and_then(Value::as_array_mut) else {
            return;
        };
        let (mut kept, mut repeated) = (Vec::new(), Vec::new());
        for owner in owners.iter() {
            match kept.contains(owner) {
                true => repeated.push(owner["uid"].as_str().unwrap_or_default().to_owned()),
                false => kept.push(owner.clone()),
            }
        }
        if !repeated.is_empty() {
            repeated.sort();
            repeated.dedup();
            self.warnings.push(format!(
                ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
                repeated.join(", ")
            ));
            *owners = kept;
        }
    }

    /// What decoding into the kind's type would do: types of built-in kinds are checked, fields that the schema does
    /// not know are dropped, and reported or refused.
    pub(super) fn fit_type(&mut self, object: &mut Value) -> ApiResult<()> {
        let (resource, version) = (self.resource, self.version);
        let problem = if version.structural.is_none() {
            openapi::type_problem(&resource.group, &version.name, &resource.kind, object)
        } else {
            None
        };
        if let Some(problem) = problem.or_else(|| names::metadata_type_problem(object)) {
            return Err(match self.patch {
                true => {
                    let whole = || object.to_string();
                    match &self.patch_text {
                        Some(shown) => ApiError::invalid_patch_text(shown, &converted(&problem)),
                        None => ApiError::invalid_patch_text(&whole(), &problem),
                    }
                }
                false => self.undecodable(&problem),
            });
        }
        if version.structural.is_none() {
            openapi::fill_nulls(&resource.group, &version.name, &resource.kind, object);
        }
        self.one_of_each_owner(object);
        let strict = std::mem::take(&mut self.strict);
        let shown = match (self.unknown, &self.patch_text) {
            (Unknown::Refuse { patch: true }, Some(text)) => text.clone(),
            (Unknown::Refuse { patch: true }, None) => object.to_string(),
            _ => String::new(),
        };
        let dropped = match &version.structural {
            Some(schema) => schema.prune(object),
            None => openapi::prune(&resource.group, &version.name, &resource.kind, object)
                .unwrap_or_default(),
        };
        let mut problems: Vec<String> = match self.unknown {
            Unknown::Refuse { .. } => strict.yaml_error().into_iter().collect(),
            Unknown::Warn => strict.yaml.clone(),
            Unknown::Ignore => return Ok(()),
        };
        let unknown = dropped.iter().map(|f| format!("unknown field \"{f}\""));
        if version.structural.is_some() {
            problems.extend(strict.json.problems());
            problems.extend(unknown);
        } else {
            problems.extend(in_order(&strict.json, &dropped));
        }
        if problems.is_empty() {
            return Ok(());
        }
        match self.unknown {
            Unknown::Ignore => Ok(()),
            Unknown::Warn => {
                self.warnings.extend(problems);
                Ok(())
            }
            Unknown::Refuse { patch } => {
                let message = format!("strict decoding error: {}", problems.join(", "));
                Err(if patch {
                    let message =
                        format!(" \"\" is invalid: patch: Invalid value: {shown:?}: {message}");
                    ApiError::new(422, "Invalid", message)
                } else {
                    self.undecodable(&message)
                })
            }
        }
    }

    fn undecodable(&self, why: &str) -> ApiError {
        let (kind, version) = (&self.resource.kind, &self.version.name);
        ApiError::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
        ))
    }

    /// Defaults of a custom resource.
    pub(super) fn fill_in(&self, object: &mut Value) {
        if let Some(schema) = &self.version.structural {
            schema.default(object);
        }
    }

    fn check(&self, new: &Value, old: Option<&Value>) -> ApiResult<()> {
        let errors = strategy::validate(self.resource, self.version, new, old);
        if errors.is_empty() {
            Ok(())
        } else {
            let mut told = self.resource.clone();
            if told.group == "events.k8s.io" {
                // The rules of events are those of the core group.
                told.group.clear();
            }
            Err(ApiError::invalid(&told, meta::name(new), &errors))
        }
    }

    /// Commits, or for a dry run only says what the commit would have said.
    fn commit(&self, key: &Key, change: Change) -> Result<Arc<Stored>, CommitError> {
        let (store, table) = (&self.server.store, &self.resource.table);
        if self.dry_run {
            return store.rehearse(table, key, change);
        }
        store.commit(table, key, self.resource.schema_generation(), change)
    }

    pub(super) fn refusal(&self, error: CommitError, key: &Key, namespace: &str) -> ApiError {
        match error {
            CommitError::Exists => {
                let error = ApiError::already_exists(self.resource, &key.name);
                let stored = self.server.store.get(&self.resource.table, key);
                if stored.is_some_and(|o| meta::is_deleting(&o.value)) {
                    return error.while_deleting();
                }
                error
            }
            CommitError::Stale => ApiError::modified(self.resource, &key.name),
            CommitError::NamespaceMissing => {
                let namespaces = self.server.namespaces();
                ApiError::not_found(&namespaces, namespace)
            }
            CommitError::NamespaceTerminating => {
                let why = format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                );
                let cause = json!({"reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"), "field": "metadata.namespace"});
                ApiError::forbidden(self.resource, &key.name, &why).causes(vec![cause])
            }
        }
    }
}

/// Problems of a body of a built-in kind in the order of its fields: its decoder meets both kinds as it goes, and does
/// not look into fields it does not know.
fn in_order(duplicates: &Duplicates, unknown: &[String]) -> Vec<String> {
    let inside = |path: &str| {
        unknown.iter().any(|u| {
            let rest = path.strip_prefix(u.as_str());
            rest.is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']))
        })
    };
    let twice = duplicates.paths.iter().filter(|p| !inside(p));
    let mut found: Vec<(usize, String)> = twice
        .map(|p| {
            let last = duplicates.order.iter().rposition(|o| o == p);
            (
                last.unwrap_or(usize::MAX),
                format!("duplicate field \"{p}\""),
            )
        })
        .collect();
    found.extend(unknown.iter().map(|p| {
        let first = duplicates.order.iter().position(|o| o == p);
        (
            first.unwrap_or(usize::MAX),
            format!("unknown field \"{p}\""),
        )
    }));
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, problem)| problem).collect()
}

/// Whether nothing holds a deleting object any more.
pub(crate) fn releases(object: &Value) -> bool {
    let grace = meta::get(object, "deletionGracePeriodSeconds")
        .and_then(Value::as_i64)
        .unwrap_or(0);
    let namespace = object.get("kind").and_then(Value::as_str) == Some("Namespace")
        && object.get("apiVersion").and_then(Value::as_str) == Some("v1");
    let content = namespace
        && meta::field(object, "spec.finalizers")
            .and_then(Value::as_array)
            .is_some_and(|l| !l.is_empty());
    meta::finalizers(object).is_empty() && grace == 0 && !content
}

/// Equality apart from the times in managedFields: a write that changes nothing else is no write.
pub(crate) fn same(new: &Value, old: &Value) -> bool {
    if new == old {
        return true;
    }
    let (Value::Object(new), Value::Object(old)) = (new, old) else {
        return false;
    };
    alike(new, old, |field, new, old| match (new, old) {
        (Value::Object(new), Value::Object(old)) if field == "metadata" => {
            alike(new, old, |field, new, old| match (new, old) {
                (Value::Array(new), Value::Array(old)) if field == "managedFields" => {
                    new.len() == old.len() && new.iter().zip(old).all(|(n, o)| timeless(n, o))
                }
                _ => new == old,
            })
        }
        _ => new == old,
    })
}

/// Whether two maps have the same fields, and `same` says so of the values of each.
fn alike(
    new: &Map<String, Value>,
    old: &Map<String, Value>,
    same: impl Fn(&str, &Value, &Value) -> bool,
) -> bool {
    new.len() == old.len()
        && new
            .iter()
            .all(|(field, new)| old.get(field).is_some_and(|old| same(field, new, old)))
}

/// Equality of two entries of managedFields apart from their time.
fn timeless(new: &Value, old: &Value) -> bool {
    let (Value::Object(new), Value::Object(old)) = (new, old) else {
        return new == old;
    };
    let rest = |of: &Map<String, Value>| of.keys().filter(|k| *k != "time").count();
    let mut fields = new.iter().filter(|(field, _)| *field != "time");
    rest(new) == rest(old) && fields.all(|(field, value)| old.get(field) == Some(value))
}

/// A problem of types in the words of the converter that reads what a strategic patch has made.
fn converted(problem: &str) -> String {
    let parts = problem
        .strip_prefix("json: cannot unmarshal ")
        .and_then(|rest| rest.split_once(" into Go "))
        .and_then(|(found, rest)| Some((found, rest.rsplit_once(" of type ")?.1)));
    let Some((found, wanted)) = parts else {
        return problem.to_owned();
    };
    let found = match found {
        "array" => "slice",
        "object" => "map",
        "number" => "int64",
        n if n.starts_with("number ") && n.contains('.') => "float64",
        n if n.starts_with("number ") => "int64",
        other => other,
    };
    match wanted {
        list if list.starts_with("[]") => format!("cannot restore slice from {found}"),
        map if map.starts_with("map[") => format!("cannot restore map from {found}"),
        object if object.contains('.') => format!("cannot restore struct from: {found}"),
        simple => format!("unrecognized type: {simple}"),
    }
}

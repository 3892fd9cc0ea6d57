//! What the server serves: one [`ResourceInfo`] per resource, for built-in kinds and custom resources alike.
//!
//! Handlers, discovery and OpenAPI read only this; knowledge about one kind is data here, or a hook in `strategy`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::conversion::Webhook;
use crate::schema::Structural;
use crate::table::Column;

/// One resource (`deployments.apps`) with all its served versions.
#[derive(Clone, Debug)]
pub struct ResourceInfo {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind of one object, e.g. `Deployment`.
    pub kind: String,
    /// Kind of a list, e.g. `DeploymentList`.
    pub list_kind: String,
    /// Plural name as it stands in URLs.
    pub plural: String,
    /// Singular name as it stands in discovery.
    pub singular: String,
    /// Short names (`deploy`).
    pub short_names: Vec<String>,
    /// Categories (`all`).
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Verbs of the main endpoint, in discovery order.
    pub verbs: Vec<&'static str>,
    /// Served versions, most preferred first.
    pub versions: Vec<VersionInfo>,
    /// The version objects are stored in.
    pub storage_version: String,
    /// The versions that are not served; objects may still be stored in one of them.
    pub unserved: Vec<VersionInfo>,
    /// Name of the table in the store. Two resources with one table are two faces of the same objects.
    pub table: String,
    /// The webhook that converts between the versions, where their names are not all that differs.
    pub conversion: Option<Webhook>,
    /// Built into the server, or defined by a CustomResourceDefinition.
    pub origin: Origin,
    /// Field by field behaviour where kinds differ.
    pub traits: Traits,
}

/// One served version of a resource.
#[derive(Clone, Debug)]
pub struct VersionInfo {
    /// `v1`, `v1beta1`, …
    pub name: String,
    /// Whether the CRD marks it deprecated, and the text of the warning.
    pub deprecated: Option<String>,
    /// The OpenAPI v3 schema: as in the CRD for custom resources; for built-ins as published, where known.
    pub schema: Option<Arc<Value>>,
    /// The parsed schema of a custom resource. Built-ins are not pruned.
    pub structural: Option<Arc<Structural>>,
    /// Table columns.
    pub columns: Arc<Vec<Column>>,
    /// Subresources of this version.
    pub subresources: Vec<Subresource>,
    /// Paths usable in field selectors besides `metadata.name` and `metadata.namespace`, e.g. `spec.nodeName`.
    pub selectable_fields: Vec<String>,
}

/// One subresource as discovery shows it.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// `status`, `scale`, `token`, …
    pub name: String,
    /// Group, version and kind of its body where that is not the resource's own.
    pub body: Option<(&'static str, &'static str, &'static str)>,
    /// Verbs, in discovery order.
    pub verbs: Vec<&'static str>,
    /// For `scale`: paths of spec replicas, status replicas and label selector (with a leading dot).
    pub scale: Option<ScalePaths>,
}

/// Where the scale subresource finds its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// e.g. `.spec.replicas`
    pub spec_replicas: String,
    /// e.g. `.status.replicas`
    pub status_replicas: String,
    /// e.g. `.status.selector`; a serialised string for custom resources, an object for built-ins.
    pub selector: Option<String>,
}

/// Where a resource comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Compiled in.
    Builtin,
    /// From the CustomResourceDefinition with this uid; `generation` tells one schema from the next.
    Crd {
        /// uid of the CRD
        uid: String,
        /// generation of the CRD when this entry was built
        generation: i64,
    },
}

/// Where kinds differ.
#[derive(Clone, Debug, Default)]
pub struct Traits {
    /// `metadata.generation` is maintained.
    pub generation: bool,
    /// A PUT without resourceVersion overwrites.
    pub unconditional_update: bool,
    /// A PUT of an absent object creates it.
    pub create_on_update: bool,
    /// Status given at creation is kept (nodes).
    pub keep_status_on_create: bool,
    /// How names are validated.
    pub names: NameRule,
}

/// Rule for `metadata.name`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain (most kinds).
    #[default]
    Subdomain,
    /// RFC 1123 label (namespaces).
    Label,
    /// RFC 1035 label (services).
    Label1035,
    /// A path segment: not `.`, `..`, no `/` or `%` (RBAC).
    PathSegment,
}

impl ResourceInfo {
    /// `deployments.apps`, or `pods` in the core group: the name used in error texts.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// `apps/v1`, or `v1`.
    pub fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() {
            version.to_owned()
        } else {
            format!("{}/{version}", self.group)
        }
    }

    /// The served version of that name.
    pub fn version(&self, name: &str) -> Option<&VersionInfo> {
        self.versions.iter().find(|v| v.name == name)
    }

    /// The schema of a custom resource in a version that is served or not, by its apiVersion.
    pub fn schema_of(&self, api_version: &Value) -> Option<&Structural> {
        let mut versions = self.versions.iter().chain(&self.unserved);
        let version = versions.find(|v| *api_version == self.api_version(&v.name).as_str())?;
        version.structural.as_deref()
    }

    /// Tells one set of schemas of a custom resource from the next; 0 for built-in kinds.
    pub fn schema_generation(&self) -> i64 {
        match self.origin {
            Origin::Builtin => 0,
            Origin::Crd { generation, .. } => generation,
        }
    }

    /// Whether objects come from a CustomResourceDefinition.
    pub fn is_custom(&self) -> bool {
        matches!(self.origin, Origin::Crd { .. })
    }

    /// Whether the main endpoint allows the verb.
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }
}

impl VersionInfo {
    /// The subresource of that name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether `status` is a subresource, so that the main endpoint ignores it.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
}

/// All resources, by (group, plural).
#[derive(Clone, Debug, Default)]
pub struct Registry {
    resources: BTreeMap<(String, String), Arc<ResourceInfo>>,
}

impl Registry {
    /// Adds or replaces a resource.
    pub fn insert(&mut self, info: ResourceInfo) {
        self.resources
            .insert((info.group.clone(), info.plural.clone()), Arc::new(info));
    }

    /// Removes a resource.
    pub fn remove(&mut self, group: &str, plural: &str) {
        self.resources
            .remove(&(group.to_owned(), plural.to_owned()));
    }

    /// The resource of that group and plural name.
    pub fn get(&self, group: &str, plural: &str) -> Option<&Arc<ResourceInfo>> {
        self.resources.get(&(group.to_owned(), plural.to_owned()))
    }

    /// The resource of that group, version and kind.
    pub fn by_kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<ResourceInfo>> {
        self.iter()
            .find(|r| r.group == group && r.kind == kind && r.version(version).is_some())
    }

    /// Every (group, version) under which the same objects are served.
    pub fn faces(&self, resource: &ResourceInfo) -> Vec<(String, String)> {
        let same = self
            .iter()
            .filter(|r| r.table == resource.table && r.plural == resource.plural);
        same.flat_map(|r| r.versions.iter().map(|v| (r.group.clone(), v.name.clone())))
            .collect()
    }

    /// All resources, ordered by group and plural.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ResourceInfo>> {
        self.resources.values()
    }
}

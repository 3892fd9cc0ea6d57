//! Discovery: which groups, versions and resources there are, as plain documents and aggregated.

use std::cmp::Ordering;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::registry::{ResourceInfo, Subresource, VersionInfo};

/// Which half of an aggregated discovery is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `/api`: the core group.
    Core,
    /// `/apis`: all named groups.
    Groups,
}

/// The order in which the API server lists its own groups; clients that resolve a short name take
/// the first match. Groups of custom resources follow in alphabetical order.
const GROUP_ORDER: [&str; 19] = [
    "",
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
];

/// `GET /api`.
pub fn api_versions() -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [],
    })
}

/// `GET /apis`.
pub fn api_group_list(resources: &[Arc<ResourceInfo>]) -> Value {
    let groups: Vec<Value> = groups(resources)
        .iter()
        .filter(|group| !group.is_empty())
        .map(|group| group_body(resources, group))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `GET /apis/<group>`; `None` if there is no such group.
pub fn api_group(resources: &[Arc<ResourceInfo>], group: &str) -> Option<Value> {
    if group.is_empty() || !served_at_all(resources).any(|r| r.group == group) {
        return None;
    }
    let mut body = group_body(resources, group);
    body["kind"] = "APIGroup".into();
    body["apiVersion"] = "v1".into();
    Some(body)
}

/// `GET /api/v1` and `GET /apis/<group>/<version>`; `None` if that version is not served.
pub fn api_resource_list(
    resources: &[Arc<ResourceInfo>],
    group: &str,
    version: &str,
) -> Option<Value> {
    let served = served(resources, group, version);
    if served.is_empty() {
        return None;
    }
    let mut entries = Vec::new();
    for (resource, info) in served {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs(resource),
        });
        if resource.allows("get") {
            let stored = format!(
                "{}/{}/{}",
                stored_group(resource),
                resource.storage_version,
                resource.kind
            );
            let digest = Sha256::digest(stored.as_bytes());
            entry["storageVersionHash"] = STANDARD.encode(&digest[..8]).into();
        }
        add_names(&mut entry, resource);
        entries.push(entry);
        for sub in &info.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, sub.name),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": sub.body.map_or(resource.kind.as_str(), |(_, _, kind)| kind),
                "verbs": sorted(&sub.verbs),
            });
            if let Some((group, version, _)) = sub.body {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
            entries.push(entry);
        }
    }
    let mut list = json!({
        "kind": "APIResourceList",
        "groupVersion": group_version(group, version),
        "resources": entries,
    });
    if !group.is_empty() {
        // The list of the core group does without, for clients of old.
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

/// The order in which definitions list their verbs.
const CUSTOM_VERBS: [&str; 8] = [
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];

/// The group of a resource's stored form: events are stored as those of the core group.
fn stored_group(resource: &ResourceInfo) -> &str {
    match resource.group.as_str() {
        "events.k8s.io" => "",
        group => group,
    }
}

/// The aggregated document of `/api` or `/apis`; `version` is `v2` or `v2beta1`.
pub fn aggregated(resources: &[Arc<ResourceInfo>], scope: Scope, version: &str) -> Value {
    let items: Vec<Value> = groups(resources)
        .iter()
        .filter(|group| group.is_empty() == (scope == Scope::Core))
        .map(|group| {
            let versions: Vec<Value> = versions(resources, group)
                .iter()
                .map(|version| {
                    let resources: Vec<Value> = served(resources, group, version)
                        .into_iter()
                        .map(|(resource, info)| aggregated_resource(resource, info))
                        .collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            json!({
                "metadata": {"name": group, "creationTimestamp": null},
                "versions": versions,
            })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

/// The `Content-Type` of an aggregated document.
pub fn aggregated_content_type(version: &str) -> String {
    format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
}

/// A strong `ETag`, quotes included: the same for the same document, whenever it is asked for.
pub fn etag(document: &Value) -> String {
    format!("\"{}\"", hash(document.to_string().as_bytes()))
}

/// SHA-256 in upper-case hexadecimal digits.
pub(crate) fn hash(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// `apps/v1`, or `v1` in the core group.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_string()
    } else {
        format!("{group}/{version}")
    }
}

/// The kinds that serve any version.
fn served_at_all(resources: &[Arc<ResourceInfo>]) -> impl Iterator<Item = &Arc<ResourceInfo>> {
    resources.iter().filter(|r| !r.versions.is_empty())
}

/// The groups in the order of discovery.
pub(crate) fn groups(resources: &[Arc<ResourceInfo>]) -> Vec<String> {
    let mut groups: Vec<String> = served_at_all(resources).map(|r| r.group.clone()).collect();
    let rank = |group: &String| {
        let place = GROUP_ORDER.iter().position(|known| known == group);
        (place.unwrap_or(GROUP_ORDER.len()), group.clone())
    };
    groups.sort_by_key(rank);
    groups.dedup();
    groups
}

/// The served versions of a group, most preferred first.
pub(crate) fn versions(resources: &[Arc<ResourceInfo>], group: &str) -> Vec<String> {
    let mut versions: Vec<String> = resources
        .iter()
        .filter(|r| r.group == group)
        .flat_map(|r| r.versions.iter().map(|v| v.name.clone()))
        .collect();
    versions.sort_by(|a, b| by_preference(a, b));
    versions.dedup();
    versions
}

/// The resources that a group version serves.
pub(crate) fn served<'a>(
    resources: &'a [Arc<ResourceInfo>],
    group: &str,
    version: &str,
) -> Vec<(&'a ResourceInfo, &'a VersionInfo)> {
    resources
        .iter()
        .filter(|r| r.group == group)
        .filter_map(|r| Some((&**r, r.version(version)?)))
        .collect()
}

/// The order of versions in Kubernetes: stable ones before beta before alpha, each with the
/// highest number first; names of any other form come last, in alphabetical order.
pub(crate) fn by_preference(a: &str, b: &str) -> Ordering {
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Stability (3 stable, 2 beta, 1 alpha), major and minor of `v1`, `v2beta3`, …
fn rank(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let (major, stability, minor) = match (rest.split_once("alpha"), rest.split_once("beta")) {
        (Some((major, minor)), _) => (major, 1, minor),
        (_, Some((major, minor))) => (major, 2, minor),
        _ => (rest, 3, "0"),
    };
    Some((stability, major.parse().ok()?, minor.parse().ok()?))
}

fn group_body(resources: &[Arc<ResourceInfo>], group: &str) -> Value {
    let versions: Vec<Value> = versions(resources, group)
        .iter()
        .map(|version| json!({"groupVersion": group_version(group, version), "version": version}))
        .collect();
    json!({"name": group, "preferredVersion": versions[0], "versions": versions})
}

fn aggregated_resource(resource: &ResourceInfo, info: &VersionInfo) -> Value {
    let own = json!({
        "group": resource.group,
        "version": info.name,
        "kind": resource.kind,
    });
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": own,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": verbs(resource),
    });
    add_names(&mut entry, resource);
    if !info.subresources.is_empty() {
        let sub = |sub: &Subresource| {
            let kind = match sub.body {
                Some((group, version, kind)) => {
                    json!({"group": group, "version": version, "kind": kind})
                }
                None => own.clone(),
            };
            json!({
                "subresource": sub.name,
                "responseKind": kind,
                "verbs": sorted(&sub.verbs),
            })
        };
        entry["subresources"] = info.subresources.iter().map(sub).collect();
    }
    entry
}

fn add_names(entry: &mut Value, resource: &ResourceInfo) {
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
}

fn verbs(resource: &ResourceInfo) -> Value {
    match resource.is_custom() {
        true => json!(CUSTOM_VERBS),
        false => sorted(&resource.verbs),
    }
}

fn sorted(verbs: &[&str]) -> Value {
    let mut verbs = verbs.to_vec();
    verbs.sort_unstable();
    json!(verbs)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::registry::{Origin, ScalePaths, Traits};
    use serde_json::json;

    const VERBS: [&str; 8] = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    ];

    /// A resource for tests; with a schema it is a custom one.
    pub(crate) fn resource(
        group: &str,
        versions: &[&str],
        kind: &str,
        plural: &str,
        namespaced: bool,
        schema: Option<Value>,
    ) -> Arc<ResourceInfo> {
        let status = Subresource {
            name: "status".into(),
            body: None,
            verbs: vec!["get", "update", "patch"],
            scale: None,
        };
        let scale = Subresource {
            name: "scale".into(),
            body: Some(("autoscaling", "v1", "Scale")),
            verbs: vec!["get", "patch", "update"],
            scale: Some(ScalePaths {
                spec_replicas: ".spec.replicas".into(),
                status_replicas: ".status.replicas".into(),
                selector: None,
            }),
        };
        let version = |name: &&str| VersionInfo {
            name: (*name).into(),
            deprecated: None,
            schema: schema.clone().map(Arc::new),
            structural: None,
            columns: Arc::new(Vec::new()),
            subresources: vec![status.clone(), scale.clone()],
            selectable_fields: Vec::new(),
        };
        Arc::new(ResourceInfo {
            group: group.into(),
            kind: kind.into(),
            list_kind: format!("{kind}List"),
            plural: plural.into(),
            singular: kind.to_lowercase(),
            short_names: vec![format!("{}s", &plural[..1])],
            categories: vec!["all".into()],
            namespaced,
            verbs: VERBS.to_vec(),
            versions: versions.iter().map(version).collect(),
            storage_version: versions[0].into(),
            unserved: Vec::new(),
            table: plural.into(),
            conversion: None,
            origin: match schema {
                Some(_) => Origin::Crd {
                    uid: "u".into(),
                    generation: 1,
                },
                None => Origin::Builtin,
            },
            traits: Traits::default(),
        })
    }

    fn some() -> Vec<Arc<ResourceInfo>> {
        let schema = || Some(json!({"type": "object"}));
        vec![
            resource("", &["v1"], "Pod", "pods", true, None),
            resource("", &["v1"], "Node", "nodes", false, None),
            resource("a.io", &["v1beta1", "v1"], "Plan", "plans", true, schema()),
            resource("a.io", &["v1alpha1"], "Idea", "ideas", false, schema()),
            resource("apps", &["v1"], "Deployment", "deployments", true, None),
        ]
    }

    #[test]
    fn versions_are_ordered_by_stability_and_number() {
        let mut versions = vec![
            "v1alpha1",
            "foo10",
            "v1",
            "v10beta3",
            "v2",
            "v11alpha2",
            "v3beta1",
            "v10",
            "foo1",
            "v2beta2",
        ];
        versions.sort_by(|a, b| by_preference(a, b));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v10beta3",
                "v3beta1",
                "v2beta2",
                "v11alpha2",
                "v1alpha1",
                "foo1",
                "foo10"
            ]
        );
    }

    #[test]
    fn groups_are_listed_with_their_preferred_version() {
        let list = api_group_list(&some());
        let names: Vec<&Value> = list["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|g| &g["name"])
            .collect();
        assert_eq!(json!(names), json!(["apps", "a.io"]));
        let group = api_group(&some(), "a.io").unwrap();
        assert_eq!(group["kind"], "APIGroup");
        assert_eq!(
            group["preferredVersion"],
            json!({"groupVersion": "a.io/v1", "version": "v1"})
        );
        let versions = json!([
            {"groupVersion": "a.io/v1", "version": "v1"},
            {"groupVersion": "a.io/v1beta1", "version": "v1beta1"},
            {"groupVersion": "a.io/v1alpha1", "version": "v1alpha1"},
        ]);
        assert_eq!(group["versions"], versions);
        assert_eq!(api_group(&some(), "b.io"), None);
        assert_eq!(api_group(&some(), ""), None);
    }

    #[test]
    fn a_group_version_lists_its_resources_and_subresources() {
        let list = api_resource_list(&some(), "a.io", "v1").unwrap();
        assert_eq!(list["groupVersion"], "a.io/v1");
        let names: Vec<&Value> = list["resources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| &r["name"])
            .collect();
        assert_eq!(
            json!(names),
            json!(["plans", "plans/status", "plans/scale"])
        );
        assert_eq!(list["resources"][0]["shortNames"], json!(["ps"]));
        assert_eq!(list["resources"][0]["namespaced"], true);
        assert_eq!(list["resources"][0]["verbs"][0], "delete");
        assert_eq!(list["resources"][1]["kind"], "Plan");
        assert_eq!(list["resources"][2]["kind"], "Scale");
        assert_eq!(list["resources"][2]["group"], "autoscaling");
        assert_eq!(
            api_resource_list(&some(), "", "v1").unwrap()["groupVersion"],
            "v1"
        );
        assert_eq!(api_resource_list(&some(), "a.io", "v2"), None);
    }

    #[test]
    fn the_aggregated_documents_split_core_and_groups() {
        let core = aggregated(&some(), Scope::Core, "v2");
        assert_eq!(core["apiVersion"], "apidiscovery.k8s.io/v2");
        assert_eq!(core["items"].as_array().unwrap().len(), 1);
        assert_eq!(core["items"][0]["metadata"]["name"], "");
        let groups = aggregated(&some(), Scope::Groups, "v2beta1");
        assert_eq!(groups["items"][0]["metadata"]["name"], "apps");
        let plans = &groups["items"][1]["versions"][0]["resources"][0];
        assert_eq!(plans["resource"], "plans");
        assert_eq!(plans["scope"], "Namespaced");
        assert_eq!(
            plans["responseKind"],
            json!({"group": "a.io", "version": "v1", "kind": "Plan"})
        );
        assert_eq!(plans["subresources"][0]["responseKind"]["kind"], "Plan");
        assert_eq!(plans["subresources"][1]["responseKind"]["kind"], "Scale");
        assert_eq!(groups["items"][1]["versions"][2]["version"], "v1alpha1");
    }

    #[test]
    fn the_etag_follows_the_content() {
        let one = etag(&aggregated(&some(), Scope::Groups, "v2"));
        assert_eq!(one, etag(&aggregated(&some(), Scope::Groups, "v2")));
        assert_ne!(one, etag(&aggregated(&some()[..3], Scope::Groups, "v2")));
        assert!(one.starts_with('"') && one.ends_with('"') && one.len() == 66);
    }
}

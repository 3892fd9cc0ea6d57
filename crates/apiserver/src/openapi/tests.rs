use std::sync::Arc;

use serde_json::{Value, json};

use super::{document, index, prune};
use crate::discovery::tests::resource;
use crate::registry::ResourceInfo;

fn plan() -> Value {
    json!({
        "type": "object",
        "description": "Plan is a plan.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {"type": "object", "description": "What is wanted.", "properties": {"size": {"type": "integer"}}},
        },
    })
}

fn some() -> Vec<Arc<ResourceInfo>> {
    vec![
        resource("", &["v1"], "Pod", "pods", true, None),
        resource("", &["v1"], "Node", "nodes", false, None),
        resource("apps", &["v1"], "Deployment", "deployments", true, None),
        resource(
            "apiextensions.k8s.io",
            &["v1"],
            "CustomResourceDefinition",
            "customresourcedefinitions",
            false,
            None,
        ),
        resource(
            "siterecovery.trilio.io",
            &["v1alpha1"],
            "Plan",
            "plans",
            true,
            Some(plan()),
        ),
    ]
}

/// All names that are referred to but not there.
fn dangling(document: &Value) -> Vec<String> {
    fn walk(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (word, sub) in map {
                    match sub {
                        Value::String(text) if word == "$ref" => found.push(text.clone()),
                        _ => walk(sub, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|i| walk(i, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(document, &mut found);
    assert!(!found.is_empty());
    found.retain(|r| {
        let name = r.strip_prefix("#/components/schemas/").unwrap_or_default();
        document["components"]["schemas"].get(name).is_none()
    });
    found
}

#[test]
fn the_index_points_to_every_document() {
    let index = index(&some());
    let paths = index["paths"].as_object().unwrap();
    let mut names: Vec<&String> = paths.keys().collect();
    names.sort();
    assert_eq!(
        names,
        [
            "api/v1",
            "apis/apiextensions.k8s.io/v1",
            "apis/apps/v1",
            "apis/siterecovery.trilio.io/v1alpha1"
        ]
    );
    let url = paths["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap();
    assert!(url.starts_with("/openapi/v3/apis/apps/v1?hash="), "{url}");
}

#[test]
fn the_hash_follows_the_schema_and_nothing_else() {
    let url = |schema: Value| {
        let all = [resource(
            "a.io",
            &["v1"],
            "Plan",
            "plans",
            true,
            Some(schema),
        )];
        index(&all)["paths"]["apis/a.io/v1"].clone()
    };
    let mut other = plan();
    other["properties"]["spec"]["description"] = "Otherwise.".into();
    assert_eq!(url(plan()), url(plan()));
    assert_ne!(url(plan()), url(other));
}

#[test]
fn documents_refer_to_nothing_that_they_lack() {
    for (group, version) in [
        ("", "v1"),
        ("apps", "v1"),
        ("apiextensions.k8s.io", "v1"),
        ("siterecovery.trilio.io", "v1alpha1"),
    ] {
        let document = document(&some(), group, version).unwrap();
        assert_eq!(
            dangling(&document),
            Vec::<String>::new(),
            "{group}/{version}"
        );
    }
    assert!(document(&some(), "apps", "v2").is_none());
}

#[test]
fn a_custom_kind_is_published_as_kubernetes_does() {
    let document = document(&some(), "siterecovery.trilio.io", "v1alpha1").unwrap();
    let schemas = &document["components"]["schemas"];
    let plan = &schemas["io.trilio.siterecovery.v1alpha1.Plan"];
    assert_eq!(plan["description"], "Plan is a plan.");
    assert_eq!(
        plan["x-kubernetes-group-version-kind"],
        json!([{"group": "siterecovery.trilio.io", "version": "v1alpha1", "kind": "Plan"}])
    );
    assert_eq!(
        plan["properties"]["metadata"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(
        plan["properties"]["spec"]["properties"]["size"]["type"],
        "integer"
    );
    let list = &schemas["io.trilio.siterecovery.v1alpha1.PlanList"];
    assert_eq!(
        list["properties"]["items"]["items"]["allOf"][0]["$ref"],
        "#/components/schemas/io.trilio.siterecovery.v1alpha1.Plan"
    );
    assert_eq!(schemas.get("io.k8s.api.core.v1.Pod"), None);
}

#[test]
fn built_in_kinds_have_their_descriptions_and_references() {
    let document = document(&some(), "apps", "v1").unwrap();
    let schemas = &document["components"]["schemas"];
    let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
    assert_eq!(
        deployment["x-kubernetes-group-version-kind"][0]["kind"],
        "Deployment"
    );
    assert_eq!(deployment.get("required"), None, "metadata is not required");
    let spec = &deployment["properties"]["spec"];
    assert_eq!(
        spec["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.api.apps.v1.DeploymentSpec"
    );
    assert!(spec["description"].is_string());
    assert!(
        schemas["io.k8s.api.core.v1.Container"]["properties"]["image"]["description"].is_string()
    );
    assert_eq!(
        schemas["io.k8s.apimachinery.pkg.util.intstr.IntOrString"]["format"],
        "int-or-string"
    );
}

#[test]
fn lists_tell_how_patches_merge_them() {
    let document = document(&some(), "apps", "v1").unwrap();
    let schemas = &document["components"]["schemas"];
    let of = |name: &str, property: &str| schemas[name]["properties"][property].clone();
    let containers = of("io.k8s.api.core.v1.PodSpec", "containers");
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    let volumes = of("io.k8s.api.core.v1.PodSpec", "volumes");
    assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
    let strategy = of("io.k8s.api.apps.v1.DeploymentSpec", "strategy");
    assert_eq!(strategy["x-kubernetes-patch-strategy"], "retainKeys");
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!(
        of(meta, "finalizers")["x-kubernetes-patch-strategy"],
        "merge"
    );
}

#[test]
fn operations_tell_their_parameters_and_kind() {
    let document = document(&some(), "siterecovery.trilio.io", "v1alpha1").unwrap();
    let base = "/apis/siterecovery.trilio.io/v1alpha1";
    let paths = &document["paths"];
    let mut names: Vec<&String> = paths.as_object().unwrap().keys().collect();
    names.sort();
    let object = format!("{base}/namespaces/{{namespace}}/plans/{{name}}");
    assert_eq!(
        names,
        [
            &format!("{base}/namespaces/{{namespace}}/plans"),
            &object,
            &format!("{object}/scale"),
            &format!("{object}/status"),
            &format!("{base}/plans"),
        ]
    );
    let names = |operation: &Value| -> Vec<String> {
        let parameters = operation["parameters"].as_array().unwrap();
        parameters
            .iter()
            .map(|p| p["name"].as_str().unwrap().to_string())
            .collect()
    };
    let patch = &paths[&object]["patch"];
    assert_eq!(
        names(patch),
        ["dryRun", "fieldManager", "fieldValidation", "force"]
    );
    assert_eq!(patch["x-kubernetes-action"], "patch");
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "siterecovery.trilio.io", "version": "v1alpha1", "kind": "Plan"})
    );
    assert_eq!(
        patch["operationId"],
        "patchSiterecoveryTrilioIoV1alpha1NamespacedPlan"
    );
    let types: Vec<&String> = patch["requestBody"]["content"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(types.len(), 3, "no strategic merge patch for custom kinds");
    assert_eq!(
        names(&paths[&object]["put"]),
        ["dryRun", "fieldManager", "fieldValidation"]
    );
    assert_eq!(paths[&object]["parameters"][0]["name"], "name");
    let scale = &paths[&format!("{object}/scale")]["get"];
    assert_eq!(scale["x-kubernetes-group-version-kind"]["kind"], "Scale");
    let everywhere = paths[&format!("{base}/plans")].as_object().unwrap();
    assert_eq!(everywhere.len(), 2, "list and the common parameters");
}

#[test]
fn fields_that_a_built_in_kind_does_not_have_are_dropped_and_named() {
    let mut deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "kind]": "Deployment",
        "metadata": {"name": "a", "labels": {"any": "thing"}, "lables": {}, "": 1},
        "spec": {
            "replica": 1,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"spec": {"containers": [
                {"name": "c", "imagee": "i", "resources": {"limits": {"cpu": 1}}, "ports": [{"containerPort": 80, "hostport": 1}], "[0].name": 1},
            ]}},
        },
    });
    let mut dropped = prune("apps", "v1", "Deployment", &mut deployment).unwrap();
    dropped.sort();
    assert_eq!(
        dropped,
        [
            "kind]",
            "metadata.",
            "metadata.lables",
            "spec.replica",
            "spec.template.spec.containers[0].[0].name",
            "spec.template.spec.containers[0].imagee",
            "spec.template.spec.containers[0].ports[0].hostport",
        ]
    );
    assert_eq!(
        deployment,
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "a", "labels": {"any": "thing"}},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"containers": [
                    {"name": "c", "resources": {"limits": {"cpu": 1}}, "ports": [{"containerPort": 80}]},
                ]}},
            },
        })
    );
    let mut crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"properties": {"a": {"default": {"x": 1}, "$ref": "x", "x-kubernetes-validations": [{"rule": "r"}]}}}}}]}});
    let kind = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    assert_eq!(
        prune(kind.0, kind.1, kind.2, &mut crd).unwrap(),
        Vec::<String>::new()
    );
    assert_eq!(prune("a.io", "v1", "Plan", &mut json!({})), None);
}

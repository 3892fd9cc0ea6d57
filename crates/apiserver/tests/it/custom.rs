//! Custom resources: definition, schema, status, generation, server-side apply.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::json;

use crate::support::{client, code, install_widgets, message, object, server, widget, widget_api};

#[tokio::test(start_paused = true)]
async fn a_definition_is_established_and_served_at_once() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    await_condition(
        crds.clone(),
        "widgets.example.com",
        conditions::is_crd_established(),
    )
    .await
    .unwrap();
    let api = widget_api(&client);
    let made = api
        .create(&PostParams::default(), &widget("a", 3))
        .await
        .unwrap();
    assert_eq!(
        made.data["spec"],
        json!({"size": 3, "colour": "red"}),
        "defaults are filled in"
    );
    assert_eq!(made.metadata.generation, Some(1));

    crds.delete("widgets.example.com", &DeleteParams::default())
        .await
        .unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    assert_eq!(code(crds.get("widgets.example.com").await), 404);
    assert_eq!(message(api.get("a").await), "404 page not found");
    install_widgets(&client).await;
    assert_eq!(
        code(api.get("a").await),
        404,
        "the objects went with the definition"
    );
}

#[tokio::test(start_paused = true)]
async fn what_breaks_the_schema_is_refused() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    let api = widget_api(&client);
    let refused = api.create(&PostParams::default(), &widget("a", -1)).await;
    assert_eq!(
        message(refused),
        "Widget.example.com \"a\" is invalid: [.spec.size: Invalid value: -1: should be a non-negative integer, spec.size: Invalid value: -1: spec.size in body should be greater than or equal to 0]"
    );
    let refused = message(api.create(&PostParams::default(), &widget("a", 101)).await);
    assert!(refused.contains("size must be at most 100"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn main_and_status_endpoints_do_not_touch_each_other() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    let api = widget_api(&client);
    let both = object(
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"size": 1}, "status": {"ready": 9}}),
    );
    let made = api.create(&PostParams::default(), &both).await.unwrap();
    assert_eq!(made.data.get("status"), None);
    let patch = json!({"spec": {"size": 5}, "status": {"ready": 1}});
    let after = api
        .patch_status("a", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    assert_eq!(
        (&after.data["spec"]["size"], &after.data["status"]["ready"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(after.metadata.generation, Some(1));
    let after = api
        .patch(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"size": 5}, "status": {"ready": 7}})),
        )
        .await
        .unwrap();
    assert_eq!(
        (&after.data["spec"]["size"], &after.data["status"]["ready"]),
        (&json!(5), &json!(1))
    );
    assert_eq!(after.metadata.generation, Some(2));
    let after = api
        .patch(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}})),
        )
        .await
        .unwrap();
    assert_eq!(
        after.metadata.generation,
        Some(2),
        "labels do not move the generation"
    );
}

#[tokio::test(start_paused = true)]
async fn managers_apply_side_by_side_and_conflict_over_one_field() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    let api = widget_api(&client);
    let apply = |spec: serde_json::Value| {
        Patch::Apply(object(
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": spec}),
        ))
    };
    let a = PatchParams::apply("a");
    let made: DynamicObject = api
        .patch(
            "a",
            &a,
            &apply(json!({"size": 1, "parts": [{"name": "x", "weight": 1}]})),
        )
        .await
        .unwrap();
    let same = api
        .patch(
            "a",
            &a,
            &apply(json!({"size": 1, "parts": [{"name": "x", "weight": 1}]})),
        )
        .await
        .unwrap();
    assert_eq!(same.resource_version(), made.resource_version());
    let b = PatchParams::apply("b");
    let both = api
        .patch(
            "a",
            &b,
            &apply(json!({"size": 1, "parts": [{"name": "y"}]})),
        )
        .await
        .unwrap();
    assert_eq!(
        both.data["spec"]["parts"],
        json!([{"name": "x", "weight": 1}, {"name": "y"}])
    );
    let refused = message(api.patch("a", &b, &apply(json!({"size": 2}))).await);
    assert!(
        refused.starts_with("Apply failed with 1 conflict: conflict with \"a\""),
        "{refused}"
    );
    let forced = api
        .patch("a", &b.force(), &apply(json!({"size": 2})))
        .await
        .unwrap();
    assert_eq!(
        forced.data["spec"]["parts"],
        json!([{"name": "x", "weight": 1}]),
        "what b left out is gone"
    );
    assert_eq!(forced.data["spec"]["size"], 2);
}

#[tokio::test(start_paused = true)]
async fn applying_the_same_again_changes_nothing_for_any_kind() {
    let server = server();
    let client = client(&server);
    let kinds = [
        (
            ("", "v1", "Secret"),
            "secrets",
            json!({"stringData": {"a": "b"}}),
        ),
        (
            ("", "v1", "Service"),
            "services",
            json!({"spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}}),
        ),
        (
            ("", "v1", "PersistentVolumeClaim"),
            "persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
        ),
        (
            ("batch", "v1", "Job"),
            "jobs",
            json!({"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}),
        ),
        (
            ("apps", "v1", "Deployment"),
            "deployments",
            json!({"spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "env": [{"name": "X", "value": "1"}]}]}}}}),
        ),
        (
            ("rbac.authorization.k8s.io", "v1", "Role"),
            "roles",
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ),
    ];
    for (gvk, plural, body) in kinds {
        let resource = crate::support::resource(gvk, plural);
        let api: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &resource);
        let mut object = body;
        object["apiVersion"] = json!(resource.api_version);
        object["kind"] = json!(resource.kind);
        object["metadata"] = json!({"name": "a", "labels": {"x": "y"}});
        let params = PatchParams::apply("me").force();
        let first = api
            .patch("a", &params, &Patch::Apply(&object))
            .await
            .unwrap();
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let second = api
            .patch("a", &params, &Patch::Apply(&object))
            .await
            .unwrap();
        assert_eq!(first, second, "{plural}");
        let merged = api
            .patch("a", &PatchParams::default(), &Patch::Merge(&object))
            .await
            .unwrap();
        assert_eq!(
            merged.resource_version(),
            first.resource_version(),
            "{plural}"
        );
        let replaced = api
            .replace("a", &PostParams::default(), &merged)
            .await
            .unwrap();
        assert_eq!(
            replaced.resource_version(),
            first.resource_version(),
            "{plural}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_write_brings_what_is_stored_up_to_date_and_the_next_one_changes_nothing() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    let api = widget_api(&client);
    let made = api
        .create(&PostParams::default(), &widget("a", 3))
        .await
        .unwrap();
    let params = PatchParams::default();
    let empty = Patch::Merge(json!({}));
    let same = api.patch("a", &params, &empty).await.unwrap();
    assert_eq!(same.resource_version(), made.resource_version());

    let crds: Api<CustomResourceDefinition> = Api::all(client);
    let default = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/late",
        "value": {"type": "string", "default": "yes"}}]);
    let default: json_patch::Patch = serde_json::from_value(default).unwrap();
    crds.patch("widgets.example.com", &params, &Patch::Json::<()>(default))
        .await
        .unwrap();
    let read = api.get("a").await.unwrap();
    assert_eq!(
        read.data["spec"]["late"], "yes",
        "a default that nobody wrote down"
    );
    assert_eq!(read.resource_version(), made.resource_version());
    let written = api.patch("a", &params, &empty).await.unwrap();
    assert_ne!(written.resource_version(), made.resource_version());
    assert_eq!(written.metadata.generation, made.metadata.generation);
    let again = api.patch("a", &params, &empty).await.unwrap();
    assert_eq!(again.resource_version(), written.resource_version());
}

/// A definition in the widgets' group with one short name.
fn definition(plural: &str, kind: &str, short: &str) -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "shortNames": [short]},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]},
    }))
    .unwrap()
}

/// `NamesAccepted/NoConflicts=True Established/…`
fn told(crd: &CustomResourceDefinition) -> String {
    let conditions = crd.status.clone().unwrap_or_default().conditions;
    let conditions = conditions.unwrap_or_default();
    let told: Vec<String> = conditions
        .iter()
        .map(|c| {
            format!(
                "{}/{}={}",
                c.type_,
                c.reason.clone().unwrap_or_default(),
                c.status
            )
        })
        .collect();
    told.join(" ")
}

/// The short names that discovery tells of a resource; nothing if it is not served.
async fn short_names(client: &kube::Client, plural: &str) -> Option<Vec<String>> {
    let served = client.list_api_group_resources("example.com/v1").await;
    let mut resources = served.ok()?.resources;
    resources.retain(|r| r.name == plural);
    resources.pop().map(|r| r.short_names.unwrap_or_default())
}

const ACCEPTED: &str = "NamesAccepted/NoConflicts=True Established/InitialNamesAccepted=True";

#[tokio::test(start_paused = true)]
async fn a_name_that_is_taken_is_given_when_the_definition_that_has_it_is_gone() {
    let conflicts = [
        (
            definition("b", "B", "aa"),
            "ShortNamesConflict",
            "\"aa\" is already in use",
        ),
        (
            definition("b", "B", "a"),
            "ShortNamesConflict",
            "\"a\" is already in use",
        ),
        (
            definition("b", "A", "bb"),
            "ListKindConflict",
            "\"AList\" is already in use",
        ),
        (
            definition("b", "AList", "bb"),
            "KindConflict",
            "\"AList\" is already in use",
        ),
    ];
    for (second, reason, message) in conflicts {
        let server = server();
        let client = client(&server);
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let params = PostParams::default();
        crds.create(&params, &definition("a", "A", "aa"))
            .await
            .unwrap();
        crds.create(&params, &second).await.unwrap();
        let refused = crds.get("b.example.com").await.unwrap();
        let expected = format!("NamesAccepted/{reason}=False Established/NotAccepted=False");
        assert_eq!(told(&refused), expected);
        let conditions = refused.status.unwrap().conditions.unwrap();
        assert_eq!(conditions[0].message.as_deref(), Some(message));
        assert_eq!(short_names(&client, "b").await, None, "it is not served");

        crds.delete("a.example.com", &DeleteParams::default())
            .await
            .unwrap();
        await_condition(
            crds.clone(),
            "b.example.com",
            conditions::is_crd_established(),
        )
        .await
        .unwrap();
        assert_eq!(told(&crds.get("b.example.com").await.unwrap()), ACCEPTED);
        assert_eq!(
            short_names(&client, "b").await,
            second.spec.names.short_names
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_asks_for_a_taken_name_goes_on_by_the_names_it_has() {
    let server = server();
    let client = client(&server);
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PostParams::default();
    crds.create(&params, &definition("a", "A", "aa"))
        .await
        .unwrap();
    crds.create(&params, &definition("b", "B", "bb"))
        .await
        .unwrap();
    let names = |short: &str| Patch::Merge(json!({"spec": {"names": {"shortNames": [short]}}}));
    let params = PatchParams::default();
    crds.patch("b.example.com", &params, &names("aa"))
        .await
        .unwrap();
    let refused = crds.get("b.example.com").await.unwrap();
    assert_eq!(
        told(&refused),
        "NamesAccepted/ShortNamesConflict=False Established/InitialNamesAccepted=True"
    );
    let accepted = refused.status.unwrap().accepted_names.unwrap().short_names;
    assert_eq!(accepted, Some(vec!["bb".to_owned()]));
    assert_eq!(short_names(&client, "b").await, accepted);

    // The other one gives the name up.
    crds.patch("a.example.com", &params, &names("ax"))
        .await
        .unwrap();
    assert_eq!(told(&crds.get("b.example.com").await.unwrap()), ACCEPTED);
    assert_eq!(short_names(&client, "a").await, Some(vec!["ax".to_owned()]));
    assert_eq!(short_names(&client, "b").await, Some(vec!["aa".to_owned()]));
}

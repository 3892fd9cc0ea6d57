//! Create, read, update, delete, and what the server owns in metadata.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use crate::support::{client, code, message, server};

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": value}})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_object_is_created_read_replaced_patched_and_deleted() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let made = api
        .create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    assert_eq!(made.metadata.uid.as_ref().unwrap().len(), 36);
    assert_eq!(
        made.creation_timestamp().unwrap().0.to_string(),
        "2026-01-01T00:00:00Z"
    );

    let mut next = made.clone();
    next.data.as_mut().unwrap().insert("k".into(), "2".into());
    let replaced = api
        .replace("a", &PostParams::default(), &next)
        .await
        .unwrap();
    assert_ne!(replaced.resource_version(), made.resource_version());
    assert_eq!(replaced.uid(), made.uid());

    assert_eq!(
        code(api.replace("a", &PostParams::default(), &next).await),
        409,
        "the old resourceVersion is refused"
    );

    let patched = api
        .patch(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"data": {"k": null, "l": "3"}})),
        )
        .await
        .unwrap();
    assert_eq!(
        patched.data.unwrap(),
        [("l".to_owned(), "3".to_owned())].into()
    );

    let status = api
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .right()
        .unwrap();
    assert!(status.is_success());
    assert_eq!(code(api.get("a").await), 404);
    assert_eq!(message(api.get("a").await), "configmaps \"a\" not found");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_keeps_the_resource_version() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let made = api
        .create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    let mark = server.request_log().mark();
    let again = api
        .patch(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"data": {"k": "1"}})),
        )
        .await
        .unwrap();
    assert_eq!(again.resource_version(), made.resource_version());
    let replaced = api
        .replace("a", &PostParams::default(), &again)
        .await
        .unwrap();
    assert_eq!(replaced.resource_version(), made.resource_version());
    let writes = server.request_log().writes_since(mark);
    assert_eq!(
        writes
            .iter()
            .map(|w| (w.verb.as_str(), w.changed))
            .collect::<Vec<_>>(),
        [("patch", false), ("update", false)]
    );
}

#[tokio::test(start_paused = true)]
async fn names_are_generated_and_validated() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let generated: ConfigMap =
        serde_json::from_value(json!({"metadata": {"generateName": "x-"}})).unwrap();
    let a = api
        .create(&PostParams::default(), &generated)
        .await
        .unwrap();
    let b = api
        .create(&PostParams::default(), &generated)
        .await
        .unwrap();
    assert!(
        a.name_any().starts_with("x-") && a.name_any().len() == 7 && a.name_any() != b.name_any()
    );
    let bad = api
        .create(&PostParams::default(), &config_map("No_Good", "1"))
        .await;
    assert!(message(bad).starts_with("ConfigMap \"No_Good\" is invalid: metadata.name: Invalid value: \"No_Good\": a lowercase RFC 1123 subdomain"));
    assert_eq!(
        code(
            api.create(&PostParams::default(), &config_map(&a.name_any(), "1"))
                .await
        ),
        409
    );
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_stores_nothing() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    let revision = server.revision();
    let made = api.create(&dry, &config_map("a", "1")).await.unwrap();
    assert!(made.uid().is_some());
    assert_eq!(code(api.get("a").await), 404);
    assert_eq!(server.revision(), revision);
}

#[tokio::test(start_paused = true)]
async fn deletion_keeps_its_preconditions() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    api.create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    let other = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some("other".into()),
            ..Preconditions::default()
        }),
        ..DeleteParams::default()
    };
    assert_eq!(code(api.delete("a", &other).await), 409);
    api.get("a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_with_finalizers_stays_until_they_are_gone() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let held: ConfigMap = serde_json::from_value(
        json!({"metadata": {"name": "a", "finalizers": ["example.com/hold"]}}),
    )
    .unwrap();
    api.create(&PostParams::default(), &held).await.unwrap();
    let marked = api
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert!(marked.metadata.deletion_timestamp.is_some());
    let again = api
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(
        again.resource_version(),
        marked.resource_version(),
        "a second deletion changes nothing"
    );
    let more =
        Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}));
    assert_eq!(
        code(api.patch("a", &PatchParams::default(), &more).await),
        422
    );
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let last = api
        .patch("a", &PatchParams::default(), &none)
        .await
        .unwrap();
    assert!(last.metadata.deletion_timestamp.is_some());
    assert_eq!(code(api.get("a").await), 404);
}

#[tokio::test(start_paused = true)]
async fn string_data_of_a_secret_becomes_data() {
    let server = server();
    let api: Api<Secret> = Api::default_namespaced(client(&server));
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}}))
            .unwrap();
    let made = api.create(&PostParams::default(), &secret).await.unwrap();
    assert_eq!(made.data.unwrap()["k"].0, b"v");
    assert_eq!(made.string_data, None);
    assert_eq!(made.type_.as_deref(), Some("Opaque"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_created_in_a_namespace_that_is_missing_or_going() {
    let server = server();
    let client = client(&server);
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "shop");
    assert_eq!(
        message(
            api.create(&PostParams::default(), &config_map("a", "1"))
                .await
        ),
        "namespaces \"shop\" not found"
    );
    let namespaces: Api<Namespace> = Api::all(client);
    let ns: Namespace = serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
    namespaces
        .create(&PostParams::default(), &ns)
        .await
        .unwrap();
    let held: ConfigMap = serde_json::from_value(
        json!({"metadata": {"name": "h", "finalizers": ["example.com/hold"]}}),
    )
    .unwrap();
    api.create(&PostParams::default(), &held).await.unwrap();
    namespaces
        .delete("shop", &DeleteParams::default())
        .await
        .unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    let refused = api
        .create(&PostParams::default(), &config_map("a", "1"))
        .await;
    assert_eq!(
        message(refused),
        "configmaps \"a\" is forbidden: unable to create new content in namespace shop because it is being terminated"
    );
    let status = namespaces.get("shop").await.unwrap().status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Terminating"));
    let messages: Vec<String> = status
        .conditions
        .unwrap()
        .into_iter()
        .filter_map(|c| c.message)
        .collect();
    assert_eq!(
        messages,
        [
            "All resources successfully discovered",
            "All legacy kube types successfully parsed",
            "All content successfully deleted, may be waiting on finalization",
            "Some resources are remaining: configmaps. has 1 resource instances",
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances",
        ]
    );
    api.patch(
        "h",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"finalizers": []}})),
    )
    .await
    .unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    assert_eq!(code(namespaces.get("shop").await), 404);
}

#[tokio::test(start_paused = true)]
async fn standard_namespaces_exist_with_their_label_and_a_default_service_account() {
    use k8s_openapi::api::core::v1::ServiceAccount;
    let server = server();
    let client = client(&server);
    let namespaces = Api::<Namespace>::all(client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    let names: Vec<String> = namespaces.iter().map(ResourceExt::name_any).collect();
    assert_eq!(
        names,
        ["default", "kube-node-lease", "kube-public", "kube-system"]
    );
    assert!(
        namespaces
            .iter()
            .all(|n| n.labels()["kubernetes.io/metadata.name"] == n.name_any())
    );
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    Api::<ServiceAccount>::namespaced(client, "kube-system")
        .get("default")
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_acts_for_somebody_is_that_one_with_the_groups_that_follow() {
    let client = client(&server());
    let unauthenticated = "system:unauthenticated";
    let cases: [(&str, &[&str], &str, &[&str]); 5] = [
        ("ada", &[], "", &["system:authenticated"]),
        ("ada", &["x"], "7", &["x", "system:authenticated"]),
        ("system:anonymous", &[], "", &[unauthenticated]),
        ("system:anonymous", &["x"], "", &["x", unauthenticated]),
        (
            "system:serviceaccount:a:b",
            &[],
            "7",
            &[
                "system:serviceaccounts",
                "system:serviceaccounts:a",
                "system:authenticated",
            ],
        ),
    ];
    for (user, groups, uid, expected) in cases {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let mut request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header("content-type", "application/json")
            .header("impersonate-user", user);
        for group in groups {
            request = request.header("impersonate-group", *group);
        }
        if !uid.is_empty() {
            request = request.header("impersonate-uid", uid);
        }
        let request = request.body(serde_json::to_vec(&review).unwrap()).unwrap();
        let answer: serde_json::Value = client.request(request).await.unwrap();
        let told = &answer["status"]["userInfo"];
        assert_eq!(told["username"], user);
        assert_eq!(told["groups"], json!(expected), "{user} {groups:?}");
        assert_eq!(told["uid"].as_str().unwrap_or_default(), uid);
    }
}

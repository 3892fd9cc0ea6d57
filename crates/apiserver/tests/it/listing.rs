//! Lists: pages, selectors, past revisions, other forms of an object.

use futures::TryStreamExt;
use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{
    Api, DynamicObject, ListParams, PostParams, VersionMatch, WatchEvent, WatchParams,
};
use serde_json::{Value, json};

use crate::support::{client, code, install_widgets, message, server, widget, widget_api};
use crate::wire::ask;

async fn fill(api: &Api<ConfigMap>, count: usize) {
    for i in 0..count {
        let object = serde_json::from_value(json!({"metadata": {"name": format!("m{i:02}"), "labels": {"odd": (i % 2 == 1).to_string()}}})).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

fn names<T: ResourceExt>(list: impl IntoIterator<Item = T>) -> Vec<String> {
    list.into_iter().map(|o| o.name_any()).collect()
}

#[tokio::test(start_paused = true)]
async fn pages_show_the_state_of_the_first_page() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    fill(&api, 5).await;
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    api.delete("m03", &Default::default()).await.unwrap();
    fill(&Api::namespaced(client(&server), "kube-system"), 1).await;
    let mut all = names(first.items);
    let mut token = first.metadata.continue_;
    while let Some(at) = token.filter(|t| !t.is_empty()) {
        let page = api
            .list(&ListParams::default().limit(2).continue_token(&at))
            .await
            .unwrap();
        assert_eq!(
            page.metadata.resource_version,
            first.metadata.resource_version
        );
        all.extend(names(page.items));
        token = page.metadata.continue_;
    }
    assert_eq!(all, ["m00", "m01", "m02", "m03", "m04"]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_page_offers_to_go_on() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    fill(&api, 3).await;
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    api.delete("m00", &Default::default()).await.unwrap();
    server.compact();
    let refused = api
        .list(
            &ListParams::default()
                .limit(2)
                .continue_token(&first.metadata.continue_.unwrap()),
        )
        .await;
    let Err(kube::Error::Api(status)) = refused else {
        panic!("expected 410")
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    let token = status
        .metadata
        .as_ref()
        .and_then(|m| m.continue_.clone())
        .unwrap();
    let rest = api
        .list(&ListParams::default().limit(2).continue_token(&token))
        .await
        .unwrap();
    assert_eq!(names(rest.items), ["m02"]);
}

#[tokio::test(start_paused = true)]
async fn an_exact_revision_shows_the_past() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    fill(&api, 2).await;
    let then = server.revision().to_string();
    api.delete("m00", &Default::default()).await.unwrap();
    let past = api
        .list(
            &ListParams::default()
                .at(&then)
                .matching(VersionMatch::Exact),
        )
        .await
        .unwrap();
    assert_eq!(names(past.items), ["m00", "m01"]);
    let now = api
        .list(
            &ListParams::default()
                .at("0")
                .matching(VersionMatch::NotOlderThan),
        )
        .await
        .unwrap();
    assert_eq!(names(now.items), ["m01"]);
    assert_eq!(
        code(
            api.list(
                &ListParams::default()
                    .at("999999")
                    .matching(VersionMatch::NotOlderThan)
            )
            .await
        ),
        504
    );
}

#[tokio::test(start_paused = true)]
async fn selectors_select_and_unknown_fields_are_refused() {
    let server = server();
    let client = client(&server);
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    fill(&api, 4).await;
    assert_eq!(
        names(
            api.list(&ListParams::default().labels("odd in (true),!x"))
                .await
                .unwrap()
        ),
        ["m01", "m03"]
    );
    assert_eq!(
        names(
            api.list(&ListParams::default().fields("metadata.name=m02"))
                .await
                .unwrap()
        ),
        ["m02"]
    );
    let refused = api.list(&ListParams::default().fields("data.x=1")).await;
    assert_eq!(
        message(refused),
        "\"data.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    );

    install_widgets(&client).await;
    let widgets = widget_api(&client);
    widgets
        .create(&PostParams::default(), &widget("a", 1))
        .await
        .unwrap();
    assert_eq!(
        names(
            widgets
                .list(&ListParams::default().fields("spec.colour=red"))
                .await
                .unwrap()
        ),
        ["a"]
    );
    assert!(
        names(
            widgets
                .list(&ListParams::default().fields("spec.colour=blue"))
                .await
                .unwrap()
        )
        .is_empty()
    );
    assert_eq!(
        code(
            widgets
                .list(&ListParams::default().fields("spec.size=1"))
                .await
        ),
        400
    );

    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = |name: &str, node: Value| {
        serde_json::from_value::<Pod>(json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}})).unwrap()
    };
    pods.create(&PostParams::default(), &pod("here", json!("n1")))
        .await
        .unwrap();
    pods.create(&PostParams::default(), &pod("nowhere", Value::Null))
        .await
        .unwrap();
    assert_eq!(
        names(
            pods.list(&ListParams::default().fields("spec.nodeName=n1"))
                .await
                .unwrap()
        ),
        ["here"]
    );
    assert_eq!(
        names(
            pods.list(&ListParams::default().fields("spec.nodeName="))
                .await
                .unwrap()
        ),
        ["nowhere"]
    );
}

#[tokio::test(start_paused = true)]
async fn metadata_can_be_had_alone() {
    let server = server();
    let client = client(&server);
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    fill(&api, 2).await;
    let one = api.get_metadata("m00").await.unwrap();
    assert_eq!(one.types.unwrap().kind, "PartialObjectMetadata");
    assert_eq!(
        names(api.list_metadata(&ListParams::default()).await.unwrap()),
        ["m00", "m01"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_selector() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    fill(&api, 4).await;
    let deleted = api
        .delete_collection(
            &Default::default(),
            &ListParams::default().labels("odd=true"),
        )
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(names(deleted), ["m01", "m03"]);
    assert_eq!(
        names(api.list(&ListParams::default()).await.unwrap()),
        ["m00", "m02"]
    );
}

#[tokio::test(start_paused = true)]
async fn discovery_names_what_is_served() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    let found = kube::discovery::Discovery::new(client.clone())
        .run_aggregated()
        .await
        .unwrap();
    let (resource, capabilities) = found
        .groups()
        .flat_map(|g| g.recommended_resources())
        .find(|(r, _)| r.kind == "Widget")
        .unwrap();
    assert_eq!(
        (resource.plural.as_str(), resource.api_version.as_str()),
        ("widgets", "example.com/v1")
    );
    assert!(
        capabilities
            .subresources
            .iter()
            .any(|(s, _)| s.plural.ends_with("status"))
    );
    let plain = kube::discovery::Discovery::new(client.clone())
        .run()
        .await
        .unwrap();
    assert!(plain.has_group("apps") && plain.has_group("example.com"));
    let api: Api<DynamicObject> = Api::default_namespaced_with(client, &resource);
    assert!(names(api.list(&ListParams::default()).await.unwrap()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_from_the_future_is_refused_for_a_second_and_a_watch_waits_for_it() {
    let server = server();
    let client = client(&server);
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    fill(&api, 1).await;
    let future = server.revision() + 2;
    let path = "/api/v1/namespaces/default/configmaps";
    for at in [path.to_owned(), format!("{path}/m00")] {
        let path = format!("{at}?resourceVersion={future}");
        let answer = ask(Method::GET, &path).send(&server).await;
        assert_eq!(answer.code, 504, "{at}");
        let details = &answer.body["details"];
        assert_eq!(details["retryAfterSeconds"], 1, "{at}");
        assert_eq!(details["causes"][0]["reason"], "ResourceVersionTooLarge");
    }
    let params = WatchParams::default().timeout(5).disable_bookmarks();
    let events = api.watch(&params, &future.to_string()).await.unwrap();
    for name in ["x", "y", "z"] {
        let map = json!({"metadata": {"name": name}});
        let map: ConfigMap = serde_json::from_value(map).unwrap();
        api.create(&PostParams::default(), &map).await.unwrap();
    }
    let events: Vec<_> = events.try_collect().await.unwrap();
    let [WatchEvent::Added(only)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(only.name_any(), "z");
}

#[tokio::test(start_paused = true)]
async fn options_that_do_not_go_together_are_refused_for_lists_and_for_watches() {
    let server = server();
    let path = "/api/v1/configmaps";
    let initial = "sendInitialEvents is forbidden for list";
    let cases = [
        ("sendInitialEvents=true", initial),
        (
            "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=1",
            initial,
        ),
        (
            "watch=true&resourceVersionMatch=Exact&sendInitialEvents=true",
            "supported values: \"NotOlderThan\"",
        ),
        (
            "watch=true&resourceVersionMatch=NotOlderThan",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        (
            "watch=true&sendInitialEvents=true",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
    ];
    for (query, why) in cases {
        let answer = ask(Method::GET, &format!("{path}?{query}"))
            .send(&server)
            .await;
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert_eq!(answer.code, 422, "{query}");
        assert!(message.contains(why), "{query}: {message}");
    }
    let good =
        "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1";
    let answer = ask(Method::GET, &format!("{path}?{good}"))
        .send(&server)
        .await;
    assert_eq!(answer.code, 200);
}

#[tokio::test(start_paused = true)]
async fn a_page_tells_how_many_are_left_unless_something_is_selected() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    fill(&api, 5).await;
    let page = ListParams::default().limit(2);
    let first = api.list(&page).await.unwrap().metadata;
    assert_eq!(first.remaining_item_count, Some(3));
    let more = page.clone().continue_token(&first.continue_.unwrap());
    let second = api.list(&more).await.unwrap().metadata;
    assert_eq!(second.remaining_item_count, Some(1));
    let more = page.clone().continue_token(&second.continue_.unwrap());
    let last = api.list(&more).await.unwrap().metadata;
    assert_eq!(
        (
            last.remaining_item_count,
            last.continue_.unwrap_or_default()
        ),
        (None, String::new())
    );
    let selected = api.list(&page.labels("odd=false")).await.unwrap().metadata;
    assert!(selected.continue_.is_some());
    assert_eq!(selected.remaining_item_count, None);
}

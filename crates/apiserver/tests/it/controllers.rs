//! What runs in the background, and a controller as a client: garbage collection, events, access, tokens.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event as NewEvent;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions,
    PropagationPolicy, WatchEvent, WatchParams,
};
use kube::runtime::controller::Action;
use kube::runtime::{Controller, watcher};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::support::{client, code, install_widgets, object, server, widget, widget_api, widgets};

/// Lets the background catch up.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

fn child(name: &str, owner: &DynamicObject, block: bool) -> ConfigMap {
    let reference = json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": owner.name_any(), "uid": owner.uid().unwrap(), "blockOwnerDeletion": block});
    serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": [reference]}}))
        .unwrap()
}

async fn family(client: &Client) -> (Api<DynamicObject>, Api<ConfigMap>, DynamicObject) {
    install_widgets(client).await;
    let parents = widget_api(client);
    let children: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let parent = parents
        .create(&PostParams::default(), &widget("p", 1))
        .await
        .unwrap();
    children
        .create(&PostParams::default(), &child("c", &parent, true))
        .await
        .unwrap();
    settle().await;
    (parents, children, parent)
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_owner() {
    let server = server();
    let (parents, children, _) = family(&client(&server)).await;
    children.get("c").await.unwrap();
    parents.delete("p", &DeleteParams::default()).await.unwrap();
    settle().await;
    assert_eq!(code(children.get("c").await), 404);
}

#[tokio::test(start_paused = true)]
async fn an_owner_deleted_in_the_foreground_waits_for_its_dependents() {
    let server = server();
    let (parents, children, _) = family(&client(&server)).await;
    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
    children
        .patch("c", &PatchParams::default(), &hold)
        .await
        .unwrap();
    let foreground = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    parents.delete("p", &foreground).await.unwrap();
    settle().await;
    assert_eq!(
        parents.get("p").await.unwrap().finalizers(),
        ["foregroundDeletion"]
    );
    assert!(
        children
            .get("c")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    children
        .patch(
            "c",
            &PatchParams::default(),
            &Patch::Merge(json!({"metadata": {"finalizers": null}})),
        )
        .await
        .unwrap();
    settle().await;
    assert_eq!(code(parents.get("p").await), 404);
}

#[tokio::test(start_paused = true)]
async fn orphans_stay_without_a_reference() {
    let server = server();
    let (parents, children, _) = family(&client(&server)).await;
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    parents.delete("p", &orphan).await.unwrap();
    settle().await;
    assert_eq!(code(parents.get("p").await), 404);
    assert!(
        children
            .get("c")
            .await
            .unwrap()
            .owner_references()
            .is_empty()
    );
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_another_uid_is_absent_and_one_of_an_unknown_kind_is_not() {
    let server = server();
    let (parents, children, parent) = family(&client(&server)).await;
    let mut stale = parent.clone();
    stale.metadata.uid = Some("00000000-0000-4000-8000-000000000000".into());
    children
        .create(&PostParams::default(), &child("stale", &stale, false))
        .await
        .unwrap();
    let unknown: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "unknown", "ownerReferences": [{"apiVersion": "x.io/v1", "kind": "X", "name": "x", "uid": "1"}]}})).unwrap();
    children
        .create(&PostParams::default(), &unknown)
        .await
        .unwrap();
    settle().await;
    assert_eq!(code(children.get("stale").await), 404);
    children.get("unknown").await.unwrap();
    parents.get("p").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_owner_goes_when_its_last_dependent_blocks_it_no_more() {
    let changes = [
        json!([{"op": "replace", "path": "/metadata/ownerReferences/0/blockOwnerDeletion", "value": false}]),
        json!([{"op": "remove", "path": "/metadata/ownerReferences/0/blockOwnerDeletion"}]),
        json!([{"op": "remove", "path": "/metadata/ownerReferences"}]),
    ];
    for change in changes {
        let server = server();
        let (parents, children, _) = family(&client(&server)).await;
        let hold = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}}));
        let params = PatchParams::default();
        children.patch("c", &params, &hold).await.unwrap();
        parents
            .delete("p", &DeleteParams::foreground())
            .await
            .unwrap();
        settle().await;
        parents.get("p").await.unwrap();
        let patch: json_patch::Patch = serde_json::from_value(change.clone()).unwrap();
        let patch = Patch::Json::<()>(patch);
        children.patch("c", &params, &patch).await.unwrap();
        settle().await;
        assert_eq!(code(parents.get("p").await), 404, "{change}");
        children.get("c").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn dependents_of_a_kind_that_nobody_serves_are_judged_when_it_is_served() {
    let server = server();
    let client = client(&server);
    let children: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for (name, version, kind) in [
        ("c", "v1", "Widget"),
        ("d", "v9", "Widget"),
        ("e", "v1", "Gadget"),
    ] {
        let owner = json!({"apiVersion": format!("example.com/{version}"), "kind": kind, "name": "never", "uid": "1"});
        let child = json!({"metadata": {"name": name, "ownerReferences": [owner]}});
        let child: ConfigMap = serde_json::from_value(child).unwrap();
        children
            .create(&PostParams::default(), &child)
            .await
            .unwrap();
    }
    settle().await;
    children.get("c").await.unwrap();
    install_widgets(&client).await;
    settle().await;
    assert_eq!(code(children.get("c").await), 404);
    children.get("d").await.unwrap();
    children.get("e").await.unwrap();
}

/// A job that owns the ConfigMap `c`.
async fn job(client: &Client, owners: Value) -> (Api<Job>, Api<ConfigMap>) {
    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    let job = json!({"metadata": {"name": "j", "ownerReferences": owners},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let job: Job = serde_json::from_value(job).unwrap();
    let job = jobs.create(&PostParams::default(), &job).await.unwrap();
    let owner = job.controller_owner_ref(&()).unwrap();
    let child = json!({"metadata": {"name": "c", "ownerReferences": [owner]}});
    let child: ConfigMap = serde_json::from_value(child).unwrap();
    let children: Api<ConfigMap> = Api::default_namespaced(client.clone());
    children
        .create(&PostParams::default(), &child)
        .await
        .unwrap();
    settle().await;
    (jobs, children)
}

#[tokio::test(start_paused = true)]
async fn a_job_leaves_its_dependents_behind_unless_told_otherwise() {
    let policies = [
        (DeleteParams::default(), true),
        (DeleteParams::background(), false),
        (DeleteParams::foreground(), false),
    ];
    for (policy, stays) in policies {
        let server = server();
        let (jobs, children) = job(&client(&server), json!([])).await;
        jobs.delete("j", &policy).await.unwrap();
        settle().await;
        assert_eq!(code(jobs.get("j").await), 404);
        let child = children.get_opt("c").await.unwrap();
        assert_eq!(child.is_some(), stays, "{policy:?}");
        assert!(child.is_none_or(|c| c.owner_references().is_empty()));
    }
}

#[tokio::test(start_paused = true)]
async fn the_dependents_of_a_job_go_with_it_when_its_own_owner_goes() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    let parents = widget_api(&client);
    let parent = parents
        .create(&PostParams::default(), &widget("p", 1))
        .await
        .unwrap();
    let owner = parent.controller_owner_ref(&widgets()).unwrap();
    let (jobs, children) = job(&client, json!([owner])).await;
    parents.delete("p", &DeleteParams::default()).await.unwrap();
    settle().await;
    assert_eq!(code(jobs.get("j").await), 404);
    assert_eq!(code(children.get("c").await), 404);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_takes_its_jobs_along() {
    let server = server();
    let client = client(&server);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = json!({"metadata": {"name": "n"}});
    let namespace: Namespace = serde_json::from_value(namespace).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let jobs: Api<Job> = Api::namespaced(client, "n");
    let job = json!({"metadata": {"name": "j"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let job: Job = serde_json::from_value(job).unwrap();
    jobs.create(&PostParams::default(), &job).await.unwrap();
    let mark = server.revision();
    namespaces
        .delete("n", &DeleteParams::default())
        .await
        .unwrap();
    settle().await;
    assert_eq!(code(namespaces.get("n").await), 404);
    // Nothing was asked to wait for dependents: the job went in one step.
    let params = WatchParams::default().timeout(1).disable_bookmarks();
    let events = jobs.watch(&params, &mark.to_string()).await.unwrap();
    let events: Vec<_> = events.try_collect().await.unwrap();
    assert!(
        matches!(&events[..], [WatchEvent::Deleted(_)]),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_has_two_faces() {
    let server = server();
    let client = client(&server);
    let new: Api<NewEvent> = Api::default_namespaced(client.clone());
    let event: NewEvent = serde_json::from_value(json!({
        "metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Go", "reason": "Gone", "type": "Normal", "note": "hello",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default", "uid": "u"}, "reportingController": "c", "reportingInstance": "c-0",
    }))
    .unwrap();
    new.create(&PostParams::default(), &event).await.unwrap();
    let old: Api<Event> = Api::default_namespaced(client);
    let found = old
        .list(
            &ListParams::default()
                .fields("involvedObject.uid=u,involvedObject.kind=Pod,reason=Gone"),
        )
        .await
        .unwrap();
    let seen = &found.items[0];
    assert_eq!(
        (
            seen.message.as_deref(),
            seen.involved_object.name.as_deref()
        ),
        (Some("hello"), Some("p"))
    );
    let patch = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}});
    let patched = new
        .patch("e", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    assert_eq!(
        (patched.note.as_deref(), patched.series.unwrap().count),
        (Some("hello"), 2)
    );
    tokio::time::sleep(Duration::from_secs(3599)).await;
    old.get("e").await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(code(old.get("e").await), 404, "events fade after an hour");
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_node_stops_gracefully() {
    let server = server();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    let pod: Pod = serde_json::from_value(
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
    )
    .unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let _: Value = pods
        .create_subresource("binding", "p", &PostParams::default(), &binding)
        .await
        .unwrap();
    let marked = pods
        .delete("p", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    assert_eq!(marked.metadata.deletion_grace_period_seconds, Some(30));
    pods.get("p").await.unwrap();
    pods.delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert_eq!(code(pods.get("p").await), 404);
}

#[tokio::test(start_paused = true)]
async fn a_service_account_token_acts_as_its_account() {
    let server = farshore_apiserver::ApiServer::new(farshore_apiserver::Options {
        rbac: true,
        ..Default::default()
    });
    drop(server.spawn(Default::default()));
    let admin = client(&server);
    settle().await;
    let accounts: Api<ServiceAccount> = Api::default_namespaced(admin.clone());
    let request = serde_json::from_value(
        json!({"metadata": {}, "spec": {"audiences": [], "expirationSeconds": 600}}),
    )
    .unwrap();
    let token = accounts
        .create_token_request("default", &PostParams::default(), &request)
        .await
        .unwrap()
        .status
        .unwrap()
        .token;
    let own = Client::new(server.service(Some(&token)), "default");
    let maps: Api<ConfigMap> = Api::default_namespaced(own);
    assert_eq!(code(maps.list(&ListParams::default()).await), 403);
    let binding = object(
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]}),
    );
    let bindings: Api<DynamicObject> = Api::all_with(
        admin,
        &crate::support::resource(
            ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding"),
            "clusterrolebindings",
        ),
    );
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();
    maps.list(&ListParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(601)).await;
    assert_eq!(
        code(maps.list(&ListParams::default()).await),
        401,
        "the token expired"
    );
    let nobody = Client::new(server.service(None), "default");
    assert_eq!(
        code(
            Api::<ConfigMap>::default_namespaced(nobody.clone())
                .list(&ListParams::default())
                .await
        ),
        403
    );
    nobody.apiserver_version().await.unwrap();
}

/// A controller that copies a widget's size into its status and into a ConfigMap it owns.
async fn run_controller(client: Client) {
    struct Ctx(Client);
    let resource = widgets();
    let parents: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &resource);
    let children: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let reconcile = |widget: Arc<DynamicObject>, ctx: Arc<Ctx>| async move {
        let resource = widgets();
        let size = widget.data["spec"]["size"].clone();
        let reference = widget.controller_owner_ref(&resource).unwrap();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": widget.name_any(), "ownerReferences": [reference]}, "data": {"size": size.to_string()}});
        let params = PatchParams::apply("ctl").force();
        Api::<ConfigMap>::default_namespaced(ctx.0.clone())
            .patch(&widget.name_any(), &params, &Patch::Apply(map))
            .await?;
        if widget.data.pointer("/status/ready") != Some(&size) {
            let status = json!({"apiVersion": "example.com/v1", "kind": "Widget", "status": {"ready": size}});
            Api::<DynamicObject>::default_namespaced_with(ctx.0.clone(), &resource)
                .patch_status(&widget.name_any(), &params, &Patch::Apply(status))
                .await?;
        }
        Ok::<_, kube::Error>(Action::await_change())
    };
    Controller::new_with(parents, watcher::Config::default(), resource)
        .owns(children, watcher::Config::default())
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_secs(1)),
            Arc::new(Ctx(client)),
        )
        .for_each(|_| async {})
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_settles_and_then_writes_nothing() {
    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    tokio::spawn(run_controller(client.clone()));
    let api = widget_api(&client);
    for i in 0..20 {
        api.create(&PostParams::default(), &widget(&format!("w{i:02}"), i))
            .await
            .unwrap();
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    assert_eq!(
        maps.list(&ListParams::default()).await.unwrap().items.len(),
        20
    );
    assert!(
        api.list(&ListParams::default())
            .await
            .unwrap()
            .iter()
            .all(|w| w.data["status"]["ready"] == w.data["spec"]["size"])
    );
    maps.delete("w03", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    maps.get("w03").await.unwrap();
    let (mark, revision) = (server.request_log().mark(), server.revision());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(server.revision(), revision);
    assert!(server.request_log().writes_since(mark).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_finalizer_helper_and_the_recorder_of_kube_work() {
    use kube::runtime::events::{Event as Note, EventType, Recorder, Reporter};
    use kube::runtime::finalizer::{Event as Step, finalizer};

    let server = server();
    let client = client(&server);
    install_widgets(&client).await;
    let api = widget_api(&client);
    let made = Arc::new(
        api.create(&PostParams::default(), &widget("a", 1))
            .await
            .unwrap(),
    );
    let step = |step: Step<DynamicObject>| async move {
        match step {
            Step::Apply(_) => Ok::<_, kube::Error>(Action::await_change()),
            Step::Cleanup(_) => Ok(Action::requeue(Duration::from_secs(7))),
        }
    };
    finalizer(&api, "example.com/f", made, step).await.unwrap();
    assert_eq!(api.get("a").await.unwrap().finalizers(), ["example.com/f"]);
    let going = api
        .delete("a", &DeleteParams::default())
        .await
        .unwrap()
        .left()
        .unwrap();
    let action = finalizer(&api, "example.com/f", Arc::new(going), step)
        .await
        .unwrap();
    assert_eq!(action, Action::requeue(Duration::from_secs(7)));
    assert_eq!(code(api.get("a").await), 404);

    let recorder = Recorder::new(
        client.clone(),
        Reporter {
            controller: "c".into(),
            instance: Some("c-0".into()),
        },
    );
    let note = Note {
        type_: EventType::Normal,
        reason: "R".into(),
        note: Some("n".into()),
        action: "A".into(),
        secondary: None,
    };
    let widget = api
        .create(&PostParams::default(), &widget("b", 1))
        .await
        .unwrap();
    let reference = widget.object_ref(&widgets());
    recorder.publish(&note, &reference).await.unwrap();
    recorder.publish(&note, &reference).await.unwrap();
    let events = Api::<Event>::default_namespaced(client)
        .list(&ListParams::default())
        .await
        .unwrap();
    assert_eq!(events.items.len(), 1);
    assert_eq!(events.items[0].series.as_ref().unwrap().count, Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_on_many_threads_lose_no_update() {
    let server = server();
    let api: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let start: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "n"}, "data": {"n": "0"}})).unwrap();
    let first = api.create(&PostParams::default(), &start).await.unwrap();
    let tasks = (0..8).map(|_| {
        let api = api.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                loop {
                    let mut map = api.get("n").await.unwrap();
                    let data = map.data.as_mut().unwrap();
                    let next = data["n"].parse::<i64>().unwrap() + 1;
                    data.insert("n".into(), next.to_string());
                    match api.replace("n", &PostParams::default(), &map).await {
                        Ok(_) => break,
                        Err(kube::Error::Api(status)) if status.code == 409 => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(api.get("n").await.unwrap().data.unwrap()["n"], "160");
    let watch = kube::api::WatchParams::default()
        .timeout(1)
        .disable_bookmarks();
    let events = api
        .watch(&watch, &first.resource_version().unwrap())
        .await
        .unwrap();
    let versions: Vec<u64> = events
        .filter_map(|e| async move {
            match e.unwrap() {
                kube::api::WatchEvent::Modified(o) => {
                    o.resource_version().unwrap().parse::<u64>().ok()
                }
                _ => None,
            }
        })
        .collect()
        .await;
    assert_eq!(versions.len(), 160);
    assert!(versions.is_sorted());
}

#[tokio::test(start_paused = true)]
async fn owners_in_a_circle_do_not_wait_for_each_other() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let own = |owner: &ConfigMap| json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid().unwrap(), "blockOwnerDeletion": true}]);
    let plain: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    let a = maps.create(&PostParams::default(), &plain).await.unwrap();
    let second = json!({"metadata": {"name": "b", "ownerReferences": own(&a)}});
    let b = maps
        .create(
            &PostParams::default(),
            &serde_json::from_value(second).unwrap(),
        )
        .await
        .unwrap();
    let circle = Patch::Merge(json!({"metadata": {"ownerReferences": own(&b)}}));
    maps.patch("a", &PatchParams::default(), &circle)
        .await
        .unwrap();
    settle().await;
    maps.delete(
        "a",
        &DeleteParams {
            propagation_policy: Some(PropagationPolicy::Foreground),
            ..DeleteParams::default()
        },
    )
    .await
    .unwrap();
    settle().await;
    assert_eq!(
        (code(maps.get("a").await), code(maps.get("b").await)),
        (404, 404)
    );
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_role_gets_the_rules_of_those_it_selects() {
    use k8s_openapi::api::rbac::v1::ClusterRole;
    let server = server();
    let roles: Api<ClusterRole> = Api::all(client(&server));
    let settle = || tokio::time::sleep(std::time::Duration::from_secs(1));
    settle().await;
    let before = server.revision();
    settle().await;
    assert_eq!(
        server.revision(),
        before,
        "the default roles are right from the start"
    );
    let view = roles.get("view").await.unwrap();
    assert!(!view.rules.unwrap().is_empty());
    let part = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "widgets-view", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["get"]}],
    }));
    roles
        .create(&Default::default(), &part.unwrap())
        .await
        .unwrap();
    settle().await;
    let has = |role: ClusterRole| {
        let rules = role.rules.unwrap();
        rules
            .iter()
            .any(|r| r.api_groups.as_ref().is_some_and(|g| g == &["example.com"]))
    };
    assert!(has(roles.get("view").await.unwrap()));
    roles
        .delete("widgets-view", &Default::default())
        .await
        .unwrap();
    settle().await;
    assert!(!has(roles.get("view").await.unwrap()));
}

/// A pod on a node.
async fn running_pod(client: &Client, spec: Value) -> Api<Pod> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let mut pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json_patch::merge(&mut pod["spec"], &spec);
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let _: Value = pods
        .create_subresource("binding", "p", &PostParams::default(), &binding)
        .await
        .unwrap();
    pods
}

/// Seconds of grace, and until when.
fn leaving(pod: &Pod) -> (i64, i64) {
    let until = pod.metadata.deletion_timestamp.as_ref().unwrap();
    let seconds = pod.metadata.deletion_grace_period_seconds.unwrap();
    (seconds, until.0.as_second())
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_below_zero_is_one_second() {
    let client = client(&server());
    let pods = running_pod(&client, json!({"terminationGracePeriodSeconds": -5})).await;
    let marked = pods.delete("p", &DeleteParams::default()).await.unwrap();
    assert_eq!(leaving(&marked.left().unwrap()).0, 1);
    let client = crate::support::client(&server());
    let pods = running_pod(&client, json!({})).await;
    let path = "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=-1";
    let request = http::Request::delete(path).body(Vec::new()).unwrap();
    let marked: Pod = client.request(request).await.unwrap();
    assert_eq!(leaving(&marked).0, 1);
    pods.get("p").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_that_is_made_shorter_counts_from_the_first_deletion() {
    let client = client(&server());
    let pods = running_pod(&client, json!({})).await;
    let with = |seconds: u32| DeleteParams::default().grace_period(seconds);
    let first = pods.delete("p", &with(100)).await.unwrap().left().unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let second = pods.delete("p", &with(40)).await.unwrap().left().unwrap();
    assert_eq!(leaving(&second), (40, leaving(&first).1 - 60));
    let longer = pods.delete("p", &with(90)).await.unwrap().left().unwrap();
    assert_eq!(leaving(&longer), leaving(&second));
    let unasked = pods.delete("p", &DeleteParams::default()).await.unwrap();
    assert_eq!(leaving(&unasked.left().unwrap()), leaving(&second));
}

#[tokio::test(start_paused = true)]
async fn of_a_pod_only_what_may_change_may_change() {
    let client = client(&server());
    let toleration = json!({"key": "a", "operator": "Exists", "tolerationSeconds": 5});
    let spec = json!({"tolerations": [toleration], "activeDeadlineSeconds": 50});
    let pods = running_pod(&client, spec).await;
    let change = async |op: &str, path: &str, value: Value| {
        let patch = json!([{"op": op, "path": format!("/spec/{path}"), "value": value}]);
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        let patch = Patch::Json::<()>(patch);
        let patched = pods.patch("p", &PatchParams::default(), &patch).await;
        patched.map(|_| ())
    };
    for (op, path, value) in [
        ("replace", "containers/0/image", json!("j")),
        ("replace", "tolerations/0/tolerationSeconds", json!(9)),
        (
            "add",
            "tolerations/-",
            json!({"key": "b", "operator": "Exists"}),
        ),
        ("replace", "activeDeadlineSeconds", json!(40)),
        ("add", "imagePullSecrets", json!([])),
    ] {
        change(op, path, value).await.expect(path);
    }
    let only = "spec: Forbidden: pod updates may not change fields other than";
    for (op, path, value, why) in [
        (
            "remove",
            "tolerations/0",
            json!(null),
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
        ),
        (
            "replace",
            "activeDeadlineSeconds",
            json!(60),
            "spec.activeDeadlineSeconds: Invalid value: 60: must be less than or equal to previous value",
        ),
        (
            "remove",
            "activeDeadlineSeconds",
            json!(null),
            "must not update from a positive integer to nil value",
        ),
        (
            "add",
            "containers/-",
            json!({"name": "d", "image": "j"}),
            "spec.containers: Forbidden: pod updates may not add or remove containers",
        ),
        ("add", "containers/0/args", json!(["x"]), only),
        ("replace", "nodeName", json!("n2"), only),
        ("replace", "terminationGracePeriodSeconds", json!(1), only),
    ] {
        let refused = crate::support::message(change(op, path, value).await);
        assert!(refused.contains(why), "{op} {path}: {refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_job_completions_selector_and_template_stay() {
    let client = client(&server());
    let (jobs, _) = job(&client, json!([])).await;
    let change = async |change: Value| {
        let patch = Patch::Merge(json!({"spec": change}));
        let patched = jobs.patch("j", &PatchParams::default(), &patch).await;
        patched.map(|_| ())
    };
    change(json!({"parallelism": 3})).await.unwrap();
    change(json!({"suspend": true})).await.unwrap();
    // A suspended job that never started may still be told where to run.
    let place = json!({"template": {"spec": {"nodeSelector": {"a": "b"}}}});
    change(place.clone()).await.unwrap();
    change(json!({"suspend": false})).await.unwrap();
    for (bad, field) in [
        (json!({"completions": 2}), "spec.completions"),
        (
            json!({"selector": {"matchLabels": {"x": "y"}}}),
            "spec.selector",
        ),
        (
            json!({"template": {"spec": {"nodeSelector": null}}}),
            "spec.template",
        ),
        (
            json!({"template": {"metadata": {"labels": {"x": "y"}}}}),
            "spec.template",
        ),
        (
            json!({"template": {"spec": {"containers": [{"name": "c", "image": "j"}]}}}),
            "spec.template",
        ),
        (json!({"completionMode": "Indexed"}), "spec.completionMode"),
    ] {
        let refused = crate::support::message(change(bad.clone()).await);
        assert!(
            refused.contains(&format!("{field}: Invalid value:")),
            "{bad}: {refused}"
        );
        assert!(refused.contains("field is immutable"), "{bad}: {refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_an_account_in_a_missing_namespace_misses_the_namespace() {
    let pods: Api<Pod> = Api::namespaced(client(&server()), "nowhere");
    let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "a", "containers": [{"name": "c", "image": "i"}]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let refused = pods.create(&PostParams::default(), &pod).await;
    assert_eq!(
        crate::support::message(refused),
        "namespaces \"nowhere\" not found"
    );
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_neither_binds_nor_evicts_a_pod() {
    let client = client(&server());
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let made = pods.create(&PostParams::default(), &pod).await.unwrap();
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let _: Value = pods
        .create_subresource("binding", "p", &dry, &binding)
        .await
        .unwrap();
    let eviction = json!({"metadata": {"name": "p"}});
    let _: Value = pods
        .create_subresource("eviction", "p", &dry, &eviction)
        .await
        .unwrap();
    assert_eq!(pods.get("p").await.unwrap(), made);
    let other = json!({"metadata": {"name": "other"}});
    let post = PostParams::default();
    let refused: kube::Result<Value> = pods
        .create_subresource("eviction", "p", &post, &other)
        .await;
    assert_eq!(
        crate::support::message(refused),
        "name in URL does not match name in Eviction object"
    );
    assert_eq!(pods.get("p").await.unwrap(), made);
    let _: Value = pods
        .create_subresource("eviction", "p", &PostParams::default(), &eviction)
        .await
        .unwrap();
    assert_eq!(code(pods.get("p").await), 404);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_deleted_only_as_the_one_that_was_meant() {
    let client = client(&server());
    let pods = running_pod(&client, json!({})).await;
    let pod = pods.get("p").await.unwrap();
    let meant = |uid: Option<String>, resource_version: Option<String>| DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version,
        }),
        ..DeleteParams::default()
    };
    for other in [
        meant(Some("x".into()), None),
        meant(pod.uid(), Some("1".into())),
    ] {
        assert_eq!(code(pods.delete("p", &other).await), 409);
    }
    assert_eq!(pods.get("p").await.unwrap(), pod);
    let this = meant(pod.uid(), pod.resource_version());
    let marked = pods.delete("p", &this).await.unwrap().left().unwrap();
    assert_eq!(leaving(&marked).0, 30);
    // It is no longer at that version.
    assert_eq!(code(pods.delete("p", &this).await), 409);
}

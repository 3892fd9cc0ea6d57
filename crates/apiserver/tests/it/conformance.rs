//! What the conformance tests of Kubernetes ask of an API server and other modules here do not, and the map from those
//! tests to ours (`tests/conformance.yaml`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use farshore_apiserver::ApiServer;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::admission::{MERGE, MUTATING, VALIDATING, map, patch, webhook, world};
use crate::support::{server, widget_crd};
use crate::wire::{JSON, MAPS, ask};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A test of Kubernetes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// As `testname` in test/conformance/testdata/conformance.yaml, and the sig it belongs to.
    name: String,
    #[allow(dead_code)] // For readers.
    sig: String,
    /// Our tests: functions, `session NAME` (of kubectl) or `script NAME` (of requests).
    #[serde(default)]
    by: Vec<String>,
    /// Why there is none.
    #[serde(default)]
    why: String,
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.to_str().unwrap().ends_with(ending) {
            found.push(path);
        }
    }
}

fn texts(folder: &Path, ending: &str) -> String {
    let mut found = Vec::new();
    files(folder, ending, &mut found);
    found
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect()
}

#[test]
fn the_map_of_conformance_tests_names_what_there_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("tests/conformance.yaml")).unwrap();
    let rows: Vec<Row> = serde_saphyr::from_str(&text).unwrap();
    let source = texts(&root.join("src"), ".rs") + &texts(&root.join("tests"), ".rs");
    let scripts = texts(&root.join("tests/differential"), ".yaml");
    let mut names = BTreeSet::new();
    for row in &rows {
        assert!(
            names.insert((&row.name, &row.why, &row.by)),
            "{} stands twice",
            row.name
        );
        assert!(
            row.by.is_empty() != row.why.is_empty(),
            "{}: either tests or a reason",
            row.name
        );
        for test in &row.by {
            let there = match test.split_once(' ') {
                Some(("session", name)) => root
                    .join(format!("tests/sessions/{name}.session"))
                    .is_file(),
                Some(("script", name)) => scripts.contains(&format!("- script: {name}\n")),
                _ => source.contains(&format!("fn {test}()")),
            };
            assert!(there, "{}: there is no {test}", row.name);
        }
    }
    let covered = rows.iter().filter(|row| !row.by.is_empty()).count();
    let line = format!("{covered} of {} covered", rows.len());
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    assert!(readme.contains(&line), "README.md should say: {line}");
}

async fn send(server: &ApiServer, method: Method, path: &str, content: &str, body: Value) -> Value {
    let text = format!("{method} {path}");
    let answer = ask(method, path)
        .body(content, body.to_string())
        .send(server)
        .await;
    assert!(answer.code < 300, "{text}: {} {}", answer.code, answer.body);
    answer.body
}

async fn get(server: &ApiServer, path: &str) -> Value {
    let answer = ask(Method::GET, path).send(server).await;
    assert!(
        answer.code < 300,
        "GET {path}: {} {}",
        answer.code,
        answer.body
    );
    answer.body
}

async fn absent(server: &ApiServer, path: &str) -> bool {
    ask(Method::GET, path).send(server).await.code == 404
}

/// Lets the background catch up.
async fn settle() {
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
}

/// The least that each kind needs, and a status where it has one; `NS` stands for a namespaced path.
fn lives() -> Vec<(&'static str, Value, Value)> {
    let none = Value::Null;
    let pods = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let workload = json!({"selector": {"matchLabels": {"a": "b"}}, "template": pods});
    let mut once = pods.clone();
    once["spec"]["restartPolicy"] = json!("Never");
    let replicas = json!({"replicas": 1});
    let rule = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let subject = json!([{"kind": "User", "name": "jane"}]);
    let role =
        |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "r"});
    vec![
        ("/api/v1/nodes", json!({}), json!({"phase": "Running"})),
        ("/api/v1/NS/pods", pods.clone(), json!({"phase": "Running"})),
        (
            "/api/v1/NS/podtemplates",
            json!({"template": pods}),
            none.clone(),
        ),
        (
            "/api/v1/NS/services",
            json!({"spec": {"ports": [{"port": 80}]}}),
            json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}),
        ),
        (
            "/api/v1/NS/endpoints",
            json!({"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]}),
            none.clone(),
        ),
        (
            "/api/v1/NS/configmaps",
            json!({"data": {"a": "b"}}),
            none.clone(),
        ),
        (
            "/api/v1/NS/secrets",
            json!({"stringData": {"a": "b"}}),
            none.clone(),
        ),
        ("/api/v1/NS/serviceaccounts", json!({}), none.clone()),
        (
            "/api/v1/persistentvolumes",
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}}),
            json!({"phase": "Available", "message": "m"}),
        ),
        (
            "/api/v1/NS/persistentvolumeclaims",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
            json!({"phase": "Bound"}),
        ),
        (
            "/api/v1/NS/replicationcontrollers",
            json!({"spec": {"selector": {"a": "b"}, "template": pods}}),
            replicas.clone(),
        ),
        (
            "/api/v1/NS/events",
            json!({"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "R", "message": "m"}),
            none.clone(),
        ),
        (
            "/apis/events.k8s.io/v1/NS/events",
            json!({"regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "R", "note": "n", "action": "A", "type": "Normal", "reportingController": "c", "reportingInstance": "i", "eventTime": "2026-01-02T03:04:05.000000Z"}),
            none.clone(),
        ),
        (
            "/api/v1/NS/resourcequotas",
            json!({"spec": {"hard": {"pods": "1"}}}),
            json!({"hard": {"pods": "1"}}),
        ),
        (
            "/api/v1/NS/limitranges",
            json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}}),
            none.clone(),
        ),
        (
            "/apis/apps/v1/NS/deployments",
            json!({"spec": workload}),
            replicas.clone(),
        ),
        (
            "/apis/apps/v1/NS/replicasets",
            json!({"spec": workload}),
            replicas.clone(),
        ),
        (
            "/apis/apps/v1/NS/daemonsets",
            json!({"spec": workload}),
            json!({"currentNumberScheduled": 1, "numberMisscheduled": 0, "desiredNumberScheduled": 1, "numberReady": 0}),
        ),
        (
            "/apis/apps/v1/NS/statefulsets",
            json!({"spec": {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": pods}}),
            replicas.clone(),
        ),
        (
            "/apis/apps/v1/NS/controllerrevisions",
            json!({"revision": 1, "data": {"a": "b"}}),
            none.clone(),
        ),
        (
            "/apis/batch/v1/NS/jobs",
            json!({"spec": {"suspend": true, "template": once}}),
            json!({"active": 1}),
        ),
        (
            "/apis/batch/v1/NS/cronjobs",
            json!({"spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": once}}}}),
            json!({"lastScheduleTime": "2026-01-02T03:04:05Z"}),
        ),
        (
            "/apis/autoscaling/v2/NS/horizontalpodautoscalers",
            json!({"spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}}),
            json!({"desiredReplicas": 1, "currentReplicas": 1}),
        ),
        (
            "/apis/coordination.k8s.io/v1/NS/leases",
            json!({"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}),
            none.clone(),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/NS/roles",
            json!({"rules": rule}),
            none.clone(),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/NS/rolebindings",
            json!({"subjects": subject, "roleRef": role("Role")}),
            none.clone(),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"rules": rule}),
            none.clone(),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            json!({"subjects": subject, "roleRef": role("ClusterRole")}),
            none.clone(),
        ),
        (
            "/apis/storage.k8s.io/v1/storageclasses",
            json!({"provisioner": "example.com/p"}),
            none.clone(),
        ),
        (
            "/apis/storage.k8s.io/v1/volumeattachments",
            json!({"spec": {"attacher": "example.com/p", "nodeName": "n", "source": {"persistentVolumeName": "v"}}}),
            json!({"attached": true}),
        ),
        (
            "/apis/storage.k8s.io/v1/csidrivers",
            json!({"spec": {"attachRequired": false}}),
            none.clone(),
        ),
        (
            "/apis/storage.k8s.io/v1/csinodes",
            json!({"spec": {"drivers": [{"name": "d", "nodeID": "n"}]}}),
            none.clone(),
        ),
        (
            "/apis/networking.k8s.io/v1/NS/networkpolicies",
            json!({"spec": {"podSelector": {}}}),
            none.clone(),
        ),
        (
            "/apis/networking.k8s.io/v1/NS/ingresses",
            json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}}),
            json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}),
        ),
        (
            "/apis/networking.k8s.io/v1/ingressclasses",
            json!({"spec": {"controller": "example.com/c"}}),
            none.clone(),
        ),
        (
            "/apis/policy/v1/NS/poddisruptionbudgets",
            json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}),
            json!({"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}),
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            json!({"value": 10}),
            none.clone(),
        ),
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            Value::Null,
            none.clone(),
        ),
        (
            MUTATING,
            json!({"webhooks": [webhook("life", "none.example.com", "nothing", json!({}))]}),
            none.clone(),
        ),
        (
            VALIDATING,
            json!({"webhooks": [webhook("life", "none.example.com", "nothing", json!({}))]}),
            none.clone(),
        ),
        (
            "/apis/discovery.k8s.io/v1/NS/endpointslices",
            json!({"addressType": "IPv4", "endpoints": [], "ports": []}),
            none,
        ),
    ]
}

/// Whether an object has all that was sent; the server adds to it.
fn holds(object: &Value, sent: &Value) -> bool {
    match (object, sent) {
        (Value::Object(object), Value::Object(sent)) => sent
            .iter()
            .all(|(name, value)| object.get(name).is_some_and(|o| holds(o, value))),
        (Value::Array(object), Value::Array(sent)) => {
            object.len() == sent.len() && object.iter().zip(sent).all(|(o, s)| holds(o, s))
        }
        (object, sent) => object == sent,
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_goes_through_its_life_by_every_verb() {
    let server = server();
    settle().await;
    let mut known = BTreeSet::new();
    for (place, body, status) in lives() {
        let path = place.replace("NS", "namespaces/default");
        let (version, plural) = path.rsplit_once('/').unwrap();
        let version = version.trim_end_matches("/namespaces/default");
        known.insert(format!("{version}/{plural}"));
        // What is special about definitions has tests of its own.
        if plural == "customresourcedefinitions" {
            continue;
        }
        let list = get(&server, version).await;
        let entry = |name: &str| {
            let resources = list["resources"].as_array().unwrap();
            resources.iter().find(|r| r["name"] == name).cloned()
        };
        let own = entry(plural).unwrap();
        let all = [
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ];
        assert_eq!(own["verbs"], json!(all), "{path}");

        let mut object = body.clone();
        object["apiVersion"] = list["groupVersion"].clone();
        object["kind"] = own["kind"].clone();
        let before = server.revision();
        let named = |name: &str| {
            let mut named = object.clone();
            named["metadata"] = json!({"name": name, "labels": {"life": "one"}});
            named
        };
        let item = format!("{path}/first");
        let selected = format!("{path}?labelSelector=life%3Done");
        let made = send(&server, Method::POST, &path, JSON, named("first")).await;
        // Texts of secrets become data.
        let mut sent = body.clone();
        for given_otherwise in ["stringData", "metadata"] {
            sent.as_object_mut().unwrap().remove(given_otherwise);
        }
        assert!(holds(&made, &sent), "{made} has not {sent}");
        assert_eq!(get(&server, &item).await["metadata"], made["metadata"]);
        let listed = get(&server, &selected).await;
        assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{path}");

        let change = json!({"metadata": {"labels": {"patched": "yes"}}});
        let mut patched = send(&server, Method::PATCH, &item, MERGE, change.clone()).await;
        assert!(holds(&patched, &change), "{path}");
        patched["metadata"]["annotations"]["updated"] = json!("yes");
        let updated = send(&server, Method::PUT, &item, JSON, patched).await;
        assert_eq!(
            updated["metadata"]["annotations"]["updated"], "yes",
            "{path}"
        );

        let has_status = entry(&format!("{plural}/status")).is_some();
        assert_eq!(has_status, !status.is_null(), "{path}: a status");
        if has_status {
            let at = format!("{item}/status");
            let change = json!({"status": status});
            send(&server, Method::PATCH, &at, MERGE, change.clone()).await;
            let mut read = get(&server, &at).await;
            assert!(holds(&read, &change), "{read} has not {change}");
            let spec = read["spec"].clone();
            read["spec"] = json!({});
            read["metadata"]["annotations"]["status"] = json!("yes");
            send(&server, Method::PUT, &at, JSON, read).await;
            let read = get(&server, &item).await;
            assert_eq!(
                read["spec"], spec,
                "{path}: a status is all that is written there"
            );
            assert!(holds(&read, &change), "{path}");
        }
        if entry(&format!("{plural}/scale")).is_some() {
            let at = format!("{item}/scale");
            let mut scale = get(&server, &at).await;
            assert_eq!(scale["spec"]["replicas"], 1, "{path}");
            scale["spec"]["replicas"] = json!(2);
            send(&server, Method::PUT, &at, JSON, scale).await;
            assert_eq!(get(&server, &item).await["spec"]["replicas"], 2, "{path}");
            let change = json!({"spec": {"replicas": 4}});
            send(&server, Method::PATCH, &at, MERGE, change).await;
            assert_eq!(get(&server, &item).await["spec"]["replicas"], 4, "{path}");
        }

        // Some kinds wait for their dependents to be left behind, unless somebody says otherwise.
        let at_once = json!({"propagationPolicy": "Background"});
        send(&server, Method::DELETE, &item, JSON, at_once.clone()).await;
        assert!(absent(&server, &item).await, "{path}");
        for name in ["second", "third"] {
            send(&server, Method::POST, &path, JSON, named(name)).await;
        }
        send(&server, Method::DELETE, &selected, JSON, at_once).await;
        let listed = get(&server, &selected).await;
        assert_eq!(listed["items"], json!([]), "{path}");

        let watch = format!("{selected}&watch=true&resourceVersion={before}&timeoutSeconds=1");
        let told = ask(Method::GET, &watch).send(&server).await.body;
        let told = told.as_str().unwrap();
        let events: Vec<(String, String)> = told
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|e| {
                let text = |v: &Value| v.as_str().unwrap().to_owned();
                (text(&e["type"]), text(&e["object"]["metadata"]["name"]))
            })
            .collect();
        for name in ["first", "second", "third"] {
            let own: Vec<&str> = events
                .iter()
                .filter(|(_, n)| n == name)
                .map(|(kind, _)| kind.as_str())
                .collect();
            assert_eq!(own.first(), Some(&"ADDED"), "{path}: {events:?}");
            assert_eq!(own.last(), Some(&"DELETED"), "{path}: {events:?}");
        }
    }
    // Nothing that is served is left out, but for namespaces, which are deleted one by one.
    let groups = get(&server, "/apis").await;
    let groups = groups["groups"].as_array().unwrap().iter();
    let mut versions: Vec<String> = groups
        .flat_map(|g| g["versions"].as_array().unwrap())
        .map(|v| format!("/apis/{}", v["groupVersion"].as_str().unwrap()))
        .collect();
    versions.push("/api/v1".into());
    for version in versions {
        let list = get(&server, &version).await;
        for resource in list["resources"].as_array().unwrap() {
            let verbs = resource["verbs"].as_array().unwrap();
            let path = format!("{version}/{}", resource["name"].as_str().unwrap());
            if verbs.contains(&json!("list")) && path != "/api/v1/namespaces" {
                assert!(known.contains(&path), "{path} has no life here");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_takes_everything_with_it() {
    let server = server();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gone"}});
    send(&server, Method::POST, "/api/v1/namespaces", JSON, namespace).await;
    let mut items = Vec::new();
    for (place, mut object, _) in lives() {
        if !place.contains("NS") {
            continue;
        }
        let path = place.replace("NS", "namespaces/gone");
        object["metadata"] = json!({"name": "one"});
        // The event's object is in its namespace.
        for reference in ["involvedObject", "regarding"] {
            if object.get(reference).is_some() {
                object[reference]["namespace"] = json!("gone");
                object["metadata"]["name"] = json!(reference.to_lowercase());
            }
        }
        let made = send(&server, Method::POST, &path, JSON, object).await;
        items.push(format!(
            "{path}/{}",
            made["metadata"]["name"].as_str().unwrap()
        ));
    }
    send(
        &server,
        Method::DELETE,
        "/api/v1/namespaces/gone",
        JSON,
        json!({}),
    )
    .await;
    settle().await;
    for item in items {
        assert!(absent(&server, &item).await, "{item}");
    }
    assert!(absent(&server, "/api/v1/namespaces/gone").await);
}

#[tokio::test(start_paused = true)]
async fn dependents_of_a_second_owner_outlive_the_first() {
    let server = server();
    let owner = async |name: &str| {
        let made = send(&server, Method::POST, MAPS, JSON, map(name, json!({}))).await;
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": made["metadata"]["uid"], "blockOwnerDeletion": true})
    };
    let (one, two) = (owner("one").await, owner("two").await);
    for (name, owners) in [("single", json!([one])), ("shared", json!([one, two]))] {
        let mut object = map(name, json!({}));
        object["metadata"]["ownerReferences"] = owners;
        send(&server, Method::POST, MAPS, JSON, object).await;
    }
    settle().await;
    let foreground = json!({"propagationPolicy": "Foreground"});
    send(
        &server,
        Method::DELETE,
        &format!("{MAPS}/one"),
        JSON,
        foreground,
    )
    .await;
    settle().await;
    for gone in ["one", "single"] {
        assert!(absent(&server, &format!("{MAPS}/{gone}")).await, "{gone}");
    }
    let shared = get(&server, &format!("{MAPS}/shared")).await;
    assert_eq!(shared["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(shared["metadata"]["ownerReferences"], json!([two]));
}

fn definition(plural: &str, kind: &str) -> Value {
    let mut crd = widget_crd();
    crd["metadata"]["name"] = json!(format!("{plural}.example.com"));
    crd["metadata"]["labels"] = json!({"set": "one"});
    crd["spec"]["names"] = json!({"plural": plural, "kind": kind});
    crd
}

#[tokio::test(start_paused = true)]
async fn definitions_are_watched_and_have_a_status_and_go_by_their_label() {
    let server = server();
    let before = server.revision();
    for (plural, kind) in [("as", "A"), ("bs", "B")] {
        send(
            &server,
            Method::POST,
            DEFINITIONS,
            JSON,
            definition(plural, kind),
        )
        .await;
    }
    let mut other = definition("cs", "C");
    other["metadata"]["labels"] = json!({});
    send(&server, Method::POST, DEFINITIONS, JSON, other).await;
    settle().await;

    let at = format!("{DEFINITIONS}/as.example.com/status");
    let condition = json!({"type": "Tested", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-02T03:04:05Z"});
    let mut read = get(&server, &at).await;
    read["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(condition);
    send(&server, Method::PUT, &at, JSON, read).await;
    let read = get(&server, &format!("{DEFINITIONS}/as.example.com")).await;
    let tested = |read: &Value| {
        let conditions = read["status"]["conditions"].as_array().unwrap();
        conditions.iter().find(|c| c["type"] == "Tested").cloned()
    };
    assert_eq!(tested(&read).unwrap()["message"], "m");
    let mut conditions = read["status"]["conditions"].clone();
    for condition in conditions.as_array_mut().unwrap() {
        if condition["type"] == "Tested" {
            condition["message"] = json!("n");
        }
    }
    let change = json!({"status": {"conditions": conditions}});
    send(&server, Method::PATCH, &at, MERGE, change).await;
    let read = get(&server, &at).await;
    assert_eq!(tested(&read).unwrap()["message"], "n");

    let selected = format!("{DEFINITIONS}?labelSelector=set%3Done");
    assert_eq!(
        get(&server, &selected).await["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    send(&server, Method::DELETE, &selected, JSON, json!({})).await;
    settle().await;
    let left = get(&server, DEFINITIONS).await;
    let left = left["items"].as_array().unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0]["metadata"]["name"], "cs.example.com");
    let watch = format!("{selected}&watch=true&resourceVersion={before}&timeoutSeconds=1");
    let told = ask(Method::GET, &watch).send(&server).await.body;
    let told = told.as_str().unwrap();
    for kind in ["ADDED", "MODIFIED", "DELETED"] {
        let tells = |name: &str| {
            told.lines().any(|line| {
                let event: Value = serde_json::from_str(line).unwrap();
                event["type"] == kind && event["object"]["metadata"]["name"] == name
            })
        };
        assert!(tells("as.example.com") && tells("bs.example.com"), "{kind}");
    }
    assert!(!told.contains("cs.example.com"));
}

#[tokio::test(start_paused = true)]
async fn defaults_reach_what_is_stored_already() {
    let server = server();
    let schema = |properties: Value| json!({"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": properties}}});
    let version = |properties: Value| json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema(properties)}}]);
    let text = json!({"type": "string"});
    let mut crd = definition("ds", "D");
    crd["spec"]["versions"] = version(json!({"a": text, "b": text}));
    send(&server, Method::POST, DEFINITIONS, JSON, crd).await;
    let items = "/apis/example.com/v1/namespaces/default/ds";
    let d = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "D", "metadata": {"name": name}});
    send(&server, Method::POST, items, JSON, d("old")).await;
    let read = async |name: &str| get(&server, &format!("{items}/{name}")).await["spec"].clone();
    assert_eq!(read("old").await, json!({}));

    let own = format!("{DEFINITIONS}/ds.example.com");
    let with = |a: Value, b: Value| json!({"spec": {"versions": version(json!({"a": a, "b": b}))}});
    let red = json!({"type": "string", "default": "red"});
    send(
        &server,
        Method::PATCH,
        &own,
        MERGE,
        with(red.clone(), text.clone()),
    )
    .await;
    assert_eq!(read("old").await, json!({"a": "red"}));
    send(&server, Method::POST, items, JSON, d("new")).await;
    // What was written with a default keeps it; what was only read with it does not.
    send(&server, Method::PATCH, &own, MERGE, with(text, red)).await;
    assert_eq!(read("new").await, json!({"a": "red", "b": "red"}));
    assert_eq!(read("old").await, json!({"b": "red"}));
}

#[tokio::test(start_paused = true)]
async fn openapi_follows_the_versions_of_definitions() {
    let server = server();
    let version = |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let mut crd = definition("es", "E");
    crd["spec"]["versions"] = json!([version("v1", true, true), version("v2", true, false)]);
    send(&server, Method::POST, DEFINITIONS, JSON, crd).await;
    let mut far = definition("es", "E");
    far["metadata"]["name"] = json!("es.far.example.com");
    far["spec"]["group"] = json!("far.example.com");
    send(&server, Method::POST, DEFINITIONS, JSON, far).await;
    send(
        &server,
        Method::POST,
        DEFINITIONS,
        JSON,
        definition("fs", "F"),
    )
    .await;
    let kinds = async |group_version: &str| -> Vec<String> {
        let index = get(&server, "/openapi/v3").await;
        let path = &index["paths"][format!("apis/{group_version}")]["serverRelativeURL"];
        let Some(path) = path.as_str() else {
            return Vec::new();
        };
        let document = get(&server, path).await;
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let of = schemas.values().filter_map(|s| {
            let own = &s["x-kubernetes-group-version-kind"][0];
            let here = format!("{}/{}", own["group"].as_str()?, own["version"].as_str()?);
            (here == group_version).then(|| own["kind"].as_str().unwrap().to_owned())
        });
        of.collect()
    };
    assert_eq!(kinds("example.com/v1").await, ["E", "EList", "F", "FList"]);
    assert_eq!(kinds("example.com/v2").await, ["E", "EList"]);
    assert_eq!(kinds("far.example.com/v1").await, ["E", "EList"]);

    let own = format!("{DEFINITIONS}/es.example.com");
    let versions = json!([version("v1", true, true), version("v2", false, false)]);
    send(
        &server,
        Method::PATCH,
        &own,
        MERGE,
        json!({"spec": {"versions": versions}}),
    )
    .await;
    assert!(kinds("example.com/v2").await.is_empty());
    let versions = json!([version("v1", true, true), version("v3", true, false)]);
    send(
        &server,
        Method::PATCH,
        &own,
        MERGE,
        json!({"spec": {"versions": versions}}),
    )
    .await;
    assert_eq!(kinds("example.com/v3").await, ["E", "EList"]);
    assert_eq!(kinds("example.com/v1").await, ["E", "EList", "F", "FList"]);
}

#[tokio::test(start_paused = true)]
async fn webhook_configurations_are_changed_and_go_together() {
    let world = world();
    world.hook("mark.hooks.svc", |_| {
        patch(json!([{"op": "add", "path": "/data/marked", "value": "yes"}]))
    });
    world.hook("deny.hooks.svc", |_| json!({"allowed": false}));
    for (path, name) in [(MUTATING, "mark"), (VALIDATING, "deny")] {
        for n in 0..3 {
            let hooks = json!([webhook(name, "", "configmaps", json!({}))]);
            world.configure(path, &format!("{name}{n}"), hooks).await;
            let label = json!({"metadata": {"labels": {"set": "one"}}});
            send(
                &world.server,
                Method::PATCH,
                &format!("{path}/{name}{n}"),
                MERGE,
                label,
            )
            .await;
        }
        let mut count = 0;
        let mut create = async || {
            count += 1;
            let object = map(&format!("{name}-{count}"), json!({"a": "b"}));
            let (code, body, _) = world.send(Method::POST, MAPS, JSON, object).await;
            (code == 201, body["data"]["marked"] == "yes")
        };
        let intercepted = if name == "mark" {
            (true, true)
        } else {
            (false, false)
        };
        assert_eq!(create().await, intercepted, "{name}");
        let selected = format!("{path}?labelSelector=set%3Done");
        let list = get(&world.server, &selected).await;
        assert_eq!(list["items"].as_array().unwrap().len(), 3);

        let rules = |verb: &str| {
            let hook = json!({"rules": [{"operations": [verb], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
            json!({"webhooks": [webhook(name, "", "configmaps", hook)]})
        };
        for n in 0..3 {
            let own = format!("{path}/{name}{n}");
            send(&world.server, Method::PATCH, &own, MERGE, rules("UPDATE")).await;
        }
        assert_eq!(create().await, (true, false), "{name} is for updates now");
        let own = format!("{path}/{name}1");
        send(&world.server, Method::PATCH, &own, MERGE, rules("CREATE")).await;
        assert_eq!(create().await, intercepted, "{name} is for creations again");

        send(&world.server, Method::DELETE, &selected, JSON, json!({})).await;
        assert_eq!(create().await, (true, false), "{name} is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn webhooks_refuse_custom_resources_and_definitions_and_complete_pods() {
    let world = world();
    let server = &world.server;
    send(server, Method::POST, DEFINITIONS, JSON, widget_crd()).await;
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    let widget = |size: i64| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"size": size}});
    send(server, Method::POST, widgets, JSON, widget(1)).await;
    world.hook("deny.hooks.svc", |_| json!({"allowed": false}));
    for (name, group, resource) in [
        ("crds", "apiextensions.k8s.io", "customresourcedefinitions"),
        ("crs", "example.com", "widgets"),
    ] {
        let hooks = json!([webhook("deny", group, resource, json!({}))]);
        world.configure(VALIDATING, name, hooks).await;
    }
    let mut second = widget(1);
    second["metadata"]["name"] = json!("b");
    let own = format!("{widgets}/a");
    for (method, path, content, body) in [
        (Method::POST, DEFINITIONS, JSON, definition("as", "A")),
        (Method::POST, widgets, JSON, second),
        (Method::PATCH, &own, MERGE, json!({"spec": {"size": 2}})),
        (Method::DELETE, &own, JSON, json!({})),
    ] {
        let (code, body, _) = world.send(method.clone(), path, content, body).await;
        let message = body["message"].as_str().unwrap();
        assert_eq!(code, 400, "{method} {path}: {message}");
        assert!(message.contains("denied the request"), "{message}");
    }
    assert_eq!(get(server, &own).await["spec"]["size"], 1);

    world.hook("init.hooks.svc", |_| {
        patch(json!([{"op": "add", "path": "/spec/initContainers", "value": [{"name": "added", "image": "i"}]}]))
    });
    let hooks = json!([webhook("init", "", "pods", json!({}))]);
    world.configure(MUTATING, "pods", hooks).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = send(
        server,
        Method::POST,
        "/api/v1/namespaces/default/pods",
        JSON,
        pod,
    )
    .await;
    let added = &made["spec"]["initContainers"][0];
    assert_eq!(added["name"], "added");
    assert_eq!(added["terminationMessagePolicy"], "File");

    for (path, kind) in [
        (MUTATING, "MutatingWebhookConfiguration"),
        (VALIDATING, "ValidatingWebhookConfiguration"),
    ] {
        let condition = |expression: &str| {
            let change = json!({"matchConditions": [{"name": "c", "expression": expression}]});
            json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "conditions"}, "webhooks": [webhook("x", "", "secrets", change)]})
        };
        let (code, body, _) = world
            .send(Method::POST, path, JSON, condition("object."))
            .await;
        let message = body["message"].as_str().unwrap();
        assert!(
            code == 422 && message.contains("compilation failed"),
            "{message}"
        );
        send(server, Method::POST, path, JSON, condition("true")).await;
        let own = format!("{path}/conditions");
        send(server, Method::PUT, &own, JSON, condition("false")).await;
        let read = get(server, &own).await;
        assert_eq!(
            read["webhooks"][0]["matchConditions"][0]["expression"],
            "false"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn strict_field_validation_knows_metadata_and_what_a_schema_preserves() {
    let server = server();
    let mut crd = definition("ps", "P");
    crd["spec"]["versions"] = json!([{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"embedded": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}},
    }}}]);
    send(&server, Method::POST, DEFINITIONS, JSON, crd).await;
    let ps = "/apis/example.com/v1/namespaces/default/ps?fieldValidation=Strict";
    let maps = &format!("{MAPS}?fieldValidation=Strict");
    let p = r#""apiVersion": "example.com/v1", "kind": "P""#;
    let inner = r#""apiVersion": "v1", "kind": "ConfigMap""#;
    let unknown = |path: &str| format!("unknown field \"{path}\"");
    for (path, body, problem) in [
        (
            ps,
            format!(r#"{{{p}, "metadata": {{"name": "a"}}, "spec": {{"anything": 1}}}}"#),
            None,
        ),
        (
            ps,
            format!(r#"{{{p}, "metadata": {{"name": "b"}}, "x": 1, "x": 2}}"#),
            Some("duplicate field \"x\"".to_owned()),
        ),
        (
            ps,
            format!(r#"{{{p}, "metadata": {{"name": "c", "odd": 1}}}}"#),
            Some(unknown("metadata.odd")),
        ),
        (
            ps,
            format!(
                r#"{{{p}, "metadata": {{"name": "d"}}, "embedded": {{{inner}, "metadata": {{"name": "e", "odd": 1}}}}}}"#
            ),
            Some(unknown("embedded.metadata.odd")),
        ),
        (
            maps,
            format!(r#"{{{inner}, "metadata": {{"name": "f", "odd": 1}}}}"#),
            Some(unknown("metadata.odd")),
        ),
    ] {
        let answer = ask(Method::POST, path)
            .body(JSON, body.clone())
            .send(&server)
            .await;
        match problem {
            None => assert_eq!(answer.code, 201, "{body}: {}", answer.body),
            Some(problem) => {
                assert_eq!(answer.code, 400, "{body}");
                let message = answer.body["message"].as_str().unwrap();
                assert!(message.contains(&problem), "{message} has not {problem}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_version_is_two_integers_and_a_review_is_no_table() {
    let server = server();
    let version = get(&server, "/version").await;
    for part in ["major", "minor"] {
        assert!(
            version[part].as_str().unwrap().parse::<u32>().is_ok(),
            "{version}"
        );
    }
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = ask(Method::POST, path)
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(JSON, review.to_string())
        .send(&server)
        .await;
    assert_eq!(answer.code, 406, "{}", answer.body);
}

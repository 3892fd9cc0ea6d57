//! The simulators play their parts through the API.

use std::time::Duration;

use farshore_lab::bench::quiet_options;
use farshore_lab::lab::{Lab, apply};
use farshore_lab::sim::vm_resource;
use farshore_lab::story::{User, Vm, eventually};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

async fn bare() -> Lab {
    Lab::bare(quiet_options(7), CancellationToken::new())
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_vm_runs_on_its_disks_and_stops_when_asked() {
    let lab = bare().await;
    let user = User::new(&lab, "none");
    let vm = Vm::new("shop", "db", 2, 8);
    user.create_vm("east", &vm).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let verdicts = user.verify("east", &vm).await.unwrap();
    assert_eq!(verdicts.len(), 2);
    assert!(
        verdicts
            .values()
            .all(|v| v.acknowledged > 10 && v.present == v.acknowledged && v.is_whole()),
        "{verdicts:?}"
    );

    let machines = user.machines("east", "shop");
    let halt = Patch::Merge(json!({ "spec": { "runStrategy": "Halted" } }));
    machines
        .patch("db", &PatchParams::default(), &halt)
        .await
        .unwrap();
    eventually("the VM stopped", || async {
        let vm = machines.get("db").await?;
        Ok((vm.data["status"]["printableStatus"] == "Stopped").then_some(()))
    })
    .await
    .unwrap();
    assert!(lab.guests.places("shop/db").is_empty());
    let before = user.verify("east", &vm).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        before,
        user.verify("east", &vm).await.unwrap(),
        "a stopped VM writes nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_shall_run_is_started_again_after_its_node_lost_power() {
    let lab = bare().await;
    let user = User::new(&lab, "none");
    let vm = Vm::new("shop", "db", 1, 8);
    user.create_vm("east", &vm).await.unwrap();
    lab.set_node("east", "east-1", false).await.unwrap();
    assert!(
        lab.guests.places("shop/db").is_empty(),
        "power off is at once"
    );
    let nodes: Api<Node> = Api::all(lab.cluster("east").admin.clone());
    eventually("node reported", || async {
        let status = nodes.get("east-1").await?.status.unwrap_or_default();
        Ok(status
            .conditions
            .unwrap_or_default()
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "Unknown")
            .then_some(()))
    })
    .await
    .unwrap();
    lab.set_node("east", "east-1", true).await.unwrap();
    user.vm_runs("east", &vm).await.unwrap();
    assert!(
        user.verify("east", &vm)
            .await
            .unwrap()
            .values()
            .all(|v| v.is_whole())
    );
}

#[tokio::test(start_paused = true)]
async fn deployments_and_daemon_sets_become_available() {
    let lab = bare().await;
    let client = lab.cluster("west").admin.clone();
    let template = json!({
        "metadata": { "labels": { "app": "x" } },
        "spec": { "containers": [{ "name": "main", "image": "example/sleep:1" }] },
    });
    apply(&client, &json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "x", "namespace": "default" },
        "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "x" } }, "template": template } })).await.unwrap();
    apply(&client, &json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "d", "namespace": "default" },
        "spec": { "selector": { "matchLabels": { "app": "x" } }, "template": template } })).await.unwrap();
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let daemon_sets: Api<DaemonSet> = Api::default_namespaced(client.clone());
    eventually("three replicas and one pod per node", || async {
        let ready = deployments
            .get("x")
            .await?
            .status
            .and_then(|s| s.available_replicas)
            == Some(3);
        let daemons = daemon_sets.get("d").await?.status.map(|s| s.number_ready) == Some(2);
        Ok((ready && daemons).then_some(()))
    })
    .await
    .unwrap();
    deployments
        .delete("x", &DeleteParams::default())
        .await
        .unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client);
    eventually("only the daemons left", || async {
        Ok((pods.list(&ListParams::default()).await?.items.len() == 2).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_job_ends_with_the_exit_code_and_after_the_time_of_its_annotations() {
    let lab = bare().await;
    let client = lab.cluster("east").admin.clone();
    for (name, code) in [("good", "0"), ("bad", "3")] {
        apply(&client, &json!({ "apiVersion": "batch/v1", "kind": "Job",
            "metadata": { "name": name, "namespace": "default", "annotations": {
                "lab.farshore.io/exit-code": code, "lab.farshore.io/duration-seconds": "5" } },
            "spec": { "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "example/hook:1" }] } } } })).await.unwrap();
    }
    let jobs: Api<Job> = Api::default_namespaced(client);
    let begun = tokio::time::Instant::now();
    for (name, condition) in [("good", "Complete"), ("bad", "Failed")] {
        eventually(&format!("{name} {condition}"), || async {
            let status = jobs.get(name).await?.status.unwrap_or_default();
            Ok(status
                .conditions
                .unwrap_or_default()
                .iter()
                .any(|c| c.type_ == condition && c.status == "True")
                .then_some(()))
        })
        .await
        .unwrap();
    }
    assert!(begun.elapsed() >= Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_idle_lab_writes_nothing_but_heartbeats() {
    let lab = bare().await;
    User::new(&lab, "none")
        .create_vm("east", &Vm::new("shop", "db", 1, 8))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let marks: Vec<_> = lab.clusters.values().map(|c| c.server.mark()).collect();
    tokio::time::sleep(Duration::from_secs(60)).await;
    for (cluster, mark) in lab.clusters.values().zip(marks) {
        let writes = cluster.server.writes_since(mark);
        let others: Vec<_> = writes
            .iter()
            .filter(|w| w.resource != "leases")
            .map(ToString::to_string)
            .collect();
        assert!(others.is_empty(), "{}", others.join("\n"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_site_does_not_answer_and_comes_back_as_it_was() {
    let lab = bare().await;
    let user = User::new(&lab, "none");
    let vm = Vm::new("shop", "db", 1, 8);
    user.create_vm("east", &vm).await.unwrap();
    lab.set_site("east", false).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(lab.cluster("east").admin.clone());
    assert!(namespaces.get("shop").await.is_err());
    assert!(lab.guests.places("shop/db").is_empty());
    lab.set_site("east", true).await.unwrap();
    user.vm_runs("east", &vm).await.unwrap();
    assert!(
        user.verify("east", &vm)
            .await
            .unwrap()
            .values()
            .all(|v| v.is_whole())
    );
    let machines: Api<DynamicObject> =
        Api::namespaced_with(lab.cluster("east").admin.clone(), "shop", &vm_resource());
    machines
        .delete("db", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the guest gone with its VM", || async {
        Ok(lab.guests.places("shop/db").is_empty().then_some(()))
    })
    .await
    .unwrap();
}

//! One seed, one history: the same requests twice give the same answers, byte for byte.

use std::time::Duration;

use farshore_apiserver::{ApiServer, Options};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::{install_widgets, widget, widget_api};

/// Several clients at once; returns everything there is to see afterwards.
fn run(seed: u64) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = ApiServer::new(Options {
            seed,
            ..Options::default()
        });
        let background = server.spawn(Default::default());
        server.set_latency(Duration::from_millis(3));
        let client = Client::new(server.service(Some(&server.admin_token())), "default");
        install_widgets(&client).await;
        let busy = (0..4).map(|n| {
            let client = client.clone();
            tokio::spawn(async move { work(client, n).await })
        });
        for task in busy.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut seen: Vec<String> = server
            .request_log()
            .entries()
            .iter()
            .map(|e| format!("{e:?}"))
            .collect();
        seen.push(
            serde_json::to_string(
                &widget_api(&client)
                    .list(&ListParams::default())
                    .await
                    .unwrap(),
            )
            .unwrap(),
        );
        seen.push(
            serde_json::to_string(
                &Api::<Namespace>::all(client.clone())
                    .list(&ListParams::default())
                    .await
                    .unwrap(),
            )
            .unwrap(),
        );
        seen.push(
            serde_json::to_string(
                &Api::<Pod>::all(client)
                    .list(&ListParams::default())
                    .await
                    .unwrap(),
            )
            .unwrap(),
        );
        background.abort();
        seen.join("\n")
    })
}

async fn work(client: Client, n: i64) {
    let widgets = widget_api(&client);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for i in 0..5 {
        let made: ConfigMap =
            serde_json::from_value(json!({"metadata": {"generateName": format!("n{n}-")}}))
                .unwrap();
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        maps.create(&PostParams::default(), &made).await.unwrap();
        widgets
            .create(&PostParams::default(), &widget(&format!("w{n}{i}"), i))
            .await
            .unwrap();
        let status = json!({"status": {"ready": i}});
        widgets
            .patch_status(
                &format!("w{n}{i}"),
                &PatchParams::default(),
                &Patch::Merge(status),
            )
            .await
            .unwrap();
        let name = format!("ns{n}{i}");
        let ns: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces
            .create(&PostParams::default(), &ns)
            .await
            .unwrap();
        let pods: Api<Pod> = Api::namespaced(client.clone(), &name);
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
        if i % 2 == 0 {
            namespaces
                .delete(&name, &DeleteParams::default())
                .await
                .unwrap();
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_history_and_another_seed_another() {
    let (first, second) = (run(7), run(7));
    for (n, (a, b)) in first.lines().zip(second.lines()).enumerate() {
        assert_eq!(a, b, "line {n}");
    }
    assert_eq!(first.len(), second.len());
    assert_ne!(first, run(8));
}

//! With the API servers enforcing RBAC, what the charts and the probes ask for is enough.

use farshore_chart::{Chart, PROTECTIONZONE_CONTROLLER, Release};
use serde_json::{Value, json};

use crate::support::World;

/// Installs the controller's own chart on the hub as its operator would.
async fn install_chart(world: &World) {
    let release = Release {
        name: "site-recovery".into(),
        namespace: "site-recovery-system".into(),
    };
    for manifest in Chart::embedded(PROTECTIONZONE_CONTROLLER)
        .unwrap()
        .render(&release, &json!({}))
        .unwrap()
    {
        world.make("hub", manifest).await;
    }
}

/// A user that holds exactly what the probes ask for.
async fn exact_user(world: &World, cluster: &str) -> String {
    let rules: Vec<Value> = farshore_zone::required_permissions()
        .unwrap()
        .into_iter()
        .map(|p| {
            let resource = if p.subresource.is_empty() {
                p.resource
            } else {
                format!("{}/{}", p.resource, p.subresource)
            };
            json!({"apiGroups": [p.group], "resources": [resource], "verbs": [p.verb]})
        })
        .collect();
    world.make(cluster, json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "zone"}, "rules": rules})).await;
    world
        .make(
            cluster,
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "zone"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "zone"},
                "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "zone"}],
            }),
        )
        .await;
    world.servers[cluster].issue_token("zone", &[])
}

#[tokio::test(start_paused = true)]
async fn a_zone_is_provisioned_removed_and_denied_nothing_with_exactly_what_is_granted() {
    let world = World::new(true).await;
    install_chart(&world).await;
    for cluster in ["east", "west"] {
        let token = exact_user(&world, cluster).await;
        world
            .kubeconfig("dr-metro1", cluster, cluster, &token)
            .await;
    }
    let account = "system:serviceaccount:site-recovery-system:protectionzone-controller";
    let token = world.servers["hub"].issue_token(
        account,
        &[
            "system:serviceaccounts",
            "system:serviceaccounts:site-recovery-system",
        ],
    );
    world.start(&token);
    world.served().await;
    world.zone("dr-metro1", "metro1", &["east", "west"]).await;
    world.ready().await;
    let zones: kube::Api<farshore_api::ProtectionZone> = world.api("hub", "dr-metro1");
    zones.delete("metro1", &Default::default()).await.unwrap();
    world
        .until("the zone is gone", || async {
            zones
                .get_opt("metro1")
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
    for (name, server) in &world.servers {
        let refused: Vec<String> = server
            .request_log()
            .entries()
            .iter()
            .filter(|e| e.code == 403)
            .map(ToString::to_string)
            .collect();
        assert_eq!(refused, Vec::<String>::new(), "{name}");
    }
}

//! The manager dies again and again: each life carries out a few writes, whose last answer never
//! arrives. With one write a life there is a death at every write.

use std::collections::BTreeSet;

use farshore_api::ProtectionRequest;
use farshore_api::protection_request::ProtectionPhase::{
    CreatingDRBD, Pending, Protected, Syncing, Validating,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::world::{Fate, World};

/// Lets the manager live lives of this many writes until something holds; returns how many.
async fn lives<F: Future<Output = bool>>(
    world: &mut World,
    writes: u64,
    holds: impl Fn(Look) -> F,
) -> usize {
    let look = Look::of(world);
    let mut lives = 0;
    loop {
        let fate = Fate::after(writes);
        world.start_with(&fate);
        lives += 1;
        world
            .until("death or the end", || async {
                fate.dead.is_cancelled() || holds(look.clone()).await
            })
            .await;
        world.kill();
        if holds(look.clone()).await {
            return lives;
        }
    }
}

/// A look at the request that does not borrow the world.
#[derive(Clone)]
struct Look(kube::Api<ProtectionRequest>);

impl Look {
    fn of(world: &World) -> Self {
        Self(world.on_hub())
    }

    async fn protected(self) -> bool {
        let request = self.0.get("db01").await.unwrap();
        request.status.and_then(|s| s.phase) == Some(Protected)
    }

    async fn gone(self) -> bool {
        self.0.get_opt("db01").await.unwrap().is_none()
    }
}

async fn whole(world: &World) {
    let status = world.request("db01").await.status.unwrap();
    let ports: BTreeSet<i32> = status.volumes.iter().map(|v| v.port).collect();
    assert_eq!(ports, BTreeSet::from([7000, 7001]));
    let mut secrets = BTreeSet::new();
    for cluster in ["east", "west"] {
        let resource = world.resource(cluster, "db01").await.unwrap();
        assert_eq!(
            resource
                .spec
                .volumes
                .iter()
                .map(|v| v.port)
                .collect::<BTreeSet<_>>(),
            ports
        );
        let all = world
            .on::<Secret>(cluster)
            .list(&ListParams::default())
            .await
            .unwrap()
            .items;
        assert_eq!(all.len(), 1);
        secrets.insert(all[0].data.as_ref().unwrap()["secret"].0.clone());
    }
    assert_eq!(secrets.len(), 1);
    assert_eq!(world.drbd_volumes().await.len(), 2);
    let vm = world.vm("west", "db01").await.unwrap();
    assert_eq!(vm["spec"]["runStrategy"], "Halted");
    world
        .until("the VM runs", || async { world.runs("east", "db01").await })
        .await;
    assert!(!world.runs("west", "db01").await);
}

#[tokio::test(start_paused = true)]
async fn a_death_at_every_write_of_a_protection_is_survived() {
    for (mode, writes) in [("Offline", 1), ("Offline", 2), ("Online", 1), ("Online", 3)] {
        let mut world = World::new().await;
        world.machine("db01", 2).await;
        world.protect_as("db01", json!({"syncMode": mode})).await;
        let lives = lives(&mut world, writes, Look::protected).await;
        assert!(
            lives > 8,
            "{mode} with {writes} writes a life took {lives} lives"
        );
        world.start();
        world.sleep(60).await;
        assert_eq!(
            world.phases_of("db01"),
            [Pending, Validating, CreatingDRBD, Syncing, Protected]
        );
        whole(&world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_death_at_every_write_of_an_unprotection_is_survived() {
    for writes in [1, 2] {
        let mut world = World::new().await;
        world.machine("db01", 1).await;
        world.start();
        world.protect("db01").await;
        world.until_phase("db01", Protected).await;
        world.sleep(30).await;
        world.kill();
        world
            .on_hub::<ProtectionRequest>()
            .delete("db01", &DeleteParams::default())
            .await
            .unwrap();
        let lives = lives(&mut world, writes, Look::gone).await;
        assert!(lives > 3, "{writes} writes a life took {lives} lives");
        world
            .until("the VM runs", || async { world.runs("east", "db01").await })
            .await;
        assert!(world.vm("west", "db01").await.is_none());
        assert!(
            !world
                .vm("east", "db01")
                .await
                .unwrap()
                .to_string()
                .contains("siterecovery")
        );
    }
}

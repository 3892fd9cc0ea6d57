//! The manager dies at every one of its writes.

use std::collections::BTreeSet;

use farshore_api::ProtectionRequest;
use farshore_api::protection_request::ProtectionPhase::{CreatingDRBD, Pending, Protected, Syncing, Validating};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::world::{Fate, World};

async fn whole(world: &World) {
    let status = world.request("db01").await.status.unwrap();
    let ports: BTreeSet<i32> = status.volumes.iter().map(|v| v.port).collect();
    assert_eq!(ports, BTreeSet::from([7000, 7001]));
    let mut secrets = BTreeSet::new();
    for cluster in ["east", "west"] {
        let resource = world.resource(cluster, "db01").await.unwrap();
        assert_eq!(resource.spec.volumes.iter().map(|v| v.port).collect::<BTreeSet<_>>(), ports);
        let all = world.on::<Secret>(cluster).list(&ListParams::default()).await.unwrap().items;
        assert_eq!(all.len(), 1);
        secrets.insert(all[0].data.as_ref().unwrap()["secret"].0.clone());
    }
    assert_eq!(secrets.len(), 1);
    assert_eq!(world.drbd_volumes().await.len(), 2);
    let vm = world.vm("west", "db01").await.unwrap();
    assert_eq!(vm["spec"]["runStrategy"], "Halted");
    world.until("the VM runs", || async { world.runs("east", "db01").await }).await;
    assert!(!world.runs("west", "db01").await);
}

/// A protection during which the manager dies after this many writes. False when it did not come
/// to that.
async fn protection_with_a_death_after(writes: u64, mode: &str) -> bool {
    let mut world = World::new().await;
    world.machine("db01", 2).await;
    let fate = Fate::after(writes);
    world.start_with(&fate);
    world.protect_as("db01", json!({"syncMode": mode})).await;
    world.until("death or protection", || async { fate.dead.is_cancelled() || world.phase("db01").await == Some(Protected) }).await;
    if fate.dead.is_cancelled() {
        world.kill();
        world.start();
    }
    world.until_phase("db01", Protected).await;
    world.sleep(60).await;
    assert_eq!(world.phases_of("db01"), [Pending, Validating, CreatingDRBD, Syncing, Protected], "after {writes} writes");
    whole(&world).await;
    fate.dead.is_cancelled()
}

#[tokio::test(start_paused = true)]
async fn a_death_at_any_write_of_a_protection_is_survived() {
    for mode in ["Offline", "Online"] {
        let mut writes = 1;
        while protection_with_a_death_after(writes, mode).await {
            writes += 1;
        }
        assert!(writes > 20, "a protection takes more than {writes} writes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_death_at_any_write_of_an_unprotection_is_survived() {
    let mut writes = 1;
    loop {
        let mut world = World::new().await;
        world.machine("db01", 1).await;
        world.start();
        world.protect("db01").await;
        world.until_phase("db01", Protected).await;
        world.sleep(30).await;
        world.kill();
        let fate = Fate::after(writes);
        world.start_with(&fate);
        let api = world.on_hub::<ProtectionRequest>();
        api.delete("db01", &DeleteParams::default()).await.unwrap();
        world.until("death or the end", || async { fate.dead.is_cancelled() || api.get_opt("db01").await.unwrap().is_none() }).await;
        let died = fate.dead.is_cancelled();
        if died {
            world.kill();
            world.start();
        }
        world.until("the end", || async { api.get_opt("db01").await.unwrap().is_none() }).await;
        world.until("the VM runs", || async { world.runs("east", "db01").await }).await;
        assert!(world.vm("west", "db01").await.is_none());
        assert!(!world.vm("east", "db01").await.unwrap().to_string().contains("siterecovery"), "after {writes} writes");
        if !died {
            break;
        }
        writes += 1;
    }
    assert!(writes > 8, "an unprotection takes more than {writes} writes");
}

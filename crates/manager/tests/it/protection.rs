//! The protectionrequest reconciler.

use std::collections::BTreeSet;
use std::time::Duration;

use farshore_api::drbd::Role;
use farshore_api::drbd_volume::DRBDVolumePhase;
use farshore_api::meta::{annotations, managers};
use farshore_api::protection_request::ProtectionPhase::{
    self, CreatingDRBD, Degraded, Failed, FailingOver, Pending, Protected, Syncing, Validating,
};
use farshore_api::{DRBDVolume, ProtectionRequest, names};
use farshore_core::conditions;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::world::{World, ZONE_NAMESPACE, admin};

async fn protected(disks: usize) -> World {
    let mut world = World::new().await;
    world.machine("db01", disks).await;
    world.start();
    world.protect("db01").await;
    world.until_phase("db01", Protected).await;
    world
}

#[tokio::test(start_paused = true)]
async fn c11_phases_appear_in_order() {
    let world = protected(2).await;
    world.sleep(120).await;
    assert_eq!(
        world.phases_of("db01"),
        [Pending, Validating, CreatingDRBD, Syncing, Protected]
    );
    assert!(world.runs("east", "db01").await && !world.runs("west", "db01").await);
}

#[tokio::test(start_paused = true)]
async fn c12_one_resource_of_the_documented_name_on_each_cluster() {
    let world = protected(2).await;
    let zone = Api::<Namespace>::all(admin(&world.hub))
        .get(ZONE_NAMESPACE)
        .await
        .unwrap();
    let name = names::drbd_resource(&zone.uid().unwrap(), &world.request("db01").await.vm());
    assert!(name.starts_with("drbd-shop-db01-"), "{name}");
    for (cluster, role) in [("east", Role::Primary), ("west", Role::Secondary)] {
        let resource = world.resource(cluster, "db01").await.unwrap();
        assert_eq!(
            (
                resource.name_any(),
                resource.spec.role,
                resource.spec.role_epoch
            ),
            (name.clone(), role, 1)
        );
        assert_eq!(resource.spec.volumes.len(), 2);
    }
    let secrets = [world.on::<Secret>("east"), world.on::<Secret>("west")];
    let mut shared = BTreeSet::new();
    for api in secrets {
        shared.insert(
            api.get(&names::shared_secret(&name))
                .await
                .unwrap()
                .data
                .unwrap()["secret"]
                .0
                .clone(),
        );
    }
    assert_eq!(shared.len(), 1, "both sides hold the same secret");
    let secret = String::from_utf8(shared.pop_first().unwrap()).unwrap();
    assert!(secret.len() >= 32 && secret.len() <= 63);
    let status = serde_json::to_string(&world.request("db01").await).unwrap();
    assert!(!status.contains(&secret));
}

#[tokio::test(start_paused = true)]
async fn c13_every_volume_has_a_port_of_its_own_however_many_start_at_once() {
    let mut world = World::new().await;
    let names: Vec<String> = (0..12).map(|i| format!("vm{i:02}")).collect();
    for name in &names {
        world.machine(name, 2).await;
        world.protect(name).await;
    }
    world.start();
    let mut ports = Vec::new();
    for name in &names {
        world.until_phase(name, Protected).await;
        let chosen: Vec<i32> = world
            .request(name)
            .await
            .status
            .unwrap()
            .volumes
            .iter()
            .map(|v| v.port)
            .collect();
        for cluster in ["east", "west"] {
            let resource = world.resource(cluster, name).await.unwrap();
            assert_eq!(
                resource
                    .spec
                    .volumes
                    .iter()
                    .map(|v| v.port)
                    .collect::<Vec<_>>(),
                chosen
            );
        }
        ports.extend(chosen);
    }
    ports.sort_unstable();
    assert_eq!(
        ports,
        (7000..7024).collect::<Vec<_>>(),
        "distinct, lowest first"
    );
}

#[tokio::test(start_paused = true)]
async fn c38_every_volume_reports_full_sync_before_the_vm_is_swapped() {
    let mut world = World::new().await;
    world.machine("db01", 2).await;
    world.start();
    world.protect("db01").await;
    let swapped = |vm: &serde_json::Value| vm["spec"].to_string().contains("-drbd\"");
    for _ in 0..120 {
        let vm = world.vm("east", "db01").await.unwrap();
        let volumes = world.drbd_volumes().await;
        let synced = volumes
            .iter()
            .filter(|v| v.status.as_ref().and_then(|s| s.phase) == Some(DRBDVolumePhase::Synced))
            .count();
        if swapped(&vm) {
            assert_eq!((volumes.len(), synced), (2, 2));
            return;
        }
        if synced < 2 && world.phase("db01").await == Some(Syncing) {
            assert!(
                !world.runs("east", "db01").await,
                "the VM is down during the first sync"
            );
        }
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    }
    panic!("never swapped");
}

#[tokio::test(start_paused = true)]
async fn online_the_vm_runs_while_its_disks_sync() {
    let mut world = World::new().await;
    world.machine("db01", 1).await;
    world.start();
    world
        .protect_as("db01", json!({"syncMode": "Online"}))
        .await;
    world.until_phase("db01", Syncing).await;
    world
        .until("the VM runs from its replicated disk", || async {
            let vm = world.vm("east", "db01").await.unwrap();
            vm["spec"].to_string().contains("db01-0-drbd") && world.runs("east", "db01").await
        })
        .await;
    assert_eq!(
        world.phase("db01").await,
        Some(Syncing),
        "the first sync has not ended"
    );
    world.until_phase("db01", Protected).await;
    assert_eq!(
        world.phases_of("db01"),
        [Pending, Validating, CreatingDRBD, Syncing, Protected]
    );
}

#[tokio::test(start_paused = true)]
async fn a_settled_world_is_not_written() {
    let world = protected(2).await;
    world
        .group(
            "shop",
            json!({"members": [{"protectionRequestRef": "db01"}]}),
        )
        .await;
    world.sleep(120).await;
    let marks = world.marks();
    world.sleep(600).await;
    let writes = world.writes_since(marks);
    assert!(
        writes.is_empty(),
        "{}",
        writes
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    );
}

#[tokio::test(start_paused = true)]
async fn a_drbd_volume_deleted_by_hand_is_made_again() {
    let world = protected(2).await;
    let api: Api<DRBDVolume> = world.on_hub();
    let said = |v: DRBDVolume| {
        let status = v.status.unwrap_or_default();
        (v.metadata.uid.unwrap(), status.phase, status.sync_percent)
    };
    let before = api.list(&Default::default()).await.unwrap().items;
    let name = before[0].name_any();
    let old = said(before[0].clone());
    api.delete(&name, &Default::default()).await.unwrap();
    world.sleep(5).await;
    let new = said(api.get(&name).await.unwrap());
    assert_ne!(new.0, old.0);
    assert_eq!((new.1, new.2), (old.1, old.2));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_manager_keeps_what_it_chose() {
    let mut world = protected(2).await;
    world.settled("db01").await;
    let before = world.request("db01").await.status.unwrap();
    world.kill();
    world.start();
    world.sleep(180).await;
    assert_eq!(world.request("db01").await.status.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn the_standby_is_a_halted_copy_on_its_own_node() {
    let world = protected(1).await;
    let vm = world.vm("west", "db01").await.unwrap();
    assert_eq!(vm["spec"]["runStrategy"], "Halted");
    assert_eq!(
        vm["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"],
        "west-1"
    );
    assert_eq!(
        vm["spec"]["template"]["spec"]["volumes"][1]["persistentVolumeClaim"]["claimName"],
        "db01-0-drbd"
    );
    assert_eq!(
        vm["metadata"]["annotations"][annotations::PROTECTED_BY],
        "metro1/db01"
    );
    let patch = json!({"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 8}}}}}});
    world
        .vms("east")
        .patch("db01", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    world.until("the standby has 8 cores", || async {
        world.vm("west", "db01").await.unwrap()["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] == 8
    })
    .await;
    let vm = world.vm("west", "db01").await.unwrap();
    assert_eq!(vm["spec"]["runStrategy"], "Halted");
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_told_and_tried_again_when_the_world_changes() {
    let mut world = World::new().await;
    world.start();
    world
        .protect_as("a", json!({"replicationProtocol": "A"}))
        .await;
    world.protect_as("rpo", json!({"rpo": 5})).await;
    world.protect("db01").await;
    for (name, message) in [
        ("a", "ReplicationProtocolA is not supported yet"),
        (
            "rpo",
            "spec.rpo must be 0 when spec.replicationProtocol is C",
        ),
    ] {
        world.until_phase(name, Failed).await;
        let status = world.request(name).await.status.unwrap();
        assert_eq!(
            conditions::get(&status.conditions, "Validated")
                .unwrap()
                .message,
            message
        );
    }
    world.until_phase("db01", Failed).await;
    let status = world.request("db01").await.status.unwrap();
    assert_eq!(
        conditions::get(&status.conditions, "Validated")
            .unwrap()
            .reason,
        "VMNotFound"
    );
    world.machine("db01", 1).await;
    world.until_phase("db01", Protected).await;
    world.settled("db01").await;
    let marks = world.marks();
    world.sleep(600).await;
    assert!(world.writes_since(marks).is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_unvalidated_zone_is_waited_for() {
    let mut world = World::new().await;
    world.machine("db01", 1).await;
    world.validated("False").await;
    world.start();
    world.protect("db01").await;
    world.sleep(90).await;
    let status = world.request("db01").await.status.unwrap();
    assert_eq!(status.phase, Some(Pending));
    let validated = conditions::get(&status.conditions, "Validated").unwrap();
    assert_eq!(
        validated.message,
        "ProtectionZone metro1 is not validated: ClustersValidated=False reason=Test"
    );
    world.validated("True").await;
    world.until_phase("db01", Protected).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_cluster_or_link_degrades_and_comes_back() {
    let world = protected(1).await;
    let reason = || async {
        let status = world.request("db01").await.status.unwrap();
        conditions::get(&status.conditions, "Protected")
            .unwrap()
            .reason
            .clone()
    };
    world.workload.link(false);
    world.until_phase("db01", Degraded).await;
    assert_eq!(reason().await, "PeerDisconnected");
    world.workload.link(true);
    world.until_phase("db01", Protected).await;
    for cluster in ["west", "east"] {
        world.server(cluster).set_down(true);
        world.until_phase("db01", Degraded).await;
        assert_eq!(reason().await, "ClusterUnreachable");
        world.sleep(300).await;
        world.server(cluster).set_down(false);
        world.until_phase("db01", Protected).await;
    }
    assert!(world.runs("east", "db01").await);
    assert_eq!(
        world.request("db01").await.status.unwrap().role_epoch,
        Some(1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_protection_that_meets_a_dark_cluster_goes_on_when_it_is_back() {
    let mut world = World::new().await;
    world.machine("db01", 1).await;
    world.west.set_down(true);
    world.start();
    world.protect("db01").await;
    world.sleep(120).await;
    assert_eq!(world.phase("db01").await, Some(Validating));
    let status = world.request("db01").await.status.unwrap();
    let validated = conditions::get(&status.conditions, "Validated").unwrap();
    assert_eq!(
        (validated.status.as_str(), validated.reason.as_str()),
        ("Unknown", "ClusterUnreachable")
    );
    assert!(
        world.runs("east", "db01").await,
        "nothing is stopped for a protection that cannot begin"
    );
    world.west.set_down(false);
    world.until_phase("db01", Protected).await;
}

/// Stops the VM on both sides, as a failover has it done, and names the other source.
async fn flip(world: &World, to: &str) {
    for cluster in ["east", "west"] {
        let patch = json!({"spec": {"runStrategy": "Halted"}});
        world
            .vms(cluster)
            .patch("db01", &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }
    world
        .until("nothing runs", || async {
            !world.runs("east", "db01").await && !world.runs("west", "db01").await
        })
        .await;
    world
        .patch_request("db01", json!({"spec": {"sourceCluster": to}}))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_flip_does_not_wait_for_the_pace_of_its_request() {
    let world = protected(1).await;
    flip(&world, "west").await;
    world.until_phase("db01", Protected).await;
    world.settled("db01").await;
    for (to, n) in [("east", 1), ("west", 2), ("east", 3)] {
        // The request was looked at a moment ago.
        let touched = json!({"metadata": {"annotations": {"touched": n.to_string()}}});
        world.patch_request("db01", touched).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        world
            .patch_request("db01", json!({"spec": {"sourceCluster": to}}))
            .await;
        let flipped = tokio::time::Instant::now();
        loop {
            let resource = world.resource(to, "db01").await.unwrap();
            if resource.spec.role == Role::Primary {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The agents look once a second: the old side gives way at the first look, and is seen to.
        let took = flipped.elapsed();
        assert!(took <= Duration::from_secs(1), "{took:?} to {to}");
        world.sleep(60).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_source_becomes_primary_only_after_the_old_gave_way() {
    let world = protected(1).await;
    world.workload.agents("east", false);
    flip(&world, "west").await;
    world.until_phase("db01", FailingOver).await;
    world.sleep(120).await;
    let west = world.resource("west", "db01").await.unwrap();
    assert_eq!(
        (west.spec.role, west.spec.role_epoch),
        (Role::Secondary, 1),
        "east has not been seen to give way"
    );
    world.workload.agents("east", true);
    world.until_phase("db01", Protected).await;
    let [east, west] = [
        world.resource("east", "db01").await.unwrap(),
        world.resource("west", "db01").await.unwrap(),
    ];
    assert_eq!((east.spec.role, east.spec.role_epoch), (Role::Secondary, 2));
    assert_eq!((west.spec.role, west.spec.role_epoch), (Role::Primary, 2));
    let phases = world.phases_of("db01");
    assert_eq!(phases[4..], [Protected, FailingOver, Protected]);

    // The template now follows from west to east, and the old VM stays halted.
    let patch = json!({"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 3}}}}}});
    world
        .vms("west")
        .patch("db01", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    world.until("east follows", || async {
        world.vm("east", "db01").await.unwrap()["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] == 3
    })
    .await;
    assert_eq!(
        world.vm("east", "db01").await.unwrap()["spec"]["runStrategy"],
        "Halted"
    );

    flip(&world, "east").await;
    world.until_phase("db01", FailingOver).await;
    world.until_phase("db01", Protected).await;
    assert_eq!(
        world
            .resource("east", "db01")
            .await
            .unwrap()
            .spec
            .role_epoch,
        3
    );
}

#[tokio::test(start_paused = true)]
async fn a_role_flip_writes_the_status_of_a_request_twice() {
    let world = protected(2).await;
    for to in ["west", "east"] {
        world.sleep(60).await;
        let marks = world.marks();
        flip(&world, to).await;
        world.until_phase("db01", FailingOver).await;
        world.until_phase("db01", Protected).await;
        world.sleep(120).await;
        let writes: Vec<String> = world
            .writes_since(marks)
            .iter()
            .filter(|e| e.resource == "protectionrequests" && e.manager == managers::PROTECTION)
            .map(ToString::to_string)
            .collect();
        assert_eq!(writes.len(), 2, "to {to}:\n{}", writes.join("\n"));
    }
}

/// What a condition of the request db01 says: status, reason, message.
async fn says(world: &World, name: &str, type_: &str) -> Option<(String, String, String)> {
    let status = world.request(name).await.status?;
    let found = conditions::get(&status.conditions, type_)?;
    Some((
        found.status.clone(),
        found.reason.clone(),
        found.message.clone(),
    ))
}

async fn set_volumes(world: &World, volumes: &serde_json::Value) {
    let patch = json!({"spec": {"template": {"spec": {"volumes": volumes}}}});
    world
        .vms("east")
        .patch("db01", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_added_disk_and_a_grown_one_are_said_and_taken_back() {
    let world = protected(1).await;
    let volumes = |vm: &serde_json::Value| vm["spec"]["template"]["spec"]["volumes"].clone();
    let before = volumes(&world.vm("east", "db01").await.unwrap());
    let mut more = before.clone();
    more.as_array_mut()
        .unwrap()
        .push(json!({"name": "extra", "persistentVolumeClaim": {"claimName": "db01-extra"}}));
    set_volumes(&world, &more).await;
    world.until_phase("db01", Degraded).await;
    let (status, reason, message) = says(&world, "db01", "Protected").await.unwrap();
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "UnreplicatedVolume")
    );
    assert!(message.contains("db01-extra"), "{message}");
    world.sleep(300).await;
    let marks = world.marks();
    world.sleep(300).await;
    assert!(world.writes_since(marks).is_empty());
    let events: Api<k8s_openapi::api::events::v1::Event> = world.on_hub();
    let told = events.list(&ListParams::default()).await.unwrap().items;
    let told: Vec<_> = told
        .iter()
        .filter(|e| e.reason.as_deref() == Some("UnreplicatedVolume"))
        .map(|e| (e.type_.as_deref(), e.series.is_none()))
        .collect();
    assert_eq!(told, [(Some("Warning"), true)], "told once");
    set_volumes(&world, &before).await;
    world.until_phase("db01", Protected).await;

    let grow = json!({"status": {"capacity": {"storage": "4Gi"}}});
    world
        .on::<PersistentVolumeClaim>("east")
        .patch_status("db01-0", &PatchParams::default(), &Patch::Merge(&grow))
        .await
        .unwrap();
    world
        .until("the new size is told", || async {
            says(&world, "db01", "ResizeIgnored").await.is_some()
        })
        .await;
    assert_eq!(world.phase("db01").await, Some(Protected));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_does_not_fit_is_refused_by_the_server_and_told_where_it_is_not() {
    let mut world = World::new().await;
    let long = "n".repeat(64);
    let request = || -> ProtectionRequest {
        crate::world::from(json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionRequest", "metadata": {"name": long},
            "spec": {"vmName": "db01", "vmNamespace": "shop", "sourceCluster": "east"},
        }))
    };
    let group = || -> farshore_api::ProtectionGroup {
        crate::world::from(json!({
            "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionGroup", "metadata": {"name": long},
            "spec": {"members": [{"protectionRequestRef": "db01"}]},
        }))
    };
    let params = kube::api::PostParams::default();
    let requests = world.on_hub::<ProtectionRequest>();
    let groups = world.on_hub::<farshore_api::ProtectionGroup>();
    let refused = [
        requests
            .create(&params, &request())
            .await
            .unwrap_err()
            .to_string(),
        groups
            .create(&params, &group())
            .await
            .unwrap_err()
            .to_string(),
    ];
    for message in refused {
        assert!(
            message.contains("at most 63 characters: it is the value of the label"),
            "{message}"
        );
    }

    world.forget_rules("protectionrequests").await;
    world.forget_rules("protectiongroups").await;
    world.machine("db01", 1).await;
    world.start();
    requests.create(&params, &request()).await.unwrap();
    groups.create(&params, &group()).await.unwrap();
    world.until_phase(&long, Failed).await;
    let (status, reason, _) = says(&world, &long, "Validated").await.unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "NameTooLong"));
    world
        .until("the group says why", || async {
            let status = groups.get(&long).await.unwrap().status.unwrap_or_default();
            let ready = conditions::get(&status.conditions, "Ready");
            ready.is_some_and(|c| c.reason == "NameTooLong")
        })
        .await;
    assert!(world.runs("east", "db01").await);
    requests
        .delete(&long, &DeleteParams::default())
        .await
        .unwrap();
    groups
        .delete(&long, &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("both are gone", || async {
            let request = requests.get_opt(&long).await.unwrap();
            request.is_none() && groups.get_opt(&long).await.unwrap().is_none()
        })
        .await;
}

async fn gone(world: &World) {
    let api = world.on_hub::<ProtectionRequest>();
    world
        .until("the request is gone", || async {
            api.get_opt("db01").await.unwrap().is_none()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn unprotecting_gives_everything_back() {
    let mut world = World::new().await;
    world.machine("db01", 2).await;
    let before = world.vm("east", "db01").await.unwrap();
    world.start();
    world.protect("db01").await;
    world.until_phase("db01", Protected).await;
    world
        .on_hub::<ProtectionRequest>()
        .delete("db01", &DeleteParams::default())
        .await
        .unwrap();
    gone(&world).await;
    let after = world.vm("east", "db01").await.unwrap();
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    assert!(
        after["metadata"]["annotations"]
            .as_object()
            .is_none_or(|a| a.is_empty())
    );
    world
        .until("the VM runs again", || async {
            world.runs("east", "db01").await
        })
        .await;
    assert!(world.vm("west", "db01").await.is_none());
    for cluster in ["east", "west"] {
        assert!(world.resource(cluster, "db01").await.is_none());
        let claims = world
            .on::<PersistentVolumeClaim>(cluster)
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .len();
        assert_eq!(claims, if cluster == "east" { 2 } else { 0 });
        let secrets = world
            .on::<Secret>(cluster)
            .list(&ListParams::default())
            .await
            .unwrap();
        assert_eq!(secrets.items.len(), 0);
    }
    world
        .until("the DRBDVolumes are gone", || async {
            world.drbd_volumes().await.is_empty()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn unprotecting_waits_for_a_dark_peer() {
    let world = protected(1).await;
    world.west.set_down(true);
    world
        .on_hub::<ProtectionRequest>()
        .delete("db01", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until_phase("db01", ProtectionPhase::Unprotecting)
        .await;
    world.sleep(300).await;
    for type_ in ["Protected", "Unprotected"] {
        let (status, reason, message) = says(&world, "db01", type_).await.unwrap();
        assert_eq!(
            (status.as_str(), reason.as_str()),
            ("False", "ClusterUnreachable")
        );
        assert!(message.contains("cluster west"), "{message}");
    }
    let (status, _, message) = says(&world, "db01", "Synced").await.unwrap();
    assert_eq!(status, "False", "what was true before is not said any more");
    assert!(message.contains("cluster west"), "{message}");
    assert!(
        world.runs("east", "db01").await,
        "the VM is not stopped for nothing"
    );
    world.west.set_down(false);
    gone(&world).await;
}

#[tokio::test(start_paused = true)]
async fn the_writes_carry_the_name_of_the_old_controller() {
    let world = protected(1).await;
    let by = |meta: &kube::api::ObjectMeta| {
        meta.managed_fields
            .iter()
            .flatten()
            .any(|m| m.manager.as_deref() == Some(managers::PROTECTION))
    };
    for cluster in ["east", "west"] {
        assert!(
            by(&world.vms(cluster).get("db01").await.unwrap().metadata),
            "the VM on {cluster}"
        );
        assert!(
            by(&world.resource(cluster, "db01").await.unwrap().metadata),
            "the DRBDResource on {cluster}"
        );
    }
    assert!(by(&world.request("db01").await.metadata));
}

//! Protection of VMs.

use std::collections::BTreeSet;

use farshore_api::drbd_volume::DRBDVolumePhase;
use farshore_api::failover_request::FailoverState;
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::{
    DRBDReplicationPolicy, DRBDResource, DRBDVolume, ProtectionGroup, ProtectionRequest,
    ProtectionZone, ReplicationGroupStatus, names,
};
use farshore_lab::lab::Lab;
use farshore_lab::story::{Vm, eventually};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use serde_json::json;

use super::{assert_rule, assert_whole, lab_with_group, lab_with_zone, pass, plain, user};

#[tokio::test(start_paused = true)]
async fn phases_appear_in_order_offline_and_online() {
    // C11
    for mode in ["Offline", "Online"] {
        let lab = lab_with_zone().await;
        let vm = Vm::new("shop", "db01", 2, 64);
        user(&lab).create_vm("east", &vm).await.unwrap();
        let requests: Api<ProtectionRequest> = user(&lab).api();
        let mut changes = Box::pin(watcher(requests, watcher::Config::default()));
        while !matches!(changes.next().await, Some(Ok(watcher::Event::InitDone))) {} // it watches from here on
        user(&lab)
            .apply("hub", &user(&lab).protection_manifest(&vm, "east", mode))
            .await
            .unwrap();
        let mut phases: Vec<ProtectionPhase> = Vec::new();
        while phases.last() != Some(&ProtectionPhase::Protected) {
            let Some(Ok(event)) = changes.next().await else {
                continue;
            };
            let (watcher::Event::Apply(request) | watcher::Event::InitApply(request)) = event
            else {
                continue;
            };
            if let Some(phase) = request.status.and_then(|s| s.phase)
                && phases.last() != Some(&phase)
            {
                phases.push(phase);
            }
        }
        let order = [
            ProtectionPhase::Pending,
            ProtectionPhase::Validating,
            ProtectionPhase::CreatingDRBD,
            ProtectionPhase::Syncing,
            ProtectionPhase::Protected,
        ];
        assert_eq!(phases, order, "{mode}");
        user(&lab).vm_runs("east", &vm).await.unwrap();
        pass(5).await;
        assert_whole(&lab, "east", std::slice::from_ref(&vm)).await;
        assert_whole(&lab, "west", std::slice::from_ref(&vm)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_site_holds_one_resource_with_a_port_for_each_volume() {
    // C12, C13
    let (lab, vms) = lab_with_group().await;
    let hub: Api<Namespace> = Api::all(lab.cluster("hub").admin.clone());
    let uid = hub.get("dr-metro").await.unwrap().metadata.uid.unwrap();
    let mut by_site = Vec::new();
    for cluster in ["east", "west"] {
        let resources: Api<DRBDResource> =
            Api::namespaced(lab.cluster(cluster).admin.clone(), "shop");
        let list = resources.list(&ListParams::default()).await.unwrap().items;
        let found: BTreeSet<String> = list
            .iter()
            .filter_map(|r| r.metadata.name.clone())
            .collect();
        let expected: BTreeSet<String> = vms
            .iter()
            .map(|vm| {
                names::drbd_resource(
                    &uid,
                    &farshore_api::VmRef {
                        namespace: "shop".into(),
                        name: vm.name.clone(),
                    },
                )
            })
            .collect();
        assert_eq!(found, expected, "{cluster}");
        let ports: Vec<i32> = list
            .iter()
            .flat_map(|r| r.spec.volumes.iter().map(|v| v.port))
            .collect();
        assert_eq!(ports.len(), 3);
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 3, "{ports:?}");
        assert!(ports.iter().all(|p| (7000..=8000).contains(p)));
        by_site.push(ports);
    }
    assert_eq!(by_site[0], by_site[1]);
}

#[tokio::test(start_paused = true)]
async fn the_node_of_a_resource_is_fixed_for_life() {
    // C14
    let (lab, _) = lab_with_group().await;
    let resources: Api<DRBDResource> = Api::namespaced(lab.cluster("east").admin.clone(), "shop");
    let resource = resources
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .remove(0);
    let name = resource.metadata.name.unwrap();
    for node in [json!("east-9"), json!(null)] {
        let edit = Patch::Merge(json!({ "spec": { "nodeName": node } }));
        let edited = resources.patch(&name, &PatchParams::default(), &edit).await;
        assert_rule(edited, "spec.nodeName is immutable once set");
    }
}

#[tokio::test(start_paused = true)]
async fn every_volume_reports_full_sync_before_an_offline_vm_is_swapped() {
    // C38
    let lab = lab_with_zone().await;
    let vm = Vm::new("shop", "db01", 2, 256);
    user(&lab).create_vm("east", &vm).await.unwrap();
    user(&lab)
        .apply(
            "hub",
            &user(&lab).protection_manifest(&vm, "east", "Offline"),
        )
        .await
        .unwrap();
    let volumes: Api<DRBDVolume> = user(&lab).api();
    let machines = user(&lab).machines("east", "shop");
    eventually("the swap", || async {
        let machine = plain(&machines.get("db01").await?);
        let synced = volumes
            .list(&ListParams::default())
            .await?
            .items
            .iter()
            .filter(|v| v.status.as_ref().and_then(|s| s.phase) == Some(DRBDVolumePhase::Synced))
            .count();
        let claims = &machine["spec"]["template"]["spec"]["volumes"];
        let swapped = claims[0]["persistentVolumeClaim"]["claimName"] == "db01-0-drbd";
        assert!(
            !swapped || synced == 2,
            "swapped with {synced} of 2 volumes in sync"
        );
        Ok(swapped.then_some(()))
    })
    .await
    .unwrap();
    user(&lab).protected(&vm).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_standby_vm_is_there_and_stopped() {
    let (lab, vms) = lab_with_group().await;
    for vm in &vms {
        let standby = plain(
            &user(&lab)
                .machines("west", "shop")
                .get(&vm.name)
                .await
                .unwrap(),
        );
        assert_eq!(standby["spec"]["runStrategy"], "Halted");
        assert_eq!(
            standby["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"],
            format!("{}-0-drbd", vm.name)
        );
        assert_eq!(lab.guests.places(&vm.key()), ["east"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_vm_changes_its_standby() {
    // C39
    let (lab, _) = lab_with_group().await;
    let edit = Patch::Merge(
        json!({ "spec": { "template": { "spec": { "domain": { "memory": { "guest": "2Gi" } } } } } }),
    );
    user(&lab)
        .machines("east", "shop")
        .patch("db01", &PatchParams::default(), &edit)
        .await
        .unwrap();
    let standbys = user(&lab).machines("west", "shop");
    eventually("the standby in step", || async {
        let standby = plain(&standbys.get("db01").await?);
        Ok(
            (standby["spec"]["template"]["spec"]["domain"]["memory"]["guest"] == "2Gi")
                .then_some(()),
        )
    })
    .await
    .unwrap();
    assert_eq!(lab.guests.places("shop/db01"), ["east"]);
}

#[tokio::test(start_paused = true)]
async fn the_group_is_mirrored_and_its_states_are_the_documented_ones() {
    // C34, C39
    let (lab, vms) = lab_with_group().await;
    let group = |cluster: &str| {
        Api::<ProtectionGroup>::namespaced(lab.cluster(cluster).admin.clone(), "dr-metro")
    };
    for (cluster, state) in [("east", "running"), ("west", "stopped")] {
        let mirror = group(cluster).get("shop").await.unwrap();
        assert_eq!(mirror.spec.desired_state.as_str(), state, "{cluster}");
        assert_eq!(mirror.spec.members.len(), vms.len());
        assert!(mirror.spec.members.iter().all(|m| m.vm_ref.is_some()));
        eventually(&format!("the group being {state} on {cluster}"), || async {
            let status = group(cluster).get("shop").await?.status.unwrap_or_default();
            Ok((status.current_state.map(|s| s.as_str()) == Some(state)).then_some(()))
        })
        .await
        .unwrap();
    }
    lab.set_site("east", false).await.unwrap();
    eventually("the group unknown", || async {
        let status = group("hub").get("shop").await?.status.unwrap_or_default();
        Ok((status.current_state.map(|s| s.as_str()) == Some("unknown")).then_some(()))
    })
    .await
    .unwrap();
}

/// Sets the volumes of a VM's template.
async fn set_volumes(lab: &Lab, vm: &str, volumes: &serde_json::Value) {
    let edit = Patch::Merge(json!({ "spec": { "template": { "spec": { "volumes": volumes } } } }));
    user(lab)
        .machines("east", "shop")
        .patch(vm, &PatchParams::default(), &edit)
        .await
        .unwrap();
}

/// Waits until a request says this of `Protected`, and returns its phase and message.
async fn protected_says(lab: &Lab, name: &str, reason: &str) -> (ProtectionPhase, String) {
    let requests: Api<ProtectionRequest> = user(lab).api();
    eventually(reason, || async {
        let status = requests.get(name).await?.status.unwrap_or_default();
        let told = status.conditions.iter().find(|c| c.type_ == "Protected");
        Ok(told
            .filter(|c| c.reason == reason)
            .and_then(|c| Some((status.phase?, c.message.clone()))))
    })
    .await
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_added_later_is_said_and_holds_up_a_failover_until_it_is_detached() {
    let (lab, vms) = lab_with_group().await;
    let machines = user(&lab).machines("east", "shop");
    let before =
        plain(&machines.get("db01").await.unwrap())["spec"]["template"]["spec"]["volumes"].clone();
    let mut more = before.clone();
    more.as_array_mut()
        .unwrap()
        .push(json!({ "name": "extra", "persistentVolumeClaim": { "claimName": "db01-extra" } }));
    set_volumes(&lab, "db01", &more).await;
    let (phase, message) = protected_says(&lab, "db01", "UnreplicatedVolume").await;
    assert_eq!(phase, ProtectionPhase::Degraded);
    assert!(message.contains("db01-extra"), "{message}");

    let manifest = user(&lab).failover_manifest("too-early", "shop", "west");
    user(&lab).apply("hub", &manifest).await.unwrap();
    let refused = user(&lab).failover_ended("too-early").await.unwrap();
    let status = refused.status.unwrap();
    let message = status.message.unwrap_or_default();
    assert_eq!(status.state, Some(FailoverState::Failed), "{message}");
    assert!(
        message.contains("db01 (Degraded, UnreplicatedVolume)"),
        "{message}"
    );
    for vm in &vms {
        assert_eq!(
            lab.guests.places(&vm.key()),
            ["east"],
            "nothing was stopped"
        );
    }

    set_volumes(&lab, "db01", &before).await;
    let (phase, _) = protected_says(&lab, "db01", "InSync").await;
    assert_eq!(phase, ProtectionPhase::Protected);
    user(&lab).group_ready("shop").await.unwrap();
    user(&lab)
        .fail_over("to-west", "shop", "west")
        .await
        .unwrap();
    assert_whole(&lab, "west", &vms).await;
}

#[tokio::test(start_paused = true)]
async fn a_user_stops_the_group_and_a_vm_that_does_not_start_again_says_why() {
    let (lab, vms) = lab_with_group().await;
    let groups: Api<ProtectionGroup> = user(&lab).api();
    let want = |state: &str| {
        let edit = json!({ "spec": { "desiredState": state } });
        let groups = groups.clone();
        async move {
            groups
                .patch("shop", &PatchParams::default(), &Patch::Merge(&edit))
                .await
                .unwrap();
        }
    };
    want("stopped").await;
    eventually("both VMs stopped", || async {
        let status = groups.get("shop").await?.status.unwrap_or_default();
        let stopped = status.current_state.map(|s| s.as_str()) == Some("stopped");
        let nowhere = vms.iter().all(|vm| lab.guests.places(&vm.key()).is_empty());
        Ok((stopped && nowhere).then_some(()))
    })
    .await
    .unwrap();

    let nowhere = Patch::Merge(
        json!({ "spec": { "template": { "spec": { "nodeSelector": { "rack": "none" } } } } }),
    );
    let machines = user(&lab).machines("east", "shop");
    machines
        .patch("db01", &PatchParams::default(), &nowhere)
        .await
        .unwrap();
    want("running").await;
    user(&lab).vm_runs("east", &vms[1]).await.unwrap();
    let instances: Api<kube::api::DynamicObject> = Api::namespaced_with(
        lab.cluster("east").admin.clone(),
        "shop",
        &farshore_lab::sim::vmi_resource(),
    );
    eventually("the reason in the group", || async {
        let told = groups.get("shop").await?.status.unwrap_or_default().vms;
        let told = told.into_iter().find(|v| v.name == "db01");
        let message = told.and_then(|v| v.message).unwrap_or_default();
        let Some(instance) = instances.get_opt("db01").await? else {
            return Ok(None);
        };
        let conditions = plain(&instance)["status"]["conditions"].clone();
        let why = conditions[0]["message"].as_str().unwrap_or("?").to_string();
        Ok(message.contains(why.trim_end_matches('.')).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failover_writes_the_status_of_each_request_twice() {
    let (lab, vms) = lab_with_group().await;
    // In the machine's time the news of both sites may come apart, which tells one state more.
    let each = if super::engine().is_virtual() { 2 } else { 3 };
    for (name, target) in [("to-west", "west"), ("to-east", "east")] {
        pass(120).await;
        let mark = lab.cluster("hub").server.mark();
        user(&lab).fail_over(name, "shop", target).await.unwrap();
        pass(120).await;
        let writes: Vec<String> = lab
            .cluster("hub")
            .server
            .requests_since(mark)
            .iter()
            .filter(|e| {
                e.is_write() && e.resource == "protectionrequests" && e.subresource == "status"
            })
            .map(ToString::to_string)
            .collect();
        assert!(
            writes.len() <= each * vms.len(),
            "{name}:\n{}",
            writes.join("\n")
        );
    }
}

/// Conditions of every object of a kind on a cluster, each with the object's title.
async fn conditions_of<K>(lab: &Lab, cluster: &str) -> Vec<(String, Condition)>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    K: serde::Serialize,
{
    let api: Api<K> = Api::all(lab.cluster(cluster).admin.clone());
    let mut found = Vec::new();
    for object in api.list(&ListParams::default()).await.unwrap().items {
        let title = format!(
            "{} {} on {cluster}",
            K::kind(&()),
            kube::ResourceExt::name_any(&object)
        );
        let value = serde_json::to_value(&object).unwrap();
        let all: Vec<Condition> =
            serde_json::from_value(value["status"]["conditions"].clone()).unwrap_or_default();
        assert!(!all.is_empty(), "{title} has no conditions");
        found.extend(all.into_iter().map(|c| (title.clone(), c)));
    }
    assert!(!found.is_empty(), "no {} on {cluster}", K::kind(&()));
    found
}

#[tokio::test(start_paused = true)]
async fn every_kind_answers_a_wait_for_its_conditions_in_the_settled_state() {
    let (lab, _) = lab_with_group().await;
    pass(120).await;
    let told = [
        (
            conditions_of::<ProtectionZone>(&lab, "hub").await,
            &[
                "ClustersValidated",
                "LeasesHeld",
                "CRDsApplied",
                "ManagerDeployed",
                "WorkloadsDeployed",
                "DefaultPolicyReady",
                "Ready",
            ][..],
        ),
        (
            conditions_of::<DRBDReplicationPolicy>(&lab, "hub").await,
            &["Accepted"],
        ),
        (
            conditions_of::<ProtectionRequest>(&lab, "hub").await,
            &[
                "Validated",
                "DRBDCreated",
                "Synced",
                "Protected",
                "Connected",
                "StandbyInStep",
            ],
        ),
        (
            conditions_of::<ProtectionGroup>(&lab, "hub").await,
            &["Synced", "MembersProtected", "Ready"],
        ),
        (
            conditions_of::<ReplicationGroupStatus>(&lab, "hub").await,
            &["Reachable", "Healthy"],
        ),
        (conditions_of::<DRBDVolume>(&lab, "hub").await, &["Synced"]),
        (
            conditions_of::<ProtectionGroup>(&lab, "east").await,
            &["Ready"],
        ),
        (
            conditions_of::<ProtectionGroup>(&lab, "west").await,
            &["Ready"],
        ),
        (
            conditions_of::<DRBDResource>(&lab, "east").await,
            &[
                "NodeBound",
                "BackingReady",
                "MetadataReady",
                "ConfigWritten",
                "Up",
                "Connected",
                "UpToDate",
                "FrontendReady",
            ],
        ),
        (
            conditions_of::<DRBDResource>(&lab, "west").await,
            &[
                "NodeBound",
                "BackingReady",
                "MetadataReady",
                "ConfigWritten",
                "Up",
                "Connected",
                "UpToDate",
                "FrontendReady",
            ],
        ),
    ];
    for (found, good) in told {
        let titles: BTreeSet<&String> = found.iter().map(|(title, _)| title).collect();
        for (title, condition) in &found {
            assert_ne!(condition.status, "Unknown", "{title}: {condition:?}");
            assert!(!condition.reason.is_empty(), "{title}: {condition:?}");
        }
        for title in titles {
            for type_ in good {
                let holds = found
                    .iter()
                    .any(|(t, c)| t == title && c.type_ == *type_ && c.status == "True");
                assert!(holds, "{title} is not {type_}: {found:#?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_shared_secret_is_only_in_its_secrets() {
    let (lab, _) = lab_with_group().await;
    for cluster in ["east", "west"] {
        let client = lab.cluster(cluster).admin.clone();
        let secrets: Api<Secret> = Api::namespaced(client.clone(), "shop");
        let all = secrets.list(&ListParams::default()).await.unwrap().items;
        let found: Vec<String> = all
            .iter()
            .filter(|s| {
                s.metadata
                    .name
                    .as_deref()
                    .is_some_and(|n| n.starts_with("drbd-secret-"))
            })
            .filter_map(|s| String::from_utf8(s.data.clone()?.get("secret")?.0.clone()).ok())
            .collect();
        assert_eq!(found.len(), 2, "{cluster}");
        let resources: Api<DRBDResource> = Api::namespaced(client, "shop");
        let text =
            serde_json::to_string(&resources.list(&ListParams::default()).await.unwrap().items)
                .unwrap();
        assert!(
            found
                .iter()
                .all(|secret| secret.len() >= 16 && !text.contains(secret))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_unprotected_vm_runs_on_its_own_disks_again() {
    let lab = lab_with_zone().await;
    let vm = Vm::new("shop", "db01", 1, 32);
    user(&lab)
        .protect("east", std::slice::from_ref(&vm), "Online")
        .await
        .unwrap();
    let requests: Api<ProtectionRequest> = user(&lab).api();
    requests.delete("db01", &Default::default()).await.unwrap();
    eventually("the request gone", || async {
        Ok(requests.get_opt("db01").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    user(&lab).vm_runs("east", &vm).await.unwrap();
    let machine = plain(
        &user(&lab)
            .machines("east", "shop")
            .get("db01")
            .await
            .unwrap(),
    );
    assert_eq!(
        machine["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"],
        "db01-0"
    );
    for cluster in ["east", "west"] {
        let resources: Api<DRBDResource> =
            Api::namespaced(lab.cluster(cluster).admin.clone(), "shop");
        eventually("the resources gone", || async {
            Ok(resources
                .list(&ListParams::default())
                .await?
                .items
                .is_empty()
                .then_some(()))
        })
        .await
        .unwrap();
    }
    assert_whole(&lab, "east", std::slice::from_ref(&vm)).await;
}

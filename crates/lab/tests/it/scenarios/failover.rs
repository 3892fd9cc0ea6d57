//! Planned failover and failback.

use std::time::Duration;

use farshore_api::failover_request::{
    FailoverRequestStatus, FailoverState, StepState, VmFailoverPhase,
};
use farshore_api::meta::managers;
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_api::{DRBDResource, FailoverRequest, ProtectionGroup, ProtectionRequest, names};
use farshore_lab::lab::{CLUSTERS, Lab};
use farshore_lab::measure::fail_over;
use farshore_lab::story::{Vm, eventually, has_condition};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::json;

use super::{assert_whole, lab_with_group, pass, user};

#[tokio::test(start_paused = true)]
async fn a_group_moves_to_the_other_site_and_back_without_losing_a_block() {
    let (lab, vms) = lab_with_group().await;
    pass(5).await;
    for (name, target) in [("to-west", "west"), ("to-east", "east")] {
        let moved = fail_over(&user(&lab), name, "shop", target, &vms)
            .await
            .unwrap();
        for vm in &moved.vms {
            assert!(vm.is_whole(), "{vm:?}");
        }
        user(&lab).group_ready("shop").await.unwrap();
        assert_whole(&lab, target, &vms).await;
        let groups: Api<ProtectionGroup> = user(&lab).api();
        let status = groups.get("shop").await.unwrap().status.unwrap();
        assert_eq!(status.active_cluster.as_deref(), Some(target));
        assert_eq!(status.current_state, Some(CurrentState::Running));
        assert_eq!(status.last_failover.as_deref(), Some(name));
        pass(5).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_completed_failover_tells_its_story_in_status() {
    // C24, and the order of states that S1 and S2 give.
    let (lab, vms) = lab_with_group().await;
    let request = user(&lab)
        .fail_over("to-west", "shop", "west")
        .await
        .unwrap();
    let status = request.status.unwrap();
    let passed: Vec<FailoverState> = status
        .steps
        .iter()
        .filter(|s| s.state == StepState::Done)
        .map(|s| s.name)
        .collect();
    let order = [
        FailoverState::Validating,
        FailoverState::StoppingOnSource,
        FailoverState::PromotingTarget,
        FailoverState::StartingOnTarget,
    ];
    let places: Vec<_> = order
        .iter()
        .map(|s| passed.iter().position(|p| p == s))
        .collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{passed:?}"
    );
    assert_eq!(status.vm_statuses.len(), vms.len());
    assert!(
        status
            .vm_statuses
            .iter()
            .all(|vm| vm.phase == VmFailoverPhase::Running && vm.end_time.is_some())
    );
    assert!(status.completion_time.is_some() && status.duration_seconds.is_some_and(|s| s < 300));
    for condition in [
        "Locked",
        "SourceStopped",
        "RolesFlipped",
        "TargetRunning",
        "Complete",
    ] {
        assert!(
            status.conditions.iter().any(|c| c.type_ == condition),
            "{condition}"
        );
    }
    assert!(has_condition(&status.conditions, "Complete", "True"));
}

#[tokio::test(start_paused = true)]
async fn a_failover_holds_its_lease_for_five_minutes_and_releases_it() {
    // C18
    let (lab, _) = lab_with_group().await;
    let leases: Api<Lease> = user(&lab).api();
    user(&lab)
        .apply(
            "hub",
            &user(&lab).failover_manifest("to-west", "shop", "west"),
        )
        .await
        .unwrap();
    let request: FailoverRequest = user(&lab).api().get("to-west").await.unwrap();
    let held = eventually("the lease held", || async {
        let lease = leases.get_opt(&names::failover_lock("shop")).await?;
        Ok(lease
            .and_then(|l| l.spec)
            .filter(|s| s.holder_identity.as_deref().is_some_and(|h| !h.is_empty())))
    })
    .await
    .unwrap();
    assert_eq!(held.holder_identity, request.metadata.uid);
    assert_eq!(held.lease_duration_seconds, Some(300));
    user(&lab).failover_ended("to-west").await.unwrap();
    eventually("the lease released", || async {
        let lease = leases.get_opt(&names::failover_lock("shop")).await?;
        let holder = lease
            .and_then(|l| l.spec)
            .and_then(|s| s.holder_identity)
            .unwrap_or_default();
        Ok(holder.is_empty().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_failover_controller_never_writes_a_vm() {
    // C20
    let (lab, _) = lab_with_group().await;
    user(&lab)
        .fail_over("to-west", "shop", "west")
        .await
        .unwrap();
    for cluster in CLUSTERS {
        for entry in lab.cluster(cluster).server.requests() {
            let on_vm = entry.group == "kubevirt.io" && entry.is_write();
            assert!(!(on_vm && entry.manager == managers::FAILOVER), "{entry}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_sites_never_call_the_hub() {
    // C31
    let (lab, _) = lab_with_group().await;
    user(&lab)
        .fail_over("to-west", "shop", "west")
        .await
        .unwrap();
    for entry in lab.cluster("hub").server.requests() {
        let own = [
            "system:serviceaccount:site-recovery-system:",
            "system:serviceaccount:dr-metro:",
        ];
        let expected = own.iter().any(|prefix| entry.user.starts_with(prefix))
            || !entry.user.starts_with("system:serviceaccount:");
        // Nobody tries without a credential of the hub either.
        let known = entry.code != 401 && !entry.user.is_empty() && entry.user != "system:anonymous";
        assert!(expected && known, "{entry}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_moves_without_a_failover_request() {
    // C33
    let (lab, vms) = lab_with_group().await;
    lab.set_site("east", false).await.unwrap();
    pass(900).await;
    let requests: Api<ProtectionRequest> = user(&lab).api();
    for request in requests.list(&ListParams::default()).await.unwrap() {
        assert_eq!(request.spec.source_cluster, "east");
    }
    for vm in &vms {
        assert_eq!(lab.guests.places(&vm.key()), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_run_as_jobs_on_the_target() {
    // C25
    let (lab, vms) = lab_with_group().await;
    user(&lab)
        .apply(
            "west",
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "hooks" } }),
        )
        .await
        .unwrap();
    let hook = |name: &str| {
        json!({ "name": name, "namespace": "hooks", "jobTemplate": { "spec": { "template": { "spec": {
        "restartPolicy": "Never", "containers": [{ "name": "hook", "image": "example/hook:1" }] } } } } })
    };
    let mut manifest = user(&lab).failover_manifest("to-west", "shop", "west");
    manifest["spec"]["hooks"] =
        json!({ "preFailover": [hook("announce")], "postFailover": [hook("resume")] });
    user(&lab).apply("hub", &manifest).await.unwrap();
    let request = user(&lab).failover_ended("to-west").await.unwrap();
    let uid = request.metadata.uid.unwrap();
    assert_eq!(
        request.status.unwrap().state,
        Some(FailoverState::Completed)
    );
    let jobs: Api<Job> = Api::namespaced(lab.cluster("west").admin.clone(), "hooks");
    for stage in ["pre", "post"] {
        let job = jobs
            .get(&names::hook_job("to-west", &uid, stage, 0))
            .await
            .unwrap();
        assert_eq!(job.status.and_then(|s| s.succeeded), Some(1), "{stage}");
    }
    let on_east: Api<Job> = Api::all(lab.cluster("east").admin.clone());
    assert!(
        on_east
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    assert_whole(&lab, "west", &vms).await;
}

#[tokio::test(start_paused = true)]
async fn a_failing_hook_before_the_failover_leaves_the_vms_where_they_are() {
    let (lab, vms) = lab_with_group().await;
    user(&lab)
        .apply(
            "west",
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "hooks" } }),
        )
        .await
        .unwrap();
    let mut manifest = user(&lab).failover_manifest("to-west", "shop", "west");
    manifest["spec"]["hooks"] = json!({ "preFailover": [{ "name": "refuse", "namespace": "hooks", "jobTemplate": {
        "metadata": { "annotations": { "lab.farshore.io/exit-code": "1" } },
        "spec": { "backoffLimit": 0, "template": { "spec": {
            "restartPolicy": "Never", "containers": [{ "name": "hook", "image": "example/hook:1" }] } } } } }] });
    user(&lab).apply("hub", &manifest).await.unwrap();
    let status = user(&lab)
        .failover_ended("to-west")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(status.state, Some(FailoverState::Failed));
    assert!(
        status
            .message
            .as_deref()
            .unwrap_or_default()
            .contains("refuse"),
        "{:?}",
        status.message
    );
    for vm in &vms {
        user(&lab).vm_runs("east", vm).await.unwrap();
    }
    assert_whole(&lab, "east", &vms).await;
}

#[tokio::test(start_paused = true)]
async fn a_failover_that_cannot_go_on_ends_at_its_budget_with_the_vms_running() {
    // C27: the VMs cannot stop, so the budget ends it and the source goes on.
    let (lab, vms) = lab_with_group().await;
    let mut manifest = user(&lab).failover_manifest("to-west", "shop", "west");
    manifest["spec"]["timeoutSeconds"] = json!(60);
    lab.inject(&"link cut".parse().unwrap()).await.unwrap();
    pass(30).await;
    let begun = tokio::time::Instant::now();
    user(&lab).apply("hub", &manifest).await.unwrap();
    let status = user(&lab)
        .failover_ended("to-west")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(
        status.state,
        Some(FailoverState::Failed),
        "{:?}",
        status.message
    );
    assert!(
        begun.elapsed() <= Duration::from_secs(60 + 60 + 10),
        "{:?}",
        begun.elapsed()
    );
    for vm in &vms {
        user(&lab).vm_runs("east", vm).await.unwrap();
    }
    lab.inject(&"link heal".parse().unwrap()).await.unwrap();
    user(&lab).group_ready("shop").await.unwrap();
    user(&lab).fail_over("again", "shop", "west").await.unwrap();
    assert_whole(&lab, "west", &vms).await;
}

/// Asks for a failover and comes back at the very moment at which the roles begin to change. That
/// takes no time worth polling for: it is watched.
async fn until_promoting(lab: &Lab, manifest: &serde_json::Value) {
    let requests: Api<FailoverRequest> = user(lab).api();
    let mut changes = requests
        .watch(&WatchParams::default(), "0")
        .await
        .unwrap()
        .boxed();
    user(lab).apply("hub", manifest).await.unwrap();
    while let Some(change) = changes.next().await {
        if let WatchEvent::Modified(request) = change.unwrap()
            && request.status.and_then(|s| s.state) == Some(FailoverState::PromotingTarget)
        {
            return;
        }
    }
    panic!("the watch ended");
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_cut_between_the_role_changes_brings_the_group_back_to_the_source() {
    let (lab, vms) = lab_with_group().await;
    pass(5).await;
    let mut manifest = user(&lab).failover_manifest("to-west", "shop", "west");
    if !super::engine().is_virtual() {
        manifest["spec"]["timeoutSeconds"] = json!(120); // five minutes are real ones there
    }
    until_promoting(&lab, &manifest).await;
    lab.inject(&"link cut".parse().unwrap()).await.unwrap();
    pass(30).await;
    let requests: Api<FailoverRequest> = user(&lab).api();
    let abort = Patch::Merge(json!({ "spec": { "abort": true } }));
    requests
        .patch("to-west", &PatchParams::default(), &abort)
        .await
        .unwrap();
    pass(5).await;
    let status = requests.get("to-west").await.unwrap().status.unwrap();
    assert_eq!(status.state, Some(FailoverState::PromotingTarget));
    assert!(has_condition(&status.conditions, "Aborted", "False"));
    let message = status.message.unwrap();
    for part in [
        "cluster east: Secondary, disk UpToDate",
        "cluster west: Secondary, disk Consistent",
        "go back",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let status = user(&lab)
        .failover_ended("to-west")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(status.rolled_back, Some(true), "{:?}", status.message);
    assert!(has_condition(&status.conditions, "Failed", "True"));
    assert!(status.duration_seconds.unwrap() <= 300 + 60);
    for vm in &vms {
        user(&lab).vm_runs("east", vm).await.unwrap();
    }
    assert_whole(&lab, "east", &vms).await;

    // Nothing is left of it: the link heals without split brain, and the next one completes.
    lab.inject(&"link heal".parse().unwrap()).await.unwrap();
    user(&lab).group_ready("shop").await.unwrap();
    for vm in &vms {
        user(&lab).protected(vm).await.unwrap();
    }
    user(&lab).fail_over("again", "shop", "west").await.unwrap();
    assert_whole(&lab, "west", &vms).await;
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_lost_between_the_role_changes_is_waited_for_and_never_guessed_about() {
    let (lab, vms) = lab_with_group().await;
    let mut manifest = user(&lab).failover_manifest("to-west", "shop", "west");
    manifest["spec"]["timeoutSeconds"] = json!(60);
    until_promoting(&lab, &manifest).await;
    lab.set_site("west", false).await.unwrap();
    let status = user(&lab)
        .failover_ended("to-west")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(
        (status.rolled_back, status.resumable),
        (Some(false), Some(true))
    );
    let message = status.message.unwrap();
    assert!(
        message.contains("cluster west: not known") && message.contains("down on both"),
        "{message}"
    );
    pass(60).await;
    for vm in &vms {
        assert_eq!(lab.guests.places(&vm.key()), Vec::<String>::new());
    }
    // As the message says: it starts on the target without another request.
    lab.set_site("west", true).await.unwrap();
    for vm in &vms {
        user(&lab).vm_runs("west", vm).await.unwrap();
    }
    user(&lab).group_ready("shop").await.unwrap();
    assert_whole(&lab, "west", &vms).await;
}

/// Somebody deletes the DRBDResource of the first VM on one side while the roles change. Returns how the
/// failover ended, which is at once: what is gone is not waited for.
async fn resource_lost_while_promoting(lab: &Lab, vms: &[Vm], side: &str) -> FailoverRequestStatus {
    pass(5).await;
    let manifest = user(lab).failover_manifest("to-west", "shop", "west");
    until_promoting(lab, &manifest).await;
    let resources: Api<DRBDResource> = Api::namespaced(lab.cluster(side).admin.clone(), "shop");
    let all = resources.list(&ListParams::default()).await.unwrap();
    let lost = all.iter().find(|r| r.spec.vm_ref.name == vms[0].name);
    let name = lost.unwrap().metadata.name.clone().unwrap();
    resources
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    let ended = user(lab).failover_ended("to-west").await.unwrap();
    let status = ended.status.unwrap();
    assert!(
        status.duration_seconds.unwrap() < 120,
        "it waited for what does not come back: {:?}",
        status.message
    );
    let failed = status.conditions.iter().find(|c| c.type_ == "Failed");
    assert_eq!(failed.unwrap().reason, "ResourceMissing");
    status
}

#[tokio::test(start_paused = true)]
async fn a_target_whose_resource_is_deleted_between_the_role_changes_gives_the_roles_back() {
    let (lab, vms) = lab_with_group().await;
    let status = resource_lost_while_promoting(&lab, &vms, "west").await;
    assert_eq!(status.rolled_back, Some(true), "{:?}", status.message);
    for vm in &vms {
        user(&lab).vm_runs("east", vm).await.unwrap();
        user(&lab).protected(vm).await.unwrap();
    }
    user(&lab).group_ready("shop").await.unwrap();
    assert_whole(&lab, "east", &vms).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_whose_resource_is_deleted_between_the_role_changes_ends_it_with_a_way_out() {
    let (lab, vms) = lab_with_group().await;
    let status = resource_lost_while_promoting(&lab, &vms, "east").await;
    let message = status.message.unwrap();
    for part in [
        "set spec.sourceCluster of ProtectionRequest db01 to east and delete it",
        "then start the VM",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // The other member goes on.
    user(&lab).vm_runs("west", &vms[1]).await.unwrap();
    // As the message says.
    let requests: Api<ProtectionRequest> = user(&lab).api();
    let back = Patch::Merge(json!({ "spec": { "sourceCluster": "east" } }));
    requests
        .patch("db01", &PatchParams::default(), &back)
        .await
        .unwrap();
    requests
        .delete("db01", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the request is gone", async || {
        Ok(requests.get_opt("db01").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    let start = Patch::Merge(json!({ "spec": { "runStrategy": "Always" } }));
    user(&lab)
        .machines("east", "shop")
        .patch("db01", &PatchParams::default(), &start)
        .await
        .unwrap();
    user(&lab).vm_runs("east", &vms[0]).await.unwrap();
    assert_eq!(lab.guests.violations(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_group_moves_and_stays_stopped_until_it_is_started() {
    let (lab, vms) = lab_with_group().await;
    let groups: Api<ProtectionGroup> = user(&lab).api();
    let wish = |state: &str| Patch::Merge(json!({ "spec": { "desiredState": state } }));
    groups
        .patch("shop", &PatchParams::default(), &wish("stopped"))
        .await
        .unwrap();
    eventually("the group stopped", || async {
        let status = groups.get("shop").await?.status.unwrap_or_default();
        Ok((status.current_state == Some(CurrentState::Stopped)).then_some(()))
    })
    .await
    .unwrap();
    user(&lab)
        .fail_over("to-west", "shop", "west")
        .await
        .unwrap();
    user(&lab).group_ready("shop").await.unwrap();
    pass(60).await;
    let group = groups.get("shop").await.unwrap();
    assert_eq!(group.spec.desired_state, DesiredState::Stopped);
    let status = group.status.unwrap();
    assert_eq!(status.active_cluster.as_deref(), Some("west"));
    for vm in &vms {
        assert_eq!(lab.guests.places(&vm.key()), Vec::<String>::new());
    }
    groups
        .patch("shop", &PatchParams::default(), &wish("running"))
        .await
        .unwrap();
    for vm in &vms {
        user(&lab).vm_runs("west", vm).await.unwrap();
    }
    assert_whole(&lab, "west", &vms).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_lock_is_left_when_its_group_is_deleted() {
    let (lab, _) = lab_with_group().await;
    user(&lab)
        .fail_over("to-west", "shop", "west")
        .await
        .unwrap();
    user(&lab).group_ready("shop").await.unwrap();
    let leases: Api<Lease> = user(&lab).api();
    let lock = names::failover_lock("shop");
    assert!(leases.get_opt(&lock).await.unwrap().is_some());
    let groups: Api<ProtectionGroup> = user(&lab).api();
    groups
        .delete("shop", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the lock collected", || async {
        Ok(leases.get_opt(&lock).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn events_tell_the_story_of_a_failover() {
    let (lab, _) = lab_with_group().await;
    let request = user(&lab)
        .fail_over("to-west", "shop", "west")
        .await
        .unwrap();
    let events: Api<k8s_openapi::api::core::v1::Event> = user(&lab).api();
    // Events are written beside the status, and may come after it.
    let about = eventually("the events of the failover", || async {
        let mut all = events.list(&ListParams::default()).await?.items;
        all.retain(|e| e.involved_object.uid == request.metadata.uid);
        Ok((all.len() >= 4).then_some(all))
    })
    .await
    .unwrap();
    assert!(
        about
            .iter()
            .all(|e| e.message.as_deref().is_some_and(|m| m.len() > 10) && e.reason.is_some())
    );
}

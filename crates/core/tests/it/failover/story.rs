//! Whole failovers in a world that does what it is told, and in worlds that do not.

use std::time::Duration;

use farshore_api::drbd::{DiskState, Role};
use farshore_api::failover_request::FailoverState::{self, *};
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_core::failover::{LockPurpose, Step};
use farshore_core::{Seen, conditions};
use serde_json::json;

use super::world::{World, vms};

fn kinds(world: &World) -> Vec<String> {
    let name = |step: &Step| match step {
        Step::AddFinalizer => "AddFinalizer".to_string(),
        Step::RemoveFinalizer => "RemoveFinalizer".into(),
        Step::WriteLock { purpose, .. } => format!("{purpose:?}Lock"),
        Step::CreateHookJob { name, .. } => format!("Job {name}"),
        Step::SetDesiredState {
            cluster, desired, ..
        } => format!("{cluster} {desired}"),
        Step::SetTaints { node, removed, .. } => format!("untaint {node} {}", removed.join(",")),
        Step::Flip {
            protection_request,
            to,
        } => format!("flip {protection_request} to {to}"),
    };
    world.trace.iter().map(name).collect()
}

#[test]
fn a_request_that_is_made_again_under_its_name_runs_its_hooks_again() {
    let jobs = |uid: &str| {
        let mut world = World::new();
        world.hooks(json!({
            "preFailover": [{"name": "quiesce", "namespace": "ops", "jobTemplate": {"spec": {}}}],
            "postFailover": [{"name": "dns", "namespace": "ops", "jobTemplate": {"spec": {}}}],
        }));
        // What a request of this name and with this UID has left behind.
        for when in ["pre", "post"] {
            let job = json!({"status": {"conditions": [{"type": "Complete", "status": "True"}]}});
            world.seen.jobs.insert(
                farshore_api::names::hook_job("shop-1", uid, when, 0),
                Seen::Present(serde_json::from_value(job).unwrap()),
            );
        }
        assert_eq!(world.run(), Completed);
        let made = kinds(&world);
        made.iter().filter(|step| step.starts_with("Job ")).count()
    };
    assert_eq!(jobs("uid-of-the-one-before"), 2);
    assert_eq!(jobs(super::world::UID), 0, "its own are not run twice");
}

#[test]
fn a_planned_failover_passes_its_states_in_order_and_writes_in_order() {
    let mut world = World::new();
    world.taint(&["drbd.linbit.com/lost-quorum"]);
    world.hooks(json!({
        "preFailover": [{"name": "quiesce", "namespace": "ops", "jobTemplate": {"spec": {}}}],
        "postFailover": [{"name": "dns", "namespace": "ops", "jobTemplate": {"spec": {}}}],
    }));
    assert_eq!(world.run(), Completed);
    assert_eq!(
        world.states,
        [
            Pending,
            Validating,
            RunningPreHooks,
            StoppingOnSource,
            RemovingTaints,
            PromotingTarget,
            StartingOnTarget,
            RunningPostHooks,
            Completed
        ]
    );
    assert_eq!(
        kinds(&world),
        [
            "AddFinalizer",
            "TakeLock",
            "Job shop-1-decb7c42-pre-0",
            "east stopped",
            "untaint west-1 drbd.linbit.com/lost-quorum",
            "flip db01 to west",
            "flip web01 to west",
            "west running",
            "Job shop-1-decb7c42-post-0",
            "ReleaseLock",
            "RemoveFinalizer",
        ]
    );
    let status = world.status();
    for fact in [
        "SafetyCheckPassed",
        "SourceStopped",
        "RolesFlipped",
        "TargetRunning",
        "HooksSucceeded",
        "Complete",
    ] {
        assert!(conditions::is_true(&status.conditions, fact), "{fact}");
    }
    assert!(
        status
            .vm_statuses
            .iter()
            .all(|vm| vm.phase.as_str() == "Running"
                && vm.start_time.is_some()
                && vm.end_time.is_some())
    );
    assert_eq!(
        status.duration_seconds,
        Some(
            status.completion_time.unwrap().0.as_second()
                - status.start_time.unwrap().0.as_second()
        )
    );
}

#[test]
fn a_finished_failover_does_nothing_more() {
    let mut world = World::new();
    world.run();
    let (before, steps) = (world.seen.request.clone(), world.trace.len());
    world.pass(Duration::from_secs(3600));
    let decision = world.round();
    assert_eq!(
        (decision.requeue, decision.notes.len(), world.trace.len()),
        (None, 0, steps)
    );
    assert_eq!(before, world.seen.request);
}

#[test]
fn a_failback_is_the_same_in_the_other_direction() {
    let mut world = World::new();
    world.run();
    let mut back = World::new();
    std::mem::swap(&mut back.seen.source, &mut back.seen.target);
    back.seen.request.spec.target_cluster = "east".into();
    back.seen.source = world.seen.target.clone();
    back.seen.target = world.seen.source.clone();
    back.seen.members = world.seen.members.clone();
    back.seen.nodes = [("east-1".to_string(), Seen::Present(super::world::node(&[])))].into();
    assert_eq!(back.run(), Completed);
    assert!(
        back.seen
            .members
            .iter()
            .all(|m| m.spec.source_cluster == "east")
    );
}

#[test]
fn a_group_that_was_stopped_stays_stopped_after_its_failover() {
    let mut world = World::new();
    world.seen.group.as_mut().unwrap().spec.desired_state = DesiredState::Stopped;
    world.source_has_stopped();
    assert_eq!(world.run(), Completed);
    let told = kinds(&world);
    assert!(
        !told
            .iter()
            .any(|k| k.ends_with("running") || k.ends_with("stopped")),
        "{told:?}"
    );
    assert!(told.contains(&"flip db01 to west".to_string()));
    let status = world.status();
    assert!(
        status
            .vm_statuses
            .iter()
            .all(|vm| vm.phase.as_str() == "Promoted" && vm.end_time.is_some())
    );
    assert!(status.message.unwrap().contains("stays stopped"));
}

#[test]
fn a_target_that_cannot_be_promoted_gives_the_roles_back() {
    let mut world = World::in_state(PromotingTarget);
    world.source_has_stopped();
    world.round();
    world.round();
    assert!(world.seen.all_flipped());
    world.cut_link();
    assert_eq!(world.run(), Failed);
    assert_eq!(world.status().rolled_back, Some(true));
    assert!(!world.seen.any_flipped());
    let told = kinds(&world);
    let last = |step: &str| told.iter().rposition(|k| k == step).unwrap();
    assert!(
        last("flip web01 to east") < last("east running"),
        "{told:?}"
    );
    assert!(!told.contains(&"west running".to_string()), "{told:?}");
    let status = world.status();
    assert_eq!(
        conditions::get(&status.conditions, "Failed")
            .unwrap()
            .reason,
        "BudgetExceeded"
    );
    assert!(
        status
            .vm_statuses
            .iter()
            .all(|vm| vm.phase.as_str() == "Running")
    );
}

/// What stands against giving the roles back: whatever was not seen, or may have written there.
#[test]
fn roles_do_not_go_back_unless_all_that_it_needs_was_seen() {
    let stuck = || {
        let mut world = World::in_state(PromotingTarget);
        world.source_has_stopped();
        world.flipping();
        world.flip_all();
        world.cut_link();
        world.budget_is_over();
        world
    };
    type Spoil = fn(&mut World);
    let spoils: [(&str, Spoil); 8] = [
        ("target silent", |w| {
            w.seen.target = farshore_core::failover::Side::unknown("west", "silent")
        }),
        ("source silent", |w| {
            w.seen.source = farshore_core::failover::Side::unknown("east", "silent")
        }),
        ("one VM is Primary there", |w| {
            World::resources(&mut w.seen.target)
                .values_mut()
                .next()
                .unwrap()
                .status
                .as_mut()
                .unwrap()
                .role = Some(Role::Primary)
        }),
        ("one VM was Primary there", |w| {
            let resource = World::resources(&mut w.seen.target)
                .values_mut()
                .next()
                .unwrap();
            (resource.spec.role, resource.spec.role_epoch) = (Role::Primary, 2);
            resource.status.as_mut().unwrap().role_epoch = Some(2);
        }),
        ("its role is not known", |w| {
            World::resources(&mut w.seen.target)
                .values_mut()
                .next()
                .unwrap()
                .status
                .as_mut()
                .unwrap()
                .role = None
        }),
        ("the source is behind", |w| {
            World::resources(&mut w.seen.source)
                .values_mut()
                .next()
                .unwrap()
                .status
                .as_mut()
                .unwrap()
                .disk_state = Some(DiskState::Outdated)
        }),
        ("the target was told to run", |w| {
            super::world::told(&mut w.seen.target, DesiredState::Running)
        }),
        ("an earlier request flipped", |w| {
            w.seen
                .request
                .status
                .as_mut()
                .unwrap()
                .conditions
                .retain(|c| c.type_ != "RolesFlipped")
        }),
    ];
    let mut good = stuck();
    good.round();
    assert_eq!(good.state(), RollingBack);
    for (name, spoil) in spoils {
        let mut world = stuck();
        spoil(&mut world);
        world.round();
        assert_eq!(world.state(), Failed, "{name}");
        assert_eq!(world.status().resumable, Some(true), "{name}");
        let message = world.status().message.unwrap();
        assert!(
            message.contains("targetCluster west") && message.contains("down on both"),
            "{name}: {message}"
        );
    }
}

/// Whatever is waited for after the flip, a DRBDResource that is gone from the target does not come back.
#[test]
fn a_target_that_lost_a_resource_is_not_waited_for() {
    let lost = |state| {
        let mut world = World::in_state(state);
        world.source_has_stopped();
        world.flipping();
        world.flip_all();
        for side in [&mut world.seen.source, &mut world.seen.target] {
            super::world::set_role(side, Role::Secondary);
        }
        World::resources(&mut world.seen.target).pop_first();
        world
    };
    // Nothing was started: the roles go back at once, also when another member was promoted already,
    // for its disks were seen equal.
    for promoted in [false, true] {
        let mut world = lost(PromotingTarget);
        if promoted {
            super::world::set_role(&mut world.seen.target, Role::Primary);
        }
        let began = world.now;
        world.round();
        assert_eq!((world.state(), world.now), (RollingBack, began));
        assert_eq!(world.run(), Failed);
        assert_eq!(world.status().rolled_back, Some(true));
        assert!(!world.seen.any_flipped());
        let status = world.status();
        let failed = conditions::get(&status.conditions, "Failed").unwrap();
        assert_eq!(failed.reason, "ResourceMissing");
        assert!(
            failed.message.contains("VM shop/db01"),
            "{}",
            failed.message
        );
    }
    // What may have written there, or is behind here, ends where it is and names the way out.
    type Spoil = fn(&mut World);
    let spoils: [(&str, FailoverState, Spoil); 4] = [
        ("it may have run", StartingOnTarget, |_| {}),
        ("it was told to run", PromotingTarget, |w| {
            super::world::told(&mut w.seen.target, DesiredState::Running)
        }),
        ("the source is behind", PromotingTarget, |w| {
            let resource = World::resources(&mut w.seen.source).values_mut().next();
            resource.unwrap().status.as_mut().unwrap().disk_state = Some(DiskState::Outdated)
        }),
        ("the other member wrote apart", PromotingTarget, |w| {
            w.cut_link();
            super::world::set_role(&mut w.seen.target, Role::Primary);
        }),
    ];
    for (name, state, spoil) in spoils {
        let mut world = lost(state);
        spoil(&mut world);
        world.round();
        assert_eq!(world.state(), Failed, "{name}");
        assert_eq!(world.status().resumable, Some(false), "{name}");
        let message = world.status().message.unwrap();
        for part in ["is gone", "set spec.sourceCluster to east", "db01"] {
            assert!(message.contains(part), "{name}: {message}");
        }
        assert!(
            !kinds(&world).iter().any(|k| k.contains("running")),
            "{name}"
        );
    }
}

/// What the words promise must be so when it is over.
#[test]
fn an_end_after_the_flip_names_what_is_missing_and_who_starts_the_vms() {
    let stuck = || {
        let mut world = World::in_state(PromotingTarget);
        world.source_has_stopped();
        world.flipping();
        world.flip_all();
        world.cut_link();
        world
    };
    let mut both = stuck();
    for side in [&mut both.seen.source, &mut both.seen.target] {
        World::resources(side).pop_first();
    }
    both.round();
    let message = both.status().message.unwrap();
    assert!(message.contains("So is that on cluster east"), "{message}");
    assert!(message.contains("then start the VM there"), "{message}");
    assert!(!message.contains("set spec.sourceCluster"), "{message}");

    let mut leaves = stuck();
    leaves.seen.target = farshore_core::failover::Side::unknown("west", "silent");
    let group = leaves.seen.group.as_mut().unwrap();
    group.metadata.deletion_timestamp = Some(super::world::time(super::world::at(5)));
    leaves.budget_is_over();
    leaves.round();
    let message = leaves.status().message.unwrap();
    assert!(
        message.contains("is being deleted: nobody starts the VMs"),
        "{message}"
    );
    assert!(!message.contains("without another request"), "{message}");
}

/// The other way round: the copy on the target calls itself the newest only with its peer.
#[test]
fn a_copy_whose_peer_is_gone_is_not_waited_for() {
    let stranded = || {
        let mut world = World::in_state(PromotingTarget);
        world.source_has_stopped();
        world.flipping();
        world.flip_all();
        world.cut_link();
        World::resources(&mut world.seen.source).pop_first();
        world
    };
    let mut world = stranded();
    world.round();
    assert_eq!(
        (world.state(), world.status().resumable),
        (Failed, Some(false))
    );
    let message = world.status().message.unwrap();
    assert!(
        message.contains("ProtectionRequest db01 to east and delete it"),
        "{message}"
    );
    // One that may be promoted alone, or is silent, is waited for.
    let mut alone = stranded();
    for resource in World::resources(&mut alone.seen.target).values_mut() {
        resource.status.as_mut().unwrap().disk_state = Some(DiskState::UpToDate);
    }
    let mut silent = stranded();
    silent.seen.source.resources = Seen::Unknown("silent".into());
    for mut world in [alone, silent] {
        world.round();
        assert_eq!(world.state(), PromotingTarget);
    }
}

/// `kubectl wait` takes a condition of an older generation for none.
#[test]
fn an_abort_after_the_end_is_answered_and_no_condition_grows_old() {
    let mut world = World::new();
    assert_eq!(world.run(), Completed);
    world.seen.request.spec.abort = true;
    world.seen.request.metadata.generation = Some(2);
    world.round();
    let status = world.status();
    assert_eq!(world.state(), Completed);
    let aborted = conditions::get(&status.conditions, "Aborted").unwrap();
    assert_eq!(
        (aborted.status.as_str(), aborted.reason.as_str()),
        ("False", "AbortIgnored")
    );
    assert!(
        aborted.message.contains("has ended as Completed"),
        "{}",
        aborted.message
    );
    assert!(
        status
            .conditions
            .iter()
            .all(|c| c.observed_generation == Some(2))
    );
    let again = world.round();
    assert!(again.notes.is_empty() && again.steps.is_empty());
    assert_eq!(world.status(), status);
}

#[test]
fn a_finalizer_that_was_taken_off_by_hand_comes_back_while_the_failover_runs() {
    let mut world = World::in_state(StoppingOnSource);
    world.seen.request.metadata.finalizers = None;
    world.round();
    assert!(world.seen.has_finalizer());
    assert_eq!(world.run(), Completed);
    assert!(!world.seen.has_finalizer());
}

/// A request for the cluster that is active when it is made never undoes the failover that runs.
#[test]
fn a_request_to_where_the_group_was_ends_instead_of_undoing_another() {
    for seen_before_the_other_took_the_lock in [true, false] {
        let mut world = World::new();
        world.seen.request.spec.target_cluster = "east".into();
        std::mem::swap(&mut world.seen.source, &mut world.seen.target);
        world.seen.nodes = [("east-1".to_string(), Seen::Present(super::world::node(&[])))].into();
        if seen_before_the_other_took_the_lock {
            world.round();
            assert_eq!(world.state(), Pending);
        }
        world.hold_lock("uid-of-shop-0", world.now);
        world.round();
        assert_eq!(world.state(), Failed);
        let status = world.status();
        assert_eq!(
            conditions::get(&status.conditions, "Failed")
                .unwrap()
                .reason,
            "AlreadyActive"
        );
        assert_eq!(status.source_cluster.as_deref(), Some("east"));
        assert!(
            status
                .message
                .unwrap()
                .contains("FailoverRequest dr-m/shop-0")
        );
        // Nor later, when the other one has moved the group.
        world.hold_lock("", world.now);
        world.flip_all();
        world.run();
        assert!(kinds(&world).iter().all(|k| !k.contains("flip")));
    }
}

#[test]
fn the_lock_belongs_to_the_group_until_its_end() {
    let mut world = World::new();
    assert_eq!(world.run(), Completed);
    let lease = world.seen.lease.unwrap();
    let owners = lease.metadata.owner_references.unwrap();
    assert_eq!(
        (owners[0].kind.as_str(), owners[0].uid.as_str()),
        ("ProtectionGroup", "uid-of-shop")
    );
    for step in &world.trace {
        if let Step::WriteLock { owners: o, .. } = step {
            assert_eq!(*o, owners);
        }
    }
}

#[test]
fn every_end_has_a_condition_to_wait_for() {
    let told = |world: &World, type_: &str| conditions::is_true(&world.status().conditions, type_);
    let mut completed = World::new();
    completed.run();
    let mut failed = World::in_state(Validating);
    failed.seen.request.spec.abort = true;
    failed.run();
    let mut blocked = World::new();
    blocked.taint(&["siterecovery.trilio.io/quorum-lost"]);
    blocked.neighbour("billing", Some(CurrentState::Running));
    blocked.run();
    for (world, expected) in [
        (completed, "Complete"),
        (failed, "Failed"),
        (blocked, "Blocked"),
    ] {
        for type_ in ["Complete", "Failed", "Blocked"] {
            assert_eq!(
                told(&world, type_),
                type_ == expected,
                "{type_} for {expected}"
            );
        }
        assert!(world.status().completion_time.is_some());
    }
}

#[test]
fn a_vm_that_does_not_stop_turns_the_failover_back() {
    let mut world = World::in_state(StoppingOnSource);
    world.round();
    World::report(&mut world.seen.source, CurrentState::Mixed);
    world.pass(Duration::from_secs(121));
    world.round();
    assert_eq!(world.state(), RollingBack);
    assert_eq!(world.run(), Failed);
    assert_eq!(world.status().rolled_back, Some(true));
    assert_eq!(
        kinds(&world),
        [
            "east stopped",
            "RenewLock",
            "east running",
            "ReleaseLock",
            "RemoveFinalizer"
        ]
    );
    assert!(
        world
            .seen
            .members
            .iter()
            .all(|m| m.spec.source_cluster == "east")
    );
}

#[test]
fn disks_that_part_after_the_source_stopped_turn_the_failover_back() {
    // Writes that were acknowledged between the link's loss and the stop exist on the source only.
    let mut world = World::in_state(StoppingOnSource);
    world.source_has_stopped();
    for resource in World::resources(&mut world.seen.target).values_mut() {
        resource.status.as_mut().unwrap().connection_state =
            Some(farshore_api::drbd::ConnectionState::Connecting);
    }
    world.round();
    assert_eq!(world.state(), RemovingTaints);
    world.pass(Duration::from_secs(300));
    assert_eq!(world.run(), Failed);
    assert_eq!(world.status().rolled_back, Some(true));
    assert!(!kinds(&world).iter().any(|k| k.starts_with("flip")));
}

#[test]
fn an_abort_before_the_flip_turns_back_and_after_it_is_too_late() {
    let mut early = World::in_state(StoppingOnSource);
    early.seen.request.spec.abort = true;
    assert_eq!(early.run(), Failed);
    assert_eq!(early.status().rolled_back, Some(true));

    let mut late = World::in_state(PromotingTarget);
    late.source_has_stopped();
    late.seen.request.spec.abort = true;
    let told = late.round().notes;
    assert!(
        told.iter().any(|n| n.warning && n.reason == "AbortIgnored"),
        "{told:?}"
    );
    assert!(
        late.round()
            .notes
            .iter()
            .all(|n| n.reason != "AbortIgnored"),
        "once"
    );
    assert_eq!(late.run(), Completed);
    let answer = late.status();
    let answer = conditions::get(&answer.conditions, "Aborted").unwrap();
    assert_eq!(
        (answer.status.as_str(), answer.reason.as_str()),
        ("False", "AbortIgnored")
    );
}

/// While it only looks, an abort or a deletion ends it, whatever stands elsewhere.
#[test]
fn an_abort_while_validating_ends_it_without_touching_anything() {
    for flipped in [0, 1, 2] {
        for state in [Validating, RunningPreHooks] {
            let mut world = World::in_state(state);
            for member in world.seen.members.iter_mut().take(flipped) {
                member.spec.source_cluster = "west".into();
            }
            world.seen.request.spec.abort = true;
            assert_eq!(world.run(), Failed);
            assert_eq!(kinds(&world), ["ReleaseLock", "RemoveFinalizer"]);
            let status = world.status();
            assert!(conditions::is_true(&status.conditions, "Aborted"));
            assert_eq!(status.rolled_back, None);
        }
    }
}

#[test]
fn a_deleted_request_rolls_back_before_the_flip_and_finishes_after_it() {
    let deleted = |state: FailoverState| {
        let mut world = World::in_state(state);
        if state == PromotingTarget {
            world.source_has_stopped();
        }
        world.seen.request.metadata.deletion_timestamp = Some(super::world::time(world.now));
        world.run();
        assert_eq!(world.seen.request.metadata.finalizers, None);
        assert_eq!(
            world
                .seen
                .lease
                .as_ref()
                .unwrap()
                .spec
                .as_ref()
                .unwrap()
                .holder_identity,
            None
        );
        (world.state(), world.status().rolled_back)
    };
    assert_eq!(deleted(Validating), (Failed, None));
    assert_eq!(deleted(RemovingTaints), (Failed, Some(true)));
    assert_eq!(deleted(PromotingTarget), (Completed, None));
}

#[test]
fn a_request_that_queues_goes_on_when_the_other_group_is_gone() {
    let mut world = World::new();
    world.seen.request.spec.queue = true;
    world.taint(&["siterecovery.trilio.io/quorum-lost"]);
    world.neighbour("billing", Some(CurrentState::Running));
    for _ in 0..4 {
        world.settle();
        world.round();
        world.pass(Duration::from_secs(15));
    }
    assert_eq!(world.state(), Blocked);
    assert_eq!(world.status().completion_time, None);
    assert!(conditions::is_true(&world.status().conditions, "Blocked"));
    world.seen.neighbours = Seen::Present(vec![]);
    assert_eq!(world.run(), Completed);
    assert!(!conditions::is_true(&world.status().conditions, "Blocked"));
}

#[test]
fn a_failover_that_broke_off_after_the_flip_is_continued_by_a_new_request() {
    for broken in ["flipped, not started", "split", "not promoted"] {
        let mut world = World::new();
        world.source_has_stopped();
        match broken {
            "split" => world.seen.members[0].spec.source_cluster = "west".into(),
            _ => world.flip_all(),
        }
        if broken == "flipped, not started" {
            world.roles_have_flipped();
        }
        world.hooks(json!({"preFailover": [{"name": "quiesce", "namespace": "ops", "jobTemplate": {"spec": {}}}]}));
        assert_eq!(world.run(), Completed, "{broken}");
        assert!(!world.states.contains(&RunningPreHooks), "{broken}");
        assert!(
            world
                .status()
                .vm_statuses
                .iter()
                .all(|vm| vm.phase.as_str() == "Running")
        );
    }
}

#[test]
fn a_vm_that_joins_the_group_on_the_way_stays_where_it_is() {
    let mut world = World::in_state(PromotingTarget);
    world.source_has_stopped();
    let late = farshore_api::VmRef {
        namespace: "shop".into(),
        name: "late".into(),
    };
    world
        .seen
        .members
        .push(super::world::request(&late, "east"));
    assert_eq!(world.run(), Completed);
    assert_eq!(world.seen.members[2].spec.source_cluster, "east");
    assert_eq!(world.status().vm_statuses.len(), vms().len());
}

#[test]
fn the_lock_is_renewed_each_minute_and_only_then() {
    let mut world = World::in_state(StoppingOnSource);
    World::report(&mut world.seen.source, CurrentState::Mixed);
    for _ in 0..55 {
        world.round();
        world.pass(Duration::from_secs(2));
    }
    let renewals = world
        .trace
        .iter()
        .filter(|s| {
            matches!(
                s,
                Step::WriteLock {
                    purpose: LockPurpose::Renew,
                    ..
                }
            )
        })
        .count();
    assert_eq!(renewals, 1);
}

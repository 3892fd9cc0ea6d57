//! One look at one world: what is decided, as snapshots.

use std::time::Duration;

use farshore_api::drbd::{ConnectionState, DiskState, ReplicationState, Role};
use farshore_api::failover_request::FailoverState::*;
use farshore_api::failover_request::FailoverType;
use farshore_api::protection_group::{CurrentState, DesiredState};
use farshore_api::protection_request::ProtectionPhase;
use farshore_core::Seen;
use farshore_core::failover::{LockPurpose, Side, Step, decide, first_ahead};
use serde_json::{Value, json};

use super::world::{
    FINALIZER, NAMESPACE, UID, World, at, complain, forget_first, set_role, time, told,
    told_in_short,
};

fn hook(on_failure: Option<&str>) -> Value {
    json!({"name": "quiesce", "namespace": "ops", "timeoutSeconds": 30, "onFailure": on_failure, "jobTemplate": {
        "metadata": {"labels": {"app": "hook"}},
        "spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
    }})
}

/// Names each case and what makes it.
fn cases() -> Vec<(&'static str, World)> {
    let mut all: Vec<(&'static str, World)> = Vec::new();
    let mut case = |name, mut world: World, make: &dyn Fn(&mut World)| {
        make(&mut world);
        all.push((name, world));
    };
    let fresh = || {
        let mut world = World::new();
        world.seen.request.metadata.finalizers = Some(vec![FINALIZER.into()]);
        world
    };

    // Pending
    case("pending_first_puts_the_finalizer", World::new(), &|_| {});
    case("pending_takes_a_free_lock", fresh(), &|_| {});
    case("pending_takes_a_released_lock", fresh(), &|w| {
        w.hold_lock("", at(-900));
    });
    case("pending_waits_for_the_holder", fresh(), &|w| {
        w.hold_lock("uid-of-shop-0", at(-10))
    });
    case("pending_lets_an_earlier_request_go_first", fresh(), &|w| {
        w.seen.ahead = Some("shop-0".into());
    });
    case(
        "pending_waits_for_the_holder_and_the_queue",
        fresh(),
        &|w| {
            w.hold_lock("uid-of-shop-0", at(-10));
            w.seen.ahead = Some("shop-0b".into());
        },
    );
    let pending_for_an_hour = |w: &mut World| {
        w.seen.request.status = Some(
            serde_json::from_value(json!({"state": "Pending", "sourceCluster": "east",
        "steps": [{"name": "Pending", "state": "Running", "startTime": at(0).to_string()}]}))
            .unwrap(),
        );
        w.now = at(3600);
    };
    case("pending_too_long_behind_the_holder", fresh(), &|w| {
        pending_for_an_hour(w);
        w.hold_lock("uid-of-shop-0", at(3590));
    });
    case("pending_too_long_behind_another", fresh(), &|w| {
        pending_for_an_hour(w);
        w.seen.ahead = Some("shop-0".into());
    });
    case(
        "pending_takes_the_lock_when_its_turn_comes_late",
        fresh(),
        &|w| {
            pending_for_an_hour(w);
        },
    );
    case("pending_waits_for_a_holder_that_is_gone", fresh(), &|w| {
        w.hold_lock("uid-nobody", at(-10))
    });
    case("pending_takes_over_an_expired_lock", fresh(), &|w| {
        w.hold_lock("uid-of-shop-0", at(-300))
    });
    case("pending_with_the_lock_walks_on", fresh(), &|w| {
        w.hold_lock(UID, at(-1))
    });

    case(
        "pending_for_the_active_cluster_ends_before_it_undoes_another",
        fresh(),
        &|w| {
            w.seen.request.spec.target_cluster = "east".into();
            std::mem::swap(&mut w.seen.source, &mut w.seen.target);
            w.hold_lock("uid-of-shop-0", at(-10));
        },
    );
    case(
        "pending_for_a_cluster_that_another_left_meanwhile",
        fresh(),
        &|w| {
            w.seen.request.status = Some(
                serde_json::from_value(json!({"state": "Pending", "sourceCluster": "west",
            "steps": [{"name": "Pending", "state": "Running", "startTime": at(0).to_string()}]}))
                .unwrap(),
            );
        },
    );

    // Bad input
    case("input_group_missing", fresh(), &|w| w.seen.group = None);
    case("input_target_not_in_zone", fresh(), &|w| {
        w.seen.request.spec.target_cluster = "north".into();
        w.seen.source = Side::unknown("", "no such cluster");
        w.seen.target = Side::unknown("north", "no such cluster");
    });
    case("input_unplanned", fresh(), &|w| {
        w.seen.request.spec.failover_type = FailoverType::Unplanned
    });
    case("input_aborted_at_once", fresh(), &|w| {
        w.seen.request.spec.abort = true
    });
    case("input_already_active", World::in_state(Validating), &|w| {
        w.source_has_stopped();
        w.roles_have_flipped();
        told(&mut w.seen.target, DesiredState::Running);
        World::report(&mut w.seen.target, CurrentState::Running);
    });

    // Validating
    case(
        "validating_source_silent",
        World::in_state(Validating),
        &|w| w.seen.source = Side::unknown("east", "no answer within 5 s"),
    );
    case(
        "validating_member_missing",
        World::in_state(Validating),
        &|w| w.seen.unresolved = vec!["VM shop/gone".into()],
    );
    case(
        "validating_member_still_syncing",
        World::in_state(Validating),
        &|w| {
            w.seen.members[1].status.as_mut().unwrap().phase = Some(ProtectionPhase::Syncing);
        },
    );
    case(
        "validating_member_is_being_deleted",
        World::in_state(Validating),
        &|w| w.seen.members[1].metadata.deletion_timestamp = Some(time(at(0))),
    );
    case("validating_aborted", World::in_state(Validating), &|w| {
        w.seen.request.spec.abort = true
    });
    case(
        "validating_aborted_after_an_earlier_flip",
        World::in_state(Validating),
        &|w| {
            w.flip_all();
            w.seen.request.spec.abort = true;
        },
    );
    case(
        "validating_source_silent_for_too_long",
        World::in_state(Validating),
        &|w| {
            w.seen.source = Side::unknown("east", "no answer within 5 s");
            w.now = at(60);
        },
    );
    case(
        "validating_member_of_another_group",
        World::in_state(Validating),
        &|w| {
            World::mirror(&mut w.seen.target).spec.members.truncate(1);
            let group = w.seen.group.as_mut().unwrap();
            let says = "VirtualMachine shop/web01 already belongs to ProtectionGroup bar";
            farshore_core::conditions::set(
                &mut group.status.get_or_insert_default().conditions,
                "MembersProtected",
                farshore_core::conditions::Truth::False,
                "MemberInAnotherGroup",
                says,
                Some(1),
                at(0),
            );
        },
    );
    case(
        "validating_resync_may_take_the_budget",
        World::in_state(Validating),
        &|w| {
            for resource in World::resources(&mut w.seen.target).values_mut() {
                let status = resource.status.as_mut().unwrap();
                status.disk_state = Some(DiskState::Inconsistent);
                status.volumes[0].replication_state = ReplicationState::SyncTarget;
            }
            w.now = at(200);
            w.hold_lock(UID, at(190));
        },
    );
    case(
        "validating_mirror_missing",
        World::in_state(Validating),
        &|w| w.seen.target.mirror = Seen::Absent,
    );
    case("validating_mirror_old", World::in_state(Validating), &|w| {
        World::mirror(&mut w.seen.source).spec.members.truncate(1);
    });
    case(
        "validating_resync_runs",
        World::in_state(Validating),
        &|w| {
            for resource in World::resources(&mut w.seen.target).values_mut() {
                resource.status.as_mut().unwrap().disk_state = Some(DiskState::Inconsistent);
            }
        },
    );
    case(
        "validating_standby_missing",
        World::in_state(Validating),
        &|w| w.seen.standby = Seen::Absent,
    );
    for (name, of_target) in [
        ("validating_source_resource_is_being_deleted", false),
        ("validating_standby_resource_is_being_deleted", true),
    ] {
        case(name, World::in_state(Validating), &|w| {
            let side = if of_target {
                &mut w.seen.target
            } else {
                &mut w.seen.source
            };
            let first = World::resources(side).values_mut().next().unwrap();
            first.metadata.deletion_timestamp = Some(time(at(-5)));
        });
    }
    case(
        "validating_split_brain",
        World::in_state(Validating),
        &|w| {
            for resource in World::resources(&mut w.seen.source).values_mut() {
                let status = resource.status.as_mut().unwrap();
                status.split_brain = Some(true);
                status.connection_state = Some(ConnectionState::StandAlone);
            }
        },
    );
    case(
        "validating_conflict_blocks",
        World::in_state(Validating),
        &|w| {
            w.taint(&["drbd.linbit.com/lost-quorum"]);
            w.neighbour("billing", Some(CurrentState::Running));
            w.neighbour("crm", Some(CurrentState::Stopped));
            w.neighbour("mail", None);
        },
    );
    case(
        "validating_conflict_queues",
        World::in_state(Validating),
        &|w| {
            w.seen.request.spec.queue = true;
            w.taint(&["drbd.linbit.com/lost-quorum"]);
            w.neighbour("billing", Some(CurrentState::Mixed));
        },
    );
    case(
        "validating_conflict_forced",
        World::in_state(Validating),
        &|w| {
            w.seen.request.spec.force = true;
            w.taint(&["drbd.linbit.com/lost-quorum"]);
            w.neighbour("billing", Some(CurrentState::Running));
        },
    );
    case(
        "validating_without_taint_skips_the_check",
        World::in_state(Validating),
        &|w| w.neighbour("billing", Some(CurrentState::Running)),
    );
    case(
        "validating_budget_over",
        World::in_state(Validating),
        &|w| {
            w.seen.source = Side::unknown("east", "no answer within 5 s");
            w.budget_is_over();
        },
    );

    // RunningPreHooks
    let pre = |job: Seen<Value>, on_failure: Option<&'static str>| {
        move |w: &mut World| {
            w.hooks(json!({"preFailover": [hook(on_failure)]}));
            let job = job.map(|j| serde_json::from_value(j.clone()).unwrap());
            w.seen.jobs.insert("shop-1-decb7c42-pre-0".into(), job);
        }
    };
    let failed = json!({"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "it did not work"}]}});
    case(
        "pre_hook_is_created",
        World::in_state(RunningPreHooks),
        &pre(Seen::Absent, None),
    );
    case(
        "pre_hook_runs",
        World::in_state(RunningPreHooks),
        &pre(Seen::Present(json!({})), None),
    );
    case(
        "pre_hook_unknown",
        World::in_state(RunningPreHooks),
        &pre(Seen::Unknown("no answer within 5 s".into()), None),
    );
    case(
        "pre_hook_failed_aborts",
        World::in_state(RunningPreHooks),
        &pre(Seen::Present(failed.clone()), None),
    );
    case(
        "pre_hook_failed_continues",
        World::in_state(RunningPreHooks),
        &pre(Seen::Present(failed.clone()), Some("Continue")),
    );
    case(
        "pre_hook_too_slow",
        World::in_state(RunningPreHooks),
        &|w| {
            pre(Seen::Present(json!({})), None)(w);
            w.now = at(30);
        },
    );
    case(
        "pre_hook_not_creatable",
        World::in_state(RunningPreHooks),
        &|w| {
            pre(Seen::Absent, None)(w);
            w.seen.trouble = Some("namespaces \"ops\" not found".into());
            w.now = at(30);
        },
    );

    // StoppingOnSource
    case(
        "stopping_tells_the_mirror",
        World::in_state(StoppingOnSource),
        &|_| {},
    );
    case("stopping_waits", World::in_state(StoppingOnSource), &|w| {
        told(&mut w.seen.source, DesiredState::Stopped);
        World::report(&mut w.seen.source, CurrentState::Mixed);
    });
    case(
        "stopping_does_not_trust_an_old_report",
        World::in_state(StoppingOnSource),
        &|w| {
            World::report(&mut w.seen.source, CurrentState::Stopped);
            told(&mut w.seen.source, DesiredState::Stopped);
        },
    );
    case(
        "stopping_source_silent",
        World::in_state(StoppingOnSource),
        &|w| w.seen.source = Side::unknown("east", "no answer within 5 s"),
    );
    case(
        "stopping_timeout",
        World::in_state(StoppingOnSource),
        &|w| w.now = at(120),
    );
    case(
        "stopping_lock_expired_is_renewed_first",
        World::in_state(StoppingOnSource),
        &|w| w.now = at(300),
    );
    case(
        "stopping_lock_lost",
        World::in_state(StoppingOnSource),
        &|w| w.hold_lock("uid-of-shop-0", at(0)),
    );
    case(
        "stopping_lock_vanished",
        World::in_state(StoppingOnSource),
        &|w| w.seen.lease = None,
    );
    case(
        "stopping_group_deleted",
        World::in_state(StoppingOnSource),
        &|w| w.seen.group = None,
    );

    // RemovingTaints
    case(
        "taints_are_removed",
        World::in_state(RemovingTaints),
        &|w| {
            w.source_has_stopped();
            w.taint(&[
                "siterecovery.trilio.io/quorum-lost",
                "drbd.linbit.com/force-io-error",
            ]);
        },
    );
    case(
        "taints_conflict_rolls_back",
        World::in_state(RemovingTaints),
        &|w| {
            w.source_has_stopped();
            w.taint(&["siterecovery.trilio.io/quorum-lost"]);
            w.neighbour("billing", Some(CurrentState::Running));
        },
    );
    case(
        "taints_source_started_again",
        World::in_state(RemovingTaints),
        &|_| {},
    );
    case(
        "taints_disk_added_meanwhile_rolls_back",
        World::in_state(RemovingTaints),
        &|w| {
            w.source_has_stopped();
            let status = w.seen.members[0].status.as_mut().unwrap();
            status.conditions = serde_json::from_value(json!([{
                "type": "Protected", "status": "False", "reason": "UnreplicatedVolume",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]))
            .unwrap();
        },
    );
    case(
        "taints_member_unprotected_meanwhile_rolls_back",
        World::in_state(RemovingTaints),
        &|w| {
            w.source_has_stopped();
            w.seen.members[0].metadata.deletion_timestamp = Some(time(w.now));
        },
    );
    let leave = |w: &mut World| {
        let left = w.seen.members.remove(0);
        w.seen.former.push(left);
    };
    case(
        "taints_member_taken_from_the_group_rolls_back",
        World::in_state(RemovingTaints),
        &|w| {
            w.source_has_stopped();
            leave(w);
        },
    );
    case(
        "promoting_flips_a_member_that_has_left_the_group_too",
        World::in_state(PromotingTarget),
        &|w| {
            w.source_has_stopped();
            w.flipping();
            leave(w);
        },
    );
    case(
        "promoting_is_done_with_a_member_that_has_left_the_group",
        World::in_state(PromotingTarget),
        &|w| {
            w.source_has_stopped();
            w.roles_have_flipped();
            w.flipping();
            leave(w);
        },
    );
    case(
        "taints_node_unknown",
        World::in_state(RemovingTaints),
        &|w| {
            w.source_has_stopped();
            w.seen.nodes.insert(
                "west-1".into(),
                Seen::Unknown("no answer within 5 s".into()),
            );
        },
    );

    // PromotingTarget
    case("promoting_flips", World::in_state(PromotingTarget), &|w| {
        w.source_has_stopped()
    });
    case(
        "promoting_flips_only_who_is_left",
        World::in_state(PromotingTarget),
        &|w| {
            w.source_has_stopped();
            w.seen.members[0].spec.source_cluster = "west".into();
        },
    );
    case(
        "promoting_does_not_flip_a_running_source",
        World::in_state(PromotingTarget),
        &|_| {},
    );
    case(
        "promoting_waits_for_primary",
        World::in_state(PromotingTarget),
        &|w| {
            w.source_has_stopped();
            w.flip_all();
        },
    );
    case(
        "promoting_budget_over",
        World::in_state(PromotingTarget),
        &|w| {
            w.source_has_stopped();
            w.flip_all();
            w.budget_is_over();
        },
    );

    case(
        "promoting_link_cut_goes_back_at_the_end",
        World::in_state(PromotingTarget),
        &|w| {
            w.source_has_stopped();
            w.flipping();
            w.flip_all();
            w.cut_link();
        },
    );
    case(
        "promoting_link_cut_budget_over_goes_back",
        World::in_state(PromotingTarget),
        &|w| {
            w.source_has_stopped();
            w.flipping();
            w.flip_all();
            w.cut_link();
            w.budget_is_over();
        },
    );
    case(
        "promoting_target_silent_budget_over",
        World::in_state(PromotingTarget),
        &|w| {
            w.source_has_stopped();
            w.flipping();
            w.flip_all();
            w.cut_link();
            w.seen.target = Side::unknown("west", "no answer within 5 s");
            w.budget_is_over();
        },
    );
    case(
        "promoting_aborted_is_too_late",
        World::in_state(PromotingTarget),
        &|w| {
            w.source_has_stopped();
            w.flip_all();
            w.seen.request.spec.abort = true;
        },
    );
    case(
        "promoting_source_started_again_budget_over",
        World::in_state(PromotingTarget),
        &|w| w.budget_is_over(),
    );

    // StartingOnTarget
    let flipped = |w: &mut World| {
        w.source_has_stopped();
        w.roles_have_flipped();
    };
    case(
        "starting_tells_the_mirror",
        World::in_state(StartingOnTarget),
        &flipped,
    );
    case(
        "starting_role_lost_again",
        World::in_state(StartingOnTarget),
        &|w| {
            flipped(w);
            set_role(&mut w.seen.target, Role::Secondary);
        },
    );
    case("starting_waits", World::in_state(StartingOnTarget), &|w| {
        flipped(w);
        told(&mut w.seen.target, DesiredState::Running);
        World::report(&mut w.seen.target, CurrentState::Mixed);
        complain(
            &mut w.seen.target,
            "Unschedulable: no node has enough memory",
        );
    });
    case(
        "starting_is_not_done_while_the_mirror_lacks_a_vm",
        World::in_state(StartingOnTarget),
        &|w| {
            flipped(w);
            told(&mut w.seen.target, DesiredState::Running);
            World::report(&mut w.seen.target, CurrentState::Running);
            forget_first(&mut w.seen.target);
        },
    );
    case(
        "starting_is_done",
        World::in_state(StartingOnTarget),
        &|w| {
            flipped(w);
            told(&mut w.seen.target, DesiredState::Running);
            World::report(&mut w.seen.target, CurrentState::Running);
        },
    );

    case(
        "starting_a_stopped_group_leaves_it_stopped",
        World::in_state(StartingOnTarget),
        &|w| {
            flipped(w);
            w.seen.group.as_mut().unwrap().spec.desired_state = DesiredState::Stopped;
        },
    );

    // RunningPostHooks
    let post = |job: Value, on_failure: Option<&'static str>| {
        move |w: &mut World| {
            w.source_has_stopped();
            w.roles_have_flipped();
            w.hooks(json!({"postFailover": [hook(on_failure)]}));
            w.seen.jobs.insert(
                "shop-1-decb7c42-post-0".into(),
                Seen::Present(serde_json::from_value(job.clone()).unwrap()),
            );
        }
    };
    case(
        "post_hook_failed_is_passed_over",
        World::in_state(RunningPostHooks),
        &post(failed.clone(), None),
    );
    case(
        "post_hook_failed_aborts",
        World::in_state(RunningPostHooks),
        &post(failed.clone(), Some("Abort")),
    );
    case(
        "post_hook_budget_over",
        World::in_state(RunningPostHooks),
        &|w| {
            post(
                json!({"metadata": {"annotations": {"siterecovery.trilio.io/hook-deadline": at(310).to_string()}}}),
                None,
            )(w);
            w.budget_is_over();
        },
    );

    // RollingBack
    let back = |w: &mut World| {
        let status = w.seen.request.status.as_mut().unwrap();
        farshore_core::conditions::set(
            &mut status.conditions,
            "Complete",
            farshore_core::conditions::Truth::False,
            "VMStopTimeout",
            "The VMs did not stop.",
            Some(1),
            at(0),
        );
        told(&mut w.seen.source, DesiredState::Stopped);
        World::report(&mut w.seen.source, CurrentState::Mixed);
    };
    case(
        "rollback_tells_the_mirror",
        World::in_state(RollingBack),
        &back,
    );
    case("rollback_not_seen", World::in_state(RollingBack), &|w| {
        back(w);
        w.seen.source.mirror = Seen::Unknown("no answer within 5 s".into());
        w.pass(Duration::from_secs(60));
    });
    case(
        "rollback_gives_the_roles_back",
        World::in_state(RollingBack),
        &|w| {
            w.source_has_stopped();
            w.flipping();
            w.flip_all();
            w.cut_link();
        },
    );
    case(
        "rollback_starts_nothing_before_the_source_is_primary",
        World::in_state(RollingBack),
        &|w| {
            w.source_has_stopped();
            w.flipping();
            w.cut_link();
        },
    );
    case(
        "rollback_finds_roles_flipped",
        World::in_state(RollingBack),
        &|w| {
            back(w);
            w.seen.members[0].spec.source_cluster = "west".into();
        },
    );

    case(
        "stopping_lock_went_with_the_group",
        World::in_state(StoppingOnSource),
        &|w| {
            w.seen.group = None;
            w.seen.lease = None;
        },
    );

    for (name, wanted, current) in [
        (
            "rollback_takes_back_that_the_source_stopped",
            DesiredState::Running,
            CurrentState::Running,
        ),
        (
            "rollback_of_a_stopped_group_leaves_the_source_stopped",
            DesiredState::Stopped,
            CurrentState::Stopped,
        ),
    ] {
        case(name, World::in_state(RollingBack), &|w| {
            back(w);
            w.seen.group.as_mut().unwrap().spec.desired_state = wanted;
            told(&mut w.seen.source, wanted);
            World::report(&mut w.seen.source, current);
            farshore_core::conditions::set(
                &mut w.seen.request.status.as_mut().unwrap().conditions,
                "SourceStopped",
                farshore_core::conditions::Truth::True,
                "Stopped",
                "It reports stopped.",
                Some(1),
                at(0),
            );
        });
    }

    // After the end
    case("completed_lets_go", World::in_state(Completed), &|_| {});
    case(
        "failed_lets_go_of_the_rest",
        World::in_state(Failed),
        &|w| w.seen.lease = None,
    );
    all
}

#[test]
fn the_lock_is_renewed_three_times_before_it_would_expire_and_each_minute_at_least() {
    for (lease, every) in [(300, 60), (180, 60), (90, 30), (30, 10)] {
        let mut world = World::in_state(StoppingOnSource);
        world.seen.zone.spec.failover.lock_lease_seconds = lease;
        world.hold_lock(UID, at(0));
        let spec = world.seen.lease.as_mut().unwrap().spec.as_mut().unwrap();
        spec.lease_duration_seconds = Some(lease);
        let renews = |world: &World, second: i64| {
            let decision = decide(&world.seen, at(second));
            decision.steps.iter().any(|s| {
                matches!(
                    s,
                    Step::WriteLock {
                        purpose: LockPurpose::Renew,
                        ..
                    }
                )
            })
        };
        assert!(
            !renews(&world, every - 1),
            "a lease of {lease} s, too early"
        );
        assert!(renews(&world, every), "a lease of {lease} s, too late");
    }
}

#[test]
fn pending_requests_of_a_group_take_turns_by_age_then_by_name() {
    let make = |name: &str, second: i64, change: Value| {
        let mut request = World::new().seen.request;
        request.metadata.name = Some(name.into());
        request.metadata.creation_timestamp = Some(time(at(second)));
        if let Some(group) = change["group"].as_str() {
            request.spec.protection_group_ref.name = group.into();
        }
        if let Some(state) = change.get("state") {
            request.status = Some(serde_json::from_value(json!({"state": state})).unwrap());
        }
        if change["going"] == true {
            request.metadata.deletion_timestamp = Some(time(at(9)));
        }
        request
    };
    let own = make("m", 5, json!({}));
    let ahead = |others: &[_]| first_ahead(&own, others);
    assert_eq!(ahead(std::slice::from_ref(&own)), None);
    assert_eq!(ahead(&[make("a", 6, json!({}))]), None);
    assert_eq!(ahead(&[make("z", 5, json!({}))]), None);
    assert_eq!(ahead(&[make("b", 5, json!({}))]), Some("b".into()));
    let two = [
        make("a", 4, json!({})),
        make("z", 3, json!({"state": "Pending"})),
    ];
    assert_eq!(ahead(&two), Some("z".into()));
    for change in [
        json!({"group": "other"}),
        json!({"state": "Failed"}),
        json!({"state": "StoppingOnSource"}),
        json!({"going": true}),
    ] {
        assert_eq!(ahead(&[make("a", 1, change.clone())]), None, "{change}");
    }
}

#[test]
fn every_state_and_every_bad_input_is_decided_as_recorded() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots/failover");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for (name, world) in cases() {
            assert_eq!(world.seen.namespace(), NAMESPACE);
            insta::assert_yaml_snapshot!(name, told_in_short(&decide(&world.seen, world.now)));
        }
    });
}

//! The flip and what follows it: `PromotingTarget`, `StartingOnTarget`, `RunningPostHooks`. From here
//! it goes forward; what fails can be continued by another request. Only a target that cannot be
//! promoted, and was seen not to have been, gives the roles back at the end of the budget.

use farshore_api::conditions::failover as reason;
use farshore_api::drbd::{ConnectionState, DiskState, Role};
use farshore_api::failover_request::FailoverState as State;
use farshore_api::protection_group::DesiredState;

use super::{
    Next, Stage, budget_sentence, may_return, may_return_without, mirror_command, over_budget,
    passed_hooks, tell, wanted,
};
use crate::conditions::Truth;
use crate::failover::evidence::{all_primary, group_reports, source_stopped};
use crate::failover::hooks::{self, Progress, When};
use crate::failover::journal::{Cause, Journal};
use crate::failover::preflight::Obstacle;
use crate::failover::scene::{Member, Scene};
use crate::failover::step::Step;
use crate::words::{self, moment};

/// Reasons of `RolesFlipped`: this request changed every role itself, from equal disks, or continues
/// one that had changed some.
pub(super) const FLIPPING: &str = "Flipping";
pub(super) const FLIPPED: &str = "Flipped";
const CONTINUING: &str = "Continuing";
const CONTINUED: &str = "Continued";

/// The role flip.
pub(super) fn promoting_target(stage: &Stage, journal: &mut Journal) -> Next {
    let seen = stage.seen;
    let cast = &seen.cast;
    let to_flip: Vec<_> = cast
        .iter()
        .filter(|m| m.request.is_none_or(|r| !seen.flipped(r)))
        .collect();
    if !to_flip.is_empty() {
        let names: Vec<String> = to_flip.iter().map(|m| m.vm.to_string()).collect();
        let command = format!("kubectl get protectionrequest -n {}", seen.namespace());
        if let Err(fact) = source_stopped(seen) {
            // Somebody started the source again: no flip until it is stopped.
            let obstacle = Obstacle {
                reason: reason::IN_PROGRESS,
                fact,
                command: mirror_command(stage, &seen.source),
            };
            return wait_after_flip(stage, obstacle, tell(&seen.source, DesiredState::Stopped));
        }
        if journal.reason_of(reason::ROLES_FLIPPED).is_none() {
            let how = if to_flip.len() == cast.len() {
                FLIPPING
            } else {
                CONTINUING
            };
            let sentence = format!("sourceCluster becomes {}.", seen.target.cluster);
            journal.fact(reason::ROLES_FLIPPED, Truth::False, how, &sentence);
        }
        let flips = to_flip
            .iter()
            .filter_map(|m| m.request?.metadata.name.clone());
        let to = &seen.target.cluster;
        let steps = flips
            .map(|protection_request| Step::Flip {
                protection_request,
                to: to.clone(),
            })
            .collect();
        let fact = format!(
            "sourceCluster of VM {} is not {to} yet",
            words::list(&names)
        );
        return wait_after_flip(
            stage,
            Obstacle {
                reason: reason::IN_PROGRESS,
                fact,
                command,
            },
            steps,
        );
    }
    let sentence = format!("sourceCluster of every member is {}.", seen.target.cluster);
    let how = match journal.reason_of(reason::ROLES_FLIPPED) {
        Some(FLIPPING | FLIPPED) => FLIPPED,
        _ => CONTINUED,
    };
    journal.fact(reason::ROLES_FLIPPED, Truth::True, how, &sentence);
    if let Some(lost) = lost_on_target(seen) {
        return without_resource(stage, &lost);
    }
    let stranded = stranded_on_target(seen);
    if !stranded.is_empty() {
        return without_peer(stage, &stranded);
    }
    match all_primary(seen, &seen.target) {
        Ok(()) => Next::Enter(
            State::StartingOnTarget,
            format!(
                "DRBD is Primary for every VM on cluster {}",
                seen.target.cluster
            ),
        ),
        Err(fact) => {
            let command = stage.command(&seen.target.cluster, "get drbdresource -A");
            wait_after_flip(
                stage,
                Obstacle {
                    reason: reason::IN_PROGRESS,
                    fact,
                    command,
                },
                vec![],
            )
        }
    }
}

/// Tells the target's mirror what the hub's group says, and waits until it says that it is so. A
/// group that shall be stopped stays stopped.
pub(super) fn starting_on_target(stage: &Stage, journal: &mut Journal) -> Next {
    let seen = stage.seen;
    let (wanted, reached) = wanted(seen);
    let arrived = group_reports(seen, &seen.target, wanted, reached);
    let Err(fact) = arrived else {
        let sentence = format!(
            "{} on cluster {} reports {reached}.",
            seen.group_title(),
            seen.target.cluster
        );
        let (truth, why) = match wanted {
            DesiredState::Running => (Truth::True, "Running"),
            DesiredState::Stopped => (Truth::False, reason::GROUP_STOPPED),
        };
        journal.fact(reason::TARGET_RUNNING, truth, why, &sentence);
        let because = format!(
            "cluster {} reports the group {reached}",
            seen.target.cluster
        );
        if hooks::of(seen, When::Post).is_empty() {
            return Next::Enter(State::Completed, because);
        }
        return Next::Enter(State::RunningPostHooks, because);
    };
    if let Some(lost) = lost_on_target(seen) {
        return without_resource(stage, &lost);
    }
    // DRBD must be Primary at the moment of the start, not only when the state was entered.
    if let Err(fact) = all_primary(seen, &seen.target) {
        let command = stage.command(&seen.target.cluster, "get drbdresource -A");
        return wait_after_flip(
            stage,
            Obstacle {
                reason: reason::IN_PROGRESS,
                fact,
                command,
            },
            vec![],
        );
    }
    journal.fact(reason::TARGET_RUNNING, Truth::Unknown, "Starting", &fact);
    let steps = tell(&seen.target, wanted);
    let command = mirror_command(stage, &seen.target);
    wait_after_flip(
        stage,
        Obstacle {
            reason: reason::IN_PROGRESS,
            fact,
            command,
        },
        steps,
    )
}

/// Runs the group's Jobs on the target, now that it runs. What has no time left is passed over if
/// it may be: the VMs run, and that is what the failover is for.
pub(super) fn running_post_hooks(stage: &Stage, journal: &mut Journal) -> Next {
    let seen = stage.seen;
    let failure = match hooks::follow(seen, When::Post, stage.since, stage.now) {
        Progress::Ended { passed_over } => {
            passed_hooks(&passed_over, journal);
            return Next::Enter(
                State::Completed,
                "the post-failover hooks have ended".into(),
            );
        }
        Progress::Aborted { failure } => failure,
        Progress::Running {
            mut passed_over, ..
        } if stage.now >= stage.deadline => {
            match hooks::cut_off(seen, When::Post) {
                Ok(rest) => {
                    passed_over.extend(rest);
                    passed_hooks(&passed_over, journal);
                    return Next::Enter(State::Completed, "the budget is over; post-failover hooks that had not ended are passed over".into());
                }
                Err(failure) => failure,
            }
        }
        Progress::Running {
            hook, fact, step, ..
        } => {
            let obstacle = Obstacle {
                reason: reason::IN_PROGRESS,
                fact: format!("post-failover hook {hook}: {fact}"),
                command: stage.command(
                    &seen.target.cluster,
                    "get job -A -l siterecovery.trilio.io/failover-request",
                ),
            };
            let next = format!(
                "It goes on when the hook has ended; at {} the budget is over. The VMs run already",
                moment(stage.deadline)
            );
            return stage.wait(obstacle, &next, step.into_iter().collect());
        }
    };
    journal.fact(
        reason::HOOKS_SUCCEEDED,
        Truth::False,
        reason::HOOK_FAILED,
        &failure,
    );
    let message = format!(
        "A post-failover hook failed: {failure}. The group runs on cluster {}; nothing is left to continue but what the hook was for.",
        seen.target.cluster
    );
    Next::Fail {
        cause: Cause::new(reason::HOOK_FAILED, message),
        rolled_back: Some(false),
        resumable: Some(false),
    }
}

/// The VMs whose DRBDResource on the target was seen gone, with their ProtectionRequests.
fn lost_on_target<'a>(seen: &'a Scene) -> Option<Vec<&'a Member<'a>>> {
    let gone = |m: &&Member| seen.target.resource(&m.vm).is_absent();
    let lost: Vec<_> = seen.cast.iter().filter(gone).collect();
    (!lost.is_empty()).then_some(lost)
}

/// A VM cannot start where its DRBDResource is gone, and nobody makes it anew: its data would be taken
/// for new. To wait would only keep the VMs down, so the roles go back, or it ends here and says how
/// a person goes on.
fn without_resource(stage: &Stage, lost: &[&Member]) -> Next {
    let seen = stage.seen;
    let (source, target) = (&seen.source.cluster, &seen.target.cluster);
    let vms = words::list_by(lost, |m| m.vm.to_string());
    let why = format!("The DRBDResource of VM {vms} on cluster {target} is gone.");
    let returns = stage.state == State::PromotingTarget && may_return_without(stage).is_ok();
    if returns {
        let why = format!(
            "{why} Nothing was started on cluster {target}, so the roles go back to cluster {source}, whose disks hold everything."
        );
        return Next::RollBack(Cause::new(reason::RESOURCE_MISSING, why));
    }
    let requests = requests_of(lost);
    let own = format!(
        "delete ProtectionRequest {requests}, which gives the VM its own disks back on cluster {target}; then start the VM there and protect it anew"
    );
    let here = |m: &&Member| seen.source.resource(&m.vm).is_absent();
    let message = if lost.iter().any(here) {
        format!(
            "{why} So is that on cluster {source}, and no FailoverRequest makes them anew, because their data would be taken for new; the other members go on. To run the VM, {own}. Look with: kubectl get drbdresource -A, with --context {source} and with --context {target}"
        )
    } else {
        format!(
            "{why} No FailoverRequest makes it anew, because its data would be taken for new; the other members go on. To run the VM from its disks on cluster {source}, if they hold what you need, set spec.sourceCluster to {source} in ProtectionRequest {requests} and in those of the other members; or {own}. Look with: kubectl --context {source} get drbdresource -A"
        )
    };
    for_good(message)
}

/// The VMs whose DRBDResource on the source was seen gone while DRBD on the target does not call its copy
/// UpToDate: it was told of the last write by nobody, and does not become Primary alone.
fn stranded_on_target<'a>(seen: &'a Scene) -> Vec<&'a Member<'a>> {
    let stranded = |m: &&Member| {
        let target = seen.target.resource(&m.vm);
        let status = target.present().and_then(|r| r.status.as_ref());
        let alone = status.is_some_and(|s| {
            s.role == Some(Role::Secondary)
                && s.disk_state.is_some_and(|d| d != DiskState::UpToDate)
                && s.connection_state != Some(ConnectionState::Connected)
        });
        alone && seen.source.resource(&m.vm).is_absent()
    };
    seen.cast.iter().filter(stranded).collect()
}

/// The other side of a copy that is not called UpToDate is gone: nobody can confirm it. The VM's own
/// disks on the source hold everything.
fn without_peer(stage: &Stage, stranded: &[&Member]) -> Next {
    let seen = stage.seen;
    let (source, target) = (&seen.source.cluster, &seen.target.cluster);
    let vms = words::list_by(stranded, |m| m.vm.to_string());
    let requests = requests_of(stranded);
    let message = format!(
        "The DRBDResource of VM {vms} on cluster {source} is gone, and DRBD on cluster {target} does not become Primary without it, because nobody confirms that its copy is the newest. The VM's own disks on cluster {source} hold everything. To run it there, set spec.sourceCluster of ProtectionRequest {requests} to {source} and delete it, which gives the VM those disks back; then start the VM and protect it anew. The other members go on. Look with: kubectl --context {target} get drbdresource -A"
    );
    for_good(message)
}

/// It ends where it stands, and no further request takes it up.
fn for_good(message: String) -> Next {
    Next::Fail {
        cause: Cause::new(reason::RESOURCE_MISSING, message),
        rolled_back: Some(false),
        resumable: Some(false),
    }
}

/// Names of the ProtectionRequests of these VMs.
fn requests_of(members: &[&Member]) -> String {
    words::list_by(members, |m| {
        let name = m.request.and_then(|r| r.metadata.name.clone());
        name.unwrap_or_else(|| format!("of VM {}", m.vm))
    })
}

/// After the flip: stays, or ends when the budget is over.
fn wait_after_flip(stage: &Stage, obstacle: Obstacle, steps: Vec<Step>) -> Next {
    let back = stage.state == State::PromotingTarget && may_return(stage).is_ok();
    let (source, target) = (&stage.seen.source.cluster, &stage.seen.target.cluster);
    if stage.now < stage.deadline {
        let next = if back {
            format!(
                "It goes on as soon as the disks on cluster {target} are connected and UpToDate; at {} the roles go back and the group is started on cluster {source} again",
                moment(stage.deadline)
            )
        } else {
            stage.or_fails_resumable()
        };
        return stage.wait(obstacle, &next, steps);
    }
    if !back {
        return over_budget(stage, &obstacle.fact);
    }
    let why = format!(
        "{} Nothing was promoted or started on cluster {target}, so the roles go back to cluster {source}, whose disks are UpToDate.",
        budget_sentence(stage, &obstacle.fact)
    );
    Next::RollBack(Cause::new(reason::BUDGET_EXCEEDED, why))
}

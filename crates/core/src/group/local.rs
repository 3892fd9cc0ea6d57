//! The group on one workload cluster: carries the mirror's `desiredState` out on this cluster's VMs
//! and tells what they do [S2]. The only decision that starts or stops a member of a group.

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::conditions::group as condition;
use farshore_api::drbd::{ConnectionState, Role};
use farshore_api::protection_group::{
    CurrentState, DesiredState, GroupVmStatus, ProtectionGroupStatus,
};
use farshore_api::{DRBDResource, ProtectionGroup, VmRef};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Note;
use crate::conditions::{self, Truth};
use crate::vm;
use crate::words::{Wait, count, list, moment};

/// How long until a group on the way is looked at again; changes of its VMs trigger it before.
const WAITING: Duration = Duration::from_secs(15);
/// How long until a group that is as desired is looked at again.
const SETTLED: Duration = Duration::from_secs(300);

/// What the local group reconciler looks at.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// The mirror, as it is now.
    pub group: ProtectionGroup,
    /// Name of this cluster in its zone.
    pub cluster: String,
    /// The members of the mirror, as [`members`] lists them, with what was found of each.
    #[serde(default)]
    pub members: Vec<Member>,
}

/// One VM of the group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Member {
    /// The VM.
    pub vm: VmRef,
    /// Lower starts first, higher stops first.
    pub start_order: i32,
    /// Seconds between the former wave's readiness and this VM's start.
    pub start_delay_seconds: i32,
    /// The VirtualMachine; it must be read before the instance, so that "halted, and no instance"
    /// cannot be the moment before an instance appears.
    pub object: Option<Value>,
    /// Its VirtualMachineInstance.
    pub instance: Option<Instance>,
    /// The DRBDResource of its disks on this cluster.
    pub resource: Option<DRBDResource>,
}

/// A VirtualMachineInstance.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Instance {
    /// `status.phase`.
    pub phase: String,
    /// Node that it runs on.
    pub node: Option<String>,
    /// Its condition Ready, where it has one.
    pub ready: Option<bool>,
    /// Since when it is ready; since when it runs where it has no condition Ready.
    pub since: Option<Timestamp>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Why it does not run or is not ready, in KubeVirt's words, as [`complaint`] finds them.
    pub message: Option<String>,
}

impl Instance {
    fn runs(&self) -> bool {
        self.phase == "Running" && !self.deleting
    }
}

/// What KubeVirt says is wrong with a VirtualMachine or its instance: the first of its conditions
/// that tells of a failure with a message.
pub fn complaint(object: &Value) -> Option<String> {
    /// Each with the status that means trouble; what lies nearest to the cause first.
    const TROUBLES: [(&str, &str); 4] = [
        ("Failure", "True"),
        ("PodScheduled", "False"),
        ("Synchronized", "False"),
        ("Ready", "False"),
    ];
    let all = object.pointer("/status/conditions")?.as_array()?;
    TROUBLES.iter().find_map(|(type_, status)| {
        // That a VM has no instance is seen, and no reason.
        let found = all.iter().find(|c| {
            c["type"] == *type_ && c["status"] == *status && c["reason"] != "VMINotExists"
        })?;
        let message = found["message"].as_str().unwrap_or_default().trim();
        let text = match found["reason"].as_str().unwrap_or_default() {
            "" => message.to_string(),
            reason if message.is_empty() => reason.to_string(),
            reason => format!("{reason}: {message}"),
        };
        (!message.is_empty()).then_some(text)
    })
}

/// A fact, and what KubeVirt says about it.
fn with_words(fact: String, words: Option<&str>) -> String {
    match words {
        Some(words) => format!("{fact} ({})", words.trim_end_matches('.')),
        None => fact,
    }
}

/// Starts or stops one VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The VM.
    pub vm: VmRef,
    /// What it shall do.
    pub to: DesiredState,
    /// JSON merge patch of the VirtualMachine, with its resourceVersion as precondition.
    pub patch: Value,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Starts and stops; all of one decision may run side by side.
    pub steps: Vec<Step>,
    /// Status of the mirror.
    pub status: ProtectionGroupStatus,
    /// Events about the mirror.
    pub notes: Vec<Note>,
    /// When to look again.
    pub requeue: Option<Duration>,
}

/// The members of a mirror that name a VM, with nothing found of them yet.
pub fn members(group: &ProtectionGroup) -> Vec<Member> {
    let named = group
        .spec
        .members
        .iter()
        .filter_map(|m| Some((m.vm_ref.clone()?, m)));
    named
        .map(|(vm, m)| Member {
            vm,
            start_order: m.start_order,
            start_delay_seconds: m.start_delay_seconds,
            ..Member::default()
        })
        .collect()
}

/// Decides what the VMs of a mirror do now.
pub fn decide(seen: &Observed, now: Timestamp) -> Decision {
    let desired = seen.group.spec.desired_state;
    let plan = match desired {
        DesiredState::Running => start(seen, now),
        DesiredState::Stopped => stop(seen),
    };
    let status = status(seen, &plan, now);
    let settled = matches!(
        (desired, status.current_state),
        (DesiredState::Running, Some(CurrentState::Running))
            | (DesiredState::Stopped, Some(CurrentState::Stopped))
    );
    let pause = if settled && plan.steps.is_empty() {
        SETTLED
    } else {
        WAITING
    };
    let notes = notes(seen, &plan, &status);
    Decision {
        steps: plan.steps,
        status,
        notes,
        requeue: Some(plan.again.map_or(pause, |again| again.min(pause))),
    }
}

/// Steps, and what the VMs wait for.
#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    waits: BTreeMap<VmRef, String>,
    /// When a start delay ends.
    again: Option<Duration>,
}

/// Members by start order.
fn waves(seen: &Observed) -> BTreeMap<i32, Vec<&Member>> {
    let mut waves: BTreeMap<i32, Vec<&Member>> = BTreeMap::new();
    for member in &seen.members {
        waves.entry(member.start_order).or_default().push(member);
    }
    waves
}

/// What precedes a wave.
#[derive(Clone, Copy)]
enum Before {
    /// It is the first.
    Nothing,
    /// The wave before is up since then.
    Up(Option<Timestamp>),
    /// The wave of this order is not up.
    Blocked(i32),
}

/// Lower waves first; a wave begins when the one before it is up, each VM after its delay.
fn start(seen: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut before = Before::Nothing;
    for (order, wave) in waves(seen) {
        for member in &wave {
            if let Err(why) = start_one(seen, member, before, now, &mut plan) {
                plan.waits.insert(member.vm.clone(), why);
            }
        }
        if !matches!(before, Before::Blocked(_)) {
            let since = wave.iter().filter_map(|m| m.instance.as_ref()?.since).max();
            before = if wave.iter().all(|m| is_up(m)) {
                Before::Up(since)
            } else {
                Before::Blocked(order)
            };
        }
    }
    plan
}

/// Whether the next wave may begin as far as this VM goes.
fn is_up(member: &Member) -> bool {
    member.object.is_some()
        && member
            .instance
            .as_ref()
            .is_some_and(|i| i.runs() && i.ready != Some(false))
}

fn start_one(
    seen: &Observed,
    member: &Member,
    before: Before,
    now: Timestamp,
    plan: &mut Plan,
) -> Result<(), String> {
    let vm = &member.vm;
    let wait = |by: String, next, command: String| {
        Wait {
            what: format!("VM {vm} (cluster {}) does not run yet", seen.cluster),
            by,
            since: None,
            next,
            command,
        }
        .to_string()
    };
    let look = format!("kubectl -n {} get vm,vmi {}", vm.namespace, vm.name);
    let Some(object) = &member.object else {
        return Err(missing(seen, member));
    };
    if let Some(instance) = &member.instance {
        let words = instance.message.as_deref();
        return match (instance.runs(), instance.ready) {
            (true, Some(false)) => Err(wait(
                with_words("its instance runs and is not Ready".into(), words),
                "The next wave starts when it is",
                look,
            )),
            (true, _) => Ok(()),
            (false, _) if instance.deleting => Err(wait(
                "its former instance is still stopping".into(),
                "It is started when that is gone",
                look,
            )),
            (false, _) => Err(wait(
                with_words(format!("its instance is {}", instance.phase), words),
                "KubeVirt brings it up",
                look,
            )),
        };
    }
    if !vm::is_halted(object) && object.pointer("/spec/runStrategy") != Some(&json!("Manual")) {
        return Err(wait(
            with_words(
                "it shall run and KubeVirt has not made an instance of it".into(),
                complaint(object).as_deref(),
            ),
            "KubeVirt makes one",
            look,
        ));
    }
    if let Before::Blocked(order) = before {
        return Err(wait(
            format!("the VMs of start order {order} are not all up"),
            "It is started when they are",
            format!(
                "kubectl -n {} get pg {} -o yaml",
                namespace(seen),
                name(seen)
            ),
        ));
    }
    if let Before::Up(Some(ready)) = before {
        let at = ready
            .saturating_add(SignedDuration::from_secs(member.start_delay_seconds.into()))
            .unwrap_or(ready);
        if now < at {
            let rest = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            plan.again = Some(plan.again.map_or(rest, |a| a.min(rest)));
            return Err(format!(
                "VM {vm} (cluster {}) is started at {}, {} s after the wave before it was up",
                seen.cluster,
                moment(at),
                member.start_delay_seconds
            ));
        }
    }
    if let Some(by) = not_primary(member) {
        let command = format!("kubectl -n {} get drbdresources", vm.namespace);
        return Err(wait(
            by,
            "It is started as soon as the resource is Primary here",
            command,
        ));
    }
    let mut new = object.clone();
    vm::resume(&mut new);
    if matches!(
        new.pointer("/spec/runStrategy").and_then(Value::as_str),
        Some("Manual" | "Halted")
    ) {
        // Neither makes a VM run.
        new["spec"]["runStrategy"] = json!("Always");
    }
    push(plan, vm, DesiredState::Running, object, &new);
    Ok(())
}

/// Why the VM's disks may not be written here; none when this side is Primary, by the newest epoch.
fn not_primary(member: &Member) -> Option<String> {
    let Some(resource) = &member.resource else {
        return Some("it has no DRBDResource here".into());
    };
    let name = resource.metadata.name.as_deref().unwrap_or_default();
    let at = format!("DRBDResource {}/{name}", member.vm.namespace);
    if resource.metadata.deletion_timestamp.is_some() {
        return Some(format!("{at} is being deleted"));
    }
    let status = resource.status.as_ref();
    let role = status.and_then(|s| s.role).unwrap_or(Role::Unknown);
    if role != Role::Primary {
        return Some(format!("{at} is {role}"));
    }
    // A Primary that shall become Secondary, or has not heard of the newest epoch, is no ground to start on.
    if resource.spec.role != Role::Primary {
        return Some(format!("{at} is about to become {}", resource.spec.role));
    }
    let epoch = status.and_then(|s| s.role_epoch).unwrap_or(0);
    (epoch < resource.spec.role_epoch).then(|| {
        format!(
            "{at} has not confirmed role epoch {} yet",
            resource.spec.role_epoch
        )
    })
}

/// Higher waves first; a wave begins when the ones before it are down.
fn stop(seen: &Observed) -> Plan {
    let mut plan = Plan::default();
    let mut closed_by: Option<i32> = None;
    for (order, wave) in waves(seen).into_iter().rev() {
        for member in &wave {
            if let Err(why) = stop_one(seen, member, closed_by, &mut plan) {
                plan.waits.insert(member.vm.clone(), why);
            }
        }
        if closed_by.is_none() && wave.iter().any(|m| m.instance.is_some()) {
            closed_by = Some(order);
        }
    }
    plan
}

fn stop_one(
    seen: &Observed,
    member: &Member,
    closed_by: Option<i32>,
    plan: &mut Plan,
) -> Result<(), String> {
    let vm = &member.vm;
    let wait = |by: String, next, command: String| {
        Wait {
            what: format!("VM {vm} (cluster {}) is not stopped yet", seen.cluster),
            by,
            since: None,
            next,
            command,
        }
        .to_string()
    };
    let Some(object) = &member.object else {
        return Err(missing(seen, member));
    };
    if !vm::is_halted(object) {
        // One without an instance is halted at once: it could appear any moment.
        if let Some(order) = closed_by.filter(|_| member.instance.is_some()) {
            let command = format!(
                "kubectl -n {} get pg {} -o yaml",
                namespace(seen),
                name(seen)
            );
            return Err(wait(
                format!("the VMs of start order {order} are not all stopped"),
                "It is stopped when they are",
                command,
            ));
        }
        let mut new = object.clone();
        vm::halt(&mut new);
        push(plan, vm, DesiredState::Stopped, object, &new);
        return Ok(());
    }
    match &member.instance {
        None => Ok(()),
        Some(instance) => {
            let phase = if instance.deleting {
                "is shutting down"
            } else {
                "is still there"
            };
            let command = format!(
                "kubectl -n {} get vmi {}; if the guest does not shut down: virtctl -n {} stop {} --force --grace-period=0",
                vm.namespace, vm.name, vm.namespace, vm.name
            );
            Err(wait(
                format!("its instance {phase}"),
                "It counts as stopped when the instance is gone",
                command,
            ))
        }
    }
}

fn push(plan: &mut Plan, vm: &VmRef, to: DesiredState, old: &Value, new: &Value) {
    if let Some(patch) = vm::patch(old, new) {
        plan.steps.push(Step {
            vm: vm.clone(),
            to,
            patch,
        });
    }
}

fn missing(seen: &Observed, member: &Member) -> String {
    let rest = if member.instance.is_some() {
        ", though an instance of it is there"
    } else {
        ""
    };
    Wait {
        what: format!(
            "state of VM {} (cluster {}) is not known",
            member.vm, seen.cluster
        ),
        by: format!("there is no such VirtualMachine{rest}"),
        since: None,
        next: "It is looked at again every 15 s; protection makes a standby VM again",
        command: format!("kubectl -n {} get vm,vmi", member.vm.namespace),
    }
    .to_string()
}

fn status(seen: &Observed, plan: &Plan, now: Timestamp) -> ProtectionGroupStatus {
    let mut status = seen.group.status.clone().unwrap_or_default();
    status.vms = seen.members.iter().map(|m| vm_status(m, plan)).collect();
    let current = together(&status.vms);
    status.current_state = Some(current);
    // Together with the evaluation: whoever waits for a state compares this with the generation it wrote.
    status.observed_generation = seen.group.metadata.generation;
    let running = status
        .vms
        .iter()
        .filter(|v| v.state == CurrentState::Running)
        .count();
    status.ready_vms = Some(i32::try_from(running).unwrap_or(i32::MAX));
    status.total_vms = Some(i32::try_from(status.vms.len()).unwrap_or(i32::MAX));
    let (truth, reason, message) = readiness(seen, current, running, plan);
    let generation = seen.group.metadata.generation;
    conditions::set(
        &mut status.conditions,
        condition::READY,
        truth,
        reason,
        message,
        generation,
        now,
    );
    status
}

fn vm_status(member: &Member, plan: &Plan) -> GroupVmStatus {
    let resource = member.resource.as_ref();
    let pinned = resource.and_then(|r| r.spec.node_name.clone());
    GroupVmStatus {
        name: member.vm.name.clone(),
        namespace: member.vm.namespace.clone(),
        state: state(member),
        replication: resource.and_then(replication),
        node: member
            .instance
            .as_ref()
            .and_then(|i| i.node.clone())
            .or(pinned),
        message: plan.waits.get(&member.vm).cloned(),
    }
}

/// What one VM does. It is stopped only when no instance exists and none is about to.
fn state(member: &Member) -> CurrentState {
    match (&member.object, &member.instance) {
        (None, _) => CurrentState::Unknown,
        (Some(object), None) if vm::is_halted(object) => CurrentState::Stopped,
        (Some(_), Some(instance)) if instance.runs() => CurrentState::Running,
        (Some(_), _) => CurrentState::Mixed,
    }
}

/// What the group does: unknown if any VM is, or if there is none; else what all do; else mixed.
fn together(vms: &[GroupVmStatus]) -> CurrentState {
    let all = |state| vms.iter().all(|v| v.state == state);
    if vms.is_empty() || vms.iter().any(|v| v.state == CurrentState::Unknown) {
        CurrentState::Unknown
    } else if all(CurrentState::Running) {
        CurrentState::Running
    } else if all(CurrentState::Stopped) {
        CurrentState::Stopped
    } else {
        CurrentState::Mixed
    }
}

/// Replication in a word: the connection while it is down, else the disk.
fn replication(resource: &DRBDResource) -> Option<String> {
    let status = resource.status.as_ref()?;
    if status.split_brain == Some(true) {
        return Some("SplitBrain".into());
    }
    match status.connection_state {
        Some(ConnectionState::Connected) | None => status.disk_state.map(|d| d.to_string()),
        Some(other) => Some(other.to_string()),
    }
}

fn readiness(
    seen: &Observed,
    current: CurrentState,
    running: usize,
    plan: &Plan,
) -> (Truth, &'static str, String) {
    let total = seen.members.len();
    let desired = seen.group.spec.desired_state;
    if current == CurrentState::Unknown {
        let waits: Vec<&str> = plan.waits.values().map(String::as_str).collect();
        let message = if total == 0 {
            "the mirror names no VM".to_string()
        } else {
            first(&waits)
        };
        return (Truth::Unknown, "VMsUnknown", message);
    }
    match (desired, current) {
        (DesiredState::Running, CurrentState::Running) => (
            Truth::True,
            "Running",
            format!("all of {} run", count(total, "VM")),
        ),
        (DesiredState::Stopped, CurrentState::Stopped) => (
            Truth::True,
            "Stopped",
            format!("none of {} runs", count(total, "VM")),
        ),
        _ => {
            let waits: Vec<&str> = plan.waits.values().map(String::as_str).collect();
            let reason = if desired == DesiredState::Running {
                "Starting"
            } else {
                "Stopping"
            };
            let mut message = format!(
                "{running} of {} run, {} shall",
                count(total, "VM"),
                if desired == DesiredState::Running {
                    "all"
                } else {
                    "none"
                }
            );
            if !waits.is_empty() {
                message = format!("{message}; {}", first(&waits));
            }
            (Truth::False, reason, message)
        }
    }
}

/// The first message, and how many more there are.
fn first(messages: &[&str]) -> String {
    match messages {
        [] => String::new(),
        [one] => (*one).to_string(),
        [one, rest @ ..] => format!("{one} (and {} more)", rest.len()),
    }
}

fn notes(seen: &Observed, plan: &Plan, status: &ProtectionGroupStatus) -> Vec<Note> {
    let mut notes = Vec::new();
    for (to, reason, verb) in [
        (DesiredState::Running, "StartingVMs", "starting"),
        (DesiredState::Stopped, "StoppingVMs", "stopping"),
    ] {
        let names: Vec<String> = plan
            .steps
            .iter()
            .filter(|s| s.to == to)
            .map(|s| s.vm.to_string())
            .collect();
        if !names.is_empty() {
            notes.push(Note::normal(
                reason,
                format!(
                    "{verb} {} on cluster {}: {}",
                    count(names.len(), "VM"),
                    seen.cluster,
                    list(&names)
                ),
            ));
        }
    }
    let before = seen.group.status.as_ref().and_then(|s| s.current_state);
    if status.current_state == Some(CurrentState::Unknown) && before != Some(CurrentState::Unknown)
    {
        let message = conditions::get(&status.conditions, condition::READY)
            .map(|c| c.message.clone())
            .unwrap_or_default();
        notes.push(Note::warning("VMsUnknown", message));
    }
    notes
}

fn name(seen: &Observed) -> &str {
    seen.group.metadata.name.as_deref().unwrap_or_default()
}

fn namespace(seen: &Observed) -> &str {
    seen.group.metadata.namespace.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;

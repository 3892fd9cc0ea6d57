//! A small world for failovers: zone `m` with clusters east and west, group `shop` with two VMs on
//! east. Its workload side does what it is told when it is asked to settle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farshore_api::drbd::{ConnectionState, DiskState, Role};
use farshore_api::failover_request::{FailoverRequestStatus, FailoverState};
use farshore_api::protection_group::{CurrentState, DesiredState, ProtectionGroupStatus};
use farshore_api::{DRBDResource, ProtectionGroup, ProtectionRequest, VmRef};
use farshore_core::failover::plan::rehearsal;
use farshore_core::failover::{Decision, Neighbour, Observed, Side, Step, decide};
use farshore_core::{Seen, conditions};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use serde_json::{Value, json};

pub const NAMESPACE: &str = "dr-m";
pub const UID: &str = "uid-of-shop-1";
pub const FINALIZER: &str = "siterecovery.trilio.io/failover-lock";

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

pub fn vms() -> Vec<VmRef> {
    ["db01", "web01"]
        .map(|name| VmRef {
            namespace: "shop".into(),
            name: name.into(),
        })
        .to_vec()
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[derive(Clone, Debug)]
pub struct World {
    pub seen: Observed,
    pub now: Timestamp,
    /// Every decision's steps, with the moment.
    pub trace: Vec<Step>,
    /// Every state entered.
    pub states: Vec<FailoverState>,
}

impl World {
    pub fn new() -> Self {
        let members: Vec<ProtectionRequest> = vms().iter().map(|vm| request(vm, "east")).collect();
        let seen = Observed {
            request: from(json!({
                "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "FailoverRequest",
                "metadata": {"name": "shop-1", "namespace": NAMESPACE, "uid": UID, "generation": 1, "resourceVersion": "10"},
                "spec": {"protectionGroupRef": {"name": "shop"}, "targetCluster": "west", "failoverType": "planned"},
            })),
            zone: from(json!({
                "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionZone",
                "metadata": {"name": "m", "namespace": NAMESPACE},
                "spec": {"clusters": [
                    {"name": "east", "kubeconfigSecretRef": {"name": "east"}},
                    {"name": "west", "kubeconfigSecretRef": {"name": "west"}},
                ]},
            })),
            group: Some(from(json!({
                "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionGroup",
                "metadata": {"name": "shop", "namespace": NAMESPACE, "uid": "uid-of-shop", "resourceVersion": "20"},
                "spec": {"members": [{"protectionRequestRef": "db01"}, {"vmRef": {"namespace": "shop", "name": "web01"}}]},
            }))),
            members,
            former: vec![],
            unresolved: vec![],
            lease: None,
            others: BTreeMap::from([("uid-of-shop-0".to_string(), "shop-0".to_string())]),
            ahead: None,
            source: side("east", DesiredState::Running, Role::Primary),
            target: side("west", DesiredState::Stopped, Role::Secondary),
            nodes: BTreeMap::from([("west-1".to_string(), Seen::Present(node(&[])))]),
            neighbours: Seen::Present(vec![]),
            standby: Seen::Present(vms().into_iter().collect::<BTreeSet<_>>()),
            jobs: BTreeMap::new(),
            trouble: None,
        };
        Self {
            seen,
            now: at(0),
            trace: vec![],
            states: vec![],
        }
    }

    /// A world whose request is locked and in this state since now.
    pub fn in_state(state: FailoverState) -> Self {
        let mut world = Self::new();
        world.seen.request.metadata.finalizers = Some(vec![FINALIZER.into()]);
        world.hold_lock(UID, world.now);
        let mut status: FailoverRequestStatus = from(json!({
            "state": state, "observedGeneration": 1, "sourceCluster": "east",
            "startTime": at(0).to_string(), "deadline": at(300).to_string(),
            "steps": [{"name": state, "state": "Running", "startTime": at(0).to_string()}],
            "vmStatuses": vms().iter().map(|vm| json!({"vmName": vm.name, "vmNamespace": vm.namespace, "phase": "Pending"})).collect::<Vec<_>>(),
        }));
        conditions::set(
            &mut status.conditions,
            "Locked",
            conditions::Truth::True,
            "Acquired",
            "Holds it.",
            Some(1),
            at(0),
        );
        world.seen.request.status = Some(status);
        world
    }

    pub fn hold_lock(&mut self, holder: &str, renewed: Timestamp) {
        self.seen.lease = Some(Lease {
            metadata: ObjectMeta {
                name: Some("failover-lock-shop".into()),
                resource_version: Some("30".into()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.into()),
                lease_duration_seconds: Some(300),
                acquire_time: Some(MicroTime(renewed)),
                renew_time: Some(MicroTime(renewed)),
                lease_transitions: Some(3),
                ..LeaseSpec::default()
            }),
        });
    }

    pub fn hooks(&mut self, hooks: Value) {
        self.seen.group.as_mut().unwrap().spec.hooks = Some(from(hooks));
    }

    pub fn taint(&mut self, keys: &[&str]) {
        self.seen
            .nodes
            .insert("west-1".into(), Seen::Present(node(keys)));
    }

    pub fn neighbour(&mut self, name: &str, current: Option<CurrentState>) {
        let Seen::Present(all) = &mut self.seen.neighbours else {
            panic!("neighbours are unknown")
        };
        all.push(Neighbour {
            namespace: NAMESPACE.into(),
            name: name.into(),
            current,
            nodes: None,
        });
    }

    pub fn status(&self) -> FailoverRequestStatus {
        self.seen.request.status.clone().unwrap_or_default()
    }

    pub fn state(&self) -> FailoverState {
        self.status().state.unwrap_or(FailoverState::Pending)
    }

    pub fn ended(&self) -> bool {
        self.state().is_terminal(self.seen.request.spec.queue)
    }

    pub fn mirror(side: &mut Side) -> &mut ProtectionGroup {
        match &mut side.mirror {
            Seen::Present(mirror) => mirror,
            other => panic!("the mirror is {other:?}"),
        }
    }

    pub fn resources(side: &mut Side) -> &mut BTreeMap<VmRef, DRBDResource> {
        match &mut side.resources {
            Seen::Present(resources) => resources,
            other => panic!("the resources are {other:?}"),
        }
    }

    /// The mirror of a side reports this of all its VMs, for its present spec.
    pub fn report(side: &mut Side, current: CurrentState) {
        let mirror = Self::mirror(side);
        mirror.status = Some(mirror_status(current, mirror.metadata.generation));
    }

    /// The source has stopped, as it was told.
    pub fn source_has_stopped(&mut self) {
        told(&mut self.seen.source, DesiredState::Stopped);
        Self::report(&mut self.seen.source, CurrentState::Stopped);
    }

    /// `sourceCluster` of every member is the target.
    pub fn flip_all(&mut self) {
        for member in &mut self.seen.members {
            member.spec.source_cluster = "west".into();
        }
    }

    /// The request is about to flip, or has flipped, every role itself.
    pub fn flipping(&mut self) {
        let status = self.seen.request.status.as_mut().unwrap();
        conditions::set(
            &mut status.conditions,
            "RolesFlipped",
            conditions::Truth::False,
            "Flipping",
            "sourceCluster becomes west.",
            Some(1),
            at(0),
        );
    }

    /// The replication link is cut while neither side is Primary: the source was the last one and
    /// calls its data UpToDate, the target cannot.
    pub fn cut_link(&mut self) {
        for (side, disk) in [
            (&mut self.seen.source, DiskState::UpToDate),
            (&mut self.seen.target, DiskState::Consistent),
        ] {
            for resource in Self::resources(side).values_mut() {
                let status = resource.status.as_mut().unwrap();
                status.role = Some(Role::Secondary);
                status.connection_state = Some(ConnectionState::Connecting);
                status.disk_state = Some(disk);
            }
        }
    }

    /// The budget is over, and the lock is still ours.
    pub fn budget_is_over(&mut self) {
        self.now = at(300);
        self.hold_lock(UID, at(290));
    }

    /// Every member's role is on the target, and DRBD followed.
    pub fn roles_have_flipped(&mut self) {
        self.flip_all();
        set_role(&mut self.seen.source, Role::Secondary);
        set_role(&mut self.seen.target, Role::Primary);
    }

    /// One look and what follows: the status is stored, the steps are carried out.
    pub fn round(&mut self) -> Decision {
        let decision = decide(&self.seen, self.now);
        self.carry_out(&decision, |_| true);
        decision
    }

    /// Stores the status, then carries out the steps that `reach` their object.
    pub fn carry_out(&mut self, decision: &Decision, reach: impl Fn(&Step) -> bool) {
        let before = self.status().steps.len();
        let entered = decision.status.steps.iter().skip(before).map(|s| s.name);
        self.states.extend(entered);
        self.seen.request.status = Some(decision.status.clone());
        for step in &decision.steps {
            self.trace.push(step.clone());
            if reach(step) {
                rehearsal::take(&mut self.seen, step);
            }
        }
    }

    /// The workload side does what it was told: VMs, roles, Jobs.
    pub fn settle(&mut self) {
        rehearsal::settle(&mut self.seen);
    }

    pub fn pass(&mut self, time: Duration) {
        self.now += SignedDuration::try_from(time).unwrap();
    }

    /// Rounds with a workload side that works, until nothing is left to do.
    pub fn run(&mut self) -> FailoverState {
        for _ in 0..200 {
            self.settle();
            let before = self.seen.request.clone();
            let decision = self.round();
            if self.ended() && decision.steps.is_empty() && before == self.seen.request {
                return self.state();
            }
            self.pass(decision.requeue.unwrap_or_default());
        }
        panic!("does not come to rest: {:?}", self.status());
    }
}

/// A mirror is told a desired state: its generation moves if that is new.
pub fn told(side: &mut Side, desired: DesiredState) {
    let mirror = World::mirror(side);
    if mirror.spec.desired_state != desired {
        mirror.spec.desired_state = desired;
        mirror.metadata.generation = mirror.metadata.generation.map(|g| g + 1);
    }
}

pub fn set_role(side: &mut Side, role: Role) {
    for resource in World::resources(side).values_mut() {
        resource.status.as_mut().unwrap().role = Some(role);
    }
}

/// The mirror loses its first VM.
pub fn forget_first(side: &mut Side) {
    let Seen::Present(mirror) = &mut side.mirror else {
        panic!("no mirror to change")
    };
    mirror.spec.members.remove(0);
    mirror.status.as_mut().unwrap().vms.remove(0);
}

/// The mirror says of its first VM why it does not run.
pub fn complain(side: &mut Side, why: &str) {
    let Seen::Present(mirror) = &mut side.mirror else {
        panic!("no mirror to complain")
    };
    let status = mirror.status.as_mut().unwrap();
    status.vms[0].message = Some(why.into());
}

pub fn mirror_status(current: CurrentState, generation: Option<i64>) -> ProtectionGroupStatus {
    from(json!({
        "currentState": current, "observedGeneration": generation,
        "vms": vms().iter().map(|vm| json!({"name": vm.name, "namespace": vm.namespace, "state": current})).collect::<Vec<_>>(),
    }))
}

pub fn request(vm: &VmRef, source: &str) -> ProtectionRequest {
    from(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionRequest",
        "metadata": {"name": vm.name, "namespace": NAMESPACE},
        "spec": {"vmName": vm.name, "vmNamespace": vm.namespace, "sourceCluster": source},
        "status": {"phase": "Protected"},
    }))
}

pub fn side(cluster: &str, desired: DesiredState, role: Role) -> Side {
    let current = match desired {
        DesiredState::Running => CurrentState::Running,
        DesiredState::Stopped => CurrentState::Stopped,
    };
    let mut mirror: ProtectionGroup = from(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "ProtectionGroup",
        "metadata": {"name": "shop", "namespace": NAMESPACE, "generation": 1, "resourceVersion": "40"},
        "spec": {"desiredState": desired, "members": vms().iter().map(|vm| json!({"vmRef": vm})).collect::<Vec<_>>()},
    }));
    mirror.status = Some(mirror_status(current, Some(1)));
    Side {
        cluster: cluster.into(),
        mirror: Seen::Present(mirror),
        resources: Seen::Present(
            vms()
                .into_iter()
                .map(|vm| (vm.clone(), resource(&vm, cluster, role)))
                .collect(),
        ),
    }
}

pub fn resource(vm: &VmRef, cluster: &str, role: Role) -> DRBDResource {
    from(json!({
        "apiVersion": "siterecovery.trilio.io/v1alpha1", "kind": "DRBDResource",
        "metadata": {"name": format!("drbd-{}", vm.name), "namespace": vm.namespace},
        "spec": {
            "nodeName": format!("{cluster}-1"), "vmRef": {"name": vm.name}, "zone": "m", "cluster": cluster,
            "peerCluster": if cluster == "east" { "west" } else { "east" }, "role": role, "roleEpoch": 1,
            "volumes": [{"index": 0, "name": "root", "pvcName": "root", "storageClass": "s", "sizeBytes": 1, "port": 7000}],
        },
        "status": {
            "role": role, "roleEpoch": 1, "connectionState": "Connected", "diskState": "UpToDate",
            "volumes": [volume(role)],
        },
    }))
}

pub fn volume(role: Role) -> Value {
    json!({
        "index": 0, "minor": 1000, "role": role, "connectionState": "Connected", "diskState": "UpToDate",
        "peerDiskState": "UpToDate", "replicationState": "Established", "outOfSyncBytes": 0, "syncPercent": 100,
    })
}

pub fn node(keys: &[&str]) -> Node {
    let mut taints = vec![json!({"key": "team", "value": "a", "effect": "NoSchedule"})];
    taints.extend(
        keys.iter()
            .map(|key| json!({"key": key, "effect": "NoSchedule"})),
    );
    from(
        json!({"metadata": {"name": "west-1", "resourceVersion": "50"}, "spec": {"taints": taints}}),
    )
}

/// A decision in the words that matter.
pub fn told_in_short(decision: &Decision) -> Value {
    let status = &decision.status;
    let conditions: Vec<String> = status
        .conditions
        .iter()
        .map(|c| format!("{}={} {}", c.type_, c.status, c.reason))
        .collect();
    let trail: Vec<String> = status
        .steps
        .iter()
        .map(|s| format!("{} {}", s.name, s.state))
        .collect();
    let vms: Vec<String> = status
        .vm_statuses
        .iter()
        .map(|vm| {
            format!(
                "{} {}{}",
                vm.vm_name,
                vm.phase,
                vm.message
                    .as_ref()
                    .map_or(String::new(), |m| format!(": {m}"))
            )
        })
        .collect();
    json!({
        "state": status.state, "message": status.message, "trail": trail, "conditions": conditions, "vms": vms,
        "rolledBack": status.rolled_back, "resumable": status.resumable, "safetyCheck": status.safety_check,
        "steps": decision.steps, "requeueSeconds": decision.requeue.map(|d| d.as_secs()),
        "notes": decision.notes.iter().map(|n| format!("{}{}: {}", if n.warning { "Warning " } else { "" }, n.reason, n.message)).collect::<Vec<_>>(),
    })
}

#[allow(dead_code)]
pub fn time(at: Timestamp) -> Time {
    Time(at)
}

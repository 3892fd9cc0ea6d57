//! One history: the lab is started, set up, hurt, healed, and must be well again.

use std::fmt::Display;
use std::time::Duration;

use farshore_api::protection_request::ProtectionPhase;
use farshore_api::{
    FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone, ReplicationGroupStatus,
    names,
};
use farshore_lab::drbd;
use farshore_lab::engine::Engine;
use farshore_lab::lab::{CLUSTERS, Lab, LabOptions};
use farshore_lab::measure::Marks;
use farshore_lab::sim::{Timings, node_names};
use farshore_lab::story::{User, Vm, has_condition};
use farshore_runtime::{CancellationToken, Clock};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::branches::Branches;
use crate::checker::{Checker, vm_name};
use crate::model::{key, text};
use crate::outcome::Outcome;
use crate::schedule::{Event, Group, Part, Schedule, Stem, What};
use crate::trace::Trace;

/// Name of the zone.
const ZONE: &str = "metro";
/// How long a person waits for anything to come about when nothing is broken any more: retries are a
/// minute apart, and one thing waits for the other.
const PATIENCE: Duration = Duration::from_secs(480);
/// How often a person looks.
const LOOK: Duration = Duration::from_millis(500);
/// How often a person helps a group on before giving up on it.
const HELP: usize = 4;
/// Time in which a world that is well settles, and then the time in which it must not write: longer
/// than the minute in which everything is looked at again, and than the 90 s in which a watch that fell
/// silent is noticed.
const SETTLE: Duration = Duration::from_secs(100);

/// A history under way.
struct World<'a> {
    stem: &'a Stem,
    lab: &'a Lab,
    user: User<'a>,
    checker: Checker,
    trace: Trace,
}

/// Lets a world come about in the current runtime, whose time must be paused, and go on as each branch
/// of its own: returns the outcome of a branch in the process of that branch, and nothing in the process
/// that they come from.
pub async fn history(stem: &Stem, branches: &mut Branches) -> Option<Outcome> {
    let trace = Trace::new();
    let options = LabOptions {
        engine: Engine::Embedded,
        nodes: stem.nodes,
        dir: None,
        timings: Timings {
            guest_write: Duration::from_millis(500),
            ..Timings::default()
        },
        drbd: drbd::Options::default(),
        clock: Clock::virtual_from(jiff::Timestamp::constant(1_767_225_600, 0)), // 2026-01-01
        seed: stem.seed,
    };
    let clock = options.clock.clone();
    let lab = match Lab::start(options, CancellationToken::new()).await {
        Ok(lab) => lab,
        Err(error) => {
            branches.branch()?;
            return Some(Outcome::broken("starts", format!("{error:#}")));
        }
    };
    let checker = Checker::new(stem, clock, lab.guests.clone(), trace.clone());
    for cluster in CLUSTERS {
        let (checker, trace) = (checker.clone(), trace.clone());
        let server = lab.cluster(cluster).server.embedded();
        server
            .expect("the engine is Embedded")
            .observe(move |commit| {
                trace.changed(cluster, commit);
                checker.changed(cluster, commit);
            });
    }
    let listener = trace.clone();
    lab.faults().listen(move |traffic| listener.passed(traffic));
    let world = World {
        stem,
        lab: &lab,
        user: User::new(&lab, ZONE),
        checker: checker.clone(),
        trace: trace.clone(),
    };
    let grown = world.grow().await;
    let stem_seconds = trace.seconds();
    let schedule = branches.branch()?;
    let lived = match grown {
        Ok(()) => world.live(&schedule).await,
        Err(why) => Err(why),
    };
    if let Err(why) = lived {
        checker.broken(why.invariant, &why.text);
    }
    let lost = lab.guests.ledger().lost();
    if let Some((vm, disk, numbers)) = lost.first() {
        let what = format!(
            "acknowledged writes {numbers:?} of {vm} on disk {disk} were gone when it booted"
        );
        checker.broken("no-loss", &what);
    }
    Some(Outcome {
        violations: checker.violations(),
        seconds: trace.seconds(),
        stem_seconds,
        lines: trace.lines(),
    })
}

/// Why a history cannot go on.
struct Stuck {
    invariant: &'static str,
    text: String,
}

fn stuck(invariant: &'static str, text: impl Display) -> Stuck {
    Stuck {
        invariant,
        text: text.to_string(),
    }
}

/// The VMs of a group.
fn vms(group: &Group) -> Vec<Vm> {
    let vm =
        |(n, disks): (usize, &usize)| Vm::new(&group.name, &vm_name(&group.name, n), *disks, 8);
    group.vms.iter().enumerate().map(vm).collect()
}

impl World<'_> {
    /// From nothing until everything is protected.
    async fn grow(&self) -> Result<(), Stuck> {
        self.trace.did("setting up");
        let setup = &self.stem.setup;
        self.lab.faults().set(self.stem.seed, &setup.faults);
        let (set_up, ()) = tokio::join!(self.set_up(), self.suffer(setup, Instant::now()));
        set_up?;
        self.trace.did("everything is protected");
        Ok(())
    }

    /// From then on to the end.
    async fn live(&self, schedule: &Schedule) -> Result<(), Stuck> {
        let (begun, drill) = (Instant::now(), &schedule.drill);
        self.lab.faults().set(schedule.seed, &drill.faults);
        let heals = begun + Duration::from_millis(drill.ends_ms());
        let healed =
            self.lab.clock.now() + jiff::SignedDuration::from_millis(drill.ends_ms() as i64);
        let watch = async {
            // Budgets are watched while things break, too.
            while Instant::now() < heals {
                tokio::time::sleep(Duration::from_secs(5)).await;
                self.checker.overdue(healed);
            }
        };
        tokio::join!(self.suffer(drill, begun), watch);
        self.heal(drill).await;
        self.recover(healed).await?;
        self.quiet().await?;
        if schedule.proof {
            self.prove().await?;
        }
        Ok(())
    }

    /// Waits until `look` is true.
    async fn until<F, Fut>(&self, what: &str, look: F) -> Result<(), Stuck>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = anyhow::Result<bool>>,
    {
        let limit = Instant::now() + PATIENCE;
        let mut last = String::new();
        loop {
            match look().await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => last = format!(" (last error: {error:#})"),
            }
            if Instant::now() >= limit {
                let text = format!(
                    "{what} did not happen within {} s{last}",
                    PATIENCE.as_secs()
                );
                return Err(stuck("converges", text));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Applies a manifest, again and again while the server does not answer.
    async fn insist(&self, cluster: &str, manifest: &Value) -> Result<(), Stuck> {
        let what = format!("applying {} on {cluster}", text(manifest, "/metadata/name"));
        self.until(&what, || async {
            self.user.apply(cluster, manifest).await?;
            Ok(true)
        })
        .await
    }

    async fn set_up(&self) -> Result<(), Stuck> {
        self.until("creating the zone's credentials", || async {
            self.user.create_credentials().await?;
            Ok(true)
        })
        .await?;
        self.insist("hub", &self.user.zone_manifest()).await?;
        let zones: Api<ProtectionZone> = self.user.api();
        self.until("the zone being Ready", || async {
            let status = zones.get(ZONE).await?.status.unwrap_or_default();
            Ok(has_condition(&status.conditions, "Ready", "True"))
        })
        .await?;
        for group in &self.stem.groups {
            for vm in vms(group) {
                for manifest in vm.manifests() {
                    self.insist(&group.home, &manifest).await?;
                }
                let request = self.user.protection_manifest(&vm, &group.home, "Online");
                self.insist("hub", &request).await?;
            }
            let members = vms(group);
            let manifest = self.user.group_manifest(&group.name, &members);
            self.insist("hub", &manifest).await?;
        }
        for group in &self.stem.groups {
            let what = format!(
                "group {} being Ready and running on {}",
                group.name, group.home
            );
            self.until(&what, || self.well(group, Some(&group.home)))
                .await?;
        }
        Ok(())
    }

    /// Whether a group is ready, in sync and runs where its requests say, and there alone.
    async fn well(&self, group: &Group, on: Option<&str>) -> anyhow::Result<bool> {
        let groups: Api<ProtectionGroup> = self.user.api();
        let status = groups.get(&group.name).await?.status.unwrap_or_default();
        if !has_condition(&status.conditions, "Ready", "True") {
            return Ok(false);
        }
        let states: Api<ReplicationGroupStatus> = self.user.api();
        let state = states.get(&names::replication_status(&group.name)).await?;
        let rpo = state.status.unwrap_or_default().rpo_status;
        if rpo.map(|s| s.as_str()) != Some("Compliant") {
            return Ok(false);
        }
        let requests: Api<ProtectionRequest> = self.user.api();
        for vm in vms(group) {
            let request = requests.get(&vm.name).await?;
            let source = request.spec.source_cluster;
            let status = request.status.unwrap_or_default();
            if status.phase != Some(ProtectionPhase::Protected)
                || self.lab.guests.places(&vm.key()) != [source.clone()]
                || on.is_some_and(|c| c != source)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Everything of a part happens, each at its time, until all of it is over.
    async fn suffer(&self, part: &Part, begun: Instant) {
        let each = part.events.iter().map(|event| self.happen(event, begun));
        let end = tokio::time::sleep_until(begun + Duration::from_millis(part.ends_ms()));
        futures::future::join(join_all(each), end).await;
    }

    async fn happen(&self, event: &Event, begun: Instant) {
        tokio::time::sleep_until(begun + Duration::from_millis(event.at_ms)).await;
        self.trace.did(&format!("{:?}", event.what));
        let lasts = tokio::time::sleep(Duration::from_millis(event.what.lasts_ms()));
        match &event.what {
            What::Link { .. } => {
                self.lab.world.link(false);
                lasts.await;
                self.lab.world.link(true);
            }
            What::Node { cluster, node, .. } => {
                let _ = self.lab.set_node(cluster, node, false).await;
                lasts.await;
                let _ = self.lab.set_node(cluster, node, true).await;
            }
            What::Api { cluster, .. } => {
                self.lab.cluster(cluster).server.set_down(true);
                lasts.await;
                self.lab.cluster(cluster).server.set_down(false);
            }
            What::Site { cluster, .. } => {
                let _ = self.lab.set_site(cluster, false).await;
                lasts.await;
                let _ = self.lab.set_site(cluster, true).await;
            }
            What::Slow { cluster, ms, .. } => {
                let server = &self.lab.cluster(cluster).server;
                server.set_latency(Duration::from_millis(*ms));
                lasts.await;
                server.set_latency(Duration::ZERO);
            }
            What::Kill { process, cluster } => {
                let image = format!("farshore/{process}");
                match cluster {
                    Some(cluster) => self.lab.processes.restart_on(&image, cluster),
                    None => self.lab.processes.restart(&image),
                };
            }
            What::KillAtWrite {
                process,
                cluster,
                write,
                moment,
            } => {
                let image = format!("farshore/{process}");
                self.lab
                    .processes
                    .kill_at_write(&image, cluster.as_deref(), *write, *moment);
            }
            What::Pause { group, .. } => {
                self.desire(group, "stopped").await;
                lasts.await;
                self.desire(group, "running").await;
            }
            What::FailOver { .. } | What::Abort { .. } | What::Delete { .. } => {
                self.ask(&event.what).await;
            }
            What::RivalZone => self.rival().await,
            What::Taint { cluster } => self.taint(cluster, true).await,
        }
        if event.what.lasts_ms() > 0 {
            self.trace.did(&format!("over: {:?}", event.what));
        }
    }

    /// A user asks once, and again for a minute while the hub does not answer.
    async fn ask(&self, what: &What) {
        let requests: Api<FailoverRequest> = self.user.api();
        for _ in 0..60 {
            let said = match what {
                What::FailOver {
                    name,
                    group,
                    target,
                    timeout,
                    queue,
                    force,
                } => {
                    let mut manifest = self.user.failover_manifest(name, group, target);
                    manifest["spec"]["queue"] = json!(queue);
                    manifest["spec"]["force"] = json!(force);
                    if let Some(seconds) = timeout {
                        manifest["spec"]["timeoutSeconds"] = json!(seconds);
                    }
                    self.user.apply("hub", &manifest).await.map(|_| ())
                }
                What::Abort { name } => {
                    let abort = Patch::Merge(json!({ "spec": { "abort": true } }));
                    let done = requests.patch(name, &PatchParams::default(), &abort).await;
                    done.map(|_| ()).map_err(Into::into)
                }
                What::Delete { name } => {
                    let done = requests.delete(name, &DeleteParams::default()).await;
                    done.map(|_| ()).map_err(Into::into)
                }
                _ => return,
            };
            match said {
                Ok(()) => return,
                Err(error) => match error.downcast_ref::<kube::Error>() {
                    Some(kube::Error::Api(status)) if status.code < 500 => {
                        return self.trace.did(&format!("refused: {}", status.message));
                    }
                    _ => tokio::time::sleep(Duration::from_secs(1)).await,
                },
            }
        }
    }

    async fn desire(&self, group: &str, state: &str) {
        let groups: Api<ProtectionGroup> = self.user.api();
        let patch = Patch::Merge(json!({ "spec": { "desiredState": state } }));
        for _ in 0..60 {
            let done = groups.patch(group, &PatchParams::default(), &patch).await;
            if done.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// A second zone of the same clusters.
    async fn rival(&self) {
        let rival = User::new(self.lab, "rival");
        for _ in 0..60 {
            let made = async {
                rival.create_credentials().await?;
                rival.apply("hub", &rival.zone_manifest()).await
            };
            if made.await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Its owner sees that it cannot have them.
    async fn rival_gives_up(&self) {
        let zones: Api<ProtectionZone> = User::new(self.lab, "rival").api();
        let _ = zones.delete("rival", &DeleteParams::default()).await;
    }

    /// Puts a quorum taint on all nodes of a cluster, or takes it off.
    async fn taint(&self, cluster: &str, on: bool) {
        let nodes: Api<Node> = Api::all(self.lab.cluster(cluster).admin.clone());
        let quorum = farshore_api::meta::taints::QUORUM[0];
        for name in node_names(cluster, self.stem.nodes) {
            for _ in 0..60 {
                let done = async {
                    let node = nodes.get(&name).await?;
                    let mut taints: Vec<Value> = node
                        .spec
                        .iter()
                        .flat_map(|s| s.taints.iter().flatten())
                        .filter(|t| t.key != quorum)
                        .filter_map(|t| serde_json::to_value(t).ok())
                        .collect();
                    if on {
                        taints.push(json!({ "key": quorum, "effect": "NoSchedule" }));
                    }
                    let patch = json!({
                        "metadata": { "resourceVersion": node.metadata.resource_version },
                        "spec": { "taints": taints },
                    });
                    let params = PatchParams::default();
                    nodes.patch(&name, &params, &Patch::Merge(patch)).await
                };
                self.checker.by_hand(!on);
                let done = done.await;
                self.checker.by_hand(false);
                if done.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Everything that is broken is mended.
    async fn heal(&self, drill: &Part) {
        self.trace.did("everything is mended");
        self.lab.faults().set(0, &[]);
        self.lab.world.link(true);
        for cluster in CLUSTERS {
            let server = &self.lab.cluster(cluster).server;
            server.set_latency(Duration::ZERO);
            let _ = self.lab.set_site(cluster, true).await;
        }
        for event in &drill.events {
            match &event.what {
                What::Taint { cluster } => self.taint(cluster, false).await,
                What::RivalZone => self.rival_gives_up().await,
                _ => {}
            }
        }
        for group in &self.stem.groups {
            self.desire(&group.name, "running").await;
        }
    }

    /// Nothing is broken any more: all requests end, and all groups are well, if need be with the
    /// help that the messages advise.
    async fn recover(&self, healed: jiff::Timestamp) -> Result<(), Stuck> {
        let ends = self
            .until("the end of all failovers", || async {
                self.checker.overdue(healed);
                Ok(self.checker.open().is_empty())
            })
            .await;
        if ends.is_err() {
            return Err(stuck("ends", self.checker.open().join("; ")));
        }
        for group in &self.stem.groups {
            self.recover_group(group).await?;
            self.verify(group).await?;
        }
        Ok(())
    }

    async fn recover_group(&self, group: &Group) -> Result<(), Stuck> {
        let what = format!("group {} being well", group.name);
        for help in 0..=HELP {
            let Err(why) = self.until(&what, || self.well(group, None)).await else {
                return Ok(());
            };
            let target = self.resumable(group);
            let Some(target) = target.filter(|_| help < HELP) else {
                return Err(stuck(
                    "converges",
                    format!("{}; {}", why.text, self.report(group).await),
                ));
            };
            let name = format!("help-{}-{help}", group.name);
            self.trace
                .did(&format!("a person helps: {name} to {target}"));
            let manifest = self.user.failover_manifest(&name, &group.name, &target);
            self.insist("hub", &manifest).await?;
            self.until("the end of a helping failover", || async {
                Ok(self.checker.open().is_empty())
            })
            .await?;
        }
        Ok(())
    }

    /// Where the last failover of a group says that a new request would carry it on, or to where one
    /// of its members was moved although others were not.
    fn resumable(&self, group: &Group) -> Option<String> {
        let of_group = |f: &&Value| text(f, "/spec/protectionGroupRef/name") == group.name;
        let all = self.checker.objects("hub", "FailoverRequest");
        let mut ended: Vec<&Value> = all.iter().filter(of_group).collect();
        ended.sort_by_key(|f| text(f, "/status/completionTime").to_owned());
        let last = ended
            .last()
            .filter(|f| f["status"]["resumable"] == json!(true));
        let told = last.map(|f| text(f, "/spec/targetCluster").to_owned());
        told.or_else(|| {
            // A request that was deleted leaves no advice; the group's own status tells the sides.
            let requests = self.checker.objects("hub", "ProtectionRequest");
            let mut sources = requests
                .iter()
                .filter(|r| text(r, "/spec/vmNamespace") == group.name)
                .map(|r| text(r, "/spec/sourceCluster").to_owned());
            let first = sources.next()?;
            let moved = sources.find(|s| *s != first);
            Some(moved.unwrap_or(first))
        })
    }

    /// What a person would look at.
    async fn report(&self, group: &Group) -> String {
        let mut told = Vec::new();
        let kinds = [
            "ProtectionGroup",
            "ProtectionRequest",
            "FailoverRequest",
            "DRBDResource",
        ];
        for cluster in CLUSTERS {
            for kind in kinds {
                for object in self.checker.objects(cluster, kind) {
                    let status = &object["status"];
                    let brief = json!({
                        "desired": object["spec"]["desiredState"], "source": object["spec"]["sourceCluster"],
                        "role": object["spec"]["role"], "epoch": object["spec"]["roleEpoch"],
                        "state": status["state"], "phase": status["phase"], "current": status["currentState"],
                        "is": status["role"], "isEpoch": status["roleEpoch"], "connection": status["connectionState"],
                        "disk": status["diskState"], "message": status["message"],
                        "not": status["conditions"].as_array().into_iter().flatten()
                            .filter(|c| c["status"] != "True").map(|c| format!("{}={} {}: {}",
                                text(c, "/type"), text(c, "/status"), text(c, "/reason"), text(c, "/message")))
                            .collect::<Vec<_>>(),
                    });
                    let fields = brief.as_object().into_iter().flatten();
                    let said: Vec<String> = fields
                        .filter(|(_, v)| !v.is_null() && **v != json!([]))
                        .map(|(k, v)| format!("{k}={v}"))
                        .collect();
                    told.push(format!(
                        "\n    {cluster} {kind} {} {}",
                        key(&object),
                        said.join(" ")
                    ));
                }
            }
        }
        for vm in vms(group) {
            told.push(format!(
                "\n    {} runs on {:?}",
                vm.key(),
                self.lab.guests.places(&vm.key())
            ));
        }
        told.concat()
    }

    /// Nothing that was acknowledged is missing where the group runs.
    async fn verify(&self, group: &Group) -> Result<(), Stuck> {
        for vm in vms(group) {
            let places = self.lab.guests.places(&vm.key());
            let Some(place) = places.first() else {
                return Err(stuck("converges", format!("{} runs nowhere", vm.key())));
            };
            let verdicts = self.user.verify(place, &vm).await;
            for (disk, verdict) in verdicts.map_err(|e| stuck("verifies", format!("{e:#}")))? {
                if !verdict.is_whole() {
                    let text = format!("{} {disk} on {place}: {verdict:?}", vm.key());
                    return Err(stuck("no-loss", text));
                }
            }
        }
        Ok(())
    }

    /// A world that is well writes nothing.
    async fn quiet(&self) -> Result<(), Stuck> {
        tokio::time::sleep(SETTLE).await;
        let marks = Marks::now(self.lab);
        tokio::time::sleep(SETTLE).await;
        let writes = marks.writes(self.lab);
        if !writes.is_empty() {
            return Err(stuck(
                "quiet",
                format!("in {} quiet seconds: {writes:?}", SETTLE.as_secs()),
            ));
        }
        Ok(())
    }

    /// Each group can still be moved.
    async fn prove(&self) -> Result<(), Stuck> {
        for group in &self.stem.groups {
            let vms = vms(group);
            let places = vms.first().map(|vm| self.lab.guests.places(&vm.key()));
            let from = places.and_then(|p| p.first().cloned()).unwrap_or_default();
            let target = crate::schedule::other(&from);
            let name = format!("proof-{}", group.name);
            self.trace.did(&format!("proof: {name} to {target}"));
            let manifest = self.user.failover_manifest(&name, &group.name, target);
            self.insist("hub", &manifest).await?;
            self.until("the end of the proof", || async {
                Ok(self.checker.open().is_empty())
            })
            .await?;
            let place = format!("{}/{name}", self.user.namespace());
            let request = self.checker.object("hub", "FailoverRequest", &place);
            let request = request.unwrap_or_default();
            if text(&request, "/status/state") != "Completed" {
                let text = format!(
                    "with nothing broken, {name} ended {}: {}",
                    text(&request, "/status/state"),
                    text(&request, "/status/message")
                );
                return Err(stuck("proof", text));
            }
            self.until("the moved group being well", || {
                self.well(group, Some(target))
            })
            .await?;
            self.verify(group).await?;
        }
        Ok(())
    }
}

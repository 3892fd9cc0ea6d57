//! Processes of ours inside the lab: a container with one of our images is that process, run as a
//! task with the pod's arguments, environment and ServiceAccount token.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farshore_api::meta::images;
use farshore_runtime::{Clock, Process, ProcessError};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Container, Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::drbd::World;
use crate::fence::{Fence, Moment};
use crate::sim::{Sim, SimError};
use crate::wire::Wire;

/// Longest pause before a process that ended is started again.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// Every process of ours that runs.
#[derive(Clone)]
pub struct Processes(Arc<Inner>);

struct Inner {
    wire: Wire,
    world: World,
    clock: Clock,
    shutdown: CancellationToken,
    running: Mutex<BTreeMap<String, Running>>,
}

/// One container, through all its lives.
struct Running {
    process: String,
    cluster: String,
    node: String,
    restarts: Arc<Mutex<i32>>,
    life: Arc<Mutex<Option<Life>>>,
    end: CancellationToken,
    supervisor: JoinHandle<()>,
}

/// One life of a process.
struct Life {
    fence: Fence,
    task: tokio::task::AbortHandle,
}

impl Life {
    /// The process dies without a word, as on SIGKILL.
    fn kill(&self) {
        self.fence.kill();
        self.task.abort();
    }
}

impl Processes {
    /// None runs yet.
    pub fn new(wire: Wire, world: World, clock: Clock, shutdown: CancellationToken) -> Self {
        Self(Arc::new(Inner {
            wire,
            world,
            clock,
            shutdown,
            running: Mutex::default(),
        }))
    }

    /// Starts the process of a pod, if its image is one of ours and it does not run yet.
    pub async fn start(&self, sim: &Arc<Sim>, pod: &Pod, node: &str) -> Result<(), SimError> {
        let uid = pod.uid().unwrap_or_default();
        let Some((process, container)) = ours(pod) else {
            return Ok(());
        };
        if self
            .0
            .running
            .lock()
            .expect("no panic while held")
            .contains_key(&uid)
        {
            return Ok(());
        }
        let token = token_of(sim, pod).await?;
        let start = Start {
            process,
            identity: pod.name_any(),
            namespace: pod.namespace().unwrap_or_default(),
            cluster: sim.cluster.clone(),
            node: node.into(),
            env: environment(container, pod, node),
            args: container.args.clone().unwrap_or_default(),
            token,
        };
        let restarts = Arc::new(Mutex::new(0));
        let life = Arc::new(Mutex::new(None));
        let end = self.0.shutdown.child_token();
        let supervisor = tokio::spawn(supervise(
            self.0.clone(),
            start,
            restarts.clone(),
            life.clone(),
            end.clone(),
        ));
        let entry = Running {
            process: process.into(),
            cluster: sim.cluster.clone(),
            node: node.into(),
            restarts,
            life,
            end,
            supervisor,
        };
        self.0
            .running
            .lock()
            .expect("no panic while held")
            .insert(uid, entry);
        Ok(())
    }

    /// How often the container of a pod was started again.
    pub fn restarts(&self, pod_uid: &str) -> i32 {
        let running = self.0.running.lock().expect("no panic while held");
        running
            .get(pod_uid)
            .map_or(0, |r| *r.restarts.lock().expect("no panic while held"))
    }

    /// Ends the process of a pod that was deleted: a polite end, then none.
    pub fn stop(&self, pod_uid: &str) {
        if let Some(entry) = self
            .0
            .running
            .lock()
            .expect("no panic while held")
            .remove(pod_uid)
        {
            entry.end.cancel();
        }
    }

    /// The node lost power.
    pub fn kill_on(&self, cluster: &str, node: &str) {
        self.0
            .running
            .lock()
            .expect("no panic while held")
            .retain(|_, entry| {
                let dies = entry.cluster == cluster && entry.node == node;
                if dies {
                    entry.supervisor.abort();
                    if let Some(life) = entry.life.lock().expect("no panic while held").as_ref() {
                        life.kill();
                    }
                }
                !dies
            });
    }

    /// Kills every process of a name, without a word; each is started again. Returns where they ran.
    pub fn restart(&self, process: &str) -> Vec<String> {
        self.each(process, None, Life::kill)
    }

    /// As [`Self::restart`], on one cluster.
    pub fn restart_on(&self, process: &str, cluster: &str) -> Vec<String> {
        self.each(process, Some(cluster), Life::kill)
    }

    /// Every process of a name, on one cluster or on all, dies at its `n`-th write from now.
    pub fn kill_at_write(
        &self,
        process: &str,
        cluster: Option<&str>,
        n: u32,
        moment: Moment,
    ) -> Vec<String> {
        self.each(process, cluster, |life| life.fence.kill_at_write(n, moment))
    }

    fn each(&self, process: &str, cluster: Option<&str>, what: impl Fn(&Life)) -> Vec<String> {
        let running = self.0.running.lock().expect("no panic while held");
        running
            .values()
            .filter(|entry| entry.process == process && cluster.is_none_or(|c| c == entry.cluster))
            .map(|entry| {
                if let Some(life) = entry.life.lock().expect("no panic while held").as_ref() {
                    what(life);
                }
                format!("{}/{}", entry.cluster, entry.node)
            })
            .collect()
    }

    /// Names of the processes that run now.
    pub fn names(&self) -> Vec<String> {
        let running = self.0.running.lock().expect("no panic while held");
        let mut names: Vec<String> = running.values().map(|r| r.process.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Everything that each life of a process starts with.
struct Start {
    process: &'static str,
    identity: String,
    namespace: String,
    cluster: String,
    node: String,
    env: BTreeMap<String, String>,
    args: Vec<String>,
    token: String,
}

/// Starts a process again whenever it ends, as a kubelet does.
async fn supervise(
    lab: Arc<Inner>,
    start: Start,
    restarts: Arc<Mutex<i32>>,
    life: Arc<Mutex<Option<Life>>>,
    end: CancellationToken,
) {
    let mut pause = Duration::from_millis(200);
    loop {
        let fence = Fence::of(start.process, &start.cluster);
        let client = match lab.wire.client(&start.cluster, &start.token, &fence).await {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(process = start.process, %error, "the lab cannot make a client");
                return;
            }
        };
        let process = Process {
            name: start.process.into(),
            identity: start.identity.clone(),
            namespace: start.namespace.clone(),
            node: Some(start.node.clone()),
            env: start.env.clone(),
            args: start.args.clone(),
            client,
            connector: lab.wire.connector(&fence),
            clock: lab.clock.clone(),
            shutdown: end.child_token(),
        };
        let stop = process.shutdown.clone();
        let kernel = lab.world.kernel(&start.cluster, &start.node);
        let mut task = tokio::spawn(run(start.process, process, kernel));
        *life.lock().expect("no panic while held") = Some(Life {
            fence: fence.clone(),
            task: task.abort_handle(),
        });
        let ended = tokio::select! {
            biased;
            ended = &mut task => ended,
            () = fence.dead() => {
                task.abort();
                task.await
            }
        };
        // Whatever the process left behind must neither go on nor be heard.
        fence.kill();
        stop.cancel();
        if end.is_cancelled() {
            return;
        }
        match ended {
            Ok(Ok(())) => tracing::info!(
                process = start.process,
                cluster = start.cluster,
                "the process ended by itself; starting it again"
            ),
            Ok(Err(error)) => {
                tracing::warn!(process = start.process, cluster = start.cluster, %error, "the process ended; starting it again");
                pause = (pause * 2).min(LONGEST_BACKOFF);
            }
            Err(killed) if killed.is_cancelled() => tracing::info!(
                process = start.process,
                cluster = start.cluster,
                "the process was killed; starting it again"
            ),
            Err(panic) => {
                tracing::error!(process = start.process, cluster = start.cluster, %panic, "the process panicked; starting it again")
            }
        }
        *restarts.lock().expect("no panic while held") += 1;
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The programs behind our images.
async fn run(
    name: &'static str,
    process: Process,
    kernel: farshore_agent::kernel::SharedKernel,
) -> Result<(), ProcessError> {
    match name {
        images::PROTECTIONZONE => farshore_zone::run(process).await,
        images::TSR_MANAGER => farshore_manager::run(process).await,
        images::WORKLOAD_MANAGER => farshore_workload::run(process).await,
        images::DRBD_NODE_AGENT => farshore_agent::run(process, kernel).await,
        other => Err(ProcessError::new(format!(
            "the lab has no program for the image {other}"
        ))),
    }
}

/// Our image that a pod runs, and its container.
fn ours(pod: &Pod) -> Option<(&'static str, &Container)> {
    const OURS: [&str; 4] = [
        images::PROTECTIONZONE,
        images::TSR_MANAGER,
        images::WORKLOAD_MANAGER,
        images::DRBD_NODE_AGENT,
    ];
    pod.spec.as_ref()?.containers.iter().find_map(|container| {
        let image = container.image.as_deref()?;
        let name = image.split([':', '@']).next().unwrap_or(image);
        OURS.iter()
            .find(|ours| **ours == name)
            .map(|ours| (*ours, container))
    })
}

/// A token of the pod's ServiceAccount, as the kubelet mounts it.
async fn token_of(sim: &Sim, pod: &Pod) -> Result<String, SimError> {
    let namespace = pod.namespace().unwrap_or_default();
    let account = pod
        .spec
        .as_ref()
        .and_then(|s| s.service_account_name.clone())
        .unwrap_or_else(|| "default".into());
    let accounts: Api<ServiceAccount> = Api::namespaced(sim.client.clone(), &namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(365 * 24 * 3600),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(&account, &PostParams::default(), &request)
        .await?;
    answer.status.map(|s| s.token).ok_or_else(|| {
        SimError::Other(format!("no token for ServiceAccount {namespace}/{account}"))
    })
}

fn environment(container: &Container, pod: &Pod, node: &str) -> BTreeMap<String, String> {
    container
        .env
        .iter()
        .flatten()
        .map(|variable| {
            let field = variable
                .value_from
                .as_ref()
                .and_then(|v| v.field_ref.as_ref())
                .map(|f| f.field_path.as_str());
            let value = match field {
                Some("metadata.name") => pod.name_any(),
                Some("metadata.namespace") => pod.namespace().unwrap_or_default(),
                Some("metadata.uid") => pod.uid().unwrap_or_default(),
                Some("spec.nodeName") => node.to_string(),
                Some("spec.serviceAccountName") => pod
                    .spec
                    .as_ref()
                    .and_then(|s| s.service_account_name.clone())
                    .unwrap_or_default(),
                _ => variable.value.clone().unwrap_or_default(),
            };
            (variable.name.clone(), value)
        })
        .collect()
}

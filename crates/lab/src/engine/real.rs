//! A real API server as a lab uses it: a control plane, and a road to it that can be closed.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use farshore_apiserver::LogEntry;
use farshore_runtime::Clock;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::plane::{self, Assets, Plane};
use super::{audit, reserve};

/// One running control plane with its road. Dropping it ends both.
pub struct RealServer {
    gate: Gate,
    /// Where clients connect: the gate.
    port: u16,
    authority: String,
    admin: String,
    simulators: String,
    log: PathBuf,
    /// Where the audit log stood when this began.
    begun: u64,
    plane: Mutex<Option<Plane>>,
}

impl RealServer {
    /// Starts the control planes of these clusters side by side and returns when all are ready. With
    /// a folder they keep their files there; without one they may have served an earlier lab of this
    /// process, and are as new but for the definitions that it left.
    pub async fn start_all(
        clusters: &[&str],
        dir: Option<&Path>,
        clock: &Clock,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Vec<Self>> {
        let assets = Assets::find()?;
        let starts = clusters.iter().map(|name| {
            let assets = &assets;
            async move {
                let plane = match dir {
                    Some(dir) => {
                        let dir = dir.join("kube").join(name);
                        // A lab that was killed could not clean up.
                        let _ = std::fs::remove_dir_all(&dir);
                        Plane::start(assets, dir, clock).await?
                    }
                    None => match reserve::take() {
                        Some(plane) => plane,
                        None => {
                            let mut plane =
                                Plane::start(assets, plane::temporary()?, clock).await?;
                            plane.remember().await?;
                            plane
                        }
                    },
                };
                Self::on(plane, shutdown).await
            }
        });
        let context = |result: anyhow::Result<Self>, name: &&str| {
            result.with_context(|| format!("starting the control plane of {name}"))
        };
        let all = futures::future::join_all(starts).await;
        all.into_iter()
            .zip(clusters)
            .map(|(result, name)| context(result, name))
            .collect()
    }

    /// Opens the road to a control plane.
    async fn on(plane: Plane, shutdown: &CancellationToken) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("opening a loopback port")?;
        let gate = Gate::default();
        let port = listener.local_addr()?.port();
        tokio::spawn(gate.clone().relay(listener, plane.port, shutdown.clone()));
        let log = plane.audit_log();
        Ok(Self {
            gate,
            port,
            authority: plane.authority.clone(),
            admin: plane.admin.clone(),
            simulators: plane.simulators.clone(),
            begun: length(&log),
            log,
            plane: Mutex::new(Some(plane)),
        })
    }

    /// The switch on the road of all clients.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// URL for clients.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// PEM of the authority that signed the server's certificate.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Token of the administrator.
    pub fn admin_token(&self) -> &str {
        &self.admin
    }

    /// Token of the simulators, an administrator of another name.
    pub fn simulators_token(&self) -> &str {
        &self.simulators
    }

    /// The position that the audit log has reached.
    pub fn audit_mark(&self) -> u64 {
        length(&self.log)
    }

    /// What the audit log holds since a position.
    pub fn audit_since(&self, mark: u64) -> Vec<LogEntry> {
        let log = std::fs::read(&self.log).unwrap_or_default();
        audit::read(&String::from_utf8_lossy(&log), mark.max(self.begun))
    }

    /// Ids of its processes.
    pub fn processes(&self) -> Vec<u32> {
        self.plane()
            .as_ref()
            .map(Plane::processes)
            .unwrap_or_default()
    }

    /// Takes the server away from its clients for good. A control plane that can be made new is kept
    /// for the next lab, unless a test failed on it; others end.
    pub fn stop(&self) {
        self.gate.set_down(true);
        let plane = self.plane().take();
        if let Some(plane) = plane.filter(|p| p.is_remembered() && !std::thread::panicking()) {
            reserve::put(plane);
        }
    }

    fn plane(&self) -> MutexGuard<'_, Option<Plane>> {
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn length(log: &Path) -> u64 {
    std::fs::metadata(log).map_or(0, |m| m.len())
}

impl Drop for RealServer {
    fn drop(&mut self) {
        self.stop();
    }
}

//! A real control plane: etcd, kube-apiserver and the few controllers of kube-controller-manager that
//! belong to an API server, as child processes with a folder of their own.
//!
//! The children die with the lab whatever happens: they are killed when it ends or is dropped, and
//! `setpriv --pdeathsig` has the kernel kill them when the lab itself is killed.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use farshore_apiserver::Tls;
use farshore_runtime::Clock;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::snapshot::Snapshot;
use super::{audit, keeper};

/// Names the folder with the programs, by the ecosystem's convention.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
/// Begin of the names of temporary folders; the id of the process and a number follow.
const TEMPORARY: &str = "farshore-kube-";
/// The programs.
const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kube-controller-manager"];
/// Socket of the store, in the folder of its control plane.
const STORE: &str = "client:0";
/// Longest start of a control plane; two busy cores need some 20 s for three.
const START: Duration = Duration::from_secs(120);
/// What the lab plays itself: node conditions as taints, and the controllers that take the
/// protection finalizers off claims and volumes that nobody uses.
const WITHOUT_ADMISSION: &str = "TaintNodesByCondition,StorageObjectInUseProtection";
/// Controllers that belong to the API server; the lab plays all others.
const CONTROLLERS: &str =
    "namespace,garbagecollector,serviceaccount,serviceaccount-token,clusterrole-aggregation";

/// The folder with the programs, complete.
pub struct Assets(PathBuf);

impl Assets {
    /// Looks where KUBEBUILDER_ASSETS points to.
    pub fn find() -> anyhow::Result<Self> {
        Self::at(std::env::var_os(ASSETS).map(PathBuf::from))
    }

    fn at(folder: Option<PathBuf>) -> anyhow::Result<Self> {
        const HINT: &str =
            "on Debian, `export KUBEBUILDER_ASSETS=$(hack/kube-assets)` provides them";
        let folder = folder
            .filter(|f| !f.as_os_str().is_empty())
            .with_context(|| {
                format!(
                    "the engine kube needs {ASSETS} to name a folder with {}; {HINT}",
                    PROGRAMS.join(", ")
                )
            })?;
        let missing: Vec<&str> = PROGRAMS
            .into_iter()
            .filter(|program| !folder.join(program).is_file())
            .collect();
        if !missing.is_empty() {
            bail!(
                "{ASSETS} names {}, where {} is missing; {HINT}",
                folder.display(),
                missing.join(", ")
            );
        }
        // The children run in folders of their own.
        let folder = folder
            .canonicalize()
            .with_context(|| format!("looking into {}", folder.display()))?;
        Ok(Self(folder))
    }
}

/// A new folder among the temporary ones.
pub fn temporary() -> anyhow::Result<PathBuf> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    if NEXT.load(Ordering::Relaxed) == 0 {
        forget_the_dead();
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Ok(std::env::temp_dir().join(format!("{TEMPORARY}{}-{number}", std::process::id())))
}

/// Removes what processes left that were killed, or whose control planes were in reserve.
fn forget_the_dead() {
    let all = std::fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten();
    for entry in all.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(TEMPORARY)?.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes a folder that only its owner may enter: it holds keys, tokens and every Secret.
fn private(path: &Path) -> anyhow::Result<PathBuf> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("creating {}", path.display()))?;
    path.canonicalize()
        .with_context(|| format!("looking into {}", path.display()))
}

/// One running control plane. Dropping it kills its processes and removes their files.
pub struct Plane {
    dir: PathBuf,
    /// Where the API server listens.
    pub port: u16,
    /// PEM of the authority that signed the server's certificate.
    pub authority: String,
    /// Token of the administrator.
    pub admin: String,
    /// Token of the simulators, an administrator of another name.
    pub simulators: String,
    children: Mutex<Vec<Child>>,
    /// What its store held when it was new.
    new: Option<Snapshot>,
}

impl Plane {
    /// Starts one in a folder of its own and returns when it is ready.
    pub async fn start(assets: &Assets, dir: PathBuf, clock: &Clock) -> anyhow::Result<Self> {
        let own = free_port().await?;
        let mut server = Self {
            port: own,
            authority: String::new(),
            admin: token(clock)?,
            simulators: token(clock)?,
            children: Mutex::default(),
            dir: private(&dir)?,
            new: None,
        };
        server.authority = write_keys(&server.dir)?;
        let controllers = token(clock)?;
        server.write("audit-policy.yaml", audit::POLICY)?;
        server.write(
            "tokens.csv",
            &format!(
                "{},kubernetes-admin,admin,system:masters\n{},system:lab,lab,system:masters\n{controllers},system:kube-controller-manager,kcm,system:masters\n",
                server.admin, server.simulators
            ),
        )?;
        server.write("controllers.kubeconfig", &json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "own",
            "clusters": [{ "name": "own", "cluster": { "server": format!("https://127.0.0.1:{own}"), "certificate-authority": "authority.pem" } }],
            "users": [{ "name": "own", "user": { "token": controllers } }],
            "contexts": [{ "name": "own", "context": { "cluster": "own", "user": "own" } }],
        }).to_string())?;

        server.spawn(
            assets,
            "etcd",
            &[
                "--name=lab",
                "--data-dir=data",
                "--unsafe-no-fsync",
                "--logger=zap",
                "--log-level=warn",
                // Sockets in the server's own folder: nobody else on the machine can read the store.
                &format!("--listen-client-urls=unix://{STORE}"),
                &format!("--advertise-client-urls=unix://{STORE}"),
                "--listen-peer-urls=unix://peer:0",
                "--initial-advertise-peer-urls=unix://peer:0",
                "--initial-cluster=lab=unix://peer:0",
            ],
        )?;
        server
            .reached("etcd", |dir| dir.join(STORE).exists())
            .await?;
        server.spawn(
            assets,
            "kube-apiserver",
            &[
                &format!("--etcd-servers=unix://{STORE}"),
                "--bind-address=127.0.0.1",
                &format!("--secure-port={own}"),
                "--tls-cert-file=serving.pem",
                "--tls-private-key-file=serving.key",
                "--cert-dir=.",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--endpoint-reconciler-type=none",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-account-key-file=accounts.pub",
                "--service-account-signing-key-file=accounts.key",
                "--token-auth-file=tokens.csv",
                "--authorization-mode=RBAC",
                "--allow-privileged",
                &format!("--disable-admission-plugins={WITHOUT_ADMISSION}"),
                "--audit-policy-file=audit-policy.yaml",
                "--audit-log-path=audit.log",
                "--audit-log-maxsize=1000",
                "--audit-log-maxbackup=1",
                "--profiling=false",
                // Nobody here speaks beta: half the kinds, a third of the work.
                "--runtime-config=api/beta=false",
                "--feature-gates=APIPriorityAndFairness=false",
            ],
        )?;
        server.ready(own).await?;
        server.spawn(
            assets,
            "kube-controller-manager",
            &[
                "--kubeconfig=controllers.kubeconfig",
                &format!("--controllers={CONTROLLERS}"),
                "--leader-elect=false",
                "--secure-port=0",
                "--port=0",
                "--service-account-private-key-file=accounts.key",
                "--root-ca-file=authority.pem",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ],
        )?;
        Ok(server)
    }

    /// From now on the control plane can be brought back to what it is now.
    pub async fn remember(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        while self.new.is_none() {
            self.alive("kube-controller-manager", deadline)?;
            self.new = Snapshot::of(&self.store())?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Whether it can be brought back to what it was when it was new.
    pub fn is_remembered(&self) -> bool {
        self.new.is_some()
    }

    /// Brings it back to what it was when it was new.
    pub fn renew(&self) -> anyhow::Result<()> {
        let new = self.new.as_ref().context("it was not remembered")?;
        if let Some(status) = self
            .children()
            .iter_mut()
            .find_map(|child| child.try_wait().ok().flatten())
        {
            bail!("a process of it ended ({status})");
        }
        new.restore(&self.store())
    }

    /// The socket of its etcd.
    fn store(&self) -> PathBuf {
        self.dir.join(STORE)
    }

    /// Its audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// Ids of its processes.
    pub fn processes(&self) -> Vec<u32> {
        self.children().iter().map(Child::id).collect()
    }

    /// Kills the processes, waits for their end so that none writes any more, and removes their files.
    fn end(&self) {
        let mut children = self.children();
        for child in children.iter_mut() {
            let _ = child.kill();
        }
        for child in children.iter_mut() {
            // A killed process ends within milliseconds; one that does not is not waited for for ever.
            for _ in 0..1_000_000 {
                if !matches!(child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::yield_now();
            }
        }
        children.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
        // The last one of a lab finds it empty.
        let _ = self
            .dir
            .parent()
            .filter(|parent| parent.ends_with("kube"))
            .map(std::fs::remove_dir);
    }

    fn children(&self) -> MutexGuard<'_, Vec<Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, file: &str, text: &str) -> anyhow::Result<()> {
        write(&self.dir.join(file), text)
    }

    fn spawn(&self, assets: &Assets, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let log = std::fs::File::create(self.log_of(program)).context("creating a log file")?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(assets.0.join(program))
            .args(arguments)
            .current_dir(&self.dir)
            // Twice the heap, and half the time spent on collecting it.
            .env("GOGC", "200")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("opening a log file")?)
            .stderr(log);
        let child = keeper::spawn(command)
            .with_context(|| format!("running {program} with setpriv of util-linux"))?;
        self.children().push(child);
        Ok(())
    }

    fn log_of(&self, program: &str) -> PathBuf {
        self.dir.join(format!("{program}.log"))
    }

    /// Waits until `seen` in the server's folder; the newest process must live on meanwhile.
    async fn reached(&self, program: &str, seen: impl Fn(&Path) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        while !seen(&self.dir) {
            self.alive(program, deadline)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Waits until the API server says that it is ready.
    async fn ready(&self, port: u16) -> anyhow::Result<()> {
        let program = "kube-apiserver";
        let deadline = Instant::now() + START;
        let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse()?);
        config.root_cert = Some(vec![self.authority_der()?]);
        config.auth_info.token = Some(self.admin.clone().into());
        let client = kube::Client::try_from(config)?;
        loop {
            self.alive(program, deadline)?;
            // Asking a port where nobody listens is cheap; a client would say so in its log.
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                let request = http::Request::get("/readyz").body(Vec::new())?;
                if client.request_text(request).await.is_ok() {
                    return Ok(());
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn authority_der(&self) -> anyhow::Result<Vec<u8>> {
        let body: String = self
            .authority
            .lines()
            .filter(|l| !l.starts_with("-----"))
            .collect();
        BASE64_STANDARD
            .decode(body)
            .context("reading the authority")
    }

    /// Fails if the newest process ended or the deadline passed, with the end of its log.
    fn alive(&self, program: &str, deadline: Instant) -> anyhow::Result<()> {
        let ended = self
            .children()
            .last_mut()
            .and_then(|child| child.try_wait().ok().flatten());
        let why = match ended {
            Some(status) => format!("{program} ended ({status})"),
            None if Instant::now() >= deadline => {
                format!("{program} was not ready within {} s", START.as_secs())
            }
            None => return Ok(()),
        };
        let log = std::fs::read_to_string(self.log_of(program)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(5)..].join("\n");
        bail!("{why}; its last words:\n{last}")
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes the serving certificate and the keys of ServiceAccount tokens; returns the authority.
fn write_keys(dir: &Path) -> anyhow::Result<String> {
    let (tls, authority) = Tls::self_signed(&["127.0.0.1", "localhost", "kubernetes.default.svc"])?;
    let chain: String = tls
        .cert
        .iter()
        .map(|cert| pem("CERTIFICATE", cert))
        .collect();
    write(&dir.join("serving.pem"), &chain)?;
    write(
        &dir.join("serving.key"),
        &pem("PRIVATE KEY", tls.key.secret_der()),
    )?;
    write(&dir.join("authority.pem"), &authority)?;
    let accounts = rcgen::KeyPair::generate().context("making the key of ServiceAccount tokens")?;
    write(&dir.join("accounts.key"), &accounts.serialize_pem())?;
    write(&dir.join("accounts.pub"), &accounts.public_key_pem())?;
    Ok(authority)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}

fn token(clock: &Clock) -> anyhow::Result<String> {
    farshore_runtime::secret::generate(clock, "lab")
        .context("reading the system's source of randomness")
}

/// A port that nobody has, below those that the kernel hands out by itself: kube-apiserver must be told one.
async fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    // Labs of other processes begin elsewhere.
    let begin = (std::process::id() % 120) as u16 * 100;
    for _ in 0..COUNT {
        let port = FIRST + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).await.is_ok() {
            return Ok(port);
        }
    }
    bail!("no port between {FIRST} and {} is free", FIRST + COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_are_named_with_the_way_to_get_them() {
        let unset = Assets::at(None)
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default();
        assert!(
            unset.contains(ASSETS) && unset.contains("hack/kube-assets"),
            "{unset}"
        );
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("etcd"), "").unwrap();
        let partial = Assets::at(Some(place.path().into()))
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default();
        assert!(
            partial.contains("kube-apiserver, kube-controller-manager is missing"),
            "{partial}"
        );
    }
}

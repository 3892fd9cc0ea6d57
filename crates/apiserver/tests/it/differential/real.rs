//! etcd, kube-apiserver and the controllers that belong to an API server, as child processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farshore_apiserver::Tls;
use kube::client::Body;
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::run::Target;

pub const PROGRAMS: [&str; 3] = ["etcd", "kube-apiserver", "kube-controller-manager"];
const START: Duration = Duration::from_secs(180);
/// The bearer token of the administrator.
pub const ADMIN: &str = "differential-admin";
const CONTROLLERS: &str = "differential-controllers";

/// The folder that KUBEBUILDER_ASSETS names, if all programs are there.
pub fn assets() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("KUBEBUILDER_ASSETS")?);
    let complete = PROGRAMS.iter().all(|p| folder.join(p).is_file());
    complete.then(|| folder.canonicalize().unwrap())
}

/// Killed, and its files removed, when dropped.
pub struct RealServer {
    children: Vec<(&'static str, Child)>,
    target: Target,
    port: u16,
    dir: TempDir,
}

impl Drop for RealServer {
    fn drop(&mut self) {
        for (_, child) in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl RealServer {
    pub fn target(&self) -> &Target {
        &self.target
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The certificate that clients trust, in PEM.
    pub fn authority(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("authority.pem")).unwrap()
    }

    pub async fn start(assets: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            listener.local_addr().unwrap().port()
        };
        let authority = write_keys(dir.path());
        write(
            &dir.path().join("tokens.csv"),
            &format!(
                "{ADMIN},kubernetes-admin,admin,system:masters\n{CONTROLLERS},system:kube-controller-manager,kcm,system:masters\n"
            ),
        );
        write(&dir.path().join("controllers.kubeconfig"), &json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "own",
            "clusters": [{ "name": "own", "cluster": { "server": format!("https://127.0.0.1:{port}"), "certificate-authority": "authority.pem" } }],
            "users": [{ "name": "own", "user": { "token": CONTROLLERS } }],
            "contexts": [{ "name": "own", "context": { "cluster": "own", "user": "own" } }],
        }).to_string());
        let mut config = Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
        let root = CertificateDer::from_pem_slice(authority.as_bytes()).unwrap();
        config.root_cert = Some(vec![root.to_vec()]);
        let client = Client::try_from(config).unwrap();
        let mut server = Self {
            children: Vec::new(),
            target: Target::new(client.clone(), ADMIN),
            port,
            dir,
        };

        server.spawn(
            assets,
            "etcd",
            &[
                "--name=lab",
                "--data-dir=data",
                "--unsafe-no-fsync",
                "--logger=zap",
                "--log-level=warn",
                "--listen-client-urls=unix://client:0",
                "--advertise-client-urls=unix://client:0",
                "--listen-peer-urls=unix://peer:0",
                "--initial-advertise-peer-urls=unix://peer:0",
                "--initial-cluster=lab=unix://peer:0",
            ],
        );
        let socket = server.dir.path().join("client:0");
        let deadline = Instant::now() + START;
        while !socket.exists() {
            server.alive(deadline);
            sleep(Duration::from_millis(20)).await;
        }
        server.spawn(
            assets,
            "kube-apiserver",
            &[
                "--etcd-servers=unix://client:0",
                "--bind-address=127.0.0.1",
                &format!("--secure-port={port}"),
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
                // Tokens of pods as on later versions: projected, not in a Secret per ServiceAccount.
                "--feature-gates=BoundServiceAccountTokenVolume=true",
                // What the tests' server does not do: those are controllers or schedulers there.
                "--disable-admission-plugins=TaintNodesByCondition,StorageObjectInUseProtection",
                "--profiling=false",
            ],
        );
        loop {
            server.alive(deadline);
            let request = http::Request::get("/readyz")
                .header("authorization", format!("Bearer {ADMIN}"))
                .body(Body::empty())
                .unwrap();
            if let Ok(response) = client.send(request).await
                && response.status() == 200
            {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        server.spawn(
            assets,
            "kube-controller-manager",
            &[
                "--kubeconfig=controllers.kubeconfig",
                "--controllers=namespace,garbagecollector,serviceaccount,clusterrole-aggregation",
                "--leader-elect=false",
                "--secure-port=0",
                "--port=0",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ],
        );
        server
    }

    fn spawn(&mut self, assets: &Path, program: &'static str, arguments: &[&str]) {
        let log = std::fs::File::create(self.log(program)).unwrap();
        // The kernel kills the children when the test is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(assets.join(program))
            .args(arguments)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.children.push((program, child));
    }

    fn log(&self, program: &str) -> PathBuf {
        self.dir.path().join(format!("{program}.log"))
    }

    /// Stops the test when the newest process ended or took too long.
    fn alive(&mut self, deadline: Instant) {
        let (program, child) = self.children.last_mut().unwrap();
        let (program, ended) = (*program, child.try_wait().unwrap());
        if ended.is_some() || Instant::now() > deadline {
            let log = std::fs::read_to_string(self.log(program)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(8)..].join("\n");
            panic!("{program} did not get ready ({ended:?}); its last words:\n{end}");
        }
    }
}

/// Writes the serving certificate and the keys of ServiceAccount tokens; returns the authority.
fn write_keys(dir: &Path) -> String {
    let (tls, authority) =
        Tls::self_signed(&["127.0.0.1", "localhost", "kubernetes.default.svc"]).unwrap();
    let chain: String = tls.cert.iter().map(|c| pem("CERTIFICATE", c)).collect();
    write(&dir.join("serving.pem"), &chain);
    write(
        &dir.join("serving.key"),
        &pem("PRIVATE KEY", tls.key.secret_der()),
    );
    write(&dir.join("authority.pem"), &authority);
    let accounts = rcgen::KeyPair::generate().unwrap();
    write(&dir.join("accounts.key"), &accounts.serialize_pem());
    write(&dir.join("accounts.pub"), &accounts.public_key_pem());
    authority
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

fn pem(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::prelude::BASE64_STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}

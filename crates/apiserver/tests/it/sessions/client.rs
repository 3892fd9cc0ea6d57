//! Which kubectl, and how it reaches a server.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

/// The version whose words the transcripts have.
const MINOR: &str = "32";

pub struct Server {
    pub url: String,
    /// PEM.
    pub authority: String,
    pub token: String,
}

pub struct Client {
    pub program: PathBuf,
    /// Whether its words are those of the transcripts; of another version only the exit codes are.
    pub exact: bool,
}

impl Client {
    /// `None`, and a printed line, where there is none.
    pub async fn find() -> Option<Self> {
        let named = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into());
        let Some(program) = on_path(&named) else {
            println!("skipped: there is no {named}");
            return None;
        };
        // Unless one is named: some installations have a `kubectl` that chooses by the server's version among those beside it; the client
        // must be the same for both servers.
        let beside = program.with_file_name(format!("kubectl.1.{MINOR}"));
        let chosen = std::env::var_os("KUBECTL").is_none() && beside.is_file();
        let program = if chosen { beside } else { program };
        let output = Command::new(&program)
            .args(["version", "--client", "-o", "json"])
            .output()
            .await
            .unwrap();
        let version: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let exact = version["clientVersion"]["minor"] == MINOR;
        if !exact {
            println!(
                "only exit codes are compared: the transcripts are those of kubectl 1.{MINOR}, and {} is {}",
                program.display(),
                version["clientVersion"]["gitVersion"]
            );
        }
        Some(Self { program, exact })
    }
}

fn on_path(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).canonicalize().ok();
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find_map(|folder| {
        folder
            .join(name)
            .canonicalize()
            .ok()
            .filter(|f| f.is_file())
    })
}

impl Server {
    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self, namespace: &str) -> String {
        use base64::Engine as _;
        let authority = base64::prelude::BASE64_STANDARD.encode(&self.authority);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": "admin", "user": {"token": self.token}}, {"name": "nobody", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin", "namespace": namespace}}],
        })
        .to_string()
    }
}

//! How `farshore fault` reaches a running lab: one line each way over a Unix socket in the lab's
//! folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::lab::{CLUSTERS, Lab};

/// What `farshore fault` can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A site (API server and nodes) is lost or returns.
    Site { cluster: String, up: bool },
    /// The replication link between the sites is cut or healed.
    Link { up: bool },
    /// A node loses power or gets it back.
    Node {
        cluster: String,
        node: String,
        up: bool,
    },
    /// Every process of a name is killed; it starts again by itself.
    Restart { process: String },
    /// Answers of a cluster's API server are late by so many milliseconds.
    Slow { cluster: String, millis: u64 },
}

/// What is accepted, for error messages.
const GRAMMAR: &str = "`<cluster> down|up`, `link cut|heal`, `node <cluster>/<node> down|up`, `restart <process>` or `slow <cluster> <ms>`";

impl std::str::FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let cluster = |name: &str| -> anyhow::Result<String> {
            if !CLUSTERS.contains(&name) {
                bail!(
                    "there is no cluster {name:?}; the lab has {}",
                    CLUSTERS.join(", ")
                );
            }
            Ok(name.to_string())
        };
        let power = |word: &str| match word {
            "up" => Ok(true),
            "down" => Ok(false),
            other => bail!("{other:?} is neither up nor down"),
        };
        match words.as_slice() {
            ["link", "cut"] => Ok(Self::Link { up: false }),
            ["link", "heal"] => Ok(Self::Link { up: true }),
            ["link", other] => bail!("the link can be cut or heal, not {other:?}"),
            ["node", place, state] => {
                let (name, node) = place
                    .split_once('/')
                    .context("a node is named <cluster>/<node>, for example east/east-1")?;
                Ok(Self::Node {
                    cluster: cluster(name)?,
                    node: node.into(),
                    up: power(state)?,
                })
            }
            ["restart", process] => Ok(Self::Restart {
                process: (*process).into(),
            }),
            ["slow", name, millis] => {
                let millis = millis
                    .parse()
                    .with_context(|| format!("{millis:?} is not a number of milliseconds"))?;
                Ok(Self::Slow {
                    cluster: cluster(name)?,
                    millis,
                })
            }
            [name, state] => Ok(Self::Site {
                cluster: cluster(name)?,
                up: power(state)?,
            }),
            _ => bail!("{text:?} is no fault; say {GRAMMAR}"),
        }
    }
}

impl Lab {
    /// Injects a fault; the answer says what was done.
    pub async fn inject(&self, fault: &Fault) -> anyhow::Result<String> {
        match fault {
            Fault::Site { cluster, up } => {
                self.set_site(cluster, *up).await?;
                Ok(format!(
                    "site {cluster} is {}",
                    if *up { "back" } else { "lost" }
                ))
            }
            Fault::Link { up } => {
                self.world.link(*up);
                Ok(format!(
                    "the replication link is {}",
                    if *up { "healed" } else { "cut" }
                ))
            }
            Fault::Node { cluster, node, up } => {
                self.set_node(cluster, node, *up).await?;
                Ok(format!(
                    "node {cluster}/{node} is {}",
                    if *up { "up" } else { "down" }
                ))
            }
            Fault::Restart { process } => {
                let image = if process.contains('/') {
                    process.clone()
                } else {
                    format!("farshore/{process}")
                };
                let places = self.processes.restart(&image);
                if places.is_empty() {
                    bail!(
                        "no process {process:?} runs; running are {}",
                        self.processes.names().join(", ")
                    );
                }
                Ok(format!(
                    "killed {process} on {}; it starts again by itself",
                    places.join(", ")
                ))
            }
            Fault::Slow { cluster, millis } => {
                self.cluster(cluster)
                    .server
                    .set_latency(Duration::from_millis(*millis));
                Ok(match millis {
                    0 => format!("the API server of {cluster} answers without delay"),
                    _ => format!("the API server of {cluster} answers {millis} ms late"),
                })
            }
        }
    }
}

/// The socket in a lab's folder.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// Whether a lab answers in a folder.
pub async fn answers(dir: &Path) -> bool {
    UnixStream::connect(socket(dir)).await.is_ok()
}

/// Serves faults until the lab ends.
pub async fn serve(
    lab: Arc<Lab>,
    path: PathBuf,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).with_context(|| format!("opening {}", path.display()))?;
    loop {
        let stream = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted?.0,
        };
        let lab = lab.clone();
        tokio::spawn(async move {
            if let Err(error) = answer(&lab, stream).await {
                tracing::warn!(%error, "a fault could not be answered");
            }
        });
    }
    let _ = std::fs::remove_file(&path);
    Ok(())
}

async fn answer(lab: &Lab, stream: UnixStream) -> anyhow::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    BufReader::new(read).read_line(&mut line).await?;
    let done = match line.trim().parse::<Fault>() {
        Ok(fault) => lab.inject(&fault).await,
        Err(error) => Err(error),
    };
    let text = match done {
        Ok(text) => format!("ok {text}\n"),
        Err(error) => format!("error {error:#}\n"),
    };
    Ok(write.write_all(text.as_bytes()).await?)
}

/// Sends one fault to a running lab and returns its answer.
pub async fn send(dir: &Path, fault: &str) -> anyhow::Result<String> {
    fault.parse::<Fault>()?;
    let path = socket(dir);
    let mut stream = UnixStream::connect(&path).await.with_context(|| {
        format!(
            "no lab answers at {}; start one with `farshore up`, or name its folder with --dir",
            path.display()
        )
    })?;
    stream.write_all(format!("{fault}\n").as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await?;
    match line.trim().split_once(' ') {
        Some(("ok", text)) => Ok(text.to_string()),
        Some(("error", text)) => bail!("{text}"),
        _ => bail!("the lab closed the connection without an answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_documented() {
        let cases = [
            (
                "east down",
                Fault::Site {
                    cluster: "east".into(),
                    up: false,
                },
            ),
            ("link cut", Fault::Link { up: false }),
            (
                "node west/west-1 up",
                Fault::Node {
                    cluster: "west".into(),
                    node: "west-1".into(),
                    up: true,
                },
            ),
            (
                "restart tsr-manager",
                Fault::Restart {
                    process: "tsr-manager".into(),
                },
            ),
            (
                "slow hub 200",
                Fault::Slow {
                    cluster: "hub".into(),
                    millis: 200,
                },
            ),
        ];
        for (text, expect) in cases {
            assert_eq!(text.parse::<Fault>().unwrap(), expect);
        }
    }

    #[test]
    fn what_is_no_fault_is_refused_with_what_is_one() {
        for (text, hint) in [
            ("north down", "hub, east, west"),
            ("east sideways", "neither up nor down"),
            ("link bla", "cut or heal"),
            ("", "slow <cluster>"),
        ] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}

//! What a move of a group to another cluster cost and whether it kept its promises.

use std::collections::BTreeMap;
use std::time::Duration;

use farshore_api::meta::managers;

use crate::lab::{CLUSTERS, Lab};
use crate::story::{User, Vm};

/// Result of one move for one VM.
#[derive(Clone, Debug)]
pub struct VmMove {
    /// `namespace/name`.
    pub vm: String,
    /// From the last acknowledged write on the source to the first on the target.
    pub downtime: Duration,
    /// Blocks acknowledged to the guest.
    pub acknowledged: u64,
    /// Of these, blocks that the target holds.
    pub present: u64,
    /// Numbers of blocks that are missing, the first few.
    pub missing: Vec<u64>,
}

impl VmMove {
    /// Whether the target holds everything that was acknowledged.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.present > 0
    }

    /// Data that was lost, in words: the promise is zero.
    pub fn rpo(&self) -> String {
        if self.is_whole() {
            "0 s".into()
        } else {
            format!(
                "{} blocks lost",
                self.acknowledged.saturating_sub(self.present)
            )
        }
    }
}

/// Result of one move.
#[derive(Clone, Debug)]
pub struct Move {
    /// Where to.
    pub target: String,
    /// Each VM.
    pub vms: Vec<VmMove>,
    /// Seconds of the request, from lock to end.
    pub seconds: i64,
    /// API writes by processes of ours, leases aside, on all clusters.
    pub writes: usize,
    /// The same, by who wrote what.
    pub by_writer: BTreeMap<String, usize>,
}

/// A position in every cluster's request log.
pub struct Marks(BTreeMap<&'static str, u64>);

impl Marks {
    /// Now.
    pub fn now(lab: &Lab) -> Self {
        Self(
            CLUSTERS
                .into_iter()
                .map(|c| (c, lab.cluster(c).server.mark()))
                .collect(),
        )
    }

    /// Writes since then that changed something, by processes of ours, without leases: by writer.
    /// The manager reaches the sites with the zone's credentials, so the field manager tells too.
    pub fn writes(&self, lab: &Lab) -> BTreeMap<String, usize> {
        let mut count = BTreeMap::new();
        for (cluster, mark) in &self.0 {
            for entry in lab.cluster(cluster).server.writes_since(*mark) {
                let ours = entry.user.starts_with("system:serviceaccount:")
                    || managers::ALL.contains(&entry.manager.as_str());
                if ours && entry.changed && entry.resource != "leases" {
                    let who = if entry.manager.is_empty() {
                        &entry.user_agent
                    } else {
                        &entry.manager
                    };
                    let slash = if entry.subresource.is_empty() {
                        ""
                    } else {
                        "/"
                    };
                    let what = format!(
                        "{who}: {} {}{slash}{}",
                        entry.verb, entry.resource, entry.subresource
                    );
                    *count.entry(what).or_default() += 1;
                }
            }
        }
        count
    }
}

/// Moves a group and measures the move.
pub async fn fail_over(
    user: &User<'_>,
    name: &str,
    group: &str,
    target: &str,
    vms: &[Vm],
) -> anyhow::Result<Move> {
    let (marks, begun) = (Marks::now(user.lab), tokio::time::Instant::now());
    let request = user.fail_over(name, group, target).await?;
    let by_writer = marks.writes(user.lab);
    let mut moved = Vec::new();
    for vm in vms {
        user.vm_runs(target, vm).await?;
        let ledger = user.lab.guests.ledger();
        let downtime = crate::story::eventually(
            &format!("first write of {} on {target}", vm.key()),
            || async {
                Ok(ledger
                    .gaps(&vm.key())
                    .iter()
                    .rev()
                    .find(|gap| gap.to > begun)
                    .map(|gap| gap.to - gap.from))
            },
        )
        .await?;
        let mut whole = VmMove {
            vm: vm.key(),
            downtime,
            acknowledged: 0,
            present: 0,
            missing: Vec::new(),
        };
        for verdict in user.verify(target, vm).await?.into_values() {
            whole.acknowledged += verdict.acknowledged;
            whole.present += verdict.present;
            whole.missing.extend(verdict.missing);
        }
        moved.push(whole);
    }
    let seconds = request
        .status
        .and_then(|s| s.duration_seconds)
        .unwrap_or_default();
    Ok(Move {
        target: target.into(),
        vms: moved,
        seconds,
        writes: by_writer.values().sum(),
        by_writer,
    })
}

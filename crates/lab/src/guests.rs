//! The guests: what runs inside the VMs of all clusters, and the watch over the first safety
//! invariant, that no VM ever runs in two places.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::guest::{self, Disk, Ledger};

/// All guests of the lab.
#[derive(Clone, Default)]
pub struct Guests(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    running: BTreeMap<Place, Guest>,
    violations: Vec<String>,
    ledger: Ledger,
}

/// Where a guest runs: cluster, then VM as `namespace/name`.
type Place = (String, String);

struct Guest {
    uid: String,
    node: String,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Guests {
    /// What the guests wrote.
    pub fn ledger(&self) -> Ledger {
        self.0.lock().expect("no panic while held").ledger.clone()
    }

    /// Breaches of "never on two clusters at once" so far.
    pub fn violations(&self) -> Vec<String> {
        self.0
            .lock()
            .expect("no panic while held")
            .violations
            .clone()
    }

    /// Clusters on which a VM runs now.
    pub fn places(&self, vm: &str) -> Vec<String> {
        let inner = self.0.lock().expect("no panic while held");
        inner
            .running
            .keys()
            .filter(|(_, name)| name == vm)
            .map(|(cluster, _)| cluster.clone())
            .collect()
    }

    /// Whether this very instance runs.
    pub fn runs(&self, cluster: &str, vm: &str, uid: &str) -> bool {
        let inner = self.0.lock().expect("no panic while held");
        inner
            .running
            .get(&(cluster.into(), vm.into()))
            .is_some_and(|g| g.uid == uid)
    }

    /// Powers a guest on.
    pub fn start(
        &self,
        cluster: &str,
        node: &str,
        vm: &str,
        uid: &str,
        disks: Vec<(String, Disk)>,
        every: Duration,
    ) {
        let mut inner = self.0.lock().expect("no panic while held");
        let elsewhere: Vec<_> = inner
            .running
            .keys()
            .filter(|(c, name)| name == vm && c != cluster)
            .map(|(c, _)| c.clone())
            .collect();
        for other in elsewhere {
            inner.violations.push(format!(
                "{vm} was started on {cluster} while it ran on {other}"
            ));
        }
        let stop = CancellationToken::new();
        let (name, ledger, token) = (vm.to_string(), inner.ledger.clone(), stop.clone());
        let task =
            tokio::spawn(async move { guest::run(&name, disks, every, ledger, token).await });
        let guest = Guest {
            uid: uid.into(),
            node: node.into(),
            stop,
            task,
        };
        inner.running.insert((cluster.into(), vm.into()), guest);
    }

    /// Shuts a guest down and waits until its disks are closed.
    pub async fn stop(&self, cluster: &str, vm: &str) {
        let place = (cluster.to_string(), vm.to_string());
        let taken = {
            let mut inner = self.0.lock().expect("no panic while held");
            inner.running.get_mut(&place).map(|guest| {
                guest.stop.cancel();
                std::mem::replace(&mut guest.task, tokio::spawn(async {}))
            })
        };
        let Some(task) = taken else { return };
        if let Err(error) = task.await
            && error.is_panic()
        {
            tracing::error!(%vm, %cluster, "the guest panicked");
        }
        self.0
            .lock()
            .expect("no panic while held")
            .running
            .remove(&place);
    }

    /// The node lost power: its guests are gone at once.
    pub fn kill_on(&self, cluster: &str, node: &str) {
        let mut inner = self.0.lock().expect("no panic while held");
        inner.running.retain(|(c, _), guest| {
            let dies = c == cluster && guest.node == node;
            if dies {
                guest.task.abort();
            }
            !dies
        });
    }
}

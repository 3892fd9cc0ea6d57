//! The whole system: zone, protection, failover, failback, and what goes wrong on the way.
//!
//! Each test starts a lab of its own inside the process, in virtual time. `C1` to `C40` are the
//! observable contracts of Site Recovery that [S1] and [S2] state.

mod bad_input;
mod conflicts;
mod failover;
mod interruption;
mod links;
mod protection;
mod zone;

use std::time::Duration;

use farshore_lab::bench::quiet_options;
use farshore_lab::lab::Lab;
use farshore_lab::story::{User, Vm};
use kube::api::DynamicObject;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

const ZONE: &str = "metro";

async fn lab() -> Lab {
    Lab::start(quiet_options(1), CancellationToken::new())
        .await
        .unwrap()
}

/// A lab with a ready zone.
async fn lab_with_zone() -> Lab {
    let lab = lab().await;
    User::new(&lab, ZONE).create_zone().await.unwrap();
    lab
}

fn user(lab: &Lab) -> User<'_> {
    User::new(lab, ZONE)
}

/// Two VMs, one of them with two disks.
fn shop() -> Vec<Vm> {
    vec![
        Vm::new("shop", "db01", 2, 32),
        Vm::new("shop", "web01", 1, 32),
    ]
}

/// A lab in which the group `shop` is protected and runs on east.
async fn lab_with_group() -> (Lab, Vec<Vm>) {
    let lab = lab_with_zone().await;
    let vms = shop();
    user(&lab).protect("east", &vms, "Online").await.unwrap();
    user(&lab).create_group("shop", &vms).await.unwrap();
    for vm in &vms {
        user(&lab).vm_runs("east", vm).await.unwrap();
    }
    (lab, vms)
}

/// Everything acknowledged is on the cluster, and no VM ever ran twice.
async fn assert_whole(lab: &Lab, cluster: &str, vms: &[Vm]) {
    for vm in vms {
        for (disk, verdict) in user(lab).verify(cluster, vm).await.unwrap() {
            assert!(
                verdict.is_whole() && verdict.present > 0,
                "{} {disk} on {cluster}: {verdict:?}",
                vm.key()
            );
        }
    }
    assert_eq!(lab.guests.violations(), Vec::<String>::new());
}

/// Lets virtual time pass.
async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// An object as plain JSON.
fn plain(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap()
}

/// The message of an API error.
fn refusal<T: std::fmt::Debug>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.expect_err("it was accepted"))
}

//! The whole system: zone, protection, failover, failback, and what goes wrong on the way.
//!
//! Each test starts a lab of its own. By default everything is inside the process, in virtual time;
//! with `FARSHORE_ENGINE=kube` the API servers are real ones and time is the machine's. `C1` to `C40`
//! are the observable contracts of Site Recovery that [S1] and [S2] state.

mod bad_input;
mod conflicts;
mod failover;
mod interruption;
mod links;
mod protection;
mod zone;

use std::time::Duration;

use farshore_lab::bench::quiet_options;
use farshore_lab::engine::Engine;
use farshore_lab::lab::Lab;
use farshore_lab::story::{User, Vm};
use farshore_runtime::Clock;
use kube::api::DynamicObject;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

const ZONE: &str = "metro";
/// Seconds after which a real lab has seen every periodic task at least once: probes and monitors
/// look every 15 s.
const TASTE: u64 = 35;

/// The API servers that the scenarios run on.
fn engine() -> Engine {
    match std::env::var("FARSHORE_ENGINE").as_deref() {
        Err(_) | Ok("" | "embedded") => Engine::Embedded,
        Ok("kube") => Engine::Kube,
        Ok(other) => panic!("FARSHORE_ENGINE is {other:?}; it can be embedded or kube"),
    }
}

async fn lab() -> Lab {
    let mut options = quiet_options(1);
    options.engine = engine();
    if !options.engine.is_virtual() {
        if is_paused() {
            tokio::time::resume();
        }
        options.clock = Clock::system();
    }
    Lab::start(options, CancellationToken::new()).await.unwrap()
}

/// Whether time stands still; it goes on by nanoseconds otherwise.
fn is_paused() -> bool {
    let now = tokio::time::Instant::now();
    (0..1000).all(|_| tokio::time::Instant::now() == now)
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

/// Lets time pass: as much as is said in virtual time, a taste of it on real servers.
async fn pass(seconds: u64) {
    let seconds = if engine().is_virtual() {
        seconds
    } else {
        seconds.min(TASTE)
    };
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// An object as plain JSON.
fn plain(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap()
}

/// A write that a validation rule of our kinds refuses. The real server (1.20) is older than these
/// rules and takes it.
fn assert_rule<T, E>(result: Result<T, E>, rule: &str)
where
    T: std::fmt::Debug,
    E: std::fmt::Debug + Into<anyhow::Error>,
{
    if engine() == Engine::Embedded {
        let said = refusal(result.map_err(Into::into));
        assert!(said.contains(rule), "{said}");
    } else {
        assert!(result.is_ok(), "{result:?}");
    }
}

/// The message of an API error.
fn refusal<T: std::fmt::Debug>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.expect_err("it was accepted"))
}

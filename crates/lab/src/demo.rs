//! The story of Site Recovery: protect two VMs, move them to the other site, move them back, and
//! check every promise.

use std::path::Path;
use std::time::Duration;

use comfy_table::{Table, presets};
use console::style;
use serde_json::Value;
use tokio::time::Instant;

use crate::lab::Lab;
use crate::measure::{Move, fail_over};
use crate::story::{User, Vm};
use crate::timeline::Timeline;

const ZONE: &str = include_str!("../../../examples/site-recovery/1-zone.yaml");
const VMS: &str = include_str!("../../../examples/site-recovery/2-vms.yaml");
const PROTECTION: &str = include_str!("../../../examples/site-recovery/3-protection.yaml");
const GROUP: &str = include_str!("../../../examples/site-recovery/4-group.yaml");

/// The VMs of `examples/site-recovery`.
pub fn example_vms() -> Vec<Vm> {
    vec![
        Vm {
            namespace: "shop".into(),
            name: "db01".into(),
            disks: vec![("db01-root".into(), 256), ("db01-data".into(), 512)],
        },
        Vm {
            namespace: "shop".into(),
            name: "web01".into(),
            disks: vec![("web01-root".into(), 256)],
        },
    ]
}

/// Tells the story; true only if every promise held.
pub async fn run(lab: &Lab, dir: &Path, begun: Instant) -> anyhow::Result<bool> {
    let timeline = Timeline::new(begun);
    let user = User::new(lab, "metro");
    let vms = example_vms();

    timeline.chapter("Three clusters in this process: hub, east, west");
    timeline.say(&format!(
        "lab is ready; watch it with: kubectl --kubeconfig {} get pz,pr,pg,fr,rgs -A -w",
        dir.join("kubeconfig").display()
    ));

    timeline.chapter("A zone of east and west");
    user.create_credentials().await?;
    let following = tokio::spawn(
        timeline
            .clone()
            .follow(lab.cluster("hub").admin.clone(), user.zone.clone()),
    );
    let outcome = story(lab, &user, &timeline, &vms).await;
    tokio::time::sleep(Duration::from_millis(200)).await; // let the last line be seen
    following.abort();
    let moves = outcome?;
    report(lab, &moves)
}

async fn story(
    lab: &Lab,
    user: &User<'_>,
    timeline: &Timeline,
    vms: &[Vm],
) -> anyhow::Result<Vec<Move>> {
    apply_all(user, "hub", ZONE).await?;
    user.zone_condition("Ready", "True").await?;

    timeline.chapter("Two virtual machines on east, each writing numbered blocks");
    apply_all(user, "east", VMS).await?;
    for vm in vms {
        user.vm_runs("east", vm).await?;
        timeline.say(&format!(
            "VM {} runs on east with {} disk(s)",
            vm.key(),
            vm.disks.len()
        ));
    }

    timeline.chapter("Protect them (db01 offline, web01 online)");
    apply_all(user, "hub", PROTECTION).await?;
    for vm in vms {
        user.protected(vm).await?;
    }
    apply_all(user, "hub", GROUP).await?;
    user.group_ready("shop").await?;
    for vm in vms {
        user.vm_runs("east", vm).await?;
    }
    tokio::time::sleep(Duration::from_secs(2)).await; // something to lose

    let mut moves = Vec::new();
    for (title, name, target) in [
        ("Fail over to west", "shop-to-west", "west"),
        ("Fail back to east", "shop-to-east", "east"),
    ] {
        timeline.chapter(title);
        moves.push(fail_over(user, name, "shop", target, vms).await?);
        user.group_ready("shop").await?;
        for vm in vms {
            anyhow::ensure!(
                lab.guests.places(&vm.key()) == [target],
                "VM {} does not run on {target} alone",
                vm.key()
            );
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    Ok(moves)
}

/// Applies every document of a manifest file.
pub async fn apply_all(user: &User<'_>, cluster: &str, manifests: &str) -> anyhow::Result<()> {
    for manifest in serde_saphyr::from_multiple::<Value>(manifests)? {
        user.apply(cluster, &manifest).await?;
    }
    Ok(())
}

fn report(lab: &Lab, moves: &[Move]) -> anyhow::Result<bool> {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "VM",
        "moved to",
        "downtime",
        "RPO",
        "blocks acknowledged",
        "present after",
    ]);
    for one in moves {
        for vm in &one.vms {
            table.add_row([
                vm.vm.clone(),
                one.target.clone(),
                format!("{:.1} s", vm.downtime.as_secs_f64()),
                vm.rpo(),
                vm.acknowledged.to_string(),
                vm.present.to_string(),
            ]);
        }
    }
    println!("\n{table}\n");
    for one in moves {
        let each = one.writes as f64 / one.vms.len().max(1) as f64;
        println!(
            "move to {}: {} s of failover, {} API writes ({each:.1} per VM, fixed ones included)",
            one.target, one.seconds, one.writes
        );
    }
    let violations = lab.guests.violations();
    let promises = [
        (
            "every acknowledged block is on the target after each move",
            moves.iter().all(|m| m.vms.iter().all(|v| v.is_whole())),
        ),
        (
            "no VM ever ran on two clusters at once",
            violations.is_empty(),
        ),
        (
            "each failover completed within its budget of 300 s",
            moves.len() == 2 && moves.iter().all(|m| m.seconds <= 300),
        ),
    ];
    println!();
    for (promise, held) in promises {
        let mark = if held {
            style("kept  ").green()
        } else {
            style("BROKEN").red().bold()
        };
        println!("  {mark} {promise}");
    }
    for violation in violations {
        println!("         {violation}");
    }
    Ok(promises.iter().all(|(_, held)| *held))
}

//! Any process may die at any moment of a failover; it still ends as promised.

use std::time::Duration;

use farshore_lab::story::eventually;

use super::{assert_whole, lab_with_group, user};

/// Kills a process at many moments of a failover, one lab for each.
async fn survives(process: &str) {
    // Real servers take their time to start: one moment there.
    let moments: &[u64] = if super::engine().is_virtual() {
        &[1, 8, 16, 25, 40]
    } else {
        &[16]
    };
    for tenths in moments {
        let (lab, vms) = lab_with_group().await;
        user(&lab)
            .apply(
                "hub",
                &user(&lab).failover_manifest("to-west", "shop", "west"),
            )
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(100 * tenths)).await;
        lab.inject(&format!("restart {process}").parse().unwrap())
            .await
            .unwrap();
        let status = user(&lab)
            .failover_ended("to-west")
            .await
            .unwrap()
            .status
            .unwrap();
        assert_eq!(
            status.state.map(|s| s.as_str()),
            Some("Completed"),
            "{process} killed after {tenths}00 ms: {:?}",
            status.message
        );
        for vm in &vms {
            user(&lab).vm_runs("west", vm).await.unwrap();
        }
        user(&lab).group_ready("shop").await.unwrap();
        assert_whole(&lab, "west", &vms).await;
        lab.stop();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failover_survives_the_death_of_the_manager() {
    survives("tsr-manager").await;
}

#[tokio::test(start_paused = true)]
async fn a_failover_survives_the_death_of_the_workload_managers() {
    survives("workload-manager").await;
}

#[tokio::test(start_paused = true)]
async fn a_failover_survives_the_death_of_the_node_agents() {
    survives("drbd-node-agent").await;
}

#[tokio::test(start_paused = true)]
async fn a_failover_survives_the_death_of_the_zone_controller() {
    survives("protectionzone").await;
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_starts_again_by_itself() {
    let (lab, _) = lab_with_group().await;
    let names = lab.processes.names();
    for process in [
        "protectionzone",
        "tsr-manager",
        "workload-manager",
        "drbd-node-agent",
    ] {
        lab.inject(&format!("restart {process}").parse().unwrap())
            .await
            .unwrap();
    }
    eventually("all processes", || async {
        Ok((lab.processes.names() == names).then_some(()))
    })
    .await
    .unwrap();
    user(&lab).group_ready("shop").await.unwrap();
    let refused = lab.inject(&"restart nobody".parse().unwrap()).await;
    assert!(super::refusal(refused).contains("tsr-manager"));
}

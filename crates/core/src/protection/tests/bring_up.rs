//! From a request to a protected VM.

use crate::protection::{Step, decide};
use crate::{Seen, vm};
use farshore_api::protection_request::{ProtectionPhase, SyncMode};
use serde_json::json;

use super::world::{EAST, WEST, World, observed};

#[test]
fn a_disk_added_during_the_first_sync_keeps_the_request_from_being_called_protected() {
    let mut world = World::new(observed());
    while world.phase() != Some(ProtectionPhase::Syncing) {
        world.reconcile();
        for cluster in [EAST, WEST] {
            world.agent(cluster);
            world.kubevirt(cluster);
        }
    }
    world.add_disk(EAST);
    world.settle();
    assert!(!world.phases.contains(&ProtectionPhase::Protected));
    assert_eq!(world.says("Protected").unwrap().1, "UnreplicatedVolume");
}

/// Every decision of an undisturbed protection, in order.
pub(super) fn story(mut world: World) -> (World, String) {
    let mut told = String::new();
    for _ in 0..60 {
        if world.gone {
            break;
        }
        let decision = decide(&world.seen, world.now);
        let wrote = world.reconcile();
        if wrote {
            let phase = decision.status.phase.map_or("-", ProtectionPhase::as_str);
            told.push_str(&format!(
                "{phase} {:?}%\n",
                decision.status.sync_percent.unwrap_or(0)
            ));
            for step in &decision.steps {
                told.push_str(&format!("    {}\n", short(step)));
            }
        }
        for cluster in [EAST, WEST] {
            world.agent(cluster);
            world.kubevirt(cluster);
        }
    }
    (world, told)
}

fn short(step: &Step) -> String {
    match step {
        Step::CreateResource { cluster, resource } => format!(
            "create DRBDResource on {cluster}: {} epoch {}, ports {:?}",
            resource.spec.role,
            resource.spec.role_epoch,
            resource
                .spec
                .volumes
                .iter()
                .map(|v| v.port)
                .collect::<Vec<_>>()
        ),
        Step::PatchResource { cluster, patch } => {
            format!("patch DRBDResource on {cluster}: {}", patch["spec"])
        }
        Step::PatchVm {
            cluster, purpose, ..
        } => format!("patch VM on {cluster}: {purpose}"),
        Step::CreateVm { cluster, .. } => format!("create standby VM on {cluster}"),
        Step::CreateDrbdVolume { volume } => {
            format!("create DRBDVolume of {}", volume.spec.pvc_name)
        }
        Step::ReportDrbdVolume { name, status } => {
            let end = name.rsplit('-').next().unwrap();
            format!("report {end}: {}", status.phase.unwrap())
        }
        other => serde_json::to_string(other).unwrap(),
    }
}

#[test]
fn offline_stops_the_vm_until_the_first_full_sync() {
    let (world, told) = story(World::new(observed()));
    insta::assert_snapshot!(told);
    assert!(world.runs(EAST) && !world.runs(WEST));
    let standby = world.seen.sides[WEST].vm.present().unwrap();
    assert!(vm::is_halted(standby));
    insta::assert_yaml_snapshot!("standby_vm", standby);
    insta::assert_yaml_snapshot!(
        "protected_status",
        world.seen.request.status.as_ref().unwrap()
    );
}

#[test]
fn online_stops_the_vm_only_for_the_swap() {
    let mut seen = observed();
    seen.request.spec.sync_mode = SyncMode::Online;
    let (world, told) = story(World::new(seen));
    insta::assert_snapshot!(told);
    assert!(world.runs(EAST) && !world.runs(WEST));
}

#[test]
fn a_vm_that_did_not_run_is_not_started() {
    let mut seen = observed();
    let east = seen.sides.get_mut(EAST).unwrap();
    east.vmi = Seen::Absent;
    let Seen::Present(vm) = &mut east.vm else {
        panic!()
    };
    vm["spec"]["runStrategy"] = json!("Halted");
    let mut world = World::new(seen);
    world.settle();
    assert_eq!(world.phase(), Some(ProtectionPhase::Protected));
    assert!(!world.runs(EAST));
}

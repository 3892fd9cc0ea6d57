//! The PVCs of a resource: data and DRBD metadata.

use farshore_api::conditions::resource as condition;
use farshore_api::drbd::Role;
use farshore_api::drbd_resource::DRBDVolumeSpec;
use farshore_api::names as name_of;

use super::{
    Claim, Decision, NewClaim, Observed, Step, Verdict, VolumeClaims, namespace, path, reasons,
    resource_name,
};
use crate::conditions::{self, Truth};
use crate::words::bytes;

const MIB: i64 = 1024 * 1024;

/// Size of the external metadata of a volume for one peer, in bytes: 36 KiB and one bit for each
/// 4 KiB of data (DRBD user's guide, "Estimating metadata size"), in whole MiB.
pub fn metadata_bytes(data_bytes: i64) -> i64 {
    let bitmap = data_bytes.max(0).div_ceil_positive(32 * 1024);
    (36 * 1024 + bitmap).div_ceil_positive(MIB) * MIB
}

trait DivCeil {
    fn div_ceil_positive(self, by: i64) -> i64;
}

impl DivCeil for i64 {
    /// Rounded up; of a number that is not negative.
    fn div_ceil_positive(self, by: i64) -> i64 {
        self / by + i64::from(self % by != 0)
    }
}

/// The PVCs that the anchor pod attaches, data before metadata.
pub(super) fn names(seen: &Observed) -> Vec<String> {
    let resource = resource_name(seen);
    let volumes = &seen.resource.spec.volumes;
    let data = volumes.iter().map(|v| v.pvc_name.clone());
    data.chain(
        volumes
            .iter()
            .map(|v| name_of::metadata_pvc(&resource, v.index)),
    )
    .collect()
}

/// Creates what is missing and may be created; the verdicts on data and metadata, and whether every
/// PVC exists or is being created and none is wrong.
pub(super) fn provide(seen: &Observed, decision: &mut Decision) -> (Verdict, Verdict, bool) {
    let mut backing = Tally::default();
    let mut metadata = Tally::default();
    let none = VolumeClaims::default();
    for (position, volume) in seen.resource.spec.volumes.iter().enumerate() {
        let claims = seen.volumes.get(position).unwrap_or(&none);
        let data = look_at_data(seen, volume, claims);
        // Data before metadata: metadata without data then always means that the data was lost.
        let go_on = data.usable();
        backing.count(data, decision);
        if go_on {
            metadata.count(look_at_metadata(seen, volume, claims), decision);
        } else {
            metadata.count(Look::Making(None), decision);
        }
    }
    let complete = backing.wrong.is_none() && metadata.wrong.is_none();
    (
        backing.verdict("data"),
        metadata.verdict("metadata"),
        complete,
    )
}

/// One PVC.
enum Look {
    Well,
    /// Not there or not bound yet; created with this step.
    Making(Option<NewClaim>),
    Wrong(&'static str, String),
}

impl Look {
    fn usable(&self) -> bool {
        !matches!(self, Self::Wrong(..))
    }
}

#[derive(Default)]
struct Tally {
    well: usize,
    making: usize,
    wrong: Option<(&'static str, String)>,
}

impl Tally {
    fn count(&mut self, look: Look, decision: &mut Decision) {
        match look {
            Look::Well => self.well += 1,
            Look::Making(new) => {
                self.making += 1;
                decision.steps.extend(new.map(Step::CreateClaim));
            }
            Look::Wrong(reason, message) => {
                self.wrong.get_or_insert((reason, message));
            }
        }
    }

    fn verdict(self, what: &str) -> Verdict {
        match self.wrong {
            Some((reason, message)) => Verdict::new(Truth::False, reason, message),
            None if self.making > 0 => {
                let message = format!(
                    "{} of {} {what} PVCs are bound; the others are bound when their storage is made and the anchor pod is scheduled",
                    self.well,
                    self.well + self.making
                );
                Verdict::new(Truth::False, reasons::PROVISIONING, message)
            }
            None => Verdict::new(
                Truth::True,
                reasons::READY,
                format!("{} {what} PVCs bound", self.well),
            ),
        }
    }
}

fn look_at_data(seen: &Observed, volume: &DRBDVolumeSpec, claims: &VolumeClaims) -> Look {
    let name = &volume.pvc_name;
    let at = path(seen, name);
    let spec = &seen.resource.spec;
    let Some(claim) = &claims.backing else {
        if claims.metadata.as_ref().is_some_and(|m| is_ours(seen, m)) {
            let message = format!(
                "PVC {at} with the replicated data is gone while its DRBD metadata is still there; an empty volume must not take its place. Restore the PVC, or remove and renew the VM's protection: kubectl -n {} get pvc",
                namespace(seen)
            );
            return Look::Wrong(reasons::VOLUME_LOST, message);
        }
        if spec.initial_source || spec.role == Role::Primary {
            let message = format!(
                "PVC {at} of the VM's disk does not exist; an empty volume must not take the place of the source. Look with: kubectl -n {} get pvc",
                namespace(seen)
            );
            return Look::Wrong(reasons::PVC_NOT_FOUND, message);
        }
        return Look::Making(Some(NewClaim {
            name: name.clone(),
            storage_class: volume.storage_class.clone(),
            bytes: volume.size_bytes,
            owned: false,
        }));
    };
    if let Some(wrong) = unfit(seen, name, claim, volume.size_bytes) {
        return wrong;
    }
    if claim.bound {
        Look::Well
    } else {
        Look::Making(None)
    }
}

fn look_at_metadata(seen: &Observed, volume: &DRBDVolumeSpec, claims: &VolumeClaims) -> Look {
    let name = name_of::metadata_pvc(&resource_name(seen), volume.index);
    let size = metadata_bytes(volume.size_bytes);
    let at = path(seen, &name);
    let Some(claim) = &claims.metadata else {
        let before = seen
            .resource
            .status
            .as_ref()
            .map(|s| s.conditions.as_slice())
            .unwrap_or_default();
        let had = conditions::is_true(before, condition::METADATA_READY)
            || conditions::get(before, condition::METADATA_READY)
                .is_some_and(|c| c.reason == reasons::VOLUME_LOST);
        if had && seen.resource.spec.role == Role::Primary {
            let message = format!(
                "PVC {at} with DRBD's metadata is gone on the Primary; new metadata would mark its data as Inconsistent. Make the other side Primary, or remove and renew the VM's protection: kubectl -n {} get pvc",
                namespace(seen)
            );
            return Look::Wrong(reasons::VOLUME_LOST, message);
        }
        // A Secondary gets fresh metadata and with it a full sync from its peer.
        return Look::Making(Some(NewClaim {
            name,
            storage_class: volume.storage_class.clone(),
            bytes: size,
            owned: true,
        }));
    };
    if !is_ours(seen, claim) {
        let message = format!(
            "PVC {at} does not belong to this resource and holds metadata of something else; it is replaced as soon as it is gone. If nothing deletes it: kubectl -n {} delete pvc {name}",
            namespace(seen)
        );
        return Look::Wrong(reasons::VOLUME_NOT_OURS, message);
    }
    if let Some(wrong) = unfit(seen, &name, claim, size) {
        return wrong;
    }
    if claim.bound {
        Look::Well
    } else {
        Look::Making(None)
    }
}

fn is_ours(seen: &Observed, claim: &Claim) -> bool {
    claim.owner.is_some() && claim.owner == seen.resource.metadata.uid
}

/// What makes a PVC unfit for DRBD.
fn unfit(seen: &Observed, name: &str, claim: &Claim, size: i64) -> Option<Look> {
    let at = path(seen, name);
    let namespace = namespace(seen);
    if !claim.block {
        let message = format!(
            "PVC {at} has volumeMode Filesystem; only Block volumes are replicated. Move the disk to a Block PVC: kubectl -n {namespace} get pvc {name} -o yaml"
        );
        return Some(Look::Wrong(reasons::UNSUPPORTED_VOLUME_TYPE, message));
    }
    if claim.bytes < size {
        let message = format!(
            "PVC {at} has {}, {} are needed; it is looked at every 10 s. Enlarge it (or delete it, if it is unused, so that it is made anew): kubectl -n {namespace} edit pvc {name}",
            bytes(claim.bytes),
            bytes(size)
        );
        return Some(Look::Wrong(reasons::VOLUME_TOO_SMALL, message));
    }
    if claim.deleting {
        let message = format!(
            "PVC {at} is being deleted; its data lasts only as long as a pod uses it. Remove and renew the VM's protection, or restore the PVC: kubectl -n {namespace} describe pvc {name}"
        );
        return Some(Look::Wrong(reasons::VOLUME_TERMINATING, message));
    }
    None
}

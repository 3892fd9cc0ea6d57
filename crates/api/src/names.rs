//! Names of what the product creates: pure functions of their owner's names.

use sha2::{Digest, Sha256};

use crate::VmRef;

/// Most characters of a label's value (Kubernetes, "Labels and Selectors"). The names of
/// ProtectionRequests, ProtectionGroups and TestFailovers are label values, so they have no more.
pub const LABEL_LIMIT: usize = 63;
/// Most characters of an object's name (Kubernetes, DNS-1123 subdomain).
const NAME_LIMIT: usize = 253;
const FRONTEND_SUFFIX: &str = "-drbd";

/// Whether a name can be the value of a label.
pub fn fits_label(name: &str) -> bool {
    name.len() <= LABEL_LIMIT
}

/// Whether the frontend PVC of this PVC has a name that can be.
pub fn has_frontend(pvc: &str) -> bool {
    pvc.len() + FRONTEND_SUFFIX.len() <= NAME_LIMIT
}

/// First eight hex digits of SHA-256 over `<zone-namespace-uid>/<vm-namespace>/<vm-name>`.
pub fn hash8(zone_namespace_uid: &str, vm: &VmRef) -> String {
    let digest = Sha256::digest(format!("{zone_namespace_uid}/{}/{}", vm.namespace, vm.name));
    digest.iter().take(4).map(|b| format!("{b:02x}")).collect()
}

/// `drbd-<namespace>-<vm>-<hash8>` [S1], its middle cut so that the whole has at most 63
/// characters; the hash keeps it unique.
pub fn drbd_resource(zone_namespace_uid: &str, vm: &VmRef) -> String {
    let hash = hash8(zone_namespace_uid, vm);
    let middle = format!("{}-{}", vm.namespace, vm.name);
    let middle: String = middle
        .chars()
        .take(63 - "drbd-".len() - 1 - hash.len())
        .collect();
    format!("drbd-{}-{hash}", middle.trim_end_matches(['-', '.']))
}

/// The `<hash8>` at the end of a DRBDResource's name.
pub fn hash_of_resource(drbd_resource: &str) -> &str {
    drbd_resource.rsplit('-').next().unwrap_or(drbd_resource)
}

/// PVC that the VM uses in place of `pvc`.
pub fn frontend_pvc(pvc: &str) -> String {
    format!("{pvc}{FRONTEND_SUFFIX}")
}

/// PV behind a frontend PVC: cluster-scoped, so it carries the namespace's share in the hash.
pub fn frontend_pv(drbd_resource: &str, index: i32) -> String {
    format!("drbd-{}-{index}", hash_of_resource(drbd_resource))
}

/// PVC of a volume's DRBD metadata.
pub fn metadata_pvc(drbd_resource: &str, index: i32) -> String {
    format!("drbdmd-{}-{index}", hash_of_resource(drbd_resource))
}

/// Pod that keeps a VM's volumes attached to its node.
pub fn anchor_pod(drbd_resource: &str) -> String {
    format!("drbd-anchor-{}", hash_of_resource(drbd_resource))
}

/// Secret with the shared secret of a pair's peers, beside the DRBDResource.
pub fn shared_secret(drbd_resource: &str) -> String {
    format!("drbd-secret-{}", hash_of_resource(drbd_resource))
}

/// DRBDVolume of a volume.
pub fn drbd_volume(drbd_resource: &str, index: i32) -> String {
    format!("{drbd_resource}-v{index}")
}

/// DRBD's own name of a volume's resource: DRBD connects each volume over its own port, so each is
/// a resource of its own in the `.res` file.
pub fn kernel_resource(drbd_resource: &str, index: i32) -> String {
    if index == 0 {
        drbd_resource.to_string()
    } else {
        format!("{drbd_resource}-v{index}")
    }
}

/// DRBD minor number of a volume: one for each port, so unique on a node.
pub fn minor(port: i32) -> i32 {
    port - 6000
}

/// ReplicationGroupStatus of a group [S1].
pub fn replication_status(group: &str) -> String {
    format!("{group}-replication")
}

/// Lease that locks a group for a failover [S2].
pub fn failover_lock(group: &str) -> String {
    format!("failover-lock-{group}")
}

/// Default policy of a zone [S1].
pub fn default_policy(zone: &str) -> String {
    format!("{zone}-default")
}

/// Namespace of a zone's mirrors on the workload clusters.
pub fn zone_namespace(zone: &str) -> String {
    format!("{}{zone}", crate::meta::ZONE_NAMESPACE_PREFIX)
}

/// Job of a hook: `stage` is `pre` or `post`. The request's UID is in it, so that a request made again
/// under the same name does not take the Jobs of the former one for its own. A Job's name is a label of
/// its pods: a long name of the request is cut.
pub fn hook_job(failover_request: &str, uid: &str, stage: &str, index: usize) -> String {
    let digest = Sha256::digest(format!("{failover_request}\n{uid}"));
    let hash: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
    let cut: String = failover_request.chars().take(41).collect();
    let cut = cut.trim_end_matches(['-', '.']);
    format!("{cut}-{hash}-{stage}-{index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(namespace: &str, name: &str) -> VmRef {
        VmRef {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    #[test]
    fn a_resource_is_named_after_namespace_vm_and_hash() {
        let name = drbd_resource("uid", &vm("shop", "db01"));
        assert!(name.starts_with("drbd-shop-db01-"), "{name}");
        assert_eq!(hash_of_resource(&name), hash8("uid", &vm("shop", "db01")));
    }

    #[test]
    fn long_names_are_cut_to_63_and_stay_distinct() {
        let a = drbd_resource("uid", &vm(&"n".repeat(63), &"v".repeat(63)));
        let b = drbd_resource("uid", &vm(&"n".repeat(63), &"w".repeat(63)));
        assert!(a.len() <= 63 && b.len() <= 63);
        assert_ne!(a, b);
    }

    #[test]
    fn every_failover_has_hooks_of_its_own() {
        let long = |end: &str| format!("{}.-{end}", "f".repeat(40));
        let a = hook_job(&long("monday-morning"), "u1", "post", 12);
        let b = hook_job(&long("monday-evening"), "u2", "post", 12);
        assert_ne!(a, b);
        assert!(a.len() <= LABEL_LIMIT && !a.contains(".-"), "{a}");
        let again = ["u1", "u2"].map(|uid| hook_job("shop-1", uid, "pre", 0));
        assert_ne!(again[0], again[1], "one name, made anew");
        assert!(again[0].starts_with("shop-1-") && again[0].ends_with("-pre-0"));
    }

    #[test]
    fn two_zones_with_the_same_vm_get_different_names() {
        assert_ne!(
            drbd_resource("a", &vm("shop", "db01")),
            drbd_resource("b", &vm("shop", "db01"))
        );
    }
}

//! Labels, annotations, finalizers, taints, namespaces, field managers and images.

/// Labels on what the product creates.
pub mod labels {
    /// Name of the zone.
    pub const ZONE: &str = "siterecovery.trilio.io/zone";
    /// Name of the ProtectionRequest.
    pub const PROTECTION_REQUEST: &str = "siterecovery.trilio.io/protection-request";
    /// UID of the ProtectionRequest, on what may hold data: a request that is made again under a name
    /// takes nothing for its own that an earlier one made.
    pub const PROTECTION_REQUEST_UID: &str = "siterecovery.trilio.io/protection-request-uid";
    /// Name of the ProtectionGroup.
    pub const PROTECTION_GROUP: &str = "siterecovery.trilio.io/protection-group";
    /// Name of the TestFailover.
    pub const TEST_FAILOVER: &str = "siterecovery.trilio.io/test-failover";
    /// Name of the FailoverRequest, on hook Jobs.
    pub const FAILOVER_REQUEST: &str = "siterecovery.trilio.io/failover-request";
    /// "true" on a ProtectionGroup that is the copy of the hub's on a workload cluster.
    pub const MIRROR: &str = "siterecovery.trilio.io/mirror";
    /// Component of a pod or workload [S1].
    pub const COMPONENT: &str = "app.kubernetes.io/component";
}

/// Values of [`labels::COMPONENT`] [S1].
pub mod components {
    pub const PROTECTIONZONE_CONTROLLER: &str = "protectionzone-controller";
    pub const MANAGER_CONTROL_PLANE: &str = "manager-control-plane";
    pub const WORKLOAD_CONTROL_PLANE: &str = "workload-control-plane";
    pub const DRBD_NODE_AGENT: &str = "drbd-node-agent";
    pub const DRBD_ANCHOR: &str = "drbd-anchor";
}

/// Annotations.
pub mod annotations {
    /// On a workload cluster's product namespace: UID of the zone namespace that claims it [S1].
    pub const OWNER_ZONE_NAMESPACE_UID: &str = "siterecovery.trilio.io/owner-zone-namespace-uid";
    /// Same place: name of the zone that claims it [S1].
    pub const OWNER_ZONE: &str = "siterecovery.trilio.io/owner-zone";
    /// On a VirtualMachine: `<zone>/<protectionrequest>`.
    pub const PROTECTED_BY: &str = "siterecovery.trilio.io/protected-by";
    /// On a VirtualMachine: JSON of its volume list before protection, for unprotect.
    pub const ORIGINAL_VOLUMES: &str = "siterecovery.trilio.io/original-volumes";
    /// On a VirtualMachine that the product has stopped: the run strategy to restore at start.
    pub const RUN_STRATEGY: &str = "siterecovery.trilio.io/run-strategy";
    /// On a hook's Job: the moment at which the hook counts as failed, by the manager's clock.
    pub const HOOK_DEADLINE: &str = "siterecovery.trilio.io/hook-deadline";
    /// On a standby VirtualMachine: hash of the source VM's template that it was made from.
    pub const SOURCE_HASH: &str = "siterecovery.trilio.io/source-hash";
    /// On a VirtualMachine that protection or unprotection has stopped for its own work: "true" until
    /// it has started the VM again.
    pub const RESTART: &str = "siterecovery.trilio.io/restart";
    /// On a VirtualMachine that the product itself created as a standby:
    /// `<zone>/<protectionrequest>`. Only such a VM is ever deleted.
    pub const CREATED_BY: &str = "siterecovery.trilio.io/created-by";
    /// "true" on a ProtectionRequest: unprotect keeps the standby VM and its volumes.
    pub const KEEP_STANDBY: &str = "siterecovery.trilio.io/keep-standby";
    /// On a PVC that placement created: name of the DRBDResource.
    pub const CREATED_FOR: &str = "siterecovery.trilio.io/created-for";
    /// On a DRBDResource: the role epoch for which the agent may promote by force, without knowing
    /// what the peer has written: an unplanned failover whose source cannot be asked.
    pub const FORCE_PRIMARY: &str = "siterecovery.trilio.io/force-primary";
    /// On a DRBDResource in split brain: name of the cluster whose data is kept. The other side's
    /// changes since the split are given up.
    pub const RESOLVE_SPLIT_BRAIN: &str = "siterecovery.trilio.io/resolve-split-brain";
}

/// Finalizers.
pub mod finalizers {
    pub const ZONE_CLEANUP: &str = "siterecovery.trilio.io/zone-cleanup";
    pub const UNPROTECT: &str = "siterecovery.trilio.io/unprotect";
    pub const GROUP_CLEANUP: &str = "siterecovery.trilio.io/group-cleanup";
    pub const FAILOVER_LOCK: &str = "siterecovery.trilio.io/failover-lock";
    pub const DRBD_TEARDOWN: &str = "siterecovery.trilio.io/drbd-teardown";
    /// On a DRBDResource: held by placement until the anchor pod and the standby's PVCs are gone.
    pub const PLACEMENT: &str = "siterecovery.trilio.io/placement-cleanup";
}

/// Node taints.
pub mod taints {
    /// Startup taint, NoSchedule: set and removed by the node agent [S1].
    pub const NOT_READY: &str = "siterecovery.trilio.io/not-ready";
    /// Taint keys that a failover removes from the target's nodes after the safety check [S2].
    pub const QUORUM: [&str; 3] = [
        "siterecovery.trilio.io/quorum-lost",
        "drbd.linbit.com/lost-quorum",
        "drbd.linbit.com/force-io-error",
    ];
}

/// Namespace of the product on each workload cluster [S1].
pub const WORKLOAD_NAMESPACE: &str = "trilio-site-recovery-system";
/// Prefix of a zone's namespace on the hub [S1].
pub const ZONE_NAMESPACE_PREFIX: &str = "dr-";
/// Default key of a kubeconfig in its Secret.
pub const KUBECONFIG_KEY: &str = "kubeconfig";

/// Field managers: who wrote what can be read in `metadata.managedFields`. The reconcilers of the
/// older generation keep their names [S2].
pub mod managers {
    /// Applies CRDs and provisions zones [S1].
    pub const ZONE: &str = "site-recovery-pz-controller";
    /// The protectionrequest reconciler.
    pub const PROTECTION: &str = "protection-controller";
    /// The failoverrequest reconciler. It never writes a VirtualMachine [S2].
    pub const FAILOVER: &str = "failover-controller";
    /// The hub's protectiongroup reconciler.
    pub const PG_SYNC: &str = "pg-sync-controller";
    /// A workload cluster's protectiongroup reconciler.
    pub const PROTECTION_GROUP: &str = "protection-group-controller";
    /// The replication monitor.
    pub const REPLICATION_MONITOR: &str = "replication-monitor";
    /// The drbdreplicationpolicy reconciler.
    pub const POLICY: &str = "drbdreplicationpolicy-controller";
    /// The DRBDResource placement reconciler.
    pub const PLACEMENT: &str = "drbdresource-placement";
    /// The node agent.
    pub const NODE_AGENT: &str = "drbd-node-agent";

    /// All of them.
    pub const ALL: [&str; 9] = [
        ZONE,
        PROTECTION,
        FAILOVER,
        PG_SYNC,
        PROTECTION_GROUP,
        REPLICATION_MONITOR,
        POLICY,
        PLACEMENT,
        NODE_AGENT,
    ];
}

/// Container images of the product's processes, without tag.
pub mod images {
    pub const PROTECTIONZONE: &str = "farshore/protectionzone";
    pub const TSR_MANAGER: &str = "farshore/tsr-manager";
    pub const WORKLOAD_MANAGER: &str = "farshore/workload-manager";
    pub const DRBD_NODE_AGENT: &str = "farshore/drbd-node-agent";
    /// The anchor pod's container, which only sleeps.
    pub const ANCHOR: &str = "farshore/anchor";
}

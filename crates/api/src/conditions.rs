//! Condition types and reasons, kept exactly as the sources and the field print them.

/// ProtectionZone.
pub mod zone {
    pub const CLUSTERS_VALIDATED: &str = "ClustersValidated";
    pub const LEASES_HELD: &str = "LeasesHeld";
    pub const CRDS_APPLIED: &str = "CRDsApplied";
    pub const MANAGER_DEPLOYED: &str = "ManagerDeployed";
    pub const WORKLOADS_DEPLOYED: &str = "WorkloadsDeployed";
    pub const DEFAULT_POLICY_READY: &str = "DefaultPolicyReady";
    pub const READY: &str = "Ready";

    /// Reason of a validated zone [S1].
    pub const VALIDATED: &str = "Validated";
    /// Another zone holds the cluster; never stolen [S1].
    pub const CLUSTER_ALREADY_CLAIMED: &str = "ClusterAlreadyClaimed";
    pub const KUBECONFIG_SECRET_NOT_FOUND: &str = "KubeconfigSecretNotFound";
    pub const KUBECONFIG_INVALID: &str = "KubeconfigInvalid";
    pub const CLUSTER_UNREACHABLE: &str = "ClusterUnreachable";
    pub const AUTHENTICATION_FAILED: &str = "AuthenticationFailed";
    pub const INSUFFICIENT_PERMISSIONS: &str = "InsufficientPermissions";
    pub const KUBEVIRT_NOT_INSTALLED: &str = "KubeVirtNotInstalled";
    pub const SCC_PREREQUISITES_MISSING: &str = "SCCPrerequisitesMissing";
    pub const SAME_CLUSTER: &str = "SameCluster";
    pub const HELM_INSTALL_FAILED: &str = "HelmInstallFailed";
    pub const ROLLOUT_PENDING: &str = "RolloutPending";
    /// The zone shares its namespace with another, or the namespace is not named `dr-<name>`.
    pub const NAMESPACE_NOT_USABLE: &str = "NamespaceNotUsable";
    pub const PAUSED: &str = "Paused";
}

/// ProtectionRequest.
pub mod request {
    pub const VALIDATED: &str = "Validated";
    pub const DRBD_CREATED: &str = "DRBDCreated";
    pub const SYNCED: &str = "Synced";
    pub const PROTECTED: &str = "Protected";
    pub const CONNECTED: &str = "Connected";
    pub const SPLIT_BRAIN: &str = "SplitBrain";
    pub const POLICY_IGNORED: &str = "PolicyIgnored";
    pub const NODE_LOST: &str = "NodeLost";
    /// The standby VM no longer matches its source, or could not be written.
    pub const STANDBY_IN_STEP: &str = "StandbyInStep";
    /// There while a disk was grown: the VM goes on with the size that is replicated.
    pub const RESIZE_IGNORED: &str = "ResizeIgnored";
    /// There while the request is being deleted: False, with what its removal waits for.
    pub const UNPROTECTED: &str = "Unprotected";

    pub const VM_NOT_FOUND: &str = "VMNotFound";
    pub const VM_ALREADY_PROTECTED: &str = "VMAlreadyProtected";
    pub const TOO_MANY_DISKS: &str = "TooManyDisks";
    pub const NO_REPLICATED_DISKS: &str = "NoReplicatedDisks";
    /// A disk that was added after protection began: nothing copies it.
    pub const UNREPLICATED_VOLUME: &str = "UnreplicatedVolume";
    /// A name is put where it does not fit: into a label, or into a longer name.
    pub const NAME_TOO_LONG: &str = "NameTooLong";
    pub const UNSUPPORTED_VOLUME_TYPE: &str = "UnsupportedVolumeType";
    pub const STORAGE_CLASS_NOT_MAPPED: &str = "StorageClassNotMapped";
    pub const PORTS_EXHAUSTED: &str = "PortsExhausted";
    pub const NODE_NOT_READY: &str = "NodeNotReady";
    pub const PEER_DISCONNECTED: &str = "PeerDisconnected";
    /// The DRBDResource of a cluster is gone although it should be there.
    pub const RESOURCE_MISSING: &str = "ResourceMissing";
    pub const INITIAL_SYNC: &str = "InitialSync";
    pub const RESYNCING: &str = "Resyncing";
    pub const SPLIT_BRAIN_DETECTED: &str = "SplitBrainDetected";
    pub const UNKNOWN_CLUSTER: &str = "UnknownCluster";
    pub const ZONE_NOT_VALIDATED: &str = "ZoneNotValidated";
    pub const CLUSTER_UNREACHABLE: &str = "ClusterUnreachable";
    pub const PROTOCOL_NOT_SUPPORTED: &str = "ReplicationProtocolNotSupported";
}

/// ProtectionGroup.
pub mod group {
    pub const SYNCED: &str = "Synced";
    pub const MEMBERS_PROTECTED: &str = "MembersProtected";
    pub const READY: &str = "Ready";
    pub const FAILOVER_IN_PROGRESS: &str = "FailoverInProgress";

    /// The group's name does not fit into a label.
    pub const NAME_TOO_LONG: &str = "NameTooLong";
}

/// FailoverRequest.
pub mod failover {
    pub const LOCKED: &str = "Locked";
    pub const SAFETY_CHECK_PASSED: &str = "SafetyCheckPassed";
    pub const SOURCE_STOPPED: &str = "SourceStopped";
    pub const ROLES_FLIPPED: &str = "RolesFlipped";
    pub const TARGET_RUNNING: &str = "TargetRunning";
    pub const HOOKS_SUCCEEDED: &str = "HooksSucceeded";
    pub const COMPLETE: &str = "Complete";
    /// True when the request ended in `Failed`; absent otherwise.
    pub const FAILED: &str = "Failed";
    /// True while, or since, another group is in the way; False when one that queued goes on.
    pub const BLOCKED: &str = "Blocked";

    /// Reason while another request holds the lock.
    pub const LOCK_HELD: &str = "LockHeld";
    /// The request waited for its turn for as long as it may.
    pub const PENDING_TOO_LONG: &str = "PendingTooLong";
    pub const GROUP_NOT_FOUND: &str = "GroupNotFound";
    pub const UNKNOWN_CLUSTER: &str = "UnknownCluster";
    pub const ALREADY_ACTIVE: &str = "AlreadyActive";
    /// Reason of `TargetRunning=False` when the group was moved and shall be stopped.
    pub const GROUP_STOPPED: &str = "GroupStopped";
    pub const NOT_IN_SYNC: &str = "NotInSync";
    pub const CLUSTER_UNREACHABLE: &str = "ClusterUnreachable";
    pub const CONFLICTING_GROUPS: &str = "ConflictingGroups";
    pub const BUDGET_EXCEEDED: &str = "BudgetExceeded";
    pub const NOT_SUPPORTED: &str = "NotSupported";
    pub const HOOK_FAILED: &str = "HookFailed";
    /// Type and reason: True when `spec.abort` was followed, False when it came too late; absent
    /// without it.
    pub const ABORTED: &str = "Aborted";
    /// Reason of `Aborted=False`: the roles had begun to change.
    pub const ABORT_IGNORED: &str = "AbortIgnored";
    /// The source did not report its VMs stopped in time.
    pub const VM_STOP_TIMEOUT: &str = "VMStopTimeout";
    /// A member has no ProtectionRequest that is Protected.
    pub const MEMBERS_NOT_PROTECTED: &str = "MembersNotProtected";
    /// A workload cluster has no mirror of the group, or an old one.
    pub const MIRROR_NOT_READY: &str = "MirrorNotReady";
    /// A member has no VirtualMachine, or no bound DRBDResource, on the target.
    pub const STANDBY_NOT_READY: &str = "StandbyNotReady";
    /// A member's DRBDResource on the target is gone after the roles changed: it cannot start there.
    pub const RESOURCE_MISSING: &str = "ResourceMissing";
    /// Another request took the lock after it had expired.
    pub const LOCK_LOST: &str = "LockLost";
    /// The request was deleted while it ran.
    pub const DELETED: &str = "Deleted";
    /// It goes on.
    pub const IN_PROGRESS: &str = "InProgress";
}

/// DRBDResource.
pub mod resource {
    pub const NODE_BOUND: &str = "NodeBound";
    pub const BACKING_READY: &str = "BackingReady";
    pub const METADATA_READY: &str = "MetadataReady";
    pub const CONFIG_WRITTEN: &str = "ConfigWritten";
    pub const UP: &str = "Up";
    pub const CONNECTED: &str = "Connected";
    pub const UP_TO_DATE: &str = "UpToDate";
    pub const FRONTEND_READY: &str = "FrontendReady";
}

/// ReplicationGroupStatus.
pub mod replication {
    pub const REACHABLE: &str = "Reachable";
    pub const HEALTHY: &str = "Healthy";

    /// No member has come under replication yet, so there is nothing to judge.
    pub const NO_PROTECTED_MEMBERS: &str = "NoProtectedMembers";
}

/// DRBDReplicationPolicy.
pub mod policy {
    pub const ACCEPTED: &str = "Accepted";
}

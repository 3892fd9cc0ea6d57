//! The vocabulary of the DRBD kernel module as its tools print it (drbd-utils, `drbdsetup status`).

string_enum! {
    /// Role of a DRBD resource on one node.
    pub enum Role { Primary = "Primary", Secondary = "Secondary", Unknown = "Unknown" }
}

string_enum! {
    /// State of the connection to the peer.
    pub enum ConnectionState {
        StandAlone = "StandAlone", Disconnecting = "Disconnecting", Unconnected = "Unconnected",
        Timeout = "Timeout", BrokenPipe = "BrokenPipe", NetworkFailure = "NetworkFailure",
        ProtocolError = "ProtocolError", TearDown = "TearDown", Connecting = "Connecting",
        Connected = "Connected",
    }
}

string_enum! {
    /// State of replication of one volume to the peer.
    pub enum ReplicationState {
        Off = "Off", Established = "Established", StartingSyncS = "StartingSyncS",
        StartingSyncT = "StartingSyncT", WFBitMapS = "WFBitMapS", WFBitMapT = "WFBitMapT",
        WFSyncUUID = "WFSyncUUID", SyncSource = "SyncSource", SyncTarget = "SyncTarget",
        VerifyS = "VerifyS", VerifyT = "VerifyT", PausedSyncS = "PausedSyncS",
        PausedSyncT = "PausedSyncT", Ahead = "Ahead", Behind = "Behind",
    }
}

string_enum! {
    /// State of the data of one volume on one side.
    pub enum DiskState {
        Diskless = "Diskless", Attaching = "Attaching", Detaching = "Detaching", Failed = "Failed",
        Negotiating = "Negotiating", Inconsistent = "Inconsistent", Outdated = "Outdated",
        DUnknown = "DUnknown", Consistent = "Consistent", UpToDate = "UpToDate",
    }
}

string_enum! {
    /// Replication protocol: A asynchronous, C synchronous. Only C works today [S1].
    pub enum Protocol { A = "A", C = "C" }
}

/// The default: synchronous replication.
pub fn protocol_c() -> Protocol {
    Protocol::C
}

//! RPOEvents: records, never rewritten [S1].
//!
//! Their CRD has the rule too. API servers before Kubernetes 1.25 do not know such rules; for them this is
//! the only voice. Anybody may delete an event whom RBAC lets; the replication monitor does, for those
//! past their time.

use farshore_api::RPOEvent;

use super::{Asked, Change, Verdict, fixed};

/// Answers. Needs no facts.
pub fn judge(asked: &Asked<RPOEvent>) -> Verdict {
    let rules = match &asked.change {
        Change::Update { old, new } => fixed(&old.spec, &new.spec, "spec", "RPOEvent is immutable"),
        Change::Create { .. } | Change::Delete { .. } => Ok(()),
    };
    Verdict::of(rules, Vec::new())
}

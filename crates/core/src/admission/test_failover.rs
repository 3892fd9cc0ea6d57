//! TestFailovers.
//!
//! | what | from |
//! | --- | --- |
//! | the group exists, and the target is not where it runs | proposed |
//! | one test of a group at a time, and none while a failover runs | proposed |
//! | `status.testNamespace` is the manager's | that users do not touch it [S1], the rule proposed |
//!
//! The last one is about the subresource `status`, so that one must be asked about as well; a status that
//! leaves the field alone passes. Nothing keeps a test from being deleted.

use farshore_api::test_failover::TestPhase;
use farshore_api::{ProtectionGroup, TestFailover};

use super::failover_request::{already_active, existing_group};
use super::protection_group::locked;
use super::{Asked, Change, Ours, Reviewed, Stop, Verdict, known, known_all, name, namespace};
use crate::Seen;

/// What the answers depend on. Creation: all of them. The rest: none.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The product on the hub.
    pub ours: Ours,
    /// The group that the test names.
    pub group: Seen<ProtectionGroup>,
    /// The TestFailovers of the namespace.
    pub tests: Seen<Vec<TestFailover>>,
    /// The FailoverRequest that may move the group now, as `group::hub::locked_by` finds it.
    pub failover: Seen<String>,
}

/// Answers.
pub fn judge(asked: &Asked<TestFailover>, facts: &Facts) -> Verdict {
    match &asked.change {
        Change::Create { new } => Verdict::of(
            create(new, facts),
            vec!["TestFailover is not available in this version: it ends Failed with reason NotSupported, and nothing is started or copied".into()],
        ),
        Change::Update { old, new } => {
            let rules = if facts.ours.manager.has(&asked.by) {
                Ok(())
            } else {
                namespace_kept(old, new)
            };
            Verdict::of(rules, Vec::new())
        }
        Change::Delete { .. } => Verdict::default(),
    }
}

fn create(new: &TestFailover, facts: &Facts) -> Result<(), Stop> {
    let named = &new.spec.protection_group_ref.name;
    let group = existing_group(&facts.group, named, namespace(&new.metadata))?;
    let active = group
        .status
        .as_ref()
        .and_then(|s| s.active_cluster.as_deref());
    if let Some(target) = &new.spec.target_cluster
        && active == Some(target.as_str())
    {
        return Err(already_active(target, group)
            .help("A test runs on the standby side; leave spec.targetCluster out."));
    }
    let what = format!("whether a failover moves ProtectionGroup {named}");
    if let Some(failover) = known(&facts.failover, &what)? {
        let message = locked(named, failover);
        return Err(Stop::forbidden("spec.protectionGroupRef.name", message)
            .help("Create it anew when that has ended."));
    }
    let what = format!(
        "the TestFailovers of namespace {}",
        namespace(&new.metadata)
    );
    let runs = |t: &&TestFailover| {
        let phase = t.status.as_ref().and_then(|s| s.phase);
        t.spec.protection_group_ref.name == *named
            && t.metadata.name != new.metadata.name
            && !matches!(phase, Some(TestPhase::Completed | TestPhase::Failed))
    };
    match known_all(&facts.tests, &what)?.iter().find(runs) {
        None => Ok(()),
        Some(other) => {
            let message = format!(
                "ProtectionGroup {named} already has an active TestFailover {}",
                name(&other.metadata)
            );
            let help = if other.is_leaving() {
                "It is being deleted: create this one when it is gone.".into()
            } else {
                format!(
                    "End it first: kubectl -n {} delete testfailover {}",
                    namespace(&new.metadata),
                    name(&other.metadata)
                )
            };
            Err(Stop::forbidden("spec.protectionGroupRef.name", message).help(help))
        }
    }
}

fn namespace_kept(old: &TestFailover, new: &TestFailover) -> Result<(), Stop> {
    let of = |t: &TestFailover| t.status.as_ref().and_then(|s| s.test_namespace.clone());
    if of(old) == of(new) {
        return Ok(());
    }
    let message = "status.testNamespace is written by Site Recovery alone; leave it as it is";
    Err(Stop::forbidden("status.testNamespace", message))
}

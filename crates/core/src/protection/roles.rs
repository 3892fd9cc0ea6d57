//! Who may be Primary. The rule of the role flip: the side that shall give way is asked to be
//! Secondary at a new epoch; only when it was seen Secondary at that epoch is the other side asked
//! to be Primary. A node agent refuses an epoch older than the one it has carried out, so a late
//! writer cannot bring back an old role.
//!
//! A side whose DRBDResource was seen gone, and whose VM was seen not to run, has given way too: the
//! agent lets go of the object only after it has taken DRBD down. Nobody would ever confirm for it.

use farshore_api::DRBDResource;
use farshore_api::drbd::Role;

use super::Side;
use crate::Seen;

/// The roles that the two sides shall be asked for now. `None` leaves a side's role as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Role of the source, always at the epoch in question.
    pub source: Option<Role>,
    /// Role of the target.
    pub target: Option<Role>,
}

/// Epoch of the first roles: the pair is new, neither side has ever been Primary.
pub const FIRST_EPOCH: i64 = 1;

/// What to ask of both sides at `epoch`.
pub fn wanted(epoch: i64, target: &Side) -> Roles {
    Roles {
        source: may_promote(epoch, target).then_some(Role::Primary),
        target: Some(Role::Secondary),
    }
}

/// Whether the source may be Primary: the target is asked to be Secondary at this epoch and was seen
/// to be, or there is nothing left that could be Primary. In the first epoch no role precedes, so the
/// target need not have been seen yet.
pub fn may_promote(epoch: i64, target: &Side) -> bool {
    match &target.resource {
        Seen::Present(target) => {
            let asked = target.spec.role == Role::Secondary && target.spec.role_epoch == epoch;
            asked && (epoch == FIRST_EPOCH || has(target, Role::Secondary, epoch))
        }
        Seen::Absent => epoch == FIRST_EPOCH || target.vmi.is_absent(),
        Seen::Unknown(_) => false,
    }
}

/// Whether a side was seen in this role at this epoch.
pub fn has(resource: &DRBDResource, role: Role, epoch: i64) -> bool {
    resource
        .status
        .as_ref()
        .is_some_and(|s| s.role == Some(role) && s.role_epoch == Some(epoch))
}

/// Whether a side was seen in this role at this epoch; false while it is not known.
pub fn seen(resource: &Seen<DRBDResource>, role: Role, epoch: i64) -> bool {
    resource.present().is_some_and(|r| has(r, role, epoch))
}

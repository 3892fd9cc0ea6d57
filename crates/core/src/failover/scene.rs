//! What was seen, with the VMs that the failover is about.

use std::collections::BTreeMap;
use std::ops::Deref;

use farshore_api::failover_request::{FailoverState, FailoverVmStatus};
use farshore_api::{ProtectionRequest, VmRef};

use super::observed::Observed;

/// A look at the world together with the failover's VMs. They are fixed when validation is over: a
/// VM that joins the group later was not looked at, and stays where it is; one whose request
/// vanished is still waited for.
pub struct Scene<'a> {
    seen: &'a Observed,
    /// The VMs of this failover.
    pub cast: Vec<Member<'a>>,
}

/// One VM of a failover.
pub struct Member<'a> {
    /// The VM.
    pub vm: VmRef,
    /// Its ProtectionRequest; None when it is gone.
    pub request: Option<&'a ProtectionRequest>,
    /// Whether the group names it still. One that it does not name is carried to the end with the
    /// others once roles change; before that the failover turns back.
    pub in_group: bool,
}

impl<'a> Scene<'a> {
    /// Finds the VMs of the failover in what was seen.
    pub fn new(seen: &'a Observed) -> Self {
        let stored = seen.request.status.as_ref();
        let state = stored.and_then(|s| s.state);
        let open = matches!(
            state,
            None | Some(
                FailoverState::Pending | FailoverState::Validating | FailoverState::Blocked
            )
        );
        let of_group = seen.members.iter().map(|m| (m.vm(), m));
        let cast = match stored.filter(|_| !open) {
            None => of_group
                .map(|(vm, request)| Member {
                    vm,
                    request: Some(request),
                    in_group: true,
                })
                .collect(),
            Some(stored) => {
                type Found<'a> = BTreeMap<(&'a str, &'a str), (&'a ProtectionRequest, bool)>;
                let former = seen.former.iter().map(|m| (m, false));
                let all = former.chain(seen.members.iter().map(|m| (m, true)));
                let requests: Found = all
                    .map(|(m, in_group)| {
                        let key = (m.spec.vm_namespace.as_str(), m.spec.vm_name.as_str());
                        (key, (m, in_group))
                    })
                    .collect();
                let of = |vm: &FailoverVmStatus| {
                    let key = (vm.vm_namespace.as_str(), vm.vm_name.as_str());
                    requests.get(&key).copied()
                };
                let listed = stored.vm_statuses.iter();
                listed
                    .map(|vm| Member {
                        request: of(vm).map(|(request, _)| request),
                        in_group: of(vm).is_some_and(|(_, in_group)| in_group),
                        vm: vm_of(vm),
                    })
                    .collect()
            }
        };
        Self { seen, cast }
    }
}

impl Deref for Scene<'_> {
    type Target = Observed;

    fn deref(&self) -> &Observed {
        self.seen
    }
}

fn vm_of(status: &FailoverVmStatus) -> VmRef {
    VmRef {
        namespace: status.vm_namespace.clone(),
        name: status.vm_name.clone(),
    }
}

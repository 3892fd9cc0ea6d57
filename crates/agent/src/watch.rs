//! Says which DRBDResources to look at because the kernel changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use farshore_api::DRBDResource;
use farshore_core::drbd::model::ResourceState;
use farshore_runtime::CancellationToken;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use kube::runtime::reflector::ObjectRef;

use crate::kernel::SharedKernel;
use crate::memory::Memory;

/// The resources whose state in the kernel differs from what it was, for ever until `shutdown`.
pub(crate) fn changes(kernel: SharedKernel, memory: Arc<Memory>, shutdown: CancellationToken) -> BoxStream<'static, ObjectRef<DRBDResource>> {
    let start = (kernel, memory, BTreeMap::<String, ResourceState>::new());
    stream::unfold(start, |(kernel, memory, mut last)| async move {
        kernel.changed().await;
        let mut refs = Vec::new();
        match kernel.status().await {
            Ok(states) => {
                let now: BTreeMap<String, ResourceState> = states.into_iter().map(|s| (s.name.clone(), s)).collect();
                let mut names: Vec<&String> = now.keys().chain(last.keys()).collect();
                names.sort_unstable();
                names.dedup();
                for name in names {
                    if now.get(name) != last.get(name)
                        && let Some((namespace, owner)) = memory.owner(name)
                    {
                        let reference = ObjectRef::new(&owner).within(&namespace);
                        if !refs.contains(&reference) {
                            refs.push(reference);
                        }
                    }
                }
                last = now;
            }
            Err(error) => tracing::warn!(%error, "the kernel's state cannot be read; it is read again at its next change"),
        }
        memory.kernel.send_modify(|count| *count += 1);
        Some((stream::iter(refs), (kernel, memory, last)))
    })
    .flatten()
    .take_until(shutdown.cancelled_owned())
    .boxed()
}

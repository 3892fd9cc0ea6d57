//! Says which DRBDResources to look at because the kernel changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use farshore_api::DRBDResource;
use farshore_core::drbd::model::ResourceState;
use farshore_runtime::CancellationToken;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use kube::runtime::reflector::ObjectRef;
use tokio::time::Instant;

use crate::kernel::SharedKernel;
use crate::memory::Memory;

/// Between two looks at a resource of which only the numbers of a sync change.
const NUMBERS: Duration = Duration::from_secs(1);

/// The resources whose state in the kernel differs from what it was, for ever until `shutdown`.
pub(crate) fn changes(
    kernel: SharedKernel,
    memory: Arc<Memory>,
    shutdown: CancellationToken,
) -> BoxStream<'static, ObjectRef<DRBDResource>> {
    let start = (kernel, memory, Told::default());
    stream::unfold(start, |(kernel, memory, mut told)| async move {
        kernel.changed().await;
        let mut refs = Vec::new();
        match kernel.status().await {
            Ok(states) => {
                for name in told.news(states, Instant::now()) {
                    let Some((namespace, owner)) = memory.owner(&name) else { continue };
                    let reference = ObjectRef::new(&owner).within(&namespace);
                    if !refs.contains(&reference) {
                        refs.push(reference);
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the kernel's state cannot be read; it is read again at its next change"),
        }
        memory.kernel.send_modify(|count| *count += 1);
        Some((stream::iter(refs), (kernel, memory, told)))
    })
    .flatten()
    .take_until(shutdown.cancelled_owned())
    .boxed()
}

/// What was told of each kernel resource, and when.
#[derive(Default)]
struct Told(BTreeMap<String, (ResourceState, Instant)>);

impl Told {
    /// Names of the resources that are worth a look.
    fn news(&mut self, states: Vec<ResourceState>, now: Instant) -> Vec<String> {
        let states: BTreeMap<String, ResourceState> =
            states.into_iter().map(|s| (s.name.clone(), s)).collect();
        let mut news: Vec<String> = self
            .0
            .keys()
            .filter(|name| !states.contains_key(*name))
            .cloned()
            .collect();
        self.0.retain(|name, _| states.contains_key(name));
        for (name, state) in states {
            let worth = match self.0.get(&name) {
                None => true,
                Some((before, _)) if *before == state => false,
                Some((before, at)) => {
                    without_numbers(before) != without_numbers(&state) || now - *at >= NUMBERS
                }
            };
            if worth {
                self.0.insert(name.clone(), (state, now));
                news.push(name);
            }
        }
        news
    }
}

fn without_numbers(state: &ResourceState) -> ResourceState {
    ResourceState {
        out_of_sync_bytes: 0,
        sync_percent: 0,
        ..state.clone()
    }
}

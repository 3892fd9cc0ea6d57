//! TestFailovers: not available in this version. Each is told so once, in its conditions `Complete`
//! and `Failed`, so that nobody waits for it.

use std::sync::Arc;

use farshore_api::meta::managers;
use farshore_api::test_failover::TestPhase;
use farshore_api::{ProtectionZone, TestFailover};
use farshore_core::conditions::{self, Truth};
use farshore_core::words::Wait;
use farshore_runtime::apply;
use farshore_runtime::controller::{self, During, ReconcileError, Reconciler, Requeue};
use futures::StreamExt;
use kube::ResourceExt;
use kube::runtime::watcher;

use crate::hub::Hub;

/// Says no.
struct TestFailovers {
    hub: Hub,
}

impl Reconciler<TestFailover> for TestFailovers {
    fn name(&self) -> &'static str {
        managers::FAILOVER
    }

    async fn reconcile(&self, object: Arc<TestFailover>) -> Result<Requeue, ReconcileError> {
        let name = object.name_any();
        let before = object.status.clone().unwrap_or_default();
        let mut status = before.clone();
        status.observed_generation = object.metadata.generation;
        status.phase = Some(TestPhase::Failed);
        let group = &object.spec.protection_group_ref.name;
        let namespace = &self.hub.namespace;
        let told = Wait {
            what: format!(
                "TestFailover {namespace}/{name} of ProtectionGroup {namespace}/{group} is not carried out"
            ),
            by: "test failover is not available in this version of Site Recovery".into(),
            since: None,
            next: "Nothing was started, copied or changed for it, and nothing will be; create it anew when a version that can do it is installed",
            command: format!(
                "Delete this object with: kubectl -n {namespace} delete testfailover {name}"
            ),
        };
        for (type_, truth) in [("Complete", Truth::False), ("Failed", Truth::True)] {
            conditions::set(
                &mut status.conditions,
                type_,
                truth,
                "NotSupported",
                told.to_string(),
                object.metadata.generation,
                self.hub.process.clock.now(),
            );
        }
        let api = self.hub.api::<TestFailover>();
        apply::status(&api, &name, managers::FAILOVER, &before, &status)
            .await
            .during(format!(
                "writing the status of TestFailover {namespace}/{name}"
            ))?;
        Ok(Requeue::Change)
    }
}

/// Runs the reconciler until the process shuts down.
pub async fn run(hub: &Hub, _zone: &ProtectionZone) {
    controller::run(
        &hub.process,
        hub.api::<TestFailover>(),
        watcher::Config::default(),
        TestFailovers { hub: hub.clone() },
        futures::stream::pending().boxed(),
        1,
    )
    .await;
}

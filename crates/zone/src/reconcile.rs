//! One look at a zone: observe, plan, act, conclude.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farshore_api::conditions::zone as types;
use farshore_api::meta::finalizers;
use farshore_api::zone::ProtectionZoneStatus;
use farshore_api::{ProtectionRequest, ProtectionZone};
use farshore_chart::ChartError;
use farshore_core::zone::conclude::{self, Conclusion, Crds, Outcomes, Stack};
use farshore_core::zone::permissions::Permission;
use farshore_core::zone::{self, Claim, Observed, Site, Step};
use farshore_core::{Note, conditions};
use farshore_runtime::controller::{During, ReconcileError, Reconciler, Requeue};
use farshore_runtime::events::Recorder;
use farshore_runtime::remote::Clusters;
use farshore_runtime::{Process, ProcessError, apply};
use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::claim::{self, Owner};
use crate::stack::Wanted;
use crate::watches::Watches;
use crate::{CONTROLLER, MANAGER, crds, policy, probe, stack};

/// Time for all that is done on one cluster: one that falls silent must not hold up the other.
const SITE_LIMIT: Duration = Duration::from_secs(25);

/// The reconciler of ProtectionZones.
pub struct Zones {
    pub(crate) process: Process,
    pub(crate) recorder: Recorder,
    pub(crate) watches: Watches,
    definitions: crds::Definitions,
    /// What the credential of a workload cluster must be allowed to do.
    needed: BTreeSet<Permission>,
    /// Clients by namespace of the zone.
    clusters: Mutex<BTreeMap<String, Clusters>>,
    /// What was rendered.
    stacks: Mutex<BTreeMap<StackOf, Arc<Wanted>>>,
    /// For what reason and since when a zone fails, by its UID.
    failing: Mutex<BTreeMap<String, (String, Timestamp)>>,
}

/// What a stack is rendered from: the zone's name and namespace, the site, and whether that is OpenShift.
type StackOf = (String, String, Site, bool);

/// A zone as it was seen, with the clients of those clusters that have one.
struct Seen {
    observed: Observed,
    clients: BTreeMap<String, Client>,
}

impl Zones {
    /// A reconciler that watches through `watches`.
    pub fn new(
        process: &Process,
        watches: Watches,
        definitions: crds::Definitions,
    ) -> Result<Self, ProcessError> {
        let needed =
            crate::required_permissions().map_err(|error| ProcessError::new(error.to_string()))?;
        Ok(Self {
            process: process.clone(),
            recorder: Recorder::new(
                process.client.clone(),
                CONTROLLER,
                &process.identity,
                process.clock.clone(),
            ),
            watches,
            definitions,
            needed,
            clusters: Mutex::default(),
            stacks: Mutex::default(),
            failing: Mutex::default(),
        })
    }

    pub(crate) fn hub(&self) -> Client {
        self.process.client.clone()
    }

    pub(crate) fn clusters(&self, namespace: &str) -> Clusters {
        let mut all = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(namespace.into())
            .or_insert_with(|| Clusters::new(&self.process, namespace))
            .clone()
    }

    pub(crate) fn api(&self, zone: &ProtectionZone) -> Api<ProtectionZone> {
        Api::namespaced(self.hub(), &zone.namespace().unwrap_or_default())
    }

    /// Publishes and writes what was concluded.
    pub(crate) async fn tell(
        &self,
        zone: &ProtectionZone,
        status: &ProtectionZoneStatus,
        notes: &[Note],
    ) -> Result<(), ReconcileError> {
        for note in notes {
            self.recorder.publish(zone, note).await;
        }
        apply::status(
            &self.api(zone),
            &zone.name_any(),
            MANAGER,
            &zone.status,
            status,
        )
        .await
        .during("writing the zone's status")?;
        Ok(())
    }

    pub(crate) async fn namespace_uid(&self, namespace: &str) -> Result<String, ReconcileError> {
        let api: Api<Namespace> = Api::all(self.hub());
        let found = api
            .get(namespace)
            .await
            .during(format!("reading Namespace {namespace} of the hub"))?;
        found.uid().ok_or_else(|| {
            ReconcileError::new(format!("Namespace {namespace} of the hub has no UID"))
        })
    }

    async fn reconcile(&self, zone: &ProtectionZone) -> Result<Requeue, ReconcileError> {
        let namespace = zone.namespace().unwrap_or_default();
        self.watches.know(zone);
        if zone.metadata.deletion_timestamp.is_some() && !zone.spec.paused {
            return self.remove(zone).await;
        }
        let siblings = self
            .api(zone)
            .list(&ListParams::default())
            .await
            .during("listing the zones of the namespace")?;
        let holder = zone::holder(&siblings.items).map(ResourceExt::name_any);
        let rival = holder.filter(|name| *name != zone.name_any());
        let blank = Observed {
            zone: zone.clone(),
            namespace_uid: String::new(),
            hub_uid: String::new(),
            rival,
            requests: 0,
            ports: 0,
            clusters: Vec::new(),
        };
        if zone.spec.paused {
            return self
                .finish(zone, conclude::paused(&blank, self.process.clock.now()))
                .await;
        }
        if zone::namespace_fault(&namespace, &zone.name_any(), blank.rival.as_deref()).is_some() {
            return self
                .finish(
                    zone,
                    zone::conclude(&blank, &Outcomes::default(), self.process.clock.now()),
                )
                .await;
        }
        let zone = &self.begin(zone).await?;
        self.watches.keep(zone, &self.clusters(&namespace));
        let mut seen = self
            .observe(Observed {
                zone: zone.clone(),
                ..blank
            })
            .await?;
        let steps = zone::plan(&seen.observed);
        if steps.iter().any(|step| matches!(step, Step::Claim(_))) {
            let status = conclude::claiming(&seen.observed, self.process.clock.now());
            self.tell(zone, &status, &[]).await?;
            seen.observed.zone.status = Some(status);
        }
        let outcomes = self.act(&seen, &steps).await;
        let conclusion = zone::conclude(&seen.observed, &outcomes, self.process.clock.now());
        self.finish(&seen.observed.zone, conclusion).await
    }

    /// Marks a zone that nobody looked at yet, and makes sure that it is not deleted unnoticed.
    async fn begin(&self, zone: &ProtectionZone) -> Result<ProtectionZone, ReconcileError> {
        let api = self.api(zone);
        let added = apply::add_finalizer(&api, MANAGER, zone, finalizers::ZONE_CLEANUP)
            .await
            .during("adding the zone's finalizer")?;
        let mut zone = zone.clone();
        if zone
            .status
            .as_ref()
            .is_none_or(|status| status.phase.is_none())
        {
            let names: Vec<&str> = zone.spec.clusters.iter().map(|c| c.name.as_str()).collect();
            let status = conclude::beginning(zone.metadata.generation, &names);
            self.tell(&zone, &status, &[]).await?;
            zone.status = Some(status);
        }
        if added {
            zone.finalizers_mut().push(finalizers::ZONE_CLEANUP.into());
        }
        Ok(zone)
    }

    async fn observe(&self, blank: Observed) -> Result<Seen, ReconcileError> {
        let zone = &blank.zone;
        let namespace = zone.namespace().unwrap_or_default();
        let namespace_uid = self.namespace_uid(&namespace).await?;
        let hub_uid = self.namespace_uid("kube-system").await?;
        let requests: Api<ProtectionRequest> = Api::namespaced(self.hub(), &namespace);
        let requests = requests
            .list(&ListParams::default())
            .await
            .during("listing the zone's ProtectionRequests")?
            .items;
        let secrets: Api<Secret> = Api::namespaced(self.hub(), &namespace);
        let clusters = self.clusters(&namespace);
        clusters.know(zone);
        let looks = zone.spec.clusters.iter().map(|spec| {
            probe::look(
                &secrets,
                &clusters,
                spec,
                &namespace,
                &namespace_uid,
                &self.needed,
            )
        });
        let looks = try_join_all(looks)
            .await
            .during("reading the zone's kubeconfig Secrets")?;
        let mut clients = BTreeMap::new();
        let mut seen = Vec::new();
        for (cluster, client) in looks {
            clients.extend(client.map(|client| (cluster.name.clone(), client)));
            seen.push(cluster);
        }
        let ports = requests
            .iter()
            .filter_map(|r| r.status.as_ref())
            .map(|status| status.volumes.len())
            .sum();
        Ok(Seen {
            observed: Observed {
                namespace_uid,
                hub_uid,
                requests: requests.len(),
                ports,
                clusters: seen,
                ..blank
            },
            clients,
        })
    }

    async fn act(&self, seen: &Seen, steps: &[Step]) -> Outcomes {
        let mut outcomes = Outcomes::default();
        let owner = Owner {
            zone: &seen.observed.zone.name_any(),
            namespace_uid: &seen.observed.namespace_uid,
        };
        for step in steps {
            match step {
                Step::Claim(names) => outcomes.claims = self.claim(seen, &owner, names).await,
                Step::GiveBack(name) => {
                    if let Some(client) = seen.clients.get(name) {
                        let result = claim::give_back(client, &owner)
                            .await
                            .map(|()| Claim::Free)
                            .map_err(|error| error.to_string());
                        outcomes.claims.insert(name.clone(), result);
                    }
                }
                Step::ApplyCrds(_) | Step::Deploy(_) | Step::CreatePolicy => {}
            }
        }
        let lost = outcomes
            .claims
            .values()
            .any(|claim| *claim != Ok(Claim::Held));
        if lost && !seen.observed.deployed() {
            return outcomes;
        }
        // What is done on one cluster is independent of the others.
        let sites: Vec<&Site> = steps
            .iter()
            .filter_map(|step| match step {
                Step::ApplyCrds(Site::Cluster(name))
                    if outcomes
                        .claims
                        .get(name)
                        .is_some_and(|claim| *claim != Ok(Claim::Held)) =>
                {
                    None
                }
                Step::ApplyCrds(site) => Some(site),
                _ => None,
            })
            .collect();
        for (site, crds, stack) in
            join_all(sites.iter().map(|site| self.provision(seen, site))).await
        {
            outcomes.crds.insert(site.clone(), crds);
            outcomes.stacks.extend(stack.map(|stack| (site, stack)));
        }
        if steps.contains(&Step::CreatePolicy) {
            outcomes.policy = Some(policy::ensure(&self.hub(), &seen.observed.zone).await);
        }
        outcomes
    }

    /// Claims clusters one after the other; as soon as one is not to be had, gives back what was
    /// claimed here.
    async fn claim(
        &self,
        seen: &Seen,
        owner: &Owner<'_>,
        names: &[String],
    ) -> BTreeMap<String, Result<Claim, String>> {
        let mut results: BTreeMap<String, Result<Claim, String>> = BTreeMap::new();
        let mut taken = Vec::new();
        for name in names {
            let Some(client) = seen.clients.get(name) else {
                continue;
            };
            let result = tokio::time::timeout(SITE_LIMIT, claim::take(client, owner)).await;
            let (claim, new) = match result {
                Ok(Ok((claim, new))) => (Ok(claim), new),
                Ok(Err(error)) => (Err(error.to_string()), false),
                Err(_) => (
                    Err(format!("no answer within {} s", SITE_LIMIT.as_secs())),
                    false,
                ),
            };
            let held = claim == Ok(Claim::Held);
            results.insert(name.clone(), claim);
            if new {
                taken.push((name, client));
            }
            if !held {
                if !seen.observed.deployed() {
                    for (name, client) in taken {
                        let result = claim::give_back(client, owner)
                            .await
                            .map(|()| Claim::Free)
                            .map_err(|error| error.to_string());
                        results.insert(name.clone(), result);
                    }
                }
                break;
            }
        }
        results
    }

    async fn provision(&self, seen: &Seen, site: &Site) -> (Site, Crds, Option<Stack>) {
        let client = match site {
            Site::Hub => Some(self.hub()),
            Site::Cluster(name) => seen.clients.get(name).cloned(),
        };
        let Some(client) = client else {
            return (
                site.clone(),
                Crds::Failed("there is no client for it".into()),
                None,
            );
        };
        let work = async {
            let crds = self.definitions.outcome(&client).await;
            if matches!(crds, Crds::Failed(_)) {
                return (crds, None);
            }
            let wanted = self.wanted(&seen.observed, site);
            let zone = seen.observed.zone.name_any();
            let now = self.process.clock.now();
            let stack = stack::install(&client, wanted, &zone, now).await;
            (crds, Some(stack))
        };
        match tokio::time::timeout(SITE_LIMIT, work).await {
            Ok((crds, stack)) => (site.clone(), crds, stack),
            Err(_) => (
                site.clone(),
                Crds::Failed(format!("not finished within {} s", SITE_LIMIT.as_secs())),
                None,
            ),
        }
    }

    fn wanted(&self, observed: &Observed, site: &Site) -> Result<Arc<Wanted>, ChartError> {
        let zone = observed.zone.name_any();
        let namespace = observed.zone.namespace().unwrap_or_default();
        let openshift = observed
            .clusters
            .iter()
            .find(|c| *site == Site::Cluster(c.name.clone()))
            .and_then(|c| c.probe.as_ref().ok())
            .is_some_and(|facts| facts.openshift);
        let key = (zone, namespace, site.clone(), openshift);
        let mut stacks = self.stacks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wanted) = stacks.get(&key) {
            return Ok(wanted.clone());
        }
        let wanted = Arc::new(match site {
            Site::Hub => stack::manager(&key.0, &key.1)?,
            Site::Cluster(name) => stack::workload(&key.0, name, openshift)?,
        });
        stacks.insert(key, wanted.clone());
        Ok(wanted)
    }

    async fn finish(
        &self,
        zone: &ProtectionZone,
        conclusion: Conclusion,
    ) -> Result<Requeue, ReconcileError> {
        self.tell(zone, &conclusion.status, &conclusion.notes)
            .await?;
        let uid = zone.uid().unwrap_or_default();
        let now = self.process.clock.now();
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(again) = conclusion.again {
            failing.remove(&uid);
            return Ok(Requeue::After(again));
        }
        let reason = conditions::get(&conclusion.status.conditions, types::READY)
            .map(|c| c.reason.clone())
            .unwrap_or_default();
        let entry = failing.entry(uid).or_insert_with(|| (reason.clone(), now));
        if entry.0 != reason {
            *entry = (reason, now);
        }
        let failing_for = Duration::try_from(now.duration_since(entry.1)).unwrap_or_default();
        Ok(Requeue::After(zone::backoff(failing_for)))
    }
}

impl Reconciler<ProtectionZone> for Zones {
    fn name(&self) -> &'static str {
        CONTROLLER
    }

    async fn reconcile(&self, object: Arc<ProtectionZone>) -> Result<Requeue, ReconcileError> {
        Zones::reconcile(self, &object).await
    }
}

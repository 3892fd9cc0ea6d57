//! The live timeline: what changes in a zone, line by line, with progress bars for syncs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use console::style;
use farshore_api::protection_request::ProtectionPhase;
use farshore_api::{
    FailoverRequest, ProtectionGroup, ProtectionRequest, ProtectionZone, ReplicationGroupStatus,
};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tokio::time::Instant;

/// Prints lines with the time since the start.
#[derive(Clone)]
pub struct Timeline {
    begun: Instant,
    bars: MultiProgress,
    said: Arc<Mutex<BTreeMap<String, String>>>,
    syncs: Arc<Mutex<BTreeMap<String, ProgressBar>>>,
}

impl Timeline {
    /// A timeline that counts from `begun`.
    pub fn new(begun: Instant) -> Self {
        Self {
            begun,
            bars: MultiProgress::new(),
            said: Arc::default(),
            syncs: Arc::default(),
        }
    }

    /// A heading.
    pub fn chapter(&self, title: &str) {
        self.bars.suspend(|| println!("\n{}", style(title).bold()));
    }

    /// A line.
    pub fn say(&self, line: &str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.bars
            .suspend(|| println!("{} {line}", style(format!("{seconds:7.2}s")).dim()));
    }

    /// A line about a subject, unless it is the last that was said about it.
    fn news(&self, subject: &str, line: String) {
        let known = self
            .said
            .lock()
            .expect("no panic while held")
            .insert(subject.into(), line.clone());
        if known.as_ref() != Some(&line) {
            self.say(&format!(
                "{} {line}",
                style(format!("{subject:<26}")).cyan()
            ));
        }
    }

    /// Tells what happens in a zone until it is aborted.
    pub async fn follow(self, hub: Client, zone: String) {
        let namespace = farshore_api::names::zone_namespace(&zone);
        loop {
            // A hub that does not answer has no news.
            let _ = self.look(&hub, &namespace).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn look(&self, hub: &Client, namespace: &str) -> kube::Result<()> {
        let all = ListParams::default();
        for zone in Api::<ProtectionZone>::namespaced(hub.clone(), namespace)
            .list(&all)
            .await?
        {
            let status = zone.status.clone().unwrap_or_default();
            if let Some(phase) = status.phase {
                let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
                let why = ready
                    .filter(|c| c.status != "True" && !c.message.is_empty())
                    .map(|c| format!(": {}", first_sentence(&c.message)));
                self.news(
                    &format!("zone {}", zone.name_any()),
                    format!("{phase}{}", why.unwrap_or_default()),
                );
            }
        }
        for request in Api::<ProtectionRequest>::namespaced(hub.clone(), namespace)
            .list(&all)
            .await?
        {
            self.protection(&request);
        }
        for group in Api::<ProtectionGroup>::namespaced(hub.clone(), namespace)
            .list(&all)
            .await?
        {
            let status = group.status.clone().unwrap_or_default();
            if let (Some(state), Some(active)) = (status.current_state, status.active_cluster) {
                self.news(
                    &format!("group {}", group.name_any()),
                    format!("{state} on {active}"),
                );
            }
        }
        for state in Api::<ReplicationGroupStatus>::namespaced(hub.clone(), namespace)
            .list(&all)
            .await?
        {
            if let Some(status) = state.status.and_then(|s| s.rpo_status) {
                self.news("replication", status.to_string());
            }
        }
        for failover in Api::<FailoverRequest>::namespaced(hub.clone(), namespace)
            .list(&all)
            .await?
        {
            let status = failover.status.clone().unwrap_or_default();
            let subject = format!("failover {}", failover.name_any());
            for step in status.steps.iter().filter(|s| s.end_time.is_some()) {
                let key = format!("{subject}/{}", step.name);
                let new = self
                    .said
                    .lock()
                    .expect("no panic while held")
                    .insert(key, String::new())
                    .is_none();
                if new && Some(step.name) != status.state {
                    self.say(&format!(
                        "{} {} {}",
                        style(format!("{subject:<26}")).cyan(),
                        style("✓").green(),
                        step.name
                    ));
                }
            }
            if let Some(state) = status.state {
                self.news(&subject, state.to_string());
            }
        }
        Ok(())
    }

    fn protection(&self, request: &ProtectionRequest) {
        let name = request.name_any();
        let status = request.status.clone().unwrap_or_default();
        let Some(phase) = status.phase else { return };
        self.news(&format!("vm {}", request.vm()), phase.to_string());
        let mut syncs = self.syncs.lock().expect("no panic while held");
        if phase == ProtectionPhase::Syncing {
            let percent = status.sync_percent.unwrap_or(0).clamp(0, 100) as u64;
            let bar = syncs.entry(name.clone()).or_insert_with(|| {
                let look =
                    ProgressStyle::with_template("         {prefix:<26} {bar:40.green} {pos:>3} %")
                        .unwrap_or_else(|_| ProgressStyle::default_bar());
                self.bars.add(
                    ProgressBar::new(100)
                        .with_style(look)
                        .with_prefix(format!("vm {}", request.vm())),
                )
            });
            bar.set_position(percent);
        } else if let Some(bar) = syncs.remove(&name) {
            bar.finish_and_clear();
        }
    }
}

fn first_sentence(text: &str) -> &str {
    text.split(". ").next().unwrap_or(text)
}

//! Which steps a zone needs, from what was seen.

use super::{Claim, Facts, Observed, Site, Step};

/// The steps, in order. A zone that was never deployed needs both clusters usable and free before
/// anything is written; one that was keeps being served wherever that can be done.
pub fn plan(observed: &Observed) -> Vec<Step> {
    if observed.zone_fault().is_some() {
        return Vec::new();
    }
    let usable: Vec<(&str, &Facts)> = observed
        .clusters
        .iter()
        .filter_map(|c| c.probe.as_ref().ok().map(|facts| (c.name.as_str(), facts)))
        .collect();
    if !observed.deployed() {
        if usable.len() < observed.clusters.len() {
            return Vec::new();
        }
        if usable
            .iter()
            .any(|(_, facts)| matches!(facts.claim, Claim::Foreign { .. } | Claim::Terminating))
        {
            // What an earlier cycle claimed before it was cut short.
            return usable
                .iter()
                .filter(|(_, facts)| facts.claim == Claim::Held)
                .map(|(name, _)| Step::GiveBack((*name).to_owned()))
                .collect();
        }
    }
    let mut steps = Vec::new();
    // In the order of the clusters' own identity: two zones that want the same two clusters meet at
    // the same one first, so neither ends with half of what the other needs.
    let mut free: Vec<(&str, &str)> = usable
        .iter()
        .filter(|(_, f)| f.claim == Claim::Free)
        .map(|(name, f)| (f.uid.as_str(), *name))
        .collect();
    free.sort_unstable();
    if !free.is_empty() {
        steps.push(Step::Claim(
            free.into_iter().map(|(_, name)| name.to_owned()).collect(),
        ));
    }
    let mut sites = vec![Site::Hub];
    sites.extend(
        usable
            .iter()
            .filter(|(_, facts)| matches!(facts.claim, Claim::Held | Claim::Free))
            .map(|(name, _)| Site::Cluster((*name).to_owned())),
    );
    steps.extend(sites.iter().cloned().map(Step::ApplyCrds));
    steps.extend(sites.into_iter().map(Step::Deploy));
    steps.push(Step::CreatePolicy);
    steps
}

//! Hooks around a failover: Jobs on the target cluster, one after the other [S1].

use farshore_api::meta::{annotations, labels};
use farshore_api::names;
use farshore_api::protection_group::{Hook, Hooks, OnFailure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use super::observed::Observed;
use super::step::Step;
use crate::Seen;

/// Before the source is stopped, or after the target runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Before; a failure aborts unless the hook says otherwise.
    Pre,
    /// After; a failure is passed over unless the hook says otherwise.
    Post,
}

impl When {
    /// As it stands in a Job's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pre => "pre",
            Self::Post => "post",
        }
    }

    fn on_failure(self, hook: &Hook) -> OnFailure {
        hook.on_failure.unwrap_or(match self {
            Self::Pre => OnFailure::Abort,
            Self::Post => OnFailure::Continue,
        })
    }
}

/// How far the hooks are.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// All have ended; these failed and were passed over.
    Ended { passed_over: Vec<String> },
    /// One runs, or is to be created by the step.
    Running {
        hook: String,
        fact: String,
        step: Option<Step>,
        passed_over: Vec<String>,
    },
    /// One failed, and its failure aborts.
    Aborted { failure: String },
}

/// The hooks of this run: the request's in place of the group's.
pub fn of(seen: &Observed, when: When) -> &[Hook] {
    let group = seen.group.as_ref().and_then(|g| g.spec.hooks.as_ref());
    let hooks: Option<&Hooks> = seen.request.spec.hooks.as_ref().or(group);
    match (hooks, when) {
        (None, _) => &[],
        (Some(hooks), When::Pre) => &hooks.pre_failover,
        (Some(hooks), When::Post) => &hooks.post_failover,
    }
}

/// Follows the hooks since the moment at which their state was entered.
pub fn follow(seen: &Observed, when: When, since: Timestamp, now: Timestamp) -> Progress {
    let mut passed_over = Vec::new();
    // A Job that cannot even be created must end too: each hook has its time after those before it.
    let mut latest_start = since;
    for (index, hook) in of(seen, when).iter().enumerate() {
        let timeout = SignedDuration::from_secs(i64::from(hook.timeout_seconds));
        latest_start += timeout;
        let name = names::hook_job(seen.name(), seen.uid(), when.as_str(), index);
        let title = format!(
            "Job {}/{name} (cluster {})",
            hook.namespace, seen.target.cluster
        );
        let running = |fact: String, step| Progress::Running {
            hook: hook.name.clone(),
            fact,
            step,
            passed_over: passed_over.clone(),
        };
        let failure = match seen.jobs.get(&name) {
            None => return running(format!("{title} is next"), None),
            Some(Seen::Unknown(why)) => {
                return running(format!("{title} cannot be read ({why})"), None);
            }
            Some(Seen::Absent) if now >= latest_start => {
                format!("{title} could not be created{}", trouble(seen))
            }
            Some(Seen::Absent) => {
                let step = Step::CreateHookJob {
                    cluster: seen.target.cluster.clone(),
                    namespace: hook.namespace.clone(),
                    name: name.clone(),
                    job: job(seen, hook, &name, now + timeout),
                };
                return running(
                    format!("{title} is to be created{}", trouble(seen)),
                    Some(step),
                );
            }
            Some(Seen::Present(job)) => match outcome(job) {
                Some(Ok(())) => continue,
                Some(Err(why)) => format!("{title} failed: {why}"),
                None if deadline(job).unwrap_or(latest_start) <= now => {
                    format!("{title} did not end within {} s", hook.timeout_seconds)
                }
                None => return running(format!("{title} runs"), None),
            },
        };
        let failure = format!("hook {}: {failure}", hook.name);
        match when.on_failure(hook) {
            OnFailure::Abort => return Progress::Aborted { failure },
            OnFailure::Continue => passed_over.push(failure),
        }
    }
    Progress::Ended { passed_over }
}

/// Hooks that have not ended, when there is no time left for them: the names of those that may be
/// passed over, or the failure of the first that may not.
pub fn cut_off(seen: &Observed, when: When) -> Result<Vec<String>, String> {
    let mut passed_over = Vec::new();
    for (index, hook) in of(seen, when).iter().enumerate() {
        let name = names::hook_job(seen.name(), seen.uid(), when.as_str(), index);
        let ended = seen
            .jobs
            .get(&name)
            .and_then(Seen::present)
            .and_then(outcome);
        if ended.is_some() {
            continue;
        }
        let failure = format!("hook {}: had not ended when the budget was over", hook.name);
        match when.on_failure(hook) {
            OnFailure::Abort => return Err(failure),
            OnFailure::Continue => passed_over.push(failure),
        }
    }
    Ok(passed_over)
}

fn trouble(seen: &Observed) -> String {
    seen.trouble
        .as_ref()
        .map_or_else(String::new, |t| format!(" ({t})"))
}

/// Success, failure with its reason, or not ended.
fn outcome(job: &Job) -> Option<Result<(), String>> {
    let conditions = job.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ended = |type_: &str| {
        let mut all = conditions.into_iter().flatten();
        all.find(|c| c.type_ == type_ && c.status == "True")
    };
    if ended("Complete").is_some() {
        return Some(Ok(()));
    }
    let failed = ended("Failed")?;
    let reason = failed
        .reason
        .clone()
        .unwrap_or_else(|| "no reason given".into());
    Some(Err(match &failed.message {
        Some(message) if !message.is_empty() => format!("{reason}: {message}"),
        _ => reason,
    }))
}

/// When the hook counts as failed, by the manager's clock, as its Job carries it.
fn deadline(job: &Job) -> Option<Timestamp> {
    let annotations = job.metadata.annotations.as_ref()?;
    annotations.get(annotations::HOOK_DEADLINE)?.parse().ok()
}

/// The Job of a hook, from its template. It ends by itself when the hook's time is over, and stays
/// long enough to be read by this failover and by a person.
fn job(seen: &Observed, hook: &Hook, name: &str, until: Timestamp) -> Value {
    let mut job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": hook.job_template.get("metadata").cloned().unwrap_or_else(|| json!({})),
        "spec": hook.job_template.get("spec").cloned().unwrap_or_else(|| json!({})),
    });
    let until = Timestamp::from_second(until.as_second()).unwrap_or(until);
    let zone = seen.zone.metadata.name.as_deref().unwrap_or_default();
    let metadata = &mut job["metadata"];
    metadata["name"] = name.into();
    metadata["namespace"] = hook.namespace.as_str().into();
    metadata["labels"][labels::ZONE] = zone.into();
    metadata["labels"][labels::PROTECTION_GROUP] = seen.group_name().into();
    metadata["labels"][labels::FAILOVER_REQUEST] = label_value(seen.name()).into();
    metadata["annotations"][annotations::HOOK_DEADLINE] = until.to_string().into();
    let spec = &mut job["spec"];
    let timeout = i64::from(hook.timeout_seconds);
    let own = spec["activeDeadlineSeconds"].as_i64().unwrap_or(timeout);
    spec["activeDeadlineSeconds"] = own.min(timeout).into();
    let keep = spec["ttlSecondsAfterFinished"].as_i64().unwrap_or(86_400);
    spec["ttlSecondsAfterFinished"] = keep.max(7_200).into();
    job
}

/// A label holds at most 63 characters and ends with a letter or digit.
fn label_value(name: &str) -> String {
    let cut: String = name.chars().take(63).collect();
    cut.trim_end_matches(['-', '.', '_']).to_string()
}

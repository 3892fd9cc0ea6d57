//! The cells of pods, which sum up many containers in one word.

use jiff::Timestamp;
use serde_json::Value;

use super::age::{human_duration, read};

/// Ready containers, status and restarts of a pod.
pub(super) struct Summary {
    pub ready: String,
    pub status: String,
    pub restarts: String,
}

/// Sums up a pod as `kubectl get pods` shows it.
pub(super) fn summary(pod: &Value, now: Timestamp) -> Summary {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let phase = text(&status["phase"]);
    let mut reason = match text(&status["reason"]) {
        "" => phase.to_string(),
        given => given.to_string(),
    };
    let gated = list(&status["conditions"])
        .iter()
        .any(|c| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated");
    if gated {
        reason = "SchedulingGated".to_string();
    }

    let mut total = list(&spec["containers"]).len();
    let mut ready = 0;
    let mut restarts = 0;
    let mut sidecar_restarts = 0;
    let mut last_restart: Option<Timestamp> = None;
    let mut sidecar_last_restart: Option<Timestamp> = None;

    let is_sidecar = |name: &Value| {
        list(&spec["initContainers"])
            .iter()
            .any(|c| &c["name"] == name && c["restartPolicy"] == "Always")
    };
    total += list(&spec["initContainers"])
        .iter()
        .filter(|c| c["restartPolicy"] == "Always")
        .count();

    let mut initializing = false;
    for (n, container) in list(&status["initContainerStatuses"]).iter().enumerate() {
        let sidecar = is_sidecar(&container["name"]);
        let ended = read(&container["lastState"]["terminated"]["finishedAt"]);
        restarts += count(&container["restartCount"]);
        last_restart = last_restart.max(ended);
        if sidecar {
            sidecar_restarts += count(&container["restartCount"]);
            sidecar_last_restart = sidecar_last_restart.max(ended);
        }
        let terminated = &container["state"]["terminated"];
        let waiting = text(&container["state"]["waiting"]["reason"]);
        if terminated.is_object() && count(&terminated["exitCode"]) == 0 {
            continue;
        }
        if sidecar && container["started"] == true {
            ready += usize::from(container["ready"] == true);
            continue;
        }
        reason = if terminated.is_object() {
            format!("Init:{}", end_of(terminated))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{n}/{}", list(&spec["initContainers"]).len())
        };
        initializing = true;
        break;
    }

    let initialized = condition(status, "Initialized");
    if !initializing || initialized {
        restarts = sidecar_restarts;
        last_restart = sidecar_last_restart;
        let mut has_running = false;
        for container in list(&status["containerStatuses"]).iter().rev() {
            restarts += count(&container["restartCount"]);
            last_restart =
                last_restart.max(read(&container["lastState"]["terminated"]["finishedAt"]));
            let waiting = text(&container["state"]["waiting"]["reason"]);
            let terminated = &container["state"]["terminated"];
            if !waiting.is_empty() {
                reason = waiting.to_string();
            } else if terminated.is_object() {
                reason = end_of(terminated);
            } else if container["ready"] == true && container["state"]["running"].is_object() {
                has_running = true;
                ready += 1;
            }
        }
        if reason == "Completed" && has_running {
            reason = if condition(status, "Ready") {
                "Running".to_string()
            } else {
                "NotReady".to_string()
            };
        }
    }

    if pod["metadata"]["deletionTimestamp"].is_string() {
        if status["reason"] == "NodeLost" {
            reason = "Unknown".to_string();
        } else if phase != "Succeeded" && phase != "Failed" {
            reason = "Terminating".to_string();
        }
    }
    let restarts = match last_restart {
        Some(last) if restarts != 0 => {
            let ago = human_duration(now.as_second() - last.as_second());
            format!("{restarts} ({ago} ago)")
        }
        _ => restarts.to_string(),
    };
    Summary {
        ready: format!("{ready}/{total}"),
        status: reason,
        restarts,
    }
}

/// How a container ended: the reason, or the signal or exit code if there is none.
fn end_of(terminated: &Value) -> String {
    match (text(&terminated["reason"]), count(&terminated["signal"])) {
        ("", 0) => format!("ExitCode:{}", count(&terminated["exitCode"])),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_string(),
    }
}

fn condition(status: &Value, kind: &str) -> bool {
    list(&status["conditions"])
        .iter()
        .any(|c| c["type"] == kind && c["status"] == "True")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

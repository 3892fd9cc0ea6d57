//! Whether a Deployment or DaemonSet runs as its spec says.

use serde_json::Value;

/// What is still waited for, as a clause, or `None` when the roll-out is complete.
pub fn pending(live: &Value) -> Option<String> {
    let number = |path: &str| live.pointer(path).and_then(Value::as_i64);
    let kind = live["kind"].as_str().unwrap_or_default();
    if !matches!(kind, "Deployment" | "DaemonSet") {
        return None;
    }
    let metadata = &live["metadata"];
    let name = format!(
        "{kind} {}/{}",
        metadata["namespace"].as_str().unwrap_or_default(),
        metadata["name"].as_str().unwrap_or_default()
    );
    if number("/status/observedGeneration").unwrap_or(0)
        < number("/metadata/generation").unwrap_or(1)
    {
        return Some(format!("{name} has not been picked up yet"));
    }
    let (wanted, current, ready) = match kind {
        "Deployment" => (
            number("/spec/replicas").unwrap_or(1),
            number("/status/updatedReplicas"),
            number("/status/availableReplicas"),
        ),
        _ => (
            number("/status/desiredNumberScheduled").unwrap_or(0),
            number("/status/updatedNumberScheduled"),
            number("/status/numberReady"),
        ),
    };
    let (current, ready) = (current.unwrap_or(0), ready.unwrap_or(0));
    if current < wanted {
        return Some(format!(
            "{name} has {current} of {wanted} pods of the new version"
        ));
    }
    (ready < wanted).then(|| format!("{name} has {ready} of {wanted} pods ready"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn live(kind: &str, spec: Value, status: Value) -> Value {
        json!({ "kind": kind, "metadata": { "namespace": "ns", "name": "x", "generation": 2 }, "spec": spec, "status": status })
    }

    #[test]
    fn a_rollout_waits_for_the_controller_the_new_pods_and_their_readiness() {
        let cases = [
            (
                "Deployment",
                json!({}),
                json!({}),
                Some("Deployment ns/x has not been picked up yet"),
            ),
            (
                "Deployment",
                json!({}),
                json!({ "observedGeneration": 1 }),
                Some("Deployment ns/x has not been picked up yet"),
            ),
            (
                "Deployment",
                json!({ "replicas": 2 }),
                json!({ "observedGeneration": 2, "updatedReplicas": 1 }),
                Some("Deployment ns/x has 1 of 2 pods of the new version"),
            ),
            (
                "Deployment",
                json!({}),
                json!({ "observedGeneration": 2, "updatedReplicas": 1 }),
                Some("Deployment ns/x has 0 of 1 pods ready"),
            ),
            (
                "Deployment",
                json!({}),
                json!({ "observedGeneration": 2, "updatedReplicas": 1, "availableReplicas": 1 }),
                None,
            ),
            (
                "DaemonSet",
                json!({}),
                json!({ "observedGeneration": 2, "desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberReady": 2 }),
                Some("DaemonSet ns/x has 2 of 3 pods ready"),
            ),
            (
                "DaemonSet",
                json!({}),
                json!({ "observedGeneration": 2, "desiredNumberScheduled": 0 }),
                None,
            ),
            ("ServiceAccount", json!({}), json!({}), None),
        ];
        for (kind, spec, status, expected) in cases {
            let object = live(kind, spec, status);
            assert_eq!(pending(&object).as_deref(), expected, "{object}");
        }
    }
}

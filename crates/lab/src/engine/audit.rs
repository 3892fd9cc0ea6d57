//! The audit log of a real API server, read as the embedded server's request log.

use std::collections::BTreeSet;

use farshore_apiserver::LogEntry;
use serde_json::Value;

/// What is written to it: of writes the answer too, since only its resourceVersion tells whether
/// anything changed; of Leases and of the control plane's own reads less.
pub const POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver"]
  verbs: [get, list, watch]
- level: Metadata
  resources: [{group: coordination.k8s.io, resources: [leases]}]
- level: RequestResponse
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
"#;

/// The entries of a log that start at byte `mark` or later. `index` is the place of an entry in bytes.
pub fn read(log: &str, mark: u64) -> Vec<LogEntry> {
    let mut seen = BTreeSet::new();
    let mut entries = Vec::new();
    let mut place = 0;
    for line in log.split_inclusive('\n') {
        let index = place;
        place += line.len() as u64;
        // The last line may still be being written.
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if let Some(entry) = entry(&event, index, &mut seen)
            && index >= mark
        {
            entries.push(entry);
        }
    }
    entries
}

fn entry(event: &Value, index: u64, seen: &mut BTreeSet<String>) -> Option<LogEntry> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let verb = text(&event["verb"]);
    // A watch is told when it starts and again when it ends.
    if verb == "watch" && event["stage"] == "ResponseComplete" {
        return None;
    }
    let object = &event["objectRef"];
    let user_agent = text(&event["userAgent"]);
    let mut entry = LogEntry {
        index,
        user: text(&event["user"]["username"]),
        verb,
        group: text(&object["apiGroup"]),
        resource: text(&object["resource"]),
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
        subresource: text(&object["subresource"]),
        code: event["responseStatus"]["code"]
            .as_u64()
            .and_then(|code| code.try_into().ok())
            .unwrap_or_default(),
        changed: false,
        revision: 0,
        manager: String::new(),
        user_agent,
    };
    if entry.is_write() {
        entry.manager = manager(&text(&event["requestURI"])).unwrap_or_else(|| {
            entry
                .user_agent
                .split('/')
                .next()
                .unwrap_or_default()
                .into()
        });
        entry.changed = (200..300).contains(&entry.code) && changed(&event["responseObject"], seen);
        entry.revision = revision(&event["responseObject"]);
    }
    Some(entry)
}

/// Field manager in a request's query.
fn manager(uri: &str) -> Option<String> {
    let (_, query) = uri.split_once('?')?;
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("fieldManager="))
        .map(str::to_owned)
}

fn revision(answer: &Value) -> u64 {
    answer["metadata"]["resourceVersion"]
        .as_str()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

/// Whether an answer shows a version that no earlier answer showed. A write that changes nothing is
/// answered with the object as it was.
fn changed(answer: &Value, seen: &mut BTreeSet<String>) -> bool {
    if answer["kind"] == "Status" {
        return answer["status"] == "Success";
    }
    if let Some(items) = answer["items"].as_array() {
        return !items.is_empty();
    }
    if answer.is_null() {
        return true; // logged without its answer
    }
    let version = revision(answer);
    if version == 0 {
        return false; // reviews and tokens are not stored
    }
    // Versions are unique in a cluster: the store counts them.
    seen.insert(version.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: &str, uri: &str, version: &str) -> String {
        let event = serde_json::json!({
            "stage": "ResponseComplete", "requestURI": uri, "verb": verb, "user": { "username": "u" },
            "userAgent": "curl/8", "responseStatus": { "code": 200 },
            "objectRef": { "resource": "configmaps", "namespace": "a", "name": "b" },
            "responseObject": { "kind": "ConfigMap", "metadata": { "resourceVersion": version } },
        });
        format!("{event}\n")
    }

    #[test]
    fn a_write_that_changed_nothing_is_told_from_one_that_did() {
        let log = [
            line("create", "/api/v1/namespaces/a/configmaps", "7"),
            line(
                "patch",
                "/api/v1/namespaces/a/configmaps/b?force=true&fieldManager=me",
                "7",
            ),
            line(
                "patch",
                "/api/v1/namespaces/a/configmaps/b?fieldManager=me",
                "9",
            ),
        ];
        let entries = read(&log.concat(), 0);
        let told: Vec<_> = entries
            .iter()
            .map(|e| (e.manager.as_str(), e.changed, e.revision))
            .collect();
        assert_eq!(told, [("curl", true, 7), ("me", false, 7), ("me", true, 9)]);
    }

    #[test]
    fn a_mark_hides_what_was_before_it_but_not_what_it_taught() {
        let first = line("create", "/x", "7");
        let log = format!("{first}{}{}", line("patch", "/x", "7"), "{\"half");
        let entries = read(&log, first.len() as u64);
        assert_eq!(entries.len(), 1);
        assert!(!entries[0].changed);
    }
}

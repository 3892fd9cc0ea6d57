//! What cells of built-in kinds are read from: fields, and words made of several fields.

use jiff::Timestamp;
use serde_json::Value;

use super::age::{read, since};

pub(super) fn string<'a>(o: &'a Value, pointer: &str) -> &'a str {
    o.pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(super) fn field(o: &Value, pointer: &str) -> Value {
    string(o, pointer).into()
}

pub(super) fn count(o: &Value, pointer: &str) -> i64 {
    o.pointer(pointer)
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

pub(super) fn list<'a>(o: &'a Value, pointer: &str) -> &'a [Value] {
    o.pointer(pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

pub(super) fn size(o: &Value, pointer: &str) -> usize {
    match o.pointer(pointer) {
        Some(Value::Array(items)) => items.len(),
        Some(Value::Object(map)) => map.len(),
        _ => 0,
    }
}

pub(super) fn either<'a>(o: &'a Value, first: &str, second: &str) -> &'a Value {
    match o.pointer(first) {
        Some(value) if !value.is_null() => value,
        _ => o.pointer(second).unwrap_or(&Value::Null),
    }
}

pub(super) fn or(o: &Value, pointer: &str, missing: &str) -> Value {
    match o.pointer(pointer) {
        Some(Value::String(text)) if !text.is_empty() => text.as_str().into(),
        Some(Value::Number(n)) => n.to_string().into(),
        _ => missing.into(),
    }
}

pub(super) fn or_none(o: &Value, pointer: &str) -> Value {
    or(o, pointer, "<none>")
}

pub(super) fn or_unknown(o: &Value, pointer: &str) -> Value {
    or(o, pointer, "<unknown>")
}

pub(super) fn or_na(o: &Value, pointer: &str) -> Value {
    or(o, pointer, "N/A")
}

pub(super) fn or_unset(text: String) -> String {
    if text.is_empty() {
        "<unset>".to_string()
    } else {
        text
    }
}

pub(super) fn join(items: &[Value], pointer: &str) -> String {
    let parts: Vec<String> = items
        .iter()
        .filter_map(|item| match item.pointer(pointer)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        })
        .collect();
    parts.join(",")
}

pub(super) fn labels(o: &Value, pointer: &str) -> String {
    let pairs: Vec<String> = o
        .pointer(pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() {
        "<none>".to_string()
    } else {
        pairs.join(",")
    }
}

pub(super) fn selector(o: &Value, pointer: &str) -> String {
    let Some(selector) = o.pointer(pointer) else {
        return "<none>".to_string();
    };
    let mut parts = match labels(selector, "/matchLabels") {
        none if none == "<none>" => Vec::new(),
        labels => vec![labels],
    };
    for wanted in list(selector, "/matchExpressions") {
        let name = string(wanted, "/key");
        let values = join(list(wanted, "/values"), "");
        parts.push(match string(wanted, "/operator") {
            "In" => format!("{name} in ({values})"),
            "NotIn" => format!("{name} notin ({values})"),
            "DoesNotExist" => format!("!{name}"),
            _ => name.to_string(),
        });
    }
    if parts.is_empty() {
        "<none>".to_string()
    } else {
        parts.join(",")
    }
}

pub(super) fn ready_of(o: &Value, pointer: &str) -> String {
    let wanted = o.pointer("/spec/replicas").and_then(Value::as_i64);
    format!("{}/{}", count(o, pointer), wanted.unwrap_or(1))
}

pub(super) fn phase(o: &Value) -> String {
    if o["metadata"]["deletionTimestamp"].is_string() {
        "Terminating".to_string()
    } else {
        string(o, "/status/phase").to_string()
    }
}

pub(super) fn access_modes(o: &Value, pointer: &str) -> String {
    let modes = list(o, pointer);
    let short: Vec<&str> = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ]
    .into_iter()
    .filter(|(mode, _)| modes.iter().any(|m| m == mode))
    .map(|(_, short)| short)
    .collect();
    short.join(",")
}

pub(super) fn readiness_gates(o: &Value) -> String {
    let gates = list(o, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_string();
    }
    let passed = gates.iter().filter(|gate| {
        list(o, "/status/conditions")
            .iter()
            .any(|c| c["type"] == gate["conditionType"] && c["status"] == "True")
    });
    format!("{}/{}", passed.count(), gates.len())
}

pub(super) fn node_status(o: &Value) -> String {
    let ready = list(o, "/status/conditions")
        .iter()
        .find(|c| c["type"] == "Ready");
    let mut status = match ready {
        Some(c) if c["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_string();
    if o["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    status
}

pub(super) fn node_roles(o: &Value) -> String {
    let labels = o.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| {
            let role = name.strip_prefix("node-role.kubernetes.io/");
            let old_role = || (name == "kubernetes.io/role").then(|| value.as_str())?;
            role.or_else(old_role).filter(|role| !role.is_empty())
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() {
        "<none>".to_string()
    } else {
        roles.join(",")
    }
}

pub(super) fn node_address(o: &Value, kind: &str) -> String {
    list(o, "/status/addresses")
        .iter()
        .find(|a| a["type"] == kind)
        .map_or("<none>", |a| string(a, "/address"))
        .to_string()
}

pub(super) fn load_balancer(o: &Value) -> Vec<String> {
    list(o, "/status/loadBalancer/ingress")
        .iter()
        .map(|i| match string(i, "/ip") {
            "" => string(i, "/hostname").to_string(),
            ip => ip.to_string(),
        })
        .collect()
}

pub(super) fn external_ip(o: &Value) -> String {
    let external = join(list(o, "/spec/externalIPs"), "");
    match string(o, "/spec/type") {
        "ExternalName" => string(o, "/spec/externalName").to_string(),
        "LoadBalancer" => {
            let mut all = load_balancer(o);
            if !external.is_empty() {
                all.push(external);
            }
            match all.is_empty() {
                true => "<pending>".to_string(),
                false => all.join(","),
            }
        }
        _ if external.is_empty() => "<none>".to_string(),
        _ => external,
    }
}

pub(super) fn service_ports(o: &Value) -> String {
    let ports: Vec<String> = list(o, "/spec/ports")
        .iter()
        .map(|p| {
            let protocol = match string(p, "/protocol") {
                "" => "TCP",
                given => given,
            };
            match count(p, "/nodePort") {
                0 => format!("{}/{protocol}", count(p, "/port")),
                node => format!("{}:{node}/{protocol}", count(p, "/port")),
            }
        })
        .collect();
    if ports.is_empty() {
        "<none>".to_string()
    } else {
        ports.join(",")
    }
}

pub(super) fn endpoints(o: &Value) -> String {
    let mut all = Vec::new();
    for subset in list(o, "/subsets") {
        for address in list(subset, "/addresses") {
            let ip = string(address, "/ip");
            let ports = list(subset, "/ports");
            if ports.is_empty() {
                all.push(ip.to_string());
            }
            all.extend(ports.iter().map(|p| format!("{ip}:{}", count(p, "/port"))));
        }
    }
    match all.len() {
        0 => "<none>".to_string(),
        1..=3 => all.join(","),
        n => format!("{} + {} more...", all[..3].join(","), n - 3),
    }
}

pub(super) fn job_status(o: &Value) -> &'static str {
    let has = |kind: &str| {
        list(o, "/status/conditions")
            .iter()
            .any(|c| c["type"] == kind && c["status"] == "True")
    };
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if o["metadata"]["deletionTimestamp"].is_string() {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

pub(super) fn last_seen(o: &Value, now: Timestamp) -> String {
    let last = either(o, "/lastTimestamp", "/deprecatedLastTimestamp");
    let first = either(o, "/firstTimestamp", "/deprecatedFirstTimestamp");
    let candidates = [&o["series"]["lastObservedTime"], last, first];
    let seen = candidates
        .into_iter()
        .find(|time| read(time).is_some())
        .unwrap_or(&o["eventTime"]);
    since(seen, now)
}

pub(super) fn event_source(o: &Value) -> String {
    let source = either(o, "/source", "/deprecatedSource");
    let component = match string(source, "/component") {
        "" => either(o, "/reportingComponent", "/reportingController")
            .as_str()
            .unwrap_or_default(),
        given => given,
    };
    match string(source, "/host") {
        "" => component.to_string(),
        host => format!("{component}, {host}"),
    }
}

//! Whether a status says anything new.

use serde::Serialize;
use serde_json::Value;

/// Moments that say when something was looked at or changed, not what it is.
const MOMENTS: [&str; 4] = [
    "lastTransitionTime",
    "lastProbeTime",
    "lastPollTime",
    "lastChangeTime",
];

/// Whether two statuses differ in anything but moments. Absent, null and (at the top) `{}` are the
/// same.
pub fn status_differs(old: &impl Serialize, new: &impl Serialize) -> bool {
    match (serde_json::to_value(old), serde_json::to_value(new)) {
        (Ok(old), Ok(new)) => timeless(old) != timeless(new),
        _ => true,
    }
}

fn timeless(mut status: Value) -> Value {
    strip(&mut status);
    if status.is_null() {
        Value::Object(serde_json::Map::new())
    } else {
        status
    }
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, value| !MOMENTS.contains(&name.as_str()) && !value.is_null());
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::status_differs;

    #[test]
    fn moments_alone_are_no_difference() {
        let old =
            json!({"conditions": [{"type": "A", "status": "True", "lastTransitionTime": "1"}]});
        let new = json!({"conditions": [{"type": "A", "status": "True", "lastTransitionTime": "2"}], "message": null});
        assert!(!status_differs(&old, &new));
        assert!(status_differs(
            &old,
            &json!({"conditions": [{"type": "A", "status": "False", "lastTransitionTime": "1"}]})
        ));
    }

    #[test]
    fn no_status_equals_an_empty_one() {
        assert!(!status_differs(&None::<u8>, &json!({})));
    }
}

//! Aggregated ClusterRoles: the rules a controller writes into them.

use serde_json::Value;

use super::metadata;
use crate::selector::Labels;

/// The rules an aggregated role is to have, if they are not the ones it has: those of all ClusterRoles that its
/// selectors select, selector by selector and then by name, each rule once. `all` is sorted by name.
pub fn rules_to_write(role: &Value, all: &[&Value]) -> Option<Vec<Value>> {
    let selectors = role
        .pointer("/aggregationRule/clusterRoleSelectors")?
        .as_array()?;
    let mut rules: Vec<Value> = Vec::new();
    for selector in selectors {
        // A selector that cannot be read selects nothing.
        let Ok(selector) = Labels::from_label_selector(selector) else {
            continue;
        };
        for other in all {
            let itself = metadata(other, "name") == metadata(role, "name");
            if itself || !selector.matches(other.pointer("/metadata/labels")) {
                continue;
            }
            let theirs = other.get("rules").and_then(Value::as_array);
            for rule in theirs.into_iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    let has = role.get("rules").and_then(Value::as_array);
    (has.map_or(&[] as &[Value], Vec::as_slice) != rules).then_some(rules)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_rule_is_written_once_and_an_unchanged_role_is_left_alone() {
        let rule = |r: &str| json!({"verbs": ["get"], "apiGroups": [""], "resources": [r]});
        let part = |name: &str, rules: Value| json!({"metadata": {"name": name, "labels": {"to": "sum"}}, "rules": rules});
        let (a, b) = (
            part("a", json!([rule("pods")])),
            part("b", json!([rule("pods"), rule("nodes")])),
        );
        let mut sum = json!({"metadata": {"name": "sum", "labels": {"to": "sum"}}, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]}, "rules": [rule("old")]});
        let rules = rules_to_write(&sum, &[&a, &b, &sum]).unwrap();
        assert_eq!(rules, [rule("pods"), rule("nodes")]);
        sum["rules"] = json!(rules);
        assert_eq!(rules_to_write(&sum, &[&a, &b, &sum]), None);
        assert_eq!(rules_to_write(&a, &[&a, &b, &sum]), None);
    }
}

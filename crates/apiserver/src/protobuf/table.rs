//! The table of messages, read once from `messages.txt`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// One message.
#[derive(Debug)]
pub struct Shape {
    /// Its fields.
    pub fields: Vec<Field>,
}

/// One field of a message.
#[derive(Debug)]
pub struct Field {
    /// Its number on the wire.
    pub number: u64,
    /// Its name in JSON.
    pub name: &'static str,
    /// Whether it is a list.
    pub list: bool,
    /// Whether it is a map from strings.
    pub map: bool,
    /// The kind of its value, item or map value.
    pub kind: Kind,
    /// Whether a zero value is shown.
    pub keep_zero: bool,
    /// Whether its fields stand in its place.
    pub inline: bool,
}

/// The kind of a value.
#[derive(Debug)]
pub enum Kind {
    String,
    Int,
    Bool,
    Bytes,
    /// RFC 3339 in seconds.
    Time,
    /// RFC 3339 in microseconds.
    MicroTime,
    /// Text with a unit.
    Quantity,
    IntOrString,
    /// JSON inside a byte string.
    Raw,
    /// A list of strings.
    Strings,
    Message(&'static str),
}

fn all() -> &'static BTreeMap<&'static str, Shape> {
    static TABLE: OnceLock<BTreeMap<&'static str, Shape>> = OnceLock::new();
    TABLE.get_or_init(|| {
        include_str!("messages.txt")
            .lines()
            .filter_map(parse)
            .collect()
    })
}

fn parse(line: &'static str) -> Option<(&'static str, Shape)> {
    if line.starts_with('#') {
        return None;
    }
    let mut words = line.split(' ');
    let name = words.next()?;
    Some((
        name,
        Shape {
            fields: words.filter_map(parse_field).collect(),
        },
    ))
}

fn parse_field(word: &'static str) -> Option<Field> {
    let mut parts = word.splitn(3, ':');
    let (number, name, mut kind) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
    let (mut list, mut map, mut keep_zero, mut inline) = (false, false, false, false);
    if let Some(rest) = kind.strip_prefix("[]") {
        (kind, list) = (rest, true);
    } else if let Some(rest) = kind.strip_prefix("{}") {
        (kind, map) = (rest, true);
    }
    if let Some(rest) = kind.strip_suffix(['?', '!']) {
        (kind, keep_zero) = (rest, true);
    } else if let Some(rest) = kind.strip_suffix('+') {
        (kind, inline) = (rest, true);
    }
    let kind = match kind {
        "s" => Kind::String,
        "i" => Kind::Int,
        "b" => Kind::Bool,
        "B" => Kind::Bytes,
        "Time" => Kind::Time,
        "MicroTime" => Kind::MicroTime,
        "Quantity" => Kind::Quantity,
        "IntOrString" => Kind::IntOrString,
        "RawExtension" | "FieldsV1" => Kind::Raw,
        "ExtraValue" => Kind::Strings,
        message => Kind::Message(message),
    };
    Some(Field {
        number,
        name,
        list,
        map,
        kind,
        keep_zero,
        inline,
    })
}

/// The message of this name.
pub fn shape(name: &str) -> Option<&'static Shape> {
    all().get(name)
}

/// The message that an object of this kind is.
pub fn root(api_version: &str, kind: &str) -> Option<&'static Shape> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kinds: &[&str] = match group {
        _ if kind == "DeleteOptions" => &["DeleteOptions"],
        "" => &[
            "Namespace",
            "ConfigMap",
            "Secret",
            "ServiceAccount",
            "Service",
            "ResourceQuota",
            "LimitRange",
            "Pod",
            "PersistentVolumeClaim",
            "PersistentVolume",
            "Event",
            "Endpoints",
            "Binding",
            "ReplicationController",
        ],
        "apps" => &["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"],
        "batch" => &["Job", "CronJob"],
        "rbac.authorization.k8s.io" => {
            &["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"]
        }
        "authentication.k8s.io" => &["TokenRequest", "TokenReview", "SelfSubjectReview"],
        "authorization.k8s.io" => &[
            "SelfSubjectAccessReview",
            "SubjectAccessReview",
            "LocalSubjectAccessReview",
            "SelfSubjectRulesReview",
        ],
        "coordination.k8s.io" => &["Lease"],
        "events.k8s.io" if kind == "Event" => return shape("events.Event"),
        "networking.k8s.io" => &["Ingress", "IngressClass", "NetworkPolicy"],
        "policy" => &["PodDisruptionBudget", "Eviction"],
        "scheduling.k8s.io" => &["PriorityClass"],
        "storage.k8s.io" => &["StorageClass"],
        "autoscaling" if kind == "HorizontalPodAutoscaler" => {
            return shape(if version == "v1" {
                "as1.HorizontalPodAutoscaler"
            } else {
                "as2.HorizontalPodAutoscaler"
            });
        }
        "autoscaling" => &["Scale"],
        _ => &[],
    };
    if kinds.contains(&kind) {
        shape(kind)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_that_a_field_names_is_in_the_table() {
        let table = all();
        assert!(table.len() > 200);
        for (name, shape) in table {
            let mut numbers: Vec<u64> = shape.fields.iter().map(|f| f.number).collect();
            numbers.dedup();
            assert_eq!(numbers.len(), shape.fields.len(), "{name}: a number twice");
            for field in &shape.fields {
                if let Kind::Message(of) = field.kind {
                    assert!(table.contains_key(of), "{name}.{}: {of}", field.name);
                }
            }
        }
    }

    #[test]
    fn no_message_contains_itself() {
        fn walk(name: &'static str, path: &mut Vec<&'static str>) {
            assert!(!path.contains(&name), "{path:?} {name}");
            path.push(name);
            for field in shape(name).into_iter().flat_map(|s| &s.fields) {
                if let Kind::Message(of) = field.kind {
                    walk(of, path);
                }
            }
            path.pop();
        }
        all().keys().for_each(|name| walk(name, &mut Vec::new()));
    }

    #[test]
    fn every_line_of_the_table_is_read_whole() {
        for line in include_str!("messages.txt")
            .lines()
            .filter(|l| !l.starts_with('#'))
        {
            let (name, shape) = parse(line).unwrap();
            assert_eq!(shape.fields.len(), line.split(' ').count() - 1, "{name}");
        }
    }
}

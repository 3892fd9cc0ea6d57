//! `metadata.managedFields`: who owns which fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fieldset::Set;

/// How many `Update` entries an object keeps before the oldest are merged.
const MAX_UPDATE_MANAGERS: usize = 10;
/// The manager that merged entries belong to.
const ANCIENT_CHANGES: &str = "ancient-changes";

/// What tells one entry from another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    /// The manager's name.
    pub name: String,
    /// Whether it applies or updates.
    pub applies: bool,
    /// The API version, "" for an applier, which keeps one entry over all versions.
    pub api_version: String,
    /// The subresource, "" for the main resource.
    pub subresource: String,
}

impl ManagerId {
    /// The entry of an applier.
    pub fn applier(name: &str, subresource: Option<&str>) -> ManagerId {
        ManagerId {
            name: name.to_owned(),
            applies: true,
            api_version: String::new(),
            subresource: subresource.unwrap_or_default().to_owned(),
        }
    }

    /// The entry of an updater.
    pub fn updater(name: &str, subresource: Option<&str>, api_version: &str) -> ManagerId {
        ManagerId {
            applies: false,
            api_version: api_version.to_owned(),
            ..ManagerId::applier(name, subresource)
        }
    }

    /// The manager as conflict messages name it: `"mgr" using v1`.
    pub fn describe(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if !self.applies {
            text += &format!(" using {}", self.api_version);
        }
        text
    }
}

/// What one entry owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The owned fields.
    pub set: Set,
    /// The version in which the fields are named.
    pub api_version: String,
    /// When the set last changed, RFC 3339; absent in entries that somebody wrote without it.
    pub time: Option<String>,
}

/// All entries of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Managers {
    /// By identity.
    pub entries: BTreeMap<ManagerId, Entry>,
}

impl Managers {
    /// Reads `metadata.managedFields`; absent or null is none. The error says what is malformed.
    pub fn decode(managed_fields: Option<&Value>) -> Result<Managers, String> {
        let mut managers = Managers::default();
        let list = match managed_fields {
            None | Some(Value::Null) => return Ok(managers),
            Some(value) => value
                .as_array()
                .ok_or("metadata.managedFields must be a list")?,
        };
        for item in list {
            let text = |key: &str| {
                item.get(key)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let applies = match text("operation").as_str() {
                "Apply" => true,
                "Update" => false,
                other => {
                    return Err(format!(
                        "metadata.managedFields: operation {other:?} must be Apply or Update"
                    ));
                }
            };
            let api_version = text("apiVersion");
            let id = ManagerId {
                name: text("manager"),
                applies,
                api_version: if applies {
                    String::new()
                } else {
                    api_version.clone()
                },
                subresource: text("subresource"),
            };
            let set = match item.get("fieldsV1") {
                None | Some(Value::Null) => Set::default(),
                Some(fields) => Set::from_fields_v1(fields)?,
            };
            let time = item.get("time").and_then(Value::as_str).map(str::to_owned);
            managers.entries.insert(
                id,
                Entry {
                    set,
                    api_version,
                    time,
                },
            );
        }
        Ok(managers)
    }

    /// Writes `metadata.managedFields`: appliers first, then by time, then by name.
    pub fn encode(&self) -> Value {
        let mut entries: Vec<(&ManagerId, &Entry)> = self.entries.iter().collect();
        entries.sort_by(|(a, x), (b, y)| {
            (!a.applies, &x.time, &a.name, &x.api_version, &a.subresource).cmp(&(
                !b.applies,
                &y.time,
                &b.name,
                &y.api_version,
                &b.subresource,
            ))
        });
        Value::Array(
            entries
                .into_iter()
                .map(|(id, entry)| encode_entry(id, entry))
                .collect(),
        )
    }

    /// Drops entries that own nothing.
    pub fn drop_empty(&mut self) {
        self.entries.retain(|_, e| !e.set.is_empty());
    }

    /// Merges the oldest `Update` entries until at most ten are left. Entries are merged only with
    /// entries of the same API version.
    pub fn cap_updates(&mut self) {
        let mut updaters: Vec<ManagerId> = self
            .entries
            .keys()
            .filter(|id| !id.applies)
            .cloned()
            .collect();
        let mut count = updaters.len();
        if count <= MAX_UPDATE_MANAGERS {
            return;
        }
        updaters.sort_by(|a, b| {
            let time = |id: &ManagerId| self.entries.get(id).and_then(|e| e.time.clone());
            time(a).cmp(&time(b)).then_with(|| a.cmp(b))
        });
        // The first entry of a version only becomes a bucket once a second one joins it.
        let mut first_of_version: BTreeMap<String, ManagerId> = BTreeMap::new();
        for id in updaters {
            if count <= MAX_UPDATE_MANAGERS {
                break;
            }
            let Some(first) = first_of_version.get(&id.api_version) else {
                first_of_version.insert(id.api_version.clone(), id);
                continue;
            };
            let bucket = ManagerId::updater(ANCIENT_CHANGES, None, &id.api_version);
            if !self.entries.contains_key(&bucket)
                && let Some(entry) = self.entries.remove(first)
            {
                self.entries.insert(bucket.clone(), entry);
            }
            if id != bucket
                && let Some(entry) = self.entries.remove(&id)
                && let Some(target) = self.entries.get_mut(&bucket)
            {
                target.set.extend(&entry.set);
                target.time = entry.time;
                count -= 1;
            }
        }
    }
}

fn encode_entry(id: &ManagerId, entry: &Entry) -> Value {
    let mut object = Map::new();
    object.insert("manager".into(), id.name.clone().into());
    object.insert(
        "operation".into(),
        if id.applies { "Apply" } else { "Update" }.into(),
    );
    object.insert("apiVersion".into(), entry.api_version.clone().into());
    if let Some(time) = &entry.time {
        object.insert("time".into(), time.clone().into());
    }
    object.insert("fieldsType".into(), "FieldsV1".into());
    object.insert("fieldsV1".into(), entry.set.to_fields_v1());
    if !id.subresource.is_empty() {
        object.insert("subresource".into(), id.subresource.clone().into());
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fieldset::PathElement;
    use super::*;

    fn owning(field: &str, version: &str, time: usize) -> Entry {
        Entry {
            set: Set::of([vec![PathElement::Field(field.into())]]),
            api_version: version.into(),
            time: Some(format!("2024-01-01T00:00:{time:02}Z")),
        }
    }

    #[test]
    fn entries_round_trip_in_a_fixed_order() {
        let fields = json!([
            {"manager": "z", "operation": "Apply", "apiVersion": "v1", "time": "2024-01-01T00:00:09Z",
             "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:a": {}}}},
            {"manager": "b", "operation": "Update", "apiVersion": "v1", "time": "2024-01-01T00:00:01Z",
             "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:b": {}}}},
            {"manager": "a", "operation": "Update", "apiVersion": "v1", "time": "2024-01-01T00:00:02Z",
             "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:c": {}}}, "subresource": "status"},
        ]);
        assert_eq!(Managers::decode(Some(&fields)).unwrap().encode(), fields);
    }

    #[test]
    fn the_oldest_updates_are_merged_per_version() {
        let mut managers = Managers::default();
        for n in 0..12 {
            let version = if n == 1 { "v1beta1" } else { "v1" };
            let entry = owning(&format!("f{n}"), version, n);
            managers.entries.insert(
                ManagerId::updater(&format!("m{n:02}"), None, version),
                entry,
            );
        }
        managers
            .entries
            .insert(ManagerId::applier("applier", None), owning("x", "v1", 0));
        managers.cap_updates();
        let names: Vec<&str> = managers.entries.keys().map(|id| id.name.as_str()).collect();
        // m00, m02 and m03 went into one bucket; m01 has another version and stays.
        assert_eq!(
            names,
            [
                "ancient-changes",
                "applier",
                "m01",
                "m04",
                "m05",
                "m06",
                "m07",
                "m08",
                "m09",
                "m10",
                "m11"
            ]
        );
        let bucket = &managers.entries[&ManagerId::updater(ANCIENT_CHANGES, None, "v1")];
        assert_eq!(
            bucket.set.to_fields_v1(),
            json!({"f:f0": {}, "f:f2": {}, "f:f3": {}})
        );
        assert_eq!(bucket.time.as_deref(), Some("2024-01-01T00:00:03Z"));
    }

    #[test]
    fn managers_are_described_as_clients_print_them() {
        assert_eq!(ManagerId::applier("a", None).describe(), "\"a\"");
        assert_eq!(
            ManagerId::updater("a", None, "apps/v1").describe(),
            "\"a\" using apps/v1"
        );
        assert_eq!(
            ManagerId::updater("a", Some("status"), "v1").describe(),
            "\"a\" with subresource \"status\" using v1"
        );
    }

    #[test]
    fn malformed_entries_are_refused() {
        for fields in [
            json!({}),
            json!([{"manager": "a"}]),
            json!([{"manager": "a", "operation": "Apply", "fieldsV1": []}]),
        ] {
            assert!(Managers::decode(Some(&fields)).is_err(), "{fields}");
        }
    }
}

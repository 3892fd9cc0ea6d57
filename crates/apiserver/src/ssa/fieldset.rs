//! Sets of field paths and their serialised form, `FieldsV1`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

/// One step of a path into an object.
///
/// Keys and values are kept as canonical JSON text, so that elements can be ordered and compared.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathElement {
    /// `f:name`: a field of a struct or a key of a map.
    Field(String),
    /// `k:{…}`: the item of a keyed list with these key fields.
    Key(String),
    /// `v:…`: the item of a set with this value.
    Value(String),
    /// `i:n`: the item at this position.
    Index(i64),
}

impl PathElement {
    /// The element of a keyed list.
    pub fn key(fields: BTreeMap<String, Value>) -> PathElement {
        PathElement::Key(canonical(&Value::Object(fields.into_iter().collect())))
    }

    /// The element of a set.
    pub fn value(value: &Value) -> PathElement {
        PathElement::Value(canonical(value))
    }

    fn serialise(&self) -> String {
        match self {
            PathElement::Field(name) => format!("f:{name}"),
            PathElement::Key(json) => format!("k:{json}"),
            PathElement::Value(json) => format!("v:{json}"),
            PathElement::Index(i) => format!("i:{i}"),
        }
    }

    fn parse(text: &str) -> Result<PathElement, String> {
        let json = |body: &str| -> Result<Value, String> {
            serde_json::from_str(body).map_err(|e| format!("field path element {text:?}: {e}"))
        };
        match text.split_at_checked(2) {
            Some(("f:", name)) => Ok(PathElement::Field(name.to_owned())),
            Some(("k:", body)) => match json(body)? {
                value @ Value::Object(_) => Ok(PathElement::Key(canonical(&value))),
                _ => Err(format!(
                    "field path element {text:?}: the key must be an object"
                )),
            },
            Some(("v:", body)) => Ok(PathElement::Value(canonical(&json(body)?))),
            Some(("i:", body)) => body
                .parse()
                .map(PathElement::Index)
                .map_err(|e| format!("field path element {text:?}: {e}")),
            _ => Err(format!(
                "field path element {text:?}: it must start with f:, k:, v: or i:"
            )),
        }
    }
}

/// As paths are written in conflict messages: `.spec.containers[name="a"].image`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Key(json) => {
                f.write_str("[")?;
                let fields: BTreeMap<String, Value> =
                    serde_json::from_str(json).unwrap_or_default();
                for (i, (name, value)) in fields.iter().enumerate() {
                    write!(f, "{}{name}={value}", if i == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            PathElement::Value(json) => write!(f, "[={json}]"),
            PathElement::Index(i) => write!(f, "[{i}]"),
        }
    }
}

/// JSON text with sorted keys, where an integral number has one spelling.
fn canonical(value: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let ordered: BTreeMap<&String, Value> =
                    map.iter().map(|(k, v)| (k, sorted(v))).collect();
                Value::Object(ordered.into_iter().map(|(k, v)| (k.clone(), v)).collect())
            }
            Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
            Value::Number(n) => match n.as_f64() {
                // Beyond 2^53 a float has no exact integer neighbour to be confused with.
                Some(f) if n.is_f64() && f.fract() == 0.0 && f.abs() < 9.0e15 => {
                    Value::from(f as i64)
                }
                _ => value.clone(),
            },
            other => other.clone(),
        }
    }
    sorted(value).to_string()
}

/// A path from the root of an object.
pub type Path = Vec<PathElement>;

/// The path as conflict messages show it.
pub fn path_text(path: &[PathElement]) -> String {
    path.iter().map(PathElement::to_string).collect()
}

/// A set of paths, kept as a tree. A path may be a member, have members below it, or both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    members: BTreeSet<PathElement>,
    /// Invariant: no child is empty.
    children: BTreeMap<PathElement, Set>,
}

impl Set {
    /// A set of these paths.
    pub fn of(paths: impl IntoIterator<Item = Path>) -> Set {
        let mut set = Set::default();
        paths.into_iter().for_each(|p| set.insert(&p));
        set
    }

    /// Adds a path. The empty path is ignored: the root has no owner.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => {
                self.members.insert(last.clone());
            }
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// Whether this one-element path is a member.
    pub fn has_member(&self, element: &PathElement) -> bool {
        self.members.contains(element)
    }

    /// The members below this element.
    pub fn child(&self, element: &PathElement) -> Option<&Set> {
        self.children.get(element)
    }

    /// The members that are one element long.
    pub fn members(&self) -> impl Iterator<Item = &PathElement> {
        self.members.iter()
    }

    /// The children with their elements.
    pub fn children(&self) -> impl Iterator<Item = (&PathElement, &Set)> {
        self.children.iter()
    }

    /// Whether there is no member at all.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.is_empty()
    }

    fn from_parts(
        members: BTreeSet<PathElement>,
        children: impl IntoIterator<Item = (PathElement, Set)>,
    ) -> Set {
        Set {
            members,
            children: children
                .into_iter()
                .filter(|(_, c)| !c.is_empty())
                .collect(),
        }
    }

    /// The paths that are in either set.
    pub fn union(&self, other: &Set) -> Set {
        let mut result = self.clone();
        result.extend(other);
        result
    }

    /// Adds every path of the other set.
    pub fn extend(&mut self, other: &Set) {
        self.members.extend(other.members.iter().cloned());
        for (element, child) in &other.children {
            self.children
                .entry(element.clone())
                .or_default()
                .extend(child);
        }
    }

    /// The paths that are in both sets.
    pub fn intersection(&self, other: &Set) -> Set {
        Set::from_parts(
            self.members.intersection(&other.members).cloned().collect(),
            self.children.iter().filter_map(|(e, c)| {
                other
                    .children
                    .get(e)
                    .map(|o| (e.clone(), c.intersection(o)))
            }),
        )
    }

    /// The paths of this set that are not in the other one.
    pub fn difference(&self, other: &Set) -> Set {
        Set::from_parts(
            self.members.difference(&other.members).cloned().collect(),
            self.children.iter().map(|(e, c)| {
                (
                    e.clone(),
                    other
                        .children
                        .get(e)
                        .map_or_else(|| c.clone(), |o| c.difference(o)),
                )
            }),
        )
    }

    /// The paths of this set that are neither in the other one nor below a member of it.
    pub fn recursive_difference(&self, other: &Set) -> Set {
        Set::from_parts(
            self.members.difference(&other.members).cloned().collect(),
            self.children
                .iter()
                .filter(|(e, _)| !other.members.contains(e))
                .map(|(e, c)| {
                    (
                        e.clone(),
                        other
                            .children
                            .get(e)
                            .map_or_else(|| c.clone(), |o| c.recursive_difference(o)),
                    )
                }),
        )
    }

    /// A copy with another set of members and with each child replaced.
    pub(super) fn rebuild(
        &self,
        extra_members: BTreeSet<PathElement>,
        child: impl Fn(&PathElement, &Set) -> Set,
    ) -> Set {
        let mut members = self.members.clone();
        members.extend(extra_members);
        Set::from_parts(
            members,
            self.children.iter().map(|(e, c)| (e.clone(), child(e, c))),
        )
    }

    /// Every member, parents before children.
    pub fn paths(&self) -> Vec<Path> {
        let mut out = Vec::new();
        self.collect(&mut Vec::new(), &mut out);
        out
    }

    fn collect(&self, prefix: &mut Path, out: &mut Vec<Path>) {
        let elements: BTreeSet<&PathElement> =
            self.members.iter().chain(self.children.keys()).collect();
        for element in elements {
            prefix.push(element.clone());
            if self.members.contains(element) {
                out.push(prefix.clone());
            }
            if let Some(child) = self.children.get(element) {
                child.collect(prefix, out);
            }
            prefix.pop();
        }
    }

    /// Serialises to `FieldsV1`: a member without members below it is `{}`, one with some has the
    /// entry `"."` beside them.
    pub fn to_fields_v1(&self) -> Value {
        let mut object = Map::new();
        let elements: BTreeSet<&PathElement> =
            self.members.iter().chain(self.children.keys()).collect();
        for element in elements {
            let mut inner = Map::new();
            if let Some(child) = self.children.get(element) {
                if self.members.contains(element) {
                    inner.insert(".".into(), Value::Object(Map::new()));
                }
                if let Value::Object(fields) = child.to_fields_v1() {
                    inner.extend(fields);
                }
            }
            object.insert(element.serialise(), Value::Object(inner));
        }
        Value::Object(object)
    }

    /// Reads `FieldsV1`. The error names the element that is malformed.
    pub fn from_fields_v1(fields: &Value) -> Result<Set, String> {
        let object = fields.as_object().ok_or("fieldsV1 must be an object")?;
        let mut set = Set::default();
        for (text, below) in object {
            if text == "." {
                continue;
            }
            let element = PathElement::parse(text)?;
            let inner = below
                .as_object()
                .ok_or_else(|| format!("fieldsV1: {text:?} must hold an object"))?;
            if inner.is_empty() || inner.contains_key(".") {
                set.members.insert(element.clone());
            }
            let child = Set::from_fields_v1(below)?;
            if !child.is_empty() {
                set.children.insert(element, child);
            }
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_serialise_like_the_published_format() {
        let set = Set::of([
            vec![
                PathElement::Field("spec".into()),
                PathElement::Field("size".into()),
            ],
            vec![
                PathElement::Field("ports".into()),
                PathElement::key(
                    [
                        ("protocol".into(), json!("TCP")),
                        ("port".into(), json!(80)),
                    ]
                    .into(),
                ),
            ],
            vec![
                PathElement::Field("ports".into()),
                PathElement::key(
                    [
                        ("protocol".into(), json!("TCP")),
                        ("port".into(), json!(80)),
                    ]
                    .into(),
                ),
                PathElement::Field("name".into()),
            ],
            vec![
                PathElement::Field("tags".into()),
                PathElement::value(&json!("a")),
            ],
            vec![
                PathElement::Field("tags".into()),
                PathElement::value(&json!(1.0)),
            ],
            vec![PathElement::Field("list".into()), PathElement::Index(3)],
        ]);
        let fields = json!({
            "f:list": {"i:3": {}},
            "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}},
            "f:spec": {"f:size": {}},
            "f:tags": {"v:\"a\"": {}, "v:1": {}},
        });
        assert_eq!(set.to_fields_v1(), fields);
        assert_eq!(Set::from_fields_v1(&fields).unwrap(), set);
        let texts: Vec<String> = set.paths().iter().map(|p| path_text(p)).collect();
        assert_eq!(
            texts,
            [
                ".list[3]",
                ".ports[port=80,protocol=\"TCP\"]",
                ".ports[port=80,protocol=\"TCP\"].name",
                ".spec.size",
                ".tags[=\"a\"]",
                ".tags[=1]"
            ]
        );
    }

    #[test]
    fn key_order_in_the_text_does_not_matter() {
        let a = Set::from_fields_v1(&json!({"k:{\"b\":1,\"a\":2}": {}})).unwrap();
        let b = Set::from_fields_v1(&json!({"k:{\"a\":2,\"b\":1}": {}})).unwrap();
        assert_eq!(a, b);
    }

    #[test]
    fn malformed_fields_are_refused() {
        for fields in [
            json!([]),
            json!({"x:a": {}}),
            json!({"f:a": 1}),
            json!({"k:[]": {}}),
            json!({"i:x": {}}),
            json!({"v:": {}}),
            json!({"": {}}),
        ] {
            assert!(Set::from_fields_v1(&fields).is_err(), "{fields}");
        }
    }

    fn element() -> impl Strategy<Value = PathElement> {
        prop_oneof![
            4 => "[a-c]".prop_map(PathElement::Field),
            1 => (0..3i64).prop_map(|n| PathElement::key([("name".to_owned(), Value::from(n))].into())),
            1 => "[xy\"]".prop_map(|s| PathElement::value(&Value::from(s))),
            1 => (0..2i64).prop_map(PathElement::Index),
        ]
    }

    fn set() -> impl Strategy<Value = Set> {
        prop::collection::vec(prop::collection::vec(element(), 1..4), 0..8).prop_map(Set::of)
    }

    fn has(set: &Set, path: &[PathElement]) -> bool {
        match path {
            [] => false,
            [last] => set.members.contains(last),
            [first, rest @ ..] => set.children.get(first).is_some_and(|c| has(c, rest)),
        }
    }

    proptest! {
        #[test]
        fn serialisation_round_trips(s in set()) {
            prop_assert_eq!(Set::from_fields_v1(&s.to_fields_v1()).unwrap(), s);
        }

        #[test]
        fn the_algebra_agrees_with_sets_of_paths(a in set(), b in set()) {
            let plain = |s: &Set| s.paths().into_iter().collect::<BTreeSet<Path>>();
            let (pa, pb) = (plain(&a), plain(&b));
            prop_assert_eq!(plain(&a.union(&b)), pa.union(&pb).cloned().collect());
            prop_assert_eq!(plain(&a.intersection(&b)), pa.intersection(&pb).cloned().collect());
            prop_assert_eq!(plain(&a.difference(&b)), pa.difference(&pb).cloned().collect());
            let under = |p: &Path| (1..=p.len()).any(|n| pb.contains(&p[..n]));
            prop_assert_eq!(plain(&a.recursive_difference(&b)), pa.iter().filter(|p| !under(p)).cloned().collect());
            prop_assert_eq!(a.difference(&a), Set::default());
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
            prop_assert!(pa.iter().all(|p| has(&a, p)));
        }
    }
}

//! Walks over values by their shape: which paths a value sets, how two values differ, what their
//! merge is, and what is left when paths are taken away.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::fieldset::{Path, PathElement, Set, path_text};
use super::shape::{Form, Shape};

/// How an object changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Paths that only the new object has.
    pub added: Set,
    /// Leaves whose values differ.
    pub modified: Set,
    /// Paths that only the old object has.
    pub removed: Set,
}

impl Comparison {
    /// Whether nothing changed.
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Leaves out these paths and everything below them.
    pub fn without(self, ignored: &Set) -> Comparison {
        Comparison {
            added: self.added.recursive_difference(ignored),
            modified: self.modified.recursive_difference(ignored),
            removed: self.removed.recursive_difference(ignored),
        }
    }
}

/// Whether two values are equal where 1 and 1.0 are the same number.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            x == y || (x.as_f64() == y.as_f64() && (x.is_f64() || y.is_f64()))
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len() && x.iter().all(|(k, v)| y.get(k).is_some_and(|w| same(v, w)))
        }
        _ => a == b,
    }
}

fn field(name: &str) -> PathElement {
    PathElement::Field(name.to_owned())
}

/// The path element of one item of a keyed list or of a set.
fn element(shape: Shape<'_>, form: Form, item: &Value) -> Result<PathElement, String> {
    if form == Form::SetList {
        return match item {
            Value::Null => Err("associative list without keys has an element that is an explicit null".into()),
            Value::Object(_) | Value::Array(_) if !matches!(shape.item().form(item), Form::Leaf) => {
                Err("associative list without keys has an element that's neither a scalar nor atomic".into())
            }
            item => Ok(PathElement::value(item)),
        };
    }
    let object = item
        .as_object()
        .ok_or("associative list with keys may not have non-map elements")?;
    let mut fields = BTreeMap::new();
    let mut any = false;
    for (key, default) in shape.keys() {
        match (object.get(key), default) {
            (Some(value), _) if !value.is_null() => {
                any = true;
                fields.insert(key.to_owned(), value.clone());
            }
            (_, Some(default)) => {
                any = true;
                fields.insert(key.to_owned(), default);
            }
            _ => {}
        }
    }
    if !any {
        let keys: Vec<String> = shape
            .keys()
            .into_iter()
            .map(|(k, _)| format!("{k:?}"))
            .collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            keys.join(" ")
        ));
    }
    Ok(PathElement::key(fields))
}

/// A list's items in order, each with its element.
struct Items<'v> {
    order: Vec<(PathElement, &'v Value)>,
    by_element: BTreeMap<PathElement, Vec<&'v Value>>,
}

impl<'v> Items<'v> {
    fn read(
        value: Option<&'v Value>,
        shape: Shape<'_>,
        form: Form,
        path: &[PathElement],
    ) -> Result<Items<'v>, String> {
        let mut items = Items {
            order: Vec::new(),
            by_element: BTreeMap::new(),
        };
        for (i, item) in value
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .enumerate()
        {
            let element = element(shape, form, item)
                .map_err(|e| format!("{}: element {i}: {e}", path_text(path)))?;
            items
                .by_element
                .entry(element.clone())
                .or_default()
                .push(item);
            items.order.push((element, item));
        }
        Ok(items)
    }

    fn get(&self, element: &PathElement) -> Option<&'v Value> {
        self.by_element
            .get(element)
            .and_then(|v| v.first().copied())
    }

    fn check_unique(&self, path: &[PathElement]) -> Result<(), String> {
        match self.by_element.iter().find(|(_, items)| items.len() > 1) {
            Some((element, _)) => Err(format!(
                "{}: duplicate entries for key {element}",
                path_text(path)
            )),
            None => Ok(()),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Null => true,
        _ => false,
    }
}

/// The paths that this value sets. With `strict`, two items of a keyed list or a set with the same
/// key are an error, as they are in what a user applies; without, as in stored objects, such items
/// are owned as a whole.
pub fn field_set(value: &Value, shape: Shape<'_>, strict: bool) -> Result<Set, String> {
    let mut set = Set::default();
    collect(value, shape, strict, &mut Vec::new(), &mut set)?;
    Ok(set)
}

fn collect(
    value: &Value,
    shape: Shape<'_>,
    strict: bool,
    path: &mut Path,
    set: &mut Set,
) -> Result<(), String> {
    match (shape.form(value), value) {
        (Form::Map, Value::Object(map)) => {
            for (name, child) in map {
                let spec = shape.field(name);
                path.push(field(name));
                collect(child, spec.shape, strict, path, set)?;
                // An empty keyed list is owned like an empty map, so that sending one again and
                // again changes nothing.
                if is_empty(child) || !spec.named {
                    set.insert(path);
                }
                path.pop();
            }
        }
        (form @ (Form::KeyedList | Form::SetList), _) => {
            let items = Items::read(Some(value), shape, form, path)?;
            if strict {
                items.check_unique(path)?;
            }
            for (element, same_key) in &items.by_element {
                path.push(element.clone());
                if let [item] = same_key.as_slice() {
                    collect(item, shape.item(), strict, path, set)?;
                }
                set.insert(path);
                path.pop();
            }
        }
        _ => set.insert(path),
    }
    Ok(())
}

/// How the new value differs from the old one.
pub fn compare(old: &Value, new: &Value, shape: Shape<'_>) -> Result<Comparison, String> {
    let mut result = Comparison::default();
    diff(Some(old), Some(new), shape, &mut Vec::new(), &mut result)?;
    Ok(result)
}

fn diff(
    old: Option<&Value>,
    new: Option<&Value>,
    shape: Shape<'_>,
    path: &mut Path,
    out: &mut Comparison,
) -> Result<(), String> {
    let form = match (old.map(|v| shape.form(v)), new.map(|v| shape.form(v))) {
        (Some(a), Some(b)) if a == b => a,
        // An absent or null value takes the form of the other side.
        (Some(a), None) => a,
        (None, Some(b)) => b,
        (Some(a), Some(_)) if new.is_some_and(Value::is_null) => a,
        (Some(_), Some(b)) if old.is_some_and(Value::is_null) => b,
        (Some(_), Some(_)) => {
            // A leaf became a map or the like: the place changed, and with it all that is inside.
            out.modified.insert(path);
            diff(old, None, shape, path, out)?;
            diff(None, new, shape, path, out)?;
            out.added = out.added.difference(&Set::of([path.clone()]));
            out.removed = out.removed.difference(&Set::of([path.clone()]));
            return Ok(());
        }
        (None, None) => return Ok(()),
    };
    let both_empty = old.is_none_or(is_empty) && new.is_none_or(is_empty);
    if form == Form::Leaf || both_empty {
        match (old, new) {
            (None, _) => out.added.insert(path),
            (_, None) => out.removed.insert(path),
            (Some(a), Some(b)) if !same(a, b) => out.modified.insert(path),
            _ => {}
        }
        return Ok(());
    }
    if form == Form::Map {
        let empty = Map::new();
        let a = old.and_then(Value::as_object).unwrap_or(&empty);
        let b = new.and_then(Value::as_object).unwrap_or(&empty);
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for name in names {
            let child = shape.field(name);
            // What is always written where its parent is; in a parent that is new it is new, too.
            let default = child.always.as_ref();
            path.push(field(name));
            diff(
                a.get(name).or(default.filter(|_| old.is_some())),
                b.get(name).or(default.filter(|_| new.is_some())),
                child.shape,
                path,
                out,
            )?;
            path.pop();
        }
    } else {
        let a = Items::read(old, shape, form, path)?;
        let b = Items::read(new, shape, form, path)?;
        let elements: BTreeSet<&PathElement> =
            a.by_element.keys().chain(b.by_element.keys()).collect();
        for element in elements {
            path.push(element.clone());
            let none = Vec::new();
            let (x, y) = (
                a.by_element.get(element).unwrap_or(&none),
                b.by_element.get(element).unwrap_or(&none),
            );
            if x.len() <= 1 && y.len() <= 1 {
                diff(
                    x.first().copied(),
                    y.first().copied(),
                    shape.item(),
                    path,
                    out,
                )?;
            } else if x.is_empty() {
                out.added.insert(path);
            } else if y.is_empty() {
                out.removed.insert(path);
            } else if x.len() != y.len() || !x.iter().zip(y).all(|(x, y)| same(x, y)) {
                out.modified.insert(path);
            }
            path.pop();
        }
    }
    if old.is_none() {
        out.added.insert(path);
    } else if new.is_none() {
        out.removed.insert(path);
    }
    Ok(())
}

/// The live value with the applied one laid over it.
pub fn merge(live: &Value, applied: &Value, shape: Shape<'_>) -> Result<Value, String> {
    overlay(Some(live), Some(applied), shape, &mut Vec::new()).map(|v| v.unwrap_or(Value::Null))
}

fn overlay(
    live: Option<&Value>,
    applied: Option<&Value>,
    shape: Shape<'_>,
    path: &mut Path,
) -> Result<Option<Value>, String> {
    let Some(over) = applied else {
        return Ok(live.cloned());
    };
    let form = match live {
        // Applying null to a map or a keyed list asks for nothing inside it.
        Some(live) if over.is_null() && shape.form(live) != Form::Leaf => {
            return Ok(Some(live.clone()));
        }
        Some(live) if shape.form(live) != shape.form(over) => shape.form(over),
        _ => shape.form(over),
    };
    match form {
        Form::Leaf => Ok(Some(over.clone())),
        Form::Map => {
            let mut result = live.and_then(Value::as_object).cloned().unwrap_or_default();
            for (name, value) in over.as_object().into_iter().flatten() {
                path.push(field(name));
                if let Some(merged) =
                    overlay(result.get(name), Some(value), shape.field(name).shape, path)?
                {
                    result.insert(name.clone(), merged);
                }
                path.pop();
            }
            Ok(Some(Value::Object(result)))
        }
        Form::KeyedList | Form::SetList => merge_lists(live, over, shape, form, path).map(Some),
    }
}

/// Items keep the live order, except that applied items come in the applied order; an item that
/// only the live list has stays behind its live neighbour.
fn merge_lists(
    live: Option<&Value>,
    applied: &Value,
    shape: Shape<'_>,
    form: Form,
    path: &mut Path,
) -> Result<Value, String> {
    let old = Items::read(live, shape, form, path)?;
    let new = Items::read(Some(applied), shape, form, path)?;
    new.check_unique(path)?;
    let mut take = |element: &PathElement| -> Result<Option<Value>, String> {
        path.push(element.clone());
        // Of several live items with one key none is the one that is meant.
        let base = old
            .by_element
            .get(element)
            .filter(|v| v.len() == 1)
            .and_then(|v| v.first().copied());
        let merged = overlay(base, new.get(element), shape.item(), path);
        path.pop();
        merged
    };
    let mut shared = new
        .order
        .iter()
        .map(|(e, _)| e)
        .filter(|e| old.by_element.contains_key(e))
        .peekable();
    let mut done: BTreeSet<&PathElement> = BTreeSet::new();
    let mut result = Vec::new();
    let (mut l, mut r) = (0, 0);
    while l < old.order.len() || r < new.order.len() {
        let right = new.order.get(r).map(|(e, _)| e);
        if let Some((left, item)) = old.order.get(l) {
            if !new.by_element.contains_key(left) {
                result.push((*item).clone());
                l += 1;
                continue;
            }
            let its_turn = shared.peek() == Some(&left);
            if done.contains(left) || (right.is_some() && right != Some(left) && !its_turn) {
                // It is placed where the applied list has it.
                l += 1;
                continue;
            }
            if right == Some(left) {
                l += 1;
            }
        }
        if let Some(element) = right {
            result.extend(take(element)?);
            done.insert(element);
            shared.next_if_eq(&element);
            r += 1;
        } else {
            l += 1;
        }
    }
    Ok(Value::Array(result))
}

/// The value without these paths. A map or list stays, empty, unless it is itself among them.
pub fn remove(value: &Value, paths: &Set, shape: Shape<'_>) -> Result<Value, String> {
    prune(value, paths, shape, &mut Vec::new())
}

fn prune(value: &Value, paths: &Set, shape: Shape<'_>, path: &mut Path) -> Result<Value, String> {
    let kept = |element: &PathElement, child: &Value, shape: Shape<'_>, path: &mut Path| {
        if paths.has_member(element) {
            return Ok(None);
        }
        match paths.child(element) {
            None => Ok(Some(child.clone())),
            Some(below) => {
                path.push(element.clone());
                let left = prune(child, below, shape, path);
                path.pop();
                left.map(Some)
            }
        }
    };
    match (shape.form(value), value) {
        (Form::Map, Value::Object(map)) => {
            let mut result = Map::new();
            for (name, child) in map {
                if let Some(left) = kept(&field(name), child, shape.field(name).shape, path)? {
                    result.insert(name.clone(), left);
                }
            }
            Ok(Value::Object(result))
        }
        (form @ (Form::KeyedList | Form::SetList), Value::Array(_)) => {
            let items = Items::read(Some(value), shape, form, path)?;
            let mut result = Vec::new();
            for (element, item) in &items.order {
                result.extend(kept(element, item, shape.item(), path)?);
            }
            Ok(Value::Array(result))
        }
        _ => Ok(value.clone()),
    }
}

/// The set with every schema-named field on the way to a member made a member, too: such fields
/// have no owner of their own and go when nothing inside them is owned any more.
pub fn with_named_parents(set: &Set, shape: Shape<'_>) -> Set {
    let mut parents = BTreeSet::new();
    for (element, _) in set.children() {
        if let PathElement::Field(name) = element
            && shape.field(name).named
        {
            parents.insert(element.clone());
        }
    }
    set.rebuild(parents, |element, child| {
        let below = match element {
            PathElement::Field(name) => shape.field(name).shape,
            _ => shape.item(),
        };
        with_named_parents(child, below)
    })
}

/// Fits a set to a schema that has changed since: below a place that is now one leaf, the place
/// itself stands for what was owned inside it.
pub fn reconcile(set: &Set, value: &Value, shape: Shape<'_>) -> Set {
    let mut result = Set::default();
    refit(set, Some(value), shape, &mut Vec::new(), &mut result);
    result
}

fn refit(set: &Set, value: Option<&Value>, shape: Shape<'_>, path: &mut Path, out: &mut Set) {
    let form = value.map(|v| shape.form(v));
    let container = value.is_some_and(|v| v.is_object() || v.is_array());
    if container && form == Some(Form::Leaf) && !path.is_empty() {
        out.insert(path);
        return;
    }
    let items = match form {
        Some(form @ (Form::KeyedList | Form::SetList)) => {
            Items::read(value, shape, form, path).ok()
        }
        _ => None,
    };
    for element in set.members() {
        path.push(element.clone());
        out.insert(path);
        path.pop();
    }
    for (element, child_set) in set.children() {
        let (child, below) = match element {
            PathElement::Field(name) => (value.and_then(|v| v.get(name)), shape.field(name).shape),
            _ => (items.as_ref().and_then(|i| i.get(element)), shape.item()),
        };
        path.push(element.clone());
        refit(child_set, child, below, path, out);
        path.pop();
    }
}

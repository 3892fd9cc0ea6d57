//! Rules in CEL (`x-kubernetes-validations`), evaluated with the cel crate and the functions of kube-cel,
//! one level at a time.
//!
//! The levels are walked here and not by kube-cel, because `oldSelf` has to be correlated as the
//! API server does it: by key in lists of type `map`, and not at all in other lists.

mod check;
mod functions;
mod types;
mod value;

use kube_cel::cel::Value as Cel;
use kube_cel::cel::parser::Expression;
use serde_json::{Map, Value, json};

use self::types::Type;
use self::value::Failure;
use super::error::{FieldError, FieldErrorKind, child, index, key};
use super::node::{Additional, Node, list, object};
use super::validate::old_item;

/// The largest estimate for one rule, times the number of values that it can be about.
const MOST_PER_RULE: u64 = 10_000_000;
/// The largest sum of the estimates of a schema.
const MOST_PER_SCHEMA: u64 = 100_000_000;
/// Most bytes of a message that an expression makes.
const LONGEST_MESSAGE: usize = 5 * 1024;

/// The rules of one level with what their evaluation needs to know about the levels below.
#[derive(Debug)]
pub(crate) struct Rules {
    schema: Value,
    /// The type of the level as the schema names it, which error messages show in place of the value.
    kind: String,
    known: Option<Type>,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    program: Result<Expression, String>,
    /// What errors call the rule: its message, or its text if it has none.
    name: String,
    /// What is said where it does not hold and no expression says it.
    message: String,
    /// With the source.
    message_expression: Option<(Expression, String)>,
    reason: Option<String>,
    field_path: String,
    optional: bool,
    transition: bool,
    source: String,
    /// Whether its loops have to be counted.
    dear: bool,
}

impl Rules {
    /// The rules of this level of a schema, if there are any. `resource`: whether it is that of an object of its own.
    pub fn read(schema: &Value, resource: bool) -> Option<Self> {
        list(schema.get("x-kubernetes-validations")).next()?;
        let kind = schema.get("type").and_then(Value::as_str);
        let level = types(schema);
        let known = types::of_schema(schema, resource, "selfType");
        let rules = list(schema.get("x-kubernetes-validations"));
        Some(Self {
            rules: rules.map(|r| Rule::read(r, known.as_ref())).collect(),
            schema: level,
            kind: kind.unwrap_or_default().to_string(),
            known,
        })
    }
}

impl Rule {
    fn read(rule: &Value, known: Option<&Type>) -> Self {
        let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
        let (source, message) = (text("rule").trim(), text("message").trim());
        let program = check::parse(source);
        let optional = rule.get("optionalOldSelf") == Some(&Value::Bool(true));
        let cost = |program: &Expression, source: &str| {
            let known = known?;
            let checked = check::check(source, program, &variables(known, optional)).ok()?;
            Some(checked.cost)
        };
        let expression = Some(text("messageExpression").trim()).filter(|e| !e.is_empty());
        let name = if message.is_empty() { source } else { message };
        Self {
            name: name.to_owned(),
            message: match message {
                "" => format!("failed rule: {source}"),
                message => message.to_owned(),
            },
            message_expression: expression
                .and_then(|e| Some((check::parse(e).ok()?, e.to_owned()))),
            reason: rule["reason"].as_str().map(str::to_owned),
            field_path: text("fieldPath").trim().trim_start_matches('.').to_owned(),
            optional,
            transition: program.as_ref().is_ok_and(is_transition),
            dear: program
                .as_ref()
                .is_ok_and(|p| cost(p, source).is_none_or(|c| c > value::MOST)),
            source: source.to_owned(),
            program,
        }
    }
}

/// Whether an expression is about the change of a value.
fn is_transition(program: &Expression) -> bool {
    program.references().has_variable("oldSelf")
}

/// The variables of rules.
fn variables(known: &Type, optional: bool) -> [(&'static str, Type); 2] {
    let old = match optional {
        true => Type::Optional(Box::new(known.clone())),
        false => known.clone(),
    };
    [("self", known.clone()), ("oldSelf", old)]
}

/// The part of a schema that decides how values look to expressions.
fn types(schema: &Value) -> Value {
    let mut kept = Map::new();
    for word in [
        "type",
        "format",
        "x-kubernetes-int-or-string",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-preserve-unknown-fields",
    ] {
        if let Some(value) = schema.get(word) {
            kept.insert(word.to_string(), value.clone());
        }
    }
    for word in ["items", "additionalProperties"] {
        match schema.get(word) {
            Some(sub @ Value::Object(_)) => kept.insert(word.to_string(), types(sub)),
            Some(sub @ Value::Bool(_)) => kept.insert(word.to_string(), sub.clone()),
            _ => None,
        };
    }
    let properties: Map<String, Value> = object(schema.get("properties"))
        .map(|(name, sub)| (name.clone(), types(sub)))
        .collect();
    if !properties.is_empty() {
        kept.insert("properties".to_string(), Value::Object(properties));
    }
    Value::Object(kept)
}

/// Evaluates all rules on a whole object. Rules on parts that did not change are not enforced,
/// except those about the change itself.
pub(crate) fn check(node: &Node, value: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let unchanged = old == Some(value);
    walk(node, value, old, unchanged, true, "", errors);
}

/// Whether any level has rules.
pub(crate) fn has_rules(node: &Node) -> bool {
    node.rules.is_some()
        || node.properties.values().any(has_rules)
        || node.items.as_deref().is_some_and(has_rules)
        || matches!(&node.additional, Additional::Schema(sub) if has_rules(sub))
}

fn walk(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    unchanged: bool,
    root: bool,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    if value.is_null() {
        return;
    }
    let old = old.filter(|o| !o.is_null());
    if let Some(rules) = &node.rules {
        evaluate(
            rules,
            value,
            old,
            unchanged,
            root || node.embedded,
            path,
            errors,
        );
    }
    match value {
        Value::Object(map) => {
            for (name, sub) in map {
                let (known, here) = match (node.properties.get(name), &node.additional) {
                    (Some(known), _) => (known, child(path, name)),
                    (None, Additional::Schema(known)) => (&**known, key(path, name)),
                    _ => continue,
                };
                let before = old.and_then(|o| o.get(name));
                let same = before.map_or(unchanged, |b| b == sub);
                walk(known, sub, before, same, false, &here, errors);
            }
        }
        Value::Array(items) => {
            let Some(known) = node.items.as_deref() else {
                return;
            };
            for (n, item) in items.iter().enumerate() {
                let before = old_item(node, old, item);
                let same = before.map_or(unchanged, |b| b == item);
                walk(known, item, before, same, false, &index(path, n), errors);
            }
        }
        _ => {}
    }
}

fn evaluate(
    rules: &Rules,
    value: &Value,
    old: Option<&Value>,
    unchanged: bool,
    resource: bool,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let seen = |value: &Value| match resource {
        true => value::of(&rules.schema, &visible(value)),
        false => value::of(&rules.schema, value),
    };
    let invalid = |what: String| field_error(rules, None, what, path);
    let (new, before) = (seen(value), old.map(seen));
    for rule in &rules.rules {
        let program = match &rule.program {
            Ok(program) => program,
            Err(why) => {
                errors.push(invalid(format!("rule compile error: {why}")));
                continue;
            }
        };
        if rule.transition && old.is_none() && !rule.optional {
            continue;
        }
        let mut given = vec![("self", new.clone())];
        match (&before, rule.optional) {
            (old, true) => given.push(("oldSelf", value::optional(old.clone()))),
            (Some(old), false) => given.push(("oldSelf", old.clone())),
            (None, false) => {}
        }
        let rounds = |program: &Expression, source: &str| {
            let known = rules.known.as_ref().filter(|_| rule.dear)?;
            let known = types::of_value(known, value);
            let checked = check::check(source, program, &variables(&known, rule.optional)).ok()?;
            Some(checked.rounds)
        };
        let failed = match value::evaluate(program, &given, rounds(program, &rule.source).as_ref())
        {
            Ok(Cel::Bool(true)) => continue,
            Ok(_) => None,
            Err(Failure::Spent) => {
                errors.push(invalid(format!(
                    "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                    rule.name
                )));
                return;
            }
            Err(Failure::Overload) => Some(format!(
                "'no such overload': call arguments did not match a supported operator, function or macro signature for rule: {}",
                rule.name
            )),
            Err(Failure::Broken(why)) => Some(format!("{why} evaluating rule: {}", rule.name)),
        };
        if unchanged && !rule.transition {
            continue;
        }
        if let Some(why) = failed {
            errors.push(invalid(why));
            continue;
        }
        let told = rule.message_expression.as_ref().map(|(program, source)| {
            value::evaluate(program, &given, rounds(program, source).as_ref())
        });
        let message = match told {
            Some(Ok(Cel::String(text))) => Some(text.trim().to_owned()),
            _ => None,
        };
        let usable = |m: &String| !m.is_empty() && m.len() <= LONGEST_MESSAGE && !m.contains('\n');
        let message = message.filter(usable);
        let message = message.unwrap_or_else(|| rule.message.clone());
        errors.push(field_error(rules, Some(rule), message, path));
    }
}

/// What a rule may see of a resource: of the metadata only the names.
fn visible(value: &Value) -> Value {
    let Value::Object(map) = value else {
        return value.clone();
    };
    let entries = map.iter().map(|(name, sub)| {
        let seen = if name == "metadata" {
            object(Some(sub))
                .filter(|(field, _)| *field == "name" || *field == "generateName")
                .map(|(field, text)| (field.clone(), text.clone()))
                .collect()
        } else {
            sub.clone()
        };
        (name.clone(), seen)
    });
    Value::Object(entries.collect())
}

/// An error about a level, or about the field below it that a rule names.
fn field_error(rules: &Rules, rule: Option<&Rule>, detail: String, path: &str) -> FieldError {
    let kind = rules.kind.as_str();
    let below = rule.map_or("", |r| r.field_path.as_str());
    let error = match rule.and_then(|r| r.reason.as_deref()) {
        Some("FieldValueForbidden") => FieldError::forbidden(below, detail),
        Some("FieldValueRequired") => FieldError::required(below, detail),
        // That it stands twice is all that is said.
        Some("FieldValueDuplicate") => FieldError::duplicate(below, kind.into()),
        _ => FieldError::invalid(below, kind.into(), detail),
    };
    let error = error.under(path);
    match error.path.is_empty() {
        true => FieldError {
            path: super::validate::NO_PATH.to_string(),
            ..error
        },
        false => error,
    }
}

/// What is wrong with the words of a level's rules, whatever they say in CEL.
pub(crate) fn check_words(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    const REASONS: [&str; 4] = [
        "FieldValueDuplicate",
        "FieldValueForbidden",
        "FieldValueInvalid",
        "FieldValueRequired",
    ];
    let rules_path = child(path, "x-kubernetes-validations");
    for (n, rule) in list(schema.get("x-kubernetes-validations")).enumerate() {
        let at = |field: &str| child(&index(&rules_path, n), field);
        let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
        let blank = |name: &str| !text(name).is_empty() && text(name).trim().is_empty();
        let broken = |text: &str| text.contains(['\n', '\r']);
        let invalid =
            |field: &str, why: &str| FieldError::invalid(at(field), text(field).into(), why);
        let message = text("message").trim();
        if text("rule").trim().is_empty() {
            errors.push(FieldError::required(at("rule"), "rule is not specified"));
        } else if blank("message") {
            errors.push(invalid("message", "must be non-empty if specified"));
        } else if broken(message) {
            errors.push(invalid("message", "must not contain line breaks"));
        } else if broken(text("rule").trim()) && message.is_empty() {
            let why = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(at("message"), why));
        }
        if blank("messageExpression") {
            let why = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(at("messageExpression"), why));
        }
        let reason = rule.get("reason").and_then(Value::as_str);
        if let Some(reason) = reason.filter(|r| !REASONS.contains(r)) {
            let reasons = REASONS.map(str::to_string);
            errors.push(FieldError::not_supported(
                at("reason"),
                reason.into(),
                &reasons,
            ));
        }
        let field = text("fieldPath");
        if blank("fieldPath") {
            errors.push(invalid("fieldPath", "must be non-empty if specified"));
        }
        if broken(field) {
            errors.push(invalid("fieldPath", "must not contain line breaks"));
        }
        if !field.is_empty() && super::path::field_path(field, schema, true).is_err() {
            errors.push(invalid("fieldPath", "must be a valid path"));
        }
    }
}

/// What is wrong with the rules of a schema as expressions.
pub(crate) fn check_rules(path: &str, schema: &Value, errors: &mut Vec<FieldError>) {
    let mut estimates = Estimates::default();
    let top = Level {
        path: path.to_owned(),
        uncorrelatable: None,
        values: 1,
        resource: true,
    };
    check_level(&top, schema, &mut estimates, errors);
    if estimates.total > MOST_PER_SCHEMA {
        for at in estimates.dearest() {
            let why = "contributed to estimated rule & messageExpression cost total exceeding cost limit for entire OpenAPIv3 schema";
            errors.push(FieldError::forbidden(at, why));
        }
        let what = "x-kubernetes-validations estimated rule & messageExpression cost total for entire OpenAPIv3 schema";
        let why = too_dear(what, estimates.total, MOST_PER_SCHEMA);
        errors.push(FieldError::forbidden(path, why));
    }
}

/// The estimates of all expressions of a schema.
#[derive(Default)]
struct Estimates {
    total: u64,
    each: Vec<(u64, String)>,
}

impl Estimates {
    fn add(&mut self, cost: u64, at: String) {
        self.total = self.total.saturating_add(cost);
        self.each.push((cost, at));
    }

    /// Those that cost most, the dearest first.
    fn dearest(&self) -> Vec<String> {
        const MOST: usize = 4;
        let mut each: Vec<_> = self.each.iter().filter(|(cost, _)| *cost > 0).collect();
        each.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        each.into_iter()
            .take(MOST)
            .map(|(_, at)| at.clone())
            .collect()
    }
}

/// A level of a schema.
struct Level {
    path: String,
    /// The list or atomic map, if any, below which a value cannot be told from the one before.
    uncorrelatable: Option<String>,
    /// How many values of it an object can have.
    values: u64,
    resource: bool,
}

impl Level {
    fn below(&self, path: String, sub: &Value, uncorrelatable: bool, values: u64) -> Self {
        let within = self.uncorrelatable.clone();
        Self {
            path,
            uncorrelatable: within.or_else(|| uncorrelatable.then(|| self.path.clone())),
            values: self.values.saturating_mul(values),
            resource: sub.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true)),
        }
    }
}

fn check_level(
    level: &Level,
    schema: &Value,
    estimates: &mut Estimates,
    errors: &mut Vec<FieldError>,
) {
    let rules = list(schema.get("x-kubernetes-validations"));
    let any = list(schema.get("x-kubernetes-validations"))
        .next()
        .is_some();
    let known = any.then(|| types::of_schema(schema, level.resource, "selfType"));
    let known = known.flatten();
    let rules_path = child(&level.path, "x-kubernetes-validations");
    for (n, rule) in rules.enumerate() {
        let at = index(&rules_path, n);
        check_rule(&at, rule, known.as_ref(), level, estimates, errors);
    }
    if let Some(items) = schema.get("items").filter(|i| i.is_object()) {
        let is_map = schema.get("x-kubernetes-list-type") == Some(&json!("map"));
        let path = child(&level.path, "items");
        let below = level.below(path, items, !is_map, types::most_values(schema));
        check_level(&below, items, estimates, errors);
    }
    let atomic = schema.get("x-kubernetes-map-type") == Some(&json!("atomic"));
    for (name, sub) in object(schema.get("properties")) {
        let path = key(&child(&level.path, "properties"), name);
        let below = level.below(path, sub, atomic, 1);
        check_level(&below, sub, estimates, errors);
    }
    if let Some(sub) = schema.get("additionalProperties").filter(|a| a.is_object()) {
        let path = child(&level.path, "additionalProperties");
        let below = level.below(path, sub, false, types::most_values(schema));
        check_level(&below, sub, estimates, errors);
    }
}

fn check_rule(
    path: &str,
    rule: &Value,
    known: Option<&Type>,
    level: &Level,
    estimates: &mut Estimates,
    errors: &mut Vec<FieldError>,
) {
    let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
    let optional = rule.get("optionalOldSelf") == Some(&Value::Bool(true));
    let invalid = |field: &str, why: String| {
        let detail = format!("{}: {why}", crate::crd::printed_rule(rule));
        FieldError::new(child(path, field), FieldErrorKind::Invalid, None, detail)
    };
    let source = text("rule").trim();
    let program = check::parse(source);
    let variables = known.map(|known| variables(known, optional));
    match expression(source, &program, variables.as_ref()) {
        Ok(Some((gives, _))) if !gives.fits(&Type::Bool) => {
            errors.push(invalid(
                "rule",
                "cel expression must evaluate to a bool".into(),
            ));
        }
        Ok(checked) => {
            let cost = checked.map_or(0, |(_, cost)| cost);
            let cost = cost.saturating_mul(level.values);
            if cost > MOST_PER_RULE {
                let why = too_dear("estimated rule cost", cost, MOST_PER_RULE);
                errors.push(FieldError::forbidden(child(path, "rule"), why));
            }
            estimates.add(cost, child(path, "rule"));
        }
        Err(why) => errors.push(invalid("rule", format!("compilation failed: {why}"))),
    }
    let message = text("messageExpression").trim();
    if !message.is_empty() {
        match expression(message, &check::parse(message), variables.as_ref()) {
            Ok(Some((gives, _))) if !gives.fits(&Type::Text(0)) => {
                let why = "messageExpression must evaluate to a string";
                errors.push(invalid("messageExpression", why.into()));
            }
            Ok(checked) => {
                let cost = checked.map_or(0, |(_, cost)| cost);
                if cost > MOST_PER_RULE {
                    let why = too_dear("estimated messageExpression cost", cost, MOST_PER_RULE);
                    let at = child(path, "messageExpression");
                    errors.push(FieldError::forbidden(at, why));
                }
                estimates.add(cost, child(path, "messageExpression"));
            }
            Err(why) => {
                let why = format!("messageExpression compilation failed: {why}");
                errors.push(invalid("messageExpression", why));
            }
        }
    }
    let transition = program.as_ref().is_ok_and(is_transition);
    if transition && let Some(within) = &level.uncorrelatable {
        errors.push(FieldError::invalid(
            child(path, "rule"),
            text("rule").into(),
            format!(
                "oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
            ),
        ));
    } else if !transition && program.is_ok() && rule.get("optionalOldSelf").is_some() {
        errors.push(FieldError::invalid(
            child(path, "optionalOldSelf"),
            rule["optionalOldSelf"].clone(),
            "may not be set if oldSelf is not used in rule",
        ));
    }
}

/// What an expression gives and may cost, where the types of its variables are known.
fn expression(
    source: &str,
    program: &Result<Expression, String>,
    variables: Option<&[(&str, Type); 2]>,
) -> Result<Option<(Type, u64)>, String> {
    let program = program.as_ref().map_err(Clone::clone)?;
    let Some(variables) = variables else {
        return Ok(None);
    };
    let checked = check::check(source, program, variables)?;
    Ok(Some((checked.gives, checked.cost)))
}

fn too_dear(what: &str, cost: u64, most: u64) -> String {
    let times = cost as f64 / most as f64;
    let factor = match times {
        _ if times > 100.0 => "more than 100x".to_owned(),
        _ if times < 1.5 => format!("{times:.6}x"),
        _ => format!("{times:.1}x"),
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

//! What is wrong with an expression before it is ever evaluated, and what evaluating it may cost.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr,
};
use kube_cel::cel::parser::Parser;

use super::functions::{self, Overload, Price};
use super::types::Type;
use crate::schema::expression;

/// What was found out about an expression.
#[derive(Debug)]
pub(super) struct Checked {
    pub gives: Type,
    /// At most; about the units in which the real server counts.
    pub cost: u64,
    /// What one round of each loop costs at most, by the id of the loop.
    pub rounds: BTreeMap<u64, u64>,
}

/// Parses an expression.
///
/// # Errors
/// What is wrong with its form, in the words of the compiler.
pub(super) fn parse(source: &str) -> Result<IdedExpr, String> {
    if let Some(why) = expression::problem(source) {
        return Err(why);
    }
    let parser = Parser::new().enable_optional_syntax(true);
    parser
        .parse(source)
        .map_err(|errors| errors.to_string().replace("\n| ", "\n | "))
}

/// Checks the types of a parsed expression.
///
/// # Errors
/// All places where they cannot be right, in the words of the compiler.
pub(super) fn check(
    source: &str,
    parsed: &IdedExpr,
    variables: &[(&str, Type)],
) -> Result<Checked, String> {
    let scope = variables.iter();
    let mut checker = Checker {
        source,
        scope: scope.map(|(n, t)| ((*n).to_owned(), t.clone())).collect(),
        faults: Vec::new(),
        rounds: BTreeMap::new(),
    };
    let (gives, cost) = checker.infer(parsed);
    if checker.faults.is_empty() {
        Ok(Checked {
            gives,
            cost,
            rounds: checker.rounds,
        })
    } else {
        Err(checker.faults.join("\n"))
    }
}

struct Checker<'a> {
    source: &'a str,
    scope: Vec<(String, Type)>,
    faults: Vec<String>,
    rounds: BTreeMap<u64, u64>,
}

impl Checker<'_> {
    /// Notes a fault at the first place where the source has this token.
    fn fault(&mut self, token: &str, what: &str) -> Type {
        let at = place(self.source, token);
        let (before, after) = self.source.split_at(at);
        let line = before.matches('\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |n| n + 1);
        let text = &self.source[start..at + after.find('\n').unwrap_or(after.len())];
        let column = before[start..].chars().count();
        let dots = ".".repeat(column);
        let fault = format!(
            "ERROR: <input>:{line}:{}: {what}\n | {text}\n | {dots}^",
            column + 1
        );
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
        Type::Dyn
    }

    fn infer(&mut self, expression: &IdedExpr) -> (Type, u64) {
        match &expression.expr {
            Expr::Literal(literal) => (literal_type(literal), 0),
            Expr::Ident(name) => (self.variable(name), 1),
            Expr::Select(select) => self.select(select),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => {
                let (mut item, mut cost) = (Type::Dyn, 10);
                for element in &list.elements {
                    let (is, price) = self.infer(element);
                    cost = price.saturating_add(cost);
                    if !item.fits(&is) {
                        let what = format!("expected type '{item}' but found '{is}'");
                        self.fault("", &what);
                    }
                    item = item.join(is);
                }
                let size = list.elements.len() as u64;
                (Type::List(Box::new(item), size), cost)
            }
            Expr::Map(map) => {
                let (mut key, mut value, mut cost) = (Type::Dyn, Type::Dyn, 30_u64);
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        continue;
                    };
                    for (part, kept) in [(&entry.key, &mut key), (&entry.value, &mut value)] {
                        let (is, price) = self.infer(part);
                        cost = cost.saturating_add(price);
                        if !kept.fits(&is) {
                            let what = format!("expected type '{kept}' but found '{is}'");
                            self.fault("", &what);
                        }
                        *kept = std::mem::replace(kept, Type::Dyn).join(is);
                    }
                }
                let size = map.entries.len() as u64;
                (Type::Map(Box::new(key), Box::new(value), size), cost)
            }
            Expr::Comprehension(comprehension) => self.comprehension(expression.id, comprehension),
            Expr::Struct(_) | Expr::Unspecified => (Type::Dyn, 40),
        }
    }

    fn variable(&mut self, name: &str) -> Type {
        const TYPES: [&str; 10] = [
            "bool",
            "bytes",
            "double",
            "int",
            "list",
            "map",
            "null_type",
            "string",
            "type",
            "uint",
        ];
        if let Some((_, known)) = self.scope.iter().rev().find(|(n, _)| n == name) {
            return known.clone();
        }
        if TYPES.contains(&name) {
            return Type::Kind;
        }
        let what = format!("undeclared reference to '{name}' (in container '')");
        self.fault(name, &what)
    }

    fn select(&mut self, select: &SelectExpr) -> (Type, u64) {
        let (operand, cost) = self.infer(&select.operand);
        let field = match &operand {
            Type::Dyn | Type::Any(_) => Type::Dyn,
            Type::Object(object) => match object.fields.get(&select.field) {
                Some(known) => known.clone(),
                None => {
                    let what = format!("undefined field '{}'", select.field);
                    self.fault(&format!(".{}", select.field), &what)
                }
            },
            Type::Map(_, value, _) => (**value).clone(),
            // A field of an optional object is optional itself.
            Type::Optional(_) => Type::Optional(Box::new(Type::Dyn)),
            other => {
                let what = format!("type '{other}' does not support field selection");
                self.fault(&format!(".{}", select.field), &what)
            }
        };
        match select.test {
            true => (Type::Bool, cost),
            false => (field, cost.saturating_add(1)),
        }
    }

    fn call(&mut self, call: &CallExpr) -> (Type, u64) {
        // A function in a namespace looks like a member of a variable.
        if let Some(target) = &call.target
            && let Expr::Ident(space) = &target.expr
            && !self.scope.iter().any(|(n, _)| n == space)
        {
            let name = format!("{space}.{}", call.func_name);
            if functions::overloads(&name).is_some() || functions::is_other(&name) {
                return self.function(&name, None, &call.args);
            }
        }
        self.function(&call.func_name, call.target.as_deref(), &call.args)
    }

    fn function(
        &mut self,
        name: &str,
        target: Option<&IdedExpr>,
        arguments: &[IdedExpr],
    ) -> (Type, u64) {
        if functions::is_other(name) {
            // Its arguments may have variables that nobody here knows of.
            return (Type::Dyn, 1);
        }
        let mut cost = 0_u64;
        let mut costs = Vec::new();
        let mut given = Vec::new();
        for operand in target.into_iter().chain(arguments) {
            let (is, price) = self.infer(operand);
            cost = cost.saturating_add(price);
            costs.push(price);
            given.push(is);
        }
        let Some(overloads) = functions::overloads(name) else {
            let what = format!("undeclared reference to '{name}' (in container '')");
            return (self.fault(name, &what), cost);
        };
        let fitting = overloads
            .iter()
            .filter(|o| o.member == target.is_some())
            .filter_map(|o| Some((o, bound(o, &given)?)))
            .collect::<Vec<_>>();
        let Some((first, letters)) = fitting.first() else {
            let shown: Vec<String> = given.iter().map(Type::to_string).collect();
            let shown = match target {
                Some(_) => format!("{}.({})", shown[0], shown[1..].join(", ")),
                None => format!("({})", shown.join(", ")),
            };
            let what = format!("found no matching overload for '{name}' applied to '{shown}'");
            return (self.fault(&token(name), &what), cost);
        };
        // What is not known may be any of several.
        let gives = match fitting.iter().all(|(o, _)| o.gives.fits(&first.gives)) {
            true => put(&first.gives, letters),
            false => Type::Dyn,
        };
        match name {
            "_&&_" | "_||_" => return (gives, cost),
            "_?_:_" => {
                let [condition, yes, no] = costs[..] else {
                    return (gives, cost);
                };
                return (gives, condition.saturating_add(yes.max(no)));
            }
            _ => {}
        }
        let gives = match name {
            "_+_" => {
                let size = given.iter().map(Type::size).fold(0, u64::saturating_add);
                gives.sized(size)
            }
            "@in" | "_==_" => gives,
            _ if gives.size() == 0 => {
                let size = given.first().map_or(0, Type::size);
                gives.sized(size.max(32))
            }
            _ => gives,
        };
        (gives, cost.saturating_add(price(first.price, &given)))
    }

    fn comprehension(&mut self, id: u64, loops: &ComprehensionExpr) -> (Type, u64) {
        let (range, range_cost) = self.infer(&loops.iter_range);
        let (item, second) = match &range {
            Type::List(item, _) => match loops.iter_var2 {
                Some(_) => (Type::Int, (**item).clone()),
                None => ((**item).clone(), Type::Dyn),
            },
            Type::Map(key, value, _) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Any(_) => (Type::Dyn, Type::Dyn),
            other => {
                let what = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.fault("", &what);
                (Type::Dyn, Type::Dyn)
            }
        };
        let (start, start_cost) = self.infer(&loops.accu_init);
        let outside = self.scope.len();
        self.scope.push((loops.accu_var.clone(), start));
        self.scope.push((loops.iter_var.clone(), item));
        if let Some(name) = &loops.iter_var2 {
            self.scope.push((name.clone(), second));
        }
        let (_, condition_cost) = self.infer(&loops.loop_cond);
        let (step, step_cost) = self.infer(&loops.loop_step);
        self.scope.truncate(outside);
        let size = range.size();
        let step = match step {
            Type::List(item, _) => Type::List(item, size),
            other => other,
        };
        self.scope.push((loops.accu_var.clone(), step));
        let (result, result_cost) = self.infer(&loops.result);
        self.scope.truncate(outside);
        let round = condition_cost.saturating_add(step_cost).max(1);
        self.rounds.insert(id, round);
        let cost = [
            range_cost,
            start_cost,
            size.saturating_mul(round),
            result_cost,
        ];
        (result, cost.into_iter().fold(0, u64::saturating_add))
    }
}

fn literal_type(literal: &LiteralValue) -> Type {
    match literal {
        LiteralValue::Boolean(_) => Type::Bool,
        LiteralValue::Bytes(bytes) => Type::Bytes(bytes.inner().len() as u64),
        LiteralValue::Double(_) => Type::Double,
        LiteralValue::Int(_) => Type::Int,
        LiteralValue::Null => Type::Null,
        LiteralValue::String(text) => Type::Text(text.inner().len() as u64),
        LiteralValue::UInt(_) => Type::Uint,
    }
}

/// What the letters of a form stand for when it is given these operands; `None` if they do not fit.
fn bound(overload: &Overload, given: &[Type]) -> Option<BTreeMap<char, Type>> {
    if overload.takes.len() != given.len() {
        return None;
    }
    let mut letters = BTreeMap::new();
    let fit = overload.takes.iter().zip(given);
    fit.into_iter()
        .all(|(wanted, is)| bind(wanted, is, &mut letters))
        .then_some(letters)
}

fn bind(wanted: &Type, is: &Type, letters: &mut BTreeMap<char, Type>) -> bool {
    match (wanted, is) {
        (Type::Any(letter), _) => {
            let known = letters.remove(letter).unwrap_or(Type::Dyn);
            let fits = known.fits(is);
            letters.insert(*letter, known.join(is.clone()));
            fits
        }
        (Type::List(a, _), Type::List(b, _)) | (Type::Optional(a), Type::Optional(b)) => {
            bind(a, b, letters)
        }
        (Type::Map(a, b, _), Type::Map(c, d, _)) => bind(a, c, letters) && bind(b, d, letters),
        (wanted, is) => wanted.fits(is),
    }
}

fn put(form: &Type, letters: &BTreeMap<char, Type>) -> Type {
    match form {
        Type::Any(letter) => letters.get(letter).cloned().unwrap_or(Type::Dyn),
        Type::List(item, size) => Type::List(Box::new(put(item, letters)), *size),
        Type::Optional(inner) => Type::Optional(Box::new(put(inner, letters))),
        Type::Map(key, value, size) => Type::Map(
            Box::new(put(key, letters)),
            Box::new(put(value, letters)),
            *size,
        ),
        other => other.clone(),
    }
}

fn price(price: Price, given: &[Type]) -> u64 {
    let size = |n: usize| given.get(n).map_or(1, Type::size);
    let tenth = |n: u64| n.div_ceil(10);
    let cost = match price {
        Price::Unit => 1,
        Price::Text => tenth(size(0)),
        Price::Argument => tenth(size(1)),
        Price::Shorter => match (&given[0], &given[1]) {
            (Type::Dyn | Type::Any(_), _) | (_, Type::Dyn | Type::Any(_)) => 1,
            _ => tenth(size(0).min(size(1))),
        },
        Price::Texts => tenth(size(0).saturating_add(size(1))),
        Price::Items => size(1),
        Price::Walk => size(0),
        Price::Search => tenth(size(0)).saturating_mul(tenth(size(1))),
        Price::Match => tenth(size(0) + 1).saturating_mul(size(1).div_ceil(4)),
        Price::Product => size(0).saturating_mul(size(1)).saturating_mul(2),
    };
    cost.max(1)
}

/// How an operator is written.
fn token(name: &str) -> String {
    match name {
        "_?_:_" => "?".into(),
        "_[_]" => "[".into(),
        "@in" => " in ".into(),
        "!_" => "!".into(),
        "-_" => "-".into(),
        name if name.starts_with('_') && name.ends_with('_') => name.trim_matches('_').into(),
        name => format!("{name}("),
    }
}

/// The first place of a token outside of quotes: its dot, its bracket, or its beginning.
fn place(source: &str, token: &str) -> usize {
    if token.is_empty() {
        return 0;
    }
    let mut quote = None;
    for (at, c) in source.char_indices() {
        match quote {
            Some(open) if c == open && !source[..at].ends_with('\\') => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if source[at..].starts_with(token) => {
                let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                let begins = token.starts_with(|c: char| c.is_alphanumeric());
                let ends = token.ends_with(|c: char| c.is_alphanumeric());
                let inside = (begins && word(source[..at].chars().last()))
                    || (ends && word(source[at + token.len()..].chars().next()));
                if !inside {
                    return at
                        + if token.ends_with('(') {
                            token.len() - 1
                        } else {
                            0
                        }
                        + usize::from(token == " in ");
                }
            }
            None => {}
        }
    }
    0
}

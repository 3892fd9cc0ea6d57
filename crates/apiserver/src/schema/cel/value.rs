//! Values as expressions see them, and how expressions are evaluated.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Context, ExecutionError, Value as Cel};

use super::check::parse;
use serde_json::{Number, Value};

use super::types::escaped;

/// What a call may cost.
pub(super) const MOST: u64 = 1_000_000;
/// The function that counts the rounds of loops.
const TICK: &str = "@tick";

thread_local! {
    /// All functions. Evaluation does not wait for anything, so that the thread's own will do.
    static BASE: Context<'static> = {
        let mut context = Context::default();
        context.register_all();
        context.add_function(TICK, |cost: i64| {
            let left = LEFT.get().saturating_sub(cost.unsigned_abs());
            LEFT.set(left);
            match left {
                0 => Err(ExecutionError::function_error(TICK, "spent")),
                _ => Ok(true),
            }
        });
        context
    };
    /// What the expression that is being evaluated may still cost.
    static LEFT: Cell<u64> = const { Cell::new(MOST) };
    static CONVERSIONS: BTreeMap<&'static str, IdedExpr> = ["timestamp", "duration"]
        .into_iter()
        .filter_map(|name| Some((name, parse(&format!("{name}(x)")).ok()?)))
        .collect();
}

/// Why an expression has no value.
#[derive(Debug)]
pub(super) enum Failure {
    /// It would have cost too much.
    Spent,
    /// Its words.
    Broken(String),
    /// Operands of types that do not go together, which only a value of no type can bring about.
    Overload,
}

/// Evaluates an expression with variables; `rounds` is what the rounds of its loops cost, if that is to be counted.
pub(super) fn evaluate(
    expression: &IdedExpr,
    variables: &[(&str, Cel)],
    rounds: Option<&BTreeMap<u64, u64>>,
) -> Result<Cel, Failure> {
    let counted = rounds.map(|rounds| {
        let mut counted = expression.clone();
        count(&mut counted, rounds);
        counted
    });
    let expression = counted.as_ref().unwrap_or(expression);
    LEFT.set(MOST);
    let result = BASE.with(|base| {
        let mut context = base.new_inner_scope();
        for (name, value) in variables {
            context.add_variable_from_value(*name, value.clone());
        }
        Cel::resolve(expression, &context)
    });
    if LEFT.get() == 0 {
        return Err(Failure::Spent);
    }
    result.map_err(|error| match error {
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedUnaryOperator(..)
        | ExecutionError::ValuesNotComparable(..) => Failure::Overload,
        ExecutionError::NoSuchKey(key) => Failure::Broken(format!("no such key: {key}")),
        ExecutionError::DivisionByZero(_) => Failure::Broken("division by zero".into()),
        ExecutionError::RemainderByZero(_) => Failure::Broken("modulus by zero".into()),
        ExecutionError::Overflow(..) => Failure::Broken("integer overflow".into()),
        ExecutionError::IndexOutOfBounds(Cel::Int(n)) => {
            Failure::Broken(format!("index out of bounds: {n}"))
        }
        other => Failure::Broken(other.to_string()),
    })
}

/// Lets every loop ask for leave before each round.
fn count(expression: &mut IdedExpr, rounds: &BTreeMap<u64, u64>) {
    let below = |part: &mut IdedExpr| count(part, rounds);
    match &mut expression.expr {
        Expr::Call(call) => {
            call.target.iter_mut().for_each(|t| below(t));
            call.args.iter_mut().for_each(below);
        }
        Expr::Select(select) => below(&mut select.operand),
        Expr::List(list) => list.elements.iter_mut().for_each(below),
        Expr::Map(map) => {
            use kube_cel::cel::common::ast::EntryExpr::{MapEntry, StructField};
            for entry in &mut map.entries {
                match &mut entry.expr {
                    MapEntry(entry) => {
                        below(&mut entry.key);
                        below(&mut entry.value);
                    }
                    StructField(field) => below(&mut field.value),
                }
            }
        }
        Expr::Comprehension(loops) => {
            below(&mut loops.iter_range);
            below(&mut loops.accu_init);
            below(&mut loops.loop_step);
            below(&mut loops.result);
            let cost = rounds.get(&expression.id).copied().unwrap_or(1);
            let cost = i64::try_from(cost).unwrap_or(i64::MAX);
            let call = |func_name: &str, args| {
                let (func_name, target) = (func_name.to_owned(), None);
                Expr::Call(CallExpr {
                    func_name,
                    target,
                    args,
                })
            };
            let of = |expr| IdedExpr { id: 0, expr };
            let cost = of(Expr::Literal(LiteralValue::Int(cost.into())));
            let condition = std::mem::take(&mut loops.loop_cond);
            let tick = of(call(TICK, vec![cost]));
            loops.loop_cond = of(call(operators::LOGICAL_AND, vec![tick, condition]));
        }
        _ => {}
    }
}

/// A value of a schema as an expression sees it.
pub(super) fn of(schema: &Value, value: &Value) -> Cel {
    let whole = schema.get("type").and_then(Value::as_str) != Some("number");
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(number) => of_number(number, whole),
        Value::String(text) => of_text(schema, text),
        Value::Array(items) => {
            let below = schema.get("items").unwrap_or(&Value::Null);
            let items: Vec<Cel> = items.iter().map(|item| of(below, item)).collect();
            Cel::List(items.into())
        }
        Value::Object(map) => {
            let values = schema.get("additionalProperties");
            let values = values.filter(|a| **a != Value::Bool(false));
            let known = |name: &str| schema.get("properties").and_then(|p| p.get(name));
            // What is null is not there, for expressions.
            let entries = map.iter().filter(|(_, v)| !v.is_null());
            let entries = entries.map(|(name, value)| match (known(name), values) {
                // Keys of maps are as they are; names of fields must be identifiers.
                (None, Some(values)) => (name.clone(), of(values, value)),
                (known, _) => (escaped(name), of(known.unwrap_or(&Value::Null), value)),
            });
            let map: HashMap<Key, Cel> = entries.map(|(k, v)| (k.into(), v)).collect();
            Cel::Map(Map { map: map.into() })
        }
    }
}

fn of_number(number: &Number, whole: bool) -> Cel {
    match number.as_i64().filter(|_| whole) {
        Some(number) => Cel::Int(number),
        None => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
    }
}

fn of_text(schema: &Value, text: &str) -> Cel {
    let format = schema.get("format").and_then(Value::as_str);
    let converted = |name: &str, text: &str| {
        CONVERSIONS.with(|all| {
            let x = ("x", Cel::from(text.to_owned()));
            evaluate(all.get(name)?, &[x], None).ok()
        })
    };
    let other = match format.unwrap_or_default() {
        "date-time" => converted("timestamp", text),
        "date" => converted("timestamp", &format!("{text}T00:00:00Z")),
        "duration" => converted("duration", text),
        "byte" => {
            use base64::Engine;
            let bytes = base64::engine::general_purpose::STANDARD.decode(text);
            bytes.ok().map(|bytes| Cel::Bytes(bytes.into()))
        }
        _ => None,
    };
    other.unwrap_or_else(|| Cel::from(text.to_owned()))
}

/// An optional value.
pub(super) fn optional(value: Option<Cel>) -> Cel {
    thread_local! {
        static SOME: Option<IdedExpr> = parse("optional.of(x)").ok();
        static NONE: Option<IdedExpr> = parse("optional.none()").ok();
    }
    let made = match value {
        Some(value) => SOME.with(|p| evaluate(p.as_ref()?, &[("x", value)], None).ok()),
        None => NONE.with(|p| evaluate(p.as_ref()?, &[], None).ok()),
    };
    made.unwrap_or(Cel::Null)
}

//! The part of Kubernetes' JSONPath that printer columns and selectable fields use: names,
//! quoted names, indices, slices, wildcards, descent and filters with one comparison.

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Name(String),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    All,
    Descend,
    Filter(Filter),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Operand,
    comparison: Option<(Comparison, Operand)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Operand {
    Path(JsonPath),
    Literal(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// Reads a path such as `.status.conditions[?(@.type=="Ready")].status`; surrounding braces
    /// and a leading `$` are allowed.
    ///
    /// # Errors
    /// A sentence that says what could not be read.
    pub fn parse(path: &str) -> Result<Self, String> {
        let inner = path
            .strip_prefix('{')
            .and_then(|p| p.strip_suffix('}'))
            .unwrap_or(path);
        let inner = inner.strip_prefix('$').unwrap_or(inner);
        let mut reader = Reader {
            rest: inner,
            whole: path,
        };
        let mut steps = Vec::new();
        while !reader.rest.is_empty() {
            reader.step(&mut steps)?;
        }
        Ok(Self { steps })
    }

    /// All values at the path, in document order; none if something on the way is missing.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![value];
        for step in &self.steps {
            found = found.into_iter().flat_map(|v| step.apply(v)).collect();
        }
        found
    }
}

impl Step {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        match self {
            Self::Name(name) => value.get(name.as_str()).into_iter().collect(),
            Self::Index(n) => position(*n, items.len())
                .and_then(|n| items.get(n))
                .into_iter()
                .collect(),
            Self::Slice(from, to) => {
                let bound = |n: i64| {
                    let n = if n < 0 { n + items.len() as i64 } else { n };
                    n.clamp(0, items.len() as i64) as usize
                };
                let from = from.map_or(0, bound);
                let to = to.map_or(items.len(), bound);
                items.get(from..to).unwrap_or_default().iter().collect()
            }
            Self::All => match value {
                Value::Object(map) => map.values().collect(),
                _ => items.iter().collect(),
            },
            Self::Descend => {
                let mut all = vec![value];
                for child in Self::All.apply(value) {
                    all.extend(Self::Descend.apply(child));
                }
                all
            }
            Self::Filter(filter) => items.iter().filter(|item| filter.holds(item)).collect(),
        }
    }
}

fn position(n: i64, len: usize) -> Option<usize> {
    let n = if n < 0 { n + len as i64 } else { n };
    usize::try_from(n).ok()
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let Some(left) = self.left.value(item) else {
            return false;
        };
        let Some((comparison, right)) = &self.comparison else {
            return true;
        };
        right
            .value(item)
            .is_some_and(|right| comparison.holds(left, right))
    }
}

impl Operand {
    fn value<'a>(&'a self, item: &'a Value) -> Option<&'a Value> {
        match self {
            Self::Literal(value) => Some(value),
            Self::Path(path) => path.find(item).first().copied(),
        }
    }
}

impl Comparison {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::Number(a), Value::Number(b)) => a
                .as_f64()
                .zip(b.as_f64())
                .and_then(|(a, b)| a.partial_cmp(&b)),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
            _ => None,
        };
        match self {
            Self::Equal => order.is_some_and(|o| o.is_eq()),
            Self::NotEqual => order.is_none_or(|o| o.is_ne()),
            Self::Less => order.is_some_and(|o| o.is_lt()),
            Self::LessOrEqual => order.is_some_and(|o| o.is_le()),
            Self::Greater => order.is_some_and(|o| o.is_gt()),
            Self::GreaterOrEqual => order.is_some_and(|o| o.is_ge()),
        }
    }
}

/// How deep brackets can stand in each other: the condition of a filter may hold filters.
const MAX_DEPTH: usize = 16;

struct Reader<'a> {
    rest: &'a str,
    whole: &'a str,
}

impl Reader<'_> {
    fn error(&self, what: &str) -> String {
        format!("cannot read the JSONPath {:?}: {what}", self.whole)
    }

    fn step(&mut self, steps: &mut Vec<Step>) -> Result<(), String> {
        if self.take("..") {
            steps.push(Step::Descend);
            if self.rest.starts_with('[') {
                return Ok(());
            }
            return self.name(steps);
        }
        if self.take(".") {
            return self.name(steps);
        }
        if self.take("[") {
            let inside = self.bracket()?;
            steps.push(bracketed(&inside).map_err(|what| self.error(&what))?);
            return Ok(());
        }
        Err(self.error("expected '.' or '['"))
    }

    fn take(&mut self, prefix: &str) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// A plain name; a backslash takes the character after it literally.
    fn name(&mut self, steps: &mut Vec<Step>) -> Result<(), String> {
        let mut name = String::new();
        let mut chars = self.rest.char_indices();
        let mut end = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => match chars.next() {
                    Some((_, escaped)) => name.push(escaped),
                    None => return Err(self.error("nothing follows the backslash")),
                },
                '.' | '[' => {
                    end = at;
                    break;
                }
                _ => name.push(c),
            }
        }
        self.rest = &self.rest[end..];
        match name.as_str() {
            // A dot may stand before a bracket.
            "" if self.rest.starts_with('[') => {}
            // The path "." is the whole object.
            "" if steps.is_empty() && self.rest.is_empty() => {}
            "" => return Err(self.error("a name is missing")),
            "*" => steps.push(Step::All),
            _ => steps.push(Step::Name(name)),
        }
        Ok(())
    }

    /// The text up to the bracket that closes the one just read; quotes may contain brackets.
    fn bracket(&mut self) -> Result<String, String> {
        let mut depth = 1;
        let mut quote = None;
        let mut escaped = false;
        for (at, c) in self.rest.char_indices() {
            if escaped {
                escaped = false;
                continue;
            }
            match (quote, c) {
                (_, '\\') => escaped = true,
                (Some(open), _) if c == open => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => quote = Some(c),
                (None, '[') if depth == MAX_DEPTH => {
                    return Err(self.error("it has too many brackets inside brackets"));
                }
                (None, '[') => depth += 1,
                (None, ']') => {
                    depth -= 1;
                    if depth == 0 {
                        let inside = self.rest[..at].to_string();
                        self.rest = &self.rest[at + 1..];
                        return Ok(inside);
                    }
                }
                _ => {}
            }
        }
        Err(self.error("a bracket is not closed"))
    }
}

fn bracketed(inside: &str) -> Result<Step, String> {
    let inside = inside.trim();
    if inside == "*" {
        return Ok(Step::All);
    }
    if let Some(name) = quoted(inside) {
        return Ok(Step::Name(name));
    }
    if let Some(condition) = inside.strip_prefix("?(").and_then(|i| i.strip_suffix(')')) {
        return filter(condition).map(Step::Filter);
    }
    if let Some((from, to)) = inside.split_once(':') {
        let bound = |text: &str| match text.trim() {
            "" => Ok(None),
            n => n
                .parse()
                .map(Some)
                .map_err(|_| format!("{n:?} is no number")),
        };
        return Ok(Step::Slice(bound(from)?, bound(to)?));
    }
    inside
        .parse()
        .map(Step::Index)
        .map_err(|_| format!("{inside:?} is neither an index nor a quoted name nor a filter"))
}

fn filter(condition: &str) -> Result<Filter, String> {
    let comparisons = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let mut quote = None;
    for (at, c) in condition.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, _) => {
                let rest = &condition[at..];
                if let Some((sign, comparison)) =
                    comparisons.iter().find(|(sign, _)| rest.starts_with(sign))
                {
                    let left = operand(&condition[..at])?;
                    let right = operand(&rest[sign.len()..])?;
                    return Ok(Filter {
                        left,
                        comparison: Some((*comparison, right)),
                    });
                }
            }
            _ => {}
        }
    }
    Ok(Filter {
        left: operand(condition)?,
        comparison: None,
    })
}

fn operand(text: &str) -> Result<Operand, String> {
    let text = text.trim();
    if let Some(path) = text.strip_prefix('@') {
        return JsonPath::parse(path).map(Operand::Path);
    }
    if let Some(text) = quoted(text) {
        return Ok(Operand::Literal(text.into()));
    }
    serde_json::from_str(text)
        .map(Operand::Literal)
        .map_err(|_| format!("{text:?} is neither a path nor a value"))
}

/// The text between quotes, with escapes resolved.
fn quoted(text: &str) -> Option<String> {
    let inner = ['"', '\''].into_iter().find_map(|quote| {
        text.strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote))
    })?;
    let mut plain = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        plain.push(if c == '\\' {
            chars.next().unwrap_or('\\')
        } else {
            c
        });
    }
    Some(plain)
}

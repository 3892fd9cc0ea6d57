//! Label selectors and field selectors: parsing and matching.
//!
//! Grammar and meaning follow the Kubernetes documentation "Labels and Selectors" and "Field
//! Selectors": requirements are joined by commas and all must hold; `!=` and `notin` also match an
//! object that lacks the label.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::names;
use crate::schema::{FieldError, aggregate};

/// A parsed label selector. The default selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    requirements: Vec<Requirement>,
    /// A `LabelSelector` that is null selects nothing, unlike an empty one, which selects all.
    nothing: bool,
}

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// How the label's value is tested.
    pub test: Test,
}

/// What a requirement asks of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// `=`, `==` and `in`: the label exists and has one of these values.
    In(BTreeSet<String>),
    /// `!=` and `notin`: the label is absent or has none of these values.
    NotIn(BTreeSet<String>),
    /// `key`: the label exists.
    Exists,
    /// `!key`: the label does not exist.
    DoesNotExist,
    /// `key>n`: the label is an integer above `n`.
    GreaterThan(i64),
    /// `key<n`: the label is an integer below `n`.
    LessThan(i64),
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match self {
            Test::In(set) => value.is_some_and(|v| set.contains(v)),
            Test::NotIn(set) => value.is_none_or(|v| !set.contains(v)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::GreaterThan(bound) => number().is_some_and(|n| n > *bound),
            Test::LessThan(bound) => number().is_some_and(|n| n < *bound),
        }
    }
}

impl Labels {
    /// Parses the text of a `labelSelector` query parameter. An empty text selects everything.
    /// The error says which part could not be understood, in the words of the API server.
    pub fn parse(text: &str) -> Result<Labels, String> {
        let tokens = lex(text);
        let mut parser = Parser { tokens: &tokens };
        let mut requirements = Vec::new();
        loop {
            match parser.peek() {
                Token::End => break,
                Token::Word(_) | Token::Not => {}
                other => {
                    return Err(found(other, "!, identifier, or 'end of string'"));
                }
            }
            let one = parser.requirement();
            requirements.push(one.map_err(|e| format!("unable to parse requirement: {e}"))?);
            match parser.next() {
                Token::End => break,
                Token::Comma => match parser.peek() {
                    Token::Word(_) | Token::Not => {}
                    other => return Err(found(other, "identifier after ','")),
                },
                other => return Err(found(other, "',' or 'end of string'")),
            }
        }
        Ok(Labels {
            requirements,
            nothing: false,
        })
    }

    /// Reads a `metav1.LabelSelector` (`matchLabels`, `matchExpressions`). Null selects nothing,
    /// an empty object selects everything.
    pub fn from_label_selector(selector: &Value) -> Result<Labels, String> {
        if selector.is_null() {
            return Ok(Labels {
                requirements: Vec::new(),
                nothing: true,
            });
        }
        let object = selector
            .as_object()
            .ok_or("a label selector must be an object")?;
        let mut requirements = Vec::new();
        match object.get("matchLabels") {
            None | Some(Value::Null) => {}
            Some(Value::Object(labels)) => {
                for (key, value) in labels {
                    let value = value
                        .as_str()
                        .ok_or_else(|| format!("matchLabels[{key}]: the value must be a string"))?;
                    requirements.push(requirement(key, Operator::Equals, &[value.to_owned()])?);
                }
            }
            Some(_) => return Err("matchLabels must be an object".into()),
        }
        match object.get("matchExpressions") {
            None | Some(Value::Null) => {}
            Some(Value::Array(expressions)) => {
                for expression in expressions {
                    requirements.push(from_expression(expression)?);
                }
            }
            Some(_) => return Err("matchExpressions must be a list".into()),
        }
        Ok(Labels {
            requirements,
            nothing: false,
        })
    }

    /// Whether an object with these `metadata.labels` is selected.
    pub fn matches(&self, labels: Option<&Value>) -> bool {
        !self.nothing
            && self.requirements.iter().all(|r| {
                let value = labels.and_then(|l| l.get(&r.key)).and_then(Value::as_str);
                r.test.holds(value)
            })
    }

    /// Whether every object is selected.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// The requirements, in the order in which they were written.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }
}

fn from_expression(expression: &Value) -> Result<Requirement, String> {
    let key = expression
        .get("key")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let operator = expression
        .get("operator")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut values = Vec::new();
    if let Some(list) = expression.get("values").and_then(Value::as_array) {
        for value in list {
            values.push(
                value
                    .as_str()
                    .ok_or_else(|| format!("matchExpressions key {key:?}: values must be strings"))?
                    .to_owned(),
            );
        }
    }
    let operator = match operator {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        other => return Err(format!("{other:?} is not a valid label selector operator")),
    };
    requirement(key, operator, &values)
}

#[derive(Clone, Copy, PartialEq)]
enum Operator {
    In,
    NotIn,
    Equals,
    NotEquals,
    GreaterThan,
    LessThan,
    Exists,
    DoesNotExist,
}

/// Checks key and values like a label's key and value, and builds the requirement.
fn requirement(key: &str, operator: Operator, values: &[String]) -> Result<Requirement, String> {
    use Operator::{DoesNotExist, Equals, Exists, GreaterThan, In, LessThan, NotEquals, NotIn};
    let mut errors = Vec::new();
    let problems = names::qualified_problems(key);
    if !problems.is_empty() {
        errors.push(FieldError::invalid("key", json!(key), problems.join("; ")));
    }
    let mut numbers = Vec::new();
    match operator {
        In | NotIn if values.is_empty() => {
            let why = "for 'in', 'notin' operators, values set can't be empty";
            errors.push(FieldError::invalid("values", json!(values), why));
        }
        Exists | DoesNotExist if !values.is_empty() => {
            let why = "values set must be empty for exists and does not exist";
            errors.push(FieldError::invalid("values", json!(values), why));
        }
        GreaterThan | LessThan => {
            for (i, value) in values.iter().enumerate() {
                match value.parse::<i64>() {
                    Ok(number) => numbers.push(number),
                    Err(_) => {
                        let why = "for 'Gt', 'Lt' operators, the value must be an integer";
                        let path = format!("values[{i}]");
                        errors.push(FieldError::invalid(path, json!(value), why));
                    }
                }
            }
        }
        _ => {}
    }
    for (i, value) in values.iter().enumerate() {
        if let Some(problem) = names::label_value_problem(value) {
            let path = format!("values[{i}][{key}]");
            errors.push(FieldError::invalid(path, json!(value), problem));
        }
    }
    if !errors.is_empty() {
        return Err(aggregate(&errors));
    }
    let set = values.iter().cloned().collect();
    let number = numbers.first().copied().unwrap_or_default();
    Ok(Requirement {
        key: key.to_owned(),
        test: match operator {
            In | Equals => Test::In(set),
            NotIn | NotEquals => Test::NotIn(set),
            Exists => Test::Exists,
            DoesNotExist => Test::DoesNotExist,
            GreaterThan => Test::GreaterThan(number),
            LessThan => Test::LessThan(number),
        },
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Open,
    Close,
    Comma,
    Not,
    /// `=` or `==`.
    Eq(&'static str),
    NotEq,
    Greater,
    Less,
    End,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Word(w) => w,
            Token::Open => "(",
            Token::Close => ")",
            Token::Comma => ",",
            Token::Not => "!",
            Token::Eq(text) => text,
            Token::NotEq => "!=",
            Token::Greater => ">",
            Token::Less => "<",
            Token::End => "",
        }
    }
}

/// The tokens, with an end that stays the last one. What follows a NUL is not read.
fn lex(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let token = match c {
            ' ' | '\t' | '\r' | '\n' => continue,
            '\0' => break,
            '(' => Token::Open,
            ')' => Token::Close,
            ',' => Token::Comma,
            '>' => Token::Greater,
            '<' => Token::Less,
            '=' => Token::Eq(match chars.next_if_eq(&'=') {
                Some(_) => "==",
                None => "=",
            }),
            '!' => match chars.next_if_eq(&'=') {
                Some(_) => Token::NotEq,
                None => Token::Not,
            },
            first => {
                let mut word = String::from(first);
                while let Some(c) = chars.next_if(|c| !" \t\r\n(),><=!\0".contains(*c)) {
                    word.push(c);
                }
                chars.next_if_eq(&'\0');
                Token::Word(word)
            }
        };
        tokens.push(token);
    }
    tokens.push(Token::End);
    tokens
}

fn found(token: &Token, expected: &str) -> String {
    format!("found '{}', expected: {expected}", token.text())
}

struct Parser<'a> {
    /// Never empty: the end is not taken out.
    tokens: &'a [Token],
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a Token {
        self.tokens.first().unwrap_or(&Token::End)
    }

    fn next(&mut self) -> &'a Token {
        let first = self.peek();
        if self.tokens.len() > 1 {
            self.tokens = &self.tokens[1..];
        }
        first
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut token = self.next();
        let negated = token == &Token::Not;
        if negated {
            token = self.next();
        }
        let Token::Word(key) = token else {
            return Err(found(token, "identifier"));
        };
        let problems = names::qualified_problems(key);
        if !problems.is_empty() {
            // It has no field at this point, and says so.
            return Err(FieldError::invalid("<nil>", json!(key), problems.join("; ")).message());
        }
        if negated {
            return requirement(key, Operator::DoesNotExist, &[]);
        }
        if matches!(self.peek(), Token::End | Token::Comma) {
            return requirement(key, Operator::Exists, &[]);
        }
        let operator = match self.next() {
            Token::Eq(_) => Operator::Equals,
            Token::NotEq => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            Token::Word(w) if w == "in" => Operator::In,
            Token::Word(w) if w == "notin" => Operator::NotIn,
            other => return Err(found(other, "in, notin, =, ==, !=, gt, lt")),
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => BTreeSet::from([self.exact_value()?]),
        };
        requirement(key, operator, &Vec::from_iter(values))
    }

    /// `key=` compares with the empty value.
    fn exact_value(&mut self) -> Result<String, String> {
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            Token::Word(w) => Ok(w.clone()),
            other => Err(found(other, "identifier")),
        }
    }

    fn values(&mut self) -> Result<BTreeSet<String>, String> {
        let open = self.next();
        if open != &Token::Open {
            return Err(format!("found '{}' expected: '('", open.text()));
        }
        match self.peek() {
            Token::Word(_) | Token::Comma => {}
            Token::Close => {
                self.next();
                return Ok(BTreeSet::from([String::new()]));
            }
            other => return Err(found(other, "',', ')' or identifier")),
        }
        let mut values = BTreeSet::new();
        loop {
            match self.next() {
                Token::Word(word) => {
                    values.insert(word.clone());
                    match self.peek() {
                        Token::Comma => {}
                        Token::Close => break,
                        other => return Err(found(other, "',' or ')'")),
                    }
                }
                Token::Comma => {
                    if values.is_empty() {
                        values.insert(String::new());
                    }
                    match self.peek() {
                        Token::Close => {
                            values.insert(String::new());
                            break;
                        }
                        Token::Comma => {
                            self.next();
                            values.insert(String::new());
                        }
                        _ => {}
                    }
                }
                other => return Err(found(other, "',', or identifier")),
            }
        }
        self.next();
        Ok(values)
    }
}

/// One requirement of a field selector: `field=value` or `field!=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldReq {
    /// The path of the field, such as `metadata.name`.
    pub field: String,
    /// True for `=` and `==`, false for `!=`.
    pub equal: bool,
    /// The value to compare with, unescaped.
    pub value: String,
}

impl FieldReq {
    /// Whether a field with this value satisfies the requirement; an absent field counts as "".
    pub fn matches(&self, value: &str) -> bool {
        (self.value == value) == self.equal
    }
}

/// Field selectors. Which fields a kind supports is the registry's business, not this module's.
pub struct Fields;

impl Fields {
    /// Parses the text of a `fieldSelector` query parameter. In values, `\,`, `\=` and `\\` stand
    /// for the character itself.
    pub fn parse(text: &str) -> Result<Vec<FieldReq>, String> {
        let mut reqs = Vec::new();
        for term in split_unescaped(text) {
            if term.is_empty() {
                continue;
            }
            let bad = || format!("invalid selector: '{text}'; can't understand '{term}'");
            let (field, equal, value) = split_operator(term).ok_or_else(bad)?;
            reqs.push(FieldReq {
                field: unescape(field)?,
                equal,
                value: unescape(value)?,
            });
        }
        Ok(reqs)
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_operator(term: &str) -> Option<(&str, bool, &str)> {
    let mut escaped = false;
    for (i, c) in term.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else {
            for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
                if let Some(value) = term[i..].strip_prefix(operator) {
                    return Some((&term[..i], equal, value));
                }
            }
        }
    }
    None
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                other => {
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: \\{}",
                        other.map(String::from).unwrap_or_default()
                    ));
                }
            },
            // Go prints the letter as a number.
            ',' | '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {}",
                    c as u32
                ));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_operator_selects_what_the_documentation_says() {
        let labels = json!({"app": "web", "tier": "front", "n": "5", "empty": ""});
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            ("app = web , tier=front", true),
            ("app=db", false),
            ("app!=db", true),
            ("absent!=x", true),
            ("app!=web", false),
            ("app in (web, db)", true),
            ("app in(db)", false),
            ("app notin (db)", true),
            ("absent notin (db)", true),
            ("app notin (web,db)", false),
            ("app", true),
            ("!app", false),
            ("!absent", true),
            ("absent", false),
            ("n>4", true),
            ("n>5", false),
            ("n<6,app", true),
            ("app>1", false),
            ("empty=", true),
            ("empty,app=web", true),
            ("app in (,web)", true),
            ("in in (in)", false),
            ("example.com/x!=1", true),
        ] {
            let parsed = Labels::parse(selector).unwrap_or_else(|e| panic!("{selector}: {e}"));
            assert_eq!(parsed.matches(Some(&labels)), expected, "{selector}");
        }
    }

    #[test]
    fn malformed_label_selectors_are_refused() {
        for selector in [
            "app=web,",
            ",",
            "=x",
            "app in web",
            "app in (web",
            "!app=web",
            "app web",
            "app>x",
            "a b=c",
            "app=a b",
            "-x",
            "a/b/c",
            "UPPER.com/x",
            "app=-bad",
            "!",
            "x in ()) ",
        ] {
            assert!(Labels::parse(selector).is_err(), "{selector}");
        }
    }

    #[test]
    fn a_label_selector_object_is_the_and_of_its_parts() {
        let selector = json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["front", "back"]},
                {"key": "old", "operator": "DoesNotExist"},
                {"key": "zone", "operator": "NotIn", "values": ["a"]},
                {"key": "app", "operator": "Exists"},
            ]
        });
        let parsed = Labels::from_label_selector(&selector).unwrap();
        assert!(parsed.matches(Some(&json!({"app": "web", "tier": "front"}))));
        assert!(!parsed.matches(Some(&json!({"app": "web", "tier": "front", "old": ""}))));
        assert!(!parsed.matches(Some(&json!({"app": "web", "tier": "front", "zone": "a"}))));
        assert!(!parsed.matches(None));
    }

    #[test]
    fn a_null_selector_selects_nothing_and_an_empty_one_everything() {
        assert!(
            !Labels::from_label_selector(&Value::Null)
                .unwrap()
                .matches(None)
        );
        assert!(
            Labels::from_label_selector(&json!({}))
                .unwrap()
                .matches(None)
        );
        assert!(
            Labels::from_label_selector(&json!({}))
                .unwrap()
                .is_everything()
        );
    }

    #[test]
    fn a_label_selector_object_with_wrong_values_is_refused() {
        for expression in [
            json!({"key": "a", "operator": "In"}),
            json!({"key": "a", "operator": "Exists", "values": ["x"]}),
            json!({"key": "a", "operator": "Near", "values": ["x"]}),
            json!({"operator": "Exists"}),
        ] {
            let selector = json!({"matchExpressions": [expression]});
            assert!(
                Labels::from_label_selector(&selector).is_err(),
                "{selector}"
            );
        }
    }

    #[test]
    fn field_selectors_split_and_unescape() {
        let req = |field: &str, equal, value: &str| FieldReq {
            field: field.into(),
            equal,
            value: value.into(),
        };
        assert_eq!(Fields::parse("").unwrap(), vec![]);
        assert_eq!(
            Fields::parse("metadata.name=x").unwrap(),
            vec![req("metadata.name", true, "x")]
        );
        assert_eq!(
            Fields::parse("a==1,b!=2,c=").unwrap(),
            vec![
                req("a", true, "1"),
                req("b", false, "2"),
                req("c", true, "")
            ]
        );
        assert_eq!(
            Fields::parse(r"a=x\,y\=z\\").unwrap(),
            vec![req("a", true, r"x,y=z\")]
        );
        assert!(Fields::parse("metadata.name").is_err());
        assert!(Fields::parse(r"a=\x").is_err());
        assert!(Fields::parse("a=b=c").is_err());
        assert!(req("a", false, "x").matches("") && !req("a", true, "x").matches(""));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC{0,40}") {
            let _ = Labels::parse(&text);
            let _ = Fields::parse(&text);
        }

        #[test]
        fn not_in_is_the_complement_of_in(value in "[a-c]{1}", labels in prop::collection::btree_map("[k-m]", "[a-c]", 0..3)) {
            let labels = serde_json::to_value(labels).unwrap();
            let within = Labels::parse(&format!("k in ({value})")).unwrap().matches(Some(&labels));
            let without = Labels::parse(&format!("k notin ({value})")).unwrap().matches(Some(&labels));
            prop_assert_ne!(within, without);
        }
    }
}

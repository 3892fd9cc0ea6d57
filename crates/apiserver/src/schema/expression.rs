//! How large an expression in CEL can be. The parser calls itself for what stands inside, and whoever walks the result
//! does so too: what is too deep would end the process.

/// Characters of an expression. The reference implementation takes 100 000; errors of the parser here can be printed
/// for columns up to 65 535.
const MAX_LENGTH: usize = 60_000;

/// Brackets inside brackets, and conditions inside conditions.
const MAX_DEPTH: usize = 80;

/// Operators and fields in a row, each of which stands inside the next: as in the reference implementation.
const MAX_CHAIN: usize = 250;

/// What stands at one level of brackets.
#[derive(Default)]
struct Level {
    conditions: usize,
    chain: usize,
}

/// Why an expression is too large to be parsed, or has a text that does not end.
pub(crate) fn problem(expression: &str) -> Option<String> {
    let length = expression.chars().count();
    if length > MAX_LENGTH {
        return Some(format!(
            "expression code point size exceeds limit: size: {length}, limit {MAX_LENGTH}"
        ));
    }
    let too_deep = |limit: usize| Some(format!("expression recursion limit exceeded: {limit}"));
    let mut levels = vec![Level::default()];
    // Of the open levels.
    let (mut depth, mut chain) = (0, 0);
    let mut rest = expression;
    while let Some(c) = rest.chars().next() {
        if c.is_ascii_alphanumeric() || c == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            rest = after;
            if after.starts_with(['"', '\'']) {
                let raw = matches!(
                    word,
                    "r" | "R" | "br" | "bR" | "Br" | "BR" | "rb" | "rB" | "Rb" | "RB"
                );
                match text_end(after, raw) {
                    Some(after) => rest = after,
                    None => return Some(NO_END.into()),
                }
            }
            continue;
        }
        if matches!(c, '"' | '\'') {
            match text_end(rest, false) {
                Some(after) => rest = after,
                None => return Some(NO_END.into()),
            }
            continue;
        }
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
            continue;
        }
        rest = &rest[c.len_utf8()..];
        let inside = levels.len() > 1;
        let level = levels.last_mut()?;
        match c {
            '(' | '[' | '{' => {
                // An index or a call is one more in the row.
                level.chain += 1;
                chain += 1;
                depth += 1;
                levels.push(Level::default());
            }
            ')' | ']' | '}' if inside => {
                let closed = levels.pop()?;
                depth -= 1 + closed.conditions;
                chain -= closed.chain;
            }
            // What follows stands beside what was before.
            ',' => {
                depth -= level.conditions;
                chain -= level.chain;
                *level = Level::default();
            }
            // Of these the parser makes a balanced tree.
            '&' | '|' => {
                chain -= level.chain;
                level.chain = 0;
            }
            '?' => {
                level.conditions += 1;
                depth += 1;
            }
            '.' | '+' | '-' | '*' | '/' | '%' | '!' | '<' | '>' | '=' => {
                level.chain += 1;
                chain += 1;
            }
            _ => {}
        }
        if depth > MAX_DEPTH {
            return too_deep(MAX_DEPTH);
        }
        if chain > MAX_CHAIN {
            return too_deep(MAX_CHAIN);
        }
    }
    None
}

const NO_END: &str = "Syntax error: a string has no end, or an escape that does not exist";

/// What follows a text, which starts with its quote. `None` when it is none to the parser: then it would read on inside.
fn text_end(text: &str, raw: bool) -> Option<&str> {
    let quote = &text[..1];
    let triple = [quote; 3].concat();
    let (end, mut rest) = match text.strip_prefix(&triple) {
        Some(rest) => (triple.as_str(), rest),
        None => (quote, &text[1..]),
    };
    loop {
        if let Some(after) = rest.strip_prefix(end) {
            return Some(after);
        }
        let mut chars = rest.chars();
        match chars.next()? {
            '\n' | '\r' if end.len() == 1 => return None,
            '\\' if !raw => {
                let digits = match chars.next()? {
                    'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`' => 0,
                    'x' | 'X' => 2,
                    'u' => 4,
                    'U' => 8,
                    '0'..='3' => 2,
                    _ => return None,
                };
                for _ in 0..digits {
                    chars.next().filter(char::is_ascii_hexdigit)?;
                }
            }
            _ => {}
        }
        rest = chars.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_as_people_write_them_are_no_problem() {
        for rule in [
            "self.l.exists(x, x.k == self.s) ? self.n in [1, 2] : size(self.s) > 0",
            r#"self.matches(r"^\d+((((") && self != '\'((' // ((("#,
            r#"""" a "quoted" (( text """ + 'x'"#,
            "has(self.a) || !has(self.b)",
        ] {
            assert_eq!(problem(rule), None, "{rule}");
        }
        let many = vec!["self.a.b(c) == 'x' ? 1 : 2"; 1000].join(", ");
        assert_eq!(problem(&format!("[{many}]")), None);
        assert_eq!(problem(&vec!["self.a.b > 3"; 1000].join(" && ")), None);
    }

    #[test]
    fn what_is_too_deep_is_told() {
        for (before, after) in [
            ("(", ")"),
            ("[", "]"),
            ("true ? true : ", ""),
            ("f(1, ", ")"),
            ("a[b ? 1 : ", "]"),
            ("xr'' + (", ")"),
        ] {
            let text = format!("{}1{}", before.repeat(100), after.repeat(100));
            let problem = problem(&text).unwrap_or_default();
            assert!(
                problem.contains("limit exceeded: 80"),
                "{before}: {problem}"
            );
        }
        for unit in ["!", "-", "1 + ", "a.", "f().", "a[0].", "1 == "] {
            let problem = problem(&unit.repeat(300)).unwrap_or_default();
            assert!(problem.contains("limit exceeded: 250"), "{unit}: {problem}");
        }
    }

    #[test]
    fn a_text_hides_nothing_that_the_parser_reads() {
        for text in ["'(((", "'\n(((", r"'\q((('", r"'\x0((('", "\"\"\"(((\""] {
            assert_eq!(problem(text).as_deref(), Some(NO_END), "{text}");
        }
        // Only these letters before a text change what a backslash is.
        let deep = format!(r"xr'\' + '{}", "(".repeat(100));
        assert!(problem(&deep).is_some_and(|p| p.contains("limit exceeded")));
        assert!(problem(&"a".repeat(MAX_LENGTH + 1)).is_some());
    }
}

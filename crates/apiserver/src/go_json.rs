//! What Go's `encoding/json` says about a text that is no JSON: clients and people know these sentences.

use serde_json::Value;

/// A text as Go quotes it.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if crate::names::is_print(c) => out.push(c),
            c if (c as u32) < 0x80 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x10000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
    out
}

/// The problem with a text, if it has one.
pub(crate) fn problem(text: &[u8]) -> Option<String> {
    let mut scanner = Scanner {
        text,
        at: 0,
        depth: 0,
    };
    let found = scanner.value("looking for beginning of value");
    let found = found.and_then(|()| {
        scanner.space();
        match scanner.text.get(scanner.at) {
            Some(_) => Err(scanner.odd("after top-level value")),
            None => Ok(()),
        }
    });
    found.err()
}

/// How deep objects and arrays can stand in each other: no more than the decoder takes.
pub(crate) const MAX_DEPTH: usize = 127;

/// How many objects and arrays stand in each other.
pub(crate) fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Object(map) => map.values().map(depth).max(),
        Value::Array(list) => list.iter().map(depth).max(),
        _ => return 0,
    };
    1 + deepest.unwrap_or_default()
}

const END: &str = "unexpected end of JSON input";

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    /// Objects and arrays that are open.
    depth: usize,
}

impl Scanner<'_> {
    fn space(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// The sentence about the byte here.
    fn odd(&self, context: &str) -> String {
        match self.text.get(self.at) {
            None => END.into(),
            Some(b'\'') => format!("invalid character '\\'' {context}"),
            Some(b'"') => format!("invalid character '\"' {context}"),
            Some(byte @ (0..=8 | 11 | 12 | 14..=31 | 127)) => {
                format!("invalid character '\\x{byte:02x}' {context}")
            }
            Some(byte) => format!("invalid character {:?} {context}", char::from(*byte)),
        }
    }

    fn next(&mut self) -> Option<u8> {
        self.space();
        self.text.get(self.at).copied()
    }

    fn value(&mut self, context: &str) -> Result<(), String> {
        match self.next() {
            Some(b'{') => self.inside(Self::object),
            Some(b'[') => self.inside(Self::array),
            Some(b'"') => self.string(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.odd(context)),
        }
    }

    /// Go refuses a text of this kind, too, though it has more room.
    fn inside(&mut self, read: fn(&mut Self) -> Result<(), String>) -> Result<(), String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("exceeded max depth".into());
        }
        read(self)?;
        self.depth -= 1;
        Ok(())
    }

    fn object(&mut self) -> Result<(), String> {
        self.at += 1;
        if self.next() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.next() != Some(b'"') {
                return Err(self.odd("looking for beginning of object key string"));
            }
            self.string()?;
            if self.next() != Some(b':') {
                return Err(self.odd("after object key"));
            }
            self.at += 1;
            self.value("looking for beginning of value")?;
            match self.next() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.odd("after object key:value pair")),
            }
        }
    }

    fn array(&mut self) -> Result<(), String> {
        self.at += 1;
        if self.next() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value("looking for beginning of value")?;
            match self.next() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.odd("after array element")),
            }
        }
    }

    fn string(&mut self) -> Result<(), String> {
        self.at += 1;
        loop {
            match self.text.get(self.at) {
                None => return Err(END.into()),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.at += 2,
                Some(0..0x20) => return Err(self.odd("in string literal")),
                Some(_) => self.at += 1,
            }
        }
    }

    fn word(&mut self, word: &str) -> Result<(), String> {
        for expected in word.bytes() {
            if self.text.get(self.at) != Some(&expected) {
                let expected = char::from(expected);
                return Err(self.odd(&format!("in literal {word} (expecting {expected:?})")));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), String> {
        if self.text.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        if !matches!(self.text.get(self.at), Some(b'0'..=b'9')) {
            return Err(self.odd("in numeric literal"));
        }
        while matches!(
            self.text.get(self.at),
            Some(b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')
        ) {
            self.at += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::problem;

    #[test]
    fn problems_read_as_in_go() {
        for (text, expected) in [
            ("", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            (
                "hello",
                "invalid character 'h' looking for beginning of value",
            ),
            (
                "{a",
                "invalid character 'a' looking for beginning of object key string",
            ),
            ("{\"a\" 1", "invalid character '1' after object key"),
            (
                "{\"a\": 1 2",
                "invalid character '2' after object key:value pair",
            ),
            ("[1 2", "invalid character '2' after array element"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("[".repeat(1_000_000).as_str(), "exceeded max depth"),
            (
                "trust",
                "invalid character 's' in literal true (expecting 'e')",
            ),
        ] {
            assert_eq!(
                problem(text.as_bytes()).as_deref(),
                Some(expected),
                "{text}"
            );
        }
        assert_eq!(
            problem(br#" {"a": [1, -2.5e3, "x\"y", true, null]} "#),
            None
        );
    }
}

//! What the fuzzer starts from and what it has found, sent once more: every fault found stays mended.

use std::path::Path;

#[path = "../../../../fuzz/src/lib.rs"]
mod requests;

/// Sends every input that is kept for a target; the codes of the answers.
fn kept(folder: &str, target: &str) -> Vec<u16> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz")
        .join(folder)
        .join(target);
    let Ok(entries) = std::fs::read_dir(path) else {
        return Vec::new();
    };
    let mut files: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    files.sort();
    let codes = files.iter().map(|file| {
        let code = requests::check(target, &std::fs::read(file).unwrap());
        println!("{}: {code:?}", file.display());
        code.unwrap()
    });
    codes.collect()
}

#[test]
fn every_input_that_was_kept_is_answered_soundly() {
    for target in requests::TARGETS {
        // What is refused at once does not lead a fuzzer far.
        let accepted = kept("seeds", target).iter().filter(|c| **c < 300).count();
        assert!(
            accepted > 1,
            "{target} starts from {accepted} requests that are accepted"
        );
        kept("found", target);
    }
}

#[test]
fn every_kept_input_belongs_to_a_target() {
    for folder in ["seeds", "found"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fuzz")
            .join(folder);
        for entry in std::fs::read_dir(path).into_iter().flatten() {
            let name = entry.unwrap().file_name();
            assert!(
                requests::TARGETS.iter().any(|t| name == *t),
                "{folder}/{name:?} is for no target"
            );
        }
    }
}

/// A resource of which parsers have little: the stack. What is longer than an input of the fuzzer is made here.
#[test]
fn no_depth_of_a_body_ends_the_server() {
    const N: usize = 50_000;
    let repeated = |open: &str, close: &str| format!("{}{}", open.repeat(N), close.repeat(N));
    let json = [
        repeated("[", "]"),
        "[".repeat(N),
        format!("{}1{}", r#"{"a":"#.repeat(N), "}".repeat(N)),
        r#"{"a":"#.repeat(N),
    ];
    for text in &json {
        for target in [
            "json_patch",
            "merge_patch",
            "strategic_patch",
            "body",
            "protobuf",
            "apply",
        ] {
            for head in ["00", "14", "11"] {
                requests::check(target, format!("{head}{text}").as_bytes());
                requests::check(target, format!(r#"{head}{{"data":{text}}}"#).as_bytes());
            }
        }
        requests::check(
            "json_patch",
            format!(r#"10[{{"op":"add","path":"/data","value":{text}}}]"#).as_bytes(),
        );
        requests::check("selectors", format!("01\n\n{}", &text[..7000]).as_bytes());
    }
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: ";
    for unit in [
        "[", "{a: ", "- ", "? ", "\n- - ", "!x ", "&a ", "a: ", "? - ",
    ] {
        for head in [head, ""] {
            let text = format!("11{head}{}", unit.repeat(N));
            requests::check("apply", text.as_bytes());
            requests::check("body", text.as_bytes());
        }
    }
    // Each line stands one step further to the right.
    let stairs: String = (0..1500)
        .map(|n| format!("\n{}a:", " ".repeat(n + 1)))
        .collect();
    requests::check("apply", format!("10{head}{stairs} x").as_bytes());
    requests::check("body", format!("15{head}{stairs} x").as_bytes());
    for unit in ["(", "!", "a,", "a in (", "\\", "a="] {
        let text = unit.repeat(3000 / unit.len());
        requests::check("selectors", format!("00{text}\n{text}").as_bytes());
    }
}

#[test]
fn no_depth_of_an_expression_ends_the_server() {
    let seed = include_str!("../../../../fuzz/seeds/definition/rules");
    let rule = r#""self.l.exists(x, x.k == self.s) ? self.num in [1, 2] : size(self.s) > 0 && oldSelf.num != self.num""#;
    let pattern = r#""^a(b|c)*[d-f]{2,3}$""#;
    let path = r#"'.spec.l[?(@.k=="a")].v[0:2].*'"#;
    for known in [rule, pattern, path] {
        assert!(seed.contains(known), "{known}");
    }
    let expressions = [
        ("(", "self.num == 1", ")"),
        ("!", "true", ""),
        ("-", "1 == 1", ""),
        ("[", "1", "]"),
        ("{1: ", "1", "}"),
        ("1 + ", "1 == 1", ""),
        ("true && ", "true", ""),
        ("true || ", "true", ""),
        ("true ? true : ", "true", ""),
        ("", "self", ".a"),
        ("", "self.l", "[0]"),
        ("", "self.s", ".trim()"),
        ("size(", "self.s", ")"),
        ("(", "", ""),
        ("'", "", ""),
    ];
    for n in [70, 300, 30_000] {
        for (before, middle, after) in expressions {
            let text = format!("\"{}{middle}{}\"", before.repeat(n), after.repeat(n));
            println!("{before}{middle}{after}");
            requests::check("definition", seed.replace(rule, &text).as_bytes());
        }
        for unit in ["(", "[", "a{9}{9}", "(a|", "(?:", "a**"] {
            println!("{unit}");
            let text = format!("\"{}\"", unit.repeat(n));
            requests::check("definition", seed.replace(pattern, &text).as_bytes());
        }
        for (before, after) in [
            ("[?(@", ")]"),
            ("..a", ""),
            (".*", ""),
            ("[0]", ""),
            ("[", "]"),
            ("[?(@", ""),
        ] {
            println!("{before}");
            let text = format!("'.a{}{}'", before.repeat(n), after.repeat(n));
            requests::check("definition", seed.replace(path, &text).as_bytes());
        }
    }
}

#[test]
fn no_json_patch_makes_much_of_little() {
    let copies = |from: &str, to: &str, n: usize| {
        let one = format!(r#"{{"op":"copy","from":"{from}","path":"{to}"}}"#);
        format!("10[{}]", vec![one; n].join(","))
    };
    // Twice as large, or twice as deep, with each operation.
    for from in ["", "/data", "/metadata"] {
        for to in ["/data/x", "/metadata/labels", "/data"] {
            requests::check("json_patch", copies(from, to, 60).as_bytes());
        }
    }
    let deep = format!(r#"{}1{}"#, r#"{"a":"#.repeat(100), "}".repeat(100));
    let operations: Vec<String> = (0..80)
        .map(|n| {
            let path = "/a".repeat(100 * n);
            format!(r#"{{"op":"add","path":"/metadata/annotations{path}","value":{deep}}}"#)
        })
        .collect();
    requests::check(
        "json_patch",
        format!("10[{}]", operations.join(",")).as_bytes(),
    );
}

//! What the webhooks answer: a table for each part of the product with every rule, its neighbour that is
//! allowed, facts that could not be read, those who are let through and objects on their way out; and what
//! holds for every answer.

mod failovers;
mod groups;
mod machines;
mod policies;
mod properties;
mod requests;
mod resources;
mod role_flip;
mod world;
mod zones;

use std::fmt::Write;

use farshore_core::admission::{Reason, Verdict};

/// One row: what is asked, the answer, and the whole message if it must be a refusal.
pub struct Case(pub &'static str, pub Verdict, pub Option<&'static str>);

/// Checks a table and writes it down, for a snapshot.
pub fn table(cases: &[Case]) -> String {
    let mut text = String::new();
    for Case(asked, verdict, expect) in cases {
        let said = verdict.refusal.as_ref().map(|r| r.message.as_str());
        assert_eq!(said, *expect, "{asked}");
        let field = |f: &Option<String>| f.clone().unwrap_or("(object)".into());
        let answer = verdict.refusal.as_ref().map_or("allowed".into(), |r| {
            let (code, reason) = (r.reason.code(), r.reason.as_str());
            format!("{code} {reason} {}: {}", field(&r.field), r.message)
        });
        writeln!(text, "{asked}\n    {answer}").unwrap();
        for warning in &verdict.warnings {
            assert!(
                warning.len() <= 256,
                "Kubernetes would cut this warning: {warning}"
            );
            writeln!(text, "    ! {warning}").unwrap();
        }
    }
    text
}

/// Whether this is the answer of a fact that could not be read, and names it.
pub fn could_not_read(verdict: &Verdict, what: &str) -> bool {
    verdict.refusal.as_ref().is_some_and(|r| {
        r.reason == Reason::Unavailable
            && r.message.contains(what)
            && r.message.contains("the wire is cut")
            && r.message.contains("try again")
    })
}

//! Decisions on access, kept for as long as no role and no binding changes: the same few questions come with
//! every request.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use crate::rbac::{Attributes, Decision, User};

/// Most decisions that are kept; with one more all are forgotten.
const MOST: usize = 4096;

/// The newest revision of each table that the policy is made of.
pub(crate) type Policies = [u64; 4];

#[derive(Default)]
pub(crate) struct Decisions(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    policies: Policies,
    by_question: BTreeMap<String, Decision>,
}

impl Decisions {
    /// The decision kept for a question while the policy is at these revisions, or what `decide` says.
    pub fn get(
        &self,
        policies: Policies,
        user: User<'_>,
        attributes: &Attributes,
        decide: impl FnOnce() -> Decision,
    ) -> Decision {
        let question = question(user, attributes);
        {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.policies != policies {
                kept.policies = policies;
                kept.by_question.clear();
            }
            if let Some(decision) = kept.by_question.get(&question) {
                return decision.clone();
            }
        }
        let decision = decide();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever found a newer policy meanwhile has cleared what is kept.
        if kept.policies == policies {
            if kept.by_question.len() >= MOST {
                kept.by_question.clear();
            }
            kept.by_question.insert(question, decision.clone());
        }
        decision
    }
}

/// Who asks and for what, in one text.
fn question(user: User<'_>, attributes: &Attributes) -> String {
    let Attributes {
        verb,
        group,
        resource,
        subresource,
        namespace,
        name,
        path,
    } = attributes;
    let mut text = String::with_capacity(256);
    let parts = [verb, group, resource, subresource, namespace, name, path];
    let parts = user.groups.iter().chain(parts).map(String::as_str);
    for part in [user.name].into_iter().chain(parts) {
        // The length of each part keeps it apart from the next, whatever it is made of.
        let _ = write!(text, "{}:{part}", part.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(verb: &str, name: &str) -> Attributes {
        Attributes {
            verb: verb.into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    fn user(groups: &[String]) -> User<'_> {
        User {
            name: "ada",
            groups,
        }
    }

    fn told(allowed: bool) -> Decision {
        Decision {
            allowed,
            reason: String::new(),
        }
    }

    #[test]
    fn a_question_is_decided_once_until_the_policy_changes() {
        let decisions = Decisions::default();
        let get = attributes("get", "a");
        let first = decisions.get([1; 4], user(&[]), &get, || told(true));
        let again = decisions.get([1; 4], user(&[]), &get, || unreachable!("it is kept"));
        assert_eq!(first, again);
        assert!(
            !decisions
                .get([1, 1, 2, 1], user(&[]), &get, || told(false))
                .allowed
        );
    }

    #[test]
    fn questions_that_differ_in_any_part_are_decided_apart() {
        let by = |name: &'static str, groups: &'static [&'static str]| {
            let groups: Vec<String> = groups.iter().map(|&g| g.to_owned()).collect();
            let user = User {
                name,
                groups: &groups,
            };
            question(user, &Attributes::default())
        };
        let mut some = vec![
            by("a", &[]),
            by("ab", &[]),
            by("a", &["b"]),
            by("a", &["b", "c"]),
            by("a", &["bc"]),
            by("a", &["b1:c"]),
            by("a1:b", &[]),
            by("a\u{0}1:b", &[]),
        ];
        let set: [fn(&mut Attributes, String); 7] = [
            |a, x| a.verb = x,
            |a, x| a.group = x,
            |a, x| a.resource = x,
            |a, x| a.subresource = x,
            |a, x| a.namespace = x,
            |a, x| a.name = x,
            |a, x| a.path = x,
        ];
        for set in set {
            let mut attributes = Attributes::default();
            set(&mut attributes, "x".into());
            some.push(question(user(&[]), &attributes));
        }
        let apart: std::collections::BTreeSet<_> = some.iter().collect();
        assert_eq!(apart.len(), some.len(), "{some:#?}");
    }
}

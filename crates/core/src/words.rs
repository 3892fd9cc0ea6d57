//! Sentences for a person who reads at night. Whatever waits or failed is told in five parts: what
//! is blocked, by which object, since when, what happens next, and what the reader can do. Messages
//! name moments, never ages: an age would change a status each time it is computed.

use std::fmt;

use jiff::Timestamp;

/// Something that waits or failed, told in five parts.
#[derive(Clone, Debug)]
pub struct Wait<'a> {
    /// What is blocked, as a clause: `VM shop/db01 is not started`.
    pub what: String,
    /// By which object or fact, as a clause: `DRBDResource shop/drbd-… (cluster east) is Secondary`.
    pub by: String,
    /// Since when, where known.
    pub since: Option<Timestamp>,
    /// What happens next and when: `It is started as soon as the resource is Primary`.
    pub next: &'a str,
    /// What the reader can do: a command that looks; one that changes something says what it does:
    /// `Delete the zone with: kubectl …`.
    pub command: String,
}

impl fmt::Display for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.by)?;
        if let Some(since) = self.since {
            write!(f, " since {}", moment(since))?;
        }
        write!(f, ". {}.", self.next)?;
        match self.command.as_str() {
            "" => Ok(()),
            command if is_bare(command) => write!(f, " Look with: {command}"),
            command => write!(f, " {command}"),
        }
    }
}

/// Whether this is a command alone, without a sentence about what it does before it.
fn is_bare(command: &str) -> bool {
    command.starts_with(|first: char| first.is_ascii_lowercase())
}

/// The command that helps with a cluster of which nothing is known, by why: a cluster that was not
/// asked at all, for a fault of its kubeconfig, is not to be looked at, but the Secret is. Its content
/// is not printed by it.
pub fn look_at_silent(cluster: &str, why: &str) -> String {
    match secret_at_fault(why) {
        Some((namespace, name)) => format!("kubectl -n {namespace} describe secret {name}"),
        None => format!("kubectl --context {cluster} get --raw /readyz"),
    }
}

/// Clause that says that nothing is known of a cluster, and why.
pub fn silent(cluster: &str, why: &str) -> String {
    if secret_at_fault(why).is_some() {
        format!("cluster {cluster} is not asked ({why})")
    } else {
        format!("cluster {cluster} does not answer ({why})")
    }
}

/// Namespace and name of the Secret that the reason names.
fn secret_at_fault(why: &str) -> Option<(&str, &str)> {
    let (_, rest) = why.split_once("Secret ")?;
    let (namespace, rest) = rest.split_once('/')?;
    let part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let name = &rest[..rest.find(|c| !part(c)).unwrap_or(rest.len())];
    let plain = !namespace.is_empty() && namespace.chars().all(part) && !name.is_empty();
    plain.then_some((namespace, name))
}

/// A moment in whole seconds, UTC.
pub fn moment(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second())
        .unwrap_or(at)
        .to_string()
}

/// Up to three names, then a count: `a, b, c and 4 more`.
pub fn list<S: AsRef<str>>(names: &[S]) -> String {
    let shown = names
        .iter()
        .take(3)
        .map(AsRef::as_ref)
        .collect::<Vec<_>>()
        .join(", ");
    match names.len() {
        0 => "none".into(),
        1..=3 => shown,
        n => format!("{shown} and {} more", n - 3),
    }
}

/// As [`list`], naming each shown item with `say`; the others are only counted.
pub fn list_by<T>(items: &[T], say: impl Fn(&T) -> String) -> String {
    let shown: Vec<String> = items.iter().take(3).map(say).collect();
    match items.len() {
        0..=3 => list(&shown),
        n => format!("{} and {} more", shown.join(", "), n - 3),
    }
}

/// A number of things with its unit: `1 VM`, `3 VMs`.
pub fn count(n: usize, one: &str) -> String {
    if n == 1 {
        format!("1 {one}")
    } else {
        format!("{n} {one}s")
    }
}

/// A number of bytes in the largest binary unit that keeps one decimal: `1.5 GiB`.
pub fn bytes(n: i64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n.max(0) as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = if unit == 0 {
        format!("{value}")
    } else {
        format!("{value:.1}")
    };
    format!(
        "{} {}",
        text.strip_suffix(".0").unwrap_or(&text),
        UNITS[unit]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_three_names_are_told_then_a_count() {
        assert_eq!(list(&["a", "b", "c"]), "a, b, c");
        assert_eq!(list(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
        assert_eq!(list::<&str>(&[]), "none");
    }

    #[test]
    fn bytes_have_a_unit() {
        assert_eq!(
            [bytes(512), bytes(1024), bytes(1_610_612_736)],
            ["512 B", "1 KiB", "1.5 GiB"]
        );
    }

    #[test]
    fn a_command_that_changes_something_says_what_it_does() {
        let wait = |command: &str| {
            let (what, by, command) = ("a".into(), "b".into(), command.into());
            let next = "c";
            Wait {
                what,
                by,
                since: None,
                next,
                command,
            }
            .to_string()
        };
        assert_eq!(
            wait("kubectl get node"),
            "a: b. c. Look with: kubectl get node"
        );
        assert_eq!(
            wait("Delete it with: kubectl delete node n1"),
            "a: b. c. Delete it with: kubectl delete node n1"
        );
    }

    #[test]
    fn a_kubeconfig_at_fault_is_looked_at_and_not_the_cluster() {
        for why in [
            "Secret dr-m/east does not exist; create it",
            "Secret dr-m/east has no key kubeconfig for the kubeconfig of cluster east",
            "Secret dr-m/east: invalid YAML",
            "cluster east has not confirmed that it is the one that the zone knows, so nothing is sent to it with the kubeconfig in Secret dr-m/east: timed out",
        ] {
            let command = look_at_silent("east", why);
            assert_eq!(command, "kubectl -n dr-m describe secret east", "{why}");
            assert!(!silent("east", why).contains("does not answer"), "{why}");
        }
        for why in ["timed out after 5 s", "Secret", "a Secret is not it"] {
            let command = look_at_silent("east", why);
            assert_eq!(command, "kubectl --context east get --raw /readyz", "{why}");
            assert!(silent("east", why).contains("does not answer"));
        }
    }

    #[test]
    fn a_wait_has_five_parts() {
        let wait = Wait {
            what: "VM shop/db01 is not started".into(),
            by: "Node n1 is NotReady".into(),
            since: Some(Timestamp::from_second(0).unwrap()),
            next: "It is started when the node is back",
            command: "kubectl get node n1".into(),
        };
        assert_eq!(
            wait.to_string(),
            "VM shop/db01 is not started: Node n1 is NotReady since 1970-01-01T00:00:00Z. It is started when the node is back. Look with: kubectl get node n1"
        );
    }
}

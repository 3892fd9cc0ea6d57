//! The request log: what was asked, by whom, and whether it changed anything.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Entries kept before the oldest are dropped.
const KEPT: usize = 20_000;

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Position in the log, from 0.
    pub index: u64,
    /// User name.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for other paths the method.
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural resource; empty for paths that are not resources, whose path is in `name`.
    pub resource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Object name, or empty.
    pub name: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// HTTP status code.
    pub code: u16,
    /// Whether the request changed the store.
    pub changed: bool,
    /// Revision of the store after the request.
    pub revision: u64,
    /// Field manager of a write, or empty.
    pub manager: String,
    /// User-Agent header.
    pub user_agent: String,
}

impl LogEntry {
    /// Whether the verb is a write, even if it changed nothing.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }
}

impl std::fmt::Display for LogEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            user,
            verb,
            resource,
            namespace,
            name,
            subresource,
            code,
            revision,
            ..
        } = self;
        let sub = if subresource.is_empty() {
            String::new()
        } else {
            format!("/{subresource}")
        };
        let changed = if self.changed { " changed" } else { "" };
        write!(
            f,
            "{code} {verb} {resource}{sub} {namespace}/{name} by {user} ({}) at {revision}{changed}",
            self.manager
        )
    }
}

#[derive(Default)]
struct Ring {
    next: u64,
    entries: VecDeque<LogEntry>,
}

/// A handle on the log of one server; clones share it. The newest 20 000 entries are kept.
#[derive(Clone, Default)]
pub struct RequestLog(Arc<Mutex<Ring>>);

impl RequestLog {
    fn with<T>(&self, f: impl FnOnce(&mut Ring) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn push(&self, mut entry: LogEntry) {
        self.with(|ring| {
            entry.index = ring.next;
            ring.next += 1;
            ring.entries.push_back(entry);
            if ring.entries.len() > KEPT {
                ring.entries.pop_front();
            }
        });
    }

    /// A position: entries logged from now on are "since" it.
    pub fn mark(&self) -> u64 {
        self.with(|ring| ring.next)
    }

    /// Entries since a mark, oldest first.
    pub fn since(&self, mark: u64) -> Vec<LogEntry> {
        self.with(|ring| {
            ring.entries
                .iter()
                .filter(|e| e.index >= mark)
                .cloned()
                .collect()
        })
    }

    /// Write requests since a mark, whether or not they changed anything.
    pub fn writes_since(&self, mark: u64) -> Vec<LogEntry> {
        self.since(mark)
            .into_iter()
            .filter(LogEntry::is_write)
            .collect()
    }

    /// All kept entries, oldest first.
    pub fn entries(&self) -> Vec<LogEntry> {
        self.since(0)
    }
}

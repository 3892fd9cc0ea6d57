//! watch: a stream of changes, one JSON document per line.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, error::TryRecvError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use super::read::{self, Selector};
use super::{Call, Reply, ReplyBody};
use crate::conversion;
use crate::error::{ApiError, ApiResult};
use crate::fault::Down;
use crate::negotiate::Form;
use crate::store::{Event, EventKind, Stored};

/// Time between bookmarks.
const BOOKMARK: Duration = Duration::from_secs(60);
/// How long a watch lasts when the client names no time.
const DEFAULT_TIMEOUT: u64 = 30 * 60;
/// Longest time that counts: a year.
const LONGEST_TIMEOUT: u64 = 365 * 24 * 60 * 60;
/// Annotation of the bookmark that ends the initial events of a streaming list.
const INITIAL_END: &str = "k8s.io/initial-events-end";

pub(crate) async fn watch(call: &mut Call) -> ApiResult<Reply> {
    if !call.target.name.is_empty() {
        // The deprecated single-object watch is a watch with a field selector.
        return Err(ApiError::method_not_allowed());
    }
    let selector = Selector::of(call)?;
    let revision = read::revision(call)?;
    let initial = call.query.get("sendInitialEvents");
    let bookmarks = call.query.flag("allowWatchBookmarks");
    let seconds = match call.query.get("timeoutSeconds").filter(|s| *s != "0") {
        Some(text) => {
            let seconds: i64 = text.parse().map_err(|_| ApiError::no_number(text))?;
            // One that is over already ends at once.
            u64::try_from(seconds).unwrap_or(0).min(LONGEST_TIMEOUT)
        }
        None => DEFAULT_TIMEOUT,
    };
    if let Some(text) = call.query.get("limit") {
        text.parse::<i64>().map_err(|_| ApiError::no_number(text))?;
    }
    let up = call.server.fault.up();
    let mut queue = VecDeque::new();
    let with_initial = match initial {
        Some("true") => true,
        Some(_) => false,
        None => revision.is_none_or(|r| r == 0),
    };
    let table = call.resource.table.clone();
    let namespace = Some(call.target.namespace.clone()).filter(|n| !n.is_empty());
    let (backlog, rx, sent) = if with_initial || revision.is_none_or(|r| r == 0) {
        let (snapshot, rx) = call
            .server
            .store
            .list_and_watch(&table, namespace.as_deref());
        if with_initial {
            let mut objects = snapshot.objects;
            objects.retain(|o| selector.matches(&o.value));
            let (server, resource) = (&call.server, &call.resource);
            let objects = conversion::fetch_all(server, resource, call.version(), objects).await?;
            let mut shown = call.detached();
            for object in &objects {
                queue.push_back(line("ADDED", &read::show(&shown, object)));
                shown.headless = true;
            }
            if initial == Some("true") && bookmarks {
                queue.push_back(bookmark(call, snapshot.revision, true));
            }
        }
        (Vec::new(), rx, snapshot.revision)
    } else {
        let revision = revision.unwrap_or_default();
        match call.server.store.watch_from(&table, revision) {
            Ok((backlog, rx)) => (backlog, rx, revision),
            Err(expired) => {
                // Reported inside the stream: clients list again on that, while a failed start makes them retry.
                let error = ApiError::expired(format!(
                    "too old resource version: {} ({})",
                    expired.requested, expired.oldest
                ));
                let only = line("ERROR", error.status().to_string().as_bytes());
                return Ok(stream_reply(futures::stream::iter([Ok(only)]).boxed()));
            }
        }
    };
    let mut call = call.detached();
    call.headless = !queue.is_empty();
    let mut watcher = Watcher {
        call,
        selector,
        namespace,
        queue,
        rx,
        sent,
        bookmarks,
        next_bookmark: Instant::now() + BOOKMARK,
        deadline: Instant::now() + Duration::from_secs(seconds),
        up,
        done: false,
    };
    for event in backlog {
        watcher.take(&event).await;
    }
    let stream = futures::stream::unfold(watcher, |mut watcher| async move {
        watcher.next().await.map(|item| (item, watcher))
    });
    Ok(stream_reply(stream.boxed()))
}

fn stream_reply(stream: futures::stream::BoxStream<'static, Result<Bytes, BoxError>>) -> Reply {
    Reply {
        body: ReplyBody::Stream(stream),
        ..Reply::bytes(200, Bytes::new())
    }
}

struct Watcher {
    call: Call,
    selector: Selector,
    namespace: Option<String>,
    queue: VecDeque<Bytes>,
    rx: mpsc::Receiver<Arc<Event>>,
    /// Everything up to this revision was looked at.
    sent: u64,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    up: CancellationToken,
    done: bool,
}

impl Watcher {
    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if self.up.is_cancelled() && !self.done {
                self.done = true;
                return Some(Err(Down(self.call.server.name.clone()).into()));
            }
            if let Some(line) = self.queue.pop_front() {
                return Some(Ok(line));
            }
            if self.done {
                return None;
            }
            tokio::select! {
                biased;
                () = self.up.cancelled() => {}
                () = tokio::time::sleep_until(self.deadline) => {
                    self.catch_up().await;
                    self.done = true;
                }
                () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => {
                    self.catch_up().await;
                    self.next_bookmark = Instant::now() + BOOKMARK;
                }
                // Last, so that a busy stream starves neither its deadline nor its bookmarks.
                event = self.rx.recv() => match event {
                    Some(event) => self.take(&event).await,
                    None => self.done = true,
                },
            }
        }
    }

    /// Takes what is committed so far, then says with a bookmark how far that is.
    async fn catch_up(&mut self) {
        let revision = self.call.server.store.revision();
        loop {
            match self.rx.try_recv() {
                Ok(event) => self.take(&event).await,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    // It was cut off, so there may be events that it was not given: no word of them.
                    self.done = true;
                    return;
                }
            }
        }
        self.sent = self.sent.max(revision);
        if self.bookmarks {
            let line = bookmark(&self.call, self.sent, false);
            self.queue.push_back(line);
        }
    }

    /// Queues what this watcher sees of an event: objects enter and leave a selection.
    async fn take(&mut self, event: &Event) {
        if event.revision <= self.sent {
            // A watch from the future waits for it.
            return;
        }
        self.sent = event.revision;
        if self
            .namespace
            .as_deref()
            .is_some_and(|n| n != crate::meta::namespace(&event.object.value))
        {
            return;
        }
        let before = event
            .previous
            .as_ref()
            .is_some_and(|p| self.selector.matches(&p.value));
        let after = event.kind != EventKind::Deleted && self.selector.matches(&event.object.value);
        let (kind, object) = match (before, after) {
            (false, false) => return,
            (false, true) => ("ADDED", event.object.clone()),
            (true, true) => ("MODIFIED", event.object.clone()),
            (true, false) if event.kind == EventKind::Deleted => ("DELETED", event.object.clone()),
            (true, false) => {
                // It left the selection: its last selected state, at the revision of the change.
                let previous = event.previous.as_ref().map_or(&event.object, |p| p);
                ("DELETED", Stored::at_revision(previous, event.revision))
            }
        };
        let bytes = match read::shown(&self.call, &object).await {
            Ok(bytes) => line(kind, &bytes),
            Err(error) => line("ERROR", error.status().to_string().as_bytes()),
        };
        self.call.headless = true;
        self.queue.push_back(bytes);
    }
}

fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(object.len() + 40);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_bytes());
    out.put_slice(b"\",\"object\":");
    out.put_slice(object);
    out.put_slice(b"}\n");
    out.freeze()
}

fn bookmark(call: &Call, revision: u64, initial_end: bool) -> Bytes {
    let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    if initial_end {
        metadata["annotations"] = json!({INITIAL_END: "true"});
    }
    let object: Value = match call.form {
        Form::Object => {
            json!({"kind": call.resource.kind, "apiVersion": call.resource.api_version(&call.version().name), "metadata": metadata})
        }
        Form::Metadata { v1beta1, .. } => read::partial(&json!({"metadata": metadata}), v1beta1),
        Form::Table { v1beta1 } => {
            let version = if v1beta1 {
                "meta.k8s.io/v1beta1"
            } else {
                "meta.k8s.io/v1"
            };
            json!({"kind": "Table", "apiVersion": version, "metadata": metadata, "columnDefinitions": [], "rows": []})
        }
    };
    line("BOOKMARK", object.to_string().as_bytes())
}

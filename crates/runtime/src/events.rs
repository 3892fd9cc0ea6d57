//! Events: what happened to an object, for `kubectl describe` and the console.
//!
//! They are written as core/v1: an event of `events.k8s.io` has no `lastTimestamp`, by which `kubectl
//! describe` and `kubectl get events --sort-by=.lastTimestamp` put a story in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use farshore_core::Note;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;

use crate::Clock;

/// How long the same note again counts up the event of the first.
const SERIES: SignedDuration = SignedDuration::from_mins(10);
/// Longest reason that the API takes.
const LONGEST_REASON: usize = 128;
/// Longest note that the API takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// Publishes notes as events of one controller. Clones share what was said.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    controller: String,
    instance: String,
    clock: Clock,
    said: Arc<Mutex<BTreeMap<Key, Said>>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
    warning: bool,
    reason: String,
    message: String,
}

struct Said {
    event: String,
    count: i32,
    last: Timestamp,
}

impl Recorder {
    /// Speaks as `controller`, instance `instance` (the pod).
    pub fn new(client: Client, controller: &str, instance: &str, clock: Clock) -> Self {
        Self {
            client,
            controller: controller.into(),
            instance: instance.into(),
            clock,
            said: Arc::default(),
        }
    }

    /// Publishes a note about an object. The same note again within 10 minutes counts up the event
    /// of the first. A failure is logged: events are never worth failing for.
    pub async fn publish<K: Resource<DynamicType = ()>>(&self, about: &K, note: &Note) {
        self.publish_about(about.object_ref(&()), note).await;
    }

    /// As [`Self::publish`], about a reference.
    pub async fn publish_about(&self, about: ObjectReference, note: &Note) {
        if let Err(error) = self.try_publish(about, note).await {
            tracing::warn!(%error, reason = note.reason, "cannot publish an event");
        }
    }

    async fn try_publish(&self, about: ObjectReference, note: &Note) -> kube::Result<()> {
        let namespace = about
            .namespace
            .clone()
            .filter(|n| !n.is_empty())
            .unwrap_or_else(|| "default".into());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        let key = Key {
            kind: text(&about.kind),
            namespace: text(&about.namespace),
            name: text(&about.name),
            uid: text(&about.uid),
            warning: note.warning,
            reason: cut(&note.reason, LONGEST_REASON),
            message: cut(&note.message, LONGEST_NOTE),
        };
        let now = self.clock.now();
        if let Some((event, count)) = self.again(&key, now) {
            let again = json!({"count": count, "lastTimestamp": self.clock.time()});
            match api
                .patch(
                    &event,
                    &PatchParams::apply(&self.controller),
                    &Patch::Merge(&again),
                )
                .await
            {
                Ok(_) => return Ok(()),
                // Events expire: say it anew.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        let event = self.event(&namespace, &key, about, now);
        let name = event.metadata.name.clone().unwrap_or_default();
        match api.create(&PostParams::default(), &event).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error),
        }
        self.said
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(
                key,
                Said {
                    event: name,
                    count: 1,
                    last: now,
                },
            );
        Ok(())
    }

    /// Forgets what is too old to be repeated; the event and its new count, if this is a repetition.
    fn again(&self, key: &Key, now: Timestamp) -> Option<(String, i32)> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, s| now.duration_since(s.last) < SERIES);
        let entry = said.get_mut(key)?;
        entry.count = entry.count.saturating_add(1);
        entry.last = now;
        Some((entry.event.clone(), entry.count))
    }

    fn event(&self, namespace: &str, key: &Key, about: ObjectReference, now: Timestamp) -> Event {
        let identity = [
            key.kind.as_str(),
            &key.uid,
            &key.reason,
            &key.message,
            &self.controller,
            &self.instance,
            &now.as_microsecond().to_string(),
        ]
        .join("\n");
        let object: String = key.name.chars().take(200).collect();
        // The time first: events of one second are told in the order of their names.
        let order = now.as_microsecond();
        let once = fnv1a(identity.as_bytes()) & 0xffff_ffff;
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{object}.{order:x}{once:08x}")),
                namespace: Some(namespace.into()),
                ..ObjectMeta::default()
            },
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            message: Some(key.message.clone()),
            reason: Some(key.reason.clone()),
            involved_object: about,
            source: Some(EventSource {
                component: Some(self.controller.clone()),
                host: None,
            }),
            reporting_component: Some(format!("siterecovery.trilio.io/{}", self.controller)),
            reporting_instance: Some(cut(&self.instance, LONGEST_REASON)),
            type_: Some(if key.warning { "Warning" } else { "Normal" }.into()),
            ..Event::default()
        }
    }
}

/// At most `limit` bytes, cut at a character.
fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_string();
    }
    let mut end = limit - '…'.len_utf8();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

/// The FNV-1a hash: the same in every process, unlike std's.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

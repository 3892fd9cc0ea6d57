//! How two sides find, judge and lose each other.

use farshore_api::drbd::{DiskState, Role};
use tokio::time::Instant;

use super::bitmap::Bitmap;
use super::metadata::{Meeting, meet};
use super::state::{Connection, Key, Place, State};

impl State {
    /// Lets everything happen that is due now. Tells whether a connection was lost.
    pub(crate) fn settle(&mut self, now: Instant) -> bool {
        let lost = self.notice_silence(now);
        self.seek_peers(now);
        self.tick(now);
        self.hear();
        lost
    }

    fn notice_silence(&mut self, now: Instant) -> bool {
        let mut lost = Vec::new();
        let mut connections = std::mem::take(&mut self.connections);
        for (id, connection) in &mut connections {
            let here = connection.sides.each_ref().map(|side| {
                self.resources
                    .get(side)
                    .is_some_and(|r| r.connection == Some(*id))
            });
            if here == [true, true] && self.link_up {
                connection.silent_since = None;
                continue;
            }
            let since = *connection.silent_since.get_or_insert(now);
            // A node that is up again refuses the packets of the life before: noticed at once.
            let refused = self.link_up
                && connection
                    .sides
                    .iter()
                    .zip(here)
                    .all(|((place, _), here)| here || self.node_up(place));
            if refused || now >= since + self.options.peer_timeout || here == [false, false] {
                lost.push(*id);
            }
        }
        self.connections = connections;
        for id in &lost {
            self.lose(*id, false);
        }
        !lost.is_empty()
    }

    /// Sides that reach each other tell of their role and disk.
    fn hear(&mut self) {
        let mut connections = std::mem::take(&mut self.connections);
        for connection in connections
            .values_mut()
            .filter(|c| c.silent_since.is_none())
        {
            for (side, heard) in connection.sides.iter().zip(&mut connection.heard) {
                if let Some(resource) = self.resources.get(side) {
                    *heard = (resource.role, resource.disk());
                }
            }
        }
        self.connections = connections;
    }

    /// A side leaves its connection in good order: a peer that can be reached knows at once,
    /// otherwise it notices the silence.
    pub(crate) fn part(&mut self, key: &Key, goodbye: bool) {
        let Some(id) = self.resources.get(key).and_then(|r| r.connection) else {
            return;
        };
        if self.reachable_peer(key).is_some() {
            self.lose(id, goodbye);
        } else {
            self.leave(key, false, Role::Unknown);
        }
    }

    /// Ends a connection for whoever still believes in it.
    fn lose(&mut self, id: u64, goodbye: bool) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        let [a, b] = &connection.sides;
        let [(role_a, _), (role_b, _)] = connection.heard;
        for (side, peer_role) in [(a, role_b), (b, role_a)] {
            if self
                .resources
                .get(side)
                .is_some_and(|r| r.connection == Some(id))
            {
                self.leave(side, goodbye, peer_role);
            }
        }
    }

    /// One side goes on without its peer.
    fn leave(&mut self, key: &Key, goodbye: bool, peer_role: Role) {
        let generation = self.generation();
        let Some(own) = self.resources.get_mut(key) else {
            return;
        };
        own.connection = None;
        own.md(|m| {
            let under_way = std::mem::take(&mut m.active);
            // Writes under way may not have reached the peer. They are acknowledged here alone,
            // unless this side has no good data to go on with.
            if !under_way.is_empty() && m.disk != DiskState::Inconsistent {
                m.branch(generation);
            }
            for block in under_way.into_values() {
                m.dirty.set(block, block + 1);
            }
            if m.disk == DiskState::UpToDate && !m.last_primary {
                m.disk = if goodbye && peer_role == Role::Primary {
                    DiskState::Outdated
                } else {
                    DiskState::Consistent
                };
            }
        });
        self.touch(&key.0);
    }

    fn seek_peers(&mut self, now: Instant) {
        if !self.link_up {
            return;
        }
        let seeking: Vec<Key> = self
            .resources
            .iter()
            .filter(|(_, r)| r.wants_peer && r.connection.is_none())
            .map(|(key, _)| key.clone())
            .collect();
        for key in seeking {
            if let Some(peer) = self.answering_peer(&key) {
                self.shake_hands(&key, &peer, now);
            }
        }
    }

    /// The resource on the other side that seeks this one and agrees about addresses and ids.
    fn answering_peer(&self, key: &Key) -> Option<Key> {
        let own = self.resources.get(key)?;
        if !own.wants_peer || own.connection.is_some() {
            return None;
        }
        let there = (
            Place::new(&own.config.peer.cluster, &own.config.peer.node),
            key.1.clone(),
        );
        let peer = self.resources.get(&there)?;
        let agreed = peer.config.local == own.config.peer && peer.config.peer == own.config.local;
        (agreed && peer.wants_peer && peer.connection.is_none()).then_some(there)
    }

    fn shake_hands(&mut self, a: &Key, b: &Key, now: Instant) {
        let (Some(own), Some(peer)) = (self.resources.get(a), self.resources.get(b)) else {
            return;
        };
        if own.config.shared_secret != peer.config.shared_secret
            || own.config.protocol != peer.config.protocol
        {
            return self.stand_alone(a, b, false);
        }
        let mut meeting = own.md(|m| m.clone());
        let verdict = {
            let theirs = peer.md(|m| m.clone());
            let verdict = meet(&meeting, &theirs);
            meeting.dirty.union(&theirs.dirty);
            verdict
        };
        let verdict = match verdict {
            Meeting::Unrelated => return self.stand_alone(a, b, false),
            Meeting::SplitBrain => match (own.discard_my_data, peer.discard_my_data) {
                (true, false) => Meeting::Target { full: false },
                (false, true) => Meeting::Source { full: false },
                _ => return self.stand_alone(a, b, true),
            },
            other => other,
        };
        let target = match verdict {
            Meeting::Target { .. } => Some(own),
            Meeting::Source { .. } => Some(peer),
            _ => None,
        };
        // Two Primaries are refused, and so is a Primary with good data that would have to give
        // it up; both go on trying (`rr-conflict retry-connect`).
        let two_primaries = own.role == Role::Primary && peer.role == Role::Primary;
        if two_primaries
            || target
                .is_some_and(|t| t.role == Role::Primary && t.disk() != DiskState::Inconsistent)
        {
            return;
        }
        self.join(a, b, verdict, &meeting.dirty, now);
    }

    fn join(&mut self, a: &Key, b: &Key, verdict: Meeting, dirty: &Bitmap, now: Instant) {
        let id = self.number();
        let blocks = [a, b]
            .iter()
            .filter_map(|k| self.resources.get(*k))
            .map(|r| r.blocks)
            .min()
            .unwrap_or(0);
        for key in [a, b] {
            if let Some(side) = self.resources.get_mut(key) {
                side.blocks = blocks;
                side.connection = Some(id);
                side.discard_my_data = false;
                side.split_brain = false;
                side.md(|m| m.crashed_primary = false);
            }
        }
        self.connections.insert(
            id,
            Connection {
                sides: [a.clone(), b.clone()],
                heard: [(Role::Unknown, DiskState::DUnknown); 2],
                silent_since: None,
                sync: None,
            },
        );
        match verdict {
            Meeting::Source { full } => self.begin_sync(id, a, b, full, dirty, now),
            Meeting::Target { full } => self.begin_sync(id, b, a, full, dirty, now),
            _ => self.same_data(a, b),
        }
        self.touch(&a.0);
        self.touch(&b.0);
    }

    /// The generations agree: whoever had doubts about its data has them no more.
    fn same_data(&mut self, a: &Key, b: &Key) {
        let (Some(own), Some(peer)) = (self.resources.get(a), self.resources.get(b)) else {
            return;
        };
        if own.disk() != DiskState::Inconsistent {
            for side in [own, peer] {
                side.md(|m| {
                    debug_assert!(m.dirty.is_empty(), "the same generation, yet blocks differ");
                    m.disk = DiskState::UpToDate;
                });
            }
        }
        // One of the two may call its data good when they part again.
        let both = own.md(|m| m.last_primary) && peer.md(|m| m.last_primary);
        if both {
            let keeper_is_own = own.role == Role::Primary || peer.role != Role::Primary;
            let other = if keeper_is_own { peer } else { own };
            other.md(|m| m.last_primary = false);
        }
    }

    fn stand_alone(&mut self, a: &Key, b: &Key, split_brain: bool) {
        for key in [a, b] {
            if let Some(side) = self.resources.get_mut(key) {
                side.wants_peer = false;
                side.discard_my_data = false;
                side.split_brain = split_brain;
            }
            self.touch(&key.0);
        }
    }
}

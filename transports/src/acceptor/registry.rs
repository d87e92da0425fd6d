//! Which ranks of this process can be reached, and under which secrets.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use annulus_plan::Rank;

use super::Handler;
use crate::secret::{KeyId, Secret};

/// The registrations, newest last.
#[derive(Default)]
pub(super) struct Registry {
    keys: HashMap<KeyId, Vec<Entry>>,
    next: u64,
}

struct Entry {
    number: u64,
    secret: Secret,
    rank: Rank,
    handler: Arc<dyn Handler>,
}

impl Registry {
    /// Adds a registration and returns its number.
    pub(super) fn add(&mut self, secret: &Secret, rank: Rank, handler: Arc<dyn Handler>) -> u64 {
        let number = self.next;
        self.next += 1;
        let entry = Entry { number, secret: secret.clone(), rank, handler };
        self.keys.entry(secret.key_id()).or_default().push(entry);
        number
    }

    /// Removes a registration; the caller drops its handler.
    pub(super) fn remove(&mut self, number: u64) -> Option<Arc<dyn Handler>> {
        let mut removed = None;
        self.keys.retain(|_, entries| {
            if let Some(at) = entries.iter().position(|entry| entry.number == number) {
                removed = Some(entries.remove(at).handler);
            }
            !entries.is_empty()
        });
        removed
    }

    /// The secret that a client has named.
    pub(super) fn secret(&self, key: KeyId) -> Option<Secret> {
        Some(self.keys.get(&key)?.first()?.secret.clone())
    }

    /// Whether one of the ranks under this key wants sessions.
    pub(super) fn wants_sessions(&self, key: KeyId) -> bool {
        let entries = self.keys.get(&key);
        entries.is_some_and(|entries| entries.iter().any(|entry| entry.handler.wants_sessions()))
    }

    /// Who takes connections to `rank`.
    pub(super) fn handler(&self, key: KeyId, rank: u32) -> Option<Arc<dyn Handler>> {
        let entries = self.keys.get(&key)?;
        let entry = entries.iter().rev().find(|entry| entry.rank as u64 == u64::from(rank))?;
        Some(entry.handler.clone())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.keys.iter().map(|(key, entries)| {
            (key.to_string(), entries.iter().map(|entry| entry.rank).collect::<Vec<_>>())
        });
        f.debug_map().entries(ranks).finish()
    }
}

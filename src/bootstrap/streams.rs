//! Which of two connections carries a link.
//!
//! Either of two ranks may need a socket first, and must get it whatever the other one is doing. So both may connect: the **lower** rank
//! as soon as it needs the socket, the **higher** one when the lower's connection does not come at once. Of the lower rank the
//! acceptor's thread answers this offer, while its calls may be anywhere:
//!
//! * It is taken when the lower rank has not needed the socket yet. It will find it here when it does, and not connect.
//! * It is declined when the lower rank has begun to connect. That connection is on its way, and the higher rank waits for it.
//!
//! The lower rank decides alone and once, under one lock, so that both use the same of the two, and nothing is sent on
//! the other. An offer that breaks before it is answered is repeated. The answer is not authenticated: who could forge it could cut the
//! connection as well.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// The sockets of one rank that peers have connected, and which of them it connects itself. `K` names a socket, `W` is one.
pub(super) struct Streams<K, W> {
    /// Nobody has asked for these yet.
    here: HashMap<K, W>,
    /// Those to higher ranks that were asked for.
    claimed: HashSet<K>,
}

/// What becomes of an offer. The code goes over the offered connection, as its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is the one to be used.
    Taken = 1,
    /// The other one is, which is on its way.
    Declined = 2,
}

impl Answer {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        [Self::Taken, Self::Declined].into_iter().find(|answer| *answer as u8 == code)
    }
}

impl<K: Eq + Hash, W> Streams<K, W> {
    /// For the higher rank: the lower's connection, if it is here.
    pub(super) fn take(&mut self, key: &K) -> Option<W> {
        self.here.remove(key)
    }

    /// For the lower rank: what the higher one has offered, or `None`; then it must connect, and no offer is taken any more.
    pub(super) fn take_or_claim(&mut self, key: K) -> Option<W> {
        let offered = self.here.remove(&key);
        self.claimed.insert(key);
        offered
    }

    /// Whether the lower rank's connection is here.
    pub(super) fn has(&self, key: &K) -> bool {
        self.here.contains_key(key)
    }

    /// The lower rank has connected.
    pub(super) fn arrived(&mut self, key: K, stream: W) {
        self.here.insert(key, stream);
    }

    /// What the lower rank says to an offer. If it takes it, [`arrived`](Self::arrived) is to follow under the same lock.
    pub(super) fn answer(&self, key: &K) -> Answer {
        if self.claimed.contains(key) { Answer::Declined } else { Answer::Taken }
    }

    /// Takes out all that is here.
    pub(super) fn clear(&mut self) -> HashMap<K, W> {
        std::mem::take(&mut self.here)
    }
}

impl<K, W> Default for Streams<K, W> {
    fn default() -> Self {
        Self { here: HashMap::new(), claimed: HashSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: (usize, usize) = (5, 0);

    #[test]
    fn an_offer_is_taken_until_the_socket_is_needed() {
        let mut lower = Streams::default();
        assert_eq!(lower.answer(&KEY), Answer::Taken);
        lower.arrived(KEY, "offer");
        // The first was lost on the way, as far as the higher rank knows.
        assert_eq!(lower.answer(&KEY), Answer::Taken);
        lower.arrived(KEY, "second offer");
        assert_eq!(lower.take_or_claim(KEY), Some("second offer"));
        assert_eq!(lower.answer(&KEY), Answer::Declined);
        assert_eq!(lower.answer(&(5, 1)), Answer::Taken, "another socket");
    }

    #[test]
    fn an_offer_is_declined_once_the_lower_rank_connects() {
        let mut lower = Streams::<_, &str>::default();
        assert_eq!(lower.take_or_claim(KEY), None);
        assert_eq!(lower.answer(&KEY), Answer::Declined);
    }

    #[test]
    fn the_lower_ranks_connection_waits_for_the_higher_rank() {
        let mut higher = Streams::default();
        assert!(!higher.has(&KEY));
        higher.arrived(KEY, "stream");
        assert!(higher.has(&KEY));
        assert_eq!((higher.take(&KEY), higher.take(&KEY)), (Some("stream"), None));
        higher.arrived(KEY, "another");
        assert_eq!(higher.clear().len(), 1);
    }

    #[test]
    fn answers_are_told_apart() {
        for answer in [Answer::Taken, Answer::Declined] {
            assert_eq!(Answer::from_code(answer as u8), Some(answer));
        }
        assert_eq!((Answer::from_code(0), Answer::from_code(3)), (None, None));
    }
}

//! Communicators with more ranks.

use std::sync::Arc;

use annulus_plan::Rank;
use annulus_transports::secret::Secret;

use super::{Communicator, remote};
use crate::bootstrap::UNIQUE_ID_BYTES;
use crate::{Error, UniqueId};

/// The rank that invites.
const INVITER: Rank = 0;
const NONCE: usize = 32;
const MAC: usize = 32;
/// Bytes of an invitation on its way to the other ranks: whether there is one, a nonce, the id under a key, and a proof.
const LETTER: usize = 1 + NONCE + UNIQUE_ID_BYTES + MAC;

/// Why there is no larger communicator. The old one is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// The new world is no larger.
    #[error(
        "a communicator of {old} ranks cannot grow to {new}: the new world size counts the old ranks too"
    )]
    World {
        /// The old world size.
        old: usize,
        /// The new one.
        new: usize,
    },
    /// Rank 0 passed no invitation.
    #[error(
        "rank 0 passed no invitation: it calls invite, hands the result to the new ranks, and passes it to grow"
    )]
    NoInvitation,
    /// Another rank than 0 invites, or passed an invitation.
    #[error("only rank 0 invites, and passes its invitation to grow; the others pass None")]
    NotRankZero,
    /// What rank 0 passed on was changed on its way.
    #[error("the invitation that rank 0 passed on was damaged on its way")]
    Damaged,
    /// The system gives no random numbers.
    #[error("no random numbers from the system: {0}")]
    Random(String),
}

impl Communicator {
    /// Makes the id by which new ranks can join this communicator's in a larger one: see [`grow`](Self::grow). Only rank 0
    /// calls it, and hands the id to the new processes by a way that strangers cannot read. Its secret is a new one, which tells nothing
    /// about this communicator's. This process keeps serving those who come for an hour.
    ///
    /// # Errors
    /// [`Error::Grow`] on another rank than 0, [`Error::Bootstrap`] when the process cannot listen.
    pub fn invite(&self) -> Result<UniqueId, Error> {
        if self.rank() != INVITER {
            return Err(self.cannot_grow(GrowError::NotRankZero));
        }
        Ok(UniqueId::new()?)
    }

    /// Makes a communicator of `world` ranks: this one's, which keep their numbers, and new ones, which call
    /// [`Communicator::init`] with the invitation, the remaining numbers and the same `world`. All ranks of this communicator call
    /// `grow`; rank 0 passes what [`invite`](Self::invite) made, the others pass `None` and get it from rank 0, under a key that
    /// follows from this communicator's secret.
    ///
    /// Blocks until all ranks have come, at most [`Config::timeout`](crate::Config::timeout). This communicator must work, and goes on
    /// working.
    ///
    /// ```
    /// # use annulus::{Communicator, Config};
    /// # let ranks = Communicator::local(2)?;
    /// # let (tell, hear) = std::sync::mpsc::channel();
    /// # std::thread::scope(|threads| {
    /// # for comm in &ranks { let tell = tell.clone(); threads.spawn(move || {
    /// // On the old ranks:
    /// let invitation = if comm.rank() == 0 { Some(comm.invite()?) } else { None };
    /// # if let Some(id) = &invitation { tell.send(id.clone()).unwrap(); }
    /// let larger = comm.grow(3, invitation.as_ref())?;
    /// assert_eq!((larger.rank(), larger.world_size()), (comm.rank(), 3));
    /// larger.barrier()?;
    /// # Ok::<_, annulus::Error>(()) }); }
    /// # threads.spawn(move || { let id = hear.recv().unwrap();
    /// // On the new one:
    /// let larger = Communicator::init(&id, 2, 3, &Config::from_env()?)?;
    /// larger.barrier()?;
    /// # Ok::<_, annulus::Error>(()) });
    /// # });
    /// # Ok::<(), annulus::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Grow`] when `world` is no larger than this one's or rank 0 passes no invitation, [`Error::Bootstrap`] when the ranks do not
    /// come in time or disagree, and what a call can return.
    pub fn grow(&self, world: usize, invitation: Option<&UniqueId>) -> Result<Self, Error> {
        let key = self.shared.peers.secret().map(|secret| secret.derive(b"grow"));
        let sealed = match (self.rank(), invitation) {
            (INVITER, Some(id)) => seal(id, key.as_ref()),
            _ => Ok([0; LETTER]),
        };
        // Whatever is wrong, the others must not wait for it.
        let mut letter = sealed.as_ref().copied().unwrap_or([0; LETTER]);
        self.broadcast(&mut letter, INVITER)?;
        sealed.map_err(|error| self.cannot_grow(GrowError::Random(error.to_string())))?;
        if self.rank() != INVITER && invitation.is_some() {
            return Err(self.cannot_grow(GrowError::NotRankZero));
        }
        let id = open(&letter, key.as_ref()).map_err(|error| self.cannot_grow(error))?;
        let old = self.world_size();
        if world <= old {
            return Err(self.cannot_grow(GrowError::World { old, new: world }));
        }
        remote::init(&id, self.rank(), world, &self.shared.config)
    }

    fn cannot_grow(&self, source: GrowError) -> Error {
        Error::Grow { rank: self.rank(), source: Arc::new(source) }
    }
}

/// The id as it goes to the other ranks; in the open where there is no `key`, within a process.
fn seal(id: &UniqueId, key: Option<&Secret>) -> std::io::Result<[u8; LETTER]> {
    let mut letter = [0; LETTER];
    letter[0] = 1;
    let (nonce, rest) = letter[1..].split_at_mut(NONCE);
    let (body, mac) = rest.split_at_mut(UNIQUE_ID_BYTES);
    body.copy_from_slice(&id.to_bytes());
    if let Some(key) = key {
        nonce.copy_from_slice(Secret::random()?.as_bytes());
        mask(key, nonce, body);
        mac.copy_from_slice(proof(key, nonce, body).as_bytes());
    }
    Ok(letter)
}

fn open(letter: &[u8; LETTER], key: Option<&Secret>) -> Result<UniqueId, GrowError> {
    if letter[0] != 1 {
        return Err(GrowError::NoInvitation);
    }
    let (nonce, rest) = letter[1..].split_at(NONCE);
    let (body, mac) = rest.split_at(UNIQUE_ID_BYTES);
    let mut id = [0; UNIQUE_ID_BYTES];
    id.copy_from_slice(body);
    if let Some(key) = key {
        // Compared in constant time.
        let sent: [u8; MAC] = mac.try_into().expect("the length of a proof");
        if proof(key, nonce, body) != blake3::Hash::from_bytes(sent) {
            return Err(GrowError::Damaged);
        }
        mask(key, nonce, &mut id);
    }
    UniqueId::from_bytes(&id).map_err(|_| GrowError::Damaged)
}

/// Adds the key stream that follows from key and nonce: a keyed hash as long as the text.
fn mask(key: &Secret, nonce: &[u8], text: &mut [u8]) {
    let mut stream = [0; UNIQUE_ID_BYTES];
    let key = key.derive(b"mask");
    blake3::Hasher::new_keyed(key.as_bytes()).update(nonce).finalize_xof().fill(&mut stream);
    for (byte, stream) in text.iter_mut().zip(stream) {
        *byte ^= stream;
    }
}

/// That whoever knows the key has written this.
fn proof(key: &Secret, nonce: &[u8], body: &[u8]) -> blake3::Hash {
    let key = key.derive(b"proof");
    let mut hasher = blake3::Hasher::new_keyed(key.as_bytes());
    hasher.update(nonce).update(body).finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_by_those_who_know_the_key_only() {
        let id = UniqueId::new().expect("an id");
        let key = Secret::random().expect("random numbers");
        let letter = seal(&id, Some(&key)).expect("random numbers");
        assert_eq!(open(&letter, Some(&key)).as_ref(), Ok(&id));
        let other = Secret::random().expect("random numbers");
        assert_eq!(open(&letter, Some(&other)), Err(GrowError::Damaged));
        let secret = &id.to_bytes()[8..40];
        assert!(letter.windows(32).all(|bytes| bytes != secret), "not in the open");
        for at in 1..LETTER {
            let mut changed = letter;
            changed[at] ^= 1;
            assert_eq!(open(&changed, Some(&key)), Err(GrowError::Damaged), "byte {at}");
        }
        assert_ne!(seal(&id, Some(&key)).expect("random numbers"), letter, "never the same twice");
        assert_eq!(open(&[0; LETTER], Some(&key)), Err(GrowError::NoInvitation));
        assert_eq!(open(&seal(&id, None).expect("no numbers needed"), None), Ok(id));
    }
}

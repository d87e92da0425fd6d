//! Keys that the two ends of one connection have, and nobody else: neither who learns the job's secret later, nor another member of
//! the job.
//!
//! In the [handshake](crate::handshake) of such a connection each end's nonce is the public half of a fresh X25519 key pair. The
//! handshake proves that both ends know the job's secret and have seen the same bytes, so nobody stands between them. The keys
//! are keyed hashes of what the two key pairs have in common, under the secret's own hash of the handshake.

use std::fmt;
use std::io;

use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;

use crate::handshake::{Nonce, Transcript};
use crate::tcp::record::RecordKey;

/// A fresh key pair, good for one connection.
pub struct Ephemeral {
    private: EphemeralPrivateKey,
    public: Nonce,
}

/// Which end of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Server,
}

/// All that the keys of a connection follow from.
pub struct Session {
    private: EphemeralPrivateKey,
    side: Side,
    transcript: Transcript,
}

/// One key for each direction.
#[derive(Debug)]
pub struct SessionKeys {
    /// For what this end sends.
    pub send: RecordKey,
    /// For what it receives.
    pub recv: RecordKey,
}

/// The other end's nonce is no public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end offered no public key: all ranks must set ANNULUS_ENCRYPT alike")]
pub struct NoPublicKey;

impl Ephemeral {
    /// A new pair. Fails where the system gives no random numbers.
    pub fn generate() -> io::Result<Self> {
        let failed = |_| io::Error::other("no random numbers for a key pair");
        let private =
            EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(failed)?;
        let key = private.compute_public_key().map_err(failed)?;
        let mut public = [0; 32];
        public.copy_from_slice(key.as_ref());
        Ok(Self { private, public })
    }

    /// The half that goes over the wire, as the handshake's nonce.
    pub fn public(&self) -> Nonce {
        self.public
    }

    /// What has come of the handshake with this pair.
    pub fn into_session(self, side: Side, transcript: Transcript) -> Session {
        Session { private: self.private, side, transcript }
    }
}

impl Session {
    /// Computes the keys.
    pub fn keys(self) -> Result<SessionKeys, NoPublicKey> {
        let Self { private, side, transcript } = self;
        let theirs = UnparsedPublicKey::new(&X25519, transcript.peer_nonce);
        let key = |label: &[u8], shared: &[u8]| {
            let mut hasher = blake3::Hasher::new_keyed(transcript.hash.as_bytes());
            hasher.update(label).update(shared);
            RecordKey::new(*hasher.finalize().as_bytes())
        };
        let (from_client, from_server) = agree_ephemeral(private, &theirs, |shared| {
            (key(b"annulus client to server", shared), key(b"annulus server to client", shared))
        })
        .map_err(|_| NoPublicKey)?;
        Ok(match side {
            Side::Client => SessionKeys { send: from_client, recv: from_server },
            Side::Server => SessionKeys { send: from_server, recv: from_client },
        })
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("side", &self.side).finish_non_exhaustive()
    }
}

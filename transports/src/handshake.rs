//! How two ends of a stream prove to each other that they know the same [`Secret`], before either
//! looks at anything else that the other says.
//!
//! Four frames of fixed size. Integers are little-endian; both nonces are fresh and random.
//!
//! | sender | frame | bytes |
//! |---|---|---|
//! | client | opening | magic 8, version 2, key id 8, nonce 32 |
//! | server | reply | magic 8, version 2, status 1; and if the status is "ok": nonce 32, MAC 32 |
//! | client | proof | hello 17, MAC 32 |
//! | server | verdict | 1 |
//!
//! Each MAC is a keyed hash of the sender's role and of every byte that was exchanged before it, both
//! nonces among them: a recorded handshake cannot be replayed, and nobody can be made to answer
//! its own challenge. Magic, version and status stay where they are in every version to
//! come, so that peers of different versions can say so.
//!
//! [`ClientHandshake`] and [`ServerHandshake`] are state machines: bytes in, bytes out. They know
//! no socket, no clock and no random generator.

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::secret::{KeyId, Secret};

/// Version of the handshake and of everything that is sent after it.
pub const PROTOCOL_VERSION: u16 = 1;

/// A number that is used once.
pub type Nonce = [u8; 32];

/// What a client says about the connection that it opens. The receiver may trust it to come from a
/// holder of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The rank that connects.
    pub rank: u32,
    /// The rank that is to be reached.
    pub target: u32,
    /// What the connection is for; the handlers of a job agree on the values.
    pub purpose: u8,
    /// Which of several connections for this purpose.
    pub index: u32,
    /// Free for the purpose.
    pub tag: u32,
}

/// What remains of a handshake that has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transcript {
    /// The other end's nonce.
    pub peer_nonce: Nonce,
    /// A keyed hash under the secret of all that both ends have said before the verdict: the same at both ends, and
    /// known to nobody who does not know the secret.
    pub hash: blake3::Hash,
}

/// Why a handshake failed. Where the other side ought to know, the bytes that tell it are still in
/// `output`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The first bytes are not those of an Annulus peer.
    #[error("the other end does not speak Annulus: it is another program")]
    NotAnnulus,
    /// The other end is of another version.
    #[error(
        "the other end speaks protocol version {theirs}, this process version {ours}: \
         run the same version of Annulus on every rank"
    )]
    Version {
        /// Version of this process.
        ours: u16,
        /// Version of the other end.
        theirs: u16,
    },
    /// At the server: no such secret here, now. The client is told to try again.
    #[error("no rank of this process is registered under key id {0}")]
    UnknownKey(KeyId),
    /// At the client: the server has no such secret or rank, now. Try again: it may come.
    #[error(
        "the process there has not registered the rank under this job's secret: \
         it is not ready yet, or belongs to another job"
    )]
    NotRegistered,
    /// At the client: the server has too many connections that have not proved anything. Try again.
    #[error("the process there has too many unproved connections")]
    Busy,
    /// The other end's MAC is wrong.
    #[error("the other end does not know this job's secret")]
    WrongSecret,
    /// A field holds a value that this version does not have.
    #[error("the other end sent a damaged handshake: {field} is {value}")]
    Damaged {
        /// Name of the field.
        field: &'static str,
        /// What it holds.
        value: u8,
    },
}

/// The side that connects.
///
/// Send [`output`](Self::output), read at most [`wants`](Self::wants) bytes, pass them to
/// [`receive`](Self::receive), and so on until [`is_accepted`](Self::is_accepted).
#[derive(Debug)]
pub struct ClientHandshake {
    secret: Secret,
    hello: Hello,
    exchange: Exchange,
    phase: ClientPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientPhase {
    ReplyHead,
    ReplyRest,
    Verdict,
    Accepted,
    Failed,
}

impl ClientHandshake {
    /// Begins a handshake. `nonce` is fresh from a random generator.
    pub fn new(secret: &Secret, hello: Hello, nonce: Nonce) -> Self {
        let mut exchange = Exchange::new();
        exchange.write(CLIENT_MAGIC);
        exchange.write(&PROTOCOL_VERSION.to_le_bytes());
        exchange.write(&secret.key_id().0);
        exchange.write(&nonce);
        Self { secret: secret.clone(), hello, exchange, phase: ClientPhase::ReplyHead }
    }

    /// Bytes to send now.
    pub fn output(&self) -> &[u8] {
        self.exchange.output()
    }

    /// The first `bytes` bytes of the output have been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.exchange.sent(bytes);
    }

    /// How many bytes to read before something can happen; 0 when all is over.
    pub fn wants(&self) -> usize {
        let end = match self.phase {
            ClientPhase::ReplyHead => REPLY_HEAD.end,
            ClientPhase::ReplyRest => REPLY_REST.end,
            ClientPhase::Verdict => VERDICT.end,
            ClientPhase::Accepted | ClientPhase::Failed => return 0,
        };
        end - self.exchange.length
    }

    /// Whether the server has proved itself and accepted.
    pub fn is_accepted(&self) -> bool {
        self.phase == ClientPhase::Accepted
    }

    /// What both ends have said, once the server has accepted.
    pub fn transcript(&self) -> Option<Transcript> {
        self.is_accepted().then(|| self.exchange.transcript(&self.secret, REPLY_NONCE))
    }

    /// Takes bytes that have arrived; returns how many of them belonged to the handshake.
    ///
    /// After an error the handshake is over: later bytes are not looked at.
    pub fn receive(&mut self, input: &[u8]) -> Result<usize, HandshakeError> {
        let mut consumed = 0;
        while consumed < input.len() && self.wants() > 0 {
            let count = self.wants().min(input.len() - consumed);
            self.exchange.read(&input[consumed..consumed + count]);
            consumed += count;
            if let Err(error) = self.advance() {
                self.phase = ClientPhase::Failed;
                return Err(error);
            }
        }
        Ok(consumed)
    }

    fn advance(&mut self) -> Result<(), HandshakeError> {
        if self.phase == ClientPhase::ReplyHead {
            self.exchange.check_magic(REPLY_MAGIC, SERVER_MAGIC)?;
        }
        if self.wants() > 0 {
            return Ok(());
        }
        match self.phase {
            ClientPhase::ReplyHead => {
                self.exchange.check_version(REPLY_VERSION)?;
                match self.exchange.bytes[REPLY_STATUS.start] {
                    STATUS_OK => self.phase = ClientPhase::ReplyRest,
                    STATUS_UNKNOWN_KEY => return Err(HandshakeError::NotRegistered),
                    STATUS_BUSY => return Err(HandshakeError::Busy),
                    value => return Err(HandshakeError::Damaged { field: "status", value }),
                }
            }
            ClientPhase::ReplyRest => {
                self.exchange.check_mac(&self.secret, SERVER_LABEL, REPLY_MAC)?;
                self.exchange.write(&self.hello.to_bytes());
                self.exchange.write_mac(&self.secret, CLIENT_LABEL);
                self.phase = ClientPhase::Verdict;
            }
            ClientPhase::Verdict => match self.exchange.bytes[VERDICT.start] {
                VERDICT_ACCEPTED => self.phase = ClientPhase::Accepted,
                VERDICT_NOT_REGISTERED => return Err(HandshakeError::NotRegistered),
                value => return Err(HandshakeError::Damaged { field: "verdict", value }),
            },
            ClientPhase::Accepted | ClientPhase::Failed => {}
        }
        Ok(())
    }
}

/// The side that accepts.
///
/// Read at most [`wants`](Self::wants) bytes, pass them to [`receive`](Self::receive), send
/// [`output`](Self::output), and so on until [`proved`](Self::proved) tells who is there; then
/// [`accept`](Self::accept) or [`refuse`](Self::refuse), and send the last output.
#[derive(Debug)]
pub struct ServerHandshake {
    nonce: Nonce,
    exchange: Exchange,
    phase: ServerPhase,
}

#[derive(Debug)]
enum ServerPhase {
    OpeningHead,
    OpeningRest,
    Proof(Secret),
    Proved(KeyId, Hello, Transcript),
    Over,
}

/// What a server needs of a client that has named a key: its secret, and a nonce if another than the handshake's own is
/// to be used.
pub(crate) type Lookup = (Secret, Option<Nonce>);

impl ServerHandshake {
    /// Waits for a client. `nonce` is fresh from a random generator.
    pub fn new(nonce: Nonce) -> Self {
        Self { nonce, exchange: Exchange::new(), phase: ServerPhase::OpeningHead }
    }

    /// Bytes to send now.
    pub fn output(&self) -> &[u8] {
        self.exchange.output()
    }

    /// The first `bytes` bytes of the output have been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.exchange.sent(bytes);
    }

    /// How many bytes to read before something can happen; 0 when no more are wanted.
    pub fn wants(&self) -> usize {
        let end = match self.phase {
            ServerPhase::OpeningHead => OPENING_HEAD.end,
            ServerPhase::OpeningRest => OPENING_REST.end,
            ServerPhase::Proof(_) => PROOF.end,
            ServerPhase::Proved(..) | ServerPhase::Over => return 0,
        };
        end - self.exchange.length
    }

    /// Who has proved to know which secret, once that is so and until the verdict is given.
    pub fn proved(&self) -> Option<(KeyId, Hello)> {
        match self.phase {
            ServerPhase::Proved(key, hello, _) => Some((key, hello)),
            _ => None,
        }
    }

    /// What both ends have said, as long as [`proved`](Self::proved) tells who the client is.
    pub fn transcript(&self) -> Option<Transcript> {
        match self.phase {
            ServerPhase::Proved(_, _, transcript) => Some(transcript),
            _ => None,
        }
    }

    /// Takes bytes that have arrived; returns how many of them belonged to the handshake.
    /// `secret_of` looks up the secret that the client names.
    ///
    /// After an error the handshake is over: send the output, if any, and close.
    pub fn receive(
        &mut self,
        input: &[u8],
        secret_of: impl Fn(KeyId) -> Option<Secret>,
    ) -> Result<usize, HandshakeError> {
        self.receive_choosing(input, |key| Some((secret_of(key)?, None)))
    }

    /// The same with a nonce that may depend on the key.
    pub(crate) fn receive_choosing(
        &mut self,
        input: &[u8],
        mut lookup: impl FnMut(KeyId) -> Option<Lookup>,
    ) -> Result<usize, HandshakeError> {
        let mut consumed = 0;
        while consumed < input.len() && self.wants() > 0 {
            let count = self.wants().min(input.len() - consumed);
            self.exchange.read(&input[consumed..consumed + count]);
            consumed += count;
            if let Err(error) = self.advance(&mut lookup) {
                self.phase = ServerPhase::Over;
                return Err(error);
            }
        }
        Ok(consumed)
    }

    /// Tells the client that it is accepted. No effect unless it has [`proved`](Self::proved) itself.
    pub fn accept(&mut self) {
        self.give_verdict(VERDICT_ACCEPTED);
    }

    /// Tells the client that its target is not here, now. No effect unless it has
    /// [`proved`](Self::proved) itself.
    pub fn refuse(&mut self) {
        self.give_verdict(VERDICT_NOT_REGISTERED);
    }

    /// Ends the handshake early and, if the client has not been answered yet, tells it to come again.
    pub fn dismiss(&mut self) {
        if matches!(self.phase, ServerPhase::OpeningHead | ServerPhase::OpeningRest) {
            self.exchange.length = OPENING_REST.end;
            self.write_reply_head(STATUS_BUSY);
        }
        self.phase = ServerPhase::Over;
    }

    fn advance(
        &mut self,
        lookup: &mut impl FnMut(KeyId) -> Option<Lookup>,
    ) -> Result<(), HandshakeError> {
        if matches!(self.phase, ServerPhase::OpeningHead) {
            self.exchange.check_magic(OPENING_MAGIC, CLIENT_MAGIC)?;
        }
        if self.wants() > 0 {
            return Ok(());
        }
        match &self.phase {
            ServerPhase::OpeningHead => {
                if let Err(error) = self.exchange.check_version(OPENING_VERSION) {
                    self.exchange.length = OPENING_REST.end;
                    self.write_reply_head(STATUS_VERSION);
                    return Err(error);
                }
                self.phase = ServerPhase::OpeningRest;
            }
            ServerPhase::OpeningRest => {
                let key = KeyId(self.exchange.array(OPENING_KEY));
                let Some((secret, nonce)) = lookup(key) else {
                    self.write_reply_head(STATUS_UNKNOWN_KEY);
                    return Err(HandshakeError::UnknownKey(key));
                };
                self.write_reply_head(STATUS_OK);
                self.exchange.write(&nonce.unwrap_or(self.nonce));
                self.exchange.write_mac(&secret, SERVER_LABEL);
                self.phase = ServerPhase::Proof(secret);
            }
            ServerPhase::Proof(secret) => {
                self.exchange.check_mac(secret, CLIENT_LABEL, PROOF_MAC)?;
                let hello = Hello::from_bytes(self.exchange.array(PROOF_HELLO));
                let transcript = self.exchange.transcript(secret, OPENING_NONCE);
                self.phase = ServerPhase::Proved(secret.key_id(), hello, transcript);
            }
            ServerPhase::Proved(..) | ServerPhase::Over => {}
        }
        Ok(())
    }

    fn write_reply_head(&mut self, status: u8) {
        self.exchange.write(SERVER_MAGIC);
        self.exchange.write(&PROTOCOL_VERSION.to_le_bytes());
        self.exchange.write(&[status]);
    }

    fn give_verdict(&mut self, verdict: u8) {
        if matches!(self.phase, ServerPhase::Proved(..)) {
            self.exchange.write(&[verdict]);
            self.phase = ServerPhase::Over;
        }
    }
}

const CLIENT_MAGIC: &[u8; 8] = b"\xa2annulc\n";
const SERVER_MAGIC: &[u8; 8] = b"\xa2annuls\n";
const CLIENT_LABEL: &[u8] = b"annulus handshake client";
const SERVER_LABEL: &[u8] = b"annulus handshake server";
const TRANSCRIPT_LABEL: &[u8] = b"annulus transcript";

const STATUS_OK: u8 = 1;
const STATUS_UNKNOWN_KEY: u8 = 2;
const STATUS_VERSION: u8 = 3;
const STATUS_BUSY: u8 = 4;
const VERDICT_ACCEPTED: u8 = 1;
const VERDICT_NOT_REGISTERED: u8 = 2;

// Where each field lies in the exchange, that is in the four frames one after the other.
const OPENING_MAGIC: Range<usize> = 0..8;
const OPENING_VERSION: Range<usize> = 8..10;
const OPENING_HEAD: Range<usize> = 0..10;
const OPENING_KEY: Range<usize> = 10..18;
const OPENING_NONCE: Range<usize> = 18..50;
const OPENING_REST: Range<usize> = 10..50;
const REPLY_MAGIC: Range<usize> = 50..58;
const REPLY_VERSION: Range<usize> = 58..60;
const REPLY_STATUS: Range<usize> = 60..61;
const REPLY_HEAD: Range<usize> = 50..61;
const REPLY_NONCE: Range<usize> = 61..93;
const REPLY_MAC: Range<usize> = 93..125;
const REPLY_REST: Range<usize> = 61..125;
const PROOF_HELLO: Range<usize> = 125..142;
const PROOF_MAC: Range<usize> = 142..174;
const PROOF: Range<usize> = 125..174;
const VERDICT: Range<usize> = 174..175;

/// All bytes that have gone either way, in order.
#[derive(Debug)]
struct Exchange {
    bytes: [u8; VERDICT.end],
    length: usize,
    unsent: Range<usize>,
}

impl Exchange {
    fn new() -> Self {
        Self { bytes: [0; VERDICT.end], length: 0, unsent: 0..0 }
    }

    fn read(&mut self, input: &[u8]) {
        self.bytes[self.length..self.length + input.len()].copy_from_slice(input);
        self.length += input.len();
    }

    fn write(&mut self, output: &[u8]) {
        if self.unsent.is_empty() {
            self.unsent = self.length..self.length;
        }
        self.read(output);
        self.unsent.end = self.length;
    }

    fn output(&self) -> &[u8] {
        &self.bytes[self.unsent.clone()]
    }

    fn sent(&mut self, bytes: usize) {
        self.unsent.start = (self.unsent.start + bytes).min(self.unsent.end);
    }

    fn write_mac(&mut self, secret: &Secret, label: &[u8]) {
        let mac = secret.mac(label, &[&self.bytes[..self.length]]);
        self.write(mac.as_bytes());
    }

    fn check_mac(
        &self,
        secret: &Secret,
        label: &[u8],
        at: Range<usize>,
    ) -> Result<(), HandshakeError> {
        let expected = secret.mac(label, &[&self.bytes[..at.start]]);
        let found = blake3::Hash::from_bytes(self.array(at));
        if found == expected { Ok(()) } else { Err(HandshakeError::WrongSecret) }
    }

    fn transcript(&self, secret: &Secret, peer_nonce: Range<usize>) -> Transcript {
        let hash = secret.mac(TRANSCRIPT_LABEL, &[&self.bytes[..PROOF.end]]);
        Transcript { peer_nonce: self.array(peer_nonce), hash }
    }

    /// Whether what has come of the magic so far is right.
    fn check_magic(&self, at: Range<usize>, magic: &[u8]) -> Result<(), HandshakeError> {
        let end = self.length.clamp(at.start, at.end);
        if magic.starts_with(&self.bytes[at.start..end]) {
            Ok(())
        } else {
            Err(HandshakeError::NotAnnulus)
        }
    }

    fn check_version(&self, at: Range<usize>) -> Result<(), HandshakeError> {
        match u16::from_le_bytes(self.array(at)) {
            PROTOCOL_VERSION => Ok(()),
            theirs => Err(HandshakeError::Version { ours: PROTOCOL_VERSION, theirs }),
        }
    }

    fn array<const N: usize>(&self, at: Range<usize>) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[at]);
        array
    }
}

impl Hello {
    fn to_bytes(self) -> [u8; 17] {
        let mut bytes = [0; 17];
        bytes[0..4].copy_from_slice(&self.rank.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.target.to_le_bytes());
        bytes[8] = self.purpose;
        bytes[9..13].copy_from_slice(&self.index.to_le_bytes());
        bytes[13..17].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; 17]) -> Self {
        let word =
            |at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { rank: word(0), target: word(4), purpose: bytes[8], index: word(9), tag: word(13) }
    }
}

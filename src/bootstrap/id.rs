//! What the ranks of a communicator must be told to find each other.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use annulus_transports::secret::Secret;

use super::wire::{Reader, Writer};

/// Bytes of a [`UniqueId`]: as many as an `ncclUniqueId` has.
pub const UNIQUE_ID_BYTES: usize = 128;

/// Most addresses that an id has room for.
pub(super) const MAX_ROOT_ADDRESSES: usize = 3;

const MAGIC: &[u8; 6] = b"\xa2annid";
const VERSION: u16 = 1;
const CHECKED: usize = UNIQUE_ID_BYTES - 8;

/// Names a communicator to be: where its root listens, and the secret by which its ranks know each other.
///
/// [`UniqueId::new`] makes one; its [bytes](Self::to_bytes) are to be brought to every rank, by a way
/// that strangers cannot read. `Debug` shows the addresses and not the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct UniqueId {
    pub(super) secret: Secret,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) port: u16,
    pub(super) host_id: [u8; 16],
}

impl UniqueId {
    /// The bytes, for other processes.
    pub fn to_bytes(&self) -> [u8; UNIQUE_ID_BYTES] {
        let mut writer = Writer::default();
        writer.raw(MAGIC);
        writer.u16(VERSION);
        writer.raw(self.secret.as_bytes());
        writer.raw(&self.host_id);
        writer.u16(self.port);
        writer.u8(self.addresses.len() as u8);
        for address in &self.addresses {
            writer.address(*address);
        }
        let mut bytes = [0; UNIQUE_ID_BYTES];
        bytes[..writer.bytes.len()].copy_from_slice(&writer.bytes);
        let checksum = checksum(&bytes);
        bytes[CHECKED..].copy_from_slice(&checksum);
        bytes
    }

    /// The id that another rank has made.
    ///
    /// # Errors
    /// When the bytes are no unique id, of another version, or damaged.
    pub fn from_bytes(bytes: &[u8; UNIQUE_ID_BYTES]) -> Result<Self, UniqueIdError> {
        let mut reader = Reader::new(&bytes[..CHECKED]);
        let magic: [u8; 6] = reader.array("magic").map_err(|_| UniqueIdError::Damaged)?;
        if magic != *MAGIC {
            return Err(UniqueIdError::NotAnId);
        }
        let version = reader.u16("version").map_err(|_| UniqueIdError::Damaged)?;
        if version != VERSION {
            return Err(UniqueIdError::Version { theirs: version, ours: VERSION });
        }
        if checksum(bytes) != bytes[CHECKED..] {
            return Err(UniqueIdError::Damaged);
        }
        let fields = |mut reader: Reader<'_>| {
            let secret = Secret::from_bytes(reader.array("secret")?);
            let host_id = reader.array("host id")?;
            let port = reader.u16("port")?;
            let count = usize::from(reader.u8("number of addresses")?);
            let addresses = (0..count.min(MAX_ROOT_ADDRESSES + 1))
                .map(|_| reader.address("address"))
                .collect::<Result<Vec<_>, _>>()?;
            Ok::<_, super::WireError>(Self { secret, addresses, port, host_id })
        };
        match fields(reader) {
            Ok(id) if (1..=MAX_ROOT_ADDRESSES).contains(&id.addresses.len()) && id.port != 0 => {
                Ok(id)
            }
            _ => Err(UniqueIdError::Damaged),
        }
    }

    /// Where the root listens.
    pub fn root_addresses(&self) -> Vec<SocketAddr> {
        self.addresses.iter().map(|ip| SocketAddr::new(*ip, self.port)).collect()
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId")
            .field("root", &self.root_addresses())
            .field("key_id", &format_args!("{}", self.secret.key_id()))
            .finish_non_exhaustive()
    }
}

/// Why bytes are no unique id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UniqueIdError {
    /// They do not begin like one.
    #[error(
        "these bytes are no unique id of Annulus: pass all 128 bytes that the root has made, unchanged"
    )]
    NotAnId,
    /// Another version has made it.
    #[error(
        "the unique id is of version {theirs}, this process reads version {ours}: run the same version of Annulus on every rank"
    )]
    Version {
        /// Version of the id.
        theirs: u16,
        /// Version that this process reads.
        ours: u16,
    },
    /// They have changed on their way.
    #[error(
        "the unique id was damaged on its way: pass all 128 bytes that the root has made, unchanged"
    )]
    Damaged,
}

fn checksum(bytes: &[u8; UNIQUE_ID_BYTES]) -> [u8; 8] {
    let mut checksum = [0; 8];
    checksum.copy_from_slice(&blake3::hash(&bytes[..CHECKED]).as_bytes()[..8]);
    checksum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(addresses: Vec<IpAddr>) -> UniqueId {
        UniqueId { secret: Secret::from_bytes([0xab; 32]), addresses, port: 4000, host_id: [3; 16] }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn ids_survive(addresses in prop::collection::vec(any::<IpAddr>(), 1..=MAX_ROOT_ADDRESSES)) {
            let id = id(addresses);
            prop_assert_eq!(UniqueId::from_bytes(&id.to_bytes()), Ok(id));
        }

        #[test]
        fn any_changed_bit_is_seen(byte in 0..UNIQUE_ID_BYTES, bit in 0..8_u32) {
            let mut bytes = id(vec![[10, 0, 0, 1].into()]).to_bytes();
            bytes[byte] ^= 1_u8 << bit;
            prop_assert!(UniqueId::from_bytes(&bytes).is_err());
        }
    }

    #[test]
    fn wrong_bytes_are_told_apart() {
        let good = id(vec![[10, 0, 0, 1].into()]).to_bytes();
        assert_eq!(UniqueId::from_bytes(&[0; 128]), Err(UniqueIdError::NotAnId));
        let mut newer = good;
        newer[6] = 9;
        let error = UniqueIdError::Version { theirs: 9, ours: VERSION };
        assert_eq!(UniqueId::from_bytes(&newer), Err(error));
        let empty = id(Vec::new()).to_bytes();
        assert_eq!(UniqueId::from_bytes(&empty), Err(UniqueIdError::Damaged));
    }

    #[test]
    fn debug_hides_the_secret() {
        let shown = format!("{:?}", id(vec![[10, 0, 0, 1].into()]));
        assert!(shown.contains("10.0.0.1:4000"));
        assert!(!shown.contains("abab") && !shown.contains("171"), "{shown}");
    }
}

//! What the ranks tell the root, and what the root tells all ranks.

use std::net::IpAddr;
use std::time::Duration;

use super::wire::{Reader, WireError, Writer};

/// Most ranks of a communicator.
pub const MAX_WORLD: usize = 1 << 16;

/// Most bytes of a [`Record`]: every field at its bound takes less.
pub(super) const MAX_RECORD: usize = 1024;

const MAX_VERSION: u16 = 32;
const MAX_HOST_NAME: u16 = 253;
const MAX_UNIX_NAME: u16 = 107;
/// Most addresses at which a rank can be reached.
pub(super) const MAX_ADDRESSES: usize = 16;

/// One rank, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) rank: u32,
    pub(super) world: u32,
    /// Digest of what the rank chooses its plans by: see [`Options::settings`](super::Options::settings).
    pub(super) settings: u64,
    /// How long the rank is going to wait for the answer.
    pub(super) patience: Duration,
    /// How long the rank and the root may be silent before they give each other up; `None`: for ever.
    pub(super) heartbeat: Option<Duration>,
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) host_name: String,
    pub(super) host_id: [u8; 16],
    /// Of its host.
    pub(super) cores: u32,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) port: u16,
    /// Empty: the rank has no abstract Unix socket.
    pub(super) unix_name: Vec<u8>,
}

impl Record {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u32(self.rank);
        writer.u32(self.world);
        writer.u64(self.settings);
        writer.u64(self.patience.as_millis().try_into().unwrap_or(u64::MAX));
        writer.heartbeat(self.heartbeat);
        writer.text(&self.version, MAX_VERSION);
        writer.u32(self.pid);
        writer.text(&self.host_name, MAX_HOST_NAME);
        writer.raw(&self.host_id);
        writer.u32(self.cores);
        let addresses = &self.addresses[..self.addresses.len().min(MAX_ADDRESSES)];
        writer.u8(addresses.len() as u8);
        for address in addresses {
            writer.address(*address);
        }
        writer.u16(self.port);
        writer.bytes(&self.unix_name, MAX_UNIX_NAME);
        writer.bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let record = Self {
            rank: reader.u32("rank")?,
            world: reader.u32("world size")?,
            settings: reader.u64("settings")?,
            patience: Duration::from_millis(reader.u64("timeout")?),
            heartbeat: reader.heartbeat("heartbeat")?,
            version: reader.text(MAX_VERSION, "version")?,
            pid: reader.u32("process id")?,
            host_name: reader.text(MAX_HOST_NAME, "host name")?,
            host_id: reader.array("host id")?,
            cores: reader.u32("cores")?,
            addresses: addresses(&mut reader)?,
            port: reader.u16("port")?,
            unix_name: reader.bytes(MAX_UNIX_NAME, "unix name")?.to_vec(),
        };
        reader.finish("a rank's record")?;
        Ok(record)
    }
}

fn addresses(reader: &mut Reader<'_>) -> Result<Vec<IpAddr>, WireError> {
    let count = reader.u8("number of addresses")?;
    if usize::from(count) > MAX_ADDRESSES {
        return Err(WireError::Value { field: "number of addresses", value: count.into() });
    }
    (0..count).map(|_| reader.address("address")).collect()
}

/// All ranks, in order, and where the root is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) root_host_id: [u8; 16],
    pub(super) root_pid: u32,
    pub(super) records: Vec<Record>,
}

impl Table {
    /// Most bytes of a table of `world` ranks.
    pub(super) fn limit(world: usize) -> usize {
        24 + world * (2 + MAX_RECORD)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(&self.root_host_id);
        writer.u32(self.root_pid);
        writer.u32(self.records.len() as u32);
        for record in &self.records {
            writer.bytes(&record.encode(), MAX_RECORD as u16);
        }
        writer.bytes
    }

    /// A table of `world` ranks, each at its place.
    pub(super) fn decode(bytes: &[u8], world: usize) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let root_host_id = reader.array("host id of the root")?;
        let root_pid = reader.u32("process id of the root")?;
        let count = reader.u32("number of ranks")?;
        if count as usize != world {
            return Err(WireError::Value { field: "number of ranks", value: count.into() });
        }
        let mut records = Vec::new();
        for rank in 0..count {
            let record = Record::decode(reader.bytes(MAX_RECORD as u16, "a rank's record")?)?;
            if record.rank != rank {
                return Err(WireError::Value { field: "rank", value: record.rank.into() });
            }
            records.push(record);
        }
        reader.finish("the table of ranks")?;
        Ok(Self { root_host_id, root_pid, records })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        pub(in super::super) fn any_record()(
            (rank, world, settings, patience, heartbeat) in any::<(u32, u32, u64, u64, u32)>(),
            (version, pid, host_name) in ("[ -~]{0,32}", any::<u32>(), "[a-z.é]{0,100}"),
            (host_id, cores) in any::<([u8; 16], u32)>(),
            addresses in prop::collection::vec(any::<IpAddr>(), 0..=MAX_ADDRESSES),
            port in any::<u16>(),
            unix_name in prop::collection::vec(any::<u8>(), 0..=107),
        ) -> Record {
            let patience = Duration::from_millis(patience);
            let heartbeat = (heartbeat > 0).then(|| Duration::from_millis(heartbeat.into()));
            Record {
                rank, world, settings, patience, heartbeat, version, pid, host_name, host_id,
                cores, addresses, port, unix_name
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn records_survive(record in any_record()) {
            let bytes = record.encode();
            prop_assert!(bytes.len() <= MAX_RECORD);
            prop_assert_eq!(Record::decode(&bytes), Ok(record));
        }

        #[test]
        fn a_cut_record_is_an_error(record in any_record(), cut in any::<prop::sample::Index>()) {
            let bytes = record.encode();
            prop_assert!(Record::decode(&bytes[..cut.index(bytes.len())]).is_err());
        }

        #[test]
        fn tables_survive(mut records in prop::collection::vec(any_record(), 1..8)) {
            for (rank, record) in records.iter_mut().enumerate() {
                record.rank = rank as u32;
            }
            let world = records.len();
            let table = Table { root_host_id: [7; 16], root_pid: 9, records };
            let bytes = table.encode();
            prop_assert!(bytes.len() <= Table::limit(world));
            prop_assert!(Table::decode(&bytes, world + 1).is_err());
            prop_assert_eq!(Table::decode(&bytes, world), Ok(table));
        }

        #[test]
        fn garbage_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::decode(&bytes);
            prop_assert!(Table::decode(&bytes, 70_000).is_err());
        }
    }

    #[test]
    fn the_largest_record_fits() {
        let record = Record {
            rank: 0,
            world: 1,
            settings: u64::MAX,
            patience: Duration::MAX,
            heartbeat: Some(Duration::MAX),
            version: "v".repeat(500),
            pid: 1,
            host_name: "h".repeat(500),
            cores: u32::MAX,
            host_id: [1; 16],
            addresses: vec![IpAddr::from([1u8; 16]); 40],
            port: 1,
            unix_name: vec![0; 500],
        };
        assert!(record.encode().len() <= MAX_RECORD);
        assert!(Record::decode(&record.encode()).is_ok(), "cut to its bounds");
    }
}

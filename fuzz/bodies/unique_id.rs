//! A unique id from anywhere.

use annulus::bootstrap::{UNIQUE_ID_BYTES, UniqueId};

/// The bytes of an id, short ones filled up with zeros. As nearly all damage is found by the checksum, the checksum is also made right.
pub(crate) fn run(data: &[u8]) {
    let mut bytes = [0; UNIQUE_ID_BYTES];
    let length = data.len().min(bytes.len());
    bytes[..length].copy_from_slice(&data[..length]);
    check(&bytes);
    let (checked, checksum) = bytes.split_at_mut(UNIQUE_ID_BYTES - 8);
    checksum.copy_from_slice(&blake3::hash(checked).as_bytes()[..8]);
    check(&bytes);
}

fn check(bytes: &[u8; UNIQUE_ID_BYTES]) {
    if let Ok(id) = UniqueId::from_bytes(bytes) {
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()).as_ref(), Ok(&id));
        assert!((1..=3).contains(&id.root_addresses().len()));
    }
}

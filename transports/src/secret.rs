//! The secret that the ranks of a job share, and what may be known of it.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};

/// 32 bytes that only the ranks of one job know. Whoever proves to know them may connect.
///
/// `Debug` does not show the bytes. There is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A new secret from the system's random generator.
    ///
    /// Blocks only while the system boots and has no randomness yet; fails where the system call is
    /// forbidden.
    pub fn random() -> std::io::Result<Self> {
        random_bytes().map(Self)
    }

    /// The secret that another rank has made and passed on.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for passing them on to another rank by a way that strangers cannot read.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Another secret that follows from this one and `context`, and tells nothing about this one.
    pub fn derive(&self, context: &[u8]) -> Self {
        Self(*self.mac(b"annulus derive", &[context]).as_bytes())
    }

    /// What selects this secret on the accepting side: public, and tells nothing about the secret.
    pub fn key_id(&self) -> KeyId {
        let hash = self.mac(b"annulus key id", &[]);
        let mut id = [0; 8];
        id.copy_from_slice(&hash.as_bytes()[..8]);
        KeyId(id)
    }

    /// Keyed hash of `label` and `parts`. No label that is used is the beginning of another. Comparing
    /// two results takes the same time wherever they differ.
    pub(crate) fn mac(&self, label: &[u8], parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(label);
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret(key id {})", self.key_id())
    }
}

/// Public name of a [`Secret`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// 32 bytes from the system's random generator: a secret or a nonce.
pub(crate) fn random_bytes() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_the_bytes() {
        let secret = Secret::from_bytes([0xab; 32]);
        let shown = format!("{secret:?}");
        assert!(!shown.contains("ab, ") && !shown.contains("abab") && !shown.contains("171"));
        assert!(shown.contains(&secret.key_id().to_string()));
    }

    #[test]
    fn derived_secrets_differ_by_context_and_parent() {
        let secret = Secret::random().unwrap();
        let other = Secret::random().unwrap();
        assert_ne!(secret, other);
        assert_eq!(secret.derive(b"a"), secret.derive(b"a"));
        assert_ne!(secret.derive(b"a"), secret.derive(b"b"));
        assert_ne!(secret.derive(b"a"), other.derive(b"a"));
        assert_ne!(secret.derive(b""), secret);
        assert_ne!(secret.derive(b"a").key_id(), secret.key_id());
    }
}

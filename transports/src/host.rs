//! Which ranks are on the same host, in the sense that they can share memory.

use std::fmt;
use std::fs::read_link;
use std::io;
use std::sync::OnceLock;

use crate::secret::random_bytes;

/// Identity of a host, as far as a process can share memory with others: two processes of equal
/// identity reach each other's abstract Unix sockets and loopback addresses, and accept each other's
/// descriptors.
///
/// It is a hash of the kernel's boot id, the network namespace, the user namespace and the effective
/// user. Containers of one machine that each have their own network have different identities although
/// the boot id is the same: their abstract sockets do not reach each other, so they count as different
/// hosts and talk over TCP. Containers that share the network (a pod, `--network=host`) and the user are
/// one host. A machine's name plays no part: it may be anything in a container.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct HostId([u8; 16]);

impl HostId {
    /// The identity of the host that this process runs on: the same at each call.
    ///
    /// Where the system does not tell its boot id, the identity is random: each process is then a host of
    /// its own, which costs speed and nothing else. Fails only when there are no random numbers either.
    pub fn current() -> io::Result<Self> {
        static CURRENT: OnceLock<HostId> = OnceLock::new();
        if let Some(id) = CURRENT.get() {
            return Ok(*id);
        }
        let id = match boot_and_namespaces() {
            Ok(facts) => Self::of(&facts),
            Err(_) => Self::of(&random_bytes()?),
        };
        Ok(*CURRENT.get_or_init(|| id))
    }

    /// The identity that another rank has passed on.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// For passing on.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    fn of(facts: &[u8]) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&blake3::hash(facts).as_bytes()[..16]);
        Self(id)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostId(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// The initial namespaces have the same numbers on each machine; the boot id tells machines apart.
fn boot_and_namespaces() -> io::Result<Vec<u8>> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let network = read_link("/proc/self/ns/net")?;
    let users = read_link("/proc/self/ns/user").unwrap_or_default();
    let user = rustix::process::geteuid().as_raw();
    let text = format!("{}\n{}\n{}\n{user}", boot.trim(), network.display(), users.display());
    Ok(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_stable_and_survives_the_wire() {
        let id = HostId::current().unwrap();
        assert_eq!(id, HostId::current().unwrap());
        assert_eq!(id, HostId::from_bytes(id.to_bytes()));
        assert_ne!(id, HostId::of(b"another host"));
    }
}

//! SLURM's list of hosts.

use annulus::launch::expand_hostlist;

/// Text, as far as it is UTF-8.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match expand_hostlist(text) {
        Ok(hosts) => {
            assert!(!hosts.is_empty() && hosts.len() <= 1 << 16);
            assert!(hosts.iter().all(|host| !host.is_empty() && host.len() <= 253));
            // What is expanded needs no more expansion.
            if hosts.len() < 64 {
                assert_eq!(expand_hostlist(&hosts.join(",")).as_ref(), Ok(&hosts));
            }
        }
        Err(error) => assert!(error.position <= text.len(), "{error}"),
    }
}

//! Asking the system for its interfaces.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Interface;

/// The addresses of the interfaces that are up.
pub(super) fn up() -> io::Result<Vec<Interface>> {
    let list = List::get()?;
    let mut interfaces = Vec::new();
    let mut next = list.first;
    // SAFETY: `next` is null or a node of the list, which lives until `list` is dropped, below.
    while let Some(node) = unsafe { next.as_ref() } {
        next = node.ifa_next;
        if node.ifa_flags & libc::IFF_UP as libc::c_uint == 0 {
            continue;
        }
        // SAFETY: the address of a node of the list, which is alive.
        if let Some((ip, scope_id)) = unsafe { internet_address(node.ifa_addr) } {
            // SAFETY: each node's name is a string that ends with a zero byte and lives as long as the list.
            let name = unsafe { CStr::from_ptr(node.ifa_name) };
            interfaces.push(Interface { name: name.to_string_lossy().into(), ip, scope_id });
        }
    }
    Ok(interfaces)
}

/// The list that `getifaddrs` allocates.
struct List {
    first: *mut libc::ifaddrs,
}

impl List {
    fn get() -> io::Result<Self> {
        let mut first = std::ptr::null_mut();
        // SAFETY: `first` is valid for the call to write to.
        match unsafe { libc::getifaddrs(&mut first) } {
            0 => Ok(Self { first }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: `first` came from `getifaddrs` and is freed once.
        unsafe { libc::freeifaddrs(self.first) }
    }
}

/// The IPv4 or IPv6 address at `address`, and its scope; `None` for other families.
///
/// # Safety
/// `address` is null or points to a socket address that is as large as its family says.
unsafe fn internet_address(address: *const libc::sockaddr) -> Option<(IpAddr, u32)> {
    if address.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family; the size follows from it. The reads
    // ask for no alignment.
    unsafe {
        match i32::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some((Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into(), 0))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some((Ipv6Addr::from(v6.sin6_addr.s6_addr).into(), v6.sin6_scope_id))
            }
            _ => None,
        }
    }
}

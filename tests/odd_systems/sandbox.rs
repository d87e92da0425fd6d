//! A sandbox around this process: a system call that fails as on a system without it.

use std::io;

/// What to do without.
#[derive(Clone, Copy)]
pub(crate) enum Forbidden {
    Call(libc::c_long),
    /// Sockets of IPv6.
    Ipv6,
}

impl Forbidden {
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "process_vm_readv" => Self::Call(libc::SYS_process_vm_readv),
            "memfd_create" => Self::Call(libc::SYS_memfd_create),
            "ipv6" => Self::Ipv6,
            _ => panic!("nothing of the name {name} can be forbidden"),
        }
    }
}

/// From now on, in this thread and those that it starts, what is forbidden fails.
pub(crate) fn enter(forbidden: Forbidden) -> io::Result<()> {
    // Offsets in `seccomp_data`: the call's number, and the low half of its first argument.
    const NUMBER: u32 = 0;
    const FIRST_ARGUMENT: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };
    let fail = |errno: i32| ret(libc::SECCOMP_RET_ERRNO | errno as u32);
    let mut program = match forbidden {
        Forbidden::Call(number) => {
            vec![load(NUMBER), unless_equal(number as u32, 1), fail(libc::ENOSYS)]
        }
        Forbidden::Ipv6 => vec![
            load(NUMBER),
            unless_equal(libc::SYS_socket as u32, 3),
            load(FIRST_ARGUMENT),
            unless_equal(libc::AF_INET6 as u32, 1),
            fail(libc::EAFNOSUPPORT),
        ],
    };
    program.push(ret(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain numbers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the program, which lives until the call has ended.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn statement(code: u32, value: u32, skip: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: skip, k: value }
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0)
}

/// Skips `skip` statements unless what was loaded is `value`.
fn unless_equal(value: u32, skip: u8) -> libc::sock_filter {
    statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, skip)
}

fn ret(value: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value, 0)
}

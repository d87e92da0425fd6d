//! Memory: `ncclMemAlloc`, registration, and what kind of memory a pointer leads to.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use annulus::SharedBytes;

use crate::communicator::find;
use crate::handles::Handle;
use crate::init::Out;
use crate::result::{Code, Failure, Outcome};

/// What `ncclMemAlloc` gave out, by address.
static ALLOCATED: Mutex<BTreeMap<usize, SharedBytes>> = Mutex::new(BTreeMap::new());

/// `ncclMemAlloc`: memory that peers on this host read in place.
pub(crate) fn allocate(out: Out<*mut c_void>, bytes: usize) -> Outcome {
    out.write(ptr::null_mut());
    let mut memory = SharedBytes::new(bytes)?;
    let address = memory.as_mut_ptr();
    let mut allocated = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
    allocated.insert(address.addr(), memory);
    out.write(address.cast());
    Ok(Code::Success)
}

/// `ncclMemFree`
pub(crate) fn free(address: *mut c_void) -> Outcome {
    if address.is_null() {
        return Ok(Code::Success);
    }
    let mut allocated = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
    match allocated.remove(&address.addr()) {
        Some(_) => Ok(Code::Success),
        None => {
            Err(Failure::argument(format!("ptr is {address:p}, which ncclMemAlloc has not given")))
        }
    }
}

/// `ncclCommRegister`: host memory needs none. As in NCCL where registration is off, the handle is `NULL`.
pub(crate) fn register(
    comm: Handle,
    buffer: *mut c_void,
    bytes: usize,
    out: Out<*mut c_void>,
) -> Outcome {
    find(comm)?.ready()?;
    if buffer.is_null() || bytes == 0 {
        let text = format!("buff is {buffer:p} and size {bytes}: neither may be 0");
        return Err(Failure::argument(text));
    }
    expect_host(buffer, "buff")?;
    out.write(ptr::null_mut());
    Ok(Code::Success)
}

/// `ncclCommDeregister`
pub(crate) fn deregister(comm: Handle, handle: *mut c_void) -> Outcome {
    find(comm)?.ready()?;
    if handle.is_null() {
        return Ok(Code::Success);
    }
    Err(Failure::argument(format!("handle is {handle:p}, which ncclCommRegister has not given")))
}

/// `cuPointerGetAttribute`
type PointerAttribute = unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int;

/// The driver's `cuPointerGetAttribute`, once the process has loaded one.
static POINTER_ATTRIBUTE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

const MEMORY_TYPE: c_int = 2;
const DEVICE: c_uint = 2;
const ARRAY: c_uint = 3;

/// Looks whether the process has loaded a CUDA driver. A look at each communicator's birth is enough: device
/// pointers come from a driver that was there before.
pub(crate) fn look_for_driver() {
    if !POINTER_ATTRIBUTE.load(Ordering::Relaxed).is_null() {
        return;
    }
    // SAFETY: the names are terminated; nothing is loaded that is not there already.
    unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        if !driver.is_null() {
            let function = libc::dlsym(driver, c"cuPointerGetAttribute".as_ptr());
            POINTER_ATTRIBUTE.store(function, Ordering::Release);
        }
    }
}

/// Whether all memory is the host's, since no driver is loaded.
#[inline]
pub(crate) fn all_is_host() -> bool {
    POINTER_ATTRIBUTE.load(Ordering::Relaxed).is_null()
}

/// An error if `address` is a device's.
#[inline]
pub(crate) fn expect_host(address: *const c_void, argument: &str) -> Result<(), Failure> {
    let function = POINTER_ATTRIBUTE.load(Ordering::Acquire);
    if function.is_null() { Ok(()) } else { ask(function, address, argument) }
}

#[cold]
fn ask(function: *mut c_void, address: *const c_void, argument: &str) -> Result<(), Failure> {
    let mut kind: c_uint = 0;
    // SAFETY: the driver's function of that name has this type, and writes an unsigned int for this attribute.
    let status = unsafe {
        let function: PointerAttribute = std::mem::transmute(function);
        function((&raw mut kind).cast(), MEMORY_TYPE, address)
    };
    // The driver does not know ordinary host memory at all.
    if status == 0 && (kind == DEVICE || kind == ARRAY) {
        return Err(Failure::usage(format!(
            "{argument} is {address:p}, which is memory of a device: this version of Annulus works on host memory only"
        )));
    }
    Ok(())
}

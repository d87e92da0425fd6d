//! The rig for C (`rig.h`) and Python.

use std::ffi::{CStr, c_char};
use std::ptr;

use super::Rig;

/// [`Rig::open`], or null after printing why not.
///
/// # Safety
/// `path` is a string that ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rig_open(path: *const c_char, rank: usize, ranks: usize) -> *mut Rig {
    // SAFETY: the caller vouches for the string.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
    match Rig::open(path.as_ref(), rank, ranks) {
        Ok(rig) => Box::into_raw(Box::new(rig)),
        Err(error) => {
            eprintln!("rig: {path}: {error}");
            ptr::null_mut()
        }
    }
}

/// [`Rig::next_size`], 0 when all have been run.
///
/// # Safety
/// Here and below, `rig` comes from [`rig_open`] and is used by one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rig_next_size(rig: *mut Rig) -> usize {
    // SAFETY: the caller vouches for the pointer.
    unsafe { &mut *rig }.next_size().unwrap_or(0)
}

/// [`Rig::rewrites`], as 0 or 1.
///
/// # Safety
/// As [`rig_next_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rig_rewrites(rig: *mut Rig) -> i32 {
    // SAFETY: the caller vouches for the pointer.
    i32::from(unsafe { &*rig }.rewrites())
}

/// [`Rig::next_sample`].
///
/// # Safety
/// As [`rig_next_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rig_next_sample(rig: *mut Rig) -> u64 {
    // SAFETY: the caller vouches for the pointer.
    unsafe { &mut *rig }.next_sample()
}

/// [`Rig::begin_operation`].
///
/// # Safety
/// As [`rig_next_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rig_begin_operation(rig: *mut Rig) {
    // SAFETY: the caller vouches for the pointer.
    unsafe { &mut *rig }.begin_operation();
}

/// [`Rig::end_operation`].
///
/// # Safety
/// As [`rig_next_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rig_end_operation(rig: *mut Rig) {
    // SAFETY: the caller vouches for the pointer.
    unsafe { &mut *rig }.end_operation();
}

/// Leaves the rig.
///
/// # Safety
/// As [`rig_next_size`], and `rig` is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rig_close(rig: *mut Rig) {
    // SAFETY: the caller gives the rig back.
    drop(unsafe { Box::from_raw(rig) });
}

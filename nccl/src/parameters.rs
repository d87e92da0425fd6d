//! `ncclParam*`: the variables that have an effect, and their values.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use crate::environment::{self, Effect, VARIABLES, Variable};
use crate::init::Out;
use crate::result::{Code, Failure, Outcome};

/// `ncclParamHandle_t`: the address of an entry of the table, compared and never followed.
pub(crate) type Parameter = *const c_void;

thread_local! {
    /// What `ncclParamGetStr` gave out last on this thread.
    static TEXT: RefCell<CString> = RefCell::default();
    /// What `ncclParamGetParameter` gave out last on this thread.
    static VALUE: RefCell<CString> = RefCell::default();
    /// What `ncclParamGetAllParameterKeys` gave out last on this thread: the names, and where they are.
    static KEYS: RefCell<(Vec<CString>, Vec<*const c_char>)> = RefCell::default();
}

/// `ncclParamBind`
///
/// # Safety
/// `key` is null or terminated.
pub(crate) unsafe fn bind(out: Out<Parameter>, key: *const c_char) -> Outcome {
    out.write(ptr::null());
    // SAFETY: the caller vouches for the key.
    let variable = unsafe { by_key(key)? };
    out.write(ptr::from_ref(variable).cast());
    Ok(Code::Success)
}

/// `ncclParamGetI8` and its kin.
pub(crate) fn number<T: TryFrom<i128>>(parameter: Parameter, out: Out<T>) -> Outcome {
    let name = by_handle(parameter)?.name;
    let Some(value) = environment::get(name) else {
        return Err(Failure::argument(format!("{name} is not set")));
    };
    let number = value.trim().parse::<i128>().ok().and_then(|number| T::try_from(number).ok());
    let number = number.ok_or_else(|| {
        let bits = 8 * size_of::<T>();
        Failure::argument(format!(
            "{name} is {value:?}: that is no number of this kind with {bits} bits"
        ))
    })?;
    out.write(number);
    Ok(Code::Success)
}

/// `ncclParamGetStr`; `NULL` for a variable that is not set.
pub(crate) fn text(parameter: Parameter, out: Out<*const c_char>) -> Outcome {
    let value = environment::get(by_handle(parameter)?.name);
    out.write(value.map_or(ptr::null(), |value| TEXT.with_borrow_mut(|text| keep(text, value))));
    Ok(Code::Success)
}

/// `ncclParamGet`: the bytes of the value, with its end.
///
/// # Safety
/// `out` is null or has room for `room` bytes.
pub(crate) unsafe fn bytes(
    parameter: Parameter,
    out: *mut c_void,
    room: c_int,
    length: Out<c_int>,
) -> Outcome {
    let name = by_handle(parameter)?.name;
    if out.is_null() {
        return Err(Failure::argument("out is NULL"));
    }
    let value = c_string(environment::get(name).unwrap_or_default());
    let bytes = value.as_bytes_with_nul();
    if usize::try_from(room).unwrap_or(0) < bytes.len() {
        let needed = bytes.len();
        return Err(Failure::argument(format!(
            "maxLen is {room}, but {name} needs {needed} bytes"
        )));
    }
    // SAFETY: the caller vouches for the room.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
    length.write(bytes.len() as c_int);
    Ok(Code::Success)
}

/// `ncclParamGetParameter`
///
/// # Safety
/// `key` is null or terminated.
pub(crate) unsafe fn by_name(
    key: *const c_char,
    value: Out<*const c_char>,
    length: Out<c_int>,
) -> Outcome {
    value.write(ptr::null());
    length.write(0);
    // SAFETY: the caller vouches for the key.
    let name = unsafe { by_key(key)?.name };
    if let Some(text) = environment::get(name) {
        length.write(text.len() as c_int);
        value.write(VALUE.with_borrow_mut(|value| keep(value, text)));
    }
    Ok(Code::Success)
}

/// `ncclParamGetAllParameterKeys`
pub(crate) fn keys(table: Out<*mut *const c_char>, length: Out<c_int>) -> Outcome {
    KEYS.with_borrow_mut(|(names, table_of_names)| {
        *names = effective().map(|variable| c_string(variable.name.to_owned())).collect();
        *table_of_names = names.iter().map(|name| name.as_ptr()).collect();
        length.write(table_of_names.len() as c_int);
        table.write(table_of_names.as_mut_ptr());
    });
    Ok(Code::Success)
}

/// `ncclParamDumpAll`
pub(crate) fn dump() {
    for variable in effective() {
        let Effect::Honoured(meaning) = variable.effect else { continue };
        let value = environment::get(variable.name).unwrap_or_else(|| "<unset>".to_owned());
        println!("{}={value}  ({meaning})", variable.name);
    }
}

fn effective() -> impl Iterator<Item = &'static Variable> {
    VARIABLES.iter().filter(|variable| matches!(variable.effect, Effect::Honoured(_)))
}

fn by_handle(parameter: Parameter) -> Result<&'static Variable, Failure> {
    let same = |variable: &&Variable| ptr::from_ref::<Variable>(variable).cast() == parameter;
    effective().find(same).ok_or_else(|| {
        Failure::argument(format!("h is {parameter:p}, which ncclParamBind has not given"))
    })
}

/// # Safety
/// `key` is null or terminated.
unsafe fn by_key(key: *const c_char) -> Result<&'static Variable, Failure> {
    if key.is_null() {
        return Err(Failure::argument("key is NULL"));
    }
    // SAFETY: the caller vouches for it.
    let key = unsafe { CStr::from_ptr(key) }.to_string_lossy();
    effective()
        .find(|variable| variable.name == key)
        .ok_or_else(|| Failure::argument(format!("key is {key:?}, which has no effect here")))
}

fn keep(place: &mut CString, text: String) -> *const c_char {
    *place = c_string(text);
    place.as_ptr()
}

/// Variables hold no NUL, but files may.
fn c_string(text: String) -> CString {
    CString::new(text.replace('\0', "")).unwrap_or_default()
}

//! Gives the library NCCL's soname, and puts a link of that name beside it.

use std::path::Path;
use std::{env, fs, os::unix::fs::symlink};

const SONAME: &str = "libnccl.so.2";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-soname,{SONAME}");
    // Threads of the library may outlive a dlclose.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
    // target/<profile>/build/annulus-nccl-<hash>/out
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let profile = Path::new(&out).ancestors().nth(3).expect("out lies deep in the target folder");
    let link = profile.join(SONAME);
    if fs::read_link(&link).is_ok_and(|target| target == Path::new("libnccl.so")) {
        return;
    }
    // Only a convenience for those who use the folder as LD_LIBRARY_PATH: `nccl/install` makes its own.
    let _ = fs::remove_file(&link);
    if let Err(error) = symlink("libnccl.so", &link) {
        println!("cargo::warning=no link {}: {error}", link.display());
    }
}

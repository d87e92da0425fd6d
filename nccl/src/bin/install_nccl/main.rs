//! Installs the library under the names that programs look for.
//!
//! ```text
//! cargo run --release -p annulus-nccl --bin install_nccl -- PREFIX
//! ```

mod weak;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

const FILE: &str = "libnccl.so.2.29.7";
/// PyTorch and what is linked with `-lnccl` look for the first, cudarc for the second.
const LINKS: [(&str, &str); 2] = [("libnccl.so.2", FILE), ("libnccl.so", "libnccl.so.2")];
const HEADER: &str = include_str!("../../../include/nccl.h");

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let (Some(prefix), None) = (arguments.next(), arguments.next()) else {
        eprintln!(
            "usage: install_nccl PREFIX   (writes PREFIX/lib/libnccl.so.2 and PREFIX/include/nccl.h)"
        );
        return ExitCode::from(2);
    };
    match install(Path::new(&prefix)) {
        Ok(library) => {
            println!("{}", library.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("install_nccl: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes everything below `prefix`; where the library is then.
fn install(prefix: &Path) -> Result<PathBuf, String> {
    let built = built()?;
    let mut library = fs::read(&built).map_err(|error| format!("{}: {error}", built.display()))?;
    weak::weaken(&mut library).map_err(|error| format!("{}: {error}", built.display()))?;
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    let pkgconfig = lib.join("pkgconfig");
    let named = |path: &Path, result: io::Result<()>| {
        result.map_err(|error| format!("{}: {error}", path.display()))
    };
    for folder in [&lib, &include, &pkgconfig] {
        named(folder, fs::create_dir_all(folder))?;
    }
    // A running program keeps the file that it has mapped.
    let (file, fresh) = (lib.join(FILE), lib.join(format!("{FILE}.{}", std::process::id())));
    named(&fresh, fs::write(&fresh, library))?;
    named(&file, fs::rename(&fresh, &file))?;
    for (name, target) in LINKS {
        let link = lib.join(name);
        if link.symlink_metadata().is_ok() {
            named(&link, fs::remove_file(&link))?;
        }
        named(&link, symlink(target, &link))?;
    }
    let header = include.join("nccl.h");
    named(&header, fs::write(&header, HEADER))?;
    let description = pkgconfig.join("nccl.pc");
    let text = format!(
        "prefix={}\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\nName: nccl\nDescription: NCCL's interface on \
         Annulus\nVersion: 2.29.7\nLibs: -L${{libdir}} -lnccl\nCflags: -I${{includedir}}\n",
        prefix.display()
    );
    named(&description, fs::write(&description, text))?;
    Ok(lib.join("libnccl.so.2"))
}

/// The library that cargo has built together with this program.
fn built() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| format!("where is this program? {error}"))?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let candidates = [folder.join("deps/libnccl.so"), folder.join("libnccl.so")];
    candidates
        .iter()
        .find(|candidate| candidate.exists())
        .cloned()
        .ok_or_else(|| format!("no libnccl.so beside {}: run it through cargo", program.display()))
}

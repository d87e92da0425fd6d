//! What NCCL's own packages say: fetched with pip once, reduced to lists, and kept in the target folder. Nothing of
//! them is in the repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs};

use crate::programs::{compile_against, folder, is_there, package, run};

/// The versions that are compared with.
pub(crate) const VERSIONS: [&str; 4] = ["2.27.7", "2.28.9", "2.29.7", "2.32.3"];

/// What is kept of a package.
#[derive(Clone, Debug)]
pub(crate) struct Wheel {
    /// The folder with its `nccl.h`.
    pub(crate) include: PathBuf,
    /// The names of its library: kind as `nm` prints it, and name.
    pub(crate) symbols: Vec<(char, String)>,
    /// What `answers.c` printed with its library.
    pub(crate) answers: String,
}

/// The package of `version`; else why it is not to be had.
pub(crate) fn wheel(version: &str) -> Result<Wheel, String> {
    static FETCHED: Mutex<BTreeMap<String, Result<Wheel, String>>> = Mutex::new(BTreeMap::new());
    let mut fetched = FETCHED.lock().expect("no test panics while it fetches");
    fetched.entry(version.to_owned()).or_insert_with(|| find(version)).clone()
}

/// Runs `compare` with each version's package that can be had.
pub(crate) fn for_each(what: &str, compare: impl Fn(&str, &Wheel)) {
    for version in VERSIONS {
        match wheel(version) {
            Ok(wheel) => compare(version, &wheel),
            Err(reason) => println!("skipped: {what} of NCCL {version}: {reason}"),
        }
    }
}

fn find(version: &str) -> Result<Wheel, String> {
    if env::var_os("ANNULUS_TEST_OFFLINE").is_some() {
        return Err("ANNULUS_TEST_OFFLINE is set".into());
    }
    for program in ["gcc", "python3", "nm"] {
        if !is_there(program) {
            return Err(format!("{program} is not installed"));
        }
    }
    // Another program has other answers.
    let source = fs::read(package().join("tests/c/answers.c")).expect("the source");
    let mark = source.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let kept = folder("nccl-wheels").join(format!("{version}-{mark:016x}"));
    if !kept.exists() {
        let fresh = folder("nccl-wheels").join(format!("{version}-{}", std::process::id()));
        let fetched = fetch(version, &fresh);
        // Another process may have been faster.
        if fetched.is_err() || fs::rename(&fresh, &kept).is_err() {
            let _ = fs::remove_dir_all(&fresh);
        }
        fetched?;
    }
    read(&kept).map_err(|error| format!("{}: {error}", kept.display()))
}

fn read(kept: &Path) -> std::io::Result<Wheel> {
    let symbols = fs::read_to_string(kept.join("symbols"))?;
    let symbols = symbols.lines().filter_map(|line| {
        let (kind, name) = line.split_once(' ')?;
        Some((kind.chars().next()?, name.to_owned()))
    });
    Ok(Wheel {
        include: kept.join("include"),
        symbols: symbols.collect(),
        answers: fs::read_to_string(kept.join("answers"))?,
    })
}

/// Downloads the package, and keeps of it in `to` what the tests compare with.
fn fetch(version: &str, to: &Path) -> Result<(), String> {
    let io = |error: std::io::Error| format!("{}: {error}", to.display());
    let download = to.join("download");
    fs::create_dir_all(&download).map_err(io)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"])
        .args(["--retries", "1", "--timeout", "15", "--disable-pip-version-check", "-d"])
        .arg(&download)
        .arg(format!("nvidia-nccl-cu13=={version}"));
    finish(&mut pip)?;
    let unpack = "import glob, sys, zipfile\n\
        wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0])\n\
        for name in ('include/nccl.h', 'lib/libnccl.so.2'):\n    \
            wheel.extract('nvidia/nccl/' + name, sys.argv[1])";
    finish(Command::new("python3").args(["-c", unpack]).arg(&download))?;
    let unpacked = download.join("nvidia/nccl");
    fs::create_dir(to.join("include")).map_err(io)?;
    fs::copy(unpacked.join("include/nccl.h"), to.join("include/nccl.h")).map_err(io)?;
    let library = unpacked.join("lib");
    fs::write(to.join("symbols"), symbols(&library.join("libnccl.so.2"))?).map_err(io)?;
    std::os::unix::fs::symlink("libnccl.so.2", library.join("libnccl.so")).map_err(io)?;
    let name = format!("answers-of-{version}");
    let program = compile_against(&library, "answers.c", &name, &includes(&to.join("include")));
    let answers = finish(Command::new(program).env("LD_LIBRARY_PATH", &library))?;
    fs::write(to.join("answers"), answers).map_err(io)?;
    fs::remove_dir_all(&download).map_err(io)
}

/// The names that start with `nccl` or `pnccl`, one a line after their kinds.
pub(crate) fn symbols(library: &Path) -> Result<String, String> {
    let listed = finish(Command::new("nm").args(["-D", "--defined-only"]).arg(library))?;
    let lines = listed.lines().filter_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (kind, name) = (columns.next()?, columns.next()?);
        (name.starts_with("nccl") || name.starts_with("pnccl")).then(|| format!("{kind} {name}\n"))
    });
    Ok(lines.collect())
}

/// Where the header's own includes are as well.
pub(crate) fn includes(include: &Path) -> Vec<PathBuf> {
    vec![include.to_owned(), package().join("tests/c/cuda")]
}

/// Runs `command`; what it printed, else the last line of what it complained of.
fn finish(command: &mut Command) -> Result<String, String> {
    let output = run(command);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let program = command.get_program().to_string_lossy().into_owned();
    Err(format!("{program}: {}", complaint.lines().last().unwrap_or("failed without a word")))
}

//! C programs that are linked with the library, and runs of them.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// How long a program may take on a busy machine before it counts as hung.
const LIMIT: Duration = Duration::from_secs(240);

/// The folder of this package.
pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder of this test binary's own, which keeps its files: `target/tmp/NAME`.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).expect("a folder for the test's files");
    folder
}

/// The folder that holds the library by its names: what goes into `LD_LIBRARY_PATH`.
pub(crate) fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // Cargo builds it beside the test binary.
        let test = env::current_exe().expect("this program's path");
        let built = test.parent().expect("it lies in a folder").join("libnccl.so");
        assert!(built.exists(), "{} was not built", built.display());
        let folder = folder("library");
        for name in ["libnccl.so", "libnccl.so.2"] {
            let link = folder.join(name);
            if fs::read_link(&link).is_ok_and(|target| target == built) {
                continue;
            }
            let _ = fs::remove_file(&link);
            symlink(&built, &link).expect("a link to the library");
        }
        folder
    })
}

/// Whether `program` can be started.
pub(crate) fn is_there(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Compiles `source` of `tests/c` with the headers in `include` and links it with the library. No two tests use one `name`.
pub(crate) fn compile(source: &str, name: &str, include: &[impl AsRef<Path>]) -> PathBuf {
    compile_against(library(), source, name, include)
}

/// The same with the library in another folder.
pub(crate) fn compile_against(
    library: &Path,
    source: &str,
    name: &str,
    include: &[impl AsRef<Path>],
) -> PathBuf {
    let program = folder("programs").join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]);
    for folder in include {
        gcc.arg("-I").arg(folder.as_ref());
    }
    gcc.arg(package().join("tests/c").join(source)).arg("-o").arg(&program);
    gcc.arg("-L").arg(library).args(["-lnccl", "-lpthread", "-ldl"]);
    let output = gcc.output().expect("gcc");
    assert!(output.status.success(), "gcc: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A command that finds the library.
pub(crate) fn with_library(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library()).stdin(Stdio::null());
    command
}

/// Runs `command` to its end; fails when that does not come.
pub(crate) fn run(command: &mut Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let drain = |pipe: Option<Box<dyn std::io::Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let stdout = drain(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = drain(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    let status = wait(&mut child);
    let [stdout, stderr] = [stdout, stderr].map(|pipe| pipe.join().expect("read"));
    Output { status, stdout, stderr }
}

/// Waits for the end of `child`; kills it and fails when that does not come.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        if start.elapsed() > LIMIT {
            child.kill().expect("kill");
            child.wait().expect("wait");
            panic!("process {} hangs", child.id());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `command`, which must succeed; what it printed.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

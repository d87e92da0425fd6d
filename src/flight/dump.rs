//! Writes the records of the process down: where its user wants them, when something is wrong.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;

use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;

use super::file::first_page;
use super::page::Page;

/// Where the records of a process go: `ANNULUS_DUMP`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dump {
    /// To standard error, as text.
    Stderr,
    /// To the file `annulus-flight-HOST-PID` in this folder, which replaces an earlier one; `annulus status FILE` shows it.
    Folder(PathBuf),
}

/// `ANNULUS_DUMP` makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("ANNULUS_DUMP={value}: use stderr, or a folder that exists")]
pub struct DumpError {
    /// What it was set to.
    pub value: String,
}

impl Dump {
    /// `stderr`, or the path of a folder.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn parse(value: &str) -> Result<Self, DumpError> {
        match value {
            "stderr" => Ok(Self::Stderr),
            path if Path::new(path).is_dir() => Ok(Self::Folder(path.into())),
            value => Err(DumpError { value: value.to_owned() }),
        }
    }

    /// Writes the records of all communicators of this process. Says on standard error where that fails.
    pub(crate) fn write(&self) {
        let written = match self {
            Self::Stderr => {
                let texts = Page::all().into_iter().filter_map(|page| page.record());
                let text: String = texts.map(|record| record.to_string()).collect();
                io::stderr().lock().write_all(text.as_bytes())
            }
            Self::Folder(folder) => write_file(folder),
        };
        if let Err(error) = written {
            // Nobody is left to tell where standard error is closed.
            let _ = writeln!(io::stderr(), "annulus: cannot dump the flight records: {error}");
        }
    }
}

fn write_file(folder: &Path) -> io::Result<()> {
    let pages = Page::all();
    let file = pages.first().and_then(|page| page.file());
    let mut bytes = first_page(file, pages.len());
    pages.iter().for_each(|page| bytes.extend(page.bytes()));
    let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "-");
    let name = format!("annulus-flight-{host}-{}", std::process::id());
    // Whole or not at all, also when several threads dump at once.
    let draft = folder.join(format!(".{name}.{:?}", std::thread::current().id()));
    fs::write(&draft, bytes)?;
    fs::rename(&draft, folder.join(name))
}

/// From now on SIGUSR1 makes this process dump, unless the program handles that signal itself.
pub(crate) fn dump_on_signal(dump: &Dump) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if is_handled(SIGUSR1) {
            return;
        }
        let dump = dump.clone();
        let started = Signals::new([SIGUSR1]).and_then(|mut signals| {
            std::thread::Builder::new()
                .name("annulus-dump".into())
                .spawn(move || signals.forever().for_each(|_| dump.write()))
        });
        if let Err(error) = started {
            log::warn!("SIGUSR1 will not dump the flight records: {error}");
        }
    });
}

/// Whether the program does something of its own at a signal.
fn is_handled(signal: libc::c_int) -> bool {
    let mut now = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; the kernel fills the structure, of which all bytes zero are a valid value.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: as above.
    asked != 0 || unsafe { now.assume_init() }.sa_sigaction != libc::SIG_DFL
}

#[cfg(test)]
mod tests {
    use super::super::read_records;
    use super::*;

    #[test]
    fn a_dump_can_be_read() {
        let page = Page::new(2, 3, 77).expect("three ranks");
        page.broke("rank 0 aborted the communicator");
        let folder = std::env::temp_dir().join(format!("annulus-dump-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        Dump::parse(folder.to_str().expect("text")).expect("it is there").write();
        let files: Vec<_> = fs::read_dir(&folder).expect("it is there").flatten().collect();
        let bytes = fs::read(files[0].path()).expect("a dump");
        fs::remove_dir_all(&folder).expect("it is ours");
        assert_eq!(files.len(), 1, "{files:?}");
        let records = read_records(&bytes).expect("sound");
        let record = records.iter().find(|record| record.communicator == 77).expect("it is there");
        assert_eq!((record.rank, record.world), (2, 3));
        assert_eq!(record.error.as_deref(), Some("rank 0 aborted the communicator"));
        assert!(read_records(&bytes[..100]).is_err());
    }
}

//! The job's secret stays where it belongs: not in output, logs, errors or command lines.

#[allow(dead_code, reason = "a part of it is enough here")]
mod process;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use process::{Ended, command, finish};

const ANNULUS: &str = env!("CARGO_BIN_EXE_annulus");
const ALL_REDUCE: &str = env!("CARGO_BIN_EXE_all_reduce_perf");

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("annulus-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Every form in which 32 bytes might be printed, at least 8 of them.
fn forms(secret: &[u8]) -> Vec<String> {
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    let mut forms = Vec::new();
    for part in secret.chunks(8) {
        forms.push(hex(part));
        forms.push(hex(part).to_uppercase());
        let decimal = format!("{part:?}");
        forms.push(decimal.trim_matches(['[', ']']).to_owned());
        forms.push(format!("{part:x?}").trim_matches(['[', ']']).to_owned());
    }
    for plus in ["+/", "-_"] {
        // Whatever comes before the secret shifts it by up to two bytes.
        for skip in 0..3 {
            let whole = (secret.len() - skip) / 3 * 3;
            forms.push(base64(&secret[skip..skip + whole], plus.as_bytes()));
        }
    }
    forms
}

fn base64(bytes: &[u8], last: &[u8]) -> String {
    let digits: Vec<u8> =
        (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(last.iter().copied()).collect();
    let mut text = String::new();
    for three in bytes.chunks_exact(3) {
        let word = three.iter().fold(0_usize, |word, byte| word << 8 | usize::from(*byte));
        text.extend([18, 12, 6, 0].map(|shift| char::from(digits[word >> shift & 63])));
    }
    text
}

/// Where the secret shows in `text`.
fn leak(secret: &[u8], text: &[u8]) -> Option<String> {
    let raw = secret.chunks(8).map(<[u8]>::to_vec);
    let forms = forms(secret).into_iter().map(String::into_bytes).chain(raw);
    let found = forms.into_iter().find(|form| text.windows(form.len()).any(|seen| seen == form))?;
    Some(String::from_utf8_lossy(&found).into_owned())
}

/// Runs two ranks that first store the secret that they were given in `folder`, with everything logged: what they printed, and every
/// command line that was seen meanwhile.
fn run(folder: &Path, program: &str, variables: &[(&str, &str)]) -> (Ended, Vec<u8>) {
    let script = format!(
        "umask 077; printf %s \"$ANNULUS_SECRET\" > {}/secret.$ANNULUS_RANK; {program}",
        folder.display()
    );
    let mut job = command(ANNULUS, &["run", "-n", "2", "--", "sh", "-c", &script]);
    job.env("ANNULUS_LOG", "trace").env("RUST_BACKTRACE", "1").envs(variables.iter().copied());
    let over = AtomicBool::new(false);
    thread::scope(|threads| {
        let watcher = threads.spawn(|| {
            let mut seen = BTreeSet::new();
            while !over.load(Ordering::Relaxed) {
                for entry in fs::read_dir("/proc").expect("proc").flatten() {
                    // Processes come and go.
                    seen.extend(fs::read(entry.path().join("cmdline")));
                }
                thread::sleep(std::time::Duration::from_millis(2));
            }
            seen.into_iter().collect::<Vec<_>>().join(&b'\n')
        });
        let ended = finish(job);
        over.store(true, Ordering::Relaxed);
        (ended, watcher.join().expect("no panic"))
    })
}

fn secret(folder: &Path) -> Vec<u8> {
    let [zero, one] = [0, 1].map(|rank| {
        fs::read_to_string(folder.join(format!("secret.{rank}"))).expect("the rank wrote it")
    });
    assert_eq!(zero, one);
    assert_eq!(zero.len(), 64);
    let digit = |at| u8::from_str_radix(&zero[at..at + 2], 16).expect("digits");
    (0..64).step_by(2).map(digit).collect()
}

#[test]
fn a_job_that_logs_everything_tells_no_secret() {
    let folder = Folder::new("secrets-well");
    for (transport, encrypt) in [("auto", "0"), ("tcp", "1")] {
        let (ended, command_lines) = run(
            &folder.0,
            &format!("exec {ALL_REDUCE} -b 8 -e 8K -f 8 -n 2 -w 1"),
            &[("ANNULUS_TRANSPORT", transport), ("ANNULUS_ENCRYPT", encrypt)],
        );
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        let secret = secret(&folder.0);
        // Something was logged, or this shows nothing.
        assert!(ended.err.contains("has connected to rank"), "{}", ended.err);
        for text in [ended.out.as_bytes(), ended.err.as_bytes()] {
            assert_eq!(leak(&secret, text), None, "{}", ended.err);
        }
        assert!(String::from_utf8_lossy(&command_lines).contains(ALL_REDUCE));
        assert_eq!(leak(&secret, &command_lines), None);
    }
}

#[test]
fn errors_tell_no_secret() {
    let folder = Folder::new("secrets-ill");
    for (program, says) in [
        // Ranks of different settings; ranks of different secrets; no secret at all.
        (
            format!("[ $ANNULUS_RANK = 0 ] || export ANNULUS_ALGO=ring; exec {ALL_REDUCE} -e 8"),
            "the same ANNULUS_",
        ),
        (
            format!(
                "[ $ANNULUS_RANK = 0 ] || export ANNULUS_SECRET=$(printf %s \"$ANNULUS_SECRET\" | tr 0-9 1-90); \
                 export ANNULUS_TIMEOUT=2s; exec {ALL_REDUCE} -e 8"
            ),
            "",
        ),
        (
            format!("ANNULUS_SECRET=${{ANNULUS_SECRET}}0 exec {ALL_REDUCE} -e 8"),
            "65 characters, not shown",
        ),
    ] {
        let (ended, command_lines) = run(&folder.0, &program, &[]);
        assert_ne!(ended.code, Some(0));
        assert!(ended.err.contains(says), "{}", ended.err);
        let secret = secret(&folder.0);
        for text in [ended.out.as_bytes(), ended.err.as_bytes(), &command_lines] {
            assert_eq!(leak(&secret, text), None, "{}", ended.err);
        }
    }
}

#[test]
fn the_doctor_shows_no_secret() {
    let digits = "a7".repeat(32);
    let mut doctor = command(ANNULUS, &["doctor"]);
    doctor.env("ANNULUS_SECRET", &digits);
    let ended = finish(doctor);
    assert!(ended.out.contains("ANNULUS_SECRET=..."), "{}", ended.out);
    assert!(!ended.out.contains("a7a7") && !ended.err.contains("a7a7"));
}

/// The secret is handed on by environment, which the kernel shows to the same user only.
#[test]
fn other_users_may_not_read_an_environment() {
    let mode = fs::metadata("/proc/self/environ").expect("proc").permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[test]
fn leaks_would_be_found() {
    let secret: Vec<u8> = (0..32).map(|n| n * 7 + 3).collect();
    let hidden = b"nothing to be seen here".to_vec();
    assert_eq!(leak(&secret, &hidden), None);
    let id = [b"ab", &secret[..]].concat();
    for shown in [
        format!("{secret:?}"),
        format!("{:x?}", secret),
        secret.iter().fold(String::new(), |text, byte| text + &format!("{byte:02X}")),
        base64(&id[..33], b"+/"),
    ] {
        assert!(leak(&secret, shown.as_bytes()).is_some(), "{shown}");
    }
    assert!(leak(&secret, &id).is_some());
}

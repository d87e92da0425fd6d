//! Ranks whose processes are killed: what is left of them, and in those that live on.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use annulus::{Communicator, Config, Error, ReduceOp, Transport, UniqueId};

use crate::held::Held;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Set in the ranks' processes only: which job, rank, world and transport.
const MARK: &str = "ANNULUS_TEST_KILLED";

/// Not a test by itself: what each rank's process runs. It calls until a call fails, and says what it then still holds.
#[test]
fn rank_process() {
    let Ok(mark) = std::env::var(MARK) else { return };
    let [_job, rank, world, transport] = mark.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{mark}");
    };
    let before = Held::now();
    let mut id = [0; annulus::bootstrap::UNIQUE_ID_BYTES];
    std::io::stdin().read_exact(&mut id).expect("the id");
    let id = UniqueId::from_bytes(&id).expect("a sound id");
    let number = |text: &str| text.parse().expect("a number");
    let comm = Communicator::init(&id, number(rank), number(world), &with(transport));
    let comm = comm.expect("ranks meet");
    let part = comm.split(Some(0), 0).expect("all come").expect("a color was given");
    call_until_it_fails(&part, || {
        println!("\nsockets {}", sockets().into_iter().collect::<Vec<_>>().join(" "));
    });
    drop((comm, part));
    let growth = Held::settled(&before, PATIENCE).since(&before);
    assert!(growth.is_settled(), "{growth}");
    println!("\nends");
}

fn with(transport: &str) -> Config {
    let mut config = Config::default();
    config.timeout = PATIENCE;
    config.transport = Transport::from_name(transport).expect("a transport");
    config
}

/// `after_some` is called when everything that a rank needs is there.
fn call_until_it_fails(comm: &Communicator, after_some: impl Fn()) -> Error {
    for calls in 0.. {
        let mut small = [1_u32; 4];
        let mut large = vec![1_u32; 50_000];
        let called = comm
            .all_reduce(&mut small, ReduceOp::Sum)
            .and_then(|()| comm.all_reduce(&mut large, ReduceOp::Sum));
        match called {
            Ok(()) => assert_eq!((small[3], large[9]), (small[0], comm.world_size() as u32)),
            Err(error) => return error,
        }
        if calls == 2 {
            after_some();
        }
    }
    unreachable!("it calls for ever")
}

/// The kernel's numbers of this process's sockets.
fn sockets() -> HashSet<String> {
    let descriptors = fs::read_dir("/proc/self/fd").expect("procfs");
    let targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let socket = |target: std::path::PathBuf| {
        Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    targets.filter_map(socket).collect()
}

/// A process that is killed when the test ends.
struct Rank {
    process: Child,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Rank {
    fn start(job: &str, id: &UniqueId, rank: usize, world: usize, transport: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "killed::rank_process", "--nocapture", "--test-threads=1"])
            .env_remove(crate::MARK)
            .env(MARK, format!("{job} {rank} {world} {transport}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut input = process.stdin.take().expect("piped");
        input.write_all(&id.to_bytes()).expect("it reads");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, lines: Box::new(lines.map_while(Result::ok)) }
    }

    fn says(&mut self, beginning: &str) -> Option<String> {
        self.lines.by_ref().find(|line| line.starts_with(beginning))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A rank of this process, whose only peer is a process that is killed.
pub(crate) fn peer_is_killed(cycle: usize) {
    let transport = ["shm", "tcp"][cycle % 2];
    let id = UniqueId::new().expect("a unique id");
    let mut peer = Rank::start("survivor", &id, 1, 2, transport);
    let comm = Communicator::init(&id, 0, 2, &with(transport)).expect("ranks meet");
    thread::scope(|threads| {
        let failed = threads.spawn(|| {
            let part = comm.split(Some(0), 0).expect("all come").expect("a color was given");
            call_until_it_fails(&part, || {})
        });
        peer.says("sockets").expect("it calls");
        peer.process.kill().expect("killed");
        let error = failed.join().expect("no panic");
        assert!(matches!(error, Error::RankLost { .. } | Error::Link { .. }), "{error}");
    });
}

/// Kills some ranks of a job, and looks for what is left when the others have ended.
fn kill(victims: &[usize], transport: &str) {
    let files = left_files();
    let job = format!("{}-{transport}-{victims:?}", std::process::id()).replace(' ', "");
    let id = UniqueId::new().expect("a unique id");
    let mut ranks: Vec<_> = (0..3).map(|rank| Rank::start(&job, &id, rank, 3, transport)).collect();
    let mut open = HashSet::new();
    for rank in &mut ranks {
        let line = rank.says("sockets ").expect("it calls");
        open.extend(line.split(' ').skip(1).map(str::to_owned));
    }
    assert!(open.len() >= 3 * 3, "a listener, a Unix listener and the control connection each");
    assert_eq!(processes(&job).len(), 3);
    for &victim in victims {
        ranks[victim].process.kill().expect("killed");
    }
    for (rank, process) in ranks.iter_mut().enumerate() {
        if !victims.contains(&rank) {
            process.says("ends").unwrap_or_else(|| panic!("rank {rank} of {job} fails or leaks"));
        }
        process.process.wait().expect("it ends");
    }
    wait_for(&format!("processes of {job} go"), || processes(&job).is_empty());
    wait_for(&format!("sockets of {job} go"), || {
        ["unix", "tcp", "tcp6"].iter().all(|kind| {
            let table = fs::read_to_string(format!("/proc/net/{kind}")).unwrap_or_default();
            !table.split_whitespace().any(|word| open.contains(word) && word != "0")
        })
    });
    wait_for(&format!("files of {job} go"), || left_files().is_subset(&files));
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The processes that were started for `job`, by what stands in their environment.
fn processes(job: &str) -> Vec<String> {
    let mark = format!("{MARK}={job} ");
    let entries = fs::read_dir("/proc").expect("procfs").filter_map(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let marked = |pid: &String| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
            environment.split(|&byte| byte == 0).any(|entry| entry.starts_with(mark.as_bytes()))
        })
    };
    names.filter(marked).collect()
}

/// Files that may be Annulus's where a library leaves files.
fn left_files() -> HashSet<String> {
    let folders = ["/dev/shm".into(), "/tmp".into(), std::env::temp_dir()];
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path().display().to_string()));
    paths.filter(|path| path.contains("annulus")).collect()
}

#[test]
fn any_killed_subset_leaves_nothing_over_shared_memory() {
    for subset in 1..8 {
        kill(&(0..3).filter(|rank| subset >> rank & 1 == 1).collect::<Vec<_>>(), "shm");
    }
}

#[test]
fn any_killed_subset_leaves_nothing_over_tcp() {
    for subset in 1..8 {
        kill(&(0..3).filter(|rank| subset >> rank & 1 == 1).collect::<Vec<_>>(), "tcp");
    }
}

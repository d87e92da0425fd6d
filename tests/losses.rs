//! A rank is lost in every way that a rank can be lost: each other rank gets the same error, which names it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use annulus::{Communicator, Config, Error, Launch, ReduceOp, Transport};
use rustix::process::{Pid, Signal, kill_process};

/// Set in the ranks' processes only: the transport.
const TRANSPORT: &str = "ANNULUS_TEST_LOSS_TRANSPORT";
/// What the rank does when it has made some calls.
const FATE: &str = "ANNULUS_TEST_LOSS_FATE";
/// Seconds of heartbeat, if it is not one.
const HEARTBEAT: &str = "ANNULUS_TEST_LOSS_HEARTBEAT";

/// Not a test by itself: what each rank's process runs, with a launcher's variables. It calls until a call fails, prints what
/// it got, and goes when it is told to.
#[test]
fn rank_process() {
    let Some(transport) = std::env::var_os(TRANSPORT) else { return };
    let mut config = Config::default();
    config.timeout = Duration::from_secs(60);
    let heartbeat = std::env::var(HEARTBEAT).map_or(1, |text| text.parse().expect("seconds"));
    config.heartbeat = Some(Duration::from_secs(heartbeat));
    config.transport = transport.to_str().and_then(Transport::from_name).expect("a transport");
    let launch = Launch::from_env().expect("a launch");
    let comm = Communicator::launched(&launch, &config).expect("ranks meet");
    match std::env::var(FATE).as_deref() {
        Ok("exit") => {
            calls(&comm, Some(3)).expect("nobody has gone yet");
            std::process::exit(0);
        }
        Ok("stop-itself") => {
            // Before the others can open links to it.
            kill_process(rustix::process::getpid(), Signal::STOP).expect("stopped, and continued");
            report(&comm);
        }
        Ok("panic") => {
            let rank = std::thread::spawn(move || {
                calls(&comm, Some(3)).expect("nobody has gone yet");
                panic!("as the test wants it");
            });
            rank.join().expect_err("it panics");
        }
        Ok("joins") => {
            calls(&comm, Some(3)).expect("nobody has gone yet");
            let error = comm.join().expect_err("a rank is lost");
            tell(&comm, &error);
        }
        Ok("goes-on") => {
            calls(&comm, Some(3)).expect("nobody has gone yet");
            let mut is_alone = false;
            let error = loop {
                let mut sum = [1.0_f32; 1000];
                if let Err(error) = comm.all_reduce(&mut sum, ReduceOp::Sum) {
                    break error;
                }
                if sum[999] == 1.0 && !std::mem::replace(&mut is_alone, true) {
                    println!("\nalone"); // all others have joined
                }
            };
            tell(&comm, &error);
        }
        _ => report(&comm),
    }
    // Processes that end would be lost as well, and perhaps noticed first.
    let _ = std::io::stdin().lines().next();
}

/// Calls until a rank is lost, and goes on without it.
fn report(comm: &Communicator) {
    let error = calls(comm, None).expect_err("a rank is lost");
    tell(comm, &error);
}

/// Says which rank is lost by `error`, and goes on without it.
fn tell(comm: &Communicator, error: &Error) {
    let again = comm.barrier().expect_err("broken for good");
    assert_eq!(error.to_string(), again.to_string());
    match error {
        Error::RankLost { lost, pid, last_operation, .. } => {
            let known = last_operation.map_or("nothing", |_| "a call");
            println!("\nlost {lost} {pid} {known} {:?} {error}", comm.lost_ranks());
        }
        other => println!("\nfailed {other}"),
    }
    match comm.shrink(&[]) {
        Ok(small) => {
            let sum = calls(&small, Some(3)).map(|()| small.world_size());
            println!("\nshrunk {sum:?}");
        }
        Err(refused) => println!("\nshrunk {refused}"),
    }
}

/// Makes calls until one fails, or `most` rounds.
fn calls(comm: &Communicator, most: Option<usize>) -> Result<(), Error> {
    let ranks = comm.world_size() as f32;
    for round in 0..most.unwrap_or(usize::MAX) {
        let mut small = [1.0_f32; 4];
        comm.all_reduce(&mut small, ReduceOp::Sum)?;
        let mut large = vec![2.0_f32; 100_000];
        comm.all_reduce(&mut large, ReduceOp::Sum)?;
        assert_eq!((small[3], large[99_999]), (ranks, 2.0 * ranks));
        if round == 1 {
            println!("\nworks");
        }
    }
    Ok(())
}

struct Rank {
    process: Child,
    lines: Box<dyn Iterator<Item = String>>,
    /// Closing it tells the process to go.
    _stdin: ChildStdin,
}

impl Rank {
    fn start(rank: usize, world: usize, transport: &str, fate: &str, name: &str) -> Self {
        Self::start_with(rank, world, transport, fate, name, 1)
    }

    fn start_with(
        rank: usize,
        world: usize,
        transport: &str,
        fate: &str,
        name: &str,
        heartbeat: u64,
    ) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .env(HEARTBEAT, heartbeat.to_string())
            .args(["--exact", "rank_process", "--nocapture", "--test-threads=1"])
            .env(TRANSPORT, transport)
            .env(FATE, fate)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("LOCAL_WORLD_SIZE", world.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", "1")
            .env("TORCHELASTIC_RUN_ID", format!("{name}-{}", std::process::id()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let stdin = process.stdin.take().expect("piped");
        Self { process, lines: Box::new(lines.map_while(Result::ok)), _stdin: stdin }
    }

    fn says(&mut self, beginning: &str) -> Option<String> {
        self.lines.by_ref().find(|line| line.starts_with(beginning) || line.starts_with("failed"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it is there");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts `world` ranks, of which `victim` meets its `fate`; returns what the others say.
fn lose(world: usize, victim: usize, transport: &str, fate: &str) {
    let name = format!("{fate}-{transport}-{world}-{victim}");
    let fate_of = |rank| if rank == victim { fate } else { "survives" };
    let mut ranks: Vec<_> =
        (0..world).map(|rank| Rank::start(rank, world, transport, fate_of(rank), &name)).collect();
    let stops = fate.starts_with("stop");
    for rank in ranks.iter_mut().filter(|_| fate != "stop-itself") {
        rank.says("works").expect("calls succeed");
    }
    match fate {
        "kill" => ranks[victim].signal(Signal::KILL),
        "stop" => {
            // Some heartbeats later the root knows in which call it is, and tells all.
            std::thread::sleep(Duration::from_secs(1));
            ranks[victim].signal(Signal::STOP);
        }
        _ => {} // it goes by itself
    }
    let pid = ranks[victim].process.id();
    let expected =
        |known| format!("lost {victim} {pid} {known} [{victim}] rank {victim} (pid {pid} on ");
    let mut known = false;
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let said = process.says("lost ").expect("an error, not a hang");
        // Not all of them got messages from it.
        let knows = said.starts_with(&expected("a call"));
        let is_told = fate == "stop" && victim > 0;
        assert!(
            knows || !is_told && said.starts_with(&expected("nothing")),
            "{name}: rank {rank}: {said}"
        );
        known |= knows;
    }
    assert!(
        known || fate == "stop-itself",
        "{name}: somebody knows in which call it was last seen"
    );
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let said = process.says("shrunk ").expect("an outcome, not a hang");
        assert_eq!(said, format!("shrunk Ok({})", world - 1), "{name}: rank {rank}");
    }
    if stops {
        ranks[victim].signal(Signal::CONT);
        let said = ranks[victim].says("lost ").expect("an error, not a hang");
        let expected = format!("lost {victim} {pid} ");
        assert!(said.starts_with(&expected), "{name}: the stopped one: {said}");
        let said = ranks[victim].says("shrunk ").expect("an error, not a hang");
        assert!(said.contains("declared this one lost"), "{name}: the stopped one: {said}");
    }
    let _ = std::io::stdout().flush();
}

#[test]
fn a_killed_process() {
    for transport in ["shm", "tcp"] {
        for (world, victim) in [(2, 0), (2, 1), (4, 0), (4, 2)] {
            lose(world, victim, transport, "kill");
        }
    }
}

/// The new root need not wait for it until a heartbeat has passed, which is longer here than the ranks wait.
#[test]
fn a_process_that_dies_with_the_root() {
    for transport in ["shm", "tcp"] {
        let name = format!("with-root-{transport}");
        let start = |rank| Rank::start_with(rank, 4, transport, "survives", &name, 300);
        let mut ranks: Vec<_> = (0..4).map(start).collect();
        for rank in &mut ranks {
            rank.says("works").expect("calls succeed");
        }
        for victim in [2, 0] {
            ranks[victim].signal(Signal::KILL);
        }
        for rank in [1, 3] {
            let said = ranks[rank].says("shrunk ").expect("an outcome, not a hang");
            assert_eq!(said, "shrunk Ok(2)", "{name}: rank {rank}");
        }
    }
}

/// One is killed while the others, or all but one other, have joined.
#[test]
fn a_killed_process_while_others_have_joined() {
    for transport in ["shm", "tcp"] {
        // Who is killed, and who has not joined.
        for (victim, active) in [(0, 0), (2, 2), (0, 1), (2, 0)] {
            let name = format!("joined-{transport}-{victim}-{active}");
            let fate = |rank| if rank == active { "goes-on" } else { "joins" };
            let mut ranks: Vec<_> =
                (0..4).map(|rank| Rank::start(rank, 4, transport, fate(rank), &name)).collect();
            assert_eq!(ranks[active].says("alone").as_deref(), Some("alone"), "{name}");
            let pid = ranks[victim].process.id();
            ranks[victim].signal(Signal::KILL);
            let others = || (0..4).filter(|rank| *rank != victim);
            for rank in others() {
                let said = ranks[rank].says("lost ").expect("an error, not a hang");
                let expected = format!("lost {victim} {pid} ");
                assert!(said.starts_with(&expected), "{name}: rank {rank}: {said}");
                assert!(said.contains(&format!("[{victim}]")), "{name}: rank {rank}: {said}");
            }
            for rank in others() {
                let said = ranks[rank].says("shrunk ").expect("an outcome, not a hang");
                assert_eq!(said, "shrunk Ok(3)", "{name}: rank {rank}");
            }
        }
    }
}

#[test]
fn a_stopped_process() {
    for transport in ["shm", "tcp"] {
        for (world, victim) in [(2, 1), (4, 0), (4, 3)] {
            lose(world, victim, transport, "stop");
        }
    }
}

/// The others are opening links to it, which it does not answer.
#[test]
fn a_process_that_is_stopped_before_the_first_call() {
    for transport in ["shm", "tcp"] {
        for victim in [0, 3] {
            lose(4, victim, transport, "stop-itself");
        }
    }
}

#[test]
fn a_process_that_exits() {
    for transport in ["shm", "tcp"] {
        for victim in [0, 1] {
            lose(4, victim, transport, "exit");
        }
    }
}

#[test]
fn a_rank_whose_thread_panics() {
    for transport in ["shm", "tcp"] {
        for victim in [0, 3] {
            lose(4, victim, transport, "panic");
        }
    }
}

/// Ranks that are threads of one process.
#[test]
fn a_thread_that_panics() {
    let mut config = Config::default();
    config.timeout = Duration::from_secs(60);
    for transport in [Transport::Proc, Transport::Shm, Transport::Tcp] {
        config.transport = transport;
        let ranks = Communicator::local_with(3, &config).expect("ranks meet");
        let through = Arc::new(Barrier::new(3));
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|comm| {
                let through = through.clone();
                std::thread::spawn(move || {
                    comm.barrier().expect("all are there");
                    through.wait(); // a loss ends calls that could have ended well
                    assert_ne!(comm.rank(), 1, "as the test wants it");
                    (comm.barrier().expect_err("one is gone"), comm.lost_ranks())
                })
            })
            .collect();
        for (rank, thread) in threads.into_iter().enumerate() {
            match thread.join() {
                Ok((error, lost)) => {
                    assert!(matches!(error, Error::RankLost { lost: 1, .. }), "{error}");
                    assert!(error.to_string().contains("panicked"), "{error}");
                    assert_eq!(lost, [1]);
                }
                Err(_) => assert_eq!(rank, 1),
            }
        }
    }
}

/// A member drops a communicator that was split off, and goes on with the whole.
#[test]
fn a_rank_that_leaves_a_split() {
    for transport in [Transport::Proc, Transport::Shm, Transport::Tcp] {
        let mut config = Config::default();
        config.timeout = Duration::from_secs(600);
        config.transport = transport;
        let ranks = Communicator::local_with(3, &config).expect("ranks meet");
        std::thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(move || {
                    let part = comm.split(Some(0), 0).expect("split").expect("a color");
                    part.barrier().expect("all are there");
                    if comm.rank() == 1 {
                        drop(part);
                    } else {
                        let error = part.barrier().expect_err("one has left");
                        assert!(matches!(error, Error::RankLost { lost: 1, .. }), "{error}");
                        assert!(error.to_string().contains("left the communicator"), "{error}");
                    }
                    comm.barrier().expect("the whole is sound");
                });
            }
        });
    }
}

//! Cycles of creating, using and destroying communicators.

use std::thread;
use std::time::{Duration, Instant};

use annulus::{BootstrapError, Communicator, Config, Error, ReduceOp, Transport, UniqueId};

use crate::held::{Held, map_large_blocks};
use crate::{cycles, failures, killed};

/// Longer than threads and sockets need to end on a busy machine.
const SETTLING: Duration = Duration::from_secs(60);
/// Roots that have refused a job stay ten seconds at most, for those who come late.
const LINGERING: Duration = Duration::from_secs(11);

/// Runs the scenario of that name in this process.
pub(crate) fn run(name: &str) {
    let (first, second) = name.split_once(' ').unwrap_or((name, ""));
    let config = || with(Transport::from_name(first).expect("a transport"), 600_000);
    match (first, second) {
        (_, "clean") => repeat(name, cycles(), |_| clean(&ranks(2, &config()))),
        (_, "failing") => {
            let transport = config().transport;
            repeat(name, failures(), |cycle| failing(transport, cycle));
        }
        (_, "beside") => {
            let staying = ranks(2, &config());
            repeat(name, cycles(), |_| clean(&ranks(2, &config())));
            clean(&staying);
        }
        (_, "splits") => {
            let parents = ranks(3, &config());
            // The latest reports of other communicators are kept, and up to 4,096 notes that reports were not; a cycle leaves two. In
            // the short form their growth is too little to count.
            let full = if cycles() > 100 { 2_200 } else { 200 };
            (0..full).for_each(|_| splits(&parents));
            repeat(name, cycles(), |_| splits(&parents));
        }
        ("refused", _) => {
            let staying = ranks(2, &with(Transport::Tcp, 600_000));
            let over = UniqueId::new().expect("a unique id");
            drop(through(&over, 2, &with(Transport::Tcp, 600_000)));
            repeat_lingering(name, failures(), LINGERING, |cycle| refused(&over, cycle));
            clean(&staying);
        }
        ("survivor", _) => repeat(name, (failures() / 6).min(50), killed::peer_is_killed),
        _ => panic!("no such scenario: {name}"),
    }
}

/// Runs `cycle` until all that is kept once is kept, then `count` times, and holds no more afterwards.
fn repeat(name: &str, count: usize, cycle: impl FnMut(usize)) {
    repeat_lingering(name, count, Duration::ZERO, cycle);
}

/// The same for what stays for a while after a cycle.
fn repeat_lingering(name: &str, count: usize, lingering: Duration, mut cycle: impl FnMut(usize)) {
    map_large_blocks();
    let start = Held::now();
    let warm_up = (count / 10).clamp(12, 200);
    (0..warm_up).for_each(&mut cycle);
    thread::sleep(lingering);
    let before = Held::settled(&start, SETTLING);
    let begun = Instant::now();
    (0..count).for_each(&mut cycle);
    let took = begun.elapsed();
    thread::sleep(lingering);
    let growth = Held::settled(&before, SETTLING).since(&before);
    println!("\n{name}: {count} cycles in {:.1} s: {growth}", took.as_secs_f64());
    assert!(growth.is_bounded(count), "{name}: {count} cycles: {growth}");
    let left = Held::now().since(&start);
    assert!(left.is_settled(), "{name}: since the beginning: {left}");
}

fn with(transport: Transport, timeout_ms: u64) -> Config {
    let mut config = Config::default();
    config.transport = transport;
    config.timeout = Duration::from_millis(timeout_ms);
    config
}

fn ranks(world: usize, config: &Config) -> Vec<Communicator> {
    Communicator::local_with(world, config).expect("ranks meet")
}

/// The ranks of the job `id`.
fn through(id: &UniqueId, world: usize, config: &Config) -> Vec<Communicator> {
    thread::scope(|threads| {
        let ranks: Vec<_> = (0..world)
            .map(|rank| threads.spawn(move || Communicator::init(id, rank, world, config)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("joined")).collect()
    })
}

/// Runs `work` as every rank.
fn each<R: Send>(ranks: &[Communicator], work: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|threads| {
        let running: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| work(comm))).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// Small and large calls, a queued one, a split, memory of the communicator.
fn clean(ranks: &[Communicator]) {
    let outcomes = each(ranks, |comm| {
        let world = comm.world_size() as u32;
        let mut small = [1_u32; 3];
        comm.all_reduce(&mut small, ReduceOp::Sum)?;
        let mut large = vec![1_u32; 10_000];
        comm.all_reduce(&mut large, ReduceOp::Sum)?;
        let mut queued = vec![1_u32; 500];
        comm.scope(|scope| scope.all_reduce_async(&mut queued, ReduceOp::Sum)?.wait().map(drop))??;
        let part = comm.split(Some(0), 0)?.expect("a color was given");
        let mut memory = part.alloc::<u32>(5000)?;
        memory.fill(1);
        part.all_reduce(&mut memory, ReduceOp::Sum)?;
        assert!([small[2], large[9999], queued[499], memory[4999]].iter().all(|&sum| sum == world));
        Ok::<_, Error>(())
    });
    outcomes.into_iter().for_each(|outcome| outcome.expect("all succeeds"));
}

/// One way to break a communicator after another.
fn failing(transport: Transport, cycle: usize) {
    let broken = match cycle % 3 {
        0 => each(&ranks(2, &with(transport, 60_000)), |comm| {
            let op = if comm.rank() == 0 { ReduceOp::Sum } else { ReduceOp::Max };
            comm.all_reduce(&mut vec![1.0_f32; 10_000], op)
        }),
        1 => each(&ranks(2, &with(transport, 60_000)), |comm| {
            comm.barrier()?;
            if comm.rank() == 0 {
                comm.abort();
            }
            comm.all_reduce(&mut vec![1.0_f32; 10_000], ReduceOp::Sum)
        }),
        _ => {
            // Start-up has the same patience as a call: one that is too short for it fails there.
            match Communicator::local_with(2, &with(transport, 300)) {
                Ok(ranks) => each(&ranks, |comm| {
                    comm.barrier()?;
                    if comm.rank() == 1 {
                        while comm.error().is_none() {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                    comm.all_reduce(&mut vec![1.0_f32; 10_000], ReduceOp::Sum)
                }),
                Err(error) => vec![Err(error)],
            }
        }
    };
    assert!(broken.iter().all(Result::is_err), "{broken:?}");
}

fn splits(parents: &[Communicator]) {
    let outcomes = each(parents, |parent| {
        let part = parent.split(Some((parent.rank() % 2) as u32), 0)?.expect("a color was given");
        let mut sum = [1_i64; 100];
        part.all_reduce(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum[99], part.world_size() as i64);
        Ok::<_, Error>(())
    });
    outcomes.into_iter().for_each(|outcome| outcome.expect("all succeeds"));
}

/// One way in which ranks do not find each other after another. `over`: a job that has ended.
fn refused(over: &UniqueId, cycle: usize) {
    let id = UniqueId::new().expect("a unique id");
    let join = |id: &UniqueId, claims: &[(usize, usize)], timeout_ms| {
        let config = with(Transport::Tcp, timeout_ms);
        thread::scope(|threads| {
            let claims = claims.iter().map(|&(rank, world)| {
                let config = &config;
                threads.spawn(move || Communicator::init(id, rank, world, config))
            });
            let claims: Vec<_> = claims.collect();
            let outcomes = claims.into_iter().map(|claim| claim.join().expect("no panic"));
            outcomes.map(|outcome| outcome.expect_err("refused")).collect::<Vec<_>>()
        })
    };
    let errors = match cycle % 4 {
        0 => join(&id, &[(0, 3), (1, 3), (1, 3)], 60_000),
        1 => join(&id, &[(0, 3), (1, 4)], 60_000),
        2 => join(&id, &[(0, 3), (1, 3)], 50),
        _ => {
            let mut errors = join(over, &[(1, 2)], 20);
            errors.extend(join(&id, &[(0, 2)], 20));
            errors
        }
    };
    let bootstrap = |error: &Error| matches!(error, Error::Bootstrap(_));
    assert!(errors.iter().all(bootstrap), "{errors:?}");
    let refusals = errors.iter().filter(|error| match error {
        Error::Bootstrap(cause) => matches!(**cause, BootstrapError::Refused(_)),
        _ => false,
    });
    assert!(refusals.count() > 0 || cycle % 4 >= 2, "{errors:?}");
}

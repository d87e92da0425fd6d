//! `ANNULUS_CHECKSUM` and `ANNULUS_ENCRYPT`: right results over every transport, and an error on all ranks where bits change on the way.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::thread;

use annulus::{Communicator, Config, Error, ReduceOp, Transport};
use annulus_transports::link::LinkError;
use rustix::fs::{SeekFrom, seek};

fn ranks(world: usize, transport: Transport) -> Vec<Communicator> {
    ranks_with(world, transport, true, false)
}

fn ranks_with(
    world: usize,
    transport: Transport,
    checksum: bool,
    encrypt: bool,
) -> Vec<Communicator> {
    let mut config = Config::default();
    (config.transport, config.checksum, config.encrypt) = (transport, checksum, encrypt);
    Communicator::local_with(world, &config).expect("ranks meet")
}

#[test]
fn results_are_right_over_each_transport() {
    for (transport, checksum, encrypt) in [
        (Transport::Proc, true, false),
        (Transport::Shm, true, false),
        (Transport::Tcp, true, false),
        (Transport::Tcp, false, true),
        (Transport::Tcp, true, true),
        // Nothing leaves the host here, so there is nothing to encrypt.
        (Transport::Auto, false, true),
    ] {
        let ranks = ranks_with(3, transport, checksum, encrypt);
        thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(move || {
                    for count in [1, 3, 7, 100, 5000, 300_000] {
                        let mut buffer: Vec<u32> =
                            (0..count).map(|at| at as u32 ^ comm.rank() as u32).collect();
                        comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("all-reduce");
                        let right = |(at, sum): (usize, &u32)| {
                            *sum == (0..3).map(|rank| at as u32 ^ rank).sum::<u32>()
                        };
                        assert!(buffer.iter().enumerate().all(right), "{transport:?}, {count}");
                    }
                    let child = comm.split(Some(0), 0).expect("split").expect("member");
                    let mut gathered = [0_u8; 3];
                    child.all_gather_into(&[comm.rank() as u8], &mut gathered).expect("gather");
                    assert_eq!(gathered, [0, 1, 2]);
                });
            }
        });
    }
}

/// Memory that ranks allocate is not read in place: it goes through the checked links like any other.
#[test]
fn allocated_memory_is_checked_too() {
    for transport in [Transport::Proc, Transport::Shm] {
        let ranks = ranks(2, transport);
        thread::scope(|threads| {
            for comm in &ranks {
                threads.spawn(move || {
                    let mut buffer = comm.alloc::<f32>(100_000).expect("memory");
                    buffer.fill(comm.rank() as f32 + 1.0);
                    comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("all-reduce");
                    assert!(buffer.iter().all(|sum| *sum == 3.0));
                });
            }
        });
    }
}

/// One rank's message lies in the other's memory when a bit of it changes: then the other begins its call.
#[test]
fn a_flipped_bit_is_an_error_on_all_ranks() {
    const MARK: u64 = 0x5a17_c0de_0b5e_55ed;
    let mut ranks = ranks(2, Transport::Shm);
    let (second, first) = (ranks.pop().expect("two"), ranks.pop().expect("two"));
    let (first, second) = thread::scope(|threads| {
        let first = threads.spawn(|| {
            // The first call may end well here: the other rank may have sent before it looked.
            let mut buffer = vec![MARK; 1000];
            let first_call = first.all_reduce(&mut buffer, ReduceOp::Sum);
            first_call.and_then(|()| first.barrier()).expect_err("one bit differs")
        });
        while !flip_one_bit_behind(MARK) {
            thread::yield_now();
        }
        let second = threads.spawn(|| {
            let mut buffer = vec![1_u64; 1000];
            let error = second.all_reduce(&mut buffer, ReduceOp::Sum).expect_err("found");
            let later = second.barrier().expect_err("the communicator is broken");
            assert_eq!(later.to_string(), error.to_string());
            error
        });
        (first.join().expect("no panic"), second.join().expect("no panic"))
    });
    let Error::Link { rank: 1, source } = &second else { panic!("{second}") };
    assert!(matches!(**source, LinkError::Checksum { peer: 0, index: 0, .. }), "{source}");
    assert!(matches!(first, Error::Reported { peer: 1, .. }), "{first}");
    assert!(first.to_string().contains("checksum 0x"), "{first}");
}

/// Flips a bit in the second of two adjacent words `mark` somewhere in this process's shared memory; false: there are none yet.
fn flip_one_bit_behind(mark: u64) -> bool {
    for entry in std::fs::read_dir("/proc/self/fd").expect("proc") {
        let path = entry.expect("proc").path();
        let is_segment = std::fs::read_link(&path)
            .is_ok_and(|target| target.to_string_lossy().contains("memfd:annulus"));
        if !is_segment {
            continue;
        }
        let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
        if let Some(at) = find(&file, mark) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at + 11).expect("memory");
            file.write_all_at(&[byte[0] ^ 4], at + 11).expect("memory");
            return true;
        }
    }
    false
}

/// Where two words `mark` follow each other, in the parts of the file that are not holes.
fn find(file: &File, mark: u64) -> Option<u64> {
    let mut at = 0;
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(start)).expect("every file ends");
        let mut part = vec![0; (end - start) as usize];
        file.read_exact_at(&mut part, start).expect("memory");
        let words: Vec<u64> =
            part.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        if let Some(index) = words.windows(2).position(|pair| pair == [mark, mark]) {
            return Some(start + index as u64 * 8);
        }
        at = end;
    }
    None
}

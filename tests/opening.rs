//! First calls that wait for each other crosswise: opening a link needs the peer to be there, but none of its calls.

use std::thread;
use std::time::Duration;

use annulus::{Communicator, Config, Error, Transport};

/// Every way to give three parts to three ranks: who connects follows from the ranks' order.
const CASTS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

fn configs() -> impl Iterator<Item = Config> {
    let transports = [Transport::Proc, Transport::Shm, Transport::Tcp, Transport::Tcp];
    transports.into_iter().enumerate().map(|(number, transport)| {
        let mut config = Config::default();
        config.transport = transport;
        config.timeout = Duration::from_secs(60);
        config.encrypt = number == 3;
        config
    })
}

/// Three ranks that have never talked to each other play `part` by `cast`: part p is played by rank `cast[p]`.
fn play(
    config: &Config,
    cast: [usize; 3],
    part: impl Fn(&Communicator, usize) -> Result<(), Error> + Sync,
) {
    let ranks = Communicator::local_with(3, config).expect("ranks meet");
    thread::scope(|threads| {
        for comm in &ranks {
            let part = &part;
            threads.spawn(move || {
                let own = cast.iter().position(|&rank| rank == comm.rank()).expect("a part");
                let played = part(comm, own);
                played.unwrap_or_else(|error| {
                    let (transport, encrypt) = (config.transport, config.encrypt);
                    panic!("{transport:?}, encrypted: {encrypt}, {cast:?}: {error}")
                });
            });
        }
    });
}

#[test]
fn a_message_is_sent_before_its_receiver_comes_to_it() {
    for config in configs() {
        for cast in CASTS {
            let [zero, one, two] = cast;
            play(&config, cast, |comm, part| {
                let mut got = [0_u32; 2];
                match part {
                    0 => {
                        comm.recv(&mut got[..1], one)?;
                        comm.recv(&mut got[1..], two)?;
                        assert_eq!(got, [7, 5]);
                    }
                    1 => {
                        comm.recv(&mut got[..1], two)?;
                        comm.send(&[got[0] + 1], zero)?;
                    }
                    _ => {
                        comm.send(&[5_u32], zero)?;
                        comm.send(&[6_u32], one)?;
                    }
                }
                Ok(())
            });
        }
    }
}

/// Each receives from one and sends to another at once, the second and third only after they have received: messages large enough that
/// nothing ends before they are taken.
#[test]
fn a_group_sends_while_another_member_waits() {
    const COUNT: usize = 1 << 20;
    for config in configs() {
        for cast in CASTS {
            let [zero, one, two] = cast;
            play(&config, cast, |comm, part| {
                let mut got = vec![0_u32; COUNT];
                let (from, to) = [(one, two), (two, zero), (zero, one)][part];
                if part == 2 {
                    let sent = vec![3_u32; COUNT];
                    comm.group(|group| {
                        group.recv(&mut got, from)?;
                        group.send(&sent, to)
                    })?;
                } else {
                    comm.recv(&mut got, from)?;
                    comm.send(&vec![got[COUNT - 1] + 1; COUNT], to)?;
                }
                assert_eq!(got[COUNT - 1], [4, 3, 5][part]);
                Ok(())
            });
        }
    }
}

/// What was sent is there when its sender is not any more.
#[test]
fn a_sender_may_leave_before_the_receiver_comes() {
    for config in configs() {
        for (sender, receiver) in [(0, 1), (1, 0)] {
            let mut ranks = Communicator::local_with(2, &config).expect("ranks meet");
            let from = ranks.swap_remove(sender);
            let to = ranks.remove(0);
            assert_eq!(to.rank(), receiver);
            let sent = thread::spawn(move || {
                from.send(&[11_u32], receiver).expect("nobody need be there");
            });
            sent.join().expect("sent, and gone");
            let mut got = [0_u32];
            to.recv(&mut got, sender).expect("it is here");
            assert_eq!(got, [11]);
        }
    }
}

//! What each rank's process does.

use std::io::Write;

use annulus::{Communicator, Error, ReduceOp};

use crate::job::{FORBIDDEN, MARK};
use crate::sandbox::{self, Forbidden};

/// Not a test by itself: a rank, with a launcher's variables.
#[test]
fn rank_process() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let rank = std::env::var("RANK").expect("a rank");
    match std::env::var(FORBIDDEN).unwrap_or_default().as_str() {
        "" => {}
        name => sandbox::enter(Forbidden::from_name(name)).expect("seccomp"),
    }
    let result = match compute() {
        Ok(transport) => format!("works over {transport}"),
        Err(error) => format!("error {}", error.to_string().replace('\n', " ")),
    };
    // Written at once: several processes write to one pipe.
    let line = format!("\nresult {rank} {result}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("a pipe");
}

/// Opens links to everybody, and says how the next rank is reached.
fn compute() -> Result<&'static str, Error> {
    let comm = Communicator::from_env()?;
    let world = comm.world_size();
    let mut large = vec![1_u32; 100_000];
    comm.all_reduce(&mut large, ReduceOp::Sum)?;
    let own: Vec<u64> = (0..world).map(|peer| (comm.rank() * world + peer) as u64).collect();
    let mut others = vec![0; world];
    comm.all_to_all_into(&own, &mut others)?;
    let right = |(peer, &value): (usize, &u64)| value == (peer * world + comm.rank()) as u64;
    assert!(large.iter().all(|&sum| sum as usize == world));
    assert!(others.iter().enumerate().all(right));
    comm.barrier()?;
    Ok(comm.transport((comm.rank() + 1) % world))
}

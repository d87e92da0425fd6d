//! The time a cache line takes between two cores.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROUND_TRIPS: u64 = 50;
/// Their median is taken: one interruption spoils one block.
const BLOCKS: usize = 8;

/// Bounces `turn` between two ranks, of which one `serves` first: one way in nanoseconds. `turns` counts what each
/// rank has seen.
pub(super) fn one_way_nanos(turn: &AtomicU64, serves: bool, turns: &mut u64) -> u64 {
    let mut blocks = [0; BLOCKS];
    for block in &mut blocks {
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            if serves {
                turn.store(*turns + 1, Ordering::Release);
                await_turn(turn, *turns + 2);
            } else {
                await_turn(turn, *turns + 1);
                turn.store(*turns + 2, Ordering::Release);
            }
            *turns += 2;
        }
        *block = start.elapsed().as_nanos() as u64 / (2 * ROUND_TRIPS);
    }
    blocks.sort_unstable();
    blocks[BLOCKS / 2]
}

fn await_turn(turn: &AtomicU64, awaited: u64) {
    let now = Instant::now;
    let mut deadline = None;
    let mut polls = 0_u32;
    while turn.load(Ordering::Acquire) < awaited {
        spin_loop();
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(1 << 20) {
            let deadline = *deadline.get_or_insert_with(|| now() + Duration::from_secs(60));
            if now() > deadline {
                super::give_up("the peer has not answered the probe for a minute");
            }
        }
    }
}

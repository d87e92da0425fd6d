//! Every collective through the public API, on threads of this process, against results computed
//! directly from all inputs.

use std::fmt::Debug;
use std::thread;

use annulus::{Communicator, Config, Element, Error, ReduceOp, Scalar, Transport};

/// Runs `work` as every rank of a new communicator and returns what each returned.
fn on_ranks<R: Send>(world: usize, work: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    on_ranks_over(world, Transport::Proc, work)
}

fn on_ranks_over<R: Send>(
    world: usize,
    transport: Transport,
    work: impl Fn(&Communicator) -> R + Sync,
) -> Vec<R> {
    let mut config = Config::default();
    config.transport = transport;
    let ranks = Communicator::local_with(world, &config).expect("ranks meet");
    thread::scope(|threads| {
        let running: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| work(comm))).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

const WORLDS: [usize; 5] = [1, 2, 3, 4, 7];
/// From nothing over one cache line and ragged sizes to several chunks.
const COUNTS: [usize; 7] = [0, 1, 7, 33, 1000, 4099, 70_001];

/// Small integers, so that every sum and product of a few is exact in every type and order.
fn element(rank: usize, index: usize) -> i64 {
    ((rank * 7 + index * 3) % 5) as i64 - 1
}

trait Number: Element + PartialEq + Debug + Default {
    fn of(value: i64) -> Self;
}

impl Number for f32 {
    fn of(value: i64) -> Self {
        value as Self
    }
}

impl Number for f64 {
    fn of(value: i64) -> Self {
        value as Self
    }
}

impl Number for i32 {
    fn of(value: i64) -> Self {
        value as Self
    }
}

impl Number for i8 {
    fn of(value: i64) -> Self {
        value as Self
    }
}

fn input<T: Number>(rank: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::of(element(rank, index))).collect()
}

fn reduced<T: Number>(world: usize, op: ReduceOp, index: usize) -> T {
    let values = (0..world).map(|rank| element(rank, index));
    T::of(match op {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Prod => values.product(),
        ReduceOp::Min => values.min().expect("a rank"),
        ReduceOp::Max => values.max().expect("a rank"),
        ReduceOp::Avg | ReduceOp::PreMulSum(_) => unreachable!("not exact in general"),
    })
}

fn all_reduce_is_right<T: Number>(op: ReduceOp) {
    for world in WORLDS {
        for count in COUNTS {
            let results = on_ranks(world, |comm| {
                let source = input::<T>(comm.rank(), count);
                let mut result = vec![T::default(); count];
                comm.all_reduce_into(&source, &mut result, op).expect("all-reduce");
                let mut in_place = source;
                comm.all_reduce(&mut in_place, op).expect("all-reduce in place");
                (result, in_place)
            });
            for (rank, (result, in_place)) in results.iter().enumerate() {
                for index in 0..count {
                    let expected: T = reduced(world, op, index);
                    let context = (world, count, rank, index);
                    assert_eq!(result[index], expected, "{context:?}");
                    assert_eq!(in_place[index], expected, "in place {context:?}");
                }
            }
        }
    }
}

#[test]
fn all_reduce_sums_floats() {
    all_reduce_is_right::<f32>(ReduceOp::Sum);
}

#[test]
fn all_reduce_takes_maxima_of_doubles() {
    all_reduce_is_right::<f64>(ReduceOp::Max);
}

#[test]
fn all_reduce_multiplies_integers() {
    all_reduce_is_right::<i32>(ReduceOp::Prod);
}

#[test]
fn all_reduce_takes_minima_of_bytes() {
    all_reduce_is_right::<i8>(ReduceOp::Min);
}

#[test]
fn average_and_premultiplied_sum() {
    for world in WORLDS {
        let results = on_ranks(world, |comm| {
            let mut average = vec![(comm.rank() * world) as f32; 100];
            comm.all_reduce(&mut average, ReduceOp::Avg).expect("average");
            let mut integers = vec![comm.rank() as i32; 100];
            comm.all_reduce(&mut integers, ReduceOp::Avg).expect("integer average");
            let factor = ReduceOp::PreMulSum(Scalar::Float(comm.rank() as f64));
            let mut scaled = vec![2.0_f32; 100];
            comm.all_reduce(&mut scaled, factor).expect("premultiplied sum");
            (average[99], integers[99], scaled[99])
        });
        let ranks = world * (world - 1) / 2;
        let expected = (ranks as f32, (ranks / world) as i32, 2.0 * ranks as f32);
        assert!(results.iter().all(|result| *result == expected), "{results:?} {expected:?}");
    }
}

#[test]
fn reduce_reaches_the_root_and_leaves_the_others_alone() {
    for world in WORLDS {
        for root in [0, world - 1] {
            for count in COUNTS {
                let results = on_ranks(world, |comm| {
                    let mut buffer = input::<f32>(comm.rank(), count);
                    comm.reduce(&mut buffer, ReduceOp::Sum, root).expect("reduce");
                    let source = input::<f32>(comm.rank(), count);
                    let mut output = vec![0.0; count];
                    let at_root = (comm.rank() == root).then_some(&mut output[..]);
                    comm.reduce_into(&source, at_root, ReduceOp::Sum, root).expect("reduce");
                    (buffer, output)
                });
                for (rank, (buffer, output)) in results.iter().enumerate() {
                    for index in 0..count {
                        let sum = reduced(world, ReduceOp::Sum, index);
                        if rank == root {
                            assert_eq!((buffer[index], output[index]), (sum, sum));
                        } else {
                            assert_eq!(buffer[index], element(rank, index) as f32);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn broadcast_reaches_everybody() {
    for world in WORLDS {
        for root in [0, world / 2] {
            for count in COUNTS {
                let results = on_ranks(world, |comm| {
                    let mut buffer = input::<i32>(comm.rank(), count);
                    comm.broadcast(&mut buffer, root).expect("broadcast");
                    buffer
                });
                assert!(results.iter().all(|buffer| *buffer == input::<i32>(root, count)));
            }
        }
    }
}

#[test]
fn all_gather_and_gather_keep_rank_order() {
    for world in WORLDS {
        for count in COUNTS {
            let whole: Vec<f64> = (0..world).flat_map(|rank| input(rank, count)).collect();
            let root = world - 1;
            let results = on_ranks(world, |comm| {
                let source = input::<f64>(comm.rank(), count);
                let mut gathered = vec![0.0; world * count];
                comm.all_gather_into(&source, &mut gathered).expect("all-gather");
                let mut in_place = vec![0.0; world * count];
                in_place[comm.rank() * count..][..count].copy_from_slice(&source);
                comm.all_gather(&mut in_place).expect("all-gather in place");
                let mut at_root = vec![0.0; world * count];
                let output = (comm.rank() == root).then_some(&mut at_root[..]);
                comm.gather_into(&source, output, root).expect("gather");
                (gathered, in_place, at_root)
            });
            for (rank, (gathered, in_place, at_root)) in results.into_iter().enumerate() {
                assert_eq!(gathered, whole);
                assert_eq!(in_place, whole);
                assert!(rank != root || at_root == whole);
            }
        }
    }
}

#[test]
fn reduce_scatter_leaves_each_rank_its_part() {
    for world in WORLDS {
        for count in COUNTS {
            let results = on_ranks(world, |comm| {
                let mut source = input::<f32>(comm.rank(), world * count);
                let mut part = vec![0.0; count];
                comm.reduce_scatter_into(&source, &mut part, ReduceOp::Sum).expect("scatter");
                comm.reduce_scatter(&mut source, ReduceOp::Sum).expect("in place");
                (part, source[comm.rank() * count..][..count].to_vec())
            });
            for (rank, (part, in_place)) in results.into_iter().enumerate() {
                let expected: Vec<f32> = (0..count)
                    .map(|index| reduced(world, ReduceOp::Sum, rank * count + index))
                    .collect();
                assert_eq!(part, expected);
                assert_eq!(in_place, expected);
            }
        }
    }
}

#[test]
fn scatter_and_all_to_all_deliver_the_right_part() {
    for world in WORLDS {
        for count in COUNTS {
            let results = on_ranks(world, |comm| {
                let source = input::<i32>(comm.rank(), world * count);
                let mut part = vec![0; count];
                let at_root = (comm.rank() == 0).then_some(&source[..]);
                comm.scatter_into(at_root, &mut part, 0).expect("scatter");
                let mut exchanged = vec![0; world * count];
                comm.all_to_all_into(&source, &mut exchanged).expect("all-to-all");
                (part, exchanged)
            });
            for (rank, (part, exchanged)) in results.into_iter().enumerate() {
                assert_eq!(part, input::<i32>(0, world * count)[rank * count..][..count]);
                for from in 0..world {
                    let theirs = input::<i32>(from, world * count);
                    assert_eq!(exchanged[from * count..][..count], theirs[rank * count..][..count]);
                }
            }
        }
    }
}

#[test]
fn all_to_all_v_with_ragged_counts() {
    for world in WORLDS {
        // Rank a sends (a + 2 b) % 5 elements to rank b, so some pairs exchange nothing.
        let count = |from: usize, to: usize| (from + 2 * to) % 5;
        let results = on_ranks(world, |comm| {
            let rank = comm.rank();
            let send: Vec<usize> = (0..world).map(|peer| count(rank, peer)).collect();
            let recv: Vec<usize> = (0..world).map(|peer| count(peer, rank)).collect();
            let displacements =
                |counts: &[usize]| (0..world).map(|peer| counts[..peer].iter().sum()).collect();
            let (from, to): (Vec<usize>, Vec<usize>) = (displacements(&send), displacements(&recv));
            let source: Vec<i32> = (0..world)
                .flat_map(|peer| vec![(100 * rank + peer) as i32; count(rank, peer)])
                .collect();
            let mut output = vec![-1; recv.iter().sum()];
            comm.all_to_all_v(&source, &send, &from, &mut output, &recv, &to).expect("v");
            output
        });
        for (rank, output) in results.into_iter().enumerate() {
            let expected: Vec<i32> = (0..world)
                .flat_map(|peer| vec![(100 * peer + rank) as i32; count(peer, rank)])
                .collect();
            assert_eq!(output, expected);
        }
    }
}

#[test]
fn groups_of_sends_do_not_deadlock_in_any_order() {
    for world in [2, 3, 5] {
        let results = on_ranks(world, |comm| {
            let rank = comm.rank();
            let mine = vec![rank as f32; 300_000];
            let mut theirs = vec![vec![-1.0_f32; 300_000]; world];
            comm.group(|group| {
                // Even ranks send first, odd ones receive first.
                if rank % 2 == 0 {
                    for peer in 0..world {
                        group.send(&mine, peer)?;
                    }
                }
                for (peer, buffer) in theirs.iter_mut().enumerate() {
                    group.recv(buffer, peer)?;
                }
                if rank % 2 == 1 {
                    for peer in (0..world).rev() {
                        group.send(&mine, peer)?;
                    }
                }
                Ok(())
            })
            .expect("group");
            theirs
                .iter()
                .enumerate()
                .all(|(peer, buffer)| buffer.iter().all(|&value| value == peer as f32))
        });
        assert!(results.into_iter().all(|right| right));
    }
}

#[test]
fn groups_may_list_collectives_in_different_orders() {
    let results = on_ranks(3, |comm| {
        let (mut floats, mut integers) = ([1.0_f32; 10], [2_i32; 20]);
        comm.group(|group| {
            if comm.rank() == 0 {
                group.all_reduce(&mut floats, ReduceOp::Sum)?;
                group.broadcast(&mut integers, 1)
            } else {
                group.broadcast(&mut integers, 1)?;
                group.all_reduce(&mut floats, ReduceOp::Sum)
            }
        })
        .expect("group");
        (floats[9], integers[19])
    });
    assert_eq!(results, [(3.0, 2); 3]);
}

#[test]
fn asynchronous_calls_run_in_order_with_blocking_ones() {
    let results = on_ranks(2, |comm| {
        let (mut first, mut second, mut third) = (vec![1_i64; 100], vec![10_i64; 100_000], [5_i64]);
        comm.scope(|scope| {
            let first = scope.all_reduce_async(&mut first, ReduceOp::Sum).expect("valid");
            let second = scope.all_reduce_async(&mut second, ReduceOp::Prod).expect("valid");
            comm.all_reduce(&mut third, ReduceOp::Sum).expect("after the others");
            assert!(first.has_ended() && second.has_ended());
            (first.wait().expect("first")[0], second.wait().expect("second")[99_999])
        })
        .expect("none failed")
    });
    assert_eq!(results, [(2, 100); 2]);
}

/// What one rank gets from every form of every collective, for 6 elements per rank and root 1.
#[derive(Debug, Default, PartialEq)]
struct Results {
    all_reduce_into: Vec<i32>,
    reduce_into: Vec<i32>,
    broadcast_into: Vec<i32>,
    all_gather: Vec<i32>,
    all_gather_into: Vec<i32>,
    reduce_scatter: Vec<i32>,
    reduce_scatter_into: Vec<i32>,
    all_to_all_into: Vec<i32>,
    gather: Vec<i32>,
    gather_into: Vec<i32>,
    scatter: Vec<i32>,
    scatter_into: Vec<i32>,
}

impl Results {
    const COUNT: usize = 6;
    const ROOT: usize = 1;

    /// The buffers before the calls.
    fn inputs(rank: usize, world: usize) -> (Vec<i32>, Vec<i32>, Self) {
        let (own, whole) = (input(rank, Self::COUNT), input(rank, world * Self::COUNT));
        let at_root = |vec: &[i32]| if rank == Self::ROOT { vec.to_vec() } else { Vec::new() };
        let (part, all) = (vec![-9; Self::COUNT], vec![-9; world * Self::COUNT]);
        let mut placed = all.clone();
        placed[rank * Self::COUNT..][..Self::COUNT].copy_from_slice(&own);
        let results = Self {
            all_reduce_into: part.clone(),
            reduce_into: at_root(&part),
            broadcast_into: part.clone(),
            all_gather: placed.clone(),
            all_gather_into: all.clone(),
            reduce_scatter: whole.clone(),
            reduce_scatter_into: part.clone(),
            all_to_all_into: all.clone(),
            gather: if rank == Self::ROOT { placed } else { own.clone() },
            gather_into: at_root(&all),
            scatter: if rank == Self::ROOT { whole.clone() } else { part.clone() },
            scatter_into: part,
        };
        (own, whole, results)
    }

    /// The buffers after the calls; of in-place reduce-scatters only this rank's part counts.
    fn expected(rank: usize, world: usize) -> Self {
        let count = Self::COUNT;
        let (own, _, mut results) = Self::inputs(rank, world);
        let sums = |from| -> Vec<i32> {
            (from..from + count).map(|index| reduced(world, ReduceOp::Sum, index)).collect()
        };
        let part = |from: usize, whose: usize| -> Vec<i32> {
            input(from, world * count)[whose * count..][..count].to_vec()
        };
        let gathered: Vec<i32> = (0..world).flat_map(|peer| input(peer, count)).collect();
        results.all_reduce_into = sums(0);
        results.broadcast_into = input(Self::ROOT, count);
        results.all_gather = gathered.clone();
        results.all_gather_into = gathered.clone();
        results.reduce_scatter = sums(rank * count);
        results.reduce_scatter_into = sums(rank * count);
        results.all_to_all_into = (0..world).flat_map(|peer| part(peer, rank)).collect();
        results.scatter_into = part(Self::ROOT, rank);
        if rank == Self::ROOT {
            results.reduce_into = sums(0);
            results.gather = gathered.clone();
            results.gather_into = gathered;
        } else {
            results.gather = own;
            results.scatter = part(Self::ROOT, rank);
        }
        results
    }
}

#[test]
fn groups_take_every_form_of_every_collective() {
    for world in [2, 3] {
        let results = on_ranks(world, |comm| {
            let (rank, root) = (comm.rank(), Results::ROOT);
            let (own, whole, mut results) = Results::inputs(rank, world);
            let r = &mut results;
            comm.group(|group| {
                let at_root = rank == root;
                group.all_reduce_into(&own, &mut r.all_reduce_into, ReduceOp::Sum)?;
                let output = at_root.then_some(&mut r.reduce_into[..]);
                group.reduce_into(&own, output, ReduceOp::Sum, root)?;
                group.broadcast_into(at_root.then_some(&own), &mut r.broadcast_into, root)?;
                group.all_gather(&mut r.all_gather)?;
                group.all_gather_into(&own, &mut r.all_gather_into)?;
                group.reduce_scatter(&mut r.reduce_scatter, ReduceOp::Sum)?;
                group.reduce_scatter_into(&whole, &mut r.reduce_scatter_into, ReduceOp::Sum)?;
                group.all_to_all_into(&whole, &mut r.all_to_all_into)?;
                group.gather(&mut r.gather, root)?;
                group.gather_into(&own, at_root.then_some(&mut r.gather_into), root)?;
                group.scatter(&mut r.scatter, root)?;
                group.scatter_into(at_root.then_some(&whole), &mut r.scatter_into, root)
            })
            .expect("group");
            let own_part = rank * Results::COUNT..(rank + 1) * Results::COUNT;
            results.reduce_scatter = results.reduce_scatter[own_part].to_vec();
            results
        });
        for (rank, results) in results.into_iter().enumerate() {
            assert_eq!(results, Results::expected(rank, world), "rank {rank} of {world}");
        }
    }
}

#[test]
fn scopes_start_every_form_of_every_collective() {
    for world in [2, 3] {
        let results = on_ranks(world, |comm| {
            let (rank, root) = (comm.rank(), Results::ROOT);
            let (own, whole, mut before) = Results::inputs(rank, world);
            let b = &mut before;
            comm.scope(|scope| {
                let at_root = rank == root;
                let output = at_root.then_some(&mut b.reduce_into[..]);
                let pending = [
                    scope.all_reduce_into_async(&own, &mut b.all_reduce_into, ReduceOp::Sum)?,
                    scope.reduce_into_async(&own, output, ReduceOp::Sum, root)?,
                    scope.broadcast_into_async(
                        at_root.then_some(&own),
                        &mut b.broadcast_into,
                        root,
                    )?,
                    scope.all_gather_async(&mut b.all_gather)?,
                    scope.all_gather_into_async(&own, &mut b.all_gather_into)?,
                    scope.reduce_scatter_async(&mut b.reduce_scatter, ReduceOp::Sum)?,
                    scope.reduce_scatter_into_async(
                        &whole,
                        &mut b.reduce_scatter_into,
                        ReduceOp::Sum,
                    )?,
                    scope.all_to_all_into_async(&whole, &mut b.all_to_all_into)?,
                    scope.gather_async(&mut b.gather, root)?,
                    scope.gather_into_async(&own, at_root.then_some(&mut b.gather_into), root)?,
                    scope.scatter_async(&mut b.scatter, root)?,
                    scope.scatter_into_async(
                        at_root.then_some(&whole),
                        &mut b.scatter_into,
                        root,
                    )?,
                ];
                let barrier = scope.barrier_async();
                // What comes back is each call's own buffer.
                let [
                    all_reduce_into,
                    reduce_into,
                    broadcast_into,
                    all_gather,
                    all_gather_into,
                    reduce_scatter,
                    reduce_scatter_into,
                    all_to_all_into,
                    gather,
                    gather_into,
                    scatter,
                    scatter_into,
                ] = pending.map(|pending| pending.wait().expect("it ends").to_vec());
                barrier.wait()?;
                Ok::<_, Error>(Results {
                    all_reduce_into,
                    reduce_into,
                    broadcast_into,
                    all_gather,
                    all_gather_into,
                    reduce_scatter: reduce_scatter[rank * Results::COUNT..][..Results::COUNT]
                        .to_vec(),
                    reduce_scatter_into,
                    all_to_all_into,
                    gather,
                    gather_into,
                    scatter,
                    scatter_into,
                })
            })
            .expect("none failed")
            .expect("valid")
        });
        for (rank, results) in results.into_iter().enumerate() {
            assert_eq!(results, Results::expected(rank, world), "rank {rank} of {world}");
        }
    }
}

#[test]
fn scopes_start_sends_and_receives_in_order() {
    let results = on_ranks(3, |comm| {
        let (rank, last) = (comm.rank(), comm.world_size() - 1);
        let mut token = vec![7_i32; 70_001];
        let returned = comm.scope(|scope| {
            // Along the chain of ranks: all but the first receive before they send.
            if rank > 0 {
                token.fill(-1);
                let received = scope.recv_async(&mut token, rank - 1)?.wait()?;
                received.iter_mut().for_each(|value| *value += 1);
                if rank < last {
                    scope.send_async(received, rank + 1)?.wait()?;
                }
                return Ok::<_, Error>(received[70_000]);
            }
            let token = &token;
            drop(scope.send_async(token, 1)?); // The scope waits for it.
            Ok(token[0])
        });
        returned.expect("none failed").expect("valid")
    });
    assert_eq!(results, [7, 8, 9]);
}

#[test]
fn groups_and_scopes_refuse_what_blocking_calls_refuse() {
    on_ranks(2, |comm| {
        let (four, mut three, mut four_mut) = ([1.0_f32; 4], [0.0_f32; 3], [0.0_f32; 4]);
        let blocking = comm.all_gather_into(&four, &mut three).expect_err("too short").to_string();
        let error = comm.group(|group| group.all_gather_into(&four, &mut three));
        assert_eq!(error.expect_err("too short").to_string(), blocking);
        let blocking = comm.all_to_all_into(&four, &mut three).expect_err("lengths").to_string();
        let error = comm.group(|group| group.all_to_all_into(&four, &mut three));
        assert_eq!(error.expect_err("lengths").to_string(), blocking);
        let blocking = comm.scatter_into(None, &mut four_mut, 2).expect_err("root").to_string();
        comm.scope(|scope| {
            let error = scope.scatter_into_async(None, &mut four_mut, 2).map(|_| ());
            assert_eq!(error.expect_err("root").to_string(), blocking);
            let error = scope.send_async(&four, 2).map(|_| ()).expect_err("no such peer");
            assert!(error.to_string().contains("peer is 2, but the ranks are 0..2"), "{error}");
            let error = scope.send_async(&four, comm.rank()).map(|_| ()).expect_err("no receive");
            assert!(matches!(error, Error::Argument { .. }), "{error}");
        })
        .expect("nothing started");
        comm.barrier().expect("still works");
    });
}

#[test]
fn groups_of_two_communicators_are_not_interchangeable() {
    on_ranks(3, |comm| {
        let color = u32::from(comm.rank() == 2);
        let part = comm.split(Some(color), 0).expect("split").expect("a part");
        let (mut first, mut second) = ([1_i32; 12], [1_i32; 2]);
        let outer = comm.group(|whole| {
            whole.all_gather(&mut first)?;
            let inner = part.group(|own| {
                own.all_reduce(&mut second, ReduceOp::Sum)?;
                std::mem::swap(whole, own);
                Ok(())
            });
            let error = inner.expect_err("the other's group");
            assert!(error.to_string().contains("one of another communicator"), "{error}");
            Ok(())
        });
        assert!(matches!(outer, Err(Error::Argument { argument: "group", .. })), "{outer:?}");
        assert_eq!((first, second), ([1; 12], [1; 2]), "nothing ran");
        comm.barrier().expect("still works");
        part.barrier().expect("still works");
    });
}

#[test]
fn split_makes_independent_communicators() {
    let results = on_ranks(5, |comm| {
        // Odd ranks in reverse order; rank 4 in none.
        let color = (comm.rank() != 4).then_some(comm.rank() as u32 % 2);
        let part = comm.split(color, -(comm.rank() as i64)).expect("split");
        let part = part?;
        let mut sum = [comm.rank() as i32];
        part.all_reduce(&mut sum, ReduceOp::Sum).expect("in the part");
        let whole = part.split(Some(0), 0).expect("again").expect("all");
        whole.barrier().expect("in the part's copy");
        Some((part.rank(), part.world_size(), sum[0]))
    });
    let expected = [Some((1, 2, 2)), Some((1, 2, 4)), Some((0, 2, 2)), Some((0, 2, 4)), None];
    assert_eq!(results, expected);
}

#[test]
fn refused_calls_leave_the_communicator_whole() {
    on_ranks(2, |comm| {
        let (mut buffer, mut odd) = ([1.0_f32; 4], [0.0_f32; 3]);
        let root = comm.broadcast(&mut buffer, 2).expect_err("no such root");
        assert!(matches!(root, Error::Call { .. }), "{root}");
        assert!(root.to_string().contains("root 2 is out of range"));
        let short = comm.all_gather_into(&buffer, &mut odd).expect_err("too short");
        assert!(short.to_string().contains("output has 3 elements, but 8 are needed"), "{short}");
        let ragged = comm.all_gather(&mut odd).expect_err("not divisible");
        assert!(ragged.to_string().contains("multiple of the world size"), "{ragged}");
        let factor = ReduceOp::PreMulSum(Scalar::Integer(3));
        let scalar = comm.all_reduce(&mut buffer, factor).expect_err("integer factor");
        assert!(scalar.to_string().contains("premul-sum(3) does not fit f32"), "{scalar}");
        let peer = comm.send(&buffer, 7).expect_err("no such peer");
        assert!(peer.to_string().contains("peer is 7, but the ranks are 0..2"), "{peer}");
        comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("still works");
        assert_eq!(buffer, [2.0; 4]);
    });
}

#[test]
fn results_are_bit_identical_on_all_ranks_and_in_all_runs() {
    let run = |world| {
        on_ranks(world, |comm| {
            let mut values: Vec<f32> = (0..50_000)
                .map(|index| ((comm.rank() * 31 + index * 17) % 1009) as f32 * 1e-3 + 1e-6)
                .collect();
            comm.all_reduce(&mut values, ReduceOp::Sum).expect("all-reduce");
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    for world in [2, 3, 7] {
        let (first, second) = (run(world), run(world));
        assert!(first.iter().all(|rank| *rank == first[0]), "ranks agree");
        assert_eq!(first, second, "runs agree");
    }
}

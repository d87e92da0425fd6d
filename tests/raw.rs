//! Calls on plain pointers give what calls on slices give.

use annulus::{Collective, Communicator, DataType, Error, RawCall, ReduceOp, Scalar};

/// Runs `work` on each of `world` ranks.
fn on_ranks(world: usize, work: impl Fn(&Communicator) -> Result<(), Error> + Sync) {
    let ranks = Communicator::local(world).expect("ranks");
    std::thread::scope(|threads| {
        let ranks: Vec<_> = ranks.iter().map(|comm| threads.spawn(|| work(comm))).collect();
        for rank in ranks {
            rank.join().expect("no panic").expect("no error");
        }
    });
}

#[test]
fn a_call_finds_out_whether_it_is_in_place() {
    on_ranks(3, |comm| {
        let (rank, world) = (comm.rank(), comm.world_size());
        let call = Collective::all_gather(world, DataType::U32, 2).expect("valid");
        let mut all = [0_u32; 6];
        all[2 * rank..][..2].copy_from_slice(&[rank as u32, 7]);
        let output = all.as_mut_ptr().cast::<u8>();
        // SAFETY: the buffer has the call's length, and its part of this rank lies in its place.
        unsafe { comm.run_raw(&RawCall::new(call, None, output.add(rank * 8), output))? };
        assert_eq!(all, [0, 7, 1, 7, 2, 7]);

        let input = [rank as f64, 1.0];
        let mut sum = [0.0; 2];
        let op = Some(ReduceOp::Sum);
        let call = Collective::all_reduce(world, DataType::F64, ReduceOp::Sum, 2).expect("valid");
        for _ in 0..3 {
            let (input, output) = (input.as_ptr().cast(), sum.as_mut_ptr().cast());
            // SAFETY: both buffers have the call's length.
            unsafe { comm.run_raw(&RawCall::new(call, op, input, output))? };
            assert_eq!(sum, [3.0, 3.0]);
        }
        Ok(())
    });
}

#[test]
fn a_factor_in_memory_is_read_when_the_call_runs() {
    on_ranks(2, |comm| {
        let mut factor = [0_i32; 1];
        let mut values = [1_i32, -2];
        let any = ReduceOp::PreMulSum(Scalar::Integer(1));
        let sum = Collective::all_reduce(2, DataType::I32, any, 2).expect("valid");
        let root = Collective::broadcast(2, DataType::I32, 0, 1).expect("valid");
        let (at, values_at) = (factor.as_mut_ptr().cast::<u8>(), values.as_mut_ptr().cast());
        let source = [comm.rank() as i32 + 5];
        let mut group = comm.raw_group();
        group.call(&RawCall::new(root, None, source.as_ptr().cast(), at));
        // SAFETY: the buffers have the calls' lengths.
        unsafe { comm.run_raw_group(group)? };
        let call = RawCall::new(sum, Some(any), values_at, values_at).with_factor_at(at);
        let mut group = comm.raw_group();
        group.call(&call);
        // SAFETY: as above.
        for started in unsafe { comm.start_raw_group(group)? } {
            started.wait()?;
        }
        assert_eq!(values, [10, -20]);
        Ok(())
    });
}

#[test]
fn groups_hold_transfers_and_refuse_other_communicators() {
    on_ranks(2, |comm| {
        let peer = 1 - comm.rank();
        let mine = [comm.rank() as u16; 5];
        let mut theirs = [9_u16; 5];
        let mut group = comm.raw_group();
        group.send(mine.as_ptr().cast(), 5, DataType::F16, peer)?;
        group.recv(theirs.as_mut_ptr().cast(), 5, DataType::F16, peer)?;
        let error = group.send(mine.as_ptr().cast(), usize::MAX, DataType::F16, peer);
        assert!(error.expect_err("too large").to_string().contains("address space"));
        // SAFETY: the buffers have these lengths.
        unsafe { comm.run_raw_group(group)? };
        assert_eq!(theirs, [peer as u16; 5]);

        let other = Communicator::local(2)?.remove(0);
        // SAFETY: nothing is in the group.
        let error = unsafe { comm.run_raw_group(other.raw_group()) }.expect_err("foreign");
        assert!(error.to_string().contains("another communicator"), "{error}");
        Ok(())
    });
}

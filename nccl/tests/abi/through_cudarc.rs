//! cudarc's own binding of NCCL, as far as it goes without a device: it opens `libnccl.so` by name, and looks up each function
//! at its first call.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::thread;

use cudarc::nccl::result::{self, NcclStatus};
use cudarc::nccl::safe::Id;
use cudarc::nccl::sys::{self, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

use crate::own_process::in_own_process;

const F32: ncclDataType_t = ncclDataType_t::ncclFloat32;
const WORLD: usize = 2;

#[test]
fn cudarc_calls_every_function_that_it_wraps() {
    in_own_process("through_cudarc::cudarc_calls_every_function_that_it_wraps", || {
        assert_eq!(result::get_nccl_version().expect("a version"), 22907);
        let id = Id::new().expect("an id");
        let id = *id.internal();
        // As cubecl: one rank per thread.
        thread::scope(|threads| {
            for rank in 0..WORLD {
                threads.spawn(move || {
                    let id = sys::ncclUniqueId { internal: id };
                    let mut comm = MaybeUninit::uninit();
                    // SAFETY: there is room for a handle.
                    let comm = unsafe {
                        result::comm_init_rank(
                            comm.as_mut_ptr(),
                            WORLD as c_int,
                            id,
                            rank as c_int,
                        )
                        .expect("all ranks come");
                        comm.assume_init()
                    };
                    // SAFETY: the communicator lives.
                    unsafe { use_all(comm, rank) };
                });
            }
        });
        // As cudarc's own test: one thread, all ranks.
        let mut comms = [ptr::null_mut(); WORLD];
        let devices: [c_int; WORLD] = [0, 1];
        let mut data = [[1.0_f32; 3], [2.0; 3]];
        // SAFETY: the arrays are as long as the calls say.
        unsafe {
            result::comm_init_all(comms.as_mut_ptr(), WORLD as c_int, devices.as_ptr())
                .expect("init");
            result::group_start().expect("start");
            for (comm, data) in comms.into_iter().zip(&mut data) {
                all_reduce(comm, data);
            }
            result::group_end().expect("end");
            assert_eq!(data, [[3.0; 3]; WORLD]);
            assert_eq!(result::comm_cu_device(comms[1]).expect("a device"), 1);
            result::comm_finalize(comms[0]).expect("finalize");
            result::comm_destroy(comms[0]).expect("destroy");
            // What `Comm` does when it is dropped; twice, as when its thread panics.
            result::comm_abort(comms[1]).expect("abort");
            result::comm_abort(comms[1]).expect("abort again");
            let mut error = ncclResult_t::ncclSuccess;
            let gone = sys::ncclCommGetAsyncError(comms[1], &mut error);
            assert_eq!(gone, ncclResult_t::ncclInvalidArgument);
        }
    });
}

/// # Safety
/// The communicator lives.
unsafe fn all_reduce(comm: ncclComm_t, data: &mut [f32; 3]) {
    let data: *mut c_void = data.as_mut_ptr().cast();
    // SAFETY: the buffer is as long as the call says.
    unsafe {
        result::all_reduce(data, data, 3, F32, ncclRedOp_t::ncclSum, comm, ptr::null_mut())
            .expect("all-reduce");
    }
}

/// # Safety
/// The communicator lives, and the other rank does the same.
unsafe fn use_all(comm: ncclComm_t, rank: usize) {
    let stream = ptr::null_mut();
    let sum = ncclRedOp_t::ncclSum;
    let mine = [rank as f32 + 1.0; 4];
    let (from, mut out) = (mine.as_ptr().cast::<c_void>(), [0.0_f32; 8]);
    let to: *mut c_void = out.as_mut_ptr().cast();
    let peer = 1 - rank as c_int;
    // SAFETY: all buffers are as long as the calls say.
    unsafe {
        assert_eq!(result::comm_count(comm).expect("a count"), WORLD as c_int);
        assert_eq!(result::comm_user_rank(comm).expect("a rank"), rank as c_int);
        result::all_reduce(from, to, 4, F32, sum, comm, stream).expect("all-reduce");
        assert_eq!(out[..4], [3.0; 4]);
        result::reduce(from, to, 4, F32, ncclRedOp_t::ncclMax, 0, comm, stream).expect("reduce");
        result::broadcast(from, to, 4, F32, 1, comm, stream).expect("broadcast");
        assert_eq!(out[..4], [2.0; 4]);
        result::all_gather(from, to, 4, F32, comm, stream).expect("all-gather");
        assert_eq!(out, [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]);
        result::reduce_scatter(from, to, 2, F32, sum, comm, stream).expect("reduce-scatter");
        assert_eq!(out[..2], [3.0; 2]);
        result::group_start().expect("start");
        result::send(from, 4, F32, peer, comm, stream).expect("send");
        result::recv(to, 4, F32, peer, comm, stream).expect("receive");
        let status = result::group_end().expect("end");
        assert!(status == NcclStatus::Success);
        assert_eq!(out[0], 2.0 - rank as f32);
        let mut split = ptr::null_mut();
        let code = sys::ncclCommSplit(comm, rank as c_int, 0, &mut split, ptr::null_mut());
        assert_eq!(code, ncclResult_t::ncclSuccess);
        assert_eq!(result::comm_count(split).expect("a count"), 1);
        result::comm_destroy(split).expect("destroy");
        // The communicator itself stays, as cubecl leaves it.
    }
}

"""Drives the library the way vLLM's pynccl does: ctypes, the library's path from a variable, the unique id by value.

Usage: pynccl.py RANK WORLD ID_FILE
"""

import ctypes
import os
import sys
import time

nccl_result = ctypes.c_int
nccl_comm = ctypes.c_void_p
stream = ctypes.c_void_p
data_type = ctypes.c_int
reduce_op = ctypes.c_int
buffer = ctypes.c_void_p

INT32, FLOAT32 = 2, 7
SUM, MAX = 0, 2


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


FUNCTIONS = {
    "ncclGetErrorString": (ctypes.c_char_p, [nccl_result]),
    "ncclGetVersion": (nccl_result, [ctypes.POINTER(ctypes.c_int)]),
    "ncclGetUniqueId": (nccl_result, [ctypes.POINTER(UniqueId)]),
    "ncclCommInitRank": (nccl_result, [ctypes.POINTER(nccl_comm), ctypes.c_int, UniqueId, ctypes.c_int]),
    "ncclAllReduce": (nccl_result, [buffer, buffer, ctypes.c_size_t, data_type, reduce_op, nccl_comm, stream]),
    "ncclReduce": (nccl_result, [buffer, buffer, ctypes.c_size_t, data_type, reduce_op, ctypes.c_int, nccl_comm, stream]),
    "ncclAllGather": (nccl_result, [buffer, buffer, ctypes.c_size_t, data_type, nccl_comm, stream]),
    "ncclReduceScatter": (nccl_result, [buffer, buffer, ctypes.c_size_t, data_type, reduce_op, nccl_comm, stream]),
    "ncclSend": (nccl_result, [buffer, ctypes.c_size_t, data_type, ctypes.c_int, nccl_comm, stream]),
    "ncclRecv": (nccl_result, [buffer, ctypes.c_size_t, data_type, ctypes.c_int, nccl_comm, stream]),
    "ncclBroadcast": (nccl_result, [buffer, buffer, ctypes.c_size_t, data_type, ctypes.c_int, nccl_comm, stream]),
    "ncclCommDestroy": (nccl_result, [nccl_comm]),
    "ncclGroupStart": (nccl_result, []),
    "ncclGroupEnd": (nccl_result, []),
    "ncclCommWindowRegister": (
        nccl_result,
        [nccl_comm, buffer, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int],
    ),
    "ncclCommWindowDeregister": (nccl_result, [nccl_comm, ctypes.c_void_p]),
}


def load(path):
    library = ctypes.CDLL(path)
    functions = {}
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


def main():
    rank, world, id_file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    functions = load(os.environ["VLLM_NCCL_SO_PATH"])

    def call(name, *arguments):
        result = functions[name](*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {functions['ncclGetErrorString'](result).decode()}")

    version = ctypes.c_int()
    call("ncclGetVersion", ctypes.byref(version))
    text = str(version.value)
    assert (text[0], text[1:3].lstrip("0"), text[3:].lstrip("0")) == ("2", "29", "7"), text

    unique_id = UniqueId()
    if rank == 0:
        call("ncclGetUniqueId", ctypes.byref(unique_id))
        with open(id_file + ".new", "wb") as file:
            file.write(bytes(unique_id.internal))
        os.rename(id_file + ".new", id_file)
    else:
        while not os.path.exists(id_file):
            time.sleep(0.01)
        with open(id_file, "rb") as file:
            ctypes.memmove(ctypes.byref(unique_id), file.read(), 128)

    comm = nccl_comm()
    call("ncclCommInitRank", ctypes.byref(comm), world, unique_id, rank)
    none = stream()

    # The warm-up that pynccl does, and then each function once.
    value = (ctypes.c_float * 1)(1.0)
    call("ncclAllReduce", value, value, 1, FLOAT32, SUM, comm, none)
    assert value[0] == world

    data = (ctypes.c_int32 * 1000)(*[rank + at for at in range(1000)])
    out = (ctypes.c_int32 * 1000)()
    call("ncclAllReduce", data, out, 1000, INT32, MAX, comm, none)
    assert list(out) == [world - 1 + at for at in range(1000)]

    call("ncclReduce", data, out, 1000, INT32, SUM, 0, comm, none)
    if rank == 0:
        assert out[7] == sum(r + 7 for r in range(world))

    gathered = (ctypes.c_int32 * (1000 * world))()
    call("ncclAllGather", data, gathered, 1000, INT32, comm, none)
    assert [gathered[1000 * r + 1] for r in range(world)] == [r + 1 for r in range(world)]

    part = (ctypes.c_int32 * 1000)()
    call("ncclReduceScatter", gathered, part, 1000, INT32, SUM, comm, none)
    assert part[1] == world * (rank + 1)

    call("ncclBroadcast", data, out, 1000, INT32, 1, comm, none)
    assert out[0] == 1

    call("ncclGroupStart")
    call("ncclSend", data, 1000, INT32, (rank + 1) % world, comm, none)
    call("ncclRecv", out, 1000, INT32, (rank - 1) % world, comm, none)
    call("ncclGroupEnd")
    assert out[0] == (rank - 1) % world

    window = ctypes.c_void_p()
    assert functions["ncclCommWindowRegister"](comm, data, 4000, ctypes.byref(window), 1) == 5
    try:
        call("ncclAllReduce", None, out, 1, INT32, SUM, comm, none)
    except RuntimeError as error:
        assert "invalid argument" in str(error)
    else:
        raise AssertionError("a null buffer was taken")
    call("ncclCommDestroy", comm)


main()

"""Launches that use every word between the cpu backend and its machine code, for whatever numbers the words have."""

import re
import threading

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, atomic_add, barrier, gid, lid, shared, u8, u32
from vyre.backends.cpu import CpuBackend, abi
from vyre.backends.cpu.build import Switches, build, kernel_text
from vyre.backends.cpu.compile import compile_object
from vyre.backends.cpu.device import ffi, load
from vyre.backends.cpu.devices import host
from vyre.backends.cpu.run import launch as launches
from vyre.backends.cpu.run import warm
from vyre.driver.contract.values import DispatchConfig
from vyre.errors import Trap
from vyre.foundation.ir.nodes import BinOp, If, InvocationId, Store, lit
from vyre.foundation.ir.nodes import Trap as TrapNode
from vyre.foundation.ir.ops import BinaryOp
from vyre.foundation.ir.program import Program, write_only

from .cpu_kernels import compiled


@vyre.kernel(workgroup=64)
def doubled(x: In[u32], out: Out[u32]):
    if gid.x < len(x):
        out[gid.x] = 2 * x[gid.x]


@vyre.kernel(workgroup=64)
def counted(x: In[u8], bins: InOut[u32]):
    if gid.x < len(x):
        atomic_add(bins, u32(x[gid.x]), 1)


@vyre.kernel(workgroup=(4, 2, 1))
def numbered(out: Out[u32]):
    out[gid.x + 100 * gid.y + 1000 * gid.z] = 1 + gid.x + 100 * gid.y + 1000 * gid.z


@vyre.kernel(workgroup=64)
def turned(x: In[u32], out: Out[u32]):
    words = shared(u32, 64)
    words[lid.x] = x[gid.x]
    barrier()
    out[gid.x] = words[63 - lid.x]


@vyre.kernel(workgroup=64)
def stuck(x: In[u32], out: Out[u32]):
    v = u32(1)
    while v != 0:
        v = v * 3 | x[0]
    out[gid.x] = v


def arange(n):
    return np.arange(n, dtype=np.uint32)


def run(backend, kernel, *inputs, grid, out):
    config = DispatchConfig(grid_override=grid, output_elements={} if out is None else {"out": out})
    (found,) = compiled(backend, kernel.program).dispatch([np.asarray(a) for a in inputs], config)
    return np.frombuffer(found, np.uint32)


def launched(program, memory, grid, chunk, *, poll=False):
    """Code, and a launch of it that is ready to run."""
    built = build(program, host(), Switches(), poll=poll)
    return load(built.image), launch_of(memory, grid, chunk, built.facts.scratch_bytes)


def launch_of(memory, grid, chunk, scratch_bytes, *, streams=False):
    launch = launches.LaunchWords(len(memory), scratch_bytes)
    for slot, data in enumerate(memory):
        launch.buffers[slot] = ffi.from_buffer(data)
    launch.hold = memory
    launch.aim(launches.lengths_of([len(data) for data in memory]), grid, chunk, streams)
    return launch


def check_buffers_lengths_grid_and_stores_past_the_cache(backend):
    warm.STREAM_BYTES = 1
    for n in (64, 1000, 1 << 16):
        assert (run(backend, doubled, arange(n), grid=(n // 64 + 1, 1, 1), out=n) == 2 * arange(n)).all()
    found = run(backend, numbered, grid=(3, 4, 5), out=5000)
    where = [x + 100 * y + 1000 * z for x in range(12) for y in range(8) for z in range(5)]
    assert (np.flatnonzero(found) == sorted(where)).all()
    assert (found[where] == np.array(where) + 1).all()


def check_scratch_and_private_copies(backend):
    x = arange(256)
    assert (run(backend, turned, x, grid=(4, 1, 1), out=256) == x.reshape(4, 64)[:, ::-1].ravel()).all()
    data = np.arange(1 << 16, dtype=np.uint32).astype(np.uint8)
    assert (run(backend, counted, data, np.zeros(256, np.uint32), grid=(1 << 10, 1, 1), out=None) == 256).all()


def check_traps(backend):
    """An invocation that traps tells where and who it is."""
    here = BinOp(BinaryOp.AND, BinOp(BinaryOp.EQ, InvocationId(1), lit(3)), BinOp(BinaryOp.EQ, InvocationId(2), lit(5)))
    there = BinOp(BinaryOp.AND, here, BinOp(BinaryOp.EQ, InvocationId(0), lit(37)))
    body = [If(there, [TrapNode(lit(41), "here")]), Store("out", lit(0), lit(1))]
    program = Program([write_only("out", 0, vyre.u32, 1)], (8, 1, 1), body)
    with pytest.raises(Trap) as raised:
        compiled(backend, program).dispatch([], DispatchConfig(grid_override=(16, 4, 6)))
    found = raised.value.context
    assert (found["address"], tuple(found["invocation"])) == (41, (37, 3, 5))
    code, launch = launched(program, [np.zeros(1, np.uint32)], (16, 4, 6), 1)
    launch.arm((16, 4, 6), (8, 1, 1))
    code.run(launch.shared, launch.first)
    assert launch.shared[abi.TRAPPED] == 1


def check_that_loops_look_at_the_flag(backend):
    code, launch = launched(stuck.program, [np.ones(1, np.uint32), np.zeros(64, np.uint32)], (1, 1, 1), 1, poll=True)
    thread = threading.Thread(target=lambda: code.run(launch.shared, launch.first), daemon=True)
    thread.start()
    while launch.shared[abi.NEXT] == 0:
        pass  # it has not begun yet
    launch.shared[abi.STOP] = 1
    thread.join(60)
    assert not thread.is_alive()


def check_the_words_of_a_launch(backend):
    """Chunks are taken from the counter, as many as a call may; none when the flag is up."""
    x, out = arange(640), np.zeros(640, np.uint32)
    code, launch = launched(doubled.program, [x, out], (10, 1, 1), 2)
    launch.shared[abi.STOP] = 1
    code.run(launch.shared, launch.first)
    assert launch.shared[abi.NEXT] == 0
    assert not out.any()
    launch.shared[abi.STOP] = 0
    launch.worker(0).limit(3)
    code.run(launch.shared, launch.first)
    assert launch.shared[abi.NEXT] == 6
    assert (out[:384] == 2 * x[:384]).all()
    assert not out[384:].any()


def check_that_a_launch_chooses_where_results_go(backend):
    """Told by the version whose stores go past the cache, which does nothing here."""
    _, emitted = kernel_text(doubled.program, host(), Switches())
    text = emitted.text
    silent = re.sub(r"(define internal i1 @stream\(.*?\{\n).*?\n\}\n", r"\1  ret i1 false\n}\n", text, flags=re.DOTALL)
    if silent == text:
        return  # only x86 has one
    code = load(compile_object(silent))
    for streams in (True, False):
        out = np.zeros(640, np.uint32)
        launch = launch_of([arange(640), out], (10, 1, 1), 10, emitted.scratch_bytes, streams=streams)
        code.run(launch.shared, launch.first)
        assert out.any() != streams


def main():
    launches.INLINE_WORK = 1  # every launch is worth all threads
    backend = CpuBackend(threads=3)
    for check in (
        check_buffers_lengths_grid_and_stores_past_the_cache,
        check_scratch_and_private_copies,
        check_traps,
        check_that_loops_look_at_the_flag,
        check_that_a_launch_chooses_where_results_go,
        check_the_words_of_a_launch,
    ):
        check(backend)
    print("agreed")

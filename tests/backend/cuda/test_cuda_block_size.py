"""Small workgroups that share a block: which do, how many threads it has, and that no byte shows it."""

import os
import random

import pytest

from vyre.backends.cuda.build import build, kernel_code
from vyre.backends.cuda.emit.coarsen import KernelText, cuda_code
from vyre.backends.cuda.emit.packed_access import cuda_text
from vyre.backends.reference import run
from vyre.conform.programs.random import Case, random_program
from vyre.conform.programs.random_values import random_bytes
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from vyre.driver.guard.backend import guarded
from vyre.driver.policy.geometry import THREADS, choose_threads
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import (
    Assign,
    Barrier,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Return,
    Store,
    SubgroupReduce,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import ReduceOp
from vyre.foundation.ir.program import Program, read, read_write, workgroup, write_only
from vyre.lower import LowerOptions, lower

from ...support import cuda_host
from ...support.device_backends import open_or_skip

GID = InvocationId(0)
RANDOM = int(os.environ.get("VYRE_RANDOM_PROGRAMS", "24"))
OFF = frozenset(("privatize_atomics",))
SUM = [Let("s", lit(0)), Loop("k", lit(0), Load("a", GID) & 7, [Assign("s", Var("s") + Load("a", Var("k")))])]
IO = [read("a", 0, u32), read_write("c", 1, u32)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("host")


def program_of(*body, size=(1, 1, 1), buffers=IO):
    return Program(buffers, size, [*SUM, *body, Store("c", GID, Var("s"))])


def code_of(*body, **about):
    return cuda_code(lower(program_of(*body, **about), LowerOptions(off=OFF, firm=True)))


@pytest.mark.parametrize("width", [1, 2, 16, 32, 33, 63, 65, 100, 1000])
def test_workgroups_that_fill_no_multiprocessor_are_joined(width):
    code = code_of(size=(width, 1, 1))
    assert code.joined
    assert "__launch_bounds__" not in code.text
    assert [line.split("//")[0].strip() for line in code.text.splitlines() if "last_x" in line] == [
        "const uint last_x", "if (at > last_x) { return; }"
    ]  # fmt: skip


@pytest.mark.parametrize("size", [(64, 1, 1), (96, 1, 1), (256, 1, 1), (4, 4, 1), (1, 1, 2)])
def test_workgroups_that_are_large_or_have_more_axes_are_blocks(size):
    code = code_of(size=size)
    assert not code.joined
    assert code.block == size


@pytest.mark.parametrize(
    "body",
    [
        [Barrier()],
        [Assign("s", SubgroupReduce(ReduceOp.ADD, Var("s")))],
        [Store("t", LocalId(0), lit(1))],
    ],
)
def test_invocations_that_know_of_each_other_are_not_joined(body):
    buffers = [*IO, workgroup("t", u32, 16)] if isinstance(body[0], Store) else IO
    assert not code_of(*body, size=(16, 1, 1), buffers=buffers).joined


def test_a_block_has_the_threads_with_which_most_run_at_once():
    def fitting(active):
        return choose_threads(active).numbers["threads"]

    assert fitting(lambda size: 2048 // size) == 256
    assert fitting(lambda size: 900 // size) == 128
    assert fitting(lambda size: min(4, 2048 // size)) == 512
    assert fitting(lambda size: 1 if size <= 64 else 0) == 64
    assert fitting(lambda size: 5 if size == 32 else 0) == 32
    assert all(size & (size - 1) == 0 for size in THREADS)


def test_blocks_of_joined_workgroups_cover_all_invocations_and_no_more():
    code = KernelText("", (128, 1, 1), joined=True)
    assert [code.blocks(n, 16) for n in (1, 8, 9, 16, 17)] == [1, 1, 2, 2, 3]
    assert code.blocks((1 << 32) - 1, 1) == 1 << 25


def expected(case):
    found = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements)
    return [bytes(o) for o in found.outputs]


@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize("width", [1, 3, 16, 33, 65])
@pytest.mark.parametrize("cut", [0, 2])
def test_ids_are_those_of_the_workgroups(width, threads, cut, folder):
    where = [write_only(name, 2 + k, u32) for k, name in enumerate(("w", "l", "y"))]
    stores = [Store("w", GID, WorkgroupId(0)), Store("l", GID, LocalId(0)), Store("y", GID, InvocationId(1))]
    program = program_of(If(GID.eq(lit(5)), [Return()]), *stores, size=(width, 1, 1), buffers=[*IO, *where])
    groups = -(-200 // width)
    n = groups * width
    inputs = tuple(random_bytes(random.Random(k), u32, n) for k in range(2))
    case = Case(program, inputs, (groups, 1, 1), {"w": n, "l": n, "y": n})

    def code(kernel):
        return KernelText(cuda_text(kernel, joined=True), (threads, 1, 1), joined=True)

    assert cuda_host.run_case(case, folder, cut=cut, code=code) == expected(case)
    assert cuda_host.run_case(case, folder, cut=cut) == expected(case)


def joined_cases(count):
    """Random programs whose workgroups are joined."""
    seed = 0
    while count:
        case = random_program(random.Random(seed), shared=False, barriers=False, subgroups=False, max_statements=10)
        seed += 1
        kernel = lower(case.program, LowerOptions(soft_flush=case.program.requirements.float64, off=OFF, firm=True))
        if cuda_code(kernel).joined:
            count -= 1
            yield case


@pytest.mark.parametrize("block", range(4))
@pytest.mark.check
def test_random_programs_in_joined_workgroups_give_the_bytes_of_the_reference(block, folder):
    for k, case in enumerate(joined_cases(RANDOM)):
        if k % 4 == block:
            cut = random.Random(k).randint(0, case.grid[0])
            assert cuda_host.run_case(case, folder, cut=cut) == expected(case), case.program


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_compiler_takes_joined_workgroups(arch):
    from vyre.errors import BackendUnavailable

    try:
        built = build(program_of(size=(16, 1, 1)), arch)
    except BackendUnavailable as e:
        if os.environ.get("VYRE_REQUIRE_NVRTC"):
            raise
        pytest.skip(str(e))
    assert built.facts.extra["joined"]
    assert built.image
    assert kernel_code(program_of(size=(16, 1, 1)), poll=True)[1].joined


def test_a_device_joins_workgroups_and_gives_the_bytes_of_the_reference():
    opened = open_or_skip("cuda")
    pipeline = opened.compile_native(program_of(), DEFAULT_CONFIG)
    x = random_bytes(random.Random(1), u32, 1000)
    case = Case(pipeline.program, (x, x), (1000, 1, 1), {})
    config = DispatchConfig(grid_override=case.grid)
    assert [bytes(o) for o in pipeline.dispatch(case.inputs, config)] == expected(case)
    assert pipeline.require_open().block[0] in THREADS
    backend = guarded(opened)
    for case in joined_cases(RANDOM):
        for timeout in (None, 60.0):
            config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements, timeout=timeout)
            assert [bytes(o) for o in backend.dispatch(case.program, case.inputs, config)] == expected(case), (
                case.program
            )
    backend.shutdown()

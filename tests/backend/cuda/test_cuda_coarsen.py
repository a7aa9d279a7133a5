"""Threads that do several invocations: which kernels are done so, and that no byte shows it."""

import os
import random

import pytest

from vyre.backends.cuda.emit.coarsen import KernelText, cuda_code
from vyre.backends.cuda.emit.packed_access import cuda_text
from vyre.backends.reference import run
from vyre.conform.programs.random import Case
from vyre.conform.programs.random_values import random_bytes
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard.backend import guarded
from vyre.foundation.ir.dtypes import bf16, bool_, can_cast, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from vyre.foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    BufLen,
    Cast,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Return,
    Select,
    Store,
    SubgroupReduce,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from vyre.foundation.ir.program import Program, read, read_write, workgroup, write_only
from vyre.lower import LowerOptions, lower

from ...support import cuda_host
from ...support.device_backends import open_or_skip

GID = InvocationId(0)
A, B = Load("a", GID), Load("b", GID)
IO = [read("a", 0, u32), read("b", 1, u32), read_write("c", 2, u32)]
RANDOM = int(os.environ.get("VYRE_RANDOM_PROGRAMS", "40"))
OFF = frozenset(("privatize_atomics",))
TYPES = (u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64, bool_)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("host")


def inside(name, *body):
    return If(BinOp(BinaryOp.LT, GID, BufLen(name)), body)


def outside(name):
    return BinOp(BinaryOp.GE, GID, BufLen(name))


def code_of(*body, buffers=IO, size=(64, 1, 1)):
    program = Program(buffers, size, body)
    return cuda_code(lower(program, LowerOptions(soft_flush=program.requirements.float64, off=OFF, firm=True)))


WIDE = {
    "bare": [Store("c", GID, A ^ B)],
    "inside a length": [inside("c", Store("c", GID, A ^ B))],
    "inside two lengths": [inside("a", inside("b", Store("c", GID, A ^ B)))],
    "inside both of two lengths": [
        If(BinOp(BinaryOp.AND, BufLen("a") > GID, BinOp(BinaryOp.LT, GID, BufLen("c"))), [Store("c", GID, A)])
    ],
    "after a return": [If(outside("c"), [Return()]), Store("c", GID, A + B)],
    "after a return outside of one of two": [
        If(BinOp(BinaryOp.OR, outside("c"), BinOp(BinaryOp.LE, BufLen("b"), GID)), [Return()]),
        Store("c", GID, A + B),
    ],
    "in place": [Store("c", GID, Load("c", GID) + A)],
    "with a constant of memory": [Store("c", GID, A * Load("b", lit(0)))],
    "through a table": [Store("c", GID, Load("b", A & 7))],
    "with two outputs": [Store("c", GID, A), Store("d", GID, A + B)],
    "with two outputs below the length of one": [inside("d", Store("c", GID, A), Store("d", GID, A + B))],
    "with a branch": [
        Let("x", A),
        If(BinOp(BinaryOp.GT, Var("x"), lit(5)), [Let("y", Atomic(AtomicOp.ADD, "n", Var("x"), lit(1)))]),
        Store("c", GID, Var("x")),
    ],
    "with a trap": [If(BinOp(BinaryOp.EQ, A, lit(7)), [Trap(GID, "seven")]), Store("c", GID, B)],
    "with other axes": [Store("c", GID, A + InvocationId(1) * 3 + InvocationId(2))],
}
PLAIN = {
    "the neighbour's element": [Store("c", GID, Load("a", GID + 1))],
    "another's place": [Store("c", GID + 1, A)],
    "a place of memory and an own one": [Store("c", GID, Load("b", A + GID))],
    "twice": [Store("c", GID, A), Store("c", GID, B)],
    "a load behind the store": [Store("c", GID, A), Store("d", GID, Load("c", GID))],
    "only sometimes": [If(BinOp(BinaryOp.GT, A, lit(3)), [Store("c", GID, B)])],
    "or else": [If(BinOp(BinaryOp.LT, GID, BufLen("b")), [Store("c", GID, A)], [Store("c", GID, B)])],
    "below a number": [If(BinOp(BinaryOp.LT, GID, lit(9)), [Store("c", GID, B)])],
    "up to a length": [If(BinOp(BinaryOp.LE, GID, BufLen("a")), [Store("c", GID, B)])],
    "inside another axis": [If(BinOp(BinaryOp.LT, InvocationId(1), BufLen("a")), [Store("c", GID, B)])],
    "after a return that data decide": [If(BinOp(BinaryOp.EQ, A, lit(3)), [Return()]), Store("c", GID, B)],
    "a loop": [Loop("k", lit(0), A, [Let("y", Atomic(AtomicOp.ADD, "n", Var("k"), lit(1)))]), Store("c", GID, B)],
    "local ids": [Store("c", GID, A + LocalId(0))],
    "ids of workgroups": [Store("c", GID, A + WorkgroupId(0))],
    "atomics there": [Let("x", Atomic(AtomicOp.ADD, "c", GID, lit(1))), Store("c", GID, A)],
    "a constant of memory that is written": [Store("c", GID, A + Load("d", lit(0)))],
    "subgroups": [Store("c", GID, SubgroupReduce(ReduceOp.ADD, A))],
    "barriers": [Store("mem", LocalId(0), A), Barrier(), Store("c", GID, Load("mem", lit(0)))],
    "nothing of its own": [Let("x", Atomic(AtomicOp.ADD, "n", GID, lit(1)))],
}
MORE = [*IO, read_write("n", 3, u32), read_write("d", 4, u32), workgroup("mem", u32, 64)]


def declared(body):
    """Those of the buffers that a body names."""
    return [b for b in MORE if b.name in "abc" or f"'{b.name}'" in repr(body)]


@pytest.mark.parametrize("body", WIDE.values(), ids=WIDE)
def test_own_elements_are_taken_four_at_once(body):
    code = code_of(*body, buffers=declared(body))
    assert (code.block, code.each) == ((128, 1, 1), 4)
    assert "Pack<uint, 4>" in code.text


@pytest.mark.parametrize("body", PLAIN.values(), ids=PLAIN)
def test_other_kernels_stay_as_they_are(body):
    code = code_of(*body, buffers=declared(body))
    assert (code.block, code.each) == ((64, 1, 1), 1)
    assert "Pack" not in code.text


def test_workgroups_of_one_invocation_are_joined():
    code = code_of(Store("c", GID, A ^ WorkgroupId(0)), size=(1, 1, 1))
    assert (code.block, code.each) == ((128, 1, 1), 4)


def test_a_workgroup_with_two_axes_stays_as_it_is():
    assert code_of(Store("c", GID, A), size=(8, 8, 1)).each == 1


def test_what_is_the_same_for_all_is_loaded_once_and_never_out_of_bounds():
    text = code_of(Store("c", GID, A + Load("b", lit(3)))).text
    assert text.index("3u < len_b ? buf_b[3u]") < text.index("#pragma unroll")
    body = [Let("x", lit(0)), If(BufLen("b") > 3, [Assign("x", Load("b", lit(3)))]), Store("c", GID, A + Var("x"))]
    text = code_of(*body).text
    assert "3u < len_b ?" not in text
    assert text.index("if (len_b > 3u)") < text.index("buf_b[3u]")


@pytest.mark.parametrize("terms, each", [(80, 4), (180, 4), (260, 1)])
def test_a_long_kernel_stays_as_it_is(terms, each):
    value = A
    for k in range(terms):
        value = value * (2 * k + 3) if k % 2 else value ^ (k + 1)
    assert code_of(Store("c", GID, value)).each == each


@pytest.mark.parametrize("terms, each", [(60, 16), (120, 8)])
def test_a_long_kernel_over_small_elements_has_narrower_accesses(terms, each):
    value = Cast(u32, A)
    for k in range(terms):
        value = value * (2 * k + 3) if k % 2 else value ^ (k + 1)
    buffers = [read("a", 0, u8), write_only("c", 1, u8)]
    assert code_of(Store("c", GID, Cast(u8, value)), buffers=buffers).each == each


@pytest.mark.parametrize("branches, each", [(64, 4), (65, 1)])
def test_many_branches_stay_as_they_are(branches, each):
    body = [Let("x", A)]
    body += [If(Var("x") > k, [Assign("x", Var("x") ^ k)]) for k in range(1, branches + 1)]
    assert code_of(*body, Store("c", GID, Var("x"))).each == each


@pytest.mark.parametrize("element, each", [(u8, 16), (i16, 8), (bf16, 8), (f32, 4), (bool_, 4), (u64, 2), (f64, 2)])
def test_the_widest_element_fills_an_access(element, each):
    buffers = [read("a", 0, element), write_only("c", 1, element)]
    assert code_of(Store("c", GID, A), buffers=buffers).each == each
    mixed = [read("a", 0, u8), write_only("c", 1, element)]
    assert code_of(Store("c", GID, Cast(element, Cast(u32, A))), buffers=mixed).each == each


def test_blocks_cover_all_invocations_and_no_more():
    code = KernelText("", (128, 1, 1), 4)
    assert [code.blocks(n, 64) for n in (1, 7, 8, 9, 16, 17)] == [1, 1, 1, 2, 2, 3]
    assert code.blocks(1 << 26, 64) == 1 << 23
    assert KernelText("", (64, 1, 1)).blocks(9, 64) == 9


# ---- bytes ---------------------------------------------------------------------------------------------------------


def expected(case):
    found = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements)
    return [bytes(o) for o in found.outputs]


def plain(kernel):
    return KernelText(cuda_text(kernel), kernel.workgroup)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 63, 64, 65, 511, 512, 513, 515, 1027])
def test_every_length_is_done_up_to_its_end(n, folder):
    rng = random.Random(n)
    program = Program(IO, (64, 1, 1), [inside("c", Store("c", GID, A ^ B + Load("c", GID)))])
    inputs = [random_bytes(rng, u32, n) for _ in range(3)]
    case = Case(program, tuple(inputs), (-(-n // 64) + 1, 1, 1), {})
    assert cuda_host.run_case(case, folder) == expected(case)


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 20])
def test_invocations_beyond_the_grid_do_not_run(groups, folder):
    rng = random.Random(groups)
    program = Program(IO, (33, 1, 1), [Store("c", GID, A ^ B)])
    case = Case(program, tuple(random_bytes(rng, u32, 600) for _ in range(3)), (groups, 1, 1), {})
    assert cuda_host.run_case(case, folder) == expected(case)
    assert expected(case)[0][4 * 33 * groups :] == case.inputs[2][4 * 33 * groups :]


def test_buffers_of_different_lengths_end_by_themselves(folder):
    rng = random.Random(1)
    program = Program(IO, (64, 1, 1), [Store("c", GID, A ^ B)])
    case = Case(program, tuple(random_bytes(rng, u32, n) for n in (70, 1000, 513)), (20, 1, 1), {})
    assert cuda_host.run_case(case, folder) == expected(case)


@pytest.mark.parametrize("n", [0, 1, 70, 512, 514])
@pytest.mark.parametrize("leaves", [False, True])
def test_a_length_counts_although_the_buffer_is_not_touched(n, leaves, folder):
    rng = random.Random(n)
    store = Store("c", GID, A)
    program = Program(IO, (64, 1, 1), [If(outside("b"), [Return()]), store] if leaves else [inside("b", store)])
    case = Case(program, tuple(random_bytes(rng, u32, m) for m in (600, n, 600)), (10, 1, 1), {})
    assert cuda_host.run_case(case, folder) == expected(case)


@pytest.mark.parametrize("shift", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("cut", [0, 1, 2, 7])
def test_neither_addresses_nor_the_first_workgroup_need_to_be_round(shift, cut, folder):
    rng = random.Random(shift)
    program = Program(IO, (33, 1, 1), [inside("c", Store("c", GID, A + B))])
    case = Case(program, tuple(random_bytes(rng, u32, 700) for _ in range(3)), (22, 1, 1), {})
    assert cuda_host.run_case(case, folder, shift=shift, cut=cut) == expected(case)


def test_other_axes_run_all_of_it_again(folder):
    body = [Let("x", Atomic(AtomicOp.ADD, "n", A & 7, InvocationId(1) + 10 * InvocationId(2)))]
    program = Program([read("a", 0, u32), read_write("n", 1, u32)], (64, 1, 1), body)
    case = Case(program, (random_bytes(random.Random(3), u32, 200), bytes(32)), (3, 2, 3), {})
    assert cuda_host.run_case(case, folder) == expected(case)


def cast(x, source, target):
    """A cast, by way of another type where there is none."""
    if source is target:
        return x
    if can_cast(source, target):
        return Cast(target, x)
    way = next(t for t in (u32, i32, f32) if can_cast(source, t) and can_cast(t, target))
    return Cast(target, Cast(way, x))


def random_elementwise(rng):
    """A program in which each invocation computes with its own elements of buffers of any types and lengths."""
    size = rng.choice((1, 32, 33, 64, 100, 256))
    groups = rng.randint(1, max(1, 1500 // size))
    types = [rng.choice(TYPES) for _ in range(rng.randint(1, 4))]
    some = size * groups
    lengths = [max(0, some + rng.choice((0, 0, 1, -1, -5, 64, -some // 2))) for _ in range(len(types) + 1)]
    target = rng.choice(TYPES)
    buffers = [read(f"in{k}", k, t) for k, t in enumerate(types)]
    in_place = rng.random() < 0.4
    buffers.append((read_write if in_place else write_only)("out", len(types), target))
    names = [b.name for b in buffers if b.name != "out" or in_place]
    loads = [Load(name, GID) for name in names]
    common = rng.choice((u32, i32, f32))
    values = [cast(x, t, common) for x, t in zip(loads, [*types, target], strict=False)]
    value = values[0]
    for x in values[1:]:
        value = BinOp(rng.choice((BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN)), value, x)
    if rng.random() < 0.5:
        value = Select(BinOp(BinaryOp.LT, values[0], value), value, UnOp(UnaryOp.NEGATE, value))
    more = rng.random() < 0.4
    if more:  # a constant of memory, what an element points to, and another output
        buffers += [read("p", len(buffers), u32), write_only("more", len(buffers) + 1, rng.choice(TYPES))]
        lengths += [rng.choice((0, 1, 3, 40)), max(0, some + rng.choice((0, 1, -3)))]
        names.append("p")
        place = rng.choice((lit(rng.randrange(4)), cast(values[0], common, u32) & 63))
        value = value + cast(Load("p", place), u32, common)
    body = [Store("out", GID, cast(value, common, target))]
    if more:
        body.insert(rng.randrange(2), Store("more", GID, cast(values[0], common, buffers[-1].element)))
    guard = rng.choice([name for name in (*names, "out") if name != "p"])
    match rng.randrange(4):
        case 0:
            body = [inside(guard, *body)]
        case 1:
            body = [inside(guard, inside("out", *body))]
        case 2:
            body = [If(outside(guard), [Return()]), *body]
    inputs = [random_bytes(rng, b.element, n) for b, n in zip(buffers, lengths, strict=True) if b.name in names]
    outputs = {b.name: n for b, n in zip(buffers, lengths, strict=True) if b.name not in names}
    return Case(Program(buffers, (size, 1, 1), body), tuple(inputs), (groups, 1, 1), outputs)


@pytest.mark.parametrize("block", range(8))
@pytest.mark.check
def test_random_elementwise_programs_give_the_bytes_of_the_reference(block, folder):
    for k in range(block, RANDOM, 8):
        rng = random.Random(k)
        case = random_elementwise(rng)
        kernel = lower(case.program, LowerOptions(soft_flush=case.program.requirements.float64, off=OFF, firm=True))
        assert cuda_code(kernel).each > 1
        cut, shift = rng.randint(0, case.grid[0]), rng.choice((0, 0, 1))
        assert cuda_host.run_case(case, folder, cut=cut, shift=shift) == expected(case), k
        if k % 4 == 0:
            assert cuda_host.run_case(case, folder, cut=cut, shift=shift, code=plain) == expected(case), k


def test_a_device_gives_the_bytes_of_the_reference():
    backend = guarded(open_or_skip("cuda"))
    for k in range(RANDOM):
        case = random_elementwise(random.Random(k))
        config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements)
        assert [bytes(o) for o in backend.dispatch(case.program, case.inputs, config)] == expected(case), k
    backend.shutdown()

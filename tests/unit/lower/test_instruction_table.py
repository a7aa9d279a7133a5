"""The table of instructions: each emitter prints every row that can reach it, and refuses what is no row."""

import random
from itertools import product

import llvmlite.binding as binding
import pytest

from vyre.backends.cpu.emit import instructions as instr
from vyre.backends.cuda.emit.text import Cuda
from vyre.backends.opencl.emit.text import Mode, opencl_text
from vyre.backends.wgpu.emit.text import wgsl_text
from vyre.backends.wgpu.emit.traits import Traits
from vyre.conform.programs.random import random_program
from vyre.errors import InvalidProgram
from vyre.foundation.ir.dtypes import BY_NAME, can_cast
from vyre.foundation.ir.ops import BINARY_TYPES, UNARY_TYPES, BinaryOp, UnaryOp
from vyre.lower import LowerOptions, lower
from vyre.lower.c.emitter import emit
from vyre.lower.instructions import INSTRUCTIONS, OF_OPERATOR, function_of, require
from vyre.lower.kernel_ir import Buffer, Ins, Kernel, walk
from vyre.lower.registers import BITS, REGISTER_TYPES

SOURCES = {
    "convert": ("bool", "u32", "i32", "u64", "i64", "f32", "f64"),
    "bitcast": ("u32", "i32", "f32", "u64", "i64", "f64"),
}
PRINTED_ELSEWHERE = {"native"}  # only where an emitter asks the lowering for it


def shapes(name):
    """Every pure instruction of this name that has operands: type, types of operands, attr."""
    row = INSTRUCTIONS[name]
    for t in sorted(row.types):
        count = "u64" if t.endswith("64") else "u32"
        for source in SOURCES.get(name, ("",)):
            if source == t or (name == "convert" and not can_cast(BY_NAME[source], BY_NAME[t])):
                continue
            if name == "bitcast" and BITS[source] != BITS[t]:
                continue
            takes = [{"T": t, "N": count, "A": source}.get(word, word) for word in row.takes]
            attrs = [f"{t[0]}8", f"{t[0]}16"] if name == "narrow" else [None]
            for attr in attrs:
                yield (t if row.gives == "T" else row.gives), takes, attr


STEPS = [
    pytest.param(name, *shape, id=f"{name} {' '.join(map(str, shape[1]))} -> {shape[0]}{shape[2] or ''}")
    for name, row in INSTRUCTIONS.items()
    if row.pure and row.takes and name not in PRINTED_ELSEWHERE
    for shape in shapes(name)
]


def kernel_of(op, dtype, takes, attr=None):
    """One launch that loads the operands, computes, and stores."""
    body = [zero := Ins("const", "u32", attr=0)]
    buffers, args = [], []

    def memory(t):
        buffers.append(Buffer(f"b{len(buffers)}", len(buffers), BY_NAME["u32" if t == "bool" else t], writable=True))
        return buffers[-1]

    for t in takes:
        found = Ins("load", "u32" if t == "bool" else t, (zero,), memory(t))
        body.append(found)
        if t == "bool":
            body.append(found := Ins("ne", "bool", (found, zero)))
        args.append(found)
    body.append(found := Ins(op, dtype, tuple(args), attr))
    out = memory(dtype)
    if dtype == "bool":
        body.append(found := Ins("convert", "u32", (found,)))
    body.append(Ins("store", "", (zero, found), out))
    return Kernel((1, 1, 1), tuple(buffers), body)


def cpu_text(kernel, width):
    """The pure steps of a kernel as a function: operands that are no constants are its parameters."""
    w, names = instr.Writer(), {}
    parameters = []
    for i in kernel.body:
        if i.op == "load":
            names[i] = f"%p{len(parameters)}"
            parameters.append(f"{instr.ty(i.dtype, width)} {names[i]}")
        elif i.dtype:
            names[i] = instr.pure(w, i, [names[a] for a in i.args], width)
    lines = [*w.declared.values(), f"define void @f({', '.join(parameters)}) {{", *w.lines, "  ret void", "}"]
    return "\n".join(lines)


def print_everywhere(kernel):
    for width in (1, 4):
        binding.parse_assembly(cpu_text(kernel, width)).verify()
    for mode in Mode:
        assert "vyre_kernel" in opencl_text(kernel, mode)
    assert "vyre_kernel" in emit(kernel, Cuda(kernel))
    if all(i.dtype != "f64" for i in kernel.body):
        assert "vyre_kernel" in wgsl_text(kernel, Traits(), True)


@pytest.mark.parametrize("op, dtype, takes, attr", STEPS)
def test_every_emitter_prints_every_pure_instruction(op, dtype, takes, attr):
    kernel = kernel_of(op, dtype, takes, attr)
    for i in kernel.body:
        require(i)
    print_everywhere(kernel)
    assert function_of(next(i for i in kernel.body if i.op == op and i.attr == attr and i.args), True)


def test_emitters_refuse_an_instruction_that_is_no_row():
    for t, width in product(("u32", "f32", "i64"), (1, 4)):
        kernel = kernel_of("frobnicate", t, [t, t])
        for text in (
            lambda k=kernel, w=width: cpu_text(k, w),
            lambda k=kernel: opencl_text(k, Mode.SOFT),
            lambda k=kernel: opencl_text(k, Mode.PTX),
            lambda k=kernel: emit(k, Cuda(k)),
            lambda k=kernel: wgsl_text(k, Traits(), True),
            lambda k=kernel: function_of(k.body[-2], False),
        ):
            with pytest.raises(InvalidProgram, match=r"no instruction 'frobnicate'\. Fix: add its row"):
                text()


@pytest.mark.parametrize(
    "op, dtype, takes",
    [
        ("frobnicate", "u32", ["u32"]),
        ("add", "u32", ["u32"]),
        ("add", "u32", ["u32", "u32", "u32"]),
        ("add", "u32", ["u32", "i32"]),
        ("add", "f32", ["u32", "u32"]),
        ("add", "bool", ["bool", "bool"]),
        ("shl", "u64", ["u64", "u32"]),
        ("lt", "u32", ["u32", "u32"]),
        ("select", "f32", ["u32", "f32", "f32"]),
        ("fma", "u64", ["u64", "u64", "u64"]),
        ("native", "f32", []),
        ("store", "f32", ["u32", "f32"]),
    ],
)
def test_an_instruction_with_other_operands_or_another_result_is_refused(op, dtype, takes):
    with pytest.raises(InvalidProgram, match=op):
        require(Ins(op, dtype, tuple(Ins("get", t) for t in takes)))


def test_kernels_consist_of_rows_of_the_table():
    for seed in range(8):
        program = random_program(random.Random(seed)).program
        for soft in (False, True):
            for i in walk(lower(program, LowerOptions(soft_flush=soft)).body):
                if isinstance(i, Ins):
                    require(i)


def test_an_instruction_takes_the_types_of_its_operator():
    for op, name in OF_OPERATOR.items():
        wide = (BINARY_TYPES if isinstance(op, BinaryOp) else UNARY_TYPES)[op.rule] & set(REGISTER_TYPES)
        if op.rule == "negate":
            wide &= {"f32", "f64"}  # of integers it is a difference
        if op in (BinaryOp.LT, BinaryOp.LE, BinaryOp.GT, BinaryOp.GE):
            wide -= {"bool"}  # which has no order
        assert wide <= INSTRUCTIONS[name].types, op


def test_a_row_that_computes_has_a_meaning_and_a_statement_gives_nothing():
    for row in INSTRUCTIONS.values():
        assert (row.meaning is not None) == (row.pure and bool(row.takes) and row.name != "native"), row.name
        assert row.pure <= bool(row.gives), row.name
    assert {op for op in OF_OPERATOR if isinstance(op, UnaryOp)} >= {UnaryOp.POPCOUNT, UnaryOp.FLOOR, UnaryOp.SQRT}

"""`copysign(x, y)`: the size of x with the sign of y, in every float type, engine and backend."""

import struct

import pytest

import vyre
from vyre.backends.cuda.build import kernel_code
from vyre.backends.cuda.compile import compile_text
from vyre.backends.reference import run
from vyre.conform.programs.random import Case
from vyre.conform.programs.random_values import edge_bits
from vyre.driver.contract.values import DispatchConfig
from vyre.errors import BackendUnavailable, WireError
from vyre.foundation.formats.parse import parse_program
from vyre.foundation.ir.dtypes import bf16, extension_id, f16, f32, f64, i32
from vyre.foundation.ir.nodes import BinOp, InvocationId, Load, Store, UnOp, lit
from vyre.foundation.ir.ops import BinaryOp, OpaqueOp, UnaryOp
from vyre.foundation.ir.program import Program, read, write_only

from ...support import cuda_host
from ...support.device_backends import IDS, lacking, open_or_skip

GID = InvocationId(0)
FLOATS = (f32, f64, f16, bf16)
QUIET = {"f32": 0x7FC00000, "f64": 0x7FF8000000000000, "f16": 0x7E00, "bf16": 0x7FC0}
LARGEST = {"f32": 0x7F7FFFFF, "f64": 0x7FEFFFFFFFFFFFFF, "f16": 0x7BFF, "bf16": 0x7F7F}
EXPONENT = {"f32": 0x7F800000, "f64": 0x7FF0000000000000, "f16": 0x7C00, "bf16": 0x7F80}


def expected(t, x, y):
    """In bits alone, by the rules of the type: subnormals of f32 and bf16 are zero, a NaN is the canonical one."""
    sign = 1 << t.bits - 1
    most = EXPONENT[t.name]

    def size(bits):
        found = bits & sign - 1
        return 0 if t in (f32, bf16) and not found & most else found

    if size(x) > most:
        return QUIET[t.name]
    return size(x) | (0 if size(y) > most else y & sign)


def pack(t, words):
    return b"".join(word.to_bytes(t.size, "little") for word in words)


def program_of(t, x, y, n=1):
    body = [Store("out", GID, BinOp(BinaryOp.COPYSIGN, x, y))]
    return Program([read("x", 0, t, n), read("y", 1, t, n), write_only("out", 2, t, n)], (n, 1, 1), body)


def pairs_of(t):
    edges = (*edge_bits(t), LARGEST[t.name], LARGEST[t.name] | 1 << t.bits - 1)
    return [(x, y) for x in edges for y in edges]


def edges_of(t):
    """A program that goes over all pairs of edges, its inputs, and what it gives."""
    pairs = pairs_of(t)
    program = program_of(t, Load("x", GID), Load("y", GID), len(pairs))
    program = program.replace(workgroup_size=(64, 1, 1))
    inputs = [pack(t, column) for column in zip(*pairs, strict=True)]
    return program, inputs, pack(t, (expected(t, *pair) for pair in pairs)), -(-len(pairs) // 64)


@pytest.mark.parametrize("t", FLOATS, ids=str)
@pytest.mark.parametrize("engine", ["scalar", "numpy"])
def test_both_engines_of_the_reference_give_the_size_of_one_and_the_sign_of_the_other(t, engine):
    program, inputs, wanted, groups = edges_of(t)
    assert [bytes(o) for o in run(program, inputs, grid=(groups, 1, 1), engine=engine).outputs] == [wanted]


@pytest.mark.parametrize("t", FLOATS, ids=str)
@pytest.mark.parametrize("id", ["cpu", *IDS])
def test_every_backend_gives_the_size_of_one_and_the_sign_of_the_other(t, id):
    backend = open_or_skip(id)
    if t in lacking(backend):
        pytest.skip(f"{id} has no {t}")
    program, inputs, wanted, _ = edges_of(t)
    found = backend.dispatch(program, inputs, DispatchConfig())
    assert [bytes(o) for o in found] == [wanted]


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_the_text_for_cuda_says_the_same(t, tmp_path):
    program, inputs, wanted, groups = edges_of(t)
    case = Case(program, tuple(inputs), (groups, 1, 1), {})
    assert cuda_host.run_case(case, tmp_path) == [wanted]


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_nvrtc_takes_the_text_for_cuda(t):
    _, code, options = kernel_code(edges_of(t)[0])
    try:
        found = compile_text(code.text, "sm_90", options)
    except BackendUnavailable as e:
        pytest.skip(e.message)
    assert found.startswith(b"\x7fELF")


def nan_makers(y):
    """What gives a NaN of infinity and NaN, with a sign that is the machine's affair."""
    return [
        y - y,
        y * lit(0.0),
        -(y - y),
        UnOp(UnaryOp.SQRT, UnOp(UnaryOp.NEGATE, y)),
        -UnOp(UnaryOp.ABS, y * lit(0.0)),
    ]


@pytest.mark.parametrize("id", ["reference", "cpu", *IDS])
def test_the_sign_of_a_nan_that_a_kernel_made_is_plus(id):
    backend = open_or_skip(id)
    values = nan_makers(Load("y", GID))
    sizes = (0x3F800000, 0xBF800000, 0x80000000, 0xFF800000)
    body = [
        Store("out", GID * len(values) + k, BinOp(BinaryOp.COPYSIGN, Load("x", GID), value))
        for k, value in enumerate(values)
    ]
    n = len(sizes)
    buffers = [read("x", 0, f32, n), read("y", 1, f32, n), write_only("out", 2, f32, n * len(values))]
    inputs = [pack(f32, sizes), pack(f32, [0x7F800000] * n)]
    (found,) = backend.dispatch(Program(buffers, (n, 1, 1), body), inputs, DispatchConfig())
    assert bytes(found) == pack(f32, [x & 0x7FFFFFFF for x in sizes for _ in values])


@pytest.mark.parametrize("x, y, wanted", [(1.5, -0.0, -1.5), (-2.0, 0.0, 2.0), (0.0, -3.0, -0.0), (-1.0, "nan", 1.0)])
@pytest.mark.parametrize("id", ["reference", "cpu"])
def test_numbers_known_before_the_kernel_runs_fold_to_the_same(x, y, wanted, id):
    program = program_of(f32, lit(x), lit(float(y)))
    (found,) = open_or_skip(id).dispatch(program, [bytes(4), bytes(4)], DispatchConfig())
    assert bytes(found) == struct.pack("<f", wanted)


def test_kernels_and_generators_say_it_by_name():
    @vyre.kernel
    def towards(x: vyre.In[vyre.f64], y: vyre.In[vyre.f64], out: vyre.Out[vyre.f64]) -> None:
        out[vyre.gid.x] = vyre.copysign(x[vyre.gid.x], y[vyre.gid.x]) + vyre.copysign(2, y[vyre.gid.x])

    assert "copysign(x[gid.x], y[gid.x])" in str(towards.program)
    built = vyre.copysign(Load("x", GID), Load("y", GID))
    assert built == BinOp(BinaryOp.COPYSIGN, Load("x", GID), Load("y", GID))
    program = program_of(f32, Load("x", GID), Load("y", GID))
    assert parse_program(str(program)) == program


def test_whole_numbers_have_no_such_operator():
    findings = vyre.validate(program_of(i32, Load("x", GID), Load("y", GID)))
    assert any("copysign" in str(finding) for finding in findings)


def test_the_wire_carries_it_as_an_extension():
    program = program_of(f32, Load("x", GID), Load("y", GID))
    blob = program.to_wire()
    ident = extension_id("vyre.py.copysign")
    assert ident == BinaryOp.COPYSIGN.tag
    assert b"\x09\x80" + ident.to_bytes(4, "little") in blob
    again = Program.from_wire(blob)
    assert again == program
    assert again.to_wire() == blob
    disguised = program.replace(entry=(Store("out", GID, BinOp(OpaqueOp(ident), Load("x", GID), Load("y", GID))),))
    with pytest.raises(WireError, match="has an operator of its own"):
        disguised.to_wire()

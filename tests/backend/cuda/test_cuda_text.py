"""Kernels as CUDA C++: the texts that are kept, what NVRTC says to them, and what they give when the host runs them."""

import os
import random
import re
import struct
import sys
from types import ModuleType, SimpleNamespace

import pytest

from vyre.backends.cuda import compile as compiling
from vyre.backends.cuda.emit.coarsen import KernelText, cuda_code
from vyre.backends.cuda.emit.packed_access import cuda_text
from vyre.backends.cuda.emit.text import build_options
from vyre.backends.reference import run
from vyre.conform.programs.divergent import lane_program
from vyre.conform.programs.random import Case, random_program
from vyre.errors import BackendUnavailable, KernelCompileFailed, Trap
from vyre.foundation.ir.dtypes import f32, u32
from vyre.foundation.ir.nodes import BinOp, Bitcast, Cast, If, InvocationId, Load, Store, lit
from vyre.foundation.ir.nodes import Trap as TrapNode
from vyre.foundation.ir.ops import BinaryOp
from vyre.foundation.ir.program import Program, read, write_only
from vyre.lower import LowerOptions, lower

from ...support import cuda_host
from ...support.golden_programs import PROGRAMS, assert_golden
from ...support.sprung import first_trap

ARCHES = ("sm_80", "sm_90")
OFF = frozenset(("privatize_atomics",))
COMPILED = int(os.environ.get("VYRE_RANDOM_PROGRAMS", "100"))
RUN = int(os.environ.get("VYRE_RANDOM_PROGRAMS", "60"))
BLOCKS = 10
GID = InvocationId(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("host")


def lowered(program, **options):
    return lower(program, LowerOptions(soft_flush=program.requirements.float64, off=OFF, firm=True, **options))


def nvrtc_or_skip():
    try:
        return compiling.nvrtc()
    except BackendUnavailable as e:
        if os.environ.get("VYRE_REQUIRE_NVRTC"):
            pytest.fail(f"NVRTC is required: {e}")
        pytest.skip(e.message)


def cubin(kernel, arch, text=None):
    found = compiling.compile_text(text or cuda_code(kernel).text, arch, build_options(kernel.soft_flush))
    assert found.startswith(b"\x7fELF")
    assert b"vyre_kernel" in found
    return found


def case_of(k):
    rng = random.Random(k)
    return lane_program(rng) if k % 3 == 0 else random_program(rng, functions=k % 3 == 1)


# ---- texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_is_the_one_that_is_kept(name, request):
    kernel = lowered(PROGRAMS[name](), poll=name in ("steps_to_one", "traps"))
    assert_golden(f"cuda/{name}.cu", cuda_code(kernel).text, request.config.getoption("--refresh-golden"))


def test_the_flags_make_f32_canonical():
    assert build_options(False) == ["--fmad=false", "--ftz=true", "--prec-div=true", "--prec-sqrt=true"]


def test_kernels_that_flush_by_themselves_keep_subnormals_of_the_machine():
    assert "--ftz=false" in build_options(True)
    assert not any("ftz=true" in option for option in build_options(True))
    soft = lower(PROGRAMS["saxpy"](), LowerOptions(soft_flush=True, off=OFF))
    assert "add.rn.f32" in cuda_text(soft)
    assert "add.rn.ftz.f32 %0, %1, %2" not in cuda_text(soft)


def test_a_step_of_f32_is_an_instruction_that_the_compiler_cannot_leave_out():
    kernel = lowered(Program([read("x", 0, f32), write_only("y", 1, f32)], (64, 1, 1), [
        Store("y", GID, Load("x", GID) + lit(-0.0)),
    ]))  # fmt: skip
    text = cuda_text(kernel)
    assert "add.rn.ftz.f32" in text
    assert " + " not in text.split("vyre_kernel")[1].replace("blockIdx.x + base_x", "").replace("64u + lid_x", "")


@pytest.mark.parametrize("element, made", [(f32, lambda x: x), (u32, lambda x: Bitcast(f32, x))], ids=["f32", "bits"])
def test_what_a_comparison_looks_at_was_flushed_by_an_instruction(element, made):
    """The compiler makes an integer test of a comparison whose operand it knows as bits."""
    zero = made(Load("x", GID)).eq(lit(0.0))
    kernel = lowered(Program([read("x", 0, element), write_only("y", 1, u32)], (64, 1, 1), [
        Store("y", GID, Cast(u32, zero)),
    ]))  # fmt: skip
    text = cuda_text(kernel)
    assert "add.rn.ftz.f32 %0, %1, 0f80000000" in text
    assert re.search(r"\(flush_f32\(.*\) == zero\)", text.split("vyre_kernel")[1])


def test_literals_of_64_bits_do_not_depend_on_the_host():
    text = cuda_text(lowered(PROGRAMS["long_integers"]()))
    assert "6364136223846793005ull" in text
    assert "typedef unsigned long long ulong;" in text


# ---- NVRTC -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_nvrtc_takes_the_kept_texts(name, arch):
    nvrtc_or_skip()
    kernel = lowered(PROGRAMS[name](), poll=name in ("steps_to_one", "traps"))
    cubin(kernel, arch)
    cubin(kernel, arch, cuda_text(kernel))


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.check
def test_nvrtc_takes_random_programs(block):
    nvrtc_or_skip()
    for k in range(block, COMPILED, BLOCKS):
        cubin(lowered(case_of(k).program, poll=k % 4 == 1), ARCHES[k // BLOCKS % 2])


def test_a_wide_access_is_one_instruction():
    lib = nvrtc_or_skip()
    code = cuda_code(lowered(PROGRAMS["xor"]()))
    program = lib.nvrtcCreateProgram(code.text.encode(), b"xor.cu", 0, [], [])[1]
    options = [b"--gpu-architecture=sm_90"]
    assert lib.nvrtcCompileProgram(program, 1, options)[0] == lib.nvrtcResult.NVRTC_SUCCESS
    ptx = bytes(lib.nvrtcGetPTXSize(program)[1])
    lib.nvrtcGetPTX(program, ptx)
    assert ptx.count(b"ld.global.nc.v4.u32") == 2
    assert ptx.count(b"st.global.v4.u32") == 1


def test_a_text_that_is_refused_says_why():
    nvrtc_or_skip()
    with pytest.raises(KernelCompileFailed, match=r"NVRTC refused the kernel for sm_90: .*error: .*Fix: ") as e:
        compiling.compile_text("nonsense;", "sm_90", build_options(False))
    assert "nonsense" in e.value.context["log"]


def test_an_architecture_that_nvrtc_does_not_know_is_refused():
    nvrtc_or_skip()
    with pytest.raises(KernelCompileFailed, match=r"sm_1: .*gpu-architecture"):
        compiling.compile_text("", "sm_1", [])


def test_nvrtc_has_a_version():
    nvrtc_or_skip()
    assert compiling.compiler_version() >= (12, 0)


def bindings(monkeypatch, **names):
    """Other bindings than those that are installed, if any."""
    for name, module in {"cuda": ModuleType("cuda"), "cuda.bindings": ModuleType("cuda.bindings")}.items():
        monkeypatch.setitem(sys.modules, name, module)
    fake = SimpleNamespace(nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=0), **names)
    monkeypatch.setattr(sys.modules["cuda.bindings"], "nvrtc", fake, raising=False)


def test_without_the_bindings_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(BackendUnavailable, match=r"cuda-bindings cannot be imported.* Fix: pip install vyre\[cuda\]"):
        compiling.nvrtc()


def test_without_the_library_it_says_what_to_install(monkeypatch):
    def missing():
        raise RuntimeError("no libnvrtc\nanywhere")

    bindings(monkeypatch, nvrtcVersion=missing)
    with pytest.raises(BackendUnavailable, match=r"NVRTC cannot be loaded: no libnvrtc \[.*Fix: pip install"):
        compiling.nvrtc()


def test_a_library_that_fails_is_named(monkeypatch):
    failure = SimpleNamespace(name="NVRTC_ERROR_OUT_OF_MEMORY")
    bindings(monkeypatch, nvrtcVersion=lambda: (0, 13, 0), nvrtcCreateProgram=lambda *args: (failure, None))
    with pytest.raises(KernelCompileFailed, match=r"NVRTC failed: NVRTC_ERROR_OUT_OF_MEMORY.*Fix: reinstall"):
        compiling.compile_text("", "sm_90", [])


# ---- what texts give, on the host ----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.check
def test_random_programs_give_the_bytes_of_the_reference(block, folder):
    for k in range(block, RUN, BLOCKS):
        case = case_of(k)
        found = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements)
        cut = random.Random(k).randint(0, case.grid[0])
        assert cuda_host.run_case(case, folder, poll=k % 4 == 1, cut=cut) == [bytes(o) for o in found.outputs], k


def test_a_trap_says_which_and_where(folder):
    program = PROGRAMS["traps"]()
    index = struct.pack("<128I", *(3 if k != 77 else 99 for k in range(128)))
    table = struct.pack("<8i", *range(8))
    kernel = lowered(program)
    *_, words = cuda_host.Code(kernel, folder).run([index, table, bytes(512)], [128, 8, 128], (2, 1, 1))
    assert first_trap(kernel, words) == (1, 77, 77, 0, 0)
    with pytest.raises(Trap, match="index out of range"):
        run(program, [index, table], grid=(2, 1, 1), output_elements={"out": 128})


def test_no_tag_of_a_trap_hides_the_line_behind_it(folder):
    body = [If(BinOp(BinaryOp.EQ, GID, lit(3)), [TrapNode(GID, "a\\")]), Store("out", GID, GID + 1)]
    kernel = lowered(Program([write_only("out", 0, u32)], (64, 1, 1), body))
    found, words = cuda_host.Code(kernel, folder, KernelText(cuda_text(kernel), (64, 1, 1))).run(
        [bytes(256)], [64], (1, 1, 1)
    )
    assert first_trap(kernel, words) == (1, 3, 3, 0, 0)
    assert struct.unpack("<64I", found) == tuple(0 if k == 3 else k + 1 for k in range(64))


@pytest.mark.parametrize("stop", [0, 1])
def test_a_kernel_that_was_stopped_does_nothing(stop, folder):
    kernel = lowered(PROGRAMS["steps_to_one"](), poll=True)
    n = struct.pack("<64I", *[27] * 64)
    _, steps = cuda_host.Code(kernel, folder).run([n, bytes(256)], [64, 64], (1, 1, 1), stop=stop)
    assert set(struct.unpack("<64I", steps)) == {0 if stop else 111}


def test_a_kernel_with_barriers_ends_everywhere_once_it_was_stopped(folder):
    kernel = lowered(PROGRAMS["sum_of_a_workgroup"](), poll=True)
    ones = struct.pack("<128f", *[1.0] * 128)
    code = cuda_host.Code(kernel, folder)
    assert code.run([ones, bytes(8)], [128, 2], (2, 1, 1))[1] == struct.pack("<2f", 64, 64)
    code.run([ones, bytes(8)], [128, 2], (2, 1, 1), stop=1)  # comes back


@pytest.mark.parametrize("lanes", [1, 2, 15, 16, 17, 31, 32, 33, 40, 63, 64, 96])
def test_subgroups_of_any_size_reduce_in_the_order_of_the_butterfly(lanes, folder):
    rng = random.Random(lanes)
    made = PROGRAMS["subgroups"]()
    program = Program(made.buffers, (lanes, 1, 1), made.entry)
    values = struct.pack(f"<{lanes}f", *(rng.uniform(-1, 1) * 2.0 ** rng.randint(-30, 30) for _ in range(lanes)))
    case = Case(program, (values,), (1, 1, 1), {"out": 2 * lanes})
    found = run(program, [values], grid=(1, 1, 1), output_elements=case.output_elements)
    assert cuda_host.run_case(case, folder) == [bytes(o) for o in found.outputs]


def test_words_of_the_library_are_there_only_where_they_are_used():
    text = cuda_text(lowered(Program([write_only("long", 0, u32)], (64, 1, 1), [Store("long", GID, GID)])))
    assert "#define" not in text
    assert "typedef unsigned int uint;" in text

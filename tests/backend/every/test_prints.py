"""`print` of a kernel shows lines on the reference and on cpu, changes no result, and is refused elsewhere."""

import io
import pickle
import re

import numpy as np
import pytest

import vyre
from vyre import (
    In,
    InOut,
    Out,
    atomic_add,
    barrier,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    gid,
    i8,
    i16,
    i32,
    i64,
    lid,
    shared,
    u8,
    u16,
    u32,
    u64,
)
from vyre.foundation.ir.prints import LOG_WORDS, prints_of, without_prints

SHOWING = ("reference", "cpu")


@pytest.fixture(params=SHOWING)
def on(request):
    return request.param


@vyre.kernel
def types(
    a: In[u8], b: In[u16], c: In[u32], d: In[u64], e: In[i8], f: In[i16], g: In[i32], h: In[i64],
    p: In[f16], q: In[f32], r: In[f64], s: In[bool_], t: In[bf16], out: Out[u32, 1],
):  # fmt: skip
    print("unsigned", a[0], b[0], c[0], d[0])
    print(e[0], f[0], g[0], h[0], "signed")
    print(p[0], q[0], r[0], t[0])
    print(s[0], s[1], 7, -1, 2.5, True)
    print()
    out[0] = 1


def test_values_have_their_types(on, capsys):
    types.on(on)(
        np.array([255], np.uint8), np.array([65535], np.uint16), np.array([4294967295], np.uint32),
        np.array([2**64 - 1], np.uint64), np.array([-128], np.int8), np.array([-32768], np.int16),
        np.array([-(2**31)], np.int32), np.array([-(2**63)], np.int64), np.array([0.1], np.float16),
        np.array([0.1], np.float32), np.array([0.1], np.float64), np.array([True, False]),
        np.array([0x3DCD], np.uint16), grid=1, config=vyre.DispatchConfig(workgroup_override=(1, 1, 1)),
    )  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "(0, 0, 0): unsigned u8(255) u16(65535) u32(4294967295) u64(18446744073709551615)",
        "(0, 0, 0): i8(-128) i16(-32768) i32(-2147483648) i64(-9223372036854775808) signed",
        "(0, 0, 0): f16(0.1) f32(0.1) f64(0.1) bf16(0.100097656)",
        "(0, 0, 0): bool(True) bool(False) 7 -1 2.5 True",
        "(0, 0, 0):",
    ]


def test_values_at_their_edges(on, capsys):
    @vyre.kernel(workgroup=1)
    def edges(x: In[f32], y: In[f64], z: In[f16], out: Out[u32, 1]):
        for k in range(4):
            print(x[k], y[k], z[k])
        out[0] = 1

    values = [np.nan, -np.inf, -0.0, 1e-5]
    edges.on(on)(*(np.array(values, t) for t in (np.float32, np.float64, np.float16)), grid=1)
    assert capsys.readouterr().out.splitlines() == [
        "(0, 0, 0): f32(nan) f64(nan) f16(nan)",
        "(0, 0, 0): f32(-inf) f64(-inf) f16(-inf)",
        "(0, 0, 0): f32(-0.0) f64(-0.0) f16(-0.0)",
        "(0, 0, 0): f32(1e-05) f64(1e-05) f16(1e-05)",
    ]


@vyre.device
def doubled(v: u32) -> u32:
    print("doubles", v)
    return v * 2


@vyre.kernel(workgroup=(4, 2))
def plane(out: Out[u32]):
    i = gid.y * 8 + gid.x
    if i % 5 == 0:
        print("first", i)
    out[i] = doubled(i)
    if i % 5 == 0:
        for k in range(2):
            print("later", k)


def test_lines_are_sorted_by_invocation_x_first_and_then_in_their_own_order(on, capsys):
    assert plane.on(on)(domain=(8, 4)).ravel().tolist() == [2 * k for k in range(32)]
    lines = capsys.readouterr().out.splitlines()
    wanted = []
    for i in range(32):
        at = f"({i % 8}, {i // 8}, 0):"
        wanted += [f"{at} first u32({i})"] * (i % 5 == 0)
        wanted.append(f"{at} doubles u32({i})")
        wanted += [f"{at} later u32({k})" for k in range(2)] * (i % 5 == 0)
    assert lines == wanted


@vyre.kernel
def counted(x: In[u32], out: Out[u32]):
    i = gid.x
    if i < len(out):
        print("x is", x[i])
        out[i] = x[i] + 1


ROOM = (LOG_WORDS - 3) // 5


@pytest.mark.parametrize("n", [0, 1, ROOM - 1, ROOM, ROOM + 1, 40_000])
def test_a_call_prints_so_much_and_counts_what_it_drops(on, n, capsys):
    x = np.arange(n, dtype=np.uint32)
    assert counted.on(on)(x).tobytes() == (x + 1).tobytes()
    lines = capsys.readouterr().out.splitlines()
    kept = [line for line in lines if line.startswith("(")]
    assert len(kept) == min(n, ROOM)
    rest = f"... and {n - ROOM} lines more: a call prints 256 KiB of values at most"
    assert lines[len(kept) :] == [rest] * (n > ROOM)
    found = [int(re.fullmatch(r"\((\d+), 0, 0\): x is u32\((\d+)\)", line)[1]) for line in kept]
    assert found == sorted(set(found))


def test_one_invocation_may_print_all_of_it(on, capsys):
    @vyre.kernel(workgroup=1)
    def counting(out: Out[u32, 1]):
        for k in range(50_000):
            print(k)
        out[0] = 1

    counting.on(on)(grid=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:ROOM] == [f"(0, 0, 0): u32({k})" for k in range(ROOM)]
    assert lines[ROOM].startswith(f"... and {50_000 - ROOM} lines more")


@vyre.kernel(workgroup=8)
def silent(x: InOut[u32], sums: InOut[u32], scale: f32, out: Out[f32]):
    tile = shared(u32, 8)
    tile[lid.x] = x[gid.x]
    barrier()
    v = tile[7 - lid.x]
    atomic_add(sums, v % 4, v)
    if gid.x < len(out):
        out[gid.x] = f32(v) * scale + 0.1
        x[gid.x] = v


@vyre.kernel(workgroup=8)
def noisy(x: InOut[u32], sums: InOut[u32], scale: f32, out: Out[f32]):
    print("at the start", gid.x)
    tile = shared(u32, 8)
    tile[lid.x] = x[gid.x]
    barrier()
    v = tile[7 - lid.x]
    old = atomic_add(sums, v % 4, v)
    print("v", v, "old", old, "scale", scale)
    if gid.x < len(out):
        out[gid.x] = f32(v) * scale + 0.1
        x[gid.x] = v
        print(f64(scale), i64(v))


@pytest.mark.parametrize("n", [1, 8, 100])
def test_results_and_the_grid_do_not_depend_on_printing(on, n, capsys):
    def call(kernel):
        x, sums = np.arange(n, dtype=np.uint32) * 3, np.zeros(4, np.uint32)
        told = kernel.on(on).explain(x, sums, 0.3, sizes={"out": n})
        return *(r.tobytes() for r in kernel.on(on)(x, sums, 0.3, sizes={"out": n})), told.grid

    assert call(noisy) == call(silent)
    assert capsys.readouterr().out.count("at the start") == -(-n // 8) * 8


@pytest.mark.parametrize("name", ["opencl", "wgpu"])
def test_a_backend_that_cannot_show_it_refuses_by_name(name):
    try:
        vyre.acquire(name).shutdown()
    except vyre.BackendUnavailable as e:
        pytest.skip(str(e))
    with pytest.raises(vyre.UnsupportedFeature, match="it prints, and has no way to show that") as caught:
        counted.on(name)(np.zeros(3, np.uint32))
    assert "take print() out" in caught.value.fix
    assert "it prints" in vyre.driver.admission.program.why_not(counted.program, vyre.acquire(name))


def test_a_call_without_a_name_goes_where_it_shows(capsys):
    assert vyre.select(counted.program).chosen == "cpu"
    assert counted(np.zeros(2, np.uint32)).tolist() == [1, 1]
    assert capsys.readouterr().out == "(0, 0, 0): x is u32(0)\n(1, 0, 0): x is u32(0)\n"


def test_a_started_call_prints_once_when_its_result_is_taken(on, capsys):
    pending = counted.on(on).start(np.zeros(1, np.uint32))
    assert pending.result().tolist() == [1]
    assert capsys.readouterr().out == "(0, 0, 0): x is u32(0)\n"


def test_a_kernel_that_only_prints_is_told_how_much_runs(on, capsys):
    @vyre.kernel(workgroup=2)
    def hello():
        print("hello", gid.x)

    with pytest.raises(vyre.ArgumentValueError, match="only prints, and nothing says how much runs") as caught:
        hello.on(on)()
    assert caught.value.fix.startswith("pass domain=")
    assert hello.on(on)(domain=2) is None
    assert capsys.readouterr().out == "(0, 0, 0): hello u32(0)\n(1, 0, 0): hello u32(1)\n"


def test_it_travels_with_the_program(capsys):
    program = counted.program
    for arrived in (vyre.parse(str(program)), vyre.Program.from_wire(program.to_wire())):
        assert arrived == program
        assert vyre.Kernel.of_program(arrived).on("cpu")(np.zeros(1, np.uint32)).tolist() == [1]
    assert capsys.readouterr().out == "(0, 0, 0): x is u32(0)\n" * 2

    def make():
        @vyre.kernel
        def k(x: InOut[u32]):
            if gid.x < len(x):
                print("sent", x[gid.x])
                x[gid.x] = 0

        return k

    pickle.loads(pickle.dumps(make())).on("cpu")(np.ones(1, np.uint32))
    assert capsys.readouterr().out == "(0, 0, 0): sent u32(1)\n"


def test_without_its_prints_a_program_is_that_of_the_kernel_without_them():
    assert list(prints_of(noisy.program).values()) == [
        ("'at the start", "u32"),
        ("'v", "u32", "'old", "u32", "'scale", "f32"),
        ("f64", "i64"),
    ]
    assert without_prints(noisy.program) == silent.program
    assert without_prints(silent.program) is silent.program


def test_other_words_are_another_program():
    def of(text):
        return vyre.kernel(source=f"def k(x: InOut[u32]):\n    print({text!r}, x[0])\n    x[0] = x[0] + 1").program

    assert of("one").fingerprint == of("one").fingerprint != of("two").fingerprint


def test_a_raw_dispatch_gives_the_log_as_its_last_output():
    pipe = vyre.compile(counted.program, backend="cpu")
    out, log = pipe.dispatch([np.array([7, 8], np.uint32)], vyre.DispatchConfig(output_elements={"out": 2}))
    assert np.frombuffer(out, np.uint32).tolist() == [8, 9]
    words = np.frombuffer(log, np.uint32)
    assert len(words) == LOG_WORDS
    assert words[:3].tolist() == [10, 0, 0]
    assert sorted(map(tuple, words[3:13].reshape(2, 5).tolist())) == [(1, 0, 0, 0, 7), (1, 1, 0, 0, 8)]


def test_a_shadow_does_not_take_the_order_of_lines_for_a_difference(capsys):
    with vyre.config(shadow=1.0):
        x = np.arange(3000, dtype=np.uint32)
        assert counted.on("cpu")(x).tobytes() == (x + 1).tobytes()
    assert capsys.readouterr().out.count("x is") == 3000


def test_arrays_on_a_device_are_refused():
    x = vyre.to_device(np.zeros(4, np.uint32), "cpu")
    with pytest.raises(vyre.UnsupportedFeature, match="counted prints, and its arguments live on a device") as caught:
        counted(x)
    assert "x.numpy()" in caught.value.fix


def test_text_with_any_characters(on, capsys):
    @vyre.kernel(workgroup=1)
    def odd(out: Out[u32, 1]):
        print("quote \" and '", 'äß\u4e2d\\ "x"', "", "f32", "line\nbreak")
        out[0] = 1

    odd.on(on)(grid=1)
    assert capsys.readouterr().out == '(0, 0, 0): quote " and \' äß\u4e2d\\ "x"  f32 line\nbreak\n'


def test_a_local_may_have_the_name_of_the_log(on, capsys):
    @vyre.kernel(workgroup=1)
    def k(out: Out[u32, 1]):
        vyre_print = shared(u32, 4)
        vyre_print[0] = 5
        print("is", vyre_print[0])
        out[0] = vyre_print[0]

    assert k.on(on)(grid=1).tolist() == [5]
    assert capsys.readouterr().out == "(0, 0, 0): is u32(5)\n"


def test_a_value_of_the_subgroup_is_made_by_all_of_it(on, capsys):
    @vyre.kernel(workgroup=32)
    def k(x: In[u32], out: Out[u32]):
        if gid.x % 2 == 0:
            print("even")  # so that the log has room for some only in between
        print(vyre.subgroup_add(x[gid.x]))
        out[gid.x] = 1

    k.on(on)(np.arange(32, dtype=np.uint32))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in lines] == ["even", "u32(496)", "u32(496)"] * 16


def test_before_and_behind_a_barrier_of_the_whole_grid(on, capsys):
    @vyre.kernel(workgroup=2)
    def k(x: InOut[u32], y: InOut[u32]):
        print("before", x[gid.x])
        y[gid.x] = x[gid.x] * 2
        vyre.grid_sync()
        print("after", y[3 - gid.x])

    k.on(on)(np.arange(4, dtype=np.uint32), np.zeros(4, np.uint32))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"({i}, 0, 0): {t}" for i in range(4) for t in (f"before u32({i})", f"after u32({6 - 2 * i})")]


def test_what_the_stream_cannot_encode_is_escaped(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    kernel = vyre.kernel(workgroup=1, source="def k(x: InOut[u32]):\n    print('ä', '\\ud800', x[0])\n    x[0] = 1")
    kernel.on("cpu")(np.zeros(1, np.uint32))
    out.flush()
    assert out.buffer.getvalue() == b"(0, 0, 0): \\xe4 \\ud800 u32(0)\n"


def test_a_call_that_traps_prints_nothing(on, capsys):
    @vyre.kernel(workgroup=1)
    def k(x: InOut[u32]):
        print("seen", x[0])
        assert x[0] == 0
        x[0] = 1

    with pytest.raises(vyre.Trap):
        k.on(on)(np.ones(1, np.uint32))
    assert capsys.readouterr().out == ""


def test_the_order_of_lines_is_not_proved():
    assert counted.program.determinism == "unproved"
    assert without_prints(counted.program).determinism.startswith("proved")
    with pytest.raises(vyre.InvalidProgram, match="vyre_print"):
        counted.on("cpu")(np.zeros(100, np.uint32), config=vyre.DispatchConfig(determinism="require"))

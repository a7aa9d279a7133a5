"""What kernels may write about ranked buffers and signed numbers, and what is refused with which Fix."""

import numpy as np
import pytest

import vyre
from vyre import D2, D3, In, InOut, Out, atomic_add, gid, i8, i32, i64, lid, shared, u32, u64
from vyre.errors import KernelError


def refused(body, params="x: In[u32, D2], flat: In[u32], io: InOut[u32, D3], s: In[i32], n: u32, out: Out[u32]"):
    lines = "\n".join("    " + line for line in body.splitlines())
    with pytest.raises(KernelError) as e:
        vyre.kernel(source=f"def k({params}):\n{lines}\n")
    return e.value


_ = D2, D3, In, InOut, Out, atomic_add, gid, i8, i32, i64, shared, u32, u64  # names that the sources see


@pytest.mark.parametrize(
    "body, at, said, fix",
    [
        ("v = x[0]", "x[0]", "`x` has 2 axes, and 1 index", "write x[i, j]"),
        ("v = x[0, 1, 2]", "x[0, 1, 2]", "`x` has 2 axes, and 3 indices", "write x[i, j]"),
        ("v = x[0][1]", "x[0]", "`x` has 2 axes, and 1 index", "write x[i, j]"),
        ("io[n] = 1", "io[n]", "`io` has 3 axes, and 1 index", "write io[i, j, k]"),
        ("atomic_add(io, n, 1)", "n", "`io` has 3 axes, and 1 index", "write io[i, j, k]"),
        ("v = x[0, :]", ":", "slices", "index one element"),
        ("v = x[0:1, 2]", "0:1", "slices", "index one element"),
        ("v = x[-1, 0]", "-1", "the index -1 is negative", "count from the front"),
        ("v = x[0, 1.5]", "1.5", "not a whole number", "whole numbers"),
        ("v = x[True, 0]", "True", "not a whole number", "whole numbers"),
        ("v = x[n, n > 1]", "n > 1", "the index is bool", "u32(n > 1)"),
        ("v = flat[n, 0]", "flat[n, 0]", "`flat` has no rank, and 2 indices", "declare flat: In[u32, D2]"),
        ("v = flat[()]", "flat[()]", "an index is missing", "compute one index"),
        ("t = shared(u32, 4)\nv = t[0, 1]", "t[0, 1]", "`t` has no rank", "compute one index: x[row * width + column]"),
        ("v = x.shape[2]", "2", "`x` has 2 axes", "use 0 to 1"),
        ("v = x.shape[n]", "n", "`x` has 2 axes", "use 0 to 1"),
        ("v = x.shape", "x.shape", "`x.shape` is several numbers", "h, w = x.shape"),
        ("a, b, c = x.shape", "(a, b, c)", "2 values for 3 targets", "a name for each axis"),
        ("a, out[0] = x.shape", "out[0]", "gets no number", "height, width = x.shape"),
        ("v = flat.shape[0]", "flat.shape", "buffers have no `.shape`", "In[f32, D2]"),
        ("v = flat.ndim", "flat.ndim", "buffers have no `.ndim`", "In[f32, D2]"),
        # ---- numbers below zero
        ("if gid.x - 1 >= 0:\n    out[0] = 1", "gid.x - 1 >= 0", "is always true: u32 is", "i32(gid.x) - 1"),
        ("if 0 > n:\n    out[0] = 1", "0 > n", "is always false", "signed number"),
        ("v = 0 <= n < 5", "0 <= n < 5", "`0 <= n` is always true", "leave this test out"),
        ("v = 0\nv -= 1\nif v < 0:\n    out[0] = 1", "v < 0", "`v < 0` is always false", "make `v` signed at line 2"),
        ("v = 0\nv = -1", "-1", "`v` is u32 since line 2, and -1", "begin with a signed number at line 2: v: i32"),
        ("v = 0\nv = s[0]", "s[0]", "cannot become i32", "begin with a signed number at line 2: v: i32 = ..."),
        ("v = s[0] + n", "s[0] + n", "`+` of i32 and u32", "convert one side, for example i32(n)"),
        ("v = n < s[0]", "n < s[0]", "`<` of u32 and i32", "for example i32(n)"),
        ("out[0] = s[0]", "s[0]", "`out[0]` is u32, and this value is i32", "declare it i32"),
        ("v = max(n - 1, 0)", "max(n - 1, 0)", "u32 is never below zero", "saturating_sub(n, 1)"),
        ("v = abs(n - gid.x)", "abs(n - gid.x)", "a difference of u32", "abs_diff(n, gid.x)"),
        ("v = flat[(gid.x - 1) % n]", "(gid.x - 1) % n", "wraps to a large number", "(gid.x + n - 1) % n"),
        ("i = i32(n)\nv = x[(i - 1) % 7, 0]", "(i - 1) % 7", "stays below zero under %", "(i + 7 - 1) % 7"),
        ("for i in range(n - 5, n):\n    pass", "n - 5", "`n - 5` is u32 and wraps", "i32(n) - 5 for"),
        ("for i in range(gid.x - n, n):\n    pass", "gid.x - n", "wraps", "write i32(gid.x) - i32(n)"),
        ("low = n - 5\nfor i in range(low, n):\n    pass", "low", "`low` is u32 and wraps", "saturating_sub(a, b)"),
        ("for i in range(9, n - 2, -1):\n    pass", "n - 2", "`n - 2` is u32 and wraps", "count with i32"),
        ("for i in range(n - 1, s[0]):\n    pass", "n - 1", "bounds of the range are u32 and i32", "i32(n - 1)"),
    ],
)  # fmt: skip
def test_a_wrong_kernel_shows_what_is_wrong_and_what_to_write(body, at, said, fix):
    e = refused(body)
    line = e.text or ""
    assert line[e.offset - 1 : e.end_offset - 1].strip("()") == at.strip("()")
    assert said in e.message
    assert fix in e.fix


def test_mixing_of_integers_never_loses_what_is_below_zero():
    params = "a: u64, b: i32, c: i64, d: u32, e: i8, out: Out[u32]"
    assert refused("v = a + b", params).fix == "convert both sides: i64(a) and i64(b)"
    assert refused("v = c + d", params).fix == "convert one side, for example i64(d)"
    assert refused("v = d + a", params).fix == "convert one side, for example u64(d)"
    assert refused("v = b + c", params).fix == "convert one side, for example i64(b)"


def test_helpers_say_which_rank_they_take():
    @vyre.device
    def at(x: In[u32, D2], i: u32) -> u32:
        return x[i, i]

    @vyre.device
    def first(x: In[u32]) -> u32:
        return x[0]

    with pytest.raises(
        KernelError,
        match=r"`x` is declared In\[u32, D2\], and this one has no rank.*\n.*\n.*\n?.*Fix: declare x: In\[u32\]",
    ):

        @vyre.kernel
        def flat(x: In[u32], out: Out[u32]):
            out[gid.x] = at(x, gid.x)

    with pytest.raises(KernelError, match=r"`x` is declared In\[u32\], and this one has 2 axes"):

        @vyre.kernel
        def plane(x: In[u32, D2], out: Out[u32]):
            out[gid.x] = first(x)


def run(kernel, *args, n):
    return kernel.on("reference")(*args, sizes={"out": n}, domain=n).tolist()


@vyre.kernel
def counted(n: u32, out: Out[u32]):
    if gid.x == 0:
        for i in range(n - 1):
            out[0] = i + 1
        for i in range(1, n - 2):
            out[1] = i + 1
        for i in range(n - 1, 0, -1):
            out[2] = i + 1
        for i in range(n - 3, -1, -1):
            out[3] = i + 1
        for i in range(n - 3, 1, -2):
            out[4] = i + 1
        for i in range(max(n, 2) - 2, n):
            out[5] = i + 1
        turns: u32 = 0
        for i in range(i32(n) - 5, i32(n)):
            turns += 1
            if i < 0:
                out[6] = turns
        out[7] = turns


def python(n):
    out = [0] * 8
    loops = [
        range(n - 1),
        range(1, n - 2),
        range(n - 1, 0, -1),
        range(n - 3, -1, -1),
        range(n - 3, 1, -2),
        range(max(n, 2) - 2, n),
    ]
    for k, turns in enumerate(loops):
        for i in turns:
            out[k] = i + 1
    out[6], out[7] = sum(i < 0 for i in range(n - 5, n)), 5
    return out


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 9])
def test_ranges_that_end_below_zero_have_the_turns_of_python(n):
    assert run(counted, n, n=8) == python(n)


@vyre.kernel
def known(x: In[u32, D2], out: Out[u32]):
    m = 3
    out[0] = x[m - 3, 0] + x[0, 2] * 10 + x[1, m - 2] * 100


def test_indices_known_while_compiling():
    x = np.arange(6, dtype=np.uint32).reshape(2, 3) + 1
    assert run(known, x, n=1) == [1 + 30 + 500]
    assert "0 *" not in str(known.program)


@pytest.mark.parametrize(
    "start",
    ["gid.x - gid.x % 4", "gid.x - (gid.x & 3)", "gid.x + 63 - lid.x", "max(gid.x, 5) - 3", "gid.x - min(gid.x, 7)"],
)
def test_a_loop_may_begin_at_a_difference_that_is_never_below_zero(start):
    body = f"for i in range({start}, len(x)):\n        out[i] = x[i] + x[({start}) % len(x)]"
    source = f"def k(x: In[u32], out: Out[u32]):\n    {body}"
    assert lid is not None  # which the kernels name
    assert "for i in" in str(vyre.kernel(workgroup=64, source=source).program)

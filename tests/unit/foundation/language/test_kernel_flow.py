"""Control flow of kernels against Python itself: names that outlive branches, long flat code, early returns, ranges."""

from __future__ import annotations

import linecache
from itertools import islice

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, bf16, bool_, const, device, f16, f32, f64, gid, i32, static_range, u8, u32
from vyre.backends import reference
from vyre.foundation.ir.nodes import Assign, If, Let, Loop, Region
from vyre.foundation.ir.visit import walk_nodes
from vyre.foundation.language.kernel import build_program, read_source

NAMES = {
    "In": In, "Out": Out, "InOut": InOut, "u32": u32, "i32": i32, "f32": f32, "f64": f64, "u8": u8, "f16": f16,
    "bf16": bf16, "bool_": bool_, "const": const, "static_range": static_range, "vyre": vyre, "gid": gid,
}  # fmt: skip
counter = iter(range(1 << 30))


def define(source: str, **names: object) -> dict:
    filename = f"<flow {next(counter)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope = {**NAMES, **names}
    exec(compile(source, filename, "exec"), scope)
    return scope


def program_of(source: str, **names: object) -> vyre.Program:
    return build_program(read_source(define(source, **names)["k"], 1), {})


def results(program: vyre.Program, *inputs: np.ndarray, sizes: int = 8, dtype: type = np.uint32) -> list:
    """The last output, which both engines agree on."""
    found = []
    for engine in ("scalar", "numpy"):
        done = reference.run(program, inputs, grid=(1, 1, 1), output_elements={"out": sizes}, engine=engine)
        found.append(np.frombuffer(bytes(done.outputs[-1]), dtype).tolist())
    assert found[0] == found[1]
    return found[0]


def body(text: str, *, head: str = "def k(x: In[u32], out: Out[u32]):") -> str:
    return f"{head}\n" + "".join(f"    {line}\n" for line in text.strip("\n").split("\n"))


def agrees_with_python(text: str, *values: int, helper: str = "") -> None:
    """A kernel over single elements of `x` writes what the same source writes in Python."""
    source = body(text)
    names: dict = {}
    if helper:
        plain = define(helper)["helper"]
        names = {"helper": device(plain)}
    program = program_of(source, **names)
    python = define(source, static_range=range, u32=int, f32=float, **({"helper": plain} if helper else {}))["k"]
    for value in values:
        want = [0] * 8
        python([value], want)
        assert results(program, np.array([value], np.uint32)) == want, value


# ---- names that outlive branches ------------------------------------------------------------------------------------

JOINS = {
    "if and else": """
if x[0] > 5:
    v = x[0] * 2
else:
    v = 7
out[0] = v""",
    "elif": """
if x[0] > 5:
    v = 1
elif x[0] > 3:
    v, w = 2, 9
elif x[0] > 2:
    v = 3
else:
    v = 4
out[0] = v""",
    "nested": """
n = x[0]
if n > 5:
    if n > 8:
        v = 1
        w = 2
    else:
        v = w = 3
        v += 1
    out[1] = v + w
else:
    w = 5
    if n > 1:
        v = w
    else:
        v = 6
out[0] = v * 10 + w""",
    "several types": """
if x[0] > 5:
    v, c, t = 1.5, True, x[0]
else:
    v, c, t = 2, x[0] > 3, 4
out[0] = u32(v * 2.0)
out[1] = 1 if c else 0
out[2] = t""",
    "an arm that returns": """
if x[0] > 5:
    v = 3
else:
    out[1] = 9
    return
out[0] = v""",
    "an arm that continues, one that breaks": """
for i in range(8):
    if i == x[0]:
        continue
    elif i > x[0] + 2:
        break
    elif i % 2 == 0:
        v = i * 3
    else:
        w = i
        v = w + 1
    out[i] = v""",
    "an inner jump before the value": """
for i in range(6):
    if i > 2:
        if x[0] == i:
            continue
        v = i
    else:
        v = 50
    out[i] = v""",
    "a helper call in a branch": """
if x[0] > 5:
    v = max(x[0], 9)
else:
    v = min(x[0], 2)
v += 1
out[0] = v""",
    "a name written again before it is read": """
if x[0] > 5:
    t = 1
    out[0] = t
else:
    t = 2
    out[1] = t
if x[0] > 3:
    t = 2.5
    out[2] = u32(t * 2.0)
else:
    t = 3.5
    out[3] = u32(t * 2.0)
for t in range(2):
    out[4 + t] = t""",
    "in an unrolled loop": """
for i in static_range(4):
    if x[0] > i:
        v = i
    else:
        v = i * 10
    out[i] = v""",
    "in a while": """
n = x[0]
while n > 0:
    if n % 2 == 0:
        s = 1
    else:
        s = 3
    n -= min(n, s)
    out[0] = n
    out[1] = s""",
}


@pytest.mark.parametrize("text", JOINS.values(), ids=JOINS)
def test_a_name_that_every_arm_assigns_is_known_behind_the_branch(text):
    agrees_with_python(text, *range(12))


def test_only_names_that_are_read_later_are_declared_before_the_branch():
    used = program_of(body("if x[0] > 1:\n    v = 1\nelse:\n    v = 2\nout[0] = v"))
    unused = program_of(body("if x[0] > 1:\n    v = 1\n    out[0] = v\nelse:\n    v = 2\n    out[1] = v"))
    assert [type(n) for n in walk_nodes(used.entry)][:3] == [Region, Let, If]
    assert [type(n) for n in walk_nodes(unused.entry)][:2] == [Region, If]


def test_narrow_types_and_bools_join_too():
    head = "def k(x: In[u32], b: In[u8], out: Out[u8]):"
    program = program_of(body("if x[0] > 1:\n    v = b[0]\nelse:\n    v = b[1]\nout[0] = v", head=head))
    for value in (0, 5):
        got = results(program, np.array([value], np.uint32), np.array([7, 250], np.uint8), sizes=1, dtype=np.uint8)
        assert got == [7 if value > 1 else 250]


# ---- helpers that return on some paths ------------------------------------------------------------------------------

HELPERS = {
    "inside a nested branch": """
def helper(n):
    if n > 2:
        if n > 5:
            return n * 2
        n += 100
    return n + 1
""",
    "several in a row": """
def helper(n):
    m = n * 3
    if n > 2:
        if n == 4:
            return 1000
        if n > 8:
            if n % 2 == 0:
                return m
            m += 5
        m += 1
    if m % 2 == 0:
        if n == 2:
            return 77
    return m
""",
    "with names from branches": """
def helper(n):
    if n > 3:
        if n > 9:
            return 5
        a = n
    else:
        a = 9
    return a + 1
""",
}


@pytest.mark.parametrize("helper", HELPERS.values(), ids=HELPERS)
def test_helpers_may_return_on_some_paths_of_a_branch(helper):
    agrees_with_python("out[0] = helper(x[0]) + helper(x[0] + 3)", *range(14), helper=helper)


def test_a_helper_without_a_value_may_return_on_some_paths():
    inner = "        if n > 5:\n            return\n        out[1] = n\n"
    helper = f"def helper(out, n):\n    if n > 2:\n{inner}    out[0] = 8\n"
    agrees_with_python("helper(out, x[0])", 1, 4, 9, helper=helper)


def test_a_helper_with_a_hundred_early_returns():
    guards = "".join(f"    if n == {k}:\n        return m + {k * k}\n    m += n % 3\n" for k in range(100))
    agrees_with_python(
        "out[0] = helper(x[0])", 0, 1, 57, 99, 100, helper=f"def helper(n):\n    m = n\n{guards}    return m\n"
    )


RETURNS = {
    "in the first turn": """
for i in static_range(3):
    out[i] = x[0] + 1
    return
out[7] = 9""",
    "in a turn that is known": """
for i in static_range(5):
    if i == 2:
        return
    out[i] = x[0] + i
out[7] = 9""",
    "in no turn": """
for i in static_range(0):
    return
out[7] = x[0]""",
    "of two loops": """
for i in static_range(2):
    out[i] = 3
    for j in static_range(2):
        out[2 + j] = x[0]
        return
    out[6] = 1
out[7] = 9""",
    "behind jumps": """
for i in static_range(4):
    if x[0] == i:
        continue
    if x[0] == i + 3:
        break
    out[i] = 5
    return
out[7] = 9""",
    "on both sides": """
for i in static_range(3):
    out[i] = 4
    if x[0] > 2:
        return
    else:
        out[4] = i
        return
out[7] = 9""",
    "on one side": """
for i in static_range(3):
    out[i] = 4
    if x[0] > i:
        return
    out[i + 3] = 2
out[7] = 9""",
    "inside a branch and a loop": """
for k in range(x[0]):
    if k == 2:
        for i in static_range(3):
            out[i] = k
            return
    out[5] = k + 1
out[7] = 9""",
}


@pytest.mark.parametrize("text", RETURNS.values(), ids=RETURNS)
def test_a_kernel_returns_from_an_unrolled_loop(text):
    agrees_with_python(text, *range(6))


# ---- long flat code -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["and", "or"])
def test_a_condition_of_a_thousand_parts(word):
    parts = f" {word} ".join(f"x[0] {'!=' if word == 'and' else '=='} {k}" for k in range(0, 2000, 2))
    agrees_with_python(f"out[0] = 1 if {parts} else 2", 0, 1, 998, 1998, 1999, 2000)


def test_a_comparison_of_two_hundred_parts():
    parts = " <= ".join(f"x[0] + {k}" for k in range(200))
    agrees_with_python(f"out[0] = 1 if {parts} else 2\nout[1] = 1 if {parts} < 205 else 2", 0, 3, 5, 6)


def test_the_operands_of_a_comparison_are_computed_once():
    program = program_of("def k(io: InOut[u32], out: Out[u32]):\n    out[0] = 1 if 0 < io[0] * io[1] < 9 else 0\n")
    assert str(program).count("io[0]") == 1


@pytest.mark.parametrize("name", ["min", "max"])
def test_two_hundred_arguments(name):
    parts = ", ".join(f"x[0] * {k} % 251" for k in range(1, 200))
    agrees_with_python(f"out[0] = {name}({parts})", 0, 1, 77)


def test_a_hundred_conditional_expressions_in_a_row():
    chain = " else ".join(f"x[0] + {k * k} if x[0] == {k}" for k in range(100))
    agrees_with_python(f"out[0] = {chain} else 5\nv = {chain} else 0\nout[1] = v", 0, 1, 23, 24, 25, 98, 99, 100)


def test_a_chain_of_conditional_expressions_has_one_type():
    agrees_with_python("v = 1.5 if x[0] > 3 else 2 if x[0] > 2 else 3\nout[0] = u32(v * 2.0)", 1, 3, 5)


def chain_of_elifs(count: int, line: str) -> str:
    arms = [f"{'el' if k else ''}if x[0] == {k}:\n    {line.format(k=k)}" for k in range(count)]
    return "\n".join(arms) + "\nelse:\n    out[2] = 1\n    v = 3"


@pytest.mark.parametrize("count", [2, 15, 16, 17, 33, 300])
def test_long_chains_of_elif(count):
    text = "out[1] = 4\n" + chain_of_elifs(count, "v = {k} * 7") + "\nout[0] = v"
    agrees_with_python(text, 0, 1, 15, 16, 17, count - 1, count)


def test_long_chains_of_elif_with_jumps():
    chain = chain_of_elifs(40, "v = {k} * 7").replace("v = 20 * 7", "break").replace("v = 30 * 7", "continue")
    loop = "for i in range(4):\n" + "".join(f"    {line}\n" for line in chain.split("\n"))
    agrees_with_python(f"{loop}    out[i + 3] = v\nout[0] = 5", 0, 16, 20, 30, 39, 40)


def test_long_chains_of_elif_in_a_helper():
    arms = "".join(f"    {'el' if k else ''}if n == {k}:\n        return {k * k}\n" for k in range(60))
    agrees_with_python("out[0] = helper(x[0])", 0, 17, 59, 60, helper=f"def helper(n):\n{arms}    return n + 1\n")
    agrees_with_python(
        "out[0] = helper(x[0])", 0, 59, 60, helper=f"def helper(n):\n{arms}    else:\n        return 2\n"
    )


@pytest.mark.parametrize("count", [3, 8, 9, 100])
@pytest.mark.parametrize("loop", ["for i in range(3):", "while i < 3:", "for i in static_range(3):"])
def test_many_guards_in_one_loop(count, loop):
    lines = ["i = 0"] if "while" in loop else []
    lines += [loop] + (["    i += 1"] if "while" in loop else []) + ["    t = i + x[0]"]
    for k in range(count):
        lines.append(f"    if t == {2 * k}:")
        lines.append(f"        {'break' if k % 3 == 1 else 'continue'}")
        lines.append(f"    u{k % 4} = t % {k + 2}")
        lines.append(f"    t += u{k % 4} + 1")
        lines.append(f"    out[{k % 8}] = t")
    agrees_with_python("\n".join(lines), 0, 1, 2, 5, 12)


def test_flat_code_stays_flat():
    lines = ["for i in range(3):"] + [f"    if x[i] == {k}:\n        break\n    out[{k}] = 1" for k in range(200)]
    program = program_of(body("\n".join(lines)))
    assert vyre.validate(program) == []


# ---- ranges ---------------------------------------------------------------------------------------------------------


def visits(range_text: str, *numbers: int, dtype: str = "u32", first: int = 4) -> list[int]:
    """What a loop's variable is in its first turns."""
    source = body(
        f"n, m, s = x[0], x[1], x[2]\ncount = 0\nfor i in range({range_text}):\n"
        f"    if count == {first}:\n        break\n"
        "    out[count] = u32(i)\n    count += 1\nout[7] = count",
        head=f"def k(x: In[{dtype}], out: Out[u32]):",
    )
    data = np.array([*numbers, 0, 0, 0][:3], np.uint32 if dtype == "u32" else np.int32)
    got = results(program_of(source), data)
    return [v if dtype == "u32" or v < 1 << 31 else v - (1 << 32) for v in got[: got[7]]]


TOP = 0xFFFFFFFF


@pytest.mark.parametrize(
    "text, numbers, want",
    [
        ("n, -1, -1", (TOP,), [TOP, TOP - 1, TOP - 2, TOP - 3]),
        ("n, -1, -1", (2,), [2, 1, 0]),
        ("n, -1, -1", (0,), [0]),
        ("n, -1, -2", (TOP,), [TOP, TOP - 2, TOP - 4, TOP - 6]),
        ("n, -1, -2", (5,), [5, 3, 1]),
        ("n, -1, -2", (4,), [4, 2, 0]),
        ("n, -1, -4294967295", (TOP,), [TOP, 0]),
        ("n, -1, -4294967295", (TOP - 1,), [TOP - 1]),
        ("n - 1, -1, -1", (0,), []),
        ("n - 1, -1, -1", (3,), [2, 1, 0]),
        ("n - 1, -1, -2", (0,), []),
        ("n - 1, -1, -2", (4,), [3, 1]),
        ("n, m", (TOP - 1, TOP), [TOP - 1]),
        ("n, m, 2", (TOP - 2, TOP), [TOP - 2]),
        ("n, m, 4294967295", (0, TOP), [0]),
        ("n, m, -1", (TOP, 0), [TOP, TOP - 1, TOP - 2, TOP - 3]),
        ("n, m, s", (1, TOP, 0x80000000), [1, 0x80000001]),
        ("n, m, s", (0, TOP, TOP), [0]),
        ("n, m, s", (0, TOP, 0), []),
    ],
)
def test_ranges_of_u32_at_their_edges(text, numbers, want):
    assert visits(text, *numbers) == want


LOW, HIGH = -(1 << 31), (1 << 31) - 1


@pytest.mark.parametrize(
    "text, numbers, want",
    [
        ("n, m", (LOW, HIGH), [LOW, LOW + 1, LOW + 2, LOW + 3]),
        ("n, m, -1", (HIGH, LOW), [HIGH, HIGH - 1, HIGH - 2, HIGH - 3]),
        ("n, m, 2147483647", (LOW, HIGH), [LOW, -1, HIGH - 1]),
        ("n, m, -4294967295", (HIGH, LOW), [HIGH]),
        ("n, m, s", (LOW, HIGH, HIGH), [LOW, -1, HIGH - 1]),
        ("n, m, s", (HIGH, LOW, LOW), [HIGH, -1]),
        ("n, m, s", (5, -5, -4), [5, 1, -3]),
        ("n, m, s", (5, -5, 4), []),
        ("n, m, s", (5, -5, 0), []),
        ("n, -1, -1", (2,), [2, 1, 0]),
    ],
)
def test_ranges_of_i32_at_their_edges(text, numbers, want):
    assert visits(text, *numbers, dtype="i32") == want
    bounds = eval(f"[{text}]", dict(zip("nms", numbers, strict=False)))
    if 0 not in bounds[2:]:  # Python refuses a step of 0, a kernel does nothing
        assert want == list(islice(range(*bounds), 4))


@pytest.mark.parametrize("text", ["-2, 1 << 30, 1 << 30", "5, -6, -5", "3, 3", "7, 8, 1 << 40", "-1, 0, 1 << 40"])
def test_ranges_of_numbers_known_while_compiling(text):
    want = list(range(*eval(f"[{text}]")))
    dtype = "i32" if min(want, default=0) < 0 else "u32"
    assert visits(text, dtype=dtype) == want


@pytest.mark.parametrize("text", ["m - 1, -1, -1", "m, -1, -1", "m, -1, -2", "m, 0, -1", "1, m, 2", "m, 9, m"])
def test_the_bounds_of_a_range_are_computed_once(text):
    turn = "    m = i * 3 + 1\n    out[count % 7] = i\n    count += 1\n"
    agrees_with_python(f"m = x[0] + 1\ncount = 0\nfor i in range({text}):\n{turn}out[7] = count", 0, 1, 5)


def test_barriers_in_uniform_chains_guards_and_ranges():
    arms = "".join(f"    {'el' if k else ''}if n == {k}:\n        barrier()\n" for k in range(40))
    guards = "".join(f"        if n == {k}:\n            break\n        barrier()\n" for k in range(20))
    loop = f"    for i in range(n, -1, -1):\n        barrier()\n{guards}"
    source = f"def k(n: u32, out: Out[u32]):\n{arms}{loop}    out[0] = 1\n"
    assert vyre.validate(program_of(source, barrier=vyre.barrier)) == []


def test_helpers_whose_numbers_take_their_type_from_a_later_return():
    helper = (
        "def helper(n):\n    if n > 2:\n        if n > 5:\n            return 1\n        n += 1\n    return n * 0.5\n"
    )
    agrees_with_python("out[0] = u32(helper(f32(x[0])) * 4.0)", 1, 4, 8, helper=helper)


# ---- conversions ----------------------------------------------------------------------------------------------------


def bits(expression: str, t: str, *inputs: np.ndarray, head: str) -> int:
    program = program_of(f"def k({head}, out: Out[{t}]):\n    out[0] = {expression}\n")
    return results(program, *inputs, sizes=1, dtype=np.uint16)[0]


@pytest.mark.parametrize(
    "number, half, brain",
    [
        (1 + 2.0**-11, 0x3C00, 0x3F80),
        (1 + 2.0**-11 + 2.0**-40, 0x3C01, 0x3F80),  # through f32 this is a tie
        (1 + 2.0**-8, 0x3C04, 0x3F80),
        (1 + 2.0**-8 + 2.0**-40, 0x3C04, 0x3F81),
        (1 + 3 * 2.0**-8, 0x3C0C, 0x3F82),
        (1 + 3 * 2.0**-8 - 2.0**-40, 0x3C0C, 0x3F81),
        (-(2.0**-14) * 2.0**-10, 0x8001, 0xB380),
        (2.0**-127, 0, 0),
        (-(2.0**-127), 0x8000, 0x8000),
        (2.0**-126, 0, 0x0080),
        (2.0**-126 * (1 - 2.0**-10), 0, 0x0080),
        (float("inf"), 0x7C00, 0x7F80),
        ((1 << 60) + (1 << 52) + 1, None, 0x5D81),
        ((1 << 60) + (1 << 52), None, 0x5D80),
        (-(1 << 60) - (1 << 52) - 1, None, 0xDD81),
    ],
)
def test_literals_of_the_half_floats_are_rounded_once(number, half, brain):
    text = "vyre_inf" if number == float("inf") else repr(number)
    source = "def k(x: In[u32], out: Out[{t}]):\n    out[0] = {t}({n})\n"
    for t, want in (("f16", half), ("bf16", brain)):
        if want is not None:
            program = program_of(source.format(t=t, n=text), vyre_inf=number)
            assert results(program, np.zeros(1, np.uint32), sizes=1, dtype=np.uint16) == [want]


@pytest.mark.parametrize("value", [0, 2047, 2049, 65503, 65519, 65520, (1 << 24) + 1, 0xFFFFFFFF])
def test_integers_become_f16_by_one_rounding(value):
    with np.errstate(over="ignore"):
        want = int(np.float64(value).astype(np.float16).view(np.uint16))
    assert bits("f16(x[0])", "f16", np.array([value], np.uint32), head="x: In[u32]") == want


@pytest.mark.parametrize(
    "source, middle", [("u8", "b[0]"), ("f16", "f16(b[0])"), ("f32", "f32(b[0])"), ("bool_", "b[0] > 1")]
)
def test_conversions_to_bf16_that_round_once_need_no_middle(source, middle):
    want = {"bool_": 0x3F80}.get(source, 0x437B)
    assert bits(f"bf16({middle})", "bf16", np.array([251], np.uint8), head="b: In[u8]") == want


def test_the_explicit_way_through_f32_is_open():
    assert bits("bf16(f32(x[0]))", "bf16", np.array([257], np.uint32), head="x: In[u32]") == 0x4380
    assert bits("bf16(f32(f64(x[0])))", "bf16", np.array([257], np.uint32), head="x: In[u32]") == 0x4380


@pytest.mark.parametrize("value", [np.bool_(True), np.False_])
def test_a_bool_of_numpy_is_a_bool(value):
    program = program_of("def k(out: Out[bool_]):\n    out[0] = FLAG\n", FLAG=value)
    assert results(program, sizes=1) == [int(value)]


def test_joined_names_are_assigned_in_the_arms():
    program = program_of(body("if x[0] > 1:\n    v = 1\nelse:\n    v = 2\nout[0] = v"))
    assert sum(isinstance(n, Assign) for n in walk_nodes(program.entry)) == 2
    assert not any(isinstance(n, Loop) for n in walk_nodes(program.entry))


THROWN_AWAY = {
    "in nested loops": "for _ in range(3):\n    for _ in range(2):\n        total += x[0]",
    "of several types": "_, a = 1, x[0]\n_, b = 2.5, x[0]\ntotal = a + b",
    "the name of the loop": "for _ in range(3):\n    a, _ = helper(x[0])\n    _, b = helper(a)\n    total += a + b",
    "in unrolled loops": "for _ in static_range(3):\n    for _, b in ((1, 2), (3, 4)):\n        total += b",
    "read": "_ = x[0]\n_ += 1\ntotal = _",
}


@pytest.mark.parametrize("text", THROWN_AWAY.values(), ids=THROWN_AWAY)
def test_an_underscore_that_nobody_reads_is_no_name(text):
    source = f"total = 0\n{text}\nout[1] = total"
    agrees_with_python(source, 0, 1, 7, helper="def helper(n):\n    return n + 1, n * 2\n")


def test_what_an_underscore_gets_is_still_computed():
    head = "def k(x: In[u32], out: InOut[u32]):"
    program = program_of(body("for _ in range(3):\n    _ = vyre.atomic_add(out, 0, 2)", head=head))
    done = reference.run(program, [np.zeros(1, np.uint32), np.ones(1, np.uint32)], grid=(1, 1, 1))
    assert int.from_bytes(bytes(done.outputs[0]), "little") == 7


def test_an_underscore_that_is_read_is_a_name():
    with pytest.raises(vyre.KernelError, match="`_` is a loop variable and cannot be assigned"):
        program_of(body("for _ in range(3):\n    out[0] = _\n    _ = 1"))

"""`check_races=True` and `step` of a call: both ask the reference, over the data of the call."""

import array
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import vyre
from vyre import (
    In,
    InOut,
    Out,
    RaceDetected,
    Uniform,
    atomic_add,
    barrier,
    bool_,
    const,
    f32,
    f64,
    gid,
    grid_sync,
    i32,
    lid,
    local,
    shared,
    u32,
    vec3,
    wg,
)

SOURCE = Path(__file__).read_text("utf-8").splitlines()


def line_of(text):
    (found,) = [k for k, line in enumerate(SOURCE, 1) if line.strip() == text]
    return found


# ---- races -----------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=4)
def shift(x: InOut[u32]):
    if gid.x + 1 < len(x):
        x[gid.x] = x[gid.x + 1]


@vyre.kernel(workgroup=8)
def scatter(at: In[u32], out: InOut[f32], scale: f32 = 2.0, *, base: const = 0):
    if gid.x < len(at):
        out[at[gid.x]] = f32(gid.x + base) * scale


APART, TWICE = np.array([3, 1, 0, 2], np.uint32), np.array([3, 1, 3, 2], np.uint32)


@pytest.mark.parametrize("name", [None, "reference", "cpu", "opencl", "wgpu"])
def test_a_race_is_raised_with_both_lines_before_anything_is_written(name):
    x = np.arange(9, dtype=np.uint32)
    kernel = shift if name is None else shift.on(name)
    try:
        with pytest.raises(RaceDetected) as caught:
            kernel(x, check_races=True)
    except vyre.BackendUnavailable as e:
        pytest.skip(str(e))
    line = line_of("x[gid.x] = x[gid.x + 1]")
    first, *sides = caught.value.message.splitlines()
    assert first.startswith("race on x[")
    assert [side.split()[0] for side in sides] == ["load", "store"]
    assert all(f"{__file__}:{line}: x[gid.x] = x[gid.x + 1]" in side for side in sides)
    assert "barrier" in caught.value.fix
    assert x.tolist() == list(range(9))


def test_it_is_the_data_of_the_call_that_decides():
    out = scatter(APART, np.zeros(4, np.float32), check_races=True)
    assert out.tolist() == [4.0, 2.0, 6.0, 0.0]
    with pytest.raises(RaceDetected, match=r"race on out\[3\]"):
        scatter(TWICE, np.zeros(4, np.float32), check_races=True)


@dataclass
class Shown:
    array: np.ndarray

    def __array__(self, dtype=None, copy=None):
        return self.array


FORMS = {
    "by position": lambda at: scatter(at, np.zeros(4, np.float32), 3.0, check_races=True),
    "by name": lambda at: scatter(out=np.zeros(4, np.float32), scale=3.0, at=at, check_races=True),
    "another constant": lambda at: scatter(at, np.zeros(4, np.float32), base=1, check_races=True),
    "more invocations": lambda at: scatter(at, np.zeros(4, np.float32), domain=4, check_races=True),
    "a grid": lambda at: scatter(at, np.zeros(4, np.float32), grid=(2, 1), check_races=True),
    "a buffer": lambda at: scatter(memoryview(at), array.array("f", [0.0] * 4), check_races=True),
    "an object that shows an array": lambda at: scatter(Shown(at), np.zeros(4, np.float32), check_races=True),
    "strides": lambda at: scatter(np.repeat(at, 2)[::2], np.zeros(4, np.float32), check_races=True),
    "the other byte order": lambda at: scatter(at.astype(">u4"), np.zeros(4, np.float32), check_races=True),
    "a config": lambda at: scatter(
        at, np.zeros(4, np.float32), config=vyre.DispatchConfig(timeout=60.0, label="job"), check_races=True
    ),
    "on a device": lambda at: scatter(vyre.to_device(at, "cpu"), np.zeros(4, np.float32), check_races=True),
}


@pytest.mark.parametrize("call", FORMS.values(), ids=FORMS)
def test_it_works_with_every_form_of_argument(call):
    call(APART)
    with pytest.raises(RaceDetected, match=r"race on out\[3\]"):
        call(TWICE)


@vyre.kernel(workgroup=8)
def flags(on: In[bool_], table: Uniform[f32, 2], out: Out[bool_], sums: Out[f32, 2]):
    i = gid.x
    if i < len(on):
        out[i] = not on[i]
        if on[i]:
            sums[wg.x] = table[1]


def test_outputs_bools_and_tables():
    on = np.array([True, False, False])
    out, sums = flags(on, np.array([1, 2], np.float32), check_races=True)
    assert out.tolist() == [False, True, True]
    assert sums.tolist() == [2.0, 0.0]
    with pytest.raises(RaceDetected, match=r"race on sums\[0\]"):
        flags(np.array([True, False, True]), np.array([1, 2], np.float32), check_races=True)


def test_a_sized_output():
    @vyre.kernel(workgroup=4)
    def last(out: Out[u32]):
        out[gid.x // 2] = gid.x

    with pytest.raises(RaceDetected, match=r"race on out\[0\]"):
        last(sizes={"out": 4}, domain=8, check_races=True)


def test_atomics_of_one_kind_do_not_race():
    @vyre.kernel
    def count(x: In[u32], bins: InOut[u32]):
        if gid.x < len(x):
            atomic_add(bins, x[gid.x] % 4, 1)

    x = np.arange(500, dtype=np.uint32)
    assert count(x, np.zeros(4, np.uint32), check_races=True).tolist() == [125] * 4


def test_a_missing_barrier_is_found():
    def mirrored(wait):
        @vyre.kernel(workgroup=8)
        def k(x: InOut[u32], *, waits: const = wait):
            tile = shared(u32, 8)
            tile[lid.x] = x[gid.x]
            if waits:
                barrier()
            x[gid.x] = tile[7 - lid.x]

        return k

    assert mirrored(True)(np.arange(8, dtype=np.uint32), check_races=True).tolist() == list(range(8))[::-1]
    with pytest.raises(RaceDetected, match="race on tile"):
        mirrored(False)(np.arange(8, dtype=np.uint32), check_races=True)


def test_a_trap_is_raised_where_there_is_no_race():
    @vyre.kernel
    def k(x: InOut[u32]):
        if gid.x < len(x):
            assert x[gid.x] < 9, "small"
            x[gid.x] = x[gid.x] + 1

    with pytest.raises(vyre.Trap, match="small"):
        k(np.array([9], np.uint32), check_races=True)
    assert k(np.array([8], np.uint32), check_races=True).tolist() == [9]


def test_a_call_over_nothing_has_no_race():
    assert shift(np.zeros(0, np.uint32), check_races=True).tolist() == []


@pytest.mark.parametrize("asked", [None, 1, "yes"])
def test_it_is_true_or_false(asked):
    with pytest.raises(vyre.ArgumentTypeError, match="check_races is") as caught:
        shift(np.zeros(4, np.uint32), check_races=asked)
    assert "check_races=True" in caught.value.fix


@pytest.mark.parametrize("name", ["check_races", "invocation", "vyre_print"])
def test_keywords_of_a_call_are_no_parameters(name):
    with pytest.raises(vyre.KernelError, match=name) as caught:
        vyre.kernel(source=f"def k({name}: InOut[u32]):\n    {name}[0] = 1")
    assert caught.value.fix == "choose another name"


# ---- in a sequence ---------------------------------------------------------------------------------------------------


@vyre.kernel
def small(x: InOut[u32]):
    if gid.x < len(x):
        assert x[gid.x] < 9, "less than nine"
        x[gid.x] = x[gid.x] + 1


@vyre.sequence
def twice(x):
    small(x)
    small(x)
    return x


def test_an_assert_in_a_sequence_says_its_line_when_recorded_and_when_repeated():
    line = line_of('assert x[gid.x] < 9, "less than nine"')
    place = f"{__file__}:{line}"
    for first in ([9], [1]):  # the first call is the one that is recorded
        made = vyre.sequence(twice.__wrapped__).on("cpu")
        if first == [1]:
            assert made(np.array(first, np.uint32)).tolist() == [3]
        for value in (8, 9):
            with pytest.raises(vyre.Trap) as caught:
                made(np.array([value], np.uint32))
            assert caught.value.message == f"{place}: assertion failed: less than nine"


WRONG_CALLS = {
    "check_races=True of a kernel call": lambda x: small(x, check_races=True),
    "step() of a kernel call": lambda x: small.step(x),
}


@pytest.mark.parametrize("what", WRONG_CALLS)
def test_a_sequence_has_no_look_at_the_data_of_one_call(what):
    made = vyre.sequence(lambda x: WRONG_CALLS[what](x))
    with pytest.raises(vyre.ArgumentTypeError) as caught:
        made.on("cpu")(np.zeros(4, np.uint32))
    assert caught.value.message.startswith(f"{what} while a sequence is recorded")
    assert caught.value.fix == "call the function itself: sequence.__wrapped__(...)"


# ---- steps -----------------------------------------------------------------------------------------------------------


@vyre.device
def blended(v: f32, w: f32) -> f32:
    low = min(v, w)
    high = max(v, w)
    return low * 0.25 + high * 0.75


@vyre.kernel(workgroup=4)
def smooth(x: In[f32], n: u32, out: Out[f32], *, passes: const = 2):
    tile = shared(f32, 4)
    i = gid.x
    tile[lid.x] = x[i]
    barrier()
    total = f32(0.0)
    for k in range(n):
        total += tile[(lid.x + k) % 4]
        if total > 100.0:
            break
    y = blended(total, 1.0)
    z = blended(y, 2.0)
    out[i] = y + z


X = np.arange(12, dtype=np.float32)


def test_every_line_is_seen_with_the_locals_before_it():
    seen = list(smooth.step(X, 2, invocation=(5, 0, 0)))
    assert {at.invocation for at in seen} == {(5, 0, 0)}
    assert {at.file for at in seen} == {__file__}
    assert all(at.text == SOURCE[at.line - 1].strip() for at in seen[:-1])
    lines = [at.line for at in seen]
    assert lines[:4] == [line_of("tile[lid.x] = x[i]") - 1 + k for k in (0, 1, 2, 3)]
    assert seen[0].locals == {"n": 2}
    assert seen[1].locals == {"n": 2, "i": 5}
    inside = [at for at in seen if at.line == line_of("total += tile[(lid.x + k) % 4]")]
    assert [(at.locals["k"], at.locals["total"]) for at in inside] == [(0, 0.0), (1, 5.0)]
    last = seen[-1]
    assert last.done
    assert not any(at.done for at in seen[:-1])
    assert last.locals["total"] == 5.0 + 6.0
    assert last.locals["y"] == 0.25 + 11.0 * 0.75
    assert last.line == line_of("out[i] = y + z")


def test_a_helper_sees_its_own_names():
    seen = list(smooth.step(X, 2, invocation=5))
    inside = [at for at in seen if at.line == line_of("high = max(v, w)")]
    assert [at.locals for at in inside] == [{"v": 11.0, "w": 1.0, "low": 1.0}, {"v": 8.5, "w": 2.0, "low": 2.0}]
    first = [at for at in seen if at.line == line_of("low = min(v, w)")]
    assert [sorted(at.locals) for at in first] == [["v", "w"], ["v", "w"]]


def test_what_it_steps_through_is_what_the_call_computes():
    wanted = smooth.on("cpu")(X, 3)
    for i in range(12):
        last = list(smooth.step(X, 3, invocation=i))[-1]
        assert np.float32(last.locals["y"]) + np.float32(last.locals["z"]) == wanted[i]


def test_the_arrays_of_the_caller_stay_as_they_are():
    x = np.arange(4, dtype=np.uint32)
    assert list(shift.step(x))
    assert x.tolist() == [0, 1, 2, 3]


def test_workgroups_before_it_have_run_where_that_can_matter():
    @vyre.kernel(workgroup=2)
    def ticket(count: InOut[u32], out: Out[u32]):
        mine = atomic_add(count, 0, 1)
        out[gid.x] = mine

    last = list(ticket.step(np.zeros(1, np.uint32), sizes={"out": 8}, domain=8, invocation=5))[-1]
    assert last.locals["mine"] == 5


def test_a_barrier_of_the_whole_grid():
    @vyre.kernel(workgroup=2)
    def reverse(x: In[u32], y: InOut[u32], out: Out[u32]):
        i = gid.x
        y[i] = x[i] * 10
        grid_sync()
        v = y[len(x) - 1 - i]
        out[i] = v

    x = np.arange(6, dtype=np.uint32)
    assert list(reverse.step(x, np.zeros(6, np.uint32), sizes={"out": 6}, invocation=1))[-1].locals == {"i": 1, "v": 40}


def test_a_while_loop_and_its_jumps():
    @vyre.kernel(workgroup=1)
    def collatz(n: u32, out: Out[u32, 1]):
        v = n + 0
        count = 0
        while v != 1:
            count += 1
            if v % 2 == 0:
                v = v // 2
                continue
            v = v * 3 + 1
        out[0] = count

    seen = list(collatz.step(6))
    assert seen[-1].locals["count"] == 8
    values = [at.locals["v"] for at in seen if at.text == "count += 1"]
    assert values == [6, 3, 10, 5, 16, 8, 4, 2]


def test_turns_of_a_loop_on_one_line_are_stops_of_their_own():
    @vyre.kernel(workgroup=1)
    def k(out: Out[u32, 1]):
        s = 0
        for j in range(3):
            s += j
        out[0] = s

    stops = [at for at in k.step() if "range" in at.text]
    assert [at.locals["s"] for at in stops[:1]] == [0]
    assert len(stops) >= 3


def test_locals_are_pythons_numbers():
    @vyre.kernel(workgroup=1)
    def k(flag: bool_, x: In[f64], out: Out[u32, 1]):
        a = x[0] * 2.0
        b = i32(-3)
        c = a > 1.0
        d = f32(0.1)
        out[0] = u32(c) + u32(b) + u32(d)

    last = list(k.step(True, np.array([1.25])))[-1].locals
    assert last == {"flag": True, "a": 2.5, "b": -3, "c": True, "d": float(np.float32(0.1))}
    assert [type(last[name]) for name in "abcd"] == [float, int, bool, float]
    assert type(last["flag"]) is bool


def test_functions_of_the_math_library_are_one_line():
    @vyre.kernel(workgroup=1)
    def k(x: In[f32], out: Out[f32, 1]):
        a = vyre.sin(x[0]) + vyre.exp(x[0])
        out[0] = a

    seen = list(k.step(np.array([0.5], np.float32)))
    assert [at.text for at in seen] == ["a = vyre.sin(x[0]) + vyre.exp(x[0])", "out[0] = a", ""]
    assert list(seen[-1].locals) == ["a"]


def test_an_assert_that_fails_is_raised_where_it_stands():
    @vyre.kernel
    def k(x: InOut[u32]):
        i = gid.x
        if i < len(x):
            assert x[i] < 9, "small"
            x[i] = 0

    seen = k.step(np.array([1, 9], np.uint32), invocation=1)
    lines = [next(seen).text for _ in range(3)]
    assert lines[-1] == 'assert x[i] < 9, "small"'
    with pytest.raises(vyre.Trap, match="small"):
        next(seen)


def test_a_program_without_a_source_shows_its_statements():
    kernel = vyre.Kernel.of_program(vyre.Program.from_wire(shift.program.to_wire()))
    seen = list(kernel.step(np.arange(4, dtype=np.uint32), invocation=1))
    assert [at.text for at in seen] == ["if gid.x + 1 < len(x)", "x[gid.x] = x[gid.x + 1]", ""]
    assert {(at.file, at.line) for at in seen} == {("", 0)}


def test_it_stops_when_the_reader_stops():
    endless = vyre.kernel(source="def k(x: InOut[u32]):\n    while x[0] < 1:\n        x[1] = x[1] + 1")
    seen = list(itertools.islice(endless.step(np.zeros(2, np.uint32), domain=1), 10))
    assert len(seen) == 10


def test_what_the_compiler_keeps_for_itself_is_not_shown():
    """It calls its own locals t, step, go and the like."""

    @vyre.kernel(workgroup=1)
    def k(x: In[u32], out: Out[u32, 1]):
        t = x[0] + 1
        t = max(t, 1) + min(t, 5, t * 2) + x[t]
        for step in range(3):
            if t > 100:
                break
            t += step
            if step == 1:
                continue
            t += 1
        out[0] = t

    seen = list(k.step(np.arange(4, dtype=np.uint32)))
    assert [at.locals.get("t") for at in seen if at.text == "if t > 100:"] == [3, 4, 5]
    assert seen[-1].locals == {"t": 8}
    assert all(set(at.locals) <= {"t", "step"} and at.locals.get("step") is not True for at in seen)


def test_the_lines_are_those_of_the_kernel_that_is_stepped_through():
    """Kernels that differ in their lines alone share their code."""
    text = "def k(x: InOut[u32]):\n    x[0] = x[0] + 1"
    for shift_by in (0, 7):
        kernel = vyre.kernel(source="\n" * shift_by + text)
        assert [at.line for at in kernel.step(np.zeros(1, np.uint32), domain=1)] == [shift_by + 2] * 2


def test_a_timeout_holds_for_the_look_at_races():
    endless = vyre.kernel(source="def k(x: InOut[u32]):\n    while x[0] < 1:\n        x[1] = x[1] + 1")
    with pytest.raises(vyre.DeadlineExceeded):
        endless(np.zeros(2, np.uint32), domain=1, config=vyre.DispatchConfig(timeout=0.05), check_races=True)


WRONG_STEPS = [
    ({"invocation": 12}, vyre.ArgumentValueError, "none of the 12 x 1 x 1", "pass a smaller one"),
    ({"invocation": (0, 1)}, vyre.ArgumentValueError, "none of the 12 x 1 x 1", "domain="),
    ({"invocation": -1}, vyre.ArgumentValueError, "none of the 12 x 1 x 1", "pass a smaller one"),
    ({"invocation": "3"}, vyre.ArgumentTypeError, "invocation is '3'", "invocation=(3, 0, 0)"),
    ({"invocation": 1.0}, vyre.ArgumentTypeError, "invocation is 1.0", "invocation=(3, 0, 0)"),
    ({"invocation": True}, vyre.ArgumentTypeError, "invocation is True", "invocation=(3, 0, 0)"),
    ({"invocation": (1, 2, 3, 4)}, vyre.ArgumentTypeError, "invocation is (1, 2, 3, 4)", "invocation=(3, 0, 0)"),
    ({"invocation": ()}, vyre.ArgumentTypeError, "invocation is ()", "invocation=(3, 0, 0)"),
]


@pytest.mark.parametrize("options, error, words, fix", WRONG_STEPS, ids=[str(w[0]["invocation"]) for w in WRONG_STEPS])
def test_a_wrong_invocation_is_refused_at_once(options, error, words, fix):
    with pytest.raises(error) as caught:
        smooth.step(X, 2, **options)
    assert words in caught.value.message
    assert fix in caught.value.fix


def test_a_call_that_runs_nothing_has_no_steps():
    with pytest.raises(vyre.ArgumentValueError, match="runs no invocation"):
        shift.step(np.zeros(0, np.uint32))


def test_an_invocation_may_be_numpys():
    assert next(smooth.step(X, 2, invocation=np.int64(3))).invocation == (3, 0, 0)


class Body(NamedTuple):
    position: vec3
    mass: f32


@vyre.device
def ordered(a: f32, b: f32):
    if a > b:
        return b, a
    return a, b


@vyre.device
def found_at(x: In[f32], v: f32):
    for i in range(len(x)):
        if x[i] == v:
            return i
    return len(x)


@vyre.device
def heavier(body: Body, by: f32):
    more = body.mass + by
    return body._replace(mass=more)


@vyre.kernel(workgroup=4)
def several(eye: vec3, x: In[f32], out: Out[f32]):
    few = local(f32, 3)
    many = local(u32, 20)
    rays = local(vec3, 2)
    v = vec3(x[gid.x], 2.0, 3.0) + eye
    few[1] = v.y
    for k in range(20):
        many[k] = gid.x * 100 + k
    rays[1] = v
    pair = ordered(v.x, 1.5)
    body = heavier(Body(v, 7.0), 1.0)
    at = found_at(x, 3.0)
    if gid.x > 1:
        side = 1
    else:
        side = 2
    out[gid.x] = few[1] + pair[0] + body.mass + f32(at) + f32(many[side]) + rays[1].x


SEVERAL = (0.0, 10.0, 0.0), np.array([1, 2, 3, 4], np.float32)


def test_small_values_and_local_arrays_are_shown_whole():
    *_, before, last = several.step(*SEVERAL, invocation=2)
    v = {"x": 3.0, "y": 12.0, "z": 3.0}
    assert last.locals == before.locals
    assert last.locals == {
        "eye": {"x": 0.0, "y": 10.0, "z": 0.0},
        "few": [0.0, 12.0, 0.0],
        "many": list(range(200, 220)),
        "rays": [{"x": 0.0, "y": 0.0, "z": 0.0}, v],
        "v": v,
        "pair": [1.5, 3.0],
        "body": {"position": v, "mass": 8.0},
        "at": 2,
        "side": 1,
    }
    (inside,) = [at for at in several.step(*SEVERAL, invocation=2) if at.text == "more = body.mass + by"]
    assert inside.locals == {"body": {"position": v, "mass": 7.0}, "by": 1.0}


def test_a_helper_may_call_its_parameter_as_its_caller_calls_the_result():
    @vyre.kernel
    def k(x: In[f32], out: Out[f32]):
        v = x[gid.x] + 5.0
        v = blended(v + 1.0, w=v)
        out[gid.x] = v

    seen = [(at.text, at.locals) for at in k.step(np.ones(1, np.float32))]
    assert ("high = max(v, w)", {"v": 7.0, "w": 6.0, "low": 6.0}) in seen
    calls = [found for text, found in seen if text == "v = blended(v + 1.0, w=v)"]
    assert calls == [{"v": 6.0}, {"v": 6.0}]


class Mixed(NamedTuple):
    n: u32
    at: vec3
    by: i32


def test_a_parameter_of_several_types_and_an_array_that_a_loop_makes():
    @vyre.kernel(workgroup=2)
    def k(m: Mixed, on: bool_, out: Out[u32]):
        for i in range(2):
            own = local(u32, 9)
            own[i + m.n] = i + 1
            out[gid.x] = own[1]

    seen = list(k.step(Mixed(1, (0.5, 1.5, 2.5), -2), True, sizes={"out": 2}, invocation=1))
    assert [at.line - seen[0].line for at in seen] == [0, 2, 3, 0, 2, 3, 0, 0]
    assert seen[0].locals == {"m": {"n": 1, "at": {"x": 0.5, "y": 1.5, "z": 2.5}, "by": -2}, "on": True}
    assert [at.locals["own"][:3] for at in seen if at.text == "out[gid.x] = own[1]"] == [[0, 1, 0], [0, 0, 2]]


def test_an_invocation_has_its_own_local_arrays():
    wanted = several.on("cpu")(*SEVERAL)
    for i in range(4):
        last = list(several.step(*SEVERAL, invocation=i))[-1].locals
        assert last["many"] == [100 * i + k for k in range(20)]
        parts = last["few"][1], last["pair"][0], last["body"]["mass"], last["at"], last["many"][last["side"]]
        assert sum(parts) + last["rays"][1]["x"] == wanted[i]


def test_helpers_with_several_returns_are_followed_line_by_line():
    lines = [at.line for at in several.step(*SEVERAL, invocation=2)]
    helper = line_of("if a > b:")
    assert [n for n in lines if helper - 2 < n <= helper + 2] == [helper, helper + 1]
    helper = line_of("if x[i] == v:")
    inside = [n - helper for n in lines if helper - 2 < n < helper + 3]
    assert inside[:7] == [-1, 0, -1, 0, -1, 0, 1]
    assert 2 not in inside


def test_a_name_of_several_arms_has_no_value_before_one_of_them():
    seen = {at.text: at.locals for at in several.step(*SEVERAL, invocation=2)}
    assert "side" not in seen["if gid.x > 1:"]
    assert "side" not in seen["side = 1"]


WANDERING = """
def k(x, out):
    s = 0
    for i in range(6):
        if i == x[0]:
            break
        if i == 1:
            continue
        for j in range(i):
            if j == 3:
                break
            s += j
        s += i
    while s < 10:
        s += x[1]
        if s == 7:
            continue
        if s > 8:
            break
    if s > 9:
        t = 1
    elif s > 5:
        t = 2
    else:
        t = 3
    out[0] = s + t
"""


@pytest.mark.parametrize("numbers", [(0, 2), (2, 1), (5, 9), (6, 3), (9, 4)])
def test_it_comes_to_the_lines_that_python_comes_to(numbers):
    scope = {}
    exec(compile(WANDERING, "<wandering>", "exec"), scope)
    wanted = []

    def trace(frame, event, _):
        if event == "line" and frame.f_code.co_filename == "<wandering>":
            wanted.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        scope["k"](numbers, [0])
    finally:
        sys.settrace(before)
    kernel = vyre.kernel(workgroup=1, source=WANDERING.replace("k(x, out)", "k(x: In[u32], out: Out[u32, 1])"))
    assert [at.line for at in kernel.step(np.array(numbers, np.uint32)) if not at.done] == wanted

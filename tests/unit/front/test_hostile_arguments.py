"""Whatever a caller passes, what comes back is a result or an error of ours that ends in a fix.

A call that Python itself refuses, since it has too many arguments or an unknown keyword, is a TypeError of Python.
"""

import copy
import enum
import inspect
import pickle
import re
from dataclasses import fields

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, Uniform, bool_, const, f32, gid, u32
from vyre.driver.contract.values import ResidentDispatchStep, ResidentReadRange
from vyre.driver.observe.spans import Spans
from vyre.driver.selection import registry
from vyre.errors import ArgumentTypeError, ArgumentValueError, DeadlineExceeded, UnsupportedFeature, VyreError, shown

from ..driver.settings.test_settings import backend as stub

JUNK = (
    None, True, -1, 0, 10**5000, -(10**5000), float("nan"), float("inf"), 1j, "x", "\0", "\ud800", b"x", [], [None], (),
    (1, 2), {}, {"x": 1}, {1}, object(), len, int, ..., np.zeros(3), np.float32(1), range(3),
)  # fmt: skip
ARITY = re.compile("abstract class|positional argument|unexpected keyword|keyword-only argument|no arguments")
X = np.arange(4, dtype=np.uint32)
F = X.astype(np.float32)


@vyre.kernel(workgroup=4)
def double(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 2


@vyre.kernel(workgroup=4)
def many(a: f32, n: u32, b: bool_, x: In[f32], y: InOut[u32], t: Uniform[f32, 2], out: Out[f32], *, k: const = 2):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * a + t[k % 2]


PROGRAM = double.program


def attempt(call, /, *args, **options):
    try:
        made = call(*args, **options)
        if isinstance(made, Spans):
            made.close()  # else it would be told of every dispatch from now on
    except VyreError as e:
        said = str(e)
    except TypeError as e:
        said = "Fix: " if ARITY.search(str(e)) else f"{type(e).__name__}: {e}"
    except Exception as e:
        said = f"{type(e).__name__}: {e}"
    else:
        return
    named = {name: shown(value) for name, value in options.items()}
    assert "Fix: " in said, (said, getattr(call, "__qualname__", call), tuple(map(shown, args)), named)


def sweep(call, /, *args, **options):
    """Call with one argument after the other replaced by everything that it is not."""
    attempt(call, *args, **options)
    for junk in JUNK:
        for k in range(len(args)):
            attempt(call, *args[:k], junk, *args[k + 1 :], **options)
        for name in options:
            attempt(call, *args, **{**options, name: junk})


def is_swept(name):
    found = getattr(vyre, name)
    is_enum = isinstance(found, type) and issubclass(found, enum.Enum)  # whose own errors are those of Python
    return callable(found) and not is_enum and not isinstance(found, vyre.DataType)


@pytest.mark.parametrize("name", [name for name in sorted(vyre._WHERE) if is_swept(name)])
def test_a_public_name_called_with_nonsense(name):
    found = getattr(vyre, name)
    attempt(found)
    for junk in JUNK:
        for count in (1, 2, 3):
            attempt(found, *[junk] * count)


def defaults(cls, of):
    return {name: getattr(of, name) for name in inspect.signature(cls).parameters}


BUFFER, CAPABILITY, CONFIG = PROGRAM.buffers[0], vyre.BackendCapability(), vyre.DispatchConfig()
CALLS = {
    "Program": lambda: sweep(vyre.Program, PROGRAM.buffers, (4, 1, 1), PROGRAM.entry, op_id=None, exclusive=False),
    "of_entry": lambda: sweep(vyre.Program.of_entry, PROGRAM.buffers, (4, 1, 1), PROGRAM.entry, op_id=None),
    "BufferDecl": lambda: sweep(vyre.BufferDecl, **defaults(vyre.BufferDecl, BUFFER)),
    "BufferDecl without kind": lambda: sweep(vyre.BufferDecl, "x", 0, BUFFER.access, u32),
    "BackendCapability": lambda: sweep(vyre.BackendCapability, **defaults(vyre.BackendCapability, CAPABILITY)),
    "DispatchConfig": lambda: sweep(vyre.DispatchConfig, **{f.name: getattr(CONFIG, f.name) for f in fields(CONFIG)}),
    "validate": lambda: sweep(vyre.validate, PROGRAM, None, allow_shadowing=False, fused=False),
    "validate limits": lambda: [attempt(vyre.validate, PROGRAM, limits=junk) for junk in JUNK],
    "compile": lambda: sweep(vyre.compile, PROGRAM, backend="reference", config=None),
    "select": lambda: sweep(vyre.select, PROGRAM),
    "acquire preferred": lambda: sweep(vyre.acquire_preferred_dispatch_backend, PROGRAM, allow_oracle=False),
    "empty": lambda: sweep(vyre.empty, (2,), np.float32, pinned_for=None),
    "empty of many": lambda: [attempt(vyre.empty, shape, "f4") for shape in ((1 << 62,), (1,) * 99, (1 << 40,) * 2)],
    "to_device": lambda: sweep(vyre.to_device, X, "cpu"),
    "parse": lambda: sweep(vyre.parse, str(PROGRAM)),
    "config": lambda: sweep(vyre.config, backend="cpu", shadow=0, strict=False, cache_dir="x", acquire_timeout=1),
    "kernel": lambda: sweep(vyre.kernel, workgroup=64),
    "Kernel": lambda: sweep(vyre.Kernel, double.__wrapped__, 64),
    "of_program": lambda: sweep(vyre.Kernel.of_program, PROGRAM, "name"),
    "on": lambda: sweep(double.on, "cpu"),
    "specialize": lambda: sweep(many.specialize, k=2),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_one_argument_that_is_nonsense(name):
    CALLS[name]()


@pytest.mark.parametrize("how", ["__call__", "start", "explain"])
def test_a_kernel_call_with_nonsense(how):
    sweep(getattr(double.on("reference"), how), X, grid=None, domain=None, sizes=None, config=None)
    sweep(getattr(double.on("reference"), how), x=X, domain=4, sizes={"out": 4}, out=None)
    if how == "__call__":
        sweep(many.on("reference"), 1.0, 1, True, F, X.copy(), F[:2], k=2, out=F.copy())


@pytest.fixture(scope="module", params=["reference", "cpu"])
def opened(request):
    with vyre.acquire(request.param) as found:
        yield found


OURS = ("inner", "device_state", "failure", "on_device", "shutdown", "close")
"""Members that are for the driver, or that end the object."""


def public_methods(of):
    return {name: getattr(of, name) for name in dir(of) if not name.startswith("_") and name not in OURS}


def test_a_pipeline_called_with_nonsense(opened):
    with vyre.compile(PROGRAM, backend=opened) as made:
        for call in (made.dispatch, made.dispatch_timed, made.dispatch_async):
            sweep(call, [X], CONFIG, out=[np.zeros(4, np.uint32)])
        for method in filter(callable, public_methods(made).values()):
            for junk in JUNK:
                for args in ((junk,), (junk, junk), ([junk],), ([junk], CONFIG), ([X], junk), ([X, junk],)):
                    attempt(method, *args)
        for junk in JUNK:
            attempt(made.dispatch, [X], out=[junk])


def test_an_open_backend_called_with_nonsense(opened):
    try:
        memory = [opened.allocate_resident(16)]
    except UnsupportedFeature:
        memory = []
    for method in filter(callable, public_methods(opened).values()):
        for junk in (*JUNK, PROGRAM, *memory):
            for args in ((), (junk,), (junk, junk), ([junk],), ([(junk,) * 3],), (PROGRAM, junk), (PROGRAM, [junk])):
                attempt(method, *args)


def test_memory_of_a_device_used_with_nonsense():
    with vyre.acquire("cpu") as opened, vyre.compile(PROGRAM, backend=opened) as made:
        x, out = opened.allocate_resident(16), opened.allocate_resident(16)
        range_ = ResidentReadRange(x, 0, 16)
        sweep(lambda *each: opened.upload_resident([each]), x, 0, X)
        sweep(lambda *each: opened.download_resident([ResidentReadRange(*each)]), x, 0, 16)
        sweep(lambda given: opened.download_resident([range_], out=given), [bytearray(16)])
        sweep(lambda given: opened.download_resident([range_], out=[given]), bytearray(16))
        sweep(lambda *each: opened.dispatch_resident([ResidentDispatchStep(*each)]), PROGRAM, (x, out), None, None)
        step = ResidentDispatchStep(PROGRAM, (x, out))
        sweep(lambda **more: opened.dispatch_resident([step], **more), reads=[range_], repeat=1, timed=False)
        sweep(lambda a, b: made.dispatch_resident([a, b]), x, out)
        sweep(made.dispatch_resident, [x, out], CONFIG)
        with pytest.raises(ArgumentTypeError, match=r"a range to read is a ResidentHandle.*Fix: pass \[ResidentReadR"):
            opened.download_resident([x])
        with pytest.raises(ArgumentTypeError, match=r"a range to upload is a ResidentHandle.*Fix: pass \[\(handle"):
            opened.upload_resident([x])
        with pytest.raises(ArgumentTypeError, match=r"a step is a ResidentHandle.*Fix: pass \[ResidentDispatchStep"):
            opened.dispatch_resident([x])
        for junk in (None, 5, "x"):
            with pytest.raises(ArgumentTypeError, match=r"ranges is a .*, not a list.*Fix: pass the ranges as a list"):
                opened.download_resident(junk)
            with pytest.raises(ArgumentTypeError, match=r"steps is a .*, not a list"):
                opened.dispatch_resident(junk)
        with pytest.raises(ArgumentTypeError, match=r"resources is NoneType, not a list.*Fix: pass one resource"):
            made.dispatch_resident(None)


def test_a_device_array_used_with_nonsense():
    with vyre.to_device(X, "cpu") as d:
        sweep(d.__dlpack__, stream=None, max_version=(1, 0), dl_device=None, copy=None)
        sweep(d.__array__, None, None)
        with pytest.raises(ArgumentTypeError, match=r"max_version=5 is not two numbers.*Fix: pass max_version="):
            d.__dlpack__(max_version=5)
        for method in filter(callable, public_methods(d).values()):
            if method != d.free:
                for junk in JUNK:
                    attempt(method, junk)


def test_a_program_used_with_nonsense():
    for method in filter(callable, public_methods(PROGRAM).values()):
        for junk in JUNK:
            for args in ((junk,), (junk, junk)):
                attempt(method, *args)
            attempt(method, buffers=junk)


# ---- some by name ---------------------------------------------------------------------------------------------------


STARTS = (lambda: double.on("reference").start(X), lambda: vyre.compile(PROGRAM).dispatch_async([X]))


@pytest.mark.parametrize("start", STARTS)
def test_the_time_to_wait_is_a_time(start):
    for junk in ("x", [], True, 1j, np.zeros(2)):
        with pytest.raises(ArgumentTypeError, match=r"timeout=.* is not a time\. Fix: pass seconds or a timedelta"):
            start().result(junk)
    with pytest.raises(ArgumentValueError, match=r"timeout=nan is not a time\. Fix: pass seconds"):
        start().result(float("nan"))
    for long in (10**400, 1e308, float("inf"), 10**5000):
        assert len(start().result(long)) > 0
    for short in (0, -1, -(10**400), -float("inf")):
        pending = start()
        try:
            pending.result(short)
        except DeadlineExceeded:
            assert len(pending.result()) > 0


@pytest.mark.parametrize("junk", [float("nan"), "x", -1, -(10**5000), True], ids=shown)
def test_the_timeout_of_a_config_is_a_time(junk):
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=r"timeout=.* is not a time\. Fix: pass seconds"):
        vyre.DispatchConfig(timeout=junk)
    assert vyre.DispatchConfig(timeout=10**400).timeout == float("inf")


def test_what_lives_in_a_process_is_not_pickled():
    with vyre.acquire("reference") as opened, vyre.compile(PROGRAM, backend=opened) as made:
        for held, fix in (
            (opened, "send its name"),
            (made, "send the program"),
            (made.dispatch_async([X]), "send what its result"),
            (double.on("reference").start(X), "send what its result"),
            (vyre.to_device(X, "cpu"), "send d.numpy()"),
            (registry.Selection("reference", opened, ()), "send its name"),
        ):
            for send in (pickle.dumps, copy.deepcopy):
                with pytest.raises(ArgumentTypeError) as e:
                    send(held)
                assert f"Fix: {fix}" in str(e.value)


def test_an_error_can_be_written_whatever_it_holds():
    e = VyreError("it is too large", fix="make it smaller", asked=10**5000, nested=[10**5000])
    assert str(e) == "it is too large [asked=(a number of 16610 bits)] [nested=(a list)]. Fix: make it smaller"
    assert e.diagnostic().message.startswith("it is too large")
    assert pickle.loads(pickle.dumps(e)) == e


def test_selecting_for_no_program_in_particular_is_the_choice_of_a_plain_one():
    with registry.isolated(stub("a"), stub("b")):
        assert vyre.select().chosen == vyre.select(PROGRAM).chosen == "a"
    with pytest.raises(VyreError, match=r"got a Kernel, not a program.*Fix: pass kernel\.program"):
        vyre.select(double)


def test_what_a_backend_lacks_is_said_with_what_to_do_instead():
    """And not with a capability that there is not."""
    plain = stub("a").open()
    with pytest.raises(UnsupportedFeature, match=r"no device recovery.*Fix: open it anew: acquire\(\.\.\.\), or"):
        plain.try_recover()
    with pytest.raises(UnsupportedFeature, match=r"no resident buffer alloc.*Fix: dispatch over memory of the host"):
        plain.allocate_resident(4)


def test_values_of_the_ir_refuse_what_cannot_be_part_of_them():
    with pytest.raises(vyre.IRTypeError, match=r"a field of BufferDecl got a value of another kind.*Fix: pass what"):
        vyre.BufferDecl([], 0, BUFFER.access, u32)
    with pytest.raises(vyre.IRTypeError, match=r"body of a program is a int.*Fix: pass a list as body"):
        vyre.Program([], (1, 1, 1), 5)
    with pytest.raises(vyre.IRValueError, match=r"workgroup_size has 2 axes.*Fix: pass workgroup_size=\(x, y, z\)"):
        vyre.Program([], "ab", [])
    with pytest.raises(ArgumentTypeError, match=r"capabilities of validate\(\) is a str.*Fix: pass a Capabilities"):
        vyre.validate(PROGRAM, "x")
    with pytest.raises(ArgumentTypeError, match=r"a list is not a wire revision.*Fix: pass a number"):
        PROGRAM.to_wire([])
    with pytest.raises(ArgumentTypeError, match=r"a list is not a name of a buffer.*Fix: pass a text"):
        PROGRAM.buffer([])
    with pytest.raises(ArgumentTypeError, match=r"the name of a kernel is a int.*Fix: pass a text"):
        vyre.Kernel.of_program(PROGRAM, 5)
    with pytest.raises(ArgumentTypeError, match=r"buffers are a NoneType, not a list.*Fix: pass the buffers as a list"):
        vyre.compile(PROGRAM, backend="reference").explain(None)
    with pytest.raises(ArgumentTypeError, match=r"f16 is a ndarray.*Fix: pass f16=True or False"):
        vyre.BackendCapability(f16=np.zeros(2))
    with pytest.raises(ArgumentValueError, match=r"no array has that shape.*Fix: ask for fewer"):
        vyre.empty((1 << 62,), "f4")
    with pytest.raises(vyre.DeviceOutOfMemory, match=r"no memory for an array.*Fix: ask for a smaller one"):
        vyre.empty((1 << 58,), "f4")

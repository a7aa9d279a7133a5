"""Text becomes machine code, which stays in memory for as long as somebody holds it."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vyre.backends.cpu import device
from vyre.backends.cpu.compile import compile_object
from vyre.backends.cpu.device import ffi, load
from vyre.backends.cpu.devices import host
from vyre.errors import KernelCompileFailed

from ...support.cpu_modules import ADD, SPIN, module


def call(code, buffers, lengths, groups, chunk=1):
    pointers = ffi.new("void *[]", [ffi.from_buffer(b) for b in buffers])
    counts = ffi.new("int64_t[]", lengths)
    words = ffi.new("int64_t[14]", [0, 0, groups, 1, 1, groups, chunk])
    words[0], words[1] = (int(ffi.cast("intptr_t", p)) for p in (pointers, counts))
    code.run(words, ffi.new("void *[4]"))
    return words


def u32s(*values):
    return bytearray(b"".join(v.to_bytes(4, "little") for v in values))


def added(code, n=100):
    a, b, out = u32s(*range(n)), u32s(*[7] * n), bytearray(4 * n)
    call(code, [a, b, out], [n, n, n], -(-n // 64))
    return out == u32s(*range(7, 7 + n))


def test_code_runs():
    assert added(load(compile_object(ADD)))


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
def test_workgroups_are_taken_until_none_is_left(n):
    assert added(load(compile_object(ADD)), n)


def test_object_code_can_be_loaded_again_and_again():
    image = compile_object(ADD)
    codes = [load(image) for _ in range(3)]
    assert len({int(ffi.cast("intptr_t", c.run)) for c in codes}) == 3
    assert all(added(c) for c in codes)
    assert codes[0].nbytes == len(image)


def test_code_stays_when_other_code_goes():
    image = compile_object(ADD)
    kept = [load(image) for _ in range(3)]
    for _ in range(2 * device._LIBRARIES_PER_LINKER):  # and the linker of the first ones is given up
        load(image)
    gc.collect()
    assert all(added(c) for c in kept)


def test_another_process_can_load_it(tmp_path):
    (tmp_path / "image").write_bytes(compile_object(ADD))
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.backend.cpu.test_cpu_compile import added, load\n"
        "assert added(load(Path(sys.argv[1]).read_bytes()))"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", script, tmp_path / "image"], check=True, cwd=root)


@pytest.mark.parametrize(
    "text, why",
    [
        ("this is no module", "expected top-level entity"),
        ("define void @vyre_run(ptr %a, ptr %b) {\n  ret i32 0\n}", "value doesn't match function result type"),
        (module("  br label %nowhere"), "nowhere"),
    ],
    ids=["syntax", "types", "label"],
)
def test_text_that_the_compiler_rejects_is_an_error_with_its_log(text, why):
    with pytest.raises(KernelCompileFailed, match=r"the compiler rejected the emitted kernel .*Fix: ") as e:
        compile_object(text)
    assert why in e.value.context["log"]


@pytest.mark.parametrize("image", [b"", b"no object file", compile_object("define void @other() {\n ret void\n}")])
def test_bytes_that_are_no_code_are_refused(image):
    with pytest.raises(KernelCompileFailed, match=r"could not be loaded.*Fix: compile the program again"):
        load(image)


def test_code_may_use_the_memory_functions_of_the_process():
    text = (
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
        "define void @vyre_run(ptr %shared, ptr %worker) {\n"
        "  %buffers = load ptr, ptr %shared\n  %a = load ptr, ptr %buffers\n"
        "  %n.at = getelementptr i64, ptr %shared, i64 5\n  %n = load i64, ptr %n.at\n"
        "  call void @llvm.memset.p0.i64(ptr %a, i8 9, i64 %n, i1 false)\n  ret void\n}"
    )
    data = bytearray(1000)
    call(load(compile_object(text)), [data], [1000], 1000)
    assert data == b"\x09" * 1000


def test_several_threads_may_compile_at_once():
    found = []

    def work():
        found.append(added(load(compile_object(ADD))))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [True] * 4


def test_machine_code_runs_beside_python():
    """The interpreter's lock is free meanwhile, or nobody could stop this."""
    code = load(compile_object(SPIN))
    words = ffi.new("int64_t[14]", [0, 0, 1, 1, 1, 1, 1])
    thread = threading.Thread(target=lambda: code.run(words, ffi.new("void *[4]")))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    words[8] = 1
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the memory of a process as Linux shows it")
def test_compiling_leaves_nothing_behind():
    script = """
import gc
from pathlib import Path
from tests.backend.cpu.test_cpu_compile import ADD, compile_object, load
def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
for k in range(120):
    if k == 20:
        before = resident()
    load(compile_object(ADD))
print((resident() - before) // 100)
"""
    root = Path(__file__).parents[3]  # in a process of its own, where no other test has left room
    done = subprocess.run([sys.executable, "-c", script], check=True, cwd=root, capture_output=True, text=True)
    assert int(done.stdout) < 15_000  # the passes of one such module alone take 50,000 bytes


def test_the_host_is_described():
    found = host()
    assert found is host()
    assert found.name
    assert found.vector_bits in (128, 256, 512)
    assert found.x86 == found.triple.startswith("x86")
    assert all(f[0] in "+-" for f in found.features.split(",") if f)


# ---- forks ----------------------------------------------------------------------------------------------------------

FORK = """
import os, signal, sys, threading, time
from tests.contract.programs import COUNT, words
from vyre.backends.cpu import CpuBackend, devices
CpuBackend(threads=1).dispatch(COUNT, [words(1)])  # a linker is there, which a child drops
inside, leaves = threading.Event(), float(sys.argv[1])
devices.FORK_WAIT_S = float(sys.argv[2])
def compile_for_long():
    with devices._lock():  # as the binding does around every call
        inside.set()
        time.sleep(leaves)
threading.Thread(target=compile_for_long, daemon=True).start()
inside.wait()
child = os.fork()
if not child:
    os._exit(CpuBackend(threads=1).dispatch(COUNT, [words(1)]) != [words(2)])
ends = time.monotonic() + 60
while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < ends:
    time.sleep(0.01)
if not done[0]:
    os.kill(child, signal.SIGKILL)
    sys.exit("the child hangs")
print(os.waitstatus_to_exitcode(done[1]))
if leaves < 100:
    print(CpuBackend(threads=1).dispatch(COUNT, [words(1)]) == [words(2)])
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("leaves, waits, said", [(0.3, 60, "0\nTrue\n"), (1000, 0.1, "0\n")])
def test_a_process_forked_while_a_thread_compiles_compiles_too(leaves, waits, said):
    words = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, str(leaves), str(waits)]
    root = Path(__file__).parents[3]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == (said, 0), done.stderr


FIRST_CALL = """
import sys
import numpy as np
import vyre
from vyre import In, Out, gid, u32

@vyre.kernel(workgroup=64)
def doubled(x: In[u32], out: Out[u32]) -> None:
    if gid.x < len(out):
        out[gid.x] = 2 * x[gid.x]

assert doubled.on("cpu")(np.arange(9, dtype=np.uint32)).tolist() == list(range(0, 18, 2))
print(sorted({"vyre.lower.kernel_ir", "vyre.backends.cpu.emit.kernel", "hashlib", "logging"} & set(sys.modules)))
"""


def test_a_process_that_finds_its_code_on_disk_loads_no_lowering(tmp_path):
    (tmp_path / "first.py").write_text(FIRST_CALL)
    env = {**os.environ, "VYRE_CACHE": "on", "VYRE_CACHE_DIR": str(tmp_path / "cache")}
    found = [
        subprocess.run(
            [sys.executable, str(tmp_path / "first.py")], env=env, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    assert "vyre.lower.kernel_ir" in found[0].stdout  # it compiles
    assert found[1].stdout == "[]\n"

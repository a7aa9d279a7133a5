"""Kernel files pass a strict type checker as written, and the checker knows every public name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vyre

pytestmark = pytest.mark.check

pytest.importorskip("mypy")
STUB = Path(vyre.__file__).with_suffix(".pyi")
KERNELS = '''
"""Kernels as users write them."""

from __future__ import annotations

from typing import Literal

import vyre
from vyre import D1, D2, D3, D4, In, InOut, Out, Uniform, atomic_add, barrier, bf16, bool_, const, f16, f32, gid, i32
from vyre import lid, shared, static_range, u8, u32, wg

BINS = 16


@vyre.kernel(workgroup=256)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


@vyre.kernel(workgroup=64)
def histogram(x: In[u32], bins: InOut[u32]) -> None:
    i = gid.x
    if i < x.size:
        atomic_add(bins, x[i] % BINS, 1)


@vyre.kernel(workgroup=256)
def block_sums(x: In[u32], out: Out[u32], *, half: const = 128) -> None:
    tile = shared(u32, 256)
    t = lid.x
    tile[t] = x[gid.x]
    barrier()
    for s in static_range(8):
        if t < half >> s:
            tile[t] += tile[t + (half >> s)]
        barrier()
    if t == 0:
        out[wg.x] = tile[0]


@vyre.device
def step(n: u32) -> u32:
    if n % 2 == 0:
        return n // 2
    return 3 * n + 1


@vyre.kernel(workgroup=64)
def collatz(n: In[u32], steps: Out[u32]) -> None:
    i = gid.x
    if i >= len(n):
        return
    x, count = n[i], 0
    while x > 1:
        x = step(x)
        count += 1
    steps[i] = count


@vyre.device
def clamp(v: f32, lo: f32, hi: f32) -> f32:
    return max(lo, min(v, hi))


@vyre.device
def pick(v: u32, other: bool, *, n: u32 = 3) -> u32:
    return n if other else v


@vyre.kernel(workgroup=64)
def unit(x: In[f32], h: In[f16], b: In[u8], out: Out[f32], io: InOut[u32]) -> None:
    t = x[gid.x]
    out[gid.x] = clamp(t, 0.0, 1.0) + clamp(t * 2, 0, 1) + f32(h[0]) + f32(u32(b[0]))
    count: u32 = pick(7, t > 0.5) + pick(u32(t), bool_(1), n=2)
    v = u32(b[0] if count > 3 else b[1])
    io[0] = v & ~u32(1) | vyre.rotate_left(v, 3) ^ count
    io[1] = u32(bf16(t)) + u32(i32(-3) // 2) + u32(vyre.floor(t)) + vyre.select(v > 3, v, 5)


@vyre.kernel(workgroup=(8, 8))
def weigh(w: Uniform[f32, Literal[4]], x: In[f32], k: In[i32], out: Out[f32, Literal[4]]) -> None:
    i = gid.y * 8 + gid.x
    total = f32(0)
    for j in range(len(w)):
        total += w[j] * vyre.sqrt(x[i]) - f32(abs(-k[i]))
    bits = vyre.bitcast(u32, total) ^ vyre.popcount(i) << 3
    out[i] = max(total, 0.5) if vyre.is_finite(total) and bits != 0 else vyre.bitcast(f32, u32(0))


@vyre.kernel
def looked_at(x: In[f32], out: Out[f32]) -> None:
    i = gid.x
    assert x[i] >= 0, "not negative"
    print("x", x[i], "at", i)
    out[i] = x[i]


def look(data: object) -> list[float]:
    looked_at(data, check_races=True)
    return [at.locals["i"] for at in looked_at.step(data, invocation=(3, 0, 0)) if at.line > 1 and not at.done]


@vyre.device
def at(x: In[f32, D2], i: i32, j: i32) -> f32:
    return x[i, j]


@vyre.kernel(workgroup=(8, 8))
def planes(x: In[f32, D2], v: InOut[u32, D3], q: In[f32, D1], w: In[f32, D4], out: Out[f32, D2]) -> None:
    height, width = x.shape
    i, j = i32(gid.y), i32(gid.x)
    if gid.y < height and gid.x < width:
        out[i, j] = at(x, i - 1, j) + q[i] + w[i, j, 0, 0] + f32(x.size) + f32(x.ndim)
        v[0, i, j] += 1
        atomic_add(v, (0, i, j), x.shape[1] + len(x))


text: str = str(saxpy.program) + saxpy.program.fingerprint
'''
SMALL = '''
"""Several values at once."""

from typing import Literal, NamedTuple, TypeVar

import vyre
from vyre import In, InOut, Out, barrier, c64, conj, const, cross, dot, f32, f64, gid, i32, length, lid, local
from vyre import normalize, shared, u32, vec2, vec3, vec4

T = TypeVar("T", f32, f64, i32)


class Body(NamedTuple):
    position: vec3
    mass: f32 = 1.0


UP = vec3(0.0, 1.0, 0.0)


@vyre.device
def parts(v: vec3, by: T) -> tuple[f32, T]:
    for k in range(3):
        if v[0] > f32(k):
            return v.x, by
    return 0.5, by


@vyre.device
def add(values: InOut[f32], v: f32) -> None:
    for k in range(len(values)):
        values[k] += v


@vyre.kernel(workgroup=64)
def several(x: In[vec3], y: In[Body], z: Out[c64], out: Out[vec3, Literal[4]], eye: vec3) -> None:
    tile = shared(vec4, 64)
    acc = local(f32, 8)
    tile[lid.x] = vec4(1.0)
    barrier()
    i = gid.x
    v = cross(x[i], UP) * 2.0 + 1 - y[i].position / y[i].mass
    w: vec3 = -normalize(v) + 2 * eye
    a, b = parts(w, 3)
    add(acc, a)
    acc[i % 8] += dot(v, w) + length(vec2(a, 2.0))
    body = Body(v)._replace(mass=acc[0] + tile[0].w)
    if body == y[i] or v != w:
        w = v if i > b else w
    whole = vec3[i32](v) << 1
    out[i] = vec3(whole) + body.position
    p, q, r = w
    s = c64(p, q) * 2j - conj(c64(r, 1.0)) + 1
    z[i] = s / 2.0 + abs(s)


@vyre.kernel
def scaled(x: In[T], a: T, out: Out[T], *, T: const) -> None:
    own = local(T, 4)
    own[0] = T(2) * x[gid.x]
    out[gid.x] = own[0] + a


blobs: bytes = several.program.to_wire() + scaled.specialize(T=f32).to_wire()
'''
WRONG = """
import vyre
from vyre import D2, In, Out, f32, gid, u32


@vyre.kernel(workgroup=64)
def k(x: In[u32], out: Out[u32]) -> None:
    x[0] = 1
    out[0] = out[1]
    out[0] = vyre.sqroot(2.0)
    out[gid.x] = "text"
    out[1.5] = 1


@vyre.kernel(workgroup=64)
def planes(x: In[f32, D2], y: In[f32], out: Out[f32, D2]) -> None:
    out[0] = 1.0
    out[0, 0] = x[0]
    out[0, 0] = x[0, 0, 0]
    out[0, 0] = y[0, 0]
"""


def check(tmp_path, source):
    file = tmp_path / "kernels.py"
    file.write_text(source, "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    return done.returncode, done.stdout + done.stderr


def test_kernel_files_pass_a_strict_check_and_compile(tmp_path):
    assert check(tmp_path, KERNELS) == (0, "Success: no issues found in 1 source file\n")
    scope = {"__name__": "kernels"}
    file = tmp_path / "kernels.py"
    exec(compile(KERNELS, str(file), "exec"), scope)
    assert scope["weigh"].program.buffer("out").count == 4


def test_kernels_of_several_values_pass_a_strict_check_and_compile(tmp_path):
    assert check(tmp_path, SMALL) == (0, "Success: no issues found in 1 source file\n")
    file = tmp_path / "kernels.py"
    scope = {"__name__": "kernels"}
    exec(compile(SMALL, str(file), "exec", dont_inherit=True), scope)
    assert scope["blobs"]


def test_the_checker_sees_wrong_kernels(tmp_path):
    code, said = check(tmp_path, WRONG)
    assert code == 1
    lines = [line for line in said.splitlines() if ": error: " in line]
    assert [int(line.split(":")[1]) for line in lines] == [8, 9, 10, 11, 12, 17, 18, 19, 20]


def test_the_checker_knows_every_public_name():
    tree = ast.parse(STUB.read_text("utf-8"))
    known = set()
    for node in tree.body:
        match node:
            case ast.ImportFrom(names=names, level=1):
                known |= {alias.asname or alias.name for alias in names}
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                known.add(name)
    public = {name for name in known if not name.startswith("_")}
    assert public == set(vyre._WHERE) - {"__version__"}

"""Random chains of kernels over each other's results: most can be one launch, and some must not be."""

import random

import numpy as np

import vyre
from vyre import D2, In, InOut, Out, atomic_add, bitcast, f32, gid, i32, sqrt, u8, u32


@vyre.kernel
def scaled(x: In[f32], out: Out[f32], a: f32):
    out[gid.x] = x[gid.x] * a


@vyre.kernel
def summed(x: In[f32], y: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(x):
        out[i] = x[i] + y[i]


@vyre.kernel
def rooted(x: In[f32], out: Out[f32]):
    i = i32(gid.x)
    if i >= i32(len(x)):
        return
    v = x[i]
    out[i] = sqrt(v) if v > 0.0 else v


@vyre.kernel
def some(x: In[f32], out: Out[f32]):
    """Stores a part of its elements; the others are zeros."""
    v = x[gid.x]
    if v > 0.25:
        out[gid.x] = v
    if v > 0.75:
        out[gid.x] = 1.0 - v


@vyre.kernel
def bits(x: In[f32], out: Out[u32]):
    out[gid.x] = bitcast(u32, x[gid.x])


@vyre.kernel
def floats(x: In[u32], out: Out[f32]):
    out[gid.x] = bitcast(f32, x[gid.x])


@vyre.kernel
def narrowed(x: In[u32], out: Out[u8]):
    out[gid.x] = u8(x[gid.x] >> u32(7))


@vyre.kernel
def widened(x: In[u8], y: In[u32], out: Out[u32]):
    out[gid.x] = u32(x[gid.x]) * u32(0x01010101) ^ y[gid.x]


@vyre.kernel
def stirred(x: InOut[u32], n: u32):
    v = x[gid.x]
    for k in range(n):
        v = v * u32(747796405) + k
    x[gid.x] = v


@vyre.kernel
def added(x: InOut[f32], y: In[f32]):
    if gid.x < len(x):
        x[gid.x] += y[gid.x]


@vyre.kernel
def short(x: In[u32], out: Out[u32]):
    """Its result may be shorter than what it reads: a later step finds zeros behind it."""
    out[gid.x] = x[gid.x] + len(out)


@vyre.kernel
def shifted(x: In[u32], out: Out[u32]):
    out[gid.x] = x[gid.x + 1] ^ gid.x


@vyre.kernel
def turned(x: In[f32], out: Out[f32]):
    if gid.x < len(x):
        out[gid.x] = x[len(x) - 1 - gid.x]


@vyre.kernel
def total(x: In[u32], into: InOut[u32]):
    atomic_add(into, 0, x[gid.x])


@vyre.kernel
def planes(x: In[f32, D2], out: Out[f32, D2], a: f32):
    out[gid.y, gid.x] = x[gid.y, gid.x] * a + 0.5


@vyre.kernel
def edges(x: In[f32, D2], out: Out[f32, D2]):
    i, j = gid.y, gid.x
    if i > 0 and i < x.shape[0] - 1 and j < x.shape[1]:
        out[i, j] = x[i, j] - 1.0


STEPS = (
    "scaled", "summed", "rooted", "some", "bits", "floats", "narrowed", "widened", "stirred", "added", "short",
    "shifted", "turned", "total",
)  # fmt: skip


class Chain:
    """Kernel calls over arrays of numbers; `run` is the function, and `arrays` what it takes."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.n = rng.choice([1, 2, 63, 64, 65, 129, 1000])
        self.shape = rng.choice([(3, 70), (16, 16), (65, 3)])
        self.rows = rng.random() < 0.25
        self.seed, self.length = seed, rng.randint(2, 9)

    def arrays(self, turn):
        rng = np.random.default_rng([self.seed, turn])
        if self.rows:
            return [rng.uniform(-2, 2, self.shape).astype(np.float32)]
        words = rng.integers(0, 1 << 32, self.n, dtype=np.uint32)
        special = np.array([0x7FC00001, 0xFFC00000, 0x00000001, 0x80000000, 0x7F800000, 0x007FFFFF], np.uint32)
        at = rng.random(self.n) < 0.2
        raw = np.where(at, rng.choice(special, self.n), words).astype(np.uint32)
        return [rng.uniform(-1, 2, self.n).astype(np.float32), raw.view(np.float32).copy(), words]

    def run(self, *arrays):
        rng = random.Random(self.seed + 1)
        if self.rows:
            return self._rows(rng, arrays[0])
        reals, words, bytes_ = list(arrays[:2]), [arrays[2]], []
        kept = []
        for _ in range(self.length):
            what = rng.choice(STEPS)
            x, y, w = rng.choice(reals[-2:]), rng.choice(reals), rng.choice(words[-2:])
            if what == "scaled":
                reals.append(scaled(x, a=rng.choice([0.5, -1.0, 3e-39, float("nan")])))
            elif what == "summed":
                reals.append(summed(x, y))
            elif what == "rooted":
                reals.append(rooted(x))
            elif what == "some":
                reals.append(some(x))
            elif what == "bits":
                words.append(bits(x))
            elif what == "floats":
                reals.append(floats(w))
            elif what == "narrowed":
                bytes_.append(narrowed(w))
            elif what == "widened" and bytes_:
                words.append(widened(bytes_[-1], w, sizes={"out": w.size}, domain=self.n))
            elif what == "stirred":
                stirred(w, n=rng.randint(0, 3))
            elif what == "added" and x is not y:
                added(x, y)
            elif what == "short":
                words.append(
                    short(w, sizes={"out": rng.choice([self.n, max(1, self.n // 2), self.n + 3])}, domain=self.n)
                )
            elif what == "shifted":
                words.append(shifted(w))
            elif what == "turned":
                reals.append(turned(x))
            elif what == "total":
                total(w, rng.choice(words))
            if rng.random() < 0.2:
                kept.append(rng.choice([reals[-1], words[-1]]))
        return [*kept, reals[-1], words[-1]]

    def _rows(self, rng, x):
        kept = []
        for _ in range(self.length):
            x = planes(x, a=rng.choice([0.5, 2.0])) if rng.random() < 0.6 else edges(x)
            if rng.random() < 0.2:
                kept.append(x)
        return [*kept, x]

"""The kernel that `vyre doctor` runs on every backend: integers that wrap, floats that round, a sine and a root."""

from __future__ import annotations

import vyre
from vyre import In, Out, f32, gid, u32

__all__ = ["mix"]


@vyre.kernel(workgroup=64)
def mix(words: In[u32], floats: In[f32], hashed: Out[u32], waves: Out[f32]) -> None:
    i = gid.x
    if i < len(words):
        hashed[i] = vyre.rotate_left(words[i] * 2246822519, 13) ^ (words[i] >> 7)
        waves[i] = vyre.sin(floats[i]) / (vyre.sqrt(vyre.select(floats[i] < 0.0, -floats[i], floats[i])) + 0.1)

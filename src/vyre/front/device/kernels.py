"""Kernels that device arrays themselves need: elements that lie apart are gathered, and bytes of bools widened."""

from vyre import In, Out, gid, kernel, select, static_range, u8, u32

MOST_AXES = 8


@kernel(workgroup=256)
def gather_words(x: In[u32], first: u32, shape: In[u32], steps: In[u32], out: Out[u32]) -> None:
    """Element i, in C order of `shape`, lies at `first` plus its indices times `steps`, modulo 2**32."""
    i = gid.x
    if i < len(out):
        left = i
        at = first
        for k in static_range(8):
            at += left % shape[7 - k] * steps[7 - k]
            left //= shape[7 - k]
        out[i] = x[at]


@kernel(workgroup=256)
def gather_bytes(x: In[u8], first: u32, shape: In[u32], steps: In[u32], out: Out[u8]) -> None:
    i = gid.x
    if i < len(out):
        left = i
        at = first
        for k in static_range(8):
            at += left % shape[7 - k] * steps[7 - k]
            left //= shape[7 - k]
        out[i] = x[at]


@kernel(workgroup=256)
def widen(x: In[u8], out: Out[u32]) -> None:
    """Bools of one byte as words."""
    i = gid.x
    if i < len(out):
        out[i] = select(x[i] != u8(0), u32(1), u32(0))

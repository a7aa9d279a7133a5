"""CRC-32 of many buffers at once, as in zip, gzip and PNG files.

One kernel fills the table of the 256 remainders of a byte, by eight shifts each. The other one takes the buffers, laid
end to end, and goes over one of them in each invocation, a byte and a look into the table at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import In, Out, gid, u8, u32

POLYNOMIAL = 0xEDB88320
"""Of degree 32, the highest power in the lowest bit."""


@vyre.kernel(workgroup=64)
def remainders(table: Out[u32]) -> None:
    """What is left of each byte after the division."""
    rest = gid.x
    for _ in vyre.static_range(8):
        rest = (rest >> 1) ^ (POLYNOMIAL if rest % 2 == 1 else 0)
    table[gid.x] = rest


@vyre.kernel(workgroup=64)
def check_each(data: In[u8], first: In[u32], longest: u32, table: In[u32], sums: Out[u32]) -> None:
    """The bytes of buffer b are first[b] up to first[b + 1]; no buffer has more than `longest`."""
    b = gid.x
    if b < len(sums):
        rest = ~u32(0)
        for k in range(min(longest, first[b + 1] - first[b])):
            rest = (rest >> 8) ^ table[(rest ^ u32(data[first[b] + k])) & 0xFF]
        sums[b] = ~rest


def solve(buffers: Sequence[bytes], backend: str | None = None) -> NDArray[np.uint32]:
    """The checksum of each buffer."""
    table_of, check = (k if backend is None else k.on(backend) for k in (remainders, check_each))
    table = table_of(sizes={"table": 256})
    lengths = [len(buffer) for buffer in buffers]
    first = np.cumsum([0, *lengths]).astype(np.uint32)
    data = np.frombuffer(b"".join(buffers), np.uint8)
    sums: NDArray[np.uint32] = check(data, first, max(lengths, default=0), table, sizes={"sums": len(buffers)})
    return sums


def main() -> int:
    rng = np.random.default_rng(3)
    buffers = [rng.bytes(n) for n in rng.integers(0, 4000, 2000)]
    sums = solve(buffers)
    right = sums.tolist() == [zlib.crc32(buffer) for buffer in buffers]
    print(f"{len(buffers)} checksums, {'as' if right else 'NOT as'} zlib has them")
    print(f"blake3 {blake3(sums.tobytes()).hexdigest()[:32]}")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""What a launch and its machine code agree on: the one symbol of a module, and which word of memory is what.

A module exports `void vyre_run(ptr shared, ptr worker)`. `shared` are 64-bit words of a launch, `worker` those of one
of its threads. The emitter writes these numbers into the code and `run/launch.py` fills the words in. Code is stored
with them: a change of one needs a new `FORMAT` in `build.py` too.
"""

from __future__ import annotations

ENTRY = "vyre_run"

# ---- shared ----------------------------------------------------------------------------------------------------------

BUFFERS = 0
"""Pointer to the pointers by slot."""
LENGTHS = 1
"""Pointer to the element counts by slot."""
GRID = 2
"""Three words: workgroups along x, y, z."""
TOTAL = 5
"""Workgroups."""
CHUNK = 6
"""Workgroups to take at once."""
NEXT = 7
"""The first workgroup that no thread took."""
STOP = 8
"""Not 0: leave as soon as it is seen."""
TRAPPED = 9
"""How many invocations trapped."""
TRAP_LISTS = 10
"""Pointer to the lists of `driver/contract/traps.py`, of 64-bit words with pieces of `PIECE_BITS`."""
PIECE_BITS = 16
ROW = 11
"""Invocations along x, if the code has traps."""
ROWS = 12
"""The same along y."""
STREAM = 13
"""Not 0: results go past the cache."""
SHARED_WORDS = 14

# ---- worker ----------------------------------------------------------------------------------------------------------

SCRATCH = 0
"""Pointer to memory of its own, aligned to 64 bytes."""
PRIVATES = 1
"""Pointer to its copies of buffers by slot; null where it has none."""
CHUNKS_LEFT = 2
"""Chunks that it may take before it returns; -1: all."""
WORKER_WORDS = 4

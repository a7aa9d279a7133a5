"""Random sequences of random programs give the bytes of plain calls, in every way in which they can run."""

import pytest

from ..support.device_backends import IDS, open_or_skip
from ..support.random_sequences import Arms, RandomSequence, compacted, flat, on, ways

BACKENDS = ("cpu", *IDS)


def agrees(name, seed, length, kind=RandomSequence):
    sequence = kind(seed, length)
    for way, run in ways(sequence, name, cut=length // 2).items():
        for turn in range(3):  # recorded, repeated, and repeated with other numbers
            mine, theirs = sequence.arrays(seed + turn), sequence.arrays(seed + turn)
            expected = sequence.run(theirs, call=on("cpu"))
            if "compacted" in way:
                expected = compacted(expected, on("cpu"))
            expected, found = flat(expected), flat(run(mine))
            assert len(found) == len(expected), (way, turn)
            assert [f.dtype for f in found] == [e.dtype for e in expected], (way, turn)
            assert [f.tobytes() for f in found] == [e.tobytes() for e in expected], (way, turn)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_few_random_sequences_agree_in_every_way(name):
    open_or_skip(name)
    agrees(name, 1, 2, Arms)


@pytest.mark.check
@pytest.mark.parametrize("seed", range(100, 112))
@pytest.mark.parametrize("name", BACKENDS)
def test_random_sequences_agree_in_every_way(name, seed):
    open_or_skip(name)
    agrees(name, seed, 2 + seed % 5, Arms if seed % 2 else RandomSequence)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(1000, 1200))
@pytest.mark.parametrize("name", BACKENDS)
def test_many_random_sequences_agree_in_every_way(name, seed):
    open_or_skip(name)
    agrees(name, seed, 2 + seed % 9, Arms if seed % 2 else RandomSequence)

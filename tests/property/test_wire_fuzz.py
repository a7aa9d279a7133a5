"""Hostile bytes: only WireError comes out of the reader, in time and memory that the blob's length bounds."""

import random
import time
import tracemalloc
from collections import Counter

import pytest

from vyre.conform.programs.wire_noise import corpus, judge, mutate, noise, seal
from vyre.foundation.formats.wire import decode, encode
from vyre.foundation.ir.nodes import Assign, Block, SubgroupLocalId
from vyre.foundation.ir.program import Program

SECONDS_PER_BLOB = 5.0  # a few hundred bytes take under a millisecond; the rest is for a busy machine


def run(blobs):
    verdicts = Counter()
    for blob in blobs:
        start = time.perf_counter()
        verdicts[judge(blob)] += 1
        assert time.perf_counter() - start < SECONDS_PER_BLOB, blob.hex()
    assert verdicts["changed"] == 0
    return verdicts


def mutations(seed, count, sealed):
    rng = random.Random(seed)
    good = corpus(rng)
    for _ in range(count):
        blob = mutate(rng, good)
        yield seal(blob) if sealed and len(blob) >= 40 else blob


def test_the_corpus_is_good():
    assert run(corpus(random.Random(0))) == {"accepted": 24}


def test_damage_behind_the_digest_is_refused_or_is_another_program():
    verdicts = run(mutations(1, 2500, sealed=True))
    assert verdicts["accepted"] > 100  # a changed literal, name or count is another program
    assert min(verdicts["truncated"], verdicts["discriminant"]) > 100
    assert verdicts["integrity"] == 0


def test_damage_is_caught_by_the_digest():
    verdicts = run(mutations(2, 500, sealed=False))
    assert verdicts["integrity"] > 400
    assert verdicts["accepted"] < 10  # the damage put the same byte back


def test_noise_is_refused():
    rng = random.Random(3)
    verdicts = run(noise(rng) for _ in range(1000))
    assert verdicts["accepted"] == 0
    assert verdicts["truncated"] + verdicts["discriminant"] > 300


def test_every_prefix_of_a_blob_is_refused():
    blob = corpus(random.Random(4))[0]
    for end in range(len(blob)):
        assert judge(blob[:end]) != "accepted"
        if end >= 40:
            assert judge(seal(blob[:end])) in ("truncated", "discriminant")


def leb(n):
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + leb(n >> 7)


def blob_of(kind, payload):
    """A blob whose one statement has this payload."""
    empty = encode(Program.of_entry((), (1, 1, 1), ()))
    op_id = b"vyre.node." + kind
    record = leb(len(op_id)) + op_id + leb(len(payload)) + payload + b"\0"
    return seal(empty[:40] + b"\2" + empty[41:-2] + record + empty[-2:])


BIG = b"\xff\xff\xff\xff"
HOSTILE = {
    "records": seal(encode(Program.empty())[:40] + b"\xff\xff\xff\xff\x0f"),
    "an operation id": seal(encode(Program.empty())[:40] + b"\2\xff\xff\xff\x7f"),
    "statements": blob_of(b"block", b"\6" + BIG + bytes(90)),
    "a string": blob_of(b"let", b"\0" + BIG + bytes(90)),
    "arguments": blob_of(b"let", b"\0\0\0\0\0\x0b\1\0\0\0f" + BIG + bytes(90)),
    "a payload": blob_of(b"let", b"\0\0\0\0\0\x80\1\0\0\0k" + BIG + bytes(90)),
    "a bitcast": blob_of(b"let", b"\0\0\0\0\0\x80\x0f\0\0\0vyre.py.bitcast" + BIG + bytes(90)),
    "levels of types": blob_of(b"let", b"\0\0\0\0\0\x0d" + b"\x14" * 900),
    "levels of expressions": blob_of(b"let", b"\0\0\0\0\0" + b"\x0a\1" * 900),
    "levels of statements": blob_of(b"block", b"\6\1\0\0\0" * 900),
}


def peak_bytes(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("promise", HOSTILE)
def test_a_small_blob_that_promises_much_costs_little(promise):
    verdicts = []
    assert peak_bytes(lambda: verdicts.append(judge(HOSTILE[promise]))) < 256 << 10
    assert verdicts[0] in ("truncated", "limit")


def test_memory_is_bounded_by_the_length_of_the_blob():
    chain = SubgroupLocalId()
    for _ in range(60):
        chain = -chain  # two bytes an object, which is as dense as it gets
    blob = encode(Program.of_entry((), (1, 1, 1), [Block([Assign("", chain)] * 1000)]))
    kept = []
    assert peak_bytes(lambda: kept.append(decode(blob))) < 100 * len(blob)
    assert len(kept[0].entry[0].body) == 1000


@pytest.mark.fuzz
def test_a_hundred_thousand_mutations_and_ten_thousand_noises():
    run(mutations(5, 80_000, sealed=True))
    run(mutations(6, 20_000, sealed=False))
    rng = random.Random(7)
    run(noise(rng) for _ in range(10_000))

"""The probe of a device tells the canonical rule from the two others in use."""

import math
import struct
from fractions import Fraction

import pytest

from vyre.backends.reference import run
from vyre.runtime import float_probe

TINY = Fraction(2) ** -126
SMALLEST = Fraction(2) ** -149
WITNESS = 0x3F7FFFFF, 0x00800000, 0
"""(1 - 2^-24) times 2^-126."""


def number(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bits_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def rounds_then_flushes(exact):
    """Rounded as if subnormals were kept: what is then below 2^-126 is zero."""
    return 0 if round(exact / SMALLEST) * SMALLEST < TINY else bits_of(float(TINY))


def flushes_then_rounds(exact):
    return 0 if exact < TINY else bits_of(float(TINY))


def products(rule):
    """What `multiply` gives on a machine with another rule, for each triple whose product lies next to 2^-126."""
    for k, (a, b, _) in enumerate(float_probe.TRIPLES):
        x, y = number(a), number(b)
        if math.isfinite(x) and math.isfinite(y) and min(abs(x), abs(y)) >= 2.0**-126:
            exact = abs(Fraction(x) * Fraction(y))
            if TINY - SMALLEST < exact < TINY:
                yield k, rule(exact) | (a ^ b) & 1 << 31


def output():
    found = run(float_probe.probe_program(), float_probe.probe_inputs(), grid=(float_probe.GROUPS, 1, 1))
    return bytes(found.outputs[0])


def test_the_witness_is_among_the_numbers_of_every_probe_and_its_product_is_zero():
    words = struct.unpack(f"<{float_probe.output_bytes() // 4}I", output())
    row = [t[:2] for t in float_probe.TRIPLES].index(WITNESS[:2])
    columns = list(float_probe.CANONICAL)
    assert words[row * len(columns) + columns.index("multiply")] == 0


def test_the_reference_gives_the_canonical_results():
    assert float_probe.differing(output()) == ()


@pytest.mark.parametrize("rule", [rounds_then_flushes, flushes_then_rounds])
def test_a_machine_with_another_rule_is_told(rule):
    result = bytearray(output())
    columns = list(float_probe.CANONICAL)
    for k, bits in products(rule):
        struct.pack_into("<I", result, 4 * (k * len(columns) + columns.index("multiply")), bits)
    assert float_probe.differing(bytes(result)) == ("multiply",)

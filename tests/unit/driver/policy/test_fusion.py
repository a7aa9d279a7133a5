"""Which launches may become one, by their shapes."""

import pytest

from vyre.driver.policy.fusion import (
    APART,
    JOINED,
    Accept,
    DispatchShape,
    FusionCaps,
    FusionPass,
    InvocationBudgetExceeded,
    NoPipelineDependency,
    OutputConsumedElsewhere,
    SharedMemoryBudget,
    WorkgroupSizeMismatch,
    decide_fusion,
)

CAPS = FusionCaps()
U32_MAX = (1 << 32) - 1


def shape(inputs=(), outputs=(), size=(64, 1, 1), shared=0):
    return DispatchShape("", size, shared, tuple(inputs), tuple(outputs))


MAKER, USER = shape([1], [2]), shape([2], [3])


@pytest.mark.row("B-FU-01")
@pytest.mark.parametrize(
    "before, after, caps, others, verdict",
    [
        (MAKER, USER, CAPS, (), Accept((2,))),
        (MAKER, USER, CAPS, (3,), Accept((2,))),
        (MAKER, USER, CAPS, (2,), OutputConsumedElsewhere(2)),
        (MAKER, shape([1], [3]), CAPS, (), NoPipelineDependency()),
        (MAKER, shape([2], [3], (32, 1, 1)), CAPS, (), WorkgroupSizeMismatch((64, 1, 1), (32, 1, 1))),
        (
            shape([1], [2], (U32_MAX, U32_MAX, 2)), shape([2], [3], (U32_MAX, U32_MAX, 2)), CAPS, (),
            InvocationBudgetExceeded((U32_MAX, U32_MAX, 2), U32_MAX * U32_MAX * 2, 256),
        ),
        (
            shape([1], [2], (32, 4, 1)), shape([2], [3], (32, 4, 1)), FusionCaps(16_384, 64), (),
            InvocationBudgetExceeded((32, 4, 1), 128, 64),
        ),
        (
            shape([1], [2], shared=U32_MAX), shape([2], [3], shared=1), CAPS, (),
            SharedMemoryBudget(U32_MAX + 1, 16_384),
        ),
        (shape([1], [2], shared=16_384), shape([2], [3]), CAPS, (), Accept((2,))),
        (shape([1], [2, 4]), shape([4, 2], [3]), CAPS, (4,), OutputConsumedElsewhere(4)),
    ],
)  # fmt: skip
def test_the_rules_are_asked_in_their_order(before, after, caps, others, verdict):
    assert FusionPass.decide(before, after, caps, others) == verdict
    assert str(verdict)


def test_a_high_end_device_has_more_of_both():
    assert FusionCaps.high_end() == (131_072, 1024)
    assert all(a > b for a, b in zip(FusionCaps.high_end(), CAPS, strict=True))


def test_a_decision_says_what_is_one_launch_or_why_it_is_not():
    joined, apart = decide_fusion(("f", "g"), None, 2, 1), decide_fusion(("f", "g"), "they differ", 0, 0)
    assert (joined.choice, apart.choice) == (JOINED, APART)
    assert joined.reason == "f, g are one launch: 2 arrays handed on in registers, 1 of them stored for others"
    assert apart.reason == "f and g: they differ"
    assert joined.numbers == {"launches": 2, "arrays handed on": 2, "of them stored": 1}

"""Trees of random kernels say what their source may be used for."""

from __future__ import annotations

import pytest

from vyre.conform.kernels.tree import E, Helper, S

ONE = E("num", "u32", (), (1, "1"))
HOLDS = S("assert", "this holds", (E("compare", "bool", (ONE, ONE), ("==",)),))
LOOP = S("for", ("k", (ONE, ONE)), (), ((HOLDS,),))


@pytest.mark.parametrize("body, plain", [((), True), ((HOLDS,), False), ((LOOP,), False)])
def test_a_helper_that_asserts_has_an_effect(body, plain):
    assert Helper("h", (("p", "u32"),), "u32", body, noted=True).is_plain is plain

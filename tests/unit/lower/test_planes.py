"""Which outputs are filled where a call's numbers say so: the interpreter fills those with rubbish before it runs."""

import random
import struct
from itertools import product

import pytest

from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import BinOp, BufLen, If, InvocationId, Let, Load, Loop, Return, Store, UnOp, lit
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, read, read_write, write_only
from vyre.lower import improve
from vyre.lower.from_program import build
from vyre.lower.length_exprs import fills, plain_plane, words_of

from ...support.lower_oracle import Dispatch, interpret

I, J = InvocationId(0), InvocationId(1)  # noqa: E741
HEIGHT, WIDTH = Load("n", lit(0)), Load("n", lit(1))
AT = J * WIDTH + I
ONE = Store("o", AT, lit(1))


def both(a, b):
    return BinOp(BinaryOp.AND, a, b)


def either(a, b):
    return BinOp(BinaryOp.OR, a, b)


INSIDE = both(I < WIDTH, J < HEIGHT)

FILLED = {
    "inside": [If(INSIDE, [ONE])],
    "a test for each axis": [If(J < HEIGHT, [If(WIDTH > I, [Store("o", I + WIDTH * J, lit(2))])])],
    "at most the last": [If(both(I <= WIDTH - 1, J <= HEIGHT - 1), [ONE])],
    "behind a return": [If(either(I >= WIDTH, HEIGHT <= J), [Return()]), ONE],
    "behind two returns": [If(I >= WIDTH, [Return()]), If(J >= HEIGHT, [Return()]), ONE],
    "not outside": [If(UnOp(UnaryOp.LOGICAL_NOT, either(I >= WIDTH, J >= HEIGHT)), [ONE])],
    "borders": [If(INSIDE, [If(both(I > 0, I < WIDTH - 1), [ONE], [Store("o", AT, lit(3))])])],
    "a number of elements": [If(I < WIDTH, [Store("o", I, lit(4))])],
    "a constant width": [Store("o", J * 4 + I, lit(5))],
    "a length and a number": [If(both(BufLen("a") > I, J < HEIGHT), [Store("o", J * BufLen("a") + I, lit(6))])],
    "after a loop": [Loop("k", lit(0), WIDTH, [Let("x", lit(0))]), If(INSIDE, [ONE])],
    "and elsewhere too": [If(INSIDE, [ONE, Store("o", AT + 1, lit(1)), If(I > 2, [Return()])])],
}
NOT_FILLED = {
    "columns": [If(INSIDE, [Store("o", I * HEIGHT + J, lit(1))])],
    "another width": [If(INSIDE, [If(Load("a", I) > 2, [ONE], [Store("o", J * HEIGHT + I, lit(1))])])],
    "behind a return that others take": [If(Load("a", I) > 3, [Return()]), If(INSIDE, [ONE])],
    "in a loop": [Loop("k", lit(0), WIDTH, [ONE])],
    "a neighbour": [If(INSIDE, [Store("o", AT + 1, lit(1))])],
    "below what each invocation reads": [If(Load("a", I) > I, [ONE])],
    "the wrong way": [If(I >= WIDTH, [ONE])],
    "one of two": [If(either(I < WIDTH, J < HEIGHT), [ONE])],
    "inner ones": [If(I > 0, [ONE])],
    "a return in a loop": [Loop("k", lit(0), WIDTH, [Return()]), ONE],
    "where it is read": [If(INSIDE, [Store("o", AT, Load("o", lit(0)))])],
    "a number that it writes": [If(INSIDE, [ONE, Store("n", lit(5), lit(1))])],
}


def words(*values):
    return struct.pack(f"<{len(values)}I", *values)


def lowered(body, size, numbers):
    program = Program((read("a", 1, u32), numbers, write_only("o", 0, u32)), size, body)
    kernel = build(program)
    improve(kernel)
    return program, kernel


@pytest.mark.parametrize("size", [(4, 2, 1), (1, 1, 1)], ids=["4x2", "1"])
@pytest.mark.parametrize("name", [*FILLED, *NOT_FILLED])
def test_outputs_that_numbers_fill_are_named_and_hold_what_was_stored(name, size):
    read_back, written = name == "where it is read", name == "a number that it writes"
    numbers = (read_write if written else read)("n", 2, u32)
    o = (read_write if read_back else write_only)("o", 0, u32)
    program = Program((o, read("a", 1, u32), numbers), size, (FILLED | NOT_FILLED)[name])
    kernel = build(program)
    improve(kernel)
    assert set(kernel.planes) == ({"o"} if name in FILLED else set())
    rng = random.Random(name)
    grid = (8 // size[0], 4 // size[1], 1)
    others = [(rng.randrange(6), rng.randrange(10), rng.randrange(1, 40)) for _ in range(6)]
    for height, width, length in [(4, 8, 32), (3, 5, 15), *others]:
        inputs = [words(*range(5)), words(height, width)]
        if read_back:
            inputs.insert(0, bytes(4 * length))
        sizes = {} if read_back else {"o": length}
        found = [interpret(kernel, program, inputs, grid, sizes, seed) for seed in range(2)]
        assert found[0] == found[1]
        assert b"\xa5" not in found[0][0]


@pytest.mark.parametrize("name", FILLED)
def test_a_plane_is_filled_exactly_where_every_element_is_stored(name):
    """Against the invocations themselves: a plane that says yes has them all, and the plain cases say yes."""
    program, kernel = lowered(FILLED[name], (4, 2, 1), read("n", 2, u32))
    plane = plain_plane(kernel.planes["o"])
    yes = 0
    for height, width, length in product((0, 2, 4), (0, 3, 4, 8), (1, 6, 8, 32, 33)):
        inputs = [words(*range(4)), words(height, width)]
        run = Dispatch(kernel, program, inputs, (2, 2, 1), {"o": length}, 0)
        if run.is_filled(next(b for b in kernel.buffers if b.name == "o"), plane, (8, 4, 1)):
            yes += 1
            assert all(x for x in memoryview(run.run()[0]).cast("I"))
    assert yes


def test_what_a_plane_needs():
    def value(n):
        return ["const", "u32", n]

    square = (value(4), [(0, True, value(4)), (1, False, value(2))])
    assert fills(square, 12, (4, 3, 1), (), {})
    assert not fills(square, 12, (3, 3, 1), (), {})
    assert not fills(square, 12, (4, 2, 1), (), {})
    assert not fills(square, 13, (4, 4, 1), (), {})
    assert fills((value(0), []), 0, (1, 1, 1), (), {})
    assert not fills((value(0), []), 1, (1, 1, 1), (), {})
    assert not fills((None, [(2, True, value(0))]), 3, (4, 1, 1), (), {})
    word = ["load", "u32", [1, 2]]
    line = (None, [(0, True, ["sub", "u32", None, word, value(1)]), (0, True, word)])
    assert words_of(line) == [(1, 2)]
    assert fills(line, 3, (4, 1, 1), (), {(1, 2): 4})
    assert not fills(line, 4, (4, 1, 1), (), {(1, 2): 4})
    assert fills(line, 4, (4, 1, 1), (), {(1, 2): 0xFFFFFFFF})

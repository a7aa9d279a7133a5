"""Asserts, prints, unrolled loops and grid-wide barriers that are refused: line, caret, and what to write instead."""

import warnings

import pytest

import vyre
from vyre.foundation.language import loops

from .test_kernel_errors import HEADER, caret, define, refusal

# body, line of the body, text under the caret, words of the message, words of the fix
BODIES = [
    ("assert n > 1, f'n is {n}'", 1, "f'n is {n}'", "the text of an assert is an f-string", 'print("...", value)'),
    ("assert n > 1, n", 1, "n", "the text of an assert is not a string", '"what went wrong"'),
    ("assert n > 1, b'raw'", 1, "b'raw'", "the text of an assert is not a string", '"what went wrong"'),
    ("assert n > 1, 'a' + 'b'", 1, "'a' + 'b'", "the text of an assert is not a string", '"what went wrong"'),
    ("assert n > 1, 'n %d' % 3", 1, "'n %d' % 3", "the text of an assert is not a string", '"what went wrong"'),
    (r"assert n > 1, '\ud800'", 1, r"'\ud800'", "the text of an assert holds half a character", "write a whole one"),
    ("assert f[0]", 1, "f[0]", "the condition is f32", "f[0] != 0"),
    ("assert s[0], 'text'", 1, "s[0]", "the condition is i32", "s[0] != 0"),
    ("assert x", 1, "x", "`x` is a buffer, not a value", "x[i]"),
    ("assert missing > 1", 1, "missing", "`missing` is not defined", "define it before the kernel"),
    ("assert 'text'", 1, "'text'", "a str is not a value of kernels", "use numbers"),
    ("assert n == f[0]", 1, "n == f[0]", "`==` of u32 and f32", "f32(n)"),
    ("assert n is not None", 1, "n is not None", "`is not`", "=="),
    ("assert N == 5, 'five'", 1, "N == 5", "assertion failed: five", "correct the numbers"),
    ("assert False", 1, "False", "assertion failed: False", "correct the numbers"),
    ("v = 1\nassert N > 4 and N < 9", 2, "N > 4 and N < 9", "assertion failed: N > 4 and N < 9", "correct the numbers"),
    ("assert n > 1 and atomic_add(io, 0, 1) > 1", 1, "atomic_add(io, 0, 1) > 1", "runs always", "nested if"),
    ("print(f'n is {n}')", 1, "f'n is {n}'", "an f-string in print()", 'print("x =", x)'),
    ("print('n is %d' % n)", 1, "'n is %d'", "a str is not a value of kernels", "use numbers"),
    ("print('n', n, sep='')", 1, "sep=''", "print() takes no sep in a kernel", "leave it out"),
    ("print(n, end='')", 1, "end=''", "print() takes no end in a kernel", "leave it out"),
    ("print(n, file=3)", 1, "file=3", "print() takes no file in a kernel", "leave it out"),
    ("print(**n)", 1, "**n", "print() takes no ** in a kernel", "leave it out"),
    ("print(*x)", 1, "*x", "`*` is not part of kernels", "one by one"),
    ("print('x', x)", 1, "x", "`x` is a buffer, not a value", "x[i]"),
    ("print(gid)", 1, "gid", "`gid` has three axes", "gid.x"),
    ("print([n, n])", 1, "[n, n]", "lists are not part of kernels", "local(f32, 8)"),
    ("print(missing)", 1, "missing", "`missing` is not defined", "define it before the kernel"),
    ("print(b'raw')", 1, "b'raw'", "a bytes is not a value of kernels", "use numbers"),
    ("print(None)", 1, "None", "a NoneType is not a value of kernels", "use numbers"),
    ("print(sqrt)", 1, "sqrt", "`sqrt` is a function, not a value", "sqrt(x)"),
    ("print(out[0])", 1, "out[0]", "Out and cannot be read", "InOut[u32]"),
    ("v = 1 if n > 1 else print(n)", 1, "print(n)", "print() is not part of kernels", "line of its own"),
    ("n > 1 and print(n)", 1, "print(n)", "print() is not part of kernels", "line of its own"),
    ("vyre_print[0] = 1", 1, "vyre_print", "`vyre_print` is not defined", "define it before"),
    ("printf('n', n)", 1, "printf", "`printf` is not part of kernels", 'print("x =", x)'),
    ("atomic_sub(w, 0, 0.5)", 1, "w", "atomic_sub() on a buffer of f32, whose sum would depend", "InOut[i32]"),
    ("atomic_add(w, n, f[0])", 1, "w", "atomic_add() on a buffer of f32, whose sum would depend", "add each run"),
    ("atomic_exchange(w, n, f[0])", 1, "w", "atomic_exchange() on a buffer of f32", "InOut[u32] or InOut[i32]"),
    ("for i in range(n):\n    grid_sync()", 2, "grid_sync()", "inside a loop", "unroll that with static_range()"),
    ("while n > x[0]:\n    grid_sync()", 2, "grid_sync()", "inside a loop", "one call per turn"),
    (
        "for k in static_range(2049):\n    out[0] = k",
        1, "static_range(2049)", "2049 turns, of which a kernel has at most 2048", "use range()",
    ),
    (
        "for k in static_range(200):\n    for j in static_range(200):\n        pass",
        2, "static_range(200)", "the unrolled loops of the kernel have more than 2048 turns", "use range()",
    ),
]  # fmt: skip


@pytest.mark.parametrize("body, line, culprit, message, fix", BODIES, ids=[case[0] for case in BODIES])
def test_it_is_refused_at_its_place(body, line, culprit, message, fix):
    error = refusal(HEADER + "".join(f"\n    {text}" for text in body.splitlines()))
    assert error.lineno == line + 1
    assert caret(error) == culprit
    assert message in error.message
    assert fix in error.fix
    assert str(error).rstrip().rpartition("\n")[2].startswith("Fix: ")


def test_a_condition_and_a_text_in_parentheses_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # Python's own
        error = refusal(f"{HEADER}\n    assert (n > 1, 'text')")
    assert caret(error) == "(n > 1, 'text')"
    assert error.message == "a tuple is always true"
    assert error.fix == 'write assert condition, "what went wrong"'


def test_one_in_a_helper_says_who_called():
    helper = "@vyre.device\ndef h(v):\n    print(v, end='')\n    return v\n"
    error = refusal(f"{helper}{HEADER}\n    out[0] = h(n)")
    assert (error.lineno, caret(error)) == (3, "end=''")
    assert error.__notes__[0].startswith("in h(), called at")


def test_helpers_that_grow_without_end_are_refused_soon(monkeypatch):
    """Each helper calls the one before it twice: 2**40 statements."""
    monkeypatch.setattr("vyre.foundation.language.stmts.MAX_STATEMENTS", 500)
    helpers = "@vyre.device\ndef h0(v):\n    return v + 1\n"
    helpers += "".join(f"@vyre.device\ndef h{k}(v):\n    return h{k - 1}(v) + h{k - 1}(v)\n" for k in range(1, 41))
    error = refusal(f"{helpers}{HEADER}\n    out[0] = h40(n)")
    assert error.message == "the kernel has more than 500 statements, with all helpers and turns written out"
    assert "call a helper once, in a loop" in error.fix


def test_the_turns_of_all_loops_count_together(monkeypatch):
    monkeypatch.setattr(loops, "MAX_UNROLLED", 12)
    body = "\n    for k in static_range(6):\n        out[k] = k"
    scope = define(f"{HEADER}{body * 2}")
    assert vyre.kernel(scope["k"]).program.stats.stores == 12
    error = refusal(f"{HEADER}{body * 2}\n    for k in (1, 2):\n        out[k] = k")
    assert (error.lineno, caret(error)) == (6, "(1, 2)")
    assert error.message == "the unrolled loops of the kernel have more than 12 turns"

"""Kernels that are refused: each error names the line, puts the caret under the culprit, and says what to write."""

from __future__ import annotations

import itertools
import linecache
import math
import traceback

import numpy as np
import pytest

import vyre
from vyre.foundation.ir.nodes import Let, Lit
from vyre.foundation.language.kernel import build_program, read_source

HEADER = (
    "def k(x: In[u32], f: In[f32], s: In[i32], b: In[u8], out: Out[u32], io: InOut[u32], w: InOut[f32],"
    " n: u32, flag: bool, four: In[u32, 4], *, N: const = 4):"
)
NAMES = {name: getattr(vyre, name) for name in vyre.__all__ if name not in ("kernel", "Kernel", "parse", "round")}
counter = itertools.count()


def define(source: str, **names: object) -> dict:
    """The names that a piece of source defines, with its lines where tracebacks look for them."""
    filename = f"<case {next(counter)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope = {**NAMES, "vyre": vyre, "np": np, "math": math, **names}
    exec(compile(source, filename, "exec"), scope)
    return scope


def refusal(source: str, **names: object) -> vyre.KernelError:
    """What is said about the kernel `k` of a piece of source."""
    scope = define(source, **names)
    with pytest.raises(vyre.KernelError) as caught:
        build_program(read_source(scope["k"], 64), {})
    return caught.value


def caret(error: vyre.KernelError) -> str:
    """The text under the carets."""
    assert error.text is not None
    assert error.offset is not None
    assert error.end_offset is not None
    return error.text[error.offset - 1 : error.end_offset - 1]


# body, line of the body, text under the caret, words of the message, words of the fix
BODIES = [
    ("out[0] = missing", 1, "missing", "not defined", "define it before the kernel"),
    ("out[f[0]] = 1", 1, "f[0]", "index is f32", "i32(f[0])"),
    ("out[n > 1] = 1", 1, "n > 1", "index is bool", "u32(n > 1)"),
    ("out[1.5] = 1", 1, "1.5", "not a whole number", "whole numbers"),
    ("out[True] = 1", 1, "True", "not a whole number", "whole numbers"),
    ("out[(n - 1) % len(x)] = 1", 1, "(n - 1) % len(x)", "wraps to a large number", "(n + len(x) - 1) % len(x)"),
    ("out[(s[0] - 2) % 5] = 1", 1, "(s[0] - 2) % 5", "stays below zero", "(s[0] + 5 - 2) % 5"),
    ("out[0] = x[-1]", 1, "-1", "negative", "len(x) - 1"),
    ("out[0] = four[4]", 1, "4", "outside the 4 elements", "0 to 3"),
    ("v = print(n)", 1, "print(n)", "print()", "line of its own"),
    ("v = 1\nv = 1.5", 2, "1.5", "`v` is u32 since line 2 and cannot become f32", "u32(1.5), or use another name"),
    ("v = f[0]\nv = n", 2, "n", "f32 since line 2", "f32(n)"),
    ("v = n\nv = -1", 2, "-1", "and -1 is below zero", "v: i32 = ..."),
    ("if n > 1:\n    v = 1\nout[0] = v", 3, "v", "block that starts at line 2", "`v = ...` above line 2"),
    ("if n > 1:\n    v = 1\nelse:\n    u = 2\nout[0] = v", 5, "v", "block that starts at line 2", "above line 2"),
    ("if n > 1:\n    v = 1\nelif n > 2:\n    v = 2\nout[0] = v", 5, "v", "starts at line 2", "above line 2"),
    ("if n > 1:\n    v = 1\nelse:\n    v = 1.5\nout[0] = v", 4, "1.5", "`v` is u32 since line 3", "u32(1.5)"),
    ("if n > 1:\n    v = n\nelse:\n    v: f32 = 1.5\nout[0] = v", 4, "v", "u32 since line 3 and", "another name"),
    ("for i in range(3):\n    v = i\nout[0] = v", 3, "v", "block that starts at line 2", "`v = ...` above line 2"),
    ("for i in range(3):\n    pass\nout[0] = i", 3, "i", "block that starts at line 2", "copy it in the loop"),
    ("for i in static_range(3):\n    pass\nout[0] = i", 3, "i", "block that starts at line 2", "copy it"),
    ("v = v + 1", 1, "v", "before it is assigned", "above this line"),
    ("v += 1", 1, "v", "before it is assigned", "above this line"),
    ("if lid.x > 1:\n    barrier()", 2, "barrier()", "divergent", "move"),
    ("v = [1, 2]", 1, "[1, 2]", "lists", "acc = local(f32, 8)"),
    ("v = (1, 2)", 1, "(1, 2)", "tuple", "or a NamedTuple"),
    ("v = {1: 2}", 1, "{1: 2}", "dictionaries", "one name per value"),
    ("v = {1, 2}", 1, "{1, 2}", "sets", "one name per value"),
    ("v = 'text'", 1, "'text'", "a str is not a value", "use numbers"),
    ("v = None", 1, "None", "a NoneType is not a value", "use numbers"),
    ("v = f'{n}'", 1, "f'{n}'", "strings", "use numbers"),
    ("import os", 1, "import os", "imports", "above the kernel"),
    ("from os import path", 1, "from os import path", "imports", "above the kernel"),
    ("class C: pass", 1, "class C: pass", "classes", "a NamedTuple of numbers above"),
    ("v = lambda: 1", 1, "lambda: 1", "lambda", "@vyre.device"),
    ("v = [i for i in range(3)]", 1, "[i for i in range(3)]", "comprehensions", "for loop"),
    ("v = sum(i for i in range(3))", 1, "sum(i for i in range(3))", "sum()", "for loop"),
    ("try:\n    pass\nexcept ValueError:\n    pass", 1, "try:", "exceptions", "if"),
    ("raise ValueError", 1, "raise ValueError", "exceptions", "trap"),
    ("with open('f'):\n    pass", 1, "with open('f'):", "with", "one after the other"),
    ("global G\nG = 1", 1, "global G", "change no Python names", "buffer"),
    ("def inner(): pass", 1, "def inner(): pass", "do not nest", "@vyre.device"),
    ("match n:\n    case 1: pass", 1, "match n:", "match", "elif"),
    ("yield n", 1, "yield n", "yield", "buffer"),
    ("v = 1\ndel v", 2, "del v", "deleted", "leave the line out"),
    ("if n is N:\n    pass", 1, "n is N", "`is`", "=="),
    ("if n in (1, 2):\n    pass", 1, "n in (1, 2)", "`in`", "x == 1 or x == 2"),
    ("out[0] = n ** 2", 1, "n ** 2", "`**` of u32", "x * x"),
    ("out[0] = u32(vyre.f16(1.0) ** 2)", 1, "vyre.f16(1.0)", "left operand of pow is f16", "f32"),
    ("w[0] = pow(f[0], 2)", 1, "pow(f[0], 2)", "pow() is not part of kernels", "x ** y"),
    ("out[0] = n @ n", 1, "n @ n", "`@`", "loops"),
    ("out[0] = n / 2", 1, "n / 2", "`/` does not divide u32", "//"),
    ("w[0] = f[0] // 2", 1, "f[0] // 2", "`//` does not divide f32", "write /"),
    ("out[0] = u32(vyre.f64(1.0) % 2)", 1, "vyre.f64(1.0)", "left operand of fmod is f64", "f32"),
    ("w[0] = vyre.ldexp(f[0], n)", 1, "n", "right operand of ldexp is u32", "i32"),
    ("w[0] = vyre.ldexp(n, 1)", 1, "n", "left operand of ldexp is u32", "f32"),
    ("w[0] = vyre.ldexp(f[0], 1.5)", 1, "1.5", "meets a value of type i32", "whole number"),
    ("w[0] = f[0] + n", 1, "f[0] + n", "`+` of f32 and u32", "f32(n)"),
    ("w[0] = n * 1.5", 1, "1.5", "1.5 meets a value of type u32", "f32"),
    ("if n < s[0]:\n    pass", 1, "n < s[0]", "`<` of u32 and i32", "i32(n)"),
    ("out[0] = f[0]", 1, "f[0]", "`out[0]` is u32, and this value is f32", "u32(f[0])"),
    ("out[0] = n > 1", 1, "n > 1", "this value is bool", "u32(n > 1)"),
    ("out[0] = True", 1, "True", "bool meets a value of type u32", "1 or 0"),
    ("out[0] = n + True", 1, "True", "bool meets", "1 or 0"),
    ("v = flag == 1", 1, "1", "1 meets a value of type bool", "True or False"),
    ("out[0] = 4294967296", 1, "4294967296", "does not fit u32", "0 to 4294967295"),
    ("v = 4294967296", 1, "4294967296", "does not fit u32", "u64(4294967296)"),
    ("v = -2147483649", 1, "-2147483649", "does not fit i32", "i64(-2147483649)"),
    ("v = u8(256)", 1, "u8(256)", "256 does not fit u8", "0 to 255"),
    ("v = f[0] + 1e39", 1, "1e39", "does not fit f32", "smaller"),
    ("v = f16(65520)", 1, "f16(65520)", "does not fit f16", "wider"),
    ("v = u32(math.inf)", 1, "u32(math.inf)", "does not fit u32", "finite"),
    ("out[0] = sqrt(1.0, 2.0)", 1, "sqrt(1.0, 2.0)", "takes 1 argument, not 2", "sqrt(x)"),
    ("atomic_add(io, 0)", 1, "atomic_add(io, 0)", "takes 3 arguments, not 2", "atomic_add(buf, i, value)"),
    ("v = sqrt(x=2.0)", 1, "x=2.0", "no keywords", "sqrt(x)"),
    ("v = sqrt(*f)", 1, "*f", "`*` arguments", "sqrt(x)"),
    ("v = sqrt(n)", 1, "n", "u32", "cast the operand to f32"),
    ("v = popcount(f[0])", 1, "f[0]", "f32", "integer"),
    ("v = fma(f[0], n, 1)", 1, "n", "u32", "f32"),
    ("v = mul_high(s[0], s[0])", 1, "s[0]", "i32", "u32"),
    ("v = subgroup_and(f[0])", 1, "f[0]", "f32", "bitcast"),
    ("v = bitcast(u8, n)", 1, "bitcast(u8, n)", "bitcast", "u32, i32 and f32"),
    ("v = bitcast(3, n)", 1, "3", "not a type", "u32"),
    ("v = select(f[0], 1, 2)", 1, "f[0]", "condition is f32", "!= 0"),
    ("t = shared(u32, n)", 1, "n", "not known while compiling", "const parameter"),
    ("t = shared(u32, True)", 1, "True", "True is not a whole number", "number of elements"),
    ("t = shared(u32, 2.0)", 1, "2.0", "2.0 is not a whole number", "number of elements"),
    ("t = shared(f32, 2**33)", 1, "2**33", "shared memory of 8589934592 elements", "small"),
    ("t = shared(u32, 0)", 1, "0", "0 elements", "at least 1"),
    ("if n > 1:\n    t = shared(u32, 4)", 2, "shared(u32, 4)", "inside a branch or loop", "top"),
    ("shared(u32, 4)", 1, "shared(u32, 4)", "does not stand alone", "tile = shared"),
    ("x = shared(u32, 4)", 1, "x", "another meaning", "another name"),
    ("t = shared(u32, 4)\nt = 1", 2, "t", "a buffer and cannot be assigned", "another name"),
    ("x[0] = 1", 1, "x[0]", "`x` cannot be written", "InOut[u32]"),
    ("v = out[0]", 1, "out[0]", "Out and cannot be read", "InOut[u32]"),
    ("out[0] += 1", 1, "out[0]", "Out and cannot be read", "InOut[u32]"),
    ("atomic_add(out, 0, 1)", 1, "out", "cannot be read and written", "InOut[u32]"),
    ("atomic_add(x, 0, 1)", 1, "x", "cannot be read and written", "InOut[u32]"),
    ("atomic_add(w, 0, 1)", 1, "w", "buffer of f32, whose sum", "i32(round(v * 65536.0))"),
    ("atomic_max(w, 0, 1)", 1, "w", "buffer of f32", "InOut[u32] or InOut[i32]"),
    ("atomic_add(f, 0, 1)", 1, "f", "buffer of f32", "InOut[u32] or InOut[i32]"),
    ("atomic_add(io, 0, f[0])", 1, "f[0]", "`io` is u32, and this value is f32", "u32(f[0])"),
    ("atomic_add(n, 0, 1)", 1, "n", "`n` is not a buffer", "In[f32]"),
    ("io[0] = io[1] = 1", 1, "io[0]", "chain", "line of its own"),
    ("v = x[0:2]", 1, "x[0:2]", "slices", "one element"),
    ("v = x[0, 1]", 1, "x[0, 1]", "`x` has no rank, and 2 indices", "x: In[u32, D2]"),
    ("v = x.shape", 1, "x.shape", "no `.shape`", "len(x)"),
    ("v = x.strides", 1, "x.strides", "no `.strides`", "len(x)"),
    ("x.size = 3", 1, "x.size", "cannot be assigned", "a name or an element"),
    ("x.size += 3", 1, "x.size", "cannot be assigned", "a name or an element"),
    ("v = gid.w", 1, "gid.w", "no axis `w`", ".x, .y or .z"),
    ("v = gid", 1, "gid", "three axes", "gid.x"),
    ("v = n.real", 1, "n.real", "attribute", "`n` is one number: use it as it is"),
    ("v = math.tau2", 1, "math.tau2", "has no `tau2`", "spelling"),
    ("v = math", 1, "math", "not a number", "vyre"),
    ("v = math.sqrt(f[0])", 1, "math.sqrt(f[0])", "not the kernel's own sqrt", "vyre.sqrt"),
    ("v = np.uint32(n)", 1, "np.uint32(n)", "not a type of kernels", "u32(x)"),
    ("v = np.vdot(n, n)", 1, "np.vdot(n, n)", "cannot be called", "functions of vyre, or compute it before"),
    ("v = np.maximum(n, 1)", 1, "np.maximum(n, 1)", "not the kernel's own max", "use Python's max"),
    ("v = np.where(flag, 1, 2)", 1, "np.where(flag, 1, 2)", "not the kernel's own select", "call vyre.select"),
    ("v = math.isnan(f[0])", 1, "math.isnan(f[0])", "not the kernel's own is_nan", "call vyre.is_nan"),
    ("v = math.fabs(f[0])", 1, "math.fabs(f[0])", "not the kernel's own abs", "use Python's abs"),
    ("v = math.gamma(f[0])", 1, "math.gamma(f[0])", "not part of kernels", "compute it before"),
    ("v = sorted(x)", 1, "sorted(x)", "sorted() is not part of kernels", "np.sort"),
    ("v = vars(x)", 1, "vars(x)", "cannot be called", "functions of vyre, or compute it before"),
    ("v = vyre.max(n, 1)", 1, "vyre.max", "`vyre` has no `max`", "use Python's max"),
    ("v = vyre.abs(n)", 1, "vyre.abs", "`vyre` has no `abs`", "use Python's abs"),
    ("v = int(n)", 1, "int(n)", "int()", "i32(x) or u32(x)"),
    ("v = round(f[0])", 1, "round(f[0])", "round()", "vyre.round"),
    ("v = n(3)", 1, "n", "cannot be called", "leave the parentheses out"),
    ("v = x(3)", 1, "x", "cannot be called", "functions of vyre"),
    ("v = u32", 1, "u32", "is a type", "u32(x)"),
    ("v = sqrt", 1, "sqrt", "is a function", "sqrt(x)"),
    ("v = x", 1, "x", "is a buffer, not a value", "x[i]"),
    ("v = n[0]", 1, "n", "not a buffer", "write n without an index"),
    ("v = x[0][1]", 1, "x[0]", "not a buffer", "write x[0] without an index"),
    ("v = gid[0]", 1, "gid", "not a buffer", "gid.x, gid.y or gid.z"),
    ("v = sqrt[0]", 1, "sqrt[0]", "`sqrt` is a function, and takes no []", "call it: sqrt(x)"),
    ("sqrt[0] = 1", 1, "sqrt", "not a buffer", "In[f32]"),
    ("v = barrier()", 1, "barrier()", "has no value", "statement of its own"),
    ("v = len(n)", 1, "n", "not a buffer", "In[f32]"),
    ("v = range(3)", 1, "range(3)", "range()", "for statement"),
    ("v = static_range(1, 2, 3)", 1, "static_range(1, 2, 3)", "for statement", "for i in"),
    ("first, *rest = 1, 2", 1, "*rest", "`*`", "one by one"),
    ("p, q = 1, 2, 3", 1, "p, q", "3 values for 2 targets", "as many"),
    ("p, q = n", 1, "n", "unpacked", "a, b = x, y"),
    ("p, x.size = 1, 2", 1, "x.size", "cannot be assigned", "names and elements"),
    ("v = (u := 3)", 1, "u := 3", "`:=`", "line of its own"),
    ("n = 3", 1, "n", "a parameter and cannot be assigned", "another name"),
    ("n += 3", 1, "n", "a parameter and cannot be assigned", "another name"),
    ("N = 3", 1, "N", "known while compiling", "another name"),
    ("x = 3", 1, "x", "a buffer", "another name"),
    ("for i in range(3):\n    i = 4", 2, "i", "loop variable", "another name"),
    ("for i in range(3):\n    i += 4", 2, "i", "loop variable", "another name"),
    ("i = 0\nfor i in range(3):\n    pass", 2, "i", "another meaning", "another name"),
    ("for i in x:\n    pass", 1, "x", "range(), static_range() or a tuple of numbers", "range(len(x))"),
    ("for i, j in range(3):\n    pass", 1, "i, j", "one variable", "for i in"),
    ("for i in range():\n    pass", 1, "range()", "one to three", "range(start, stop, step)"),
    ("for i in range(0, 3, 0):\n    pass", 1, "0", "step 0", "another step"),
    ("for i in range(0, n, 0):\n    pass", 1, "0", "step 0 does not move", "not 0"),
    ("for i in range(1.5):\n    pass", 1, "1.5", "not a whole number", "whole numbers"),
    ("for i in range(10**30):\n    pass", 1, "range(10**30)", "beyond u32", "smaller"),
    ("for i in range(1 << 32):\n    pass", 1, "range(1 << 32)", "4294967295|4294967296", "smaller"),
    ("for i in range(-5, (1 << 31) + 1):\n    pass", 1, "range(-5, (1 << 31) + 1)", "reaches 2147483648", "smaller"),
    ("for i in range(1, 1 << 33, 9):\n    pass", 1, "range(1, 1 << 33, 9)", "beyond u32", "smaller"),
    ("for i in range(0xFFFFFFFF, -1, -1):\n    pass", 1, "range(0xFFFFFFFF, -1, -1)", "4294967296 turns", "at most"),
    ("for i in range(f[0]):\n    pass", 1, "f[0]", "is f32", "u32(f[0])"),
    ("for i in range(n, s[0]):\n    pass", 1, "n", "bounds of the range are u32 and i32", "i32(n)"),
    ("for i in range(n, -2, -1):\n    pass", 1, "-2", "does not fit u32", "0 to"),
    ("for i in static_range(n):\n    pass", 1, "n", "known while compiling", "range()"),
    ("for i in static_range(10**30):\n    pass", 1, "static_range(10**30)", f"{10**30} turns", "range()"),
    ("for i in range(x[0], x[1], 5000000000):\n    pass", 1, "5000000000", "beyond 32 bits", "smaller step"),
    ("for i in range(n, -1.0, -1):\n    pass", 1, "-1.0", "-1.0 meets a value of type u32", "whole number"),
    ("for i in static_range(1 << 20):\n    pass", 1, "static_range(1 << 20)", "1048576 turns", "range()"),
    ("for i in range(3):\n    pass\nelse:\n    out[0] = 1", 4, "out[0] = 1", "`else` of a loop", "flag"),
    ("while n > 3:\n    pass\nelse:\n    out[0] = 1", 4, "out[0] = 1", "`else` of a loop", "flag"),
    ("while f[0]:\n    pass", 1, "f[0]", "condition is f32", "f[0] != 0"),
    ("if s[0]:\n    pass", 1, "s[0]", "condition is i32", "s[0] != 0"),
    ("v = not f[0]", 1, "f[0]", "condition is f32", "!= 0"),
    ("v = 1 if n > 1 else atomic_add(io, 0, 1)", 1, "atomic_add(io, 0, 1)", "has an effect", "if statement"),
    ("v = n > 1 and atomic_add(io, 0, 1) > 1", 1, "atomic_add(io, 0, 1) > 1", "runs always", "nested if"),
    ("v = 5 < n < atomic_add(io, 0, 1)", 1, "atomic_add(io, 0, 1)", "chained comparison", "nested if"),
    ("v = 1 if n > 1 else 2 if atomic_add(io, 0, 1) else 3", 1, "atomic_add(io, 0, 1)", "has an effect", "if"),
    ("v = n > 1 or atomic_add(io, 0, 1) > 1", 1, "atomic_add(io, 0, 1) > 1", "runs always", "nested if"),
    ("v = 1.0 if n > 1 else n", 1, "1.0", "meets a value of type u32", "whole number"),
    ("out[0] = b[0] + 1", 1, "b[0] + 1", "`+` of u8, which only stores", "u32(b[0])"),
    ("v = b[0]\nv += 1", 2, "v += 1", "`+` of u8, which only stores", "write v = u8(u32(v) + 1)"),
    ("v = -b[0]", 1, "-b[0]", "which only stores", "u32(b[0])"),
    ("v = b[0] << 1", 1, "b[0] << 1", "which only stores", "u32(b[0])"),
    ("v = abs(b[0])", 1, "abs(b[0])", "which only stores", "u32(b[0])"),
    ("v = max(b[0], 1)", 1, "max(b[0], 1)", "which only stores", "u32(b[0])"),
    ("v = max(n)", 1, "max(n)", "takes 2 arguments, not 1", "max(a, b)"),
    ("v = max(n, f[0])", 1, "max(n, f[0])", "of u32 and f32", "f32(n)"),
    ("w[0] = n + f[0]", 1, "n + f[0]", "`+` of u32 and f32", "f32(n)"),
    ("v = ~flag", 1, "~flag", "`~` of a bool", "not flag"),
    ("v = -flag", 1, "-flag", "`-` of a bool", "i32(flag)"),
    ("v = flag + flag", 1, "flag", "bool", "u32"),
    ("v = flag + 1", 1, "flag + 1", "`+` of a bool and a number", "write u32(flag) + 1"),
    ("v = 2 * flag", 1, "2 * flag", "`*` of a bool and a number", "write 2 * u32(flag)"),
    ("v = flag & 1", 1, "flag & 1", "`&` of a bool and a number", "write u32(flag) & 1"),
    ("v = n & ~1", 1, "~1", "-2 does not fit u32", "write ~u32(1)"),
    ("v = flag < flag", 1, "flag < flag", "order", "u32"),
    ("v = ~1.5", 1, "~1.5", "`~` of 1.5", "whole number"),
    ("v = n << 32", 1, "32", "shift by 32 of a 32-bit value", "0 to 31"),
    ("v = n >> -1", 1, "-1", "shift by -1", "0 to 31"),
    ("v = 0\nv += s[0]", 2, "v += s[0]", "`v` is u32 since line 2, and meets i32", "at line 2: v: i32 = ..."),
    ("v = n\nv <<= s[0]", 2, "s[0]", "the shift count is i32", "u32(s[0])"),
    ("v = n << s[0]", 1, "s[0]", "shift count is i32, and counts are u32", "write u32(s[0])"),
    ("v = n << i32(2 * x[0])", 1, "i32(2 * x[0])", "shift count is i32", "write u32(2 * x[0])"),
    ("v = f[0] << 1", 1, "f[0]", "f32", "integer"),
    ("v = n // 0", 1, "0", "division by zero", "not zero"),
    ("v = N // 0", 1, "N // 0", "division by zero", "not zero"),
    ("v = -7 // 2", 1, "-7 // 2", "rounds down in Python", "before the kernel"),
    ("v = 1 << 300", 1, "1 << 300", "too large", "below"),
    ("v = 10 ** 300", 1, "10 ** 300", "too large", "below"),
    ("v = (-2) ** 0.5", 1, "(-2) ** 0.5", "no real value", "correct the numbers"),
    ("v = 1 << -1", 1, "1 << -1", "no value", "correct the numbers"),
    ("v = 1.5 & 1", 1, "1.5 & 1", "no value", "correct the numbers"),
    ("v = N @ N", 1, "N @ N", "`@`", "loops"),
    ("n + 1", 1, "n + 1", "not used", "assign it"),
    ("sqrt(f[0])", 1, "sqrt(f[0])", "not used", "assign it"),
    ("x", 1, "x", "not used", "assign it"),
    ("v: u32", 1, "v: u32", "no value", "same line"),
    ("v: int = 3", 1, "int", "not a type of kernels", "write i32"),
    ("v: str = 3", 1, "str", "not a type of kernels", "u32"),
    ("v: u32 = f[0]", 1, "f[0]", "`v` is u32, and this value is f32", "u32(f[0])"),
    ("v = n\nv: f32 = 1.0", 2, "v", "cannot become f32", "another name"),
    ("io[0]: u32 = 1", 1, "io[0]", "only names", "annotation"),
    ("return n", 1, "n", "return nothing", "Out parameter"),
    ("trap()", 1, "trap()", "takes 1 or 2 arguments, not 0", "write trap(tag) or trap(tag, address)"),
    ("trap(n)", 1, "n", "not a string", 'trap("'),
    ("trap('late', f[0])", 1, "f[0]", "the address of a trap is u32", "u32(f[0])"),
    ("if n > 1:\n    grid_sync()", 2, "grid_sync()", "grid", "out of"),
    ("v = f64(n)\nu = bf16(v)", 2, "bf16(v)", "from f64 to bf16 the value would be rounded twice", "bf16(f32(v))"),
    ("v = f64(n)\nu = f16(v)", 2, "f16(v)", "rounded twice", "f16(f32(v))"),
    ("v = bf16(n)", 1, "bf16(n)", "from u32 to bf16", "bf16(f32(n))"),
    ("v = bf16(s[0])", 1, "bf16(s[0])", "from i32 to bf16", "bf16(f32(s[0]))"),
    ("v = u64(n)\nu = bf16(v)", 2, "bf16(v)", "from u64 to bf16 the value would be rounded twice", "bf16(f32(v))"),
    ("v = bf16(3.4e38)", 1, "bf16(3.4e38)", "does not fit bf16", "smaller"),
    ("größe = [1]", 1, "[1]", "lists", "acc = local(f32, 8)"),
]  # fmt: skip


@pytest.mark.parametrize("body, line, under, message, fix", BODIES, ids=[b[0].replace("\n", ";") for b in BODIES])
def test_wrong_body(body, line, under, message, fix):
    source = HEADER + "\n" + "".join(f"    {text}\n" for text in body.split("\n"))
    error = refusal(source)
    assert error.lineno == line + 1
    assert caret(error) == under
    assert any(words in error.message for words in message.split("|"))
    assert fix in error.fix
    assert error.text == source.splitlines()[line]


SIGNATURES = [
    ("def k(x):", "x", "no annotation", "x: In[f32]"),
    ("def k(x: In):", "In", "not a type of kernels", "In[f32]"),
    ("def k(x: int):", "int", "not a type of kernels", "write i32 for a number"),
    ("def k(x: float):", "float", "not a type of kernels", "f32"),
    ("def k(x: np.int64):", "np.int64", "not a type of kernels", "i64"),
    ("def k(x: np.ndarray):", "np.ndarray", "not a type of kernels", "In[f32]"),
    ("def k(x: 'In[f33]'):", "'In[f33]'", "cannot be evaluated: name 'f33'", "import its names"),
    ("def k(x: 'In[3]'):", "'In[3]'", "does not name an element type", "In[f32]"),
    ("def k(*args):", "args", "fixed list", "name every parameter"),
    ("def k(**named):", "named", "fixed list", "name every parameter"),
    ("def k(x: f32 = 'a'):", "x: f32", "the default of `x` is not of type f32", "give a number"),
    ("def k(x: u32 = 1.5):", "x: u32", "the default of `x` is not of type u32", "give a whole number"),
    ("def k(x: bool = 1):", "x: bool", "the default of `x` is not of type bool", "give True or False"),
    ("def k(x: u8 = 256):", "x: u8", "the default of `x`: 256 does not fit u8", "0 to 255"),
    ("def k(*, x: f32 = None):", "x: f32", "the default of `x` is not of type f32", "give a number"),
    ("def k(x: In[f32] = None):", "x: In[f32]", "the buffer `x` has a default", "drop it"),
    ("def k(x: Out[f32] = None):", "x: Out[f32]", "has a default", "made by the call where it is left out"),
    ("def k(n: const):", "n: const", "positional", "behind `*`"),
    ("def k(*, x: In[f32]):", "x: In[f32]", "is a buffer", "before `*`"),
    ("def k(*, n: const = 'a'):", "n: const", "not a number", "number"),
    ("def k(*, n: const):", "n: const", "has no value", "n=..."),
    ("def k(grid: u32):", "grid: u32", "keyword of every kernel call", "another name"),
    ("def k(sizes: u32):", "sizes: u32", "keyword", "another name"),
    ("def k(domain: u32):", "domain: u32", "keyword", "another name"),
    ("def k(config: u32):", "config: u32", "keyword", "another name"),
    ("def k(größe: u32):", "größe: u32", "not ASCII", "letters"),
    ("def k(self, x: In[f32]):", "self", "not a method", "move it out of the class, or drop self"),
    ("def k(x: u32) -> u32:", "u32", "return nothing", "Out parameter"),
    ("async def k(x: u32):", "async def k(x: u32):", "async", "plain def"),
]


@pytest.mark.parametrize("header, under, message, fix", SIGNATURES, ids=[s[0] for s in SIGNATURES])
def test_wrong_signature(header, under, message, fix):
    error = refusal(f"{header}\n    pass\n")
    assert error.lineno == 1
    assert caret(error) == under
    assert message in error.message
    assert fix in error.fix


@pytest.mark.parametrize("value, words", [("x", "is a str"), (None, "is a NoneType"), ([1], "is a list")])
def test_the_value_of_a_compile_time_parameter_is_a_number(value, words):
    source = read_source(define("def k(out: Out[u32], *, n: const):\n    out[0] = n\n")["k"], 1)
    with pytest.raises(vyre.KernelError, match=words):
        build_program(source, {"n": value})


HELPERS = """
@vyre.device
def fact(n):
    return n * fact(n - 1)
@vyre.device
def ping(n):
    return pong(n)
@vyre.device
def pong(n):
    return ping(n)
@vyre.device
def early(n):
    for i in range(4):
        return n
@vyre.device
def pair(n):
    return n, n
@vyre.device
def tiled(n):
    tile = shared(u32, 4)
    return tile[n]
@vyre.device
def outer(n):
    return tiled(n)
@vyre.device
def sometimes(n):
    if n > 1:
        return n
@vyre.device
def bare(n):
    if n > 1:
        return
    return n
@vyre.device
def mixed(n):
    if n > 1:
        return n
    return 1.5
@vyre.device
def uneven(n, m):
    if n > 1:
        return n
    return m
@vyre.device
def typed(n: f32) -> f32:
    return n + 1
@vyre.device
def wrong(n) -> f32:
    return n
@vyre.device
def strange(n: int):
    return n
@vyre.device
def odd(n) -> list:
    return n
@vyre.device
def many(*n):
    return 1
@vyre.device
def reads(buf: In[f32], k: const):
    return buf[k]
@vyre.device
def stores(buf, n):
    buf[0] = n
@vyre.device
def spins(n):
    while n > 1:
        n -= 1
    return n
def plain(n):
    return n
def k(x: In[u32], f: In[f32], io: InOut[u32]):
"""
HELPER_CALLS = [
    ("v = fact(3)", "fact(n - 1)", "fact -> fact", "loop"),
    ("v = ping(3)", "ping(n)", "ping -> pong -> ping", "loop"),
    ("v = early(3)", "def early(n):", "without a value", "end every path"),
    ("v = pair(x[0])\n    io[0] = v", "v", "`v` is 2 values", "unpack them: a, b = ..."),
    ("if x[0] > 1:\n        v = tiled(x[0])", "shared(u32, 4)", "inside a branch or loop", "call the helper"),
    ("for i in range(3):\n        v = outer(x[0])", "shared(u32, 4)", "inside a branch or loop", "helper at the top"),
    ("v = sometimes(x[0])", "def sometimes(n):", "without a value", "end every path"),
    ("v = bare(x[0])", "return", "without a value", "end every path"),
    ("v = mixed(x[0])", "1.5", "1.5 meets a value of type u32", "whole number"),
    ("v = uneven(x[0], f[0])", "m", "returns u32 elsewhere and f32 here", "u32(m)"),
    ("v = typed(x[0])", "x[0]", "`n` is f32, and this value is u32", "f32(x[0])"),
    ("v = typed()", "typed()", "needs a value for `n`", "typed(n)"),
    ("v = typed(1, 2)", "typed(1, 2)", "takes 1 positional arguments, not 2", "typed(n)"),
    ("v = typed(m=1)", "m=1", "no place for `m`", "typed(n)"),
    ("v = typed(1, n=1)", "n=1", "no place for `n`", "typed(n)"),
    ("v = wrong(x[0])", "n", "the result of wrong() is f32, and this value is u32", "f32(n)"),
    ("v = strange(1)", "int", "not a type of kernels", "f32"),
    ("v = odd(1)", "list", "not a type of kernels", "f32"),
    ("v = many(1)", "n", "fixed list", "name every parameter"),
    ("v = reads(x, 1)", "x", "buffer of f32, and this one holds u32", "another buffer"),
    ("v = reads(f, x[0])", "x[0]", "known while compiling", "const parameter"),
    ("v = reads(1, 1)", "1", "`buf` is a buffer, and this is a value", "pass a buffer"),
    ("v = typed(x)", "x", "`n` is a value, and this is a buffer", "x[i]"),
    ("stores(x, 1)", "buf[0]", "`x` cannot be written", "InOut[u32]"),
    ("v = stores(io, 1)", "stores(io, 1)", "has no value", "statement"),
    ("v = spins(x[0]) if x[0] > 1 else 1", "spins(x[0])", "has an effect", "if statement"),
    ("v = plain(1)", "plain(1)", "cannot be called", "@vyre.device"),
    ("v = LIST + 1", "LIST", "is a list, not a number", "LIST[0]"),
    ("v = TEXT + 1", "TEXT", "is a str, not a number", "parameter"),
]  # fmt: skip


@pytest.mark.parametrize("body, under, message, fix", HELPER_CALLS, ids=[h[0] for h in HELPER_CALLS])
def test_wrong_helper(body, under, message, fix):
    error = refusal(f"{HELPERS}    {body}\n", LIST=[1], TEXT="a")
    assert caret(error) == under
    assert message in error.message
    assert fix in error.fix


HUGE = 1 << 20_000


@pytest.mark.parametrize(
    "body, message",
    [
        ("v = HUGE", "(about 2**20000) does not fit u32"),
        ("v = -HUGE", "-(about 2**20000) does not fit i32"),
        ("v = x[0] + HUGE", "(about 2**20000) does not fit u32"),
        ("v = f[0] + HUGE", "(about 2**20000) does not fit f32"),
        ("v = x[HUGE]", "(about 2**20000) does not fit u32"),
        ("v = x[-HUGE]", "-(about 2**20000) is negative"),
        ("v = x[0] << HUGE", "shift by (about 2**20000)"),
        ("v = x[0] > 1 and (x[0] > 2) == HUGE", "(about 2**20000) meets a value of type bool"),
        ("t = shared(u32, HUGE)", "shared memory of (about 2**20000) elements"),
        ("for i in range(HUGE):\n        pass", "beyond u32"),
        ("for i in range(x[0], x[1], HUGE):\n        pass", "step (about 2**20000)"),
        ("for i in static_range(HUGE):\n        pass", "(about 2**20000) turns"),
        (f"v = {'9' * 401}", "(about 2**1332) does not fit u32"),
        (f"v = x[0] + f[0x{'f' * 4000}]", "(about 2**15999) does not fit u32"),
        (f"v = x[f[0] + 0x{'f' * 4000}]", "(about 2**15999) does not fit f32"),
        (f"v = x[x[0] + f32(0x{'f' * 8})]", "`+` of u32 and f32"),
        (f"v = x[f[0 * 0x{'f' * 4000}]]", "the index is f32"),
        ("v = u32(1e300)", "(about 2**996) does not fit u32"),
    ],
)
def test_numbers_in_messages_are_short(body, message):
    error = refusal(f"def k(x: In[u32], f: In[f32]):\n    {body}\n", HUGE=HUGE)
    assert message in error.message
    assert len(str(error.message)) + len(error.fix) < 200


def test_huge_counts_of_buffers_are_refused_with_a_short_number():
    assert "(about 2**20000)" in refusal("def k(x: In[u32, HUGE]):\n    pass\n", HUGE=HUGE).message


def test_kernels_call_no_kernels():
    other = vyre.kernel(workgroup=64)(define("def other(out: Out[u32]):\n    out[0] = 1\n")["other"])
    error = refusal("def k(out: Out[u32]):\n    other(out)\n", other=other)
    assert (caret(error), error.message) == ("other(out)", "`other` is a kernel, and kernels cannot call kernels")
    assert "@vyre.device" in error.fix


@pytest.mark.parametrize(
    "table, kind", [((1,) * 5000, "tuple"), ([1] * 5000, "list"), (np.zeros(5000), "ndarray"), ({0: 1}, "dict")]
)
def test_large_collections_are_passed_as_parameters(table, kind):
    error = refusal("def k(out: Out[u32]):\n    out[0] = TABLE[0]\n", TABLE=table)
    assert (caret(error), error.message) == ("TABLE", f"`TABLE` is a {kind}, not a buffer")
    assert error.fix == "pass it as a parameter: TABLE: In[f32]"


def test_an_error_inside_a_helper_names_the_call():
    error = refusal(f"{HELPERS}    v = wrong(x[0])\n")
    (note,) = error.__notes__
    assert note.startswith("in wrong(), called at <case")
    assert note.endswith(f":{HELPERS.count(chr(10)) + 1}")


def test_what_a_traceback_shows():
    error = refusal(HEADER + "\n    größe = f[0]\n    out[größe] = ünknown + 1\n")
    shown = "".join(traceback.format_exception_only(error))
    assert "line 3" in shown
    assert "    out[größe] = ünknown + 1\n                 ^^^^^^^\n" in shown
    assert "Fix: " in shown
    assert isinstance(error, SyntaxError)
    assert str(error).splitlines()[1:3] == ["    out[größe] = ünknown + 1", "                 ^^^^^^^"]


def test_lines_and_columns_of_an_indented_kernel_are_those_of_the_file():
    scope = define(
        "def make():\n    class Inner:\n        @staticmethod\n"
        "        def k(out: Out[u32]):\n            out[0] = (\n                missing)\n        return_it = k\n"
        "    return Inner.__dict__['k'].__func__\n"
    )
    with pytest.raises(vyre.KernelError, match="missing") as caught:
        build_program(read_source(scope["make"](), 1), {})
    assert caught.value.lineno == 6
    assert caught.value.offset == 17


def test_an_error_over_several_lines_is_marked_to_the_end_of_the_first():
    error = refusal(HEADER + "\n    out[0] = max(f[0],\n                 n)\n")
    assert (error.lineno, caret(error)) == (2, "max(f[0],")


def test_deep_nesting_is_an_error_and_no_crash():
    error = refusal(HEADER + "\n    out[0] = " + "-(" * 60 + "n" + ")" * 60 + "\n" + "    v = 1\n")
    assert "deep" in error.message
    deep = "x[" * 90 + "0" + "]" * 90
    error = refusal(HEADER + f"\n    out[0] = {deep}\n")
    assert "deep" in error.message
    error = refusal(HEADER + f"\n    out[0] = {'- ' * 700}n\n")
    assert error.message == "the kernel is nested too deeply"
    assert error.lineno == 1


@pytest.mark.parametrize("workgroup", [0, -1, (), (1, 2, 3, 4), (8, 0), 1 << 32])
def test_a_workgroup_has_one_to_three_positive_sizes(workgroup):
    with pytest.raises(vyre.ArgumentValueError, match="one to three positive sizes") as caught:
        read_source(define("def k(out: Out[u32]):\n    out[0] = 1\n")["k"], workgroup)
    assert "workgroup=256" in caught.value.fix


@pytest.mark.parametrize("workgroup", [None, "64", 1.5, True, (8, 2.0), (True, 1)])
def test_a_workgroup_is_made_of_whole_numbers(workgroup):
    with pytest.raises(vyre.ArgumentTypeError, match="workgroup"):
        read_source(define("def k(out: Out[u32]):\n    out[0] = 1\n")["k"], workgroup)


@pytest.mark.parametrize("thing", [3, len, str])
def test_only_functions_have_source(thing):
    with pytest.raises(vyre.ArgumentTypeError, match="not given a function"):
        read_source(thing, 1)


def test_a_lambda_is_no_kernel():
    with pytest.raises(vyre.KernelError, match="something else") as caught:
        read_source(define("k = lambda out: None\n")["k"], 1)
    assert "with def" in caught.value.fix


# ---- names of the language outside kernels --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda: vyre.sqrt(2.0), lambda: vyre.barrier(), lambda: vyre.shared(vyre.u32, 4), lambda: vyre.trap("x"),
        lambda: vyre.atomic_add(1, 2, 3), lambda: vyre.static_range(3), lambda: vyre.select(True, 1, 2),
        lambda: define(HELPERS + "    pass\n")["fact"](3),
    ],
)  # fmt: skip
def test_functions_of_kernels_refuse_numbers_outside(call):
    with pytest.raises(vyre.ArgumentTypeError, match="works inside kernels") as caught:
        call()
    assert "@vyre.kernel" in caught.value.fix


def test_the_wrong_number_of_expressions_is_refused():
    with pytest.raises(vyre.ArgumentTypeError, match="takes 1 arguments, not 2") as caught:
        vyre.sqrt(vyre.gid.x, vyre.gid.x)
    assert caught.value.fix == "write sqrt(x)"


@pytest.mark.parametrize("item, error", [(3, TypeError), ((vyre.f32, 1.5), TypeError), ((vyre.f32, 0), ValueError)])
def test_wrong_subscripts_of_roles(item, error):
    with pytest.raises(error) as caught:
        vyre.In[item]
    assert isinstance(caught.value, vyre.VyreError)


@pytest.mark.parametrize("thing", [None, 3, b"program", ["program"]])
def test_only_text_is_parsed(thing):
    with pytest.raises(vyre.ArgumentTypeError, match=f"is a {type(thing).__name__}") as caught:
        vyre.parse(thing)
    assert "str(program)" in caught.value.fix


@pytest.mark.parametrize("thing", [None, "program", vyre.u32])
def test_only_programs_are_validated(thing):
    with pytest.raises(vyre.ArgumentTypeError, match="is not a program") as caught:
        vyre.validate(thing)
    assert "kernel.program" in caught.value.fix


def test_numbers_outside_kernels_are_shown_short():
    for refused in (lambda: vyre.u32(HUGE), lambda: vyre.gid.x + HUGE, lambda: vyre.u8(-HUGE)):
        with pytest.raises(vyre.IRValueError, match=r"\(about 2\*\*20000\) does not fit"):
            refused()
    (issue,) = vyre.validate(vyre.Program([], (1, 1, 1), [Let("v", Lit(vyre.u32, HUGE))]))
    assert "(about 2**20000)" in issue.message
    with pytest.raises(vyre.TextError) as caught:
        vyre.parse(str(vyre.Program([], (1, 1, 1), [Let("v", Lit(vyre.u32, 7))])).replace("7", "9" * 399))
    assert "(about 2**1325) does not fit u32" in caught.value.message


def test_what_to_do_about_depth_depends_on_what_is_deep():
    error = refusal(HEADER + "\n    out[0] = " + "-(" * 60 + "n" + ")" * 60 + "\n")
    assert (error.fix, error.lineno) == ("bind parts of it to names", 2)
    error = refusal(HEADER + "\n    out[0] = " + "-(" * 130 + "n" + ")" * 130 + "\n")
    assert error.fix == "bind parts of it to names"
    ifs = "".join("    " + " " * k + f"if x[{k}] > 1:\n" for k in range(62))
    error = refusal(f"{HEADER}\n{ifs}{' ' * 70}out[0] = 1\n")
    assert "merge nested conditions" in error.fix

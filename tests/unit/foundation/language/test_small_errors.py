"""Wrong kernels of several results, local arrays and small values: the caret under the culprit, and what to write."""

from typing import NamedTuple, TypeVar

import pytest

import vyre

from .test_kernel_errors import caret, refusal

HEAD = """
class Ray(NamedTuple):
    o: vec3
    d: vec3
    t: f32 = 1.0
class Bad(NamedTuple):
    x: int
class Mixed(NamedTuple):
    a: f64
    b: f32
@vyre.device
def pair(a, b):
    return a, b
@vyre.device
def uneven(a, m):
    if a > 1:
        return a, 1.0
    return a, m
@vyre.device
def forms(a):
    if a > 1:
        return a, a
    return a
@vyre.device
def declared(a) -> tuple[f32, u32]:
    return a, a
@vyre.device
def three(a) -> tuple[f32, u32]:
    return 1.0, a, a
@vyre.device
def search(x, v):
    for i in range(len(x)):
        if x[i] == v:
            return i
@vyre.device
def of_vector(v: vec3) -> f32:
    return v.x
@vyre.device
def gives(a) -> vec3:
    return a
@vyre.device
def takes(a: InOut[f32]):
    a[0] = 1.0
@vyre.device
def keeps(n):
    acc = local(f32, 4)
    return acc
"""
CASES = [
    ("a, b, c = pair(x[0], 1)", "a, b, c", "2 values for 3 targets", "write as many values as targets"),
    ("a, b = x[0]", "x[0]", "this is one value, and cannot be unpacked", "write a, b = x, y"),
    ("v = pair(x[0], 1) + 1", "pair(x[0], 1) + 1", "`+` of 2 values", "unpack them first: a, b = ..."),
    (
        "v = uneven(x[0], x[1])",
        "1.0",
        "1.0 meets a value of type u32",
        "write a whole number, or convert the other side: f32(...)",
    ),
    ("v = forms(x[0])", "a", "forms() returns tuple[u32, u32] elsewhere and u32 here", "return values of one form"),
    ("v = declared(x[0])", "a", "the result of declared() is f32, and this value is u32", "write f32(a)"),
    (
        "v = three(x[0])",
        "1.0, a, a",
        "the result of three() is 2 values, and this is tuple[f32, u32, u32]",
        "give one value for each of them",
    ),
    ("v = search(x, 3)", "def search(x, v):", "search() may end without a value", "end every path with return"),
    ("if pair(x[0], 1): pass", "pair(x[0], 1)", "`pair(x[0], 1)` is 2 values", "unpack them: a, b = ..."),
    (
        "acc = local(f32, x[0])",
        "x[0]",
        "the size of a local array is not known while compiling",
        "use a number or a const parameter",
    ),
    ("acc = local(f32, 0)", "0", "a local array of 0 elements", "make it at least 1"),
    ("acc = local(f32, 2.0)", "2.0", "2.0 is not a whole number", "give the number of elements"),
    (
        "acc = local(8, f32)",
        "local(8, f32)",
        "local() takes a type and then one number of elements",
        "write local(f32, 8)",
    ),
    ("acc = local(np.float32, 8)", "np.float32", "`np.float32` is not a type of kernels", "write f32"),
    (
        "acc = local(f32, 4000)",
        "local(f32, 4000)",
        "the local arrays of an invocation take 16000 bytes, and there are 8192",
        "make it smaller, or keep it in a buffer with a part for each invocation",
    ),
    ("local(f32, 4)", "local(f32, 4)", "local() does not stand alone", "assign it to a name: tile = local(f32, 256)"),
    (
        "out[0] = local(f32, 4)",
        "local(f32, 4)",
        "local() does not stand alone",
        "assign it to a name: tile = local(f32, 256)",
    ),
    ("acc = local(f32, 4)\nacc[4] = 1.0", "4", "the index 4 lies outside the 4 elements", "use 0 to 3"),
    ("acc = local(f32, 4)\nacc[-1] = 1.0", "-1", "the index -1 is negative", "count from the front: x[len(x) - 1]"),
    ("acc = local(f32, 4)\nacc[0] = x[0]", "x[0]", "`acc[0]` is f32, and this value is u32", "write f32(x[0])"),
    ("acc = local(f32, 4)\nb = acc", "acc", "`acc` is an array, not a value", "index it: acc[i]"),
    ("acc = local(f32, 4)\nf = acc + 1.0", "acc", "`acc` is an array, not a value", "index it: acc[i]"),
    ("acc = local(f32, 4)\nacc = 1.0", "acc", "`acc` is an array and cannot be assigned", "use another name"),
    (
        "acc = local(u32, 4)\natomic_add(acc, 0, 1)",
        "acc",
        "atomic_add() on a local array",
        "write x[i] += value: no other invocation sees it",
    ),
    (
        "acc = local(u32, 4)\nacc[0, 1] = 1",
        "acc[0, 1]",
        "`acc` has no rank, and 2 indices",
        "compute one index: x[row * width + column]",
    ),
    ("acc = local(u32, 4)\ntakes(acc)", "acc", "`a` is a buffer of f32, and this one holds u32", "pass another buffer"),
    (
        "acc = local(vec3, 4)\nacc[0].x = 1.0",
        "acc[0].x",
        "the fields of `acc[0]` cannot be assigned",
        "make another one: acc[0] = acc[0]._replace(x=...)",
    ),
    ("acc = local(vec3, 4)\nacc[0] = 1.0", "1.0", "`acc[0]` is vec3, and this value is f32", "write vec3(x, y, z)"),
    ("acc = keeps(4)", "acc", "`acc` is an array, not a value", "index it: acc[i]"),
    ("v = vec3(1.0, 2.0)", "vec3(1.0, 2.0)", "vec3() needs a value for `z`", "write vec3(x, y, z)"),
    ("v = vec3(1.0, 2.0, x[0])", "x[0]", "`z` of vec3 is f32, and this value is u32", "write f32(x[0])"),
    ("v = vec3(1.0, 2.0, q=1.0)", "q=1.0", "vec3() has no place for `q`", "write vec3(x, y, z)"),
    ("v = vec3(1.0, y=2.0)", "vec3(1.0, y=2.0)", "vec3() needs a value for `z`", "write vec3(x, y, z)"),
    ("v = vec3(vec2(1.0, 2.0))", "vec2(1.0, 2.0)", "vec3() of a vec2", "write vec3(x, y, z)"),
    (
        "v = vec3[u32](1.5)",
        "1.5",
        "1.5 meets a value of type u32",
        "write a whole number, or convert the other side: f32(...)",
    ),
    ("v = vec3[bool](True)", "bool", "a vector of bool", "make it of f32, i32, u32 or f64"),
    ("v = vec3(1.0)\nw = v.w", "v.w", "vec3 has no `w`", "use one of: x, y, z"),
    (
        "v = vec3(1.0)\nv.x = 2.0",
        "v.x",
        "the fields of `v` cannot be assigned",
        "make another one: v = v._replace(x=...)",
    ),
    (
        "v = vec3(1.0)\nv.x += 2.0",
        "v.x",
        "the fields of `v` cannot be assigned",
        "make another one: v = v._replace(x=...)",
    ),
    ("v = vec3(1.0)\nw = v + vec2(1.0)", "v + vec2(1.0)", "`+` of vec3 and vec2", "give both one type"),
    (
        "v = vec3(1.0)\nw = v + vec3[i32](1)",
        "v + vec3[i32](1)",
        "`+` of vec3 and vec3[i32]",
        "convert one side: vec3(vec3[i32](1))",
    ),
    ("v = vec3(1.0)\nw = v * x[0]", "v * x[0]", "`*` of f32 and u32", "convert one side, for example f32(x[0])"),
    ("v = vec3(1.0)\nw = v @ v", "v @ v", "`@` is not an operator of kernels", "write dot(a, b)"),
    ("v = vec3(1.0)\nw = v < v", "v < v", "`<` of vec3 and vec3", "compare their numbers"),
    ("v = vec3(1.0)\nw = v == 1.0", "v == 1.0", "`==` of vec3 and f32", "compare a field"),
    ("v = vec3(1.0)\nv = 1.0", "1.0", "`v` is vec3 since line 49 and cannot become f32", "use another name"),
    (
        "v = vec3(1.0)\nv = vec2(1.0)",
        "vec2(1.0)",
        "`v` is vec3 since line 49 and cannot become vec2",
        "use another name",
    ),
    ("v = 1.0\nv = vec3(1.0)", "vec3(1.0)", "`v` is f32 since line 49 and cannot become vec3", "use another name"),
    ("v = vec3(1.0)\nw = v[3]", "3", "the index 3 lies outside the 3 values", "use 0 to 2"),
    (
        "v = vec3(1.0)\nw = v[x[0]]",
        "x[0]",
        "the index of `v` is not a number known while compiling",
        "loop with static_range(3), or keep the numbers in local(f32, 3)",
    ),
    ("v = vec3(1.0)\nout[0] = v", "v", "`v` is a vec3, not a number", "write v.x"),
    ("v = vec3(1.0)\nw = sqrt(v)", "v", "`v` is a vec3, not a number", "write v.x"),
    ("v = vec3(1.0)\nw = f32(v)", "v", "`v` is a vec3, not a number", "write v.x"),
    (
        "v = vec3(1.0)\nw = v if x[0] == 1 else 1.0",
        "1.0",
        "a choice between vec3 and f32",
        "give every arm the type vec3",
    ),
    ("v = vec3(1.0)\nw = dot(v, 1.0)", "1.0", "dot() takes a vector, and this is f32", "make one: vec3(x, y, z)"),
    (
        "v = vec3(1.0)\nw = dot(v, vec2(1.0))",
        "dot(v, vec2(1.0))",
        "dot() of vec3 and vec2",
        "convert one side: vec3(...)",
    ),
    ("v = vec2(1.0)\nw = cross(v, v)", "cross(v, v)", "cross() of vec2", "use vec3"),
    ("v = vec3[i32](1)\nw = length(v)", "v", "length() of vec3[i32]", "convert it: vec3(v)"),
    ("v = conj(vec2(1.0))", "vec2(1.0)", "conj() takes a c64, and this is vec2", "make one: c64(re, im)"),
    (
        "v = c64(1.0, 2.0) / c64(1.0, 1.0)",
        "c64(1.0, 2.0) / c64(1.0, 1.0)",
        "`/` by a complex number",
        "multiply by conj(w), and divide by w.real * w.real + w.imag * w.imag",
    ),
    ("v = c64(1.0, 2.0) % 2.0", "c64(1.0, 2.0) % 2.0", "`%` of complex numbers", "use + - * and / by a real number"),
    ("v = c64(1.0, 2.0) < 1j", "c64(1.0, 2.0) < 1j", "`<` of c64 and c64", "compare their numbers"),
    ("v = c64(1.0)", "c64(1.0)", "c64() needs a value for `imag`", "write c64(real, imag)"),
    ("v = Ray(vec3(1.0))", "Ray(vec3(1.0))", "Ray() needs a value for `d`", "write Ray(o, d, t)"),
    ("v = Ray(vec3(1.0), 1.0)", "1.0", "`d` of Ray is vec3, and this value is f32", "write vec3(x, y, z)"),
    (
        "v = Ray(vec3(1.0), vec3(1.0)) * 2.0",
        "Ray(vec3(1.0), vec3(1.0)) * 2.0",
        "`*` of a Ray, which has no arithmetic",
        "write each field: Ray(a.o * b.o, a.d * b.d, ...), or make it a vec3",
    ),
    ("v = Ray(vec3(1.0), vec3(1.0))._replace(q=1.0)", "q=1.0", "Ray() has no place for `q`", "use one of: o, d, t"),
    (
        "v = Ray(vec3(1.0), vec3(1.0)).length()",
        "Ray(vec3(1.0), vec3(1.0)).length",
        "Ray has no `length`",
        "use one of: o, d, t",
    ),
    ("v = Bad(1)", "Bad", "the field x of Bad is not of a type of kernels", "write x: i32"),
    ("v = shared(Bad, 4)", "Bad", "the field x of Bad is not of a type of kernels", "write x: i32"),
    ("v = of_vector(1.0)", "1.0", "`v` is vec3, and this value is f32", "write vec3(x, y, z)"),
    ("v = of_vector(vec2(1.0))", "vec2(1.0)", "`v` is vec3, and this value is vec2", "write vec3(x, y, z)"),
    ("v = gives(1.0)", "a", "the result of gives() is vec3, and this value is f32", "write vec3(x, y, z)"),
    ("v: vec3 = 1.0", "1.0", "`v` is vec3, and this value is f32", "write vec3(x, y, z)"),
    ("v: f32 = vec3(1.0)", "vec3(1.0)", "`vec3(1.0)` is a vec3, not a number", "write vec3(1.0).x"),
    (
        "v = -Ray(vec3(1.0), vec3(1.0))",
        "-Ray(vec3(1.0), vec3(1.0))",
        "`-` of a Ray, which has no arithmetic",
        "write each field: Ray(a.o - b.o, a.d - b.d, ...), or make it a vec3",
    ),
    ("v = ~vec3(1.0)", "vec3(1.0)", "operand of bit_not is f32", "cast it to an integer, or bitcast an f32"),
    ("v = not vec3(1.0)", "vec3(1.0)", "`vec3(1.0)` is a vec3, not a number", "write vec3(1.0).x"),
    ("atomic_add(rows, 0, 1)", "rows", "atomic_add() on an array of vec3", "use buffers of numbers"),
    ("out[0] = rows", "rows", "`rows` is an array, not a value", "index it: rows[i]"),
    ("rows[0] = 1.0", "1.0", "`rows[0]` is vec3, and this value is f32", "write vec3(x, y, z)"),
    ("w = out3[0]", "out3[0]", "`out3` is an Out and cannot be read", "declare it InOut[vec3]"),
    ("v = vec3", "vec3", "`vec3` is a type, not a value", "make one: vec3(x, y, z)"),
    (
        "for c in vec3(1.0): pass",
        "vec3(1.0)",
        "loops run over range(), static_range() or a tuple of numbers",
        "write for i in range(len(x))",
    ),
    ("v = UP + vec2(1.0)", "UP + vec2(1.0)", "`+` of vec3 and vec2", "give both one type"),
]


@pytest.mark.parametrize("body, under, message, fix", CASES, ids=[case[0] for case in CASES])
def test_the_error_shows_the_culprit_and_what_to_write(body, under, message, fix):
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    head = "def k(x: In[u32], rows: InOut[vec3], out: Out[u32], out3: Out[vec3]):\n"
    error = refusal(HEAD + head + lines, NamedTuple=NamedTuple, UP=vyre.vec3(0.0, 1.0, 0.0))
    assert (caret(error), error.message, error.fix) == (under, message, fix)


def test_an_error_in_a_helper_names_the_line_of_the_helper():
    error = refusal(HEAD + "def k(x: In[u32]):\n    a = gives(1.0)\n", NamedTuple=NamedTuple)
    assert error.text is not None
    assert error.text.strip() == "return a"
    assert any("called at" in note for note in error.__notes__)


SIGNATURES = [
    ("def k(x: In[Bad]): pass", "In[Bad]", "the field x of Bad is not of a type of kernels", "write x: i32"),
    ("def k(x: In[Mixed]): pass", "In[Mixed]", "a buffer of Mixed, whose numbers are f32, f64", "give them one type"),
    ("def k(x: In[T]): pass", "x: In[T]", "`T` stands for a type, and no parameter says which", "add *, T: const"),
    ("def k(x: In[T], *, T: const = 4): pass", "T: const", "the default of `T` is not a type", "give a type"),
    ("def k(x: In[u32], *, N: const = f32): pass", "N: const", "the default of `N` is not a number", "give a number"),
    ("def k(x: In[u32], v: vec3 = 1.0): pass", "v: vec3", "the default of `v` is not a vec3", "give vec3(...)"),
]


@pytest.mark.parametrize("text, under, message, fix", SIGNATURES, ids=[case[0] for case in SIGNATURES])
def test_a_signature_that_no_kernel_has(text, under, message, fix):
    error = refusal(HEAD + text + "\n", NamedTuple=NamedTuple, T=TypeVar("T"))
    assert caret(error) == under
    assert message in error.message
    assert fix in error.fix

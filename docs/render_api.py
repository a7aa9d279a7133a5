"""Write docs/reference/api.md from the public names: python docs/render_api.py

Classes and functions are left to mkdocstrings, which reads their documentation when the site is built.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import vyre
from vyre.driver.contract.capability import FACTS
from vyre.driver.contract.values import OPTIONS
from vyre.errors import VyreError
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from vyre.foundation.language import lang

HERE = Path(__file__).parent
PAGE = HERE / "reference" / "api.md"
WHERE: dict[str, str] = vars(vyre)["_WHERE"]
"""Public name -> its module, which type checkers do not see."""
PUBLIC: list[str] = sorted(WHERE)

LANGUAGE, TYPES = "foundation.language.lang", "foundation.ir.dtypes"
GROUPS: dict[str, tuple[str, ...]] = {
    "Kernels": ("front.kernel", "front.sequence.function"),
    "Programs": (
        "foundation.ir.program",
        "foundation.ir.build",
        "foundation.formats.parse",
        "foundation.check.validate",
    ),
    "Running programs": ("front.compile", "driver.contract.values"),
    "Arrays on devices": ("front.device.array",),
    "Configuration": ("front.config",),
    "Backends and devices": (
        "driver.selection.registry",
        "driver.contract",
        "driver.contract.profile",
        "driver.contract.requirement",
    ),
}
"""Title -> modules whose names stand under it. A module that is in none of these stands under `Further`."""
WORDS: dict[str, str] = {
    "In": "a buffer to read: `x: In[f32]`, or `In[f32, 4]` for exactly 4 elements",
    "Out": "a buffer to write, zero where nothing is stored",
    "InOut": "a buffer to read and write, updated in place",
    "Uniform": "a small table, the same for all invocations: `Uniform[f32, 4]`",
    "D1": "one axis: `x: In[f32, D1]`",
    "D2": "two axes: `x: In[f32, D2]`, `x[i, j]`",
    "D3": "three axes",
    "D4": "four axes",
    "const": "a compile-time parameter: `*, n: const = 8`; one program per value",
    "device": "decorator of helper functions, which kernels inline",
    "gid": "id of the invocation in the grid: `gid.x`, `gid.y`, `gid.z`",
    "lid": "place of the invocation in its workgroup",
    "wg": "number of the workgroup",
    "shared": "memory of the workgroup, zero at its start",
    "local": "an array of each invocation, zero at first",
    "vec2": "two numbers, `x y`: of f32, or `vec2[i32]`, `vec2[u32]`, `vec2[f64]`",
    "vec3": "three numbers, `x y z`",
    "vec4": "four numbers, `x y z w`",
    "c64": "a complex number of two f32, `real imag`",
    "dot": "the products of two vectors, added from left to right",
    "cross": "the cross product of two `vec3`",
    "length": "`sqrt(dot(v, v))`",
    "normalize": "`v / length(v)`",
    "conj": "a complex number with the other sign of `imag`",
    "barrier": "the workgroup waits, and then sees what its members wrote",
    "grid_sync": "the same for the whole grid",
    "static_range": "as `range`, unrolled; the counter is a compile-time number",
    "trap": "stop the whole dispatch with an error",
    "bitcast": "the same bits as another type of 32 or 64 bits",
    "select": "one of two values; both are evaluated. Outside kernels, `select(program)` chooses a backend",
    "fma": "`a * b + c`, rounded once",
    "subgroup_shuffle": "the value of another lane of the subgroup; 0 where there is none",
    "subgroup_ballot": "one bit per lane whose condition holds",
    "subgroup_local_id": "lane in the subgroup",
    "subgroup_size": "always 32",
}
"""What the words of the language are that no operator stands behind."""


def render() -> str:
    lines = [
        "# API",
        "",
        "Every name that `vyre` has. All are resolved on first use: `import vyre` loads neither NumPy nor a device",
        "library. What outside code relies on is this page, the [contract](../design/contract.md) and the",
        "[codes of errors](../error-codes.md). Made from the public names by `docs/render_api.py`.",
        "",
    ]
    for title, names in groups().items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"::: vyre.{name}", "", *(([*TABLES[name](), ""]) if name in TABLES else [])]
    lines += [
        "## The language of kernels",
        "",
        "Words that mean something inside a kernel; [The kernel language](../kernel-language.md) puts them together,",
        "and [Operations](ops.md) says on which types they work.",
        "",
        "| word | meaning |",
        "|---|---|",
        *(f"| {_anchored(name, _call(name))} | {_meaning(name)} |" for name in names_of(LANGUAGE)),
        "",
        "## Element types",
        "",
        "Annotations of parameters (`In[f32]`), conversions inside kernels (`f32(n)`) and makers of literals.",
        "",
        ", ".join(_anchored(name, name) for name in names_of(TYPES) if name != "DataType") + ".",
        "",
        "::: vyre.DataType",
        "",
        "## Errors",
        "",
        "Whatever vyre refuses is a `VyreError`; the page of [codes](../error-codes.md) says what each of them means.",
        "",
        "::: vyre.VyreError",
        "",
        "| name | |",
        "|---|---|",
    ]
    for name in names_of("errors"):
        value = getattr(vyre, name)
        if value is VyreError:
            continue
        is_error = issubclass(value, VyreError)
        link = f"[meaning and code](../error-codes.md#{name.lower()})" if is_error else _first_line(value)
        lines.append(f"| {_anchored(name, name)} | {link} |")
    return "\n".join([*lines, ""])


def config_table() -> list[str]:
    """The fields of a config, by what the driver knows of them."""
    lines = [
        "| field | meaning | in the key of compiled code | which result is right | holds for |",
        "|---|---|---|---|---|",
    ]
    for name, option in OPTIONS.items():
        code = "no"
        if option.code is not None:
            code = "where the backend uses it" if not option.code.needs else f"with `{option.code.needs}`"
        result = "depends on it" if option.result else "does not"
        about = "the whole dispatch" if option.whole else "each launch"
        lines.append(f"| `{name}` | {option.doc} | {code} | {result} | {about} |")
    return lines


def capability_table() -> list[str]:
    """The fields of a capability record."""
    return ["| fact | meaning |", "|---|---|", *(f"| `{name}` | {fact.doc} |" for name, fact in FACTS.items())]


TABLES = {"DispatchConfig": config_table, "BackendCapability": capability_table}
"""Record -> what stands under it."""


def groups() -> dict[str, list[str]]:
    """Title -> the classes and functions under it."""
    elsewhere = {LANGUAGE, TYPES, "errors", "front.select"}  # its one name is a word of the language too
    modules = {_module(name) for name in PUBLIC} - elsewhere
    listed = {module for modules in GROUPS.values() for module in modules}
    titles = GROUPS | {"Further": tuple(sorted(modules - listed))}
    return {title: [name for module in inside for name in names_of(module)] for title, inside in titles.items()}


def names_of(module: str) -> list[str]:
    """The public names of a module, of which there are some."""
    names = [name for name in PUBLIC if _module(name) == module]
    if not names:
        raise LookupError(f"no public name lives in {module}. Fix: correct the module in docs/render_api.py")
    return sorted([*names, "select"]) if module == LANGUAGE else names


def _module(name: str) -> str:
    return WHERE[name].partition(":")[0]


def _call(name: str) -> str:
    word = getattr(lang, name)
    return f"{name}({word.signature})" if isinstance(word, lang.Intrinsic) else name


def _meaning(name: str) -> str:
    op = getattr(getattr(lang, name), "op", None)
    ops = _render_ops()
    match op:
        case BinaryOp():
            found: str = ops.BINARY[op]
        case UnaryOp():
            found = ops.UNARY[op]
        case AtomicOp():
            what = "subtract, wrapping" if name == "atomic_sub" else ops.ATOMIC[op].partition(". ")[0]
            found = f"{what}; gives the value before"
        case ReduceOp():
            found = f"`{op.text}` over the subgroup"
        case _:
            found = WORDS[name]
    return found


def _anchored(name: str, shown: str) -> str:
    return f'<a id="vyre.{name}"></a>`{shown}`'


def _first_line(value: type) -> str:
    return " ".join((value.__doc__ or "").split("\n\n")[0].split())


def _render_ops() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_ops", HERE / "render_ops.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")

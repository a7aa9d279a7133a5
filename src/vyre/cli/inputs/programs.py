"""What a command line names, as values: the kernel of a file, the arrays of `--input`, the shapes of options.

A file is Python with kernels in it, or a program in its text or wire form. Errors name the option or the line
that cannot be read; nothing here prints.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from os.path import exists, isdir, isfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ...errors import ArgumentTypeError, ArgumentValueError, DeviceOutOfMemory, KernelError, VyreError
from ..output import others_on_stderr

if TYPE_CHECKING:
    from ...foundation.ir.dtypes import DataType
    from ...foundation.ir.program import Program
    from ...foundation.language.kernel import Param
    from ...front.arrays import Array
    from ...front.kernel import Kernel

MAX_PROGRAM_BYTES = 64 << 20
WIRE_MAGIC = b"VYRE"
ENVELOPE = b"vyre_ir "
MODULE_PREFIX = "vyre_file_"
"""Modules of kernel files, so that `random.py` hides no other module; not `__main__`, whose scripts would run."""
_GENERATOR = re.compile(r"(random|zeros|ones|arange):(.*)", re.DOTALL)
_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"
_BEGIN = re.compile(r"^\s*program\b", re.MULTILINE)
_FROM_WHERE = "write one with `vyre ir FILE --wire OUT`, or pass a .py file"
_SHAPE_SIGN = re.compile(r"[x,]")
MOST_ELEMENTS = 0xFFFFFFFF


# ---- kernels --------------------------------------------------------------------------------------------------------


class Loaded(NamedTuple):
    """A kernel from a file; `form` is python, text, envelope or wire."""

    kernel: Kernel
    path: str
    form: str


def load(spec: str) -> Loaded:
    """The kernel that `FILE` or `FILE:kernel` names."""
    if not spec:
        raise ArgumentValueError("no file is named", fix="name a .py file with a kernel, or a program in a file")
    path, name = _split(spec)
    if path.suffix == ".py":
        return Loaded(_choose(path, _kernels(path), name), str(path), "python")
    if name is not None:
        raise ArgumentValueError(f"{path} is not a Python file and holds one program", fix=f"write {path} alone")
    from ...front.kernel import Kernel

    program, form = _read_program(path)
    return Loaded(Kernel.of_program(program, path.stem), str(path), form)


def load_all(spec: str) -> list[Loaded]:
    """Every kernel of a file; the one that `FILE:kernel` names."""
    path, name = _split(spec) if spec else (Path(), None)
    if name is not None or path.suffix != ".py":
        return [load(spec)]
    kernels = {id(kernel): kernel for kernel in _kernels(path).values()}
    if not kernels:
        return [load(spec)]  # which says so
    return [Loaded(kernel, str(path), "python") for kernel in kernels.values()]


def _split(spec: str) -> tuple[Path, str | None]:
    if _readable(spec):
        return Path(spec), None
    file, colon, name = spec.rpartition(":")
    if colon and _readable(file):
        if not name:
            raise ArgumentValueError(f"{spec} names no kernel", fix=f"write {file}, or {file}:kernel")
        return Path(file), name
    path = Path(file if colon and Path(file).suffix else spec)
    if isdir(path):
        raise ArgumentValueError(f"{path} is a directory", fix="name a file in it")
    near = difflib.get_close_matches(path.name, _siblings(path), 3, 0.75)
    raise ArgumentValueError(
        f"there is no file {path}",
        fix=f"did you mean {', '.join(str(path.with_name(n)) for n in near)}?"
        if near
        else "name a .py file with a kernel, or a program in a file",
    )


def _readable(file: str) -> bool:
    """A pipe can hold a program too: `vyre ir kernel.py | vyre run /dev/stdin`."""
    return exists(file) and not isdir(file)


def _siblings(path: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(path.parent))
    except OSError:
        return []


def _read_program(path: Path) -> tuple[Program, str]:
    """A program by its content: the wire form begins with its magic, an envelope with its version."""
    from ...foundation.formats.parse import parse_program
    from ...foundation.formats.text import from_envelope
    from ...foundation.ir.program import Program

    blob = read_bytes(path)
    wire = blob.startswith(WIRE_MAGIC)
    try:
        text = "" if wire else blob.decode()
    except UnicodeDecodeError as e:
        raise ArgumentValueError(f"{path} is neither text nor a program in wire form", fix=_FROM_WHERE) from e
    try:
        if wire:
            return Program.from_wire(blob), "wire"
        if blob.startswith(ENVELOPE):
            return from_envelope(text), "envelope"
        if _BEGIN.search(text):
            return parse_program(text), "text"
    except VyreError as e:  # they were given no file, and name none
        e.message = f"{path}: {e.message}"
        raise
    raise ArgumentValueError(f"{path} holds no program", fix=_FROM_WHERE)


def read_bytes(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            blob = file.read(MAX_PROGRAM_BYTES + 1)
    except OSError as e:
        raise _unreadable(path, e) from e
    if len(blob) > MAX_PROGRAM_BYTES:
        raise ArgumentValueError(
            f"{path} is longer than {MAX_PROGRAM_BYTES} bytes", fix="pass a file that holds one program"
        )
    return blob


def _unreadable(path: str | Path, why: OSError) -> ArgumentValueError:
    return ArgumentValueError(f"{path} cannot be read: {why.strerror or why}", fix="name a file that you may read")


def _kernels(path: Path) -> dict[str, Kernel]:
    """The kernels of a Python file by name: those it defines or, where there are none, those it imports."""
    from ...front.kernel import Kernel

    module = _run_file(path)
    found = {name: value for name, value in vars(module).items() if isinstance(value, Kernel)}
    own = {name: kernel for name, kernel in found.items() if kernel.__module__ == module.__name__}
    return own or found


def _run_file(path: Path) -> ModuleType:
    """The module of a file, inside its package if it is in one, so that its relative imports work."""
    root, package = _package(path)
    name = f"{package}{MODULE_PREFIX}{path.stem}"
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)), origin=str(path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickles look for it
    sys.path[:0] = dict.fromkeys((str(path.resolve().parent), root))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        with others_on_stderr():
            spec.loader.exec_module(module)
    except (VyreError, KeyboardInterrupt):
        raise
    except BaseException as e:  # SystemExit, or any other exception of a file
        raise _failed_import(path, e) from e
    finally:
        sys.dont_write_bytecode = writes
    return module


def _package(path: Path) -> tuple[str, str]:
    """Where the packages around a file begin, and their names: `a/b/file.py` gives a's folder and `a.b.`."""
    folder, names = path.resolve().parent, ""
    while isfile(folder / "__init__.py") and folder.name.isidentifier():
        folder, names = folder.parent, f"{folder.name}.{names}"
    return str(folder), names


def _failed_import(path: Path, error: BaseException) -> KernelError:
    """What the file's own code raised, at its last line in that file."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename == str(path)]
    line, source, offset, message = (own[-1].lineno, own[-1].line, None, str(error)) if own else (None, None, None, "")
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line, source, offset, message = error.lineno, error.text, error.offset, error.msg
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("vyre."):
        fix = f"install {error.name.partition('.')[0]} into the Python that runs vyre"
    elif isinstance(error, SystemExit):
        fix = 'put what ends the process under `if __name__ == "__main__":`'
    else:
        fix = "correct the file; --debug shows the whole traceback"
    said = f"{type(error).__name__}: {message or error}".rstrip(": ")
    return KernelError(said, fix=fix, filename=str(path), lineno=line, offset=offset, text=source)


def _choose(path: Path, kernels: Mapping[str, Kernel], name: str | None) -> Kernel:
    names = ", ".join(kernels)
    if not kernels:
        raise ArgumentValueError(f"{path} has no kernel", fix="write @vyre.kernel above a function at its top level")
    if name is None:
        if len(set(map(id, kernels.values()))) > 1:
            raise ArgumentValueError(
                f"{path} has {len(kernels)} kernels: {names}", fix=f"name one: {path}:{next(iter(kernels))}"
            )
        return next(iter(kernels.values()))
    if name not in kernels:
        near = difflib.get_close_matches(name, kernels, 1)
        raise ArgumentValueError(
            f"{path} has no kernel {name}; it has {names}", fix=f"name one: {path}:{(near or list(kernels))[0]}"
        )
    return kernels[name]


# ---- options --------------------------------------------------------------------------------------------------------


def pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    """`name=value` texts by name."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.strip() and value.strip()):
            raise ArgumentValueError(f"{option} {text} is not name=value", fix=f"write {option} x=...")
        if name.strip() in found:
            raise ArgumentValueError(f"{option} names {name.strip()} twice", fix="drop one of the two")
        found[name.strip()] = value.strip()
    return found


def whole(text: str, where: str) -> int:
    """A whole number of 0 or more: 1000000, 1_000_000, 1e6 or 0x100000. `where` it stands, with all that was typed.

    >>> whole("1e6", "--size 1e6")
    1000000
    """
    try:
        number = int(text, 0)
    except ValueError:
        try:
            real = float(text)
            number = int(real) if real.is_integer() else -1
        except (ValueError, OverflowError):
            number = -1
    if number < 0:
        raise ArgumentValueError(f"{where}: {text!r} is not a whole number of 0 or more", fix="write one, such as 1000")
    return number


def shape(text: str, where: str) -> tuple[int, ...]:
    """`640` or `640x480`; a comma does as well.

    >>> shape("640x480", "--domain 640x480")
    (640, 480)
    """
    hexadecimal = text.lower().startswith("0x")
    parts = [text] if hexadecimal else _SHAPE_SIGN.split(text)
    return tuple(whole(part.strip(), where) for part in parts)


def sizes(given: Iterable[str]) -> dict[str, tuple[int, ...]]:
    return {name: shape(text, f"--sizes {name}={text}") for name, text in pairs("--sizes", given).items()}


def const(option: str, name: str, text: str) -> int | float | bool | DataType:
    """The value of a compile-time parameter: a number, or a type by its name."""
    from ...foundation.ir.dtypes import BY_NAME

    t = BY_NAME.get(text.removeprefix("vyre.").removesuffix("_"))
    return number(option, name, text) if t is None or not t.live else t


def number(option: str, name: str, text: str) -> int | float | bool:
    """A number as Python reads it, true or false.

    >>> [number("--const", "n", text) for text in ("0x10", "2.5", "true")]
    [16, 2.5, True]
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (lambda: int(text, 0), lambda: float(text)):
        try:
            return read()
        except ValueError:
            continue
    raise ArgumentValueError(f"{option} {name}={text} is not a number", fix=f"write a number: {option} {name}=2")


# ---- inputs ---------------------------------------------------------------------------------------------------------


class Input(NamedTuple):
    """An argument of the call, and how it was made."""

    name: str
    value: Any
    origin: str


def inputs_of(kernel: Kernel, given: Sequence[str]) -> dict[str, Input]:
    """The arguments that `--input` gives, by parameter. The call itself names those that are missing."""
    texts = pairs("--input", given)
    consts = {p.name for p in kernel.params if p.role == "const"}
    types = {name: const("--input", name, text) for name, text in texts.items() if name in consts}
    params = {p.name: p for p in kernel._chosen(dict(types)).params}
    found: dict[str, Input] = {}
    for name, text in texts.items():
        if name in consts:
            found[name] = Input(name, types[name], "number" if isinstance(types[name], int | float) else "type")
            continue
        if name not in params:
            near = difflib.get_close_matches(name, params, 1)
            raise ArgumentTypeError(
                f"{kernel.__name__} has no parameter {name}",
                fix=f"did you mean {near[0]}?" if near else f"use one of: {', '.join(params)}",
            )
        found[name] = _input(params[name], text, sum(i.origin.startswith("random:") for i in found.values()))
    missing = [p.name for p in kernel.params if p.name not in found and p.role != "const" and not p.is_optional]
    if missing:
        hint = " ".join(f"--input {n}={_like(params[n])}" for n in missing)
        raise ArgumentTypeError(f"{kernel.__name__} needs {', '.join(missing)}", fix=f"add {hint}")
    return found


def _like(param: Param) -> str:
    """What an argument may look like."""
    return "random:1000" if param.role != "scalar" else ",".join("1" * param.width)


def _input(param: Param, text: str, seed_by_default: int) -> Input:
    name = param.name
    assert param.element is not None
    if param.small is not None and param.role == "scalar":
        return Input(name, _numbers(param, text), "numbers")
    row = () if param.small is None else (param.width,)  # of small values, N counts the rows
    if match := _GENERATOR.fullmatch(text):
        how, origin = match[1], text
        size, _, seed = match[2].partition("@")
        if seed and how != "random":
            raise ArgumentValueError(f"--input {name}={text} has a seed and nothing random", fix=f"drop @{seed}")
        if how == "random":
            seed = seed or str(seed_by_default)
            origin = f"random:{size}@{seed}"
        where = f"--input {name}={text}"
        value = _generate(name, how, (*shape(size, where), *row), whole(seed or "0", where), param.element)
    elif _is_number(text) and not isfile(text):
        if param.role != "scalar":
            raise ArgumentTypeError(
                f"{name} is an array of {param.element.name} and {text} is a number",
                fix=f"write --input {name}=random:1000, zeros:1000, arange:1000 or a file",
            )
        return Input(name, number("--input", name, text), "number")
    else:
        origin, value = f"file {text}", _from_file(name, text, param.element, scalar=param.role == "scalar")
        if row and value.ndim == 1 and value.dtype.names is None and value.dtype.kind != "c":
            value = value.reshape(-1, *row) if value.size % row[0] == 0 else value
    if param.role == "scalar":
        if value.size != 1:
            raise ArgumentTypeError(
                f"{name} is one {param.element.name} and {text} has {value.size} elements",
                fix=f"write a number: --input {name}=2",
            )
        value = value.reshape(())
        if param.element.name == "bf16" and value.dtype == "uint16":
            value = (value.astype("uint32") << 16).view("float32")  # its bits, where a number is wanted
    return Input(name, value, origin)


def _numbers(param: Param, text: str) -> tuple[int | float | bool, ...]:
    """One small value, as its numbers in order."""
    found = tuple(number("--input", param.name, part.strip()) for part in text.split(","))
    if len(found) != param.width:
        raise ArgumentTypeError(
            f"{param.name} is one {param.small} and {text} has {len(found)} of its {param.width} numbers",
            fix=f"write --input {param.name}={','.join(['0'] * param.width)}",
        )
    return found


def _is_number(text: str) -> bool:
    try:
        number("", "", text)
    except ArgumentValueError:
        return False
    return True


def _generate(name: str, how: str, dims: tuple[int, ...], seed: int, element: DataType) -> Array:
    """New elements of the declared type. Integers are random over their whole range, floats from 0 up to 1."""
    import numpy as np

    from ...front.arrays import ARRAY_DTYPES

    dtype, count = ARRAY_DTYPES[element.name], math.prod(dims)
    if count > MOST_ELEMENTS:
        raise ArgumentValueError(
            f"{name} would have {count} elements and a buffer has at most {MOST_ELEMENTS}",
            fix="ask for fewer elements",
        )
    _require_memory(name, count * dtype.itemsize)
    try:
        if how == "zeros":
            return np.zeros(dims, dtype)
        if how == "random":
            return _random(np.random.default_rng(seed), dims, element, dtype)
        real = np.arange(count) if how == "arange" else np.ones(count, np.int64)
        if element.name == "bf16":
            return (real.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).reshape(dims)
        with np.errstate(over="ignore"):
            return real.astype(dtype).reshape(dims)
    except MemoryError as e:
        raise _no_memory(name, count * dtype.itemsize) from e


def _random(rng: Any, dims: tuple[int, ...], element: DataType, dtype: Any) -> Array:
    import numpy as np

    if element.name == "bool":
        return rng.integers(0, 2, dims).astype(bool)  # type: ignore[no-any-return]
    if element.is_int:
        low, high = element.limits
        return rng.integers(low, high, dims, dtype, endpoint=True)  # type: ignore[no-any-return]
    if element.name == "f64":
        return rng.random(dims)  # type: ignore[no-any-return]
    real = rng.random(dims, np.float32)
    if element.name == "bf16":
        return (real.view(np.uint32) >> 16).astype(np.uint16)  # type: ignore[no-any-return]
    return real.astype(dtype, copy=False)  # type: ignore[no-any-return]


def _from_file(name: str, text: str, element: DataType, *, scalar: bool) -> Array:
    """An array file as it is, whose type the call checks; any other file as elements of the declared type."""
    import numpy as np

    from ...front.arrays import ARRAY_DTYPES

    path, dtype = Path(text), ARRAY_DTYPES[element.name]
    if exists(path) and not isfile(path):
        raise ArgumentValueError(
            f"--input {name}={text} is not a plain file", fix="name a file, or copy it into one first"
        )
    if not isfile(path):
        near = difflib.get_close_matches(path.name, _siblings(path), 1, 0.75)
        raise ArgumentValueError(
            f"--input {name}={text}: there is no such file",
            fix=f"did you mean {path.with_name(near[0])}?"
            if near
            else f"write a number, or a file: --input {name}=2"
            if scalar
            else f"write a file, or random:N, zeros:N, ones:N, arange:N: --input {name}=random:1000",
        )
    try:
        nbytes = path.stat().st_size
        _require_memory(name, nbytes)
        with open(path, "rb") as file:
            begin = file.read(len(_NPY))
        if begin.startswith(_NPY):
            return _load_npy(path)
        if path.suffix in (".npy", ".npz") or begin.startswith(_ZIP):
            what = "an archive of arrays" if begin.startswith(_ZIP) else "not an array file"
            raise ArgumentValueError(
                f"{text} is {what}", fix=f"write one array: np.save({path.stem + '.npy'!r}, array)"
            )
        if nbytes % dtype.itemsize:
            raise ArgumentValueError(
                f"{text} has {nbytes} bytes, which is not a whole number of {element.name}",
                fix=f"pass a multiple of {dtype.itemsize} bytes, or a .npy file",
            )
        return np.fromfile(path, dtype)
    except OSError as e:
        raise _unreadable(path, e) from e
    except MemoryError as e:
        raise _no_memory(name, nbytes) from e


def _load_npy(path: Path) -> Array:
    """The array of a file whose header may say anything. Pickles are never read."""
    import warnings

    import numpy as np

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a file is old changes nothing
            return cast("Array", np.load(path, allow_pickle=False))
    except OSError:
        raise
    except Exception as e:  # a header is parsed as Python, and fails in as many ways
        said = textwrap.shorten(str(e), 200)
        raise ArgumentValueError(
            f"{path} is not an array file: {said}", fix=f"write it with np.save({path.name!r}, array)"
        ) from e


def _require_memory(name: str, nbytes: int) -> None:
    """Refuse what cannot fit; an operating system that promises more than it has would end the process instead."""
    try:
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return
    if nbytes > most:
        raise _no_memory(name, nbytes, most)


def _no_memory(name: str, nbytes: int, most: int | None = None) -> DeviceOutOfMemory:
    known = {} if most is None else {"memory_bytes": most}
    return DeviceOutOfMemory(f"no memory for {name}", fix="ask for fewer elements", nbytes=nbytes, **known)

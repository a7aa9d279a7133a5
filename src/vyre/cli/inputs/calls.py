"""One call of a kernel, as `run`, `explain` and `bench` share it: its options, its arguments, its results."""

from __future__ import annotations

import contextvars
import math
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, cast

import typer

from ...errors import ArgumentTypeError, ArgumentValueError, BackendUnavailable, DispatchFailed
from .programs import pairs
from .requests import Request as Request
from .requests import request as request

if TYPE_CHECKING:
    from ...driver.execute.explanation import Explanation
    from ...front.arrays import Array

T = TypeVar("T")
STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
HEAD = 8
"""Elements of an array that are shown."""

File = Annotated[
    str, typer.Argument(metavar="FILE[:KERNEL]", help="Python with @vyre.kernel in it, or a program as text or wire.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        "--const",
        metavar="NAME=VALUE",
        help="An argument: a number, the numbers of a vec3 as 0,1,0, file.npy, file.bin, random:N[@SEED], zeros:N, "
        "ones:N or arange:N. N may be 48x64.",
    ),
]
Sizes = Annotated[
    list[str] | None, typer.Option("--sizes", metavar="NAME=N", help="Length of an output that follows no input.")
]
Domain = Annotated[str | None, typer.Option("--domain", metavar="X[xYxZ]", help="Number of invocations, x first.")]
Grid = Annotated[str | None, typer.Option("--grid", metavar="X[xYxZ]", help="Number of workgroups, x first.")]
Timeout = Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="Give up a dispatch after it.")]
Backend = Annotated[
    str | None, typer.Option("--backend", "-b", metavar="ID[:DEVICE]", help="This backend or an error.")
]


def oracle_id() -> str:
    """The backend that says what is right."""
    from ...driver.selection.registry import registered_backends_by_precedence

    for listing in registered_backends_by_precedence():
        if listing.problem() is None and listing.registration.kind == "oracle":
            return listing.id
    raise BackendUnavailable("no backend here says what is right", fix="install vyre again, whole")


# ---- waiting --------------------------------------------------------------------------------------------------------


def interruptible(work: Callable[[], T]) -> T:
    """Do it on a thread of its own: Ctrl-C is heard at once, also while native code runs."""
    done: list[T] = []
    failed: list[BaseException] = []
    context = contextvars.copy_context()

    def go() -> None:
        try:
            done.append(context.run(work))
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=go, name="vyre-command", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if failed:
        raise failed[0]
    return done[0]


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """The warnings of a block as texts, once each."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += dict.fromkeys(str(w.message) for w in caught if not issubclass(w.category, DeprecationWarning))


def warn(texts: Sequence[str]) -> None:
    for text in texts:
        print(f"warning: {text}", file=sys.stderr)


# ---- arguments and results ------------------------------------------------------------------------------------------


class Argument(TypedDict):
    name: str
    element: str
    shape: list[int]
    origin: str
    head: list[Any]


class Result(TypedDict):
    name: str
    element: str
    shape: list[int]
    nbytes: int
    blake3: str
    head: list[Any]
    file: str | None


class Other(TypedDict):
    backend: str
    reason: str


class Choice(TypedDict):
    """Where the call runs: the backend, its device, why this one and why not the others."""

    backend: str
    device: str | None
    why: str
    others: list[Other]


def argument_rows(of: Request) -> list[Argument]:
    import numpy as np

    rows = []
    for p in of.params:
        if p.name in of.inputs:
            given = of.inputs[p.name]
            array = np.asarray(given.value)
            element = p.element.name if p.element is not None else "const"
            values = head(array, element)
            rows.append(
                Argument(name=p.name, element=element, shape=list(array.shape), origin=given.origin, head=values)
            )
    return rows


def result_rows(of: Request, results: Sequence[Array], files: dict[str, str]) -> list[Result]:
    from ...foundation.formats.blake3 import blake3

    rows = []
    for buffer, array in zip(of.result_buffers, results, strict=True):
        rows.append(
            Result(
                name=buffer.name,
                element=buffer.element.name,
                shape=list(array.shape),
                nbytes=array.nbytes,
                blake3=blake3(array.tobytes()).hex(),
                head=head(array, buffer.element.name),
                file=files.get(buffer.name),
            )
        )
    return rows


def head(array: Array, element: str, most: int = HEAD) -> list[Any]:
    """The first elements as Python values that survive JSON: infinities and NaN are texts."""
    import numpy as np

    some = array.reshape(-1)[:most]
    if element == "bf16" and array.dtype == np.uint16:
        some = (some.astype(np.uint32) << 16).view(np.float32)
    return [repr(v) if isinstance(v, float) and not math.isfinite(v) else v for v in some.tolist()]


def shown(values: Sequence[Any], size: int) -> str:
    """`[1, 2, ...]`: floats with nine digits, which tell all f32 apart."""
    texts = [f"{v:.9g}" if isinstance(v, float) else str(v) for v in values]
    return f"[{', '.join([*texts, *(['...'] if size > len(texts) else [])])}]"


def choice(of: Request, told: Explanation) -> Choice:
    from ...front.compile import choice_for

    selection = choice_for(of.program) if of.kernel.backend is None else None
    why = f"--backend {of.kernel.backend} asks for it" if selection is None else selection.why
    return Choice(
        backend=told.backend,
        device=told.choice("device"),
        why=why,
        others=[Other(backend=x.name, reason=x.reason) for x in (() if selection is None else selection.losers)],
    )


def same_bytes(a: Sequence[Array], b: Sequence[Array]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True)
    )


def first_difference(names: Sequence[str], a: Sequence[Array], b: Sequence[Array]) -> str | None:
    """Where two lists of results part: `out[12]: 1.0 and 2.0`."""
    import numpy as np

    for name, x, y in zip(names, a, b, strict=True):
        if x.dtype != y.dtype or x.shape != y.shape:
            return f"{name}: {x.dtype} {x.shape} and {y.dtype} {y.shape}"
        left, right = (v.reshape(-1).view(np.dtype(f"u{v.itemsize}")) for v in (x, y))  # a NaN equals itself
        apart = np.flatnonzero(left != right)
        if apart.size:
            at = int(apart[0])
            return f"{name}[{at}]: {x.reshape(-1)[at]} and {y.reshape(-1)[at]}"
    return None


# ---- files ----------------------------------------------------------------------------------------------------------


def output_files(of: Request, given: Sequence[str] | None) -> dict[str, str]:
    """The files of `--output` by result. Refused before anything runs: an unknown result, a missing directory."""
    found = pairs("--output", given or ())
    names, taken = of.result_names, set()
    for name, file in found.items():
        if name not in names:
            raise ArgumentTypeError(
                f"{of.kernel.__name__} has no result {name}", fix=f"use one of: {', '.join(names) or 'none'}"
            )
        require_place(f"--output {name}={file}", file)
        if (place := os.path.realpath(file)) in taken and place != os.devnull:
            raise ArgumentValueError(f"--output writes {file} twice", fix="name another file for each result")
        taken.add(place)
    return found


def require_place(where: str, file: str) -> None:
    """Refuse a name that no file can have, and stdout, where the command itself prints."""
    if os.path.isdir(file) or not os.path.isdir(os.path.dirname(os.path.abspath(file))):
        raise ArgumentValueError(f"{where}: no file can be there", fix="name a file in a directory that exists")
    if os.path.abspath(file) in STDOUT:
        raise ArgumentValueError(f"{where}: the command itself prints there", fix="name a file or a pipe")


def write_array(file: str, array: Array) -> None:
    """An array file where the name ends in .npy, else its bytes."""
    import numpy as np

    def save(stream: Any) -> None:
        if file.endswith(".npy"):
            np.save(stream, array, allow_pickle=False)
        else:
            stream.write(array.tobytes())

    write_whole(file, save)


def write_whole(file: str, save: Callable[[Any], None]) -> None:
    """Write a file so that no reader ever sees a part of it. A device or a pipe is written to, never replaced."""
    try:
        if os.path.exists(file) and not os.path.isfile(file):
            with open(file, "wb") as stream:
                save(stream)
            return
        path = Path(os.path.realpath(file))  # of a link, what it leads to
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        descriptor, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                save(stream)
            os.chmod(part, mode)  # mkstemp makes files for its owner alone
            os.replace(part, path)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise DispatchFailed(f"{file} cannot be written: {e.strerror or e}", fix="name another file") from e


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def plain(value: Any) -> dict[str, Any]:
    """A typed document as the mapping that it is."""
    return cast("dict[str, Any]", value)

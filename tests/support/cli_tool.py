"""Commands as a user types them, and a check of their JSON against the types that the commands declare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vyre.cli import app

KERNELS = """
import vyre
from vyre import In, InOut, Out, Uniform, bool_, bf16, const, f16, f32, f64, gid, i8, u8, u32


@vyre.kernel(workgroup=64)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


@vyre.kernel(workgroup=64)
def count(x: In[u32], bins: InOut[u32], *, shift: const = 30) -> None:
    if gid.x < len(x):
        vyre.atomic_add(bins, x[gid.x] >> shift, 1)


@vyre.kernel(workgroup=(8, 8))
def image(out: Out[u32]) -> None:
    out[gid.y * 20 + gid.x] = gid.x + 1000 * gid.y


@vyre.kernel(workgroup=64)
def flags(x: In[bool_], h: In[bf16], half: In[f16], tiny: In[i8], wide: In[f64], out: Out[bool_], h2: Out[bf16]):
    if gid.x < len(out):
        out[gid.x] = not x[gid.x]
        h2[gid.x] = h[gid.x]


@vyre.kernel(workgroup=64)
def spin(n: u32, out: Out[u32]) -> None:
    x = gid.x
    for j in range(n):
        for k in range(n):
            x = x * 1664525 + (x >> 3) + 1013904223
    out[gid.x] = x


@vyre.kernel(workgroup=64)
def racy(x: In[u32], out: Out[u32]) -> None:
    out[0] = gid.x


@vyre.kernel(workgroup=(8, 8))
def above(x: In[u32], out: Out[u32]) -> None:
    if x[gid.x ^ 1] > gid.y:
        out[0] = 1
"""
SAXPY = KERNELS.split("@vyre.kernel(workgroup=64)\ndef count")[0]
SAXPY_STORE = 1 + next(k for k, line in enumerate(SAXPY.splitlines()) if line.strip().startswith("out["))
"""The line of it that stores."""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two kernel files in the directory that commands run in; for modules that name it."""
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "saxpy.py").write_text(SAXPY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("vyre_file_")]:
        del sys.modules[name]


@contextmanager
def started(words: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes for what it says, which does not outlive the block."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **(pipes | options)) as process:
        try:
            yield process
        finally:
            process.kill()


def command(*words: str | Path, cwd: Path, timeout: float = 60, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python -m vyre ...` in a process of its own, without what is set for the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VYRE_")}
    return subprocess.run(
        [sys.executable, "-m", "vyre", *map(str, words)],
        cwd=cwd,
        env={**kept, "VYRE_CACHE": "off", **environ},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def inside(*words: str | Path) -> int:
    """The same in this process, which is faster; the exit code."""
    return app.main([str(word) for word in words])


def refused(capsys: Any, *words: str | Path, code: int = 2) -> str:
    """What a command says that is refused: with a Fix, without a traceback, and nothing on stdout."""
    found = inside(*words)
    said = capsys.readouterr()
    assert found == code, said
    assert said.out == ""
    assert "Fix: " in said.err
    assert "Traceback" not in said.err
    return str(said.err)


def document(capsys: Any, shape: Any, *words: str | Path, code: int = 0) -> dict[str, Any]:
    """The JSON document of a command, which has exactly the declared fields."""
    found = inside(*words, "--json")
    said = capsys.readouterr()
    assert found == code, said
    return parsed(said.out, shape)


def parsed(text: str, shape: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(text)
    assert data.pop("schema") == 1
    assert misfits(data, shape) == []
    return data


def misfits(value: Any, kind: Any, where: str = "") -> list[str]:
    """Where a JSON value departs from a type: a TypedDict has all of its fields and no others."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if typing.is_typeddict(kind):
        fields = typing.get_type_hints(kind)
        if not isinstance(value, dict) or set(value) != set(fields):
            return [f"{where}: {sorted(value) if isinstance(value, dict) else value} is not {sorted(fields)}"]
        return [m for name, each in fields.items() for m in misfits(value[name], each, f"{where}.{name}")]
    if origin is list:
        if not isinstance(value, list):
            return [f"{where}: {value!r} is no list"]
        return [m for k, each in enumerate(value) for m in misfits(each, args[0], f"{where}[{k}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is no object"]
        return [m for name, each in value.items() for m in misfits(each, args[1], f"{where}.{name}")]
    if origin in (types.UnionType, typing.Union):
        return [] if any(not misfits(value, each, where) for each in args) else [f"{where}: {value!r} is not {kind}"]
    if kind is Any or kind is type(value) or (kind is None.__class__ and value is None):
        return []
    if kind is float and type(value) is int:
        return []
    return [f"{where}: {value!r} is not {kind}"]

"""Neighbouring elements that an invocation reads or writes one after the other, moved at once.

A run is up to 16 bytes: loads or stores of the elements base + 0, base + 1... of one buffer in one body, with nothing
between them that could see or change these elements. The index of its first element is a multiple of its length,
whatever the base (a product with 4, say), so that two things are left to ask when the kernel runs: whether the buffer
begins at such a multiple in memory, and whether the last element is inside. Else they move one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ....lower.c.emitter import Emitter
from ....lower.c.library import STORAGE
from ....lower.kernel_ir import Body, Buffer, Ins, Kernel, bodies, walk
from .block_size import JoinedCuda, JoinedEmitter
from .text import Cuda, with_words

_BYTES = 16
"""The widest access."""
_WORD = 0xFFFFFFFF


@dataclass(slots=True, eq=False)
class Run:
    """Accesses, by their place from the first element on, which is the one at `base + offset`."""

    buffer: Buffer
    base: Ins
    offset: int
    members: list[Ins]
    last: Ins
    """In the order of the program."""
    name: str = ""
    values: dict[Ins, str] = field(default_factory=dict)

    @property
    def guarded(self) -> bool:
        return any(m.guarded for m in self.members)


def cuda_text(kernel: Kernel, *, joined: bool = False) -> str:
    """A kernel as a file. One that computes with f64 was lowered with `soft_flush`. For `joined` see `blocks`."""
    emitter = _Joined(kernel, JoinedCuda(kernel)) if joined else _Emitter(kernel, Cuda(kernel))
    return with_words(emitter.text())


def runs_of(kernel: Kernel) -> dict[Ins, Run]:
    """The accesses that are in a run."""
    found: dict[Ins, Run] = {}
    multiples = _multiples(kernel)
    unvisited = [kernel.body]
    while unvisited:
        body = unvisited.pop()
        unvisited.extend(inner for item in body for inner in bodies(item))
        for run in _Open(multiples).runs(body):
            found.update((member, run) for member in run.members)
    return found


class _Open:
    """Accesses of one body that may still become runs."""

    def __init__(self, multiples: dict[Ins, int]) -> None:
        self.multiples = multiples
        self.groups: dict[tuple[str, Buffer, Ins], dict[int, Ins]] = {}
        self.found: list[Run] = []

    def runs(self, body: Body) -> list[Run]:
        for item in body:
            if not isinstance(item, Ins) or item.op in ("atomic", "barrier", "trap", "return"):
                self.close()
            elif item.op in ("load", "store") and not item.attr.shared:
                self.access(item)
        self.close()
        return self.found

    def access(self, item: Ins) -> None:
        """Loads wait for no store, and stores for nothing that touches their buffer elsewhere."""
        base, offset = _split(item.args[0])
        key = item.op, item.attr, base
        for other in [k for k in self.groups if k[1] is item.attr and "store" in (k[0], item.op) and k != key]:
            self.cut(other)
        if offset in self.groups.get(key, ()):
            self.cut(key)
        self.groups.setdefault(key, {})[offset] = item

    def close(self) -> None:
        for key in list(self.groups):
            self.cut(key)

    def cut(self, key: tuple[str, Buffer, Ins]) -> None:
        """Make the longest runs of a group that are there."""
        _, buffer, base = key
        group = self.groups.pop(key)
        order = {item: k for k, item in enumerate(group.values())}
        n = _BYTES // (buffer.element.size or _BYTES)
        while n > 1:
            if self.multiples.get(base, 1) >= n:
                for first in [offset for offset in group if offset % n == 0]:
                    places = range(first, first + n)
                    if all(k in group for k in places):
                        members = [group.pop(k) for k in places]
                        self.found.append(Run(buffer, base, first, members, max(members, key=order.__getitem__)))
            n //= 2


def _split(index: Ins) -> tuple[Ins, int]:
    """An index as a sum of a value and a constant, modulo 2^32."""
    offset = 0
    while index.op in ("add", "sub"):
        a, b = index.args
        if b.op == "const":
            offset += b.attr if index.op == "add" else -b.attr
            index = a
        elif a.op == "const" and index.op == "add":
            offset += a.attr
            index = b
        else:
            break
    return index, offset & _WORD


def _multiples(kernel: Kernel) -> dict[Ins, int]:
    """Powers of two, up to 16, that u32 values are multiples of."""
    found: dict[Ins, int] = {}
    for item in walk(kernel.body):
        if isinstance(item, Ins) and item.dtype == "u32":
            found[item] = min(_multiple(item, [found.get(a, 1) for a in item.args]), _BYTES)
    return found


def _multiple(item: Ins, of: list[int]) -> int:
    """From those of the operands."""
    match item.op:
        case "const":
            return int(item.attr) & -int(item.attr) or _BYTES
        case "mul":
            return of[0] * of[1]
        case "shl" if item.args[1].op == "const":
            return of[0] << int(item.args[1].attr)
        case "and":
            return max(of)
        case "add" | "sub" | "or" | "xor" | "min" | "max" | "rem":
            return min(of)
        case "select":
            return min(of[1:])
    return 1


class _Emitter(Emitter):
    def __init__(self, kernel: Kernel, dialect: Cuda) -> None:
        super().__init__(kernel, dialect)
        self.runs = runs_of(self.kernel)

    def define(self, item: Ins, args: Sequence[str], name: str | None) -> Iterable[str]:
        run = self.runs.get(item)
        if run is None or name is None:
            yield from super().define(item, args, name)
            return
        if not run.name:
            yield from self.load_run(run)
        value = self.loaded(run.buffer, f"{run.name}.at[{run.members.index(item)}]")
        yield self.naming(item.dtype, name, value)

    def store(self, item: Ins, args: Sequence[str]) -> list[str]:
        run = self.runs.get(item)
        if run is None:
            return super().store(item, args)
        value = run.values[item] = self.fresh("v")
        lines = [f"const {STORAGE[run.buffer.element.name]} {value} = {self.stored(run.buffer, args[1])};"]
        return [*lines, *self.store_run(run)] if item is run.last else lines

    def load_run(self, run: Run) -> Iterable[str]:
        """All of a run, where its first member stands."""
        at, b = self.fresh("at"), self.buffers[run.buffer]
        run.name = self.fresh("run")
        yield self.first(run, at)
        yield f"{self.pack(run)} {run.name};"
        yield f"if ({self.fits(run, at)}) {{ {run.name} = *(const {self.pack(run)} *)({b} + {at}); }}"
        yield "else {"
        for k, member in enumerate(run.members):
            place = f"{at} + {k}u"
            test = f"{place} < {self.length(run.buffer)} ? " if member.guarded else ""
            yield f"    {run.name}.at[{k}] = {test}{b}[{place}]{' : 0' * member.guarded};"
        yield "}"

    def store_run(self, run: Run) -> Iterable[str]:
        """All of a run, where its last member stands."""
        at, b, pack = self.fresh("at"), self.buffers[run.buffer], self.fresh("run")
        values = [run.values[member] for member in run.members]
        yield self.first(run, at)
        whole = f"const {self.pack(run)} {pack} = {{{{{', '.join(values)}}}}};"
        yield f"if ({self.fits(run, at)}) {{ {whole} *({self.pack(run)} *)({b} + {at}) = {pack}; }}"
        yield "else {"
        for k, (member, value) in enumerate(zip(run.members, values, strict=True)):
            place = f"{at} + {k}u"
            test = f"if ({place} < {self.length(run.buffer)}) " if member.guarded else ""
            yield f"    {test}{{ {b}[{place}] = {value}; }}"
        yield "}"

    def pack(self, run: Run) -> str:
        return f"Pack<{STORAGE[run.buffer.element.name]}, {len(run.members)}>"

    def first(self, run: Run, name: str) -> str:
        base = self.texts[run.base]
        return self.constant("u32", name, f"{base} + {run.offset}u" if run.offset else self.bare(base))

    def fits(self, run: Run, at: str) -> str:
        aligned = f"(ulong){self.buffers[run.buffer]} % sizeof({self.pack(run)}) == 0ul"
        return f"{aligned} && {at} + {len(run.members) - 1}u < {self.length(run.buffer)}" if run.guarded else aligned


class _Joined(JoinedEmitter, _Emitter):
    pass

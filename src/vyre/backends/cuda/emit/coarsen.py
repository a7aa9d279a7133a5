"""Kernels whose threads do several invocations each, so that every access to memory moves up to 16 bytes.

That is for kernels in which invocation i reads and writes the elements i of its buffers and nothing else but constants,
and what elements point to: no loops, no barriers, no other indices. (Atomics may go anywhere.) A thread that has all
its invocations, and whose elements all lie inside their buffers at addresses that are multiples of the access, loads
them at once, does one invocation after the other, and stores what they gave at once. The others, at the ends, do
element by element what the plain kernel does: both are one text, with a constant that says which.

The entry point takes one more argument at the end: last_x, the number of invocations of the launch along x, less 1. A
launch has as many blocks along x as it takes to do all of these, and as many as workgroups along y and z.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from ....driver.policy.decision import Decision
from ....driver.policy.geometry import JOINED, THREADS, WIDE
from ....foundation.integers import ceil_div
from ....lower.c.emitter import ENTRY, Emitter
from ....lower.c.library import STORAGE, literal
from ....lower.kernel_ir import PURE, Body, Buffer, If, Ins, Kernel, Statement, walk
from .block_size import TOGETHER, decide_block, last_parameter
from .packed_access import cuda_text
from .text import Cuda, with_words

_BYTES = 16
"""The widest access."""
_THREADS = 128
"""Of a block."""
_MOST = 400
"""Instructions of an invocation: longer ones do not wait for memory."""
_MOST_OF_ALL = 2880
"""Of all invocations of a thread, which are unrolled: where it takes that, accesses are narrower."""
_MOST_BRANCHES = 64
"""More could be nested too deep for the compiler."""


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel as a file, the threads of a block, and how many invocations along x each of them does.

    `joined`: the threads are those of several workgroups, and any other number of them would do. Where they are not,
    and each does one invocation, a block is a workgroup, and there is no last_x.
    """

    text: str
    block: tuple[int, int, int]
    each: int = 1
    joined: bool = False
    decisions: tuple[Decision, ...] = ()

    @property
    def takes_last(self) -> bool:
        return self.each > 1 or self.joined

    def blocks(self, groups: int, workgroup: int) -> int:
        """Blocks along x for so many workgroups of this size along x."""
        return ceil_div(groups * workgroup, self.block[0] * self.each) if self.takes_last else groups


def cuda_code(kernel: Kernel) -> KernelText:
    """The kernel with wide accesses, where that is possible and of use, or as it is."""
    found = _Accesses(kernel)
    emitter = _Emitter(kernel, found) if found.possible else None
    decided = decide_block(kernel, 1 if emitter is None else emitter.each)
    if emitter is not None and decided.choice == WIDE:
        return KernelText(with_words(emitter.text()), (_THREADS, 1, 1), emitter.each, decisions=(decided,))
    if decided.choice == JOINED:
        return KernelText(cuda_text(kernel, joined=True), (THREADS[0], 1, 1), joined=True, decisions=(decided,))
    return KernelText(cuda_text(kernel), kernel.workgroup, decisions=(decided,))


class _Accesses:
    """Which accesses of a kernel can be wide.

    `wide` has them in order. `fits` are buffers: where the elements of all invocations of a thread lie inside each of
    them, every wide access happens, and is in bounds.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.wide: dict[Ins, None] = {}
        self.fits: dict[Buffer, None] = {}
        self.decided: dict[Ins, bool] = {}
        """Conditions of branches, and what they are where the elements fit."""
        self.length = 0
        self._stored: set[Buffer] = set()
        self._placed = _placed(kernel.body)
        self._atomic: set[Buffer] = set()
        simple = self._is_simple() and self._visit(kernel.body)
        self.possible = simple and bool(self.wide) and not any(i.attr in self._atomic for i in self.wide)

    def _is_simple(self) -> bool:
        kernel = self.kernel
        items = list(walk(kernel.body))
        self.length = len(items)
        return (
            kernel.workgroup[1:] == (1, 1)
            and self.length <= _MOST
            and sum(isinstance(i, If) for i in items) <= _MOST_BRANCHES
            and not any(b.shared for b in kernel.buffers)
            and not any(i.op in TOGETHER for i in items)
            and not any(isinstance(i, Ins) and self._is_place(i) and not self._is_own(i) for i in items)
        )

    def _visit(self, body: Body) -> bool:
        """Look at what is always done where the elements fit; False: the kernel is not of this kind."""
        unvisited: list[Statement] = list(reversed(body))
        while unvisited:
            item = unvisited.pop()
            if isinstance(item, If) and not item.orelse and self._decided(item.condition, True):
                self.decided[item.condition] = True
                unvisited.extend(reversed(item.then))
            elif isinstance(item, If) and not item.orelse and self._decided(item.condition, False):
                self.decided[item.condition] = False
                if [i.op for i in item.then] != ["return"]:
                    return False
            elif isinstance(item, Ins) and item.op in ("load", "store") and self._is_own(item.args[0]):
                if item.attr in self._stored:
                    return False
                if item.op == "store":
                    self._stored.add(item.attr)
                self.wide[item] = self.fits[item.attr] = None
            elif not all(self._is_harmless(i) for i in walk([item])):
                return False
        return True

    def _decided(self, condition: Ins, truth: bool) -> bool:
        """Whether the condition has this value where the elements fit."""
        op, args = condition.op, condition.args
        if op == ("and" if truth else "or"):
            return all(self._decided(a, truth) for a in args)
        if op == "not":
            return self._decided(args[0], not truth)
        below, above = ("lt", "gt") if truth else ("ge", "le")
        if op not in (below, above):
            return False
        index, length = args if op == below else (args[1], args[0])
        if length.op != "len" or not self._is_own(index):
            return False
        self.fits[length.attr] = None
        return True

    def _is_harmless(self, item: Statement) -> bool:
        """Whether it does not matter when, and how often, the elements of others are loaded and stored meanwhile."""
        if item.op == "atomic":
            assert isinstance(item, Ins)
            self._atomic.add(item.attr[1])
        if item.op == "load":
            assert isinstance(item, Ins)
            return item.args[0] not in self._placed and not item.attr.writable
        return item.op not in ("store", "return", "loop")

    def _is_place(self, item: Ins) -> bool:
        """Whether it says where along x an invocation stands."""
        return item.op in ("gid", "wid", "lid") and item.attr == 0

    def _is_own(self, item: Ins) -> bool:
        """Whether it is the global id along x."""
        return self._is_place(item) and item.op == ("wid" if self.kernel.workgroup[0] == 1 else "gid")


def _placed(body: Body) -> set[Ins]:
    """Values made of the global id along x other than by loads: as indices, they are near those of others."""
    found: set[Ins] = set()
    for item in walk(body):
        if isinstance(item, Ins) and item.op != "load":
            here = item.op in ("gid", "wid", "lid") and item.attr == 0
            if here or item.op in ("get", "atomic") or not found.isdisjoint(item.args):
                found.add(item)
    return found


def _common(body: Body) -> list[Ins]:
    """Loads that give all invocations of a thread the same, and what their indices are made of, in order.

    They move before the first invocation: the compiler finds that out only for what it is sure to come to. A load
    without a test stays: what is around it may say that it is in bounds.
    """
    found: dict[Ins, None] = {}
    for item in walk(body):
        if not isinstance(item, Ins) or any(a not in found for a in item.args):
            continue
        place = item.op in ("gid", "wid", "lid") and item.attr == 0
        pure = item.op in PURE and item.op not in ("index", "lane") and not place
        if pure or (item.op == "load" and item.guarded and not item.attr.writable):
            found[item] = None
    needed = {item for item in found if item.op == "load"}
    for item in reversed(found):
        if item in needed:
            needed.update(item.args)
    return [item for item in found if item in needed]


class _Emitter(Emitter):
    def __init__(self, kernel: Kernel, found: _Accesses) -> None:
        common = _common(kernel.body)
        self.common = frozenset(common)
        super().__init__(replace(kernel, body=[*common, *_without(kernel.body, self.common)]), Cuda(kernel))
        self.common_lines = 0
        self.found = found
        self.each = _BYTES // max(i.attr.element.size for i in found.wide)
        while self.each > 2 and self.each * found.length > _MOST_OF_ALL:
            self.each //= 2
        self.loads = list(dict.fromkeys(i.attr for i in found.wide if i.op == "load"))
        self.stores = [i.attr for i in found.wide if i.op == "store"]
        self._inside = 2

    def text(self) -> str:
        start, body = self.start_lines(), self.print()
        variables = len(body) - len(self.lines)
        ahead = [line.removeprefix("    ") for line in self.lines[: self.common_lines]]
        body = [f"    {line}" for line in body[:variables]] + self.lines[self.common_lines :]
        lines = [""]
        for text in self.called.values():
            lines += [f"{self.dialect.function} {text}", ""]
        parameters = self.parameters()
        more = [
            ("const uint first", "global id of the first invocation along x"),
            ("const uint most", "how many come behind it"),
        ]
        lines += ["template <bool whole> // whether all are there, and all their elements"]
        lines += [f"{self.dialect.function} __forceinline__ void several(", *_list([*parameters, *more]), ")", "{"]
        used = [re.sub(r"\b[gw]id_x\b", "", line) for line in (*start, *ahead, *body)]
        lines += [*self.id_lines(used), *start]
        lines += [*(f"    {line}" for line in self.begin()), *ahead]
        lines += [
            f"#pragma unroll (whole ? {self.each} : 1)",
            f"    for (uint k = 0u; k < {self.each}u; ++k) {{",
            "        if (!whole && k > most) { break; }",
            "        const uint gid_x = first + k;",
            *(["        const uint wid_x = gid_x;"] if self.kernel.workgroup[0] == 1 else []),
            *body,
            "    }",
            *(f"    {line}" for line in self.finish()),
            "}",
            "",
        ]
        lines += [f'extern "C" __global__ void __launch_bounds__({_THREADS})', f"{ENTRY}("]
        lines += [*_list([*parameters, last_parameter()]), ")", "{", *(f"    {line}" for line in self.entry()), "}", ""]
        return "\n".join(lines)

    def pack(self, buffer: Buffer) -> str:
        return f"Pack<{STORAGE[buffer.element.name]}, {self.each}>"

    def name(self, prefix: str, buffer: Buffer) -> str:
        return prefix + self.buffers[buffer].removeprefix("buf")

    def begin(self) -> Iterable[str]:
        for b in self.loads:
            place = f"(const {self.pack(b)} *)({self.buffers[b]} + first)"
            yield f"{self.pack(b)} {self.name('in', b)};"
            yield f"if (whole) {{ {self.name('in', b)} = *{place}; }}"
        for b in self.stores:
            yield f"{self.pack(b)} {self.name('out', b)};"

    def finish(self) -> Iterable[str]:
        for b in self.stores:
            yield f"if (whole) {{ *({self.pack(b)} *)({self.buffers[b]} + first) = {self.name('out', b)}; }}"

    def entry(self) -> Iterable[str]:
        block = _THREADS * self.each
        yield f"const uint at = threadIdx.x * {self.each}u;"
        yield f"const uint last = last_x - blockIdx.x * {block}u; // of the block"
        yield "if (at > last) { return; }"
        yield f"const uint first = base_x * {self.kernel.workgroup[0]}u + blockIdx.x * {block}u + at;"
        yield "const uint most = last - at;"
        ahead = f"{self.each - 1}u"
        tests = [f"most >= {ahead}", *(f"first + {ahead} < {self.length(b)}" for b in self.found.fits)]
        for b in dict.fromkeys((*self.loads, *self.stores)):
            tests.append(f"(ulong)({self.buffers[b]} + first) % sizeof({self.pack(b)}) == 0ul")
        for k, test in enumerate(tests):
            yield f"{'    && ' if k else 'const bool whole = '}{test}{';' * (k == len(tests) - 1)}"
        names = ", ".join(re.sub(r".*\b(\w+)$", r"\1", p) for p, _ in self.parameters())
        for branch, constant in (("if (whole)", "true"), ("else", "false")):
            yield f"{branch} {{ several<{constant}>({names}, first, most); }}"

    def _instruction(self, item: Ins) -> None:
        super()._instruction(item)
        if item in self.common:
            self.common_lines = len(self.lines)

    def define(self, item: Ins, args: Sequence[str], name: str | None) -> Iterable[str]:
        if item not in self.found.wide or name is None:
            return super().define(item, args, name)
        b: Buffer = item.attr
        mine = self.loaded(b, f"{self.name('in', b)}.at[k]")
        plain = self.loaded(b, f"{self.buffers[b]}[gid_x]")
        if item.guarded:
            plain = f"gid_x < {self.length(b)} ? {plain} : {literal(item.dtype, 0)}"
        return [self.constant(item.dtype, name, f"whole ? {mine} : {plain}")]

    def store(self, item: Ins, args: Sequence[str]) -> list[str]:
        b: Buffer = item.attr
        value = self.fresh("v")
        test = f"if (gid_x < {self.length(b)}) " if item.guarded else ""
        return [
            f"const {STORAGE[b.element.name]} {value} = {self.stored(b, args[1])};",
            f"if (whole) {{ {self.name('out', b)}.at[k] = {value}; }} "
            f"else {test}{{ {self.buffers[b]}[gid_x] = {value}; }}",
        ]

    def branch(self, item: If) -> str:
        text = super().branch(item)
        known = self.found.decided.get(item.condition)
        return text if known is None else f"whole || {text}" if known else f"!whole && ({text})"

    def act(self, item: Ins, args: Sequence[str]) -> Iterable[str]:
        return ["continue;"] if item.op == "return" else super().act(item, args)


def _without(body: Body, gone: Set[Ins]) -> Body:
    """The body without some instructions, inside its branches too."""
    found: Body = []
    unvisited = [(body, found)]
    while unvisited:
        items, kept = unvisited.pop()
        for item in items:
            if isinstance(item, If):
                branch = If(item.condition, [], [], item.uniform)
                kept.append(branch)
                unvisited += [(item.then, branch.then), (item.orelse, branch.orelse)]
            elif item not in gone:
                kept.append(item)
    return found


def _list(parameters: Sequence[tuple[str, str]]) -> list[str]:
    """Parameters with what they are."""
    width = max(len(p) for p, _ in parameters) + 1
    last = len(parameters) - 1
    return [f"    {p + ',' * (k < last):{width}} // {comment}" for k, (p, comment) in enumerate(parameters)]

"""Kernel form -> the assembler's text of one module.

It exports one function, of the form that `abi.py` says.

Workers take chunks of consecutive workgroups. A chunk is cut into tiles: workgroups side by side along x. Before a tile
the kernel's check decides which of two versions of the body runs it: the fast one without the tests that the check
covers, or the other. A tile that does not pass is halved, so that an edge costs a few tests and not a slow chunk.
Of the fast one there may be a second copy, whose stores go past the cache; a launch chooses between them once. Where
lanes may disagree at a border only, it has its body twice, and asks each block of lanes which of the two it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....driver.policy.decision import Decision
from ....driver.policy.geometry import ALONG_Y, choose_lanes
from ....errors import MOST_TRAPS, UnsupportedFeature
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH
from ....lower.kernel_ir import Buffer, If, Ins, Kernel, Loop, TileCheck, bodies, walk
from .. import abi
from . import subgroups
from .access import FENCE, TRAP, ZERO, streamed, streaming_version
from .barrier_phases import Phases
from .instructions import ty
from .lanes import Lanes
from .tile_check import Taken, plan_checks
from .uniformity import WIDE, Variance
from .values import Version

_FLUSHING, _PLAIN = 0x9FC0, 0x1F80
"""Control words of the x86 vector unit: round to nearest and no exceptions; with the first, subnormals are zero in
operands and results."""
_REGISTERS = 16
"""Vectors that hold a local of a whole workgroup, where registers are as many again: those of 16 lanes."""
_TINY, _LIGHT, _MEDIUM = 6, 12, 40
"""Instructions of a loop up to which eight, four or two vectors share it: all of them must fit the registers."""
_MOST_ABREAST = 2_000
"""Instructions times vectors that share them, in the whole body: a long one gains little and takes long to compile."""
_MOST_TWICE = 400
"""Instructions times vectors, up to which the blocks of lanes that all take one way have a copy of the body."""
_LARGE = 8_000
"""Instructions of a body above which there is one version of it, with all tests."""
_MOST_SCRATCH = 64 << 20
"""Bytes that each worker brings, at most."""
_LEAST_LANES = 64
"""A tile is not halved below this many invocations."""


@dataclass(frozen=True, slots=True)
class Target:
    """`width`: lanes of a vector of 32-bit values; 1 runs lane after lane. `mxcsr`: x86, whose control word is set."""

    width: int = 1
    mxcsr: bool = False


@dataclass(frozen=True, slots=True)
class Emitted:
    """`scratch_bytes`: memory that each worker brings."""

    text: str
    scratch_bytes: int
    lanes: Decision


def emit(kernel: Kernel, target: Target) -> Emitted:
    """The text of a module for `kernel`."""
    if kernel.traps and not kernel.meets:
        _return_after_traps(kernel)
    phases = Phases(kernel, subgroups.in_blocks(kernel, target.width))
    lanes = _choose_lanes(kernel, phases, target.width)
    if lanes.choice != ALONG_Y:
        return Emitted(*_emitted(kernel, phases, target, lanes))
    kernel.turn()
    try:
        return Emitted(*_emitted(kernel, phases, target, lanes))
    finally:
        kernel.turn()


def _return_after_traps(kernel: Kernel) -> None:
    """An invocation that traps ends, and the others run on."""
    for body in [kernel.body, *(inner for item in walk(kernel.body) for inner in bodies(item))]:
        for k, item in enumerate(body):
            if isinstance(item, Ins) and item.op == "trap":
                body[k + 1 :] = [Ins("return")]
                break


def _choose_lanes(kernel: Kernel, phases: Phases, width: int) -> Decision:
    gains: list[int | None] = []
    indices = [i.args[0] for i in walk(kernel.body) if isinstance(i, Ins) and i.op in ("load", "store")]
    for _ in range(2):
        gain = None
        if _is_flat(kernel, phases, width):
            variance = Variance(kernel, width, 1, True, fast=True)
            gain = sum(1 if variance.is_row(i) else -1 for i in indices if variance.level(i) == WIDE)
        gains.append(gain)
        kernel.turn()
    return choose_lanes(*gains)


def _emitted(kernel: Kernel, phases: Phases, target: Target, lanes: Decision) -> tuple[str, int, Decision]:
    if phases.nbytes > _MOST_SCRATCH:
        raise UnsupportedFeature(
            f"shared memory and what invocations keep across barriers take {phases.nbytes} bytes for a workgroup of "
            f"{kernel.lanes}; max is {_MOST_SCRATCH}",
            fix="choose a smaller workgroup, or keep fewer values across barriers",
            name="memory across barriers",
        )
    flat = _is_flat(kernel, phases, target.width)
    width = target.width if flat else min(target.width, 1 << (kernel.lanes - 1).bit_length())
    least = SUBGROUP_WIDTH // width if phases.whole else 1
    if sum(1 for _ in walk(kernel.body)) > _LARGE:
        taken = Taken.of(kernel, None)
        version = Version(name="fast", width=width, parts=least, flat=flat, fast=False, taken=taken)
        only, tiles = Lanes(kernel, phases, version), _Tiles(kernel, phases, None, taken, flat=flat)
        return *_module(kernel, phases, target, [only], [only.text()], tiles), lanes
    parts = max(_parts(kernel, phases, width, flat), least)
    if phases.whole and not all(loop.uniform for loop in walk(kernel.body) if isinstance(loop, Loop)):
        parts = least  # one subgroup: another one may have more turns to do, or fewer
    rows = flat and parts > 1 and kernel.workgroup[1] % parts == 0 and _uses_y(kernel)
    size = sum(1 for _ in walk(kernel.body))

    def blocks(held: Mapping[int, bool]) -> Variance:
        return Variance(kernel, width, parts, flat, rows, held=held, fast=True)

    checks = plan_checks(kernel, blocks if flat and width > 1 and size * parts <= _MOST_TWICE else None)
    check, taken = checks.tile, Taken.of(kernel, checks.tile)
    checked = check is not None or any(b.private for b in kernel.buffers)
    version = Version(
        name="fast", width=width, parts=parts, flat=flat, fast=True, taken=taken, rows=rows, held=checks.held,
        inside=checks.block,
    )  # fmt: skip
    fast = Lanes(kernel, phases, version)
    versions, functions = [fast], [fast.text()]
    past: dict[Buffer, int] = {}
    if target.mxcsr and not kernel.turned and (stores := streamed(kernel)):
        stream = Lanes(kernel, phases, replace(version, name="stream", streamed=stores))
        text, past = stream.text(), stream.past
        if past:
            versions.append(stream)
            functions.append(text)
    step, size = fast.variance.step, kernel.workgroup[0]  # it may have chosen narrower blocks
    block, edge = (step, "safe") if flat and size % step and not fast.tests_blocks else (0, "")
    if block and size % width == 0:  # fewer vectors at a time make whole blocks of the remaining lanes
        parts = next((p for p in (4, 2) if p < parts and size % (width * p) == 0), 1)
        even = Lanes(kernel, phases, replace(version, name="even", parts=parts, rows=False))
        text = even.text()
        if size % even.variance.step == 0:
            edge = even.name
            versions.append(even)
            functions.append(text)
    if checked or edge == "safe":
        safe = Lanes(kernel, phases, Version(name="safe", width=width, parts=least, flat=flat, fast=False, taken=taken))
        versions.append(safe)
        functions.append(safe.text())
    tiles = _Tiles(kernel, phases, check, taken, flat=flat, block=block, edge=edge, checked=checked, past=past)
    found = {"barriers": sum(i.op == "barrier" for i in walk(kernel.body)), **fast.numbers()}
    lanes = replace(lanes, numbers={**lanes.numbers, **{name: n for name, n in found.items() if n}})
    return *_module(kernel, phases, target, versions, functions, tiles), lanes


def _module(
    kernel: Kernel, phases: Phases, target: Target, versions: list[Lanes], functions: list[str], tiles: _Tiles
) -> tuple[str, int]:
    """The versions of the body, with all that goes around them."""
    functions.append(tiles.text())
    declared: dict[str, str] = {}
    for one in (*versions, tiles.lanes):
        declared.update(one.w.declared)
    lines = [f"{ZERO} = internal constant [8 x i8] zeroinitializer, align 8"]
    if kernel.traps:
        lines.append(_trap_function(kernel.meets))
    flushes = target.mxcsr and not kernel.soft_flush
    control = (_FLUSHING if flushes else _PLAIN) if target.mxcsr else None
    lines += [*functions, _entry(control), *declared.values()]
    if control is not None:
        lines += ["declare void @llvm.x86.sse.stmxcsr(ptr)", "declare void @llvm.x86.sse.ldmxcsr(ptr)"]
    flushing = ' "denormal-fp-math"="preserve-sign,preserve-sign"' if flushes else ""
    lines += [f"attributes #0 = {{ noinline nounwind{flushing} }}", "attributes #1 = { noinline nounwind }", "!0 = !{}"]
    lines += ["!1 = distinct !{!1, !2}", '!2 = !{!"llvm.loop.unroll.disable"}', "!3 = !{i32 1}"]
    return "\n".join(lines) + "\n", phases.nbytes


def _is_flat(kernel: Kernel, phases: Phases, width: int) -> bool:
    """Whether lanes of a row may be computed together across workgroups."""
    if phases.split or phases.shared or phases.whole:
        return False
    whole = kernel.workgroup[0] == 1 or kernel.workgroup[0] % width == 0
    for item in walk(kernel.body):
        if item.op == "lane" or (item.op in ("lid", "wid") and item.attr == 0 and not whole):  # type: ignore[union-attr]
            return False
    return True


def _parts(kernel: Kernel, phases: Phases, width: int, flat: bool) -> int:
    """How many vectors to compute side by side: more than one where short loops would wait for their own results."""
    if width == 1 or kernel.traps:
        return 1
    found = 1
    for loop in walk(kernel.body):
        if isinstance(loop, Loop) and id(loop) not in phases.cuts:
            inside = list(walk(loop.body))
            if all(isinstance(i, Ins | If) and i.op not in ("store", "atomic", "return") for i in inside):
                work = sum(
                    isinstance(i, Ins) and not i.uniform and i.op not in ("get", "set", "const", "flush")
                    for i in inside
                )
                found = max(found, 8 if work <= _TINY else 4 if work <= _LIGHT else 2 if work <= _MEDIUM else 1)
    whole = kernel.lanes // width
    if found == 8 and whole == width == _REGISTERS and len(phases.memory) == 1 and not flat:
        found = whole
    size = sum(1 for _ in walk(kernel.body))
    while found > 1 and found * size > _MOST_ABREAST:
        found //= 2
    lanes = kernel.workgroup[0] if flat else kernel.lanes
    local = any(i.op in ("lid", "wid") and i.attr == 0 for i in walk(kernel.body) if isinstance(i, Ins))
    while found > 1 and lanes % (width * found) and (local or not flat):
        found //= 2
    return found


def _uses_y(kernel: Kernel) -> bool:
    return any(i.op in ("gid", "lid") and i.attr == 1 for i in walk(kernel.body) if isinstance(i, Ins))


def _entry(control: int | None) -> str:
    """The exported function, which runs under a control word of ours and gives the caller's back.

    Rounding and underflow would else be as some library in the process has set them. No instruction on floats may stand
    beside the switch, hence the call.
    """
    lines = ["  call void @tiles(ptr %shared, ptr %worker)"]
    if control is not None:
        lines = [
            "  %old = alloca i32, align 4",
            "  %new = alloca i32, align 4",
            "  call void @llvm.x86.sse.stmxcsr(ptr %old)",
            f"  store i32 {control}, ptr %new, align 4",
            "  call void @llvm.x86.sse.ldmxcsr(ptr %new)",
            *lines,
            "  call void @llvm.x86.sse.ldmxcsr(ptr %old)",
        ]
    return "\n".join([f"define void @{abi.ENTRY}(ptr %shared, ptr %worker) #1 {{", *lines, "  ret void", "}"])


def _trap_function(stops: bool) -> str:
    """What an invocation that traps calls: see `driver/contract/traps.py`. `stops`: so that every other one ends."""
    lines = [f"define internal void @{TRAP}(ptr %shared, i32 %code, i32 %address, i32 %x, i32 %y, i32 %z) cold noinline"
             " nounwind {"]  # fmt: skip
    for name, word in (("count", abi.TRAPPED), ("lists", abi.TRAP_LISTS), ("row", abi.ROW), ("rows", abi.ROWS)):
        lines.append(f"  %{name}.at = getelementptr i64, ptr %shared, i64 {word}")
    lines += [
        "  %before = atomicrmw add ptr %count.at, i64 1 monotonic",
        "  %lists = load ptr, ptr %lists.at", "  %row = load i64, ptr %row.at", "  %rows = load i64, ptr %rows.at",
        *(f"  %{v}64 = zext i32 %{v} to i64" for v in ("code", "address", "x", "y", "z")),
        "  %above = mul i64 %z64, %rows", "  %line = add i64 %above, %y64", "  %start = mul i64 %line, %row",
        "  %number = add i64 %start, %x64", f"  %high = shl i64 %number, {abi.PIECE_BITS}",
    ]  # fmt: skip
    each = 32 // abi.PIECE_BITS
    for n in range(2 * each):
        value, shift = ("code64", "address64")[n // each], n % each * abi.PIECE_BITS
        lines += [
            f"  %shifted{n} = lshr i64 %{value}, {shift}",
            f"  %piece{n} = and i64 %shifted{n}, {(1 << abi.PIECE_BITS) - 1}",
            f"  %joined{n} = or i64 %high, %piece{n}",
            f"  %word{n} = xor i64 %joined{n}, -1",
            f"  %list{n} = getelementptr i64, ptr %lists, i64 {n * MOST_TRAPS}",
            f"  call void @{TRAP}.offer(ptr %list{n}, i64 %word{n})",
        ]
    if stops:
        lines += [f"  %stop = getelementptr i64, ptr %shared, i64 {abi.STOP}",
                  "  store atomic i64 1, ptr %stop monotonic, align 8"]  # fmt: skip
    return "\n".join([*lines, "  ret void", "}", _OFFER])


_OFFER = f"""\
define internal void @{TRAP}.offer(ptr %list, i64 %word) cold noinline nounwind {{
entry:
  %last = getelementptr i64, ptr %list, i64 {MOST_TRAPS - 1}
  %lowest = load atomic i64, ptr %last monotonic, align 8
  %full = icmp ugt i64 %lowest, %word
  br i1 %full, label %done, label %offer
offer:
  %k = phi i64 [ 0, %entry ], [ %next, %offer ]
  %carried = phi i64 [ %word, %entry ], [ %smaller, %offer ]
  %at = getelementptr i64, ptr %list, i64 %k
  %old = atomicrmw umax ptr %at, i64 %carried monotonic
  %less = icmp ult i64 %old, %carried
  %smaller = select i1 %less, i64 %old, i64 %carried
  %next = add i64 %k, 1
  %none = icmp eq i64 %smaller, 0
  %end = icmp eq i64 %next, {MOST_TRAPS}
  %out = or i1 %none, %end
  br i1 %out, label %done, label %offer
done:
  ret void
}}"""


class _Tiles:
    """The function that takes chunks and runs their tiles.

    With `block`, the lanes of a tile may not be a multiple of it: those that are left go to the version `edge`. There
    is a version `stream` where stores may go `past` the cache.
    """

    def __init__(
        self,
        kernel: Kernel,
        phases: Phases,
        check: TileCheck | None,
        taken: Taken,
        *,
        flat: bool,
        block: int = 0,
        edge: str = "",
        checked: bool = False,
        past: dict[Buffer, int] | None = None,
    ) -> None:
        self.kernel, self.check, self.flat, self.checked = kernel, check, flat, checked
        self.block, self.edge, self.past = block, edge, past or {}
        version = Version(name="tiles", width=1, parts=1, flat=True, fast=False, taken=taken)
        self.lanes = Lanes(kernel, phases, version)

    def text(self) -> str:
        e = self.lanes
        w = e.w
        w.label("start")
        words = *(abi.GRID + axis for axis in self.kernel.axes[:2]), abi.TOTAL, abi.CHUNK
        grid_x, grid_y, total, chunk = (e.enter(f"%load{k}", f"load i64, ptr {e.word(k)}") for k in words)
        turns = e.slot("i64")
        own = e.own_word("%limit", abi.CHUNKS_LEFT, "i64")
        w.line(f"store i64 {e.enter('%turns', f'load i64, ptr {own}')}, ptr {turns}, align 8")
        e.jump("take")
        e.start("take")
        left = w.new(f"load i64, ptr {turns}, align 8")
        e.branch(w.new(f"icmp eq i64 {left}, 0"), "done", "mine")
        e.start("mine")
        w.line(f"store i64 {w.new(f'sub i64 {left}, 1')}, ptr {turns}, align 8")
        flag = w.new(f"load atomic i64, ptr {e.word(abi.STOP)} monotonic, align 8")
        e.branch(w.new(f"icmp ne i64 {flag}, 0"), "done", "next")
        e.start("next")
        first = w.new(f"atomicrmw add ptr {e.word(abi.NEXT)}, i64 {chunk} monotonic, align 8")
        e.branch(w.new(f"icmp ult i64 {first}, {total}"), "chunk", "done")
        e.start("chunk")
        last = self.last = self._least(w.new(f"add i64 {first}, {chunk}"), total)
        e.jump("tile")
        e.start("tile")
        at, most = e.hole(), e.hole()
        row = w.new(f"udiv i64 %w, {grid_x}")
        x = w.new(f"sub i64 %w, {w.new(f'mul i64 {row}, {grid_x}')}")
        z = w.new(f"udiv i64 {row}, {grid_y}")
        y = w.new(f"sub i64 {row}, {w.new(f'mul i64 {z}, {grid_y}')}")
        count = self._least(w.new(f"sub i64 {last}, %w"), w.new(f"sub i64 {grid_x}, {x}"))
        if self.checked:
            count = self._least(count, "%most")
        end = w.new(f"add i64 {x}, {count}")
        wy, wz = (w.new(f"trunc i64 {v} to i32") for v in (y, z))
        arrivals = [("chunk", first, chunk)]
        after = w.new(f"add i64 %w, {count}")
        if self.checked:
            e.branch(self._check(x, end, y, z), "good", "bad")
            e.start("bad")
            least = max(1, _LEAST_LANES // self.kernel.workgroup[0]) if self.flat else 1
            e.branch(w.new(f"icmp ugt i64 {count}, {least}"), "halve", "slow")
            e.start("halve")
            arrivals.append(("halve", "%w", w.new(f"lshr i64 {count}, 1")))
            e.jump("tile")
            e.start("slow")
            stop = self._call("@safe", *self._range(x, end), wy, wz)
            arrivals.append(self._go_on(stop, after, count, "slow"))
            e.start("good")
        begin, until = self._range(x, end)
        best = streaming_version(e, self.past) if self.past else "@fast"
        if self.block:
            whole = w.new(f"and i64 {w.new(f'sub i64 {until}, {begin}')}, {-self.block}")
            middle = w.new(f"add i64 {begin}, {whole}")
            e.branch(w.new(f"icmp ne i64 {whole}, 0"), "blocks", "rest")
            e.start("blocks")
            e.branch(self._call(best, begin, middle, wy, wz), "done", "rest")
            e.start("rest")
            e.branch(w.new(f"icmp ult i64 {middle}, {until}"), "edge", "edged")
            e.start("edge")
            e.branch(self._call(f"@{self.edge}", middle, until, wy, wz), "done", "edged")
            e.start("edged")
            stop = "false"
        else:
            stop = self._call(best, begin, until, wy, wz)
        arrivals.append(self._go_on(stop, after, w.new(f"shl i64 {count}, 1"), "fine"))
        w.lines[at] = "  %w = phi i64 " + ", ".join(f"[ {v}, %{b} ]" for b, v, _ in arrivals)
        if self.checked:
            w.lines[most] = "  %most = phi i64 " + ", ".join(f"[ {m}, %{b} ]" for b, _, m in arrivals)
        e.start("done")
        if self.past:  # before the caller is told that the work is done
            w.call("void", FENCE)
        w.line("ret void")
        head = "define internal void @tiles(ptr %shared, ptr %worker) #0 {"
        lines = [line for line in w.lines if line]
        return "\n".join((head, "entry:", *e.first, "  br label %start", *lines, "}"))

    def _least(self, a: str, b: str) -> str:
        return self.lanes.w.call("i64", "llvm.umin.i64", ("i64", a), ("i64", b))

    def _range(self, x: str, end: str) -> tuple[str, str]:
        """What a version runs: workgroups along x, or invocations."""
        size = self.kernel.workgroup[0]
        if not self.flat or size == 1:
            return x, end
        w = self.lanes.w
        return w.new(f"mul i64 {x}, {size}"), w.new(f"mul i64 {end}, {size}")

    def _call(self, name: str, begin: str, end: str, wy: str, wz: str) -> str:
        e = self.lanes
        arguments = f"ptr %shared, ptr %worker, i64 {begin}, i64 {end}, i32 {wy}, i32 {wz}"
        arguments += "".join(f", {ty(load.dtype)} {e.value(load).parts[0]}" for load in e.taken.names)
        return e.w.new(f"call i1 {name}({arguments})")

    def _go_on(self, stop: str, after: str, most: str, name: str) -> tuple[str, str, str]:
        """To the next tile of the chunk, the next chunk, or out."""
        e = self.lanes
        if stop != "false":
            e.branch(stop, "done", f"{name}_on")
            e.start(f"{name}_on")
        block = e.block
        e.branch(e.w.new(f"icmp ult i64 {after}, {self.last}"), "tile", "take")
        return block, after, most

    def _check(self, x: str, end: str, y: str, z: str) -> str:
        """Whether the fast version may run the tile."""
        e, w, sizes = self.lanes, self.lanes.w, self.kernel.workgroup
        ok = "true"
        for buffer in self.kernel.buffers:
            if buffer.private and not buffer.shared:
                e.pointer(buffer)
                ok = w.new(f"and i1 {ok}, {w.new(f'xor i1 %none{buffer.slot}, true')}")
        if self.check is None:
            return ok
        for axis, (low, high) in enumerate(((x, end), (y, ""), (z, ""))):
            low = low if sizes[axis] == 1 else w.new(f"mul i64 {low}, {sizes[axis]}")
            if high:
                high = high if sizes[axis] == 1 else w.new(f"mul i64 {high}, {sizes[axis]}")
                high = w.new(f"sub i64 {high}, 1")
            else:
                high = low if sizes[axis] == 1 else w.new(f"add i64 {low}, {sizes[axis] - 1}")
            e.ids["gid_lo", axis], e.ids["gid_hi", axis] = (low,), (high,)
        for ins in self.check.body:
            e.instruction(ins)
        return w.new(f"and i1 {ok}, {e.value(self.check.ok).parts[0]}")

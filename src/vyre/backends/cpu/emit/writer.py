"""A function as it is written: blocks of code, the memory it uses, and the forms of values.

A block of lanes is `parts` vectors of `width` lanes each. A value has one of four forms: one scalar for the block, one
scalar for each vector, a row (lane k of a vector holds base + k; only the base is computed), or vectors.
"""

from __future__ import annotations

from ....lower.kernel_ir import Buffer, Kernel, Local
from .. import abi
from .barrier_phases import Phases
from .instructions import TYPES, Writer, literal, ty, vec
from .uniformity import EACH, ROW, SAME, WIDE, Val, Variance

POLL_EVERY = 1024


class Env:
    """The values of locals. A fork sees them and keeps its changes for itself: `own`, until they are joined."""

    __slots__ = ("_below", "own")

    def __init__(self, below: Env | None = None) -> None:
        self.own: dict[Local, Val] = {}
        self._below = below

    def fork(self) -> Env:
        return Env(self)

    def get(self, local: Local) -> Val | None:
        env: Env | None = self
        while env is not None:
            if (found := env.own.get(local)) is not None:
                return found
            env = env._below
        return None

    def __contains__(self, local: Local) -> bool:
        return self.get(local) is not None

    def __getitem__(self, local: Local) -> Val:
        found = self.get(local)
        assert found is not None, local.name
        return found

    def __setitem__(self, local: Local, val: Val) -> None:
        self.own[local] = val


class FunctionWriter:
    """What is known while a function is written, and how to write its common parts."""

    variance: Variance
    width: int
    parts: int

    def __init__(self, kernel: Kernel, phases: Phases) -> None:
        self.kernel, self.phases = kernel, phases
        self.w = Writer()
        self.first: list[str] = []
        """Lines of the first block: memory on the stack, pointers, lengths."""
        self.entered: set[str] = set()
        self.known: dict[object, Val] = {}
        self.trail: list[object] = []
        self.env = Env()
        self.fars: dict[str, str] = {}
        """Words that are known in 64 bits too."""
        self.block, self.open = "start", True
        self.at: tuple[str, ...] = ()
        """The first lane of each vector of the block: global id along x where flat, else linear local id."""

    # ---- forms of values

    def wide(self, val: Val, dtype: str) -> tuple[str, ...]:
        """One vector operand for each part."""
        if val.kind == WIDE or self.width == 1:
            return val.parts if len(val.parts) == self.parts else val.parts * self.parts
        if val.kind == ROW:
            return tuple(self._unrolled(base) for base in val.parts)
        found = tuple(self.splat(x, TYPES[dtype]) for x in val.parts)
        return found if len(found) == self.parts else found * self.parts

    def coerce(self, val: Val, kind: int, dtype: str) -> Val:
        if kind == WIDE:
            return Val(WIDE, self.wide(val, dtype))
        return Val(EACH, val.parts * self.parts) if kind == EACH and val.kind == SAME else val

    def splat(self, operand: str, scalar: str) -> str:
        if self.width == 1:
            return operand
        if not operand.startswith("%"):
            return f"splat ({scalar} {operand})"
        found = self.known.get(("splat", operand))
        if found is None:
            kind = vec(scalar, self.width)
            one = self.w.new(f"insertelement {kind} poison, {scalar} {operand}, i32 0")
            all_ = self.w.new(f"shufflevector {kind} {one}, {kind} poison, <{self.width} x i32> zeroinitializer")
            found = self.know(("splat", operand), Val(WIDE, (all_,)))
        return found.parts[0]

    def _unrolled(self, base: str) -> str:
        if base == "0":
            return self.iota()
        found = self.known.get(("row", base))
        if found is None:
            whole = self.w.new(f"add {ty('u32', self.width)} {self.splat(base, 'i32')}, {self.iota()}")
            found = self.know(("row", base), Val(WIDE, (whole,)))
        return found.parts[0]

    def far(self, word: str) -> str:
        """A 32-bit operand in 64 bits."""
        if not word.startswith("%"):
            return str(int(word) & 0xFFFFFFFF)
        return self.fars.get(word) or self.w.new(f"zext i32 {word} to i64")

    def near(self, far: str) -> str:
        """The 32-bit operand of one that is known in 64 bits."""
        word = self.w.new(f"trunc i64 {far} to i32")
        self.fars[word] = far
        return word

    def number(self, bits: int) -> str:
        """An f32 constant. Where the machine flushes, the compiler must not compute with it: it rounds tiny results as
        if they were kept, or keeps them. So it is read from memory that could hold anything; zero does no harm."""
        if self.kernel.soft_flush or not bits & 0x7FFFFFFF:
            return literal("f32", bits)
        return self._read("f32", bits)

    def unknown_mask(self, mask: str) -> str:
        """A mask that the compiler cannot know: where it knows that one lane is left, it stores a whole word for a
        narrow element, and so that of the neighbour too."""
        word, flags = ty("u32", self.width), ty("bool", self.width)
        always = self.w.new(f"icmp eq {word} {self.splat(self._read('u32', 0), 'i32')}, zeroinitializer")
        return self.w.new(f"and {flags} {mask}, {always}")

    def _read(self, dtype: str, bits: int) -> str:
        name, kind = f"@{dtype}_{bits:08X}", TYPES[dtype]
        self.w.declared[name] = (
            f"{name} = internal externally_initialized constant {kind} {literal(dtype, bits)}, align 4"
        )
        return self.w.new(f"load {kind}, ptr {name}, align 4, !invariant.load !0")

    def iota(self) -> str:
        return f"<{', '.join(f'i32 {k}' for k in range(self.width))}>" if self.width > 1 else "0"

    def ones(self) -> tuple[str, ...]:
        return (literal("bool", 1, self.width),) * self.parts

    def both(self, a: tuple[str, ...] | None, b: tuple[str, ...]) -> tuple[str, ...]:
        """Lanes in both masks."""
        if a is None or a == self.ones():
            return b
        return tuple(self.w.new(f"and {ty('bool', self.width)} {x}, {y}") for x, y in zip(a, b, strict=True))

    def any(self, mask: tuple[str, ...]) -> str:
        """Whether there is a lane, as a scalar."""
        flags, total = ty("bool", self.width), mask[0]
        for m in mask[1:]:
            total = self.w.new(f"or {flags} {total}, {m}")
        if self.width == 1:
            return total
        return self.w.new(f"icmp ne i{self.width} {self.bits(total)}, 0")

    def bits(self, mask: str) -> str:
        """A mask as a number, lane 0 lowest."""
        return self.w.new(f"bitcast {ty('bool', self.width)} {mask} to i{self.width}")

    # ---- what is known

    def know(self, key: object, val: Val) -> Val:
        """Remember a value for the rest of the bodies that are open now."""
        self.known[key] = val
        self.trail.append(key)
        return val

    def leave(self, mark: int) -> None:
        """Forget what became known since `mark`: it was computed on one path only."""
        while len(self.trail) > mark:
            self.known.pop(self.trail.pop(), None)

    # ---- memory of the function

    def enter(self, name: str, text: str) -> str:
        """A line of the first block, once."""
        if name not in self.entered:
            self.entered.add(name)
            self.first.append(f"  {name} = {text}")
        return name

    def slot(self, kind: str, align: int = 8) -> str:
        """Memory on the stack."""
        return self.enter(f"%{self.w.fresh('slot')}", f"alloca {kind}, align {align}")

    def word(self, index: int) -> str:
        """The address of a word of the launch."""
        return self.enter(f"%word{index}", f"getelementptr i64, ptr %shared, i64 {index}")

    def own_word(self, name: str, index: int, kind: str = "ptr") -> str:
        """The address of a word of the worker."""
        return self.enter(name, f"getelementptr {kind}, ptr %worker, i64 {index}") if index else "%worker"

    def pointer(self, buffer: Buffer) -> str:
        """Where the elements of a buffer begin."""
        if buffer.shared:
            return self.scratch(self.phases.shared[buffer.name])
        table = self.enter("%pointers", f"load ptr, ptr {self.word(abi.BUFFERS)}")
        slot = self.enter(f"%slot_{buffer.slot}", f"getelementptr ptr, ptr {table}, i64 {buffer.slot}")
        own = self.enter(f"%buffer{buffer.slot}", f"load ptr, ptr {slot}")
        if not buffer.private:
            return own
        copies = self.enter("%copies", f"load ptr, ptr {self.own_word('%own', abi.PRIVATES)}")
        slot = self.enter(f"%copy_{buffer.slot}", f"getelementptr ptr, ptr {copies}, i64 {buffer.slot}")
        copy = self.enter(f"%copy{buffer.slot}", f"load ptr, ptr {slot}")
        none = self.enter(f"%none{buffer.slot}", f"icmp eq ptr {copy}, null")
        return self.enter(f"%mine{buffer.slot}", f"select i1 {none}, ptr {own}, ptr {copy}")

    def length(self, buffer: Buffer) -> str:
        """How many elements a buffer has."""
        if buffer.shared:
            return str(buffer.count if buffer.count < 1 << 31 else buffer.count - (1 << 32))
        table = self.enter("%lengths", f"load ptr, ptr {self.word(abi.LENGTHS)}")
        slot = self.enter(f"%length_{buffer.slot}", f"getelementptr i64, ptr {table}, i64 {buffer.slot}")
        wide = self.enter(f"%long{buffer.slot}", f"load i64, ptr {slot}")
        return self.enter(f"%length{buffer.slot}", f"trunc i64 {wide} to i32")

    def scratch(self, offset: int) -> str:
        """An address in the worker's own memory."""
        base = self.enter("%scratch", f"load ptr, ptr {self.own_word('%at_scratch', abi.SCRATCH)}")
        return self.enter(f"%scratch{offset}", f"getelementptr i8, ptr {base}, i64 {offset}")

    def keep(self, offset: int, dtype: str, val: Val) -> None:
        """Store a value of every lane of the block."""
        for where, x in zip(self._kept_at(offset, dtype), self.wide(val, dtype), strict=True):
            kind = ty(dtype, self.width)
            if dtype == "bool":
                x, kind = self.w.new(f"zext {kind} {x} to {vec('i8', self.width)}"), vec("i8", self.width)
            self.w.line(f"store {kind} {x}, ptr {where}, align {1 if dtype == 'bool' else 4}")

    def kept(self, offset: int, dtype: str) -> Val:
        """Load what `keep` has stored."""
        found = []
        for where in self._kept_at(offset, dtype):
            if dtype == "bool":
                byte = vec("i8", self.width)
                raw = self.w.new(f"load {byte}, ptr {where}, align 1")
                found.append(self.w.new(f"trunc {byte} {raw} to {ty('bool', self.width)}"))
            else:
                found.append(self.w.new(f"load {ty(dtype, self.width)}, ptr {where}, align 4"))
        return Val(SAME if self.variance.block == 1 else WIDE, tuple(found))

    def _kept_at(self, offset: int, dtype: str) -> list[str]:
        scalar = "i8" if dtype == "bool" else TYPES[dtype]
        base = self.scratch(offset)
        return [self.w.new(f"getelementptr {scalar}, ptr {base}, i32 {at}") for at in self.at]

    # ---- blocks of code

    def start(self, label: str) -> None:
        self.w.label(label)
        self.block, self.open = label, True

    def jump(self, label: str) -> None:
        if self.open:
            self.w.line(f"br label %{label}")
            self.open = False

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.w.line(f"br i1 {condition}, label %{yes}, label %{no}")
        self.open = False

    def hole(self) -> int:
        """A line to be filled in later."""
        self.w.lines.append("")
        return len(self.w.lines) - 1

    def join(self, label: str, base: Env, arms: list[tuple[str, Env]]) -> None:
        """Where `arms` (last block, locals) meet. Each is a fork of `base`, or `base` itself."""
        self.env = base
        if not arms:
            return
        self.start(label)
        merged: dict[Local, Val] = {}
        for local in dict.fromkeys(local for _, env in arms if env is not base for local in env.own):
            if all(local in env for _, env in arms):
                vals = [env[local] for _, env in arms]
                merged[local] = vals[0]
                if any(v != vals[0] for v in vals):
                    merged[local], at = self.phis(vals[0])
                    self.fill_phis(local.dtype, merged[local], at, [(b, env[local]) for b, env in arms])
        base.own.update(merged)

    def phis(self, like: Val) -> tuple[Val, int]:
        """Names for phis of the form of `like`, and the first of their holes."""
        at = len(self.w.lines)
        self.w.lines.extend("" for _ in like.parts)
        return Val(like.kind, tuple(f"%{self.w.fresh('p')}" for _ in like.parts)), at

    def fill_phis(self, dtype: str, val: Val, at: int, arrivals: list[tuple[str, Val]]) -> None:
        kind = ty(dtype, self.width if val.kind == WIDE else 1)
        for p, name in enumerate(val.parts):
            sources = ", ".join(f"[ {v.parts[p]}, %{block} ]" for block, v in arrivals)
            self.w.lines[at + p] = f"  {name} = phi {kind} {sources}"

    # ---- stopping

    def look(self) -> None:
        """Stop if the launch's stop word is set."""
        w = self.w
        flag = w.new(f"load atomic i64, ptr {self.word(abi.STOP)} monotonic, align 8")
        stop, cont = w.fresh("stop"), w.fresh("go")
        self.branch(w.new(f"icmp ne i64 {flag}, 0"), stop, cont)
        self.start(stop)
        w.line("ret i1 true")
        self.start(cont)

    def poll(self) -> None:
        """At the end of an iteration: look now and then."""
        w = self.w
        if "%polls" not in self.entered:
            self.enter("%polls", "alloca i32, align 4")
            self.first.append("  store i32 0, ptr %polls")
        count = w.new(f"add i32 {w.new('load i32, ptr %polls')}, 1")
        w.line(f"store i32 {count}, ptr %polls")
        low = w.new(f"and i32 {count}, {POLL_EVERY - 1}")
        yes, no = w.fresh("look"), w.fresh("go")
        self.branch(w.new(f"icmp eq i32 {low}, 0"), yes, no)
        self.start(yes)
        self.look()
        self.jump(no)
        self.start(no)

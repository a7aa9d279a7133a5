"""A kernel as WGSL.

Registers: bool is `bool`, u32 `u32`, i32 `i32`, f32 `u32` (its bits, so that nothing but the float steps of `prelude`
is ever a float), u64 and i64 `vec2<u32>` (low word, high word). There is no f64.

The interface of the module, whose entry point is `vyre_kernel`:

    @group(0) @binding(slot)    each bound buffer: read-only storage, or read-write storage where it is writable
    @group(0) @binding(n)       n = number of bound buffers: the trap words, read-write storage; only where
                                `kernel.traps` is not empty; see `driver/contract/traps.py`
    params                      `var<immediate>`, or with `immediates=False` `@group(1) @binding(0) var<uniform>`;
                                u32 words without gaps, in this order:
                                  the length in elements of each bound buffer, by slot
                                  the workgroup id to count from: x y z
                                  row: 0, or the workgroups of a row where a long x axis is folded: what the device
                                  counts along y are rows then
                                  z0 z1: zero, which the compiler cannot know
                                `param_words(kernel)` says how many

Elements: u32 bool f32 are `array<u32>`, i32 `array<i32>`, u64 and i64 `array<vec2<u32>>`; narrow ones live in
`array<u32>` words of 4 or 2, the first in the lowest bits. A buffer that has atomics, or is narrow and writable, is an
array of atomics throughout. A binding must hold at least 16 bytes, also where the length is 0.

Workgroup variables are zeroed by the code itself. Nothing here polls: `kernel.poll` is not looked at. After a trap in a
kernel in which lanes meet, the invocation goes on to wherever they do, but its own loops end.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ....driver.contract.traps import HEAD_WORDS, TOLD_BITS
from ....errors import MOST_TRAPS, UnsupportedFeature
from ....foundation.integers import ceil_div
from ....foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH, reduction_offsets
from ....lower.c.printer import Printer
from ....lower.canonical_float import FloatSteps
from ....lower.instructions import unprinted
from ....lower.kernel_ir import Body, Buffer, Ins, Kernel, Local, Loop, walk
from .prelude import called, functions
from .traits import Traits

ENTRY = "vyre_kernel"
TYPES = {"bool": "bool", "u32": "u32", "i32": "i32", "f32": "u32", "u64": "vec2<u32>", "i64": "vec2<u32>"}
NARROW = {"u8": 8, "i8": 8, "u16": 16, "i16": 16, "f16": 16, "bf16": 16}
"""Bits of elements that share a word."""
_ZEROED = 16
"""Words that one lane clears in one turn of a loop."""
_HIDDEN = frozenset((0x80000000, 0xBF800000))
"""Bits of -0.0 and -1.0, which Mesa takes for one side of a conversion of a bool wherever a choice could be made of
branches (see `prelude`): functions that are called with them have branches too."""
_LITERAL_ZERO = "(params.z0 + params.z1)"
_SET_ZEROS = ("(params.z0 * params.z1)", "(params.z0 - params.z1)")
"""Zeros that the compiler cannot know. They are added: with the words of float operands, which are taken by ^, they do
not cancel. Each has its use, as Mesa takes what both sides of a choice add out of it (see `prelude`)."""
_FAR = 0x7FFFFFFF
"""The largest index that is written as a constant."""
_AXES = "xyz"
_GROUP = {"x": "group.x + group.y * params.row", "y": "select(group.y, 0u, params.row != 0u)", "z": "group.z"}
_WIDE = frozenset(("u64", "i64"))
_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^", "shl": "<<",
    "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
_CALLS = {
    "min": "min", "max": "max", "popcount": "countOneBits", "clz": "countLeadingZeros", "ctz": "countTrailingZeros",
    "bitrev": "reverseBits",
}  # fmt: skip
_ATOMICS = {
    AtomicOp.ADD: "atomicAdd", AtomicOp.AND: "atomicAnd", AtomicOp.OR: "atomicOr", AtomicOp.XOR: "atomicXor",
    AtomicOp.MIN: "atomicMin", AtomicOp.MAX: "atomicMax", AtomicOp.EXCHANGE: "atomicExchange",
}  # fmt: skip
_FLOAT = {
    ReduceOp.ADD: BinaryOp.ADD, ReduceOp.MUL: BinaryOp.MUL, ReduceOp.MIN: BinaryOp.MIN, ReduceOp.MAX: BinaryOp.MAX,
}  # fmt: skip


def wgsl_text(kernel: Kernel, traits: Traits, immediates: bool) -> str:
    """The module of a kernel that was lowered with the `soft_flush` of these traits."""
    types = {b.register for b in kernel.buffers}
    types |= {item.dtype for item in walk(kernel.body) if isinstance(item, Ins)}
    if "f64" in types:
        raise UnsupportedFeature("WGSL has no f64", fix="use the cpu backend, or compute in f32")
    return _Wgsl(kernel, traits).module(immediates)


def param_words(kernel: Kernel) -> int:
    """u32 words of the parameters."""
    return sum(not b.shared for b in kernel.buffers) + 6


def shared_bytes(kernel: Kernel) -> int:
    """Workgroup memory that the text declares: the kernel's own, and what subgroup operations go through."""
    own = sum(_words(b) * (8 if b.register in _WIDE else 4) for b in kernel.buffers if _is_met(b))
    return own + (4 * kernel.lanes if _meets(kernel.body, "subgroup") else 0)


def helper_turns(kernel: Kernel) -> int:
    """Turns of loops that each invocation makes besides those of the kernel: to clear workgroup memory."""
    return sum(_turns(b, kernel.lanes) for b in kernel.buffers if _is_met(b))


class _Wgsl(Printer):
    def __init__(self, kernel: Kernel, traits: Traits) -> None:
        super().__init__(kernel)
        self.traits = traits
        self.called: dict[str, None] = {}
        self.exchanges: dict[str, list[str]] = {}
        """Names and texts of functions through which subgroups exchange."""
        self.ids: set[str] = set()
        self.sets: Counter[Local] = Counter()
        atomics = {i.attr[1] for i in walk(kernel.body) if isinstance(i, Ins) and i.op == "atomic"}
        self.atomic = {
            b for b in kernel.buffers if b in atomics or (b.element.name in NARROW and b.writable and not b.own)
        }
        seen = {i.attr for i in walk(kernel.body) if isinstance(i, Ins) and i.op == "load"} | atomics
        self.talks = any(b.writable and not b.shared for b in seen)
        """Whether a lane may read what another lane stored in a bound buffer."""
        self.meet = _meets(kernel.body, "barrier", "subgroup")
        self.stops = self.meet and bool(kernel.traps)

    # -- the module

    def module(self, immediates: bool) -> str:
        inside = self.print()
        clear = list(self._clear())
        start = list(self._start())
        parts = ["\n".join(self._declarations(immediates))]
        if self.called:
            parts.append(functions(self.called, self.traits).rstrip("\n"))
        parts += ["\n".join(lines) for lines in self.exchanges.values()]
        if self.kernel.traps:
            parts.append(_TRAP)
        size = ", ".join(map(str, self.kernel.workgroup))
        builtins = {"group": "workgroup_id", "lid": "local_invocation_id", "linear": "local_invocation_index"}
        inputs = [
            f"@builtin({builtins[name]}) {name}: {'u32' if name == 'linear' else 'vec3<u32>'}"
            for name in builtins
            if name in self.ids
        ]
        head = f"@compute @workgroup_size({size})\nfn {ENTRY}({', '.join(inputs)}) {{"
        parts.append("\n".join([head, *("    " + line for line in (*start, *clear)), *inside, "}"]))
        return "\n\n".join(parts) + "\n"

    def _declarations(self, immediates: bool) -> Iterator[str]:
        bound = [b for b in self.kernel.buffers if not b.shared]
        yield "struct Params {"
        for name in (*(self._len(b) for b in bound), "base_x", "base_y", "base_z", "row", "z0", "z1"):
            yield f"    {name}: u32,"
        yield "}"
        yield "var<immediate> params: Params;" if immediates else "@group(1) @binding(0) var<uniform> params: Params;"
        for b in bound:
            space = "storage, read_write" if b.writable else "storage, read"
            yield f"@group(0) @binding({b.slot}) var<{space}> {self.buffers[b]}: array<{self._element(b)}>;"
        if self.kernel.traps:
            yield f"@group(0) @binding({len(bound)}) var<storage, read_write> traps: array<atomic<u32>>;"
        for b in self.kernel.buffers:
            if b.own:
                yield f"var<private> {self.buffers[b]}: array<{self._element(b)}, {_words(b)}>;"
            elif b.shared:
                yield f"var<workgroup> {self.buffers[b]}: array<{self._element(b)}, {_words(b)}>;"
        if self.exchanges:
            yield f"var<workgroup> exchanged: array<u32, {self.kernel.lanes}>;"

    def _start(self) -> Iterator[str]:
        """Ids by name."""
        for axis in _AXES:
            if f"gid_{axis}" in self.ids:
                self.ids |= {f"wid_{axis}", "lid"}
            if f"wid_{axis}" in self.ids:
                self.ids.add("group")
                yield f"let wid_{axis} = {_GROUP[axis]} + params.base_{axis};"
            if f"gid_{axis}" in self.ids:
                yield f"let gid_{axis} = wid_{axis} * {self.kernel.workgroup[_AXES.index(axis)]}u + lid.{axis};"
        if "lane" in self.ids:
            self.ids.add("linear")
            yield f"let lane = linear & {SUBGROUP_WIDTH - 1}u;"
        if self.stops:
            yield "var stopped = false;"

    def _clear(self) -> Iterator[str]:
        """Workgroup memory begins as zero; not every driver clears it."""
        lanes = self.kernel.lanes
        shared = [b for b in self.kernel.buffers if _is_met(b)]
        for b in shared:
            name, words, turns = self.buffers[b], _words(b), _turns(b, lanes)
            zero = "vec2<u32>()" if b.register in _WIDE else self.zero("i32" if b.register == "i32" else "u32")
            each = ceil_div(words, lanes)
            at = "k" if turns else "linear"
            steps = []
            for k in range(_ZEROED if turns else each):
                place = f"{at} + {k * lanes}u" if k else at
                whole = not turns and (k + 1) * lanes <= words
                put = f"atomicStore(&{name}[{place}], 0);" if b in self.atomic else f"{name}[{place}] = {zero};"
                steps.append(put if whole else f"if ({place} < {words}u) {{ {put} }}")
            if turns:
                yield f"for (var k = linear; k < {words}u; k += {lanes * _ZEROED}u) {{"
            yield from ("    " + line if turns else line for line in steps)
            if turns:
                yield "}"
        if shared:
            self.ids.add("linear")
            yield "workgroupBarrier();"

    def _element(self, b: Buffer) -> str:
        t = "u32" if b.element.name in NARROW else TYPES[b.register]
        return f"atomic<{t}>" if b in self.atomic else t

    def _len(self, b: Buffer) -> str:
        return super().length(b)

    def fresh(self, prefix: str = "v") -> str:
        return super().fresh("k" if prefix == "i" else prefix)  # i32 is a type

    def length(self, buffer: Buffer) -> str:
        return f"{buffer.count}u" if buffer.shared else f"params.{self._len(buffer)}"

    # -- values

    def zero(self, dtype: str) -> str:
        return self.literal(dtype, 0)

    def literal(self, dtype: str, bits: int) -> str:
        if dtype == "bool":
            return "true" if bits else "false"
        if dtype in _WIDE:
            return f"vec2<u32>({_word(bits & 0xFFFFFFFF)}, {_word(bits >> 32)})"
        if dtype != "i32" or bits in _HIDDEN:
            return _cast(dtype, "u32", _word(bits))
        return f"{bits}i" if bits >> 31 == 0 else f"(-{(1 << 32) - bits}i)"

    def value(self, item: Ins, args: Sequence[str]) -> str:
        op, t = item.op, item.dtype
        match op:
            case "const":
                return self.literal(t, item.attr)
            case "gid" | "wid":
                name = f"{op}_{_AXES[item.attr]}"
                self.ids.add(name)
                return name
            case "lid":
                self.ids.add("lid")
                return f"lid.{_AXES[item.attr]}"
            case "lane":
                self.ids.add("lane")
                return "lane"
            case "len":
                return self.length(item.attr)
        return self.operation(item, args)

    def unknown(self, dtype: str, text: str) -> str:
        """A constant that the compiler does not see through: it refuses some operations that it can do by itself."""
        if dtype == "bool":
            return f"({text} != ({_LITERAL_ZERO} != 0u))"
        return f"({text} + {_as(dtype, _LITERAL_ZERO)})"

    def assigned(self, item: Ins, text: str) -> str:
        """Branches choose between what they assign, so this is hidden as the operand of a choice is; by two words in
        turn, as the compiler would otherwise take one out of both branches."""
        dtype = item.args[0].dtype
        if self._inside == 1 or dtype == "bool" or not self.traits.fences:
            return self.bare(text)
        self.sets[item.attr] += 1
        return f"{text} + {_as(dtype, _SET_ZEROS[self.sets[item.attr] % 2])}"

    def operation(self, item: Ins, args: Sequence[str]) -> str:
        op, t, source = item.op, item.dtype, item.args[0].dtype
        if all(a.op == "const" for a in item.args):
            args = [self.unknown(source, args[0]), *args[1:]]
        name = called(item)
        if name is not None:
            self.called[name] = None
            return self.call(name, args)
        if op in ("convert", "bitcast"):
            same = TYPES[t] == TYPES[source]
            return args[0] if same else f"bitcast<{TYPES[t]}>({self.bare(args[0])})"
        if op == "select":
            return self.call("select", (args[2], args[1], args[0]))
        if op == "not":
            return f"{'!' if t == 'bool' else '~'}{args[0]}"
        if op in _CALLS:
            return self.call(_CALLS[op], args)
        if op not in _INFIX:
            raise unprinted(op, "WGSL")
        sign = "!=" if op == "xor" and t == "bool" else _INFIX[op]
        return f"({args[0]} {sign} {args[1]})"

    def call(self, name: str, args: Sequence[str]) -> str:
        # `f(a < b, c > (d))` would be a list of types between < and >
        return f"{name}({', '.join(a if ' < ' in a else self.bare(a) for a in args)})"

    def constant(self, dtype: str, name: str, text: str) -> str:
        return f"let {name} = {text};"

    def variable(self, dtype: str, name: str) -> str:
        return f"var {name}: {TYPES[dtype]};"

    def loop_head(self, loop: Loop, name: str, start: str, stop: str) -> str:
        # a loop in which lanes go together ends by itself; what it computes may say where they meet
        apart = not loop.uniform and not _meets(loop.body, "barrier", "subgroup")
        tests = ["!stopped"] if self.stops and apart else []
        if loop.endless:
            return f"for (; {''.join(tests)};) {{"
        return f"for (var {name} = {start}; {' && '.join([f'{name} < {stop}', *tests])}; {name}++) {{"

    def truth(self, dtype: str, text: str) -> str:
        return text if dtype == "bool" else f"({text} != 0u)"

    # -- memory

    def define(self, item: Ins, args: Sequence[str], name: str | None) -> Iterable[str]:
        if item.op == "subgroup":
            found = self._exchange(item, args)
            return [f"let {name} = {found};" if name else f"_ = {found};"]
        lines: list[str] = []
        at = self._named_index(args[0], lines)
        if item.op == "load":
            return [*lines, f"let {name} = {self._guarded_load(item, at)};"]
        op, buffer = item.attr
        if name:
            lines.append(f"var {name} = {self.zero(item.dtype)};")  # else the one of the last turn shows
        return lines + self._if_inside(item, buffer, at, self._atomic(op, buffer, at, args[1:], name))

    def act(self, item: Ins, args: Sequence[str]) -> Iterable[str]:
        match item.op:
            case "store":
                lines: list[str] = []
                at = self._named_index(self.bare(args[0]), lines)
                body = self._store(item.attr, at, args[1])
                return lines + self._if_inside(item, item.attr, at, body)
            case "barrier":
                shares = not self.talks or any(b.shared for b in self.kernel.buffers)
                return ["workgroupBarrier();"] * shares + ["storageBarrier();"] * self.talks
            case "trap":
                self.ids |= {f"gid_{axis}" for axis in _AXES}
                code = self.kernel.traps.index(item.attr)
                note = f"note_trap({code}u, {self.bare(args[0])}, gid_x, gid_y, gid_z);"
                return [f"if (!stopped) {{ {note} }}", "stopped = true;"] if self.meet else [note, "return;"]
        return ["return;"]

    def _named_index(self, text: str, lines: list[str]) -> str:
        """An index that can be written more than once. Compilers refuse large constants: WGSL's the last u32, and those
        that the text is translated for take others for negative ones."""
        if re.fullmatch(r"[\w.]+", text):
            if not text[0].isdigit() or _number(text) <= _FAR:
                return text
            text = self.unknown("u32", text)
        lines.append(self.constant("u32", name := self.fresh(), text))
        return name

    def _if_inside(self, item: Ins, buffer: Buffer, at: str, body: list[str]) -> list[str]:
        if not item.guarded:
            return body
        if self._is_known(buffer, at):
            return body if _number(at) < buffer.count else []
        test = f"if ({at} < {self.length(buffer)}) {{"
        if len(body) == 1:
            return [f"{test} {body[0]} }}"]
        return [test, *("    " + line for line in body), "}"]

    def _guarded_load(self, item: Ins, at: str) -> str:
        """Without a branch, of which compilers take only so many: an access out of bounds reads the first element,
        which every binding has, and drops it."""
        buffer: Buffer = item.attr
        if not item.guarded or self._is_known(buffer, at):
            inside = not item.guarded or _number(at) < buffer.count
            return self._load(buffer, at, at) if inside else self.zero(item.dtype)
        test = f"{at} < {self.length(buffer)}"
        return f"select({self.zero(item.dtype)}, {self._load(buffer, at, f'select(0u, {at}, {test})')}, {test})"

    def _is_known(self, buffer: Buffer, at: str) -> bool:
        """Whether the compiler would test an access by itself, and refuse it."""
        return buffer.shared and at[0].isdigit()

    def _place(self, buffer: Buffer, at: str, safe: str) -> tuple[str, str]:
        """The word of a narrow element, and by how many bits it is shifted up in it."""
        bits = NARROW[buffer.element.name]
        each = 32 // bits
        by = (
            f"{_number(at) % each * bits}u"
            if at[0].isdigit()
            else f"(({at} & {each - 1}u) << {bits.bit_length() - 1}u)"
        )
        return f"{self.buffers[buffer]}[{safe} >> {each.bit_length() - 1}u]", by

    def _load(self, buffer: Buffer, at: str, safe: str) -> str:
        element = buffer.element.name
        if element not in NARROW:
            place = f"{self.buffers[buffer]}[{safe}]"
            return f"atomicLoad(&{place})" if buffer in self.atomic else place
        place, by = self._place(buffer, at, safe)
        word = f"atomicLoad(&{place})" if buffer in self.atomic else place
        bits = NARROW[element]
        if element in ("i8", "i16"):
            return f"extractBits(bitcast<i32>({word}), {self.bare(by)}, {bits}u)"
        raw = f"extractBits({word}, {self.bare(by)}, {bits}u)"
        if element in ("u8", "u16"):
            return raw
        self.called[f"load_{element}"] = None
        return f"load_{element}({raw})"

    def _store(self, buffer: Buffer, at: str, value: str) -> list[str]:
        element = buffer.element.name
        if element not in NARROW:
            place = f"{self.buffers[buffer]}[{at}]"
            value = self.bare(value)
            return [f"atomicStore(&{place}, {value});" if buffer in self.atomic else f"{place} = {value};"]
        place, by = self._place(buffer, at, at)
        ones = f"0x{(1 << NARROW[element]) - 1:x}u"
        match element:
            case "f16" | "bf16":
                self.called[f"store_{element}"] = None
                raw = f"store_{element}({self.bare(value)})"
            case "i8" | "i16":
                raw = f"(bitcast<u32>({self.bare(value)}) & {ones})"
            case _:
                raw = value
        if buffer.own:
            return [f"{place} = ({place} & ~({ones} << {by})) | ({raw} << {by});"]
        # the neighbours in the word belong to other lanes
        return [f"atomicAnd(&{place}, ~({ones} << {by}));", f"atomicOr(&{place}, {raw} << {by});"]

    def _atomic(self, op: AtomicOp, buffer: Buffer, at: str, args: Sequence[str], name: str | None) -> list[str]:
        place = f"&{self.buffers[buffer]}[{at}]"
        to = f"{name} = " if name else ""
        if op is not AtomicOp.COMPARE_EXCHANGE:
            return [f"{to}{_ATOMICS[op]}({place}, {args[0]});"]
        new, expected = args
        swap = self.fresh()
        lines = [f"let {swap} = atomicCompareExchangeWeak({place}, {expected}, {new});"]
        if name:
            lines.append(f"{name} = {swap}.old_value;")
        if self.traits.strong_swap:
            return lines
        lines.append(f"if ({swap}.exchanged || {swap}.old_value != ({expected})) {{ break; }}")
        return ["loop {", *("    " + line for line in lines), "}"]

    # -- subgroups

    def _exchange(self, item: Ins, args: Sequence[str]) -> str:
        """A call of the function that does it, through workgroup memory; all lanes are here."""
        self.ids |= {"lane", "linear"}
        t = "u32" if item.attr == "ballot" else item.dtype
        kind = "or" if item.attr == "ballot" else "shuffle" if item.attr == "shuffle" else item.attr.text
        name = f"subgroup_{kind}_{t}"
        if name not in self.exchanges:
            self.exchanges[name] = []
            make = self._shuffle if kind == "shuffle" else self._reduce
            reduce = ReduceOp.OR if item.attr == "ballot" else item.attr
            self.exchanges[name] = list(make(name, t, reduce))
        if item.attr == "ballot":
            return f"{name}(select(0u, 1u << lane, {args[0]}), linear, lane)"
        more = f", {args[1]}" if kind == "shuffle" else ""
        return f"{name}({args[0]}, linear, lane{more})"

    def _reduce(self, name: str, t: str, op: ReduceOp) -> Iterator[str]:
        """A tree over the lanes: the butterfly gives every lane what it gives the first. The missing
        lanes are the last ones and count as the identity, so that no step with them is made."""
        lanes = self.kernel.lanes
        yield f"fn {name}(x: {TYPES[t]}, at: u32, lane: u32) -> {TYPES[t]} {{"
        yield f"    exchanged[at] = {_cast('u32', t, 'x')};"
        yield "    workgroupBarrier();"
        for d in reduction_offsets(SUBGROUP_WIDTH):
            if d < lanes:
                yield f"    if (lane < {d}u && at + {d}u < {lanes}u) {{"
                yield f"        let a = {_cast(t, 'u32', 'exchanged[at]')};"
                yield f"        let b = {_cast(t, 'u32', f'exchanged[at + {d}u]')};"
                *steps, found = self._steps(op, t)
                yield from ("        " + line for line in steps)
                yield f"        exchanged[at] = {_cast('u32', t, self.bare(found))};"
                yield "    }"
                yield "    workgroupBarrier();"
        yield "    let found = exchanged[at - lane];"
        yield "    workgroupBarrier();"
        yield f"    return {_cast(t, 'u32', 'found')};"
        yield "}"

    def _shuffle(self, name: str, t: str, op: ReduceOp) -> Iterator[str]:
        yield f"fn {name}(x: {TYPES[t]}, at: u32, lane: u32, source: u32) -> {TYPES[t]} {{"
        yield f"    exchanged[at] = {_cast('u32', t, 'x')};"
        yield "    workgroupBarrier();"
        yield "    var found = 0u;"
        yield f"    if (source < {SUBGROUP_WIDTH}u && at - lane + source < {self.kernel.lanes}u) {{"
        yield "        found = exchanged[at - lane + source];"
        yield "    }"
        yield "    workgroupBarrier();"
        yield f"    return {_cast(t, 'u32', 'found')};"
        yield "}"

    def _steps(self, op: ReduceOp, t: str) -> list[str]:
        """Lines that combine a and b, and then the operand that is the result."""
        a, b = Ins("a", t), Ins("b", t)
        names = {a: "a", b: "b"}
        lines: list[str] = []
        if t != "f32":
            return [self.operation(Ins(op.text, t, (a, b)), ("a", "b"))]

        def emit(op: str, dtype: str, *args: Ins, attr: str | None = None) -> Ins:
            found = Ins(op, dtype, args, attr)
            names[found] = f"t{len(lines)}"
            text = self.operation(found, [names[x] for x in args])
            lines.append(f"let {names[found]} = {self.bare(text)};")
            return found

        def const(dtype: str, bits: int) -> Ins:
            found = Ins("const", dtype, attr=bits)
            names[found] = self.literal(dtype, bits)
            return found

        found = FloatSteps(emit, const, self.kernel.soft_flush).binary(_FLOAT[op], t, a, b)
        return [*lines, names[found]]


_TRAP = f"""\
fn note_trap(code: u32, address: u32, x: u32, y: u32, z: u32) {{
    let turn = atomicLoad(&traps[5]);
    let bits = atomicLoad(&traps[4]);
    let number = (z * atomicLoad(&traps[3]) + y) * atomicLoad(&traps[2]) + x;
    let first = atomicMax(&traps[0], 0u);
    if (first != 0u && first != turn) {{ return; }}
    atomicMax(&traps[0], turn);
    atomicAdd(&traps[1], 1u);
    if (bits == 0u) {{ return; }}
    for (var at = 0u; at < {TOLD_BITS}u; at += bits) {{
        var piece = code;
        if (at < 32u) {{ piece = code >> at; }} else {{ piece = address >> (at - 32u); }}
        let begin = {HEAD_WORDS}u + at / bits * {MOST_TRAPS}u;
        var word = ~((number << bits) | (piece & ((1u << bits) - 1u)));
        if (atomicLoad(&traps[begin + {MOST_TRAPS - 1}u]) > word) {{ continue; }}
        for (var k = 0u; k < {MOST_TRAPS}u && word != 0u; k++) {{
            word = min(word, atomicMax(&traps[begin + k], word));
        }}
    }}
}}"""


def _word(bits: int) -> str:
    if bits in _HIDDEN:
        return f"({bits:#x}u + {_LITERAL_ZERO})"
    return f"{bits}u" if bits < 0x10000 else f"{bits:#x}u"


def _as(dtype: str, zero: str) -> str:
    """A word in parentheses in a register of this type."""
    if TYPES[dtype] == "u32":
        return zero
    return f"bitcast<i32>{zero}" if dtype == "i32" else f"vec2<u32>{zero}"


def _number(text: str) -> int:
    return int(text.removesuffix("u"), 0)


def _cast(to: str, source: str, text: str) -> str:
    return text if TYPES[to] == TYPES[source] else f"bitcast<{TYPES[to]}>({text})"


def _is_met(b: Buffer) -> bool:
    """Whether the lanes of a workgroup meet in it."""
    return b.shared and not b.own


def _words(b: Buffer) -> int:
    """Elements of the array that a shared buffer is."""
    each = 32 // NARROW.get(b.element.name, 32)
    return max(1, ceil_div(b.count, each))


def _turns(b: Buffer, lanes: int) -> int:
    each = ceil_div(_words(b), lanes)
    return ceil_div(each, _ZEROED) if each > _ZEROED else 0


def _meets(body: Body, *ops: str) -> bool:
    return any(item.op in ops for item in walk(body))

"""A kernel as C, for devices: one text for all of them, and a `Dialect` for what differs.

Registers are C variables of the same type. Cases that C leaves open (overflow of signed numbers, conversions out of
range, the sign of zero in a minimum) go through functions of `cfamily_library`. Shared memory is zeroed first.
Subgroups go through shared memory where the dialect does not say how the machine does it.

A kernel that polls, or traps, has to end early. Without barriers its invocations just return. With barriers every lane
must still come to each of them, so a lane that ends only notes that it has `stopped`, and leaves its loops. Barriers
are in no branch (see `straight`). Before each turn of a loop that holds one, the lanes agree whether one has stopped.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...driver.contract.traps import HEAD_WORDS, TOLD_BITS
from ...errors import MOST_TRAPS
from ...foundation.integers import round_up
from ...foundation.ir.dtypes import BY_NAME
from ...foundation.ir.ops import AtomicOp, ReduceOp
from ...foundation.meaning.arith import reduce_identity
from ...foundation.meaning.subgroup import SUBGROUP_WIDTH, reduction_offsets
from ..canonical_float import FloatSteps
from ..flatten_barriers import MEETS, Straight
from ..instructions import unprinted
from ..kernel_ir import FLOATS, GRID, SIGNED, Body, Buffer, If, Ins, Kernel, Loop, walk
from ..registers import bits_of, value_of
from .library import FUNCTIONS, REDUCE_STEPS, STORAGE, TYPES, WORDS, literal
from .printer import Printer

ENTRY = "vyre_kernel"
_AXES = "xyz"
_SIMPLE = re.compile(r"\w+")
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^", "shl": "<<",
          "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # fmt: skip
_LOGIC = {"and": "&&", "or": "||", "xor": "!="}
_WRAPS = frozenset(("add", "sub", "mul", "shl"))
"""Signed operators that overflow."""
_FLOAT_STEPS = frozenset(("add", "sub", "mul", "div", "sqrt", "fma"))
_CALLS = {"abs": "fabs", "mulhi": "mul_hi", "copysign": "copysign", "min": "min", "max": "max", "popcount": "popcount",
          "clz": "clz"}  # fmt: skip
_LIBRARY = frozenset(("flush", "quiet", "floor", "ceil", "trunc"))
_NARROW = {"u8": "(uint)(uchar)", "u16": "(uint)(ushort)", "i8": "(int)(char)", "i16": "(int)(short)"}
POLL_TURNS = 1024
"""Turns of loops between two looks at the stop flag; a power of two."""


class Dialect(ABC):
    """What one language, or one mode of it, says in its own way."""

    function = "static"
    """Before the type of a function."""
    shared = "__local "
    barrier = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"
    grid_barrier = ""
    """Of the whole grid, where the language has one or it can be written."""
    careful = False
    """Whether lanes that have met at a barrier must end at one place, and must not be seen to make the same turns of a
    loop that they may not come to: PoCL puts barriers into such loops, and then mixes lanes up."""
    hides_numbers = False
    """Whether f32 numbers that come from constants or integers must not be known to the compiler, because it computes
    with tiny ones by rules of its own, or takes the flush away with a step that it finds to do nothing."""
    hides_zeros = False
    """Whether zeros must not be known to the compiler. NVIDIA's takes `x < 0.0 ? x : 0.0` for a minimum, which is -0
    where x is."""
    subgroups: Subgroups | None = None
    """Where there is none, lanes exchange values through shared memory."""

    @abstractmethod
    def opening(self, kernel: Kernel) -> list[str]:
        """Lines at the top of the file."""

    @abstractmethod
    def head(self, kernel: Kernel) -> list[str]:
        """Lines before the parameters of the entry point, the last ending in its name."""

    @abstractmethod
    def pointer(self, element: str, name: str, writable: bool) -> str:
        """A parameter: elements of this C type in global memory."""

    def shared_array(self, buffer: Buffer, element: str, name: str) -> str:
        """A declaration: the elements of a shared buffer, of this C type."""
        return f"{self.shared}{element} {name}[{buffer.count}]"

    @abstractmethod
    def group_id(self, axis: int) -> str: ...

    @abstractmethod
    def local_id(self, axis: int) -> str: ...

    @abstractmethod
    def atomic(self, op: AtomicOp, place: str, args: Sequence[str]) -> str:
        """A call that changes a place and gives its old value. The arguments are a value and, to compare and exchange,
        the expected one."""

    @abstractmethod
    def step(self, op: str, dtype: str, args: Sequence[str]) -> str:
        """A float operator with one rounding: add sub mul div sqrt, and fma of f32."""

    @abstractmethod
    def stop_parameters(self) -> list[tuple[str, str]]:
        """What a kernel that polls gets, and what it is."""

    def grid_parameters(self) -> list[tuple[str, str]]:
        """What a kernel with a barrier of the whole grid gets, and what it is."""
        return []

    @abstractmethod
    def stop_test(self) -> str:
        """A condition: the kernel is to end."""

    def functions(self) -> dict[str, str]:
        """Functions that `step` and `stop_test` call, by name, and better ones for the machine than the library's; and
        `native_exp` and the like, where the backend asks the lowering for `native` operations."""
        return {}


class Subgroups(ABC):
    """How lanes exchange values without memory: texts of functions, which also take the lane's number `lid`."""

    @abstractmethod
    def ballot(self, name: str) -> str:
        """(bool, lid) -> uint."""

    @abstractmethod
    def shuffle(self, name: str, t: str) -> str:
        """(t, lane, lid) -> t."""

    @abstractmethod
    def reduction(self, name: str, t: str, join: str, identity: str) -> str:
        """(t, lid) -> t; the function `join` puts two together."""


def emit(kernel: Kernel, dialect: Dialect) -> str:
    """The whole file."""
    return Emitter(kernel, dialect).text()


class Emitter(Printer):
    def __init__(self, kernel: Kernel, dialect: Dialect) -> None:
        straight = Straight(kernel)
        super().__init__(replace(kernel, body=straight.body))
        self.origin = straight.origin
        self.meeting = straight.meeting
        """Loops that all lanes of a workgroup run together, because they hold a barrier."""
        self.dialect = dialect
        self.called: dict[str, str] = {}
        """Functions in the order of their texts, which is that of their first use."""
        self.meets = any(i.op in MEETS for i in walk(kernel.body))
        self.slots = dialect.subgroups is None and any(i.op == "subgroup" for i in walk(kernel.body))
        """Whether lanes of a subgroup exchange values through memory."""
        self.ends_early = kernel.poll or bool(kernel.traps)
        barriers = self.meets or any(b.shared and not b.own for b in kernel.buffers)
        self.careful = dialect.careful and barriers
        self.leave = "goto done;" if self.careful else "return;"
        self.sure = _sure_loops(self.kernel) if self.careful else frozenset()
        """Loops that every lane comes to."""
        self.hides_numbers = dialect.hides_numbers and not kernel.soft_flush
        self.known = FUNCTIONS | dialect.functions()

    # -- the file

    def text(self) -> str:
        kernel, dialect = self.kernel, self.dialect
        shared, start = self.shared_lines(), self.start_lines()
        body = self.print()
        if self.leave == "goto done;" and any(self.leave in line for line in (*start, *body)):
            body += ["done:", f"    {dialect.barrier}"]
        lines = [*dialect.opening(kernel), ""]
        for text in self.called.values():
            lines += [f"{dialect.function} {text}", ""]
        lines += [*dialect.head(kernel)[:-1], dialect.head(kernel)[-1] + "("]
        parameters = self.parameters()
        width = max(len(p) for p, _ in parameters) + 1
        for k, (parameter, comment) in enumerate(parameters):
            lines.append(f"    {parameter + ',' * (k < len(parameters) - 1):{width}} // {comment}")
        lines += [")", "{", *shared, *self.id_lines([*start, *body]), *start, *body, "}", ""]
        return "\n".join(lines)

    def parameters(self) -> list[tuple[str, str]]:
        """Each with a comment."""
        bound = [b for b in self.kernel.buffers if not b.shared]
        found = []
        for b in bound:
            what = "read and written" if b.writable else "read"
            name = ascii(b.name)[1:-1]
            found.append((
                self.dialect.pointer(STORAGE[b.element.name], self.buffers[b], b.writable),
                f"slot {b.slot}: {name}, {b.element.name}, {what}",
            ))  # fmt: skip
        found += [(f"const uint {self.length(b)}", f"elements of {ascii(b.name)[1:-1]}") for b in bound]
        found += [(f"const uint base_{a}", f"first workgroup along {a}") for a in _AXES]
        if self.kernel.traps:
            found.append((self.dialect.pointer("uint", "trap", True), "which invocations trapped"))
        found += self.dialect.stop_parameters() if self.kernel.poll else []
        return found + (self.dialect.grid_parameters() if self.kernel.whole else [])

    def shared_lines(self) -> list[str]:
        found = []
        for b in self.kernel.buffers:
            if b.own:
                found.append(f"    {STORAGE[b.element.name]} {self.buffers[b]}[{b.count}] = {{0}}; // of each lane")
            elif b.shared:
                array = self.dialect.shared_array(b, STORAGE[b.element.name], self.buffers[b])
                found.append(f"    {array}; // {b.element.name}")
        if self.slots:
            slots = round_up(self.kernel.lanes, SUBGROUP_WIDTH)
            found.append(f"    {self.dialect.shared}uint slots[{slots}]; // what lanes of a subgroup exchange")
        if self.meets and self.ends_early:
            found.append(f"    {self.dialect.shared}uint ending; // whether a lane has stopped")
        return found

    def start_lines(self) -> list[str]:
        """Shared memory is zero at first; a kernel that was stopped does not begin."""
        found = []
        lanes = self.kernel.lanes
        for b in self.kernel.buffers:
            if b.shared and not b.own:
                clear = f"{self.buffers[b]}[k] = 0;"
                found.append(f"for (uint k = lid; k < {b.count}u; k += {lanes}u) {{ {clear} }}")
        meeting = self.meets and self.ends_early
        if meeting:
            found.append("ending = 0u;")
        if found:
            found.append(self.dialect.barrier)
        test = self.stop_test() if self.kernel.poll else "false"
        if meeting:
            found.append(f"bool stopped = {test};")
        elif self.kernel.poll:
            found.append(f"if ({test}) {{ {self.leave} }}")
        if self.kernel.poll and any(isinstance(item, Loop) for item in walk(self.kernel.body)):
            found.append("uint turns = 0u; // of all loops")
        return [f"    {line}" for line in found]

    def id_lines(self, body: Sequence[str]) -> list[str]:
        """The ids that the lines use, and those that these are made of."""
        words = set(_SIMPLE.findall("\n".join(body)))
        sizes = self.kernel.workgroup
        found = []
        if words & {"lid", "lane", "none"} and self.kernel.lanes > 1:
            words |= {f"lid_{_AXES[k]}" for k in range(3) if sizes[k] > 1}
        for k, a in enumerate(_AXES):
            if f"gid_{a}" in words:
                words |= {f"wid_{a}", f"lid_{a}"}
            if f"wid_{a}" in words:
                found.append(f"const uint wid_{a} = (uint){self.dialect.group_id(k)} + base_{a};")
            if f"lid_{a}" in words:
                found.append(f"const uint lid_{a} = (uint){self.dialect.local_id(k)};")
            if f"gid_{a}" in words:
                found.append(f"const uint gid_{a} = wid_{a} * {sizes[k]}u + lid_{a};")
        if words & {"lid", "lane", "none"}:
            x, y, z = sizes
            parts = [t for t, n in (("lid_x", x), (f"lid_y * {x}u", y), (f"lid_z * {x * y}u", z)) if n > 1]
            found.append(f"const uint lid = {' + '.join(parts) or '0u'};")
        if "one" in words:
            unknown = "0x3f800000u + ((base_y & base_z) >> 31)"
            found.append(f"const float one = as_float({unknown}); // 1, which the compiler does not know")
        if "zero" in words:
            unknown = "(base_y & base_z) >> 31"
            found.append(f"const float zero = as_float({unknown}); // which the compiler does not know")
        if "none" in words:
            found.append("const uint none = lid >> 31; // 0, which the compiler does not know")
        if "lane" in words:
            found.append(f"const uint lane = lid % {SUBGROUP_WIDTH}u;")
        return [f"    {line}" for line in found]

    def call(self, name: str, *args: str) -> str:
        """A call of a function whose text is then part of the file."""
        if name not in self.called:
            text = self.known[name]
            for other in sorted(set(_SIMPLE.findall(text)) & self.known.keys() - {name}):
                self.call(other)
            self.called[name] = text
        return f"{name}({', '.join(self.bare(a) for a in args)})"

    def stop_test(self) -> str:
        return self.needing(self.dialect.stop_test())

    def needing(self, text: str) -> str:
        """The text, whose functions are now part of the file."""
        for name in _SIMPLE.findall(text):
            if name in self.known and name not in self.called:
                self.call(name)
        return text

    # -- values

    def constant(self, dtype: str, name: str, text: str) -> str:
        return f"const {TYPES[dtype]} {name} = {text};"

    def variable(self, dtype: str, name: str) -> str:
        return f"{TYPES[dtype]} {name} = {literal(dtype, 0)};"

    def truth(self, dtype: str, text: str) -> str:
        return text if dtype == "bool" else f"({text} != 0)"

    def number(self, text: str) -> str:
        """An f32 that was made of a constant or of integers, as one that comes out of arithmetic, which flushes it."""
        return f"({text} * one)" if self.hides_numbers else text

    def zero(self, dtype: str, shown: str = "") -> str:
        """A zero of this type, `shown` where the compiler may know it."""
        if not self.dialect.hides_zeros:
            return shown or literal(dtype, 0)
        return "zero" if dtype == "f32" else "(double)zero"

    def value(self, item: Ins, args: Sequence[str]) -> str:
        op, t = item.op, item.dtype
        if op == "const":
            text = literal(t, item.attr)
            if t not in FLOATS or value_of(t, item.attr) != 0:
                return self.number(text) if t == "f32" else text
            return f"(-{self.zero(t)})" if item.attr and self.dialect.hides_zeros else self.zero(t, text)
        if op in ("gid", "wid", "lid"):
            return f"{op}_{_AXES[item.attr]}"
        if op == "lane":
            return "lane"
        if op == "len":
            return self.length(item.attr)
        return self.operation(op, t, item.args[0].dtype, args, item.attr)

    def operation(self, op: str, t: str, source: str, args: Sequence[str], attr: object = None) -> str:
        """An operator that gives type t, its first operand being of type `source`."""
        if t in FLOATS and op in _FLOAT_STEPS:
            return self.needing(self.dialect.step(op, t, args))
        if source == "bool" and op in _LOGIC:
            return f"({args[0]} {_LOGIC[op]} {args[1]})"
        if op in _WRAPS and t in SIGNED:
            return self.call(f"{op}_{t}", *args)
        if op in _INFIX:
            return f"({args[0]} {_INFIX[op]} {args[1]})"
        if op == "flush" and self.hides_numbers:
            return self.number(args[0])
        if op in _LIBRARY:
            return self.call(f"{op}_{t}", *args)
        match op:
            case "not":
                return f"{'!' if t == 'bool' else '~'}{args[0]}"
            case "neg":
                return f"(-{args[0]})"
            case "select":
                return f"({args[0]} ? {args[1]} : {args[2]})"
            case "min" | "max" if t in FLOATS:
                return self.call(f"{op}_{t}", *args)
            case "ctz" | "bitrev" if t in SIGNED:
                word = WORDS[t]
                return f"({TYPES[t]}){self.call(f'{op}_{word}', f'({TYPES[word]}){args[0]}')}"
            case "ctz" | "bitrev":
                return self.call(f"{op}_{t}", *args)
            case "convert" if source in FLOATS and t not in FLOATS:
                return self.call(f"{t}_of_{source}", *args)
            case "convert":
                found = f"({TYPES[t]}){args[0]}"
                if source == "bool" and t in FLOATS:  # NVIDIA's OpenCL compiler loses the bits of a bool made a float
                    found = f"({args[0]} ? {literal(t, bits_of(t, 1.0))} : {self.zero(t)})"
                return self.number(found) if t == "f32" else found
            case "bitcast":
                return f"as_{TYPES[t]}({self.bare(args[0])})"
            case "round_f16" | "round_bf16":
                return self.call(op, *args)
            case "narrow":
                return f"{_NARROW[str(attr)]}{args[0]}"
            case "native":
                return self.call(f"native_{attr}", *args)
        if op not in _CALLS:
            raise unprinted(op, "C")
        return f"{_CALLS[op]}({', '.join(self.bare(a) for a in args)})"

    # -- memory

    def inside(self, item: Ins, buffer: Buffer, index: str) -> tuple[list[str], str, str]:
        """A line that names the index, if that is worth a name; the index; whether it is in bounds, or nothing."""
        lines = []
        if not _SIMPLE.fullmatch(index):
            name = self.fresh("at")
            lines, index = [self.constant("u32", name, self.bare(index))], name
        if not item.guarded:
            return lines, index, ""
        return lines, index, f"{index} < {f'{buffer.count}u' if buffer.shared else self.length(buffer)}"

    def define(self, item: Ins, args: Sequence[str], name: str | None) -> Iterable[str]:
        if item.op == "subgroup":
            return self.subgroup(item, args, name)
        buffer = item.attr if item.op == "load" else item.attr[1]
        lines, index, test = self.inside(item, buffer, args[0])
        place = f"{self.buffers[buffer]}[{index}]"
        if item.op == "load":
            found = self.loaded(buffer, place)
        else:
            found = self.dialect.atomic(item.attr[0], place, args[1:])
        if name is None:
            return [*lines, f"if ({test}) {{ {found}; }}" if test else f"{found};"]
        text = f"{test} ? {found} : {literal(item.dtype, 0)}" if test else found
        return [*lines, self.naming(item.dtype, name, text)]

    def act(self, item: Ins, args: Sequence[str]) -> Iterable[str]:
        match item.op:
            case "store":
                return self.store(item, args)
            case "barrier" if item.attr == GRID:
                return [self.needing(self.dialect.grid_barrier)]
            case "barrier":
                return [self.dialect.barrier]
            case "return":
                return [self.leave]
        return self.trap(item, args[0])

    def loaded(self, buffer: Buffer, place: str) -> str:
        """What an element in memory is in a register."""
        element = buffer.element.name
        found = self.call(f"load_{element}", place) if element in ("f16", "bf16") else place
        return self.number(found) if element == "f16" else found

    def stored(self, buffer: Buffer, value: str) -> str:
        """What a value in a register is in memory."""
        element = buffer.element
        if element.name in ("f16", "bf16"):
            return self.call(f"store_{element.name}", value)
        return f"({STORAGE[element.name]}){value}" if element.is_narrow else self.bare(value)

    def store(self, item: Ins, args: Sequence[str]) -> list[str]:
        buffer: Buffer = item.attr
        lines, index, test = self.inside(item, buffer, args[0])
        line = f"{self.buffers[buffer]}[{index}] = {self.stored(buffer, args[1])};"
        return [*lines, f"if ({test}) {{ {line} }}" if test else line]

    # -- subgroups

    def subgroup(self, item: Ins, args: Sequence[str], name: str | None) -> list[str]:
        """Each lane stores a word, and reads the words it needs once all are there."""
        if self.dialect.subgroups is not None:
            return self.exchange(self.dialect.subgroups, item, args, name)
        t, lanes = item.args[0].dtype, self.kernel.lanes
        attr = item.attr
        if attr == "ballot":
            attr, t, args = ReduceOp.OR, "u32", [f"(uint)({args[0]}) << lane"]
        lines = [f"slots[lid] = {args[0] if t == 'u32' else f'as_uint({args[0]})'};"]
        missing = bits_of(t, reduce_identity(attr, BY_NAME[t])) if isinstance(attr, ReduceOp) else 0
        padded = round_up(lanes, SUBGROUP_WIDTH)
        if padded > lanes:
            fill = f"slots[k] = {literal('u32', missing)};"
            lines.append(f"for (uint k = {lanes}u + lid; k < {padded}u; k += {lanes}u) {{ {fill} }}")
        lines.append(self.dialect.barrier)
        first = "lid - lane"
        if isinstance(attr, ReduceOp):
            found = self.call(self.add_reduction(attr, t), f"slots + ({first})")
        else:
            at = self.fresh("at")
            lines.append(self.constant("u32", at, args[1]))
            word = f"slots[{first} + {at}]"
            word = word if t == "u32" else f"as_{TYPES[t]}({word})"
            found = f"{at} < {SUBGROUP_WIDTH}u ? {word} : {literal(t, 0)}"
        if name is not None:
            lines.append(self.naming(item.dtype, name, found))
        return [*lines, self.dialect.barrier]

    def exchange(self, how: Subgroups, item: Ins, args: Sequence[str], name: str | None) -> list[str]:
        """A subgroup operation that the machine has."""
        t, attr = item.args[0].dtype, item.attr
        if isinstance(attr, ReduceOp):
            function, join = f"reduce_{attr.text}_{t}", f"join_{attr.text}_{t}"
            if function not in self.known:
                self.known[join] = self.join_text(join, attr, t)
                identity = literal(t, bits_of(t, reduce_identity(attr, BY_NAME[t])))
                self.known[function] = how.reduction(function, t, join, identity)
        elif attr == "ballot":
            function = "ballot"
            self.known[function] = how.ballot(function)
        else:
            function = f"shuffle_{t}"
            self.known[function] = how.shuffle(function, t)
        found = self.call(function, *args, "lid")
        return [self.naming(item.dtype, name, found) if name is not None else f"{found};"]

    def add_reduction(self, op: ReduceOp, t: str) -> str:
        """The functions of a reduction: far lanes first, as the butterfly does. Without a loop, for PoCL's sake."""
        c, name, half = TYPES[t], f"reduce_{op.text}_{t}", SUBGROUP_WIDTH // 2
        join = f"join_{op.text}_{t}"
        if name not in self.known:
            self.known[join] = self.join_text(join, op, t)
            slot = "slots[{}]" if t == "u32" else f"as_{c}(slots[{{}}])"
            first = (f"{c} v{k} = {join}({slot.format(k)}, {slot.format(k + half)});" for k in range(half))
            rest = (f"v{k} = {join}(v{k}, v{k + d});" for d in reduction_offsets(half) for k in range(d))
            lines = [f"    {line}" for line in (*first, *rest)]
            head = f"{c} {name}(const {self.dialect.shared}uint *slots)"
            self.known[name] = "\n".join([head, "{", *lines, "    return v0;", "}"])
        return name

    def join_text(self, name: str, op: ReduceOp, t: str) -> str:
        c = TYPES[t]
        texts: dict[Ins, str] = {}
        lines: list[str] = []

        def step(op: str, dtype: str, *args: Ins, attr: object = None) -> Ins:
            made = Ins(op, dtype, args, attr)
            if op == "const":
                texts[made] = literal(dtype, int(str(attr)))
                return made
            text = self.operation(op, dtype, args[0].dtype, [texts[a] for a in args], attr)
            texts[made] = f"t{len(lines)}"
            lines.append(f"const {TYPES[dtype]} {texts[made]} = {self.bare(text)};")
            return made

        a, b = Ins("get", t), Ins("get", t)
        texts[a], texts[b] = "a", "b"
        if t == "f32":
            steps = FloatSteps(step, lambda dtype, bits: step("const", dtype, attr=bits), self.kernel.soft_flush)
            steps.binary(REDUCE_STEPS[op], t, a, b)
        else:
            step(op.text, t, a, b)
        lines[-1] = f"return {lines[-1].partition(' = ')[2]}"
        return "\n".join([f"{c} {name}({c} a, {c} b)", "{", *(f"    {line}" for line in lines), "}"])

    # -- control flow

    def loop_head(self, loop: Loop, name: str, start: str, stop: str) -> str:
        careful = self.careful and loop not in self.sure and loop not in self.meeting
        if loop.endless:
            tests = ["none == 0u"] * careful
        else:
            tests = [f"{name} < {stop} + none" if careful else f"{name} < {stop}"]
        if loop.live is not None:
            tests.append(self.truth(loop.live.dtype, self.locals[loop.live]))
        if self.meets and self.ends_early:
            tests.append("!stopped")
        test = " && ".join(tests)
        return f"while ({test}) {{" if loop.endless else f"for (uint {name} = {start}; {test}; ++{name}) {{"

    def before(self, item: If | Loop) -> Iterable[str]:
        return self.agree() if item in self.meeting and self.ends_early else ()

    def turn(self, loop: Loop) -> Iterable[str]:
        if self.kernel.poll:
            action = "stopped = true;" if self.meets else self.leave
            yield f"if ((++turns & {POLL_TURNS - 1}u) == 0u && {self.stop_test()}) {{ {action} }}"

    def end(self, item: If | Loop, body: Body) -> Iterable[str]:
        return self.before(item)

    def agree(self) -> list[str]:
        """Lines after which all lanes have stopped if one has."""
        barrier = self.dialect.barrier
        return ["if (stopped) { ending = 1u; }", barrier, "stopped = ending != 0u;", barrier]

    def trap(self, item: Ins, address: str) -> list[str]:
        code = self.kernel.traps.index(item.attr)
        self.called.setdefault("note_trap", _note_trap(self.dialect))
        tag = ascii(item.attr)  # in quotes, because a line that ends in a backslash goes on
        note = f"note_trap(trap, {code}u, {self.bare(address)}, gid_x, gid_y, gid_z); // {tag}"
        return [f"if (!stopped) {note}", "stopped = true;"] if self.meets else [note, self.leave]


def _note_trap(dialect: Dialect) -> str:
    """A function through which an invocation that traps says so: see `driver/contract/traps.py`."""
    atomic = dialect.atomic
    return f"""\
void note_trap({dialect.pointer("uint", "trap", True)}, uint code, uint address, uint x, uint y, uint z)
{{
    const uint turn = trap[5], bits = trap[4], number = (z * trap[3] + y) * trap[2] + x;
    const uint first = {atomic(AtomicOp.COMPARE_EXCHANGE, "trap[0]", ["turn", "0u"])};
    if (first != 0u && first != turn) return; // an earlier turn has trapped
    {atomic(AtomicOp.ADD, "trap[1]", ["1u"])};
    for (uint at = 0u; bits != 0u && at < {TOLD_BITS}u; at += bits) {{
        const uint piece = (at < 32u ? code >> at : address >> (at - 32u)) & ((1u << bits) - 1u);
        const uint begin = {HEAD_WORDS}u + at / bits * {MOST_TRAPS}u, end = begin + {MOST_TRAPS}u;
        uint word = ~(number << bits | piece);
        if ({atomic(AtomicOp.MAX, "trap[end - 1u]", ["0u"])} > word) continue; // the list is full of lower numbers
        for (uint k = begin; k < end && word != 0u; k++) {{
            const uint old = {atomic(AtomicOp.MAX, "trap[k]", ["word"])};
            word = old < word ? old : word;
        }}
    }}
}}"""


def _sure_loops(kernel: Kernel) -> frozenset[Loop]:
    """Loops that are in no branch and before which no lane ends."""
    found: set[Loop] = set()
    unvisited = list(reversed(kernel.body))
    while unvisited and not kernel.poll:
        item = unvisited.pop()
        if any(i.op in ("return", "trap") for i in walk([item])):
            break
        if isinstance(item, Loop):
            found.add(item)
            unvisited.extend(reversed(item.body))
    return frozenset(found)

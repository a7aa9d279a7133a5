"""What a kernel has to compute: its tree, evaluated one invocation after the other.

A statement of the outermost block that lanes take together (a barrier, a subgroup operation, a loop around them) is
evaluated for a whole workgroup. That is one of the legal schedules, and since random kernels are deterministic by
construction, it is as good as any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from .numbers import COMPARE, OPERATORS, Function, bitcast, cast, number
from .small import OPS, loaded, meaning, stored, value_of, zero_of
from .tree import FIELDS, Array, E, Helper, S, Tree, element_bytes

Value = Callable[["Lane"], Any]
Action = Callable[["Lane"], "str | None"]
ATOMICS: dict[str, Callable[..., Any]] = {
    "atomic_add": lambda t: OPERATORS[t]["+"], "atomic_sub": lambda t: OPERATORS[t]["-"], "atomic_min": lambda t: min,
    "atomic_max": lambda t: max, "atomic_and": lambda t: OPERATORS[t]["&"], "atomic_or": lambda t: OPERATORS[t]["|"],
    "atomic_xor": lambda t: OPERATORS[t]["^"], "atomic_exchange": lambda t: lambda old, new: new,
}  # fmt: skip
SUBGROUP = 32
ZERO = {"bool": False, "f16": 0.0, "bf16": 0.0, "f32": 0.0, "f64": 0.0}
GROUPED = ("barrier", "shared", "subgroup", "together")
"""Statements of a workgroup as a whole."""


class Memory(list[Any]):
    """The elements of a buffer as values, and which of them were stored: the others keep their bits."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__(values)
        self.stored: set[int] = set()

    def read(self, at: int, zero: Any) -> Any:
        return self[at] if 0 <= at < len(self) else zero

    def store(self, at: int, value: Any) -> None:
        if 0 <= at < len(self):
            self[at] = value
            self.stored.add(at)


@dataclass
class Lane:
    """One invocation: its ids, its locals, and the memory that it sees by name."""

    ids: dict[str, tuple[int, int, int]]
    memory: dict[str, Memory]
    locals: dict[str, Any] = field(default_factory=dict)
    returned: bool = False
    own: dict[str, Memory] = field(default_factory=dict)

    def of(self, name: str) -> Memory:
        """The memory of this name: the lane's own, or what others see too."""
        return self.own[name] if name in self.own else self.memory[name]


class Model:
    """Evaluates one kernel."""

    def __init__(self, tree: Tree, backwards: bool = False) -> None:
        self.tree, self.backwards = tree, backwards
        self.helpers: dict[str, tuple[Helper, Action]] = {}
        for helper in tree.helpers:  # a later one may call those before it
            self.helpers[helper.name] = helper, self.block(helper.body)

    def run(self) -> list[bytes]:
        """The bytes of every result."""
        tree = self.tree
        memory = {a.name: self._loaded(a) for a in tree.arrays}
        scalars = {name: value_of(value, t) for name, t, value in tree.scalars}
        shape = (*tree.workgroup, 1, 1)[:3]
        groups: list[list[Lane]] = []
        for wz, wy, wx in product(*(range(n) for n in reversed(tree.grid))):
            seen = dict(memory)
            groups.append([])
            for z, y, x in product(*(range(n) for n in reversed(shape))):
                gid = (wx * shape[0] + x, wy * shape[1] + y, wz * shape[2] + z)
                groups[-1].append(Lane({"gid": gid, "lid": (x, y, z), "wg": (wx, wy, wz)}, seen, dict(scalars)))
        for part in _parts(tree.body):
            for lanes in reversed(groups) if self.backwards else groups:
                self.group(part, lanes)
        return [self._bytes(a, memory[a.name]) for a in tree.results]

    def _loaded(self, a: Array) -> Memory:
        size = element_bytes(a.t)
        data = a.data or bytes(size * a.size)
        return Memory(loaded(data[k : k + size], a.t) for k in range(0, len(data), size))

    def _bytes(self, a: Array, memory: Memory) -> bytes:
        size = element_bytes(a.t)
        data = bytearray(a.data or bytes(size * a.size))
        if a.t == "bool":  # an array of bools is words of 0 and 1 before anything runs
            data = bytearray(b"".join(int(v).to_bytes(size, "little") for v in memory))
        for at in memory.stored:
            data[at * size : at * size + size] = stored(memory[at], a.t)
        return bytes(data)

    # -- workgroups

    def group(self, body: tuple[S, ...], lanes: list[Lane]) -> None:
        for s in body:
            if s.op not in GROUPED:
                action = self.action(s)
                for lane in reversed(lanes) if self.backwards else lanes:
                    if not lane.returned and action(lane) == "return":
                        lane.returned = True
                continue
            assert s.op == "barrier" or not any(lane.returned for lane in lanes)
            match s.op:
                case "shared":
                    name, t, count = s.data
                    lanes[0].memory[name] = Memory([zero_of(t)] * count)
                case "subgroup":
                    self._subgroup(s, lanes)
                case "together":
                    for k in range(*(arg.data[1] for arg in s.args)):
                        for lane in lanes:
                            lane.locals[s.data] = k
                        self.group(s.bodies[0], lanes)

    def _subgroup(self, s: S, lanes: list[Lane]) -> None:
        name, function = s.data
        values = [[self.value(arg)(lane) for lane in lanes] for arg in s.args]
        for start in range(0, len(lanes), SUBGROUP):
            members = lanes[start : start + SUBGROUP]
            own = [column[start : start + SUBGROUP] for column in values]
            for k, (lane, found) in enumerate(zip(members, self._exchanged(function, s, own, members), strict=True)):
                lane.locals[name] = k if function == "subgroup_local_id" else found

    def _exchanged(self, function: str, s: S, own: list[list[Any]], members: list[Lane]) -> list[Any]:
        if function == "subgroup_size":
            return [SUBGROUP] * len(members)
        if function == "subgroup_local_id":
            return [0] * len(members)
        if function == "subgroup_shuffle":
            values, lanes = own
            zero = ZERO.get(s.args[0].t, 0)
            return [values[k] if k < len(values) else zero for k in lanes]
        if function == "subgroup_ballot":
            return [sum(bool(c) << k for k, c in enumerate(own[0]))] * len(members)
        word = function.removeprefix("subgroup_")
        sign = {"add": "+", "mul": "*", "and": "&", "or": "|", "xor": "^"}.get(word, word)
        step = OPERATORS[s.args[0].t][sign]
        v: list[Any] = own[0] + [None] * (SUBGROUP - len(members))  # a missing lane does not change the result
        for distance in (16, 8, 4, 2, 1):
            pairs = [(v[k], v[k ^ distance]) for k in range(SUBGROUP)]
            v = [b if a is None else a if b is None else step(a, b) for a, b in pairs]
        return v[: len(members)]

    # -- statements

    def block(self, body: Sequence[S]) -> Action:
        actions = [self.action(s) for s in body]

        def run(lane: Lane) -> str | None:
            for action in actions:
                if way := action(lane):
                    return way
            return None

        return run

    def action(self, s: S) -> Action:
        """What a statement does to a lane; the result says how it leaves its block, if it does."""
        args = [self.value(e) for e in s.args]
        match s.op:
            case "local":
                return self._own(*s.data)
            case "unpack":
                return self._unpack(s.data, args[0])
            case "extents":
                shape = self.tree.array(s.data[1]).shape
                return self._unpack(s.data[0], lambda lane: shape)
            case "assert":
                return self._assert(args[0])
            case "let" | "assign":
                return self._assign((s.data,), args)
            case "augment":
                name, sign = s.data
                step = self._step(sign, s.args[0].t)
                return self._assign((name,), [lambda lane: step(lane.locals[name], args[0](lane))])
            case "swap":
                return self._assign(s.data, args)
            case "chain":
                return self._assign(s.data, args * len(s.data))
            case "stores":
                return self._stores(s.data, args)
            case "store":
                return self._store(s.data, args)
            case "store_augment":
                return self._store_augment(s, args)
            case "atomic":
                return self._atomic(s, args)
            case "if":
                return self._if(args, [self.block(b) for b in s.bodies])
            case "each":
                names, _, rows = s.data
                return self._each(names, rows, self.block(s.bodies[0]))
            case "for":
                return self._for(s, args, self.block(s.bodies[0]))
            case "while":
                return self._while(args[0], self.block(s.bodies[0]))
            case "return":
                return self._return(args)
        assert s.op in ("break", "continue")
        return lambda lane: s.op

    def _assign(self, names: Sequence[str], values: list[Value]) -> Action:
        def run(lane: Lane) -> None:
            found = [value(lane) for value in values]
            lane.locals.update(zip(names, found, strict=True))

        return run

    def _own(self, name: str, t: str, count: int) -> Action:
        def run(lane: Lane) -> None:
            lane.own[name] = Memory([zero_of(t)] * count)

        return run

    def _unpack(self, names: Sequence[str], value: Value) -> Action:
        def run(lane: Lane) -> None:
            lane.locals.update(zip(names, value(lane), strict=True))

        return run

    def _store(self, buffer: str, args: list[Value]) -> Action:
        index, value = args

        def run(lane: Lane) -> None:
            found = value(lane)
            lane.of(buffer).store(index(lane), found)

        return run

    def _stores(self, buffers: Sequence[str], args: list[Value]) -> Action:
        places, values = args[: len(buffers)], args[len(buffers) :]

        def run(lane: Lane) -> None:
            found = [value(lane) for value in values]
            for buffer, index, value in zip(buffers, places, found, strict=True):
                lane.of(buffer).store(index(lane), value)

        return run

    def _store_augment(self, s: S, args: list[Value]) -> Action:
        (buffer, sign), (index, value) = s.data, args
        step, zero = self._step(sign, s.args[1].t), zero_of(s.args[1].t)

        def run(lane: Lane) -> None:
            at, memory = index(lane), lane.of(buffer)
            memory.store(at, step(memory.read(at, zero), value(lane)))

        return run

    @staticmethod
    def _step(sign: str, t: str) -> Function:
        """What a sign does to two values of a type."""
        if t in FIELDS:
            return meaning(E("small", t, (E("var", t), E("var", t)), sign))
        return OPERATORS[t][sign]

    @staticmethod
    def _assert(condition: Value) -> Action:
        def run(lane: Lane) -> None:
            assert condition(lane)

        return run

    def _atomic(self, s: S, args: list[Value]) -> Action:
        name, function, buffer = s.data
        t = s.args[1].t

        def run(lane: Lane) -> None:
            memory = lane.memory[buffer]
            at, *values = [arg(lane) for arg in args]
            old = memory.read(at, 0)
            if function == "atomic_cas":
                memory.store(at, values[1] if old == values[0] else old)
            else:
                memory.store(at, ATOMICS[function](t)(old, values[0]))
            if name:
                lane.locals[name] = old

        return run

    def _if(self, conditions: list[Value], blocks: list[Action]) -> Action:
        def run(lane: Lane) -> str | None:
            for condition, block in zip(conditions, blocks, strict=False):
                if condition(lane):
                    return block(lane)
            return blocks[-1](lane) if len(blocks) > len(conditions) else None

        return run

    def _for(self, s: S, args: list[Value], body: Action) -> Action:
        (name, kind), first = s.data, s.args[0]
        if kind == "down from count":  # range(n - 1, -1, -1): the count is what is known, and n - 1 does not wrap
            count = self.value(first.args[0])
            return self._over(name, lambda lane: range(count(lane) - 1, -1, -1), body)
        return self._over(name, lambda lane: range(*(arg(lane) for arg in args)), body)

    def _over(self, name: str, turns: Callable[[Lane], range], body: Action) -> Action:
        return self._turns((name,), lambda lane: ((k,) for k in turns(lane)), body)

    def _each(self, names: Sequence[str], rows: Sequence[tuple[Any, ...]], body: Action) -> Action:
        return self._turns(names, lambda lane: rows, body)

    def _turns(self, names: Sequence[str], turns: Callable[[Lane], Iterable[tuple[Any, ...]]], body: Action) -> Action:
        def run(lane: Lane) -> str | None:
            for row in turns(lane):
                lane.locals.update(zip(names, row, strict=True))
                way = body(lane)
                if way == "break":
                    break
                if way == "return":
                    return way
            return None

        return run

    def _while(self, condition: Value, body: Action) -> Action:
        def run(lane: Lane) -> str | None:
            while condition(lane):
                way = body(lane)
                if way == "break":
                    break
                if way == "return":
                    return way
            return None

        return run

    def _return(self, args: list[Value]) -> Action:
        def run(lane: Lane) -> str:
            if args:
                found = [arg(lane) for arg in args]
                lane.locals["return"] = found[0] if len(found) == 1 else found
            return "return"

        return run

    # -- expressions

    def value(self, e: E) -> Value:
        """What an expression is to a lane."""
        args = [self.value(a) for a in e.args]
        match e.op:
            case "num":
                found = value_of(e.data[1], e.t)
                return lambda lane: found
            case "turn":
                return lambda lane: number(lane.locals[e.data], e.t)
            case "var":
                return lambda lane: lane.locals[e.data]
            case "id":
                name, axis = e.data
                return lambda lane: lane.ids[name]["xyz".index(axis)]
            case "len" if (found := self._shape(e.data)) is not None:
                first = found[0]
                return lambda lane: first
            case "shape":
                extent = self.tree.array(e.data[0]).shape[e.data[1]]
                return lambda lane: extent
            case "at":
                return self._at(self.tree.array(e.data).shape, args)
            case "len" | "size":
                return lambda lane: len(lane.memory[e.data])
            case "load":
                return self._load(e.data, args[0], zero_of(e.t))
            case "compare":
                return self._compare([COMPARE[sign] for sign in e.data], args)
            case "and":
                return lambda lane: all(a(lane) for a in args)
            case "or":
                return lambda lane: any(a(lane) for a in args)
            case "not":
                return lambda lane: not args[0](lane)
            case "choose":
                return lambda lane: args[1](lane) if args[0](lane) else args[2](lane)
            case "cast":
                return self._applied(cast(e.args[0].t, e.t), args)
            case "bitcast":
                return self._applied(bitcast(e.args[0].t, e.t), args)
            case "call":
                helper, body = self.helpers[e.data[0]]
                return self._call(helper, body, e.data[1], args)
        if e.op in OPS or (e.args and e.args[0].t in FIELDS):
            return self._applied(meaning(e), args)
        return self._applied(self._operator(e), args)

    def _shape(self, name: str) -> tuple[int, ...] | None:
        """Of an array with a rank."""
        return next((a.shape for a in self.tree.arrays if a.name == name and a.ranked), None)

    @staticmethod
    def _at(shape: tuple[int, ...], args: list[Value]) -> Value:
        """The element of an array with a rank; -1 where an index is out of its axis."""

        def place(lane: Lane) -> int:
            at = 0
            for extent, value in zip(shape, [arg(lane) for arg in args], strict=True):
                if not 0 <= value < extent:
                    return -1
                at = at * extent + value
            return at

        return place

    def _operator(self, e: E) -> Function:
        step = OPERATORS[e.args[0].t][e.op]
        if len(e.args) < 3 or e.op == "fma":
            return step
        return lambda first, *rest: self._chain(step, first, rest)  # min and max of several

    @staticmethod
    def _chain(step: Function, found: Any, rest: Sequence[Any]) -> Any:
        for value in rest:
            found = step(found, value)
        return found

    def _applied(self, f: Function, args: list[Value]) -> Value:
        if len(args) == 1:
            (a,) = args
            return lambda lane: f(a(lane))
        if len(args) == 2:
            a, b = args
            return lambda lane: f(a(lane), b(lane))
        return lambda lane: f(*[arg(lane) for arg in args])

    def _load(self, buffer: str, index: Value, zero: Any) -> Value:
        return lambda lane: lane.of(buffer).read(index(lane), zero)

    def _compare(self, signs: list[Function], args: list[Value]) -> Value:
        def test(lane: Lane) -> bool:
            values = [arg(lane) for arg in args]
            return all(sign(a, b) for sign, a, b in zip(signs, values, values[1:], strict=False))

        return test

    def _call(self, helper: Helper, body: Action, buffers: tuple[str, ...], args: list[Value]) -> Value:
        given = [name for name, t in helper.params if t[0] not in "*&"]
        seen = [name for name, t in helper.params if t[0] in "*&"]

        def call(lane: Lane) -> Any:
            inner = Lane(lane.ids, lane.memory, dict(zip(given, (arg(lane) for arg in args), strict=True)))
            if seen:
                inner.memory = lane.memory | {name: lane.of(b) for name, b in zip(seen, buffers, strict=True)}
            body(inner)
            return inner.locals["return"]

        return call


def _parts(body: tuple[S, ...]) -> list[tuple[S, ...]]:
    """Statements between the barriers of the whole grid."""
    at = [k for k, s in enumerate(body) if s.op == "grid_sync"]
    starts, ends = [0, *(k + 1 for k in at)], [*at, len(body)]
    return [body[start:end] for start, end in zip(starts, ends, strict=True)]


def expected(tree: Tree, backwards: bool = False) -> list[bytes]:
    """The bytes of every result of the kernel's call; `backwards`, the last invocation goes first."""
    return Model(tree, backwards).run()

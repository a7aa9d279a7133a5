"""Which values are the same in all lanes that are computed together, and where do those lanes part?

A block is `parts` vectors of `width` lanes, side by side. Width 1 in one part is a single lane: there everything is the
same and nothing parts.

Regions say which lanes are there: lanes that run a body as one are in one region, and a branch or loop on which they
may disagree opens a new one inside. A local needs one register only if all its values agree and all its changes happen
in the innermost region that holds every use: elsewhere some lanes keep their old value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from ....foundation.meaning.subgroup import SUBGROUP_WIDTH
from ....lower.kernel_ir import Body, If, Ins, Kernel, Local, Loop, bodies, walk

K = TypeVar("K", bound=Hashable)
_PASSES = 16
MOST_STRIDE = 4
"""Elements that lie further apart are gathered: each vector of memory would have but a few of them."""
SAME, EACH, WIDE, ROW = range(4)
"""The same in the whole block; the same in each vector of it; different from lane to lane; lane k holds base + k."""


class Val(NamedTuple):
    """The operands of a value: one for the block (SAME), else one for each vector; of a row the bases."""

    kind: int
    parts: tuple[str, ...]


def each_once(parts: Iterable[K], make: Callable[[K], str]) -> tuple[str, ...]:
    """`make` of every part; parts that are equal share what was made."""
    made: dict[K, str] = {}
    found = []
    for part in parts:
        if part not in made:
            made[part] = make(part)
        found.append(made[part])
    return tuple(found)


Picks: TypeAlias = Mapping[int, Ins]
"""Values (by identity), and the one of its operands that each of them is."""


def chosen(ins: Ins, fast: bool, picks: Picks) -> Ins:
    """The value itself, or the one that it is sure to be: in the fast version, where the check covers it."""
    while True:
        if fast and ins.op == "select" and ins.covered:
            ins = ins.args[1]
        elif id(ins) in picks:
            ins = picks[id(ins)]
        else:
            return ins


class Variance:
    """Levels of values and locals, and regions of bodies, for one way to cut a kernel into blocks.

    `flat`: blocks run along x over the invocations of many workgroups; otherwise over the linear local ids of one.
    `rows`: the vectors of a flat block are neighbours along y.
    `memory` are the locals that live in memory between stretches of the body, `spilled` the values (by identity);
    `held` are conditions whose truth is known, `picks` values that are one of their operands, and `fast` says that what
    the check covers holds.
    """

    def __init__(
        self,
        kernel: Kernel,
        width: int,
        parts: int,
        flat: bool,
        rows: bool = False,
        memory: frozenset[Local] = frozenset(),
        spilled: frozenset[int] = frozenset(),
        held: Mapping[int, bool] | None = None,
        fast: bool = False,
        picks: Picks | None = None,
    ) -> None:
        self.kernel, self.width, self.parts, self.flat = kernel, width, parts, flat
        self.rows = rows
        self.block = width * parts
        self.step = width if rows else self.block
        self.row = SAME if self.block == 1 else EACH if width == 1 else ROW
        self.spilled, self.held, self.fast, self.picks = spilled, held or {}, fast, picks or {}
        self.levels: dict[int, int] = {}
        self.locals: dict[Local, int] = dict.fromkeys(memory, WIDE if self.block > 1 else SAME)
        self.regions: dict[int, int] = {}
        self._around: dict[Local, Body] = {}
        self.leaves: set[int] = set()
        self.owned: dict[Local, int] = {}
        if self.block > 1:
            self._uses, self._around = _uses(kernel.body), _around(kernel.body)
            for _ in range(_PASSES):
                if not self._pass():
                    return
            for local in self._uses:  # values that go around in loops, one local per pass, are not followed to the end
                if flat or not local.uniform:
                    self.locals[local] = WIDE
            self._pass()

    def chosen(self, ins: Ins) -> Ins:
        return chosen(ins, self.fast, self.picks)

    def level(self, ins: Ins) -> int:
        return self.levels.get(id(ins), SAME)

    def local(self, local: Local) -> int:
        return self.locals.get(local, SAME)

    def region(self, body: Body) -> int:
        return self.regions.get(id(body), 0)

    def home(self, local: Local) -> int:
        """The innermost region that holds every use: that of the innermost body which does."""
        return self.region(self._around[local]) if local in self._around else 0

    def keeps(self, local: Local, region: int) -> bool:
        """Whether a set in this region must leave the value of lanes elsewhere as it is."""
        return self.home(local) != region and self.owned.get(local) != region

    def side(self, item: If | Loop) -> Body | None:
        """The one side of a branch that lanes take, if it is known."""
        truth = self.held.get(id(item.condition)) if isinstance(item, If) else None
        return None if truth is None else bodies(item)[not truth]

    def parting(self, item: If | Loop) -> bool:
        """Whether lanes of a block may disagree about this branch or loop."""
        if isinstance(item, If):
            return self.level(item.condition) != SAME and id(item.condition) not in self.held
        live = SAME if item.live is None else self.local(item.live)
        return (self.level(item.start), self.level(item.stop), live) != (SAME, SAME, SAME)

    def is_row(self, ins: Ins) -> bool:
        """Whether neighbouring lanes hold neighbouring numbers: an id along x, moved."""
        while True:
            ins = self.chosen(ins)
            if ins.op in ("gid", "lid") and ins.attr == 0:
                return self._counts_up()
            if ins.op in ("rem", "and") and self.cuts_rows(ins):
                return True
            wide = [a for a in ins.args if self.level(a) == WIDE]
            moved = ins.op == "add" or (ins.op == "sub" and wide == [ins.args[0]])
            if len(wide) != 1 or not (moved or (ins.op == "convert" and ins.dtype in ("u32", "i32"))):
                return ins.op == "lane"
            ins = wide[0]

    def _counts_up(self) -> bool:
        """Whether ids along x go up by one from lane to lane of every vector."""
        first = self.kernel.workgroup[0]
        return self.flat or first == self.kernel.lanes or first % self.width == 0

    def stride(self, ins: Ins) -> int:
        """By what an index goes up from lane to lane, if it is an id along x times a number, moved; else 0."""
        stride = 1
        while self.width > 1 and 0 < stride <= MOST_STRIDE and ins.dtype in ("u32", "i32"):
            ins = self.chosen(ins)
            if ins.op == "lane" or (ins.op in ("gid", "lid") and ins.attr == 0):
                return stride if ins.op == "lane" or self._counts_up() else 0
            wide = [a for a in ins.args if self.level(a) == WIDE]
            if len(wide) != 1 or (ins.op in ("sub", "shl") and wide[0] is not ins.args[0]):
                return 0
            if ins.op in ("mul", "shl"):
                times = ins.args[wide[0] is ins.args[0]]
                if times.op != "const":
                    return 0
                stride = stride * times.attr if ins.op == "mul" else stride << times.attr
            elif ins.op not in ("add", "sub", "convert"):
                return 0
            ins = wide[0]
        return 0

    def cuts_rows(self, ins: Ins) -> bool:
        """Whether it divides the number of a lane, or takes what is left, by so many that a vector lies within."""
        if self.flat or self.width == 1 or ins.op not in ("div", "rem", "shr", "and") or ins.dtype != "u32":
            return False
        a, b = ins.args
        at, number = self.chosen(a), b.attr if b.op == "const" else 0
        by = 1 << number if ins.op == "shr" else number + 1 if ins.op == "and" else number
        return by > 0 and by % self.width == 0 and self._run(at) % self.width == 0

    def is_one(self, ins: Ins) -> bool:
        """Whether that number is the same for a whole block: one of a single subgroup, say."""
        if ins.op not in ("div", "shr") or not self.cuts_rows(ins):
            return False
        number = ins.args[1].attr
        by = 1 << number if ins.op == "shr" else number
        return by % self.block == 0 and self._run(self.chosen(ins.args[0])) % self.block == 0

    def _run(self, ins: Ins) -> int:
        """How many lanes in a row it counts, from a multiple of as many; 1 where it does not count them."""
        if ins.op in ("gid", "lid") and ins.attr == 0:
            return self.kernel.workgroup[0]
        return SUBGROUP_WIDTH if ins.op == "lane" else 1

    def id_level(self, op: str, axis: int) -> int:
        """Of a global, workgroup or local id."""
        sizes = self.kernel.workgroup
        if self.block == 1:
            return SAME
        if self.flat:
            if axis == 1 and self.rows:
                return SAME if op == "wid" else EACH
            return WIDE if axis == 0 and (op == "gid" or (op == "lid") == (sizes[0] > 1)) else SAME
        if op == "wid" or sizes[axis] == 1:
            return SAME
        below = sizes[0] if axis == 1 else sizes[0] * sizes[1]
        if axis == 0 or below % self.width:
            return WIDE
        return SAME if below % self.block == 0 else EACH

    def _pass(self) -> bool:
        """Levels and regions from those of the locals; whether a local turned out to differ more."""
        self.regions.clear()
        self.leaves.clear()
        self.owned.clear()
        regions = 1
        changed = False

        def inner(item: If | Loop, region: int) -> bool:
            nonlocal regions
            parted = self.parting(item)
            leaves = False
            one = self.side(item)
            for body in bodies(item) if one is None else (one,):
                here = region
                if parted:
                    here = regions
                    regions += 1
                self.regions[id(body)] = here
                leaves |= scope(body, here)
            if leaves:
                self.leaves.add(id(item))
            return leaves

        def scope(body: Body, region: int) -> bool:
            nonlocal changed
            leaves = False
            before: Counter[Local] = Counter()
            for item in body:
                if isinstance(item, If | Loop):
                    leaves |= inner(item, region)
                    if isinstance(item, Loop) and self.parting(item):
                        self._own(item, before)
                elif item.op == "set":
                    local = item.attr
                    before[local] += 1
                    level = self.level(item.args[0]) if region == self.home(local) else WIDE
                    if level > self.local(local):
                        self.locals[local] = level
                        changed = True
                elif item.op == "return":
                    leaves |= region != 0
                else:
                    self.levels[id(item)] = self._level(item)
            return leaves

        scope(self.kernel.body, 0)
        return changed

    def _own(self, loop: Loop, before: Counter[Local]) -> None:
        """Locals that are set just before a loop and else used in it only: no lane reads its own after it has left, so
        that an iteration may change them for all."""
        for local, count in _uses([loop]).items():
            if before.get(local, 0) and count + before[local] == self._uses[local]:
                self.owned[local] = self.regions[id(loop.body)]

    def _level(self, ins: Ins) -> int:
        if id(ins) in self.spilled:
            return WIDE
        if (one := self.chosen(ins)) is not ins:
            return self.level(one)
        match ins.op:
            case "gid" | "wid" | "lid":
                return self.id_level(ins.op, ins.attr)
            case "lane" | "atomic" | "subgroup":
                return WIDE
            case "get":
                return self.local(ins.attr)
            case "index":
                return self.level(ins.attr.start)
            case "div" | "shr" if self.cuts_rows(ins):
                return SAME if self.is_one(ins) else EACH
        return max((self.level(a) for a in ins.args), default=SAME)


def _around(body: Body) -> dict[Local, Body]:
    """The innermost body that holds every use of a local."""
    found: dict[Local, tuple[Body, ...]] = {}

    def use(local: Local, path: tuple[Body, ...]) -> None:
        known = found.get(local, path)
        if known is not path:
            path = tuple(a for a, b in zip(known, path, strict=False) if a is b)
        found[local] = path

    unvisited: list[tuple[Body, tuple[Body, ...]]] = [(body, (body,))]
    while unvisited:
        here, path = unvisited.pop()
        for item in here:
            if isinstance(item, Ins):
                if item.op in ("get", "set"):
                    use(item.attr, path)
                continue
            if isinstance(item, Loop) and item.live is not None:
                use(item.live, path)
            unvisited.extend((inner, (*path, inner)) for inner in bodies(item))
    return {local: path[-1] for local, path in found.items()}


def _uses(body: Body) -> Counter[Local]:
    """How often each local is read or written."""
    found: Counter[Local] = Counter()
    for item in walk(body):
        if isinstance(item, Loop) and item.live is not None:
            found[item.live] += 1
        elif isinstance(item, Ins) and item.op in ("get", "set"):
            found[item.attr] += 1
    return found


def assigned(body: Body) -> dict[Local, None]:
    """Locals that are set in a body or inside it, in the order in which they are."""
    return {item.attr: None for item in walk(body) if isinstance(item, Ins) and item.op == "set"}

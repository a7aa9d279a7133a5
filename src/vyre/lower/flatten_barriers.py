"""A body whose barriers do not stand inside branches.

Some compilers get conditional barriers wrong, and a lane that has stopped does not know whether the others enter a
branch. So a branch that holds a barrier is cut at it: each stretch between barriers has the condition for itself, and
every lane comes to the barrier. Loops that hold a barrier stay loops, with no turns where they would not be reached. A
return with a barrier behind it, which is one of the whole workgroup, becomes a local that all stretches behind it test.

Values keep their identity; they may now be used outside the body that they are made in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..foundation.ir.visit import Steps, run_nested
from .kernel_ir import PURE, Body, If, Ins, Kernel, Local, Loop, Statement, bodies, walk

MEETS = frozenset(("barrier", "subgroup"))
"""Instructions that all lanes of a workgroup reach together."""
_ANYWHERE = (PURE | {"get"}) - {"div", "rem"}
"""Instructions that may run without need. Division is not one: only the branch may know that a divisor is not zero."""


class _Reached(NamedTuple):
    """When code is reached: where `taken` is true, and no workgroup has returned since the first `ends` returns."""

    taken: Ins | None
    ends: int


class Straight:
    """The new `body`. `origin` has the loop that each new one replaces; `meeting` are the loops with a barrier."""

    def __init__(self, kernel: Kernel) -> None:
        self.body: Body = []
        self.origin: dict[Loop, Loop] = {}
        self.meeting: set[Loop] = set()
        self._holds = _holders(kernel.body, lambda i: i.op in MEETS)
        self._early = early = _early_returns(kernel.body, self._holds)
        self._cuts = self._holds | _holders(kernel.body, lambda i: i in early)
        self._running = Local("running", "bool")
        """False once the workgroup has returned."""
        self._ends = 0
        """Returns that were passed."""
        self._lives: list[Local] = []
        if early:
            _set(self.body, self._running, 1)
        run_nested(self._straighten(kernel.body, _Reached(None, 0), self.body))

    def _straighten(self, items: Body, when: _Reached, out: Body) -> Steps:
        """Append what the items do where they are reached."""
        stretch: Body = []
        for item in items:
            plain = item.op not in MEETS and item not in self._early
            if plain if isinstance(item, Ins) else item not in self._cuts:
                stretch.append(item)
                continue
            self._put(stretch, when, out)
            stretch = []
            if isinstance(item, If):
                yield self._branch(item, when, out)
            elif isinstance(item, Loop):
                yield self._loop(item, when, out)
            elif item.op in MEETS:
                out.append(item)
            else:
                self._leave(when, out)
                return
        self._put(stretch, when, out)

    def _test(self, when: _Reached, out: Body) -> Ins | None:
        """Whether the code that comes next is reached; None where it always is."""
        if when.ends == self._ends:
            return when.taken
        running = _emit(out, "get", "bool", attr=self._running)
        return running if when.taken is None else _emit(out, "and", "bool", when.taken, running)

    def _put(self, stretch: Body, when: _Reached, out: Body) -> None:
        free = 0
        while free < len(stretch) and stretch[free].op in _ANYWHERE:
            free += 1
        out.extend(stretch[:free])
        if free < len(stretch):
            condition = self._test(when, out)
            out.extend(stretch[free:] if condition is None else [If(condition, stretch[free:])])

    def _branch(self, item: If, when: _Reached, out: Body) -> Steps:
        reached, ends = self._test(when, out), self._ends
        sides: list[tuple[Ins, Body]] = []
        for body, truth in ((item.then, True), (item.orelse, False)):
            if body:
                taken = item.condition if truth else _emit(out, "not", "bool", item.condition)
                sides.append((taken if reached is None else _emit(out, "and", "bool", reached, taken), body))
        for taken, body in sides:
            yield self._straighten(body, _Reached(taken, ends), out)

    def _loop(self, item: Loop, when: _Reached, out: Body) -> Steps:
        reached = self._test(when, out)
        stop = item.stop if reached is None else _emit(out, "select", "u32", reached, item.stop, item.start)
        ends = any(i in self._early for i in walk(item.body))
        made = Loop(item.start, stop, [], item.live or (self._running if ends else None))
        self.origin[made] = item
        if item in self._holds:
            self.meeting.add(made)
        out.append(made)
        lives = len(self._lives)
        self._lives += [item.live] if item.live else []
        yield self._straighten(item.body, _Reached(None, self._ends), made.body)
        del self._lives[lives:]

    def _leave(self, when: _Reached, out: Body) -> None:
        """The workgroup returns: nothing behind this is reached, and no loop around it has another turn."""
        condition = self._test(when, out)
        here: Body = []
        for local in (self._running, *self._lives):
            _set(here, local, 0)
        out.extend(here if condition is None else [If(condition, here)])
        self._ends += 1


def _emit(out: Body, op: str, dtype: str, *args: Ins, attr: object = None) -> Ins:
    made = Ins(op, dtype, args, attr)
    out.append(made)
    return made


def _set(out: Body, local: Local, bits: int) -> None:
    _emit(out, "set", "", _emit(out, "const", local.dtype, attr=bits), attr=local)


def _holders(body: Body, wanted: Callable[[Statement], bool]) -> set[Statement]:
    """Branches and loops that hold an instruction of some kind."""
    found: set[Statement] = set()
    for item in reversed(list(walk(body))):
        if any(i in found or wanted(i) for inner in bodies(item) for i in inner):
            found.add(item)
    return found


def _early_returns(body: Body, holds: set[Statement]) -> set[Statement]:
    """Returns behind which a barrier may come."""
    found: set[Statement] = set()
    unvisited = [(body, False)]
    while unvisited:
        items, follows = unvisited.pop()
        for item in reversed(items):
            if item.op == "return" and follows:
                found.add(item)
            again = isinstance(item, Loop) and item in holds
            unvisited.extend((inner, follows or again) for inner in bodies(item))
            follows |= item.op in MEETS or item in holds
    return found

"""Which operation is wrong? A dispatch whose outputs differ, cut down to what shows it, and its first wrong value.

A backend and an oracle run smaller and smaller dispatches, which are kept where the two still differ though no order of
invocations explains it. In what is left, the value of every expression is looked at in turn, operands first: the first
one that differs is computed wrongly from right operands.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from ...errors import ArgumentValueError, Trap, VyreError
from ...foundation import html
from ...foundation.check.typing import type_of
from ...foundation.formats.text import print_expr
from ...foundation.ir.dtypes import DataType
from ...foundation.ir.nodes import Atomic, BinOp, Call, Expr, InvocationId, Lit, Node, Opaque, Store, UnOp, Var, lit
from ...foundation.ir.ops import BinaryOp
from ...foundation.ir.program import Program, write_only
from ...foundation.ir.visit import bodies, children, rewrite_expr, walk_exprs
from ..contract.backend import VyreBackend
from ..contract.values import DispatchConfig
from ..guard.compile import compile
from ..observe.evidence import EvidenceBundle
from ..plan.launch import plan_dispatch
from ..selection import registry
from .cases import Diverged, DivergenceEvent, copied
from .compare import Difference, compare_outputs, number_of
from .evidence import alone, evidence_of, require_bundle
from .shadow import ShadowedPipeline, oracles
from .smaller import Case, edited, names_of, noted, shrunk, statement_count

MOST_TRIES = 1500
LONGEST_S = 60.0
"""For the dispatch that is looked at."""
LEAST_S, SLOWER = 0.5, 4.0
"""How long a smaller one may take at least, and how many times as long: one that drops the end of a loop has none."""
MOST_PROBED = 1 << 20
"""Invocations whose values are looked at."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A right value that went into a wrong one."""

    expression: str
    value: str


@dataclass(frozen=True, slots=True)
class Wrong:
    """The first wrong value: `operation` computes `expression` wrongly in this invocation, from right operands.

    Where every value is right and yet an output is not, the operation is `store`, and the difference is the output's.
    """

    operation: str
    expression: str
    difference: Difference
    invocation: tuple[int, int, int] | None = None
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Blamed:
    """What was found. `bundle` is the smallest dispatch that shows it, with `statements` of the `whole` there were."""

    wrong: Wrong
    bundle: EvidenceBundle
    whole: int
    statements: int
    tries: int

    def _repr_html_(self) -> str:
        wrong = self.wrong
        facts = [
            ("expression", wrong.expression),
            *((o.expression, o.value) for o in wrong.operands),
            *wrong.difference.facts.items(),
        ]
        return html.page(f"{wrong.operation} is wrong", html.facts(facts))


def blame(
    bundle: EvidenceBundle,
    backend: str | None = None,
    *,
    tries: int = MOST_TRIES,
    step: Callable[[str], object] = lambda _: None,
) -> Blamed:
    """Find the operation. `backend` is the suspect, by default the one that the evidence is about; it has to be here.

    `tries` bounds how many dispatches are tried; `step` is told of each.
    """
    require_bundle("blame", bundle)
    if bundle.inputs is None:
        raise ArgumentValueError(
            "the inputs were left out of the evidence", fix="keep them: without_inputs() is for proof alone"
        )
    judge, name = oracles(), backend or bundle.backend_id
    if not judge or name.partition(":")[0] in judge:
        raise ArgumentValueError(
            f"{name} cannot be blamed: {'it is the judge' if judge else 'there is no judge'}",
            fix="name the backend that is wrong: --on BACKEND" if judge else "install an oracle",
        )
    case = Case(bundle.program, bundle.inputs, bundle.config)
    with alone(cache="off"), registry.acquire(name) as suspect, registry.acquire(judge[0]) as oracle:
        return _Inquiry(suspect, oracle, tries, step).of(bundle, case)


class _Inquiry:
    """The two backends, and how many dispatches may still be tried."""

    def __init__(self, suspect: VyreBackend, oracle: VyreBackend, tries: int, step: Callable[[str], object]) -> None:
        self.suspect, self.oracle, self.step = suspect, oracle, step
        self.left = self.tries = tries
        self.seen: set[int] = set()
        self.skipped: list[str] = []
        self.timeout: float | None = LONGEST_S

    def of(self, bundle: EvidenceBundle, case: Case) -> Blamed:
        begun = time.monotonic()
        found = self.event(case)
        if found is None:
            self.timeout = None  # some backends look at the clock in code of their own
            found = self.event(case)
        if found is None and self.skipped:
            raise ArgumentValueError(
                f"{self.suspect.id} and {self.oracle.id} cannot be compared here ({', '.join(self.skipped)})",
                fix="read why in the log vyre.shadow; `order` means that two right results may differ",
            )
        if found is None:
            raise ArgumentValueError(
                f"{self.suspect.id} and {self.oracle.id} agree here",
                fix="look for what ran before it, such as stale code, or for a device that errs now and then",
            )
        if self.timeout is not None:
            self.timeout = max(LEAST_S, SLOWER * (time.monotonic() - begun))
        whole = statement_count(case.program)
        fixed = _fixed(case)
        with _unsaid():
            smallest = shrunk(fixed if self.holds(fixed) else case, self.holds)
        event = self.event(smallest) or found
        smallest.program.called(bundle.program.name)
        first = self.first_wrong(smallest) or Wrong("store", event.difference.output or "", event.difference)
        return Blamed(
            first,
            evidence_of(event, self.suspect),
            whole,
            statement_count(smallest.program),
            self.tries - self.left,
        )

    # -- do they differ?

    def holds(self, case: Case) -> bool:
        key = hash((case.program, case.inputs, case.config))
        if self.left <= 0 or key in self.seen:
            return False
        self.seen.add(key)
        self.left -= 1
        self.step(f"{statement_count(case.program)} statements")
        try:
            right = self.outputs(self.oracle, case)
            found = self.outputs(self.suspect, case)
        except Trap:
            pass  # of one of them, perhaps
        except VyreError:
            return False
        else:
            budget = case.config.ulp_budget or 0
            if compare_outputs(case.program, found, right, ulp_budget=budget).difference is None:
                return False
        return self.event(case) is not None

    def event(self, case: Case) -> DivergenceEvent | None:
        """What differs, if something does that no order of invocations explains."""
        try:
            pipes = [compile(each, case.program) for each in (self.suspect, self.oracle)]
            with ShadowedPipeline(*pipes) as both:
                both.dispatch(case.inputs, case.config.with_(timeout=self.timeout))
                self.skipped = sorted(both.shadow.skips)
        except Diverged as e:
            return e.event
        except VyreError:
            pass
        return None

    def outputs(self, backend: VyreBackend, case: Case) -> tuple[bytes, ...]:
        config = case.config.with_(timeout=self.timeout)
        with compile(backend, case.program, config) as pipe:
            return copied(pipe.dispatch(case.inputs, config))

    # -- the first wrong value

    def first_wrong(self, case: Case) -> Wrong | None:
        """The first that differs though its operands agree; in a loop that is left, perhaps only one that differs."""
        layouts = _layouts(case)
        differing: Wrong | None = None
        for place, e in _in_order(case.program):
            if (seen := self.seen_at(case, place, e, layouts)) is None:
                continue
            element = seen.element or 0
            operands = self.operands(case, place, e, layouts[-1], element)
            wrong = Wrong(_operation(e), print_expr(e), seen, layouts[-1].invocation(element), tuple(operands))
            if all(self.seen_at(case, place, operand, layouts) is None for operand in children(e)):
                return wrong
            differing = differing or wrong
        return differing

    def seen_at(self, case: Case, place: int, e: Expr, layouts: list[Layout]) -> Difference | None:
        """How the values of an expression differ, if they do wherever they are put."""
        seen = None
        for layout in layouts:
            if isinstance(e, Lit) or (seen := self.difference(_probe(case, place, e, layout))) is None:
                return None
        return seen

    def difference(self, probe: Case | None) -> Difference | None:
        """Of the probed values alone."""
        if probe is None:
            return None
        try:
            found, right = (self.outputs(each, probe) for each in (self.suspect, self.oracle))
        except VyreError:
            return None
        return compare_outputs(probe.program, (*right[:-1], found[-1]), right).difference

    def operands(self, case: Case, place: int, e: Expr, layout: Layout, element: int) -> Iterator[Operand]:
        for operand in children(e):
            if isinstance(operand, Lit) or (probe := _probe(case, place, operand, layout)) is None:
                continue
            try:
                data = self.outputs(self.oracle, probe)[-1]
            except VyreError:
                continue
            t = probe.program.host_outputs[-1].element
            size = t.size or 1
            yield Operand(print_expr(operand), str(number_of(data[element * size :][:size], t)))


@contextmanager
def _unsaid() -> Iterator[None]:
    """Why a candidate cannot be compared is no news; other threads may say what they have to."""
    here, log = threading.get_ident(), logging.getLogger("vyre.shadow")

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    log.addFilter(elsewhere)
    try:
        yield
    finally:
        log.removeFilter(elsewhere)


def _fixed(case: Case) -> Case:
    """The same dispatch with the grid and the lengths that follow from its buffers written down."""
    plan = plan_dispatch(case.program, case.inputs, case.config)
    if plan.indirect:
        return case
    counts = {
        b.name: b.element_count for b in plan.bindings.outputs if b.input_index is None and b.static_byte_len is None
    }
    config: DispatchConfig = case.config.with_(grid_override=plan.launch.grid, output_elements=counts or None)
    return Case(case.program, case.inputs, config)


# ---- probes ---------------------------------------------------------------------------------------------------------


def _in_order(program: Program) -> Iterator[tuple[int, Expr]]:
    """Every expression of which a value can be looked at, in the order in which one invocation computes them, with the
    place of its statement."""
    for place, node in _statements(program):
        found: list[Expr] = []
        for name in node.expr_fields:
            value = getattr(node, name)
            if value is not None:
                rewrite_expr(value, noted(found))
        for e in found:
            if not isinstance(e, Lit | Var) and not any(
                isinstance(part, Atomic | Call | Opaque) for part in walk_exprs(e)
            ):
                yield place, e


def _statements(program: Program) -> list[tuple[int, Node]]:
    """Statements in the order in which they begin, each with its place in the order in which they end."""
    begun: list[tuple[int, Node]] = []
    opened: list[int] = []
    ended = itertools.count()
    stack: list[Node | None] = [*reversed(program.entry)]
    while stack:
        node = stack.pop()
        if node is None:
            at = opened.pop()
            begun[at] = next(ended), begun[at][1]
            continue
        opened.append(len(begun))
        begun.append((0, node))
        stack.append(None)
        for body in reversed(bodies(node)):
            stack.extend(reversed(body))
    return begun


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the values of an invocation go: its ids, each in bits of its own, or counted along x, then y, then z.

    The two use other operators, so that a value which differs in both is not merely put elsewhere by a wrong one.
    """

    dims: tuple[int, int, int]
    in_bits: bool

    @property
    def strides(self) -> tuple[int, int, int]:
        x, y, _ = ((d - 1).bit_length() for d in self.dims) if self.in_bits else self.dims
        return (0, x, x + y) if self.in_bits else (1, x, x * y)

    @property
    def count(self) -> int:
        return 1 << sum((d - 1).bit_length() for d in self.dims) if self.in_bits else prod(self.dims)

    def index(self) -> Expr:
        found: Expr = InvocationId(0)
        scale, join = (BinaryOp.SHL, BinaryOp.BIT_OR) if self.in_bits else (BinaryOp.MUL, BinaryOp.ADD)
        for axis in (1, 2):
            if self.dims[axis] > 1:
                found = BinOp(join, found, BinOp(scale, InvocationId(axis), lit(self.strides[axis])))
        return found

    def invocation(self, element: int) -> tuple[int, int, int]:
        """
        >>> [Layout((5, 2, 3), in_bits).invocation(9) for in_bits in (True, False)]
        [(1, 1, 0), (4, 1, 0)]
        """
        _, y, z = (1 << s for s in self.strides) if self.in_bits else self.strides
        return element % y, element % z // y, element // z


def _layouts(case: Case) -> list[Layout]:
    """In bits last: nothing but shifts hides there."""
    launch = plan_dispatch(case.program, case.inputs, case.config).launch
    x, y, z = (size * groups for size, groups in zip(launch.workgroup, launch.grid, strict=True))
    return [Layout((x, y, z), in_bits) for in_bits in ((False, True) if y * z > 1 else (False,))]


def _probe(case: Case, place: int, e: Expr, layout: Layout) -> Case | None:
    """The dispatch with one more output: the value of an expression before a statement, by invocation."""
    program = case.program
    types, elements = names_of(program)
    t: DataType | None = type_of(e, types, elements)
    if t is None or layout.count > MOST_PROBED:
        return None
    name = next(n for n in itertools.chain(["value"], (f"value{k}" for k in itertools.count())) if n not in elements)
    decl = write_only(name, 1 + max((b.binding for b in program.buffers), default=-1), t, layout.count)
    stored = Store(name, layout.index(), e)
    probed = edited(program, lambda k, n: (stored, n) if k == place else n)
    return Case(probed.replace(buffers=(*program.buffers, decl)), case.inputs, case.config)


def _operation(e: Expr) -> str:
    """
    >>> _operation(InvocationId(0))
    'invocation_id'
    """
    if isinstance(e, BinOp | UnOp):
        name = getattr(e.op, "name", None)
        return name.lower() if isinstance(name, str) else str(e.op)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(e).__name__).lower()

"""The NumPy engine: all invocations of many workgroups in lockstep, one array operation per operator and statement.

Statements are compiled once per program. A `Frame` holds exactly the lanes that are active: a branch that only some
lanes take, or a loop that some lanes have left, runs in a frame with their locals gathered, and assigned ones
are scattered back afterwards. So a value that no lane needs is never computed, and a loop costs what its remaining
lanes cost. Lockstep is one of the schedules that a program may not tell apart; in it a barrier has nothing left to do.

Recursion follows the nesting of statements, which validation bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ....errors import MOST_TRAPS, Trap, Trapped, UnsupportedFeature
from ....foundation.check.requirements import meets
from ....foundation.ir import nodes as ir
from ....foundation.ir.dtypes import DataType, u32
from ....foundation.ir.ops import Ordering
from ....foundation.ir.program import Program
from ....foundation.ir.visit import walk, walk_nodes
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH
from . import vector
from .memory import Grid, Memory, OobReport, Options, Outcome
from .numpy_eval import (
    GLOBAL_ID,
    GROUP,
    GROUP_ID,
    LANE,
    LOCAL_ID,
    SUBGROUP_LANE,
    Array,
    Code,
    Frame,
    Names,
    Run,
    View,
    compile_expr,
    evaluate,
    store,
    truth,
)

CHUNK_LANES = 1 << 17
"""Lanes that run together: enough to hide the cost of a Python step, few enough for their arrays to stay in cache.

A Mandelbrot image of 640 x 480 with 256 iterations took 1.5 s with 2^14, 0.86 s with 2^16,
0.73 s with 2^17, 0.88 s with 2^18 (two cores, NumPy 2.4).
"""

CHUNK_SHARED_BYTES = 1 << 26
GRID_SYNC_LANES = 1 << 23
"""With a grid-wide barrier all workgroups run together, so their locals must fit in memory."""

GRID_SYNC_SHARED_BYTES = 1 << 28

Statement = Callable[[Frame], None]


class Body(NamedTuple):
    """A statement list with the older slots that it reads or assigns, and those that it assigns."""

    statements: tuple[Statement, ...]
    used: frozenset[int]
    assigned: frozenset[int]
    returns: bool


class ChunkFacts(NamedTuple):
    """What the choice of chunks depends on. `refused` names a statement that this engine does not run."""

    refused: str | None
    syncs_grid: bool
    lanes: int
    shared_nbytes: int

    @classmethod
    def of(cls, program: Program) -> ChunkFacts:
        x, y, z = program.workgroup_size
        nodes = list(walk_nodes(program.entry))
        return cls(
            next((type(n).__name__ for n in nodes if not isinstance(n, _HANDLED)), None),
            any(isinstance(n, ir.Barrier) and n.ordering is Ordering.GRID_SYNC for n in nodes),
            x * y * z,
            sum(b.nbytes or 0 for b in program.buffers if b.is_workgroup),
        )


def can_run(program: Program, grid: Grid) -> str | None:
    """Why this engine cannot run the program on that grid; None when it can."""
    shape = _shape(program)
    if shape.refused is not None:
        return f"the NumPy engine has no code for {shape.refused}"
    groups = grid[0] * grid[1] * grid[2]
    if shape.syncs_grid and (
        groups * shape.lanes > GRID_SYNC_LANES or groups * shape.shared_nbytes > GRID_SYNC_SHARED_BYTES
    ):
        return "a grid-wide barrier needs all workgroups at once, and so many do not fit in memory"
    return None


def execute(program: Program, memory: Memory, grid: Grid, options: Options) -> Outcome:
    """Run every workgroup, changing `memory` in place. There is one schedule, lockstep, and races go unseen."""
    if why := can_run(program, grid):
        raise UnsupportedFeature(why, fix='use engine="scalar"')
    shape, body = _shape(program), compile_program(program)
    groups = chunk = grid[0] * grid[1] * grid[2]
    if not shape.syncs_grid:
        chunk = max(1, min(CHUNK_LANES // shape.lanes, CHUNK_SHARED_BYTES // max(1, shape.shared_nbytes)))
    views = {name: _view(state.decl.element, state.data, state.count) for name, state in memory.buffers.items()}
    run = Run(views, shape.lanes, options.max_steps, options.deadline)
    run.tick(0)
    with np.errstate(all="ignore"):
        for first in range(0, groups, max(1, chunk)):
            run.tick(0)  # a deadline holds for empty programs and for grids without end as well
            _run_chunk(program, body, run, grid, first, min(chunk, groups - first))
    return Outcome(OobReport(run.loads, run.stores, run.atomics), trap=run.noted.trap(), steps=run.steps)


def _run_chunk(program: Program, body: Body, run: Run, grid: Grid, first: int, groups: int) -> None:
    run.groups = groups
    n = groups * run.group_lanes
    run.returned = np.zeros(n if body.returns else 0, np.bool_)
    for b in program.buffers:
        if b.is_workgroup:
            run.views[b.name] = View(np.zeros(groups * b.count, vector.storage_dtype(b.element)), b.count, True)
    _run_body(body.statements, Frame(run, n, None, _ids(program, body.used, run, grid, first)))


def _ids(program: Program, used: frozenset[int], run: Run, grid: Grid, first: int) -> dict[int, Array]:
    """The slots that exist before the first statement, as far as the program uses them."""
    lane = np.arange(run.groups * run.group_lanes)
    group, local = np.divmod(lane, run.group_lanes)
    env = {
        LANE: lane,
        GROUP: group if run.groups > 1 else np.zeros(1, np.intp),
        SUBGROUP_LANE: (local % SUBGROUP_WIDTH).astype(np.uint32),
    }
    for axis in range(3):
        if not {GLOBAL_ID + axis, GROUP_ID + axis, LOCAL_ID + axis}.isdisjoint(used):
            width = program.workgroup_size[axis]
            group_id = _axis(first, run.groups, grid, axis)
            local_id = _axis(0, run.group_lanes, program.workgroup_size, axis)
            env[GROUP_ID + axis] = np.repeat(group_id, run.group_lanes)
            env[LOCAL_ID + axis] = np.tile(local_id, run.groups)
            env[GLOBAL_ID + axis] = env[GROUP_ID + axis] * np.uint32(width) + env[LOCAL_ID + axis]
    return {slot: env[slot] for slot in used}


def _axis(first: int, count: int, extent: tuple[int, int, int], axis: int) -> Array:
    """Coordinate of `count` linear indices from `first` on, x fastest. A linear index may be longer than 64 bits."""
    carry = np.arange(count)
    for width in extent[:axis]:
        first, start = divmod(first, width)
        carry = (start + carry) // width
    return ((first % extent[axis] + carry) % extent[axis]).astype(np.uint32)


def _view(element: DataType, data: bytearray, count: int) -> View:
    dtype = vector.storage_dtype(element)
    # One element stays behind an empty buffer, so that position 0 can always be read.
    return View(np.frombuffer(data, dtype, count) if count else np.zeros(1, dtype), count)


def _shape(program: Program) -> ChunkFacts:
    return program._cached("reference.numpy.shape", lambda: ChunkFacts.of(program))


# ---- compiling ------------------------------------------------------------------------------------------------------


def compile_program(program: Program) -> Body:
    """Statements as functions of a frame; nothing in them belongs to one run, and they live as long as the program."""
    return program._cached("reference.numpy.body", lambda: _Compiler(program).body(program.entry))


class _Compiler:
    """One pass in program order. `touched`, `assigned` and `returns` describe the statement list being compiled."""

    def __init__(self, program: Program) -> None:
        self.names = Names(program)
        self.assigned: set[int] = set()
        self.returns = False
        self.waits = meets(program)
        self.read = {e.name for e in walk(program.entry) if isinstance(e, ir.Var)}

    def body(self, nodes: tuple[ir.Node, ...]) -> Body:
        """A statement list in a scope of its own."""
        self.names.scopes.append({})
        body = self.sequence(nodes)
        self.names.scopes.pop()
        return body

    def sequence(self, nodes: tuple[ir.Node, ...]) -> Body:
        """A statement list in the scope that is open; what it declares stays visible."""
        names, mark = self.names, len(self.names.types)
        touched, assigned, returns = names.touched, self.assigned, self.returns
        names.touched, self.assigned, self.returns = set(), set(), False
        statements = tuple(self.statement(n) for n in nodes)
        used = frozenset(s for s in names.touched if s < mark)
        body = Body(statements, used, frozenset(s for s in self.assigned if s < mark), self.returns)
        names.touched |= touched
        self.assigned |= assigned
        self.returns |= returns
        return body

    def code(self, e: ir.Expr) -> Code:
        return compile_expr(e, self.names)[0]

    def statement(self, node: ir.Node) -> Statement:
        match node:
            case ir.Let(name=name, value=value):
                code, dtype = compile_expr(value, self.names, unused=name not in self.read)
                return _set(self.names.declare(name, dtype), code)
            case ir.Assign(name=name, value=value):
                code = self.code(value)
                slot = self.names.resolve(name)
                self.names.touched.add(slot)
                self.assigned.add(slot)
                return _set(slot, code)
            case ir.Store(buffer=buffer, index=index, value=value):
                self.names.reach(buffer)
                return _store(buffer, self.names.element(buffer), self.code(index), self.code(value))
            case ir.If(condition=condition, then=then, orelse=orelse):
                code, dtype = compile_expr(condition, self.names)
                return _if(code, dtype, self.body(then), self.body(orelse))
            case ir.Loop():
                return self.loop(node)
            case ir.Region(body=nodes) | ir.Block(body=nodes):
                statements = self.body(nodes).statements
                return lambda frame: _run_body(statements, frame)
            case ir.Return():
                self.names.touched.add(LANE)
                self.returns = True
                return _return
            case ir.Trap(address=address, tag=tag):
                self.names.touched |= {GLOBAL_ID, GLOBAL_ID + 1, GLOBAL_ID + 2}
                self.names.touched.add(LANE)
                self.returns = True
                return _trap(self.code(address), tag, self.waits)
            case ir.Barrier():
                return _barrier
            case _:
                return lambda frame: None  # the mark of an indirect dispatch, read when the grid was chosen

    def loop(self, node: ir.Loop) -> Statement:
        names, depth = self.names, len(self.names.scopes)
        start, stop = self.code(node.start), self.code(node.stop)
        # The counter and its limit are older than the body, so that lanes that stay in the loop take them along.
        names.scopes.append({})
        counter, limit = names.declare(node.var, u32), names.hidden(u32)
        flag, pieces = None, [node.body]
        match node.body:
            case (ir.If(condition=ir.Var(name=name), orelse=()),) if name != node.var:
                flag = names.resolve(name)
                names.touched.add(flag)
                pieces = _while_pieces(node.body, name)
        mark = len(names.types)
        bodies: list[tuple[Body, int]] = []
        for piece in pieces:  # a name that one declares is visible in the next ones
            names.scopes.append({})
            known = len(names.types)
            bodies.append((self.sequence(piece), known))
        del names.scopes[depth:]
        always = {counter, limit} if flag is None else {counter, limit, flag}
        always.update(s for b, _ in bodies for s in b.used if s < mark)
        parts = []
        for k, (body, known) in enumerate(bodies):
            still = {s for b, _ in bodies[k:] for s in b.used if s < known}
            parts.append((body.statements, frozenset(always | still)))
        assigned = frozenset(s for b, _ in bodies for s in b.assigned if s < mark)
        return _loop(start, stop, counter, limit, flag, tuple(parts), assigned, any(b.returns for b, _ in bodies))


def _while_pieces(nodes: tuple[ir.Node, ...], flag: str) -> list[tuple[ir.Node, ...]]:
    """Split `if v { a; if v { b } }` into a and b: a lane whose `v` is false after a has left the loop for good."""
    pieces = [nodes]
    while True:
        match pieces[-1]:
            case (*head, ir.If(condition=ir.Var(name=name), then=then, orelse=())) if name == flag:
                if any(isinstance(n, ir.Let) and n.name == flag for n in head):
                    break
                pieces[-1:] = [tuple(head), then]
            case _:
                break
    return pieces[1:]


# ---- statements -----------------------------------------------------------------------------------------------------


def _run_body(statements: tuple[Statement, ...], frame: Frame) -> None:
    for statement in statements:
        statement(frame)
        if not frame.n:
            return


def _barrier(frame: Frame) -> None:
    """In lockstep all lanes are here already."""
    frame.run.tick(frame.n)


def _set(slot: int, code: Code) -> Statement:
    def run(frame: Frame) -> None:
        frame.run.tick(frame.n)
        frame.env[slot] = evaluate(code, frame)

    return run


def _store(buffer: str, dtype: DataType, index: Code, value: Code) -> Statement:
    def run(frame: Frame) -> None:
        frame.run.tick(frame.n)
        at = evaluate(index, frame)
        store(buffer, dtype, at, evaluate(value, frame), frame)

    return run


def _return(frame: Frame) -> None:
    frame.run.tick(frame.n)
    frame.run.returned[frame.env[LANE]] = True
    frame.n = 0


def _trap(address: Code, tag: str, waits: bool) -> Statement:
    """Of lanes that wait for others, the first one ends the run."""

    def run(frame: Frame) -> None:
        frame.run.tick(frame.n)
        x, y, z = (frame.spread(frame.env[GLOBAL_ID + axis]) for axis in range(3))
        first = np.lexsort((x, y, z))[:MOST_TRAPS]
        told = zip(frame.spread(evaluate(address, frame))[first], x[first], y[first], z[first], strict=True)
        found = [Trapped(tag, int(at), (int(i), int(j), int(k))) for at, i, j, k in told]
        if waits:
            raise Trap.of(found[:1])
        frame.run.noted.add(found, frame.n)
        frame.run.returned[frame.env[LANE]] = True
        frame.n = 0

    return run


def _if(code: Code, dtype: DataType, then: Body, orelse: Body) -> Statement:
    changed, returns = then.assigned | orelse.assigned, then.returns or orelse.returns

    def run(frame: Frame) -> None:
        frame.run.tick(frame.n)
        condition = truth(evaluate(code, frame), dtype)
        hits = int(np.count_nonzero(condition))
        if hits in (0, condition.shape[0]):
            _run_body((then if hits else orelse).statements, frame)
            return
        parts = []
        for body, mask in (then, condition), (orelse, ~condition):
            if body.statements:
                part = frame.part(np.flatnonzero(mask), body.used)
                _run_body(body.statements, part)
                parts.append((part, body.assigned))
        for slot in changed:
            value = frame.spread(frame.env[slot]).copy()
            for part, assigned in parts:
                if part.n and slot in assigned:
                    value[part.pos] = part.env[slot]
            frame.env[slot] = value
        if returns:
            frame.drop_returned()

    return run


class _Laps:
    """The lanes still in a loop. The first ones to leave keep their values in `frame`, where the loop began; lanes
    that leave later bring theirs there."""

    __slots__ = ("assigned", "current", "final", "frame")

    def __init__(self, frame: Frame, assigned: frozenset[int]) -> None:
        self.frame = self.current = frame
        self.assigned = assigned
        self.final: dict[int, Array] = {}

    def narrow(self, go: Array, slots: frozenset[int]) -> bool:
        """Let the lanes leave that do not `go` on; whether any lane is left. `slots` are what those will need."""
        now, hits = self.current, int(np.count_nonzero(go))
        if hits in (0, go.shape[0]):
            return hits > 0
        keep = np.flatnonzero(go)
        part = now.part(keep, slots)
        if now.pos is not None and now is not self.frame:
            self.bring(np.flatnonzero(~go))
            part.pos = now.pos[keep]
        self.current = part
        return True

    def bring(self, leaving: Array | slice) -> None:
        now, frame = self.current, self.frame
        assert now.pos is not None
        if not self.final:
            self.final = {s: frame.spread(frame.env[s]).copy() for s in self.assigned}
        for slot, value in self.final.items():
            mine = now.env[slot]
            value[now.pos[leaving]] = mine if mine.shape[0] == 1 else mine[leaving]

    def end(self, returns: bool) -> None:
        if self.current is self.frame:
            return
        if self.current.n:
            self.bring(slice(None))
        self.frame.env.update(self.final)
        if returns:
            self.frame.drop_returned()


def _loop(
    start: Code,
    stop: Code,
    counter: int,
    limit: int,
    flag: int | None,
    parts: tuple[tuple[tuple[Statement, ...], frozenset[int]], ...],
    assigned: frozenset[int],
    returns: bool,
) -> Statement:
    """`flag` is the slot of a `while` condition: it is looked at before each of the `parts` of the body."""
    one = np.ones(1, np.uint32)

    def lap(laps: _Laps) -> bool:
        """Run the body once; whether any lane came to its end."""
        for statements, slots in parts:
            if flag is not None:
                laps.current.run.tick(laps.current.n)
                if not laps.narrow(laps.current.env[flag] != 0, slots):
                    return False
            _run_body(statements, laps.current)
            if not laps.current.n:
                return False
        return True

    def run(frame: Frame) -> None:
        frame.run.tick(frame.n)
        frame.env[counter] = evaluate(start, frame)
        frame.env[limit] = evaluate(stop, frame)
        laps = _Laps(frame, assigned)
        while laps.narrow(laps.current.env[counter] < laps.current.env[limit], parts[0][1]) and lap(laps):
            now = laps.current
            now.run.tick(now.n)
            now.env[counter] = now.env[counter] + one
        laps.end(returns)

    return run


_HANDLED = (
    ir.Assign, ir.Barrier, ir.Block, ir.If, ir.IndirectDispatch, ir.Let, ir.Loop, ir.Region, ir.Return, ir.Store,
    ir.Trap,
)  # fmt: skip

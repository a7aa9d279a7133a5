"""Loads, stores, atomics and traps of a block of lanes.

Out of bounds a load gives zero, a store is dropped, an atomic does nothing and gives zero. One location for the whole
block is a scalar access; a row of indices is a plain or masked vector; anything else is gathered or scattered. An
address is computed from any index (that is arithmetic without promises), but used only where the lane is active and the
index below the length.

A store to memory that is not in the cache reads the line first. Where a result is too large to stay there anyway, x86
can write whole lines without reading them: a third less traffic for a kernel with one input. That pays where a
kernel waits for memory, and only for neighbours one after the other, because a line that is written in part is slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ....foundation.ir.ops import AtomicOp
from ....lower.kernel_ir import Buffer, Ins, Kernel, walk
from .. import abi
from .instructions import STORAGE, SUFFIX, from_storage, to_storage, ty, vec
from .uniformity import EACH, ROW, SAME, WIDE, Val, each_once

if TYPE_CHECKING:
    from .values import LaneValues

ZERO = "@vyre_zero"
"""Eight bytes of zero, for loads that are out of bounds."""
TRAP = "vyre_trap"
_NARROW = ("i8", "i16")
_SIZES = {"i8": 1, "i16": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}
_RMW = {
    AtomicOp.ADD: "add",
    AtomicOp.OR: "or",
    AtomicOp.AND: "and",
    AtomicOp.XOR: "xor",
    AtomicOp.EXCHANGE: "xchg",
}
PIECE = 16
"""Bytes of one such store of a vector, which must be aligned to them. NumPy's arrays are, but not to a whole line."""
FENCE = "llvm.x86.sse.sfence"
_LIGHT = 64
"""Instructions of a body that may wait for memory. Larger ones wait for themselves, and would be compiled twice."""
_SCALARS = {"i32": "i32", "float": "i32", "i64": "i64", "double": "i64"}


def tested(e: LaneValues, ins: Ins) -> bool:
    """Whether an access compares its index with the length."""
    return ins.guarded and not (e.fast and ins.covered)


def load(e: LaneValues, ins: Ins) -> Val:
    if ins in e.given:
        return Val(SAME, (e.given[ins],))
    index, test = e.value(ins.args[0]), tested(e, ins)
    if index.kind == SAME:
        return Val(SAME, (_load_one(e, ins, index.parts[0], test, None, _far(e, ins)[0]),))
    if index.kind == EACH or e.width == 1:
        each = zip(index.parts, e.mask or (None,) * e.parts, _far(e, ins), strict=True)
        return Val(EACH, each_once(each, lambda imf: _load_one(e, ins, imf[0], test, *imf[1:])))
    masks = _masks(e, ins.attr, index, test)
    if index.kind == ROW and masks[0] is None:
        return Val(WIDE, each_once(_far(e, ins), lambda far: _load_row(e, ins, far)))
    if index.kind == WIDE and masks[0] is None and (stride := e.variance.stride(ins.args[0])):
        e.strided.add(ins)
        return Val(WIDE, each_once(index.parts, lambda at: _load_apart(e, ins, at, stride)))
    some = zip(index.parts, masks, strict=True)
    return Val(WIDE, each_once(some, lambda im: _load_vector(e, ins, index.kind, im[0], im[1])))


def _load_vector(e: LaneValues, ins: Ins, form: int, index: str, mask: str | None) -> str:
    buffer: Buffer = ins.attr
    storage = STORAGE[buffer.element.name]
    kind, flags = vec(storage, e.width), ty("bool", e.width)
    if form != ROW:
        raw = _gather(e, buffer, index, mask)
    else:
        name = f"llvm.masked.load.v{e.width}{SUFFIX[storage]}.p0"
        e.w.declare(kind, name, "ptr", flags, kind)
        at = _row_address(e, buffer, index)
        raw = e.w.new(f"call {kind} @{name}(ptr align {_SIZES[storage]} {at}, {flags} {mask}, {kind} zeroinitializer)")
    return _loaded(e, ins, raw, e.width)


def _load_row(e: LaneValues, ins: Ins, far: str) -> str:
    storage = STORAGE[ins.attr.element.name]
    at = address(e, ins.attr, far)
    raw = e.w.new(f"load {vec(storage, e.width)}, ptr {at}, align {_SIZES[storage]}{_steady(e, ins)}")
    return _loaded(e, ins, raw, e.width)


def _pieces(e: LaneValues, buffer: Buffer, indices: str, stride: int) -> Iterator[tuple[int, str]]:
    """Neighbours in memory that hold `width` elements `stride` apart, as vectors: how far behind the first of these
    each begins, and its address. The last one ends with the last of them."""
    base = e.w.new(f"extractelement {ty('u32', e.width)} {indices}, i32 0")
    at = address(e, buffer, e.far(base))
    for k in range(stride):
        first = min(k * e.width, (e.width - 1) * (stride - 1))
        yield first, e.w.new(f"getelementptr {STORAGE[buffer.element.name]}, ptr {at}, i64 {first}") if first else at


def _load_apart(e: LaneValues, ins: Ins, indices: str, stride: int) -> str:
    """Elements that lie so far apart, of all lanes: all that lie between are read, and a few shuffles take these."""
    w, storage, width = e.w, STORAGE[ins.attr.element.name], e.width
    kind, found, have = vec(storage, width), "", 0
    for first, at in _pieces(e, ins.attr, indices, stride):
        raw = w.new(f"load {kind}, ptr {at}, align {_SIZES[storage]}{_steady(e, ins)}")
        lanes = [k if k < have else width * bool(found) + k * stride - first for k in range(width)]
        end = (first + width - 1) // stride + 1
        picks = ", ".join(f"i32 {x if k < end else 'poison'}" for k, x in enumerate(lanes))
        found, have = w.new(f"shufflevector {kind} {found or raw}, {kind} {raw}, <{width} x i32> <{picks}>"), end
    return _loaded(e, ins, found, width)


def _loaded(e: LaneValues, ins: Ins, raw: str, width: int) -> str:
    """What was read, in a register. A value that steers is the same wherever it is used, also if a thread writes."""
    element = ins.attr.element.name
    if ins in e.steering:
        raw = e.w.new(f"freeze {vec(STORAGE[element], width)} {raw}")
    return from_storage(e.w, element, raw, width)


def store(e: LaneValues, ins: Ins) -> None:
    buffer, test = ins.attr, tested(e, ins)
    source = ins.args[1]
    stays = buffer.shared and buffer.element.name in ("f32", "f64")
    if stays and source.op == "quiet" and id(source.args[0]) in e.known:
        source = source.args[0]  # what is made of it is, before anybody sees bits
    index, value = e.value(ins.args[0]), e.value(source)
    if index.kind in (SAME, EACH) or e.width == 1:
        _store_one(e, ins, index, value, test)
        return
    element, storage = buffer.element.name, STORAGE[buffer.element.name]
    kind, flags = vec(storage, e.width), ty("bool", e.width)
    values = e.wide(value, ins.args[1].dtype)
    masks = _masks(e, buffer, index, test)
    far = _far(e, ins) if index.kind == ROW and masks[0] is None else ()
    stride = e.variance.stride(ins.args[0]) if index.kind == WIDE and masks[0] is None and storage in _SCALARS else 0
    for p, mask in enumerate(masks):
        raw = to_storage(e.w, element, values[p], e.width)
        if stride:
            e.strided.add(ins)
            _store_apart(e, ins, index.parts[p], raw, stride)
            continue
        if index.kind == ROW:
            if mask is None:
                at = address(e, buffer, far[p])
                if not _stream_row(e, ins, raw, at):
                    e.w.line(f"store {kind} {raw}, ptr {at}, align {_SIZES[storage]}")
                continue
            at = _row_address(e, buffer, index.parts[p])
            mask = e.unknown_mask(mask) if storage in _NARROW else mask
            name, where = f"llvm.masked.store.v{e.width}{SUFFIX[storage]}.p0", "ptr"
        else:
            at = _addresses(e, buffer, index.parts[p])
            name, where = f"llvm.masked.scatter.v{e.width}{SUFFIX[storage]}.v{e.width}p0", vec("ptr", e.width)
            mask = mask or "splat (i1 true)"
        e.w.declare("void", name, kind, where, flags)
        e.w.line(f"call void @{name}({kind} {raw}, {where} align {_SIZES[storage]} {at}, {flags} {mask})")


def _store_apart(e: LaneValues, ins: Ins, indices: str, raw: str, stride: int) -> None:
    """To places so far apart, of all lanes: what lies between is not touched."""
    storage, width = STORAGE[ins.attr.element.name], e.width
    kind, flags, name = vec(storage, width), ty("bool", width), f"llvm.masked.store.v{width}{SUFFIX[storage]}.p0"
    e.w.declare("void", name, kind, "ptr", flags)
    begin = 0
    for first, at in _pieces(e, ins.attr, indices, stride):
        end = (first + width - 1) // stride + 1
        lanes = {k * stride - first: k for k in range(begin, end)}
        picks = ", ".join(f"i32 {lanes.get(x, 'poison')}" for x in range(width))
        mask = ", ".join(f"i1 {'true' if x in lanes else 'false'}" for x in range(width))
        moved = e.w.new(f"shufflevector {kind} {raw}, {kind} poison, <{width} x i32> <{picks}>")
        e.w.line(f"call void @{name}({kind} {moved}, ptr align {_SIZES[storage]} {at}, {flags} <{mask}>)")
        begin = end


def _masks(e: LaneValues, buffer: Buffer, index: Val, test: bool) -> list[str | None]:
    """For each vector the lanes that access memory; None: all of them."""
    found: list[str | None] = list(e.mask) if e.mask else [None] * e.parts
    if not test:
        return found
    length = e.splat(e.length(buffer), "i32")
    word, flags = ty("u32", e.width), ty("bool", e.width)
    for p, i in enumerate(e.wide(index, "u32")):
        inside, mask = e.w.new(f"icmp ult {word} {i}, {length}"), found[p]
        found[p] = inside if mask is None else e.w.new(f"and {flags} {mask}, {inside}")
    return found


def _steady(e: LaneValues, ins: Ins) -> str:
    """Memory that the kernel does not change; a caller's thread may, without a promise about the result."""
    return "" if ins.attr.writable or ins in e.steering else ", !invariant.load !0"


def _far(e: LaneValues, ins: Ins) -> tuple[str, ...]:
    """The index of an access in 64 bits, of a row its base. Steps that do not wrap are computed in 64 bits already:
    then the compiler sees that an address moves along with a counter."""
    at = e.variance.chosen(ins.args[0])
    index = e.value(at)
    whole = frozenset[Ins]() if tested(e, ins) else ins.whole

    def steps(v: Ins) -> tuple[str, ...]:
        val = e.value(v)
        if v not in whole or val.kind == WIDE or any(id(a) not in e.known for a in v.args):
            return tuple(map(e.far, val.parts))
        a, b = (x if len(x) == len(val.parts) else x * len(val.parts) for x in map(steps, v.args))
        return each_once(zip(a, b, strict=True), lambda xy: e.w.new(f"{v.op} i64 {xy[0]}, {xy[1]}"))

    return tuple(map(e.far, index.parts)) if at not in whole else steps(at)


def address(e: LaneValues, buffer: Buffer, far: str) -> str:
    return e.w.new(f"getelementptr {STORAGE[buffer.element.name]}, ptr {e.pointer(buffer)}, i64 {far}")


def _row_address(e: LaneValues, buffer: Buffer, base: str) -> str:
    """Of the first element of a row. Where its first lanes are not active the base may lie below zero, wrapped."""
    far = e.far(base)
    if base.startswith("%"):
        below = e.w.new(f"icmp ugt i32 {base}, {-e.width}")
        far = e.w.new(f"select i1 {below}, i64 {e.w.new(f'sext i32 {base} to i64')}, i64 {far}")
    return address(e, buffer, far)


def _addresses(e: LaneValues, buffer: Buffer, indices: str) -> str:
    """A vector of addresses. Machines add signed 32-bit offsets: half the range goes to the base."""
    storage, base = STORAGE[buffer.element.name], e.pointer(buffer)
    middle = e.enter(f"%middle_{base[1:]}_{storage}", f"getelementptr {storage}, ptr {base}, i64 2147483648")
    word, wide = ty("u32", e.width), ty("u64", e.width)
    signed = e.w.new(f"sext {word} {e.w.new(f'xor {word} {indices}, splat (i32 -2147483648)')} to {wide}")
    return e.w.new(f"getelementptr {storage}, ptr {middle}, {wide} {signed}")


def _gather(e: LaneValues, buffer: Buffer, indices: str, mask: str | None) -> str:
    storage = STORAGE[buffer.element.name]
    if storage in ("i8", "i16"):
        return _gather_narrow(e, buffer, indices, mask, storage)
    return _gather_from(e, _addresses(e, buffer, indices), storage, mask)


def _gather_from(e: LaneValues, addresses: str, storage: str, mask: str | None) -> str:
    kind, flags, where = vec(storage, e.width), ty("bool", e.width), vec("ptr", e.width)
    name = f"llvm.masked.gather.v{e.width}{SUFFIX[storage]}.v{e.width}p0"
    e.w.declare(kind, name, where, flags, kind)
    return e.w.new(
        f"call {kind} @{name}({where} align {_SIZES[storage]} {addresses}, {flags} {mask or 'splat (i1 true)'}, "
        f"{kind} zeroinitializer)"
    )


def _gather_narrow(e: LaneValues, buffer: Buffer, indices: str, mask: str | None, storage: str) -> str:
    """Machines gather words: take the aligned ones that hold the elements, and shift. They are in the same page."""
    w, base = e.w, e.pointer(buffer)
    name = base[1:]
    shift = _SIZES[storage] - 1
    whole = e.enter(f"%whole_{name}", f"call ptr @llvm.ptrmask.p0.i64(ptr {base}, i64 -4)")
    w.declare("ptr", "llvm.ptrmask.p0.i64", "ptr", "i64")
    address = e.enter(f"%address_{name}", f"ptrtoint ptr {base} to i64")
    low = e.enter(f"%low_{name}", f"and i64 {address}, 3")
    skipped = e.enter(f"%skipped_{name}", f"trunc i64 {low} to i32")
    if shift:
        skipped = e.enter(f"%skipped2_{name}", f"lshr i32 {skipped}, 1")
    word, wide = ty("u32", e.width), ty("u64", e.width)
    at = w.new(f"add {word} {indices}, {e.splat(skipped, 'i32')}")
    per_word = 2 - shift  # elements in a word: 4 or 2, as a power of two
    words = w.new(f"zext {word} {w.new(f'lshr {word} {at}, splat (i32 {per_word})')} to {wide}")
    raw = _gather_from(e, w.new(f"getelementptr i32, ptr {whole}, {wide} {words}"), "i32", mask)
    place = w.new(f"and {word} {at}, splat (i32 {(1 << per_word) - 1})")
    by = w.new(f"shl {word} {place}, splat (i32 {3 + shift})")
    return w.new(f"trunc {word} {w.new(f'lshr {word} {raw}, {by}')} to {vec(storage, e.width)}")


# ---- one location ---------------------------------------------------------------------------------------------------


def _load_one(e: LaneValues, ins: Ins, index: str, test: bool, mask: str | None, far: str) -> str:
    """`mask`: of the vector that needs it, which may be empty although its block is not."""
    buffer: Buffer = ins.attr
    storage = STORAGE[buffer.element.name]
    at = address(e, buffer, far)
    if test:
        inside = e.w.new(f"icmp ult i32 {index}, {e.length(buffer)}")
        at = e.w.new(f"select i1 {inside}, ptr {at}, ptr {ZERO}")
    elif mask is not None:
        at = e.w.new(f"select i1 {e.any((mask,))}, ptr {at}, ptr {ZERO}")
    raw = e.w.new(f"load {storage}, ptr {at}, align {_SIZES[storage]}{_steady(e, ins)}")
    return _loaded(e, ins, raw, 1)


def _store_one(e: LaneValues, ins: Ins, index: Val, value: Val, test: bool) -> None:
    """All lanes of a vector store to one location: the last one wins."""
    buffer = ins.attr
    each, far = index.parts, _far(e, ins)
    if index.kind == SAME and value.kind != SAME:  # else one location, one value
        each, far = each * e.parts, far * e.parts
    for p, i in enumerate(each):
        conditions = [e.w.new(f"icmp ult i32 {i}, {e.length(buffer)}")] if test else []
        if e.mask is not None:
            conditions.append(e.any(e.mask if len(each) == 1 else (e.mask[p],)))
        with _only_if(e, conditions):
            if value.kind in (SAME, EACH):
                x = value.parts[p if value.kind == EACH else 0]
            elif e.width == 1:
                x = value.parts[p]
            else:
                vector, mask = e.wide(value, ins.args[1].dtype)[p], None if e.mask is None else e.mask[p]
                x = _last(e, vector, ins.args[1].dtype, mask)
            raw = to_storage(e.w, buffer.element.name, x, 1)
            storage = STORAGE[buffer.element.name]
            at = address(e, buffer, far[p])
            if not _stream_one(e, ins, raw, at):
                e.w.line(f"store {storage} {raw}, ptr {at}, align {_SIZES[storage]}")


@contextmanager
def _only_if(e: LaneValues, conditions: list[str]) -> Iterator[None]:
    """A block for when all conditions hold; facts learned in it are forgotten behind it."""
    if not conditions:
        yield
        return
    both = conditions[0]
    for c in conditions[1:]:
        both = e.w.new(f"and i1 {both}, {c}")
    yes, no, mark = e.w.fresh("in"), e.w.fresh("out"), len(e.trail)
    e.branch(both, yes, no)
    e.start(yes)
    yield
    e.jump(no)
    e.start(no)
    e.leave(mark)


def _last(e: LaneValues, vector: str, dtype: str, mask: str | None) -> str:
    """The value of the last active lane."""
    if e.width == 1:
        return vector
    lane = str(e.width - 1) if mask is None else _last_active_lane(e, mask)
    return e.w.new(f"extractelement {ty(dtype, e.width)} {vector}, i32 {lane}")


def _last_active_lane(e: LaneValues, mask: str) -> str:
    """The number of the last active lane, of one at least; always that of some lane.

    LLVM may take an element before the test that a lane is active, with no lane active and no number that it counts.
    What it takes then is not used, but `freeze` and the mask keep its load within the vector: without them LLVM 22
    loads from anywhere above the stack on processors where it counts with `bsr`.
    """
    t = f"i{e.width}"
    lane = e.w.new(f"sub {t} {e.width - 1}, {e.w.call(t, f'llvm.ctlz.{t}', (t, e.bits(mask)), ('i1', 'true'))}")
    lane = e.w.new(f"and {t} {e.w.new(f'freeze {t} {lane}')}, {e.width - 1}")
    return lane if t == "i32" else e.w.new(f"{'zext' if e.width < 32 else 'trunc'} {t} {lane} to i32")


# ---- atomics --------------------------------------------------------------------------------------------------------


def atomic(e: LaneValues, ins: Ins) -> Val:
    """Lane by lane, in the order of lanes."""
    (op, buffer), test = ins.attr, tested(e, ins)
    vals = [e.value(a) for a in ins.args]
    if e.variance.block == 1:
        return Val(SAME, (_guarded_rmw(e, ins, [v.parts[0] for v in vals], test),))
    index = vals[0]
    if not ins.used and index.kind == SAME and op.order_free and e.width > 1:
        _one_for_all(e, ins, index.parts[0], vals[1], test)
        return Val(SAME, ("0",))
    columns = [e.wide(v, a.dtype) for v, a in zip(vals, ins.args, strict=True)]
    if e.width == 1:
        alone = e.mask or (None,) * e.parts
        old = [
            _guarded_rmw(e, ins, list(args), test, m) for args, m in zip(zip(*columns, strict=True), alone, strict=True)
        ]
        return Val(EACH, tuple(old))
    masks = _masks(e, buffer, index, test)
    olds = [_lane_by_lane(e, ins, [column[p] for column in columns], mask) for p, mask in enumerate(masks)]
    return Val(WIDE, tuple(olds)) if ins.used else Val(SAME, ("0",))


def _guarded_rmw(e: LaneValues, ins: Ins, args: list[str], test: bool, mask: str | None = None) -> str:
    """One lane by itself."""
    before = e.block
    buffer = ins.attr[1]
    conditions = [e.w.new(f"icmp ult i32 {args[0]}, {e.length(buffer)}")] if test else []
    conditions += [] if mask is None else [mask]
    with _only_if(e, conditions):
        old = _rmw(e, ins, args)
        after = e.block
    if not conditions:
        return old
    return e.w.new(f"phi i32 [ 0, %{before} ], [ {old}, %{after} ]") if ins.used else "0"


def _rmw(e: LaneValues, ins: Ins, args: list[str]) -> str:
    """Read, change, write one location; gives the old value. Workgroups and workers have memory of their own."""
    (op, buffer), w = ins.attr, e.w
    at = address(e, buffer, e.far(args[0]))
    signed = ins.dtype == "i32"
    if buffer.shared or (buffer.private and e.fast):
        old = w.new(f"load i32, ptr {at}, align 4")
        match op:
            case AtomicOp.EXCHANGE:
                new = args[1]
            case AtomicOp.COMPARE_EXCHANGE:
                same = w.new(f"icmp eq i32 {old}, {args[2]}")
                new = w.new(f"select i1 {same}, i32 {args[1]}, i32 {old}")
            case AtomicOp.MIN | AtomicOp.MAX:
                name = f"llvm.{'s' if signed else 'u'}{op.name.lower()}.i32"
                new = w.call("i32", name, ("i32", old), ("i32", args[1]))
            case _:
                new = w.new(f"{_RMW[op]} i32 {old}, {args[1]}")
        w.line(f"store i32 {new}, ptr {at}, align 4")
        return old
    if op is AtomicOp.COMPARE_EXCHANGE:
        pair = w.new(f"cmpxchg ptr {at}, i32 {args[2]}, i32 {args[1]} monotonic monotonic, align 4")
        return w.new(f"extractvalue {{ i32, i1 }} {pair}, 0")
    name = _RMW.get(op) or ("" if signed else "u") + op.name.lower()
    return w.new(f"atomicrmw {name} ptr {at}, i32 {args[1]} monotonic, align 4")


def _lane_by_lane(e: LaneValues, ins: Ins, args: list[str], mask: str | None) -> str:
    """A loop over the active lanes; operands and results go through memory.

    It stays a loop: processors learn for each instruction whether it waits for a store before it, and sixteen copies of
    one that adds to a bin were measured to be 15 times slower than one copy.
    """
    w, kind, t = e.w, ty("u32", e.width), f"i{e.width}"
    nbytes = 4 * e.width
    slots = [e.slot(f"[{e.width} x i32]", nbytes) for _ in args]
    for slot, x in zip(slots, args, strict=True):
        w.line(f"store {kind} {x}, ptr {slot}, align {nbytes}")
    result = e.slot(f"[{e.width} x i32]", nbytes) if ins.used else ""
    if result:
        w.line(f"store {kind} zeroinitializer, ptr {result}, align {nbytes}")
    before, body, done = e.block, w.fresh("lane"), w.fresh("lane")
    if mask is None:
        lane, after = f"%{w.fresh('lane')}", f"%{w.fresh('lane')}"
        e.jump(body)
        e.start(body)
        w.line(f"{lane} = phi i64 [ 0, %{before} ], [ {after}, %{body} ]")
        w.line(f"{after} = add i64 {lane}, 1")
        more = w.new(f"icmp ne i64 {after}, {e.width}")
    else:
        left, after, bits = f"%{w.fresh('left')}", f"%{w.fresh('left')}", e.bits(mask)
        e.branch(w.new(f"icmp ne {t} {bits}, 0"), body, done)
        e.start(body)
        w.line(f"{left} = phi {t} [ {bits}, %{before} ], [ {after}, %{body} ]")
        lane = w.call(t, f"llvm.cttz.{t}", (t, left), ("i1", "true"))
        lane = lane if t == "i64" else w.new(f"zext {t} {lane} to i64")
        w.line(f"{after} = and {t} {left}, {w.new(f'sub {t} {left}, 1')}")
        more = w.new(f"icmp ne {t} {after}, 0")
    mine = [w.new(f"load i32, ptr {w.new(f'getelementptr i32, ptr {slot}, i64 {lane}')}, align 4") for slot in slots]
    old = _rmw(e, ins, mine)
    if result:
        w.line(f"store i32 {old}, ptr {w.new(f'getelementptr i32, ptr {result}, i64 {lane}')}, align 4")
    e.w.line(f"br i1 {more}, label %{body}, label %{done}, !llvm.loop !1")
    e.start(done)
    return w.new(f"load {kind}, ptr {result}, align {nbytes}") if result else ""


_NEUTRAL = {AtomicOp.AND: (-1, -1), AtomicOp.MIN: (-1, 0x7FFFFFFF), AtomicOp.MAX: (0, -0x80000000)}
"""Identities of operations, for u32 and i32; 0 for the others."""


def _one_for_all(e: LaneValues, ins: Ins, index: str, value: Val, test: bool) -> None:
    """All lanes change one location and none uses the old value: combine what they bring, and go there once."""
    (op, buffer), w = ins.attr, e.w
    signed, kind, flags = ins.dtype == "i32", ty("u32", e.width), ty("bool", e.width)
    reduce = _RMW.get(op) or ("s" if signed else "u") + op.name.lower()
    total = ""
    for p, x in enumerate(e.wide(value, ins.dtype)):
        if e.mask is not None:
            neutral = _NEUTRAL.get(op, (0, 0))[signed]
            x = w.new(f"select {flags} {e.mask[p]}, {kind} {x}, {kind} splat (i32 {neutral})")
        mine = w.call("i32", f"llvm.vector.reduce.{reduce}.v{e.width}i32", (kind, x))
        if not total:
            total = mine
        elif op in _RMW:
            total = w.new(f"{reduce} i32 {total}, {mine}")
        else:
            total = w.call("i32", f"llvm.{reduce}.i32", ("i32", total), ("i32", mine))
    conditions = [w.new(f"icmp ult i32 {index}, {e.length(buffer)}")] if test else []
    if e.mask is not None:
        conditions.append(e.any(e.mask))
    with _only_if(e, conditions):
        _rmw(e, ins, [index, total])


# ---- traps ----------------------------------------------------------------------------------------------------------


def trap(e: LaneValues, ins: Ins) -> None:
    """Every active lane says what happened. Where lanes wait for each other, everything stops."""
    w = e.w
    told = [e.value(ins.args[0]), *(e.id("gid", axis) for axis in e.kernel.axes)]
    code = f"i32 {e.kernel.traps.index(ins.attr)}"
    if e.variance.block == 1:
        words = ", ".join(f"i32 {val.parts[0]}" for val in told)
        w.line(f"call void @{TRAP}(ptr %shared, {code}, {words})")
    else:
        flags, vector = ty("bool", e.width), ty("u32", e.width)
        masks, columns = e.mask or e.ones(), [e.wide(val, "u32") for val in told]
        w.declared[f"{TRAP}.{e.width}"] = _of_each_lane(e.width)
        for mask, *words_of in zip(masks, *columns, strict=True):
            words = ", ".join(f"{vector} {word}" for word in words_of)
            w.line(f"call void @{TRAP}.{e.width}(ptr %shared, {code}, {flags} {mask}, {words})")
    if e.kernel.meets:
        w.line("ret i1 true")
        e.open = False


def _of_each_lane(width: int) -> str:
    """A function that tells of each lane of a mask."""
    flags, vector = ty("bool", width), ty("u32", width)
    parameters = ", ".join(f"{vector} %{name}" for name in ("address", "x", "y", "z"))
    lines = [f"define internal void @{TRAP}.{width}(ptr %shared, i32 %code, {flags} %mask, {parameters})"
             " cold noinline nounwind {", "entry:", "  br label %look", "look:",
             "  %k = phi i32 [ 0, %entry ], [ %next, %after ]",
             f"  %active = extractelement {flags} %mask, i32 %k", "  br i1 %active, label %tell, label %after",
             "tell:"]  # fmt: skip
    lines += [f"  %one.{name} = extractelement {vector} %{name}, i32 %k" for name in ("address", "x", "y", "z")]
    arguments = ", ".join(f"i32 %one.{name}" for name in ("address", "x", "y", "z"))
    lines += [f"  call void @{TRAP}(ptr %shared, i32 %code, {arguments})", "  br label %after", "after:",
              "  %next = add i32 %k, 1", f"  %end = icmp eq i32 %next, {width}",
              "  br i1 %end, label %done, label %look", "done:", "  ret void", "}"]  # fmt: skip
    return "\n".join(lines)


# ---- past the cache --------------------------------------------------------------------------------------------------


def streamed(kernel: Kernel) -> frozenset[Ins]:
    """The one store of each buffer that the kernel fills from the first element to the last."""
    items = list(walk(kernel.body))
    if len(items) > _LIGHT:
        return frozenset()
    stores = [i for i in items if isinstance(i, Ins) and i.op == "store"]
    count = Counter(i.attr for i in stores)
    return frozenset(i for i in stores if i.attr.name in kernel.stored and not i.attr.shared and count[i.attr] == 1)


def _stream_row(e: LaneValues, ins: Ins, raw: str, at: str) -> bool:
    """Store a vector at `at`, if it may go past the cache where the buffer itself is aligned."""
    storage, size, index = STORAGE[ins.attr.element.name], ins.attr.element.size, ins.args[0]
    if ins not in e.streamed or index.op != "gid" or e.width * size % PIECE or e.kernel.workgroup[0] * size % PIECE:
        return False
    kind, lanes = vec(storage, e.width), PIECE // size
    e.past[ins.attr] = PIECE
    for first in range(0, e.width, lanes):
        part = raw
        if lanes < e.width:
            chosen = ", ".join(f"i32 {k}" for k in range(first, first + lanes))
            part = e.w.new(f"shufflevector {kind} {raw}, {kind} poison, <{lanes} x i32> <{chosen}>")
        where = e.w.new(f"getelementptr i8, ptr {at}, i64 {first * size}")
        e.w.line(f"store {vec(storage, lanes)} {part}, ptr {where}, align {PIECE}, !nontemporal !3")
    return True


def _stream_one(e: LaneValues, ins: Ins, raw: str, at: str) -> bool:
    """Store one element, if it may go past the cache: the next one follows at once, in the same loop."""
    storage = STORAGE[ins.attr.element.name]
    if ins not in e.streamed or storage not in _SCALARS or e.variance.block > 1 or ins.args[0].op in ("gid", "wid"):
        return False
    word = _SCALARS[storage]
    raw = raw if word == storage else e.w.new(f"bitcast {storage} {raw} to {word}")
    e.past[ins.attr] = ins.attr.element.size
    e.w.line(f"store {word} {raw}, ptr {at}, align {ins.attr.element.size}, !nontemporal !3")
    return True


def streaming_version(e: LaneValues, past: dict[Buffer, int]) -> str:
    """Which version runs the tiles of a launch: the one whose stores go past the cache where the host asks for it and
    the memory is aligned."""
    wanted = e.enter("%stream", f"load i64, ptr {e.word(abi.STREAM)}")
    ok = e.enter("%streams", f"icmp ne i64 {wanted}, 0")
    for buffer in (b for b, alignment in past.items() if alignment == PIECE):
        address = e.enter(f"%address{buffer.slot}", f"ptrtoint ptr {e.pointer(buffer)} to i64")
        low = e.enter(f"%low{buffer.slot}", f"and i64 {address}, {PIECE - 1}")
        even = e.enter(f"%even{buffer.slot}", f"icmp eq i64 {low}, 0")
        ok = e.enter(f"%streams{buffer.slot}", f"and i1 {ok}, {even}")
    return e.enter("%body", f"select i1 {ok}, ptr @stream, ptr @fast")

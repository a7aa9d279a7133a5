"""A slow, direct interpreter of the kernel form, against which lowering is proved without any emitter.

It is as unkind as a real machine may be: a NaN that arithmetic makes has a sign and a payload until it is made quiet,
memory that the kernel promises to store is full of rubbish at first, workgroups come in tiles whose checks decide which
accesses are not tested, and an access that is not tested must be in bounds. If asked, another thread writes to bound
memory all the time.
"""

import random
import struct
from itertools import count, product

from vyre.backends.reference.engines.memory import Memory
from vyre.foundation.ir import rounding
from vyre.foundation.ir.dtypes import BY_NAME
from vyre.foundation.ir.ops import AtomicOp, ReduceOp
from vyre.foundation.meaning import arith
from vyre.foundation.meaning.subgroup import SUBGROUP_WIDTH, reduction_offsets
from vyre.lower.instructions import function_of, require
from vyre.lower.kernel_ir import PURE, If, Ins, Loop, walk
from vyre.lower.length_exprs import fills, plain_plane, words_of
from vyre.lower.passes.full_stores import share_of
from vyre.lower.registers import bits_of, value_of

DIRTY = {
    "f32": struct.unpack("<f", struct.pack("<I", 0xFFC12345))[0],
    "f64": struct.unpack("<d", struct.pack("<Q", 0xFFF8000012345678))[0],
}
LAYOUT = {
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q", "bool": "I",
    "f16": "e", "f32": "f", "f64": "d",
}  # fmt: skip
IDENTITY = {
    AtomicOp.ADD: ReduceOp.ADD, AtomicOp.OR: ReduceOp.OR, AtomicOp.AND: ReduceOp.AND, AtomicOp.XOR: ReduceOp.XOR,
    AtomicOp.MIN: ReduceOp.MIN, AtomicOp.MAX: ReduceOp.MAX,
}  # fmt: skip


class Trapped(Exception):
    """(index of the tag, address, gid)"""


def interpret(kernel, program, inputs, grid, output_elements=None, seed=0):
    """The output bytes of a dispatch, as the reference's `run` gives them."""
    return Dispatch(kernel, program, inputs, grid, output_elements, seed).run()


class Dispatch:
    """One run. Afterwards, `reached` has the largest index of each buffer, and `untested` counts accesses.

    `restless` are numbers: what a load of bound integers reads is one of them, another one each time. Of long loops
    only the first and the last turns are run then.
    """

    def __init__(self, kernel, program, inputs, grid, output_elements=None, seed=0, restless=()):
        self.kernel, self.grid, self.rng = kernel, grid, random.Random(seed)
        self.restless = restless
        self.taken = {}
        memory = self.memory = Memory.build(program, inputs, output_elements)
        self.data = {b: memory.buffers[b.name].data for b in kernel.buffers if not b.shared}
        self.length = {b: b.count if b.shared else memory.buffers[b.name].count for b in kernel.buffers}
        steps = [i for i in (*walk(kernel.body), *(kernel.check.body if kernel.check else ())) if isinstance(i, Ins)]
        for i in steps:
            require(i)
        self.functions = {i: function_of(i, kernel.soft_flush) for i in steps if i.op in PURE and i.args}
        self.fits = False
        self.reached = {}
        self.untested = 0

    def run(self):
        self.poison()
        gx, gy, gz = self.grid
        groups = [(k % gx, k // gx % gy, k // (gx * gy)) for k in range(gx * gy * gz)]
        while groups:
            n = self.rng.randint(1, len(groups))
            tile, groups = groups[:n], groups[n:]
            self.fits = self.check(tile)
            for wg in tile:
                self.group(wg)
        self.merge()
        return [bytes(o) for o in self.memory.outputs()]

    def poison(self):
        """Rubbish where the kernel promises to store, and copies for private buffers."""
        kernel = self.kernel
        extent = [g * w for g, w in zip(self.grid, kernel.workgroup, strict=True)]
        self.copies = {}
        for b in kernel.buffers:
            if b.name in kernel.stored:
                assert self.memory.buffers[b.name].decl.is_host_output
                share = share_of(kernel.stored[b.name], [self.length[o] for o in kernel.buffers])
                if extent[0] * share >= self.length[b] and extent[1] == extent[2] == 1:
                    n = self.length[b] * b.element.size
                    self.data[b][:n] = b"\xa5" * n
            if b.name in kernel.planes and self.is_filled(b, plain_plane(kernel.planes[b.name]), extent):
                assert self.memory.buffers[b.name].decl.is_host_output
                n = self.length[b] * b.element.size
                self.data[b][:n] = b"\xa5" * n
            if b.private:
                op = next(i.attr[0] for i in walk(kernel.body) if i.op == "atomic" and i.attr[1] is b)
                identity = arith.reduce_identity(IDENTITY[op], b.element)
                blank = struct.pack("<" + LAYOUT[b.element.name], identity) * self.length[b]
                self.copies[b] = op, [bytearray(blank) for _ in range(2)]

    def is_filled(self, buffer, plane, extent):
        lengths, words = [self.length[b] for b in self.kernel.buffers], {}
        for slot, k in words_of(plane):
            if k >= lengths[slot]:
                return False
            (words[slot, k],) = struct.unpack_from("<I", self.data[self.kernel.buffers[slot]], 4 * k)
        return fills(plane, self.length[buffer], extent, lengths, words)

    def merge(self):
        for b, (op, copies) in self.copies.items():
            f = arith.atomic(op, b.element)
            for copy in copies:
                for k in range(self.length[b]):
                    self.write(b, self.data[b], k, f(self.read(b, self.data[b], k), self.read(b, copy, k)))

    # -- memory

    def read(self, b, data, k):
        if b.element.name == "bf16":
            (half,) = struct.unpack_from("<H", data, 2 * k)
            return value_of("f32", half << 16)
        return struct.unpack_from("<" + LAYOUT[b.element.name], data, k * b.element.size)[0]

    def write(self, b, data, k, value):
        name = b.element.name
        if name == "bf16":
            bits = honest_bits("f32", value)
            assert not bits & 0xFFFF
            return struct.pack_into("<H", data, 2 * k, bits >> 16)
        if name in ("f32", "f64"):
            return struct.pack_into("<" + LAYOUT["u" + name[1:]], data, k * b.element.size, honest_bits(name, value))
        if name == "f16":
            assert honest_bits("f32", value) == 0x7FC00000 or rounding.round_f16(value) == value
        if name in ("u8", "u16", "i8", "i16"):
            assert arith.cast(BY_NAME[b.register], b.element)(value) == value
        if name == "bool":
            assert value in (0, 1)
        return struct.pack_into("<" + LAYOUT[name], data, k * b.element.size, value)

    def is_inside(self, ins, b, k):
        """The test of an access, where the kernel asks for one."""
        inside = k < self.length[b]
        self.reached[b.name] = max(k, self.reached.get(b.name, 0))
        if not ins.guarded or (ins.covered and self.fits):
            assert inside, f"{ins} at {k} of {self.length[b]} elements"
            self.untested += 1
        return inside

    # -- tiles and workgroups

    def check(self, tile):
        if self.kernel.check is None:
            return False
        bounds = {}
        for axis, size in enumerate(self.kernel.workgroup):
            bounds["gid_lo", axis] = min(wg[axis] for wg in tile) * size
            bounds["gid_hi", axis] = max(wg[axis] for wg in tile) * size + size - 1
        env = {}
        for i in self.kernel.check.body:
            assert i.uniform
            if i.op in ("gid_lo", "gid_hi"):
                env[i] = bounds[i.op, i.attr]
            elif i.op == "load":
                assert i.guarded
                assert not i.covered
                assert not i.attr.writable
                env[i] = self.load(i, env, self.data)
            elif i.op == "len":
                env[i] = self.length[i.attr]
            else:
                env[i] = self.pure(i, env)
        loads = self.kernel.check.loads
        self.taken = {load: env[found] for load, found in (*loads.items(), *((v, v) for v in loads.values()))}
        return env[self.kernel.check.ok]

    def body(self):
        return self.kernel.body

    def group(self, wg):
        k = self.kernel
        self.memory_here = self.data | {b: bytearray(b.count * b.element.size) for b in k.buffers if b.shared}
        for b, (_, copies) in self.copies.items():
            self.memory_here[b] = self.rng.choice(copies)
        sx, sy, sz = k.workgroup
        lanes = []
        for linear, (z, y, x) in enumerate(product(range(sz), range(sy), range(sx))):
            ids = {"lid": (x, y, z), "wid": wg, "gid": (wg[0] * sx + x, wg[1] * sy + y, wg[2] * sz + z)}
            env = {"ids": ids, "lane": linear % SUBGROUP_WIDTH}
            lanes.append((env, self.lane(self.body(), env)))
        states = [None] * len(lanes)  # what each lane waits at; False when it is done
        self.rng.shuffle(order := list(range(len(lanes))))
        while True:
            for j in order:
                if states[j] is None:
                    states[j] = next(lanes[j][1], False)
            here = {state for state in states if state is not False}
            if not here:
                break
            assert len(here) == 1, f"lanes wait at {here}"
            (at,) = here
            if at.op == "subgroup":
                self.meet(at, lanes, states)
            states = [None if state is at else state for state in states]

    def meet(self, at, lanes, states):
        t = BY_NAME[at.dtype]
        for base in range(0, len(lanes), SUBGROUP_WIDTH):
            envs = [env for env, _ in lanes[base : base + SUBGROUP_WIDTH]]
            values = [
                tuple(env[a] for a in at.args) if states[base + j] is at else None for j, env in enumerate(envs)
            ] + [None] * (SUBGROUP_WIDTH - len(envs))
            if at.attr == "ballot":
                found = [sum(1 << j for j, x in enumerate(values) if x is not None and x[0])] * SUBGROUP_WIDTH
            elif at.attr == "shuffle":
                found = [values[x[1]] if x and x[1] < SUBGROUP_WIDTH else None for x in values]
                found = [arith.default(t) if x is None else x[0] for x in found]
            else:
                f, identity = arith.reduce(at.attr, t), arith.reduce_identity(at.attr, t)
                found = [identity if x is None else x[0] for x in values]
                for d in reduction_offsets(SUBGROUP_WIDTH):
                    found = [f(found[j], found[j ^ d]) for j in range(SUBGROUP_WIDTH)]
            for env, x in zip(envs, found, strict=False):
                env[at] = dirty(at.dtype, x)

    # -- one lane

    def lane(self, body, env):
        """Runs until a barrier or subgroup operation, which it yields; ends with the lane."""
        yield from self.run_body(body, env)

    def run_body(self, body, env):
        """Whether the lane has ended."""
        for item in body:
            if isinstance(item, If):
                assert isinstance(env[item.condition], bool)
                if (yield from self.run_body(item.then if env[item.condition] else item.orelse, env)):
                    return True
            elif isinstance(item, Loop):
                assert not item.endless or item.live is not None
                turns = range(env[item.start], env[item.stop])
                few = (*turns[:3], *turns[-2:]) if self.restless and len(turns) > 5 else turns
                for k in count() if item.endless and not self.restless else few:
                    if item.live is not None and not env[item.live]:
                        break
                    env[item] = k
                    if (yield from self.run_body(item.body, env)):
                        return True
            elif item.op == "return":
                return True
            elif item.op in ("barrier", "subgroup"):
                yield item
            else:
                self.step(item, env)
        return False

    def step(self, i, env):
        match i.op:
            case "set":
                assert i.args[0].dtype == i.attr.dtype
                env[i.attr] = env[i.args[0]]
            case "get":
                env[i] = env[i.attr]
            case "index":
                env[i] = env[i.attr]
            case "gid" | "lid" | "wid":
                env[i] = env["ids"][i.op][i.attr]
            case "lane":
                env[i] = env["lane"]
            case "len":
                env[i] = self.length[i.attr]
            case "load":
                env[i] = self.load(i, env, self.memory_here)
            case "store":
                at, value = (env[a] for a in i.args)
                if self.is_inside(i, i.attr, at):
                    self.write(i.attr, self.memory_here[i.attr], at, value)
            case "atomic":
                self.atomic(i, env)
            case "trap":
                raise Trapped(self.kernel.traps.index(i.attr), env[i.args[0]], env["ids"]["gid"])
            case _:
                env[i] = self.pure(i, env)

    def load(self, i, env, memory):
        if self.fits and i in self.taken:
            return self.taken[i]
        at = env[i.args[0]]
        assert i.dtype == i.attr.register
        if not self.is_inside(i, i.attr, at):
            return 0.0 if i.dtype in DIRTY else 0
        if self.restless and not i.attr.shared and i.dtype not in DIRTY:
            low, high = i.attr.element.limits
            return low + (self.rng.choice(self.restless) - low) % (high - low + 1)
        return dirty(i.dtype, self.read(i.attr, memory[i.attr], at))

    def atomic(self, i, env):
        op, b = i.attr
        at, value, *expected = (env[a] for a in i.args)
        old = 0
        if self.is_inside(i, b, at):
            old = self.read(b, self.memory_here[b], at)
            if not expected or old == expected[0]:
                self.write(b, self.memory_here[b], at, arith.atomic(op, b.element)(old, value))
        if i.used:
            env[i] = old

    def pure(self, i, env):
        if i.op == "const":
            return value_of(i.dtype, i.attr)
        if i.op in ("div", "rem") and i.dtype not in DIRTY:
            a, b = (env[x] for x in i.args)
            assert b != 0
            assert not (b == -1 and bits_of(i.dtype, a) == 1 << (63 if i.dtype == "i64" else 31))
        if i.op in ("shl", "shr"):
            assert env[i.args[1]] < (64 if i.dtype in ("u64", "i64") else 32)
        found = self.functions[i](*(env[a] for a in i.args))
        return found if i.op == "quiet" else dirty(i.dtype, found)


def dirty(dtype, value):
    return DIRTY[dtype] if dtype in DIRTY and value != value else value


def honest_bits(dtype, value):
    """The bits of a float; a NaN that is not quiet keeps its own."""
    if value != value:
        clean = struct.pack("<d", value) == struct.pack("<d", float("nan"))
        return bits_of(dtype, value) if clean else bits_of(dtype, value) | 1
    return bits_of(dtype, value)

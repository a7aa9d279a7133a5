"""Constants and identities, bit for bit: values known before the kernel runs are computed here.

Integer algebra is exact. Of floats only this much is: x * 1, x / 1, x - 0 and x + -0 are x for every canonical x, the
sign of zero included; a NaN has no payload to lose. x + 0 is not x.
"""

from __future__ import annotations

from ...foundation.ir.visit import Steps, run_nested
from ..instructions import COMMUTES, function_of
from ..kernel_ir import BITS, FLOATS, PURE, UNSIGNED, Body, If, Ins, Kernel, Statement
from ..registers import bits_of, value_of

_ONE = {"f32": 0x3F800000, "f64": 0x3FF0000000000000}
_MINUS_ZERO = {"f32": 1 << 31, "f64": 1 << 63}
_WITH_ITSELF = {"sub": 0, "xor": 0, "and": None, "or": None, "min": None, "max": None}  # None: the operand
_SAME = {"eq": 1, "le": 1, "ge": 1, "ne": 0, "lt": 0, "gt": 0}
_SAME_BITS = frozenset(("add", "sub", "mul"))
"""Steps of i32 and u32 that give the same bits."""
_IDEMPOTENT = frozenset(("flush", "quiet", "abs", "round_f16", "round_bf16", "floor", "ceil", "trunc"))


def fold(kernel: Kernel) -> None:
    """Compute constants, take constant branches, drop statements after a return."""
    _Fold(kernel).run()


class _Fold:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.same: dict[Ins, Ins] = {}
        self.out: Body = []

    def run(self) -> None:
        run_nested(self.body(self.kernel.body))
        self.kernel.body = self.out

    def body(self, items: Body) -> Steps:
        same = self.same
        for item in items:
            if isinstance(item, Ins):
                if item.args and not same.keys().isdisjoint(item.args):
                    item.args = tuple([same.get(a, a) for a in item.args])
                found = self.simpler(item) if item.op in PURE else None
                if found is None:
                    self.out.append(item)
                    if item.op == "return":
                        return
                else:
                    same[item] = found
            elif isinstance(item, If):
                condition = item.condition = same.get(item.condition, item.condition)
                if condition.op == "const":
                    yield self.body(item.then if condition.attr else item.orelse)
                    if self.out and self.out[-1].op == "return":
                        return
                else:
                    self.out.append(item)
                    yield self.inside(item, "then")
                    yield self.inside(item, "orelse")
            else:
                start, stop = same.get(item.start, item.start), same.get(item.stop, item.stop)
                item.start, item.stop = start, stop
                if start is stop or (start.op == stop.op == "const" and start.attr >= stop.attr):
                    continue
                self.out.append(item)
                yield self.inside(item, "body")

    def inside(self, item: Statement, name: str) -> Steps:
        outer, self.out = self.out, []
        yield self.body(getattr(item, name))
        setattr(item, name, self.out)
        self.out = outer

    def const(self, dtype: str, bits: int) -> Ins:
        found = Ins("const", dtype, attr=bits, uniform=True)
        self.out.append(found)
        return found

    def simpler(self, item: Ins) -> Ins | None:
        """The value that an instruction equals, if it is there already or a constant."""
        op, args = item.op, item.args
        if not args:
            return self.id_of(item) if op in ("lid", "gid") else None
        if op == "native":
            return None  # the machine decides its value
        consts = [a.op == "const" for a in args]
        if all(consts):
            found = function_of(item, self.kernel.soft_flush)(*[value_of(a.dtype, a.attr) for a in args])
            return self.const(item.dtype, bits_of(item.dtype, found))
        if op == "select":
            return self.select(item)
        if len(args) == 2:
            a, b = args
            if a is b and a.dtype not in FLOATS:
                if op in _WITH_ITSELF:
                    bits = _WITH_ITSELF[op]
                    return a if bits is None else self.const(item.dtype, bits)
                if op in _SAME:
                    return self.const("bool", _SAME[op])
            if consts[1]:
                return self.with_constant(item, a, b.attr)
            if consts[0] and op in COMMUTES:
                return self.with_constant(item, b, a.attr)
            if consts[0] and a.attr == 0 and op in ("shl", "shr"):
                return a
            return None
        return self.unary(item, args[0])

    def id_of(self, item: Ins) -> Ins | None:
        if self.kernel.workgroup[item.attr] != 1:
            return None
        if item.op == "lid":
            return self.const("u32", 0)
        found = Ins("wid", "u32", attr=item.attr, uniform=True)
        self.out.append(found)
        return found

    def select(self, item: Ins) -> Ins | None:
        condition, a, b = item.args
        if condition.op == "const":
            return a if condition.attr else b
        if a is b:
            return a
        if a.op == b.op == "const":
            if a.attr == b.attr:
                return a
            if item.dtype == "bool" and a.attr:  # select c, true, false
                return condition
        return None

    def with_constant(self, item: Ins, x: Ins, k: int) -> Ins | None:
        """`x op k`, where k may stand on either side if the operator commutes."""
        op, t = item.op, x.dtype
        if t in FLOATS:
            neutral = {"mul": _ONE[t], "div": _ONE[t], "sub": 0, "add": _MINUS_ZERO[t]}.get(op)
            return x if neutral == k and item.dtype == t else None
        ones = (1 << BITS[t]) - 1
        if k == 0:
            if op in ("add", "sub", "or", "xor", "shl", "shr"):
                return x
            if op in ("mul", "and", "mulhi"):
                return self.const(item.dtype, 0)
            if t in UNSIGNED:
                if op == "max":
                    return x
                if op == "min":
                    return self.const(t, 0)
                if op in ("lt", "ge"):
                    return self.const("bool", op == "ge")
            if op == "ne" and x.op == "convert" and x.args[0].dtype == "bool":
                return x.args[0]
        if k == 1 and t != "bool":
            if op in ("mul", "div"):
                return x
            if op == "rem":
                return self.const(t, 0)
        if k == ones:
            if op == "and":
                return x
            if op == "or":
                return self.const(t, ones)
        if t == "bool" and ((op == "eq" and k) or (op == "ne" and not k)):
            return x
        return None

    def as_word(self, x: Ins) -> Ins:
        """An i32 as a u32 of the same bits."""
        if x.op == "const":
            return self.const("u32", x.attr)
        if x.op == "convert" and x.args[0].dtype == "u32":
            return x.args[0]
        found = Ins("convert", "u32", (x,))
        simpler = self.unary(found, x)
        if simpler is None:
            self.out.append(found)
        return simpler or found

    def unary(self, item: Ins, x: Ins) -> Ins | None:
        op = item.op
        if op in _IDEMPOTENT and x.op == op:
            return x
        if op in ("neg", "not") and x.op == op:
            return x.args[0]
        if op == "convert":
            if x.dtype == item.dtype:
                return x
            whole = not {item.dtype, x.dtype} & FLOATS
            if whole and x.op == "convert" and x.args[0].dtype == item.dtype and BITS[x.dtype] >= BITS[item.dtype]:
                return x.args[0]  # there and back
            if (item.dtype, x.dtype) == ("u32", "i32") and x.op in _SAME_BITS:  # a signed index, as ids and lengths are
                found = Ins(x.op, "u32", tuple(self.as_word(a) for a in x.args))
                self.out.append(found)
                return found
        if op == "quiet" and x.op == "convert" and x.args[0].dtype not in FLOATS:
            return x
        if op == "narrow" and x.op == "load" and x.attr.element.name == item.attr:
            return x
        return None
